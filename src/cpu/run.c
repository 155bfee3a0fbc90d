/* SPDX-License-Identifier: Apache-2.0
 *
 * The order of things. Every thread runs the same phases; a phase is a number of independent tasks, and ends in a
 * barrier:
 *
 *     wave: the lanes take their next rows
 *         pack      rows into panels                                        lane x panel
 *         sweep     columns into states                                     lane x chunk
 *         finish    states into loss, LSEs, factors                         lane x panel
 *         (JSD: a second sweep and finish)
 *         tiles     dz, db, da of the chunk                                 lane x chunk
 *             or, where dim is long, by slabs of kept tiles:
 *             columns   dz, db                                              lane x run of tiles
 *             rows      da                                                  lane x side x run of entries
 *         write     da                                                      lane x panel
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

enum { CLEAR_PARTS = 64, DA_ENTRIES = 192, SLAB_TASKS = 8 };

/* One task of the phase under way. */
typedef void phase_task(struct skl_worker *w, struct skl_lane *lane, int64_t part);

/* ------------------------------------------------------------------------------------------------ shares --- */

/* A thread's share is the same part of the columns in each phase over columns: what it has written it finds in its own
 * cache, where cores do not have one together. It takes tasks from the front of its share; who has done his takes from
 * others' backs. */
static struct skl_share *share_of(const struct skl_run *run, int rank)
{
    return (struct skl_share *)(run->scratch + (size_t)rank * run->plan.thread_bytes);
}

/* Which of the share's tasks is to be done now; -1: none is left. */
static int64_t take_task(struct skl_share *s, int phase, int64_t share, int from_back)
{
    unsigned long long taken = atomic_load_explicit(&s->taken[phase], memory_order_relaxed);
    for (;;) {
        int64_t front = (int64_t)(taken & UINT32_MAX), back = (int64_t)(taken >> 32);
        if (front + back >= share)
            return -1;
        if (atomic_compare_exchange_weak_explicit(&s->taken[phase], &taken, taken + (from_back ? 1ull << 32 : 1),
                                                  memory_order_relaxed, memory_order_relaxed))
            return from_back ? share - 1 - back : front;
    }
}

/* Rank 0 is the caller's thread: only it may call back. 'done' is the part it has done of its share. */
static void report(struct skl_worker *w, double done)
{
    struct skl_run *run = w->run;
    if (w->rank || !run->work->progress || atomic_load_explicit(&run->cancelled, memory_order_relaxed))
        return;
    int64_t rows = 0;
    for (int i = 0; i < run->plan.lanes; i++) rows += run->lanes[i].n;
    double phases = (double)w->phases_in_wave + done;
    double part = phases / (phases + 1); /* rises towards 1 with every phase of a wave */
    double fraction = ((double)run->rows_done + part * (double)rows) / (double)run->work->rows;
    skl_leave_float_mode(*run->caller_mode);
    int stop = run->work->progress(run->work->progress_data, fraction < 1 ? fraction : 1);
    *run->caller_mode = skl_enter_float_mode();
    if (stop)
        atomic_store_explicit(&run->cancelled, 1, memory_order_relaxed);
}

/* Does the tasks of its own share in order, then those the other threads have not come to, then waits for them. */
static void do_phase(struct skl_worker *w, int64_t parts, phase_task *task)
{
    struct skl_run *run = w->run;
    int64_t tasks = run->plan.lanes * parts;
    int odd = (int)(w->phase & 1), team = run->team.size;
    atomic_store_explicit(&share_of(run, w->rank)->taken[!odd], 0,
                          memory_order_relaxed); /* nobody looks before the barrier */
    for (int i = 0; i < team; i++) {
        int rank = (w->rank + i) % team;
        int64_t first = tasks * rank / team, share = tasks * (rank + 1) / team - first;
        for (int64_t k; (k = take_task(share_of(run, rank), odd, share, i > 0)) >= 0;) {
            if (atomic_load_explicit(&run->cancelled, memory_order_relaxed))
                break;
            task(w, &run->lanes[(first + k) / parts], (first + k) % parts);
            report(w, i ? 1 : (double)(k + 1) / (double)share);
        }
    }
    w->phase++;
    w->phases_in_wave++;
    skl_team_barrier(&run->team);
}

/* ------------------------------------------------------------------------------------------------- tasks --- */

static void task_clear(struct skl_worker *w, struct skl_lane *lane, int64_t part)
{
    skl_clear_outputs(w->run, part * w->run->plan.lanes + (lane - w->run->lanes), CLEAR_PARTS * w->run->plan.lanes);
}

static void task_flush(struct skl_worker *w, struct skl_lane *lane, int64_t part)
{
    skl_flush_columns(w->run, lane, part);
}

