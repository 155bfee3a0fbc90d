/* SPDX-License-Identifier: Apache-2.0
 *
 * Every value of every option, and every pair that could meet badly: masks, dtypes, layouts, gradients asked for. All
 * ways, all divergences, every instruction set here.
 */
#include "cases.h"

static void every_divergence(struct kit_case c)
{
    for (int k = 0; k < KIT_SMOOTH_COUNT; k++) {
        kit_set_smooth(&c, k);
        test_all_ways(&c);
    }
}

static void masks(void)
{
    static const struct {
        int64_t rows, cols, left, right;
        int causal;
    } table[] = {
        {40, 40, -1, -1, 1},   {40, 150, -1, -1, 1},    {150, 40, -1, -1, 1}, /* above the diagonal: 110 empty rows */
        {140, 140, 16, -1, 1}, {140, 140, 0, 0, 0},     {60, 300, 130, 5, 0}, {60, 300, -1, 7, 0}, {60, 300, 9, -1, 0},
        {300, 60, 3, 3, 0},    {20, 20, 1000, 1000, 0}, {33, 290, 128, 0, 1}, {1, 270, -1, -1, 1}, {270, 1, -1, -1, 1},
    };
    for (int k = 0; k < COUNT(table); k++) {
        if (test_quick() && k % 3)
            continue;
        struct kit_case c = kit_attention_case(table[k].rows, table[k].cols, 24);
        c.causal = table[k].causal, c.left = table[k].left, c.right = table[k].right;
        every_divergence(c);
        c.ranges = 1, c.weights = KIT_SOME_ZERO;
        every_divergence(c);
    }
}

static void heads(void)
{
    static const int64_t table[][3] = {{6, 6, 6}, {6, 1, 6}, {6, 3, 2}, {8, 4, 1}}; /* H, Hkv of s, Hkv of t */
    for (int k = 0; k < COUNT(table); k++) {
        struct kit_case c = kit_attention_case(19, 45, 16);
        c.batch = 2, c.heads = table[k][0], c.key_heads[S] = table[k][1], c.key_heads[T] = table[k][2];
        c.dim[T] = 40, c.causal = k % 2, c.layout = k % KIT_LAYOUTS;
        every_divergence(c);
    }
}

static void dtypes(void)
{
    for (int k = 0; k < 36; k++) {
        struct kit_case c = k % 2 ? kit_linear_case(21, 70, 33) : kit_attention_case(21, 70, 33);
        c.dtype[S] = k / 2 % 3, c.dtype[T] = k / 6 % 3, c.own = k / 18;
        if (c.use == SKL_LINEAR)
            c.bias[S] = 1 + k / 6 % 3, c.bias[T] = 1 + k / 2 % 3, c.pad[T] = 5;
        if (!test_quick() || k % 5 == 0)
            every_divergence(c);
    }
}

/* The gradients that are not asked for are neither written nor needed by the others. */
static void subsets(void)
{
    for (unsigned grads = 1; grads <= KIT_GRAD_ALL; grads++) {
        struct kit_case c = kit_linear_case(17, 40, 9);
        c.bias[S] = c.bias[T] = 1;
        c.grads = grads;
        kit_set_smooth(&c, (int)grads);
        if (!test_quick() || grads % 9 == 0)
            test_all_ways(&c);
    }
}

static void layouts(void)
{
    for (int layout = 0; layout < KIT_LAYOUTS; layout++)
        for (int place = 0; place < KIT_PLACES; place++)
            for (int use = 0; use < 2; use++) {
                struct kit_case c = use ? kit_linear_case(9, 50, 21) : kit_attention_case(18, 50, 21);
                c.batch = 2, c.heads = 3, c.lead = 1 + (layout + place) % 3;
                c.layout = layout, c.place = place;
                c.dtype[S] = place, c.dtype[T] = (place + layout) % 3, c.own = 1;
                c.ranges = place == 0, c.weights = place;
                kit_set_smooth(&c, layout + place);
                test_all_ways(&c);
            }
}

