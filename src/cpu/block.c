/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows into blocks. A block takes the next rows that have weight and see a column, all of one segment: of one (batch,
 * head) in attention, of one (sequence, head) when sequences are packed. When a gradient of b is wanted, segments that
 * share columns form a group, a block works through one group alone and in order: no two threads ever add to the same
 * db, and the order of additions is fixed.
 */
#include "run.h"

#include <string.h>

static void next_index(const struct skl_work *w, int64_t at[3])
{
    if (++at[2] < w->n)
        return;
    at[2] = 0;
    if (++at[1] == w->heads)
        at[1] = 0, at[0]++;
}

/* Do the block's rows and this one see more tiles together than the block can hold? */
static int too_far(const struct skl_run *run, struct skl_block *block, struct skl_range range)
{
    if (!run->plan.keeps_seen)
        return 0;
    int64_t bk = block->bk, lo = range.lo / bk, hi = (range.hi + bk - 1) / bk;
    int64_t first = block->first_column < lo ? block->first_column : lo;
    int64_t last = block->last_column > hi ? block->last_column : hi;
    if (block->last_column && last - first > run->plan.kept_tiles)
        return 1;
    block->first_column = first, block->last_column = last; /* in tiles; skl_set_ranges counts them anew */
    return 0;
}

/* Of a segment's rows next .. end-1 those that have weight and see a column, up to a block of them. Returns how many of
 * the segment's rows are done then. */
static int64_t collect(const struct skl_run *run, struct skl_block *block, const struct skl_segment *s, int64_t next,
                       int64_t end)
{
    const struct skl_work *w = run->work;
    int64_t at[3], first_query = -1;
    struct skl_range range = {0, 0};
    double weight = 0;
    int alike = skl_rows_alike(w);
    skl_row_index(w, skl_segment_row(w, s, next), at);
    block->first_column = INT64_MAX, block->last_column = 0; /* no row has seen a tile */
    for (block->n = 0; next < end && block->n < run->plan.block_rows; next++, next_index(w, at)) {
        int64_t i = block->n;
        if (w->together > 1)
            skl_row_index(w, skl_segment_row(w, s, next), at);
        if (run->plan.queries && i && at[2] - first_query >= run->plan.queries)
            break;
        if (!alike || !i)
            range = skl_row_range(w, s, at), weight = skl_row_weight(w, range, at);
        int sees = range.lo < range.hi; /* on a shard a row may see columns of other shards alone */
        if (weight == 0)
            continue;
        if (sees && too_far(run, block, range))
            break;
        if (!i)
            first_query = at[2];
        block->row[i] = skl_segment_row(w, s, next);
        memcpy(block->at[i], at, sizeof at);
        block->weight[i] = weight;
        block->lo[i] = sees ? range.lo : 0, block->hi[i] = sees ? range.hi : 0;
        if (block->label)
            block->label[i] = skl_row_label(w, at);
        block->n++;
    }
    return next;
}

/* Rows of segments *segment .. end-1, from the first that has any; both counters move on. */
static void take_rows(const struct skl_run *run, struct skl_block *block, int64_t *segment, int64_t *row, int64_t end)
{
    block->n = 0;
    while (*segment < end && !block->n) {
        block->segment = skl_segment_at(run->work, *segment);
        *row = collect(run, block, &block->segment, *row, block->segment.rows);
        if (!block->n)
            *row = 0, ++*segment;
    }
}

/* The block's next rows: of its own group of segments while that has any, then of the next group. Where groups do not
 * matter, just the next rows. */
static void refill(struct skl_run *run, struct skl_block *block)
{
    const struct skl_work *w = run->work;
    if (w->shard.exchange) {
        int64_t first = run->next_row, same_b = w->attention ? w->n : w->rows, end = skl_share_rows(run);
        block->segment = skl_segment_at(w, first < w->rows ? first / same_b : 0); /* also where no row has weight */
        collect(run, block, &block->segment, first - block->segment.row, end - block->segment.row);
        run->next_row = end;
        return;
    }
    if (!run->plan.own_columns) {
        take_rows(run, block, &run->next_segment, &run->next_row, w->segments);
        return;
    }
    for (;;) {
        take_rows(run, block, &block->next_segment, &block->next_row, block->end_segment);
        if (block->n || run->next_segment >= w->segments)
            return;
        block->next_segment = run->next_segment, block->next_row = 0;
        run->next_segment = block->end_segment = run->next_segment + run->plan.group;
    }
}

