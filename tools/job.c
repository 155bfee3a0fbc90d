/* SPDX-License-Identifier: Apache-2.0 */
#include "job.h"
#include "data.h"
#include "device.h"
#include "options.h"
#include "reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

const char *const pass_names[] = {"value", "value_and_grad", "backward", NULL};
const char *const use_names[] = {"attention", "linear", NULL};

struct work work_default(int use)
{
    struct work w = {.use = use, .batch = 1, .heads = 1, .kv_heads_s = 1, .kv_heads_t = 1, .rows = 1, .cols = 1};
    w.dim_s = w.dim_t = 1;
    w.window_left = w.window_right = -1;
    w.temperature = 1, w.beta = 0.5;
    w.spread = 2; /* peaked, as real attention and vocabularies are: a flat softmax would hide errors */
    w.gradients = GRAD_STUDENT;
    w.seed = 1;
    return w;
}

/* ------------------------------------------------------------------------------------------ the buffers --- */

static void *own(struct job *job, void *p)
{
    job->owned[job->count++] = p;
    return p;
}

void job_free(struct job *job)
{
    while (job->count > 0) free(job->owned[--job->count]);
    while (job->on_device.count > 0) device_free(job->on_device.owned[--job->on_device.count]);
}

/* The next of this job's streams of random numbers. */
static uint64_t stream(const struct job *job)
{
    return job->work.seed * 64 + (uint64_t)job->count;
}

static struct skl_tensor operand_view(const struct work *w, int dtype, void *data, int64_t heads, int64_t rows,
                                      int64_t dim)
{
    return w->use == SKL_ATTENTION ? skl_heads(dtype, data, w->batch, heads, rows, dim)
                                   : skl_matrix(dtype, data, rows, dim);
}

static struct skl_tensor random_operand(struct job *job, int dtype, int64_t heads, int64_t rows, int64_t dim,
                                        double deviation)
{
    const struct work *w = &job->work;
    int64_t n = (w->use == SKL_ATTENTION ? w->batch * heads : 1) * rows * dim;
    return operand_view(w, dtype, own(job, random_array(dtype, n, deviation, stream(job))), heads, rows, dim);
}

/* Logits of the wanted deviation: scale <a, b> has deviation scale sqrt(D) dev(a) dev(b). */
static void make_side(struct job *job, struct skl_side *side, int dtype, int64_t kv_heads, int64_t dim, int64_t pad)
{
    const struct work *w = &job->work;
    double scale = w->use == SKL_ATTENTION ? 1 / sqrt((double)dim) : 1;
    double deviation = w->spread / (scale * sqrt((double)dim));
    side->a = random_operand(job, dtype, w->heads, w->rows, dim, 1);
    side->b = random_operand(job, dtype, kv_heads, w->cols + pad, dim, deviation);
    if (w->bias) {
        int64_t n = w->cols + pad;
        side->bias = skl_vector(dtype, own(job, random_array(dtype, n, 0.5, stream(job))), n);
    }
    side->softcap = w->softcap;
}

static struct skl_tensor over_rows(struct job *job, int dtype)
{
    const struct work *w = &job->work;
    int64_t n = w->batch * w->heads * w->rows;
    float *data = own(job, get_memory((size_t)n * sizeof *data));
    if (w->use == SKL_LINEAR)
        return skl_vector(dtype, data, n);
    struct skl_tensor t = skl_heads(dtype, data, w->batch, w->heads, w->rows, 1);
    t.ndim = 3, t.shape[3] = 0, t.stride[3] = 0;
    return t;
}

/* Some rows see a piece of the columns, some all of them, some none. */
static void make_ranges(struct job *job)
{
    int64_t n = job->work.batch * job->work.heads * job->work.rows, cols = job->work.cols;
    uint64_t seed = stream(job);
    job->problem.begin = over_rows(job, SKL_I32);
    job->problem.end = over_rows(job, SKL_I32);
    for (int64_t i = 0; i < n; i++) {
        int64_t begin = random_below(seed, (uint64_t)(2 * i), cols + 1);
        int64_t end = begin + random_below(seed, (uint64_t)(2 * i + 1), cols + 1 - begin);
        ((int32_t *)job->problem.begin.data)[i] = (int32_t)(i % 4 ? begin : 0);
        ((int32_t *)job->problem.end.data)[i] = (int32_t)(i % 4 ? end : cols);
    }
}

static void make_weights(struct job *job)
{
    int64_t n = job->work.batch * job->work.heads * job->work.rows;
    uint64_t seed = stream(job);
    job->problem.weight = over_rows(job, SKL_F32);
    for (int64_t i = 0; i < n; i++)
        ((float *)job->problem.weight.data)[i] = (float)random_below(seed, (uint64_t)i, 5) / 4;
}

