/* SPDX-License-Identifier: Apache-2.0 */
#include "bounds.h"

#include "divergence.h"
#include "labels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of a logit, of the LSE, of the LSE that a backward was given; and the multiple of the root of the sum of squares. */
static const double ROUNDINGS = 3;

/* The rounding of a sum of D products grows as sqrt(D); up to D = 64 the constants have it in them. */
static double growth_of(const struct kit_fixture *f)
{
    return fmax(1, sqrt((double)(f->c.dim[S] > f->c.dim[T] ? f->c.dim[S] : f->c.dim[T]) / 64));
}

/* The multiple of a row result's bound that the divergence's own sums take. Those of total variation, q where q > p,
 * are off by as much as logits are, as an LSE is: |p - q| is not least, and flat, where the sides are equal. */
static double sums_of(const struct kit_fixture *f, int result)
{
    double growth = f->c.divergence == SKL_TOTAL_VARIATION ? growth_of(f) : 1;
    return result == KIT_KL_S || result == KIT_KL_T ? growth * kit_divergences[f->c.divergence].sums : 1;
}

static double largest(const double *x, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(x[i]) && fabs(x[i]) > most)
            most = fabs(x[i]);
    return most;
}

/* ------------------------------------------------------------------------------------- columns of one row --- */

/* How far off the dx of a row's columns may be by one rounding of the logits, and by one of dx itself. */
struct column_noise {
    double *logit[2], *dx[2]; /* [columns], a side each */
};

/* The reference's row with the room that the noise of its columns takes. */
struct row_room {
    struct skl_reference_row r;
    struct column_noise noise;
    double *all;
    int64_t lo, hi;
    double sink[2]; /* how far off dz of the sink may be by one rounding of the logits */
};

static struct row_room get_room(const struct kit_fixture *f)
{
    size_t n = (size_t)skl_reference_columns(&f->p);
    struct row_room room = {.all = kit_doubles(10 * n)};
    room.r.log_q1 = room.all + 8 * n, room.r.grad_x_labels = room.all + 9 * n;
    room.r.log_p = room.all, room.r.log_q = room.all + n;
    room.r.grad_x_s = room.all + 2 * n, room.r.grad_x_t = room.all + 3 * n;
    for (size_t side = 0; side < 2; side++) {
        room.noise.logit[side] = room.all + (4 + side) * n;
        room.noise.dx[side] = room.all + (6 + side) * n;
    }
    return room;
}

static void reference_row(const struct kit_fixture *f, int64_t row, double g, struct skl_reference_row *r)
{
    if (skl_reference_row(&f->p, row, g, r) == 0)
        return;
    fprintf(stderr, "no memory for the reference\n");
    exit(1);
}

static int all_bf16(const struct skl_problem *p)
{
    const struct skl_tensor *operands[] = {&p->s.a, &p->s.b, &p->t.a, &p->t.b};
    int all = 1;
    for (int k = 0; k < 4; k++) all &= !operands[k]->data || operands[k]->dtype == SKL_BF16;
    return all;
}

/* The instruction set of a call, as far as it is told here: narrower kernels have no units of bf16. */
static enum skl_isa isa_of(const struct skl_problem *p)
{
    return p->isa == SKL_ISA_BEST ? skl_isa_best() : (enum skl_isa)p->isa;
}

/* May a tile unit take dx? Where the set is left open, tests try every one. */
static int on_tiles(const struct skl_problem *p)
{
    return p->isa == SKL_ISA_BEST ? skl_isa_available(SKL_ISA_AMX) : p->isa == SKL_ISA_AMX;
}

/* How far off dx may be when it is multiplied, relative: half a unit in the last place of 16 bits; of two bf16 numbers
 * where a tile unit takes it in two parts. */
static double unit_of(const struct kit_fixture *f, int side)
{
    const struct skl_problem *p = &f->p;
    int dtype = (side == S ? &p->s : &p->t)->b.dtype;
    if (f->allow.rounds_dx)
        return dtype == SKL_BF16 ? 0x1p-8 : dtype == SKL_F16 ? 0x1p-11 : 0;
    if (!all_bf16(p) || f->memory->device || (!on_tiles(p) && isa_of(p) != SKL_ISA_AVX512BF16))
        return 0;
    return p->round_dz ? 0x1p-8 : on_tiles(p) ? 0x1p-17 : 0;
}

