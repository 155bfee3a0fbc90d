/* SPDX-License-Identifier: Apache-2.0
 *
 * Random numbers, the same on every machine. Inline, so that a program needs nothing but this file.
 */
#ifndef KIT_RANDOM_H
#define KIT_RANDOM_H

#include <math.h>
#include <stdint.h>

struct kit_random {
    uint64_t state;
};

/* 64 good bits: splitmix64. */
static inline uint64_t kit_bits(struct kit_random *r)
{
    uint64_t z = r->state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

/* Both included. */
static inline int64_t kit_between(struct kit_random *r, int64_t least, int64_t most)
{
    return least + (int64_t)(kit_bits(r) % (uint64_t)(most - least + 1));
}

static inline int kit_chance(struct kit_random *r, int one_in)
{
    return kit_between(r, 1, one_in) == 1;
}

/* [0, 1) */
static inline double kit_uniform(struct kit_random *r)
{
    return (double)(kit_bits(r) >> 11) * 0x1p-53;
}

static inline double kit_normal(struct kit_random *r)
{
    double radius = sqrt(-2 * log(1 - kit_uniform(r)));
    return radius * cos(6.283185307179586 * kit_uniform(r));
}

/* Mean 0, deviation 1, nearly normal but |x| < 3.5, and many times faster: for operands of a gigabyte. It is a sum of
 * four uniform numbers of 16 bits, which has mean 4 x 32767.5 and variance 4 x 65536^2 / 12. */
static inline double kit_nearly_normal(struct kit_random *r)
{
    uint64_t x = kit_bits(r);
    double sum = (double)((x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48));
    return (sum - 4 * 32767.5) / (65536 * 0.57735026918962576);
}

#define KIT_PICK(random, list) ((list)[kit_between(random, 0, (int64_t)(sizeof(list) / sizeof((list)[0])) - 1)])

#endif
