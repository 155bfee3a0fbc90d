/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TILE_USER_TABLE_H
#define TILE_USER_TABLE_H

#include <stdint.h>

enum { NO_TILES, USERS_TILES, OTHER_TILES };

struct tile_user {
    void (*configure)(void);
    void (*release)(void);
    int (*find)(void); /* whose configuration the thread has */
    void (*multiply)(const uint16_t *a, const uint16_t *b, float *c);
};
extern const struct tile_user tile_user_amx, tile_user_emulated;

#endif
