/* SPDX-License-Identifier: Apache-2.0
 *
 * Any dimension: the vocabulary's forward, and dx for its backward, for 16-bit operands. Both operands stream through
 * shared memory, DEPTH entries of the dimension at a time.
 *
 *     x_P = A_P B_P^T over dim_P, then x_Q = A_Q B_Q^T over dim_Q          [ROWS x COLUMNS] a tile, both in registers
 *     kl, jsd, second, top, rest: push of the tile's columns into the rows' states;   dz, second_dz: dx of the tile into a slab,
 *     rounded to 16 bits. second and second_dz are for the divergences of column.cuh, of any width. rest makes x_Q alone
 *
 * A block owns 128 rows and goes through a split of the columns, 128 at a time: 8 warps, 4 along the rows and 2 along the
 * columns, each 32 x 64. Three stages; copies run two chunks ahead over (tile, side, depth), so that they do not stop at
 * the end of a product. The one barrier of a chunk stands before its last products, which hide it: by then every fragment
 * of the chunk has been read, and the first of the next chunk can be fetched behind it.
 *
 *   registers  logits 2 x 64; fragments 16 + 8; states 20 a thread, 255 in all
 *   shared     3 stages x 256 rows x 128 bytes = 96 KiB, and the rows' ranges: fits the 99 KiB of sm_120
 *   ldmatrix   6 for every 16 products of 16 x 8 x 16: 3/4 of the shared memory port
 *   HBM        A once for every split (small, from L2), B once for every 128 rows: 512 bytes for 128 x 128 x 2 flops of depth
 *   error      as sweep_narrow.cu; sums of dim products in f32
 * The two warps of a row keep states of their own, written as two splits: they need not meet.
 */
#include "column.cuh"
#include "rest.cuh"
#include "top.cuh"
#include "../shapes.h"

