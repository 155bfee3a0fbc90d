/* SPDX-License-Identifier: Apache-2.0 */
#include "oracle.h"

#include "distribution.h"
#include "oracle_lists.h"

#include <stdlib.h>

/* -------------------------------------------------------------------------------------------- divergences --- */

static double largest_used(const struct distribution *P, const struct distribution *Q, int64_t n)
{
    double most = 0;
    for (int64_t j = 0; j < n; j++)
        if (P->p[j] + Q->p[j] > 1e-12)
            most = larger(most, larger(P->delta[j], Q->delta[j]));
    return most;
}

/* Rounded LSEs: probabilities no longer sum to 1, and log-ratios are off by a constant. */
static double unnormalised(const struct distribution *P, const struct distribution *Q, double K)
{
    return (P->rounded + Q->rounded) * (1 + fabs(K));
}

/* How far log p and log q may be off, together. */
static double log_error(const struct distribution *P, const struct distribution *Q, int64_t j)
{
    return P->delta[j] + P->dlse + P->rounded + Q->delta[j] + Q->dlse + Q->rounded;
}

/* How far a tile's sum may be off, relative to it: f32 additions of up to 192 columns, each off by at most u of the
 * sum, at random. */
static double additions(int64_t n)
{
    return U * sqrt(smaller((double)n, 192));
}

/* KL(P || Q); the loss's bound goes to 'bound'. Its noise has what is left where one column has nearly all the mass:
 * log l of both sides is off by 3 u, which is 2^x, and by the additions. */
static double kl(struct distribution *P, struct distribution *Q, int64_t n, double *bound)
{
    double K = 0, linear = 0, whole = 0, noise = 6 * U + additions(n);
    for (int64_t j = 0; j < n; j++) K += times(P->p[j], P->lp[j] - Q->lp[j]);
    for (int64_t j = 0; j < n; j++) {
        double p = P->p[j], q = Q->p[j], w = P->lp[j] - Q->lp[j];
        linear += times(p * P->delta[j], fabs(w - K)) + fabs(q - p) * Q->delta[j];
        whole += times(P->dp[j], fabs(w)) + times(p + P->dp[j], log_error(P, Q, j));
        noise += 3 * U * (times(p, fabs(P->lp[j])) + times(p, fabs(Q->lp[j]))) + TINY * fabs(w);
    }
    *bound = spread_error(linear, whole, largest_used(P, Q, n)) + noise + 2 * U * fabs(K) + unnormalised(P, Q, K);
    for (int64_t j = 0; j < n; j++) {
        double p = P->p[j], q = Q->p[j], w = P->lp[j] - Q->lp[j], sizes = fabs(P->lp[j]) + fabs(Q->lp[j]) + fabs(K);
        Q->dz[j] = q - p;
        Q->ddz[j] = P->dp[j] + Q->dp[j] + 3 * U * (p + q);
        Q->factor[j] = 1;
        P->dz[j] = times(p, w - K);
        P->ddz[j] = times(P->dp[j], fabs(w - K)) + times(p + P->dp[j], log_error(P, Q, j) + *bound) +
                    times(4 * U * p, sizes);
        P->factor[j] = fabs(w - K);
    }
    return K;
}

/* log of beta p + (1 - beta) q */
static double log_mixture(double beta, double lp, double lq)
{
    double x = log(beta) + lp, y = log1p(-beta) + lq, top = larger(x, y);
    return top + log1p(exp(smaller(x, y) - top));
}

/* KL(x || m) of one of JSD's two sides, X, whose share of the mixture is 'share', and its bound. Unlike a KL of one
 * sweep its terms are probabilities, divided by an l from the sweep before: the additions in l do not cancel against
 * those in the sum, and K is off by theirs times itself, beside the noise that a KL has. Where the sides hardly
 * overlap, K = -log share for every x, nothing else is left, and log_softmax in f32 is off by as much: with a share of
 * 0.001 and 20 columns by up to 7 u of K in 15,000 rows, with 192 by 10 u. */
