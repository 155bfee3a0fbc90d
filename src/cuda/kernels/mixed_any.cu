/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention one of whose sides is a mixture of heads, any operands and every divergence that takes one: what
 * sweep_any.cu is to sweep_wide.cu, this is to sweep_mixed.cu.
 *
 *     t = sum over the heads k of the parts of x_k = A_k B_k^T (mixture.cuh), its score log2 t; the other side's
 *     product plain_mixed_{kl,jsd,second}: push of the columns into the rows' states;   _dz, _second_dz: dx of the tile
 *     into a slab plain_mixed_lse: the state of one head, mixture.alone, as both P and Q
 *
 * plain.cuh has the method: g + 1 products of 64 x 64 a tile.
 *   registers  4 x 4 of t, of the product at hand and of the other side's scores a thread
 *   error      as sweep_any.cu; t is a sum of g terms of 2 ulp, and its logarithm one of f32
 */
#include "mixture.cuh"
#include "plain.cuh"

namespace
{

struct mixed_sides {
    /* t (+)= the parts of head k. */
    static __device__ __forceinline__ void add(const plain &f, int k, const float (&y)[4][4], float (&t)[4][4])
    {
        const skl_gpu_mixture &m = f.p.mixture;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const skl_gpu_member row = m.member[k * f.p.rows + f.at.first + min(4 * f.ty + i, f.at.valid - 1)];
#pragma unroll
            for (int j = 0; j < 4; j++) t[i][j] += member_part(m, row, member_score(m, y[i][j]));
        }
    }

    __device__ __forceinline__ void make(const plain &f, float (*a)[PITCH], float (*b)[PITCH],
                                         float (&x)[2][4][4]) const
    {
        const skl_gpu_mixture &m = f.p.mixture;
        const skl_gpu_side &mixed = f.p.side[m.side], &other = f.p.side[!m.side];
        float t[4][4], y[4][4];
#pragma unroll
        for (int i = 0; i < 16; i++) t[i >> 2][i & 3] = 0;
#pragma unroll 1
        for (int k = 0; k < m.members; k++) {
            f.product(a, b, mixed, member_head(m, f.at.h, k), mixed.dim, y);
            add(f, k, y, t);
        }
        f.product(a, b, other, f.at.h, other.dim, y);
        f.edge(other, y);
#pragma unroll
        for (int i = 0; i < 16; i++) t[i >> 2][i & 3] = mixed_score(t[i >> 2][i & 3]);
        f.edge(mixed, t);
#pragma unroll
        for (int i = 0; i < 16; i++) {
            x[0][i >> 2][i & 3] = m.side ? y[i >> 2][i & 3] : t[i >> 2][i & 3];
            x[1][i >> 2][i & 3] = m.side ? t[i >> 2][i & 3] : y[i >> 2][i & 3];
        }
    }
};

/* One head as both sides. */
struct one_head {
    __device__ __forceinline__ void make(const plain &f, float (*a)[PITCH], float (*b)[PITCH],
                                         float (&x)[2][4][4]) const
    {
        const skl_gpu_mixture &m = f.p.mixture;
        f.product(a, b, f.p.side[m.side], member_head(m, f.at.h, m.alone), f.p.side[m.side].dim, x[0]);
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const skl_gpu_range r = f.ranges[4 * f.ty + (i >> 2)];
            const int column = f.first + 4 * f.tx + (i & 3);
            float &v = x[0][i >> 2][i & 3];
            v = r.lo <= column && column < r.hi ? member_score(m, v) : -INFINITY;
            x[1][i >> 2][i & 3] = v;
        }
    }
};

struct plain_lse : plain_kl {
    __device__ __forceinline__ void start(const plain &f, const skl_gpu_forward &args)
    {
        plain_kl::start(f, args);
        factor[0] = factor[1] = f.p.mixture.factor;
    }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(256, 2) skl_plain_mixed_kl(const __grid_constant__ skl_gpu_forward args)
{
    sweep<plain_kl>(args, mixed_sides());
}

extern "C" __global__ void __launch_bounds__(256, 1) skl_plain_mixed_jsd(const __grid_constant__ skl_gpu_forward args)
{
    sweep<plain_jsd>(args, mixed_sides());
}

extern "C" __global__ void __launch_bounds__(256, 2)
    skl_plain_mixed_second(const __grid_constant__ skl_gpu_forward args)
{
    sweep<plain_second>(args, mixed_sides());
}

extern "C" __global__ void __launch_bounds__(256, 2) skl_plain_mixed_lse(const __grid_constant__ skl_gpu_forward args)
{
    sweep<plain_lse>(args, one_head());
}

extern "C" __global__ void __launch_bounds__(256, 2) skl_plain_mixed_dz(const __grid_constant__ skl_gpu_slab args)
{
    slab(args, mixed_sides(), [&](const skl_gpu_factors &f, const row_terms &t, float x_p, float x_q) {
        return dx_of(args.grad, f, t, x_p, x_q);
    });
}

extern "C" __global__ void __launch_bounds__(256, 2)
    skl_plain_mixed_second_dz(const __grid_constant__ skl_gpu_slab args)
{
    slab(args, mixed_sides(), [&](const skl_gpu_factors &f, const row_terms &t, float x_p, float x_q) {
        return dx_of_column(args.grad, f, t, x_p, x_q);
    });
}
