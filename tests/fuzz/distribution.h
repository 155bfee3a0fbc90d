/* SPDX-License-Identifier: Apache-2.0
 * One side of one row in double, and how far off f32 may be with it: see oracle.h for the bounds. */
#ifndef FUZZ_DISTRIBUTION_H
#define FUZZ_DISTRIBUTION_H

#include "draw.h"

#define U 0x1p-24
#define TINY 0x1p-125 /* what underflows may be lost */

struct distribution {
    double *z, *delta;      /* logits and their errors */
    double *lp, *p, *dp;    /* log-probabilities, probabilities, errors of the probabilities */
    double *slope, *dslope; /* dz/dx and its error */
    double *dz, *ddz;       /* gradient of the loss, not yet multiplied by g */
    double *factor;         /* what an exponential that has underflowed to 0 would have been multiplied by */
    double lse, dlse;
    double rounded; /* how far off an LSE may be that was rounded to f32 before probabilities were made of it */
    double chain;   /* scale / T: the slope without a softcap */
};

/* Memory for n columns, all 0: 'at' is that of all arrays. */
enum { ARRAYS = 10 };
void distribution_place(struct distribution *d, double *at, int64_t n);
double *distribution_room(int64_t n); /* calloc'd */

/* z, delta, slope, dslope and chain of the columns that a row sees, at temperature T. */
void distribution_logits(const struct call *c, int side, int64_t row, double T, struct distribution *d);
/* All others, from z and delta. */
void distribution_probabilities(struct distribution *d, int64_t n, int rounded);

double distribution_logistic(double x);

static inline double larger(double x, double y)
{
    return x > y ? x : y;
}

static inline double smaller(double x, double y)
{
    return x < y ? x : y;
}

/* 0 times infinity is 0 here: what has no mass does not count. */
static inline double times(double x, double y)
{
    return x == 0 || y == 0 ? 0 : x * y;
}

/* Sensitivities to single logits hold while errors are small; where they are not, all that changes counts. 'used' is
 * the largest error of a logit that has any mass. */
static inline double spread_error(double linear, double whole, double used)
{
    return used < 0.01 ? smaller(1.25 * linear + 8 * used * whole, 1.25 * whole) : whole;
}

#endif
