/* SPDX-License-Identifier: Apache-2.0
 *
 * Built-in data: numbers that depend only on (seed, position), so every run and every machine has the same ones.
 */
#ifndef TOOL_DATA_H
#define TOOL_DATA_H

#include <stddef.h>
#include <stdint.h>

/* 64 good bits. */
uint64_t random_bits(uint64_t seed, uint64_t k);

/* Uniform in 0 .. n-1. */
int64_t random_below(uint64_t seed, uint64_t k, int64_t n);

/* Mean 0, deviation 1, nearly normal, |x| < 3.5. */
double random_normal(uint64_t seed, uint64_t k);

/* malloc, but a sentence and an exit when there is no memory. Touched, so that it is resident. */
void *get_memory(size_t bytes);

size_t dtype_size(int dtype);

/* n numbers of mean 0 and the given deviation; free() them. */
void *random_array(int dtype, int64_t n, double deviation, uint64_t seed);

/* Element k of an array. */
double read_element(int dtype, const void *data, int64_t k);

#endif
