/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of the K largest scores of each row, of equal ones those of the lower columns, and two sums:
 *
 *     S = the K largest x       LSE_rest over the columns off S        LSE = LSE_rest + S's
 *     logprob = unit x - LSE    tail = LSE_rest - LSE
 *
 * One sweep. A score that passes its row's bound leaves the tile for the row's picks (kernels/topk.h), and what is left
 * of the tile is pushed as of a student alone: so LSE_rest is a sum of its own and never a difference. When a row has
 * collected twice what a list holds, all but about the K largest of its picks go into LSE_rest too, and the least that
 * stays is its new bound. A row of n columns has some K log2(n / K) picks. Each chunk of columns does this for itself;
 * in the end the K largest of all chunks' are chosen and put in order. Picks are always in the order of their columns,
 * so that of equal scores the first ones are kept, and a stable sort leaves them first. What is chosen follows from the
 * scores alone; the order of the sums from the chunks.
 *
 * NaN is chosen as +inf is, and makes the sums NaN. Columns of -inf never pass: they follow where a list has room left.
 * Sums are of f32 powers in double, as in states.h: relative error about 1e-7. Memory: 8 bytes a pick.
 */
#include "run.h"

#include <math.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------- choosing --- */

/* Rises with the score, which is neither NaN nor -0. */
static inline int32_t order_of(float x)
{
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits ^ (bits >> 31 & INT32_MAX);
}

