/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA tensors at the border: what is refused, and what every call answers where there is no CUDA device or no CUDA in
 * the build. The tensors' addresses are made up, so whoever reads or writes one crashes.
 */
#include "test.h"

#include <streamkl/streamkl.h>

#ifdef TEST_CUDA
#include "../src/cuda/host/device.h"
#endif

enum { B = 2, H = 4, KEY_HEADS = 2, N = 5, M = 6, D = 8 };

/* Addresses that are never mapped, each tensor in a gigabyte of its own. */
static void *address(int which)
{
    return (void *)(((uintptr_t)0x5000 << 32) + ((uintptr_t)(which + 1) << 30));
}

static struct skl_tensor rows_view(const struct skl_problem *p, int32_t dtype, int which)
{
    struct skl_tensor t = p->s.a;
    t.data = address(which), t.dtype = dtype, t.ndim--;
    for (int i = 0; i < t.ndim; i++) t.stride[i] = p->s.a.stride[i] / D;
    return t;
}

/* A call that would succeed on a device; everything that can be given is given. */
struct args {
    struct skl_problem p;
    struct skl_outputs rows, grads, all, saved; /* as value, backward and value_and_grad want them */
};

static struct args fresh(int attention)
{
    struct args x;
    if (attention)
        x.p = skl_attention(skl_on_cuda(skl_heads(SKL_BF16, address(0), B, H, N, D), 1),
                            skl_on_cuda(skl_heads(SKL_BF16, address(1), B, KEY_HEADS, M, D), 1),
                            skl_on_cuda(skl_heads(SKL_F16, address(2), B, H, N, D), 1),
                            skl_on_cuda(skl_heads(SKL_F16, address(3), B, H, M, D), 1));
    else
        x.p = skl_linear(skl_on_cuda(skl_matrix(SKL_BF16, address(0), N, D), 1),
                         skl_on_cuda(skl_matrix(SKL_BF16, address(1), M, D), 1),
                         skl_on_cuda(skl_matrix(SKL_F32, address(2), N, D), 1),
                         skl_on_cuda(skl_matrix(SKL_F32, address(3), M, D), 1));
    if (!attention) {
        x.p.s.bias = skl_on_cuda(skl_vector(SKL_BF16, address(4), M), 1);
        x.p.t.bias = skl_on_cuda(skl_vector(SKL_F32, address(5), M), 1);
    }
    x.p.divergence = SKL_JSD;
    x.p.begin = rows_view(&x.p, SKL_I32, 6);
    x.p.end = rows_view(&x.p, SKL_I32, 7);
    x.p.weight = rows_view(&x.p, SKL_F32, 8);
    x.rows = x.grads = x.all = x.saved = skl_no_outputs();
    struct skl_tensor *rows[] = {&x.rows.loss, &x.rows.lse_s, &x.rows.lse_t, &x.rows.kl_s, &x.rows.kl_t};
    struct skl_tensor *saved[] = {&x.saved.loss, &x.saved.lse_s, &x.saved.lse_t, &x.saved.kl_s, &x.saved.kl_t};
    for (int i = 0; i < 5; i++) {
        *rows[i] = rows_view(&x.p, SKL_F32, 10 + i);
        *saved[i] = rows_view(&x.p, SKL_F32, 20 + i);
    }
    struct skl_tensor *grads[] = {&x.grads.s.a, &x.grads.s.b, &x.grads.s.bias,
                                  &x.grads.t.a, &x.grads.t.b, &x.grads.t.bias};
    const struct skl_tensor *of[] = {&x.p.s.a, &x.p.s.b, &x.p.s.bias, &x.p.t.a, &x.p.t.b, &x.p.t.bias};
    for (int i = 0; i < 6; i++)
        if (of[i]->data)
            *grads[i] = *of[i], grads[i]->data = address(30 + i);
    x.rows.value = address(40);
    x.all = x.rows, x.all.s = x.grads.s, x.all.t = x.grads.t;
    return x;
}

enum { VALUE, GRAD, BACKWARD, PARTIAL, SECOND_SWEEP, FINISH, SIZE, CALLS };

