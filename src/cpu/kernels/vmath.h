/* SPDX-License-Identifier: Apache-2.0
 * Elementary functions on the vector words. Errors: 2^x below 1.5 ulp, tanh below 4 (tests/test_vmath.c measures them).
 * Coefficients are minimax fits of the relative error. */

/* Polynomials are summed in pairs, then pairs of pairs: where several functions follow one another (JSD) it is the
 * length of the chain of dependent operations that costs, not their number. */

/* 2^r = 1 + r P(r) for |r| <= 1/2, relative error 2e-9. */
static inline __attribute__((always_inline)) vf vexp2_poly(vf r)
{
    vf r2 = r * r;
    vf p01 = vfma(vset(2.40226479e-1f), r, vset(6.93147203e-1f));
    vf p23 = vfma(vset(9.61843737e-3f), r, vset(5.55033247e-2f));
    vf p45 = vfma(vset(1.53533610e-4f), r, vset(1.33988752e-3f));
    return vfma(vfma(p45, r2, p23), r2, p01);
}

#define EXP2_MIN (-126.0f) /* below it 2^x counts as 0: no subnormals */

/* 2^x for x <= 0 (and up to 127); 0 below EXP2_MIN, NaN for NaN. */
#ifdef HAS_SIXTEENTHS
/* s 2^r with 2^r = 1 + r P(r) for 0 <= r < 1/16, relative error 1.4e-9: eight operations. Below EXP2_MIN it is the mode
 * of the kernels that makes it 0: subnormals are flushed. */
static inline vf vexp2(vf x)
{
    vf s, r = vsplit_sixteenth(x, &s);
    vf p = vfma(vfma(vset(0.0566699021f), r, vset(0.240184247f)), r, vset(0.6931476f));
    return vscale(vfma(s * r, p, s), x);
}
#elif defined(HAS_EIGHTHS)
/* s 2^r with 2^r = 1 + r P(r) for |r| <= 1/16, relative error 2.7e-8: eleven operations. At -127 s is 0, and between
 * that and EXP2_MIN it is subnormal: flushed. */
static inline vf vexp2(vf x)
{
    vf s, r = vsplit_eighth(vmax(vset(-127.0f), x), &s);
    vf p = vfma(vfma(vset(0.0554962233f), r, vset(0.24025768f)), r, vset(0.693147242f));
    return vfma(s, p * r, s); /* s r would be flushed before s is */
}
#else
static inline vf vexp2(vf x)
{
    vf n, r = vsplit_integer(x, &n);
    return vscale_nlt(x, vset(EXP2_MIN), vfma(vexp2_poly(r), r, vset(1.0f)), n);
}
#endif

/* 2^x and 2^x - 1 for EXP2_MIN <= x <= 0, each as good as if alone: the one is exact at 0, the other small far from it.
 */
static inline vf vexp2_and_m1(vf x, vf *m1)
{
    vf n, r = vsplit_integer(x, &n), scale = vscale(vset(1.0f), n), t = vexp2_poly(r) * r;
    *m1 = vfma(t, scale, scale - vset(1.0f));
    return vfma(t, scale, scale);
}

/* P of log(1 + f) = f + f^2 P(f) for sqrt 1/2 <= 1 + f < sqrt 2, relative error of the logarithm 6e-9. */
static inline vf vlog_poly(vf f)
{
    vf f2 = f * f, f4 = f2 * f2;
    vf p01 = vfma(vset(0.33333332f), f, vset(-0.5f)), p23 = vfma(vset(0.20001227f), f, vset(-0.25000821f));
    vf p45 = vfma(vset(0.14201761f), f, vset(-0.16623356f)), p67 = vfma(vset(0.12761563f), f, vset(-0.13160198f));
    return vfma(vfma(vfma(vset(-0.07634438f), f2, p67), f2, p45), f4, vfma(p23, f2, p01));
}

/* log(1 + x) for -1 < x <= 0, exact at 0; w is 1 + x by itself, since near x = -1 it cannot be had from x. With
 * w = (1 + f) 2^e it is log(1 + f) + e log 2. Where e = 0, f is x itself, so that small x lose nothing to the 1. */
static inline vf vlog1p(vf x, vf w)
{
    vf scale, e = vexponent(w, &scale), f = vselect_lt(vset(1.0f), scale, vfma(w, scale, vset(-1.0f)), x);
    return vfma(vlog_poly(f), f * f, vfma(e, vset(0.693147181f), f));
}

/* log2 x for x > 0; -inf where x is less than any normal number, NaN for NaN. With x = (1 + f) 2^e it is
 * e + log2(1 + f), and f is exact. */
static inline vf vlog2(vf x)
{
    vf scale, e = vexponent(x, &scale), f = x * scale - vset(1.0f);
    vf y = vfma(vfma(vlog_poly(f), f * f, f), vset(1.44269504f), e);
    return vselect_lt(x, vset(FLT_MIN), vset(-INFINITY), y);
}

/* tanh x = -u / (2 + u) with u = e^{-2|x|} - 1, and the sign of x. */
static inline vf vtanh(vf x)
{
    vf a = vneg_abs(x) * vset(2.88539008f); /* 2 log2 e */
    vf u;
    vexp2_and_m1(vmax(a, vset(EXP2_MIN)), &u);
    vf h = (vset(0.0f) - u) / (vset(2.0f) + u);
    h = vselect_lt(x, vset(0.0f), vset(0.0f) - h, h);
    return h + x * vset(0.0f); /* NaN stays NaN; vmax above would have swallowed it */
}
