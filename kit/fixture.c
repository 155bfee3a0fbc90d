/* SPDX-License-Identifier: Apache-2.0 */
#include "fixture.h"

#include "divergence.h"
#include "logits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------ inputs --- */

static void build_side(struct kit_fixture *f, int side, struct skl_side *into)
{
    const struct kit_case *c = &f->c;
    const struct kit_memory *memory = f->memory;
    struct kit_tensor *in = f->in + (side == S ? KIT_INPUT_A_S : KIT_INPUT_A_T);
    int attention = c->use == SKL_ATTENTION;
    int lead = attention ? 3 : c->lead;
    int64_t D = c->dim[side], height = c->cols + c->pad[side];
    int64_t heads = side == T ? kit_teacher_heads(c) : c->heads;
    int64_t key_heads = c->key_heads[side] ? c->key_heads[side] : heads;
    int64_t a_shape[4] = {c->batch, heads, c->rows, D}, b_shape[4] = {c->batch, key_heads, height, D};
    in[0] = kit_tensor(memory, c->dtype[side], lead + 1, a_shape + 3 - lead, 1, c->layout, c->place);
    in[1] = kit_tensor(memory, c->dtype[side], attention ? 4 : 2, b_shape + (attention ? 0 : 2), 1,
                       attention || c->layout != KIT_BROADCAST ? c->layout : KIT_GAPS, c->place);
    if (c->bias[side])
        in[2] = kit_tensor(memory, c->bias[side] - 1, 1, &height, 1, c->layout, c->place);

    /* scale <a, b> has deviation scale sqrt(D) dev(a) dev(b). */
    double scale = kit_case_scale(c, side);
    enum kit_numbers numbers = c->quick ? KIT_NEARLY_NORMAL : KIT_NORMAL;
    kit_fill_normal(&in[0].t, f->random, 1, c->quick ? KIT_NEARLY_NORMAL : KIT_OUTLIERS);
    kit_fill_normal(&in[1].t, f->random, c->spread * c->temperature / (scale * sqrt((double)D)), numbers);
    if (c->bias[side])
        kit_fill_normal(&in[2].t, f->random, 0.5 * c->temperature / scale, numbers);
    into->a = in[0].t, into->b = in[1].t, into->bias = in[2].t;
    into->scale = c->scale[side], into->softcap = c->softcap[side];
}

/* One of the tensors over the rows. */
static struct skl_tensor build_rows(struct kit_fixture *f, int input, int32_t dtype,
                                    double (*value)(struct kit_random *, const struct kit_case *))
{
    struct skl_tensor *a = &f->in[KIT_INPUT_A_S].t;
    f->in[input] = kit_tensor(f->memory, dtype, a->ndim - 1, a->shape, 0, f->c.layout, f->c.place);
    for (int64_t i = 0; i < kit_count(&f->in[input].t); i++) kit_set(&f->in[input].t, i, value(f->random, &f->c));
    return f->in[input].t;
}

static double random_begin(struct kit_random *r, const struct kit_case *c)
{
    return kit_chance(r, 2) ? 0 : (double)kit_between(r, -2, c->cols);
}

static double random_end(struct kit_random *r, const struct kit_case *c)
{
    return kit_chance(r, 2) ? (double)c->cols : (double)kit_between(r, -1, c->cols + 3);
}

static double random_weight(struct kit_random *r, const struct kit_case *c)
{
    double positive = 0.5 + kit_uniform(r);
    switch (c->weights) {
    case KIT_POSITIVE: return positive;
    case KIT_SOME_ZERO: return kit_chance(r, 3) ? 0 : positive;
    case KIT_SIGNED: return kit_chance(r, 2) ? -positive : positive;
    default: return 0;
    }
}

/* Some of the teacher's heads for each of the student's. */
static void build_map(struct kit_fixture *f)
{
    const struct kit_case *c = &f->c;
    int64_t shape[2] = {c->heads, c->mix};
    f->in[KIT_INPUT_MAP] = kit_tensor(f->memory, SKL_I32, c->mix ? 2 : 1, shape, 0, KIT_DENSE, c->place);
    f->p.head_map = f->in[KIT_INPUT_MAP].t;
    for (int64_t i = 0; i < kit_count(&f->p.head_map); i++)
        kit_set(&f->p.head_map, i, (double)kit_between(f->random, 0, c->map - 1));
}

