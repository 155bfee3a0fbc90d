/* SPDX-License-Identifier: Apache-2.0
 *
 * What a sweep does with logits: push them into the states of KL, or into the two halves of JSD once the LSEs are
 * known. The sweep F hands over groups of 8 NT columns in the layout of products (x [MT][NT][4] of each side, see
 * multiply()), and answers: p, at, place_again(), ranges, row_in_tile(m, half) and slot(), the number of its split.
 * EDGE: logits may be -inf, no mass.
 */
#ifndef SKL_PUSH_CUH
#define SKL_PUSH_CUH

#include "divergence.cuh"
#include "state.cuh"

/* Logits that must be looked at one by one: a bias, a softcap, rows that do not see all of the columns. */
template <int MT, int NT, class F>
SKL_DEVICE void edge_logits(const F &f, float (&x_p)[MT][NT][4], float (&x_q)[MT][NT][4], int first)
{
#pragma unroll
    for (int j = 0; j < 2 * NT; j++) {
        const int column = first + (j >> 1) * 8 + (threadIdx.x & 3) * 2 + (j & 1);
        const float bias_p = bias_at(f.p.side[0], column, f.p.columns),
                    bias_q = bias_at(f.p.side[1], column, f.p.columns);
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) {
            const skl_gpu_range r = f.ranges[f.row_in_tile(i >> 1, i & 1)];
            const bool in = r.lo <= column && column < r.hi;
            float &p = x_p[i >> 1][j >> 1][2 * (i & 1) + (j & 1)], &q = x_q[i >> 1][j >> 1][2 * (i & 1) + (j & 1)];
            p = in ? edge_logit(f.p.side[0], p + bias_p) : -INFINITY;
            q = in ? edge_logit(f.p.side[1], q + bias_q) : -INFINITY;
        }
    }
}

/* This lane's columns of one of its rows, the row 8 half + lane / 4 of tile m. */
template <int MT, int NT>
SKL_DEVICE void row_of(const float (&x_p)[MT][NT][4], const float (&x_q)[MT][NT][4], int i, float (&row)[2][2 * NT])
{
#pragma unroll
    for (int j = 0; j < 2 * NT; j++) {
        row[0][j] = x_p[i >> 1][j >> 1][2 * (i & 1) + (j & 1)];
        row[1][j] = x_q[i >> 1][j >> 1][2 * (i & 1) + (j & 1)];
    }
}

template <int MT, int NT> struct push_kl {
    static constexpr bool FAST = true; /* worth a copy of the code without edges */
    static constexpr bool BOTH = true; /* sides; without, Q's scores alone are made, and P's are 0 */
    row_state state[2 * MT];
    float factor[2];

    template <class F> __device__ __forceinline__ void start(const F &f, const skl_gpu_forward &args)
    {
        factor[0] = f.p.side[0].factor, factor[1] = f.p.side[1].factor;
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) state[i] = empty_state();
    }

    template <bool EDGE, class F>
    __device__ __forceinline__ void push(const F &f, const float (&x_p)[MT][NT][4], const float (&x_q)[MT][NT][4])
    {
        row_sums sums[2 * MT];
        float top = 0;
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) {
            float row[2][2 * NT];
            row_of(x_p, x_q, i, row);
            sums[i] = sums_of<EDGE>(state[i], row, factor);
            top = fmaxf(top, fmaxf(sums[i].l[0], sums[i].l[1]));
        }
        if (__any_sync(~0u, top > SKL_RAISE)) {
#pragma unroll
            for (int i = 0; i < 2 * MT; i++) {
                float row[2][2 * NT];
                row_of(x_p, x_q, i, row);
                raise_state(state[i], row, factor);
                add(state[i], sums_of<EDGE>(state[i], row, factor));
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) add(state[i], sums[i]);
    }

    template <class F> __device__ __forceinline__ void write(const F &f, const skl_gpu_forward &args)
    {
        float *out = args.state + f.slot() * SKL_STATES * f.p.rows;
        const place at = f.place_again();
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) {
            row_state s = merged_over_lanes<4>(state[i], factor);
            int row = f.row_in_tile(i >> 1, i & 1);
            if ((threadIdx.x & 3) == 0 && row < at.valid)
                write_state(out, f.p.rows, at.first + row, s);
        }
    }
};

