/* SPDX-License-Identifier: Apache-2.0
 *
 * What attention's backward streams past a block: which tiles, their copies into shared memory, and reading what
 * belongs to a row from there.
 */
#ifndef SKL_GRAD_TILES_CUH
#define SKL_GRAD_TILES_CUH

#include "tile.cuh"

/* A range, or a row's factors, in the background; zeros when there are none. */
SKL_DEVICE void copy_8_bytes(uint32_t to, const void *from, bool in)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(in ? 8 : 0) : "memory");
}

/* From shared memory. */
SKL_DEVICE skl_gpu_reference load_reference(uint32_t from)
{
    skl_gpu_reference r;
    asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(r.m[0]), "=f"(r.m[1]), "=f"(r.minus_log_l[0]), "=f"(r.minus_log_l[1])
                 : "r"(from)
                 : "memory");
    return r;
}

SKL_DEVICE skl_gpu_factors load_factors(uint32_t from)
{
    skl_gpu_factors f;
    asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(f.c), "=f"(f.r) : "r"(from) : "memory");
    return f;
}

/* r of the factors alone. */
SKL_DEVICE float load_weight(uint32_t from)
{
    float r;
    asm volatile("ld.shared.f32 %0, [%1+4];" : "=f"(r) : "r"(from) : "memory");
    return r;
}

SKL_DEVICE skl_gpu_range load_range(uint32_t from)
{
    skl_gpu_range v;
    asm volatile("ld.shared.v2.s32 {%0,%1}, [%2];" : "=r"(v.lo), "=r"(v.hi) : "r"(from) : "memory");
    return v;
}

/* A thread's part in copying tiles [ROWS][DIM]: chunk c of the rows r, r + STEP, ... Places in a matrix are counted in
 * chunks of 16 bytes and 32 bits, since registers are scarce: the host keeps others away (host/plan.c). */
template <int ROWS, int DIM, int THREADS> struct tile_copy {
    static constexpr int CHUNKS = DIM / 8, STEP = THREADS / CHUNKS;
    static_assert(ROWS % STEP == 0, "a tile is whole steps");

    /* The thread's chunk of row 0 of a head. */
    static __device__ __forceinline__ uint32_t start(const skl_gpu_matrix &from, int b, int h)
    {
        const uint32_t c = threadIdx.x % CHUNKS, r = threadIdx.x / CHUNKS;
        return (uint32_t)((b * from.stride[0] + h * from.stride[1]) / 8) + r * (uint32_t)(from.stride[2] / 8) + c;
    }

    /* As load_tile(): 'valid' rows from the head's row 'first' on. Where nothing is read the place may be anywhere. */
    static __device__ __forceinline__ void copy(uint32_t to, const skl_gpu_matrix &from, uint32_t start, int first,
                                                int valid, int dim)
    {
        const int r = threadIdx.x / CHUNKS, c = threadIdx.x % CHUNKS;
        const int left = 8 * c < dim ? valid - r : 0;
        const uint32_t at = chunk_at<DIM>(r, c), stride = (uint32_t)(from.stride[2] / 8);
        uint32_t place = start + (uint32_t)first * stride;
#pragma unroll
        for (int step = 0; step < ROWS; step += STEP) {
            copy_async(to + (at ^ (step & 7) << 4) + step * DIM * 2, from.data + (uint64_t)place * 16,
                       step < left ? 16 : 0);
            place += STEP * stride;
        }
    }
};

SKL_DEVICE const uint16_t *vector_of(const skl_gpu_matrix &m, int b, int h, int i)
{
    return (const uint16_t *)m.data + b * m.stride[0] + h * m.stride[1] + i * m.stride[2];
}

/* Streamed tiles BY_ROWS: all up to 'end'. next() goes from a tile to the next one. */
template <int STREAM> struct all_tiles {
    int end;

    __device__ __forceinline__ bool next(int &first)
    {
        first += STREAM;
        return first < end;
    }
};

/* Streamed tiles BY_COLUMNS: those of one head whose rows see a column of lo .. hi-1. 32 are looked at together. */
template <int STREAM> struct seen_tiles {
    const skl_gpu_range *range; /* of tiles of 64 rows, all heads */
    int head, n, lo, hi;
    int base;      /* the row after the 32 tiles of 'mask' */
    uint32_t mask; /* those to come */

    __device__ __forceinline__ bool next(int &first)
    {
        while (!mask) {
            if (base >= n)
                return false;
            int row = base + (threadIdx.x & 31) * STREAM;
            bool seen = false;
            if (row < n) {
                skl_gpu_range r = range[(uint32_t)head * ((n + 63) / 64) + row / 64];
                seen = r.lo < r.hi && r.lo < hi && lo < r.hi;
            }
            mask = __ballot_sync(~0u, seen);
            base += 32 * STREAM;
        }
        first = base - 32 * STREAM + (__ffs(mask) - 1) * STREAM;
        mask &= mask - 1;
        return true;
    }
};

#endif
