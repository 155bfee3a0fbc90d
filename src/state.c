/* SPDX-License-Identifier: Apache-2.0
 * A row's state: merging the states of two sets of columns, and reading the divergence off a complete one. */
#include "error.h"
#include "float_mode.h"
#include "work.h"

#include <math.h>

static double larger(double a, double b)
{
    return b > a ? b : a;
}

/* The factor of sums when their reference rises from m to 'to'; 1 when neither has seen a column. */
static double factor_of(double m, double to)
{
    return m == to ? 1 : exp(m - to);
}

/* Two sets of columns under common references. Each acc moves as if it were that of KL(this side || the other): for a KL
 * one of them is, and nobody reads the other; JSD's second sweep has l = 0, and its accs are only added. */
void skl_merge_row(struct skl_row_state *into, const struct skl_row_state *from)
{
    struct skl_row_state sum;
    double m[2] = {larger(into->side[0].m, from->side[0].m), larger(into->side[1].m, from->side[1].m)};
    for (int side = 0; side < 2; side++) {
        const struct skl_row_state *each[2] = {into, from};
        sum.side[side] = (struct skl_side_state){m[side], 0, 0};
        for (int k = 0; k < 2; k++) {
            const struct skl_side_state *p = &each[k]->side[side], *q = &each[k]->side[!side];
            double f = factor_of(p->m, m[side]), shift = (p->m - m[side]) - (q->m - m[!side]);
            sum.side[side].l += p->l * f;
            sum.side[side].acc += skl_moved_acc(p->acc, p->l, shift, f);
        }
    }
    *into = sum;
}

struct skl_state skl_public_state(const struct skl_work *w, const struct skl_row_state *row)
{
    const struct skl_side_state *s = &row->side[w->student], *t = &row->side[!w->student];
    return (struct skl_state){s->m, s->l, s->acc, t->m, t->l, t->acc};
}

struct skl_row_state skl_private_state(const struct skl_work *w, const struct skl_state *state)
{
    struct skl_row_state row;
    row.side[w->student] = (struct skl_side_state){state->m_s, state->l_s, state->acc_s};
    row.side[!w->student] = (struct skl_side_state){state->m_t, state->l_t, state->acc_t};
    return row;
}

static double lse_of(const struct skl_side_state *s)
{
    return s->l == 0 ? -INFINITY : s->m + log(s->l);
}

/* KL(P || Q) = acc / l_P + log l_Q - log l_P. */
static double finish_kl(const struct skl_side_state *p, const struct skl_side_state *q)
{
    if (p->l == 0)
        return 0; /* a sum of no terms: P has no mass in any column */
    if (q->l == 0)
        return INFINITY;
    return p->acc / p->l + (log(q->l) - log(p->l));
}

struct skl_row_result skl_finish_row(const struct skl_work *w, const struct skl_row_state *s)
{
    const struct skl_side_state *p = &s->side[0], *q = &s->side[1];
    struct skl_row_result r = {.lse = {lse_of(p), lse_of(q)}, .m = {p->m, q->m}, .l = {p->l, q->l}};
    if (!w->jsd)
        r.loss = finish_kl(p, q);
    else if (p->l == 0 && q->l == 0) /* a state of the second sweep: that of the first knows no divergence yet */
        r.kl[0] = p->acc, r.kl[1] = q->acc, r.loss = w->side[0].beta * p->acc + w->side[1].beta * q->acc;
    return r;
}

void skl_put_row(const struct skl_work *w, const int64_t at[3], const struct skl_row_result *r)
{
    skl_row_put(&w->loss, at, r->loss);
    for (int side = 0; side < 2; side++) {
        skl_row_put(&w->side[side].lse, at, r->lse[side]);
        skl_row_put(&w->side[side].kl, at, r->kl[side]);
        skl_row_put(&w->side[side].m, at, r->m[side] / w->side[side].unit);
        skl_row_put(&w->side[side].l, at, r->l[side]);
    }
}

enum skl_status skl_merge(int64_t rows, struct skl_state *into, const struct skl_state *from)
{
    if (rows < 0)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use rows = %lld: it must not be negative", (long long)rows);
    if (rows && (!into || !from))
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s = NULL: it must point to %lld states", into ? "from" : "into",
                        (long long)rows);
    if ((uintptr_t)into % sizeof(double) || (uintptr_t)from % sizeof(double))
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s = %p: it must be aligned to %d bytes",
                        (uintptr_t)into % sizeof(double) ? "into" : "from",
                        (uintptr_t)into % sizeof(double) ? (const void *)into : (const void *)from,
                        (int)sizeof(double));
    uintptr_t bytes = (uintptr_t)rows * sizeof *into,
              distance = into < from ? (uintptr_t)from - (uintptr_t)into : (uintptr_t)into - (uintptr_t)from;
    if (distance < bytes)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use into = %p: it shares memory with from", (void *)into);
    static const struct skl_work any_order; /* the rule is the same for both sides */
    struct skl_float_mode mode = skl_enter_float_mode();
    for (int64_t i = 0; i < rows; i++) {
        struct skl_row_state x = skl_private_state(&any_order, &into[i]), y = skl_private_state(&any_order, &from[i]);
        skl_merge_row(&x, &y);
        into[i] = skl_public_state(&any_order, &x);
    }
    skl_leave_float_mode(mode);
    return SKL_OK;
}
