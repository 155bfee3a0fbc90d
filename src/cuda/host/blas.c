/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix products by cuBLAS, which is half a gigabyte with its companion and needed by linear problems' gradients only:
 * it is loaded when the first product is asked for. The few constants and functions of it are declared here, so that it
 * is not needed for building either.
 */
#include "cudart.h"

#include <dlfcn.h>
#include <pthread.h>

/* cublas_api.h and library_types.h, whose numbers are part of the ABI of cuBLAS 12 and 13. */
enum { OP_N = 0, OP_T = 1 };
enum { R_32F = 0, R_16F = 2, R_16BF = 14 };
enum { COMPUTE_32F = 68, GEMM_DEFAULT = -1 };
enum { STATUS_ALLOC_FAILED = 3 };
enum { POINTER_MODE_DEVICE = 1 };
enum { MATH_NO_REDUCED_PRECISION_REDUCTION = 16 };

typedef struct cublasContext *blas_handle;

/* A product's setup and issue use the handle's stream, so a handle is used by one thread at a time: all of this file's
 * state is behind this lock. Nobody waits for a product in it, only for its launch. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* A handle belongs to the context in which it was made. One whose context has ended is never used again, nor destroyed:
 * that would reach for what is gone. */
enum { CONTEXTS = 64 };
static struct {
    uint64_t context;
    blas_handle handle; /* NULL: from here on none */
} handles[CONTEXTS];

static struct {
    int loaded;
    int (*create)(blas_handle *);
    int (*destroy)(blas_handle);
    int (*set_math_mode)(blas_handle, int);
    int (*set_pointer_mode)(blas_handle, int);
    int (*set_stream)(blas_handle, void *);
    int (*set_workspace)(blas_handle, void *, size_t);
    int (*gemm)(blas_handle, int op_a, int op_b, int64_t m, int64_t n, int64_t k, const void *alpha, const void *a,
                int type_a, int64_t lda, const void *b, int type_b, int64_t ldb, const void *beta, void *c, int type_c,
                int64_t ldc, int compute, int algorithm);
    const char *(*status_string)(int);
} blas;

/* --------------------------------------------------------------------------------------------- loading --- */

/* One that the process already has comes first, whatever its version: torch's lies where dlopen() would not look. */
static void *open_library(void)
{
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so"};
    void *library = NULL;
    for (int i = 0; i < 3 && !library; i++) library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    for (int i = 0; i < 3 && !library; i++) library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return library;
}

static enum skl_status load(void)
{
    if (blas.loaded)
        return SKL_OK;
    void *library = open_library();
    if (!library) {
        const char *why = dlerror();
        return skl_fail(SKL_NO_LIBRARY,
                        "cannot load cuBLAS (libcublas.so.13 or .12), which gradients of linear problems need: %s; "
                        "install it or put it on LD_LIBRARY_PATH",
                        why ? why : "not found");
    }
    const struct {
        const char *name;
        void *to; /* a pointer to a function; POSIX lets dlsym's answer be stored so */
    } symbols[] = {
        {"cublasCreate_v2", &blas.create},
        {"cublasDestroy_v2", &blas.destroy},
        {"cublasSetMathMode", &blas.set_math_mode},
        {"cublasSetPointerMode_v2", &blas.set_pointer_mode},
        {"cublasSetStream_v2", &blas.set_stream},
        {"cublasSetWorkspace_v2", &blas.set_workspace},
        {"cublasGemmEx_64", &blas.gemm}, /* since cuBLAS 12 */
        {"cublasGetStatusString", &blas.status_string},
    };
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *found = dlsym(library, symbols[i].name);
        if (!found) {
            dlclose(library);
            return skl_fail(SKL_NO_LIBRARY, "cannot use this cuBLAS: it has no %s, so it is older than version 12",
                            symbols[i].name);
        }
        *(void **)symbols[i].to = found;
    }
    blas.loaded = 1;
    return SKL_OK;
}

/* --------------------------------------------------------------------------------------------- product --- */

static enum skl_status failed(const char *call, int status)
{
    return skl_fail(status == STATUS_ALLOC_FAILED ? SKL_OUT_OF_MEMORY : SKL_DEVICE_FAILED, "%s failed: %s (%d)", call,
                    blas.status_string(status), status);
}

