/* SPDX-License-Identifier: Apache-2.0
 *
 * Views of guarded memory: any dtype, with gaps or permuted strides, read and written as doubles.
 */
#ifndef TEST_TENSORS_H
#define TEST_TENSORS_H

#include "test.h"

#include <streamkl/streamkl.h>

enum test_layout {
    TEST_DENSE,     /* row-major, contiguous */
    TEST_GAPS,      /* row-major, unused elements after each row, matrix and batch */
    TEST_HEADS_IN,  /* [B, H, N, D] stored as [B, N, H, D], with gaps, as projections leave it */
    TEST_BROADCAST, /* the first dimension repeats by stride 0 (inputs only; an output gets gaps) */
    TEST_LAYOUTS
};

struct test_tensor {
    struct skl_tensor t;
    struct test_buffer memory;
};

size_t test_element_size(int32_t dtype);
int64_t test_count(const struct skl_tensor *t);
int64_t test_offset(const struct skl_tensor *t, int64_t index); /* of the index-th element in row-major order */
double test_get(const struct skl_tensor *t, int64_t index);
void test_set(const struct skl_tensor *t, int64_t index, double value); /* rounds to nearest even */

/* 'vector' says that the last dimension must be contiguous (operands and gradients); tensors over rows need not be. */
struct test_tensor test_tensor(int32_t dtype, int ndim, const int64_t *shape, int vector, enum test_layout layout,
                               enum test_place place);
void test_tensor_free(struct test_tensor *t);

/* Normal numbers times 'sd'. With outliers, one row in 16 is twice as large, so that some softmaxes are sharp. */
void test_fill_normal(const struct skl_tensor *t, double sd, int outliers);
void test_fill(const struct skl_tensor *t, double value);

/* Takes the elements out into a contiguous array and puts the canary in their place. Then the memory around the view
 * and in its gaps must be canary as well, or something wrote where it should not. Returns that. */
int test_take(struct test_tensor *t, double *values);

/* Rounding to the type can be this far off: half an ulp of the larger of the two, 0 for f32. */
double test_half_ulp(int32_t dtype, double got, double want);

/* data moved by 'rows' rows of a matrix (dimension ndim - 2; the elements of a vector), and that dimension cut to n. */
struct skl_tensor test_slice(struct skl_tensor t, int64_t first, int64_t n);

#endif