/* LSEs over more than the columns and the sink here: up to e times as much. Over nothing but -inf where a row sees
 * nothing. */
static void build_lses(struct kit_fixture *f)
{
    const struct skl_tensor *a = &f->p.t.a;
    int64_t n = a->shape[2], columns = f->c.cols, lo, hi;
    double *z = kit_doubles((size_t)(2 * columns + 2)), about = log((double)columns) + f->c.spread * f->c.spread / 2;
    f->in[KIT_INPUT_LSE] = kit_tensor(f->memory, SKL_F32, 3, a->shape, 0, f->c.layout, f->c.place);
    for (int64_t i = 0; i < kit_count(&f->in[KIT_INPUT_LSE].t); i++) {
        int64_t batch = i / n / a->shape[1], head = i / n % a->shape[1];
        skl_reference_range(&f->p, i % n + (batch * f->c.heads + head % f->c.heads) * n, &lo, &hi);
        int64_t seen = hi > lo ? hi - lo : 0;
        if (!f->c.quick)
            kit_head_logits(&f->p, batch, head, i % n, lo, seen, z, z + columns + 1);
        if (kit_sinks(&f->p))
            z[seen++] = kit_sink(&f->p, &f->p.sink_t, head);
        kit_set(&f->in[KIT_INPUT_LSE].t, i, f->c.quick ? about : kit_log_sum_exp(seen, z) + kit_uniform(f->random));
    }
    f->p.lse_t = f->in[KIT_INPUT_LSE].t;
    free(z);
}

/* A logit for each head, of some mass beside those of the keys. */
static struct skl_tensor build_sink(struct kit_fixture *f, int input, int64_t heads)
{
    const struct kit_case *c = &f->c;
    double mean = 0.5 * log((double)c->cols);
    f->in[input] = kit_tensor(f->memory, c->sinks - 1, 1, &heads, 0, c->layout == KIT_BROADCAST ? KIT_GAPS : c->layout,
                              c->place);
    for (int64_t i = 0; i < heads; i++)
        kit_set(&f->in[input].t, i, c->temperature * (mean + c->spread * kit_normal(f->random)));
    return f->in[input].t;
}

static double random_label(struct kit_random *r, const struct kit_case *c)
{
    return kit_chance(r, 4) ? -100 : (double)kit_between(r, 0, c->cols - 1);
}

static void build_labels(struct kit_fixture *f)
{
    const struct kit_case *c = &f->c;
    f->labels = (struct skl_labels){sizeof f->labels, build_rows(f, KIT_INPUT_LABELS, c->labels, random_label),
                                    c->label_weight,  c->kl_weight,
                                    c->lse_weight,    -100,
                                    c->smoothing,     c->z_loss};
    f->labels_there = f->labels, f->labels_there.ids = kit_view(&f->in[KIT_INPUT_LABELS]);
    f->p.labels = &f->labels;
    if (c->alone)
        memset(&f->p.t, 0, sizeof f->p.t);
}

/* Columns and empty slots, some of them twice. */
static void build_mass_ids(struct kit_fixture *f)
{
    const struct skl_tensor *a = &f->in[KIT_INPUT_A_S].t;
    int64_t shape[4] = {a->shape[0], a->shape[1], a->shape[2], a->shape[3]};
    shape[a->ndim - 1] = f->c.mass_ids;
    f->in[KIT_INPUT_MASS] = kit_tensor(f->memory, SKL_I32, a->ndim, shape, 0, f->c.layout, f->c.place);
    f->p.mass_ids = f->in[KIT_INPUT_MASS].t;
    for (int64_t i = 0; i < kit_count(&f->p.mass_ids); i++)
        kit_set(&f->p.mass_ids, i, (double)kit_between(f->random, -1, f->c.cols - 1));
}

