/* SPDX-License-Identifier: Apache-2.0
 *
 * A problem cut into slices of columns, as shards of a vocabulary or blocks of keys on several machines would hold
 * them: partial states, merged in a random grouping, finished; then each slice's backward from the whole LSEs.
 */
#include "slices.h"

#include "divergence.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SLICES = 16 };

struct slice {
    struct kit_slice of;
    struct skl_state *state, *there; /* of the host, where they are merged, and of the device */
};

static int64_t height(const struct skl_side *side)
{
    return side->b.shape[side->b.ndim - 2];
}

void kit_cut(const struct kit_fixture *f, int64_t first, int64_t last, struct kit_slice *s)
{
    struct skl_problem *p = &s->p;
    const struct skl_tensor *a = &f->p.s.a;
    const struct kit_device *device = f->memory->device;
    int64_t rows = skl_reference_rows(&f->p);
    /* The slice with the last column keeps the padding. */
    int padded = last == f->c.cols && last > first && (f->c.pad[S] || f->c.pad[T]);
    int64_t n_s = last - first + (padded ? f->c.pad[S] : 0), n_t = last - first + (padded ? f->c.pad[T] : 0);
    enum kit_layout layout = f->c.layout == KIT_BROADCAST ? KIT_GAPS : f->c.layout; /* rows differ in their ranges */
    *p = kit_problem(f);
    s->first = first;
    p->columns = padded ? last - first : 0;
    p->s.b = kit_slice(p->s.b, first, n_s), p->s.bias = kit_slice(p->s.bias, first, n_s);
    p->t.b = kit_slice(p->t.b, first, n_t), p->t.bias = kit_slice(p->t.bias, first, n_t);
    p->causal = 0, p->window_left = p->window_right = -1;
    p->cu_seqlens_q = p->cu_seqlens_k = (struct skl_tensor){0};
    s->begin = kit_tensor(f->memory, SKL_I32, a->ndim - 1, a->shape, 0, layout, f->c.place);
    s->end = kit_tensor(f->memory, SKL_I32, a->ndim - 1, a->shape, 0, layout, f->c.place);
    for (int64_t i = 0; i < rows; i++) {
        int64_t lo, hi;
        skl_reference_range(&f->p, i, &lo, &hi);
        kit_set(&s->begin.t, i, (double)(lo - first)), kit_set(&s->end.t, i, (double)(hi - first));
    }
    for (int k = 0; device && k < 2; k++) {
        struct kit_tensor *x = k ? &s->end : &s->begin;
        device->send(x->there, x->memory.data, x->memory.size);
    }
    p->begin = kit_view(&s->begin), p->end = kit_view(&s->end);
}

void kit_free_slice(const struct kit_fixture *f, struct kit_slice *s)
{
    kit_tensor_free(f->memory, &s->begin), kit_tensor_free(f->memory, &s->end);
}

struct skl_outputs kit_slice_outputs(const struct kit_slice *s, const struct skl_outputs *whole)
{
    struct skl_outputs out = *whole;
    out.s.b = kit_slice(whole->s.b, s->first, height(&s->p.s));
    out.t.b = kit_slice(whole->t.b, s->first, height(&s->p.t));
    out.s.bias = kit_slice(whole->s.bias, s->first, height(&s->p.s));
    out.t.bias = kit_slice(whole->t.bias, s->first, height(&s->p.t));
    return out;
}

static void cut(const struct kit_fixture *f, int64_t first, int64_t last, struct slice *s)
{
    const struct kit_device *device = f->memory->device;
    int64_t rows = skl_reference_rows(&f->p);
    kit_cut(f, first, last, &s->of);
    s->state = kit_zeros((size_t)rows, sizeof *s->state);
    s->there = device ? device->get((size_t)rows * sizeof *s->state) : NULL;
}

