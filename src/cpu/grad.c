/* SPDX-License-Identifier: Apache-2.0
 *
 * The backward of a tile: y -> dz in place, then
 *
 *     columns   db[j] += sum_i dz[i,j] a[i]
 *     rows      da[i] += sum_j dz[i,j] b[j]
 *
 * Where dim is short (plan.by_tile) both follow at once; a task owns the db of its columns and a da of its own, and
 * these are added up at the end. Otherwise a slab of tiles goes through two phases: tasks own the db of their columns,
 * then entries d0.. of the block's da. No two threads add to the same number, and every sum has one order.
 */
#include "run.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* What was kept of a slice is relative to the references m of that slice: an exponential becomes a probability by
 * 2^{m - m_row} / l, and x_P - x_Q is off by 'shift' from what it is under the row's. */
static void kept_factors(const struct skl_run *run, const float *m, struct skl_panel_factors *f)
{
    const struct skl_kernels *k = run->plan.kernels;
    for (int side = 0; side < 2; side++) {
        float x[SKL_NR_MAX], factor[SKL_NR_MAX];
        for (int i = 0; i < k->nr; i++)
            x[i] = f->prob[side][i] != 0 ? (m[side * k->nr + i] - f->m[side][i]) * run->unit[side] : -INFINITY;
        k->exp2(x, factor);
        for (int i = 0; i < k->nr; i++) f->prob[side][i] *= factor[i];
    }
    for (int i = 0; i < k->nr && run->plan.keep == SKL_KEEP_EXP_P; i++) {
        double shift = skl_shift(run, m[i], f->m[0][i], m[k->nr + i], f->m[1][i]);
        if (f->prob[0][i] != 0 && fabs(shift) <= (double)FLT_MAX)
            f->c[0][i] = (float)((double)f->c[0][i] - shift);
    }
}

static void dz_kept(const struct skl_run *run, const struct skl_block *block, int64_t tile, int panel, int j0, int n,
                    float *const y[2])
{
    const struct skl_kernels *k = run->plan.kernels;
    const float *last = NULL;
    struct skl_panel_factors f;
    for (int j = j0, end; j < j0 + n; j = end) {
        const float *m = skl_kept_m(&run->plan, block, tile, panel, j);
        end = skl_slice_end(&run->plan, j, j0 + n);
        if (!last || memcmp(m, last, 2 * (size_t)k->nr * sizeof *m) != 0) {
            f = block->factors[panel];
            kept_factors(run, m, &f);
        }
        k->dz_kept(end - j, y[0] + (j - j0) * k->nr, y[1] + (j - j0) * k->nr, run->plan.keep, &f);
        last = m;
    }
}

static void dz_panel(const struct skl_worker *w, struct skl_block *block, int64_t tile, int panel, int j0, int n,
                     float *const y[2])
{
    int64_t first = tile * block->bk + j0;
    const struct skl_run *run = w->run;
    const struct skl_work *work = run->work;
    const struct skl_kernels *k = run->plan.kernels;
    if (block->m_kept) {
        dz_kept(run, block, tile, panel, j0, n, y);
        if (block->labels)
            skl_add_labels(w, block, panel, first, n, y[work->student]);
        return;
    }
    for (int side = 0; side < 2; side++) /* the softcap's derivative is a function of the logits that dz overwrites */
        if (work->side[side].softcap > 0 && (work->grads & 1 << side))
            memcpy(w->scratch.capped[side], y[side], (size_t)(n * k->nr) * sizeof(float));
    int labels = block->labels && (work->grads & 1 << work->student);
    if (labels)
        skl_temper(w, block, panel, y[work->student], n);
    k->form[work->form].dz(n, y[0], y[1], work->grads, &block->factors[panel]);
    if (block->lists)
        skl_put_listed_dz(run, block, panel, first, n, y[work->student]);
    if (labels)
        skl_add_labels(w, block, panel, first, n, y[work->student]);
    for (int side = 0; side < 2; side++)
        if (work->side[side].softcap > 0 && (work->grads & 1 << side))
            k->softcap_back(n, w->scratch.capped[side], (float)work->side[side].softcap, y[side]);
}

