/* SPDX-License-Identifier: Apache-2.0
 *
 * A call on a device: everything is issued on the caller's stream in order, nothing is waited for. What the host would
 * have to know (sums of weights, say) stays on the device, where the kernels read it.
 *
 *     sum_weights, find_ranges                                      what the rows weigh and see
 *     sweep, finish_rows [make_factors, sweep, finish_rows]         value; the second time for two sweeps
 *     [label_weights before all, label_scores, finish_labels after]   labels: labels.c
 *     [gather_heads; sweep of a head, make_members]                 mixed heads, before the sweeps: mixture.c
 *     [index_weights before, index_queries, index_rows after]       indexers on tensor cores: index.c
 *     [push_sinks, sink_masses, sum_sinks]                          sinks: sinks.c
 *     [sort_lists, score_lists before, finish_lists after]          listed teachers: lists.c
 *     [sort_keys, keys_lse before, keys_* for sweep and gradients]  lists of keys, other indexers: keys.c
 *     [*_scores, pick_scores, sort_picks instead of all below]      lists of the largest logits: topk.c
 *     [further sweeps, put_*]                                       details of rows: details.c
 *     sum_values                                                    reduced loss
 *     make_factors, gradient kernels                                for each side whose gradient is wanted
 */
#include "run.h"

#include "../cuda.h"
#include "../shapes.h"

/* -------------------------------------------------------------------------------------------------- launches --- */

enum skl_status skl_gpu_start(const struct skl_gpu_run *run, enum skl_gpu_role role, int64_t grid_x, int64_t grid_y,
                              const void *args, size_t args_bytes)
{
    const struct skl_gpu_kernel *k = skl_gpu_planned(&run->plan, role);
    struct skl_gpu_launch l = {k->name, grid_x, (int)grid_y, k->threads, k->shared, args, args_bytes};
    return skl_gpu->launch(&l, run->work.stream);
}

#define START(run, role, grid_x, grid_y, args) skl_gpu_start(run, role, grid_x, grid_y, &(args), sizeof(args))

int64_t skl_gpu_row_blocks(const struct skl_gpu_run *run, enum skl_gpu_role role)
{
    int rows = skl_gpu_planned(&run->plan, role)->rows;
    return (run->work.rows + rows - 1) / rows;
}

/* ------------------------------------------------------------------------------------------------- the rows --- */

float skl_gpu_spread(const struct skl_gpu_run *run)
{
    const struct skl_work *w = &run->work;
    int half = 0;
    for (int x = 0; x < 2; x++) half |= (w->grads & 1 << x) && skl_gpu_slab_dtype(w, &run->plan, x) == SKL_F16;
    /* |q - p| <= 1; p |log p/q - KL| and those of two sweeps may be larger, up to 100 or so, and S (q - p) of a target
     * with sum S. f16 ends at 65504. */
    int lists = w->listed.reverse || (w->listed.given && w->listed.tail == SKL_TAIL_ZERO);
    int large = skl_sweeps(w->form) == 2 || (w->grads & 1) || w->labels.z_loss > 0 || w->raw || lists;
    return !half ? 1.0F : large ? 256.0F : 16384.0F;
}

static enum skl_status sum_weights(const struct skl_gpu_run *run)
{
    const struct skl_work *w = &run->work;
    struct skl_gpu_sum_weights args = {
        .weight = skl_gpu_rows_of(&w->weight),
        .rows = w->rows,
        .heads = (int32_t)w->heads,
        .n = (int32_t)w->n,
        .mean = w->mean,
        .chain = {(float)(w->side[0].chain * skl_gpu_label_norm(w)), (float)(w->side[1].chain * skl_gpu_label_norm(w))},
        .spread = skl_gpu_spread(run),
        .items = w->weight_sum,
        .packed = skl_gpu_packed_of(w),
        .columns = (int32_t)w->columns,
        .scalars = run->memory.scalars};
    return START(run, SKL_ROLE_sum_weights, 1, 1, args);
}

