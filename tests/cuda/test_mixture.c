/* SPDX-License-Identifier: Apache-2.0
 *
 * Teachers whose LSEs are given, on a device: random ones against the double reference, what a target that is not divided by its
 * sum does to a row, and LSEs without mass.
 */
#include "run_cases.h"

static void random_cases(int n)
{
    for (int k = 0; k < n; k++) {
        struct kit_case c = kit_random_device_mixture(&test_numbers);
        kit_shrink(&c, k % 4 ? 1e6 : 1e5);
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

/* Every family of kernels, with masks. */
static void families_of_kernels(void)
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

int main(void)
{
    test_begin("test_mixture");
    test_device_begin();
    test_device.processors = 8;
    families_of_kernels();
    no_mass();
    random_cases(test_cases(getenv("STREAMKL_TEST_LONG") ? 200 : 24, 6));
    return test_end();
}
