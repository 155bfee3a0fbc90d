/* SPDX-License-Identifier: Apache-2.0 */
#include "distribution.h"

#include <stdlib.h>

double *distribution_room(int64_t n)
{
    double *x = calloc((size_t)n + 1, sizeof *x);
    if (!x)
        abort();
    return x;
}

void distribution_place(struct distribution *d, double *at, int64_t n)
{
    double **array[ARRAYS] = {&d->z,     &d->delta,  &d->lp, &d->p,   &d->dp,
                              &d->slope, &d->dslope, &d->dz, &d->ddz, &d->factor};
    for (int k = 0; k < ARRAYS; k++) *array[k] = at + k * n;
}

/* ------------------------------------------------------------------------------------------------- logits --- */

static void cap(double c, double T, double x, double dx, double scale, struct distribution *d, int64_t j)
{
    double v = scale * x / c, dv = fabs(scale) * dx / c + 2 * U * fabs(v), t = tanh(v), far = fabs(v);
    double dt = larger(tanh(far + dv) - tanh(far), tanh(far) - tanh(far - dv));
    d->z[j] = c * t / T;
    d->delta[j] = c / T * dt + 4 * U * fabs(d->z[j]);
    d->slope[j] = scale / T * (1 - t * t);
    d->dslope[j] = fabs(scale) / T * (2 * fabs(t) * (dt + 4 * U) + 4 * U);
}

void distribution_logits(const struct call *c, int side, int64_t row, double T, struct distribution *d)
{
    const struct side *s = &c->side[side];
    const struct skl_side *o = side == STUDENT ? &c->p.s : &c->p.t;
    double dim = (double)s->dim;
    double scale = draw_scale(c, side);
    d->chain = fabs(scale) / T;
    const double *a = s->A + row * s->dim, *b = s->B + (draw_matrix(c, side, row) * s->height + c->lo[row]) * s->dim;
    for (int64_t j = 0; j < c->hi[row] - c->lo[row]; j++, b += s->dim) {
        double x = 0, size = 0;
        for (int64_t k = 0; k < s->dim; k++) {
            double term = a[k] * b[k];
            x += term, size += fabs(term);
        }
        double dx = U * 2 * (1 + sqrt(dim)) * size;
        x += s->C ? s->C[c->lo[row] + j] : 0;
        dx += s->C ? U * (fabs(x) + fabs(s->C[c->lo[row] + j])) : 0;
        if (o->softcap > 0) {
            cap(o->softcap, T, x, dx, scale, d, j);
            continue;
        }
        d->z[j] = scale * x / T;
        d->delta[j] = fabs(scale) / T * dx + 2 * U * fabs(d->z[j]);
        d->slope[j] = scale / T;
        d->dslope[j] = 2 * U * fabs(d->slope[j]);
    }
}

/* -------------------------------------------------------------------------------------------- probability --- */

double distribution_logistic(double x)
{
    return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x));
}

static double log_sum(const double *x, int64_t n, int64_t without)
{
    double top = -INFINITY, sum = 0;
    for (int64_t j = 0; j < n; j++) top = j != without && x[j] > top ? x[j] : top;
    for (int64_t j = 0; j < n && top > -INFINITY; j++) sum += j != without ? exp(x[j] - top) : 0;
    return top + log(sum);
}

/* All relative to the largest logit: ties of logits of 1e30 would be lost in an LSE of that size. */
void distribution_probabilities(struct distribution *d, int64_t n, int rounded)
{
    int64_t first = 0;
    double most = 0, *z = distribution_room(n), *moved = distribution_room(n);
    for (int64_t j = 0; j < n; j++) first = d->z[j] > d->z[first] ? j : first;
    for (int64_t j = 0; j < n; j++) {
        z[j] = d->z[j] - d->z[first];
        d->delta[j] += U * (3 - z[j]);
        most = larger(most, d->delta[j]);
        moved[j] = z[j] + d->delta[j];
    }
    double sum = log_sum(z, n, -1), others = n > 1 ? log_sum(z, n, first) : -INFINITY;
    d->lse = d->z[first] + sum;
    d->dlse = larger(log_sum(moved, n, -1) - sum, 0);
    d->rounded = rounded ? 2 * U * fabs(d->lse) + d->dlse : 0;
    for (int64_t j = 0; j < n; j++) {
        double lp = z[j] - sum, p = exp(lp), off = d->delta[j] + d->dlse + d->rounded, s = d->delta[j] + most;
        double odds = z[j] - (j == first ? others : sum + log1p(-p)), at = distribution_logistic(odds);
        double odds_move = larger(distribution_logistic(odds + s) - at, at - distribution_logistic(odds - s));
        d->lp[j] = lp, d->p[j] = p, d->dp[j] = p * expm1(off);
        if (p == 0 && off > 0)
            d->dp[j] = exp(smaller(lp + off, 0));
        if (!rounded)
            d->dp[j] = smaller(d->dp[j], n == 1 ? 0 : odds_move + 1e-15 * p);
    }
    free(z), free(moved);
}
