/* SPDX-License-Identifier: Apache-2.0
 *
 * What follows a sweep: the states of all chunks become a row's results, and the results become the factors that turn
 * scores into dz. And what is written for rows and columns that have no work.
 */
#include "run.h"

#include <math.h>
#include <string.h>

/* A panel's rows over all chunks, natural logarithms. */
struct merged {
    struct skl_row_state row[SKL_NR_MAX];
};

/* The largest of the references of all chunks and the sink. */
static void largest_reference(const struct skl_run *run, const struct skl_block *block, int panel,
                              float m[2][SKL_NR_MAX])
{
    int nr = run->plan.kernels->nr;
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < nr; i++) m[side][i] = -INFINITY;
    for (int64_t c = 0; c < skl_states_of(run, block); c++)
        for (int side = 0; side < 2; side++)
            for (int i = 0; i < nr; i++)
                if (block->states[c * run->plan.panels + panel].m[side][i] > m[side][i])
                    m[side][i] = block->states[c * run->plan.panels + panel].m[side][i];
}

/* Adds a chunk's state, moved to the references m. */
static void add_chunk(const struct skl_run *run, const struct skl_panel_state *s, float m[2][SKL_NR_MAX],
                      struct merged *sum)
{
    const struct skl_kernels *k = run->plan.kernels;
    for (int side = 0; side < 2; side++) {
        float x[SKL_NR_MAX], factor[SKL_NR_MAX];
        for (int i = 0; i < k->nr; i++)
            x[i] = m[side][i] > -INFINITY ? (s->m[side][i] - m[side][i]) * run->unit[side] : 0;
        k->exp2(x, factor);
        for (int i = 0; i < k->nr; i++) {
            struct skl_side_state *to = &sum->row[i].side[side];
            double shift = skl_shift(run, s->m[0][i], m[0][i], s->m[1][i], m[1][i]);
            to->l += s->l[side][i] * (double)factor[i];
            if (side == 0 || skl_sweeps(run->work->form) == 2) /* Q of a KL has no acc; in a second sweep l is 0 */
                to->acc += skl_moved_acc(s->acc[side][i], s->l[side][i], shift, (double)factor[i]);
        }
    }
}

static void merge_panel(const struct skl_run *run, const struct skl_block *block, int panel, struct merged *sum)
{
    float m[2][SKL_NR_MAX];
    double unit = skl_sweeps(run->work->form) == 2 ? 1 : SKL_LN2; /* a second sweep sums natural logarithms */
    memset(sum, 0, sizeof *sum);
    largest_reference(run, block, panel, m);
    for (int64_t c = 0; c < skl_states_of(run, block); c++)
        if (c >= block->chunks || skl_sees_chunk(block, panel, c))
            add_chunk(run, &block->states[c * run->plan.panels + panel], m, sum);
    for (int i = 0; i < run->plan.kernels->nr; i++)
        for (int side = 0; side < 2; side++)
            sum->row[i].side[side].m = run->work->side[side].unit * (double)m[side][i],
            sum->row[i].side[side].acc *= unit;
}

/* The same over all columns: on a shard, what the exchange made of the panel's rows. */
static void complete_panel(const struct skl_run *run, const struct skl_block *block, int panel, struct merged *m)
{
    int nr = run->plan.kernels->nr;
    if (!run->work->shard.exchange) {
        merge_panel(run, block, panel, m);
        return;
    }
    for (int i = 0, at = panel * nr; i < nr; i++, at++)
        m->row[i] = at < block->n ? skl_private_state(run->work, &run->states[block->row[at] - run->first_state])
                                  : skl_empty_row();
}

/* The numbers that turn a row's logits into dz. Where a side has no mass, the row has no gradient: m is +inf then, so
 * that every exponential is 0. 'slope' is that of the loss in a side's scores. */
