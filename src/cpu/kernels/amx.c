/* SPDX-License-Identifier: Apache-2.0
 * AVX-512, and the tiles of AMX for bf16 operands. */
#include "common.h"

#include "vec_avx512.h"
#include "tiles.h"
#define KERNELS skl_kernels_amx
#define KERNELS_ISA SKL_ISA_AMX
#define KERNELS_NARROWER &skl_kernels_avx512_narrow
#define TILE_UNIT
#include "template.h"
