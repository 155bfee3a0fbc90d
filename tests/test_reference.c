/* SPDX-License-Identifier: Apache-2.0
 *
 * The reference by itself: against hand-computed cases, and its gradients against central differences of its own value,
 * for every divergence, mask and way to make a logit.
 */
#include "cases.h"

/* Operands are f32, so steps are taken on a grid that f32 holds exactly: values are multiples of 2^-9 below 16, steps
 * 2^-9 and 2^-10. Richardson's combination of the two steps has an error of h^4, far below the bound. */
static const double GRID = 0x1p-9;

static void snap(const struct skl_tensor *t)
{
    for (int64_t i = 0; t->data && i < kit_count(t); i++) kit_set(t, i, nearbyint(kit_get(t, i) / GRID) * GRID);
}

static double value_of(const struct skl_problem *p)
{
    struct skl_reference r = {0};
    skl_reference_run(p, &r);
    return r.value;
}

static double central(const struct skl_problem *p, const struct skl_tensor *t, int64_t i, double step)
{
    double x = kit_get(t, i);
    kit_set(t, i, x + step);
    double above = value_of(p);
    kit_set(t, i, x - step);
    double below = value_of(p);
    kit_set(t, i, x);
    return (above - below) / (2 * step);
}

static void check_differences(const struct kit_case *c)
{
    struct kit_fixture f;
    test_build(&f, c);
    for (int k = 0; k < 6; k++) snap(&f.in[k].t);
    kit_expect(&f);
    for (int k = KIT_A_S; k < KIT_RESULTS; k++) {
        const struct skl_tensor *operand = &f.in[k - KIT_A_S].t;
        double worst = 0, bound = 1e-9;
        for (int64_t i = 0; f.want[k] && i < kit_count(operand); i++) {
            double fine = central(&f.p, operand, i, GRID / 2), coarse = central(&f.p, operand, i, GRID);
            double error = fabs((4 * fine - coarse) / 3 - f.want[k][i]);
            if (!(error <= worst))
                worst = error;
            bound = fmax(bound, 1e-7 * fabs(f.want[k][i]));
        }
        if (f.want[k])
            CHECK(worst <= bound, "%s differs from central differences by %.3g", kit_results[k].name, worst);
    }
    test_destroy(&f);
}

struct mask {
    const char *name;
    int causal;
    int64_t left, right;
    int ranges, weights;
    int64_t pad[2];
};

static const struct mask masks[] = {
    {"none", 0, -1, -1, 0, KIT_UNWEIGHTED, {0, 0}},          {"causal", 1, -1, -1, 0, KIT_UNWEIGHTED, {0, 0}},
    {"window", 0, 2, 1, 0, KIT_UNWEIGHTED, {0, 0}},          {"causal window", 1, 2, -1, 0, KIT_UNWEIGHTED, {0, 0}},
    {"ranges", 0, -1, -1, 1, KIT_POSITIVE, {0, 0}},          {"padding", 0, -1, -1, 0, KIT_POSITIVE, {3, 0}},
    {"some weights 0", 0, -1, -1, 0, KIT_SOME_ZERO, {0, 2}},
};

struct logit {
    const char *name;
    double scale[2], softcap[2], temperature;
    int bias[2];
};

static const struct logit kinds[] = {
    {"plain", {0, 0}, {0, 0}, 1, {0, 0}},      {"temperature", {0, 0}, {0, 0}, 2.5, {0, 0}},
    {"scale", {0.7, -0.4}, {0, 0}, 1, {0, 0}}, {"softcap", {0, 0}, {2, 3}, 1, {0, 0}},
    {"bias", {0, 0}, {0, 0}, 1, {1, 1}},       {"all", {1.3, 0.8}, {3, 2}, 0.7, {1, 1}},
};

static void every_gradient(void)
{
    for (int use = 0; use < 2; use++)
        for (int d = 0; d < 3; d++)
            for (int m = 0; m < COUNT(masks); m++)
                for (int k = 0; k < COUNT(kinds); k++) {
                    const struct mask *mask = &masks[m];
                    const struct logit *kind = &kinds[k];
                    struct kit_case c = use ? kit_linear_case(3, 6, 2) : kit_attention_case(3, 5, 2);
                    if (use && (mask->causal || mask->left >= 0))
                        continue;
                    c.divergence = d, c.beta = 0.3, c.reduction = (d + m + k) % 2;
                    c.causal = mask->causal, c.left = mask->left, c.right = mask->right;
                    c.ranges = mask->ranges, c.weights = mask->weights, c.dim[T] = 3;
                    if (!use)
                        c.heads = 2, c.key_heads[T] = 1;
                    for (int s = 0; s < 2; s++) {
                        c.pad[s] = mask->pad[s], c.scale[s] = kind->scale[s], c.softcap[s] = kind->softcap[s];
                        c.bias[s] = use ? kind->bias[s] : 0;
                    }
                    c.temperature = kind->temperature;
                    test_context("%s, divergence %d, mask %s, logits %s", use ? "linear" : "attention", d, mask->name,
                                 kind->name);
                    check_differences(&c);
                }
}

