/* SPDX-License-Identifier: Apache-2.0
 *
 * What a call on CUDA tensors asks of the device: the host side (src/cuda) on a table that only writes down what it is
 * asked for. Part of every build, since it needs nothing of CUDA; nothing is computed, and every address is made up.
 */
#include "../src/cuda/host/run.h"
#include "test.h"

int skl_cuda_built(void)
{
    return 1;
}

int skl_cuda_devices(void)
{
    return 1;
}

/* --------------------------------------------------------------------------------------------- the device --- */

enum { MOST = 64 };

static struct {
    struct skl_gpu_product product[MOST];
    const struct skl_gpu_scalars *scalars;
    struct skl_gpu_convert cleared[MOST]; /* matrices set to 0 and not yet added to */
    int clears;
    int products, launches, prepared, allocated, inside;
    int cannot_prepare;
    int sink_blocks, sink_pushes;
    int heads_swept, members_made, gathered;
} seen;

/* Addresses that are never mapped, each tensor in a terabyte of its own. */
static void *address(int which)
{
    return (void *)((uintptr_t)(which + 1) << 40);
}

static enum skl_status enter(int index, struct skl_gpu_place *before)
{
    (void)index;
    *before = (struct skl_gpu_place){NULL, 0};
    seen.inside++;
    return SKL_OK;
}

static void leave(const struct skl_gpu_place *before)
{
    (void)before;
    seen.inside--;
}

static enum skl_status properties(int index, struct skl_gpu_properties *p)
{
    (void)index;
    *p = (struct skl_gpu_properties){108, 163 << 10, 80};
    return SKL_OK;
}

static enum skl_status launch(const struct skl_gpu_launch *l, void *stream)
{
    (void)stream;
    CHECK(l->grid_x >= 1 && l->grid_x <= INT32_MAX && l->grid_y >= 1 && l->grid_y <= 65535, "%s: a grid of %lld x %d",
          l->kernel, (long long)l->grid_x, l->grid_y);
    seen.launches++;
    if (!strcmp(l->kernel, "sum_weights"))
        seen.scalars = ((const struct skl_gpu_sum_weights *)l->args)->scalars;
    seen.sink_blocks += strcmp(l->kernel, "sum_sinks") ? 0 : (int)l->grid_x;
    seen.heads_swept += !strcmp(l->kernel, "mixed_bf16_lse"), seen.members_made += !strcmp(l->kernel, "make_members");
    seen.gathered += !strcmp(l->kernel, "gather_heads");
    seen.sink_pushes += !strcmp(l->kernel, "push_sinks");
    const struct skl_gpu_convert *convert = l->args;
    if (!strcmp(l->kernel, "convert"))
        CHECK(convert->all > 0 && l->grid_y == 1 && l->grid_x == (convert->all < INT32_MAX ? convert->all : INT32_MAX),
              "convert: %lld rows by %lld blocks", (long long)convert->all, (long long)l->grid_x);
    if (!strcmp(l->kernel, "convert") && !convert->from && seen.clears < MOST)
        seen.cleared[seen.clears++] = *convert;
    return SKL_OK;
}

static enum skl_status clear(void *data, size_t bytes, void *stream)
{
    (void)stream;
    if (seen.clears < MOST) /* as a matrix of one row of f32 */
        seen.cleared[seen.clears++] = (struct skl_gpu_convert){
            .to = {.data = data, .dtype = SKL_F32}, .rows = 1, .dim = (int32_t)(bytes / 4)};
    return SKL_OK;
}

/* Has exactly this been cleared since it was last asked for? */
static int take_cleared(const struct skl_gpu_product *p)
{
    for (int i = 0; i < seen.clears; i++) {
        struct skl_gpu_convert *x = &seen.cleared[i];
        int whole = x->rows == p->m && x->dim == p->n && x->to.stride[2] == p->ldc;
        int run = x->rows == 1 && x->dim == p->m * p->n && p->ldc == p->n;
        if (x->to.data == (char *)p->c && x->to.dtype == p->dtype_c && x->first == 0 && (whole || run)) {
            x->to.data = NULL;
            return 1;
        }
    }
    return 0;
}

static enum skl_status prepare(void *stream)
{
    CHECK(stream == address(51), "another stream");
    CHECK(seen.launches == 0 && seen.allocated == 0, "prepared in the middle of a call");
    seen.prepared++;
    return seen.cannot_prepare ? skl_fail(SKL_NO_LIBRARY, "no cuBLAS") : SKL_OK;
}

