/* SPDX-License-Identifier: Apache-2.0
 * Cross-entropy beside a divergence and without a teacher, and what rows tell, against the reference in double; and what the
 * border refuses of labels. */
#include "cases.h"

enum { ROWS = 37, COLUMNS = 413, MANY = 5000, MOST = 4096, IGNORED = -100 };

/* The student's log-probabilities of a row at temperature 1, and the row's divergence at the problem's own. */
struct row {
    double log_q1[COLUMNS], grad_kl[COLUMNS], loss;
};

static void reference_row(const struct kit_fixture *f, int64_t i, double g, struct row *r)
{
    struct skl_problem at_1 = f->p;
    struct skl_reference_row of_1 = {.log_q = r->log_q1}, of_t = {.grad_x_s = r->grad_kl};
    at_1.temperature = 1, at_1.labels = NULL;
    skl_reference_row(&at_1, i, 1, &of_1);
    skl_reference_row(&f->p, i, g, &of_t);
    r->loss = of_t.loss;
}

/* NaN is the worst of all, and stays. */
static void keep_worst(double *worst, double x)
{
    if (!(x <= *worst))
        *worst = isnan(*worst) ? *worst : x;
}

/* What the loss and the student's gradients should be: dx = dx of the divergence + g weight scale (q' - [j = label]). */
static void check(struct kit_fixture *f, const struct skl_labels *l, const float *loss, const float *ce,
                  const float *da, const float *db, int teacher)
{
    int64_t D = f->c.dim[S];
    double *want_db = calloc((size_t)(COLUMNS * D), sizeof *want_db), count = 0, error[4] = {0},
           scale = kit_case_scale(&f->c, S);
    const int32_t *id = l->ids.data;
    for (int i = 0; i < ROWS; i++) count += id[i] != IGNORED;
    for (int i = 0; i < ROWS; i++) {
        static struct row r;
        double g = id[i] != IGNORED ? 1 / count : 0, want_da[MOST] = {0};
        reference_row(f, i, 1, &r);
        double want_ce = g != 0 ? -r.log_q1[id[i]] : 0,
               want = g != 0 ? l->kl_weight * r.loss * teacher + l->weight * want_ce : 0;
        keep_worst(&error[0], fabs((double)loss[i] - want) / (1 + fabs(want)));
        keep_worst(&error[1], fabs((double)ce[i] - want_ce) / (1 + want_ce));
        for (int j = 0; j < COLUMNS; j++) {
            double dx = g *
                        (l->kl_weight * r.grad_kl[j] * teacher + l->weight * scale * (exp(r.log_q1[j]) - (j == id[i])));
            for (int64_t d = 0; d < D; d++) {
                want_da[d] += dx * kit_get(&f->p.s.b, j * D + d);
                want_db[j * D + d] += dx * kit_get(&f->p.s.a, i * D + d);
            }
        }
        for (int64_t d = 0; d < D; d++) keep_worst(&error[2], fabs((double)da[i * D + d] - want_da[d]));
    }
    for (int64_t k = 0; k < COLUMNS * D; k++) keep_worst(&error[3], fabs((double)db[k] - want_db[k]));
    static const char *const name[4] = {"loss", "ce", "da", "db"};
    for (int k = 0; k < 4; k++) CHECK_NEAR(error[k], 0, 2e-6, name[k]);
    free(want_db);
}

static void fill_ids(int32_t *id)
{
    for (int i = 0; i < ROWS; i++) id[i] = i % 5 == 2 ? IGNORED : (int32_t)test_between(0, COLUMNS - 1);
}

