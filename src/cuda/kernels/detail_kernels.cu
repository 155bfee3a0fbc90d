/* SPDX-License-Identifier: Apache-2.0
 *
 * Details of rows, from what sweeps left of them: one thread a row, or one warp a row where dot products are wanted.
 *
 *     put_detail    entropy = log l - acc / l beside a flat side;  KL the other way;  JSD and total variation of two
 *     sums put_tops      the largest score of all splits, of equal ones that of the lower column;  or the sum of counts
 *     put_masses    sum over k of e^{z[id_k] - m} / l          K dot products a row: 2 K dim elements read
 */
#include "scores.cuh"

extern "C" __global__ void __launch_bounds__(128) skl_put_detail(const __grid_constant__ skl_gpu_put_detail args)
{
    int64_t row = own_row();
    if (row >= args.rows)
        return;
    const skl_state s = args.state[row];
    const skl_side_state p = {s.m_t, s.l_t, s.acc_t}, q = {s.m_s, s.l_s, s.acc_s};
    double x = 0;
    switch (args.detail) {
    case SKL_DETAIL_ENTROPY: x = p.l == 0 ? 0 : log(p.l) - p.acc / p.l; break;
    case SKL_DETAIL_KL: x = skl_finish_kl(&p, &q); break;
    case SKL_DETAIL_JSD: x = (p.acc + q.acc) / 2; break;
    case SKL_DETAIL_TV: x = p.acc; break;
    }
    put_row(args.to, row, args.heads, args.n, x);
}

/* ---------------------------------------------------------------------------------------------------- tops --- */

namespace
{

SKL_DEVICE void put_integer(const skl_gpu_vector &v, int64_t row, int heads, int n, int x)
{
    if (v.data)
        ((int32_t *)v.data)[row_offset(v, row, heads, n)] = x;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(128) skl_put_tops(const __grid_constant__ skl_gpu_put_tops args)
{
    int64_t row = own_row();
    if (row >= args.rows)
        return;
    for (int side = 0; side < 2; side++) {
        skl_gpu_top best = {-INFINITY, -INFINITY, 0};
        int above = 0;
        for (int slot = 0; slot < args.slots; slot++) {
            const skl_gpu_top t = args.tops[((int64_t)slot * 2 + side) * args.rows + row];
            above += t.column;
            if (t.x > best.x || (t.x == best.x && t.column < best.column))
                best = t;
        }
        if (args.limits && best.x != -INFINITY)
            best.column -= counted_from(args.packed, (int)(row % args.n));
        put_integer(args.to[side], row, args.heads, args.n, args.limits ? best.column : above);
        if (args.limits)
            args.limits[(1 - side) * args.rows + row] = best.there;
    }
}

/* -------------------------------------------------------------------------------------------------- masses --- */

/* Columns that the row does not see have no mass; an id that is neither a column nor -1 makes it NaN. */
extern "C" __global__ void __launch_bounds__(128) skl_put_masses(const __grid_constant__ skl_gpu_put_masses args)
{
    const int64_t row = (int64_t)blockIdx.x * 4 + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (row >= args.rows)
        return;
    const skl_gpu_range r = args.range[row];
    const float m = row_value(args.m, row, args.heads, args.n), l = row_value(args.l, row, args.heads, args.n);
    const int first = r.lo < r.hi ? counted_from(args.packed, (int)(row % args.n)) : 0;
    __syncwarp();
    double sum = 0; /* of every 32nd id */
    for (int64_t k = 0; k < args.ids.count; k++) {
        const int64_t id = row_id(args.ids, row, args.heads, args.n, k), column = first + id;
        float x = id < -1 || id >= args.columns ? NAN : -INFINITY;
        const bool seen = id >= 0 && column >= r.lo && column < r.hi;
        if (__any_sync(~0u, seen)) /* all lanes have one row, and the compiler sees it */
            x = score_of(args.side, row, args.heads, args.n, column, lane);
        if (k % 32 == lane && x != -INFINITY)
            sum += exp(args.unit * ((double)x - (double)m));
    }
    __syncwarp();
#pragma unroll
    for (int step = 16; step; step >>= 1) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane == 0)
        put_row(args.to, row, args.heads, args.n, r.lo < r.hi && l != 0 ? (float)sum / l : 0);
}
