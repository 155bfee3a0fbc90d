/* SPDX-License-Identifier: Apache-2.0
 *
 * A problem cut into slices of columns, as shards of a vocabulary or blocks of keys on several machines would hold
 * them: partial states, merged in a random grouping, finished; then each slice's backward from the whole LSEs.
 */
#include "cases.h"

enum { MOST_SLICES = 16 };

struct slice {
    struct skl_problem p;
    struct test_tensor begin, end;
    int64_t first;
    struct skl_state *state;
};

static int64_t height(const struct skl_side *side)
{
    return side->b.shape[side->b.ndim - 2];
}

/* The columns first .. last-1 as a problem of their own. Whatever the mask was, it becomes begin and end. */
static void cut(const struct test_fixture *f, int64_t first, int64_t last, struct slice *s)
{
    struct skl_problem *p = &s->p;
    const struct skl_tensor *a = &f->p.s.a;
    int padded = last == f->c.cols && (f->c.pad[S] || f->c.pad[T]); /* the last slice keeps the padding */
    int64_t n_s = last - first + (padded ? f->c.pad[S] : 0), n_t = last - first + (padded ? f->c.pad[T] : 0);
    enum test_layout layout = f->c.layout == TEST_BROADCAST ? TEST_GAPS : f->c.layout; /* rows differ in their ranges */
    *p = f->p;
    s->first = first;
    p->columns = padded ? last - first : 0;
    p->s.b = test_slice(p->s.b, first, n_s), p->s.bias = test_slice(p->s.bias, first, n_s);
    p->t.b = test_slice(p->t.b, first, n_t), p->t.bias = test_slice(p->t.bias, first, n_t);
    p->causal = 0, p->window_left = p->window_right = -1;
    s->begin = test_tensor(SKL_I32, a->ndim - 1, a->shape, 0, layout, f->c.place);
    s->end = test_tensor(SKL_I32, a->ndim - 1, a->shape, 0, layout, f->c.place);
    for (int64_t i = 0; i < skl_reference_rows(&f->p); i++) {
        int64_t lo, hi;
        skl_reference_range(&f->p, i, &lo, &hi);
        test_set(&s->begin.t, i, (double)(lo - first)), test_set(&s->end.t, i, (double)(hi - first));
    }
    p->begin = s->begin.t, p->end = s->end.t;
    s->state = calloc((size_t)skl_reference_rows(&f->p), sizeof *s->state);
}

static void free_slice(struct slice *s)
{
    test_tensor_free(&s->begin), test_tensor_free(&s->end);
    free(s->state);
}

/* The states of all slices, merged two by two in any order; the result is in one of them, which is returned. */
static struct skl_state *sweep(struct test_fixture *f, struct slice *slices, int64_t n, const struct skl_outputs *saved)
{
    struct skl_state *left[MOST_SLICES] = {NULL};
    int64_t rows = skl_reference_rows(&f->p);
    for (int64_t k = 0; k < n; k++) {
        memset(slices[k].state, TEST_CANARY, (size_t)rows * sizeof(struct skl_state));
        CHECK_STATUS(skl_partial(&slices[k].p, saved, slices[k].state), SKL_OK);
        left[k] = slices[k].state;
    }
    for (; n > 1; n--) {
        int64_t into = test_between(0, n - 1), from = (into + test_between(1, n - 1)) % n;
        CHECK_STATUS(skl_merge(rows, left[into], left[from]), SKL_OK);
        left[from] = left[n - 1];
    }
    return left[0];
}

/* What the slices' gradients of one a add up to, and how far off that may be: each slice is allowed its own error, on
 * its own scale, and its own rounding. */
struct total {
    double *sum, *slack;
};

static int add_slice(struct test_fixture *f, int output, struct total *total)
{
    const struct skl_tensor *t = &f->out[output].t;
    int64_t D = t->shape[t->ndim - 1];
    int wrong = !CHECK(test_take(&f->out[output], f->got), "a slice wrote outside of %s", test_output_name[output]);
    for (int64_t row = 0; row < test_count(t); row += D) {
        double largest = 0;
        for (int64_t i = row; i < row + D; i++)
            largest = fmax(largest, fabs(f->got[i]));
        for (int64_t i = row; i < row + D; i++) {
            total->sum[i] += f->got[i];
            total->slack[i] += 5e-6 * largest + test_half_ulp(t->dtype, f->got[i], f->got[i]);
        }
    }
    return wrong;
}

