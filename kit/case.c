/* SPDX-License-Identifier: Apache-2.0 */
#include "case.h"

#include "divergence.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

const char *const kit_use_names[] = {"attention", "linear", NULL};

static struct kit_case plain_case(int use, int64_t rows, int64_t cols, int64_t dim)
{
    struct kit_case c = {.use = use, .batch = 1, .heads = 1, .rows = rows, .cols = cols, .lead = 1};
    c.dim[S] = c.dim[T] = dim;
    c.beta = 0.5, c.temperature = 1, c.spread = 1.5;
    c.left = c.right = -1;
    c.grads = KIT_GRAD_ALL, c.threads = 1;
    return c;
}

struct kit_case kit_attention_case(int64_t rows, int64_t cols, int64_t dim)
{
    return plain_case(SKL_ATTENTION, rows, cols, dim);
}

struct kit_case kit_linear_case(int64_t rows, int64_t cols, int64_t dim)
{
    return plain_case(SKL_LINEAR, rows, cols, dim);
}

int64_t kit_teacher_heads(const struct kit_case *c)
{
    return c->map ? c->map : c->mix ? c->heads * c->mix : c->heads;
}

int64_t kit_case_rows(const struct kit_case *c)
{
    int64_t rows = c->rows;
    if (c->use == SKL_ATTENTION || c->lead > 1)
        rows *= c->heads;
    if (c->use == SKL_ATTENTION || c->lead > 2)
        rows *= c->batch;
    return rows;
}

double kit_case_scale(const struct kit_case *c, int side)
{
    return c->scale[side] != 0 ? fabs(c->scale[side]) : c->use == SKL_ATTENTION ? 1 / sqrt((double)c->dim[side]) : 1;
}

void kit_describe(const struct kit_case *c, char *text, size_t size)
{
    snprintf(text, size,
             "%s %s rows %" PRId64 "x%" PRId64 "x%" PRId64 " (lead %d) cols %" PRId64 "+%" PRId64 "/%" PRId64
             " key heads %" PRId64 "/%" PRId64 " D %" PRId64 "/%" PRId64 " %s/%s bias %d/%d scale %g/%g cap %g/%g T %g"
             " beta %g skew %g alpha %g spread %g%s window %" PRId64 ",%" PRId64 "%s packed %d support %" PRId64
             "/%" PRId64 " weights %d %s layout %d place %d grads %u%s"
             " threads %d mix %" PRId64 " map %" PRId64
             "%s%s labels %d%s (%g %g %g, smoothing %g, z %g) items %g%s ids %" PRId64 " sinks %d",
             kit_use_names[c->use], kit_divergence_names[c->divergence], c->batch, c->heads, c->rows, c->lead, c->cols,
             c->pad[S], c->pad[T], c->key_heads[S], c->key_heads[T], c->dim[S], c->dim[T], kit_dtype_names[c->dtype[S]],
             kit_dtype_names[c->dtype[T]], c->bias[S], c->bias[T], c->scale[S], c->scale[T], c->softcap[S],
             c->softcap[T], c->temperature, c->beta, c->skew, c->alpha, c->spread, c->causal ? " causal" : "", c->left,
             c->right, c->ranges ? " ranges" : "", c->packed, c->support, c->support_block, c->weights,
             c->reduction == SKL_MEAN ? "mean" : "sum", c->layout, c->place, c->grads,
             c->own ? " in the operands' dtype" : "", c->threads, c->mix, c->map, c->lses ? " lses" : "",
             c->raw ? " raw" : "", c->labels, c->alone ? " alone" : "", c->label_weight, c->kl_weight, c->lse_weight,
             c->smoothing, c->z_loss, c->num_items, c->details ? " details" : "", c->mass_ids, c->sinks);
}
