/* SPDX-License-Identifier: Apache-2.0
 *
 * The specification of lists of keys: which columns a query lists, by looking through its list for each. A part of the
 * reference: it shares nothing with the engine but the public header.
 */
#ifndef KIT_SUPPORT_H
#define KIT_SUPPORT_H

#include <streamkl/streamkl.h>

/* Does query i of the batch list the column? All of them, where there are no lists. */
int kit_lists(const struct skl_problem *p, int64_t batch, int64_t i, int64_t column);
/* -inf in place of the logits z[0 .. n-1] of those columns from lo on that it does not list. Returns whether any is
 * left. */
int kit_hide(const struct skl_problem *p, int64_t batch, int64_t i, int64_t lo, int64_t n, double *z);

#endif
