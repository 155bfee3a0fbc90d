/* SPDX-License-Identifier: Apache-2.0
 *
 * The products of rows with the keys that they list, which are used where they lie. The rows of a panel are those of
 * several queries, and line j of a tile of scores has for each row the j-th key of its own query: lanes are full however
 * few rows a query has, and nothing is computed that nobody listed. So dim is in the lanes of the products:
 *
 *     x[j][r]     = <a[r], b[key j of r]>          a tile of VL sums, rows x keys, whose lanes are added up at the end
 *     da[r]      += sum_j dz[j][r] b[key j of r]
 *     db[key]    += sum_r dz[j][r] a[r]            for the keys of each list
 *
 *     panel, block   [dim / VL][NR][VL], zeros behind dim; of a block one for each panel, without what is not finite
 *
 * Per VL entries of dim and VL sums of four rows and VL / 4 keys: 4 + VL / 4 loads, VL FMAs, and in the end 2 VL
 * shuffles and VL additions. Bytes: a key is read from where it lies once for each four rows, and out of L1 but for the
 * first time; twice more for the gradients, and db is read and written once. An x is a sum of VL chains of dim / VL
 * FMAs: shorter ones than those of products.h. Gradients have its chains.
 */
enum {
    KEYS_KC = 1024,     /* most entries of dim: nothing is packed, but da of a chunk is held */
    KEYS_WIDTH = VL / 4 /* vectors of dim at once in the gradients: with four rows or keys VL sums */
};

static int64_t keys_panel_bytes(int64_t dim)
{
    return (dim + VL - 1) / VL * VL * NR * (int64_t)sizeof(float);
}

static int64_t keys_block_bytes(int64_t dim, int rows)
{
    return rows / NR * keys_panel_bytes(dim);
}

static void keys_pack_row(int64_t dim, const float *line, float sign, int i, void *panel)
{
    float *to = (float *)panel + i * VL;
    for (int64_t d = 0; d < dim; d += VL, to += NR * VL)
        for (int k = 0; k < VL; k++) to[k] = d + k < dim ? sign * line[d + k] : 0;
}

static void keys_pack_block_row(int64_t dim, const float *line, int r, int rows, void *block)
{
    float *to = (float *)block + r / NR * (keys_panel_bytes(dim) / (int64_t)sizeof(float)) + r % NR * VL;
    (void)rows;
    for (int64_t d = 0; d < dim; d += VL, to += NR * VL)
        for (int k = 0; k < VL; k++) to[k] = d + k < dim && fabsf(line[d + k]) <= FLT_MAX ? line[d + k] : 0;
}

#define INLINED static inline __attribute__((always_inline))

/* VL entries of a key; or its last ones, 'left' of them, and zeros. */
INLINED vf load_key(const char *at, const int dtype)
{
    const void *x = at;
    return dtype == SKL_F32 ? vload(x) : dtype == SKL_BF16 ? vload_bf16(x) : vload_f16(x);
}

static __attribute__((noinline)) vf load_key_end(const char *at, const int dtype, int64_t left)
{
    float line[VL] = {0};
    convert(left, at, dtype, line);
    return vload(line);
}

/* Key j of a list. Behind its last one comes the last one again: such sums are not used. */
INLINED const char *key_at(const struct skl_columns *b, const struct skl_key_list *l, int j, const int size)
{
    return (const char *)b->at + l->keys[j < l->n ? j : l->n - 1] * b->ld * size;
}

/* The same to be asked for: the list goes on behind the tile. */
INLINED const char *key_ahead(const void *at, int64_t ld, const struct skl_key_list *l, int j, const int size)
{
    return (const char *)at + l->keys[j < l->left ? j : l->left - 1] * ld * size;
}

/* Lane i of the result is the sum of the lanes of x[i]. Of two vectors, each lane of the sum has what one of them has
 * in two of its lanes: half as many vectors each time. The first time the lanes are those that one instruction takes
 * (unpack). */
#define FIRST_(l, s) (((l)&1 ? LANES : 0) + (l) / 4 * 4 + (l) % 4 / 2)
#define SECOND_(l, s) (FIRST_(l, s) + 2)
#define ADD_LANES(x, s, one, other)                                                                                 \
    UNROLLED for (int i = 0; i < LANES; i += 2 * (s))(x)[i] = SHUFFLED_((x)[i], (x)[i + (s)], EACH_LANE_(one, s)) + \
                                                              SHUFFLED_((x)[i], (x)[i + (s)], EACH_LANE_(other, s));

