/* SPDX-License-Identifier: Apache-2.0
 *
 * What an indexer takes beside its sweeps and slabs (sweep_index.cu). A slab of head k holds e_k = r dz act' spread, without
 * the heads' weights, so that cuBLAS's two products and a dot product for each row make all gradients:
 *
 *     index_weights   w of all heads in f32, times the sign of the scale              a thread a row
 *     index_queries   w_k a_k in the operands' type: db = sum_k e_k^T (w_k a_k)       a warp a query and head
 *     index_rows      from s_k = alpha e_k b:  da_k = w_k s_k,  dw_k = <a_k, s_k>     a warp a query and head
 *
 * A row without work has e_k = 0, and whatever its query and weights are adds nothing.
 *   bytes   index_weights: 8 a row and head; index_queries and index_rows: each vector once in and out
 */
#include "rows.cuh"

extern "C" __global__ void __launch_bounds__(128) skl_index_weights(const __grid_constant__ skl_gpu_index_rows args)
{
    const int64_t row = own_row();
    if (row >= args.rows)
        return;
    const int64_t at = row / args.n * args.w.stride[0] + row % args.n * args.w.stride[2];
    for (int k = 0; k < args.members; k++)
        args.weights[k * args.rows + row] = args.sign * element(args.w.data, at + k * args.w_step, args.w.dtype);
}

namespace
{

/* A warp's query and head, of the batch. */
struct query {
    int k, lane;
    int64_t i, row;
    bool there;

    __device__ __forceinline__ query(const skl_gpu_index_rows &args)
    {
        const int64_t number = (int64_t)blockIdx.x * 4 + threadIdx.x / 32;
        k = blockIdx.y, lane = threadIdx.x % 32, i = number;
        row = (int64_t)args.batch * args.n + i, there = i < args.n;
    }
    __device__ __forceinline__ int64_t in(const skl_gpu_matrix &m, const skl_gpu_index_rows &args) const
    {
        return args.batch * m.stride[0] + k * m.stride[1] + i * m.stride[2];
    }
    __device__ __forceinline__ int64_t packed(const skl_gpu_index_rows &args) const
    {
        return ((int64_t)k * args.n + i) * args.dim;
    }
    __device__ __forceinline__ float weight(const skl_gpu_index_rows &args) const
    {
        return args.sign * args.weights[k * args.rows + row];
    }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(128) skl_index_queries(const __grid_constant__ skl_gpu_index_rows args)
{
    const query q(args);
    if (!q.there)
        return;
    const skl_gpu_range r = args.range[q.row];
    const float w = q.weight(args);
    for (int d = q.lane; d < args.dim; d += 32) {
        const float x = r.lo < r.hi ? w * element(args.a.data, q.in(args.a, args) + d, args.a.dtype) : 0;
        put_element(args.queries, q.packed(args) + d, args.a.dtype, x);
    }
}

extern "C" __global__ void __launch_bounds__(128) skl_index_rows(const __grid_constant__ skl_gpu_index_rows args)
{
    const query q(args);
    if (!q.there)
        return;
    const float w = q.weight(args);
    float dw = 0;
    for (int d = q.lane; d < args.dim; d += 32) {
        const float s = args.sum[q.packed(args) + d];
        if (s != 0)
            dw = fmaf(s, element(args.a.data, q.in(args.a, args) + d, args.a.dtype), dw);
        if (args.grad_a.data)
            put_element(args.grad_a.data, q.in(args.grad_a, args) + d, args.grad_a.dtype, s != 0 ? w * s : 0);
    }
    __syncwarp();
#pragma unroll
    for (int step = 16; step; step >>= 1) dw += __shfl_xor_sync(~0u, dw, step);
    if (q.lane == 0 && args.grad_w.data)
        put_element(args.grad_w.data,
                    args.batch * args.grad_w.stride[0] + q.i * args.grad_w.stride[2] + q.k * args.grad_w_step,
                    args.grad_w.dtype, dw);
}
