/* SPDX-License-Identifier: Apache-2.0
 * Threads that run one function together. All of OpenMP is behind this header. */
#ifndef SKL_CPU_TEAM_H
#define SKL_CPU_TEAM_H

#include <stdatomic.h>

enum { SKL_THREADS_MAX = 4096 };

struct skl_team {
    int size;          /* threads that really came: at most as many as asked for */
    atomic_int epoch;  /* orders memory between members for tools that cannot see into the OpenMP runtime */
};

/* Runs work(data, rank) on up to 'threads' threads, the caller being rank 0, and waits for all of them. One thread
 * means a plain call: no OpenMP region is entered, so it is safe in a forked child. */
void skl_team_run(struct skl_team *team, int threads, void (*work)(void *data, int rank), void *data);

/* Nobody leaves before everybody has come. Only inside work(). */
void skl_team_wait(void);

static inline void skl_team_barrier(struct skl_team *team)
{
    if (team->size == 1)
        return;
    atomic_fetch_add_explicit(&team->epoch, 1, memory_order_acq_rel);
    skl_team_wait();
    atomic_fetch_add_explicit(&team->epoch, 1, memory_order_acq_rel);
}

#endif
