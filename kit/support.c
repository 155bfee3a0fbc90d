/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include "logits.h"

#include <math.h>

/* The first column of the query's packed sequence. */
static int64_t first_column(const struct skl_problem *p, int64_t i)
{
    const struct skl_tensor *q = &p->cu_seqlens_q, *k = &p->cu_seqlens_k;
    int64_t sequence = 0;
    if (!q->data)
        return 0;
    while (kit_element(q, (sequence + 1) * q->stride[0]) <= (double)i) sequence++;
    return (int64_t)kit_element(k, sequence * k->stride[0]);
}

int kit_lists(const struct skl_problem *p, int64_t batch, int64_t i, int64_t column)
{
    const struct skl_tensor *t = &p->support;
    int64_t block = p->support_block ? p->support_block : 1;
    for (int64_t k = 0; t->data && k < t->shape[2]; k++) {
        double id = kit_element(t, batch * t->stride[0] + i * t->stride[1] + k * t->stride[2]);
        if (id >= 0 && (int64_t)id == (column - first_column(p, i)) / block)
            return 1;
    }
    return !t->data;
}

int kit_hide(const struct skl_problem *p, int64_t batch, int64_t i, int64_t lo, int64_t n, double *z)
{
    int any = 0;
    for (int64_t j = 0; j < n; j++) {
        int listed = kit_lists(p, batch, i, lo + j);
        any |= listed;
        if (!listed && z)
            z[j] = -INFINITY;
    }
    return any;
}
