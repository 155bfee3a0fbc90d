/* SPDX-License-Identifier: Apache-2.0
 *
 * The floating-point mode: results are the same bits whatever the caller has set (rounding, subnormals, traps), the
 * caller and his callback find their mode as it was, and subnormal numbers count as 0, on every thread.
 */
#include "../src/cpu/team.h"
#include "../src/float_mode.h"
#include "../src/half.h"
#include "streamkl/streamkl.h"
#include "test.h"

#if defined(__x86_64__)
enum { USUAL = 0x1f80, CONTROL = 0xffc0 }; /* MXCSR; the rest are flags */
static const struct {
    const char *name;
    unsigned word;
} modes[] = {{"usual", USUAL},
             {"flush to zero", USUAL | 0x8040},
             {"round up", USUAL | 0x4000},
             {"round down", USUAL | 0x2000},
             {"round to zero", USUAL | 0x6000},
             {"traps", 0}};
#elif defined(__aarch64__)
enum { USUAL = 0, CONTROL = 0x7c00000 }; /* FPCR: AHP, DN, FZ, rounding. Hardware need not have traps. */
static const struct {
    const char *name;
    unsigned word;
} modes[] = {{"usual", USUAL},        {"flush to zero", 1 << 24}, {"round up", 1 << 22},
             {"round down", 2 << 22}, {"round to zero", 3 << 22}, {"other NaNs and halves", 1 << 25 | 1 << 26}};
#endif

#if defined(__x86_64__) || defined(__aarch64__)

static void set_mode(unsigned word)
{
    skl_leave_float_mode((struct skl_float_mode){word});
}

static unsigned mode_now(void)
{
    return (unsigned)skl_get_float_mode().word & CONTROL;
}

/* ------------------------------------------------------------------------------------------------ calls --- */

enum { ROWS = 64, COLUMNS = 800, DIM = 32, DTYPES = 3, SMALL = 7 }; /* enough work for three threads */

/* Peaked rows with small weights, so that probabilities times weights reach far below 2^-126; every SMALL-th entry of
 * the operands is subnormal in its format. */
static struct {
    float weight[ROWS], f32[4][COLUMNS * DIM];
    uint16_t bf16[4][COLUMNS * DIM], f16[4][COLUMNS * DIM];
} in;

static void fill(void)
{
    for (int i = 0; i < ROWS; i++) in.weight[i] = (float)ldexp(1 + test_uniform(), -i % 60);
    in.weight[3] = 1e-40f; /* counts as 0 */
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < COLUMNS * DIM; i++) {
            float x = (float)(test_normal() * (k % 2 ? 4 : 1));
            int tiny = i % SMALL == 0;
            in.f32[k][i] = tiny ? x * 1e-40f : x;
            in.bf16[k][i] = skl_to_bf16(in.f32[k][i]);
            in.f16[k][i] = skl_to_f16(tiny ? x * 0x1p-20f : x);
        }
}

static struct skl_tensor operand(int k, int dtype)
{
    void *data = dtype == SKL_F32 ? (void *)in.f32[k] : dtype == SKL_BF16 ? (void *)in.bf16[k] : (void *)in.f16[k];
    return skl_matrix(dtype, data, k % 2 ? COLUMNS : ROWS, DIM);
}

struct result {
    double value, value_of_states;
    float loss[ROWS], lse_s[ROWS], lse_t[ROWS], kl_s[ROWS], kl_t[ROWS];
    float grad[4][COLUMNS * DIM];  /* of s.a, s.b, t.a, t.b */
    float later[4][COLUMNS * DIM]; /* the same from skl_backward */
    struct skl_state state[ROWS], other[ROWS];
    size_t bytes;
};

static struct skl_problem problem(int dtype, int divergence, int threads)
{
    struct skl_problem p = skl_linear(operand(0, dtype), operand(1, dtype), operand(2, dtype), operand(3, dtype));
    p.divergence = divergence, p.threads = threads;
    p.s.scale = 1.3, p.t.scale = 0.9, p.temperature = 1.1;
    p.weight = skl_vector(SKL_F32, in.weight, ROWS);
    return p;
}

