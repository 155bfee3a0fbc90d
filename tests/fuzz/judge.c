/* SPDX-License-Identifier: Apache-2.0 */
#include "judge.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const row_names[ROW_RESULTS] = {"loss",      "lse_s",     "lse_t",     "kl_s", "kl_t",   "m_s",
                                                   "m_t",       "l_s",       "l_t",       "kl",   "ce",     "entropy_s",
                                                   "entropy_t", "logprob_s", "logprob_t", "l1_s", "m_rest", "l_rest"};
static const char *const grad_names[GRADS] = {"s.a", "s.b", "s.bias", "t.a", "t.b", "t.bias"};

/* Rounding can leave this much below 0 where two distributions are nearly the same. */
#define MOST_NEGATIVE (-1e-6)

void judge_fail(struct judge *j, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    if (j->failures < 3)
        vsnprintf(j->said[j->failures], sizeof j->said[0], format, list);
    va_end(list);
    j->failures++;
}

void written_free(struct written *w)
{
    for (int i = 0; i < ROW_RESULTS; i++) free(w->row[i]);
    for (int i = 0; i < GRADS; i++) free(w->grad[i]);
}

static void near(struct judge *j, const char *what, int64_t i, double got, double want, double bound, int ratio)
{
    j->compared++;
    if (isnan(want) || isnan(bound)) {
        judge_fail(j, "%s[%lld]: the oracle has no number for it", what, (long long)i);
    } else if (bound == INFINITY) {
        j->unbounded++;
    } else if (isinf(want) ? got != want : !(fabs(got - want) <= bound)) {
        judge_fail(j, "%s[%lld] = %.9g, expected %.9g, %.3g times the bound %.3g", what, (long long)i, got, want,
                   fabs(got - want) / bound, bound);
    } else if (bound > 0 && !isinf(want) && ratio < RATIOS && fabs(got - want) / bound > j->worst[ratio]) {
        j->worst[ratio] = fabs(got - want) / bound;
    }
}

static void zero(struct judge *j, const char *what, int64_t i, double got)
{
    j->compared++;
    if (!(got == 0))
        judge_fail(j, "%s[%lld] = %.9g, expected exactly 0", what, (long long)i, got);
}

/* LSE = unit m + log l from its two parts, unit = |scale| / T, with a softcap 1 / T. */
static void judge_parts(struct judge *j, const struct oracle *o, const struct written *w, int side, int of_m, int of_l)
{
    const struct skl_side *of = side == STUDENT ? &j->call->p.s : &j->call->p.t;
    const double *m = w->row[of_m], *l = w->row[of_l];
    double unit = (of->softcap > 0 ? 1 : fabs(draw_scale(j->call, side))) / j->call->p.temperature;
    for (int64_t i = 0; m && l && i < o->row[LOSS].n; i++) {
        double lse = l[i] == 0 ? -INFINITY : unit * m[i] + log(l[i]);
        near(j, row_names[of_m], i, isnan(m[i]) ? (double)NAN : lse, o->row[of_m].want[i], o->row[of_m].bound[i],
             RATIO_ROWS);
    }
}

void judge_rows(struct judge *j, const struct oracle *o, const struct written *w, int exact)
{
    if (!w->no_value && o->all_exact && exact)
        zero(j, "value", 0, w->value);
    else if (!w->no_value)
        near(j, "value", 0, w->value, o->value, o->value_bound, RATIO_VALUE);
    for (int k = LOSS; k < L1_S; k++) {
        if (k > KL_T && k < STATE_RESULTS)
            continue;
        int nought = k == LOSS || k == KL_S || k == KL_T || k == KL; /* where a row gives exactly 0 */
        for (int64_t i = 0; w->row[k] && i < o->row[k].n; i++) {
            if (o->exact[i] && exact && nought)
                zero(j, row_names[k], i, w->row[k][i]);
            else
                near(j, row_names[k], i, w->row[k][i], o->row[k].want[i], o->row[k].bound[i], RATIO_ROWS);
            if (k == LOSS && !j->call->p.labels && !j->call->p.listed && w->row[k][i] < MOST_NEGATIVE)
                judge_fail(j, "loss[%lld] = %.3g is negative", (long long)i, w->row[k][i]);
        }
    }
    judge_parts(j, o, w, STUDENT, M_S, L_S);
    judge_parts(j, o, w, TEACHER, M_T, L_T);
    judge_parts(j, o, w, STUDENT, M_REST, L_REST);
}

/* What rounding to the gradient's own dtype adds; what may overflow in it is not known at all. */
static double storing(int dtype, double x)
{
    double most = dtype == SKL_F16 ? 65500 : 3e38;
    if (x > most)
        return INFINITY;
    return dtype == SKL_F32    ? 0x1p-24 * x + 0x1p-126
           : dtype == SKL_BF16 ? 0x1p-8 * x + 0x1p-126
                               : 0x1p-11 * x + 0x1p-24;
}

void judge_grads(struct judge *j, const struct oracle *o, const struct written *w, int exact)
{
    for (int k = 0; k < GRADS; k++) {
        const struct numbers *n = &o->grad[k];
        int64_t dim = k % 3 == GRAD_A ? j->call->side[k / 3].dim : 1;
        for (int64_t i = 0; w->grad[k] && i < n->n; i++) {
            int alone = k % 3 == GRAD_A && o->exact[i / dim];
            double size = fabs(n->want[i]) + n->bound[i],
                   bound = n->bound[i] + (size > 0 ? storing(w->grad_dtype[k], size) : 0);
            if (exact && (alone || o->all_exact))
                zero(j, grad_names[k], i, w->grad[k][i]);
            else
                near(j, grad_names[k], i, w->grad[k][i], n->want[i], bound,
                     w->grad_dtype[k] == SKL_F32 ? RATIO_GRADS : RATIOS);
        }
    }
}
