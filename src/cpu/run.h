/* SPDX-License-Identifier: Apache-2.0
 * The executor: carries a plan out, all threads together. What it knows of a divergence is the number of its sweeps. */
#ifndef SKL_CPU_RUN_H
#define SKL_CPU_RUN_H

#include "../float_mode.h"
#include "plan.h"
#include "team.h"

#include <float.h>

/* One call under way, shared by the threads. */
struct skl_run {
    const struct skl_work *work;
    struct skl_float_mode *caller_mode; /* the callback gets it, and may change it */
    struct skl_plan plan;
    struct skl_state *states; /* where rows' states go: skl_partial's, or the block's of a shard, for the others */
    int64_t first_state;      /* the row of the first of them */
    int64_t shared;           /* on a shard: rows whose states this wave shares with the other shards */
    int second_sweep_only;    /* skl_partial of a divergence with two sweeps, the LSEs being given */
    struct skl_block *blocks;
    char *scratch; /* [threads][thread_bytes] */
    struct skl_team team;
    float unit[2]; /* y = unit x: from scores to logits in base 2 */
    double *sinks; /* [2][segments]: sums over a segment's rows of the gradients of P's and Q's sinks */

    int64_t next_segment,
        next_row;      /* what has not been given to a block yet; rows of that segment (a shard: of all) that have */
    int more;          /* does this wave have rows? */
    int64_t rows_done; /* of earlier waves; rows without weight or columns are not counted */

    atomic_int cancelled;
    int refused; /* what shard.exchange returned, if it was not 0 */
};

/* What a thread carries along. */
struct skl_worker {
    struct skl_run *run;
    struct skl_scratch scratch;
    int rank;
    int64_t phase;                 /* number of the phase, the same in every thread */
    int64_t phases_in_wave;        /* for the progress, to which each phase of a wave counts the same */
    int from, to;                  /* panels that the task is about, where tasks share a block's: all, or some */
    int64_t slab;                  /* gradient: first of the kept tiles */
    int64_t slab_tasks;            /* gradient: tasks that a slab's tiles make */
    struct skl_block own;          /* plan.alone: the thread's block */
    struct skl_block *alone;       /* &own while its phases are this thread's alone; else NULL */
    double taken, queue;           /* plan.alone, for the progress: groups of the queue done before this one, of all */
    struct skl_unit_state callers; /* of the unit that multiplies, as this thread had it before */
};

/* The unit that multiplies is the run's between these two; both sides have the same one. */
static inline void skl_enter_unit(struct skl_worker *w)
{
    const struct skl_products *products = w->run->plan.products[1];
    if (products->enter)
        products->enter(&w->callers);
}
static inline void skl_leave_unit(const struct skl_worker *w)
{
    const struct skl_products *products = w->run->plan.products[1];
    if (products->leave)
        products->leave(&w->callers);
}

enum skl_status skl_run(struct skl_run *run);

/* skl_nothing_to_do(): a call only writes what rows and columns without work get. */
enum skl_status skl_run_nothing(struct skl_run *run);

/* By how much y_P - y_Q, each relative to its side's reference, grows when these move from 'old' to 'now'. */
static inline double skl_shift(const struct skl_run *run, float old_p, float now_p, float old_q, float now_q)
{
    return (double)run->unit[0] * ((double)old_p - (double)now_p) -
           (double)run->unit[1] * ((double)old_q - (double)now_q);
}

/* A row of an operand into L2, ahead of its use: rows far apart are not what the processor expects. Always inline, as
 * everything that only prefetches (kernels/products.h). */
static inline __attribute__((always_inline)) void skl_ask_for_row(const struct skl_operand *x, int64_t batch,
                                                                  int64_t head, int64_t row, int64_t dim)
{
    const char *at = skl_operand_at(x, batch, head, row);
    for (int64_t byte = 0; byte < dim * skl_size_of(x->dtype); byte += 64) __builtin_prefetch(at + byte, 0, 2);
}

/* schedule.c: one task of a phase, and all of them: 'parts' for each block, or 'parts' of the block that the thread
 * works on alone. */
typedef void skl_task(struct skl_worker *w, struct skl_block *block, int64_t part);
void skl_do_phase(struct skl_worker *w, int64_t parts, skl_task *task);
struct skl_queue *skl_queue_of(const struct skl_run *run, int rank);

