/* SPDX-License-Identifier: Apache-2.0
 *
 * What rounding must not touch. Where the truth is exactly 0 (identical sides, one column, flat rows) so are loss and
 * gradients, in every call and on every instruction set; a constant between the sides, and logits as large as 1e30,
 * cost no more digits than softmax and KL written out in f32 ("eager") lose on them.
 */
#include "eager.h"

static const enum skl_isa isas[] = TEST_ISAS;
static const char *const divergence_names[] = {"forward", "reverse", "jsd"};

/* ----------------------------------------------------------------------------------------------- problems --- */

enum { ROWS_MAX = 70, COLUMNS_MAX = EAGER_COLUMNS, DIM_MAX = 300 };

static float a[2][ROWS_MAX * DIM_MAX], b[2][COLUMNS_MAX * DIM_MAX], bias[2][COLUMNS_MAX];
static float grad_a[2][ROWS_MAX * DIM_MAX], grad_b[2][COLUMNS_MAX * DIM_MAX], grad_bias[2][COLUMNS_MAX];
static float rows_out[9][ROWS_MAX], weight[ROWS_MAX];
static double value;

struct shape {
    int rows, columns, dim;
};

/* A linear problem over the arrays above, columns first .. first + n - 1 of them. */
static struct skl_problem problem(struct shape n, int divergence, int first, int columns)
{
    struct skl_tensor x[2], w[2];
    for (int side = 0; side < 2; side++) {
        x[side] = skl_matrix(SKL_F32, a[side], n.rows, n.dim);
        w[side] = skl_matrix(SKL_F32, b[side] + first * n.dim, columns, n.dim);
    }
    struct skl_problem p = skl_linear(x[S], w[S], x[T], w[T]);
    p.s.bias = skl_vector(SKL_F32, bias[S] + first, columns);
    p.t.bias = skl_vector(SKL_F32, bias[T] + first, columns);
    p.divergence = divergence;
    p.reduction = SKL_SUM;
    p.beta = 0.3;
    return p;
}

static struct skl_grads grads_of(struct shape n, int side, int first, int columns)
{
    return (struct skl_grads){skl_matrix(SKL_F32, grad_a[side], n.rows, n.dim),
                              skl_matrix(SKL_F32, grad_b[side] + first * n.dim, columns, n.dim),
                              skl_vector(SKL_F32, grad_bias[side] + first, columns)};
}

static void spoil_outputs(void)
{
    value = NAN;
    memset(rows_out, KIT_CANARY, sizeof rows_out);
    memset(grad_a, KIT_CANARY, sizeof grad_a);
    memset(grad_b, KIT_CANARY, sizeof grad_b);
    memset(grad_bias, KIT_CANARY, sizeof grad_bias);
}

/* All results of the rows: loss, kl_s, kl_t (JSD), m and l of both sides; with the LSEs or without. */
static struct skl_outputs row_outputs(struct shape n, int divergence, int lse)
{
    struct skl_outputs o = skl_no_outputs();
    struct skl_tensor *each[9] = {&o.loss, &o.m_s, &o.m_t, &o.l_s, &o.l_t, &o.lse_s, &o.lse_t, &o.kl_s, &o.kl_t};
    for (int i = 0; i < 9; i++)
        if (i < 5 || (i < 7 ? lse : divergence == SKL_JSD))
            *each[i] = skl_vector(SKL_F32, rows_out[i], n.rows);
    return o;
}

/* -------------------------------------------------------------------------------------------------- calls --- */

static void together(const struct skl_problem *p, struct shape n)
{
    struct skl_outputs o = row_outputs(n, p->divergence, 1);
    o.value = &value, o.s = grads_of(n, S, 0, n.columns), o.t = grads_of(n, T, 0, n.columns);
    CHECK_STATUS(skl_value_and_grad(p, &o), SKL_OK);
}

