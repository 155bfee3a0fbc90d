/* SPDX-License-Identifier: Apache-2.0
 *
 * The file that calls the CUDA runtime and the driver, with both made up here: what they are asked for, in which order,
 * and where a thread is left. Every function of theirs that src/cuda/host/cudart.c calls is defined below; nothing of
 * NVIDIA's is linked.
 */
#include "test.h"

#include <dlfcn.h>

static void *test_dlopen(const char *name, int mode);
static void *test_dlsym(void *library, const char *name);

#define dlopen test_dlopen
#define dlsym test_dlsym
#include "../src/cuda/host/cudart.c" /* NOLINT(bugprone-suspicious-include): with the functions above inside it */
#undef dlopen
#undef dlsym

/* ---------------------------------------------------------------------------------- a driver of our own --- */

enum { DEVICES = 3 };

struct CUctx_st {
    int device;
    unsigned long long id;
};

static struct {
    struct CUctx_st primary[DEVICES], own[DEVICES]; /* own: a caller's, made with cuCtxCreate() */
    gpu_context current;
    int active[DEVICES];                  /* the primary context is there */
    int retained[DEVICES];                /* how many times */
    int switches;                         /* of the thread's context */
    const char *fails;                    /* the function that does ... */
    int error;                            /* ... with this */
    const char *lacks;                    /* a symbol of the driver's */
    int driver_error;                     /* of everything: no driver, no device */
    int capability;                       /* of all devices; as 80 */
    enum cudaStreamCaptureStatus capture; /* of every stream */
    int no_pools;
    int allocations, launches;
    const void *allowed_function; /* that may take more than 48 KiB, in the context that there is */
    int allowed_bytes;
    int taken; /* errors taken from the runtime */
} fake;

static int fails(const char *name)
{
    return fake.fails && !strcmp(fake.fails, name) ? fake.error : 0;
}

static int device_get(int *device, int index)
{
    *device = index + 10; /* a device's handle is not its number */
    return index < DEVICES ? fails("cuDeviceGet") : cudaErrorInvalidDevice;
}

static int get_current(gpu_context *context)
{
    *context = fake.current;
    return fails("cuCtxGetCurrent");
}

static int set_current(gpu_context context)
{
    if (fails("cuCtxSetCurrent"))
        return fake.error;
    fake.current = context, fake.switches++;
    return 0;
}

static int get_device(int *device)
{
    CHECK(fake.current, "cuCtxGetDevice without a context");
    *device = fake.current ? fake.current->device + 10 : -1;
    return fails("cuCtxGetDevice");
}

static int retain(gpu_context *context, int device)
{
    if (fails("cuDevicePrimaryCtxRetain"))
        return fake.error;
    fake.retained[device - 10]++, fake.active[device - 10] = 1;
    *context = &fake.primary[device - 10];
    return 0;
}

static int get_id(gpu_context context, unsigned long long *id)
{
    CHECK(!context && fake.current, "the number of another context");
    *id = fake.current ? fake.current->id : 0;
    return fails("cuCtxGetId");
}

static int release_primary(int device)
{
    if (--fake.retained[device - 10] == 0)
        fake.active[device - 10] = 0;
    CHECK(fake.active[device - 10], "the context of device %d ends", device - 10);
    return 0;
}

static void *test_dlopen(const char *name, int mode)
{
    (void)mode;
    CHECK(!strcmp(name, "libcuda.so.1"), "opens %s", name);
    return &fake;
}

static void *test_dlsym(void *library, const char *name)
{
    static const struct {
        const char *name;
        void (*function)(void);
    } all[] = {{"cuDeviceGet", (void (*)(void))device_get},
               {"cuCtxGetCurrent", (void (*)(void))get_current},
               {"cuCtxSetCurrent", (void (*)(void))set_current},
               {"cuCtxGetDevice", (void (*)(void))get_device},
               {"cuDevicePrimaryCtxRetain", (void (*)(void))retain},
               {"cuDevicePrimaryCtxRelease_v2", (void (*)(void))release_primary},
               {"cuCtxGetId", (void (*)(void))get_id}};
    CHECK(library == &fake, "symbols of another library");
    for (int i = 0; i < COUNT(all); i++)
        if (!strcmp(name, all[i].name) && !(fake.lacks && !strcmp(name, fake.lacks)))
            return (void *)all[i].function;
    return NULL;
}

/* --------------------------------------------------------------------------------- a runtime of our own --- */

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = fake.driver_error ? 0 : DEVICES;
    return (cudaError_t)fake.driver_error;
}

cudaError_t cudaGetLastError(void)
{
    fake.taken++;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = 12080;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorNoDevice ? "no CUDA-capable device is detected" : "some error";
}

const char *cudaGetErrorName(cudaError_t error)
{
    (void)error;
    return "cudaErrorSome";
}

