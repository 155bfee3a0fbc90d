/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention's forward: the state of every row in one pass over its columns, for 16-bit operands with dim <= DIM.
 *
 *     x_P = A_P B_P^T,  x_Q = A_Q B_Q^T           [ROWS x COLUMNS] a tile, in registers 8 NT columns at a time
 *     state(row) = push of all its columns        KL: m, l of both sides and acc;  JSD's second sweep: the two KL(. ||
 *     m)
 *
 * A block owns ROWS rows of one head: 4 warps of 16 MT rows, whose fragments of both A stay in registers; their shared
 * memory is then used for two stages of tiles of B. Nothing but the state leaves the block. One barrier a tile: the
 * copy of the next tile is issued right behind it, into the stage that everybody has just left.
 *
 *   registers  A: 2 sides x MT x DIM/16 x 4 = 32 (DIM 64), 128 (128, MT 2), 128 (256); logits 32; states 10 MT
 *   shared     A, then 2 stages of B: 32, 64, 64 KiB, and the rows' ranges
 *   ldmatrix   1 for every 2 MT products of 16 x 8 x 16: half of the shared memory port at MT = 2, all of it at MT = 1,
 *              where the exponentials (DIM 64) or the registers (DIM 256) leave no better choice
 *   HBM        A once; B once for every ROWS rows, mostly from L2: 4 DIM bytes for 4 DIM ROWS flops
 *   error      products are exact, sums f32; 2^y: 2 ulp; l and acc are sums of sums of 2 NT terms
 */
#include "push.cuh"
#include "../shapes.h"

namespace
{

template <int DIM> struct shape {
    static constexpr int THREADS = SKL_FORWARD_THREADS, WARPS = THREADS / 32;
    static constexpr int ROWS = SKL_FORWARD_ROWS(DIM), COLUMNS = SKL_FORWARD_COLUMNS(DIM);
    static constexpr int MT = ROWS / WARPS / 16; /* tiles of 16 rows a warp */
    static constexpr int NT = 4 / MT;            /* tiles of 8 columns whose logits a warp holds at once */
    static constexpr int A = ROWS * DIM * 2, B = COLUMNS * DIM * 2; /* bytes of one side */
    static_assert(2 * A <= SKL_FORWARD_TILES(DIM), "two stages of B take the place of A");
};

template <int TYPE, int DIM> struct forward {
    using S = shape<DIM>;
    static constexpr int MT = S::MT, NT = S::NT, STEPS = DIM / 16;

    const skl_gpu_problem &p;
    const place at;
    const int lane, warp;
    uint32_t a[2][MT][STEPS][4];  /* fragments of the block's rows */
    uint32_t b_at[SKL_ADDRESSES]; /* where this lane reads B's, relative to the tile */
    const uint16_t *b_from[2];    /* where this thread copies the next tile of B from, */
    uint32_t b_to;                /* and to, in a stage */
    const skl_gpu_range *ranges;  /* of the block's rows */

    __device__ __forceinline__ forward(const skl_gpu_problem &problem)
        : p(problem), at(place_of<S::ROWS>(problem, blockIdx.x)), lane(threadIdx.x & 31), warp(threadIdx.x >> 5)
    {
    }

    __device__ __forceinline__ void load_rows(uint32_t shared)
    {
#pragma unroll
        for (int side = 0; side < 2; side++)
            load_tile<S::ROWS, DIM, S::THREADS>(shared + side * S::A, rows_of_a(p.side[side], at),
                                                p.side[side].a.stride[2], at.valid, p.side[side].dim);
        commit_copies();
        wait_copies<0>();
        __syncthreads();
#pragma unroll
        for (int side = 0; side < 2; side++)
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int k = 0; k < STEPS; k++)
                    load_matrices(a[side][m][k],
                                  shared + side * S::A + (warp * MT + m) * 16 * DIM * 2 + left_at<DIM>(lane, k));
        __syncthreads();
    }

    using COPIES = tile_copies<S::COLUMNS, DIM, S::THREADS>;

    __device__ __forceinline__ void start_columns(int first)
    {
        b_to = COPIES::to();
#pragma unroll
        for (int side = 0; side < 2; side++) {
            const skl_gpu_side &s = p.side[side];
            b_from[side] = COPIES::start(columns_of_b(s, at) + first * s.b.stride[2], s.b.stride[2]);
        }
    }

    /* The next tile, whose first column is 'first'. */
    __device__ __forceinline__ void load_columns(uint32_t stage, int first)
    {
        if (first + S::COLUMNS <= p.columns)
            copy_columns<true>(stage, first);
        else
            copy_columns<false>(stage, first);
    }

    template <bool WHOLE> __device__ __forceinline__ void copy_columns(uint32_t stage, int first)
    {
#pragma unroll
        for (int side = 0; side < 2; side++) {
            const skl_gpu_side &s = p.side[side];
            COPIES::template copy<WHOLE>(stage + b_to + side * S::B, b_from[side], s.b.stride[2], p.columns - first,
                                         s.dim);
            b_from[side] += S::COLUMNS * s.b.stride[2];
        }
    }

