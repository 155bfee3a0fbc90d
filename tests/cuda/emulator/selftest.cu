// SPDX-License-Identifier: Apache-2.0
//
// Kernels for selftest.c: right ones, and ones with a mistake that the emulator has to find. Right ones lose their
// barriers there too, by editing the PTX.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "selftest_args.h"

extern __shared__ float dynamic[];

#define KERNEL(name) extern "C" __global__ void __launch_bounds__(128) name(const __grid_constant__ selftest_args a)

// ------------------------------------------------------------------------------------------------ shared memory ---

static __device__ __forceinline__ void sum_block(const selftest_args &a, bool barrier_at_end)
{
    __shared__ float s[128];
    int t = threadIdx.x;
    s[t] = a.in[blockIdx.x * 128 + t];
    __syncthreads();
    for (int h = 64; h; h >>= 1) {
        if (t < h)
            s[t] += s[t + h];
        if (barrier_at_end || h > 8)
            __syncthreads();
    }
    if (t == 0)
        a.out[blockIdx.x] = s[0];
}

KERNEL(sum_right)
{
    sum_block(a, true);
}
KERNEL(sum_without_last_barriers)
{
    sum_block(a, false);
}

static __device__ __forceinline__ void exchange(const selftest_args &a, bool sync)
{
    volatile float *s = dynamic;
    int t = threadIdx.x;
    s[t] = a.in[t];
    if (sync)
        __syncwarp();
    float v = s[t ^ 1];
    if (sync)
        __syncwarp();
    s[t] = v + 1;
    if (sync)
        __syncwarp();
    a.out[t] = s[t ^ 2];
}

KERNEL(exchange_right)
{
    exchange(a, true);
}
KERNEL(exchange_without_syncwarp)
{
    exchange(a, false);
}

KERNEL(shared_past_the_end)
{
    dynamic[threadIdx.x + 1] = 0;
    a.out[threadIdx.x] = 0;
}

KERNEL(shared_never_written)
{
    if (threadIdx.x != 77)
        dynamic[threadIdx.x] = 1;
    __syncthreads();
    a.out[threadIdx.x] = dynamic[127 - threadIdx.x];
}

KERNEL(shared_bytes)  // neighbours write single bytes of a word: no race
{
    extern __shared__ unsigned char bytes[];
    bytes[threadIdx.x] = (unsigned char)threadIdx.x;
    __syncthreads();
    ((uint32_t *)a.out)[threadIdx.x] = ((uint32_t *)bytes)[threadIdx.x / 4];
}

KERNEL(shared_column)  // 32 rows of 32 words: a column is one bank
{
    for (int i = 0; i < 8; i++) dynamic[i * 128 + threadIdx.x] = 1;
    __syncthreads();
    a.out[threadIdx.x] = dynamic[(threadIdx.x % 32) * 32];
    float4 v = *(float4 *)(dynamic +
                           (threadIdx.x % 32) * 8);  // every other 16 bytes: two rows of banks for eight lanes
    a.out[128 + threadIdx.x] = v.x + v.w;
}

// ------------------------------------------------------------------------------------------------ device memory ---

KERNEL(quad_writes_once)
{
    if (threadIdx.x % 4 == 0)
        a.out[threadIdx.x / 4] = 1;
}

KERNEL(quad_writes_the_same)
{
    a.out[threadIdx.x / 4] = 1;
}

KERNEL(blocks_add_without_atomics)
{
    if (threadIdx.x == 0)
        a.out[0] += 1;
}

KERNEL(blocks_add_by_atomics)
{
    atomicAdd(a.out, 1.f);
    atomicAdd((unsigned *)a.out + 1, 1u);
    atomicMax((int *)a.out + 2, (int)threadIdx.x);
    atomicAdd((unsigned long long *)a.out + 2, 1ull << 32);
}

KERNEL(block_reads_another)
{
    if (threadIdx.x == 0)
        a.out[1 + blockIdx.x] = blockIdx.x ? a.out[blockIdx.x] + 1 : 1;
}

KERNEL(reads_past_the_tail)
{
    a.out[threadIdx.x] = a.in[threadIdx.x + a.n];
}
KERNEL(writes_past_the_tail)
{
    a.out[threadIdx.x + a.n] = 1;
}
KERNEL(misaligned)
{
    *(float2 *)(a.out + 1 + 2 * threadIdx.x) = make_float2(1, 2);
}

KERNEL(threads_pass_by_global)
{
    a.out[threadIdx.x] = a.in[threadIdx.x];
    __syncthreads();
    a.out[128 + threadIdx.x] = a.out[127 - threadIdx.x];
}

KERNEL(halves_side_by_side)
{
    ((__nv_bfloat16 *)a.out)[threadIdx.x] = __float2bfloat16(a.in[threadIdx.x]);
}

// ------------------------------------------------------------------------------------------------ who takes part ---

KERNEL(barrier_in_branch)
{
    if ((int)threadIdx.x < a.n)
        __syncthreads();
    a.out[threadIdx.x] = 1;
}

KERNEL(exit_before_barrier)
{
    if ((int)threadIdx.x >= a.n)
        return;
    a.out[threadIdx.x] = 1;
    __syncthreads();
    a.out[128 + threadIdx.x] = a.out[0];
}

