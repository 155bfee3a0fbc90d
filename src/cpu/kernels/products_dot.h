/* SPDX-License-Identifier: Apache-2.0
 *
 * Logits of bf16 operands by an instruction that multiplies pairs: vdot(c, a, b) = c + a[0] b[0] + a[1] b[1] in each
 * lane (VDPBF16PS, BFDOT), twice the products of an FMA. The micro-kernel is that of products.h with pairs for entries:
 *
 *     C[i][0..NR-1] += A[i][pair k] . B[pair k][0..NR-1],      i < MR, k < K / 2
 *
 * Per pair: MR broadcasts, NV loads, MR NV vdot. Each sum is a chain of at most PAIR_KC steps in f32, longer ones are
 * sums of such, as with FMA; the units flush subnormal numbers and round to nearest (BFDOT: to odd, in between), so the
 * bound is that of products.h. Gradients stay with f32 FMAs, since dz in two bf16 parts would take as many instructions;
 * if the caller lets dz be rounded to one, they are half as many vdot on the packs of pairs_back.h:
 *
 *     grad_rows      C = da^T [dim][rows]    A = b^T, pairs of columns   B = dz, pairs of columns
 *     grad_columns   C = db [columns][dim]   A = dz, pairs of rows       B = a, pairs of rows
 */
static inline __attribute__((always_inline)) void dot_step(const uint16_t *a, int64_t stride, const uint16_t *b,
                                                           vf c[MR][NV])
{
    vpair x[NV];
    UNROLLED for (int v = 0; v < NV; v++) x[v] = load_pairs(b + 2 * v * VL);
    UNROLLED for (int i = 0; i < MR; i++)
    {
        uint32_t pair;
        memcpy(&pair, a + i * stride, sizeof pair);
        UNROLLED for (int v = 0; v < NV; v++) c[i][v] = vdot(c[i][v], pair - (vpair){0}, x[v]);
    }
}

static void dot_logits(int n, int k, struct skl_columns tile, int first, const void *panel, int64_t d0,
                       struct skl_soon soon, int add, float *y)
{
    const uint16_t *columns = (const uint16_t *)tile.at + first * tile.ld, *rows = (const uint16_t *)panel + d0 * NR;
    enum { STEP = ASK_STEP / 2 };
    int pairs = (k + 1) / 2, lines = lines_each(&soon, (n + MR - 1) / MR * ((pairs + STEP - 1) / STEP));
    for (int j = 0; j < n; j += MR) {
        vf c[MR][NV];
        clear_c(c);
        for (int k0 = 0; k0 < pairs; k0 += STEP) {
            ask(&soon, lines);
            int end = k0 + STEP < pairs ? k0 + STEP : pairs;
            _Pragma("GCC unroll 1") for (int p = k0; p < end; p++)
                dot_step(columns + j * tile.ld + 2 * p, tile.ld, rows + p * NR * 2, c);
        }
        put_c(c, add, y + j * NR);
    }
}

static double dot_burst(long steps, float *sink)
{
    vf c[MR][NV];
    vpair a = 0x3f803f80u - (vpair){0}, b = 0x35803580u - (vpair){0}; /* 1 and 2^-20 */
    UNROLLED for (int i = 0; i < MR; i++) UNROLLED for (int v = 0; v < NV; v++) c[i][v] = vset((float)(i * NV + v));
    for (long k = 0; k < steps; k++) {
        UNROLLED for (int i = 0; i < MR; i++) UNROLLED for (int v = 0; v < NV; v++) c[i][v] = vdot(c[i][v], a, b);
    }
    UNROLLED for (int i = 0; i < MR; i++) UNROLLED for (int v = 0; v < NV; v++) c[0][0] = c[0][0] + c[i][v];
    float lanes[VL];
    vstore(lanes, c[0][0]);
    *sink = lanes[0];
    return 4.0 * MR * NR * (double)steps;
}

