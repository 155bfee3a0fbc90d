/* SPDX-License-Identifier: Apache-2.0
 * Rules that a single tensor, or a pair of them, must keep. */
#ifndef SKL_TENSOR_H
#define SKL_TENSOR_H

#include "streamkl/streamkl.h"

/* What is demanded of a tensor; name is the argument's, for the sentence. */
struct skl_rule {
    const char *name;
    int ndim;             /* 0: 2, 3 or 4 */
    int dtypes;           /* bit (1 << dtype) for each that is allowed */
    const int64_t *shape; /* ndim numbers, -1: any; NULL: any shape */
    int last_contiguous;
    int output; /* elements must not overlap */
};

enum { SKL_FLOATS = 1 << SKL_F32 | 1 << SKL_BF16 | 1 << SKL_F16 };

enum skl_status skl_check_tensor(const struct skl_tensor *t, const struct skl_rule *rule);

/* 1 if no element of one can share memory with an element of the other. */
int skl_disjoint(const struct skl_tensor *x, const struct skl_tensor *y);

const char *skl_dtype_name(int dtype);

#endif
