/* SPDX-License-Identifier: Apache-2.0
 * The border: every rule about the arguments is checked here, once, before anything is written. */
#include "check.h"

#include "adopt.h"
#include "error.h"
#include "tensor.h"
#include "work.h"

#include <stdio.h>

/* ------------------------------------------------------------------------------------------- one number --- */

/* Of alpha-beta: with a larger exponent powers of probabilities underflow in f32; with a smaller sum alpha + beta, by
 * which the terms are divided, no digits are left. */
static const double LARGEST_EXPONENT = 16, LEAST_EXPONENTS = 1e-3;

/* How many divergences there are, and the names that people know them by. */
#define SKL_DIVERGENCE(divergence, name, form, student, param_p, param_q) [divergence] = (name),
static const char *const divergence_names[] = {
#include "divergences.def"
};
#undef SKL_DIVERGENCE
enum { DIVERGENCES = sizeof divergence_names / sizeof *divergence_names };

/* The numbers that only some divergences have. */
static enum skl_status check_divergence(const struct skl_problem *p)
{
    int skewed = p->divergence == SKL_SKEW_FORWARD_KL || p->divergence == SKL_SKEW_REVERSE_KL;
    if (p->skew != 0 && !skewed)
        return skl_bad_real("skew", p->skew, "only SKL_SKEW_FORWARD_KL and SKL_SKEW_REVERSE_KL have it");
    if (skewed && !(p->skew >= 0 && p->skew < 1))
        return skl_bad_real("skew", p->skew, "it must be strictly between 0 and 1 (0: the default, 0.1)");
    if (p->alpha != 0 && p->divergence != SKL_ALPHA_BETA)
        return skl_bad_real("alpha", p->alpha, "only SKL_ALPHA_BETA has it");
    if (p->divergence == SKL_ALPHA_BETA && !(p->alpha >= 0 && p->alpha <= LARGEST_EXPONENT))
        return skl_bad_real("alpha", p->alpha, "it must be from 0 to 16");
    if (p->divergence == SKL_ALPHA_BETA && !(p->beta >= 0 && p->beta <= LARGEST_EXPONENT))
        return skl_bad_real("beta", p->beta, "it must be from 0 to 16");
    if (p->divergence == SKL_ALPHA_BETA && !(p->alpha + p->beta >= LEAST_EXPONENTS))
        return skl_bad_real("beta", p->beta,
                            "alpha + beta must be at least 0.001: the limit at 0 is another divergence");
    if (p->divergence == SKL_JSD && !(p->beta >= 0 && p->beta <= 1))
        return skl_bad_real("beta", p->beta, "it must be from 0 (forward KL) to 1 (reverse KL)");
    return SKL_OK;
}

/* Fills in the defaults of the divergence's numbers. A JSD with beta 0 or 1 becomes the KL that other libraries mean by
 * it. An exponent so small that no f32 result could show it becomes 0. */
static void settle_divergence(struct skl_problem *p)
{
    if (p->divergence == SKL_JSD && (p->beta == 0 || p->beta == 1))
        p->divergence = p->beta == 0 ? SKL_FORWARD_KL : SKL_REVERSE_KL;
    if (p->skew == 0)
        p->skew = 0.1;
    if (p->divergence == SKL_ALPHA_BETA) {
        p->alpha = p->alpha < 1e-10 ? 0 : p->alpha;
        p->beta = p->beta < 1e-10 ? 0 : p->beta;
    }
}

