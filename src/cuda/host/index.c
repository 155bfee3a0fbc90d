/* SPDX-License-Identifier: Apache-2.0
 *
 * Students that are indexers, on tensor cores (kernels/sweep_index.cu, index_kernels.cu). Their teacher is one of mixed
 * heads (mixture.c); sweeps and slabs are those of any other call. Beside them:
 *
 *     index_weights                   before the sweeps
 *     index_queries, index_rows       before and after the slabs of a batch (slab_grad.c)
 */
#include "run.h"

#include "../shapes.h"

#include <math.h>

static struct skl_gpu_index_rows rows_of(const struct skl_gpu_run *run, int64_t batch)
{
    const struct skl_work *w = &run->work;
    const struct skl_work_side *s = &w->side[w->student];
    return (struct skl_gpu_index_rows){.a = skl_gpu_matrix_of(&s->a),
                                       .w = skl_gpu_matrix_of(&s->w),
                                       .grad_a = skl_gpu_matrix_of(&s->grad_a),
                                       .grad_w = skl_gpu_matrix_of(&s->grad_w),
                                       .w_step = s->w_step,
                                       .grad_w_step = s->grad_w_step,
                                       .rows = w->rows,
                                       .n = (int32_t)w->n,
                                       .dim = (int32_t)s->dim,
                                       .members = (int32_t)s->members,
                                       .batch = (int32_t)batch,
                                       .sign = s->chain < 0 ? -1.0F : 1.0F,
                                       .range = run->memory.range,
                                       .weights = run->memory.index_weights,
                                       .queries = run->memory.index_queries,
                                       .sum = run->memory.sum_a};
}

struct skl_gpu_index skl_gpu_index_of(const struct skl_gpu_run *run)
{
    const struct skl_work_side *s = &run->work.side[run->work.student];
    if (!run->plan.indexed)
        return (struct skl_gpu_index){.members = 0};
    return (struct skl_gpu_index){.w = run->memory.index_weights,
                                  .floor = s->identity ? -INFINITY : 0,
                                  .members = (int32_t)s->members,
                                  .step = (int64_t)run->plan.slab_rows * run->plan.slab_columns};
}

enum skl_status skl_gpu_index_weights(const struct skl_gpu_run *run)
{
    struct skl_gpu_index_rows args = rows_of(run, 0);
    if (!run->plan.indexed)
        return SKL_OK;
    SKL_TRY(skl_gpu->clear((char *)(args.weights + args.members * args.rows), SKL_ROW_UNIT * sizeof *args.weights,
                           run->work.stream));
    return skl_gpu_start(run, SKL_ROLE_index_weights, skl_gpu_row_blocks(run, SKL_ROLE_index_weights), 1, &args,
                         sizeof args);
}

/* A warp for each query of a batch and head. */
static enum skl_status start(const struct skl_gpu_run *run, enum skl_gpu_role role, int64_t batch)
{
    struct skl_gpu_index_rows args = rows_of(run, batch);
    int rows = skl_gpu_planned(&run->plan, role)->rows;
    return skl_gpu_start(run, role, (args.n + rows - 1) / rows, args.members, &args, sizeof args);
}

enum skl_status skl_gpu_index_queries(const struct skl_gpu_run *run, int64_t batch)
{
    return run->memory.index_queries ? start(run, SKL_ROLE_index_queries, batch) : SKL_OK;
}

enum skl_status skl_gpu_index_rows(const struct skl_gpu_run *run, int64_t batch)
{
    const struct skl_work_side *s = &run->work.side[run->work.student];
    return run->plan.indexed && (s->grad_a.data || s->grad_w.data) ? start(run, SKL_ROLE_index_rows, batch) : SKL_OK;
}
