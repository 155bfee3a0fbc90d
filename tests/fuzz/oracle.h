/* SPDX-License-Identifier: Apache-2.0
 *
 * What a call must give, in double, and how far an answer may be from it.
 *
 * The bound is what the same formula loses when it is computed the eager way: logits as an f32 matrix, two log_softmax
 * of it, the divergence and its gradients in f32. With u = 2^-24:
 *
 *   delta[j]   error of a logit: a product of D terms loses about u sqrt(D) of the sum of their sizes (a random walk of
 *              D roundings; twice that is allowed), adding the bias, scaling and dividing u |z| each. An exponential
 *              that is off by a few u, or whose argument z - max was rounded, is the exponential of a logit that is off
 *              by as much: u (3 + |z - max|) more.
 *   p[j]       |log p' - log p| <= delta[j] + (error of the LSE), and log(p / (1 - p)) moves by at most delta[j] + max
 *              delta. The smaller of the two counts: the second keeps rows meaningful whose delta is far above 1,
 *              logits of 1e30 say, where the largest logit wins by more than any rounding.
 *   loss       sum_j |d loss / d z[j]| delta[j] while delta is small; otherwise the sizes of all the terms that change.
 *              On top 3 u of every term's size, as a sum in f32 loses, and 3 u for each of the two LSEs: the
 *              exponentials of a side that nearly equals the other are not rounded alike. And u sqrt n for the sums of
 *              exponentials, the same random walk, of 192 terms at most.
 *   gradients  product rule on dz, then sums of n terms: u (4 + 2 sqrt n) of their sizes, the same random walk. Of
 *              operands that repeat themselves through strides of 0, terms are alike and rounded alike: u (4 + 2 n).
 *              (Terms that are alike by chance are not counted: a flat row of 400 columns is off by u sqrt n.)
 *              Where tiles multiply bf16 operands 2^-17 of every term more: dz goes into them as two bf16 numbers.
 *
 * Nothing here is taken from the library's sources: neither the reference nor the tests' helpers.
 */
#ifndef FUZZ_ORACLE_H
#define FUZZ_ORACLE_H

#include "draw.h"

struct numbers {
    int64_t n;
    double *want, *bound;
};

struct oracle {
    double value, value_bound;
    struct numbers row[ROW_RESULTS]; /* M_S.. hold the LSEs once more, with the bound of the two parts together */
    struct numbers grad[GRADS];
    int *exact;    /* [rows]: the row's loss and gradients are exactly 0 */
    int all_exact; /* every row's are */
};

/* lse_error: gradients come from LSEs that were rounded to f32. */
struct oracle oracle_of(const struct call *c, int lse_error);
void oracle_free(struct oracle *o);

#endif
