/* SPDX-License-Identifier: Apache-2.0
 *
 * The words of tiles.h in plain C, for machines without AMX: a thread-local array stands for the registers. With real
 * data TDPBF16PS and this gave the same bits on Sapphire Rapids; tests/test_tiles.c compares them where it can.
 *
 * Arithmetic, as Intel's manual has it: the sum over the even entries and that over the odd ones are each a chain of
 * fused multiply-adds that begins with 0; the two are added, then C is. Round to nearest even, subnormal operands and
 * results become 0, whatever MXCSR says.
 */
#ifndef SKL_TILES_C_H
#define SKL_TILES_C_H

#include "../../float_mode.h"
#include "fused.h"

#include <stdint.h>
#include <string.h>

/* Of this thread. A configuration with another first byte than 1 is none: a word on tiles would be a fault, and is
 * caught. */
struct skl_tiles {
    unsigned char config[64];
    union {
        unsigned char byte[16][64];
        float f[16][16];
        uint32_t pair[16][16];
    } at[8];
};
extern _Thread_local struct skl_tiles skl_tiles;

static inline void tiles_must_be_set(void)
{
    if (skl_tiles.config[0] != 1)
        __builtin_trap();
}

static inline void tile_zero(int t)
{
    tiles_must_be_set();
    memset(&skl_tiles.at[t], 0, sizeof skl_tiles.at[t]);
}

static inline void tile_load(int t, const void *at, int64_t stride)
{
    tiles_must_be_set();
    for (int i = 0; i < 16; i++) memcpy(skl_tiles.at[t].byte[i], (const char *)at + i * stride, 64);
}
#define tile_load_once tile_load

static inline void tile_store(int t, void *at, int64_t stride)
{
    tiles_must_be_set();
    for (int i = 0; i < 16; i++) memcpy((char *)at + i * stride, skl_tiles.at[t].byte[i], 64);
}

static inline void tile_dot(int c, int a, int b)
{
    tiles_must_be_set();
    struct skl_float_mode callers = skl_enter_float_mode();
    float b0[16][16], b1[16][16];
    for (int k = 0; k < 16; k++)
        for (int n = 0; n < 16; n++) {
            uint32_t pair = skl_tiles.at[b].pair[k][n], low = pair << 16, high = pair & 0xffff0000u;
            memcpy(&b0[k][n], &low, 4), memcpy(&b1[k][n], &high, 4);
        }
    for (int m = 0; m < 16; m++) {
        float even[16] = {0}, odd[16] = {0}, a0[16], a1[16], *sum = skl_tiles.at[c].f[m];
        for (int k = 0; k < 16; k++) {
            uint32_t pair = skl_tiles.at[a].pair[m][k], low = pair << 16, high = pair & 0xffff0000u;
            for (int n = 0; n < 16; n++) memcpy(&a0[n], &low, 4), memcpy(&a1[n], &high, 4);
            fused16(a0, b0[k], even);
            fused16(a1, b1[k], odd);
        }
        for (int n = 0; n < 16; n++) sum[n] += even[n] + odd[n];
    }
    skl_leave_float_mode(callers);
}

static inline void tiles_release(void)
{
    memset(&skl_tiles, 0, sizeof skl_tiles);
}

static inline void tiles_set(const void *config)
{
    tiles_release();
    memcpy(skl_tiles.config, config, 64);
}

static inline void tiles_get(void *config)
{
    memcpy(config, skl_tiles.config, 64);
}

#endif
