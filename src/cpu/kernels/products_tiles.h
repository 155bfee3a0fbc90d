/* SPDX-License-Identifier: Apache-2.0
 *
 * The products of bf16 operands on a tile unit: C[32][32] in f32, as two by two tiles, += A[32][32 k] B[32 k][32]
 *
 *     logits         C = y [columns][rows]    A = b as it lies            B = a^T, pairs of entries     K = dim
 *     grad_rows      C = da^T [dim][rows]     A = b^T, made once a tile   B = dz, pairs of columns      K = columns
 *     grad_columns   C = db [columns][dim]    A = dz, pairs of rows       B = a, pairs of rows          K = rows
 *
 * dz = high + low, two bf16 numbers, so that 16 bits of it count; or high alone, if the caller lets it be rounded
 * (pairs_back.h, whose packs these are).
 *
 * Bytes of a step of 32 k: two loads of A (2 KiB), two of B, for four products of 16384 operations. Each step is summed
 * from 0 (tiles_c.h says in what order) and added to C: relative error about sqrt(32 + steps) 2^-25 of the largest
 * partial sum. Splitting dz leaves 2^-17 of it; rounding it 2^-9.
 */
enum { SIDE = PAIR_STEP }; /* of C */
_Static_assert((int)NR == (int)SIDE, "a panel is two tiles wide");

/* C is in the tiles 0 1 / 2 3, A in 4 and 5, B in 6 and 7. Macros, since a tile is named by a literal. */
#define zero_c()      \
    do {              \
        tile_zero(0); \
        tile_zero(1); \
        tile_zero(2); \
        tile_zero(3); \
    } while (0)
#define load_a(at, stride)                                        \
    do {                                                          \
        tile_load(4, at, stride);                                 \
        tile_load(5, (const char *)(at) + 16 * (stride), stride); \
    } while (0)
#define load_b(at, stride)                             \
    do {                                               \
        tile_load(6, at, stride);                      \
        tile_load(7, (const char *)(at) + 64, stride); \
    } while (0)
#define dot_c()            \
    do {                   \
        tile_dot(0, 4, 6); \
        tile_dot(1, 4, 7); \
        tile_dot(2, 5, 6); \
        tile_dot(3, 5, 7); \
    } while (0)

/* C += A B with the loads of both, of A alone, or of B alone; 'upper': lines 0 .. 15 of A and C alone. A load stands right
 * before the first product that needs it: earlier ones waited for products with the tile's old contents, and kept other
 * loads waiting. */
static inline __attribute__((always_inline)) void dot_ab(int upper, const void *A, const void *A_below,
                                                         int64_t a_stride, const void *B, int64_t b_stride)
{
    tile_load_once(4, A, a_stride);
    tile_load(6, B, b_stride);
    tile_dot(0, 4, 6);
    tile_load(7, (const char *)B + 64, b_stride);
    tile_dot(1, 4, 7);
    if (upper)
        return;
    tile_load_once(5, A_below, a_stride);
    tile_dot(2, 5, 6);
    tile_dot(3, 5, 7);
}

static inline __attribute__((always_inline)) void dot_a(int upper, const void *A, const void *A_below, int64_t a_stride)
{
    tile_load_once(4, A, a_stride);
    tile_dot(0, 4, 6);
    tile_dot(1, 4, 7);
    if (upper)
        return;
    tile_load_once(5, A_below, a_stride);
    tile_dot(2, 5, 6);
    tile_dot(3, 5, 7);
}

static inline __attribute__((always_inline)) void dot_b(int upper, const void *B, int64_t b_stride)
{
    tile_load(6, B, b_stride);
    tile_dot(0, 4, 6);
    if (!upper)
        tile_dot(2, 5, 6);
    tile_load(7, (const char *)B + 64, b_stride);
    tile_dot(1, 4, 7);
    if (!upper)
        tile_dot(3, 5, 7);
}

static void tiles_enter(struct skl_unit_state *callers)
{
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t lines[16];
    } ours = {.palette = 1};
    for (int t = 0; t < 8; t++) ours.bytes[t] = 64, ours.lines[t] = 16;
    tiles_get(callers->bytes);
    tiles_set(&ours);
}

static void tiles_leave(const struct skl_unit_state *callers)
{
    if (callers->bytes[0]) /* the palette: they have tiles of their own */
        tiles_set(callers->bytes);
    else
        tiles_release();
}

/* C from n lines of 'width' numbers, which become lines 'from' .. from + n - 1 of it; the rest of it becomes 0. */
static void get_tiles(int from, int n, int width, const float *at, int64_t ld)
{
    float c[SIDE][SIDE] __attribute__((aligned(64)));
    const float *to = at;
    if (n < SIDE || width < SIDE) {
        memset(c, 0, sizeof c);
        for (int i = 0; i < n; i++) memcpy(c[from + i], at + i * ld, (size_t)width * sizeof(float));
        to = c[0], ld = SIDE;
    }
    tile_load(0, to, ld * 4);
    tile_load(1, to + 16, ld * 4);
    tile_load(2, to + 16 * ld, ld * 4);
    tile_load(3, to + 16 * ld + 16, ld * 4);
}

