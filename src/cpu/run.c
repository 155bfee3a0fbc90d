/* SPDX-License-Identifier: Apache-2.0
 *
 * The order of things. Every thread runs the same phases; a phase is a number of independent tasks, and ends in a
 * barrier:
 *
 *     wave: the blocks take their next rows
 *         (lists of keys: which columns the block has, keys.c)              block
 *         pack      rows into panels                                        block x panel
 *         (heads     exponentials of a mixture's heads, kept_heads.c        block x chunk
 *          sums      their denominators                                     block x panel)
 *         sweep     columns into states                                     block x chunk
 *         (a shard: the block's states meet those of the other shards, exchange.c)
 *         finish    states into loss, LSEs, factors                         block x panel
 *         (a divergence of two sweeps: the second sweep and finish)
 *         (sinks: their dz                                                  block x panel)
 *         tiles     dz, db, da of the chunk                                 block x chunk
 *             or, where chunks are uneven for the threads (sweeps, of values too, are block x chunk x part of the panels):
 *             rows      dz, da of the chunk                                 block x chunk x part of the panels
 *             columns   db                                                  block x tile x step of dim
 *             or, where dim is long, by slabs of kept tiles:
 *             columns   dz, db                                              block x part of a slab
 *             rows      da                                                  block x side x entries of dim
 *         write     da                                                      block x panel
 *
 *     where a listed teacher's columns are all there is: pack, then
 *         gather    scores, loss, dz, da of the listed columns              block x panel
 *         scatter   db                                                      block x chunk
 */
#define _DEFAULT_SOURCE /* madvise */
#include "run.h"

#include "../error.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

enum { CLEAR_PARTS = 64 };

/* ------------------------------------------------------------------------------------------------- tasks --- */

static void task_clear(struct skl_worker *w, struct skl_block *block, int64_t part)
{
    if (!w->run->plan.clears)
        skl_clear_outputs(w->run, part * w->run->plan.blocks + (block - w->run->blocks),
                          CLEAR_PARTS * w->run->plan.blocks);
}

static void task_flush(struct skl_worker *w, struct skl_block *block, int64_t part)
{
    skl_flush_columns(w->run, block, part);
}

static void task_keys(struct skl_worker *w, struct skl_block *block, int64_t part)
{
    (void)part;
    if (block->n)
        skl_list_keys(w, block);
}

static void task_pack(struct skl_worker *w, struct skl_block *block, int64_t part)
{
    if (part * w->run->plan.kernels->nr >= block->n)
        return;
    if (block->lists)
        skl_pack_lists(w->run, block, (int)part);
    if (w->run->plan.gather)
        return;
    skl_pack_panel(w, block, (int)part);
    if (block->lists && w->run->plan.call == SKL_CALL_BACKWARD)
        skl_gather_scores(w, block, (int)part);
    if (w->run->plan.call == SKL_CALL_BACKWARD || w->run->second_sweep_only)
        skl_load_saved(w->run, block, (int)part);
}

static void task_gather(struct skl_worker *w, struct skl_block *block, int64_t part)
{
    if (part * w->run->plan.kernels->nr < block->n)
        skl_gather_panel(w, block, (int)part);
}

static void task_scatter(struct skl_worker *w, struct skl_block *block, int64_t part)
{
    if (block->n)
        skl_scatter_chunk(w, block, part);
}

/* A chunk, of some panels where the plan is fine. */
static int64_t take_chunk(struct skl_worker *w, int64_t part)
{
    int64_t parts = w->run->plan.fine ? w->run->plan.fine : 1, panels = w->run->plan.panels;
    w->from = (int)(panels * (part % parts) / parts), w->to = (int)(panels * (part % parts + 1) / parts);
    return part / parts;
}

static int64_t chunk_tasks(const struct skl_plan *plan)
{
    return plan->chunks * (plan->fine ? plan->fine : 1);
}

static void task_sweep(struct skl_worker *w, struct skl_block *block, int64_t part)
{
    int64_t chunk = take_chunk(w, part);
    if (block->n)
        skl_sweep(w, block, chunk, 0);
}

