/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows into lanes. A lane takes the next rows that have weight and see a column, all of one (batch, head) in attention.
 * When a gradient of b is wanted, heads that share b form a group, a lane works through one group alone and in order:
 * no two threads ever add to the same db, and the order of additions is fixed.
 */
#include "run.h"

#include <float.h>
#include <string.h>

static int64_t group_rows(const struct skl_run *run)
{
    const struct skl_work *w = run->work;
    return w->attention ? run->plan.group * w->n : w->rows;
}

/* Collects up to a block of rows from next..end-1; returns where it stopped. */
static int64_t collect(const struct skl_run *run, struct skl_lane *lane, int64_t next, int64_t end)
{
    const struct skl_work *w = run->work;
    lane->n = 0;
    lane->first_column = w->columns, lane->last_column = 0;
    for (; next < end && lane->n < run->plan.block; next++) {
        int64_t at[3], i = lane->n;
        skl_row_index(w, next, at);
        if (w->attention && lane->n && (at[1] != lane->head || at[0] != lane->batch))
            break;
        double weight = skl_row_weight(w, at);
        if (weight == 0)
            continue;
        lane->batch = at[0], lane->head = at[1];
        lane->row[i] = next;
        lane->weight[i] = weight;
        skl_row_range(w, at, &lane->lo[i], &lane->hi[i]);
        if (lane->lo[i] < lane->first_column)
            lane->first_column = lane->lo[i];
        if (lane->hi[i] > lane->last_column)
            lane->last_column = lane->hi[i];
        lane->n++;
    }
    return next;
}

static void panel_ranges(const struct skl_run *run, struct skl_lane *lane)
{
    int nr = run->work->kernels->nr;
    for (int panel = 0; panel * nr < lane->n; panel++) {
        int64_t lo = run->work->columns, hi = 0;
        for (int i = panel * nr; i < lane->n && i < (panel + 1) * nr; i++) {
            lo = lane->lo[i] < lo ? lane->lo[i] : lo;
            hi = lane->hi[i] > hi ? lane->hi[i] : hi;
        }
        lane->panel_lo[panel] = lo, lane->panel_hi[panel] = hi;
    }
}

/* The lane's next rows: of its own group while that lasts, then of the next group; or just the next rows of all. */
static void refill(struct skl_run *run, struct skl_lane *lane)
{
    const struct skl_work *w = run->work;
    lane->n = 0;
    if (!run->plan.own_columns) {
        run->next_row = collect(run, lane, run->next_row, w->rows);
        return;
    }
    for (;;) {
        lane->next_row = collect(run, lane, lane->next_row, lane->end_row);
        int64_t first = run->next_group * group_rows(run);
        if (lane->n || first >= w->rows)
            return;
        run->next_group++;
        lane->next_row = first, lane->end_row = first + group_rows(run);
    }
}

/* Whose b the lane's rows see. */
static int64_t owner_of(const struct skl_work *w, const struct skl_lane *lane, int side)
{
    const struct skl_work_side *s = &w->side[side];
    if (!lane->n)
        return -1;
    return w->attention ? lane->batch * s->b_heads + lane->head / s->share : 0;
}

int skl_next_wave(struct skl_run *run)
{
    int more = 0;
    for (int i = 0; i < run->plan.lanes; i++) {
        struct skl_lane *lane = &run->lanes[i];
        refill(run, lane);
        panel_ranges(run, lane);
        for (int side = 0; side < 2; side++) {
            lane->owner[side] = lane->next_owner[side];
            lane->next_owner[side] = owner_of(run->work, lane, side);
        }
        more |= lane->n > 0;
    }
    return more;
}

/* Columns j0..j1-1 of the tile that some row of the panel sees; j0 at a strip's start. */
void skl_tile_range(const struct skl_run *run, const struct skl_lane *lane, int panel, int64_t tile, int *j0, int *j1)
{
    int64_t lo = lane->panel_lo[panel] - tile * SKL_BK, hi = lane->panel_hi[panel] - tile * SKL_BK;
    lo = lo < 0 ? 0 : lo;
    hi = hi > SKL_BK ? SKL_BK : hi;
    if (lo >= hi)
        lo = hi = 0;
    *j0 = (int)lo / run->work->kernels->mr * run->work->kernels->mr, *j1 = (int)hi;
}

