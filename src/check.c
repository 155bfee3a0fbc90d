/* SPDX-License-Identifier: Apache-2.0
 * The border: every rule about the arguments is checked here, once, before anything is written. */
#include "adopt.h"
#include "check_listed.h"
#include "error.h"
#include "tensor.h"
#include "work.h"

#include <stdio.h>

#define TRY(call)                    \
    do {                             \
        enum skl_status s_ = (call); \
        if (s_ != SKL_OK)            \
            return s_;               \
    } while (0)

static enum skl_status bad(const char *name, long long value, const char *rule)
{
    return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s = %lld: %s", name, value, rule);
}

static enum skl_status bad_real(const char *name, double value, const char *rule)
{
    return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s = %g: %s", name, value, rule);
}

/* ------------------------------------------------------------------------------------------- one number --- */

/* Of alpha-beta: with a larger exponent powers of probabilities underflow in f32; with a smaller sum alpha + beta, by
 * which the terms are divided, no digits are left. */
static const double LARGEST_EXPONENT = 16, LEAST_EXPONENTS = 1e-3;

/* How many divergences there are, and the names that people know them by. */
#define SKL_DIVERGENCE(divergence, name, form, student, param_p, param_q) [divergence] = name,
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
        return bad_real("skew", p->skew, "only SKL_SKEW_FORWARD_KL and SKL_SKEW_REVERSE_KL have it");
    if (skewed && !(p->skew >= 0 && p->skew < 1))
        return bad_real("skew", p->skew, "it must be strictly between 0 and 1 (0: the default, 0.1)");
    if (p->alpha != 0 && p->divergence != SKL_ALPHA_BETA)
        return bad_real("alpha", p->alpha, "only SKL_ALPHA_BETA has it");
    if (p->divergence == SKL_ALPHA_BETA && !(p->alpha >= 0 && p->alpha <= LARGEST_EXPONENT))
        return bad_real("alpha", p->alpha, "it must be from 0 to 16");
    if (p->divergence == SKL_ALPHA_BETA && !(p->beta >= 0 && p->beta <= LARGEST_EXPONENT))
        return bad_real("beta", p->beta, "it must be from 0 to 16");
    if (p->divergence == SKL_ALPHA_BETA && !(p->alpha + p->beta >= LEAST_EXPONENTS))
        return bad_real("beta", p->beta, "alpha + beta must be at least 0.001: the limit at 0 is another divergence");
    if (p->divergence == SKL_JSD && !(p->beta >= 0 && p->beta <= 1))
        return bad_real("beta", p->beta, "it must be from 0 (forward KL) to 1 (reverse KL)");
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
        return bad("use", p->use, "it must be SKL_ATTENTION, SKL_LINEAR or SKL_INDEXER");
    if (p->identity && (p->identity != 1 || p->use != SKL_INDEXER))
        return bad("identity", p->identity, "it must be 0, or 1 for an indexer without ReLU");
    if (p->divergence < 0 || p->divergence >= DIVERGENCES)
        return bad("divergence", p->divergence, "it must be one of enum skl_divergence");
    if (p->reduction != SKL_MEAN && p->reduction != SKL_SUM)
        return bad("reduction", p->reduction, "it must be SKL_MEAN or SKL_SUM");
    if (!(p->temperature > 0 && p->temperature < HUGE_VAL))
        return bad_real("temperature", p->temperature, "it must be positive and finite");
    TRY(check_divergence(p));
    if (p->window_left < -1)
        return bad("window_left", p->window_left, "it must be -1 (no limit) or a number of columns");
    if (p->window_right < -1)
        return bad("window_right", p->window_right, "it must be -1 (no limit) or a number of columns");
    if (p->use == SKL_LINEAR && p->causal)
        return bad("causal", p->causal, "a vocabulary has no order: causal is for attention");
    if (p->use == SKL_LINEAR && p->window_left != -1)
        return bad("window_left", p->window_left, "a vocabulary has no order: windows are for attention");
    if (p->use == SKL_LINEAR && p->window_right != -1)
        return bad("window_right", p->window_right, "a vocabulary has no order: windows are for attention");
    if (p->columns < 0)
        return bad("columns", p->columns, "it must be 0 (all) or a number of columns");
    if (p->threads < 0 || p->threads > SKL_THREADS_MAX)
        return bad("threads", p->threads, "it must be from 0 (one for each processor) to 4096");
    if (!(p->skip_below >= 0 && p->skip_below < 1))
        return bad_real("skip_below", p->skip_below, "it must be at least 0 (nothing but zeros) and below 1");
    if (!(p->num_items >= 0 && p->num_items < HUGE_VAL))
        return bad_real("num_items", p->num_items, "it must be 0 (the sum of the weights), or positive and finite");
    if (p->round_dz != 0 && p->round_dz != 1)
        return bad("round_dz", p->round_dz, "it must be 0 or 1");
    if (p->isa < SKL_ISA_BEST || p->isa > SKL_ISA_NEONBF16)
        return bad("isa", p->isa, "it must be one of enum skl_isa");
    if (p->any_order != 0 && p->any_order != 1)
        return bad("any_order", p->any_order, "it must be 0 or 1");
    if (p->reserved_pool)
        return bad("problem.reserved_pool", p->reserved_pool, "it must be 0");
    if (p->pool && !p->pool_block)
        return bad("pool", p->pool, "there is no pool_block");
    if (p->reserved)
        return bad("problem.reserved", p->reserved, "it must be 0");
    return SKL_OK;
}

