/* SPDX-License-Identifier: Apache-2.0
 * The border, of lists of keys: support and support_block. */
#include "check.h"
#include "error.h"
#include "tensor.h"

#define FAIL(...) return skl_fail(SKL_BAD_ARGUMENT, __VA_ARGS__)

/* Called when the operands have been looked at. */
enum skl_status skl_check_support(const struct skl_problem *p)
{
    const struct skl_tensor *t = &p->support, *a = &p->s.a;
    int64_t shape[3] = {a->shape[0], a->shape[2], -1};
    struct skl_rule rule = {"support", 3, 1 << SKL_I32, shape, 0, 0};
    if (p->support_block < 0 || p->support_block > INT32_MAX)
        FAIL("cannot use support_block = %lld: it must be 0 (single keys) or a number of keys",
             (long long)p->support_block);
    if (!t->data) {
        if (p->support_block)
            FAIL("cannot use support_block = %lld: there is no support", (long long)p->support_block);
        return SKL_OK;
    }
    if (p->use == SKL_LINEAR)
        FAIL("cannot use support.data = %p: lists of keys are for attention and indexers", t->data);
    if (p->pool_block || p->mass_ids.data || p->shard)
        FAIL("cannot use support.data = %p with %s", t->data,
             p->pool_block      ? "pool_block"
             : p->mass_ids.data ? "mass_ids"
                                : "a shard");
    enum skl_status status = skl_check_tensor(t, &rule);
    if (!status && t->shape[2] > INT32_MAX)
        FAIL("cannot use support.shape[2] = %lld: a list has at most 2^31 - 1 entries", (long long)t->shape[2]);
    return status;
}

/* How many of n places are different ones: what has stride 0 repeats one of them. */
static int64_t places(int64_t n, int64_t stride)
{
    return stride || n < 1 ? n : 1;
}

/* Every entry is a key or block of the row's own sequence, or an empty slot. */
enum skl_status skl_check_support_entries(const struct skl_problem *p, const struct skl_work *w)
{
    const int64_t *stride = w->support.rows.stride;
    int64_t runs = w->heads ? w->heads / w->together : 1, count = places(w->support.count, w->support.step);
    int64_t segments = w->sequences ? w->segments : runs * places(w->batch, stride[0]);
    segments = segments < w->segments ? segments : w->segments;
    for (int64_t s = 0; s < segments; s += runs) { /* one head's: lists are for all */
        struct skl_segment segment = skl_segment_at(w, s);
        int64_t entries = (segment.columns + w->support_block - 1) / w->support_block;
        int64_t queries = w->sequences ? segment.rows / w->together : places(segment.rows / w->together, stride[2]);
        for (int64_t i = 0, at[3]; i < queries * w->together; i += w->together) {
            skl_row_index(w, skl_segment_row(w, &segment, i), at);
            for (int64_t k = 0; k < count; k++) {
                int64_t id = skl_row_id(&w->support, at, k);
                if (id < -1 || id >= entries)
                    FAIL("cannot use support[%lld, %lld, %lld] = %lld: it must be a %s, 0 to %lld, or -1 (empty)",
                         (long long)at[0], (long long)at[2], (long long)k, (long long)id,
                         p->support_block ? "block" : "key", (long long)entries - 1);
            }
        }
    }
    return SKL_OK;
}
