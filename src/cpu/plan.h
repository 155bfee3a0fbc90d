/* SPDX-License-Identifier: Apache-2.0
 *
 * How a call will be run, and the memory it will take. No sum depends on the number of threads: only how many blocks
 * are at once where each has its own order (by_tile), how the same sums are shared among tasks (threads, da_parts,
 * da_row_parts, fine), and whether scores made beside their exponentials are kept or made again (recompute, kept_tiles).
 *
 *     block    up to block_rows rows that see the same b; 'blocks' of them are worked on at once
 *     panel    nr rows of a block, side by side in the SIMD lanes
 *     tile     bk columns;  chunk = the tiles of one task
 */
#ifndef SKL_CPU_PLAN_H
#define SKL_CPU_PLAN_H

#include "../work.h"
#include "exact_sum.h"
#include "kernels.h"

#include <stdatomic.h>

enum {
    SKL_BLOCK = 512,         /* most rows of a block */
    SKL_BLOCKS = 8,          /* most blocks at once ... */
    SKL_TASKS = 128,         /* ... and with their chunks, enough tasks for the threads of a large machine */
    SKL_BLOCKS_BY_TILE = 32, /* where no sum depends on their number: most blocks for many threads */
    SKL_TASKS_LONG = 384,    /* where dim is long: as many for each of 64, 96, 128 or 192 threads */
    SKL_NEAR_TILES = 32,     /* so many tiles of scores that a block keeps are in a core's part of L3 */
    SKL_CHUNKS_BY_TILE = 16, /* chunks of a block, when each has its own sum of da */
    SKL_LISTED = 4           /* lists of entries are faster than dense products while at most one entry in 4 counts */
};

/* Divergences that a row can be asked beside its own. */
enum skl_other { SKL_OTHER_REVERSE, SKL_OTHER_JSD, SKL_OTHER_TV, SKL_OTHERS };

/* What labels add to dz of the student, per row of a panel; docs/math.md, section Labels. */
struct skl_panel_labels {
    float m[SKL_NR_MAX];    /* what e' refers to */
    float own[SKL_NR_MAX];  /* times e' = 2^{unit' (x - m)}, where the divergence has another temperature */
    float hot[SKL_NR_MAX];  /* subtracted in the label's column */
    float flat[SKL_NR_MAX]; /* subtracted in every column: smoothing */
};

/* A column that a listed teacher names. The entries of a row are in the order of their columns, each column once. */
struct skl_entry {
    int64_t id;
    double logp; /* log of the teacher's mass there */
    float x, dz; /* the student's score, and its part of dz */
};

/* A row's list: its first n entries. */
struct skl_list {
    int64_t n;
    double rest; /* log of the teacher's mass off the list, where the tail asks for it; -inf: none */
    double mass; /* of entries and rest together: 1, unless what was given has another sum */
};

