/* SPDX-License-Identifier: Apache-2.0
 * The forward: a lane's rows against the columns of a chunk, tile by tile, into one state per row. */
#include "run.h"

#include <math.h>
#include <string.h>

/* --------------------------------------------------------------------------------------------- a tile's y --- */

static int tile_columns(const struct skl_work *w, int64_t tile)
{
    int64_t left = w->columns - tile * SKL_BK;
    return left < SKL_BK ? (int)left : SKL_BK;
}

/* The operand can serve as it is when it has f32 and whole tiles, and its columns are not so far apart that those of a
 * strip fall into the same sets of L1 (4 KiB). Otherwise it is packed. */
struct skl_columns skl_fetch_columns(const struct skl_work *w, const struct skl_lane *lane, int side, int64_t tile,
                                     int64_t d0, int k, enum skl_fetch how, float *packed)
{
    const struct skl_work_side *s = &w->side[side];
    int64_t head = w->attention ? lane->head / s->share : 0, batch = w->attention ? lane->batch : 0;
    const char *b = (const char *)skl_operand_at(&s->b, batch, head, tile * SKL_BK) + d0 * skl_size_of(s->b.dtype);
    int n = tile_columns(w, tile);
    if (how == SKL_AS_IT_IS && s->b.dtype == SKL_F32 && n == SKL_BK && s->b.stride[2] < 1024 && (uintptr_t)b % 4 == 0)
        return (struct skl_columns){(const float *)b, s->b.stride[2]};
    w->kernels->pack_columns(n, k, b, s->b.dtype, s->b.stride[2], packed);
    return (struct skl_columns){packed, SKL_LDK};
}

/* Part of the column tile that will be packed next: while panel 'part' of 'parts' works on the present one, its share
 * is asked for. Its rows are short and far apart, which the hardware does not foresee. */
static struct skl_soon next_columns(const struct skl_work *w, const struct skl_lane *lane, int side, int64_t tile,
                                    int64_t d0, int part, int parts)
{
    const struct skl_work_side *s = &w->side[side];
    struct skl_soon soon = {0};
    int64_t size = skl_size_of(s->b.dtype), left = s->dim - d0;
    if (tile * SKL_BK >= lane->last_column)
        return soon;
    int n = tile_columns(w, tile), first = n * part / parts;
    int64_t head = w->attention ? lane->head / s->share : 0, batch = w->attention ? lane->batch : 0;
    soon.at = (const char *)skl_operand_at(&s->b, batch, head, tile * SKL_BK + first) + d0 * size;
    soon.stride = s->b.stride[2] * size;
    soon.rows = n * (part + 1) / parts - first;
    soon.bytes = (int)((left < w->kernels->kc ? left : w->kernels->kc) * size);
    soon.stream = parts == 1 && soon.stride == soon.bytes && n == SKL_BK && s->b.dtype == SKL_F32;
    return soon;
}

/* y starts as the bias of its column, the same for every row. */
static void start_from_bias(const struct skl_work *w, int side, int64_t tile, int j0, int j1, float *y)
{
    const struct skl_work_side *s = &w->side[side];
    int nr = w->kernels->nr;
    for (int j = j0; j < j1; j++) {
        float bias;
        w->kernels->convert(1, s->bias.data + skl_size_of(s->bias.dtype) * (tile * SKL_BK + j) * s->bias.stride,
                            s->bias.dtype, &bias);
        bias *= (float)s->sign;
        for (int i = 0; i < nr; i++) y[j * nr + i] = bias;
    }
}

static void score_panel(const struct skl_run *run, const struct skl_lane *lane, int side, int panel, int64_t tile,
                        int64_t d0, int k, struct skl_columns columns, struct skl_soon soon, float *y)
{
    const struct skl_work *w = run->work;
    const struct skl_work_side *s = &w->side[side];
    int nr = w->kernels->nr, j0, j1, add = d0 > 0;
    skl_tile_range(run, lane, panel, tile, &j0, &j1);
    if (s->bias.data && !add) {
        start_from_bias(w, side, tile, j0, j1, y);
        add = 1;
    }
    const float *rows = lane->rows[side] + ((int64_t)panel * s->dim + d0) * nr;
    w->kernels->logits(j1 - j0, k, columns.at + j0 * columns.ld, columns.ld, rows, soon, add, y + j0 * nr);
}

