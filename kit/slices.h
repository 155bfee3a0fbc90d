/* SPDX-License-Identifier: Apache-2.0
 *
 * Slices of the columns of a fixture as problems of their own, and the sums of their gradients: for the ways that cut a
 * problem, one slice after the other (slices.c) or all at once (tests/test_shards.c).
 */
#ifndef KIT_SLICES_H
#define KIT_SLICES_H

#include "ways.h"

struct kit_slice {
    struct skl_problem p; /* as it is given to the library */
    struct kit_tensor begin, end;
    int64_t first;
};

/* The columns first .. last-1, perhaps none. Whatever the mask was, it becomes begin and end. */
void kit_cut(const struct kit_fixture *f, int64_t first, int64_t last, struct kit_slice *s);
void kit_free_slice(const struct kit_fixture *f, struct kit_slice *s);
/* 'whole', the outputs of the fixture, with the gradients of b and bias of this slice's columns. */
struct skl_outputs kit_slice_outputs(const struct kit_slice *s, const struct skl_outputs *whole);

/* What the slices' gradients of one a add up to, and how far off that may be: each slice is allowed its own error, on
 * its own scale, and its own rounding. */
struct kit_total {
    double *sum, *slack;
};
struct kit_total kit_new_total(const struct kit_fixture *f, int result);
void kit_free_total(struct kit_total *total);
/* Adds a slice's, [rows, dim] as 't' has them. */
void kit_add_part(const struct skl_tensor *t, const double *part, struct kit_total *total);

#endif
