/* SPDX-License-Identifier: Apache-2.0
 * cvt between all types: every source fits into 64 bits of integer or an f64, so there are three steps, each a loop:
 * fetch, convert, store. */
#include "lanes.h"

#include <math.h>

static CLONES void fetch_integers(const void *from, int size, enum type type, int64_t *to)
{
#define FETCH(R, T)                                                           \
    for (int l = 0; l < LANES; l++) to[l] = (int64_t)(T)((const R *)from)[l]; \
    break
#define FETCHES(T)          \
    switch (size) {         \
    case 2: FETCH(u16, T);  \
    case 4: FETCH(u32, T);  \
    default: FETCH(u64, T); \
    }                       \
    break
    switch (type) {
    case T_U8:
    case T_B8: FETCHES(uint8_t);
    case T_S8: FETCHES(int8_t);
    case T_U16:
    case T_B16: FETCHES(uint16_t);
    case T_S16: FETCHES(int16_t);
    case T_U32:
    case T_B32: FETCHES(uint32_t);
    case T_S32: FETCHES(int32_t);
    default: FETCHES(int64_t);
    }
}

/* Registers wider than the type take the sign's or zero's extension. */
static CLONES void store_integers(void *to, int size, enum type type, const int64_t *from, uint32_t mask)
{
#define STORE(R, T)                          \
    EACH_LANE(((R *)to)[l] = (R)(T)from[l]); \
    break
#define STORES(T)           \
    switch (size) {         \
    case 2: STORE(u16, T);  \
    case 4: STORE(u32, T);  \
    default: STORE(u64, T); \
    }                       \
    break
    switch (type) {
    case T_U8:
    case T_B8: STORES(uint8_t);
    case T_S8: STORES(int8_t);
    case T_U16:
    case T_B16:
    case T_F16:
    case T_BF16: STORES(uint16_t);
    case T_S16: STORES(int16_t);
    case T_U32:
    case T_B32:
    case T_F32:
    case T_TF32: STORES(uint32_t);
    case T_S32: STORES(int32_t);
    default: STORES(int64_t);
    }
}

static void fetch_floats(const void *from, int size, enum type type, int ftz, double *to)
{
    for (int l = 0; l < LANES; l++) {
        uint32_t bits = size == 2 ? ((const u16 *)from)[l] : size == 4 ? ((const u32 *)from)[l] : 0;
        float f;
        switch (type) {
        case T_F16: to[l] = (double)f16_to_f32((uint16_t)bits); break;
        case T_BF16: to[l] = (double)bf16_to_f32((uint16_t)bits); break;
        case T_F32:
            memcpy(&f, &bits, 4);
            to[l] = ftz && fabsf(f) < 0x1p-126f ? copysign(0, (double)f) : (double)f;
            break;
        default: to[l] = ((const f64 *)from)[l]; break;
        }
    }
}

static void integer_range(enum type t, int64_t *least, uint64_t *most)
{
    int bits = 8 * type_bytes(t);
    *least = type_is_signed(t) ? -((int64_t)1 << (bits - 2)) * 2 : 0;
    *most = type_is_signed(t) ? ((uint64_t)1 << (bits - 1)) - 1 : bits == 64 ? UINT64_MAX : ((uint64_t)1 << bits) - 1;
}

static double rounded(double x, enum rounding r)
{
    switch (r) {
    case R_RNI: return nearbyint(x);
    case R_RZI: return trunc(x);
    case R_RMI: return floor(x);
    case R_RPI: return ceil(x);
    default: return x;
    }
}

/* Out of range is the nearest in range, NaN is 0. */
static int64_t to_integer(double x, enum type t)
{
    int64_t least;
    uint64_t most;
    integer_range(t, &least, &most);
    if (x != x)
        return 0;
    if (x <= (double)least)
        return least;
    if (x >= (double)most)
        return (int64_t)most;
    return x >= 0x1p63 ? (int64_t)(uint64_t)x : (int64_t)x;
}

/* From one f64 to the bits of a type of floats. */
static int64_t to_float(double x, enum type t, const struct inst *in)
{
    enum rounding r = (enum rounding)in->rounding;
    float f;
    uint32_t bits;
    uint64_t wide;
    x = rounded(x, r);
    if (in->sat)
        x = x > 0 ? (x < 1 ? x : 1) : 0;
    if (in->mode && !(x > 0)) /* relu */
        x = x != x ? x : 0;
    switch (t) {
    case T_F16: return f64_to_f16(x, r);
    case T_BF16: return f64_to_bf16(x, r);
    case T_F64: memcpy(&wide, &x, 8); return (int64_t)wide;
    default: break;
    }
    f = (float)x;
    if (r == R_RZ || r == R_RM || r == R_RP) {
        set_rounding(r);
        volatile double from = x; /* not moved over the change of the rounding */
        volatile float v = (float)from;
        set_rounding(R_RN);
        f = v;
    }
    if (in->ftz && fabsf(f) < 0x1p-126f)
        f = copysignf(0, f);
    memcpy(&bits, &f, 4);
    if (t == T_TF32)
        bits = (bits + 0x1000) & ~0x1FFFu;
    if (f != f)
        bits = 0x7FFFFFFF;
    return bits;
}