/* Softcap, then -inf for what single rows of the panel do not see. */
static void shape_panel(const struct skl_run *run, const struct skl_lane *lane, int panel, int64_t tile, int n,
                        float *const y[2])
{
    const struct skl_work *w = run->work;
    int lo[SKL_NR_MAX], hi[SKL_NR_MAX], masked = skl_panel_mask(run, lane, panel, tile, lo, hi);
    for (int side = 0; side < 2; side++) {
        if (w->side[side].softcap > 0)
            w->kernels->softcap(n, y[side], (float)w->side[side].inner, w->side[side].softcap);
        if (masked)
            w->kernels->mask(n, lo, hi, -INFINITY, y[side]);
    }
}

/* Both sides' logits of a tile for all panels, y[side][panel][SKL_BK][nr]. Where dim does not fit in one column tile
 * the sum over dim goes through memory, a column tile at a time for all panels. */
static void score_blocks(const struct skl_worker *w, const struct skl_lane *lane, int64_t tile, float *const y[2],
                         int64_t panel_stride)
{
    const struct skl_work *work = w->run->work;
    for (int side = 0; side < 2; side++)
        for (int64_t d0 = 0; d0 < work->side[side].dim; d0 += work->kernels->kc) {
            int64_t left = work->side[side].dim - d0;
            int k = left < work->kernels->kc ? (int)left : work->kernels->kc;
            int more = left > k, panels = (lane->n + work->kernels->nr - 1) / work->kernels->nr;
            struct skl_columns columns = skl_fetch_columns(work, lane, side, tile, d0, k, SKL_AS_IT_IS,
                                                           w->scratch.columns[0]);
            for (int panel = 0; panel < panels; panel++) {
                struct skl_soon soon = next_columns(work, lane, more ? side : !side, more || !side ? tile : tile + 1,
                                                    more ? d0 + k : 0, panel, panels);
                score_panel(w->run, lane, side, panel, tile, d0, k, columns, soon, y[side] + panel * panel_stride);
            }
        }
}

static void score_whole(const struct skl_worker *w, const struct skl_lane *lane, int panel, int panels, int64_t tile,
                        const struct skl_columns columns[2], float *const y[2])
{
    const struct skl_work *work = w->run->work;
    for (int side = 0; side < 2; side++)
        score_panel(w->run, lane, side, panel, tile, 0, (int)work->side[side].dim, columns[side],
                    next_columns(work, lane, side, tile + 1, 0, panel, panels), y[side]);
}

/* Calls 'use' with each panel's finished logits, while they are still in the cache when dim allows. */
typedef void panel_user(const struct skl_run *run, struct skl_lane *lane, int64_t chunk, int panel, int64_t tile,
                        float *const y[2], int j0, int j1);

static void each_panel(const struct skl_worker *w, struct skl_lane *lane, int64_t chunk, int64_t tile,
                       float *const y[2], int64_t panel_stride, panel_user *use)
{
    const struct skl_run *run = w->run;
    int nr = run->work->kernels->nr, panels = (lane->n + nr - 1) / nr;
    struct skl_columns columns[2] = {{NULL, 0}, {NULL, 0}};
    for (int side = 0; run->plan.whole && side < 2; side++)
        columns[side] = skl_fetch_columns(run->work, lane, side, tile, 0, (int)run->work->side[side].dim, SKL_AS_IT_IS,
                                          w->scratch.columns[side]);
    if (!run->plan.whole)
        score_blocks(w, lane, tile, y, panel_stride);
    for (int panel = 0; panel < panels; panel++) {
        float *const mine[2] = {y[0] + panel * panel_stride, y[1] + panel * panel_stride};
        int j0, j1;
        skl_tile_range(run, lane, panel, tile, &j0, &j1);
        if (j0 >= j1)
            continue;
        if (run->plan.whole)
            score_whole(w, lane, panel, panels, tile, columns, mine);
        float *const from_j0[2] = {mine[0] + j0 * nr, mine[1] + j0 * nr};
        shape_panel(run, lane, panel, tile, j1 - j0, from_j0);
        if (use)
            use(run, lane, chunk, panel, tile, from_j0, j0, j1);
    }
}

void skl_score_tile(const struct skl_worker *w, struct skl_lane *lane, int64_t tile, float *const y[2],
                    int64_t panel_stride)
{
    each_panel(w, lane, 0, tile, y, panel_stride, NULL);
}

