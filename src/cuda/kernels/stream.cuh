/* SPDX-License-Identifier: Apache-2.0
 *
 * Sweeps and slabs whose operands both stream through shared memory, DEPTH entries of the dimension at a time:
 * sweep_wide.cu and sweep_mixed.cu, which have the numbers. PARTS says which products a tile takes, one after the
 * other:
 *
 *     side(p, part), head(p, h, part)    whose operands, h being the rows' head
 *     last(p, part), next(p, part)       is it the tile's last; the one after it, or the first of the next tile
 *     chunks(p)                          of DEPTH entries, in all of a tile's products
 *     logits(f, x)                       makes the products (f.product) and of them both sides' scores
 *     FINITE                             scores are, where a row sees the column
 *     FIRST                              part of a tile
 *     TOGETHER                           are a lane's columns to lie together (tile.cuh)?
 *     KEEPS_STRIDES                      of what is being copied, in four registers, rather than read for every chunk
 *
 * All are static: with an object of them ptxas finds no registers for some kernels.
 *
 * STREAM_SHAPE(x), defined by who includes this, is x of its tiles in ../shapes.h. A block owns 128 rows and goes
 * through a split of the columns, 64 or 128 at a time: 4 warps along the rows, 1 or 2 along the columns, each 32 x 64, the half of it in each half of the
 * columns.
 * Three stages; copies run two chunks ahead over (tile, product, depth), so that they do not stop at the end of a
 * product. The one barrier of a chunk stands before its last products, which hide it: by then every fragment of the
 * chunk has been read, and the first of the next chunk can be fetched behind it.
 *
 * Two warps of a row keep states of their own, written as two splits: they need not meet.
 */
#ifndef SKL_STREAM_CUH
#define SKL_STREAM_CUH

#include "column.cuh"
#include "../shapes.h"

namespace
{

enum {
    THREADS = STREAM_SHAPE(THREADS),
    ROWS = STREAM_SHAPE(ROWS),
    COLUMNS = STREAM_SHAPE(COLUMNS),
    WARPS_ACROSS = STREAM_SHAPE(STATES),
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
typedef float half_logits[GROUPS / 2][MT][2][4];

/* What PARTS say of themselves unless registers or the way to memory ask for something else. */
struct usual_parts {
    static constexpr bool TOGETHER = false, KEEPS_STRIDES = true;
};

template <int COUNT> SKL_DEVICE void clear(float (&x)[COUNT][MT][2][4])
{
#pragma unroll
    for (int i = 0; i < COUNT * MT * 8; i++) x[i / (MT * 8)][i / 8 % MT][i / 4 % 2][i % 4] = 0;
}

SKL_DEVICE int chunks_of(const skl_gpu_side &s)
{
    return (s.dim + DEPTH - 1) / DEPTH;
}

template <int TYPE, class PARTS> struct stream {
    const skl_gpu_problem &p;
    const place at;
    const uint32_t shared;
    const skl_gpu_range *ranges;
    int lane, down, across;
    uint32_t a_at, b_at; /* where this lane reads fragments, in the first stage, step 0 */
    uint32_t stage;      /* in use */
    int chunks_left;     /* that the products have not used */
    int first;           /* column of the group that is being pushed */
    /* Where the copies are: column of the tile, which of its products, entries of the dimension that are left. */
    int column, end, part, left;
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
        b_at = shared + A + across * GROUPS / 2 * 16 * DEPTH * 2 + right_at<DEPTH>(lane, 0);
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

    /* Columns of the tile before a group, beside those of the warps before this one. A warp has half of its groups in each
     * half of the columns. */
    static __device__ __forceinline__ constexpr int columns_before(int group)
    {
        return group / (GROUPS / 2) * (COLUMNS / 2) + group % (GROUPS / 2) * 16;
    }
    __device__ __forceinline__ int column_of(int group) const
    {
        return across * (GROUPS / 2) * 16 + columns_before(group);
    }

    /* ------------------------------------------------------------------------------------------------ copies --- */

    using A_COPIES = tile_copies<ROWS, DEPTH, THREADS>;
    using B_COPIES = tile_copies<COLUMNS, DEPTH, THREADS, PARTS::TOGETHER>;

    /* The copies turn to the tile's next product, or to the next tile. */
    __device__ __forceinline__ void turn()
    {
        const skl_gpu_side &s = p.side[PARTS::side(p, part)];
        const int h = PARTS::head(p, at.h, part);
        left = s.dim, a_stride = s.a.stride[2], b_stride = s.b.stride[2];
        a_from = A_COPIES::start(rows_of_a(s, at, h), a_stride);
        b_from = B_COPIES::start(columns_of_b(s, at, h) + column * b_stride, b_stride);
    }

    template <bool WHOLE> __device__ __forceinline__ void copy_chunk_now()
    {
        const skl_gpu_side &s = p.side[PARTS::side(p, part)];
        A_COPIES::template copy<WHOLE>(into + to, a_from, PARTS::KEEPS_STRIDES ? a_stride : s.a.stride[2], at.valid,
                                       left);
        B_COPIES::template copy<WHOLE>(into + to + A, b_from, PARTS::KEEPS_STRIDES ? b_stride : s.b.stride[2],
                                       p.columns - column, left);
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
                column += PARTS::last(p, part) ? COLUMNS : 0;
                part = PARTS::next(p, part);
                turn();
            }
        }
        commit_copies();
    }

