/* SPDX-License-Identifier: Apache-2.0
 *
 * Every rule at the border: a broken one gives a status and a sentence that names the argument and its value, and
 * nothing is written.
 */
#include "cases.h"

#include <pthread.h>
#include <unistd.h>

enum { VALUE = 1, GRAD = 2, BACKWARD = 4, PARTIAL = 8, FINISH = 16, SIZE = 32, ALL = 63 };
/* skl_finish reads shapes and weights only. */
enum { READERS = ALL & ~FINISH, WRITERS = VALUE | GRAD | FINISH, DERIVING = GRAD | BACKWARD };

static struct kit_fixture attention, linear;
enum { STATES = 64 };

/* A call that would succeed; rules change one thing of it. */
struct args {
    struct kit_fixture *f;
    struct skl_problem p, *problem;
    struct skl_outputs out, saved, *to, *from;
    struct skl_state state[STATES], *states;
    double value;
};

static void fresh(struct args *x, struct kit_fixture *f)
{
    memset(x, 0, sizeof *x);
    memset(x->state, KIT_CANARY, sizeof x->state);
    x->f = f;
    x->p = f->p, x->problem = &x->p;
    x->out = kit_outputs(f, 1, KIT_GRAD_ALL), x->to = &x->out;
    x->saved = skl_no_outputs(), x->from = &x->saved;
    x->states = x->state;
    x->value = -7;
    x->out.value = &x->value;
}

/* The outputs as this call takes them: no gradients in value and finish, no rows in backward. */
static enum skl_status call(struct args *x, int which)
{
    static struct kit_tensor rows[5];
    struct skl_outputs out = x->out, *to = x->to ? &out : NULL, *from = x->from;
    struct skl_tensor none = {0};
    size_t bytes;
    if (which == VALUE || which == FINISH)
        out.s.a = out.s.b = out.s.bias = out.t.a = out.t.b = out.t.bias = none;
    if (which == BACKWARD) {
        out.value = NULL;
        for (int k = KIT_LOSS; k <= KIT_KL_T; k++) { /* saved rows of their own, of any value */
            if (!rows[k].t.data || rows[k].t.ndim != x->f->out[KIT_LOSS].t.ndim) {
                kit_tensor_free(&test_memory, &rows[k]);
                rows[k] = kit_tensor(&test_memory, SKL_F32, x->f->out[KIT_LOSS].t.ndim, x->f->out[KIT_LOSS].t.shape, 0,
                                     KIT_DENSE, 0);
                kit_fill(&rows[k].t, 1);
            }
            *kit_slot(&out, k) = none;
            if (from && !kit_slot(from, k)->data && (k < KIT_KL_S || x->p.divergence == SKL_JSD))
                *kit_slot(from, k) = rows[k].t;
        }
    }
    switch (which) {
    case VALUE: return skl_value(x->problem, to);
    case GRAD: return skl_value_and_grad(x->problem, to);
    case BACKWARD: return skl_backward(x->problem, from, to);
    case PARTIAL: return skl_partial(x->problem, NULL, x->states);
    case FINISH: return skl_finish(x->problem, x->states, to);
    default: return skl_workspace_size(SKL_CALL_VALUE_AND_GRAD, x->problem, to, &bytes);
    }
}

static int nothing_written(const struct args *x)
{
    int clean = x->value == -7;
    const unsigned char *bytes = (const unsigned char *)x->state;
    for (size_t i = 0; i < sizeof x->state; i++) clean &= bytes[i] == KIT_CANARY;
    for (int k = 0; k < KIT_RESULTS; k++) clean &= !x->f->out[k].t.data || kit_is_canary(&x->f->out[k].memory);
    return clean;
}

static void refused(struct args *x, int calls, enum skl_status status, const char *name, const char *value)
{
    for (int which = 1; which <= SIZE; which *= 2) {
        if (!(calls & which))
            continue;
        test_context("rule '%s = %s', call %d", name, value, which);
        enum skl_status got = call(x, which);
        const char *said = skl_last_error();
        CHECK(got == status, "gave \"%s\" (%s), expected \"%s\"", skl_status_string(got), said,
              skl_status_string(status));
        CHECK(strstr(said, name), "the sentence \"%s\" does not name \"%s\"", said, name);
        CHECK(strstr(said, value), "the sentence \"%s\" does not give \"%s\"", said, value);
        CHECK(!strncmp(said, "cannot use ", 11) && strchr(said, ':'), "the sentence is \"%s\"", said);
        CHECK(nothing_written(x), "something was written");
        memset(x->state, KIT_CANARY, sizeof x->state);
    }
}

