/* SPDX-License-Identifier: Apache-2.0
 *
 * A call's plan: after the choices that it makes by itself (choices.c), how many rows are a block, and what is kept, so
 * that it fits into the workspace limit. Threads come last (shares.c).
 */
#include "plan.h"

#include "../error.h"
#include "numbers.h"

enum {
    /* Rows of a block. Packing a tile of columns costs about as much as its products with 8 rows: 512 rows make that
     * 1.5 %. Their panels are read from L2 or L3 once per tile, 16 KiB for 100 000 cycles of work. */
    BLOCK = SKL_BLOCK,
    /* Rows of a block where dim is short and score tiles are kept, or used at once. With 128 rows two tiles fit in L2,
     * and up to SKL_NEAR_TILES of them in L3. Beyond that they come from far away in any case, and it pays
     * that more rows share a tile of columns. */
    BLOCK_NEAR = 128,
    BLOCK_FAR = 256,
    BLOCK_MIN = 64,    /* with fewer rows, recomputing logits is better than keeping them */
    TASKS_LEAST = 16,  /* small problems get blocks of fewer rows until there are this many tasks */
    TASKS_KEPT = 64,   /* blocks x tiles, unless there are threads for more */
    ALONE_GROUPS = 16, /* that many groups of segments, each ... */
    ALONE_WORK =
        1 << 27,      /* ... of at most so many multiply-adds, some 3 ms: a thread takes a group and does it alone */
    TOPK_TILES = 20,  /* of a chunk at least where lists are made, */
    TOPK_COLUMNS = 8, /* and so many columns for each entry of a list: a chunk keeps as many and more */
    TOPK_SPARE = 64,  /* picks that a row keeps beyond its list before it drops any, or as many again */
    SLAB_TILES = 32,  /* when recomputing: 6144 columns of logits at a time */
    ADDITIONS = 4096, /* most blocks whose parts are added to one gradient of b in f32, unless they are large: each
                            * addition rounds, and the roundings of 20000 pass the bound of a gradient now and then */
    KEPT_HEADS = 128 << 20, /* most bytes of a call that keeps something of single heads */
    LARGE_SHARE = 8,        /* by default, one part in so many of a large vocabulary's matrices may be kept */
};

/* ------------------------------------------------------------------------------------------------- memory --- */

/* Most tiles that 'rows' rows of a block see together. Rows in between that have no weight may lie further apart: a
 * block ends before it sees more. */
static int64_t seen_tiles(const struct skl_work *w, const struct skl_plan *plan, int64_t rows)
{
    int64_t columns = plan->keeps_seen ? w->left + w->right + rows : plan->columns;
    return least(plan->tiles, (columns + plan->bk - 2) / plan->bk + 1);
}

/* Where lists are made, chunks are long: each of them begins without knowing what the others have found. */
static int64_t most_topk_chunks(const struct skl_plan *plan)
{
    return most(plan->tiles / most(TOPK_TILES, TOPK_COLUMNS * plan->picks / plan->bk), 1);
}

static void count_picks(struct skl_plan *plan)
{
    int64_t all = plan->tiles * plan->bk;
    plan->chunk_picks = least(plan->picks + most(plan->picks, TOPK_SPARE), all);
    plan->pick_room = least(plan->chunk_picks + plan->bk, all);
    plan->list_room = plan->chunks * plan->chunk_picks;
}

/* The blocks, their descriptions, and what the threads have for themselves. */
size_t skl_plan_bytes(const struct skl_plan *plan)
{
    int64_t blocks = round_up(plan->blocks * (int64_t)sizeof(struct skl_block), SKL_ALIGN);
    return skl_shared_bytes(plan) + (size_t)plan->threads * plan->thread_bytes + (size_t)blocks + plan->states_bytes +
           plan->sink_bytes;
}

size_t skl_count_bytes(const struct skl_work *w, struct skl_plan *plan)
{
    struct skl_block block;
    struct skl_scratch scratch;
    plan->panels = plan->block_rows / plan->kernels->nr;
    plan->kept_tiles = plan->keeps_seen ? seen_tiles(w, plan, plan->block_rows) : plan->kept_tiles;
    int64_t blocks_at_once = least(plan->blocks, most(plan->wave_tiles / plan->tiles, 1)); /* of the largest segment */
    int64_t chunks = most(plan->by_tile ? plan->tasks : plan->tasks / blocks_at_once, 1);
    if (!plan->by_tile) /* not short, unless that makes few */
        chunks = least(chunks, plan->picks ? most_topk_chunks(plan)
                                           : most(plan->tiles, 2 * SKL_BLOCKS) / skl_least_tiles_of_chunk(plan));
    plan->chunks = plan->alone ? 1 : least(seen_tiles(w, plan, plan->block_rows), chunks);
    plan->states = plan->chunks + (w->sinks ? 1 : 0);
    count_picks(plan);
    plan->block_bytes = skl_lay_block(w, plan, NULL, &block);
    plan->thread_bytes = skl_lay_scratch(w, plan, NULL, &scratch) + (plan->alone ? plan->block_bytes : 0);
    int64_t states = w->shard.exchange ? plan->block_rows * skl_shared_states(w) * (int64_t)sizeof(struct skl_state)
                                       : 0;
    plan->states_bytes = (size_t)round_up(states, SKL_ALIGN);
    plan->sink_bytes = w->sink_grads ? (size_t)round_up(2 * (int64_t)sizeof(double) * w->segments, SKL_ALIGN) : 0;
    plan->threads = 1; /* more come when the plan is made */
    plan->bytes = skl_plan_bytes(plan);
    return plan->bytes;
}

