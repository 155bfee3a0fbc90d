/* SPDX-License-Identifier: Apache-2.0
 *
 * Problems with a listed teacher: random cases, what they should give by the definition in double, and how far off that
 * may be. Beside the fixtures of kit/fixture.h, whose teachers are live.
 *
 *   the loss of a row     2e-6 |x| + 1e-6, and two roundings of a logit
 *   a row of a gradient   5e-6 of its largest entry, and what one rounding of every logit and its LSE may do to it:
 *                         3 sum_j 2^-24 (1 + largest |z|) sensitivity_j |operand_j|; with the tiles of AMX 2^-17 |dx_j
 *                         operand_j| more
 *
 * On a device three times that, and where dx is rounded to 16 bits before its products, half a unit of each dx_j, 2^-8
 * or 2^-11 of it.
 */
#ifndef KIT_LISTED_H
#define KIT_LISTED_H

#include "memory.h"
#include "random.h"

#include <streamkl/streamkl.h>

enum kit_listed_way {
    KIT_LISTED_TOGETHER,  /* value and gradients in one call */
    KIT_LISTED_RECOMPUTE, /* the same with the least workspace it takes */
    KIT_LISTED_BACKWARD,  /* the value, then the gradients from what it saved */
    KIT_LISTED_WAYS
};
extern const char *const kit_listed_way_names[KIT_LISTED_WAYS];

/* Tail and direction: "bucket", "bucket reverse" ... */
enum { KIT_LISTED_KINDS = 6 };
extern const char *const kit_listed_kind_names[KIT_LISTED_KINDS];

struct kit_listed_case {
    int kind;
    int64_t rows, cols, pad, dim, k;
    int dtype, wide_ids, dtype_logprobs;
    double scale, softcap, temperature, stored;
    int bias, weights, labels, given_rest, mean;
    double skip_below;
    int threads, isa;
};

/* Sizes around the edges of tiles; lists with empty slots, columns that come twice, in some rows nothing, in some
 * everything.
 */
struct kit_listed_case kit_random_listed(struct kit_random *r, int kind);

/* A case with its memory. device: where calls run; NULL: on the CPU. */
struct kit_listed;
struct kit_listed *kit_build_listed(const struct kit_listed_case *c, struct kit_random *r,
                                    const struct kit_device *device);
void kit_destroy_listed(struct kit_listed *f);
struct skl_problem *kit_listed_problem(struct kit_listed *f);

/* The largest error of each result as a part of its bound: right if <= 1; INFINITY for a NaN. */
enum {
    KIT_LISTED_LOSS,
    KIT_LISTED_VALUE,
    KIT_LISTED_GRAD_A,
    KIT_LISTED_GRAD_B,
    KIT_LISTED_GRAD_BIAS,
    KIT_LISTED_RESULTS
};
struct kit_listed_outcome {
    enum skl_status status; /* skl_last_error() has its sentence */
    double used[KIT_LISTED_RESULTS];
};
struct kit_listed_outcome kit_run_listed(struct kit_listed *f, enum kit_listed_way way);
int kit_listed_right(const struct kit_listed_outcome *o);

#endif