static struct skl_outputs row_outputs(struct result *r, int jsd)
{
    struct skl_outputs o = skl_no_outputs();
    o.loss = skl_vector(SKL_F32, r->loss, ROWS);
    o.lse_s = skl_vector(SKL_F32, r->lse_s, ROWS), o.lse_t = skl_vector(SKL_F32, r->lse_t, ROWS);
    if (jsd)
        o.kl_s = skl_vector(SKL_F32, r->kl_s, ROWS), o.kl_t = skl_vector(SKL_F32, r->kl_t, ROWS);
    return o;
}

static void add_grads(struct skl_outputs *o, float grad[4][COLUMNS * DIM])
{
    o->s.a = skl_matrix(SKL_F32, grad[0], ROWS, DIM), o->s.b = skl_matrix(SKL_F32, grad[1], COLUMNS, DIM);
    o->t.a = skl_matrix(SKL_F32, grad[2], ROWS, DIM), o->t.b = skl_matrix(SKL_F32, grad[3], COLUMNS, DIM);
}

/* The columns in two slices, merged. */
static enum skl_status by_states(struct skl_problem p, struct result *r)
{
    struct skl_problem first = p, second = p;
    struct skl_outputs o = skl_no_outputs();
    first.columns = COLUMNS / 3;
    int64_t from = COLUMNS / 3, size = p.s.b.dtype == SKL_F32 ? 4 : 2;
    struct skl_tensor *b[2] = {&second.s.b, &second.t.b};
    for (int k = 0; k < 2; k++) b[k]->data = (char *)b[k]->data + from * DIM * size, b[k]->shape[0] -= from;
    enum skl_status status = skl_partial(&first, NULL, r->state);
    status = status ? status : skl_partial(&second, NULL, r->other);
    status = status ? status : skl_merge(ROWS, r->state, r->other);
    o.value = &r->value_of_states;
    return status ? status : skl_finish(&first, r->state, &o);
}

/* Every public call that computes, in the caller's mode 'word'; all that it needs is made before. */
static enum skl_status run_all(unsigned word, int dtype, int divergence, int threads, struct result *r)
{
    struct skl_problem p = problem(dtype, divergence, threads);
    struct skl_outputs saved = row_outputs(r, divergence == SKL_JSD), both = saved, later = skl_no_outputs();
    add_grads(&both, r->grad), add_grads(&later, r->later);
    both.value = &r->value;
    memset(r, 0, sizeof *r);
    set_mode(word);
    enum skl_status status = skl_value_and_grad(&p, &both);
    status = status ? status : skl_backward(&p, &saved, &later);
    status = status ? status : skl_workspace_size(SKL_CALL_VALUE_AND_GRAD, &p, &both, &r->bytes);
    if (divergence != SKL_JSD)
        status = status ? status : by_states(p, r);
    unsigned after = mode_now();
    set_mode(USUAL);
    CHECK(after == (word & CONTROL), "the mode is %#x afterwards", after);
    return status;
}

static int subnormals(const float *x, int n)
{
    int count = 0;
    for (int i = 0; i < n; i++) count += (skl_bits(x[i]) & 0x7f800000) == 0 && (skl_bits(x[i]) & 0x7fffffff) != 0;
    return count;
}

static void same_bits(int dtype, int divergence)
{
    static struct result usual, r;
    int zeros = 0;
    CHECK_STATUS(run_all(USUAL, dtype, divergence, 1, &usual), SKL_OK);
    for (int m = 0; m < COUNT(modes); m++)
        for (int threads = 1; threads <= 3; threads += 2) {
            test_context("dtype %d, divergence %d, %d threads, caller's mode: %s", dtype, divergence, threads,
                         modes[m].name);
            CHECK_STATUS(run_all(modes[m].word, dtype, divergence, threads, &r), SKL_OK);
            r.bytes = threads == 1 ? r.bytes : usual.bytes; /* a thread more needs more */
            CHECK(memcmp(&r, &usual, sizeof r) == 0, "other bits than in the usual mode");
            int n = subnormals(r.grad[0], 4 * COLUMNS * DIM) + subnormals(r.later[0], 4 * COLUMNS * DIM);
            CHECK(n == 0, "%d entries of the gradients are subnormal", n);
        }
    for (int i = 0; i < COLUMNS * DIM; i++) zeros += usual.grad[1][i] == 0;
    CHECK(isfinite(usual.value) && usual.value != 0 && zeros < COLUMNS * DIM, "value %g, %d zeros: no test of anything",
          usual.value, zeros);
    CHECK(usual.loss[3] == 0 && isinf(usual.lse_s[3]), "a weight below 2^-126 does not count as 0");
}

