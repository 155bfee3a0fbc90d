/* SPDX-License-Identifier: Apache-2.0
 *
 * The scorer of a side whose logits are inner products: scores x = <a, b> + bias of a tile of columns for the panels of
 * a block, shaped by softcap and mask. What undoes it, dz into da and db, is in grad.c. A side of several heads sums
 * them up in mixture.c, out of the same products.
 */
#include "run.h"

#include <math.h>
#include <string.h>

int skl_tile_columns(const struct skl_block *block, int64_t tile)
{
    int64_t left = block->end - tile * block->bk;
    return left < block->bk ? (int)left : block->bk;
}

/* Entry d0 of a column of the b that the block's rows see, of those of a member. */
static const char *column_at(const struct skl_work *w, const struct skl_block *block, int side, int64_t member,
                             int64_t column, int64_t d0)
{
    const struct skl_work_side *s = &w->side[side];
    struct skl_owner b = skl_b_of_block(w, block, side, member);
    return (const char *)skl_operand_at(&s->b, b.batch, b.head, b.column + column) + d0 * skl_size_of(s->b.dtype);
}

/* Where a tile's columns are, and their stride: in b itself, or, of listed keys, side by side behind the pack's own
 * room. */
static const char *tile_at(const struct skl_run *run, const struct skl_block *block, int side, int64_t member,
                           int64_t tile, int64_t d0, int k, void *pack, int64_t *stride)
{
    const struct skl_operand *b = &run->work->side[side].b;
    int64_t bytes = k * skl_size_of(b->dtype), step = b->stride[2] * skl_size_of(b->dtype);
    *stride = b->stride[2];
    if (!block->keys)
        return column_at(run->work, block, side, member, tile * block->bk, d0);
    const char *from = column_at(run->work, block, side, member, 0, d0);
    const int64_t *keys = block->keys + tile * block->bk;
    char *to = (char *)pack + skl_pack_bytes(&run->plan);
    for (int j = 0; j < skl_tile_columns(block, tile); j++)
        memcpy(to + j * bytes, from + keys[j] * step, (size_t)bytes);
    *stride = k;
    return to;
}

/* Keys where they lie, all of dim; whose they are is said of each panel. */
static struct skl_columns keys_in_place(const struct skl_run *run, const struct skl_block *block, int side,
                                        int64_t member)
{
    const struct skl_operand *b = &run->work->side[side].b;
    return (struct skl_columns){
        .at = column_at(run->work, block, side, member, 0, 0), .ld = b->stride[2], .dtype = b->dtype};
}

struct skl_columns skl_fetch_columns(const struct skl_run *run, const struct skl_block *block, int side, int64_t member,
                                     int64_t tile, int64_t d0, int k, void *pack)
{
    int64_t stride;
    if (run->plan.in_place)
        return keys_in_place(run, block, side, member);
    const char *b = tile_at(run, block, side, member, tile, d0, k, pack, &stride);
    return run->plan.products[side]->columns(skl_tile_columns(block, tile), k, b, run->work->side[side].b.dtype, stride,
                                             pack);
}

struct skl_columns skl_fetch_columns_back(const struct skl_run *run, const struct skl_block *block, int side,
                                          int64_t member, int64_t tile, int64_t d0, int k, int clean, void *pack)
{
    int64_t stride;
    if (run->plan.in_place)
        return keys_in_place(run, block, side, member);
    const char *b = tile_at(run, block, side, member, tile, d0, k, pack, &stride);
    return run->plan.products[side]->columns_back(skl_tile_columns(block, tile), k, b, run->work->side[side].b.dtype,
                                                  stride, clean, pack);
}

/* What panel 'part' of 'parts' is to prefetch while it works on the present tile: its share of the columns that will be
 * packed next. These are short and far apart, which the hardware does not foresee. */