/* block.c: rows into blocks and back. */
int skl_next_wave(struct skl_run *run);
/* plan.alone: group 'group' of segments for a thread's own block, and its next rows; 0: there are no more. */
void skl_take_group(const struct skl_run *run, struct skl_block *block, int64_t group);
int skl_next_rows(const struct skl_run *run, struct skl_block *block);
void skl_pack_panel(const struct skl_worker *w, struct skl_block *block, int panel);
void skl_write_grad_rows(const struct skl_worker *w, struct skl_block *block, int panel);
/* Which columns of which b the block's rows see, of those of a member. */
struct skl_owner skl_b_of_block(const struct skl_work *w, const struct skl_block *block, int side, int64_t member);

static inline int skl_panels_in_use(const struct skl_run *run, const struct skl_block *block)
{
    int nr = run->plan.kernels->nr;
    return (block->n + nr - 1) / nr;
}

/* States that a row of the block has: one of each of its chunks, and behind these that of the sink. */
static inline int64_t skl_states_of(const struct skl_run *run, const struct skl_block *block)
{
    return block->chunks + (run->work->sinks ? 1 : 0);
}

static inline struct skl_panel_state *skl_state_of(const struct skl_run *run, const struct skl_block *block,
                                                   int64_t chunk, int panel)
{
    return &block->states[chunk * run->plan.panels + panel];
}

/* support.c: which columns rows see. */
void skl_set_ranges(const struct skl_run *run, struct skl_block *block);
/* The tiles of a chunk that some row of the block sees; none if *first >= *last. */
void skl_chunk_range(const struct skl_block *block, int64_t chunk, int64_t *first, int64_t *last);
/* May rows of the panel see columns of the chunk? */
int skl_sees_chunk(const struct skl_block *block, int panel, int64_t chunk);
int64_t skl_seen_tiles(const struct skl_block *block);
int skl_sees_tile(const struct skl_block *block, int64_t tile);
/* Columns j0..j1-1 of the tile that some row of the panel sees; j0 at a strip's start. */
void skl_tile_range(const struct skl_run *run, const struct skl_block *block, int panel, int64_t tile, int *j0,
                    int *j1);
/* Where the slice of a tile that column j is in ends, or the columns do. */
static inline int skl_slice_end(const struct skl_plan *plan, int j, int j1)
{
    int end = (j / plan->slice + 1) * plan->slice;
    return end < j1 ? end : j1;
}
/* The references of both sides that what is kept of a slice is relative to. */
static inline float *skl_kept_m(const struct skl_plan *plan, const struct skl_block *block, int64_t tile, int panel,
                                int j)
{
    int64_t at = (tile - block->kept_from) * plan->panels + panel;
    return block->m_kept + (at * (SKL_BK / plan->slice) + j / plan->slice) * 2 * plan->kernels->nr;
}
/* For each row of the panel the columns lo..hi-1 it sees, counted from the tile's j0; 0 if that is all of j0..j1-1 for
 * all. */
int skl_panel_mask(const struct skl_run *run, const struct skl_block *block, int panel, int64_t tile, int *lo, int *hi);
void skl_mask_panel(const struct skl_run *run, const int *lo, const int *hi, int n, float with, float *y);

/* keys.c: with lists of keys, which columns a block has. The tile's columns that rows of a panel do not list become
 * 'with'. */
void skl_list_keys(const struct skl_worker *w, struct skl_block *block);
/* A bit in scratch.bits for each key of the list of the block's row i that the row sees; have two rows one list? */
void skl_mark_keys(const struct skl_worker *w, const struct skl_block *block, int i);
int skl_same_list(const struct skl_run *run, const struct skl_block *block, int i, int j);
/* keys_in_place.c: makes the block's lists and returns the number of its tiles; which lines of a tile the rows of a
 * panel have keys in; and 'columns' with the panel's lists, for which there is room for nr. Where keys do not stay in
 * place, 'columns' as they are. */
int64_t skl_list_in_place(const struct skl_worker *w, struct skl_block *block);
void skl_lines_of_panel(const struct skl_run *run, const struct skl_block *block, int panel, int64_t tile, int *lo,
                        int *hi);
struct skl_columns skl_with_lists(const struct skl_run *run, const struct skl_block *block, int panel, int64_t tile,
                                  struct skl_columns columns, struct skl_key_list *lists);
void skl_hide_keys(const struct skl_run *run, const struct skl_block *block, int panel, int64_t tile, float with,
                   float *const from_j0[2]);
/* Row j of a matrix [dim] of sums into the sum of listed key j, j being the tile's columns. */
void skl_scatter_keys(const struct skl_worker *w, const struct skl_block *block, int64_t tile, int side,
                      const float *db);

/* Which of its segment's columns a column of the block is; what is none stays as it is. */
static inline double skl_key_of(const struct skl_block *block, double column)
{
    return block->keys && column >= 0 && column < (double)block->columns ? (double)block->keys[(int64_t)column]
                                                                         : column;
}

