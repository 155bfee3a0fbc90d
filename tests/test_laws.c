/* SPDX-License-Identifier: Apache-2.0
 *
 * Laws that hold whatever the numbers are, so that they catch an error that engine and reference might share.
 */
#include "cases.h"

static const enum skl_isa isas[] = TEST_ISAS;

/* Calls 'law' for every divergence, use and instruction set. */
static void everywhere(const char *name, void (*law)(struct kit_case c, enum skl_isa isa))
{
    for (int k = 0; k < COUNT(isas); k++)
        for (int d = 0; d < 3; d++)
            for (int use = 0; use < 2; use++) {
                struct kit_case c = use ? kit_linear_case(21, 150, 40) : kit_attention_case(21, 150, 40);
                c.divergence = d;
                test_context("%s: %s, divergence %d, use %d", name, skl_isa_name(isas[k]), d, use);
                if (skl_isa_available(isas[k]))
                    law(c, isas[k]);
            }
}

static void copy(const struct skl_tensor *to, const struct skl_tensor *from)
{
    for (int64_t i = 0; to->data && i < kit_count(to); i++) kit_set(to, i, kit_get(from, i));
}

/* The elements of an output as doubles; the caller frees. */
static double *contents(struct kit_fixture *f, int output)
{
    double *x = calloc((size_t)kit_count(&f->out[output].t), sizeof *x);
    for (int64_t i = 0; i < kit_count(&f->out[output].t); i++) x[i] = kit_get(&f->out[output].t, i);
    return x;
}

static struct skl_outputs run_together(struct kit_fixture *f)
{
    struct skl_outputs out = kit_outputs(f, 1, KIT_GRAD_ALL);
    CHECK_STATUS(skl_value_and_grad(&f->p, &out), SKL_OK);
    return out;
}

/* ------------------------------------------------------------------------------------------------- laws --- */

/* p = q: loss and every gradient are exactly 0, in every way to run, at any layout. */
static void identity(struct kit_case c, enum skl_isa isa)
{
    for (int kind = 0; kind < 6; kind += test_quick() ? 2 : 1) {
        struct kit_fixture f;
        c.dtype[S] = c.dtype[T] = kind % 3;
        c.layout = kind % KIT_LAYOUTS, c.place = kind % KIT_PLACES;
        c.softcap[S] = c.softcap[T] = kind == 4 ? 5 : 0, c.temperature = kind == 5 ? 0.7 : 1;
        c.beta = kind % 2 ? 0.5 : 0.2;
        if (c.use == SKL_LINEAR)
            c.bias[S] = c.bias[T] = 1;
        test_build(&f, &c);
        for (int k = 0; k < 3; k++) copy(&f.in[3 + k].t, &f.in[k].t);
        kit_expect(&f);
        f.p.isa = isa;
        for (int k = 0; k < KIT_RESULTS; k++)
            for (int64_t i = 0; f.want[k] && (k == KIT_LOSS || k > KIT_LSE_T) && i < kit_count(&f.out[k].t); i++)
                f.want[k][i] = 0, f.bound[k][i] = 0;
        f.want_value = 0, f.value_bound = 0;
        for (int way = 0; way < KIT_WAYS; way++) test_run(&f, way);
        test_destroy(&f);
    }
}

/* An extra dimension, a[i, D] = r_i and b[j, D] = 1, adds r_i to the logits of row i and changes nothing; and the
 * gradient of a[i, D] is the sum of the row's dz, which is 0. */
static void shift(struct kit_case c, enum skl_isa isa)
{
    struct kit_fixture f, g;
    double one = c.use == SKL_ATTENTION ? sqrt((double)c.dim[S]) : 1; /* undo 1 / sqrt(D) */
    c.scale[S] = c.scale[T] = 1 / one;
    test_build(&f, &c);
    for (int s = 0; s < 2; s++) c.dim[s]++;
    test_build(&g, &c);
    for (int side = 0; side < 2; side++)
        for (int k = 0; k < 2; k++) {
            const struct skl_tensor *from = &f.in[3 * side + k].t, *to = &g.in[3 * side + k].t;
            int64_t D = from->shape[from->ndim - 1];
            for (int64_t i = 0; i < kit_count(to); i++) {
                int64_t row = i / (D + 1), d = i % (D + 1);
                double extra = k == 0 ? one * (double)(row % 17 - 8) : 1;
                kit_set(to, i, d < D ? kit_get(from, row * D + d) : extra);
            }
        }
    kit_expect(&f), kit_expect(&g);
    f.p.isa = g.p.isa = isa;
    run_together(&f), run_together(&g);
    for (int64_t i = 0; i < c.rows; i++)
        CHECK_NEAR(kit_get(&g.out[KIT_LOSS].t, i), kit_get(&f.out[KIT_LOSS].t, i), f.bound[KIT_LOSS][i] + 8 * 0x1p-23,
                   "loss");
    for (int k = KIT_A_S; k <= KIT_A_T; k += KIT_A_T - KIT_A_S) {
        int64_t D = g.out[k].t.shape[g.out[k].t.ndim - 1];
        for (int64_t i = 0; i < c.rows; i++)
            CHECK_NEAR(kit_get(&g.out[k].t, i * D + D - 1), 0, g.bound[k][i * D], "sum of dz");
    }
    test_destroy(&f), test_destroy(&g);
}