/* One side's gradients alone keep exponentials where both sides' keep logits. */
static void one_side(const struct skl_problem *p, struct shape n, int side)
{
    struct skl_outputs o = row_outputs(n, p->divergence, 1);
    o.value = &value;
    *(side == S ? &o.s : &o.t) = grads_of(n, side, 0, n.columns);
    CHECK_STATUS(skl_value_and_grad(p, &o), SKL_OK);
}

static void recomputed(struct skl_problem p, struct shape n)
{
    struct skl_outputs o = skl_no_outputs();
    o.s = grads_of(n, S, 0, n.columns), o.t = grads_of(n, T, 0, n.columns);
    p.workspace_limit = kit_least_limit(&p, SKL_CALL_VALUE_AND_GRAD, &o);
    together(&p, n);
}

static void value_then_backward(const struct skl_problem *p, struct shape n)
{
    struct skl_outputs saved = row_outputs(n, p->divergence, 0), o = skl_no_outputs();
    saved.value = &value;
    CHECK_STATUS(skl_value(p, &saved), SKL_OK);
    saved.value = NULL, o.s = grads_of(n, S, 0, n.columns), o.t = grads_of(n, T, 0, n.columns);
    CHECK_STATUS(skl_backward(p, &saved, &o), SKL_OK);
}

/* Two shards of the columns: states, merged and finished (JSD: twice), then a backward of each shard. */
static void shards(struct skl_problem whole, struct shape n)
{
    static struct skl_state state[2][ROWS_MAX];
    struct skl_outputs saved = row_outputs(n, whole.divergence, 1);
    int cut = n.columns / 3, first[2] = {0, cut}, columns[2] = {cut, n.columns - cut};
    struct skl_problem p[2];
    for (int k = 0; k < 2; k++) p[k] = problem(n, whole.divergence, first[k], columns[k]), p[k].isa = whole.isa;
    for (int sweep = 0; sweep < (whole.divergence == SKL_JSD ? 2 : 1); sweep++) {
        for (int k = 0; k < 2; k++) CHECK_STATUS(skl_partial(&p[k], sweep ? &saved : NULL, state[k]), SKL_OK);
        CHECK_STATUS(skl_merge(n.rows, state[0], state[1]), SKL_OK);
        struct skl_outputs out = saved;
        if (sweep) { /* the second sweep's states know no LSEs */
            struct skl_tensor none = {0};
            out.lse_s = out.lse_t = out.m_s = out.m_t = out.l_s = out.l_t = none;
        }
        out.value = &value;
        CHECK_STATUS(skl_finish(&p[0], state[0], &out), SKL_OK);
    }
    for (int k = 0; k < 2; k++) {
        struct skl_outputs o = skl_no_outputs();
        o.s = grads_of(n, S, first[k], columns[k]), o.t = grads_of(n, T, first[k], columns[k]);
        CHECK_STATUS(skl_backward(&p[k], &saved, &o), SKL_OK);
    }
}

/* ------------------------------------------------------------------------------------------ exactly nothing --- */

static int all_zero(const float *x, int n)
{
    int zero = 1;
    for (int i = 0; i < n; i++) zero &= x[i] == 0;
    return zero;
}

static void expect_nothing(const char *call, struct shape n, int sides)
{
    CHECK(value == 0, "%s: value %g", call, value);
    CHECK(all_zero(rows_out[0], n.rows), "%s: a loss is not 0", call);
    for (int side = 0; side < 2; side++)
        if (sides & 1 << side) {
            CHECK(all_zero(grad_a[side], n.rows * n.dim), "%s: a gradient of a[%d] is not 0", call, side);
            CHECK(all_zero(grad_b[side], n.columns * n.dim), "%s: a gradient of b[%d] is not 0", call, side);
            CHECK(all_zero(grad_bias[side], n.columns), "%s: a gradient of bias[%d] is not 0", call, side);
        }
    spoil_outputs();
}

