/* SPDX-License-Identifier: Apache-2.0 */
#include "shards.h"

/* ----------------------------------------------------------------------------------------------- meeting --- */

void meeting_begin(struct meeting *m, int shards)
{
    *m = (struct meeting){.shards = shards};
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->changed, NULL);
}

void meeting_end(struct meeting *m)
{
    pthread_mutex_destroy(&m->lock);
    pthread_cond_destroy(&m->changed);
}

static void break_up(struct meeting *m)
{
    pthread_mutex_lock(&m->lock);
    m->broken = 1;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
}

/* Until everybody is here; 0 if somebody will not come. */
static int wait_for_all(struct meeting *m)
{
    pthread_mutex_lock(&m->lock);
    int64_t round = m->round;
    if (++m->here == m->shards) {
        m->here = 0, m->round++;
        pthread_cond_broadcast(&m->changed);
    }
    while (m->round == round && !m->broken) pthread_cond_wait(&m->changed, &m->lock);
    int met = m->round != round;
    pthread_mutex_unlock(&m->lock);
    return met;
}

int meet(void *data, struct skl_state *states, int64_t rows)
{
    struct shard *s = data;
    struct meeting *m = s->meeting;
    if (s->exchanges++ == s->fails_at) {
        break_up(m);
        return 7;
    }
    s->sent += rows;
    m->states[s->rank] = states, m->rows[s->rank] = rows;
    if (!wait_for_all(m))
        return 1;
    for (int k = 0; k < m->shards; k++) s->uneven |= m->rows[k] != rows;
    size_t bytes = (size_t)rows * sizeof *states;
    s->mine = realloc(s->mine, bytes);
    memcpy(s->mine, m->states[0], bytes);
    for (int k = 1; k < m->shards && !s->uneven; k++) skl_merge(rows, s->mine, m->states[k]);
    if (!wait_for_all(m)) /* nobody writes before everybody has read */
        return 1;
    memcpy(states, s->mine, bytes);
    return s->uneven;
}

/* ------------------------------------------------------------------------------------------------ shards --- */

static int of_rows(int result)
{
    return result < KIT_FIRST_GRADIENT || result == KIT_A_S || result == KIT_A_T;
}

/* Every shard writes rows and gradients of a for itself, and its part of the gradients of b into the fixture's. */
static void own_outputs(struct kit_fixture *f, struct shard *s, const struct skl_outputs *whole)
{
    s->out = kit_slice_outputs(&s->slice, whole);
    s->out.value = &s->value;
    for (int k = 0; k < KIT_RESULTS; k++) {
        struct skl_tensor *t = kit_slot(&s->out, k);
        if (!t->data || !of_rows(k))
            continue;
        s->own[k] = kit_tensor(f->memory, t->dtype, t->ndim, t->shape, k >= KIT_FIRST_GRADIENT, KIT_GAPS, f->c.place);
        *t = s->own[k].t;
    }
}

void shards_begin(struct kit_fixture *f, struct meeting *m, int n, const int64_t *cut, int64_t rows, enum skl_call call,
                  struct shard *shards)
{
    struct skl_outputs whole = kit_outputs(f, 1, call == SKL_CALL_VALUE ? 0 : KIT_GRAD_ALL);
    for (int k = 0; k < n; k++) {
        struct shard *s = &shards[k];
        *s = (struct shard){.meeting = m, .rank = k, .fails_at = -1, .call = call, .value = NAN};
        s->link = (struct skl_shard){sizeof s->link, meet, s, rows, cut[k], f->c.cols};
        kit_cut(f, cut[k], cut[k + 1], &s->slice);
        s->slice.p.shard = &s->link;
        own_outputs(f, s, &whole);
    }
}

static void *run_shard(void *data)
{
    struct shard *s = data;
    s->status = s->call == SKL_CALL_VALUE ? skl_value(&s->slice.p, &s->out) : skl_value_and_grad(&s->slice.p, &s->out);
    snprintf(s->sentence, sizeof s->sentence, "%s", s->status ? skl_last_error() : "");
    if (s->status)
        break_up(s->meeting);
    return NULL;
}

void shards_run(struct shard *shards, int n)
{
    for (int k = 1; k < n; k++) pthread_create(&shards[k].thread, NULL, run_shard, &shards[k]);
    run_shard(&shards[0]);
    for (int k = 1; k < n; k++) pthread_join(shards[k].thread, NULL);
}

void shards_end(const struct kit_fixture *f, struct shard *shards, int n)
{
    for (int k = 0; k < n; k++) {
        kit_free_slice(f, &shards[k].slice);
        for (int i = 0; i < KIT_RESULTS; i++)
            if (shards[k].own[i].t.data)
                kit_tensor_free(f->memory, &shards[k].own[i]);
        free(shards[k].mine);
    }
}
