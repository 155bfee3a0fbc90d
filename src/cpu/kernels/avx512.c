/* SPDX-License-Identifier: Apache-2.0 */
#include "common.h"

#include "vec_avx512.h"
#define KERNELS skl_kernels_avx512
#define KERNELS_ISA SKL_ISA_AVX512
#define KERNELS_NARROWER &skl_kernels_avx512_narrow
#include "template.h"
