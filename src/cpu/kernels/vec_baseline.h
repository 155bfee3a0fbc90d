/* SPDX-License-Identifier: Apache-2.0
 * The vector words, in portable GCC/Clang vector extensions: what every other vec_*.h means, too. Each of them names
 * VL (lanes), NV (vectors a row panel is wide), MR (broadcast rows of the micro-kernel); arithmetic + - * / is the
 * compiler's own on vf. NaN: vmax ignores it in 'a', vkeep_nlt keeps it, comparisons are false. */

/* 4 x 2 accumulators: 8 of the 16 registers of SSE2, which also needs one for each product (no FMA). Wide: the shape of
 * AVX-512, for the stand-ins of units that come with it. */
#ifdef WIDE
enum { VL = 16, NV = 2, MR = 8 };
#else
enum { VL = 4, NV = 2, MR = 4 };
#endif
typedef float vf __attribute__((vector_size(4 * VL)));
typedef int32_t vi __attribute__((vector_size(4 * VL)));
typedef uint32_t vu __attribute__((vector_size(4 * VL))); /* for sums that may wrap in lanes that are not used */

/* A word a line. */
/* clang-format off */
static inline vf vload(const float *x)
{
    vf a;
    memcpy(&a, x, sizeof a);
    return a;
}
static inline void vstore(float *x, vf a) { memcpy(x, &a, sizeof a); }
static inline vf vset(float x) { return x - (vf){0}; } /* also of -0 */
#ifdef WIDE
static inline vf vfma(vf a, vf b, vf c)
{
    fused16((const float *)&a, (const float *)&b, (float *)&c);
    return c;
}
#else
static inline vf vfma(vf a, vf b, vf c) { return a * b + c; } /* two roundings here, one where there is FMA */
#endif
static inline vf vblend(vi mask, vf a, vf b) { return (vf)((mask & (vi)a) | (~mask & (vi)b)); }
static inline vf vmax(vf a, vf b) { return vblend(a > b, a, b); }
static inline vf vabs(vf a) { return (vf)((vi)a & INT32_MAX); }
static inline vf vneg_abs(vf a) { return (vf)((vi)a | (vi)vset(-0.0f)); }
static inline vf vkeep_nlt(vf x, vf lim, vf a) { return (vf)(~(x < lim) & (vi)a); }          /* x < lim ? 0 : a */
static inline vf vselect_lt(vf x, vf y, vf a, vf b) { return vblend(x < y, a, b); }          /* x < y ? a : b */
static inline vf vselect_bits(uint32_t bits, vf a, vf b) /* bit of the lane ? a : b */
{
    vi on;
    for (int i = 0; i < VL; i++) on[i] = -(int32_t)(bits >> i & 1);
    return vblend(on, a, b);
}
typedef vi vm;                                                            /* a comparison of lanes */
static inline vm vnle(vf a, vf b) { return ~(a <= b); }                   /* not a <= b: true for NaN */
static inline uint32_t vbits(vm a) /* a bit a lane */
{
    uint32_t bits = 0;
    for (int i = 0; i < VL; i++) bits |= (uint32_t)(a[i] & 1 << i);
    return bits;
}
#include "vec_round.h"
static inline vf vscale(vf a, vf n) { return (vf)((vu)a + ((vu)n << 23)); }                     /* a 2^n */
static inline vf vscale_nlt(vf x, vf lim, vf a, vf n) { return vkeep_nlt(x, lim, vscale(a, n)); } /* x < lim ? 0 : a 2^n */
static inline vf vexponent(vf a, vf *scale) /* e of a = m 2^e with sqrt 1/2 <= m < sqrt 2; scale = 2^-e */
{
    vi k = (vi)((vu)a - 0x3f3504f3u) >> 23;
    *scale = (vf)(0x3f800000u - ((vu)k << 23));
    return __builtin_convertvector(k, vf);
}
/* Tables: the number that the lowest bits of 'at', moved right by 'shift', say; and a without its lowest bits. */
#define TABLE 8
static inline vf vlookup(const float table[TABLE], vf at, int shift)
{
    vu k = (vu)at >> shift & (TABLE - 1);
    vf a;
    for (int i = 0; i < VL; i++) a[i] = table[k[i]];
    return a;
}
static inline vf vtruncate(vf a, int bits) { return (vf)((vi)a & -(1 << bits)); }
static inline vf vload_bf16(const uint16_t *x)
{
    vf a;
    for (int i = 0; i < VL; i++) a[i] = skl_from_bf16(x[i]);
    return a;
}
static inline vf vload_f16(const uint16_t *x)
{
    vf a;
    for (int i = 0; i < VL; i++) a[i] = skl_from_f16(x[i]);
    return a;
}
