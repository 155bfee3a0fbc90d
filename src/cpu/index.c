/* SPDX-License-Identifier: Apache-2.0
 *
 * What is an indexer's own: its score is a sum over heads of w act(<a, b>) (mixture.c adds it up), so that dz of a tile
 * becomes, head by head,
 *
 *     dx = dz w act'(x),     db += dx^T a,     da = dx b,     dw = sum_j dz act(x)
 *
 * with the products x kept (kept_heads.c), or computed again where there is no room for a tile of each head. db is one
 * for all heads; each head has a da of its own. A task owns the columns of its chunk, so no two threads add to the same
 * number.
 */
#include "run.h"

#include <string.h>

/* w as the score takes it, with the sign of the scale, and as it is. */
void skl_set_weights(const struct skl_run *run, struct skl_block *block, int side, int panel)
{
    const struct skl_work_side *s = &run->work->side[side];
    int nr = run->plan.kernels->nr;
    for (int64_t k = 0; k < s->members; k++) {
        struct skl_panel_head *head = &block->mix[side][panel * s->members + k];
        for (int i = 0; i < nr; i++) {
            float w = 0; /* of lanes that hold no row */
            int64_t at[3];
            if (panel * nr + i < block->n) {
                memcpy(at, block->at[panel * nr + i], sizeof at);
                run->plan.kernels->convert(1, skl_w_at(&s->w, s->w_step, at, k), s->w.dtype, &w);
            }
            head->share[i] = s->chain < 0 ? -w : w;
            head->m[i] = w;
        }
    }
}

/* x of all panels into dx, and the weights' sums. */
static void back_head(const struct skl_worker *w, struct skl_block *block, int64_t chunk, int64_t tile, int side,
                      int64_t member, const float *dz, float *x)
{
    const struct skl_run *run = w->run;
    const struct skl_work_side *s = &run->work->side[side];
    const struct skl_kernels *k = run->plan.kernels;
    int64_t panel_size = (int64_t)SKL_BK * k->nr;
    double *dw = block->dw[side] ? block->dw[side] + (chunk * s->members + member) * run->plan.block_rows : NULL;
    for (int panel = 0, j0, j1; panel < skl_panels_in_use(run, block); panel++) {
        skl_tile_range(run, block, panel, tile, &j0, &j1);
        int end = (j1 + k->mr - 1) / k->mr * k->mr; /* whole strips: what is behind j1 has a dz of 0 */
        float *at = x + panel * panel_size;
        if (j0 >= j1)
            continue;
        memset(at + j1 * k->nr, 0, (size_t)((end - j1) * k->nr) * sizeof *at);
        k->index_back(end - j0, at + j0 * k->nr, dz + panel * panel_size + j0 * k->nr,
                      block->mix[side][panel * s->members + member].m, s->identity, dw ? dw + panel * k->nr : NULL);
    }
}

void skl_grad_index(const struct skl_worker *w, struct skl_block *block, int64_t chunk, int64_t tile, int side,
                    const float *dz, int add)
{
    const struct skl_run *run = w->run;
    const struct skl_work_side *s = &run->work->side[side];
    int64_t panel_size = (int64_t)SKL_BK * run->plan.kernels->nr, size = skl_da_size(run->work, &run->plan, side);
    int mr = run->plan.kernels->mr, kc = run->plan.products[side]->kc / mr * mr; /* da has whole strips */
    const unsigned char *live = w->scratch.live[side];
    if (block->dw[side] && !add)
        memset(block->dw[side] + chunk * s->members * run->plan.block_rows, 0,
               (size_t)(s->members * run->plan.block_rows) * sizeof(double));
    for (int64_t k = 0; k < s->members; k++) {
        struct skl_columns columns = {0};
        float *da = block->da[side] ? block->da[side] + (chunk * s->members + k) * size : NULL;
        float *dx = block->of_heads[side] ? skl_kept_head(run, block, side, tile, k) : w->scratch.of_head;
        if (!block->of_heads[side])
            skl_score_head(w, block, side, k, tile, dx, panel_size, NULL, 0, &columns);
        back_head(w, block, chunk, tile, side, k, dz, dx);
        if (s->grad_b.data)
            skl_add_to_columns(w, block, tile, side, k, dx, live, NULL);
        for (int64_t d0 = 0; da && d0 < s->dim; d0 += kc)
            skl_grad_rows_tile(w, block, tile, side, d0, s->dim - d0 < kc ? (int)(s->dim - d0) : kc, 0,
                               run->plan.panels, dx, NULL, live, add, da);
    }
}

void skl_write_grad_weights(const struct skl_worker *w, struct skl_block *block, int side, int panel)
{
    const struct skl_run *run = w->run;
    const struct skl_work_side *s = &run->work->side[side];
    int nr = run->plan.kernels->nr;
    for (int64_t k = 0; k < s->members; k++)
        for (int i = 0, row = panel * nr; i < nr && row < block->n; i++, row++) {
            int64_t at[3], first, last;
            double sum = 0;
            for (int64_t chunk = 0; chunk < block->chunks; chunk++) {
                skl_chunk_range(block, chunk, &first, &last);
                sum += first < last ? block->dw[side][(chunk * s->members + k) * run->plan.block_rows + row] : 0;
            }
            float rounded = (float)sum;
            memcpy(at, block->at[row], sizeof at);
            run->plan.kernels->convert_back(1, &rounded, s->grad_w.dtype, skl_w_at(&s->grad_w, s->grad_w_step, at, k));
        }
}
