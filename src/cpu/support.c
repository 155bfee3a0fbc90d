/* SPDX-License-Identifier: Apache-2.0
 *
 * Which columns rows see: of each row one range, of a panel and of a block the union of its rows' ranges. Tiles outside
 * are not visited; in a tile that a range cuts, the scores outside are masked.
 */
#include "run.h"

void skl_set_ranges(const struct skl_run *run, struct skl_block *block)
{
    int nr = run->plan.kernels->nr;
    block->first_column = block->segment.columns, block->last_column = 0;
    for (int panel = 0; panel * nr < block->n; panel++) {
        int64_t lo = block->segment.columns, hi = 0;
        for (int i = panel * nr; i < block->n && i < (panel + 1) * nr; i++) {
            if (block->lo[i] >= block->hi[i])
                continue;
            lo = block->lo[i] < lo ? block->lo[i] : lo;
            hi = block->hi[i] > hi ? block->hi[i] : hi;
        }
        block->panel_lo[panel] = lo, block->panel_hi[panel] = hi;
        block->first_column = lo < block->first_column ? lo : block->first_column;
        block->last_column = hi > block->last_column ? hi : block->last_column;
    }
}

void skl_tile_range(const struct skl_run *run, const struct skl_block *block, int panel, int64_t tile, int *j0, int *j1)
{
    int64_t lo = block->panel_lo[panel] - tile * SKL_BK, hi = block->panel_hi[panel] - tile * SKL_BK;
    lo = lo < 0 ? 0 : lo;
    hi = hi > SKL_BK ? SKL_BK : hi;
    if (lo >= hi)
        lo = hi = 0;
    *j0 = (int)lo / run->plan.kernels->mr * run->plan.kernels->mr, *j1 = (int)hi;
}

int skl_panel_mask(const struct skl_run *run, const struct skl_block *block, int panel, int64_t tile, int *lo, int *hi)
{
    int nr = run->plan.kernels->nr, j0, j1, masked = 0;
    skl_tile_range(run, block, panel, tile, &j0, &j1);
    int64_t c0 = tile * SKL_BK + j0;
    for (int i = 0; i < nr; i++) {
        int row = panel * nr + i;
        int64_t first = row < block->n ? block->lo[row] - c0 : 0, last = row < block->n ? block->hi[row] - c0 : j1 - j0;
        lo[i] = first < 0 ? 0 : first > j1 - j0 ? j1 - j0 : (int)first;
        hi[i] = last < 0 ? 0 : last > j1 - j0 ? j1 - j0 : (int)last;
        masked |= lo[i] > 0 || hi[i] < j1 - j0;
    }
    return masked;
}

void skl_chunk_range(const struct skl_block *block, int64_t chunk, int64_t *first, int64_t *last)
{
    *first = skl_first_tile(block->tiles, block->chunks, chunk);
    *last = skl_first_tile(block->tiles, block->chunks, chunk + 1);
    int64_t lo = block->first_column / SKL_BK, hi = (block->last_column + SKL_BK - 1) / SKL_BK;
    *first = *first < lo ? lo : *first;
    *last = *last > hi ? hi : *last;
}

int skl_sees_tile(const struct skl_block *block, int64_t tile)
{
    return (tile + 1) * SKL_BK > block->first_column && tile * SKL_BK < block->last_column;
}
