/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention's gradients: rows_* for da and columns_* for db, each the same bits every time; or, where the caller allows any
 * order of summation and wants both, fused_*: logits once instead of twice, da by atomic additions to f32 sums.
 */
#include "run.h"
#include "../shapes.h"

#include <stdio.h>

static void name_of(const struct skl_gpu_run *run, const struct skl_gpu_grad *args, const char *what, char name[48])
{
    snprintf(name, 48, "%s_%s_%d_%s", what, run->plan.type == SKL_BF16 ? "bf16" : "f16", run->plan.dim,
             args->dz == SKL_DZ_Q ? "q" : "pj");
}

static enum skl_status rows(const struct skl_gpu_run *run, struct skl_gpu_grad args)
{
    char name[48];
    int dim = run->plan.dim;
    args.problem = skl_gpu_problem_of(run, SKL_GRAD_OWN(dim));
    name_of(run, &args, "rows", name);
    return skl_gpu_start(run, name, run->plan.heads * args.problem.tiles, 1, SKL_GRAD_THREADS, SKL_GRAD_SHARED(dim, 1),
                         &args, sizeof args);
}

/* Blocks of a kernel that owns 'own' columns each. */
static int64_t column_blocks(const struct skl_gpu_run *run, int x, int own)
{
    return run->work.batch * run->work.side[x].b_heads * ((run->work.columns + own - 1) / own);
}

static enum skl_status columns(const struct skl_gpu_run *run, struct skl_gpu_grad args)
{
    char name[48];
    int dim = run->plan.dim;
    name_of(run, &args, "columns", name);
    return skl_gpu_start(run, name, column_blocks(run, args.x, SKL_GRAD_OWN(dim)), 1, SKL_GRAD_THREADS,
                         SKL_GRAD_SHARED(dim, 0), &args, sizeof args);
}

static enum skl_status fused(const struct skl_gpu_run *run, struct skl_gpu_grad args)
{
    const struct skl_work *w = &run->work;
    const struct skl_work_side *s = &w->side[args.x];
    struct skl_operand sums = s->grad_a;
    char name[48];
    if (s->grad_a.dtype != SKL_F32)
        sums = (struct skl_operand){
            (char *)run->memory.sum_a, SKL_F32, {w->heads * w->n * s->dim, w->n * s->dim, s->dim}};
    SKL_TRY(skl_gpu_convert_matrix(run, &sums, NULL, w->batch, w->heads, 0, w->n, s->dim));
    args.grad_a = skl_gpu_matrix_of(&sums);
    name_of(run, &args, "fused", name);
    SKL_TRY(skl_gpu_start(run, name, column_blocks(run, args.x, SKL_FUSED_OWN(run->plan.dim)), 1, SKL_FUSED_THREADS,
                          SKL_FUSED_SHARED(run->plan.dim), &args, sizeof args));
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
        SKL_TRY(columns(run, args));
    return SKL_OK;
}
