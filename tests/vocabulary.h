/* SPDX-License-Identifier: Apache-2.0
 *
 * A vocabulary by hand, and lists of its largest logits that are known in advance: NaN, infinities, equals, one sure
 * column. For skl_topk on the CPU and on a device.
 *
 * Whoever includes this defines ROWS and COLUMNS, a multiple of 1000, and make_lists(p, out), which calls skl_topk.
 */
#ifndef TEST_VOCABULARY_H
#define TEST_VOCABULARY_H

enum { DIM = 16, MOST = 600 }; /* what no kernel pads: padding would make a 0 of a -0 */

static struct memory {
    float x[ROWS * DIM], w[COLUMNS * DIM], bias[COLUMNS], logprobs[ROWS * MOST], tail[ROWS], lse[ROWS];
    int32_t ids[ROWS * MOST];
} m;

static enum skl_status make_lists(const struct skl_problem *p, const struct skl_outputs *out);

static struct skl_problem vocabulary(void)
{
    struct skl_tensor none = {0};
    struct skl_problem p = skl_linear(skl_matrix(SKL_F32, m.x, ROWS, DIM), skl_matrix(SKL_F32, m.w, COLUMNS, DIM), none,
                                      none);
    for (int i = 0; i < ROWS * DIM; i++) m.x[i] = (float)test_normal();
    for (int i = 0; i < COLUMNS * DIM; i++) m.w[i] = (float)test_normal();
    for (int i = 0; i < COLUMNS; i++) m.bias[i] = 0;
    p.s.bias = skl_vector(SKL_F32, m.bias, COLUMNS);
    p.threads = 1;
    return p;
}

static struct skl_outputs lists_of(int64_t k)
{
    struct skl_outputs out = skl_no_outputs();
    out.topk_ids = skl_matrix(SKL_I32, m.ids, ROWS, k), out.topk_logprobs = skl_matrix(SKL_F32, m.logprobs, ROWS, k);
    out.tail_logprob = skl_vector(SKL_F32, m.tail, ROWS), out.lse_s = skl_vector(SKL_F32, m.lse, ROWS);
    memset(m.ids, 0x55, sizeof m.ids), memset(m.logprobs, 0x55, sizeof m.logprobs);
    memset(m.tail, 0x55, sizeof m.tail);
    return out;
}

/* NaN counts as +inf among the ids, in its row alone, and the row's numbers are NaN. */
static void not_numbers(void)
{
    enum { K = 5, NAN_AT = COLUMNS - 1000 };
    struct skl_problem p = vocabulary();
    struct skl_outputs out = lists_of(K);
    for (int d = 0; d < DIM; d++) m.w[NAN_AT * DIM + d] = NAN, m.x[3 * DIM + d] = d == 0 ? INFINITY : 0;
    CHECK_STATUS(make_lists(&p, &out), SKL_OK);
    for (int i = 0; i < ROWS; i++) {
        CHECK(i == 3 || m.ids[i * K] == NAN_AT, "row %d begins with %d", i, (int)m.ids[i * K]);
        CHECK(isnan(m.lse[i]) && isnan(m.tail[i]) && isnan(m.logprobs[i * K + K - 1]), "row %d: %g %g", i,
              (double)m.lse[i], (double)m.tail[i]);
        for (int k = 0; k < K; k++)
            for (int n = 0; n < k; n++) CHECK(m.ids[i * K + k] != m.ids[i * K + n], "row %d has an id twice", i);
    }
    int at = 0; /* of the row with +inf: its first columns of +inf or NaN */
    for (int j = 0; at < K; j++)
        if (m.w[j * DIM] > 0 || isnan(m.w[j * DIM]))
            CHECK(m.ids[3 * K + at] == j, "of +inf, id %d is %d", at, (int)m.ids[3 * K + at]), at++;
    p = vocabulary(), out = lists_of(K);
    m.x[3 * DIM] = NAN;
    CHECK_STATUS(make_lists(&p, &out), SKL_OK);
    for (int i = 0; i < ROWS; i++) CHECK(isnan(m.lse[i]) == (i == 3), "NaN of row 3 and row %d", i);
    for (int k = 0; k < K; k++) CHECK(m.ids[3 * K + k] == k, "of all NaN, id %d is %d", k, (int)m.ids[3 * K + k]);
}

