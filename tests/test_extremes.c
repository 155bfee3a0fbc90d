/* SPDX-License-Identifier: Apache-2.0
 *
 * Numbers at the ends of what f32 holds, rows and columns without mass, NaN that must stay where it came from, sizes of
 * one and of none, and half a million columns.
 */
#include "cases.h"

static const enum skl_isa isas[] = TEST_ISAS;

/* All ways on all instruction sets, the bounds widened by what the rounding of logits of this size does. */
static void run_everywhere(struct kit_fixture *f, double logit, const char *name)
{
    kit_expect(f);
    double ulp = 4 * 0x1p-24 * logit;
    for (int k = 0; k < KIT_RESULTS; k++)
        for (int64_t i = 0; f->want[k] && i < kit_count(&f->out[k].t); i++)
            /* A gradient feels the rounding of a logit in proportion to the largest it could be, |operand| <= 8. */
            f->bound[k][i] += k < KIT_A_S ? ulp : ulp * 8 * fabs(skl_reference_upstream(&f->p, 0));
    f->value_bound += ulp * (f->c.reduction == SKL_SUM ? (double)f->c.rows : 1);
    for (int k = 0; k < COUNT(isas); k++) {
        if (!skl_isa_available(isas[k]))
            continue;
        f->p.isa = isas[k];
        test_context("%s, %s, divergence %d", name, skl_isa_name(isas[k]), f->c.divergence);
        for (int way = 0; way < KIT_WAYS; way++) test_run(f, way);
    }
}

/* A linear problem whose logits are its biases: a = 0. 'logit' gives z of (side, column). */
static void with_logits(const char *name, struct kit_case c, int64_t cols, double largest,
                        double (*logit)(int side, int64_t column))
{
    struct kit_fixture f;
    struct kit_case linear = kit_linear_case(5, cols, 3);
    linear.divergence = c.divergence, linear.alpha = c.alpha, linear.beta = c.beta, linear.skew = c.skew;
    linear.bias[S] = linear.bias[T] = 1;
    test_build(&f, &linear);
    for (int side = 0; side < 2; side++) {
        kit_fill(&f.in[3 * side].t, 0);
        for (int64_t j = 0; j < cols; j++) kit_set(&f.in[3 * side + 2].t, j, logit(side, j));
    }
    run_everywhere(&f, largest, name);
    test_destroy(&f);
}

static double alternating_1e4(int side, int64_t j)
{
    return (j + side) % 3 == 0 ? 1e4 : j % 2 ? -1e4 : 0;
}

static double same_1e4(int side, int64_t j)
{
    return (j % 3 == 0 ? 1e4 : -1e4) + 0.25 * (double)(j * (side + 1) % 7);
}

/* A few columns have all the mass; in the others both probabilities are below e^-104, below e^-700, or below both. */
static double underflowing(int side, int64_t j)
{
    static const double depth[] = {0, -110, -250, -900, -5000};
    return depth[j % 5] + (side ? 0.5 : -0.5) * (double)(j % 3);
}

/* p is where q is not: every term of KL is large, JSD is log 2 and such. */
static double apart(int side, int64_t j)
{
    return j % 2 == side ? 0 : -300;
}

static double equal(int side, int64_t j)
{
    (void)side, (void)j;
    return -7.5;
}

/* Whatever the first columns are taken relative to, the next ones lie 2^144 above it; of the other side elsewhere. */
static double rising(int side, int64_t j)
{
    return 100 * (double)((j + 31 * side) / 70) + 0.05 * (double)j;
}

/* Each largest logit lies above the ones before it, but by less than a reference leaves. */
static double climbing(int side, int64_t j)
{
    return 0.02 * (double)j + (side ? 0.3 : -0.2) * (double)(j % 5);
}

static void large_logits(int divergence, double beta)
{
    struct kit_case c = {.divergence = divergence, .beta = beta};
    with_logits("logits of +-1e4", c, 50, 1e4, alternating_1e4);
    with_logits("common logits of +-1e4", c, 50, 1e4, same_1e4);
    with_logits("both sides underflow", c, 230, 300, underflowing); /* deeper ones have no mass, need no precision */
    with_logits("disjoint", c, 230, 300, apart);
    with_logits("uniform", c, 1000, 10, equal);
    with_logits("rising in steps", c, 600, 930, rising);
    with_logits("climbing", c, 600, 14, climbing);
}