static enum skl_status find_ranges(const struct skl_gpu_run *run)
{
    const struct skl_work *w = &run->work;
    struct skl_gpu_find_ranges args = {.weight = skl_gpu_rows_of(&w->weight),
                                       .begin = skl_gpu_rows_of(&w->begin),
                                       .end = skl_gpu_rows_of(&w->end),
                                       .heads = (int32_t)w->heads,
                                       .n = (int32_t)w->n,
                                       .columns = (int32_t)w->columns,
                                       .tiles = (int32_t)((w->n + SKL_RANGE_ROWS - 1) / SKL_RANGE_ROWS),
                                       .left = w->left,
                                       .right = w->right,
                                       .packed = skl_gpu_packed_of(w),
                                       .scalars = run->memory.scalars,
                                       .range = run->memory.range,
                                       .tile_range = run->memory.tile_range};
    return START(run, SKL_ROLE_find_ranges, run->plan.heads * args.tiles, 1, args);
}

static enum skl_status make_factors(const struct skl_gpu_run *run, int x, int dz)
{
    const struct skl_work *w = &run->work;
    struct skl_gpu_make_factors args = {.weight = skl_gpu_rows_of(&w->weight),
                                        .loss = skl_gpu_rows_of(&w->result[skl_gpu_divergence_row(w)]),
                                        .lse = {skl_gpu_rows_of(&w->result[skl_of_side(w, SKL_ROW_lse_s, 0)]),
                                                skl_gpu_rows_of(&w->result[skl_of_side(w, SKL_ROW_lse_s, 1)])},
                                        .kl = skl_gpu_rows_of(&w->result[skl_of_side(w, SKL_ROW_kl_s, x)]),
                                        .raw = skl_gpu_raw_of(w),
                                        .range = run->memory.range,
                                        .scalars = run->memory.scalars,
                                        .rows = w->rows,
                                        .heads = (int32_t)w->heads,
                                        .n = (int32_t)w->n,
                                        .dz = dz,
                                        .references = run->memory.references,
                                        .factors = run->memory.factors};
    for (int side = 0; side < 2; side++) {
        args.m[side] = skl_gpu_rows_of(&w->result[skl_of_side(w, SKL_ROW_m_s, side)]);
        args.l[side] = skl_gpu_rows_of(&w->result[skl_of_side(w, SKL_ROW_l_s, side)]);
        args.unit[side] = w->side[side].unit;
    }
    return START(run, SKL_ROLE_make_factors, skl_gpu_row_blocks(run, SKL_ROLE_make_factors), 1, args);
}

/* --------------------------------------------------------------------------------------------------- sweeps --- */

static enum skl_status sweep(const struct skl_gpu_run *run, enum skl_gpu_role role)
{
    const struct skl_gpu_plan *plan = &run->plan;
    struct skl_gpu_forward args = {.problem = skl_gpu_problem_of(run, plan->tile_rows),
                                   .state = run->memory.state,
                                   .references = run->memory.references,
                                   .split_columns = plan->split_columns,
                                   .form = (int32_t)run->work.form,
                                   .listed = run->memory.list_columns,
                                   .room = plan->room};
    if (plan->family == SKL_FAMILY_KEYS)
        return skl_gpu_sweep_keys(run, role, &args);
    return START(run, role, plan->heads * plan->tiles, plan->splits, args);
}

static enum skl_status finish_rows(const struct skl_gpu_run *run, enum skl_gpu_sweep after,
                                   const struct skl_state *states)
{
    const struct skl_work *w = &run->work;
    struct skl_gpu_finish_rows args = {.state = run->memory.state,
                                       .partial_in = states,
                                       .range = run->memory.range,
                                       .weight = skl_gpu_rows_of(&w->weight),
                                       .rows = w->rows,
                                       .heads = (int32_t)w->heads,
                                       .n = (int32_t)w->n,
                                       .splits = run->plan.states,
                                       .sweep = after,
                                       .student = w->student,
                                       .form = (int32_t)w->form,
                                       .param = {w->param[0], w->param[1]},
                                       .loss_out = run->memory.loss,
                                       .partial = run->partial,
                                       .raw = skl_gpu_raw_of(w),
                                       .sinks = skl_gpu_sinks_of(run),
                                       .loss = skl_gpu_rows_of(&w->result[skl_gpu_divergence_row(w)])};
    for (int side = 0; side < 2; side++) {
        args.lse[side] = skl_gpu_rows_of(&w->result[skl_of_side(w, SKL_ROW_lse_s, side)]);
        args.kl[side] = skl_gpu_rows_of(&w->result[skl_of_side(w, SKL_ROW_kl_s, side)]);
        args.m[side] = skl_gpu_rows_of(&w->result[skl_of_side(w, SKL_ROW_m_s, side)]);
        args.l[side] = skl_gpu_rows_of(&w->result[skl_of_side(w, SKL_ROW_l_s, side)]);
        args.unit[side] = w->side[side].unit;
    }
    return START(run, SKL_ROLE_finish_rows, skl_gpu_row_blocks(run, SKL_ROLE_finish_rows), 1, args);
}

