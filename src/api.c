/* SPDX-License-Identifier: Apache-2.0
 * The entry points: check, plan, run. skl_finish() needs no plan: it reads results off complete states. */
#include "cpu/run.h"
#include "cuda/cuda.h"
#include "error.h"

#define TEXT(x) TEXT_(x)
#define TEXT_(x) #x

const char *skl_version(void)
{
    return TEXT(SKL_VERSION_MAJOR) "." TEXT(SKL_VERSION_MINOR) "." TEXT(SKL_VERSION_PATCH);
}

/* What follows the check. A device's part runs in the caller's floating-point mode: CUDA may start threads, and they
 * inherit it. */
static enum skl_status run_work(enum skl_call call, struct skl_work *work, int second_sweep_only,
                                struct skl_state *partial, struct skl_float_mode *caller_mode)
{
    if (work->device == SKL_CUDA) {
        skl_leave_float_mode(*caller_mode);
        return skl_cuda_run(call, work, partial, second_sweep_only);
    }
    struct skl_run run = {
        .work = work, .caller_mode = caller_mode, .states = partial, .second_sweep_only = second_sweep_only};
    size_t bytes;
    enum skl_status status = skl_plan_call(call, work, &run.plan, &bytes);
    if (status)
        return status;
    return skl_nothing_to_do(work) ? skl_run_nothing(&run) : skl_run_call(&run);
}

static enum skl_status run_call(enum skl_call call, const struct skl_problem *p, const struct skl_outputs *saved,
                                const struct skl_outputs *out, struct skl_state *partial)
{
    struct skl_float_mode mode = skl_enter_float_mode();
    struct skl_work work;
    enum skl_status status = skl_check(call, p, saved, out, partial, &work);
    if (!status)
        status = run_work(call, &work, call == SKL_CALL_PARTIAL && saved, partial, &mode);
    skl_leave_float_mode(mode);
    return status;
}

enum skl_status skl_value(const struct skl_problem *p, const struct skl_outputs *out)
{
    return run_call(SKL_CALL_VALUE, p, NULL, out, NULL);
}

enum skl_status skl_value_and_grad(const struct skl_problem *p, const struct skl_outputs *out)
{
    return run_call(SKL_CALL_VALUE_AND_GRAD, p, NULL, out, NULL);
}

enum skl_status skl_topk(const struct skl_problem *p, const struct skl_outputs *out)
{
    return run_call(SKL_CALL_TOPK, p, NULL, out, NULL);
}

enum skl_status skl_backward(const struct skl_problem *p, const struct skl_outputs *saved,
                             const struct skl_outputs *out)
{
    if (!saved)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use saved = NULL: a backward needs what skl_value wrote");
    return run_call(SKL_CALL_BACKWARD, p, saved, out, NULL);
}

enum skl_status skl_partial(const struct skl_problem *p, const struct skl_outputs *saved, struct skl_state *state)
{
    if (!state)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use state = NULL: it must point to a state for each row");
    return run_call(SKL_CALL_PARTIAL, p, saved, NULL, state);
}

static enum skl_status workspace_size(enum skl_call call, const struct skl_problem *p, const struct skl_outputs *out,
                                      struct skl_float_mode caller_mode, size_t *bytes)
{
    struct skl_work work;
    struct skl_plan plan;
    if (!bytes)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use bytes = NULL: it must point to where the answer goes");
    if ((int)call < SKL_CALL_VALUE || call > SKL_CALL_TOPK)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use call = %d: it must be one of enum skl_call", (int)call);
    enum skl_status status = skl_check(call, p, NULL, out, NULL, &work);
    if (status)
        return status;
    if (work.device == SKL_CUDA) {
        skl_leave_float_mode(caller_mode);
        return skl_cuda_workspace(call, &work, bytes);
    }
    return skl_plan_call(call, &work, &plan, bytes);
}

enum skl_status skl_workspace_size(enum skl_call call, const struct skl_problem *p, const struct skl_outputs *out,
                                   size_t *bytes)
{
    struct skl_float_mode mode = skl_enter_float_mode();
    enum skl_status status = workspace_size(call, p, out, mode, bytes);
    skl_leave_float_mode(mode);
    return status;
}

static enum skl_status finish(const struct skl_problem *p, const struct skl_state *state, const struct skl_outputs *out,
                              struct skl_float_mode caller_mode)
{
    struct skl_work w;
    enum skl_status status = skl_check(SKL_CALL_VALUE, p, NULL, out, state, &w);
    if (status)
        return status;
    if (!state && w.rows)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use state = NULL: it must point to %lld states", (long long)w.rows);
    if (w.device == SKL_CUDA) {
        skl_leave_float_mode(caller_mode);
        return skl_cuda_finish(&w, state);
    }
    double sum = 0;
    int any_weight = 0;
    for (int64_t row = 0, at[3]; row < w.rows; row++) {
        struct skl_row_state s = skl_private_state(&w, &state[row]);
        struct skl_row_result r = {0};
        skl_finish_row(w.form, w.param, &s, &r);
        skl_row_index(&w, row, at);
        double weight = w.weight.data ? (double)skl_row_get(&w.weight, at) : 1;
        if (weight == 0)
            r = skl_no_result();
        any_weight |= weight != 0;
        sum += weight * r.loss;
        skl_put_rows(&w, 1, &at, &r);
    }
    if (w.value)
        *w.value = skl_reduced(sum, w.mean, any_weight, w.weight_sum);
    return SKL_OK;
}

enum skl_status skl_finish(const struct skl_problem *p, const struct skl_state *state, const struct skl_outputs *out)
{
    struct skl_float_mode mode = skl_enter_float_mode();
    enum skl_status status = finish(p, state, out, mode);
    skl_leave_float_mode(mode);
    return status;
}
