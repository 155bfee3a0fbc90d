/* SPDX-License-Identifier: Apache-2.0
 * Listed teachers on a device, against their definition in double (kit/listed.c); the same bits under every schedule;
 * ids that are no columns. */
#include "families.h"

#include "../../kit/listed.h"

static void check_ways(const struct kit_listed_case *c)
{
    struct kit_listed *f = kit_build_listed(c, &test_numbers, test_device_memory.device);
    test_context("%s, type %d, rows %d, cols %d, dim %d, k %d, labels %d, T %g, scale %g, softcap %g",
                 kit_listed_kind_names[c->kind], c->dtype, (int)c->rows, (int)c->cols, (int)c->dim, (int)c->k,
                 c->labels, c->temperature, c->scale, c->softcap);
    for (int way = 0; way < KIT_LISTED_WAYS; way++) {
        struct kit_listed_outcome o = kit_run_listed(f, (enum kit_listed_way)way);
        CHECK(kit_listed_right(&o),
              "%s: status %d (%s), loss %.2g, value %.2g, da %.2g, db %.2g, dbias %.2g of their bounds, expected <= 1",
              kit_listed_way_names[way], (int)o.status, o.status ? skl_last_error() : "", o.used[KIT_LISTED_LOSS],
              o.used[KIT_LISTED_VALUE], o.used[KIT_LISTED_GRAD_A], o.used[KIT_LISTED_GRAD_B],
              o.used[KIT_LISTED_GRAD_BIAS]);
        test_device_clean(kit_listed_way_names[way]);
        test_device.total = (struct emu_report){0};
    }
    kit_destroy_listed(f);
    test_context("%s", "");
}

/* Sizes around the edges of tiles, and what the CPU's test draws; dim 24 meets tensor cores, where the scale is
 * positive. */
static void random_cases(int n)
{
    for (int k = 0; k < n; k++) {
        struct kit_listed_case c = kit_random_listed(&test_numbers, k % KIT_LISTED_KINDS);
        if (kit_chance(&test_numbers, 2))
            c.dim = 24, c.scale = 1;
        check_ways(&c);
    }
}

/* Splits of the columns, several chunks of the dimension, more rows than a tile has, lists longer than a block has
 * threads. */
static void large_cases(void)
{
    static const int types[] = {SKL_BF16, SKL_F16, SKL_F32};
    for (int k = 0; k < test_cases(6, 3); k++) {
        struct kit_listed_case c = {
            .kind = k, .rows = k % 2 ? 140 : 20, .cols = k % 2 ? 190 : 1100, .dim = k % 3 == 2 ? 21 : 264};
        c.k = k == 4 ? 300 : 40, c.dtype = types[k % 3], c.dtype_logprobs = SKL_F32, c.wide_ids = k % 2;
        c.scale = 1, c.temperature = k % 2 ? 1 : 2, c.stored = 1, c.bias = k == 1, c.given_rest = k == 4, c.mean = 1;
        c.labels = k % 3 == 0;
        check_ways(&c);
    }
}

/* --------------------------------------------------------------------------------------------------- one case --- */

enum { ROWS = 20, COLUMNS = 600, DIM = 24, K = 9, ALONE = 40 };

static struct memory {
    float a[ROWS * DIM], b[COLUMNS * DIM], bias[COLUMNS], logprobs[ROWS * K], weight[ROWS];
    uint16_t half_a[ROWS * DIM], half_b[COLUMNS * DIM];
    int64_t ids[ROWS * K];
    int32_t label[ROWS];
    int weighted;
    struct written {
        double value;
        float loss[ROWS], kl[ROWS], da[ROWS * DIM], db[COLUMNS * DIM], dbias[COLUMNS];
        uint16_t half_da[ROWS * DIM], half_db[COLUMNS * DIM];
    } out;
} m, first;

static struct skl_tensor on(struct skl_tensor t)
{
    return skl_on_cuda(t, 0);
}