/* Offsets of packed sequences, sorted random numbers: some of them are equal. */
static struct skl_tensor build_offsets(struct kit_fixture *f, int input, int64_t total)
{
    int64_t n = f->c.packed + 1, before = 0;
    f->in[input] = kit_tensor(f->memory, SKL_I32, 1, &n, 0, f->c.layout == KIT_BROADCAST ? KIT_GAPS : f->c.layout,
                              f->c.place);
    for (int64_t i = 0; i < n; i++) {
        int64_t left = n - 1 - i, most = left ? before + 2 * (total - before) / (left + 1) : total;
        before = i == 0                     ? 0
                 : left == 0                ? total
                 : kit_chance(f->random, 4) ? before
                                            : kit_between(f->random, before, most);
        kit_set(&f->in[input].t, i, (double)before);
    }
    return f->in[input].t;
}

/* Different keys all over what the query sees, for measuring; in their order, as those who choose them by index have
 * them. */
static void spread_support(struct kit_fixture *f, int64_t batch, int64_t i)
{
    const struct kit_case *c = &f->c;
    int64_t lo, hi, block = c->support_block ? c->support_block : 1;
    skl_reference_range(&f->p, batch * c->heads * c->rows + i, &lo, &hi);
    int64_t first = lo / block, n = (hi + block - 1) / block - first, each = c->support;
    for (int64_t k = 0; k < each; k++) {
        int64_t from = n < each ? k : n * k / each, to = n < each ? k : n * (k + 1) / each - 1;
        kit_set(&f->p.support, (batch * c->rows + i) * each + k,
                from < n ? (double)(first + kit_between(f->random, from, to)) : -1);
    }
}

/* Keys of the query's sequence, in any order and some of them twice, and empty slots; now and then nothing but
 * these. */
static void build_support(struct kit_fixture *f)
{
    const struct kit_case *c = &f->c;
    int64_t shape[3] = {c->batch, c->rows, c->support}, sequence = 0, columns = c->cols, block = c->support_block;
    int layout = c->packed && c->layout == KIT_BROADCAST ? KIT_GAPS : c->layout; /* sequences have different keys */
    f->in[KIT_INPUT_SUPPORT] = kit_tensor(f->memory, SKL_I32, 3, shape, 0, layout, c->place);
    f->p.support = f->in[KIT_INPUT_SUPPORT].t, f->p.support_block = block;
    for (int64_t i = 0; i < c->batch * c->rows; i++) {
        int empty = kit_chance(f->random, 10);
        if (c->quick) {
            spread_support(f, i / c->rows, i % c->rows);
            continue;
        }
        while (c->packed && kit_get(&f->p.cu_seqlens_q, sequence + 1) <= (double)i) sequence++;
        if (c->packed)
            columns = (int64_t)(kit_get(&f->p.cu_seqlens_k, sequence + 1) - kit_get(&f->p.cu_seqlens_k, sequence));
        int64_t last = (block ? (columns + block - 1) / block : columns) - 1;
        for (int64_t k = 0; k < c->support; k++)
            kit_set(&f->p.support, i * c->support + k,
                    empty || last < 0 || kit_chance(f->random, 8) ? -1 : (double)kit_between(f->random, 0, last));
    }
}

uint64_t kit_checksum(const struct kit_fixture *f)
{
    uint64_t sum = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
    for (int k = 0; k < KIT_INPUTS; k++)
        for (size_t i = 0; f->in[k].memory.data && i < f->in[k].memory.size; i++)
            sum = (sum ^ f->in[k].memory.data[i]) * UINT64_C(0x100000001b3);
    return sum;
}

/* --------------------------------------------------------------------------------------- building, ending --- */

