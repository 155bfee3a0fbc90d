/* SPDX-License-Identifier: Apache-2.0
 * The divergences of two sweeps: total variation in every way, limits in which they are one another, and exact
 * zeros. */
#include "cases.h"

/* Random problems whose sides differ in every column by more than a saved f32 LSE rounds. */
static void total_variation(void)
{
    int done = 0, wanted = test_cases(60, 12);
    for (int tries = 0; tries < 4000 && done < wanted; tries++) {
        struct kit_case c = test_random_case();
        struct kit_fixture f;
        uint64_t seed = test_random();
        kit_set_divergence(&c, SKL_TOTAL_VARIATION);
        c.spread = 3;
        kit_shrink(&c, 20000);
        test_reseed(seed);
        test_build(&f, &c);
        int apart = kit_determined(&f.p);
        test_destroy(&f);
        if (!apart)
            continue;
        test_reseed(seed); /* the same operands again */
        test_all_ways(&c);
        done++;
    }
    CHECK(done == wanted, "only %d of %d problems had sides that differ everywhere", done, wanted);
}

static struct skl_outputs wanted_of(struct kit_fixture *f)
{
    return kit_outputs(f, 1, KIT_GRAD_ALL);
}

/* Value and gradients of one problem under two names. */
static void same(const char *what, struct kit_case c, struct kit_case d, double bound)
{
    struct kit_fixture f, g;
    uint64_t seed = test_random();
    test_reseed(seed), test_build(&f, &c);
    test_reseed(seed), test_build(&g, &d);
    struct skl_outputs out_f = wanted_of(&f), out_g = wanted_of(&g);
    out_f.kl_s = out_f.kl_t = out_g.kl_s = out_g.kl_t = (struct skl_tensor){0}; /* which not both of them have */
    test_context("%s", what);
    CHECK_STATUS(skl_value_and_grad(&f.p, &out_f), SKL_OK);
    CHECK_STATUS(skl_value_and_grad(&g.p, &out_g), SKL_OK);
    CHECK_NEAR(f.value, g.value, bound * (1 + fabs(g.value)), "value");
    for (int k = KIT_FIRST_GRADIENT; k < KIT_RESULTS; k++)
        for (int64_t i = 0; f.out[k].t.data && i < kit_count(&f.out[k].t); i++)
            CHECK_NEAR(kit_get(&f.out[k].t, i), kit_get(&g.out[k].t, i), bound, kit_results[k].name);
    test_destroy(&f), test_destroy(&g);
    test_context("%s", "");
}

/* Which divergences are others with certain numbers. */
static void names_of_one_another(void)
{
    struct kit_case forward = kit_linear_case(21, 150, 24), reverse = forward, ab = forward, jsd = forward;
    forward.grads = reverse.grads = ab.grads = jsd.grads = KIT_GRAD_A_S | KIT_GRAD_B_S | KIT_GRAD_A_T | KIT_GRAD_B_T;
    reverse.divergence = SKL_REVERSE_KL, ab.divergence = SKL_ALPHA_BETA, jsd.divergence = SKL_JSD;
    ab.alpha = 1, ab.beta = 0, same("alpha-beta (1, 0) is forward KL", ab, forward, 2e-6);
    ab.alpha = 0, ab.beta = 1, same("alpha-beta (0, 1) is reverse KL", ab, reverse, 2e-6);
    jsd.beta = 0, jsd.grads = forward.grads, same("JSD with beta 0 is forward KL", jsd, forward, 0);
    jsd.beta = 1, same("JSD with beta 1 is reverse KL", jsd, reverse, 0);
}

/* Identical sides, in every way that gives gradients. */
static void exact_zeros(void)
{
    for (int d = SKL_JSD; d < KIT_DIVERGENCE_COUNT; d++) {
        struct kit_case c = kit_attention_case(37, 200, 16);
        struct kit_fixture f;
        kit_set_divergence(&c, d);
        c.spread = 4;
        test_build(&f, &c);
        f.p.t = f.p.s;
        struct skl_outputs out = wanted_of(&f);
        test_context("identical sides, %s", kit_divergence_names[d]);
        CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_OK);
        CHECK(f.value == 0, "value = %g", f.value);
        for (int k = 0; k < KIT_RESULTS; k++) {
            int64_t n = f.out[k].t.data && k != KIT_LSE_S && k != KIT_LSE_T ? kit_count(&f.out[k].t) : 0;
            for (int64_t i = 0; i < n; i++) CHECK_NEAR(kit_get(&f.out[k].t, i), 0, 0, kit_results[k].name);
        }
        test_destroy(&f);
        test_context("%s", "");
    }
}

int main(void)
{
    test_begin("test_divergences");
    total_variation();
    names_of_one_another();
    exact_zeros();
    return test_end();
}
