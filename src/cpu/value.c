/* SPDX-License-Identifier: Apache-2.0
 * The value: a block's rows against the columns of a chunk, tile by tile, into one state per row. */
#include "run.h"

#include <math.h>
#include <string.h>

/* Where a tile's scores go: to the block when they are kept, else to the thread. */
static int64_t tile_place(const struct skl_worker *w, const struct skl_block *block, int64_t tile, int keep,
                          float *y[2])
{
    const struct skl_plan *plan = &w->run->plan;
    int64_t panel = (int64_t)SKL_BK * plan->kernels->nr;
    for (int side = 0; side < 2; side++)
        y[side] = keep ? block->y[side] + (tile - block->kept_from) * plan->panels * panel : w->scratch.y[side];
    return keep || !plan->one_panel ? panel : 0;
}

static void push_panel(const struct skl_worker *w, struct skl_block *block, int64_t chunk, int panel, int64_t tile,
                       int j, float *const y[2], int n)
{
    const struct skl_run *run = w->run;
    const struct skl_kernels *k = run->plan.kernels;
    struct skl_panel_state *state = skl_state_of(run, block, chunk, panel);
    int64_t first = tile * block->bk + j;
    skl_push_details(run, block, chunk, panel, first, y, n); /* before scores become exponentials */
    if (run->work->form != SKL_FORM_KL) {
        if (block->picks)
            skl_pick_columns(w, block, chunk, panel, first, n, y[run->work->student]);
        if (block->picks && !skl_topk_sums(run->work))
            return;
        if (block->lists)
            skl_take_listed(run, block, panel, first, n, y[run->work->student]);
        for (int side = 0; side < 2; side++)
            if (run->work->side[side].dim)
                k->push_lse(n, y[side], run->unit[side], run->plan.slack, side, state);
        if (block->lists)
            skl_put_listed(run, block, panel, first, n, y[run->work->student]);
        return;
    }
    k->push_kl(n, y[0], y[1], run->unit, run->plan.slack, run->plan.recompute ? SKL_KEEP_NOTHING : run->plan.keep,
               state);
    if (block->m_kept) {
        float *m = skl_kept_m(&run->plan, block, tile, panel, j);
        memcpy(m, state->m[0], (size_t)k->nr * sizeof *m);
        memcpy(m + k->nr, state->m[1], (size_t)k->nr * sizeof *m);
    }
}

/* The second sweep: the LSEs are known. */
static void sum_panel(const struct skl_worker *w, struct skl_block *block, int64_t chunk, int panel, int64_t tile,
                      int j, float *const y[2], int n)
{
    const struct skl_run *run = w->run;
    (void)tile, (void)j;
    skl_count_ranks(run, block, chunk, panel, y, n);
    if (skl_sweeps(run->work->form) == 2)
        run->plan.kernels->form[run->work->form].sum(n, y[0], y[1], run->plan.apart, &block->factors[panel],
                                                     skl_state_of(run, block, chunk, panel));
    skl_sum_others(run, block, chunk, panel, y, n);
}

void skl_empty_state(const struct skl_run *run, struct skl_block *block, int64_t chunk, int panel)
{
    struct skl_panel_state *s = skl_state_of(run, block, chunk, panel);
    memset(s, 0, sizeof *s);
    for (int i = 0; i < SKL_NR_MAX; i++) s->m[0][i] = s->m[1][i] = -INFINITY;
    skl_empty_details(run, block, chunk, panel);
}

static void use_kept_tile(const struct skl_worker *w, struct skl_block *block, int64_t chunk, int64_t tile,
                          float *const y[2], int64_t panel_stride, skl_panel_user *use)
{
    const struct skl_run *run = w->run;
    int nr = run->plan.kernels->nr;
    for (int panel = w->from, j0, j1; panel < w->to && panel * nr < block->n; panel++) {
        skl_tile_range(run, block, panel, tile, &j0, &j1);
        float *const mine[2] = {y[0] + panel * panel_stride + j0 * nr, y[1] + panel * panel_stride + j0 * nr};
        use(w, block, chunk, panel, tile, j0, mine, j1 - j0);
    }
}

void skl_sweep(const struct skl_worker *w, struct skl_block *block, int64_t chunk, int second)
{
    const struct skl_run *run = w->run;
    int64_t first, last;
    int keep = !run->plan.recompute && run->plan.kept_tiles > 0;
    if (chunk >= block->chunks)
        return;
    for (int panel = w->from; panel < w->to; panel++) skl_empty_state(run, block, chunk, panel);
    skl_chunk_range(block, chunk, &first, &last);
    if (block->picks)
        skl_begin_picks(w, block);
    for (int64_t tile = first; tile < last; tile++) {
        float *y[2];
        int64_t stride = tile_place(w, block, tile, keep, y);
        if (second && keep)
            use_kept_tile(w, block, chunk, tile, y, stride, sum_panel);
        else
            skl_score_tile(w, block, chunk, tile, y, stride, second ? sum_panel : push_panel);
    }
    if (block->picks)
        skl_end_picks(w, block, chunk);
}
