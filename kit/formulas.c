/* SPDX-License-Identifier: Apache-2.0 */
#include "formulas.h"

#include <math.h>

/* sum t (log t - log q) of a target t = e^lse p that does not sum to 1: the student's dz is g (q sum t - t). */
static double raw_kl(int64_t n, double g, struct kit_distribution *P, struct kit_distribution *Q)
{
    double sum = 0, total = exp(P->lse);
    for (int64_t j = 0; j < n; j++) {
        double t = exp(P->logp[j] + P->lse);
        if (t != 0)
            sum += t * (P->logp[j] + P->lse - Q->logp[j]);
        P->dz[j] = 0, Q->dz[j] = g * (exp(Q->logp[j]) * total - t);
    }
    return sum;
}

/* KL(P || Q) and g times its gradients. A column where P has no mass contributes 0, whatever Q is. */
static double kl(int64_t n, double g, struct kit_distribution *P, struct kit_distribution *Q)
{
    double sum = 0;
    for (int64_t j = 0; j < n; j++) {
        double pj = exp(P->logp[j]);
        if (pj != 0)
            sum += pj * (P->logp[j] - Q->logp[j]);
    }
    for (int64_t j = 0; j < n; j++) {
        double pj = exp(P->logp[j]), qj = exp(Q->logp[j]);
        P->dz[j] = pj != 0 ? g * pj * (P->logp[j] - Q->logp[j] - sum) : 0;
        Q->dz[j] = g * (qj - pj);
    }
    return sum;
}

/* log(p/m) and log(q/m) for m = beta p + (1 - beta) q, out of d = log q - log p alone. Of the two equal forms the one
 * whose exponential is below 1 is taken. */
static void log_over_mixture(double beta, double logp, double logq, double *p_over_m, double *q_over_m)
{
    double d = logq - logp;
    if (d <= 0) {
        *p_over_m = -log1p((1 - beta) * expm1(d));
        *q_over_m = *p_over_m + d;
    } else {
        *q_over_m = -log1p(beta * expm1(-d));
        *p_over_m = *q_over_m - d;
    }
}

static double jsd(int64_t n, double g, double beta, struct kit_distribution *P, struct kit_distribution *Q,
                  double *kl_p, double *kl_q)
{
    *kl_p = *kl_q = 0;
    for (int64_t j = 0; j < n; j++) {
        double pj = exp(P->logp[j]), qj = exp(Q->logp[j]), lp, lq;
        log_over_mixture(beta, P->logp[j], Q->logp[j], &lp, &lq);
        *kl_p += pj != 0 ? pj * lp : 0;
        *kl_q += qj != 0 ? qj * lq : 0;
    }
    for (int64_t j = 0; j < n; j++) {
        double pj = exp(P->logp[j]), qj = exp(Q->logp[j]), lp, lq;
        log_over_mixture(beta, P->logp[j], Q->logp[j], &lp, &lq);
        P->dz[j] = pj != 0 ? g * beta * pj * (lp - *kl_p) : 0;
        Q->dz[j] = qj != 0 ? g * (1 - beta) * qj * (lq - *kl_q) : 0;
    }
    return beta * *kl_p + (1 - beta) * *kl_q;
}

/* One column of a divergence sum phi(p, q): phi, g = x dphi/dx of each side x, and what the column adds to the side's
 * row result kl (header: "what the gradient of that side subtracts"). p and q are those of KL(P || Q), given by
 * logarithms. */
struct term {
    double phi, g_p, g_q, c_p, c_q;
};

static struct term skew_term(const struct skl_problem *p, double logp, double logq)
{
    double a = p->skew != 0 ? p->skew : 0.1, pj = exp(logp), qj = exp(logq), p_over_m, q_over_m;
    if (pj == 0 && qj == 0)
        return (struct term){0};
    log_over_mixture(a, logp, logq, &p_over_m, &q_over_m);
    double u = expm1(p_over_m), value = pj != 0 ? pj * p_over_m : 0;
    return (struct term){.phi = value,
                         .g_p = value + pj * (1 - a * exp(p_over_m)),
                         .g_q = -(1 - a) * qj * exp(p_over_m),
                         .c_p = value + (1 - a) * qj * u,
                         .c_q = qj * u};
}

