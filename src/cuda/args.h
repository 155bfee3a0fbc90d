/* SPDX-License-Identifier: Apache-2.0
 *
 * What the kernels are given: plain structures, filled by the host side in C and read by the kernels in CUDA C. Sides
 * are P = 0 and Q = 1 of KL(P || Q), as everywhere in the engine; strides count elements.
 */
#ifndef SKL_CUDA_ARGS_H
#define SKL_CUDA_ARGS_H

#include "streamkl/streamkl.h"

#include <stdint.h>

/* [b][h][i][dim] with the last dimension contiguous. */
struct skl_gpu_matrix {
    char *data;
    int64_t stride[3];
    int32_t dtype, reserved;
};

/* A vector, or a tensor over the rows. */
struct skl_gpu_vector {
    char *data;
    int64_t stride[3]; /* a vector over the columns has only the last */
    int32_t dtype, reserved;
};

/* 'count' integers for each row, i32 or i64, 'step' apart. */
struct skl_gpu_ids {
    struct skl_gpu_vector rows;
    int64_t count, step;
};

/* The score x = cap tanh(inner (<a, b> + bias)) under a softcap, x = inner (<a, b> + bias) without one (inner is then 1
 * or -1: the sign of the scale). factor x is the logit in base 2; factor is positive. */
struct skl_gpu_side {
    struct skl_gpu_matrix a, b;
    struct skl_gpu_vector bias;
    int32_t dim;
    int32_t share; /* query heads to one head of b */
    float inner, cap, factor;
    float param; /* the divergence's number of this side: ../divergences.def */
};

/* A row's number of one head of a mixture: its part of t is 2^(factor x + shift). */
struct skl_gpu_member {
    float shift; /* -log2(members) - LSE in base 2; -3e38: no mass */
};

/* A side that is the mean of the softmaxes of several heads, whose operands are the side's; as scores log2 t the side
 * has neither softcap nor factor: those of the heads are here. */
struct skl_gpu_mixture {
    const struct skl_gpu_member *member; /* [members][rows], and SKL_ROW_UNIT more that kernels over tiles may read */
    const int32_t *map;                  /* heads of a, [head of rows][member]; NULL: h members + k */
    int64_t map_stride[2];
    int32_t members, heads; /* of a row, 0: there is no mixture; of a */
    float inner, cap, factor;
    int32_t side;            /* which it is */
    int32_t alone, reserved; /* *_lse: the member */
};

/* A Q that is an indexer on tensor cores: x = sum over its heads k of w_k max(<a_k, b>, floor). */
struct skl_gpu_index {
    const float *w; /* [members][rows], times the sign of the scale, and SKL_ROW_UNIT more that tiles may read */
    float floor;    /* 0; without ReLU -inf */
    int32_t members;
    int64_t step; /* index_dz: elements from the slab of a head to that of the next */
};

/* Columns lo .. hi-1; lo = hi = 0 for a row without work: no column, or weight 0. */
struct skl_gpu_range {
    int32_t lo, hi;
};

/* The part of the problem that every kernel over tiles of logits needs. */
struct skl_gpu_problem {
    struct skl_gpu_side side[2];
    int64_t rows;     /* heads of all batches x n */
    int32_t heads, n; /* rows are (b, h, i): row = (b heads + h) n + i */
    int32_t columns;
    int32_t tiles; /* of rows, in one head: blockIdx.x = head x tiles + tile */
    const struct skl_gpu_range *range;
    struct skl_gpu_mixture mixture;
    struct skl_gpu_index index;
};

/* Numbers of a row state, each [splits][rows] in this order: m (a score) and l of P and Q; acc (base 2). */
enum { SKL_M_P, SKL_L_P, SKL_M_Q, SKL_L_Q, SKL_ACC, SKL_STATES };

/* A row's numbers for a second sweep and for dz: log p = factor (x - m) - log l in base 2. */
struct skl_gpu_reference {
    float m[2];           /* scores */
    float minus_log_l[2]; /* base 2 */
};

