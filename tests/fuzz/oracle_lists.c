/* SPDX-License-Identifier: Apache-2.0 */
#include "oracle_lists.h"

#include <stdlib.h>

/* The teacher of one row: log-masses, NAN off the list; the rest's, and how far off that may be, as a part of it. */
struct masses {
    double *log_p, log_rest, rest_off, sum;
    int64_t listed;
};

static double log_add(double x, double y)
{
    double top = larger(x, y);
    return top == -INFINITY ? top : top + log(exp(x - top) + exp(y - top));
}

/* What is missing to 1, or given; none where every column is listed or the rest does not count. */
static void rest_of(const struct call *c, int64_t row, struct masses *m)
{
    double sum = 0;
    m->log_rest = -INFINITY, m->rest_off = 0;
    if (c->listed.tail == SKL_TAIL_RENORMALISE || c->listed.tail == SKL_TAIL_TEACHER || m->listed == c->columns)
        return;
    if (c->list_rest.memory) {
        m->log_rest = view_get(&c->list_rest.t, row);
        return;
    }
    for (int64_t j = 0; j < c->columns; j++) sum += isnan(m->log_p[j]) ? 0 : exp(m->log_p[j]);
    if (sum < 1)
        m->log_rest = log(1 - sum), m->rest_off = 0x1p-50 * (double)(m->listed + 4) / (1 - sum);
}

static void masses_of(const struct call *c, int64_t row, struct masses *m)
{
    double stored = c->listed.stored_temperature, power = (stored > 0 ? stored : 1) / c->p.temperature, total = 0;
    int own = c->listed.tail == SKL_TAIL_RENORMALISE || c->listed.tail == SKL_TAIL_TEACHER;
    for (int64_t j = 0; j < c->columns; j++) m->log_p[j] = (double)NAN;
    m->listed = 0;
    for (int64_t k = 0; k < c->k; k++) {
        int64_t id = (int64_t)view_get(&c->list_ids.t, row * c->k + k);
        double x = view_get(&c->list_logprobs.t, row * c->k + k);
        if (id < 0)
            continue;
        m->listed += isnan(m->log_p[id]);
        m->log_p[id] = isnan(m->log_p[id]) ? x : log_add(m->log_p[id], x);
    }
    rest_of(c, row, m);
    if (own || power != 1) {
        m->log_rest = power * m->log_rest, m->rest_off *= power;
        total = m->log_rest;
        for (int64_t j = 0; j < c->columns; j++)
            if (!isnan(m->log_p[j]))
                m->log_p[j] *= power, total = log_add(total, m->log_p[j]);
    }
    if (total == -INFINITY) /* nobody has any mass */
        total = 0;
    m->log_rest = c->listed.tail == SKL_TAIL_BUCKET ? m->log_rest - total : -INFINITY;
    m->sum = exp(m->log_rest);
    for (int64_t j = 0; j < c->columns; j++) {
        m->log_p[j] -= total;
        m->sum += isnan(m->log_p[j]) ? 0 : exp(m->log_p[j]);
    }
}

/* The columns that are listed (1), or not (0), as a distribution of their own. */
static int64_t part_of(const struct distribution *S, const struct masses *m, int64_t n, int listed,
                       struct distribution *to)
{
    int64_t count = 0;
    for (int64_t j = 0; j < n; j++)
        if (isnan(m->log_p[j]) != listed)
            to->z[count] = S->z[j], to->delta[count++] = S->delta[j];
    to->lse = -INFINITY, to->dlse = 0;
    if (count)
        distribution_probabilities(to, count, 0);
    return count;
}

/* One category: log p, log q, q, how far off log q and q are. */
struct category {
    double log_p, log_q, q, dlog, dq;
};

static double term(const struct category *k, int reverse)
{
    double w = k->log_p - k->log_q;
    return reverse ? times(k->q, -w) : times(exp(k->log_p), w);
}

/* How far off the term may be where single sensitivities do not hold, and the sizes that roundings in double are parts
 * of. */
static double term_error(const struct category *k, int reverse)
{
    double w = fabs(k->log_p - k->log_q), p = exp(k->log_p);
    return reverse ? times(k->dq, w) + times(k->q + k->dq, k->dlog) : times(p, k->dlog);
}

/* dz of the category, and its error. dD: that of the divergence. */
static double slope(const struct category *k, const struct masses *m, int reverse, double D, double dD, double *off)
{
    double w = k->log_q - k->log_p, p = exp(k->log_p);
    if (!reverse) {
        *off = m->sum * k->dq + 3 * U * (m->sum * k->q + p);
        return m->sum * k->q - p;
    }
    *off = times(k->dq, fabs(w - D)) + times(k->q + k->dq, k->dlog + dD) +
           times(4 * U * k->q, fabs(k->log_q) + fabs(k->log_p) + fabs(D));
    return times(k->q, w - D);
}

