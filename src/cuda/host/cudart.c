/* SPDX-License-Identifier: Apache-2.0
 *
 * The CUDA runtime behind device.h's table. The runtime is linked statically and looks for the driver when it is first
 * called, so the library loads everywhere; without a driver each function here answers SKL_NO_DEVICE.
 */
#include "cudart.h"

#include <cuda_runtime_api.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

/* ----------------------------------------------------------------------------------------------- errors --- */

/* Errors that mean: nothing to compute on, here or under this number. */
static int no_device(cudaError_t error)
{
    switch (error) {
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorDevicesUnavailable:
    case cudaErrorInitializationError:
    case cudaErrorStubLibrary:
    case cudaErrorSystemNotReady:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice: return 1;
    default: return 0;
    }
}

/* CUDA has one error and one sentence for a driver that is missing and one that is too old, without a number in it. */
#define NEEDS "which needs a driver for CUDA %d.0 or later (CUDA 12: 525, CUDA 13: 580)"

static enum skl_status insufficient_driver(void)
{
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver); /* 0: none */
    cudaRuntimeGetVersion(&runtime);
    int major = runtime / 1000, minor = runtime % 1000 / 10;
    if (!driver)
        return skl_fail(
            SKL_NO_DEVICE,
            "no CUDA device: no NVIDIA driver (libcuda.so.1) was found; streamkl was built with CUDA %d.%d, " NEEDS,
            major, minor, major);
    return skl_fail(SKL_NO_DEVICE,
                    "no CUDA device: the NVIDIA driver is for CUDA %d.%d and streamkl was built with CUDA %d.%d, " NEEDS
                    "; install one%s",
                    driver / 1000, driver % 1000 / 10, major, minor, major,
                    major > 12 ? ", or a streamkl built with CUDA 12" : "");
}

static enum skl_status report(cudaError_t error, const char *call)
{
    if (error == cudaErrorInsufficientDriver)
        return insufficient_driver();
    if (no_device(error))
        return skl_fail(SKL_NO_DEVICE, "no CUDA device: %s", cudaGetErrorString(error));
    return skl_fail(SKL_DEVICE_FAILED, "%s failed: %s (%s)", call, cudaGetErrorString(error), cudaGetErrorName(error));
}

/* The runtime also keeps an error for whoever asks cudaGetLastError() next. It has been reported: take it away. */
static enum skl_status failed(cudaError_t error, const char *call)
{
    cudaGetLastError();
    return report(error, call);
}

