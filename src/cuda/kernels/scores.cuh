/* SPDX-License-Identifier: Apache-2.0
 *
 * The score of one row and one column, by a warp: for kernels that want a few columns of a row. Its sum has another
 * order than a sweep's.
 */
#ifndef SKL_SCORES_CUH
#define SKL_SCORES_CUH

#include "rows.cuh"

/* The lanes' shares of <a, b>, summed up in every lane. */
SKL_DEVICE float dot(const skl_gpu_side &s, int64_t a_at, int64_t b_at, int lane)
{
    float sum = 0;
    for (int d = lane; d < s.dim; d += 32)
        sum = fmaf(element(s.a.data, a_at + d, s.a.dtype), element(s.b.data, b_at + d, s.b.dtype), sum);
    __syncwarp(); /* the last turn is not every lane's */
#pragma unroll
    for (int step = 16; step; step >>= 1) sum += __shfl_xor_sync(~0u, sum, step);
    return sum;
}

/* Of row i of head h of batch b. */
SKL_DEVICE float score_at(const skl_gpu_side &s, int64_t b, int64_t h, int64_t i, int64_t column, int lane)
{
    const int64_t a_at = b * s.a.stride[0] + h * s.a.stride[1] + i * s.a.stride[2];
    const int64_t b_at = b * s.b.stride[0] + (uint32_t)h / (uint32_t)s.share * s.b.stride[1] + column * s.b.stride[2];
    float x = dot(s, a_at, b_at, lane);
    if (s.bias.data)
        x += element(s.bias.data, column * s.bias.stride[2], s.bias.dtype);
    return s.cap != 0 ? s.cap * tanhf(s.inner * x) : x == -INFINITY ? x : s.inner * x;
}

SKL_DEVICE float score_of(const skl_gpu_side &s, int64_t row, int heads, int n, int64_t column, int lane)
{
    const int64_t head = row / n;
    return score_at(s, head / heads, head % heads, row % n, column, lane);
}

SKL_DEVICE int64_t id_at(const skl_gpu_ids &ids, int64_t at)
{
    return ids.rows.dtype == SKL_I64 ? ((const int64_t *)ids.rows.data)[at] : ((const int32_t *)ids.rows.data)[at];
}

/* The k-th integer of a row. */
SKL_DEVICE int64_t row_id(const skl_gpu_ids &ids, int64_t row, int heads, int n, int64_t k)
{
    return id_at(ids, row_offset(ids.rows, row, heads, n) + k * ids.step);
}

#endif
