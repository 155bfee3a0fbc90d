/* SPDX-License-Identifier: Apache-2.0
 *
 * Dot products with listed columns, where nothing else is needed of the vocabulary: K of them a row instead of a sweep.
 *
 *     gather    x[k] = <a, b[id_k]> + bias,  dz[k] by listed.c,  da = sum_k dz[k] b[id_k]          one row after the
 *     other scatter   db[id_k] += dz[k] a                                             rows in order, each task its own
 *     columns
 *
 * Bytes of a row: K dim numbers of b, twice if a gradient of a is wanted (the second time mostly from L2), and twice
 * those of db. No two tasks add to the same number, and every sum has one order.
 */
#include "run.h"

#include <math.h>
#include <string.h>

/* A vector of dim numbers in f32: the operand itself, or converted into 'line'. */
static const float *in_f32(const struct skl_run *run, const struct skl_operand *o, int64_t b, int64_t h, int64_t i,
                           int64_t dim, float *line)
{
    const void *at = skl_operand_at(o, b, h, i);
    if (o->dtype == SKL_F32)
        return at;
    run->plan.kernels->convert(dim, at, o->dtype, line);
    return line;
}

static const float *row_of(const struct skl_worker *w, const struct skl_block *block, int row)
{
    const struct skl_work *work = w->run->work;
    const struct skl_work_side *s = &work->side[work->student];
    int64_t at[3];
    memcpy(at, block->at[row], sizeof at);
    return in_f32(w->run, &s->a, at[0], at[1], at[2], s->dim, w->scratch.gathered[0]);
}

static const float *column_of(const struct skl_worker *w, int64_t id)
{
    const struct skl_work *work = w->run->work;
    const struct skl_work_side *s = &work->side[work->student];
    return in_f32(w->run, &s->b, 0, 0, id, s->dim, w->scratch.gathered[1]);
}

static float bias_of(const struct skl_run *run, const struct skl_work_side *s, int64_t id)
{
    float bias = 0;
    if (s->bias.data)
        run->plan.kernels->convert(1, s->bias.data + skl_size_of(s->bias.dtype) * id * s->bias.stride, s->bias.dtype,
                                   &bias);
    return bias;
}

void skl_gather_scores(const struct skl_worker *w, struct skl_block *block, int panel)
{
    const struct skl_run *run = w->run;
    const struct skl_kernels *kernels = run->plan.kernels;
    const struct skl_work_side *s = &run->work->side[run->work->student];
    int nr = kernels->nr;
    for (int row = panel * nr; row < block->n && row < (panel + 1) * nr; row++) {
        struct skl_entry *e = skl_entries_of(run, block, row);
        const float *a = row_of(w, block, row);
        for (int64_t k = 0; k < block->lists[row].n; k++) {
            if (k + 1 < block->lists[row].n)
                skl_ask_for_row(&s->b, 0, 0, e[k + 1].id, s->dim);
            float x[SKL_NR_MAX] = {kernels->dot(s->dim, a, column_of(w, e[k].id)) + bias_of(run, s, e[k].id)};
            if (s->softcap > 0)
                kernels->softcap(1, x, (float)s->inner, s->softcap);
            e[k].x = (float)s->sign * x[0];
        }
    }
}

/* d z / d <a, b> beyond the chain: the softcap's derivative. */
static float capped(const struct skl_work_side *s, float x)
{
    double t = s->softcap > 0 ? (double)x / s->softcap : 0;
    return (float)(1 - t * t);
}

static void write_da(const struct skl_worker *w, const struct skl_block *block, int row)
{
    const struct skl_run *run = w->run;
    const struct skl_work_side *s = &run->work->side[run->work->student];
    const struct skl_entry *e = skl_entries_of(run, block, row);
    float *da = w->scratch.line;
    int64_t at[3];
    memset(da, 0, (size_t)s->dim * sizeof *da);
    for (int64_t k = 0; k < block->lists[row].n; k++)
        if (e[k].dz != 0) /* 0 times what is not finite stays 0 */
            run->plan.kernels->add_scaled(s->dim, e[k].dz, column_of(w, e[k].id), da);
    memcpy(at, block->at[row], sizeof at);
    run->plan.kernels->convert_back(s->dim, da, s->grad_a.dtype, skl_operand_at(&s->grad_a, at[0], at[1], at[2]));
}

void skl_gather_panel(const struct skl_worker *w, struct skl_block *block, int panel)
{
    const struct skl_run *run = w->run;
    const struct skl_work_side *s = &run->work->side[run->work->student];
    int nr = run->plan.kernels->nr;
    skl_gather_scores(w, block, panel);
    skl_finish_gathered(w, block, panel);
    for (int row = panel * nr; run->work->grads && row < block->n && row < (panel + 1) * nr; row++) {
        struct skl_entry *e = skl_entries_of(run, block, row);
        for (int64_t k = 0; k < block->lists[row].n; k++) e[k].dz *= capped(s, e[k].x);
        if (s->grad_a.data)
            write_da(w, block, row);
    }
}

void skl_scatter_chunk(const struct skl_worker *w, struct skl_block *block, int64_t chunk)
{
    const struct skl_run *run = w->run;
    int side = run->work->student;
    const struct skl_work_side *s = &run->work->side[side];
    int64_t first = skl_first_tile(run->plan.tiles, run->plan.chunks, chunk) * run->plan.bk;
    int64_t last = skl_first_tile(run->plan.tiles, run->plan.chunks, chunk + 1) * run->plan.bk;
    for (int row = 0; row < block->n; row++) {
        const struct skl_entry *e = skl_entry_at(run, block, row, first);
        const struct skl_entry *end = skl_entries_of(run, block, row) + block->lists[row].n;
        if (e == end || e->id >= last)
            continue;
        const float *a = row_of(w, block, row);
        for (int64_t stride; e < end && e->id < last; e++) {
            if (e->dz != 0 && s->grad_b.data)
                run->plan.kernels->add_scaled(s->dim, e->dz, a,
                                              skl_sum_of_columns(run->work, block, side, e->id, &stride));
            if (block->dbias[side])
                block->dbias[side][e->id] += e->dz;
        }
    }
}
