/* SPDX-License-Identifier: Apache-2.0 */
#include "common.h"

#include "vec_avx2.h"
#define KERNELS skl_kernels_avx2
#define KERNELS_ISA SKL_ISA_AVX2
#define KERNELS_NARROWER &skl_kernels_avx2_narrow
#include "template.h"
