/* SPDX-License-Identifier: Apache-2.0
 * The ways to the same numbers: value, value_and_grad, backward, shards. */
#ifndef FUZZ_WAYS_H
#define FUZZ_WAYS_H

#include "judge.h"

/* Makes the call on its way, checks guards and inputs, judges the numbers. */
void way_run(struct call *c, struct judge *j);

/* PATH_SHARDS. */
void way_shards(struct call *c, struct judge *j);

/* Outputs of a call with their guards. */
struct outputs {
    struct skl_outputs out;
    struct view row[ROW_RESULTS], grad[GRADS];
    double value[3];
};

struct skl_tensor *outputs_row(struct skl_outputs *o, int which);
void outputs_rows(struct call *c, struct outputs *o, int which);
/* Gradients for the operands of p, which may hold fewer columns than the call's. */
void outputs_grads(struct call *c, const struct skl_problem *p, struct outputs *o, int which, int half);
/* Reads everything, checks the guards; adds to w what o has. */
void outputs_take(struct judge *j, struct outputs *o, struct written *w);
void outputs_free(struct outputs *o);

/* 1 if the status is SKL_OK; otherwise a failure with the library's sentence. */
int way_ok(struct judge *j, const char *call, enum skl_status status);

#endif
