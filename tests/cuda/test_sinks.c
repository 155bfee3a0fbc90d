/* SPDX-License-Identifier: Apache-2.0
 *
 * Sinks on a device (src/cuda/host/sinks.c): every family of kernels and random cases against the double reference,
 * exact zeros of equal sides, rows that see the sink alone, sinks without mass and sinks that are no numbers.
 */
#include "run_cases.h"

static struct kit_case with_sinks(int64_t dim, int type)
{
    struct kit_case c = kit_attention_case(70, 130, dim);
    c.dtype[S] = c.dtype[T] = type, c.place = KIT_ALIGNED, c.sinks = 1 + SKL_F32;
    c.batch = 2, c.heads = 3, c.key_heads[S] = 1, c.causal = 1;
    return c;
}

/* Every family of sweeps and gradients, every divergence, with masks, a temperature and softcaps in turn. */
static void families_of_kernels(void)
{
    static const int64_t dims[] = {64, 128, 256, 264, 21};
    for (int k = 0; k < test_cases(test_first(7, 10), 5); k++) { /* seven have every divergence */
        struct kit_case c = with_sinks(dims[k % 5], k % 5 == 4 ? SKL_F32 : k % 2 ? SKL_F16 : SKL_BF16);
        int divergence = k % KIT_DIVERGENCE_COUNT;
        c.rows = k % 5 == 0 ? 70 : 40; /* two tiles of rows, or one */
        kit_set_divergence(&c, divergence == SKL_TOTAL_VARIATION ? SKL_JSD : divergence);
        c.sinks = 1 + k % 3, c.own = k % 2, c.temperature = k % 3 == 1 ? 2 : 1;
        c.batch = k % 4 ? 1 : 2, c.ranges = k % 3 == 1, c.packed = k % 4 == 3 ? 3 : 0;
        c.softcap[S] = k % 6 == 5 ? 20 : 0, c.weights = k % 2 ? KIT_SOME_ZERO : KIT_UNWEIGHTED;
        c.details = !c.packed && k % 2 == 0;
        if (c.packed) /* rows of sequences without keys, in tiles that all the others see */
            c.causal = c.ranges = 0, c.cols = 300;
        run_case_in(&c, k == 0);
    }
}

static void random_cases(int n)
{
    for (int k = 0; k < n; k++) {
        struct kit_case c = kit_random_device_sinks(&test_numbers);
        kit_shrink(&c, 1e5);
        if (k % 4 == 0)
            run_copied(&c);
        else
            run_case(&c);
    }
}

static struct kit_case total_variation(int k)
{
    struct kit_case c = with_sinks(k % 2 ? 21 : 64, k % 2 ? SKL_F32 : SKL_BF16);
    kit_set_divergence(&c, SKL_TOTAL_VARIATION);
    c.spread = 3, c.batch = 1;
    kit_shrink(&c, 10000);
    return c;
}

/* Sinks' gradients alone, in one call and after it. */
static void alone(void)
{
    struct kit_case c = with_sinks(64, SKL_BF16);
    struct kit_fixture f;
    test_context("the sinks' gradients alone");
    family_begin(&f, &c, 0, allow.rows);
    struct skl_outputs out = kit_outputs(&f, 1, KIT_GRAD_SINK_S | KIT_GRAD_SINK_T);
    CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_OK);
    test_compare(&f, &out, "together");
    struct skl_outputs saved = kit_outputs(&f, 1, 0), grads = kit_outputs(&f, 0, KIT_GRAD_SINK_T);
    CHECK_STATUS(skl_value(&f.p, &saved), SKL_OK);
    saved.value = NULL;
    CHECK_STATUS(skl_backward(&f.p, &saved, &grads), SKL_OK);
    test_compare(&f, &grads, "a backward of the teacher's alone");
    test_device_clean("alone");
    family_end(&f);
}

/* Equal sides: nothing but zeros, whatever the divergence. */
static void zeros(void)
{
    for (int divergence = 0; divergence < KIT_DIVERGENCE_COUNT; divergence++) {
        struct kit_case c = with_sinks(divergence % 2 ? 264 : 64, divergence % 3 ? SKL_BF16 : SKL_F32);
        struct kit_fixture f;
        kit_set_divergence(&c, divergence);
        c.key_heads[T] = 1, c.batch = 1;
        test_context("equal sides, divergence %d", divergence);
        test_build(&f, &c);
        test_device_adopt(&f);
        f.p.t.a = f.p.s.a, f.p.t.b = f.p.s.b, f.p.sink_t = f.p.sink_s;
        struct skl_outputs out = kit_outputs(&f, 1, KIT_GRAD_ALL);
        CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_OK);
        test_device_clean("equal sides");
        CHECK(f.value == 0, "value %g", f.value);
        for (int k = KIT_FIRST_GRADIENT; k < KIT_RESULTS; k++)
            for (int64_t i = 0; f.out[k].t.data && i < kit_count(&f.out[k].t); i++)
                if (!CHECK(kit_get(&f.out[k].t, i) == 0, "%s[%d] = %g", kit_results[k].name, (int)i,
                           kit_get(&f.out[k].t, i)))
                    break;
        test_device_release(&f);
        test_destroy(&f);
    }
}

