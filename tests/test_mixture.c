/* SPDX-License-Identifier: Apache-2.0
 * Teachers that are mixtures of heads, with LSEs found or given: against the reference in double, every way and on
 * every instruction set; the same bits for any number of threads; exact zeros, NaN, and what the border refuses. */
#include "cases.h"

static struct kit_case mixture(int64_t mix, int lses)
{
    struct kit_case c = kit_attention_case(150, 400, 40);
    c.batch = 2, c.heads = 3, c.mix = mix, c.lses = lses, c.causal = 1, c.key_heads[S] = 1, c.key_heads[T] = mix;
    c.grads = KIT_GRAD_STUDENT;
    return c;
}

/* Denominators that are found on the way: tiles whose largest scores lie far apart, heads that cap theirs, and a window
 * behind which whole tiles have nothing. More rows than a block has. A spread of 15 would be farther apart, but the
 * rounding of such logits, times log-ratios as large as they are, is more than the bound of a loss grants. */
static void kept_heads(void)
{
    for (int k = 0; k < 3; k++) {
        struct kit_case c = mixture(4, 0);
        c.batch = c.heads = 1, c.rows = 200;
        c.spread = k == 0 ? 8 : 2;
        c.softcap[T] = k == 1 ? 3 : 0;
        c.left = k == 2 ? 30 : -1;
        test_all_ways(&c);
    }
}

static void threads(void)
{
    for (int lses = 0; lses < 2; lses++) {
        struct kit_case c = mixture(5, lses);
        test_same_bits(&c);
    }
}

/* The value is the same whether results of rows are asked for or not; with the values alone, LSEs are found by sweeps of
 * their own. */
static void value_alone(void)
{
    struct kit_case c = mixture(3, 0);
    struct kit_fixture f;
    test_build(&f, &c);
    struct skl_outputs rows = kit_outputs(&f, 1, 0), alone = skl_no_outputs();
    double value = NAN;
    alone.value = &value;
    CHECK_STATUS(skl_value(&f.p, &rows), SKL_OK);
    CHECK_STATUS(skl_value(&f.p, &alone), SKL_OK);
    CHECK(value == f.value && value > 0, "value %g alone, %g with results of rows", value, f.value);
    kit_destroy(&f);
}

/* A single head by a map is plain attention: equal operands give exact zeros. */
static void zeros(void)
{
    struct kit_case c = mixture(0, 1);
    struct kit_fixture f;
    int32_t map[3] = {0, 1, 2};
    c.key_heads[T] = 1;
    test_build(&f, &c);
    f.p.t.a = f.p.s.a, f.p.t.b = f.p.s.b;
    f.p.head_map = skl_vector(SKL_I32, map, 3);
    struct skl_outputs out = kit_outputs(&f, 1, KIT_GRAD_STUDENT);
    CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_OK);
    CHECK(f.value == 0, "value %g", f.value);
    double most = 0;
    for (int k = KIT_A_S; k <= KIT_B_S; k++)
        for (int64_t i = 0; i < kit_count(&f.out[k].t); i++) {
            double x = fabs(kit_get(&f.out[k].t, i));
            most = x <= most ? most : x;
        }
    CHECK(most == 0, "a gradient of %g", most);
    kit_destroy(&f);
}

/* A NaN in one query of one head makes that row NaN and no other; where the row has no weight, none. */
static void nan_stays(void)
{
    struct kit_case c = mixture(4, 0);
    struct kit_fixture f;
    c.weights = KIT_POSITIVE;
    test_build(&f, &c);
    int64_t row = 2 * 150 + 17;                      /* head 2 of the first batch */
    kit_set(&f.p.t.a, (9 * 150 + 17) * 40 + 3, NAN); /* head 9 is its second */
    for (int weighted = 1; weighted >= 0; weighted--) {
        if (!weighted)
            kit_set(&f.p.weight, row, 0);
        struct skl_outputs out = kit_outputs(&f, 1, KIT_GRAD_STUDENT);
        CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_OK);
        for (int64_t i = 0; i < kit_count(&f.out[KIT_LOSS].t); i++) {
            int nan = isnan(kit_get(&f.out[KIT_LOSS].t, i));
            CHECK(nan == (weighted && i == row), "row %d is %sNaN", (int)i, nan ? "" : "not ");
        }
        CHECK(isnan(f.value) == weighted, "the value is %g", f.value);
    }
    kit_destroy(&f);
}

