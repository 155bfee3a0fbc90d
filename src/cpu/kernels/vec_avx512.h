/* SPDX-License-Identifier: Apache-2.0
 * Vector words for AVX-512 (F, BW, DQ, VL). See vec_baseline.h for what each word means. */
#include <immintrin.h>
#ifndef __AVX512F__
#error "compile with -mavx512f -mavx512bw -mavx512dq -mavx512vl"
#endif

/* 8 x 2 accumulators of 16 lanes: 16 of 32 registers, enough to hide the latency of two FMA pipes, and a power of two
 * so that head sizes have no tail. Narrow, for up to sixteen rows: 16 x 1. */
#ifdef NARROW
enum { VL = 16, NV = 1, MR = 16 };
#else
enum { VL = 16, NV = 2, MR = 8 };
#endif
typedef __m512 vf;
typedef __m512i vi;

/* A word a line. */
/* clang-format off */
static inline vf vload(const float *x) { return _mm512_loadu_ps(x); }
static inline void vstore(float *x, vf a) { _mm512_storeu_ps(x, a); }
static inline vf vset(float x) { return _mm512_set1_ps(x); }
static inline vf vfma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf vmax(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline vf vabs(vf a) { return _mm512_abs_ps(a); }
static inline vf vneg_abs(vf a) { return _mm512_or_ps(vset(-0.0f), a); }
static inline vf vkeep_nlt(vf x, vf lim, vf a)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, lim, _CMP_NLT_UQ), a);
}
static inline vf vselect_lt(vf x, vf y, vf a, vf b)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, y, _CMP_LT_OQ), b, a);
}
static inline vf vselect_bits(uint32_t bits, vf a, vf b) { return _mm512_mask_blend_ps((__mmask16)bits, b, a); }
typedef __mmask16 vm;
static inline vm vnle(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLE_UQ); }
static inline uint32_t vbits(vm a) { return a; }
static inline vf vsplit_integer(vf x, vf *n)
{
    *n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return x - *n;
}
/* x = floor(16 x) / 16 + r: returns r, and s = 2^{floor(16 x) / 16 - floor(x)} out of a register. The sum with a number
 * whose last place is 1/16 has floor(16 x) in its lowest bits, four of which the permutation reads. */
#define HAS_SIXTEENTHS
static inline vf vsplit_sixteenth(vf x, vf *s)
{
    const vf table = _mm512_setr_ps(1.0f, 1.04427373f, 1.09050775f, 1.13878858f, 1.18920708f, 1.24185777f, 1.29683959f,
                                    1.35425556f, 1.41421354f, 1.47682619f, 1.54221082f, 1.61049032f, 1.68179286f,
                                    1.75625217f, 1.8340081f, 1.91520655f);
    vf at = _mm512_add_round_ps(x, vset(786432.0f), _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    *s = _mm512_permutexvar_ps(_mm512_castps_si512(at), table);
    return _mm512_reduce_ps(x, 4 << 4 | _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}
/* In registers. */
#define TABLE 32
static inline vf vlookup(const float table[TABLE], vf at, int shift)
{
    return _mm512_permutex2var_ps(vload(table), _mm512_srli_epi32(_mm512_castps_si512(at), shift), vload(table + 16));
}
static inline vf vtruncate(vf a, int bits)
{
    return _mm512_and_ps(a, _mm512_castsi512_ps(_mm512_set1_epi32(-(1 << bits))));
}
#define SCALE_SATURATES /* by 2^floor(n): what is too large becomes infinite, and does not wrap around */
static inline vf vscale(vf a, vf n) { return _mm512_scalef_ps(a, n); }
static inline vf vscale_nlt(vf x, vf lim, vf a, vf n)
{
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, lim, _CMP_NLT_UQ), a, n);
}
static inline vf vexponent(vf a, vf *scale)
{
    vi half = _mm512_set1_epi32(0x3f3504f3), one = _mm512_set1_epi32(0x3f800000);
    vi k = _mm512_srai_epi32(_mm512_sub_epi32(_mm512_castps_si512(a), half), 23);
    *scale = _mm512_castsi512_ps(_mm512_sub_epi32(one, _mm512_slli_epi32(k, 23)));
    return _mm512_cvtepi32_ps(k);
}
static inline vf vload_bf16(const uint16_t *x)
{
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)x)), 16));
}
static inline vf vload_f16(const uint16_t *x) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)x)); }
