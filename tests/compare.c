/* SPDX-License-Identifier: Apache-2.0
 *
 * What a fixture should give, how far off it may be, and the ways to run it.
 */
#include "cases.h"

/* ------------------------------------------------------------------------------------------------ bounds --- */

/* A loss or a KL to m may be off by this much of itself, plus this much; so may an LSE, if its logits may. */
static const double ROW_RELATIVE = 2e-6, ROW_ABSOLUTE = 1e-6;
/* A gradient may be off by this much of the largest entry of its row ... */
static const double GRAD_RELATIVE = 5e-6;
/* ... plus what so many roundings of every logit, to f32's 2^-24, do to it: of the logit, of the LSE, of the LSE that a
 * backward was given. Where q and p nearly cancel, dz = q - p is small and the rounding of the two is not, so no f32
 * logit gives the first bound: one row's dz may be a whole db. */
static const double LOGIT_ROUNDINGS = 3;

/* A sum of D products rounds in proportion to sqrt(D); that is hidden in the constants up to D = 64. */
static double growth(const struct test_fixture *f)
{
    return fmax(1, sqrt((double)(f->c.dim[S] > f->c.dim[T] ? f->c.dim[S] : f->c.dim[T]) / 64));
}

/* What rounding the logits of a column can do to its dz, on both sides: |d(dz)/d(logits)| times that rounding. */
static void sensitivity(const struct skl_problem *p, double g, double logp, double logq,
                        const struct skl_reference_row *r, double *on_s, double *on_t)
{
    double pj = exp(logp), qj = exp(logq), d = logq - logp;
    double size = 1 + fabs(r->lse_s) + fabs(r->lse_t) + (pj > 0 ? fabs(logp) : 0) + (qj > 0 ? fabs(logq) : 0);
    g = LOGIT_ROUNDINGS * 0x1p-24 * size * fabs(g);
    if (p->divergence == SKL_JSD) {
        double p_over_m = -log(p->beta + (1 - p->beta) * exp(d)), q_over_m = -log(1 - p->beta + p->beta * exp(-d));
        *on_t = pj > 0 ? g * p->beta * pj * (fabs(p_over_m) + fabs(r->kl_t) + 1) : 0;
        *on_s = qj > 0 ? g * (1 - p->beta) * qj * (fabs(q_over_m) + fabs(r->kl_s) + 1) : 0;
        return;
    }
    int forward = p->divergence == SKL_FORWARD_KL;
    double first = forward ? pj : qj;
    double on_first = first > 0 ? g * first * (fabs(d) + fabs(r->loss) + 1) : 0, on_second = g * (pj + qj);
    *on_s = forward ? on_second : on_first;
    *on_t = forward ? on_first : on_second;
}

/* |dz/dx| without a softcap. */
static double slope(const struct test_fixture *f, int side)
{
    const struct test_case *c = &f->c;
    double scale = c->scale[side] != 0       ? fabs(c->scale[side])
                   : c->use == SKL_ATTENTION ? 1 / sqrt((double)c->dim[side])
                                             : 1;
    return scale / c->temperature;
}

/* Adds one row's share to the bounds of one side's gradients, element by element: |slope| sensitivity |operand|. */
static void add_sensitivity(struct test_fixture *f, int side, int64_t row, const double *of_column)
{
    const struct test_case *c = &f->c;
    const struct skl_tensor *a = &f->in[3 * side].t, *b = &f->in[3 * side + 1].t;
    double **bound = f->bound + (side == S ? A_S : A_T);
    int64_t D = c->dim[side], height = c->cols + c->pad[side], lo, hi, first = 0;
    if (c->use == SKL_ATTENTION) {
        int64_t head = row / c->rows % c->heads, batch = row / c->rows / c->heads, key_heads = b->shape[1];
        first = (batch * key_heads + head / (c->heads / key_heads)) * height;
    }
    skl_reference_range(&f->p, row, &lo, &hi);
    for (int64_t j = lo; j < hi; j++) {
        double size = growth(f) * slope(f, side) * of_column[j];
        for (int64_t d = 0; bound[0] && d < D; d++)
            bound[0][row * D + d] += size * fabs(test_get(b, (first + j) * D + d));
        for (int64_t d = 0; bound[1] && d < D; d++)
            bound[1][(first + j) * D + d] += size * fabs(test_get(a, row * D + d));
        if (bound[2])
            bound[2][j] += size;
    }
}

