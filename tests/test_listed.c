/* SPDX-License-Identifier: Apache-2.0
 * Listed teachers against their definition in double, over random cases and all ways to run them; and what the border
 * refuses. */
#include "cases.h"
#include "kit/listed.h"

static void random_cases(int kind, int cases)
{
    for (int n = 0; n < cases; n++) {
        struct kit_listed_case c = kit_random_listed(&test_numbers, kind);
        for (int isa = SKL_ISA_BASELINE; isa <= SKL_ISA_NEONBF16; isa++) {
            struct kit_random same = test_numbers;
            if (!skl_isa_available((enum skl_isa)isa))
                continue;
            c.isa = isa;
            struct kit_listed *f = kit_build_listed(&c, &same, NULL);
            for (int way = 0; way < KIT_LISTED_WAYS; way++) {
                struct kit_listed_outcome o = kit_run_listed(f, (enum kit_listed_way)way);
                CHECK(kit_listed_right(&o),
                      "%s %s %s, rows %d cols %d dim %d k %d labels %d weights %d T %g: status %d (%s), loss %.2g "
                      "value %.2g da "
                      "%.2g db %.2g dbias %.2g of their bounds",
                      kit_listed_kind_names[kind], kit_listed_way_names[way], skl_isa_name((enum skl_isa)isa),
                      (int)c.rows, (int)c.cols, (int)c.dim, (int)c.k, c.labels, c.weights, c.temperature, (int)o.status,
                      o.status ? skl_last_error() : "", o.used[KIT_LISTED_LOSS], o.used[KIT_LISTED_VALUE],
                      o.used[KIT_LISTED_GRAD_A], o.used[KIT_LISTED_GRAD_B], o.used[KIT_LISTED_GRAD_BIAS]);
            }
            kit_destroy_listed(f);
        }
        kit_bits(&test_numbers);
    }
}

/* ------------------------------------------------------------------------------------------------- border --- */

static void refused(const char *sentence, const struct skl_problem *p, const struct skl_outputs *out,
                    enum skl_status status)
{
    CHECK_STATUS(skl_value(p, out), status);
    CHECK(strstr(skl_last_error(), sentence), "\"%s\" does not say \"%s\"", skl_last_error(), sentence);
}

static void border(void)
{
    enum { ROWS = 4, COLUMNS = 10, DIM = 3, K = 2 };
    static float a[ROWS * DIM], b[COLUMNS * DIM], logprobs[ROWS * K], rest[ROWS], row[ROWS];
    static int32_t ids[ROWS * K], other[ROWS];
    for (int i = 0; i < ROWS * K; i++) ids[i] = i, logprobs[i] = -1;
    struct skl_tensor x = skl_matrix(SKL_F32, a, ROWS, DIM), w = skl_matrix(SKL_F32, b, COLUMNS, DIM), none = {0};
    struct skl_listed
        l = {sizeof l, skl_matrix(SKL_I32, ids, ROWS, K), skl_matrix(SKL_F32, logprobs, ROWS, K), none, 0, 0, 0},
        bad = l;
    struct skl_problem good = skl_linear(x, w, none, none), p;
    double value = 7;
    struct skl_outputs out = skl_no_outputs(), o;
    good.listed = &bad, p = good;
    out.value = &value, o = out;
#define REFUSED(change, sentence)                                                \
    do {                                                                         \
        change;                                                                  \
        refused(sentence, &p, &o, SKL_BAD_ARGUMENT), bad = l, p = good, o = out; \
    } while (0)
    REFUSED(bad.struct_size = 8, "listed.struct_size = 8");
    REFUSED(bad.tail = 4, "listed.tail = 4");
    REFUSED(bad.tail = -1, "listed.tail = -1");
    REFUSED(bad.reserved = 1, "listed.reserved = 1");
    REFUSED(bad.stored_temperature = -1, "listed.stored_temperature = -1");
    REFUSED(bad.stored_temperature = NAN, "listed.stored_temperature = nan");
    REFUSED(bad.ids.dtype = SKL_F32, "listed.ids.dtype");
    REFUSED(bad.ids.shape[0] = ROWS - 1, "listed.ids.shape[0] = 3");
    REFUSED(bad.ids.ndim = 1, "listed.ids.ndim = 1");
    REFUSED(bad.ids.data = NULL, "listed.ids.data = NULL");
    REFUSED(bad.logprobs.dtype = SKL_I32, "listed.logprobs.dtype");
    REFUSED(bad.logprobs.shape[1] = 1, "listed.logprobs.shape[1] = 1");
    REFUSED(bad.tail_logprob = skl_vector(SKL_F32, rest, ROWS - 1), "listed.tail_logprob.shape[0] = 3");
    REFUSED(p.divergence = SKL_JSD, "divergence = 2 with a listed teacher");
    REFUSED((p.divergence = SKL_REVERSE_KL, bad.tail = SKL_TAIL_ZERO), "divergence = 1 with a listed teacher");
    REFUSED((p.divergence = SKL_REVERSE_KL, bad.tail = SKL_TAIL_TEACHER), "divergence = 1 with a listed teacher");
    REFUSED(p.t.a = x, "with t.a: there is one teacher");
    REFUSED(p.t.b = w, "with t.b: there is one teacher");
    REFUSED(p.begin = skl_vector(SKL_I32, other, ROWS), "cannot use begin");
    REFUSED(p.end = skl_vector(SKL_I32, other, ROWS), "cannot use end");
    REFUSED(o.lse_t = skl_vector(SKL_F32, row, ROWS), "out.lse_t");
    REFUSED(o.top1_t = skl_vector(SKL_I32, other, ROWS), "a listed teacher does not tell it");
    REFUSED(o.tv = skl_vector(SKL_F32, row, ROWS), "a listed teacher does not tell it");
    REFUSED(o.loss = skl_vector(SKL_F32, logprobs, ROWS), "it shares memory with listed.logprobs");
    ids[5] = COLUMNS;
    REFUSED((void)0, "listed.ids[2][1] = 10: it must be a column, 0 to 9, or -1 (empty)");
    ids[5] = -2;
    REFUSED((void)0, "listed.ids[2][1] = -2");
    ids[5] = 5, logprobs[6] = 0.5F;
    REFUSED((void)0, "listed.logprobs[3] with a sum of 2.01");
    logprobs[6] = -1, rest[1] = 0.1F;
    REFUSED(bad.tail_logprob = skl_vector(SKL_F32, rest, ROWS), "listed.tail_logprob[1] = 0.1");
    p.use = SKL_ATTENTION;
    CHECK_STATUS(skl_value(&p, &out), SKL_BAD_ARGUMENT);
    p = good, p.listed = NULL;
    refused("t.a", &p, &out, SKL_BAD_ARGUMENT);
    struct skl_state state[ROWS];
    CHECK_STATUS(skl_partial(&good, NULL, state), SKL_BAD_ARGUMENT);
    CHECK(strstr(skl_last_error(), "lists need all columns"), "\"%s\"", skl_last_error());
    struct skl_outputs saved = skl_no_outputs(), grads = saved;
    grads.s.a = skl_matrix(SKL_F32, row, ROWS, 1);
    static float da[ROWS * DIM];
    grads.s.a = skl_matrix(SKL_F32, da, ROWS, DIM);
    CHECK_STATUS(skl_backward(&good, &saved, &grads), SKL_BAD_ARGUMENT);
    CHECK(strstr(skl_last_error(), "saved.m_rest"), "\"%s\"", skl_last_error());
    CHECK(value == 7, "something was written");
    CHECK_STATUS(skl_value(&good, &out), SKL_OK);
    CHECK(value != 7, "nothing was written");
}