static int check_total(struct test_fixture *f, int output, const struct total *total)
{
    for (int64_t i = 0; i < test_count(&f->out[output].t); i++) {
        double bound = f->bound[output][i] + total->slack[i];
        if (!test_within(total->sum[i], f->want[output][i], bound))
            return !CHECK(0, "slices: %s[%lld] adds up to %.9g, expected %.9g within %.3g", test_output_name[output],
                          (long long)i, total->sum[i], f->want[output][i], bound);
    }
    CHECK(1, "%s", "");
    return 0;
}

/* Every slice's backward from the LSEs of the whole. Gradients of b and bias land in their place; those of a add up. */
static int backward(struct test_fixture *f, struct slice *slices, int64_t n, const struct skl_outputs *saved)
{
    static const int of_a[] = {A_S, A_T};
    struct skl_outputs whole = test_outputs(f, 0, GRAD_ALL);
    struct total totals[2] = {{NULL, NULL}, {NULL, NULL}};
    int wrong = 0;
    for (int g = 0; g < 2; g++) {
        size_t count = f->want[of_a[g]] ? (size_t)test_count(&f->out[of_a[g]].t) : 0;
        totals[g] = (struct total){calloc(count + 1, sizeof(double)), calloc(count + 1, sizeof(double))};
    }
    for (int64_t k = 0; k < n; k++) {
        const struct skl_problem *p = &slices[k].p;
        struct skl_outputs out = whole;
        out.s.b = test_slice(whole.s.b, slices[k].first, height(&p->s));
        out.t.b = test_slice(whole.t.b, slices[k].first, height(&p->t));
        out.s.bias = test_slice(whole.s.bias, slices[k].first, height(&p->s));
        out.t.bias = test_slice(whole.t.bias, slices[k].first, height(&p->t));
        CHECK_STATUS(skl_backward(p, saved, &out), SKL_OK);
        for (int g = 0; g < 2; g++)
            if (f->want[of_a[g]])
                wrong += add_slice(f, of_a[g], &totals[g]);
    }
    for (int g = 0; g < 2; g++) {
        if (f->want[of_a[g]])
            wrong += check_total(f, of_a[g], &totals[g]);
        free(totals[g].sum), free(totals[g].slack);
        *test_slot(&whole, of_a[g]) = (struct skl_tensor){0};
    }
    return wrong + test_compare(f, &whole, "slices' backward");
}

int test_run_slices(struct test_fixture *f, int64_t n)
{
    struct slice slices[MOST_SLICES];
    int64_t first = 0;
    for (int64_t k = 0; k < n; k++) {
        int64_t last = k == n - 1 ? f->c.cols : test_between(first + 1, f->c.cols - (n - 1 - k));
        cut(f, first, last, &slices[k]);
        first = last;
    }
    struct skl_outputs out = test_outputs(f, 1, 0), saved = out, lse = skl_no_outputs(), rest = out;
    if (f->c.divergence == SKL_JSD) { /* the second sweep needs the LSEs of all columns */
        lse.lse_s = out.lse_s, lse.lse_t = out.lse_t;
        rest.lse_s = rest.lse_t = (struct skl_tensor){0};
        CHECK_STATUS(skl_finish(&f->p, sweep(f, slices, n, NULL), &lse), SKL_OK);
        CHECK_STATUS(skl_finish(&f->p, sweep(f, slices, n, &lse), &rest), SKL_OK);
    } else {
        CHECK_STATUS(skl_finish(&f->p, sweep(f, slices, n, NULL), &out), SKL_OK);
    }
    saved.value = NULL;
    int wrong = backward(f, slices, n, &saved);
    wrong += test_compare(f, &out, "slices");
    for (int64_t k = 0; k < n; k++)
        free_slice(&slices[k]);
    return wrong;
}
