/* SPDX-License-Identifier: Apache-2.0
 *
 * Logits of f32 operands on a tile unit. A number of f32 is the sum of three of bf16, exactly,
 *
 *     x = x0 + x1 + x2      x0 = x to 8 bits, x1 = what is left of it to 8 bits, x2 = what is left then (7 bits)
 *
 * and of the nine products of two such sums six count:
 *
 *     y = b a^T ~ (b0 a2 + b0 a1 + b1 a1 + b1 a0 + b2 a0) + b0 a0       y [columns][rows], C as in products_tiles.h
 *
 * over 128 entries of dim the five small ones first, so that C rounds at its full size once for 32 entries. Some 2^-24
 * |a b| of a product is left out at most (|x1| <= 2^-8 |x|, |x2| <= 2^-17 |x|), 2^-27.4 in the root mean square of
 * random mantissas; the sums round as those of products_tiles.h: together no more than a chain of KC FMAs.
 *
 * Packs: pair e of a step of 32 entries has the entries e and 16 + e: two vectors become pairs without a shuffle.
 *     panel   head, [dim / 32][3 parts][16 pairs][NR]
 *     tile    head, [SKL_BK / 16][KC / 32][3 parts][16 columns][16 pairs]: whole tiles, 1 KiB each
 * A step takes 12 tile loads for 20 products and 4 for the other 4. The three parts of 32 columns by KC entries are
 * 48 KiB, as are those of a panel; a tile's 288 KiB are read from L2 once for each panel.
 *
 * Rows and columns that cannot be taken apart are odd: their scores are made by FMAs, from the operands as they lie,
 * with the bits of products.h. Odd is what has a number that is not finite or above 2^40, or what is not 0 and has no
 * number above 2^-40. Of the others nothing overflows, and what underflows is below D 2^-43 of max |a| max |b|. A score
 * depends on its row and its column alone, whatever is beside them: equal sides get equal bits.
 *
 * The gradients' products are in products_split_back.h.
 */
enum {
    PARTS = 3,
    SPLIT_STEPS = KC / PAIR_STEP,
    NEAR_STEPS = 4,                                /* whose parts of a panel fit into half of L1 */
    SPLIT_TILE = 16 * PAIR_STEP,                   /* numbers of a tile of bf16 */
    SPLIT_GROUP = SPLIT_STEPS * PARTS * SPLIT_TILE /* of 16 columns */
};
_Static_assert(KC % PAIR_STEP == 0 && SKL_BK % SIDE == 0, "whole steps and whole groups");

static const float SPLIT_LARGE = 0x1p40f, SPLIT_SMALL = 0x1p-40f;

/* What is in front of a pack's parts. */
struct split_panel {
    const float *row[NR]; /* the operand; NULL: nothing but zeros, or no row */
    float sign;
    unsigned char odd[NR], some; /* some: is any? */
};
struct split_tile {
    const float *b;
    int64_t stride;
    unsigned char odd[SKL_BK], some;
};
enum {
    PANEL_HEAD = (sizeof(struct split_panel) + SKL_ALIGN - 1) / SKL_ALIGN * SKL_ALIGN,
    TILE_HEAD = (sizeof(struct split_tile) + SKL_ALIGN - 1) / SKL_ALIGN * SKL_ALIGN
};

/* Parts in the upper halves. Ties go away from 0, which leaves no more than rounding to even would. */
static inline void take_apart(vf x, vpair part[PARTS])
{
    part[0] = ((vpair)x + 0x8000u) & 0xffff0000u;
    vf rest = x - (vf)part[0];
    part[1] = ((vpair)rest + 0x8000u) & 0xffff0000u;
    part[2] = (vpair)(rest - (vf)part[1]);
}

/* Entries e in x and 16 + e in y: a line of each part, 'ld' pairs apart. */
static inline void store_parts(vf x, vf y, uint32_t *to, int ld)
{
    vpair low[PARTS], high[PARTS];
    take_apart(x, low);
    take_apart(y, high);
    UNROLLED for (int p = 0; p < PARTS; p++) store_pairs(to + p * ld, low[p] >> 16 | high[p]);
}

