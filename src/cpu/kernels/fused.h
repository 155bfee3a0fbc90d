/* SPDX-License-Identifier: Apache-2.0
 * For stand-ins: sixteen fused multiply-adds, c = a b + c. Compilers make vectors of the plain loop only at times. */
#ifndef SKL_FUSED_H
#define SKL_FUSED_H

#ifdef __FMA__
#include <immintrin.h>
#endif

static inline void fused16(const float *a, const float *b, float *c)
{
#ifdef __FMA__
    for (int i = 0; i < 16; i += 8)
        _mm256_storeu_ps(c + i,
                         _mm256_fmadd_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i), _mm256_loadu_ps(c + i)));
#else
    for (int i = 0; i < 16; i++) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
#endif
}

#endif
