/* SPDX-License-Identifier: Apache-2.0 */
#include "logits.h"

#include "support.h"

#include <math.h>
#include <stdlib.h>

/* ------------------------------------------------------------------------------------------- addressing --- */

static double f16_value(uint16_t bits)
{
    int exponent = (bits >> 10) & 31;
    double fraction = bits & 1023;
    double magnitude = exponent == 31  ? (fraction != 0 ? (double)NAN : (double)INFINITY)
                       : exponent == 0 ? fraction * 0x1p-24
                                       : (1024 + fraction) * (double)(1 << exponent) * 0x1p-25;
    return bits & 0x8000 ? -magnitude : magnitude;
}

static double bf16_value(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

double kit_element(const struct skl_tensor *t, int64_t offset)
{
    switch (t->dtype) {
    case SKL_F32: return ((const float *)t->data)[offset];
    case SKL_BF16: return bf16_value(((const uint16_t *)t->data)[offset]);
    case SKL_F16: return f16_value(((const uint16_t *)t->data)[offset]);
    case SKL_I64: return (double)((const int64_t *)t->data)[offset];
    default: return ((const int32_t *)t->data)[offset];
    }
}

int64_t kit_row_offset(const struct skl_tensor *t, const int64_t *shape, int dims, int64_t row)
{
    int64_t offset = 0;
    for (int k = dims - 1; k >= 0; k--) {
        offset += row % shape[k] * t->stride[k];
        row /= shape[k];
    }
    return offset;
}

/* ---------------------------------------------------------------------------------------------- one head --- */

/* z = cap(scale x) / T with x = <a, b> + bias, and dz/dx. */
void kit_logits(const struct skl_problem *p, const struct skl_side *side, int64_t a, int64_t b, int64_t lo, int64_t n,
                double *z, double *slope)
{
    int64_t D = side->a.shape[side->a.ndim - 1];
    double scale = side->scale != 0 ? side->scale : p->use != SKL_LINEAR ? 1 / sqrt((double)D) : 1;
    for (int64_t j = 0; j < n; j++) {
        int64_t bj = b + (lo + j) * side->b.stride[side->b.ndim - 2];
        double x = 0;
        for (int64_t d = 0; d < D; d++) x += kit_element(&side->a, a + d) * kit_element(&side->b, bj + d);
        if (side->bias.data)
            x += kit_element(&side->bias, (lo + j) * side->bias.stride[0]);
        double y = scale * x;
        if (side->softcap > 0) {
            double c = side->softcap;
            z[j] = c * tanh(y / c) / p->temperature;
            slope[j] = scale / (cosh(y / c) * cosh(y / c)) / p->temperature; /* 1 - tanh^2 = 1 / cosh^2 */
        } else {
            z[j] = y / p->temperature;
            slope[j] = scale / p->temperature;
        }
    }
}

double kit_log_sum_exp(int64_t n, const double *z)
{
    double m = -INFINITY, sum = 0;
    for (int64_t j = 0; j < n; j++) {
        if (isnan(z[j]))
            return z[j];
        if (z[j] > m)
            m = z[j];
    }
    if (m == -INFINITY)
        return m;
    for (int64_t j = 0; j < n; j++) sum += exp(z[j] - m);
    return m + log(sum);
}

/* ------------------------------------------------------------------------------------------ mixed heads --- */

int kit_mixes_heads(const struct skl_problem *p)
{
    return p->mix_t || p->head_map.data || p->lse_t.data;
}

static int64_t members(const struct skl_problem *p)
{
    if (p->use == SKL_INDEXER)
        return p->t.a.shape[1];
    return p->mix_t > 0 ? p->mix_t : p->head_map.data && p->head_map.ndim == 2 ? p->head_map.shape[1] : 1;
}

static int64_t head_of(const struct skl_problem *p, int64_t h, int64_t k)
{
    const struct skl_tensor *map = &p->head_map;
    if (!map->data)
        return h * members(p) + k;
    return (int64_t)kit_element(map, h * map->stride[0] + (map->ndim == 2 ? k * map->stride[1] : 0));
}

void kit_head_logits(const struct skl_problem *p, int64_t batch, int64_t head, int64_t i, int64_t lo, int64_t n,
                     double *z, double *slope)
{
    const struct skl_tensor *a = &p->t.a, *b = &p->t.b;
    int64_t group = a->shape[1] / b->shape[1];
    kit_logits(p, &p->t, batch * a->stride[0] + head * a->stride[1] + i * a->stride[2],
               batch * b->stride[0] + head / group * b->stride[1], lo, n, z, slope);
    kit_hide(p, batch, i, lo, n, z);
}

int kit_sinks(const struct skl_problem *p)
{
    return p->sink_s.data && p->sink_t.data;
}

double kit_sink(const struct skl_problem *p, const struct skl_tensor *sink, int64_t head)
{
    return kit_element(sink, head * sink->stride[0]) / p->temperature;
}

double kit_log_target(const struct skl_problem *p, int64_t batch, int64_t h, int64_t i, int64_t lo, int64_t n,
                      double *log_t, double *slope)
{
    int64_t g = members(p), told = n + kit_sinks(p), all = n + (p->sink_t.data != NULL);
    if (g == 1 && !p->raw_t) { /* whatever it is divided by cancels */
        kit_head_logits(p, batch, head_of(p, h, 0), i, lo, n, log_t, slope);
        if (told > n)
            log_t[n] = kit_sink(p, &p->sink_t, head_of(p, h, 0));
        return 0;
    }
    double largest = 0, *z = malloc((size_t)(g * all) * sizeof *z), *of_column = malloc((size_t)g * sizeof *of_column);
    if (!z || !of_column)
        abort(); /* a reference of test sizes */
    for (int64_t k = 0; k < g; k++) {
        int64_t head = head_of(p, h, k);
        const struct skl_tensor *t = &p->lse_t;
        kit_head_logits(p, batch, head, i, lo, n, z + k * all, slope);
        if (all > n)
            z[k * all + n] = kit_sink(p, &p->sink_t, head);
        double lse = t->data ? kit_element(t, batch * t->stride[0] + head * t->stride[1] + i * t->stride[2])
                             : kit_log_sum_exp(all, z + k * all);
        for (int64_t j = 0; j < all; j++) z[k * all + j] = isinf(lse) ? -INFINITY : z[k * all + j] - lse;
        largest = isfinite(lse) ? fmax(largest, fabs(lse)) : largest;
    }
    for (int64_t j = 0; j < told; j++) {
        for (int64_t k = 0; k < g; k++) of_column[k] = z[k * all + j];
        log_t[j] = kit_log_sum_exp(g, of_column) - log((double)g);
    }
    free(z), free(of_column);
    return largest;
}