static void logits(void)
{
    static const struct {
        double scale[2], softcap[2], temperature, beta;
    } table[] = {
        {{0, 0}, {0, 0}, 4, 0.5},  {{0, 0}, {0, 0}, 0.3, 0.01}, {{0.2, 3}, {0, 0}, 1, 0.99},  {{-1, 1}, {0, 0}, 1, 0.3},
        {{0, 0}, {30, 0}, 1, 0.5}, {{0, 0}, {0, 1.5}, 2, 0.5},  {{0.5, 2}, {5, 5}, 0.5, 0.7},
    };
    for (int k = 0; k < COUNT(table); k++)
        for (int use = 0; use < 2; use++) {
            struct kit_case c = use ? kit_linear_case(13, 60, 18) : kit_attention_case(13, 60, 18);
            for (int s = 0; s < 2; s++) {
                c.scale[s] = table[k].scale[s], c.softcap[s] = table[k].softcap[s];
                c.bias[s] = use ? 1 : 0;
            }
            c.temperature = table[k].temperature, c.beta = table[k].beta;
            if (!test_quick() || k % 2)
                every_divergence(c);
        }
}

static void weights(void)
{
    for (int kind = 0; kind < KIT_WEIGHTINGS; kind++)
        for (int reduction = 0; reduction < 2; reduction++) {
            struct kit_case c = kit_linear_case(41, 30, 8);
            c.weights = kind, c.reduction = kind == KIT_SIGNED ? SKL_SUM : reduction, c.lead = 3, c.batch = 2;
            every_divergence(c);
        }
}

/* skip_below = x leaves out nothing but entries with |dz| at most x |g|: each entry of dz is off by x |g| at most, so
 * da by at most x |g| |slope| sum_j |b_j|, db by x |slope| sum_i |g_i| |a_i| and the bias by x sum_i |g_i|. */
static void allow_left_out(struct kit_fixture *f, int o)
{
    int of_a = o == KIT_A_S || o == KIT_A_T;
    const struct skl_tensor *other = &f->in[o - KIT_A_S + (of_a ? 1 : -1)].t; /* b for a, a for b */
    int64_t width = o == KIT_BIAS_S ? 1 : f->c.dim[S], n = of_a ? f->c.cols : f->c.rows;
    double slope = f->c.use ? 1 : 1 / sqrt((double)f->c.dim[S]);
    for (int64_t d = 0; d < width; d++) {
        double sum = 0;
        for (int64_t k = 0; k < n; k++)
            sum += (of_a ? 1 : fabs(skl_reference_upstream(&f->p, k))) *
                   (o == KIT_BIAS_S ? 1 : fabs(kit_get(other, k * width + d)));
        for (int64_t i = d; i < kit_count(&f->out[o].t); i += width) {
            double g = of_a ? fabs(skl_reference_upstream(&f->p, i / width)) : 1;
            f->bound[o][i] += f->p.skip_below * g * slope * sum;
        }
    }
}

/* Gradients change by what is left out at most, values not at all. */
static void skipping(void)
{
    static const double limits[] = {0, 1e-7, 1e-4, 1e-2};
    for (int k = 0; k < COUNT(limits) * 6; k++) {
        struct kit_fixture f;
        struct kit_case c = k % 2 ? kit_linear_case(45, 500, 12) : kit_attention_case(45, 500, 12);
        c.divergence = k / 2 % 3, c.spread = 4, c.reduction = SKL_SUM, c.bias[S] = k % 2;
        test_build(&f, &c);
        kit_expect(&f);
        f.p.skip_below = limits[k / 6];
        test_context("skip_below %g, divergence %d, use %d", f.p.skip_below, c.divergence, c.use);
        /* Four times: unlike the other bounds, which are of the size of the rounding, this allows for large logits. */
        for (int o = 0; o < KIT_RESULTS; o++) {
            for (int64_t i = 0; f.want[o] && i < kit_count(&f.out[o].t); i++) f.bound[o][i] *= 4;
            if (f.want[o] && o >= KIT_A_S)
                allow_left_out(&f, o);
        }
        f.value_bound *= 4;
        test_run(&f, KIT_TOGETHER), test_run(&f, KIT_RECOMPUTE), test_run(&f, KIT_BACKWARD);
        test_destroy(&f);
    }
}

/* What the call just wrote becomes what is expected, the gradients up to the rounding of f32 sums (a tile unit takes dz
 * in two parts of bf16, a list in f32) and what the problem leaves out. */