INLINED vf lane_sums(vf x[VL])
{
    ADD_LANES(x, 1, FIRST_, SECOND_)
    ADD_LANES(x, 2, UPPER_, LOWER_)
    ADD_LANES(x, 4, UPPER_, LOWER_)
#if LANES > 8
    ADD_LANES(x, 8, UPPER_, LOWER_)
#endif
    return x[0];
}

/* ------------------------------------------------------------------------------------------------- logits --- */

/* c of 'rows' rows, whose pack is 'a', and 'keys' keys from j on: no more than there are registers for their addresses.
 * 'asks': for the keys VL further on, too. */
INLINED void key_products_of(const int rows, const int keys, const int dtype, const int asks, int j, int64_t dim,
                             const struct skl_columns *b, const struct skl_key_list *l, const float *a, vf *c)
{
    const int size = dtype == SKL_F32 ? 4 : 2, step = VL * size;
    const char *key[4], *ahead[4];
    UNROLLED for (int k = 0; k < keys; k++) key[k] = key_at(b, l, j + k, size);
    UNROLLED for (int k = 0; k < keys; k++) ahead[k] = asks ? key_ahead(b->at, b->ld, l, j + k + VL, size) : key[k];
    UNROLLED for (int i = 0; i < keys * rows; i++) c[i] = vset(0.0f);
    int64_t at = 0, end = dim / VL * step;
    _Pragma("GCC unroll 1") for (; at < end; at += step, a += NR * VL)
    {
        vf x[4];
        UNROLLED for (int i = 0; i < rows; i++) x[i] = vload(a + i * VL);
        UNROLLED for (int k = 0; k < keys; k++)
        {
            vf of_key = load_key(key[k] + at, dtype);
            if (asks)
                __builtin_prefetch(ahead[k] + at, 0, 3);
            UNROLLED for (int i = 0; i < rows; i++) c[k * rows + i] = vfma(x[i], of_key, c[k * rows + i]);
        }
    }
    if (dim % VL)
        UNROLLED for (int k = 0; k < keys; k++)
        {
            vf of_key = load_key_end(key[k] + at, dtype, dim % VL);
            UNROLLED for (int i = 0; i < rows; i++) c[k * rows + i] = vfma(vload(a + i * VL), of_key, c[k * rows + i]);
        }
}

/* 'rows' rows, 1, 2 or 4, with VL / rows keys from j on. */
INLINED void key_dots(const int rows, const int dtype, const int asks, int j, int64_t dim, const struct skl_columns *b,
                      const struct skl_key_list *l, const float *a, float *y)
{
    const int keys = VL / rows, part = keys < 4 ? keys : 4;
    vf c[VL];
    float sums[VL] __attribute__((aligned(64)));
    UNROLLED for (int k = 0; k < keys; k += part)
        key_products_of(rows, part, dtype, asks, j + k, dim, b, l, a, c + k * rows);
    vstore(sums, lane_sums(c));
    UNROLLED for (int k = 0; k < keys; k++) if (j + k < l->n)
        memcpy(y + k * NR, sums + k * rows, (size_t)rows * sizeof *sums);
}

/* Functions of their own: all together in one, their sums would not stay in registers. The first four rows that meet a
 * key ask for later ones; for fewer rows that would cost as much as it gains. */
typedef void dots(int j, int64_t dim, const struct skl_columns *b, const struct skl_key_list *l, const float *a,
                  float *y);
#define DOTS(name, rows, asks, dtype)                                                                  \
    static __attribute__((noinline)) void name(int j, int64_t dim, const struct skl_columns *b,        \
                                               const struct skl_key_list *l, const float *a, float *y) \
    {                                                                                                  \
        key_dots(rows, dtype, asks, j, dim, b, l, a, y);                                               \
    }
