/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of keys and indexers on a device, against the references in double: every option of either, indexers on tensor
 * cores and not, the same bits under every schedule, the worst rounding and ids that are no keys.
 */
#include "../indexers.h"
#include "run_cases.h"

/* ----------------------------------------------------------------------------------------------- attention --- */

/* Heads that share keys or not, few and many keys, blocks, long vectors, every divergence, gradients of both sides. */
static void sizes(void)
{
    static const struct {
        int64_t rows, cols, dim, support, block, heads, key_s, key_t;
        int divergence, type;
    } each[] = {{20, 70, 16, 5, 0, 4, 4, 4, SKL_FORWARD_KL, SKL_BF16},
                {9, 300, 24, 150, 0, 6, 1, 2, SKL_FORWARD_KL, SKL_F32},
                {12, 600, 8, 9, 64, 6, 3, 1, SKL_REVERSE_KL, SKL_F16},
                {30, 200, 16, 3, 50, 1, 1, 1, SKL_JSD, SKL_F32},
                {8, 100, 300, 40, 0, 2, 1, 1, SKL_SKEW_REVERSE_KL, SKL_BF16},
                {1, 300, 8, 250, 0, 3, 3, 1, SKL_ALPHA_BETA, SKL_F32},
                {140, 40, 8, 6, 0, 2, 1, 1, SKL_FORWARD_KL, SKL_F32},
                {20, 1, 8, 4, 0, 2, 2, 2, SKL_SKEW_FORWARD_KL, SKL_F32}};
    for (int k = 0; k < COUNT(each); k++) {
        struct kit_case c = kit_attention_case(each[k].rows, each[k].cols, each[k].dim);
        c.support = each[k].support, c.support_block = each[k].block, c.heads = each[k].heads;
        c.key_heads[S] = each[k].key_s, c.key_heads[T] = each[k].key_t;
        c.causal = k % 3 != 2, c.ranges = k == 2 || k == 6, c.left = k == 1 ? 200 : -1;
        c.dtype[S] = c.dtype[T] = each[k].type, c.own = k % 2, c.layout = k % 2 ? KIT_HEADS_IN : KIT_DENSE;
        kit_set_divergence(&c, each[k].divergence);
        c.weights = k == 1 || k == 6 ? KIT_SOME_ZERO : KIT_UNWEIGHTED;
        if (k == 3)
            run_copied(&c);
        else
            run_case(&c);
    }
}

/* Teachers of several heads, with LSEs found over the listed keys or given; packed sequences; details of rows; heads
 * that a map names. */
static void with_others(void)
{
    for (int k = 0; k < 9; k++) {
        struct kit_case c = kit_attention_case(k ? 20 : 6, k ? 90 : 300, 16);
        c.support = k ? 30 : 250; /* more than a block has threads: lanes have several keys */
        c.causal = k > 0, c.heads = 3, c.key_heads[S] = 1, c.grads = KIT_GRAD_STUDENT;
        c.mix = k < 4 ? 4 : 0, c.lses = k == 1 || k == 2, c.raw = k == 2, c.key_heads[T] = k == 3 ? 1 : k < 4 ? 4 : 3;
        if (k >= 7)
            c.mix = k == 7 ? 2 : 0, c.map = 5, c.key_heads[T] = 1;
        c.packed = k == 4 || k == 5 ? 5 : 0, c.support_block = k == 5 ? 7 : 0, c.details = k == 6;
        if (k == 1)
            kit_set_divergence(&c, SKL_SKEW_REVERSE_KL);
        run_case(&c);
    }
}

static void random_lists(int n)
{
    for (int k = 0; k < n; k++) {
        struct kit_case c = kit_random_device_keys(&test_numbers);
        kit_shrink(&c, 1e5);
        k % 4 ? run_case(&c) : run_copied(&c);
    }
}

/* A key that is none: NaN in the rows of its query, in all its heads, the others as ever; nothing is read through
 * it. */
