/* SPDX-License-Identifier: Apache-2.0
 *
 * A random indexer with everything it may be given, where its results go, and a comparison with the reference in
 * double: for the tests of the CPU and of CUDA.
 */
#ifndef TEST_INDEXERS_H
#define TEST_INDEXERS_H

#include "../kit/indexer.h"
#include "cases.h"

enum { MOST = 40000 };

struct trial {
    struct skl_problem p;
    struct kit_tensor q, k, w, q_t, k_t, lse, weight, begin, sink, support, cu_q, cu_k;
    int64_t B, H, N, M, D, T;
    double unit; /* what dz is rounded by on its way into the gradients, in parts of itself; 0: as all else */
};

static float loss[MOST], da[MOST * 8], db[MOST * 8], dw[MOST];
static double want_loss[MOST], want_da[MOST * 8], want_db[MOST * 8], want_dw[MOST], size[MOST];
static double squares_da[MOST * 8], squares_db[MOST * 8], squares_dw[MOST];

static inline struct kit_tensor make_at(enum kit_place place, int dtype, int ndim, const int64_t *shape, double sd)
{
    int dense = place == KIT_ALIGNED || test_chance(2);
    struct kit_tensor t = kit_tensor(&test_memory, dtype, ndim, shape, 1, dense ? KIT_DENSE : KIT_GAPS, place);
    kit_fill_normal(&t.t, &test_numbers, sd, KIT_NORMAL);
    return t;
}

static inline struct kit_tensor make(int dtype, int ndim, const int64_t *shape, double sd)
{
    return make_at(KIT_AT_END, dtype, ndim, shape, sd);
}

/* Offsets of three sequences, the second perhaps empty, of n rows or columns. */
static inline struct kit_tensor offsets(int64_t n)
{
    int64_t shape[1] = {4}, middle = test_between(0, n), end = test_between(middle, n);
    struct kit_tensor t = make(SKL_I32, 1, shape, 1);
    const int64_t at[4] = {0, middle, end, n};
    for (int64_t i = 0; i < 4; i++) kit_set(&t.t, i, (double)at[i]);
    return t;
}

