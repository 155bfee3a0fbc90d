/* SPDX-License-Identifier: Apache-2.0
 * The border, of sides of several heads: teachers that are mixtures (head_map, mix_t, lse_t, raw_t) and indexers. */
#include "check.h"
#include "error.h"
#include "tensor.h"
#include "work.h"

#define FAIL(...) return skl_fail(SKL_BAD_ARGUMENT, __VA_ARGS__)

int skl_mixes_heads(const struct skl_problem *p)
{
    return p->use == SKL_INDEXER || p->mix_t || p->head_map.data || p->lse_t.data || p->raw_t;
}

/* What the teacher cannot be here. */
static enum skl_status check_use(const struct skl_problem *p)
{
    const char *name = p->use == SKL_INDEXER ? "an indexer"
                       : p->mix_t            ? "mix_t"
                       : p->head_map.data    ? "head_map"
                       : p->lse_t.data       ? "lse_t"
                                             : "raw_t";
    if (p->use == SKL_LINEAR)
        FAIL("cannot use %s in a linear problem: only attention has heads", name);
    if (p->divergence == SKL_REVERSE_KL || p->divergence == SKL_ALPHA_BETA)
        FAIL("cannot use %s with divergence = %d (%s): it divides by the mixture, which may be 0 in f32", name,
             (int)p->divergence, p->divergence == SKL_REVERSE_KL ? "reverse" : "alpha_beta");
    return SKL_OK;
}

static enum skl_status check_map(const struct skl_problem *p)
{
    const struct skl_tensor *map = &p->head_map;
    int64_t shape[2] = {p->s.a.shape[1], p->mix_t > 0 ? p->mix_t : -1};
    if (map->ndim == 1 && p->mix_t > 1)
        FAIL("cannot use head_map.ndim = 1 with mix_t = %lld: it must be [heads, mix_t]", (long long)p->mix_t);
    struct skl_rule rule = {"head_map", map->ndim == 1 ? 1 : 2, 1 << SKL_I32, shape, 0, 0};
    enum skl_status status = skl_check_tensor(map, &rule);
    if (!status && map->ndim == 2 && map->shape[1] == 0)
        FAIL("cannot use head_map.shape[1] = 0: a mixture has at least one head");
    const int64_t *n = p->s.a.shape; /* the LSEs of all heads and rows are to be counted in bytes */
    int64_t lses;
    if (!status && map->ndim == 2 &&
        (__builtin_mul_overflow(n[0] * n[1] * n[2], map->shape[1], &lses) || lses > (int64_t)1 << 59))
        FAIL("cannot use head_map.shape[1] = %lld: that is too many for the rows of s.a", (long long)map->shape[1]);
    return status;
}

enum skl_status skl_check_head_map(const struct skl_problem *p)
{
    const struct skl_tensor *map = &p->head_map;
    int64_t heads = map->shape[0], mixed = map->ndim == 2 ? map->shape[1] : 1;
    if (heads && !map->stride[0]) /* the same place again and again */
        heads = 1;
    if (mixed && map->ndim == 2 && !map->stride[1])
        mixed = 1;
    for (int64_t h = 0; h < heads; h++)
        for (int64_t k = 0; k < mixed; k++) {
            int32_t head = ((const int32_t *)map->data)[h * map->stride[0] + (map->ndim == 2 ? k * map->stride[1] : 0)];
            if (head < 0 || head >= p->t.a.shape[1])
                FAIL("cannot use head_map[%lld, %lld] = %d: t.a has heads 0 to %lld", (long long)h, (long long)k,
                     (int)head, (long long)p->t.a.shape[1] - 1);
        }
    return SKL_OK;
}

/* s.a [B, Hi, N, Di] has passed, and s.b goes with it. */
enum skl_status skl_check_indexer(const struct skl_problem *p)
{
    const struct skl_tensor *a = &p->s.a;
    int64_t shape[3] = {a->shape[0], a->shape[2], a->shape[1]};
    struct skl_rule rule = {"s.bias", 3, SKL_FLOATS, shape, 0, 0};
    if (p->s.b.shape[1] != 1)
        FAIL("cannot use s.b.shape[1] = %lld heads: all heads of an indexer share one", (long long)p->s.b.shape[1]);
    if (a->shape[1] < 1 || a->shape[1] > INT32_MAX)
        FAIL("cannot use s.a.shape[1] = %lld heads: an indexer has at least one", (long long)a->shape[1]);
    if (p->s.softcap != 0)
        FAIL("cannot use s.softcap = %g: an indexer has none", p->s.softcap);
    if (p->mass_ids.data)
        FAIL("cannot use mass_ids.data = %p: an indexer does not tell masses", p->mass_ids.data);
    return skl_check_tensor(&p->s.bias, &rule);
}