static void build_problem(struct kit_fixture *f)
{
    const struct kit_case *c = &f->c;
    struct skl_tensor none = {0};
    f->p = skl_problem_of(c->use, none, none, none, none);
    build_side(f, S, &f->p.s), build_side(f, T, &f->p.t);
    f->p.divergence = c->divergence, f->p.reduction = c->reduction, f->p.causal = c->causal;
    f->p.beta = c->beta, f->p.skew = c->skew, f->p.alpha = c->alpha, f->p.temperature = c->temperature,
    f->p.threads = c->threads;
    f->p.isa = c->isa, f->p.skip_below = c->skip_below, f->p.round_dz = c->round_dz;
    f->p.window_left = c->left, f->p.window_right = c->right;
    f->p.columns = c->pad[S] || c->pad[T] ? c->cols : 0;
    if (c->ranges) {
        f->p.begin = build_rows(f, KIT_INPUT_BEGIN, SKL_I32, random_begin);
        f->p.end = build_rows(f, KIT_INPUT_END, SKL_I32, random_end);
    }
    if (c->packed) {
        f->p.cu_seqlens_q = build_offsets(f, KIT_INPUT_CU_Q, c->rows);
        f->p.cu_seqlens_k = build_offsets(f, KIT_INPUT_CU_K, c->cols);
    }
    if (c->support)
        build_support(f);
    if (c->weights)
        f->p.weight = build_rows(f, KIT_INPUT_WEIGHT, SKL_F32, random_weight);
    f->p.mix_t = c->mix, f->p.raw_t = c->raw;
    if (c->sinks) {
        f->p.sink_s = build_sink(f, KIT_INPUT_SINK_S, c->heads);
        f->p.sink_t = build_sink(f, KIT_INPUT_SINK_T, kit_teacher_heads(c));
    }
    if (c->map)
        build_map(f);
    if (c->lses)
        build_lses(f);
    f->p.num_items = c->num_items;
    if (c->labels)
        build_labels(f);
    if (c->mass_ids)
        build_mass_ids(f);
}

static void build_outputs(struct kit_fixture *f)
{
    const struct kit_case *c = &f->c;
    for (int k = 0; k < KIT_RESULTS; k++) {
        int grad = k >= KIT_FIRST_GRADIENT;
        const struct skl_tensor *like = &f->in[grad ? k - KIT_FIRST_GRADIENT : 0].t;
        int ids = k == KIT_TOP1_S || k == KIT_TOP1_T;
        int wanted = grad ? (int)(c->grads >> (k - KIT_FIRST_GRADIENT) & 1) : kit_has(c, k);
        if (like->data && wanted)
            f->out[k] = kit_tensor(f->memory,
                                   grad && c->own ? like->dtype
                                   : ids          ? SKL_I32
                                                  : SKL_F32,
                                   like->ndim - !grad, like->shape, grad,
                                   c->layout == KIT_BROADCAST ? KIT_GAPS : c->layout, c->place);
    }
}

void kit_build(struct kit_fixture *f, const struct kit_case *c, const struct kit_memory *memory,
               struct kit_random *random)
{
    memset(f, 0, sizeof *f);
    f->c = *c, f->memory = memory, f->random = random;
    /* A device sums in f32 throughout, its 2^x and log2 x are approximate, and tensor cores may truncate. */
    f->allow = memory->device ? (struct kit_allowance){5, 1, 1} : (struct kit_allowance){1, 1, 0};
    build_problem(f);
    build_outputs(f);
    f->value_there = memory->device ? memory->device->get(sizeof *f->value_there) : NULL;
    kit_send(f);
}

void kit_destroy(struct kit_fixture *f)
{
    for (int k = 0; k < KIT_INPUTS; k++) kit_tensor_free(f->memory, &f->in[k]);
    for (int k = 0; k < KIT_RESULTS; k++) {
        kit_tensor_free(f->memory, &f->out[k]);
        free(f->want[k]), free(f->bound[k]);
    }
    free(f->got);
    if (f->value_there)
        f->memory->device->put_back(f->value_there);
    kit_give_back(f);
}

/* ---------------------------------------------------------------------------------------------- on a device --- */

void kit_send(struct kit_fixture *f)
{
    for (int k = 0; k < KIT_INPUTS; k++)
        if (f->in[k].there)
            f->memory->device->send(f->in[k].there, f->in[k].memory.data, f->in[k].memory.size);
}

void kit_fetch(struct kit_fixture *f)
{
    if (!f->memory->device)
        return;
    for (int k = 0; k < KIT_RESULTS; k++)
        if (f->out[k].there)
            f->memory->device->fetch(f->out[k].memory.data, f->out[k].there, f->out[k].memory.size);
    f->memory->device->fetch(&f->value, f->value_there, sizeof f->value);
}

