/* SPDX-License-Identifier: Apache-2.0
 *
 * The gradients' products of f32 operands on a tile unit, in three bf16 parts as the logits (products_split.h):
 *
 *     grad_columns   C = db [columns][dim]   A = dz, pairs of rows        B = a, pairs of rows         K = rows
 *     grad_rows      C = da^T [dim][rows]    A = b^T, pairs of columns    B = dz, pairs of columns     K = columns
 *
 *     C += A2 B0 + A1 B0 + A1 B1 + A0 B1 + A0 B2 + A0 B0      each shares an operand with the one before it
 *
 * A piece is 32 k of either operand, 6 KiB: A [3 parts][32 lines of C][16 pairs], B [3 parts][16 pairs][32 of C's lines].
 * Pair i has the numbers i and 16 + i of 32, so that two vectors become pairs without a shuffle.
 *
 *     block      [panels] heads, [dim / 32][panels] pieces of B                       a
 *     parts      [SKL_BK / 32] pieces of A, of a panel's tile                         dz
 *     back       head, [SKL_BK / 32][KC / 32] pieces of A                             b^T
 *
 * 14 tile loads, of 16 lines each, for 24 products of 16 cycles. A sum rounds six times for 32 terms, where FMAs round 32
 * times; what is left out of a product is as in the logits.
 *
 * dz is often tiny: its parts are those of 2^56 dz, and sums are multiplied by 2^-56 as they are added. What is odd is 0
 * in the parts, and FMAs add it afterwards:
 *
 *     a column of dz in a panel, or a row of it in 32 columns    with a number that is not finite or above 2^20, or with
 *                                                                none above 2^-96 but some that is not 0
 *     an entry of a in a panel, or of b in a tile                with a number above 2^34, or with none above 2^-40 but
 *                                                                some that is not 0
 *
 * Sums over the 16384 rows that a block has at most stay below 2^56 2^20 2^34 2^14 = 2^124. NaN and inf in a count as 0,
 * as they do in b where it is cleaned (pack.h): columns that a row does not see give its da the same bits whether they
 * are NaN or 0.
 */
static const float DZ_SCALE = 0x1p56f, DZ_LARGE = 0x1p76f; /* 2^56 2^20; 2^56 2^-96 is SPLIT_SMALL */
static const float ENTRY_LARGE = 0x1p34f;

enum {
    PART = SIDE * PAIR_STEP / 2, /* pairs of a part of a piece */
    PIECE = PARTS * PART,
    PIECES = SKL_BK / SIDE /* of a tile's columns */
};

static inline vf finite_or_0(vf x)
{
    return vselect_lt(vabs(x), vset(INFINITY), x, vset(0.0f));
}

/* PIECE_A and PIECE_B are where a part begins and how far its lines are apart: several arguments each. */
static inline __attribute__((always_inline)) void multiply_pieces(int upper, const uint32_t *A, const uint32_t *B)
{
#define PIECE_A(p) A + (p)*PART, A + (p)*PART + PART / 2, 64
#define PIECE_B(p) B + (p)*PART, NR * 4
    dot_ab(upper, PIECE_A(2), PIECE_B(0));
    dot_a(upper, PIECE_A(1));
    dot_b(upper, PIECE_B(1));
    dot_a(upper, PIECE_A(0));
    dot_b(upper, PIECE_B(2));
    dot_b(upper, PIECE_B(0));
}

/* 2^-56 C to n lines of 'width' numbers. */
static void put_scaled(int n, int width, int add, float *to, int64_t ld)
{
    float c[SIDE][SIDE] __attribute__((aligned(64)));
    store_tiles(c);
    for (int i = 0; i < n; i++, to += ld) {
        int j = 0;
        for (; j + VL <= width; j += VL)
            vstore(to + j, vfma(vload(c[i] + j), vset(1 / DZ_SCALE), add ? vload(to + j) : vset(0.0f)));
        for (; j < width; j++) to[j] = (add ? to[j] : 0) + c[i][j] * (1 / DZ_SCALE);
    }
}

/* -------------------------------------------------------------------------------------------- grad_columns --- */

/* In front of a block's pieces, of each panel: its rows as they lie, NULL for what is nothing but zeros. */
struct split_rows {
    const float *row[NR];
};

/* A piece of a block; bit e of 'odd' is that of entry e. */
struct split_piece {
    _Alignas(SKL_ALIGN) uint32_t B[PIECE];
    uint32_t odd;
};

/* Of a panel's rows from entry d0 on. */
static inline struct split_piece *block_piece(const void *block, int64_t d0, int panel, int rows)
{
    char *pieces = (char *)(uintptr_t)block + rows / NR * (int64_t)sizeof(struct split_rows);
    return (struct split_piece *)pieces + d0 / PAIR_STEP * (rows / NR) + panel;
}

