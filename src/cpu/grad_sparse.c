/* SPDX-License-Identifier: Apache-2.0
 * A tile of dz of which few entries count: the products go through lists of them, for db by column, for da by row. */
#include "run.h"

#include <string.h>

/* The entries of dz that count, by column and by row. */
void skl_list_entries(const struct skl_worker *w, const struct skl_block *block, int side, const float *dz)
{
    int nr = w->run->plan.kernels->nr, n = 0;
    const uint32_t *entries = w->scratch.entries[side];
    struct skl_lists c = w->scratch.by_column, r = w->scratch.by_row;
    memset(r.start, 0, (size_t)(w->run->plan.block_rows + 1) * sizeof *r.start);
    for (int j = 0; j < SKL_BK; j++) {
        c.start[j] = n;
        for (int panel = 0; panel * nr < block->n; panel++)
            for (uint32_t rows = entries[panel * SKL_BK + j]; rows; rows &= rows - 1) {
                int i = __builtin_ctz(rows);
                c.at[n] = (uint16_t)(panel * nr + i);
                c.x[n++] = dz[(panel * SKL_BK + j) * nr + i];
                r.start[panel * nr + i + 1]++;
            }
    }
    c.start[SKL_BK] = n;
    for (int i = 0; i < w->run->plan.block_rows; i++) r.start[i + 1] += r.start[i];
    for (int j = 0; j < SKL_BK; j++) /* start[i] moves to the end of row i; memmove below undoes it */
        for (int k = c.start[j]; k < c.start[j + 1]; k++) {
            int to = r.start[c.at[k]]++;
            r.at[to] = (uint16_t)j;
            r.x[to] = c.x[k];
        }
    memmove(r.start + 1, r.start, (size_t)w->run->plan.block_rows * sizeof *r.start);
    r.start[0] = 0;
}

void skl_add_listed_to_columns(const struct skl_worker *w, const struct skl_block *block, int64_t tile, int side)
{
    const struct skl_work *work = w->run->work;
    struct skl_lists c = w->scratch.by_column;
    int64_t stride;
    float *db = skl_sum_of_columns(work, block, side, tile * block->bk, &stride);
    for (int j = 0; j < SKL_BK; j++)
        if (c.start[j] < c.start[j + 1])
            w->run->plan.products[side]->add_rows(c.start[j + 1] - c.start[j], c.at + c.start[j], c.x + c.start[j],
                                                  block->pack[side], w->run->plan.block_rows, (int)work->side[side].dim,
                                                  db + j * stride);
}

/* da[d][i] (+)= sum[i][d], a line of sum at a time. */
static void put_transposed(int dim, int nr, const float *sum, int add, float *da)
{
    enum { LINE = 16 };
    for (int d0 = 0; d0 < dim; d0 += LINE)
        for (int i = 0; i < nr; i++)
            for (int d = d0; d < dim && d < d0 + LINE; d++)
                da[d * nr + i] = (add ? da[d * nr + i] : 0) + sum[i * dim + d];
}

void skl_add_listed_to_rows(const struct skl_worker *w, struct skl_block *block, int64_t tile, int side, int add,
                            float *da)
{
    const struct skl_work *work = w->run->work;
    const struct skl_kernels *k = w->run->plan.kernels;
    struct skl_lists r = w->scratch.by_row;
    int dim = (int)work->side[side].dim;
    struct skl_columns b = skl_fetch_columns(w->run, block, side, work->side[side].member, tile, 0, dim,
                                             w->scratch.columns[0]);
    float *sum = w->scratch.listed_da;
    for (int panel = 0; panel * k->nr < block->n; panel++, da += skl_da_entries(work, &w->run->plan, side) * k->nr) {
        memset(sum, 0, (size_t)(k->nr * dim) * sizeof *sum);
        for (int i = 0, row = panel * k->nr; i < k->nr; i++, row++)
            w->run->plan.products[side]->add_columns(r.start[row + 1] - r.start[row], r.at + r.start[row],
                                                     r.x + r.start[row], b, dim, sum + i * dim);
        put_transposed(dim, k->nr, sum, add, da);
    }
}