static enum skl_status product(const struct skl_gpu_product *p, void *stream)
{
    CHECK(seen.prepared && stream == address(51), "a product that was not prepared");
    CHECK(p->ldb >= p->n && p->ldc >= p->n && p->lda >= (p->transpose_a ? p->m : p->k),
          "cuBLAS would refuse lda %lld, ldb %lld, ldc %lld for m %lld, n %lld, k %lld", (long long)p->lda,
          (long long)p->ldb, (long long)p->ldc, (long long)p->m, (long long)p->n, (long long)p->k);
    int fresh = p->beta == &seen.scalars->zero;
    CHECK(fresh || p->beta == &seen.scalars->one, "another beta");
    CHECK(take_cleared(p) == fresh, fresh ? "beta is 0 and C was not cleared" : "C was cleared, and beta is 1");
    if (seen.products < MOST)
        seen.product[seen.products] = *p;
    seen.products++;
    return SKL_OK;
}

static enum skl_status allocate(size_t bytes, void *stream, void **data)
{
    (void)bytes, (void)stream;
    seen.allocated++;
    *data = address(50);
    return SKL_OK;
}

static void release(void *data, void *stream)
{
    CHECK(data == address(50), "%p is released", data);
    (void)stream;
}

static const struct skl_gpu recording = {.enter = enter,
                                         .leave = leave,
                                         .properties = properties,
                                         .launch = launch,
                                         .clear = clear,
                                         .prepare = prepare,
                                         .product = product,
                                         .allocate = allocate,
                                         .release = release};
const struct skl_gpu *skl_gpu = &recording;

/* -------------------------------------------------------------------------------------------------- tests --- */

static struct skl_tensor matrix(int which, int64_t rows, int64_t dim)
{
    return skl_on_cuda(skl_matrix(SKL_F32, address(which), rows, dim), 0);
}

/* A matrix of one row may have any stride, 0 from torch's expand(1, d) and 1 from [d, 1].t(): cuBLAS wants a row's
 * length or more all the same. */
static void one_row(void)
{
    static const int64_t strides[] = {0, 1, 63, 64, 100, -64};
    enum { D = 64 };
    for (int i = 0; i < COUNT(strides); i++)
        for (int column = 0; column < 2; column++) {
            struct skl_tensor a = matrix(0, column ? 5 : 1, D), b = matrix(1, column ? 1 : 100, D);
            (column ? &b : &a)->stride[0] = strides[i];
            struct skl_problem p = skl_linear(a, b, a, b);
            struct skl_outputs out = skl_no_outputs();
            out.s.a = matrix(2, a.shape[0], D), out.s.b = matrix(3, b.shape[0], D);
            out.t.a = matrix(4, a.shape[0], D), out.t.b = matrix(5, b.shape[0], D);
            p.stream = address(51);
            memset(&seen, 0, sizeof seen);
            test_context("one %s, stride %lld", column ? "column" : "row", (long long)strides[i]);
            CHECK_STATUS(skl_value_and_grad(&p, &out), SKL_OK);
            CHECK(seen.products == 4, "%d products", seen.products);
            int64_t want = strides[i] > D ? strides[i] : D;
            for (int k = 0; k < 4 && k < seen.products; k++) {
                const struct skl_gpu_product *x = &seen.product[k];
                CHECK(x->ldb == (x->b == address(column) ? want : D), "ldb %lld", (long long)x->ldb);
            }
        }
}

/* Rows that overlap are no matrix for cuBLAS: refused, and the right operand is named. */
static void overlapping(void)
{
    enum { D = 64 };
    for (int which = 0; which < 2; which++)
        for (int wanted = 0; wanted < 2; wanted++) {
            struct skl_tensor a = matrix(0, 5, D), b = matrix(1, 6, D);
            struct skl_outputs out = skl_no_outputs();
            (which ? &b : &a)->stride[0] = 40;
            struct skl_problem p = skl_linear(a, b, a, b);
            p.stream = address(51);
            if (wanted)
                out.s.b = matrix(3, 6, D);
            else
                out.s.a = matrix(3, 5, D);
            int refused = which != wanted;
            memset(&seen, 0, sizeof seen);
            test_context("rows of %s overlap, gradient of %s", which ? "b" : "a", wanted ? "b" : "a");
            CHECK_STATUS(skl_value_and_grad(&p, &out), refused ? SKL_UNSUPPORTED : SKL_OK);
            const char *say = which ? "cannot use b with rows 40 entries apart and 64 long"
                                    : "cannot use a with rows 40 entries apart and 64 long";
            CHECK(!refused || strstr(skl_last_error(), say), "said \"%s\"", skl_last_error());
            CHECK(!refused || seen.launches == 0, "%d launches", seen.launches);
        }
}