static double kl_mixture(double share, double beta, const struct distribution *X, const struct distribution *Y,
                         const struct distribution *P, const struct distribution *Q, int64_t n, double *bound)
{
    double K = 0, mean_f = 0, mean_h = 0, linear = 0, whole = 0, noise = 6 * U + additions(n);
    for (int64_t j = 0; j < n; j++) {
        double lm = log_mixture(beta, P->lp[j], Q->lp[j]), part = share * exp(X->lp[j] - lm);
        K += times(X->p[j], X->lp[j] - lm);
        mean_f += times(X->p[j], X->lp[j] - lm - part);
        mean_h -= (1 - share) * exp(X->lp[j] + Y->lp[j] - lm);
    }
    for (int64_t j = 0; j < n; j++) {
        double lm = log_mixture(beta, P->lp[j], Q->lp[j]), w = X->lp[j] - lm, part = share * exp(w),
               off = log_error(P, Q, j);
        double rest = (1 - share) * exp(Y->lp[j] - lm),
               dw = off * (rest == 0 ? 0 : smaller(1, rest * exp(smaller(off, 700))));
        linear += times(X->p[j] * X->delta[j], fabs(w - part - mean_f));
        linear += fabs(-(1 - share) * exp(X->lp[j] + Y->lp[j] - lm) - Y->p[j] * mean_h) * Y->delta[j];
        whole += times(X->dp[j], fabs(w)) + times(X->p[j] + X->dp[j], dw);
        noise += 3 * U * (times(X->p[j], fabs(X->lp[j])) + times(X->p[j], fabs(lm))) + TINY * fabs(w);
    }
    *bound = spread_error(linear, whole, largest_used(P, Q, n)) + noise + (2 * U + additions(n)) * fabs(K) +
             unnormalised(P, Q, K);
    return K;
}

static void mixture_gradient(double share, double beta, double K, double dK, struct distribution *X,
                             const struct distribution *Y, const struct distribution *P, const struct distribution *Q,
                             int64_t n)
{
    for (int64_t j = 0; j < n; j++) {
        double lm = log_mixture(beta, P->lp[j], Q->lp[j]), w = X->lp[j] - lm, off = log_error(P, Q, j);
        double rest = (1 - share) * exp(Y->lp[j] - lm),
               dw = off * (rest == 0 ? 0 : smaller(1, rest * exp(smaller(off, 700))));
        X->dz[j] = share * times(X->p[j], w - K);
        X->ddz[j] = share * (times(X->dp[j], fabs(w - K)) + times(X->p[j] + X->dp[j], dw + dK) +
                             times(4 * U * X->p[j], fabs(X->lp[j]) + fabs(lm) + fabs(K) + 1));
        X->factor[j] = fabs(w - K);
    }
}

/* JSD's kl_s and kl_t and the loss, each with its bound: result[0..2], bound[0..2] = KL(q||m), KL(p||m), loss. */
static void jsd(double beta, struct distribution *Q, struct distribution *P, int64_t n, double result[3],
                double bound[3])
{
    double linear = 0, whole;
    result[0] = kl_mixture(1 - beta, beta, Q, P, P, Q, n, &bound[0]);
    result[1] = kl_mixture(beta, beta, P, Q, P, Q, n, &bound[1]);
    mixture_gradient(1 - beta, beta, result[0], bound[0], Q, P, P, Q, n);
    mixture_gradient(beta, beta, result[1], bound[1], P, Q, P, Q, n);
    result[2] = beta * result[1] + (1 - beta) * result[0];
    whole = beta * bound[1] + (1 - beta) * bound[0];
    for (int64_t j = 0; j < n; j++) linear += times(fabs(P->dz[j]), P->delta[j]) + times(fabs(Q->dz[j]), Q->delta[j]);
    bound[2] = smaller(whole, spread_error(linear, whole, largest_used(P, Q, n)) + 3 * U * (2 + log((double)n)) +
                                  unnormalised(P, Q, result[2]));
}

/* -------------------------------------------------------------------------------------------------- rows --- */

static int flat(const double *z, int64_t n)
{
    for (int64_t j = 1; j < n; j++)
        if (z[j] != z[0])
            return 0;
    return 1;
}

