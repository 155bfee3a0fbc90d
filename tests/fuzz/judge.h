/* SPDX-License-Identifier: Apache-2.0
 * Compares what a call wrote with what it should have written. */
#ifndef FUZZ_JUDGE_H
#define FUZZ_JUDGE_H

#include "oracle.h"

/* Sizes of errors over their bounds, by what was compared. Gradients of 16 bits do not count: rounding them uses up the
 * bound. */
enum { RATIO_VALUE, RATIO_ROWS, RATIO_GRADS, RATIOS };

struct judge {
    const struct call *call;
    int failures;
    int64_t compared, unbounded; /* unbounded: the eager way would know nothing either */
    double worst[RATIOS];
    char said[3][320]; /* the first failures */
};

void judge_fail(struct judge *j, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Everything that was written: rows and gradients as doubles, NULL where not wanted. */
struct written {
    double value;
    double *row[ROW_RESULTS], *grad[GRADS];
    int grad_dtype[GRADS];
    int no_value;
};

/* exact: rows that must give exactly 0 are held to it. */
void judge_rows(struct judge *j, const struct oracle *o, const struct written *w, int exact);
void judge_grads(struct judge *j, const struct oracle *o, const struct written *w, int exact);

void written_free(struct written *w);

#endif
