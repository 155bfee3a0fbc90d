/* SPDX-License-Identifier: Apache-2.0
 *
 * The promises of tests/test_exact.c on the emulated device. Where the truth is exactly 0 (identical sides, one column,
 * flat rows) so are loss and gradients, in every call and in every family of kernels; a constant between the sides, and
 * logits as large as 1e30, cost no more digits than softmax and KL written out in f32 lose on them.
 */
#include "../eager.h"
#include "families.h"

/* ------------------------------------------------------------------------------------------------ fixtures --- */

enum { IN_A, IN_B, IN_BIAS, IN_SIDE }; /* inputs of the student; the teacher's are IN_SIDE behind */

/* m and l of both sides, which the fixture does not know. */
struct references {
    struct kit_tensor m[2], l[2];
};

static struct kit_tensor row_tensor(const struct kit_fixture *f)
{
    const struct skl_tensor *a = &f->p.s.a;
    struct kit_tensor t = kit_tensor(&test_memory, SKL_F32, a->ndim - 1, a->shape, 0, KIT_DENSE, KIT_ALIGNED);
    emu_adopt(t.memory.data, t.memory.size);
    t.t.device = SKL_CUDA;
    return t;
}

static void free_row_tensor(struct kit_tensor *t)
{
    emu_release(t->memory.data);
    kit_tensor_free(&test_memory, t);
}

static void begin(struct kit_fixture *f, struct references *r)
{
    test_device_adopt(f);
    f->checksum = kit_checksum(f);
    for (int side = 0; side < 2; side++) r->m[side] = row_tensor(f), r->l[side] = row_tensor(f);
}

static void end(struct kit_fixture *f, struct references *r)
{
    for (int side = 0; side < 2; side++) free_row_tensor(&r->m[side]), free_row_tensor(&r->l[side]);
    test_device_release(f);
    test_destroy(f);
}

/* Loss, m, l and what a second sweep adds, but no LSE: that is what a backward without loss of digits takes. */
static struct skl_outputs saved_rows(struct kit_fixture *f, const struct references *r)
{
    struct skl_outputs o = kit_outputs(f, 1, 0);
    o.lse_s = o.lse_t = (struct skl_tensor){0};
    o.m_s = r->m[S].t, o.m_t = r->m[T].t, o.l_s = r->l[S].t, o.l_t = r->l[T].t;
    if (kit_divergences[f->c.divergence].sweeps == 1)
        o.kl_s = o.kl_t = (struct skl_tensor){0};
    return o;
}

/* -------------------------------------------------------------------------------------------------- calls --- */

static void value_then_backward(struct kit_fixture *f, const struct references *r)
{
    struct skl_outputs saved = saved_rows(f, r), out = kit_outputs(f, 0, KIT_GRAD_ALL);
    CHECK_STATUS(skl_value(&f->p, &saved), SKL_OK);
    saved.value = NULL, out.value = NULL;
    CHECK_STATUS(skl_backward(&f->p, &saved, &out), SKL_OK);
}

/* Two shards of the columns: states, merged and finished (after each sweep), then a backward of each shard. Gradients
 * of a are those of the second shard, which the first must not have spoilt: every one is 0. */
static void shards(struct kit_fixture *f, const struct references *r)
{
    int64_t rows = skl_reference_rows(&f->p), cut = f->c.cols / 3, first[2] = {0, cut}, n[2] = {cut, f->c.cols - cut};
    struct skl_state *state[2];
    struct skl_problem p[2];
    struct skl_outputs saved = saved_rows(f, r), none = skl_no_outputs();
    for (int k = 0; k < 2; k++) {
        p[k] = f->p, p[k].causal = 0;
        p[k].s.b = kit_slice(f->p.s.b, first[k], n[k]), p[k].s.bias = kit_slice(f->p.s.bias, first[k], n[k]);
        p[k].t.b = kit_slice(f->p.t.b, first[k], n[k]), p[k].t.bias = kit_slice(f->p.t.bias, first[k], n[k]);
        state[k] = emu_allocate((size_t)rows * sizeof **state);
    }
    for (int sweep = 0; sweep < kit_divergences[f->c.divergence].sweeps; sweep++) {
        struct skl_outputs out = saved, before = saved;
        before.value = NULL;
        for (int k = 0; k < 2; k++) CHECK_STATUS(skl_partial(&p[k], sweep ? &before : NULL, state[k]), SKL_OK);
        CHECK_STATUS(skl_merge(rows, state[0], state[1]), SKL_OK);
        if (sweep) /* the second sweep's states know no LSEs */
            out.m_s = out.m_t = out.l_s = out.l_t = none.m_s;
        CHECK_STATUS(skl_finish(&p[0], state[0], &out), SKL_OK);
    }
    saved.value = NULL;
    for (int k = 0; k < 2; k++) {
        struct skl_outputs out = kit_outputs(f, 0, k ? 0 : KIT_GRAD_ALL), whole = out;
        out.value = NULL;
        if (k) /* without the canary: what the first shard wrote is still there */
            for (int g = KIT_A_S; g < KIT_RESULTS; g++) *kit_slot(&whole, g) = f->out[g].t;
        out = whole, out.value = NULL;
        out.s.b = kit_slice(whole.s.b, first[k], n[k]), out.s.bias = kit_slice(whole.s.bias, first[k], n[k]);
        out.t.b = kit_slice(whole.t.b, first[k], n[k]), out.t.bias = kit_slice(whole.t.bias, first[k], n[k]);
        CHECK_STATUS(skl_backward(&p[k], &saved, &out), SKL_OK);
        emu_release(state[k]);
    }
}

