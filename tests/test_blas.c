/* SPDX-License-Identifier: Apache-2.0
 *
 * Products by cuBLAS, with a cuBLAS made up here: what it is asked for, computed as its manual says (by columns, on the
 * host), is the product that was wanted. And what is said when it is missing, too old, or fails.
 */
#include "test.h"

#include <dlfcn.h>
#include <pthread.h>

static void *test_dlopen(const char *name, int mode);
static void *test_dlsym(void *library, const char *name);
static char *test_dlerror(void);
static int test_dlclose(void *library);

#define dlopen test_dlopen
#define dlsym test_dlsym
#define dlerror test_dlerror
#define dlclose test_dlclose
#include "../src/cuda/host/blas.c" /* NOLINT(bugprone-suspicious-include): with the functions above inside it */
#undef dlopen
#undef dlsym
#undef dlerror
#undef dlclose

#include "../src/half.h"

/* ------------------------------------------------------------------------------------ a cuBLAS of our own --- */

static struct {
    const char *has;      /* the only library there is */
    int loaded_by_others; /* it is in the process already */
    const char *lacks;    /* a symbol */
    int fails;            /* the step that fails, in their order */
    int current;          /* context */
    int capturing;        /* the stream is */
    int created, destroyed, mode, pointer_mode, busy, intrusions;
    void *stream, *workspace;
    size_t workspace_bytes;
    char tried[200];
} fake;

struct cublasContext {
    int made_in;
};

static void *test_dlopen(const char *name, int mode)
{
    size_t n = strlen(fake.tried);
    snprintf(fake.tried + n, sizeof fake.tried - n, "%s%s ", mode & RTLD_NOLOAD ? "?" : "", name);
    int found = fake.has && !strcmp(fake.has, name) && (fake.loaded_by_others || !(mode & RTLD_NOLOAD));
    return found ? &fake : NULL;
}

static char *test_dlerror(void)
{
    static char text[] = "libcublas.so: cannot open shared object file";
    return text;
}

static int test_dlclose(void *library)
{
    CHECK(library == &fake, "another library is closed");
    return 0;
}

enum skl_status skl_gpu_context(uint64_t *number)
{
    *number = (uint64_t)fake.current;
    return SKL_OK;
}

enum skl_status skl_gpu_capturing(void *stream, int *capturing)
{
    (void)stream;
    *capturing = fake.capturing;
    return SKL_OK;
}

static int create(blas_handle *handle)
{
    CHECK(!fake.capturing, "a handle is made in a capture");
    if (fake.fails == 1)
        return 3;
    *handle = malloc(sizeof **handle);
    (*handle)->made_in = fake.current;
    fake.created++;
    return 0;
}

static int destroy(blas_handle handle)
{
    fake.destroyed++;
    free(handle);
    return 0;
}

static int set_math_mode(blas_handle handle, int mode)
{
    (void)handle;
    fake.mode = mode;
    return fake.fails == 2 ? 7 : 0;
}

static int set_pointer_mode(blas_handle handle, int mode)
{
    (void)handle;
    fake.pointer_mode = mode;
    return fake.fails == 3 ? 7 : 0;
}

static int set_stream(blas_handle handle, void *stream)
{
    fake.intrusions += fake.busy++ != 0;
    CHECK(handle->made_in == fake.current, "the handle of context %d", handle->made_in);
    fake.stream = stream, fake.workspace = NULL, fake.workspace_bytes = 0;
    return fake.fails == 4 ? 7 : 0;
}

static int set_workspace(blas_handle handle, void *workspace, size_t bytes)
{
    (void)handle;
    fake.workspace = workspace, fake.workspace_bytes = bytes;
    return fake.fails == 5 ? 7 : 0;
}

static double get(const void *data, int type, int64_t at)
{
    if (type == R_32F)
        return ((const float *)data)[at];
    uint16_t x = ((const uint16_t *)data)[at];
    return (double)(type == R_16BF ? skl_from_bf16(x) : skl_from_f16(x));
}