/* Which strips of the panel's columns j0..j1-1 the products can leave out; the rest of a last strip becomes 0. Returns
 * the number of entries that count. */
static int mark_panel(const struct skl_run *run, const struct skl_block *block, int panel, int side, int j0, int j1,
                      float *dz, unsigned char *live, uint32_t *entries)
{
    const struct skl_kernels *k = run->plan.kernels;
    int end = (j1 + k->mr - 1) / k->mr * k->mr;
    float limit[SKL_NR_MAX];
    memset(live, 0, SKL_STRIPS_MAX);
    memset(entries, 0, SKL_BK * sizeof *entries);
    if (j0 >= j1)
        return 0;
    for (int i = 0; i < k->nr; i++) {
        const struct skl_panel_factors *f = &block->factors[panel];
        float x = (float)run->work->skip_below * (fabsf(f->g[side][i]) + fabsf(f->own[side][i]));
        limit[i] = x <= FLT_MAX ? x : 0; /* NaN would let the zeros behind j1 pass */
    }
    memset(dz + j1 * k->nr, 0, (size_t)((end - j1) * k->nr) * sizeof *dz);
    return k->mark_live(end - j0, dz + j0 * k->nr, limit, live + j0 / k->mr, entries + j0);
}

/* dz of the task's panels for one tile, and how many entries of each side count. */
static void dz_tile(const struct skl_worker *w, struct skl_block *block, int64_t tile, float *const y[2],
                    unsigned char *const live[2], int64_t count[2])
{
    const struct skl_run *run = w->run;
    int nr = run->plan.kernels->nr;
    count[0] = count[1] = 0;
    for (int panel = w->from, j0, j1; panel < w->to && panel * nr < block->n; panel++) {
        float *const at[2] = {y[0] + panel * SKL_BK * nr, y[1] + panel * SKL_BK * nr};
        skl_tile_range(run, block, panel, tile, &j0, &j1);
        float *const from_j0[2] = {at[0] + j0 * nr, at[1] + j0 * nr};
        if (j0 < j1) {
            int lo[SKL_NR_MAX], hi[SKL_NR_MAX];
            dz_panel(w, block, tile, panel, j0, j1 - j0, from_j0);
            int masked = skl_panel_mask(run, block, panel, tile, lo, hi);
            for (int i = block->n - panel * nr; i < nr; i++) lo[i] = hi[i] = 0, masked = 1; /* lanes without a row */
            if (masked) /* 0, also when the row is NaN */
                for (int side = 0; side < 2; side++)
                    if (run->work->grads & 1 << side)
                        skl_mask_panel(run, lo, hi, j1 - j0, 0, from_j0[side]);
            if (block->masked)
                skl_hide_keys(run, block, panel, tile, 0, from_j0);
        }
        for (int side = 0; side < 2; side++)
            if ((run->work->grads & 1 << side) && live[side])
                count[side] += mark_panel(run, block, panel, side, j0, j1, at[side],
                                          live[side] + panel * SKL_STRIPS_MAX,
                                          w->scratch.entries[side] + panel * SKL_BK);
    }
}

float *skl_sum_of_columns(const struct skl_work *w, const struct skl_block *block, int side, int64_t column,
                          int64_t *stride)
{
    const struct skl_work_side *s = &w->side[side];
    struct skl_owner b = skl_b_of_block(w, block, side, s->member);
    *stride = block->db[side] ? s->dim : s->grad_b.stride[2];
    if (block->db[side])
        return block->db[side] + column * s->dim;
    return skl_operand_at(&s->grad_b, b.batch, b.head, b.column + column);
}

static struct skl_soon soon_logits(const float *y, int64_t n)
{
    return (struct skl_soon){.at = (const char *)y, .rows = y ? 1 : 0, .bytes = (int)n * (int)sizeof *y};
}

