/* SPDX-License-Identifier: Apache-2.0
 * Floating-point instructions. Rounding other than to nearest is the host's own, set around the loop; .ftz and .sat
 * are a second loop, so that the first stays short. */
#include "lanes.h"

#include <fenv.h>
#include <math.h>

void set_rounding(enum rounding r)
{
    static const int modes[] = {FE_TONEAREST, FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
    fesetround(r <= R_RP ? modes[r] : FE_TONEAREST);
}

static inline float flush(float x, int ftz)
{
    return ftz && fabsf(x) < 0x1p-126f ? copysignf(0, x) : x;
}

/* NaN becomes 0. */
static inline float saturate(float x, int sat)
{
    return sat ? (x > 0 ? (x < 1 ? x : 1) : 0) : x;
}

/* All of .f32 and .f64: 'f' of up to three operands. An own function around the loop, so that nothing of it moves over
 * the change of the rounding. */
#define FLOATS(name, F, COUNT, expression)                                                                          \
    static inline F name##_of(F x, F y, F z)                                                                        \
    {                                                                                                               \
        (void)y, (void)z;                                                                                           \
        return expression;                                                                                          \
    }                                                                                                               \
    static __attribute__((noinline)) CLONES void name##_plain(struct warp *w, const struct inst *in, uint32_t mask) \
    {                                                                                                               \
        F *d = OPERAND(0);                                                                                          \
        const F *a = OPERAND(1), *b = OPERAND(COUNT > 1 ? 2 : 1), *c = OPERAND(COUNT > 2 ? 3 : 1);                  \
        EACH_LANE(d[l] = name##_of(a[l], b[l], c[l]));                                                              \
    }                                                                                                               \
    static __attribute__((noinline)) CLONES void name##_flush(struct warp *w, const struct inst *in, uint32_t mask) \
    {                                                                                                               \
        F *d = OPERAND(0);                                                                                          \
        const F *a = OPERAND(1), *b = OPERAND(COUNT > 1 ? 2 : 1), *c = OPERAND(COUNT > 2 ? 3 : 1);                  \
        int ftz = in->ftz, sat = in->sat;                                                                           \
        EACH_LANE(F r = name##_of(FLUSH_##F(a[l]), FLUSH_##F(b[l]), FLUSH_##F(c[l]));                               \
                  d[l] = SATURATE_##F(FLUSH_##F(r)));                                                               \
    }                                                                                                               \
    static void name(struct warp *w, const struct inst *in, uint32_t mask)                                          \
    {                                                                                                               \
        if (in->rounding)                                                                                           \
            set_rounding((enum rounding)in->rounding);                                                              \
        if (in->ftz | in->sat)                                                                                      \
            name##_flush(w, in, mask);                                                                              \
        else                                                                                                        \
            name##_plain(w, in, mask);                                                                              \
        if (in->rounding)                                                                                           \
            set_rounding(R_RN);                                                                                     \
    }

#define FLUSH_f32(x) flush(x, ftz)
#define SATURATE_f32(x) saturate(x, sat)
#define FLUSH_f64(x) (x)
#define SATURATE_f64(x) ((void)ftz, (void)sat, (x))

/* A NaN loses against a number; -0 is less than +0. */
static inline float min_of(float x, float y)
{
    return x != x ? y : y != y ? x : x < y || (x == y && signbit(x)) ? x : y;
}

static inline float max_of(float x, float y)
{
    return x != x ? y : y != y ? x : x > y || (x == y && !signbit(x)) ? x : y;
}

FLOATS(add_f32, f32, 2, x + y)
FLOATS(sub_f32, f32, 2, x - y)
FLOATS(mul_f32, f32, 2, x *y)
FLOATS(fma_f32, f32, 3, fmaf(x, y, z))
FLOATS(div_f32, f32, 2, x / y)
FLOATS(rcp_f32, f32, 1, 1 / x)
FLOATS(sqrt_f32, f32, 1, sqrtf(x))
FLOATS(min_f32, f32, 2, min_of(x, y))
FLOATS(max_f32, f32, 2, max_of(x, y))
FLOATS(neg_f32, f32, 1, -x)
FLOATS(abs_f32, f32, 1, fabsf(x))
FLOATS(copysign_f32, f32, 2, copysignf(y, x))

FLOATS(add_f64, f64, 2, x + y)
FLOATS(sub_f64, f64, 2, x - y)
FLOATS(mul_f64, f64, 2, x *y)
FLOATS(fma_f64, f64, 3, fma(x, y, z))
FLOATS(div_f64, f64, 2, x / y)
FLOATS(rcp_f64, f64, 1, 1 / x)
FLOATS(sqrt_f64, f64, 1, sqrt(x))
FLOATS(min_f64, f64, 2, fmin(x, y))
FLOATS(max_f64, f64, 2, fmax(x, y))
FLOATS(neg_f64, f64, 1, -x)
FLOATS(abs_f64, f64, 1, fabs(x))
FLOATS(copysign_f64, f64, 2, copysign(y, x))

/* min.NaN: a NaN wins. */
#define NAN_WINS(name, condition)                                                 \
    RUN(name##_any)                                                               \
    {                                                                             \
        if (!in->mode) {                                                          \
            name(w, in, mask);                                                    \
            return;                                                               \
        }                                                                         \
        f32 *d = OPERAND(0);                                                      \
        const f32 *a = OPERAND(1), *b = OPERAND(2);                               \
        EACH_LANE(float x = flush(a[l], in->ftz); float y = flush(b[l], in->ftz); \
                  d[l] = x != x || y != y ? NAN : condition);                     \
    }
NAN_WINS(min_f32, min_of(x, y))
NAN_WINS(max_f32, max_of(x, y))

/* ---------------------------------------------------------------------------------------- approximations --- */

/* From the operand's bits and the seed: -2, ... 2. */
static int whim(uint32_t bits, uint64_t seed)
{
    uint64_t h = (bits + 1 + seed * 0x9E3779B97F4A7C15u) * 0xD6E8FEB86659FD93u;
    h ^= h >> 32;
    h *= 0xD6E8FEB86659FD93u;
    return (int)((h >> 33) % 5) - 2;
}

static float ulps(float x, int n)
{
    uint32_t u;
    if (!(fabsf(x) >= 0x1p-125f && fabsf(x) < 0x1p127f))
        return x;
    memcpy(&u, &x, 4);
    u += (uint32_t)n;
    memcpy(&x, &u, 4);
    return x;
}

/* How far each may be off is what the PTX manual says. Results that it lists as exact (2^0, 0, infinities) stay; so
 * does lg2(1), which every GPU gives as 0. */
enum approximate { EX2, LG2, RCP, SQRT, RSQRT, SIN, COS, TANH, DIV };

static float approximate(enum approximate f, float x, float y)
{
    switch (f) {
    case EX2: return exp2f(x);
    case LG2: return log2f(x);
    case RCP: return 1 / x;
    case SQRT: return sqrtf(x);
    case RSQRT: return (float)(1 / sqrt((double)x));
    case SIN: return sinf(x);
    case COS: return cosf(x);
    case TANH: return tanhf(x);
    default:
        return fabsf(y) > 0x1p126f && fabsf(y) <= 0x1.fffffep127f && isfinite(x) ? copysignf(0, x) * copysignf(1, y)
                                                                                 : x / y;
    }
}

static float perturbed(enum approximate f, float x, float r, uint64_t seed)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    int n = whim(bits ^ (uint32_t)f, seed);
    switch (f) {
    case EX2: return x == 0 ? r : ulps(r, n);
    case LG2:
        if (x == 1 || !(x > 0.5f && x < 2))
            return ulps(r, n);
        return r + (float)n * 0x1p-23f;
    case RCP:
    case SQRT: return ulps(r, n / 2);
    case SIN:
    case COS: return x == 0 ? r : r + (float)n * 0x1p-22f;
    case TANH: return r * (1 + (float)n * 0x1p-12f);
    default: return ulps(r, n);
    }
}

#define APPROXIMATE(name, f, COUNT)                                                             \
    RUN(name)                                                                                   \
    {                                                                                           \
        f32 *d = OPERAND(0);                                                                    \
        const f32 *a = OPERAND(1), *b = OPERAND(COUNT);                                         \
        const struct emu_options *o = w->block->options;                                        \
        for (int l = 0; l < LANES; l++) {                                                       \
            if (!(mask >> l & 1))                                                               \
                continue;                                                                       \
            float x = flush(a[l], in->ftz), y = flush(b[l], in->ftz), r = approximate(f, x, y); \
            if (o->perturb)                                                                     \
                r = perturbed(f, x, r, o->seed);                                                \
            d[l] = saturate(flush(r, in->ftz), in->sat);                                        \
        }                                                                                       \
    }
APPROXIMATE(ex2_approx, EX2, 1)
APPROXIMATE(lg2_approx, LG2, 1)
APPROXIMATE(rcp_approx, RCP, 1)
APPROXIMATE(sqrt_approx, SQRT, 1)
APPROXIMATE(rsqrt_approx, RSQRT, 1)
APPROXIMATE(sin_approx, SIN, 1)
APPROXIMATE(cos_approx, COS, 1)
APPROXIMATE(tanh_approx, TANH, 1)
APPROXIMATE(div_approx, DIV, 2)
APPROXIMATE(div_full, DIV, 2)

/* .f64: only the upper half of the result is defined. */
static double upper(double x)
{
    uint64_t u;
    if (x != x)
        return x;
    memcpy(&u, &x, 8);
    u &= 0xFFFFFFFF00000000u;
    memcpy(&x, &u, 8);
    return x;
}
UNARY(rcp_approx_f64, f64, f64, upper(1 / x))
UNARY(rsqrt_approx_f64, f64, f64, upper(1 / sqrt(x)))

#define TESTP(name, condition)                                                              \
    RUN(name)                                                                               \
    {                                                                                       \
        u32 *p = OPERAND(0), bits = 0;                                                      \
        int is_double = in->type == T_F64;                                                  \
        for (int l = 0; l < LANES; l++) {                                                   \
            double x = is_double ? ((f64 *)OPERAND(1))[l] : (double)((f32 *)OPERAND(1))[l]; \
            double least = is_double ? 0x1p-1022 : 0x1p-126;                                \
            (void)least;                                                                    \
            bits |= (uint32_t)(condition) << l;                                             \
        }                                                                                   \
        *p = (*p & ~mask) | (bits & mask);                                                  \
    }
TESTP(testp_finite, isfinite(x))
TESTP(testp_infinite, isinf(x) != 0)
TESTP(testp_number, x == x)
TESTP(testp_nan, x != x)
TESTP(testp_normal, isfinite(x) && (x == 0 || fabs(x) >= least)) /* zeros count as normal */
TESTP(testp_subnormal, x != 0 && fabs(x) < least)

/* ---------------------------------------------------------------------------------------- 16-bit numbers --- */

float f16_to_f32(uint16_t h)
{
    uint32_t u = (uint32_t)(h & 0x7FFF) << 13;
    float f;
    if (u >= 0x0F800000u) /* infinity, NaN */
        u |= 0x7F800000u;
    memcpy(&f, &u, 4);
    if (u < 0x7F800000u)
        f *= 0x1p112f;
    return h & 0x8000 ? -f : f;
}

/* To a number with so many bits of fraction and this range of exponents; the value is the number's bits. */
static uint16_t narrow(double d, enum rounding r, int fraction, int least, int most)
{
    uint16_t sign = signbit(d) ? 0x8000 : 0, infinity = (uint16_t)((most - least + 2) << fraction);
    if (d != d)
        return 0x7FFF;
    double x = fabs(d);
    if (isinf(d))
        return sign | infinity;
    int e = x > 0 ? ilogb(x) : least;
    if (e < least)
        e = least;
    double scaled = ldexp(x, fraction - e), whole = floor(scaled), rest = scaled - whole;
    int up = r == R_RZ   ? 0
             : r == R_RM ? sign && rest > 0
             : r == R_RP ? !sign && rest > 0
                         : rest > 0.5 || (rest == 0.5 && fmod(whole, 2) == 1);
    uint32_t bits = (uint32_t)whole + (uint32_t)up; /* with the leading one, which adds to the exponent's field */
    bits += (uint32_t)(e - least) << fraction;
    if (bits >= infinity)
        bits = r == R_RZ || (r == R_RM && !sign) || (r == R_RP && sign) ? infinity - 1u : infinity;
    return (uint16_t)(sign | bits);
}

uint16_t f64_to_f16(double d, enum rounding r)
{
    return narrow(d, r, 10, -14, 15);
}

uint16_t f64_to_bf16(double d, enum rounding r)
{
    return narrow(d, r, 7, -126, 127);
}

/* One or two of them in a register. Sums and products of two are exact in f64 but for a rounding far below theirs. */
#define HALVES(name, COUNT, expression)                                                              \
    RUN(name)                                                                                        \
    {                                                                                                \
        int bf = in->type == T_BF16 || in->type == T_BF16X2;                                         \
        int n = in->type == T_F16X2 || in->type == T_BF16X2 ? 2 : 1;                                 \
        u16 *d = OPERAND(0);                                                                         \
        const u16 *a = OPERAND(1), *b = OPERAND(COUNT > 1 ? 2 : 1), *c = OPERAND(COUNT > 2 ? 3 : 1); \
        for (int i = 0; i < n * LANES; i++) {                                                        \
            if (!(mask >> i / n & 1))                                                                \
                continue;                                                                            \
            double x = (double)(bf ? bf16_to_f32(a[i]) : f16_to_f32(a[i]));                          \
            double y = (double)(bf ? bf16_to_f32(b[i]) : f16_to_f32(b[i]));                          \
            double z = (double)(bf ? bf16_to_f32(c[i]) : f16_to_f32(c[i])), r = expression;          \
            (void)y, (void)z;                                                                        \
            if (in->sat)                                                                             \
                r = (double)saturate((float)r, 1);                                                   \
            d[i] = bf ? f64_to_bf16(r, R_RN) : f64_to_f16(r, R_RN);                                  \
        }                                                                                            \
    }
HALVES(add_half, 2, x + y)
HALVES(sub_half, 2, x - y)
HALVES(mul_half, 2, x *y)
HALVES(fma_half, 3, fma(x, y, z))
HALVES(min_half, 2, in->mode && (x != x || y != y) ? NAN : fmin(x, y))
HALVES(max_half, 2, in->mode && (x != x || y != y) ? NAN : fmax(x, y))

#define HALF_SIGNS(name, expression)                                 \
    RUN(name)                                                        \
    {                                                                \
        int n = in->type == T_F16X2 || in->type == T_BF16X2 ? 2 : 1; \
        u16 *d = OPERAND(0);                                         \
        const u16 *a = OPERAND(1);                                   \
        for (int i = 0; i < n * LANES; i++)                          \
            if (mask >> i / n & 1)                                   \
                d[i] = (u16)(a[i] expression);                       \
    }
HALF_SIGNS(neg_half, ^0x8000)
HALF_SIGNS(abs_half, &0x7FFF)

/* -------------------------------------------------------------------------------------------------- rules --- */

#define HALF_RULES(T)                                                                           \
    {"add", T, "ttt", add_half}, {"sub", T, "ttt", sub_half}, {"mul", T, "ttt", mul_half},      \
        {"fma", T, "tttt", fma_half}, {"min", T, "ttt", min_half}, {"max", T, "ttt", max_half}, \
        {"neg", T, "tt", neg_half},                                                             \
    {                                                                                           \
        "abs", T, "tt", abs_half                                                                \
    }

#define RULES(n, T)                                                                                                  \
    {"add", T, "ttt", add_##n}, {"sub", T, "ttt", sub_##n}, {"mul", T, "ttt", mul_##n}, {"fma", T, "tttt", fma_##n}, \
        {"mad", T, "tttt", fma_##n}, {"div", T, "ttt", div_##n}, {"rcp", T, "tt", rcp_##n},                          \
        {"sqrt", T, "tt", sqrt_##n}, {"neg", T, "tt", neg_##n}, {"abs", T, "tt", abs_##n},                           \
        {"copysign", T, "ttt", copysign_##n}, {"testp.finite", T, "pt", testp_finite},                               \
        {"testp.infinite", T, "pt", testp_infinite}, {"testp.number", T, "pt", testp_number},                        \
        {"testp.notanumber", T, "pt", testp_nan}, {"testp.normal", T, "pt", testp_normal},                           \
    {                                                                                                                \
        "testp.subnormal", T, "pt", testp_subnormal                                                                  \
    }

const struct rule float_rules[] = {
    RULES(f32, T_F32),
    RULES(f64, T_F64),
    {"min", T_F32, "ttt", min_f32_any},
    {"max", T_F32, "ttt", max_f32_any},
    {"min", T_F64, "ttt", min_f64},
    {"max", T_F64, "ttt", max_f64},
    {"ex2.approx", T_F32, "tt", ex2_approx},
    {"lg2.approx", T_F32, "tt", lg2_approx},
    {"rcp.approx", T_F32, "tt", rcp_approx},
    {"sqrt.approx", T_F32, "tt", sqrt_approx},
    {"rsqrt.approx", T_F32, "tt", rsqrt_approx},
    {"sin.approx", T_F32, "tt", sin_approx},
    {"cos.approx", T_F32, "tt", cos_approx},
    {"tanh.approx", T_F32, "tt", tanh_approx},
    {"div.approx", T_F32, "ttt", div_approx},
    {"div.full", T_F32, "ttt", div_full},
    {"rcp.approx", T_F64, "tt", rcp_approx_f64},
    {"rsqrt.approx", T_F64, "tt", rsqrt_approx_f64},
    HALF_RULES(T_F16),
    HALF_RULES(T_BF16),
    HALF_RULES(T_F16X2),
    HALF_RULES(T_BF16X2),
    {NULL, T_NONE, NULL, NULL},
};