static enum skl_status sum_values(const struct skl_gpu_run *run)
{
    const struct skl_work *w = &run->work;
    struct skl_gpu_sum_values args = {.loss = run->memory.loss,
                                      .weight = skl_gpu_rows_of(&w->weight),
                                      .scalars = run->memory.scalars,
                                      .rows = w->rows,
                                      .heads = (int32_t)w->heads,
                                      .n = (int32_t)w->n,
                                      .mean = w->mean,
                                      .value = w->value};
    return w->value ? START(run, SKL_ROLE_sum_values, 1, 1, args) : SKL_OK;
}

enum skl_status skl_gpu_states(const struct skl_gpu_run *run, const struct skl_work *of, struct skl_state *to)
{
    struct skl_gpu_run other = *run;
    other.work = *of, other.partial = to;
    SKL_TRY(sweep(&other, SKL_ROLE_kl));
    return finish_rows(&other, SKL_SWEEP_KL, NULL);
}

/* The second of two sweeps, by what the first one found. */
static enum skl_status sweep_again(const struct skl_gpu_run *run)
{
    SKL_TRY(make_factors(run, 0, SKL_DZ_Q));
    SKL_TRY(sweep(run, skl_gpu_second_sweep(&run->work)));
    return skl_gpu_push_sinks(run);
}

enum skl_status skl_gpu_second_states(const struct skl_gpu_run *run, const struct skl_work *of, struct skl_state *to)
{
    struct skl_gpu_run other = *run;
    other.work = *of, other.partial = to;
    SKL_TRY(sweep_again(&other));
    other.work.student = 1; /* P is in the teacher's place of the states */
    return finish_rows(&other, SKL_SWEEP_SECOND, NULL);
}

enum skl_status skl_gpu_rest_states(const struct skl_gpu_run *run, struct skl_state *to)
{
    struct skl_gpu_run other = *run;
    other.partial = to;
    SKL_TRY(sweep(&other, SKL_ROLE_rest));
    return finish_rows(&other, SKL_SWEEP_KL, NULL);
}

enum skl_status skl_gpu_sweep_head(const struct skl_gpu_run *run, int64_t member)
{
    const struct skl_gpu_plan *plan = &run->plan;
    struct skl_gpu_forward args = {.problem = skl_gpu_problem_of(run, plan->tile_rows),
                                   .state = run->memory.state,
                                   .split_columns = plan->split_columns};
    args.problem.mixture.alone = (int32_t)member;
    if (plan->family == SKL_FAMILY_KEYS)
        return skl_gpu_sweep_keys(run, SKL_ROLE_mixed_lse, &args);
    return START(run, SKL_ROLE_mixed_lse, plan->heads * plan->tiles, plan->splits, args);
}

enum skl_status skl_gpu_sweep_tops(const struct skl_gpu_run *run, const float *limits)
{
    const struct skl_gpu_plan *plan = &run->plan;
    struct skl_gpu_forward args = {.problem = skl_gpu_problem_of(run, plan->tile_rows),
                                   .split_columns = plan->split_columns,
                                   .tops = run->memory.tops,
                                   .limits = limits};
    if (plan->family == SKL_FAMILY_KEYS)
        return skl_gpu_sweep_keys(run, SKL_ROLE_top, &args);
    return START(run, SKL_ROLE_top, plan->heads * plan->tiles, plan->splits, args);
}

