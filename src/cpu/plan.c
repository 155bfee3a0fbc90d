/* SPDX-License-Identifier: Apache-2.0
 *
 * A call's plan: after the choices that it makes by itself (choices.c), how many rows are a block, how many blocks and
 * threads are at work, and what is kept, so that it fits into the workspace limit.
 */
#include "plan.h"

#include "../error.h"
#include "numbers.h"
#include "team.h"

/* Scores that are made twice for speed are kept where these threads would have less than this share of the work. */
static const double KEPT_SHARE = 0.7;

enum {
    /* Rows of a block. Packing a tile of columns costs about as much as its products with 8 rows: 512 rows make that
     * 1.5 %. Their panels are read from L2 or L3 once per tile, 16 KiB for 100 000 cycles of work. */
    BLOCK = SKL_BLOCK,
    /* Rows of a block where dim is short and score tiles are kept, or used at once. With 128 rows two tiles fit in L2,
     * and up to NEAR_TILES of them in a core's part of L3. Beyond that they come from far away in any case, and it pays
     * that more rows share a tile of columns. */
    BLOCK_NEAR = 128,
    NEAR_TILES = 32,
    BLOCK_FAR = 256,
    BLOCK_MIN = 64,    /* with fewer rows, recomputing logits is better than keeping them */
    TASKS_LEAST = 16,  /* small problems get blocks of fewer rows until there are this many tasks */
    TASKS_KEPT = 64,   /* blocks x tiles, unless there are threads for more */
    ALONE_GROUPS = 16, /* that many groups of segments, each ... */
    ALONE_WORK =
        1 << 27,     /* ... of at most so many multiply-adds, some 3 ms: a thread takes a group and does it alone */
    ALONE_SHARE = 4, /* longer ones, where a thread has that many of the longest: none waits long for the last */
    THREAD_WORK = 1 << 20, /* least multiply-adds for a thread: some 20 us, a few times what waking one costs */
    DA_ENTRIES = 192,      /* entries of da that a task takes, about, */
    DA_ENTRIES_LEAST = 96, /* or where there are more threads */
    TOPK_TILES = 20,       /* of a chunk at least where lists are made, */
    TOPK_COLUMNS = 8,      /* and so many columns for each entry of a list: a chunk keeps as many and more */
    TOPK_SPARE = 64,       /* picks that a row keeps beyond its list before it drops any, or as many again */
    SLAB_TILES = 32,       /* when recomputing: 6144 columns of logits at a time */
    ADDITIONS = 4096,      /* most blocks whose parts are added to one gradient of b in f32, unless they are large: each
                            * addition rounds, and the roundings of 20000 pass the bound of a gradient now and then */
    KEPT_HEADS = 128 << 20, /* most bytes of a call that keeps something of single heads */
    LARGE_SHARE = 8,        /* by default, one part in so many of a large vocabulary's matrices may be kept */
    THREAD_ROOM = 2 << 20   /* ... and so many bytes come on top for each thread */
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
static size_t all_bytes(const struct skl_plan *plan)
{
    int64_t blocks = round_up(plan->blocks * (int64_t)sizeof(struct skl_block), SKL_ALIGN);
    return skl_shared_bytes(plan) + (size_t)plan->threads * plan->thread_bytes + (size_t)blocks + plan->states_bytes +
           plan->sink_bytes;
}

static size_t count_bytes(const struct skl_work *w, struct skl_plan *plan)
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
    plan->bytes = all_bytes(plan);
    return plan->bytes;
}

/* How da is cut into tasks where dim is long: no sum depends on it, so that it may follow the threads. Parts of dim
 * first, down to DA_ENTRIES_LEAST entries, since each part of the rows packs the columns for itself. Every task reads all
 * of dz, from memory; a tile unit multiplies 192 entries faster than dz arrives, so that its tasks have as many entries as
 * a tile of columns. */
static void choose_da_tasks(const struct skl_work *w, struct skl_plan *plan)
{
    int64_t dim = most(w->side[0].grad_a.data ? w->side[0].dim : 0, w->side[1].grad_a.data ? w->side[1].dim : 0);
    int64_t aim = plan->products[1]->enter ? plan->products[1]->kc : DA_ENTRIES;
    int64_t usual = most((dim + aim - 1) / aim, 2), finest = most(dim / DA_ENTRIES_LEAST, usual);
    double best = 0;
    for (int64_t rows = 1; rows <= (plan->panels + 3) / 4; rows++)
        for (int64_t parts = usual; parts <= finest; parts++) {
            int64_t each = round_up((dim + parts - 1) / parts, plan->strip), panels = (plan->panels + rows - 1) / rows;
            int64_t turns = ((dim + each - 1) / each * rows + plan->threads - 1) / plan->threads;
            double even = (double)(dim * plan->panels) / (double)(plan->threads * turns * each * panels);
            if (even <= best || best >= 0.95)
                continue;
            best = even, plan->da_parts = parts, plan->da_row_parts = rows;
        }
}