static enum skl_status call(const struct args *x, int which, size_t *bytes)
{
    switch (which) {
    case VALUE: return skl_value(&x->p, &x->rows);
    case GRAD: return skl_value_and_grad(&x->p, &x->all);
    case BACKWARD: return skl_backward(&x->p, &x->saved, &x->grads);
    case PARTIAL: return skl_partial(&x->p, NULL, address(41));
    case SECOND_SWEEP: return skl_partial(&x->p, &x->saved, address(41));
    case FINISH: return skl_finish(&x->p, address(41), &x->rows);
    default: return skl_workspace_size(SKL_CALL_VALUE_AND_GRAD, &x->p, &x->all, bytes);
    }
}

/* Every call, on every kind of problem: the status, its sentence, nothing written. */
static void no_device(void)
{
    enum skl_status want = skl_cuda_built() ? SKL_NO_DEVICE : SKL_UNSUPPORTED;
    const char *say = skl_cuda_built() ? "no CUDA device" : "-DSTREAMKL_CUDA=ON";
    for (int attention = 0; attention < 2; attention++)
        for (int which = 0; which < CALLS; which++) {
            struct args x = fresh(attention);
            /* What the CPU would look at: */
            x.p.threads = 3, x.p.skip_below = 0.5, x.p.isa = SKL_ISA_NEON, x.p.stream = address(42);
            x.p.any_order = which % 2;
            x.p.workspace = which % 2 ? address(43) : NULL, x.p.workspace_bytes = which % 2 ? 1 << 20 : 0;
            size_t bytes = 77;
            test_context("%s, call %d", attention ? "attention" : "linear", which);
            CHECK_STATUS(call(&x, which, &bytes), want);
            CHECK(strstr(skl_last_error(), say), "said \"%s\"", skl_last_error());
            CHECK(bytes == 77, "the size was written");
        }
    test_context("no rows, no columns");
    for (int which = 0; which < 2; which++) {
        struct args x = fresh(1);
        x.p = skl_attention(skl_on_cuda(skl_heads(SKL_F32, address(0), 1, 1, which ? 0 : 3, 4), 0),
                            skl_on_cuda(skl_heads(SKL_F32, address(1), 1, 1, which ? 3 : 0, 4), 0),
                            skl_on_cuda(skl_heads(SKL_F32, address(2), 1, 1, which ? 0 : 3, 4), 0),
                            skl_on_cuda(skl_heads(SKL_F32, address(3), 1, 1, which ? 3 : 0, 4), 0));
        struct skl_outputs out = skl_no_outputs();
        out.value = address(40);
        CHECK_STATUS(skl_value(&x.p, &out), want);
    }
    test_context("devices");
    CHECK(skl_cuda_devices() == 0, "%d devices", skl_cuda_devices());
    CHECK(strstr(skl_last_error(), say), "said \"%s\"", skl_last_error());
}

/* RULE(attention, calls, status, sentence, change): after 'change' of the fresh call x, those calls say so. */
#define ONE(which) (1 << (which))
enum { ALL = (1 << CALLS) - 1 };

static void refused(const struct args *x, int calls, enum skl_status status, const char *sentence)
{
    for (int which = 0; which < CALLS; which++) {
        size_t bytes = 77;
        if (!(calls & ONE(which)))
            continue;
        test_context("\"%s\", call %d", sentence, which);
        CHECK_STATUS(call(x, which, &bytes), status);
        CHECK(strstr(skl_last_error(), sentence), "said \"%s\"", skl_last_error());
        CHECK(bytes == 77, "the size was written");
    }
}

#define RULE(attention, calls, status, sentence, change) \
    do {                                                 \
        struct args x = fresh(attention);                \
        change;                                          \
        refused(&x, calls, status, sentence);            \
    } while (0)
#define MIXED(attention, calls, sentence, change) RULE(attention, calls, SKL_BAD_ARGUMENT, sentence, change)

static void to_cpu(struct skl_tensor *t)
{
    t->device = SKL_CPU, t->device_index = 0;
}

