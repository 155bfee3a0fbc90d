/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of keys that are used where they lie (kernels/products_keys.h). Each query of a block has a list of its own, and
 * each lane of a tile its own query's keys. A tile is a range of keys, so wide that no list has more than bk of them in
 * it: its line j has the j-th key of each list there, and lists with fewer keys end before the last line.
 *
 *     listed   [lists][K]           keys in order, each once
 *     starts   [tiles + 1][lists]   where each range begins in each list
 *
 * So a key is in one tile only, whoever lists it: a task owns the db of its tiles.
 */
#include "run.h"

enum {
    BK = 96,   /* keys of a list in a tile, at most: ranges of keys of both sides are to stay in L2 ... */
    SPARSE = 8 /* ... unless a list has less than one key in so many, so that queries share few: then SKL_BK */
};

/* Tiles of lists that stay in place. All but the last have a list with as many keys as a tile has room for. */
void skl_cut_in_place(struct skl_plan *plan)
{
    int64_t bk = plan->listed < plan->columns / SPARSE ? SKL_BK : BK;
    int64_t full = plan->columns / bk, of_lists = plan->lists * (plan->listed / bk);
    plan->bk = (int)bk, plan->strip = plan->kernels->mr;
    plan->tiles = (full < of_lists ? full : of_lists) + 1;
}

/* The list of each row, of which neighbours share one. Returns how many lists there are. */
static int own_lists(const struct skl_worker *w, struct skl_block *block)
{
    const struct skl_run *run = w->run;
    int lists = 0;
    for (int from = 0, to; from < block->n; from = to, lists++) {
        int32_t *keys = block->listed + lists * run->plan.listed, n = 0;
        for (to = from; to < block->n && skl_same_list(run, block, from, to); to++) block->list_of[to] = lists;
        skl_mark_keys(w, block, from);
        for (int64_t i = 0; 64 * i < block->segment.columns; i++)
            for (uint64_t left = w->scratch.bits[i]; left; left &= left - 1)
                keys[n++] = (int32_t)(64 * i + __builtin_ctzll(left));
        block->list_length[lists] = n;
    }
    return lists;
}

/* The ends of tiles in all lists: a tile ends with the key before which some list has bk keys in it. */
static int64_t cut_lists(const struct skl_run *run, struct skl_block *block, int lists)
{
    const struct skl_plan *plan = &run->plan;
    int64_t tiles = 0;
    for (int more = 1; more; tiles += more) {
        int32_t end = INT32_MAX;
        int32_t *from = block->starts + tiles * skl_lists(plan), *to = from + skl_lists(plan);
        more = 0;
        for (int l = 0; l < lists; l++) {
            from[l] = tiles ? from[l] : 0;
            more |= from[l] < block->list_length[l];
            if (from[l] + plan->bk < block->list_length[l] &&
                block->listed[l * plan->listed + from[l] + plan->bk] < end)
                end = block->listed[l * plan->listed + from[l] + plan->bk];
        }
        for (int l = 0; more && l < lists; l++) {
            const int32_t *keys = block->listed + l * plan->listed;
            for (to[l] = from[l]; to[l] < block->list_length[l] && keys[to[l]] < end;) to[l]++;
        }
    }
    return tiles;
}

static int keys_of_row(const struct skl_plan *plan, const struct skl_block *block, int row, int64_t tile)
{
    const int32_t *from = block->starts + tile * skl_lists(plan) + block->list_of[row];
    return from[skl_lists(plan)] - from[0];
}

static void count_lines(const struct skl_run *run, struct skl_block *block, int64_t tiles)
{
    const struct skl_plan *plan = &run->plan;
    for (int64_t tile = 0; tile < tiles; tile++)
        for (int panel = 0; panel < skl_panels_in_use(run, block); panel++) {
            int32_t *lines = &block->lines[tile * plan->panels + panel];
            *lines = 0;
            for (int i = panel * plan->kernels->nr; i < block->n && i < (panel + 1) * plan->kernels->nr; i++) {
                int n = keys_of_row(plan, block, i, tile);
                *lines = n > *lines ? n : *lines;
            }
        }
}

int64_t skl_list_in_place(const struct skl_worker *w, struct skl_block *block)
{
    int64_t tiles = cut_lists(w->run, block, own_lists(w, block));
    count_lines(w->run, block, tiles);
    return tiles;
}

void skl_lines_of_panel(const struct skl_run *run, const struct skl_block *block, int panel, int64_t tile, int *lo,
                        int *hi)
{
    int nr = run->plan.kernels->nr;
    for (int i = 0; i < nr; i++) {
        int row = panel * nr + i;
        lo[i] = 0;
        hi[i] = row < block->n ? keys_of_row(&run->plan, block, row, tile)
                               : block->lines[tile * run->plan.panels + panel];
    }
}

struct skl_columns skl_with_lists(const struct skl_run *run, const struct skl_block *block, int panel, int64_t tile,
                                  struct skl_columns columns, struct skl_key_list *lists)
{
    const struct skl_plan *plan = &run->plan;
    int nr = plan->kernels->nr, first = panel * nr, end = first + nr < block->n ? first + nr : block->n;
    if (!plan->in_place)
        return columns;
    columns.lists = lists, columns.count = 0;
    for (int row = first, next; row < end; row = next) {
        int l = block->list_of[row], n = keys_of_row(plan, block, row, tile);
        int32_t start = block->starts[tile * skl_lists(plan) + l];
        for (next = row + 1; next < end && block->list_of[next] == l;) next++;
        if (n)
            lists[columns.count++] = (struct skl_key_list){.keys = block->listed + l * plan->listed + start,
                                                           .n = n,
                                                           .left = block->list_length[l] - start,
                                                           .lane = row - first,
                                                           .lanes = next - row};
    }
    return columns;
}