/* ... and for dz alone. A row without work has r = 0 and an empty range. */
struct skl_gpu_factors {
    float c; /* SKL_DZ_P: acc / l_P in base 2; after two sweeps: struct skl_closed's c of the side */
    float r; /* weight / largest |weight| */
};

/* A side's largest score of a row, the first column that has it, and the other side's score there; or, in 'column', how
 * many scores are above a limit. */
struct skl_gpu_top {
    float x, there;
    int32_t column;
};

/* forward_*, stream_*_kl and _jsd, plain_kl, _jsd and _second: gridDim.y = splits of the columns. */
struct skl_gpu_forward {
    struct skl_gpu_problem problem;
    float *state; /* [splits][SKL_STATES][rows]; a second sweep: its two sums in l_P and l_Q */
    const struct skl_gpu_reference *references; /* a second sweep: [rows] */
    int32_t split_columns;    /* split s has the columns from s x split_columns on; a multiple of every kernel's tile */
    int32_t form;             /* enum skl_form, for plain_second */
    struct skl_gpu_top *tops; /* *_top: [slots][2][rows], slots as those of 'state' */
    const float *limits;      /* ... [2][rows]: count the scores above them instead. NULL: find the largest */
    const int32_t *listed; /* *_rest: [rows][room + 1], the columns to be left out, ascending, INT32_MAX behind them */
    int32_t room, reserved;
};

/* Which formula turns logits into dz of side x. */
enum skl_gpu_dz {
    SKL_DZ_Q,     /* q - p */
    SKL_DZ_P,     /* p (((z_P - m_P) - (z_Q - m_Q)) - c),  c = acc / l_P */
    SKL_DZ_JSD,   /* beta x (log(x/m) - KL(x || m)) */
    SKL_DZ_COLUMN /* that of 'form', in plain_second_dz: see kernels/column.cuh */
};

/* Scalars that the device computes on the way, so that the host need not wait for them. */
struct skl_gpu_scalars {
    double weight_sum;
    float largest;  /* |weight| */
    float unit;     /* upstream gradient of a row = r unit */
    float alpha[2]; /* unit chain / spread of each side: what turns sums of 16-bit dx into gradients */
    float zero, one;
    int32_t any_weight;  /* some weight is not 0 */
    int32_t bad_offsets; /* of packed sequences: every row is NaN */
};

/* Offsets of packed sequences, i32; q NULL: there are none. */
struct skl_gpu_packed {
    const int32_t *q, *k;
    int64_t stride_q, stride_k;
    int32_t count, reserved; /* of sequences: one less than of offsets */
};

/* rows_* (dA) and columns_* (dB), fused_*: gradient of side x of an attention problem. */
struct skl_gpu_grad {
    struct skl_gpu_problem problem;
    const struct skl_gpu_reference *references; /* [rows] */
    const struct skl_gpu_factors *factors;      /* [rows] */
    const struct skl_gpu_scalars *scalars;
    const struct skl_gpu_range *tile_range; /* [heads x tiles of 64 rows]: the columns that any of the rows sees */
    struct skl_gpu_matrix grad_a, grad_b;
    int32_t x;    /* the side */
    int32_t dz;   /* enum skl_gpu_dz */
    int32_t form; /* enum skl_form */
    float spread; /* power of two that keeps dz in the range of a 16-bit float */
};

/* stream_*_dz, plain_dz and plain_second_dz: dx = r dz dz/dx spread of a slab of rows x columns of one head, in the
 * slab's dtype. */
struct skl_gpu_slab {
    struct skl_gpu_grad grad;
    int32_t head;            /* of all batches */
    int32_t first_row, rows; /* a multiple of every kernel's tile */
    int32_t first_column, columns;
    int32_t dtype;
    int64_t ld;
    char *slab; /* [rows][ld] */
};

/* --------------------------------------------------------------------- small kernels over rows and matrices --- */