/* Where a tile's logits go: to the lane when they are kept, else to the thread. */
static int64_t tile_place(const struct skl_worker *w, const struct skl_lane *lane, int64_t tile, int keep, float *y[2])
{
    const struct skl_plan *plan = &w->run->plan;
    int64_t panel = (int64_t)SKL_BK * w->run->work->kernels->nr;
    for (int side = 0; side < 2; side++)
        y[side] = keep ? lane->y[side] + tile * plan->panels * panel : w->scratch.y[side];
    return keep || !plan->whole ? panel : 0;
}

/* ------------------------------------------------------------------------------------------------- sweeps --- */

static void push_panel(const struct skl_run *run, struct skl_lane *lane, int64_t chunk, int panel, int64_t tile,
                       float *const y[2], int j0, int j1)
{
    const struct skl_kernels *k = run->work->kernels;
    struct skl_panel_state *state = &lane->states[chunk * run->plan.panels + panel];
    if (run->work->jsd) {
        k->push_lse(j1 - j0, y[0], y[1], run->unit, state);
        return;
    }
    k->push_kl(j1 - j0, y[0], y[1], run->unit, run->plan.recompute ? SKL_KEEP_NOTHING : run->plan.keep, state);
    if (lane->m_kept) {
        float *m = lane->m_kept + (tile * run->plan.panels + panel) * 2 * k->nr;
        memcpy(m, state->m[0], (size_t)k->nr * sizeof *m);
        memcpy(m + k->nr, state->m[1], (size_t)k->nr * sizeof *m);
    }
}

static void push_panel_jsd(const struct skl_run *run, struct skl_lane *lane, int64_t chunk, int panel, int64_t tile,
                           float *const y[2], int j0, int j1)
{
    (void)tile;
    run->work->kernels->push_jsd(j1 - j0, y[0], y[1], &lane->factors[panel],
                                 &lane->states[chunk * run->plan.panels + panel]);
}

void skl_chunk_range(const struct skl_run *run, const struct skl_lane *lane, int64_t chunk, int64_t *first,
                     int64_t *last)
{
    *first = skl_first_tile(&run->plan, chunk), *last = skl_first_tile(&run->plan, chunk + 1);
    int64_t lo = lane->first_column / SKL_BK, hi = (lane->last_column + SKL_BK - 1) / SKL_BK;
    *first = *first < lo ? lo : *first;
    *last = *last > hi ? hi : *last;
}

static void empty_states(const struct skl_run *run, struct skl_lane *lane, int64_t chunk)
{
    for (int panel = 0; panel < run->plan.panels; panel++) {
        struct skl_panel_state *s = &lane->states[chunk * run->plan.panels + panel];
        memset(s, 0, sizeof *s);
        for (int i = 0; i < SKL_NR_MAX; i++) s->m[0][i] = s->m[1][i] = -INFINITY;
    }
}

void skl_sweep(const struct skl_worker *w, struct skl_lane *lane, int64_t chunk)
{
    int64_t first, last;
    int keep = !w->run->plan.recompute && w->run->plan.kept_tiles > 0;
    empty_states(w->run, lane, chunk);
    skl_chunk_range(w->run, lane, chunk, &first, &last);
    for (int64_t tile = first; tile < last; tile++) {
        float *y[2];
        int64_t stride = tile_place(w, lane, tile, keep, y);
        each_panel(w, lane, chunk, tile, y, stride, push_panel);
    }
}

/* JSD's second sweep: over the kept logits, or over logits computed again. */
void skl_sweep_jsd(const struct skl_worker *w, struct skl_lane *lane, int64_t chunk)
{
    const struct skl_run *run = w->run;
    int64_t first, last;
    int keep = !run->plan.recompute && run->plan.kept_tiles > 0, nr = run->work->kernels->nr;
    empty_states(run, lane, chunk);
    skl_chunk_range(run, lane, chunk, &first, &last);
    for (int64_t tile = first; tile < last; tile++) {
        float *y[2];
        int64_t stride = tile_place(w, lane, tile, keep, y);
        if (!keep) {
            each_panel(w, lane, chunk, tile, y, stride, push_panel_jsd);
            continue;
        }
        for (int panel = 0, j0, j1; panel * nr < lane->n; panel++) {
            skl_tile_range(run, lane, panel, tile, &j0, &j1);
            float *const mine[2] = {y[0] + panel * stride + j0 * nr, y[1] + panel * stride + j0 * nr};
            push_panel_jsd(run, lane, chunk, panel, tile, mine, j0, j1);
        }
    }
}