/* ------------------------------------------------------------------------------ the ordinary ones, for speed --- */

static inline uint32_t quick_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return f != f ? 0x7FFF : (u + 0x7FFF + (u >> 16 & 1)) >> 16;
}

static inline uint32_t quick_f16(float f)
{
    uint32_t u, sign, small, bits;
    memcpy(&u, &f, 4);
    sign = u >> 16 & 0x8000;
    u &= 0x7FFFFFFF;
    /* The last bit of 0.5f is the last of an f16 below 2^-14: the addition rounds there. */
    float sum = fabsf(f) + 0.5f;
    memcpy(&small, &sum, 4);
    bits = (u - 0x38000000u + 0xFFF + (u >> 13 & 1)) >> 13;
    bits = u < 0x38800000u ? small - 0x3F000000u : bits;
    bits = u >= 0x477FF000u ? 0x7C00 : bits;
    return u > 0x7F800000u ? 0x7FFF : sign | bits;
}

/* 1 if the conversion is one of these. */
static CLONES int quick(struct warp *w, const struct inst *in, uint32_t mask)
{
    void *to = OPERAND(0);
    const void *from = OPERAND(1);
    if (in->sat | in->ftz | in->mode)
        return 0;
#define QUICK(T, D, F, S, expression)                                                             \
    if (in->type == T && in->from == F && in->size[0] == sizeof(D) && in->size[1] == sizeof(S)) { \
        D *d = to;                                                                                \
        const S *a = from;                                                                        \
        EACH_LANE(S x = a[l]; d[l] = (D)(expression));                                            \
        return 1;                                                                                 \
    }
    if (in->rounding == R_NONE) {
        QUICK(T_S64, s64, T_S32, s32, x)
        QUICK(T_U64, u64, T_U32, u32, x)
        QUICK(T_U32, u32, T_U64, u64, x)
        QUICK(T_F64, f64, T_F32, f32, x)
        QUICK(T_F32, f32, T_F16, u16, f16_to_f32(x))
    } else if (in->rounding == R_RN) {
        QUICK(T_F32, f32, T_S32, s32, x)
        QUICK(T_F32, f32, T_F64, f64, x)
        QUICK(T_F16, u16, T_F32, f32, quick_f16(x))
        QUICK(T_BF16, u16, T_F32, f32, quick_bf16(x))
    }
    return 0;
}

void run_cvt(struct warp *w, const struct inst *in, uint32_t mask)
{
    enum type to = (enum type)in->type, from = (enum type)in->from;
    int64_t v[LANES];
    double x[LANES];
    if (quick(w, in, mask))
        return;
    if (!type_is_float(from)) {
        fetch_integers(OPERAND(1), in->size[1], from, v);
        if (type_is_float(to)) {
            for (int l = 0; l < LANES; l++) {
                if (!(mask >> l & 1))
                    continue;
                /* Once rounded: not by way of f64 when 64 bits go to f32. */
                set_rounding((enum rounding)in->rounding);
                volatile float f = from == T_U64 ? (float)(uint64_t)v[l] : (float)v[l];
                volatile double d = from == T_U64 ? (double)(uint64_t)v[l] : (double)v[l];
                set_rounding(R_RN);
                v[l] = to_float(to == T_F32 ? (double)f : d, to, in);
            }
        } else if (in->sat) {
            int64_t least;
            uint64_t most;
            integer_range(to, &least, &most);
            for (int l = 0; l < LANES; l++) {
                if (from == T_U64 ? (uint64_t)v[l] > most : v[l] > 0 && (uint64_t)v[l] > most)
                    v[l] = (int64_t)most;
                else if (from != T_U64 && v[l] < least)
                    v[l] = least;
            }
        }
    } else {
        fetch_floats(OPERAND(1), in->size[1], from, in->ftz, x);
        for (int l = 0; l < LANES; l++)
            if (mask >> l & 1)
                v[l] = type_is_float(to) ? to_float(x[l], to, in)
                                         : to_integer(rounded(x[l], (enum rounding)in->rounding), to);
    }
    store_integers(OPERAND(0), in->size[0], to, v, mask);
}

/* The first operand goes to the upper half. */
CLONES void run_cvt_pack(struct warp *w, const struct inst *in, uint32_t mask)
{
    u32 *d = OPERAND(0);
    const f32 *a = OPERAND(1), *b = OPERAND(2);
    if (in->rounding == R_RN && !in->mode) {
        if (in->type == T_BF16X2)
            EACH_LANE(d[l] = quick_bf16(a[l]) << 16 | quick_bf16(b[l]));
        else
            EACH_LANE(d[l] = quick_f16(a[l]) << 16 | quick_f16(b[l]));
        return;
    }
    for (int l = 0; l < LANES; l++)
        if (mask >> l & 1) {
            int64_t high = to_float((double)a[l], in->type == T_F16X2 ? T_F16 : T_BF16, in);
            int64_t low = to_float((double)b[l], in->type == T_F16X2 ? T_F16 : T_BF16, in);
            d[l] = (uint32_t)(high << 16 | low);
        }
}
