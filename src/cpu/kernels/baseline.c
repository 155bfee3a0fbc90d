/* SPDX-License-Identifier: Apache-2.0 */
#include "common.h"

#include "vec_baseline.h"
#define KERNELS skl_kernels_baseline
#define KERNELS_ISA SKL_ISA_BASELINE
#include "template.h"