/* ----------------------------------------------------------------------------------------------- devices --- */

/* Every tensor of a call by name: all must be on one device, and no output may share memory with another tensor. */
struct named {
    const char *name;
    const struct skl_tensor *tensor;
};

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

/* What the problem lacks of what the result needs; NULL: nothing. */
static const char *lacking(const struct skl_problem *p, int i)
{
    int needs = row_results[i].needs;
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
    int one_sweep = p->divergence == SKL_FORWARD_KL || p->divergence == SKL_REVERSE_KL;
    return (needs & SKL_NEEDS_TWO_SWEEPS) && one_sweep ? "forward and reverse KL have no such result" : NULL;
}

enum { INPUTS = 18, ROWS = SKL_ROW_RESULTS, GRADS = 6, OUTPUTS = GRADS + ROWS };

static const struct skl_tensor *row_result(const struct skl_outputs *o, int i)
{
    return (const struct skl_tensor *)((const char *)o + row_results[i].at);
}

static int name_inputs(const struct skl_problem *p, struct named to[INPUTS])
{
    static const struct skl_tensor not_given;
    const struct named all[INPUTS] = {{"s.a", &p->s.a},
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
                                      {"cu_seqlens_k", &p->cu_seqlens_k}};
    memcpy(to, all, sizeof all);
    return INPUTS;
}

static int name_saved(const struct skl_outputs *o, struct named to[ROWS])
{
    for (int i = 0; i < ROWS; i++) to[i] = (struct named){row_results[i].saved_name, row_result(o, i)};
    return ROWS;
}

static int name_outputs(const struct skl_outputs *o, struct named to[OUTPUTS])
{
    const struct named grads[GRADS] = {{"out.s.a", &o->s.a}, {"out.s.b", &o->s.b}, {"out.s.bias", &o->s.bias},
                                       {"out.t.a", &o->t.a}, {"out.t.b", &o->t.b}, {"out.t.bias", &o->t.bias}};
    memcpy(to, grads, sizeof grads);
    for (int i = 0; i < ROWS; i++) to[GRADS + i] = (struct named){row_results[i].name, row_result(o, i)};
    return OUTPUTS;
}

static void device_name(const struct skl_tensor *t, char name[24])
{
    if (t->device == SKL_CPU)
        snprintf(name, 24, "cpu");
    else
        snprintf(name, 24, "cuda:%d", (int)t->device_index);
}

/* Tensors that are given are where s.a is. */
static enum skl_status check_devices(const struct skl_problem *p, const struct named *each, int n)
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
        return bad("workspace_bytes", (long long)p->workspace_bytes, "there is no workspace");
    return SKL_OK;
}

/* ------------------------------------------------------------------------------------------------- sides --- */

