/* SPDX-License-Identifier: Apache-2.0
 *
 * What the program was built with and what it runs on, in words.
 */
#ifndef TOOL_MACHINE_H
#define TOOL_MACHINE_H

#include <stddef.h>

/* The CPU's name as the system gives it, or "unknown CPU". */
const char *machine_cpu(void);

/* "gcc 12.2.0" or "clang 14.0.6" */
const char *machine_compiler(void);

/* Bytes of the data cache of a level, 1 to 3; 0: not known. */
long machine_cache(int level);

#endif