int skl_panel_mask(const struct skl_run *run, const struct skl_lane *lane, int panel, int64_t tile, int *lo, int *hi)
{
    int nr = run->work->kernels->nr, j0, j1, masked = 0;
    skl_tile_range(run, lane, panel, tile, &j0, &j1);
    int64_t c0 = tile * SKL_BK + j0;
    for (int i = 0; i < nr; i++) {
        int row = panel * nr + i;
        int64_t first = row < lane->n ? lane->lo[row] - c0 : 0, last = row < lane->n ? lane->hi[row] - c0 : j1 - j0;
        lo[i] = first < 0 ? 0 : first > j1 - j0 ? j1 - j0 : (int)first;
        hi[i] = last < 0 ? 0 : last > j1 - j0 ? j1 - j0 : (int)last;
        masked |= lo[i] > 0 || hi[i] < j1 - j0;
    }
    return masked;
}

/* One row's operand in f32. */
static void load_row(const struct skl_run *run, const struct skl_work_side *s, int64_t row, float *line)
{
    int64_t at[3];
    skl_row_index(run->work, row, at);
    run->work->kernels->convert(s->dim, skl_operand_at(&s->a, at[0], at[1], at[2]), s->a.dtype, line);
}

/* Row r of raw[dim / nr][block][nr]. NaN and inf become 0: where the row sees a column, its dz is NaN anyway, and where
 * it does not, dz = 0 must not become NaN. */
static void spread_row(const struct skl_run *run, const float *line, int64_t dim, int r, float *raw)
{
    int nr = run->work->kernels->nr;
    for (int64_t d = 0; d < (dim + nr - 1) / nr * nr; d++)
        raw[(d / nr * run->plan.block + r) * nr + d % nr] = d < dim && fabsf(line[d]) <= FLT_MAX ? line[d] : 0;
}

/* The operand itself, not scaled: what scale and temperature do is done to differences of scores, where it costs no
 * digits (and a scaled operand could overflow where its product with b does not). */
void skl_pack_panel(const struct skl_worker *w, struct skl_lane *lane, int panel)
{
    const struct skl_run *run = w->run;
    int nr = run->work->kernels->nr;
    float *line = w->scratch.line;
    for (int side = 0; side < 2; side++) {
        const struct skl_work_side *s = &run->work->side[side];
        float *rows = lane->rows[side] + panel * nr * s->dim, sign = (float)s->sign;
        for (int i = 0; i < nr; i++) {
            int in_use = panel * nr + i < lane->n;
            if (in_use)
                load_row(run, s, lane->row[panel * nr + i], line);
            else
                memset(line, 0, (size_t)s->dim * sizeof *line);
            for (int64_t d = 0; d < s->dim; d++) rows[d * nr + i] = sign * line[d];
            if (lane->raw[side])
                spread_row(run, line, s->dim, panel * nr + i, lane->raw[side]);
        }
        if (lane->da[side] && !run->plan.by_tile) {
            int64_t dim = skl_da_entries(run->work, side);
            memset(lane->da[side] + panel * nr * dim, 0, (size_t)(nr * dim) * sizeof(float));
        }
    }
}

/* by_tile: the sums of all chunks, in their order, into that of the first that has one; returns it, NULL if none has. */
static float *add_chunks(const struct skl_run *run, struct skl_lane *lane, int side, int panel)
{
    int64_t size = skl_da_size(run->work, &run->plan, side), n = size / run->plan.panels, first, last;
    float *sum = NULL;
    for (int64_t chunk = 0; chunk < run->plan.chunks; chunk++) {
        float *da = lane->da[side] + chunk * size + panel * n;
        skl_chunk_range(run, lane, chunk, &first, &last);
        if (first >= last)
            continue;
        for (int64_t i = 0; sum && i < n; i++) sum[i] += da[i];
        sum = sum ? sum : da;
    }
    return sum;
}

void skl_write_grad_rows(const struct skl_worker *w, struct skl_lane *lane, int panel)
{
    const struct skl_run *run = w->run;
    const struct skl_kernels *k = run->work->kernels;
    float *line = w->scratch.line;
    for (int side = 0; side < 2; side++) {
        const struct skl_work_side *s = &run->work->side[side];
        const float *da = lane->da[side];
        if (da && run->plan.by_tile)
            da = add_chunks(run, lane, side, panel);
        else if (da)
            da += panel * k->nr * skl_da_entries(run->work, side);
        if (!da)
            continue;
        for (int i = 0; i < k->nr && panel * k->nr + i < lane->n; i++) {
            int64_t at[3];
            skl_row_index(run->work, lane->row[panel * k->nr + i], at);
            for (int64_t d = 0; d < s->dim; d++) line[d] = da[d * k->nr + i];
            k->convert_back(s->dim, line, s->grad_a.dtype, skl_operand_at(&s->grad_a, at[0], at[1], at[2]));
        }
    }
}
