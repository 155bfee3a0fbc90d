/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels by what they do: ../kernels.def as a table.
 */
#ifndef SKL_CUDA_KERNELS_H
#define SKL_CUDA_KERNELS_H

#include <stddef.h>

/* In kernels.def without the prefix. */
enum skl_gpu_role {
    /* Sweeps, a row's state each: the only or the first one; the second one of JSD, and of the other divergences. */
    SKL_ROLE_kl,
    SKL_ROLE_jsd,
    SKL_ROLE_second,
    /* A sweep for the largest scores, or for how many are larger than others. */
    SKL_ROLE_top,
    /* A sweep of the student over the columns that its rows do not list. */
    SKL_ROLE_rest,
    /* A slab of the student's scores, f32. */
    SKL_ROLE_scores,
    /* A slab of dx: of KL and JSD, and of the other divergences. */
    SKL_ROLE_dz,
    SKL_ROLE_second_dz,
    /* The same where a side is a mixture of heads; and a sweep of one of them. */
    SKL_ROLE_mixed_kl,
    SKL_ROLE_mixed_jsd,
    SKL_ROLE_mixed_second,
    SKL_ROLE_mixed_dz,
    SKL_ROLE_mixed_second_dz,
    SKL_ROLE_mixed_lse,
    /* The same where the student beside it is an indexer. */
    SKL_ROLE_index_kl,
    SKL_ROLE_index_dz,
    /* Attention's gradients: q for SKL_DZ_Q, pj for SKL_DZ_P and SKL_DZ_JSD. */
    SKL_ROLE_rows_q,
    SKL_ROLE_rows_pj,
    SKL_ROLE_columns_q,
    SKL_ROLE_columns_pj,
    SKL_ROLE_fused_q,
    SKL_ROLE_fused_pj,
    /* One kernel each. */
    SKL_ROLE_sum_weights,
    SKL_ROLE_find_ranges,
    SKL_ROLE_finish_rows,
    SKL_ROLE_sum_values,
    SKL_ROLE_make_factors,
    SKL_ROLE_convert,
    SKL_ROLE_sum_columns,
    /* Mixed heads, indexers and sinks: one kernel each. */
    SKL_ROLE_make_members,
    SKL_ROLE_gather_heads,
    SKL_ROLE_index_weights,
    SKL_ROLE_index_queries,
    SKL_ROLE_index_rows,
    SKL_ROLE_push_sinks,
    SKL_ROLE_sink_masses,
    SKL_ROLE_sum_sinks,
    /* Labels and details: one kernel each. */
    SKL_ROLE_label_weights,
    SKL_ROLE_label_scores,
    SKL_ROLE_finish_labels,
    SKL_ROLE_label_factors,
    SKL_ROLE_label_entries,
    SKL_ROLE_put_detail,
    SKL_ROLE_put_tops,
    SKL_ROLE_put_masses,
    /* Listed teachers: one kernel each. */
    SKL_ROLE_sort_lists,
    SKL_ROLE_score_lists,
    SKL_ROLE_finish_lists,
    SKL_ROLE_list_factors,
    SKL_ROLE_put_list_entries,
    SKL_ROLE_list_da,
    SKL_ROLE_list_db,
    /* Rows that see keys of their own: one kernel each. */
    SKL_ROLE_sort_keys,
    SKL_ROLE_keys_lse,
    SKL_ROLE_keys_kl,
    SKL_ROLE_keys_second,
    SKL_ROLE_keys_top,
    SKL_ROLE_keys_scores,
    SKL_ROLE_keys_rows,
    SKL_ROLE_keys_columns,
    /* Lists of the largest scores: one kernel each. */
    SKL_ROLE_pick_scores,
    SKL_ROLE_sort_picks
};

enum { SKL_ANY_TYPE = -1 }; /* besides SKL_BF16 and SKL_F16 */

struct skl_gpu_kernel {
    const char *name;
    enum skl_gpu_role role;
    int type, dim; /* SKL_ANY_TYPE, 0: all */
    int min_sm;    /* 10 major + minor of the compute capability */
    int rows, columns, threads;
    size_t shared;
};

/* The kernel of this role that is compiled for exactly this type and width; of several the one for the latest
 * architecture that the device still has. NULL: there is none. */
const struct skl_gpu_kernel *skl_gpu_kernel_of(enum skl_gpu_role role, int type, int dim, int capability);

#endif
