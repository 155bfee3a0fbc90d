/* SPDX-License-Identifier: Apache-2.0
 * Labels and details of rows on a device, against the CPU's, which tests/test_labels.c holds to the reference in
 * double. */
#include "families.h"

enum { ROWS = 37, COLUMNS = 213, DIM = 264, IGNORED = -100, DETAILS = 10 };

/* Everything that a call may write, for one device. */
struct results {
    double value;
    float loss[ROWS], m_s[ROWS], l_s[ROWS], m_t[ROWS], l_t[ROWS], kl_s[ROWS], kl_t[ROWS], detail[DETAILS][ROWS];
    float da[2][ROWS * DIM], db[2][COLUMNS * DIM], dbias[COLUMNS];
};

static const char *const detail_names[DETAILS] = {"kl",        "ce",        "logprob_s", "logprob_t", "l1_s",
                                                  "entropy_s", "entropy_t", "reverse",   "lse_s",     "lse_t"};

/* What is varied. */
struct labels_case {
    int type, dim, divergence, teacher, bias, wide, weights, ranges;
    double temperature, weight, kl_weight, lse_weight, smoothing, z_loss, softcap, num_items;
};

static struct skl_tensor on(struct skl_tensor t, int device)
{
    return device && t.data ? skl_on_cuda(t, 0) : t;
}

static void place(const struct labels_case *c, struct results *r, int device, struct skl_outputs *out)
{
    struct skl_tensor *details[DETAILS] = {&out->kl,    &out->ce,        &out->logprob_s, &out->logprob_t,
                                           &out->l1_s,  &out->entropy_s, &out->entropy_t, &out->reverse,
                                           &out->lse_s, &out->lse_t};
    *out = skl_no_outputs();
    out->value = &r->value;
    out->loss = on(skl_vector(SKL_F32, r->loss, ROWS), device);
    out->m_s = on(skl_vector(SKL_F32, r->m_s, ROWS), device), out->l_s = on(skl_vector(SKL_F32, r->l_s, ROWS), device);
    for (int i = 0; i < DETAILS; i++)
        if (c->teacher || i == 1 || i == 2 || i == 4 || i == 5 || i == 8)
            *details[i] = on(skl_vector(SKL_F32, r->detail[i], ROWS), device);
    if (!c->teacher)
        return;
    out->m_t = on(skl_vector(SKL_F32, r->m_t, ROWS), device), out->l_t = on(skl_vector(SKL_F32, r->l_t, ROWS), device);
    if (c->divergence > SKL_REVERSE_KL)
        out->kl_s = on(skl_vector(SKL_F32, r->kl_s, ROWS), device),
        out->kl_t = on(skl_vector(SKL_F32, r->kl_t, ROWS), device);
}

static void place_grads(const struct labels_case *c, struct results *r, int device, struct skl_outputs *out)
{
    out->s.a = on(skl_matrix(SKL_F32, r->da[0], ROWS, c->dim), device);
    out->s.b = on(skl_matrix(SKL_F32, r->db[0], COLUMNS, c->dim), device);
    if (c->bias)
        out->s.bias = on(skl_vector(SKL_F32, r->dbias, COLUMNS), device);
    if (c->teacher) {
        out->t.a = on(skl_matrix(SKL_F32, r->da[1], ROWS, c->dim), device);
        out->t.b = on(skl_matrix(SKL_F32, r->db[1], COLUMNS, c->dim), device);
    }
}

/* The largest difference, by the size of what is compared. NaN is the worst, unless both are. */
static double difference(const float *a, const float *b, int64_t n)
{
    double worst = 0, largest = 0;
    for (int64_t i = 0; i < n; i++) {
        if ((isnan(a[i]) && isnan(b[i])) || a[i] == b[i])
            continue;
        double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= worst))
            worst = isnan(d) ? HUGE_VAL : d;
        largest = fmax(largest, fabs((double)b[i]));
    }
    return worst == 0 ? 0 : worst / fmax(largest, 1e-30);
}

