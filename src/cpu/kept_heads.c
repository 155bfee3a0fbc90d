/* SPDX-License-Identifier: Apache-2.0
 *
 * What is kept of single heads where there is room (plan.keeps_heads), a block of rows by all columns for each of them,
 * 4 bytes an element, written once and read once:
 *
 * of an indexer the products, which its gradients want again (index.c);
 *
 * of a mixture whose denominators are not known the exponentials, so that one sweep over the heads does:
 *
 *     heads   e_k[i,j] = 2^{unit (x_k[i,j] - m_k)},  l_k = sum_j e_k[i,j]     of each tile, under its own maxima m_k[i]
 *     sums    M = max m_k,  L = sum 2^{unit (m_k - M)} l_k                    over the tiles
 *     mix     t[i,j] = sum_k e_k[i,j] 2^{unit (m_k - M)} / (g L)              when the sweep wants the tile
 */
#include "run.h"

#include <math.h>

/* Sinks and lists of keys have their denominators found before the call (mixture.c). */
int skl_may_keep_heads(const struct skl_work *w, const struct skl_plan *plan)
{
    const struct skl_work_side *t = &w->side[!w->student], *s = &w->side[w->student];
    int mixture = skl_wants_head_lses(t) && !t->sink.data && plan->by_tile && !plan->queries;
    return mixture << !w->student | (s->scorer == SKL_INDEX && plan->by_tile) << w->student;
}

/* Which of the kept tiles of single heads, a panel's being one, is the first of a head's. */
static int64_t number_of(const struct skl_run *run, const struct skl_block *block, int side, int64_t tile,
                         int64_t member)
{
    return ((tile - block->kept_from) * run->work->side[side].members + member) * run->plan.panels;
}

float *skl_kept_head(const struct skl_run *run, const struct skl_block *block, int side, int64_t tile, int64_t member)
{
    int64_t size = (int64_t)SKL_BK * run->plan.kernels->nr;
    return block->of_heads[side] + number_of(run, block, side, tile, member) * size;
}

void skl_keep_heads(const struct skl_worker *w, const struct skl_block *block, int64_t chunk)
{
    const struct skl_run *run = w->run;
    int side = !run->work->student;
    const struct skl_work_side *s = &run->work->side[side];
    int64_t first, last, size = (int64_t)SKL_BK * run->plan.kernels->nr;
    int64_t x_stride = s->dim <= run->plan.products[side]->kc ? 0 : size;
    skl_chunk_range(block, chunk, &first, &last);
    for (int64_t tile = first; tile < last; tile++) {
        struct skl_columns columns = {0};
        for (int64_t k = 0; k < s->members; k++)
            skl_score_head(w, block, side, k, tile, w->scratch.of_head, x_stride,
                           skl_kept_head(run, block, side, tile, k), size, &columns);
    }
}

/* x and kept are those of the panel's first column that a row sees. */
void skl_keep_head(const struct skl_run *run, const struct skl_block *block, int side, int64_t member, int panel,
                   int64_t tile, float *x, float *kept)
{
    int j0, j1, lo[SKL_NR_MAX], hi[SKL_NR_MAX];
    struct skl_head_sums *sums = &block->sums[number_of(run, block, side, tile, member) + panel];
    skl_tile_range(run, block, panel, tile, &j0, &j1);
    if (skl_panel_mask(run, block, panel, tile, lo, hi))
        skl_mask_panel(run, lo, hi, j1 - j0, -INFINITY, x);
    run->plan.kernels->keep_head(j1 - j0, x, skl_head_unit(&run->work->side[side]), sums->m, sums->l, kept);
}

/* What the exponentials of a tile are to be weighted with, but for the row's denominator. */
static void factors_of_tile(const struct skl_run *run, int side, const float *of_tile, const float *m, float *factor)
{
    const struct skl_kernels *k = run->plan.kernels;
    float unit = skl_head_unit(&run->work->side[side]), x[SKL_NR_MAX];
    for (int i = 0; i < k->nr; i++) x[i] = (of_tile[i] - m[i]) * unit;
    k->exp2(x, factor);
}

/* The row's maximum and 1 / (g L) of one head. Without mass m is +inf: every factor is 0. */
static void sum_head(const struct skl_run *run, const struct skl_block *block, int side, int64_t member, int panel,
                     struct skl_panel_head *head)
{
    int nr = run->plan.kernels->nr, j0, j1;
    int64_t first = block->first_column / block->bk, end = first + skl_seen_tiles(block);
    double l[SKL_NR_MAX] = {0};
    float m[SKL_NR_MAX], factor[SKL_NR_MAX];
    for (int i = 0; i < nr; i++) m[i] = -INFINITY;
    for (int sum = 0; sum < 2; sum++)
        for (int64_t tile = first; tile < end; tile++) {
            const struct skl_head_sums *of_tile = &block->sums[number_of(run, block, side, tile, member) + panel];
            skl_tile_range(run, block, panel, tile, &j0, &j1);
            if (j0 >= j1)
                continue;
            if (sum)
                factors_of_tile(run, side, of_tile->m, m, factor);
            for (int i = 0; i < nr && !sum; i++) m[i] = of_tile->m[i] > m[i] ? of_tile->m[i] : m[i];
            for (int i = 0; i < nr && sum; i++)
                l[i] += of_tile->m[i] > -INFINITY ? (double)factor[i] * (double)of_tile->l[i] : (double)of_tile->l[i];
        }
    for (int i = 0; i < nr; i++) {
        head->m[i] = l[i] == 0 ? INFINITY : m[i];
        head->share[i] = l[i] == 0 ? 0 : (float)(1 / (l[i] * (double)run->work->side[side].members));
    }
}

void skl_sum_heads(const struct skl_run *run, struct skl_block *block, int panel)
{
    int side = !run->work->student;
    int64_t members = run->work->side[side].members;
    for (int64_t k = 0; k < members; k++) sum_head(run, block, side, k, panel, &block->mix[side][panel * members + k]);
}

void skl_mix_kept(const struct skl_run *run, const struct skl_block *block, int side, int64_t tile, float *t,
                  int64_t panel_stride)
{
    const struct skl_kernels *kernels = run->plan.kernels;
    int64_t members = run->work->side[side].members, size = (int64_t)SKL_BK * kernels->nr;
    for (int panel = 0, j0, j1; panel < skl_panels_in_use(run, block); panel++) {
        skl_tile_range(run, block, panel, tile, &j0, &j1);
        for (int64_t k = 0; k < members && j0 < j1; k++) {
            const struct skl_panel_head *head = &block->mix[side][panel * members + k];
            float factor[SKL_NR_MAX];
            factors_of_tile(run, side, block->sums[number_of(run, block, side, tile, k) + panel].m, head->m, factor);
            for (int i = 0; i < kernels->nr; i++) factor[i] *= head->share[i];
            kernels->mix_kept(j1 - j0, skl_kept_head(run, block, side, tile, k) + panel * size + j0 * kernels->nr,
                              factor, k > 0, t + panel * panel_stride + j0 * kernels->nr);
        }
    }
}