static enum skl_status check_rows(const char *name, const struct skl_tensor *t, const struct skl_problem *p, int dtype,
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
    const char *a, *b, *bias, *scale, *softcap, *grad_a, *grad_b, *grad_bias, *lse, *kl;
};
static const struct side_names student_names = {"s.a",     "s.b",     "s.bias",     "s.scale", "s.softcap",
                                                "out.s.a", "out.s.b", "out.s.bias", "lse_s",   "kl_s"};
static const struct side_names teacher_names = {"t.a",     "t.b",     "t.bias",     "t.scale", "t.softcap",
                                                "out.t.a", "out.t.b", "out.t.bias", "lse_t",   "kl_t"};

/* More entries or columns than any memory holds, and sizes computed from them cannot overflow. */
static const int64_t LONGEST = (int64_t)1 << 40;

static enum skl_status check_operands(const struct skl_problem *p, const struct skl_side *s,
                                      const struct side_names *names)
{
    int attention = p->use != SKL_LINEAR, index = p->use == SKL_INDEXER && s == &p->s;
    const struct skl_tensor *a = &s->a, *b = &s->b;
    struct skl_rule rule_a = {names->a, attention ? 4 : 0, SKL_FLOATS, NULL, 1, 0};
    TRY(skl_check_tensor(a, &rule_a));
    int64_t dim = a->shape[a->ndim - 1];
    if (dim < 1 || dim > LONGEST)
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
        return bad_real(names->scale, s->scale, "it must be finite (0: the default)");
    if (!(s->softcap >= 0 && s->softcap < HUGE_VAL))
        return bad_real(names->softcap, s->softcap, "it must be 0 (none), or positive and finite");
    return SKL_OK;
}

static enum skl_status check_grads(const struct skl_side *s, const struct skl_grads *g, const struct side_names *names)
{
    struct {
        const char *name;
        const struct skl_tensor *of, *grad;
    } each[3] = {{names->grad_a, &s->a, &g->a}, {names->grad_b, &s->b, &g->b}, {names->grad_bias, &s->bias, &g->bias}};
    for (int i = 0; i < 3; i++) {
        if (!each[i].grad->data)
            continue;
        if (i == 2 && !each[i].of->data)
            return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s.data = %p: there is no %s to be differentiated",
                            each[i].name, each[i].grad->data, names->bias);
        struct skl_rule rule = {
            each[i].name, each[i].of->ndim, 1 << SKL_F32 | 1 << each[i].of->dtype, each[i].of->shape, i < 2, 1};
        TRY(skl_check_tensor(each[i].grad, &rule));
    }
    return SKL_OK;
}

/* ----------------------------------------------------------------------------------------------- problem --- */

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
    if (!p->columns && m_s > LONGEST)
        return bad("columns", m_s, "there may be at most 2^40");
    if (p->columns > LONGEST)
        return bad("columns", p->columns, "there may be at most 2^40");
    return SKL_OK;
}

static enum skl_status check_teacher(const struct skl_problem *p)
{
    int mixed = skl_mixes_heads(p);
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
            return bad("divergence", p->divergence, "there is no teacher: leave it at SKL_FORWARD_KL");
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

/* Every label is a column or ignored. */
static enum skl_status check_ids(const struct skl_problem *p, const struct skl_work *w)
{
    int64_t columns = p->shard ? p->shard->columns : w->columns;
    for (int64_t row = 0, at[3]; row < w->rows; row++) {
        skl_row_index(w, row, at);
        int64_t id = skl_row_id(&w->labels.ids, at, 0);
        if (id != p->labels->ignore && (id < 0 || id >= columns))
            return skl_fail(SKL_BAD_ARGUMENT,
                            "cannot use labels.ids[%lld] = %lld: it must be a column, 0 to %lld, or %lld (ignored)",
                            (long long)row, (long long)id, (long long)columns - 1, (long long)p->labels->ignore);
    }
    return SKL_OK;
}

static enum skl_status check_labels(const struct skl_problem *p)
{
    const struct skl_labels *l = p->labels;
    if (p->use != SKL_LINEAR)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use labels = %p: keys have no labels, they are for linear problems",
                        (const void *)l);
    struct skl_rule rule = {"labels.ids", p->s.a.ndim - 1, 1 << SKL_I32 | 1 << SKL_I64, p->s.a.shape, 0, 0};
    TRY(skl_check_tensor(&l->ids, &rule));
    if (!(fabs(l->weight) < HUGE_VAL))
        return bad_real("labels.weight", l->weight, "it must be finite");
    if (!(fabs(l->kl_weight) < HUGE_VAL))
        return bad_real("labels.kl_weight", l->kl_weight, "it must be finite");
    if (!(fabs(l->lse_weight) < HUGE_VAL))
        return bad_real("labels.lse_weight", l->lse_weight, "it must be finite");
    if (!(l->smoothing >= 0 && l->smoothing < 1))
        return bad_real("labels.smoothing", l->smoothing, "it must be at least 0 and below 1");
    if (!(l->z_loss >= 0 && l->z_loss < HUGE_VAL))
        return bad_real("labels.z_loss", l->z_loss, "it must be finite and not negative");
    return SKL_OK;
}

