/* SPDX-License-Identifier: Apache-2.0
 *
 * What of a plan follows from the call alone, before anything is fitted into memory: whose products, which way scores
 * go from their product to the sums, what is kept of them, and how columns are cut into tiles.
 */
#include "plan.h"

#include "../error.h"
#include "numbers.h"

enum {
    CHUNK_TILES_MOST = 64, /* where each chunk has its own sum of da, as many again for so many tiles */
    NARROW = 160,          /* tiles may be as narrow as this to make chunks equal; more would cost what it gains */
    SPLIT_ROWS = 512,      /* f32 operands in bf16 parts, at least so many rows ... */
    SPLIT_DIM = 1024, /* ... of such a dim: the least that was measured, and faster than FMAs (docs/performance.md) */
    /* Moving a reference, and all sums with it, takes as long as the exponentials of some 20 columns, and nearly every
     * slice has a new maximum in one of a panel's rows. The price of not moving it: y is rounded at up to this size
     * instead of near 0. */
    SLACK = 8
};

static int64_t common_multiple(int64_t a, int64_t b)
{
    int64_t common = skl_gcd(a, b);
    return common ? a / common * b : 0;
}

/* Each chunk begins without references, and its states are merged with others: the faster the products, the more that
 * weighs, and the less the longer dim is. */
int64_t skl_least_tiles_of_chunk(const struct skl_plan *plan)
{
    return !plan->whole ? 1 : plan->beside ? 4 : 2;
}

/* Into how many chunks a block's columns are to be cut. With a sum of da for each (64 KiB at 128 rows and dim 128) a
 * chunk has two tiles or more (the last one perhaps less), since the sums are read again when they are added, and as many
 * whatever the number of blocks at once: that may depend on the threads, sums may not. Otherwise of so many tasks. */
static int64_t aimed_chunks(const struct skl_plan *plan, int64_t tiles, int64_t tasks)
{
    if (!plan->by_tile)
        return most(tasks / (plan->own_columns ? least(plan->groups, SKL_BLOCKS) : SKL_BLOCKS), 1);
    int64_t least_tiles = skl_least_tiles_of_chunk(plan), spare = tiles < 4 * least_tiles ? 0 : least_tiles - 1;
    return least(most((tiles + spare) / least_tiles, 1), /* of many chunks one may be short, of few it would be long */
                 SKL_CHUNKS_BY_TILE * most(least(tiles / CHUNK_TILES_MOST, 4), 1));
}

/* Tiles of equal width, such that chunks are equal too: whole strips of the FMA products, and what other units multiply
 * at once. Where that would make them narrow, chunks that are not. Returns the share of the longest chunk that an even
 * one would be. */
static double cut_tiles(struct skl_plan *plan, int64_t tasks)
{
    int64_t strip = common_multiple(plan->kernels->mr, most(plan->products[1]->step, 1));
    int64_t columns = plan->queries ? plan->listed : plan->columns;
    int64_t tiles = most((columns + SKL_BK - 1) / SKL_BK, 1), chunks = aimed_chunks(plan, tiles, tasks);
    int64_t even = (tiles + chunks - 1) / chunks * chunks, bk = round_up((columns + even - 1) / even, strip);
    if (bk < NARROW || bk > SKL_BK)
        bk = round_up((columns + tiles - 1) / tiles, strip);
    plan->bk = (int)most(least(bk, SKL_BK), strip), plan->strip = (int)strip;
    plan->tiles = most((columns + plan->bk - 1) / plan->bk, 1);
    if (plan->in_place)
        skl_cut_in_place(plan), chunks = aimed_chunks(plan, plan->tiles, tasks);
    plan->tasks = plan->by_tile ? chunks : tasks;
    int64_t longest = (plan->tiles + chunks - 1) / chunks;
    return (double)columns / (double)(longest * chunks * plan->bk);
}

/* Where dim is long, more tasks: for very many columns as many of some numbers as make chunks even. */
static void choose_tiles(struct skl_plan *plan)
{
    int64_t most_tasks = plan->whole || plan->picks ? SKL_TASKS : SKL_TASKS_LONG;
    double even = cut_tiles(plan, most_tasks);
    struct skl_plan best = *plan;
    for (int64_t tasks = most_tasks; tasks > SKL_TASKS && best.tiles > SKL_TASKS_LONG; tasks -= SKL_TASKS / 2) {
        double share = cut_tiles(plan, tasks);
        if (share > even + 0.05)
            even = share, best = *plan;
    }
    *plan = best;
}

/* The dtype of all operands, or f32. Sides of different dtypes get the products of f32, which take them all: equal
 * numbers must give equal scores, whatever type they come in. So does an index, whose dx of a head is not split. */