struct skl_problem kit_problem(const struct kit_fixture *f)
{
    struct skl_problem p = f->p;
    if (!f->memory->device)
        return p;
    struct skl_tensor labels,
        *each[KIT_INPUTS] = {&p.s.a,      &p.s.b,    &p.s.bias,   &p.t.a,          &p.t.b,          &p.t.bias,
                             &p.sink_s,   &p.sink_t, &p.begin,    &p.end,          &p.weight,       &p.lse_t,
                             &p.head_map, &labels,   &p.mass_ids, &p.cu_seqlens_q, &p.cu_seqlens_k, &p.support};
    for (int k = 0; k < KIT_INPUTS; k++) *each[k] = kit_view(&f->in[k]);
    if (f->c.alone)
        memset(&p.t, 0, sizeof p.t);
    p.labels = p.labels ? &f->labels_there : NULL;
    p.workspace = f->workspace, p.workspace_bytes = f->workspace_bytes;
    return p;
}

void kit_give_back(struct kit_fixture *f)
{
    if (f->workspace)
        f->memory->device->put_back(f->workspace);
    f->workspace = NULL, f->workspace_bytes = 0;
}

size_t kit_reserve(struct kit_fixture *f, enum skl_call call)
{
    const struct kit_device *device = f->memory->device;
    kit_give_back(f);
    struct skl_problem p = kit_problem(f);
    struct skl_outputs out = kit_asked(f, call != SKL_CALL_BACKWARD, call == SKL_CALL_VALUE ? 0 : KIT_GRAD_ALL);
    size_t bytes = 0;
    if (skl_workspace_size(call, &p, &out, &bytes) == SKL_OK && bytes > 0) {
        f->workspace = device->get(bytes), f->workspace_bytes = bytes;
        device->spoil(f->workspace, bytes); /* whoever reads what was not written shall show */
    }
    return bytes;
}

/* --------------------------------------------------------------------------------------------------- calls --- */

struct skl_outputs kit_asked(struct kit_fixture *f, int with_rows, unsigned grads)
{
    struct skl_outputs out = skl_no_outputs();
    for (int k = 0; k < KIT_RESULTS; k++) {
        int wanted = k < KIT_FIRST_GRADIENT ? with_rows : (int)(grads >> (k - KIT_FIRST_GRADIENT) & 1);
        int part = k == KIT_KL_S || k == KIT_KL_T;
        if (f->out[k].t.data && wanted && !(part && f->loss_alone))
            *kit_slot(&out, k) = kit_view(&f->out[k]);
    }
    if (with_rows)
        out.value = f->value_there ? f->value_there : &f->value;
    return out;
}

struct skl_outputs kit_outputs(struct kit_fixture *f, int with_rows, unsigned grads)
{
    struct skl_outputs out = kit_asked(f, with_rows, grads);
    for (int k = 0; k < KIT_RESULTS; k++) {
        if (!kit_slot(&out, k)->data)
            continue;
        kit_fill_canary(&f->out[k].memory);
        if (f->out[k].there)
            f->memory->device->spoil(f->out[k].there, f->out[k].memory.size);
    }
    if (with_rows)
        f->value = NAN;
    if (with_rows && f->value_there)
        f->memory->device->spoil(f->value_there, sizeof f->value);
    return out;
}

enum skl_status kit_start(struct kit_fixture *f, enum skl_call call)
{
    struct skl_problem p = kit_problem(f);
    struct skl_outputs out = kit_asked(f, call != SKL_CALL_BACKWARD, call == SKL_CALL_VALUE ? 0 : KIT_GRAD_ALL);
    if (call == SKL_CALL_VALUE)
        return skl_value(&p, &out);
    if (call == SKL_CALL_VALUE_AND_GRAD)
        return skl_value_and_grad(&p, &out);
    struct skl_outputs saved = kit_asked(f, 1, 0);
    saved.value = NULL;
    return skl_backward(&p, &saved, &out);
}

enum skl_status kit_call(struct kit_fixture *f, enum skl_call call)
{
    enum skl_status status = kit_start(f, call);
    if (status == SKL_OK && f->memory->device)
        f->memory->device->wait();
    return status;
}
