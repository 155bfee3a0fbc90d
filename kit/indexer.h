/* SPDX-License-Identifier: Apache-2.0
 *
 * The specification of an indexer's loss (docs/math.md, section 5e) in double precision with plain loops, forward and backward.
 * A part of the reference: it shares nothing with the engine but the public header.
 */
#ifndef KIT_INDEXER_H
#define KIT_INDEXER_H

#include <streamkl/streamkl.h>

/* Contiguous; each may be NULL. */
struct kit_indexer {
    double value;
    double *loss, *lse_s; /* [B, N] */
    double *da, *db, *dw; /* of the reduced loss, in the operands' shapes */
    double *size;         /* [B, N]: 1 + the largest |logit| and |LSE| of the row, of which roundings are a part */
};

void kit_indexer_run(const struct skl_problem *p, struct kit_indexer *out);

#endif