static void store_tiles(float c[SIDE][SIDE])
{
    tile_store(0, c[0], sizeof *c);
    tile_store(1, c[0] + 16, sizeof *c);
    tile_store(2, c[16], sizeof *c);
    tile_store(3, c[16] + 16, sizeof *c);
}

/* C to n lines of 'width' numbers at 'to': lines 'from' .. from + n - 1 of it. */
static void put_tiles(int from, int n, int width, int add, float *to, int64_t ld)
{
    if (!add && n == SIDE && width == SIDE) {
        tile_store(0, to, ld * 4);
        tile_store(1, to + 16, ld * 4);
        tile_store(2, to + 16 * ld, ld * 4);
        tile_store(3, to + 16 * ld + 16, ld * 4);
        return;
    }
    float c[SIDE][SIDE] __attribute__((aligned(64)));
    store_tiles(c);
    for (int i = 0; i < n; i++, to += ld) {
        const float *line = c[from + i];
        int j = 0;
        for (; j + VL <= width; j += VL) {
            vf x = vload(line + j);
            if (add)
                x += vload(to + j);
            vstore(to + j, x);
        }
        for (; j < width; j++) to[j] = add ? to[j] + line[j] : line[j];
    }
}

/* Only whole groups of SIDE columns: what a group has outside of the n columns asked for is computed and left. */
static void tile_logits(int n, int k, struct skl_columns tile, int first, const void *panel, int64_t d0,
                        struct skl_soon soon, int add, float *y)
{
    const uint16_t *b = tile.at, *rows = (const uint16_t *)panel + d0 * NR;
    int end = first + n, from = first / SIDE * SIDE, steps = (k + PAIR_STEP - 1) / PAIR_STEP;
    int lines = lines_each(&soon, (end - from + SIDE - 1) / SIDE * steps);
    for (int j = from; j < end; j += SIDE) {
        const uint16_t *A = b + j * tile.ld, *B = rows;
        int lo = j < first ? first : j, hi = j + SIDE < end ? j + SIDE : end;
        if (add)
            get_tiles(lo - j, hi - lo, NR, y + (lo - first) * NR, NR);
        else
            zero_c();
        for (int s = 0; s < steps; s++, A += PAIR_STEP, B += PAIR_STEP * NR) {
            ask(&soon, lines);
            dot_ab(0, A, A + 16 * tile.ld, tile.ld * 2, B, NR * 4);
        }
        put_tiles(lo - j, hi - lo, NR, 0, y + (lo - first) * NR, NR);
    }
}

#include "tiles_kl.h"

/* ----------------------------------------------------------------------------------------------- gradients --- */

static inline __attribute__((always_inline)) void grad_rows_parts(int parts, int n, int d, const unsigned char *live,
                                                                  struct skl_columns tile, int first, const float *dz,
                                                                  struct skl_soon soon, int add, float *da)
{
    uint32_t B[PAIR_GROUPS * 2 * GROUP_PAIRS] __attribute__((aligned(64)));
    int at[PAIR_GROUPS], groups = pair_live_groups(n, live, first, at);
    int lines = lines_each(&soon, (d + SIDE - 1) / SIDE * groups);
    if (groups)
        pair_columns_of_dz(parts, dz + (at[0] - first) * NR, B);
    for (int i = 0; i < d && (groups || !add); i += SIDE) {
        int n_lines = d - i < SIDE ? d - i : SIDE;
        if (add)
            get_tiles(0, n_lines, NR, da + i * NR, NR);
        else
            zero_c();
        for (int g = 0; g < groups; g++) {
            const uint16_t *A = (const uint16_t *)tile.at + (int64_t)i * tile.ld + at[g];
            const uint32_t *high = B + g * parts * GROUP_PAIRS;
            ask(&soon, lines);
            dot_ab(0, A, A + 16 * tile.ld, tile.ld * 2, high + (parts - 1) * GROUP_PAIRS, NR * 4);
            if (parts == 2)
                dot_b(0, high, NR * 4);
            if (!i && g + 1 < groups) /* while the unit multiplies */
                pair_columns_of_dz(parts, dz + (at[g + 1] - first) * NR, B + (g + 1) * parts * GROUP_PAIRS);
        }
        put_tiles(0, n_lines, NR, 0, da + i * NR, NR);
    }
}