struct skl_soon skl_next_columns(const struct skl_run *run, const struct skl_block *block, int side, int64_t member,
                                 int64_t tile, int64_t d0, int part, int parts)
{
    const struct skl_work *w = run->work;
    const struct skl_work_side *s = &w->side[side];
    struct skl_soon soon = {0};
    int64_t size = skl_size_of(s->b.dtype), left = s->dim - d0;
    if (tile * block->bk >= block->last_column || !s->dim || run->plan.in_place)
        return soon;
    int n = skl_tile_columns(block, tile), first = n * part / parts, kc = run->plan.products[side]->kc;
    soon.at = column_at(w, block, side, member, block->keys ? 0 : tile * block->bk + first, d0);
    soon.keys = block->keys ? block->keys + tile * block->bk + first : NULL;
    soon.stride = s->b.stride[2] * size;
    soon.rows = n * (part + 1) / parts - first;
    soon.bytes = (int)((left < kc ? left : kc) * size);
    soon.stream = parts == 1 && !soon.keys && soon.stride == soon.bytes && n == block->bk && s->b.dtype == SKL_F32;
    return soon;
}

/* y starts as the bias of its column, the same for every row: n columns from 'first' on. */
static void start_from_bias(const struct skl_run *run, int side, int64_t first, int n, float *y)
{
    const struct skl_work_side *s = &run->work->side[side];
    const struct skl_kernels *kernels = run->plan.kernels;
    int nr = kernels->nr;
    for (int j = 0; j < n; j++) {
        float bias;
        kernels->convert(1, s->bias.data + skl_size_of(s->bias.dtype) * (first + j) * s->bias.stride, s->bias.dtype,
                         &bias);
        bias *= (float)s->sign;
        for (int i = 0; i < nr; i++) y[j * nr + i] = bias;
    }
}

/* The products of columns j0..j1-1 of a tile; y is where that of j0 goes. */
static void score_columns(const struct skl_run *run, const struct skl_block *block, int side, int64_t pack, int panel,
                          int64_t tile, int j0, int j1, int64_t d0, int k, struct skl_columns columns,
                          struct skl_soon soon, float *y)
{
    const struct skl_work_side *s = &run->work->side[side];
    const struct skl_products *products = run->plan.products[side];
    int add = d0 > 0;
    if (s->bias.data && !add) {
        start_from_bias(run, side, tile * block->bk + j0, j1 - j0, y);
        add = 1;
    }
    const char *rows = block->panel[side] + (panel * skl_packs(s) + pack) * products->panel_bytes(s->dim);
    struct skl_key_list lists[SKL_NR_MAX];
    columns = skl_with_lists(run, block, panel, tile, columns, lists);
    products->logits(j1 - j0, k, columns, j0, rows, d0, soon, add, y);
}

void skl_score_panel(const struct skl_run *run, const struct skl_block *block, int side, int64_t pack, int panel,
                     int64_t tile, int64_t d0, int k, struct skl_columns columns, struct skl_soon soon, float *y)
{
    int j0, j1;
    skl_tile_range(run, block, panel, tile, &j0, &j1);
    score_columns(run, block, side, pack, panel, tile, j0, j1, d0, k, columns, soon, y + j0 * run->plan.kernels->nr);
}

/* Softcap, then -inf for what single rows of the panel do not see. Mixtures have had their softcap. */
static void shape_panel(const struct skl_run *run, const struct skl_block *block, int panel, int64_t tile, int n,
                        const int *lo, const int *hi, int masked, float *const y[2])
{
    const struct skl_work *w = run->work;
    for (int side = 0; side < 2; side++) {
        if (!w->side[side].dim)
            continue;
        if (w->side[side].softcap > 0 && w->side[side].scorer == SKL_INNER)
            run->plan.kernels->softcap(n, y[side], (float)w->side[side].inner, w->side[side].softcap);
        if (masked)
            skl_mask_panel(run, lo, hi, n, -INFINITY, y[side]);
    }
    if (block->masked)
        skl_hide_keys(run, block, panel, tile, -INFINITY, y);
}

/* Entries d0..d0+k-1 of the next panel's rows: with a long dim the panels of a block lie in L3, and each chunk of dim
 * begins anew with the first. */
static struct skl_soon soon_rows(const struct skl_run *run, const struct skl_block *block, int side, int panel,
                                 int64_t d0, int k)
{
    int64_t dim = run->work->side[side].dim, bytes = run->plan.products[side]->panel_bytes(dim);
    int more = panel + 1 < skl_panels_in_use(run, block);
    return (struct skl_soon){.at = block->panel[side] + (panel + more) * bytes + bytes / dim * d0,
                             .rows = more,
                             .bytes = (int)(bytes / dim * k)};
}

