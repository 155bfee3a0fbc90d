/* SPDX-License-Identifier: Apache-2.0
 *
 * Packed sequences: random ones against the reference, the same sequences one by one, and what threads, memory and bad
 * offsets do. Random cases of every other option are in test_engine.
 */
#include "cases.h"

#include <string.h>

/* Many sequences, most of them shorter than a panel, a tile or a block, some longer than all of these. */
static void test_against_reference(void)
{
    static const struct {
        int64_t rows, cols;
        int packed;
    } sizes[] = {{40, 40, 12}, {700, 700, 5}, {300, 900, 9}, {900, 300, 4}, {200, 1, 3}, {1, 200, 1}};
    for (int k = 0; k < COUNT(sizes); k++) {
        struct kit_case c = kit_attention_case(sizes[k].rows, sizes[k].cols, k % 2 ? 16 : 33);
        if (test_quick())
            kit_shrink(&c, 4e6);
        c.packed = sizes[k].packed, c.causal = k % 2, c.heads = 4, c.key_heads[S] = 2, c.key_heads[T] = 1;
        c.dtype[S] = k % 3, c.own = 1, c.left = k == 2 ? 50 : -1, c.layout = KIT_HEADS_IN;
        c.divergence = k == 3 ? SKL_JSD : SKL_FORWARD_KL;
        test_all_ways(&c);
    }
}

static int64_t offset_of(const struct skl_tensor *t, int64_t i)
{
    return (int64_t)kit_get(t, i);
}

/* A view of the rows [first, first + n) of dimension 'dim'. */
static struct skl_tensor rows_of(struct skl_tensor t, int dim, int64_t first, int64_t n)
{
    t.data = (char *)t.data + first * t.stride[dim] * (int64_t)kit_element_size(t.dtype);
    t.shape[dim] = n;
    return t;
}

/* Sequence k as a problem and as outputs of its own. */
static void cut_sequence(const struct kit_fixture *f, int64_t k, struct skl_problem *p, struct skl_outputs *out)
{
    int64_t q = offset_of(&f->p.cu_seqlens_q, k), n = offset_of(&f->p.cu_seqlens_q, k + 1) - q;
    int64_t j = offset_of(&f->p.cu_seqlens_k, k), m = offset_of(&f->p.cu_seqlens_k, k + 1) - j;
    struct skl_tensor *over_q[] = {&p->s.a,    &p->t.a,     &p->weight,  &p->begin, &p->end,
                                   &out->loss, &out->lse_s, &out->lse_t, &out->s.a, &out->t.a};
    struct skl_tensor *over_k[] = {&p->s.b, &p->t.b, &out->s.b, &out->t.b};
    p->cu_seqlens_q = p->cu_seqlens_k = (struct skl_tensor){0};
    for (int i = 0; i < COUNT(over_q); i++)
        if (over_q[i]->data)
            *over_q[i] = rows_of(*over_q[i], 2, q, n);
    for (int i = 0; i < COUNT(over_k); i++)
        if (over_k[i]->data)
            *over_k[i] = rows_of(*over_k[i], 2, j, m);
}

/* What a packed call writes is what a call for each sequence writes; with one sequence to the bit. */
static void test_one_by_one(int packed, int64_t rows, int exact)
{
    struct kit_case c = kit_attention_case(rows, rows + 60, 24);
    struct kit_fixture f;
    c.packed = packed, c.heads = 2, c.key_heads[S] = c.key_heads[T] = 1, c.causal = 1, c.weights = KIT_SOME_ZERO;
    c.reduction = SKL_SUM, c.ranges = 1;
    test_build(&f, &c);
    kit_expect(&f);
    struct skl_outputs out = kit_outputs(&f, 1, KIT_GRAD_ALL);
    CHECK(skl_value_and_grad(&f.p, &out) == SKL_OK, "packed: %s", skl_last_error());
    double *whole[KIT_RESULTS] = {0}, value = f.value, sum = 0;
    for (int k = 0; k < KIT_RESULTS; k++)
        if (f.out[k].t.data) {
            whole[k] = kit_doubles((size_t)kit_count(&f.out[k].t));
            kit_take(&f.out[k], whole[k]);
        }
    out = kit_outputs(&f, 1, KIT_GRAD_ALL);
    for (int k = 0; k < packed; k++) {
        struct skl_problem p = f.p;
        struct skl_outputs part = out;
        cut_sequence(&f, k, &p, &part);
        CHECK(skl_value_and_grad(&p, &part) == SKL_OK, "sequence %d: %s", k, skl_last_error());
        sum += f.value;
    }
    double near_value = exact ? 1e-12 * fabs(value) : 2 * f.value_bound;
    CHECK(fabs(sum - value) <= near_value, "value %.15g, one by one %.15g", value, sum);
    for (int k = 0; k < KIT_RESULTS; k++)
        for (int64_t i = 0; f.out[k].t.data && i < kit_count(&f.out[k].t); i++) {
            double got = whole[k][i], want = kit_get(&f.out[k].t, i);
            int near = got == want || (!exact && fabs(got - want) <= 2 * f.bound[k][i]);
            if (!CHECK(near, "%s[%lld] = %.9g, one by one %.9g", kit_results[k].name, (long long)i, got, want))
                break;
        }
    for (int k = 0; k < KIT_RESULTS; k++) free(whole[k]);
    test_destroy(&f);
}

