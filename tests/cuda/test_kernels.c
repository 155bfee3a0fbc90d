/* SPDX-License-Identifier: Apache-2.0
 *
 * Every kernel against the double reference, through the public calls: sizes around the edges of tiles, every option,
 * and random mixtures of them. STREAMKL_TEST_LONG=1 runs more of each.
 */
#include "run_cases.h"

static struct kit_case sized(int use, int type, int64_t rows, int64_t cols, int64_t dim)
{
    struct kit_case c = use == SKL_LINEAR ? kit_linear_case(rows, cols, dim) : kit_attention_case(rows, cols, dim);
    c.dtype[S] = c.dtype[T] = type;
    c.place = KIT_ALIGNED; /* aligned, as tensor cores want it */
    return c;
}

/* Tails in every direction: one row, one column, one more or less than a tile. Every divergence in turn. */
static void sizes(void)
{
    static const int64_t rows[] = {1, 63, 64, 65, 129}, cols[] = {1, 15, 63, 65, 128, 200};
    static const int64_t dims[] = {16, 64, 72, 128, 136, 256};
    int k = 0;
    for (int d = 0; d < COUNT(dims); d++)
        for (int i = 0; i < COUNT(cols); i++, k++) {
            struct kit_case c = sized(SKL_ATTENTION, k % 2 ? SKL_BF16 : SKL_F16, rows[k % COUNT(rows)], cols[i],
                                      dims[d]);
            kit_set_divergence(&c, k % (SKL_JSD + 1)); /* forward_* have no others */
            c.own = k % 4 == 3;
            if ((d + i) % 2 == 0 || test_long())
                run_case(&c);
        }
}

/* Any width: by stream_* (multiples of 8 above 256) and by plain_*. */
static void widths(void)
{
    static const int64_t dims[] = {100, 264, 320, 1000};
    static const int types[] = {SKL_BF16, SKL_F16, SKL_F32};
    int k = 0;
    for (int d = 0; d < test_first(2, COUNT(dims)); d++)
        for (int t = 0; t < COUNT(types); t++, k++) {
            struct kit_case c = sized(SKL_LINEAR, types[t], k % 3 ? 33 : 130, k % 2 ? 150 : 129, dims[d]);
            kit_set_divergence(&c, (d + t) % (SKL_JSD + 1)); /* of every type each */
            c.dim[T] = k % 4 == 1 ? 40 : dims[d];
            c.bias[S] = k % 2, c.bias[T] = k % 3;
            run_case(&c);
        }
}

static void masks(void)
{
    for (int k = 0; k < test_first(6, 12); k++) {
        struct kit_case c = sized(SKL_ATTENTION, k % 2 ? SKL_BF16 : SKL_F16, 70, k % 3 ? 150 : 40,
                                  k % 4 == 3 ? 128 : 64);
        c.heads = 4, c.key_heads[S] = k % 3 == 0 ? 2 : k % 3 == 1 ? 1 : 4, c.key_heads[T] = k % 2 ? 4 : 2;
        c.causal = k % 2 == 0;
        c.left = k % 3 == 2 ? 20 : -1;
        c.ranges = k % 4 == 1;
        c.weights = k % 4 == 2 ? KIT_SOME_ZERO : k % 5 == 4 ? KIT_POSITIVE : KIT_UNWEIGHTED;
        kit_set_divergence(&c, k % (SKL_JSD + 1)); /* forward_* have no others */
        c.softcap[S] = k % 6 == 5 ? 20 : 0;
        c.pad[S] = k % 4 == 3 ? 9 : 0;
        run_case(&c);
    }
}

/* Packed sequences: most shorter than a tile of rows or columns, some longer than several, and none at all in between.
 * Every way to gradients, by tiles of either kind and by slabs. */
static void packed(void)
{
    static const int64_t dims[] = {64, 128, 256, 264, 21};
    static const int counts[] = {1, 3, 9, 40, 150};
    for (int k = 0; k < test_first(7, 15); k++) {
        struct kit_case c = sized(SKL_ATTENTION,
                                  k % 5 == 4 ? SKL_F32
                                  : k % 2    ? SKL_BF16
                                             : SKL_F16,
                                  k % 3 ? 300 : 130, k % 2 ? 400 : 150, dims[k % 5]);
        c.heads = 2, c.key_heads[S] = 1 + k % 2, c.key_heads[T] = 1;
        c.packed = counts[(k + k / 5) % 5];
        c.causal = k % 2, c.left = k % 4 == 3 ? 20 : -1, c.ranges = k % 3 == 1;
        c.weights = k % 4 == 2 ? KIT_SOME_ZERO : KIT_UNWEIGHTED;
        kit_set_divergence(&c, k % (SKL_JSD + 1));
        kit_shrink(&c, 6e6);
        run_case_in(&c, k == 5 || k == 6);
    }
}

/* Many columns, hence small dx, some below f16's smallest normal number, where rounding would cost more than 2^-11 of
 * them if they were not scaled up: in plain_dz too, for either side, beside a side of another dtype and alone. */
