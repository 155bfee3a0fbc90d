/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of keys: against the reference on every instruction set and every way, the same as dense attention where
 * everything is listed, the same bits for any number of threads; duplicates, empty lists, blocks, NaN in keys that are
 * not listed, and what the border refuses. Random cases of every other option are in test_engine.
 */
#include "cases.h"

#include <string.h>

static struct kit_case lists(int64_t rows, int64_t cols, int64_t dim, int64_t support)
{
    struct kit_case c = kit_attention_case(rows, cols, dim);
    c.support = support, c.causal = 1;
    return c;
}

/* Heads that fill a panel or not, one key head or several, long vectors, few and many keys; the last four of lists that
 * have little in common and several tiles, which stay in place where there are kernels for that. */
static void test_against_reference(void)
{
    static const struct {
        int64_t rows, cols, dim, support, block, heads, key_s, key_t;
    } sizes[] = {{70, 70, 16, 5, 0, 4, 4, 4},     {40, 300, 24, 60, 0, 32, 1, 1},  {20, 600, 33, 150, 0, 16, 1, 2},
                 {20, 1200, 8, 9, 64, 6, 3, 1},   {90, 300, 16, 3, 50, 1, 1, 1},   {8, 300, 8, 250, 0, 70, 1, 1},
                 {20, 300, 300, 40, 0, 2, 1, 1},  {1, 300, 8, 250, 0, 3, 3, 1},    {60, 1, 8, 4, 0, 2, 2, 2},
                 {12, 2000, 40, 300, 0, 4, 1, 1}, {10, 1500, 70, 250, 0, 5, 1, 1}, {8, 900, 20, 200, 0, 7, 1, 1},
                 {6, 3400, 16, 410, 0, 4, 1, 1}};
    for (int k = 0; k < COUNT(sizes); k++) {
        int64_t rows = test_quick() ? (sizes[k].rows + 1) / 2 : sizes[k].rows;
        struct kit_case c = lists(rows, sizes[k].cols, sizes[k].dim, sizes[k].support);
        c.support_block = sizes[k].block, c.heads = sizes[k].heads;
        c.key_heads[S] = sizes[k].key_s, c.key_heads[T] = sizes[k].key_t;
        c.causal = k % 3 != 2, c.ranges = k == 3 || k == 5 || k == 10, c.left = k == 1 ? 200 : -1;
        c.dtype[S] = c.dtype[T] = k % 3, c.own = k % 2, c.layout = k % 2 ? KIT_HEADS_IN : KIT_DENSE;
        c.divergence = k == 4 ? SKL_JSD : k == 7 ? SKL_REVERSE_KL : SKL_FORWARD_KL;
        c.weights = k == 1 || k == 6 ? KIT_SOME_ZERO : KIT_UNWEIGHTED;
        test_all_ways(&c);
    }
}

/* Teachers of several heads, with LSEs found over the listed keys or given; packed sequences. */
static void test_with_others(void)
{
    for (int k = 0; k < 6; k++) {
        struct kit_case c = lists(60, 200, 16, 30);
        c.heads = 3, c.key_heads[S] = 1, c.grads = KIT_GRAD_STUDENT;
        c.mix = k < 4 ? 4 : 0, c.lses = k == 1 || k == 2, c.raw = k == 2, c.key_heads[T] = k == 3 ? 1 : k < 4 ? 4 : 3;
        c.packed = k >= 4 ? 5 : 0, c.support_block = k == 5 ? 7 : 0;
        test_all_ways(&c);
    }
}

/* Where every key is listed, in whatever order and however often, the call is that of dense attention. */
static void test_everything_listed(void)
{
    struct kit_case c = lists(80, 210, 16, 300);
    struct kit_fixture f;
    c.heads = 4, c.key_heads[S] = 2, c.key_heads[T] = 1;
    test_build(&f, &c);
    for (int64_t i = 0; i < 80; i++)
        for (int64_t k = 0; k < 300; k++)
            kit_set(&f.p.support, i * 300 + k, (double)(k < 210 ? (k * 37 + i) % 210 : k % 2 ? -1 : k - 210));
    struct skl_problem dense = f.p;
    dense.support.data = NULL;
    f.checksum = kit_checksum(&f);
    f.p = dense, kit_expect(&f);
    dense.support = f.in[KIT_INPUT_SUPPORT].t, f.p = dense;
    test_run(&f, KIT_TOGETHER);
    test_destroy(&f);
}

