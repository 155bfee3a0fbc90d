/* SPDX-License-Identifier: Apache-2.0
 *
 * How a call runs on a device: which kernels, how the columns are split, how large a slab of dx is, and where
 * everything lies in the workspace. A pure function of the work and the device's properties, so that a workspace can be
 * sized without one.
 */
#ifndef SKL_CUDA_PLAN_H
#define SKL_CUDA_PLAN_H

#include "../../work.h"
#include "../args.h"
#include "device.h"
#include "kernels.h"

#define SKL_TRY(call)                \
    do {                             \
        enum skl_status s_ = (call); \
        if (s_ != SKL_OK)            \
            return s_;               \
    } while (0)

/* forward_*: 16-bit, width <= 256, KL and JSD. stream_*: 16-bit, any width. keys_*: rows that see keys of their own,
 * and indexers. plain_*: everything else. */
enum skl_gpu_family { SKL_FAMILY_FORWARD, SKL_FAMILY_STREAM, SKL_FAMILY_PLAIN, SKL_FAMILY_KEYS };

/* Copies of a teacher's heads in the order of a map that names one for each of the student's. */
enum { SKL_GATHERED_A, SKL_GATHERED_B, SKL_GATHERED_LSE, SKL_GATHERED_SINK, SKL_GATHERED };

/* Parts of the workspace; NULL where a call does not need them. */
struct skl_gpu_memory {
    struct skl_gpu_scalars *scalars;
    struct skl_gpu_range *range, *tile_range;
    float *state;
    double *loss;
    struct skl_gpu_reference *references;
    struct skl_gpu_factors *factors;
    float *row_loss, *row_m[2], *row_l[2],
        *row_kl[2];                  /* results that a later step reads and the caller did not ask for */
    float *row_weight, *label_score; /* labels: [rows], [rows][2] */
    struct skl_state
        *label_states[3];     /* of the student and the teacher at temperature 1; of details, one after the other */
    struct skl_gpu_top *tops; /* [states][2][rows] */
    float *limits;            /* [2][rows] */
    int32_t *list_columns;    /* listed teachers: [rows][room + 1], [rows][room], [rows] */
    double *list_logp;
    struct skl_gpu_entry *list_entries;
    struct skl_gpu_list *lists;
    struct skl_state *list_states;
    int32_t *listed_keys;           /* [batch x n][room + 1] */
    struct skl_gpu_member *members; /* mixed heads: [members][rows] */
    float *sink_scores;             /* ... [rows] */
    float *index_weights;           /* an indexer on tensor cores: [members][rows] */
    char *index_queries;            /* ... [members][n][dim] of one batch */
    char *gathered[SKL_GATHERED];
    struct skl_gpu_reference *label_references; /* of labels beside a divergence */
    struct skl_gpu_factors *label_factors;
    uint64_t *picks; /* lists of the largest scores: [rows of a slab][room], [rows of a slab] */
    struct skl_gpu_picked *picked;
    char *slab;
    float *sum_a, *sum_b, *sum_bias;
    char *blas;
};

struct skl_gpu_plan {
    enum skl_call call;
    enum skl_gpu_family family;
    int capability; /* of the device */
    int mixed;      /* the teacher is a mixture of heads: kernels of mixed_* roles */
    int indexed;    /* ... and the student an indexer: kernels of index_* roles */
    int type, dim;  /* of forward_* and the attention gradients: SKL_BF16 or SKL_F16; 64, 128 or 256 */
    int tile_rows;  /* of the sweep's kernels */
    int64_t heads;  /* of all batches */
    int64_t tiles;  /* of rows, in a head */
    int splits;     /* of the columns */
    int states;     /* that each row is left with: splits, or twice as many */
    int split_columns;
    int attention_grad; /* gradients by rows_*, columns_* or fused_*, not by slabs */
    int fused;
    int slab_rows, slab_columns;
    int slab_heads; /* slabs that are made at once: those of an indexer's heads, or one */
    int room;       /* for the entries of a list, of columns or of keys: a power of two; or for a row's picks */
    int picks;      /* that a list of the largest scores has */
    int block;      /* keys of an entry */
    struct skl_gpu_memory offset; /* as offsets from the workspace's start */
    size_t bytes;
};

enum { SKL_BLAS_BYTES = 32 << 20 };

/* Rows of a linear problem that lie evenly spaced, as one matrix: the tiles of tokens then do not end with each
 * sequence. An absent teacher becomes a flat side, a mixture of one head that head. */
