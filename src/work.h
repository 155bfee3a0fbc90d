/* SPDX-License-Identifier: Apache-2.0
 *
 * The work of one call after every check has passed: defaults filled in, shapes normalised, sides put in the order of
 * KL(P || Q). Attention has batch x heads problems of n rows, packed attention sequences x heads of as many rows as the
 * sequence has; linear is one problem whose rows have up to three indices. Each of these problems is a segment.
 */
#ifndef SKL_WORK_H
#define SKL_WORK_H

#include "half.h"
#include "row.h"
#include "streamkl/streamkl.h"

#define SKL_LOG2E 1.4426950408889634
#define SKL_LN2 0.6931471805599453

enum { SKL_THREADS_MAX = 4096 }; /* that a call may ask for */
enum { SKL_EXCHANGE_ROWS = 512, SKL_EXCHANGE_ROWS_MAX = 16384 };

/* A tensor over the rows (b, h, i), 4 bytes an element. */
struct skl_rows {
    char *data;
    int64_t stride[3];
};

/* An operand or gradient [b][h][i][dim], the last dimension contiguous. */
struct skl_operand {
    char *data;
    int dtype;
    int64_t stride[3];
};

struct skl_vector_view {
    char *data;
    int dtype;
    int64_t stride;
};

/* How a side's scores are made of inner products. */
enum skl_scorer {
    SKL_INNER,   /* x = <a, b> + bias, or its softcap */
    SKL_MIXTURE, /* x = log2 of the mean of the softmaxes of several heads; no gradient */
    SKL_POOLED,  /* x = largest <a, b> of a block of b's rows, or their LSE; no gradient */
    SKL_INDEX    /* x = sign sum over several heads of w act(<a, b>) */
};

struct skl_work_side {
    enum skl_scorer scorer;
    struct skl_operand a, b, grad_a, grad_b;
    struct skl_vector_view bias, grad_bias;
    int64_t dim;
    int64_t b_batch, b_heads, b_rows; /* b_rows counts padding */
    int64_t group;                    /* heads of a that share one head of b */
    /* Row head h meets 'members' heads of a: map[h][k] or h members + k. A scorer of one head takes k = member. */
    int64_t members, member;
    const int32_t *map;
    int64_t map_stride[2];
    /* Of a mixture: log-denominators of the heads as they were given, [batch][head of a][row], or else found by a sweep
     * of their own, m and l [member][row number]; and unit of a head's scores, that of x being log 2. */
    struct skl_rows head_lse;
    float *head_m, *head_l;
    double head_unit;
    /* Of an indexer: w and its gradient, [batch][row][head of a], and whether act is the identity. */
    struct skl_operand w, grad_w;
    int64_t w_step, grad_w_step; /* from head to head */
    int identity;
    /* The score x = sign (<a, b> + bias), or with a softcap x = softcap tanh(inner (<a, b> + bias)), makes the logit
     * z = unit x. unit is positive, so that the largest score is the largest logit. */
    double sign, softcap, inner, unit;
    double chain;                           /* d z / d <a, b> = chain (times 1 - tanh^2) */
    struct skl_vector_view sink, grad_sink; /* a logit for each head of a, before the temperature */
};

/* Rows row .. row + rows - 1, which see columns column .. column + columns - 1 of the same b. Ranges of a row and the
 * executor's tiles count from 'column'. */
struct skl_segment {
    int64_t row, rows, column, columns;
    int64_t batch, head; /* attention: whose they are */
    int64_t number;      /* of the segment, as skl_segment_at() counts */
    int64_t query;       /* attention: of the first row */
};

/* What a problem must have for a row result. */
enum skl_need {
    SKL_NEEDS_TEACHER = 1,
    SKL_NEEDS_LABELS = 2,
    SKL_NEEDS_TWO_SWEEPS = 4,
    SKL_NEEDS_MASS_IDS = 8,
    SKL_NEEDS_DIVERGENCE = 16, /* a teacher, or a listed one */
    SKL_NEEDS_LIST = 32,
    SKL_NEEDS_SINKS = 64,
    SKL_NEEDS_TOPK = 128 /* the call that makes lists */
};

/* Integers over the rows, 'count' of them for each. */
struct skl_row_ids {
    struct skl_rows rows; /* data NULL: there are none */
    int wide;             /* i64 instead of i32 */
    int64_t count, step;  /* from one of a row to its next */
};

/* Cross-entropy with labels; ids.rows.data NULL: there is none. */
struct skl_work_labels {
    struct skl_row_ids ids;
    int64_t ignore;
    double weight, kl_weight, lse_weight, smoothing, z_loss;
};