#define DOTS_OF(dtype)                    \
    DOTS(first_four_##dtype, 4, 1, dtype) \
    DOTS(four_##dtype, 4, 0, dtype)       \
    DOTS(two_##dtype, 2, 0, dtype)        \
    DOTS(one_##dtype, 1, 0, dtype)
DOTS_OF(SKL_F32)
DOTS_OF(SKL_BF16)
DOTS_OF(SKL_F16)

/* By the dtype of keys: for the first four rows of a list, for further four, for two and for one. */
static dots *const dots_of[3][4] = {[SKL_F32] = {first_four_SKL_F32, four_SKL_F32, two_SKL_F32, one_SKL_F32},
                                    [SKL_BF16] = {first_four_SKL_BF16, four_SKL_BF16, two_SKL_BF16, one_SKL_BF16},
                                    [SKL_F16] = {first_four_SKL_F16, four_SKL_F16, two_SKL_F16, one_SKL_F16}};

/* All rows of a list with VL of its keys, from j on; a and y are those of its first row. */
static void key_logits(int j, int64_t dim, const struct skl_columns *b, const struct skl_key_list *l, const float *a,
                       float *y)
{
    dots *const *of = dots_of[b->dtype];
    int r = 0, n = l->n - j < VL ? l->n - j : VL;
    for (; r + 4 <= l->lanes; r += 4)
        for (int k = 0; k < n; k += VL / 4) of[r > 0](j + k, dim, b, l, a + r * VL, y + k * NR + r);
    if (l->lanes - r >= 2) {
        for (int k = 0; k < n; k += VL / 2) of[2](j + k, dim, b, l, a + r * VL, y + k * NR + r);
        r += 2;
    }
    if (r < l->lanes)
        of[3](j, dim, b, l, a + r * VL, y + r);
}

/* Scores of lanes without a key, or without a row, are 0. Nothing is ever added to: dim is whole, and keys have no bias.
 * All of a tile at once: 'first' is 0. What comes soon is asked for from key to key, not from tile to tile. */
static void keys_logits(int n, int k, struct skl_columns b, int first, const void *panel, int64_t d0,
                        struct skl_soon soon, int add, float *y)
{
    (void)first, (void)d0, (void)add, (void)soon;
    for (int i = 0; i < n * NR; i += VL) vstore(y + i, vset(0.0f));
    for (const struct skl_key_list *l = b.lists; l < b.lists + b.count; l++)
        for (int j = 0; j < l->n; j += VL)
            key_logits(j, k, &b, l, (const float *)panel + l->lane * VL, y + j * NR + l->lane);
}

/* ---------------------------------------------------------------------------------------------- gradients --- */

enum { KEYS_AHEAD = 8 }; /* keys that are asked for ahead of the sums over them */

/* 'rows' rows, 'width' vectors of dim from d on, over the keys of a list; 'left' entries of the last vector, if it is
 * not whole. dz and da are those of the first of the rows. */
INLINED void key_rows(const int rows, const int width, const int dtype, int64_t d, int64_t left,
                      const struct skl_columns *b, const struct skl_key_list *l, const float *dz, int add, float *da)
{
    const int size = dtype == SKL_F32 ? 4 : 2;
    vf c[VL];
    float sums[VL][VL];
    UNROLLED for (int i = 0; i < rows * width; i++) c[i] = vset(0.0f);
    _Pragma("GCC unroll 1") for (int j = 0; j < l->n; j++, dz += NR)
    {
        const char *key = key_at(b, l, j, size) + d * size;
        const char *ahead = key_ahead(b->at, b->ld, l, j + KEYS_AHEAD, size) + d * size;
        vf x[VL];
        UNROLLED for (int v = 0; v < width; v++)
        {
            __builtin_prefetch(ahead + v * VL * size, 0, 3);
            x[v] = left < VL ? load_key_end(key, dtype, left) : load_key(key + v * VL * size, dtype);
        }
        UNROLLED for (int i = 0; i < rows; i++)
        {
            vf of_row = vset(dz[i]);
            UNROLLED for (int v = 0; v < width; v++) c[i * width + v] = vfma(of_row, x[v], c[i * width + v]);
        }
    }
    UNROLLED for (int i = 0; i < rows * width; i++) vstore(sums[i], c[i]);
    for (int v = 0; v < width; v++)
        for (int64_t e = 0; e < left; e++) {
            float *to = da + (d + v * VL + e) * NR;
            for (int i = 0; i < rows; i++) to[i] = add ? to[i] + sums[i * width + v][e] : sums[i * width + v][e];
        }
}

INLINED void key_rows_of(const int rows, const int dtype, int64_t dim, const struct skl_columns *b,
                         const struct skl_key_list *l, const float *dz, int add, float *da)
{
    int64_t d = 0;
    for (; d + KEYS_WIDTH * VL <= dim; d += KEYS_WIDTH * VL)
        key_rows(rows, KEYS_WIDTH, dtype, d, VL, b, l, dz, add, da);
    for (; d + VL <= dim; d += VL) key_rows(rows, 1, dtype, d, VL, b, l, dz, add, da);
    if (d < dim)
        key_rows(rows, 1, dtype, d, dim - d, b, l, dz, add, da);
}

INLINED void list_rows(const int dtype, int64_t dim, const struct skl_columns *b, const struct skl_key_list *l,
                       const float *dz, int add, float *da)
{
    int r = 0;
    for (; r + 4 <= l->lanes; r += 4) key_rows_of(4, dtype, dim, b, l, dz + r, add, da + r);
    for (; r < l->lanes; r++) key_rows_of(1, dtype, dim, b, l, dz + r, add, da + r);
}

static void keys_grad_rows(int n, int d, const unsigned char *live, struct skl_columns b, int first, const float *dz,
                           struct skl_soon soon, int add, float *da)
{
    (void)n, (void)live, (void)first, (void)soon;
    for (int i = 0; !add && i < (d + MR - 1) / MR * MR * NR; i += VL) vstore(da + i, vset(0.0f));
    for (const struct skl_key_list *l = b.lists; l < b.lists + b.count; l++)
        if (b.dtype == SKL_F32)
            list_rows(SKL_F32, d, &b, l, dz + l->lane, add, da + l->lane);
        else if (b.dtype == SKL_BF16)
            list_rows(SKL_BF16, d, &b, l, dz + l->lane, add, da + l->lane);
        else
            list_rows(SKL_F16, d, &b, l, dz + l->lane, add, da + l->lane);
}

/* 'width' vectors of dim from d on of four keys from j on; 'left' as above. a is that of the list's first row. */
INLINED void key_columns(const int width, int j, int64_t d, int64_t left, const struct skl_key_list *l, const float *dz,
                         const float *a, float *db, int64_t stride)
{
    vf c[4][VL];
    UNROLLED for (int k = 0; k < 4; k++)
    {
        const float *ahead = (const void *)key_ahead(db + d, stride, l, j + k + KEYS_AHEAD, sizeof *db);
        UNROLLED for (int v = 0; v < width; v++)
        {
            __builtin_prefetch(ahead + v * VL, 1, 3);
            c[k][v] = vset(0.0f);
        }
    }
    _Pragma("GCC unroll 1") for (int r = 0; r < l->lanes; r++)
    {
        vf x[VL];
        UNROLLED for (int v = 0; v < width; v++) x[v] = vload(a + (d + v * VL) * NR + r * VL);
        UNROLLED for (int k = 0; k < 4; k++)
        {
            vf of_key = vset(dz[(j + k) * NR + r]);
            UNROLLED for (int v = 0; v < width; v++) c[k][v] = vfma(of_key, x[v], c[k][v]);
        }
    }
    for (int k = 0; k < 4 && j + k < l->n; k++) {
        float *to = db + l->keys[j + k] * stride + d, line[VL];
        if (left < VL) {
            vstore(line, c[k][0]);
            for (int64_t i = 0; i < left; i++) to[i] += line[i];
            continue;
        }
        UNROLLED for (int v = 0; v < width; v++) vstore(to + v * VL, vload(to + v * VL) + c[k][v]);
    }
}

/* A tile has room for whole fours of lines. */
static void keys_grad_columns(struct skl_columns b, int64_t dim, const float *dz, const void *block, int panel,
                              float *db, int64_t stride)
{
    const float *of_panel = (const float *)block + panel * (keys_panel_bytes(dim) / (int64_t)sizeof(float));
    for (const struct skl_key_list *l = b.lists; l < b.lists + b.count; l++) {
        const float *x = dz + l->lane, *a = of_panel + l->lane * VL;
        for (int j = 0; j < l->n; j += 4) {
            int64_t d = 0;
            for (; d + KEYS_WIDTH * VL <= dim; d += KEYS_WIDTH * VL)
                key_columns(KEYS_WIDTH, j, d, VL, l, x, a, db, stride);
            for (; d + VL <= dim; d += VL) key_columns(1, j, d, VL, l, x, a, db, stride);
            if (d < dim)
                key_columns(1, j, d, dim - d, l, x, a, db, stride);
        }
    }
}

static const struct skl_products key_products = {
    .unit = "fma",
    .kc = KEYS_KC,
    .panel_bytes = keys_panel_bytes,
    .block_bytes = keys_block_bytes,
    .pack_row = keys_pack_row,
    .pack_block_row = keys_pack_block_row,
    .logits = keys_logits,
    .grad_rows = keys_grad_rows,
    .grad_keys = keys_grad_columns,
};