static void put(void *data, int type, int64_t at, double value)
{
    if (type == R_32F)
        ((float *)data)[at] = (float)value;
    else
        ((uint16_t *)data)[at] = type == R_16BF ? skl_to_bf16((float)value) : skl_to_f16((float)value);
}

/* C [m, n] = alpha op(A) [m, k] op(B) [k, n] + beta C, each stored by columns. */
static int gemm(blas_handle handle, int op_a, int op_b, int64_t m, int64_t n, int64_t k, const void *alpha,
                const void *a, int type_a, int64_t lda, const void *b, int type_b, int64_t ldb, const void *beta,
                void *c, int type_c, int64_t ldc, int compute, int algorithm)
{
    (void)handle;
    CHECK(compute == COMPUTE_32F && algorithm == GEMM_DEFAULT, "compute type %d, algorithm %d", compute, algorithm);
    CHECK(lda >= (op_a ? k : m) && ldb >= (op_b ? n : k) && ldc >= m, "leading dimensions");
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t l = 0; l < k; l++)
                sum += get(a, type_a, op_a ? l + i * lda : i + l * lda) *
                       get(b, type_b, op_b ? j + l * ldb : l + j * ldb);
            double scale = (double)*(const float *)beta, old = scale == 0 ? 0 : get(c, type_c, i + j * ldc);
            put(c, type_c, i + j * ldc, (double)*(const float *)alpha * sum + scale * old);
        }
    fake.busy--;
    return fake.fails == 6 ? 13 : 0;
}

static const char *status_string(int status)
{
    return status == 13 ? "execution failed" : "some other status";
}

static void *test_dlsym(void *library, const char *name)
{
    static const struct {
        const char *name;
        void (*function)(void);
    } all[] = {{"cublasCreate_v2", (void (*)(void))create},
               {"cublasDestroy_v2", (void (*)(void))destroy},
               {"cublasSetMathMode", (void (*)(void))set_math_mode},
               {"cublasSetPointerMode_v2", (void (*)(void))set_pointer_mode},
               {"cublasSetStream_v2", (void (*)(void))set_stream},
               {"cublasSetWorkspace_v2", (void (*)(void))set_workspace},
               {"cublasGemmEx_64", (void (*)(void))gemm},
               {"cublasGetStatusString", (void (*)(void))status_string}};
    CHECK(library == &fake, "symbols of another library");
    for (int i = 0; i < COUNT(all); i++)
        if (!strcmp(name, all[i].name) && !(fake.lacks && !strcmp(name, fake.lacks)))
            return (void *)all[i].function;
    return NULL;
}

/* ------------------------------------------------------------------------------------------------- tests --- */

/* Forgets the library and the handles. */
static void again(void)
{
    memset(&fake, 0, sizeof fake);
    blas.loaded = 0;
    for (int i = 0; i < CONTEXTS; i++) free(handles[i].handle), handles[i].handle = NULL;
    fake.has = "libcublas.so.13";
}

static void expect(const struct skl_gpu_product *p, enum skl_status status, const char *sentence)
{
    enum skl_status got = skl_blas_product(p, NULL);
    CHECK(got == status, "gave \"%s\" (%s), expected \"%s\"", skl_status_string(got), skl_last_error(),
          skl_status_string(status));
    CHECK(strstr(skl_last_error(), sentence), "said \"%s\", expected \"%s\"", skl_last_error(), sentence);
    CHECK(!pthread_mutex_trylock(&lock) && !pthread_mutex_unlock(&lock), "the lock is kept");
}