/* Two columns, probabilities 0.9/0.1 against 0.1/0.9, given through the bias. */
static void by_hand(void)
{
    float zero = 0, one[2] = {0, 0}, log_p[2] = {2.1972246f, 0}, log_q[2] = {0, 2.1972246f}; /* log 9 */
    struct skl_problem p = skl_linear(skl_matrix(SKL_F32, &zero, 1, 1), skl_matrix(SKL_F32, one, 2, 1),
                                      skl_matrix(SKL_F32, &zero, 1, 1), skl_matrix(SKL_F32, one, 2, 1));
    p.s.bias = skl_vector(SKL_F32, log_q, 2), p.t.bias = skl_vector(SKL_F32, log_p, 2);
    struct skl_reference_row r = {0};
    double dx[2];
    test_context("two columns by hand");
    for (int d = 0; d < 3; d++) {
        double expected[] = {0.8 * log(9), 0.8 * log(9), 0.9 * log(1.8) + 0.1 * log(0.2)};
        p.divergence = d;
        r.grad_x_s = dx;
        skl_reference_row(&p, 0, 1, &r);
        CHECK_NEAR(r.loss, expected[d], 1e-7, "loss");
        CHECK_NEAR(r.lse_s, log(10), 1e-7, "lse_s");
        CHECK_NEAR(dx[0] + dx[1], 0, 1e-15, "sum of dz");
        if (d == SKL_FORWARD_KL)
            CHECK_NEAR(dx[0], 0.1 - 0.9, 1e-7, "dz_s = q - p");
    }
}

/* -inf columns: no mass is 0 log 0 = 0 on the first side, +inf on the second, and log 1/beta-like in the mixture. */
static void without_mass(void)
{
    float zero = 0, w[2] = {0, 0}, inf = INFINITY, open[2] = {0, 0}, closed[2] = {0, -inf}, none[2] = {-inf, -inf};
    struct skl_problem p = skl_linear(skl_matrix(SKL_F32, &zero, 1, 1), skl_matrix(SKL_F32, w, 2, 1),
                                      skl_matrix(SKL_F32, &zero, 1, 1), skl_matrix(SKL_F32, w, 2, 1));
    const struct {
        float *s, *t;
        double loss[3];
    } table[] = {
        {open, closed, {log(2), INFINITY, 0.5 * log(4.0 / 3) + 0.5 * (0.5 * log(2) + 0.5 * log(2.0 / 3))}},
        {closed, open, {INFINITY, log(2), 0.5 * log(4.0 / 3) + 0.5 * (0.5 * log(2) + 0.5 * log(2.0 / 3))}},
        {closed, closed, {0, 0, 0}},
        {none, none, {0, 0, 0}},
    };
    test_context("columns of -inf");
    for (int k = 0; k < COUNT(table); k++)
        for (int d = 0; d < 3; d++) {
            struct skl_reference_row r = {0};
            p.s.bias = skl_vector(SKL_F32, table[k].s, 2), p.t.bias = skl_vector(SKL_F32, table[k].t, 2);
            p.divergence = d;
            skl_reference_row(&p, 0, 1, &r);
            CHECK_NEAR(r.loss, table[k].loss[d], 1e-15, "loss");
        }
}

/* Causal and windows, against the sentence in the header: one column at a time. */
static void ranges(void)
{
    for (int64_t N = 1; N <= 5; N++)
        for (int64_t M = 1; M <= 5; M++)
            for (int causal = 0; causal < 2; causal++)
                for (int64_t left = -1; left <= 5; left++)
                    for (int64_t right = -1; right <= 5; right++) {
                        struct skl_tensor q = skl_heads(SKL_F32, "", 1, 1, N, 1);
                        struct skl_tensor k = skl_heads(SKL_F32, "", 1, 1, M, 1);
                        struct skl_problem p = skl_attention(q, k, q, k);
                        int same = 1;
                        p.causal = causal, p.window_left = left, p.window_right = right;
                        for (int64_t i = 0; i < N; i++)
                            for (int64_t j = 0; j < M; j++) {
                                int64_t lo, hi, at = i + M - N;
                                int sees = (!causal || j <= at) && (left < 0 || j >= at - left);
                                sees = sees && (right < 0 || j <= at + right);
                                skl_reference_range(&p, i, &lo, &hi);
                                same &= sees == (j >= lo && j < hi);
                            }
                        CHECK(same, "N %d M %d causal %d window %d, %d", (int)N, (int)M, causal, (int)left, (int)right);
                    }
}

int main(void)
{
    test_begin("test_reference");
    by_hand();
    without_mass();
    ranges();
    every_gradient();
    return test_end();
}