static void compare(const struct labels_case *c, const struct results *a, const struct results *b)
{
    double rounding = c->type == SKL_F32 ? 2e-5 : c->type == SKL_F16 ? 2e-3 : 1.2e-2; /* of dx, to the operands' type */
    CHECK_NEAR(a->value, b->value, 1e-5 * (1 + fabs(b->value)), "value");
    CHECK_NEAR(difference(a->loss, b->loss, ROWS), 0, 1e-5, "loss");
    for (int i = 0; i < DETAILS; i++) /* l1_s refers to m_s, which is each device's own: the backward reads it */
        if (strcmp(detail_names[i], "l1_s") != 0)
            CHECK_NEAR(difference(a->detail[i], b->detail[i], ROWS), 0, 2e-5, detail_names[i]);
    for (int side = 0; side < 2; side++) {
        CHECK_NEAR(difference(a->da[side], b->da[side], ROWS * c->dim), 0, rounding, side ? "da_t" : "da_s");
        CHECK_NEAR(difference(a->db[side], b->db[side], COLUMNS * c->dim), 0, rounding, side ? "db_t" : "db_s");
    }
    CHECK_NEAR(difference(a->dbias, b->dbias, COLUMNS), 0, rounding, "dbias");
}

static struct kit_case kit_of(const struct labels_case *c)
{
    struct kit_case k = kit_linear_case(ROWS, COLUMNS, c->dim);
    k.dtype[S] = k.dtype[T] = c->type;
    k.place = KIT_ALIGNED;
    k.temperature = c->temperature;
    k.bias[S] = c->bias;
    k.softcap[S] = c->softcap;
    k.ranges = c->ranges;
    k.weights = c->weights ? KIT_SOME_ZERO : KIT_UNWEIGHTED;
    kit_set_divergence(&k, c->divergence);
    return k;
}

static void fill_ids(const struct kit_fixture *f, int32_t *narrow, int64_t *wide)
{
    for (int i = 0; i < ROWS; i++) {
        int32_t lo = f->p.begin.data ? ((const int32_t *)f->p.begin.data)[i] : 0, hi = COLUMNS;
        hi = f->p.end.data ? ((const int32_t *)f->p.end.data)[i] : hi;
        lo = lo > 0 ? lo : 0, hi = hi < COLUMNS ? hi : COLUMNS;
        narrow[i] = i % 5 == 2 ? IGNORED : (int32_t)(lo < hi ? test_between(lo, hi - 1) : 0);
        wide[i] = narrow[i];
    }
}

/* Both devices, both ways to a gradient. */
static void run(const struct labels_case *c)
{
    static struct results cpu, gpu;
    static int32_t narrow[ROWS];
    static int64_t wide[ROWS];
    struct kit_case k = kit_of(c);
    struct kit_fixture f;
    struct skl_outputs out, saved, grads;
    test_build(&f, &k);
    fill_ids(&f, narrow, wide);
    struct skl_labels l = {sizeof l,      c->wide ? skl_vector(SKL_I64, wide, ROWS) : skl_vector(SKL_I32, narrow, ROWS),
                           c->weight,     c->kl_weight,
                           c->lse_weight, IGNORED,
                           c->smoothing,  c->z_loss};
    f.p.labels = &l, f.p.num_items = c->num_items;
    if (!c->teacher)
        memset(&f.p.t, 0, sizeof f.p.t);
    test_context("type %d, dim %d, %s, T %g, weights %g %g %g, smoothing %g, z_loss %g, teacher %d, bias %d", c->type,
                 c->dim, kit_divergence_names[c->divergence], c->temperature, c->weight, c->kl_weight, c->lse_weight,
                 c->smoothing, c->z_loss, c->teacher, c->bias);
    memset(&cpu, 0, sizeof cpu), memset(&gpu, 0, sizeof gpu);
    place(c, &cpu, 0, &out), place_grads(c, &cpu, 0, &out);
    CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_OK);
    struct skl_side teacher = f.p.t;
    test_device_adopt(&f);
    if (!c->teacher)
        f.p.t = teacher;
    emu_adopt(narrow, sizeof narrow), emu_written(narrow, sizeof narrow);
    emu_adopt(wide, sizeof wide), emu_written(wide, sizeof wide);
    emu_adopt(&gpu, sizeof gpu), emu_written(&gpu, sizeof gpu);
    l.ids = on(l.ids, 1);
    place(c, &gpu, 1, &out), place_grads(c, &gpu, 1, &out);
    CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_OK);
    test_device_clean("value and gradient");
    compare(c, &gpu, &cpu);
    memset(gpu.da, 0xFF, sizeof gpu.da), memset(gpu.db, 0xFF, sizeof gpu.db), memset(gpu.dbias, 0xFF, sizeof gpu.dbias);
    if (!c->teacher)
        memset(gpu.da[1], 0, sizeof gpu.da[1]), memset(gpu.db[1], 0, sizeof gpu.db[1]);
    if (!c->bias)
        memset(gpu.dbias, 0, sizeof gpu.dbias);
    place(c, &gpu, 1, &saved);
    CHECK_STATUS(skl_value(&f.p, &saved), SKL_OK);
    saved.value = NULL, grads = skl_no_outputs();
    place_grads(c, &gpu, 1, &grads);
    CHECK_STATUS(skl_backward(&f.p, &saved, &grads), SKL_OK);
    test_device_clean("value, then backward");
    compare(c, &gpu, &cpu);
    if (!c->ranges) { /* a label that is no column: NaN in its row, and nowhere else */
        narrow[4] = COLUMNS, wide[4] = -7;
        emu_written(narrow, sizeof narrow), emu_written(wide, sizeof wide);
        CHECK_STATUS(skl_value(&f.p, &saved), SKL_OK);
        for (int i = 0; i < ROWS; i++)
            CHECK(!isnan(gpu.detail[1][i]) == (i != 4) || gpu.loss[i] == 0, "ce[%d] = %g", i, (double)gpu.detail[1][i]);
    }
    emu_release(narrow), emu_release(wide), emu_release(&gpu);
    test_device_release(&f);
    test_destroy(&f);
    test_context("%s", "");
}