/* The other divergences: powers of what lies above its reference must not become infinite. */
static void climbing_powers(void)
{
    for (int d = SKL_SKEW_FORWARD_KL; d < KIT_DIVERGENCE_COUNT; d++) {
        struct kit_case c = {0};
        kit_set_divergence(&c, d);
        if (d == SKL_ALPHA_BETA)
            c.alpha = c.beta = 16;
        with_logits("climbing", c, 600, 14, climbing);
    }
}

/* The bits of the middle one of three rows, whose scores climb until its reference moves; those of the rows beside it
 * climb 'steep' times as fast. */
static void middle_row(int divergence, enum skl_isa isa, double steep, float got[3])
{
    enum { COLS = 600 };
    float x[2][3], w[2][COLS], loss[3], dx[2][3];
    for (int side = 0; side < 2; side++) {
        for (int i = 0; i < 3; i++) x[side][i] = (float)((i == 1 ? 1 : steep) * (side ? 1 : 0.9));
        for (int j = 0; j < COLS; j++) w[side][j] = (float)climbing(side, j);
    }
    struct skl_problem p = skl_linear(skl_matrix(SKL_F32, x[S], 3, 1), skl_matrix(SKL_F32, w[S], COLS, 1),
                                      skl_matrix(SKL_F32, x[T], 3, 1), skl_matrix(SKL_F32, w[T], COLS, 1));
    struct skl_outputs out = skl_no_outputs();
    double value;
    struct kit_case c = {0};
    kit_set_divergence(&c, divergence);
    p.divergence = divergence, p.alpha = c.alpha, p.beta = c.beta, p.skew = c.skew, p.isa = isa;
    out.value = &value, out.loss = skl_vector(SKL_F32, loss, 3);
    out.s.a = skl_matrix(SKL_F32, dx[S], 3, 1), out.t.a = skl_matrix(SKL_F32, dx[T], 3, 1);
    CHECK_STATUS(skl_value_and_grad(&p, &out), SKL_OK);
    got[0] = loss[1], got[1] = dx[S][1], got[2] = dx[T][1];
}

/* A reference moves because of its own row alone, also where rows share a vector. */
static void rows_side_by_side(void)
{
    for (int k = 0; k < COUNT(isas); k++)
        for (int d = 0; d < KIT_DIVERGENCE_COUNT && skl_isa_available(isas[k]); d++) {
            float flat[3], steep[3];
            test_context("beside rows that climb, %s, divergence %d", skl_isa_name(isas[k]), d);
            middle_row(d, isas[k], 0, flat);
            middle_row(d, isas[k], 2.5, steep);
            for (int i = 0; i < 3; i++)
                CHECK(isfinite(flat[i]) && !memcmp(&flat[i], &steep[i], sizeof *flat), "%.9g, not %.9g",
                      (double)steep[i], (double)flat[i]);
        }
}

/* ------------------------------------------------------------------------------------------------- -inf --- */

/* Columns of -inf on one side, the other or both. Where mass meets none, the KL that minds is +inf and the gradient of
 * its first side is not defined; everything else is compared. */
static void closed_columns(void)
{
    for (int d = 0; d < 3; d++)
        for (int closed = 1; closed <= 3; closed++) {
            struct kit_fixture f;
            struct kit_case c = kit_linear_case(9, 110, 6);
            c.divergence = d, c.bias[S] = c.bias[T] = 1;
            int infinite = (d == SKL_FORWARD_KL && closed == 1) || (d == SKL_REVERSE_KL && closed == 2);
            c.grads = !infinite ? KIT_GRAD_ALL : KIT_GRAD_A_S | KIT_GRAD_B_S | KIT_GRAD_BIAS_S;
            if (infinite && d == SKL_REVERSE_KL)
                c.grads = KIT_GRAD_A_T | KIT_GRAD_B_T | KIT_GRAD_BIAS_T;
            test_build(&f, &c);
            for (int64_t j = 0; j < c.cols; j++)
                for (int side = 0; side < 2; side++)
                    if ((closed >> side & 1) && (j % 7 == 2 || j >= 96)) /* some, and a whole tile */
                        kit_set(&f.in[3 * side + 2].t, j, -INFINITY);
            run_everywhere(&f, 0, closed == 1 ? "student closed" : closed == 2 ? "teacher closed" : "both closed");
            test_destroy(&f);
        }
}

