/* SPDX-License-Identifier: Apache-2.0
 * The border, of problems whose columns are spread over several callers. */
#include "check.h"
#include "error.h"
#include "work.h"

/* Where a shard's columns are among those of all shards, which its labels count. */
enum skl_status skl_check_place(const struct skl_problem *p)
{
    const struct skl_shard *s = p->shard;
    int64_t own = p->columns ? p->columns : p->s.b.shape[0];
    if (s->first < 0)
        return skl_bad("shard.first", s->first, "it must not be negative");
    if (s->columns > SKL_LONGEST || s->columns < own || s->first > s->columns - own)
        return skl_fail(SKL_BAD_ARGUMENT,
                        "cannot use shard.columns = %lld: labels count them, and the %lld of this shard begin at %lld",
                        (long long)s->columns, (long long)own, (long long)s->first);
    return SKL_OK;
}

enum skl_status skl_check_shard(enum skl_call call, const struct skl_problem *p, const struct skl_state *state)
{
    const struct skl_shard *s = p->shard;
    int backward = call == SKL_CALL_BACKWARD; /* which meets nobody: it has what the forward call saved */
    if (!s->exchange && !backward)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use shard.exchange = NULL: a shard needs a way to the others");
    if (s->rows < 0 || s->rows > SKL_EXCHANGE_ROWS_MAX)
        return skl_bad("shard.rows", s->rows, "it must be from 0 (the default, 512) to 16384");
    if (call == SKL_CALL_PARTIAL || state)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use shard = %p with partial rows: they leave the exchange to you",
                        (const void *)s);
    if (p->listed)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use listed = %p with a shard: lists need all columns",
                        (const void *)p->listed);
    if (skl_mixes_heads(p) || p->pool_block)
        return skl_fail(SKL_BAD_ARGUMENT,
                        "cannot use pool_block, mix_t, head_map, lse_t or raw_t with a shard: a state knows nothing "
                        "of the heads of a mixture");
    if (p->cu_seqlens_q.data)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use cu_seqlens_q with a shard: begin and end say the same");
    if (backward && p->labels && p->labels->smoothing > 0 && (p->begin.data || p->end.data))
        return skl_fail(
            SKL_BAD_ARGUMENT,
            "cannot use labels.smoothing = %g in a backward on a shard with begin or end: how many columns a "
            "row sees on the other shards is not known",
            p->labels->smoothing);
    if (p->progress && !backward)
        return skl_fail(SKL_BAD_ARGUMENT,
                        "cannot use progress with a shard: who stops alone leaves the others waiting. "
                        "shard.exchange may stop the call, with the others' knowledge");
    if (p->s.a.device != SKL_CPU)
        return skl_fail(SKL_UNSUPPORTED, "cannot use shard on CUDA: it would wait for the device. Use skl_partial, a "
                                         "collective on the stream, skl_finish and skl_backward");
    return SKL_OK;
}
