/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients by slabs: dx of some rows x some columns, made by stream_*_dz or plain_dz into the workspace, then the two
 * products by cuBLAS, f32 sums over slabs:
 *
 *     da [rows, dim]    += dx [rows, columns] b [columns, dim]
 *     db [columns, dim] += dx^T a [rows, dim]
 *     dbias [columns]   += sum over the rows of dx
 *
 * Columns outside, rows (and heads that share a b) inside: sums of db are of one slab's width, sums of da last. A
 * gradient that leaves as f32 is its own sum. An indexer has a slab for each of its heads, all made by one launch, and
 * weights beside them: index.c.
 */
#include "run.h"

#include "../shapes.h"

/* A head of a: its indices, its number among those that share a b, and that of its slab. */
struct head {
    int64_t b, h, k, slab;
};

/* One way to make the slab: the divergence's, a listed teacher's, the labels'. Their gradients are added up. */
struct pass {
    struct skl_gpu_grad grad;
    enum skl_gpu_role role;
    int labels, lists; /* ... whose own entries come after it */
};

struct slabs {
    const struct skl_gpu_run *run;
    struct skl_gpu_slab args;
    struct pass pass[2];
    int passes;
    enum skl_gpu_label_dz how;
    const struct skl_work_side *s;
    int dtype;
    int x;
    int64_t group_heads; /* of a, that share a b */
};

/* cuBLAS's manual lets C be anything when beta is 0, and does not say that this holds for a beta in device memory. A
 * NaN that lies there would be in every gradient: it is cleared. */
static enum skl_status clear_sum(const struct skl_gpu_run *run, const struct skl_gpu_product *p)
{
    struct skl_operand sum = {p->c, SKL_F32, {0, 0, p->ldc}};
    if (p->ldc == p->n)
        return skl_gpu->clear(p->c, (size_t)(p->m * p->n) * sizeof(float), run->work.stream);
    return skl_gpu_convert_matrix(run, &sum, NULL, 1, 1, 0, p->m, p->n);
}

static enum skl_status product(const struct slabs *q, const struct head *head, struct skl_gpu_product p, int first)
{
    const struct skl_gpu_run *run = q->run;
    p.dtype = q->dtype;
    p.dtype_c = SKL_F32;
    p.n = q->s->dim;
    p.a = run->memory.slab + head->slab * run->plan.slab_rows * run->plan.slab_columns * skl_size_of(q->dtype);
    p.lda = q->args.ld;
    p.alpha = &run->memory.scalars->alpha[q->x];
    p.beta = first ? &run->memory.scalars->zero : &run->memory.scalars->one;
    p.workspace = run->memory.blas;
    p.workspace_bytes = SKL_BLAS_BYTES;
    if (first)
        SKL_TRY(clear_sum(run, &p));
    return skl_gpu->product(&p, run->work.stream);
}

/* Who makes the slab. */
static enum skl_gpu_role slab_role(const struct skl_work *w)
{
    return w->form == SKL_FORM_KL || w->form == SKL_FORM_JSD ? SKL_ROLE_dz : SKL_ROLE_second_dz;
}

static enum skl_status make_slab(struct slabs *q, const struct pass *pass)
{
    const struct skl_gpu_kernel *k = skl_gpu_planned(&q->run->plan, pass->role);
    int columns = k->columns * (q->run->plan.indexed ? SKL_INDEX_TILES : 1); /* of a block */
    q->args.grad = pass->grad;
    SKL_TRY(skl_gpu_start(q->run, pass->role, (q->args.rows + k->rows - 1) / k->rows,
                          (q->args.columns + columns - 1) / columns, &q->args, sizeof q->args));
    if (pass->lists)
        return skl_gpu_list_entries(q->run, &q->args);
    return pass->labels ? skl_gpu_label_entries(q->run, &q->args, q->how) : SKL_OK;
}

static struct pass *add_pass(struct slabs *q, const struct skl_gpu_grad *grad, enum skl_gpu_role role, int labels)
{
    struct pass *pass = &q->pass[q->passes++];
    int rows = skl_gpu_planned(&q->run->plan, role)->rows;
    *pass = (struct pass){.grad = *grad, .role = role, .labels = labels};
    pass->grad.problem.tiles = (int32_t)((q->run->work.n + rows - 1) / rows);
    return pass;
}

