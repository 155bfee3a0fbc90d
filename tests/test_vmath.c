/* SPDX-License-Identifier: Apache-2.0
 * The elementary functions inside the kernels, through the kernels that are nothing else: 2^x over its range, tanh, and
 * the logarithm of an even mixture. */
#include "../src/cpu/kernels.h"
#include "../src/float_mode.h"
#include "test.h"

/* Largest error of y against the doubles f(x), in units of the last place of f(x). */
static double worst_ulp(const float *x, const float *y, int n, double (*f)(double))
{
    double worst = 0;
    for (int i = 0; i < n; i++) {
        double want = f((double)x[i]), ulp = ldexp(1, ilogb(want == 0 ? 1e-30 : want) - 23);
        double err = fabs((double)y[i] - want) / ulp;
        if (!(err <= worst))
            worst = err;
    }
    return worst;
}

/* Every step-th float between two of the same sign, a panel at a time. */
static double sweep_exp2(const struct skl_kernels *k, float from, float to, uint32_t step)
{
    uint32_t at, end;
    double worst = 0;
    memcpy(&at, &from, 4), memcpy(&end, &to, 4);
    while (at <= end) {
        float x[SKL_NR_MAX], y[SKL_NR_MAX];
        for (int i = 0; i < k->nr; i++, at += at <= end ? step : 0) memcpy(&x[i], at <= end ? &at : &end, 4);
        k->exp2(x, y);
        double err = worst_ulp(x, y, k->nr, exp2);
        if (!(err <= worst))
            worst = err;
    }
    return worst;
}

static double sweep_tanh(const struct skl_kernels *k)
{
    double worst = 0;
    for (int i = -4000; i < 4000; i++) {
        float x[SKL_NR_MAX], y[SKL_NR_MAX];
        for (int j = 0; j < k->nr; j++) x[j] = y[j] = (float)((i + j / 64.0) * (i % 2 ? 1e-2 : 1e-4));
        k->softcap(1, y, 1, 1);
        double err = worst_ulp(x, y, k->nr, tanh);
        if (!(err <= worst))
            worst = err;
    }
    return worst;
}

/* What a column with p = 1 and q = 2^x adds to the sums of a JSD: -log(1/2 + 2^x / 2) = p log(p/m) to that of P ... */
static double even_log(double x)
{
    return -log1p(expm1(x * log(2)) / 2);
}

/* ... or q log(q/m) more, if the sums are one. Near 0 that is a difference, a series there: with d = (p - q) / (p + q) it is
 * (p + q) / 2 ((1 + d) log(1 + d) + (1 - d) log(1 - d)), and the bracket is the sum of d^2k / (k (2k - 1)). */
static double even_sum(double x)
{
    double d = tanh(-x * log(2) / 2), power = 1, sum = 0;
    if (x < -0.5)
        return even_log(x) * (1 + exp2(x)) + exp2(x) * x * log(2);
    for (int k = 1; k < 20; k++) power *= d * d, sum += power / (k * (2 * k - 1));
    return (1 + exp2(x)) / 2 * sum;
}

static double sweep_even(const struct skl_kernels *k, int apart, double (*f_of)(double), float from, float to,
                         uint32_t step)
{
    uint32_t at, end;
    double worst = 0;
    struct skl_panel_factors f = {.unit = {1, 1}, .param = {0.5f, 0.5f}};
    for (int i = 0; i < k->nr; i++) f.prob[0][i] = f.prob[1][i] = 1;
    memcpy(&at, &from, 4), memcpy(&end, &to, 4);
    while (at <= end) {
        struct skl_panel_state s = {0};
        float p[SKL_NR_MAX] = {0}, x[SKL_NR_MAX], y[SKL_NR_MAX];
        for (int i = 0; i < k->nr; i++, at += at <= end ? step : 0) memcpy(&x[i], at <= end ? &at : &end, 4);
        k->form[SKL_FORM_JSD].sum(1, p, x, apart, &f, &s);
        for (int i = 0; i < k->nr; i++) y[i] = (float)(s.acc[0][i] + (apart ? 0 : s.acc[1][i]));
        double err = worst_ulp(x, y, k->nr, f_of);
        if (!(err <= worst))
            worst = err;
    }
    return worst;
}

static void check_edges(const struct skl_kernels *k)
{
    float x[SKL_NR_MAX] = {0, -INFINITY, NAN, -200, -126.5f, -1e30f}, y[SKL_NR_MAX];
    k->exp2(x, y);
    CHECK(y[0] == 1, "2^0 = %g", (double)y[0]);
    CHECK(isnan(y[2]), "2^NaN = %g", (double)y[2]);
    CHECK(y[1] == 0 && y[3] == 0 && y[4] == 0 && y[5] == 0, "2^x is not 0 far below");
    float t[SKL_NR_MAX] = {0, 100, -100, NAN, 1e-30f};
    k->softcap(1, t, 1, 1);
    CHECK(t[0] == 0 && t[1] == 1 && t[2] == -1 && isnan(t[3]) && t[4] == 1e-30f, "tanh at its edges");
}

int main(void)
{
    test_begin("test_vmath");
    struct skl_float_mode before = skl_enter_float_mode(); /* as every call does */
    for (int isa = SKL_ISA_BASELINE; isa <= SKL_ISA_NEONBF16; isa++) {
        const struct skl_kernels *k = skl_kernels_for((enum skl_isa)isa);
        if (!k)
            continue;
        test_context("%s", skl_isa_name((enum skl_isa)isa));
        double e = sweep_exp2(k, -0x1p-30f, -126, test_quick() ? 9973 : 101), t = sweep_tanh(k);
        uint32_t step = test_quick() ? 9973 : 101;
        double l = sweep_even(k, 1, even_log, -0x1p-30f, -126, step),
               s = sweep_even(k, 0, even_sum, -0x1p-30f, -126, step);
        CHECK(e <= 1.5, "2^x is off by %.2f ulp", e);
        CHECK(t <= 4, "tanh x is off by %.2f ulp", t);
        CHECK(l <= 2.5, "log(1/2 + 2^x / 2) is off by %.2f ulp", l);
        CHECK(s <= 3, "a column of a JSD is off by %.2f ulp", s);
        printf("%s: within ulp: 2^x %.2f, tanh x %.2f, log(1/2 + 2^x / 2) %.2f, a JSD's column %.2f\n",
               skl_isa_name((enum skl_isa)isa), e, t, l, s);
        check_edges(k);
    }
    skl_leave_float_mode(before);
    return test_end();
}