#define TRY(name, ...)                          \
    do {                                        \
        cudaError_t error_ = name(__VA_ARGS__); \
        if (error_ != cudaSuccess)              \
            return failed(error_, #name);       \
    } while (0)

/* ---------------------------------------------------------------------------------------------- devices --- */

int skl_cuda_built(void)
{
    return 1;
}

int skl_cuda_devices(void)
{
    int n = 0;
    cudaError_t error = cudaGetDeviceCount(&n);
    if (error != cudaSuccess)
        failed(error, "cudaGetDeviceCount");
    else if (n == 0)
        failed(cudaErrorNoDevice, "cudaGetDeviceCount");
    return error == cudaSuccess ? n : 0;
}

/* The kernels' PTX is compute_80's: cp.async, bf16 and the shapes of mma.sync that they use begin there. */
enum { LEAST_CAPABILITY = 80 };

struct attributes {
    int capability; /* 10 major + minor */
    int processors;
    int shared; /* bytes a block may ask for */
    int pools;  /* cudaMallocAsync() works */
};

static enum skl_status ask(int index, struct attributes *a)
{
    int major, minor;
    TRY(cudaDeviceGetAttribute, &major, cudaDevAttrComputeCapabilityMajor, index);
    TRY(cudaDeviceGetAttribute, &minor, cudaDevAttrComputeCapabilityMinor, index);
    TRY(cudaDeviceGetAttribute, &a->processors, cudaDevAttrMultiProcessorCount, index);
    TRY(cudaDeviceGetAttribute, &a->shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, index);
    TRY(cudaDeviceGetAttribute, &a->pools, cudaDevAttrMemoryPoolsSupported, index);
    a->capability = 10 * major + minor;
    return SKL_OK;
}

static _Atomic(uint64_t) known[SKL_GPU_DEVICES]; /* pools << 63 | capability << 48 | processors << 32 | shared memory */

/* Asked once: an attribute takes the driver some microseconds. Two threads may both ask, and store the same answer. */
static enum skl_status attributes_of(int index, struct attributes *a)
{
    int cached = index >= 0 && index < SKL_GPU_DEVICES;
    uint64_t packed = cached ? atomic_load(&known[index]) : 0;
    if (packed) {
        *a = (struct attributes){.capability = (int)(packed >> 48 & 0x7fff),
                                 .processors = (int)(packed >> 32 & 0xffff),
                                 .shared = (int)(packed & 0xffffffff),
                                 .pools = (int)(packed >> 63)};
        return SKL_OK;
    }
    *a = (struct attributes){0};
    enum skl_status status = ask(index, a);
    if (status)
        return status;
    packed = (uint64_t)(a->pools != 0) << 63 | (uint64_t)a->capability << 48 | (uint64_t)a->processors << 32 |
             (uint32_t)a->shared;
    if (cached)
        atomic_store(&known[index], packed);
    return SKL_OK;
}

static enum skl_status check_capability(int index)
{
    struct attributes a = {0};
    struct cudaDeviceProp p = {.name = "?"};
    enum skl_status status = attributes_of(index, &a);
    if (status || a.capability >= LEAST_CAPABILITY)
        return status;
    cudaGetDeviceProperties(&p, index);
    return skl_fail(
        SKL_UNSUPPORTED,
        "cannot use CUDA device %d (%.99s): its compute capability is %d.%d, the kernels need %d.%d or later", index,
        p.name, a.capability / 10, a.capability % 10, LEAST_CAPABILITY / 10, LEAST_CAPABILITY % 10);
}

static enum skl_status properties(int index, struct skl_gpu_properties *p)
{
    struct attributes a = {0};
    enum skl_status status = attributes_of(index, &a);
    if (!status)
        *p = (struct skl_gpu_properties){a.processors, a.shared, a.capability};
    return status;
}

/* --------------------------------------------------------------------------------------------- contexts --- */

/* The runtime knows of a thread's device, not of its context: cudaSetDevice() puts the device's primary context over
 * one of the caller's own, and for a thread that had none there is no way back. The driver can tell and restore. It is
 * in the process when the runtime has found it, so its functions are looked up there and need not be linked. */
typedef struct CUctx_st *gpu_context;

static struct {
    atomic_int ready;
    int (*device_get)(int *device, int index);
    int (*get_current)(gpu_context *);
    int (*set_current)(gpu_context);
    int (*get_device)(int *device); /* of the current context */
    int (*retain)(gpu_context *, int device);
    int (*release)(int device);
    int (*get_id)(gpu_context, unsigned long long *); /* NULL: of the current one */
} driver;

/* The driver's errors have the numbers of the runtime's. */
static enum skl_status answered(int result, const char *call)
{
    return result ? report((cudaError_t)result, call) : SKL_OK;
}

static enum skl_status look_up(void *library)
{
    const struct {
        const char *name;
        void *to; /* a pointer to a function; POSIX lets dlsym's answer be stored so */
    } symbols[] = {
        {"cuDeviceGet", &driver.device_get},
        {"cuCtxGetCurrent", &driver.get_current},
        {"cuCtxSetCurrent", &driver.set_current},
        {"cuCtxGetDevice", &driver.get_device},
        {"cuDevicePrimaryCtxRetain", &driver.retain},
        {"cuDevicePrimaryCtxRelease_v2", &driver.release},
        {"cuCtxGetId", &driver.get_id}, /* since CUDA 12 */
    };
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *found = library ? dlsym(library, symbols[i].name) : NULL;
        if (!found)
            return skl_fail(SKL_NO_DEVICE, "no CUDA device: the NVIDIA driver (libcuda.so.1) has no %s",
                            symbols[i].name);
        *(void **)symbols[i].to = found;
    }
    return SKL_OK;
}