/* Every way to the loss and the gradients of the arrays above, whose truth is 0. */
static void run_all(const char *name, struct shape n)
{
    for (int i = 0; i < COUNT(isas); i++)
        for (int d = 0; d < 3 && skl_isa_available(isas[i]); d++) {
            struct skl_problem p = problem(n, d, 0, n.columns);
            p.isa = isas[i];
            p.weight = skl_vector(SKL_F32, weight, n.rows);
            test_context("%s, %d x %d x %d, %s, %s", name, n.rows, n.columns, n.dim, divergence_names[d],
                         skl_isa_name(isas[i]));
            spoil_outputs();
            together(&p, n), expect_nothing("value_and_grad", n, 3);
            one_side(&p, n, S), expect_nothing("value_and_grad of the student", n, 1 << S);
            one_side(&p, n, T), expect_nothing("value_and_grad of the teacher", n, 1 << T);
            recomputed(p, n), expect_nothing("value_and_grad, recomputed", n, 3);
            value_then_backward(&p, n), expect_nothing("value, then backward", n, 3);
            if (n.columns > 2)
                shards(p, n), expect_nothing("shards", n, 3);
        }
}

static void fill(float *x, int n, double size)
{
    for (int i = 0; i < n; i++) x[i] = (float)(size * test_normal());
}

/* Random operands, the two sides unlike each other; 'size' of the logits. */
static void randomise(struct shape n, double size)
{
    for (int side = 0; side < 2; side++) {
        fill(a[side], n.rows * n.dim, size);
        fill(b[side], n.columns * n.dim, 1 / sqrt(n.dim));
        fill(bias[side], n.columns, size);
    }
    for (int i = 0; i < n.rows; i++) weight[i] = (float)(0.1 + test_uniform());
}

static void identical_sides(struct shape n, double size)
{
    randomise(n, size);
    memcpy(a[T], a[S], sizeof a[S]), memcpy(b[T], b[S], sizeof b[S]), memcpy(bias[T], bias[S], sizeof bias[S]);
    run_all("identical sides", n);
}

/* The columns of a side are all the same, whatever the sides' logits are. One column is a flat row, too. */
static void flat_rows(struct shape n, double size, double offset)
{
    randomise(n, size);
    bias[T][0] += (float)offset;
    for (int side = 0; side < 2; side++)
        for (int j = 1; j < n.columns; j++) {
            memcpy(b[side] + j * n.dim, b[side], (size_t)n.dim * sizeof(float));
            bias[side][j] = bias[side][0];
        }
    run_all(n.columns == 1 ? "one column" : "flat rows", n);
}

static void exact_zeros(void)
{
    static const struct shape shapes[] = {{37, 1, 5}, {1, 2, 3}, {70, 61, 20}, {33, 500, 64}, {5, 400, 300}};
    for (int i = 0; i < COUNT(shapes); i++) {
        identical_sides(shapes[i], 3);
        identical_sides(shapes[i], 1e6);
        flat_rows(shapes[i], 3, 0);
        flat_rows(shapes[i], 30, 1000);
        flat_rows(shapes[i], 1e8, -1e9);
    }
    identical_sides((struct shape){9, 300, 8}, 1e28);
    flat_rows((struct shape){9, 300, 8}, 1e28, 1e28);
}

/* -------------------------------------------------------------------------------------------- against eager --- */

/* With or without fused multiply-adds, as the instruction set that it is compared with. */
static void eager_row(struct shape n, int row, int fused, struct eager *e)
{
    static float z[2][EAGER_COLUMNS];
    for (int side = 0; side < 2; side++)
        for (int j = 0; j < n.columns; j++) {
            float x = 0;
            for (int d = 0; d < n.dim; d++) {
                float y = a[side][row * n.dim + d], w = b[side][j * n.dim + d];
                x = fused ? fmaf(y, w, x) : x + y * w;
            }
            z[side][j] = x + bias[side][j];
        }
    run_eager(n.columns, z, e);
}