static enum skl_status set_up(blas_handle handle)
{
    /* Sums stay in f32 also where cuBLAS splits k; f32 operands are not rounded to TF32 unless one asks for it. */
    int status = blas.set_math_mode(handle, MATH_NO_REDUCED_PRECISION_REDUCTION);
    if (status)
        return failed("cublasSetMathMode", status);
    status = blas.set_pointer_mode(handle, POINTER_MODE_DEVICE); /* alpha and beta */
    return status ? failed("cublasSetPointerMode", status) : SKL_OK;
}

/* A new handle allocates and may wait for the device, which a stream in capture forbids: the capture would be lost. */
static enum skl_status make_handle(void *stream, blas_handle *handle)
{
    int capturing = 0;
    enum skl_status status = skl_gpu_capturing(stream, &capturing);
    if (status)
        return status;
    if (capturing)
        return skl_fail(
            SKL_BAD_ARGUMENT,
            "cannot use stream = %p, which is being captured, for the first product by cuBLAS in this context: "
            "call once before capturing",
            stream);
    int failure = blas.create(handle);
    if (failure)
        return failed("cublasCreate", failure);
    status = set_up(*handle);
    if (status)
        blas.destroy(*handle);
    return status;
}

/* The context's handle, made when first needed and then kept. */
static enum skl_status handle_of(uint64_t context, void *stream, blas_handle *handle)
{
    int i = 0;
    while (i < CONTEXTS && handles[i].handle && handles[i].context != context) i++;
    if (i == CONTEXTS)
        return skl_fail(SKL_UNSUPPORTED, "cannot use cuBLAS in this CUDA context: %d others have had a handle",
                        CONTEXTS);
    if (!handles[i].handle) {
        blas_handle made = NULL;
        enum skl_status status = make_handle(stream, &made);
        if (status)
            return status;
        handles[i].context = context, handles[i].handle = made;
    }
    *handle = handles[i].handle;
    return SKL_OK;
}

static int type_of(int dtype)
{
    return dtype == SKL_BF16 ? R_16BF : dtype == SKL_F16 ? R_16F : R_32F;
}

/* cuBLAS stores by columns: what we call a row-major X [r, c] with ld, it calls X^T [c, r] with the same ld. So it is
 * asked for the transpose,  C^T [n, m] = B^T [n, k] op(A)^T [k, m]:
 *
 *     its first operand     B [k, n] of ours  = B^T [n, k] of its own: as it is
 *     its second operand    A [m, k] of ours  = A^T [k, m] of its own: as it is, when op(A) = A
 *                           A [k, m] of ours  = A^T [m, k] of its own: transposed, when op(A) = A^T
 */
static enum skl_status issue(blas_handle handle, const struct skl_gpu_product *p, void *stream)
{
    int status = blas.set_stream(handle, stream); /* this also makes it forget the workspace of the last product */
    if (status)
        return failed("cublasSetStream", status);
    if (p->workspace) {
        status = blas.set_workspace(handle, p->workspace, p->workspace_bytes);
        if (status)
            return failed("cublasSetWorkspace", status);
    }
    int type = type_of(p->dtype);
    status = blas.gemm(handle, OP_N, p->transpose_a ? OP_T : OP_N, p->n, p->m, p->k, p->alpha, p->b, type, p->ldb, p->a,
                       type, p->lda, p->beta, p->c, type_of(p->dtype_c), p->ldc, COMPUTE_32F, GEMM_DEFAULT);
    return status ? failed("cublasGemmEx", status) : SKL_OK;
}

/* With the lock held: cuBLAS and the current context's handle. */
static enum skl_status ready(void *stream, blas_handle *handle)
{
    uint64_t context;
    enum skl_status status = skl_gpu_context(&context);
    if (!status)
        status = load();
    return status ? status : handle_of(context, stream, handle);
}

enum skl_status skl_blas_prepare(void *stream)
{
    blas_handle handle;
    pthread_mutex_lock(&lock);
    enum skl_status status = ready(stream, &handle);
    pthread_mutex_unlock(&lock);
    return status;
}

enum skl_status skl_blas_product(const struct skl_gpu_product *p, void *stream)
{
    blas_handle handle;
    pthread_mutex_lock(&lock);
    enum skl_status status = ready(stream, &handle);
    if (!status)
        status = issue(handle, p, stream);
    pthread_mutex_unlock(&lock);
    return status;
}
