/* SPDX-License-Identifier: Apache-2.0
 *
 * A fixture cut into shards of its columns, each run by a thread, and the meeting at which they merge their states.
 */
#ifndef TEST_SHARDS_H
#define TEST_SHARDS_H

#include "../kit/slices.h"
#include "cases.h"

#include <pthread.h>

enum { MOST_SHARDS = 4 };

/* Where the shards meet. It is broken once one of them fails or is gone: then nobody waits any more. */
struct meeting {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int shards, here, broken;
    int64_t round; /* of meetings ended */
    struct skl_state *states[MOST_SHARDS];
    int64_t rows[MOST_SHARDS];
};

struct shard {
    struct kit_slice slice;
    struct skl_shard link;
    struct meeting *meeting;
    int rank;
    int64_t fails_at;        /* the exchange in which the callback refuses; -1: none */
    int64_t exchanges, sent; /* how often it was called, for how many states in all */
    int uneven;              /* did the others bring another number of states? */
    struct skl_state *mine;  /* merged, until all have read */
    struct skl_outputs out;  /* rows, gradients of a of its own; gradients of b in the fixture's */
    struct kit_tensor own[KIT_RESULTS];
    double value;
    enum skl_call call;
    enum skl_status status;
    char sentence[256];
    pthread_t thread;
};

void meeting_begin(struct meeting *m, int shards);
void meeting_end(struct meeting *m);
/* The shard's callback: merges everybody's states in the order of the ranks. */
int meet(void *data, struct skl_state *states, int64_t rows);

/* Shards of the columns cut[k] .. cut[k+1]-1, with an exchange of 'rows' rows each. */
void shards_begin(struct kit_fixture *f, struct meeting *m, int n, const int64_t *cut, int64_t rows, enum skl_call call,
                  struct shard *shards);
void shards_run(struct shard *shards, int n);
void shards_end(const struct kit_fixture *f, struct shard *shards, int n);

#endif