/* No mass anywhere on one side: there is no distribution to speak of, but no NaN either. On both: as an empty row. */
static void closed_rows(void)
{
    for (int d = 0; d < 3; d++)
        for (int closed = 1; closed <= 3; closed++) {
            struct kit_fixture f;
            struct kit_case c = kit_linear_case(3, 10, 2);
            c.divergence = d, c.bias[S] = c.bias[T] = 1, c.grads = 0;
            test_build(&f, &c);
            for (int side = 0; side < 2; side++)
                if (closed >> side & 1)
                    kit_fill(&f.in[3 * side + 2].t, -INFINITY);
            kit_expect(&f);
            for (int k = 0; k < COUNT(isas); k++)
                if (skl_isa_available(isas[k])) {
                    f.p.isa = isas[k];
                    test_context("no mass on side(s) %d, %s, divergence %d", closed, skl_isa_name(isas[k]), d);
                    struct skl_outputs out = kit_outputs(&f, 1, 0);
                    CHECK_STATUS(skl_value(&f.p, &out), SKL_OK);
                    for (int64_t i = 0; closed < 3 && i < c.rows; i++)
                        CHECK(!isnan(kit_get(&f.out[KIT_LOSS].t, i)), "loss is NaN");
                    if (closed == 3)
                        test_compare(&f, &out, "value");
                }
            test_destroy(&f);
        }
}

/* -------------------------------------------------------------------------------------------------- NaN --- */

/* Makes every expectation that the poison reaches "anything": by the mask, row i and column j meet. */
static void check_others(struct kit_fixture *f, const char *name, unsigned grads)
{
    f->loss_alone = !grads;
    struct skl_outputs out = kit_outputs(f, 1, grads);
    out.value = NULL;
    CHECK_STATUS(grads ? skl_value_and_grad(&f->p, &out) : skl_value(&f->p, &out), SKL_OK);
    for (int k = 0; k < KIT_RESULTS; k++) {
        if (!f->want[k] || !kit_slot(&out, k)->data)
            continue;
        int64_t bad = 0, tamed = 0, at = -1;
        for (int64_t i = 0; i < kit_count(&f->out[k].t); i++) {
            double got = kit_get(&f->out[k].t, i);
            if (!isnan(f->want[k][i]) && !test_within(got, f->want[k][i], f->bound[k][i]))
                bad++, at = i;
            if (isnan(f->want[k][i]) && (k <= KIT_A_S || k == KIT_A_T) && !isnan(got))
                tamed++;
        }
        CHECK(bad == 0, "%s: NaN spread to %lld elements of %s, the last at %lld", name, (long long)bad,
              kit_results[k].name, (long long)at);
        CHECK(tamed == 0, "%s: %lld rows of %s hide a NaN", name, (long long)tamed, kit_results[k].name);
    }
}

enum poison { IN_ROW, IN_COLUMN, IN_WEIGHTLESS_ROW, IN_PADDING, IN_UNSEEN_COLUMN, BESIDE_THE_RANGE, POISONS };

/* A range whose ends fall inside strips of every width, seen by fewer rows than any panel has. */
enum { RANGE_BEGIN = 21, RANGE_END = 43, RANGE_ROWS = 3 };