static void put(struct oracle *o, int which, int64_t row, double want, double bound)
{
    o->row[which].want[row] = want;
    o->row[which].bound[row] = bound + U * fabs(want) + TINY;
}

/* -sum p log p */
static void entropy(struct oracle *o, int which, int64_t row, const struct distribution *d, int64_t n)
{
    double H = 0, bound = 8 * U;
    for (int64_t j = 0; j < n; j++) {
        double size = times(d->p[j], fabs(d->lp[j]));
        H += size;
        bound += times(d->dp[j], fabs(d->lp[j])) + times(d->p[j] + d->dp[j], d->delta[j] + d->dlse) + 8 * U * size;
    }
    put(o, which, row, H, bound);
}

/* What labels add to a row: the student's cross-entropy at temperature 1, with smoothing s and z_loss c
 *     CE = (1 - s) (LSE - z[y]) + s (LSE - mean z) + c LSE^2        dz = p (1 + 2 c LSE) - (1 - s) 1[y] - s / n
 * each sum off by its terms' errors, and 4 u of their sizes. The divergence's own dz are multiplied by kl_weight. */
static void label_row(const struct call *c, int64_t row, struct distribution d[2], struct distribution at_1[2],
                      double K, double dK, struct oracle *o)
{
    const struct skl_labels *l = &c->labels;
    struct distribution *E = &at_1[STUDENT];
    int64_t n = c->hi[row] - c->lo[row], y = c->label[row] - c->lo[row];
    double mean = 0, size = 0, dmean = 0, s = l->smoothing, kw = l->kl_weight, lse, ce, dce;
    for (int i = 0; i < 2; i++)
        for (int64_t j = 0; j < n; j++) {
            d[i].dz[j] *= kw, d[i].ddz[j] = times(kw, d[i].ddz[j] + 2 * U * fabs(d[i].dz[j]));
            d[i].factor[j] = larger(1, kw) * (1 + d[i].factor[j]); /* it may underflow before or after */
        }
    if (c->label[row] < 0) {
        put(o, LOSS, row, kw * K, times(kw, dK) + 2 * U * fabs(kw * K));
        return;
    }
    for (int i = 0; i < 2; i++) {
        distribution_logits(c, i, row, 1, &at_1[i]);
        distribution_probabilities(&at_1[i], n, 0);
        double z = at_1[i].z[y];
        put(o, LOGPROB_S + i, row, at_1[i].lp[y],
            at_1[i].dlse + at_1[i].delta[y] + 4 * U * (1 + fabs(z) + fabs(at_1[i].lse)));
    }
    for (int64_t j = 0; j < n; j++)
        mean += E->z[j] / (double)n, size += fabs(E->z[j]) / (double)n, dmean += E->delta[j] / (double)n;
    lse = E->lse;
    ce = (1 - s) * -E->lp[y] + s * (lse - mean) + l->z_loss * lse * lse;
    dce = E->dlse + (1 - s) * E->delta[y] + s * dmean + 2 * l->z_loss * fabs(lse) * E->dlse +
          4 * U * (2 + fabs(lse) + fabs(E->z[y]) + s * size * sqrt((double)n) + l->z_loss * lse * lse);
    put(o, CE, row, ce, dce);
    put(o, LOSS, row, kw * K + l->weight * ce,
        times(kw, dK) + l->weight * dce + 2 * U * (fabs(kw * K) + fabs(l->weight * ce)));
    for (int64_t j = 0; j < n; j++) {
        double by = 1 + 2 * l->z_loss * lse, hot = (j == y ? 1 - s : 0) + s / (double)n;
        E->dz[j] = l->weight * (E->p[j] * by - hot);
        E->ddz[j] = l->weight * (times(E->dp[j], fabs(by)) + 2 * l->z_loss * E->dlse * (E->p[j] + E->dp[j]) +
                                 4 * U * (E->p[j] * fabs(by) + hot));
        E->factor[j] = l->weight * fabs(by);
    }
}

/* The error of a product with x. Where nothing is known of the other factor it may be infinite, and 0 times that is
 * NaN. */
static double product_error(double off, double x)
{
    return off == INFINITY ? INFINITY : times(off, fabs(x));
}

