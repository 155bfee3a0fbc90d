/* SPDX-License-Identifier: Apache-2.0
 *
 * The products of bf16 operands on a tile unit: C[32][32] in f32, as two by two tiles, += A[32][32 k] B[32 k][32]
 *
 *     logits         C = y [columns][rows]    A = b as it lies            B = a^T, pairs of entries     K = dim
 *     grad_rows      C = da^T [dim][rows]     A = b^T, made once a tile   B = dz, pairs of columns      K = columns
 *     grad_columns   C = db [columns][dim]    A = dz, pairs of rows       B = a, pairs of rows          K = rows
 *
 * dz = high + low, two bf16 numbers, so that 16 bits of it count; or high alone, if the caller lets it be rounded. It
 * is split once, in place of the f32 numbers:
 *
 *     line of column j   [16] pairs of high, [16] pairs of low; pair i has rows i and 16 + i
 *
 * which grad_columns loads as it is, and grad_rows turns into pairs of columns (j, j + 1) by shifts.
 *
 * Packs: those of pairs.h, and
 *     block   [dim / 32][rows / 2][32][2]   a, for grad_columns; pairs as in dz
 *     back    [dim][SKL_BK]                 b^T, for grad_rows
 *
 * Bytes of a step of 32 k: two loads of A (2 KiB), two of B, for four products of 16384 operations. Each step is summed
 * from 0 (tiles_c.h says in what order) and added to C: relative error about sqrt(32 + steps) 2^-25 of the largest
 * partial sum. Splitting dz leaves 2^-17 of it; rounding it 2^-9.
 */
_Static_assert(NR == 32 && VL == 16, "a panel is two tiles wide");

enum { SIDE = 32 }; /* of C */

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
    tile_store(0, c[0], sizeof *c);
    tile_store(1, c[0] + 16, sizeof *c);
    tile_store(2, c[16], sizeof *c);
    tile_store(3, c[16] + 16, sizeof *c);
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
        zero_c();
        for (int s = 0; s < steps; s++, A += PAIR_STEP, B += PAIR_STEP * NR) {
            ask(&soon, lines);
            tile_load_once(4, A, tile.ld * 2);
            tile_load_once(5, A + 16 * tile.ld, tile.ld * 2);
            load_b(B, NR * 4);
            dot_c();
        }
        int lo = j < first ? first : j, hi = j + SIDE < end ? j + SIDE : end;
        put_tiles(lo - j, hi - lo, NR, add, y + (lo - first) * NR, NR);
    }
}

/* -------------------------------------------------------------------------------------------------------- dz --- */

/* To the nearest bf16, in the upper half. What would become infinite is cut off instead; inf and NaN stay. */
static inline vpair nearest_bf16(vf x)
{
    vpair u = (vpair)x, nearest = u + 0x7fffu + ((u >> 16) & 1), top = (vpair){0} + 0x7f800000u;
    vpair cut = (vpair)((u & top) == top) | (vpair)((nearest & top) == top);
    vpair quiet = (vpair)((u & 0x7fffffffu) > top) & 0x400000u;
    return ((cut & (u | quiet)) | (~cut & nearest)) & 0xffff0000u;
}

/* What is left of x, without what is not finite. */
static inline vpair rest_bf16(vf x, vpair high)
{
    vpair top = (vpair){0} + 0x7f800000u, finite = (vpair)((high & top) != top);
    return nearest_bf16(x - (vf)high) & finite;
}

/* Lines beside the columns become 0 as far as a group of SIDE reads them. */
static inline void split_lines(int parts, int first, int last, float *dz)
{
    if (first >= last)
        return;
    for (int j = first / SIDE * SIDE; j < whole_steps(last); j++) {
        float *line = dz + j * NR;
        if (j < first || j >= last) {
            memset(line, 0, NR * sizeof *line);
            continue;
        }
        vf x = vload(line), y = vload(line + 16);
        vpair hx = nearest_bf16(x), hy = nearest_bf16(y);
        store_pairs(line, hx >> 16 | hy);
        if (parts == 2)
            store_pairs(line + 16, rest_bf16(x, hx) >> 16 | rest_bf16(y, hy));
    }
}

/* Is any strip of the group from column j on live? 'live' is that of column 0. */
static inline int group_live(const unsigned char *live, int j, int first, int end)
{
    int any = 0;
    for (int c = j; c < j + SIDE; c += MR) any |= c >= first && c < end && live[c / MR];
    return any;
}

/* ----------------------------------------------------------------------------------------------- grad_rows --- */