namespace
{

enum {
    THREADS = SKL_STREAM_THREADS,
    ROWS = SKL_STREAM_ROWS,
    COLUMNS = SKL_STREAM_COLUMNS,
    WARPS_ACROSS = SKL_STREAM_STATES,
    WARPS_DOWN = THREADS / 32 / WARPS_ACROSS,
    MT = ROWS / WARPS_DOWN / 16,          /* tiles of 16 rows a warp */
    GROUPS = COLUMNS / WARPS_ACROSS / 16, /* of 16 columns a warp */
    DEPTH = 64,
    STEPS = DEPTH / 16,
    STAGES = 3,
    A = ROWS * DEPTH * 2,
    STAGE = (ROWS + COLUMNS) * DEPTH * 2
};

typedef float warp_logits[GROUPS][MT][2][4]; /* of one side: [group of 16 columns][tile of 16 rows][8 columns][] */

/* BOTH sides, or Q alone: see push.cuh. */
template <int TYPE, bool BOTH = true> struct stream {
    const skl_gpu_problem &p;
    const place at;
    const uint32_t shared;
    const skl_gpu_range *ranges;
    int lane, down, across;
    uint32_t a_at, b_at; /* where this lane reads fragments, in the first stage, step 0 */
    uint32_t stage;      /* in use */
    int chunks_left;     /* that the products have not used */
    int first;           /* column of the group that is being pushed */
    /* Where the copies are: column of the tile, side, entries of the dimension that are left. */
    int column, end, side, left;
    const uint16_t *a_from, *b_from;
    int64_t a_stride, b_stride;
    uint32_t into, to;             /* the stage, and this thread's place in it */
    uint32_t a[2][MT][4], b[2][4]; /* fragments of this step and of the next */

    __device__ __forceinline__ stream(const skl_gpu_problem &problem, int block, uint32_t memory)
        : p(problem), at(place_of<ROWS>(problem, block)), shared(memory)
    {
        lane = threadIdx.x & 31;
        down = threadIdx.x / 32 % WARPS_DOWN, across = threadIdx.x / 32 / WARPS_DOWN;
        a_at = shared + down * MT * 16 * DEPTH * 2 + left_at<DEPTH>(lane, 0);
        b_at = shared + A + across * GROUPS * 16 * DEPTH * 2 + right_at<DEPTH>(lane, 0);
    }

    __device__ __forceinline__ place place_again() const
    {
        return place_of<ROWS>(p, block_again());
    }
    __device__ __forceinline__ int slot() const
    {
        return blockIdx.y * WARPS_ACROSS + across;
    }
    __device__ __forceinline__ int row_in_tile(int m, int half) const
    {
        return (down * MT + m) * 16 + half * 8 + (lane >> 2);
    }

    /* ------------------------------------------------------------------------------------------------ copies --- */

    using A_COPIES = tile_copies<ROWS, DEPTH, THREADS>;
    using B_COPIES = tile_copies<COLUMNS, DEPTH, THREADS>;

    /* The copies turn to the tile's other side, or to the next tile. */
    __device__ __forceinline__ void turn()
    {
        const skl_gpu_side &s = p.side[side];
        left = s.dim, a_stride = s.a.stride[2], b_stride = s.b.stride[2];
        a_from = A_COPIES::start(rows_of_a(s, at), a_stride);
        b_from = B_COPIES::start(columns_of_b(s, at) + column * b_stride, b_stride);
    }

    template <bool WHOLE> __device__ __forceinline__ void copy_chunk_now()
    {
        A_COPIES::template copy<WHOLE>(into + to, a_from, a_stride, at.valid, left);
        B_COPIES::template copy<WHOLE>(into + to + A, b_from, b_stride, p.columns - column, left);
    }

    /* The next chunk into the next stage, if there is one. Always a group, so that groups can be counted. */
    __device__ __forceinline__ void copy_chunk()
    {
        if (column < end) {
            if (at.valid == ROWS && column + COLUMNS <= p.columns)
                copy_chunk_now<true>();
            else
                copy_chunk_now<false>();
            into = into == shared + (STAGES - 1) * STAGE ? shared : into + STAGE;
            a_from += DEPTH, b_from += DEPTH, left -= DEPTH;
            if (left <= 0) {
                column += side ? COLUMNS : 0;
                side = BOTH ? !side : 1;
                turn();
            }
        }
        commit_copies();
    }

    /* ---------------------------------------------------------------------------------------------- products --- */

    /* Fragments of step k: the swizzle of a row is the same for all of them, and k goes into the chunk's bits 1 and 2. */
    __device__ __forceinline__ void fetch_a(int k)
    {
#pragma unroll
        for (int m = 0; m < MT; m++) load_matrices(a[k & 1][m], ((a_at + stage) ^ (k << 5)) + m * 16 * DEPTH * 2);
    }

    __device__ __forceinline__ void fetch_b(int k, int group)
    {
        load_matrices(b[group & 1], ((b_at + stage) ^ (k << 5)) + group * 16 * DEPTH * 2);
    }

    __device__ __forceinline__ void fetch_first()
    {
        fetch_a(0), fetch_b(0, 0);
    }

    /* x += the products of 'dim' entries. On entry and on return the first fragments of the next chunk are there. */
    __device__ __forceinline__ void product(warp_logits &x, int dim)
    {
#pragma unroll
        for (int i = 0; i < GROUPS * MT * 8; i++) x[i / (MT * 8)][i / 8 % MT][i / 4 % 2][i % 4] = 0;
#pragma unroll 1
        for (int d = 0; d < dim; d += DEPTH) {
            copy_chunk();
            chunks_left--;
#pragma unroll
            for (int k = 0; k < STEPS; k++)
#pragma unroll
                for (int group = 0; group < GROUPS; group++) {
                    if (group < GROUPS - 1)
                        fetch_b(k, group + 1);
                    else if (k < STEPS - 1)
                        fetch_a(k + 1), fetch_b(k + 1, 0);
                    else { /* without a branch around it, though behind the last chunk there is nothing to fetch */
                        const uint32_t next = stage == (STAGES - 1) * STAGE ? 0 : stage + STAGE;
                        stage = chunks_left ? next : stage;
                        wait_copies<STAGES - 2>();
                        __syncthreads();
                        fetch_first();
                    }
#pragma unroll
                    for (int m = 0; m < MT; m++) {
                        multiply<TYPE>(x[group][m][0], a[k & 1][m], b[group & 1][0], b[group & 1][1]);
                        multiply<TYPE>(x[group][m][1], a[k & 1][m], b[group & 1][2], b[group & 1][3]);
                    }
                }
        }
    }

    /* Everything that comes before the first product over the tiles from column 'first' to 'last'. */
    __device__ __forceinline__ void start(int first, int last)
    {
        column = first, end = last, side = BOTH ? 0 : 1, into = shared, to = A_COPIES::to(), stage = 0;
        turn();
        int tiles = (last - first + COLUMNS - 1) / COLUMNS;
        chunks_left = tiles * ((BOTH ? (p.side[0].dim + DEPTH - 1) / DEPTH : 0) + (p.side[1].dim + DEPTH - 1) / DEPTH);
#pragma unroll
        for (int i = 0; i < STAGES - 1; i++) copy_chunk();
        wait_copies<STAGES - 2>();
        __syncthreads();
        fetch_first();
    }
};

template <int TYPE, class PUSH> SKL_DEVICE void sweep(const skl_gpu_forward &args)
{
    extern __shared__ __align__(128) unsigned char memory[];
    skl_gpu_range *ranges = (skl_gpu_range *)(memory + STAGES * STAGE);
    stream<TYPE, PUSH::BOTH> f(args.problem, blockIdx.x, shared_address(memory));
    f.ranges = ranges;
    const span seen = load_ranges<ROWS, THREADS>(args.problem, f.at, ranges);
    const int split = blockIdx.y * args.split_columns;
    const int first = max(seen.lo, split) / COLUMNS * COLUMNS, end = min(seen.hi, split + args.split_columns);
    PUSH push;
    push.start(f, args);
    if (first < end)
        f.start(first, end);
#pragma unroll 1
    for (int c = first; c < end; c += COLUMNS) {
        warp_logits x[2];
        f.product(x[0], PUSH::BOTH ? args.problem.side[0].dim : 0);
        f.product(x[1], args.problem.side[1].dim);
        const bool inside = PUSH::FAST && c >= seen.all_lo && c + COLUMNS <= seen.all_hi;
#pragma unroll
        for (int group = 0; group < GROUPS; group++) {
            f.first = c + (f.across * GROUPS + group) * 16;
            if (inside)
                push.template push<false>(f, x[0][group], x[1][group]);
            else {
                edge_logits(f, x[0][group], x[1][group], f.first);
                push.template push<true>(f, x[0][group], x[1][group]);
            }
        }
    }
    push.write(f, args);
}

/* dx of row i of a group of 16 columns. Pairs of columns: the slab is 4-byte aligned, its ld even. */
template <int TYPE, class DX>
SKL_DEVICE void write_row(const skl_gpu_slab &args, int64_t row, int64_t row_of_slab, int column, bool empty,
                          const float (&x_p)[MT][2][4], const float (&x_q)[MT][2][4], int i, DX dx)
{
    const skl_gpu_grad &g = args.grad;
    const skl_gpu_factors t = g.factors[row];
    const row_terms terms = terms_of(g.problem, g.references[row]);
    const int last = args.first_column + args.columns;
    uint16_t *out = (uint16_t *)args.slab + row_of_slab * args.ld - args.first_column;
    float x[2][4];
    row_of(x_p, x_q, i, x);
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
        const int at = column + (j >> 1) * 8 + (threadIdx.x & 3) * 2;
        const float lo = empty ? 0 : dx(g, t, terms, x[0][j], x[1][j]);
        const float hi = empty ? 0 : dx(g, t, terms, x[0][j + 1], x[1][j + 1]);
        const uint32_t pair = pack<TYPE>(lo, hi);
        if (at + 1 < last)
            *(uint32_t *)(out + at) = pair;
        else if (at < last)
            out[at] = (uint16_t)pair;
    }
}

