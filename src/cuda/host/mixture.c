/* SPDX-License-Identifier: Apache-2.0
 *
 * Teachers of mixed heads on a device (kernels/mixture.cuh). The sweeps and slabs of the call are those of any other,
 * by kernels that make g + 1 products a tile, or for each key; before them comes a row's number of each head:
 *
 *     for each head   [sweep of it], make_members        the sweep where its LSEs were not given
 *
 * A map that names one head for each of the student's mixes nothing: the heads are copied in its order, and the rest of
 * the call does not know of it.
 */
#include "run.h"

#include "../shapes.h"

#include <float.h>

static const struct skl_work_side *teacher_of(const struct skl_work *w)
{
    return &w->side[!w->student];
}

struct skl_gpu_mixture skl_gpu_mixture_of(const struct skl_gpu_run *run)
{
    const struct skl_work *w = &run->work;
    int side = skl_gpu_mixture_side(w);
    if (side < 0)
        return (struct skl_gpu_mixture){.members = 0};
    const struct skl_work_side *t = &w->side[side];
    double factor = t->head_unit * SKL_LOG2E;
    return (struct skl_gpu_mixture){.member = run->memory.members,
                                    .map = t->map,
                                    .map_stride = {t->map_stride[0], t->map_stride[1]},
                                    .members = (int32_t)t->members,
                                    .heads = (int32_t)(t->b_heads * t->group),
                                    .inner = (float)(t->softcap != 0 ? t->inner : t->sign),
                                    .cap = (float)t->softcap,
                                    .factor = factor < (double)FLT_MAX ? (float)factor : FLT_MAX,
                                    .side = side};
}

static enum skl_status make_members(const struct skl_gpu_run *run, int64_t member)
{
    const struct skl_work *w = &run->work;
    const struct skl_work_side *t = teacher_of(w);
    struct skl_gpu_make_members args = {.mixture = skl_gpu_mixture_of(run),
                                        .given = skl_gpu_rows_of(&t->head_lse),
                                        .state = run->memory.state,
                                        .range = run->memory.range,
                                        .rows = w->rows,
                                        .heads = (int32_t)w->heads,
                                        .n = (int32_t)w->n,
                                        .splits = run->plan.states,
                                        .member = (int32_t)member,
                                        .unit = t->head_unit,
                                        .sink = {t->sink.data, {0, t->sink.stride, 0}, t->sink.dtype, 0},
                                        .temperature = w->temperature,
                                        .sink_score = run->memory.sink_scores,
                                        .to = run->memory.members + member * w->rows};
    return skl_gpu_start(run, SKL_ROLE_make_members, skl_gpu_row_blocks(run, SKL_ROLE_make_members), 1, &args,
                         sizeof args);
}

enum skl_status skl_gpu_find_members(const struct skl_gpu_run *run)
{
    const struct skl_work *w = &run->work;
    if (skl_gpu_mixture_side(w) < 0)
        return SKL_OK;
    char *behind = (char *)(run->memory.members + teacher_of(w)->members * w->rows);
    SKL_TRY(skl_gpu->clear(behind, SKL_ROW_UNIT * sizeof *run->memory.members, w->stream));
    for (int64_t k = 0; k < teacher_of(w)->members; k++) {
        if (!teacher_of(w)->head_lse.data)
            SKL_TRY(skl_gpu_sweep_head(run, k));
        SKL_TRY(make_members(run, k));
    }
    return SKL_OK;
}

/* ------------------------------------------------------------------------------------------- one head each --- */

/* Contiguous, whatever they are copied from. */
struct skl_work_side skl_gpu_gathered_side(const struct skl_work *w)
{
    struct skl_work_side t = *teacher_of(w);
    t.group = 1, t.b_batch = w->batch, t.b_heads = w->heads, t.b_rows = w->columns;
    t.a = (struct skl_operand){NULL, t.a.dtype, {w->heads * w->n * t.dim, w->n * t.dim, t.dim}};
    t.b = (struct skl_operand){NULL, t.b.dtype, {w->heads * w->columns * t.dim, w->columns * t.dim, t.dim}};
    t.head_lse = (struct skl_rows){t.head_lse.data, {w->heads * w->n, w->n, 1}};
    t.sink.stride = 1;
    return t;
}

void skl_gpu_gathered_bytes(const struct skl_work *w, int64_t bytes[SKL_GATHERED])
{
    const struct skl_work_side *t = teacher_of(w);
    int64_t heads = w->batch * w->heads;
    bytes[SKL_GATHERED_A] = heads * w->n * t->dim * skl_size_of(t->a.dtype);
    bytes[SKL_GATHERED_B] = heads * w->columns * t->dim * skl_size_of(t->b.dtype);
    bytes[SKL_GATHERED_LSE] = t->head_lse.data ? w->rows * (int64_t)sizeof(float) : 0;
    bytes[SKL_GATHERED_SINK] = t->sink.data ? w->heads * skl_size_of(t->sink.dtype) : 0;
}

/* Of batch x heads, 'rows' vectors of dim entries each; 'share' heads of a to one of these. */
static enum skl_status gather(const struct skl_gpu_run *run, struct skl_operand from, int64_t batch, int64_t rows,
                              int64_t dim, int64_t share, char *to)
{
    const struct skl_work_side *t = teacher_of(run->given);
    struct skl_gpu_gather_heads args = {.mixture = {.map = t->map,
                                                    .map_stride = {t->map_stride[0], 0},
                                                    .members = 1,
                                                    .heads = (int32_t)(t->b_heads * t->group)},
                                        .from = skl_gpu_matrix_of(&from),
                                        .to = to,
                                        .rows = rows,
                                        .all = batch * run->work.heads * rows,
                                        .heads = (int32_t)run->work.heads,
                                        .dim = (int32_t)dim,
                                        .share = (int32_t)share};
    int64_t blocks = args.all < INT32_MAX ? args.all : INT32_MAX;
    return to && blocks > 0 ? skl_gpu_start(run, SKL_ROLE_gather_heads, blocks, 1, &args, sizeof args) : SKL_OK;
}

enum skl_status skl_gpu_gather(struct skl_gpu_run *run)
{
    struct skl_work *w = &run->work;
    const struct skl_work_side *from = teacher_of(run->given);
    struct skl_work_side *t = &w->side[!w->student];
    const struct skl_rows *l = &from->head_lse;
    struct skl_operand lse = {l->data, SKL_F32, {l->stride[0], l->stride[1], l->stride[2]}};
    struct skl_operand sink = {from->sink.data, from->sink.dtype, {0, from->sink.stride, 0}};
    char *const *to = run->memory.gathered;
    if (!skl_gpu_gathers(w))
        return SKL_OK;
    SKL_TRY(gather(run, from->a, w->batch, w->n, from->dim, 1, to[SKL_GATHERED_A]));
    SKL_TRY(gather(run, from->b, w->batch, w->columns, from->dim, from->group, to[SKL_GATHERED_B]));
    SKL_TRY(gather(run, lse, w->batch, w->n, 1, 1, to[SKL_GATHERED_LSE]));
    SKL_TRY(gather(run, sink, 1, 1, 1, 1, to[SKL_GATHERED_SINK]));
    t->a.data = to[SKL_GATHERED_A], t->b.data = to[SKL_GATHERED_B];
    t->head_lse.data = to[SKL_GATHERED_LSE], t->sink.data = to[SKL_GATHERED_SINK];
    return SKL_OK;
}