/* Lane l of x[i] becomes lane i of x[l]. */
static inline __attribute__((always_inline)) void transpose(vpair x[16])
{
    EXCHANGE_BLOCKS(vpair, x, 1)
    EXCHANGE_BLOCKS(vpair, x, 2)
    EXCHANGE_BLOCKS(vpair, x, 4)
    EXCHANGE_BLOCKS(vpair, x, 8)
}

/* NaN and inf become 0. */
static inline vpair clean_pairs(vpair x)
{
    vpair low = (vpair)((x & 0x7f80u) == 0x7f80u), high = (vpair)((x & 0x7f800000u) == 0x7f800000u);
    return x & ~(low & 0xffffu) & ~(high & 0xffff0000u);
}

/* 32 columns of 32 entries, 'ld' apart, into 32 lines of b^T. */
static void transpose_block(const uint16_t *b, int64_t ld, int clean, uint16_t *to)
{
    vpair even[16], odd[16]; /* entries 2l and 2l + 1 in lane l, of columns 2p and 2p + 1 */
    for (int p = 0; p < 16; p++) {
        vpair x = load_pairs(b + 2 * p * ld), y = load_pairs(b + (2 * p + 1) * ld);
        if (clean)
            x = clean_pairs(x), y = clean_pairs(y);
        even[p] = (x & 0xffffu) | y << 16;
        odd[p] = x >> 16 | (y & 0xffff0000u);
    }
    transpose(even);
    transpose(odd);
    for (int l = 0; l < 16; l++) {
        store_pairs(to + 2 * l * SKL_BK, even[l]);
        store_pairs(to + (2 * l + 1) * SKL_BK, odd[l]);
    }
}

/* Zeros around what there is, up to whole steps both ways. */
static struct skl_columns tile_columns_back(int n, int k, const void *b, int dtype, int64_t stride, int clean,
                                            void *pack)
{
    (void)dtype;
    uint16_t edge[PAIR_STEP][PAIR_STEP];
    for (int j = 0; j < n; j += PAIR_STEP)
        for (int d = 0; d < k; d += PAIR_STEP) {
            const uint16_t *from = (const uint16_t *)b + j * stride + d;
            uint16_t *to = (uint16_t *)pack + (int64_t)d * SKL_BK + j;
            int columns = n - j < PAIR_STEP ? n - j : PAIR_STEP, entries = k - d < PAIR_STEP ? k - d : PAIR_STEP;
            if (columns == PAIR_STEP && entries == PAIR_STEP) {
                transpose_block(from, stride, clean, to);
                continue;
            }
            memset(edge, 0, sizeof edge);
            for (int c = 0; c < columns; c++) memcpy(edge[c], from + c * stride, (size_t)entries * sizeof *from);
            transpose_block(edge[0], PAIR_STEP, clean, to);
        }
    return (struct skl_columns){.at = pack, .ld = SKL_BK};
}

/* dz of a group's columns as pairs of columns, B of grad_rows: [parts][16 pairs][NR]. */
static inline void pair_columns_of_dz(int parts, const float *dz, uint32_t *to)
{
    for (int part = 0; part < parts; part++)
        for (int p = 0; p < SIDE / 2; p++, to += NR) {
            vpair x = load_pairs(dz + 2 * p * NR + part * 16), y = load_pairs(dz + (2 * p + 1) * NR + part * 16);
            store_pairs(to, (x & 0xffffu) | y << 16);
            store_pairs(to + 16, x >> 16 | (y & 0xffff0000u));
        }
}

static inline __attribute__((always_inline)) void grad_rows_parts(int parts, int n, int d, const unsigned char *live,
                                                                  struct skl_columns tile, int first, const float *dz,
                                                                  struct skl_soon soon, int add, float *da)
{
    enum { GROUPS = SKL_BK / SIDE, SIZE = SIDE / 2 * NR };
    uint32_t B[GROUPS][2 * SIZE] __attribute__((aligned(64)));
    int groups = 0, at[GROUPS], end = first + n;
    for (int j = first / SIDE * SIDE; j < end; j += SIDE) {
        if (!group_live(live - first / MR, j, first, end))
            continue;
        pair_columns_of_dz(parts, dz + (j - first) * NR, B[groups]);
        at[groups++] = j;
    }
    int lines = lines_each(&soon, (d + SIDE - 1) / SIDE * groups);
    for (int i = 0; i < d && (groups || !add); i += SIDE) {
        zero_c();
        for (int g = 0; g < groups; g++) {
            const uint16_t *A = (const uint16_t *)tile.at + (int64_t)i * tile.ld + at[g];
            ask(&soon, lines);
            load_a(A, tile.ld * 2);
            if (parts == 2) {
                load_b(B[g] + SIZE, NR * 4);
                dot_c();
            }
            load_b(B[g], NR * 4);
            dot_c();
        }
        put_tiles(0, d - i < SIDE ? d - i : SIDE, NR, add, da + i * NR, NR);
    }
}

