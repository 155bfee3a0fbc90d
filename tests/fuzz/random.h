/* SPDX-License-Identifier: Apache-2.0
 * Random numbers that are the same on every machine (splitmix64). Every call of the fuzzer has a generator of its own,
 * made of the seed and the call's number, so that one call can be repeated without those before it. A fuzzer that
 * makes up bytes has them used first, one for each number: so it chooses what a call is like, and random numbers fill
 * the rest. */
#ifndef FUZZ_RANDOM_H
#define FUZZ_RANDOM_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

struct rng {
    uint64_t state;
    const uint8_t *bytes;
    size_t left;
};

static inline uint64_t rng_next(struct rng *r)
{
    if (r->left)
        return r->left--, *r->bytes++ * 0x0101010101010101u;
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static inline struct rng rng_of(uint64_t seed, uint64_t number)
{
    struct rng r = {seed * 0xd1342543de82ef95u + number, NULL, 0};
    r.state = rng_next(&r);
    return r;
}

/* [0, 1) */
static inline double rng_unit(struct rng *r)
{
    return (double)(rng_next(r) >> 11) * 0x1p-53;
}

static inline double rng_real(struct rng *r, double least, double most)
{
    return least + (most - least) * rng_unit(r);
}

/* Both ends included. */
static inline int64_t rng_between(struct rng *r, int64_t least, int64_t most)
{
    return least + (int64_t)(rng_next(r) % (uint64_t)(most - least + 1));
}

/* Small numbers as often as large ones. */
static inline int64_t rng_size(struct rng *r, int64_t least, int64_t most)
{
    int64_t n = (int64_t)floor(exp(rng_real(r, log((double)least), log((double)most + 1))));
    return n < least ? least : n > most ? most : n;
}

static inline int rng_chance(struct rng *r, int percent)
{
    return rng_between(r, 0, 99) < percent;
}

static inline double rng_normal(struct rng *r)
{
    double radius = sqrt(-2 * log(1 - rng_unit(r)));
    return radius * cos(6.283185307179586 * rng_unit(r));
}

#define RNG_PICK(r, ...) \
    (((const double[]){__VA_ARGS__})[rng_between(r, 0, (int64_t)(sizeof((const double[]){__VA_ARGS__}) / 8) - 1)])

#endif
