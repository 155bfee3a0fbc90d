/* SPDX-License-Identifier: Apache-2.0
 * The border, of skl_topk: a problem of one model, and the lists of its largest logits. */
#include "check.h"
#include "error.h"
#include "tensor.h"

#define FAIL(...) return skl_fail(SKL_BAD_ARGUMENT, __VA_ARGS__)

/* s has been checked. Whatever else a problem may have is of two models, or leaves columns out. */
enum skl_status skl_check_topk(const struct skl_problem *p)
{
    const struct {
        const char *name;
        int given;
    } each[] = {{"t.a", p->t.a.data != NULL},
                {"t.b", p->t.b.data != NULL},
                {"t.bias", p->t.bias.data != NULL},
                {"labels", p->labels != NULL},
                {"listed", p->listed != NULL},
                {"shard", p->shard != NULL},
                {"mass_ids", p->mass_ids.data != NULL},
                {"support", p->support.data != NULL},
                {"pool_block", p->pool_block != 0},
                {"mix_t", p->mix_t != 0},
                {"head_map", p->head_map.data != NULL},
                {"lse_t", p->lse_t.data != NULL},
                {"raw_t", p->raw_t != 0},
                {"sink_s", p->sink_s.data != NULL},
                {"sink_t", p->sink_t.data != NULL}};
    for (size_t i = 0; i < sizeof each / sizeof *each; i++)
        if (each[i].given)
            FAIL("cannot use %s with skl_topk: lists are of all that the rows of s see", each[i].name);
    int64_t columns = p->columns ? p->columns : p->s.b.shape[p->s.b.ndim - 2];
    if (columns > INT32_MAX)
        FAIL("cannot use columns = %lld with skl_topk: an id has 32 bits", (long long)columns);
    return SKL_OK;
}

/* Lists [.., K] over the rows. */
static enum skl_status check_lists(const char *name, const struct skl_tensor *t, const struct skl_problem *p, int dtype,
                                   int64_t k)
{
    const int64_t *a = p->s.a.shape;
    int64_t shape[4] = {a[0], a[1], a[2], a[3]}, queries[3] = {a[0], a[2], k};
    struct skl_rule rule = {name, p->s.a.ndim, 1 << dtype, shape, 1, 1};
    shape[p->s.a.ndim - 1] = k;
    if (p->use == SKL_INDEXER)
        rule.ndim = 3, rule.shape = queries;
    return skl_check_tensor(t, &rule);
}

enum skl_status skl_check_topk_outputs(enum skl_call call, const struct skl_problem *p, const struct skl_outputs *o)
{
    const struct skl_tensor *ids = &o->topk_ids, *logprobs = &o->topk_logprobs;
    if (call != SKL_CALL_TOPK) {
        if (ids->data || logprobs->data)
            FAIL("cannot use out.topk_%s.data = %p: only skl_topk makes lists", ids->data ? "ids" : "logprobs",
                 ids->data ? ids->data : logprobs->data);
        return SKL_OK;
    }
    if (o->value)
        FAIL("cannot use out.value = %p: skl_topk does not tell it", (void *)o->value);
    if (!ids->data && ids->ndim == 0)
        FAIL("cannot use out.topk_ids.data = NULL: skl_topk writes the ids there");
    TRY(check_lists("out.topk_ids", ids, p, SKL_I32, -1));
    int64_t k = ids->shape[ids->ndim - 1];
    if (k < 1 || k > INT32_MAX)
        FAIL("cannot use out.topk_ids.shape[%d] = %lld: a list has from 1 to 2^31 - 1 ids", (int)ids->ndim - 1,
             (long long)k);
    return logprobs->data ? check_lists("out.topk_logprobs", logprobs, p, SKL_F32, k) : SKL_OK;
}
