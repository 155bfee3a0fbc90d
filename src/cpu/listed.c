/* SPDX-License-Identifier: Apache-2.0
 *
 * A listed teacher: a few columns S with their masses p, and one number for all the others. The sweep is that of a
 * student alone over the columns off S (listed scores are taken out of a tile before it is pushed), so that the
 * student's mass there, q_rest, is never a difference from 1. On S everything is a short sum in double:
 *
 *     q_k = e^{z_k} / (e^{LSE_rest} + sum_S e^z),    q_rest = e^{LSE_rest} / (the same);    renormalise: without
 *     LSE_rest forward    D = sum_S p (log p - log q) + p_rest (log p_rest - log q_rest)
 *                dz_k = M q_k - p_k,              off S  dz_j = (M q_rest - p_rest) q_j / q_rest,      M = sum_S p +
 *                p_rest
 *     reverse    D = sum_S q (log q - log p) + q_rest (log q_rest - log p_rest)
 *                dz_k = q_k (log q_k - log p_k - D),   off S  dz_j = q_rest (log q_rest - log p_rest - D) q_j / q_rest
 *
 * Only the bucket has a p_rest; zero and teacher are the forward lines without it, with M = sum_S p. Off S, dz is one
 * factor a row times e^{z_j - LSE_rest}; on S it is written over what the tile's kernel made there.
 */
#include "run.h"

#include <string.h>

#include <math.h>

struct skl_entry *skl_entries_of(const struct skl_run *run, const struct skl_block *block, int row)
{
    return block->entries + row * run->work->listed.k;
}

struct skl_entry *skl_entry_at(const struct skl_run *run, const struct skl_block *block, int row, int64_t column)
{
    struct skl_entry *e = skl_entries_of(run, block, row);
    int64_t low = 0, high = block->lists[row].n;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (e[middle].id < column)
            low = middle + 1;
        else
            high = middle;
    }
    return e + low;
}

/* --------------------------------------------------------------------------------------------------- lists --- */

/* log(e^x + e^y) */
static double log_sum(double x, double y)
{
    double high = x > y ? x : y, low = x > y ? y : x;
    return high == -INFINITY ? low : high + log1p(exp(low - high));
}

/* By column, and of equal ones by mass, so that their sum has one order; NaN has its place behind the numbers, for the
 * same reason. */
static int before(const struct skl_entry *a, const struct skl_entry *b)
{
    if (a->id != b->id)
        return a->id < b->id;
    return isnan(b->logp) ? !isnan(a->logp) : a->logp < b->logp;
}

/* Puts x into the heap e[0..n) from place i down, where i's children are heaps: the last in order is on top. */
static void sift(struct skl_entry *e, int64_t i, int64_t n, struct skl_entry x)
{
    for (int64_t child; (child = 2 * i + 1) < n; i = child) {
        child += child + 1 < n && before(&e[child], &e[child + 1]);
        if (!before(&x, &e[child]))
            break;
        e[i] = e[child];
    }
    e[i] = x;
}

/* Heap sort, in place: qsort() of a long list may allocate, which nobody was told of and which may fail. */
static void sort(struct skl_entry *e, int64_t n)
{
    for (int64_t i = n / 2; i-- > 0;) sift(e, i, n, e[i]);
    for (int64_t last = n - 1; last > 0; last--) {
        struct skl_entry x = e[last];
        e[last] = e[0];
        sift(e, 0, last, x);
    }
}

static int64_t merge_equal(struct skl_entry *e, int64_t n)
{
    int64_t out = 0;
    for (int64_t i = 0; i < n; i++) {
        if (out && e[out - 1].id == e[i].id)
            e[out - 1].logp = log_sum(e[out - 1].logp, e[i].logp);
        else
            e[out++] = e[i];
    }
    return out;
}

/* log of the mass that is not listed; none where every column is. */
static double missing(const struct skl_work *w, const int64_t at[3], const struct skl_entry *e, int64_t n)
{
    double sum = 0;
    if (n == w->columns)
        return -INFINITY;
    if (w->listed.rest.data)
        return (double)skl_row_get(&w->listed.rest, at);
    for (int64_t i = 0; i < n; i++) sum += exp(e[i].logp);
    return sum < 1 ? log(1 - sum) : -INFINITY;
}