/* Are labels multiplied apart from the divergence? A device does so where dz is more than a difference of multiples of
 * q and p but for the label's own entry: both parts of dx are then rounded, each at its own size. */
static int labels_apart(const struct skl_problem *p)
{
    const struct skl_labels *l = p->labels;
    return l && !(p->divergence == SKL_FORWARD_KL && p->temperature == 1 && l->kl_weight > 0 && l->weight >= 0 &&
                  l->lse_weight >= 0 && l->smoothing == 0 && l->z_loss == 0);
}

/* What is rounded of a column's dx: itself, or its parts. */
static double rounded_dx(const struct kit_fixture *f, const struct skl_reference_row *r, int side, int64_t j)
{
    if (side == S && f->allow.rounds_dx && labels_apart(&f->p))
        return fabs(r->grad_x_s[j] - r->grad_x_labels[j]) + fabs(r->grad_x_labels[j]);
    return fabs((side == S ? r->grad_x_s : r->grad_x_t)[j]);
}

/* By how much dz of labels, at the temperature T of the divergence, moves where logits of that temperature are off by
 * 1: those of temperature 1 are off by T. */
static double label_sensitivity(const struct kit_fixture *f, const struct skl_reference_row *r, int64_t j)
{
    const struct skl_labels *l = f->p.labels;
    double T = f->p.temperature, q = exp(r->log_q1[j]);
    double of_ce = fabs(l->weight) * (1 + 2 * l->z_loss * (fabs(r->lse1_s) + 1));
    return T * T * q * (of_ce + fabs(l->lse_weight));
}

/* How much the logits of a column may be off by one rounding, as a multiple of 2^-24: those of a row and its LSEs. */
static double size_of(const struct skl_reference_row *r, const struct kit_entry *e)
{
    return 1 + fabs(r->lse_s) + fabs(r->lse_t) + r->head_lse + fabs(e->log_p) + fabs(e->log_q);
}

static void noise_of_sink(const struct kit_fixture *f, double g, struct row_room *room)
{
    const struct skl_reference_row *r = &room->r;
    struct kit_entry e = {exp(r->log_sink_p), exp(r->log_sink_q), 0, 0};
    double on[2] = {0, 0};
    e.log_p = e.p > 0 ? r->log_sink_p : 0, e.log_q = e.q > 0 ? r->log_sink_q : 0;
    if (f->allow.rounds_logits && e.p + e.q > 0)
        kit_divergences[f->c.divergence].sensitivity(&f->p, r, &e, on);
    for (int side = 0; side < 2; side++)
        room->sink[side] = f->allow.rows * 0x1p-24 * size_of(r, &e) * fabs(g) * on[side] / f->c.temperature;
}

static void noise_of_row(const struct kit_fixture *f, int64_t row, double g, struct row_room *room)
{
    const struct skl_reference_row *r = &room->r;
    double slope[2], unit[2];
    for (int side = 0; side < 2; side++) {
        slope[side] = kit_case_scale(&f->c, side) / f->c.temperature; /* a softcap makes it less */
        unit[side] = unit_of(f, side);
    }
    int64_t label = kit_label(&f->p, row);
    noise_of_sink(f, g, room);
    skl_reference_range(&f->p, row, &room->lo, &room->hi);
    for (int64_t j = room->lo; j < room->hi; j++) {
        struct kit_entry e = {exp(r->log_p[j]), exp(r->log_q[j]), 0, 0};
        double on[2] = {0, 0};
        if (f->p.support.data && e.p + e.q == 0) { /* not listed, or without mass: dx is exactly 0 */
            for (int side = 0; side < 2; side++) room->noise.logit[side][j] = room->noise.dx[side][j] = 0;
            continue;
        }
        e.log_p = e.p > 0 ? r->log_p[j] : 0, e.log_q = e.q > 0 ? r->log_q[j] : 0;
        double size = size_of(r, &e);
        if (f->allow.rounds_logits && e.p + e.q > 0)
            kit_divergences[f->c.divergence].sensitivity(&f->p, r, &e, on);
        on[S] = f->p.labels ? fabs(f->p.labels->kl_weight) * on[S] + label_sensitivity(f, r, j) : on[S];
        on[T] *= f->p.labels ? fabs(f->p.labels->kl_weight) : 1;
        for (int side = 0; side < 2; side++) {
            room->noise.logit[side][j] = f->allow.rows * 0x1p-24 * size * fabs(g) * on[side] * slope[side];
            room->noise.dx[side][j] = unit[side] * rounded_dx(f, r, side, j);
        }
        if (f->p.labels && j == label) /* dz is the difference of q and the label's 1, and rounds as that 1 does */
            room->noise.logit[S][j] += f->allow.rows * 0x1p-24 * fabs(g * f->p.labels->weight) * f->p.temperature *
                                       slope[S];
    }
}