static void set_factors(const struct skl_run *run, struct skl_panel_factors *f, int i, const struct skl_row_result *r,
                        double g, const double slope[2])
{
    const struct skl_work *w = run->work;
    int alone = w->form == SKL_FORM_NONE, massless = (r->lse[0] == -INFINITY && !alone) || r->lse[1] == -INFINITY;
    int q_alone = run->plan.keep == SKL_KEEP_EXP_Q && !(w->sink_grads & 1); /* whose dz needs no logarithm */
    int needs_gap = !massless && !alone && !q_alone;
    double gap = needs_gap ? log2(r->l[1]) - log2(r->l[0]) : 0;
    for (int side = 0; side < 2; side++) {
        f->m[side][i] = massless ? INFINITY : (float)(r->m[side] / w->side[side].unit);
        f->prob[side][i] = massless ? 0 : (float)(1 / r->l[side]);
        f->g[side][i] = massless ? 0 : (float)(g * slope[side]);
        f->c[side][i] = massless ? 0 : (float)(skl_sweeps(w->form) == 2 ? r->c[side] : SKL_LOG2E * r->divergence - gap);
        f->power[side][i] = massless ? 0 : (float)skl_power(w->form, w->param, r->l[side]);
        f->own[side][i] = 0;
    }
    f->gap[i] = (float)gap;
}

/* Times the sum of a target that is not divided by it. 0 in SIMD lanes that hold no row. */
double skl_row_upstream(const struct skl_work *w, const struct skl_block *block, int row)
{
    double g = row < block->n ? skl_upstream(block->weight[row], w->mean, w->weight_sum) : 0;
    return w->raw ? g * skl_sum_of_target(&block->result[row]) : g;
}

static struct skl_row_result *result_of(const struct skl_run *run, const struct skl_block *block, int panel, int i)
{
    return &block->result[panel * run->plan.kernels->nr + i];
}

/* What follows from the results of the panel's rows. */
static void set_rows(const struct skl_run *run, struct skl_block *block, int panel)
{
    const struct skl_work *w = run->work;
    struct skl_panel_factors *f = &block->factors[panel];
    int nr = run->plan.kernels->nr, first = panel * nr;
    int factors = w->grads || w->sink_grads || run->plan.second_sweep || run->second_sweep_only;
    double slope[2];
    for (int side = 0; factors && side < 2; side++) {
        f->param[side] = (float)w->param[side], f->unit[side] = run->unit[side];
        slope[side] = w->labels.kl_weight * w->side[side].chain * skl_slope(w->form, w->param, side);
    }
    for (int i = 0; i < nr; i++) {
        const struct skl_row_result *r = &block->result[first + i];
        double g = skl_row_upstream(w, block, first + i);
        if (factors)
            set_factors(run, f, i, r, g, slope);
        if (block->labels)
            skl_set_label_factors(run, block, panel, i, g, r);
        if (block->lists)
            skl_set_listed_factors(run, block, panel, i, g, r);
    }
}

/* Results that are complete leave: to the caller, and into the value. Its sum does not round, so that any thread may add
 * to its own. */
static void put_rows(const struct skl_worker *w, struct skl_block *block, int panel)
{
    const struct skl_work *work = w->run->work;
    int nr = w->run->plan.kernels->nr, first = panel * nr, n = block->n - first < nr ? block->n - first : nr;
    if (w->run->plan.puts_rows)
        skl_put_rows(work, n, &block->at[first], &block->result[first]);
    for (int i = first; work->value && i < first + n; i++)
        skl_sum_add(&w->scratch.queue->value, block->weight[i] * block->result[i].loss);
}

