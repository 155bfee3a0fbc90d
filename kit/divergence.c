/* SPDX-License-Identifier: Apache-2.0 */
#include "divergence.h"

#include <math.h>

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
    kl(e->p, e->q, e->log_p - e->log_q, r->loss, &on[T], &on[S]);
}

static void reverse_kl(const struct skl_problem *p, const struct skl_reference_row *r, const struct kit_entry *e,
                       double on[2])
{
    (void)p;
    kl(e->q, e->p, e->log_q - e->log_p, r->loss, &on[S], &on[T]);
}

/* dz_P = beta p (log(p/m) - KL(p || m)), and alike with q and 1 - beta. log(p/m) moves by less than 1 where log p moves
 * by 1. */
static void jsd(const struct skl_problem *p, const struct skl_reference_row *r, const struct kit_entry *e, double on[2])
{
    double m = p->beta * e->p + (1 - p->beta) * e->q;
    on[T] = e->p > 0 ? p->beta * e->p * (fabs(log(e->p / m)) + fabs(r->kl_t) + 1) : 0;
    on[S] = e->q > 0 ? (1 - p->beta) * e->q * (fabs(log(e->q / m)) + fabs(r->kl_s) + 1) : 0;
}

const struct kit_divergence kit_divergences[KIT_DIVERGENCE_COUNT] = {
#define DIVERGENCE(number, name, sweeps, rows, sensitivity) [number] = {sweeps, rows, sensitivity},
    KIT_DIVERGENCES(DIVERGENCE)
#undef DIVERGENCE
};

const char *const kit_divergence_names[KIT_DIVERGENCE_COUNT + 1] = {
#define DIVERGENCE(number, name, sweeps, rows, sensitivity) [number] = name,
    KIT_DIVERGENCES(DIVERGENCE)
#undef DIVERGENCE
};

int kit_has(int divergence, int result)
{
    return kit_results[result].always || (kit_divergences[divergence].rows >> result & 1);
}
