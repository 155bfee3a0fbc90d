/* SPDX-License-Identifier: Apache-2.0 */
#include "ways.h"

#include <stdio.h>
#include <stdlib.h>

#define GUARD (-12345.678)

struct skl_tensor *outputs_row(struct skl_outputs *o, int which)
{
    struct skl_tensor *all[ROW_RESULTS] = {&o->loss, &o->lse_s,     &o->lse_t,     &o->kl_s,      &o->kl_t,
                                           &o->m_s,  &o->m_t,       &o->l_s,       &o->l_t,       &o->kl,
                                           &o->ce,   &o->entropy_s, &o->entropy_t, &o->logprob_s, &o->logprob_t,
                                           &o->l1_s, &o->m_rest,    &o->l_rest};
    return all[which];
}

static struct skl_tensor *grad_of(struct skl_outputs *o, int which)
{
    struct skl_grads *g = which < 3 ? &o->s : &o->t;
    return which % 3 == GRAD_A ? &g->a : which % 3 == GRAD_B ? &g->b : &g->bias;
}

static const struct skl_tensor *operand_of(const struct skl_problem *p, int which)
{
    const struct skl_side *s = which < 3 ? &p->s : &p->t;
    return which % 3 == GRAD_A ? &s->a : which % 3 == GRAD_B ? &s->b : &s->bias;
}

/* Does the problem have what the result needs? */
static int is_known(const struct call *c, int k)
{
    int of_labels = k == CE || k == LOGPROB_S || k == LOGPROB_T || k == L1_S, of_lists = k == M_REST || k == L_REST;
    int of_teacher = k == LSE_T || k == M_T || k == L_T || k == ENTROPY_T || k == LOGPROB_T;
    return !((k == KL_S || k == KL_T) && c->p.divergence != SKL_JSD) && !(of_labels && !c->p.labels) &&
           !(of_lists && !c->p.listed) && !(of_teacher && c->p.listed);
}

void outputs_rows(struct call *c, struct outputs *o, int which)
{
    for (int k = 0; k < ROW_RESULTS; k++) {
        if (!(which & 1 << k) || !is_known(c, k))
            continue;
        o->row[k] = view_make(&c->random, SKL_F32, c->ndim, c->lead, 0);
        *outputs_row(&o->out, k) = o->row[k].t;
    }
}

void outputs_grads(struct call *c, const struct skl_problem *p, struct outputs *o, int which, int half)
{
    for (int k = 0; k < GRADS; k++) {
        const struct skl_tensor *of = operand_of(p, k);
        if (!(which & 1 << k) || !of->data)
            continue;
        int dtype = half & 1 << k ? of->dtype : SKL_F32;
        o->grad[k] = view_make(&c->random, dtype, of->ndim, of->shape, k % 3 == GRAD_BIAS ? 0 : VIEW_OPERAND);
        *grad_of(&o->out, k) = o->grad[k].t;
    }
}

static void outputs_value(struct outputs *o)
{
    o->value[0] = o->value[1] = o->value[2] = GUARD;
    o->out.value = &o->value[1];
}

void outputs_take(struct judge *j, struct outputs *o, struct written *w)
{
    for (int k = 0; k < ROW_RESULTS; k++) {
        if (!o->row[k].memory)
            continue;
        w->row[k] = view_read(&o->row[k].t);
        if (!view_only_elements(&o->row[k]))
            judge_fail(j, "result %d over the rows: written beside its elements", k);
    }
    for (int k = 0; k < GRADS; k++) {
        if (!o->grad[k].memory)
            continue;
        w->grad[k] = view_read(&o->grad[k].t);
        w->grad_dtype[k] = o->grad[k].t.dtype;
        if (!view_only_elements(&o->grad[k]))
            judge_fail(j, "gradient %d: written beside its elements", k);
    }
    w->no_value = !o->out.value;
    if (o->out.value && (o->value[0] != GUARD || o->value[2] != GUARD))
        judge_fail(j, "value: written beside it");
    w->value = o->value[1];
}

void outputs_free(struct outputs *o)
{
    for (int k = 0; k < ROW_RESULTS; k++) view_free(&o->row[k]);
    for (int k = 0; k < GRADS; k++) view_free(&o->grad[k]);
}

int way_ok(struct judge *j, const char *call, enum skl_status status)
{
    if (status != SKL_OK)
        judge_fail(j, "%s: %s: %s", call, skl_status_string(status), skl_last_error());
    return status == SKL_OK;
}

/* ---------------------------------------------------------------------------------------------- workspace --- */

/* The least that the call can do with, out of the sentence that refuses 1 byte. */
static size_t least_workspace(struct judge *j, enum skl_call call, struct skl_problem p, const struct skl_outputs *out)
{
    size_t bytes = 0;
    p.workspace_limit = 1;
    if (skl_workspace_size(call, &p, out, &bytes) == SKL_OK)
        return 0;
    const char *at = strstr(skl_last_error(), "needs at least ");
    if (!at || sscanf(at, "needs at least %zu bytes", &bytes) != 1)
        judge_fail(j, "workspace_limit = 1: %s", skl_last_error());
    return bytes;
}

/* For one thread: more of them would take more, and the limit must not depend on their number if the bits shall not. */
static void set_limit(struct call *c, struct judge *j, enum skl_call call, struct skl_problem *p,
                      const struct skl_outputs *out)
{
    struct skl_problem one = *p;
    size_t bytes = 0, least;
    one.threads = 1;
    if (!c->limit || !way_ok(j, "skl_workspace_size", skl_workspace_size(call, &one, out, &bytes)))
        return;
    least = least_workspace(j, call, one, out);
    p->workspace_limit = c->limit == 1 || bytes <= least ? least : least + (bytes - least) / 3;
    if (!way_ok(j, "skl_workspace_size within the limit", skl_workspace_size(call, p, out, &bytes)))
        return;
    if (p->workspace_limit && bytes > p->workspace_limit)
        judge_fail(j, "takes %zu bytes, the limit is %zu", bytes, p->workspace_limit);
}

