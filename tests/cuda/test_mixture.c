/* SPDX-License-Identifier: Apache-2.0
 *
 * Teachers of mixed heads and teachers whose LSEs are given, on a device: random ones and every family of kernels
 * against the double reference, what a target that is not divided by its sum does to a row, LSEs without mass, maps
 * that name no head, and what is refused.
 */
#include "run_cases.h"

static void random_cases(int n)
{
    for (int k = 0; k < n; k++) {
        struct kit_case c = kit_random_device_mixture(&test_numbers);
        kit_shrink(&c, (k % 4 ? 4e5 : 1e5) / (double)(c.mix + 1));
        if (k % 4 == 0)
            run_copied(&c);
        else
            run_case(&c);
    }
}

static struct kit_case raw_case(int64_t dim, int type)
{
    struct kit_case c = kit_attention_case(70, 130, dim);
    c.dtype[S] = c.dtype[T] = type, c.place = KIT_ALIGNED, c.lses = c.raw = 1, c.grads = KIT_GRAD_STUDENT;
    return c;
}

/* A head for each of the student's, with given LSEs: every family of kernels, with masks. */
static void given_lses(void)
{
    static const int64_t dims[] = {64, 128, 256, 264, 21};
    for (int k = 0; k < 5; k++) {
        struct kit_case c = raw_case(dims[k], k == 4 ? SKL_F32 : k % 2 ? SKL_F16 : SKL_BF16);
        c.heads = 2, c.key_heads[S] = 1, c.causal = k % 2, c.ranges = k % 3 == 1;
        c.weights = k % 2 ? KIT_SOME_ZERO : KIT_UNWEIGHTED;
        run_case_in(&c, k == 0);
    }
}

/* A row whose sum is infinite, either way, has no target: loss 0 and gradient 0. */
static void no_mass(void)
{
    struct kit_case c = raw_case(64, SKL_BF16);
    struct kit_fixture f;
    test_context("LSEs that are infinite");
    test_build(&f, &c);
    for (int64_t i = 0; i < 70; i++) ((float *)f.in[KIT_INPUT_LSE].t.data)[i] = i % 2 ? -INFINITY : INFINITY;
    test_device_adopt(&f);
    struct skl_outputs out = kit_outputs(&f, 1, KIT_GRAD_STUDENT);
    CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_OK);
    test_device_clean("infinite LSEs");
    CHECK(f.value == 0, "the value is %g", f.value);
    for (int64_t i = 0; i < kit_count(&f.out[KIT_A_S].t); i++)
        if (!CHECK(kit_get(&f.out[KIT_A_S].t, i) == 0, "a gradient of %g", kit_get(&f.out[KIT_A_S].t, i)))
            break;
    test_device_release(&f);
    kit_destroy(&f); /* whose LSEs the test has changed */
}

/* Mixed heads: every kernel of them, LSEs found and given, sums of t kept and divided by, masks, softcaps, sinks, maps.
 * 300 columns are three tiles, with 8 processors in one split; 1300 in two. Every kernel has three tiles once. */
static void mixed_heads(void)
{
    static const int64_t dims[] = {64, 128, 264, 21, 40};
    static const int divergences[] = {SKL_FORWARD_KL, SKL_FORWARD_KL, SKL_FORWARD_KL, SKL_JSD, SKL_SKEW_REVERSE_KL};
    for (int k = 0; k < test_cases(test_first(10, 20), 10); k++) {
        struct kit_case c = kit_attention_case(70, k == 5 ? 1300 : k < 5 ? 300 : 150, dims[k % 5]);
        c.dtype[S] = c.dtype[T] = k % 5 == 3 ? SKL_F32 : k % 2 ? SKL_F16 : SKL_BF16, c.place = KIT_ALIGNED;
        c.heads = 2, c.mix = 2 + k % 3, c.lses = k / 5 % 2, c.raw = c.lses && k % 4 == 1;
        kit_set_divergence(&c, c.raw ? SKL_FORWARD_KL : divergences[(k + k / 10) % 5]);
        c.map = k % 4 == 2 ? 5 : 0, c.key_heads[T] = c.map ? 1 : c.mix, c.key_heads[S] = 1;
        c.causal = k % 2, c.ranges = k % 3 == 1, c.packed = k % 7 == 6 ? 3 : 0;
        c.softcap[T] = k % 6 == 4 ? 9 : 0, c.temperature = k % 4 == 3 ? 2 : 1;
        c.weights = k % 3 == 2 ? KIT_SOME_ZERO : KIT_UNWEIGHTED, c.own = k % 2;
        c.sinks = k % 3 == 0 ? 1 + SKL_BF16 : 0;
        c.grads = KIT_GRAD_STUDENT | (c.sinks ? KIT_GRAD_SINK_S : 0);
        run_case(&c);
    }
}

