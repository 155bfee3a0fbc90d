/* SPDX-License-Identifier: Apache-2.0
 *
 * Details of rows on a device: further sweeps, each for those that were asked for, and small kernels over the rows
 * (kernels/detail_kernels.cu).
 *
 *     entropy      a sweep of the KL, P = the side, Q flat: acc / l_P = sum p (z - m)
 *     reverse      a sweep of the KL, P and Q exchanged
 *     jsd, tv      a second sweep each, by the LSEs that are known
 *     top1         a sweep that compares scores. rank: one more, with what the first found on the other side
 *     mass         dot products with the columns of mass_ids
 *     sink_mass    of what the first sweep found: sinks.c
 */
#include "run.h"

static enum skl_status put_detail(const struct skl_gpu_run *run, enum skl_row_name result, enum skl_gpu_detail detail)
{
    const struct skl_work *w = &run->work;
    struct skl_gpu_put_detail args = {.state = run->memory.label_states[2],
                                      .rows = w->rows,
                                      .heads = (int32_t)w->heads,
                                      .n = (int32_t)w->n,
                                      .detail = detail,
                                      .to = skl_gpu_rows_of(&w->result[result])};
    return skl_gpu_start(run, SKL_ROLE_put_detail, skl_gpu_row_blocks(run, SKL_ROLE_put_detail), 1, &args, sizeof args);
}

static enum skl_status put_sweep(const struct skl_gpu_run *run, const struct skl_work *of, enum skl_row_name result,
                                 enum skl_gpu_detail detail)
{
    SKL_TRY(skl_gpu_states(run, of, run->memory.label_states[2]));
    return put_detail(run, result, detail);
}

static enum skl_status put_entropies(const struct skl_gpu_run *run)
{
    const struct skl_work *w = &run->work;
    for (int side = 0; side < 2; side++) {
        enum skl_row_name entropy = skl_of_side(w, SKL_ROW_entropy_s, side);
        struct skl_work of = skl_gpu_beside_flat(w, side, 0, 1);
        if (w->result[entropy].data)
            SKL_TRY(put_sweep(run, &of, entropy, SKL_DETAIL_ENTROPY));
    }
    return SKL_OK;
}

static enum skl_status put_reverse(const struct skl_gpu_run *run)
{
    const struct skl_work *w = &run->work;
    struct skl_work of = *w;
    of.form = SKL_FORM_KL, of.student = 1;
    of.side[0] = w->side[1], of.side[1] = w->side[0];
    return w->result[SKL_ROW_reverse].data ? put_sweep(run, &of, SKL_ROW_reverse, SKL_DETAIL_KL) : SKL_OK;
}

static enum skl_status put_second(const struct skl_gpu_run *run, enum skl_form form, enum skl_row_name result,
                                  enum skl_gpu_detail detail)
{
    struct skl_work of = run->work;
    if (!of.result[result].data)
        return SKL_OK;
    of.form = form, of.param[0] = of.param[1] = 0.5;
    SKL_TRY(skl_gpu_second_states(run, &of, run->memory.label_states[2]));
    return put_detail(run, result, detail);
}

static enum skl_status put_tops(const struct skl_gpu_run *run, enum skl_row_name of_s, float *limits)
{
    const struct skl_work *w = &run->work;
    struct skl_gpu_put_tops args = {.tops = run->memory.tops,
                                    .rows = w->rows,
                                    .heads = (int32_t)w->heads,
                                    .n = (int32_t)w->n,
                                    .slots = run->plan.states,
                                    .packed = skl_gpu_packed_of(w)};
    args.limits = limits;
    for (int side = 0; side < 2; side++) args.to[side] = skl_gpu_rows_of(&w->result[skl_of_side(w, of_s, side)]);
    return skl_gpu_start(run, SKL_ROLE_put_tops, skl_gpu_row_blocks(run, SKL_ROLE_put_tops), 1, &args, sizeof args);
}

static enum skl_status put_ranks(const struct skl_gpu_run *run)
{
    const struct skl_work *w = &run->work;
    if (!skl_gpu_wants_tops(w))
        return SKL_OK;
    SKL_TRY(skl_gpu_sweep_tops(run, NULL));
    SKL_TRY(put_tops(run, SKL_ROW_top1_s, run->memory.limits));
    if (!skl_gpu_wants_either(w, SKL_ROW_rank_s))
        return SKL_OK;
    SKL_TRY(skl_gpu_sweep_tops(run, run->memory.limits));
    return put_tops(run, SKL_ROW_rank_s, NULL);
}

static enum skl_status put_masses(const struct skl_gpu_run *run)
{
    const struct skl_work *w = &run->work;
    const struct skl_gpu_problem problem = skl_gpu_problem_of(run, run->plan.tile_rows);
    for (int side = 0; side < 2; side++) {
        enum skl_row_name mass = skl_of_side(w, SKL_ROW_mass_s, side);
        struct skl_gpu_put_masses args = {.side = problem.side[side],
                                          .ids = skl_gpu_ids_of(&w->mass_ids),
                                          .range = run->memory.range,
                                          .rows = w->rows,
                                          .heads = (int32_t)w->heads,
                                          .n = (int32_t)w->n,
                                          .columns = (int32_t)w->columns,
                                          .unit = w->side[side].unit,
                                          .m = skl_gpu_rows_of(&w->result[skl_of_side(w, SKL_ROW_m_s, side)]),
                                          .l = skl_gpu_rows_of(&w->result[skl_of_side(w, SKL_ROW_l_s, side)]),
                                          .to = skl_gpu_rows_of(&w->result[mass]),
                                          .packed = skl_gpu_packed_of(w)};
        if (w->result[mass].data)
            SKL_TRY(skl_gpu_start(run, SKL_ROLE_put_masses, skl_gpu_row_blocks(run, SKL_ROLE_put_masses), 1, &args,
                                  sizeof args));
    }
    return SKL_OK;
}

enum skl_status skl_gpu_put_details(const struct skl_gpu_run *run)
{
    SKL_TRY(put_entropies(run));
    SKL_TRY(put_reverse(run));
    SKL_TRY(put_second(run, SKL_FORM_JSD, SKL_ROW_jsd, SKL_DETAIL_JSD));
    SKL_TRY(put_second(run, SKL_FORM_TOTAL_VARIATION, SKL_ROW_tv, SKL_DETAIL_TV));
    SKL_TRY(put_ranks(run));
    SKL_TRY(put_masses(run));
    return skl_gpu_sink_masses(run);
}
