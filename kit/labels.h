/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of the reference about labels and about what rows tell beyond their divergence, in double and by the
 * definitions of streamkl.h.
 */
#ifndef KIT_LABELS_H
#define KIT_LABELS_H

#include "reference.h"

/* The row's label: a column, or -1 if it is ignored or there are no labels. */
int64_t kit_label(const struct skl_problem *p, int64_t row);

/* One side of a row over the columns lo .. lo + n - 1, by its log-probabilities: its entropy, its largest column and by
 * how much that is larger than the second, and the mass of mass_ids. */
struct kit_told {
    double entropy, top1, margin, mass;
};
struct kit_told kit_tell(const struct skl_problem *p, int64_t row, int64_t lo, int64_t n, const double *logp);

/* KL of q from p, JSD with beta 0.5 and total variation. */
double kit_kl(int64_t n, const double *logp, const double *logq);
double kit_jsd(int64_t n, const double *logp, const double *logq);
double kit_variation(int64_t n, const double *logp, const double *logq);

/* What labels make of a row whose student has the logits z, of temperature 1: ce, loss with kl_weight out->kl in it,
 * and the gradient dz [n] of g times what labels add to it. */
void kit_add_label(const struct skl_problem *p, int64_t label, int64_t n, const double *z, double g,
                   struct skl_reference_row *out, double *dz);

#endif
