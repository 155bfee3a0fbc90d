/* SPDX-License-Identifier: Apache-2.0
 *
 * Labels on shards of a vocabulary: ids count the columns of all shards; loss, cross-entropy and gradients are those of
 * one call, and the rows the same bits on every shard.
 */
#include "shards.h"

enum { ROWS = 70, COLUMNS = 601, DIM = 40, SHARDS = 4, IGNORED = -100 };
enum { LOSS, CE, KL, LOGPROB, L1, M_S, M_T, L_S, L_T, KL_S, KL_T, RESULTS };

struct results {
    float row[RESULTS][ROWS], da[ROWS * DIM], db[COLUMNS * DIM];
    double value;
};

static struct skl_outputs outputs(struct results *r, int teacher, int two)
{
    struct skl_outputs out = skl_no_outputs();
    memset(r, 0, sizeof *r);
    out.value = &r->value;
    out.loss = skl_vector(SKL_F32, r->row[LOSS], ROWS);
    out.ce = skl_vector(SKL_F32, r->row[CE], ROWS);
    if (teacher)
        out.kl = skl_vector(SKL_F32, r->row[KL], ROWS);
    out.logprob_s = skl_vector(SKL_F32, r->row[LOGPROB], ROWS);
    out.l1_s = skl_vector(SKL_F32, r->row[L1], ROWS);
    out.m_s = skl_vector(SKL_F32, r->row[M_S], ROWS), out.l_s = skl_vector(SKL_F32, r->row[L_S], ROWS);
    if (teacher)
        out.m_t = skl_vector(SKL_F32, r->row[M_T], ROWS), out.l_t = skl_vector(SKL_F32, r->row[L_T], ROWS);
    if (two)
        out.kl_s = skl_vector(SKL_F32, r->row[KL_S], ROWS), out.kl_t = skl_vector(SKL_F32, r->row[KL_T], ROWS);
    out.s.a = skl_matrix(SKL_F32, r->da, ROWS, DIM);
    out.s.b = skl_matrix(SKL_F32, r->db, COLUMNS, DIM);
    return out;
}

/* The largest difference beside 1 or the largest number, whichever is larger. NaN is the worst. */
static double apart(const float *x, const float *y, int n)
{
    double worst = 0, largest = 1e-3;
    for (int i = 0; i < n; i++) {
        double error = fabs((double)x[i] - (double)y[i]);
        worst = error <= worst ? worst : error;
        largest = fmax(largest, fabs((double)y[i]));
    }
    return worst / largest;
}

static void compare(const struct results *shard, const struct results *whole, const float *da)
{
    static const char *const names[RESULTS] = {"loss", "ce",  "kl",  "logprob_s", "l1_s", "m_s",
                                               "m_t",  "l_s", "l_t", "kl_s",      "kl_t"};
    for (int k = 0; k < RESULTS; k++) {
        if (k < L1)
            CHECK_NEAR(apart(shard[0].row[k], whole->row[k], ROWS), 0, 2e-6, names[k]);
        for (int r = 1; r < SHARDS; r++)
            CHECK(!memcmp(shard[r].row[k], shard[0].row[k], sizeof shard[0].row[k]), "shard %d has another %s", r,
                  names[k]);
    }
    for (int r = 0; r < SHARDS; r++)
        CHECK(shard[r].value == shard[0].value, "shard %d: value %.17g, not %.17g", r, shard[r].value, shard[0].value);
    CHECK_NEAR(shard[0].value, whole->value, 2e-6 * (1 + fabs(whole->value)), "value");
    CHECK_NEAR(apart(da, whole->da, ROWS * DIM), 0, 5e-6, "da");
    CHECK_NEAR(apart(shard[0].db, whole->db, COLUMNS * DIM), 0, 5e-6, "db"); /* all shards wrote into it */
}

/* The sum over the shards of their parts of da. */
static const float *summed(const struct results *shard)
{
    static float da[ROWS * DIM];
    for (int i = 0; i < ROWS * DIM; i++) {
        double sum = 0;
        for (int k = 0; k < SHARDS; k++) sum += (double)shard[k].da[i];
        da[i] = (float)sum;
    }
    return da;
}