/* How often a sum over the dimensions first .. of an operand, but its last, meets the same entries, through strides of
 * 0. Terms that are alike are rounded alike: of n terms with k copies of each the errors add up to sqrt(n k), not
 * sqrt n, in any chain of f32 additions. */
static double copies(const struct skl_tensor *t, int first)
{
    double k = 1;
    for (int i = first; i < t->ndim - 1; i++) k *= t->stride[i] == 0 ? larger((double)t->shape[i], 1) : 1;
    return k;
}

/* Tiles multiply dz of bf16 operands as the sum of two bf16 numbers: half a unit of the second one's last place is
 * lost, 2^-18 of dz, and as much again where the first was cut off and not rounded. */
static double lost_in_parts(const struct call *c)
{
    const struct skl_problem *p = &c->p;
    const struct skl_tensor *operands[] = {&p->s.a, &p->s.b, &p->t.a, &p->t.b};
    for (int i = 0; i < 4; i++)
        if (operands[i]->data && operands[i]->dtype != SKL_BF16)
            return 0;
    return (p->isa == SKL_ISA_BEST || p->isa == SKL_ISA_AMX) && skl_isa_available(SKL_ISA_AMX) ? 0x1p-17 : 0;
}

/* dz into the gradients of one side, all times g. skip_below may leave out entries up to it. */
static void add_gradients(const struct call *c, int side, int64_t row, const struct distribution *d, struct oracle *o)
{
    const struct side *s = &c->side[side];
    struct numbers *ga = &o->grad[3 * side + GRAD_A], *gb = &o->grad[3 * side + GRAD_B],
                   *gc = &o->grad[3 * side + GRAD_BIAS];
    double g = c->g[row], n = (double)(c->hi[row] - c->lo[row]), skip = c->p.skip_below;
    double lose_a = U * (4 + 2 * sqrt(n * copies(&s->b.t, s->b.t.ndim - 2))),
           lose_b = U * (4 + 2 * sqrt((double)c->rows * copies(&s->a.t, 0)));
    const double *a = s->A + row * s->dim;
    lose_a += lost_in_parts(c), lose_b += lost_in_parts(c);
    for (int64_t j = c->lo[row]; j < c->hi[row]; j++) {
        int64_t k = j - c->lo[row], at = (draw_matrix(c, side, row) * s->height + j) * s->dim;
        double dx = g * times(d->dz[k], d->slope[k]);
        double off = fabs(g) * (times(d->ddz[k], fabs(d->slope[k])) + times(fabs(d->dz[k]) + d->ddz[k], d->dslope[k]));
        if (skip > 0 && fabs(times(d->dz[k], d->slope[k])) <= d->chain * (skip + d->ddz[k]))
            off += fabs(g) * d->chain * skip;
        off += TINY * (1 + d->factor[k]) * larger(1, fabs(g) * d->chain); /* dx, or what it is made of */
        for (int64_t i = 0; i < s->dim; i++) {
            ga->want[row * s->dim + i] += dx * s->B[at + i];
            ga->bound[row * s->dim + i] += product_error(off + lose_a * fabs(dx), s->B[at + i]);
            gb->want[at + i] += dx * a[i];
            gb->bound[at + i] += product_error(off + lose_b * fabs(dx), a[i]);
        }
        if (gc->n)
            gc->want[j] += dx, gc->bound[j] += off + lose_b * fabs(dx);
    }
}

static void nothing_known(struct distribution d[2], int64_t n, double bound[3])
{
    for (int64_t j = 0; j < n; j++) d[0].ddz[j] = d[1].ddz[j] = INFINITY;
    for (int i = 0; i < 3; i++) bound[i] = INFINITY;
}

