/* SPDX-License-Identifier: Apache-2.0
 * Lists of the largest logits on a device, against their definition in double (kit/topk.c); lists that are known in
 * advance; slabs; the same bits under every schedule. */
#include "families.h"

#include "../../kit/topk.h"

enum { ROWS = 5, COLUMNS = 3000 };
#include "../vocabulary.h"

/* ------------------------------------------------------------------------------------------ random problems --- */

static void check_lists(struct kit_topk *f, const char *what)
{
    char text[800];
    struct kit_topk_outcome o = kit_run_topk(f);
    kit_describe_topk(&f->c, text, sizeof text);
    CHECK(kit_topk_right(&o),
          "%s: status %d (%s), ids %.2g logprobs %.2g tail %.2g LSE %.2g of their bounds, expected <= 1, first in row "
          "%d%s: %s",
          what, (int)o.status, o.status ? skl_last_error() : "", o.used[KIT_TOPK_IN_IDS], o.used[KIT_TOPK_IN_LOGPROBS],
          o.used[KIT_TOPK_IN_TAIL], o.used[KIT_TOPK_IN_LSE], (int)o.row, o.spilt ? ", spilt" : "", text);
    test_context("%s", text);
    test_device_clean(what);
    test_context("%s", "");
    test_device.total = (struct emu_report){0};
}

/* With as much memory as it likes, and with the least: then the columns come in many slabs. */
static void check_case(const struct kit_topk_case *c)
{
    struct kit_topk f;
    kit_build_topk(&f, c, &test_device_memory, &test_numbers);
    f.of.allow.rows = 3;
    check_lists(&f, "lists");
    struct skl_problem p = kit_topk_problem(&f);
    struct skl_outputs out = kit_topk_outputs(&f);
    f.p.workspace_limit = kit_least_limit(&p, SKL_CALL_TOPK, &out);
    check_lists(&f, "lists, least memory");
    kit_destroy_topk(&f);
}

static void random_cases(int n)
{
    for (int k = 0; k < n; k++) {
        struct kit_topk_case c = kit_random_device_topk(&test_numbers);
        if (c.of.cols > 1500)
            c.of.rows = c.of.rows < 6 ? c.of.rows : 6, c.of.heads = c.of.key_heads[S] = 1, c.of.batch = 1;
        kit_shrink(&c.of, 1e5);
        c.k = c.k < c.of.cols + 2 ? c.k : c.of.cols + 2;
        check_case(&c);
    }
}

/* More rows than a tile and than a slab has, several chunks of the dimension, lists longer than a block has threads and
 * than one has room for: so that the least picks are kept again and again. Equal logits everywhere, or none. */
static void large_cases(void)
{
    static const int types[] = {SKL_BF16, SKL_F16, SKL_F32};
    for (int k = 0; k < test_cases(6, 3); k++) {
        struct kit_topk_case c = {.of = kit_linear_case(k % 2 ? 140 : 6, k % 2 ? 260 : 2600, k % 3 == 2 ? 5 : 72),
                                  .k = k % 2 ? 150 : 1 + 30 * k,
                                  .asked = KIT_TOPK_ALL,
                                  .whole = k > 2};
        c.of.dtype[S] = c.of.dtype[T] = types[k % 3], c.of.place = KIT_ALIGNED;
        check_case(&c);
    }
}

/* ------------------------------------------------------------------------------------------------- by hand --- */

static struct skl_tensor on(struct skl_tensor t)
{
    return t.data ? skl_on_cuda(t, 0) : t;
}

static enum skl_status make_lists(const struct skl_problem *p, const struct skl_outputs *out)
{
    struct skl_problem there = *p;
    struct skl_outputs to = *out;
    there.s.a = on(p->s.a), there.s.b = on(p->s.b), there.s.bias = on(p->s.bias);
    to.topk_ids = on(out->topk_ids), to.topk_logprobs = on(out->topk_logprobs);
    to.tail_logprob = on(out->tail_logprob), to.lse_s = on(out->lse_s);
    emu_written(&m, sizeof m);
    enum skl_status status = skl_topk(&there, &to);
    test_device_clean("known lists");
    return status;
}

