/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor.h"

#include <math.h>
#include <string.h>

const char *const kit_dtype_names[] = {"f32", "bf16", "f16", NULL};

size_t kit_element_size(int32_t dtype)
{
    return dtype == SKL_I64 ? 8 : dtype == SKL_F32 || dtype == SKL_I32 ? 4 : 2;
}

int64_t kit_count(const struct skl_tensor *t)
{
    int64_t n = 1;
    for (int k = 0; k < t->ndim; k++) n *= t->shape[k];
    return n;
}

int64_t kit_offset(const struct skl_tensor *t, int64_t index)
{
    int64_t offset = 0;
    for (int k = t->ndim - 1; k >= 0; k--) {
        offset += index % t->shape[k] * t->stride[k];
        index /= t->shape[k];
    }
    return offset;
}

/* -------------------------------------------------------------------------------------------- 16-bit types --- */

/* Both types are a sign, an exponent with a bias and 'fraction_bits' of a fraction, by IEEE's rules; so is a double,
 * with 52 and 1023. Numbers that are normal in both only shift their fields. */
static double double_of(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static double from_bits(uint16_t bits, int fraction_bits, int bias)
{
    int field = (bits & 0x7FFF) >> fraction_bits, top = (1 << (15 - fraction_bits)) - 1;
    double fraction = bits & ((1 << fraction_bits) - 1);
    uint64_t normal = ((uint64_t)(bits & 0x7FFF) << (52 - fraction_bits)) + ((uint64_t)(1023 - bias) << 52);
    double value = field == top ? (fraction != 0 ? (double)NAN : (double)INFINITY)
                   : field == 0 ? ldexp(fraction, 1 - bias - fraction_bits)
                                : double_of(normal);
    return bits & 0x8000 ? -value : value;
}

static uint16_t to_bits(double value, int fraction_bits, int bias)
{
    uint16_t sign = signbit(value) ? 0x8000 : 0, infinite = (uint16_t)(0x7FFF >> fraction_bits << fraction_bits);
    double magnitude = fabs(value);
    if (isnan(value))
        return 0x7FFF;
    if (magnitude < ldexp(1, 1 - bias)) /* subnormal: in steps of the least number */
        return sign | (uint16_t)nearbyint(ldexp(magnitude, fraction_bits + bias - 1));
    uint64_t bits, shift = 52 - (uint64_t)fraction_bits;
    memcpy(&bits, &magnitude, sizeof bits);
    /* Half a step less than the tie, and the last bit that stays, so that a tie goes to the even one. A carry into the
     * exponent is right by itself: the fields are adjacent. */
    bits += ((UINT64_C(1) << (shift - 1)) - 1) + (bits >> shift & 1);
    bits = (bits >> shift) - ((uint64_t)(1023 - bias) << fraction_bits);
    return sign | (bits < infinite ? (uint16_t)bits : infinite);
}

static double load(const struct skl_tensor *t, int64_t offset)
{
    switch (t->dtype) {
    case SKL_F32: return ((const float *)t->data)[offset];
    case SKL_BF16: return from_bits(((const uint16_t *)t->data)[offset], 7, 127);
    case SKL_F16: return from_bits(((const uint16_t *)t->data)[offset], 10, 15);
    case SKL_I64: return (double)((const int64_t *)t->data)[offset];
    default: return ((const int32_t *)t->data)[offset];
    }
}

static void store(const struct skl_tensor *t, int64_t offset, double value)
{
    switch (t->dtype) {
    case SKL_F32: ((float *)t->data)[offset] = (float)value; break;
    case SKL_BF16: ((uint16_t *)t->data)[offset] = to_bits(value, 7, 127); break;
    case SKL_F16: ((uint16_t *)t->data)[offset] = to_bits(value, 10, 15); break;
    case SKL_I64: ((int64_t *)t->data)[offset] = (int64_t)value; break;
    default: ((int32_t *)t->data)[offset] = (int32_t)value; break;
    }
}

double kit_get(const struct skl_tensor *t, int64_t index)
{
    return load(t, kit_offset(t, index));
}

void kit_set(const struct skl_tensor *t, int64_t index, double value)
{
    store(t, kit_offset(t, index), value);
}

void kit_get_row(const struct skl_tensor *t, int64_t index, int64_t n, double *values)
{
    int64_t first = kit_offset(t, index), step = t->stride[t->ndim - 1];
    for (int64_t i = 0; i < n; i++) values[i] = load(t, first + i * step);
}

double kit_half_ulp(int32_t dtype, double got, double want)
{
    if ((dtype != SKL_BF16 && dtype != SKL_F16) || !isfinite(got) || !isfinite(want))
        return 0;
    int fraction_bits = dtype == SKL_BF16 ? 7 : 10, least = dtype == SKL_BF16 ? -126 : -14, exponent;
    frexp(fmax(fabs(got), fabs(want)), &exponent);
    exponent = exponent - 1 < least ? least : exponent - 1;
    return ldexp(0.5, exponent - fraction_bits);
}

/* ------------------------------------------------------------------------------------------------ memory --- */

struct kit_tensor kit_tensor(const struct kit_memory *memory, int32_t dtype, int ndim, const int64_t *shape, int vector,
                             enum kit_layout layout, enum kit_place place)
{
    struct kit_tensor made = {.t = {NULL, dtype, SKL_CPU, ndim, 0, {0}, {0}}};
    struct skl_tensor *t = &made.t;
    int order[4] = {0, 1, 2, 3}; /* dimensions from the outermost in memory to the innermost */
    if (layout == KIT_HEADS_IN && ndim == 4)
        order[1] = 2, order[2] = 1;
    int64_t span = 1;
    for (int k = ndim - 1; k >= 0; k--) {
        int d = order[k];
        int64_t gap = layout == KIT_DENSE ? 0 : k == ndim - 1 ? (vector ? 0 : 1) : 1 + (k * 5 + shape[d]) % 7;
        t->shape[d] = shape[d];
        t->stride[d] = k == ndim - 1 ? 1 + gap : span + gap;
        if (layout == KIT_BROADCAST && k == 0 && ndim > 1)
            t->stride[d] = 0;
        span += (shape[d] - 1) * t->stride[d];
    }
    size_t element = kit_element_size(dtype);
    made.memory = memory->get((size_t)span * element, element, place);
    kit_fill_canary(&made.memory);
    t->data = made.memory.data;
    if (memory->device)
        made.there = memory->device->get(made.memory.size);
    return made;
}

void kit_tensor_free(const struct kit_memory *memory, struct kit_tensor *t)
{
    if (t->memory.data)
        memory->put_back(&t->memory);
    if (t->there)
        memory->device->put_back(t->there);
    t->t.data = t->there = NULL;
}

struct skl_tensor kit_view(const struct kit_tensor *t)
{
    struct skl_tensor view = t->t;
    if (t->there) {
        view = skl_on_cuda(view, 0);
        view.data = (char *)t->there + ((char *)t->t.data - (char *)t->memory.data);
    }
    return view;
}

void kit_fill_normal(const struct skl_tensor *t, struct kit_random *r, double sd, enum kit_numbers numbers)
{
    int64_t n = kit_count(t), row = t->shape[t->ndim - 1], step = t->stride[t->ndim - 1];
    for (int64_t i = 0; i < n; i += row) {
        int64_t first = kit_offset(t, i);
        double factor = numbers == KIT_OUTLIERS && kit_chance(r, 16) ? 2 * sd : sd;
        for (int64_t j = 0; j < row; j++)
            store(t, first + j * step, factor * (numbers == KIT_NEARLY_NORMAL ? kit_nearly_normal(r) : kit_normal(r)));
    }
}

void kit_fill(const struct skl_tensor *t, double value)
{
    for (int64_t i = 0; i < kit_count(t); i++) kit_set(t, i, value);
}

int kit_take(struct kit_tensor *t, double *values)
{
    int64_t n = kit_count(&t->t), row = t->t.shape[t->t.ndim - 1], step = t->t.stride[t->t.ndim - 1];
    size_t element = kit_element_size(t->t.dtype);
    for (int64_t i = 0; i < n; i += row) kit_get_row(&t->t, i, row, values + i); /* all, since strides may be 0 */
    for (int64_t i = 0; i < n; i += row) {
        char *first = (char *)t->t.data + kit_offset(&t->t, i) * (int64_t)element;
        if (step == 1)
            memset(first, KIT_CANARY, (size_t)row * element);
        for (int64_t j = 0; step != 1 && j < row; j++) memset(first + j * step * (int64_t)element, KIT_CANARY, element);
    }
    return kit_is_canary(&t->memory);
}

struct skl_tensor kit_slice(struct skl_tensor t, int64_t first, int64_t n)
{
    if (!t.data)
        return t;
    int d = t.ndim == 1 ? 0 : t.ndim - 2;
    t.data = (char *)t.data + first * t.stride[d] * (int64_t)kit_element_size(t.dtype);
    t.shape[d] = n;
    return t;
}