/* -------------------------------------------------------------------------------------------------- ways --- */

static void value_way(struct call *c, struct judge *j, struct skl_problem p, struct written *w)
{
    struct outputs o = {.out = skl_no_outputs()};
    outputs_rows(c, &o, c->want_rows);
    outputs_value(&o);
    if (c->path == PATH_GRAD)
        outputs_grads(c, &p, &o, c->want, c->half_grads);
    set_limit(c, j, c->path == PATH_GRAD ? SKL_CALL_VALUE_AND_GRAD : SKL_CALL_VALUE, &p, &o.out);
    if (c->path == PATH_GRAD)
        way_ok(j, "skl_value_and_grad", skl_value_and_grad(&p, &o.out));
    else
        way_ok(j, "skl_value", skl_value(&p, &o.out));
    outputs_take(j, &o, w);
    outputs_free(&o);
}

/* What a backward finds: the parts of the LSEs or the LSEs, and the loss or the KLs where it needs them, which the
 * problem says. */
static struct skl_outputs saved_of(const struct call *c, const struct skl_outputs *out)
{
    struct skl_outputs saved = *out, none = skl_no_outputs();
    saved.value = NULL;
    if (c->path == PATH_BACKWARD)
        saved.lse_s = saved.lse_t = none.loss;
    else if (c->path == PATH_BACKWARD_LSE)
        saved.m_s = saved.m_t = saved.l_s = saved.l_t = none.loss;
    return saved;
}

static void backward_way(struct call *c, struct judge *j, struct skl_problem p, struct written *w)
{
    struct outputs o = {.out = skl_no_outputs()}, grads = {.out = skl_no_outputs()};
    struct written gradients = {0};
    outputs_rows(c, &o, (1 << ROW_RESULTS) - 1);
    outputs_value(&o);
    outputs_grads(c, &p, &grads, c->want, c->half_grads);
    way_ok(j, "skl_value", skl_value(&p, &o.out));
    struct skl_outputs saved = saved_of(c, &o.out);
    set_limit(c, j, SKL_CALL_BACKWARD, &p, &grads.out);
    for (int k = 0; k < ROW_RESULTS; k++) view_remember(&o.row[k]);
    way_ok(j, "skl_backward", skl_backward(&p, &saved, &grads.out));
    for (int k = 0; k < ROW_RESULTS; k++)
        if (!view_unchanged(&o.row[k]))
            judge_fail(j, "skl_backward wrote into saved result %d", k);
    outputs_take(j, &grads, &gradients);
    outputs_take(j, &o, w);
    memcpy(w->grad, gradients.grad, sizeof w->grad);
    memcpy(w->grad_dtype, gradients.grad_dtype, sizeof w->grad_dtype);
    outputs_free(&o), outputs_free(&grads);
}

static void way(struct call *c, struct judge *j, struct skl_problem p, struct written *w)
{
    if (c->path == PATH_BACKWARD || c->path == PATH_BACKWARD_LSE)
        backward_way(c, j, p, w);
    else
        value_way(c, j, p, w);
}

static int same_bits(const double *x, const double *y, int64_t n)
{
    return !x || !y || !memcmp(x, y, (size_t)n * sizeof *x);
}

/* The same bits for any number of threads; the layout of the outputs, drawn anew, does not matter either. */
static void once_more(struct call *c, struct judge *j, const struct oracle *o, const struct written *first)
{
    struct written second = {0};
    struct skl_problem p = c->p;
    p.threads = p.threads % 4 + 1;
    way(c, j, p, &second);
    int same = same_bits(&first->value, &second.value, 1);
    for (int k = 0; k < ROW_RESULTS; k++) same &= same_bits(first->row[k], second.row[k], o->row[k].n);
    for (int k = 0; k < GRADS; k++) same &= same_bits(first->grad[k], second.grad[k], o->grad[k].n);
    if (!same)
        judge_fail(j, "other bits on %d threads than on %d", (int)p.threads, (int)c->p.threads);
    written_free(&second);
}

enum { INPUTS = 13 };

static void check_inputs(struct call *c, struct judge *j)
{
    const struct view *all[INPUTS] = {
        &c->side[0].a, &c->side[0].b, &c->side[0].bias, &c->side[1].a, &c->side[1].b,     &c->side[1].bias, &c->begin,
        &c->end,       &c->weight,    &c->ids,          &c->list_ids,  &c->list_logprobs, &c->list_rest};
    for (int i = 0; i < INPUTS; i++)
        if (!view_unchanged(all[i]))
            judge_fail(j, "input %d was written to", i);
}

void way_run(struct call *c, struct judge *j)
{
    if (c->path == PATH_SHARDS) {
        way_shards(c, j);
        check_inputs(c, j);
        return;
    }
    struct written w = {0};
    struct oracle o = oracle_of(c, c->path == PATH_BACKWARD_LSE);
    way(c, j, c->p, &w);
    judge_rows(j, &o, &w, 1);
    judge_grads(j, &o, &w, c->path != PATH_BACKWARD_LSE || c->kind == KIND_IDENTICAL);
    if (c->again)
        once_more(c, j, &o, &w);
    check_inputs(c, j);
    written_free(&w);
    oracle_free(&o);
}
