/* SPDX-License-Identifier: Apache-2.0
 *
 * Views of memory: any dtype, with gaps or permuted strides, read and written as doubles.
 */
#ifndef KIT_TENSOR_H
#define KIT_TENSOR_H

#include "memory.h"
#include "random.h"

#include <streamkl/streamkl.h>

enum kit_layout {
    KIT_DENSE,     /* row-major, contiguous */
    KIT_GAPS,      /* row-major, unused elements after each row, matrix and batch */
    KIT_HEADS_IN,  /* [B, H, N, D] stored as [B, N, H, D], with gaps, as projections leave it */
    KIT_BROADCAST, /* the first dimension repeats by stride 0 (inputs only; an output gets gaps) */
    KIT_LAYOUTS
};

struct kit_tensor {
    struct skl_tensor t; /* on the host */
    struct kit_buffer memory;
    void *there; /* the same bytes on the device; NULL: none */
};

extern const char *const kit_dtype_names[]; /* positions are those of enum skl_dtype; ends with NULL */
size_t kit_element_size(int32_t dtype);
int64_t kit_count(const struct skl_tensor *t);
int64_t kit_offset(const struct skl_tensor *t, int64_t index); /* of the index-th element in row-major order */
double kit_get(const struct skl_tensor *t, int64_t index);
void kit_set(const struct skl_tensor *t, int64_t index, double value); /* rounds to nearest even */
/* The n elements from 'index' on, none of which is in another row than the first: faster than one by one. */
void kit_get_row(const struct skl_tensor *t, int64_t index, int64_t n, double *values);

/* 'vector' says that the last dimension must be contiguous (operands and gradients); tensors over rows need not be. */
struct kit_tensor kit_tensor(const struct kit_memory *memory, int32_t dtype, int ndim, const int64_t *shape, int vector,
                             enum kit_layout layout, enum kit_place place);
void kit_tensor_free(const struct kit_memory *memory, struct kit_tensor *t);
/* What is given to the library: of the host, or of the device. */
struct skl_tensor kit_view(const struct kit_tensor *t);

enum kit_numbers {
    KIT_NORMAL,
    KIT_OUTLIERS,     /* normal, and one row in 16 is twice as large, so that some softmaxes are sharp */
    KIT_NEARLY_NORMAL /* none beyond 3.5, which takes a fraction of the time */
};

/* Random numbers times 'sd'. */
void kit_fill_normal(const struct skl_tensor *t, struct kit_random *r, double sd, enum kit_numbers numbers);
void kit_fill(const struct skl_tensor *t, double value);

/* Takes the elements out into a contiguous array and puts the canary in their place. Then the memory around the view
 * and in its gaps must be canary as well, or something wrote where it should not. Returns that. */
int kit_take(struct kit_tensor *t, double *values);

/* Rounding to the type can be this far off: half an ulp of the larger of the two, 0 for f32. */
double kit_half_ulp(int32_t dtype, double got, double want);

/* data moved by 'first' rows of a matrix (dimension ndim - 2; the elements of a vector), that dimension cut to n. */
struct skl_tensor kit_slice(struct skl_tensor t, int64_t first, int64_t n);

#endif