/* The masses at the problem's temperature and as the tail wants them. */
static struct skl_list settled(const struct skl_work *w, const int64_t at[3], struct skl_entry *e, int64_t n)
{
    const struct skl_work_listed *l = &w->listed;
    int own = l->tail == SKL_TAIL_RENORMALISE || l->tail == SKL_TAIL_TEACHER, raised = l->power != 1;
    struct skl_list list = {.n = n, .rest = own ? -INFINITY : missing(w, at, e, n)};
    double total = -INFINITY;
    for (int64_t i = 0; i < n; i++) e[i].logp *= raised ? l->power : 1;
    list.rest *= raised ? l->power : 1;
    for (int64_t i = 0; i < n; i++) total = log_sum(total, e[i].logp);
    total = log_sum(total, list.rest);
    if ((own || raised) && total != -INFINITY) {
        for (int64_t i = 0; i < n; i++) e[i].logp -= total;
        list.rest -= total;
    }
    if (l->tail != SKL_TAIL_BUCKET)
        list.rest = -INFINITY;
    list.mass = exp(list.rest);
    for (int64_t i = 0; i < n; i++) list.mass += exp(e[i].logp);
    return list;
}

void skl_pack_lists(const struct skl_run *run, struct skl_block *block, int panel)
{
    const struct skl_work *w = run->work;
    int nr = run->plan.kernels->nr;
    for (int row = panel * nr; row < block->n && row < (panel + 1) * nr; row++) {
        struct skl_entry *e = skl_entries_of(run, block, row);
        int64_t at[3], n = 0;
        memcpy(at, block->at[row], sizeof at);
        for (int64_t k = 0, id; k < w->listed.k; k++)
            if ((id = skl_listed_id(w, at, k)) >= 0)
                e[n++] = (struct skl_entry){id, skl_listed_logprob(w, at, k), -INFINITY, 0};
        sort(e, n);
        block->lists[row] = settled(w, at, e, merge_equal(e, n));
    }
}

/* --------------------------------------------------------------------------------------------------- tiles --- */

/* What an entry and its place in a tile [n][nr] do to each other. */
typedef void with_place(struct skl_entry *e, float *place);

static void each_entry(const struct skl_run *run, const struct skl_block *block, int panel, int64_t first, int n,
                       float *tile, with_place *with)
{
    int nr = run->plan.kernels->nr;
    for (int i = 0, row = panel * nr; i < nr && row < block->n; i++, row++) {
        const struct skl_entry *end = skl_entries_of(run, block, row) + block->lists[row].n;
        for (struct skl_entry *e = skl_entry_at(run, block, row, first); e < end && e->id < first + n; e++)
            with(e, tile + (e->id - first) * nr + i);
    }
}

static void take_score(struct skl_entry *e, float *place)
{
    e->x = *place;
    *place = -INFINITY;
}

static void put_score(struct skl_entry *e, float *place)
{
    *place = e->x;
}

static void put_dz(struct skl_entry *e, float *place)
{
    *place = e->dz;
}

void skl_take_listed(const struct skl_run *run, struct skl_block *block, int panel, int64_t first, int n, float *x)
{
    each_entry(run, block, panel, first, n, x, take_score);
}

void skl_put_listed(const struct skl_run *run, const struct skl_block *block, int panel, int64_t first, int n, float *x)
{
    each_entry(run, block, panel, first, n, x, put_score);
}

void skl_put_listed_dz(const struct skl_run *run, const struct skl_block *block, int panel, int64_t first, int n,
                       float *dz)
{
    each_entry(run, block, panel, first, n, dz, put_dz);
}

/* ------------------------------------------------------------------------------------------------- results --- */

/* The row's list beside the student's LSE over the columns that count: all of them, or the listed ones. */
struct against {
    const struct skl_entry *e;
    const struct skl_list *list;
    double unit, m, l, log_l; /* LSE = m + log l, and z = unit x */
    double log_q_rest;
    int renormalise, reverse;
};

/* The largest z, or m. */
static double top_of(const struct skl_entry *e, int64_t n, double unit, double m)
{
    for (int64_t k = 0; k < n; k++) m = unit * (double)e[k].x > m ? unit * (double)e[k].x : m;
    return m;
}

/* sum e^{z - m} */
static double mass_of(const struct skl_entry *e, int64_t n, double unit, double m)
{
    double l = 0;
    for (int64_t k = 0; k < n; k++) l += e[k].x == -INFINITY ? 0 : exp(unit * (double)e[k].x - m);
    return l;
}