/* Identical sides and labels that count nothing: exactly 0, although dz is made of other masses. */
static void identical(int type, int dim, double temperature)
{
    static struct results gpu;
    static int32_t narrow[ROWS];
    static int64_t wide[ROWS];
    struct labels_case c = {.type = type, .dim = dim, .teacher = 1, .temperature = temperature, .kl_weight = 0.3};
    struct kit_case k = kit_of(&c);
    struct kit_fixture f;
    struct skl_outputs out;
    test_context("identical sides, type %d, dim %d, T %g", type, dim, temperature);
    test_build(&f, &k);
    fill_ids(&f, narrow, wide);
    test_device_adopt(&f);
    f.p.t = f.p.s;
    emu_adopt(narrow, sizeof narrow), emu_written(narrow, sizeof narrow), emu_adopt(&gpu, sizeof gpu);
    struct skl_labels l = {sizeof l, on(skl_vector(SKL_I32, narrow, ROWS), 1), 0, c.kl_weight, 0, IGNORED, 0, 0};
    f.p.labels = &l;
    memset(&gpu, 0xFF, sizeof gpu);
    place(&c, &gpu, 1, &out), place_grads(&c, &gpu, 1, &out);
    CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_OK);
    test_device_clean("identical sides");
    CHECK(gpu.value == 0, "value %g", gpu.value);
    for (int side = 0; side < 2; side++) {
        int zeros = 1;
        for (int i = 0; i < ROWS * dim; i++) zeros &= gpu.da[side][i] == 0;
        for (int i = 0; i < COLUMNS * dim; i++) zeros &= gpu.db[side][i] == 0;
        CHECK(zeros, "a gradient of side %d is not 0", side);
    }
    emu_release(narrow), emu_release(&gpu);
    test_device_release(&f);
    test_destroy(&f);
    test_context("%s", "");
}

/* Rows with one column: a cross-entropy, a log-probability and gradients of exactly 0, whatever order the label's score
 * was summed in. An LSE's own gradient stays: that of its one logit. */
