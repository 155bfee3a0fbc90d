/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads: the same bits for any number of them, calls at the same time, progress and cancelling, and a forked child.
 */
#define _GNU_SOURCE
#include "cases.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

/* Many short heads, which threads take whole, and a window. */
static struct kit_case short_case(int k)
{
    struct kit_case c = k % 3 == 2 ? kit_attention_case(900, 900, 40) : kit_attention_case(40 + 60 * k, 70, 24);
    kit_set_smooth(&c, k);
    c.heads = 4, c.key_heads[S] = 2, c.key_heads[T] = k % 2 ? 1 : 4, c.causal = k / 2 % 2;
    c.batch = k % 3 == 2 ? 1 : 18, c.left = k % 3 == 2 ? 130 : -1;
    c.dtype[S] = k % 3, c.own = k % 2, c.weights = k / 2 % 3;
    return c;
}

/* Cases with several blocks of rows, several chunks of columns, shared key heads, sums in 16 bits; each with enough
 * work that the engine does wake seven threads. From the twelfth on: short ones. */
static struct kit_case some_case(int k)
{
    if (k >= 12)
        return short_case(k - 12);
    static const int64_t shapes[][3] = {{300, 500, 24}, {80, 4100, 16}, {700, 200, 40}, {200, 300, 70}};
    const int64_t *n = shapes[k % 4];
    struct kit_case c = k % 2 ? kit_linear_case(n[0], n[1], n[2]) : kit_attention_case(n[0], n[1], n[2]);
    kit_set_smooth(&c, k);
    if (c.use == SKL_ATTENTION)
        c.heads = 4, c.key_heads[S] = 2, c.key_heads[T] = k % 4 ? 1 : 4, c.causal = k / 3 % 2;
    else
        c.bias[S] = c.bias[T] = 1;
    c.dtype[S] = k / 2 % 3, c.own = k % 2, c.weights = k % 3;
    if (test_quick())
        kit_shrink(&c, 1e7);
    return c;
}

/* Everything that was written, one after the other, with the memory around it. */
struct snapshot {
    double value;
    unsigned char *bytes[KIT_RESULTS];
    struct skl_state *state;
};

static void take_snapshot(struct kit_fixture *f, struct snapshot *s)
{
    s->value = f->value;
    for (int k = 0; k < KIT_RESULTS; k++) {
        struct kit_buffer *b = &f->out[k].memory;
        s->bytes[k] = b->data ? memcpy(malloc(b->size), b->data, b->size) : NULL;
    }
}

static void check_same(struct kit_fixture *f, const struct snapshot *s, const char *what)
{
    CHECK(memcmp(&s->value, &f->value, sizeof s->value) == 0, "%s: value %.17g and %.17g", what, f->value, s->value);
    for (int k = 0; k < KIT_RESULTS; k++)
        if (s->bytes[k])
            CHECK(memcmp(s->bytes[k], f->out[k].memory.data, f->out[k].memory.size) == 0, "%s: %s has other bits", what,
                  kit_results[k].name);
}

static void free_snapshot(struct snapshot *s)
{
    for (int k = 0; k < KIT_RESULTS; k++) free(s->bytes[k]);
    free(s->state);
}

/* Runs one way without comparing with the reference; everything it gives is in f->out, f->value and 'state'. */
static void run(struct kit_fixture *f, enum kit_way way, struct skl_state *state)
{
    struct skl_outputs out = kit_outputs(f, 1, KIT_GRAD_ALL), grads = out;
    for (int k = 0; k < KIT_RESULTS; k++) (k < KIT_A_S ? kit_slot(&grads, k) : kit_slot(&out, k))->data = NULL;
    grads.value = NULL;
    struct skl_outputs saved = out, both = out;
    saved.value = NULL;
    both.s = grads.s, both.t = grads.t;
    struct skl_problem p = f->p;
    switch (way) {
    case KIT_VALUE: CHECK_STATUS(skl_value(&p, &out), SKL_OK); break;
    case KIT_RECOMPUTE: /* the same for any number of threads, so their buffers come on top */
        p.threads = 7;
        p.workspace_limit = kit_least_limit(&p, SKL_CALL_VALUE_AND_GRAD, &both);
        p.threads = f->p.threads;
        CHECK_STATUS(skl_value_and_grad(&p, &both), SKL_OK);
        break;
    case KIT_BACKWARD:
        CHECK_STATUS(skl_value(&p, &out), SKL_OK);
        CHECK_STATUS(skl_backward(&p, &saved, &grads), SKL_OK);
        break;
    case KIT_SLICES: CHECK_STATUS(skl_partial(&p, NULL, state), SKL_OK); break;
    default: CHECK_STATUS(skl_value_and_grad(&p, &both), SKL_OK); break;
    }
}