static void task_heads(struct skl_worker *w, struct skl_block *block, int64_t part)
{
    if (block->n)
        skl_keep_heads(w, block, part);
}

static void task_sum_heads(struct skl_worker *w, struct skl_block *block, int64_t part)
{
    if (part * w->run->plan.kernels->nr < block->n)
        skl_sum_heads(w->run, block, (int)part);
}

static void task_second_sweep(struct skl_worker *w, struct skl_block *block, int64_t part)
{
    int64_t chunk = take_chunk(w, part);
    if (block->n)
        skl_sweep(w, block, chunk, 1);
}

static void task_chunk_rows(struct skl_worker *w, struct skl_block *block, int64_t part)
{
    int64_t chunk = take_chunk(w, part);
    if (block->n)
        skl_grad_chunk_rows(w, block, chunk);
}

static void task_tile_columns(struct skl_worker *w, struct skl_block *block, int64_t part)
{
    const struct skl_run *run = w->run;
    int64_t steps = skl_dim_steps(run->work, &run->plan, 0) + skl_dim_steps(run->work, &run->plan, 1);
    if (block->n && steps)
        skl_grad_tile_columns(w, block, part / steps, part % steps);
}

static void task_finish(struct skl_worker *w, struct skl_block *block, int64_t part)
{
    if (part * w->run->plan.kernels->nr < block->n)
        skl_finish_panel(w, block, (int)part);
}

static void task_states(struct skl_worker *w, struct skl_block *block, int64_t part)
{
    if (part * w->run->plan.kernels->nr < block->n)
        skl_write_states(w->run, block, (int)part);
}

/* After the first sweep: labels, too. */
static void task_first_states(struct skl_worker *w, struct skl_block *block, int64_t part)
{
    task_states(w, block, part);
    if (block->labels && part * w->run->plan.kernels->nr < block->n)
        skl_write_label_states(w->run, block, (int)part);
}

static void task_finish_second(struct skl_worker *w, struct skl_block *block, int64_t part)
{
    if (part * w->run->plan.kernels->nr < block->n)
        skl_finish_second(w, block, (int)part);
}

static void task_write(struct skl_worker *w, struct skl_block *block, int64_t part)
{
    if (part * w->run->plan.kernels->nr < block->n)
        skl_write_grad_rows(w, block, (int)part);
}

static void task_sinks(struct skl_worker *w, struct skl_block *block, int64_t part)
{
    if (part * w->run->plan.kernels->nr < block->n)
        skl_grad_sink(w->run, block, (int)part);
}

static void task_tiles(struct skl_worker *w, struct skl_block *block, int64_t part)
{
    if (block->n)
        skl_grad_chunk(w, block, part);
}

static int64_t slab_end(const struct skl_worker *w)
{
    int64_t end = w->slab + w->run->plan.kept_tiles;
    return end < w->run->plan.tiles ? end : w->run->plan.tiles;
}

static void task_columns(struct skl_worker *w, struct skl_block *block, int64_t part)
{
    int64_t tiles = slab_end(w) - w->slab, tasks = w->slab_tasks;
    if (block->n)
        skl_grad_columns(w, block, w->slab, w->slab + tiles * part / tasks, w->slab + tiles * (part + 1) / tasks);
}

static int64_t tasks_of_side(const struct skl_run *run, int side)
{
    return run->work->side[side].grad_a.data ? skl_da_tasks(run->work, &run->plan, side) : 0;
}

/* Entries of da of some panels. */
static void task_rows(struct skl_worker *w, struct skl_block *block, int64_t part)
{
    const struct skl_run *run = w->run;
    int64_t tasks = tasks_of_side(run, 0), panels = run->plan.panels, rows = run->plan.da_row_parts;
    int side = part >= tasks, entries = skl_da_entries_of_task(run->work, &run->plan, side);
    int64_t k = side ? part - tasks : part, d0 = k / rows * entries, left = run->work->side[side].dim - d0;
    if (block->n)
        skl_grad_rows(w, block, w->slab, slab_end(w), side, d0, left < entries ? (int)left : entries,
                      (int)(panels * (k % rows) / rows), (int)(panels * (k % rows + 1) / rows));
}