/* ---------------------------------------------------------------------------------------- entries of a gradient --- */

/* What roundings may do to each entry: the sum of all, and the sum of their squares. */
struct noise {
    double *sum, *square; /* NULL: nobody asks for this gradient */
};

static struct noise get_noise(int wanted, int64_t n)
{
    return wanted ? (struct noise){kit_doubles((size_t)n), kit_doubles((size_t)n)} : (struct noise){NULL, NULL};
}

static void free_noise(struct noise *x)
{
    free(x->sum), free(x->square);
}

/* One column of one row into n entries from 'first' on: the products of its dx with the other operand. Of n equal
 * terms e there is a share of n e^2 in (n e)^2 for each. */
static void add_noise(struct noise *into, int64_t first, int64_t n, double logit, double dx, double copies,
                      const double *operand)
{
    double sum = ROUNDINGS * logit + dx, square = copies * (logit * logit + dx * dx);
    if (!into->sum || sum == 0)
        return;
    for (int64_t d = 0; d < n; d++) {
        into->sum[first + d] += sum * fabs(operand[d]);
        into->square[first + d] += square * operand[d] * operand[d];
    }
}

/* The bound of every entry of a gradient's row [n]. Roundings are independent, so that their squares add up, and three
 * times the root of that is passed by none of millions; but together they cannot do more than all of them at once. */
static void bound_grad_row(const double *want, const struct noise *x, int64_t first, int64_t n, double *bound)
{
    double most = 0, scale = largest(want, n);
    for (int64_t i = first; i < first + n; i++) {
        double moved = fmin(x->sum[i], ROUNDINGS * sqrt(x->square[i]));
        most = isfinite(moved) && moved > most ? moved : most;
    }
    for (int64_t i = 0; i < n; i++) bound[i] = KIT_GRAD_RELATIVE * scale + most;
}

/* ------------------------------------------------------------------------------------------------ all rows --- */

/* Which of b's rows is the first that a row meets. */
static int64_t first_of_b(const struct kit_fixture *f, int side, int64_t row)
{
    const struct kit_case *c = &f->c;
    if (c->use != SKL_ATTENTION || (side == T && f->in[KIT_INPUT_A_T].t.shape[1] != c->heads))
        return 0; /* mixed heads have no gradient */
    const struct skl_tensor *b = &f->in[3 * side + 1].t;
    int64_t head = row / c->rows % c->heads, batch = row / c->rows / c->heads, key_heads = b->shape[1];
    return (batch * key_heads + head / (c->heads / key_heads)) * b->shape[2];
}

static double *contents(const struct skl_tensor *t)
{
    int64_t n = kit_count(t), row = t->shape[t->ndim - 1];
    double *x = kit_doubles((size_t)n);
    for (int64_t i = 0; i < n; i += row) kit_get_row(t, i, row, x + i);
    return x;
}

/* How many rows are copies of each row, through a stride of 0: their roundings are the same and not independent. Only
 * linear's gradients of b and bias add up the copies; batches of attention have a b each. */
static double copies(const struct kit_fixture *f)
{
    const struct skl_tensor *a = &f->in[KIT_INPUT_A_S].t;
    return f->c.use == SKL_LINEAR && a->ndim > 1 && a->stride[0] == 0 ? (double)a->shape[0] : 1;
}

/* The gradients of one side: noise[0..2] of a, b and bias, and that of the sink, which adds up the copies of
 * attention, too. */
static void add_side(const struct kit_fixture *f, int side, int64_t row, const struct row_room *room, const double *a,
                     const double *b, struct noise noise[3], struct noise *sink)
{
    static const double one = 1;
    int64_t D = f->c.dim[side], first = first_of_b(f, side, row);
    double same = f->in[KIT_INPUT_A_S].t.stride[0] == 0 ? (double)f->c.batch : 1;
    add_noise(sink, row / f->c.rows % f->c.heads, 1, room->sink[side], 0, same, &one);
    for (int64_t j = room->lo; j < room->hi; j++) {
        double logit = room->noise.logit[side][j], dx = room->noise.dx[side][j];
        add_noise(&noise[0], row * D, D, logit, dx, 1, b + (first + j) * D);
        add_noise(&noise[1], (first + j) * D, D, logit, dx, copies(f), a + row * D);
        add_noise(&noise[2], j, 1, logit, dx, copies(f), &one);
    }
}