static int64_t split_block_bytes(int64_t dim, int rows)
{
    int64_t piece = sizeof(struct split_piece), pieces = whole_steps(dim) / PAIR_STEP;
    return rows / NR * ((int64_t)sizeof(struct split_rows) + pieces * piece);
}

static void split_pack_block_panel(int64_t dim, const void *const *lines, int r, int rows, void *block)
{
    struct split_rows *head = (struct split_rows *)block + r / NR;
    uint32_t there[NR] = {0};
    for (int64_t d = 0; d < dim; d += PAIR_STEP) {
        struct split_piece *to = block_piece(block, d, r / NR, rows);
        to->odd = 0;
        for (int half = 0; half < PAIR_STEP; half += VL) {
            struct sizes s = {vset(0.0f), 0};
            vf x[NR];
            for (int i = 0; i < NR; i++) {
                x[i] = finite_or_0(load_entries(lines[i], d + half, dim));
                look_at(x[i], ENTRY_LARGE, &s);
                there[i] |= lanes_above(vabs(x[i]), 0);
            }
            uint32_t odd = odd_lanes(&s);
            for (int i = 0; odd && i < NR; i++) x[i] = vselect_bits(odd, vset(0.0f), x[i]);
            for (int i = 0; i < VL; i++) store_parts(x[i], x[VL + i], to->B + i * NR + half, PART);
            to->odd |= odd << half;
        }
    }
    for (int i = 0; i < NR; i++) head->row[i] = there[i] ? lines[i] : NULL;
}

/* A panel's tile of dz. 'some': has a piece an odd column? */
struct split_dz {
    _Alignas(SKL_ALIGN) uint32_t A[PIECES][PIECE];
    const float *dz;
    unsigned char odd[SKL_BK], some[PIECES];
};

/* Columns beside first .. last - 1 become 0 as far as their pieces reach. */
static void split_parts_of_dz(int first, int last, const float *dz, void *parts)
{
    struct split_dz *to = parts;
    to->dz = dz;
    memset(to->some, 0, sizeof to->some);
    for (int j = first / SIDE * SIDE; first < last && j < whole_steps(last); j++) {
        vf x = vset(0.0f), y = vset(0.0f);
        struct sizes s = {x, 0};
        if (j >= first && j < last) {
            x = vload(dz + j * NR) * vset(DZ_SCALE), y = vload(dz + j * NR + VL) * vset(DZ_SCALE);
            look_at(x, DZ_LARGE, &s);
            look_at(y, DZ_LARGE, &s);
        }
        to->odd[j] = (unsigned char)odd_line(&s);
        if (__builtin_expect(to->odd[j], 0))
            x = y = vset(0.0f), to->some[j / SIDE] = 1;
        store_parts(x, y, to->A[j / SIDE] + j % SIDE * VL, PART);
    }
}

/* What odd columns of a piece, and odd entries, add to db by FMAs. */
static void add_odd_columns(int n, const unsigned char *live, const struct split_dz *dz, int j,
                            const struct split_rows *rows, uint32_t odd_entries, int64_t d0, int d, float *db,
                            int64_t stride)
{
    static const float zeros[NR];
    float block[NR * NR], whole[SIDE * NR] = {0};
    for (int i = 0; i < NR; i++) pack_block_row(d, rows->row[i] ? rows->row[i] + d0 : zeros, i, NR, block);
    grad_columns(n, 1, live + j / MR, dz->dz + j * NR, block, NR, 0, (struct skl_soon){0}, NR, whole, NR);
    for (int c = 0; c < n; c++)
        for (uint32_t left = dz->odd[j + c] ? ~0u : odd_entries; left && __builtin_ctz(left) < d; left &= left - 1)
            db[c * stride + __builtin_ctz(left)] += whole[c * NR + __builtin_ctz(left)];
}

/* Odd columns or entries of all panels that have some, of the group from column j on. */
static __attribute__((noinline)) void add_odd_panels(int n, int panels, const unsigned char *live,
                                                     const struct split_dz *dz, int j, const void *block, int rows,
                                                     int64_t d0, int d, float *db, int64_t stride)
{
    for (int panel = 0; panel < panels; panel++, dz++, live += SKL_STRIPS_MAX) {
        uint32_t entries = block_piece(block, d0, panel, rows)->odd;
        if (group_live(live, j, 0, SKL_BK) && (dz->some[j / SIDE] || entries))
            add_odd_columns(n, live, dz, j, (const struct split_rows *)block + panel, entries, d0, d, db, stride);
    }
}

