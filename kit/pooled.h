/* SPDX-License-Identifier: Apache-2.0
 *
 * The specification of pooled targets (docs/math.md, section 5g) in double precision: forward KL, its student's
 * gradients. A part of the reference.
 */
#ifndef KIT_POOLED_H
#define KIT_POOLED_H

#include <streamkl/streamkl.h>

/* One row (b, h, i) with its loss, and g times its gradient added to da [D] and db [blocks, D]. Returns the loss. */
double kit_pooled_row(const struct skl_problem *p, int64_t b, int64_t h, int64_t i, double g, double *da, double *db);

#endif