static void free_slice(const struct kit_fixture *f, struct slice *s)
{
    kit_free_slice(f, &s->of);
    free(s->state);
    if (s->there)
        f->memory->device->put_back(s->there);
}

static void partial(struct kit_fixture *f, struct slice *s, const struct skl_outputs *saved, struct kit_outcome *o)
{
    size_t bytes = (size_t)skl_reference_rows(&f->p) * sizeof *s->state;
    memset(s->state, KIT_CANARY, bytes);
    if (kit_succeeds(o, skl_partial(&s->of.p, saved, s->there ? s->there : s->state)) && s->there)
        f->memory->device->fetch(s->state, s->there, bytes);
}

/* The states of all slices, merged two by two in any order; which of the slices then has the result. */
static struct slice *sweep(struct kit_fixture *f, struct slice *slices, int64_t n, const struct skl_outputs *saved,
                           struct kit_outcome *o)
{
    struct slice *left[MOST_SLICES] = {NULL};
    for (int64_t k = 0; k < n; k++) {
        partial(f, &slices[k], saved, o);
        left[k] = &slices[k];
    }
    for (; n > 1; n--) {
        int64_t into = kit_between(f->random, 0, n - 1), from = (into + kit_between(f->random, 1, n - 1)) % n;
        kit_succeeds(o, skl_merge(skl_reference_rows(&f->p), left[into]->state, left[from]->state));
        left[from] = left[n - 1];
    }
    return left[0];
}

static void finish(struct kit_fixture *f, const struct slice *s, const struct skl_outputs *out, struct kit_outcome *o)
{
    struct skl_problem p = kit_problem(f);
    if (s->there)
        f->memory->device->send(s->there, s->state, (size_t)skl_reference_rows(&f->p) * sizeof *s->state);
    kit_succeeds(o, skl_finish(&p, s->there ? s->there : s->state, out));
}

/* -------------------------------------------------------------------------------------------------- backward --- */

struct kit_total kit_new_total(const struct kit_fixture *f, int result)
{
    size_t count = f->want[result] ? (size_t)kit_count(&f->out[result].t) : 0;
    return (struct kit_total){kit_doubles(count), kit_doubles(count)};
}

void kit_free_total(struct kit_total *total)
{
    free(total->sum), free(total->slack);
}

void kit_add_part(const struct skl_tensor *t, const double *part, struct kit_total *total)
{
    int64_t D = t->shape[t->ndim - 1];
    for (int64_t row = 0; row < kit_count(t); row += D) {
        double largest = 0;
        for (int64_t i = row; i < row + D; i++) largest = fmax(largest, fabs(part[i]));
        for (int64_t i = row; i < row + D; i++) {
            total->sum[i] += part[i];
            total->slack[i] += KIT_GRAD_RELATIVE * largest + kit_half_ulp(t->dtype, part[i], part[i]);
        }
    }
}

static void add_slice(struct kit_fixture *f, int result, struct kit_total *total, struct kit_outcome *o)
{
    o->of[result].spilt |= !kit_take(&f->out[result], f->got);
    kit_add_part(&f->out[result].t, f->got, total);
}

/* Every slice's backward from the LSEs of the whole. Gradients of b and bias land in their place; those of a add up. */
static void backward(struct kit_fixture *f, struct slice *slices, int64_t n, const struct skl_outputs *saved,
                     struct kit_outcome *o)
{
    static const int of_a[] = {KIT_A_S, KIT_A_T};
    struct skl_outputs whole = kit_outputs(f, 0, KIT_GRAD_ALL);
    struct kit_total totals[2] = {kit_new_total(f, KIT_A_S), kit_new_total(f, KIT_A_T)};
    for (int64_t k = 0; k < n; k++) {
        struct skl_outputs out = kit_slice_outputs(&slices[k].of, &whole);
        if (!kit_succeeds(o, skl_backward(&slices[k].of.p, saved, &out)))
            break;
        kit_fetch(f);
        for (int g = 0; g < 2; g++)
            if (f->want[of_a[g]])
                add_slice(f, of_a[g], &totals[g], o);
    }
    for (int g = 0; g < 2; g++) {
        if (f->want[of_a[g]] && o->status == SKL_OK)
            kit_compare_with(f, of_a[g], totals[g].sum, totals[g].slack, o);
        kit_free_total(&totals[g]);
        *kit_slot(&whole, of_a[g]) = (struct skl_tensor){0};
    }
    if (o->status == SKL_OK)
        kit_compare(f, &whole, o);
}