/* ------------------------------------------------------------------------------------------ exactly nothing --- */

static int all_zero(const struct skl_tensor *t)
{
    int zero = 1;
    for (int64_t i = 0; t->data && i < kit_count(t); i++) zero &= kit_get(t, i) == 0;
    return zero;
}

static void expect_nothing(struct kit_fixture *f, const char *call)
{
    CHECK(f->value == 0, "%s: value %g", call, f->value);
    CHECK(all_zero(&f->out[KIT_LOSS].t), "%s: a loss is not 0", call);
    for (int k = KIT_A_S; k < KIT_RESULTS; k++)
        CHECK(all_zero(&f->out[k].t), "%s: %s is not 0", call, kit_results[k].name);
    test_device_clean(call);
    test_device_reset();
}

static void run_all(struct kit_fixture *f)
{
    struct references r;
    begin(f, &r);
    struct skl_outputs out = kit_outputs(f, 1, KIT_GRAD_ALL);
    CHECK_STATUS(skl_value_and_grad(&f->p, &out), SKL_OK);
    expect_nothing(f, "value_and_grad");
    value_then_backward(f, &r);
    expect_nothing(f, "value, then backward");
    if (f->c.cols > 2 && !f->c.causal) {
        shards(f, &r);
        expect_nothing(f, "shards");
    }
    end(f, &r);
}

/* Values of one input become those of another, or all of a head's columns those of its first. */
static void copy_input(struct kit_fixture *f, int to, int from)
{
    for (int64_t i = 0; f->in[to].memory.data && i < kit_count(&f->in[to].t); i++)
        kit_set(&f->in[to].t, i, kit_get(&f->in[from].t, i));
}

static void flatten(struct kit_fixture *f, int side)
{
    const struct skl_tensor *b = &f->in[side * IN_SIDE + IN_B].t, *bias = &f->in[side * IN_SIDE + IN_BIAS].t;
    int64_t dim = f->c.dim[side], head = f->c.cols * dim;
    for (int64_t i = 0; i < kit_count(b); i++) kit_set(b, i, kit_get(b, i / head * head + i % dim));
    for (int64_t j = 1; f->in[side * IN_SIDE + IN_BIAS].memory.data && j < f->c.cols; j++)
        kit_set(bias, j, kit_get(bias, 0));
}

static void multiply_input(struct kit_fixture *f, int which, double factor)
{
    for (int64_t i = 0; f->in[which].memory.data && i < kit_count(&f->in[which].t); i++)
        kit_set(&f->in[which].t, i, factor * kit_get(&f->in[which].t, i));
}

static void add_to_input(struct kit_fixture *f, int which, double offset)
{
    for (int64_t i = 0; f->in[which].memory.data && i < kit_count(&f->in[which].t); i++)
        kit_set(&f->in[which].t, i, offset + kit_get(&f->in[which].t, i));
}

/* Every divergence with each of the three kinds of rows; without STREAMKL_TEST_LONG one in sixteen of these, in turn with
 * 'turn', so that sixteen calls have all. */
static void exact_zeros_of(struct kit_case c, const char *name, int any_order, double size, int turn)
{
    for (int kind = 0; kind < 3; kind++)
        for (int d = 0; d < KIT_DIVERGENCE_COUNT; d++) {
            if ((kind + 3 * d + turn) % 16 != 0 && !test_long())
                continue;
            struct kit_case each = c;
            struct kit_fixture f;
            kit_set_divergence(&each, d);
            if (kind == 2)
                each.cols = 1;
            test_build(&f, &each);
            f.p.any_order = any_order;
            if (kind == 0)
                for (int k = 0; k < IN_SIDE; k++) copy_input(&f, IN_SIDE + k, k);
            else
                flatten(&f, S), flatten(&f, T), add_to_input(&f, IN_SIDE + IN_BIAS, 1000 * size);
            multiply_input(&f, IN_A, size), multiply_input(&f, IN_SIDE + IN_A, size);
            test_context("%s, %s, %s, size %g", name,
                         kind == 0   ? "identical sides"
                         : kind == 1 ? "flat rows"
                                     : "one column",
                         kit_divergence_names[d], size);
            run_all(&f);
        }
}

