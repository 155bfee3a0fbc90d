/* SPDX-License-Identifier: Apache-2.0
 *
 * What teachers of mixed heads take beside their sweeps.
 *
 *     make_members   a row's number of one head, from what its sweep left or from an LSE that was given; behind the
 *                    last head, the score of the row's sink: log2 of the mean of its heads' masses. A thread a row
 *     gather_heads   heads of an operand in the order of head_map, for teachers of one head each. A block a vector
 *
 * A head that the map names and that is not there makes its rows NaN; nothing is read through it.
 *   bytes   make_members: a row's states of all splits, and 4; gather_heads: each vector once in and out
 */
#include "mixture.cuh"
#include "rows.cuh"

namespace
{

SKL_DEVICE bool is_head(const skl_gpu_mixture &m, int h, int k)
{
    const int head = m.map ? m.map[h * m.map_stride[0] + k * m.map_stride[1]] : 0;
    return head >= 0 && head < m.heads;
}

/* m and l, logits, of a head's row as it was given. */
SKL_DEVICE skl_side_state given_state(const skl_gpu_make_members &args, int64_t row, int head)
{
    const skl_gpu_vector &v = args.given;
    const int64_t b = row / args.n / args.heads, i = row % args.n;
    const double lse = ((const float *)v.data)[b * v.stride[0] + head * v.stride[1] + i * v.stride[2]];
    const double m = args.unit * (float)(lse / args.unit);
    return {m, isinf(lse) ? 0 : exp(lse - m), 0};
}

SKL_DEVICE double sink_logit(const skl_gpu_make_members &args, int head)
{
    return element(args.sink.data, head * args.sink.stride[1], args.sink.dtype) / args.temperature;
}

/* ... or as the splits of its sweep left it, with its sink. Not of a row without weight, which nobody reads. */
SKL_DEVICE skl_side_state found_state(const skl_gpu_make_members &args, int64_t row, int head)
{
    skl_row_state s = skl_empty_row();
    const bool keys = args.range[row].lo < args.range[row].hi; /* sweeps leave others anything */
    for (int split = 0; keys && split < args.splits; split++) {
        const float *at = args.state + (int64_t)split * SKL_STATES * args.rows + row;
        skl_row_state part = skl_empty_row();
        if (at[SKL_L_P * args.rows] != 0)
            part.side[0] = {args.unit * at[SKL_M_P * args.rows], at[SKL_L_P * args.rows], 0};
        skl_merge_row(&s, &part);
    }
    const double z = args.sink.data ? sink_logit(args, head) : -INFINITY;
    if (z != -INFINITY) {
        skl_row_state part = skl_empty_row();
        part.side[0] = {z, 1, 0};
        skl_merge_row(&s, &part);
    }
    return s.side[0];
}

/* log2 of the mean of the heads' masses. */
SKL_DEVICE float score_of_sink(const skl_gpu_make_members &args, int64_t row, int h)
{
    double t = 0;
    for (int k = 0; k < args.mixture.members; k++) {
        const skl_gpu_member member = args.mixture.member[k * args.rows + row];
        t += exp2(sink_logit(args, member_head(args.mixture, h, k)) * SKL_LOG2E_DOUBLE + member.shift);
    }
    return (float)log2(t);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(128) skl_make_members(const __grid_constant__ skl_gpu_make_members args)
{
    const int64_t row = own_row();
    if (row >= args.rows)
        return;
    const int h = (int)(row / args.n % args.heads), head = member_head(args.mixture, h, args.member);
    const skl_side_state s = args.given.data ? given_state(args, row, head) : found_state(args, row, head);
    skl_gpu_member to = {SKL_NO_MASS};
    if (s.l != 0)
        to.shift = (float)-(s.m * SKL_LOG2E_DOUBLE + log2(s.l * args.mixture.members));
    if (!is_head(args.mixture, h, args.member))
        to.shift = NAN;
    args.to[row] = to;
    if (args.sink_score && args.member == args.mixture.members - 1)
        args.sink_score[row] = score_of_sink(args, row, h);
}

extern "C" __global__ void __launch_bounds__(128, 8) skl_gather_heads(const __grid_constant__ skl_gpu_gather_heads args)
{
    for (int64_t row = blockIdx.x; row < args.all; row += gridDim.x) {
        const int64_t i = row % args.rows, head = row / args.rows, h = head % args.heads, b = head / args.heads;
        const int of = member_head(args.mixture, (int)h, 0) / args.share;
        const bool there = is_head(args.mixture, (int)h, 0);
        const int64_t from = b * args.from.stride[0] + of * args.from.stride[1] + i * args.from.stride[2];
        for (int d = threadIdx.x; d < args.dim; d += 128)
            put_element(args.to, row * args.dim + d, args.from.dtype,
                        there ? element(args.from.data, from + d, args.from.dtype) : NAN);
    }
}
