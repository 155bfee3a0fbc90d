/* SPDX-License-Identifier: Apache-2.0
 *
 * The specification: every formula of docs/math.md in double precision with plain loops, forward and backward. It
 * shares nothing with the engine but the public header, so that an error in one does not hide in the other. Used by
 * the tests and by `streamkl check`. The problem must be one that the engine accepts; nothing is checked here.
 */
#ifndef SKL_REFERENCE_H
#define SKL_REFERENCE_H

#include "result.h"

/* Number of rows: the product of a's leading dimensions. Rows are numbered in row-major order over them. */
int64_t skl_reference_rows(const struct skl_problem *p);

/* Number of columns that carry mass: 'columns', or b's rows when that is 0. */
int64_t skl_reference_columns(const struct skl_problem *p);

/* The columns lo .. hi-1 that a row sees; lo >= hi when it sees none. */
void skl_reference_range(const struct skl_problem *p, int64_t row, int64_t *lo, int64_t *hi);

/* Upstream gradient of a row in the reduced loss: weight, over the sum of the weights for a mean. */
double skl_reference_upstream(const struct skl_problem *p, int64_t row);

/* One row. Pointers are filled when they are not NULL. A row of weight 0, or without columns and sink, has loss 0,
 * LSE -inf, gradient 0. kl_s and kl_t are what the gradients subtract, of JSD KL(q || m) and KL(p || m); 0 for
 * forward and reverse KL. */
struct skl_reference_row {
#define ROW(field, id, needs, column, bound) double field;
    KIT_ROW_RESULTS(ROW)
#undef ROW
    double *grad_a_s, *grad_a_t;     /* [D]: gradient of g loss with respect to a's row */
    double *grad_x_s, *grad_x_t;     /* [columns]: with respect to x = <a, b> + bias */
    double *grad_x_labels;           /* [columns]: of grad_x_s, what labels add to it */
    double *log_q, *log_p;           /* [columns]: log-probabilities, -inf where there is no mass */
    double *log_q1;                  /* [columns]: the student's at temperature 1, of a row with a label */
    double lse1_s, lse1_t;           /* LSEs at temperature 1, of such a row */
    double margin_s, margin_t;       /* by how much the largest logit is larger than the second */
    double log_sink_q, log_sink_p;   /* log-probabilities of the sink; -inf: there is none */
    double grad_sink_s, grad_sink_t; /* with respect to the sinks of the row's head */
    double head_lse;                 /* the largest |LSE| of a mixture's heads; 0 if the teacher is one head */
};

/* Gradients for the upstream gradient g. Returns 0, or -1 when out of memory. */
int skl_reference_row(const struct skl_problem *p, int64_t row, double g, struct skl_reference_row *out);

/* Contiguous, in the operand's shape; each may be NULL. b, bias and sink are summed over the rows. */
struct skl_reference_grads {
    double *a, *b, *bias, *sink;
};

struct skl_reference {
    double value;
    /* [rows]; each may be NULL */
#define ROW(field, id, needs, column, bound) double *field;
    KIT_ROW_RESULTS(ROW)
#undef ROW
    struct skl_reference_grads s, t;
};

/* All rows, and the gradients of the reduced loss. Returns 0, or -1 when out of memory. */
int skl_reference_run(const struct skl_problem *p, struct skl_reference *out);

#endif
