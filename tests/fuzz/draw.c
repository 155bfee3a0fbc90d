/* SPDX-License-Identifier: Apache-2.0 */
#include "draw.h"

#include <stdio.h>
#include <stdlib.h>

const char *const kind_names[KINDS] = {"ordinary", "near", "identical", "one column", "flat", "offset", "large"};
const char *const path_names[PATHS] = {"value", "value_and_grad", "backward", "backward, f32 LSEs", "shards"};

static void *room(size_t n)
{
    void *p = calloc(n + 1, 1);
    if (!p)
        abort();
    return p;
}

/* ------------------------------------------------------------------------------------------------- shapes --- */

static int64_t divisor(struct rng *r, int64_t of)
{
    int64_t d;
    do d = rng_between(r, 1, of);
    while (of % d);
    return d;
}

/* Mostly small, so that a hundred thousand are done in minutes; sizes that cross tiles of columns, panels of rows and
 * pieces of dim come up often enough. One in 150 is large enough to be shared among threads. */
static void draw_shapes(struct call *c)
{
    struct rng *r = &c->random;
    int attention = rng_chance(r, 50), big = rng_between(r, 0, 149) == 0;
    c->p.use = attention ? SKL_ATTENTION : SKL_LINEAR;
    c->ndim = attention ? 3 : (int)rng_between(r, 1, 3);
    c->batch = c->heads = 1;
    if (attention)
        c->batch = rng_size(r, 1, 3), c->heads = rng_size(r, 1, 6);
    else if (c->ndim > 1)
        c->heads = rng_size(r, 1, 5), c->batch = c->ndim > 2 ? rng_size(r, 1, 3) : 1;
    c->n = big ? rng_between(r, 30, 90) : rng_size(r, 1, attention ? 24 : 40);
    c->rows = c->batch * c->heads * c->n;
    int64_t all[3] = {c->batch, c->heads, c->n};
    for (int k = 0; k < c->ndim; k++) c->lead[k] = all[3 - c->ndim + k];
    c->columns = big ? rng_between(r, 300, 1500) : rng_size(r, 1, rng_chance(r, 15) ? 900 : 120);
    if (c->kind == KIND_ONE_COLUMN && rng_chance(r, 50))
        c->columns = 1;
    int padded = rng_chance(r, 25);
    c->p.columns = padded || rng_chance(r, 20) ? c->columns : 0;
    for (int i = 0; i < 2; i++) {
        struct side *s = &c->side[i];
        s->dim = big ? rng_between(r, 30, 80) : rng_size(r, 1, rng_chance(r, 4) ? 600 : 70);
        s->key_heads = attention ? divisor(r, c->heads) : 1;
        s->height = c->columns + (padded ? rng_between(r, 0, 9) : 0);
    }
    if (c->kind == KIND_IDENTICAL || c->kind == KIND_NEAR)
        c->side[TEACHER] = c->side[STUDENT];
}

/* -------------------------------------------------------------------------------------------------- masks --- */

static struct view row_view(struct call *c, int dtype)
{
    return view_make(&c->random, dtype, c->ndim, c->lead, 0);
}

static void draw_masks(struct call *c)
{
    struct rng *r = &c->random;
    int attention = c->p.use == SKL_ATTENTION, one = c->kind == KIND_ONE_COLUMN && c->columns > 1;
    c->p.window_left = c->p.window_right = -1;
    if (c->p.listed)
        return;
    if (attention && !one) {
        c->p.causal = rng_chance(r, 25);
        c->p.window_left = rng_chance(r, 20) ? rng_size(r, 1, c->columns + 3) - 1 : -1;
        c->p.window_right = rng_chance(r, 20) ? rng_size(r, 1, c->columns + 3) - 1 : -1;
    }
    if (one && attention && rng_chance(r, 50)) {
        c->p.window_left = c->p.window_right = 0;
        return;
    }
    int both = one || rng_chance(r, 15);
    if (both || rng_chance(r, 8))
        c->begin = row_view(c, SKL_I32);
    if (both || rng_chance(r, 8))
        c->end = row_view(c, SKL_I32);
    for (int64_t i = 0; i < c->rows; i++) {
        int64_t from = rng_between(r, -3, c->columns - 1), to = rng_between(r, 0, c->columns + 3);
        if (both && rng_chance(r, 70) && from > to) { /* most rows shall see something */
            int64_t x = from;
            from = to, to = x;
        }
        if (rng_chance(r, 2))
            from = rng_chance(r, 50) ? INT32_MIN : INT32_MAX, to = rng_chance(r, 50) ? INT32_MIN : INT32_MAX;
        if (one)
            from = rng_between(r, 0, c->columns - 1), to = from + 1;
        if (c->begin.memory)
            view_set(&c->begin.t, i, (double)from);
        if (c->end.memory)
            view_set(&c->end.t, i, (double)to);
    }
}