static void bound_gradients(struct kit_fixture *f)
{
    struct row_room room = get_room(f);
    struct noise noise[KIT_RESULTS - KIT_FIRST_GRADIENT];
    double *a[2], *b[2];
    for (int k = KIT_FIRST_GRADIENT; k < KIT_RESULTS; k++)
        noise[k - KIT_FIRST_GRADIENT] = get_noise(f->want[k] != NULL, f->want[k] ? kit_count(&f->out[k].t) : 0);
    for (int side = 0; side < 2; side++)
        a[side] = contents(&f->in[3 * side].t), b[side] = contents(&f->in[3 * side + 1].t);
    for (int64_t row = 0; row < skl_reference_rows(&f->p); row++) {
        double g = skl_reference_upstream(&f->p, row);
        if (g == 0)
            continue;
        reference_row(f, row, g, &room.r);
        noise_of_row(f, row, g, &room);
        for (int side = 0; side < 2; side++)
            add_side(f, side, row, &room, a[side], b[side], noise + 3 * side,
                     &noise[KIT_SINK_S - KIT_FIRST_GRADIENT + side]);
    }
    for (int side = 0; side < 2; side++) free(a[side]), free(b[side]);
    free(room.all);
    for (int k = KIT_FIRST_GRADIENT; k < KIT_RESULTS; k++) {
        struct noise *x = &noise[k - KIT_FIRST_GRADIENT];
        const struct skl_tensor *t = &f->out[k].t;
        int64_t width = t->ndim > 0 ? t->shape[t->ndim - 1] : 1; /* the row of a bias is all of it */
        for (int64_t i = 0; f->want[k] && i < kit_count(t); i += width)
            bound_grad_row(f->want[k] + i, x, i, width, f->bound[k] + i);
        free_noise(x);
    }
}

/* How far off log t may be where LSEs are given: by roundings of logits as large as these, which do not cancel as
 * they do in a softmax. */
static double target_noise(const struct kit_fixture *f)
{
    const struct skl_tensor *lse = &f->in[KIT_INPUT_LSE].t;
    double most = 0;
    if (!lse->data)
        return 0;
    for (int64_t i = 0; i < kit_count(lse); i++)
        most = isfinite(kit_get(lse, i)) ? fmax(most, fabs(kit_get(lse, i))) : most;
    return ROUNDINGS * 0x1p-24 * (1 + most);
}

/* What that does to a loss whose target t does not sum to 1. */
static double raw_noise(const struct kit_fixture *f, int64_t row)
{
    return f->p.raw_t ? exp(f->want[KIT_LSE_T][row]) + fabs(f->want[KIT_LOSS][row]) : 0;
}

/* A cross-entropy is off by as much as its LSE may be. */
static double ce_bound(const struct kit_fixture *f, const struct skl_reference_row *r)
{
    double lse = kit_near_logits(fmax(fabs(r->lse1_s), fabs(r->ce)), growth_of(f));
    return lse * (1 + (f->p.labels ? 2 * f->p.labels->z_loss * fabs(r->lse1_s) : 0));
}

/* The loss with labels is a weighted sum; a log-probability is as far off as its LSE; of two columns whose logits are
 * equal to rounding, either is the largest. */
static double row_bound(const struct kit_fixture *f, int k, const struct skl_reference_row *r, double want)
{
    const struct skl_labels *l = f->p.labels;
    double growth = growth_of(f), plain = kit_results[k].bound(want, growth);
    double near = 1e-5 * growth * (1 + fabs(r->lse_s) + fabs(r->lse_t));
    switch (k) {
    case KIT_TOP1_S: return r->margin_s > near ? 0 : INFINITY;
    case KIT_TOP1_T: return r->margin_t > near ? 0 : INFINITY;
    case KIT_CE: return ce_bound(f, r);
    case KIT_LOGPROB_S: return plain + kit_near_logits(r->lse1_s, growth);
    case KIT_LOGPROB_T: return plain + kit_near_logits(r->lse1_t, growth);
    case KIT_LOSS:
        return !l ? plain
                  : fabs(l->kl_weight) * kit_near(r->kl, growth) + fabs(l->weight) * ce_bound(f, r) +
                        fabs(l->lse_weight) * kit_near_logits(r->lse1_s, growth) + 0x1p-24 * fabs(want);
    default: return plain;
    }
}