static struct skl_tensor gradient_of(struct job *job, struct skl_tensor operand)
{
    int64_t n = 1;
    for (int k = 0; k < operand.ndim; k++) n *= operand.shape[k];
    int dtype = job->work.dtype_grad;
    operand.data = own(job, get_memory((size_t)n * dtype_size(dtype)));
    operand.dtype = dtype;
    return operand;
}

static void make_outputs(struct job *job)
{
    const struct skl_problem *p = &job->problem;
    int g = job->work.gradients;
    job->value = skl_no_outputs();
    job->value.value = &job->reduced;
    job->value.loss = over_rows(job, SKL_F32);
    job->value.lse_s = over_rows(job, SKL_F32);
    job->value.lse_t = over_rows(job, SKL_F32);
    if (p->divergence == SKL_JSD) {
        job->value.kl_s = over_rows(job, SKL_F32);
        job->value.kl_t = over_rows(job, SKL_F32);
    }
    job->all = job->value;
    if (g & GRAD_A_S)
        job->all.s.a = gradient_of(job, p->s.a);
    if (g & GRAD_B_S)
        job->all.s.b = gradient_of(job, p->s.b);
    if (g & GRAD_BIAS_S && p->s.bias.data)
        job->all.s.bias = gradient_of(job, p->s.bias);
    if (g & GRAD_A_T)
        job->all.t.a = gradient_of(job, p->t.a);
    if (g & GRAD_B_T)
        job->all.t.b = gradient_of(job, p->t.b);
}

/* ------------------------------------------------------------------------------------------- on a device --- */

static void *own_on_device(struct job *job, size_t bytes)
{
    return job->on_device.owned[job->on_device.count++] = device_get(bytes);
}

static size_t bytes_of(const struct skl_tensor *t)
{
    size_t n = dtype_size(t->dtype);
    for (int k = 0; k < t->ndim; k++) n *= (size_t)t->shape[k];
    return n;
}

/* All tensors here are contiguous. */
static void copy_to_device(struct job *job, struct skl_tensor *t)
{
    if (!t->data)
        return;
    void *data = own_on_device(job, bytes_of(t));
    device_put(data, t->data, bytes_of(t));
    *t = skl_on_cuda(*t, 0);
    t->data = data;
}

static void make_on_device(struct job *job)
{
    struct skl_problem *p = &job->on_device.problem;
    struct skl_outputs *out = &job->on_device.all, *value = &job->on_device.value;
    *p = job->problem, *out = job->all, *value = job->value;
    struct skl_tensor *each[] = {&p->s.a,   &p->s.b,    &p->s.bias,   &p->t.a,     &p->t.b,     &p->t.bias,  &p->begin,
                                 &p->end,   &p->weight, &out->loss,   &out->lse_s, &out->lse_t, &out->kl_s,  &out->kl_t,
                                 &out->s.a, &out->s.b,  &out->s.bias, &out->t.a,   &out->t.b,   &out->t.bias};
    for (size_t k = 0; k < sizeof each / sizeof each[0]; k++) copy_to_device(job, each[k]);
    out->value = own_on_device(job, sizeof *out->value);
    value->value = out->value;
    value->loss = out->loss, value->lse_s = out->lse_s, value->lse_t = out->lse_t;
    value->kl_s = out->kl_s, value->kl_t = out->kl_t;
}

struct skl_problem *job_problem(struct job *job)
{
    return job->work.device == SKL_CUDA ? &job->on_device.problem : &job->problem;
}

struct skl_outputs *job_value(struct job *job)
{
    return job->work.device == SKL_CUDA ? &job->on_device.value : &job->value;
}

struct skl_outputs *job_all(struct job *job)
{
    return job->work.device == SKL_CUDA ? &job->on_device.all : &job->all;
}

enum { RESULTS = 11 };

static void list_results(const struct skl_outputs *out, const struct skl_tensor *all[RESULTS])
{
    const struct skl_tensor *each[RESULTS] = {&out->loss, &out->lse_s,  &out->lse_t, &out->kl_s, &out->kl_t,  &out->s.a,
                                              &out->s.b,  &out->s.bias, &out->t.a,   &out->t.b,  &out->t.bias};
    memcpy(all, each, sizeof each);
}

void job_fetch(struct job *job)
{
    const struct skl_tensor *to[RESULTS], *from[RESULTS];
    if (job->work.device != SKL_CUDA)
        return;
    list_results(&job->all, to);
    list_results(&job->on_device.all, from);
    for (int k = 0; k < RESULTS; k++)
        if (to[k]->data)
            device_take(to[k]->data, from[k]->data, bytes_of(to[k]));
    device_take(&job->reduced, job->on_device.all.value, sizeof job->reduced);
}