static void one_row(const struct call *c, int64_t row, int lse_error, struct distribution d[2],
                    struct distribution at_1[2], struct oracle *o)
{
    struct distribution *S = &d[STUDENT], *T = &d[TEACHER];
    int64_t n = c->hi[row] - c->lo[row];
    double result[3] = {0, 0, 0}, bound[3] = {0, 0, 0};
    for (int i = 0; i < 2; i++) {
        distribution_logits(c, i, row, c->p.temperature, &d[i]);
        distribution_probabilities(&d[i], n, lse_error);
    }
    if (c->p.listed) {
        struct listed_row r = oracle_listed_row(c, row, S);
        result[2] = r.d, bound[2] = r.bound;
        put(o, M_REST, row, r.lse_rest, r.dlse_rest);
    } else if (c->p.divergence == SKL_JSD)
        jsd(c->p.beta, S, T, n, result, bound);
    else if (c->p.divergence == SKL_FORWARD_KL)
        result[2] = kl(T, S, n, &bound[2]);
    else
        result[2] = kl(S, T, n, &bound[2]);
    if (S->rounded >= 1 || T->rounded >= 1) /* an LSE in f32 that may be off by 1: probabilities mean nothing */
        nothing_known(d, n, bound);
    o->exact[row] = !c->p.labels &&
                    !c->p.listed && /* of which the cross-entropy is not 0, nor need a list be the student's */
                    (c->kind == KIND_IDENTICAL || (flat(S->z, n) && flat(T->z, n) && (c->kind == KIND_FLAT || n == 1)));
    put(o, LOSS, row, o->exact[row] ? 0 : result[2], bound[2]);
    put(o, KL_S, row, o->exact[row] ? 0 : result[0], bound[0]);
    put(o, KL_T, row, o->exact[row] ? 0 : result[1], bound[1]);
    for (int i = 0; i < 2; i++) {
        put(o, LSE_S + i, row, d[i].lse, d[i].dlse);
        put(o, M_S + i, row, d[i].lse, d[i].dlse);
        entropy(o, ENTROPY_S + i, row, &d[i], n);
    }
    put(o, KL, row, o->exact[row] ? 0 : result[2], bound[2]);
    if (c->p.labels)
        label_row(c, row, d, at_1, result[2], bound[2], o);
    o->value += c->g[row] * o->row[LOSS].want[row], o->value_bound += fabs(c->g[row]) * o->row[LOSS].bound[row];
    if (!o->exact[row] || lse_error)
        for (int i = 0; i < (c->p.listed ? 1 : 2); i++) add_gradients(c, i, row, &d[i], o);
    if (c->label[row] >= 0)
        add_gradients(c, STUDENT, row, &at_1[STUDENT], o);
}

/* ------------------------------------------------------------------------------------------------ calls --- */

static struct numbers some(int64_t n)
{
    return (struct numbers){n, distribution_room(n), distribution_room(n)};
}

struct oracle oracle_of(const struct call *c, int lse_error)
{
    struct oracle o = {.exact = calloc((size_t)c->rows + 1, sizeof(int)), .all_exact = 1};
    struct distribution d[4]; /* at the problem's temperature, and of labels at 1 */
    double *memory = distribution_room(4 * ARRAYS * c->columns);
    for (int i = 0; i < ROW_RESULTS; i++) o.row[i] = some(c->rows);
    for (int i = 0; i < 4; i++) {
        distribution_place(&d[i], memory + i * ARRAYS * c->columns, c->columns);
        if (i >= 2)
            continue;
        o.grad[3 * i + GRAD_A] = some(view_count(&c->side[i].a.t));
        o.grad[3 * i + GRAD_B] = some(view_count(&c->side[i].b.t));
        o.grad[3 * i + GRAD_BIAS] = some(c->side[i].C ? c->side[i].height : 0);
    }
    for (int64_t row = 0; row < c->rows; row++) {
        if (c->g[row] != 0) {
            one_row(c, row, lse_error, d, d + 2, &o);
        } else {
            o.exact[row] = 1;
            for (int i = 0; i < 2; i++) o.row[LSE_S + i].want[row] = o.row[M_S + i].want[row] = -INFINITY;
            o.row[M_REST].want[row] = -INFINITY;
        }
        o.all_exact &= o.exact[row];
    }
    free(memory);
    return o;
}

void oracle_free(struct oracle *o)
{
    for (int i = 0; i < ROW_RESULTS; i++) free(o->row[i].want), free(o->row[i].bound);
    for (int i = 0; i < GRADS; i++) free(o->grad[i].want), free(o->grad[i].bound);
    free(o->exact);
}
