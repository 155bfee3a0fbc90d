/* SPDX-License-Identifier: Apache-2.0
 * The border, of what a call writes: results of rows and gradients, and of what a backward finds saved. */
#include "check.h"
#include "error.h"
#include "tensor.h"
#include "work.h"

/* The results of a row, as skl_outputs has them: a value writes them, a backward may find them in 'saved'. */
static const struct {
    const char *name, *saved_name;
    size_t at; /* in struct skl_outputs */
    int dtype, needs;
} row_results[] = {
#define SKL_ROW_RESULT(name, dtype, needs, value) \
    {"out." #name, "saved." #name, offsetof(struct skl_outputs, name), dtype, needs},
#include "row_results.def"
#undef SKL_ROW_RESULT
};

enum { ROWS = SKL_ROW_RESULTS, OTHERS = 10, OUTPUTS = OTHERS + ROWS };

/* What the problem or the call lacks of what the result needs; NULL: nothing. */
static const char *lacking(enum skl_call call, const struct skl_problem *p, int i)
{
    int needs = row_results[i].needs;
    if ((needs & SKL_NEEDS_TOPK) && call != SKL_CALL_TOPK)
        return "only skl_topk makes lists";
    if (call == SKL_CALL_TOPK && !(needs & SKL_NEEDS_TOPK) && i != SKL_ROW_lse_s)
        return "skl_topk does not tell it";
    if ((needs & SKL_NEEDS_TEACHER) && !p->t.a.data)
        return p->listed ? "a listed teacher does not tell it" : "there is no teacher";
    if ((needs & SKL_NEEDS_DIVERGENCE) && !p->t.a.data && !p->listed)
        return "there is no teacher";
    if ((needs & SKL_NEEDS_LABELS) && !p->labels)
        return "there are no labels";
    if ((needs & SKL_NEEDS_MASS_IDS) && !p->mass_ids.data)
        return "there are no mass_ids";
    if ((needs & SKL_NEEDS_LIST) && !p->listed)
        return "there is no listed teacher";
    if ((needs & SKL_NEEDS_SINKS) && !p->sink_s.data)
        return "there is no sink";
    int one_sweep = p->divergence == SKL_FORWARD_KL || p->divergence == SKL_REVERSE_KL;
    return (needs & SKL_NEEDS_TWO_SWEEPS) && one_sweep ? "forward and reverse KL have no such result" : NULL;
}

static const struct skl_tensor *row_result(const struct skl_outputs *o, int i)
{
    return (const struct skl_tensor *)((const char *)o + row_results[i].at);
}

static int name_saved(const struct skl_outputs *o, struct skl_named to[ROWS])
{
    for (int i = 0; i < ROWS; i++) to[i] = (struct skl_named){row_results[i].saved_name, row_result(o, i)};
    return ROWS;
}

static int name_outputs(const struct skl_outputs *o, struct skl_named to[OUTPUTS])
{
    const struct skl_named others[OTHERS] = {{"out.s.a", &o->s.a},
                                             {"out.s.b", &o->s.b},
                                             {"out.s.bias", &o->s.bias},
                                             {"out.t.a", &o->t.a},
                                             {"out.t.b", &o->t.b},
                                             {"out.t.bias", &o->t.bias},
                                             {"out.grad_sink_s", &o->grad_sink_s},
                                             {"out.grad_sink_t", &o->grad_sink_t},
                                             {"out.topk_ids", &o->topk_ids},
                                             {"out.topk_logprobs", &o->topk_logprobs}};
    memcpy(to, others, sizeof others);
    for (int i = 0; i < ROWS; i++) to[OTHERS + i] = (struct skl_named){row_results[i].name, row_result(o, i)};
    return OUTPUTS;
}

/* The names of one side's gradients, and of its bias, for the sentences. */
struct grad_names {
    const char *a, *b, *bias, *of_bias;
};
static const struct grad_names student_names = {"out.s.a", "out.s.b", "out.s.bias", "s.bias"};
static const struct grad_names teacher_names = {"out.t.a", "out.t.b", "out.t.bias", "t.bias"};

static enum skl_status check_grads(const struct skl_side *s, const struct skl_grads *g, const struct grad_names *names)
{
    struct {
        const char *name;
        const struct skl_tensor *of, *grad;
    } each[3] = {{names->a, &s->a, &g->a}, {names->b, &s->b, &g->b}, {names->bias, &s->bias, &g->bias}};
    for (int i = 0; i < 3; i++) {
        if (!each[i].grad->data)
            continue;
        if (i == 2 && !each[i].of->data)
            return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s.data = %p: there is no %s to be differentiated",
                            each[i].name, each[i].grad->data, names->of_bias);
        struct skl_rule rule = {
            each[i].name, each[i].of->ndim, 1 << SKL_F32 | 1 << each[i].of->dtype, each[i].of->shape, i < 2, 1};
        TRY(skl_check_tensor(each[i].grad, &rule));
    }
    return SKL_OK;
}

