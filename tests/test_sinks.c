/* SPDX-License-Identifier: Apache-2.0
 * Sinks: random cases of every option against the reference in double, every way
 * and on every instruction set; the same as a key whose logit is the sink's; the same bits for any number of
 * threads; rows without keys, exact zeros, NaN and infinities, and what the border refuses. */
#include "cases.h"

static struct kit_case with_sinks(void)
{
    struct kit_case c = kit_attention_case(150, 400, 40);
    c.batch = 2, c.heads = 3, c.causal = 1, c.key_heads[S] = 1, c.sinks = 1 + SKL_F32;
    return c;
}

static void threads(void)
{
    for (int k = 0; k < 3; k++) {
        struct kit_case c = with_sinks();
        c.divergence = k == 1 ? SKL_JSD : SKL_FORWARD_KL, c.packed = k == 2 ? 5 : 0, c.batch = k == 2 ? 1 : 2;
        test_same_bits(&c);
    }
}

/* Sums over the rows must not depend on what else is asked for: the sinks' gradients alone, and beside the others. */
static void alone(void)
{
    struct kit_case c = with_sinks();
    struct kit_fixture f;
    test_build(&f, &c);
    kit_expect(&f);
    struct skl_outputs out = kit_outputs(&f, 1, KIT_GRAD_SINK_S | KIT_GRAD_SINK_T);
    CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_OK);
    test_compare(&f, &out, "the sinks' gradients alone");
    struct skl_outputs saved = kit_outputs(&f, 1, 0), grads = kit_outputs(&f, 0, KIT_GRAD_SINK_T);
    CHECK_STATUS(skl_value(&f.p, &saved), SKL_OK);
    saved.value = NULL;
    CHECK_STATUS(skl_backward(&f.p, &saved, &grads), SKL_OK);
    test_compare(&f, &grads, "a backward of the teacher's sinks alone");
    saved.loss.data = NULL;
    CHECK_STATUS(skl_backward(&f.p, &saved, &grads), SKL_BAD_ARGUMENT);
    CHECK(strstr(skl_last_error(), "saved.loss"), "\"%s\"", skl_last_error());
    test_destroy(&f);
}

/* One more key, the first of all, whose logit is the sink's: the same loss, and the sink's gradient is what that
 * key's logit gets. */
static void as_a_key(int divergence)
{
    enum { N = 40, M = 70, D = 17 };
    static float a[2][N * D], keys[2][M * D], wide_a[2][N * (D + 1)], wide[2][(M + 1) * (D + 1)],
        db[2][(M + 1) * (D + 1)];
    float sink[2] = {0.7f, -1.1f}, grad[2];
    double plain_value, value;
    for (int side = 0; side < 2; side++) {
        memset(wide[side], 0, sizeof wide[side]);
        for (int i = 0; i < N * D; i++) a[side][i] = (float)test_normal();
        for (int i = 0; i < M * D; i++) keys[side][i] = (float)test_normal() / 3;
        for (int i = 0; i < N; i++) {
            memcpy(wide_a[side] + i * (D + 1), a[side] + i * D, D * sizeof(float));
            wide_a[side][i * (D + 1) + D] = 1;
        }
        wide[side][D] = sink[side];
        for (int j = 0; j < M; j++) memcpy(wide[side] + (j + 1) * (D + 1), keys[side] + j * D, D * sizeof(float));
    }
    struct skl_problem p = skl_attention(skl_heads(SKL_F32, a[S], 1, 1, N, D), skl_heads(SKL_F32, keys[S], 1, 1, M, D),
                                         skl_heads(SKL_F32, a[T], 1, 1, N, D), skl_heads(SKL_F32, keys[T], 1, 1, M, D));
    struct skl_problem q = skl_attention(
        skl_heads(SKL_F32, wide_a[S], 1, 1, N, D + 1), skl_heads(SKL_F32, wide[S], 1, 1, M + 1, D + 1),
        skl_heads(SKL_F32, wide_a[T], 1, 1, N, D + 1), skl_heads(SKL_F32, wide[T], 1, 1, M + 1, D + 1));
    p.s.scale = p.t.scale = q.s.scale = q.t.scale = 1;
    p.divergence = q.divergence = divergence;
    p.alpha = q.alpha = divergence == SKL_ALPHA_BETA ? 0.4 : 0;
    p.sink_s = skl_vector(SKL_F32, &sink[S], 1), p.sink_t = skl_vector(SKL_F32, &sink[T], 1);
    struct skl_outputs out = skl_no_outputs(), wider = skl_no_outputs();
    out.value = &value, wider.value = &plain_value;
    out.grad_sink_s = skl_vector(SKL_F32, &grad[S], 1), out.grad_sink_t = skl_vector(SKL_F32, &grad[T], 1);
    wider.s.b = skl_heads(SKL_F32, db[S], 1, 1, M + 1, D + 1),
    wider.t.b = skl_heads(SKL_F32, db[T], 1, 1, M + 1, D + 1);
    CHECK_STATUS(skl_value_and_grad(&p, &out), SKL_OK);
    CHECK_STATUS(skl_value_and_grad(&q, &wider), SKL_OK);
    CHECK_NEAR(value, plain_value, 2e-6, "value");
    for (int side = 0; side < 2; side++) /* a has a 1 where the key's logit is read */
        CHECK_NEAR((double)grad[side], (double)db[side][D], 2e-6, "gradient of the sink");
}