static void fill(void)
{
    struct skl_tensor a = skl_matrix(SKL_F32, m.a, ROWS, DIM), b = skl_matrix(SKL_F32, m.b, COLUMNS, DIM);
    struct skl_tensor half_a = skl_matrix(SKL_BF16, m.half_a, ROWS, DIM),
                      half_b = skl_matrix(SKL_BF16, m.half_b, COLUMNS, DIM);
    kit_fill_normal(&a, &test_numbers, 1, KIT_NORMAL), kit_fill_normal(&b, &test_numbers, 0.4, KIT_NORMAL);
    for (int64_t i = 0; i < ROWS * DIM; i++) kit_set(&half_a, i, m.a[i]), m.a[i] = (float)kit_get(&half_a, i);
    for (int64_t i = 0; i < COLUMNS * DIM; i++) kit_set(&half_b, i, m.b[i]), m.b[i] = (float)kit_get(&half_b, i);
    for (int i = 0; i < ROWS * K; i++) {
        m.ids[i] = test_between(0, 3) ? test_between(0, COLUMNS - 1) : 7; /* column 7 by many rows, and twice by some */
        m.ids[i] += m.ids[i] == ALONE;                                    /* by none */
        m.logprobs[i] = -3 - (float)test_between(0, 5);
    }
    m.ids[0] = m.ids[1] = 7, m.logprobs[0] = -800; /* masses of one column whose quotient is no double */
    for (int i = 0; i < ROWS; i++) m.label[i] = (int32_t)test_between(0, COLUMNS - 1);
    emu_adopt(&m, sizeof m), emu_written(&m, sizeof m);
}

static enum skl_status call(int half, int tail, int reverse, int labels)
{
    struct skl_tensor none = {0},
                      a = half ? skl_matrix(SKL_BF16, m.half_a, ROWS, DIM) : skl_matrix(SKL_F32, m.a, ROWS, DIM),
                      b = half ? skl_matrix(SKL_BF16, m.half_b, COLUMNS, DIM) : skl_matrix(SKL_F32, m.b, COLUMNS, DIM);
    struct skl_listed l = {
        sizeof l, on(skl_matrix(SKL_I64, m.ids, ROWS, K)), on(skl_matrix(SKL_F32, m.logprobs, ROWS, K)), none, tail, 0,
        0};
    struct skl_labels y = {sizeof y, on(skl_vector(SKL_I32, m.label, ROWS)), 0.4, 0.8, 0, -100, 0, 0};
    struct skl_problem p = skl_linear(on(a), on(b), none, none);
    struct skl_outputs out = skl_no_outputs();
    p.s.bias = on(skl_vector(SKL_F32, m.bias, COLUMNS));
    p.weight = m.weighted ? on(skl_vector(SKL_F32, m.weight, ROWS)) : none;
    p.listed = &l, p.labels = labels ? &y : NULL, p.divergence = reverse ? SKL_REVERSE_KL : SKL_FORWARD_KL;
    out.value = &m.out.value, out.loss = on(skl_vector(SKL_F32, m.out.loss, ROWS));
    out.kl = on(skl_vector(SKL_F32, m.out.kl, ROWS));
    out.s.a = on(half ? skl_matrix(SKL_BF16, m.out.half_da, ROWS, DIM) : skl_matrix(SKL_F32, m.out.da, ROWS, DIM));
    out.s.b = on(half ? skl_matrix(SKL_BF16, m.out.half_db, COLUMNS, DIM)
                      : skl_matrix(SKL_F32, m.out.db, COLUMNS, DIM));
    out.s.bias = on(skl_vector(SKL_F32, m.out.dbias, COLUMNS));
    memset(&m.out, 0, sizeof m.out);
    return skl_value_and_grad(&p, &out);
}

/* The order of blocks, warps and lanes is not ours to choose, and changes no bit. 16-bit gradients are those in f32,
 * rounded. */