static const struct skl_products dot_products = {
    .unit = DOT_UNIT,
    .kc = KC, /* that of the gradients' packs */
    .panel_bytes = pair_panel_bytes,
    .block_bytes = block_bytes,
    .column_bytes = sizeof(float) * SKL_BK * LDK, /* the larger one: bf16 for logits, f32 for grad_rows */
    .pack_row = pair_pack_row,
    .pack_block_row = pack_block_row,
    .pack_dtype = SKL_BF16,
    .pack_panel = PAIR_PACK_PANEL,
    .columns = pair_columns,
    .columns_back = columns_back,
    .logits = dot_logits,
    .grad_rows = grad_rows,
    .grad_columns = grad_columns,
    .add_rows = add_listed_rows,
    .add_columns = pair_listed_columns,
    .burst = dot_burst,
};

#if LANES == 16
#include "pairs_back.h"

static void dot_split(int first, int last, float *dz)
{
    split_lines(1, first, last, dz);
}

/* Groups of columns in which some strip is live take part, as pairs of columns. */
static void dot_grad_rows(int n, int d, const unsigned char *live, struct skl_columns tile, int first, const float *dz,
                          struct skl_soon soon, int add, float *da)
{
    enum { PAIRS = PAIR_STEP / 2 };
    uint32_t B[PAIR_GROUPS * GROUP_PAIRS] __attribute__((aligned(64)));
    int at[PAIR_GROUPS], groups = pair_live_groups(n, live, first, at);
    for (int g = 0; g < groups; g++) pair_columns_of_dz(1, dz + (at[g] - first) * NR, B + g * GROUP_PAIRS);
    int lines = lines_each(&soon, (d + MR - 1) / MR * groups);
    for (int i = 0; i < d && (groups || !add); i += MR) {
        vf c[MR][NV];
        clear_c(c);
        for (int g = 0; g < groups; g++) {
            const uint16_t *A = (const uint16_t *)tile.at + i * tile.ld + at[g],
                           *b = (const uint16_t *)(B + g * GROUP_PAIRS);
            ask(&soon, lines);
            _Pragma("GCC unroll 1") for (int p = 0; p < PAIRS; p++) dot_step(A + 2 * p, tile.ld, b + p * NR * 2, c);
        }
        put_c(c, add, da + i * NR);
    }
}

static void dot_grad_columns(int n, int panels, const unsigned char *live, const void *tiles, const void *block,
                             int rows, int64_t d0, struct skl_soon soon, int d, float *db, int64_t stride)
{
    enum { PAIRS = NR / 2, LINE = 2 * NR }; /* a line of dz has the room of NR f32 numbers */
    const uint16_t *dz = tiles, *a = (const uint16_t *)block + block_place(d0, 0, rows);
    int lines = lines_each(&soon, (n + MR - 1) / MR * panels);
    for (int j = 0; j < n; j += MR) {
        int strip = j / MR, any = 0;
        vf c[MR][NV];
        ask_c(db + (j + MR) * stride, stride, n - j - MR);
        clear_c(c);
        for (int panel = 0; panel < panels; panel++) {
            const uint16_t *A = dz + (panel * SKL_BK + j) * LINE;
            const uint16_t *b = a + panel * PAIRS * LINE;
            ask(&soon, lines);
            if (!live[panel * SKL_STRIPS_MAX + strip])
                continue;
            any = 1;
            _Pragma("GCC unroll 1") for (int p = 0; p < PAIRS; p++) dot_step(A + 2 * p, LINE, b + p * LINE, c);
        }
        if (any)
            add_strip(c, n - j, d, db + j * stride, stride);
    }
}

static const struct skl_products dot_products_rounded = {
    .unit = DOT_UNIT,
    .kc = PAIR_KC,
    .step = PAIR_STEP,
    .panel_bytes = pair_panel_bytes,
    .block_bytes = pair_block_bytes,
    .column_bytes = sizeof(uint16_t) * SKL_BK * PAIR_LD,
    .pack_row = pair_pack_row,
    .pack_block_row = pair_pack_block_row,
    .pack_dtype = SKL_BF16,
    .pack_panel = PAIR_PACK_PANEL,
    .pack_block_panel = pair_pack_block_panel,
    .columns = pair_columns,
    .columns_back = pair_columns_back,
    .split = dot_split,
    .logits = dot_logits,
    .grad_rows = dot_grad_rows,
    .grad_columns = dot_grad_columns,
    .add_rows = pair_listed_rows,
    .add_columns = pair_listed_columns,
    .burst = dot_burst,
};
#define BF16_ROUNDED &dot_products_rounded
#endif