static void add_row(struct shape n, int row, enum skl_isa isa, struct squares *sum)
{
    static double want_dz[2][COLUMNS_MAX];
    static struct eager e;
    struct skl_problem p = problem(n, SKL_FORWARD_KL, 0, n.columns);
    struct skl_reference_row want = {.grad_x_s = want_dz[S], .grad_x_t = want_dz[T]};
    struct shape one = {1, n.columns, n.dim};
    p.s.a = skl_matrix(SKL_F32, a[S] + row * n.dim, 1, n.dim);
    p.t.a = skl_matrix(SKL_F32, a[T] + row * n.dim, 1, n.dim);
    p.isa = isa;
    eager_row(n, row, isa != SKL_ISA_BASELINE, &e);
    CHECK(skl_reference_row(&p, 0, 1, &want) == 0, "the reference is out of memory");
    value_then_backward(&p, one);
    add_squares(want.loss, (double)rows_out[0][0], (double)e.loss, sum->loss);
    for (int side = 0; side < 2; side++)
        for (int j = 0; j < n.columns; j++)
            add_squares(want_dz[side][j], (double)grad_bias[side][j], (double)e.dz[side][j], sum->dz[side]);
}

static void as_good_as_eager(const char *name, struct shape n, double size)
{
    for (int i = 0; i < COUNT(isas); i++) {
        struct squares sum = {{0}, {{0}, {0}}};
        if (!skl_isa_available(isas[i]))
            continue;
        test_context("%s, %s", name, skl_isa_name(isas[i]));
        for (int row = 0; row < n.rows; row++) add_row(n, row, isas[i], &sum);
        check_squares(&sum, n.rows, size, 0);
    }
}

static void offsets(void)
{
    static const double offset[] = {0, 1000, -1000};
    const struct shape n = {60, 300, 24};
    for (int k = 0; k < COUNT(offset); k++) {
        randomise(n, 2);
        for (int j = 0; j < n.columns; j++) bias[T][j] += (float)offset[k];
        char name[40];
        snprintf(name, sizeof name, "teacher's logits %+g", offset[k]);
        as_good_as_eager(name, n, 8);
    }
}

/* Logits of size 10^k. The teacher is a student disturbed by a tenth, so that the largest logits agree in most rows. */
static void large_logits(void)
{
    const struct shape n = {40, 200, 24};
    for (int power = 2; power <= 30; power += 4) {
        double size = pow(10, power);
        char name[40];
        randomise(n, size);
        memcpy(b[T], b[S], sizeof b[S]), memcpy(bias[T], bias[S], sizeof bias[S]);
        for (int i = 0; i < n.rows * n.dim; i++) a[T][i] = a[S][i] * (float)(1 + 0.1 * test_normal());
        snprintf(name, sizeof name, "logits of 1e%d", power);
        as_good_as_eager(name, n, size);
    }
}

/* Over many rows no loss is below what the rounding of its terms leaves. */
static void never_negative(void)
{
    const struct shape n = {ROWS_MAX, 40, 8};
    double least = 0;
    for (int k = 0; k < test_cases(1500, 100); k++) {
        struct skl_outputs o = skl_no_outputs();
        randomise(n, pow(10, test_uniform() * 3 - 2));
        for (int side = 0; side < 2; side++) /* the teacher is a disturbed student, sometimes moved by a constant */
            for (int j = 0; j < n.columns && side == T; j++)
                bias[T][j] = bias[S][j] + (float)(1e-3 * test_normal() + (k % 2 ? 100 : 0));
        memcpy(a[T], a[S], sizeof a[S]), memcpy(b[T], b[S], sizeof b[S]);
        struct skl_problem p = problem(n, k % 3, 0, n.columns);
        o.loss = skl_vector(SKL_F32, rows_out[0], n.rows);
        CHECK_STATUS(skl_value(&p, &o), SKL_OK);
        for (int i = 0; i < n.rows; i++) least = (double)rows_out[0][i] < least ? (double)rows_out[0][i] : least;
    }
    test_context("never negative");
    CHECK(least >= -1e-6, "the least loss is %g", least);
    printf("least loss %g\n", least);
}

int main(void)
{
    test_begin("test_exact");
    exact_zeros();
    offsets();
    large_logits();
    never_negative();
    return test_end();
}