/* cuBLAS is asked for before anything is issued, by calls that will use it and by no others. */
static void prepared(void)
{
    static const struct {
        const char *what;
        int attention, dtype, a, b, bias, prepared;
    } table[] = {{"a value", 0, SKL_BF16, 0, 0, 0, 0},
                 {"da", 0, SKL_BF16, 1, 0, 0, 1},
                 {"db", 0, SKL_F32, 0, 1, 0, 1},
                 {"dbias", 0, SKL_F32, 0, 0, 1, 0},
                 {"attention, by tiles", 1, SKL_BF16, 1, 1, 0, 0},
                 {"attention, by slabs", 1, SKL_F32, 1, 1, 0, 1}};
    for (int i = 0; i < COUNT(table); i++)
        for (int fails = 0; fails < 2; fails++) {
            struct skl_tensor view[6];
            for (int k = 0; k < 6; k++) {
                struct skl_tensor t = table[i].attention ? skl_heads(table[i].dtype, address(k), 2, 2, 64, 64)
                                                         : skl_matrix(table[i].dtype, address(k), 64, 64);
                view[k] = skl_on_cuda(t, 0);
            }
            struct skl_problem p = table[i].attention ? skl_attention(view[0], view[1], view[2], view[3])
                                                      : skl_linear(view[0], view[1], view[2], view[3]);
            struct skl_outputs out = skl_no_outputs();
            p.stream = address(51), out.value = address(52);
            if (table[i].a)
                out.s.a = view[4];
            if (table[i].b)
                out.s.b = view[5];
            if (table[i].bias)
                p.s.bias = skl_on_cuda(skl_vector(SKL_F32, address(6), 64), 0),
                out.s.bias = skl_on_cuda(skl_vector(SKL_F32, address(7), 64), 0);
            memset(&seen, 0, sizeof seen);
            seen.cannot_prepare = fails;
            test_context("%s, cuBLAS %s", table[i].what, fails ? "missing" : "here");
            CHECK_STATUS(skl_value_and_grad(&p, &out), fails && table[i].prepared ? SKL_NO_LIBRARY : SKL_OK);
            CHECK(seen.prepared == table[i].prepared, "prepared %d times", seen.prepared);
            CHECK(!seen.products == !(table[i].prepared && !fails), "%d products", seen.products);
            CHECK((seen.launches > 0) == !(fails && table[i].prepared), "%d launches", seen.launches);
            CHECK(seen.inside == 0, "entered and not left");
        }
}

/* Each sum is cleared once, whole, before its first product: of several slabs, in place and in the workspace, with gaps
 * after the rows and without. 'product' looks. */
static void cleared(void)
{
    for (int k = 0; k < 8; k++) {
        int gaps = k & 1, half = k >> 1 & 1, many = k >> 2;
        int64_t n = 300, v = 700, d = 40;
        struct skl_tensor a = skl_on_cuda(skl_matrix(SKL_BF16, address(0), n, d), 0);
        struct skl_tensor b = skl_on_cuda(skl_matrix(SKL_BF16, address(1), v, d), 0);
        struct skl_problem p = skl_linear(a, b, a, b);
        struct skl_outputs out = skl_no_outputs();
        struct skl_tensor *grads[] = {&out.s.a, &out.s.b, &out.t.a, &out.t.b};
        for (int i = 0; i < 4; i++) {
            *grads[i] = i % 2 ? b : a;
            grads[i]->data = address(2 + i), grads[i]->dtype = half ? SKL_BF16 : SKL_F32;
            grads[i]->stride[0] = d + 8 * gaps;
        }
        p.stream = address(51);
        size_t bytes;
        test_context("cleared: gaps %d, 16 bits %d, several slabs %d", gaps, half, many);
        CHECK_STATUS(skl_workspace_size(SKL_CALL_VALUE_AND_GRAD, &p, &out, &bytes), SKL_OK);
        if (many)
            p.workspace_limit = bytes - 300 * 700 * 2;
        memset(&seen, 0, sizeof seen);
        CHECK_STATUS(skl_value_and_grad(&p, &out), SKL_OK);
        CHECK(many ? seen.products > 4 : seen.products == 4, "%d products", seen.products);
    }
}

