/* SPDX-License-Identifier: Apache-2.0
 *
 * What the emulator cannot know: how a tensor core rounds its sums, and in which direction an approximate function
 * errs. The results stay within bounds under the worst that is allowed: every addition within mma rounded towards
 * zero, and every .approx function off by as much as the PTX manual lets it be, in a direction given by its operand's
 * bits.
 */
#include "families.h"

static const struct mode {
    const char *name;
    int truncate, perturb;
    uint64_t seed;
    int extra; /* only with STREAMKL_TEST_LONG: what the other tests do, or another seed */
} modes[] = {{"to nearest", 0, 0, 0, 1},
             {"truncated", 1, 0, 0, 0},
             {"perturbed 1", 0, 1, 1, 0},
             {"perturbed 2", 0, 1, 2, 1},
             {"both", 1, 1, 3, 0}};

/* How many times the CPU's the bounds of rows and logits are.
 *   1          to nearest, and perturbed: 2 ulp of each exponential are of either sign and much of them
 *              cancels in l and acc
 *   1 + D / 32 truncated: each of the D additions of a logit loses up to 2^-23 of the sum so far, half of that on
 *              average, always towards zero: x (1 - D 2^-24) at most, where the CPU's errors cancel to sqrt(D) 2^-25.
 *              Losses and LSEs shrink as the logits do, by D 2^-24 of themselves; the CPU's bounds have 2e-6 of
 *              themselves, D 2^-24 / (D / 32). Seen: up to two thirds of that. A tensor core truncates a sum of 4 to 16
 *              products once, with some bits more: this is harsher.
 * Gradients: their own sums over n <= 150 rows or columns lose n 2^-24 of themselves in the same way, 9e-6, where the
 * rounding of dx to 16 bits, which their bounds have in them, is 5e-4 and more. */
static double allowed_rows(const struct mode *m, int64_t dim)
{
    return m->truncate ? 1 + (double)dim / 32 : 1;
}

/* The largest part of its bound that any element of the outputs from..to uses. */
static double used(const struct kit_fixture *f, int from, int to)
{
    double most = 0;
    for (int k = from; k <= to; k++)
        for (int64_t i = 0; f->out[k].t.data && i < kit_count(&f->out[k].t); i++) {
            double got = kit_get(&f->out[k].t, i);
            most = isfinite(got) ? fmax(most, kit_used(f, k, i, got)) : most;
        }
    return most;
}

static void run_modes(const struct family *family, struct kit_case c)
{
    for (int k = 0; k < COUNT(modes); k++) {
        struct kit_fixture f;
        if (modes[k].extra && !test_long())
            continue;
        test_reseed(test_seed() + (uint64_t)family->dim);
        family_begin(&f, &c, family->any_order, allowed_rows(&modes[k], c.dim[S]));
        test_context("%s, divergence %d, %s", family->gradient, c.divergence, modes[k].name);
        test_device_reset();
        test_device.options = (struct emu_options){
            .truncate = modes[k].truncate, .perturb = modes[k].perturb, .seed = modes[k].seed};
        struct skl_outputs out = kit_outputs(&f, 1, KIT_GRAD_ALL);
        CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_OK);
        test_device_clean(modes[k].name);
        printf("%-14s %-8s %-12s rows use %5.2f, gradients %5.2f of their bound\n", family->gradient,
               kit_divergence_names[c.divergence], modes[k].name, used(&f, KIT_LOSS, KIT_KL_T),
               used(&f, KIT_A_S, KIT_BIAS_T));
        test_compare(&f, &out, modes[k].name);
        family_end(&f);
    }
    test_device.options = (struct emu_options){0};
}

/* That the modes do anything at all: other bits than without them. */
static void modes_matter(const struct family *family)
{
    struct kit_case c = family_case(family, 20, 70);
    struct kit_fixture f;
    double value[3];
    c.grads = 0;
    family_begin(&f, &c, 0, 3);
    test_context("modes of %s", family->sweep);
    for (int k = 0; k < 3; k++) {
        test_device.options = (struct emu_options){
            .truncate = modes[k].truncate, .perturb = modes[k].perturb, .seed = modes[k].seed};
        struct skl_outputs out = kit_outputs(&f, 1, 0);
        CHECK_STATUS(skl_value(&f.p, &out), SKL_OK);
        value[k] = f.value;
    }
    CHECK(value[1] != value[0] || family->type == SKL_F32, "truncation changes nothing");
    CHECK(value[2] != value[0], "perturbation changes nothing");
    CHECK(value[1] == value[0] || family->type != SKL_F32, "plain kernels have no mma to truncate");
    test_device.options = (struct emu_options){0};
    family_end(&f);
}

/* Logits that rise by more than 2^32 within a row: m is raised while there is something in the sums, which are then
 * rescaled. The bounds are those of test_kernels: f32 sums, approximate exponentials. No f16: its dx ends at 2^-24. */
static void rising(void)
{
    static const struct {
        int use;
        int32_t type;
        int64_t dim;
    } table[] = {{SKL_ATTENTION, SKL_BF16, 24},
                 {SKL_ATTENTION, SKL_BF16, 128},
                 {SKL_LINEAR, SKL_BF16, 264},
                 {SKL_ATTENTION, SKL_F32, 24}};
    for (int k = 0; k < COUNT(table) * 3; k++) {
        int64_t dim = table[k / 3].dim;
        struct kit_case c = table[k / 3].use == SKL_LINEAR ? kit_linear_case(20, 200, dim)
                                                           : kit_attention_case(20, 200, dim);
        struct kit_fixture f;
        c.dtype[S] = c.dtype[T] = table[k / 3].type, c.place = KIT_ALIGNED;
        c.divergence = k % 3, c.spread = 15;
        family_begin(&f, &c, 0, 3);
        test_device_reset();
        test_context("rising logits, case %d, divergence %d", k / 3, c.divergence);
        test_run(&f, KIT_TOGETHER);
        test_device_clean("rising logits");
        family_end(&f);
    }
}

int main(int argc, char **argv)
{
    test_begin("test_rounding");
    test_device_begin();
    rising();
    for (int k = 0; k < COUNT(families); k++) {
        const struct family *family = &families[k];
        if ((family->extra && !test_long()) || (argc > 1 && !strstr(family->gradient, argv[1])))
            continue;
        struct kit_case c = family_case(family, 70, 150);
        double start = test_cpu_seconds();
        modes_matter(family);
        for (c.divergence = SKL_FORWARD_KL; c.divergence <= SKL_JSD; c.divergence += test_long() ? 1 : 2)
            run_modes(family, c);
        for (int d = SKL_SKEW_FORWARD_KL; d < KIT_DIVERGENCE_COUNT && test_kernel_of(family->sweep, "second"); d++)
            if (d != SKL_TOTAL_VARIATION && (test_long() || d != SKL_SKEW_REVERSE_KL)) {
                kit_set_divergence(&c, d);
                run_modes(family, c);
            }
        printf("%-14s %.1f s\n", family->gradient, test_cpu_seconds() - start);
    }
    return test_end();
}