void skl_finish_panel(const struct skl_worker *w, struct skl_block *block, int panel)
{
    const struct skl_run *run = w->run;
    if (run->work->sinks)
        skl_push_sink(run, block, panel);
    struct merged m;
    complete_panel(run, block, panel, &m);
    memset(result_of(run, block, panel, 0), 0, (size_t)run->plan.kernels->nr * sizeof *block->result);
    for (int i = 0; i < run->plan.kernels->nr; i++) {
        struct skl_row_result *r = result_of(run, block, panel, i);
        skl_finish_row(run->work->form, run->work->param, &m.row[i], r);
        r->divergence = run->work->raw ? skl_raw_loss(r) : r->loss;
        if (block->lists)
            skl_finish_listed(run, block, panel, i, r);
        if (block->picks)
            skl_finish_picks(run, block, panel, i, r);
        skl_finish_details(run, block, panel, i, r);
        if (run->work->sinks)
            skl_finish_sink(run, block, panel, i, r);
        r->loss = skl_row_loss(run->work, r);
    }
    set_rows(run, block, panel);
    if (!run->plan.second_sweep)
        put_rows(w, block, panel);
}

void skl_finish_gathered(const struct skl_worker *w, struct skl_block *block, int panel)
{
    const struct skl_run *run = w->run;
    for (int i = 0; i < run->plan.kernels->nr; i++) {
        struct skl_row_result *r = result_of(run, block, panel, i);
        *r = skl_no_result();
        if (panel * run->plan.kernels->nr + i < block->n)
            skl_finish_listed(run, block, panel, i, r);
        r->loss = skl_row_loss(run->work, r);
    }
    set_rows(run, block, panel);
    if (run->plan.call != SKL_CALL_BACKWARD) /* whose results are saved ones */
        put_rows(w, block, panel);
}

/* After the second sweep: the LSEs are known, the states hold the sums of the divergence. */
void skl_finish_second(const struct skl_worker *worker, struct skl_block *block, int panel)
{
    const struct skl_run *run = worker->run;
    const struct skl_work *w = run->work;
    if (w->sinks)
        skl_sum_sink(run, block, panel);
    struct merged m;
    complete_panel(run, block, panel, &m);
    for (int i = 0; i < run->plan.kernels->nr; i++) {
        struct skl_row_result *r = result_of(run, block, panel, i);
        const struct skl_side_state *sum = m.row[i].side;
        if (skl_sweeps(w->form) == 2) {
            struct skl_closed closed = skl_close(w->form, w->param, sum[0].acc, sum[1].acc);
            int nan = isnan(r->lse[0] + r->lse[1]);
            r->divergence = nan ? NAN : closed.loss;
            for (int side = 0; side < 2; side++) r->c[side] = nan ? NAN : closed.c[side];
            r->loss = skl_row_loss(w, r);
        }
        skl_finish_others(run, block, panel, i, r);
    }
    set_rows(run, block, panel);
    put_rows(worker, block, panel);
}

/* A side's m and l as they were saved, or else made of its LSE, which was rounded. */
static void load_lse(const struct skl_work *w, int side, const int64_t at[3], struct skl_row_result *r)
{
    const struct skl_rows *m = &w->result[skl_of_side(w, SKL_ROW_m_s, side)],
                          *l = &w->result[skl_of_side(w, SKL_ROW_l_s, side)];
    double unit = w->side[side].unit;
    if (m->data && l->data) {
        r->m[side] = unit * (double)skl_row_get(m, at), r->l[side] = (double)skl_row_get(l, at);
        r->lse[side] = r->l[side] == 0 ? -INFINITY : r->m[side] + log(r->l[side]);
        return;
    }
    double lse = (double)skl_row_get(&w->result[skl_of_side(w, SKL_ROW_lse_s, side)], at);
    r->lse[side] = lse;
    r->m[side] = unit * (double)(float)(lse / unit);
    r->l[side] = lse == -INFINITY ? 0 : exp(lse - r->m[side]);
}

/* Of a listed teacher: the columns that are not listed; none are, where listed columns are all there is. */
static void load_rest(const struct skl_work *w, const int64_t at[3], struct skl_row_result *r)
{
    if (skl_on_support(w))
        return;
    r->m[w->student] = w->side[w->student].unit * (double)skl_row_get(&w->result[SKL_ROW_m_rest], at);
    r->l[w->student] = (double)skl_row_get(&w->result[SKL_ROW_l_rest], at);
}