static void same_bits(void)
{
    static const int counts[] = {1, 2, 3, 7, 1};
    for (int k = 0; k < 18; k += test_quick() ? 5 : 1)
        for (int way = 0; way < KIT_WAYS; way++) {
            struct kit_fixture f;
            struct kit_case c = some_case(k);
            struct snapshot one = {0};
            test_build(&f, &c);
            size_t size = (size_t)skl_reference_rows(&f.p) * sizeof(struct skl_state);
            struct skl_state *state = calloc(1, size);
            one.state = calloc(1, size);
            for (int n = 0; n < (test_quick() ? 3 : COUNT(counts)); n += test_quick() ? 2 : 1) {
                f.p.threads = counts[n];
                test_context("case %d, %s, %d threads", k, kit_way_names[way], counts[n]);
                run(&f, way, n ? state : one.state);
                if (n == 0)
                    take_snapshot(&f, &one);
                else
                    check_same(&f, &one, "against 1 thread");
                if (n && way == KIT_SLICES)
                    CHECK(memcmp(state, one.state, size) == 0, "the states have other bits");
            }
            free(state);
            free_snapshot(&one);
            test_destroy(&f);
        }
}

/* One way to call it, with each number of threads; the first is 1. */
static void same_for(const struct kit_case *c, enum kit_way way, const int *counts, int n)
{
    struct kit_fixture f;
    struct snapshot one = {0};
    test_build(&f, c);
    for (int i = 0; i < n; i++) {
        f.p.threads = counts[i];
        test_context("%s, %d x %d, %s, %d threads", kit_way_names[way], (int)c->rows, (int)c->cols,
                     kit_dtype_names[c->dtype[S]], counts[i]);
        run(&f, way, NULL);
        if (i == 0)
            take_snapshot(&f, &one);
        else
            check_same(&f, &one, "against 1 thread");
    }
    free_snapshot(&one);
    test_destroy(&f);
}

/* More threads than a block has chunks, or so many that chunks are uneven: these share its panels, and db is a phase of
 * its own. */
static void more_than_chunks(void)
{
    static const int counts[] = {1, 3, 26, 50};
    for (int k = 0; k < (test_quick() ? 2 : 12); k++) {
        struct kit_case c = kit_attention_case(300, 3300, test_quick() ? 8 : 40);
        kit_set_smooth(&c, k / 2);
        c.causal = k / 2 % 2, c.own = k / 4 % 2, c.dtype[S] = k / 2 % 3, c.weights = k / 2 % 3;
        c.left = k / 2 % 3 == 2 ? 400 : -1;
        same_for(&c, k % 2 ? KIT_VALUE : KIT_TOGETHER, counts, COUNT(counts));
    }
}

/* Where logits are made again, the tiles of a slab are shared by as many threads as there are. */
static void slabs(void)
{
    static const int counts[] = {1, 12, 40};
    static const enum kit_way ways[] = {KIT_BACKWARD, KIT_RECOMPUTE};
    for (int k = 0; k < (test_quick() ? 2 : 4); k++) {
        struct kit_case c = kit_linear_case(90, test_quick() ? 3000 : 7000, 600);
        c.dtype[S] = c.dtype[T] = k / 2 ? SKL_BF16 : SKL_F32;
        same_for(&c, ways[k % 2], counts, COUNT(counts));
    }
}

