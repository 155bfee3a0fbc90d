/* SPDX-License-Identifier: Apache-2.0
 *
 * The kit's fixtures as the commands use them: on the CPU or on the CUDA device, calls that must succeed, operations
 * counted, errors in the units of a table.
 */
#ifndef TOOL_CALLS_H
#define TOOL_CALLS_H

#include "kit/ways.h"

#include <stdio.h>

struct command;

/* Positions are those of enum skl_call, of which bench has three; ends with NULL. */
extern const char *const call_names[];

/* What bench and demo begin with: logits of deviation 2, peaked, as real attention and vocabularies are (a flat softmax
 * would hide errors), the student's gradients, as many threads as there are processors. */
struct kit_case usual_case(int use, int64_t rows, int64_t cols, int64_t dim);

/* 0 in the options means what is usual for the operation. */
void fill_usual(struct kit_case *c);

/* Exits with EXIT_USAGE where options do not fit together that describe the shape. */
void require_shape(const struct command *command, const struct kit_case *c);

/* Memory of the CPU, or of the CUDA device; enum skl_device. */
const struct kit_memory *memory_of(int device);

/* The call; a failure is a sentence and an exit, with EXIT_INTERRUPTED when the progress callback cancelled it. */
void must_call(struct kit_fixture *f, enum skl_call call);

/* Floating-point operations of the matrix products alone, over the visible (row, column) pairs: two products for a
 * value, four with the student's gradients. */
double flops_of(const struct kit_fixture *f, enum skl_call call);

/* The worst error of each column, relative to the number itself (plus 1/2) or to the largest entry of a gradient's
 * row (plus what rounding of the logits does, where that is granted). -1: nothing was compared. */
struct errors {
    double of[KIT_COLUMNS];
};

/* What it may be at most. */
double error_at_most(const struct kit_allowance *allow, enum kit_column column);
struct errors errors_of(const struct kit_outcome *outcome, const struct kit_allowance *allow);
double errors_largest(const struct errors *e);
void errors_print(FILE *to, const struct errors *e); /* "loss 1.0e-07, LSE 1.0e-07, grad a 2.3e-07" */

#endif
