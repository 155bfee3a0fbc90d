/* SPDX-License-Identifier: Apache-2.0
 * Vector words for AVX2 with FMA and F16C. See vec_baseline.h for what each word means. */
#include <immintrin.h>
#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "compile with -mavx2 -mfma -mf16c"
#endif

/* 6 x 2 accumulators, two vectors of b and one broadcast: 15 of 16 registers. Narrow, for up to eight rows: 12 x 1. */
#ifdef NARROW
enum { VL = 8, NV = 1, MR = 12 };
#else
enum { VL = 8, NV = 2, MR = 6 };
#endif
typedef __m256 vf;
typedef __m256i vi;

/* A word a line. */
/* clang-format off */
static inline vf vload(const float *x) { return _mm256_loadu_ps(x); }
static inline void vstore(float *x, vf a) { _mm256_storeu_ps(x, a); }
static inline vf vset(float x) { return _mm256_set1_ps(x); }
static inline vf vfma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline vf vmax(vf a, vf b) { return _mm256_max_ps(a, b); }
static inline vf vabs(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
static inline vf vneg_abs(vf a) { return _mm256_or_ps(_mm256_set1_ps(-0.0f), a); }
static inline vf vkeep_nlt(vf x, vf lim, vf a) { return _mm256_and_ps(_mm256_cmp_ps(x, lim, _CMP_NLT_UQ), a); }
static inline vf vselect_lt(vf x, vf y, vf a, vf b)
{
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, y, _CMP_LT_OQ));
}
static inline vf vselect_bits(uint32_t bits, vf a, vf b)
{
    vi lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    vi on = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int)bits), lane), lane);
    return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(on));
}
typedef __m256 vm;
static inline vm vnle(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_NLE_UQ); }
static inline uint32_t vbits(vm a) { return (uint32_t)_mm256_movemask_ps(a); }
#include "vec_round.h"
static inline vf vscale(vf a, vf n)
{
    return _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(a), _mm256_slli_epi32(_mm256_castps_si256(n), 23)));
}
/* x = k / 8 + r with an integer k and |r| <= 1/16: returns r, and s = 2^{k / 8} for -127 <= x < 128. The sum with a
 * number whose last place is 1/8 has k in its lowest bits: the permutation reads three of them, and a shift makes all
 * of them an exponent and three bits too many, which the table's numbers are short of. */
#define HAS_EIGHTHS
static inline vf vsplit_eighth(vf x, vf *s)
{
    const vi table = _mm256_setr_epi32(0x3f800000, 0x3f7b95c2, 0x3f7837f0, 0x3f75fed7, 0x3f7504f3, 0x3f75672a,
                                       0x3f7744fd, 0x3f7ac0c7);
    vf at = x + _mm256_set1_ps(1572864.0f);
    vi k = _mm256_castps_si256(at);
    *s = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_permutevar8x32_epi32(table, k), _mm256_slli_epi32(k, 20)));
    return x - (at - _mm256_set1_ps(1572864.0f));
}
/* In a register. */
#define TABLE 8
static inline vf vlookup(const float table[TABLE], vf at, int shift)
{
    return _mm256_permutevar8x32_ps(vload(table), _mm256_srli_epi32(_mm256_castps_si256(at), shift));
}
static inline vf vtruncate(vf a, int bits)
{
    return _mm256_and_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32(-(1 << bits))));
}
static inline vf vscale_nlt(vf x, vf lim, vf a, vf n) { return vkeep_nlt(x, lim, vscale(a, n)); }
static inline vf vexponent(vf a, vf *scale)
{
    vi half = _mm256_set1_epi32(0x3f3504f3), one = _mm256_set1_epi32(0x3f800000);
    vi k = _mm256_srai_epi32(_mm256_sub_epi32(_mm256_castps_si256(a), half), 23);
    *scale = _mm256_castsi256_ps(_mm256_sub_epi32(one, _mm256_slli_epi32(k, 23)));
    return _mm256_cvtepi32_ps(k);
}
/* A loop over the lanes would become one over single numbers. */
#define HAS_ADD_LANES
static inline void add_lanes(double *sum, vf x)
{
    __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(x)), high = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
    _mm256_storeu_pd(sum, _mm256_add_pd(_mm256_loadu_pd(sum), low));
    _mm256_storeu_pd(sum + 4, _mm256_add_pd(_mm256_loadu_pd(sum + 4), high));
}
static inline vf vload_bf16(const uint16_t *x)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)x)), 16));
}
static inline vf vload_f16(const uint16_t *x) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)x)); }