size_t job_reserve(struct job *job, enum pass pass)
{
    static const enum skl_call calls[] = {SKL_CALL_VALUE, SKL_CALL_VALUE_AND_GRAD, SKL_CALL_BACKWARD};
    struct skl_problem *p = &job->on_device.problem;
    struct skl_outputs gradients = skl_no_outputs();
    gradients.s = job->on_device.all.s, gradients.t = job->on_device.all.t;
    const struct skl_outputs *out = pass == PASS_VALUE            ? &job->on_device.value
                                    : pass == PASS_VALUE_AND_GRAD ? &job->on_device.all
                                                                  : &gradients;
    size_t bytes = 0;
    p->workspace = NULL, p->workspace_bytes = 0;
    if (skl_workspace_size(calls[pass], p, out, &bytes) == SKL_OK && bytes > 0)
        p->workspace = own_on_device(job, bytes), p->workspace_bytes = bytes;
    if (p->workspace)
        device_spoil(p->workspace, bytes); /* whoever reads what was not written shall show */
    return bytes;
}

/* ------------------------------------------------------------------------------------------------- making --- */

void job_make(struct job *job, const struct work *work)
{
    *job = (struct job){.work = *work};
    const struct work *w = &job->work;
    struct skl_problem *p = &job->problem;
    struct skl_tensor none = {0};
    *p = skl_problem_of(w->use, none, none, none, none);
    p->divergence = w->divergence;
    p->reduction = w->reduction;
    p->causal = w->causal;
    p->window_left = w->window_left, p->window_right = w->window_right;
    p->beta = w->beta, p->temperature = w->temperature;
    p->columns = w->pad_s || w->pad_t ? w->cols : 0;
    p->threads = w->threads, p->isa = w->isa, p->workspace_limit = w->workspace_limit;
    p->skip_below = w->skip_below;
    make_side(job, &p->s, w->dtype_s, w->kv_heads_s, w->dim_s, w->pad_s);
    make_side(job, &p->t, w->dtype_t, w->kv_heads_t, w->dim_t, w->pad_t);
    if (w->ranges)
        make_ranges(job);
    if (w->weights)
        make_weights(job);
    make_outputs(job);
    if (w->device == SKL_CUDA)
        make_on_device(job);
}

/* ----------------------------------------------------------------------------------------------- running --- */

enum skl_status job_start(struct job *job, enum pass pass)
{
    const struct skl_problem *p = job_problem(job);
    if (pass == PASS_VALUE)
        return skl_value(p, job_value(job));
    if (pass == PASS_VALUE_AND_GRAD)
        return skl_value_and_grad(p, job_all(job));
    struct skl_outputs gradients = skl_no_outputs();
    gradients.s = job_all(job)->s, gradients.t = job_all(job)->t;
    return skl_backward(p, job_value(job), &gradients);
}

enum skl_status job_run(struct job *job, enum pass pass)
{
    enum skl_status status = job_start(job, pass);
    const char *failed = job->work.device == SKL_CUDA && status == SKL_OK ? device_wait() : NULL;
    if (!failed)
        return status;
    /* A fault in a kernel ends the use of the device by this process. */
    fprintf(stderr, "streamkl: the CUDA device failed: %s\n", failed);
    exit(EXIT_WRONG);
}

void job_must(struct job *job, enum pass pass)
{
    enum skl_status status = job_run(job, pass);
    if (status == SKL_OK)
        return;
    if (status == SKL_CANCELLED) {
        fprintf(stderr, "\nstreamkl: cancelled\n");
        exit(EXIT_INTERRUPTED);
    }
    fprintf(stderr, "streamkl: %s: %s\n", skl_status_string(status), skl_last_error());
    exit(EXIT_WRONG);
}

void job_spoil(struct job *job)
{
    const struct skl_tensor *all[RESULTS];
    list_results(job_all(job), all);
    for (int k = 0; k < RESULTS; k++) {
        if (all[k]->data && job->work.device == SKL_CUDA)
            device_spoil(all[k]->data, bytes_of(all[k]));
        else if (all[k]->data)
            memset(all[k]->data, 0xff, bytes_of(all[k])); /* NaN in f32, bf16 and f16 */
    }
    job->reduced = NAN;
    if (job->work.device == SKL_CUDA)
        device_spoil(job->on_device.all.value, sizeof job->reduced);
}

double job_elements(const struct job *job)
{
    double elements = 0;
    for (int64_t row = 0; row < skl_reference_rows(&job->problem); row++) {
        int64_t lo, hi;
        skl_reference_range(&job->problem, row, &lo, &hi);
        elements += hi > lo ? (double)(hi - lo) : 0;
    }
    return elements;
}

double job_flops(const struct job *job, enum pass pass)
{
    double logits = (double)(job->work.dim_s + job->work.dim_t), gradients = 2.0 * (double)job->work.dim_s;
    return 2 * job_elements(job) * (logits + (pass == PASS_VALUE ? 0 : gradients));
}
