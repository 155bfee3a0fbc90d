/* SPDX-License-Identifier: Apache-2.0
 *
 * From logits to a divergence's terms and to dz: the formulas of docs/math.md sections 4 and 5, for one column.
 */
#ifndef SKL_DIVERGENCE_CUH
#define SKL_DIVERGENCE_CUH

#include "ptx.cuh"

/* What is the same for every column of a row. The LSE is kept in two parts: in one f32 number it would lose digits to
 * the size of the logits. */
struct row_terms {
    float factor[2];
    float m[2], minus_log_l[2]; /* a score; base 2 */
};

SKL_DEVICE row_terms terms_of(const skl_gpu_problem &p, const skl_gpu_reference &r)
{
    return {{p.side[0].factor, p.side[1].factor}, {r.m[0], r.m[1]}, {r.minus_log_l[0], r.minus_log_l[1]}};
}

/* log p or log q in base 2: factor (x - m) - log l. */
SKL_DEVICE float log_probability(const row_terms &t, int side, float x)
{
    return fmaf(x - (side ? t.m[1] : t.m[0]), side ? t.factor[1] : t.factor[0],
                side ? t.minus_log_l[1] : t.minus_log_l[0]);
}

/* p or q; 0 for x = -inf. */
SKL_DEVICE float probability(const row_terms &t, int side, float x)
{
    return power_of_two(log_probability(t, side, x));
}

/* log(p/m) and log(q/m) of the mixture m = beta_P p + beta_Q q, from d = log2 q - log2 p. Of two equal forms the one
 * whose exponential is below 1. m over the larger is 1 + less; where that is below 1/2, as it can be if most of the
 * mixture is the smaller, it is told as f 2^k, 1/2 <= f < 1, of the sum of its two parts: 1 + less would have lost its
 * digits. */
SKL_DEVICE void log_over_mixture(float d, float beta_p, float beta_q, float (&over_m)[2])
{
    const float beta_small = d > 0 ? beta_p : beta_q, beta_large = d > 0 ? beta_q : beta_p, x = -fabsf(d);
    float less = beta_small * expm1f(SKL_LN2 * x), k = 0;
    if (less < -0.5f) {
        const int bits = __float_as_int(fmaf(beta_small, power_of_two(x), beta_large));
        k = SKL_LN2 * (float)((bits >> 23) - 126);
        less = __int_as_float((bits & 0x7FFFFF) | 0x3F000000) - 1;
    }
    const float l = -log1pf(less) - k;
    over_m[0] = d > 0 ? fmaf(-SKL_LN2, d, l) : l;
    over_m[1] = d > 0 ? l : fmaf(SKL_LN2, d, l);
}

/* log p and log q in base 2, and log(p/m) and log(q/m). */
SKL_DEVICE void log_over_mixture(const row_terms &t, const skl_gpu_side (&side)[2], float x_p, float x_q,
                                 float (&log_2)[2], float (&over_m)[2])
{
    log_2[0] = log_probability(t, 0, x_p), log_2[1] = log_probability(t, 1, x_q);
    log_over_mixture(log_2[1] - log_2[0], side[0].param, side[1].param, over_m);
}

/* A column's terms of KL(P || m) and KL(Q || m). */
SKL_DEVICE void add_mixture_terms(const row_terms &t, const skl_gpu_side (&side)[2], float x_p, float x_q,
                                  float (&sum)[2])
{
    float log_2[2], over_m[2];
    log_over_mixture(t, side, x_p, x_q, log_2, over_m);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float mass = power_of_two(log_2[i]);
        sum[i] += mass != 0 ? mass * over_m[i] : 0;
    }
}

/* dz of side 'of'. Where it has no mass it has no gradient, whatever the logarithms are. */
template <int DZ>
SKL_DEVICE float dz_of(const row_terms &t, const skl_gpu_side (&side)[2], int of, float c, float x_p, float x_q)
{
    if (DZ == SKL_DZ_Q)
        return probability(t, 1, x_q) - probability(t, 0, x_p);
    if (DZ == SKL_DZ_P) {
        float y_p = relative(x_p, t.m[0], t.factor[0]), y_q = relative(x_q, t.m[1], t.factor[1]);
        float p = power_of_two(y_p + t.minus_log_l[0]);
        return p != 0 ? p * (SKL_LN2 * ((y_p - y_q) - c)) : 0;
    }
    float log_2[2], over_m[2];
    log_over_mixture(t, side, x_p, x_q, log_2, over_m);
    float p = power_of_two(of ? log_2[1] : log_2[0]);
    return p != 0 ? (of ? side[1].param : side[0].param) * p * ((of ? over_m[1] : over_m[0]) - c) : 0;
}

/* r dz dz/dx spread: what the gradient products are made of. x' = x after bias and softcap. */
SKL_DEVICE float dx_from(const skl_gpu_grad &g, const skl_gpu_factors &f, float dz, float x_p, float x_q)
{
    const skl_gpu_side(&side)[2] = g.problem.side;
    float cap = g.x ? side[1].cap : side[0].cap, tanh = cap != 0 ? (g.x ? x_q : x_p) / cap : 0;
    return dz != 0 ? f.r * g.spread * dz * (1 - tanh * tanh) : 0; /* outside a row's range tanh is not a number */
}

SKL_DEVICE float dx_of(const skl_gpu_grad &g, const skl_gpu_factors &f, const row_terms &t, float x_p, float x_q)
{
    const skl_gpu_side(&side)[2] = g.problem.side;
    float dz = g.dz == SKL_DZ_Q   ? dz_of<SKL_DZ_Q>(t, side, g.x, f.c, x_p, x_q)
               : g.dz == SKL_DZ_P ? dz_of<SKL_DZ_P>(t, side, g.x, f.c, x_p, x_q)
                                  : dz_of<SKL_DZ_JSD>(t, side, g.x, f.c, x_p, x_q);
    return dx_from(g, f, dz, x_p, x_q);
}

#endif
