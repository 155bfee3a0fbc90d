/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors over the rows, for kernels of one thread a row; and the CPU's arithmetic of one row.
 */
#ifndef SKL_ROWS_CUH
#define SKL_ROWS_CUH

#include "ptx.cuh"
#include "../../row.h"

#define SKL_NO_MASS -3e38f /* minus log l of a row without gradient: every probability is 0 */

SKL_DEVICE int64_t row_offset(const skl_gpu_vector &v, int64_t row, int heads, int n)
{
    int64_t head = row / n;
    return head / heads * v.stride[0] + head % heads * v.stride[1] + row % n * v.stride[2];
}

SKL_DEVICE float row_value(const skl_gpu_vector &v, int64_t row, int heads, int n)
{
    return ((const float *)v.data)[row_offset(v, row, heads, n)];
}

SKL_DEVICE void put_row(const skl_gpu_vector &v, int64_t row, int heads, int n, double x)
{
    if (v.data)
        ((float *)v.data)[row_offset(v, row, heads, n)] = (float)x;
}

SKL_DEVICE float row_weight(const skl_gpu_vector &v, int64_t row, int heads, int n)
{
    return v.data ? row_value(v, row, heads, n) : 1;
}

SKL_DEVICE int first_row(const skl_gpu_packed &p, int sequence)
{
    return p.q[sequence * p.stride_q];
}

SKL_DEVICE int first_column(const skl_gpu_packed &p, int sequence)
{
    return p.k[sequence * p.stride_k];
}

/* The packed sequence that has row i: the last whose first row is not above it. */
SKL_DEVICE int sequence_of(const skl_gpu_packed &p, int i)
{
    int at = 0, end = p.count;
    while (end - at > 1) {
        const int middle = at + (end - at) / 2;
        if (first_row(p, middle) <= i)
            at = middle;
        else
            end = middle;
    }
    return at;
}

/* The column from which a caller counts those of row i: the first of its sequence. Not of bad offsets, under which no
 * row sees any. */
SKL_DEVICE int counted_from(const skl_gpu_packed &p, int i)
{
    return p.q ? first_column(p, sequence_of(p, i)) : 0;
}

/* This thread's row, or one past the last. */
SKL_DEVICE int64_t own_row()
{
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

#endif
