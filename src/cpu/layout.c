/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the buffers of a block and of a thread lie in the memory that a call takes. Laid out at NULL they are counted. */
#include "numbers.h"
#include "plan.h"

/* Takes 'bytes' at the running offset, aligned. */
static void *take(char *memory, size_t *offset, int64_t bytes)
{
    void *at = memory ? memory + *offset : NULL;
    *offset += (size_t)round_up(bytes, SKL_ALIGN);
    return at;
}

size_t skl_lay_block(const struct skl_work *w, const struct skl_plan *plan, char *memory, struct skl_block *block)
{
    int64_t rows = plan->block_rows, tile = (int64_t)SKL_BK * rows;
    size_t at = 0;
    for (int i = 0; i < 2; i++) {
        const struct skl_work_side *s = &w->side[i];
        const struct skl_products *products = plan->products[i];
        int swept = !plan->gather;
        int64_t packs = skl_packs(s);
        block->panel[i] = swept ? take(memory, &at, plan->panels * packs * products->panel_bytes(s->dim)) : NULL;
        block->dw[i] = s->grad_w.data ? take(memory, &at, 8 * plan->chunks * packs * rows) : NULL;
        block->mix[i] = s->scorer == SKL_MIXTURE || s->scorer == SKL_INDEX
                            ? take(memory, &at, (int64_t)sizeof **block->mix * plan->panels * s->members)
                            : NULL;
        block->pack[i] = swept && s->grad_b.data
                             ? take(memory, &at, packs * products->block_bytes(s->dim, plan->block_rows))
                             : NULL;
        block->da[i] = swept && s->grad_a.data
                           ? take(memory, &at, 4 * packs * skl_da_size(w, plan, i) * (plan->by_tile ? plan->chunks : 1))
                           : NULL;
        block->y[i] = plan->kept_tiles && s->dim ? take(memory, &at, 4 * tile * plan->kept_tiles) : NULL;
        int marks = (w->grads & 1 << i) && !(plan->by_tile && plan->recompute);
        block->live[i] = marks ? take(memory, &at, SKL_STRIPS_MAX * plan->panels * plan->kept_tiles) : NULL;
        int half = s->grad_b.data && s->grad_b.dtype != SKL_F32;
        block->db[i] = half ? take(memory, &at, 4 * plan->columns * s->dim) : NULL;
        block->dbias[i] = s->grad_bias.data ? take(memory, &at, 4 * plan->columns) : NULL;
    }
    for (int i = 0; i < 2; i++) {
        int64_t heads = plan->keeps_heads & 1 << i ? plan->kept_tiles * w->side[i].members : 0;
        block->of_heads[i] = heads ? take(memory, &at, 4 * tile * heads) : NULL;
        if (i != w->student)
            block->sums = heads ? take(memory, &at, (int64_t)sizeof *block->sums * plan->panels * heads) : NULL;
    }
    int exps = plan->keep == SKL_KEEP_EXP_P || plan->keep == SKL_KEEP_EXP_Q;
    block->m_kept = exps ? take(memory, &at, 4 * 2 * rows * plan->kept_tiles * (SKL_BK / plan->slice)) : NULL;
    int64_t each = (int64_t)plan->panels * plan->states;
    block->states = take(memory, &at, (int64_t)sizeof *block->states * each);
    for (int i = 0; i < 2; i++) {
        block->sink[i] = w->sinks ? take(memory, &at, 4 * rows) : NULL;
        block->sink_dz[i] = w->sink_grads & 1 << i ? take(memory, &at, 4 * rows) : NULL;
    }
    for (int i = 0; i < 2; i++)
        block->details[i] = plan->details[i] ? take(memory, &at, (int64_t)sizeof **block->details * each) : NULL;
    for (int i = 0; i < SKL_OTHERS; i++)
        block->others[i] = plan->others & 1 << i ? take(memory, &at, (int64_t)sizeof **block->others * each) : NULL;
    int labels = skl_has_labels(w);
    block->labels = labels ? take(memory, &at, (int64_t)sizeof *block->labels * plan->panels) : NULL;
    block->label = labels ? take(memory, &at, 8 * rows) : NULL;
    int listed = w->listed.given;
    block->lists = listed ? take(memory, &at, (int64_t)sizeof *block->lists * rows) : NULL;
    block->entries = listed ? take(memory, &at, (int64_t)sizeof *block->entries * rows * w->listed.k) : NULL;
    block->picks = plan->picks ? take(memory, &at, (int64_t)sizeof *block->picks * rows * plan->list_room) : NULL;
    block->sorted = plan->picks ? take(memory, &at, (int64_t)sizeof *block->sorted * plan->panels * plan->picks) : NULL;
    block->picked = plan->picks ? take(memory, &at, 4 * plan->chunks * rows) : NULL;
    if (!w->side[0].dim) /* without a teacher: never used, but an address */
        block->y[0] = block->y[1];
    int64_t listed_columns = plan->tiles * SKL_BK;
    int in_place = plan->in_place, together = plan->queries && !in_place;
    block->keys = together ? take(memory, &at, 8 * listed_columns) : NULL;
    block->listed = in_place ? take(memory, &at, 4 * skl_lists(plan) * plan->listed) : NULL;
    block->list_length = in_place ? take(memory, &at, 4 * skl_lists(plan)) : NULL;
    block->list_of = in_place ? take(memory, &at, 4 * rows) : NULL;
    block->starts = in_place ? take(memory, &at, 4 * skl_lists(plan) * (plan->tiles + 1)) : NULL;
    block->lines = in_place ? take(memory, &at, 4 * plan->tiles * plan->panels) : NULL;
    block->seen = skl_rows_differ(w, plan) ? take(memory, &at, 4 * plan->panels * listed_columns) : NULL;
    block->factors = take(memory, &at, (int64_t)sizeof *block->factors * plan->panels);
    block->row = take(memory, &at, 8 * rows);
    block->lo = take(memory, &at, 8 * rows);
    block->hi = take(memory, &at, 8 * rows);
    block->at = take(memory, &at, (int64_t)sizeof *block->at * rows);
    block->panel_lo = take(memory, &at, 8 * plan->panels);
    block->panel_hi = take(memory, &at, 8 * plan->panels);
    block->whole_lo = take(memory, &at, 8 * plan->panels);
    block->whole_hi = take(memory, &at, 8 * plan->panels);
    block->weight = take(memory, &at, 8 * rows);
    block->result = take(memory, &at, (int64_t)sizeof *block->result * rows);
    block->bk = plan->bk;
    return at;
}

