/* SPDX-License-Identifier: Apache-2.0 */
#include "../src/cpu/kernels/tiles.h"
#define USER tile_user_amx
#include "tile_user.h"