/* A teacher of lists. */
struct skl_work_listed {
    int given;
    struct skl_row_ids ids;
    struct skl_operand logprobs; /* [b][h][i][k] */
    struct skl_rows rest;        /* data NULL: 1 - sum */
    int64_t k;                   /* room for entries in a list */
    enum skl_tail tail;
    int reverse;
    double power; /* of stored probabilities */
};

/* The lists that skl_topk writes, [b][h][i][k]; k 0: another call. */
struct skl_work_topk {
    int64_t k;
    struct skl_operand ids, logprobs;
};

/* The row results, by the names of struct skl_outputs: SKL_ROW_loss, SKL_ROW_lse_s ... */
enum skl_row_name {
#define SKL_ROW_RESULT(name, dtype, needs, value) SKL_ROW_##name,
#include "row_results.def"
#undef SKL_ROW_RESULT
    SKL_ROW_RESULTS
};

struct skl_work {
    int attention, mean;
    enum skl_form form;      /* of the divergence */
    double param[2];         /* its number of P and Q */
    int student;             /* which side the student is: P for reverse KL, Q otherwise */
    int raw;                 /* P is not divided by its sum S: loss = S (KL + log S), dz = g S (q - p) */
    int grads;               /* bit 0: some gradient of P is wanted; bit 1: of Q */
    int sinks;               /* every row has one more column, the sink */
    int sink_grads;          /* as grads, of the sinks */
    int64_t batch, heads, n; /* rows are (b, h, i) with i < n */
    int64_t rows, columns;
    int64_t keys, pool_block; /* what ranges count, columns or the keys whose blocks they are; keys in a block */
    int pool;                 /* enum skl_pool */
    int64_t sequences;        /* packed attention: how many; 0: not packed */
    struct skl_vector_view cu_q, cu_k; /* packed: where each begins, and where the last ends */
    int64_t segments;
    struct skl_row_ids support; /* of each row the keys that it may see, or blocks of support_block keys; or all */
    int64_t support_block;
    int64_t
        together; /* heads of a segment: with lists, neighbours that see the same b; a query's are neighbours then */
    int64_t left, right; /* window around the diagonal; -1: no limit */
    struct skl_rows begin, end, weight;
    struct skl_work_labels labels;
    struct skl_row_ids mass_ids;
    struct skl_work_listed listed;
    struct skl_work_topk topk;
    double temperature;
    struct skl_rows result[SKL_ROW_RESULTS]; /* outputs, or saved inputs of a backward */
    struct skl_work_side side[2];            /* P, Q */
    double weight_sum; /* number of rows when no weight is given; 0 when the weights are on a device: not known here */
    double *value;     /* in device memory when the tensors are */
    enum skl_isa isa;
    int threads;
    size_t limit;
    int limit_is_default;
    double skip_below;
    int round_dz;
    enum skl_split split_f32;
    skl_progress progress;
    void *progress_data;
    struct skl_shard shard;   /* .exchange NULL: the columns are all there are, or a backward's, which meets nobody */
    int device, device_index; /* of every tensor; what follows is for SKL_CUDA */
    void *stream;
    void *workspace; /* NULL: allocate in the stream's order */
    size_t workspace_bytes;
    int any_order; /* gradients may be summed with atomics */
};

static inline int64_t skl_gcd(int64_t a, int64_t b)
{
    while (b) {
        int64_t r = a % b;
        a = b, b = r;
    }
    return a;
}

/* Do rows of one problem see different columns? */
static inline int skl_ranged(const struct skl_work *w)
{
    return w->left >= 0 || w->right >= 0 || w->begin.data || w->end.data;
}

static inline int64_t skl_size_of(int dtype)
{
    return dtype == SKL_I64 ? 8 : dtype == SKL_F32 || dtype == SKL_I32 ? 4 : 2;
}

static inline void skl_row_index(const struct skl_work *w, int64_t row, int64_t at[3])
{
    at[2] = row % w->n;
    at[1] = row / w->n % w->heads;
    at[0] = row / w->n / w->heads;
}

static inline int64_t skl_row_number(const struct skl_work *w, const int64_t at[3])
{
    return (at[0] * w->heads + at[1]) * w->n + at[2];
}

/* Rows as tensors with one number for each hold them: where all that are concerned have stride 0, a dimension repeats
 * one place any number of times, of which the first is enough. */
struct skl_places {
    int64_t n[3], count; /* places in each dimension and in all */
    int64_t times;       /* that each stands for */
};

/* Strides of up to three tensors, as often as one likes. */
static inline struct skl_places skl_places_of(const struct skl_work *w, const int64_t x[3], const int64_t y[3],
                                              const int64_t z[3])
{
    struct skl_places p = {.n = {w->batch, w->heads, w->n}, .times = 1};
    for (int i = 0; i < 3; i++)
        if (!x[i] && !y[i] && !z[i] && p.n[i] > 1)
            p.times *= p.n[i], p.n[i] = 1;
    p.count = p.n[0] * p.n[1] * p.n[2];
    return p;
}

