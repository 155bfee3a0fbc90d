/* SPDX-License-Identifier: Apache-2.0
 *
 * A side that is the mean of the softmaxes of g heads (docs/math.md, section Mixtures):
 *
 *     t[i,j] = sum over the heads k of 2^(factor x_k[i,j] + shift_k[i]),     x = log2 t
 *
 * shift = -log2 g - LSE_k in base 2, the row's of that head: given, or found by a sweep (make_members). x is a score as
 * any other, with factor 1. Kernels make the products x_k one after the other and add each one's part to t: one number
 * of a row and head, and one exponential a score. factor x is exact in the multiply-add; shift is off by 2^-24 of
 * itself, about what a score of that size is.
 */
#ifndef SKL_MIXTURE_CUH
#define SKL_MIXTURE_CUH

#include "ptx.cuh"

/* The head of a that is the k-th of row head h. One that is none is told by make_members, and head 0 is read in its
 * place. */
SKL_DEVICE int member_head(const skl_gpu_mixture &m, int h, int k)
{
    if (!m.map)
        return h * m.members + k;
    const int head = m.map[h * m.map_stride[0] + k * m.map_stride[1]];
    return head >= 0 && head < m.heads ? head : 0;
}

/* A head's score of the product v. */
SKL_DEVICE float member_score(const skl_gpu_mixture &m, float v)
{
    return m.cap != 0 ? __fmul_rn(m.cap, tanhf(m.inner * v)) : m.inner * v;
}

/* Its part of t. */
SKL_DEVICE float member_part(const skl_gpu_mixture &m, const skl_gpu_member &row, float x)
{
    return power_of_two(fmaf(x, m.factor, row.shift));
}

/* The score of t; one below 2^-126 is no mass. Off by 2^-22 of itself, four times what f32 rounds it by. */
SKL_DEVICE float mixed_score(float t)
{
    float r;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(t));
    return r;
}

#endif
