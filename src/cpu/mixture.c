/* SPDX-License-Identifier: Apache-2.0
 *
 * The scorer of a side that is a mixture of heads (docs/math.md, section Mixtures):
 *
 *     t[i,j] = 1/g sum_k e^{z_k[i,j] - lse_k[i]},      x = log2 t      over the members k = 0 .. g-1
 *
 * x is a score like any other, with unit log 2: states, divergences and dz do not know where it comes from. Heads go
 * one after the other over all panels, so that a tile of their columns is fetched once; an indexer's (index.c) go the
 * same way. LSEs that were not given are found on the way where there is room to keep a block's exponentials
 * (kept_heads.c), else before the call by sweeps of their own: for each member one over all rows, as of a student
 * without a teacher.
 */
#include "run.h"

#include "../error.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

/* ------------------------------------------------------------------------------------------------- scores --- */

void skl_lse_of_head(const struct skl_run *run, int side, int64_t member, int64_t row, double *m, double *l)
{
    const struct skl_work *w = run->work;
    const struct skl_work_side *s = &w->side[side];
    int64_t at[3], k = member * w->rows + row;
    skl_row_index(w, row, at);
    if (s->head_lse.data) {
        at[1] = skl_head_of(s, at[1], member);
        double lse = (double)skl_row_get(&s->head_lse, at);
        *m = (double)(float)(lse / s->head_unit);
        *l = exp(lse - s->head_unit * *m);
        if (isinf(lse))
            *m = INFINITY, *l = 1;
    } else {
        *m = (double)s->head_m[k], *l = (double)s->head_l[k];
        if (*l == 0)
            *m = INFINITY, *l = 1;
    }
}

void skl_set_heads(const struct skl_run *run, struct skl_block *block, int side, int panel)
{
    const struct skl_work_side *s = &run->work->side[side];
    int nr = run->plan.kernels->nr;
    if (s->scorer == SKL_INDEX) {
        skl_set_weights(run, block, side, panel);
        return;
    }
    if (block->of_heads[side])
        return; /* when they are known */
    for (int64_t k = 0; k < s->members; k++) {
        struct skl_panel_head *head = &block->mix[side][panel * s->members + k];
        for (int i = 0; i < nr; i++) {
            double m = INFINITY, l = 1; /* of lanes that hold no row */
            if (panel * nr + i < block->n)
                skl_lse_of_head(run, side, k, block->row[panel * nr + i], &m, &l);
            head->m[i] = (float)m;
            head->share[i] = (float)(1 / (l * (double)s->members));
        }
    }
}

/* One head's scores x of a panel into the panel's sum: of a mixture softcapped and as its part of t, of an indexer as
 * they are. */
static void add_head(const struct skl_run *run, const struct skl_block *block, int side, int64_t member, int panel,
                     int64_t tile, float *x, float *sum)
{
    const struct skl_work_side *s = &run->work->side[side];
    const struct skl_kernels *k = run->plan.kernels;
    const struct skl_panel_head *head = &block->mix[side][panel * s->members + member];
    int j0, j1;
    skl_tile_range(run, block, panel, tile, &j0, &j1);
    x += j0 * k->nr, sum += j0 * k->nr;
    if (s->scorer == SKL_INDEX) {
        k->index(j1 - j0, x, head->share, s->identity, member > 0, sum);
        return;
    }
    if (s->softcap > 0)
        k->softcap(j1 - j0, x, (float)s->inner, s->softcap);
    if (block->of_heads[side]) {
        skl_keep_head(run, block, side, member, panel, tile, x, sum);
        return;
    }
    k->mix(j1 - j0, x, skl_head_unit(s), head->m, head->share, member > 0, sum);
}

/* Columns of the head of b that a member before this one had, too, and that are still where they were fetched to. */
static int same_columns(const struct skl_run *run, const struct skl_block *block, int side, int64_t member)
{
    const struct skl_work_side *s = &run->work->side[side];
    return member > 0 && s->dim <= run->plan.products[side]->kc &&
           skl_head_of(s, block->segment.head, member) / s->group ==
               skl_head_of(s, block->segment.head, member - 1) / s->group;
}

