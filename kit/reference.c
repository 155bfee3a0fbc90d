/* SPDX-License-Identifier: Apache-2.0 */
#include "reference.h"

#include "formulas.h"
#include "labels.h"
#include "logits.h"
#include "support.h"

#include <math.h>
#include <stdlib.h>

/* ------------------------------------------------------------------------------------------- addressing --- */

/* Value of a tensor over the rows. */
static double of_row(const struct skl_problem *p, const struct skl_tensor *t, int64_t row)
{
    return kit_element(t, kit_row_offset(t, p->s.a.shape, p->s.a.ndim - 1, row));
}

/* Which of b's matrices [columns, D] a row meets, counted in row-major order over b's leading dimensions. Query heads
 * share key heads in groups of H / Hkv neighbours. */
static int64_t matrix_of_row(const struct skl_problem *p, const struct skl_side *side, int64_t row)
{
    if (p->use != SKL_ATTENTION)
        return 0;
    int64_t heads = side->a.shape[1], key_heads = side->b.shape[1], queries = side->a.shape[2];
    int64_t head = row / queries % heads, batch = row / queries / heads; /* of a mixture: of no use */
    return batch * key_heads + head / (heads / key_heads);
}

static int64_t matrix_offset(const struct skl_problem *p, const struct skl_side *side, int64_t matrix)
{
    return p->use == SKL_ATTENTION ? kit_row_offset(&side->b, side->b.shape, 2, matrix) : 0;
}

/* 0 of a teacher that there is not. */
static int64_t width(const struct skl_side *side)
{
    return side->a.data ? side->a.shape[side->a.ndim - 1] : 0;
}

static int64_t height(const struct skl_side *side)
{
    return side->b.data ? side->b.shape[side->b.ndim - 2] : 0;
}

int64_t skl_reference_rows(const struct skl_problem *p)
{
    int64_t rows = 1;
    for (int k = 0; k < p->s.a.ndim - 1; k++) rows *= p->s.a.shape[k];
    return rows;
}

int64_t skl_reference_columns(const struct skl_problem *p)
{
    return p->columns > 0 ? p->columns : height(&p->s);
}

static int64_t offset(const struct skl_tensor *t, int64_t i)
{
    return (int64_t)kit_element(t, i * t->stride[0]);
}

/* Packed: the sequence of a query. */
static int64_t sequence_of(const struct skl_problem *p, int64_t query)
{
    int64_t k = 0;
    while (offset(&p->cu_seqlens_q, k + 1) <= query) k++;
    return k;
}

/* From which what rows are told of columns is counted. */
static int64_t first_column(const struct skl_problem *p, int64_t row)
{
    return p->cu_seqlens_q.data ? offset(&p->cu_seqlens_k, sequence_of(p, row % p->s.a.shape[2])) : 0;
}

void skl_reference_range(const struct skl_problem *p, int64_t row, int64_t *lo, int64_t *hi)
{
    int64_t columns = skl_reference_columns(p), query = 0, queries = 0, first = 0;
    if (p->use == SKL_ATTENTION)
        queries = p->s.a.shape[2], query = row % queries;
    if (p->cu_seqlens_q.data) { /* of the row's own sequence; its columns are counted from 0 until the end */
        int64_t k = sequence_of(p, query);
        query -= offset(&p->cu_seqlens_q, k);
        queries = offset(&p->cu_seqlens_q, k + 1) - offset(&p->cu_seqlens_q, k);
        first = offset(&p->cu_seqlens_k, k);
        columns = offset(&p->cu_seqlens_k, k + 1) - first;
    }
    *lo = 0, *hi = columns;
    if (p->use == SKL_ATTENTION) {
        int64_t diagonal = query + columns - queries;
        if (p->causal && *hi > diagonal + 1)
            *hi = diagonal + 1;
        if (p->window_left >= 0 && diagonal - *lo > p->window_left)
            *lo = diagonal - p->window_left;
        if (p->window_right >= 0 && *hi - 1 - diagonal > p->window_right)
            *hi = diagonal + p->window_right + 1;
    }
    if (p->begin.data) {
        int64_t begin = (int64_t)of_row(p, &p->begin, row);
        *lo = *lo > begin ? *lo : begin;
    }
    if (p->end.data) {
        int64_t end = (int64_t)of_row(p, &p->end, row);
        *hi = *hi < end ? *hi : end;
    }
    *lo += first, *hi += first;
}

/* Without weights, a row whose label is ignored takes no part. */
static double weight_of_row(const struct skl_problem *p, int64_t row)
{
    return p->weight.data ? of_row(p, &p->weight, row) : p->labels && kit_label(p, row) < 0 ? 0 : 1;
}