static void refused(const char *sentence, const struct skl_problem *p, const struct skl_outputs *out)
{
    enum skl_status status = skl_value_and_grad(p, out);
    CHECK(status == SKL_BAD_ARGUMENT || status == SKL_UNSUPPORTED, "\"%s\" was taken", sentence);
    CHECK(strstr(skl_last_error(), sentence), "\"%s\" does not say \"%s\"", skl_last_error(), sentence);
}

static void border(void)
{
    struct kit_case c = mixture(4, 1), linear = kit_linear_case(10, 20, 8);
    struct kit_fixture f, g;
    int32_t map[12] = {0};
    double value = 7;
    test_build(&f, &c), test_build(&g, &linear);
    struct skl_outputs out = skl_no_outputs(), grads;
    struct skl_problem p = f.p;
    out.value = &value;
    p.mix_t = 3, refused("t.a.shape[1] = 12 heads: it must be 9", &p, &out), p = f.p;
    p.mix_t = -1, refused("mix_t = -1", &p, &out), p = f.p;
    p.divergence = SKL_REVERSE_KL, refused("reverse", &p, &out), p = f.p;
    p.raw_t = 2, refused("raw_t = 2", &p, &out), p = f.p;
    p.raw_t = 1, p.divergence = SKL_JSD, refused("raw_t = 1", &p, &out), p = f.p;
    p.raw_t = 1, p.lse_t.data = NULL, refused("raw_t = 1 without lse_t", &p, &out), p = f.p;
    p.lse_t.shape[1] = 11, refused("lse_t.shape[1] = 11", &p, &out), p = f.p;
    p.lse_t.dtype = SKL_I32, refused("lse_t.dtype", &p, &out), p = f.p;
    p.identity = 1, refused("identity = 1", &p, &out), p = f.p;
    p.head_map = skl_matrix(SKL_I32, map, 3, 4), map[6] = 12;
    refused("head_map[1, 2] = 12", &p, &out), map[6] = -1, refused("head_map[1, 2] = -1", &p, &out), map[6] = 0;
    p.head_map = skl_vector(SKL_I32, map, 3), refused("head_map.ndim = 1", &p, &out), p = f.p;
    g.p.mix_t = 2, refused("mix_t in a linear problem", &g.p, &out);
    grads = out, grads.t.a = f.in[KIT_INPUT_A_T].t, grads.t.a.data = f.in[KIT_INPUT_A_T].t.data;
    refused("out.t.a", &p, &grads);
    p.workspace_limit = 4096, p.lse_t.data = NULL, refused("workspace_limit = 4096", &p, &out), p = f.p;
    static struct skl_state state[2 * 3 * 150];
    p.lse_t.data = NULL;
    CHECK_STATUS(skl_partial(&p, NULL, state), SKL_BAD_ARGUMENT);
    CHECK(value == 7, "something was written");
    kit_destroy(&f), kit_destroy(&g);
}

int main(void)
{
    test_begin("test_mixture");
    for (int i = test_cases(60, 8); i > 0; i--) {
        struct kit_case c = kit_random_mixture(&test_numbers);
        kit_shrink(&c, 4e5);
        test_all_ways(&c);
    }
    struct kit_case wide = mixture(3, 0); /* dim in two column tiles */
    wide.dim[T] = 300, wide.rows = 20;
    test_all_ways(&wide);
    kept_heads();
    threads();
    value_alone();
    zeros();
    nan_stays();
    border();
    return test_end();
}