static void loading(void)
{
    float one = 1, nothing = 0, c = 0;
    struct skl_gpu_product p = {.m = 1, .n = 1, .k = 1, .a = &one, .b = &one, .c = &c, .lda = 1, .ldb = 1, .ldc = 1};
    p.alpha = &one, p.beta = &nothing;
    test_context("missing");
    again();
    fake.has = NULL;
    expect(&p, SKL_NO_LIBRARY, "cannot load cuBLAS (libcublas.so.13 or .12)");
    CHECK(strstr(skl_last_error(), "cannot open shared object file"), "said \"%s\"", skl_last_error());
    CHECK(strstr(skl_last_error(), "LD_LIBRARY_PATH"), "the sentence is cut: \"%s\"", skl_last_error());
    CHECK(!strcmp(fake.tried, "?libcublas.so.13 ?libcublas.so.12 ?libcublas.so libcublas.so.13 libcublas.so.12 "
                              "libcublas.so "),
          "tried %s", fake.tried);
    test_context("installed meanwhile");
    fake.has = "libcublas.so.12";
    CHECK_STATUS(skl_blas_product(&p, NULL), SKL_OK);
    CHECK(c == 1, "1 x 1 = %g", (double)c);
    test_context("loaded by others");
    again();
    fake.has = "libcublas.so.12", fake.loaded_by_others = 1;
    CHECK_STATUS(skl_blas_product(&p, NULL), SKL_OK);
    CHECK(!strcmp(fake.tried, "?libcublas.so.13 ?libcublas.so.12 "), "tried %s", fake.tried);
    test_context("too old");
    again();
    fake.lacks = "cublasGemmEx_64";
    expect(&p, SKL_NO_LIBRARY, "no cublasGemmEx_64");
    static const char *const steps[] = {"cublasCreate",         "cublasSetMathMode",
                                        "cublasSetPointerMode", "cublasSetStream",
                                        "cublasSetWorkspace",   "cublasGemmEx failed: execution failed (13)"};
    for (int step = 1; step <= COUNT(steps); step++) {
        test_context("failing step %d", step);
        again();
        fake.fails = step;
        p.workspace = &fake, p.workspace_bytes = 1;
        expect(&p, step == 1 ? SKL_OUT_OF_MEMORY : SKL_DEVICE_FAILED, steps[step - 1]);
        CHECK(fake.destroyed == (step == 2 || step == 3), "%d handles destroyed", fake.destroyed);
        CHECK(skl_blas_prepare(NULL) == (step < 4 ? step == 1 ? SKL_OUT_OF_MEMORY : SKL_DEVICE_FAILED : SKL_OK),
              "prepared: %s", skl_last_error());
    }
    test_context("many contexts");
    again();
    for (fake.current = 0; fake.current < CONTEXTS; fake.current++) CHECK_STATUS(skl_blas_product(&p, NULL), SKL_OK);
    expect(&p, SKL_UNSUPPORTED, "64 others");
    fake.current = 1;
    CHECK_STATUS(skl_blas_product(&p, NULL), SKL_OK);
    CHECK(fake.created == CONTEXTS && fake.destroyed == 0, "%d handles made, %d destroyed", fake.created,
          fake.destroyed);
}

/* A capture allows no new handle; one that is there may be used. */
static void capture(void)
{
    float one = 1, nothing = 0, c = 0;
    struct skl_gpu_product p = {.m = 1, .n = 1, .k = 1, .a = &one, .b = &one, .c = &c, .lda = 1, .ldb = 1, .ldc = 1};
    p.alpha = &one, p.beta = &nothing;
    test_context("the first product in a capture");
    again();
    fake.capturing = 1;
    expect(&p, SKL_BAD_ARGUMENT, "call once before capturing");
    CHECK_STATUS(skl_blas_prepare(NULL), SKL_BAD_ARGUMENT);
    CHECK(fake.created == 0, "%d handles", fake.created);
    test_context("prepared before the capture");
    fake.capturing = 0;
    CHECK_STATUS(skl_blas_prepare(NULL), SKL_OK);
    CHECK(fake.created == 1, "%d handles", fake.created);
    fake.capturing = 1;
    CHECK_STATUS(skl_blas_prepare(NULL), SKL_OK);
    CHECK_STATUS(skl_blas_product(&p, NULL), SKL_OK);
    CHECK(fake.created == 1 && c == 1, "%d handles, 1 x 1 = %g", fake.created, (double)c);
}

