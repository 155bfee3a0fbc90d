/* SPDX-License-Identifier: Apache-2.0
 * Lists of the largest logits against their definition in double, over random cases and instruction sets; equals, NaN
 * and infinities; threads, memory, stopping; and what the border refuses. */
#include "cases.h"
#include "kit/topk.h"

static void random_cases(int cases)
{
    for (int n = 0; n < cases; n++) {
        struct kit_topk_case c = kit_random_topk(&test_numbers);
        struct kit_topk f;
        char text[800];
        if (test_bf16())
            c.of.dtype[S] = SKL_BF16;
        kit_describe_topk(&c, text, sizeof text);
        kit_build_topk(&f, &c, &test_memory, &test_numbers);
        for (int isa = SKL_ISA_BEST; isa <= SKL_ISA_NEONBF16; isa++) {
            if (isa != SKL_ISA_BEST && !skl_isa_available((enum skl_isa)isa))
                continue;
            f.p.isa = isa;
            for (int least = 0; least < 2; least++) {
                struct skl_outputs out = kit_topk_outputs(&f);
                f.p.workspace_limit = least ? kit_least_limit(&f.p, SKL_CALL_TOPK, &out) : 0;
                struct kit_topk_outcome o = kit_run_topk(&f);
                CHECK(kit_topk_right(&o),
                      "%s%s: status %d (%s), ids %.2g logprobs %.2g tail %.2g LSE %.2g of their bounds, first in row "
                      "%d%s: %s",
                      skl_isa_name((enum skl_isa)isa), least ? ", least memory" : "", (int)o.status,
                      o.status ? skl_last_error() : "", o.used[KIT_TOPK_IN_IDS], o.used[KIT_TOPK_IN_LOGPROBS],
                      o.used[KIT_TOPK_IN_TAIL], o.used[KIT_TOPK_IN_LSE], (int)o.row, o.spilt ? ", spilt" : "", text);
            }
        }
        kit_destroy_topk(&f);
    }
}

/* ------------------------------------------------------------------------------------- a vocabulary by hand --- */

enum { ROWS = 70, COLUMNS = 7000, DIM = 3, MOST = 600 };
static float x[ROWS * DIM], w[COLUMNS * DIM], bias[COLUMNS], logprobs[ROWS * MOST], tail[ROWS], lse[ROWS];
static int32_t ids[ROWS * MOST];

static struct skl_problem vocabulary(void)
{
    struct skl_tensor none = {0};
    struct skl_problem p = skl_linear(skl_matrix(SKL_F32, x, ROWS, DIM), skl_matrix(SKL_F32, w, COLUMNS, DIM), none,
                                      none);
    for (int i = 0; i < ROWS * DIM; i++) x[i] = (float)test_normal();
    for (int i = 0; i < COLUMNS * DIM; i++) w[i] = (float)test_normal();
    for (int i = 0; i < COLUMNS; i++) bias[i] = 0;
    p.s.bias = skl_vector(SKL_F32, bias, COLUMNS);
    p.threads = 1;
    return p;
}

static struct skl_outputs lists_of(int64_t k)
{
    struct skl_outputs out = skl_no_outputs();
    out.topk_ids = skl_matrix(SKL_I32, ids, ROWS, k), out.topk_logprobs = skl_matrix(SKL_F32, logprobs, ROWS, k);
    out.tail_logprob = skl_vector(SKL_F32, tail, ROWS), out.lse_s = skl_vector(SKL_F32, lse, ROWS);
    memset(ids, 0x55, sizeof ids), memset(logprobs, 0x55, sizeof logprobs), memset(tail, 0x55, sizeof tail);
    return out;
}

