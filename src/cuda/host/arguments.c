/* SPDX-License-Identifier: Apache-2.0
 * The work of a call as kernels want it: the structures of ../args.h. */
#include "run.h"

#include <float.h>

struct skl_gpu_matrix skl_gpu_matrix_of(const struct skl_operand *o)
{
    struct skl_gpu_matrix m = {o->data, {o->stride[0], o->stride[1], o->stride[2]}, o->dtype, 0};
    return m;
}

struct skl_gpu_vector skl_gpu_rows_of(const struct skl_rows *r)
{
    struct skl_gpu_vector v = {r->data, {r->stride[0], r->stride[1], r->stride[2]}, SKL_F32, 0};
    return v;
}

struct skl_gpu_raw skl_gpu_raw_of(const struct skl_work *w)
{
    struct skl_gpu_raw raw = {.is = w->raw};
    if (w->raw && w->side[0].scorer == SKL_INNER)
        raw.given = skl_gpu_rows_of(&w->side[0].head_lse);
    return raw;
}

struct skl_gpu_packed skl_gpu_packed_of(const struct skl_work *w)
{
    struct skl_gpu_packed p = {(const int32_t *)w->cu_q.data,
                               (const int32_t *)w->cu_k.data,
                               w->cu_q.stride,
                               w->cu_k.stride,
                               (int32_t)w->sequences,
                               0};
    return p;
}

struct skl_gpu_ids skl_gpu_ids_of(const struct skl_row_ids *r)
{
    struct skl_gpu_ids ids = {skl_gpu_rows_of(&r->rows), r->count, r->step};
    ids.rows.dtype = r->wide ? SKL_I64 : SKL_I32;
    return ids;
}

static struct skl_gpu_side side_of(const struct skl_gpu_run *run, int side)
{
    const struct skl_work *w = &run->work;
    const struct skl_work_side *s = &w->side[side];
    int scores = s->scorer == SKL_MIXTURE && run->plan.mixed; /* log2 t as it is: the softcap is that of the heads */
    double factor = s->unit * SKL_LOG2E;
    struct skl_gpu_side g = {.a = skl_gpu_matrix_of(&s->a),
                             .b = skl_gpu_matrix_of(&s->b),
                             .bias = {s->bias.data, {0, 0, s->bias.stride}, s->bias.dtype, 0},
                             .dim = (int32_t)s->dim,
                             .share = (int32_t)s->group,
                             .inner = (float)(scores            ? 1
                                              : s->softcap != 0 ? s->inner
                                                                : s->sign),
                             .cap = scores ? 0 : (float)s->softcap,
                             .factor = factor < (double)FLT_MAX ? (float)factor : FLT_MAX,
                             .param = (float)w->param[side]};
    return g;
}

struct skl_gpu_problem skl_gpu_problem_of(const struct skl_gpu_run *run, int tile_rows)
{
    const struct skl_work *w = &run->work;
    struct skl_gpu_problem p = {.side = {side_of(run, 0), side_of(run, 1)},
                                .rows = w->rows,
                                .heads = (int32_t)w->heads,
                                .n = (int32_t)w->n,
                                .columns = (int32_t)w->columns,
                                .tiles = (int32_t)((w->n + tile_rows - 1) / tile_rows),
                                .range = run->memory.range,
                                .mixture = skl_gpu_mixture_of(run),
                                .index = skl_gpu_index_of(run)};
    return p;
}