KERNEL(shuffle_in_branch)
{
    float v = a.in[threadIdx.x];
    if ((int)threadIdx.x % 32 < a.n)
        v = __shfl_xor_sync(0xFFFFFFFFu, v, 1);
    a.out[threadIdx.x] = v;
}

KERNEL(shuffle_of_some)  // the same with the right mask
{
    float v = a.in[threadIdx.x];
    if (threadIdx.x % 32 < 16)
        v = __shfl_xor_sync(0x0000FFFFu, v, 1);
    a.out[threadIdx.x] = v;
}

// --------------------------------------------------------------------------------------------------- a pipeline ---

static __device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ void copy16(void *to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
}

static __device__ __forceinline__ void load_matrices(uint32_t *r, const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(p))
                 : "memory");
}

// out [16 * 4 warps, 64] = A [64, n] B [64, n]^T, n in steps of 64, both by cp.async through two buffers.
template <bool F16> static __device__ __forceinline__ void product(const selftest_args &a)
{
    extern __shared__ __align__(128) uint16_t halves[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, steps = (a.n + 63) / 64;
    auto place = [&](int row, int chunk) { return row * 64 + (a.swizzle ? chunk ^ (row & 7) : chunk) * 8; };
    auto load = [&](int step) {
        uint16_t *to = halves + step % 2 * 8192;
        for (int i = threadIdx.x; i < 1024; i += 128) {
            int row = i / 8, k = step * 64 + i % 8 * 8;
            bool there = k < a.n;
            const uint16_t *from = (row < 64 ? a.left : a.right) + row % 64 * a.n + (there ? k : 0);
            copy16(to + (row < 64 ? 0 : 4096) + place(row % 64, i % 8), from, there);
        }
    };
    float c[8][4] = {};
    load(0);
    asm volatile("cp.async.commit_group;" ::: "memory");
    for (int s = 0; s < steps; s++) {
        if (s + 1 < steps)
            load(s + 1);
        asm volatile("cp.async.commit_group;" ::: "memory");
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();
        const uint16_t *left = halves + s % 2 * 8192, *right = left + 4096;
        for (int k = 0; k < 4; k++) {
            uint32_t x[4], y[4];
            load_matrices(x, left + place(warp * 16 + lane % 16, k * 2 + lane / 16));
            for (int n = 0; n < 4; n++) {
                load_matrices(y, right + place(n * 16 + lane % 8 + lane / 16 * 8, k * 2 + lane / 8 % 2));
                for (int h = 0; h < 2; h++) {
                    float *d = c[2 * n + h];
                    if (F16)
                        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                                     "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                                     : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[2 * h]), "r"(y[2 * h + 1]));
                    else
                        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                                     "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                                     : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[2 * h]), "r"(y[2 * h + 1]));
                }
            }
        }
        __syncthreads();
    }
    for (int n = 0; n < 8; n++)
        for (int e = 0; e < 4; e++)
            a.out[(warp * 16 + lane / 4 + e / 2 * 8) * 64 + n * 8 + lane % 4 * 2 + e % 2] = c[n][e];
}

KERNEL(product_bf16)
{
    product<false>(a);
}
KERNEL(product_f16)
{
    product<true>(a);
}

// ---------------------------------------------------------------------------------------------- plain arithmetic ---

// What nvcc makes of C, against the same C on the host: conversions, functions, a local array, parameters by index.
KERNEL(arithmetic)
{
    int t = threadIdx.x;
    float x = a.in[t], y = a.in[128 + t];
    float *out = a.out + 16 * t;
    out[0] = __bfloat162float(__float2bfloat16(x));
    out[1] = __half2float(__float2half(x));
    out[2] = (float)(int)x;
    out[3] = (float)__float2int_rn(x);
    out[4] = x / y;
    out[5] = sqrtf(fabsf(x));
    out[6] = fmaf(x, y, 1.f);
    out[7] = expf(x);
    out[8] = logf(fabsf(y) + 0.5f);
    out[9] = tanhf(x);
    out[10] = (float)((double)x * (double)y + 1e-9);
    out[11] = a.table[t % 4];
    float local[8];
    for (int i = 0; i < 8; i++) local[(i + t) % 8] = x * i;
    out[12] = local[t * 3 % 8];
    out[13] = (float)((unsigned)t * 2654435761u % 1000u / 7u);
    out[14] = (float)log(fabs((double)y) + 2);
    out[15] = fminf(x, y) + floorf(x) + ceilf(y) + rintf(x);
}

KERNEL(warp_functions)
{
    int t = threadIdx.x;
    float v = a.in[t];
    float *out = a.out + 8 * t;
    out[0] = __shfl_xor_sync(0xFFFFFFFFu, v, 5);
    out[1] = __shfl_down_sync(0xFFFFFFFFu, v, 3);
    out[2] = __shfl_up_sync(0xFFFFFFFFu, v, 3);
    out[3] = __shfl_sync(0xFFFFFFFFu, v, 3, 8);
    out[4] = (float)__popc(__ballot_sync(0xFFFFFFFFu, v > 0));
    out[5] = (float)(__any_sync(0xFFFFFFFFu, t % 32 == 7) + 2 * __all_sync(0xFFFFFFFFu, v < 0));
    out[6] = (float)__reduce_add_sync(0xFFFFFFFFu, t);
    out[7] = (float)__shfl_down_sync(0xFFFFFFFFu, (double)v, 8, 16);
}