/* NaN counts as +inf among the ids, in its row alone, and the row's numbers are NaN. */
static void not_numbers(void)
{
    struct skl_problem p = vocabulary();
    struct skl_outputs out = lists_of(5);
    for (int d = 0; d < DIM; d++) w[6000 * DIM + d] = NAN, x[3 * DIM + d] = d == 0 ? INFINITY : 0;
    CHECK_STATUS(skl_topk(&p, &out), SKL_OK);
    for (int i = 0; i < ROWS; i++) {
        CHECK(i == 3 || ids[i * 5] == 6000, "row %d begins with %d", i, (int)ids[i * 5]);
        CHECK(isnan(lse[i]) && isnan(tail[i]) && isnan(logprobs[i * 5 + 4]), "row %d: %g %g", i, (double)lse[i],
              (double)tail[i]);
        for (int k = 0; k < 5; k++)
            for (int n = 0; n < k; n++) CHECK(ids[i * 5 + k] != ids[i * 5 + n], "row %d has an id twice", i);
    }
    int at = 0; /* of the row with +inf: its first columns of +inf or NaN */
    for (int j = 0; at < 5; j++)
        if (w[j * DIM] > 0 || isnan(w[j * DIM]))
            CHECK(ids[3 * 5 + at] == j, "of +inf, id %d is %d", at, (int)ids[3 * 5 + at]), at++;
    p = vocabulary(), out = lists_of(5);
    x[3 * DIM] = NAN;
    CHECK_STATUS(skl_topk(&p, &out), SKL_OK);
    for (int i = 0; i < ROWS; i++) CHECK(isnan(lse[i]) == (i == 3), "NaN of row 3 and row %d", i);
    for (int k = 0; k < 5; k++) CHECK(ids[3 * 5 + k] == k, "of all NaN, id %d is %d", k, (int)ids[3 * 5 + k]);
}

/* Columns of -inf follow the others, in their order; nothing but those has no softmax. */
static void nothing_likely(void)
{
    struct skl_problem p = vocabulary();
    struct skl_outputs out = lists_of(9);
    for (int j = 0; j < COLUMNS; j++) bias[j] = j == 4000 || j == 2 ? 0.0f : -INFINITY;
    CHECK_STATUS(skl_topk(&p, &out), SKL_OK);
    for (int i = 0; i < ROWS; i++) {
        static const int32_t rest[7] = {0, 1, 3, 4, 5, 6, 7};
        CHECK(ids[i * 9] + ids[i * 9 + 1] == 4002, "row %d begins with %d, %d", i, (int)ids[i * 9],
              (int)ids[i * 9 + 1]);
        CHECK(memcmp(ids + i * 9 + 2, rest, sizeof rest) == 0, "row %d goes on with %d", i, (int)ids[i * 9 + 2]);
        CHECK(logprobs[i * 9 + 2] == -INFINITY && tail[i] == -INFINITY, "row %d: %g %g", i, (double)logprobs[i * 9 + 2],
              (double)tail[i]);
    }
    for (int j = 0; j < COLUMNS; j++) bias[j] = -INFINITY;
    CHECK_STATUS(skl_topk(&p, &out), SKL_OK);
    CHECK(ids[0] == 0 && ids[8] == 8 && isnan(logprobs[0]) && isnan(tail[0]) && lse[0] == -INFINITY,
          "of nothing: %d %g %g %g", (int)ids[0], (double)logprobs[0], (double)tail[0], (double)lse[0]);
}

/* One column of nearly all mass: 1 - sum would be 0, the rest is e^-80 and less. */
static void sure(void)
{
    struct skl_problem p = vocabulary();
    struct skl_outputs out = lists_of(1);
    for (int d = 0; d < DIM; d++) w[5000 * DIM + d] = 0;
    bias[5000] = 100;
    CHECK_STATUS(skl_topk(&p, &out), SKL_OK);
    for (int i = 0; i < ROWS; i++) {
        double sum = 0;
        for (int j = 0; j < COLUMNS; j++) {
            double z = 0;
            for (int d = 0; d < DIM; d++) z += (double)x[i * DIM + d] * (double)w[j * DIM + d];
            sum += j == 5000 ? 0 : exp(z);
        }
        CHECK(ids[i] == 5000 && logprobs[i] == 0, "row %d: %d", i, (int)ids[i]);
        CHECK_NEAR(tail[i], log(sum) - 100, 1e-4, "the tail");
    }
}

/* Both zeros are equal, and of equal logits the lower id comes first: in one chunk of columns and across them. */
static void zeros(void)
{
    struct skl_problem p = vocabulary();
    struct skl_outputs out = lists_of(MOST);
    for (int j = 0; j < COLUMNS; j++)
        for (int d = 0; d < DIM; d++) w[j * DIM + d] = d ? 0.0f : j % 3 == 1 ? -0.0f : 0.0f;
    for (int j = 0; j < COLUMNS; j++) bias[j] = j % 1000 == 999 ? 1.0f : -0.0f;
    CHECK_STATUS(skl_topk(&p, &out), SKL_OK);
    for (int i = 0; i < ROWS; i++)
        for (int k = 0; k < MOST; k++)
            CHECK(ids[i * MOST + k] == (k < 7 ? 1000 * k + 999 : k - 7), "id %d of row %d is %d", k, i,
                  (int)ids[i * MOST + k]);
}

