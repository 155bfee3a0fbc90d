/* SPDX-License-Identifier: Apache-2.0
 * What the machine can do at most, measured: the yardstick of `streamkl info` and `bench`. */
#ifndef TOOL_PEAK_H
#define TOOL_PEAK_H

#include <streamkl/streamkl.h>

/* Floating-point operations per second, in units of 1e9, of independent multiply-adds on 'threads' threads at once, by
 * the unit that the set has for operands of this dtype: of f32, FMAs. */
double skl_peak(enum skl_isa isa, int dtype, int threads, double seconds);
const char *skl_unit(enum skl_isa isa, int dtype); /* its name */
int skl_splits(enum skl_isa isa);                  /* may products of f32 operands be made of bf16 parts? */

/* Bytes per second read from a buffer much larger than the caches; 0 if it could not be allocated. */
double skl_read_bandwidth(int threads, double seconds);

#endif
