/* SPDX-License-Identifier: Apache-2.0
 *
 * The student off a listed teacher's columns: m and l of side Q over the columns that a row does not list. A row's listed
 * columns are sorted, and each lane goes along them as the sweep goes along the columns: most of the time a comparison for
 * each row and group of columns. Where a column is listed its score becomes -inf, no mass.
 *
 *     y = factor (x - m),  l = sum 2^y        m as in state.cuh
 */
#ifndef SKL_REST_CUH
#define SKL_REST_CUH

#include "push.cuh"

struct rest_state {
    float m, l;
    const int32_t *next; /* of the listed columns */
};

/* Before the columns from 'first' on. Behind the last listed column stands one that is larger than all. */
SKL_DEVICE rest_state start_rest(const skl_gpu_forward &args, int64_t row, int first)
{
    const int32_t *column = args.listed + row * (args.room + 1);
    int low = 0, high = args.room;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (column[middle] < first)
            low = middle + 1;
        else
            high = middle;
    }
    __syncwarp(); /* lanes have rows of their own */
    return {SKL_LOWEST, 0, column + low};
}

/* Scores of the columns at[], which are all below 'end', that the row lists: -inf. */
template <int COUNT> SKL_DEVICE void take_listed(rest_state &s, float (&x)[COUNT], const int (&at)[COUNT], int end)
{
    for (int column = *s.next; column < end; column = *++s.next)
#pragma unroll
        for (int j = 0; j < COUNT; j++) x[j] = at[j] == column ? -INFINITY : x[j];
}

template <int COUNT> SKL_DEVICE float sum_of(const rest_state &s, const float (&x)[COUNT], float factor)
{
    float sum = 0;
#pragma unroll
    for (int j = 0; j < COUNT; j++) sum += power_of_two(relative(x[j], s.m, factor));
    return sum;
}

SKL_DEVICE void move_rest(rest_state &s, float m, float factor)
{
    s.l *= power_of_two(fmaxf(relative(s.m, m, factor), SKL_FARTHEST));
    s.m = m;
}

template <int COUNT> SKL_DEVICE void push_rest_row(rest_state &s, const float (&x)[COUNT], float factor)
{
    float sum = sum_of(s, x, factor), m = s.m;
    if (sum > SKL_RAISE) {
#pragma unroll
        for (int j = 0; j < COUNT; j++) m = fmaxf(m, x[j]);
        move_rest(s, m, factor);
        sum = sum_of(s, x, factor);
    }
    s.l += sum;
}

/* Over the LANES neighbouring lanes that hold a row, into the state of a split. P has no mass there. */
template <int LANES>
SKL_DEVICE void write_rest(rest_state s, const skl_gpu_forward &args, int slot, int64_t row, float factor, bool mine)
{
    __syncwarp();
#pragma unroll
    for (int step = 1; step < LANES; step *= 2) {
        rest_state other = {__shfl_xor_sync(~0u, s.m, step), __shfl_xor_sync(~0u, s.l, step), s.next};
        const float m = fmaxf(s.m, other.m);
        move_rest(s, m, factor), move_rest(other, m, factor);
        s.l += other.l;
    }
    if (mine)
        write_state(args.state + (int64_t)slot * SKL_STATES * args.problem.rows, args.problem.rows, row,
                    {{SKL_LOWEST, s.m}, {0, s.l}, 0});
}

/* For the sweeps of 16-bit operands: see push.cuh. F also answers 'first', the first column of the group. */
template <int MT, int NT> struct push_rest {
    static constexpr bool FAST = false;
    rest_state state[2 * MT];
    float factor;

    template <class F> __device__ __forceinline__ void start(const F &f, const skl_gpu_forward &args)
    {
        factor = f.p.side[1].factor;
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) {
            const int row = f.row_in_tile(i >> 1, i & 1);
            state[i] = start_rest(args, f.at.first + (row < f.at.valid ? row : 0), blockIdx.y * args.split_columns);
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
            take_listed(state[i], row[1], column, f.first + 8 * NT);
            push_rest_row(state[i], row[1], factor);
        }
        __syncwarp(); /* lanes of one row go along the list together, those of others do not */
    }

    template <class F> __device__ __forceinline__ void write(const F &f, const skl_gpu_forward &args)
    {
        const place at = f.place_again();
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) {
            const int row = f.row_in_tile(i >> 1, i & 1);
            write_rest<4>(state[i], args, f.slot(), at.first + row, factor, (threadIdx.x & 3) == 0 && row < at.valid);
        }
    }
};

#endif