static void task_pack(struct skl_worker *w, struct skl_lane *lane, int64_t part)
{
    if (part * w->run->work->kernels->nr >= lane->n)
        return;
    skl_pack_panel(w, lane, (int)part);
    if (w->run->plan.call == SKL_CALL_BACKWARD || w->run->second_sweep_only)
        skl_load_saved(w->run, lane, (int)part);
}

static void task_sweep(struct skl_worker *w, struct skl_lane *lane, int64_t part)
{
    if (lane->n)
        skl_sweep(w, lane, part);
}

static void task_sweep_jsd(struct skl_worker *w, struct skl_lane *lane, int64_t part)
{
    if (lane->n)
        skl_sweep_jsd(w, lane, part);
}

static void task_finish(struct skl_worker *w, struct skl_lane *lane, int64_t part)
{
    if (part * w->run->work->kernels->nr >= lane->n)
        return;
    if (w->run->partial)
        skl_write_partial(w->run, lane, (int)part);
    else
        skl_finish_panel(w->run, lane, (int)part);
}

static void task_finish_jsd(struct skl_worker *w, struct skl_lane *lane, int64_t part)
{
    if (part * w->run->work->kernels->nr < lane->n)
        skl_finish_panel_jsd(w->run, lane, (int)part);
}

static void task_write(struct skl_worker *w, struct skl_lane *lane, int64_t part)
{
    if (part * w->run->work->kernels->nr < lane->n)
        skl_write_grad_rows(w, lane, (int)part);
}

static void task_tiles(struct skl_worker *w, struct skl_lane *lane, int64_t part)
{
    if (lane->n)
        skl_grad_chunk(w, lane, part);
}

static int64_t slab_end(const struct skl_worker *w)
{
    int64_t end = w->slab + w->run->plan.kept_tiles;
    return end < w->run->plan.tiles ? end : w->run->plan.tiles;
}

static void task_columns(struct skl_worker *w, struct skl_lane *lane, int64_t part)
{
    int64_t tiles = slab_end(w) - w->slab, runs = w->runs;
    if (lane->n)
        skl_grad_columns(w, lane, w->slab, w->slab + tiles * part / runs, w->slab + tiles * (part + 1) / runs);
}

/* Entries of da come in equal runs, two at least and of up to DA_ENTRIES, at whole strips of the micro-kernel. */
static int run_of_entries(const struct skl_work *w, int side)
{
    int64_t dim = w->side[side].dim, runs = (dim + DA_ENTRIES - 1) / DA_ENTRIES, mr = w->kernels->mr;
    runs = runs < 2 ? 2 : runs;
    return (int)(((dim + runs - 1) / runs + mr - 1) / mr * mr);
}

static int64_t runs_of_entries(const struct skl_work *w, int side)
{
    int run = run_of_entries(w, side);
    return w->side[side].grad_a.data ? (w->side[side].dim + run - 1) / run : 0;
}

static void task_rows(struct skl_worker *w, struct skl_lane *lane, int64_t part)
{
    const struct skl_work *work = w->run->work;
    int64_t runs = runs_of_entries(work, 0);
    int side = part >= runs, run = run_of_entries(work, side);
    int64_t d0 = (side ? part - runs : part) * run, left = work->side[side].dim - d0;
    if (lane->n)
        skl_grad_rows(w, lane, w->slab, slab_end(w), side, d0, left < run ? (int)left : run);
}

/* ------------------------------------------------------------------------------------------------- waves --- */

static void do_slabs(struct skl_worker *w)
{
    const struct skl_plan *plan = &w->run->plan;
    int64_t entries = runs_of_entries(w->run->work, 0) + runs_of_entries(w->run->work, 1);
    for (w->slab = 0; w->slab < plan->tiles; w->slab += plan->kept_tiles) {
        w->runs = plan->recompute ? SLAB_TASKS : plan->chunks; /* whoever kept a tile uses it */
        do_phase(w, w->runs, task_columns);
        if (entries)
            do_phase(w, entries, task_rows);
    }
}

static void do_grads(struct skl_worker *w)
{
    const struct skl_run *run = w->run;
    if (run->plan.by_tile)
        do_phase(w, run->plan.chunks, task_tiles);
    else
        do_slabs(w);
    if (run->work->side[0].grad_a.data || run->work->side[1].grad_a.data)
        do_phase(w, run->plan.panels, task_write);
}