/* A side's scores of a tile for all panels, y[panel][SKL_BK][nr]. Where dim does not fit in one column tile the sum
 * over dim goes through memory, a column tile at a time for all panels. */
static void score_side(const struct skl_worker *w, const struct skl_block *block, int side, int64_t tile, float *y,
                       int64_t panel_stride)
{
    const struct skl_run *run = w->run;
    const struct skl_work_side *s = &run->work->side[side];
    int panels = skl_panels_in_use(run, block), kc = run->plan.products[side]->kc;
    int after = run->work->side[!side].dim ? !side : side; /* whose columns follow, where there is a teacher or none */
    for (int64_t d0 = 0; d0 < s->dim; d0 += kc) {
        int k = s->dim - d0 < kc ? (int)(s->dim - d0) : kc, more = s->dim - d0 > k;
        struct skl_columns columns = skl_fetch_columns(run, block, side, s->member, tile, d0, k, w->scratch.columns[0]);
        for (int panel = 0; panel < panels; panel++) {
            struct skl_soon soon = more ? skl_next_columns(run, block, side, s->member, tile, d0 + k, panel, panels)
                                        : skl_next_columns(run, block, after, run->work->side[after].member,
                                                           after > side ? tile : tile + 1, 0, panel, panels);
            struct skl_soon rows = soon_rows(run, block, side, panel, d0, k);
            if (soon.rows)
                soon.then = &rows;
            else
                soon = rows;
            skl_score_panel(run, block, side, 0, panel, tile, d0, k, columns, soon, y + panel * panel_stride);
        }
    }
}

/* Of what is to be asked for, 'part' of 'parts'. */
static struct skl_soon part_of(struct skl_soon soon, int part, int parts)
{
    int first = soon.rows * part / parts, last = soon.rows * (part + 1) / parts;
    if (!soon.rows)
        return soon;
    soon.keys = soon.keys ? soon.keys + first : NULL;
    soon.at += soon.keys ? 0 : first * soon.stride;
    soon.rows = last - first;
    return soon;
}

/* Both sides' scores of a slice; 'soon' is what each asks for meanwhile. */
static void score_slice(const struct skl_run *run, const struct skl_block *block, int panel, int64_t tile, int j,
                        int end, const struct skl_columns columns[2], const struct skl_soon soon[2], float *const y[2])
{
    for (int side = 0; side < 2; side++)
        if (run->work->side[side].dim)
            score_columns(run, block, side, 0, panel, tile, j, end, 0, (int)run->work->side[side].dim, columns[side],
                          soon[side], y[side]);
}

int skl_alike_panels(const struct skl_run *run, const struct skl_block *block, int64_t tile, int from, int to, int *j0,
                     int *j1)
{
    int lo[SKL_NR_MAX], hi[SKL_NR_MAX], a, b, panel = from;
    skl_tile_range(run, block, from, tile, j0, j1);
    if (*j0 % run->plan.strip || *j1 - *j0 < run->plan.strip)
        return from;
    for (; panel < to; panel++) {
        skl_tile_range(run, block, panel, tile, &a, &b);
        if (a != *j0 || b != *j1 || skl_panel_mask(run, block, panel, tile, lo, hi))
            break;
    }
    return panel;
}

void skl_factors_of_panel(const struct skl_run *run, const struct skl_block *block, int panel, int64_t tile,
                          const struct skl_columns columns[2], struct skl_factor factor[2])
{
    for (int side = 0; side < 2; side++) {
        const struct skl_work_side *s = &run->work->side[side];
        factor[side] = (struct skl_factor){
            .columns = columns[side],
            .panel = block->panel[side] + panel * run->plan.products[side]->panel_bytes(s->dim),
            .dim = (int)s->dim,
            .soon = skl_next_columns(run, block, side, s->member, tile + 1, 0, 0, 1),
        };
    }
}