static void compare(int dim, int divergence, double temperature, int teacher, int ways)
{
    static float loss[ROWS], ce[ROWS], da[ROWS * MOST], db[COLUMNS * MOST];
    static int32_t id[ROWS];
    struct kit_case c = kit_linear_case(ROWS, COLUMNS, dim);
    struct kit_fixture f;
    c.temperature = temperature;
    kit_set_divergence(&c, divergence);
    test_build(&f, &c);
    fill_ids(id);
    struct skl_labels l = {sizeof l, skl_vector(SKL_I32, id, ROWS), 0.7, 0.4, 0, IGNORED, 0, 0};
    struct skl_outputs out = skl_no_outputs(), saved = out;
    struct skl_problem whole = f.p;
    f.p.labels = &l;
    if (!teacher)
        memset(&f.p.t, 0, sizeof f.p.t);
    out.loss = skl_vector(SKL_F32, loss, ROWS), out.ce = skl_vector(SKL_F32, ce, ROWS);
    out.s.a = skl_matrix(SKL_F32, da, ROWS, dim), out.s.b = skl_matrix(SKL_F32, db, COLUMNS, dim);
    test_context("dim %d, %s, temperature %g, %s", dim, kit_divergence_names[divergence], temperature,
                 teacher ? "with a teacher" : "without");
    CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_OK);
    struct skl_problem one_sided = f.p;
    f.p = whole;
    check(&f, &l, loss, ce, da, db, teacher);
    if (ways) { /* the value alone, then a backward from what it wrote */
        static float rows[8][ROWS];
        struct skl_outputs grads = skl_no_outputs();
        saved.m_s = skl_vector(SKL_F32, rows[0], ROWS), saved.l_s = skl_vector(SKL_F32, rows[1], ROWS);
        saved.l1_s = skl_vector(SKL_F32, rows[2], ROWS), saved.loss = out.loss, saved.ce = out.ce;
        if (teacher) {
            saved.m_t = skl_vector(SKL_F32, rows[3], ROWS), saved.l_t = skl_vector(SKL_F32, rows[4], ROWS);
            saved.kl = skl_vector(SKL_F32, rows[5], ROWS);
            if (divergence > SKL_REVERSE_KL)
                saved.kl_s = skl_vector(SKL_F32, rows[6], ROWS), saved.kl_t = skl_vector(SKL_F32, rows[7], ROWS);
        }
        CHECK_STATUS(skl_value(&one_sided, &saved), SKL_OK);
        memset(da, 0xFF, sizeof da), memset(db, 0xFF, sizeof db);
        grads.s = out.s;
        CHECK_STATUS(skl_backward(&one_sided, &saved, &grads), SKL_OK);
        check(&f, &l, loss, ce, da, db, teacher);
    }
    test_destroy(&f);
    test_context("%s", "");
}

/* How many of x are above that of column 'of', if logits are known to within eps. */
static int above(const double *x, int columns, int of, double eps)
{
    int count = 0;
    for (int j = 0; j < columns; j++) count += j != of && x[j] > x[of] + eps;
    return count;
}

static int largest(const double *x, int columns)
{
    int at = 0;
    for (int j = 1; j < columns; j++) at = x[j] > x[at] ? j : at;
    return at;
}

/* A contiguous tensor over the rows of a. */
static struct skl_tensor over_rows(const struct skl_tensor *a, int dtype, void *data)
{
    struct skl_tensor t = *a;
    t.data = data, t.dtype = dtype, t.ndim = a->ndim - 1;
    for (int d = t.ndim - 1, next = 1; d >= 0; d--) t.stride[d] = next, next *= (int)t.shape[d];
    return t;
}

/* Ranks and tops of both sides, S and T, of all rows of a problem. */
struct ranks {
    int32_t rank[2][ROWS], top[2][ROWS];
};

static void find_ranks(const struct skl_problem *p, int others, struct ranks *r)
{
    static float tv[ROWS];
    struct skl_outputs out = skl_no_outputs();
    out.rank_s = over_rows(&p->s.a, SKL_I32, r->rank[S]), out.rank_t = over_rows(&p->s.a, SKL_I32, r->rank[T]);
    out.top1_s = over_rows(&p->s.a, SKL_I32, r->top[S]), out.top1_t = over_rows(&p->s.a, SKL_I32, r->top[T]);
    if (others)
        out.tv = over_rows(&p->s.a, SKL_F32, tv);
    CHECK_STATUS(skl_value(p, &out), SKL_OK);
}

/* Rounding may exchange columns that are this near: then either rank is right. */
static int check_rank(const double *x, const double *x_other, int columns, int row, int rank, int top_other)
{
    const double eps = 1e-5;
    if (x[largest(x, columns)] == -INFINITY) /* a row that sees nothing */
        return CHECK(rank == 0, "row %d sees nothing, rank %d", row, rank);
    int least = above(x, columns, top_other, eps), most = above(x, columns, top_other, -eps);
    CHECK(x_other[top_other] >= x_other[largest(x_other, columns)] - eps, "row %d: top1 %d", row, top_other);
    return CHECK(rank >= least && rank <= most, "row %d: rank %d, not %d to %d", row, rank, least, most);
}

/* Where each side's top stands in the other's order, over several tiles and chunks, with and without another second sweep,
 * kept and recomputed. */
