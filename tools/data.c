/* SPDX-License-Identifier: Apache-2.0 */
#include "data.h"
#include "half.h"
#include "options.h"

#include <streamkl/streamkl.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

uint64_t random_bits(uint64_t seed, uint64_t k)
{
    /* splitmix64: a counter times an odd constant, then mixed */
    uint64_t x = seed * 0xd1342543de82ef95u + k * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

int64_t random_below(uint64_t seed, uint64_t k, int64_t n)
{
    return (int64_t)(random_bits(seed, k) % (uint64_t)n);
}

double random_normal(uint64_t seed, uint64_t k)
{
    /* Four uniform numbers of 16 bits: their sum has mean 4 x 32767.5 and variance 4 x 65536^2 / 12. */
    uint64_t x = random_bits(seed, k);
    double sum = (double)((x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48));
    return (sum - 4 * 32767.5) / (65536 * 0.57735026918962576);
}

void *get_memory(size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);
    if (!p) {
        fprintf(stderr, "streamkl: cannot get %zu bytes of memory for the data\n", bytes);
        exit(EXIT_WRONG);
    }
    return memset(p, 0, bytes);
}

size_t dtype_size(int dtype)
{
    return dtype == SKL_F32 || dtype == SKL_I32 ? 4 : 2;
}

void *random_array(int dtype, int64_t n, double deviation, uint64_t seed)
{
    void *data = get_memory((size_t)n * dtype_size(dtype));
    for (int64_t k = 0; k < n; k++) {
        float x = (float)(deviation * random_normal(seed, (uint64_t)k));
        if (dtype == SKL_F32)
            ((float *)data)[k] = x;
        else
            ((uint16_t *)data)[k] = dtype == SKL_BF16 ? skl_to_bf16(x) : skl_to_f16(x);
    }
    return data;
}

double read_element(int dtype, const void *data, int64_t k)
{
    if (dtype == SKL_F32)
        return ((const float *)data)[k];
    uint16_t half = ((const uint16_t *)data)[k];
    return dtype == SKL_BF16 ? skl_from_bf16(half) : skl_from_f16(half);
}
