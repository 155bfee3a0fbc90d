/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of keys: every query has its own, for all its heads. There are two ways, and the plan takes the one that costs
 * less for a sample of the lists.
 *
 * Together: a block's columns are the keys that some row of it lists, in order and each once. Its tiles are gathered
 * (score.c), go through the same products as any other tile, and what they add to db is scattered again. A block takes
 * the heads of a query that share both b, and as many queries as fill a panel. Unless their lists are alike, queries see
 * few of each other's keys; then 'seen' hides the rest.
 *
 *     work    columns of the block x rows of its panels, instead of K x rows
 *     bytes   a tile's keys are read, and written side by side, once for each product that reads them; db is read and
 *             written once more than elsewhere
 *
 * In place (keys_in_place.c): each query has a list of its own, and keys are used where they lie.
 *
 *     work    K x rows, whatever the lists are; a product costs more than in a full panel where a query has few rows
 *     bytes   keys are read by all queries of a block while they are in the cache
 *
 * A task owns columns of its block, which are keys in both ways, and blocks that add to the same db take turns: every
 * sum has one order.
 */
#include "run.h"

#include <string.h>

/* ---------------------------------------------------------------------------------------------------- plan --- */

enum {
    PANELS = 4,        /* most of a block, unless a query has more heads */
    SPANS = 2,         /* pieces of the rows that are looked at */
    SAMPLED = 32768,   /* columns that are looked at */
    PACKING = 10,      /* gathering a tile and scattering its db costs as much as so many rows */
    IN_PLACE_ROWS = 64 /* of a block whose keys stay in place, about: queries that find them in the cache */
};
static const double NARROW = 1.15; /* what a row costs in a narrow panel, in rows of a wide one */
/* What a row costs where keys stay in place: in fours, in a pair, and alone, where each load serves one product. */
static const double IN_FOUR = 1.4, IN_PAIR = 2.5, SINGLE = 5;

/* How many columns some of the queries first .. first + n - 1 of a segment list, of a sample of the columns. */
static double columns_of(const struct skl_work *w, const struct skl_segment *s, int64_t first, int64_t n)
{
    uint64_t marks[SAMPLED / 64] = {0};
    int64_t step = w->columns / SAMPLED + 1, count = 0;
    for (int64_t i = first, at[3]; i < first + n && i * w->together < s->rows; i++) {
        skl_row_index(w, skl_segment_row(w, s, i * w->together), at);
        struct skl_range seen = skl_row_range(w, s, at);
        for (int64_t k = 0; k < w->support.count; k++) {
            struct skl_range r = skl_supported(w, at, k, seen);
            for (int64_t j = r.lo; j < r.hi; j++) {
                uint64_t bit = (uint64_t)1 << j % 64, *word = &marks[j / 64 / step];
                if (j / 64 % step)
                    continue;
                count += !(*word & bit);
                *word |= bit;
            }
        }
    }
    return (double)count;
}

static int64_t rows_of(const struct skl_work *w, int64_t queries, int nr)
{
    int64_t rows = queries * w->together;
    return ((rows < SKL_BLOCK ? rows : SKL_BLOCK) + nr - 1) / nr * nr;
}

/* How many columns blocks of so many queries have, all together, in a sample of the rows. */
static double keys_of(const struct skl_work *w, int64_t span, int64_t queries)
{
    double keys = 0;
    for (int64_t k = 0; k < SPANS; k++) {
        struct skl_segment s = skl_segment_at(w, w->segments * (2 * k + 1) / (2 * SPANS));
        int64_t first = (s.rows / w->together - span) * (2 * k + 1) / (2 * SPANS);
        first = first > 0 ? first : 0;
        for (int64_t i = first; i < first + span; i += queries) keys += columns_of(w, &s, i, queries);
    }
    return keys;
}

static double cost_of(const struct skl_work *w, int64_t span, int64_t queries, int nr, double row)
{
    return keys_of(w, span, queries) * (row * (double)rows_of(w, queries, nr) + PACKING);
}