/* Shaped as s.a but for the last dimension. */
static enum skl_status check_mass_ids(const struct skl_problem *p)
{
    int64_t shape[4] = {p->s.a.shape[0], p->s.a.shape[1], p->s.a.shape[2], p->s.a.shape[3]};
    struct skl_rule rule = {"mass_ids", p->s.a.ndim, 1 << SKL_I32 | 1 << SKL_I64, shape, 0, 0};
    shape[p->s.a.ndim - 1] = -1;
    return skl_check_tensor(&p->mass_ids, &rule);
}

/* Every id is a column or an empty slot. */
static enum skl_status check_masses(const struct skl_work *w)
{
    for (int64_t row = 0, at[3]; row < w->rows; row++) {
        skl_row_index(w, row, at);
        for (int64_t k = 0; k < w->mass_ids.count; k++) {
            int64_t id = skl_row_id(&w->mass_ids, at, k);
            if (id < -1 || id >= w->columns)
                return skl_fail(SKL_BAD_ARGUMENT,
                                "cannot use mass_ids[%lld, %lld] = %lld: it must be a column, 0 to %lld, or -1 (empty)",
                                (long long)row, (long long)k, (long long)id, (long long)w->columns - 1);
        }
    }
    return SKL_OK;
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
    if (!p->listed && !p->labels && !p->mass_ids.data)
        return SKL_OK;
    skl_fill_problem(p, &w);
    if (p->listed)
        TRY(skl_check_listed_entries(p, &w));
    if (p->labels)
        TRY(check_ids(p, &w));
    return p->mass_ids.data ? check_masses(&w) : SKL_OK;
}

/* Where a shard's columns are among those of all shards, which its labels count. */
static enum skl_status check_place(const struct skl_problem *p)
{
    const struct skl_shard *s = p->shard;
    int64_t own = p->columns ? p->columns : p->s.b.shape[0];
    if (s->first < 0)
        return bad("shard.first", s->first, "it must not be negative");
    if (s->columns > LONGEST || s->columns < own || s->first > s->columns - own)
        return skl_fail(SKL_BAD_ARGUMENT,
                        "cannot use shard.columns = %lld: labels count them, and the %lld of this shard begin at %lld",
                        (long long)s->columns, (long long)own, (long long)s->first);
    return SKL_OK;
}

static enum skl_status check_shard(enum skl_call call, const struct skl_problem *p, const struct skl_state *state)
{
    const struct skl_shard *s = p->shard;
    if (!s->exchange)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use shard.exchange = NULL: a shard needs a way to the others");
    if (s->rows < 0 || s->rows > SKL_EXCHANGE_ROWS_MAX)
        return bad("shard.rows", s->rows, "it must be from 0 (the default, 512) to 16384");
    if (call == SKL_CALL_BACKWARD || call == SKL_CALL_PARTIAL || state)
        return skl_fail(SKL_BAD_ARGUMENT,
                        "cannot use shard = %p: only skl_value and skl_value_and_grad exchange states",
                        (const void *)s);
    if (p->listed)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use listed = %p with a shard: lists need all columns",
                        (const void *)p->listed);
    if (skl_mixes_heads(p) || p->pool_block)
        return skl_fail(SKL_BAD_ARGUMENT,
                        "cannot use pool_block, mix_t, head_map, lse_t or raw_t with a shard: a state knows nothing "
                        "of the heads of a mixture");
    if (p->cu_seqlens_q.data)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use cu_seqlens_q with a shard: begin and end say the same");
    if (p->progress)
        return skl_fail(SKL_BAD_ARGUMENT,
                        "cannot use progress with a shard: who stops alone leaves the others waiting. "
                        "shard.exchange may stop the call, with the others' knowledge");
    if (p->s.a.device != SKL_CPU)
        return skl_fail(SKL_UNSUPPORTED, "cannot use shard on CUDA: it would wait for the device. Use skl_partial, a "
                                         "collective on the stream, skl_finish and skl_backward");
    return SKL_OK;
}

