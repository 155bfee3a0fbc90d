/* SPDX-License-Identifier: Apache-2.0
 * The border, of sinks. */
#include "check.h"
#include "error.h"
#include "tensor.h"

#define FAIL(...) return skl_fail(SKL_BAD_ARGUMENT, __VA_ARGS__)

/* What cannot have them. */
static enum skl_status check_use(const struct skl_problem *p, const char *name, int partial)
{
    if (p->use == SKL_LINEAR)
        FAIL("cannot use %s in a linear problem: only attention has sinks", name);
    if (p->pool_block)
        FAIL("cannot use %s with pool_block = %lld: a sink is no block of keys", name, (long long)p->pool_block);
    if (p->support.data)
        FAIL("cannot use %s with support: a list names keys, and there is none for a sink beside them", name);
    if (p->shard)
        FAIL("cannot use %s with a shard: it would be a column of each of them", name);
    if (partial)
        FAIL("cannot use %s with partial rows: it would be a column of each slice", name);
    return SKL_OK;
}

/* Whose they are: of both sides, or of the heads of an indexer's teacher. */
static enum skl_status check_sides(const struct skl_problem *p)
{
    int s = p->sink_s.data != NULL, t = p->sink_t.data != NULL;
    if (p->use == SKL_INDEXER && s)
        FAIL("cannot use sink_s.data = %p: an indexer has no sink", p->sink_s.data);
    if (p->use == SKL_INDEXER && p->lse_t.data)
        FAIL("cannot use sink_t.data = %p with lse_t: the sinks are in these denominators already", p->sink_t.data);
    if (p->use != SKL_INDEXER && s != t)
        FAIL("cannot use sink_%c without sink_%c: a category that one side alone has makes KLs infinite. Give both, or "
             "neither to compare the two over the keys alone",
             s ? 's' : 't', s ? 't' : 's');
    return SKL_OK;
}

enum skl_status skl_check_sinks(const struct skl_problem *p, int partial)
{
    const struct {
        const char *name;
        const struct skl_tensor *sink, *a;
    } each[2] = {{"sink_s", &p->sink_s, &p->s.a}, {"sink_t", &p->sink_t, &p->t.a}};
    enum skl_status status = SKL_OK;
    for (int i = 0; !status && i < 2; i++) {
        if (!each[i].sink->data)
            continue;
        struct skl_rule rule = {each[i].name, 1, SKL_FLOATS, &each[i].a->shape[1], 0, 0};
        status = check_use(p, each[i].name, partial);
        if (!status)
            status = skl_check_tensor(each[i].sink, &rule);
    }
    return status || !(p->sink_s.data || p->sink_t.data) ? status : check_sides(p);
}

enum skl_status skl_check_sink_outputs(const struct skl_problem *p, const struct skl_outputs *out)
{
    const struct {
        const char *name, *of;
        const struct skl_tensor *sink, *grad;
    } each[2] = {{"out.grad_sink_s", "sink_s", &p->sink_s, &out->grad_sink_s},
                 {"out.grad_sink_t", "sink_t", &p->sink_t, &out->grad_sink_t}};
    for (int i = 0; i < 2; i++) {
        const struct skl_tensor *sink = each[i].sink, *grad = each[i].grad;
        if (!grad->data)
            continue;
        if (!sink->data)
            FAIL("cannot use %s.data = %p: there is no %s to be differentiated", each[i].name, grad->data, each[i].of);
        if (i == 1 && skl_mixes_heads(p))
            FAIL("cannot use %s.data = %p: a teacher of mixed heads or given LSEs gets no gradient", each[i].name,
                 grad->data);
        struct skl_rule rule = {each[i].name, 1, 1 << SKL_F32 | 1 << sink->dtype, sink->shape, 0, 1};
        enum skl_status status = skl_check_tensor(grad, &rule);
        if (status)
            return status;
    }
    return SKL_OK;
}