/* N queries, M keys. D_t: of the teacher. place: of the operands. */
static inline struct trial build_sized(enum kit_place place, int64_t N, int64_t M, int64_t H, int64_t D, int64_t D_t,
                                       int64_t heads, int64_t key_heads, int dtype, int64_t batch)
{
    struct trial t = {.B = batch, .H = H, .D = D, .T = heads, .N = N, .M = M};
    int64_t q[4] = {t.B, H, t.N, D}, k[4] = {t.B, 1, t.M, D}, w[3] = {t.B, t.N, H};
    int64_t q_t[4] = {t.B, heads, t.N, D_t}, k_t[4] = {t.B, key_heads, t.M, D_t}, of_rows[2] = {t.B, t.N};
    t.q = make_at(place, dtype, 4, q, 1), t.k = make_at(place, dtype, 4, k, 1 / sqrt((double)D));
    t.q_t = make_at(place, dtype, 4, q_t, 1), t.k_t = make_at(place, dtype, 4, k_t, 1), t.w = make(dtype, 3, w, 1);
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

static inline struct trial build_at(enum kit_place place, int64_t H, int64_t D, int64_t D_t, int64_t heads,
                                    int64_t key_heads, int dtype, int64_t batch, int64_t most_rows)
{
    int64_t N = test_between(1, most_rows), M = test_between(most_rows, 7 * most_rows);
    return build_sized(place, N, M, H, D, D_t, heads, key_heads, dtype, batch);
}

static inline struct trial build(int64_t H, int64_t D, int64_t heads, int64_t key_heads, int dtype, int64_t batch,
                                 int64_t most_rows)
{
    return build_at(KIT_AT_END, H, D, 24, heads, key_heads, dtype, batch, most_rows);
}

/* Keys of the query's own sequence, or blocks of them, some twice, and empty slots. */
static inline void list_keys(struct trial *t, int64_t block)
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

/* Any of the options. */
static inline void choose_options(struct trial *t, int k, int lists)
{
    struct skl_problem *p = &t->p;
    p->causal = test_chance(2), p->identity = test_chance(3), p->reduction = test_chance(2) ? SKL_SUM : SKL_MEAN;
    p->s.scale = test_chance(2) ? 0 : test_chance(2) ? 0.4 : -0.6;
    p->window_left = test_chance(4) ? test_between(0, 90) : -1;
    p->t.softcap = test_chance(3) ? 2 : 0;
    if (test_chance(2))
        p->lse_t = t->lse.t, p->raw_t = test_chance(2);
    else if (test_chance(2))
        p->sink_t = t->sink.t, p->raw_t = test_chance(2);
    if (p->reduction == SKL_SUM && test_chance(2))
        p->weight = t->weight.t;
    if (test_chance(3))
        p->begin = t->begin.t;
    if (t->B == 1 && test_chance(2))
        p->cu_seqlens_q = t->cu_q.t, p->cu_seqlens_k = t->cu_k.t;
    if (lists && !p->sink_t.data && test_chance(2))
        list_keys(t, test_chance(3) ? test_between(1, 64) : 0);
    p->threads = (int)test_between(1, 3);
    test_context("trial %d: Hi %d Di %d N %d M %d heads %d/%d dtype %d causal %d identity %d scale %g left %d lse %d "
                 "raw %d begin %d sink %d packed %d lists %d of %d",
                 k, (int)t->H, (int)t->D, (int)t->N, (int)t->M, (int)t->T, (int)t->k_t.t.shape[1], t->q.t.dtype,
                 p->causal, p->identity, p->s.scale, (int)p->window_left, p->lse_t.data != NULL, p->raw_t,
                 p->begin.data != NULL, p->sink_t.data != NULL, p->cu_seqlens_q.data != NULL,
                 p->support.data ? (int)p->support.shape[2] : 0, (int)p->support_block);
}

static inline struct trial random_indexer(int k, int64_t most_rows)
{
    static const int64_t heads[][2] = {{1, 1}, {4, 1}, {4, 4}, {6, 2}};
    const int64_t *h = PICK(heads);
    int64_t D = k % 7 == 6 ? 270 : test_between(1, 70); /* 270: more than one column tile */
    struct trial t = build(test_between(1, 5), D, h[0], h[1], (int)test_between(SKL_F32, SKL_F16), test_between(1, 2),
                           most_rows);
    choose_options(&t, k, 1);
    return t;
}

/* The largest upstream gradient of a row, or thereabouts. */
static inline double upstream(const struct trial *t)
{
    double most = t->p.weight.data ? 4 : 1;
    return t->p.reduction == SKL_SUM ? most : most / (double)t->N;
}

static inline void destroy(struct trial *t)
{
    struct kit_tensor *each[] = {&t->q,      &t->k,     &t->w,       &t->q_t,  &t->k_t,  &t->lse,
                                 &t->weight, &t->begin, &t->support, &t->cu_q, &t->cu_k, &t->sink};
    for (int i = 0; i < COUNT(each); i++) kit_tensor_free(&test_memory, each[i]);
}

static inline struct skl_outputs outputs(const struct trial *t, double *value)
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

/* Within some roundings of the largest entry, and of the probabilities that the entries are sums of; of what those are
 * rounded by, three times the root of the sum of squares, if there are any. */
static inline void near_all(const char *what, const float *got, const double *want, const double *squares, int64_t n,
                            double relative, double absolute, double unit)
{
    double most = 0, worst = 0;
    for (int64_t i = 0; i < n; i++) {
        double error = fabs((double)got[i] - want[i]) - (unit != 0 ? 3 * unit * sqrt(squares[i]) : 0);
        most = fmax(most, fabs(want[i]));
        worst = error <= worst ? worst : error; /* NaN stays */
    }
    CHECK_NEAR(worst, 0, relative * most + absolute, what);
}

/* slack: times the errors that the CPU is allowed. */
static inline void compare(const struct trial *t, double value, const struct kit_indexer *want, double g, double slack)
{
    double rounding = 0, relative = slack * 5e-6;
    for (int64_t i = 0; i < t->B * t->N; i++) rounding = fmax(rounding, size[i]);
    rounding *= slack * 4 * 0x1p-24;
    near_all("loss", loss, want_loss, NULL, t->B * t->N, relative, slack * 1e-6 + rounding, 0);
    CHECK_NEAR(value, want->value,
               (slack * 2e-6 + rounding) * (1 + fabs(want->value)) * fmax(1, g * (double)(t->B * t->N)), "value");
    near_all("da", da, want_da, squares_da, t->B * t->H * t->N * t->D, relative, g * rounding, t->unit);
    near_all("db", db, want_db, squares_db, t->B * t->M * t->D, relative, g * rounding * sqrt((double)t->N), t->unit);
    near_all("dw", dw, want_dw, squares_dw, t->B * t->N * t->H, relative, g * rounding * 4, t->unit);
}

#endif