/* Offsets of packed sequences: from 0 to 'total', never less than the one before. */
static enum skl_status check_offsets(const char *name, const struct skl_tensor *t, int64_t entries, int64_t total,
                                     const char *of)
{
    struct skl_rule rule = {name, 1, 1 << SKL_I32, &entries, 0, 0};
    TRY(skl_check_tensor(t, &rule));
    if (t->shape[0] < 1)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s.shape[0] = 0: it must be the number of sequences, and 1",
                        name);
    int64_t last = t->shape[0] - 1, before = 0;
    for (int64_t i = 0; i <= last; i++) {
        int64_t x = ((const int32_t *)t->data)[i * t->stride[0]];
        if (i == 0 ? x != 0 : x < before)
            return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s[%lld] = %lld: %s %lld", name, (long long)i, (long long)x,
                            i == 0 ? "the first sequence must begin at" : "it must not be below the one before,",
                            (long long)before);
        if (x > total || (i == last && x != total))
            return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s[%lld] = %lld: %s %s, %lld", name, (long long)i,
                            (long long)x, i == last ? "the last must be the number of" : "it is beyond the end of the",
                            of, (long long)total);
        before = x;
    }
    return SKL_OK;
}

static enum skl_status check_packed(const struct skl_problem *p)
{
    const struct skl_tensor *q = &p->cu_seqlens_q, *k = &p->cu_seqlens_k;
    if (!q->data && !k->data)
        return SKL_OK;
    if (!q->data || !k->data)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use cu_seqlens_%s without cu_seqlens_%s: give both",
                        q->data ? "q" : "k", q->data ? "k" : "q");
    if (p->use != SKL_ATTENTION)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use cu_seqlens_q.data = %p: packed sequences are for attention",
                        q->data);
    if (p->s.a.device != SKL_CPU)
        return skl_fail(SKL_UNSUPPORTED, "cannot use cu_seqlens_q on CUDA: only the CPU has packed sequences");
    if (p->pool_block)
        return bad("pool_block", p->pool_block, "blocks of keys are not for packed sequences");
    if (p->s.a.shape[0] != 1)
        return bad("s.a.shape[0]", p->s.a.shape[0], "packed sequences are in one batch");
    TRY(check_offsets("cu_seqlens_q", q, -1, p->s.a.shape[2], "rows"));
    return check_offsets("cu_seqlens_k", k, q->shape[0], p->columns ? p->columns : p->s.b.shape[2], "columns");
}

static enum skl_status check_problem(const struct skl_problem *p)
{
    TRY(check_numbers(p));
    TRY(check_operands(p, &p->s, &student_names));
    TRY(check_teacher(p));
    TRY(check_columns(p));
    TRY(check_rows("begin", &p->begin, p, SKL_I32, 0));
    TRY(check_rows("end", &p->end, p, SKL_I32, 0));
    TRY(check_rows("weight", &p->weight, p, SKL_F32, 0));
    struct named inputs[INPUTS];
    if (p->listed)
        TRY(skl_check_listed(p));
    if (p->labels && p->shard)
        TRY(check_place(p));
    if (p->labels)
        TRY(check_labels(p));
    if (p->mass_ids.data)
        TRY(check_mass_ids(p));
    TRY(check_devices(p, inputs, name_inputs(p, inputs)));
    TRY(check_packed(p));
    TRY(check_contents(p));
    return check_workspace(p);
}

