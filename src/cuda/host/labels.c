/* SPDX-License-Identifier: Apache-2.0
 *
 * Labels on a device. No kernel over rows x columns is theirs: they are further sweeps of the KL, whose other side is
 * flat (every logit 0), and small kernels over the rows (kernels/label_kernels.cu).
 *
 *     LSE', mean z'    student beside a flat P at temperature 1; at temperature 1 the divergence's own sweep knows LSE'
 *     dz               forward KL at temperature 1: in the divergence's own slab, with other masses of p and q.
 *     Otherwise
 *                      a second slab of the labels' own, beside a flat P that is their smoothing
 */
#include "run.h"

static int teacher_of(const struct skl_work *w)
{
    return !w->student;
}

static struct skl_gpu_labels labels_of(const struct skl_gpu_run *run)
{
    const struct skl_work *w = &run->work;
    const struct skl_work_labels *l = &w->labels;
    const struct skl_gpu_problem problem = skl_gpu_problem_of(run, run->plan.tile_rows);
    struct skl_gpu_labels g = {.ids = skl_gpu_ids_of(&l->ids).rows,
                               .weight = skl_gpu_rows_of(&w->weight),
                               .range = run->memory.range,
                               .rows = w->rows,
                               .ignore = l->ignore,
                               .heads = (int32_t)w->heads,
                               .n = (int32_t)w->n,
                               .columns = (int32_t)w->columns,
                               .teacher = run->teacher,
                               .diverges = run->teacher || w->listed.given,
                               .label_weight = l->weight,
                               .kl_weight = l->kl_weight,
                               .lse_weight = l->lse_weight,
                               .smoothing = l->smoothing,
                               .z_loss = l->z_loss,
                               .temperature = w->temperature,
                               .row_weight = run->memory.row_weight,
                               .score = run->memory.label_score,
                               .at_1 = {run->memory.label_states[0], run->memory.label_states[1]},
                               .l1 = skl_gpu_rows_of(&w->result[SKL_ROW_l1_s]),
                               .loss = run->memory.loss,
                               .row_loss = skl_gpu_rows_of(&w->result[SKL_ROW_loss]),
                               .kl = skl_gpu_rows_of(&w->result[SKL_ROW_kl]),
                               .ce = skl_gpu_rows_of(&w->result[SKL_ROW_ce])};
    for (int i = 0; i < 2; i++) {
        int side = i ? teacher_of(w) : w->student;
        g.unit[i] = w->side[side].unit;
        g.side[i] = problem.side[side];
        g.m[i] = skl_gpu_rows_of(&w->result[skl_of_side(w, SKL_ROW_m_s, side)]);
        g.l[i] = skl_gpu_rows_of(&w->result[skl_of_side(w, SKL_ROW_l_s, side)]);
        g.lse[i] = skl_gpu_rows_of(&w->result[skl_of_side(w, SKL_ROW_lse_s, side)]);
        g.logprob[i] = skl_gpu_rows_of(&w->result[skl_of_side(w, SKL_ROW_logprob_s, side)]);
    }
    return g;
}

/* A kernel whose only argument is the labels. */
static enum skl_status start(const struct skl_gpu_run *run, enum skl_gpu_role role)
{
    struct skl_gpu_labels args = labels_of(run);
    return skl_gpu_start(run, role, skl_gpu_row_blocks(run, role), 1, &args, sizeof args);
}

enum skl_status skl_gpu_weigh_labels(struct skl_gpu_run *run)
{
    struct skl_work *w = &run->work;
    if (!skl_has_labels(w))
        return SKL_OK;
    SKL_TRY(start(run, SKL_ROLE_label_weights));
    w->weight = (struct skl_rows){(char *)run->memory.row_weight, {w->heads * w->n, w->n, 1}};
    return SKL_OK;
}

enum skl_status skl_gpu_score_labels(const struct skl_gpu_run *run)
{
    return skl_has_labels(&run->work) ? start(run, SKL_ROLE_label_scores) : SKL_OK;
}

/* ------------------------------------------------------------------------------------------------- values --- */