/* Equal sides: nothing but zeros, whatever the divergence. */
static void zeros(void)
{
    for (int divergence = 0; divergence < KIT_DIVERGENCE_COUNT; divergence++) {
        struct kit_case c = with_sinks();
        struct kit_fixture f;
        kit_set_divergence(&c, divergence);
        c.key_heads[T] = 1, c.details = 1;
        test_build(&f, &c);
        f.p.t.a = f.p.s.a, f.p.t.b = f.p.s.b, f.p.sink_t = f.p.sink_s;
        struct skl_outputs out = kit_outputs(&f, 1, KIT_GRAD_ALL);
        CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_OK);
        CHECK(f.value == 0, "value %g of divergence %d", f.value, divergence);
        for (int k = KIT_FIRST_GRADIENT; k < KIT_RESULTS; k++)
            for (int64_t i = 0; f.out[k].t.data && i < kit_count(&f.out[k].t); i++)
                if (!CHECK(kit_get(&f.out[k].t, i) == 0, "%s[%d] = %g of divergence %d", kit_results[k].name, (int)i,
                           kit_get(&f.out[k].t, i), divergence))
                    break;
        test_destroy(&f);
    }
}

/* Rows that see no key see the sink: LSE = sink, all of the mass, no loss and no gradient; also where there are no
 * keys at all. */
static void no_keys(void)
{
    for (int none = 0; none < 2; none++) {
        struct kit_case c = with_sinks();
        struct kit_fixture f;
        c.ranges = !none, c.causal = 0, c.details = 1, c.temperature = 2;
        test_build(&f, &c);
        for (int64_t i = 0; !none && i < kit_count(&f.p.end); i++) kit_set(&f.p.end, i, 0);
        if (none)
            f.p.s.b.shape[2] = f.p.t.b.shape[2] = 0;
        f.checksum = kit_checksum(&f);
        struct skl_outputs out = kit_outputs(&f, 1, KIT_GRAD_ALL);
        if (none)
            out.s.b.data = out.t.b.data = NULL;
        CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_OK);
        test_only_sinks(&f);
        kit_destroy(&f);
    }
}

/* Without mass on both sides a sink is as if there were none; a NaN or +inf makes the rows of its head NaN and no
 * others. */
static void odd_numbers(void)
{
    struct kit_case c = with_sinks();
    struct kit_fixture f, g;
    test_build(&f, &c);
    struct skl_problem plain = f.p;
    plain.sink_s.data = plain.sink_t.data = NULL;
    for (int i = 0; i < 3; i++) kit_set(&f.p.sink_s, i, -INFINITY), kit_set(&f.p.sink_t, i, -INFINITY);
    f.checksum = kit_checksum(&f);
    uint64_t bits[2];
    for (int k = 0; k < 2; k++) {
        struct skl_outputs out = kit_outputs(&f, 1, KIT_GRAD_STUDENT | KIT_GRAD_A_T | KIT_GRAD_B_T);
        out.sink_mass_s.data = out.sink_mass_t.data = NULL;
        CHECK_STATUS(skl_value_and_grad(k ? &plain : &f.p, &out), SKL_OK);
        bits[k] = 0;
        for (int r = 0; r <= KIT_B_T; r++)
            for (int64_t i = 0;
                 f.out[r].t.data && r != KIT_SINK_MASS_S && r != KIT_SINK_MASS_T && i < kit_count(&f.out[r].t); i++) {
                float x = (float)kit_get(&f.out[r].t, i);
                uint32_t as_int;
                memcpy(&as_int, &x, sizeof as_int);
                bits[k] = (bits[k] ^ as_int) * UINT64_C(0x100000001b3);
            }
    }
    CHECK(bits[0] == bits[1], "a sink of -inf is not as none");
    test_destroy(&f);
    for (int k = 0; k < 2; k++) {
        test_build(&g, &c);
        kit_set(&g.p.sink_s, 1, k ? INFINITY : NAN);
        struct skl_outputs out = kit_outputs(&g, 1, KIT_GRAD_ALL);
        CHECK_STATUS(skl_value_and_grad(&g.p, &out), SKL_OK);
        for (int64_t row = 0; row < 2 * 3 * 150; row++)
            CHECK(isnan(kit_get(&g.out[KIT_LOSS].t, row)) == (row / 150 % 3 == 1), "row %d", (int)row);
        for (int64_t i = 0; i < 3; i++)
            CHECK(isnan(kit_get(&g.out[KIT_SINK_S].t, i)) == (i == 1), "gradient of sink %d", (int)i);
        kit_destroy(&g);
    }
}