static void poisoned(enum poison where, double value, int sides, int d, enum skl_isa isa)
{
    static const char *const names[] = {"in a row",
                                        "in a column",
                                        "in a row of weight 0",
                                        "in a padded column",
                                        "in a column no row sees",
                                        "beside the range of all rows"};
    struct kit_fixture f;
    struct kit_case c = kit_attention_case(where == BESIDE_THE_RANGE ? RANGE_ROWS : 40, 60, 10);
    c.causal = where != BESIDE_THE_RANGE, c.divergence = d, c.ranges = where == BESIDE_THE_RANGE;
    if (where == IN_WEIGHTLESS_ROW)
        c.weights = KIT_POSITIVE;
    if (where == IN_PADDING)
        c.pad[S] = c.pad[T] = 50;
    if (where == IN_UNSEEN_COLUMN)
        c.right = 0, c.left = 15;
    test_build(&f, &c);
    f.p.isa = isa;
    test_context("%s %s, %s, divergence %d", isnan(value) ? "NaN" : "inf", names[where], skl_isa_name(isa), d);
    for (int side = 0; side < 2; side++) {
        if (!(sides & 1 << side))
            continue;
        struct skl_tensor *a = &f.in[3 * side].t, *b = &f.in[3 * side + 1].t;
        int64_t row = 11, column = where == IN_COLUMN ? 57 : where == IN_UNSEEN_COLUMN ? 1 : c.cols;
        for (int64_t i = 0; i < c.dim[side]; i++) {
            if (where == IN_ROW || where == IN_WEIGHTLESS_ROW)
                kit_set(a, row * c.dim[side] + i, value);
            else if (where != BESIDE_THE_RANGE)
                kit_set(b, column * c.dim[side] + i, value);
            else
                kit_set(b, (RANGE_BEGIN - 1) * c.dim[side] + i, value), kit_set(b, RANGE_END * c.dim[side] + i, value);
        }
    }
    for (int64_t i = 0; where == BESIDE_THE_RANGE && i < RANGE_ROWS; i++)
        kit_set(&f.in[KIT_INPUT_BEGIN].t, i, RANGE_BEGIN), kit_set(&f.in[KIT_INPUT_END].t, i, RANGE_END);
    if (where == IN_WEIGHTLESS_ROW)
        kit_set(&f.in[KIT_INPUT_WEIGHT].t, 11, 0);
    kit_expect(&f);
    check_others(&f, "value and grad", KIT_GRAD_ALL);
    check_others(&f, "value", 0);
    test_destroy(&f);
}

static void not_a_number(void)
{
    for (int k = 0; k < COUNT(isas); k++)
        for (int where = 0; where < POISONS && skl_isa_available(isas[k]); where++)
            for (int d = 0; d < 3; d++) {
                poisoned(where, NAN, 1 << S | 1 << T, d, isas[k]);
                poisoned(where, INFINITY, 1 << S | 1 << T, d, isas[k]);
            }
}

/* Of one side: what both sides make is NaN, whichever it came from. */
static void not_a_number_of(int side)
{
    for (int k = 0; k < COUNT(isas); k++)
        for (int d = 0; d < 3 && skl_isa_available(isas[k]); d++) {
            poisoned(IN_ROW, NAN, 1 << side, d, isas[k]);
            poisoned(IN_COLUMN, NAN, 1 << side, d, isas[k]);
        }
}

/* What is told of a row beside its loss hides no NaN of one side either. */
static void nothing_told_of_nan(int side, int divergence, enum skl_isa isa)
{
    enum { ROWS = 3, COLS = 90 };
    float x[2][ROWS] = {{1, 2, 3}, {2, 1, 0}}, w[COLS], reverse[ROWS], jsd[ROWS], tv[ROWS], entropy[2][ROWS];
    for (int j = 0; j < COLS; j++) w[j] = (float)(0.1 * (j * 7 % 11));
    x[side][1] = NAN;
    struct skl_tensor head = skl_matrix(SKL_F32, w, COLS, 1);
    struct skl_problem p = skl_linear(skl_matrix(SKL_F32, x[S], ROWS, 1), head, skl_matrix(SKL_F32, x[T], ROWS, 1),
                                      head);
    struct skl_outputs out = skl_no_outputs();
    p.divergence = divergence, p.isa = isa;
    out.reverse = skl_vector(SKL_F32, reverse, ROWS), out.jsd = skl_vector(SKL_F32, jsd, ROWS);
    out.tv = skl_vector(SKL_F32, tv, ROWS), out.entropy_s = skl_vector(SKL_F32, entropy[S], ROWS);
    out.entropy_t = skl_vector(SKL_F32, entropy[T], ROWS);
    test_context("NaN of side %d, %s, divergence %d", side, skl_isa_name(isa), divergence);
    CHECK_STATUS(skl_value(&p, &out), SKL_OK);
    for (int i = 0; i < ROWS; i++) {
        CHECK(isnan(reverse[i]) == (i == 1) && isnan(jsd[i]) == (i == 1) && isnan(tv[i]) == (i == 1),
              "row %d: reverse %g, jsd %g, tv %g", i, (double)reverse[i], (double)jsd[i], (double)tv[i]);
        CHECK(isnan(entropy[side][i]) == (i == 1) && isfinite(entropy[!side][i]), "row %d: entropies %g, %g", i,
              (double)entropy[S][i], (double)entropy[T][i]);
    }
}

