/* SPDX-License-Identifier: Apache-2.0
 *
 * The threads' part of a plan: how many there are, how many blocks are under way, and how finely a block's work is cut,
 * so that all threads have equal work. No sum depends on any of it.
 */
#include "numbers.h"
#include "plan.h"

/* Scores that are made twice for speed are kept where these threads would have less than this share of the work. */
static const double KEPT_SHARE = 0.8;

enum {
    MANY_THREADS = 8,
    PACKED_ROWS = 8, /* packing a tile of columns costs about as much as its products with so many rows */
    ALONE_SHARE = 4, /* groups that are a thread's alone: that many of the longest for each, so that none waits long */
    THREAD_WORK = 1 << 20, /* least multiply-adds for a thread: some 20 us, a few times what waking one costs */
    DA_ENTRIES = 192,      /* entries of da that a task takes, about, */
    DA_ENTRIES_LEAST = 96, /* or where there are more threads */
    THREAD_ROOM = 2 << 20  /* ... and so many bytes come on top for each thread */
};

/* ------------------------------------------------------------------------------------------------- evenness --- */

/* May the panels of a chunk be different threads'? Everything that a sweep and dz leave is of one panel then. */
static int may_be_fine(const struct skl_work *w, const struct skl_plan *plan)
{
    int bias = w->side[0].grad_bias.data || w->side[1].grad_bias.data;
    return plan->one_panel && (!plan->recompute || !w->grads) && !plan->alone && !bias && !plan->queries &&
           !plan->picks && w->skip_below == 0 && !w->listed.given && !plan->details[0] && !plan->details[1] &&
           !plan->others;
}

/* Columns that a block sees of the window around the diagonal, on average over some blocks of a segment: all segments are
 * alike. (Ranges of single rows are not looked at: a plan reads no tensor.) */
static double seen_columns(const struct skl_work *w, const struct skl_plan *plan)
{
    enum { SAMPLES = 16 };
    struct skl_segment s = skl_segment_at(w, 0);
    int64_t rows = s.rows / w->together, of_block = most(plan->block_rows / w->together, 1);
    int64_t blocks = (rows + of_block - 1) / of_block, n = least(blocks, SAMPLES), seen = 0;
    for (int64_t k = 0; k < n; k++) {
        int64_t first = blocks * k / n * of_block, last = least(first + of_block, rows) - 1;
        struct skl_range a = skl_window(first, rows, s.columns, w->left, w->right);
        struct skl_range b = skl_window(last, rows, s.columns, w->left, w->right);
        seen += most(least(b.hi, s.columns) - most(a.lo, 0), 0);
    }
    return (double)seen / (double)n;
}

/* Blocks of a wave along a diagonal see different numbers of columns, so that tasks are of all sizes. Few threads do not
 * wait long for the last one: with two, finer tasks took up to 5 % longer than what they made more even. */
static int uneven(const struct skl_work *w, const struct skl_plan *plan, int64_t threads)
{
    return (w->left >= 0 || w->right >= 0) && !w->sequences && !w->pool_block && threads >= MANY_THREADS &&
           seen_columns(w, plan) < (double)plan->columns;
}

/* How many of 'chunks' chunks a block has that sees as many columns as usual. */
static int64_t usual_chunks(const struct skl_work *w, const struct skl_plan *plan, int64_t chunks)
{
    return least(chunks, (int64_t)(seen_columns(w, plan) / plan->bk) + 1);
}

/* How many threads' work 'threads' threads do in the same time: those that wait for the last task count for nothing.
 * If tasks are of all sizes, they wait for half of it or more. */
static double reach(const struct skl_work *w, const struct skl_plan *plan, int threads)
{
    int64_t tasks = plan->blocks * plan->chunks, turns = (tasks + threads - 1) / threads;
    if (may_be_fine(w, plan))
        return threads;
    if (!uneven(w, plan, threads))
        return (double)tasks / (double)turns;
    tasks = plan->blocks * usual_chunks(w, plan, plan->chunks);
    return (double)tasks / (1 + (double)tasks / threads);
}

/* By tile. */
int64_t skl_most_blocks(const struct skl_work *w)
{
    return w->threads >= MANY_THREADS ? SKL_BLOCKS_BY_TILE : SKL_BLOCKS;
}

/* By tile: how many blocks at once, of 'from' or more, as few as give all threads equal work. They are of different groups,
 * and a wave takes one of each. */
int64_t skl_even_blocks(const struct skl_work *w, const struct skl_plan *plan, int64_t groups, int64_t from)
{
    double best = 0;
    int64_t even = from, threads = w->threads;
    if (uneven(w, plan, threads)) { /* two tasks for each thread */
        int64_t enough = (2 * threads - 1) / usual_chunks(w, plan, plan->tasks) + 1;
        return most(from, least(enough, least(groups, skl_most_blocks(w))));
    }
    for (int64_t blocks = from; blocks <= least(groups, skl_most_blocks(w)) && best < 0.9; blocks++) {
        int64_t whole = (blocks * plan->tasks + threads - 1) / threads, left = groups % blocks * plan->tasks;
        int64_t turns = groups / blocks * whole + (left + threads - 1) / threads;
        double share = (double)(groups * plan->tasks) / (double)(turns * threads);
        if (share > best)
            best = share, even = blocks;
    }
    return even;
}

