/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of `streamkl bench`: which calls on which cases, and how a measured one is printed.
 */
#ifndef TOOL_BENCH_H
#define TOOL_BENCH_H

#include "calls.h"

struct bench {
    struct kit_case c;
    int call;   /* enum skl_call */
    int device; /* enum skl_device */
};

struct bench_result {
    int threads, isa; /* as used: never 0, but on a device no threads */
    const char *unit; /* that multiplies these operands */
    double seconds_min, seconds_median;
    double gflops, peak_gflops; /* counted products over seconds_min; FMA peak measured around it */
    double bytes, bandwidth;    /* of the operands, each once; and bytes/s that this machine reads */
    /* peak_gflops and bandwidth are 0 on a device: not measured */
    double extra_bytes, max_rel_error; /* measured memory; worst error of the sampled rows */
};

/* What is measured when no case is described: *count of them. 'full' gives the table of docs/measurements.md, which
 * takes minutes; otherwise smaller ones of the same kinds, within one. A CUDA device has cases of its own size. */
const struct bench *bench_set(int full, int device, int *count);

void report_header(void);
void report_row(const struct bench *bench, const struct bench_result *result);
void report_json(const struct bench *bench, const struct bench_result *result);

#endif