static inline __attribute__((always_inline)) void
grad_columns_parts(int parts, int n, int panels, const unsigned char *live, const float *dz, const void *block,
                   int rows, int64_t d0, struct skl_soon soon, int d, float *db, int64_t stride)
{
    const uint16_t *a = (const uint16_t *)block + block_place(d0, 0, rows);
    int lines = lines_each(&soon, (n + SIDE - 1) / SIDE * panels);
    for (int j = 0; j < n; j += SIDE) {
        int any = 0;
        for (int panel = 0; panel < panels; panel++) {
            const float *A = dz + (panel * SKL_BK + j) * NR;
            ask(&soon, lines);
            if (!group_live(live + panel * SKL_STRIPS_MAX, j, 0, SKL_BK))
                continue;
            if (!any)
                zero_c();
            any = 1;
            const float *low = A + (parts - 1) * 16;
            dot_ab(0, low, low + 16 * NR, NR * 4, a + panel * NR * SIDE, SIDE * 4);
            if (parts == 2)
                dot_a(0, A, A + 16 * NR, NR * 4);
        }
        if (any)
            put_tiles(0, n - j < SIDE ? n - j : SIDE, d, 1, db + j * stride, stride);
    }
}

/* ------------------------------------------------------------------------------------------------ the tables --- */

static double tile_burst(long steps, float *sink)
{
    uint16_t ones[16 * 32] __attribute__((aligned(64))); /* not 0: the clock falls with the bits that change */
    struct skl_unit_state callers;
    for (int i = 0; i < 16 * 32; i++) ones[i] = (uint16_t)(0x3f80 + i % 128);
    tiles_enter(&callers);
    zero_c();
    load_a(ones, 0); /* the same line 16 times */
    load_b(ones, 0);
    for (long k = 0; k < steps; k++) dot_c();
    put_tiles(0, 1, 1, 0, sink, SIDE);
    tiles_leave(&callers);
    return 4.0 * 16384 * (double)steps;
}

#define TILE_PRODUCTS(name, parts)                                                                                   \
    static void split_##name(int first, int last, float *dz)                                                         \
    {                                                                                                                \
        split_lines(parts, first, last, dz);                                                                         \
    }                                                                                                                \
    static void grad_rows_##name(int n, int d, const unsigned char *live, struct skl_columns tile, int first,        \
                                 const float *dz, struct skl_soon soon, int add, float *da)                          \
    {                                                                                                                \
        grad_rows_parts(parts, n, d, live, tile, first, dz, soon, add, da);                                          \
    }                                                                                                                \
    static void grad_columns_##name(int n, int panels, const unsigned char *live, const void *dz, const void *block, \
                                    int rows, int64_t d0, struct skl_soon soon, int d, float *db, int64_t stride)    \
    {                                                                                                                \
        grad_columns_parts(parts, n, panels, live, dz, block, rows, d0, soon, d, db, stride);                        \
    }                                                                                                                \
    static void tile_sweep_dz_##name(int n, int panels, const struct skl_factor side[2], int first, int want,        \
                                     const struct skl_panel_factors *f, float *const y[2], float *dz,                \
                                     unsigned char *live)                                                            \
    {                                                                                                                \
        tile_dz_parts(parts, n, panels, side, first, want, f, y, dz, live);                                          \
    }                                                                                                                \
    static const struct skl_products name = {                                                                        \
        .unit = "amx",                                                                                               \
        .kc = PAIR_KC,                                                                                               \
        .step = SIDE,                                                                                                \
        .enter = tiles_enter,                                                                                        \
        .leave = tiles_leave,                                                                                        \
        .panel_bytes = pair_panel_bytes,                                                                             \
        .block_bytes = pair_block_bytes,                                                                             \
        .column_bytes = sizeof(uint16_t) * SKL_BK * PAIR_LD,                                                         \
        .pack_row = pair_pack_row,                                                                                   \
        .pack_block_row = pair_pack_block_row,                                                                       \
        .pack_dtype = SKL_BF16,                                                                                      \
        .pack_panel = PAIR_PACK_PANEL,                                                                               \
        .pack_block_panel = pair_pack_block_panel,                                                                   \
        .columns = pair_columns,                                                                                     \
        .columns_back = pair_columns_back,                                                                           \
        .split = split_##name,                                                                                       \
        .logits = tile_logits,                                                                                       \
        .sweep_kl = tile_sweep_kl,                                                                                   \
        .sweep_dz = tile_sweep_dz_##name,                                                                            \
        .grad_rows = grad_rows_##name,                                                                               \
        .grad_columns = grad_columns_##name,                                                                         \
        .add_rows = pair_listed_rows,                                                                                \
        .add_columns = pair_listed_columns,                                                                          \
        .burst = tile_burst,                                                                                         \
    };

TILE_PRODUCTS(tile_products, 2)
TILE_PRODUCTS(tile_products_rounded, 1)