/* RULE(calls, name, value, change): after 'change' of the fresh call x, those calls refuse and name it. */
#define RULE_(fixture, calls, status, name, shown, change) \
    do {                                                   \
        struct args x;                                     \
        fresh(&x, fixture);                                \
        change;                                            \
        refused(&x, calls, status, name, shown);           \
    } while (0)
#define RULE(calls, name, shown, change) RULE_(&attention, calls, SKL_BAD_ARGUMENT, name, shown, change)
#define LINEAR(calls, name, shown, change) RULE_(&linear, calls, SKL_BAD_ARGUMENT, name, shown, change)
#define UNSUPPORTED(calls, name, shown, change) RULE_(&attention, calls, SKL_UNSUPPORTED, name, shown, change)

static void numbers(void)
{
    RULE(ALL, "problem", "NULL", x.problem = NULL);
    RULE(ALL, "struct_size", "3", x.p.struct_size = 3);
    RULE(ALL, "use = 3", "SKL_LINEAR", x.p.use = 3);
    RULE(ALL, "use = -1", "SKL_LINEAR", x.p.use = -1);
    RULE(ALL, "divergence", "7", x.p.divergence = 7);
    RULE(ALL, "divergence", "-1", x.p.divergence = -1);
    RULE(ALL, "reduction", "2", x.p.reduction = 2);
    RULE(ALL, "temperature", "nan", x.p.temperature = NAN);
    RULE(ALL, "temperature", "0", x.p.temperature = 0);
    RULE(ALL, "temperature", "-1.5", x.p.temperature = -1.5);
    RULE(ALL, "temperature", "inf", x.p.temperature = INFINITY);
    for (int k = 0; k < 3; k++) {
        static const double betas[] = {-0.25, 1.5, NAN};
        static const char *const shown[] = {"-0.25", "1.5", "nan"};
        RULE(READERS, "beta", shown[k], (x.p.divergence = SKL_JSD, x.p.beta = betas[k]));
    }
    RULE(ALL, "skew", "0.25", x.p.skew = 0.25);
    RULE(READERS, "skew", "1", (x.p.divergence = SKL_SKEW_FORWARD_KL, x.p.skew = 1));
    RULE(READERS, "skew", "nan", (x.p.divergence = SKL_SKEW_REVERSE_KL, x.p.skew = NAN));
    RULE(ALL, "alpha", "0.5", x.p.alpha = 0.5);
    RULE(READERS, "alpha", "-1", (x.p.divergence = SKL_ALPHA_BETA, x.p.alpha = -1));
    RULE(READERS, "beta", "17", (x.p.divergence = SKL_ALPHA_BETA, x.p.beta = 17));
    RULE(READERS, "beta", "0", (x.p.divergence = SKL_ALPHA_BETA, x.p.beta = 0));
    RULE(ALL, "s.scale", "nan", x.p.s.scale = NAN);
    RULE(ALL, "t.scale", "inf", x.p.t.scale = INFINITY);
    RULE(ALL, "s.softcap", "-2", x.p.s.softcap = -2);
    RULE(ALL, "t.softcap", "nan", x.p.t.softcap = NAN);
    RULE(ALL, "window_left", "-2", x.p.window_left = -2);
    RULE(ALL, "window_right", "-9", x.p.window_right = -9);
    RULE(ALL, "columns", "-4", x.p.columns = -4);
    RULE(ALL, "columns", "1000", x.p.columns = 1000);
    RULE(ALL, "threads", "-1", x.p.threads = -1);
    RULE(ALL, "threads", "1000000", x.p.threads = 1000000);
    RULE(ALL, "isa", "77", x.p.isa = 77);
    RULE(ALL, "round_dz", "2", x.p.round_dz = 2);
    RULE(ALL, "split_f32", "3", x.p.split_f32 = 3);
    RULE(ALL, "split_f32", "-1", x.p.split_f32 = -1);
    RULE(ALL, "skip_below", "-0.5", x.p.skip_below = -0.5);
    RULE(ALL, "skip_below", "1", x.p.skip_below = 1);
    RULE(ALL, "skip_below", "nan", x.p.skip_below = NAN);
    LINEAR(ALL, "causal", "1", x.p.causal = 1);
    LINEAR(ALL, "window_left", "4", x.p.window_left = 4);
    LINEAR(ALL, "window_right", "0", x.p.window_right = 0);
}

