/* SPDX-License-Identifier: Apache-2.0
 *
 * Sinks: one more column of every row of attention, whose logit z = sink / temperature is given for each head of both
 * sides. It is in no tile and in no range: kernels over rows add it to what the sweeps left, and take its dz.
 */
#ifndef SKL_SINK_CUH
#define SKL_SINK_CUH

#include "column.cuh"
#include "rows.cuh"

/* The row's score of the sink, z / unit, rounded to f32 as products are; 0 of a flat side, which has none. */
SKL_DEVICE float sink_score(const skl_gpu_sinks &s, int64_t row, int heads, int n, int side)
{
    const skl_gpu_vector &v = s.sink[side];
    return v.data ? (float)(element(v.data, row_offset(v, row, heads, n), v.dtype) / s.divisor[side]) : 0;
}

/* What a first sweep over this one column leaves. A sink of -inf has no mass; where P has mass and Q none, acc is
 * infinite. */
SKL_DEVICE skl_row_state sink_state(const skl_gpu_sinks &s, int64_t row, int heads, int n)
{
    const float x_p = sink_score(s, row, heads, n, 0), x_q = sink_score(s, row, heads, n, 1);
    skl_row_state state = skl_empty_row();
    if (x_p != -INFINITY)
        state.side[0] = {s.unit[0] * x_p, 1, x_q == -INFINITY ? INFINITY : 0};
    if (x_q != -INFINITY)
        state.side[1] = {s.unit[1] * x_q, 1, 0};
    return state;
}

/* What it adds to a second sweep's two sums. */
SKL_DEVICE void add_sink(const skl_gpu_problem &p, const skl_gpu_sinks &s, const skl_gpu_reference &reference, int form,
                         int64_t row, float (&sum)[2])
{
    const float x_p = sink_score(s, row, p.heads, p.n, 0), x_q = sink_score(s, row, p.heads, p.n, 1);
    const row_terms t = terms_of(p, reference);
    const parameters a = parameters_of(p);
    switch (form) {
    case SKL_FORM_JSD: add_mixture_terms(t, p.side, x_p, x_q, sum); break;
    case SKL_FORM_SKEW: add_column<SKL_FORM_SKEW>(t, a, x_p, x_q, sum); break;
    case SKL_FORM_TOTAL_VARIATION: add_column<SKL_FORM_TOTAL_VARIATION>(t, a, x_p, x_q, sum); break;
    case SKL_FORM_ALPHA_BETA: add_column<SKL_FORM_ALPHA_BETA>(t, a, x_p, x_q, sum); break;
    }
}

/* Its dx, before any softcap: see skl_gpu_sum_sinks. */
SKL_DEVICE float dx_of_sink(const skl_gpu_grad &g, const skl_gpu_sinks &s, int64_t row)
{
    const int heads = g.problem.heads, n = g.problem.n;
    const float x_p = sink_score(s, row, heads, n, 0), x_q = sink_score(s, row, heads, n, 1);
    const row_terms t = terms_of(g.problem, g.references[row]);
    return g.dz == SKL_DZ_COLUMN ? dx_of_column(g, g.factors[row], t, x_p, x_q) : dx_of(g, g.factors[row], t, x_p, x_q);
}

#endif
