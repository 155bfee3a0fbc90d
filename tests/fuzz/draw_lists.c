/* SPDX-License-Identifier: Apache-2.0 */
#include "draw.h"

#include <stdlib.h>

int draw_is_listed(struct call *c)
{
    int kind = c->kind == KIND_ORDINARY || c->kind == KIND_OFFSET || c->kind == KIND_FLAT;
    int path = c->path == PATH_VALUE || c->path == PATH_GRAD || c->path == PATH_BACKWARD;
    return c->p.use == SKL_LINEAR && kind && path && rng_chance(&c->random, 40);
}

/* Any columns, or all of them, some twice, some slots empty; in some rows nothing. The masses sum to 'kept' at most. */
static void draw_row(struct call *c, int64_t row, double kept)
{
    struct rng *r = &c->random;
    int all = c->k == c->columns && rng_chance(r, 60), nothing = rng_chance(r, 6), few = rng_chance(r, 20);
    int forward = c->p.divergence == SKL_FORWARD_KL;
    double spread = RNG_PICK(r, 0.1, 1, 3, 10), *x = calloc((size_t)c->k + 1, sizeof *x), total = 0;
    if (!x)
        abort();
    for (int64_t k = 0; k < c->k; k++) total += exp(x[k] = spread * rng_normal(r));
    c->hi[row] = 0;
    for (int64_t k = 0; k < c->k; k++) {
        int64_t id = all ? c->columns - 1 - k : rng_between(r, 0, few && c->columns > 3 ? 3 : c->columns - 1);
        if (nothing || (!all && rng_chance(r, 15)))
            id = -1;
        if (id >= 0)
            c->hi[row] = c->columns;
        int massless = forward && rng_chance(r, 2);
        view_set(&c->list_ids.t, row * c->k + k, (double)id);
        view_set(&c->list_logprobs.t, row * c->k + k, massless ? -INFINITY : x[k] + log(kept / total));
    }
    free(x);
}

static int draw_tail(struct call *c)
{
    struct rng *r = &c->random;
    c->p.divergence = rng_chance(r, 60) ? SKL_FORWARD_KL : SKL_REVERSE_KL;
    return (int)rng_between(r, SKL_TAIL_BUCKET,
                            c->p.divergence == SKL_REVERSE_KL ? SKL_TAIL_RENORMALISE : SKL_TAIL_TEACHER);
}

void draw_lists(struct call *c)
{
    struct rng *r = &c->random;
    int64_t shape[4];
    int tail = draw_tail(c), own = tail == SKL_TAIL_RENORMALISE || tail == SKL_TAIL_TEACHER;
    c->k = rng_chance(r, 4) ? 0 : rng_chance(r, 20) ? c->columns : rng_size(r, 1, rng_chance(r, 10) ? 300 : 20);
    memcpy(shape, c->lead, sizeof c->lead);
    shape[c->ndim] = c->k;
    c->list_ids = view_make(r, rng_chance(r, 50) ? SKL_I64 : SKL_I32, c->ndim + 1, shape, VIEW_OPERAND);
    c->list_logprobs = view_make(r, (int)rng_between(r, SKL_F32, SKL_F16), c->ndim + 1, shape, VIEW_OPERAND);
    if (rng_chance(r, 40))
        c->list_rest = view_make(r, SKL_F32, c->ndim, c->lead, 0);
    for (int64_t i = 0; i < c->rows; i++) {
        int whole = c->p.divergence == SKL_FORWARD_KL && rng_chance(r, 20), logits = own && rng_chance(r, 50);
        draw_row(c, i, logits ? 40 : whole ? 1 : rng_real(r, 0.1, 0.95));
        if (c->list_rest.memory)
            view_set(&c->list_rest.t, i, -8 * rng_unit(r));
    }
    double stored = rng_chance(r, 40) ? 0 : rng_chance(r, 50) ? c->p.temperature : RNG_PICK(r, 0.7, 1, 2);
    c->listed = (struct skl_listed){
        sizeof c->listed, c->list_ids.t, c->list_logprobs.t, c->list_rest.t, tail, 0, stored};
}
