/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory a call takes: as much as skl_workspace_size() says, within the limit, the same for any number of rows, all
 * given back; and when an allocation fails, a status and nothing else. Linked with every allocator wrapped.
 */
#include "cases.h"

#include <errno.h>
#include <pthread.h>

/* -------------------------------------------------------------------------------------------- allocator --- */

static struct {
    int watching;
    int fail_at; /* the number of the allocation that fails; 0: none */
    int count;
    size_t bytes, live, peak;
} heap;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

enum { HEADER = 64 }; /* keeps the size, and the alignment of what follows */

void *__real_aligned_alloc(size_t alignment, size_t size);
void __real_free(void *p);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
int __wrap_posix_memalign(void **p, size_t alignment, size_t size);
void __wrap_free(void *p);

static void *take(size_t alignment, size_t size)
{
    size_t header = alignment > HEADER ? alignment : HEADER;
    int refused = 0;
    pthread_mutex_lock(&lock);
    if (heap.watching) {
        refused = ++heap.count == heap.fail_at;
        if (!refused) {
            heap.bytes += size, heap.live += size;
            heap.peak = heap.live > heap.peak ? heap.live : heap.peak;
        }
    }
    int watched = heap.watching;
    pthread_mutex_unlock(&lock);
    if (refused) {
        errno = ENOMEM;
        return NULL;
    }
    char *block = __real_aligned_alloc(header, (header + size + header - 1) / header * header);
    if (!block)
        return NULL;
    size_t *note = (size_t *)(block + header) - 4;
    note[0] = watched ? size : 0, note[1] = header;
    return block + header;
}

