/* SPDX-License-Identifier: Apache-2.0
 * From the caller's structures, checked, to the work of one call: defaults, shapes, the order of the sides. */
#include "work.h"

#include <float.h>

/* ------------------------------------------------------------------------------------------------- views --- */

static struct skl_operand operand(const struct skl_tensor *t)
{
    struct skl_operand o = {t->data, t->dtype, {0, 0, 0}};
    for (int i = 0; t->data && i < t->ndim - 1; i++) o.stride[3 - (t->ndim - 1) + i] = t->stride[i];
    return o;
}

static struct skl_vector_view vector_view(const struct skl_tensor *t)
{
    return (struct skl_vector_view){t->data, t->dtype, t->stride[0]};
}

/* Rows tensors have the dimensions of a but its last; missing leading ones are of size 1. */
static struct skl_rows rows_view(const struct skl_tensor *t)
{
    struct skl_rows r = {t->data, {0, 0, 0}};
    for (int i = 0; t->data && i < t->ndim; i++) r.stride[3 - t->ndim + i] = t->stride[i];
    return r;
}

/* Of an indexer they are [B, N]: the rows have one head. */
static struct skl_rows rows_of(int index, const struct skl_tensor *t)
{
    if (!index || !t->data)
        return rows_view(t);
    return (struct skl_rows){t->data, {t->stride[0], 0, t->stride[1]}};
}

static struct skl_operand index_weights(const struct skl_tensor *t)
{
    return (struct skl_operand){t->data, t->dtype, {t->stride[0], 0, t->stride[1]}};
}

/* Lists over the rows. */
static struct skl_operand lists_of(int index, const struct skl_tensor *t)
{
    return index ? index_weights(t) : operand(t);
}

/* A row has one integer, or as many as the last dimension. */
static struct skl_row_ids ids_view(const struct skl_tensor *t, int one)
{
    struct skl_row_ids ids = {.wide = t->dtype == SKL_I64, .count = 1};
    struct skl_tensor rows = *t;
    if (!one && t->data) {
        rows.ndim--;
        ids.count = t->shape[rows.ndim], ids.step = t->stride[rows.ndim];
    }
    ids.rows = rows_view(&rows);
    return ids;
}

/* ------------------------------------------------------------------------------------------------ problem --- */

static void fill_side(const struct skl_problem *p, const struct skl_side *s, struct skl_work_side *w)
{
    int attention = p->use != SKL_LINEAR, index = p->use == SKL_INDEXER && s == &p->s;
    if (!s->a.data) { /* an absent teacher has vectors of no entries */
        *w = (struct skl_work_side){.group = 1, .members = 1, .unit = 1, .sign = 1};
        return;
    }
    w->a = operand(&s->a);
    w->b = operand(&s->b);
    if (!index)
        w->bias = vector_view(&s->bias);
    w->dim = s->a.shape[s->a.ndim - 1];
    w->b_batch = attention ? s->b.shape[0] : 1;
    w->b_heads = attention ? s->b.shape[1] : 1;
    w->b_rows = s->b.shape[s->b.ndim - 2];
    w->group = attention && s->b.shape[1] ? s->a.shape[1] / s->b.shape[1] : 1;
    double scale = s->scale != 0 ? s->scale : attention && !index ? 1 / sqrt((double)w->dim) : 1;
    w->chain = scale / p->temperature;
    /* tanh(u) = u in f32 for all u that <a, b> times so small a factor can be: such a softcap changes nothing. */
    int capped = s->softcap > 0 && s->softcap <= FLT_MAX && fabs(scale / s->softcap) > 1e-30;
    w->softcap = capped ? s->softcap : 0;
    w->inner = capped ? scale / s->softcap : 0;
    w->unit = capped ? 1 / p->temperature : fabs(w->chain);
    w->sign = !capped && scale < 0 ? -1 : 1;
    w->members = 1;
    if (index) {
        w->scorer = SKL_INDEX, w->members = s->a.shape[1], w->identity = p->identity;
        w->sign = 1; /* that of the scale goes with w, which ReLU does not see */
        w->w = index_weights(&s->bias), w->w_step = s->bias.stride[2];
    }
}

