/* SPDX-License-Identifier: Apache-2.0
 * For problems of up to sixteen rows: AVX2's panel has as many, but takes twice the instructions for an exponential. */
#include "common.h"

#define NARROW
#include "vec_avx512.h"
#define KERNELS skl_kernels_avx512_narrow
#define KERNELS_ISA SKL_ISA_AVX512
#define KERNELS_NARROWER &skl_kernels_avx2_narrow
#include "template.h"
