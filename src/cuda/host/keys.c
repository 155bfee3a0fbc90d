/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows that see keys of their own, and students that are indexers, on a device (kernels/key_kernels.cu):
 *
 *     sort_keys                               before the sweeps: lists in order
 *     keys_lse, keys_kl, keys_second, keys_top  in the place of any sweep
 *     keys_rows, keys_columns                 gradients
 *     keys_scores                             scores for lists of the largest (topk.c)
 */
#include "run.h"

#include "../shapes.h"

static struct skl_gpu_scorer scorer_of(const struct skl_gpu_run *run, int x)
{
    const struct skl_work_side *s = &run->work.side[x];
    struct skl_gpu_scorer g = {.kind = s->scorer == SKL_INDEX     ? SKL_SCORE_INDEX
                                       : s->scorer == SKL_MIXTURE ? SKL_SCORE_MIXTURE
                                                                  : SKL_SCORE_INNER,
                               .members = (int32_t)s->members,
                               .w = skl_gpu_matrix_of(&s->w),
                               .w_step = s->w_step,
                               .identity = s->identity,
                               .sign = s->chain < 0 ? -1 : 1};
    return g;
}

static struct skl_gpu_keys keys_of(const struct skl_gpu_run *run, const struct skl_gpu_forward *forward)
{
    const struct skl_work *w = &run->work;
    struct skl_gpu_keys k = {.forward = *forward,
                             .scorer = {scorer_of(run, 0), scorer_of(run, 1)},
                             .ids = skl_gpu_ids_of(&w->support),
                             .range = run->memory.range,
                             .packed = skl_gpu_packed_of(w),
                             .scalars = run->memory.scalars,
                             .listed = run->memory.listed_keys,
                             .room = run->plan.room,
                             .block = run->plan.block};
    return k;
}

enum skl_status skl_gpu_list_keys(const struct skl_gpu_run *run)
{
    const struct skl_work *w = &run->work;
    if (run->plan.family != SKL_FAMILY_KEYS || !w->columns)
        return SKL_OK;
    struct skl_gpu_forward forward = {.problem = skl_gpu_problem_of(run, run->plan.tile_rows)};
    struct skl_gpu_keys args = keys_of(run, &forward);
    if (!skl_has_support(w))
        return SKL_OK;
    return skl_gpu_start(run, SKL_ROLE_sort_keys, w->batch * w->n, 1, &args, sizeof args);
}

enum skl_status skl_gpu_sweep_keys(const struct skl_gpu_run *run, enum skl_gpu_role role,
                                   const struct skl_gpu_forward *forward)
{
    struct skl_gpu_keys args = keys_of(run, forward);
    enum skl_gpu_role own = role == SKL_ROLE_kl          ? SKL_ROLE_keys_kl
                            : role == SKL_ROLE_top       ? SKL_ROLE_keys_top
                            : role == SKL_ROLE_mixed_lse ? SKL_ROLE_keys_lse
                                                         : SKL_ROLE_keys_second;
    return skl_gpu_start(run, own, run->work.rows, 1, &args, sizeof args);
}

enum skl_status skl_gpu_score_keys(const struct skl_gpu_run *run, const struct skl_gpu_slab *slab)
{
    struct skl_gpu_forward forward = {.problem = slab->grad.problem};
    struct skl_gpu_key_scores args = {.keys = keys_of(run, &forward), .slab = *slab};
    return skl_gpu_start(run, SKL_ROLE_keys_scores, slab->rows, 1, &args, sizeof args);
}

enum skl_status skl_gpu_key_grad(const struct skl_gpu_run *run, int x)
{
    const struct skl_work *w = &run->work;
    const struct skl_work_side *s = &w->side[x];
    int64_t parts = (s->dim + SKL_KEY_ENTRIES - 1) / SKL_KEY_ENTRIES;
    int64_t heads = s->scorer == SKL_INDEX ? s->members : 1;
    struct skl_gpu_forward forward = {.problem = skl_gpu_problem_of(run, run->plan.tile_rows)};
    struct skl_gpu_key_grad args = {.keys = keys_of(run, &forward),
                                    .grad_w = skl_gpu_matrix_of(&s->grad_w),
                                    .grad_w_step = s->grad_w_step,
                                    .parts = (int32_t)parts,
                                    .b_heads = (int32_t)s->b_heads,
                                    .heads = (int32_t)(w->batch * s->b_heads)};
    SKL_TRY(skl_gpu_grad_of(run, x, &args.grad));
    if (s->grad_a.data || s->grad_w.data)
        SKL_TRY(skl_gpu_start(run, SKL_ROLE_keys_rows, skl_gpu_row_blocks(run, SKL_ROLE_keys_rows), parts * heads,
                              &args, sizeof args));
    int64_t tiles = (w->columns + SKL_KEY_COLUMNS - 1) / SKL_KEY_COLUMNS;
    if (s->grad_b.data)
        SKL_TRY(skl_gpu_start(run, SKL_ROLE_keys_columns, (args.heads * tiles + 3) / 4, parts, &args, sizeof args));
    return SKL_OK;
}