/* More heads than a grid has rows: every kernel's grid is within CUDA's limits ('launch' looks), and nothing is
 * refused. */
static void many_heads(void)
{
    for (int any_order = 0; any_order < 2; any_order++) {
        enum { BATCH = 7000, HEADS = 10, D = 64, COLUMNS = 2, PADDED = 3 };
        struct skl_tensor a = skl_on_cuda(skl_heads(SKL_BF16, address(0), BATCH, HEADS, 1, D), 0);
        struct skl_tensor b = skl_on_cuda(skl_heads(SKL_BF16, address(1), BATCH, HEADS, PADDED, D), 0);
        struct skl_problem p = skl_attention(a, b, a, b);
        struct skl_outputs out = skl_no_outputs();
        p.stream = address(51), p.any_order = any_order, p.columns = COLUMNS;
        out.value = address(52), out.s.a = a, out.s.b = b;
        out.s.a.data = address(2), out.s.b.data = address(3);
        memset(&seen, 0, sizeof seen);
        test_context("70000 heads, any order %d", any_order);
        CHECK_STATUS(skl_value_and_grad(&p, &out), SKL_OK);
        CHECK(seen.launches > 6, "%d launches", seen.launches);
        CHECK(seen.clears == 1 + any_order, "%d matrices cleared", seen.clears);
        CHECK(seen.clears == 0 || seen.cleared[0].all == BATCH * HEADS * (PADDED - COLUMNS), "%lld rows of padding",
              (long long)seen.cleared[0].all);
    }
}

/* Sinks: a block for each head sums their gradient, with or without other gradients and rows; the states get them once
 * a sweep. */
static void sinks(void)
{
    for (int rows = 0; rows < 2; rows++)
        for (int jsd = 0; jsd < 2; jsd++) {
            struct skl_tensor a = skl_on_cuda(skl_heads(SKL_BF16, address(0), 2, 5, rows ? 300 : 0, 64), 0);
            struct skl_tensor b = skl_on_cuda(skl_heads(SKL_BF16, address(1), 2, 5, 70, 64), 0);
            struct skl_problem p = skl_attention(a, b, a, b);
            struct skl_outputs out = skl_no_outputs();
            p.stream = address(51), out.value = address(52), p.divergence = jsd ? SKL_JSD : SKL_FORWARD_KL;
            p.sink_s = skl_on_cuda(skl_vector(SKL_F32, address(2), 5), 0);
            p.sink_t = skl_on_cuda(skl_vector(SKL_BF16, address(3), 5), 0);
            out.grad_sink_s = skl_on_cuda(skl_vector(SKL_F32, address(4), 5), 0);
            memset(&seen, 0, sizeof seen);
            test_context("sinks, %d rows, JSD %d", rows ? 300 : 0, jsd);
            CHECK_STATUS(skl_value_and_grad(&p, &out), SKL_OK);
            CHECK(seen.sink_blocks == (rows ? 5 : 0) && seen.sink_pushes == (rows && jsd), "%d blocks, %d pushes",
                  seen.sink_blocks, seen.sink_pushes);
            CHECK(rows || (seen.clears == 2 && seen.cleared[1].to.data == address(4)), "%d things cleared",
                  seen.clears);
        }
}

/* Lists of keys and indexers: no product of cuBLAS, grids within CUDA's limits, and a workspace that does not grow with
 * rows x keys. */