static void refused(const char *sentence, const struct skl_problem *p, const struct skl_outputs *out)
{
    enum skl_status status = skl_value_and_grad(p, out);
    CHECK(status == SKL_BAD_ARGUMENT || status == SKL_UNSUPPORTED, "\"%s\" was taken", sentence);
    CHECK(strstr(skl_last_error(), sentence), "\"%s\" does not say \"%s\"", skl_last_error(), sentence);
}

static int never(void *data, struct skl_state *states, int64_t rows)
{
    (void)data, (void)states, (void)rows;
    return 1;
}

static void border(void)
{
    struct kit_case c = with_sinks(), linear = kit_linear_case(10, 20, 8), mixed = with_sinks();
    struct kit_fixture f, g, m;
    struct skl_outputs out = skl_no_outputs(), grads;
    struct skl_shard shard = {.struct_size = sizeof shard, .exchange = never};
    static struct skl_state state[2 * 3 * 150];
    static float room[16];
    double value = 7;
    mixed.mix = 2, mixed.grads = KIT_GRAD_STUDENT, mixed.key_heads[T] = 1;
    test_build(&f, &c), test_build(&g, &linear), test_build(&m, &mixed);
    struct skl_problem p = f.p;
    out.value = &value;
    p.sink_t.data = NULL, refused("sink_s without sink_t: a category", &p, &out), p = f.p;
    p.sink_s.data = NULL, refused("sink_t without sink_s: a category", &p, &out), p = f.p;
    p.sink_s.shape[0] = 4, refused("sink_s.shape[0] = 4: it must be 3", &p, &out), p = f.p;
    p.sink_t.dtype = SKL_I32, refused("sink_t.dtype = 3", &p, &out), p = f.p;
    p.support = skl_vector(SKL_I32, room, 2 * 150), p.support.ndim = 3;
    for (int i = 0; i < 3; i++) p.support.shape[i] = (int64_t[]){2, 150, 1}[i], p.support.stride[i] = 0;
    refused("sink_s with support", &p, &out), p = f.p;
    p.shard = &shard, refused("sink_s with a shard", &p, &out), p = f.p;
    p.pool_block = 400, p.s.b.shape[2] = 1, refused("sink_s with pool_block = 400", &p, &out), p = f.p;
    g.p.sink_s = f.p.sink_s, refused("sink_s in a linear problem", &g.p, &out);
    CHECK_STATUS(skl_partial(&p, NULL, state), SKL_BAD_ARGUMENT);
    CHECK(strstr(skl_last_error(), "sink_s with partial rows"), "\"%s\"", skl_last_error());
    grads = out, grads.grad_sink_s = skl_vector(SKL_BF16, room, 3);
    refused("out.grad_sink_s.dtype = 1", &p, &grads);
    grads.grad_sink_s = skl_vector(SKL_F32, room, 2), refused("out.grad_sink_s.shape[0] = 2", &p, &grads);
    grads.grad_sink_s = p.sink_s, refused("out.grad_sink_s.data", &p, &grads);
    grads.grad_sink_s = skl_vector(SKL_F32, room, 3);
    CHECK_STATUS(skl_value(&p, &grads), SKL_BAD_ARGUMENT);
    p.sink_s.data = p.sink_t.data = NULL, refused("there is no sink_s to be differentiated", &p, &grads);
    grads = out, grads.sink_mass_s = f.out[KIT_SINK_MASS_S].t, refused("there is no sink", &p, &grads);
    grads = out, grads.grad_sink_t = skl_vector(SKL_F32, room, 6);
    refused("out.grad_sink_t.data", &m.p, &grads);
    CHECK(value == 7, "something was written");
    kit_destroy(&f), kit_destroy(&g), kit_destroy(&m);
}

int main(void)
{
    test_begin("test_sinks");
    for (int i = test_cases(100, 10); i > 0; i--) {
        struct kit_case c = kit_random_sinks(&test_numbers);
        kit_shrink(&c, 4e5);
        test_all_ways(&c);
    }
    struct kit_case mixed = with_sinks(), one_side = with_sinks();
    mixed.mix = 4, mixed.key_heads[T] = 1, mixed.grads = KIT_GRAD_STUDENT | KIT_GRAD_SINK_S; /* LSEs are found */
    one_side.grads = KIT_GRAD_STUDENT | KIT_GRAD_SINK_T; /* kept exponentials of Q, and dz of P's sink */
    test_all_ways(&mixed), test_all_ways(&one_side);
    threads();
    alone();
    for (int k = 0; k < KIT_DIVERGENCE_COUNT; k++) as_a_key(k);
    zeros();
    no_keys();
    odd_numbers();
    border();
    return test_end();
}