enum skl_status skl_gpu_finish_labels(const struct skl_gpu_run *run)
{
    const struct skl_work *w = &run->work;
    int at_1 = skl_gpu_sweeps_at_1(run->plan.call, w);
    for (int i = 0; i < 2; i++) {
        struct skl_work of = skl_gpu_beside_flat(w, i ? teacher_of(w) : w->student, 1, w->temperature);
        if (at_1 >> i & 1)
            SKL_TRY(skl_gpu_states(run, &of, run->memory.label_states[i]));
    }
    if (skl_gpu_finishes_labels(w))
        return start(run, SKL_ROLE_finish_labels);
    return SKL_OK;
}

/* -------------------------------------------------------------------------------------------------- dz --- */

double skl_gpu_label_norm(const struct skl_work *w)
{
    const struct skl_work_labels *l = &w->labels;
    double norm = fabs(l->kl_weight) + w->temperature * (fabs(l->weight) + fabs(l->lse_weight));
    return skl_has_labels(w) && norm > 0 ? norm : 1;
}

/* Is dz of the student a difference of masses of q and p, but for the labels' own entries? */
static int in_kl(const struct skl_gpu_run *run)
{
    const struct skl_work *w = &run->work;
    const struct skl_work_labels *l = &w->labels;
    return run->teacher && w->form == SKL_FORM_KL && w->student == 1 && w->temperature == 1 && l->kl_weight > 0 &&
           l->weight >= 0 && l->lse_weight >= 0 && l->smoothing == 0 && l->z_loss == 0;
}

static enum skl_status make_factors(const struct skl_gpu_run *run, const struct skl_gpu_grad *grad,
                                    enum skl_gpu_label_dz how)
{
    struct skl_gpu_label_factors args = {.labels = labels_of(run),
                                         .scalars = run->memory.scalars,
                                         .how = how,
                                         .norm = skl_gpu_label_norm(&run->work),
                                         .references = (struct skl_gpu_reference *)grad->references,
                                         .factors = (struct skl_gpu_factors *)grad->factors};
    return skl_gpu_start(run, SKL_ROLE_label_factors, skl_gpu_row_blocks(run, SKL_ROLE_label_factors), 1, &args,
                         sizeof args);
}

enum skl_status skl_gpu_label_grad(const struct skl_gpu_run *run, int x, struct skl_gpu_grad *grad,
                                   struct skl_gpu_grad *own, enum skl_gpu_label_dz *how)
{
    const struct skl_work *w = &run->work;
    *how = SKL_LABELS_APART;
    if (!skl_has_labels(w))
        return SKL_OK;
    if (x == w->student)
        *how = in_kl(run) ? SKL_LABELS_IN_KL : SKL_LABELS_ALONE;
    if (run->teacher)
        SKL_TRY(make_factors(run, grad, *how == SKL_LABELS_IN_KL ? SKL_LABELS_IN_KL : SKL_LABELS_APART));
    if (*how != SKL_LABELS_ALONE)
        return SKL_OK;
    struct skl_gpu_run alone = *run;
    alone.work = skl_gpu_beside_flat(w, x, 1, w->temperature);
    *own = *grad;
    own->problem = skl_gpu_problem_of(&alone, run->plan.tile_rows);
    own->references = run->memory.label_references, own->factors = run->memory.label_factors;
    own->x = 1, own->dz = SKL_DZ_Q, own->form = SKL_FORM_KL;
    return make_factors(run, own, SKL_LABELS_ALONE);
}

enum skl_status skl_gpu_label_entries(const struct skl_gpu_run *run, const struct skl_gpu_slab *slab,
                                      enum skl_gpu_label_dz how)
{
    struct skl_gpu_label_entries args = {
        .labels = labels_of(run), .slab = *slab, .how = how, .norm = skl_gpu_label_norm(&run->work)};
    int rows = skl_gpu_planned(&run->plan, SKL_ROLE_label_entries)->rows;
    return skl_gpu_start(run, SKL_ROLE_label_entries, (slab->rows + rows - 1) / rows, 1, &args, sizeof args);
}
