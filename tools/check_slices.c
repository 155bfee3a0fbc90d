/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"
#include "data.h"
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

/* Columns first .. first + n - 1 of a problem. Whatever masked the whole is turned into explicit ranges, since the
 * diagonal of a causal mask or window moves when columns are cut off. */
static struct skl_problem cut(const struct job *job, int64_t first, int64_t n, int32_t *begin, int32_t *end)
{
    struct skl_problem p = job->problem;
    for (int64_t row = 0; row < skl_reference_rows(&p); row++) {
        int64_t lo, hi;
        skl_reference_range(&p, row, &lo, &hi);
        begin[row] = (int32_t)clamp(lo - first, 0, n);
        end[row] = (int32_t)clamp(hi - first, begin[row], n);
    }
    p.begin = p.end = job->value.loss; /* a view over the rows */
    p.begin.dtype = p.end.dtype = SKL_I32;
    p.begin.data = begin, p.end.data = end;
    p.causal = 0, p.columns = 0;
    p.window_left = p.window_right = -1;
    cut_side(&p.s, first, n);
    cut_side(&p.t, first, n);
    return p;
}

/* One sweep over the slices, last first. */
static enum skl_status sweep(const struct job *job, const struct skl_outputs *saved, struct skl_state *total,
                             struct skl_state *part, int32_t *ranges)
{
    int64_t rows = skl_reference_rows(&job->problem), cols = job->work.cols;
    enum skl_status status = SKL_OK;
    int started = 0;
    for (int k = SLICES - 1; k >= 0 && status == SKL_OK; k--) {
        int64_t first = cols * k / SLICES, n = cols * (k + 1) / SLICES - first;
        if (n == 0)
            continue;
        struct skl_problem p = cut(job, first, n, ranges, ranges + rows);
        status = skl_partial(&p, saved, started ? part : total);
        if (status == SKL_OK && started)
            status = skl_merge(rows, total, part);
        started = 1;
    }
    return status;
}

enum skl_status check_slices(struct job *job)
{
    size_t rows = (size_t)skl_reference_rows(&job->problem);
    struct skl_state *total = get_memory(2 * rows * sizeof *total);
    int32_t *ranges = get_memory(2 * rows * sizeof *ranges);
    struct skl_outputs lses = skl_no_outputs(), rest = job->value;
    enum skl_status status = sweep(job, NULL, total, total + rows, ranges);
    if (job->problem.divergence == SKL_JSD && status == SKL_OK) {
        lses.lse_s = rest.lse_s, lses.lse_t = rest.lse_t;
        status = skl_finish(&job->problem, total, &lses);
        rest.lse_s.data = rest.lse_t.data = NULL;
        if (status == SKL_OK)
            status = sweep(job, &lses, total, total + rows, ranges);
    }
    if (status == SKL_OK)
        status = skl_finish(&job->problem, total, &rest);
    free(ranges);
    free(total);
    return status;
}
