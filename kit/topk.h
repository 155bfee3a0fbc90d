/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of the largest logits: random cases of skl_topk, and what it wrote against the logits in double.
 *
 *   ids        as many as the row sees, each once, -1 behind them. Where operands are small whole numbers and products
 *              therefore exact, in the one right order; elsewhere two logits may change places that are equal within
 *              the bounds of both
 *   numbers    2e-6 |x| + growth 1e-6 (kit/result.h) of each LSE and logit that they are a difference of; the mass that
 *              is not listed is that of the ids that were given. On a device as many times that as the fixture's rows
 *              are allowed
 */
#ifndef KIT_TOPK_H
#define KIT_TOPK_H

#include "fixture.h"

/* What is asked for besides the ids. */
enum { KIT_TOPK_LOGPROBS = 1, KIT_TOPK_TAIL = 2, KIT_TOPK_LSE = 4, KIT_TOPK_ALL = 7 };

struct kit_topk_case {
    struct kit_case of; /* the student's side of it; attention with one head of keys may be an indexer */
    int indexer, identity;
    int64_t k;
    int asked;
    int whole; /* operands are small whole numbers: most logits have equals */
};

struct kit_topk_case kit_random_topk(struct kit_random *r);
/* Mostly in one 16-bit type and aligned, as tensor cores want it. */
struct kit_topk_case kit_random_device_topk(struct kit_random *r);
void kit_describe_topk(const struct kit_topk_case *c, char *text, size_t size);

/* A case with its memory. */
struct kit_topk {
    struct kit_topk_case c;
    struct kit_fixture of;
    struct skl_problem p; /* on the host, also where it runs on a device */
    struct kit_tensor w;  /* an indexer's */
    struct kit_tensor ids, logprobs, tail, lse;
};
void kit_build_topk(struct kit_topk *f, const struct kit_topk_case *c, const struct kit_memory *memory,
                    struct kit_random *r);
void kit_destroy_topk(struct kit_topk *f);
/* What is asked for, reset to the canary; and the problem: as the call gets them. */
struct skl_outputs kit_topk_outputs(struct kit_topk *f);
struct skl_problem kit_topk_problem(const struct kit_topk *f);

/* The largest error of each result as a part of its bound: right if <= 1; INFINITY for NaN or an id that cannot be. */
enum { KIT_TOPK_IN_IDS, KIT_TOPK_IN_LOGPROBS, KIT_TOPK_IN_TAIL, KIT_TOPK_IN_LSE, KIT_TOPK_RESULTS };
extern const char *const kit_topk_names[KIT_TOPK_RESULTS];
struct kit_topk_outcome {
    enum skl_status status; /* skl_last_error() has its sentence */
    double used[KIT_TOPK_RESULTS];
    int64_t row; /* where the first of them was out of its bound; -1: nowhere */
    int spilt;   /* something was written outside of the tensors */
};
struct kit_topk_outcome kit_run_topk(struct kit_topk *f);
int kit_topk_right(const struct kit_topk_outcome *o);

#endif
