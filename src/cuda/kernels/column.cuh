/* SPDX-License-Identifier: Apache-2.0
 *
 * Skewed KL, total variation and alpha-beta: what one column adds to a row's two sums in the second sweep, and its dz
 * once they are complete (docs/math.md, section 5b; the CPU's are in cpu/kernels/). What the sums mean, and the slope
 * of a side's dz, is in ../../divergence.h.
 *
 * p and q are told by the larger and the smaller of them, so that nothing overflows and nothing is lost to a difference
 * of nearly equal numbers. Where p = q every term is exactly 0.
 */
#ifndef SKL_COLUMN_CUH
#define SKL_COLUMN_CUH

#include "push.cuh"
#include "../../divergence.h"

/* The divergence's numbers of P and Q. */
struct parameters {
    float of[2];
};

SKL_DEVICE parameters parameters_of(const skl_gpu_problem &p)
{
    return {{p.side[0].param, p.side[1].param}};
}

struct column {
    bool q_larger;
    float sign;            /* of p - q */
    float mass[2];         /* p, q */
    float large;           /* the larger of them */
    float log_large;       /* its logarithm in base 2 */
    float x;               /* -|log2 p - log2 q| */
    float ratio, ratio_m1; /* smaller / larger, and that minus 1 */
};

SKL_DEVICE column column_of(const row_terms &t, float x_p, float x_q)
{
    const float log_p = log_probability(t, 0, x_p), log_q = log_probability(t, 1, x_q), d = log_q - log_p;
    column c;
    c.q_larger = d > 0;
    c.sign = d > 0 ? -1 : d < 0 ? 1 : 0;
    c.mass[0] = power_of_two(log_p), c.mass[1] = power_of_two(log_q);
    c.large = c.q_larger ? c.mass[1] : c.mass[0];
    c.log_large = c.q_larger ? log_q : log_p;
    c.x = -fabsf(d);
    c.ratio = power_of_two(c.x), c.ratio_m1 = expm1f(SKL_LN2 * c.x);
    return c;
}

/* What the column adds to the two sums, and dz of a side over its slope. Where a side has no mass it has no term and no
 * gradient, whatever the logarithms are: there they may be infinite, or not numbers. */
template <int FORM> struct column_form;

/* KL(p || m), m = a p + (1 - a) q:  sums p log(p/m) and q u, u = p/m - 1 = (1 - a) (p - q) / m. */
template <> struct column_form<SKL_FORM_SKEW> {
    float u, log_p; /* log(p/m) */

    __device__ __forceinline__ column_form(const column &c, const parameters &a)
    {
        const float a_small = c.q_larger ? a.of[0] : a.of[1], a_large = c.q_larger ? a.of[1] : a.of[0];
        const float over_large = fmaf(a_small, c.ratio, a_large), less = a_small * c.ratio_m1; /* m/larger, minus 1 */
        const float log_large = less > -0.5f ? log1pf(less) : logf(over_large);
        u = -c.sign * a.of[1] * c.ratio_m1 / over_large;
        log_p = c.q_larger ? fmaf(c.x, SKL_LN2, -log_large) : -log_large;
    }
    __device__ __forceinline__ void add(const column &c, const parameters &, float (&sum)[2]) const
    {
        sum[0] += c.mass[0] != 0 ? c.mass[0] * log_p : 0;
        sum[1] += c.mass[1] != 0 ? c.mass[1] * u : 0;
    }
    __device__ __forceinline__ float dz(const column &c, const parameters &a, int of, float mean) const
    {
        const float x = of ? c.mass[1] : c.mass[0];
        return x != 0 ? x * (of ? mean - u : fmaf(-a.of[0], u, log_p) - mean) : 0;
    }
};

/* 1/2 sum |p - q|:  sums 1/2 |p - q| and p sign(p - q). */
template <> struct column_form<SKL_FORM_TOTAL_VARIATION> {
    __device__ __forceinline__ column_form(const column &, const parameters &)
    {
    }
    __device__ __forceinline__ void add(const column &c, const parameters &, float (&sum)[2]) const
    {
        sum[0] += c.large != 0 ? -0.5f * c.large * c.ratio_m1 : 0;
        sum[1] = fmaf(c.mass[0], c.sign, sum[1]);
    }
    __device__ __forceinline__ float dz(const column &c, const parameters &, int of, float mean) const
    {
        return of ? c.mass[1] * (-c.sign - mean) : c.mass[0] * (c.sign - mean);
    }
};

