/* SPDX-License-Identifier: Apache-2.0
 * Threads that run one function together. All of OpenMP is behind this header. */
#ifndef SKL_CPU_TEAM_H
#define SKL_CPU_TEAM_H

#include <sched.h>
#include <stdatomic.h>

enum { SKL_THREADS_MAX = 4096 };

struct skl_team {
    int size;              /* threads that really came: at most as many as asked for */
    atomic_int arrived;    /* at the barrier */
    atomic_int generation; /* of barriers passed */
};

/* Runs work(data, rank) on up to 'threads' threads, the caller being rank 0, and waits for all of them. One thread
 * means a plain call: no OpenMP region is entered, so it is safe in a forked child. */
void skl_team_run(struct skl_team *team, int threads, void (*work)(void *data, int rank), void *data);

/* Nobody leaves before everybody has come. Only inside work(). The wait is short when each thread has a core, so it
 * begins by looking again and again; when a thread does not get its core, going on with that would only keep it away
 * longer. (OpenMP's own barrier insists for milliseconds, and thread sanitizers cannot see into it.) */
static inline void skl_team_barrier(struct skl_team *team)
{
    enum { LOOKS = 4000 }; /* some 50 us */
    int generation = atomic_load_explicit(&team->generation, memory_order_acquire);
    if (atomic_fetch_add_explicit(&team->arrived, 1, memory_order_acq_rel) + 1 == team->size) {
        atomic_store_explicit(&team->arrived, 0, memory_order_relaxed);
        atomic_fetch_add_explicit(&team->generation, 1, memory_order_release);
        return;
    }
    for (int looks = 0; atomic_load_explicit(&team->generation, memory_order_acquire) == generation;)
        if (looks < LOOKS)
            looks++;
        else
            sched_yield();
}

#endif
