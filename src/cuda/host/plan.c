/* SPDX-License-Identifier: Apache-2.0 */
#include "plan.h"

#include "../shapes.h"

#include <limits.h>

/* ------------------------------------------------------------------------------------------------ one matrix --- */

static int evenly(const struct skl_work *w, const void *data, const int64_t stride[3])
{
    return !data || ((w->heads == 1 || stride[1] == w->n * stride[2]) &&
                     (w->batch == 1 || stride[0] == w->heads * w->n * stride[2]));
}

/* A side whose logits are 2^-60 times a score of 8 entries: 0 to the last bit of any sum, and next to no work. */
static struct skl_work_side flat_side(const struct skl_work_side *s)
{
    struct skl_work_side flat = {.a = s->a,
                                 .b = s->b,
                                 .dim = s->dim < 8 ? s->dim : 8,
                                 .b_batch = s->b_batch,
                                 .b_heads = s->b_heads,
                                 .b_rows = s->b_rows,
                                 .group = s->group,
                                 .sign = 1,
                                 .unit = 0x1p-60 / SKL_LOG2E,
                                 .chain = 0x1p-60 / SKL_LOG2E};
    return flat;
}

struct skl_work skl_gpu_beside_flat(const struct skl_work *w, int side, int as, double temperature)
{
    struct skl_work of = *w;
    of.form = SKL_FORM_KL, of.student = 1;
    of.side[as] = w->side[side], of.side[!as] = flat_side(&w->side[side]);
    of.side[as].unit *= temperature, of.side[as].chain *= temperature;
    return of;
}

struct skl_work skl_gpu_flat(const struct skl_work *w)
{
    struct skl_work flat = *w;
    const struct skl_rows *ids = &w->labels.ids.rows;
    const struct skl_work_listed *listed = &w->listed;
    int even = !w->attention && evenly(w, w->begin.data, w->begin.stride) && evenly(w, w->end.data, w->end.stride) &&
               evenly(w, w->weight.data, w->weight.stride) && evenly(w, ids->data, ids->stride) &&
               evenly(w, w->mass_ids.rows.data, w->mass_ids.rows.stride) &&
               evenly(w, listed->ids.rows.data, listed->ids.rows.stride) &&
               evenly(w, listed->logprobs.data, listed->logprobs.stride) &&
               evenly(w, listed->rest.data, listed->rest.stride) && evenly(w, w->topk.ids.data, w->topk.ids.stride) &&
               evenly(w, w->topk.logprobs.data, w->topk.logprobs.stride);
    for (int i = 0; i < SKL_ROW_RESULTS; i++) even = even && evenly(w, w->result[i].data, w->result[i].stride);
    for (int i = 0; i < 2; i++) {
        const struct skl_work_side *s = &w->side[i];
        even = even && evenly(w, s->a.data, s->a.stride) && evenly(w, s->grad_a.data, s->grad_a.stride);
    }
    if (even)
        flat.batch = flat.heads = 1, flat.n = w->rows;
    struct skl_work_side *t = &flat.side[!w->student];
    int sink_alone = t->sink.data && !w->sinks;                     /* an indexer's, in the denominator */
    if (t->scorer == SKL_MIXTURE && t->members == 1 && !sink_alone) /* only its sum is not 1: see skl_gpu_raw */
        t->scorer = SKL_INNER, t->unit = t->head_unit;
    if (skl_gpu_gathers(w))
        *t = skl_gpu_gathered_side(&flat);
    if (w->form == SKL_FORM_NONE)
        flat = skl_gpu_beside_flat(&flat, w->student, 1, 1);
    return flat;
}

/* ------------------------------------------------------------------------------------------------ which kernels --- */

/* Copies of 16 bytes: aligned, and rows that begin on such addresses. */
static int copies_whole(const struct skl_operand *o)
{
    return (uintptr_t)o->data % 16 == 0 && o->stride[0] % 8 == 0 && o->stride[1] % 8 == 0 && o->stride[2] % 8 == 0;
}

/* Tensor cores take both operands of both sides in one 16-bit type. Their kernels know no negative
 * scale. */
static int tensor_cores(const struct skl_work *w)
{
    int type = w->side[0].a.dtype;
    if (type != SKL_BF16 && type != SKL_F16)
        return 0;
    for (int i = 0; i < 2; i++) {
        const struct skl_work_side *s = &w->side[i];
        double factor = (s->scorer == SKL_MIXTURE ? s->head_unit : s->unit) * SKL_LOG2E;
        if (s->a.dtype != type || s->b.dtype != type || s->dim % 8 || !copies_whole(&s->a) || !copies_whole(&s->b) ||
            s->sign < 0 || !(factor > 1e-20 && factor < 1e20))
            return 0;
    }
    return 1;
}