/* Attention in every family of kernels; a vocabulary by slabs in each type, with biases that move the teacher. */
static void exact_zeros(void)
{
    static const struct {
        int32_t type;
        int64_t dim;
        double size;
    } linear[] = {{SKL_F32, 21, 1},     {SKL_F32, 21, 1e8},   {SKL_F32, 21, 1e28}, {SKL_BF16, 24, 1},
                  {SKL_BF16, 24, 1e28}, {SKL_BF16, 264, 1e8}, {SKL_F16, 40, 30}};
    int turn = 0;
    for (int k = 0; k < COUNT(families); k++) {
        struct kit_case c = family_case(&families[k], 20, 150);
        if (families[k].extra && !test_long())
            continue;
        c.causal = k % 2, c.weights = k % 3 == 0 ? KIT_POSITIVE : KIT_UNWEIGHTED;
        c.softcap[S] = c.softcap[T] = k % 4 == 1 ? 7.3 : 0;
        exact_zeros_of(c, families[k].gradient, families[k].any_order, 1, turn++);
    }
    for (int k = 0; k < COUNT(linear); k++) {
        struct kit_case c = kit_linear_case(20, 150, linear[k].dim);
        c.dtype[S] = c.dtype[T] = linear[k].type, c.place = KIT_ALIGNED;
        c.bias[S] = c.bias[T] = 1 + linear[k].type;
        exact_zeros_of(c, linear[k].type == SKL_F32 ? "linear f32" : "linear 16 bits", 0, linear[k].size, turn++);
    }
}

/* -------------------------------------------------------------------------------------------- against eager --- */

static const struct {
    int32_t type;
    int64_t dim;
    const char *name;
} kernels[] = {{SKL_F32, 21, "plain"}, {SKL_BF16, 24, "forward"}, {SKL_BF16, 264, "stream"}};

/* One row, so that the gradient of a bias is dz. Teacher: offset, or a student disturbed by a tenth. */
static struct kit_case one_row(int k)
{
    struct kit_case c = kit_linear_case(1, 150, kernels[k].dim);
    c.dtype[S] = c.dtype[T] = kernels[k].type, c.place = KIT_ALIGNED;
    c.bias[S] = c.bias[T] = 1 + SKL_F32;
    c.scale[S] = c.scale[T] = 1, c.spread = 2;
    return c;
}

static void eager_row(const struct kit_fixture *f, struct eager *e)
{
    static float z[2][EAGER_COLUMNS];
    for (int side = 0; side < 2; side++)
        for (int64_t j = 0; j < f->c.cols; j++) {
            const struct kit_tensor *in = &f->in[side * IN_SIDE];
            int64_t dim = f->c.dim[side];
            float x = 0;
            for (int64_t d = 0; d < dim; d++)
                x = fmaf((float)kit_get(&in[IN_A].t, d), (float)kit_get(&in[IN_B].t, j * dim + d), x);
            z[side][j] = x + (float)kit_get(&in[IN_BIAS].t, j);
        }
    run_eager((int)f->c.cols, z, e);
}

static void add_row(struct kit_fixture *f, struct squares *sum)
{
    static const int dz[2] = {KIT_BIAS_S, KIT_BIAS_T};
    struct references r;
    struct eager e = {0};
    eager_row(f, &e);
    kit_expect(f);
    begin(f, &r);
    value_then_backward(f, &r);
    test_device_clean("one row");
    add_squares(f->want[KIT_LOSS][0], kit_get(&f->out[KIT_LOSS].t, 0), (double)e.loss, sum->loss);
    for (int side = 0; side < 2; side++)
        for (int64_t j = 0; j < f->c.cols; j++)
            add_squares(f->want[dz[side]][j], kit_get(&f->out[dz[side]].t, j), (double)e.dz[side][j], sum->dz[side]);
    end(f, &r);
}

/* Of each dx before the gradient products: 8 and 11 significant bits. Both sides have one type here. */
static double dx_rounding(const struct kit_case *c)
{
    return c->dtype[S] == SKL_BF16 ? 0x1p-8 : c->dtype[S] == SKL_F16 ? 0x1p-11 : 0;
}