/* out.value, or the states of skl_partial and skl_finish, as a tensor of f32, to be compared with the others. */
static struct skl_tensor doubles_of(const struct skl_problem *p, const void *data, int64_t doubles)
{
    struct skl_tensor t = skl_vector(SKL_F32, data, 2 * doubles);
    t.device = p->s.a.device, t.device_index = p->s.a.device_index;
    return t;
}

enum skl_status skl_check_doubles(const char *name, const void *data)
{
    if ((uintptr_t)data % sizeof(double))
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s = %p: it must be aligned to %d bytes", name, data,
                        (int)sizeof(double));
    return SKL_OK;
}

/* Outputs share memory with nothing. */
static enum skl_status check_disjoint(const struct skl_named *outputs, int n_out, const struct skl_named *inputs,
                                      int n_in)
{
    for (int i = 0; i < n_out; i++) {
        for (int j = 0; j < i + n_in; j++) {
            const struct skl_named *x = &outputs[i], *y = j < i ? &outputs[j] : &inputs[j - i];
            if (!skl_disjoint(x->tensor, y->tensor))
                return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s.data = %p: it shares memory with %s", x->name,
                                x->tensor->data, y->name);
        }
    }
    return SKL_OK;
}

enum skl_status skl_check_overlap(const struct skl_problem *p, const struct skl_outputs *saved,
                                  const struct skl_outputs *out, const struct skl_state *state, int64_t rows)
{
    struct skl_named outputs[OUTPUTS + 2], inputs[SKL_INPUTS + ROWS + 1];
    struct skl_tensor value = doubles_of(p, out ? out->value : NULL, 1);
    struct skl_tensor states = doubles_of(p, state, rows * (int64_t)(sizeof *state / sizeof(double)));
    int n_in = skl_name_inputs(p, inputs), n_out = 0;
    if (saved)
        n_in += name_saved(saved, inputs + n_in);
    if (out) {
        n_out = name_outputs(out, outputs);
        outputs[n_out++] = (struct skl_named){"out.value", &value};
        inputs[n_in++] = (struct skl_named){"the states", &states};
    } else {
        outputs[n_out++] = (struct skl_named){"state", &states};
    }
    return check_disjoint(outputs, n_out, inputs, n_in);
}

static enum skl_status check_row_outputs(enum skl_call call, const struct skl_problem *p, const struct skl_outputs *o,
                                         int saved)
{
    for (int i = 0; i < ROWS; i++) {
        const struct skl_tensor *t = row_result(o, i);
        const char *name = saved ? row_results[i].saved_name : row_results[i].name;
        const char *why = lacking(call, p, i);
        if (t->data && why)
            return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s.data = %p: %s", name, t->data, why);
        TRY(skl_check_rows(name, t, p, row_results[i].dtype, !saved));
    }
    return SKL_OK;
}

static int any_grad(const struct skl_grads *g)
{
    return g->a.data || g->b.data || g->bias.data;
}