static enum skl_status sweeps(const struct skl_gpu_run *run)
{
    const struct skl_work *w = &run->work;
    if (!run->second_sweep) {
        SKL_TRY(sweep(run, SKL_ROLE_kl));
        SKL_TRY(finish_rows(run, skl_sweeps(w->form) == 2 ? SKL_SWEEP_LSE : SKL_SWEEP_KL, NULL));
    }
    if (skl_sweeps(w->form) == 2 && (run->second_sweep || !run->partial)) {
        SKL_TRY(sweep_again(run));
        SKL_TRY(finish_rows(run, SKL_SWEEP_SECOND, NULL));
    }
    return SKL_OK;
}

/* ------------------------------------------------------------------------------------------------- gradients --- */

static int32_t dz_of(const struct skl_work *w, int x)
{
    if (skl_sweeps(w->form) == 2)
        return w->form == SKL_FORM_JSD ? SKL_DZ_JSD : SKL_DZ_COLUMN;
    return x == 0 ? SKL_DZ_P : SKL_DZ_Q;
}

enum skl_status skl_gpu_grad_of(const struct skl_gpu_run *run, int x, struct skl_gpu_grad *grad)
{
    const struct skl_work *w = &run->work;
    *grad = (struct skl_gpu_grad){.problem = skl_gpu_problem_of(run, run->plan.tile_rows),
                                  .references = run->memory.references,
                                  .factors = run->memory.factors,
                                  .scalars = run->memory.scalars,
                                  .tile_range = run->memory.tile_range,
                                  .grad_a = skl_gpu_matrix_of(&w->side[x].grad_a),
                                  .grad_b = skl_gpu_matrix_of(&w->side[x].grad_b),
                                  .x = x,
                                  .dz = dz_of(w, x),
                                  .form = (int32_t)w->form,
                                  .spread = skl_gpu_spread(run)};
    return run->teacher ? make_factors(run, x, grad->dz) : SKL_OK;
}

enum skl_status skl_gpu_convert_matrix(const struct skl_gpu_run *run, const struct skl_operand *to, const float *from,
                                       int64_t batch, int64_t heads, int64_t first, int64_t rows, int64_t dim)
{
    struct skl_gpu_convert args = {.to = skl_gpu_matrix_of(to),
                                   .from = from,
                                   .rows = rows,
                                   .first = first,
                                   .all = batch * heads * rows,
                                   .heads = (int32_t)heads,
                                   .dim = (int32_t)dim};
    int64_t blocks = args.all < INT32_MAX ? args.all : INT32_MAX;
    return blocks > 0 ? START(run, SKL_ROLE_convert, blocks, 1, args) : SKL_OK;
}

/* What no kernel writes: rows of b beyond the columns; everything, when there is no row or no column. */
static enum skl_status clear_gradients(const struct skl_gpu_run *run, int x)
{
    const struct skl_work *w = &run->work;
    const struct skl_work_side *s = &w->side[x];
    int64_t used = w->rows ? w->columns : 0;
    struct skl_operand bias = {s->grad_bias.data, s->grad_bias.dtype, {0, 0, s->grad_bias.stride}};
    if (s->grad_b.data)
        SKL_TRY(skl_gpu_convert_matrix(run, &s->grad_b, NULL, s->b_batch, s->b_heads, used, s->b_rows - used, s->dim));
    if (s->grad_a.data && !w->columns)
        SKL_TRY(skl_gpu_convert_matrix(run, &s->grad_a, NULL, w->batch, s->scorer == SKL_INDEX ? s->members : w->heads,
                                       0, w->n, s->dim));
    for (int64_t k = 0; s->grad_w.data && !w->columns && k < s->members; k++) {
        struct skl_operand of = s->grad_w;
        of.data += skl_size_of(of.dtype) * k * s->grad_w_step;
        SKL_TRY(skl_gpu_convert_matrix(run, &of, NULL, w->batch, 1, 0, w->n, 1));
    }
    if (bias.data)
        SKL_TRY(skl_gpu_convert_matrix(run, &bias, NULL, 1, 1, used, s->b_rows - used, 1));
    return SKL_OK;
}