/* May the panels of a chunk be different threads'? Everything that a sweep and dz leave is of one panel then. */
static int may_be_fine(const struct skl_work *w, const struct skl_plan *plan)
{
    int bias = w->side[0].grad_bias.data || w->side[1].grad_bias.data;
    return plan->one_panel && (!plan->recompute || !w->grads) && !plan->alone && !bias && !plan->queries &&
           !plan->picks && w->skip_below == 0 && !w->listed.given && !plan->details[0] && !plan->details[1] &&
           !plan->others;
}

/* Is the k-th group's b the k-th part of all b? Then who works on it clears it, too. */
static int clears_groups(const struct skl_work *w)
{
    int parts = !w->sequences;
    for (int i = 0; i < 2; i++) {
        const struct skl_work_side *s = &w->side[i];
        parts &= !s->grad_b.data || s->b_batch * s->b_heads * skl_sharing(s) == w->segments;
    }
    return parts;
}

/* Where threads have groups enough, each works through groups of its own: what a block keeps is then read by the core
 * that wrote it, from L2 if the block sees few tiles, and nobody waits at ends of phases. By tile no sum depends on it:
 * a block is cut into the same chunks. */
static void choose_own_groups(const struct skl_work *w, struct skl_plan *plan, size_t limit)
{
    double longest = (double)plan->rows * (double)plan->columns * (double)plan->group;
    struct skl_plan own = *plan;
    if (plan->alone || !plan->by_tile || w->shard.exchange || plan->kept_tiles > NEAR_TILES ||
        skl_elements(w) < ALONE_SHARE * plan->threads * longest)
        return;
    own.alone = own.blocks = 1;
    own.clears = clears_groups(w);
    own.thread_bytes += plan->block_bytes;
    own.bytes = all_bytes(&own);
    if (own.bytes <= limit)
        *plan = own;
}

/* How many threads there is room for. */
static int threads_that_fit(const struct skl_plan *plan, int threads, size_t limit)
{
    struct skl_plan one = *plan;
    one.threads = 1;
    size_t bytes = all_bytes(&one), room = limit > bytes ? (limit - bytes) / plan->thread_bytes : 0;
    return (int)least(threads, 1 + (int64_t)least((int64_t)room, SKL_THREADS_MAX));
}

/* How many threads' work 'threads' threads do in the same time: those that wait for the last task count for nothing. */
static double reach(const struct skl_work *w, const struct skl_plan *plan, int threads)
{
    int64_t tasks = plan->blocks * plan->chunks, turns = (tasks + threads - 1) / threads;
    return may_be_fine(w, plan) ? threads : (double)tasks / (double)turns;
}

/* By tile, where not all threads fit: fewer blocks at once, if more of them do then. */
static void make_room(const struct skl_work *w, struct skl_plan *plan, int threads, size_t limit)
{
    struct skl_plan fewer = *plan, best = *plan;
    if (threads_that_fit(plan, threads, limit) == threads)
        return;
    while (--fewer.blocks >= 1) {
        count_bytes(w, &fewer);
        if (reach(w, &fewer, threads_that_fit(&fewer, threads, limit)) >
            reach(w, &best, threads_that_fit(&best, threads, limit)))
            best = fewer;
    }
    *plan = best;
}

static void take_threads(const struct skl_work *w, struct skl_plan *plan, int threads, size_t limit)
{
    if (plan->by_tile)
        make_room(w, plan, threads, limit);
    plan->threads = threads_that_fit(plan, threads, limit);
    plan->bytes = all_bytes(plan);
    choose_own_groups(w, plan, limit);
}

/* Scores that the sweep and the gradient would each make for themselves, for speed, are kept where that leaves too few
 * tasks for the threads: panels of a chunk, and tiles of db, can be different threads' then. Chunks, the rows of a block
 * and all sums are the same. */
static void keep_for_threads(const struct skl_work *w, struct skl_plan *plan, int threads, size_t limit)
{
    struct skl_plan kept = *plan;
    if (plan->call != SKL_CALL_VALUE_AND_GRAD || plan->alone || !plan->recompute || !plan->beside)
        return;
    kept.recompute = kept.dz_beside = 0, kept.kept_tiles = plan->tiles;
    while (count_bytes(w, &kept) > limit && kept.blocks > 1) kept.blocks /= 2;
    if (kept.bytes > limit || !may_be_fine(w, &kept))
        return;
    take_threads(w, &kept, threads, limit);
    if (!kept.alone && reach(w, plan, plan->threads) < KEPT_SHARE * reach(w, &kept, kept.threads))
        *plan = kept;
}

