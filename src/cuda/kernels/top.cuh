/* SPDX-License-Identifier: Apache-2.0
 *
 * What a sweep of tops does with scores: of each side the row's largest one, the first column that has it, and the other side's
 * score there; or, given such scores as limits, how many of the row's are above them. Comparisons only: the answers are
 * those of the sweep's own scores, exactly. Scores outside the row's columns are -inf, which is above nothing.
 */
#ifndef SKL_TOP_CUH
#define SKL_TOP_CUH

#include "push.cuh"

struct row_top {
    skl_gpu_top side[2];
};

/* A row's, before any column. */
SKL_DEVICE row_top start_top(const skl_gpu_forward &args, int64_t row)
{
    row_top t;
#pragma unroll
    for (int side = 0; side < 2; side++)
        t.side[side] = {args.limits ? args.limits[side * args.problem.rows + row] : -INFINITY, -INFINITY, 0};
    return t;
}

template <int COUNT>
SKL_DEVICE void push_row(row_top &t, const float (&x)[2][COUNT], const int (&column)[COUNT], bool counts)
{
#pragma unroll
    for (int side = 0; side < 2; side++)
#pragma unroll
        for (int j = 0; j < COUNT; j++) {
            skl_gpu_top &top = t.side[side];
            const bool above = x[side][j] > top.x;
            if (counts)
                top.column += above;
            else if (above)
                top = {x[side][j], x[1 - side][j], column[j]};
        }
}

/* Over the LANES neighbouring lanes that hold a row; the same in all of them. */
template <int LANES>
SKL_DEVICE void write_top(const row_top &t, const skl_gpu_forward &args, int slot, int64_t row, bool mine)
{
#pragma unroll
    for (int side = 0; side < 2; side++) {
        skl_gpu_top best = t.side[side];
#pragma unroll
        for (int step = 1; step < LANES; step *= 2) {
            const skl_gpu_top other = {__shfl_xor_sync(~0u, best.x, step), __shfl_xor_sync(~0u, best.there, step),
                                       __shfl_xor_sync(~0u, best.column, step)};
            if (args.limits)
                best.column += other.column;
            else if (other.x > best.x || (other.x == best.x && other.column < best.column))
                best = other;
        }
        if (mine)
            args.tops[((int64_t)slot * 2 + side) * args.problem.rows + row] = best;
    }
}

/* For the sweeps of 16-bit operands: see push.cuh. F also answers 'first', the first column of the group. */
template <int MT, int NT> struct push_top {
    static constexpr bool FAST = false;
    row_top top[2 * MT];
    bool counts;

    template <class F> __device__ __forceinline__ void start(const F &f, const skl_gpu_forward &args)
    {
        counts = args.limits;
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) {
            const int row = f.row_in_tile(i >> 1, i & 1);
            top[i] = start_top(args, f.at.first + (row < f.at.valid ? row : 0));
        }
    }

    template <bool EDGE, class F>
    __device__ __forceinline__ void push(const F &f, const float (&x_p)[MT][NT][4], const float (&x_q)[MT][NT][4])
    {
        int column[2 * NT];
#pragma unroll
        for (int j = 0; j < 2 * NT; j++) column[j] = f.first + (j >> 1) * 8 + (threadIdx.x & 3) * 2 + (j & 1);
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) {
            float row[2][2 * NT];
            row_of(x_p, x_q, i, row);
            push_row(top[i], row, column, counts);
        }
    }

    template <class F> __device__ __forceinline__ void write(const F &f, const skl_gpu_forward &args)
    {
        const place at = f.place_again();
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) {
            const int row = f.row_in_tile(i >> 1, i & 1);
            write_top<4>(top[i], args, f.slot(), at.first + row, (threadIdx.x & 3) == 0 && row < at.valid);
        }
    }
};

#endif