static void wrong_ids(void)
{
    struct kit_case c = kit_attention_case(20, 60, 16);
    struct kit_fixture f;
    test_context("ids that are no keys");
    c.support = 8, c.support_block = 4, c.heads = 2, c.key_heads[S] = c.key_heads[T] = 1;
    test_build(&f, &c);
    for (int64_t i = 0; i < 20 * 8; i++)
        kit_set(&f.p.support, i, i == 3 * 8 + 2 ? 15 : i == 5 * 8 ? -2 : i == 7 * 8 ? 1 << 30 : (double)(i % 15));
    test_device_adopt(&f);
    struct skl_outputs out = kit_outputs(&f, 1, KIT_GRAD_ALL);
    CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_OK);
    test_device_clean("ids that are no keys");
    for (int64_t i = 0; i < 40; i++) {
        int wrong = i % 20 == 3 || i % 20 == 5 || i % 20 == 7;
        CHECK(!isnan(kit_get(&f.out[KIT_LOSS].t, i)) == !wrong, "loss[%d]", (int)i);
        CHECK(!isnan(kit_get(&f.out[KIT_A_S].t, i * 16)) == !wrong, "grad of a, row %d", (int)i);
    }
    test_device_release(&f);
    kit_destroy(&f); /* whose lists the test has changed */
}

/* ------------------------------------------------------------------------------------------------ indexers --- */

static double value;
static float rows[4][MOST];

static void adopt(void *data, size_t bytes, int written)
{
    emu_adopt(data, bytes);
    if (written)
        emu_written(data, bytes);
}

/* The trial's tensors become the device's. */
static void adopt_trial(struct trial *t)
{
    struct kit_tensor *each[] = {&t->q,      &t->k,     &t->w,       &t->q_t,  &t->k_t,  &t->lse,
                                 &t->weight, &t->begin, &t->support, &t->cu_q, &t->cu_k, &t->sink};
    struct skl_problem *p = &t->p;
    struct skl_tensor *of[] = {&p->s.a,    &p->s.b,   &p->s.bias,  &p->t.a,          &p->t.b,          &p->lse_t,
                               &p->weight, &p->begin, &p->support, &p->cu_seqlens_q, &p->cu_seqlens_k, &p->sink_t};
    for (int i = 0; i < COUNT(each); i++) adopt(each[i]->memory.data, each[i]->memory.size, 1);
    for (int i = 0; i < COUNT(of); i++)
        if (of[i]->data)
            of[i]->device = SKL_CUDA;
}

static void release_trial(struct trial *t)
{
    struct kit_tensor *each[] = {&t->q,      &t->k,     &t->w,       &t->q_t,  &t->k_t,  &t->lse,
                                 &t->weight, &t->begin, &t->support, &t->cu_q, &t->cu_k, &t->sink};
    for (int i = 0; i < COUNT(each); i++) emu_release(each[i]->memory.data);
    destroy(t);
}

static struct skl_outputs there(struct trial *t)
{
    struct skl_outputs out = outputs(t, &value);
    struct skl_tensor *each[] = {&out.loss, &out.s.a, &out.s.b, &out.s.bias};
    for (int i = 0; i < COUNT(each); i++) each[i]->device = SKL_CUDA;
    return out;
}

/* As little room as the call can do with. */
static void limit_workspace(struct skl_problem *p, const struct skl_outputs *out)
{
    size_t bytes = 0;
    p->workspace_limit = 1;
    CHECK_STATUS(skl_value_and_grad(p, out), SKL_BAD_ARGUMENT);
    CHECK(sscanf(skl_last_error(), "cannot use workspace_limit = 1: this call takes %zu", &bytes) == 1, "\"%s\"",
          skl_last_error());
    p->workspace_limit = bytes;
}

/* Together, and value then backward, from LSEs in two parts. Tensor cores leave the gradients to products of 16-bit
 * numbers, which no other kernel of indexers has. */
