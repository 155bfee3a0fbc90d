/* SPDX-License-Identifier: Apache-2.0
 *
 * What rows tell beyond their divergence (entropy, the largest logit and its rank on the other side, log-probabilities
 * of a label, other divergences), and labels: their cross-entropy, and what it adds to dz. Nothing here runs unless it
 * is asked for.
 *
 *     z' = unit' x          the student's logits at temperature 1;  LSE' = unit' m + log l1
 *     ce = (1 - smoothing) (LSE' - z'[label]) + smoothing (LSE' - mean z') + z_loss LSE'^2
 *     dz' = G ((1 + 2 z_loss LSE') q' - (1 - smoothing) [j = label] - smoothing / n) + g lse_weight q',      G = g
 *     weight
 */
#include "run.h"

#include <math.h>
#include <string.h>

/* unit' of a side, from scores to logits at temperature 1, and in base 2. */
static double unit1(const struct skl_work *w, int side)
{
    return w->side[side].unit * w->temperature;
}

static float unit1_base2(const struct skl_work *w, int side)
{
    return (float)(SKL_LOG2E * unit1(w, side));
}

/* ------------------------------------------------------------------------------------------------- sweeps --- */

void skl_empty_details(const struct skl_run *run, struct skl_block *block, int64_t chunk, int panel)
{
    int64_t at = chunk * run->plan.panels + panel;
    for (int side = 0; side < 2; side++) {
        struct skl_panel_details *d = block->details[side] ? &block->details[side][at] : NULL;
        if (d)
            memset(d, 0, sizeof *d);
        for (int i = 0; d && i < SKL_NR_MAX; i++) d->m[i] = d->label[i] = -INFINITY;
    }
    for (int k = 0; k < SKL_OTHERS; k++)
        if (block->others[k])
            memset(&block->others[k][at], 0, sizeof *block->others[k]);
}

static void take_labels(const struct skl_run *run, const struct skl_block *block, int panel, int64_t first,
                        const float *x, int n, struct skl_panel_details *d)
{
    int nr = run->plan.kernels->nr;
    for (int i = 0, row = panel * nr; i < nr && row < block->n; i++, row++) {
        int64_t j = block->label[row] - run->work->shard.first - first;
        if (block->label[row] >= 0 && j >= 0 && j < n)
            d->label[i] = x[j * nr + i];
    }
}

/* Adds e^{z - z(m)} of the columns of mass_ids that are in this tile. A row's ids are looked through for every tile: a
 * comparison an id against dim products a column. */
static void add_masses(const struct skl_run *run, const struct skl_block *block, int side, int panel, int64_t first,
                       const float *x, int n, struct skl_panel_details *d)
{
    const struct skl_row_ids *ids = &run->work->mass_ids;
    int nr = run->plan.kernels->nr;
    for (int i = 0, row = panel * nr; i < nr && row < block->n; i++, row++) {
        int64_t at[3];
        memcpy(at, block->at[row], sizeof at);
        for (int64_t k = 0; k < ids->count; k++) {
            int64_t j = skl_row_id(ids, at, k) - first;
            if (j >= 0 && j < n && !(x[j * nr + i] == -INFINITY))
                d->mass[i] += exp2((double)run->unit[side] * ((double)x[j * nr + i] - (double)d->m[i]));
        }
    }
}

/* The other side's score where this side's largest one is: that of a column of this tile, if it has just been found. */
static void take_there(int nr, int64_t first, const float *other, int n, struct skl_panel_details *d)
{
    for (int i = 0; i < nr; i++) {
        int64_t j = d->top[i] - first;
        if (j >= 0 && j < n)
            d->there[i] = other[j * nr + i];
    }
}

/* Does every row of the panel see all n columns from 'first' on? */
static int sees_all(const struct skl_run *run, const struct skl_block *block, int panel, int64_t first, int n)
{
    int nr = run->plan.kernels->nr;
    for (int i = 0, row = panel * nr; i < nr && row < block->n; i++, row++)
        if (block->lo[row] > first || block->hi[row] < first + n)
            return 0;
    return 1;
}

/* The sum of the scores that each row sees: what it does not see is -inf in the tile. */
static void add_seen(const struct skl_run *run, const struct skl_block *block, int panel, int64_t first, const float *x,
                     int n, struct skl_panel_details *d)
{
    int nr = run->plan.kernels->nr;
    for (int i = 0, row = panel * nr; i < nr && row < block->n; i++, row++)
        for (int j = 0; j < n; j++)
            if (first + j >= block->lo[row] && first + j < block->hi[row])
                d->sum[i] += (double)x[j * nr + i];
}

