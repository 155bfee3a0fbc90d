/* SPDX-License-Identifier: Apache-2.0
 *
 * Everything the library asks of CUDA, as one small table: the host side knows kernels by name and nothing of the
 * runtime behind them. cudart.c fills the table with the CUDA runtime and cuBLAS; the tests put the PTX emulator and a
 * host product there. Every function returns a status and leaves a sentence for skl_last_error(); none synchronises.
 */
#ifndef SKL_CUDA_DEVICE_H
#define SKL_CUDA_DEVICE_H

#include "../../error.h"

#include <stdint.h>

/* What the launch rules need to know of a device. */
struct skl_gpu_properties {
    int processors;    /* SMs */
    int shared_memory; /* most bytes of dynamic shared memory a block may ask for */
    int capability;    /* 10 major + minor */
};

/* One launch. Every kernel takes one structure by value and a one-dimensional block. */
struct skl_gpu_launch {
    const char *kernel; /* its name in kernels.def */
    int64_t grid_x;
    int grid_y;
    int threads;
    size_t shared_bytes; /* dynamic */
    const void *args;
    size_t args_bytes;
};

/* C [m, n] = alpha op(A) B + beta C, row-major, op(A) = A [m, k] or the transpose of A [k, m]; B [k, n]. A and B have
 * 'dtype', sums are in f32, C has 'dtype_c' (f32 or dtype). ld* = elements from one row to the next. */
struct skl_gpu_product {
    int transpose_a;
    int64_t m, n, k;
    const void *a, *b;
    void *c;
    int64_t lda, ldb, ldc;
    int dtype, dtype_c;
    const float *alpha, *beta; /* in device memory: the host does not know them and does not wait */
    /* Device memory for cuBLAS, aligned to 256 bytes (4 MiB do, 32 on sm_90). NULL: it takes its own, and then promises
     * the same bits every time only while a single stream is in use. */
    void *workspace;
    size_t workspace_bytes;
};

/* Where a thread was before it entered a device: its context, NULL if it had none. */
struct skl_gpu_place {
    void *context;
    int left; /* 0: it is still there */
};

struct skl_gpu {
    /* The device is there, the kernels run on it, and the calling thread is in a context of it, its own if that is one.
     * 'leave' brings the thread back to exactly where it was; after an 'enter' that failed, it is there already. */
    enum skl_status (*enter)(int index, struct skl_gpu_place *before);
    void (*leave)(const struct skl_gpu_place *before);
    enum skl_status (*properties)(int index, struct skl_gpu_properties *p);
    enum skl_status (*launch)(const struct skl_gpu_launch *l, void *stream);
    enum skl_status (*clear)(void *data, size_t bytes, void *stream);
    /* What 'product' needs once and may fail to get, or may not get while the stream is being captured. Called before
     * anything of a call is issued that will ask for products, so that nothing is written then. */
    enum skl_status (*prepare)(void *stream);
    enum skl_status (*product)(const struct skl_gpu_product *p, void *stream);
    /* In the stream's order. */
    enum skl_status (*allocate)(size_t bytes, void *stream, void **data);
    void (*release)(void *data, void *stream);
};

/* The table in use; never NULL. */
extern const struct skl_gpu *skl_gpu;

/* The real one. */
extern const struct skl_gpu skl_gpu_cudart;

#endif