/* ------------------------------------------------------------------------------------------------- waves --- */

static void do_slabs(struct skl_worker *w)
{
    const struct skl_plan *plan = &w->run->plan;
    int64_t tasks = tasks_of_side(w->run, 0) + tasks_of_side(w->run, 1);
    for (w->slab = 0; w->slab < plan->tiles; w->slab += plan->kept_tiles) {
        w->slab_tasks = skl_slab_tasks(plan); /* the thread that kept a tile uses it */
        skl_do_phase(w, w->slab_tasks, task_columns);
        if (tasks)
            skl_do_phase(w, tasks, task_rows);
    }
}

static void do_grads(struct skl_worker *w)
{
    const struct skl_run *run = w->run;
    int64_t steps = skl_dim_steps(run->work, &run->plan, 0) + skl_dim_steps(run->work, &run->plan, 1);
    if (run->plan.fine) {
        skl_do_phase(w, chunk_tasks(&run->plan), task_chunk_rows);
        if (steps)
            skl_do_phase(w, run->plan.tiles * steps, task_tile_columns);
    } else if (run->plan.by_tile) {
        skl_do_phase(w, run->plan.chunks, task_tiles);
    } else {
        do_slabs(w);
    }
    if (skl_has_grad_rows(&run->work->side[0]) || skl_has_grad_rows(&run->work->side[1]))
        skl_do_phase(w, run->plan.panels, task_write);
}

/* A sweep and what follows it: the states are the result of a skl_partial; on a shard they meet those of the others. */
static void do_sweep(struct skl_worker *w, skl_task *sweep, skl_task *finish)
{
    struct skl_run *run = w->run;
    int first = sweep == task_sweep;
    int partial = run->plan.call == SKL_CALL_PARTIAL, shard = run->work->shard.exchange != NULL;
    skl_do_phase(w, chunk_tasks(&run->plan), sweep);
    if (partial || shard)
        skl_do_phase(w, run->plan.panels, first && shard ? task_first_states : task_states);
    if (shard && w->rank == 0) { /* the caller's function meets the caller's tiles */
        skl_leave_unit(w);
        skl_exchange_states(run, first ? skl_shared_states(run->work) : 1);
        skl_enter_unit(w);
    }
    if (shard)
        skl_team_barrier(&run->team);
    if (!partial)
        skl_do_phase(w, run->plan.panels, finish);
}

static void do_wave(struct skl_worker *w)
{
    const struct skl_run *run = w->run;
    const struct skl_plan *plan = &run->plan;
    if (plan->queries)
        skl_do_phase(w, 1, task_keys);
    skl_do_phase(w, plan->panels, task_pack);
    if (plan->gather) {
        skl_do_phase(w, plan->panels, task_gather);
        if (plan->own_columns)
            skl_do_phase(w, plan->chunks, task_scatter);
        return;
    }
    if (plan->keeps_heads & 1 << !run->work->student) {
        skl_do_phase(w, plan->chunks, task_heads);
        skl_do_phase(w, plan->panels, task_sum_heads);
    }
    if (plan->call != SKL_CALL_BACKWARD && !run->second_sweep_only)
        do_sweep(w, task_sweep, task_finish);
    if (run->second_sweep_only || plan->second_sweep)
        do_sweep(w, task_second_sweep, task_finish_second);
    if (run->work->sink_grads)
        skl_do_phase(w, plan->panels, task_sinks);
    if (run->work->grads)
        do_grads(w);
}

static void count_rows(const struct skl_worker *w, const struct skl_block *block)
{
    w->scratch.queue->rows += block->n;
    if (w->run->work->sink_grads && !atomic_load_explicit(&w->run->cancelled, memory_order_relaxed))
        skl_add_sinks(w->run, block); /* the rows of a call that was stopped may have none */
}