/* skl_backward on each shard, from what its forward call wrote: nobody is met. */
static void try_backward(struct shard *shards, struct results *shard, const struct results *whole, const int64_t *cut)
{
    for (int k = 0; k < SHARDS; k++) {
        struct skl_outputs saved = shards[k].out, out = skl_no_outputs();
        struct skl_shard place = *shards[k].slice.p.shard;
        struct skl_problem p = shards[k].slice.p;
        place.exchange = NULL;
        p.shard = &place, p.workspace_limit = 0;
        p.begin.data = p.end.data = NULL; /* which the slice has for rows that see all columns */
        out.s = saved.s;
        memset(shard[k].da, 0, sizeof shard[k].da);
        memset(shard[0].db + cut[k] * DIM, 0, (size_t)(cut[k + 1] - cut[k]) * DIM * sizeof(float));
        saved.s = skl_no_outputs().s, saved.value = NULL;
        CHECK_STATUS(skl_backward(&p, &saved, &out), SKL_OK);
    }
    CHECK_NEAR(apart(summed(shard), whole->da, ROWS * DIM), 0, 5e-6, "da of backward");
    CHECK_NEAR(apart(shard[0].db, whole->db, COLUMNS * DIM), 0, 5e-6, "db of backward");
}

static void try_labels(int divergence, double temperature, double smoothing, double z_loss, int teacher, int weights)
{
    static struct results whole, shard[SHARDS];
    static const int64_t cut[SHARDS + 1] = {0, 201, 201, 202, COLUMNS};
    int64_t ids[ROWS];
    struct kit_case c = kit_linear_case(ROWS, COLUMNS, DIM);
    struct kit_fixture f;
    struct shard shards[SHARDS];
    struct meeting m;
    c.temperature = temperature, c.weights = weights;
    kit_set_divergence(&c, divergence);
    test_build(&f, &c);
    for (int i = 0; i < ROWS; i++) ids[i] = i % 5 == 2 ? IGNORED : i % 5 == 3 ? 201 : test_between(0, COLUMNS - 1);
    struct skl_labels l = {sizeof l, skl_vector(SKL_I64, ids, ROWS), 0.7, 0.4, 0.01, IGNORED, smoothing, z_loss};
    f.p.labels = &l;
    if (!teacher)
        f.p.t.a.data = f.p.t.b.data = NULL;
    int sweeps = teacher ? kit_divergences[divergence].sweeps : 1;
    struct skl_outputs out = outputs(&whole, teacher, sweeps == 2);
    CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_OK);
    meeting_begin(&m, SHARDS);
    shards_begin(&f, &m, SHARDS, cut, 32, SKL_CALL_VALUE_AND_GRAD, shards);
    for (int k = 0; k < SHARDS; k++) {
        out = outputs(&shard[k], teacher, sweeps == 2);
        out.s.b = skl_matrix(SKL_F32, shard[0].db + cut[k] * DIM, cut[k + 1] - cut[k], DIM);
        shards[k].out = out;
        shards[k].slice.p.threads = k % 3 + 1;
        if (k % 2)
            shards[k].slice.p.workspace_limit = kit_least_limit(&shards[k].slice.p, SKL_CALL_VALUE_AND_GRAD,
                                                                &shards[k].out);
    }
    shards_run(shards, SHARDS);
    for (int k = 0; k < SHARDS; k++) {
        CHECK(shards[k].status == SKL_OK, "shard %d: %s", k, shards[k].sentence);
        CHECK(shards[k].exchanges == 3 * sweeps && !shards[k].uneven, "shard %d met %d times", k,
              (int)shards[k].exchanges);
        CHECK(shards[k].sent == ROWS * (sweeps + 1 + (smoothing > 0)), "shard %d sent %d states", k,
              (int)shards[k].sent);
    }
    compare(shard, &whole, summed(shard));
    try_backward(shards, shard, &whole, cut);
    shards_end(&f, shards, SHARDS);
    meeting_end(&m);
    test_destroy(&f);
}

int main(void)
{
    static const int divergences[] = {SKL_FORWARD_KL, SKL_REVERSE_KL, SKL_JSD, SKL_ALPHA_BETA};
    test_begin("test_shard_labels");
    for (int k = 0; k < COUNT(divergences); k++)
        for (int hot = 0; hot < 2; hot++)
            for (int smooth = 0; smooth < 2; smooth++)
                for (int teacher = k > 0; teacher < 2; teacher++) {
                    test_context("%s, T %d, smoothing %d, teacher %d", kit_divergence_names[divergences[k]], 1 + hot,
                                 smooth, teacher);
                    try_labels(divergences[k], 1 + hot, 0.1 * smooth, 1e-3 * smooth, teacher,
                               smooth ? KIT_SOME_ZERO : KIT_UNWEIGHTED);
                }
    return test_end();
}
