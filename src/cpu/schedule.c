/* SPDX-License-Identifier: Apache-2.0
 *
 * Phases: a number of independent tasks, shared among the threads, that all threads end together. The tasks of a phase
 * are cut into one queue for each thread, by their number: a thread's queue is the same part of the columns in every
 * phase over columns, so that what it has written it finds in its own cache. Idle threads steal from the back of other
 * threads' queues.
 */
#include "run.h"

struct skl_queue *skl_queue_of(const struct skl_run *run, int rank)
{
    return (struct skl_queue *)(run->scratch + (size_t)rank * run->plan.thread_bytes);
}

/* Which of a queue's n tasks is to be done now; -1: none is left. */
static int64_t take_task(struct skl_queue *q, int phase, int64_t n, int from_back)
{
    unsigned long long taken = atomic_load_explicit(&q->taken[phase], memory_order_relaxed);
    for (;;) {
        int64_t front = (int64_t)(taken & UINT32_MAX), back = (int64_t)(taken >> 32);
        if (front + back >= n)
            return -1;
        if (atomic_compare_exchange_weak_explicit(&q->taken[phase], &taken, taken + (from_back ? 1ull << 32 : 1),
                                                  memory_order_relaxed, memory_order_relaxed))
            return from_back ? n - 1 - back : front;
    }
}

/* Rank 0 is the caller's thread: only it may call back. 'done' is the part it has done of its queue. */
static void report(struct skl_worker *w, double done)
{
    struct skl_run *run = w->run;
    if (w->rank || !run->work->progress || atomic_load_explicit(&run->cancelled, memory_order_relaxed))
        return;
    int64_t rows = 0;
    for (int i = 0; i < run->plan.blocks; i++) rows += run->blocks[i].n;
    double phases = (double)w->phases_in_wave + done;
    double part = phases / (phases + 1); /* rises towards 1 with every phase of a wave */
    double fraction = ((double)run->rows_done + part * (double)rows) / (double)run->work->rows;
    if (run->plan.alone) /* the first phase clears */
        fraction = w->phase ? done : 0;
    skl_leave_unit(w);
    skl_leave_float_mode(*run->caller_mode);
    int stop = run->work->progress(run->work->progress_data, fraction < 1 ? fraction : 1);
    *run->caller_mode = skl_enter_float_mode();
    skl_enter_unit(w);
    if (stop)
        atomic_store_explicit(&run->cancelled, 1, memory_order_relaxed);
}

/* How much of its group a block that a thread works on alone has had. */
static double part_of_group(const struct skl_run *run, const struct skl_block *block)
{
    double segments = (double)(block->next_segment - (block->end_segment - run->plan.group));
    double rows = block->segment.rows ? (double)block->next_row / (double)block->segment.rows : 0;
    return (segments + rows) / (double)run->plan.group;
}

/* A thread that works on a block alone does all its tasks, and waits for nobody. Otherwise it does the tasks of its own
 * queue in order, steals from the back of the other threads' queues, and waits for them. */
void skl_do_phase(struct skl_worker *w, int64_t parts, skl_task *task)
{
    struct skl_run *run = w->run;
    if (w->alone) {
        for (int64_t part = 0; part < parts && !atomic_load_explicit(&run->cancelled, memory_order_relaxed); part++)
            task(w, w->alone, part);
        report(w, (w->taken + part_of_group(run, w->alone)) / w->queue);
        return;
    }
    int64_t tasks = run->plan.blocks * parts;
    int odd = (int)(w->phase & 1), team = run->team.size, told = 0;
    atomic_store_explicit(&skl_queue_of(run, w->rank)->taken[!odd], 0,
                          memory_order_relaxed); /* nobody looks before the barrier */
    for (int i = 0; i < team; i++) {
        int rank = (w->rank + i) % team;
        int64_t first = tasks * rank / team, n = tasks * (rank + 1) / team - first;
        for (int64_t k; (k = take_task(skl_queue_of(run, rank), odd, n, i > 0)) >= 0;) {
            if (atomic_load_explicit(&run->cancelled, memory_order_relaxed))
                break;
            w->taken = i ? 1 : (double)k, w->queue = i ? 1 : (double)n;
            task(w, &run->blocks[(first + k) / parts], (first + k) % parts);
            report(w, i ? 1 : (double)(k + 1) / (double)n);
            told = 1;
        }
    }
    if (!told) /* others were quicker; the caller wants to hear all the same */
        report(w, 1);
    w->phase++;
    w->phases_in_wave++;
    skl_team_barrier(&run->team);
}