struct skl_plan {
    enum skl_call call;
    const struct skl_kernels *kernels;
    const struct skl_products *products[2]; /* of P and Q */
    int bk;                                 /* columns in a tile, at most SKL_BK */
    int strip;                              /* columns that the products take at once: a tile is whole strips */
    int slice; /* columns of a panel's tile that are scored and used at a time: SKL_SLICE / nr, or SKL_BK */
    int block_rows, panels, blocks;
    int64_t rows, columns;   /* of the largest segment */
    int64_t tiles;           /* of these columns; with lists of keys, of those that a block may list */
    int64_t queries, listed; /* lists of keys: most queries of a block, and keys that they list; 0: no lists */
    int in_place;            /* ... keys are used where they lie; 'listed' is of a list then, */
    int64_t lists;           /* ... and this is how many lists a block has at most */
    int64_t groups;          /* of segments; a group's are worked on one after the other */
    int alone;               /* a task is a group, which one thread works through from packing to writing */
    int clears;              /* ... and whose results and gradients it clears itself */
    int64_t wave_tiles;      /* a wave takes no further block once its blocks have so many tiles */
    int64_t tasks, chunks;   /* tasks of a phase aimed at, by tile of a block, else of all; most chunks of a block */
    int64_t states;          /* that a row has at most: one of each chunk, and behind these that of the sink */
    int details[2];          /* bits of enum skl_want, of P and Q */
    int puts_rows;           /* some result of each row is asked for */
    int others;              /* bits of enum skl_other: divergences of which a second sweep sums the value alone */
    int gather;              /* listed columns alone: dot products with them, and no sweep */
    int64_t picks;           /* skl_topk: columns of a list, no more than there are; 0: no lists */
    int64_t chunk_picks;     /* ... that a row of a chunk keeps: some more, which it need not look for */
    int64_t pick_room;       /* ... that it may hold before it drops others: those of a tile, too */
    int64_t list_room;       /* ... that all chunks of a row keep */
    float slack;             /* how far above its reference a score may lie, in base 2 */
    int second_sweep;        /* a second sweep is wanted, for the divergence or for others */
    int apart;               /* ... and each of its two sums by itself, not only what they close into */
    enum skl_keep keep;      /* what the sweep leaves in the kept tiles */
    int64_t kept_tiles;      /* tiles of logits a block holds: all it sees; a slab, filled again and again; or none */
    int keeps_seen;          /* a window bounds what a block sees: kept tiles are counted from the first that it does */
    int recompute;           /* not all are held: logits are computed anew for the gradient */
    int keeps_heads; /* bits of sides of several heads: a mixture's exponentials, an index's products are kept */
    int whole;       /* both operands' dim fits in one column tile */
    int one_panel;   /* scores are made and used a panel at a time; otherwise for all panels of a tile */
    int beside;      /* a KL's scores are made and pushed at once, by products->sweep_kl, where nothing is masked */
    int dz_beside;   /* ... and its dz, by products->sweep_dz, where the logits are recomputed by tile */
    int by_tile;     /* whole, with gradients: both products of dz follow at once, while the tile is in the cache */
    int own_columns; /* a gradient of b is wanted: rows that share b must not be worked on at once */
    int64_t group;   /* heads (attention) that may share a gradient of b */
    size_t block_bytes, thread_bytes, states_bytes; /* states: of a shard's block, on their way */
    size_t sink_bytes;                              /* sums of the sinks' gradients, of each segment */
    size_t bytes;                   /* in all: the blocks, their descriptions, and private buffers of ... */
    int threads;                    /* ... as many threads as were asked for and fit the limit */
    int64_t da_parts, da_row_parts; /* by slabs: parts of dim and of the rows that tasks of da are, for these threads */
    int fine; /* so many parts of the panels are tasks of a chunk, and db is a phase of its own; 0: a chunk is one task */
};

/* Whose gradient of b is summed: columns column .. column + columns - 1 of one matrix. columns 0: nobody's. */
struct skl_owner {
    int64_t batch, head, column, columns;
};

/* The buffers of one block. Columns, and tiles of them, are counted from the first one of the block's segment, or where
 * rows list their keys among those that the block's rows list; where keys stay in place, a tile is bk lines of keys. */