/* ----------------------------------------------------------------------------------------------- outputs --- */

/* out.value, or the states of skl_partial and skl_finish, as a tensor of f32, to be compared with the others. */
static struct skl_tensor doubles_of(const struct skl_problem *p, const void *data, int64_t doubles)
{
    struct skl_tensor t = skl_vector(SKL_F32, data, 2 * doubles);
    t.device = p->s.a.device, t.device_index = p->s.a.device_index;
    return t;
}

static enum skl_status check_doubles(const char *name, const void *data)
{
    if ((uintptr_t)data % sizeof(double))
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s = %p: it must be aligned to %d bytes", name, data,
                        (int)sizeof(double));
    return SKL_OK;
}

/* Outputs share memory with nothing. */
static enum skl_status check_disjoint(const struct named *outputs, int n_out, const struct named *inputs, int n_in)
{
    for (int i = 0; i < n_out; i++) {
        for (int j = 0; j < i + n_in; j++) {
            const struct named *x = &outputs[i], *y = j < i ? &outputs[j] : &inputs[j - i];
            if (!skl_disjoint(x->tensor, y->tensor))
                return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s.data = %p: it shares memory with %s", x->name,
                                x->tensor->data, y->name);
        }
    }
    return SKL_OK;
}

/* All outputs of the call, 'out' and perhaps the states of a skl_partial, against all its inputs, 'saved' and the
 * states of a skl_finish among them; each of these may be NULL. */
static enum skl_status check_overlap(const struct skl_problem *p, const struct skl_outputs *saved,
                                     const struct skl_outputs *out, const struct skl_state *state, int64_t rows)
{
    struct named outputs[OUTPUTS + 2], inputs[INPUTS + ROWS + 1];
    struct skl_tensor value = doubles_of(p, out ? out->value : NULL, 1);
    struct skl_tensor states = doubles_of(p, state, rows * (int64_t)(sizeof *state / sizeof(double)));
    int n_in = name_inputs(p, inputs), n_out = 0;
    if (saved)
        n_in += name_saved(saved, inputs + n_in);
    if (out) {
        n_out = name_outputs(out, outputs);
        outputs[n_out++] = (struct named){"out.value", &value};
        inputs[n_in++] = (struct named){"the states", &states};
    } else {
        outputs[n_out++] = (struct named){"state", &states};
    }
    return check_disjoint(outputs, n_out, inputs, n_in);
}

static enum skl_status check_row_outputs(const struct skl_problem *p, const struct skl_outputs *o, int saved)
{
    for (int i = 0; i < ROWS; i++) {
        const struct skl_tensor *t = row_result(o, i);
        const char *name = saved ? row_results[i].saved_name : row_results[i].name;
        const char *why = lacking(p, i);
        if (t->data && why)
            return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s.data = %p: %s", name, t->data, why);
        TRY(check_rows(name, t, p, row_results[i].dtype, !saved));
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
    int one = w->form == SKL_FORM_NONE, two = skl_sweeps(w->form) == 2;
    int parts = saved->m_s.data && saved->l_s.data && (one || (saved->m_t.data && saved->l_t.data));
    struct {
        enum skl_row_name name;
        int needed;
    } each[] = {{SKL_ROW_lse_s, !parts && !listed},
                {SKL_ROW_lse_t, !parts && w->form != SKL_FORM_NONE},
                {skl_has_labels(w) ? SKL_ROW_kl : SKL_ROW_loss, w->form == SKL_FORM_KL && (w->grads & 1)},
                {SKL_ROW_m_s, skl_tempered(w)}, /* to which l1_s refers */
                {SKL_ROW_l_s, skl_tempered(w) && !listed},
                {SKL_ROW_l1_s, skl_has_labels(w) && w->temperature != 1},
                {SKL_ROW_kl_s, two && (w->grads & 1 << w->student)},
                {SKL_ROW_kl_t, two && (w->grads & 1 << !w->student)},
                {SKL_ROW_m_rest, sweep},
                {SKL_ROW_l_rest, sweep}};
    for (size_t i = 0; i < sizeof each / sizeof *each; i++)
        if (each[i].needed && !row_result(saved, each[i].name)->data)
            return skl_fail(SKL_BAD_ARGUMENT,
                            "cannot use %s.data = NULL: this backward needs what skl_value wrote there",
                            row_results[each[i].name].saved_name);
    return SKL_OK;
}

static enum skl_status check_backward_outputs(const struct skl_outputs *o)
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

/* States know the results of the first versions alone: of partial rows, and of shards. */
static enum skl_status check_finished(const struct skl_outputs *o, int shard, const char *why)
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
    if (call == SKL_CALL_VALUE && (any_grad(&out->s) || any_grad(&out->t)))
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use out.%s gradients in skl_value: call skl_value_and_grad",
                        any_grad(&out->s) ? "s" : "t");
    if ((p->labels || p->listed) && !p->t.a.data && !p->t.b.data && any_grad(&out->t))
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use out.t gradients: there is no teacher to be differentiated");
    TRY(check_grads(&p->s, &out->s, &student_names));
    return check_grads(&p->t, &out->t, &teacher_names);
}

