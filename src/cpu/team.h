/* SPDX-License-Identifier: Apache-2.0
 * Threads that run one function together. All of threading is behind this header. */
#ifndef SKL_CPU_TEAM_H
#define SKL_CPU_TEAM_H

#include "../work.h" /* SKL_THREADS_MAX */

#include <sched.h>
#include <stdatomic.h>

struct skl_team {
    int size;              /* threads that really came: at most as many as asked for */
    atomic_int arrived;    /* at the barrier */
    atomic_int generation; /* of barriers passed */
};

/* Runs work(data, rank) on up to 'threads' threads, the caller being rank 0, and waits for all of them. It never fails:
 * it does without threads that cannot be had, or that do not come within 'patience' seconds because others have the
 * processors. Every thread sees what the caller wrote before, and the caller then sees what every thread wrote. */
void skl_team_run(struct skl_team *team, int threads, double patience, void (*work)(void *data, int rank), void *data);

extern int skl_team_waits; /* for tests, which want the threads they ask for: patience without end */

/* What to do between two looks at something that another thread will change; 'looks' counts them. The change comes soon
 * when each thread has a core, and then looking at once again is best; when threads share one, or another program has
 * it, that would only keep away the thread that is waited for. */
static inline void skl_look_again(int *looks)
{
    enum { AT_ONCE = 100 }; /* 2.5 us on Zen 3 */
    if ((*looks)++ >= AT_ONCE) {
        sched_yield();
        return;
    }
#if defined(__x86_64__)
    __builtin_ia32_pause(); /* leaves the core to its other hardware thread */
#elif defined(__aarch64__)
    __asm__ volatile("isb"); /* the same; 'yield' does nothing on most processors */
#endif
}

/* Nobody leaves before everybody has come. Only inside work(). */
static inline void skl_team_barrier(struct skl_team *team)
{
    int looks = 0, generation = atomic_load_explicit(&team->generation, memory_order_acquire);
    if (atomic_fetch_add_explicit(&team->arrived, 1, memory_order_acq_rel) + 1 == team->size) {
        atomic_store_explicit(&team->arrived, 0, memory_order_relaxed);
        atomic_fetch_add_explicit(&team->generation, 1, memory_order_release);
        return;
    }
    while (atomic_load_explicit(&team->generation, memory_order_acquire) == generation) skl_look_again(&looks);
}

#endif