/* The teacher's heads. Of a single head that is divided by its sum nothing but its place is new. */
static void fill_mixture(const struct skl_problem *p, struct skl_work *w)
{
    struct skl_work_side *t = &w->side[!w->student];
    const struct skl_tensor *map = &p->head_map;
    if (!p->t.a.data)
        return;
    t->members = p->use == SKL_INDEXER         ? p->t.a.shape[1]
                 : p->mix_t > 0                ? p->mix_t
                 : map->data && map->ndim == 2 ? map->shape[1]
                                               : 1;
    if (map->data)
        t->map = map->data, t->map_stride[0] = map->stride[0], t->map_stride[1] = map->ndim == 2 ? map->stride[1] : 0;
    w->raw = p->raw_t;
    if (t->members == 1 && !p->raw_t)
        return;
    t->scorer = SKL_MIXTURE;
    t->head_lse = rows_view(&p->lse_t);
    t->head_unit = t->unit, t->unit = SKL_LN2;
}

static void fill_labels(const struct skl_problem *p, struct skl_work *w)
{
    const struct skl_labels *l = p->labels;
    w->temperature = p->temperature;
    w->labels = (struct skl_work_labels){.kl_weight = 1};
    if (l)
        w->labels = (struct skl_work_labels){.ids = ids_view(&l->ids, 1),
                                             .ignore = l->ignore,
                                             .weight = l->weight,
                                             .kl_weight = l->kl_weight,
                                             .lse_weight = l->lse_weight,
                                             .smoothing = l->smoothing,
                                             .z_loss = l->z_loss};
}

static void fill_listed(const struct skl_problem *p, struct skl_work *w)
{
    const struct skl_listed *l = p->listed;
    if (!l)
        return;
    double stored = l->stored_temperature > 0 ? l->stored_temperature : 1;
    w->listed = (struct skl_work_listed){.given = 1,
                                         .ids = ids_view(&l->ids, 0),
                                         .logprobs = operand(&l->logprobs),
                                         .rest = rows_view(&l->tail_logprob),
                                         .k = l->ids.shape[l->ids.ndim - 1],
                                         .tail = (enum skl_tail)l->tail,
                                         .reverse = p->divergence == SKL_REVERSE_KL,
                                         .power = stored / p->temperature};
}

/* The row's weight in the reduced loss, whatever columns it sees. */
static double given_weight(const struct skl_work *w, const int64_t at[3])
{
    if (w->weight.data)
        return (double)skl_row_get(&w->weight, at);
    return skl_has_labels(w) && skl_row_label(w, at) < 0 ? 0 : 1;
}

static void fill_rows(const struct skl_problem *p, struct skl_work *w)
{
    int64_t size[3] = {1, 1, 1};
    int lead = p->s.a.ndim - 1;
    for (int i = 0; i < lead; i++) size[3 - lead + i] = p->s.a.shape[i];
    if (p->use == SKL_INDEXER)
        size[1] = 1;
    w->attention = p->use != SKL_LINEAR;
    w->batch = size[0], w->heads = size[1], w->n = size[2];
    w->rows = size[0] * size[1] * size[2];
    w->columns = p->columns ? p->columns : p->s.b.shape[p->s.b.ndim - 2];
    w->pool_block = p->pool_block, w->pool = p->pool;
    w->keys = p->pool_block ? p->t.b.shape[2] : w->columns;
    w->cu_q = vector_view(&p->cu_seqlens_q), w->cu_k = vector_view(&p->cu_seqlens_k);
    w->sequences = p->cu_seqlens_q.data ? p->cu_seqlens_q.shape[0] - 1 : 0;
    w->segments = !w->attention ? 1 : (p->cu_seqlens_q.data ? w->sequences : w->batch) * w->heads;
    w->begin = rows_of(p->use == SKL_INDEXER, &p->begin);
    w->end = rows_of(p->use == SKL_INDEXER, &p->end);
    w->weight = rows_of(p->use == SKL_INDEXER, &p->weight);
    w->mass_ids = ids_view(&p->mass_ids, 0);
    fill_labels(p, w);
    fill_listed(p, w);
    int counted = w->weight.data || skl_has_labels(w);
    w->weight_sum = counted ? 0 : (double)w->rows;
    const int64_t *weighed = w->weight.stride, *labelled = w->labels.ids.rows.stride;
    struct skl_places places = skl_places_of(w, weighed, w->weight.data ? weighed : labelled, weighed);
    for (int64_t i = 0, at[3]; counted && w->device == SKL_CPU && i < places.count; i++) {
        skl_place_index(&places, i, at);
        w->weight_sum += (double)places.times * given_weight(w, at);
    }
    if (p->num_items > 0)
        w->weight_sum = p->num_items;
    int64_t widest = w->n + w->keys; /* as good as no limit, and sums with it cannot overflow */
    w->left = p->window_left < widest ? p->window_left : widest;
    w->right = p->causal ? 0 : p->window_right < widest ? p->window_right : widest;
}

