/* SPDX-License-Identifier: Apache-2.0
 * One random call: its problem, its operands, what is wanted of it, and on which way it is asked for. */
#ifndef FUZZ_DRAW_H
#define FUZZ_DRAW_H

#include "view.h"

enum { STUDENT = 0, TEACHER = 1 };

/* What is special about the numbers. In the middle three every row must give exactly 0. */
enum kind {
    KIND_ORDINARY,
    KIND_NEAR, /* the teacher is the student with a little noise */
    KIND_IDENTICAL,
    KIND_ONE_COLUMN,
    KIND_FLAT,
    KIND_OFFSET, /* a constant of up to 1000 between the sides */
    KIND_LARGE,  /* logits of 1e4 to 1e30 */
    KINDS
};

enum path {
    PATH_VALUE,
    PATH_GRAD,         /* value_and_grad */
    PATH_BACKWARD,     /* value, then backward from m and l of both sides */
    PATH_BACKWARD_LSE, /* value, then backward from the LSEs in f32 */
    PATH_SHARDS,       /* partial on each piece of the columns, merge, finish, backward on each piece */
    PATHS
};

extern const char *const kind_names[KINDS], *const path_names[PATHS];

/* The results over the rows, in the order of skl_outputs; those after STATE_RESULTS are not of partial rows, L1_S is
 * only for a backward, M_REST and L_REST are those of a listed teacher. */
enum { LOSS, LSE_S, LSE_T, KL_S, KL_T, M_S, M_T, L_S, L_T, STATE_RESULTS };
enum { KL = STATE_RESULTS, CE, ENTROPY_S, ENTROPY_T, LOGPROB_S, LOGPROB_T, L1_S, M_REST, L_REST, ROW_RESULTS };

/* The gradients: 3 side + one of these. */
enum { GRAD_A, GRAD_B, GRAD_BIAS, GRADS = 6 };

struct side {
    struct view a, b, bias;
    int64_t dim, key_heads, height; /* height counts padding */
    double offset;                  /* added to every logit */
    double spread;                  /* standard deviation of the logits aimed at */
    double *A, *B, *C; /* the operands as the library will read them: [rows][dim], [matrices][height][dim], [height] */
};

struct call {
    struct rng random;
    enum kind kind;
    enum path path;
    struct skl_problem p;
    struct side side[2];
    struct view begin, end, weight, ids;
    struct skl_labels labels; /* p.labels points to it, or nowhere */
    struct skl_listed listed; /* p.listed points to it, or nowhere; then the problem has no teacher's side */
    struct view list_ids, list_logprobs, list_rest;
    int64_t k; /* entries of a list */
    int ndim;  /* of a tensor over the rows */
    int64_t lead[3];
    int64_t batch, heads, n, rows, columns;
    int64_t *lo, *hi; /* [rows]: the columns a row sees, by this program's own reading of the rules */
    double *g;        /* [rows]: its upstream gradient; 0 too when it sees no column */
    int64_t *label;   /* [rows]: a column, or -1: ignored */
    int want;         /* bit 3 side + GRAD_*: which gradients */
    int want_rows;    /* bit: which results over the rows */
    int half_grads;   /* the same bits: in the operand's own dtype instead of f32 */
    int limit;        /* 1: the least workspace that does; 2: some part of what it would take */
    int again;        /* once more with another number of threads: the same bits are expected */
};

void draw_call(struct call *c, struct rng random);
void draw_free(struct call *c);

/* draw_lists.c: may the call have a listed teacher, which is decided before its masks are? Then its lists, from which
 * rows that list nothing follow. */
int draw_is_listed(struct call *c);
void draw_lists(struct call *c);

/* Which matrix of b a row meets. */
int64_t draw_matrix(const struct call *c, int side, int64_t row);

/* The scale of a side, the default filled in. */
double draw_scale(const struct call *c, int side);

/* A line that tells what the call is. */
void draw_describe(const struct call *c, char *text, size_t size);

#endif
