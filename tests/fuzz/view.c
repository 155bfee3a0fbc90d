/* SPDX-License-Identifier: Apache-2.0 */
#include "view.h"

#include <stdlib.h>

enum { CANARY = 0xff, GUARD = 64 };

static int64_t size_of(int dtype)
{
    return dtype == SKL_I64 ? 8 : dtype == SKL_F32 || dtype == SKL_I32 ? 4 : 2;
}

int64_t view_count(const struct skl_tensor *t)
{
    int64_t n = 1;
    for (int k = 0; k < t->ndim; k++) n *= t->shape[k];
    return n;
}

/* Lays the dimensions out from the innermost: order[0] is it. Returns the elements from the first to past the last, and
 * in 'start' where element 0 is. */
static int64_t lay(struct rng *r, struct skl_tensor *t, const int *order, int use, int64_t *start)
{
    int64_t reach = 1;
    *start = 0;
    for (int i = 0; i < t->ndim; i++) {
        int k = order[i], fixed = (use & VIEW_OPERAND) && k == t->ndim - 1;
        int64_t n = t->shape[k], stride = fixed ? 1 : reach + (rng_chance(r, 30) ? rng_between(r, 1, 5) : 0);
        if (n == 1 && rng_chance(r, 50)) {
            t->stride[k] = rng_between(r, -1000, 1000); /* never multiplied by anything but 0 */
            continue;
        }
        if (!fixed && (use & VIEW_BROADCAST) && rng_chance(r, 10))
            stride = 0;
        if (n > 1)
            reach += stride * (n - 1);
        if (!fixed && n > 1 && rng_chance(r, 8)) {
            *start += stride * (n - 1);
            stride = -stride;
        }
        t->stride[k] = stride;
    }
    return reach;
}

static void shuffle(struct rng *r, int *order, int from, int n)
{
    for (int i = n - 1; i > from; i--) {
        int j = (int)rng_between(r, from, i), x = order[i];
        order[i] = order[j], order[j] = x;
    }
}

struct view view_make(struct rng *r, int dtype, int ndim, const int64_t *shape, int use)
{
    struct view v = {.t = {.dtype = dtype, .ndim = ndim}};
    int order[4];
    for (int k = 0; k < ndim; k++) {
        v.t.shape[k] = shape[k];
        order[k] = ndim - 1 - k;
    }
    if (rng_chance(r, 30))
        shuffle(r, order, use & VIEW_OPERAND ? 1 : 0, ndim);
    int64_t start, reach = lay(r, &v.t, order, use, &start), size = size_of(dtype), ahead = rng_between(r, 0, 7) * size;
    v.bytes = (size_t)(GUARD + ahead + reach * size + GUARD);
    v.memory = malloc(v.bytes);
    if (!v.memory)
        abort();
    memset(v.memory, CANARY, v.bytes);
    v.t.data = v.memory + GUARD + ahead + start * size;
    return v;
}

void view_free(struct view *v)
{
    free(v->memory), free(v->copy);
    *v = (struct view){0};
}

static unsigned char *at(const struct skl_tensor *t, int64_t i)
{
    int64_t offset = 0;
    for (int k = t->ndim - 1; k >= 0; k--) {
        offset += i % t->shape[k] * t->stride[k];
        i /= t->shape[k];
    }
    return (unsigned char *)t->data + offset * size_of(t->dtype);
}

/* ------------------------------------------------------------------------------------------ 16-bit floats --- */

/* Both types by arithmetic: a number is rounded to 'bits' bits of mantissa, no finer than 'least'. */
static double round_to(double x, int bits, double least)
{
    int exponent;
    frexp(x, &exponent);
    double unit = ldexp(1, exponent - bits);
    if (unit < least)
        unit = least;
    return rint(x / unit) * unit;
}

static uint16_t to_f16(double x)
{
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    double y = round_to(fabs(x), 11, 0x1p-24);
    if (isnan(x))
        return 0x7e00;
    if (y > 65504)
        return sign | 0x7c00;
    if (y < 0x1p-14)
        return (uint16_t)(sign | (int)(y * 0x1p24));
    int exponent;
    double fraction = frexp(y, &exponent);
    return (uint16_t)(sign | (exponent + 14) << 10 | ((int)(fraction * 2048) - 1024));
}

static double from_f16(uint16_t h)
{
    int exponent = h >> 10 & 31, fraction = h & 1023;
    double y = exponent == 31 ? (fraction ? (double)NAN : (double)INFINITY)
               : exponent     ? ldexp(1024 + fraction, exponent - 25)
                              : ldexp(fraction, -24);
    return h & 0x8000 ? -y : y;
}

static uint16_t to_bf16(double x)
{
    float f = isnan(x) || isinf(x) ? (float)x : (float)round_to(x, 8, 0x1p-133);
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)(u >> 16);
}

static double from_bf16(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* ----------------------------------------------------------------------------------------------- elements --- */

double view_get(const struct skl_tensor *t, int64_t i)
{
    const unsigned char *p = at(t, i);
    float f;
    int32_t n;
    int64_t wide;
    uint16_t h;
    switch (t->dtype) {
    case SKL_F32: return memcpy(&f, p, 4), f;
    case SKL_I32: return memcpy(&n, p, 4), n;
    case SKL_I64: return memcpy(&wide, p, 8), (double)wide;
    default: memcpy(&h, p, 2); return t->dtype == SKL_F16 ? from_f16(h) : from_bf16(h);
    }
}

void view_set(const struct skl_tensor *t, int64_t i, double x)
{
    unsigned char *p = at(t, i);
    float f = t->dtype == SKL_F32 ? (float)x : 0;
    int32_t n = t->dtype == SKL_I32 ? (int32_t)x : 0;
    int64_t wide = t->dtype == SKL_I64 ? (int64_t)x : 0;
    uint16_t h = t->dtype == SKL_F16 ? to_f16(x) : t->dtype == SKL_BF16 ? to_bf16(x) : 0;
    switch (t->dtype) {
    case SKL_F32: memcpy(p, &f, 4); break;
    case SKL_I32: memcpy(p, &n, 4); break;
    case SKL_I64: memcpy(p, &wide, 8); break;
    default: memcpy(p, &h, 2);
    }
}

double *view_read(const struct skl_tensor *t)
{
    if (!t->data)
        return NULL;
    int64_t n = view_count(t);
    double *x = malloc((size_t)(n + 1) * sizeof *x);
    if (!x)
        abort();
    for (int64_t i = 0; i < n; i++) x[i] = view_get(t, i);
    return x;
}

/* ------------------------------------------------------------------------------------------------- guards --- */

void view_remember(struct view *v)
{
    if (!v->memory)
        return;
    free(v->copy);
    v->copy = malloc(v->bytes);
    if (!v->copy)
        abort();
    memcpy(v->copy, v->memory, v->bytes);
}

int view_unchanged(const struct view *v)
{
    return !v->memory || !memcmp(v->memory, v->copy, v->bytes);
}

int view_untouched(const struct view *v)
{
    for (size_t i = 0; v->memory && i < v->bytes; i++)
        if (v->memory[i] != CANARY)
            return 0;
    return 1;
}

int view_only_elements(struct view *v)
{
    int64_t n = v->memory ? view_count(&v->t) : 0;
    for (int64_t i = 0; i < n; i++) memset(at(&v->t, i), CANARY, (size_t)size_of(v->t.dtype));
    return view_untouched(v);
}