static enum skl_status find_driver(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    int n;
    if (atomic_load(&driver.ready))
        return SKL_OK;
    TRY(cudaGetDeviceCount, &n); /* starts the driver, and makes no context */
    pthread_mutex_lock(&lock);
    enum skl_status status = SKL_OK;
    if (!atomic_load(&driver.ready)) { /* another thread's functions are in use and stay as they are */
        status = look_up(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL));
        atomic_store(&driver.ready, status == SKL_OK);
    }
    pthread_mutex_unlock(&lock);
    return status;
}

/* A device's primary context, the one that the runtime and torch use, made if there is none. It is retained each time,
 * since cudaDeviceReset() may have ended it. One of these is kept, as the runtime keeps one: else the context might end
 * with the call. */
static enum skl_status enter_primary(int index, int device)
{
    static atomic_int kept[SKL_GPU_DEVICES];
    gpu_context primary;
    int error = driver.retain(&primary, device);
    if (error == cudaErrorMemoryAllocation)
        return skl_fail(SKL_OUT_OF_MEMORY, "cannot make a context on CUDA device %d: out of memory", index);
    if (error)
        return answered(error, "cuDevicePrimaryCtxRetain");
    error = driver.set_current(primary);
    if (error || (index < SKL_GPU_DEVICES && atomic_exchange(&kept[index], 1)))
        driver.release(device);
    return answered(error, "cuCtxSetCurrent");
}

static enum skl_status enter(int index, struct skl_gpu_place *before)
{
    gpu_context current = NULL;
    int wanted = -1, device = -1;
    enum skl_status status = find_driver();
    if (status)
        return status;
    int error = driver.device_get(&wanted, index);
    if (error == cudaErrorInvalidDevice)
        return skl_fail(SKL_NO_DEVICE, "no CUDA device %d: there are %d", index, skl_cuda_devices());
    status = answered(error, "cuDeviceGet");
    if (!status)
        status = check_capability(index); /* before a context is made: it would only cost memory */
    if (!status)
        status = answered(driver.get_current(&current), "cuCtxGetCurrent");
    if (!status && current)
        status = answered(driver.get_device(&device), "cuCtxGetDevice");
    int there = current && device == wanted;
    if (!status && !there)
        status = enter_primary(index, wanted);
    *before = (struct skl_gpu_place){current, !status && !there};
    return status;
}

static void leave(const struct skl_gpu_place *before)
{
    if (before->left)
        driver.set_current(before->context);
}

enum skl_status skl_gpu_context(uint64_t *number)
{
    unsigned long long id = 0;
    enum skl_status status = find_driver();
    if (!status)
        status = answered(driver.get_id(NULL, &id), "cuCtxGetId");
    *number = id;
    return status;
}

/* ---------------------------------------------------------------------------------------------- kernels --- */

/* The host stubs that nvcc makes of the kernels. Only their addresses are used: the runtime knows kernels by them. */
#define SKL_KERNEL(name, ...) extern void skl_##name(void);
#include "../kernels.def"
#undef SKL_KERNEL

static const struct kernel {
    const char *name;
    void (*stub)(void);
} kernels[] = {
#define SKL_KERNEL(name, ...) {#name, skl_##name},
#include "../kernels.def"
#undef SKL_KERNEL
};

enum { KERNELS = sizeof kernels / sizeof *kernels };

static int find(const char *name)
{
    int i = 0;
    while (i < KERNELS && strcmp(kernels[i].name, name) != 0) i++;
    return i;
}