/* A row: the student over all columns, off the list and on it, the teacher, and the category of the rest. */
struct lists {
    struct distribution *S, part[2];
    struct masses m;
    struct category rest;
    int64_t n, others;
    int support, reverse, bucket;
};

/* The mass off the list by its odds against that on it. */
static struct category rest_of_student(const struct lists *l)
{
    const struct distribution *off = &l->part[0], *on = &l->part[1];
    struct category k = {.log_p = l->m.log_rest, .log_q = off->lse - l->S->lse};
    double odds = off->lse - on->lse, s = on->dlse + off->dlse, at = distribution_logistic(odds);
    k.q = exp(k.log_q), k.dlog = l->S->dlse + off->dlse;
    k.dq = larger(distribution_logistic(odds + s) - at, at - distribution_logistic(odds - s)) + U * k.q;
    return k;
}

/* Column j, which is listed, the i-th of those. */
static struct category listed_category(const struct lists *l, int64_t i, int64_t j)
{
    const struct distribution *q = l->support ? &l->part[1] : l->S;
    int64_t at = l->support ? i : j;
    return (struct category){l->m.log_p[j], q->lp[at], q->p[at], q->delta[at] + q->dlse, q->dp[at]};
}

static double divergence(const struct lists *l, double *whole, double *used)
{
    double D = l->bucket ? term(&l->rest, l->reverse) : 0;
    *whole = l->bucket ? term_error(&l->rest, l->reverse) : 0, *used = 0;
    for (int64_t i = 0, j = 0; j < l->n; j++) {
        int on = !isnan(l->m.log_p[j]);
        if (on) {
            struct category k = listed_category(l, i++, j);
            D += term(&k, l->reverse), *whole += term_error(&k, l->reverse);
        }
        if (l->S->p[j] + (on ? exp(l->m.log_p[j]) : 0) > 1e-12)
            *used = larger(*used, l->S->delta[j]);
    }
    return D;
}

/* dz and ddz; returns sum |dz| delta. dD: the error of D. */
static double gradient(const struct lists *l, double D, double dD)
{
    struct distribution *S = l->S;
    int64_t at[2] = {0, 0};
    int counts = l->others && !l->support && (!l->reverse || l->bucket);
    double off = 0, dz = counts ? slope(&l->rest, &l->m, l->reverse, D, dD, &off) : 0, linear = 0;
    double sizes = counts ? l->m.sum * l->rest.q + exp(l->m.log_rest) + fabs(dz) : 0;
    for (int64_t j = 0; j < l->n; j++) {
        int on = !isnan(l->m.log_p[j]);
        int64_t i = at[on]++;
        if (on) {
            struct category k = listed_category(l, i, j);
            S->dz[j] = slope(&k, &l->m, l->reverse, D, dD, &S->ddz[j]);
        } else {
            S->dz[j] = dz * l->part[0].p[i];
            S->ddz[j] = off * l->part[0].p[i] + sizes * l->part[0].dp[i] + 4 * U * fabs(S->dz[j]);
        }
        S->factor[j] = larger(l->m.sum, 1) + fabs(D);
        linear += times(fabs(S->dz[j]), S->delta[j]);
    }
    return linear;
}

struct listed_row oracle_listed_row(const struct call *c, int64_t row, struct distribution *S)
{
    int64_t n = c->columns;
    struct lists l = {.S = S, .n = n, .support = c->listed.tail == SKL_TAIL_RENORMALISE};
    double *memory = distribution_room((2 * ARRAYS + 1) * n), whole, used;
    for (int i = 0; i < 2; i++) distribution_place(&l.part[i], memory + i * ARRAYS * n, n);
    l.m.log_p = memory + 2 * ARRAYS * n;
    masses_of(c, row, &l.m);
    l.others = part_of(S, &l.m, n, 0, &l.part[0]);
    part_of(S, &l.m, n, 1, &l.part[1]);
    l.reverse = c->p.divergence == SKL_REVERSE_KL, l.bucket = c->listed.tail == SKL_TAIL_BUCKET && l.others;
    l.rest = rest_of_student(&l);
    double D = divergence(&l, &whole, &used), linear = gradient(&l, D, 0);
    /* Sums of f32 exponentials, and what is left of the rounding of a rest. */
    double noise = larger(l.m.sum, 1) * (6 * U + U * sqrt(smaller((double)n, 192))) + 2 * U * fabs(D);
    if (l.bucket)
        noise += times(l.reverse ? l.rest.q : exp(l.m.log_rest) * (1 + fabs(l.m.log_rest)), l.m.rest_off);
    struct listed_row r = {D, spread_error(linear, whole, used) + noise, l.part[0].lse, l.part[0].dlse};
    gradient(&l, D, r.bound);
    free(memory);
    return r;
}
