/* SPDX-License-Identifier: Apache-2.0
 *
 * What f32 code that stores everything ("eager") computes from a row's logits: log-softmax by the maximum, forward KL
 * and its dz. The promises about large logits and offsets are made relative to its errors.
 */
#ifndef TEST_EAGER_H
#define TEST_EAGER_H

#include "cases.h"

enum { EAGER_COLUMNS = 500 };

struct eager {
    float loss, dz[2][EAGER_COLUMNS];
};

static void log_softmax(int n, const float *z, float *log_p)
{
    float m = z[0], l = 0;
    for (int j = 1; j < n; j++) m = z[j] > m ? z[j] : m;
    for (int j = 0; j < n; j++) l += expf(z[j] - m);
    for (int j = 0; j < n; j++) log_p[j] = z[j] - m - logf(l);
}

/* z of the student and the teacher, [S] and [T]. */
static void run_eager(int n, float z[2][EAGER_COLUMNS], struct eager *e)
{
    static float log_p[2][EAGER_COLUMNS];
    for (int side = 0; side < 2; side++) log_softmax(n, z[side], log_p[side]);
    e->loss = 0;
    for (int j = 0; j < n; j++) e->loss += expf(log_p[T][j]) * (log_p[T][j] - log_p[S][j]);
    for (int j = 0; j < n; j++) {
        e->dz[S][j] = expf(log_p[S][j]) - expf(log_p[T][j]);
        e->dz[T][j] = expf(log_p[T][j]) * (log_p[T][j] - log_p[S][j] - e->loss);
    }
}

/* Squares of the errors of loss and of both sides' gradients with respect to the logits (the bias's), ours and eager's,
 * and of what is true. */
enum { OURS, EAGER, TRUE_VALUE };
struct squares {
    double loss[3], dz[2][3]; /* [side][whose] */
};

static double square(double x)
{
    return x * x;
}

static void add_squares(double want, double ours, double eager, double sum[3])
{
    sum[OURS] += square(ours - want), sum[EAGER] += square(eager - want), sum[TRUE_VALUE] += square(want);
}

/* Root mean squares over the rows. 'size' is that of the logits, in whose units loss and the teacher's dz are: below
 * their f32 rounding there is nothing to compare. 'dx_rounding' is that of each dx before it is summed up. The room is
 * for chance: both round the same logits in another order. */
static void check_squares(const struct squares *sum, int rows, double size, double dx_rounding)
{
    const double room = 1.25, rounding = 0x1p-22, floor[3] = {rounding * size, rounding, rounding * size};
    const double *each[3] = {sum->loss, sum->dz[S], sum->dz[T]};
    for (int k = 0; k < 3; k++) {
        double ours = sqrt(each[k][OURS] / rows), eager = sqrt(each[k][EAGER] / rows);
        double rounded = k ? dx_rounding * sqrt(each[k][TRUE_VALUE] / rows) : 0;
        CHECK(ours <= room * eager + floor[k] + rounded, "%s is off by %g, eager's by %g",
              k == 0   ? "loss"
              : k == 1 ? "the student's dz"
                       : "the teacher's dz",
              ours, eager);
    }
}

#endif
