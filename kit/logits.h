/* SPDX-License-Identifier: Apache-2.0
 *
 * The logits of one row of one side in double, by the definition: inner products, and what is made of those of several
 * heads. A part of the reference, and for those who make up inputs that must fit them, such as given LSEs.
 */
#ifndef KIT_LOGITS_H
#define KIT_LOGITS_H

#include <streamkl/streamkl.h>

/* The element at that offset as a double. */
double kit_element(const struct skl_tensor *t, int64_t offset);
/* Offset of row number 'row' in a tensor with the given leading shape, which has 'dims' dimensions. */
int64_t kit_row_offset(const struct skl_tensor *t, const int64_t *shape, int dims, int64_t row);

/* z and dz/dx of n columns from lo on; a and b are the offsets of the row in the side's a and of column 0 in its b. */
void kit_logits(const struct skl_problem *p, const struct skl_side *side, int64_t a, int64_t b, int64_t lo, int64_t n,
                double *z, double *slope);
/* -inf when there is no column with mass. */
double kit_log_sum_exp(int64_t n, const double *z);

/* Is the teacher a mixture of its heads, or a single one of them by number? */
int kit_mixes_heads(const struct skl_problem *p);
/* Logits of one of the teacher's heads, for query i. */
void kit_head_logits(const struct skl_problem *p, int64_t batch, int64_t head, int64_t i, int64_t lo, int64_t n,
                     double *z, double *slope);
/* Whether rows have one more column, the sink; and the logit of a head's sink. */
int kit_sinks(const struct skl_problem *p);
double kit_sink(const struct skl_problem *p, const struct skl_tensor *sink, int64_t head);
/* log of the mean over the heads that row (batch, h, i) meets of e^{z - lse}, not divided by its sum (of a single
 * head that will be divided by it, z itself), of n columns and the sink behind them if there is one; 'slope' is room
 * for n numbers. Returns the largest |lse| of the heads. */
double kit_log_target(const struct skl_problem *p, int64_t batch, int64_t h, int64_t i, int64_t lo, int64_t n,
                      double *log_t, double *slope);

#endif
