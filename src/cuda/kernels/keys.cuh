/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows that see keys of their own, and scores that are made of several heads: what the kernels of key_kernels.cu share.
 *
 *     lists    the keys of a query, sorted; entry e of them is column listed[e / block] + e % block
 *     scores   by a warp, a dot product after the other; the lanes then have a key each
 */
#ifndef SKL_KEYS_CUH
#define SKL_KEYS_CUH

#include "column.cuh"
#include "listed.cuh"
#include "mixture.cuh"
#include "scores.cuh"
#include "sort.cuh"
#include "../shapes.h"

/* A row by its number, and what it sees. Numbers have 32 bits: see list_kernels.cu. */
struct key_row {
    int b, h, i;
    skl_gpu_range range;
    const int32_t *list; /* of its query; where there are none (args.listed NULL), it sees its whole range */

    __device__ __forceinline__ key_row(const skl_gpu_keys &args, uint32_t row)
    {
        const skl_gpu_problem &p = args.forward.problem;
        const uint32_t head = row / (uint32_t)p.n;
        b = head / (uint32_t)p.heads, h = head % (uint32_t)p.heads, i = row % (uint32_t)p.n;
        range = args.range[row];
        list = args.listed + ((int64_t)b * p.n + i) * (args.room + 1);
    }
};

/* Places of the list that hold a column of lo .. hi-1. */
SKL_DEVICE int first_block(const skl_gpu_keys &args, const key_row &row, int lo)
{
    return first_place(row.list, args.room, lo - args.block + 1);
}

/* Entries first .. last-1 are those that the row may see. */
SKL_DEVICE void entries_of(const skl_gpu_keys &args, const key_row &row, int &first, int &last)
{
    first = row.range.lo, last = row.range.hi;
    if (!args.listed)
        return;
    if (first >= last) {
        first = last = 0;
        return;
    }
    first = first_block(args, row, row.range.lo) * args.block;
    last = first_place(row.list, args.room, row.range.hi) * args.block;
}

/* The column of an entry; -1: it is not seen, or was listed before. */
SKL_DEVICE int column_at(const skl_gpu_keys &args, const key_row &row, int entry)
{
    if (!args.listed)
        return entry;
    const uint32_t place = (uint32_t)entry / (uint32_t)args.block, in = (uint32_t)entry % (uint32_t)args.block;
    const int at = row.list[place], column = at + (int)in;
    const bool again = place > 0 && row.list[place - 1] == at;
    return again || column < row.range.lo || column >= row.range.hi ? -1 : column;
}

SKL_DEVICE bool sees(const skl_gpu_keys &args, const key_row &row, int column)
{
    if (column < row.range.lo || column >= row.range.hi)
        return false;
    return !args.listed || row.list[first_block(args, row, column)] <= column;
}

/* Some column of lo .. hi-1? */
SKL_DEVICE bool sees_some(const skl_gpu_keys &args, const key_row &row, int lo, int hi)
{
    lo = max(lo, row.range.lo), hi = min(hi, row.range.hi);
    return lo < hi && (!args.listed || row.list[first_block(args, row, lo)] < hi);
}

/* -------------------------------------------------------------------------------------------------- scores --- */

SKL_DEVICE float activation(const skl_gpu_scorer &s, float x)
{
    return !s.identity && x < 0 ? 0 : x; /* NaN stays */
}

SKL_DEVICE float slope_of_activation(const skl_gpu_scorer &s, float x)
{
    return s.identity || x > 0 ? 1 : 0;
}

SKL_DEVICE float head_weight(const skl_gpu_scorer &s, const key_row &row, int k)
{
    return element(s.w.data, row.b * s.w.stride[0] + row.i * s.w.stride[2] + k * s.w_step, s.w.dtype);
}

/* The head of a that is the k-th of a row's. */
SKL_DEVICE int head_of(const skl_gpu_keys &args, int of, const key_row &row, int k)
{
    const skl_gpu_scorer &s = args.scorer[of];
    return s.kind == SKL_SCORE_MIXTURE ? member_head(args.forward.problem.mixture, row.h, k) : row.h * s.members + k;
}

/* The score of a row and a column, by a warp. */
SKL_DEVICE float key_score(const skl_gpu_keys &args, int of, uint32_t number, const key_row &row, int column, int lane)
{
    const skl_gpu_problem &p = args.forward.problem;
    const skl_gpu_scorer &s = args.scorer[of];
    const int members = s.kind == SKL_SCORE_INNER ? 1 : s.members; /* a flat side has none */
    float sum = 0;
    for (int k = 0; k < members; k++) {
        const float x = score_at(p.side[of], row.b, head_of(args, of, row, k), row.i, column, lane);
        if (s.kind == SKL_SCORE_INNER)
            return x;
        sum += s.kind == SKL_SCORE_INDEX ? head_weight(s, row, k) * activation(s, x)
                                         : member_part(p.mixture, p.mixture.member[k * p.rows + number], x);
    }
    return s.kind == SKL_SCORE_INDEX ? s.sign * sum : mixed_score(sum);
}

/* of(row, column) of each lane's own, by the warp, one after the other; -inf where column < 0. */
template <class OF> SKL_DEVICE float by_warp(uint32_t number, int column, OF of)
{
    const int lane = threadIdx.x % 32;
    float mine = -INFINITY;
    __syncwarp();
    for (uint32_t left = __ballot_sync(~0u, column >= 0); left; left &= left - 1) {
        const int whose = __ffs((int)left) - 1;
        const float x = of(__shfl_sync(~0u, number, whose), __shfl_sync(~0u, column, whose), lane);
        mine = lane == whose ? x : mine;
    }
    __syncwarp();
    return mine;
}

/* Both sides' scores of the lanes' own rows and columns. */
SKL_DEVICE void key_scores(const skl_gpu_keys &args, uint32_t number, int column, float (&x)[2])
{
#pragma unroll 1
    for (int side = 0; side < 2; side++) { /* once in the code: there is much of it */
        const float of = by_warp(number, column, [&](uint32_t r, int j, int lane) {
            return key_score(args, side, r, key_row(args, r), j, lane);
        });
        x[0] = side ? x[0] : of, x[1] = of;
    }
}

/* <a_k, b> of the k-th head of side 'of', for its gradient or its LSE. */
SKL_DEVICE float head_scores(const skl_gpu_keys &args, int of, int k, uint32_t number, int column)
{
    return by_warp(number, column, [&](uint32_t r, int j, int lane) {
        const key_row row(args, r);
        return score_at(args.forward.problem.side[of], row.b, head_of(args, of, row, k), row.i, j, lane);
    });
}

/* f(column) for every key of a row, each by some lane of some warp, with all lanes of a warp at once; column < 0: this
 * lane has none. */
template <class F> SKL_DEVICE void each_column(const skl_gpu_keys &args, uint32_t number, F f)
{
    const key_row row(args, number);
    int first, last;
    entries_of(args, row, first, last);
    for (int warp = first + (int)(threadIdx.x & ~31); warp < last; warp += SKL_KEY_THREADS) {
        const int entry = warp + (int)threadIdx.x % 32;
        f(entry < last ? column_at(args, row, entry) : -1);
    }
    __syncwarp();
}

/* f(x, column) for every key of a row, each by some lane of some warp. */
template <class F> SKL_DEVICE void each_key(const skl_gpu_keys &args, uint32_t number, F f)
{
    each_column(args, number, [&](int column) {
        float x[2];
        key_scores(args, number, column, x);
        if (column >= 0)
            f(x, column);
    });
}

#endif