static void draw_weights(struct call *c)
{
    struct rng *r = &c->random;
    c->p.reduction = rng_chance(r, 50) ? SKL_SUM : SKL_MEAN;
    if (!rng_chance(r, 40))
        return;
    int none = rng_chance(r, 4), negative = c->p.reduction == SKL_SUM && rng_chance(r, 40);
    c->weight = row_view(c, SKL_F32);
    for (int64_t i = 0; i < c->rows; i++) {
        double w = rng_chance(r, 25) ? 0 : rng_chance(r, 30) ? 1 : rng_real(r, 0.01, 2);
        view_set(&c->weight.t, i, none ? 0 : negative && rng_chance(r, 50) ? -w : w);
    }
}

/* Where no row must be exactly 0, and states need not carry it. A label is a column that its row sees; nothing is known
 * of other ones. */
static int has_labels(struct call *c)
{
    int kind = c->kind == KIND_ORDINARY || c->kind == KIND_NEAR || c->kind == KIND_OFFSET;
    int path = c->path == PATH_VALUE || c->path == PATH_GRAD || c->path == PATH_BACKWARD;
    return c->p.use == SKL_LINEAR && kind && path && rng_chance(&c->random, 50);
}

static void draw_labels(struct call *c)
{
    struct rng *r = &c->random;
    if (!has_labels(c))
        return;
    int64_t ignore = RNG_PICK(r, -100, -1, 1 << 20);
    c->ids = row_view(c, rng_chance(r, 50) ? SKL_I64 : SKL_I32);
    c->labels = (struct skl_labels){sizeof c->labels,
                                    c->ids.t,
                                    .weight = RNG_PICK(r, 0, 0.5, 1, 2),
                                    .kl_weight = RNG_PICK(r, 1, 0.3, 4, 0),
                                    .ignore = ignore,
                                    .smoothing = rng_chance(r, 70) ? 0 : 0.1,
                                    .z_loss = rng_chance(r, 70) ? 0 : 1e-2};
    c->p.labels = &c->labels;
    c->p.skip_below = 0;
    for (int64_t i = 0; i < c->rows; i++) {
        int ignored = rng_chance(r, 25);
        int64_t any = c->hi[i] > c->lo[i] ? rng_between(r, c->lo[i], c->hi[i] - 1) : 0;
        c->label[i] = ignored || c->hi[i] <= c->lo[i] ? -1 : any;
        view_set(&c->ids.t, i, (double)(ignored ? ignore : any));
    }
}

/* The rules of the header once more: the upstream gradient of a row's loss. */
static void apply_weights(struct call *c)
{
    double total = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t i = 0; i < c->rows; i++) {
            double w = c->weight.memory ? view_get(&c->weight.t, i) : 1;
            if (c->ids.memory && !c->weight.memory && view_get(&c->ids.t, i) == (double)c->labels.ignore)
                w = 0;
            if (pass == 0)
                total += w;
            else
                c->g[i] = w == 0 || c->hi[i] <= c->lo[i] ? 0 : c->p.reduction == SKL_SUM ? w : w / total;
        }
}