static enum skl_status gradients(const struct skl_gpu_run *run)
{
    const struct skl_work *w = &run->work;
    for (int x = 0; x < 2; x++) {
        SKL_TRY(skl_gpu_sink_grad(run, x));
        if (!(w->grads & 1 << x))
            continue;
        SKL_TRY(clear_gradients(run, x));
        if (w->rows && w->columns)
            SKL_TRY(skl_on_support(w)                     ? skl_gpu_list_gradients(run)
                    : run->plan.family == SKL_FAMILY_KEYS ? skl_gpu_key_grad(run, x)
                    : run->plan.attention_grad            ? skl_gpu_attention_grad(run, x)
                                                          : skl_gpu_slab_grad(run, x));
    }
    return SKL_OK;
}

/* ----------------------------------------------------------------------------------------------------- calls --- */

/* Offsets become addresses. */
static struct skl_gpu_memory placed(const struct skl_gpu_memory *offset, char *base)
{
    struct skl_gpu_memory m = *offset;
    void *each[] = {&m.scalars,
                    &m.range,
                    &m.tile_range,
                    &m.state,
                    &m.loss,
                    &m.references,
                    &m.factors,
                    &m.row_loss,
                    &m.row_m[0],
                    &m.row_m[1],
                    &m.row_l[0],
                    &m.row_l[1],
                    &m.row_kl[0],
                    &m.row_kl[1],
                    &m.slab,
                    &m.sum_a,
                    &m.sum_b,
                    &m.sum_bias,
                    &m.blas,
                    &m.row_weight,
                    &m.label_score,
                    &m.label_states[0],
                    &m.label_states[1],
                    &m.label_states[2],
                    &m.label_references,
                    &m.label_factors,
                    &m.tops,
                    &m.limits,
                    &m.list_columns,
                    &m.list_logp,
                    &m.list_entries,
                    &m.lists,
                    &m.list_states,
                    &m.listed_keys,
                    &m.picks,
                    &m.picked,
                    &m.members,
                    &m.sink_scores,
                    &m.index_weights,
                    &m.index_queries,
                    &m.gathered[SKL_GATHERED_A],
                    &m.gathered[SKL_GATHERED_B],
                    &m.gathered[SKL_GATHERED_LSE],
                    &m.gathered[SKL_GATHERED_SINK]};
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        char **p = each[i];
        *p = *p ? base + (uintptr_t)*p : NULL;
    }
    return m;
}

static void use_if_missing(struct skl_rows *r, float *instead, const struct skl_work *w)
{
    if (!r->data && instead) {
        *r = (struct skl_rows){.stride = {w->heads * w->n, w->n, 1}};
        r->data = (char *)instead;
    }
}

static enum skl_status issue(struct skl_gpu_run *run, const struct skl_state *finished)
{
    struct skl_work *w = &run->work;
    use_if_missing(&w->result[skl_gpu_divergence_row(w)], run->memory.row_loss, w);
    for (int side = 0; side < 2; side++) {
        use_if_missing(&w->result[skl_of_side(w, SKL_ROW_m_s, side)], run->memory.row_m[side], w);
        use_if_missing(&w->result[skl_of_side(w, SKL_ROW_l_s, side)], run->memory.row_l[side], w);
        use_if_missing(&w->result[skl_of_side(w, SKL_ROW_kl_s, side)], run->memory.row_kl[side], w);
    }
    if (w->listed.given && run->plan.call == SKL_CALL_BACKWARD && run->memory.row_m[w->student]) {
        /* of scores that are computed anew */
        w->result[SKL_ROW_m_s].data = w->result[SKL_ROW_l_s].data = NULL;
        use_if_missing(&w->result[SKL_ROW_m_s], run->memory.row_m[w->student], w);
        use_if_missing(&w->result[SKL_ROW_l_s], run->memory.row_l[w->student], w);
    }
    if (!w->rows) {
        if (w->value)
            SKL_TRY(skl_gpu->clear(w->value, sizeof *w->value, w->stream));
        return gradients(run);
    }
    SKL_TRY(skl_gpu_weigh_labels(run));
    SKL_TRY(sum_weights(run));
    if (finished) {
        SKL_TRY(finish_rows(run, skl_sweeps(w->form) == 2 ? SKL_SWEEP_SECOND : SKL_SWEEP_KL, finished));
        return sum_values(run);
    }
    SKL_TRY(find_ranges(run));
    if (run->plan.call == SKL_CALL_TOPK)
        return skl_gpu_list_largest(run);
    SKL_TRY(skl_gpu_list_keys(run));
    SKL_TRY(skl_gpu_gather(run));
    SKL_TRY(skl_gpu_find_members(run));
    SKL_TRY(skl_gpu_index_weights(run));
    SKL_TRY(skl_gpu_start_lists(run));
    SKL_TRY(skl_gpu_score_labels(run));
    if (run->plan.call != SKL_CALL_BACKWARD && !w->listed.given)
        SKL_TRY(sweeps(run));
    SKL_TRY(skl_gpu_finish_lists(run));
    if (run->plan.call == SKL_CALL_VALUE || run->plan.call == SKL_CALL_VALUE_AND_GRAD)
        SKL_TRY(skl_gpu_finish_labels(run));
    if (run->plan.call == SKL_CALL_VALUE || run->plan.call == SKL_CALL_VALUE_AND_GRAD)
        SKL_TRY(skl_gpu_put_details(run));
    if (!run->partial)
        SKL_TRY(sum_values(run));
    return gradients(run);
}

