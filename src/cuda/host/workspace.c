/* SPDX-License-Identifier: Apache-2.0
 *
 * What a call takes of the workspace, part by part, and the slabs that fill what the parts leave.
 */
#include "plan.h"

#include "../shapes.h"

/* ------------------------------------------------------------------------------------------------- slabs --- */

int skl_gpu_own_sum(const struct skl_operand *grad, int64_t dim)
{
    return grad->dtype == SKL_F32 && grad->stride[2] >= dim;
}

/* f32 sums that a column of a slab takes, when the gradient of b leaves in 16 bits. */
static int64_t sums_of_column(const struct skl_work *w)
{
    int64_t widest = 0;
    for (int x = 0; x < 2; x++) {
        const struct skl_work_side *s = &w->side[x];
        if (s->grad_b.data && !skl_gpu_own_sum(&s->grad_b, s->dim) && s->dim > widest)
            widest = s->dim;
    }
    return widest;
}

static int64_t whole(int64_t n, int64_t unit)
{
    return n / unit > 1 ? n / unit * unit : unit;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* 4 bytes each that an element of the slabs takes. */
static int64_t slab_words(const struct skl_gpu_plan *plan)
{
    return plan->indexed ? (plan->slab_heads + 1) / 2 : 1;
}

/* A slab feeds two products: as large as 64 MiB and the room allow, and 1024 columns before rows are cut. In 'room'
 * bytes must fit 4 (rows + sums) a column, 4 being an f32 or two heads of an indexer. */
static void choose_slab(const struct skl_work *w, int64_t room, struct skl_gpu_plan *plan)
{
    int64_t sums = sums_of_column(w), most = ((int64_t)16 << 20) / slab_words(plan),
            elements = room / 4 / slab_words(plan);
    int64_t rows = whole(w->n + SKL_ROW_UNIT - 1, SKL_ROW_UNIT);
    int64_t columns = whole(w->columns + SKL_COLUMN_UNIT - 1, SKL_COLUMN_UNIT), wide = least(columns, 1024);
    rows = least(rows, whole(least(most / wide, elements / wide - sums), SKL_ROW_UNIT));
    columns = least(columns, whole(least(most / rows, elements / (rows + sums)), SKL_COLUMN_UNIT));
    plan->slab_rows = (int)rows;
    plan->slab_columns = (int)columns;
}

/* ------------------------------------------------------------------------------------------------- parts --- */

/* An aligned piece, as an offset that cannot be mistaken for "not needed". */
static void *take(struct skl_gpu_plan *plan, int64_t bytes)
{
    uintptr_t at = plan->bytes;
    plan->bytes += ((size_t)bytes + 255) / 256 * 256;
    return (void *)at;
}

static void lay_rows(const struct skl_work *w, struct skl_gpu_plan *plan)
{
    struct skl_gpu_memory *m = &plan->offset;
    int64_t rows = w->rows, row_tiles = plan->heads * ((w->n + SKL_RANGE_ROWS - 1) / SKL_RANGE_ROWS);
    int sweeps = plan->call != SKL_CALL_BACKWARD && plan->call != SKL_CALL_TOPK,
        both = plan->call == SKL_CALL_VALUE_AND_GRAD;
    int masses = skl_gpu_wants_either(w, SKL_ROW_mass_s) || skl_gpu_wants_either(w, SKL_ROW_sink_mass_s),
        others = sweeps && skl_gpu_wants_others(w);
    int twice = both || ((skl_sweeps(w->form) == 2 || skl_gpu_finishes_labels(w) || masses || others) &&
                         plan->call == SKL_CALL_VALUE); /* a later step reads what the first sweep found */
    plan->bytes = 256;                                  /* offset 0 is NULL */
    m->scalars = take(plan, sizeof *m->scalars);
    m->range = take(plan, rows * (int64_t)sizeof *m->range);
    m->tile_range = take(plan, row_tiles * (int64_t)sizeof *m->tile_range);
    if (sweeps || skl_wants_head_lses(&w->side[!w->student]))
        m->state = take(plan, rows * SKL_STATES * plan->states * (int64_t)sizeof *m->state);
    if (sweeps && plan->call != SKL_CALL_PARTIAL)
        m->loss = take(plan, rows * (int64_t)sizeof *m->loss);
    if (skl_sweeps(w->form) == 2 || w->grads || w->sink_grads || others)
        m->references = take(plan, rows * (int64_t)sizeof *m->references);
    if (skl_sweeps(w->form) == 2 || w->grads || w->sink_grads || others)
        m->factors = take(plan, rows * (int64_t)sizeof *m->factors);
    if (both && !w->result[skl_gpu_divergence_row(w)].data)
        m->row_loss = take(plan, rows * (int64_t)sizeof *m->row_loss);
    for (int side = 0; side < 2; side++) {
        if (twice && !w->result[skl_of_side(w, SKL_ROW_m_s, side)].data)
            m->row_m[side] = take(plan, rows * (int64_t)sizeof **m->row_m);
        if (twice && !w->result[skl_of_side(w, SKL_ROW_l_s, side)].data)
            m->row_l[side] = take(plan, rows * (int64_t)sizeof **m->row_l);
        if (both && skl_sweeps(w->form) == 2 && !w->result[skl_of_side(w, SKL_ROW_kl_s, side)].data)
            m->row_kl[side] = take(plan, rows * (int64_t)sizeof **m->row_kl);
    }
}

static void lay_mixture(const struct skl_work *w, struct skl_gpu_plan *plan)
{
    struct skl_gpu_memory *m = &plan->offset;
    int64_t bytes[SKL_GATHERED];
    int mixture = skl_gpu_mixture_side(w) >= 0;
    if (mixture)
        m->members = take(plan, (w->rows * w->side[!w->student].members + SKL_ROW_UNIT) * (int64_t)sizeof *m->members);
    if (plan->indexed)
        m->index_weights = take(plan, (w->rows * w->side[w->student].members + SKL_ROW_UNIT) *
                                          (int64_t)sizeof *m->index_weights);
    if (mixture && w->sinks)
        m->sink_scores = take(plan, w->rows * (int64_t)sizeof *m->sink_scores);
    if (!skl_gpu_gathers(w))
        return;
    skl_gpu_gathered_bytes(w, bytes);
    for (int i = 0; i < SKL_GATHERED; i++)
        if (bytes[i])
            m->gathered[i] = take(plan, bytes[i]);
}

int skl_gpu_sweeps_at_1(enum skl_call call, const struct skl_work *w)
{
    if (!skl_has_labels(w) || call == SKL_CALL_BACKWARD)
        return 0;
    return (w->temperature != 1 || w->labels.smoothing > 0) | (w->temperature != 1 && w->result[SKL_ROW_logprob_t].data)
                                                                  << 1;
}

static int wants_states(const struct skl_work *w)
{
    return skl_gpu_wants_either(w, SKL_ROW_entropy_s) || w->result[SKL_ROW_reverse].data || skl_gpu_wants_others(w);
}

static void lay_details(const struct skl_work *w, struct skl_gpu_plan *plan)
{
    struct skl_gpu_memory *m = &plan->offset;
    if (plan->call == SKL_CALL_BACKWARD)
        return;
    if (wants_states(w))
        m->label_states[2] = take(plan, w->rows * (int64_t)sizeof **m->label_states);
    if (skl_gpu_wants_tops(w))
        m->tops = take(plan, 2 * w->rows * plan->states * (int64_t)sizeof *m->tops);
    if (skl_gpu_wants_tops(w))
        m->limits = take(plan, 2 * w->rows * (int64_t)sizeof *m->limits);
}

static void lay_labels(const struct skl_work *w, struct skl_gpu_plan *plan)
{
    struct skl_gpu_memory *m = &plan->offset;
    int at_1 = skl_gpu_sweeps_at_1(plan->call, w);
    for (int i = 0; i < 2; i++)
        if (at_1 >> i & 1)
            m->label_states[i] = take(plan, w->rows * (int64_t)sizeof **m->label_states);
    if (!skl_has_labels(w))
        return;
    m->row_weight = take(plan, w->rows * (int64_t)sizeof *m->row_weight);
    m->label_score = take(plan, 2 * w->rows * (int64_t)sizeof *m->label_score);
    if (w->grads) {
        m->label_references = take(plan, w->rows * (int64_t)sizeof *m->label_references);
        m->label_factors = take(plan, w->rows * (int64_t)sizeof *m->label_factors);
    }
}

/* Is the student wanted over the columns that are not listed? */
static int sweeps_rest(enum skl_call call, const struct skl_work *w)
{
    int asked = w->result[SKL_ROW_lse_s].data || w->result[SKL_ROW_m_s].data || w->result[SKL_ROW_l_s].data ||
                w->result[SKL_ROW_m_rest].data || w->result[SKL_ROW_l_rest].data || w->result[SKL_ROW_mass_s].data;
    return w->listed.given && call != SKL_CALL_BACKWARD && (asked || !skl_on_support(w));
}

static void lay_lists(const struct skl_work *w, struct skl_gpu_plan *plan)
{
    struct skl_gpu_memory *m = &plan->offset;
    plan->room = 1;
    if (!w->listed.given)
        return;
    while (plan->room < w->listed.k) plan->room *= 2;
    m->list_columns = take(plan, w->rows * (plan->room + 1) * (int64_t)sizeof *m->list_columns);
    m->list_logp = take(plan, w->rows * plan->room * (int64_t)sizeof *m->list_logp);
    m->list_entries = take(plan, w->rows * plan->room * (int64_t)sizeof *m->list_entries);
    m->lists = take(plan, w->rows * (int64_t)sizeof *m->lists);
    if (sweeps_rest(plan->call, w))
        m->list_states = take(plan, w->rows * (int64_t)sizeof *m->list_states);
    if (plan->call == SKL_CALL_BACKWARD && skl_has_labels(w) && !skl_tempered(w)) {
        m->row_m[w->student] = take(plan, w->rows * (int64_t)sizeof **m->row_m);
        m->row_l[w->student] = take(plan, w->rows * (int64_t)sizeof **m->row_l);
    }
}

static void lay_keys(const struct skl_work *w, struct skl_gpu_plan *plan)
{
    struct skl_gpu_memory *m = &plan->offset;
    plan->block = 1;
    if (plan->family != SKL_FAMILY_KEYS)
        return;
    if (skl_has_support(w)) {
        while (plan->room < w->support.count) plan->room *= 2;
        plan->block = (int)(w->support_block < w->columns ? w->support_block : w->columns > 0 ? w->columns : 1);
        m->listed_keys = take(plan, w->batch * w->n * (plan->room + 1) * (int64_t)sizeof *m->listed_keys);
    }
}

static void lay_topk(const struct skl_work *w, struct skl_gpu_plan *plan)
{
    struct skl_gpu_memory *m = &plan->offset;
    if (plan->call != SKL_CALL_TOPK)
        return;
    skl_gpu_shape_topk(w, w->limit > plan->bytes ? w->limit - plan->bytes : 0, plan);
    int64_t rows = least(plan->slab_rows, w->n);
    m->picks = take(plan, rows * plan->room * (int64_t)sizeof *m->picks);
    m->picked = take(plan, rows * (int64_t)sizeof *m->picked);
    m->slab = take(plan, rows * plan->slab_columns * (int64_t)sizeof(float));
}

static int bias_grads(const struct skl_work *w)
{
    return w->side[0].grad_bias.data || w->side[1].grad_bias.data;
}

/* f32 sums of a gradient of a that does not leave as f32: of the heads that share a b, or of all. The larger of the two
 * sides', which run one after the other. */
static void lay_sums_of_a(const struct skl_work *w, struct skl_gpu_plan *plan)
{
    int64_t most = 0;
    for (int x = 0; x < 2; x++) {
        const struct skl_work_side *s = &w->side[x];
        int64_t heads = w->attention && !plan->fused ? s->group : plan->heads;
        int own = plan->fused ? s->grad_a.dtype == SKL_F32 : skl_gpu_own_sum(&s->grad_a, s->dim);
        own = own && s->scorer != SKL_INDEX; /* whose sums are not its gradient yet */
        if ((s->grad_a.data || s->grad_w.data) && !own && heads * w->n * s->dim > most)
            most = heads * w->n * s->dim;
    }
    if (most)
        plan->offset.sum_a = take(plan, most * (int64_t)sizeof(float));
}

static void lay_gradients(const struct skl_work *w, struct skl_gpu_plan *plan)
{
    const struct skl_work_side *s = &w->side[w->student];
    plan->slab_heads = plan->indexed ? (int)s->members : 1;
    if (plan->indexed && s->grad_b.data)
        plan->offset.index_queries = take(plan, s->members * w->n * s->dim * skl_size_of(s->a.dtype));
    if (!plan->attention_grad || plan->fused)
        lay_sums_of_a(w, plan);
    if (plan->attention_grad)
        return;
    plan->offset.blas = take(plan, SKL_BLAS_BYTES);
    if (bias_grads(w))
        plan->offset.sum_bias = take(plan, w->columns * (int64_t)sizeof(float));
    choose_slab(w, w->limit > plan->bytes ? (int64_t)(w->limit - plan->bytes) : 0, plan);
    plan->offset.slab = take(plan, (int64_t)plan->slab_rows * plan->slab_columns * slab_words(plan) * 4);
    if (sums_of_column(w))
        plan->offset.sum_b = take(plan, plan->slab_columns * sums_of_column(w) * (int64_t)sizeof(float));
}

void skl_gpu_lay_workspace(const struct skl_work *w, struct skl_gpu_plan *plan)
{
    lay_rows(w, plan);
    lay_mixture(w, plan);
    lay_labels(w, plan);
    lay_details(w, plan);
    lay_lists(w, plan);
    lay_keys(w, plan);
    lay_topk(w, plan);
    if (w->grads && !skl_on_support(w) && plan->family != SKL_FAMILY_KEYS)
        lay_gradients(w, plan);
}