/* score.c: scores of a tile. */
int skl_tile_columns(const struct skl_block *block, int64_t tile);
/* Its columns from entry d0 of dim on: for scores, and for da. */
struct skl_columns skl_fetch_columns(const struct skl_run *run, const struct skl_block *block, int side, int64_t member,
                                     int64_t tile, int64_t d0, int k, void *pack);
struct skl_columns skl_fetch_columns_back(const struct skl_run *run, const struct skl_block *block, int side,
                                          int64_t member, int64_t tile, int64_t d0, int k, int clean, void *pack);
struct skl_soon skl_next_columns(const struct skl_run *run, const struct skl_block *block, int side, int64_t member,
                                 int64_t tile, int64_t d0, int part, int parts);
/* The products of one panel, of the rows in one of its packs. */
void skl_score_panel(const struct skl_run *run, const struct skl_block *block, int side, int64_t pack, int panel,
                     int64_t tile, int64_t d0, int k, struct skl_columns columns, struct skl_soon soon, float *y);
/* Panels from .. up to the one that is returned see the same columns *j0 .. *j1 - 1 of a tile, all their rows all of
 * them, at least a strip; 'from' itself if it does not. */
int skl_alike_panels(const struct skl_run *run, const struct skl_block *block, int64_t tile, int from, int to, int *j0,
                     int *j1);
/* What sweep_kl and sweep_dz take of both sides, from a panel on. */
void skl_factors_of_panel(const struct skl_run *run, const struct skl_block *block, int panel, int64_t tile,
                          const struct skl_columns columns[2], struct skl_factor factor[2]);
/* What is done with n columns of a panel's finished scores, from column j of the tile on, while they are still in the
 * cache when dim allows: slice by slice. */
typedef void skl_panel_user(const struct skl_worker *w, struct skl_block *block, int64_t chunk, int panel, int64_t tile,
                            int j, float *const y[2], int n);
/* 'use' may be NULL; 'chunk' is handed to it. */
void skl_score_tile(const struct skl_worker *w, struct skl_block *block, int64_t chunk, int64_t tile, float *const y[2],
                    int64_t panel_stride, skl_panel_user *use);

/* mixture.c: sides of several heads. Their shares or weights for the rows of a panel; scores of a tile for all panels;
 * the products of one of them, which are added to 'sum' unless that is NULL ('columns' are kept from member to member,
 * at first NULL); and the sweeps that find the LSEs of a mixture's heads before a call, where these are not given. */
void skl_set_heads(const struct skl_run *run, struct skl_block *block, int side, int panel);
/* The row's LSE of a member as unit m + log l, m being a score. Without mass m is +inf: every 2^{x - m} is 0. */
void skl_lse_of_head(const struct skl_run *run, int side, int64_t member, int64_t row, double *m, double *l);
void skl_score_heads(const struct skl_worker *w, const struct skl_block *block, int side, int64_t tile, float *y,
                     int64_t panel_stride);
void skl_score_head(const struct skl_worker *w, const struct skl_block *block, int side, int64_t member, int64_t tile,
                    float *x, int64_t x_stride, float *sum, int64_t sum_stride, struct skl_columns *columns);
/* Base 2 logits of a mixture's heads from scores: beyond f32 any unit is as good as the largest. */
static inline float skl_head_unit(const struct skl_work_side *s)
{
    double unit = SKL_LOG2E * s->head_unit;
    return unit < (double)FLT_MAX ? (float)unit : FLT_MAX;
}
/* The plan of a call and the bytes that it takes in all, LSEs and what finds them included. */
enum skl_status skl_plan_call(enum skl_call call, const struct skl_work *w, struct skl_plan *plan, size_t *bytes);
/* Runs what run->plan says, after the heads' LSEs. */
enum skl_status skl_run_call(struct skl_run *run);

/* kept_heads.c: plan.keeps_heads. Where a head's tile is, panel after panel. The heads of a mixture over a chunk's
 * columns: their exponentials; of them those of one head and panel, from the scores x to 'kept'. When all chunks are
 * done, the denominators of a panel's rows; and then a tile of t, for all panels. */
float *skl_kept_head(const struct skl_run *run, const struct skl_block *block, int side, int64_t tile, int64_t member);
void skl_keep_heads(const struct skl_worker *w, const struct skl_block *block, int64_t chunk);
void skl_keep_head(const struct skl_run *run, const struct skl_block *block, int side, int64_t member, int panel,
                   int64_t tile, float *x, float *kept);