static void operands(void)
{
    RULE(READERS, "s.a", "NULL", x.p.s.a.data = NULL);
    RULE(READERS, "s.b", "NULL", x.p.s.b.data = NULL);
    RULE(READERS, "t.a", "NULL", x.p.t.a.data = NULL);
    RULE(READERS, "t.b", "NULL", x.p.t.b.data = NULL);
    RULE(ALL, "s.a", "3", x.p.s.a.ndim = 3);
    RULE(ALL, "t.b", "5", x.p.t.b.ndim = 5);
    LINEAR(ALL, "s.a", "1", x.p.s.a.ndim = 1);
    LINEAR(ALL, "s.b", "3", x.p.s.b.ndim = 3);
    RULE(READERS, "s.a.dtype", "3", x.p.s.a.dtype = SKL_I32);
    RULE(READERS, "t.b.dtype", "9", x.p.t.b.dtype = 9);
    RULE(READERS, "s.b.dtype", "-1", x.p.s.b.dtype = -1);
    UNSUPPORTED(READERS, "s.a.device", "5", x.p.s.a.device = 5);
    RULE(ALL, "s.a", "-3", x.p.s.a.shape[2] = -3);
    RULE(ALL, "s.b", "-1", x.p.s.b.shape[2] = -1);
    RULE(ALL, "s.a", "0", x.p.s.a.shape[3] = 0);
    RULE(ALL, "s.a", "4611686018427387904", x.p.s.a.shape[0] = x.p.t.a.shape[0] = (int64_t)1 << 62);
    RULE(READERS, "s.a", "9223372036854775807", x.p.s.a.stride[0] = INT64_MAX);
    RULE(READERS, "t.b", "-9223372036854775808", x.p.t.b.stride[0] = INT64_MIN);
    RULE(READERS, "s.a.stride[3]", "2", x.p.s.a.stride[3] = 2);
    RULE(READERS, "t.b.stride[3]", "0", x.p.t.b.stride[3] = 0);
    RULE(ALL, "t.a.shape[0]", "7", x.p.t.a.shape[0] = x.p.t.b.shape[0] = 7);
    RULE(ALL, "t.a.shape[2]", "7", x.p.t.a.shape[2] = 7);
    RULE(ALL, "s.b.shape[0]", "7", x.p.s.b.shape[0] = 7);
    RULE(ALL, "s.b.shape[3]", "7", x.p.s.b.shape[3] = 7);
    RULE(ALL, "s.b.shape[1]", "3", x.p.s.b.shape[1] = 3);
    RULE(ALL, "t.b.shape[1]", "8", x.p.t.b.shape[1] = 8);
    RULE(ALL, "t.b.shape[1]", "0", x.p.t.b.shape[1] = 0);
    RULE(ALL, "columns", "9", x.p.t.b.shape[2] = 9);
    RULE(READERS, "s.a.data", "aligned", x.p.s.a.data = (char *)x.p.s.a.data + 1);
    RULE(READERS, "t.b.data", "aligned", x.p.t.b.data = (char *)x.p.t.b.data + 2);
    LINEAR(READERS, "s.a.shape[2]", "2199023255552", x.p.s.a.shape[2] = x.p.s.b.shape[1] = (int64_t)1 << 41);
    LINEAR(ALL, "t.a.ndim", "2", x.p.t.a = skl_matrix(SKL_F32, x.p.t.a.data, 5, 4));
    LINEAR(ALL, "s.bias", "3", x.p.s.bias.shape[0] = 3);
    LINEAR(READERS, "t.bias.dtype", "3", x.p.t.bias.dtype = SKL_I32);
    LINEAR(ALL, "t.bias.ndim", "2", x.p.t.bias.ndim = 2);
    RULE(READERS, "s.bias", "0x", x.p.s.bias = skl_vector(SKL_F32, x.f->in[0].t.data, x.p.s.b.shape[2]));
}