/* What a backward must find in 'saved', given whose gradient is wanted. */
static enum skl_status check_saved(const struct skl_outputs *saved, const struct skl_work *w)
{
    int listed = w->listed.given, sweep = listed && !skl_on_support(w);
    int one = w->form == SKL_FORM_NONE, two = skl_sweeps(w->form) == 2, grads = w->grads | w->sink_grads;
    int parts = saved->m_s.data && saved->l_s.data && (one || (saved->m_t.data && saved->l_t.data));
    struct {
        enum skl_row_name name;
        int needed;
    } each[] = {{SKL_ROW_lse_s, !parts && !listed},
                {SKL_ROW_lse_t, !parts && w->form != SKL_FORM_NONE},
                {skl_has_labels(w) ? SKL_ROW_kl : SKL_ROW_loss, w->form == SKL_FORM_KL && (grads & 1)},
                {SKL_ROW_m_s, skl_tempered(w)}, /* to which l1_s refers */
                {SKL_ROW_l_s, skl_tempered(w) && !listed},
                {SKL_ROW_l1_s, skl_has_labels(w) && w->temperature != 1},
                {SKL_ROW_kl_s, two && (grads & 1 << w->student)},
                {SKL_ROW_kl_t, two && (grads & 1 << !w->student)},
                {SKL_ROW_m_rest, sweep},
                {SKL_ROW_l_rest, sweep}};
    for (size_t i = 0; i < sizeof each / sizeof *each; i++)
        if (each[i].needed && !row_result(saved, each[i].name)->data)
            return skl_fail(SKL_BAD_ARGUMENT,
                            "cannot use %s.data = NULL: this backward needs what skl_value wrote there",
                            row_results[each[i].name].saved_name);
    return SKL_OK;
}

enum skl_status skl_check_backward_outputs(const struct skl_outputs *o)
{
    for (int i = 0; i < ROWS; i++)
        if (row_result(o, i)->data)
            return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s.data = %p: a backward writes gradients only",
                            row_results[i].name, row_result(o, i)->data);
    if (o->value)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use out.value = %p: a backward writes gradients only",
                        (void *)o->value);
    return SKL_OK;
}

enum skl_status skl_check_finished(const struct skl_outputs *o, int shard, const char *why)
{
    for (int i = SKL_ROW_kl; i < ROWS; i++) {
        int labels = i == SKL_ROW_kl || i == SKL_ROW_ce || i == SKL_ROW_logprob_s || i == SKL_ROW_l1_s;
        if (row_result(o, i)->data && !(shard && labels))
            return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s.data = %p: %s", row_results[i].name,
                            row_result(o, i)->data, why);
    }
    return SKL_OK;
}

static enum skl_status check_grad_outputs(enum skl_call call, const struct skl_problem *p,
                                          const struct skl_outputs *out)
{
    int of_s = any_grad(&out->s) || out->grad_sink_s.data, of_t = any_grad(&out->t) || out->grad_sink_t.data;
    if ((call == SKL_CALL_VALUE || call == SKL_CALL_TOPK) && (of_s || of_t))
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use out.%s gradients in %s: call skl_value_and_grad",
                        of_s ? "s" : "t", call == SKL_CALL_VALUE ? "skl_value" : "skl_topk");
    if ((p->labels || p->listed) && !p->t.a.data && !p->t.b.data && any_grad(&out->t))
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use out.t gradients: there is no teacher to be differentiated");
    TRY(skl_check_sink_outputs(p, out));
    TRY(check_grads(&p->s, &out->s, &student_names));
    return check_grads(&p->t, &out->t, &teacher_names);
}

enum skl_status skl_take_outputs(enum skl_call call, const struct skl_problem *p, const struct skl_outputs *out,
                                 struct skl_work *w)
{
    struct skl_named tensors[OUTPUTS];
    TRY(skl_check_topk_outputs(call, p, out));
    TRY(check_row_outputs(call, p, out, 0));
    TRY(check_grad_outputs(call, p, out));
    TRY(skl_check_devices(p, tensors, name_outputs(out, tensors)));
    skl_fill_outputs(out, w);
    return SKL_OK;
}

enum skl_status skl_take_saved(const struct skl_problem *p, const struct skl_outputs *saved, struct skl_work *w)
{
    struct skl_named tensors[ROWS];
    TRY(check_row_outputs(SKL_CALL_BACKWARD, p, saved, 1));
    TRY(skl_check_devices(p, tensors, name_saved(saved, tensors)));
    TRY(check_saved(saved, w));
    skl_fill_saved(saved, w);
    return SKL_OK;
}