void skl_sum_heads(const struct skl_run *run, struct skl_block *block, int panel);
void skl_mix_kept(const struct skl_run *run, const struct skl_block *block, int side, int64_t tile, float *t,
                  int64_t panel_stride);

/* pool.c: scores of a tile of blocks of keys, for all panels. */
void skl_score_pooled(const struct skl_worker *w, const struct skl_block *block, int side, int64_t tile, float *y,
                      int64_t panel_stride);

/* index.c: an indexer's weights for the rows of a panel; the gradients of its heads from dz of a tile; and their
 * weights'. */
void skl_set_weights(const struct skl_run *run, struct skl_block *block, int side, int panel);
void skl_grad_index(const struct skl_worker *w, struct skl_block *block, int64_t chunk, int64_t tile, int side,
                    const float *dz, int add);
void skl_write_grad_weights(const struct skl_worker *w, struct skl_block *block, int side, int panel);

/* value.c: columns into states, in the first or the second sweep; a state of no columns, with its details. */
void skl_sweep(const struct skl_worker *w, struct skl_block *block, int64_t chunk, int second);
void skl_empty_state(const struct skl_run *run, struct skl_block *block, int64_t chunk, int panel);

/* sink.c: the sink as one more column of every row. Its scores for the rows of a panel, when the rows are packed;
 * what it adds to the states after the first sweep and after the second; its probability; its dz; and the sums of
 * these over the rows of a wave, then on their way out. */
void skl_set_sinks(const struct skl_run *run, struct skl_block *block, int panel);
void skl_push_sink(const struct skl_run *run, struct skl_block *block, int panel);
void skl_sum_sink(const struct skl_run *run, struct skl_block *block, int panel);
void skl_finish_sink(const struct skl_run *run, const struct skl_block *block, int panel, int i,
                     struct skl_row_result *r);
void skl_grad_sink(const struct skl_run *run, struct skl_block *block, int panel);
void skl_add_sinks(const struct skl_run *run, const struct skl_block *block);
void skl_write_sinks(const struct skl_run *run);

/* details.c: what rows tell beyond their divergence, and labels. Sums of a panel's n columns from 'first' on; then a
 * row's results, after the first and after the second sweep. */
void skl_empty_details(const struct skl_run *run, struct skl_block *block, int64_t chunk, int panel);
void skl_push_details(const struct skl_run *run, struct skl_block *block, int64_t chunk, int panel, int64_t first,
                      float *const y[2], int n);
void skl_sum_others(const struct skl_run *run, struct skl_block *block, int64_t chunk, int panel, float *const y[2],
                    int n);
void skl_count_ranks(const struct skl_run *run, struct skl_block *block, int64_t chunk, int panel, float *const y[2],
                     int n);
void skl_finish_details(const struct skl_run *run, const struct skl_block *block, int panel, int i,
                        struct skl_row_result *r);
/* On a shard: what labels need of all columns, as states of their own. */
void skl_write_label_states(const struct skl_run *run, const struct skl_block *block, int panel);
void skl_finish_others(const struct skl_run *run, const struct skl_block *block, int panel, int i,
                       struct skl_row_result *r);
/* kl_weight divergence + weight ce. */
double skl_row_loss(const struct skl_work *w, const struct skl_row_result *r);
/* What labels add to the student's dz: its factors for a row of upstream gradient g; what scores have to be read for
 * before they become dz; and the sum. */
void skl_set_label_factors(const struct skl_run *run, struct skl_block *block, int panel, int i, double g,
                           const struct skl_row_result *r);
void skl_temper(const struct skl_worker *w, const struct skl_block *block, int panel, const float *x, int n);
void skl_add_labels(const struct skl_worker *w, const struct skl_block *block, int panel, int64_t first, int n,
                    float *dz);

/* exchange.c: which rows' states meet those of the other shards next, and the meeting. */
int64_t skl_share_rows(struct skl_run *run);
void skl_exchange_states(struct skl_run *run, int64_t states_of_row);

/* listed.c: a listed teacher. A panel's lists into entries. Of the n columns from 'first' on that rows of a panel list:
 * their scores into the entries, with -inf in their place, and back; their dz, from the entries. A row's results from
 * those of the columns that are not listed, and its factors. */
void skl_pack_lists(const struct skl_run *run, struct skl_block *block, int panel);
void skl_take_listed(const struct skl_run *run, struct skl_block *block, int panel, int64_t first, int n, float *x);
void skl_put_listed(const struct skl_run *run, const struct skl_block *block, int panel, int64_t first, int n,
                    float *x);
void skl_put_listed_dz(const struct skl_run *run, const struct skl_block *block, int panel, int64_t first, int n,
                       float *dz);
