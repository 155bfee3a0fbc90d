/* SPDX-License-Identifier: Apache-2.0
 *
 * Labels, around the sweeps that are there for divergences. No kernel here is over rows x columns.
 *
 *     z' = unit' x              the student's logits at temperature 1; x a score, unit' = temperature unit
 *     ce = (1 - smoothing) (LSE' - z'[label]) + smoothing (LSE' - mean z') + z_loss LSE'^2
 *     dz' = own q' - flat - hot [j = label]        own = weight (1 + 2 z_loss LSE') + lse_weight
 *                                                  hot = weight (1 - smoothing),  flat = weight smoothing / n
 *
 * The label's score is a dot product of its own, a warp a row (2 dim elements read a side). LSE' is the student's of
 * the sweep, or that of a sweep at temperature 1 beside a flat side P, whose logits are all 0 but for 2^-60 times a
 * score: its acc is minus the sum of Q's logits, which is mean z'.
 * dz' = c_Q q - c_P p - hot is what SKL_DZ_Q computes, with c_Q and c_P put into the references as masses, but for the
 * label's own entry, which is made anew here, in f32: q - 1 of a rounded q would be a large error.
 */
#include "divergence.cuh"
#include "scores.cuh"

namespace
{

/* Of a row: ignored, no column, or a column. */
enum { IGNORED = -1, NO_COLUMN = -2 };

SKL_DEVICE int64_t label_of(const skl_gpu_labels &l, int64_t row)
{
    if (!l.ids.data)
        return IGNORED;
    int64_t at = row_offset(l.ids, row, l.heads, l.n);
    int64_t id = l.ids.dtype == SKL_I64 ? ((const int64_t *)l.ids.data)[at] : ((const int32_t *)l.ids.data)[at];
    return id == l.ignore ? IGNORED : id < 0 || id >= l.columns ? NO_COLUMN : id;
}

SKL_DEVICE bool has_work(const skl_gpu_labels &l, int64_t row)
{
    return l.range[row].lo < l.range[row].hi;
}

SKL_DEVICE bool has_one_column(const skl_gpu_labels &l, int64_t row)
{
    return l.range[row].hi - l.range[row].lo == 1;
}

}  // namespace

/* Labels without weights: a row whose label is ignored takes no part at all. */
extern "C" __global__ void __launch_bounds__(128) skl_label_weights(const __grid_constant__ skl_gpu_labels l)
{
    int64_t row = own_row();
    if (row < l.rows)
        l.row_weight[row] = l.weight.data ? row_value(l.weight, row, l.heads, l.n) : label_of(l, row) != IGNORED;
}

/* ------------------------------------------------------------------------------------------------- scores --- */

/* A label outside the columns that its row sees has no mass. */
extern "C" __global__ void __launch_bounds__(128) skl_label_scores(const __grid_constant__ skl_gpu_labels l)
{
    const int64_t row = (int64_t)blockIdx.x * 4 + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (row >= l.rows)
        return;
    const int64_t label = label_of(l, row);
    const skl_gpu_range r = l.range[row];
    const bool seen = __any_sync(~0u,
                                 label >= r.lo && label < r.hi); /* all lanes have one row, and the compiler sees it */
    for (int side = 0; side < 1 + l.teacher; side++) {
        float x = label == NO_COLUMN ? NAN : -INFINITY;
        if (seen)
            x = score_of(l.side[side], row, l.heads, l.n, label, lane);
        if (lane == 0)
            l.score[2 * row + side] = x;
    }
}

/* ------------------------------------------------------------------------------------------------ results --- */