/* As the real one: the thread is in the device's primary context afterwards, made if need be. */
cudaError_t cudaSetDevice(int device)
{
    fake.active[device] = 1, fake.switches++;
    fake.current = &fake.primary[device];
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = fake.current ? fake.current->device : 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    *value = attribute == cudaDevAttrComputeCapabilityMajor   ? fake.capability / 10
             : attribute == cudaDevAttrComputeCapabilityMinor ? fake.capability % 10
             : attribute == cudaDevAttrMultiProcessorCount    ? 108
             : attribute == cudaDevAttrMemoryPoolsSupported   ? !fake.no_pools
                                                              : 166912;
    return device < DEVICES ? (cudaError_t)fails("cudaDeviceGetAttribute") : cudaErrorInvalidDevice;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    snprintf(p->name, sizeof p->name, "Model %d", device);
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value)
{
    CHECK(attribute == cudaFuncAttributeMaxDynamicSharedMemorySize, "attribute %d", attribute);
    fake.allowed_function = function, fake.allowed_bytes = value;
    return (cudaError_t)fails("cudaFuncSetAttribute");
}

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **args, size_t shared,
                             cudaStream_t stream)
{
    CHECK(shared <= (48 << 10) || (function == fake.allowed_function && shared == (size_t)fake.allowed_bytes),
          "%zu bytes of shared memory that were not asked for", shared);
    CHECK(grid.x == 5 && grid.y == 7 && grid.z == 1 && block.x == 128 && block.y == 1 && block.z == 1, "another grid");
    CHECK(*(const int *)args[0] == 77 && stream == (cudaStream_t)&fake, "other arguments");
    fake.launches++;
    return (cudaError_t)fails("cudaLaunchKernel");
}

cudaError_t cudaMemsetAsync(void *devPtr, int value, size_t count, cudaStream_t stream)
{
    (void)devPtr, (void)value, (void)count, (void)stream;
    return cudaSuccess;
}

cudaError_t cudaMallocAsync(void **devPtr, size_t size, cudaStream_t hStream)
{
    (void)size, (void)hStream;
    CHECK(!fake.no_pools, "cudaMallocAsync without pools");
    *devPtr = &fake, fake.allocations++;
    return (cudaError_t)fails("cudaMallocAsync");
}

cudaError_t cudaFreeAsync(void *devPtr, cudaStream_t hStream)
{
    (void)devPtr, (void)hStream;
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    (void)stream;
    *status = fake.capture;
    return (cudaError_t)fails("cudaStreamIsCapturing");
}

enum skl_status skl_blas_prepare(void *stream)
{
    (void)stream;
    return SKL_OK;
}

enum skl_status skl_blas_product(const struct skl_gpu_product *p, void *stream)
{
    (void)p, (void)stream;
    return SKL_OK;
}

#define SKL_KERNEL(name, ...) \
    void skl_##name(void)     \
    {                         \
    }
#include "../src/cuda/kernels.def"
#undef SKL_KERNEL

/* ------------------------------------------------------------------------------------------------- tests --- */

static const struct skl_gpu *const table = &skl_gpu_cudart;

/* A new process on a new machine, as far as this file knows; only a context that cudart.c keeps is kept. */
static void again(void)
{
    int retained[DEVICES];
    memcpy(retained, fake.retained, sizeof retained);
    memset(&fake, 0, sizeof fake);
    for (int i = 0; i < DEVICES; i++) {
        fake.primary[i].device = fake.own[i].device = i;
        fake.retained[i] = retained[i], fake.active[i] = retained[i] > 0;
    }
    fake.capability = 80;
    atomic_store(&driver.ready, 0);
    for (int i = 0; i < SKL_GPU_DEVICES; i++) atomic_store(&known[i], 0);
}

static void expect(int index, enum skl_status want, const char *sentence)
{
    struct skl_gpu_place before;
    enum skl_status got = table->enter(index, &before);
    CHECK(got == want, "gave \"%s\" (%s), expected \"%s\"", skl_status_string(got), skl_last_error(),
          skl_status_string(want));
    CHECK(got == SKL_OK || strstr(skl_last_error(), sentence), "said \"%s\", expected \"%s\"", skl_last_error(),
          sentence);
    if (got == SKL_OK)
        table->leave(&before);
}