static double largest(const double *x, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(x[i]) && fabs(x[i]) > most)
            most = fabs(x[i]);
    return most;
}

static void bound_rows(struct test_fixture *f)
{
    for (int k = LOSS; k <= KL_T; k++) {
        double absolute = ROW_ABSOLUTE * (k == LSE_S || k == LSE_T ? growth(f) : 1), more = 1 + f->row_factor;
        for (int64_t i = 0; f->want[k] && i < skl_reference_rows(&f->p); i++)
            f->bound[k][i] = isfinite(f->want[k][i]) ? more * (ROW_RELATIVE * fabs(f->want[k][i]) + absolute) : 0;
    }
    f->value_bound = 0;
    for (int64_t i = 0; i < skl_reference_rows(&f->p); i++)
        f->value_bound += fabs(skl_reference_upstream(&f->p, i)) * f->bound[LOSS][i];
}

/* The row of a gradient is its last dimension, and all of a bias. */
static void bound_gradients(struct test_fixture *f)
{
    int64_t columns = skl_reference_columns(&f->p);
    double *work = malloc(6 * (size_t)columns * sizeof *work);
    double *on_s = work, *on_t = work + columns;
    double slope_s = slope(f, S), slope_t = slope(f, T);
    for (int64_t i = 0; i < skl_reference_rows(&f->p); i++) {
        struct skl_reference_row r = {0};
        double g = skl_reference_upstream(&f->p, i);
        r.log_p = work + 2 * columns, r.log_q = work + 3 * columns;
        r.grad_x_s = work + 4 * columns, r.grad_x_t = work + 5 * columns;
        if (g == 0)
            continue;
        skl_reference_row(&f->p, i, g, &r);
        for (int64_t j = 0; j < columns; j++) {
            sensitivity(&f->p, g, r.log_p[j], r.log_q[j], &r, on_s + j, on_t + j);
            on_s[j] = (1 + f->row_factor) * on_s[j] + f->dx_rounding * fabs(r.grad_x_s[j]) / slope_s;
            on_t[j] = (1 + f->row_factor) * on_t[j] + f->dx_rounding * fabs(r.grad_x_t[j]) / slope_t;
        }
        add_sensitivity(f, S, i, on_s), add_sensitivity(f, T, i, on_t);
    }
    free(work);
    for (int k = A_S; k < OUTPUTS; k++) {
        if (!f->want[k])
            continue;
        const struct skl_tensor *t = &f->out[k].t;
        int64_t row = t->shape[t->ndim - 1];
        for (int64_t i = 0; i < test_count(t); i += row) {
            double bound = GRAD_RELATIVE * largest(f->want[k] + i, row) + largest(f->bound[k] + i, row);
            for (int64_t j = 0; j < row; j++) f->bound[k][i + j] = bound;
        }
    }
}

void test_expect(struct test_fixture *f)
{
    struct skl_reference r = {0,
                              f->want[LOSS],
                              f->want[LSE_S],
                              f->want[LSE_T],
                              f->want[KL_S],
                              f->want[KL_T],
                              {f->want[A_S], f->want[B_S], f->want[BIAS_S]},
                              {f->want[A_T], f->want[B_T], f->want[BIAS_T]}};
    CHECK(skl_reference_run(&f->p, &r) == 0, "the reference is out of memory");
    f->want_value = r.value;
    for (int k = 0; k < OUTPUTS; k++)
        if (f->bound[k])
            memset(f->bound[k], 0, (size_t)test_count(&f->out[k].t) * sizeof(double));
    bound_rows(f);
    bound_gradients(f);
    f->checksum = test_checksum(f);
}

/* --------------------------------------------------------------------------------------------- comparing --- */

struct skl_outputs test_outputs(struct test_fixture *f, int with_rows, unsigned grads)
{
    struct skl_outputs out = skl_no_outputs();
    for (int k = 0; k < OUTPUTS; k++) {
        if (!f->out[k].t.data || (k < A_S ? !with_rows : !(grads >> (k - A_S) & 1)))
            continue;
        test_fill_canary(&f->out[k].memory);
        *test_slot(&out, k) = f->out[k].t;
    }
    if (with_rows) {
        f->value = NAN;
        out.value = &f->value;
    }
    return out;
}