static double saved_or_0(const struct skl_rows *rows, const int64_t at[3])
{
    return rows->data ? (double)skl_row_get(rows, at) : 0;
}

/* l1 of the student, which refers to the m that was saved; a listed teacher's row has its m from scores computed
 * anew. */
static double saved_l1(const struct skl_work *w, const int64_t at[3], const struct skl_row_result *r)
{
    double l1 = saved_or_0(&w->result[SKL_ROW_l1_s], at);
    double m = w->side[w->student].unit * saved_or_0(&w->result[SKL_ROW_m_s], at);
    return w->listed.given && l1 != 0 ? l1 * exp(w->temperature * (m - r->m[w->student])) : l1;
}

/* Backward, or the second sweep over a slice: what an earlier call wrote. */
void skl_load_saved(const struct skl_run *run, struct skl_block *block, int panel)
{
    const struct skl_work *w = run->work;
    int nr = run->plan.kernels->nr;
    for (int i = 0; i < nr; i++) {
        int64_t at[3], row = panel * nr + i;
        struct skl_row_result *r = result_of(run, block, panel, i);
        *r = skl_no_result(); /* of SIMD lanes that hold no row */
        if (row < block->n) {
            memcpy(at, block->at[row], sizeof at);
            r->columns = (double)(w->shard.columns ? w->shard.columns : block->hi[row] - block->lo[row]);
            r->divergence = saved_or_0(&w->result[skl_has_labels(w) ? SKL_ROW_kl : SKL_ROW_loss], at);
            if (block->lists) {
                load_rest(w, at, r);
                skl_finish_listed(run, block, panel, i, r);
            }
            for (int side = 0; side < 2; side++) {
                if (w->side[side].dim && !block->lists)
                    load_lse(w, side, at, r);
                r->l1[side] = r->l[side];
                r->c[side] = saved_or_0(&w->result[skl_of_side(w, SKL_ROW_kl_s, side)], at);
            }
            if (skl_tempered(w))
                r->l1[w->student] = saved_l1(w, at, r);
        }
    }
    set_rows(run, block, panel);
}

/* What a skl_partial gives away, or a shard to the others. */
void skl_write_states(const struct skl_run *run, struct skl_block *block, int panel)
{
    int nr = run->plan.kernels->nr;
    struct merged m;
    merge_panel(run, block, panel, &m);
    for (int i = 0; i < nr && panel * nr + i < block->n; i++)
        run->states[block->row[panel * nr + i] - run->first_state] = skl_public_state(run->work, &m.row[i]);
}

/* ----------------------------------------------------------------------------------------- without work --- */

/* The rows' results as of a row that sees nothing; blocks overwrite those of the others. */
static void clear_rows(const struct skl_run *run, int64_t first, int64_t last)
{
    const struct skl_work *w = run->work;
    const struct skl_row_result nothing = skl_no_result();
    const struct skl_row_state empty = skl_empty_row();
    for (int64_t row = first, at[3]; row < last; row++) {
        skl_row_index(w, row, at);
        if (run->plan.call != SKL_CALL_BACKWARD && run->plan.call != SKL_CALL_PARTIAL)
            skl_put_rows(w, 1, &at, &nothing);
        if (run->plan.call == SKL_CALL_TOPK)
            skl_clear_list(w, at);
        if (run->plan.call == SKL_CALL_PARTIAL)
            run->states[row] = skl_public_state(w, &empty);
        for (int side = 0; side < 2; side++) {
            const struct skl_operand *g = &w->side[side].grad_a;
            const struct skl_work_side *s = &w->side[side];
            for (int64_t k = 0; k < skl_packs(s); k++) {
                if (g->data)
                    memset(skl_operand_at(g, at[0], skl_head_of(s, at[1], k), at[2]), 0,
                           (size_t)(s->dim * skl_size_of(g->dtype)));
                if (s->grad_w.data)
                    memset(skl_w_at(&s->grad_w, s->grad_w_step, at, k), 0, (size_t)skl_size_of(s->grad_w.dtype));
            }
        }
    }
}