static double total_weight(const struct skl_problem *p)
{
    double total = 0;
    if (p->num_items > 0)
        return p->num_items;
    for (int64_t row = 0; row < skl_reference_rows(p); row++) total += weight_of_row(p, row);
    return total;
}

static double upstream(const struct skl_problem *p, int64_t row, double total)
{
    double weight = weight_of_row(p, row);
    return weight == 0 ? 0 : p->reduction == SKL_MEAN ? weight / total : weight;
}

double skl_reference_upstream(const struct skl_problem *p, int64_t row)
{
    return upstream(p, row, p->reduction == SKL_MEAN ? total_weight(p) : 1);
}

/* ---------------------------------------------------------------------------------------------- one row --- */

static int64_t batch_of(const struct skl_problem *p, int64_t row)
{
    return row / (p->s.a.shape[1] * p->s.a.shape[2]);
}

/* -inf in place of what attention does not list. Is any column left? */
static int hide(const struct skl_problem *p, int64_t row, int64_t lo, int64_t n, double *z)
{
    return !p->support.data || kit_hide(p, batch_of(p, row), row % p->s.a.shape[2], lo, n, z);
}

/* Of attention: which head it is. */
static int64_t head_of_row(const struct skl_problem *p, int64_t row)
{
    return row / p->s.a.shape[2] % p->s.a.shape[1];
}

/* n columns, and behind them the sink if there is one. */
static void distribution_of_row(const struct skl_problem *p, const struct skl_side *side, int64_t row, int64_t lo,
                                int64_t n, struct kit_distribution *of)
{
    int64_t a = kit_row_offset(&side->a, side->a.shape, side->a.ndim - 1, row), all = n + kit_sinks(p);
    kit_logits(p, side, a, matrix_offset(p, side, matrix_of_row(p, side, row)), lo, n, of->logp, of->slope);
    hide(p, row, lo, n, of->logp);
    if (all > n) {
        of->logp[n] = kit_sink(p, side == &p->s ? &p->sink_s : &p->sink_t, head_of_row(p, row));
        of->slope[n] = 1 / p->temperature;
    }
    of->lse = kit_log_sum_exp(all, of->logp);
    for (int64_t j = 0; j < all; j++) of->logp[j] = of->lse == -INFINITY ? -INFINITY : of->logp[j] - of->lse;
}

/* The teacher as a mixture of heads: log t of every column, which is divided by its sum unless it is to stay as it is.
 * It has no gradient. Returns the largest |LSE| of the heads. */
static double mixture_of_row(const struct skl_problem *p, int64_t row, int64_t lo, int64_t n,
                             struct kit_distribution *of)
{
    int64_t queries = p->s.a.shape[2], heads = p->s.a.shape[1], all = n + kit_sinks(p);
    double largest = kit_log_target(p, row / queries / heads, head_of_row(p, row), row % queries, lo, n, of->logp,
                                    of->slope);
    of->lse = kit_log_sum_exp(all, of->logp);
    for (int64_t j = 0; j < all; j++) {
        of->logp[j] = of->lse == -INFINITY ? -INFINITY : of->logp[j] - of->lse;
        of->dz[j] = of->slope[j] = 0;
    }
    return largest;
}

/* dz back through slope = dz/dx into x = <a, b> + bias, and through x into a's row: da = sum_j dx[j] b[j]. */
static void side_gradients(const struct skl_problem *p, const struct skl_side *side, int64_t row, int64_t lo, int64_t n,
                           const struct kit_distribution *of, double *grad_x, double *grad_a)
{
    int64_t b = matrix_offset(p, side, matrix_of_row(p, side, row));
    for (int64_t j = 0; j < n; j++) {
        double dx = of->dz[j] * of->slope[j];
        int64_t bj = b + (lo + j) * side->b.stride[side->b.ndim - 2];
        if (grad_x)
            grad_x[lo + j] = dx;
        for (int64_t d = 0; grad_a && d < width(side); d++) grad_a[d] += dx * kit_element(&side->b, bj + d);
    }
}

static void fill(double *x, int64_t n, double value)
{
    for (int64_t i = 0; x && i < n; i++) x[i] = value;
}

/* What one side of a row tells: its keys, and the entropy of all its columns. */
static struct kit_told tell_side(const struct skl_problem *p, int64_t row, int64_t lo, int64_t n, const double *logp)
{
    struct kit_told told = kit_tell(p, row, lo - first_column(p, row), n, logp);
    double sink = kit_sinks(p) ? exp(logp[n]) : 0;
    told.entropy -= sink > 0 ? sink * logp[n] : 0;
    told.top1 = n > 0 ? told.top1 : 0;
    return told;
}