/* And what it sees. */
static void apply_masks(struct call *c)
{
    c->label = room((size_t)c->rows * sizeof *c->label);
    c->lo = room((size_t)c->rows * sizeof *c->lo), c->hi = room((size_t)c->rows * sizeof *c->hi);
    c->g = room((size_t)c->rows * sizeof *c->g);
    for (int64_t i = 0; i < c->rows; i++) {
        int64_t first = -1, last = -1, diagonal = i % c->n + c->columns - c->n;
        for (int64_t j = 0; j < c->columns; j++) {
            int sees = !(c->p.causal && j > diagonal) && !(c->p.window_left >= 0 && j < diagonal - c->p.window_left) &&
                       !(c->p.window_right >= 0 && j > diagonal + c->p.window_right) &&
                       !(c->begin.memory && (double)j < view_get(&c->begin.t, i)) &&
                       !(c->end.memory && (double)j >= view_get(&c->end.t, i));
            if (sees)
                first = first < 0 ? j : first, last = j;
        }
        c->label[i] = -1;
        c->lo[i] = first < 0 ? 0 : first, c->hi[i] = first < 0 ? 0 : last + 1;
    }
}

/* ------------------------------------------------------------------------------------------------ numbers --- */

static void draw_options(struct call *c)
{
    struct rng *r = &c->random;
    struct skl_problem *p = &c->p;
    p->divergence = (int32_t)rng_between(r, SKL_FORWARD_KL, SKL_JSD);
    p->beta = rng_chance(r, 40) ? 0.5 : rng_chance(r, 70) ? rng_real(r, 0.02, 0.98) : RNG_PICK(r, 1e-3, 0.999, 1e-5);
    p->temperature = rng_chance(r, 60) || c->kind == KIND_LARGE ? 1 : RNG_PICK(r, 0.5, 2, 7, 0.9);
    p->skip_below = rng_chance(r, 12) ? RNG_PICK(r, 0x1p-24, 1e-4, 1e-2) : 0;
    p->threads = (int32_t)rng_between(r, 1, rng_between(r, 0, 9) ? 4 : 64);
    do p->isa = (int32_t)rng_between(r, SKL_ISA_BEST, SKL_ISA_NEONBF16);
    while (p->isa != SKL_ISA_BEST && !skl_isa_available((enum skl_isa)p->isa));
    for (int i = 0; i < 2; i++) {
        struct skl_side *s = i == STUDENT ? &p->s : &p->t;
        s->scale = rng_chance(r, 60) ? 0 : RNG_PICK(r, 0.5, 2, -1, 0.1, 1);
        s->softcap = rng_chance(r, 80) || c->kind == KIND_LARGE ? 0 : RNG_PICK(r, 1, 5, 30, 300);
        c->side[i].spread = rng_chance(r, 50) ? RNG_PICK(r, 0.5, 1, 2) : RNG_PICK(r, 1e-3, 0.1, 5, 15, 60);
        if (c->kind == KIND_LARGE)
            c->side[i].spread = pow(10, rng_real(r, 4, 30));
    }
    if (c->kind == KIND_LARGE && rng_chance(r, 50))
        c->side[TEACHER].spread = c->side[STUDENT].spread;
    if (c->kind == KIND_IDENTICAL || c->kind == KIND_NEAR) {
        p->t.scale = p->s.scale, p->t.softcap = p->s.softcap;
        c->side[TEACHER].spread = c->side[STUDENT].spread;
    }
    if (c->kind == KIND_OFFSET) {
        double sign = rng_chance(r, 50) ? 1 : -1;
        c->side[rng_between(r, 0, 1)].offset = sign * (rng_chance(r, 50) ? 1000 : pow(10, rng_real(r, 0, 3)));
        p->s.softcap = p->t.softcap = 0; /* a cap would squash it */
    }
}

double draw_scale(const struct call *c, int side)
{
    double scale = side == STUDENT ? c->p.s.scale : c->p.t.scale, d = (double)c->side[side].dim;
    return scale != 0 ? scale : c->p.use == SKL_ATTENTION ? 1 / sqrt(d) : 1;
}

