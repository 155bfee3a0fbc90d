/* SPDX-License-Identifier: Apache-2.0
 * The states of all chunks into a row's results, and results into the factors that turn logits into dz. */
#include "run.h"

#include <math.h>

#define LOG2E 1.4426950408889634
#define LN2 0.6931471805599453

/* A panel's rows over all chunks. m of a side is the largest of the chunks', whose sums are rescaled to it. */
struct merged {
    struct skl_row_state row[SKL_NR_MAX];
};

static void merge_side(const struct skl_run *run, const struct skl_lane *lane, int panel, int side, struct merged *out)
{
    const struct skl_kernels *k = run->work->kernels;
    const struct skl_panel_state *s = &lane->states[panel];
    float m[SKL_NR_MAX], x[SKL_NR_MAX], factor[SKL_NR_MAX];
    double l[SKL_NR_MAX] = {0}, acc[SKL_NR_MAX] = {0},
           unit = run->work->jsd ? 1 : LN2; /* JSD's acc has natural logarithms */
    for (int i = 0; i < k->nr; i++) m[i] = -INFINITY;
    for (int64_t c = 0; c < run->plan.chunks; c++)
        for (int i = 0; i < k->nr; i++) m[i] = fmaxf(m[i], s[c * run->plan.panels].m[side][i]);
    for (int64_t c = 0; c < run->plan.chunks; c++, s += run->plan.panels) {
        for (int i = 0; i < k->nr; i++) x[i] = m[i] > -INFINITY ? s->m[side][i] - m[i] : 0;
        k->exp2(x, factor);
        for (int i = 0; i < k->nr; i++) {
            l[i] += s->l[side][i] * (double)factor[i];
            acc[i] += isinf(s->acc[side][i]) ? s->acc[side][i] : s->acc[side][i] * (double)factor[i];
        }
    }
    for (int i = 0; i < k->nr; i++)
        out->row[i].side[side] = (struct skl_side_state){LN2 * (double)m[i], l[i], unit * acc[i]};
}

static struct merged merged_panel(const struct skl_run *run, const struct skl_lane *lane, int panel)
{
    struct merged m;
    merge_side(run, lane, panel, 0, &m);
    merge_side(run, lane, panel, 1, &m);
    return m;
}

/* The numbers that turn this row's logits into dz. A row of which a side has no mass has no gradient: every e is 0. */
static void set_factors(const struct skl_run *run, struct skl_panel_factors *f, int i, const struct skl_row_result *r,
                        double g)
{
    const struct skl_work *w = run->work;
    int massless = r->lse[0] == -INFINITY || r->lse[1] == -INFINITY;
    double lse[2];
    for (int side = 0; side < 2; side++) {
        lse[side] = massless ? INFINITY : r->lse[side] * LOG2E;
        f->m[side][i] = (float)lse[side];
        f->prob[side][i] = massless ? 0 : (float)exp2((double)f->m[side][i] - lse[side]);
        f->g[side][i] = massless ? 0 : (float)(g * w->side[side].chain * (w->jsd ? w->side[side].beta : 1));
        f->c[side][i] = massless ? 0 : (float)(w->jsd ? r->kl[side] : r->loss + (r->lse[0] - r->lse[1]));
        f->beta[side] = (float)w->side[side].beta;
    }
    f->gap[i] = massless ? 0 : (float)(lse[1] - lse[0]);
}

static void set_row(const struct skl_run *run, struct skl_lane *lane, int panel, int i, const struct skl_row_result *r)
{
    const struct skl_work *w = run->work;
    int at = panel * w->kernels->nr + i;
    lane->result[at] = *r;
    double g = at < lane->n ? lane->weight[at] / (w->mean ? w->weight_sum : 1) : 0;
    set_factors(run, &lane->factors[panel], i, r, g);
}

static void put_rows(const struct skl_run *run, struct skl_lane *lane, int panel)
{
    int nr = run->work->kernels->nr;
    for (int i = panel * nr; i < lane->n && i < (panel + 1) * nr; i++) {
        int64_t at[3];
        skl_row_index(run->work, lane->row[i], at);
        skl_put_row(run->work, at, &lane->result[i]);
    }
}

void skl_finish_panel(const struct skl_run *run, struct skl_lane *lane, int panel)
{
    struct merged m = merged_panel(run, lane, panel);
    for (int i = 0; i < run->work->kernels->nr; i++) {
        struct skl_row_result r = skl_finish_row(run->work, &m.row[i]);
        set_row(run, lane, panel, i, &r);
    }
    if (!run->work->jsd)
        put_rows(run, lane, panel);
}

/* After JSD's second sweep: the LSEs are known, the states hold the two halves of the divergence. */
void skl_finish_panel_jsd(const struct skl_run *run, struct skl_lane *lane, int panel)
{
    const struct skl_work *w = run->work;
    struct merged m = merged_panel(run, lane, panel);
    for (int i = 0; i < w->kernels->nr; i++) {
        struct skl_row_result r = lane->result[panel * w->kernels->nr + i];
        for (int side = 0; side < 2; side++) r.kl[side] = isnan(r.lse[0] + r.lse[1]) ? NAN : m.row[i].side[side].acc;
        r.loss = w->side[0].beta * r.kl[0] + w->side[1].beta * r.kl[1];
        set_row(run, lane, panel, i, &r);
    }
    put_rows(run, lane, panel);
}

/* Backward, or JSD's second sweep over a slice: what an earlier call wrote. */
void skl_load_saved(const struct skl_run *run, struct skl_lane *lane, int panel)
{
    const struct skl_work *w = run->work;
    for (int i = 0; i < w->kernels->nr; i++) {
        int64_t at[3], row = panel * w->kernels->nr + i;
        struct skl_row_result r = {.lse = {-INFINITY, -INFINITY}}; /* of lanes that hold no row */
        if (row < lane->n) {
            skl_row_index(w, lane->row[row], at);
            r.loss = w->loss.data ? (double)skl_row_get(&w->loss, at) : 0;
            for (int side = 0; side < 2; side++) {
                r.lse[side] = (double)skl_row_get(&w->side[side].lse, at);
                r.kl[side] = w->side[side].kl.data ? (double)skl_row_get(&w->side[side].kl, at) : 0;
            }
        }
        set_row(run, lane, panel, i, &r);
    }
}

void skl_write_partial(const struct skl_run *run, struct skl_lane *lane, int panel)
{
    int nr = run->work->kernels->nr;
    struct merged m = merged_panel(run, lane, panel);
    for (int i = 0; i < nr && panel * nr + i < lane->n; i++)
        run->partial[lane->row[panel * nr + i]] = skl_public_state(run->work, &m.row[i]);
}
