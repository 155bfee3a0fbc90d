/* SPDX-License-Identifier: Apache-2.0
 * Lists of the largest logits against their definition in double, over random cases and instruction sets; equals, NaN
 * and infinities; threads, memory, stopping; and what the border refuses. */
#include "cases.h"
#include "kit/topk.h"

enum { ROWS = 70, COLUMNS = 7000 };
#include "vocabulary.h"

static enum skl_status make_lists(const struct skl_problem *p, const struct skl_outputs *out)
{
    return skl_topk(p, out);
}

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

/* ------------------------------------------------------------------------------------------------ the call --- */

static void threads(void)
{
    static struct memory first;
    struct skl_problem p = vocabulary();
    for (int n = 1; n <= 7; n += 2) {
        struct skl_outputs out = lists_of(100);
        p.threads = n;
        CHECK_STATUS(skl_topk(&p, &out), SKL_OK);
        if (n == 1)
            first = m;
        CHECK(!memcmp(&first, &m, sizeof m), "%d threads give other bits", n);
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

/* Bytes do not grow with rows, nor with columns beyond some; no row, no memory. */
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
}

static void refused(const char *sentence, const struct skl_problem *p, const struct skl_outputs *out)
{
    CHECK_STATUS(skl_topk(p, out), SKL_BAD_ARGUMENT);
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
#define REFUSED(change, sentence)                     \
    do {                                              \
        change;                                       \
        refused(sentence, &p, &o), p = good, o = out; \
    } while (0)
    REFUSED(p.t.a = p.s.a, "cannot use t.a with skl_topk");
    REFUSED(p.t.b = p.s.b, "cannot use t.b with skl_topk");
    REFUSED(p.t.bias = p.s.bias, "cannot use t.bias with skl_topk");
    REFUSED(p.labels = &labels, "cannot use labels with skl_topk");
    REFUSED(p.listed = &listed, "cannot use listed with skl_topk");
    REFUSED(p.shard = &shard, "cannot use shard with skl_topk");
    REFUSED(p.mass_ids = skl_matrix(SKL_I32, m.ids, ROWS, 4), "cannot use mass_ids with skl_topk");
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
    REFUSED(o.topk_logprobs.data = m.ids, "shares memory with out.topk_ids");
    REFUSED(o.tail_logprob.data = m.x, "shares memory with s.a");
    REFUSED(o.tail_logprob.shape[0] = 3, "out.tail_logprob.shape[0] = 3");
    p = good, p.t.a = p.s.a, p.t.b = p.s.b;
    CHECK_STATUS(skl_value(&p, &o), SKL_BAD_ARGUMENT);
    CHECK(strstr(skl_last_error(), "only skl_topk makes lists"), "\"%s\"", skl_last_error());
    memset(&o.topk_ids, 0, sizeof o.topk_ids), memset(&o.topk_logprobs, 0, sizeof o.topk_logprobs);
    CHECK_STATUS(skl_value(&p, &o), SKL_BAD_ARGUMENT);
    CHECK(strstr(skl_last_error(), "out.tail_logprob"), "\"%s\"", skl_last_error());
    CHECK(m.ids[0] == 0x55555555 && value == 7, "something was written");
}

int main(void)
{
    test_begin("test_topk");
    random_cases(test_cases(150, 20));
    known_lists();
    threads();
    stopping();
    memory();
    border();
    return test_end();
}