static void schedules(int half, int tail, int reverse, int labels)
{
    test_context("schedules, %s, tail %d, reverse %d, labels %d", half ? "bf16" : "f32", tail, reverse, labels);
    for (int order = EMU_FORWARD; order <= EMU_RANDOM; order++) {
        test_device.options = (struct emu_options){.order = (enum emu_order)order, .seed = 3};
        CHECK_STATUS(call(half, tail, reverse, labels), SKL_OK);
        test_device_clean("lists");
        if (order == EMU_FORWARD)
            first = m;
        CHECK(memcmp(&first.out, &m.out, sizeof m.out) == 0, "schedule %d gives other bits", order);
    }
    test_device.options = (struct emu_options){0};
    CHECK(isfinite(m.out.value) && m.out.value != 0, "value %g", m.out.value);
    test_context("%s", "");
}

static void rounded(void)
{
    struct skl_tensor da = skl_matrix(SKL_BF16, first.out.half_da, ROWS, DIM),
                      db = skl_matrix(SKL_BF16, first.out.half_db, COLUMNS, DIM);
    CHECK_STATUS(call(1, SKL_TAIL_RENORMALISE, 0, 0), SKL_OK);
    first = m;
    CHECK_STATUS(call(0, SKL_TAIL_RENORMALISE, 0, 0), SKL_OK);
    for (int64_t i = 0; i < ROWS * DIM; i++)
        CHECK_NEAR(kit_get(&da, i), m.out.da[i], 0x1p-8 * fabs((double)m.out.da[i]) + 1e-7, "da in bf16");
    for (int64_t i = 0; i < COLUMNS * DIM; i++)
        CHECK_NEAR(kit_get(&db, i), m.out.db[i], 0x1p-8 * fabs((double)m.out.db[i]) + 1e-7, "db in bf16");
}

/* An id that is neither a column nor -1: NaN in its row, the others as ever, and nothing read through it. */
static void wrong_ids(int half, int tail)
{
    int64_t kept[2] = {m.ids[3 * K + 2], m.ids[5 * K]};
    CHECK_STATUS(call(half, tail, 0, 0), SKL_OK);
    first = m;
    m.ids[3 * K + 2] = COLUMNS, m.ids[5 * K] = -2;
    emu_written(m.ids, sizeof m.ids);
    CHECK_STATUS(call(half, tail, 0, 0), SKL_OK);
    test_device_clean("ids that are no columns");
    for (int i = 0; i < ROWS; i++)
        CHECK(i == 3 || i == 5 ? isnan(m.out.loss[i]) && isnan(m.out.kl[i]) : m.out.loss[i] == first.out.loss[i],
              "loss[%d] = %g", i, (double)m.out.loss[i]);
    m.ids[3 * K + 2] = kept[0], m.ids[5 * K] = kept[1];
    emu_written(m.ids, sizeof m.ids);
}

/* Renormalised, the columns off the list do not exist, however large they are: those of the lists have no mass at all
 * under an LSE of all columns, which the labels need. */
static void far_below(int half, int reverse)
{
    CHECK_STATUS(call(half, SKL_TAIL_RENORMALISE, reverse, 1), SKL_OK);
    first = m;
    m.bias[ALONE] = 3000;
    emu_written(&m, sizeof m);
    CHECK_STATUS(call(half, SKL_TAIL_RENORMALISE, reverse, 1), SKL_OK);
    test_device_clean("lists far below");
    for (int i = 0; i < ROWS; i++) {
        CHECK_NEAR(m.out.kl[i], first.out.kl[i], 1e-5 * (1 + fabs((double)first.out.kl[i])), "kl of lists far below");
        CHECK(m.label[i] == ALONE || m.out.loss[i] > 1000, "loss[%d] = %g without the label's", i,
              (double)m.out.loss[i]);
    }
    m.bias[ALONE] = 0;
    emu_written(&m, sizeof m);
}

/* What has no mass on either side adds 0 to the gradients, whatever it would be multiplied with: a column of -inf that
 * only row 5 lists, without mass; and row 3, all of whose scores are -inf, as its a is. */