static void both_ways(struct trial *t, int limited)
{
    struct kit_indexer want = {.loss = want_loss,
                               .da = want_da,
                               .db = want_db,
                               .dw = want_dw,
                               .size = size,
                               .da2 = squares_da,
                               .db2 = squares_db,
                               .dw2 = squares_dw};
    struct skl_problem *p = &t->p;
    double g = upstream(t);
    int products = test_device.products;
    kit_indexer_run(p, &want);
    adopt_trial(t);
    struct skl_outputs out = there(t);
    if (limited)
        limit_workspace(p, &out);
    CHECK_STATUS(skl_value_and_grad(p, &out), SKL_OK);
    test_device_clean("together");
    if (test_device.products > products)
        t->unit = t->q.t.dtype == SKL_BF16 ? 0x1p-8 : 0x1p-11;
    compare(t, value, &want, g, 3);
    struct skl_outputs saved = skl_no_outputs(), grads = out = there(t);
    struct skl_tensor *parts[4] = {&saved.m_s, &saved.l_s, &saved.m_t, &saved.l_t};
    for (int i = 0; i < 4; i++) *parts[i] = skl_on_cuda(skl_matrix(SKL_F32, rows[i], t->B, t->N), 0);
    saved.loss = out.loss, saved.value = &value;
    CHECK_STATUS(skl_value(p, &saved), SKL_OK);
    saved.value = NULL, grads.value = NULL, grads.loss = (struct skl_tensor){0};
    CHECK_STATUS(skl_backward(p, &saved, &grads), SKL_OK);
    test_device_clean("backward");
    compare(t, value, &want, g, 3);
    test_device.total = (struct emu_report){0};
}

static void random_indexers(int n)
{
    for (int k = 0; k < n; k++) {
        struct trial t = random_indexer(k, 12);
        both_ways(&t, 0);
        release_trial(&t);
    }
}

/* 16-bit operands that are aligned. Two tiles of rows and several of columns, heads of one chunk of the depth and of
 * more; every third with as little room for slabs as it can do with. */
static struct trial tensor_trial(int k, int64_t most_rows)
{
    static const int64_t heads[][2] = {{4, 1}, {2, 2}, {6, 2}, {3, 3}}, dims[][2] = {{64, 24}, {72, 128}, {8, 72}};
    return build_at(KIT_ALIGNED, 1 + k % 4, dims[k % 3][0], dims[k % 3][1], heads[k % 4][0], heads[k % 4][1],
                    k % 2 ? SKL_F16 : SKL_BF16, 1 + k % 2, most_rows);
}

static void on_tensor_cores(int n)
{
    for (int k = 0; k < n; k++) {
        struct trial t = tensor_trial(k, k % 4 ? 60 : 200);
        int products = test_device.products;
        choose_options(&t, k, 0);
        both_ways(&t, k % 3 == 1);
        CHECK(test_device.products > products, "tensor cores are not used");
        release_trial(&t);
    }
}

/* Tiles of queries and keys that are full, and one of keys that is not: nothing may be read behind the last key. The
 * scale is negative, and a query of zeros has products at which ReLU has no slope. */
static void whole_tiles(void)
{
    struct trial t = build_sized(KIT_ALIGNED, 128, 152, 2, 64, 64, 2, 2, SKL_BF16, 1);
    test_context("whole tiles");
    t.p.s.scale = -0.5;
    for (int64_t d = 0; d < t.D; d++) kit_set(&t.q.t, d, 0);
    both_ways(&t, 0);
    release_trial(&t);
}

/* As in test_rounding.c: every addition within mma towards zero, every approximate function off by as much as it may be,
 * and both, the same trial each time. Each mode gives other bits, and all stay within the bounds of the first. */
static void roundings(int dtype)
{
    static const struct emu_options modes[] = {
        {0}, {.truncate = 1}, {.perturb = 1, .seed = 1}, {.truncate = 1, .perturb = 1, .seed = 2}};
    double first = 0;
    for (int k = 0; k < COUNT(modes); k++) {
        test_reseed(test_seed());
        struct trial t = build_sized(KIT_ALIGNED, 30, 90, 2, 64, 128, 3, 3, dtype, 1);
        test_context("rounding %d of an indexer on tensor cores", k);
        t.p.causal = 1;
        test_device.options = modes[k];
        both_ways(&t, 0);
        CHECK(k == 0 || value != first, "it changes nothing");
        first = k ? first : value;
        release_trial(&t);
    }
    test_device.options = (struct emu_options){0};
}