static enum skl_status launch(const struct skl_gpu_launch *l, void *stream)
{
    int kernel = find(l->kernel);
    if (kernel == KERNELS)
        return skl_fail(SKL_DEVICE_FAILED, "cannot launch %s: there is no such kernel", l->kernel);
    if (l->grid_x < 1 || l->grid_x > INT32_MAX || l->grid_y < 1 || l->grid_y > 65535)
        return skl_fail(SKL_DEVICE_FAILED, "cannot launch %s: a grid of %lld x %d blocks is beyond CUDA's limits",
                        l->kernel, (long long)l->grid_x, l->grid_y);
    /* More than 48 KiB of dynamic shared memory must be asked for, for each kernel in each context. That is not
     * remembered: a context may have ended (cudaDeviceReset), and asking is quick. A kernel always takes the same
     * number of bytes, so that threads do not disturb each other. */
    if (l->shared_bytes > 48 * 1024)
        TRY(cudaFuncSetAttribute, (const void *)kernels[kernel].stub, cudaFuncAttributeMaxDynamicSharedMemorySize,
            (int)l->shared_bytes);
    dim3 grid = {(unsigned)l->grid_x, (unsigned)l->grid_y, 1}, block = {(unsigned)l->threads, 1, 1};
    void *args[1] = {(void *)l->args}; /* the runtime copies the structure before it returns */
    TRY(cudaLaunchKernel, (const void *)kernels[kernel].stub, grid, block, args, l->shared_bytes, stream);
    return SKL_OK;
}

enum skl_status skl_gpu_capturing(void *stream, int *capturing)
{
    enum cudaStreamCaptureStatus now = cudaStreamCaptureStatusNone;
    cudaError_t error = cudaStreamIsCapturing(stream, &now);
    /* The default stream is never captured, and may not be used while a stream that waits for it is. */
    int implicit = error == cudaErrorStreamCaptureImplicit;
    if (error != cudaSuccess && !implicit)
        return failed(error, "cudaStreamIsCapturing");
    if (implicit)
        cudaGetLastError();
    *capturing = implicit || now != cudaStreamCaptureStatusNone;
    return SKL_OK;
}

/* ----------------------------------------------------------------------------------------------- memory --- */

static enum skl_status clear(void *data, size_t bytes, void *stream)
{
    TRY(cudaMemsetAsync, data, 0, bytes, stream);
    return SKL_OK;
}

/* From the device's default pool, whose release threshold stays as it is: at 0, CUDA's default, the pool gives its
 * memory back when the process synchronises, and the next call maps it anew. Raising it would keep memory from others
 * in the process for good, which is for the program to decide and not for a library: docs/cuda.md tells it how. */
static enum skl_status allocate(size_t bytes, void *stream, void **data)
{
    struct attributes a = {0};
    int index = 0;
    TRY(cudaGetDevice, &index);
    enum skl_status status = attributes_of(index, &a);
    if (!status && !a.pools) /* some virtual GPUs */
        status = skl_fail(SKL_UNSUPPORTED,
                          "cannot allocate on CUDA device %d, which has no memory pools: pass a workspace of %zu bytes "
                          "(skl_workspace_size)",
                          index, bytes);
    if (status)
        return status;
    cudaError_t error = cudaMallocAsync(data, bytes, stream);
    if (error != cudaErrorMemoryAllocation)
        return error == cudaSuccess ? SKL_OK : failed(error, "cudaMallocAsync");
    cudaGetLastError();
    return skl_fail(SKL_OUT_OF_MEMORY, "cannot allocate %zu bytes on the CUDA device: %s", bytes,
                    cudaGetErrorString(error));
}

static void release(void *data, void *stream)
{
    if (cudaFreeAsync(data, stream) != cudaSuccess)
        cudaGetLastError(); /* the call before has failed for the same reason, and said so */
}

const struct skl_gpu skl_gpu_cudart = {
    .enter = enter,
    .leave = leave,
    .properties = properties,
    .launch = launch,
    .clear = clear,
    .prepare = skl_blas_prepare,
    .product = skl_blas_product,
    .allocate = allocate,
    .release = release,
};

const struct skl_gpu *skl_gpu = &skl_gpu_cudart;