/* Alpha-beta. r_e = (smaller / larger)^e, v_e = (r_e - 1) / e, in the limit e = 0: log(smaller / larger). */
template <> struct column_form<SKL_FORM_ALPHA_BETA> {
    float r[2], v[2];
    float power; /* larger^(alpha + beta) */

    __device__ __forceinline__ column_form(const column &c, const parameters &a)
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float e = a.of[i], x = c.x * e;
            r[i] = e == 0 ? 1 : power_of_two(x);
            v[i] = e == 0 ? SKL_LN2 * c.x : expm1f(SKL_LN2 * x) / e;
        }
        power = power_of_two(c.log_large * (a.of[0] + a.of[1]));
    }
    /* r of one exponent times v of the other, which may be infinite where r is 0. */
    __device__ __forceinline__ float product(int of_r) const
    {
        const float of = of_r ? r[1] : r[0];
        return of != 0 ? of * (of_r ? v[0] : v[1]) : 0;
    }
    /* q dphi/dq or p dphi/dp. */
    __device__ __forceinline__ float g(const column &c, int side) const
    {
        const bool larger = side ? c.q_larger : !c.q_larger;
        return power != 0 ? power * (larger ? -(side ? v[0] : v[1]) : product(side)) : 0;
    }
    __device__ __forceinline__ void add(const column &c, const parameters &a, float (&sum)[2]) const
    {
        const float phi = c.q_larger ? product(0) - v[0] : product(1) - v[1];
        sum[0] += power != 0 ? power * phi / (a.of[0] + a.of[1]) : 0;
        sum[1] += g(c, 1);
    }
    __device__ __forceinline__ float dz(const column &c, const parameters &, int of, float mean) const
    {
        const float x = of ? c.mass[1] : c.mass[0];
        return x != 0 ? fmaf(-x, mean, g(c, of)) : g(c, of);
    }
};

template <int FORM>
SKL_DEVICE void add_column(const row_terms &t, const parameters &a, float x_p, float x_q, float (&sum)[2])
{
    const column c = column_of(t, x_p, x_q);
    column_form<FORM>(c, a).add(c, a, sum);
}

template <int FORM>
SKL_DEVICE float dz_of_column(const row_terms &t, const parameters &a, int of, float mean, float x_p, float x_q)
{
    const column c = column_of(t, x_p, x_q);
    const double exact[2] = {a.of[0], a.of[1]};
    return (float)skl_slope(FORM, exact, of) * column_form<FORM>(c, a).dz(c, a, of, mean);
}

/* dx of a column, of whichever form g has. */
SKL_DEVICE float dx_of_column(const skl_gpu_grad &g, const skl_gpu_factors &f, const row_terms &t, float x_p, float x_q)
{
    const parameters a = parameters_of(g.problem);
    float dz = 0;
    switch (g.form) {
    case SKL_FORM_SKEW: dz = dz_of_column<SKL_FORM_SKEW>(t, a, g.x, f.c, x_p, x_q); break;
    case SKL_FORM_TOTAL_VARIATION: dz = dz_of_column<SKL_FORM_TOTAL_VARIATION>(t, a, g.x, f.c, x_p, x_q); break;
    case SKL_FORM_ALPHA_BETA: dz = dz_of_column<SKL_FORM_ALPHA_BETA>(t, a, g.x, f.c, x_p, x_q); break;
    }
    return dx_from(g, f, dz, x_p, x_q);
}

/* The columns x of some rows into their sums, by SUMS::push_by(x ..., add). The form is looked at once, not for each
 * column. */
template <class SUMS, class... X>
SKL_DEVICE void push_columns(SUMS &sums, const skl_gpu_problem &p, int form, const X &...x)
{
    const parameters a = parameters_of(p);
    switch (form) {
#define FORM(name)                                                                         \
    case name:                                                                             \
        sums.push_by(x..., [&](const row_terms &t, float x_p, float x_q, float(&sum)[2]) { \
            add_column<name>(t, a, x_p, x_q, sum);                                         \
        });                                                                                \
        break;
        FORM(SKL_FORM_SKEW)
        FORM(SKL_FORM_TOTAL_VARIATION)
        FORM(SKL_FORM_ALPHA_BETA)
#undef FORM
    }
}

/* For the sweeps of 16-bit operands: see push.cuh. */
template <int MT, int NT> struct push_second : push_sums<MT, NT> {
    int form;

    template <class F> __device__ __forceinline__ void start(const F &f, const skl_gpu_forward &args)
    {
        push_sums<MT, NT>::start(f, args);
        form = args.form;
    }
    template <bool EDGE, class F>
    __device__ __forceinline__ void push(const F &f, const float (&x_p)[MT][NT][4], const float (&x_q)[MT][NT][4])
    {
        push_columns(*this, f.p, form, x_p, x_q);
    }
};

#endif
