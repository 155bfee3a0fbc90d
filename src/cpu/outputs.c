/* SPDX-License-Identifier: Apache-2.0
 * What rows and columns without work get, and sums kept in f32 on their way out. */
#include "run.h"

#include <math.h>
#include <string.h>

/* The rows' results as of a row that sees nothing; lanes overwrite those of the others. */
static void clear_rows(const struct skl_run *run, int64_t first, int64_t last)
{
    const struct skl_work *w = run->work;
    for (int64_t row = first, at[3]; row < last; row++) {
        skl_row_index(w, row, at);
        if (run->plan.call == SKL_CALL_VALUE || run->plan.call == SKL_CALL_VALUE_AND_GRAD)
            skl_put_row(w, at, &skl_no_result);
        if (run->partial)
            run->partial[row] = skl_public_state(w, &skl_empty_row);
        for (int side = 0; side < 2; side++) {
            const struct skl_operand *g = &w->side[side].grad_a;
            if (g->data)
                memset(skl_operand_at(g, at[0], at[1], at[2]), 0, (size_t)(w->side[side].dim * skl_size_of(g->dtype)));
        }
    }
}

static void clear_columns(const struct skl_run *run, int side, int64_t first, int64_t last)
{
    const struct skl_work_side *s = &run->work->side[side];
    for (int64_t i = first; i < last; i++) {
        int64_t column = i % s->b_rows, head = i / s->b_rows % s->b_heads, batch = i / s->b_rows / s->b_heads;
        memset(skl_operand_at(&s->grad_b, batch, head, column), 0, (size_t)(s->dim * skl_size_of(s->grad_b.dtype)));
    }
}

static void clear_bias(const struct skl_work_side *s)
{
    int64_t size = skl_size_of(s->grad_bias.dtype);
    for (int64_t i = 0; i < s->b_rows; i++) memset(s->grad_bias.data + i * s->grad_bias.stride * size, 0, (size_t)size);
}

void skl_clear_outputs(const struct skl_run *run, int64_t part, int64_t parts)
{
    const struct skl_work *w = run->work;
    clear_rows(run, w->rows * part / parts, w->rows * (part + 1) / parts);
    for (int side = 0; side < 2; side++) {
        const struct skl_work_side *s = &w->side[side];
        int64_t columns = s->b_batch * s->b_heads * s->b_rows;
        if (s->grad_b.data)
            clear_columns(run, side, columns * part / parts, columns * (part + 1) / parts);
        if (s->grad_bias.data && part == 0)
            clear_bias(s);
    }
}

/* The lane moves on to another b: the sums of the old one go out, rounded once, and start at 0 for the new one. */
void skl_flush_columns(const struct skl_run *run, struct skl_lane *lane, int64_t chunk)
{
    const struct skl_work *w = run->work;
    int64_t first = skl_first_tile(&run->plan, chunk) * SKL_BK, last = skl_first_tile(&run->plan, chunk + 1) * SKL_BK;
    last = last < w->columns ? last : w->columns;
    for (int side = 0; side < 2; side++) {
        const struct skl_work_side *s = &w->side[side];
        int64_t owner = lane->owner[side], bias_size = skl_size_of(s->grad_bias.dtype);
        if (owner == lane->next_owner[side])
            continue;
        for (int64_t j = first; j < last; j++) {
            float *sum = lane->db[side] ? lane->db[side] + j * s->dim : NULL, *bias = lane->dbias[side];
            if (sum && owner >= 0)
                w->kernels->convert_back(s->dim, sum, s->grad_b.dtype,
                                         skl_operand_at(&s->grad_b, owner / s->b_heads, owner % s->b_heads, j));
            if (bias && owner >= 0)
                w->kernels->convert_back(1, bias + j, s->grad_bias.dtype,
                                         s->grad_bias.data + j * s->grad_bias.stride * bias_size);
            if (sum)
                memset(sum, 0, (size_t)s->dim * sizeof *sum);
            if (bias)
                bias[j] = 0;
        }
    }
}