static enum skl_status choose_passes(struct slabs *q)
{
    const struct skl_work *w = &q->run->work;
    struct skl_gpu_grad grad, own;
    SKL_TRY(skl_gpu_grad_of(q->run, q->x, &grad));
    SKL_TRY(skl_gpu_label_grad(q->run, q->x, &grad, &own, &q->how));
    if (q->run->teacher)
        add_pass(q, &grad, slab_role(w), q->how == SKL_LABELS_IN_KL);
    if (w->listed.given) {
        SKL_TRY(skl_gpu_list_factors(q->run));
        add_pass(q, &grad, SKL_ROLE_dz, 0)->lists = 1;
    }
    if (q->how == SKL_LABELS_ALONE)
        add_pass(q, &own, SKL_ROLE_dz, 1);
    return SKL_OK;
}

/* cuBLAS wants a row's length or more, also of a matrix of one row, whose stride means nothing and may be 0. The plan
 * has refused shorter strides of all others. */
static int64_t leading_dimension(const struct skl_operand *o, int64_t dim)
{
    return o->stride[2] > dim ? o->stride[2] : dim;
}

/* da of the slab's rows. */
static enum skl_status product_a(const struct slabs *q, const struct head *head, int first)
{
    const struct skl_work_side *s = q->s;
    if (!s->grad_a.data && !s->grad_w.data)
        return SKL_OK;
    struct skl_gpu_product p = {.m = q->args.rows, .k = q->args.columns, .ldb = leading_dimension(&s->b, s->dim)};
    p.b = skl_operand_at(&s->b, head->b, head->h / s->group, q->args.first_column);
    if (skl_gpu_own_sum(&s->grad_a, s->dim) && !q->run->plan.indexed)
        p.c = skl_operand_at(&s->grad_a, head->b, head->h, q->args.first_row), p.ldc = s->grad_a.stride[2];
    else
        p.c = q->run->memory.sum_a + (head->k * q->run->work.n + q->args.first_row) * s->dim, p.ldc = s->dim;
    return product(q, head, p, first);
}

static enum skl_status product_b(const struct slabs *q, const struct head *head, int first)
{
    const struct skl_work_side *s = q->s;
    if (!s->grad_b.data)
        return SKL_OK;
    struct skl_gpu_product p = {
        .transpose_a = 1, .m = q->args.columns, .k = q->args.rows, .ldb = leading_dimension(&s->a, s->dim)};
    p.b = skl_operand_at(&s->a, head->b, head->h, q->args.first_row);
    if (q->run->plan.indexed)
        p.b = q->run->memory.index_queries +
              (head->k * q->run->work.n + q->args.first_row) * s->dim * skl_size_of(q->dtype),
        p.ldb = s->dim;
    if (skl_gpu_own_sum(&s->grad_b, s->dim))
        p.c = skl_operand_at(&s->grad_b, head->b, head->h / s->group, q->args.first_column),
        p.ldc = s->grad_b.stride[2];
    else
        p.c = q->run->memory.sum_b, p.ldc = s->dim;
    return product(q, head, p, first);
}

static enum skl_status sum_bias(const struct slabs *q, int first)
{
    if (!q->s->grad_bias.data)
        return SKL_OK;
    struct skl_gpu_sum_columns args = {.slab = q->run->memory.slab,
                                       .ld = q->args.ld,
                                       .dtype = q->dtype,
                                       .rows = q->args.rows,
                                       .columns = q->args.columns,
                                       .add = !first,
                                       .alpha = &q->run->memory.scalars->alpha[q->x],
                                       .sum = q->run->memory.sum_bias + q->args.first_column};
    int columns = skl_gpu_planned(&q->run->plan, SKL_ROLE_sum_columns)->columns;
    return skl_gpu_start(q->run, SKL_ROLE_sum_columns, (args.columns + columns - 1) / columns, 1, &args, sizeof args);
}

/* The k-th head of a in a group. */
static struct head head_of(const struct slabs *q, int64_t group, int64_t k)
{
    int64_t slabs = q->run->plan.slab_heads, heads = q->run->work.heads * slabs, number = group * q->group_heads + k;
    return (struct head){number / heads, number % heads, k, number % slabs};
}

/* One pass over a slab's rows and columns of the heads from the k-th of the group on that have slabs now. */
static enum skl_status add_slab(struct slabs *q, const struct pass *pass, int64_t group, int64_t k, int first_a,
                                int first_b)
{
    SKL_TRY(make_slab(q, pass));
    for (int64_t i = 0; i < q->run->plan.slab_heads; i++) {
        struct head head = head_of(q, group, k + i);
        SKL_TRY(product_a(q, &head, first_a));
        SKL_TRY(product_b(q, &head, first_b && i == 0));
    }
    return sum_bias(q, first_b);
}

