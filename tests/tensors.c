/* SPDX-License-Identifier: Apache-2.0 */
#include "tensors.h"

size_t test_element_size(int32_t dtype)
{
    return dtype == SKL_F32 || dtype == SKL_I32 ? 4 : 2;
}

int64_t test_count(const struct skl_tensor *t)
{
    int64_t n = 1;
    for (int k = 0; k < t->ndim; k++)
        n *= t->shape[k];
    return n;
}

int64_t test_offset(const struct skl_tensor *t, int64_t index)
{
    int64_t offset = 0;
    for (int k = t->ndim - 1; k >= 0; k--) {
        offset += index % t->shape[k] * t->stride[k];
        index /= t->shape[k];
    }
    return offset;
}

/* -------------------------------------------------------------------------------------------- 16-bit types --- */

/* Both types as a sign, 'exponent_bits' and 'fraction_bits', IEEE rules. */
static double from_bits(uint16_t bits, int fraction_bits, int bias)
{
    int field = (bits & 0x7FFF) >> fraction_bits, top = (1 << (15 - fraction_bits)) - 1;
    double fraction = bits & ((1 << fraction_bits) - 1);
    double value = field == top ? (fraction != 0 ? (double)NAN : (double)INFINITY)
                   : field == 0 ? ldexp(fraction, 1 - bias - fraction_bits)
                                : ldexp(fraction + (1 << fraction_bits), field - bias - fraction_bits);
    return bits & 0x8000 ? -value : value;
}

static uint16_t to_bits(double value, int fraction_bits, int bias)
{
    int top = (1 << (15 - fraction_bits)) - 1, exponent;
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    double magnitude = fabs(value);
    if (isnan(value))
        return 0x7FFF;
    if (magnitude == 0)
        return sign;
    frexp(magnitude, &exponent);                                  /* magnitude = f 2^exponent, f in [1/2, 1) */
    exponent = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1; /* subnormals share the least exponent */
    double steps = isinf(value) ? INFINITY : nearbyint(ldexp(magnitude, fraction_bits - exponent));
    /* A carry into the next power of two is right by itself: the fields are adjacent. */
    double bits = steps + ldexp(exponent + bias - 1, fraction_bits);
    double infinite = ldexp(top, fraction_bits);
    return sign | (uint16_t)(bits < infinite ? bits : infinite);
}

double test_get(const struct skl_tensor *t, int64_t index)
{
    int64_t offset = test_offset(t, index);
    switch (t->dtype) {
    case SKL_F32: return ((const float *)t->data)[offset];
    case SKL_BF16: return from_bits(((const uint16_t *)t->data)[offset], 7, 127);
    case SKL_F16: return from_bits(((const uint16_t *)t->data)[offset], 10, 15);
    default: return ((const int32_t *)t->data)[offset];
    }
}

void test_set(const struct skl_tensor *t, int64_t index, double value)
{
    int64_t offset = test_offset(t, index);
    switch (t->dtype) {
    case SKL_F32: ((float *)t->data)[offset] = (float)value; break;
    case SKL_BF16: ((uint16_t *)t->data)[offset] = to_bits(value, 7, 127); break;
    case SKL_F16: ((uint16_t *)t->data)[offset] = to_bits(value, 10, 15); break;
    default: ((int32_t *)t->data)[offset] = (int32_t)value; break;
    }
}

double test_half_ulp(int32_t dtype, double got, double want)
{
    if (dtype == SKL_F32 || !isfinite(got) || !isfinite(want))
        return 0;
    int fraction_bits = dtype == SKL_BF16 ? 7 : 10, least = dtype == SKL_BF16 ? -126 : -14, exponent;
    frexp(fmax(fabs(got), fabs(want)), &exponent);
    exponent = exponent - 1 < least ? least : exponent - 1;
    return ldexp(0.5, exponent - fraction_bits);
}

/* ------------------------------------------------------------------------------------------------ memory --- */

struct test_tensor test_tensor(int32_t dtype, int ndim, const int64_t *shape, int vector, enum test_layout layout,
                               enum test_place place)
{
    struct test_tensor made;
    struct skl_tensor t = {NULL, dtype, SKL_CPU, ndim, 0, {0}, {0}};
    int order[4] = {0, 1, 2, 3}; /* dimensions from the outermost in memory to the innermost */
    if (layout == TEST_HEADS_IN && ndim == 4)
        order[1] = 2, order[2] = 1;
    int64_t span = 1;
    for (int k = ndim - 1; k >= 0; k--) {
        int d = order[k];
        int64_t gap = layout == TEST_DENSE ? 0 : k == ndim - 1 ? (vector ? 0 : 1) : 1 + (k * 5 + shape[d]) % 7;
        t.shape[d] = shape[d];
        t.stride[d] = k == ndim - 1 ? 1 + gap : span + gap;
        if (layout == TEST_BROADCAST && k == 0 && ndim > 1)
            t.stride[d] = 0;
        span += (shape[d] - 1) * t.stride[d];
    }
    size_t element = test_element_size(dtype);
    made.memory = test_alloc((size_t)span * element, element, place);
    test_fill_canary(&made.memory);
    t.data = made.memory.data;
    made.t = t;
    return made;
}

void test_tensor_free(struct test_tensor *t)
{
    test_free(&t->memory);
    t->t.data = NULL;
}

void test_fill_normal(const struct skl_tensor *t, double sd, int outliers)
{
    int64_t n = test_count(t), row = t->shape[t->ndim - 1];
    double factor = sd;
    for (int64_t i = 0; i < n; i++) {
        if (i % row == 0)
            factor = outliers && test_chance(16) ? 2 * sd : sd;
        test_set(t, i, factor * test_normal());
    }
}

void test_fill(const struct skl_tensor *t, double value)
{
    for (int64_t i = 0; i < test_count(t); i++)
        test_set(t, i, value);
}

int test_take(struct test_tensor *t, double *values)
{
    int64_t n = test_count(&t->t);
    size_t element = test_element_size(t->t.dtype);
    for (int64_t i = 0; i < n; i++)
        values[i] = test_get(&t->t, i);
    for (int64_t i = 0; i < n; i++)
        memset((char *)t->t.data + test_offset(&t->t, i) * (int64_t)element, TEST_CANARY, element);
    return test_is_canary(&t->memory);
}

struct skl_tensor test_slice(struct skl_tensor t, int64_t first, int64_t n)
{
    if (!t.data)
        return t;
    int d = t.ndim == 1 ? 0 : t.ndim - 2;
    t.data = (char *)t.data + first * t.stride[d] * (int64_t)test_element_size(t.dtype);
    t.shape[d] = n;
    return t;
}
