/* SPDX-License-Identifier: Apache-2.0
 * Indexers against the reference in double: random cases on every instruction set, every way; the same bits for any
 * number of threads; weight 0, NaN, and what the border refuses. */
#include "indexers.h"

static float rows[4][MOST];

static void every_way(struct trial *t)
{
    static const enum skl_isa isas[] = TEST_ISAS;
    struct kit_indexer want = {.loss = want_loss, .da = want_da, .db = want_db, .dw = want_dw, .size = size};
    struct skl_problem *p = &t->p;
    double value, g = upstream(t);
    kit_indexer_run(p, &want);
    for (int k = 0; k < COUNT(isas); k++) {
        if (!skl_isa_available(isas[k]))
            continue;
        p->isa = isas[k];
        for (int least = 0; least < 2; least++) {
            struct skl_outputs out = outputs(t, &value);
            p->workspace_limit = least ? kit_least_limit(p, SKL_CALL_VALUE_AND_GRAD, &out) : 0;
            CHECK_STATUS(skl_value_and_grad(p, &out), SKL_OK);
            compare(t, value, &want, g, 1);
            p->workspace_limit = 0;
        }
        struct skl_outputs out = outputs(t, &value), saved = skl_no_outputs(), grads = out;
        struct skl_tensor *parts[4] = {&saved.m_s, &saved.l_s, &saved.m_t, &saved.l_t};
        for (int i = 0; i < 4; i++) *parts[i] = skl_matrix(SKL_F32, rows[i], t->B, t->N);
        saved.loss = out.loss, saved.value = &value;
        CHECK_STATUS(skl_value(p, &saved), SKL_OK);
        saved.value = NULL, grads.value = NULL, grads.loss = (struct skl_tensor){0};
        CHECK_STATUS(skl_backward(p, &saved, &grads), SKL_OK);
        compare(t, value, &want, g, 1);
    }
}

static void random_trial(int k)
{
    struct trial t = random_indexer(k, 60);
    every_way(&t);
    destroy(&t);
    test_context("%s", "");
}

static void threads(int listed)
{
    struct trial t = build(4, 32, 4, 2, SKL_F32, 2, 60);
    static float first[3][MOST * 8];
    double value[2];
    if (listed)
        list_keys(&t, 0);
    for (int n = 1; n <= 5; n += 2) {
        struct skl_outputs out = outputs(&t, &value[n > 1]);
        t.p.threads = n;
        CHECK_STATUS(skl_value_and_grad(&t.p, &out), SKL_OK);
        if (n == 1)
            memcpy(first[0], da, sizeof da), memcpy(first[1], db, sizeof db), memcpy(first[2], dw, sizeof dw);
        CHECK(value[0] == value[n > 1] && !memcmp(first[0], da, sizeof da) && !memcmp(first[1], db, sizeof db) &&
                  !memcmp(first[2], dw, sizeof dw),
              "%d threads give other bits", n);
    }
    destroy(&t);
}

/* All weights 0: zeros, and not what was there before. A NaN in w of one query stays in that query's row. */
static void zeros_and_nan(void)
{
    struct trial t = build(3, 16, 4, 4, SKL_F32, 2, 60);
    double value;
    struct skl_outputs out = outputs(&t, &value);
    kit_fill(&t.weight.t, 0);
    t.p.weight = t.weight.t;
    CHECK_STATUS(skl_value_and_grad(&t.p, &out), SKL_OK);
    double sum = value;
    for (int64_t i = 0; i < t.B * t.H * t.N * t.D; i++) sum += fabs((double)da[i]);
    for (int64_t i = 0; i < t.B * t.M * t.D; i++) sum += fabs((double)db[i]);
    for (int64_t i = 0; i < t.B * t.N * t.H; i++) sum += fabs((double)dw[i]);
    CHECK(sum == 0, "weights of 0 leave %g", sum);
    t.p.weight = (struct skl_tensor){0};
    t.p.causal = 1;
    kit_set(&t.w.t, (t.N - 1) * t.H + 1, NAN); /* the last query of the first batch, which alone sees the last key */
    out = outputs(&t, &value);
    CHECK_STATUS(skl_value_and_grad(&t.p, &out), SKL_OK);
    for (int64_t i = 0; i < t.B * t.N; i++)
        CHECK(isnan(loss[i]) == (i == t.N - 1), "row %d: %g", (int)i, (double)loss[i]);
    for (int64_t i = 0; i < t.B * t.N; i++) CHECK(isnan(dw[i * t.H]) == (i == t.N - 1), "dw of row %d", (int)i);
    for (int64_t i = 0; i < t.M * t.D; i++) CHECK(!isnan(db[t.M * t.D + i]), "db of the other batch is NaN");
    destroy(&t);
}

static void refused(const char *sentence, const struct skl_problem *p, const struct skl_outputs *out)
{
    enum skl_status status = skl_value_and_grad(p, out);
    CHECK(status == SKL_BAD_ARGUMENT || status == SKL_UNSUPPORTED, "\"%s\" was taken", sentence);
    CHECK(strstr(skl_last_error(), sentence), "\"%s\" does not say \"%s\"", skl_last_error(), sentence);
}

static void border(void)
{
    struct trial t = build(3, 16, 4, 2, SKL_F32, 2, 60);
    double value = 7;
    struct skl_outputs out = outputs(&t, &value);
    struct skl_problem p = t.p;
    p.s.bias.data = NULL, refused("s.bias.data = NULL", &p, &out), p = t.p;
    p.s.bias.shape[2] = 2, refused("s.bias.shape[2] = 2", &p, &out), p = t.p;
    p.s.b = p.t.b, p.s.b.shape[3] = 16, refused("s.b.shape[1] = 2 heads", &p, &out), p = t.p;
    p.identity = 2, refused("identity = 2", &p, &out), p = t.p;
    p.mix_t = 4, refused("mix_t with an indexer", &p, &out), p = t.p;
    p.divergence = SKL_REVERSE_KL, refused("reverse", &p, &out), p = t.p;
    p.s.softcap = 3, refused("s.softcap = 3", &p, &out), p = t.p;
    p.weight = t.lse.t, refused("weight.ndim = 3", &p, &out), p = t.p;
    p.sink_s = t.sink.t, p.sink_s.shape[0] = 3, refused("sink_s.data", &p, &out), p = t.p;
    p.sink_t = t.sink.t, p.lse_t = t.lse.t, refused("with lse_t", &p, &out), p = t.p;
    p.raw_t = 1, refused("raw_t = 1 without lse_t", &p, &out), p = t.p;
    struct skl_outputs of_t = out;
    p.sink_t = t.sink.t, of_t.grad_sink_t = t.sink.t, refused("out.grad_sink_t.data", &p, &of_t), p = t.p, of_t = out;
    of_t.sink_mass_t = out.loss, p.sink_t = t.sink.t, refused("there is no sink", &p, &of_t), p = t.p, of_t = out;
    of_t.t.b = t.k_t.t, refused("out.t.b", &p, &of_t);
    static struct skl_state state[200];
    CHECK_STATUS(skl_partial(&p, NULL, state), SKL_BAD_ARGUMENT);
    CHECK(value == 7, "something was written");
    destroy(&t);
}

int main(void)
{
    test_begin("test_indexer");
    for (int k = 0; k < test_cases(40, 10); k++) random_trial(k);
    threads(0);
    threads(1);
    zeros_and_nan();
    border();
    return test_end();
}