/* Into how many parts of the panels each chunk is cut: as few as give all threads as much to do (0.95 of the longest), or
 * 0 where chunks do (0.85: packing the columns for each part, and a phase more for db, cost something). */
static int choose_fine(const struct skl_plan *plan)
{
    int64_t chunks = plan->blocks * plan->chunks, tiles = (plan->tiles + plan->chunks - 1) / plan->chunks;
    double best = 0;
    int fine = 0;
    for (int parts = 1; parts <= plan->panels && best < (parts == 2 ? 0.85 : 0.95); parts++) {
        int64_t turns = (chunks * parts + plan->threads - 1) / plan->threads;
        int64_t longest = turns * ((plan->panels + parts - 1) / parts) * tiles;
        double even = (double)(plan->blocks * plan->tiles * plan->panels) / (double)(longest * plan->threads);
        if (even > best + 0.02)
            best = even, fine = parts > 1 ? parts : 0;
    }
    return fine;
}

/* The plan was made to fit with one thread, so that it and the results are the same for any number; now as many
 * threads as were asked for, still fit, and have enough to do to be worth waking. */
static void choose_threads(const struct skl_work *w, struct skl_plan *plan)
{
    double products = w->grads ? 4 : 2, dim = (double)(skl_entries(&w->side[0]) + skl_entries(&w->side[1])) / 2;
    double elements = plan->gather ? (double)w->rows * (double)w->listed.k : skl_elements(w);
    double worth = products * elements * dim / THREAD_WORK;
    int threads = worth < (double)w->threads ? (int)most((int64_t)worth, 1) : w->threads;
    size_t limit = w->limit + (w->limit_is_default ? (size_t)threads * THREAD_ROOM : 0);
    take_threads(w, plan, threads, limit);
    keep_for_threads(w, plan, threads, limit);
    plan->da_parts = plan->da_row_parts = 1;
    if ((plan->by_tile || !w->grads) && may_be_fine(w, plan))
        plan->fine = choose_fine(plan);
    if ((w->side[0].grad_a.data || w->side[1].grad_a.data) && !plan->by_tile && !plan->gather)
        choose_da_tasks(w, plan);
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

/* Hundreds of short heads: the ends of phases would be most of what there is. Each group of segments is a task then, if
 * there are enough of them and none is long. */
static void choose_alone(const struct skl_work *w, struct skl_plan *plan)
{
    double entries = (double)(skl_entries(&w->side[0]) + skl_entries(&w->side[1])) * (w->grads ? 2 : 1);
    double work = entries * (double)plan->rows * (double)plan->columns * (double)plan->group;
    plan->alone = plan->groups >= ALONE_GROUPS && work <= ALONE_WORK && !w->shard.exchange && !plan->gather;
    plan->clears = plan->alone && clears_groups(w);
}

/* By tile: how many blocks at once, of 'from' or more, as few as give all threads as much to do. They are of different
 * groups, and a wave takes one of each. */
static int64_t even_blocks(const struct skl_plan *plan, int64_t groups, int64_t threads, int64_t from)
{
    double best = 0;
    int64_t even = from;
    for (int64_t blocks = from; blocks <= least(groups, SKL_BLOCKS) && best < 0.9; blocks++) {
        int64_t whole = (blocks * plan->tasks + threads - 1) / threads, left = groups % blocks * plan->tasks;
        int64_t turns = groups / blocks * whole + (left + threads - 1) / threads;
        double share = (double)(groups * plan->tasks) / (double)(turns * threads);
        if (share > best)
            best = share, even = blocks;
    }
    return even;
}

static void choose_blocks(const struct skl_work *w, struct skl_plan *plan)
{
    int64_t nr = plan->kernels->nr, groups = plan->groups, block = BLOCK,
            seen = most(seen_tiles(w, plan, BLOCK_NEAR), 1);
    if (plan->by_tile || (plan->kept_tiles && plan->whole))
        block = plan->kept_tiles > NEAR_TILES || (plan->alone && plan->rows <= BLOCK_FAR) ? BLOCK_FAR : BLOCK_NEAR;
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
        enough = even_blocks(plan, most(groups, 1), w->threads, most(TASKS_KEPT / seen, 1));
    plan->wave_tiles = plan->kept_tiles || plan->by_tile ? most(TASKS_KEPT, enough * seen) : SKL_BLOCKS * plan->tiles;
    int64_t blocks = w->sequences ? SKL_BLOCKS : least(SKL_BLOCKS, most(plan->wave_tiles / seen, 1));
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
    while (count_bytes(w, plan) > (plan->keeps_heads && w->limit > KEPT_HEADS ? KEPT_HEADS : w->limit)) {
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
    count_bytes(w, plan);
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
    while (count_bytes(w, plan) > w->limit) {
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
    choose_threads(&w, plan);
    return SKL_OK;
}