/* Details that take sweeps of their own, which no kernel makes of mixed heads: the name of one that is wanted. */
static const char *swept_detail(const struct skl_work *w)
{
    static const struct {
        enum skl_row_name row;
        const char *name;
    } swept[] = {{SKL_ROW_entropy_s, "entropy_s"},
                 {SKL_ROW_entropy_t, "entropy_t"},
                 {SKL_ROW_top1_s, "top1_s"},
                 {SKL_ROW_top1_t, "top1_t"},
                 {SKL_ROW_rank_s, "rank_s"},
                 {SKL_ROW_rank_t, "rank_t"},
                 {SKL_ROW_reverse, "reverse"},
                 {SKL_ROW_jsd, "jsd"},
                 {SKL_ROW_tv, "tv"},
                 {SKL_ROW_mass_s, "mass_s"},
                 {SKL_ROW_mass_t, "mass_t"}};
    for (size_t i = 0; i < sizeof swept / sizeof *swept; i++)
        if (w->result[swept[i].row].data)
            return swept[i].name;
    return NULL;
}

/* Do index_* work on an indexer: forward KL, beside a teacher of several heads, with operands that cuBLAS takes, too? A
 * part of index_kl has 16 bits for the head. */
static int index_on_tensor_cores(const struct skl_work *w)
{
    const struct skl_work_side *s = &w->side[w->student], *t = &w->side[!w->student];
    return w->form == SKL_FORM_KL && w->student == 1 && t->scorer == SKL_MIXTURE && s->members < 1 << 16 &&
           t->members < 1 << 16 && s->a.stride[2] >= s->dim && s->b.stride[2] >= s->dim && !swept_detail(w) &&
           tensor_cores(w);
}

int skl_gpu_by_keys(const struct skl_work *w)
{
    return skl_has_support(w) || (w->side[w->student].scorer == SKL_INDEX && !index_on_tensor_cores(w));
}

/* The same of a teacher of mixed heads, beside an indexer or not. */
static enum skl_gpu_role mixed_role(enum skl_gpu_role role, int indexed)
{
    switch ((int)role) {
    case SKL_ROLE_kl: return indexed ? SKL_ROLE_index_kl : SKL_ROLE_mixed_kl;
    case SKL_ROLE_jsd: return SKL_ROLE_mixed_jsd;
    case SKL_ROLE_second: return SKL_ROLE_mixed_second;
    case SKL_ROLE_dz: return indexed ? SKL_ROLE_index_dz : SKL_ROLE_mixed_dz;
    case SKL_ROLE_second_dz: return SKL_ROLE_mixed_second_dz;
    default: return role;
    }
}

const struct skl_gpu_kernel *skl_gpu_planned(const struct skl_gpu_plan *plan, enum skl_gpu_role role)
{
    role = plan->mixed ? mixed_role(role, plan->indexed) : role;
    const struct skl_gpu_kernel *k = NULL;
    if (plan->family == SKL_FAMILY_FORWARD)
        k = skl_gpu_kernel_of(role, plan->type, plan->dim, plan->capability);
    if (!k && (plan->family == SKL_FAMILY_FORWARD || plan->family == SKL_FAMILY_STREAM))
        k = skl_gpu_kernel_of(role, plan->type, 0, plan->capability);
    return k ? k : skl_gpu_kernel_of(role, SKL_ANY_TYPE, 0, plan->capability);
}

enum skl_gpu_role skl_gpu_second_sweep(const struct skl_work *w)
{
    return w->form == SKL_FORM_JSD ? SKL_ROLE_jsd : SKL_ROLE_second;
}