/* May keys stay in place? Scores must be inner products, and nothing may ask for the numbers of columns. */
static int may_stay(const struct skl_work *w, const struct skl_plan *plan, const struct skl_products *products)
{
    static const enum skl_row_name numbered[] = {SKL_ROW_top1_s, SKL_ROW_top1_t, SKL_ROW_mass_s,
                                                 SKL_ROW_mass_t, SKL_ROW_rank_s, SKL_ROW_rank_t};
    int may = products && plan->call != SKL_CALL_TOPK && !w->shard.exchange && plan->columns < INT32_MAX;
    for (size_t i = 0; i < sizeof numbered / sizeof *numbered; i++) may &= !w->result[numbered[i]].data;
    for (int side = 0; may && side < 2; side++)
        may &= w->side[side].scorer == SKL_INNER && w->side[side].dim <= products->kc;
    return may;
}

static double cost_in_place(const struct skl_work *w, int64_t span)
{
    int64_t rows = w->together;
    double cost = (double)(rows / 4 * 4) * IN_FOUR + (double)(rows / 2 % 2 * 2) * IN_PAIR + (double)(rows % 2) * SINGLE;
    return keys_of(w, span, 1) * cost;
}

static int64_t queries_of_panel(const struct skl_work *w, const struct skl_kernels *k)
{
    return k->nr > w->together ? k->nr / w->together : 1;
}

void skl_choose_queries(const struct skl_work *w, struct skl_plan *plan)
{
    const struct skl_kernels *wide = plan->kernels, *narrow = w->isa == SKL_ISA_BEST ? wide->narrower : NULL;
    int64_t panel = queries_of_panel(w, wide), span = PANELS * panel, listed = w->support.count * w->support_block;
    double least = -1;
    for (int64_t queries = panel; queries <= span; queries *= 2) {
        double cost = cost_of(w, span, queries, wide->nr, 1);
        if (least < 0 || cost < least)
            least = cost, plan->queries = queries;
    }
    if (narrow && w->together <= narrow->nr) {
        double cost = cost_of(w, span, queries_of_panel(w, narrow), narrow->nr, NARROW);
        if (cost < least)
            least = cost, plan->kernels = narrow, plan->queries = queries_of_panel(w, narrow);
    }
    plan->listed = listed > plan->columns / plan->queries ? plan->columns : listed * plan->queries;
    if (may_stay(w, plan, wide->in_place) && cost_in_place(w, span) < least) {
        plan->in_place = 1, plan->kernels = wide;
        plan->listed = listed < plan->columns ? listed : plan->columns;
        plan->queries = w->together < IN_PLACE_ROWS ? IN_PLACE_ROWS / w->together : 1;
        plan->lists = plan->queries * (w->begin.data || w->end.data ? w->together : 1);
    }
}

/* --------------------------------------------------------------------------------------------------- block --- */

void skl_mark_keys(const struct skl_worker *w, const struct skl_block *block, int i)
{
    const struct skl_work *work = w->run->work;
    uint64_t *bits = w->scratch.bits;
    int64_t at[3], step = work->support.step;
    struct skl_range seen = {block->lo[i], block->hi[i]};
    skl_row_index(work, block->row[i], at);
    const int32_t *ids = skl_row_at(&work->support.rows, at);
    memset(bits, 0, (size_t)((block->segment.columns + 63) / 64) * sizeof *bits);
    for (int64_t k = 0; work->support_block == 1 && k < work->support.count; k++) { /* mostly: a loop of its own */
        int64_t j = ids[k * step];
        if (j >= seen.lo && j < seen.hi)
            bits[j / 64] |= (uint64_t)1 << j % 64;
    }
    for (int64_t k = 0; work->support_block > 1 && k < work->support.count; k++) {
        struct skl_range r = skl_supported(work, at, k, seen);
        for (int64_t j = r.lo; j < r.hi; j++) bits[j / 64] |= (uint64_t)1 << j % 64;
    }
}

/* Rows that all see the same: their keys in order, each once. */
static int64_t list_of_all(const struct skl_worker *w, struct skl_block *block)
{
    int64_t n = 0;
    if (!block->n)
        return 0;
    skl_mark_keys(w, block, 0);
    for (int64_t i = 0; 64 * i < block->segment.columns; i++)
        for (uint64_t left = w->scratch.bits[i]; left; left &= left - 1)
            block->keys[n++] = 64 * i + __builtin_ctzll(left);
    return n;
}