/* Where a tile's sums are made, for columns that are neighbours in db; listed keys are not. */
static float *sums_of_tile(const struct skl_worker *w, const struct skl_block *block, int side, int64_t tile,
                           int64_t *stride)
{
    if (!block->keys)
        return skl_sum_of_columns(w->run->work, block, side, tile * block->bk, stride);
    *stride = w->run->work->side[side].dim;
    return w->scratch.db;
}

/* dz as the product for db reads it: itself, or its parts. */
static const void *dz_for_columns(const struct skl_worker *w, const struct skl_block *block, int64_t tile, int side,
                                  const float *dz)
{
    const struct skl_run *run = w->run;
    const struct skl_kernels *k = run->plan.kernels;
    const struct skl_products *products = run->plan.products[side];
    if (!products->parts_of_dz)
        return dz;
    for (int panel = 0, j0, j1; panel < skl_panels_in_use(run, block); panel++) {
        skl_tile_range(run, block, panel, tile, &j0, &j1);
        products->parts_of_dz(j0, (j1 + k->mr - 1) / k->mr * k->mr, dz + panel * SKL_BK * k->nr,
                              w->scratch.parts + panel * products->parts_bytes);
    }
    return w->scratch.parts;
}

/* Step i of dim of db[j] += sum_i dz[i,j] a[i]. */
static void add_step(const struct skl_worker *w, const struct skl_block *block, int64_t tile, int side, int64_t pack,
                     int64_t i, const float *dz, const unsigned char *live, struct skl_soon soon)
{
    const struct skl_run *run = w->run;
    const struct skl_kernels *k = run->plan.kernels;
    int64_t dim = run->work->side[side].dim, d = i * k->nr, stride;
    float *db = sums_of_tile(w, block, side, tile, &stride);
    const char *rows = block->pack[side] + pack * run->plan.products[side]->block_bytes(dim, run->plan.block_rows);
    run->plan.products[side]->grad_columns(skl_tile_columns(block, tile), skl_panels_in_use(run, block), live, dz, rows,
                                           run->plan.block_rows, d, soon, dim - d < k->nr ? (int)(dim - d) : k->nr,
                                           db + d, stride);
}

/* All of it, for keys in place. */
static void add_to_keys(const struct skl_worker *w, const struct skl_block *block, int64_t tile, int side,
                        const float *dz)
{
    const struct skl_run *run = w->run;
    int64_t dim = run->work->side[side].dim, panel_size = (int64_t)SKL_BK * run->plan.kernels->nr, stride;
    float *db = skl_sum_of_columns(run->work, block, side, 0, &stride);
    for (int panel = 0; panel < skl_panels_in_use(run, block); panel++) {
        struct skl_key_list lists[SKL_NR_MAX];
        struct skl_columns keys = skl_with_lists(run, block, panel, tile, (struct skl_columns){0}, lists);
        run->plan.products[side]->grad_keys(keys, dim, dz + panel * panel_size, block->pack[side], panel, db, stride);
    }
}

/* All of it; 'next' is the tile of logits that will be wanted after this one. Before it da will want the tile's
 * columns, which a sweep has read long ago. */
void skl_add_to_columns(const struct skl_worker *w, const struct skl_block *block, int64_t tile, int side, int64_t pack,
                        const float *dz, const unsigned char *live, const float *next)
{
    const struct skl_run *run = w->run;
    const struct skl_work_side *s = &run->work->side[side];
    int64_t member = s->scorer == SKL_INNER ? s->member : pack, steps = skl_dim_steps(run->work, &run->plan, side);
    int64_t numbers = (int64_t)skl_panels_in_use(run, block) * SKL_BK * run->plan.kernels->nr;
    if (block->keys)
        memset(w->scratch.db, 0, (size_t)(skl_tile_columns(block, tile) * s->dim) * sizeof(float));
    dz = dz_for_columns(w, block, tile, side, dz);
    for (int64_t i = 0; i < steps; i++) {
        int64_t first = numbers * i / steps;
        struct skl_soon logits = soon_logits(next ? next + first : NULL, numbers * (i + 1) / steps - first);
        struct skl_soon soon = skl_next_columns(run, block, side, member, tile, 0, (int)i, (int)steps);
        if (!block->keys && (!run->plan.by_tile || run->plan.recompute || !s->grad_a.data || !soon.rows))
            soon = logits;
        else if (!block->keys)
            soon.then = &logits;
        add_step(w, block, tile, side, pack, i, dz, live, soon);
    }
    if (block->keys)
        skl_scatter_keys(w, block, tile, side, w->scratch.db);
}