static void choose_kernels(const struct skl_work *w, const struct skl_gpu_properties *device, struct skl_gpu_plan *plan)
{
    int64_t widest = w->side[0].dim > w->side[1].dim ? w->side[0].dim : w->side[1].dim;
    int fits = tensor_cores(w);
    plan->capability = device->capability;
    plan->type = w->side[0].a.dtype;
    plan->dim = widest <= 64 ? 64 : widest <= 128 ? 128 : 256;
    /* All sweeps have the same tiles of rows: where a width has no kernel for a later one, it has none for the
     * first. */
    int narrow = widest <= 256 && !skl_gpu_wants_tops(w) && !w->result[SKL_ROW_tv].data && !w->listed.given &&
                 !w->topk.k &&
                 (skl_sweeps(w->form) == 1 ||
                  skl_gpu_kernel_of(skl_gpu_second_sweep(w), plan->type, plan->dim, plan->capability));
    plan->mixed = skl_gpu_mixes_tiles(w);
    plan->indexed = plan->mixed && w->side[w->student].scorer == SKL_INDEX;
    if (plan->mixed) /* tensor cores know forward KL alone here */
        fits = fits && w->form == SKL_FORM_KL, narrow = 0;
    plan->family = skl_gpu_by_keys(w) ? SKL_FAMILY_KEYS
                   : !fits            ? SKL_FAMILY_PLAIN
                   : narrow           ? SKL_FAMILY_FORWARD
                                      : SKL_FAMILY_STREAM;
    plan->tile_rows = skl_gpu_planned(plan, SKL_ROLE_kl)->rows;
    plan->heads = w->batch * w->heads;
    plan->tiles = (w->n + plan->tile_rows - 1) / plan->tile_rows;
}

/* With fewer tiles of rows than the device runs at once, the columns are split until there are twice as many blocks as
 * multiprocessors (two fit on one, or one after the other: a whole number of rounds), but not into pieces of fewer than
 * 512 columns, below which a block's start and end cost more than its sweep. */
static void split_columns(const struct skl_work *w, const struct skl_gpu_properties *device, struct skl_gpu_plan *plan)
{
    int64_t blocks = plan->heads * plan->tiles, wanted = 2 * (int64_t)device->processors;
    int64_t splits = blocks && blocks < wanted ? wanted / blocks : 1, most = w->columns / 512;
    if (plan->family == SKL_FAMILY_KEYS) /* a block has a row's keys, which nobody here can count */
        most = 1;
    splits = splits < most ? splits : most;
    splits = splits > 1 ? splits : 1;
    int64_t each = (w->columns + splits - 1) / splits;
    each = (each + SKL_COLUMN_UNIT - 1) / SKL_COLUMN_UNIT * SKL_COLUMN_UNIT;
    plan->split_columns = each > 0 ? (int)each : SKL_COLUMN_UNIT;
    plan->splits = w->columns ? (int)((w->columns + each - 1) / each) : 1;
    int streamed = plan->mixed ? SKL_MIXED_STATES : SKL_STREAM_STATES;
    plan->states = plan->splits * (plan->family == SKL_FAMILY_STREAM ? streamed
                                   : plan->family == SKL_FAMILY_KEYS ? SKL_KEY_STATES
                                                                     : 1);
}

/* ------------------------------------------------------------------------------------------------- gradients --- */

static int bias_grads(const struct skl_work *w)
{
    return w->side[0].grad_bias.data || w->side[1].grad_bias.data;
}

/* rows_*, columns_* and fused_* count places in an operand in 32 bits and chunks of 8 entries, forwards. */
static int reachable(const struct skl_operand *o, int64_t batch, int64_t heads, int64_t rows)
{
    const int64_t *stride = o->stride, reach = (batch - 1) * stride[0] + (heads - 1) * stride[1] + rows * stride[2];
    return stride[0] >= 0 && stride[1] >= 0 && stride[2] >= 0 && reach < (int64_t)8 << 32;
}

static int all_reachable(const struct skl_work *w)
{
    int all = 1;
    for (int x = 0; x < 2; x++) {
        const struct skl_work_side *s = &w->side[x];
        all = all && reachable(&s->a, w->batch, w->heads, w->n) && reachable(&s->b, s->b_batch, s->b_heads, w->columns);
    }
    return all;
}

static void choose_gradients(const struct skl_work *w, struct skl_gpu_plan *plan)
{
    plan->attention_grad = w->grads && w->attention && plan->family == SKL_FAMILY_FORWARD && all_reachable(w);
    int both = 1;
    for (int x = 0; x < 2; x++) both &= !(w->grads & 1 << x) || (w->side[x].grad_a.data && w->side[x].grad_b.data);
    plan->fused = plan->attention_grad && w->any_order && both && skl_gpu_planned(plan, SKL_ROLE_fused_q);
}

int skl_gpu_slab_dtype(const struct skl_work *w, const struct skl_gpu_plan *plan, int x)
{
    return plan->family == SKL_FAMILY_PLAIN ? w->side[x].a.dtype : plan->type;
}

