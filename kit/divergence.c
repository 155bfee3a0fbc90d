/* SPDX-License-Identifier: Apache-2.0 */
#include "divergence.h"

#include <math.h>
#include <stdlib.h>

/* KL(P || Q): dz_P = P (log P - log Q - KL) moves by P (|log P - log Q| + KL + 1) where a logarithm is off by 1, and
 * dz_Q = Q - P by Q + P. */
static void kl(double P, double Q, double ratio, double loss, double *on_P, double *on_Q)
{
    *on_P = P > 0 ? P * (fabs(ratio) + fabs(loss) + 1) : 0;
    *on_Q = P + Q;
}

static void forward_kl(const struct skl_problem *p, const struct skl_reference_row *r, const struct kit_entry *e,
                       double on[2])
{
    (void)p;
    kl(e->p, e->q, e->log_p - e->log_q, r->kl, &on[T], &on[S]);
}

static void reverse_kl(const struct skl_problem *p, const struct skl_reference_row *r, const struct kit_entry *e,
                       double on[2])
{
    (void)p;
    kl(e->q, e->p, e->log_q - e->log_p, r->kl, &on[S], &on[T]);
}

/* dz_P = beta p (log(p/m) - KL(p || m)), and alike with q and 1 - beta. log(p/m) moves by less than 1 where log p moves
 * by 1. */
static void jsd(const struct skl_problem *p, const struct skl_reference_row *r, const struct kit_entry *e, double on[2])
{
    double m = p->beta * e->p + (1 - p->beta) * e->q;
    on[T] = e->p > 0 ? p->beta * e->p * (fabs(log(e->p / m)) + fabs(r->kl_t) + 1) : 0;
    on[S] = e->q > 0 ? (1 - p->beta) * e->q * (fabs(log(e->q / m)) + fabs(r->kl_s) + 1) : 0;
}

/* KL(P || m), m = a P + (1 - a) Q: dz_P = P ((log(P/m) - a u) - c_P) and dz_Q = (1 - a) Q (c_Q - u), u = P/m - 1, which
 * moves by at most 1 / a where a logarithm moves by 1. */
static void skew(double a, double P, double Q, double c_P, double c_Q, double *on_P, double *on_Q)
{
    double m = a * P + (1 - a) * Q, over = m > 0 ? P / m : 0;
    *on_P = P > 0 ? P * (fabs(log(over)) + fabs(c_P) + 2 + over) : 0;
    *on_Q = Q > 0 ? (1 - a) * Q * (fabs(c_Q) + 1 + over) : 0;
}

static void skew_forward(const struct skl_problem *p, const struct skl_reference_row *r, const struct kit_entry *e,
                         double on[2])
{
    skew(p->skew, e->p, e->q, r->kl_t, r->kl_s, &on[T], &on[S]);
}

static void skew_reverse(const struct skl_problem *p, const struct skl_reference_row *r, const struct kit_entry *e,
                         double on[2])
{
    skew(p->skew, e->q, e->p, r->kl_s, r->kl_t, &on[S], &on[T]);
}

/* dz = x (sign - c) / 2. The sign itself is given where |log p - log q| is beyond every rounding: kit_random_case()
 * does not draw this divergence, tests/test_divergences.c makes sure of it. */
static void total_variation(const struct skl_problem *p, const struct skl_reference_row *r, const struct kit_entry *e,
                            double on[2])
{
    (void)p;
    on[T] = e->p * (1 + fabs(r->kl_t)), on[S] = e->q * (1 + fabs(r->kl_s));
}

/* g = x^own (x^other - y^other) / other and x c: both move by s times themselves and by their powers. */
static void alpha_beta(const struct skl_problem *p, const struct skl_reference_row *r, const struct kit_entry *e,
                       double on[2])
{
    double s = p->alpha + p->beta, larger = pow(fmax(e->p, e->q), s), d = fabs(e->log_p - e->log_q);
    on[T] = larger * (1 + s) * (1 + d) + e->p * (1 + fabs(r->kl_t));
    on[S] = larger * (1 + s) * (1 + d) + e->q * (1 + fabs(r->kl_s));
}

const struct kit_divergence kit_divergences[KIT_DIVERGENCE_COUNT] = {
#define DIVERGENCE(number, name, sweeps, rows, sums, sensitivity) [number] = {sweeps, rows, sums, sensitivity},
    KIT_DIVERGENCES(DIVERGENCE)
#undef DIVERGENCE
};

const char *const kit_divergence_names[KIT_DIVERGENCE_COUNT + 1] = {
#define DIVERGENCE(number, name, sweeps, rows, sums, sensitivity) [number] = (name),
    KIT_DIVERGENCES(DIVERGENCE)
#undef DIVERGENCE
};

int kit_has(const struct kit_case *c, int result)
{
    int has = kit_divergences[c->divergence].has;
    has |= (c->alone ? 0 : KIT_NEEDS_TEACHER) | (c->labels ? KIT_NEEDS_LABELS : 0);
    has |= (c->details ? KIT_NEEDS_DETAILS : 0) | (c->mass_ids ? KIT_NEEDS_MASS : 0);
    has |= c->sinks ? KIT_NEEDS_SINKS : 0;
    return (kit_results[result].needs & ~has) == 0;
}

void kit_set_divergence(struct kit_case *c, int divergence)
{
    int skewed = divergence == SKL_SKEW_FORWARD_KL || divergence == SKL_SKEW_REVERSE_KL;
    c->divergence = divergence;
    c->skew = skewed ? 0.1 : 0;
    if (divergence == SKL_ALPHA_BETA)
        c->alpha = 0.2, c->beta = 0.7;
    else
        c->alpha = 0, c->beta = c->beta > 0 && c->beta < 1 ? c->beta : 0.5;
}

void kit_set_smooth(struct kit_case *c, int k)
{
    int divergence = k % KIT_SMOOTH_COUNT;
    kit_set_divergence(c, divergence + (divergence >= SKL_TOTAL_VARIATION));
}

int kit_determined(const struct skl_problem *p)
{
    int64_t columns = skl_reference_columns(p), rows = skl_reference_rows(p);
    double least = INFINITY,
           *logs = p->divergence == SKL_TOTAL_VARIATION ? malloc(2 * (size_t)columns * sizeof *logs) : NULL;
    for (int64_t i = 0; logs && i < rows; i++) {
        struct skl_reference_row r = {.log_q = logs, .log_p = logs + columns};
        skl_reference_row(p, i, 1, &r);
        if (isfinite(r.log_sink_p))
            least = fmin(least, fabs(r.log_sink_p - r.log_sink_q));
        for (int64_t j = 0; j < columns; j++)
            if (isfinite(logs[j]))
                least = fmin(least, fabs(logs[j] - logs[columns + j]));
    }
    free(logs);
    return least > 2e-5;
}