/* What decides whether numbers are odd, in each lane: the largest, and which had one that is too large or none. */
struct sizes {
    vf most;
    uint32_t beyond;
};

static inline void look_at(vf x, float large, struct sizes *s)
{
    x = vabs(x);
    s->most = vmax(x, s->most);
    s->beyond |= vbits(vnle(x, vset(large)));
}

static inline uint32_t lanes_above(vf x, float limit)
{
    return vbits(vnle(x, vset(limit)));
}

/* Bits of the lanes that are odd. */
static inline uint32_t odd_lanes(const struct sizes *s)
{
    return s->beyond | (lanes_above(s->most, 0) & ~lanes_above(s->most, SPLIT_SMALL));
}

/* Are all lanes together? */
static inline int odd_line(const struct sizes *s)
{
    return s->beyond || (lanes_above(s->most, 0) && !lanes_above(s->most, SPLIT_SMALL));
}

/* VL entries of a line from d on, zeros behind its end. */
static inline vf load_entries(const float *line, int64_t d, int64_t end)
{
    float edge[VL] = {0};
    if (d + VL <= end)
        return vload(line + d);
    for (int64_t i = d; i < end; i++) edge[i - d] = line[i];
    return vload(edge);
}

/* --------------------------------------------------------------------------------------------------------- packs --- */

static int64_t split_panel_bytes(int64_t dim)
{
    return PANEL_HEAD + (int64_t)whole_steps(dim) * NR * PARTS * (int64_t)sizeof(uint16_t);
}

static void split_pack_panel(int64_t dim, const void *const *lines, float sign, void *panel)
{
    struct split_panel *head = panel;
    head->sign = sign, head->some = 0;
    for (int i = 0; i < NR; i += VL) {
        struct sizes s = {vset(0.0f), 0};
        uint32_t *to = (uint32_t *)((char *)panel + PANEL_HEAD) + i;
        for (int64_t d = 0; d < dim; d += PAIR_STEP, to += PARTS * VL * NR) {
            vf x[2][VL];
            for (int half = 0; half < 2; half++) {
                UNROLLED for (int k = 0; k < VL; k++)
                {
                    x[half][k] = load_entries(lines[i + k], d + half * VL, dim) * vset(sign);
                }
                transpose_square(x[half]);
                UNROLLED for (int k = 0; k < VL; k++) look_at(x[half][k], SPLIT_LARGE, &s);
            }
            UNROLLED for (int e = 0; e < VL; e++) store_parts(x[0][e], x[1][e], to + e * NR, VL * NR);
        }
        uint32_t there = s.beyond | lanes_above(s.most, 0), odd = odd_lanes(&s);
        for (int k = 0; k < VL; k++) {
            head->row[i + k] = there >> k & 1 ? lines[i + k] : NULL;
            head->odd[i + k] = odd >> k & 1;
            head->some |= head->odd[i + k];
        }
    }
}

/* Where the parts of a column begin; the next step's are PARTS tiles on. */
static inline uint32_t *column_parts(const void *pack, int j)
{
    return (uint32_t *)((uint16_t *)((char *)pack + TILE_HEAD) + j / 16 * SPLIT_GROUP + j % 16 * PAIR_STEP);
}

/* Is it odd? */
static int pack_column(int k, const float *line, uint32_t *to)
{
    struct sizes s = {vset(0.0f), 0};
    for (int d = 0; d < k; d += PAIR_STEP, to += PARTS * SPLIT_TILE / 2) {
        vf x = load_entries(line, d, k), y = load_entries(line, d + VL, k);
        look_at(x, SPLIT_LARGE, &s);
        look_at(y, SPLIT_LARGE, &s);
        store_parts(x, y, to, SPLIT_TILE / 2);
    }
    return odd_line(&s);
}