static void tell(const struct skl_problem *p, int64_t row, int64_t lo, int64_t n, const struct kit_distribution *P,
                 const struct kit_distribution *Q, struct skl_reference_row *out)
{
    struct kit_told s = tell_side(p, row, lo, n, Q->logp), t = {0};
    int64_t all = n + kit_sinks(p);
    out->entropy_s = s.entropy, out->top1_s = s.top1, out->margin_s = s.margin, out->mass_s = s.mass;
    if (!p->t.a.data)
        return;
    int student_first = p->divergence == SKL_REVERSE_KL || p->divergence == SKL_SKEW_REVERSE_KL;
    t = tell_side(p, row, lo, n, P->logp);
    out->entropy_t = t.entropy, out->top1_t = t.top1, out->margin_t = t.margin, out->mass_t = t.mass;
    out->reverse = student_first ? kit_kl(all, P->logp, Q->logp) : kit_kl(all, Q->logp, P->logp);
    out->jsd = kit_jsd(all, P->logp, Q->logp), out->tv = kit_variation(all, P->logp, Q->logp);
}

/* The sink, behind n columns. */
static void tell_sink(int64_t n, const struct kit_distribution *P, const struct kit_distribution *Q,
                      struct skl_reference_row *out)
{
    out->log_sink_p = P->logp[n], out->log_sink_q = Q->logp[n];
    out->sink_mass_t = exp(P->logp[n]), out->sink_mass_s = exp(Q->logp[n]);
    out->grad_sink_t = P->dz[n] * P->slope[n], out->grad_sink_s = Q->dz[n] * Q->slope[n];
}

/* Labels: the loss becomes a weighted sum, and so does the student's dz, at the temperature of the divergence. z has
 * room for n. */
static void add_labels(const struct skl_problem *p, int64_t row, int64_t lo, int64_t n, double g,
                       struct kit_distribution *P, struct kit_distribution *Q, double *z, struct skl_reference_row *out)
{
    double T = p->temperature, largest = -INFINITY, *dz = z + n;
    int64_t label = kit_label(p, row) - lo;
    label = label >= 0 && label < n && kit_label(p, row) >= 0 ? label : -1;
    for (int64_t j = 0; j < n; j++) z[j] = T * (P->logp[j] + P->lse);
    if (label >= 0 && p->t.a.data)
        out->lse1_t = kit_log_sum_exp(n, z), out->logprob_t = z[label] - out->lse1_t;
    for (int64_t j = 0; j < n; j++) z[j] = T * (Q->logp[j] + Q->lse), largest = fmax(largest, z[j]);
    kit_add_label(p, label, n, z, g, out, dz);
    if (label >= 0)
        out->logprob_s = z[label] - kit_log_sum_exp(n, z);
    for (int64_t j = 0; j < n; j++) {
        P->dz[j] *= p->labels->kl_weight;
        Q->dz[j] = p->labels->kl_weight * Q->dz[j] + T * dz[j];
        if (out->grad_x_labels)
            out->grad_x_labels[lo + j] = T * dz[j] * Q->slope[j];
    }
    for (int64_t j = 0; out->log_q1 && label >= 0 && j < n; j++) out->log_q1[lo + j] = z[j] - out->lse1_s;
    out->m_s = largest, out->l_s = 1, out->l1_s = 1; /* which ones is the engine's own affair: kit_open */
}