/* Gradients by slabs: the two products are cuBLAS's, which wants one dtype and rows that do not overlap. */
static enum skl_status check_products(const struct skl_work *w)
{
    for (int x = 0; x < 2; x++) {
        const struct skl_work_side *s = &w->side[x];
        if (!(w->grads & 1 << x))
            continue;
        if (s->a.dtype != s->b.dtype)
            return skl_fail(SKL_UNSUPPORTED,
                            "cannot use a and b of different dtypes on CUDA: their gradients need one");
        int a = s->grad_b.data && s->a.stride[2] < s->dim && w->n > 1;
        int b = s->grad_a.data && s->b.stride[2] < s->dim && w->columns > 1;
        if (a || b)
            return skl_fail(
                SKL_UNSUPPORTED,
                "cannot use %s with rows %lld entries apart and %lld long on CUDA: for the gradient of %s they "
                "may not overlap",
                a ? "a" : "b", (long long)(a ? s->a.stride[2] : s->b.stride[2]), (long long)s->dim, a ? "b" : "a");
    }
    return SKL_OK;
}

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

/* ------------------------------------------------------------------------------------------------- workspace --- */

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
        m->index_weights = take(plan, w->rows * w->side[w->student].members * (int64_t)sizeof *m->index_weights);
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

/* A row is a block, and so is a head of it in a gradient; entries of a list are counted in 31 bits. */
static enum skl_status check_keys(const struct skl_work *w)
{
    if (!skl_gpu_by_keys(w))
        return SKL_OK;
    for (int x = 0; x < 2; x++) {
        const struct skl_work_side *s = &w->side[x];
        if (s->scorer != SKL_INNER && s->members * ((s->dim + SKL_KEY_ENTRIES - 1) / SKL_KEY_ENTRIES) > 65535)
            return skl_fail(
                SKL_UNSUPPORTED,
                "cannot use %lld heads of %lld entries on CUDA: at most 65535, a wider one counts for each %d",
                (long long)s->members, (long long)s->dim, SKL_KEY_ENTRIES);
    }
    if (w->rows > INT_MAX)
        return skl_fail(SKL_UNSUPPORTED, "cannot use %lld rows with support or an indexer on CUDA: at most 2^31 - 1",
                        (long long)w->rows);
    int64_t block = w->support_block < w->columns ? w->support_block : w->columns;
    if (skl_has_support(w) && block > 0 && w->support.count > INT_MAX / 4 / block)
        return skl_fail(SKL_UNSUPPORTED,
                        "cannot use support.shape[2] = %lld on CUDA: a list of blocks of %lld keys has at most %d",
                        (long long)w->support.count, (long long)block, (int)(INT_MAX / 4 / block));
    return SKL_OK;
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

static enum skl_status check_mixed(const struct skl_work *w)
{
    const char *detail = skl_gpu_mixes_tiles(w) ? swept_detail(w) : NULL;
    if (detail)
        return skl_fail(SKL_UNSUPPORTED,
                        "cannot use out.%s with a teacher of %lld heads to each of the student's on CUDA: only the "
                        "CPU tells it of mixed heads",
                        detail, (long long)w->side[!w->student].members);
    return SKL_OK;
}

enum skl_status skl_gpu_make_plan(enum skl_call call, const struct skl_work *w, const struct skl_gpu_properties *device,
                                  struct skl_gpu_plan *plan)
{
    *plan = (struct skl_gpu_plan){.call = call};
    SKL_TRY(check_keys(w));
    SKL_TRY(check_mixed(w));
    choose_kernels(w, device, plan);
    if (w->n > INT_MAX / 2 || w->columns > INT_MAX / 2 || plan->heads * plan->tiles > INT_MAX)
        return skl_fail(
            SKL_UNSUPPORTED,
            "cannot use %lld heads of %lld rows and %lld columns on CUDA: at most 2^30 rows and columns, and 2^31 "
            "tiles of %d rows in all heads",
            (long long)plan->heads, (long long)w->n, (long long)w->columns, plan->tile_rows);
    split_columns(w, device, plan);
    choose_gradients(w, plan);
    int slabs = w->grads && !plan->attention_grad && !skl_on_support(w) && plan->family != SKL_FAMILY_KEYS;
    enum skl_status status = slabs ? check_products(w) : SKL_OK;
    if (status)
        return status;
    lay_rows(w, plan);
    lay_mixture(w, plan);
    lay_labels(w, plan);
    lay_details(w, plan);
    lay_lists(w, plan);
    lay_keys(w, plan);
    lay_topk(w, plan);
    if (w->grads && !skl_on_support(w) && plan->family != SKL_FAMILY_KEYS)
        lay_gradients(w, plan);
    if (!w->limit_is_default && plan->bytes > w->limit)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use workspace_limit = %zu: this call takes %zu bytes on CUDA",
                        w->limit, plan->bytes);
    return SKL_OK;
}