/* sum_weights: the scalars, by one block. */
struct skl_gpu_sum_weights {
    struct skl_gpu_vector weight; /* data NULL: all 1 */
    int64_t rows;
    int32_t heads, n, mean, reserved;
    float chain[2], spread, reserved2;
    double items; /* > 0: instead of the weights' sum, in a mean */
    struct skl_gpu_packed packed;
    int32_t columns, reserved3;
    struct skl_gpu_scalars *scalars;
};

/* find_ranges: range and tile_range, a block of 64 threads for each 64 rows of a head. Of packed sequences with bad
 * offsets every range is {0, -1}: no column, and a result that is not a number. */
struct skl_gpu_find_ranges {
    struct skl_gpu_vector weight, begin, end;
    int32_t heads, n, columns, tiles;
    int64_t left, right; /* window around the diagonal; -1: no limit */
    struct skl_gpu_packed packed;
    const struct skl_gpu_scalars *scalars;
    struct skl_gpu_range *range, *tile_range;
};

/* A target t = e^{z - given} that is not divided by its sum S; one that is has loss and LSE of P = t / S. */
struct skl_gpu_raw {
    struct skl_gpu_vector given; /* log-denominators of P's logits; data NULL: z is log t */
    int32_t is, reserved;
};

/* make_members: of one head, from the states that its sweep left or from LSEs as they were given. */
struct skl_gpu_make_members {
    struct skl_gpu_mixture mixture;
    struct skl_gpu_vector given; /* over batch, head of a and query; data NULL: from the states */
    const float *state;          /* [splits][SKL_STATES][rows] */
    const struct skl_gpu_range *range;
    int64_t rows;
    int32_t heads, n, splits, member;
    double unit;                /* of a head's scores */
    struct skl_gpu_vector sink; /* of the heads of a; data NULL: none */
    double temperature;
    float *sink_score;         /* [rows], behind the last head; NULL: not wanted */
    struct skl_gpu_member *to; /* [rows] */
};

/* index_weights, index_queries, index_rows: what indexers take beside their sweeps and slabs. */
struct skl_gpu_index_rows {
    struct skl_gpu_matrix a, w, grad_a, grad_w;
    int64_t w_step, grad_w_step; /* from head to head */
    int64_t rows;
    int32_t n, dim, members, batch; /* batch: whose rows; index_weights: of all */
    float sign, reserved;           /* of the scale */
    const struct skl_gpu_range *range;
    float *weights;   /* [members][rows] */
    char *queries;    /* w a of a batch, [members][n][dim] */
    const float *sum; /* sums of dx b of a batch, [members][n][dim] */
};

/* gather_heads: [batch][heads][rows][dim], contiguous, of the heads that the map names. */
struct skl_gpu_gather_heads {
    struct skl_gpu_mixture mixture; /* of one head each */
    struct skl_gpu_matrix from;
    char *to;
    int64_t rows, all; /* of a head; of all: a block each, or turn by turn as in convert */
    int32_t heads, dim, share, reserved;
};

/* One more column of every row, with the score sink / divisor; data NULL of a flat side: 0. */
struct skl_gpu_sinks {
    struct skl_gpu_vector sink[2]; /* over the rows */
    double divisor[2];             /* temperature unit */
    double unit[2], temperature;   /* unit: of each side's scores */
    int32_t are, reserved;         /* are: there are any */
};

/* push_sinks: what sinks add to a second sweep's sums, into its first state. */
struct skl_gpu_push_sinks {
    struct skl_gpu_problem problem;
    struct skl_gpu_sinks sinks;
    const struct skl_gpu_reference *references;
    int32_t form, reserved; /* enum skl_form */
    float *state;
};

/* sink_masses: the sink's probability on each side. */
struct skl_gpu_sink_masses {
    struct skl_gpu_sinks sinks;
    int64_t rows;
    int32_t heads, n;
    struct skl_gpu_vector m[2], l[2], mass[2];
};