static void split_grad_columns(int n, int panels, const unsigned char *live, const void *parts, const void *block,
                               int rows, int64_t d0, struct skl_soon soon, int d, float *db, int64_t stride)
{
    const struct split_dz *dz = parts;
    int lines = lines_each(&soon, (n + SIDE - 1) / SIDE * panels);
    for (int j = 0; j < n; j += SIDE) {
        int any = 0, odd = 0, columns = n - j < SIDE ? n - j : SIDE;
        for (int panel = 0; panel < panels; panel++) {
            const struct split_piece *piece = block_piece(block, d0, panel, rows);
            ask(&soon, lines);
            if (!group_live(live + panel * SKL_STRIPS_MAX, j, 0, SKL_BK))
                continue;
            if (!any)
                zero_c();
            any = 1, odd |= dz[panel].some[j / SIDE] || piece->odd;
            multiply_pieces(columns <= SIDE / 2, dz[panel].A[j / SIDE], piece->B);
        }
        if (any)
            put_scaled(columns, d, 1, db + j * stride, stride);
        if (odd)
            add_odd_panels(columns, panels, live, dz, j, block, rows, d0, d, db + j * stride, stride);
    }
}

/* skip_below: over a list of rows, which are read as they lie; NaN and inf count as 0. */
static void split_listed_rows(int n, const uint16_t *at, const float *x, const void *block, int rows, int dim,
                              float *sum)
{
    (void)rows;
    for (int e = 0; e < dim; e += VL) {
        vf c = vset(0.0f);
        float lanes[VL];
        for (int k = 0; k < n; k++) {
            const float *row = ((const struct split_rows *)block)[at[k] / NR].row[at[k] % NR];
            c = vfma(vset(x[k]), row ? finite_or_0(load_entries(row, e, dim)) : vset(0.0f), c);
        }
        vstore(lanes, c);
        for (int i = 0; i < VL && e + i < dim; i++) sum[e + i] += lanes[i];
    }
}

/* ----------------------------------------------------------------------------------------------- grad_rows --- */

/* In front of a tile's pieces: the columns as they lie; bit e % 32 of odd[e / 32] is that of entry e. */
struct split_back {
    const float *b;
    int64_t stride;
    int n, k, clean;
    uint32_t odd[SPLIT_STEPS];
};
enum { BACK_HEAD = (sizeof(struct split_back) + SKL_ALIGN - 1) / SKL_ALIGN * SKL_ALIGN };

static inline uint32_t *back_piece(const void *pack, int j, int e)
{
    return (uint32_t *)((char *)(uintptr_t)pack + BACK_HEAD) + (j / SIDE * SPLIT_STEPS + e / PAIR_STEP) * PIECE;
}

/* VL columns of VL entries, from entry e on, as lines of entries. */
static inline __attribute__((always_inline)) void load_square(const struct split_back *b, int j, int e, struct sizes *s,
                                                              vf x[VL])
{
    UNROLLED for (int c = 0; c < VL; c++)
    {
        x[c] = j + c < b->n ? load_entries(b->b + (j + c) * b->stride, e, b->k) : vset(0.0f);
        if (b->clean)
            x[c] = finite_or_0(x[c]);
        look_at(x[c], ENTRY_LARGE, s);
    }
    transpose_square(x);
}

static void clear_odd_entries(const struct split_back *head)
{
    for (int j = 0; j < head->n; j += SIDE)
        for (int e = 0; e < head->k; e++)
            for (int p = 0; p < PARTS && head->odd[e / PAIR_STEP] >> e % PAIR_STEP & 1; p++)
                memset(back_piece(head, j, e) + p * PART + e % PAIR_STEP * VL, 0, VL * sizeof(uint32_t));
}

static struct skl_columns split_columns_back(int n, int k, const void *b, int dtype, int64_t stride, int clean,
                                             void *pack)
{
    (void)dtype;
    struct split_back *head = pack;
    struct sizes s[KC / VL];
    *head = (struct split_back){.b = b, .stride = stride, .n = n, .k = k, .clean = clean};
    for (int e = 0; e < KC; e += VL) s[e / VL] = (struct sizes){vset(0.0f), 0};
    for (int j = 0; j < n; j += SIDE)
        for (int e = 0; e < whole_steps(k); e += VL) {
            vf x[VL], y[VL];
            uint32_t *to = back_piece(pack, j, e) + e % PAIR_STEP * VL;
            load_square(head, j, e, &s[e / VL], x);
            load_square(head, j + VL, e, &s[e / VL], y);
            UNROLLED for (int i = 0; i < VL; i++) store_parts(x[i], y[i], to + i * VL, PART);
        }
    uint32_t some = 0;
    for (int e = 0; e < k; e += VL)
        some |= odd_lanes(&s[e / VL]), head->odd[e / PAIR_STEP] |= odd_lanes(&s[e / VL]) << e % PAIR_STEP;
    if (some)
        clear_odd_entries(head);
    return (struct skl_columns){.at = pack, .ld = 0};
}

