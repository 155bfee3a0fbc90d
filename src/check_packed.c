/* SPDX-License-Identifier: Apache-2.0
 * The border, of packed sequences (cu_seqlens_q, cu_seqlens_k). */
#include "check.h"
#include "error.h"
#include "tensor.h"

/* Offsets of packed sequences: from 0 to 'total', never less than the one before. */
static enum skl_status check_offsets(const char *name, const struct skl_tensor *t, int64_t entries, int64_t total,
                                     const char *of, int64_t heads)
{
    struct skl_rule rule = {name, 1, 1 << SKL_I32, &entries, 0, 0};
    TRY(skl_check_tensor(t, &rule));
    if (t->shape[0] < 1)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s.shape[0] = 0: it must be the number of sequences, and 1",
                        name);
    int64_t last = t->shape[0] - 1, before = 0, segments;
    if (__builtin_mul_overflow(t->shape[0], heads, &segments) || segments > SKL_LONGEST)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s.shape[0] = %lld: that is too many for the %lld heads of s.a",
                        name, (long long)t->shape[0], (long long)heads);
    if (t->stride[0] == 0 && last > 1)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s.stride[0] = 0: every sequence has an offset of its own", name);
    if (t->shape[0] > INT32_MAX)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s.shape[0] = %lld: that is more sequences than i32 counts", name,
                        (long long)t->shape[0]);
    if (t->device != SKL_CPU) /* the kernels look at them: nobody waits for the device here */
        return SKL_OK;
    for (int64_t i = 0; i <= last; i++) {
        int64_t x = ((const int32_t *)t->data)[i * t->stride[0]];
        if (i == 0 ? x != 0 : x < before)
            return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s[%lld] = %lld: %s %lld", name, (long long)i, (long long)x,
                            i == 0 ? "the first sequence must begin at" : "it must not be below the one before,",
                            (long long)before);
        if (x > total || (i == last && x != total))
            return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s[%lld] = %lld: %s %s, %lld", name, (long long)i,
                            (long long)x, i == last ? "the last must be the number of" : "it is beyond the end of the",
                            of, (long long)total);
        before = x;
    }
    return SKL_OK;
}

enum skl_status skl_check_packed(const struct skl_problem *p)
{
    const struct skl_tensor *q = &p->cu_seqlens_q, *k = &p->cu_seqlens_k;
    if (!q->data && !k->data)
        return SKL_OK;
    if (!q->data || !k->data)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use cu_seqlens_%s without cu_seqlens_%s: give both",
                        q->data ? "q" : "k", q->data ? "k" : "q");
    if (p->use == SKL_LINEAR)
        return skl_fail(SKL_BAD_ARGUMENT,
                        "cannot use cu_seqlens_q.data = %p: packed sequences are for attention and indexers", q->data);
    if (p->pool_block)
        return skl_bad("pool_block", p->pool_block, "blocks of keys are not for packed sequences");
    if (p->s.a.shape[0] != 1)
        return skl_bad("s.a.shape[0]", p->s.a.shape[0], "packed sequences are in one batch");
    TRY(check_offsets("cu_seqlens_q", q, -1, p->s.a.shape[2], "rows", p->s.a.shape[1]));
    return check_offsets("cu_seqlens_k", k, q->shape[0], p->columns ? p->columns : p->s.b.shape[2], "columns",
                         p->s.a.shape[1]);
}