namespace
{

/* A side's LSE at temperature 1, by the sweep at that temperature, or by what the divergence's left. In a backward the
 * student's is in m and l1, if the temperatures differ. */
SKL_DEVICE double lse_at_1(const skl_gpu_labels &l, int64_t row, int side)
{
    if (l.at_1[side])
        return l.at_1[side][row].l_s == 0 ? -HUGE_VAL : l.at_1[side][row].m_s + log(l.at_1[side][row].l_s);
    const skl_gpu_vector &sum = side == 0 && l.temperature != 1 ? l.l1 : l.l[side];
    if (!l.m[side].data || !sum.data)
        return row_value(l.lse[side], row, l.heads, l.n);
    const float sum_of = row_value(sum, row, l.heads, l.n);
    return sum_of == 0 ? -HUGE_VAL
                       : l.temperature * l.unit[side] * row_value(l.m[side], row, l.heads, l.n) + log((double)sum_of);
}

SKL_DEVICE double cross_entropy(const skl_gpu_labels &l, int64_t row, double lse, double z)
{
    double ce = (1 - l.smoothing) * (lse - z);
    if (l.smoothing > 0) { /* P's acc is that of -(z' - m): minus their sum, of l_P = n columns */
        const skl_state s = l.at_1[0][row];
        ce += l.smoothing * (lse - (s.m_s - s.acc_t / s.l_t));
    }
    return l.z_loss > 0 ? ce + l.z_loss * lse * lse : ce;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(128) skl_finish_labels(const __grid_constant__ skl_gpu_labels l)
{
    int64_t row = own_row();
    if (row >= l.rows)
        return;
    const bool work = has_work(l, row), labelled = work && label_of(l, row) != IGNORED;
    const double divergence = l.diverges && work ? l.loss[row] : 0;
    double lse = -HUGE_VAL, ce = 0, logprob[2] = {0, 0}, l1 = 0;
    if (l.ids.data && work) {
        lse = lse_at_1(l, row, 0);
        l1 = lse == -HUGE_VAL ? 0 : exp(lse - l.temperature * l.unit[0] * row_value(l.m[0], row, l.heads, l.n));
    }
    if (labelled) {
        /* A label that is its row's only column has the LSE for its logit, whatever the order of the sums: ce = 0. */
        const bool only = has_one_column(l, row) && l.score[2 * row] > -INFINITY;
        const double z = only ? lse : l.temperature * l.unit[0] * l.score[2 * row];
        ce = cross_entropy(l, row, lse, z);
        logprob[0] = z - lse;
        if (l.logprob[1].data)
            logprob[1] = only && l.score[2 * row + 1] > -INFINITY
                             ? 0
                             : l.temperature * l.unit[1] * l.score[2 * row + 1] - lse_at_1(l, row, 1);
    }
    double loss = l.kl_weight != 0 ? l.kl_weight * divergence : 0;
    loss += l.label_weight != 0 ? l.label_weight * ce : 0;
    loss += l.lse_weight != 0 && labelled ? l.lse_weight * lse : 0;
    l.loss[row] = loss;
    put_row(l.row_loss, row, l.heads, l.n, loss);
    put_row(l.kl, row, l.heads, l.n, divergence);
    put_row(l.ce, row, l.heads, l.n, ce);
    put_row(l.logprob[0], row, l.heads, l.n, logprob[0]);
    put_row(l.logprob[1], row, l.heads, l.n, logprob[1]);
    put_row(l.l1, row, l.heads, l.n, l1);
}

/* ------------------------------------------------------------------------------------------------- dz --- */

namespace
{

SKL_DEVICE float mass_of(double x)
{
    return x > 0 ? (float)log2(x) : SKL_NO_MASS;
}

/* dz' = r (c_Q q' - c_P / n) of a row whose label counts; a label that is no column makes its row NaN. */
SKL_DEVICE void label_terms(const skl_gpu_label_factors &args, int64_t row, skl_gpu_reference &to, skl_gpu_factors &f)
{
    const skl_gpu_labels &l = args.labels;
    const double lse = lse_at_1(l, row, 0), own = l.label_weight * (1 + 2 * l.z_loss * lse) + l.lse_weight;
    const double n = l.range[row].hi - l.range[row].lo, flat = l.label_weight * l.smoothing / n,
                 sign = own < 0 ? -1 : 1;
    /* The exponent at m is unit' m - LSE'; the kernel adds unit' (x - m). */
    const float m = l.m[0].data ? row_value(l.m[0], row, l.heads, l.n)
                                : (float)(row_value(l.lse[0], row, l.heads, l.n) / l.unit[0]);
    to = {{0, m}, {SKL_NO_MASS, SKL_NO_MASS}};
    if (own != 0)
        to.minus_log_l[1] = (float)(SKL_LOG2E_DOUBLE * (l.temperature * l.unit[0] * m - lse) + log2(fabs(own)));
    if (flat != 0)
        to.minus_log_l[0] = mass_of(sign * flat);
    f.c = (float)(sign * l.label_weight * (1 - l.smoothing));
    f.r = (float)(sign * l.temperature / args.norm) * (l.row_weight[row] / args.scalars->largest);
    if (lse == -HUGE_VAL)
        f.r = 0;
    else if (flat * sign < 0) /* own and flat of different signs are no difference of masses */
        f.r = NAN;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(128) skl_label_factors(const __grid_constant__ skl_gpu_label_factors args)
{
    const skl_gpu_labels &l = args.labels;
    int64_t row = own_row();
    if (row >= l.rows)
        return;
    const int64_t label = label_of(l, row);
    const bool counts = has_work(l, row) && label != IGNORED;
    skl_gpu_reference to = args.how == SKL_LABELS_ALONE ? skl_gpu_reference{{0, 0}, {SKL_NO_MASS, SKL_NO_MASS}}
                                                        : args.references[row];
    skl_gpu_factors f = args.how == SKL_LABELS_ALONE ? skl_gpu_factors{0, 0} : args.factors[row];
    if (args.how == SKL_LABELS_APART)
        f.r *= (float)(l.kl_weight / args.norm);
    if (args.how == SKL_LABELS_IN_KL && to.minus_log_l[1] != SKL_NO_MASS) {
        const double own = counts ? l.label_weight + l.lse_weight : 0;
        to.minus_log_l[0] += mass_of(l.kl_weight / args.norm);
        to.minus_log_l[1] += mass_of((l.kl_weight + own) / args.norm);
        f.c = (float)(l.label_weight / args.norm);
    }
    if (args.how == SKL_LABELS_ALONE && counts)
        label_terms(args, row, to, f);
    if (counts && label == NO_COLUMN && args.how != SKL_LABELS_APART)
        f.r = NAN, to.minus_log_l[1] = 0;
    args.references[row] = to;
    args.factors[row] = f;
}

namespace
{

/* dz of a row's only column: q is exactly 1, and neither KL nor cross-entropy has a gradient there. */
SKL_DEVICE float only_dz(const skl_gpu_label_entries &args, int64_t row)
{
    const skl_gpu_labels &l = args.labels;
    const double lse = l.z_loss > 0 ? lse_at_1(l, row, 0) : 0, excess = 2 * l.label_weight * l.z_loss * lse;
    if (args.how == SKL_LABELS_IN_KL)
        return (float)(l.lse_weight / args.norm);
    return (float)((l.label_weight + excess + l.lse_weight < 0 ? -1 : 1) * (excess + l.lse_weight));
}

}  // namespace

/* One thread a row of the slab. */
extern "C" __global__ void __launch_bounds__(128) skl_label_entries(const __grid_constant__ skl_gpu_label_entries args)
{
    const skl_gpu_labels &l = args.labels;
    const skl_gpu_grad &g = args.slab.grad;
    const int64_t i = own_row(), row = (int64_t)args.slab.head * l.n + args.slab.first_row + i;
    if (i >= args.slab.rows)
        return;
    const int64_t label = label_of(l, row), j = label - args.slab.first_column;
    if (label < l.range[row].lo || label >= l.range[row].hi || j < 0 || j >= args.slab.columns)
        return;
    const skl_gpu_factors f = g.factors[row];
    const float x = l.score[2 * row], other = args.how == SKL_LABELS_IN_KL ? l.score[2 * row + 1] : 0;
    float dz = dz_of<SKL_DZ_Q>(terms_of(g.problem, g.references[row]), g.problem.side, 1, 0, other, x) - f.c;
    if (has_one_column(l, row) && x > -INFINITY && f.r == f.r)
        dz = only_dz(args, row);
    put_element(args.slab.slab, i * args.slab.ld + j, args.slab.dtype, dx_from(g, f, dz, other, x));
}