static void small_dx(void)
{
    for (int k = 0; k < KIT_SMOOTH_COUNT; k++) {
        struct kit_case c = sized(SKL_LINEAR, SKL_F16, 2, 385, k % 2 ? 28 : 21);
        c.dtype[S] = k == 2 ? SKL_F32 : SKL_F16, c.dtype[T] = k == 3 ? SKL_F32 : SKL_F16;
        c.spread = 2.5, c.weights = KIT_POSITIVE, c.reduction = SKL_MEAN;
        kit_set_smooth(&c, k);
        c.layout = KIT_GAPS;
        run_case(&c);
    }
}

/* The divergences of stream_*_second and plain_second: attention, too, and every width. */
static struct kit_case second_case(int k, int divergence)
{
    static const int types[] = {SKL_BF16, SKL_F16, SKL_F32};
    static const int64_t dims[] = {64, 264, 21};
    struct kit_case c = sized(k % 2 ? SKL_LINEAR : SKL_ATTENTION, types[k % 3], k % 3 ? 33 : 130, k % 2 ? 200 : 129,
                              dims[k % 3]);
    kit_set_divergence(&c, divergence);
    if (k % 2) {
        c.bias[S] = 1, c.bias[T] = 1;
    } else {
        c.heads = 2, c.key_heads[S] = c.key_heads[T] = 1, c.causal = 1;
        c.softcap[S] = k == 2 ? 7 : 0;
    }
    c.weights = k % 3 ? KIT_SOME_ZERO : KIT_UNWEIGHTED, c.own = k % 4 == 3;
    return c;
}

static void second_sweeps(void)
{
    static const double exponents[][2] = {{0.2, 0.7}, {1, 1}, {0, 1}, {1, 0}, {2, 0.5}, {0.5, 0.5}};
    for (int k = 0; k < 6; k++) {
        struct kit_case c = second_case(k, SKL_ALPHA_BETA);
        const double *two = exponents[(k + 1) % 6]; /* bf16 and f32 operands meet sums other than 1 */
        c.alpha = two[0], c.beta = two[1];
        if (k < 3 || test_long())
            run_case(&c);
        c = second_case(k, k % 2 ? SKL_SKEW_FORWARD_KL : SKL_SKEW_REVERSE_KL);
        c.skew = 0.1 + 0.15 * k;
        if (k >= 3 || test_long())
            run_case(&c);
    }
}

/* JSD with a mixture that is nearly one side: log(p/m) must not be lost in 1 - beta. Not in f16, where dx that small is
 * 0. */
static void lopsided_mixtures(void)
{
    static const double betas[] = {0.001, 0.999, 1e-5};
    static const int types[] = {SKL_BF16, SKL_BF16, SKL_F32};
    static const int64_t dims[] = {64, 264, 21};
    for (int k = 0; k < 9; k++) {
        struct kit_case c = sized(k % 3 ? SKL_LINEAR : SKL_ATTENTION, types[k % 3], 40, 300, dims[k % 3]);
        kit_set_divergence(&c, SKL_JSD);
        c.beta = betas[k / 3], c.spread = 6;
        if (k % 4 == 0 || test_long()) /* each beta, each type */
            run_case(&c);
    }
}

static struct kit_case total_variation(int k)
{
    struct kit_case c = second_case(k % 6, SKL_TOTAL_VARIATION);
    c.spread = 3;
    kit_shrink(&c, 20000);
    return c;
}

/* The same mixtures as the CPU's tests, mostly in one 16-bit type and aligned, so that most meet tensor cores. */
static void random_cases(int n)
{
    for (int k = 0; k < n; k++) {
        struct kit_case c = kit_random_device_case(&test_numbers);
        if (k % 4 == 0) {
            kit_shrink(&c, 1e5);
            run_copied(&c);
        } else {
            kit_shrink(&c, 4e6);
            run_case(&c);
        }
    }
}

/* Is it one of the kernels that a test of their own runs? That test says so if it does not. */
static int elsewhere(const struct test_listed *k)
{
    static const char *const sources[] = {"label_kernels",  "sink_kernels", "mixture_kernels",
                                          "detail_kernels", "list_kernels", "key_kernels",
                                          "index_kernels",  "sweep_index",  "topk_kernels"};
    static const char *const roles[] = {"fused", "mixed_", "top", "rest", "scores"}; /* or what they begin with */
    for (int i = 0; i < COUNT(sources); i++)
        if (strcmp(k->source, sources[i]) == 0)
            return 1;
    for (int i = 0; i < COUNT(roles); i++)
        if (strncmp(k->role, roles[i], strlen(roles[i])) == 0)
            return 1;
    return 0;
}

int main(void)
{
    test_begin("test_kernels");
    test_device_begin();
    test_device.processors = 8;
    sizes();
    widths();
    masks();
    packed();
    small_dx();
    lopsided_mixtures();
    second_sweeps();
    run_determined(test_cases(test_first(3, 9), 3), total_variation);
    random_cases(test_cases(test_first(6, 300), 6));
    test_context("src/cuda/kernels.def");
    for (int i = 0; i < test_list_count && !test_quick(); i++)
        if (!elsewhere(&test_list[i]))
            CHECK(test_device_ran(test_list[i].kernel), "no case ran %s", test_list[i].kernel);
    return test_end();
}