static void add_to_bias(const struct skl_run *run, struct skl_block *block, int64_t tile, int side, const float *dz)
{
    int nr = run->plan.kernels->nr;
    for (int panel = 0, j0, j1; panel * nr < block->n; panel++) {
        skl_tile_range(run, block, panel, tile, &j0, &j1);
        run->plan.kernels->sum_rows(j1 - j0, dz + (panel * SKL_BK + j0) * nr,
                                    block->dbias[side] + tile * block->bk + j0);
    }
}

/* dz as the products read it: what needs it in f32 has had it. */
static void split_dz(const struct skl_worker *w, const struct skl_block *block, int64_t tile, int side, float *dz)
{
    const struct skl_run *run = w->run;
    const struct skl_kernels *k = run->plan.kernels;
    if (!run->plan.products[side]->split)
        return;
    for (int panel = w->from, j0, j1; panel < w->to && panel * k->nr < block->n; panel++) {
        skl_tile_range(run, block, panel, tile, &j0, &j1);
        run->plan.products[side]->split(j0, (j1 + k->mr - 1) / k->mr * k->mr, dz + panel * SKL_BK * k->nr);
    }
}

/* dz of a tile as the products read it: of panels that see whole strips at once, of others as ever. The side without dz
 * has room for the strips of scores under way, of both sides. */
static void make_dz_beside(const struct skl_worker *w, struct skl_block *block, int64_t tile, float *const y[2],
                           unsigned char *const live[2])
{
    const struct skl_run *run = w->run;
    int panels = skl_panels_in_use(run, block), side = run->work->grads - 1, nr = run->plan.kernels->nr;
    float *const strips[2] = {y[!side], y[!side] + 2 * run->plan.strip * nr};
    struct skl_columns columns[2];
    for (int i = 0; i < 2; i++)
        columns[i] = skl_fetch_columns(run, block, i, run->work->side[i].member, tile, 0, (int)run->work->side[i].dim,
                                       w->scratch.columns[i]);
    for (int panel = 0, end, j0, j1; panel < panels; panel = end) {
        end = skl_alike_panels(run, block, tile, panel, panels, &j0, &j1);
        if (end > panel && (j1 - j0) % run->plan.strip == 0) {
            struct skl_factor factor[2];
            skl_factors_of_panel(run, block, panel, tile, columns, factor);
            memset(live[side] + panel * SKL_STRIPS_MAX, 0, (size_t)(end - panel) * SKL_STRIPS_MAX);
            run->plan.products[side]->sweep_dz(j1 - j0, end - panel, factor, j0, run->work->grads,
                                               &block->factors[panel], strips, y[side] + (int64_t)panel * SKL_BK * nr,
                                               live[side] + panel * SKL_STRIPS_MAX);
        } else {
            struct skl_worker one = *w;
            int64_t count[2];
            one.from = panel, one.to = end = panel + 1;
            skl_score_tile(&one, block, 0, tile, y, (int64_t)SKL_BK * nr, NULL);
            dz_tile(&one, block, tile, y, live, count);
            split_dz(&one, block, tile, side, y[side]);
        }
    }
}

static void make_dz(const struct skl_worker *w, struct skl_block *block, int64_t tile, float *const y[2],
                    unsigned char *const live[2], int64_t count[2])
{
    if (w->run->plan.recompute)
        skl_score_tile(w, block, 0, tile, y, (int64_t)SKL_BK * w->run->plan.kernels->nr, NULL);
    dz_tile(w, block, tile, y, live, count);
}

