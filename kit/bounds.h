/* SPDX-License-Identifier: Apache-2.0
 *
 * What a fixture should give, by the reference, and how far off it may be: the one error bound of this project. Section
 * 10 of docs/math.md derives it.
 *
 *   a row's number x      rows (2e-6 |x| + 1e-6); for an LSE the second part grows as sqrt(D / 64) above D = 64
 *   the value             sum_i |g_i| times that of the loss
 *   a row of a gradient   5e-6 of its largest entry, plus the most that any of its entries may move by rounding:
 *                             min(3 sqrt(sum e^2 + d^2), sum 3 e + d)    over all columns (rows, for b and the bias)
 *                         e = rows 2^-24 size sensitivity slope |operand|      one rounding of a logit and its LSEs
 *                         d = unit |dx| |operand|                              one rounding of dx to 16 bits (a
 *                         device), or to two bf16
                                                                              parts (the tiles of AMX)
 *   an output in 16 bits  half a unit in its last place more
 */
#ifndef KIT_BOUNDS_H
#define KIT_BOUNDS_H

#include "fixture.h"

/* Room for want and bound of everything that the fixture has, all 0: for those who know without the reference. */
void kit_make_room(struct kit_fixture *f);

/* want and bound of everything that the fixture has, by the reference. */
void kit_expect(struct kit_fixture *f);

/* One row: its results, and for the row of the student's a the gradient and its bound if they are not NULL ([D]). */
struct kit_expected_row {
    double want[KIT_FIRST_GRADIENT], bound[KIT_FIRST_GRADIENT];
    double *grad, *grad_bound;
};
void kit_expect_row(const struct kit_fixture *f, int64_t row, struct kit_expected_row *e);

#endif
