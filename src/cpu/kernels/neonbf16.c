/* SPDX-License-Identifier: Apache-2.0
 * NEON, and BFDOT for the logits of bf16 operands. */
#include "common.h"

#include "vec_neon.h"
#define vdot(c, a, b) vbfdotq_f32(c, vreinterpretq_bf16_u32((uint32x4_t)(a)), vreinterpretq_bf16_u32((uint32x4_t)(b)))
#define KERNELS skl_kernels_neonbf16
#define KERNELS_ISA SKL_ISA_NEONBF16
#define DOT_UNIT "neonbf16"
#include "template.h"
