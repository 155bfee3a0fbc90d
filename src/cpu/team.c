/* SPDX-License-Identifier: Apache-2.0 */
#include "team.h"

#include "streamkl/streamkl.h"

#ifdef _OPENMP
#include <omp.h>

void skl_team_run(struct skl_team *team, int threads, void (*work)(void *data, int rank), void *data)
{
    team->size = 1;
    if (threads == 1) {
        work(data, 0);
        return;
    }
#pragma omp parallel num_threads(threads)
    {
#pragma omp master
        team->size = omp_get_num_threads();
#pragma omp barrier
        work(data, omp_get_thread_num());
    }
}

int skl_max_threads(void)
{
    return omp_get_max_threads() < SKL_THREADS_MAX ? omp_get_max_threads() : SKL_THREADS_MAX;
}

#else

void skl_team_run(struct skl_team *team, int threads, void (*work)(void *data, int rank), void *data)
{
    (void)threads;
    team->size = 1;
    work(data, 0);
}

int skl_max_threads(void)
{
    return 1;
}

#endif
