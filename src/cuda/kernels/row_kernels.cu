/* SPDX-License-Identifier: Apache-2.0
 *
 * The small kernels around the sweeps: everything over rows that the big ones want ready-made and contiguous, and
 * everything they leave to be finished. A row is visited once by each; sums over rows are made by one block in a fixed
 * order, in double, so that results do not depend on the device. O(rows) bytes, no shared memory beyond a reduction.
 * What is done to one row is the CPU's, in ../../row.h.
 */
#include "sink.cuh"

namespace
{

/* The sum of x over a block of 256 threads, in thread 0; in a fixed order. The others have no use for theirs. */
SKL_DEVICE double block_sum(double x)
{
    __shared__ double part[256];
    part[threadIdx.x] = x;
    for (int half = 128; half; half >>= 1) {
        __syncthreads();
        if (threadIdx.x < half)
            part[threadIdx.x] += part[threadIdx.x + half];
    }
    return part[threadIdx.x];
}

SKL_DEVICE float block_max(float x)
{
    __shared__ float part[256];
    part[threadIdx.x] = x;
    for (int half = 128; half; half >>= 1) {
        __syncthreads();
        if (threadIdx.x < half)
            part[threadIdx.x] = fmaxf(part[threadIdx.x], part[threadIdx.x + half]);
    }
    return part[threadIdx.x];
}

/* Do the offsets go from 0 to the end, never back? This thread's part of them: 1 when not. Everything else about packed
 * sequences relies on it, and reads nothing through offsets of which it is not so. */
SKL_DEVICE float misplaced(const skl_gpu_packed &p, int64_t n, int columns)
{
    if (!p.q)
        return 0;
    bool bad = first_row(p, 0) != 0 || first_row(p, p.count) != n || first_column(p, 0) != 0 ||
               first_column(p, p.count) != columns;
    for (int s = threadIdx.x; s < p.count; s += 256)
        bad |= first_row(p, s) > first_row(p, s + 1) || first_column(p, s) > first_column(p, s + 1);
    return bad;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256) skl_sum_weights(const __grid_constant__ skl_gpu_sum_weights args)
{
    double sum = 0;
    float largest = 0, any = 0;
    for (int64_t row = threadIdx.x; row < args.rows; row += 256) {
        float w = row_weight(args.weight, row, args.heads, args.n);
        sum += w, largest = fmaxf(largest, fabsf(w)); /* passes over NaN, which is a weight other than 0 */
        any = w != 0 ? 1 : any;
    }
    sum = block_sum(sum);
    largest = block_max(largest);
    __syncthreads(); /* the two share their memory */
    any = block_max(any);
    __syncthreads();
    const bool bad = block_max(misplaced(args.packed, args.n, args.columns)) != 0;
    if (threadIdx.x != 0)
        return;
    sum = args.items > 0 ? args.items : sum;
    float unit = bad           ? NAN
                 : largest > 0 ? (float)(largest / (args.mean ? sum : 1))
                               : 0; /* no row has any weight: no gradient */
    *args.scalars = {sum, largest, unit,     {unit * args.chain[0] / args.spread, unit * args.chain[1] / args.spread},
                     0,   1,       any != 0, bad};
}

namespace
{

/* The columns lo .. hi-1 that row i of a head sees. */
SKL_DEVICE skl_gpu_range range_of(const skl_gpu_find_ranges &args, int64_t row, int i)
{
    const skl_gpu_packed &packed = args.packed;
    int n = args.n, columns = args.columns, first = 0;
    if (packed.q && args.scalars->bad_offsets)
        return {0, -1};
    if (packed.q) { /* of the row's own sequence */
        const int s = sequence_of(packed, i);
        i -= first_row(packed, s), n = first_row(packed, s + 1) - first_row(packed, s);
        first = first_column(packed, s), columns = first_column(packed, s + 1) - first;
    }
    skl_range r = skl_window(i, n, columns, args.left, args.right);
    if (args.begin.data)
        r = skl_from(r, ((const int32_t *)args.begin.data)[row_offset(args.begin, row, args.heads, args.n)]);
    if (args.end.data)
        r = skl_until(r, ((const int32_t *)args.end.data)[row_offset(args.end, row, args.heads, args.n)]);
    if (r.lo >= r.hi || row_weight(args.weight, row, args.heads, args.n) == 0)
        return {0, 0};
    return {first + (int)r.lo, first + (int)r.hi};
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

/* What a split of the columns left. */
SKL_DEVICE skl_row_state split_state(const skl_gpu_finish_rows &args, int64_t row, int split)
{
    const float *at = args.state + (int64_t)split * SKL_STATES * args.rows + row;
    const float l[2] = {at[SKL_L_P * args.rows], at[SKL_L_Q * args.rows]};
    skl_row_state s = skl_empty_row();
    if (args.sweep == SKL_SWEEP_SECOND) {
        s.side[0].acc = l[0], s.side[1].acc = l[1];
        return s;
    }
    if (l[0] != 0)
        s.side[0] = {args.unit[0] * at[SKL_M_P * args.rows], l[0], SKL_LN2_DOUBLE * at[SKL_ACC * args.rows]};
    if (l[1] != 0)
        s.side[1] = {args.unit[1] * at[SKL_M_Q * args.rows], l[1], 0};
    return s;
}

/* What a row comes to that nobody can tell the columns of. A second sweep's state has l = 0. */
SKL_DEVICE skl_row_state no_number(bool sums)
{
    const skl_side_state s = {NAN, sums ? NAN : 0, NAN};
    return {{s, s}};
}

SKL_DEVICE skl_row_state private_state(const skl_gpu_finish_rows &args, const skl_state &s)
{
    skl_row_state row = {{{s.m_s, s.l_s, s.acc_s}, {s.m_t, s.l_t, s.acc_t}}};
    return args.student ? skl_row_state{{row.side[1], row.side[0]}} : row;
}

SKL_DEVICE skl_state public_state(const skl_gpu_finish_rows &args, const skl_row_state &row)
{
    const skl_side_state s = args.student ? row.side[1] : row.side[0], t = args.student ? row.side[0] : row.side[1];
    return {s.m, s.l, s.acc, t.m, t.l, t.acc};
}

/* log S of a target that is not divided by its sum S, from the LSE of P's logits; -inf of one without mass, also where
 * it was divided by an infinite sum. */
SKL_DEVICE double log_sum_of_target(const skl_gpu_raw &raw, int64_t row, int heads, int n, double lse)
{
    const double given = raw.given.data ? row_value(raw.given, row, heads, n) : 0;
    return isinf(given) || lse == -INFINITY ? -INFINITY : lse - given;
}

SKL_DEVICE skl_row_result result_of(const skl_gpu_finish_rows &args, int64_t row, const skl_row_state &s)
{
    skl_row_result r = {0};
    skl_finish_row(args.form, args.param, &s, &r);
    if (args.raw.is) {
        r.lse[0] = log_sum_of_target(args.raw, row, args.heads, args.n, r.lse[0]);
        r.loss = skl_raw_loss(&r);
    }
    return r;
}

/* Each sweep writes what it knows: the LSEs are known after the first one, the divergence after the last. */
SKL_DEVICE void put_results(const skl_gpu_finish_rows &args, int64_t row, const skl_row_result &r)
{
    const bool lses = args.sweep != SKL_SWEEP_SECOND || args.partial_in, divergence = args.sweep != SKL_SWEEP_LSE;
#pragma unroll
    for (int side = 0; side < 2; side++) {
        if (lses) {
            put_row(args.lse[side], row, args.heads, args.n, r.lse[side]);
            put_row(args.m[side], row, args.heads, args.n, r.m[side] / args.unit[side]);
            put_row(args.l[side], row, args.heads, args.n, r.l[side]);
        }
        if (args.sweep == SKL_SWEEP_SECOND)
            put_row(args.kl[side], row, args.heads, args.n, r.c[side]);
    }
    if (divergence)
        put_row(args.loss, row, args.heads, args.n, r.loss);
    if (divergence && args.loss_out)
        args.loss_out[row] = r.loss;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(128, 4) skl_finish_rows(const __grid_constant__ skl_gpu_finish_rows args)
{
    int64_t row = own_row();
    if (row >= args.rows)
        return;
    skl_row_state s = skl_empty_row();
    if (!args.partial_in && args.range[row].hi < 0)
        s = no_number(args.sweep != SKL_SWEEP_SECOND);
    const bool sink = args.sinks.are && args.range[row].hi >= 0; /* which a row sees that sees no key */
    const bool keys = !args.partial_in && args.range[row].lo < args.range[row].hi; /* sweeps leave others anything */
    bool work = args.partial_in || sink ? row_weight(args.weight, row, args.heads, args.n) != 0 : keys;
    if (work && args.partial_in)
        s = private_state(args, args.partial_in[row]);
    for (int split = 0; work && keys && split < args.splits; split++) {
        const skl_row_state part = split_state(args, row, split);
        skl_merge_row(&s, &part);
    }
    if (work && sink && args.sweep != SKL_SWEEP_SECOND) {
        const skl_row_state part = sink_state(args.sinks, row, args.heads, args.n);
        skl_merge_row(&s, &part);
    }
    if (args.partial)
        args.partial[row] = public_state(args, s);
    else
        put_results(args, row, result_of(args, row, s));
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
        *args.value = skl_reduced(sum, args.mean, args.scalars->any_weight, args.scalars->weight_sum);
}

namespace
{

/* A side's m, a score, and log l in base 2, as they were saved; or else from its LSE, which has lost what its rounding
 * took. l = 0: no mass. */
SKL_DEVICE double saved_reference(const skl_gpu_make_factors &args, int64_t row, int side, float &m)
{
    if (args.m[side].data && args.l[side].data) {
        const float l = row_value(args.l[side], row, args.heads, args.n);
        m = row_value(args.m[side], row, args.heads, args.n);
        return l == 0 ? -INFINITY : log2((double)l);
    }
    double lse = row_value(args.lse[side], row, args.heads, args.n);
    if (side == 0 && args.raw.is && args.raw.given.data && lse != -INFINITY)
        lse += row_value(args.raw.given, row, args.heads, args.n); /* saved is that of t */
    m = (float)(lse / args.unit[side]);
    return lse == -INFINITY ? -INFINITY : SKL_LOG2E_DOUBLE * (lse - args.unit[side] * m);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(128) skl_make_factors(const __grid_constant__ skl_gpu_make_factors args)
{
    int64_t row = own_row();
    if (row >= args.rows)
        return;
    int heads = args.heads, n = args.n;
    skl_gpu_reference reference = {{0, 0}, {SKL_NO_MASS, SKL_NO_MASS}};
    skl_gpu_factors f = {0, 0};
    float m[2];
    double log_l[2] = {saved_reference(args, row, 0, m[0]), saved_reference(args, row, 1, m[1])};
    if (args.range[row].lo < args.range[row].hi && log_l[0] != -INFINITY && log_l[1] != -INFINITY) {
        reference = {{m[0], m[1]}, {(float)-log_l[0], (float)-log_l[1]}};
        if (args.dz == SKL_DZ_P) /* acc / l_P, of the loss */
            f.c = (float)(SKL_LOG2E_DOUBLE * row_value(args.loss, row, heads, n) + (log_l[0] - log_l[1]));
        if (args.dz == SKL_DZ_JSD || args.dz == SKL_DZ_COLUMN)
            f.c = row_value(args.kl, row, heads, n);
        f.r = args.weight.data ? row_value(args.weight, row, heads, n) / args.scalars->largest : 1;
        if (args.raw.is) {
            const double lse = args.unit[0] * m[0] + SKL_LN2_DOUBLE * log_l[0];
            f.r *= (float)exp(log_sum_of_target(args.raw, row, heads, n, lse));
        }
    }
    args.references[row] = reference;
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