/* Scores that lie far apart: the largest of a row comes late, when the sums under an earlier reference are large. */
static void late_references(void)
{
    for (int k = 0; k < test_first(1, 2); k++) {
        struct kit_case c = kit_attention_case(70, 300, 64);
        c.dtype[S] = c.dtype[T] = k ? SKL_F16 : SKL_BF16, c.place = KIT_ALIGNED, c.temperature = 0.05;
        c.heads = 2, c.mix = 2, c.key_heads[S] = 1, c.key_heads[T] = 2, c.grads = KIT_GRAD_STUDENT;
        run_case(&c);
    }
}

/* A map to one head each copies: with LSEs, sums of t, sinks, every type. */
static void mapped_heads(void)
{
    for (int k = 0; k < 6; k++) {
        struct kit_case c = kit_attention_case(70, 130, k % 3 ? 64 : 21);
        c.dtype[S] = c.dtype[T] = k % 3 == 0 ? SKL_F32 : k % 2 ? SKL_F16 : SKL_BF16, c.place = KIT_ALIGNED;
        c.batch = k < 2 ? 2 : 1, c.heads = 4, c.key_heads[S] = 2, c.map = 6, c.key_heads[T] = 3, c.mix = k % 2;
        c.lses = c.raw = k % 2, c.sinks = k / 2 % 2 ? 1 + SKL_F16 : 0, c.causal = 1;
        c.details = k == 4;
        c.grads = KIT_GRAD_STUDENT | (c.sinks ? KIT_GRAD_SINK_S : 0);
        run_case(&c);
    }
}

/* Nobody has looked at the map: heads that are not there make the rows of their student's head NaN, and nothing
 * else. */
static void bad_maps(void)
{
    static const int64_t dims[] = {64, 21};
    for (int k = 0; k < 4; k++) {
        struct kit_case c = kit_attention_case(70, 130, dims[k % 2]);
        struct kit_fixture f;
        c.dtype[S] = c.dtype[T] = k % 2 ? SKL_F32 : SKL_BF16, c.place = KIT_ALIGNED;
        c.heads = 3, c.key_heads[S] = c.key_heads[T] = 1, c.map = 4, c.mix = k < 2 ? 2 : 0, c.grads = KIT_GRAD_STUDENT;
        test_context("a map that names head %d", k % 2 ? -1 : 4);
        test_build(&f, &c);
        ((int32_t *)f.in[KIT_INPUT_MAP].t.data)[k < 2 ? 2 : 1] = k % 2 ? -1 : 4; /* of head 1 */
        test_device_adopt(&f);
        struct skl_outputs out = kit_outputs(&f, 1, KIT_GRAD_STUDENT);
        CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_OK);
        test_device_clean("bad maps");
        for (int64_t row = 0; row < 3 * 70; row++) {
            double loss = kit_get(&f.out[KIT_LOSS].t, row);
            CHECK(isnan(loss) == (row / 70 == 1), "row %d: %g", (int)row, loss);
        }
        test_device_release(&f);
        kit_destroy(&f); /* whose map the test has changed */
    }
}

/* Details that mixed heads do not have here. */
static void refused(void)
{
    static const int details[] = {KIT_ENTROPY_S, KIT_ENTROPY_T, KIT_TOP1_S, KIT_TOP1_T, KIT_REVERSE, KIT_JSD, KIT_TV};
    struct kit_case c = kit_attention_case(20, 30, 64);
    c.mix = 2, c.grads = KIT_GRAD_STUDENT;
    for (int k = 0; k < COUNT(details); k++) {
        struct kit_fixture f;
        c.details = 1;
        test_build(&f, &c);
        test_device_adopt(&f);
        struct skl_outputs all = kit_outputs(&f, 1, 0), out = skl_no_outputs();
        char said[64];
        snprintf(said, sizeof said, "cannot use out.%s with a teacher of 2 heads", kit_results[details[k]].name);
        *kit_slot(&out, details[k]) = *kit_slot(&all, details[k]);
        CHECK_STATUS(skl_value(&f.p, &out), SKL_UNSUPPORTED);
        CHECK(strstr(skl_last_error(), said) != NULL, "\"%s\" does not say \"%s\"", skl_last_error(), said);
        test_device_release(&f);
        test_destroy(&f);
    }
}

int main(void)
{
    test_begin("test_mixture");
    test_device_begin();
    test_device.processors = 8;
    given_lses();
    no_mass();
    mixed_heads();
    late_references();
    mapped_heads();
    bad_maps();
    refused();
    random_cases(test_cases(test_first(4, 200), 4));
    test_context("src/cuda/kernels.def");
    for (int i = 0; i < test_list_count && !test_quick(); i++)
        if (strncmp(test_list[i].role, "mixed_", 6) == 0 || strcmp(test_list[i].source, "mixture_kernels") == 0)
            CHECK(test_device_ran(test_list[i].kernel), "no case ran %s", test_list[i].kernel);
    return test_end();
}