struct skl_work skl_gpu_flat(const struct skl_work *w);

/* The work of one side beside one whose logits are all 0, for a KL: as Q (1) or P (0), at 'temperature' times the
 * logits. */
struct skl_work skl_gpu_beside_flat(const struct skl_work *w, int side, int as, double temperature);

/* Is a row's loss more than its divergence, or the divergence wanted beside it? Then finish_labels has the last
 * word. */
static inline int skl_gpu_finishes_labels(const struct skl_work *w)
{
    return skl_has_labels(w) || w->result[SKL_ROW_kl].data;
}

/* Where a sweep leaves the divergence. */
static inline enum skl_row_name skl_gpu_divergence_row(const struct skl_work *w)
{
    return skl_gpu_finishes_labels(w) ? SKL_ROW_kl : SKL_ROW_loss;
}

/* Which sweeps at temperature 1 the value of a problem with labels takes besides: of the student (bit 0) and of the
 * teacher. */
int skl_gpu_sweeps_at_1(enum skl_call call, const struct skl_work *w);

/* Do keys_* work on it: rows that see keys of their own, or a student that is an indexer and not for tensor cores? */
int skl_gpu_by_keys(const struct skl_work *w);

/* Is either of two results wanted: the student's 'of_s', or its neighbour? */
static inline int skl_gpu_wants_either(const struct skl_work *w, enum skl_row_name of_s)
{
    return w->result[of_s].data || w->result[of_s + 1].data;
}

/* Which details take a sweep for the largest scores, and which a second one of two. */
static inline int skl_gpu_wants_tops(const struct skl_work *w)
{
    return skl_gpu_wants_either(w, SKL_ROW_top1_s) || skl_gpu_wants_either(w, SKL_ROW_rank_s);
}

static inline int skl_gpu_wants_others(const struct skl_work *w)
{
    return w->result[SKL_ROW_jsd].data || w->result[SKL_ROW_tv].data;
}

/* Which side is a mixture of heads, the teacher's wherever a detail has put it; -1: none. */
static inline int skl_gpu_mixture_side(const struct skl_work *w)
{
    return w->side[0].scorer == SKL_MIXTURE ? 0 : w->side[1].scorer == SKL_MIXTURE ? 1 : -1;
}

/* Is there one, and do kernels over tiles work on it? */
static inline int skl_gpu_mixes_tiles(const struct skl_work *w)
{
    return skl_gpu_mixture_side(w) >= 0 && !skl_gpu_by_keys(w);
}

/* Has the teacher a head for each of the student's by a map, which are copied in its order? */

static inline int skl_gpu_gathers(const struct skl_work *w)
{
    return w->side[!w->student].map && w->side[!w->student].members == 1;
}

/* The side as the copies are, without their addresses; and how many bytes each takes (mixture.c). */
struct skl_work_side skl_gpu_gathered_side(const struct skl_work *w);
void skl_gpu_gathered_bytes(const struct skl_work *w, int64_t bytes[SKL_GATHERED]);

/* Lists of the largest scores (topk.c): rows and columns of a slab of them, within so many bytes, and a row's picks. */
void skl_gpu_shape_topk(const struct skl_work *w, size_t limit, struct skl_gpu_plan *plan);

/* w as skl_gpu_flat() made it. */
enum skl_status skl_gpu_make_plan(enum skl_call call, const struct skl_work *w, const struct skl_gpu_properties *device,
                                  struct skl_gpu_plan *plan);

/* Where everything lies in the workspace, and how large a slab is: plan->offset, plan->bytes. A part of the plan
 * (workspace.c). */
void skl_gpu_lay_workspace(const struct skl_work *w, struct skl_gpu_plan *plan);

/* Can cuBLAS sum up a gradient in place? */
int skl_gpu_own_sum(const struct skl_operand *grad, int64_t dim);

/* The dtype to which dx of side x is rounded before the gradient products. */
int skl_gpu_slab_dtype(const struct skl_work *w, const struct skl_gpu_plan *plan, int x);

/* The kernel that does this in this plan: the one for its type and width, or else for its type, or else for all. NULL:
 * none does. */
const struct skl_gpu_kernel *skl_gpu_planned(const struct skl_gpu_plan *plan, enum skl_gpu_role role);

/* Which second sweep the divergence takes. */
enum skl_gpu_role skl_gpu_second_sweep(const struct skl_work *w);

#endif
