/* SPDX-License-Identifier: Apache-2.0
 *
 * Sinks: one more column of every row, whose logit z = sink / temperature is given for each head and both sides
 * (docs/math.md, section Sinks). It is in no tile. Of a panel it is one column of scores x = z / unit, with a state
 * of its own behind those of the chunks, and the kernels do to it what they do to any other column: once a row, not
 * once a tile.
 *
 *     first sweep    m, l, acc; entropy              second sweep    the sums of the divergence and of others
 *     gradient       dsink[h] = sum over the rows of head h of dz / temperature, in double: over the rows of a segment
 *     in
 *                    their order, then over the segments in theirs, whichever threads had them
 *
 * Of a mixture of heads z = log of the mean of e^{sink / temperature - lse}. x is rounded to f32, as products are.
 */
#include "run.h"

#include <math.h>
#include <string.h>

static double mixed_score(const struct skl_run *run, int side, int64_t row)
{
    const struct skl_work_side *s = &run->work->side[side];
    double t = 0;
    int64_t at[3];
    skl_row_index(run->work, row, at);
    for (int64_t k = 0; k < s->members; k++) {
        double m, l, z = skl_sink_at(run->work, s, skl_head_of(s, at[1], k));
        skl_lse_of_head(run, side, k, row, &m, &l);
        t += exp(z - s->head_unit * m) / (l * (double)s->members);
    }
    return log2(t);
}

static double score(const struct skl_run *run, int side, int64_t row)
{
    const struct skl_work_side *s = &run->work->side[side];
    int64_t at[3];
    if (s->scorer == SKL_MIXTURE)
        return mixed_score(run, side, row);
    skl_row_index(run->work, row, at);
    return skl_sink_at(run->work, s, skl_head_of(s, at[1], s->member)) / s->unit;
}

void skl_set_sinks(const struct skl_run *run, struct skl_block *block, int panel)
{
    int nr = run->plan.kernels->nr;
    for (int side = 0; side < 2; side++)
        for (int i = panel * nr; i < (panel + 1) * nr; i++) {
            int there = i < block->n && run->work->side[side].dim;
            block->sink[side][i] = there ? (float)score(run, side, block->row[i]) : -INFINITY;
        }
}

/* A panel's scores of the sink, as a tile of one column. */
struct column {
    float *y[2];
};

static struct column column_of(const struct skl_run *run, const struct skl_block *block, int panel)
{
    int at = panel * run->plan.kernels->nr;
    return (struct column){{block->sink[0] + at, block->sink[1] + at}};
}

static void push_details(const struct skl_run *run, struct skl_block *block, int panel, const struct column *c)
{
    const struct skl_plan *plan = &run->plan;
    int keys_only = SKL_WANT_TOP1 | SKL_WANT_RANK;
    for (int side = 0; side < 2; side++)
        if (block->details[side])
            plan->kernels->details(1, c->y[side], 0, plan->details[side] & ~keys_only, run->unit[side], run->unit[side],
                                   &block->details[side][block->chunks * plan->panels + panel]);
}

void skl_push_sink(const struct skl_run *run, struct skl_block *block, int panel)
{
    const struct skl_plan *plan = &run->plan;
    struct skl_panel_state *state = &block->states[block->chunks * plan->panels + panel];
    struct column c = column_of(run, block, panel);
    skl_empty_state(run, block, block->chunks, panel);
    push_details(run, block, panel, &c);
    if (run->work->form == SKL_FORM_KL)
        plan->kernels->push_kl(1, c.y[0], c.y[1], run->unit, plan->slack, SKL_KEEP_NOTHING, state);
    for (int side = 0; side < 2 && run->work->form != SKL_FORM_KL; side++)
        if (run->work->side[side].dim)
            plan->kernels->push_lse(1, c.y[side], run->unit[side], plan->slack, side, state);
}

void skl_sum_sink(const struct skl_run *run, struct skl_block *block, int panel)
{
    const struct skl_plan *plan = &run->plan;
    struct column c = column_of(run, block, panel);
    skl_empty_state(run, block, block->chunks, panel);
    if (skl_sweeps(run->work->form) == 2)
        plan->kernels->form[run->work->form].sum(1, c.y[0], c.y[1], plan->apart, &block->factors[panel],
                                                 &block->states[block->chunks * plan->panels + panel]);
    skl_sum_others(run, block, block->chunks, panel, c.y, 1);
}

void skl_finish_sink(const struct skl_run *run, const struct skl_block *block, int panel, int i,
                     struct skl_row_result *r)
{
    int row = panel * run->plan.kernels->nr + i;
    for (int side = 0; side < 2; side++)
        r->sink_mass[side] = r->l[side] == 0
                                 ? 0
                                 : exp(run->work->side[side].unit * (double)block->sink[side][row] - r->m[side]) /
                                       r->l[side];
}

/* ------------------------------------------------------------------------------------------------ gradient --- */

void skl_grad_sink(const struct skl_run *run, struct skl_block *block, int panel)
{
    const struct skl_work *w = run->work;
    int nr = run->plan.kernels->nr, first = panel * nr;
    struct skl_panel_factors f = block->factors[panel];
    float y[2][SKL_NR_MAX];
    for (int side = 0; side < 2; side++) {
        memcpy(y[side], block->sink[side] + first, (size_t)nr * sizeof(float));
        for (int i = 0; i < nr; i++) {
            double g = f.prob[side][i] != 0 ? skl_row_upstream(w, block, first + i) / w->temperature : 0;
            f.g[side][i] = (float)(g * skl_slope(w->form, w->param, side)); /* in place of chain that of the sink */
        }
    }
    run->plan.kernels->form[w->form].dz(1, y[0], y[1], w->sink_grads, &f);
    for (int side = 0; side < 2; side++)
        if (block->sink_dz[side])
            memcpy(block->sink_dz[side] + first, y[side], (size_t)nr * sizeof(float));
}

void skl_add_sinks(const struct skl_run *run, const struct skl_block *block)
{
    for (int side = 0; side < 2; side++)
        for (int r = 0; block->sink_dz[side] && r < block->n; r++)
            run->sinks[side * run->work->segments + block->segment.number] += (double)block->sink_dz[side][r];
}

/* A head's segments are those of all batches or sequences. */
static double sum_of_head(const struct skl_run *run, int side, int64_t head)
{
    double sum = 0;
    for (int64_t k = head; k < run->work->segments; k += run->work->heads)
        sum += run->sinks[side * run->work->segments + k];
    return sum;
}

void skl_write_sinks(const struct skl_run *run)
{
    for (int side = 0; side < 2; side++) {
        const struct skl_vector_view *to = &run->work->side[side].grad_sink;
        for (int64_t h = 0; to->data && h < run->work->heads; h++) {
            float sum = (float)sum_of_head(run, side, h);
            run->plan.kernels->convert_back(1, &sum, to->dtype, to->data + h * to->stride * skl_size_of(to->dtype));
        }
    }
}
