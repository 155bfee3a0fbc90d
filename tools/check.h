/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of `streamkl check`: which cases, and the way to run that works on slices of the columns.
 */
#ifndef TOOL_CHECK_H
#define TOOL_CHECK_H

#include "job.h"

/* Case number k: shapes, masks, dtypes and everything else drawn from (seed, k). 'multiplications' bounds the size. */
struct work check_case(uint64_t seed, int k, int divergence, double multiplications);

/* One line that names the case. */
void check_describe(const struct work *work, char *text, size_t size);

/* The value by three slices of the columns: partial states, merged out of order, finished. */
enum skl_status check_slices(struct job *job);

#endif
