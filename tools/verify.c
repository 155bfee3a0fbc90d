/* SPDX-License-Identifier: Apache-2.0 */
#include "verify.h"
#include "data.h"
#include "options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

int errors_in_bounds(const struct errors *e)
{
    return e->loss <= VALUE_BOUND && e->lse <= VALUE_BOUND && e->a <= GRAD_BOUND && e->b <= GRAD_BOUND;
}

double errors_largest(const struct errors *e)
{
    return fmax(fmax(e->loss, e->lse), fmax(e->a, e->b));
}

void errors_add(struct errors *into, const struct errors *from)
{
    into->loss = fmax(into->loss, from->loss);
    into->lse = fmax(into->lse, from->lse);
    into->a = fmax(into->a, from->a);
    into->b = fmax(into->b, from->b);
}

/* ------------------------------------------------------------------------------------------ one number --- */

/* Never NaN, so that fmax may collect it. */
static double distance(double got, double want)
{
    if (got == want)
        return 0;  /* equal infinities, too */
    double d = fabs(got - want);
    return isnan(d) ? INFINITY : d;
}

static double value_error(double got, double want)
{
    double d = distance(got, want);
    return d == 0 ? 0 : isfinite(want) ? d / (fabs(want) + 0.5) : INFINITY;
}

/* Half a unit in the last place; for f16 at least that of its subnormal numbers. */
static double rounding(int dtype, double x)
{
    switch (dtype) {
    case SKL_BF16: return fabs(x) * 0x1p-8;
    case SKL_F16: return fmax(fabs(x) * 0x1p-11, 0x1p-25);
    default: return 0;
    }
}

/* 'rows' rows of a contiguous gradient, from row 'first'. */
static double grad_error(const struct skl_tensor *got, int64_t first, int64_t rows, int64_t width, const double *want)
{
    double worst = 0;
    for (int64_t row = 0; row < rows; row++) {
        double error = 0, largest = 0;
        for (int64_t k = 0; k < width; k++) {
            double w = want[row * width + k], g = read_element(got->dtype, got->data, (first + row) * width + k);
            error = fmax(error, distance(g, w) - rounding(got->dtype, w));
            largest = fmax(largest, fabs(w));
        }
        worst = fmax(worst, error == 0 ? 0 : error / largest);
    }
    return worst;
}

static double row_errors(const struct skl_tensor *got, const double *want, int64_t rows)
{
    double worst = 0;
    for (int64_t row = 0; got->data && row < rows; row++)
        worst = fmax(worst, value_error(((const float *)got->data)[row], want[row]));
    return worst;
}

/* --------------------------------------------------------------------------------------------- all rows --- */

static int64_t elements(const struct skl_tensor *t)
{
    int64_t n = 1;
    for (int k = 0; k < t->ndim; k++)
        n *= t->shape[k];
    return n;
}

static double *doubles(int64_t n)
{
    return get_memory((size_t)n * sizeof(double));
}

static void expected_side(const struct skl_side *side, const struct skl_grads *wanted,
                          struct skl_reference_grads *grads)
{
    grads->a = wanted->a.data ? doubles(elements(&side->a)) : NULL;
    grads->b = wanted->b.data ? doubles(elements(&side->b)) : NULL;
    grads->bias = wanted->bias.data ? doubles(elements(&side->bias)) : NULL;
}

void expected_make(const struct job *job, struct skl_reference *expected)
{
    int64_t rows = skl_reference_rows(&job->problem);
    *expected = (struct skl_reference){.loss = doubles(rows), .lse_s = doubles(rows), .lse_t = doubles(rows)};
    expected->kl_s = doubles(rows), expected->kl_t = doubles(rows);
    expected_side(&job->problem.s, &job->all.s, &expected->s);
    expected_side(&job->problem.t, &job->all.t, &expected->t);
    if (skl_reference_run(&job->problem, expected)) {
        fprintf(stderr, "streamkl: no memory for the reference\n");
        exit(EXIT_WRONG);
    }
}

void expected_free(struct skl_reference *e)
{
    double *all[] = {e->loss, e->lse_s, e->lse_t, e->kl_s, e->kl_t, e->s.a, e->s.b, e->s.bias, e->t.a, e->t.b, e->t.bias};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        free(all[k]);
}

static void add_side(struct errors *e, const struct skl_grads *got, const struct skl_reference_grads *want)
{
    if (want->a) {
        int64_t width = got->a.shape[got->a.ndim - 1];
        e->a = fmax(e->a, grad_error(&got->a, 0, elements(&got->a) / width, width, want->a));
    }
    if (want->b) {
        int64_t width = got->b.shape[got->b.ndim - 1];
        e->b = fmax(e->b, grad_error(&got->b, 0, elements(&got->b) / width, width, want->b));
    }
    if (want->bias)
        e->b = fmax(e->b, grad_error(&got->bias, 0, 1, elements(&got->bias), want->bias));
}

struct errors verify_all(const struct job *job, const struct skl_reference *expected, int gradients)
{
    int64_t rows = skl_reference_rows(&job->problem);
    struct errors e = {0};
    e.loss = fmax(value_error(job->reduced, expected->value), row_errors(&job->value.loss, expected->loss, rows));
    e.loss = fmax(e.loss, row_errors(&job->value.kl_s, expected->kl_s, rows));
    e.loss = fmax(e.loss, row_errors(&job->value.kl_t, expected->kl_t, rows));
    e.lse = row_errors(&job->value.lse_s, expected->lse_s, rows);
    e.lse = fmax(e.lse, row_errors(&job->value.lse_t, expected->lse_t, rows));
    if (gradients) {
        add_side(&e, &job->all.s, &expected->s);
        add_side(&e, &job->all.t, &expected->t);
    }
    return e;
}

/* ----------------------------------------------------------------------------------------- sampled rows --- */

struct errors verify_sampled(const struct job *job, int64_t rows, int gradients)
{
    const struct skl_problem *p = &job->problem;
    int64_t all = skl_reference_rows(p), dim = job->work.dim_s;
    struct skl_reference_row want = {.grad_a_s = gradients && job->all.s.a.data ? doubles(dim) : NULL};
    struct errors worst = {0};
    rows = rows < all ? rows : all;
    for (int64_t k = 0; k < rows; k++) {
        int64_t row = rows > 1 ? k * (all - 1) / (rows - 1) : all - 1;  /* the first, the last and some between */
        if (skl_reference_row(p, row, skl_reference_upstream(p, row), &want))
            want.loss = NAN;
        struct errors e = {0};
        e.loss = value_error(((float *)job->value.loss.data)[row], want.loss);
        e.lse = value_error(((float *)job->value.lse_s.data)[row], want.lse_s);
        e.lse = fmax(e.lse, value_error(((float *)job->value.lse_t.data)[row], want.lse_t));
        if (want.grad_a_s)
            e.a = grad_error(&job->all.s.a, row, 1, dim, want.grad_a_s);
        errors_add(&worst, &e);
    }
    free(want.grad_a_s);
    return worst;
}
