/* SPDX-License-Identifier: Apache-2.0 */
#include "common.h"

#include "vec_neon.h"
#define KERNELS skl_kernels_neon
#define KERNELS_ISA SKL_ISA_NEON
#include "template.h"