static void bound_told(struct kit_fixture *f)
{
    for (int64_t i = 0; i < skl_reference_rows(&f->p); i++) {
        struct skl_reference_row r = {0};
        reference_row(f, i, 0, &r);
        for (int k = 0; k < KIT_FIRST_GRADIENT; k++)
            if (f->want[k])
                f->bound[k][i] = f->allow.rows * sums_of(f, k) * row_bound(f, k, &r, f->want[k][i]);
    }
}

static void bound_rows(struct kit_fixture *f)
{
    int64_t rows = skl_reference_rows(&f->p);
    double growth = growth_of(f);
    for (int k = 0; k < KIT_FIRST_GRADIENT; k++)
        for (int64_t i = 0; f->want[k] && i < rows; i++)
            f->bound[k][i] = f->allow.rows * sums_of(f, k) * kit_results[k].bound(f->want[k][i], growth);
    if (f->c.labels || f->c.details)
        bound_told(f);
    double noise = f->allow.rows * target_noise(f);
    for (int64_t i = 0; i < rows; i++) f->bound[KIT_LOSS][i] += noise * raw_noise(f, i);
    for (int64_t i = 0; f->want[KIT_LSE_T] && i < rows; i++) f->bound[KIT_LSE_T][i] += noise;
    f->value_bound = 0;
    for (int64_t i = 0; i < rows; i++) f->value_bound += fabs(skl_reference_upstream(&f->p, i)) * f->bound[KIT_LOSS][i];
}

void kit_make_room(struct kit_fixture *f)
{
    int64_t most = 0;
    for (int k = 0; k < KIT_RESULTS; k++) {
        if (!f->out[k].t.data || f->want[k])
            continue;
        int64_t n = kit_count(&f->out[k].t);
        f->want[k] = kit_doubles((size_t)n), f->bound[k] = kit_doubles((size_t)n);
        most = n > most ? n : most;
    }
    if (!f->got)
        f->got = kit_doubles((size_t)most);
}

void kit_expect(struct kit_fixture *f)
{
    struct skl_reference r = {0};
    kit_make_room(f);
#define ROW(field, id, needs, column, bound) r.field = f->want[KIT_##id];
#define GRADIENT(side, operand, id, field, column) r.side.operand = f->want[KIT_##id];
    KIT_ROW_RESULTS(ROW)
    KIT_GRADIENTS(GRADIENT)
#undef ROW
#undef GRADIENT
    if (skl_reference_run(&f->p, &r) != 0) {
        fprintf(stderr, "no memory for the reference\n");
        exit(1);
    }
    f->want_value = r.value;
    bound_rows(f);
    bound_gradients(f);
    f->checksum = kit_checksum(f);
}

/* ---------------------------------------------------------------------------------------------- sampled rows --- */

void kit_expect_row(const struct kit_fixture *f, int64_t row, struct kit_expected_row *e)
{
    int64_t D = f->c.dim[S], first = first_of_b(f, S, row);
    double g = skl_reference_upstream(&f->p, row), *operand = kit_doubles((size_t)D);
    struct row_room room = get_room(f);
    struct noise noise = get_noise(e->grad != NULL, D);
    room.r.grad_a_s = e->grad;
    reference_row(f, row, g, &room.r);
#define ROW(field, id, needs, column, bound) e->want[KIT_##id] = room.r.field;
    KIT_ROW_RESULTS(ROW)
#undef ROW
    for (int k = 0; k < KIT_FIRST_GRADIENT; k++)
        e->bound[k] = f->allow.rows * sums_of(f, k) * row_bound(f, k, &room.r, e->want[k]);
    noise_of_row(f, row, g, &room);
    for (int64_t j = room.lo; e->grad && j < room.hi; j++) {
        double logit = room.noise.logit[S][j], dx = room.noise.dx[S][j];
        if (logit + dx == 0)
            continue;
        kit_get_row(&f->in[KIT_INPUT_B_S].t, (first + j) * D, D, operand);
        add_noise(&noise, 0, D, logit, dx, 1, operand);
    }
    if (e->grad)
        bound_grad_row(e->grad, &noise, 0, D, e->grad_bound);
    free_noise(&noise);
    free(room.all), free(operand);
}
