/* SPDX-License-Identifier: Apache-2.0
 * One call of one kind on one thread, for tools that count what it does.
 *
 * usage: one_call USE PASS DIVERGENCE DTYPE CAUSAL      numbers of enum skl_use .. skl_dtype; PASS of enum skl_call
 *
 * Prints the multiply-adds of its products. */
#include "streamkl/streamkl.h"

#include <stdio.h>
#include <stdlib.h>

enum { HEADS = 1, N = 512, M = 768, D = 64 };

/* Ordinary numbers, 1 to 2, in f32 or 16 bits; different in each tensor, or dz would be 0 and its products left out. */
static void *numbers(int64_t n, int dtype)
{
    static uint32_t seed = 1;
    uint32_t *x = malloc((size_t)n * 4);
    for (int64_t i = 0; x && i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        uint32_t f32 = 0x3f800000u | seed >> 9;
        if (dtype == SKL_F32)
            x[i] = f32;
        else
            ((uint16_t *)x)[i] = (uint16_t)(dtype == SKL_BF16 ? f32 >> 16 : 0x3c00u | seed >> 22);
    }
    return x;
}

int main(int argc, char **argv)
{
    if (argc != 6)
        return 2;
    int use = atoi(argv[1]), call = atoi(argv[2]), dtype = atoi(argv[4]);
    struct skl_tensor a = skl_heads(dtype, NULL, 1, HEADS, N, D), b = skl_heads(dtype, NULL, 1, HEADS, M, D);
    if (use == SKL_LINEAR)
        a = skl_matrix(dtype, NULL, N, D), b = skl_matrix(dtype, NULL, M, D);
    struct skl_tensor t[4] = {a, b, a, b};
    for (int i = 0; i < 4; i++) t[i].data = numbers(i % 2 ? (int64_t)M * D : (int64_t)N * D, dtype);
    struct skl_problem p = skl_problem_of(use, t[0], t[1], t[2], t[3]);
    p.divergence = atoi(argv[3]);
    p.causal = atoi(argv[5]);
    p.threads = 1;

    double value;
    struct skl_outputs values = skl_no_outputs(), grads = skl_no_outputs();
    struct skl_tensor rows = {numbers(N, SKL_F32), SKL_F32, SKL_CPU, a.ndim - 1, 0, {1, HEADS, N}, {0, 0, 1}};
    if (use == SKL_LINEAR)
        rows.shape[0] = N, rows.stride[0] = 1;
    values.value = &value;
    values.loss = values.lse_s = values.lse_t = rows;
    values.lse_s.data = numbers(N, SKL_F32), values.lse_t.data = numbers(N, SKL_F32);
    if (call == SKL_CALL_VALUE_AND_GRAD)
        grads = values;
    grads.s.a = a, grads.s.b = b;
    grads.s.a.data = numbers((int64_t)N * D, dtype), grads.s.b.data = numbers((int64_t)M * D, dtype);
    grads.s.a.dtype = grads.s.b.dtype = dtype;
    enum skl_status status = call == SKL_CALL_VALUE            ? skl_value(&p, &values)
                             : call == SKL_CALL_VALUE_AND_GRAD ? skl_value_and_grad(&p, &grads)
                                                               : skl_backward(&p, &values, &grads);
    if (status)
        fprintf(stderr, "%s\n", skl_last_error());
    double seen = p.causal ? (double)N * (M - N) + 0.5 * N * (N + 1.0) : (double)N * M;
    printf("%.0f\n", seen * D * (call == SKL_CALL_VALUE ? 2 : 4));
    return status != SKL_OK;
}
