/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of divergences, with what outputs, slices and bounds have to know of them. One more is one more line here,
 * and its formulas in reference.c.
 */
#ifndef KIT_DIVERGENCE_H
#define KIT_DIVERGENCE_H

#include "case.h"
#include "reference.h"

/* X(its number in the header, name, sweeps over the columns that partial states take, what it has of enum kit_need, how
 * large the terms of kl_s and kl_t are, what a rounding of the logits does) */
#define KIT_DIVERGENCES(X)                                                           \
    X(SKL_FORWARD_KL, "forward", 1, 0, 1, forward_kl)                                \
    X(SKL_REVERSE_KL, "reverse", 1, 0, 1, reverse_kl)                                \
    X(SKL_JSD, "jsd", 2, KIT_NEEDS_TWO_SWEEPS, 1, jsd)                               \
    X(SKL_SKEW_FORWARD_KL, "skew_forward", 2, KIT_NEEDS_TWO_SWEEPS, 2, skew_forward) \
    X(SKL_SKEW_REVERSE_KL, "skew_reverse", 2, KIT_NEEDS_TWO_SWEEPS, 2, skew_reverse) \
    X(SKL_TOTAL_VARIATION, "tv", 2, KIT_NEEDS_TWO_SWEEPS, 1, total_variation)        \
    X(SKL_ALPHA_BETA, "alpha_beta", 2, KIT_NEEDS_TWO_SWEEPS, 4, alpha_beta)

enum {
#define DIVERGENCE(number, name, sweeps, rows, sums, sensitivity) KIT_COUNTS_##sensitivity,
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
    int has;     /* bits of enum kit_need */
    double sums; /* how large the terms of kl_s and kl_t are beside 1: a multiple of their bounds */
    /* |d dz / d logits| of a column for an upstream gradient of 1: how much of an error of the logits and LSEs is in
     * dz, on[S] and on[T]. An upper estimate of the derivative, without the factor of the errors themselves. */
    void (*sensitivity)(const struct skl_problem *p, const struct skl_reference_row *r, const struct kit_entry *e,
                        double on[2]);
} kit_divergences[KIT_DIVERGENCE_COUNT];

/* Makes it the case's divergence, with usual numbers of its own. */
void kit_set_divergence(struct kit_case *c, int divergence);
/* The k-th, counted around, of those whose gradient has no jumps: all but total variation, which has one where p =
 * q. */
enum { KIT_SMOOTH_COUNT = KIT_DIVERGENCE_COUNT - 1 };
void kit_set_smooth(struct kit_case *c, int k);
/* Whether rounding decides nothing: of total variation, whether p and q differ in every column by more than a saved f32
 * LSE rounds. */
int kit_determined(const struct skl_problem *p);

extern const char *const kit_divergence_names[]; /* ends with NULL */

/* Whether the case has this result of rows. */
int kit_has(const struct kit_case *c, int result);

#endif