static void one_column(int type, int dim, double temperature, double smoothing, double lse_weight)
{
    static struct results gpu;
    static int32_t narrow[ROWS], from[ROWS], to[ROWS];
    struct labels_case c = {.type = type, .dim = dim, .teacher = 1, .temperature = temperature, .kl_weight = 0.3};
    struct kit_case k = kit_of(&c);
    struct kit_fixture f;
    struct skl_outputs out;
    test_context("one column, type %d, dim %d, T %g, smoothing %g", type, dim, temperature, smoothing);
    test_build(&f, &k);
    for (int i = 0; i < ROWS; i++) narrow[i] = from[i] = (i * 11 + 3) % COLUMNS, to[i] = from[i] + 1;
    test_device_adopt(&f);
    emu_adopt(narrow, sizeof narrow), emu_written(narrow, sizeof narrow), emu_adopt(&gpu, sizeof gpu);
    emu_adopt(from, sizeof from), emu_written(from, sizeof from), emu_adopt(to, sizeof to), emu_written(to, sizeof to);
    struct skl_labels l = {
        sizeof l, on(skl_vector(SKL_I32, narrow, ROWS), 1), 0.7, c.kl_weight, lse_weight, IGNORED, smoothing, 0};
    f.p.labels = &l, f.p.begin = on(skl_vector(SKL_I32, from, ROWS), 1), f.p.end = on(skl_vector(SKL_I32, to, ROWS), 1);
    memset(&gpu, 0xFF, sizeof gpu);
    place(&c, &gpu, 1, &out), place_grads(&c, &gpu, 1, &out);
    CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_OK);
    test_device_clean("one column");
    for (int i = 0; i < ROWS; i++)
        CHECK(gpu.detail[1][i] == 0 && gpu.detail[2][i] == 0 && gpu.detail[3][i] == 0 && gpu.detail[0][i] == 0,
              "row %d: ce %g, logprobs %g %g, kl %g", i, (double)gpu.detail[1][i], (double)gpu.detail[2][i],
              (double)gpu.detail[3][i], (double)gpu.detail[0][i]);
    int zeros = 1, any = 0;
    for (int i = 0; i < ROWS * dim; i++) zeros &= gpu.da[0][i] == 0, any |= gpu.da[0][i] != 0;
    for (int i = 0; i < COLUMNS * dim; i++) zeros &= gpu.db[0][i] == 0;
    CHECK(lse_weight != 0 ? any : zeros, "the student's gradients %s", lse_weight != 0 ? "are 0" : "are not 0");
    emu_release(narrow), emu_release(from), emu_release(to), emu_release(&gpu);
    test_device_release(&f);
    test_destroy(&f);
    test_context("%s", "");
}

int main(void)
{
    test_begin("test_labels");
    test_device_begin();
    test_device.processors = 8;
    static const struct labels_case cases[] = {
        /* type, dim, divergence, teacher, bias, wide, weights, ranges, T, weight, kl, lse, smoothing, z_loss, cap,
         * items */
        {SKL_F32, 21, SKL_FORWARD_KL, 1, 1, 0, 0, 0, 1, 0.7, 0.4, 0, 0, 0, 0, 0},
        {SKL_F32, 24, SKL_FORWARD_KL, 0, 0, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0},
        {SKL_BF16, 64, SKL_FORWARD_KL, 1, 0, 0, 0, 0, 1, 0.7, 0.4, 0.1, 0, 0, 0, 0},
        {SKL_BF16, 264, SKL_FORWARD_KL, 0, 1, 1, 0, 0, 1, 1, 0, 0, 0.1, 1e-3, 0, 0},
        {SKL_F16, 264, SKL_REVERSE_KL, 1, 1, 0, 1, 0, 1, 0.5, 2, 0, 0, 0, 0, 0},
        {SKL_F32, 24, SKL_JSD, 1, 0, 1, 0, 0, 2, 3, 0.4, 0, 0.2, 0, 0, 40},
        {SKL_F32, 24, SKL_FORWARD_KL, 1, 1, 0, 1, 1, 2, 0.7, 0.4, 0, 0, 1e-2, 5, 0},
        {SKL_F16, 64, SKL_TOTAL_VARIATION, 1, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0},
        {SKL_F32, 5, SKL_FORWARD_KL, 0, 0, 0, 1, 0, 3, 0, 0, 1, 0, 0, 0, 0},
    };
    for (int i = 0; i < COUNT(cases); i++) run(&cases[i]);
    identical(SKL_F32, 21, 1), identical(SKL_BF16, 64, 1), identical(SKL_F16, 264, 2);
    one_column(SKL_F32, 21, 1, 0, 0), one_column(SKL_BF16, 64, 1, 0, 0), one_column(SKL_F16, 264, 2, 0, 0);
    one_column(SKL_BF16, 264, 1, 0.1, 0), one_column(SKL_F32, 24, 1, 0, 0.5);
    for (int i = 0; i < test_list_count; i++)
        if (strcmp(test_list[i].source, "label_kernels") == 0)
            CHECK(test_device_ran(test_list[i].kernel), "no case ran %s", test_list[i].kernel);
    return test_end();
}