/* One tile of the slab a block. dx(grad, factors of the row, its terms, x_P, x_Q). */
template <int TYPE, class DX> SKL_DEVICE void slab(const skl_gpu_slab &args, DX dx)
{
    extern __shared__ __align__(128) unsigned char memory[];
    const skl_gpu_grad &g = args.grad;
    const skl_gpu_problem &p = g.problem;
    skl_gpu_range *ranges = (skl_gpu_range *)(memory + STAGES * STAGE);
    stream<TYPE> f(p, args.head * p.tiles + args.first_row / ROWS + blockIdx.x, shared_address(memory));
    f.ranges = ranges;
    const span seen = load_ranges<ROWS, THREADS>(p, f.at, ranges);
    const int first = args.first_column + blockIdx.y * COLUMNS;
    const bool empty = first >= seen.hi || first + COLUMNS <= seen.lo;
    warp_logits x[2];
    if (!empty) {
        f.start(first, first + 1);
        f.product(x[0], p.side[0].dim);
        f.product(x[1], p.side[1].dim);
    }
#pragma unroll
    for (int group = 0; group < GROUPS; group++) {
        const int column = first + (f.across * GROUPS + group) * 16;
        if (!empty)
            edge_logits(f, x[0][group], x[1][group], column);
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) {
            const int row = f.row_in_tile(i >> 1, i & 1);
            if (row < f.at.valid)
                write_row<TYPE>(args, f.at.first + row, blockIdx.x * ROWS + row, column, empty, x[0][group],
                                x[1][group], i, dx);
        }
    }
}

}  // namespace

#define KERNEL(type, what, arguments, body) KERNEL_(type, what, arguments, body)
#define KERNEL_(type, what, arguments, body)                               \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)               \
        skl_stream_##type##_##what(const __grid_constant__ arguments args) \
    {                                                                      \
        body;                                                              \
    }

KERNEL(SKL_TYPE, kl, skl_gpu_forward, (sweep<SKL_TYPE, push_kl<MT, 2>>(args)))
KERNEL(SKL_TYPE, jsd, skl_gpu_forward, (sweep<SKL_TYPE, push_jsd<MT, 2>>(args)))
KERNEL(SKL_TYPE, second, skl_gpu_forward, (sweep<SKL_TYPE, push_second<MT, 2>>(args)))
KERNEL(SKL_TYPE, top, skl_gpu_forward, (sweep<SKL_TYPE, push_rows<MT, 2, row_top>>(args)))
KERNEL(SKL_TYPE, rest, skl_gpu_forward, (sweep<SKL_TYPE, push_rows<MT, 2, row_rest>>(args)))
KERNEL(SKL_TYPE, dz, skl_gpu_slab, slab<SKL_TYPE>(args, dx_of))
KERNEL(SKL_TYPE, second_dz, skl_gpu_slab, slab<SKL_TYPE>(args, dx_of_column))