/* Called when the operands have been looked at, each by itself. */
enum skl_status skl_check_mixture(const struct skl_problem *p)
{
    TRY(check_use(p));
    if (p->mix_t < 0 || p->mix_t > INT32_MAX)
        FAIL("cannot use mix_t = %lld: it must be 0 (none) or a number of heads", (long long)p->mix_t);
    if (p->raw_t != 0 && p->raw_t != 1)
        FAIL("cannot use raw_t = %d: it must be 0 or 1", (int)p->raw_t);
    if (p->raw_t && !p->lse_t.data && !(p->use == SKL_INDEXER && p->sink_t.data))
        FAIL("cannot use raw_t = 1 without lse_t: a softmax sums to 1 already");
    if (p->raw_t && p->divergence != SKL_FORWARD_KL)
        FAIL("cannot use raw_t = 1 with divergence = %d: only forward KL takes a target that does not sum to 1",
             (int)p->divergence);
    if (p->use == SKL_INDEXER && (p->mix_t || p->head_map.data))
        FAIL("cannot use %s with an indexer: its teacher is the mean of all heads", p->mix_t ? "mix_t" : "head_map");
    if (p->use == SKL_INDEXER && (p->t.a.shape[1] < 1 || p->t.a.shape[1] > INT32_MAX))
        FAIL("cannot use t.a.shape[1] = %lld heads: a mean takes at least one", (long long)p->t.a.shape[1]);
    int64_t heads = p->s.a.shape[1], mixed = p->mix_t > 0 ? p->mix_t : 1, wanted;
    if (p->head_map.data) {
        TRY(check_map(p));
    } else if (p->use != SKL_INDEXER && __builtin_mul_overflow(heads, mixed, &wanted)) {
        FAIL("cannot use mix_t = %lld: s.a has %lld heads", (long long)mixed, (long long)heads);
    } else if (p->use != SKL_INDEXER && p->t.a.shape[1] != wanted) {
        FAIL("cannot use t.a.shape[1] = %lld heads: it must be %lld, mix_t = %lld for each of the %lld of s.a",
             (long long)p->t.a.shape[1], (long long)wanted, (long long)mixed, (long long)heads);
    }
    struct skl_rule lse = {"lse_t", 3, 1 << SKL_F32, p->t.a.shape, 0, 0};
    return p->lse_t.data ? skl_check_tensor(&p->lse_t, &lse) : SKL_OK;
}

/* A teacher whose keys are pooled into blocks, the student's keys. */
enum skl_status skl_check_pooled(const struct skl_problem *p)
{
    if (p->use != SKL_ATTENTION)
        FAIL("cannot use pool_block = %lld: only attention has keys to pool", (long long)p->pool_block);
    if (p->pool_block < 1 || p->pool_block > INT32_MAX)
        FAIL("cannot use pool_block = %lld: it must be 0 (none) or a number of keys", (long long)p->pool_block);
    if (p->pool != SKL_POOL_MAX && p->pool != SKL_POOL_SUM)
        FAIL("cannot use pool = %d: it must be SKL_POOL_MAX or SKL_POOL_SUM", (int)p->pool);
    if (p->s.a.device != SKL_CPU)
        return skl_fail(SKL_UNSUPPORTED, "cannot use pool_block on CUDA: pooled targets are for the CPU");
    if (skl_mixes_heads(p))
        FAIL("cannot use pool_block = %lld with mixed heads or given LSEs", (long long)p->pool_block);
    if (p->columns || p->mass_ids.data)
        FAIL("cannot use %s with pool_block = %lld", p->columns ? "columns" : "mass_ids", (long long)p->pool_block);
    int64_t keys = p->t.b.shape[2], blocks = keys / p->pool_block + (keys % p->pool_block != 0);
    if (p->s.b.shape[2] != blocks)
        FAIL("cannot use s.b.shape[2] = %lld: %lld keys of t.b make %lld blocks of %lld", (long long)p->s.b.shape[2],
             (long long)keys, (long long)blocks, (long long)p->pool_block);
    return SKL_OK;
}

/* What a call may ask of such a teacher. */
enum skl_status skl_check_mixture_outputs(const struct skl_work *w, const struct skl_outputs *out, int partial)
{
    if (out && (out->t.a.data || out->t.b.data))
        FAIL("cannot use %s.data = %p: a teacher of mixed heads, given LSEs or pooled keys gets no gradient",
             out->t.a.data ? "out.t.a" : "out.t.b", out->t.a.data ? out->t.a.data : out->t.b.data);
    if (partial && w->side[w->student].scorer == SKL_INDEX)
        FAIL("cannot use an indexer with partial rows: it needs all columns");
    if (partial && w->pool_block)
        FAIL("cannot use pool_block = %lld with partial rows: their slices may cut a block", (long long)w->pool_block);
    if (partial && w->raw)
        FAIL("cannot use raw_t = 1 with partial rows: their states do not know the sum of t");
    if (partial && skl_wants_head_lses(&w->side[!w->student]))
        FAIL("cannot use mix_t = %lld with partial rows and no lse_t: the heads' LSEs need all columns",
             (long long)w->side[!w->student].members);
    return SKL_OK;
}