/* The element that is furthest outside its bound, as a multiple of it; -1 if all are inside. */
static int64_t worst(const struct test_fixture *f, int k, double *excess)
{
    int64_t at = -1;
    *excess = 1;
    for (int64_t i = 0; i < test_count(&f->out[k].t); i++) {
        double want = f->want[k][i], got = f->got[i];
        double bound = f->bound[k][i] + test_half_ulp(f->out[k].t.dtype, got, want);
        if (test_within(got, want, bound))
            continue;
        double times = fabs(got - want) / bound;
        if (at < 0 || !(times <= *excess))
            at = i, *excess = times;
    }
    return at;
}

int test_compare(struct test_fixture *f, struct skl_outputs *out, const char *way)
{
    int wrong = 0;
    for (int k = 0; k < OUTPUTS; k++) {
        double excess;
        if (!test_slot(out, k)->data)
            continue;
        int clean = test_take(&f->out[k], f->got);
        wrong += !CHECK(clean, "%s wrote outside of %s", way, test_output_name[k]);
        int64_t i = worst(f, k, &excess), row = f->out[k].t.shape[f->out[k].t.ndim - 1];
        wrong += !CHECK(i < 0, "%s: %s[%lld, %lld] = %.9g, expected %.9g, off by %.3g, %.3g times its bound", way,
                        test_output_name[k], (long long)(i / row), (long long)(i % row), f->got[i < 0 ? 0 : i],
                        f->want[k][i < 0 ? 0 : i], i < 0 ? 0 : fabs(f->got[i] - f->want[k][i]), excess);
    }
    if (out->value)
        wrong += !CHECK(test_within(f->value, f->want_value, f->value_bound),
                        "%s: value = %.12g, expected %.12g within %.3g", way, f->value, f->want_value, f->value_bound);
    return wrong;
}

/* ------------------------------------------------------------------------------------------------- ways --- */

const char *const test_way_name[WAYS] = {"value", "value_and_grad", "least memory", "backward", "partial"};

size_t test_least_limit(const struct skl_problem *p, enum skl_call call, const struct skl_outputs *out)
{
    struct skl_problem q = *p;
    size_t refused = 0, taken, bytes;
    q.workspace_limit = 0;
    if (skl_workspace_size(call, &q, out, &taken) != SKL_OK || taken == 0)
        return 1;
    while (taken - refused > 1) {
        q.workspace_limit = refused + (taken - refused) / 2;
        if (skl_workspace_size(call, &q, out, &bytes) == SKL_OK)
            taken = q.workspace_limit;
        else
            refused = q.workspace_limit;
    }
    return taken;
}

int test_run(struct test_fixture *f, enum test_way way)
{
    const char *name = test_way_name[way];
    struct skl_problem p = f->p;
    struct skl_outputs out = test_outputs(f, way != WAY_BACKWARD, way == WAY_VALUE ? 0 : GRAD_ALL);
    if (way == WAY_PARTIAL)
        return test_run_slices(f, test_between(1, f->c.cols < 5 ? f->c.cols : 5));
    if (way == WAY_VALUE) {
        CHECK_STATUS(skl_value(&p, &out), SKL_OK);
    } else if (way == WAY_BACKWARD) {
        struct skl_outputs saved = test_outputs(f, 1, 0);
        saved.value = NULL;
        CHECK_STATUS(skl_value(&p, &saved), SKL_OK);
        CHECK_STATUS(skl_backward(&p, &saved, &out), SKL_OK);
    } else {
        if (way == WAY_RECOMPUTE)
            p.workspace_limit = test_least_limit(&p, SKL_CALL_VALUE_AND_GRAD, &out);
        CHECK_STATUS(skl_value_and_grad(&p, &out), SKL_OK);
    }
    return test_compare(f, &out, name);
}

int test_all_ways(const struct test_case *c)
{
    static const enum skl_isa isas[] = {SKL_ISA_BASELINE, SKL_ISA_AVX2, SKL_ISA_AVX512, SKL_ISA_NEON};
    struct test_fixture f;
    char text[512];
    int wrong = 0;
    test_build(&f, c);
    test_expect(&f);
    test_describe(c, text, sizeof text);
    for (int k = 0; k < COUNT(isas); k++) {
        if (!skl_isa_available(isas[k]))
            continue;
        f.p.isa = isas[k];
        test_context("%s: %s", skl_isa_name(isas[k]), text);
        for (int way = 0; way < WAYS; way++) wrong += test_run(&f, way);
    }
    test_destroy(&f);
    test_context("%s", "");
    return wrong;
}
