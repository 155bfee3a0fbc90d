/* SPDX-License-Identifier: Apache-2.0
 *
 * A row with a listed teacher. Columns are put into categories: each listed one alone; all others together (bucket), in
 * no sum (zero, teacher), or nowhere (renormalise). p: the teacher's masses, q: the student's.
 *
 *     forward  D = sum p log(p / q),   dz[j] = M q[j] - p[j],              off the list  (M q_rest - p_rest) share[j]
 *     reverse  D = sum q log(q / p),   dz[j] = q[j] (log(q[j] / p[j]) - D),  ...  q_rest (log(q_rest / p_rest) - D)
 *     share[j]
 *
 * M: the sum of all p; share: softmax over the columns off the list, which have the mass q_rest. Bounds are oracle.h's:
 * the masses are in double as they come, so errors are the student's alone; where a rest is the difference of two
 * numbers, it is off by their rounding in double.
 */
#ifndef FUZZ_ORACLE_LISTS_H
#define FUZZ_ORACLE_LISTS_H

#include "distribution.h"

struct listed_row {
    double d, bound;            /* the divergence */
    double lse_rest, dlse_rest; /* of the student off the list */
};

/* From S's logits and probabilities over all columns; makes its dz and ddz. */
struct listed_row oracle_listed_row(const struct call *c, int64_t row, struct distribution *S);

#endif
