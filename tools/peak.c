/* SPDX-License-Identifier: Apache-2.0 */
#include "peak.h"

#include "clock.h"
#include "cpu/kernels.h"
#include "cpu/team.h"

#include <stdlib.h>
#include <string.h>

/* Each thread counts what it did in the time that all of them shared. */
struct burst {
    struct skl_team team;
    const struct skl_products *products;
    const char *buffer;
    size_t bytes;
    double seconds;
    double best[SKL_THREADS_MAX]; /* per second */
};

static void multiply_thread(void *data, int rank)
{
    struct burst *b = data;
    float sink;
    skl_team_barrier(&b->team);
    for (double start = now(); now() - start < b->seconds;) {
        double t = now(), done = b->products->burst(200000, &sink);
        t = done / (now() - t);
        b->best[rank] = t > b->best[rank] ? t : b->best[rank];
    }
}

static void read_thread(void *data, int rank)
{
    struct burst *b = data;
    size_t share = b->bytes / (size_t)b->team.size / 64 * 64;
    const char *mine = b->buffer + share * (size_t)rank;
    skl_team_barrier(&b->team);
    for (double start = now(); now() - start < b->seconds;) {
        unsigned long long sum[8] = {0};
        double t = now();
        for (size_t i = 0; i < share; i += 64)
            for (int j = 0; j < 8; j++) {
                unsigned long long x;
                memcpy(&x, mine + i + 8 * j, 8);
                sum[j] += x;
            }
        __asm__ volatile("" : : "r"(sum) : "memory");
        t = (double)share / (now() - t);
        b->best[rank] = t > b->best[rank] ? t : b->best[rank];
    }
}

static double run_burst(struct burst *b, int threads, void (*work)(void *, int))
{
    double sum = 0;
    skl_team_run(&b->team, threads, 1, work, b);
    for (int i = 0; i < b->team.size; i++) sum += b->best[i];
    return sum;
}

static const struct skl_products *products_of(enum skl_isa isa, int dtype)
{
    const struct skl_kernels *kernels = skl_kernels_for(isa);
    return kernels ? kernels->products[dtype] : NULL;
}

double skl_peak(enum skl_isa isa, int dtype, int threads, double seconds)
{
    static struct burst none;
    struct burst b = none;
    b.products = products_of(isa, dtype);
    b.seconds = seconds;
    return b.products ? 1e-9 * run_burst(&b, threads, multiply_thread) : 0;
}

const char *skl_unit(enum skl_isa isa, int dtype)
{
    const struct skl_products *products = products_of(isa, dtype);
    return products ? products->unit : "";
}

int skl_splits(enum skl_isa isa)
{
    const struct skl_kernels *kernels = skl_kernels_for(isa);
    return kernels && kernels->split;
}

double skl_read_bandwidth(int threads, double seconds)
{
    static struct burst none;
    struct burst b = none;
    b.bytes = (size_t)512 << 20;
    char *buffer = malloc(b.bytes);
    if (!buffer)
        return 0;
    memset(buffer, 1, b.bytes);
    b.buffer = buffer;
    b.seconds = seconds;
    double rate = run_burst(&b, threads, read_thread);
    free(buffer);
    return rate;
}