/* All heads of a group and all their rows, for the slab's columns. */
static enum skl_status columns_of_group(struct slabs *q, int64_t group)
{
    const struct skl_work *w = &q->run->work;
    int64_t at_once = q->run->plan.slab_heads;
    int first = 1;
    for (int64_t k = 0; k < q->group_heads; k += at_once) {
        q->args.head = (int32_t)((group * q->group_heads + k) / at_once);
        for (int64_t row = 0; row < w->n; row += q->run->plan.slab_rows, first = 0) {
            int64_t left = w->n - row;
            q->args.first_row = (int32_t)row;
            q->args.rows = (int32_t)(left < q->run->plan.slab_rows ? left : q->run->plan.slab_rows);
            for (int i = 0; i < q->passes; i++)
                SKL_TRY(add_slab(q, &q->pass[i], group, k, q->args.first_column == 0 && i == 0, first && i == 0));
        }
    }
    return SKL_OK;
}

/* A 16-bit db leaves the workspace. */
static enum skl_status round_b(const struct slabs *q, int64_t group)
{
    const struct skl_work_side *s = q->s;
    if (!s->grad_b.data || skl_gpu_own_sum(&s->grad_b, s->dim))
        return SKL_OK;
    struct skl_operand to = s->grad_b;
    to.data = skl_operand_at(&s->grad_b, group / s->b_heads, group % s->b_heads, q->args.first_column);
    return skl_gpu_convert_matrix(q->run, &to, q->run->memory.sum_b, 1, 1, 0, q->args.columns, s->dim);
}

static enum skl_status round_a(const struct slabs *q, int64_t group)
{
    const struct skl_work *w = &q->run->work;
    const struct skl_work_side *s = q->s;
    if (q->run->plan.indexed)
        return skl_gpu_index_rows(q->run, group);
    if (!s->grad_a.data || skl_gpu_own_sum(&s->grad_a, s->dim))
        return SKL_OK;
    for (int64_t k = 0; k < q->group_heads; k++) {
        struct head head = head_of(q, group, k);
        struct skl_operand to = s->grad_a;
        to.data = skl_operand_at(&s->grad_a, head.b, head.h, 0);
        SKL_TRY(skl_gpu_convert_matrix(q->run, &to, q->run->memory.sum_a + k * w->n * s->dim, 1, 1, 0, w->n, s->dim));
    }
    return SKL_OK;
}

enum skl_status skl_gpu_slab_grad(const struct skl_gpu_run *run, int x)
{
    const struct skl_work *w = &run->work;
    struct slabs q = {.run = run, .s = &w->side[x], .dtype = skl_gpu_slab_dtype(w, &run->plan, x), .x = x};
    int64_t groups = w->attention ? w->batch * q.s->b_heads : 1;
    q.group_heads = run->plan.heads / groups * run->plan.slab_heads;
    SKL_TRY(choose_passes(&q));
    q.args.ld = run->plan.slab_columns;
    q.args.slab = run->memory.slab;
    q.args.dtype = q.dtype;
    for (int64_t group = 0; group < groups; group++) {
        SKL_TRY(skl_gpu_index_queries(run, group));
        for (int64_t column = 0; column < w->columns; column += run->plan.slab_columns) {
            int64_t left = w->columns - column;
            q.args.first_column = (int32_t)column;
            q.args.columns = (int32_t)(left < run->plan.slab_columns ? left : run->plan.slab_columns);
            SKL_TRY(columns_of_group(&q, group));
            SKL_TRY(round_b(&q, group));
        }
        SKL_TRY(round_a(&q, group));
    }
    struct skl_operand bias = {q.s->grad_bias.data, q.s->grad_bias.dtype, {0, 0, q.s->grad_bias.stride}};
    if (bias.data) /* as a matrix of rows of one entry, or of one row when it is contiguous */
        SKL_TRY(bias.stride[2] == 1 ? skl_gpu_convert_matrix(run, &bias, run->memory.sum_bias, 1, 1, 0, 1, w->columns)
                                    : skl_gpu_convert_matrix(run, &bias, run->memory.sum_bias, 1, 1, 0, w->columns, 1));
    return SKL_OK;
}
