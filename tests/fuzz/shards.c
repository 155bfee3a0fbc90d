/* SPDX-License-Identifier: Apache-2.0
 * The columns in pieces, as if each were on a machine of its own: states, merged in any order, finished; then the
 * gradients of each piece from the results of the whole. */
#include "ways.h"

#include <stdlib.h>

enum { PIECES = 5, STATE_CANARY = 0x5a };

struct shards {
    int pieces;
    int64_t cut[PIECES + 1];
    struct skl_problem p[PIECES];
    struct view begin[PIECES], end[PIECES];
};

static void narrow(struct skl_tensor *t, int k, int64_t from, int64_t to)
{
    if (!t->data)
        return;
    int64_t size = t->dtype == SKL_F32 ? 4 : 2;
    t->data = (char *)t->data + from * t->stride[k] * size;
    t->shape[k] = to - from;
}

/* Masks are told by begin and end alone, counted from the piece's first column. */
static void range_of(struct call *c, struct shards *s, int i)
{
    int masked = 0;
    for (int64_t row = 0; row < c->rows; row++) masked |= c->lo[row] != 0 || c->hi[row] != c->columns;
    if (!masked)
        return;
    s->begin[i] = view_make(&c->random, SKL_I32, c->ndim, c->lead, 0);
    s->end[i] = view_make(&c->random, SKL_I32, c->ndim, c->lead, 0);
    for (int64_t row = 0; row < c->rows; row++) {
        view_set(&s->begin[i].t, row, (double)(c->lo[row] - s->cut[i]));
        view_set(&s->end[i].t, row, (double)(c->hi[row] - s->cut[i]));
    }
}

static int by_size(const void *x, const void *y)
{
    int64_t a = *(const int64_t *)x, b = *(const int64_t *)y;
    return (a > b) - (a < b);
}

/* Some pieces may be empty. */
static void cut(struct call *c, struct shards *s)
{
    s->pieces = (int)rng_between(&c->random, 1, PIECES);
    s->cut[0] = 0, s->cut[s->pieces] = c->columns;
    for (int i = 1; i < s->pieces; i++) s->cut[i] = rng_between(&c->random, 0, c->columns);
    qsort(s->cut, (size_t)s->pieces + 1, sizeof *s->cut, by_size);
    for (int i = 0; i < s->pieces; i++) {
        struct skl_problem *p = &s->p[i];
        *p = c->p;
        p->columns = 0, p->causal = 0, p->window_left = p->window_right = -1;
        for (int side = 0; side < 2; side++) {
            struct skl_side *to = side == STUDENT ? &p->s : &p->t;
            narrow(&to->b, to->b.ndim - 2, s->cut[i], s->cut[i + 1]);
            narrow(&to->bias, 0, s->cut[i], s->cut[i + 1]);
        }
        range_of(c, s, i);
        p->begin = s->begin[i].t, p->end = s->end[i].t;
    }
}

/* Every piece's states into state[], merged in a random order. */
static void sweep(struct call *c, struct judge *j, const struct shards *s, const struct skl_outputs *saved,
                  struct skl_state *state)
{
    size_t bytes = (size_t)c->rows * sizeof *state;
    int first = (int)rng_between(&c->random, 0, s->pieces - 1);
    struct skl_state *other = malloc(bytes + 2 * sizeof *other);
    for (int i = 0; other && i < s->pieces; i++) {
        memset(other, STATE_CANARY, bytes + 2 * sizeof *other);
        way_ok(j, "skl_partial", skl_partial(&s->p[(first + i) % s->pieces], saved, other + 1));
        for (size_t k = 0; k < sizeof *other; k++)
            if (((char *)other)[k] != STATE_CANARY || ((char *)(other + c->rows + 1))[k] != STATE_CANARY) {
                judge_fail(j, "skl_partial wrote beside the states");
                break;
            }
        if (i == 0)
            memcpy(state, other + 1, bytes);
        else
            way_ok(j, "skl_merge", skl_merge(c->rows, state, other + 1));
    }
    free(other);
}