/* The order of blocks, warps and lanes and the moment of copies are not ours to choose, and change no bit. */
static void schedules(struct trial t, int listed)
{
    static float first[3][MOST * 8];
    double value_first = 0;
    test_context("schedules, D %d, lists %d", (int)t.D, listed);
    if (listed)
        list_keys(&t, 0);
    adopt_trial(&t);
    for (int k = 0; k < 9; k += getenv("STREAMKL_TEST_LONG") ? 1 : 4) { /* each order and each moment once */
        int order = EMU_FORWARD + k % 3;
        test_device.options = (struct emu_options){.order = (enum emu_order)order, .copies = k / 3, .seed = 3};
        struct skl_outputs out = there(&t);
        CHECK_STATUS(skl_value_and_grad(&t.p, &out), SKL_OK);
        test_device_clean("an indexer");
        if (k == 0)
            memcpy(first[0], da, sizeof da), memcpy(first[1], db, sizeof db), memcpy(first[2], dw, sizeof dw),
                value_first = value;
        CHECK(value == value_first && !memcmp(first[0], da, sizeof da) && !memcmp(first[1], db, sizeof db) &&
                  !memcmp(first[2], dw, sizeof dw),
              "schedule %d gives other bits", order);
    }
    test_device.options = (struct emu_options){0};
    release_trial(&t);
}

/* Weights of 0 give zeros, and not what was there before; so does an indexer without keys. */
static void zeros(void)
{
    for (int k = 0; k < 4; k++) {
        struct trial t = k < 2 ? build(3, 16, 4, 4, SKL_F32, 2, 12) : tensor_trial(1, 12);
        double sum = 0;
        test_context("%s, D %d", k % 2 ? "no keys" : "weights of 0", (int)t.D);
        kit_fill(&t.weight.t, 0);
        if (k % 2)
            t.p.s.b.shape[2] = t.p.t.b.shape[2] = t.M = 0;
        else
            t.p.weight = t.weight.t;
        adopt_trial(&t);
        struct skl_outputs out = there(&t);
        CHECK_STATUS(skl_value_and_grad(&t.p, &out), SKL_OK);
        test_device_clean("zeros");
        for (int64_t i = 0; i < t.B * t.H * t.N * t.D; i++) sum += fabs((double)da[i]);
        for (int64_t i = 0; i < t.B * t.M * t.D; i++) sum += fabs((double)db[i]);
        for (int64_t i = 0; i < t.B * t.N * t.H; i++) sum += fabs((double)dw[i]);
        CHECK(value == 0 && sum == 0, "the value is %g, gradients %g", value, sum);
        release_trial(&t);
    }
}

int main(void)
{
    test_begin("test_keys");
    test_device_begin();
    test_device.processors = 8;
    sizes();
    with_others();
    wrong_ids();
    random_lists(test_cases(getenv("STREAMKL_TEST_LONG") ? 100 : 8, 3));
    adopt(loss, sizeof loss, 0), adopt(da, sizeof da, 0), adopt(db, sizeof db, 0), adopt(dw, sizeof dw, 0);
    adopt(rows, sizeof rows, 0), adopt(&value, sizeof value, 0);
    random_indexers(test_cases(getenv("STREAMKL_TEST_LONG") ? 200 : 5, 4));
    on_tensor_cores(test_cases(getenv("STREAMKL_TEST_LONG") ? 60 : 6, 4));
    whole_tiles();
    roundings(SKL_BF16);
    if (getenv("STREAMKL_TEST_LONG"))
        roundings(SKL_F16);
    schedules(build(3, 40, 4, 2, SKL_BF16, 2, 20), 0), schedules(build(3, 40, 4, 2, SKL_BF16, 2, 20), 1);
    schedules(tensor_trial(1, 70), 0), schedules(tensor_trial(2, 70), 0);
    zeros();
    test_context("%s", "");
    for (int i = 0; i < test_list_count; i++)
        if ((strcmp(test_list[i].source, "key_kernels") == 0 && strcmp(test_list[i].kernel, "keys_scores") != 0) ||
            strstr(test_list[i].source, "index")) /* keys_scores is test_topk's */
            CHECK(test_device_ran(test_list[i].kernel), "no case ran %s", test_list[i].kernel);
    return test_end();
}