/* --------------------------------------------------------------------------------------------- callback --- */

struct watch {
    unsigned want, found, set; /* modes before it, that it finds, and that it leaves; want is 0 where all were right */
    int calls, stop_at;
};

static int look(void *data, double fraction)
{
    struct watch *w = data;
    (void)fraction;
    unsigned now = mode_now();
    if (now != w->want)
        w->found = now;
    if (++w->calls == 2) {
        set_mode(w->set);
        w->want = w->set & CONTROL;
    }
    return w->calls == w->stop_at;
}

static void callbacks(void)
{
    static struct result r;
    enum { NOT_FOUND = 1 };
    for (int from = 0; from < COUNT(modes); from++)
        for (int stop_at = 0; stop_at <= 5; stop_at += 5)
            for (int threads = 1; threads <= 3; threads += 2) {
                unsigned word = modes[from].word, to = modes[(from + 2) % COUNT(modes)].word;
                struct watch w = {word & CONTROL, NOT_FOUND, to, 0, stop_at};
                struct skl_problem p = problem(SKL_F32, SKL_FORWARD_KL, threads);
                struct skl_outputs o = row_outputs(&r, 0);
                add_grads(&o, r.grad);
                p.progress = look, p.progress_data = &w;
                set_mode(word);
                enum skl_status status = skl_value_and_grad(&p, &o);
                unsigned after = mode_now();
                set_mode(USUAL);
                test_context("caller's mode: %s, %d threads, stopped at %d", modes[from].name, threads, stop_at);
                int stopped = stop_at && w.calls == stop_at; /* others may do all the work: then there are no reports */
                CHECK_STATUS(status, stopped ? SKL_CANCELLED : SKL_OK);
                CHECK(w.calls >= 5 || threads > 1, "%d reports", w.calls);
                to = w.calls < 2 ? word : to;
                CHECK(w.found == NOT_FOUND, "the callback found mode %#x", w.found);
                CHECK(after == (to & CONTROL), "the callback set %#x, the caller finds %#x", to & CONTROL, after);
            }
}

static void after_errors(void)
{
    static struct result r;
    for (int m = 0; m < COUNT(modes); m++) {
        struct skl_problem p = problem(SKL_F32, SKL_FORWARD_KL, 2);
        struct skl_outputs o = row_outputs(&r, 0);
        enum skl_status status[4];
        size_t bytes;
        p.temperature = 0;
        set_mode(modes[m].word);
        status[0] = skl_value(&p, &o);
        status[1] = skl_value(NULL, NULL);
        status[2] = skl_workspace_size(SKL_CALL_VALUE, &p, &o, &bytes);
        status[3] = skl_finish(&p, r.state, &o);
        unsigned after = mode_now();
        set_mode(USUAL);
        test_context("errors, caller's mode: %s", modes[m].name);
        for (int k = 0; k < 4; k++) CHECK_STATUS(status[k], SKL_BAD_ARGUMENT);
        CHECK(after == (modes[m].word & CONTROL), "the mode is %#x afterwards", after);
    }
}

/* --------------------------------------------------------------------------------------------- underflow --- */

/* A subnormal entry of an operand counts as 0, even where the scale would make 1 of it; of f16, none is lost. One row
 * of one entry, two columns, the second 0: the logits are 1 (or 0) and 0. */