void skl_finish_listed(const struct skl_run *run, const struct skl_block *block, int panel, int i,
                       struct skl_row_result *r);
void skl_set_listed_factors(const struct skl_run *run, struct skl_block *block, int panel, int i, double g,
                            const struct skl_row_result *r);
/* The row's entries; the first of them at 'column' or behind it. */
struct skl_entry *skl_entries_of(const struct skl_run *run, const struct skl_block *block, int row);
struct skl_entry *skl_entry_at(const struct skl_run *run, const struct skl_block *block, int row, int64_t column);

/* topk.c: lists of the largest scores. A chunk begins, its n columns from 'first' on that may be listed leave a panel's
 * tile, and it ends. Then a row's list and results, from the sums over what is not listed; and a row without work. */
void skl_begin_picks(const struct skl_worker *w, const struct skl_block *block);
void skl_pick_columns(const struct skl_worker *w, struct skl_block *block, int64_t chunk, int panel, int64_t first,
                      int n, float *x);
void skl_end_picks(const struct skl_worker *w, struct skl_block *block, int64_t chunk);
void skl_finish_picks(const struct skl_run *run, struct skl_block *block, int panel, int i, struct skl_row_result *r);
void skl_clear_list(const struct skl_work *w, const int64_t at[3]);

/* gather.c: dot products with listed columns. The scores of a panel's entries; then, where they are all there is,
 * results and da of a panel, and db of a chunk's columns. */
void skl_gather_scores(const struct skl_worker *w, struct skl_block *block, int panel);
void skl_gather_panel(const struct skl_worker *w, struct skl_block *block, int panel);
void skl_scatter_chunk(const struct skl_worker *w, struct skl_block *block, int64_t chunk);

/* results.c: states into results and the factors of dz, after the first and after the second sweep. */
void skl_finish_panel(const struct skl_worker *w, struct skl_block *block, int panel);
void skl_finish_second(const struct skl_worker *w, struct skl_block *block, int panel);
/* Listed columns alone: results from the entries' scores. */
void skl_finish_gathered(const struct skl_worker *w, struct skl_block *block, int panel);
/* The row's upstream gradient in the reduced loss. */
double skl_row_upstream(const struct skl_work *w, const struct skl_block *block, int row);
void skl_load_saved(const struct skl_run *run, struct skl_block *block, int panel);
void skl_write_states(const struct skl_run *run, struct skl_block *block, int panel);
/* What rows and columns without work get, and sums kept in f32 on their way out. */
void skl_clear_outputs(const struct skl_run *run, int64_t part, int64_t parts);
void skl_flush_columns(const struct skl_run *run, struct skl_block *block, int64_t chunk);

/* grad.c: dz and its two products. */
void skl_grad_columns(const struct skl_worker *w, struct skl_block *block, int64_t slab, int64_t first, int64_t last);
void skl_grad_rows(const struct skl_worker *w, struct skl_block *block, int64_t slab, int64_t last, int side,
                   int64_t d0, int d, int from, int to);
void skl_grad_chunk(const struct skl_worker *w, struct skl_block *block, int64_t chunk);
/* The same in two phases, for more threads than there are chunks: dz and da of some panels; then steps of dim of a
 * tile's db. */
void skl_grad_chunk_rows(const struct skl_worker *w, struct skl_block *block, int64_t chunk);
void skl_grad_tile_columns(const struct skl_worker *w, struct skl_block *block, int64_t tile, int64_t step);
/* Where the columns' gradient is summed in f32: in the output itself, or in the block when that has 16 bits. */
float *skl_sum_of_columns(const struct skl_work *w, const struct skl_block *block, int side, int64_t column,
                          int64_t *stride);

/* The two products of dz of a whole tile, for the rows in one of the block's packs. 'next' has what will be wanted
 * after it. */
void skl_add_to_columns(const struct skl_worker *w, const struct skl_block *block, int64_t tile, int side, int64_t pack,
                        const float *dz, const unsigned char *live, const float *next);
void skl_grad_rows_tile(const struct skl_worker *w, struct skl_block *block, int64_t tile, int side, int64_t d0, int d,
                        int from, int to, const float *dz, const float *next, const unsigned char *live, int add,
                        float *da); /* of panels from .. to - 1 */

/* grad_sparse.c: the same two products over the few entries that count. */
void skl_list_entries(const struct skl_worker *w, const struct skl_block *block, int side, const float *dz);
void skl_add_listed_to_columns(const struct skl_worker *w, const struct skl_block *block, int64_t tile, int side);
void skl_add_listed_to_rows(const struct skl_worker *w, struct skl_block *block, int64_t tile, int side, int add,
                            float *da);

#endif
