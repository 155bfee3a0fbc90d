/* SPDX-License-Identifier: Apache-2.0
 * One call on its way over a device: what run.c (values), attention_grad.c and slab_grad.c (gradients) share. */
#ifndef SKL_CUDA_RUN_H
#define SKL_CUDA_RUN_H

#include "plan.h"

struct skl_gpu_run {
    struct skl_work work; /* as skl_gpu_flat() made it, with results that later steps read in the workspace */
    struct skl_gpu_plan plan;
    struct skl_gpu_memory memory;
    struct skl_state *partial; /* SKL_CALL_PARTIAL */
    int second_sweep;          /* ... of two, from saved LSEs */
};

#define SKL_TRY(call)                \
    do {                             \
        enum skl_status s_ = (call); \
        if (s_ != SKL_OK)            \
            return s_;               \
    } while (0)

/* The problem as kernels with tiles of 'tile_rows' rows want it. */
struct skl_gpu_problem skl_gpu_problem_of(const struct skl_gpu_run *run, int tile_rows);
struct skl_gpu_matrix skl_gpu_matrix_of(const struct skl_operand *o);
struct skl_gpu_vector skl_gpu_rows_of(const struct skl_rows *r);

/* Launches the kernel that does this in the run's plan. */
enum skl_status skl_gpu_start(const struct skl_gpu_run *run, enum skl_gpu_role role, int64_t grid_x, int64_t grid_y,
                              const void *args, size_t args_bytes);

/* Rows first .. of every head of a gradient of b, or any matrix [heads][rows][dim], to 0 or to f32 sums. */
enum skl_status skl_gpu_convert_matrix(const struct skl_gpu_run *run, const struct skl_operand *to, const float *from,
                                       int64_t batch, int64_t heads, int64_t first, int64_t rows, int64_t dim);

/* dz's formula and argument for side x, with the rows' factors made. */
enum skl_status skl_gpu_grad_of(const struct skl_gpu_run *run, int x, struct skl_gpu_grad *grad);

enum skl_status skl_gpu_attention_grad(const struct skl_gpu_run *run, int x);
enum skl_status skl_gpu_slab_grad(const struct skl_gpu_run *run, int x);

/* Power of two that keeps 16-bit dx in range. */
float skl_gpu_spread(const struct skl_gpu_run *run);

#endif