void skl_grad_columns(const struct skl_worker *w, struct skl_block *block, int64_t slab, int64_t first, int64_t last)
{
    const struct skl_plan *plan = &w->run->plan;
    int64_t tile_size = (int64_t)SKL_BK * w->run->plan.kernels->nr * plan->panels, count[2];
    for (int64_t tile = first; tile < last; tile++) {
        float *const y[2] = {block->y[0] + (tile - slab) * tile_size, block->y[1] + (tile - slab) * tile_size};
        int64_t marks = (tile - slab) * plan->panels * SKL_STRIPS_MAX;
        unsigned char *const live[2] = {block->live[0] ? block->live[0] + marks : NULL,
                                        block->live[1] ? block->live[1] + marks : NULL};
        if (!skl_sees_tile(block, tile))
            continue;
        make_dz(w, block, tile, y, live, count);
        for (int side = 0; side < 2; side++) {
            if (block->dbias[side])
                add_to_bias(w->run, block, tile, side, y[side]);
            if (w->run->work->grads & 1 << side)
                split_dz(w, block, tile, side, y[side]);
            if (w->run->work->side[side].grad_b.data)
                skl_add_to_columns(w, block, tile, side, 0, y[side], live[side],
                                   plan->recompute || tile + 1 == last ? NULL : y[!side] + tile_size);
        }
    }
}

/* Does the tile have columns that only some rows see, or a first or last strip that is not full? Products take whole
 * strips, of plan.strip columns, and dz is 0 for those that nobody sees. */
static int masked_tile(const struct skl_run *run, const struct skl_block *block, int64_t tile)
{
    int lo[SKL_NR_MAX], hi[SKL_NR_MAX], masked = 0, nr = run->plan.kernels->nr;
    for (int panel = 0, j0, j1; !masked && panel * nr < block->n; panel++) {
        skl_tile_range(run, block, panel, tile, &j0, &j1);
        masked = skl_panel_mask(run, block, panel, tile, lo, hi) || j0 % run->plan.strip || j1 % run->plan.strip;
    }
    return masked;
}

/* Entries d0..d0+d-1 of the columns, for da. They are cleaned if some rows do not see all columns: for those rows dz is
 * 0, and 0 times a column's NaN or infinity must stay 0. Where a row does see such a column, its dz is NaN anyway.
 * (pack_block_row does the same for the rows' operand.) */
static struct skl_columns columns_for_rows(const struct skl_worker *w, struct skl_block *block, int64_t tile, int side,
                                           int64_t d0, int d)
{
    const struct skl_run *run = w->run;
    int masked = run->plan.queries ? block->masked : skl_ranged(run->work) && masked_tile(run, block, tile);
    return skl_fetch_columns_back(run, block, side, run->work->side[side].member, tile, d0, d, masked,
                                  w->scratch.columns[0]);
}

/* Listed keys' sums of the next tile, the panel's part of them. */
static struct skl_soon soon_sums(const struct skl_run *run, const struct skl_block *block, int side, int64_t tile,
                                 int panel)
{
    struct skl_soon soon = {0};
    int64_t stride;
    int panels = skl_panels_in_use(run, block);
    if (!run->work->side[side].grad_b.data || tile * block->bk >= block->columns)
        return soon;
    int n = skl_tile_columns(block, tile), first = n * panel / panels;
    soon.at = (const char *)skl_sum_of_columns(run->work, block, side, 0, &stride);
    soon.stride = stride * (int64_t)sizeof(float);
    soon.keys = block->keys + tile * block->bk + first;
    soon.rows = n * (panel + 1) / panels - first, soon.bytes = (int)run->work->side[side].dim * (int)sizeof(float);
    return soon;
}

/* By slabs a task goes on to the same entries of the next tile's columns: panel 'part' of 'parts' asks for its share of
 * them, then for what 'then' says. */