/* The first n columns, whole strips, of what panels from .. to - 1 see of a tile: scored and pushed at once. */
static void sweep_beside(const struct skl_run *run, struct skl_block *block, int64_t chunk, int from, int to,
                         int64_t tile, int j0, int n, const struct skl_columns columns[2], float *const y[2])
{
    struct skl_factor factor[2];
    skl_factors_of_panel(run, block, from, tile, columns, factor);
    run->plan.products[1]->sweep_kl(n, to - from, factor, j0, run->unit, run->plan.slack, y,
                                    skl_state_of(run, block, chunk, from));
}

/* A panel's tile slice by slice: scores, unless they have been made, softcap and mask, and what they are for. 'part' of
 * 'parts': which of the next tile's columns to ask for. Scores that need not stay are made in the same place, which is
 * in L1. */
static void score_and_use(const struct skl_worker *w, struct skl_block *block, int64_t chunk, int panel, int part,
                          int parts, int64_t tile, const struct skl_columns columns[2], float *const y[2], int stay,
                          int done, skl_panel_user *use)
{
    const struct skl_run *run = w->run;
    const struct skl_plan *plan = &run->plan;
    int nr = plan->kernels->nr, j0, j1, lo[SKL_NR_MAX], hi[SKL_NR_MAX];
    struct skl_soon next[2] = {{0}, {0}};
    skl_tile_range(run, block, panel, tile, &j0, &j1);
    if (j0 + done >= j1)
        return;
    int masked = skl_panel_mask(run, block, panel, tile, lo, hi);
    int slices = (j1 - 1) / plan->slice - j0 / plan->slice + 1;
    for (int side = 0; side < 2 && plan->one_panel; side++)
        next[side] = skl_next_columns(run, block, side, run->work->side[side].member, tile + 1, 0, part, parts);
    for (int j = j0 + done, k = 0, end; j < j1; j = end, k++) {
        end = skl_slice_end(plan, j, j1);
        struct skl_soon soon[2] = {part_of(next[0], k, slices), part_of(next[1], k, slices)};
        float *const at[2] = {y[0] + (stay ? j * nr : 0), y[1] + (stay ? j * nr : 0)};
        if (plan->one_panel)
            score_slice(run, block, panel, tile, j, end, columns, soon, at);
        shape_panel(run, block, panel, tile, end - j, lo, hi, masked, at);
        for (int i = 0; masked && i < nr; i++) lo[i] -= end - j, hi[i] -= end - j;
        if (use)
            use(w, block, chunk, panel, tile, j, at, end - j);
    }
}

void skl_score_tile(const struct skl_worker *w, struct skl_block *block, int64_t chunk, int64_t tile, float *const y[2],
                    int64_t panel_stride, skl_panel_user *use)
{
    const struct skl_run *run = w->run;
    int panels = skl_panels_in_use(run, block), to = w->to < panels ? w->to : panels;
    struct skl_columns columns[2] = {{0}, {0}};
    for (int side = 0; side < 2; side++) {
        const struct skl_work_side *s = &run->work->side[side];
        if (s->dim && run->plan.one_panel)
            columns[side] = skl_fetch_columns(run, block, side, s->member, tile, 0, (int)s->dim,
                                              w->scratch.columns[side]);
        else if (s->scorer == SKL_POOLED)
            skl_score_pooled(w, block, side, tile, y[side], panel_stride);
        else if (s->scorer != SKL_INNER)
            skl_score_heads(w, block, side, tile, y[side], panel_stride);
        else
            score_side(w, block, side, tile, y[side], panel_stride);
    }
    for (int panel = w->from; panel < to;) {
        int j0, j1, done = 0, end = panel + 1;
        int alike = run->plan.beside && use && !panel_stride ? skl_alike_panels(run, block, tile, panel, to, &j0, &j1)
                                                             : panel;
        if (alike > panel) {
            end = alike, done = (j1 - j0) / run->plan.strip * run->plan.strip;
            sweep_beside(run, block, chunk, panel, end, tile, j0, done, columns, y);
        }
        for (; panel < end; panel++) {
            float *const mine[2] = {y[0] + panel * panel_stride, y[1] + panel * panel_stride};
            score_and_use(w, block, chunk, panel, panel - w->from, to - w->from, tile, columns, mine, panel_stride > 0,
                          done, use);
        }
    }
}
