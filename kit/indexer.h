/* SPDX-License-Identifier: Apache-2.0
 *
 * The specification of an indexer's loss (docs/math.md, section 5e) in double precision with plain loops, forward and
 * backward. A part of the reference: it shares nothing with the engine but the public header.
 */
#ifndef KIT_INDEXER_H
#define KIT_INDEXER_H

#include <streamkl/streamkl.h>

/* Contiguous; each may be NULL. */
struct kit_indexer {
    double value;
    double *loss, *lse_s;    /* [B, N] */
    double *da, *db, *dw;    /* of the reduced loss, in the operands' shapes */
    double *size;            /* [B, N]: 1 + the largest |logit| and |LSE| of the row, of which roundings are a part */
    double *da2, *db2, *dw2; /* sums of the squares of what da, db and dw are sums of */
};

void kit_indexer_run(const struct skl_problem *p, struct kit_indexer *out);

/* The columns lo .. hi-1 that query i of batch b sees, of all that s.b has; and of n columns from lo on the heads'
 * products s[h][j] and z[j] = scale / T sum_h w_h act(s_hj). */
void kit_index_range(const struct skl_problem *p, int64_t b, int64_t i, int64_t *lo, int64_t *hi);
void kit_index_logits(const struct skl_problem *p, int64_t b, int64_t i, int64_t lo, int64_t n, double *s, double *z);

#endif