/* [batch][heads][rows] */
static struct skl_tensor of_rows(int dtype, const void *data, int64_t batch, int64_t heads, int64_t rows)
{
    struct skl_tensor t = skl_heads(dtype, data, 1, batch, heads, rows), r = t;
    r.ndim = 3;
    for (int k = 0; k < 3; k++) r.shape[k] = t.shape[k + 1], r.stride[k] = t.stride[k + 1];
    return r;
}

/* A row that sees no key counts through its sink. Its block begins with nothing that the block's rows before it saw. */
static void rows_that_see_nothing(void)
{
    enum { BATCH = 3, HEADS = 5, N = 40, M = 900, DIM = 16, ROWS = BATCH * HEADS * N, KEYS = BATCH * HEADS * M };
    static float q[2][ROWS * DIM], k[2][KEYS * DIM], sink[HEADS];
    static float dq[2][ROWS * DIM], dk[2][KEYS * DIM], loss[2][ROWS];
    static int32_t begin[ROWS], end[ROWS];
    static const int counts[] = {1, 2, 5, 17, 48};
    for (int side = 0; side < 2; side++) {
        for (int i = 0; i < ROWS * DIM; i++) q[side][i] = (float)test_between(-100, 100) / 50;
        for (int i = 0; i < KEYS * DIM; i++) k[side][i] = (float)test_between(-100, 100) / 50;
    }
    for (int i = 0; i < ROWS; i++) begin[i] = 0, end[i] = i % N ? M : 0;
    struct skl_problem p = skl_attention(
        skl_heads(SKL_F32, q[0], BATCH, HEADS, N, DIM), skl_heads(SKL_F32, k[0], BATCH, HEADS, M, DIM),
        skl_heads(SKL_F32, q[1], BATCH, HEADS, N, DIM), skl_heads(SKL_F32, k[1], BATCH, HEADS, M, DIM));
    p.window_left = p.window_right = 30;
    p.begin = of_rows(SKL_I32, begin, BATCH, HEADS, N), p.end = of_rows(SKL_I32, end, BATCH, HEADS, N);
    p.sink_s = p.sink_t = skl_vector(SKL_F32, sink, HEADS);
    for (int n = 0; n < COUNT(counts); n++) {
        struct skl_outputs out = skl_no_outputs();
        double value;
        int to = n > 0;
        p.threads = counts[n];
        out.value = &value, out.loss = of_rows(SKL_F32, loss[to], BATCH, HEADS, N);
        out.s.a = skl_heads(SKL_F32, dq[to], BATCH, HEADS, N, DIM);
        out.s.b = skl_heads(SKL_F32, dk[to], BATCH, HEADS, M, DIM);
        test_context("%d threads", p.threads);
        CHECK_STATUS(skl_value_and_grad(&p, &out), SKL_OK);
        CHECK(!n || !memcmp(loss[0], loss[1], sizeof *loss), "losses have other bits");
        CHECK(!n || !memcmp(dq[0], dq[1], sizeof *dq), "gradients of queries have other bits");
        CHECK(!n || !memcmp(dk[0], dk[1], sizeof *dk), "gradients of keys have other bits");
    }
}

/* ---------------------------------------------------------------------------------------------- callers --- */

struct caller {
    struct kit_fixture f;
    struct snapshot alone;
};

static void *call_again(void *data)
{
    struct caller *c = data;
    for (int k = 0; k < (test_quick() ? 2 : 8); k++) {
        run(&c->f, KIT_TOGETHER, NULL);
        check_same(&c->f, &c->alone, "called at the same time as others");
    }
    return NULL;
}