struct skl_owner skl_b_of_block(const struct skl_work *w, const struct skl_block *block, int side, int64_t member)
{
    const struct skl_segment *s = &block->segment;
    int64_t head = w->attention ? skl_head_of(&w->side[side], s->head, member) / w->side[side].group : 0;
    return (struct skl_owner){s->batch, head, s->column, s->columns};
}

static void cut_columns(const struct skl_run *run, struct skl_block *block, int64_t blocks)
{
    int64_t seen = skl_seen_tiles(block);
    block->chunks = skl_chunks_of(&run->plan, blocks,
                                  run->plan.queries ? run->plan.chunks : seen); /* lists are counted later */
    block->kept_from = run->plan.keeps_seen ? block->first_column / block->bk : 0;
}

/* What the block's rows, or the lack of them, mean for its columns. */
static void describe(const struct skl_run *run, struct skl_block *block, int waits)
{
    block->columns = block->segment.columns;
    skl_set_ranges(run, block);
    for (int side = 0; side < 2; side++) {
        block->owner[side] = block->next_owner[side];
        if (!waits)
            block->next_owner[side] = block->n || run->shared
                                          ? skl_b_of_block(run->work, block, side, run->work->side[side].member)
                                          : (struct skl_owner){0, 0, 0, 0};
    }
}

void skl_take_group(const struct skl_run *run, struct skl_block *block, int64_t group)
{
    block->next_segment = group * run->plan.group, block->next_row = 0;
    block->end_segment = block->next_segment + run->plan.group;
}

int skl_next_rows(const struct skl_run *run, struct skl_block *block)
{
    take_rows(run, block, &block->next_segment, &block->next_row, block->end_segment);
    describe(run, block, 0);
    cut_columns(run, block, 1);
    return block->n > 0;
}

/* Blocks without rows in this wave, while others have enough, keep what they have summed. */
int skl_next_wave(struct skl_run *run)
{
    int64_t tiles = 0, blocks = 0;
    for (int i = 0; i < run->plan.blocks; i++) {
        struct skl_block *block = &run->blocks[i];
        int waits = tiles >= run->plan.wave_tiles;
        block->n = 0;
        if (!waits)
            refill(run, block);
        describe(run, block, waits);
        if (block->n)
            tiles += run->plan.queries ? run->plan.tiles : skl_seen_tiles(block);
        blocks += block->n > 0;
    }
    for (int i = 0; i < run->plan.blocks; i++) cut_columns(run, &run->blocks[i], blocks);
    return blocks > 0 || run->shared > 0;
}

static const void *row_at(const struct skl_work_side *s, int64_t member, const int64_t at[3])
{
    return skl_operand_at(&s->a, at[0], skl_head_of(s, at[1], member), at[2]);
}

/* One row's operand in f32, of one of the heads that it meets. */
static void load_row(const struct skl_run *run, const struct skl_work_side *s, int64_t member, const int64_t at[3],
                     float *line)
{
    run->plan.kernels->convert(s->dim, row_at(s, member, at), s->a.dtype, line);
}

/* The operand itself, not scaled: what scale and temperature do is done to differences of scores, where it costs no
 * digits (and a scaled operand could overflow where its product with b does not). */
