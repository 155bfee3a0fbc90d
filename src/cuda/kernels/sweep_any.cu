/* SPDX-License-Identifier: Apache-2.0
 *
 * Any operands: f32, mixed dtypes, any alignment, stride and dimension, any scale. Ordinary f32 multiply-adds (FFMA),
 * no tensor cores: a product of f32 operands keeps 24 bits where TF32 would keep 11.
 *
 *     x_P = A_P B_P^T,  x_Q = A_Q B_Q^T       [64 x 64] a tile, 4 x 4 of each side a thread
 *     kl, jsd, second, top, rest: push of the columns into the rows' states;   dz, second_dz: dx of the tile into a
 *     slab;   scores: x_Q of the tile into one. rest and scores need x_Q alone, and make no other
 *
 * second and second_dz are for the divergences of column.cuh, whatever the operands are: chosen at run time, once a
 * tile.
 *
 * plain.cuh has the method.
 *   error   sums of dim products in f32, in order: |error of x| <= dim 2^-24 sum |a b|, a tenth of that in practice
 */
#include "plain.cuh"
#include "rest.cuh"
#include "top.cuh"

namespace
{

/* A product of each side, or of Q alone: see BOTH in push.cuh. */
template <bool BOTH> struct two_sides {
    __device__ __forceinline__ void make(const plain &f, float (*a)[PITCH], float (*b)[PITCH],
                                         float (&x)[2][4][4]) const
    {
#pragma unroll
        for (int side = 0; side < 2; side++) {
            const skl_gpu_side &s = f.p.side[side];
            f.product(a, b, s, f.at.h, BOTH || side ? s.dim : 0, x[side]);
            f.edge(s, x[side]);
        }
    }
};

template <class PUSH> SKL_DEVICE void sweep_sides(const skl_gpu_forward &args)
{
    sweep<PUSH>(args, two_sides<PUSH::BOTH>());
}

/* Rows that look at their columns one by one: see push_rows. */
template <class STATE> struct plain_rows {
    static constexpr bool BOTH = STATE::BOTH;
    STATE state[4];

    __device__ __forceinline__ void start(const plain &f, const skl_gpu_forward &args)
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            state[i].start(args, f.at.first + min(4 * f.ty + i, f.at.valid - 1), blockIdx.y * args.split_columns);
    }
    __device__ __forceinline__ void push(const plain &f, const float (&x)[2][4][4])
    {
        const int first = f.first + 4 * f.tx, column[4] = {first, first + 1, first + 2, first + 3};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float row[2][4] = {{x[0][i][0], x[0][i][1], x[0][i][2], x[0][i][3]},
                               {x[1][i][0], x[1][i][1], x[1][i][2], x[1][i][3]}};
            state[i].push(row, column, first + 4);
        }
    }
    __device__ __forceinline__ void write(const plain &f, const skl_gpu_forward &args)
    {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = 4 * f.ty + i;
            state[i].template write<16>(args, blockIdx.y, f.at.first + row, f.tx == 0 && row < f.at.valid);
        }
    }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(256) skl_plain_kl(const __grid_constant__ skl_gpu_forward args)
{
    sweep_sides<plain_kl>(args);
}

extern "C" __global__ void __launch_bounds__(256) skl_plain_jsd(const __grid_constant__ skl_gpu_forward args)
{
    sweep_sides<plain_jsd>(args);
}

extern "C" __global__ void __launch_bounds__(256) skl_plain_second(const __grid_constant__ skl_gpu_forward args)
{
    sweep_sides<plain_second>(args);
}

extern "C" __global__ void __launch_bounds__(256) skl_plain_top(const __grid_constant__ skl_gpu_forward args)
{
    sweep_sides<plain_rows<row_top>>(args);
}

extern "C" __global__ void __launch_bounds__(256, 2) skl_plain_rest(const __grid_constant__ skl_gpu_forward args)
{
    sweep_sides<plain_rows<row_rest>>(args);
}

extern "C" __global__ void __launch_bounds__(256, 2) skl_plain_scores(const __grid_constant__ skl_gpu_slab args)
{
    slab_by(args, two_sides<false>(), [&](int64_t, int64_t at, float, float x_q) { ((float *)args.slab)[at] = x_q; });
}

extern "C" __global__ void __launch_bounds__(256, 2) skl_plain_dz(const __grid_constant__ skl_gpu_slab args)
{
    slab(args, two_sides<true>(), [&](const skl_gpu_factors &f, const row_terms &t, float x_p, float x_q) {
        return dx_of(args.grad, f, t, x_p, x_q);
    });
}

extern "C" __global__ void __launch_bounds__(256, 2) skl_plain_second_dz(const __grid_constant__ skl_gpu_slab args)
{
    slab(args, two_sides<true>(), [&](const skl_gpu_factors &f, const row_terms &t, float x_p, float x_q) {
        return dx_of_column(args.grad, f, t, x_p, x_q);
    });
}