static void rows(void)
{
    RULE(READERS, "begin.dtype", "0", (x.p.begin = x.f->out[KIT_LSE_S].t));
    RULE(READERS, "end.dtype", "0", (x.p.end = x.f->out[KIT_LSE_S].t));
    RULE(ALL, "weight.dtype", "1", (x.p.weight = x.f->p.weight, x.p.weight.dtype = SKL_BF16));
    RULE(ALL, "weight.ndim", "2", (x.p.weight.ndim = 2));
    RULE(ALL, "weight.shape[1]", "5", (x.p.weight.shape[1] = 5));
    RULE(WRITERS, "out.loss.dtype", "2", x.out.loss.dtype = SKL_F16);
    RULE(WRITERS, "out.lse_s.ndim", "4", x.out.lse_s.ndim = 4);
    RULE(WRITERS, "out.lse_t.shape[2]", "1", x.out.lse_t.shape[2] = 1);
    RULE(WRITERS, "out.kl_s", "0x", (x.out.kl_s = x.out.lse_s, x.out.lse_s.data = NULL));
    RULE(WRITERS, "out.loss", "0", x.out.loss.stride[2] = 0);
    RULE(WRITERS, "out.loss", "1", (x.out.loss.stride[2] = x.out.loss.stride[0] = x.out.loss.stride[1] = 1));
}

/* Gives the call labels, and returns integers over the rows. */
static struct skl_tensor integers(struct args *x, struct skl_labels *labels)
{
    static int32_t ids[STATES];
    struct skl_tensor t = x->f->out[KIT_LOSS].t;
    t.data = ids, t.dtype = SKL_I32;
    for (int i = 0; i < t.ndim; i++) t.stride[i] = 0;
    *labels = (struct skl_labels){.struct_size = sizeof *labels, .ids = t, .kl_weight = 1};
    x->p.labels = labels;
    return t;
}

/* What is in a tensor is read when all of them have their shapes and are on one device: these have no memory there. */
static void contents(void)
{
    enum { CALLS = VALUE | GRAD | SIZE };
    void *device = (void *)(uintptr_t)256;
    struct skl_labels labels;
    LINEAR(CALLS, "mass_ids.ndim", "77",
           (x.p.mass_ids = integers(&x, &labels), x.p.mass_ids.data = device, x.p.mass_ids.ndim = 77));
    LINEAR(CALLS, "weight", "cuda:0",
           (x.p.weight = integers(&x, &labels), x.p.weight.dtype = SKL_F32, x.p.weight.data = device,
            x.p.weight.device = SKL_CUDA));
    LINEAR(CALLS, "labels.ids", "cuda:0",
           (integers(&x, &labels), labels.ids.data = device, labels.ids.device = SKL_CUDA));
    LINEAR(GRAD, "out.t gradients", "no teacher",
           (integers(&x, &labels), x.p.t.a.data = x.p.t.b.data = x.p.t.bias.data = NULL, x.out.lse_t.data = NULL));
    LINEAR(CALLS, "head_map", "linear",
           (x.p.head_map = integers(&x, &labels), x.p.head_map.data = device, x.p.t.a.data = x.p.t.b.data = NULL));
    RULE(CALLS, "head_map", "cuda:0", (x.p.head_map = skl_on_cuda(skl_vector(SKL_I32, device, x.p.s.a.shape[1]), 0)));
}