static struct against against(const struct skl_run *run, const struct skl_block *block, int row,
                              const struct skl_row_result *r)
{
    const struct skl_work *w = run->work;
    int s = w->student;
    struct against a = {.e = skl_entries_of(run, block, row),
                        .list = &block->lists[row],
                        .unit = w->side[s].unit,
                        .m = r->m[s],
                        .l = r->l[s],
                        .renormalise = w->listed.tail == SKL_TAIL_RENORMALISE,
                        .reverse = w->listed.reverse};
    if (a.renormalise) { /* under an m of its own: columns off the list may be so large that nothing is left under theirs */
        a.m = top_of(a.e, a.list->n, a.unit, -INFINITY);
        a.l = mass_of(a.e, a.list->n, a.unit, a.m);
    }
    a.log_l = log(a.l);
    a.log_q_rest = r->l_rest == 0 || a.renormalise ? -INFINITY : (r->m_rest - a.m) + (log(r->l_rest) - a.log_l);
    return a;
}

static double log_q(const struct against *a, int64_t k)
{
    return (a->unit * (double)a->e[k].x - a->m) - a->log_l;
}

/* p log(p / q); no mass, no contribution. */
static double term(double log_p, double log_q)
{
    double p = exp(log_p);
    return p == 0 ? 0 : p * (log_p - log_q);
}

static double divergence(const struct against *a, int bucket)
{
    double sum = 0;
    if (a->l == 0)
        return INFINITY; /* the student has no mass at all */
    for (int64_t k = 0; k < a->list->n; k++)
        sum += a->reverse ? term(log_q(a, k), a->e[k].logp) : term(a->e[k].logp, log_q(a, k));
    if (bucket)
        sum += a->reverse ? term(a->log_q_rest, a->list->rest) : term(a->list->rest, a->log_q_rest);
    return sum;
}

void skl_finish_listed(const struct skl_run *run, const struct skl_block *block, int panel, int i,
                       struct skl_row_result *r)
{
    const struct skl_work *w = run->work;
    int row = panel * run->plan.kernels->nr + i, s = w->student;
    double unit = w->side[s].unit;
    if (row >= block->n)
        return;
    const struct skl_entry *e = skl_entries_of(run, block, row);
    int64_t n = block->lists[row].n;
    double m = r->m[s], l = r->l[s];
    r->m_rest = m, r->l_rest = l;
    m = top_of(e, n, unit, m);
    if (m > -INFINITY && l != 0)
        l *= exp(r->m_rest - m);
    l += mass_of(e, n, unit, m);
    r->m[s] = m, r->l[s] = l;
    r->lse[s] = l == 0 ? -INFINITY : m + log(l);
    struct against a = against(run, block, row, r);
    r->divergence = divergence(&a, w->listed.tail == SKL_TAIL_BUCKET);
}

/* ------------------------------------------------------------------------------------------------ gradient --- */

/* dz of a category, from the logarithms of its two masses. */
static double slope(const struct against *a, double log_p, double log_q, double d)
{
    double q = exp(log_q);
    if (a->reverse)
        return q == 0 ? 0 : q * (log_q - log_p - d);
    return a->list->mass * q - exp(log_p);
}

/* After the labels' factors, which refer to the student's LSE over all columns: here columns off the list get those of
 * their own LSE. */
void skl_set_listed_factors(const struct skl_run *run, struct skl_block *block, int panel, int i, double g,
                            const struct skl_row_result *r)
{
    const struct skl_work *w = run->work;
    struct skl_panel_factors *f = &block->factors[panel];
    int row = panel * run->plan.kernels->nr + i, s = w->student;
    f->g[s][i] = 0; /* so that skip_below is a share of what is at hand */
    if (row >= block->n)
        return;
    struct against a = against(run, block, row, r);
    struct skl_entry *e = skl_entries_of(run, block, row);
    double G = g * w->labels.kl_weight * w->side[s].chain, own = (double)f->own[s][i];
    int massless = a.l == 0;
    for (int64_t k = 0; k < a.list->n; k++) {
        double dz = G == 0 || massless ? 0 : G * slope(&a, e[k].logp, log_q(&a, k), r->divergence);
        double q = own == 0 ? 0 : exp(a.unit * (double)e[k].x - r->m[s]) / r->l[s];
        e[k].dz = (float)(dz + own * q);
    }
    double dz = G == 0 || massless || a.renormalise ? 0 : G * slope(&a, a.list->rest, a.log_q_rest, r->divergence);
    double q = own == 0 || r->l_rest == 0 ? 0 : exp(r->m_rest - r->m[s]) * r->l_rest / r->l[s];
    f->own[s][i] = r->l_rest == 0 ? 0 : (float)(dz + own * q);
    f->m[s][i] = r->l_rest == 0 ? INFINITY : (float)(r->m_rest / a.unit);
    f->prob[s][i] = r->l_rest == 0 ? 0 : (float)(1 / r->l_rest);
}
