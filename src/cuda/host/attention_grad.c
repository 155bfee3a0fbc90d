/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention's gradients: rows_* for da and columns_* for db, each the same bits every time; or, where the caller allows
 * any order of summation and wants both, fused_*: logits once instead of twice, da by atomic additions to f32 sums.
 */
#include "run.h"

static enum skl_status rows(const struct skl_gpu_run *run, struct skl_gpu_grad args)
{
    enum skl_gpu_role role = args.dz == SKL_DZ_Q ? SKL_ROLE_rows_q : SKL_ROLE_rows_pj;
    args.problem = skl_gpu_problem_of(run, skl_gpu_planned(&run->plan, role)->rows);
    return skl_gpu_start(run, role, run->plan.heads * args.problem.tiles, 1, &args, sizeof args);
}

/* A kernel whose blocks own columns. */
static enum skl_status by_columns(const struct skl_gpu_run *run, enum skl_gpu_role role,
                                  const struct skl_gpu_grad *args)
{
    int own = skl_gpu_planned(&run->plan, role)->rows;
    int64_t tiles = (run->work.columns + own - 1) / own;
    return skl_gpu_start(run, role, run->work.batch * run->work.side[args->x].b_heads * tiles, 1, args, sizeof *args);
}

static enum skl_status columns(const struct skl_gpu_run *run, const struct skl_gpu_grad *args)
{
    return by_columns(run, args->dz == SKL_DZ_Q ? SKL_ROLE_columns_q : SKL_ROLE_columns_pj, args);
}

static enum skl_status fused(const struct skl_gpu_run *run, struct skl_gpu_grad args)
{
    const struct skl_work *w = &run->work;
    const struct skl_work_side *s = &w->side[args.x];
    struct skl_operand sums = s->grad_a;
    if (s->grad_a.dtype != SKL_F32)
        sums = (struct skl_operand){
            (char *)run->memory.sum_a, SKL_F32, {w->heads * w->n * s->dim, w->n * s->dim, s->dim}};
    SKL_TRY(skl_gpu_convert_matrix(run, &sums, NULL, w->batch, w->heads, 0, w->n, s->dim));
    args.grad_a = skl_gpu_matrix_of(&sums);
    SKL_TRY(by_columns(run, args.dz == SKL_DZ_Q ? SKL_ROLE_fused_q : SKL_ROLE_fused_pj, &args));
    if (s->grad_a.dtype == SKL_F32)
        return SKL_OK;
    return skl_gpu_convert_matrix(run, &s->grad_a, run->memory.sum_a, w->batch, w->heads, 0, w->n, s->dim);
}

enum skl_status skl_gpu_attention_grad(const struct skl_gpu_run *run, int x)
{
    struct skl_gpu_grad args;
    SKL_TRY(skl_gpu_grad_of(run, x, &args));
    if (run->plan.fused)
        return fused(run, args);
    if (run->work.side[x].grad_a.data)
        SKL_TRY(rows(run, args));
    if (run->work.side[x].grad_b.data)
        SKL_TRY(columns(run, &args));
    return SKL_OK;
}