/* ------------------------------------------------------------------------------------------------ sizes --- */

static void least_sizes(void)
{
    static const int64_t table[][3] = {{1, 1, 1}, {1, 1, 300}, {1, 300, 1}, {300, 1, 1}, {300, 1, 70}};
    for (int k = 0; k < COUNT(table); k++)
        for (int d = 0; d < 6; d++) {
            struct kit_case c = d < 3 ? kit_attention_case(table[k][0], table[k][1], table[k][2])
                                      : kit_linear_case(table[k][0], table[k][1], table[k][2]);
            c.divergence = d % 3;
            test_all_ways(&c);
        }
}

/* No rows, or no columns: nothing to compute is not an error. Gradients that exist are 0. */
static void none(void)
{
    for (int d = 0; d < 3; d++)
        for (int kind = 0; kind < 2; kind++) {
            float a[6] = {1, 2, 3, 4, 5, 6}, loss[3] = {9, 9, 9}, lse[3] = {9, 9, 9}, grad[6] = {9, 9, 9, 9, 9, 9};
            double value = 9;
            struct skl_tensor x = skl_matrix(SKL_F32, a, kind ? 3 : 0, 2), w = skl_matrix(SKL_F32, a, kind ? 0 : 3, 2);
            struct skl_problem p = skl_linear(x, w, x, w);
            struct skl_outputs out = skl_no_outputs();
            p.divergence = d;
            out.value = &value;
            out.loss = skl_vector(SKL_F32, loss, x.shape[0]), out.lse_s = skl_vector(SKL_F32, lse, x.shape[0]);
            out.s.a = skl_matrix(SKL_F32, grad, x.shape[0], 2);
            if (!kind)
                out.s.a.data = NULL, out.s.b = skl_matrix(SKL_F32, grad, 3, 2);
            test_context("%s, divergence %d", kind ? "no columns" : "no rows", d);
            CHECK_STATUS(skl_value_and_grad(&p, &out), SKL_OK);
            CHECK(value == 0, "value %g", value);
            for (int i = 0; i < 6; i++) CHECK(grad[i] == 0, "gradient %g", grad[i]);
            for (int i = 0; kind && i < 3; i++)
                CHECK(loss[i] == 0 && lse[i] == -INFINITY, "loss %g, lse %g", loss[i], lse[i]);
        }
}

/* Operands 'up' times larger and smaller, whose products are the same. */
static double value_of(double up, double scale, double softcap, float grad[6])
{
    float x[2][6], w[10];
    double value = NAN;
    struct skl_outputs out = skl_no_outputs();
    for (int i = 0; i < 6; i++) x[S][i] = (float)(up * (0.25 * i - 0.5)), x[T][i] = (float)(up * (0.5 * i - 1));
    for (int i = 0; i < 10; i++) w[i] = (float)((i * 7 % 5 - 2) / 32.0 / up);
    struct skl_tensor head = skl_matrix(SKL_F32, w, 5, 2);
    struct skl_problem p = skl_linear(skl_matrix(SKL_F32, x[S], 3, 2), head, skl_matrix(SKL_F32, x[T], 3, 2), head);
    p.s.scale = p.t.scale = scale, p.s.softcap = softcap;
    out.value = &value, out.s.a = skl_matrix(SKL_F32, grad, 3, 2);
    CHECK_STATUS(skl_value_and_grad(&p, &out), SKL_OK);
    return value;
}