/* Every shape, transposed or not, with gaps after the rows, against plain loops over rows. */
static void products(void)
{
    static const int dtypes[][2] = {
        {SKL_F32, SKL_F32}, {SKL_BF16, SKL_F32}, {SKL_F16, SKL_F32}, {SKL_BF16, SKL_BF16}, {SKL_F16, SKL_F16}};
    static uint32_t a[1000], b[1000], c[1000], want[1000]; /* large and aligned enough for every dtype */
    again();
    for (int repeat = 0; repeat < 200; repeat++) {
        const int *dtype = PICK(dtypes);
        struct skl_gpu_product p = {.transpose_a = test_chance(2), .m = test_between(1, 9), .n = test_between(1, 9)};
        p.k = test_between(1, 9);
        p.lda = (p.transpose_a ? p.m : p.k) + test_between(0, 3);
        p.ldb = p.n + test_between(0, 3), p.ldc = p.n + test_between(0, 3);
        p.dtype = dtype[0], p.dtype_c = dtype[1];
        float alpha = (float)test_between(-2, 2), beta = (float)test_between(0, 2);
        p.alpha = &alpha, p.beta = &beta;
        p.a = a, p.b = b, p.c = c;
        p.workspace = test_chance(2) ? &fake : NULL, p.workspace_bytes = p.workspace ? 4096 : 0;
        int type = type_of(p.dtype), type_c = type_of(p.dtype_c);
        for (int i = 0; i < 400; i++) /* small integers: every dtype has them, and their products */
            put(a, type, i, (double)test_between(-2, 2)), put(b, type, i, (double)test_between(-2, 2)),
                put(c, type_c, i, (double)test_between(-9, 9));
        memcpy(want, c, sizeof c);
        for (int64_t i = 0; i < p.m; i++)
            for (int64_t j = 0; j < p.n; j++) {
                double sum = 0;
                for (int64_t l = 0; l < p.k; l++)
                    sum += get(a, type, p.transpose_a ? l * p.lda + i : i * p.lda + l) * get(b, type, l * p.ldb + j);
                double old = beta == 0 ? 0 : get(c, type_c, i * p.ldc + j); /* not read, so its sign is no matter */
                put(want, type_c, i * p.ldc + j, (double)alpha * sum + (double)beta * old);
            }
        test_context("product %d: %lld x %lld x %lld, transposed %d, dtypes %d, %d", repeat, (long long)p.m,
                     (long long)p.n, (long long)p.k, p.transpose_a, p.dtype, p.dtype_c);
        fake.current = (int)test_between(0, 2);
        CHECK_STATUS(skl_blas_product(&p, (char *)&fake + repeat), SKL_OK);
        CHECK(!memcmp(want, c, sizeof c), "another product");
        CHECK(fake.stream == (char *)&fake + repeat, "another stream");
        CHECK(fake.workspace == p.workspace && fake.workspace_bytes == p.workspace_bytes, "another workspace");
    }
    CHECK(fake.created == 3, "%d handles for 3 contexts", fake.created);
    CHECK(fake.mode == 16 && fake.pointer_mode == 1, "math mode %d, pointer mode %d", fake.mode, fake.pointer_mode);
}

static void *many(void *data)
{
    float one = 1, nothing = 0, c = 0;
    struct skl_gpu_product p = {.m = 1, .n = 1, .k = 1, .a = &one, .b = &one, .c = &c, .lda = 1, .ldb = 1, .ldc = 1};
    p.alpha = &one, p.beta = &nothing;
    int *bad = data;
    for (int i = 0; i < 2000; i++) *bad += skl_blas_product(&p, data) != SKL_OK || c != 1;
    return NULL;
}

/* A handle is one thread's from the choice of the stream to the launch. */
static void threads(void)
{
    pthread_t thread[3];
    int bad[3] = {0};
    test_context("threads");
    again();
    for (int i = 0; i < 3; i++) pthread_create(&thread[i], NULL, many, &bad[i]);
    for (int i = 0; i < 3; i++) pthread_join(thread[i], NULL);
    CHECK(bad[0] + bad[1] + bad[2] == 0, "wrong products");
    CHECK(fake.intrusions == 0, "%d times two threads used one handle", fake.intrusions);
    CHECK(fake.created == 1, "%d handles", fake.created);
    again();
}

int main(void)
{
    test_begin("test_blas");
    loading();
    capture();
    products();
    threads();
    return test_end();
}