static struct skl_soon soon_columns(const struct skl_run *run, const struct skl_block *block, int side, int64_t tile,
                                    int64_t d0, int d, int part, int parts, const struct skl_soon *then)
{
    const struct skl_work_side *s = &run->work->side[side];
    struct skl_soon soon = skl_next_columns(run, block, side, s->member, tile, d0, part, parts);
    soon.bytes = d * (int)skl_size_of(s->b.dtype);
    soon.then = then;
    return soon.rows ? soon : *then;
}

/* da[i][d0..d0+d-1] (+)= sum_j dz[i,j] b[j] over a tile; da is that of entry 0. 'next'
 * has, panel for panel as dz, what will be wanted after it. */
void skl_grad_rows_tile(const struct skl_worker *w, struct skl_block *block, int64_t tile, int side, int64_t d0, int d,
                        int from, int to, const float *dz, const float *next, const unsigned char *live, int add,
                        float *da)
{
    const struct skl_run *run = w->run;
    const struct skl_kernels *k = run->plan.kernels;
    int64_t dim = skl_da_entries(run->work, &run->plan, side), panel_size = (int64_t)SKL_BK * k->nr;
    struct skl_columns columns = columns_for_rows(w, block, tile, side, d0, d);
    int panels = skl_panels_in_use(run, block), end = to < panels ? to : panels;
    for (int panel = from, j0, j1; panel < end; panel++) {
        struct skl_soon scores = soon_logits(next ? next + panel * panel_size : NULL, panel_size), soon = scores;
        if (block->keys)
            soon = soon_sums(run, block, side, tile + 1, panel);
        else if (!run->plan.by_tile)
            soon = soon_columns(run, block, side, tile + 1, d0, d, panel - from, end - from, &scores);
        skl_tile_range(run, block, panel, tile, &j0, &j1);
        int strips = (j1 - j0 + k->mr - 1) / k->mr;
        struct skl_key_list lists[SKL_NR_MAX];
        columns = skl_with_lists(run, block, panel, tile, columns, lists);
        run->plan.products[side]->grad_rows(strips * k->mr, d, live + panel * SKL_STRIPS_MAX + j0 / k->mr, columns, j0,
                                            dz + panel * panel_size + j0 * k->nr, soon, add,
                                            da + (panel * dim + d0) * k->nr);
    }
}

void skl_grad_rows(const struct skl_worker *w, struct skl_block *block, int64_t slab, int64_t last, int side,
                   int64_t d0, int d, int from, int to)
{
    const struct skl_plan *plan = &w->run->plan;
    int64_t panel_size = (int64_t)SKL_BK * w->run->plan.kernels->nr;
    for (int64_t tile = slab; tile < last; tile++) {
        int64_t at = (tile - slab) * plan->panels;
        if (skl_sees_tile(block, tile))
            skl_grad_rows_tile(w, block, tile, side, d0, d, from, to, block->y[side] + at * panel_size,
                               block->y[side] + (at + 1) * panel_size, block->live[side] + at * SKL_STRIPS_MAX, 1,
                               block->da[side]);
    }
}

/* ------------------------------------------------------------------------------------------------ by tile --- */

/* Both products of a tile's dz of one side. */
static void grad_tile(const struct skl_worker *w, struct skl_block *block, int64_t tile, int side, float *const y[2],
                      int few, int more, int add, float *da)
{
    const struct skl_run *run = w->run;
    const struct skl_work_side *s = &run->work->side[side];
    int64_t tile_size = (int64_t)SKL_BK * run->plan.kernels->nr * run->plan.panels;
    const unsigned char *live = w->scratch.live[side];
    int kept = !run->plan.recompute && more;
    if (block->dbias[side])
        add_to_bias(run, block, tile, side, y[side]);
    if (few)
        skl_list_entries(w, block, side, y[side]);
    else if (!run->plan.dz_beside)
        split_dz(w, block, tile, side, y[side]);
    if (s->grad_b.data && few)
        skl_add_listed_to_columns(w, block, tile, side);
    else if (s->grad_b.data && run->plan.in_place)
        add_to_keys(w, block, tile, side, y[side]);
    else if (s->grad_b.data)
        skl_add_to_columns(w, block, tile, side, 0, y[side], live, kept ? y[!side] + tile_size : NULL);
    if (s->grad_a.data && few)
        skl_add_listed_to_rows(w, block, tile, side, add, da);
    else if (s->grad_a.data)
        skl_grad_rows_tile(w, block, tile, side, 0, (int)s->dim, 0, run->plan.panels, y[side],
                           kept ? y[side] + tile_size : NULL, live, add, da);
}

