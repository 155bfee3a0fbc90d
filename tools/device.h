/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory and time of a CUDA device (the first one), for the commands that run on it. The library itself only takes
 * pointers. In a program built without CUDA nothing of this is ever called: require_device() has refused.
 */
#ifndef TOOL_DEVICE_H
#define TOOL_DEVICE_H

#include "options.h"

#include <stddef.h>

/* Positions are those of enum skl_device. */
extern const char *const device_names[];

/* Exits with EXIT_USAGE and the library's sentence when there is no such device. */
void require_device(const struct command *command, int device);

/* "NVIDIA A100-SXM4-80GB, sm_80, 108 SMs, 79.1 GiB" */
void device_describe(int index, char *text, size_t size);

/* Each is a sentence and an exit when it fails. */
void *device_get(size_t bytes);
void device_free(void *p);
void device_put(void *to, const void *from, size_t bytes);  /* host to device */
void device_take(void *to, const void *from, size_t bytes); /* device to host */
void device_spoil(void *p, size_t bytes);                   /* fills it with NaN of every dtype */

/* Until everything that was put into the default stream is done. NULL, or what went wrong. */
const char *device_wait(void);

/* Seconds that the default stream takes from one to the other, by its own clock; waits for it. */
void device_clock_start(void);
double device_clock_stop(void);

#endif