static inline void skl_place_index(const struct skl_places *p, int64_t place, int64_t at[3])
{
    at[2] = place % p->n[2];
    at[1] = place / p->n[2] % p->n[1];
    at[0] = place / p->n[2] / p->n[1];
}

/* Row i of a segment: query by query, each with the segment's heads. */
static inline int64_t skl_segment_row(const struct skl_work *w, const struct skl_segment *s, int64_t i)
{
    return w->together == 1 ? s->row + i : s->row + i % w->together * w->n + i / w->together;
}

static inline void *skl_row_at(const struct skl_rows *r, const int64_t at[3])
{
    return r->data + 4 * (at[0] * r->stride[0] + at[1] * r->stride[1] + at[2] * r->stride[2]);
}

/* The head of a that is the k-th of row head h. */
static inline int64_t skl_head_of(const struct skl_work_side *s, int64_t h, int64_t k)
{
    return s->map ? s->map[h * s->map_stride[0] + k * s->map_stride[1]] : h * s->members + k;
}

/* Heads whose products a score is made of: one, or all that the side sums up. */
static inline int64_t skl_packs(const struct skl_work_side *s)
{
    return s->scorer == SKL_INNER ? 1 : s->members;
}

/* Multiply-adds that a score takes. */
static inline int64_t skl_entries(const struct skl_work_side *s)
{
    return s->dim * skl_packs(s);
}

/* Row heads that share a gradient of b. */
static inline int64_t skl_sharing(const struct skl_work_side *s)
{
    return s->scorer == SKL_INNER ? s->group : 1;
}

/* Are gradients wanted that are written row by row? */
static inline int skl_has_grad_rows(const struct skl_work_side *s)
{
    return s->grad_a.data || s->grad_w.data;
}

/* w of row (b, i) and head h, or its gradient. */
static inline void *skl_w_at(const struct skl_operand *w, int64_t step, const int64_t at[3], int64_t h)
{
    return w->data + skl_size_of(w->dtype) * (at[0] * w->stride[0] + at[2] * w->stride[2] + h * step);
}

/* Do the heads of the mixture's LSEs have to be found? */
static inline int skl_wants_head_lses(const struct skl_work_side *s)
{
    return s->scorer == SKL_MIXTURE && !s->head_lse.data;
}

static inline void *skl_operand_at(const struct skl_operand *o, int64_t b, int64_t h, int64_t i)
{
    return o->data + skl_size_of(o->dtype) * (b * o->stride[0] + h * o->stride[1] + i * o->stride[2]);
}

static inline float skl_row_get(const struct skl_rows *r, const int64_t at[3])
{
    return *(const float *)skl_row_at(r, at);
}

static inline void skl_row_put(const struct skl_rows *r, int dtype, const int64_t at[3], double x)
{
    if (r->data && dtype == SKL_I32)
        *(int32_t *)skl_row_at(r, at) = (int32_t)x;
    else if (r->data)
        *(float *)skl_row_at(r, at) = (float)x;
}

/* The k-th integer of a row. */
static inline int64_t skl_row_id(const struct skl_row_ids *ids, const int64_t at[3], int64_t k)
{
    const int64_t *stride = ids->rows.stride;
    int64_t i = at[0] * stride[0] + at[1] * stride[1] + at[2] * stride[2] + k * ids->step;
    const void *data = ids->rows.data;
    return ids->wide ? ((const int64_t *)data)[i] : ((const int32_t *)data)[i];
}

/* The row's label as it counts: a column, on a shard one of all shards' columns, or -1 where it is ignored. */
static inline int64_t skl_row_label(const struct skl_work *w, const int64_t at[3])
{
    int64_t id = skl_row_id(&w->labels.ids, at, 0);
    return id == w->labels.ignore ? -1 : id;
}

static inline int skl_has_labels(const struct skl_work *w)
{
    return w->labels.ids.rows.data != NULL;
}

/* Entry k of the row's list: a column, or less than 0 for an empty slot. */
static inline int64_t skl_listed_id(const struct skl_work *w, const int64_t at[3], int64_t k)
{
    return skl_row_id(&w->listed.ids, at, k);
}

/* The i-th of numbers of a floating dtype. */
static inline double skl_number_at(const void *data, int dtype, int64_t i)
{
    if (dtype == SKL_F32)
        return (double)((const float *)data)[i];
    uint16_t half = ((const uint16_t *)data)[i];
    return (double)(dtype == SKL_BF16 ? skl_from_bf16(half) : skl_from_f16(half));
}

static inline double skl_listed_logprob(const struct skl_work *w, const int64_t at[3], int64_t k)
{
    const struct skl_operand *x = &w->listed.logprobs;
    return skl_number_at(skl_operand_at(x, at[0], at[1], at[2]), x->dtype, k);
}