/* Columns up to a whole group are 0. */
static struct skl_columns split_columns(int n, int k, const void *b, int dtype, int64_t stride, void *pack)
{
    (void)dtype;
    struct split_tile *head = pack;
    head->b = b, head->stride = stride, head->some = 0;
    for (int j = 0; j < n; j++) {
        head->odd[j] = (unsigned char)pack_column(k, head->b + j * stride, column_parts(pack, j));
        head->some |= head->odd[j];
    }
    for (int j = n; j < whole_steps(n); j++)
        for (int t = 0; t < whole_steps(k) / PAIR_STEP * PARTS; t++)
            memset(column_parts(pack, j) + t * SPLIT_TILE / 2, 0, PAIR_STEP * sizeof(uint16_t));
    return (struct skl_columns){.at = pack, .ld = 0};
}

/* skip_below: over a list of columns, which are read as they lie. */
static void split_listed_columns(int n, const uint16_t *at, const float *x, struct skl_columns columns, int dim,
                                 float *sum)
{
    const struct split_tile *tile = columns.at;
    add_listed_columns(n, at, x, (struct skl_columns){.at = tile->b, .ld = tile->stride}, dim, sum);
}

/* ------------------------------------------------------------------------------------------------------ products --- */

/* C += b a^T of one group of columns: the small products of all steps, then the large ones. PART_A and PART_B are where
 * a part begins and how far its lines are apart: several arguments each. */
static inline __attribute__((always_inline)) void multiply_steps(int upper, int steps, const uint16_t *columns,
                                                                 const uint16_t *rows, struct skl_soon *soon, int lines)
{
#define PART_A(p) A + (p)*SPLIT_TILE, A + SPLIT_GROUP + (p)*SPLIT_TILE, 64
#define PART_B(p) B + (p)*PAIR_STEP *NR, NR * 4
    const uint16_t *A = columns, *B = rows;
    for (int s = 0; s < steps; s++, A += PARTS * SPLIT_TILE, B += PARTS * PAIR_STEP * NR) {
        ask(soon, lines);
        dot_ab(upper, PART_A(0), PART_B(2));
        dot_b(upper, PART_B(1));
        dot_a(upper, PART_A(1));
        dot_b(upper, PART_B(0));
        dot_a(upper, PART_A(2));
    }
    A = columns, B = rows;
    for (int s = 0; s < steps; s++, A += PARTS * SPLIT_TILE, B += PARTS * PAIR_STEP * NR)
        dot_ab(upper, PART_A(0), PART_B(0));
}

/* Columns first .. first + n - 1, in whole groups as in tile_logits, or 16 at the end; by a few steps at a time, whose
 * parts of the panel fit into half of L1. */
static void multiply_parts(int n, int k, const void *tile, int first, const void *panel, int64_t d0,
                           struct skl_soon soon, int add, float *y)
{
    const uint16_t *columns = (const uint16_t *)((const char *)tile + TILE_HEAD);
    const uint16_t *rows = (const uint16_t *)((const char *)panel + PANEL_HEAD) + d0 * NR * PARTS;
    int end = first + n, from = first / SIDE * SIDE, all = whole_steps(k) / PAIR_STEP;
    int lines = lines_each(&soon, (end - from + SIDE - 1) / SIDE * all);
    for (int s = 0; s < all; s += NEAR_STEPS, rows += NEAR_STEPS * PARTS * PAIR_STEP * NR) {
        int steps = all - s < NEAR_STEPS ? all - s : NEAR_STEPS;
        for (int j = from; j < end; j += SIDE) {
            const uint16_t *A = columns + j / 16 * SPLIT_GROUP + s * PARTS * SPLIT_TILE;
            int lo = j < first ? first : j, hi = j + SIDE < end ? j + SIDE : end;
            zero_c();
            if (hi - j <= 16)
                multiply_steps(1, steps, A, rows, &soon, lines);
            else
                multiply_steps(0, steps, A, rows, &soon, lines);
            put_tiles(lo - j, hi - lo, NR, add || s, y + (lo - first) * NR, NR);
        }
    }
}

