/* SPDX-License-Identifier: Apache-2.0
 * Tensors of hostile layout: permuted dimensions, gaps, negative strides, broadcast inputs, any stride on a dimension
 * of one element, any alignment that the element allows. What is not an element is filled with a canary, a NaN in every
 * float type: read, it spoils the result; overwritten, it is found. */
#ifndef FUZZ_VIEW_H
#define FUZZ_VIEW_H

#include "random.h"

#include <streamkl/streamkl.h>

struct view {
    struct skl_tensor t;
    unsigned char *memory;
    size_t bytes;
    unsigned char *copy; /* what an input held before the call */
};

enum view_use {
    VIEW_OPERAND = 1,  /* the last dimension is contiguous */
    VIEW_BROADCAST = 2 /* an input that may have strides of 0 */
};

struct view view_make(struct rng *r, int dtype, int ndim, const int64_t *shape, int use);
void view_free(struct view *v);

int64_t view_count(const struct skl_tensor *t);

/* Elements are numbered in row-major order. */
double view_get(const struct skl_tensor *t, int64_t i);
void view_set(const struct skl_tensor *t, int64_t i, double x); /* rounded to the dtype, to nearest even */
double *view_read(const struct skl_tensor *t);                  /* malloc'd; NULL for no data */

/* Inputs: remember the bytes, then ask whether they are still the same. */
void view_remember(struct view *v);
int view_unchanged(const struct view *v);

/* Outputs: 1 if nothing but elements was written. Elements become the canary again. */
int view_only_elements(struct view *v);

/* 1 if no byte was written at all. */
int view_untouched(const struct view *v);

#endif