static void do_waves(struct skl_worker *w)
{
    struct skl_run *run = w->run;
    for (;;) {
        w->phases_in_wave = 0;
        if (w->rank == 0) /* and only rank 0, so that all threads decide alike */
            run->more = skl_next_wave(run) && !atomic_load_explicit(&run->cancelled, memory_order_relaxed);
        skl_team_barrier(&run->team);
        int more = run->more;
        if (run->plan.own_columns)
            skl_do_phase(w, run->plan.chunks, task_flush);
        if (!more)
            break;
        do_wave(w);
        for (int i = 0; w->rank == 0 && i < run->plan.blocks; i++) {
            count_rows(w, &run->blocks[i]);
            run->rows_done += run->blocks[i].n;
        }
    }
}

/* The next group's first segment into L2, where it is short: it is over before the processor sees a pattern in it, and
 * packing would wait for each line. */
static inline __attribute__((always_inline)) void ask_for_group(const struct skl_run *run, int64_t group)
{
    enum { MOST = 1 << 13 }; /* numbers of a side */
    const struct skl_work *w = run->work;
    if (group >= run->plan.groups || !run->plan.one_panel || w->together > 1)
        return;
    struct skl_segment s = skl_segment_at(w, group * run->plan.group);
    for (int side = 0; side < 2; side++) {
        const struct skl_work_side *x = &w->side[side];
        int64_t head = skl_head_of(x, s.head, x->member);
        if (!x->dim || (s.rows + s.columns) * x->dim > MOST)
            continue;
        for (int64_t i = 0; i < s.rows; i++) skl_ask_for_row(&x->a, s.batch, head, s.query + i, x->dim);
        for (int64_t i = 0; i < s.columns; i++) skl_ask_for_row(&x->b, s.batch, head / x->group, s.column + i, x->dim);
    }
}

/* A whole group of segments: waves of one block that are this thread's alone. */
static void task_group(struct skl_worker *w, struct skl_block *block, int64_t part)
{
    const struct skl_plan *plan = &w->run->plan;
    block = &w->own;
    w->alone = block;
    if (plan->clears)
        skl_clear_outputs(w->run, part, plan->groups);
    skl_take_group(w->run, block, part);
    ask_for_group(w->run, part + 1);
    for (;;) {
        int more = skl_next_rows(w->run, block);
        if (plan->own_columns)
            skl_do_phase(w, plan->chunks, task_flush);
        if (!more || atomic_load_explicit(&w->run->cancelled, memory_order_relaxed))
            break;
        do_wave(w);
        count_rows(w, block);
    }
    w->alone = NULL;
}

static void work_together(void *data, int rank)
{
    struct skl_run *run = data;
    struct skl_worker w = {.run = run, .rank = rank, .to = run->plan.panels};
    char *mine = run->scratch + (size_t)rank * run->plan.thread_bytes;
    size_t used = skl_lay_scratch(run->work, &run->plan, mine, &w.scratch);
    if (run->plan.alone)
        skl_lay_block(run->work, &run->plan, mine + used, &w.own);
    skl_enter_unit(&w);
    skl_do_phase(&w, CLEAR_PARTS, task_clear);
    if (run->plan.alone)
        skl_do_phase(&w, run->plan.groups, task_group);
    else
        do_waves(&w);
    skl_leave_unit(&w);
}

/* Large pages where the system hands them out on request: kept logits are gone through once in each direction, and
 * their first touch costs a fault a page. */
static void want_large_pages(char *memory, size_t bytes)
{
#ifdef MADV_HUGEPAGE
    size_t page = 4096, skip = (page - (uintptr_t)memory % page) % page;
    if (bytes >= (size_t)4 << 20)
        (void)madvise(memory + skip, (bytes - skip) / page * page,
                      MADV_HUGEPAGE); /* advice: its failure changes nothing */
#else
    (void)memory, (void)bytes;
#endif
}

