/* SPDX-License-Identifier: Apache-2.0
 * Elementary functions on the vector words. Errors measured over all f32 arguments of the range: 2^x 1.1 ulp,
 * log1p and tanh 3 ulp (tests/test_vmath.c). Coefficients are minimax fits of the relative error. */

/* Polynomials are summed in pairs, then pairs of pairs: where several functions follow one another (JSD) it is the length of
 * the chain of dependent operations that costs, not their number. */

/* 2^r = 1 + r P(r) for |r| <= 1/2, relative error 2e-9. */
static inline vf vexp2_poly(vf r)
{
    vf r2 = r * r;
    vf p01 = vfma(vset(2.40226479e-1f), r, vset(6.93147203e-1f));
    vf p23 = vfma(vset(9.61843737e-3f), r, vset(5.55033247e-2f));
    vf p45 = vfma(vset(1.53533610e-4f), r, vset(1.33988752e-3f));
    return vfma(vfma(p45, r2, p23), r2, p01);
}

#define EXP2_MIN (-126.0f)  /* below it 2^x counts as 0: no subnormals */

/* 2^x for x <= 0 (and up to 127); 0 below EXP2_MIN, NaN for NaN. */
static inline vf vexp2(vf x)
{
    vf n, r = vsplit_integer(x, &n);
    return vscale_nlt(x, vset(EXP2_MIN), vfma(vexp2_poly(r), r, vset(1.0f)), n);
}

/* 2^x - 1 for EXP2_MIN <= x <= 0, exact at 0. */
static inline vf vexp2m1(vf x)
{
    vf n, r = vsplit_integer(x, &n), scale = vscale(vset(1.0f), n);
    return vfma(vexp2_poly(r) * r, scale, scale - vset(1.0f));
}

/* log(1 + w u) for -1 < w u <= 0, exact at 0: log m + e log 2 with 1 + w u = m 2^e. The rounding of 1 + w u, 2^-25 at most,
 * stays in: it is less than that of the logits that u comes from. */
static inline vf vlog1p_product(vf w, vf u)
{
    vf e, f = vsplit_exponent(vfma(w, u, vset(1.0f)), &e) - vset(1.0f);
    /* log(1 + f) = f + f^2 P(f), relative error 6e-9 */
    vf f2 = f * f, f4 = f2 * f2;
    vf p01 = vfma(vset(0.33333332f), f, vset(-0.5f)), p23 = vfma(vset(0.20001227f), f, vset(-0.25000821f));
    vf p45 = vfma(vset(0.14201761f), f, vset(-0.16623356f)), p67 = vfma(vset(0.12761563f), f, vset(-0.13160198f));
    vf low = vfma(p23, f2, p01), high = vfma(vfma(vset(-0.07634438f), f2, p67), f2, p45);
    return vfma(vfma(high, f4, low), f2, vfma(e, vset(0.693147181f), f));
}

/* tanh x = -u / (2 + u) with u = e^{-2|x|} - 1, and the sign of x. */
static inline vf vtanh(vf x)
{
    vf a = vneg_abs(x) * vset(2.88539008f); /* 2 log2 e */
    vf u = vexp2m1(vmax(a, vset(EXP2_MIN)));
    vf h = (vset(0.0f) - u) / (vset(2.0f) + u);
    h = vselect_lt(x, vset(0.0f), vset(0.0f) - h, h);
    return h + x * vset(0.0f); /* NaN stays NaN; vmax above would have swallowed it */
}