/* Of packed sequences ids count from the first key of the row's own; offsets that cannot be make every row NaN. */
static void packed(void)
{
    enum { N = 6, M = 9, D = 2, K = 4 };
    static struct {
        float q[N * D], k[M * D], lse[N], tail[N];
        int32_t cu_q[3], cu_k[3], ids[N * K];
    } a;
    struct skl_problem p = skl_attention((struct skl_tensor){0}, (struct skl_tensor){0}, (struct skl_tensor){0},
                                         (struct skl_tensor){0});
    struct skl_outputs out = skl_no_outputs();
    int64_t q[4] = {1, 1, N, D}, k[4] = {1, 1, M, D}, rows[3] = {1, 1, N}, lists[4] = {1, 1, N, K};
    struct skl_tensor tensor = {.device = SKL_CUDA, .ndim = 4};
    for (int i = 0; i < N; i++) a.q[i * D] = 1;
    for (int j = 0; j < M; j++) a.k[j * D] = (float)((j * 5) % M);
    a.cu_q[1] = 2, a.cu_q[2] = N, a.cu_k[1] = 4, a.cu_k[2] = M;
#define TENSOR(member, name, type, number, sizes)                                           \
    do {                                                                                    \
        tensor.data = a.name, tensor.dtype = (type), tensor.ndim = (number);                \
        for (int d = (number)-1, step = 1; d >= 0; d--)                                     \
            tensor.shape[d] = (sizes)[d], tensor.stride[d] = step, step *= (int)(sizes)[d]; \
        (member) = tensor;                                                                  \
    } while (0)
    TENSOR(p.s.a, q, SKL_F32, 4, q);
    TENSOR(p.s.b, k, SKL_F32, 4, k);
    TENSOR(out.topk_ids, ids, SKL_I32, 4, lists);
    TENSOR(out.lse_s, lse, SKL_F32, 3, rows);
    TENSOR(out.tail_logprob, tail, SKL_F32, 3, rows);
#undef TENSOR
    p.cu_seqlens_q = on(skl_vector(SKL_I32, a.cu_q, 3)), p.cu_seqlens_k = on(skl_vector(SKL_I32, a.cu_k, 3));
    for (int bad = 0; bad < 2; bad++) {
        a.cu_k[1] = bad ? M + 1 : 4;
        emu_adopt(&a, sizeof a), emu_written(&a, sizeof a);
        CHECK_STATUS(skl_topk(&p, &out), SKL_OK);
        test_device_clean("packed sequences");
        for (int i = 0; i < N; i++) {
            /* keys 0 5 1 6 | 2 7 3 8 4 */
            static const int32_t want[2][K] = {{3, 1, 2, 0}, {3, 1, 4, 2}}, none[K] = {-1, -1, -1, -1};
            CHECK(memcmp(a.ids + i * K, bad ? none : want[i >= 2], sizeof none) == 0, "row %d: %d", i,
                  (int)a.ids[i * K]);
            CHECK(bad ? isnan(a.lse[i]) && isnan(a.tail[i]) : isfinite(a.lse[i]), "row %d: %g %g", i, (double)a.lse[i],
                  (double)a.tail[i]);
        }
        emu_release(&a);
    }
}

/* The order of blocks, warps and lanes is not ours to choose, and changes no bit. */
static void schedules(int indexer, int type)
{
    struct kit_topk_case c = {.of = indexer ? kit_attention_case(6, 700, 8) : kit_linear_case(6, 1500, 24),
                              .indexer = indexer,
                              .k = 40,
                              .asked = KIT_TOPK_ALL};
    struct kit_topk f;
    unsigned char *first[4] = {NULL};
    c.of.dtype[S] = type, c.of.place = KIT_ALIGNED;
    kit_build_topk(&f, &c, &test_device_memory, &test_numbers);
    struct kit_tensor *each[] = {&f.ids, &f.logprobs, &f.tail, &f.lse};
    struct skl_problem p = kit_topk_problem(&f);
    for (int order = EMU_FORWARD; order <= EMU_RANDOM; order++) {
        test_device.options = (struct emu_options){.order = (enum emu_order)order, .seed = 3};
        struct skl_outputs out = kit_topk_outputs(&f);
        CHECK_STATUS(skl_topk(&p, &out), SKL_OK);
        test_device_clean("schedules");
        for (int i = 0; i < 4; i++) {
            size_t bytes = each[i]->memory.size;
            if (!first[i])
                first[i] = memcpy(malloc(bytes), each[i]->there, bytes);
            CHECK(memcmp(first[i], each[i]->there, bytes) == 0, "schedule %d gives other bits of %s", order,
                  kit_topk_names[i]);
        }
    }
    test_device.options = (struct emu_options){0};
    for (int i = 0; i < 4; i++) free(first[i]);
    kit_destroy_topk(&f);
}

/* Memory does not grow with the rows, nor with the columns beyond some: a slab, and the picks of its rows. */
static void memory(void)
{
    struct skl_problem p = vocabulary();
    struct skl_outputs out = lists_of(64);
    int64_t sizes[3][2] = {{8192, 200000}, {1 << 20, 200000}, {8192, 1 << 29}};
    size_t bytes[3];
    for (int i = 0; i < 3; i++) {
        p.s.a.shape[0] = sizes[i][0], p.s.b.shape[0] = sizes[i][1], p.s.a.stride[0] = p.s.b.stride[0] = 0;
        p.s.a = on(p.s.a), p.s.b = on(p.s.b), p.s.bias.data = NULL;
        out.topk_ids.shape[0] = sizes[i][0], out.topk_ids.data = (void *)((uintptr_t)1 << 44); /* nobody reads it */
        out.topk_logprobs.data = out.tail_logprob.data = out.lse_s.data = NULL;
        out.topk_ids = on(out.topk_ids);
        CHECK_STATUS(skl_workspace_size(SKL_CALL_TOPK, &p, &out, &bytes[i]), SKL_OK);
    }
    /* 8 bytes and an eighth a row: what it sees, as in every call. */
    CHECK(bytes[1] < bytes[0] + ((size_t)10 << 20) && bytes[2] < bytes[0] + ((size_t)1 << 20), "%zu %zu %zu bytes",
          bytes[0], bytes[1], bytes[2]);
    CHECK(bytes[0] < (size_t)130 << 20, "%zu bytes", bytes[0]);
}

int main(void)
{
    test_begin("test_topk");
    test_device_begin();
    test_device.processors = 8;
    random_cases(test_cases(getenv("STREAMKL_TEST_LONG") ? 400 : 24, 8));
    large_cases();
    emu_adopt(&m, sizeof m);
    known_lists();
    memory();
    emu_release(&m);
    packed();
    schedules(0, SKL_F32), schedules(0, SKL_BF16), schedules(1, SKL_F16);
    for (int i = 0; i < test_list_count; i++)
        if (strcmp(test_list[i].source, "topk_kernels") == 0 || strstr(test_list[i].role, "scores"))
            CHECK(strcmp(test_list[i].role, "label_scores") == 0 || test_device_ran(test_list[i].kernel),
                  "no case ran %s", test_list[i].kernel);
    return test_end();
}