/* sum_sinks: a sink's gradient, a block a head. */
struct skl_gpu_sum_sinks {
    struct skl_gpu_grad grad; /* whose problem has no softcaps */
    struct skl_gpu_sinks sinks;
    struct skl_gpu_vector to;
};

/* The only one; the first of two; the second. */
enum skl_gpu_sweep { SKL_SWEEP_KL, SKL_SWEEP_LSE, SKL_SWEEP_SECOND };

/* finish_rows: the states of all splits into a row's results, or into a caller's partial state. */
struct skl_gpu_finish_rows {
    const float *state;                 /* [splits][SKL_STATES][rows] */
    const struct skl_state *partial_in; /* instead of 'state': complete partial states */
    const struct skl_gpu_range *range;
    struct skl_gpu_vector weight; /* of complete states: a row of weight 0 has no loss */
    int64_t rows;
    int32_t heads, n, splits;
    int32_t sweep;   /* enum skl_gpu_sweep */
    int32_t student; /* which side is the student, for partial states */
    int32_t form;    /* enum skl_form */
    double param[2];
    double *loss_out;          /* [rows]; NULL: not wanted */
    struct skl_state *partial; /* [rows]; NULL: results are wanted */
    struct skl_gpu_vector loss, lse[2], kl[2], m[2], l[2];
    double unit[2]; /* of each side's scores: LSE = unit m + log l */
    struct skl_gpu_raw raw;
    struct skl_gpu_sinks sinks;
};

/* sum_values: the weighted sum of the rows' losses, by one block. */
struct skl_gpu_sum_values {
    const double *loss; /* [rows] */
    struct skl_gpu_vector weight;
    const struct skl_gpu_scalars *scalars;
    int64_t rows;
    int32_t heads, n, mean, reserved;
    double *value;
};

/* make_factors: what dz of side x needs of each row, from what a value wrote. */
struct skl_gpu_make_factors {
    struct skl_gpu_vector weight; /* data NULL: r = 1 */
    struct skl_gpu_vector loss, lse[2], kl;
    struct skl_gpu_vector m[2], l[2]; /* instead of the LSEs, if given */
    double unit[2];
    struct skl_gpu_raw raw;
    const struct skl_gpu_range *range;
    const struct skl_gpu_scalars *scalars;
    int64_t rows;
    int32_t heads, n, dz, reserved;
    struct skl_gpu_reference *references;
    struct skl_gpu_factors *factors;
};

/* Labels. What the row kernels of label_kernels.cu share; sides are student 0 and teacher 1 here, whichever is P. */
struct skl_gpu_labels {
    struct skl_gpu_vector ids;    /* i32 or i64; data NULL: only details are wanted */
    struct skl_gpu_vector weight; /* the rows', as given; data NULL: none are */
    const struct skl_gpu_range *range;
    int64_t rows, ignore;
    int32_t heads, n, columns, teacher; /* teacher: there is one with scores */
    int32_t diverges, reserved;         /* there is a divergence */
    double label_weight, kl_weight, lse_weight, smoothing, z_loss;
    double temperature, unit[2]; /* unit: logit at the divergence's temperature / score */
    struct skl_gpu_side side[2];
    float *row_weight;               /* [rows]: what label_weights makes of weights and labels */
    float *score;                    /* [rows][2]: the label's score; NaN of an id that is no column */
    const struct skl_state *at_1[2]; /* [rows]: each side, and a flat one, at temperature 1; NULL: m and l tell it */
    struct skl_gpu_vector m[2], l[2], lse[2], l1;
    double *loss; /* [rows]: in the divergence, out the loss */
    struct skl_gpu_vector row_loss, kl, ce, logprob[2];
};

/* label_factors: what labels do to the references and factors of dz. */
enum skl_gpu_label_dz {
    SKL_LABELS_APART, /* the divergence alone: r kl_weight */
    SKL_LABELS_IN_KL, /* kl_weight (q - p) + (label_weight + lse_weight) q - hot, in one: SKL_DZ_Q with other masses */
    SKL_LABELS_ALONE  /* own q' - smoothing / n - hot, at temperature 1 and beside a flat P: SKL_DZ_Q */
};