    /* x of 8 NT columns from column c of the tile on. */
    __device__ __forceinline__ void logits(float (&x)[2][MT][NT][4], uint32_t tile, int c)
    {
#pragma unroll
        for (int side = 0; side < 2; side++) {
#pragma unroll
            for (int i = 0; i < MT * NT * 4; i++) x[side][i / (4 * NT)][i / 4 % NT][i % 4] = 0;
#pragma unroll
            for (int k = 0; k < STEPS; k++)
#pragma unroll
                for (int n = 0; n < NT; n += 2) {
                    uint32_t b[4];
                    load_matrices(b, step_at(b_at, k) + tile + side * S::B + (c + 8 * n) * DIM * 2);
#pragma unroll
                    for (int m = 0; m < MT; m++) {
                        multiply<TYPE>(x[side][m][n], a[side][m][k], b[0], b[1]);
                        multiply<TYPE>(x[side][m][n + 1], a[side][m][k], b[2], b[3]);
                    }
                }
        }
    }

    __device__ __forceinline__ place place_again() const
    {
        return place_of<S::ROWS>(p, block_again());
    }
    __device__ __forceinline__ int slot() const
    {
        return blockIdx.y;
    }
    __device__ __forceinline__ int row_in_tile(int m, int half) const
    {
        return (warp * MT + m) * 16 + half * 8 + (lane >> 2);
    }

    template <class PUSH>
    __device__ __forceinline__ void push_tile(uint32_t tile, const span &seen, int first, PUSH &push)
    {
        float x[2][MT][NT][4];
        const bool inside = PUSH::FAST && first >= seen.all_lo && first + S::COLUMNS <= seen.all_hi;
        if (inside) {
#pragma unroll
            for (int c = 0; c < S::COLUMNS; c += 8 * NT) {
                logits(x, tile, c);
                push.template push<false>(*this, x[0], x[1]);
            }
        } else {
#pragma unroll 1
            for (int c = 0; c < S::COLUMNS; c += 8 * NT) {
                logits(x, tile, c);
                edge_logits(*this, x[0], x[1], first + c);
                push.template push<true>(*this, x[0], x[1]);
            }
        }
    }

    /* Pushes the columns from 'first', a multiple of COLUMNS, to 'end'. Two tiles a turn, so that a stage is a
     * constant. */
    template <class PUSH>
    __device__ __forceinline__ void sweep(uint32_t shared, const span &seen, int first, int end, PUSH &push)
    {
#pragma unroll
        for (int k = 0; k < SKL_ADDRESSES; k++) b_at[k] = shared + right_at<DIM>(lane, k);
        start_columns(first);
        load_columns(shared, first);
        commit_copies();
        for (int c0 = first; c0 < end; c0 += 2 * S::COLUMNS)
#pragma unroll
            for (int stage = 0; stage < 2; stage++) {
                const int c = c0 + stage * S::COLUMNS;
                if (c >= end)
                    break;
                wait_copies<0>();
                __syncthreads();
                if (c + S::COLUMNS < end)
                    load_columns(shared + (1 - stage) * 2 * S::B, c + S::COLUMNS);
                commit_copies();
                push_tile(stage * 2 * S::B, seen, c, push);
            }
    }
};

template <int TYPE, int DIM, class PUSH> __device__ __forceinline__ void run(const skl_gpu_forward &args)
{
    using S = shape<DIM>;
    extern __shared__ __align__(128) unsigned char memory[];
    skl_gpu_range *ranges = (skl_gpu_range *)(memory + SKL_FORWARD_TILES(DIM));
    const uint32_t shared = shared_address(memory);
    forward<TYPE, DIM> f(args.problem);
    f.ranges = ranges;
    const span seen = load_ranges<S::ROWS, S::THREADS>(args.problem, f.at, ranges);
    const int split = blockIdx.y * args.split_columns;
    const int first = max(seen.lo, split) / S::COLUMNS * S::COLUMNS, end = min(seen.hi, split + args.split_columns);
    PUSH push;
    push.start(f, args);
    if (first < end) {
        f.load_rows(shared);
        f.sweep(shared, seen, first, end, push);
    }
    push.write(f, args);
}

}  // namespace

/* Blocks a multiprocessor: what registers and shared memory allow. JSD's second sweep needs more registers. */
#define KERNEL(type, dim, what, blocks) KERNEL_(type, dim, what, blocks)
#define KERNEL_(type, dim, what, blocks)                                                  \
    extern "C" __global__ void __launch_bounds__(SKL_FORWARD_THREADS, blocks)             \
        skl_forward_##type##_##dim##_##what(const __grid_constant__ skl_gpu_forward args) \
    {                                                                                     \
        run<type, dim, push_##what<shape<dim>::MT, shape<dim>::NT>>(args);                \
    }

KERNEL(SKL_TYPE, SKL_DIM, kl, (SKL_DIM == 64 ? 4 : 2))
KERNEL(SKL_TYPE, SKL_DIM, jsd, 2)
