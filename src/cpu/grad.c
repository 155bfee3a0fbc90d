/* SPDX-License-Identifier: Apache-2.0
 *
 * The backward of a slab of tiles, in two phases with a barrier between them:
 *
 *     by columns   y -> dz in place;   db[j] += sum_i dz[i,j] a[i]      a task owns its columns' db
 *     by rows      da[i] += sum_j dz[i,j] b[j]                          a task owns entries d0.. of its lane's da
 *
 * so no two threads add to the same number, and every sum has one order.
 */
#include "run.h"

#include <math.h>
#include <string.h>

#define LOG2E 1.4426950408889634

/* The columns of a tile that each panel sees, and that any of them does. */
struct seen {
    int j0[SKL_PANELS_MAX], j1[SKL_PANELS_MAX];
    int first, last; /* at whole strips */
};

static struct seen seen_columns(const struct skl_run *run, const struct skl_lane *lane, int64_t tile)
{
    const struct skl_kernels *k = run->work->kernels;
    struct seen s = {.first = SKL_BK, .last = 0};
    for (int panel = 0; panel * k->nr < lane->n; panel++) {
        skl_tile_range(run, lane, panel, tile, &s.j0[panel], &s.j1[panel]);
        if (s.j0[panel] < s.j1[panel]) {
            s.first = s.j0[panel] < s.first ? s.j0[panel] : s.first;
            s.last = s.j1[panel] > s.last ? s.j1[panel] : s.last;
        }
    }
    s.last = (s.last + k->mr - 1) / k->mr * k->mr;
    return s;
}

/* Kept exponentials refer to the running maximum of their tile: prob = 2^{m - LSE}. */
static void kept_factors(const struct skl_run *run, const struct skl_lane *lane, int64_t tile, int panel,
                         struct skl_panel_factors *f)
{
    const struct skl_kernels *k = run->work->kernels;
    const float *m = lane->m_kept + (tile * run->plan.panels + panel) * 2 * k->nr;
    for (int side = 0; side < 2; side++) {
        float x[SKL_NR_MAX];
        for (int i = 0; i < k->nr; i++) {
            double lse = lane->result[panel * k->nr + i].lse[side] * LOG2E;
            x[i] = lse == -INFINITY ? -INFINITY : (float)((double)m[side * k->nr + i] - lse);
        }
        k->exp2(x, f->prob[side]);
    }
}

static void dz_panel(const struct skl_worker *w, struct skl_lane *lane, int64_t tile, int panel, int n, float *const y[2])
{
    const struct skl_run *run = w->run;
    const struct skl_work *work = run->work;
    const struct skl_kernels *k = work->kernels;
    if (lane->m_kept) {
        struct skl_panel_factors f = lane->factors[panel];
        kept_factors(run, lane, tile, panel, &f);
        k->dz_kept(n, y[0], y[1], run->plan.keep, &f);
        return;
    }
    for (int side = 0; side < 2; side++) /* the softcap's derivative is a function of the logits that dz overwrites */
        if (work->side[side].cap > 0 && (work->grads & 1 << side))
            memcpy(w->scratch.y[side], y[side], (size_t)(n * k->nr) * sizeof(float));
    (work->jsd ? k->dz_jsd : k->dz_kl)(n, y[0], y[1], work->grads, &lane->factors[panel]);
    for (int side = 0; side < 2; side++)
        if (work->side[side].cap > 0 && (work->grads & 1 << side))
            k->softcap_back(n, w->scratch.y[side], (float)work->side[side].cap, y[side]);
}

/* dz of the whole lane for one tile; 0 where a panel does not see a column that another one does. */
static void dz_tile(const struct skl_worker *w, struct skl_lane *lane, int64_t tile, const struct seen *s, float *const y[2],
                    int64_t panel_stride)
{
    int nr = w->run->work->kernels->nr;
    for (int panel = 0; panel * nr < lane->n; panel++) {
        int j0 = s->j0[panel], j1 = s->j1[panel];
        float *const at[2] = {y[0] + panel * panel_stride, y[1] + panel * panel_stride};
        float *const from_j0[2] = {at[0] + j0 * nr, at[1] + j0 * nr};
        if (j0 >= j1)
            j0 = j1 = s->last;
        else
            dz_panel(w, lane, tile, panel, j1 - j0, from_j0);
        for (int side = 0; side < 2; side++) {
            if (s->first < j0)
                memset(at[side] + s->first * nr, 0, (size_t)((j0 - s->first) * nr) * sizeof(float));
            if (j1 < s->last)
                memset(at[side] + j1 * nr, 0, (size_t)((s->last - j1) * nr) * sizeof(float));
        }
    }
}

/* For each strip of columns, the panels from the first to the last that see it. */
static void strip_panels(const struct skl_run *run, const struct skl_lane *lane, const struct seen *s, int *first, int *last)
{
    const struct skl_kernels *k = run->work->kernels;
    for (int j = s->first, strip = 0; j < s->last; j += k->mr, strip++) {
        first[strip] = run->plan.panels, last[strip] = 0;
        for (int panel = 0; panel * k->nr < lane->n; panel++)
            if (s->j0[panel] < j + k->mr && j < s->j1[panel] && s->j0[panel] < s->j1[panel]) {
                first[strip] = panel < first[strip] ? panel : first[strip];
                last[strip] = panel + 1;
            }
    }
}

