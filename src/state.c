/* SPDX-License-Identifier: Apache-2.0
 * A row's state: merging the states of two sets of columns, and reading the divergence off a complete one. */
#include "error.h"
#include "work.h"

#include <math.h>

/* (m, l, acc) of two sets of columns under their common maximum. acc of +inf is mathematics and stays. */
static void merge_side(struct skl_side_state *a, const struct skl_side_state *b)
{
    double m = b->m > a->m ? b->m : a->m;
    double f_a = a->m == m ? 1 : exp(a->m - m), f_b = b->m == m ? 1 : exp(b->m - m);
    a->l = a->l * f_a + b->l * f_b;
    a->acc = (isinf(a->acc) ? a->acc : a->acc * f_a) + (isinf(b->acc) ? b->acc : b->acc * f_b);
    a->m = m;
}

void skl_merge_row(struct skl_row_state *into, const struct skl_row_state *from)
{
    merge_side(&into->side[0], &from->side[0]);
    merge_side(&into->side[1], &from->side[1]);
}

struct skl_state skl_public_state(const struct skl_work *w, const struct skl_row_state *r)
{
    const struct skl_side_state *s = &r->side[w->student], *t = &r->side[!w->student];
    return (struct skl_state){s->m, s->l, s->acc, t->m, t->l, t->acc};
}

struct skl_row_state skl_private_state(const struct skl_work *w, const struct skl_state *x)
{
    struct skl_row_state r;
    r.side[w->student] = (struct skl_side_state){x->m_s, x->l_s, x->acc_s};
    r.side[!w->student] = (struct skl_side_state){x->m_t, x->l_t, x->acc_t};
    return r;
}

static double lse_of(const struct skl_side_state *s)
{
    return s->l == 0 ? -INFINITY : s->m + log(s->l);
}

/* KL(P || Q) = acc / l_P + LSE_Q - LSE_P. */
static double finish_kl(const struct skl_side_state *p, double lse_p, double lse_q)
{
    if (lse_p == -INFINITY)
        return 0; /* a sum of no terms: P has no mass in any column */
    if (lse_q == -INFINITY)
        return INFINITY;
    return p->acc / p->l + (lse_q - lse_p);
}

struct skl_row_result skl_finish_row(const struct skl_work *w, const struct skl_row_state *s)
{
    const struct skl_side_state *p = &s->side[0], *q = &s->side[1];
    struct skl_row_result r = {.lse = {lse_of(p), lse_of(q)}, .kl = {p->acc, q->acc}};
    r.loss = w->jsd ? w->side[0].beta * r.kl[0] + w->side[1].beta * r.kl[1] : finish_kl(p, r.lse[0], r.lse[1]);
    return r;
}

void skl_put_row(const struct skl_work *w, const int64_t at[3], const struct skl_row_result *r)
{
    skl_row_put(&w->loss, at, r->loss);
    for (int side = 0; side < 2; side++) {
        skl_row_put(&w->side[side].lse, at, r->lse[side]);
        skl_row_put(&w->side[side].kl, at, r->kl[side]);
    }
}

enum skl_status skl_merge(int64_t rows, struct skl_state *into, const struct skl_state *from)
{
    if (rows < 0)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use rows = %lld: it must not be negative", (long long)rows);
    if (rows && (!into || !from))
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s = NULL: it must point to %lld states", into ? "from" : "into",
                        (long long)rows);
    static const struct skl_work any_order; /* the rule is the same for both sides */
    for (int64_t i = 0; i < rows; i++) {
        struct skl_row_state x = skl_private_state(&any_order, &into[i]), y = skl_private_state(&any_order, &from[i]);
        skl_merge_row(&x, &y);
        into[i] = skl_public_state(&any_order, &x);
    }
    return SKL_OK;
}