/* ------------------------------------------------------------------------------------------------- choices --- */

/* Segments of a sequence or batch are alike but for their heads: the sizes of one of them speak for all. */
static int64_t alike(const struct skl_work *w)
{
    return w->attention ? most(w->heads / w->together, 1) : 1;
}

static int64_t count_blocks(const struct skl_work *w, int64_t block)
{
    int64_t blocks = 0;
    for (int64_t k = 0; k < w->segments; k += alike(w))
        blocks += alike(w) * ((skl_segment_at(w, k).rows + block - 1) / block);
    return blocks;
}

static void measure_segments(const struct skl_work *w, struct skl_plan *plan)
{
    for (int64_t k = 0; k < w->segments; k += alike(w)) {
        struct skl_segment s = skl_segment_at(w, k);
        plan->rows = most(plan->rows, s.rows), plan->columns = most(plan->columns, s.columns);
    }
}

/* Is the k-th group's b the k-th part of all b? Then who works on it clears it, too. */
int skl_clears_groups(const struct skl_work *w)
{
    int parts = !w->sequences;
    for (int i = 0; i < 2; i++) {
        const struct skl_work_side *s = &w->side[i];
        parts &= !s->grad_b.data || s->b_batch * s->b_heads * skl_sharing(s) == w->segments;
    }
    return parts;
}

/* Hundreds of short heads: the ends of phases would be most of what there is. Each group of segments is a task then, if
 * there are enough of them and none is long. */
static void choose_alone(const struct skl_work *w, struct skl_plan *plan)
{
    double entries = (double)(skl_entries(&w->side[0]) + skl_entries(&w->side[1])) * (w->grads ? 2 : 1);
    double work = entries * (double)plan->rows * (double)plan->columns * (double)plan->group;
    plan->alone = plan->groups >= ALONE_GROUPS && work <= ALONE_WORK && !w->shard.exchange && !plan->gather;
    plan->clears = plan->alone && skl_clears_groups(w);
}

static void choose_blocks(const struct skl_work *w, struct skl_plan *plan)
{
    int64_t nr = plan->kernels->nr, groups = plan->groups, block = BLOCK,
            seen = most(seen_tiles(w, plan, BLOCK_NEAR), 1);
    if (plan->by_tile || (plan->kept_tiles && plan->whole))
        block = plan->kept_tiles > SKL_NEAR_TILES || (plan->alone && plan->rows <= BLOCK_FAR) ? BLOCK_FAR : BLOCK_NEAR;
    if (plan->by_tile && plan->recompute && plan->beside)
        block = BLOCK;
    if (w->shard.exchange) /* the shards agreed on it */
        block = w->shard.rows;
    if (plan->queries)
        block = least(plan->queries * w->together, BLOCK);
    plan->block_rows = (int)most(round_up(least(plan->rows, block), nr), nr);
    if (w->shard.exchange || plan->alone) {
        groups = 1;
    } else if (!plan->own_columns) {
        int64_t tasks = plan->picks ? most_topk_chunks(plan) : plan->tiles; /* of a block, about */
        while (plan->block_rows >= 2 * BLOCK_MIN && !plan->queries &&
               count_blocks(w, plan->block_rows) * tasks < TASKS_LEAST)
            plan->block_rows = (int)round_up(plan->block_rows / 2, nr);
        groups = count_blocks(w, plan->block_rows);
    }
    /* Kept logits should stay in the cache: no more blocks than give every thread something to do. Where segments
     * differ, that is more of the short ones. By tile, where that depends on the number of threads, no sum depends on
     * it. */
    int64_t enough = 1;
    if (plan->by_tile)
        enough = skl_even_blocks(w, plan, most(groups, 1), most(TASKS_KEPT / seen, 1));
    plan->wave_tiles = plan->kept_tiles || plan->by_tile ? most(TASKS_KEPT, enough * seen) : SKL_BLOCKS * plan->tiles;
    int64_t highest = plan->by_tile ? skl_most_blocks(w) : SKL_BLOCKS;
    int64_t blocks = w->sequences ? SKL_BLOCKS : least(highest, most(plan->wave_tiles / seen, 1));
    plan->blocks = (int)most(least(groups, blocks), 1);
}

/* Keep the logits of all columns if that fits, with fewer blocks at once first, then with fewer rows in each. Then the
 * rows are divided evenly: a short last block would read all columns for few rows. A shard's block is as it is. */
