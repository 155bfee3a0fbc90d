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
    int teacher;               /* there is one; without, P is flat: skl_gpu_flat() */
};

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

/* One sweep more, of another problem over the same rows: the complete states. */
enum skl_status skl_gpu_states(const struct skl_gpu_run *run, const struct skl_work *of, struct skl_state *to);

/* Labels (labels.c): weights of rows and the labels' scores, before the sweeps; the losses, and details, after them. */
enum skl_status skl_gpu_weigh_labels(struct skl_gpu_run *run);
enum skl_status skl_gpu_score_labels(const struct skl_gpu_run *run);
enum skl_status skl_gpu_finish_labels(const struct skl_gpu_run *run);

/* What labels do to dz of side x: 'grad' is the divergence's, whose factors are made, and becomes what is left of it;
 * 'own' becomes the labels' own, if they are not in the same. Returns how they are done. */
enum skl_status skl_gpu_label_grad(const struct skl_gpu_run *run, int x, struct skl_gpu_grad *grad,
                                   struct skl_gpu_grad *own, enum skl_gpu_label_dz *how);
/* The labels' entries of a slab that has been made. */
enum skl_status skl_gpu_label_entries(const struct skl_gpu_run *run, const struct skl_gpu_slab *slab,
                                      enum skl_gpu_label_dz how);
/* The factors of dz are divided by this, and sums multiplied. */
double skl_gpu_label_norm(const struct skl_work *w);

/* Blocks of a kernel with one thread a row. */
int64_t skl_gpu_row_blocks(const struct skl_gpu_run *run, enum skl_gpu_role role);

enum skl_status skl_gpu_attention_grad(const struct skl_gpu_run *run, int x);
enum skl_status skl_gpu_slab_grad(const struct skl_gpu_run *run, int x);

/* Power of two that keeps 16-bit dx in range. */
float skl_gpu_spread(const struct skl_gpu_run *run);

#endif