static enum skl_status take_outputs(enum skl_call call, const struct skl_problem *p, const struct skl_outputs *out,
                                    struct skl_work *w)
{
    struct named tensors[OUTPUTS];
    TRY(check_row_outputs(p, out, 0));
    TRY(check_grad_outputs(call, p, out));
    TRY(check_devices(p, tensors, name_outputs(out, tensors)));
    skl_fill_outputs(out, w);
    return SKL_OK;
}

static enum skl_status take_saved(const struct skl_problem *p, const struct skl_outputs *saved, struct skl_work *w)
{
    struct named tensors[ROWS];
    TRY(check_row_outputs(p, saved, 1));
    TRY(check_devices(p, tensors, name_saved(saved, tensors)));
    TRY(check_saved(saved, w));
    skl_fill_saved(saved, w);
    return SKL_OK;
}

enum skl_status skl_check(enum skl_call call, const struct skl_problem *problem, const struct skl_outputs *saved,
                          const struct skl_outputs *out, const struct skl_state *state, struct skl_work *w)
{
    struct skl_problem p = {0};
    struct skl_labels labels;
    struct skl_shard shard;
    struct skl_listed listed;
    struct skl_outputs o = {0}, s = {0};
    int partial = call == SKL_CALL_PARTIAL;
    *w = (struct skl_work){0};
    TRY(skl_adopt_problem(problem, &p));
    TRY(skl_adopt_labels(&p, &labels));
    TRY(skl_adopt_shard(&p, &shard));
    TRY(skl_adopt_listed(&p, &listed));
    if (p.labels && (partial || state))
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use labels = %p with partial rows: labels need all columns",
                        (const void *)p.labels);
    if (p.listed && (partial || state))
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use listed = %p with partial rows: lists need all columns",
                        (const void *)p.listed);
    TRY(check_problem(&p));
    if (p.shard)
        TRY(check_shard(call, &p, state));
    settle_divergence(&p);
    skl_fill_problem(&p, w);
    if (!partial) {
        TRY(skl_adopt_outputs("out", out, &o));
        TRY(take_outputs(call, &p, &o, w));
        if (state || p.shard)
            TRY(check_finished(&o, p.shard != NULL, state ? "partial rows do not know it" : "shards do not know it"));
        TRY(check_doubles("out.value", o.value));
    }
    if (saved && partial && skl_sweeps(w->form) == 1)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use saved = %p: %s KL has no second sweep", (const void *)saved,
                        divergence_names[p.divergence]);
    if (saved) {
        TRY(skl_adopt_outputs("saved", saved, &s));
        TRY(take_saved(&p, &s, w));
    }
    if (skl_mixes_heads(&p) || p.pool_block)
        TRY(skl_check_mixture_outputs(w, partial ? NULL : &o, partial || state));
    TRY(check_doubles("state", state));
    TRY(check_overlap(&p, saved ? &s : NULL, partial ? NULL : &o, state, w->rows));
    if (call == SKL_CALL_BACKWARD)
        TRY(check_backward_outputs(&o));
    return SKL_OK;
}
