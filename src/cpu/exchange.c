/* SPDX-License-Identifier: Apache-2.0
 *
 * A shard of the columns meets the others: once a block of rows and sweep, between the sweep and the finish. There the
 * block's scores are still kept, so that gradients take four products as without shards; a callback once a call would
 * find them gone, one a tile would wait too often.
 *
 *     sweep    my columns into states        all threads
 *     meet     shard.exchange(states)        the calling thread; the others wait
 *     finish   states of all columns into loss, LSEs, factors of dz
 *
 * Shards that plan differently must not meet differently often. So a block of a shard is what the shards agreed on,
 * 'rows' rows that follow each other, with those of weight 0 and those that see nothing here (their states are empty),
 * and a wave is one block. What the plan still chooses, keeping scores or computing them again, nobody else sees.
 */
#include "run.h"

int64_t skl_share_rows(struct skl_run *run)
{
    const struct skl_work *w = run->work;
    int64_t first = run->next_row, same_b = w->attention ? w->n : w->rows;
    int64_t end = first < w->rows ? first - first % same_b + same_b : first;
    end = end < first + w->shard.rows ? end : first + w->shard.rows;
    run->first_state = first, run->shared = end - first;
    const struct skl_row_state empty = skl_empty_row();
    for (int64_t i = 0; i < run->shared * skl_shared_states(w); i++) run->states[i] = skl_public_state(w, &empty);
    return end;
}

/* On the calling thread, in the caller's floating-point mode. */
void skl_exchange_states(struct skl_run *run, int64_t states_of_row)
{
    const struct skl_shard *shard = &run->work->shard;
    if (run->refused)
        return;
    skl_leave_float_mode(*run->caller_mode);
    run->refused = shard->exchange(shard->data, run->states, run->shared * states_of_row);
    *run->caller_mode = skl_enter_float_mode();
    if (run->refused)
        atomic_store_explicit(&run->cancelled, 1, memory_order_relaxed);
}
