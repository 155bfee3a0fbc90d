/* SPDX-License-Identifier: Apache-2.0
 * Arithmetic of sizes. */
#ifndef SKL_CPU_NUMBERS_H
#define SKL_CPU_NUMBERS_H

#include <stdint.h>

static inline int64_t round_up(int64_t x, int64_t to)
{
    return (x + to - 1) / to * to;
}

static inline int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

#endif