/* ------------------------------------------------------------------------------------------------ the call --- */

static void threads(void)
{
    static int32_t first_ids[ROWS * MOST];
    static float first_logprobs[ROWS * MOST], first_tail[ROWS];
    struct skl_problem p = vocabulary();
    for (int n = 1; n <= 7; n += 2) {
        struct skl_outputs out = lists_of(100);
        p.threads = n;
        CHECK_STATUS(skl_topk(&p, &out), SKL_OK);
        if (n == 1)
            memcpy(first_ids, ids, sizeof ids), memcpy(first_logprobs, logprobs, sizeof ids),
                memcpy(first_tail, tail, sizeof tail);
        CHECK(!memcmp(first_ids, ids, sizeof ids) && !memcmp(first_logprobs, logprobs, sizeof ids) &&
                  !memcmp(first_tail, tail, sizeof tail),
              "%d threads give other bits", n);
    }
}

static int stop(void *data, double fraction)
{
    ++*(int *)data;
    return fraction >= 0;
}

static void stopping(void)
{
    struct skl_problem p = vocabulary();
    struct skl_outputs out = lists_of(4);
    int calls = 0;
    p.progress = stop, p.progress_data = &calls;
    CHECK_STATUS(skl_topk(&p, &out), SKL_CANCELLED);
    CHECK(calls == 1, "asked %d times", calls);
}

/* Bytes do not grow with rows, nor with columns beyond some; no row, no column, no memory. */
static void memory(void)
{
    struct skl_problem p = vocabulary();
    struct skl_outputs out = lists_of(4);
    size_t bytes[4];
    int64_t sizes[4][2] = {{8192, 200000}, {1 << 20, 200000}, {8192, 1 << 30}, {0, 4}};
    for (int i = 0; i < 4; i++) {
        p.s.a.shape[0] = sizes[i][0], p.s.b.shape[0] = sizes[i][1], p.s.a.stride[0] = p.s.b.stride[0] = 0;
        p.s.bias.data = NULL;
        out.topk_ids.shape[0] = sizes[i][0], out.topk_ids.data = (void *)((uintptr_t)1 << 44); /* nobody reads it */
        out.topk_logprobs.data = out.tail_logprob.data = out.lse_s.data = NULL;
        CHECK_STATUS(skl_workspace_size(SKL_CALL_TOPK, &p, &out, &bytes[i]), SKL_OK);
    }
    CHECK(bytes[0] == bytes[1] && bytes[2] <= bytes[0] + bytes[0] / 8 && bytes[3] == 0, "%zu %zu %zu %zu bytes",
          bytes[0], bytes[1], bytes[2], bytes[3]);
    CHECK(bytes[0] < (size_t)64 << 20, "%zu bytes", bytes[0]);
    p = vocabulary(), out = lists_of(4);
    p.columns = 0, p.s.b.shape[0] = 0, p.s.bias.shape[0] = 0; /* nothing to see */
    CHECK_STATUS(skl_topk(&p, &out), SKL_OK);
    for (int i = 0; i < ROWS; i++)
        CHECK(ids[i * 4] == -1 && ids[i * 4 + 3] == -1 && logprobs[i * 4] == -INFINITY && tail[i] == -INFINITY &&
                  lse[i] == -INFINITY,
              "row %d of no columns: %d %g", i, (int)ids[i * 4], (double)logprobs[i * 4]);
}

static void refused(const char *sentence, const struct skl_problem *p, const struct skl_outputs *out,
                    enum skl_status status)
{
    CHECK_STATUS(skl_topk(p, out), status);
    CHECK(strstr(skl_last_error(), sentence), "\"%s\" does not say \"%s\"", skl_last_error(), sentence);
}