struct skl_gpu_label_factors {
    struct skl_gpu_labels labels;
    const struct skl_gpu_scalars *scalars;
    int32_t how, reserved; /* enum skl_gpu_label_dz */
    double norm;           /* factors are divided by it, and the chain has it: 16-bit dx stays in range */
    struct skl_gpu_reference *references;
    struct skl_gpu_factors *factors;
};

/* label_entries: the labels' entries of a slab, one a row, anew in f32: dz - hot. */
struct skl_gpu_label_entries {
    struct skl_gpu_labels labels;
    struct skl_gpu_slab slab; /* whose factors have hot in c */
    int32_t how, reserved;    /* enum skl_gpu_label_dz */
    double norm;              /* that of label_factors */
};

/* put_detail: of a sweep's complete states, P being the teacher's place in struct skl_state. */
enum skl_gpu_detail { SKL_DETAIL_ENTROPY, SKL_DETAIL_KL, SKL_DETAIL_JSD, SKL_DETAIL_TV };

struct skl_gpu_put_detail {
    const struct skl_state *state; /* [rows] */
    int64_t rows;
    int32_t heads, n, detail, reserved;
    struct skl_gpu_vector to;
};

/* put_tops: of what a sweep of tops left, the largest scores' columns and where the other side has them (limits), or
 * counts. */
struct skl_gpu_put_tops {
    const struct skl_gpu_top *tops; /* [slots][2][rows] */
    float *limits;                  /* [2][rows]; NULL: they are counts */
    int64_t rows;
    int32_t heads, n, slots, reserved;
    struct skl_gpu_vector to[2]; /* of each side: top1, or rank; i32 */
    struct skl_gpu_packed packed;
};

/* put_masses: the mass of some columns of a row, a dot product each. */
struct skl_gpu_put_masses {
    struct skl_gpu_side side;
    struct skl_gpu_ids ids;
    const struct skl_gpu_range *range;
    int64_t rows;
    int32_t heads, n, columns, reserved;
    double unit;
    struct skl_gpu_vector m, l, to;
    struct skl_gpu_packed packed;
};

/* A listed column: its score, and dz times the softcap's derivative. */
struct skl_gpu_entry {
    float x, dz;
};

/* What is known of a row's list. rest: log of the teacher's mass off it, mass: the teacher's in all; LSE over the
 * columns that count = m + log_l; off it m_rest, l_rest and log_q_rest; the divergence, and dz of the category off the
 * list. */
struct skl_gpu_list {
    double rest, mass, m, log_l, m_rest, l_rest, log_q_rest, d, off;
};

/* sort_lists, score_lists, finish_lists. Of the student: m, l and lse are over all columns. */
struct skl_gpu_lists {
    struct skl_gpu_ids ids;
    struct skl_gpu_matrix logprobs;
    struct skl_gpu_vector rest; /* data NULL: 1 - sum */
    struct skl_gpu_range *range;
    int64_t rows;
    int32_t heads, n, columns, room; /* room: a power of two, for the entries of a list */
    int32_t tail, reverse;
    double power, unit, per_unit; /* per_unit: 1 / unit */
    struct skl_gpu_side side;     /* the student */
    int32_t *column;              /* [rows][room + 1] */
    double *logp;                 /* [rows][room] */
    struct skl_gpu_entry *entry;
    struct skl_gpu_list *list;              /* [rows] */
    const struct skl_state *states;         /* [rows]: the student off the lists. NULL: saved, or not wanted */
    struct skl_gpu_vector saved_m, saved_l; /* the same, as a value wrote it */
    double *loss;                           /* [rows]; NULL: not wanted */
    struct skl_gpu_vector lse, m, l, m_rest, l_rest, row_loss;
};

