/* SPDX-License-Identifier: Apache-2.0
 *
 * Tiles of operands in shared memory, fragments of them in registers, and which columns a block of rows sees.
 *
 * A tile is [rows][DIM] of 16-bit numbers in chunks of 8 (16 bytes). Chunk c of row r lies at chunk c ^ (r % 8), so
 * that the 8 rows of a matrix that ldmatrix reads fall into 8 different groups of 4 banks, and so do the 8 chunks that
 * 8 neighbouring threads write.
 */
#ifndef SKL_TILE_CUH
#define SKL_TILE_CUH

#include "ptx.cuh"

/* Bytes from the tile's start to chunk c of row r. */
template <int DIM> SKL_DEVICE uint32_t chunk_at(int r, int c)
{
    return (uint32_t)(2 * r * DIM + ((c ^ (r & 7)) << 4));
}

/* A thread's part in copying tiles [ROWS][DIM]: chunk c of the rows r, r + STEP, .. that all threads copy at once.
 *
 * TOGETHER: as the right operand, a lane has 2 columns of each 8 of a product. Row 8 j + 2 q + e of 32 rows of the tile
 * is then row 8 q + 2 j + e of the matrix, so that lane q of a row has 8 columns of 32 that lie together. */
template <int ROWS, int DIM, int THREADS, bool TOGETHER = false> struct tile_copies {
    static constexpr int CHUNKS = DIM / 8, STEP = THREADS / CHUNKS;
    static_assert(ROWS % STEP == 0, "a tile is whole steps");

    /* The row of the matrix that is row r of the tile. No bit of r decides two of it: that of a sum of rows without
     * common bits is the sum. */
    static __device__ __forceinline__ constexpr int source_row(int r)
    {
        return TOGETHER ? (r & ~30) | (r >> 2 & 6) | (r << 2 & 24) : r;
    }

    static __device__ __forceinline__ int row()
    {
        return threadIdx.x / CHUNKS;
    }
    static __device__ __forceinline__ int chunk()
    {
        return threadIdx.x % CHUNKS;
    }

    /* Where this thread reads, of a matrix that begins at 'from'. */
    static __device__ __forceinline__ const uint16_t *start(const uint16_t *from, int64_t stride)
    {
        return from + source_row(row()) * stride + 8 * chunk();
    }

    /* Where it writes, in a tile. */
    static __device__ __forceinline__ uint32_t to()
    {
        return chunk_at<DIM>(row(), chunk());
    }

    /* Rows 0 .. valid-1 (all of them, if WHOLE) and entries 0 .. dim-1, a multiple of 8, from 'source' on; the rest of
     * the tile is 0, and not read. 'tile' is to() in the tile. */
    template <bool WHOLE>
    static __device__ __forceinline__ void copy(uint32_t tile, const uint16_t *source, int64_t stride, int valid,
                                                int dim)
    {
        static_assert(STEP % 8 == 0 || STEP == 4, "the swizzle repeats after 8 rows");
        const int bytes = 8 * chunk() < dim ? 16 : 0;
#pragma unroll
        for (int step = 0; step < ROWS; step += STEP, source += (source_row(step) - source_row(step - STEP)) * stride) {
            const uint32_t at = STEP == 4 && (step & 4) ? tile ^ 64 : tile; /* (r + 4) % 8 = r % 8 ^ 4, for r < 4 */
            copy_async(at + step * DIM * 2, source, WHOLE || source_row(row()) + source_row(step) < valid ? bytes : 0);
        }
    }
};

template <int ROWS, int DIM, int THREADS>
SKL_DEVICE void load_tile(uint32_t to, const uint16_t *from, int64_t stride, int valid, int dim)
{
    using T = tile_copies<ROWS, DIM, THREADS>;
    T::template copy<false>(to + T::to(), T::start(from, stride), stride, valid, dim);
}

/* Lane addresses of fragments, relative to the tile; k counts steps of 16 along DIM.
 * As the left operand: 16 rows. As the right operand: 16 rows of the tile are 16 columns of the product. The swizzle
 * moves 8 chunks, 4 steps: step k lies 128 (k / 4) bytes behind step k % 4, so that 4 addresses are enough. */
enum { SKL_ADDRESSES = 4 };

template <int DIM> SKL_DEVICE uint32_t left_at(int lane, int k)
{
    return chunk_at<DIM>(lane & 15, 2 * k + (lane >> 4));
}

template <int DIM> SKL_DEVICE uint32_t right_at(int lane, int k)
{
    return chunk_at<DIM>((lane & 7) + ((lane >> 4) << 3), 2 * k + ((lane >> 3) & 1));
}

SKL_DEVICE uint32_t step_at(const uint32_t (&at)[SKL_ADDRESSES], int k)
{
    return at[k % SKL_ADDRESSES] + k / SKL_ADDRESSES * 128;
}