static void border(void)
{
    static struct skl_labels labels = {.struct_size = sizeof labels};
    static struct skl_listed listed = {.struct_size = sizeof listed};
    static struct skl_shard shard = {.struct_size = sizeof shard};
    struct skl_problem good = vocabulary(), p = good;
    struct skl_outputs out = lists_of(4), o = out;
    double value = 7;
#define REFUSED(change, sentence)                                       \
    do {                                                                \
        change;                                                         \
        refused(sentence, &p, &o, SKL_BAD_ARGUMENT), p = good, o = out; \
    } while (0)
    REFUSED(p.t.a = p.s.a, "cannot use t.a with skl_topk");
    REFUSED(p.t.b = p.s.b, "cannot use t.b with skl_topk");
    REFUSED(p.t.bias = p.s.bias, "cannot use t.bias with skl_topk");
    REFUSED(p.labels = &labels, "cannot use labels with skl_topk");
    REFUSED(p.listed = &listed, "cannot use listed with skl_topk");
    REFUSED(p.shard = &shard, "cannot use shard with skl_topk");
    REFUSED(p.mass_ids = skl_matrix(SKL_I32, ids, ROWS, 4), "cannot use mass_ids with skl_topk");
    REFUSED(p.lse_t = out.lse_s, "cannot use lse_t with skl_topk");
    REFUSED(p.mix_t = 2, "cannot use mix_t with skl_topk");
    REFUSED(p.support = out.topk_ids, "cannot use support with skl_topk");
    REFUSED(p.sink_s = out.lse_s, "cannot use sink_s with skl_topk");
    REFUSED(p.pool_block = 8, "cannot use pool_block with skl_topk");
    REFUSED(p.temperature = 0, "temperature = 0");
    REFUSED(p.columns = COLUMNS + 1, "columns = 7001");
    REFUSED((p.s.b.shape[0] = p.s.bias.shape[0] = (int64_t)1 << 31, p.s.b.stride[0] = p.s.bias.stride[0] = 0),
            "an id has 32 bits");
    REFUSED(p.workspace_limit = 1, "workspace_limit = 1");
    REFUSED(o.value = &value, "out.value");
    REFUSED(o.loss = out.lse_s, "out.loss.data");
    REFUSED(o.entropy_s = out.lse_s, "skl_topk does not tell it");
    REFUSED(o.s.a = p.s.a, "gradients in skl_topk");
    REFUSED(memset(&o.topk_ids, 0, sizeof o.topk_ids), "out.topk_ids.data = NULL");
    REFUSED(o.topk_ids.dtype = SKL_I64, "out.topk_ids.dtype");
    REFUSED(o.topk_ids.shape[0] = 3, "out.topk_ids.shape[0] = 3");
    REFUSED(o.topk_ids.shape[1] = 0, "out.topk_ids.shape[1] = 0");
    REFUSED(o.topk_ids.stride[0] = 3, "must not share memory");
    REFUSED(o.topk_logprobs.shape[1] = 3, "out.topk_logprobs.shape[1] = 3");
    REFUSED(o.topk_logprobs.dtype = SKL_BF16, "out.topk_logprobs.dtype");
    REFUSED(o.topk_logprobs.data = ids, "shares memory with out.topk_ids");
    REFUSED(o.tail_logprob.data = x, "shares memory with s.a");
    REFUSED(o.tail_logprob.shape[0] = 3, "out.tail_logprob.shape[0] = 3");
    p.s.a = skl_on_cuda(p.s.a, 0), p.s.b = skl_on_cuda(p.s.b, 0);
    refused("skl_topk on CUDA", &p, &o, SKL_UNSUPPORTED);
    p = good, p.t.a = p.s.a, p.t.b = p.s.b;
    CHECK_STATUS(skl_value(&p, &o), SKL_BAD_ARGUMENT);
    CHECK(strstr(skl_last_error(), "only skl_topk makes lists"), "\"%s\"", skl_last_error());
    memset(&o.topk_ids, 0, sizeof o.topk_ids), memset(&o.topk_logprobs, 0, sizeof o.topk_logprobs);
    CHECK_STATUS(skl_value(&p, &o), SKL_BAD_ARGUMENT);
    CHECK(strstr(skl_last_error(), "out.tail_logprob"), "\"%s\"", skl_last_error());
    CHECK(ids[0] == 0x55555555 && value == 7, "something was written");
}

int main(void)
{
    test_begin("test_topk");
    random_cases(test_cases(150, 20));
    not_numbers();
    nothing_likely();
    sure();
    zeros();
    threads();
    stopping();
    memory();
    border();
    return test_end();
}
