/* SPDX-License-Identifier: Apache-2.0
 * What every ISA.c needs before its vector words. Only static functions may come in here: an external inline
 * compiled for AVX-512 could be the copy that the linker keeps for everyone. */
#include "../kernels.h"
#include "../../half.h"

#include <float.h>
#include <math.h>
#include <string.h>
