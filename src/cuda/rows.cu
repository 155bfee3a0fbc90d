/* SPDX-License-Identifier: Apache-2.0
 *
 * The small kernels around the sweeps: everything over rows that the big ones want ready-made and contiguous, and
 * everything they leave to be finished. A row is visited once by each; sums over rows are made by one block in a fixed
 * order, in double, so that results do not depend on the device. O(rows) bytes, no shared memory beyond a reduction.
 */
#include "words.cuh"

namespace
{

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

/* This thread's row, or one past the last. */
SKL_DEVICE int64_t own_row()
{
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

/* The sum of x over a block of 256 threads, in thread 0; in a fixed order. */
SKL_DEVICE double block_sum(double x)
{
    __shared__ double part[256];
    part[threadIdx.x] = x;
    __syncthreads();
    for (int half = 128; half; half >>= 1) {
        if (threadIdx.x < half)
            part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    return part[0];
}

SKL_DEVICE float block_max(float x)
{
    __shared__ float part[256];
    part[threadIdx.x] = x;
    __syncthreads();
    for (int half = 128; half; half >>= 1) {
        if (threadIdx.x < half)
            part[threadIdx.x] = fmaxf(part[threadIdx.x], part[threadIdx.x + half]);
        __syncthreads();
    }
    return part[0];
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256) skl_sum_weights(const __grid_constant__ skl_gpu_sum_weights args)
{
    double sum = 0;
    float largest = 0;
    for (int64_t row = threadIdx.x; row < args.rows; row += 256) {
        float w = row_weight(args.weight, row, args.heads, args.n);
        sum += w, largest = fmaxf(largest, fabsf(w));
    }
    sum = block_sum(sum);
    largest = block_max(largest);
    if (threadIdx.x != 0)
        return;
    float unit = largest > 0 ? (float)(largest / (args.mean ? sum : 1)) : 0; /* no row has any weight: no gradient */
    *args.scalars = {sum, largest, unit, {unit * args.chain[0] / args.spread, unit * args.chain[1] / args.spread},
                     0,   1};
}

namespace
{

/* The columns lo .. hi-1 that row i of a head sees. */
SKL_DEVICE skl_gpu_range range_of(const skl_gpu_find_ranges &args, int64_t row, int i)
{
    long long diagonal = (long long)i + args.columns - args.n, lo = 0, hi = args.columns;
    if (args.left >= 0)
        lo = max(lo, diagonal - args.left);
    if (args.right >= 0)
        hi = min(hi, diagonal + args.right + 1);
    if (args.begin.data)
        lo = max(lo, (long long)((const int32_t *)args.begin.data)[row_offset(args.begin, row, args.heads, args.n)]);
    if (args.end.data)
        hi = min(hi, (long long)((const int32_t *)args.end.data)[row_offset(args.end, row, args.heads, args.n)]);
    if (lo >= hi || row_weight(args.weight, row, args.heads, args.n) == 0)
        return {0, 0};
    return {(int)lo, (int)hi};
}

}  // namespace

extern "C" __global__ void __launch_bounds__(64) skl_find_ranges(const __grid_constant__ skl_gpu_find_ranges args)
{
    __shared__ skl_gpu_range seen[64];
    int i = (int)(blockIdx.x % args.tiles) * 64 + threadIdx.x;
    int64_t row = (int64_t)(blockIdx.x / args.tiles) * args.n + i;
    skl_gpu_range r = i < args.n ? range_of(args, row, i) : skl_gpu_range{0, 0};
    if (i < args.n)
        args.range[row] = r;
    seen[threadIdx.x] = r;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    skl_gpu_range all = {INT32_MAX, 0};
    for (int k = 0; k < 64; k++)
        if (seen[k].lo < seen[k].hi)
            all = {min(all.lo, seen[k].lo), max(all.hi, seen[k].hi)};
    args.tile_range[blockIdx.x] = {all.hi ? all.lo : 0, all.hi};
}

/* ------------------------------------------------------------------------------------------------- results --- */

namespace
{

struct side_state {
    double m, l, acc; /* natural logarithms */
};

/* The states of all splits: m is the largest, sums are rescaled to it. */
SKL_DEVICE side_state merged_splits(const skl_gpu_finish_rows &args, int64_t row, int side)
{
    side_state s = {-INFINITY, 0, 0};
    for (int pass = 0; pass < 2; pass++)
        for (int split = 0; split < args.splits; split++) {
            const float *at = args.state + (int64_t)split * SKL_STATES * args.rows + row;
            float m = at[(side ? SKL_M_Q : SKL_M_P) * args.rows], l = at[(side ? SKL_L_Q : SKL_L_P) * args.rows];
            double y = SKL_LN2_DOUBLE * m;
            if (l == 0)
                continue;
            if (pass == 0) {
                s.m = fmax(s.m, y);
                continue;
            }
            double f = exp(y - s.m), acc = side == 0 ? at[SKL_ACC * args.rows] : 0;
            s.l += l * f;
            s.acc += isinf(acc) ? acc : SKL_LN2_DOUBLE * acc * f;
        }
    return s;
}

SKL_DEVICE side_state given_state(const skl_gpu_finish_rows &args, int64_t row, int side)
{
    const skl_state &s = args.partial_in[row];
    if (side == args.student)
        return {s.m_s, s.l_s, s.acc_s};
    return {s.m_t, s.l_t, s.acc_t};
}

/* The kernels' acc is a sum of e^{z_P - m_P} (z_P - z_Q); a caller's states have both logits relative to their m. */
SKL_DEVICE double offset_of_acc(const side_state &p, const side_state &q)
{
    return p.l == 0 || isinf(p.acc) || isinf(q.m) ? 0 : p.l * (p.m - q.m);
}

SKL_DEVICE double lse_of(const side_state &s)
{
    return s.l == 0 ? -INFINITY : s.m + log(s.l);
}

/* KL(P || Q) = acc / l_P + LSE_Q - LSE_P; a sum of no terms is 0, mass where Q has none is infinite. */
SKL_DEVICE double kl_of(const side_state &p, double lse_p, double lse_q)
{
    return lse_p == -INFINITY ? 0 : lse_q == -INFINITY ? (double)INFINITY : p.acc / p.l + (lse_q - lse_p);
}

SKL_DEVICE void put_partial(const skl_gpu_finish_rows &args, int64_t row, side_state (&s)[2])
{
    if (args.sweep == SKL_SWEEP_KL)
        s[0].acc -= offset_of_acc(s[0], s[1]);
    const side_state a = args.student ? s[1] : s[0], b = args.student ? s[0] : s[1];
    args.partial[row] = {a.m, a.l, a.acc, b.m, b.l, b.acc};
}

}  // namespace

extern "C" __global__ void __launch_bounds__(128, 4) skl_finish_rows(const __grid_constant__ skl_gpu_finish_rows args)
{
    int64_t row = own_row();
    if (row >= args.rows)
        return;
    int heads = args.heads, n = args.n;
    side_state s[2] = {{-INFINITY, 0, 0}, {-INFINITY, 0, 0}};
    bool work = args.partial_in ? row_weight(args.weight, row, heads, n) != 0 : args.range[row].lo < args.range[row].hi;
    if (args.sweep == SKL_SWEEP_JSD && !args.partial_in) {
        for (int split = 0; work && split < args.splits; split++) {
            const float *at = args.state + (int64_t)split * SKL_STATES * args.rows + row;
            s[0].acc += at[SKL_L_P * args.rows], s[1].acc += at[SKL_L_Q * args.rows];
        }
    } else if (work)
#pragma unroll
        for (int side = 0; side < 2; side++)
            s[side] = args.partial_in ? given_state(args, row, side) : merged_splits(args, row, side);
    if (args.partial) {
        put_partial(args, row, s);
        return;
    }
    if (args.partial_in && args.sweep == SKL_SWEEP_KL)
        s[0].acc += offset_of_acc(s[0], s[1]);
    if (args.partial_in && args.sweep == SKL_SWEEP_JSD && (s[0].l != 0 || s[1].l != 0))
        s[0].acc = s[1].acc = 0; /* a state of the first sweep knows no divergence yet */
    double lse[2] = {lse_of(s[0]), lse_of(s[1])}, loss = 0;
    if (args.sweep != SKL_SWEEP_JSD || args.partial_in)
#pragma unroll
        for (int side = 0; side < 2; side++) {
            float m = (float)(lse[side] / args.unit[side]);
            put_row(args.lse[side], row, heads, n, lse[side]);
            put_row(args.m[side], row, heads, n, m);
            put_row(args.l[side], row, heads, n, isinf(m) ? 0 : exp(lse[side] - args.unit[side] * m));
        }
    if (args.sweep == SKL_SWEEP_LSE)
        return;
    if (args.sweep == SKL_SWEEP_JSD) {
#pragma unroll
        for (int side = 0; side < 2; side++) put_row(args.kl[side], row, heads, n, s[side].acc);
        loss = args.beta[0] * s[0].acc + args.beta[1] * s[1].acc;
    } else
        loss = kl_of(s[0], lse[0], lse[1]);
    put_row(args.loss, row, heads, n, loss);
    if (args.loss_out)
        args.loss_out[row] = loss;
}

extern "C" __global__ void __launch_bounds__(256) skl_sum_values(const __grid_constant__ skl_gpu_sum_values args)
{
    double sum = 0;
    for (int64_t row = threadIdx.x; row < args.rows; row += 256) {
        float w = row_weight(args.weight, row, args.heads, args.n);
        sum += w != 0 ? w * args.loss[row] : 0;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        *args.value = !args.mean ? sum : args.scalars->largest > 0 ? sum / args.scalars->weight_sum : 0;
}

namespace
{

/* From its two parts, if they were given. */
SKL_DEVICE double saved_lse(const skl_gpu_make_factors &args, int64_t row, int side)
{
    if (!args.m[side].data || !args.l[side].data)
        return row_value(args.lse[side], row, args.heads, args.n);
    double m = row_value(args.m[side], row, args.heads, args.n), l = row_value(args.l[side], row, args.heads, args.n);
    return l == 0 ? -INFINITY : args.unit[side] * m + log(l);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(128) skl_make_factors(const __grid_constant__ skl_gpu_make_factors args)
{
    int64_t row = own_row();
    if (row >= args.rows)
        return;
    int heads = args.heads, n = args.n;
    skl_gpu_factors f = {{1e30f, 1e30f}, 0, 0};
    double lse[2] = {saved_lse(args, row, 0), saved_lse(args, row, 1)};
    if (args.range[row].lo < args.range[row].hi && lse[0] != -INFINITY && lse[1] != -INFINITY) {
        f.lse2[0] = (float)(SKL_LOG2E_DOUBLE * lse[0]), f.lse2[1] = (float)(SKL_LOG2E_DOUBLE * lse[1]);
        if (args.dz == SKL_DZ_P)
            f.c = (float)(row_value(args.loss, row, heads, n) + (lse[0] - lse[1]));
        if (args.dz == SKL_DZ_JSD)
            f.c = row_value(args.kl, row, heads, n);
        f.r = args.weight.data ? row_value(args.weight, row, heads, n) / args.scalars->largest : 1;
    }
    args.factors[row] = f;
}

/* ------------------------------------------------------------------------------------------------ matrices --- */

extern "C" __global__ void __launch_bounds__(128) skl_convert(const __grid_constant__ skl_gpu_convert args)
{
    for (int64_t row = blockIdx.x; row < args.all; row += gridDim.x) {
        int64_t head = row / args.rows, i = row % args.rows, b = head / args.heads, h = head % args.heads;
        int64_t to = b * args.to.stride[0] + h * args.to.stride[1] + (args.first + i) * args.to.stride[2];
        const float *from = args.from ? args.from + row * args.dim : nullptr;
        for (int d = threadIdx.x; d < args.dim; d += 128)
            put_element(args.to.data, to + d, args.to.dtype, from ? from[d] : 0);
    }
}

extern "C" __global__ void __launch_bounds__(128) skl_sum_columns(const __grid_constant__ skl_gpu_sum_columns args)
{
    int64_t j = own_row();
    if (j >= args.columns)
        return;
    float sum = 0;
    for (int i = 0; i < args.rows; i++) sum += element(args.slab, i * args.ld + j, args.dtype);
    args.sum[j] = (args.add ? args.sum[j] : 0) + *args.alpha * sum;
}