static void expect_the_same(struct kit_fixture *f)
{
    double rounding = test_bf16() && skl_isa_available(SKL_ISA_AMX) ? 0x1p-15 : 1e-6;
    for (int o = 0; o < KIT_RESULTS; o++) {
        int64_t n = f->want[o] ? kit_count(&f->out[o].t) : 0;
        double largest = 0;
        for (int64_t i = 0; i < n; i++) {
            f->want[o][i] = kit_get(&f->out[o].t, i);
            largest = fmax(largest, fabs(f->want[o][i]));
        }
        CHECK(o < KIT_A_S || !n || largest >= 1e-4, "%s is nowhere larger than %g", kit_results[o].name, largest);
        for (int64_t i = 0; i < n; i++) f->bound[o][i] = o < KIT_A_S ? 0 : rounding * largest;
        if (n && o >= KIT_A_S)
            allow_left_out(f, o);
    }
    f->want_value = f->value, f->value_bound = 0;
}

static void expect_dense(struct kit_fixture *f, enum kit_way way)
{
    double skip_below = f->p.skip_below;
    f->p.skip_below = 0;
    kit_outputs(f, 1, KIT_GRAD_ALL);
    CHECK_STATUS(kit_call(f, way == KIT_BACKWARD ? SKL_CALL_VALUE : SKL_CALL_VALUE_AND_GRAD), SKL_OK);
    if (way == KIT_BACKWARD)
        CHECK_STATUS(kit_call(f, SKL_CALL_BACKWARD), SKL_OK);
    f->p.skip_below = skip_below;
    expect_the_same(f);
}

/* In a row of weight NaN every entry counts, but none behind the last column, where there is no gradient to add to. */
static void list_nan(struct kit_fixture *f)
{
    struct skl_outputs out = kit_outputs(f, 1, KIT_GRAD_ALL);
    struct skl_tensor *weight = &f->in[KIT_INPUT_WEIGHT].t;
    double was = kit_get(weight, 3);
    kit_set(weight, 3, NAN);
    CHECK_STATUS(skl_value_and_grad(&f->p, &out), SKL_OK);
    kit_set(weight, 3, was);
    CHECK(isnan(f->value), "a weight of NaN gives the value %g", f->value);
    for (int o = 0; o < KIT_RESULTS; o++)
        if (f->want[o])
            CHECK(kit_take(&f->out[o], f->got), "wrote outside of %s", kit_results[o].name);
}

/* The teacher becomes a disturbed student: however peaked both are, their divergence does not saturate. */
static void make_similar(struct kit_fixture *f)
{
    for (int k = 0; k < 2; k++) /* a, b */
        for (int64_t i = 0; i < kit_count(&f->in[k].t); i++)
            kit_set(&f->in[3 + k].t, i, kit_get(&f->in[k].t, i) + 0.1 * kit_get(&f->in[3 + k].t, i));
}

/* Where few entries of dz count, the products go through lists of them: the same sums as without. Distributions so
 * peaked that about a tenth of the entries passes; dims with and without rests of every vector width. */
static void listing(void)
{
    static const int64_t dims[] = {12, 72, 100, 128};
    static const enum skl_isa isas[] = {SKL_ISA_BEST, TEST_ISA_LIST};
    for (int k = 0; k < COUNT(dims) * 6 * COUNT(isas); k++) {
        struct kit_fixture f;
        int64_t dim = dims[k / 6 % COUNT(dims)];
        enum skl_isa isa = isas[k / 6 / COUNT(dims)];
        int64_t rows = isa != SKL_ISA_BEST ? 45 : dim > 80 ? 12 : 7; /* few: the best has narrower panels for them */
        struct kit_case c = k % 2 ? kit_linear_case(rows, 500, dim) : kit_attention_case(rows, 500, dim);
        c.divergence = k / 2 % 3, c.spread = 12, c.reduction = SKL_SUM, c.weights = KIT_SIGNED;
        if (isa != SKL_ISA_BEST && !skl_isa_available(isa))
            continue;
        test_build(&f, &c);
        make_similar(&f);
        f.checksum = kit_checksum(&f);
        f.p.isa = isa, f.p.skip_below = 1e-9;
        test_context("lists, dim %d, divergence %d, use %d, %s", (int)dim, c.divergence, c.use, skl_isa_name(f.p.isa));
        static const enum kit_way ways[] = {KIT_TOGETHER, KIT_BACKWARD};
        for (int way = 0; way < COUNT(ways); way++) {
            expect_dense(&f, ways[way]);
            test_run(&f, ways[way]);
        }
        list_nan(&f);
        test_destroy(&f);
    }
}

int main(void)
{
    test_begin("test_options");
    masks();
    heads();
    dtypes();
    subsets();
    layouts();
    logits();
    weights();
    skipping();
    listing();
    return test_end();
}