void skl_push_details(const struct skl_run *run, struct skl_block *block, int64_t chunk, int panel, int64_t first,
                      float *const y[2], int n)
{
    for (int side = 0; side < 2; side++) {
        if (!block->details[side])
            continue;
        struct skl_panel_details *d = &block->details[side][chunk * run->plan.panels + panel];
        int want = run->plan.details[side];
        int part = (want & SKL_WANT_SUM) && !sees_all(run, block, panel, first, n);
        run->plan.kernels->details(n, y[side], first, part ? want & ~SKL_WANT_SUM : want, run->unit[side],
                                   unit1_base2(run->work, side), d);
        if (part)
            add_seen(run, block, panel, first, y[side], n, d);
        if (want & SKL_WANT_LABEL)
            take_labels(run, block, panel, first, y[side], n, d);
        if (want & SKL_WANT_MASS)
            add_masses(run, block, side, panel, first, y[side], n, d);
        if (run->plan.details[!side] & SKL_WANT_RANK)
            take_there(run->plan.kernels->nr, first, y[!side], n, d);
    }
}

void skl_count_ranks(const struct skl_run *run, struct skl_block *block, int64_t chunk, int panel, float *const y[2],
                     int n)
{
    int nr = run->plan.kernels->nr;
    for (int side = 0; side < 2; side++) {
        float rival[SKL_NR_MAX];
        if (!(run->plan.details[side] & SKL_WANT_RANK))
            continue;
        for (int i = 0; i < nr; i++) rival[i] = (float)block->result[panel * nr + i].rival[side];
        run->plan.kernels->count_above(n, y[side], rival, block->details[side][chunk * run->plan.panels + panel].above);
    }
}

void skl_sum_others(const struct skl_run *run, struct skl_block *block, int64_t chunk, int panel, float *const y[2],
                    int n)
{
    static const enum skl_form form[SKL_OTHERS] = {SKL_FORM_KL, SKL_FORM_JSD, SKL_FORM_TOTAL_VARIATION};
    struct skl_panel_factors f;
    if (!run->plan.others)
        return;
    f = block->factors[panel];
    f.param[0] = f.param[1] = 0.5F;
    for (int k = 0; k < SKL_OTHERS; k++)
        if (block->others[k])
            run->plan.kernels->form[form[k]].sum(n, y[0], y[1], 0, &f,
                                                 &block->others[k][chunk * run->plan.panels + panel]);
}

/* ------------------------------------------------------------------------------------------------ results --- */

/* One row's sums of one side over all chunks and the sink. */
struct row_details {
    double m, l, moment, l1, sum, top, there, mass, label; /* m, there and label are scores */
    double columns;                                        /* that the row sees */
};

static struct row_details merged(const struct skl_run *run, const struct skl_block *block, int side, int panel, int i)
{
    struct row_details r = {.m = -INFINITY, .label = -INFINITY};
    int row = panel * run->plan.kernels->nr + i;
    r.columns = row < block->n ? (double)(block->hi[row] - block->lo[row]) : 0;
    double unit = run->work->side[side].unit, at_1 = unit1(run->work, side);
    for (int64_t chunk = 0; chunk < skl_states_of(run, block); chunk++) {
        const struct skl_panel_details *d = &block->details[side][chunk * run->plan.panels + panel];
        double m = (double)d->m[i], to = m > r.m ? m : r.m;
        r.label = fmax(r.label, (double)d->label[i]);
        r.sum += d->sum[i];
        if (to == -INFINITY)
            continue;
        double old = r.m == to ? 1 : exp(unit * (r.m - to)), new = m == to ? 1 : exp(unit * (m - to));
        double old1 = r.m == to ? 1 : exp(at_1 * (r.m - to)), new1 = m == to ? 1 : exp(at_1 * (m - to));
        double moved = r.l != 0 ? (r.moment + r.l * SKL_LOG2E * unit * (r.m - to)) * old : 0;
        double added = d->l[i] != 0 ? (d->moment[i] + d->l[i] * SKL_LOG2E * unit * (m - to)) * new : 0;
        r.moment = moved + added;
        r.l = r.l * old + d->l[i] * new;
        r.mass = r.mass * old + d->mass[i] * new;
        r.l1 = r.l1 * old1 + d->l1[i] * new1;
        if (m > r.m && chunk < block->chunks) /* a sink is nobody's top */
            r.top = (double)d->top[i], r.there = (double)d->there[i];
        r.m = to;
    }
    return r;
}