/* Rows and columns as they lie, for FMAs. */
struct odd_rows {
    float rows[KC * NR];
    int some, left; /* is any odd; is any left to be multiplied in parts? */
};

static void find_odd(int k, const struct split_panel *panel, int64_t d0, struct odd_rows *odd)
{
    static const float zeros[KC];
    const void *lines[NR];
    odd->some = panel->some, odd->left = 0;
    for (int i = 0; i < NR; i++) {
        lines[i] = panel->row[i] ? panel->row[i] + d0 : zeros;
        odd->left |= panel->row[i] && !panel->odd[i];
    }
    pack_panel(k, lines, panel->sign, odd->rows);
}

/* Columns j .. j + n - 1 of one group: FMAs for what is odd, or for all where nothing is left. */
static void multiply_group(int n, int k, const struct split_tile *tile, int j, const struct split_panel *panel,
                           int64_t d0, const struct odd_rows *odd, int add, float *y)
{
    float strip[MR * LDK], whole[SIDE * NR];
    int odd_columns = 0;
    for (int c = 0; c < n; c++) odd_columns += tile->odd[j + c];
    memcpy(whole, y, (size_t)(n * NR) * sizeof *y);
    for (int c = 0; c < n && (odd_columns || odd->some); c += MR) {
        int columns = n - c < MR ? n - c : MR;
        pack_columns(columns, k, tile->b + (j + c) * tile->stride, SKL_F32, tile->stride, strip);
        logits(columns, k, (struct skl_columns){.at = strip, .ld = LDK}, 0, odd->rows, 0, (struct skl_soon){0}, add,
               whole + c * NR);
    }
    if (odd->left && odd_columns < n)
        multiply_parts(n, k, tile, j, panel, d0, (struct skl_soon){0}, add, y);
    for (int c = 0; c < n; c++)
        for (int i = 0; i < NR; i++)
            if (!odd->left || tile->odd[j + c] || panel->odd[i])
                y[c * NR + i] = whole[c * NR + i];
}

static __attribute__((noinline)) void multiply_odd(int n, int k, const struct split_tile *tile, int first,
                                                   const struct split_panel *panel, int64_t d0, int add, float *y)
{
    struct odd_rows odd;
    find_odd(k, panel, d0, &odd);
    for (int j = first, end; j < first + n; j = end) {
        end = j / SIDE * SIDE + SIDE;
        end = end < first + n ? end : first + n;
        multiply_group(end - j, k, tile, j, panel, d0, &odd, add, y + (j - first) * NR);
    }
}

static void split_logits(int n, int k, struct skl_columns tile, int first, const void *panel, int64_t d0,
                         struct skl_soon soon, int add, float *y)
{
    const struct split_tile *columns = tile.at;
    const struct split_panel *rows = panel;
    if (columns->some || rows->some)
        multiply_odd(n, k, columns, first, rows, d0, add, y);
    else
        multiply_parts(n, k, columns, first, rows, d0, soon, add, y);
}

#include "products_split_back.h"

static const struct skl_products split_products = {
    .unit = "amx-split",
    .kc = KC,
    .step = SIDE / 2, /* 16 columns are multiplied by themselves at a tile's end */
    .enter = tiles_enter,
    .leave = tiles_leave,
    .panel_bytes = split_panel_bytes,
    .block_bytes = split_block_bytes,
    .column_bytes = TILE_HEAD + sizeof(uint16_t) * SKL_BK / 16 * SPLIT_GROUP,
    .parts_bytes = sizeof(struct split_dz),
    .pack_panel = split_pack_panel,
    .pack_block_panel = split_pack_block_panel,
    .columns = split_columns,
    .columns_back = split_columns_back,
    .parts_of_dz = split_parts_of_dz,
    .logits = split_logits,
    .grad_rows = split_grad_rows,
    .grad_columns = split_grad_columns,
    .add_rows = split_listed_rows,
    .add_columns = split_listed_columns,
    .burst = tile_burst,
};
_Static_assert((int)BACK_HEAD <= (int)TILE_HEAD, "a tile's columns for logits and for grad_rows have the same room");
