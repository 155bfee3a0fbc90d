/* SPDX-License-Identifier: Apache-2.0
 * The states of all chunks into a row's results, and results into the factors that turn logits into dz. */
#include "run.h"

#include <math.h>

/* A panel's rows over all chunks, natural logarithms. */
struct merged {
    struct skl_row_state row[SKL_NR_MAX];
};

/* The largest of the chunks' maxima. */
static void largest_max(const struct skl_run *run, const struct skl_lane *lane, int panel, float m[2][SKL_NR_MAX])
{
    int nr = run->work->kernels->nr;
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < nr; i++) m[side][i] = -INFINITY;
    for (int64_t c = 0; c < run->plan.chunks; c++)
        for (int side = 0; side < 2; side++)
            for (int i = 0; i < nr; i++)
                m[side][i] = fmaxf(m[side][i], lane->states[c * run->plan.panels + panel].m[side][i]);
}

/* Adds a chunk's state, moved to the maxima m. */
static void add_chunk(const struct skl_run *run, const struct skl_panel_state *s, float m[2][SKL_NR_MAX],
                      struct merged *sum)
{
    const struct skl_kernels *k = run->work->kernels;
    for (int side = 0; side < 2; side++) {
        float x[SKL_NR_MAX], factor[SKL_NR_MAX];
        for (int i = 0; i < k->nr; i++)
            x[i] = m[side][i] > -INFINITY ? (s->m[side][i] - m[side][i]) * run->unit[side] : 0;
        k->exp2(x, factor);
        for (int i = 0; i < k->nr; i++) {
            struct skl_side_state *to = &sum->row[i].side[side];
            double shift = skl_shift(run, s->m[0][i], m[0][i], s->m[1][i], m[1][i]);
            to->l += s->l[side][i] * (double)factor[i];
            if (side == 0 || run->work->jsd) /* Q of a KL has none, and JSD's has l = 0: it is not moved */
                to->acc += skl_moved_acc(s->acc[side][i], s->l[side][i], shift, (double)factor[i]);
        }
    }
}

static struct merged merged_panel(const struct skl_run *run, const struct skl_lane *lane, int panel)
{
    struct merged sum = {0};
    float m[2][SKL_NR_MAX];
    double unit = run->work->jsd ? 1 : SKL_LN2; /* JSD's acc has natural logarithms */
    largest_max(run, lane, panel, m);
    for (int64_t c = 0; c < run->plan.chunks; c++) add_chunk(run, &lane->states[c * run->plan.panels + panel], m, &sum);
    for (int i = 0; i < run->work->kernels->nr; i++)
        for (int side = 0; side < 2; side++)
            sum.row[i].side[side].m = run->work->side[side].unit * (double)m[side][i],
            sum.row[i].side[side].acc *= unit;
    return sum;
}

/* The numbers that turn this row's logits into dz. A row of which a side has no mass has no gradient: every e is 0. */
static void set_factors(const struct skl_run *run, struct skl_panel_factors *f, int i, const struct skl_row_result *r,
                        double g)
{
    const struct skl_work *w = run->work;
    int massless = r->lse[0] == -INFINITY || r->lse[1] == -INFINITY;
    double gap = massless ? 0 : log2(r->l[1]) - log2(r->l[0]);
    for (int side = 0; side < 2; side++) {
        f->m[side][i] = massless ? INFINITY : (float)(r->m[side] / w->side[side].unit);
        f->prob[side][i] = massless ? 0 : (float)(1 / r->l[side]);
        f->g[side][i] = massless ? 0 : (float)(g * w->side[side].chain * (w->jsd ? w->side[side].beta : 1));
        f->c[side][i] = massless ? 0 : (float)(w->jsd ? r->kl[side] : SKL_LOG2E * r->loss - gap);
        f->beta[side] = (float)w->side[side].beta;
        f->unit[side] = run->unit[side];
    }
    f->gap[i] = (float)gap;
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

/* A side's m and l as they were saved, or else from its LSE, which has lost what its rounding took. */
static void load_lse(const struct skl_work_side *s, const int64_t at[3], double *lse, double *m, double *l)
{
    if (s->m.data && s->l.data) {
        *m = s->unit * (double)skl_row_get(&s->m, at), *l = (double)skl_row_get(&s->l, at);
        *lse = *l == 0 ? -INFINITY : *m + log(*l);
        return;
    }
    *lse = (double)skl_row_get(&s->lse, at);
    *m = s->unit * (double)(float)(*lse / s->unit);
    *l = *lse == -INFINITY ? 0 : exp(*lse - *m);
}

/* Backward, or JSD's second sweep over a slice: what an earlier call wrote. */
void skl_load_saved(const struct skl_run *run, struct skl_lane *lane, int panel)
{
    const struct skl_work *w = run->work;
    for (int i = 0; i < w->kernels->nr; i++) {
        int64_t at[3], row = panel * w->kernels->nr + i;
        struct skl_row_result r = skl_no_result; /* of lanes that hold no row */
        if (row < lane->n) {
            skl_row_index(w, lane->row[row], at);
            r.loss = w->loss.data ? (double)skl_row_get(&w->loss, at) : 0;
            for (int side = 0; side < 2; side++) {
                load_lse(&w->side[side], at, &r.lse[side], &r.m[side], &r.l[side]);
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