static int common_dtype(const struct skl_work *w)
{
    int dtype = w->side[1].b.dtype;
    for (int side = 0; side < 2; side++)
        if (w->side[side].scorer == SKL_INDEX ||
            (w->side[side].dim && (w->side[side].a.dtype != dtype || w->side[side].b.dtype != dtype)))
            return SKL_F32;
    return dtype;
}

/* Are products of f32 operands made of their bf16 parts? A call that saves what a backward needs (m and l) and that
 * backward decide alike: their logits have the same bits. */
static int splits(const struct skl_work *w, const struct skl_plan *plan)
{
    int faster = !w->attention && plan->rows >= SPLIT_ROWS;
    for (int side = 0; side < 2; side++) {
        const struct skl_work_side *s = &w->side[side];
        if (s->dim && (s->a.dtype != SKL_F32 || s->b.dtype != SKL_F32))
            return 0;
        faster &= !s->dim || s->dim >= SPLIT_DIM;
    }
    return plan->kernels->split && (w->split_f32 == SKL_SPLIT_ALWAYS || (w->split_f32 != SKL_SPLIT_NEVER && faster));
}

/* The instruction set, and the products of the operands' dtype. */
static enum skl_status choose_kernels(const struct skl_work *w, struct skl_plan *plan)
{
    plan->kernels = skl_kernels_for(w->isa);
    if (!plan->kernels)
        return skl_fail(
            SKL_UNSUPPORTED,
            "cannot use isa = %s: this CPU, this build or STREAMKL_ISA does not allow it; the best one here is %s",
            skl_isa_name(w->isa), skl_isa_name(skl_kernels_for(SKL_ISA_BEST)->isa));
    while (w->isa == SKL_ISA_BEST && plan->kernels->narrower && plan->rows <= plan->kernels->narrower->nr)
        plan->kernels = plan->kernels->narrower;
    if (skl_has_support(w) && !skl_nothing_to_do(w)) /* it looks at the lists */
        skl_choose_queries(w, plan);
    int dtype = common_dtype(w), rounded = dtype == SKL_BF16 && w->round_dz && plan->kernels->rounded;
    const struct skl_products *products = plan->in_place    ? plan->kernels->in_place
                                          : rounded         ? plan->kernels->rounded
                                          : splits(w, plan) ? plan->kernels->split
                                                            : plan->kernels->products[dtype];
    plan->products[0] = plan->products[1] = products;
    return SKL_OK;
}

/* Are dot products with the listed columns all that the call needs? */
static int gathers(enum skl_call call, const struct skl_work *w)
{
    static const enum skl_row_name of_all_columns[] = {SKL_ROW_lse_s,     SKL_ROW_m_s,    SKL_ROW_l_s,
                                                       SKL_ROW_entropy_s, SKL_ROW_top1_s, SKL_ROW_mass_s,
                                                       SKL_ROW_m_rest,    SKL_ROW_l_rest};
    int asked = 0;
    for (size_t i = 0; i < sizeof of_all_columns / sizeof *of_all_columns; i++)
        asked |= w->result[of_all_columns[i]].data != NULL;
    return skl_on_support(w) && (call == SKL_CALL_BACKWARD || !asked);
}

/* Does anyone read the second sweep's two sums, and not only the loss? Gradients do, and states that leave. */
static int asks_apart(enum skl_call call, const struct skl_work *w)
{
    int leave = w->shard.exchange || call == SKL_CALL_PARTIAL;
    return w->grads || w->sink_grads || leave || w->result[SKL_ROW_kl_s].data || w->result[SKL_ROW_kl_t].data;
}

/* What callers ask of the rows beyond the divergence. A backward finds it saved. */
static void choose_details(enum skl_call call, const struct skl_work *w, struct skl_plan *plan)
{
    int value = call == SKL_CALL_VALUE || call == SKL_CALL_VALUE_AND_GRAD, labels = skl_has_labels(w);
    int l1 = skl_tempered(w) ? SKL_WANT_L1 : 0;
    for (int side = 0; value && side < 2; side++) {
        int student = side == w->student, *want = &plan->details[side];
        *want |= w->result[skl_of_side(w, SKL_ROW_entropy_s, side)].data ? SKL_WANT_ENTROPY : 0;
        *want |= w->result[skl_of_side(w, SKL_ROW_top1_s, side)].data ? SKL_WANT_TOP1 : 0;
        *want |= w->result[skl_of_side(w, SKL_ROW_mass_s, side)].data ? SKL_WANT_MASS : 0;
        *want |= w->result[skl_of_side(w, SKL_ROW_rank_s, side)].data ? SKL_WANT_RANK : 0;
        *want |= w->result[skl_of_side(w, SKL_ROW_rank_s, !side)].data ? SKL_WANT_TOP1 : 0;
        if (labels && (student || w->result[SKL_ROW_logprob_t].data))
            *want |= SKL_WANT_LABEL | l1;
        *want |= labels && student && w->labels.smoothing > 0 ? SKL_WANT_SUM : 0;
    }
    for (int i = 0; value && i < SKL_OTHERS; i++) plan->others |= (w->result[SKL_ROW_reverse + i].data != NULL) << i;
    for (int i = 0; i < SKL_ROW_RESULTS; i++) plan->puts_rows |= w->result[i].data != NULL;
    int ranks = (plan->details[0] | plan->details[1]) & SKL_WANT_RANK;
    plan->second_sweep = (value && skl_sweeps(w->form) == 2) || plan->others || ranks;
    plan->apart = asks_apart(call, w);
}

