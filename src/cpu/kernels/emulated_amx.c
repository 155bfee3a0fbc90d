/* SPDX-License-Identifier: Apache-2.0
 * For tests: what amx.c holds, with words in plain C for AVX-512 and for tiles. */
#include "common.h"

#include "fused.h"
#define WIDE
#include "vec_baseline.h"
#include "tiles_c.h"
_Thread_local struct skl_tiles skl_tiles;
#define KERNELS skl_kernels_emulated_amx
#define KERNELS_ISA SKL_ISA_AMX
#define TILE_UNIT
#include "template.h"
