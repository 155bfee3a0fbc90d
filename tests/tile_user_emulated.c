/* SPDX-License-Identifier: Apache-2.0 */
#include "../src/cpu/kernels/tiles_c.h"
#define USER tile_user_emulated
#include "tile_user.h"