static enum skl_status check_numbers(const struct skl_problem *p)
{
    if (p->use < SKL_ATTENTION || p->use > SKL_INDEXER)
        return skl_bad("use", p->use, "it must be SKL_ATTENTION, SKL_LINEAR or SKL_INDEXER");
    if (p->identity && (p->identity != 1 || p->use != SKL_INDEXER))
        return skl_bad("identity", p->identity, "it must be 0, or 1 for an indexer without ReLU");
    if (p->divergence < 0 || p->divergence >= DIVERGENCES)
        return skl_bad("divergence", p->divergence, "it must be one of enum skl_divergence");
    if (p->reduction != SKL_MEAN && p->reduction != SKL_SUM)
        return skl_bad("reduction", p->reduction, "it must be SKL_MEAN or SKL_SUM");
    if (!(p->temperature > 0 && p->temperature < HUGE_VAL))
        return skl_bad_real("temperature", p->temperature, "it must be positive and finite");
    TRY(check_divergence(p));
    if (p->window_left < -1)
        return skl_bad("window_left", p->window_left, "it must be -1 (no limit) or a number of columns");
    if (p->window_right < -1)
        return skl_bad("window_right", p->window_right, "it must be -1 (no limit) or a number of columns");
    if (p->use == SKL_LINEAR && p->causal)
        return skl_bad("causal", p->causal, "a vocabulary has no order: causal is for attention");
    if (p->use == SKL_LINEAR && p->window_left != -1)
        return skl_bad("window_left", p->window_left, "a vocabulary has no order: windows are for attention");
    if (p->use == SKL_LINEAR && p->window_right != -1)
        return skl_bad("window_right", p->window_right, "a vocabulary has no order: windows are for attention");
    if (p->columns < 0)
        return skl_bad("columns", p->columns, "it must be 0 (all) or a number of columns");
    if (p->threads < 0 || p->threads > SKL_THREADS_MAX)
        return skl_bad("threads", p->threads, "it must be from 0 (one for each processor) to 4096");
    if (!(p->skip_below >= 0 && p->skip_below < 1))
        return skl_bad_real("skip_below", p->skip_below, "it must be at least 0 (nothing but zeros) and below 1");
    if (!(p->num_items >= 0 && p->num_items < HUGE_VAL))
        return skl_bad_real("num_items", p->num_items, "it must be 0 (the sum of the weights), or positive and finite");
    if (p->round_dz != 0 && p->round_dz != 1)
        return skl_bad("round_dz", p->round_dz, "it must be 0 or 1");
    if (p->split_f32 < SKL_SPLIT_WHERE_FASTER || p->split_f32 > SKL_SPLIT_ALWAYS)
        return skl_bad("split_f32", p->split_f32, "it must be one of enum skl_split");
    if (p->isa < SKL_ISA_BEST || p->isa > SKL_ISA_NEONBF16)
        return skl_bad("isa", p->isa, "it must be one of enum skl_isa");
    if (p->any_order != 0 && p->any_order != 1)
        return skl_bad("any_order", p->any_order, "it must be 0 or 1");
    if (p->reserved_pool)
        return skl_bad("problem.reserved_pool", p->reserved_pool, "it must be 0");
    if (p->pool && !p->pool_block)
        return skl_bad("pool", p->pool, "there is no pool_block");
    if (p->reserved)
        return skl_bad("problem.reserved", p->reserved, "it must be 0");
    return SKL_OK;
}

/* ----------------------------------------------------------------------------------------------- devices --- */

int skl_name_inputs(const struct skl_problem *p, struct skl_named to[SKL_INPUTS])
{
    static const struct skl_tensor not_given;
    const struct skl_named all[SKL_INPUTS] = {
        {"s.a", &p->s.a},
        {"s.b", &p->s.b},
        {"t.a", &p->t.a},
        {"t.b", &p->t.b},
        {"s.bias", &p->s.bias},
        {"t.bias", &p->t.bias},
        {"begin", &p->begin},
        {"end", &p->end},
        {"weight", &p->weight},
        {"labels.ids", p->labels ? &p->labels->ids : &not_given},
        {"mass_ids", &p->mass_ids},
        {"lse_t", &p->lse_t},
        {"head_map", &p->head_map},
        {"listed.ids", p->listed ? &p->listed->ids : &not_given},
        {"listed.logprobs", p->listed ? &p->listed->logprobs : &not_given},
        {"listed.tail_logprob", p->listed ? &p->listed->tail_logprob : &not_given},
        {"cu_seqlens_q", &p->cu_seqlens_q},
        {"cu_seqlens_k", &p->cu_seqlens_k},
        {"support", &p->support},
        {"sink_s", &p->sink_s},
        {"sink_t", &p->sink_t}};
    memcpy(to, all, sizeof all);
    return SKL_INPUTS;
}

