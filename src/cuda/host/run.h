/* SPDX-License-Identifier: Apache-2.0
 * One call on its way over a device: what run.c (values), attention_grad.c and slab_grad.c (gradients) share. */
#ifndef SKL_CUDA_RUN_H
#define SKL_CUDA_RUN_H

#include "plan.h"

struct skl_gpu_run {
    const struct skl_work *given; /* as it came */
    struct skl_work work;         /* as skl_gpu_flat() made it, with results that later steps read in the workspace */
    struct skl_gpu_plan plan;
    struct skl_gpu_memory memory;
    struct skl_state *partial; /* SKL_CALL_PARTIAL */
    int second_sweep;          /* ... of two, from saved LSEs */
    int teacher;               /* there is one; without, P is flat: skl_gpu_flat() */
};

/* The work as kernels want it (arguments.c); the problem with tiles of 'tile_rows' rows. */
struct skl_gpu_problem skl_gpu_problem_of(const struct skl_gpu_run *run, int tile_rows);
struct skl_gpu_matrix skl_gpu_matrix_of(const struct skl_operand *o);
struct skl_gpu_vector skl_gpu_rows_of(const struct skl_rows *r);
struct skl_gpu_ids skl_gpu_ids_of(const struct skl_row_ids *r);
struct skl_gpu_packed skl_gpu_packed_of(const struct skl_work *w);
/* P's target, as it is or divided by its sum. The LSEs of one head are given; a mixture's scores have theirs in
 * them. */
struct skl_gpu_raw skl_gpu_raw_of(const struct skl_work *w);

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

/* ... of a second sweep, whose sums are the accs; the first one's m and l are there. */
enum skl_status skl_gpu_second_states(const struct skl_gpu_run *run, const struct skl_work *of, struct skl_state *to);
/* ... for the largest scores, or for how many are above the limits [2][rows]. */
enum skl_status skl_gpu_sweep_tops(const struct skl_gpu_run *run, const float *limits);

/* ... of the student over the columns that its rows do not list. */
enum skl_status skl_gpu_rest_states(const struct skl_gpu_run *run, struct skl_state *to);

/* Listed teachers (lists.c): the lists made ready; the divergence, behind a sweep where one is needed. Nothing without
 * lists. */
enum skl_status skl_gpu_start_lists(const struct skl_gpu_run *run);
enum skl_status skl_gpu_finish_lists(const struct skl_gpu_run *run);
/* Their part of dz: factors of the columns off the lists; the lists' entries of a slab that has been made. */
enum skl_status skl_gpu_list_factors(const struct skl_gpu_run *run);
enum skl_status skl_gpu_list_entries(const struct skl_gpu_run *run, const struct skl_gpu_slab *slab);
/* Gradients where the listed columns are all there is. */
enum skl_status skl_gpu_list_gradients(const struct skl_gpu_run *run);

/* A sweep of one head of the teacher's mixture. */
enum skl_status skl_gpu_sweep_head(const struct skl_gpu_run *run, int64_t member);

/* Mixed heads (mixture.c): as kernels want them; heads copied in the order of a map; the rows' numbers of each head.
 * Nothing of other teachers. */
struct skl_gpu_mixture skl_gpu_mixture_of(const struct skl_gpu_run *run);
enum skl_status skl_gpu_gather(struct skl_gpu_run *run);
enum skl_status skl_gpu_find_members(const struct skl_gpu_run *run);

/* Indexers on tensor cores (index.c): as kernels want them; the weights of their heads made ready; what the products of a
 * batch's slabs read, and what becomes of their sums. Nothing of other students. */
struct skl_gpu_index skl_gpu_index_of(const struct skl_gpu_run *run);
enum skl_status skl_gpu_index_weights(const struct skl_gpu_run *run);
enum skl_status skl_gpu_index_queries(const struct skl_gpu_run *run, int64_t batch);
enum skl_status skl_gpu_index_rows(const struct skl_gpu_run *run, int64_t batch);

/* Sinks (sinks.c): as kernels want them; into the sums of a second sweep; their probabilities; their gradient of side
 * x. Nothing without sinks, or where nobody asks. */
struct skl_gpu_sinks skl_gpu_sinks_of(const struct skl_gpu_run *run);
enum skl_status skl_gpu_push_sinks(const struct skl_gpu_run *run);
enum skl_status skl_gpu_sink_masses(const struct skl_gpu_run *run);
enum skl_status skl_gpu_sink_grad(const struct skl_gpu_run *run, int x);

/* Rows that see keys of their own, and other indexers (keys.c): lists and LSEs of heads made ready; a sweep; a side's
 * gradients. */
enum skl_status skl_gpu_list_keys(const struct skl_gpu_run *run);
enum skl_status skl_gpu_sweep_keys(const struct skl_gpu_run *run, enum skl_gpu_role role,
                                   const struct skl_gpu_forward *forward);
enum skl_status skl_gpu_key_grad(const struct skl_gpu_run *run, int x);

/* ... scores of side 1 into a slab. */
enum skl_status skl_gpu_score_keys(const struct skl_gpu_run *run, const struct skl_gpu_slab *slab);

/* Lists of the largest logits (topk.c). */
enum skl_status skl_gpu_list_largest(const struct skl_gpu_run *run);

/* Details of rows (details.c). */
enum skl_status skl_gpu_put_details(const struct skl_gpu_run *run);

/* Labels (labels.c): weights of rows and the labels' scores, before the sweeps; the losses after them. */
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
