/* SPDX-License-Identifier: Apache-2.0
 *
 * The work of one call after every check has passed: defaults filled in, shapes normalised, sides put in the order of
 * KL(P || Q). Attention has batch x heads problems of n rows; linear is one problem whose rows have up to three
 * indices.
 */
#ifndef SKL_WORK_H
#define SKL_WORK_H

#include "streamkl/streamkl.h"

#include <math.h>

#define SKL_LOG2E 1.4426950408889634
#define SKL_LN2 0.6931471805599453

struct skl_kernels;

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

struct skl_work_side {
    struct skl_operand a, b, grad_a, grad_b;
    struct skl_vector_view bias, grad_bias;
    int64_t dim;
    int64_t b_batch, b_heads, b_rows; /* b_rows counts padding */
    int64_t share;                    /* query heads to one head of b */
    /* The score x = sign (<a, b> + bias), or with a softcap x = softcap tanh(inner (<a, b> + bias)), makes the logit
     * z = unit x. unit is positive, so that the largest score is the largest logit. */
    double sign, softcap, inner, unit;
    double logit_factor;           /* CUDA: <a, b> + bias times this is y, or what softcap's tanh takes */
    double cap;                    /* CUDA: y = cap tanh(.); 0: no softcap */
    double chain;                  /* d z / d <a, b> = chain (times 1 - tanh^2) */
    double beta;                   /* JSD: weight in the mixture */
    struct skl_rows lse, kl, m, l; /* outputs, or saved inputs of a backward */
};

struct skl_work {
    const struct skl_kernels *kernels;
    int attention, jsd, mean;
    int student;             /* which side the student is: P for reverse KL, Q otherwise */
    int grads;               /* bit 0: some gradient of P is wanted; bit 1: of Q */
    int64_t batch, heads, n; /* rows are (b, h, i) with i < n */
    int64_t rows, columns;
    int64_t left, right; /* window around the diagonal; -1: no limit */
    struct skl_rows begin, end, weight, loss;
    struct skl_work_side side[2]; /* P, Q */
    double weight_sum; /* number of rows when no weight is given; 0 when the weights are on a device: not known here */
    double *value;     /* in device memory when the tensors are */
    int threads;
    size_t limit;
    int limit_is_default;
    double skip_below;
    skl_progress progress;
    void *progress_data;
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
    return dtype == SKL_F32 || dtype == SKL_I32 ? 4 : 2;
}

static inline void skl_row_index(const struct skl_work *w, int64_t row, int64_t at[3])
{
    at[2] = row % w->n;
    at[1] = row / w->n % w->heads;
    at[0] = row / w->n / w->heads;
}

static inline void *skl_row_at(const struct skl_rows *r, const int64_t at[3])
{
    return r->data + 4 * (at[0] * r->stride[0] + at[1] * r->stride[1] + at[2] * r->stride[2]);
}

static inline void *skl_operand_at(const struct skl_operand *o, int64_t b, int64_t h, int64_t i)
{
    return o->data + skl_size_of(o->dtype) * (b * o->stride[0] + h * o->stride[1] + i * o->stride[2]);
}

static inline float skl_row_get(const struct skl_rows *r, const int64_t at[3])
{
    return *(const float *)skl_row_at(r, at);
}

static inline void skl_row_put(const struct skl_rows *r, const int64_t at[3], double x)
{
    if (r->data)
        *(float *)skl_row_at(r, at) = (float)x;
}

/* The columns lo..hi-1 that a row sees; none when lo >= hi. */
void skl_row_range(const struct skl_work *w, const int64_t at[3], int64_t *lo, int64_t *hi);

/* 0 when the row is to be skipped: no column or no weight. */
double skl_row_weight(const struct skl_work *w, const int64_t at[3]);

/* Fills the work, or says what is wrong with the arguments. 'state' is where skl_partial writes or skl_finish reads. */
enum skl_status skl_check(enum skl_call call, const struct skl_problem *p, const struct skl_outputs *saved,
                          const struct skl_outputs *out, const struct skl_state *state, struct skl_work *w);

/* A row's state in the order P, Q, natural logarithms; struct skl_state names the same numbers by student and teacher.
 */
struct skl_row_state {
    struct skl_side_state {
        double m, l, acc;
    } side[2];
};

static const struct skl_row_state skl_empty_row = {{{-HUGE_VAL, 0, 0}, {-HUGE_VAL, 0, 0}}};

/* acc refers to both sides' m. After they have moved by (m_P - m_P') - (m_Q - m_Q') = shift, with factor = e^{m_P - m_P'},
 * it is the same sum under the new ones. An acc of +inf is the mathematics (P has mass where Q has none) and stays. */
static inline double skl_moved_acc(double acc, double l_p, double shift, double factor)
{
    return l_p == 0 || isinf(acc) ? acc : (acc + l_p * shift) * factor;
}

struct skl_state skl_public_state(const struct skl_work *w, const struct skl_row_state *row);
struct skl_row_state skl_private_state(const struct skl_work *w, const struct skl_state *state);
void skl_merge_row(struct skl_row_state *into, const struct skl_row_state *from);

/* A complete row's results, natural logarithms: LSE = m + log l. m is the logit of a score that an f32 holds exactly. */
struct skl_row_result {
    double loss, lse[2], kl[2], m[2], l[2];
};

/* Of a row that sees no column or has no weight. */
static const struct skl_row_result skl_no_result = {.lse = {-HUGE_VAL, -HUGE_VAL}, .m = {-HUGE_VAL, -HUGE_VAL}};

struct skl_row_result skl_finish_row(const struct skl_work *w, const struct skl_row_state *s);

/* Where a row's results go. */
void skl_put_row(const struct skl_work *w, const int64_t at[3], const struct skl_row_result *r);

#endif
