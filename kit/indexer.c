/* SPDX-License-Identifier: Apache-2.0 */
#include "indexer.h"

#include "logits.h"
#include "memory.h"
#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double of_row(const struct skl_tensor *t, int64_t b, int64_t i)
{
    return kit_element(t, b * t->stride[0] + i * t->stride[1]);
}

static double of_offset(const struct skl_tensor *t, int64_t i)
{
    return kit_element(t, i * t->stride[0]);
}

void kit_index_range(const struct skl_problem *p, int64_t b, int64_t i, int64_t *lo, int64_t *hi)
{
    int64_t columns = p->columns > 0 ? p->columns : p->s.b.shape[2], queries = p->s.a.shape[2], query = i, first = 0;
    const struct skl_tensor *q = &p->cu_seqlens_q, *k = &p->cu_seqlens_k;
    for (int64_t s = 0; q->data && s + 1 < q->shape[0]; s++) {
        int64_t row = (int64_t)of_offset(q, s), end = (int64_t)of_offset(q, s + 1);
        if (i < row || i >= end)
            continue;
        query = i - row, queries = end - row, first = (int64_t)of_offset(k, s);
        columns = (int64_t)of_offset(k, s + 1) - first;
    }
    int64_t diagonal = query + columns - queries;
    *lo = 0, *hi = columns;
    if (p->causal && *hi > diagonal + 1)
        *hi = diagonal + 1;
    if (p->window_left >= 0 && diagonal - p->window_left > *lo)
        *lo = diagonal - p->window_left;
    if (p->window_right >= 0 && diagonal + p->window_right + 1 < *hi)
        *hi = diagonal + p->window_right + 1;
    if (p->begin.data)
        *lo = (int64_t)fmax((double)*lo, of_row(&p->begin, b, i));
    if (p->end.data)
        *hi = (int64_t)fmin((double)*hi, of_row(&p->end, b, i));
    *lo += first, *hi += first;
}

static double weight_of_row(const struct skl_problem *p, int64_t b, int64_t i)
{
    return p->weight.data ? of_row(&p->weight, b, i) : 1;
}

void kit_index_logits(const struct skl_problem *p, int64_t b, int64_t i, int64_t lo, int64_t n, double *s, double *z)
{
    const struct skl_tensor *q = &p->s.a, *k = &p->s.b, *w = &p->s.bias;
    double scale = (p->s.scale != 0 ? p->s.scale : 1) / p->temperature;
    for (int64_t j = 0; j < n; j++) {
        z[j] = 0;
        for (int64_t h = 0; h < q->shape[1]; h++) {
            double x = 0;
            for (int64_t d = 0; d < q->shape[3]; d++)
                x += kit_element(q, b * q->stride[0] + h * q->stride[1] + i * q->stride[2] + d) *
                     kit_element(k, b * k->stride[0] + (lo + j) * k->stride[2] + d);
            s[h * n + j] = x;
            double act = p->identity || x > 0 ? x : 0;
            z[j] += scale * kit_element(w, b * w->stride[0] + i * w->stride[1] + h * w->stride[2]) * act;
        }
    }
}

/* to and to2, if there are any, get a term and its square. */
static void add_term(double *to, double *to2, int64_t at, double term)
{
    if (to)
        to[at] += term;
    if (to2)
        to2[at] += term * term;
}

