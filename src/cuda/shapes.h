/* SPDX-License-Identifier: Apache-2.0
 *
 * Tile shapes, threads and dynamic shared memory of the kernels: the kernels are compiled with them and the host side
 * launches with them. 'dim' is 64, 128 or 256, the width that a kernel is compiled for. The reasons are with the
 * kernels.
 */
#ifndef SKL_CUDA_SHAPES_H
#define SKL_CUDA_SHAPES_H

/* forward_* */
#define SKL_FORWARD_ROWS(dim) ((dim) == 128 ? 128 : 64)
#define SKL_FORWARD_COLUMNS(dim) ((dim) <= 128 ? 64 : 32)
#define SKL_FORWARD_THREADS 128
#define SKL_FORWARD_TILES(dim) \
    (8 * (dim)*SKL_FORWARD_COLUMNS(dim)) /* two stages of both B; A before them is not larger */
#define SKL_FORWARD_SHARED(dim) (SKL_FORWARD_TILES(dim) + 8 * SKL_FORWARD_ROWS(dim))

/* stream_* */
#define SKL_STREAM_ROWS 128
#define SKL_STREAM_COLUMNS 128
#define SKL_STREAM_THREADS 256
#define SKL_STREAM_STATES 2 /* that a split of the columns leaves of each row */
#define SKL_STREAM_SHARED (3 * (SKL_STREAM_ROWS + SKL_STREAM_COLUMNS) * 128 + 8 * SKL_STREAM_ROWS)

/* mixed_*: two blocks on a multiprocessor */
#define SKL_MIXED_ROWS 128
#define SKL_MIXED_COLUMNS 64
#define SKL_MIXED_THREADS 128
#define SKL_MIXED_STATES 1
#define SKL_MIXED_SHARED (3 * (SKL_MIXED_ROWS + SKL_MIXED_COLUMNS) * 128 + 8 * SKL_MIXED_ROWS)

/* index_*: tiles as those of mixed_*; m and l of each thread's 4 rows, or 5 numbers of a row; tiles of columns that a
 * block of index_dz goes through */
#define SKL_INDEX_KL_SHARED (SKL_MIXED_SHARED + 4 * 16 * SKL_MIXED_THREADS)
#define SKL_INDEX_DZ_SHARED (SKL_MIXED_SHARED + 20 * SKL_MIXED_ROWS)
#define SKL_INDEX_TILES 8

/* rows_*, columns_*: OWN vectors of a block, STREAM of the others at a time; sides whose own stay in registers */
#define SKL_GRAD_OWN(dim) ((dim) <= 64 ? 128 : 64)
#define SKL_GRAD_STREAM(dim) ((dim) <= 128 ? 64 : 16)
#define SKL_GRAD_KEPT(dim) ((dim) <= 128 ? 2 : 1)
#define SKL_GRAD_THREADS 128
#define SKL_GRAD_SHARED(dim, by_rows)                                                                  \
    ((2 - SKL_GRAD_KEPT(dim)) * 2 * SKL_GRAD_OWN(dim) * (dim) + 2 * 4 * SKL_GRAD_STREAM(dim) * (dim) + \
     ((by_rows) ? 8 * SKL_GRAD_OWN(dim) : 2 * 32 * SKL_GRAD_STREAM(dim)))

/* fused_*: the tile of B once more and dx beside the stages */
#define SKL_FUSED_OWN(dim) ((dim) <= 64 ? 128 : 64)
#define SKL_FUSED_STREAM(dim) ((dim) <= 64 ? 64 : 32)
#define SKL_FUSED_THREADS 128
#define SKL_FUSED_SHARED(dim)                                                                           \
    (2 * SKL_FUSED_OWN(dim) * ((dim) + SKL_FUSED_STREAM(dim)) + 2 * 4 * SKL_FUSED_STREAM(dim) * (dim) + \
     2 * 32 * SKL_FUSED_STREAM(dim))

/* plain_*: static shared memory */
#define SKL_PLAIN_TILE 64
#define SKL_PLAIN_THREADS 256

/* list_db: columns, and entries of them, of a block */
#define SKL_LIST_COLUMNS 16
#define SKL_LIST_ENTRIES 256

/* keys_*: states of a row, one of each warp; columns of a warp and entries of a vector that it sums up */
#define SKL_KEY_THREADS 128
#define SKL_KEY_STATES (SKL_KEY_THREADS / 32)
#define SKL_KEY_COLUMNS 8
#define SKL_KEY_ENTRIES 256

/* pick_scores, sort_picks: a row's columns that are looked at together */
#define SKL_PICK_THREADS 128

/* Every split of the columns and every slab is a multiple of this: of all tiles above. */
#define SKL_COLUMN_UNIT 128
#define SKL_ROW_UNIT 128

/* Rows of a tile_range. */
#define SKL_RANGE_ROWS 64

#endif
