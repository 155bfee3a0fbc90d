/* SPDX-License-Identifier: Apache-2.0
 * The executor: carries a plan out, all threads together, knowing nothing about which divergence it is. */
#ifndef SKL_CPU_RUN_H
#define SKL_CPU_RUN_H

#include "../float_mode.h"
#include "plan.h"
#include "team.h"

/* One call under way, shared by the threads. */
struct skl_run {
    const struct skl_work *work;
    struct skl_float_mode *caller_mode; /* the callback gets it, and may change it */
    struct skl_plan plan;
    struct skl_state *partial; /* where skl_partial's states go; NULL in other calls */
    int second_sweep_only;     /* skl_partial of JSD with the LSEs given */
    struct skl_lane *lanes;
    char *scratch; /* [threads][thread_bytes] */
    struct skl_team team;
    float unit[2]; /* y = unit x: from scores to logits in base 2 */

    int64_t next_group, next_row; /* what has not been given to a lane yet */
    int more;                     /* are there rows in this wave */
    int64_t rows_done;            /* rows with work of the waves before */
    double value;

    atomic_int cancelled;
};

/* What a thread carries along. */
struct skl_worker {
    struct skl_run *run;
    struct skl_scratch scratch;
    int rank;
    int64_t phase;          /* counts the phases, the same in every thread */
    int64_t phases_in_wave; /* for the progress: a wave's phases count alike */
    int64_t slab;           /* gradient: first of the kept tiles */
    int64_t runs;           /* gradient: tasks that a slab's tiles make */
};

enum skl_status skl_run(struct skl_run *run);

/* Without rows, or without columns for them to see, a call only writes what rows and columns without work get: no plan, no
 * memory, no threads. */
static inline int skl_nothing_to_do(const struct skl_work *w)
{
    return w->rows == 0 || w->columns == 0;
}
enum skl_status skl_run_nothing(enum skl_call call, struct skl_run *run);

/* By how much y_P - y_Q, each relative to its side's maximum, grows when the maxima move from 'old' to 'now'. */
static inline double skl_shift(const struct skl_run *run, float old_p, float now_p, float old_q, float now_q)
{
    return (double)run->unit[0] * ((double)old_p - (double)now_p) -
           (double)run->unit[1] * ((double)old_q - (double)now_q);
}

/* lane.c: rows into lanes and back. */
int skl_next_wave(struct skl_run *run);
void skl_pack_panel(const struct skl_worker *w, struct skl_lane *lane, int panel);
void skl_write_grad_rows(const struct skl_worker *w, struct skl_lane *lane, int panel);
void skl_tile_range(const struct skl_run *run, const struct skl_lane *lane, int panel, int64_t tile, int *j0, int *j1);

/* For each row of the panel the columns lo..hi-1 it sees, counted from the tile's j0; 0 if that is all of j0..j1-1 for
 * all. */
int skl_panel_mask(const struct skl_run *run, const struct skl_lane *lane, int panel, int64_t tile, int *lo, int *hi);

/* sweep.c: columns into states. */
/* A tile of columns in f32, entries d0..d0+k-1, column j at at[j ld]. */
struct skl_columns {
    const float *at;
    int64_t ld;
};
enum skl_fetch { SKL_AS_IT_IS, SKL_COPY }; /* may it be the operand itself? Only 'packed' may be written to */
struct skl_columns skl_fetch_columns(const struct skl_work *w, const struct skl_lane *lane, int side, int64_t tile,
                                     int64_t d0, int k, enum skl_fetch how, float *packed);
void skl_score_tile(const struct skl_worker *w, struct skl_lane *lane, int64_t tile, float *const y[2],
                    int64_t panel_stride);
/* The tiles of a chunk that some row of the lane sees; none if *first >= *last. */
void skl_chunk_range(const struct skl_run *run, const struct skl_lane *lane, int64_t chunk, int64_t *first,
                     int64_t *last);
void skl_sweep(const struct skl_worker *w, struct skl_lane *lane, int64_t chunk);
void skl_sweep_jsd(const struct skl_worker *w, struct skl_lane *lane, int64_t chunk);

/* finish.c: states into results and the factors of dz. */
void skl_finish_panel(const struct skl_run *run, struct skl_lane *lane, int panel);
void skl_finish_panel_jsd(const struct skl_run *run, struct skl_lane *lane, int panel);
void skl_load_saved(const struct skl_run *run, struct skl_lane *lane, int panel);
void skl_write_partial(const struct skl_run *run, struct skl_lane *lane, int panel);

/* grad.c: dz and its two products. */
void skl_grad_columns(const struct skl_worker *w, struct skl_lane *lane, int64_t slab, int64_t first, int64_t last);
void skl_grad_rows(const struct skl_worker *w, struct skl_lane *lane, int64_t slab, int64_t last, int side, int64_t d0,
                   int d);
void skl_grad_chunk(const struct skl_worker *w, struct skl_lane *lane, int64_t chunk);

/* Where the columns' gradient is summed in f32: in the output itself, or in the lane when that has 16 bits. */
float *skl_sum_of_columns(const struct skl_work *w, const struct skl_lane *lane, int side, int64_t column,
                          int64_t *stride);

/* listed.c: the same two products over the few entries that count. */
void skl_list_entries(const struct skl_worker *w, const struct skl_lane *lane, int side, const float *dz);
void skl_add_listed_to_columns(const struct skl_worker *w, const struct skl_lane *lane, int64_t tile, int side);
void skl_add_listed_to_rows(const struct skl_worker *w, struct skl_lane *lane, int64_t tile, int side, int add,
                            float *da);

/* outputs.c: what rows and columns without work get, and sums kept in f32 on their way out. */
void skl_clear_outputs(const struct skl_run *run, int64_t part, int64_t parts);
void skl_flush_columns(const struct skl_run *run, struct skl_lane *lane, int64_t chunk);

#endif