struct skl_block {
    char *panel[2];                /* [panels][members] packs of rows for the logits */
    struct skl_panel_head *mix[2]; /* [panels][members] of a mixture */
    float *of_heads[2];            /* [kept_tiles][members][panels][SKL_BK][nr]: what is kept of single heads */
    struct skl_head_sums *sums;    /* [kept_tiles][members][panels]: what a mixture's refer to, and their sums */
    char *pack[2];                 /* a pack of all rows for db; NULL: no gradient of b is wanted */
    double *dw[2];                 /* [chunks][members][block_rows]: of an indexer's weights */
    float *da[2]; /* [members] of [panels][dim up to mr][nr]; by_tile: a sum for each chunk, [chunks] of these */
    float *y[2];  /* [kept_tiles][panels][SKL_BK][nr] */
    unsigned char *live[2];         /* [kept_tiles][panels][SKL_STRIPS_MAX]: which blocks of dz are not negligible */
    float *m_kept;                  /* [tiles][panels][slices][2][nr]: the maxima that kept exponentials refer to */
    float *db[2], *dbias[2];        /* [columns][dim], [columns]: f32 sums of a gradient of 16 bits, of a bias */
    struct skl_panel_state *states; /* [states][panels] */
    struct skl_panel_details *details[2];       /* [states][panels]; NULL: nothing is wanted of that side */
    struct skl_panel_state *others[SKL_OTHERS]; /* [states][panels]; NULL: not wanted */
    struct skl_panel_labels *labels;            /* [panels] */
    int64_t *label;                             /* [block_rows]: the column, -1: ignored */
    struct skl_list *lists;                     /* [block_rows]; NULL: there is no listed teacher */
    struct skl_entry *entries;                  /* [block_rows][k] */
    struct skl_pick
        *picks; /* [block_rows][list_room]: the largest of the chunks, one after the other; NULL: no lists */
    struct skl_pick *sorted;           /* [panels][picks]: a row's, while they are put in order */
    int32_t *picked;                   /* [chunks][block_rows]: how many there are */
    float *sink[2], *sink_dz[2];       /* [block_rows]: the sink's score, and its part of the gradient */
    struct skl_panel_factors *factors; /* [panels] */
    int64_t *keys;        /* [columns]: which of the segment's the block's are, in order; NULL: all, or in place */
    int32_t *listed;      /* [lists][plan.listed]: keys in place, of each list in order; NULL: none */
    int32_t *list_length; /* [lists] */
    int32_t *list_of;     /* [block_rows]: the row's list */
    int32_t *starts;      /* [tiles + 1][lists]: where each tile's keys begin in each list */
    int32_t *lines;       /* [tiles][panels]: most keys that a row of the panel has in the tile */
    uint32_t *seen; /* [panels][tiles][SKL_BK]: which rows of a panel see a column; NULL: a block's rows see the same */
    int64_t *row, *lo, *hi;        /* [block_rows]: row number and the columns it sees */
    int64_t (*at)[3];              /* [block_rows]: (b, h, i) of the row */
    int64_t *panel_lo, *panel_hi;  /* [panels]: columns that some row of a panel sees, ... */
    int64_t *whole_lo, *whole_hi;  /* [panels]: ... and that all its rows see */
    double *weight;                /* [block_rows]: of the row in the reduced loss */
    struct skl_row_result *result; /* [block_rows] */

    int n;                                    /* rows in use */
    int bk;                                   /* as in the plan */
    struct skl_segment segment;               /* whose they are */
    int64_t columns;                          /* the segment's, or those that the rows list */
    int masked;                               /* not every row lists all of them: 'seen' says which */
    int64_t chunks;                           /* that the tiles it sees are cut into */
    int64_t first_column, last_column;        /* union of the ranges */
    int64_t end;                              /* last_column up to a whole strip, or the columns' end */
    int64_t kept_from;                        /* the tile that is first of the kept ones */
    int64_t next_segment, end_segment;        /* own_columns: segments still to come of this block's group ... */
    int64_t next_row;                         /* ... and rows of the first of them that are done */
    struct skl_owner owner[2], next_owner[2]; /* whose the sums in db and dbias are, and next will be */
};

/* A thread's tasks of a phase, and the rows that it has counted. taken[0] is for even phases, taken[1] for odd ones:
 * the number of tasks taken from the front, plus 2^32 times the number taken from the back. */
struct skl_queue {
    atomic_ullong taken[2];
    struct skl_exact_sum value;
    int64_t rows;
};

/* Entries of a tile of dz in groups, those of a column or of a row: group i has start[i] .. start[i+1]-1. */
struct skl_lists {
    int *start;
    uint16_t *at; /* which row of the block, or column of the tile */
    float *x;
};