/* Tensors on different devices: both are named. */
static void mixing(void)
{
    int rows = ONE(VALUE) | ONE(FINISH), saved = ONE(BACKWARD) | ONE(SECOND_SWEEP);
    MIXED(1, ALL, "cannot use t.b on cuda:0: s.a is on cuda:1", x.p.t.b.device_index = 0);
    MIXED(1, ALL, "cannot use t.a on cpu: s.a is on cuda:1", to_cpu(&x.p.t.a));
    MIXED(1, ALL, "cannot use s.b on cuda:1: s.a is on cpu", to_cpu(&x.p.s.a));
    MIXED(0, ALL, "cannot use s.bias on cpu: s.a is on cuda:1", to_cpu(&x.p.s.bias));
    MIXED(0, ALL, "cannot use t.bias on cuda:7: s.a is on cuda:1", x.p.t.bias.device_index = 7);
    MIXED(0, ALL, "cannot use begin on cpu: s.a is on cuda:1", to_cpu(&x.p.begin));
    MIXED(0, ALL, "cannot use end on cpu: s.a is on cuda:1", to_cpu(&x.p.end));
    MIXED(1, ALL, "cannot use weight on cpu: s.a is on cuda:1", to_cpu(&x.p.weight));
    MIXED(1, rows, "cannot use out.loss on cpu: s.a is on cuda:1", to_cpu(&x.rows.loss));
    MIXED(1, rows, "cannot use out.lse_s on cuda:2: s.a is on cuda:1", x.rows.lse_s.device_index = 2);
    MIXED(1, rows, "cannot use out.lse_t on cpu: s.a is on cuda:1", to_cpu(&x.rows.lse_t));
    MIXED(1, rows, "cannot use out.kl_s on cpu: s.a is on cuda:1", to_cpu(&x.rows.kl_s));
    MIXED(1, rows, "cannot use out.kl_t on cpu: s.a is on cuda:1", to_cpu(&x.rows.kl_t));
    MIXED(1, ONE(BACKWARD), "cannot use out.s.a on cpu: s.a is on cuda:1", to_cpu(&x.grads.s.a));
    MIXED(1, ONE(GRAD) | ONE(SIZE), "cannot use out.t.b on cpu: s.a is on cuda:1", to_cpu(&x.all.t.b));
    MIXED(0, ONE(GRAD), "cannot use out.s.bias on cpu: s.a is on cuda:1", to_cpu(&x.all.s.bias));
    MIXED(1, saved, "cannot use saved.lse_s on cpu: s.a is on cuda:1", to_cpu(&x.saved.lse_s));
    MIXED(1, saved, "cannot use saved.kl_t on cuda:0: s.a is on cuda:1", x.saved.kl_t.device_index = 0);
    /* A weight on a device of a problem on the CPU is not read before this is found. */
    struct skl_tensor *operands[4];
    MIXED(1, ALL, "cannot use begin on cuda:1: s.a is on cpu",
          (operands[0] = &x.p.s.a, operands[1] = &x.p.s.b, operands[2] = &x.p.t.a, operands[3] = &x.p.t.b,
           to_cpu(operands[0]), to_cpu(operands[1]), to_cpu(operands[2]), to_cpu(operands[3])));
}

static void numbers(void)
{
    RULE(1, ALL, SKL_UNSUPPORTED, "s.a.device = 2", x.p.s.a.device = 2);
    RULE(1, ALL, SKL_BAD_ARGUMENT, "t.a.device_index = -1", x.p.t.a.device_index = -1);
    RULE(1, ALL, SKL_BAD_ARGUMENT, "s.a.device_index = 1: it must be 0 on the CPU", x.p.s.a.device = SKL_CPU);
    RULE(1, ALL, SKL_BAD_ARGUMENT, "any_order = 2", x.p.any_order = 2);
    RULE(1, ALL, SKL_BAD_ARGUMENT, "problem.reserved = 1", x.p.reserved = 1);
    RULE(1, ALL, SKL_BAD_ARGUMENT, "workspace",
         (x.p.workspace = (char *)address(43) + 128, x.p.workspace_bytes = 4096));
    RULE(1, ALL, SKL_BAD_ARGUMENT, "workspace_bytes = 8: there is no workspace", x.p.workspace_bytes = 8);
    /* The rules that hold everywhere hold here too, and come first. */
    RULE(1, ALL, SKL_BAD_ARGUMENT, "temperature = 0", x.p.temperature = 0);
    RULE(1, ONE(GRAD), SKL_BAD_ARGUMENT, "out.s.a", x.all.s.a.data = x.p.t.a.data);
    RULE(1, ONE(VALUE), SKL_BAD_ARGUMENT, "out.s gradients", x.rows = x.all);
}