static void device_name(const struct skl_tensor *t, char name[24])
{
    if (t->device == SKL_CPU)
        snprintf(name, 24, "cpu");
    else
        snprintf(name, 24, "cuda:%d", (int)t->device_index);
}

enum skl_status skl_check_devices(const struct skl_problem *p, const struct skl_named *each, int n)
{
    const struct skl_tensor *first = &p->s.a;
    for (int i = 0; i < n; i++) {
        const struct skl_tensor *t = each[i].tensor;
        if (!t->data || (t->device == first->device && t->device_index == first->device_index))
            continue;
        char here[24], there[24];
        device_name(t, here);
        device_name(first, there);
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s on %s: s.a is on %s", each[i].name, here, there);
    }
    return SKL_OK;
}

static enum skl_status check_workspace(const struct skl_problem *p)
{
    if (p->workspace && p->s.a.device == SKL_CPU)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use workspace = %p: on the CPU a call allocates its own",
                        p->workspace);
    if ((uintptr_t)p->workspace % 256)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use workspace = %p: it must be aligned to 256 bytes", p->workspace);
    if (!p->workspace && p->workspace_bytes)
        return skl_bad("workspace_bytes", (long long)p->workspace_bytes, "there is no workspace");
    return SKL_OK;
}

/* ------------------------------------------------------------------------------------------------- sides --- */

enum skl_status skl_check_rows(const char *name, const struct skl_tensor *t, const struct skl_problem *p, int dtype,
                               int output)
{
    const struct skl_tensor *a = &p->s.a;
    int64_t queries[2] = {a->shape[0], a->shape[2]};
    struct skl_rule rule = {name, a->ndim - 1, 1 << dtype, a->shape, 0, output};
    if (p->use == SKL_INDEXER)
        rule.ndim = 2, rule.shape = queries;
    return t->data ? skl_check_tensor(t, &rule) : SKL_OK;
}

/* The names of one side's arguments, for the sentences. */
struct side_names {
    const char *a, *b, *bias, *scale, *softcap;
};
static const struct side_names student_names = {"s.a", "s.b", "s.bias", "s.scale", "s.softcap"};
static const struct side_names teacher_names = {"t.a", "t.b", "t.bias", "t.scale", "t.softcap"};

static enum skl_status check_operands(const struct skl_problem *p, const struct skl_side *s,
                                      const struct side_names *names)
{
    int attention = p->use != SKL_LINEAR, index = p->use == SKL_INDEXER && s == &p->s;
    const struct skl_tensor *a = &s->a, *b = &s->b;
    struct skl_rule rule_a = {names->a, attention ? 4 : 0, SKL_FLOATS, NULL, 1, 0};
    TRY(skl_check_tensor(a, &rule_a));
    int64_t dim = a->shape[a->ndim - 1];
    if (dim < 1 || dim > SKL_LONGEST)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s.shape[%d] = %lld: vectors must have from 1 to 2^40 entries",
                        names->a, (int)a->ndim - 1, (long long)dim);
    int64_t keys[4] = {a->shape[0], -1, -1, dim}, head[2] = {-1, dim}, vocabulary[1] = {b->shape[0]};
    struct skl_rule rule_b = {names->b, attention ? 4 : 2, SKL_FLOATS, attention ? keys : head, 1, 0};
    TRY(skl_check_tensor(b, &rule_b));
    if (attention && (b->shape[1] == 0 ? a->shape[1] != 0 : a->shape[1] % b->shape[1] != 0))
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s.shape[1] = %lld heads: it must divide the %lld heads of %s",
                        names->b, (long long)b->shape[1], (long long)a->shape[1], names->a);
    if (index)
        TRY(skl_check_indexer(p));
    if (s->bias.data && !index) {
        struct skl_rule rule = {names->bias, 1, SKL_FLOATS, vocabulary, 0, 0};
        if (attention)
            return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s.data = %p: a column bias is for linear problems",
                            names->bias, s->bias.data);
        TRY(skl_check_tensor(&s->bias, &rule));
    }
    if (!(s->scale > -HUGE_VAL && s->scale < HUGE_VAL))
        return skl_bad_real(names->scale, s->scale, "it must be finite (0: the default)");
    if (!(s->softcap >= 0 && s->softcap < HUGE_VAL))
        return skl_bad_real(names->softcap, s->softcap, "it must be 0 (none), or positive and finite");
    return SKL_OK;
}