/* The pieces' gradients of b side by side, those of a added up. */
static void add_piece(const struct call *c, const struct shards *s, int i, const struct written *piece,
                      struct written *w)
{
    for (int k = 0; k < GRADS; k++) {
        const struct side *side = &c->side[k / 3];
        int64_t dim = k % 3 == GRAD_BIAS ? 1 : side->dim, n = s->cut[i + 1] - s->cut[i];
        if (!piece->grad[k])
            continue;
        if (k % 3 == GRAD_A) {
            for (int64_t at = 0; at < c->rows * dim; at++) w->grad[k][at] += piece->grad[k][at];
            continue;
        }
        int64_t matrices = k % 3 == GRAD_BIAS || c->p.use != SKL_ATTENTION ? 1 : c->batch * side->key_heads;
        for (int64_t m = 0; m < matrices; m++)
            memcpy(w->grad[k] + (m * side->height + s->cut[i]) * dim, piece->grad[k] + m * n * dim,
                   (size_t)(n * dim) * 8);
    }
}

static void backward(struct call *c, struct judge *j, const struct shards *s, const struct skl_outputs *saved,
                     const struct oracle *o, struct written *w)
{
    for (int k = 0; k < GRADS; k++)
        w->grad[k] = c->want & 1 << k && o->grad[k].n ? calloc((size_t)o->grad[k].n, sizeof(double)) : NULL;
    for (int i = 0; i < s->pieces; i++) {
        struct outputs grads = {.out = skl_no_outputs()};
        struct written piece = {0};
        outputs_grads(c, &s->p[i], &grads, c->want, 0);
        way_ok(j, "skl_backward of a piece", skl_backward(&s->p[i], saved, &grads.out));
        outputs_take(j, &grads, &piece);
        add_piece(c, s, i, &piece, w);
        written_free(&piece);
        outputs_free(&grads);
    }
}

void way_shards(struct call *c, struct judge *j)
{
    struct shards s = {0};
    struct written w = {0}, gradients = {0};
    int jsd = c->p.divergence == SKL_JSD;
    struct skl_state *state = malloc((size_t)c->rows * sizeof *state);
    cut(c, &s);
    if (!state)
        abort();
    struct outputs lse = {.out = skl_no_outputs()}, all = {.out = skl_no_outputs()};
    sweep(c, j, &s, NULL, state);
    if (jsd) {
        outputs_rows(c, &lse, 1 << LSE_S | 1 << LSE_T | 1 << M_S | 1 << M_T | 1 << L_S | 1 << L_T);
        way_ok(j, "skl_finish of the LSEs", skl_finish(&s.p[0], state, &lse.out));
        sweep(c, j, &s, &lse.out, state);
        outputs_rows(c, &all, 1 << LOSS | 1 << KL_S | 1 << KL_T);
    } else {
        outputs_rows(c, &all, (1 << STATE_RESULTS) - 1);
    }
    all.out.value = &all.value[1];
    all.value[0] = all.value[2] = -12345.678;
    way_ok(j, "skl_finish", skl_finish(&s.p[s.pieces - 1], state, &all.out));
    struct skl_outputs saved = all.out;
    saved.value = NULL;
    for (int k = 0; jsd && k < ROW_RESULTS; k++)
        if (lse.row[k].memory)
            *outputs_row(&saved, k) = lse.row[k].t;

    /* JSD's second sweep reads LSEs that are rounded to f32. Gradients have the parts. */
    struct oracle rounded = oracle_of(c, jsd), o = oracle_of(c, 0);
    if (c->want)
        backward(c, j, &s, &saved, &o, &gradients);
    all.value[0] = all.value[2] = -12345.678;
    outputs_take(j, &all, &w);
    judge_rows(j, &rounded, &w, !jsd || c->kind == KIND_IDENTICAL);
    judge_grads(j, jsd ? &rounded : &o, &gradients, c->kind == KIND_IDENTICAL);
    oracle_free(&o), oracle_free(&rounded);
    written_free(&w), written_free(&gradients);
    outputs_free(&lse), outputs_free(&all);
    for (int i = 0; i < s.pieces; i++) view_free(&s.begin[i]), view_free(&s.end[i]);
    free(state);
}