/* db[j] += sum_i dz[i,j] a[i] */
static void add_to_columns(const struct skl_run *run, const struct skl_lane *lane, int64_t tile, const struct seen *s,
                           int side, const float *dz, int64_t panel_stride, const float *next)
{
    const struct skl_work *work = run->work;
    const struct skl_work_side *ws = &work->side[side];
    const struct skl_kernels *k = work->kernels;
    int first[SKL_BK], last[SKL_BK];
    int64_t column = tile * SKL_BK + s->first, end = work->columns, stride = ws->dim;
    int n = end - column < s->last - s->first ? (int)(end - column) : s->last - s->first;
    float *db = lane->db[side] ? lane->db[side] + column * ws->dim : NULL;
    if (!db) {
        db = skl_operand_at(&ws->grad_b, work->attention ? lane->batch : 0, work->attention ? lane->head / ws->share : 0, column);
        stride = ws->grad_b.stride[2];
    }
    strip_panels(run, lane, s, first, last);
    int64_t piece = panel_stride * run->plan.panels * k->nr / ws->dim / 16 * 16; /* of the next tile, for each step in d */
    for (int64_t d = 0; d < ws->dim; d += k->nr) {
        const float *rows = lane->raw[side] + d * run->plan.block, *soon = next ? next + d / k->nr * piece : NULL;
        int width = ws->dim - d < k->nr ? (int)(ws->dim - d) : k->nr;
        k->grad_columns(n, first, last, panel_stride, dz + s->first * k->nr, rows, soon, piece, width, db + d, stride);
    }
}

static void add_to_bias(const struct skl_run *run, struct skl_lane *lane, int64_t tile, const struct seen *s, int side,
                        const float *dz, int64_t panel_stride)
{
    int nr = run->work->kernels->nr;
    for (int panel = 0; panel * nr < lane->n; panel++)
        if (s->j0[panel] < s->j1[panel])
            run->work->kernels->add_rows(s->j1[panel] - s->j0[panel], dz + panel * panel_stride + s->j0[panel] * nr,
                                         lane->dbias[side] + tile * SKL_BK + s->j0[panel]);
}

void skl_grad_columns(const struct skl_worker *w, struct skl_lane *lane, int64_t slab, int64_t first, int64_t last)
{
    const struct skl_run *run = w->run;
    int64_t panel_stride = (int64_t)SKL_BK * run->work->kernels->nr, tile_size = panel_stride * run->plan.panels;
    for (int64_t tile = first; tile < last; tile++) {
        struct seen s = seen_columns(run, lane, tile);
        float *const y[2] = {lane->y[0] + (tile - slab) * tile_size, lane->y[1] + (tile - slab) * tile_size};
        if (s.first >= s.last)
            continue;
        if (run->plan.recompute)
            skl_score_tile(w, lane, tile, y, panel_stride);
        dz_tile(w, lane, tile, &s, y, panel_stride);
        for (int side = 0; side < 2; side++) {
            if (run->work->side[side].grad_b.data)
                add_to_columns(run, lane, tile, &s, side, y[side], panel_stride,
                               run->plan.recompute || tile + 1 == last ? NULL : y[!side] + tile_size);
            if (lane->dbias[side])
                add_to_bias(run, lane, tile, &s, side, y[side], panel_stride);
        }
    }
}

/* da[i][d0..d0+d-1] += sum_j dz[i,j] b[j] over the slab's tiles up to 'last'. */
void skl_grad_rows(const struct skl_worker *w, struct skl_lane *lane, int64_t slab, int64_t last, int side, int64_t d0, int d)
{
    const struct skl_run *run = w->run;
    const struct skl_kernels *k = run->work->kernels;
    int64_t dim = (run->work->side[side].dim + k->mr - 1) / k->mr * k->mr, panel_size = (int64_t)SKL_BK * k->nr;
    for (int64_t tile = slab; tile < last; tile++) {
        const float *dz = lane->y[side] + (tile - slab) * panel_size * run->plan.panels;
        if ((tile + 1) * SKL_BK <= lane->first_column || tile * SKL_BK >= lane->last_column)
            continue;
        skl_pack_tile(run->work, lane, side, tile, d0, d, w->scratch.columns[0]);
        for (int panel = 0; panel * k->nr < lane->n; panel++) {
            int j0, j1;
            skl_tile_range(run, lane, panel, tile, &j0, &j1);
            const float *mine = dz + panel * panel_size + j0 * k->nr;
            if (j0 < j1)
                k->grad_rows(j1 - j0, d, w->scratch.columns[0] + j0 * SKL_LDK, mine, mine + panel_size,
                             lane->da[side] + (panel * dim + d0) * k->nr);
        }
    }
}