/* Details have sums under the maxima, and powers of what lies above its reference would become infinite. */
static float choose_slack(const struct skl_work *w, const struct skl_plan *plan)
{
    return plan->details[0] || plan->details[1] || w->form == SKL_FORM_ALPHA_BETA ? 0 : SLACK;
}

/* KL keeps exponentials for the gradient of one side; anything else needs the scores again. */
static enum skl_keep choose_keep(enum skl_call call, const struct skl_work *w, const struct skl_plan *plan)
{
    if (!plan->gather && (call == SKL_CALL_BACKWARD || plan->second_sweep))
        return SKL_KEEP_SCORES;
    if (!w->grads || plan->gather)
        return SKL_KEEP_NOTHING;
    if (w->form == SKL_FORM_NONE || (skl_tempered(w) && (w->grads & 1 << w->student)))
        return SKL_KEEP_SCORES;
    int capped = (w->side[0].softcap > 0 && (w->grads & 1)) || (w->side[1].softcap > 0 && (w->grads & 2));
    if (w->grads == 3 || capped)
        return SKL_KEEP_SCORES;
    return w->grads == 1 ? SKL_KEEP_EXP_P : SKL_KEEP_EXP_Q;
}

/* May scores be made and pushed at once? Where nobody looks at them in between. */
static int sweeps_beside(const struct skl_work *w, const struct skl_plan *plan)
{
    int plain = plan->one_panel && w->form == SKL_FORM_KL && plan->slack > 0 && !plan->second_sweep && !plan->queries &&
                !w->listed.given && !plan->picks && plan->products[1]->sweep_kl;
    for (int side = 0; side < 2; side++) plain &= !w->side[side].bias.data && w->side[side].softcap <= 0;
    return plain;
}

/* f32's fit L1. A tile unit's are those that sweep_kl pushes, so that it does not show in the sums who does. */
static int choose_slice(const struct skl_work *w, const struct skl_plan *plan)
{
    const struct skl_products *products = plan->products[1];
    int f32 = products == plan->kernels->products[SKL_F32] || products == plan->kernels->split;
    int lists = plan->queries || w->listed.given || w->topk.k; /* which are gone through for each tile */
    if (!plan->one_panel || lists)
        return SKL_BK;
    return f32 ? SKL_SLICE / plan->kernels->nr : products->sweep_kl ? products->step : SKL_BK;
}

/* Heads that must take turns because they add to the same gradient of b. */
static void choose_groups(const struct skl_work *w, struct skl_plan *plan)
{
    plan->own_columns = 0;
    plan->group = 1;
    for (int i = 0; i < 2; i++) {
        const struct skl_work_side *s = &w->side[i];
        if (s->grad_b.data || s->grad_bias.data) {
            plan->own_columns = 1;
            plan->group = common_multiple(plan->group, skl_sharing(s));
        }
    }
    if (plan->own_columns) /* segments, of as many heads each */
        plan->group = most(plan->group / w->together, 1);
    plan->groups = w->segments / plan->group;
}

enum skl_status skl_choose_ways(const struct skl_work *w, struct skl_plan *plan)
{
    enum skl_call call = plan->call;
    enum skl_status status = choose_kernels(w, plan);
    if (status || skl_nothing_to_do(w))
        return status;
    plan->whole = w->side[0].dim <= plan->products[0]->kc && w->side[1].dim <= plan->products[1]->kc;
    plan->one_panel = plan->whole && w->side[0].scorer == SKL_INNER && w->side[1].scorer == SKL_INNER;
    plan->slice = choose_slice(w, plan);
    plan->gather = gathers(call, w);
    plan->by_tile = (plan->whole || w->side[w->student].scorer == SKL_INDEX) && w->grads && !plan->gather;
    plan->picks = call == SKL_CALL_TOPK ? least(w->topk.k, plan->columns) : 0;
    choose_details(call, w, plan);
    plan->keep = choose_keep(call, w, plan);
    plan->slack = choose_slack(w, plan);
    plan->beside = sweeps_beside(w, plan);
    choose_groups(w, plan);
    choose_tiles(plan);
    return SKL_OK;
}