/* dz of the row into the operands. */
static void back(const struct skl_problem *p, int64_t b, int64_t i, int64_t lo, int64_t n, const double *s,
                 const double *dz, struct kit_indexer *out)
{
    const struct skl_tensor *q = &p->s.a, *k = &p->s.b, *w = &p->s.bias;
    int64_t H = q->shape[1], N = q->shape[2], M = k->shape[2], D = q->shape[3];
    double scale = (p->s.scale != 0 ? p->s.scale : 1) / p->temperature;
    for (int64_t h = 0; h < H; h++) {
        double wh = kit_element(w, b * w->stride[0] + i * w->stride[1] + h * w->stride[2]);
        for (int64_t j = 0; j < n; j++) {
            if (!p->identity && !(s[h * n + j] > 0))
                continue;
            double dx = dz[j] * scale * wh;
            add_term(out->dw, out->dw2, (b * N + i) * H + h, dz[j] * scale * s[h * n + j]);
            for (int64_t d = 0; d < D; d++) {
                add_term(out->da, out->da2, ((b * H + h) * N + i) * D + d,
                         dx * kit_element(k, b * k->stride[0] + (lo + j) * k->stride[2] + d));
                add_term(out->db, out->db2, (b * M + lo + j) * D + d,
                         dx * kit_element(q, b * q->stride[0] + h * q->stride[1] + i * q->stride[2] + d));
            }
        }
    }
}

/* Loss and dz of one row, forward KL from the target t = e^{log_t}, divided by its sum or not. */
static double forward_kl(const struct skl_problem *p, int64_t n, double g, double lse, const double *z,
                         const double *log_t, double *dz)
{
    double lse_t = kit_log_sum_exp(n, log_t), off = p->raw_t ? 0 : lse_t, total = exp(lse_t - off), loss = 0;
    for (int64_t j = 0; j < n; j++) {
        double t = lse_t == -INFINITY ? 0 : exp(log_t[j] - off);
        loss += t != 0 ? t * (log_t[j] - off - (z[j] - lse)) : 0;
        dz[j] = lse_t == -INFINITY ? 0 : g * (exp(z[j] - lse) * total - t);
    }
    return loss;
}

static void run_row(const struct skl_problem *p, int64_t b, int64_t i, double g, double *room, struct kit_indexer *out)
{
    int64_t lo, hi, row = b * p->s.a.shape[2] + i;
    kit_index_range(p, b, i, &lo, &hi);
    int64_t n = hi - lo;
    double loss = 0, lse = -INFINITY, size = 1;
    if (n > 0 && g != 0 && kit_hide(p, b, i, lo, n, NULL)) {
        double *z = room, *log_t = room + n, *dz = room + 2 * n, *slope = room + 3 * n, *s = room + 4 * n;
        kit_index_logits(p, b, i, lo, n, s, z);
        kit_hide(p, b, i, lo, n, z);
        lse = kit_log_sum_exp(n, z);
        size += fabs(lse) + kit_log_target(p, b, 0, i, lo, n, log_t, slope);
        for (int64_t j = 0; j < n; j++) size = isfinite(z[j]) ? fmax(size, 1 + fabs(z[j]) + fabs(lse)) : size;
        loss = forward_kl(p, n, g, lse, z, log_t, dz);
        back(p, b, i, lo, n, s, dz, out);
    }
    if (out->loss)
        out->loss[row] = loss;
    if (out->lse_s)
        out->lse_s[row] = lse;
    if (out->size)
        out->size[row] = size;
    out->value += g * loss;
}

void kit_indexer_run(const struct skl_problem *p, struct kit_indexer *out)
{
    const struct skl_tensor *q = &p->s.a;
    int64_t B = q->shape[0], H = q->shape[1], N = q->shape[2], D = q->shape[3], M = p->s.b.shape[2];
    double total = 0, *room = kit_doubles((size_t)((4 + H) * M));
    for (int64_t b = 0; b < B; b++)
        for (int64_t i = 0; i < N; i++) total += weight_of_row(p, b, i);
    double *each[] = {out->da, out->da2, out->db, out->db2, out->dw, out->dw2};
    const int64_t entries[] = {B * H * N * D, B * M * D, B * N * H};
    for (int i = 0; i < 6; i++)
        if (each[i])
            memset(each[i], 0, (size_t)entries[i / 2] * sizeof *each[i]);
    out->value = 0;
    for (int64_t b = 0; b < B; b++)
        for (int64_t i = 0; i < N; i++) {
            double weight = weight_of_row(p, b, i);
            run_row(p, b, i, weight == 0 ? 0 : p->reduction == SKL_MEAN ? weight / total : weight, room, out);
        }
    free(room);
}
