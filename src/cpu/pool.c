/* SPDX-License-Identifier: Apache-2.0
 *
 * The scorer of a side whose columns are blocks of keys (docs/math.md, section 5g): the score of a block is that of its
 * largest key, or of the LSE of its keys, of those that a row sees. Keys come SKL_BK at a time, whatever the size of a
 * block; what a tile of blocks knows of them so far is its maxima, in the tile itself, and for an LSE the sums beside
 * it.
 */
#include "run.h"

#include <math.h>
#include <string.h>

/* -inf for the keys, from 'first' on, that single rows of the panel do not see. */
static void mask_keys(const struct skl_run *run, const struct skl_block *block, int panel, int64_t first, int n,
                      float *x)
{
    int nr = run->plan.kernels->nr, lo[SKL_NR_MAX], hi[SKL_NR_MAX], masked = 0;
    for (int i = 0; i < nr; i++) {
        struct skl_range r = {first, first + n};
        if (panel * nr + i < block->n) {
            int64_t at[3];
            memcpy(at, block->at[panel * nr + i], sizeof at);
            r = skl_row_keys(run->work, &block->segment, at);
        }
        lo[i] = r.lo - first < 0 ? 0 : r.lo - first > n ? n : (int)(r.lo - first);
        hi[i] = r.hi - first < 0 ? 0 : r.hi - first > n ? n : (int)(r.hi - first);
        masked |= lo[i] > 0 || hi[i] < n;
    }
    if (masked)
        run->plan.kernels->mask(n, lo, hi, -INFINITY, x);
}

/* A panel's n keys from 'first' on into the blocks that they belong to; column 0 of m and l is the tile's
 * first. */
static void pool_keys(const struct skl_run *run, int64_t tile_first, int side, int64_t first, int n, const float *x,
                      float *m, float *l)
{
    const struct skl_work *w = run->work;
    int nr = run->plan.kernels->nr;
    for (int j = 0, end; j < n; j = end) {
        int64_t column = (first + j) / w->pool_block, last = (column + 1) * w->pool_block - first;
        end = last < n ? (int)last : n;
        int64_t at = (column - tile_first) * nr;
        run->plan.kernels->pool(end - j, x + j * nr, run->unit[side], m + at, l ? l + at : NULL);
    }
}

/* Does the panel see one of the keys first .. last-1, or at least a block that holds one? */
static int sees_keys(const struct skl_run *run, const struct skl_block *block, int panel, int64_t first, int64_t last)
{
    int64_t size = run->work->pool_block;
    return block->panel_lo[panel] * size < last && block->panel_hi[panel] * size > first;
}

/* n keys from 'key' on, of all panels that see some of them, into the tile's maxima and sums. The columns are fetched
 * once. */
static void score_keys(const struct skl_worker *w, const struct skl_block *block, int side, int64_t tile, int64_t key,
                       int n, float *y, int64_t panel_stride)
{
    const struct skl_run *run = w->run;
    const struct skl_work_side *s = &run->work->side[side];
    const struct skl_products *products = run->plan.products[side];
    int64_t tile_size = (int64_t)SKL_BK * run->plan.kernels->nr, x_stride = s->dim <= products->kc ? 0 : tile_size;
    struct skl_owner of = skl_b_of_block(run->work, block, side, s->member);
    for (int64_t d0 = 0; d0 < s->dim; d0 += products->kc) {
        int k = s->dim - d0 < products->kc ? (int)(s->dim - d0) : products->kc, more = s->dim - d0 > k;
        const char *b = (const char *)skl_operand_at(&s->b, of.batch, of.head, key) + d0 * skl_size_of(s->b.dtype);
        struct skl_columns columns = products->columns(n, k, b, s->b.dtype, s->b.stride[2], w->scratch.columns[0]);
        for (int panel = 0; panel < skl_panels_in_use(run, block); panel++) {
            const char *rows = block->panel[side] + panel * products->panel_bytes(s->dim);
            float *x = w->scratch.of_head + panel * x_stride;
            if (!sees_keys(run, block, panel, key, key + n))
                continue;
            products->logits(n, k, columns, 0, rows, d0, (struct skl_soon){0}, d0 > 0, x);
            if (more)
                continue;
            if (s->softcap > 0)
                run->plan.kernels->softcap(n, x, (float)s->inner, s->softcap);
            mask_keys(run, block, panel, key, n, x);
            pool_keys(run, tile * block->bk, side, key, n, x, y + panel * panel_stride,
                      w->scratch.pool_l ? w->scratch.pool_l + panel * tile_size : NULL);
        }
    }
}

void skl_score_pooled(const struct skl_worker *w, const struct skl_block *block, int side, int64_t tile, float *y,
                      int64_t panel_stride)
{
    const struct skl_run *run = w->run;
    const struct skl_work *work = run->work;
    int64_t tile_size = (int64_t)SKL_BK * run->plan.kernels->nr, first = tile * block->bk * work->pool_block;
    int64_t last = (tile + 1) * block->bk * work->pool_block;
    int columns = skl_tile_columns(block, tile), panels = skl_panels_in_use(run, block);
    float *l = w->scratch.pool_l;
    last = last < work->keys ? last : work->keys;
    for (int panel = 0; panel < panels; panel++) {
        for (int i = 0; i < columns * run->plan.kernels->nr; i++) y[panel * panel_stride + i] = -INFINITY;
        if (l)
            memset(l + panel * tile_size, 0, (size_t)tile_size * sizeof *l);
    }
    for (int64_t key = first; key < last; key += SKL_BK)
        score_keys(w, block, side, tile, key, last - key < SKL_BK ? (int)(last - key) : SKL_BK, y, panel_stride);
    for (int panel = 0; l && panel < panels; panel++)
        run->plan.kernels->pooled(columns, run->unit[side], l + panel * tile_size, y + panel * panel_stride);
}