/* dz of a panel's tile: that of the columns first .. end - 1. */
struct split_range {
    const float *dz;
    int first, end;
};

static inline vf scaled_column(const struct split_range *r, int j, int v)
{
    vf x = vset(0.0f);
    if (j >= r->first && j < r->end)
        x = vload(r->dz + (j - r->first) * NR + v * VL) * vset(DZ_SCALE);
    return x;
}

/* The piece of dz of the columns from j on. Returns which rows are odd there, and 0 in it. */
static inline uint32_t part_rows(int j, const struct split_range *r, uint32_t *B)
{
    uint32_t odd = 0;
    UNROLLED for (int v = 0; v < NV; v++)
    {
        struct sizes s = {vset(0.0f), 0};
        for (int c = 0; c < SIDE; c++) look_at(scaled_column(r, j + c, v), DZ_LARGE, &s);
        uint32_t here = odd_lanes(&s);
        for (int p = 0; p < VL; p++) {
            vf x = scaled_column(r, j + p, v), y = scaled_column(r, j + VL + p, v);
            if (__builtin_expect(here, 0))
                x = vselect_bits(here, vset(0.0f), x), y = vselect_bits(here, vset(0.0f), y);
            store_parts(x, y, B + p * NR + v * VL, PART);
        }
        odd |= here << v * VL;
    }
    return odd;
}

/* to += x in the lanes of a panel's rows that have a bit. */
static inline void add_to_rows(uint32_t rows, const float *x, float *to)
{
    for (int v = 0; v < NV; v++, x += VL, to += VL, rows >>= VL) {
        vf was = vload(to);
        vstore(to, vselect_bits(rows & 0xffff, was + vload(x), was));
    }
}

/* What odd rows of the columns from j on, and odd entries, add to da by FMAs. 'live' is that of column 0. */
static __attribute__((noinline)) void add_odd_rows(int j, int d, const unsigned char *live, const struct split_back *b,
                                                   const struct split_range *r, uint32_t odd_rows, float *da)
{
    float strip[SKL_BK * MR], whole[MR * NR];
    int first = j < r->first ? r->first : j, end = j + SIDE < r->end ? j + SIDE : r->end;
    int columns = (end < b->n ? end : b->n) - first;
    for (int i = 0; i < d; i += MR) {
        uint32_t odd_entries = b->odd[i / PAIR_STEP] >> i % PAIR_STEP;
        int entries = d - i < MR ? d - i : MR;
        if (!odd_rows && !(odd_entries & ((1u << MR) - 1)))
            continue;
        pack_strips(columns, entries, b->b + first * b->stride + i, SKL_F32, b->stride, b->clean, strip);
        grad_rows(end - first, MR, live + first / MR, (struct skl_columns){.at = strip, .ld = MR}, 0,
                  r->dz + (first - r->first) * NR, (struct skl_soon){0}, 0, whole);
        for (int e = 0; e < entries; e++)
            add_to_rows(odd_entries >> e & 1 ? ~0u : odd_rows, whole + e * NR, da + (i + e) * NR);
    }
}

static void split_grad_rows(int n, int d, const unsigned char *live, struct skl_columns tile, int first,
                            const float *dz, struct skl_soon soon, int add, float *da)
{
    uint32_t B[PIECES][PIECE] __attribute__((aligned(64))), odd[PIECES], some = 0;
    const struct split_back *head = tile.at;
    const struct split_range r = {dz, first, first + n};
    int at[PIECES], groups = pair_live_groups(n, live, first, at);
    int lines = lines_each(&soon, (d + SIDE - 1) / SIDE * groups);
    if (groups)
        some = odd[0] = part_rows(at[0], &r, B[0]);
    for (int i = 0; i < d && (groups || !add); i += SIDE) {
        zero_c();
        for (int g = 0; g < groups; g++) {
            ask(&soon, lines);
            multiply_pieces(d - i <= SIDE / 2, back_piece(head, at[g], i), B[g]);
            if (!i && g + 1 < groups) /* while the unit multiplies */
                some |= odd[g + 1] = part_rows(at[g + 1], &r, B[g + 1]);
        }
        put_scaled(d - i < SIDE ? d - i : SIDE, NR, add, da + i * NR, NR);
        some |= head->odd[i / PAIR_STEP];
    }
    for (int g = 0; some && g < groups; g++) add_odd_rows(at[g], d, live - first / MR, head, &r, odd[g], da);
}