static void ranks(const char *what, struct kit_case c, size_t limit, int others)
{
    static double log_p[2][MANY];
    static struct ranks found, again;
    struct kit_fixture f;
    int moved = 0;
    test_context("ranks, %s", what);
    test_build(&f, &c);
    f.p.workspace_limit = limit;
    find_ranks(&f.p, others, &found);
    for (int i = 0; i < ROWS; i++) {
        struct skl_reference_row r = {.log_q = log_p[S], .log_p = log_p[T]};
        skl_reference_row(&f.p, i, 1, &r);
        for (int side = 0; side < 2; side++) {
            check_rank(log_p[side], log_p[!side], (int)c.cols, i, found.rank[side][i], found.top[!side][i]);
            moved += found.rank[side][i] > 0;
        }
    }
    CHECK(moved > ROWS / 2, "only %d ranks are not 0", moved);
    f.p.threads = 3;
    find_ranks(&f.p, !others, &again);
    CHECK(!memcmp(&found, &again, sizeof found), "three threads, or other details, find other ranks");
    f.p.t = f.p.s;
    find_ranks(&f.p, others, &again);
    for (int i = 0; i < ROWS; i++)
        CHECK(again.rank[S][i] == 0 && again.rank[T][i] == 0, "row %d: equal sides, rank %d", i, again.rank[S][i]);
    test_destroy(&f);
    test_context("%s", "");
}

static void all_ranks(void)
{
    struct kit_case linear = kit_linear_case(ROWS, MANY, 20), wide = kit_linear_case(ROWS, COLUMNS, 300),
                    causal = kit_attention_case(ROWS, COLUMNS, 16);
    ranks("a vocabulary", linear, 0, 1);
    ranks("little memory", linear, (size_t)1 << 20, 0);
    linear.scale[S] = -1, linear.softcap[T] = 5, linear.divergence = SKL_JSD;
    ranks("a negative scale, a softcap, JSD", linear, 0, 0);
    ranks("wide rows", wide, 0, 0);
    causal.causal = causal.ranges = 1;
    ranks("causal attention, ranges", causal, 0, 1);
}

static void refused(const char *sentence, const struct skl_problem *p, const struct skl_outputs *out)
{
    CHECK_STATUS(skl_value(p, out), SKL_BAD_ARGUMENT);
    CHECK(strstr(skl_last_error(), sentence), "\"%s\" does not say \"%s\"", skl_last_error(), sentence);
}

static void border(void)
{
    static int32_t id[ROWS];
    static float ce[ROWS];
    struct kit_case c = kit_linear_case(ROWS, COLUMNS, 8), attention = kit_attention_case(ROWS, COLUMNS, 8);
    struct kit_fixture f, g;
    double value = 7;
    test_build(&f, &c), test_build(&g, &attention);
    fill_ids(id);
    struct skl_labels l = {sizeof l, skl_vector(SKL_I32, id, ROWS), 1, 1, 0, IGNORED, 0, 0}, bad = l;
    struct skl_outputs out = skl_no_outputs();
    out.value = &value, out.ce = skl_vector(SKL_F32, ce, ROWS);
    refused("out.ce", &f.p, &out); /* there are no labels */
    f.p.labels = &bad, g.p.labels = &bad;
    id[3] = COLUMNS, refused("labels.ids[3] = 413", &f.p, &out);
    id[3] = -1, refused("labels.ids[3] = -1", &f.p, &out);
    id[3] = 0;
    bad.smoothing = 1, refused("labels.smoothing = 1", &f.p, &out), bad = l;
    bad.weight = NAN, refused("labels.weight = nan", &f.p, &out), bad = l;
    bad.z_loss = -1, refused("labels.z_loss = -1", &f.p, &out), bad = l;
    bad.struct_size = 8, refused("labels.struct_size = 8", &f.p, &out), bad = l;
    bad.ids.shape[0] = ROWS - 1, refused("labels.ids.shape[0] = 36", &f.p, &out), bad = l;
    bad.ids.dtype = SKL_F32, refused("labels.ids.dtype", &f.p, &out), bad = l;
    refused("labels", &g.p, &out);
    f.p.num_items = -2, refused("num_items = -2", &f.p, &out), f.p.num_items = 0;
    struct skl_state state[ROWS];
    CHECK_STATUS(skl_partial(&f.p, NULL, state), SKL_BAD_ARGUMENT);
    CHECK(value == 7, "something was written");
    f.p.labels = NULL, memset(&f.p.t, 0, sizeof f.p.t);
    out.ce = (struct skl_tensor){0};
    refused("t.a", &f.p, &out); /* without labels there must be a teacher */
    kit_destroy(&f), kit_destroy(&g);
}

int main(void)
{
    static const int divergences[] = {SKL_FORWARD_KL, SKL_REVERSE_KL, SKL_JSD, SKL_ALPHA_BETA};
    test_begin("test_labels");
    for (int k = 0; k < COUNT(divergences); k++)
        for (int temperature = 1; temperature <= 2; temperature++) {
            compare(20, divergences[k], temperature, 1, 1);
            if (!test_quick())
                compare(300, divergences[k], temperature, 1, 0);
        }
    compare(20, SKL_FORWARD_KL, 1, 0, 1);
    compare(20, SKL_FORWARD_KL, 2, 0, 1);
    compare(300, SKL_FORWARD_KL, 1, 0, 1);
    all_ranks();
    border();
    return test_end();
}
