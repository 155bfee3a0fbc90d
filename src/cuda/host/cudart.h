/* SPDX-License-Identifier: Apache-2.0
 * What cudart.c and blas.c, the two files that call NVIDIA's libraries, share. */
#ifndef SKL_CUDA_CUDART_H
#define SKL_CUDA_CUDART_H

#include "device.h"

/* Devices of which something is remembered that never changes. More than a machine has. */
enum { SKL_GPU_DEVICES = 64 };

/* The number of the calling thread's context, which no other one will have in this process: not another one on the same
 * device, and not the one that follows when cudaDeviceReset() has ended it. */
enum skl_status skl_gpu_context(uint64_t *number);

/* Is this stream, or for the default stream any other one, being captured into a graph? */
enum skl_status skl_gpu_capturing(void *stream, int *capturing);

/* device.h's prepare and product, by cuBLAS. */
enum skl_status skl_blas_prepare(void *stream);
enum skl_status skl_blas_product(const struct skl_gpu_product *p, void *stream);

#endif
