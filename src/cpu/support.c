/* SPDX-License-Identifier: Apache-2.0
 *
 * Which columns rows see: of each row one range, of a panel and of a block the union of its rows' ranges. Tiles outside
 * are not visited; in a tile that a range cuts, the scores outside are masked.
 */
#include "run.h"

/* Up to where columns are fetched and summed: nobody sees those behind it. Pooled keys go by whole tiles. */
static int64_t end_of(const struct skl_run *run, const struct skl_block *block)
{
    int64_t strip = run->plan.strip, end = (block->last_column + strip - 1) / strip * strip;
    return end < block->columns && !run->work->pool_block ? end : block->columns;
}

void skl_set_ranges(const struct skl_run *run, struct skl_block *block)
{
    int nr = run->plan.kernels->nr;
    block->first_column = block->columns, block->last_column = 0;
    for (int panel = 0; panel * nr < block->n; panel++) {
        int64_t lo = block->columns, hi = 0, whole_lo = 0, whole_hi = block->columns;
        for (int i = panel * nr; i < block->n && i < (panel + 1) * nr; i++) {
            whole_lo = block->lo[i] > whole_lo ? block->lo[i] : whole_lo;
            whole_hi = block->hi[i] < whole_hi ? block->hi[i] : whole_hi;
            if (block->lo[i] >= block->hi[i])
                continue;
            lo = block->lo[i] < lo ? block->lo[i] : lo;
            hi = block->hi[i] > hi ? block->hi[i] : hi;
        }
        block->panel_lo[panel] = lo, block->panel_hi[panel] = hi;
        block->whole_lo[panel] = whole_lo, block->whole_hi[panel] = whole_hi;
        block->first_column = lo < block->first_column ? lo : block->first_column;
        block->last_column = hi > block->last_column ? hi : block->last_column;
    }
    block->end = end_of(run, block);
}

void skl_tile_range(const struct skl_run *run, const struct skl_block *block, int panel, int64_t tile, int *j0, int *j1)
{
    int64_t lo = block->panel_lo[panel] - tile * block->bk, hi = block->panel_hi[panel] - tile * block->bk;
    if (block->lines) /* keys in place: lines of a tile, not columns */
        lo = 0, hi = block->lines[tile * run->plan.panels + panel];
    lo = lo < 0 ? 0 : lo;
    hi = hi > block->bk ? block->bk : hi;
    if (lo >= hi)
        lo = hi = 0;
    *j0 = (int)lo / run->plan.kernels->mr * run->plan.kernels->mr, *j1 = (int)hi;
}

int skl_panel_mask(const struct skl_run *run, const struct skl_block *block, int panel, int64_t tile, int *lo, int *hi)
{
    int nr = run->plan.kernels->nr, j0, j1, masked = 0;
    skl_tile_range(run, block, panel, tile, &j0, &j1);
    int64_t c0 = tile * block->bk + j0;
    if (block->lines) {
        skl_lines_of_panel(run, block, panel, tile, lo, hi);
        for (int i = 0; i < nr; i++) masked |= hi[i] < j1;
        return masked;
    }
    for (int i = 0; i < nr; i++) lo[i] = 0, hi[i] = j1 - j0;
    if (c0 >= block->whole_lo[panel] && c0 + (j1 - j0) <= block->whole_hi[panel])
        return 0;
    for (int i = 0; i < nr; i++) {
        int row = panel * nr + i;
        int64_t first = row < block->n ? block->lo[row] - c0 : 0, last = row < block->n ? block->hi[row] - c0 : j1 - j0;
        lo[i] = first < 0 ? 0 : first > j1 - j0 ? j1 - j0 : (int)first;
        hi[i] = last < 0 ? 0 : last > j1 - j0 ? j1 - j0 : (int)last;
        masked |= lo[i] > 0 || hi[i] < j1 - j0;
    }
    return masked;
}

/* 'with' where a row of the panel does not see the column. Those that all rows see lie in the middle. */
void skl_mask_panel(const struct skl_run *run, const int *lo, const int *hi, int n, float with, float *y)
{
    int nr = run->plan.kernels->nr, from = 0, to = n, lower[SKL_NR_MAX], upper[SKL_NR_MAX];
    for (int i = 0; i < nr; i++) from = lo[i] > from ? lo[i] : from, to = hi[i] < to ? hi[i] : to;
    if (from >= to) {
        run->plan.kernels->mask(n, lo, hi, with, y);
        return;
    }
    for (int i = 0; i < nr; i++) lower[i] = 0, upper[i] = hi[i] - to;
    run->plan.kernels->mask(from, lo, hi, with, y);
    run->plan.kernels->mask(n - to, lower, upper, with, y + to * nr);
}

void skl_chunk_range(const struct skl_block *block, int64_t chunk, int64_t *first, int64_t *last)
{
    int64_t seen = skl_seen_tiles(block), lo = block->first_column / block->bk;
    *first = lo + skl_first_tile(seen, block->chunks, chunk);
    *last = lo + skl_first_tile(seen, block->chunks, chunk + 1);
}

int skl_sees_chunk(const struct skl_block *block, int panel, int64_t chunk)
{
    int64_t first, last;
    skl_chunk_range(block, chunk, &first, &last);
    return last * block->bk > block->panel_lo[panel] && first * block->bk < block->panel_hi[panel];
}

int64_t skl_seen_tiles(const struct skl_block *block)
{
    int64_t lo = block->first_column / block->bk, hi = (block->last_column + block->bk - 1) / block->bk;
    return hi > lo ? hi - lo : 0;
}

int skl_sees_tile(const struct skl_block *block, int64_t tile)
{
    return (tile + 1) * block->bk > block->first_column && tile * block->bk < block->last_column;
}
