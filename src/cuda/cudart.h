/* SPDX-License-Identifier: Apache-2.0
 * What cudart.c and blas.c, the two files that call NVIDIA's libraries, share. */
#ifndef SKL_CUDA_CUDART_H
#define SKL_CUDA_CUDART_H

#include "device.h"

/* Devices whose state is remembered: handles of cuBLAS, properties, shared memory asked for. More than a machine has. */
enum { SKL_GPU_DEVICES = 64 };

/* The calling thread's current device. */
enum skl_status skl_gpu_current(int *index);

/* Is this stream, or for the default stream any other one, being captured into a graph? */
enum skl_status skl_gpu_capturing(void *stream, int *capturing);

/* device.h's prepare and product, by cuBLAS. */
enum skl_status skl_blas_prepare(void *stream);
enum skl_status skl_blas_product(const struct skl_gpu_product *p, void *stream);

#endif
