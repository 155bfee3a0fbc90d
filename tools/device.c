/* SPDX-License-Identifier: Apache-2.0 */
#include "device.h"

#include <streamkl/streamkl.h>

#include <stdio.h>
#include <stdlib.h>

const char *const device_names[] = {"cpu", "cuda", NULL};

void require_device(const struct command *command, int device)
{
    if (device != SKL_CUDA || skl_cuda_devices() > 0)
        return;
    fprintf(stderr, "streamkl %s: cannot use --device = cuda: %s\n", command->name, skl_last_error());
    exit(EXIT_USAGE);
}

#ifdef TOOL_CUDA

#include <cuda_runtime_api.h>

static void must(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return;
    fprintf(stderr, "streamkl: %s failed: %s\n", what, cudaGetErrorString(error));
    exit(EXIT_WRONG);
}

void device_describe(int index, char *text, size_t size)
{
    struct cudaDeviceProp p;
    must(cudaGetDeviceProperties(&p, index), "cudaGetDeviceProperties");
    snprintf(text, size, "%s, sm_%d%d, %d SMs, %.1f GiB", p.name, p.major, p.minor, p.multiProcessorCount,
             (double)p.totalGlobalMem / (1 << 30));
}

void *device_get(size_t bytes)
{
    void *p = NULL;
    must(cudaMalloc(&p, bytes ? bytes : 1), "cudaMalloc");
    return p;
}

void device_free(void *p)
{
    must(cudaFree(p), "cudaFree");
}

void device_put(void *to, const void *from, size_t bytes)
{
    must(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
}

void device_take(void *to, const void *from, size_t bytes)
{
    must(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
}

void device_spoil(void *p, size_t bytes)
{
    must(cudaMemset(p, 0xff, bytes), "cudaMemset");
}

const char *device_wait(void)
{
    cudaError_t error = cudaStreamSynchronize(NULL);
    return error == cudaSuccess ? NULL : cudaGetErrorString(error);
}

static cudaEvent_t event[2];

void device_clock_start(void)
{
    for (int i = 0; i < 2 && !event[i]; i++) must(cudaEventCreate(&event[i]), "cudaEventCreate");
    must(cudaEventRecord(event[0], NULL), "cudaEventRecord");
}

double device_clock_stop(void)
{
    float milliseconds = 0;
    must(cudaEventRecord(event[1], NULL), "cudaEventRecord");
    must(cudaEventSynchronize(event[1]), "cudaEventSynchronize");
    must(cudaEventElapsedTime(&milliseconds, event[0], event[1]), "cudaEventElapsedTime");
    return 1e-3 * (double)milliseconds;
}

#else

void device_describe(int index, char *text, size_t size)
{
    snprintf(text, size, "cuda:%d", index);
}

void *device_get(size_t bytes)
{
    (void)bytes;
    abort(); /* unreachable, as all of these */
}

void device_free(void *p)
{
    (void)p;
}

void device_put(void *to, const void *from, size_t bytes)
{
    (void)to, (void)from, (void)bytes;
}

void device_take(void *to, const void *from, size_t bytes)
{
    (void)to, (void)from, (void)bytes;
}

void device_spoil(void *p, size_t bytes)
{
    (void)p, (void)bytes;
}

const char *device_wait(void)
{
    return NULL;
}

void device_clock_start(void)
{
}

double device_clock_stop(void)
{
    return 0;
}

#endif