static int draw_dtype(struct call *c)
{
    int x = (int)rng_between(&c->random, 0, 3);
    if (c->kind == KIND_LARGE) /* f16 ends at 65504 */
        return x < 2 ? SKL_F32 : SKL_BF16;
    return x < 2 ? SKL_F32 : x == 2 ? SKL_BF16 : SKL_F16;
}

static void make_operands(struct call *c, int i)
{
    struct side *s = &c->side[i];
    int attention = c->p.use == SKL_ATTENTION, fixed = c->kind == KIND_IDENTICAL && i == TEACHER;
    int may = VIEW_OPERAND | (c->kind == KIND_ORDINARY && c->p.columns == 0 && !c->weight.memory ? VIEW_BROADCAST : 0);
    int64_t a[4], keys[4] = {c->batch, s->key_heads, s->height, s->dim};
    memcpy(a, c->lead, sizeof c->lead);
    a[c->ndim] = s->dim;
    const struct side *student = &c->side[STUDENT];
    s->a = view_make(&c->random, fixed ? student->a.t.dtype : draw_dtype(c), c->ndim + 1, a, may);
    s->b = view_make(&c->random, fixed ? student->b.t.dtype : draw_dtype(c), attention ? 4 : 2,
                     keys + (attention ? 0 : 2), may);
    int offset = s->offset != 0, bias = fixed ? student->bias.memory != NULL : rng_chance(&c->random, 40);
    if (!attention && (bias || offset))
        s->bias = view_make(&c->random,
                            offset  ? SKL_F32
                            : fixed ? student->bias.t.dtype
                                    : draw_dtype(c),
                            1, &s->height, 0);
}

/* a carries the spread of the logits, b is of order 1; large ones share it out at random. An offset of attention is one
 * entry of each vector, the same in all rows and columns. */
static void fill_operands(struct call *c, int i)
{
    struct rng *r = &c->random;
    struct side *s = &c->side[i];
    double unit = s->spread * c->p.temperature / (fabs(draw_scale(c, i)) * sqrt((double)s->dim));
    double part = c->kind == KIND_LARGE ? pow(unit, rng_real(r, 0, 1)) : 1, top = c->kind == KIND_LARGE ? 1e34 : 3e4;
    int uneven = c->kind != KIND_LARGE && rng_chance(r, 20),
        zero = c->kind == KIND_FLAT && !s->bias.memory && rng_chance(r, 30);
    int flat = c->kind == KIND_FLAT && !zero;
    for (int64_t n = view_count(&s->a.t), j = 0; j < n; j++) {
        double by = uneven && j / s->dim % 3 == 0 ? 6 : 1, x = by * unit / part * rng_normal(r);
        view_set(&s->a.t, j, zero ? 0 : fmax(fmin(x, top), -top));
    }
    for (int64_t n = view_count(&s->b.t), j = 0; j < n; j++) {
        int64_t first = j % s->dim; /* flat: all columns of all matrices are the first one */
        view_set(&s->b.t, j, flat && j >= s->dim ? view_get(&s->b.t, first) : part * rng_normal(r));
    }
    for (int64_t j = 0; s->bias.memory && j < s->height; j++) {
        double x = c->kind == KIND_LARGE ? s->spread * rng_normal(r) : 2 * rng_normal(r);
        view_set(&s->bias.t, j,
                 flat && j ? view_get(&s->bias.t, 0) : x + s->offset * c->p.temperature / draw_scale(c, i));
    }
    if (s->offset != 0 && c->p.use == SKL_ATTENTION) {
        double product = s->offset * c->p.temperature / draw_scale(c, i), x = sqrt(fabs(product));
        for (int64_t j = 0; j < c->rows; j++) view_set(&s->a.t, j * s->dim, x);
        for (int64_t n = view_count(&s->b.t), j = 0; j < n; j += s->dim) view_set(&s->b.t, j, copysign(x, product));
    }
}