static float score_of(int32_t order)
{
    int32_t bits = order ^ (order >> 31 & INT32_MAX);
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Which picks are the k largest: those above 'least', and so many of those that are equal to it, the first ones. */
struct largest {
    int32_t least;
    int64_t equal;
};

/* Of n > k picks; or, with 'spare', of the k largest and up to so many more. By digits of 8 bits of what an order is
 * above the smallest one: the digits of the k-th largest are found one after the other, until few enough share them. */
static struct largest find_largest(const struct skl_pick *e, int64_t n, int64_t k, int64_t spare)
{
    int32_t low = INT32_MAX, high = INT32_MIN;
    for (int64_t i = 0; i < n; i++) {
        int32_t order = order_of(e[i].x);
        low = order < low ? order : low, high = order > high ? order : high;
    }
    uint32_t range = (uint32_t)high - (uint32_t)low;
    int shift = range ? 32 - __builtin_clz(range) : 0; /* bits that are not known yet */
    uint64_t kth = 0;
    while (shift > 0) {
        int bits = shift < 8 ? shift : 8, digit = (1 << bits) - 1;
        uint32_t count[256] = {0};
        for (int64_t i = 0; i < n; i++) {
            uint64_t above = (uint32_t)order_of(e[i].x) - (uint32_t)low;
            count[above >> (shift - bits) & (uint64_t)digit] += above >> shift == kth;
        }
        while ((int64_t)count[digit] < k) k -= (int64_t)count[digit--];
        kth = kth << bits | (uint64_t)digit, shift -= bits;
        if ((int64_t)count[digit] - k <= spare) {
            k = n; /* all that share these digits */
            break;
        }
    }
    return (struct largest){(int32_t)((uint32_t)low + (uint32_t)(kth << shift)), k};
}

/* A sum of powers 2^{unit (x - m)} of scores, m being one of them, or near the largest. */
struct sum {
    const struct skl_kernels *kernels;
    float unit, m;
    double l;
};

/* Up to nr more. */
static void add(struct sum *s, int n, const float *x)
{
    float y[SKL_NR_MAX] = {0}, e[SKL_NR_MAX], m = s->m;
    for (int i = 0; i < n; i++) m = x[i] > m ? x[i] : m;
    if (m > s->m)
        s->l *= exp2((double)s->unit * ((double)s->m - (double)m)), s->m = m;
    for (int i = 0; i < s->kernels->nr; i++) y[i] = i < n ? (x[i] - (m == -INFINITY ? 0 : m)) * s->unit : -INFINITY;
    if (n)
        s->kernels->exp2(y, e);
    for (int i = 0; i < n; i++) s->l += (double)e[i];
}

static void add_picks(struct sum *s, const struct skl_pick *e, int64_t n)
{
    float x[SKL_NR_MAX];
    for (int64_t from = 0; from < n; from += s->kernels->nr) {
        int some = n - from < s->kernels->nr ? (int)(n - from) : s->kernels->nr;
        for (int i = 0; i < some; i++) x[i] = e[from + i].x;
        add(s, some, x);
    }
}

static struct sum sum_of(const struct skl_run *run, float m, double l)
{
    return (struct sum){.kernels = run->plan.kernels, .unit = run->unit[run->work->student], .m = m, .l = l};
}

/* Of n > k picks the k largest stay, and up to 'spare' more, in their order; returns how many. The others go into the
 * sum, unless it is NULL. *least: no score that is not larger will be among them. Without branches on the scores, which
 * nothing foresees. */
static int64_t keep_largest(struct skl_pick *e, int64_t n, int64_t k, int64_t spare, struct sum *rest, float *least)
{
    struct largest of = find_largest(e, n, k, spare);
    int64_t out = 0, equal = of.equal;
    float lost[SKL_NR_MAX];
    int gone = 0, most = rest ? rest->kernels->nr : SKL_NR_MAX;
    for (int64_t i = 0; i < n; i++) {
        struct skl_pick x = e[i];
        int32_t order = order_of(x.x);
        int same = order == of.least, stays = (order > of.least) | (same & (equal > 0));
        equal -= same;
        e[out] = x, lost[gone] = x.x;
        out += stays, gone += !stays;
        if (gone == most) {
            if (rest)
                add(rest, gone, lost);
            gone = 0;
        }
    }
    if (rest)
        add(rest, gone, lost);
    *least = score_of(of.least);
    return out;
}

/* --------------------------------------------------------------------------------------------------- chunks --- */

void skl_begin_picks(const struct skl_worker *w, const struct skl_block *block)
{
    for (int row = 0; row < block->n; row++) w->scratch.picked[row] = 0;
    for (int row = 0; row < w->run->plan.block_rows; row++) w->scratch.least[row] = -INFINITY;
}

static void drop_picks(const struct skl_worker *w, struct skl_block *block, int64_t chunk, int row)
{
    enum { SHARE = 8 }; /* one in so many of the picks that there is room for beyond the list may stay with it */
    const struct skl_run *run = w->run;
    const struct skl_plan *plan = &run->plan;
    int nr = plan->kernels->nr, i = row % nr, side = run->work->student, sums = skl_topk_sums(run->work);
    struct skl_panel_state *state = &block->states[chunk * plan->panels + row / nr];
    struct sum rest = sum_of(run, state->m[side][i], state->l[side][i]);
    w->scratch.picked[row] = (int32_t)keep_largest(w->scratch.picks + row * plan->pick_room, w->scratch.picked[row],
                                                   plan->picks, (plan->chunk_picks - plan->picks) / SHARE,
                                                   sums ? &rest : NULL, &w->scratch.least[row]);
    state->m[side][i] = rest.m, state->l[side][i] = rest.l;
}

void skl_pick_columns(const struct skl_worker *w, struct skl_block *block, int64_t chunk, int panel, int64_t first,
                      int n, float *x)
{
    const struct skl_plan *plan = &w->run->plan;
    int nr = plan->kernels->nr, row = panel * nr, rows = block->n - row < nr ? block->n - row : nr;
    uint32_t all = UINT32_MAX >> (32 - rows);
    plan->kernels->pick(n, x, w->scratch.least + row, all, (int32_t)first, w->scratch.picks + row * plan->pick_room,
                        plan->pick_room, w->scratch.picked + row);
    for (int end = row + rows; row < end; row++)
        if (w->scratch.picked[row] > plan->chunk_picks)
            drop_picks(w, block, chunk, row);
}

void skl_end_picks(const struct skl_worker *w, struct skl_block *block, int64_t chunk)
{
    const struct skl_plan *plan = &w->run->plan;
    int64_t place = chunk * plan->chunk_picks;
    for (int row = 0; row < block->n; row++) {
        int32_t n = w->scratch.picked[row];
        memcpy(block->picks + row * plan->list_room + place, w->scratch.picks + row * plan->pick_room,
               (size_t)n * sizeof *block->picks);
        block->picked[chunk * plan->block_rows + row] = n;
    }
}

/* ---------------------------------------------------------------------------------------------------- lists --- */

/* The picks of all chunks side by side; returns how many. */
static int64_t join_chunks(const struct skl_run *run, struct skl_block *block, int row, struct skl_pick *e)
{
    int64_t n = 0;
    for (int64_t chunk = 0; chunk < block->chunks; chunk++) {
        int32_t more = block->picked[chunk * run->plan.block_rows + row];
        if (more)
            memmove(e + n, e + chunk * run->plan.chunk_picks, (size_t)more * sizeof *e);
        n += more;
    }
    return n;
}

/* Columns that the row sees and that are not among its n picks: their scores are -inf, or the picks would be more. */
static int64_t add_lowest(const struct skl_block *block, int row, struct skl_pick *e, int64_t n, int64_t k)
{
    int64_t seen = block->hi[row] - block->lo[row], all = seen < k ? seen : k, end = n;
    for (int64_t column = block->lo[row], i = 0; end < all; column++) {
        if (i < n && e[i].column == column)
            i++;
        else
            e[end++] = (struct skl_pick){-INFINITY, (int32_t)column};
    }
    return end;
}

/* Falls where the score rises. */
static inline uint32_t falling(float x)
{
    return ~((uint32_t)order_of(x) ^ (uint32_t)1 << 31);
}

/* The largest first, equal ones as they are: by insertion, or by digits of 8 bits from the last on, from one buffer
 * into the other. Returns where they are then. */
static struct skl_pick *sort(struct skl_pick *e, struct skl_pick *other, int64_t n)
{
    enum { FEW = 32 };
    uint32_t count[4][256];
    for (int64_t i = 1; i < n && n <= FEW; i++) {
        struct skl_pick x = e[i];
        int64_t at = i;
        for (; at > 0 && e[at - 1].x < x.x; at--) e[at] = e[at - 1];
        e[at] = x;
    }
    if (n <= FEW)
        return e;
    memset(count, 0, sizeof count);
    for (int64_t i = 0; i < n; i++) {
        uint32_t falls = falling(e[i].x);
        for (int k = 0; k < 4; k++) count[k][falls >> 8 * k & 255]++;
    }
    for (int k = 0; k < 4; k++) {
        uint32_t at = 0, *place = count[k];
        if (place[falling(e[0].x) >> 8 * k & 255] == n)
            continue; /* all have the same digit */
        for (int d = 0; d < 256; d++) {
            uint32_t here = place[d];
            place[d] = at, at += here;
        }
        for (int64_t i = 0; i < n; i++) other[place[falling(e[i].x) >> 8 * k & 255]++] = e[i];
        struct skl_pick *from = e;
        e = other, other = from;
    }
    return e;
}

static void write_list(const struct skl_work *w, const int64_t at[3], const struct skl_pick *e, int64_t n,
                       const struct sum *all)
{
    const struct skl_work_topk *to = &w->topk;
    int32_t *ids = skl_operand_at(&to->ids, at[0], at[1], at[2]);
    float *logprobs = to->logprobs.data ? skl_operand_at(&to->logprobs, at[0], at[1], at[2]) : NULL;
    double log_l = logprobs && n ? log(all->l) : 0;
    for (int64_t k = 0; k < to->k; k++) ids[k] = k < n ? e[k].column : -1;
    for (int64_t k = 0; logprobs && k < to->k; k++) {
        double z = k < n ? w->side[w->student].unit * ((double)e[k].x - (double)all->m) - log_l : -INFINITY;
        logprobs[k] = (float)(z > 0 ? 0 : z);
    }
}

void skl_clear_list(const struct skl_work *w, const int64_t at[3])
{
    write_list(w, at, NULL, 0, NULL);
}

/* log of the rest's mass, where all columns have a finite sum. */
static double tail_of(const struct skl_work *w, const struct sum *rest, const struct sum *all)
{
    if (!(all->l > 0))
        return NAN;
    double z = rest->l == 0
                   ? -INFINITY
                   : w->side[w->student].unit * ((double)rest->m - (double)all->m) + log(rest->l) - log(all->l);
    return z > 0 ? 0 : z;
}

void skl_finish_picks(const struct skl_run *run, struct skl_block *block, int panel, int i, struct skl_row_result *r)
{
    const struct skl_work *w = run->work;
    int row = panel * run->plan.kernels->nr + i, s = w->student, sums = skl_topk_sums(w);
    int64_t k = run->plan.picks, at[3];
    if (row >= block->n)
        return;
    struct skl_pick *e = block->picks + row * run->plan.list_room;
    int64_t n = join_chunks(run, block, row, e);
    struct sum rest = sum_of(run, (float)(r->m[s] / w->side[s].unit), r->l[s]);
    float least;
    if (n > k)
        n = keep_largest(e, n, k, 0, sums ? &rest : NULL, &least);
    struct sum all = rest;
    if (sums)
        add_picks(&all, e, n);
    r->lse[s] = all.l == 0 ? -INFINITY : w->side[s].unit * (double)all.m + log(all.l);
    r->tail = tail_of(w, &rest, &all);
    n = add_lowest(block, row, e, n, k);
    memcpy(at, block->at[row], sizeof at);
    write_list(w, at, sort(e, block->sorted + panel * k, n), n, &all);
}