static void do_wave(struct skl_worker *w)
{
    const struct skl_run *run = w->run;
    const struct skl_plan *plan = &run->plan;
    do_phase(w, plan->panels, task_pack);
    if (plan->call != SKL_CALL_BACKWARD && !run->second_sweep_only) {
        do_phase(w, plan->chunks, task_sweep);
        do_phase(w, plan->panels, task_finish);
    }
    if (run->second_sweep_only) {
        do_phase(w, plan->chunks, task_sweep_jsd);
        do_phase(w, plan->panels, task_finish);
    } else if (run->work->jsd && plan->call != SKL_CALL_BACKWARD && !run->partial) {
        do_phase(w, plan->chunks, task_sweep_jsd);
        do_phase(w, plan->panels, task_finish_jsd);
    }
    if (run->work->grads)
        do_grads(w);
}

/* In row order within a lane, lanes in order: the same sum for any number of threads. */
static void add_values(struct skl_run *run)
{
    for (int i = 0; i < run->plan.lanes; i++) {
        const struct skl_lane *lane = &run->lanes[i];
        for (int r = 0; r < lane->n; r++) run->value += lane->weight[r] * lane->result[r].loss;
        run->rows_done += lane->n;
    }
}

static void work_together(void *data, int rank)
{
    struct skl_run *run = data;
    struct skl_worker w = {.run = run, .rank = rank};
    skl_lay_scratch(run->work, &run->plan, run->scratch + (size_t)rank * run->plan.thread_bytes, &w.scratch);
    do_phase(&w, CLEAR_PARTS, task_clear);
    for (;;) {
        w.phases_in_wave = 0;
        if (rank == 0) /* and only rank 0, so that all threads decide alike */
            run->more = skl_next_wave(run) && !atomic_load_explicit(&run->cancelled, memory_order_relaxed);
        skl_team_barrier(&run->team);
        int more = run->more;
        if (run->plan.own_columns)
            do_phase(&w, run->plan.chunks, task_flush);
        if (!more)
            break;
        do_wave(&w);
        if (rank == 0)
            add_values(run);
    }
}

/* Large pages where the system hands them out on request: kept logits are gone through once in each direction, and their
 * first touch costs a fault a page. */
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

/* Lanes, their memory and the threads' in one allocation. */
static char *lay_out(struct skl_run *run)
{
    const struct skl_plan *plan = &run->plan;
    char *memory = aligned_alloc(SKL_ALIGN, plan->bytes);
    if (!memory)
        return NULL;
    want_large_pages(memory, plan->bytes);
    run->scratch = memory + (size_t)plan->lanes * plan->lane_bytes;
    run->lanes = (struct skl_lane *)(run->scratch + (size_t)plan->threads * plan->thread_bytes);
    for (int i = 0; i < plan->threads; i++) memset(share_of(run, i), 0, sizeof(struct skl_share));
    for (int i = 0; i < plan->lanes; i++) {
        run->lanes[i] = (struct skl_lane){.owner = {-1, -1}, .next_owner = {-1, -1}};
        skl_lay_lane(run->work, plan, memory + (size_t)i * plan->lane_bytes, &run->lanes[i]);
    }
    return memory;
}

enum skl_status skl_run_nothing(enum skl_call call, struct skl_run *run)
{
    run->plan.call = call;
    skl_clear_outputs(run, 0, 1);
    if (run->work->value)
        *run->work->value = 0;
    return SKL_OK;
}

/* How long to wait for a thread, in seconds: a quarter of what the call takes on one, of which the first takes half away.
 * Where the processors are taken (torch's idle threads keep them for milliseconds) a small call is done before another
 * thread could have begun. */
static double patience(const struct skl_work *w)
{
    enum { LEAST = 20 };                   /* microseconds; a thread that is awake needs one */
    double products_a_microsecond = 50000; /* of one core, roughly */
    double dims = (double)(w->side[0].dim + w->side[1].dim) * (w->grads ? 2 : 1);
    double call = (double)w->rows * (double)w->columns * dims / products_a_microsecond;
    return 1e-6 * (call / 4 > LEAST ? call / 4 : LEAST);
}

enum skl_status skl_run(struct skl_run *run)
{
    for (int side = 0; side < 2; side++) { /* beyond f32 any unit is as good as the largest */
        double unit = SKL_LOG2E * run->work->side[side].unit;
        run->unit[side] = unit < (double)FLT_MAX ? (float)unit : FLT_MAX;
    }
    char *memory = lay_out(run);
    if (!memory)
        return skl_fail(SKL_OUT_OF_MEMORY, "cannot allocate the workspace of %zu bytes", run->plan.bytes);
    skl_team_run(&run->team, run->plan.threads, patience(run->work), work_together, run);
    free(memory);
    if (atomic_load(&run->cancelled))
        return skl_fail(SKL_CANCELLED, "the progress callback asked to stop");
    if (run->work->value) {
        const struct skl_work *w = run->work;
        *w->value = !w->mean ? run->value : run->rows_done ? run->value / w->weight_sum : 0;
    }
    return SKL_OK;
}
