/* SPDX-License-Identifier: Apache-2.0
 *
 * What sinks take besides finish_rows, which has them as one more state: the sums of a second sweep, their probability
 * and their gradient. A thread a row, O(rows) bytes. sink.cuh has the column.
 *
 *     push_sinks   the states' first split += the sink's terms of the second sweep
 *     sink_masses  sink_mass = e^{z - m} / l of each side
 *     sum_sinks    dsink[h] = unit / temperature times the sum over the rows of head h of r dz, in double and a fixed
 *     order: a
 *                  block a head
 *
 *   shared  a double for each thread of sum_sinks
 *   error   dz is f32, as that of any other column; its sum is rounded once
 */
#include "sink.cuh"

extern "C" __global__ void __launch_bounds__(128) skl_push_sinks(const __grid_constant__ skl_gpu_push_sinks args)
{
    const skl_gpu_problem &p = args.problem;
    const int64_t row = own_row();
    if (row >= p.rows)
        return;
    float sum[2] = {0, 0};
    add_sink(p, args.sinks, args.references[row], args.form, row, sum);
    args.state[SKL_L_P * p.rows + row] += sum[0];
    args.state[SKL_L_Q * p.rows + row] += sum[1];
}

extern "C" __global__ void __launch_bounds__(128) skl_sink_masses(const __grid_constant__ skl_gpu_sink_masses args)
{
    const int64_t row = own_row();
    if (row >= args.rows)
        return;
    for (int side = 0; side < 2; side++) {
        const double x = sink_score(args.sinks, row, args.heads, args.n, side);
        const float m = row_value(args.m[side], row, args.heads, args.n);
        const float l = row_value(args.l[side], row, args.heads, args.n);
        const double mass = l == 0 ? 0 : exp(args.sinks.unit[side] * (x - m)) / l;
        put_row(args.mass[side], row, args.heads, args.n, mass);
    }
}

extern "C" __global__ void __launch_bounds__(256) skl_sum_sinks(const __grid_constant__ skl_gpu_sum_sinks args)
{
    __shared__ double part[256];
    const skl_gpu_problem &p = args.grad.problem;
    const int h = blockIdx.x;
    const int64_t rows = p.rows / p.heads; /* of a head, in all batches */
    double sum = 0;
    for (int64_t k = threadIdx.x; k < rows; k += 256)
        sum += dx_of_sink(args.grad, args.sinks, (k / p.n * p.heads + h) * p.n + k % p.n);
    part[threadIdx.x] = sum;
    for (int half = 128; half; half >>= 1) {
        __syncthreads();
        if (threadIdx.x < half)
            part[threadIdx.x] += part[threadIdx.x + half];
    }
    if (threadIdx.x == 0)
        put_element(args.to.data, h * args.to.stride[2], args.to.dtype,
                    (float)(part[0] * args.grad.scalars->unit / (args.grad.spread * args.sinks.temperature)));
}