/* A softcap that no logit comes near, up to the largest f32, is none; an operand that the scale would make infinite is
 * not made so. */
static void far_from_one(void)
{
    static const double softcaps[] = {1e32, 1e37, 3e38, 1e200};
    float plain[6], capped[6];
    test_context("softcaps far from the logits");
    double want = value_of(1, 1, 0, plain);
    CHECK(want > 1e-4, "value %g", want);
    for (int k = 0; k < COUNT(softcaps); k++) {
        double got = value_of(1, 1, softcaps[k], capped);
        CHECK(got == want && !memcmp(plain, capped, sizeof plain), "softcap %g: value %g, not %g", softcaps[k], got,
              want);
    }
    test_context("operands far from one, scale 1000");
    want = value_of(1, 1000, 0, plain);
    CHECK(value_of(0x1p119, 1000, 0, capped) == want, "not %g", want);
    CHECK(value_of(0x1p-110, 1000, 0, capped) == want, "not %g", want);
}

/* JSD with a mixture that is nearly one side: log(m/p) must not be lost in 1 - beta. kl_t against eager f32's error,
 * which is some 1e-7 of log(1/beta). */
static void lopsided_mixture(void)
{
    static const double betas[] = {0.001, 0.999, 1e-5};
    for (int k = 0; k < COUNT(betas); k++) {
        struct kit_fixture f;
        struct kit_case c = kit_linear_case(40, 300, 16);
        c.divergence = SKL_JSD, c.beta = betas[k], c.spread = 6;
        test_build(&f, &c);
        run_everywhere(&f, 0, "lopsided mixture");
        test_destroy(&f);
    }
}

/* The error does not grow with the number of columns: the bounds are those of any other test. */
static void half_a_million(void)
{
    int64_t cols = test_quick() ? 20000 : 512 * 1024;
    for (int d = 0; d < 3; d++) {
        struct kit_fixture f;
        struct kit_case c = kit_attention_case(3, cols, 8);
        c.divergence = d, c.spread = 2;
        test_build(&f, &c);
        kit_expect(&f);
        test_context("%lld keys, divergence %d", (long long)cols, d);
        for (int way = 0; way < KIT_WAYS; way++) test_run(&f, way);
        test_destroy(&f);
    }
}

/* Nor with the number of rows, whose sum the gradient of b is. */
static void many_rows(void)
{
    for (int d = 0; d < 3; d++) {
        struct kit_fixture f;
        struct kit_case c = kit_linear_case(test_quick() ? 5000 : 300000, 7, 3);
        c.divergence = d, c.bias[S] = c.bias[T] = 1, c.reduction = SKL_SUM;
        test_build(&f, &c);
        for (int side = 0; side < 2; side++) /* of one sign, so that the sums grow */
            for (int64_t i = 0; i < kit_count(&f.in[3 * side].t); i++)
                kit_set(&f.in[3 * side].t, i, fabs(kit_get(&f.in[3 * side].t, i)));
        kit_expect(&f);
        test_context("many rows, divergence %d", d);
        for (int way = 0; way < KIT_WAYS; way++) test_run(&f, way);
        test_destroy(&f);
    }
}

int main(void)
{
    test_begin("test_extremes");
    for (int d = 0; d < 3; d++) large_logits(d, 0.4);
    closed_columns();
    closed_rows();
    not_a_number();
    least_sizes();
    none();
    far_from_one();
    lopsided_mixture();
    half_a_million();
    many_rows();
    large_logits(SKL_JSD, 0.5); /* even mixtures have kernels of their own */
    climbing_powers();
    rows_side_by_side();
    for (int side = 0; side < 2; side++) {
        not_a_number_of(side);
        for (int k = 0; k < COUNT(isas); k++)
            for (int d = 0; d < 3 && skl_isa_available(isas[k]); d++) nothing_told_of_nan(side, d, isas[k]);
    }
    return test_end();
}
