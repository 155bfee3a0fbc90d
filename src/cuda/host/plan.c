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

/* ------------------------------------------------------------------------------------------------- the plan --- */

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
    skl_gpu_lay_workspace(w, plan);
    if (!w->limit_is_default && plan->bytes > w->limit)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use workspace_limit = %zu: this call takes %zu bytes on CUDA",
                        w->limit, plan->bytes);
    return SKL_OK;
}
