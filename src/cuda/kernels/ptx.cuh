/* SPDX-License-Identifier: Apache-2.0
 *
 * The few instructions that CUDA C has no word for: asynchronous copies, matrix fragments and their product. All are in
 * the set that tests/cuda/emulator executes, so what is proved is what is shipped.
 */
#ifndef SKL_PTX_CUH
#define SKL_PTX_CUH

#include "streamkl/streamkl.h"
#include "../args.h"

#include <stdint.h>

#define SKL_DEVICE static __device__ __forceinline__

/* -DSKL_TYPE=bf16 names both the kernels and this constant. */
enum { f32 = SKL_F32, bf16 = SKL_BF16, f16 = SKL_F16 };

#define SKL_LN2_DOUBLE 0.693147180559945309
#define SKL_LOG2E_DOUBLE 1.442695040888963407
#define SKL_LN2 0.693147180559945309f

SKL_DEVICE uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* 16 bytes from global to shared memory in the background; the last 16 - bytes of them become 0. */
SKL_DEVICE void copy_async(uint32_t to, const void *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

SKL_DEVICE void commit_copies()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Until at most N groups of this thread's copies are still under way. */
template <int N> SKL_DEVICE void wait_copies()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Four 8 x 8 matrices of 16-bit numbers; lane l gives the address of row l % 8 of matrix l / 8. */
SKL_DEVICE void load_matrices(uint32_t (&r)[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

SKL_DEVICE void load_matrices_transposed(uint32_t (&r)[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

/* c [16 x 8] += a [16 x 16] b [16 x 8], f32 sums. Lane l holds of c the rows l / 4 and l / 4 + 8, columns 2 (l % 4) and
 * the next: c[0], c[1] in the first row, c[2], c[3] in the second. */
template <int TYPE> SKL_DEVICE void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    if (TYPE == bf16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Two floats rounded to a pair of 16-bit ones, the first in the low half. */
template <int TYPE> SKL_DEVICE uint32_t pack(float lo, float hi)
{
    uint32_t r;
    if (TYPE == bf16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}

/* 2^x: 2 ulp. Results below 2^-126 are subnormal and, by .ftz, 0: such a column has no mass. */
SKL_DEVICE float power_of_two(float x)
{
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

/* A logit in base 2 relative to the reference m. Rounded before anything is added to it (no FMA): equal scores of equal
 * sides must differ by exactly 0. */
SKL_DEVICE float relative(float x, float m, float factor)
{
    return __fmul_rn(x - m, factor);
}

SKL_DEVICE float from_16_bits(uint16_t bits, int dtype)
{
    float r;
    if (dtype == bf16)
        return __uint_as_float((uint32_t)bits << 16);
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(bits));
    return r;
}

SKL_DEVICE float element(const char *data, int64_t at, int dtype)
{
    return dtype == f32 ? ((const float *)data)[at] : from_16_bits(((const uint16_t *)data)[at], dtype);
}

SKL_DEVICE void put_element(char *data, int64_t at, int dtype, float x)
{
    if (dtype == f32)
        ((float *)data)[at] = x;
    else
        ((uint16_t *)data)[at] = (uint16_t)(dtype == bf16 ? pack<bf16>(x, 0) : pack<f16>(x, 0));
}

#endif