/* Tensors whose rows repeat one place (stride 0), 2^40 times: the border reads it once. Otherwise the alarm ends it. */
static void repeated(void)
{
    static const float a[2], b[4], weight = 0.5F;
    static int32_t ids[2];
    static float logprobs[2];
    const int64_t many = (int64_t)1 << 40;
    struct skl_tensor s = skl_matrix(SKL_F32, a, many, 2), one = skl_vector(SKL_I32, ids, many);
    s.stride[0] = 0, one.stride[0] = 0;
    struct skl_labels labels = {.struct_size = sizeof labels, .ids = one, .kl_weight = 1};
    struct skl_problem labelled = skl_linear(s, skl_matrix(SKL_F32, b, 2, 2), s, skl_matrix(SKL_F32, b, 2, 2));
    struct skl_outputs out = skl_no_outputs();
    size_t bytes;
    labelled.weight = one, labelled.weight.dtype = SKL_F32, labelled.weight.data = (void *)&weight;
    labelled.mass_ids = skl_matrix(SKL_I32, ids, many, many >> 25); /* together less than 2^60 */
    labelled.mass_ids.stride[0] = labelled.mass_ids.stride[1] = 0;
    struct skl_problem listing = labelled;
    labelled.labels = &labels;
    struct skl_listed list = {.struct_size = sizeof list, .ids = skl_matrix(SKL_I32, ids, many, 2)};
    list.logprobs = skl_matrix(SKL_F32, logprobs, many, 2), list.tail = SKL_TAIL_ZERO;
    list.ids.stride[0] = list.logprobs.stride[0] = 0;
    listing.listed = &list, listing.mass_ids.data = NULL, listing.t = (struct skl_side){0};
    test_context("rows that repeat one place");
    alarm(60);
    CHECK_STATUS(skl_workspace_size(SKL_CALL_VALUE, &labelled, &out, &bytes), SKL_OK);
    CHECK_STATUS(skl_workspace_size(SKL_CALL_VALUE, &listing, &out, &bytes), SKL_OK);
    ids[0] = 7; /* the first of them is named */
    CHECK_STATUS(skl_workspace_size(SKL_CALL_VALUE, &labelled, &out, &bytes), SKL_BAD_ARGUMENT);
    CHECK(strstr(skl_last_error(), "labels.ids[0] = 7") != NULL, "\"%s\"", skl_last_error());
    CHECK_STATUS(skl_workspace_size(SKL_CALL_VALUE, &listing, &out, &bytes), SKL_BAD_ARGUMENT);
    CHECK(strstr(skl_last_error(), "listed.ids[0][0] = 7") != NULL, "\"%s\"", skl_last_error());
    alarm(0);
}

/* More rows than there may be, in heads that repeat one place: a row's results are counted in bytes. */
static void too_many_rows(void)
{
    static const float a[2];
    const int64_t many = (int64_t)1 << 21;
    struct skl_tensor x = skl_heads(SKL_F32, a, many, many, 1, 2);
    x.stride[0] = x.stride[1] = x.stride[2] = 0;
    struct skl_problem p = skl_attention(x, x, x, x);
    struct skl_outputs out = skl_no_outputs();
    size_t bytes;
    double value;
    out.value = &value;
    test_context("2^42 rows");
    CHECK_STATUS(skl_workspace_size(SKL_CALL_VALUE, &p, &out, &bytes), SKL_BAD_ARGUMENT);
    CHECK(strstr(skl_last_error(), "s.a with 4.398e+12 rows") != NULL, "\"%s\"", skl_last_error());
}