/* From every place to every device and back. */
static void guard(void)
{
    for (int from = 0; from < 1 + 2 * DEVICES; from++)
        for (int to = 0; to < DEVICES; to++) {
            struct skl_gpu_place before;
            again();
            gpu_context was = from == 0         ? NULL
                              : from <= DEVICES ? &fake.primary[from - 1]
                                                : &fake.own[from - 1 - DEVICES];
            fake.current = was;
            int there = was && was->device == to, active[DEVICES];
            memcpy(active, fake.active, sizeof active);
            test_context("from context %d to device %d", from, to);
            CHECK_STATUS(table->enter(to, &before), SKL_OK);
            CHECK(fake.current == (there ? was : &fake.primary[to]), "in another context");
            CHECK(fake.switches == !there, "%d switches", fake.switches);
            table->leave(&before);
            CHECK(fake.current == was, "left in another context");
            CHECK(fake.switches == (there ? 0 : 2), "%d switches", fake.switches);
            for (int i = 0; i < DEVICES; i++) {
                CHECK(fake.active[i] == (active[i] || (i == to && !there)), "a context on device %d", i);
                CHECK(fake.retained[i] <= 1, "retained %d times", fake.retained[i]);
            }
        }
    for (int i = 0; i < DEVICES; i++) CHECK(fake.retained[i] == 1, "device %d: retained %d times", i, fake.retained[i]);
}

/* Whatever fails, the thread is where it was. */
static void guard_fails(void)
{
    static const char *const steps[] = {"cuDeviceGet", "cuCtxGetCurrent", "cuCtxGetDevice", "cuDevicePrimaryCtxRetain",
                                        "cuCtxSetCurrent"};
    for (int i = 0; i < COUNT(steps); i++) {
        again();
        test_context("%s fails", steps[i]);
        fake.current = &fake.own[2], fake.fails = steps[i], fake.error = cudaErrorUnknown;
        expect(1, SKL_DEVICE_FAILED, steps[i]);
        CHECK(fake.current == &fake.own[2] && fake.switches == 0, "moved");
        CHECK(fake.taken == 0, "an error of the runtime's, which is somebody else's, is taken away");
        CHECK(fake.retained[1] <= 1, "retained %d times", fake.retained[1]);
        fake.error = cudaErrorDevicesUnavailable; /* in exclusive use by another process */
        expect(1, SKL_NO_DEVICE, "no CUDA device: ");
    }
    test_context("no memory for a context");
    again();
    fake.fails = "cuDevicePrimaryCtxRetain", fake.error = cudaErrorMemoryAllocation;
    expect(1, SKL_OUT_OF_MEMORY, "CUDA device 1");
    CHECK(!fake.current, "moved");
    test_context("no such device");
    again();
    expect(DEVICES, SKL_NO_DEVICE, "no CUDA device 3: there are 3");
    CHECK(!fake.current && fake.switches == 0, "moved");
    test_context("a driver that lacks something");
    again();
    fake.lacks = "cuDevicePrimaryCtxRelease_v2";
    expect(0, SKL_NO_DEVICE, "has no cuDevicePrimaryCtxRelease_v2");
    test_context("no driver");
    again();
    fake.driver_error = cudaErrorInsufficientDriver;
    expect(0, SKL_NO_DEVICE, "the NVIDIA driver is for CUDA 12.8");
    test_context("no device");
    again();
    fake.driver_error = cudaErrorNoDevice;
    expect(0, SKL_NO_DEVICE, "no CUDA device: no CUDA-capable device is detected");
}

/* Devices that have no such kernels are refused before a context is made on them, and named. */
static void capability(void)
{
    static const int all[] = {50, 70, 75, 80, 86, 87, 90, 100, 121};
    for (int i = 0; i < COUNT(all); i++)
        for (int twice = 0; twice < 2; twice++) { /* the second time from memory */
            test_context("compute capability %d, time %d", all[i], twice);
            if (!twice)
                again();
            fake.capability = all[i];
            expect(1, all[i] < 80 ? SKL_UNSUPPORTED : SKL_OK, "CUDA device 1 (Model 1)");
            CHECK(fake.current == NULL && fake.switches == (all[i] < 80 ? 0 : 2 + 2 * twice), "moved");
        }
    again();
    fake.capability = 75;
    expect(0, SKL_UNSUPPORTED, "its compute capability is 7.5, the kernels need 8.0 or later");
    struct skl_gpu_properties p;
    test_context("properties");
    again();
    CHECK_STATUS(table->properties(0, &p), SKL_OK);
    CHECK(p.processors == 108 && p.shared_memory == 166912, "%d processors, %d bytes", p.processors, p.shared_memory);
    CHECK_STATUS(table->properties(DEVICES, &p), SKL_NO_DEVICE);
    fake.fails = "cudaDeviceGetAttribute", fake.error = cudaErrorUnknown;
    expect(1, SKL_DEVICE_FAILED, "cudaDeviceGetAttribute");
}