/* Buffers of one thread. */
struct skl_scratch {
    struct skl_queue *queue; /* first, so that other threads find it */
    void *columns[2];        /* a pack of a tile of columns, and behind it listed keys side by side */
    uint32_t *marks;         /* [panels][columns]: which rows of a panel list a column, a bit for each */
    uint64_t *bits;          /* [columns / 64]: which columns a list has, while it is made */
    float *db;               /* [SKL_BK][dim]: what a tile adds to the gradient of listed keys */
    float *y[2];             /* [panels or 1][SKL_BK][nr] */
    float *pool_l;           /* [panels][SKL_BK][nr]: sums of a tile of pooled blocks */
    float *of_head;          /* the same, of one head of a mixture */
    float *tempered;         /* [SKL_BK][nr]: what labels add to dz at temperature 1 */
    float *capped[2];        /* [SKL_BK][nr]: logits for the softcap's derivative */
    unsigned char *live[2];  /* [panels][SKL_STRIPS_MAX]: by_tile, in place of the block's */
    uint32_t *entries[2];    /* [panels][SKL_BK]: which entries of dz are not negligible, a bit for each row */
    struct skl_lists by_column, by_row; /* skip_below: the entries that count, if they are few */
    float *listed_da;                   /* [nr][dim]: what they add to a panel's da */
    float *line;                        /* [widest dim] */
    char *parts;                        /* [panels] of products->parts_bytes: a tile of dz */
    struct skl_pick *picks;             /* [block_rows][pick_room]: of the chunk under way */
    int32_t *picked;                    /* [block_rows]: how many there are */
    float *least;                       /* [block_rows]: no score that is not larger will be one of them */
    float *gathered[2]; /* [dim] each: a row and a column in f32, for dot products with listed columns */
};

/* Of tiles cut into chunks; those beyond the last chunk are empty. */
static inline int64_t skl_first_tile(int64_t tiles, int64_t chunks, int64_t chunk)
{
    return chunk < chunks ? tiles * chunk / chunks : tiles;
}

/* Entries of dim that da has for a row, whole strips of the micro-kernel; numbers in a block's sum of da. */
static inline int64_t skl_da_entries(const struct skl_work *w, const struct skl_plan *plan, int side)
{
    int mr = plan->kernels->mr;
    return (w->side[side].dim + mr - 1) / mr * mr;
}
static inline int64_t skl_da_size(const struct skl_work *w, const struct skl_plan *plan, int side)
{
    return plan->block_rows * skl_da_entries(w, plan, side);
}

/* How finely a block's tiles are cut: the fewer blocks a wave has, the more tasks each must make; by tile always the
 * same. */
static inline int64_t skl_chunks_of(const struct skl_plan *plan, int64_t blocks, int64_t tiles)
{
    int64_t chunks = blocks && plan->tasks > blocks && !plan->by_tile ? plan->tasks / blocks : 1;
    chunks = chunks < plan->chunks && !plan->by_tile ? chunks : plan->chunks;
    return chunks < tiles ? chunks : tiles;
}

/* Where dim is long, by slabs: tasks that the columns of a slab make, of recomputed ones one for each thread; how many
 * entries of da a task takes, whole strips of the micro-kernel, and how many such tasks a side has, for da_row_parts
 * parts of the rows. */
static inline int64_t skl_slab_tasks(const struct skl_plan *plan)
{
    enum { LEAST = 8 };
    int64_t tasks = plan->threads > LEAST ? plan->threads : LEAST;
    return !plan->recompute ? plan->chunks : tasks < plan->kept_tiles ? tasks : plan->kept_tiles;
}
static inline int skl_da_entries_of_task(const struct skl_work *w, const struct skl_plan *plan, int side)
{
    int64_t dim = w->side[side].dim, strip = plan->strip, each = (dim + plan->da_parts - 1) / plan->da_parts;
    return (int)((each + strip - 1) / strip * strip);
}
static inline int64_t skl_da_tasks(const struct skl_work *w, const struct skl_plan *plan, int side)
{
    int entries = skl_da_entries_of_task(w, plan, side);
    return (w->side[side].dim + entries - 1) / entries * plan->da_row_parts;
}