/* The states in which shards exchange what labels need. Merging (skl_merge_row) adds accs as they are where l is 0, and
 * m, l of one side do not touch the other side's:
 *     student  m = unit' m, l = l1        teacher  acc = z' of the label, on the shard that has it
 *     smoothing: student  acc = sum z'    teacher  acc = columns that the row sees */
void skl_write_label_states(const struct skl_run *run, const struct skl_block *block, int panel)
{
    const struct skl_work *w = run->work;
    int nr = run->plan.kernels->nr;
    double at_1 = unit1(w, w->student);
    for (int i = 0, row = panel * nr; i < nr && row < block->n; i++, row++) {
        struct row_details d = merged(run, block, w->student, panel, i);
        struct skl_state *to = &run->states[run->shared + block->row[row] - run->first_state];
        *to = (struct skl_state){.m_s = skl_tempered(w) ? at_1 * d.m : 0, .l_s = skl_tempered(w) ? d.l1 : 0};
        int64_t j = block->label[row] - w->shard.first;
        if (block->label[row] >= 0 && j >= 0 && j < w->columns)
            to->acc_t = at_1 * d.label;
        if (w->labels.smoothing > 0)
            to[run->shared] = (struct skl_state){.acc_s = at_1 * d.sum, .acc_t = d.columns};
    }
}

/* A row's sums over all columns: on a shard, what the exchange made of them. */
static struct row_details complete(const struct skl_run *run, const struct skl_block *block, int side, int panel, int i)
{
    const struct skl_work *w = run->work;
    if (!w->shard.exchange)
        return merged(run, block, side, panel, i);
    double at_1 = unit1(w, side);
    const struct skl_state *label =
        &run->states[run->shared + block->row[panel * run->plan.kernels->nr + i] - run->first_state];
    struct row_details r = {.l1 = label->l_s, .label = label->acc_t / at_1};
    if (w->labels.smoothing > 0)
        r.sum = label[run->shared].acc_s / at_1, r.columns = label[run->shared].acc_t;
    return r;
}

/* LSE' of the student, from a result that has l1. */
static double lse1_of(const struct skl_work *w, const struct skl_row_result *r, int side)
{
    return r->l1[side] == 0 ? -INFINITY : w->temperature * r->m[side] + log(r->l1[side]);
}

static double cross_entropy(const struct skl_work *w, const struct skl_row_result *r, const struct row_details *d)
{
    const struct skl_work_labels *l = &w->labels;
    double lse1 = lse1_of(w, r, w->student), at_1 = unit1(w, w->student);
    double ce = (1 - l->smoothing) * (lse1 - at_1 * d->label);
    if (l->smoothing > 0)
        ce += l->smoothing * (lse1 - at_1 * d->sum / d->columns);
    return l->z_loss > 0 ? ce + l->z_loss * lse1 * lse1 : ce;
}

void skl_finish_details(const struct skl_run *run, const struct skl_block *block, int panel, int i,
                        struct skl_row_result *r)
{
    const struct skl_work *w = run->work;
    int row = panel * run->plan.kernels->nr + i;
    if (row >= block->n)
        return;
    for (int side = 0; side < 2; side++) {
        int want = run->plan.details[side];
        r->l1[side] = r->l[side];
        if (!want)
            continue;
        struct row_details d = complete(run, block, side, panel, i);
        r->columns = d.columns;
        if (want & SKL_WANT_L1)
            r->l1[side] = d.l1;
        if (want & SKL_WANT_ENTROPY)
            r->entropy[side] = isnan(r->lse[side]) ? NAN : d.l == 0 ? 0 : log(d.l) - SKL_LN2 * d.moment / d.l;
        if (want & SKL_WANT_MASS)
            r->mass[side] = isnan(r->lse[side]) ? NAN : r->l[side] == 0 ? 0 : d.mass / r->l[side];
        r->top1[side] = want & SKL_WANT_TOP1 ? skl_key_of(block, d.top) : 0, r->rival[!side] = d.there;
        if ((want & SKL_WANT_LABEL) && block->label[row] >= 0) {
            r->logprob[side] = unit1(w, side) * d.label - lse1_of(w, r, side);
            r->labelled = 1;
            if (side == w->student)
                r->ce = cross_entropy(w, r, &d);
        }
    }
}

