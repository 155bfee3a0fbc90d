/* SPDX-License-Identifier: Apache-2.0
 * What sizeof gave for the structures of version 0.1.0 on machines of 64 bits: the least size that any caller sends. */
#ifndef FIRST_SIZES_H
#define FIRST_SIZES_H

enum { FIRST_PROBLEM = 960, FIRST_OUTPUTS = 984 };

#endif