/* On the CPU: no workspace; stream and any_order count for nothing. */
static void on_the_cpu(void)
{
    float x[2] = {1, 0}, w_s[4] = {0, 0, 2.1972246f, 0}, w_t[4] = {2.1972246f, 0, 0, 0};
    struct skl_problem p = skl_linear(skl_matrix(SKL_F32, x, 1, 2), skl_matrix(SKL_F32, w_s, 2, 2),
                                      skl_matrix(SKL_F32, x, 1, 2), skl_matrix(SKL_F32, w_t, 2, 2));
    struct skl_outputs out = skl_no_outputs();
    double value = -7;
    out.value = &value;
    test_context("the CPU");
    p.workspace = address(0), p.workspace_bytes = 4096;
    CHECK_STATUS(skl_value(&p, &out), SKL_BAD_ARGUMENT);
    CHECK(strstr(skl_last_error(), "cannot use workspace"), "said \"%s\"", skl_last_error());
    CHECK(value == -7, "something was written");
    p.workspace = NULL, p.workspace_bytes = 0, p.stream = address(0), p.any_order = 1;
    CHECK_STATUS(skl_value(&p, &out), SKL_OK);
    CHECK_NEAR(value, 0.8 * log(9), 1e-6, "value");
    struct skl_tensor t = skl_on_cuda(p.s.a, 3);
    CHECK(t.device == SKL_CUDA && t.device_index == 3 && t.data == p.s.a.data && t.shape[1] == 2, "skl_on_cuda");
}

#ifdef TEST_CUDA
/* Each function of the table, where there is no device. */
static void table(void)
{
    const struct skl_gpu *g = &skl_gpu_cudart;
    struct skl_gpu_properties properties;
    struct {
        void *x;
        int n;
    } args = {NULL, 0};
    struct skl_gpu_launch launch = {"no such kernel", 1, 1, 32, 0, &args, sizeof args};
    struct skl_gpu_product product = {.m = 1, .n = 1, .k = 1, .lda = 1, .ldb = 1, .ldc = 1};
    struct skl_gpu_place before = {NULL, 0};
    void *data = NULL;
    test_context("table");
    CHECK(skl_gpu == g, "the table in use is not the CUDA runtime's");
    CHECK_STATUS(g->enter(0, &before), SKL_NO_DEVICE);
    CHECK_STATUS(g->properties(0, &properties), SKL_NO_DEVICE);
    CHECK_STATUS(g->clear(address(0), 256, NULL), SKL_NO_DEVICE);
    CHECK_STATUS(g->allocate(256, NULL, &data), SKL_NO_DEVICE);
    CHECK_STATUS(g->launch(&launch, NULL), SKL_DEVICE_FAILED);
    CHECK(strstr(skl_last_error(), "no such kernel"), "said \"%s\"", skl_last_error());
    static const char *const kernels[] = {
#define SKL_KERNEL(name, ...) #name,
#include "../src/cuda/kernels.def"
#undef SKL_KERNEL
    };
    for (int i = 0; i < COUNT(kernels); i++) {
        test_context("kernel %s", kernels[i]);
        launch.kernel = kernels[i], launch.grid_x = 1, launch.grid_y = 1;
        launch.shared_bytes = i % 2 ? 0 : 64 * 1024;
        CHECK_STATUS(g->launch(&launch, NULL), SKL_NO_DEVICE);
        launch.grid_x = (int64_t)1 << 31;
        CHECK_STATUS(g->launch(&launch, NULL), SKL_DEVICE_FAILED);
        launch.grid_x = 1, launch.grid_y = 65536;
        CHECK_STATUS(g->launch(&launch, NULL), SKL_DEVICE_FAILED);
        CHECK(strstr(skl_last_error(), "1 x 65536"), "said \"%s\"", skl_last_error());
    }
    test_context("product");
    CHECK_STATUS(g->product(&product, NULL), SKL_NO_DEVICE);
    g->release(address(0), NULL); /* says nothing */
    g->leave(&before);
}
#else
static void table(void)
{
}
#endif

int main(void)
{
    test_begin("test_device");
    on_the_cpu();
    mixing();
    numbers();
    if (skl_cuda_devices() == 0) {
        no_device();
        table();
    } else {
        printf("%d CUDA devices here: what is said without one was not tried\n", skl_cuda_devices());
    }
    return test_end();
}