static void keys(void)
{
    enum { HEADS = 4, D = 300, K = 100 };
    for (int k = 0; k < 6; k++) {
        int index = k % 3 > 0, listed = k % 3 != 1;
        int64_t n = k < 3 ? 5 : 70000, m = 2 * n;
        struct skl_tensor a = skl_on_cuda(skl_heads(SKL_BF16, address(0), 2, HEADS, n, D), 0);
        struct skl_tensor b = skl_on_cuda(skl_heads(SKL_BF16, address(1), 2, index ? 1 : 2, m, D), 0);
        struct skl_tensor b_t = skl_on_cuda(skl_heads(SKL_BF16, address(2), 2, 2, m, D), 0);
        struct skl_tensor w = skl_on_cuda(skl_heads(SKL_BF16, address(3), 2, n, HEADS, 1), 0), list = w;
        w.ndim = list.ndim = 3;
        list.data = address(4), list.dtype = SKL_I32, list.shape[2] = K, list.stride[2] = 1, list.stride[1] = K,
        list.stride[0] = n * K;
        struct skl_problem p = skl_problem_of(index ? SKL_INDEXER : SKL_ATTENTION, a, b, a, b_t);
        struct skl_outputs out = skl_no_outputs();
        p.stream = address(51), out.value = address(52), out.s.a = a, out.s.b = b;
        out.s.a.data = address(5), out.s.b.data = address(6);
        if (index)
            p.s.bias = w, out.s.bias = w, out.s.bias.data = address(7);
        if (listed)
            p.support = list, p.support_block = k == 5 ? 1 << 20 : 0;
        size_t bytes = 0, rows = (size_t)(2 * n * (index ? 1 : HEADS));
        test_context("keys, indexer %d, lists %d, %d queries", index, listed, (int)n);
        memset(&seen, 0, sizeof seen);
        CHECK_STATUS(skl_value_and_grad(&p, &out), SKL_OK);
        CHECK(seen.products == 0 && seen.prepared == 0, "%d products", seen.products);
        int heads = index ? 2 * HEADS : 0; /* a sweep for the LSE of each of the teacher's, and what is made of it */
        CHECK(seen.launches == 8 + listed + heads, "%d launches", seen.launches);
        CHECK_STATUS(skl_workspace_size(SKL_CALL_VALUE_AND_GRAD, &p, &out, &bytes), SKL_OK);
        CHECK(bytes < rows * (4 * 128 + 200) + 8192, "%zu bytes for %zu rows", bytes, rows);
    }
}

/* Mixed heads: where their LSEs are not given, a sweep of each of them, in a backward, too; each is made ready once. A
 * map to one head each is two copies. */
static void mixed_heads(void)
{
    for (int k = 0; k < 4; k++) {
        int given = k & 1, mapped = k >> 1;
        struct skl_tensor a = skl_on_cuda(skl_heads(SKL_BF16, address(0), 2, 5, 300, 64), 0);
        struct skl_tensor b = skl_on_cuda(skl_heads(SKL_BF16, address(1), 2, 5, 70, 64), 0);
        struct skl_tensor many = skl_on_cuda(skl_heads(SKL_BF16, address(2), 2, 15, 300, 64), 0);
        struct skl_problem p = skl_attention(a, b, many, b);
        struct skl_outputs out = skl_no_outputs(), saved = skl_no_outputs();
        struct skl_tensor *rows[] = {&saved.loss, &saved.lse_s, &saved.lse_t, &p.lse_t};
        for (int i = 0; i < 3 + given; i++) {
            *rows[i] = skl_on_cuda(skl_heads(SKL_F32, address(10 + i), 2, i == 3 ? 15 : 5, 300, 1), 0);
            rows[i]->ndim = 3;
        }
        p.stream = address(51);
        if (mapped) {
            p.head_map = skl_on_cuda(skl_vector(SKL_F32, address(5), 5), 0);
            p.head_map.dtype = SKL_I32;
        } else {
            p.mix_t = 3;
        }
        out.s.a = a, out.s.a.data = address(3);
        for (int backward = 0; backward < 2; backward++) {
            memset(&seen, 0, sizeof seen);
            test_context("mixed heads, LSEs given %d, mapped %d, backward %d", given, mapped, backward);
            CHECK_STATUS(backward ? skl_backward(&p, &saved, &out) : skl_value_and_grad(&p, &out), SKL_OK);
            CHECK(seen.heads_swept == (given || mapped ? 0 : 3) && seen.members_made == (mapped ? 0 : 3),
                  "%d heads swept, %d made", seen.heads_swept, seen.members_made);
            CHECK(seen.gathered == (mapped ? 2 : 0), "%d copies", seen.gathered);
        }
    }
}

int main(void)
{
    test_begin("test_launches");
    keys();
    one_row();
    overlapping();
    prepared();
    cleared();
    many_heads();
    sinks();
    mixed_heads();
    return test_end();
}