void skl_finish_others(const struct skl_run *run, const struct skl_block *block, int panel, int i,
                       struct skl_row_result *r)
{
    double *to[SKL_OTHERS] = {&r->reverse, &r->jsd, &r->tv};
    for (int k = 0; k < SKL_OTHERS; k++) {
        double acc[2] = {0, 0};
        for (int64_t chunk = 0; block->others[k] && chunk < skl_states_of(run, block); chunk++)
            for (int side = 0; side < 2; side++)
                acc[side] += block->others[k][chunk * run->plan.panels + panel].acc[side][i];
        *to[k] = isnan(r->lse[0] + r->lse[1]) ? NAN : k == SKL_OTHER_JSD ? (acc[0] + acc[1]) / 2 : acc[0];
    }
    for (int side = 0; side < 2; side++)
        for (int64_t chunk = 0; (run->plan.details[side] & SKL_WANT_RANK) && chunk < block->chunks; chunk++)
            r->rank[side] += block->details[side][chunk * run->plan.panels + panel].above[i];
}

double skl_row_loss(const struct skl_work *w, const struct skl_row_result *r)
{
    const struct skl_work_labels *l = &w->labels;
    double loss = l->kl_weight != 0 ? l->kl_weight * r->divergence : 0;
    loss += l->weight != 0 ? l->weight * r->ce : 0;
    return l->lse_weight != 0 && r->labelled ? loss + l->lse_weight * lse1_of(w, r, w->student) : loss;
}

/* ------------------------------------------------------------------------------------------------ gradient --- */

void skl_set_label_factors(const struct skl_run *run, struct skl_block *block, int panel, int i, double g,
                           const struct skl_row_result *r)
{
    const struct skl_work *w = run->work;
    const struct skl_work_labels *l = &w->labels;
    struct skl_panel_labels *to = &block->labels[panel];
    struct skl_panel_factors *f = &block->factors[panel];
    int row = panel * run->plan.kernels->nr + i, s = w->student;
    int counts = row < block->n && block->label[row] >= 0 && f->prob[s][i] != 0;
    double scale = w->side[s].chain * w->temperature, G = counts ? g * l->weight * scale : 0;
    double own = counts ? g * l->lse_weight * scale : 0;
    own += G != 0 ? G * (1 + 2 * l->z_loss * lse1_of(w, r, s)) : 0;
    f->own[s][i] = skl_tempered(w) ? 0 : (float)own;
    to->m[i] = f->m[s][i];
    to->own[i] = own != 0 ? (float)(own / r->l1[s]) : 0;
    to->hot[i] = (float)(G * (1 - l->smoothing));
    to->flat[i] = counts ? (float)(G * l->smoothing / r->columns) : 0;
}

void skl_temper(const struct skl_worker *w, const struct skl_block *block, int panel, const float *x, int n)
{
    const struct skl_run *run = w->run;
    if (w->scratch.tempered)
        run->plan.kernels->tempered(n, x, block->labels[panel].m, unit1_base2(run->work, run->work->student),
                                    block->labels[panel].own, w->scratch.tempered);
}

void skl_add_labels(const struct skl_worker *w, const struct skl_block *block, int panel, int64_t first, int n,
                    float *dz)
{
    const struct skl_run *run = w->run;
    const struct skl_panel_labels *l = &block->labels[panel];
    int nr = run->plan.kernels->nr;
    if (w->scratch.tempered)
        run->plan.kernels->add_tile(n, w->scratch.tempered, dz);
    int smooth = run->work->labels.smoothing > 0, all = smooth && sees_all(run, block, panel, first, n);
    for (int j = 0; all && j < n; j++)
        for (int i = 0; i < nr; i++) dz[j * nr + i] -= l->flat[i];
    for (int i = 0, row = panel * nr; smooth && !all && i < nr && row < block->n; i++, row++)
        for (int j = 0; j < n; j++)
            if (first + j >= block->lo[row] && first + j < block->hi[row])
                dz[j * nr + i] -= l->flat[i];
    for (int i = 0, row = panel * nr; i < nr && row < block->n; i++, row++) {
        int64_t j = block->label[row] - run->work->shard.first - first;
        if (block->label[row] >= 0 && j >= 0 && j < n)
            dz[j * nr + i] -= l->hot[i];
    }
}
