/* SPDX-License-Identifier: Apache-2.0
 * For problems of a few rows, where a wide panel would be mostly empty. */
#include "common.h"

#define NARROW
#include "vec_avx2.h"
#define KERNELS skl_kernels_avx2_narrow
#define KERNELS_ISA SKL_ISA_AVX2
#include "template.h"
