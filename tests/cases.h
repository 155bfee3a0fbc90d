/* SPDX-License-Identifier: Apache-2.0
 *
 * A case in one line of a table, built into a problem in guarded memory with its expected results, run in any of the
 * five ways, and compared with the reference within the bounds of docs/math.md.
 */
#ifndef TEST_CASES_H
#define TEST_CASES_H

#include "../src/reference.h"
#include "tensors.h"

enum { S = 0, T = 1 }; /* index of a side */

enum test_weights { TEST_UNWEIGHTED, TEST_POSITIVE, TEST_SOME_ZERO, TEST_SIGNED, TEST_ALL_ZERO, TEST_WEIGHTS };

/* What to ask for: bits of 'grads'. */
enum { GRAD_A_S = 1, GRAD_B_S = 2, GRAD_BIAS_S = 4, GRAD_A_T = 8, GRAD_B_T = 16, GRAD_BIAS_T = 32, GRAD_ALL = 63 };

struct test_case {
    int use, divergence, reduction;
    int64_t batch, heads, rows, cols; /* linear: leading dimensions, as many as 'lead' from the right */
    int lead;
    int64_t key_heads[2]; /* 0: as many as heads */
    int64_t pad[2];       /* rows of b after the valid columns */
    int64_t dim[2];
    int32_t dtype[2];
    int bias[2]; /* 0: none, otherwise 1 + its dtype */
    double scale[2], softcap[2];
    double beta, temperature;
    double spread; /* standard deviation of the logits */
    int causal;
    int64_t left, right;
    int ranges; /* random begin and end, some empty, some out of range */
    int weights, layout, place;
    unsigned grads;
    int own; /* gradients in the operand's dtype instead of f32 */
    int threads;
};

/* Everything at its default, all gradients asked for, on one thread: small problems are faster so. */
struct test_case test_attention_case(int64_t rows, int64_t cols, int64_t dim);
struct test_case test_linear_case(int64_t rows, int64_t cols, int64_t dim);
/* Any of the product of all options, sizes around the edges of tiles. */
struct test_case test_random_case(void);
void test_describe(const struct test_case *c, char *text, size_t size);

enum test_output { LOSS, LSE_S, LSE_T, KL_S, KL_T, A_S, B_S, BIAS_S, A_T, B_T, BIAS_T, OUTPUTS };
extern const char *const test_output_name[OUTPUTS];
struct skl_tensor *test_slot(struct skl_outputs *out, int output);

enum { INPUTS = 9 };

struct test_fixture {
    struct test_case c;
    struct skl_problem p;
    double value, want_value, value_bound;
    struct test_tensor in[INPUTS]; /* a_s, b_s, bias_s, a_t, b_t, bias_t, begin, end, weight */
    struct test_tensor out[OUTPUTS];
    double *want[OUTPUTS], *bound[OUTPUTS], *got; /* contiguous; NULL: not asked for */
    uint64_t checksum;                            /* of the inputs, which no call may change */
    /* What a device adds to the bounds; 0 on the CPU. */
    double dx_rounding; /* of each dx before the gradient products, relative: 2^-8 in bf16 */
    double
        row_factor; /* of the rows' and logits' bounds, beyond 1: f32 sums over all columns, approximate exponentials */
};

/* Builds inputs and outputs; expects (the reference and its bounds) apart, so that tests can change inputs between. */
void test_build(struct test_fixture *f, const struct test_case *c);
void test_expect(struct test_fixture *f);
void test_destroy(struct test_fixture *f); /* checks that no call changed the inputs since test_expect() */
uint64_t test_checksum(const struct test_fixture *f);

/* All outputs, reset to the canary; 'grads' as in struct test_case. */
struct skl_outputs test_outputs(struct test_fixture *f, int with_rows, unsigned grads);
/* What was written, against the expected: every output that 'out' asked for. Returns the number of outputs in error. */
int test_compare(struct test_fixture *f, struct skl_outputs *out, const char *way);

enum test_way { WAY_VALUE, WAY_TOGETHER, WAY_RECOMPUTE, WAY_BACKWARD, WAY_PARTIAL, WAYS };
extern const char *const test_way_name[WAYS];
int test_run(struct test_fixture *f, enum test_way way);
/* The smallest workspace_limit that the call takes. */
size_t test_least_limit(const struct skl_problem *p, enum skl_call call, const struct skl_outputs *out);

/* Builds, expects, runs every way on every instruction set here, destroys. Returns the number of failures. */
int test_all_ways(const struct test_case *c);

/* WAY_PARTIAL, in slices.c. */
int test_run_slices(struct test_fixture *f, int64_t n);

#endif
