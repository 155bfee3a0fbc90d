/* SPDX-License-Identifier: Apache-2.0
 * What the machine can do at most, measured: the yardstick of `streamkl info` and `bench`. */
#ifndef TOOL_PEAK_H
#define TOOL_PEAK_H

#include <streamkl/streamkl.h>

/* Floating-point operations per second, in units of 1e9, of independent f32 FMAs on 'threads' threads at once. */
double skl_fma_peak(enum skl_isa isa, int threads, double seconds);

/* Bytes per second read from a buffer much larger than the caches; 0 if it could not be allocated. */
double skl_read_bandwidth(int threads, double seconds);

#endif
