/* SPDX-License-Identifier: Apache-2.0
 * AVX-512, and VDPBF16PS for the logits of bf16 operands, with round_dz for their gradients, too. */
#include "common.h"

#include "vec_avx512.h"
#define vdot(c, a, b) _mm512_dpbf16_ps(c, (__m512bh)(a), (__m512bh)(b))
#define KERNELS skl_kernels_avx512bf16
#define KERNELS_ISA SKL_ISA_AVX512BF16
#define KERNELS_NARROWER &skl_kernels_avx512_narrow
#define DOT_UNIT "avx512bf16"
#include "template.h"