/* ----------------------------------------------------------------------------------------------- problem --- */

/* Their number is multiplied by what a row has. */
static enum skl_status check_row_count(const struct skl_problem *p)
{
    double rows = 1;
    for (int i = 0; i < p->s.a.ndim - 1; i++) rows *= (double)p->s.a.shape[i];
    return rows <= (double)SKL_LONGEST
               ? SKL_OK
               : skl_fail(SKL_BAD_ARGUMENT, "cannot use s.a with %.4g rows: there may be at most 2^40", rows);
}

static enum skl_status check_columns(const struct skl_problem *p)
{
    int64_t m_s = p->s.b.shape[p->s.b.ndim - 2], m_t = p->t.a.data ? p->t.b.shape[p->t.b.ndim - 2] : m_s;
    if (p->pool_block)
        return skl_check_pooled(p);
    if (!p->columns && m_s != m_t)
        return skl_fail(SKL_BAD_ARGUMENT,
                        "cannot use columns = 0 with s.b of %lld and t.b of %lld rows: say how many columns are valid",
                        (long long)m_s, (long long)m_t);
    if (p->columns > m_s || p->columns > m_t)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use columns = %lld: s.b has %lld rows and t.b %lld",
                        (long long)p->columns, (long long)m_s, (long long)m_t);
    if (!p->columns && m_s > SKL_LONGEST)
        return skl_bad("columns", m_s, "there may be at most 2^40");
    if (p->columns > SKL_LONGEST)
        return skl_bad("columns", p->columns, "there may be at most 2^40");
    return SKL_OK;
}

static enum skl_status check_teacher(enum skl_call call, const struct skl_problem *p)
{
    int mixed = skl_mixes_heads(p);
    if (call == SKL_CALL_TOPK)
        return skl_check_topk(p); /* there is none */
    if (mixed && p->use == SKL_LINEAR)
        return skl_check_mixture(p); /* refuses it, whatever teacher there is */
    if (p->listed && (p->t.a.data || p->t.b.data || p->t.bias.data))
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use listed = %p with t.%s: there is one teacher",
                        (const void *)p->listed,
                        p->t.a.data   ? "a"
                        : p->t.b.data ? "b"
                                      : "bias");
    if (p->listed)
        return SKL_OK;
    if (p->labels && !p->t.a.data && !p->t.b.data) {
        if (p->divergence != SKL_FORWARD_KL)
            return skl_bad("divergence", p->divergence, "there is no teacher: leave it at SKL_FORWARD_KL");
        return SKL_OK;
    }
    TRY(check_operands(p, &p->t, &teacher_names));
    int lead = p->s.a.ndim - 1;
    int64_t like_s[4] = {-1, -1, -1, -1};
    for (int i = 0; i < lead; i++) like_s[i] = mixed && i == 1 ? -1 : p->s.a.shape[i];
    if (mixed)
        TRY(skl_check_mixture(p));
    struct skl_rule same_rows = {"t.a", p->s.a.ndim, SKL_FLOATS, like_s, 1, 0};
    return skl_check_tensor(&p->t.a, &same_rows);
}

/* What is in the tensors of integers, which may be read when every tensor has its shape and its device. Those of a
 * device are not looked at. */
