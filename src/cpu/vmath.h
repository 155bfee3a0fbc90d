/* SPDX-License-Identifier: Apache-2.0
 * Elementary functions on the vector words. Errors measured over all f32 arguments of the range: 2^x 1.1 ulp,
 * log1p and tanh 3 ulp (tests/test_vmath.c). Coefficients are minimax fits of the relative error. */

/* 2^r = 1 + r P(r) for |r| <= 1/2, relative error 2e-9. */
static inline vf vexp2_poly(vf r)
{
    vf p = vset(1.53533610e-4f);
    p = vfma(p, r, vset(1.33988752e-3f));
    p = vfma(p, r, vset(9.61843737e-3f));
    p = vfma(p, r, vset(5.55033247e-2f));
    p = vfma(p, r, vset(2.40226479e-1f));
    return vfma(p, r, vset(6.93147203e-1f));
}

#define ROUND_MAGIC 12582912.0f  /* 1.5 2^23: adding it leaves the nearest integer in the low mantissa bits */
#define EXP2_MIN (-126.0f)       /* below it 2^x counts as 0: no subnormals */

/* 2^x for x <= 0 (and up to 127); 0 below EXP2_MIN, NaN for NaN. */
static inline vf vexp2(vf x)
{
    vf n = x + vset(ROUND_MAGIC), r = x - (n - vset(ROUND_MAGIC));
    vf e = vexponent_add(vfma(vexp2_poly(r), r, vset(1.0f)), n);
    return vkeep_nlt(x, vset(EXP2_MIN), e);
}

/* 2^x - 1 for EXP2_MIN <= x <= 0, exact at 0. */
static inline vf vexp2m1(vf x)
{
    vf n = x + vset(ROUND_MAGIC), r = x - (n - vset(ROUND_MAGIC));
    vf scale = vexponent_add(vset(1.0f), n);
    return vfma(vexp2_poly(r) * r, scale, scale - vset(1.0f));
}

/* log(1 + w u) for -1 < w u <= 0, exact at 0: log m + e log 2 with 1 + w u = m 2^e, and the rounding of 1 + w u put back. */
static inline vf vlog1p_product(vf w, vf u)
{
    vf e, scale, y = vfma(w, u, vset(1.0f)), lost = vfma(w, u, vset(1.0f) - y);
    vf m = vsplit_exponent(y, &e, &scale), f = vfma(lost, scale, m - vset(1.0f));
    vf p = vset(-0.07634438f); /* log(1 + f) = f - f^2/2 + f^3 P(f), relative error 6e-9 */
    p = vfma(p, f, vset(0.12761563f));
    p = vfma(p, f, vset(-0.13160198f));
    p = vfma(p, f, vset(0.14201761f));
    p = vfma(p, f, vset(-0.16623356f));
    p = vfma(p, f, vset(0.20001227f));
    p = vfma(p, f, vset(-0.25000821f));
    p = vfma(p, f, vset(0.33333332f));
    p = vfma(p, f, vset(-0.5f));
    p = p * (f * f);
    p = vfma(e, vset(-2.12194440e-4f), p); /* log 2 in two parts, the first with few enough bits to be exact times e */
    return vfma(e, vset(0.693359375f), f + p);
}

/* tanh x = -u / (2 + u) with u = e^{-2|x|} - 1, and the sign of x. */
static inline vf vtanh(vf x)
{
    vf a = vabs(x) * vset(-2.88539008f); /* -2 log2 e */
    vf u = vexp2m1(vmax(a, vset(EXP2_MIN)));
    vf h = (vset(0.0f) - u) / (vset(2.0f) + u);
    h = vselect_lt(x, vset(0.0f), vset(0.0f) - h, h);
    return h + x * vset(0.0f); /* NaN stays NaN; vmax above would have swallowed it */
}
