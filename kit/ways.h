/* SPDX-License-Identifier: Apache-2.0
 *
 * The ways to the same results through the public calls, and a fixture's results against the expected ones.
 */
#ifndef KIT_WAYS_H
#define KIT_WAYS_H

#include "bounds.h"

enum kit_way {
    KIT_VALUE,     /* the value alone, without what only a backward needs */
    KIT_TOGETHER,  /* value and gradients in one call; a device gets its workspace from the caller */
    KIT_RECOMPUTE, /* the same with the least workspace it takes: logits are computed again */
    KIT_BACKWARD,  /* the value, then the gradients from what it saved */
    KIT_SLICES,    /* partial states of slices of the columns, merged and finished; then each slice's backward */
    KIT_WAYS
};
extern const char *const kit_way_names[KIT_WAYS];

/* How one result compares. */
struct kit_finding {
    double used;   /* the largest error as a part of its bound: right if <= 1. INFINITY for a NaN. -1: not asked for */
    int64_t index; /* of that element, in row-major order */
    double got, want, bound;
    int spilt; /* something was written outside of the tensor */
};

struct kit_outcome {
    enum skl_status status; /* of the first call that failed; skl_last_error() has its sentence */
    struct kit_finding of[KIT_RESULTS], value;
};

struct kit_outcome kit_no_outcome(void);
/* A call of a way: the outcome keeps the status of the first that failed. Returns whether all succeeded so far. */
int kit_succeeds(struct kit_outcome *outcome, enum skl_status status);

/* What was written to 'out', which kit_outputs() gave, is taken out and compared. Adds to the outcome. */
void kit_compare(struct kit_fixture *f, struct skl_outputs *out, struct kit_outcome *outcome);
/* Numbers for all elements of one result, which may be off by 'slack' besides their bound. NULL: by what rounding to
 * the output's dtype may do. */
void kit_compare_with(struct kit_fixture *f, int result, const double *got, const double *slack,
                      struct kit_outcome *outcome);
/* One element of a result against the expected one, as a part of its bound. */
double kit_used(const struct kit_fixture *f, int result, int64_t index, double got);

/* Runs it one way and compares everything. kit_expect() comes before. */
struct kit_outcome kit_run(struct kit_fixture *f, enum kit_way way);
/* Whether the case can be cut into slices: not a target that does not sum to 1, nor LSEs of heads that need all
 * columns. */
int kit_in_slices(const struct kit_case *c);
/* KIT_SLICES with n slices. */
struct kit_outcome kit_run_slices(struct kit_fixture *f, int64_t n);

/* A call succeeded and everything is within its bounds. */
int kit_right(const struct kit_outcome *outcome);

/* 'rows' rows, spread over a fixture that is too large for kit_expect(): the rows' results, and with gradients the row
 * of the student's a. No rounding of logits is granted to the gradient, whose rows see many columns. */
struct kit_outcome kit_sample(struct kit_fixture *f, int64_t rows, int gradients);

/* The smallest workspace_limit that the call takes. */
size_t kit_least_limit(const struct skl_problem *p, enum skl_call call, const struct skl_outputs *out);

#endif