/* Columns of -inf follow the others, in their order; nothing but those has no softmax. */
static void nothing_likely(void)
{
    enum { K = 9, LIKELY = COLUMNS / 2 + 500 };
    struct skl_problem p = vocabulary();
    struct skl_outputs out = lists_of(K);
    for (int j = 0; j < COLUMNS; j++) m.bias[j] = j == LIKELY || j == 2 ? 0.0f : -INFINITY;
    CHECK_STATUS(make_lists(&p, &out), SKL_OK);
    for (int i = 0; i < ROWS; i++) {
        static const int32_t rest[7] = {0, 1, 3, 4, 5, 6, 7};
        CHECK(m.ids[i * K] + m.ids[i * K + 1] == LIKELY + 2, "row %d begins with %d, %d", i, (int)m.ids[i * K],
              (int)m.ids[i * K + 1]);
        CHECK(memcmp(m.ids + i * K + 2, rest, sizeof rest) == 0, "row %d goes on with %d", i, (int)m.ids[i * K + 2]);
        CHECK(m.logprobs[i * K + 2] == -INFINITY && m.tail[i] == -INFINITY, "row %d: %g %g", i,
              (double)m.logprobs[i * K + 2], (double)m.tail[i]);
    }
    for (int j = 0; j < COLUMNS; j++) m.bias[j] = -INFINITY;
    CHECK_STATUS(make_lists(&p, &out), SKL_OK);
    CHECK(m.ids[0] == 0 && m.ids[8] == 8 && isnan(m.logprobs[0]) && isnan(m.tail[0]) && m.lse[0] == -INFINITY,
          "of nothing: %d %g %g %g", (int)m.ids[0], (double)m.logprobs[0], (double)m.tail[0], (double)m.lse[0]);
}

/* One column of nearly all mass: 1 - sum would be 0, the rest is some e^-80. */
static void sure(void)
{
    enum { SURE = COLUMNS - 1000 };
    struct skl_problem p = vocabulary();
    struct skl_outputs out = lists_of(1);
    for (int d = 0; d < DIM; d++) m.w[SURE * DIM + d] = 0;
    m.bias[SURE] = 100;
    CHECK_STATUS(make_lists(&p, &out), SKL_OK);
    for (int i = 0; i < ROWS; i++) {
        double sum = 0;
        for (int j = 0; j < COLUMNS; j++) {
            double z = 0;
            for (int d = 0; d < DIM; d++) z += (double)m.x[i * DIM + d] * (double)m.w[j * DIM + d];
            sum += j == SURE ? 0 : exp(z);
        }
        CHECK(m.ids[i] == SURE && m.logprobs[i] == 0, "row %d: %d", i, (int)m.ids[i]);
        CHECK_NEAR(m.tail[i], log(sum) - 100, 1e-4, "the tail");
    }
}

/* Both zeros are equal, and of equal logits the lower id comes first: in one chunk of columns and across them. */
static void zeros(void)
{
    struct skl_problem p = vocabulary();
    struct skl_outputs out = lists_of(MOST);
    for (int i = 0; i < ROWS * DIM; i++) m.x[i] = 1e-30f;
    for (int j = 0; j < COLUMNS * DIM; j++) m.w[j] = j / DIM % 3 == 1 ? -1e-30f : 0.0f; /* products are -0 and 0 */
    for (int j = 0; j < COLUMNS; j++) m.bias[j] = j % 1000 == 999 ? 1.0f : -0.0f;
    CHECK_STATUS(make_lists(&p, &out), SKL_OK);
    for (int i = 0; i < ROWS; i++)
        for (int k = 0; k < MOST; k++) {
            int want = k < COLUMNS / 1000 ? 1000 * k + 999 : k - COLUMNS / 1000;
            CHECK(m.ids[i * MOST + k] == want, "id %d of row %d is %d", k, i, (int)m.ids[i * MOST + k]);
        }
}

/* A row that sees no column. */
static void nothing_seen(void)
{
    struct skl_problem p = vocabulary();
    struct skl_outputs out = lists_of(4);
    p.columns = 0, p.s.b.shape[0] = 0, p.s.bias.shape[0] = 0;
    CHECK_STATUS(make_lists(&p, &out), SKL_OK);
    for (int i = 0; i < ROWS; i++)
        CHECK(m.ids[i * 4] == -1 && m.ids[i * 4 + 3] == -1 && m.logprobs[i * 4] == -INFINITY &&
                  m.tail[i] == -INFINITY && m.lse[i] == -INFINITY,
              "row %d of no columns: %d %g", i, (int)m.ids[i * 4], (double)m.logprobs[i * 4]);
}

static void known_lists(void)
{
    not_numbers();
    nothing_likely();
    sure();
    zeros();
    nothing_seen();
}

#endif
