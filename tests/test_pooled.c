/* SPDX-License-Identifier: Apache-2.0
 * Pooled targets against the reference in double: random cases on every instruction set, every way; the same bits for
 * any number of threads; exact zeros with blocks of one key, NaN, and what the border refuses. */
#include "../kit/pooled.h"
#include "cases.h"

enum { MOST = 1 << 18 };

static float loss[MOST], da[MOST], db[MOST], rows[4][MOST];
static double want_loss[MOST], want_da[MOST], want_db[MOST];

/* A case of attention over the teacher's keys, whose student has a key for each block. */
struct trial {
    struct kit_fixture f;
    struct kit_tensor k_s;
    struct skl_problem p;
    int64_t blocks, D;
};

static void build(struct trial *t, const struct kit_case *c, int64_t block, int pool)
{
    test_build(&t->f, c);
    int64_t key_heads = t->f.p.s.b.shape[1];
    t->p = t->f.p, t->D = c->dim[S], t->blocks = (c->cols + block - 1) / block;
    int64_t shape[4] = {c->batch, key_heads, t->blocks, t->D};
    t->k_s = kit_tensor(&test_memory, c->dtype[S], 4, shape, 1, KIT_GAPS, KIT_AT_END);
    kit_fill_normal(&t->k_s.t, &test_numbers, 1.5, KIT_NORMAL);
    t->p.s.b = t->k_s.t, t->p.pool_block = block, t->p.pool = pool;
}

static void destroy(struct trial *t)
{
    kit_tensor_free(&test_memory, &t->k_s);
    kit_destroy(&t->f);
}

static struct skl_outputs outputs(const struct trial *t, double *value)
{
    const struct skl_tensor *a = &t->p.s.a;
    struct skl_outputs out = skl_no_outputs();
    memset(loss, 0xFF, sizeof loss), memset(da, 0xFF, sizeof da), memset(db, 0xFF, sizeof db);
    out.value = value;
    out.loss = skl_heads(SKL_F32, loss, a->shape[0], a->shape[1], a->shape[2], 1), out.loss.ndim = 3;
    out.s.a = skl_heads(SKL_F32, da, a->shape[0], a->shape[1], a->shape[2], t->D);
    out.s.b = skl_heads(SKL_F32, db, a->shape[0], t->p.s.b.shape[1], t->blocks, t->D);
    return out;
}

static void near_all(const char *what, const float *got, const double *want, int64_t n, double absolute)
{
    double most = 0, worst = 0;
    for (int64_t i = 0; i < n; i++) {
        double error = fabs((double)got[i] - want[i]);
        most = fmax(most, fabs(want[i]));
        worst = error <= worst ? worst : error; /* NaN stays */
    }
    CHECK_NEAR(worst, 0, 5e-6 * most + absolute, what);
}

static double expect(const struct trial *t)
{
    const struct skl_tensor *a = &t->p.s.a;
    int64_t B = a->shape[0], H = a->shape[1], N = a->shape[2], key_heads = t->p.s.b.shape[1];
    double value = 0;
    memset(want_da, 0, sizeof want_da), memset(want_db, 0, sizeof want_db);
    for (int64_t row = 0; row < B * H * N; row++) {
        double g = skl_reference_upstream(&t->p, row);
        int64_t h = row / N % H, b = row / N / H;
        want_loss[row] = g == 0 ? 0
                                : kit_pooled_row(&t->p, b, h, row % N, g, want_da + row * t->D,
                                                 want_db + (b * key_heads + h / (H / key_heads)) * t->blocks * t->D);
        value += g * want_loss[row];
    }
    return value;
}

static void compare(const struct trial *t, double value, double want)
{
    int64_t n = skl_reference_rows(&t->p);
    near_all("loss", loss, want_loss, n, 4e-6);
    CHECK_NEAR(value, want, 6e-6 * (1 + fabs(want)) * (t->p.reduction == SKL_SUM ? (double)n : 1), "value");
    near_all("da", da, want_da, n * t->D, 2e-6);
    near_all("db", db, want_db, kit_count(&t->k_s.t), 6e-6);
}

static void every_way(struct trial *t)
{
    static const enum skl_isa isas[] = TEST_ISAS;
    const struct skl_tensor *a = &t->p.s.a;
    double value, want = expect(t);
    for (int k = 0; k < COUNT(isas); k++) {
        if (!skl_isa_available(isas[k]))
            continue;
        t->p.isa = isas[k];
        for (int least = 0; least < 2; least++) {
            struct skl_outputs out = outputs(t, &value);
            t->p.workspace_limit = least ? kit_least_limit(&t->p, SKL_CALL_VALUE_AND_GRAD, &out) : 0;
            CHECK_STATUS(skl_value_and_grad(&t->p, &out), SKL_OK);
            compare(t, value, want);
            t->p.workspace_limit = 0;
        }
        struct skl_outputs out = outputs(t, &value), saved = skl_no_outputs(), grads = out;
        struct skl_tensor *parts[4] = {&saved.m_s, &saved.l_s, &saved.m_t, &saved.l_t};
        for (int i = 0; i < 4; i++) {
            *parts[i] = skl_heads(SKL_F32, rows[i], a->shape[0], a->shape[1], a->shape[2], 1);
            parts[i]->ndim = 3;
        }
        saved.loss = out.loss, saved.value = &value;
        CHECK_STATUS(skl_value(&t->p, &saved), SKL_OK);
        saved.value = NULL, grads.value = NULL, grads.loss = (struct skl_tensor){0};
        CHECK_STATUS(skl_backward(&t->p, &saved, &grads), SKL_OK);
        compare(t, value, want);
    }
}