/* The bits are those of one thread, also with little memory. */
static void test_threads(int64_t heads, int own, double skip_below, int64_t cols)
{
    struct kit_case c = lists(test_quick() ? 40 : 300, cols, 16, cols / 7);
    c.heads = heads, c.key_heads[S] = c.key_heads[T] = 1, c.own = own, c.dtype[S] = own ? SKL_BF16 : SKL_F32;
    c.skip_below = skip_below;
    test_same_bits(&c);
}

/* A key that no row lists may hold anything; one that a row lists makes that row NaN and no other. */
static void test_nan_stays(void)
{
    struct kit_case c = lists(50, 64, 16, 8);
    struct kit_fixture f;
    c.heads = 2, c.key_heads[S] = c.key_heads[T] = 1;
    test_build(&f, &c);
    for (int64_t i = 0; i < 50; i++)
        for (int64_t k = 0; k < 8; k++) kit_set(&f.p.support, i * 8 + k, (double)(k ? k : i == 20 ? 10 : 11));
    for (int64_t d = 0; d < 16; d++)
        kit_set(&f.p.s.b, 10 * 16 + d, NAN), kit_set(&f.p.t.b, 12 * 16 + d, NAN); /* 12: nobody's */
    f.checksum = kit_checksum(&f);
    struct skl_outputs out = kit_outputs(&f, 1, KIT_GRAD_ALL);
    CHECK(skl_value_and_grad(&f.p, &out) == SKL_OK, "%s", skl_last_error());
    for (int64_t i = 0; i < 100; i++) {
        int in = i % 50 == 20;
        CHECK(!isnan(kit_get(&f.out[KIT_LOSS].t, i)) == !in, "loss[%lld]", (long long)i);
        CHECK(!isnan(kit_get(&f.out[KIT_A_S].t, i * 16)) == !in, "grad of a, row %lld", (long long)i);
    }
    for (int64_t j = 0; j < 64; j++) {
        double x = kit_get(&f.out[KIT_B_S].t, j * 16);
        int listed = (j >= 1 && j < 8) || j == 10; /* by row 20 */
        CHECK(listed ? isnan(x) : !isnan(x), "grad of b, key %lld: %g", (long long)j, x);
        CHECK(j == 11 || listed || x == 0, "grad of b, key %lld that nobody lists: %g", (long long)j, x);
    }
    test_destroy(&f);
}

/* The same where keys stay in place: each query lists ten keys of its own, and 8 heads share them. Keys 7 and 407 are
 * NaN, which queries 0 and 40 list alone. */
static void test_nan_stays_in_place(void)
{
    enum { N = 41, K = 10, M = 420, H = 8, D = 20 };
    struct kit_case c = lists(N, M, D, K);
    struct kit_fixture f;
    c.heads = H, c.key_heads[S] = c.key_heads[T] = 1, c.causal = 0;
    test_build(&f, &c);
    for (int64_t i = 0; i < N * K; i++) kit_set(&f.p.support, i, (double)i);
    for (int64_t d = 0; d < D; d++) kit_set(&f.p.s.b, 7 * D + d, NAN), kit_set(&f.p.t.b, 407 * D + d, NAN);
    f.checksum = kit_checksum(&f);
    struct skl_outputs out = kit_outputs(&f, 1, KIT_GRAD_STUDENT);
    CHECK(skl_value_and_grad(&f.p, &out) == SKL_OK, "%s", skl_last_error());
    for (int64_t i = 0; i < H * N; i++) {
        int in = i % N == 0 || i % N == 40;
        CHECK(isnan(kit_get(&f.out[KIT_LOSS].t, i)) == in, "loss[%lld]", (long long)i);
        CHECK(isnan(kit_get(&f.out[KIT_A_S].t, i * D)) == in, "grad of a, row %lld", (long long)i);
    }
    for (int64_t j = 0; j < M; j++) {
        double x = kit_get(&f.out[KIT_B_S].t, j * D);
        CHECK(isnan(x) == (j < 10 || (j >= 400 && j < 410)), "grad of b, key %lld: %g", (long long)j, x);
    }
    test_destroy(&f);
}