static void at_the_same_time(void)
{
    enum { CALLERS = 3 };
    struct caller callers[CALLERS];
    pthread_t threads[CALLERS];
    test_context("%d callers", CALLERS);
    for (int k = 0; k < CALLERS; k++) {
        struct kit_case c = some_case(k);
        callers[k] = (struct caller){.alone = {0}};
        test_build(&callers[k].f, &c);
        callers[k].f.p.threads = 2;
        run(&callers[k].f, KIT_TOGETHER, NULL);
        take_snapshot(&callers[k].f, &callers[k].alone);
    }
    for (int k = 0; k < CALLERS; k++) pthread_create(&threads[k], NULL, call_again, &callers[k]);
    for (int k = 0; k < CALLERS; k++) pthread_join(threads[k], NULL);
    for (int k = 0; k < CALLERS; k++) {
        free_snapshot(&callers[k].alone);
        test_destroy(&callers[k].f);
    }
}

/* --------------------------------------------------------------------------------------------- progress --- */

struct report {
    int count, cancel_at, ordered, inside;
    double last;
    pthread_t caller;
    int same_thread;
};

static int report(void *data, double fraction)
{
    struct report *r = data;
    r->ordered &= fraction >= r->last;
    r->inside &= fraction >= 0 && fraction <= 1;
    r->same_thread &= pthread_equal(pthread_self(), r->caller) != 0;
    r->last = fraction;
    return ++r->count == r->cancel_at;
}

static void progress(void)
{
    for (int k = 0; k < (test_quick() ? 2 : 6); k++)
        for (int threads = 1; threads <= 2; threads++) {
            struct kit_fixture f;
            struct kit_case c = some_case(k);
            struct report r = {0, 0, 1, 1, 0, pthread_self(), 1};
            test_build(&f, &c);
            kit_expect(&f);
            f.p.threads = threads, f.p.progress = report, f.p.progress_data = &r;
            test_context("case %d, %d threads, progress", k, threads);
            struct skl_outputs out = kit_outputs(&f, 1, KIT_GRAD_ALL);
            CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_OK);
            test_compare(&f, &out, "with progress");
            CHECK(r.count > 0 && r.ordered && r.inside && r.same_thread,
                  "%d reports, ordered %d, inside [0, 1] %d, on the calling thread %d", r.count, r.ordered, r.inside,
                  r.same_thread);
            int reports = r.count;
            for (int at = 1; at <= reports && at <= 5; at++) {
                r = (struct report){0, at, 1, 1, 0, pthread_self(), 1};
                out = kit_outputs(&f, 1, KIT_GRAD_ALL);
                CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_CANCELLED);
                CHECK(r.count == at, "cancelled at report %d, yet %d came", at, r.count);
            }
            f.p.progress = NULL;
            out = kit_outputs(&f, 1, KIT_GRAD_ALL);
            CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_OK);
            test_compare(&f, &out, "after a cancelled call");
            test_destroy(&f);
        }
}

/* After the parent used several threads, a forked child, which has none of them, computes the same. On one thread:
 * emulators do not survive more, and test_team has the rest. */
static void forked(void)
{
#if defined(__SANITIZE_THREAD__)
    printf("test_threads: fork not tested: the thread sanitizer stops a child that allocates\n");
#else
    struct kit_fixture f;
    struct kit_case c = some_case(1);
    struct snapshot s = {0};
    int status = 0;
    test_build(&f, &c);
    f.p.threads = 2;
    run(&f, KIT_TOGETHER, NULL);
    take_snapshot(&f, &s);
    f.p.threads = 1;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        int same = 1;
        run(&f, KIT_TOGETHER, NULL);
        for (int k = 0; k < KIT_RESULTS; k++)
            same &= !s.bytes[k] || memcmp(s.bytes[k], f.out[k].memory.data, f.out[k].memory.size) == 0;
        _exit(same ? 0 : 1);
    }
    waitpid(child, &status, 0);
    test_context("fork");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with status %#x", status);
    free_snapshot(&s);
    test_destroy(&f);
#endif
}

int main(void)
{
    test_begin("test_threads");
    CHECK(skl_max_threads() >= 1, "threads = 0 means %d", skl_max_threads());
    same_bits();
    more_than_chunks();
    slabs();
    rows_that_see_nothing();
    at_the_same_time();
    progress();
    forked();
    return test_end();
}