/* Rows 'from' .. 'to' - 1 of the block, which have one list and one range, mark what they see. */
static void mark_list(const struct skl_worker *w, const struct skl_block *block, int from, int to)
{
    int nr = w->run->plan.kernels->nr;
    int64_t columns = block->segment.columns;
    skl_mark_keys(w, block, from);
    for (int panel = from / nr; panel * nr < to; panel++) {
        uint32_t rows = 0, *marks = w->scratch.marks + panel * columns;
        for (int i = 0; i < nr; i++) rows |= (uint32_t)(panel * nr + i >= from && panel * nr + i < to) << i;
        for (int64_t i = 0; 64 * i < columns; i++)
            for (uint64_t left = w->scratch.bits[i]; left; left &= left - 1)
                marks[64 * i + __builtin_ctzll(left)] |= rows;
    }
}

int skl_same_list(const struct skl_run *run, const struct skl_block *block, int i, int j)
{
    int64_t n = run->work->n;
    return block->row[i] % n == block->row[j] % n && block->lo[i] == block->lo[j] && block->hi[i] == block->hi[j];
}

/* Rows that see different keys: which of them see which. */
static int64_t list_of_each(const struct skl_worker *w, struct skl_block *block, int panels)
{
    memset(w->scratch.marks, 0, (size_t)(panels * block->segment.columns) * sizeof *w->scratch.marks);
    for (int from = 0, to; from < block->n; from = to) {
        for (to = from + 1; to < block->n && skl_same_list(w->run, block, from, to);) to++;
        mark_list(w, block, from, to);
    }
    int64_t columns = block->segment.columns, n = 0;
    for (int64_t j = 0; j < columns; j++) {
        uint32_t any = 0;
        for (int panel = 0; panel < panels; panel++) any |= w->scratch.marks[panel * columns + j];
        if (any)
            block->keys[n++] = j;
    }
    return n;
}

/* The marks of the block's columns, with those lanes that hold no row. Does any row not see one of them? */
static int take_seen(const struct skl_worker *w, struct skl_block *block, int panels)
{
    const struct skl_plan *plan = &w->run->plan;
    int nr = plan->kernels->nr, masked = 0;
    for (int panel = 0; block->seen && panel < panels; panel++) {
        uint32_t empty = 0, all = 0, *seen = block->seen + panel * plan->tiles * plan->bk;
        for (int i = 0; i < nr; i++) {
            all |= (uint32_t)1 << i;
            empty |= (uint32_t)(panel * nr + i >= block->n) << i;
        }
        for (int64_t j = 0; j < block->columns; j++) {
            seen[j] = w->scratch.marks[panel * block->segment.columns + block->keys[j]] | empty;
            masked |= seen[j] != all;
        }
    }
    return masked;
}

/* All rows see all of so many columns. */
static void see_all(const struct skl_run *run, struct skl_block *block, int64_t columns)
{
    block->columns = columns;
    for (int i = 0; i < block->n; i++) block->lo[i] = 0, block->hi[i] = columns;
    skl_set_ranges(run, block);
    int64_t tiles = skl_seen_tiles(block);
    block->chunks = block->chunks < tiles ? block->chunks : tiles;
    block->kept_from = 0;
}

void skl_list_keys(const struct skl_worker *w, struct skl_block *block)
{
    const struct skl_run *run = w->run;
    if (run->plan.in_place) {
        block->masked = 0;
        see_all(run, block, skl_list_in_place(w, block) * block->bk);
        return;
    }
    int panels = skl_panels_in_use(run, block);
    block->columns = block->seen ? list_of_each(w, block, panels) : list_of_all(w, block);
    block->masked = take_seen(w, block, panels);
    see_all(run, block, block->columns);
}

/* --------------------------------------------------------------------------------------------------- tiles --- */

void skl_hide_keys(const struct skl_run *run, const struct skl_block *block, int panel, int64_t tile, float with,
                   float *const from_j0[2])
{
    int j0, j1;
    skl_tile_range(run, block, panel, tile, &j0, &j1);
    const uint32_t *seen = block->seen + (panel * run->plan.tiles + tile) * block->bk + j0;
    for (int side = 0; side < 2; side++)
        if (run->work->side[side].dim)
            run->plan.kernels->mask_rows(j1 - j0, seen, with, from_j0[side]);
}

void skl_scatter_keys(const struct skl_worker *w, const struct skl_block *block, int64_t tile, int side,
                      const float *db)
{
    const struct skl_run *run = w->run;
    int64_t dim = run->work->side[side].dim, stride;
    float *sums = skl_sum_of_columns(run->work, block, side, 0, &stride);
    for (int j = 0; j < skl_tile_columns(block, tile); j++)
        run->plan.kernels->add_scaled(dim, 1, db + j * dim, sums + block->keys[tile * block->bk + j] * stride);
}