static void pack_rows(const struct skl_worker *w, struct skl_block *block, int side, int panel, int64_t pack)
{
    const struct skl_run *run = w->run;
    const struct skl_work_side *s = &run->work->side[side];
    const struct skl_products *products = run->plan.products[side];
    int nr = run->plan.kernels->nr;
    int64_t member = s->scorer == SKL_INNER ? s->member : pack;
    float *line = w->scratch.line;
    char *rows = block->panel[side] + (panel * skl_packs(s) + pack) * products->panel_bytes(s->dim);
    char *of_block = block->pack[side];
    if (of_block)
        of_block += pack * products->block_bytes(s->dim, run->plan.block_rows);
    const void *lines[SKL_NR_MAX];
    int together = products->pack_panel && s->a.dtype == products->pack_dtype, first = panel * nr;
    memset(line, 0, (size_t)s->dim * sizeof *line); /* of lanes without a row */
    for (int i = 0; i < nr; i++) lines[i] = first + i < block->n ? row_at(s, member, block->at[first + i]) : line;
    if (together)
        products->pack_panel(s->dim, lines, (float)s->sign, rows);
    if (together && of_block && products->pack_block_panel)
        products->pack_block_panel(s->dim, lines, first, run->plan.block_rows, of_block);
    if (together && (!of_block || products->pack_block_panel))
        return;
    for (int i = nr - 1; i >= 0; i--) { /* from the end, where lanes without a row are */
        const float *x = lines[i];
        if (lines[i] != line && (!together || s->a.dtype != SKL_F32))
            load_row(run, s, member, block->at[first + i], line), x = line;
        if (!together)
            products->pack_row(s->dim, x, (float)s->sign, i, rows);
        if (of_block)
            products->pack_block_row(s->dim, x, first + i, run->plan.block_rows, of_block);
    }
}

void skl_pack_panel(const struct skl_worker *w, struct skl_block *block, int panel)
{
    const struct skl_run *run = w->run;
    int nr = run->plan.kernels->nr;
    if (run->work->sinks)
        skl_set_sinks(run, block, panel);
    for (int side = 0; side < 2; side++) {
        const struct skl_work_side *s = &run->work->side[side];
        for (int64_t pack = 0; s->dim && pack < skl_packs(s); pack++) pack_rows(w, block, side, panel, pack);
        if (block->mix[side]) /* shares or weights */
            skl_set_heads(run, block, side, panel);
        if (block->da[side] && !run->plan.by_tile) {
            int64_t dim = skl_da_entries(run->work, &run->plan, side);
            memset(block->da[side] + panel * nr * dim, 0, (size_t)(nr * dim) * sizeof(float));
        }
    }
}

/* by_tile: adds the chunks' sums of a pack's da, in the order of the chunks, into the sum of the first chunk that has
 * one. Returns that sum, or NULL if no chunk has one. */
static float *add_chunks(const struct skl_run *run, struct skl_block *block, int side, int64_t pack, int panel)
{
    int64_t size = skl_da_size(run->work, &run->plan, side), n = size / run->plan.panels, first, last;
    float *sum = NULL;
    for (int64_t chunk = 0; chunk < block->chunks; chunk++) {
        float *da = block->da[side] + (chunk * skl_packs(&run->work->side[side]) + pack) * size + panel * n;
        skl_chunk_range(block, chunk, &first, &last);
        if (first >= last)
            continue;
        for (int64_t i = 0; sum && i < n; i++) sum[i] += da[i];
        sum = sum ? sum : da;
    }
    return sum;
}

static void write_pack(const struct skl_worker *w, struct skl_block *block, int side, int64_t pack, int panel)
{
    const struct skl_run *run = w->run;
    const struct skl_kernels *k = run->plan.kernels;
    const struct skl_work_side *s = &run->work->side[side];
    const float *da = run->plan.by_tile ? add_chunks(run, block, side, pack, panel)
                                        : block->da[side] + panel * k->nr * skl_da_entries(run->work, &run->plan, side);
    float *line = w->scratch.line, *lines[SKL_NR_MAX];
    int n = block->n - panel * k->nr < k->nr ? block->n - panel * k->nr : k->nr, f32 = s->grad_a.dtype == SKL_F32;
    for (int i = 0; da && i < n; i++) {
        const int64_t *at = block->at[panel * k->nr + i];
        void *to = skl_operand_at(&s->grad_a, at[0], skl_head_of(s, at[1], pack), at[2]);
        lines[i] = to;
        for (int64_t d = 0; !f32 && d < s->dim; d++) line[d] = da[d * k->nr + i];
        if (!f32)
            k->convert_back(s->dim, line, s->grad_a.dtype, to);
    }
    if (da && f32)
        k->write_rows(s->dim, da, n, lines);
}

void skl_write_grad_rows(const struct skl_worker *w, struct skl_block *block, int panel)
{
    for (int side = 0; side < 2; side++) {
        for (int64_t pack = 0; block->da[side] && pack < skl_packs(&w->run->work->side[side]); pack++)
            write_pack(w, block, side, pack, panel);
        if (block->dw[side])
            skl_write_grad_weights(w, block, side, panel);
    }
}