/* Nothing to do: no list is looked at. */
static void test_empty(void)
{
    for (int k = 0; k < 3; k++) {
        struct kit_case c = lists(30, 60, 8, 4);
        struct kit_fixture f;
        double value = 7;
        c.heads = 2, c.grads = 0;
        test_build(&f, &c);
        struct skl_outputs out = skl_no_outputs();
        out.value = &value;
        struct skl_tensor *of[] = {&f.p.s.a, &f.p.s.b, &f.p.t.a, &f.p.t.b};
        for (int i = 0; i < 4; i++)
            if (k < 2 || i % 2 == 0)
                of[i]->shape[k] = 0;
        if (k != 1)
            f.p.support.shape[k / 2] = 0;
        CHECK_STATUS(skl_value(&f.p, &out), SKL_OK);
        CHECK(value == 0, "%d: value %g", k, value);
        test_destroy(&f);
    }
}

static void refused(struct kit_fixture *f, enum skl_status expected, const char *sentence)
{
    struct skl_outputs out = kit_outputs(f, 1, 0);
    enum skl_status status = skl_value(&f->p, &out);
    CHECK(status == expected && strstr(skl_last_error(), sentence), "\"%s\", expected \"%s\"", skl_last_error(),
          sentence);
}

static void test_refused(void)
{
    struct kit_case c = lists(30, 60, 8, 4);
    struct kit_fixture f;
    struct skl_state state[30];
    c.grads = 0;
    test_build(&f, &c);
    struct skl_problem good = f.p;
    struct skl_tensor support = f.p.support;
    double entry = kit_get(&support, 9);
    kit_set(&support, 9, 60), refused(&f, SKL_BAD_ARGUMENT, "support[0, 2, 1] = 60: it must be a key, 0 to 59, or -1");
    kit_set(&support, 9, -2), refused(&f, SKL_BAD_ARGUMENT, "support[0, 2, 1] = -2: it must be a key, 0 to 59, or -1");
    kit_set(&support, 9, 15), f.p.support_block = 4;
    for (int64_t i = 0; i < 120; i++) kit_set(&support, i, i == 9 ? 15 : -1);
    refused(&f, SKL_BAD_ARGUMENT, "support[0, 2, 1] = 15: it must be a block, 0 to 14, or -1");
    for (int64_t i = 0; i < 120; i++) kit_set(&support, i, -1);
    kit_set(&support, 9, entry), f.checksum = kit_checksum(&f);
    f.p = good, f.p.support_block = -1, refused(&f, SKL_BAD_ARGUMENT, "support_block = -1: it must be 0 (single keys)");
    f.p = good, f.p.support_block = 2, f.p.support.data = NULL;
    refused(&f, SKL_BAD_ARGUMENT, "support_block = 2: there is no support");
    f.p = good, f.p.support.dtype = SKL_I64;
    refused(&f, SKL_BAD_ARGUMENT, "support.dtype = 4 (i64): it must be i32");
    f.p = good, f.p.support.shape[1] = 29, refused(&f, SKL_BAD_ARGUMENT, "support.shape[1] = 29: it must be 30");
    f.p = good, f.p.support.ndim = 2, refused(&f, SKL_BAD_ARGUMENT, "support.ndim = 2: it must be 3");
    f.p = good;
    CHECK(skl_partial(&f.p, NULL, state) == SKL_BAD_ARGUMENT && strstr(skl_last_error(), "with partial rows"), "%s",
          skl_last_error());
    test_destroy(&f);
    c = kit_linear_case(30, 60, 8), c.grads = 0;
    test_build(&f, &c);
    f.p.support = support, f.p.support.data = &state;
    refused(&f, SKL_BAD_ARGUMENT, "lists of keys are for attention and indexers");
    test_destroy(&f);
}

int main(void)
{
    test_begin("test_keys");
    test_against_reference();
    test_with_others();
    test_everything_listed();
    test_threads(32, 0, 0, 700);
    test_threads(3, 1, 0, 700);
    test_threads(3, 0, 0x1p-24, 700);
    test_threads(4, 0, 0, test_quick() ? 1400 : 2100); /* several tiles of lists in place */
    test_nan_stays();
    test_nan_stays_in_place();
    test_empty();
    test_refused();
    return test_end();
}
