/* SPDX-License-Identifier: Apache-2.0
 *
 * The student off a listed teacher's columns: m and l of side Q over the columns that a row does not list. A row's
 * listed columns are sorted, and each lane goes along them as the sweep goes along the columns: most of the time a
 * comparison for each row and group of columns. Where a column is listed its score becomes -inf, no mass.
 *
 *     y = factor (x - m),  l = sum 2^y        m as in state.cuh
 */
#ifndef SKL_REST_CUH
#define SKL_REST_CUH

#include "listed.cuh"
#include "push.cuh"

/* A row's state: see push_rows. */
struct row_rest {
    static constexpr bool BOTH = false;
    float m, l, factor;
    const int32_t *next; /* of the listed columns */

    __device__ __forceinline__ void start(const skl_gpu_forward &args, int64_t row, int first)
    {
        const int32_t *column = args.listed + row * (args.room + 1);
        m = SKL_LOWEST, l = 0, factor = args.problem.side[1].factor;
        next = column + first_place(column, args.room, first);
        __syncwarp(); /* lanes have rows of their own */
    }

    template <int COUNT> __device__ __forceinline__ void push(float (&x)[2][COUNT], const int (&column)[COUNT], int end)
    {
        for (int listed = *next; listed < end; listed = *++next)
#pragma unroll
            for (int j = 0; j < COUNT; j++) x[1][j] = column[j] == listed ? -INFINITY : x[1][j];
        __syncwarp(); /* lanes of one row go along the list together, those of others do not */
        float sum = sum_of(x[1]);
        if (sum > SKL_RAISE) {
            float top = m;
#pragma unroll
            for (int j = 0; j < COUNT; j++) top = fmaxf(top, x[1][j]);
            move(top);
            sum = sum_of(x[1]);
        }
        l += sum;
    }

    /* P has no mass. */
    template <int LANES>
    __device__ __forceinline__ void write(const skl_gpu_forward &args, int slot, int64_t row, bool mine)
    {
        __syncwarp();
#pragma unroll
        for (int step = 1; step < LANES; step *= 2) {
            row_rest other = {__shfl_xor_sync(~0u, m, step), __shfl_xor_sync(~0u, l, step), factor, next};
            const float top = fmaxf(m, other.m);
            move(top), other.move(top);
            l += other.l;
        }
        if (mine)
            write_state(args.state + (int64_t)slot * SKL_STATES * args.problem.rows, args.problem.rows, row,
                        {{SKL_LOWEST, m}, {0, l}, 0});
    }

    template <int COUNT> __device__ __forceinline__ float sum_of(const float (&x)[COUNT]) const
    {
        float sum = 0;
#pragma unroll
        for (int j = 0; j < COUNT; j++) sum += power_of_two(relative(x[j], m, factor));
        return sum;
    }

    __device__ __forceinline__ void move(float to)
    {
        l *= power_of_two(fmaxf(relative(m, to, factor), SKL_FARTHEST));
        m = to;
    }
};

#endif
