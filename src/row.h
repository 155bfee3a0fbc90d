/* SPDX-License-Identifier: Apache-2.0
 *
 * The arithmetic of one row, written once for C and for CUDA C: which columns it sees, merging the states of two sets
 * of columns, reading results off a complete state, and what a row's loss counts in the reduced value.
 *
 *     state    m, l, acc of each side (docs/math.md, section 2), natural logarithms, sides P = 0 and Q = 1
 */
#ifndef SKL_ROW_H
#define SKL_ROW_H

#include "divergence.h"

#include <stdint.h>

/* ------------------------------------------------------------------------------------------------- columns --- */

/* Columns lo .. hi-1; none when lo >= hi. */
struct skl_range {
    int64_t lo, hi;
};

/* What row i of n sees of the columns through a window around the diagonal, aligned bottom right; -1: no limit. */
SKL_INLINE struct skl_range skl_window(int64_t i, int64_t n, int64_t columns, int64_t left, int64_t right)
{
    int64_t diagonal = i + columns - n;
    struct skl_range r = {0, columns};
    if (left >= 0 && diagonal - left > r.lo)
        r.lo = diagonal - left;
    if (right >= 0 && diagonal + right + 1 < r.hi)
        r.hi = diagonal + right + 1;
    return r;
}

SKL_INLINE struct skl_range skl_from(struct skl_range r, int64_t begin)
{
    r.lo = begin > r.lo ? begin : r.lo;
    return r;
}

SKL_INLINE struct skl_range skl_until(struct skl_range r, int64_t end)
{
    r.hi = end < r.hi ? end : r.hi;
    return r;
}

/* -------------------------------------------------------------------------------------------------- states --- */

struct skl_side_state {
    double m, l, acc;
};

struct skl_row_state {
    struct skl_side_state side[2];
};

SKL_INLINE struct skl_row_state skl_empty_row(void)
{
    struct skl_row_state s = {{{-HUGE_VAL, 0, 0}, {-HUGE_VAL, 0, 0}}};
    return s;
}

/* acc refers to both sides' m. After these have moved to m', with shift = (m_P - m_P') - (m_Q - m_Q') and
 * factor = e^{m_P - m_P'}, this is the same sum under the new ones. An acc of +inf is the mathematics (P has mass where
 * Q has none) and stays. */
SKL_INLINE double skl_moved_acc(double acc, double l_p, double shift, double factor)
{
    return l_p == 0 || isinf(acc) ? acc : (acc + l_p * shift) * factor;
}

/* The factor of sums when their reference rises from m to 'to'; 1 when neither has seen a column. */
SKL_INLINE double skl_factor_of(double m, double to)
{
    return m == to ? 1 : exp(m - to);
}

/* Two sets of columns under common references. Each acc moves as if it were that of KL(this side || the other): for a
 * KL one of them is, and nobody reads the other; a second sweep has l = 0, and its accs are only added. */
SKL_INLINE void skl_merge_row(struct skl_row_state *into, const struct skl_row_state *from)
{
    struct skl_row_state sum;
    double m[2];
    for (int side = 0; side < 2; side++)
        m[side] = from->side[side].m > into->side[side].m ? from->side[side].m : into->side[side].m;
    for (int side = 0; side < 2; side++) {
        const struct skl_row_state *each[2] = {into, from};
        struct skl_side_state to = {m[side], 0, 0};
        for (int k = 0; k < 2; k++) {
            const struct skl_side_state *p = &each[k]->side[side], *q = &each[k]->side[!side];
            double f = skl_factor_of(p->m, m[side]), shift = (p->m - m[side]) - (q->m - m[!side]);
            to.l += p->l * f;
            to.acc += skl_moved_acc(p->acc, p->l, shift, f);
        }
        sum.side[side] = to;
    }
    *into = sum;
}

/* ------------------------------------------------------------------------------------------------- results --- */

/* A complete row's results, natural logarithms, sides P and Q: LSE = m + log l. m is the logit of a score that an f32
 * holds exactly. c is what a side's gradient subtracts, of divergences with two sweeps. */
struct skl_row_result {
    double loss, lse[2], c[2], m[2], l[2];
    /* What only some callers ask for; 0 otherwise. l1 = sum e^{z' - z'(m)}, z' the logits at temperature 1. */
    double columns; /* that it sees */
    int labelled;   /* the row has a label that is not ignored */
    double divergence, ce, entropy[2], logprob[2], top1[2], l1[2], mass[2], reverse, jsd, tv;
    double rival[2], rank[2]; /* the side's score of the other side's top1, and how many of its scores are larger */
    double sink_mass[2];
    double m_rest, l_rest; /* a listed teacher: of the student, over the columns that are not listed */
    double tail;           /* of skl_topk: log of the mass that is not listed */
};

/* Of a row that sees no column or has no weight. */
SKL_INLINE struct skl_row_result skl_no_result(void)
{
    struct skl_row_result r = {0};
    r.lse[0] = r.lse[1] = r.m[0] = r.m[1] = r.m_rest = r.tail = -HUGE_VAL;
    return r;
}

SKL_INLINE double skl_lse_of(const struct skl_side_state *s)
{
    return s->l == 0 ? -HUGE_VAL : s->m + log(s->l);
}

/* KL(P || Q) = acc / l_P + log l_Q - log l_P. */
SKL_INLINE double skl_finish_kl(const struct skl_side_state *p, const struct skl_side_state *q)
{
    if (p->l == 0)
        return 0; /* a sum of no terms: P has no mass in any column */
    if (q->l == 0)
        return HUGE_VAL;
    return p->acc / p->l + (log(q->l) - log(p->l));
}

/* Into a result that is all 0: it is long, and copying it would take as long as its logarithms. */
SKL_INLINE void skl_finish_row(int form, const double param[2], const struct skl_row_state *s, struct skl_row_result *r)
{
    const struct skl_side_state *p = &s->side[0], *q = &s->side[1];
    r->lse[0] = skl_lse_of(p), r->lse[1] = skl_lse_of(q);
    r->m[0] = p->m, r->m[1] = q->m, r->l[0] = p->l, r->l[1] = q->l;
    if (form == SKL_FORM_KL) {
        r->loss = skl_finish_kl(p, q);
    } else if (skl_sweeps(form) == 2 && p->l == 0 &&
               q->l == 0) { /* a state of the second sweep: that of the first knows no divergence yet */
        struct skl_closed closed = skl_close(form, param, p->acc, q->acc);
        r->loss = closed.loss, r->c[0] = closed.c[0], r->c[1] = closed.c[1];
    }
}

/* A target t that is P times its sum S, and not divided by it: sum t (log t - log q) = S (KL(P || Q) + log S), whose
 * gradient is S times that of the KL. */
SKL_INLINE double skl_sum_of_target(const struct skl_row_result *r)
{
    return exp(r->lse[0]);
}

SKL_INLINE double skl_raw_loss(const struct skl_row_result *r)
{
    return r->lse[0] == -HUGE_VAL ? 0 : skl_sum_of_target(r) * (r->loss + r->lse[0]);
}

/* ----------------------------------------------------------------------------------------------- reduction --- */

/* The value from the weighted sum of the losses. A mean is 0 when no row has a weight other than 0. */
SKL_INLINE double skl_reduced(double sum, int mean, int any_weight, double weight_sum)
{
    return !mean ? sum : any_weight ? sum / weight_sum : 0;
}

/* A row's upstream gradient in the reduced loss. */
SKL_INLINE double skl_upstream(double weight, int mean, double weight_sum)
{
    return weight / (mean ? weight_sum : 1);
}

#endif
