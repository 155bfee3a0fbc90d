/* SPDX-License-Identifier: Apache-2.0
 *
 * A job's results against the reference: errors, and how large they may be. Every error is a number >= 0; NaN, or an
 * infinity where the reference has none, gives INFINITY, so that "error <= bound" fails.
 */
#ifndef TOOL_VERIFY_H
#define TOOL_VERIFY_H

#include "job.h"
#include "reference.h"

/* Numbers of a row: |got - want| / (|want| + 1/2). At most 2e-6 is the same as 2e-6 relative + 1e-6 absolute.
 * A row of a gradient: largest |got - want| / largest |want|, after taking off what rounding to the dtype of the
 * output may have moved each entry. Where the terms of a gradient cancel (one visible column: p = q = 1, dz = 0) no f32
 * computation meets a bound of that kind. There the error is taken relative to what, times 5e-6, is the effect of four
 * roundings of every logit. */
#define VALUE_BOUND 2e-6
#define GRAD_BOUND 5e-6

/* The same on a CUDA device, whose approximate 2^x and log2 x and sums of f32 throughout cost some more. There dz is
 * also rounded to the dtype of the operand that it multiplies, which a gradient's error is granted. */
#define DEVICE_VALUE_BOUND 1e-5
#define DEVICE_GRAD_BOUND 2e-5

struct bounds {
    double value, grad;
};

struct bounds bounds_on(int device); /* enum skl_device */

struct errors {
    double loss; /* with kl_s, kl_t and the reduced loss */
    double lse;
    double a; /* gradients of a, both sides */
    double b; /* gradients of b and of the bias */
};

int errors_in_bounds(const struct errors *errors, struct bounds bounds);
double errors_largest(const struct errors *errors);
void errors_add(struct errors *into, const struct errors *from);

/* The reference's results for a job, and for every row of a gradient what rounding of the logits can do to it. */
struct expected {
    struct skl_reference reference;
    double *noise_a[2], *noise_b[2], noise_bias[2]; /* student, teacher: per row of a, per row of b, in all */
};

void expected_make(const struct job *job, struct expected *expected);
void expected_free(struct expected *expected);

/* Everything, after a pass with or without gradients. */
struct errors verify_all(const struct job *job, const struct expected *expected, int gradients);

/* 'rows' rows spread over the job: loss, LSEs, and with gradients the row of the student's a. */
struct errors verify_sampled(const struct job *job, int64_t rows, int gradients);

#endif