/* The bits are those of one thread, for any number of threads, with lists of entries and with little memory. */
static void test_threads(double skip_below, int own)
{
    struct kit_case c = kit_attention_case(1500, 1500, 16);
    c.packed = 11, c.heads = 4, c.key_heads[S] = 2, c.key_heads[T] = 4, c.causal = 1, c.skip_below = skip_below;
    c.own = own, c.dtype[S] = own ? SKL_BF16 : SKL_F32;
    test_same_bits(&c);
}

/* [1, H, sequences n, ..] as a batch, [sequences, H, n, ..]. */
static struct skl_tensor as_batch(struct skl_tensor t, int64_t sequences)
{
    if (t.data) {
        t.shape[0] = sequences, t.shape[2] /= sequences;
        t.stride[0] = t.shape[2] * t.stride[2];
    }
    return t;
}

/* Sequences of the same length are a batch: the same bits and the same memory. */
static void test_equal_lengths(void)
{
    enum { SEQUENCES = 4 };
    struct kit_case c = kit_attention_case(SEQUENCES * 200, SEQUENCES * 230, 16);
    struct kit_fixture f;
    size_t bytes[2];
    c.packed = SEQUENCES, c.heads = 2, c.key_heads[S] = c.key_heads[T] = 1, c.causal = 1;
    test_build(&f, &c);
    for (int i = 0; i <= SEQUENCES; i++)
        kit_set(&f.in[KIT_INPUT_CU_Q].t, i, 200 * i), kit_set(&f.in[KIT_INPUT_CU_K].t, i, 230 * i);
    f.checksum = kit_checksum(&f);
    struct skl_outputs out = kit_outputs(&f, 1, KIT_GRAD_ALL), each = out;
    CHECK(skl_value_and_grad(&f.p, &out) == SKL_OK, "%s", skl_last_error());
    CHECK(skl_workspace_size(SKL_CALL_VALUE_AND_GRAD, &f.p, &out, &bytes[0]) == SKL_OK, "%s", skl_last_error());
    double *packed[KIT_RESULTS] = {0}, value = f.value;
    for (int k = 0; k < KIT_RESULTS; k++)
        if (f.out[k].t.data) {
            packed[k] = kit_doubles((size_t)kit_count(&f.out[k].t));
            kit_take(&f.out[k], packed[k]);
            *kit_slot(&each, k) = as_batch(*kit_slot(&out, k), SEQUENCES);
        }
    struct skl_problem p = f.p;
    p.cu_seqlens_q = p.cu_seqlens_k = (struct skl_tensor){0};
    p.s.a = as_batch(p.s.a, SEQUENCES), p.s.b = as_batch(p.s.b, SEQUENCES);
    p.t.a = as_batch(p.t.a, SEQUENCES), p.t.b = as_batch(p.t.b, SEQUENCES);
    CHECK(skl_value_and_grad(&p, &each) == SKL_OK, "%s", skl_last_error());
    CHECK(skl_workspace_size(SKL_CALL_VALUE_AND_GRAD, &p, &each, &bytes[1]) == SKL_OK, "%s", skl_last_error());
    CHECK(bytes[0] == bytes[1], "packed takes %zu bytes, as a batch %zu", bytes[0], bytes[1]);
    CHECK(f.value == value, "value %.17g, as a batch %.17g", value, f.value);
    for (int k = 0; k < KIT_RESULTS; k++)
        for (int64_t i = 0; packed[k] && i < kit_count(&f.out[k].t); i++)
            if (!CHECK(kit_get(&f.out[k].t, i) == packed[k][i], "%s[%lld]", kit_results[k].name, (long long)i))
                break;
    for (int k = 0; k < KIT_RESULTS; k++) free(packed[k]);
    test_destroy(&f);
}

/* A NaN in one sequence stays in it. */
static void test_nan_stays(void)
{
    struct kit_case c = kit_attention_case(90, 90, 16);
    struct kit_fixture f;
    c.packed = 3, c.causal = 1;
    test_build(&f, &c);
    for (int i = 0; i <= 3; i++)
        kit_set(&f.in[KIT_INPUT_CU_Q].t, i, 30 * i), kit_set(&f.in[KIT_INPUT_CU_K].t, i, 30 * i);
    for (int d = 0; d < 16; d++) kit_set(&f.in[KIT_INPUT_B_S].t, 30 * 16 + d, NAN);
    f.checksum = kit_checksum(&f);
    struct skl_outputs out = kit_outputs(&f, 1, KIT_GRAD_ALL);
    CHECK(skl_value_and_grad(&f.p, &out) == SKL_OK, "%s", skl_last_error());
    for (int64_t i = 0; i < 90; i++) {
        int in = i >= 30 && i < 60;
        CHECK(!isnan(kit_get(&f.out[KIT_LOSS].t, i)) == !in, "loss[%lld]", (long long)i);
        CHECK(!isnan(kit_get(&f.out[KIT_A_S].t, i * 16)) == !in, "grad of a, row %lld", (long long)i);
        CHECK(!isnan(kit_get(&f.out[KIT_B_T].t, i * 16)) == !in, "grad of b, column %lld", (long long)i);
    }
    test_destroy(&f);
}