static struct term variation_term(const struct skl_problem *p, double logp, double logq)
{
    double pj = exp(logp), qj = exp(logq), sign = (logp > logq) - (logp < logq);
    (void)p;
    return (struct term){fabs(pj - qj) / 2, pj * sign / 2, -qj * sign / 2, pj * sign, -qj * sign};
}

/* (x^e - 1) / e of x = e^log_x, and its limit at e = 0. */
static double divided_power(double log_x, double e)
{
    return e == 0 ? log_x : expm1(e * log_x) / e;
}

/* x^e y, 0 where the power is, whatever y. */
static double damped(double log_x, double e, double y)
{
    double power = e == 0 ? 1 : exp(e * log_x);
    return power == 0 ? 0 : power * y;
}

static struct term alpha_beta_term(const struct skl_problem *p, double logp, double logq)
{
    double alpha = p->alpha, beta = p->beta, s = alpha + beta;
    if (logp == -INFINITY && logq == -INFINITY)
        return (struct term){0};
    double log_large = fmax(logp, logq), d = -fabs(logp - logq); /* log of smaller over larger */
    double a = logp >= logq ? alpha : beta,
           b = logp >= logq ? beta : alpha; /* exponents of the larger and the smaller */
    double larger = exp(s * log_large);
    struct term t = {.phi = larger == 0 ? 0 : larger / s * (damped(d, b, divided_power(d, a)) - divided_power(d, b))};
    double g_larger = larger == 0 ? 0 : -larger * divided_power(d, b);
    double g_smaller = larger == 0 ? 0 : larger * damped(d, b, divided_power(d, a));
    t.g_p = logp >= logq ? g_larger : g_smaller, t.g_q = logp >= logq ? g_smaller : g_larger;
    t.c_p = t.g_p, t.c_q = t.g_q;
    return t;
}

/* The sum of the terms, and g times its gradients: dz = g - x sum g for each side x. */
static double sum_of_terms(int64_t n, double g, const struct skl_problem *p,
                           struct term (*of)(const struct skl_problem *, double, double), struct kit_distribution *P,
                           struct kit_distribution *Q, double *c_p, double *c_q)
{
    double sum = 0, sum_p = 0, sum_q = 0;
    *c_p = *c_q = 0;
    for (int64_t j = 0; j < n; j++) {
        struct term t = of(p, P->logp[j], Q->logp[j]);
        sum += t.phi, sum_p += t.g_p, sum_q += t.g_q;
        *c_p += t.c_p, *c_q += t.c_q;
    }
    for (int64_t j = 0; j < n; j++) {
        struct term t = of(p, P->logp[j], Q->logp[j]);
        P->dz[j] = g * (t.g_p - exp(P->logp[j]) * sum_p);
        Q->dz[j] = g * (t.g_q - exp(Q->logp[j]) * sum_q);
    }
    return sum;
}

double kit_divergence_of(const struct skl_problem *p, int64_t n, double g, struct kit_distribution *P,
                         struct kit_distribution *Q, double *kl_t, double *kl_s)
{
    switch (p->divergence) {
    case SKL_FORWARD_KL: return p->raw_t ? raw_kl(n, g, P, Q) : kl(n, g, P, Q);
    case SKL_REVERSE_KL: return kl(n, g, Q, P);
    case SKL_SKEW_FORWARD_KL: return sum_of_terms(n, g, p, skew_term, P, Q, kl_t, kl_s);
    case SKL_SKEW_REVERSE_KL: return sum_of_terms(n, g, p, skew_term, Q, P, kl_s, kl_t);
    case SKL_TOTAL_VARIATION: return sum_of_terms(n, g, p, variation_term, P, Q, kl_t, kl_s);
    case SKL_ALPHA_BETA: return sum_of_terms(n, g, p, alpha_beta_term, P, Q, kl_t, kl_s);
    default: break;
    }
    if (p->beta == 0 || p->beta == 1) /* JSD's ends, as other libraries have them */
        return p->beta == 0 ? kl(n, g, P, Q) : kl(n, g, Q, P);
    return jsd(n, g, p->beta, P, Q, kl_t, kl_s);
}