/* Steps of nr entries of dim that db of a side is made in. */
static inline int64_t skl_dim_steps(const struct skl_work *w, const struct skl_plan *plan, int side)
{
    return w->side[side].grad_b.data ? (w->side[side].dim + plan->kernels->nr - 1) / plan->kernels->nr : 0;
}

/* Bytes of the blocks that all threads share; a thread that works alone has its own. */
static inline size_t skl_shared_bytes(const struct skl_plan *plan)
{
    return plan->alone ? 0 : (size_t)plan->blocks * plan->block_bytes;
}

/* Lists of a block whose keys stay in place: one of its rows may have each. */
static inline int64_t skl_lists(const struct skl_plan *plan)
{
    return plan->lists < plan->block_rows ? plan->lists : plan->block_rows;
}

/* With lists of keys: may rows of a block see different columns? */
static inline int skl_rows_differ(const struct skl_work *w, const struct skl_plan *plan)
{
    int ranges = w->begin.data || w->end.data; /* of heads, too */
    return plan->queries && !plan->in_place && (plan->queries > 1 || ranges);
}

/* Bytes of a tile of columns that are not for gathered keys: one pack serves both sides. */
static inline int64_t skl_pack_bytes(const struct skl_plan *plan)
{
    int64_t p = plan->products[0]->column_bytes, q = plan->products[1]->column_bytes;
    return ((p > q ? p : q) + SKL_ALIGN - 1) / SKL_ALIGN * SKL_ALIGN;
}

/* SKL_UNSUPPORTED when the instruction set is not here, SKL_BAD_ARGUMENT when the caller's limit is below the least
 * that the call needs. Without rows or columns the plan takes no memory. */
enum skl_status skl_make_plan(enum skl_call call, const struct skl_work *w, struct skl_plan *plan);

/* choices.c: fills in what follows from the call, plan->call, and from the sizes of its segments. */
enum skl_status skl_choose_ways(const struct skl_work *w, struct skl_plan *plan);
int64_t skl_least_tiles_of_chunk(const struct skl_plan *plan);

/* shares.c: of 'groups' blocks at least 'from' at once, so that all threads have as much to do; at last the threads. */
int64_t skl_most_blocks(const struct skl_work *w);
int64_t skl_even_blocks(const struct skl_work *w, const struct skl_plan *plan, int64_t groups, int64_t from);
void skl_choose_threads(const struct skl_work *w, struct skl_plan *plan);
/* It may ask for other numbers of blocks: what they take; all that a plan takes; do threads clear their groups' b? */
size_t skl_count_bytes(const struct skl_work *w, struct skl_plan *plan);
size_t skl_plan_bytes(const struct skl_plan *plan);
int skl_clears_groups(const struct skl_work *w);

/* keys.c: which rows of lists of keys share a block, and in which kernels. */
void skl_choose_queries(const struct skl_work *w, struct skl_plan *plan);
void skl_cut_in_place(struct skl_plan *plan); /* keys_in_place.c: its tiles */

/* kept_heads.c: sides of which something is kept for every head, if there is room. A mixture whose denominators are not
 * given takes one sweep over its heads then, and an index makes no product twice. */
int skl_may_keep_heads(const struct skl_work *w, const struct skl_plan *plan);

/* layout.c: points a block's or thread's buffers into memory of block_bytes or thread_bytes; with NULL it only counts.
 * Returns bytes. */
size_t skl_lay_block(const struct skl_work *w, const struct skl_plan *plan, char *memory, struct skl_block *block);
size_t skl_lay_scratch(const struct skl_work *w, const struct skl_plan *plan, char *memory,
                       struct skl_scratch *scratch);

#endif