/* The logit of a head's sink. */
static inline double skl_sink_at(const struct skl_work *w, const struct skl_work_side *s, int64_t head)
{
    return skl_number_at(s->sink.data, s->sink.dtype, head * s->sink.stride) / w->temperature;
}

/* Do rows see listed keys alone? */
static inline int skl_has_support(const struct skl_work *w)
{
    return w->support.rows.data != NULL;
}

/* Does every row count as much as any other, and see all columns, of which there are some? */
static inline int skl_rows_alike(const struct skl_work *w)
{
    return w->columns && !w->weight.data && !skl_has_labels(w) && !w->listed.given && !skl_ranged(w) && !w->sequences &&
           !w->pool_block && !skl_has_support(w);
}

/* Keys first .. last-1 of the k-th entry of a row's list, of those in 'seen'; none of an empty slot. */
static inline struct skl_range skl_supported(const struct skl_work *w, const int64_t at[3], int64_t k,
                                             struct skl_range seen)
{
    int64_t id = skl_row_id(&w->support, at, k);
    if (id < 0)
        return (struct skl_range){0, 0};
    return skl_until(skl_from(seen, id * w->support_block), (id + 1) * w->support_block);
}

/* Are the listed columns all that there is, for teacher, student and labels? */
static inline int skl_on_support(const struct skl_work *w)
{
    return w->listed.given && w->listed.tail == SKL_TAIL_RENORMALISE && !skl_has_labels(w);
}

/* Which result is that of P (0) or Q (1): of_s is the student's of the two neighbours, SKL_ROW_lse_s say. */
static inline enum skl_row_name skl_of_side(const struct skl_work *w, enum skl_row_name of_s, int side)
{
    return (enum skl_row_name)(of_s + (side != w->student));
}

/* Does a call that makes lists need the exponentials? */
static inline int skl_topk_sums(const struct skl_work *w)
{
    return w->topk.logprobs.data || w->result[SKL_ROW_tail_logprob].data || w->result[SKL_ROW_lse_s].data;
}

/* Are labels at another temperature than the divergence? */
static inline int skl_tempered(const struct skl_work *w)
{
    return skl_has_labels(w) && w->temperature != 1;
}

/* States of a row that shards exchange after the first sweep: its own, of labels, and of smoothing. */
static inline int64_t skl_shared_states(const struct skl_work *w)
{
    return 1 + skl_has_labels(w) + (skl_has_labels(w) && w->labels.smoothing > 0);
}

/* Is there something for rows that see no column: columns of other shards, or a sink? */
static inline int skl_sees_more(const struct skl_work *w)
{
    return w->shard.exchange || w->sinks;
}

/* Without rows, or without columns for them to see, a call needs no plan, no memory, no threads. */
static inline int skl_nothing_to_do(const struct skl_work *w)
{
    return w->rows == 0 || (w->columns == 0 && !skl_sees_more(w));
}

/* Segment k. Those of a sequence or batch are neighbours, in the order of their heads. */
struct skl_segment skl_segment_at(const struct skl_work *w, int64_t k);

/* Rows times columns, of all segments; of lists, as many as they have room for. */
double skl_elements(const struct skl_work *w);

/* What a row of the segment sees, counted from the segment's first column. */
struct skl_range skl_row_range(const struct skl_work *w, const struct skl_segment *s, const int64_t at[3]);
/* The same in keys, where a column is a block of them. */
struct skl_range skl_row_keys(const struct skl_work *w, const struct skl_segment *s, const int64_t at[3]);

/* 0 when the row is to be skipped: no weight, nothing listed that it sees, or no column and nothing else to see. */
double skl_row_weight(const struct skl_work *w, struct skl_range seen, const int64_t at[3]);

/* The row's results to where the caller wants them. */
void skl_put_rows(const struct skl_work *w, int n, int64_t (*at)[3], const struct skl_row_result *results);

/* The problem as work, its defaults filled in; then what a call writes, or finds saved. Arguments have been checked. */
void skl_fill_problem(const struct skl_problem *p, struct skl_work *w);
void skl_fill_outputs(const struct skl_outputs *out, struct skl_work *w);
void skl_fill_saved(const struct skl_outputs *saved, struct skl_work *w);

/* Fills the work, or says what is wrong with the arguments. 'state' is where skl_partial writes or skl_finish reads. */
enum skl_status skl_check(enum skl_call call, const struct skl_problem *p, const struct skl_outputs *saved,
                          const struct skl_outputs *out, const struct skl_state *state, struct skl_work *w);

/* A row's state in the order P, Q; struct skl_state names the same numbers by student and teacher. */
struct skl_state skl_public_state(const struct skl_work *w, const struct skl_row_state *row);
struct skl_row_state skl_private_state(const struct skl_work *w, const struct skl_state *state);

#endif