static enum skl_status check_contents(const struct skl_problem *p)
{
    struct skl_work w = {0};
    if (p->s.a.device != SKL_CPU)
        return SKL_OK;
    if (p->head_map.data)
        TRY(skl_check_head_map(p));
    if (!p->listed && !p->labels && !p->mass_ids.data && !p->support.data)
        return SKL_OK;
    skl_fill_problem(p, &w);
    if (p->support.data)
        TRY(skl_check_support_entries(p, &w));
    if (p->listed)
        TRY(skl_check_listed_entries(p, &w));
    if (p->labels)
        TRY(skl_check_label_ids(p, &w));
    return p->mass_ids.data ? skl_check_mass_columns(&w) : SKL_OK;
}

static enum skl_status check_problem(enum skl_call call, const struct skl_problem *p)
{
    TRY(check_numbers(p));
    TRY(check_operands(p, &p->s, &student_names));
    TRY(check_row_count(p));
    TRY(check_teacher(call, p));
    TRY(check_columns(p));
    TRY(skl_check_rows("begin", &p->begin, p, SKL_I32, 0));
    TRY(skl_check_rows("end", &p->end, p, SKL_I32, 0));
    TRY(skl_check_rows("weight", &p->weight, p, SKL_F32, 0));
    struct skl_named inputs[SKL_INPUTS];
    if (p->listed)
        TRY(skl_check_listed(p));
    if (p->labels && p->shard)
        TRY(skl_check_place(p));
    if (p->labels)
        TRY(skl_check_labels(p));
    if (p->mass_ids.data)
        TRY(skl_check_mass_ids(p));
    TRY(skl_check_support(p));
    TRY(skl_check_devices(p, inputs, skl_name_inputs(p, inputs)));
    TRY(skl_check_packed(p));
    TRY(check_contents(p));
    return check_workspace(p);
}

/* -------------------------------------------------------------------------------------------------- call --- */

enum skl_status skl_check(enum skl_call call, const struct skl_problem *problem, const struct skl_outputs *saved,
                          const struct skl_outputs *out, const struct skl_state *state, struct skl_work *w)
{
    struct skl_problem p = {0};
    struct skl_parts parts;
    struct skl_outputs o = {0}, s = {0};
    int partial = call == SKL_CALL_PARTIAL;
    *w = (struct skl_work){0};
    TRY(skl_adopt_problem(problem, &p, &parts));
    if (p.labels && (partial || state))
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use labels = %p with partial rows: labels need all columns",
                        (const void *)p.labels);
    if (p.listed && (partial || state))
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use listed = %p with partial rows: lists need all columns",
                        (const void *)p.listed);
    if (p.support.data && (partial || state))
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use support.data = %p with partial rows: lists need all columns",
                        p.support.data);
    TRY(check_problem(call, &p));
    TRY(skl_check_sinks(&p, partial || state));
    if (p.shard)
        TRY(skl_check_shard(call, &p, state));
    settle_divergence(&p);
    skl_fill_problem(&p, w);
    if (call == SKL_CALL_BACKWARD)
        w->shard.exchange = NULL;
    if (!partial) {
        TRY(skl_adopt_outputs("out", out, &o));
        TRY(skl_take_outputs(call, &p, &o, w));
        if (state || p.shard)
            TRY(skl_check_finished(&o, p.shard != NULL,
                                   state ? "partial rows do not know it" : "shards do not know it"));
        TRY(skl_check_doubles("out.value", o.value));
    }
    if (saved && partial && skl_sweeps(w->form) == 1)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use saved = %p: %s KL has no second sweep", (const void *)saved,
                        divergence_names[p.divergence]);
    if (saved) {
        TRY(skl_adopt_outputs("saved", saved, &s));
        TRY(skl_take_saved(&p, &s, w));
    }
    if (skl_mixes_heads(&p) || p.pool_block)
        TRY(skl_check_mixture_outputs(w, partial ? NULL : &o, partial || state));
    TRY(skl_check_doubles("state", state));
    TRY(skl_check_overlap(&p, saved ? &s : NULL, partial ? NULL : &o, state, w->rows));
    if (call == SKL_CALL_BACKWARD)
        TRY(skl_check_backward_outputs(&o));
    return SKL_OK;
}
