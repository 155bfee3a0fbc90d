/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOL_CLOCK_H
#define TOOL_CLOCK_H

#include <time.h>

/* Wall-clock seconds from an arbitrary start. */
static inline double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