static void refused(struct kit_fixture *f, const char *sentence)
{
    struct skl_outputs out = kit_outputs(f, 1, 0);
    enum skl_status status = skl_value(&f->p, &out);
    CHECK(status == SKL_BAD_ARGUMENT && strstr(skl_last_error(), sentence), "\"%s\", expected \"%s\"", skl_last_error(),
          sentence);
}

static void test_bad_offsets(void)
{
    static const struct {
        int input, entry, value;
        const char *sentence;
    } each[] = {{KIT_INPUT_CU_Q, 0, 1, "cu_seqlens_q[0] = 1: the first sequence must begin at 0"},
                {KIT_INPUT_CU_Q, 2, 3, "cu_seqlens_q[2] = 3: it must not be below the one before, 10"},
                {KIT_INPUT_CU_Q, 2, 41, "cu_seqlens_q[2] = 41: it is beyond the end of the rows, 30"},
                {KIT_INPUT_CU_Q, 3, 29, "cu_seqlens_q[3] = 29: the last must be the number of rows, 30"},
                {KIT_INPUT_CU_K, 1, -1, "cu_seqlens_k[1] = -1: it must not be below the one before, 0"},
                {KIT_INPUT_CU_K, 3, 61, "cu_seqlens_k[3] = 61: the last must be the number of columns, 60"}};
    struct kit_case c = kit_attention_case(30, 60, 8);
    c.packed = 3, c.grads = 0;
    for (int k = -1; k < COUNT(each); k++) {
        struct kit_fixture f;
        test_build(&f, &c);
        for (int i = 0; i <= 3; i++)
            kit_set(&f.in[KIT_INPUT_CU_Q].t, i, 10 * i), kit_set(&f.in[KIT_INPUT_CU_K].t, i, 20 * i);
        if (k >= 0)
            kit_set(&f.in[each[k].input].t, each[k].entry, each[k].value);
        f.checksum = kit_checksum(&f);
        if (k >= 0) {
            refused(&f, each[k].sentence);
        } else {
            struct skl_outputs out = kit_outputs(&f, 1, 0);
            CHECK(skl_value(&f.p, &out) == SKL_OK, "%s", skl_last_error());
            struct skl_tensor q = f.p.cu_seqlens_q, k_ = f.p.cu_seqlens_k;
            f.p.cu_seqlens_k.data = NULL, refused(&f, "cu_seqlens_q without cu_seqlens_k: give both");
            f.p.cu_seqlens_k = k_, f.p.cu_seqlens_q.dtype = SKL_I64;
            refused(&f, "cu_seqlens_q.dtype = 4 (i64): it must be i32");
            f.p.cu_seqlens_q = q, f.p.cu_seqlens_k.shape[0] = 3;
            refused(&f, "cu_seqlens_k.shape[0] = 3: it must be 4");
            f.p.cu_seqlens_k = k_;
        }
        test_destroy(&f);
    }
    struct kit_fixture f;
    c.packed = 3, c.batch = 2;
    test_build(&f, &c);
    refused(&f, "s.a.shape[0] = 2: packed sequences are in one batch");
    test_destroy(&f);
    c = kit_linear_case(30, 60, 8), c.packed = 3, c.grads = 0;
    test_build(&f, &c);
    refused(&f, "packed sequences are for attention");
    test_destroy(&f);
}

/* More tiles than a wave takes: some blocks wait, and keep what they have summed of a gradient in 16 bits. */
static void test_waiting_blocks(void)
{
    struct kit_case c = kit_attention_case(9000, 9000, 8);
    c.packed = 6, c.causal = 1, c.own = 1, c.dtype[S] = c.dtype[T] = SKL_BF16;
    struct kit_fixture f;
    test_build(&f, &c);
    for (int i = 0; i <= 6; i++)
        kit_set(&f.in[KIT_INPUT_CU_Q].t, i, 1500 * i), kit_set(&f.in[KIT_INPUT_CU_K].t, i, 1500 * i);
    kit_expect(&f);
    test_run(&f, KIT_TOGETHER);
    test_destroy(&f);
}

int main(void)
{
    test_begin("test_packed");
    test_against_reference();
    test_one_by_one(1, 300, 1);
    test_one_by_one(7, 700, 0);
    test_threads(0, 0);
    test_threads(0x1p-24, 1);
    test_equal_lengths();
    test_nan_stays();
    test_bad_offsets();
    if (!test_quick())
        test_waiting_blocks();
    return test_end();
}
