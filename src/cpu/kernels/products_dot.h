/* SPDX-License-Identifier: Apache-2.0
 *
 * Logits of bf16 operands by an instruction that multiplies pairs: vdot(c, a, b) = c + a[0] b[0] + a[1] b[1] in each
 * lane (VDPBF16PS, BFDOT), twice the products of an FMA. The micro-kernel is that of products.h with pairs for entries:
 *
 *     C[i][0..NR-1] += A[i][pair k] . B[pair k][0..NR-1],      i < MR, k < K / 2
 *
 * Per pair: MR broadcasts, NV loads, MR NV vdot. Each sum is a chain of at most PAIR_KC steps in f32, longer ones are
 * sums of such, as with FMA; the units flush subnormal numbers and round to nearest (BFDOT: to odd, in between), so the
 * bound is that of products.h. Gradients stay with f32 FMAs: dz in two bf16 parts would take as many instructions.
 */
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
            {
                vpair b[NV];
                UNROLLED for (int v = 0; v < NV; v++) b[v] = load_pairs(rows + (p * NR + v * VL) * 2);
                UNROLLED for (int i = 0; i < MR; i++)
                {
                    uint32_t pair;
                    memcpy(&pair, columns + (j + i) * tile.ld + 2 * p, sizeof pair);
                    vpair a = pair - (vpair){0};
                    UNROLLED for (int v = 0; v < NV; v++) c[i][v] = vdot(c[i][v], a, b[v]);
                }
            }
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
    .columns = pair_columns,
    .columns_back = columns_back,
    .logits = dot_logits,
    .grad_rows = grad_rows,
    .grad_columns = grad_columns,
    .add_rows = add_listed_rows,
    .add_columns = pair_listed_columns,
    .burst = dot_burst,
};