/* A second sweep: the rows' LSEs are known, and every divergence has two sums. */
template <int MT, int NT> struct push_sums {
    static constexpr bool FAST = false, BOTH = true;
    row_terms terms[2 * MT];
    float sums[2 * MT][2];

    template <class F> __device__ __forceinline__ void start(const F &f, const skl_gpu_forward &args)
    {
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) {
            int row = f.row_in_tile(i >> 1, i & 1);
            int64_t number = f.at.first + (row < f.at.valid ? row : 0);
            terms[i] = terms_of(f.p, args.references[number]);
            sums[i][0] = sums[i][1] = 0;
        }
    }

    /* add(terms of the row, x_P, x_Q, sums): one column. */
    template <class ADD>
    __device__ __forceinline__ void push_by(const float (&x_p)[MT][NT][4], const float (&x_q)[MT][NT][4], ADD add)
    {
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) {
            float row[2][2 * NT], sum[2] = {0, 0};
            row_of(x_p, x_q, i, row);
#pragma unroll
            for (int j = 0; j < 2 * NT; j++) add(terms[i], row[0][j], row[1][j], sum);
            sums[i][0] += sum[0], sums[i][1] += sum[1];
        }
    }

    template <class F> __device__ __forceinline__ void write(const F &f, const skl_gpu_forward &args)
    {
        float *out = args.state + f.slot() * SKL_STATES * f.p.rows;
        const place at = f.place_again();
#pragma unroll
        for (int i = 0; i < 2 * MT; i++)
#pragma unroll
            for (int side = 0; side < 2; side++) {
                float sum = sums[i][side];
                sum += __shfl_xor_sync(~0u, sum, 1);
                sum += __shfl_xor_sync(~0u, sum, 2);
                int row = f.row_in_tile(i >> 1, i & 1);
                if ((threadIdx.x & 3) == 0 && row < at.valid)
                    out[(side ? SKL_L_Q : SKL_L_P) * f.p.rows + at.first + row] = sum;
            }
    }
};

/* Rows that look at their columns one by one: top.cuh, rest.cuh. F also answers 'first', the first column of the group.
 * A row's STATE has
 *     start(args, row, first)               before the columns from 'first' on
 *     push(x, column, end)                  the scores x [side][] of columns that are all below 'end'
 *     write<LANES>(args, slot, row, mine)   over the LANES neighbouring lanes that hold the row, into those of a
 *     split */
template <int MT, int NT, class STATE> struct push_rows {
    static constexpr bool FAST = false, BOTH = STATE::BOTH;
    STATE state[2 * MT];

    template <class F> __device__ __forceinline__ void start(const F &f, const skl_gpu_forward &args)
    {
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) {
            const int row = f.row_in_tile(i >> 1, i & 1);
            state[i].start(args, f.at.first + (row < f.at.valid ? row : 0), blockIdx.y * args.split_columns);
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
            state[i].push(row, column, f.first + 8 * NT);
        }
    }

    template <class F> __device__ __forceinline__ void write(const F &f, const skl_gpu_forward &args)
    {
        const place at = f.place_again();
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) {
            const int row = f.row_in_tile(i >> 1, i & 1);
            state[i].template write<4>(args, f.slot(), at.first + row, (threadIdx.x & 3) == 0 && row < at.valid);
        }
    }
};

template <int MT, int NT> struct push_jsd : push_sums<MT, NT> {
    template <bool EDGE, class F>
    __device__ __forceinline__ void push(const F &f, const float (&x_p)[MT][NT][4], const float (&x_q)[MT][NT][4])
    {
        this->push_by(x_p, x_q, [&](const row_terms &t, float p, float q, float(&sum)[2]) {
            add_mixture_terms(t, f.p.side, p, q, sum);
        });
    }
};

#endif
