/* SPDX-License-Identifier: Apache-2.0
 * How many threads a call uses when it is not told. */
#define _GNU_SOURCE /* CPU sets */
#include "team.h"

#include "streamkl/streamkl.h"

#ifdef SKL_THREADS
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

/* Processors that this thread may run on. */
static long cpus(void)
{
#ifdef __linux__
    enum { SETS = 16 }; /* of 1024 processors each; the kernel refuses a set that is smaller than its own */
    cpu_set_t set[SETS];
    if (!sched_getaffinity(0, sizeof set, set))
        return CPU_COUNT_S(sizeof set, set);
#endif
    return sysconf(_SC_NPROCESSORS_ONLN);
}

int skl_max_threads(void)
{
    const char *text = getenv("OMP_NUM_THREADS"); /* what people set to keep libraries from taking the machine */
    long n = cpus(), most = text ? strtol(text, NULL, 10) : 0;
    n = most > 0 && most < n ? most : n;
    return n < 1 ? 1 : n < SKL_THREADS_MAX ? (int)n : SKL_THREADS_MAX;
}

#else

int skl_max_threads(void)
{
    return 1;
}

#endif