/* -------------------------------------------------------------------------------------------------- tasks --- */

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
    for (int64_t rows = 1; rows <= plan->panels; rows++)
        for (int64_t parts = usual; parts <= finest; parts++) {
            int64_t each = round_up((dim + parts - 1) / parts, plan->strip), panels = (plan->panels + rows - 1) / rows;
            int64_t turns = ((dim + each - 1) / each * rows + plan->threads - 1) / plan->threads;
            double even = (double)(dim * plan->panels) / (double)(plan->threads * turns * each * panels);
            double packs = 1 + (double)(PACKED_ROWS * (rows - 1)) / plan->block_rows; /* beyond the first part's */
            if (even / packs <= best || best >= 0.95)
                continue;
            best = even / packs, plan->da_parts = parts, plan->da_row_parts = rows;
        }
}

/* At the end of a phase threads wait for the last task. Smaller ones make that shorter, but each part of the panels packs
 * the columns for itself. */
static int fine_uneven(const struct skl_work *w, const struct skl_plan *plan)
{
    int64_t chunks = plan->blocks * usual_chunks(w, plan, plan->chunks);
    double shortest = 0;
    int fine = 0;
    for (int of_part = plan->panels; of_part >= 1; of_part--) { /* panels */
        int parts = (plan->panels + of_part - 1) / of_part;
        double packs = 1 + (double)PACKED_ROWS / (of_part * plan->kernels->nr);
        double time = packs * (1 + 2.0 * plan->threads / (double)(chunks * parts)); /* the last one may be a long one */
        if (parts == 1 || time < 0.98 * shortest)
            shortest = time, fine = parts > 1 ? parts : 0;
    }
    return fine;
}

/* Into how many parts of the panels each chunk is cut: as few as give all threads equal work (0.95 of the longest), or
 * 0 where chunks do (0.85: packing the columns for each part, and a phase more for db, cost something). */
static int choose_fine(const struct skl_work *w, const struct skl_plan *plan)
{
    if (uneven(w, plan, plan->threads))
        return fine_uneven(w, plan);
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

/* ------------------------------------------------------------------------------------------------- threads --- */

/* Where threads have groups enough, each works through groups of its own: what a block keeps is then read by the core
 * that wrote it, from L2 if the block sees few tiles, and nobody waits at ends of phases. By tile no sum depends on it:
 * a block is cut into the same chunks. */
static void choose_own_groups(const struct skl_work *w, struct skl_plan *plan, size_t limit)
{
    double longest = (double)plan->rows * (double)plan->columns * (double)plan->group;
    struct skl_plan own = *plan;
    if (plan->alone || !plan->by_tile || w->shard.exchange || plan->kept_tiles > SKL_NEAR_TILES ||
        skl_elements(w) < ALONE_SHARE * plan->threads * longest)
        return;
    own.alone = own.blocks = 1;
    own.clears = skl_clears_groups(w);
    own.thread_bytes += plan->block_bytes;
    own.bytes = skl_plan_bytes(&own);
    if (own.bytes <= limit)
        *plan = own;
}

/* How many threads there is room for. */
static int threads_that_fit(const struct skl_plan *plan, int threads, size_t limit)
{
    struct skl_plan one = *plan;
    one.threads = 1;
    size_t bytes = skl_plan_bytes(&one), room = limit > bytes ? (limit - bytes) / plan->thread_bytes : 0;
    return (int)least(threads, 1 + (int64_t)least((int64_t)room, SKL_THREADS_MAX));
}

/* By tile, where not all threads fit: fewer blocks at once, if more of them do then. */
static void make_room(const struct skl_work *w, struct skl_plan *plan, int threads, size_t limit)
{
    struct skl_plan fewer = *plan, best = *plan;
    if (threads_that_fit(plan, threads, limit) == threads)
        return;
    while (--fewer.blocks >= 1) {
        skl_count_bytes(w, &fewer);
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
    plan->bytes = skl_plan_bytes(plan);
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
    while (skl_count_bytes(w, &kept) > limit && kept.blocks > 1) kept.blocks /= 2;
    if (kept.bytes > limit || !may_be_fine(w, &kept))
        return;
    take_threads(w, &kept, threads, limit);
    if (!kept.alone && reach(w, plan, plan->threads) < KEPT_SHARE * reach(w, &kept, kept.threads))
        *plan = kept;
}

/* The plan was made to fit with one thread, so that it and the results are the same for any number; now as many
 * threads as were asked for, still fit, and have enough to do to be worth waking. */
void skl_choose_threads(const struct skl_work *w, struct skl_plan *plan)
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
        plan->fine = choose_fine(w, plan);
    if ((w->side[0].grad_a.data || w->side[1].grad_a.data) && !plan->by_tile && !plan->gather)
        choose_da_tasks(w, plan);
}
