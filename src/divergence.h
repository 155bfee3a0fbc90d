/* SPDX-License-Identifier: Apache-2.0
 *
 * What every back end knows of a divergence: its form, and how a row's sums close into a loss and into what the
 * gradients subtract. Read by C and by CUDA C. The terms of the sums themselves are in cpu/kernels/ and in
 * cuda/kernels/; their derivation is in docs/math.md.
 *
 * Sides are P = 0 and Q = 1. KL(P || Q), skewed KL and alpha-beta are not symmetric: which of P and Q is the student is
 * in divergences.def.
 */
#ifndef SKL_DIVERGENCE_H
#define SKL_DIVERGENCE_H

#include <math.h>

#ifdef __CUDACC__
#define SKL_INLINE static __host__ __device__ __forceinline__
#else
#define SKL_INLINE static inline
#endif

enum skl_form {
    SKL_FORM_KL,              /* closes in the sweep that sums the LSEs; the others take a second sweep */
    SKL_FORM_JSD,             /* param: weights of P and Q in the mixture, beta and 1 - beta */
    SKL_FORM_SKEW,            /* param: weights of P and Q in the mixture, skew and 1 - skew */
    SKL_FORM_TOTAL_VARIATION, /* no param */
    SKL_FORM_ALPHA_BETA,      /* param: exponents of P and Q */
    SKL_FORM_NONE,            /* there is no teacher: P is absent, Q is the student, only labels make a loss */
    SKL_FORMS
};

/* Sweeps over the columns that a value takes. */
SKL_INLINE int skl_sweeps(int form)
{
    return form == SKL_FORM_KL || form == SKL_FORM_NONE ? 1 : 2;
}

/* What a row's two sums of the second sweep say. */
struct skl_closed {
    double loss;
    double c[2]; /* of each side: what its gradient subtracts */
};

SKL_INLINE struct skl_closed skl_close(int form, const double param[2], double acc_p, double acc_q)
{
    struct skl_closed r = {acc_p, {acc_p, acc_q}};
    switch (form) {
    case SKL_FORM_JSD: /* acc = KL(p || m), KL(q || m) */ r.loss = param[0] * acc_p + param[1] * acc_q; break;
    case SKL_FORM_SKEW: /* acc = KL(p || m), sum q (p/m - 1) */ r.c[0] = acc_p + param[1] * acc_q; break;
    case SKL_FORM_TOTAL_VARIATION: /* acc = TV, sum p sign(p - q) */ r.c[0] = acc_q, r.c[1] = 2 * acc_p - acc_q; break;
    case SKL_FORM_ALPHA_BETA: /* acc = D, sum g_Q */ r.c[0] = (param[0] + param[1]) * acc_p - acc_q; break;
    default: break;
    }
    return r;
}

/* The constant factor of a side's dz. */
SKL_INLINE double skl_slope(int form, const double param[2], int side)
{
    switch (form) {
    case SKL_FORM_JSD: return param[side];
    case SKL_FORM_SKEW: return side == 0 ? 1 : param[1];
    case SKL_FORM_TOTAL_VARIATION: return 0.5;
    default: return 1;
    }
}

/* What a row's powers (of alpha-beta) are multiplied by, from l to probabilities. */
SKL_INLINE double skl_power(int form, const double param[2], double l)
{
    return form == SKL_FORM_ALPHA_BETA ? pow(l, -(param[0] + param[1])) : 1;
}

#endif