static void outputs(void)
{
    RULE(WRITERS | BACKWARD | SIZE, "out", "NULL", x.to = NULL);
    RULE(WRITERS | BACKWARD | SIZE, "out.struct_size", "8", x.out.struct_size = 8);
    RULE(BACKWARD, "saved", "NULL", x.from = NULL);
    RULE(BACKWARD, "saved.struct_size", "1", x.saved.struct_size = 1);
    RULE(PARTIAL | FINISH, "state", "NULL", x.states = NULL);
    RULE(DERIVING, "out.s.a.shape[3]", "1", x.out.s.a.shape[3] = 1);
    RULE(DERIVING, "out.t.b.shape[2]", "1", x.out.t.b.shape[2] = 1);
    RULE(DERIVING, "out.s.a.dtype", "2", x.out.s.a.dtype = SKL_F16);  /* the operand is bf16 */
    RULE(DERIVING, "out.t.a.dtype", "1", x.out.t.a.dtype = SKL_BF16); /* the operand is f32 */
    RULE(DERIVING, "out.s.b.stride[3]", "2", x.out.s.b.stride[3] = 2);
    RULE(DERIVING, "out.s.a", "0", x.out.s.a.stride[2] = 0);
    RULE(DERIVING, "out.s.a", "share memory", x.out.s.a.stride[2] = x.out.s.a.shape[3] - 1);
    RULE(DERIVING, "out.s.b", "share memory", x.out.s.b.stride[0] = x.out.s.b.stride[2]);
    RULE(DERIVING, "out.s.b", "s.b", x.out.s.b.data = x.p.s.b.data);
    RULE(DERIVING, "out.t.a", "s.a", x.out.t.a.data = (char *)x.p.s.a.data + 8);
    RULE(DERIVING, "out.t.a", "out.s.a", x.out.t.a.data = x.out.s.a.data);
    RULE(DERIVING, "out.s.a", "weight", x.out.s.a.data = x.p.weight.data);
    RULE(WRITERS, "out.value", "aligned", x.out.value = (double *)(void *)((char *)&x.value + 4));
    RULE(WRITERS, "out.value", "out.loss", x.out.value = x.out.loss.data);
    RULE(VALUE | GRAD, "out.value", "t.a", x.out.value = x.p.t.a.data);
    RULE(VALUE | GRAD, "out.l_s.shape[2]", "2", (x.out.l_s = x.out.loss, x.out.l_s.shape[2] = 2));
    RULE(VALUE | GRAD, "out.m_t", "out.loss", x.out.m_t = x.out.loss);
    RULE(PARTIAL, "state", "aligned", x.states = (struct skl_state *)(void *)((char *)x.state + 4));
    RULE(PARTIAL, "state", "s.b", x.states = x.p.s.b.data);
    RULE(FINISH, "out.loss", "the states", x.out.loss.data = (char *)x.state + 48);
    RULE(WRITERS, "out.lse_s", "out.loss", x.out.lse_s.data = x.out.loss.data);
    RULE(WRITERS & ~FINISH, "out.loss", "t.b", x.out.loss.data = x.p.t.b.data);
    RULE(DERIVING, "out.s.bias", "0x", x.out.s.bias = skl_vector(SKL_F32, x.out.loss.data, x.p.s.b.shape[2]));
    LINEAR(DERIVING, "out.s.bias.shape[0]", "2", x.out.s.bias.shape[0] = 2);
    LINEAR(DERIVING, "out.t.bias.dtype", "2", x.out.t.bias.dtype = SKL_F16);
}

/* What one call takes and another does not. */
static void between_calls(void)
{
    struct args x;
    fresh(&x, &attention);
    test_context("gradients in skl_value");
    CHECK_STATUS(skl_value(&x.p, &x.out), SKL_BAD_ARGUMENT);
    CHECK(strstr(skl_last_error(), "out.s"), "said \"%s\"", skl_last_error());
    test_context("rows in skl_backward");
    x.saved = kit_outputs(&attention, 1, 0);
    CHECK_STATUS(skl_backward(&x.p, &x.saved, &x.out), SKL_BAD_ARGUMENT);
    CHECK(strstr(skl_last_error(), "out."), "said \"%s\"", skl_last_error());
    test_context("what a backward needs");
    static const struct {
        int divergence, missing;
        unsigned grads;
    } needs[] = {
        {SKL_FORWARD_KL, KIT_LSE_S, KIT_GRAD_A_S}, {SKL_FORWARD_KL, KIT_LSE_T, KIT_GRAD_A_S},
        {SKL_FORWARD_KL, KIT_LOSS, KIT_GRAD_B_T},  {SKL_REVERSE_KL, KIT_LOSS, KIT_GRAD_A_S},
        {SKL_JSD, KIT_KL_S, KIT_GRAD_B_S},         {SKL_JSD, KIT_KL_T, KIT_GRAD_A_T},
    };
    for (int k = 0; k < COUNT(needs); k++) {
        struct skl_outputs saved = kit_outputs(&attention, 1, 0), out = kit_outputs(&attention, 0, needs[k].grads);
        if (needs[k].divergence == SKL_JSD) { /* any rows will do: the call is refused */
            *kit_slot(&saved, needs[k].missing == KIT_KL_S ? KIT_KL_T : KIT_KL_S) = saved.loss;
        }
        kit_slot(&saved, needs[k].missing)->data = NULL;
        x.p.divergence = needs[k].divergence;
        CHECK_STATUS(skl_backward(&x.p, &saved, &out), SKL_BAD_ARGUMENT);
        CHECK(strstr(skl_last_error(), kit_results[needs[k].missing].name), "said \"%s\", missing %s", skl_last_error(),
              kit_results[needs[k].missing].name);
    }
    test_context("merge");
    CHECK_STATUS(skl_merge(-1, x.state, x.state), SKL_BAD_ARGUMENT);
    CHECK(strstr(skl_last_error(), "rows = -1"), "said \"%s\"", skl_last_error());
    CHECK_STATUS(skl_merge(1, NULL, x.state), SKL_BAD_ARGUMENT);
    CHECK(strstr(skl_last_error(), "into"), "said \"%s\"", skl_last_error());
    CHECK_STATUS(skl_merge(1, x.state, NULL), SKL_BAD_ARGUMENT);
    CHECK(strstr(skl_last_error(), "from"), "said \"%s\"", skl_last_error());
    CHECK_STATUS(skl_merge(0, NULL, NULL), SKL_OK);
    CHECK_STATUS(skl_merge(2, x.state, x.state), SKL_BAD_ARGUMENT);
    CHECK(strstr(skl_last_error(), "from"), "said \"%s\"", skl_last_error());
    CHECK_STATUS(skl_merge(2, x.state, x.state + 1), SKL_BAD_ARGUMENT);
    CHECK_STATUS(skl_merge(1, x.state, (struct skl_state *)(void *)((char *)x.state + 100)), SKL_BAD_ARGUMENT);
    CHECK(strstr(skl_last_error(), "aligned"), "said \"%s\"", skl_last_error());
    test_context("workspace_size");
    CHECK_STATUS(skl_workspace_size(SKL_CALL_VALUE_AND_GRAD, &x.p, &x.out, NULL), SKL_BAD_ARGUMENT);
    CHECK(strstr(skl_last_error(), "bytes"), "said \"%s\"", skl_last_error());
    size_t bytes;
    CHECK_STATUS(skl_workspace_size((enum skl_call)9, &x.p, &x.out, &bytes), SKL_BAD_ARGUMENT);
    CHECK(strstr(skl_last_error(), "call"), "said \"%s\"", skl_last_error());
}