/* The second sweep is given both LSEs rounded to f32, which no other way is: log p is off by d_p <= 2^-24 |LSE_P|, log
 * q likewise, and a sum of p log(p / m) by at most d_p (|sum| + 1) + d_q. Returns the bounds as they were. */
static double *grant_lses(struct kit_fixture *f, int result, const double *lse, const double *lse_other)
{
    int64_t rows = f->want[result] ? skl_reference_rows(&f->p) : 0;
    double *before = kit_doubles((size_t)rows);
    for (int64_t i = 0; i < rows; i++) {
        double own = isfinite(lse[i]) ? fabs(lse[i]) : 0, other = isfinite(lse_other[i]) ? fabs(lse_other[i]) : 0;
        before[i] = f->bound[result][i];
        f->bound[result][i] += f->allow.rows * 0x1p-24 * (own * (fabs(f->want[result][i]) + 1) + other);
    }
    return before;
}

static void take_back(struct kit_fixture *f, int result, double *before)
{
    for (int64_t i = 0; f->want[result] && i < skl_reference_rows(&f->p); i++) f->bound[result][i] = before[i];
    free(before);
}

/* Compares what the sweeps told of the rows. */
static void compare_rows(struct kit_fixture *f, struct skl_outputs *out, struct kit_outcome *o)
{
    const double *lse_s = f->want[KIT_LSE_S], *lse_t = f->want[KIT_LSE_T];
    int granted = kit_divergences[f->c.divergence].sweeps == 2 && lse_s && lse_t;
    double *kl_s = granted ? grant_lses(f, KIT_KL_S, lse_s, lse_t) : NULL;
    double *kl_t = granted ? grant_lses(f, KIT_KL_T, lse_t, lse_s) : NULL;
    kit_compare(f, out, o);
    if (granted)
        take_back(f, KIT_KL_S, kl_s), take_back(f, KIT_KL_T, kl_t);
}

struct kit_outcome kit_run_slices(struct kit_fixture *f, int64_t n)
{
    struct slice slices[MOST_SLICES];
    struct kit_outcome o = kit_no_outcome();
    int64_t first = 0;
    for (int64_t k = 0; k < n; k++) {
        int64_t last = k == n - 1 ? f->c.cols : kit_between(f->random, first + 1, f->c.cols - (n - 1 - k));
        cut(f, first, last, &slices[k]);
        first = last;
    }
    struct skl_outputs out = kit_outputs(f, 1, 0), saved = out, lse = skl_no_outputs(), rest = out;
    if (kit_divergences[f->c.divergence].sweeps == 2) { /* the second sweep needs the LSEs of all columns */
        lse.lse_s = out.lse_s, lse.lse_t = out.lse_t;
        rest.lse_s = rest.lse_t = (struct skl_tensor){0};
        finish(f, sweep(f, slices, n, NULL, &o), &lse, &o);
        finish(f, sweep(f, slices, n, &lse, &o), &rest, &o);
    } else {
        finish(f, sweep(f, slices, n, NULL, &o), &out, &o);
    }
    saved.value = NULL;
    if (o.status == SKL_OK)
        backward(f, slices, n, &saved, &o);
    if (o.status == SKL_OK)
        compare_rows(f, &out, &o);
    for (int64_t k = 0; k < n; k++) free_slice(f, &slices[k]);
    return o;
}