void skl_score_head(const struct skl_worker *w, const struct skl_block *block, int side, int64_t member, int64_t tile,
                    float *x, int64_t x_stride, float *sum, int64_t sum_stride, struct skl_columns *columns)
{
    const struct skl_run *run = w->run;
    const struct skl_work_side *s = &run->work->side[side];
    int panels = skl_panels_in_use(run, block), kc = run->plan.products[side]->kc, last = member + 1 == s->members;
    for (int64_t d0 = 0; d0 < s->dim; d0 += kc) {
        int k = s->dim - d0 < kc ? (int)(s->dim - d0) : kc, more = s->dim - d0 > k;
        if (!columns->at || !same_columns(run, block, side, member))
            *columns = skl_fetch_columns(run, block, side, member, tile, d0, k, w->scratch.columns[0]);
        for (int panel = 0; panel < panels; panel++) {
            struct skl_soon soon = skl_next_columns(run, block, side,
                                                    more   ? member
                                                    : last ? 0
                                                           : member + 1,
                                                    more || !last ? tile : tile + 1, more ? d0 + k : 0, panel, panels);
            skl_score_panel(run, block, side, member, panel, tile, d0, k, *columns, soon, x + panel * x_stride);
            if (!more && sum)
                add_head(run, block, side, member, panel, tile, x + panel * x_stride, sum + panel * sum_stride);
        }
    }
}

void skl_score_heads(const struct skl_worker *w, const struct skl_block *block, int side, int64_t tile, float *y,
                     int64_t panel_stride)
{
    const struct skl_run *run = w->run;
    const struct skl_work_side *s = &run->work->side[side];
    struct skl_columns columns = {0};
    int nr = run->plan.kernels->nr;
    int stay = s->scorer == SKL_INDEX && block->of_heads[side];
    int64_t x_stride = s->dim <= run->plan.products[side]->kc && !stay ? 0 : (int64_t)SKL_BK * nr;
    if (s->scorer == SKL_MIXTURE && block->of_heads[side])
        skl_mix_kept(run, block, side, tile, y, panel_stride);
    else
        for (int64_t k = 0; k < s->members; k++)
            skl_score_head(w, block, side, k, tile,
                           stay ? skl_kept_head(run, block, side, tile, k) : w->scratch.of_head, x_stride, y,
                           panel_stride, &columns);
    for (int panel = 0, j0, j1; s->scorer == SKL_MIXTURE && panel < skl_panels_in_use(run, block); panel++) {
        skl_tile_range(run, block, panel, tile, &j0, &j1);
        run->plan.kernels->log2(j1 - j0, y + panel * panel_stride + j0 * nr);
    }
}

/* ----------------------------------------------------------------------------------------- LSEs of the heads --- */

static struct skl_work_side *mixture_of(struct skl_work *w)
{
    return &w->side[!w->student];
}

/* f32 m and l of every row and member. */
static size_t lse_bytes(const struct skl_work *w)
{
    const struct skl_work_side *t = &w->side[!w->student];
    return skl_wants_head_lses(t) ? 2 * sizeof(float) * (size_t)(w->rows * t->members) : 0;
}

/* Does the call itself find them? */
static int finds_lses(const struct skl_work *w, const struct skl_plan *plan)
{
    return (plan->keeps_heads >> !w->student & 1) && skl_wants_head_lses(&w->side[!w->student]);
}

/* The sweep of one member: its head in the student's place, and no teacher. It writes m and l of the rows, which keep
 * their ranges and weights. */