/* Renormalised, the columns off the list do not exist, however large they are: also where the LSE of all columns is
 * asked for, under which those of the list have no mass at all. */
static void far_below(int reverse)
{
    static float a[] = {1}, b[] = {3000, 0, 1}, logprobs[] = {0, 0}, lse, da, db[3];
    static int32_t ids[] = {2, 1};
    struct skl_tensor none = {0};
    struct skl_listed l = {sizeof l, skl_matrix(SKL_I32, ids, 1, 2), skl_matrix(SKL_F32, logprobs, 1, 2),
                           none,     SKL_TAIL_RENORMALISE,           0,
                           0};
    struct skl_problem p = skl_linear(skl_matrix(SKL_F32, a, 1, 1), skl_matrix(SKL_F32, b, 3, 1), none, none);
    struct skl_outputs out = skl_no_outputs();
    double value, q = 1 / (1 + exp(-1)),
                  kl = reverse ? q * log(2 * q) + (1 - q) * log(2 * (1 - q)) : -log(4 * q * (1 - q)) / 2;
    double dz = reverse ? q * (log(2 * q) - kl) : q - 0.5;
    p.listed = &l, p.divergence = reverse ? SKL_REVERSE_KL : SKL_FORWARD_KL;
    out.value = &value, out.lse_s = skl_vector(SKL_F32, &lse, 1);
    out.s.a = skl_matrix(SKL_F32, &da, 1, 1), out.s.b = skl_matrix(SKL_F32, db, 3, 1);
    CHECK_STATUS(skl_value_and_grad(&p, &out), SKL_OK);
    CHECK(lse == 3000, "LSE %g", (double)lse);
    CHECK_NEAR(value, kl, 1e-6, "KL of a list far below");
    CHECK_NEAR(da, dz, 1e-6, "da of a list far below");
    CHECK(db[0] == 0 && fabs((double)db[2] - dz) < 1e-6 && fabs((double)db[1] + dz) < 1e-6, "db %g %g %g",
          (double)db[0], (double)db[1], (double)db[2]);
}

int main(void)
{
    test_begin("test_listed");
    for (int kind = 0; kind < KIT_LISTED_KINDS; kind++) random_cases(kind, test_cases(60, 6));
    far_below(0), far_below(1);
    border();
    return test_end();
}
