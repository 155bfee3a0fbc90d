/* SPDX-License-Identifier: Apache-2.0
 * For tests: what avx512bf16.c holds, with words in plain C. */
#include "common.h"

#include "fused.h"
#define WIDE
#include "vec_baseline.h"

/* As Intel's manual has it: the odd entries' product is added, then the even ones', rounding to nearest each time.
 * Subnormal numbers are 0 by the mode in which kernels run (float_mode.h); VDPBF16PS flushes them in any. */
static inline vf vdot(vf c, vu a, vu b)
{
    c = vfma((vf)(a & 0xffff0000u), (vf)(b & 0xffff0000u), c);
    return vfma((vf)(a << 16), (vf)(b << 16), c);
}
#define KERNELS skl_kernels_emulated_avx512bf16
#define KERNELS_ISA SKL_ISA_AVX512BF16
#define DOT_UNIT "avx512bf16"
#include "template.h"
