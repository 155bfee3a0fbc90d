/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"
#include "data.h"
#include "options.h"

#include <stdio.h>

/* Numbers on both sides of vector lengths and tile edges. Widths start at 5: the bound is relative to the largest entry
 * of a gradient's row, and of very few entries all may happen to cancel. */
static const int64_t row_sizes[] = {1, 2, 3, 5, 6, 7, 12, 13, 31, 32, 64, 96, 97, 130, 193};
static const int64_t col_sizes[] = {1, 2, 7, 15, 16, 17, 33, 64, 100, 127, 128, 129, 255, 257, 300, 513, 1000, 2049};
static const int64_t widths[] = {5, 7, 8, 15, 16, 17, 24, 33, 64, 80, 100, 128, 130, 270};
static const int64_t window_sizes[] = {-1, 0, 1, 10, 100};

struct draws {
    uint64_t seed, next;
};

static int64_t draw(struct draws *d, int64_t n)
{
    return random_below(d->seed, d->next++, n);
}

#define PICK(d, list) ((list)[draw(d, (int64_t)(sizeof(list) / sizeof *(list)))])

static void draw_attention(struct draws *d, struct work *w)
{
    static const int64_t divisors[] = {1, 2, 3, 6};
    w->batch = 1 + draw(d, 2);
    w->heads = PICK(d, divisors);
    do
        w->kv_heads_s = PICK(d, divisors);
    while (w->heads % w->kv_heads_s);
    do
        w->kv_heads_t = PICK(d, divisors);
    while (w->heads % w->kv_heads_t);
    w->causal = draw(d, 3) == 0;
    if (draw(d, 3) == 0) {
        w->window_left = PICK(d, window_sizes);
        w->window_right = PICK(d, window_sizes);
    }
}

static void draw_linear(struct draws *d, struct work *w)
{
    w->temperature = draw(d, 2) ? 1 : 2.5;
    w->bias = draw(d, 2) == 0;
    if (draw(d, 2) == 0)
        w->pad_s = draw(d, 20), w->pad_t = draw(d, 20);
}

/* Fewer of whatever there is most of, until the reference is quick enough. */
static void shrink(struct work *w, double multiplications)
{
    for (;;) {
        double size = (double)(w->batch * w->heads * w->rows * w->cols) * (double)(2 * w->dim_s + w->dim_t);
        if (size <= multiplications)
            return;
        if (w->rows > 40)
            w->rows /= 2;
        else if (w->cols > 100)
            w->cols /= 2;
        else if (w->dim_t > 40)
            w->dim_t /= 2;
        else if (w->dim_s > 40)
            w->dim_s /= 2;
        else
            w->batch = 1, w->rows = (w->rows + 1) / 2;
    }
}

struct work check_case(uint64_t seed, int k, int divergence, double multiplications)
{
    static const double betas[] = {0.5, 0.1, 0.9};
    static const int all = GRAD_STUDENT | GRAD_BIAS_S | GRAD_A_T | GRAD_B_T;
    static const int gradients[] = {GRAD_STUDENT | GRAD_BIAS_S, GRAD_A_S, GRAD_B_S, all};
    struct draws d = {seed * 1000003 + (uint64_t)k, 0};
    struct work w = work_default(k % 2 ? SKL_LINEAR : SKL_ATTENTION);
    w.divergence = divergence;
    w.rows = PICK(&d, row_sizes), w.cols = PICK(&d, col_sizes);
    w.dim_s = PICK(&d, widths), w.dim_t = draw(&d, 2) ? w.dim_s : PICK(&d, widths);
    w.dtype_s = (int)draw(&d, 3), w.dtype_t = (int)draw(&d, 3);
    if (w.use == SKL_ATTENTION)
        draw_attention(&d, &w);
    else
        draw_linear(&d, &w);
    w.gradients = PICK(&d, gradients);
    /* 16-bit gradients are those of the operand's dtype, so both sides must have it when the teacher's are wanted. */
    int one_dtype = w.dtype_s == w.dtype_t || w.gradients != all;
    w.dtype_grad = one_dtype && draw(&d, 2) ? w.dtype_s : SKL_F32;
    w.softcap = draw(&d, 3) ? 0 : 3;
    w.beta = PICK(&d, betas);
    w.ranges = draw(&d, 4) == 0;
    w.weights = draw(&d, 4) == 0;
    w.reduction = draw(&d, 2) ? SKL_MEAN : SKL_SUM;
    w.threads = 1 + (int)draw(&d, 3);
    /* Peaked distributions where rows see many columns; the loss of a row that sees two or three is a difference of
     * logits, and of large ones it would be lost in their rounding. */
    int narrow = w.cols < 30 || w.ranges || w.causal || w.window_left >= 0 || w.window_right >= 0;
    w.spread = narrow || draw(&d, 2) ? 1 : 1.5;
    w.seed = d.seed;
    shrink(&w, multiplications);
    return w;
}

void check_describe(const struct work *w, char *text, size_t size)
{
    snprintf(text, size,
             "%s %s s:%s t:%s grad:%s batch %lld heads %lld/%lld/%lld rows %lld cols %lld+%lld/%lld dims %lld/%lld%s "
             "window %lld,%lld%s%s%s softcap %g temperature %g beta %g gradients %d %s threads %d",
             use_names[w->use], divergence_names[w->divergence], dtype_names[w->dtype_s], dtype_names[w->dtype_t],
             dtype_names[w->dtype_grad], (long long)w->batch, (long long)w->heads, (long long)w->kv_heads_s,
             (long long)w->kv_heads_t, (long long)w->rows, (long long)w->cols, (long long)w->pad_s, (long long)w->pad_t,
             (long long)w->dim_s, (long long)w->dim_t, w->causal ? " causal" : "", (long long)w->window_left,
             (long long)w->window_right, w->bias ? " bias" : "", w->ranges ? " ranges" : "",
             w->weights ? " weights" : "", w->softcap, w->temperature, w->beta, w->gradients,
             w->reduction == SKL_MEAN ? "mean" : "sum", w->threads);
}