    /* ---------------------------------------------------------------------------------------------- products --- */

    /* Fragments of step k: the swizzle of a row is the same for all of them, and k goes into the chunk's bits 1 and
     * 2. */
    __device__ __forceinline__ void fetch_a(int k)
    {
#pragma unroll
        for (int m = 0; m < MT; m++) load_matrices(a[k & 1][m], ((a_at + stage) ^ (k << 5)) + m * 16 * DEPTH * 2);
    }

    __device__ __forceinline__ void fetch_b(int k, int group)
    {
        load_matrices(b[group & 1], ((b_at + stage) ^ (k << 5)) + columns_before(group) * DEPTH * 2);
    }

    /* Of the groups from 'group' on, an even one. */
    __device__ __forceinline__ void fetch_first(int group = 0)
    {
        fetch_a(0), fetch_b(0, group);
    }

    /* Waits for it and fetches its first fragments, when all of this one have been read. Without a branch around it,
     * though behind the last chunk there is nothing to fetch. */
    __device__ __forceinline__ void next_chunk(int group = 0)
    {
        const uint32_t next = stage == (STAGES - 1) * STAGE ? 0 : stage + STAGE;
        stage = chunks_left ? next : stage;
        wait_copies<STAGES - 2>();
        __syncthreads();
        fetch_first(group);
    }

    /* x = the products of 'dim' entries. */
    __device__ __forceinline__ void product(warp_logits &x, int dim)
    {
        clear(x);
        add_product(x, dim);
    }

    /* x += them. On entry and on return the first fragments of the next chunk are there. */
    __device__ __forceinline__ void add_product(warp_logits &x, int dim)
    {
#pragma unroll 1
        for (int d = 0; d < dim; d += DEPTH) {
            copy_chunk();
            chunks_left--;
            multiply_chunk<0>(x, [&] { next_chunk(); });
        }
    }

    /* Half of its columns, the second half after the first. A product of one chunk takes both from it; of more, the
     * copies go through all of them twice. */
    template <int HALF> __device__ __forceinline__ void half_product(half_logits &x, int dim)
    {
        constexpr int FIRST = HALF * (GROUPS / 2);
        const bool twice = dim > DEPTH;
        clear(x);
#pragma unroll 1
        for (int d = 0; d < dim; d += DEPTH) {
            const int next = d + DEPTH < dim ? FIRST : GROUPS / 2 - FIRST;
            if (HALF == 0 || twice) {
                copy_chunk();
                chunks_left--;
            }
            multiply_chunk<FIRST>(x, [&] {
                if (HALF == 1 || twice)
                    next_chunk(next);
                else
                    fetch_first(next);
            });
        }
    }

    /* x += the products of the chunk's entries and the groups of columns from FIRST on, both even numbers; go_on() when
     * all of its fragments have been read. */
    template <int FIRST, int COUNT, class GO_ON>
    __device__ __forceinline__ void multiply_chunk(float (&x)[COUNT][MT][2][4], GO_ON go_on)
    {
#pragma unroll
        for (int k = 0; k < STEPS; k++)
#pragma unroll
            for (int group = 0; group < COUNT; group++) {
                if (group < COUNT - 1)
                    fetch_b(k, FIRST + group + 1);
                else if (k < STEPS - 1)
                    fetch_a(k + 1), fetch_b(k + 1, FIRST);
                else
                    go_on();
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    multiply<TYPE>(x[group][m][0], a[k & 1][m], b[group & 1][0], b[group & 1][1]);
                    multiply<TYPE>(x[group][m][1], a[k & 1][m], b[group & 1][2], b[group & 1][3]);
                }
            }
    }

    /* Everything that comes before the first product over the tiles from column 'first' to 'last'. */
    __device__ __forceinline__ void start(int first, int last)
    {
        column = first, end = last, part = PARTS::FIRST, into = shared, to = A_COPIES::to(), stage = 0;
        turn();
        int tiles = (last - first + COLUMNS - 1) / COLUMNS;
        chunks_left = tiles * PARTS::chunks(p);
#pragma unroll
        for (int i = 0; i < STAGES - 1; i++) copy_chunk();
        wait_copies<STAGES - 2>();
        __syncthreads();
        fetch_first();
    }
};

