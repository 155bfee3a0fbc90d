/* SPDX-License-Identifier: Apache-2.0
 *
 * Sinks on a device: one more column of every row, which is in no tile (kernels/sink.cuh). The first sweep's states get
 * it in finish_rows, the second's by push_sinks; its gradient is a sum over the rows, one for each head.
 */
#include "run.h"

struct skl_gpu_sinks skl_gpu_sinks_of(const struct skl_gpu_run *run)
{
    const struct skl_work *w = &run->work;
    struct skl_gpu_sinks s = {.temperature = w->temperature, .are = w->sinks};
    for (int side = 0; side < 2; side++) {
        const struct skl_vector_view *v = &w->side[side].sink;
        s.sink[side] = (struct skl_gpu_vector){w->sinks ? v->data : NULL, {0, v->stride, 0}, v->dtype, 0};
        s.unit[side] = w->side[side].unit, s.divisor[side] = w->temperature * w->side[side].unit;
        if (w->sinks && w->side[side].scorer == SKL_MIXTURE) /* scores of the rows, made with those of the heads */
            s.sink[side] =
                (struct skl_gpu_vector){(char *)run->memory.sink_scores, {w->heads * w->n, w->n, 1}, SKL_F32, 0},
            s.divisor[side] = 1;
    }
    return s;
}

/* The problem without softcaps, which do not touch sinks. */
static struct skl_gpu_problem problem_of(const struct skl_gpu_run *run)
{
    struct skl_gpu_problem p = skl_gpu_problem_of(run, run->plan.tile_rows);
    p.side[0].cap = p.side[1].cap = 0;
    return p;
}

enum skl_status skl_gpu_push_sinks(const struct skl_gpu_run *run)
{
    struct skl_gpu_push_sinks args = {.problem = problem_of(run),
                                      .sinks = skl_gpu_sinks_of(run),
                                      .references = run->memory.references,
                                      .form = (int32_t)run->work.form,
                                      .state = run->memory.state};
    if (!run->work.sinks)
        return SKL_OK;
    return skl_gpu_start(run, SKL_ROLE_push_sinks, skl_gpu_row_blocks(run, SKL_ROLE_push_sinks), 1, &args, sizeof args);
}

enum skl_status skl_gpu_sink_masses(const struct skl_gpu_run *run)
{
    const struct skl_work *w = &run->work;
    struct skl_gpu_sink_masses args = {
        .sinks = skl_gpu_sinks_of(run), .rows = w->rows, .heads = (int32_t)w->heads, .n = (int32_t)w->n};
    for (int side = 0; side < 2; side++) {
        args.m[side] = skl_gpu_rows_of(&w->result[skl_of_side(w, SKL_ROW_m_s, side)]);
        args.l[side] = skl_gpu_rows_of(&w->result[skl_of_side(w, SKL_ROW_l_s, side)]);
        args.mass[side] = skl_gpu_rows_of(&w->result[skl_of_side(w, SKL_ROW_sink_mass_s, side)]);
    }
    if (!skl_gpu_wants_either(w, SKL_ROW_sink_mass_s))
        return SKL_OK;
    return skl_gpu_start(run, SKL_ROLE_sink_masses, skl_gpu_row_blocks(run, SKL_ROLE_sink_masses), 1, &args,
                         sizeof args);
}

enum skl_status skl_gpu_sink_grad(const struct skl_gpu_run *run, int x)
{
    const struct skl_work *w = &run->work;
    const struct skl_vector_view *to = &w->side[x].grad_sink;
    struct skl_operand of_no_rows = {to->data, to->dtype, {0, 0, to->stride}};
    if (!(w->sink_grads & 1 << x))
        return SKL_OK;
    if (!w->rows) /* 0, as a matrix of rows of one entry */
        return skl_gpu_convert_matrix(run, &of_no_rows, NULL, 1, 1, 0, w->heads, 1);
    struct skl_gpu_sum_sinks args = {.sinks = skl_gpu_sinks_of(run),
                                     .to = {to->data, {0, 0, to->stride}, to->dtype, 0}};
    SKL_TRY(skl_gpu_grad_of(run, x, &args.grad));
    args.grad.problem = problem_of(run);
    return skl_gpu_start(run, SKL_ROLE_sum_sinks, w->heads, 1, &args, sizeof args);
}