/* The teacher as the student, or nearly. */
static void copy_operands(struct call *c)
{
    struct view *from[3] = {&c->side[0].a, &c->side[0].b, &c->side[0].bias},
                *to[3] = {&c->side[1].a, &c->side[1].b, &c->side[1].bias};
    double noise = c->kind == KIND_NEAR ? RNG_PICK(&c->random, 1e-2, 1e-4, 1e-6) : 0;
    for (int k = 0; k < 3; k++)
        for (int64_t j = 0; from[k]->memory && to[k]->memory && j < view_count(&from[k]->t); j++)
            view_set(&to[k]->t, j, view_get(&from[k]->t, j) * (1 + noise * rng_normal(&c->random)));
}

/* What must not be looked at is NaN: padding, and rows of weight 0. */
static void poison(struct call *c)
{
    int dead_rows = c->weight.memory && rng_chance(&c->random, 50);
    for (int i = 0; i < 2; i++) {
        struct side *s = &c->side[i];
        for (int64_t n = view_count(&s->b.t) / s->dim, j = 0; j < n; j++)
            for (int64_t d = 0; j % s->height >= c->columns && d < s->dim; d++)
                view_set(&s->b.t, j * s->dim + d, (double)NAN);
        for (int64_t j = c->columns; s->bias.memory && j < s->height; j++) view_set(&s->bias.t, j, (double)NAN);
        for (int64_t j = 0; dead_rows && j < c->rows; j++)
            for (int64_t d = 0; c->g[j] == 0 && view_get(&c->weight.t, j) == 0 && d < s->dim; d++)
                view_set(&s->a.t, j * s->dim + d, (double)NAN);
    }
}

/* --------------------------------------------------------------------------------------------------- call --- */

static void finish_problem(struct call *c)
{
    struct skl_problem *p = &c->p;
    p->struct_size = sizeof *p;
    for (int i = 0; i < 2; i++) {
        struct side *s = &c->side[i];
        struct skl_side *to = i == STUDENT ? &p->s : &p->t;
        if (i == STUDENT || !p->listed)
            to->a = s->a.t, to->b = s->b.t, to->bias = s->bias.t;
        s->A = view_read(&s->a.t), s->B = view_read(&s->b.t), s->C = view_read(&s->bias.t);
        view_remember(&s->a), view_remember(&s->b), view_remember(&s->bias);
    }
    p->begin = c->begin.t, p->end = c->end.t, p->weight = c->weight.t;
    view_remember(&c->begin), view_remember(&c->end), view_remember(&c->weight), view_remember(&c->ids);
    view_remember(&c->list_ids), view_remember(&c->list_logprobs), view_remember(&c->list_rest);
}

static void draw_wishes(struct call *c)
{
    struct rng *r = &c->random;
    c->want = (int)rng_between(r, 1, 63), c->half_grads = (int)rng_between(r, 0, 63);
    if (c->p.listed)
        c->want = c->want & 7 ? c->want & 7 : 1;
    for (int i = 0; i < 2; i++)
        if (!c->side[i].bias.memory)
            c->want &= ~(1 << (3 * i + GRAD_BIAS));
    c->want_rows = rng_chance(r, 50) ? (1 << ROW_RESULTS) - 1 : (int)rng_between(r, 0, (1 << ROW_RESULTS) - 1);
    if (c->p.divergence != SKL_JSD)
        c->want_rows &= ~(1 << KL_S | 1 << KL_T);
    c->limit = rng_chance(r, 20) ? 1 : rng_chance(r, 15) ? 2 : 0;
    c->again = rng_chance(r, 15);
}

