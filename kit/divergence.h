/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of divergences, with what outputs, slices and bounds have to know of them. One more is one more line here,
 * and its formulas in reference.c.
 */
#ifndef KIT_DIVERGENCE_H
#define KIT_DIVERGENCE_H

#include "case.h"
#include "reference.h"

/* X(its number in the header, name, sweeps over the columns that partial states take, row results that it has and not
 * every one has, what a rounding of the logits does) */
#define KIT_DIVERGENCES(X)                         \
    X(SKL_FORWARD_KL, "forward", 1, 0, forward_kl) \
    X(SKL_REVERSE_KL, "reverse", 1, 0, reverse_kl) \
    X(SKL_JSD, "jsd", 2, 1u << KIT_KL_S | 1u << KIT_KL_T, jsd)

enum {
#define DIVERGENCE(number, name, sweeps, rows, sensitivity) KIT_COUNTS_##sensitivity,
    KIT_DIVERGENCES(DIVERGENCE)
#undef DIVERGENCE
        KIT_DIVERGENCE_COUNT
};

/* A column of a row, as the reference has it; probabilities that are 0 have logarithm 0 here. */
struct kit_entry {
    double p, q, log_p, log_q;
};

extern const struct kit_divergence {
    int sweeps;
    unsigned rows; /* bits of enum kit_result */
    /* |d dz / d logits| of a column for an upstream gradient of 1: how much of an error of the logits and LSEs is in
     * dz, on[S] and on[T]. An upper estimate of the derivative, without the factor of the errors themselves. */
    void (*sensitivity)(const struct skl_problem *p, const struct skl_reference_row *r, const struct kit_entry *e,
                        double on[2]);
} kit_divergences[KIT_DIVERGENCE_COUNT];

extern const char *const kit_divergence_names[]; /* ends with NULL */

/* Whether this divergence has this result. */
int kit_has(int divergence, int result);

#endif