/* -------------------------------------------------------------------------------------------- grad_columns --- */

static int64_t tile_block_bytes(int64_t dim, int rows)
{
    return (int64_t)whole_steps(dim) * rows * (int64_t)sizeof(uint16_t);
}

/* Of entry d0, a multiple of 32, and row r: the pair is followed by that of the next entry. */
static inline int64_t block_place(int64_t d0, int r, int rows)
{
    return d0 * rows + (r / NR * 16 + r % 16) * 2 * SIDE + r % NR / 16;
}

/* NaN and inf become 0, as in pack_block_row. */
static void tile_pack_block_row(int64_t dim, const float *line, int r, int rows, void *block)
{
    uint16_t *to = block;
    for (int64_t d = 0; d < whole_steps(dim); d++)
        to[block_place(d / SIDE * SIDE, r, rows) + d % SIDE * 2] = d < dim && fabsf(line[d]) <= FLT_MAX
                                                                       ? (uint16_t)(skl_bits(line[d]) >> 16)
                                                                       : 0;
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
            load_b(a + panel * NR * SIDE, SIDE * 4);
            if (parts == 2) {
                load_a(A + 16, NR * 4);
                dot_c();
            }
            load_a(A, NR * 4);
            dot_c();
        }
        if (any)
            put_tiles(0, n - j < SIDE ? n - j : SIDE, d, 1, db + j * stride, stride);
    }
}

/* skip_below: sum[0..dim-1] += sum_k x[k] a[at[k]][0..dim-1] over a list of rows. */
static void tile_listed_rows(int n, const uint16_t *at, const float *x, const void *block, int rows, int dim,
                             float *sum)
{
    for (int e = 0; e < dim; e += VL) {
        vf c = vset(0.0f);
        for (int k = 0; k < n; k++) {
            int upper = at[k] % NR / 16;
            const uint16_t *from = (const uint16_t *)block + block_place(e / SIDE * SIDE, at[k], rows) - upper;
            vpair u = load_pairs(from + e % SIDE * 2);
            c = vfma(vset(x[k]), (vf)(upper ? u & 0xffff0000u : u << 16), c);
        }
        float lanes[VL];
        vstore(lanes, c);
        for (int i = 0; i < VL && e + i < dim; i++) sum[e + i] += lanes[i];
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

#define TILE_PRODUCTS(name, parts)                                                                                    \
    static void split_##name(int first, int last, float *dz)                                                          \
    {                                                                                                                 \
        split_lines(parts, first, last, dz);                                                                          \
    }                                                                                                                 \
    static void grad_rows_##name(int n, int d, const unsigned char *live, struct skl_columns tile, int first,         \
                                 const float *dz, struct skl_soon soon, int add, float *da)                           \
    {                                                                                                                 \
        grad_rows_parts(parts, n, d, live, tile, first, dz, soon, add, da);                                           \
    }                                                                                                                 \
    static void grad_columns_##name(int n, int panels, const unsigned char *live, const float *dz, const void *block, \
                                    int rows, int64_t d0, struct skl_soon soon, int d, float *db, int64_t stride)     \
    {                                                                                                                 \
        grad_columns_parts(parts, n, panels, live, dz, block, rows, d0, soon, d, db, stride);                         \
    }                                                                                                                 \
    static const struct skl_products name = {                                                                         \
        .unit = "amx",                                                                                                \
        .kc = PAIR_KC,                                                                                                \
        .enter = tiles_enter,                                                                                         \
        .leave = tiles_leave,                                                                                         \
        .panel_bytes = pair_panel_bytes,                                                                              \
        .block_bytes = tile_block_bytes,                                                                              \
        .column_bytes = sizeof(uint16_t) * SKL_BK * PAIR_LD,                                                          \
        .pack_row = pair_pack_row,                                                                                    \
        .pack_block_row = tile_pack_block_row,                                                                        \
        .columns = pair_columns,                                                                                      \
        .columns_back = tile_columns_back,                                                                            \
        .split = split_##name,                                                                                        \
        .logits = tile_logits,                                                                                        \
        .grad_rows = grad_rows_##name,                                                                                \
        .grad_columns = grad_columns_##name,                                                                          \
        .add_rows = tile_listed_rows,                                                                                 \
        .add_columns = pair_listed_columns,                                                                           \
        .burst = tile_burst,                                                                                          \
    };

TILE_PRODUCTS(tile_products, 2)
TILE_PRODUCTS(tile_products_rounded, 1)