/* list_factors, put_list_entries, list_da, list_db. */
struct skl_gpu_list_grad {
    struct skl_gpu_lists lists;
    struct skl_gpu_vector weight; /* data NULL: all 1 */
    const struct skl_gpu_scalars *scalars;
    double kl_weight, norm, chain; /* norm: that of label_factors */
    struct skl_gpu_reference *references;
    struct skl_gpu_factors *factors;
    struct skl_gpu_matrix grad_a, grad_b;
    struct skl_gpu_vector grad_bias;
    struct skl_gpu_slab slab;
};

/* How a side's scores are made of inner products: enum skl_scorer. */
enum { SKL_SCORE_INNER, SKL_SCORE_MIXTURE, SKL_SCORE_INDEX };

/* Row head h meets the heads h members .. of a, or of a mixture those that problem.mixture names. */
struct skl_gpu_scorer {
    int32_t kind, members;
    /* An indexer: x = sign sum_k w_k act(<a_k, b>). */
    struct skl_gpu_matrix w;
    int64_t w_step; /* from head to head */
    int32_t identity;
    float sign;
};

/* Rows that see keys of their own: lists, or all columns of their range. */
struct skl_gpu_keys {
    struct skl_gpu_forward forward;
    struct skl_gpu_scorer scorer[2];
    struct skl_gpu_ids ids; /* [batch][query]; data NULL: there are no lists */
    struct skl_gpu_range *range;
    struct skl_gpu_packed packed;
    const struct skl_gpu_scalars *scalars;
    int32_t *listed; /* [batch][query][room + 1]: first columns of blocks, ascending, INT32_MAX behind them */
    int32_t room, block;
};

/* keys_rows and keys_columns: gradients of side grad.x. */
struct skl_gpu_key_grad {
    struct skl_gpu_keys keys;
    struct skl_gpu_grad grad;
    struct skl_gpu_matrix grad_w;
    int64_t grad_w_step;
    int32_t parts;          /* of a vector, of SKL_KEY_ENTRIES entries */
    int32_t b_heads, heads; /* of grad_b, in a batch and in all */
    int32_t reserved;
};

/* keys_scores: scores of side 1, of rows of one head x some columns, into a slab of f32. */
struct skl_gpu_key_scores {
    struct skl_gpu_keys keys;
    struct skl_gpu_slab slab;
};

/* What a row has picked of the columns so far: its largest scores, some more, and a sum over the columns it dropped. */
struct skl_gpu_picked {
    double l;      /* of 2^(factor (x - m)) over the dropped columns */
    uint64_t last; /* of no column with a larger key will the list be */
    float m;       /* the largest score among the dropped ones; -inf: none is */
    int32_t n;     /* picks */
};

/* pick_scores, sort_picks: lists of the largest scores, of rows of one head, a block a row. */
struct skl_gpu_topk {
    struct skl_gpu_slab slab; /* of scores, f32 */
    uint64_t *picks;          /* [rows of the slab][room]: keys, which fall as scores rise */
    struct skl_gpu_picked *picked;
    int32_t room, most; /* most: picks of a list, at most k */
    int64_t k;          /* ids of a list; behind the last pick -1 */
    struct skl_gpu_packed packed;
    double unit;
    struct skl_gpu_matrix ids, logprobs; /* [b][h][i][k] */
    struct skl_gpu_vector tail, lse;
};

/* convert: rows first .. first + rows - 1 of every head of a matrix = f32 sums [batch x heads][rows][dim]; NULL: 0. */
struct skl_gpu_convert {
    struct skl_gpu_matrix to;
    const float *from;
    int64_t rows, first;
    int64_t all; /* rows, of all heads: a block each, or turn by turn when there are more than a grid has blocks */
    int32_t heads, dim;
};

/* sum_columns: sum[j] (+)= alpha times the sum of a slab's column j. */
struct skl_gpu_sum_columns {
    const char *slab;
    int64_t ld;
    int32_t dtype, rows, columns, add;
    const float *alpha;
    float *sum;
};

#endif
