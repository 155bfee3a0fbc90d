/* SPDX-License-Identifier: Apache-2.0
 *
 * How many blocks of a kernel fit on a multiprocessor, by NVIDIA's own calculator, which is a header and needs no GPU.
 * Compiled by counts.py.
 *
 * stdin: lines "ARCH REGISTERS THREADS STATIC DYNAMIC"; stdout: for each, blocks or 0
 */
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cuda_occupancy.h>

/* Compute capabilities and limits: CUDA programming guide, table "Technical specifications per compute capability". */
struct device {
    int arch;
    int threads; /* on a multiprocessor */
    int multiprocessors;
    size_t shared, shared_opt_in; /* bytes of a multiprocessor, of a block */
};

static const struct device devices[] = {
    {80, 2048, 108, 164 * 1024, 163 * 1024},  /* A100 */
    {90, 2048, 132, 228 * 1024, 227 * 1024},  /* H100 */
    {100, 2048, 148, 228 * 1024, 227 * 1024}, /* B200 */
    {120, 1536, 170, 100 * 1024, 99 * 1024},  /* RTX 5090 */
};

static cudaOccDeviceProp properties_of(const struct device *d)
{
    cudaOccDeviceProp p;
    memset(&p, 0, sizeof p);
    p.computeMajor = d->arch / 10;
    p.computeMinor = d->arch % 10;
    p.maxThreadsPerBlock = 1024;
    p.maxThreadsPerMultiprocessor = d->threads;
    p.regsPerBlock = p.regsPerMultiprocessor = 65536;
    p.warpSize = 32;
    p.sharedMemPerBlock = 48 * 1024;
    p.sharedMemPerMultiprocessor = d->shared;
    p.sharedMemPerBlockOptin = d->shared_opt_in;
    p.reservedSharedMemPerBlock = 1024;
    p.numSms = d->multiprocessors;
    return p;
}

static int blocks_of(const struct device *d, int registers, int threads, size_t static_bytes, size_t dynamic)
{
    cudaOccDeviceProp properties = properties_of(d);
    cudaOccFuncAttributes kernel;
    cudaOccDeviceState state;
    cudaOccResult result;
    memset(&kernel, 0, sizeof kernel);
    memset(&state, 0, sizeof state);
    kernel.maxThreadsPerBlock = INT_MAX;
    kernel.numRegs = registers;
    kernel.sharedSizeBytes = static_bytes;
    kernel.partitionedGCConfig = PARTITIONED_GC_OFF;
    kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    kernel.maxDynamicSharedSizeBytes = d->shared_opt_in;
    kernel.numBlockBarriers = 1;
    state.cacheConfig = CACHE_PREFER_SHARED;
    state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
    if (cudaOccMaxActiveBlocksPerMultiprocessor(&result, &properties, &kernel, &state, threads, dynamic) !=
        CUDA_OCC_SUCCESS)
        return 0;
    return result.activeBlocksPerMultiprocessor;
}

int main(void)
{
    int arch, registers, threads;
    size_t static_bytes, dynamic;
    while (scanf("%d %d %d %zu %zu", &arch, &registers, &threads, &static_bytes, &dynamic) == 5) {
        const struct device *d = devices, *end = devices + sizeof devices / sizeof *devices;
        while (d < end && d->arch != arch) d++;
        printf("%d\n", d < end ? blocks_of(d, registers, threads, static_bytes, dynamic) : -1);
    }
    return 0;
}