static void not_finite(void)
{
    const struct memory kept = m;
    for (int k = 0; k < K; k++) {
        m.ids[3 * K + k] = ALONE + 1 + k, m.b[(ALONE + 1 + k) * DIM] = -1;
        for (int i = 0; i < ROWS; i++)
            m.ids[i * K + k] = i != 3 && m.ids[i * K + k] > ALONE && m.ids[i * K + k] <= ALONE + K ? 7
                                                                                                   : m.ids[i * K + k];
    }
    m.ids[5 * K] = ALONE, m.logprobs[5 * K] = -INFINITY, m.b[ALONE * DIM] = m.a[5 * DIM] > 0 ? -INFINITY : INFINITY;
    m.a[3 * DIM] = INFINITY;
    emu_written(&m, sizeof m);
    CHECK_STATUS(call(0, SKL_TAIL_RENORMALISE, 0, 0), SKL_OK);
    test_device_clean("what is not finite");
    for (int i = 0; i < ROWS; i++)
        CHECK(i == 3 ? m.out.loss[i] == INFINITY : isfinite(m.out.loss[i]), "loss[%d] = %g", i, (double)m.out.loss[i]);
    for (int i = 0; i < ROWS * DIM; i++)
        CHECK(i / DIM == 3 ? m.out.da[i] == 0 : isfinite(m.out.da[i]), "da[%d] = %g", i, (double)m.out.da[i]);
    for (int i = 0; i < COLUMNS * DIM; i++) CHECK(isfinite(m.out.db[i]), "db[%d] = %g", i, (double)m.out.db[i]);
    m = kept;
    emu_written(&m, sizeof m);
}

/* A row of weight 0 has no list: whatever stands there, nothing of it comes out. One of them, or all. */
static void no_weight(int half, int tail, int all)
{
    const struct memory kept = m;
    struct skl_tensor da = half ? skl_matrix(SKL_BF16, m.out.half_da, ROWS, DIM)
                                : skl_matrix(SKL_F32, m.out.da, ROWS, DIM),
                      db = half ? skl_matrix(SKL_BF16, m.out.half_db, COLUMNS, DIM)
                                : skl_matrix(SKL_F32, m.out.db, COLUMNS, DIM);
    for (int i = 0; i < ROWS; i++) m.weight[i] = all || i == 3 ? 0 : 1.5F;
    m.weighted = 1, m.ids[3 * K + 2] = COLUMNS, m.logprobs[3 * K] = NAN;
    emu_written(&m, sizeof m);
    CHECK_STATUS(call(half, tail, 0, 0), SKL_OK);
    test_device_clean("a list of no weight");
    CHECK(isfinite(m.out.value) && m.out.loss[3] == 0, "value %g, loss %g", m.out.value, (double)m.out.loss[3]);
    for (int64_t i = 0; i < ROWS * DIM; i++)
        CHECK(all || i / DIM == 3 ? kit_get(&da, i) == 0 : isfinite(kit_get(&da, i)), "da[%d] = %g", (int)i,
              kit_get(&da, i));
    for (int64_t i = 0; i < COLUMNS * DIM; i++)
        CHECK(all ? kit_get(&db, i) == 0 : isfinite(kit_get(&db, i)), "db[%d] = %g", (int)i, kit_get(&db, i));
    m = kept;
    emu_written(&m, sizeof m);
}

int main(void)
{
    test_begin("test_lists");
    test_device_begin();
    test_device.processors = 8;
    random_cases(test_cases(getenv("STREAMKL_TEST_LONG") ? 600 : 12, 12));
    large_cases();
    fill();
    for (int tail = SKL_TAIL_BUCKET; tail <= SKL_TAIL_TEACHER; tail++)
        for (int half = 0; half < 2; half++) {
            schedules(half, tail, tail < 2 && half, tail == half);
            if (half == tail % 2 || getenv("STREAMKL_TEST_LONG")) /* each tail, and each type twice */
                wrong_ids(half, tail), no_weight(half, tail, 0), no_weight(half, tail, 1);
        }
    rounded();
    for (int half = 0; half < 2; half++) far_below(half, half);
    not_finite();
    emu_release(&m);
    for (int i = 0; i < test_list_count; i++)
        if (strcmp(test_list[i].source, "list_kernels") == 0 || strcmp(test_list[i].role, "rest") == 0)
            CHECK(test_device_ran(test_list[i].kernel), "no case ran %s", test_list[i].kernel);
    return test_end();
}