static void fill_divergence(const struct skl_problem *p, struct skl_work *w)
{
    const struct {
        enum skl_form form;
        int student;
        double param_p, param_q;
    } each[] = {
#define SKL_DIVERGENCE(divergence, name, its_form, its_student, param_p, param_q) \
    [divergence] = {its_form, its_student, param_p, param_q},
#include "divergences.def"
#undef SKL_DIVERGENCE
    };
    w->form = each[p->divergence].form;
    w->student = each[p->divergence].student;
    w->param[0] = each[p->divergence].param_p, w->param[1] = each[p->divergence].param_q;
    if (!p->t.a.data)
        w->form = SKL_FORM_NONE, w->student = 1;
}

/* Row heads that meet the same b, in aligned runs of this length. */
static int64_t same_b(const struct skl_work *w, const struct skl_work_side *s)
{
    if (s->b_heads == 1)
        return w->heads;
    return s->scorer == SKL_INNER && !s->map ? s->group : 1;
}

static void fill_support(const struct skl_problem *p, struct skl_work *w)
{
    struct skl_tensor rows = p->support;
    w->together = 1;
    if (!p->support.data)
        return;
    rows.ndim = 2;
    w->support = (struct skl_row_ids){rows_of(1, &rows), 0, p->support.shape[2], p->support.stride[2]};
    w->support_block = p->support_block ? p->support_block : 1;
    if (w->heads)
        w->together = skl_gcd(same_b(w, &w->side[0]), same_b(w, &w->side[1]));
    w->segments /= w->together;
}

void skl_fill_problem(const struct skl_problem *p, struct skl_work *w)
{
    w->device = p->s.a.device, w->device_index = p->s.a.device_index;
    w->stream = p->stream;
    w->workspace = p->workspace, w->workspace_bytes = p->workspace_bytes;
    w->any_order = p->any_order;
    fill_rows(p, w);
    fill_divergence(p, w);
    w->mean = p->reduction == SKL_MEAN;
    fill_side(p, &p->s, &w->side[w->student]);
    fill_side(p, &p->t, &w->side[!w->student]);
    fill_mixture(p, w);
    w->side[w->student].sink = vector_view(&p->sink_s), w->side[!w->student].sink = vector_view(&p->sink_t);
    w->sinks = p->sink_s.data != NULL; /* with sink_t; sink_t alone is an indexer's, in denominators */
    if (p->pool_block)
        w->side[!w->student].scorer = SKL_POOLED;
    fill_support(p, w);
    w->isa = (enum skl_isa)p->isa;
    w->threads = p->threads ? p->threads : skl_max_threads();
    w->limit_is_default = p->workspace_limit == 0;
    w->limit = p->workspace_limit ? p->workspace_limit : (size_t)256 << 20;
    w->skip_below = p->skip_below;
    w->round_dz = (int)p->round_dz;
    w->split_f32 = (enum skl_split)p->split_f32;
    w->progress = p->progress;
    w->progress_data = p->progress_data;
    if (p->shard) {
        w->shard = *p->shard;
        w->shard.rows = p->shard->rows ? p->shard->rows : SKL_EXCHANGE_ROWS;
    }
}

/* ------------------------------------------------------------------------------------------------ outputs --- */

static void fill_grads(const struct skl_grads *g, struct skl_work_side *w)
{
    w->grad_a = operand(&g->a);
    w->grad_b = operand(&g->b);
    if (w->scorer == SKL_INDEX)
        w->grad_w = index_weights(&g->bias), w->grad_w_step = g->bias.stride[2];
    else
        w->grad_bias = vector_view(&g->bias);
}

static int any_grad(const struct skl_work_side *s)
{
    return s->grad_a.data || s->grad_b.data || s->grad_bias.data || s->grad_w.data;
}

void skl_fill_saved(const struct skl_outputs *o, struct skl_work *w)
{
    int index = w->side[w->student].scorer == SKL_INDEX;
#define SKL_ROW_RESULT(name, dtype, needs, value) w->result[SKL_ROW_##name] = rows_of(index, &o->name);
#include "row_results.def"
#undef SKL_ROW_RESULT
}

void skl_fill_outputs(const struct skl_outputs *o, struct skl_work *w)
{
    w->value = o->value;
    fill_grads(&o->s, &w->side[w->student]);
    fill_grads(&o->t, &w->side[!w->student]);
    w->grads = any_grad(&w->side[0]) | any_grad(&w->side[1]) << 1;
    w->side[w->student].grad_sink = vector_view(&o->grad_sink_s);
    w->side[!w->student].grad_sink = vector_view(&o->grad_sink_t);
    w->sink_grads = (w->side[0].grad_sink.data != NULL) | (w->side[1].grad_sink.data != NULL) << 1;
    int index = w->side[w->student].scorer == SKL_INDEX;
    w->topk = (struct skl_work_topk){.ids = lists_of(index, &o->topk_ids),
                                     .logprobs = lists_of(index, &o->topk_logprobs)};
    if (o->topk_ids.data)
        w->topk.k = o->topk_ids.shape[o->topk_ids.ndim - 1];
    skl_fill_saved(o, w);
}

