/* SPDX-License-Identifier: Apache-2.0
 * Vector words for AArch64 NEON. See vec_baseline.h for what each word means. */
#include <arm_neon.h>

/* 6 x 4 accumulators, four vectors of b and one of a: 29 of 32 registers. */
enum { VL = 4, NV = 4, MR = 6 };
typedef float32x4_t vf;
typedef int32x4_t vi;

/* A word a line. */
/* clang-format off */
static inline vf vload(const float *x) { return vld1q_f32(x); }
static inline void vstore(float *x, vf a) { vst1q_f32(x, a); }
static inline vf vset(float x) { return vdupq_n_f32(x); }
static inline vf vfma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
static inline vf vmax(vf a, vf b) { return vmaxnmq_f32(a, b); }
static inline vf vabs(vf a) { return vabsq_f32(a); }
static inline vf vneg_abs(vf a) { return vnegq_f32(vabsq_f32(a)); }
static inline vf vkeep_nlt(vf x, vf lim, vf a)
{
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(a), vcltq_f32(x, lim)));
}
static inline vf vselect_lt(vf x, vf y, vf a, vf b) { return vbslq_f32(vcltq_f32(x, y), a, b); }
static inline vf vselect_bits(uint32_t bits, vf a, vf b)
{
    return vbslq_f32(vtstq_u32(vdupq_n_u32(bits), (uint32x4_t){1, 2, 4, 8}), a, b);
}
typedef uint32x4_t vm;
static inline vm vnle(vf a, vf b) { return vmvnq_u32(vcleq_f32(a, b)); }
static inline uint32_t vbits(vm a) { return vaddvq_u32(vandq_u32(a, (uint32x4_t){1, 2, 4, 8})); }
#include "vec_round.h"
static inline vf vscale(vf a, vf n)
{
    return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(a), vshlq_n_s32(vreinterpretq_s32_f32(n), 23)));
}
static inline vf vscale_nlt(vf x, vf lim, vf a, vf n) { return vkeep_nlt(x, lim, vscale(a, n)); }
static inline vf vexponent(vf a, vf *scale)
{
    vi k = vshrq_n_s32(vsubq_s32(vreinterpretq_s32_f32(a), vdupq_n_s32(0x3f3504f3)), 23);
    *scale = vreinterpretq_f32_s32(vsubq_s32(vdupq_n_s32(0x3f800000), vshlq_n_s32(k, 23)));
    return vcvtq_f32_s32(k);
}
#define TABLE 8
static inline vf vlookup(const float table[TABLE], vf at, int shift) /* byte by byte: those of number k are 4 k .. 4 k + 3 */
{
    uint32x4_t k = vandq_u32(vshlq_u32(vreinterpretq_u32_f32(at), vdupq_n_s32(-shift)), vdupq_n_u32(TABLE - 1));
    uint8x16_t bytes = vreinterpretq_u8_u32(vmlaq_u32(vdupq_n_u32(0x03020100), k, vdupq_n_u32(0x04040404)));
    const uint8_t *from = (const uint8_t *)table;
    return vreinterpretq_f32_u8(vqtbl2q_u8((uint8x16x2_t){{vld1q_u8(from), vld1q_u8(from + 16)}}, bytes));
}
static inline vf vtruncate(vf a, int bits)
{
    return vreinterpretq_f32_s32(vandq_s32(vreinterpretq_s32_f32(a), vdupq_n_s32(-(1 << bits))));
}
static inline vf vload_bf16(const uint16_t *x) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(x), 16)); }
static inline vf vload_f16(const uint16_t *x) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(x))); }
