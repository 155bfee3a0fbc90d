/* SPDX-License-Identifier: Apache-2.0
 * Indexers against the reference in double: random cases on every instruction set, every way; the same bits for any number of
 * threads; weight 0, NaN, and what the border refuses. */
#include "../kit/indexer.h"
#include "cases.h"

enum { MOST = 40000 };

struct trial {
    struct skl_problem p;
    struct kit_tensor q, k, w, q_t, k_t, lse, weight, begin, sink, support, cu_q, cu_k;
    int64_t B, H, N, M, D, T;
};

static float loss[MOST], da[MOST * 8], db[MOST * 8], dw[MOST], rows[4][MOST];
static double want_loss[MOST], want_da[MOST * 8], want_db[MOST * 8], want_dw[MOST], size[MOST];

static struct kit_tensor make(int dtype, int ndim, const int64_t *shape, double sd)
{
    struct kit_tensor t = kit_tensor(&test_memory, dtype, ndim, shape, 1, test_chance(2) ? KIT_DENSE : KIT_GAPS,
                                     KIT_AT_END);
    kit_fill_normal(&t.t, &test_numbers, sd, KIT_NORMAL);
    return t;
}

/* Offsets of three sequences, the second perhaps empty, of n rows or columns. */
static struct kit_tensor offsets(int64_t n)
{
    int64_t shape[1] = {4}, middle = test_between(0, n), end = test_between(middle, n);
    struct kit_tensor t = make(SKL_I32, 1, shape, 1);
    const int64_t at[4] = {0, middle, end, n};
    for (int64_t i = 0; i < 4; i++) kit_set(&t.t, i, (double)at[i]);
    return t;
}

static struct trial build(int64_t H, int64_t D, int64_t heads, int64_t key_heads, int dtype, int64_t batch)
{
    struct trial t = {.B = batch, .H = H, .N = test_between(1, 60), .M = test_between(60, 420), .D = D, .T = heads};
    int64_t q[4] = {t.B, H, t.N, D}, k[4] = {t.B, 1, t.M, D}, w[3] = {t.B, t.N, H};
    int64_t q_t[4] = {t.B, heads, t.N, 24}, k_t[4] = {t.B, key_heads, t.M, 24}, of_rows[2] = {t.B, t.N};
    t.q = make(dtype, 4, q, 1), t.k = make(dtype, 4, k, 1 / sqrt((double)D)), t.w = make(dtype, 3, w, 1);
    t.q_t = make(dtype, 4, q_t, 1), t.k_t = make(dtype, 4, k_t, 1);
    t.lse = make(SKL_F32, 3, q_t, 0.3), t.weight = make(SKL_F32, 2, of_rows, 1),
    t.begin = make(SKL_I32, 2, of_rows, 40);
    t.sink = make(dtype, 1, &heads, 3);
    for (int64_t i = 0; i < kit_count(&t.lse.t); i++) kit_set(&t.lse.t, i, kit_get(&t.lse.t, i) + log((double)t.M));
    for (int64_t i = 0; i < kit_count(&t.weight.t); i += 3) kit_set(&t.weight.t, i, 0);
    t.p = skl_problem_of(SKL_INDEXER, t.q.t, t.k.t, t.q_t.t, t.k_t.t);
    t.p.s.bias = t.w.t;
    t.cu_q = offsets(t.N), t.cu_k = offsets(t.M);
    int64_t lists[3] = {t.B, t.N, test_between(1, 150)};
    t.support = make(SKL_I32, 3, lists, 1);
    return t;
}

/* Keys of the query's own sequence, or blocks of them, some twice, and empty slots. */
static void list_keys(struct trial *t, int64_t block)
{
    int64_t K = t->support.t.shape[2];
    for (int64_t i = 0; i < t->B * t->N; i++) {
        int64_t columns = t->M, s = 0;
        while (t->p.cu_seqlens_q.data && kit_get(&t->cu_q.t, s + 1) <= (double)i) s++;
        if (t->p.cu_seqlens_q.data)
            columns = (int64_t)(kit_get(&t->cu_k.t, s + 1) - kit_get(&t->cu_k.t, s));
        int64_t last = (columns + (block ? block : 1) - 1) / (block ? block : 1) - 1;
        for (int64_t k = 0; k < K; k++)
            kit_set(&t->support.t, i * K + k, last < 0 || test_chance(6) ? -1 : (double)test_between(0, last));
    }
    t->p.support = t->support.t, t->p.support_block = block;
}

static void destroy(struct trial *t)
{
    struct kit_tensor *each[] = {&t->q,      &t->k,     &t->w,       &t->q_t,  &t->k_t,  &t->lse,
                                 &t->weight, &t->begin, &t->support, &t->cu_q, &t->cu_k, &t->sink};
    for (int i = 0; i < COUNT(each); i++) kit_tensor_free(&test_memory, each[i]);
}

static struct skl_outputs outputs(const struct trial *t, double *value)
{
    struct skl_outputs out = skl_no_outputs();
    memset(loss, 0xFF, sizeof loss), memset(da, 0xFF, sizeof da), memset(db, 0xFF, sizeof db),
        memset(dw, 0xFF, sizeof dw);
    out.value = value;
    out.loss = skl_matrix(SKL_F32, loss, t->B, t->N);
    out.s.a = skl_heads(SKL_F32, da, t->B, t->H, t->N, t->D);
    out.s.b = skl_heads(SKL_F32, db, t->B, 1, t->M, t->D);
    out.s.bias = skl_heads(SKL_F32, dw, 1, t->B, t->N, t->H);
    out.s.bias.ndim = 3;
    for (int i = 0; i < 3; i++)
        out.s.bias.shape[i] = out.s.bias.shape[i + 1], out.s.bias.stride[i] = out.s.bias.stride[i + 1];
    return out;
}

