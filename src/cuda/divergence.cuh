/* SPDX-License-Identifier: Apache-2.0
 *
 * From logits to a divergence's terms and to dz: the formulas of docs/math.md sections 4 and 5, for one column.
 */
#ifndef SKL_DIVERGENCE_CUH
#define SKL_DIVERGENCE_CUH

#include "words.cuh"

/* What is the same for every column of a row. */
struct row_terms {
    float factor[2], ratio; /* y = factor x;  ratio = factor_Q / factor_P */
    float minus_lse[2];     /* base 2 */
};

/* p or q; 0 for x = -inf. */
SKL_DEVICE float probability(const row_terms &t, int side, float x)
{
    return power_of_two(fmaf(x, side ? t.factor[1] : t.factor[0], side ? t.minus_lse[1] : t.minus_lse[0]));
}

/* z_P - z_Q, natural logarithms; exactly 0 for equal sides. */
SKL_DEVICE float logit_gap(const row_terms &t, float x_p, float x_q)
{
    return SKL_LN2 * (t.factor[0] * fmaf(-t.ratio, x_q, x_p));
}

/* log(p/m) and log(q/m) of the mixture m = beta_P p + beta_Q q, from d = log q - log p. Of two equal forms the one whose
 * exponential is below 1. */
SKL_DEVICE void log_over_mixture(float d, float beta_p, float beta_q, float (&over_m)[2])
{
    float l = -log1pf((d > 0 ? beta_p : beta_q) * expm1f(-fabsf(d)));
    over_m[0] = d > 0 ? l - d : l;
    over_m[1] = d > 0 ? l : l + d;
}

SKL_DEVICE void log_over_mixture(const row_terms &t, const skl_gpu_side (&side)[2], float x_p, float x_q,
                                 float (&over_m)[2])
{
    float d = SKL_LN2 * (t.minus_lse[1] - t.minus_lse[0]) - logit_gap(t, x_p, x_q);
    log_over_mixture(d, side[0].beta, side[1].beta, over_m);
}

/* dz of side 'of'. Where it has no mass it has no gradient, whatever the logarithms are. */
template <int DZ>
SKL_DEVICE float dz_of(const row_terms &t, const skl_gpu_side (&side)[2], int of, float c, float x_p, float x_q)
{
    if (DZ == SKL_DZ_Q)
        return probability(t, 1, x_q) - probability(t, 0, x_p);
    if (DZ == SKL_DZ_P) {
        float p = probability(t, 0, x_p);
        return p != 0 ? p * (logit_gap(t, x_p, x_q) - c) : 0;
    }
    float over_m[2], p = probability(t, of, of ? x_q : x_p);
    log_over_mixture(t, side, x_p, x_q, over_m);
    return p != 0 ? (of ? side[1].beta : side[0].beta) * p * ((of ? over_m[1] : over_m[0]) - c) : 0;
}

/* r dz dz/dx spread: what the gradient products are made of. x' = x after bias and softcap. */
SKL_DEVICE float dx_of(const skl_gpu_grad &g, const skl_gpu_factors &f, const row_terms &t, float x_p, float x_q)
{
    const skl_gpu_side(&side)[2] = g.problem.side;
    float dz = g.dz == SKL_DZ_Q   ? dz_of<SKL_DZ_Q>(t, side, g.x, f.c, x_p, x_q)
               : g.dz == SKL_DZ_P ? dz_of<SKL_DZ_P>(t, side, g.x, f.c, x_p, x_q)
                                  : dz_of<SKL_DZ_JSD>(t, side, g.x, f.c, x_p, x_q);
    float cap = g.x ? side[1].cap : side[0].cap, tanh = cap != 0 ? (g.x ? x_q : x_p) / cap : 0;
    return dz != 0 ? f.r * g.spread * dz * (1 - tanh * tanh) : 0; /* outside a row's range tanh is not a number */
}

#endif