/* offset: added to the teacher's logits. size: of the logits; 0: as they are. */
static void as_good_as_eager(int k, int rows, double offset, double size)
{
    struct kit_case c = one_row(k);
    struct squares sum = {{0}, {{0}, {0}}};
    test_context("%s kernels, teacher's logits %+g, size %g", kernels[k].name, offset, size);
    for (int row = 0; row < rows; row++) {
        struct kit_fixture f;
        test_build(&f, &c);
        add_to_input(&f, IN_SIDE + IN_BIAS, offset);
        if (size != 0) {
            multiply_input(&f, IN_A, size), multiply_input(&f, IN_BIAS, size);
            for (int i = 0; i < IN_SIDE; i++) copy_input(&f, IN_SIDE + i, i);
            for (int64_t d = 0; d < c.dim[T]; d++)
                kit_set(&f.in[IN_SIDE + IN_A].t, d, kit_get(&f.in[IN_A].t, d) * (1 + 0.1 * test_normal()));
        }
        add_row(&f, &sum);
    }
    check_squares(&sum, rows, size != 0 ? 3 * size : 8, dx_rounding(&c));
}

static void against_eager(void)
{
    for (int k = 0; k < COUNT(kernels); k++) {
        int rows = test_long() ? 60 : k == 0 ? 16 : 8;
        for (int offset = -1000; offset <= 1000; offset += test_first(2000, 1000)) as_good_as_eager(k, rows, offset, 0);
        for (int power = 2; power <= 30; power += test_first(28, 4)) as_good_as_eager(k, rows, 0, pow(10, power));
    }
}

/* ------------------------------------------------------------------------------------------------- limits --- */

/* P has mass where Q has none, in an early column; later ones raise both references by more than any f32 factor can
 * tell. The divergence stays infinite. */
static void infinity_stays(void)
{
    for (int k = 0; k < COUNT(kernels); k++) {
        struct kit_case c = kit_linear_case(3, 150, kernels[k].dim);
        struct kit_fixture f;
        c.dtype[S] = c.dtype[T] = kernels[k].type, c.place = KIT_ALIGNED;
        c.bias[S] = c.bias[T] = 1 + SKL_F32, c.grads = 0;
        test_build(&f, &c);
        kit_set(&f.in[IN_BIAS].t, 1, (double)-INFINITY);
        for (int64_t j = 0; j < c.cols; j++)
            for (int side = 0; side < 2; side++)
                if (j > 60) {
                    int64_t steps = j / 30;
                    kit_set(&f.in[side * IN_SIDE + IN_BIAS].t, j, 200 * (double)steps);
                }
        test_context("infinity, %s kernels", kernels[k].name);
        test_device_adopt(&f);
        f.checksum = kit_checksum(&f);
        struct skl_outputs out = kit_outputs(&f, 1, 0);
        CHECK_STATUS(skl_value(&f.p, &out), SKL_OK);
        for (int64_t i = 0; i < c.rows; i++)
            CHECK(kit_get(&f.out[KIT_LOSS].t, i) == (double)INFINITY, "a loss is %g", kit_get(&f.out[KIT_LOSS].t, i));
        test_device_release(&f);
        test_destroy(&f);
    }
}

/* Over many rows no loss is below what the rounding of its terms leaves. */
static void never_negative(void)
{
    for (int k = 0; k < COUNT(kernels) - 1; k++) {
        struct kit_case c = kit_linear_case(128, 40, 8);
        double least = 0;
        int n = test_first(KIT_DIVERGENCE_COUNT, 300);
        c.dtype[S] = c.dtype[T] = kernels[k].type, c.place = KIT_ALIGNED;
        c.bias[S] = c.bias[T] = 1 + SKL_F32, c.grads = 0;
        for (int i = 0; i < n; i++) {
            struct kit_fixture f;
            c.spread = pow(10, test_uniform() * 3 - 2);
            kit_set_divergence(&c, i % KIT_DIVERGENCE_COUNT);
            test_build(&f, &c);
            for (int in = 0; in < IN_SIDE; in++) copy_input(&f, IN_SIDE + in, in);
            for (int64_t j = 0; j < c.cols; j++) /* a disturbed student, sometimes moved by a constant */
                kit_set(&f.in[IN_SIDE + IN_BIAS].t, j,
                        kit_get(&f.in[IN_BIAS].t, j) + 1e-3 * test_normal() + (i % 2 ? 100 : 0));
            test_device_adopt(&f);
            f.checksum = kit_checksum(&f);
            struct skl_outputs out = kit_outputs(&f, 1, 0);
            CHECK_STATUS(skl_value(&f.p, &out), SKL_OK);
            for (int64_t row = 0; row < c.rows; row++) least = fmin(least, kit_get(&f.out[KIT_LOSS].t, row));
            test_device_release(&f);
            test_destroy(&f);
        }
        test_context("never negative, %s kernels", kernels[k].name);
        CHECK(least >= -1e-6, "the least loss is %g", least);
        printf("%s kernels: least loss of %d rows %g\n", kernels[k].name, n * (int)c.rows, least);
    }
}

int main(void)
{
    test_begin("test_exact");
    test_device_begin();
    infinity_stays();
    exact_zeros();
    against_eager();
    never_negative();
    return test_end();
}
