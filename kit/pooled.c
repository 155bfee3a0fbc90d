/* SPDX-License-Identifier: Apache-2.0 */
#include "pooled.h"

#include "logits.h"
#include "memory.h"
#include "reference.h"

#include <math.h>
#include <stdlib.h>

/* The keys that the row sees. */
static void keys_of_row(const struct skl_problem *p, int64_t b, int64_t h, int64_t i, int64_t *lo, int64_t *hi)
{
    struct skl_problem keys = *p; /* the same ranges over the teacher's keys */
    keys.pool_block = 0, keys.s.b = p->t.b;
    skl_reference_range(&keys, (b * p->s.a.shape[1] + h) * p->s.a.shape[2] + i, lo, hi);
    *lo = *lo > 0 ? *lo : 0, *hi = *hi < p->t.b.shape[2] ? *hi : p->t.b.shape[2];
}

double kit_pooled_row(const struct skl_problem *p, int64_t b, int64_t h, int64_t i, double g, double *da, double *db)
{
    const struct skl_tensor *a = &p->s.a, *k = &p->s.b;
    int64_t lo, hi, group = a->shape[1] / k->shape[1], block = p->pool_block;
    keys_of_row(p, b, h, i, &lo, &hi);
    if (lo >= hi)
        return 0;
    int64_t first = lo / block, n = (hi - 1) / block + 1 - first, keys = hi - lo;
    double *z_t = kit_doubles((size_t)(2 * keys)), *z = kit_doubles((size_t)(3 * n)), *t = z + n, *slope = z + 2 * n;
    kit_head_logits(p, b, h, i, lo, keys, z_t, z_t + keys);
    for (int64_t c = 0; c < n; c++) {
        int64_t from = (first + c) * block > lo ? (first + c) * block : lo;
        int64_t to = (first + c + 1) * block < hi ? (first + c + 1) * block : hi;
        double most = -INFINITY;
        for (int64_t j = from; j < to; j++) most = fmax(most, z_t[j - lo]);
        t[c] = p->pool == SKL_POOL_MAX ? most : kit_log_sum_exp(to - from, z_t + from - lo);
    }
    kit_logits(p, &p->s, b * a->stride[0] + h * a->stride[1] + i * a->stride[2],
               b * k->stride[0] + h / group * k->stride[1], first, n, z, slope);
    double lse_t = kit_log_sum_exp(n, t), lse_s = kit_log_sum_exp(n, z), loss = 0;
    for (int64_t c = 0; c < n; c++) {
        double log_p = t[c] - lse_t, log_q = z[c] - lse_s, dx = g * (exp(log_q) - exp(log_p)) * slope[c];
        loss += exp(log_p) * (log_p - log_q);
        for (int64_t d = 0; d < a->shape[3]; d++) {
            da[d] += dx * kit_element(k, b * k->stride[0] + h / group * k->stride[1] + (first + c) * k->stride[2] + d);
            db[(first + c) * a->shape[3] + d] += dx * kit_element(a, b * a->stride[0] + h * a->stride[1] +
                                                                         i * a->stride[2] + d);
        }
    }
    free(z_t), free(z);
    return loss;
}