static void random_trial(int k)
{
    static const int64_t blocks[] = {1, 3, 16, 64, 100, 500};
    struct kit_case c = kit_attention_case(test_between(1, 50), test_between(1, 700), test_between(1, 70));
    struct trial t;
    int64_t block = PICK(blocks);
    c.batch = test_between(1, 2), c.heads = 4, c.key_heads[S] = PICK(blocks) > 3 ? 2 : 4,
    c.key_heads[T] = test_chance(2) ? 1 : 4;
    c.dim[T] = k % 6 == 5 ? 300 : test_between(1, 70);
    c.dtype[S] = (int)test_between(SKL_F32, SKL_F16), c.dtype[T] = (int)test_between(SKL_F32, SKL_F16);
    c.causal = test_chance(2), c.left = test_chance(3) ? test_between(0, 200) : -1, c.ranges = test_chance(3);
    c.softcap[T] = test_chance(3) ? 5 : 0, c.weights = test_chance(3) ? KIT_SOME_ZERO : KIT_UNWEIGHTED;
    c.grads = KIT_GRAD_STUDENT, c.threads = (int)test_between(1, 3);
    build(&t, &c, block, (int)test_between(SKL_POOL_MAX, SKL_POOL_SUM));
    char text[512];
    kit_describe(&c, text, sizeof text);
    test_context("block %d pool %d: %s", (int)block, t.p.pool, text);
    every_way(&t);
    destroy(&t);
    test_context("%s", "");
}

static void threads(void)
{
    struct kit_case c = kit_attention_case(100, 900, 32);
    struct trial t;
    static float first[2][MOST];
    double value[2];
    c.heads = 2, c.causal = 1;
    build(&t, &c, 7, SKL_POOL_SUM);
    for (int n = 1; n <= 5; n += 2) {
        struct skl_outputs out = outputs(&t, &value[n > 1]);
        t.p.threads = n;
        CHECK_STATUS(skl_value_and_grad(&t.p, &out), SKL_OK);
        if (n == 1)
            memcpy(first[0], da, sizeof da), memcpy(first[1], db, sizeof db);
        CHECK(value[0] == value[n > 1] && !memcmp(first[0], da, sizeof da) && !memcmp(first[1], db, sizeof db),
              "%d threads give other bits", n);
    }
    destroy(&t);
}

/* The largest of one key is the key: equal operands give exact zeros. A NaN of the teacher stays in its row. */
static void zeros_and_nan(void)
{
    struct kit_case c = kit_attention_case(30, 300, 24);
    struct trial t;
    double value;
    build(&t, &c, 1, SKL_POOL_MAX);
    t.p.s = t.p.t;
    struct skl_outputs out = outputs(&t, &value);
    CHECK_STATUS(skl_value_and_grad(&t.p, &out), SKL_OK);
    double sum = fabs(value);
    for (int64_t i = 0; i < 30 * 24; i++) sum += fabs((double)da[i]);
    CHECK(sum == 0, "equal sides leave %g", sum);
    destroy(&t);
    for (int pool = SKL_POOL_MAX; pool <= SKL_POOL_SUM; pool++) {
        build(&t, &c, 8, pool);
        kit_set(&t.f.p.t.a, 7 * 24 + 2, NAN);
        out = outputs(&t, &value);
        CHECK_STATUS(skl_value_and_grad(&t.p, &out), SKL_OK);
        for (int i = 0; i < 30; i++) CHECK(isnan(loss[i]) == (i == 7), "row %d: %g, pool %d", i, (double)loss[i], pool);
        destroy(&t);
    }
}

static void refused(const char *sentence, const struct skl_problem *p, const struct skl_outputs *out)
{
    enum skl_status status = skl_value_and_grad(p, out);
    CHECK(status == SKL_BAD_ARGUMENT || status == SKL_UNSUPPORTED, "\"%s\" was taken", sentence);
    CHECK(strstr(skl_last_error(), sentence), "\"%s\" does not say \"%s\"", skl_last_error(), sentence);
}

static void border(void)
{
    struct kit_case c = kit_attention_case(30, 300, 24);
    struct trial t;
    double value = 7;
    build(&t, &c, 8, SKL_POOL_SUM);
    struct skl_outputs out = outputs(&t, &value), of_t = out;
    struct skl_problem p = t.p;
    p.pool_block = 9, refused("s.b.shape[2] = 38: 300 keys of t.b make 34 blocks of 9", &p, &out), p = t.p;
    p.pool_block = -1, refused("pool_block = -1", &p, &out), p = t.p;
    p.pool = 2, refused("pool = 2", &p, &out), p = t.p;
    p.columns = 20, refused("columns with pool_block = 8", &p, &out), p = t.p;
    p.mix_t = 1, refused("pool_block = 8 with mixed heads", &p, &out), p = t.p;
    p.reserved_pool = 1, refused("reserved_pool", &p, &out), p = t.p;
    of_t.t.a = t.p.t.a, refused("out.t.a", &p, &of_t);
    static struct skl_state state[30];
    CHECK_STATUS(skl_partial(&p, NULL, state), SKL_BAD_ARGUMENT);
    CHECK(value == 7, "something was written");
    destroy(&t);
}

int main(void)
{
    test_begin("test_pooled");
    for (int k = 0; k < test_cases(30, 6); k++) random_trial(k);
    threads();
    zeros_and_nan();
    border();
    return test_end();
}