void draw_call(struct call *c, struct rng random)
{
    static const enum kind kinds[] = {KIND_ORDINARY, KIND_ORDINARY,   KIND_ORDINARY,  KIND_ORDINARY,
                                      KIND_ORDINARY, KIND_NEAR,       KIND_IDENTICAL, KIND_OFFSET,
                                      KIND_FLAT,     KIND_ONE_COLUMN, KIND_LARGE,     KIND_LARGE};
    *c = (struct call){.random = random};
    c->kind = kinds[rng_between(&c->random, 0, (int64_t)(sizeof kinds / sizeof *kinds) - 1)];
    c->path = (enum path)rng_between(&c->random, 0, PATHS - 1);
    draw_shapes(c);
    draw_options(c);
    if (draw_is_listed(c))
        c->p.listed = &c->listed;
    draw_masks(c);
    draw_weights(c);
    apply_masks(c);
    if (c->p.listed)
        draw_lists(c);
    draw_labels(c);
    apply_weights(c);
    for (int i = 0; i < 2; i++) {
        make_operands(c, i);
        fill_operands(c, i);
    }
    if (c->kind == KIND_IDENTICAL || c->kind == KIND_NEAR)
        copy_operands(c);
    poison(c);
    draw_wishes(c);
    finish_problem(c);
}

void draw_free(struct call *c)
{
    for (int i = 0; i < 2; i++) {
        struct side *s = &c->side[i];
        view_free(&s->a), view_free(&s->b), view_free(&s->bias);
        free(s->A), free(s->B), free(s->C);
    }
    view_free(&c->begin), view_free(&c->end), view_free(&c->weight), view_free(&c->ids);
    view_free(&c->list_ids), view_free(&c->list_logprobs), view_free(&c->list_rest);
    free(c->lo), free(c->hi), free(c->g), free(c->label);
}

int64_t draw_matrix(const struct call *c, int side, int64_t row)
{
    if (c->p.use != SKL_ATTENTION)
        return 0;
    int64_t head = row / c->n % c->heads, batch = row / (c->n * c->heads), key_heads = c->side[side].key_heads;
    return batch * key_heads + head * key_heads / c->heads;
}

void draw_describe(const struct call *c, char *text, size_t size)
{
    static const char *const divergences[] = {"forward", "reverse", "jsd"}, *const types[] = {"f32", "bf16", "f16",
                                                                                              "i32"};
    const struct side *s = &c->side[STUDENT], *t = &c->side[TEACHER];
    snprintf(text, size,
             "%s, %s, %s %s, rows %lldx%lldx%lld, columns %lld, D %lld/%lld, heads of b %lld/%lld, dtypes %s %s/%s %s, "
             "bias %d/%d, "
             "scale %g/%g, softcap %g/%g, T %g, beta %g, spread %.3g/%.3g, offset %.4g/%.4g, weights %d, reduction %d, "
             "labels %d (%g, KL %g, smoothing %g, z %g), causal %d, "
             "window %lld/%lld, begin/end %d/%d, skip_below %g, isa %s, threads %d, gradients %d, limit %d, "
             "listed %d (tail %d, k %lld, stored at %g, rest %d)",
             kind_names[c->kind], path_names[c->path], c->p.use == SKL_ATTENTION ? "attention" : "linear",
             divergences[c->p.divergence], (long long)c->batch, (long long)c->heads, (long long)c->n,
             (long long)c->columns, (long long)s->dim, (long long)t->dim, (long long)s->key_heads,
             (long long)t->key_heads, types[s->a.t.dtype], types[s->b.t.dtype], types[t->a.t.dtype],
             types[t->b.t.dtype], s->bias.memory != NULL, t->bias.memory != NULL, c->p.s.scale, c->p.t.scale,
             c->p.s.softcap, c->p.t.softcap, c->p.temperature, c->p.beta, s->spread, t->spread, s->offset, t->offset,
             c->weight.memory != NULL, (int)c->p.reduction, c->ids.memory != NULL, c->labels.weight,
             c->labels.kl_weight, c->labels.smoothing, c->labels.z_loss, (int)c->p.causal, (long long)c->p.window_left,
             (long long)c->p.window_right, c->begin.memory != NULL, c->end.memory != NULL, c->p.skip_below,
             skl_isa_name((enum skl_isa)c->p.isa), (int)c->p.threads, c->want, c->limit, c->p.listed != NULL,
             (int)c->listed.tail, (long long)c->k, c->listed.stored_temperature, c->list_rest.memory != NULL);
}
