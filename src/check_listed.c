/* SPDX-License-Identifier: Apache-2.0
 * The border, of a listed teacher. */
#include "check.h"
#include "error.h"
#include "tensor.h"
#include "work.h"

/* By how much listed probabilities may sum to more than 1 and still mean 1: f32 log-probabilities of a hundred thousand
 * columns, or such of 16 bits, whose logarithm is off by 2^-9 of itself. */
static double excess_allowed(const struct skl_listed *l)
{
    return l->logprobs.dtype == SKL_F32 ? 1e-4 : 0x1p-6;
}

enum skl_status skl_check_listed_entries(const struct skl_problem *p, const struct skl_work *w)
{
    const struct skl_work_listed *l = &w->listed;
    int rest_is_missing = l->tail == SKL_TAIL_BUCKET && !l->rest.data;
    struct skl_places places = skl_places_of(w, l->ids.rows.stride, l->logprobs.stride, l->rest.stride);
    for (int64_t i = 0, at[3]; i < places.count; i++) {
        double sum = 0;
        skl_place_index(&places, i, at);
        int64_t row = skl_row_number(w, at);
        if (l->rest.data && skl_row_get(&l->rest, at) > 0)
            return skl_fail(SKL_BAD_ARGUMENT,
                            "cannot use listed.tail_logprob[%lld] = %g: the logarithm of a probability is at most 0",
                            (long long)row, (double)skl_row_get(&l->rest, at));
        for (int64_t k = 0; k < l->k; k++) {
            int64_t id = skl_listed_id(w, at, k);
            if (id < -1 || id >= w->columns)
                return skl_fail(
                    SKL_BAD_ARGUMENT,
                    "cannot use listed.ids[%lld][%lld] = %lld: it must be a column, 0 to %lld, or -1 (empty)",
                    (long long)row, (long long)k, (long long)id, (long long)w->columns - 1);
            if (rest_is_missing && id >= 0)
                sum += exp(skl_listed_logprob(w, at, k));
        }
        if (sum > 1 + excess_allowed(p->listed)) /* NaN passes: it stays in its row */
            return skl_fail(SKL_BAD_ARGUMENT,
                            "cannot use listed.logprobs[%lld] with a sum of %.9g: probabilities sum to at most 1 (raw "
                            "logits are for SKL_TAIL_RENORMALISE and SKL_TAIL_TEACHER)",
                            (long long)row, sum);
    }
    return SKL_OK;
}

static enum skl_status check_place(const struct skl_problem *p)
{
    if (p->use != SKL_LINEAR)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use listed = %p: it is for linear problems", (const void *)p->listed);
    if (p->begin.data || p->end.data)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s.data = %p: a listed teacher's rows see all columns",
                        p->begin.data ? "begin" : "end", p->begin.data ? p->begin.data : p->end.data);
    return SKL_OK;
}

static enum skl_status check_kind(const struct skl_problem *p)
{
    const struct skl_listed *l = p->listed;
    if (l->tail < SKL_TAIL_BUCKET || l->tail > SKL_TAIL_TEACHER)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use listed.tail = %d: it must be one of enum skl_tail", (int)l->tail);
    int both_ways = l->tail == SKL_TAIL_BUCKET || l->tail == SKL_TAIL_RENORMALISE;
    if (p->divergence != SKL_FORWARD_KL && !(p->divergence == SKL_REVERSE_KL && both_ways))
        return skl_fail(
            SKL_BAD_ARGUMENT,
            "cannot use divergence = %d with a listed teacher: it must be SKL_FORWARD_KL, or SKL_REVERSE_KL "
            "with SKL_TAIL_BUCKET or SKL_TAIL_RENORMALISE",
            (int)p->divergence);
    if (!(l->stored_temperature >= 0 && l->stored_temperature < HUGE_VAL))
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use listed.stored_temperature = %g: it must be positive and finite",
                        l->stored_temperature);
    if (l->reserved)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use listed.reserved = %d: it must be 0", (int)l->reserved);
    return SKL_OK;
}

static enum skl_status check_tensors(const struct skl_problem *p)
{
    const struct skl_listed *l = p->listed;
    int lead = p->s.a.ndim - 1;
    int64_t shape[4] = {-1, -1, -1, -1};
    for (int i = 0; i < lead; i++) shape[i] = p->s.a.shape[i];
    struct skl_rule ids = {"listed.ids", lead + 1, 1 << SKL_I32 | 1 << SKL_I64, shape, 1, 0};
    struct skl_rule logprobs = {"listed.logprobs", lead + 1, SKL_FLOATS, l->ids.shape, 1, 0};
    struct skl_rule rest = {"listed.tail_logprob", lead, 1 << SKL_F32, p->s.a.shape, 0, 0};
    TRY(skl_check_tensor(&l->ids, &ids));
    TRY(skl_check_tensor(&l->logprobs, &logprobs));
    return l->tail_logprob.data ? skl_check_tensor(&l->tail_logprob, &rest) : SKL_OK;
}

enum skl_status skl_check_listed(const struct skl_problem *p)
{
    TRY(check_place(p));
    TRY(check_kind(p));
    return check_tensors(p);
}