static struct skl_work member_work(const struct skl_work *w, int64_t member, float *m, float *l)
{
    struct skl_work of = *w;
    const struct skl_work_side *t = &w->side[!w->student];
    struct skl_rows rows = {NULL, {w->heads * w->n, w->n, 1}};
    of.side[1] = *t, of.side[0] = (struct skl_work_side){.group = 1, .members = 1, .unit = 1, .sign = 1};
    of.side[1].scorer = SKL_INNER, of.side[1].member = member, of.side[1].unit = of.side[1].head_unit;
    of.form = SKL_FORM_NONE, of.student = 1, of.grads = of.sink_grads = 0, of.value = NULL, of.raw = 0;
    of.sinks = t->sink.data != NULL;
    for (int k = 0; k < SKL_ROW_RESULTS; k++) of.result[k] = (struct skl_rows){NULL, {0, 0, 0}};
    rows.data = (char *)m, of.result[SKL_ROW_m_s] = rows;
    rows.data = (char *)l, of.result[SKL_ROW_l_s] = rows;
    return of;
}

/* The limit for what follows once the LSEs have taken their part of it. */
static enum skl_status take_from_limit(struct skl_work *w, size_t bytes)
{
    if (!w->limit_is_default && w->limit <= bytes)
        return skl_fail(SKL_BAD_ARGUMENT,
                        "cannot use workspace_limit = %zu: the LSEs of the teacher's heads alone take %zu bytes",
                        w->limit, bytes);
    w->limit -= w->limit_is_default ? 0 : bytes;
    return SKL_OK;
}

enum skl_status skl_plan_call(enum skl_call call, const struct skl_work *work, struct skl_plan *plan, size_t *bytes)
{
    struct skl_work w = *work;
    size_t lses = lse_bytes(work), most = 0;
    if (lses && !skl_make_plan(call, work, plan) && finds_lses(work, plan)) {
        *bytes = plan->bytes;
        return SKL_OK;
    }
    enum skl_status status = take_from_limit(&w, lses);
    if (!status && lses) {
        float somewhere; /* a plan only asks whether m and l are wanted */
        struct skl_work of = member_work(&w, 0, &somewhere, &somewhere);
        struct skl_plan first;
        status = skl_make_plan(SKL_CALL_VALUE, &of, &first);
        most = status ? 0 : first.bytes;
    }
    if (!status)
        status = skl_make_plan(call, &w, plan);
    if (!status)
        *bytes = plan->bytes || lses ? lses + (plan->bytes > most ? plan->bytes : most) : 0;
    return status;
}

/* Progress of a part of the call, as the whole call's. */
struct part {
    skl_progress progress;
    void *data;
    double from, share;
};

static int tell(void *data, double fraction)
{
    const struct part *part = data;
    return part->progress(part->data, part->from + part->share * fraction);
}

static void watch(struct skl_work *w, struct part *part, double from, double share)
{
    *part = (struct part){w->progress, w->progress_data, from, share};
    if (w->progress)
        w->progress = tell, w->progress_data = part;
}

static enum skl_status find_lses(const struct skl_run *run, const struct skl_work *w)
{
    const struct skl_work_side *t = &w->side[!w->student];
    enum skl_status status = SKL_OK;
    for (int64_t k = 0; !status && k < t->members; k++) {
        struct skl_work of = member_work(w, k, t->head_m + k * w->rows, t->head_l + k * w->rows);
        struct part part;
        struct skl_run one = {.work = &of, .caller_mode = run->caller_mode};
        watch(&of, &part, 0.5 * (double)k / (double)t->members, 0.5 / (double)t->members);
        status = skl_make_plan(SKL_CALL_VALUE, &of, &one.plan);
        if (!status)
            status = skl_run(&one);
    }
    return status;
}

enum skl_status skl_run_call(struct skl_run *run)
{
    struct skl_work w = *run->work;
    size_t lses = lse_bytes(&w);
    if (!lses || finds_lses(&w, &run->plan))
        return skl_run(run);
    float *memory = malloc(lses);
    if (!memory)
        return skl_fail(SKL_OUT_OF_MEMORY, "cannot allocate %zu bytes for the LSEs of the teacher's heads", lses);
    mixture_of(&w)->head_m = memory, mixture_of(&w)->head_l = memory + w.rows * mixture_of(&w)->members;
    enum skl_status status = take_from_limit(&w, lses);
    if (!status)
        status = find_lses(run, &w);
    struct part part;
    watch(&w, &part, 0.5, 0.5);
    run->work = &w;
    if (!status)
        status = skl_run(run);
    free(memory);
    return status;
}