void *__wrap_malloc(size_t size)
{
    return take(16, size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    void *p = take(16, n * size);
    return p ? memset(p, 0, n * size) : NULL;
}

void *__wrap_realloc(void *p, size_t size)
{
    (void)p, (void)size; /* nobody uses it; whoever begins to must teach this test */
    abort();
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return take(alignment, size);
}

int __wrap_posix_memalign(void **p, size_t alignment, size_t size)
{
    *p = take(alignment, size);
    return *p ? 0 : ENOMEM;
}

void __wrap_free(void *p)
{
    if (!p)
        return;
    size_t *note = (size_t *)p - 4;
    pthread_mutex_lock(&lock);
    heap.live -= note[0];
    pthread_mutex_unlock(&lock);
    __real_free((char *)p - note[1]);
}

static void watch(int fail_at)
{
    memset(&heap, 0, sizeof heap);
    heap.watching = 1, heap.fail_at = fail_at;
}

/* ----------------------------------------------------------------------------------------------- calls --- */

static const char *const call_names[] = {"value", "value_and_grad", "backward", "partial"};

struct prepared {
    struct kit_fixture *f;
    struct skl_outputs out, saved;
    struct skl_state *state;
};

/* Everything that a call needs, so that only the call itself is watched. */
static struct prepared prepare(struct kit_fixture *f, int call)
{
    struct prepared x = {f, skl_no_outputs(), skl_no_outputs(), NULL};
    if (call == SKL_CALL_BACKWARD) {
        x.saved = kit_outputs(f, 1, 0);
        x.saved.value = NULL;
        CHECK_STATUS(skl_value(&f->p, &x.saved), SKL_OK);
    }
    x.out = kit_outputs(f, 0, call == SKL_CALL_VALUE ? 0 : KIT_GRAD_ALL);
    if (call != SKL_CALL_BACKWARD) {
        struct skl_outputs rows = kit_outputs(f, 1, 0);
        for (int k = KIT_LOSS; k <= KIT_KL_T; k++) *kit_slot(&x.out, k) = *kit_slot(&rows, k);
        x.out.value = &f->value;
    }
    x.state = calloc((size_t)skl_reference_rows(&f->p), sizeof *x.state);
    return x;
}

static enum skl_status run(struct prepared *x, int call)
{
    switch (call) {
    case SKL_CALL_VALUE: return skl_value(&x->f->p, &x->out);
    case SKL_CALL_VALUE_AND_GRAD: return skl_value_and_grad(&x->f->p, &x->out);
    case SKL_CALL_BACKWARD: return skl_backward(&x->f->p, &x->saved, &x->out);
    default: return skl_partial(&x->f->p, NULL, x->state);
    }
}

static size_t asked(struct prepared *x, int call)
{
    size_t bytes = 0;
    CHECK_STATUS(skl_workspace_size(call, &x->f->p, call == SKL_CALL_PARTIAL ? NULL : &x->out, &bytes), SKL_OK);
    return bytes;
}

/* Number of cases: all of them, or the first few. */
static int cases(int all)
{
    return test_quick() ? 2 : all;
}

static struct kit_case some_case(int k)
{
    struct kit_case c = k % 2 ? kit_linear_case(50, 210, 20) : kit_attention_case(50, 210, 20);
    c.divergence = k / 2 % 3;
    c.heads = k % 2 || test_quick() ? 1 : 4, c.bias[S] = c.bias[T] = k % 2;
    c.dtype[S] = k / 6 % 3, c.own = k / 6 % 2;
    return c;
}

/* What is allocated is what was said, one thread or several, and all of it comes back. */
static void exact_size(void)
{
    for (int k = 0; k < cases(12); k++)
        for (int call = 0; call < 4; call++)
            for (int threads = 1; threads <= 3; threads += 2) {
                struct kit_fixture f;
                struct kit_case c = some_case(k);
                test_build(&f, &c);
                f.p.threads = threads;
                test_context("case %d, %s, %d threads", k, call_names[call], threads);
                struct prepared x = prepare(&f, call);
                size_t said = asked(&x, call);
                watch(0);
                enum skl_status status = run(&x, call);
                heap.watching = 0;
                CHECK_STATUS(status, SKL_OK);
                CHECK(heap.peak == said && heap.bytes == said, "said %zu bytes, took %zu, %zu of them at once", said,
                      heap.bytes, heap.peak);
                CHECK(heap.live == 0, "%zu bytes are lost", heap.live);
                free(x.state);
                test_destroy(&f);
            }
}

/* Allocation after allocation fails; each time there is a status, nothing written, nothing lost, and then it works. */
static void every_failure(void)
{
    for (int k = 0; k < cases(6); k++)
        for (int call = 0; call < 4; call++) {
            struct kit_fixture f;
            struct kit_case c = some_case(k);
            test_build(&f, &c);
            kit_expect(&f);
            struct prepared x = prepare(&f, call);
            enum skl_status status = SKL_OUT_OF_MEMORY;
            f.p.threads = 2;
            int fail_at;
            for (fail_at = 1; fail_at < 100 && status != SKL_OK; fail_at++) {
                test_context("case %d, %s, allocation %d fails", k, call_names[call], fail_at);
                watch(fail_at);
                status = run(&x, call);
                heap.watching = 0;
                CHECK(heap.live == 0, "%zu bytes are lost", heap.live);
                if (heap.count < fail_at) /* there was none to fail */
                    break;
                CHECK_STATUS(status, SKL_OUT_OF_MEMORY);
                CHECK(skl_last_error()[0] != 0, "no message");
                for (int o = 0; o < KIT_RESULTS; o++)
                    CHECK(!kit_slot(&x.out, o)->data || kit_is_canary(&f.out[o].memory), "%s was written",
                          kit_results[o].name);
            }
            CHECK(fail_at > 1, "%s allocated nothing: are the allocators wrapped?", call_names[call]);
            CHECK_STATUS(status, SKL_OK);
            if (call != SKL_CALL_PARTIAL)
                test_compare(&f, &x.out, "after failures");
            free(x.state);
            test_destroy(&f);
        }
}

static size_t size_of(struct kit_case c, int call, size_t limit, int threads)
{
    /* Shapes are enough: these addresses are never touched, they only must not overlap. */
    char *const input = (char *)((uintptr_t)1 << 40), *const grad_a = (char *)((uintptr_t)1 << 44);
    char *const grad_b = (char *)((uintptr_t)1 << 45);
    struct skl_tensor a = c.use ? skl_matrix(SKL_F32, input, c.rows, c.dim[S])
                                : skl_heads(SKL_F32, input, c.batch, c.heads, c.rows, c.dim[S]);
    struct skl_tensor b = c.use ? skl_matrix(SKL_F32, input, c.cols, c.dim[S])
                                : skl_heads(SKL_F32, input, c.batch, c.heads, c.cols, c.dim[S]);
    struct skl_problem p = skl_problem_of(c.use, a, b, a, b);
    struct skl_outputs out = skl_no_outputs();
    size_t bytes = 0;
    p.divergence = c.divergence, p.workspace_limit = limit, p.threads = threads;
    if (call != SKL_CALL_VALUE && call != SKL_CALL_PARTIAL) {
        out.s.a = a, out.s.a.data = grad_a;
        out.s.b = b, out.s.b.data = grad_b;
    }
    CHECK_STATUS(skl_workspace_size(call, &p, &out, &bytes), SKL_OK);
    return bytes;
}

/* Not a byte more for more rows; within the limit for any size. */
static void flat_in_rows(void)
{
    for (int call = 0; call < 4; call++)
        for (int d = 0; d < 3; d++)
            for (int use = 0; use < 2; use++) {
                struct kit_case c = use ? kit_linear_case(8192, 32000, 256) : kit_attention_case(8192, 8192, 64);
                test_context("%s, divergence %d, use %d", call_names[call], d, use);
                c.divergence = d, c.heads = use ? 1 : 8;
                size_t few = size_of(c, call, 0, 4);
                c.rows *= 64;
                size_t many = size_of(c, call, 0, 4);
                CHECK(few == many, "%zu bytes for 8192 rows, %zu for 64 times as many", few, many);
                CHECK(many <= (size_t)256 << 20, "%zu bytes are above the default limit", many);
                for (size_t limit = (size_t)64 << 20; limit <= (size_t)1 << 30; limit *= 4) {
                    size_t bytes = size_of(c, call, limit, 4);
                    CHECK(bytes <= limit, "%zu bytes are above the limit of %zu", bytes, limit);
                }
                if (call != SKL_CALL_VALUE_AND_GRAD && d != SKL_JSD) {
                    c.cols *= 16;
                    size_t wide = size_of(c, call, 0, 4);
                    CHECK(wide <= many + many / 4, "%zu bytes for %lld columns, %zu for 16 times as many", many,
                          (long long)c.cols / 16, wide);
                }
            }
}

/* Where a vocabulary's matrices are large, the default is an eighth of them, and what it gives is more rows in a
 * block. */
static void large_vocabulary(void)
{
    struct kit_case c = kit_linear_case(4096, 152064, 2048);
    size_t matrices = (size_t)3 * 4 * 152064 * 2048; /* W of both sides and one gradient, in f32 */
    size_t limit = (size_t)256 << 20, usual = size_of(c, SKL_CALL_VALUE_AND_GRAD, 0, 4);
    test_context("a large vocabulary");
    CHECK(usual <= matrices / 8, "%zu bytes are more than an eighth of %zu", usual, matrices);
    CHECK(usual > limit, "%zu bytes, though %zu would be allowed", usual, matrices / 8);
    CHECK(size_of(c, SKL_CALL_VALUE_AND_GRAD, limit, 4) <= limit, "a limit that was given does not hold");
    CHECK(size_of(c, SKL_CALL_BACKWARD, 0, 4) <= limit, "a backward, which keeps no logits of all columns, takes more");
    c.rows = 384; /* the limit has room for some 300 of them: two blocks of 192, not a long and a short one */
    size_t both = size_of(c, SKL_CALL_VALUE_AND_GRAD, limit + limit / 2, 4);
    c.rows = 192;
    size_t one = size_of(c, SKL_CALL_VALUE_AND_GRAD, limit + limit / 2, 4);
    CHECK(both == one, "%zu bytes for 384 rows, %zu for 192: blocks are not equal", both, one);
}

/* A call without rows takes no memory, however large its vocabulary is (and its vectors: no size overflows). */
static void nothing_to_do(void)
{
    static uint16_t b;
    test_context("nothing to do");
    for (int k = 0; k < 2; k++) {
        int64_t columns = k ? 0 : 50000, dim = k ? (int64_t)1 << 39 : 1;
        struct skl_tensor x = skl_matrix(SKL_BF16, &b, 0, dim), w = skl_matrix(SKL_BF16, &b, columns, dim);
        w.stride[0] = 0;
        struct skl_problem p = skl_linear(x, w, x, w);
        struct skl_outputs out = skl_no_outputs();
        double value = 7;
        size_t bytes = 7;
        out.value = &value;
        CHECK_STATUS(skl_workspace_size(SKL_CALL_VALUE, &p, &out, &bytes), SKL_OK);
        CHECK(bytes == 0, "%zu bytes for a call without rows", bytes);
        watch(0);
        CHECK_STATUS(skl_value(&p, &out), SKL_OK);
        heap.watching = 0;
        CHECK(heap.peak == 0, "a call without rows took %zu bytes", heap.peak);
        CHECK(value == 0, "value %g", value);
    }
}

/* With the least memory that is accepted, logits are recomputed: the same answer to rounding. Below it, a clear no. */
static void least_memory(void)
{
    for (int k = 0; k < cases(12); k++) {
        struct kit_fixture f;
        struct kit_case c = some_case(k);
        c.cols = 900, c.rows = 130;
        test_build(&f, &c);
        kit_expect(&f);
        f.p.threads = 2;
        struct prepared x = prepare(&f, SKL_CALL_VALUE_AND_GRAD);
        size_t usual = asked(&x, SKL_CALL_VALUE_AND_GRAD);
        f.p.workspace_limit = kit_least_limit(&f.p, SKL_CALL_VALUE_AND_GRAD, &x.out);
        test_context("case %d, limit %zu of %zu", k, f.p.workspace_limit, usual);
        CHECK(f.p.workspace_limit < usual, "nothing can be saved");
        size_t said = asked(&x, SKL_CALL_VALUE_AND_GRAD);
        watch(0);
        enum skl_status status = run(&x, SKL_CALL_VALUE_AND_GRAD);
        heap.watching = 0;
        CHECK_STATUS(status, SKL_OK);
        CHECK(heap.peak == said && said <= f.p.workspace_limit, "said %zu, took %zu", said, heap.peak);
        test_compare(&f, &x.out, "least memory");
        f.p.workspace_limit = 1;
        x.out = kit_outputs(&f, 1, KIT_GRAD_ALL);
        CHECK_STATUS(run(&x, SKL_CALL_VALUE_AND_GRAD), SKL_BAD_ARGUMENT);
        CHECK(strstr(skl_last_error(), "workspace_limit = 1"), "said \"%s\"", skl_last_error());
        free(x.state);
        test_destroy(&f);
    }
}

static int stop_at(void *data, double fraction)
{
    (void)fraction;
    return --*(int *)data <= 0;
}

/* A cancelled call gives its memory back, whenever it is cancelled. */
static void cancelled(void)
{
    for (int k = 0; k < cases(6); k++)
        for (int call = 0; call < 4; call++)
            for (int stop = 1; stop <= 3; stop++) {
                struct kit_fixture f;
                struct kit_case c = some_case(k);
                int left = stop;
                test_build(&f, &c);
                struct prepared x = prepare(&f, call);
                f.p.threads = 2, f.p.progress = stop_at, f.p.progress_data = &left;
                test_context("case %d, %s, cancelled at report %d", k, call_names[call], stop);
                watch(0);
                enum skl_status status = run(&x, call);
                heap.watching = 0;
                if (stop == 1)
                    CHECK_STATUS(status, SKL_CANCELLED);
                CHECK(heap.live == 0, "%zu bytes are lost", heap.live);
                free(x.state);
                test_destroy(&f);
            }
}

int main(void)
{
    test_begin("test_memory");
    cancelled();
    exact_size();
    every_failure();
    flat_in_rows();
    large_vocabulary();
    least_memory();
    nothing_to_do();
    return test_end();
}