static int needs_products(const struct skl_gpu_run *run)
{
    const struct skl_work_side *s = run->work.side;
    int any = s[0].grad_a.data || s[0].grad_b.data || s[1].grad_a.data || s[1].grad_b.data || s[1].grad_w.data;
    int slabs = !run->plan.attention_grad && !skl_on_support(&run->work) && run->plan.family != SKL_FAMILY_KEYS;
    return any && slabs && run->work.rows && run->work.columns;
}

/* Device, plan and workspace around 'issue'. bytes: only the workspace's size is wanted. */
static enum skl_status on_device(enum skl_call call, const struct skl_work *w, struct skl_state *partial,
                                 int second_sweep, const struct skl_state *finished, size_t *bytes)
{
    struct skl_gpu_run run = {.given = w,
                              .work = skl_gpu_flat(w),
                              .partial = partial,
                              .second_sweep = second_sweep,
                              .teacher = w->form != SKL_FORM_NONE};
    struct skl_gpu_properties device;
    void *own = NULL;
    struct skl_gpu_place before;
    SKL_TRY(skl_gpu->enter(w->device_index, &before));
    enum skl_status status = skl_gpu->properties(w->device_index, &device);
    if (!status)
        status = skl_gpu_make_plan(call, &run.work, &device, &run.plan);
    if (!status && bytes)
        *bytes = run.plan.bytes;
    if (!status && !bytes && w->workspace && w->workspace_bytes < run.plan.bytes)
        status = skl_fail(SKL_BAD_ARGUMENT,
                          "cannot use workspace_bytes = %zu: this call takes %zu (skl_workspace_size)",
                          w->workspace_bytes, run.plan.bytes);
    if (!status && !bytes && needs_products(&run))
        status = skl_gpu->prepare(w->stream);
    if (!status && !bytes && !w->workspace)
        status = skl_gpu->allocate(run.plan.bytes, w->stream, &own);
    if (!status && !bytes) {
        run.memory = placed(&run.plan.offset, w->workspace ? w->workspace : own);
        status = issue(&run, finished);
    }
    if (own)
        skl_gpu->release(own, w->stream);
    skl_gpu->leave(&before);
    return status;
}

enum skl_status skl_cuda_run(enum skl_call call, const struct skl_work *w, struct skl_state *state, int second_sweep)
{
    return on_device(call, w, state, second_sweep, NULL, NULL);
}

enum skl_status skl_cuda_workspace(enum skl_call call, const struct skl_work *w, size_t *bytes)
{
    return on_device(call, w, NULL, 0, NULL, bytes);
}

enum skl_status skl_cuda_finish(const struct skl_work *w, const struct skl_state *state)
{
    return on_device(SKL_CALL_VALUE, w, NULL, 0, state, NULL);
}