template <int TYPE, class PUSH, class PARTS> SKL_DEVICE void sweep(const skl_gpu_forward &args)
{
    extern __shared__ __align__(128) unsigned char memory[];
    skl_gpu_range *ranges = (skl_gpu_range *)(memory + STAGES * STAGE);
    stream<TYPE, PARTS> f(args.problem, blockIdx.x, shared_address(memory));
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
        PARTS::logits(f, x);
        const bool inside = PUSH::FAST && c >= seen.all_lo && c + COLUMNS <= seen.all_hi;
#pragma unroll
        for (int group = 0; group < GROUPS; group++) {
            f.first = c + f.column_of(group);
            if (inside)
                push.template push<!PARTS::FINITE>(f, x[0][group], x[1][group]);
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

/* One tile of the slab a block. write(row, its number in the slab, column, empty, x_P, x_Q, i) has the scores of row i
 * of a group of 16 columns; empty: no row of the tile sees it, and nothing was made. */
template <int TYPE, class PARTS, class WRITE> SKL_DEVICE void slab_by(const skl_gpu_slab &args, WRITE write)
{
    extern __shared__ __align__(128) unsigned char memory[];
    const skl_gpu_grad &g = args.grad;
    const skl_gpu_problem &p = g.problem;
    skl_gpu_range *ranges = (skl_gpu_range *)(memory + STAGES * STAGE);
    stream<TYPE, PARTS> f(p, args.head * p.tiles + args.first_row / ROWS + blockIdx.x, shared_address(memory));
    f.ranges = ranges;
    const span seen = load_ranges<ROWS, THREADS>(p, f.at, ranges);
    const int first = args.first_column + blockIdx.y * COLUMNS;
    const bool empty = first >= seen.hi || first + COLUMNS <= seen.lo;
    warp_logits x[2];
    if (!empty) {
        f.start(first, first + 1);
        PARTS::logits(f, x);
    }
#pragma unroll
    for (int group = 0; group < GROUPS; group++) {
        const int column = first + f.column_of(group);
        if (!empty)
            edge_logits(f, x[0][group], x[1][group], column);
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) {
            const int row = f.row_in_tile(i >> 1, i & 1);
            if (row < f.at.valid)
                write(f.at.first + row, (int64_t)(blockIdx.x * ROWS + row), column, empty, x[0][group], x[1][group], i);
        }
    }
}

/* dx(grad, factors of the row, its terms, x_P, x_Q). */
template <int TYPE, class PARTS, class DX> SKL_DEVICE void slab(const skl_gpu_slab &args, DX dx)
{
    slab_by<TYPE, PARTS>(args, [&](int64_t row, int64_t row_of_slab, int column, bool empty,
                                   const float(&x_p)[MT][2][4], const float(&x_q)[MT][2][4],
                                   int i) { write_row<TYPE>(args, row, row_of_slab, column, empty, x_p, x_q, i, dx); });
}

/* Q's scores as they are, f32. What no row of the tile sees, nobody reads. */
template <int TYPE, class PARTS> SKL_DEVICE void slab_of_scores(const skl_gpu_slab &args)
{
    slab_by<TYPE, PARTS>(args, [&](int64_t, int64_t row_of_slab, int column, bool empty, const float(&x_p)[MT][2][4],
                                   const float(&x_q)[MT][2][4], int i) {
        float *const out = (float *)args.slab + row_of_slab * args.ld - args.first_column;
        float x[2][4];
        row_of(x_p, x_q, i, x);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int at = column + (j >> 1) * 8 + (threadIdx.x & 3) * 2 + (j & 1);
            if (!empty && at < args.first_column + args.columns)
                out[at] = x[1][j];
        }
    });
}

}  // namespace

#endif