/* Gradients of b, often fresh memory: every page of them is written, and in pages of 4 KiB that is a fault for each. */
static void want_large_gradients(const struct skl_work *w)
{
    for (int side = 0; side < 2; side++) {
        const struct skl_work_side *s = &w->side[side];
        int64_t columns = s->b_rows * s->dim, size = skl_size_of(s->grad_b.dtype);
        for (int64_t b = 0; s->grad_b.data && s->grad_b.stride[2] == s->dim && b < s->b_batch * s->b_heads; b++)
            want_large_pages(skl_operand_at(&s->grad_b, b / s->b_heads, b % s->b_heads, 0), (size_t)(columns * size));
    }
}

/* The blocks, their buffers and the threads' buffers, in one allocation. */
static char *lay_out(struct skl_run *run)
{
    const struct skl_plan *plan = &run->plan;
    char *memory = aligned_alloc(SKL_ALIGN, plan->bytes);
    if (!memory)
        return NULL;
    want_large_pages(memory, plan->bytes);
    run->scratch = memory + skl_shared_bytes(plan);
    run->blocks = (struct skl_block *)(run->scratch + (size_t)plan->threads * plan->thread_bytes);
    if (run->work->shard.exchange)
        run->states = (struct skl_state *)(memory + plan->bytes - plan->states_bytes);
    if (run->work->sink_grads) {
        run->sinks = (double *)(memory + plan->bytes - plan->states_bytes - plan->sink_bytes);
        memset(run->sinks, 0, plan->sink_bytes);
    }
    for (int i = 0; i < plan->threads; i++) memset(skl_queue_of(run, i), 0, sizeof(struct skl_queue));
    for (int i = 0; i < plan->blocks; i++) {
        run->blocks[i] = (struct skl_block){0};
        if (!plan->alone)
            skl_lay_block(run->work, plan, memory + (size_t)i * plan->block_bytes, &run->blocks[i]);
    }
    return memory;
}

enum skl_status skl_run_nothing(struct skl_run *run)
{
    skl_clear_outputs(run, 0, 1);
    if (run->work->value)
        *run->work->value = 0;
    return SKL_OK;
}

/* How long to wait for a thread, in seconds: a quarter of the time that the call takes on one thread. A second thread
 * saves half of that time at most. Where others keep the processors busy (torch's idle threads do, for milliseconds), a
 * small call is done before another thread could have begun. */
static double patience(const struct skl_work *w)
{
    enum { LEAST = 20 };                   /* microseconds; a thread that is awake needs one */
    double products_a_microsecond = 50000; /* of one core, roughly */
    double dims = (double)(skl_entries(&w->side[0]) + skl_entries(&w->side[1])) * (w->grads ? 2 : 1);
    double call = skl_elements(w) * dims / products_a_microsecond;
    return 1e-6 * (call / 4 > LEAST ? call / 4 : LEAST);
}

enum skl_status skl_run(struct skl_run *run)
{
    for (int side = 0; side < 2; side++) { /* beyond f32 any unit is as good as the largest */
        double unit = SKL_LOG2E * run->work->side[side].unit;
        run->unit[side] = unit < (double)FLT_MAX ? (float)unit : FLT_MAX;
    }
    struct skl_exact_sum value = {{0}, 0, 0};
    int64_t rows = 0;
    char *memory = lay_out(run);
    if (!memory)
        return skl_fail(SKL_OUT_OF_MEMORY, "cannot allocate the workspace of %zu bytes", run->plan.bytes);
    want_large_gradients(run->work);
    skl_team_run(&run->team, run->plan.threads, patience(run->work), work_together, run);
    for (int i = 0; i < run->plan.threads; i++) {
        skl_sum_merge(&value, &skl_queue_of(run, i)->value);
        rows += skl_queue_of(run, i)->rows;
    }
    if (run->work->sink_grads)
        skl_write_sinks(run);
    free(memory);
    if (run->refused)
        return skl_fail(SKL_CANCELLED, "shard.exchange returned %d: the call was stopped", run->refused);
    if (atomic_load(&run->cancelled))
        return skl_fail(SKL_CANCELLED, "the progress callback asked to stop");
    if (run->work->value) {
        const struct skl_work *w = run->work;
        *w->value = skl_reduced(skl_sum_value(&value), w->mean, rows > 0, w->weight_sum);
    }
    return SKL_OK;
}