void skl_grad_chunk(const struct skl_worker *w, struct skl_block *block, int64_t chunk)
{
    const struct skl_run *run = w->run;
    int64_t tile_size = (int64_t)SKL_BK * run->plan.kernels->nr * run->plan.panels, first, last, count[2];
    skl_chunk_range(block, chunk, &first, &last);
    for (int64_t tile = first; tile < last; tile++) {
        float *y[2];
        for (int side = 0; side < 2; side++)
            y[side] = run->plan.recompute ? w->scratch.y[side] : block->y[side] + (tile - block->kept_from) * tile_size;
        if (run->plan.dz_beside)
            make_dz_beside(w, block, tile, y, w->scratch.live);
        else
            make_dz(w, block, tile, y, w->scratch.live, count);
        for (int side = 0; side < 2; side++) {
            int few = run->work->skip_below > 0 && !run->plan.queries &&
                      count[side] * SKL_LISTED <= (int64_t)block->bk * block->n;
            float *da = block->da[side] ? block->da[side] + chunk * skl_da_size(run->work, &run->plan, side) : NULL;
            if ((run->work->grads & 1 << side) && run->work->side[side].scorer == SKL_INDEX)
                skl_grad_index(w, block, chunk, tile, side, y[side], tile > first);
            else if (run->work->grads & 1 << side)
                grad_tile(w, block, tile, side, y, few, tile + 1 < last, tile > first, da);
        }
    }
}

/* ---------------------------------------------------------------------------------- by tile, in two phases --- */

/* A tile of the block's kept scores or dz, and its marks. */
static void kept_tile(const struct skl_run *run, const struct skl_block *block, int64_t tile, float *y[2],
                      unsigned char *live[2])
{
    int64_t at = (tile - block->kept_from) * run->plan.panels;
    for (int side = 0; side < 2; side++) {
        y[side] = block->y[side] + at * SKL_BK * run->plan.kernels->nr;
        live[side] = block->live[side] ? block->live[side] + at * SKL_STRIPS_MAX : NULL;
    }
}

void skl_grad_chunk_rows(const struct skl_worker *w, struct skl_block *block, int64_t chunk)
{
    const struct skl_run *run = w->run;
    int64_t first, last, count[2];
    skl_chunk_range(block, chunk, &first, &last);
    for (int64_t tile = first; tile < last; tile++) {
        float *y[2];
        unsigned char *live[2];
        kept_tile(run, block, tile, y, live);
        make_dz(w, block, tile, y, live, count);
        for (int side = 0; side < 2; side++) {
            const struct skl_work_side *s = &run->work->side[side];
            if (run->work->grads & 1 << side)
                split_dz(w, block, tile, side, y[side]);
            if (s->grad_a.data)
                skl_grad_rows_tile(w, block, tile, side, 0, (int)s->dim, w->from, w->to, y[side], NULL, live[side],
                                   tile > first, block->da[side] + chunk * skl_da_size(run->work, &run->plan, side));
        }
    }
}

void skl_grad_tile_columns(const struct skl_worker *w, struct skl_block *block, int64_t tile, int64_t step)
{
    int64_t of_p = skl_dim_steps(w->run->work, &w->run->plan, 0);
    int side = step >= of_p;
    float *y[2];
    unsigned char *live[2];
    if (!skl_sees_tile(block, tile))
        return;
    kept_tile(w->run, block, tile, y, live);
    add_step(w, block, tile, side, 0, side ? step - of_p : step, dz_for_columns(w, block, tile, side, y[side]),
             live[side], (struct skl_soon){0});
}