/* The calls that were to be broken do succeed unbroken, or the rules above would prove nothing. */
static void unbroken(void)
{
    struct kit_fixture *both[] = {&attention, &linear};
    for (int k = 0; k < 2; k++)
        for (int which = 1; which <= SIZE; which *= 2) {
            struct args x;
            fresh(&x, both[k]);
            for (int i = 0; i < STATES; i++) x.state[i] = (struct skl_state){0, 1, 0, 0, 1, 0};
            test_context("unbroken, call %d", which);
            CHECK_STATUS(call(&x, which), SKL_OK);
        }
}

static void *error_elsewhere(void *data)
{
    *(int *)data = skl_last_error()[0] == 0;
    return NULL;
}

/* Messages belong to the thread, numbers that are no status have a name. */
static void messages(void)
{
    pthread_t thread;
    int empty = 0;
    test_context("messages");
    CHECK_STATUS(skl_value(NULL, NULL), SKL_BAD_ARGUMENT);
    pthread_create(&thread, NULL, error_elsewhere, &empty);
    pthread_join(thread, NULL);
    CHECK(empty, "another thread sees this thread's message");
    for (int s = -1; s < 9; s++) CHECK(skl_status_string((enum skl_status)s) != NULL, "status %d has no string", s);
    for (int i = -1; i < 9; i++) CHECK(skl_isa_name((enum skl_isa)i) != NULL, "instruction set %d has no name", i);
    CHECK(!strcmp(skl_isa_name((enum skl_isa)77), "unknown"), "isa 77 is %s", skl_isa_name((enum skl_isa)77));
}

int main(void)
{
    test_begin("test_errors");
    CHECK(skl_last_error()[0] == 0, "no call failed, yet the message is \"%s\"", skl_last_error());
    struct kit_case c = kit_attention_case(5, 6, 4);
    c.batch = 2, c.heads = 4, c.key_heads[S] = 2, c.weights = KIT_POSITIVE, c.dtype[S] = SKL_BF16;
    test_build(&attention, &c);
    c = kit_linear_case(5, 6, 4);
    c.lead = 2, c.heads = 2, c.bias[S] = c.bias[T] = 1, c.weights = KIT_POSITIVE;
    test_build(&linear, &c);
    unbroken();
    numbers();
    operands();
    rows();
    contents();
    repeated();
    too_many_rows();
    outputs();
    between_calls();
    messages();
    test_destroy(&attention), test_destroy(&linear);
    return test_end();
}