/* Rows that see no key see the sink: LSE = sink, all of the mass, no loss and no gradient. Also where there are no keys
 * at all. */
static void no_keys(void)
{
    for (int none = 0; none < 2; none++) {
        struct kit_case c = with_sinks(64, SKL_BF16);
        struct kit_fixture f;
        c.ranges = !none, c.causal = 0, c.details = 1, c.temperature = 2;
        kit_set_divergence(&c, none ? SKL_FORWARD_KL : SKL_JSD);
        test_context("rows without keys, none at all: %d", none);
        test_build(&f, &c);
        for (int64_t i = 0; !none && i < kit_count(&f.p.end); i++) kit_set(&f.p.end, i, 0);
        test_device_adopt(&f);
        if (none)
            f.p.s.b.shape[2] = f.p.t.b.shape[2] = 0;
        struct skl_outputs out = kit_outputs(&f, 1, KIT_GRAD_ALL);
        if (none)
            out.s.b.data = out.t.b.data = NULL;
        CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_OK);
        test_device_clean("rows without keys");
        test_only_sinks(&f);
        test_device_release(&f);
        kit_destroy(&f); /* whose ranges the test has changed */
    }
}

/* Without mass on both sides a sink is as if there were none, to the bit. One of Q alone: P has mass where Q has none.
 * A sink that is no number, or infinite, makes the rows of its head NaN and no others. */
static void odd_numbers(void)
{
    static const double odd[] = {-INFINITY, INFINITY, NAN};
    struct kit_case c = with_sinks(64, SKL_BF16);
    for (int k = 0; k < 4; k++) {
        struct kit_fixture f;
        test_context("odd sinks, %d", k);
        test_build(&f, &c);
        for (int i = 0; k == 3 && i < 3; i++) kit_set(&f.p.sink_s, i, -INFINITY), kit_set(&f.p.sink_t, i, -INFINITY);
        if (k < 3)
            kit_set(&f.p.sink_s, 1, odd[k]);
        test_device_adopt(&f);
        struct skl_outputs out = kit_outputs(&f, 1, KIT_GRAD_STUDENT | KIT_GRAD_SINK_S);
        CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_OK);
        for (int64_t row = 0; k < 3 && row < 2 * 3 * 70; row++) {
            double loss = kit_get(&f.out[KIT_LOSS].t, row);
            CHECK((k ? isnan(loss) : loss == INFINITY) == (row / 70 % 3 == 1), "row %d: %g", (int)row, loss);
        }
        for (int64_t i = 0; k && k < 3 && i < 3; i++)
            CHECK(isnan(kit_get(&f.out[KIT_SINK_S].t, i)) == (i == 1), "gradient of sink %d", (int)i);
        if (k == 3) {
            size_t bytes = f.out[KIT_LOSS].memory.size, of_a = f.out[KIT_A_S].memory.size;
            unsigned char *loss = memcpy(malloc(bytes), f.out[KIT_LOSS].memory.data, bytes);
            unsigned char *grad = memcpy(malloc(of_a), f.out[KIT_A_S].memory.data, of_a);
            CHECK(kit_get(&f.out[KIT_SINK_S].t, 0) == 0 && kit_get(&f.out[KIT_SINK_MASS_T].t, 0) == 0, "no mass");
            f.p.sink_s.data = f.p.sink_t.data = NULL;
            out = kit_outputs(&f, 1, KIT_GRAD_STUDENT);
            out.sink_mass_s.data = out.sink_mass_t.data = NULL;
            CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_OK);
            CHECK(memcmp(loss, f.out[KIT_LOSS].memory.data, bytes) == 0 &&
                      memcmp(grad, f.out[KIT_A_S].memory.data, of_a) == 0,
                  "a sink of -inf is not as none");
            free(loss), free(grad);
        }
        test_device_clean("odd sinks");
        test_device_release(&f);
        kit_destroy(&f); /* whose sinks the test has changed */
    }
}

int main(void)
{
    test_begin("test_sinks");
    test_device_begin();
    test_device.processors = 8;
    families_of_kernels();
    run_determined(test_cases(6, 2), total_variation);
    alone();
    zeros();
    no_keys();
    odd_numbers();
    random_cases(test_cases(getenv("STREAMKL_TEST_LONG") ? 200 : 6, 6));
    test_context("src/cuda/kernels.def");
    for (int i = 0; i < test_list_count; i++)
        if (strcmp(test_list[i].source, "sink_kernels") == 0)
            CHECK(test_device_ran(test_list[i].kernel), "no case ran %s", test_list[i].kernel);
    return test_end();
}