int skl_reference_row(const struct skl_problem *p, int64_t row, double g, struct skl_reference_row *out)
{
    int64_t columns = skl_reference_columns(p), lo, hi;
    skl_reference_range(p, row, &lo, &hi);
#define ROW(field, id, needs, column, bound) out->field = 0;
    KIT_ROW_RESULTS(ROW)
#undef ROW
    out->lse_s = out->lse_t = out->m_s = -INFINITY;
    out->lse1_s = out->lse1_t = 0, out->margin_s = out->margin_t = INFINITY;
    fill(out->log_q1, columns, -INFINITY);
    fill(out->grad_a_s, width(&p->s), 0), fill(out->grad_a_t, width(&p->t), 0);
    fill(out->grad_x_s, columns, 0), fill(out->grad_x_t, columns, 0);
    fill(out->grad_x_labels, columns, 0);
    fill(out->log_q, columns, -INFINITY), fill(out->log_p, columns, -INFINITY);
    out->log_sink_q = out->log_sink_p = -INFINITY, out->grad_sink_s = out->grad_sink_t = 0;
    int nothing = !kit_sinks(p) && (lo >= hi || !hide(p, row, lo, hi - lo, NULL)); /* lists have no sinks */
    if (nothing || weight_of_row(p, row) == 0)
        return 0;

    int64_t n = hi > lo ? hi - lo : 0, all = n + kit_sinks(p);
    double *scratch = calloc((size_t)all * 8, sizeof *scratch);
    if (!scratch)
        return -1;
    struct kit_distribution P = {scratch, scratch + all, scratch + 2 * all, 0};
    struct kit_distribution Q = {scratch + 3 * all, scratch + 4 * all, scratch + 5 * all, 0};
    out->head_lse = 0;
    if (kit_mixes_heads(p))
        out->head_lse = mixture_of_row(p, row, lo, n, &P);
    else if (p->t.a.data)
        distribution_of_row(p, &p->t, row, lo, n, &P);
    distribution_of_row(p, &p->s, row, lo, n, &Q);
    out->lse_t = P.lse, out->lse_s = Q.lse;

    if (p->t.a.data)
        out->kl = kit_divergence_of(p, all, g, &P, &Q, &out->kl_t, &out->kl_s);
    out->loss = out->kl;
    tell(p, row, lo, n, &P, &Q, out);
    if (p->labels)
        add_labels(p, row, lo, n, g, &P, &Q, scratch + 6 * n, out);
    if (kit_sinks(p))
        tell_sink(n, &P, &Q, out);

    side_gradients(p, &p->s, row, lo, n, &Q, out->grad_x_s, out->grad_a_s);
    if (p->t.a.data)
        side_gradients(p, &p->t, row, lo, n, &P, out->grad_x_t, out->grad_a_t);
    for (int64_t j = 0; j < n; j++) {
        if (out->log_q)
            out->log_q[lo + j] = Q.logp[j];
        if (out->log_p)
            out->log_p[lo + j] = P.logp[j];
    }
    free(scratch);
    return 0;
}

/* --------------------------------------------------------------------------------------------- all rows --- */

/* x = <a, b> + bias gives db[j] += dx[j] a and dbias[j] += dx[j]. */
static void accumulate(const struct skl_problem *p, const struct skl_side *side, int64_t row, const double *grad_x,
                       const struct skl_reference_grads *into)
{
    int64_t D = width(side), columns = skl_reference_columns(p), lo, hi;
    int64_t a = kit_row_offset(&side->a, side->a.shape, side->a.ndim - 1, row);
    int64_t first = matrix_of_row(p, side, row) * height(side);
    skl_reference_range(p, row, &lo, &hi);
    for (int64_t j = lo > 0 ? lo : 0; j < hi && j < columns; j++) {
        for (int64_t d = 0; into->b && d < D; d++)
            into->b[(first + j) * D + d] += grad_x[j] * kit_element(&side->a, a + d);
        if (into->bias)
            into->bias[j] += grad_x[j];
    }
}

static void clear(const struct skl_problem *p, const struct skl_side *side, const struct skl_reference_grads *grads)
{
    int64_t matrices = p->use == SKL_ATTENTION ? side->b.shape[0] * side->b.shape[1] : 1;
    fill(grads->a, skl_reference_rows(p) * width(side), 0);
    fill(grads->b, matrices * height(side) * width(side), 0);
    fill(grads->bias, height(side), 0);
    fill(grads->sink, side->a.shape[1], 0);
}

int skl_reference_run(const struct skl_problem *p, struct skl_reference *out)
{
    int64_t rows = skl_reference_rows(p), columns = skl_reference_columns(p);
    double total = total_weight(p), value = 0;
    double *grad_x = calloc((size_t)columns * 2 + 1, sizeof *grad_x);
    if (!grad_x)
        return -1;
    clear(p, &p->s, &out->s);
    if (p->t.a.data)
        clear(p, &p->t, &out->t);
    for (int64_t row = 0; row < rows; row++) {
        struct skl_reference_row r = {0};
        double g = upstream(p, row, total);
        r.grad_a_s = out->s.a ? out->s.a + row * width(&p->s) : NULL;
        r.grad_a_t = out->t.a ? out->t.a + row * width(&p->t) : NULL;
        r.grad_x_s = grad_x, r.grad_x_t = grad_x + columns;
        if (skl_reference_row(p, row, g, &r) != 0) {
            free(grad_x);
            return -1;
        }
        if (g != 0) {
            accumulate(p, &p->s, row, r.grad_x_s, &out->s);
            if (p->t.a.data)
                accumulate(p, &p->t, row, r.grad_x_t, &out->t);
            if (out->s.sink)
                out->s.sink[head_of_row(p, row)] += r.grad_sink_s;
            if (out->t.sink)
                out->t.sink[head_of_row(p, row)] += r.grad_sink_t;
            value += g * r.loss;
        }
#define ROW(field, id, needs, column, bound) fill(out->field ? out->field + row : NULL, 1, r.field);
        KIT_ROW_RESULTS(ROW)
#undef ROW
    }
    out->value = value;
    free(grad_x);
    return 0;
}