static int keep_all(const struct skl_work *w, struct skl_plan *plan)
{
    int given = w->shard.exchange != NULL;
    plan->keeps_seen = plan->by_tile && w->left >= 0 && w->right >= 0 && !w->pool_block && !plan->queries;
    plan->kept_tiles = seen_tiles(w, plan, BLOCK_NEAR);
    plan->keeps_heads = skl_may_keep_heads(w, plan);
    choose_blocks(w, plan);
    while (skl_count_bytes(w, plan) > (plan->keeps_heads && w->limit > KEPT_HEADS ? KEPT_HEADS : w->limit)) {
        if (plan->blocks > 1)
            plan->blocks /= 2;
        else if (plan->block_rows - SKL_NR_MAX >= BLOCK_MIN && !given)
            plan->block_rows -= SKL_NR_MAX;
        else if (!plan->keeps_heads)
            return 0;
        else
            plan->keeps_heads = 0, choose_blocks(w, plan);
    }
    if (given || plan->queries)
        return 1;
    int64_t blocks = most((plan->rows + plan->block_rows - 1) / plan->block_rows, 1);
    plan->block_rows = (int)most(round_up((plan->rows + blocks - 1) / blocks, plan->kernels->nr), plan->kernels->nr);
    skl_count_bytes(w, plan);
    return 1;
}

/* By tile on a unit that makes scores beside their exponentials, making them twice takes less time than fetching what was
 * kept, which does not fit a core's cache. */
static int prefers_recomputing(const struct skl_plan *plan)
{
    return plan->by_tile && plan->beside;
}

/* Half of a block's rows, or 0 where a block cannot have fewer. */
static int half_block(const struct skl_work *w, const struct skl_plan *plan)
{
    int64_t half = round_up(plan->block_rows / 2, plan->kernels->nr);
    int64_t least_rows = plan->own_columns ? plan->group * plan->rows / ADDITIONS : 0;
    return !w->shard.exchange && half < plan->block_rows && half >= least_rows ? (int)half : 0;
}

/* Recompute the logits for the gradient, a slab at a time; smaller and smaller until it fits. */
static int recompute(const struct skl_work *w, struct skl_plan *plan)
{
    plan->recompute = 1, plan->keeps_seen = 0;
    if (plan->by_tile) /* nothing that is held grows with the columns */
        plan->tasks = least(plan->tasks, SKL_CHUNKS_BY_TILE);
    plan->keep = plan->keep == SKL_KEEP_NOTHING ? SKL_KEEP_NOTHING : SKL_KEEP_SCORES;
    plan->kept_tiles = w->grads && !plan->by_tile && !plan->gather ? least(plan->tiles, SLAB_TILES) : 0;
    choose_blocks(w, plan);
    while (skl_count_bytes(w, plan) > w->limit) {
        if (plan->blocks > 1)
            plan->blocks /= 2;
        else if (plan->kept_tiles > (half_block(w, plan) ? 4 : 1)) /* few tiles, then few rows, then one tile */
            plan->kept_tiles /= 2;
        else if (half_block(w, plan))
            plan->block_rows = half_block(w, plan);
        else if (plan->by_tile && plan->tasks > 1)
            plan->tasks /= 2;
        else
            return 0;
    }
    return 1;
}

/* When none was given. For a vocabulary whose matrices are large, a share of them is little: the more rows in a block,
 * the less often they are read and their gradients added to. What a 16-bit gradient of b needs at least comes on
 * top. */
static size_t default_limit(const struct skl_work *w, const struct skl_plan *plan)
{
    int64_t matrices = 0, sums = 0;
    for (int i = 0; i < 2; i++) {
        const struct skl_work_side *s = &w->side[i];
        int64_t n = plan->columns * s->dim;
        matrices += n * skl_size_of(s->b.dtype);
        if (s->grad_b.data) {
            matrices += n * skl_size_of(s->grad_b.dtype);
            sums += s->grad_b.dtype != SKL_F32 ? 4 * n : 0;
        }
    }
    return (size_t)(most((int64_t)w->limit, w->attention ? 0 : matrices / LARGE_SHARE) + sums);
}

enum skl_status skl_make_plan(enum skl_call call, const struct skl_work *work, struct skl_plan *plan)
{
    struct skl_work w = *work;
    *plan = (struct skl_plan){.call = call};
    measure_segments(&w, plan);
    enum skl_status status = skl_choose_ways(&w, plan);
    if (status || skl_nothing_to_do(&w))
        return status;
    choose_alone(&w, plan);
    if (w.limit_is_default)
        w.limit = default_limit(&w, plan);
    int keeps = call != SKL_CALL_BACKWARD && plan->keep != SKL_KEEP_NOTHING && !prefers_recomputing(plan);
    int fits = keeps && keep_all(&w, plan);
    if (!fits)
        fits = recompute(&w, plan);
    plan->dz_beside = plan->beside && plan->by_tile && plan->recompute && w.skip_below == 0 && !skl_has_labels(&w) &&
                      w.grads != 3;
    if (!fits && !w.limit_is_default)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use workspace_limit = %zu: this call needs at least %zu bytes%s",
                        w.limit, plan->bytes,
                        plan->own_columns ? " (a gradient of b in f32 needs no accumulator)" : "");
    skl_choose_threads(&w, plan);
    return SKL_OK;
}