static void clear_columns(const struct skl_run *run, int side, int64_t first, int64_t last)
{
    const struct skl_work_side *s = &run->work->side[side];
    for (int64_t i = first, n; i < last; i += n) { /* those of a head together */
        int64_t column = i % s->b_rows, head = i / s->b_rows % s->b_heads, batch = i / s->b_rows / s->b_heads;
        n = last - i < s->b_rows - column ? last - i : s->b_rows - column;
        for (int64_t k = 0; k < n; k++)
            memset(skl_operand_at(&s->grad_b, batch, head, column + k), 0,
                   (size_t)(s->dim * skl_size_of(s->grad_b.dtype)));
    }
}

static void clear_vector(const struct skl_vector_view *v, int64_t n)
{
    int64_t size = skl_size_of(v->dtype);
    for (int64_t i = 0; v->data && i < n; i++) memset(v->data + i * v->stride * size, 0, (size_t)size);
}

void skl_clear_outputs(const struct skl_run *run, int64_t part, int64_t parts)
{
    const struct skl_work *w = run->work;
    /* Where rows are alike, blocks write all that they get. */
    if (!skl_rows_alike(w) || run->plan.call == SKL_CALL_PARTIAL)
        clear_rows(run, w->rows * part / parts, w->rows * (part + 1) / parts);
    for (int side = 0; side < 2; side++) {
        const struct skl_work_side *s = &w->side[side];
        int64_t columns = s->b_batch * s->b_heads * s->b_rows;
        if (s->grad_b.data)
            clear_columns(run, side, columns * part / parts, columns * (part + 1) / parts);
        if (part == 0) {
            clear_vector(&s->grad_bias, s->b_rows);
            clear_vector(&s->grad_sink, w->heads);
        }
    }
}

/* The block moves on to another b: the sums of the old one go out, rounded once, and start at 0 for the new one. */
void skl_flush_columns(const struct skl_run *run, struct skl_block *block, int64_t chunk)
{
    const struct skl_work *w = run->work;
    const struct skl_plan *plan = &run->plan;
    int64_t tiles = (plan->columns + plan->bk - 1) / plan->bk; /* of all columns, also where rows list some */
    int64_t first = skl_first_tile(tiles, plan->chunks, chunk) * plan->bk;
    int64_t last = skl_first_tile(tiles, plan->chunks, chunk + 1) * plan->bk;
    for (int side = 0; side < 2; side++) {
        const struct skl_work_side *s = &w->side[side];
        const struct skl_owner *owner = &block->owner[side], *next = &block->next_owner[side];
        int64_t bias_size = skl_size_of(s->grad_bias.dtype), held = owner->columns ? owner->columns : plan->columns;
        if (memcmp(owner, next, sizeof *owner) == 0 || (!block->db[side] && !block->dbias[side]))
            continue;
        for (int64_t j = first; j < last && j < held; j++) { /* nobody's: memory that was never written */
            float *sum = block->db[side] ? block->db[side] + j * s->dim : NULL, *bias = block->dbias[side];
            if (sum && owner->columns)
                plan->kernels->convert_back(s->dim, sum, s->grad_b.dtype,
                                            skl_operand_at(&s->grad_b, owner->batch, owner->head, owner->column + j));
            if (bias && owner->columns)
                plan->kernels->convert_back(1, bias + j, s->grad_bias.dtype,
                                            s->grad_bias.data + j * s->grad_bias.stride * bias_size);
            if (sum)
                memset(sum, 0, (size_t)s->dim * sizeof *sum);
            if (bias)
                bias[j] = 0;
        }
    }
}