/* --------------------------------------------------------------------------------------------------- rows --- */

static int64_t offset_at(const struct skl_vector_view *v, int64_t i)
{
    return ((const int32_t *)v->data)[i * v->stride];
}

struct skl_segment skl_segment_at(const struct skl_work *w, int64_t k)
{
    if (!w->attention)
        return (struct skl_segment){.rows = w->rows, .columns = w->columns};
    int64_t runs = w->heads / w->together, head = k % runs * w->together;
    int64_t part = k / runs; /* the batch, or the packed sequence */
    if (!w->cu_q.data)
        return (struct skl_segment){
            (part * w->heads + head) * w->n, w->n * w->together, 0, w->columns, part, head, k, 0};
    int64_t row = offset_at(&w->cu_q, part), column = offset_at(&w->cu_k, part);
    return (struct skl_segment){.row = head * w->n + row,
                                .rows = (offset_at(&w->cu_q, part + 1) - row) * w->together,
                                .column = column,
                                .columns = offset_at(&w->cu_k, part + 1) - column,
                                .head = head,
                                .number = k,
                                .query = row};
}

double skl_elements(const struct skl_work *w)
{
    double sum = 0, listed = (double)w->support.count * (double)w->support_block;
    if (skl_has_support(w))
        return (double)w->rows * (listed < (double)w->columns ? listed : (double)w->columns);
    for (int64_t k = 0; w->sequences && k < w->segments; k++) {
        struct skl_segment s = skl_segment_at(w, k);
        sum += (double)s.rows * (double)s.columns;
    }
    return w->sequences ? sum : (double)w->rows * (double)w->columns;
}

struct skl_range skl_row_keys(const struct skl_work *w, const struct skl_segment *s, const int64_t at[3])
{
    int64_t i = w->attention ? at[2] - s->query : 0; /* linear has no windows */
    struct skl_range r = skl_window(i, s->rows / w->together, w->pool_block ? w->keys : s->columns, w->left, w->right);
    if (w->begin.data)
        r = skl_from(r, *(const int32_t *)skl_row_at(&w->begin, at));
    if (w->end.data)
        r = skl_until(r, *(const int32_t *)skl_row_at(&w->end, at));
    return r;
}

struct skl_range skl_row_range(const struct skl_work *w, const struct skl_segment *s, const int64_t at[3])
{
    struct skl_range r = skl_row_keys(w, s, at);
    if (!w->pool_block)
        return r;
    r = skl_until(skl_from(r, 0), w->keys);
    return r.lo < r.hi ? (struct skl_range){r.lo / w->pool_block, (r.hi - 1) / w->pool_block + 1}
                       : (struct skl_range){0, 0};
}

static int lists_something(const struct skl_work *w, const int64_t at[3])
{
    for (int64_t k = 0; k < w->listed.k; k++)
        if (skl_listed_id(w, at, k) >= 0)
            return 1;
    return 0;
}

static int supports_something(const struct skl_work *w, struct skl_range seen, const int64_t at[3])
{
    for (int64_t k = 0; k < w->support.count; k++) {
        struct skl_range r = skl_supported(w, at, k, seen);
        if (r.lo < r.hi)
            return 1;
    }
    return 0;
}

double skl_row_weight(const struct skl_work *w, struct skl_range seen, const int64_t at[3])
{
    if ((seen.lo >= seen.hi && !skl_sees_more(w)) || (w->listed.given && !lists_something(w, at)))
        return 0;
    if (skl_has_support(w) && !supports_something(w, seen, at))
        return 0;
    return given_weight(w, at);
}

void skl_put_rows(const struct skl_work *w, int n, int64_t (*at)[3], const struct skl_row_result *results)
{
    int s = w->student, t = !s;
#define SKL_ROW_RESULT(name, dtype, needs, value)                     \
    for (int i = 0; w->result[SKL_ROW_##name].data && i < n; i++) {   \
        const struct skl_row_result *r = &results[i];                 \
        skl_row_put(&w->result[SKL_ROW_##name], dtype, at[i], value); \
    }
#include "row_results.def"
#undef SKL_ROW_RESULT
}
