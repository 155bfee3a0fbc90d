/* SPDX-License-Identifier: Apache-2.0
 * The divergences of the reference: from two distributions to a number and its gradients (docs/math.md). */
#ifndef KIT_FORMULAS_H
#define KIT_FORMULAS_H

#include <streamkl/streamkl.h>

/* One side of one row, over the columns it sees: log-probabilities, and the slope of z as a function of x. */
struct kit_distribution {
    double *logp, *slope, *dz;
    double lse;
};

/* The row's divergence between P, the teacher's, and Q, the student's, over n columns; g times its gradients to their
 * dz. What it leaves in kl_t and kl_s is the two sums of a divergence of two sweeps. */
double kit_divergence_of(const struct skl_problem *p, int64_t n, double g, struct kit_distribution *P,
                         struct kit_distribution *Q, double *kl_t, double *kl_s);

#endif