static void lay_lists(char *memory, size_t *at, int64_t groups, int64_t entries, struct skl_lists *lists)
{
    lists->start = take(memory, at, (groups + 1) * (int64_t)sizeof *lists->start);
    lists->at = take(memory, at, entries * (int64_t)sizeof *lists->at);
    lists->x = take(memory, at, entries * (int64_t)sizeof *lists->x);
}

size_t skl_lay_scratch(const struct skl_work *w, const struct skl_plan *plan, char *memory, struct skl_scratch *scratch)
{
    int64_t tile = 4 * (int64_t)SKL_BK * plan->kernels->nr;
    int64_t columns = skl_pack_bytes(plan);
    if (plan->queries && !plan->in_place) /* keys side by side behind it */
        columns += 4 * SKL_BK *
                   least(most(w->side[0].dim, w->side[1].dim), most(plan->products[0]->kc, plan->products[1]->kc));
    int one = plan->one_panel && !(plan->by_tile && plan->recompute); /* panel at a time */
    int mixes = w->side[0].scorer != SKL_INNER || w->side[1].scorer != SKL_INNER;
    int index = w->side[w->student].scorer == SKL_INDEX && w->grads; /* which makes dz of a whole tile */
    size_t at = 0;
    int kept = plan->kept_tiles && !plan->recompute; /* scores go to the block at once */
    scratch->queue = take(memory, &at, sizeof *scratch->queue);
    for (int i = 0; i < 2; i++) {
        int grad = w->grads & 1 << i;
        scratch->columns[i] = take(memory, &at, columns);
        scratch->y[i] = kept ? NULL : take(memory, &at, one ? tile : tile * plan->panels);
        scratch->capped[i] = grad && w->side[i].softcap > 0 ? take(memory, &at, tile) : NULL;
        if (i == w->student)
            scratch->tempered = grad && skl_tempered(w) ? take(memory, &at, tile) : NULL;
        scratch->live[i] = grad && plan->by_tile ? take(memory, &at, SKL_STRIPS_MAX * plan->panels) : NULL;
        scratch->entries[i] = grad ? take(memory, &at, 4 * SKL_BK * plan->panels) : NULL;
    }
    int sums = w->pool_block && w->pool == SKL_POOL_SUM;
    scratch->pool_l = sums ? take(memory, &at, tile * plan->panels) : NULL;
    scratch->of_head = mixes ? take(memory, &at, plan->whole && !index ? tile : tile * plan->panels) : NULL;
    if (plan->by_tile && w->skip_below > 0) {
        int64_t entries = (int64_t)SKL_BK * plan->block_rows / SKL_LISTED;
        lay_lists(memory, &at, SKL_BK, entries, &scratch->by_column);
        lay_lists(memory, &at, plan->block_rows, entries, &scratch->by_row);
        scratch->listed_da = take(memory, &at, 4 * plan->kernels->nr * most(w->side[0].dim, w->side[1].dim));
    }
    int differ = skl_rows_differ(w, plan);
    scratch->marks = differ ? take(memory, &at, 4 * plan->panels * plan->columns) : NULL;
    scratch->bits = plan->queries ? take(memory, &at, (plan->columns + 63) / 64 * 8) : NULL;
    scratch->db = plan->queries && !plan->in_place && plan->own_columns
                      ? take(memory, &at, 4 * SKL_BK * most(w->side[0].dim, w->side[1].dim))
                      : NULL;
    int64_t parts = w->side[0].grad_b.data || w->side[1].grad_b.data ? plan->products[1]->parts_bytes : 0;
    scratch->parts = parts ? take(memory, &at, parts * plan->panels) : NULL;
    scratch->line = take(memory, &at, 4 * most(w->side[0].dim, w->side[1].dim));
    int64_t picks = plan->block_rows * plan->pick_room;
    scratch->picks = plan->picks ? take(memory, &at, (int64_t)sizeof *scratch->picks * picks) : NULL;
    scratch->picked = plan->picks ? take(memory, &at, 4 * plan->block_rows) : NULL;
    scratch->least = plan->picks ? take(memory, &at, 4 * plan->block_rows) : NULL;
    for (int i = 0; i < 2; i++)
        scratch->gathered[i] = w->listed.given ? take(memory, &at, 4 * w->side[w->student].dim) : NULL;
    return at;
}