/* The bias gradient, too, sums to 0 over the columns. */
static void bias_sum(struct kit_case c, enum skl_isa isa)
{
    if (c.use != SKL_LINEAR)
        return;
    struct kit_fixture f;
    c.bias[S] = c.bias[T] = 1;
    test_build(&f, &c);
    kit_expect(&f);
    f.p.isa = isa;
    run_together(&f);
    for (int k = KIT_BIAS_S; k <= KIT_BIAS_T; k += KIT_BIAS_T - KIT_BIAS_S) {
        double sum = 0;
        for (int64_t j = 0; j < c.cols; j++) sum += kit_get(&f.out[k].t, j);
        CHECK_NEAR(sum, 0, 2 * f.bound[k][0] * sqrt((double)c.cols), "sum of the bias gradient");
    }
    test_destroy(&f);
}

/* value_and_grad gives what value and then backward give. */
static void two_steps(struct kit_case c, enum skl_isa isa)
{
    struct kit_fixture f;
    test_build(&f, &c);
    kit_expect(&f);
    f.p.isa = isa;
    run_together(&f);
    for (int k = 0; k < KIT_RESULTS; k++) /* what came of one way is what is expected of the other */
        if (f.want[k]) {
            free(f.want[k]);
            f.want[k] = contents(&f, k);
        }
    f.want_value = f.value;
    test_run(&f, KIT_VALUE), test_run(&f, KIT_BACKWARD);
    test_destroy(&f);
}

/* Slices of the columns, in any number and grouping, merge to the whole. */
static void slices(struct kit_case c, enum skl_isa isa)
{
    struct kit_fixture f;
    c.causal = c.use == SKL_ATTENTION;
    test_build(&f, &c);
    kit_expect(&f);
    f.p.isa = isa;
    for (int n = 1; n <= 16; n += test_quick() ? 7 : 3) test_run_slices(&f, n);
    test_destroy(&f);
}

/* Temperature T is the scale divided by T. */
static void temperature(struct kit_case c, enum skl_isa isa)
{
    struct kit_fixture f;
    test_build(&f, &c);
    f.p.temperature = f.c.temperature = 2;
    kit_expect(&f);
    f.p.isa = isa;
    double whole = c.use == SKL_ATTENTION ? 1 / sqrt((double)c.dim[S]) : 1;
    f.p.temperature = 1, f.p.s.scale = f.p.t.scale = whole / 2;
    struct skl_outputs out = run_together(&f);
    test_compare(&f, &out, "half the scale");
    test_destroy(&f);
}

/* Exchanging the sides exchanges forward and reverse KL and leaves JSD at 1/2 as it is; gradients change places. */
static void exchange(struct kit_case c, enum skl_isa isa)
{
    struct kit_fixture f;
    static const int other[] = {SKL_REVERSE_KL, SKL_FORWARD_KL, SKL_JSD};
    test_build(&f, &c);
    kit_expect(&f);
    f.p.isa = isa;
    struct skl_side s = f.p.s;
    f.p.s = f.p.t, f.p.t = s;
    f.p.divergence = other[c.divergence];
    struct skl_outputs out = kit_outputs(&f, 1, KIT_GRAD_ALL), swapped = out;
    swapped.s = out.t, swapped.t = out.s;
    swapped.lse_s = out.lse_t, swapped.lse_t = out.lse_s, swapped.kl_s = out.kl_t, swapped.kl_t = out.kl_s;
    CHECK_STATUS(skl_value_and_grad(&f.p, &swapped), SKL_OK);
    test_compare(&f, &out, "exchanged");
    test_destroy(&f);
}

/* Never below 0 beyond the rounding of its terms, also where p and q almost agree. */
static void not_negative(struct kit_case c, enum skl_isa isa)
{
    for (int power = 1; power <= 8; power += test_quick() ? 3 : 1) {
        struct kit_fixture f;
        double least = 0;
        test_build(&f, &c);
        copy(&f.in[3].t, &f.in[0].t), copy(&f.in[4].t, &f.in[1].t);
        for (int64_t i = 0; i < kit_count(&f.in[0].t); i++)
            kit_set(&f.in[0].t, i, kit_get(&f.in[0].t, i) + pow(10, -power) * test_normal());
        kit_expect(&f);
        f.p.isa = isa;
        struct skl_outputs out = kit_outputs(&f, 1, 0);
        CHECK_STATUS(skl_value(&f.p, &out), SKL_OK);
        for (int64_t i = 0; i < c.rows; i++) least = fmin(least, kit_get(&f.out[KIT_LOSS].t, i));
        CHECK(least >= -1e-6, "the least loss is %g", least);
        test_compare(&f, &out, "nearly equal");
        test_destroy(&f);
    }
}

int main(void)
{
    test_begin("test_laws");
    everywhere("identical inputs", identity);
    everywhere("shift", shift);
    everywhere("bias gradient", bias_sum);
    everywhere("two steps", two_steps);
    everywhere("slices", slices);
    everywhere("temperature", temperature);
    everywhere("exchange", exchange);
    everywhere("nearly equal", not_negative);
    return test_end();
}