static void subnormal_operands(void)
{
    static struct result r;
    for (int dtype = 0; dtype < DTYPES; dtype++)
        for (int k = 0; k < 4; k++) {
            int f16 = dtype == SKL_F16;
            double scale = f16 ? 0x1p15 : 1e38;
            float tiny[2] = {(float)(1 / scale), 0}, one[2] = {1, 0};
            uint16_t half_tiny[2] = {f16 ? skl_to_f16(tiny[0]) : skl_to_bf16(tiny[0]), 0};
            uint16_t half_one[2] = {f16 ? skl_to_f16(1) : skl_to_bf16(1), 0};
            struct skl_tensor t[4];
            for (int j = 0; j < 4; j++) {
                void *data = dtype == SKL_F32 ? (j == k ? tiny : one) : (void *)(j == k ? half_tiny : half_one);
                t[j] = skl_matrix(dtype, data, j % 2 ? 2 : 1, 1);
            }
            struct skl_problem p = skl_linear(t[0], t[1], t[2], t[3]);
            struct skl_outputs o = skl_no_outputs();
            p.s.scale = k < 2 ? scale : 1, p.t.scale = k < 2 ? 1 : scale;
            o.lse_s = skl_vector(SKL_F32, r.lse_s, 1), o.lse_t = skl_vector(SKL_F32, r.lse_t, 1);
            test_context("a subnormal, dtype %d, operand %d", dtype, k);
            CHECK_STATUS(skl_value(&p, &o), SKL_OK);
            CHECK_NEAR((double)(k < 2 ? r.lse_s : r.lse_t)[0], f16 ? log1p(exp(1)) : log(2), 1e-6, "LSE");
        }
}

/* q[1] = e^-85 = 1.2e-37 is a normal number, dz = weight q[1] is not. */
static void subnormal_gradients(void)
{
    static struct result r;
    for (int threads = 1; threads <= 3; threads += 2)
        for (int exponent = 0; exponent <= 12; exponent += 12) {
            float one[1] = {1}, b_s[2] = {0, -85}, b_t[2] = {0, -300}, weight[1] = {ldexpf(1, -exponent)}, grad[2];
            struct skl_problem p = skl_linear(skl_matrix(SKL_F32, one, 1, 1), skl_matrix(SKL_F32, b_s, 2, 1),
                                              skl_matrix(SKL_F32, one, 1, 1), skl_matrix(SKL_F32, b_t, 2, 1));
            struct skl_outputs o = skl_no_outputs();
            p.threads = threads, p.reduction = SKL_SUM, p.weight = skl_vector(SKL_F32, weight, 1);
            o.s.b = skl_matrix(SKL_F32, grad, 2, 1), o.value = &r.value;
            test_context("dz = e^-85 2^-%d, %d threads", exponent, threads);
            CHECK_STATUS(skl_value_and_grad(&p, &o), SKL_OK);
            if (exponent)
                CHECK(grad[1] == 0, "a gradient is %g", (double)grad[1]);
            else
                CHECK_NEAR((double)grad[1] / exp(-85), 1, 1e-4, "gradient over q");
        }
}

/* ----------------------------------------------------------------------------------------------- threads --- */

enum { THREADS = 3 };

static void note_mode(void *data, int rank)
{
    ((unsigned *)data)[rank] = mode_now();
}

/* Threads that were started in the caller's mode, as for measuring the peak. Before any other call has started them. */
static void modes_of_threads(void)
{
    struct skl_team team = {0};
    unsigned mode[THREADS];
    skl_team_run(&team, THREADS, 1, note_mode, mode);
    test_context("threads started in the usual mode");
    for (int rank = 1; rank < team.size; rank++)
        CHECK(mode[rank] == (SKL_FLOAT_MODE & CONTROL), "thread %d is in mode %#x", rank, mode[rank]);
    CHECK(mode[0] == USUAL, "the caller is in mode %#x", mode[0]);
}

int main(void)
{
    test_begin("test_float_mode");
    set_mode(USUAL);
    skl_team_waits = 1;
    modes_of_threads();
    fill();
    for (int dtype = 0; dtype < DTYPES; dtype++)
        for (int divergence = 0; divergence <= SKL_JSD; divergence++) same_bits(dtype, divergence);
    callbacks();
    after_errors();
    subnormal_operands();
    subnormal_gradients();
    return test_end();
}

#else

int main(void)
{
    test_begin("test_float_mode");
    return test_skip("the library computes in whatever mode this processor is in");
}

#endif