/* Within some roundings of the largest entry, and of the probabilities that the entries are sums of. */
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

static void compare(const struct trial *t, double value, const struct kit_indexer *want, double g)
{
    double rounding = 0;
    for (int64_t i = 0; i < t->B * t->N; i++) rounding = fmax(rounding, size[i]);
    rounding *= 4 * 0x1p-24;
    near_all("loss", loss, want_loss, t->B * t->N, 1e-6 + rounding);
    CHECK_NEAR(value, want->value, (2e-6 + rounding) * (1 + fabs(want->value)) * fmax(1, g * (double)(t->B * t->N)),
               "value");
    near_all("da", da, want_da, t->B * t->H * t->N * t->D, g * rounding);
    near_all("db", db, want_db, t->B * t->M * t->D, g * rounding * sqrt((double)t->N));
    near_all("dw", dw, want_dw, t->B * t->N * t->H, g * rounding * 4);
}

static void every_way(struct trial *t)
{
    static const enum skl_isa isas[] = TEST_ISAS;
    struct kit_indexer want = {.loss = want_loss, .da = want_da, .db = want_db, .dw = want_dw, .size = size};
    struct skl_problem *p = &t->p;
    double value, most_weight = p->weight.data ? 4 : 1,
                  g = p->reduction == SKL_SUM ? most_weight : most_weight / (double)t->N;
    kit_indexer_run(p, &want);
    for (int k = 0; k < COUNT(isas); k++) {
        if (!skl_isa_available(isas[k]))
            continue;
        p->isa = isas[k];
        for (int least = 0; least < 2; least++) {
            struct skl_outputs out = outputs(t, &value);
            p->workspace_limit = least ? kit_least_limit(p, SKL_CALL_VALUE_AND_GRAD, &out) : 0;
            CHECK_STATUS(skl_value_and_grad(p, &out), SKL_OK);
            compare(t, value, &want, g);
            p->workspace_limit = 0;
        }
        struct skl_outputs out = outputs(t, &value), saved = skl_no_outputs(), grads = out;
        struct skl_tensor *parts[4] = {&saved.m_s, &saved.l_s, &saved.m_t, &saved.l_t};
        for (int i = 0; i < 4; i++) *parts[i] = skl_matrix(SKL_F32, rows[i], t->B, t->N);
        saved.loss = out.loss, saved.value = &value;
        CHECK_STATUS(skl_value(p, &saved), SKL_OK);
        saved.value = NULL, grads.value = NULL, grads.loss = (struct skl_tensor){0};
        CHECK_STATUS(skl_backward(p, &saved, &grads), SKL_OK);
        compare(t, value, &want, g);
    }
}

static void random_trial(int k)
{
    static const int64_t heads[][2] = {{1, 1}, {4, 1}, {4, 4}, {6, 2}};
    const int64_t *h = PICK(heads);
    int64_t D = k % 7 == 6 ? 270 : test_between(1, 70); /* 270: more than one column tile */
    struct trial t = build(test_between(1, 5), D, h[0], h[1], (int)test_between(SKL_F32, SKL_F16), test_between(1, 2));
    struct skl_problem *p = &t.p;
    p->causal = test_chance(2), p->identity = test_chance(3), p->reduction = test_chance(2) ? SKL_SUM : SKL_MEAN;
    p->s.scale = test_chance(2) ? 0 : test_chance(2) ? 0.4 : -0.6;
    p->window_left = test_chance(4) ? test_between(0, 90) : -1;
    if (test_chance(2))
        p->lse_t = t.lse.t, p->raw_t = test_chance(2);
    else if (test_chance(2))
        p->sink_t = t.sink.t, p->raw_t = test_chance(2);
    if (p->reduction == SKL_SUM && test_chance(2))
        p->weight = t.weight.t;
    if (test_chance(3))
        p->begin = t.begin.t;
    if (t.B == 1 && test_chance(2))
        p->cu_seqlens_q = t.cu_q.t, p->cu_seqlens_k = t.cu_k.t;
    if (!p->sink_t.data && test_chance(2))
        list_keys(&t, test_chance(3) ? test_between(1, 64) : 0);
    p->threads = (int)test_between(1, 3);
    test_context("trial %d: Hi %d Di %d N %d M %d heads %d/%d dtype %d causal %d identity %d scale %g left %d lse %d "
                 "raw %d begin %d sink %d packed %d lists %d of %d",
                 k, (int)t.H, (int)t.D, (int)t.N, (int)t.M, (int)h[0], (int)h[1], t.q.t.dtype, p->causal, p->identity,
                 p->s.scale, (int)p->window_left, p->lse_t.data != NULL, p->raw_t, p->begin.data != NULL,
                 p->sink_t.data != NULL, p->cu_seqlens_q.data != NULL, p->support.data ? (int)p->support.shape[2] : 0,
                 (int)p->support_block);
    every_way(&t);
    destroy(&t);
    test_context("%s", "");
}

static void threads(int listed)
{
    struct trial t = build(4, 32, 4, 2, SKL_F32, 2);
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
    struct trial t = build(3, 16, 4, 4, SKL_F32, 2);
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
    struct trial t = build(3, 16, 4, 2, SKL_F32, 2);
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
