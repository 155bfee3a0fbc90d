/* SPDX-License-Identifier: Apache-2.0
 *
 * Words of the tile unit (AMX). A tile is 16 lines of 64 bytes; there are eight of them, named by literal numbers.
 *
 *     tile_load(t, at, stride)    tile_load_once: not for L1    tile_store(t, at, stride)    tile_zero(t)
 *     tile_dot(c, a, b)           C[16][16] f32 += A[16][16 pairs] x B[16 pairs][16], pairs of bf16
 *     tiles_get(config)           the thread's configuration, 64 bytes: all 0 if there is none
 *     tiles_set(config)           tiles become 0
 *     tiles_release()             no configuration, nothing for the system to save
 *
 * tiles_c.h has the same words in plain C. Strides are in bytes. The compilers do not know which memory a tile load
 * reads: a fence holds the stores before it, and the reuse of that memory after it, in place.
 */
#include <immintrin.h>

#define FENCED_(word)                      \
    do {                                   \
        __asm__ volatile("" ::: "memory"); \
        word;                              \
        __asm__ volatile("" ::: "memory"); \
    } while (0)

#define tile_zero(t) _tile_zero(t)
#define tile_load(t, at, stride) FENCED_(_tile_loadd(t, at, stride))
#define tile_load_once(t, at, stride) FENCED_(_tile_stream_loadd(t, at, stride))
#define tile_store(t, at, stride) FENCED_(_tile_stored(t, at, stride))
#define tile_dot(c, a, b) _tile_dpbf16ps(c, a, b)
#define tiles_get(config) FENCED_(_tile_storeconfig(config))
#define tiles_set(config) FENCED_(_tile_loadconfig(config))
#define tiles_release() _tile_release()
