/* SPDX-License-Identifier: Apache-2.0
 *
 * Listed teachers on a device. The student is swept over the columns that its rows do not list (kernels/rest.cuh), the
 * lists are worked on by kernels of their own (kernels/list_kernels.cu):
 *
 *     sort_lists, score_lists, [sweep of the rest], finish_lists         value
 *     list_factors, slabs of dx, put_list_entries into them              gradients
 *     list_da, list_db                                                   ... where the listed columns are all there is:
 *     neither
 *                                                                        sweep nor slabs
 */
#include "run.h"

#include "../shapes.h"

static struct skl_gpu_lists lists_of(const struct skl_gpu_run *run)
{
    const struct skl_work *w = &run->work;
    const struct skl_gpu_memory *m = &run->memory;
    const int s = w->student, backward = run->plan.call == SKL_CALL_BACKWARD;
    struct skl_gpu_lists l = {.ids = skl_gpu_ids_of(&w->listed.ids),
                              .logprobs = skl_gpu_matrix_of(&w->listed.logprobs),
                              .rest = skl_gpu_rows_of(&w->listed.rest),
                              .range = m->range,
                              .rows = w->rows,
                              .heads = (int32_t)w->heads,
                              .n = (int32_t)w->n,
                              .columns = (int32_t)w->columns,
                              .room = run->plan.room,
                              .tail = (int32_t)w->listed.tail,
                              .reverse = w->listed.reverse,
                              .power = w->listed.power,
                              .unit = w->side[s].unit,
                              .per_unit = 1 / w->side[s].unit,
                              .side = skl_gpu_problem_of(run, run->plan.tile_rows).side[s],
                              .column = m->list_columns,
                              .logp = m->list_logp,
                              .entry = m->list_entries,
                              .list = m->lists,
                              .states = m->list_states,
                              .loss = m->loss,
                              .m = skl_gpu_rows_of(&w->result[SKL_ROW_m_s]),
                              .l = skl_gpu_rows_of(&w->result[SKL_ROW_l_s])};
    if (backward) { /* whose results are saved ones, but for what the labels read */
        l.saved_m = skl_gpu_rows_of(&w->result[SKL_ROW_m_rest]),
        l.saved_l = skl_gpu_rows_of(&w->result[SKL_ROW_l_rest]);
        l.m.data = (char *)m->row_m[s], l.l.data = (char *)m->row_l[s];
        return l;
    }
    l.lse = skl_gpu_rows_of(&w->result[SKL_ROW_lse_s]);
    l.m_rest = skl_gpu_rows_of(&w->result[SKL_ROW_m_rest]), l.l_rest = skl_gpu_rows_of(&w->result[SKL_ROW_l_rest]);
    l.row_loss = skl_gpu_rows_of(&w->result[skl_gpu_divergence_row(w)]);
    return l;
}

static enum skl_status start(const struct skl_gpu_run *run, enum skl_gpu_role role)
{
    struct skl_gpu_lists args = lists_of(run);
    return skl_gpu_start(run, role, skl_gpu_row_blocks(run, role), 1, &args, sizeof args);
}

enum skl_status skl_gpu_start_lists(const struct skl_gpu_run *run)
{
    if (!run->work.listed.given)
        return SKL_OK;
    SKL_TRY(start(run, SKL_ROLE_sort_lists));
    return start(run, SKL_ROLE_score_lists);
}

enum skl_status skl_gpu_finish_lists(const struct skl_gpu_run *run)
{
    if (!run->work.listed.given)
        return SKL_OK;
    if (run->memory.list_states)
        SKL_TRY(skl_gpu_rest_states(run, run->memory.list_states));
    return start(run, SKL_ROLE_finish_lists);
}

/* ------------------------------------------------------------------------------------------------ gradients --- */

static struct skl_gpu_list_grad grad_of(const struct skl_gpu_run *run)
{
    const struct skl_work *w = &run->work;
    const struct skl_work_side *s = &w->side[w->student];
    struct skl_gpu_list_grad g = {.lists = lists_of(run),
                                  .weight = skl_gpu_rows_of(&w->weight),
                                  .scalars = run->memory.scalars,
                                  .kl_weight = w->labels.kl_weight,
                                  .norm = skl_gpu_label_norm(w),
                                  .chain = s->chain,
                                  .references = run->memory.references,
                                  .factors = run->memory.factors,
                                  .grad_a = skl_gpu_matrix_of(&s->grad_a),
                                  .grad_b = skl_gpu_matrix_of(&s->grad_b),
                                  .grad_bias = {s->grad_bias.data, {0, 0, s->grad_bias.stride}, s->grad_bias.dtype, 0}};
    return g;
}

enum skl_status skl_gpu_list_factors(const struct skl_gpu_run *run)
{
    struct skl_gpu_list_grad args = grad_of(run);
    return skl_gpu_start(run, SKL_ROLE_list_factors, skl_gpu_row_blocks(run, SKL_ROLE_list_factors), 1, &args,
                         sizeof args);
}

enum skl_status skl_gpu_list_entries(const struct skl_gpu_run *run, const struct skl_gpu_slab *slab)
{
    struct skl_gpu_list_grad args = grad_of(run);
    int rows = skl_gpu_planned(&run->plan, SKL_ROLE_put_list_entries)->rows;
    args.slab = *slab;
    return skl_gpu_start(run, SKL_ROLE_put_list_entries, (slab->rows + rows - 1) / rows, 1, &args, sizeof args);
}

enum skl_status skl_gpu_list_gradients(const struct skl_gpu_run *run)
{
    const struct skl_work *w = &run->work;
    struct skl_gpu_list_grad args = grad_of(run);
    int columns = skl_gpu_planned(&run->plan, SKL_ROLE_list_db)->columns;
    int64_t parts = (w->side[w->student].dim + SKL_LIST_ENTRIES - 1) / SKL_LIST_ENTRIES;
    if (args.grad_a.data)
        SKL_TRY(skl_gpu_start(run, SKL_ROLE_list_da, w->rows, 1, &args, sizeof args));
    if (!args.grad_b.data && !args.grad_bias.data)
        return SKL_OK;
    return skl_gpu_start(run, SKL_ROLE_list_db, (w->columns + columns - 1) / columns, args.grad_b.data ? parts : 1,
                         &args, sizeof args);
}