/* ---------------------------------------------------------------------------------------------- which rows --- */

/* Where this block's rows are. */
struct place {
    int64_t first; /* row number of the tile's row 0 */
    int b, h, i;   /* its indices */
    int valid;     /* rows of the tile that exist */
};

template <int ROWS> SKL_DEVICE place place_of(const skl_gpu_problem &p, int block)
{
    place at;
    int head = block / p.tiles;
    at.i = block % p.tiles * ROWS;
    at.b = head / p.heads, at.h = head % p.heads;
    at.first = (int64_t)head * p.n + at.i;
    at.valid = min(ROWS, p.n - at.i);
    return at;
}

/* The block's number, read anew: what is computed from it does not stay in registers from one use to the next. */
SKL_DEVICE int block_again()
{
    int block;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    return block;
}

/* Of head h of a. */
SKL_DEVICE const uint16_t *rows_of_a(const skl_gpu_side &s, const place &at, int h)
{
    const skl_gpu_matrix &a = s.a;
    return (const uint16_t *)a.data + at.b * a.stride[0] + h * a.stride[1] + at.i * a.stride[2];
}

SKL_DEVICE const uint16_t *rows_of_a(const skl_gpu_side &s, const place &at)
{
    return rows_of_a(s, at, at.h);
}

/* A division: not for a loop. */
SKL_DEVICE const uint16_t *columns_of_b(const skl_gpu_side &s, const place &at, int h)
{
    return (const uint16_t *)s.b.data + at.b * s.b.stride[0] + h / s.share * s.b.stride[1];
}

SKL_DEVICE const uint16_t *columns_of_b(const skl_gpu_side &s, const place &at)
{
    return columns_of_b(s, at, at.h);
}

/* ------------------------------------------------------------------------------------------- which columns --- */

/* Columns that some row of a block sees, and those that every row with work sees and whose logits are the product
 * alone. */
struct span {
    int lo, hi;
    int all_lo, all_hi;
};

SKL_DEVICE span nothing_seen()
{
    return {INT32_MAX, 0, 0, INT32_MAX};
}

SKL_DEVICE void see(span &s, skl_gpu_range r)
{
    if (r.lo < r.hi) {
        s.lo = min(s.lo, r.lo), s.hi = max(s.hi, r.hi);
        s.all_lo = max(s.all_lo, r.lo), s.all_hi = min(s.all_hi, r.hi);
    }
}

/* Is there anything but the product in any logit? */
SKL_DEVICE bool plain_logits(const skl_gpu_problem &p)
{
    return !p.side[0].bias.data && !p.side[1].bias.data && p.side[0].cap == 0 && p.side[1].cap == 0;
}

/* The ranges of the block's rows into shared memory, and their span. Ends with a barrier passed. */
template <int ROWS, int THREADS>
SKL_DEVICE span load_ranges(const skl_gpu_problem &p, const place &at, skl_gpu_range *ranges)
{
    for (int i = threadIdx.x; i < ROWS; i += THREADS)
        ranges[i] = i < at.valid ? p.range[at.first + i] : skl_gpu_range{0, 0};
    __syncthreads();
    span s = nothing_seen();
    for (int i = threadIdx.x & 31; i < ROWS; i += 32) see(s, ranges[i]);
#pragma unroll
    for (int step = 16; step; step >>= 1) {
        s.lo = min(s.lo, __shfl_xor_sync(~0u, s.lo, step)), s.hi = max(s.hi, __shfl_xor_sync(~0u, s.hi, step));
        s.all_lo = max(s.all_lo, __shfl_xor_sync(~0u, s.all_lo, step));
        s.all_hi = min(s.all_hi, __shfl_xor_sync(~0u, s.all_hi, step));
    }
    if (!plain_logits(p))
        s.all_hi = 0;
    return s;
}

SKL_DEVICE float bias_at(const skl_gpu_side &s, int column, int columns)
{
    return s.bias.data && column < columns ? element(s.bias.data, column * s.bias.stride[2], s.bias.dtype) : 0;
}

/* The score of x = <a, b> + bias. A bias of -inf is no mass, whatever the sign of the scale. Rounded before a reference
 * is subtracted from it (no FMA), as the reference is. */
SKL_DEVICE float edge_logit(const skl_gpu_side &s, float x)
{
    return s.cap != 0 ? __fmul_rn(s.cap, tanhf(s.inner * x)) : x == -INFINITY ? x : s.inner * x;
}

/* A logit that must be looked at by itself: outside its row's range, with a column bias or under a softcap. */
SKL_DEVICE float edge_logit(const skl_gpu_side &s, float x, int column, skl_gpu_range r)
{
    if (column < r.lo || column >= r.hi)
        return -INFINITY;
    return edge_logit(s, x + bias_at(s, column, r.hi));
}

#endif
