/* SPDX-License-Identifier: Apache-2.0 */
#include "verify.h"
#include "data.h"
#include "options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct bounds bounds_on(int device)
{
    return device == SKL_CUDA ? (struct bounds){DEVICE_VALUE_BOUND, DEVICE_GRAD_BOUND}
                              : (struct bounds){VALUE_BOUND, GRAD_BOUND};
}

int errors_in_bounds(const struct errors *e, struct bounds b)
{
    return e->loss <= b.value && e->lse <= b.value && e->a <= b.grad && e->b <= b.grad;
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
        return 0; /* equal infinities, too */
    double d = fabs(got - want);
    return isnan(d) ? INFINITY : d;
}

/* 'rows' is 1 for the number of a row, the sum of the rows' weights for a weighted sum of them. */
static double value_error(double got, double want, double rows)
{
    double d = distance(got, want);
    return d == 0 ? 0 : isfinite(want) ? d / (fabs(want) + 0.5 * rows) : INFINITY;
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

/* 'rows' rows of a contiguous gradient, from row 'first'. noise[row] is granted; NULL: none. */
static double grad_error(const struct skl_tensor *got, int64_t first, int64_t rows, int64_t width, const double *want,
                         const double *noise, double bound)
{
    double worst = 0;
    for (int64_t row = 0; row < rows; row++) {
        double error = 0, largest = noise ? noise[row] / bound : 0;
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
        worst = fmax(worst, value_error(((const float *)got->data)[row], want[row], 1));
    return worst;
}

/* --------------------------------------------------------------------------------------------- all rows --- */

static int64_t elements(const struct skl_tensor *t)
{
    int64_t n = 1;
    for (int k = 0; k < t->ndim; k++) n *= t->shape[k];
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

/* ------------------------------------------------------ what rounding of the logits does to the gradients --- */

static double largest_entry(const struct skl_tensor *t)
{
    double largest = 0;
    for (int64_t k = 0; k < elements(t); k++) largest = fmax(largest, fabs(read_element(t->dtype, t->data, k)));
    return largest;
}

/* |d dz / d logits| of a column, about. 'own' is the probability on the side of the gradient, d the log-ratio. */
static double sensitivity(const struct skl_problem *p, int side, double own, double other, double d)
{
    if (p->divergence == SKL_JSD)
        return 2 * own * (side ? p->beta : 1 - p->beta);
    int first = side == (p->divergence == SKL_FORWARD_KL); /* P of KL(P || Q) */
    return first ? own * (1 + fabs(d)) : own + other;
}

/* What four roundings of the logits and LSEs do to a column's dz, squared: roundings are independent, so their squares
 * add. */
static void column_noise(const struct skl_problem *problem, int side, const struct skl_reference_row *r, double g,
                         int64_t columns, double *noise)
{
    for (int64_t j = 0; j < columns; j++) {
        double p = exp(r->log_p[j]), q = exp(r->log_q[j]), log_p = p > 0 ? r->log_p[j] : 0,
               log_q = q > 0 ? r->log_q[j] : 0;
        double size = 1 + fabs(r->lse_s) + fabs(r->lse_t) + fabs(log_p) + fabs(log_q);
        double dz = sensitivity(problem, side, side ? p : q, side ? q : p, log_q - log_p);
        dz *= p + q > 0 ? 4 * 0x1p-24 * g * size : 0;
        noise[j] = dz * dz;
    }
}

/* A device rounds dx to the dtype of the operand that it multiplies. Squared, as all noise is. */
static double device_rounding(int dtype, double dx)
{
    double unit = dtype == SKL_BF16 ? 0x1p-8 : dtype == SKL_F16 ? 0x1p-11 : 0;
    return unit * dx * unit * dx;
}

/* dx = slope dz, da = sum_j dx b[j], db[j] = sum_rows dx a. */
static void add_noise(const struct job *job, struct expected *e, int side, int64_t row, const double *noise,
                      const double *grad_x, const double largest[2])
{
    int device = job->work.device == SKL_CUDA;
    const struct skl_side *s = side ? &job->problem.t : &job->problem.s;
    int64_t rows = job->work.rows, heads = job->work.heads, height = s->b.shape[s->b.ndim - 2], matrix = 0;
    double slope = (job->work.use == SKL_ATTENTION ? 1 / sqrt((double)s->a.shape[3]) : 1) / job->work.temperature;
    if (job->work.use == SKL_ATTENTION)
        matrix = row / rows / heads * s->b.shape[1] + row / rows % heads / (heads / s->b.shape[1]);
    for (int64_t j = 0; j < job->work.cols; j++) {
        double dx = slope * slope * noise[j]; /* squared; a device's exponentials are some four times less exact */
        if (device)
            dx = 16 * dx + device_rounding(s->b.dtype, grad_x[j]);
        e->noise_a[side][row] += dx * largest[1] * largest[1];
        e->noise_b[side][matrix * height + j] += dx * largest[0] * largest[0];
        e->noise_bias[side] += dx;
    }
}

static void take_roots(double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] = sqrt(x[i]);
}

static void make_noise(const struct job *job, struct expected *e)
{
    const struct skl_problem *p = &job->problem;
    int64_t rows = skl_reference_rows(p), cols = job->work.cols;
    double *space = doubles(4 * cols);
    for (int side = 0; side < 2; side++) {
        const struct skl_side *s = side ? &p->t : &p->s;
        double largest[2] = {largest_entry(&s->a), largest_entry(&s->b)};
        e->noise_a[side] = doubles(rows);
        e->noise_b[side] = doubles(elements(&s->b) / s->b.shape[s->b.ndim - 1]);
        for (int64_t row = 0; row < rows; row++) {
            struct skl_reference_row r = {.log_p = space + cols, .log_q = space + 2 * cols};
            *(side ? &r.grad_x_t : &r.grad_x_s) = space + 3 * cols;
            double g = skl_reference_upstream(p, row);
            if (g == 0 || skl_reference_row(p, row, g, &r))
                continue;
            column_noise(p, side, &r, g, cols, space);
            add_noise(job, e, side, row, space, space + 3 * cols, largest);
        }
        take_roots(e->noise_a[side], rows);
        take_roots(e->noise_b[side], elements(&s->b) / s->b.shape[s->b.ndim - 1]);
        take_roots(&e->noise_bias[side], 1);
    }
    free(space);
}

void expected_make(const struct job *job, struct expected *expected)
{
    int64_t rows = skl_reference_rows(&job->problem);
    struct skl_reference *r = &expected->reference;
    *expected = (struct expected){0};
    r->loss = doubles(rows), r->lse_s = doubles(rows), r->lse_t = doubles(rows);
    r->kl_s = doubles(rows), r->kl_t = doubles(rows);
    expected_side(&job->problem.s, &job->all.s, &r->s);
    expected_side(&job->problem.t, &job->all.t, &r->t);
    if (skl_reference_run(&job->problem, r)) {
        fprintf(stderr, "streamkl: no memory for the reference\n");
        exit(EXIT_WRONG);
    }
    make_noise(job, expected);
}

void expected_free(struct expected *expected)
{
    struct skl_reference *e = &expected->reference;
    double *all[] = {e->loss, e->lse_s,  e->lse_t, e->kl_s, e->kl_t,  e->s.a,
                     e->s.b,  e->s.bias, e->t.a,   e->t.b,  e->t.bias};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) free(all[k]);
    for (int side = 0; side < 2; side++) {
        free(expected->noise_a[side]);
        free(expected->noise_b[side]);
    }
}

static void add_side(struct errors *e, const struct skl_grads *got, const struct expected *expected, int side,
                     double bound)
{
    const struct skl_reference_grads *want = side ? &expected->reference.t : &expected->reference.s;
    if (want->a) {
        int64_t width = got->a.shape[got->a.ndim - 1], rows = elements(&got->a) / width;
        e->a = fmax(e->a, grad_error(&got->a, 0, rows, width, want->a, expected->noise_a[side], bound));
    }
    if (want->b) {
        int64_t width = got->b.shape[got->b.ndim - 1], rows = elements(&got->b) / width;
        e->b = fmax(e->b, grad_error(&got->b, 0, rows, width, want->b, expected->noise_b[side], bound));
    }
    if (want->bias)
        e->b = fmax(e->b,
                    grad_error(&got->bias, 0, 1, elements(&got->bias), want->bias, &expected->noise_bias[side], bound));
}

struct errors verify_all(const struct job *job, const struct expected *expected, int gradients)
{
    const struct skl_reference *want = &expected->reference;
    int64_t rows = skl_reference_rows(&job->problem);
    struct errors e = {0};
    double weights = 0;
    for (int64_t row = 0; row < rows; row++) weights += skl_reference_upstream(&job->problem, row);
    e.loss = fmax(value_error(job->reduced, want->value, weights), row_errors(&job->value.loss, want->loss, rows));
    e.loss = fmax(e.loss, row_errors(&job->value.kl_s, want->kl_s, rows));
    e.loss = fmax(e.loss, row_errors(&job->value.kl_t, want->kl_t, rows));
    e.lse = row_errors(&job->value.lse_s, want->lse_s, rows);
    e.lse = fmax(e.lse, row_errors(&job->value.lse_t, want->lse_t, rows));
    if (gradients) {
        double bound = bounds_on(job->work.device).grad;
        add_side(&e, &job->all.s, expected, 0, bound);
        add_side(&e, &job->all.t, expected, 1, bound);
    }
    return e;
}

/* ----------------------------------------------------------------------------------------- sampled rows --- */

/* What that rounding may do to an entry of a row of the student's a. */
static double sampled_noise(const struct skl_problem *p, const double *dx, double largest)
{
    double sum = 0;
    for (int64_t j = 0; j < skl_reference_columns(p); j++) sum += device_rounding(p->s.b.dtype, dx[j]);
    return sqrt(sum) * largest;
}

struct errors verify_sampled(const struct job *job, int64_t rows, int gradients)
{
    const struct skl_problem *p = &job->problem;
    int64_t all = skl_reference_rows(p), dim = job->work.dim_s;
    int device = job->work.device == SKL_CUDA && gradients;
    double largest = device ? largest_entry(&p->s.b) : 0, noise = 0;
    struct skl_reference_row want = {.grad_a_s = gradients && job->all.s.a.data ? doubles(dim) : NULL};
    want.grad_x_s = device ? doubles(skl_reference_columns(p)) : NULL;
    struct errors worst = {0};
    rows = rows < all ? rows : all;
    for (int64_t k = 0; k < rows; k++) {
        int64_t row = rows > 1 ? k * (all - 1) / (rows - 1) : all - 1; /* the first, the last and some between */
        if (skl_reference_row(p, row, skl_reference_upstream(p, row), &want))
            want.loss = NAN;
        struct errors e = {0};
        e.loss = value_error(((float *)job->value.loss.data)[row], want.loss, 1);
        e.lse = value_error(((float *)job->value.lse_s.data)[row], want.lse_s, 1);
        e.lse = fmax(e.lse, value_error(((float *)job->value.lse_t.data)[row], want.lse_t, 1));
        if (device)
            noise = sampled_noise(p, want.grad_x_s, largest);
        if (want.grad_a_s)
            e.a = grad_error(&job->all.s.a, row, 1, dim, want.grad_a_s, &noise, bounds_on(job->work.device).grad);
        errors_add(&worst, &e);
    }
    free(want.grad_a_s);
    free(want.grad_x_s);
    return worst;
}
