/* SPDX-License-Identifier: Apache-2.0
 *
 * 16-bit floats by bits: bf16 is the upper half of an f32, f16 has 5 exponent and 10 mantissa bits. Conversions to 16
 * bits round to nearest, ties to even; NaN stays NaN. All of them are right also in the mode in which subnormal f32
 * count as 0 (float_mode.h): a subnormal f16 is a normal f32 and is converted exactly both ways. A subnormal bf16
 * becomes the subnormal f32 with the same bits, which counts as 0 when it is used. */
#ifndef SKL_HALF_H
#define SKL_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t skl_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float skl_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline float skl_from_bf16(uint16_t h)
{
    return skl_float((uint32_t)h << 16);
}

static inline uint16_t skl_to_bf16(float x)
{
    uint32_t u = skl_bits(x);
    uint32_t nan = (u & 0x7fffffffu) > 0x7f800000u;
    uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1)) >> 16;
    return (uint16_t)(nan ? (u >> 16) | 0x40u : rounded);
}

static inline float skl_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, body = (uint32_t)(h & 0x7fffu) << 13;
    if (body >= 0x0f800000u) /* inf, NaN: exponent 31 becomes 255 */
        return skl_float(sign | body | 0x70000000u);
    if (body <
        0x00800000u) /* subnormal, k 2^-24: k added to the last place of 0.5, minus 0.5. No f32 here is subnormal */
        return skl_float(sign | skl_bits(skl_float(0x3f000000u | body >> 13) - 0.5f));
    return skl_float(sign | (body + 0x38000000u)); /* the exponent's bias from 15 to 127 */
}

static inline uint16_t skl_to_f16(float x)
{
    uint32_t u = skl_bits(x), sign = (u >> 16) & 0x8000u, body = u & 0x7fffffffu;
    if (body > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (body >= 0x477ff000u) /* 65520 and above round to inf */
        return (uint16_t)(sign | 0x7c00u);
    if (body < 0x38800000u) /* below 2^-14: let an addition at 0.5's ulp 2^-24 do the rounding */
        return (uint16_t)(sign | (skl_bits(skl_float(body) + 0.5f) - 0x3f000000u));
    return (uint16_t)(sign | ((body + 0x0fffu + ((body >> 13) & 1) - 0x38000000u) >> 13));
}

#endif