static void capture(void)
{
    int capturing = -1;
    again();
    test_context("capture");
    CHECK_STATUS(skl_gpu_capturing(&fake, &capturing), SKL_OK);
    CHECK(capturing == 0, "a stream that is not captured");
    fake.capture = cudaStreamCaptureStatusActive;
    CHECK_STATUS(skl_gpu_capturing(&fake, &capturing), SKL_OK);
    CHECK(capturing == 1 && fake.taken == 0, "a stream that is");
    fake.capture = cudaStreamCaptureStatusNone;
    fake.fails = "cudaStreamIsCapturing", fake.error = cudaErrorStreamCaptureImplicit;
    capturing = 0;
    CHECK_STATUS(skl_gpu_capturing(NULL, &capturing), SKL_OK);
    CHECK(capturing == 1, "the default stream, while another one is");
    CHECK(fake.taken == 1, "the runtime keeps an error that was understood");
    fake.error = cudaErrorUnknown;
    CHECK_STATUS(skl_gpu_capturing(NULL, &capturing), SKL_DEVICE_FAILED);
}

static void memory(void)
{
    struct attributes a;
    void *data = NULL;
    again();
    test_context("memory");
    fake.current = &fake.own[2];
    CHECK_STATUS(table->allocate(1000, NULL, &data), SKL_OK);
    CHECK(data == &fake, "another address");
    fake.fails = "cudaMallocAsync", fake.error = cudaErrorMemoryAllocation;
    CHECK_STATUS(table->allocate(1000, NULL, &data), SKL_OUT_OF_MEMORY);
    fake.error = cudaErrorUnknown;
    CHECK_STATUS(table->allocate(1000, NULL, &data), SKL_DEVICE_FAILED);
    test_context("no memory pools");
    again();
    fake.current = &fake.own[2], fake.no_pools = 1;
    for (int twice = 0; twice < 2; twice++) {
        CHECK_STATUS(table->allocate(1000, NULL, &data), SKL_UNSUPPORTED);
        CHECK(strstr(skl_last_error(), "CUDA device 2") && strstr(skl_last_error(), "pass a workspace of 1000 bytes"),
              "said \"%s\"", skl_last_error());
    }
    CHECK(fake.allocations == 0, "%d allocations", fake.allocations);
    expect(2, SKL_OK, ""); /* which a caller's workspace does without */
    test_context("attributes, from memory");
    for (int pools = 0; pools < 2; pools++) {
        again();
        fake.no_pools = !pools, fake.capability = 121;
        for (int twice = 0; twice < 2; twice++) {
            CHECK_STATUS(attributes_of(1, &a), SKL_OK);
            CHECK(a.capability == 121 && a.processors == 108 && a.shared == 166912 && a.pools == pools,
                  "capability %d, %d processors, %d bytes, pools %d", a.capability, a.processors, a.shared, a.pools);
        }
    }
}

/* Shared memory beyond 48 KiB is asked for again after cudaDeviceReset(), which forgets it. */
static void launches(void)
{
    int args = 77;
    struct skl_gpu_launch l = {"rows_bf16_64_q", 5, 7, 128, 64 << 10, &args, sizeof args};
    again();
    test_context("launches");
    for (int reset = 0; reset < 2; reset++) {
        fake.allowed_function = NULL, fake.allowed_bytes = 0;
        CHECK_STATUS(table->launch(&l, &fake), SKL_OK);
    }
    l.kernel = "convert", l.shared_bytes = 48 << 10, fake.allowed_function = NULL;
    CHECK_STATUS(table->launch(&l, &fake), SKL_OK);
    CHECK(fake.launches == 3 && !fake.allowed_function, "%d launches, or shared memory that needs no asking",
          fake.launches);
    l.shared_bytes = 64 << 10, fake.error = cudaErrorUnknown;
    for (int i = 0; i < 2; i++) {
        fake.fails = i ? "cudaFuncSetAttribute" : "cudaLaunchKernel";
        CHECK_STATUS(table->launch(&l, &fake), SKL_DEVICE_FAILED);
        CHECK(strstr(skl_last_error(), fake.fails), "said \"%s\"", skl_last_error());
    }
}

static void context_numbers(void)
{
    uint64_t number = 0;
    again();
    test_context("a context's number");
    fake.current = &fake.own[1], fake.own[1].id = 12345;
    CHECK_STATUS(skl_gpu_context(&number), SKL_OK);
    CHECK(number == 12345, "number %llu", (unsigned long long)number);
    fake.fails = "cuCtxGetId", fake.error = cudaErrorUnknown;
    CHECK_STATUS(skl_gpu_context(&number), SKL_DEVICE_FAILED);
    again();
    fake.driver_error = cudaErrorNoDevice;
    CHECK_STATUS(skl_gpu_context(&number), SKL_NO_DEVICE);
}

int main(void)
{
    test_begin("test_cudart");
    capability();
    capture();
    memory();
    launches();
    context_numbers();
    guard();
    guard_fails();
    return test_end();
}
