/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"
#include "data.h"
#include "device.h"
#include "reference.h"

#include <stdlib.h>

enum { SLICES = 3 };

static int64_t clamp(int64_t x, int64_t lo, int64_t hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}

static void cut_side(struct skl_side *side, int64_t first, int64_t n)
{
    int k = side->b.ndim - 2;
    side->b.data = (char *)side->b.data + (size_t)(first * side->b.stride[k]) * dtype_size(side->b.dtype);
    side->b.shape[k] = n;
    if (side->bias.data) {
        side->bias.data = (char *)side->bias.data + (size_t)first * dtype_size(side->bias.dtype);
        side->bias.shape[0] = n;
    }
}

/* Of a device there is a copy of the states and ranges; elsewhere 'there' is here. Merging is done on the host. */
struct buffers {
    int device;
    int64_t rows;
    struct skl_state *total, *part, *states_there;
    int32_t *ranges, *ranges_there;
};

static struct buffers get_buffers(const struct job *job)
{
    int64_t rows = skl_reference_rows(&job->problem);
    size_t n = (size_t)rows;
    struct buffers x = {.device = job->work.device == SKL_CUDA, .rows = rows};
    x.total = get_memory(2 * n * sizeof *x.total), x.part = x.total + rows;
    x.ranges = get_memory(2 * n * sizeof *x.ranges);
    x.states_there = x.device ? device_get(n * sizeof *x.total) : NULL;
    x.ranges_there = x.device ? device_get(2 * n * sizeof *x.ranges) : x.ranges;
    return x;
}

static void free_buffers(struct buffers *x)
{
    if (x->device) {
        device_free(x->states_there);
        device_free(x->ranges_there);
    }
    free(x->total);
    free(x->ranges);
}

static enum skl_status partial(const struct buffers *x, const struct skl_problem *p, const struct skl_outputs *saved,
                               struct skl_state *state)
{
    enum skl_status status = skl_partial(p, saved, x->device ? x->states_there : state);
    if (x->device && status == SKL_OK)
        device_take(state, x->states_there, (size_t)x->rows * sizeof *state);
    return status;
}

static enum skl_status finish(const struct buffers *x, const struct skl_problem *p, const struct skl_outputs *out)
{
    if (x->device)
        device_put(x->states_there, x->total, (size_t)x->rows * sizeof *x->total);
    return skl_finish(p, x->device ? x->states_there : x->total, out);
}

/* Columns first .. first + n - 1 of a problem. Whatever masked the whole is turned into explicit ranges, since the
 * diagonal of a causal mask or window moves when columns are cut off. */
static struct skl_problem cut(struct job *job, int64_t first, int64_t n, const struct buffers *x)
{
    struct skl_problem p = *job_problem(job);
    int32_t *begin = x->ranges, *end = x->ranges + x->rows;
    for (int64_t row = 0; row < x->rows; row++) {
        int64_t lo, hi;
        skl_reference_range(&job->problem, row, &lo, &hi);
        begin[row] = (int32_t)clamp(lo - first, 0, n);
        end[row] = (int32_t)clamp(hi - first, begin[row], n);
    }
    if (x->device)
        device_put(x->ranges_there, x->ranges, 2 * (size_t)x->rows * sizeof *x->ranges);
    p.begin = p.end = job_value(job)->loss; /* a view over the rows */
    p.begin.dtype = p.end.dtype = SKL_I32;
    p.begin.data = x->ranges_there, p.end.data = x->ranges_there + x->rows;
    p.causal = 0, p.columns = 0;
    p.window_left = p.window_right = -1;
    cut_side(&p.s, first, n);
    cut_side(&p.t, first, n);
    return p;
}

/* One sweep over the slices, last first. */
static enum skl_status sweep(struct job *job, const struct skl_outputs *saved, const struct buffers *x)
{
    int64_t cols = job->work.cols;
    enum skl_status status = SKL_OK;
    int started = 0;
    for (int k = SLICES - 1; k >= 0 && status == SKL_OK; k--) {
        int64_t first = cols * k / SLICES, n = cols * (k + 1) / SLICES - first;
        if (n == 0)
            continue;
        struct skl_problem p = cut(job, first, n, x);
        status = partial(x, &p, saved, started ? x->part : x->total);
        if (status == SKL_OK && started)
            status = skl_merge(x->rows, x->total, x->part);
        started = 1;
    }
    return status;
}

enum skl_status check_slices(struct job *job)
{
    struct buffers x = get_buffers(job);
    struct skl_outputs lses = skl_no_outputs(), rest = *job_value(job);
    enum skl_status status = sweep(job, NULL, &x);
    if (job->problem.divergence == SKL_JSD && status == SKL_OK) {
        lses.lse_s = rest.lse_s, lses.lse_t = rest.lse_t;
        status = finish(&x, job_problem(job), &lses);
        rest.lse_s.data = rest.lse_t.data = NULL;
        if (status == SKL_OK)
            status = sweep(job, &lses, &x);
    }
    if (status == SKL_OK)
        status = finish(&x, job_problem(job), &rest);
    free_buffers(&x);
    return status;
}
