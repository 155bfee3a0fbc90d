/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of the largest logits on a device (kernels/topk_kernels.cu), head by head and some rows at a time:
 *
 *     stream_*_scores, plain_scores, keys_scores     scores of the rows x some columns, f32, into a slab
 *     pick_scores                                    of each row those that may be listed; the rest into a sum
 *     sort_picks                                     behind the last columns: lists in order
 *
 * Only a slab's scores are ever stored, and a row's picks: 8 bytes for each place of its list, twice, and some more.
 */
#include "run.h"

#include "../shapes.h"

enum {
    SLAB_BYTES = 64 << 20, /* of scores, and of picks: more does not make the products' launches any better */
    MORE_PICKS = 1024      /* than two lists: as many columns pass before a short list is found for the first time */
};

static int64_t up_to_power(int64_t n)
{
    int64_t power = 1;
    while (power < n) power *= 2;
    return power;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t whole(int64_t n, int64_t unit)
{
    return n / unit > 1 ? n / unit * unit : unit;
}

/* A row never has more picks than columns; a block wants to take SKL_PICK_THREADS more at any time. Rows and columns of a
 * slab are multiples of the kernels' tiles, as many as SLAB_BYTES and 'limit' allow, and 1024 columns before rows are
 * cut. */
void skl_gpu_shape_topk(const struct skl_work *w, size_t limit, struct skl_gpu_plan *plan)
{
    int64_t most = least(w->topk.k, w->columns), columns = w->columns + SKL_COLUMN_UNIT - 1;
    int64_t room = least(2 * most + MORE_PICKS, whole(columns, SKL_COLUMN_UNIT)) + SKL_PICK_THREADS;
    room = room > up_to_power(most) ? room : up_to_power(most);
    int64_t of_row = room * (int64_t)sizeof(uint64_t) + (int64_t)sizeof(struct skl_gpu_picked);
    columns = whole(columns, SKL_COLUMN_UNIT);
    int64_t bytes = limit < INT64_MAX ? (int64_t)limit : INT64_MAX,
            wide = least(columns, 1024) * (int64_t)sizeof(float);
    int64_t rows = least(SLAB_BYTES / (wide > of_row ? wide : of_row), bytes / (wide + of_row));
    rows = least(whole(w->n + SKL_ROW_UNIT - 1, SKL_ROW_UNIT), whole(rows, SKL_ROW_UNIT));
    int64_t entries = least(SLAB_BYTES / rows, bytes / rows - of_row) / (int64_t)sizeof(float);
    plan->picks = (int)most, plan->room = (int)room;
    plan->slab_rows = (int)rows, plan->slab_columns = (int)least(columns, whole(entries, SKL_COLUMN_UNIT));
}

static enum skl_status score(const struct skl_gpu_run *run, const struct skl_gpu_slab *slab)
{
    if (!slab->columns)
        return SKL_OK;
    if (run->plan.family == SKL_FAMILY_KEYS)
        return skl_gpu_score_keys(run, slab);
    const struct skl_gpu_kernel *k = skl_gpu_planned(&run->plan, SKL_ROLE_scores);
    return skl_gpu_start(run, SKL_ROLE_scores, (slab->rows + k->rows - 1) / k->rows,
                         (slab->columns + k->columns - 1) / k->columns, slab, sizeof *slab);
}

/* All columns of the slab's rows, and their lists. */
static enum skl_status list_rows(const struct skl_gpu_run *run, struct skl_gpu_topk *args)
{
    int64_t columns = run->work.columns, step = run->plan.slab_columns;
    for (int64_t column = 0; column == 0 || column < columns; column += step) {
        args->slab.first_column = (int32_t)column;
        args->slab.columns = (int32_t)least(columns - column, step);
        SKL_TRY(score(run, &args->slab));
        SKL_TRY(skl_gpu_start(run, SKL_ROLE_pick_scores, args->slab.rows, 1, args, sizeof *args));
    }
    return skl_gpu_start(run, SKL_ROLE_sort_picks, args->slab.rows, 1, args, sizeof *args);
}

enum skl_status skl_gpu_list_largest(const struct skl_gpu_run *run)
{
    const struct skl_work *w = &run->work;
    const struct skl_gpu_plan *plan = &run->plan;
    struct skl_gpu_topk args = {.slab = {.dtype = SKL_F32, .ld = plan->slab_columns, .slab = run->memory.slab},
                                .picks = run->memory.picks,
                                .picked = run->memory.picked,
                                .room = plan->room,
                                .most = plan->picks,
                                .k = w->topk.k,
                                .packed = skl_gpu_packed_of(w),
                                .unit = w->side[1].unit,
                                .ids = skl_gpu_matrix_of(&w->topk.ids),
                                .logprobs = skl_gpu_matrix_of(&w->topk.logprobs),
                                .tail = skl_gpu_rows_of(&w->result[SKL_ROW_tail_logprob]),
                                .lse = skl_gpu_rows_of(&w->result[SKL_ROW_lse_s])};
    args.slab.grad.problem = skl_gpu_problem_of(run, plan->tile_rows);
    for (int64_t head = 0; head < plan->heads; head++)
        for (int64_t row = 0; row < w->n; row += plan->slab_rows) {
            args.slab.head = (int32_t)head, args.slab.first_row = (int32_t)row;
            args.slab.rows = (int32_t)least(w->n - row, plan->slab_rows);
            SKL_TRY(list_rows(run, &args));
        }
    return SKL_OK;
}
