/* SPDX-License-Identifier: Apache-2.0
 * The one parameter of all kernels in selftest.cu. */
#ifndef SELFTEST_ARGS_H
#define SELFTEST_ARGS_H

#include <stdint.h>

struct selftest_args {
    const float *in;
    float *out;
    const uint16_t *left, *right;
    int n, swizzle;
    float table[4];
};

#endif
