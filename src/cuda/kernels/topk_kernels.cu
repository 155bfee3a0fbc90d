/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of the K largest scores of each row, of equal ones those of the lower columns, from slabs of scores:
 *
 *     S = the K largest x       LSE_rest over the columns off S        LSE = LSE_rest + S's
 *     logprob = unit x - LSE    tail = LSE_rest - LSE
 *
 *     pick_scores    of a slab's columns those that may be listed join the row's picks; the others go into a sum
 *     sort_picks     the K largest picks in order; ids, logprobs, tail, LSE
 *
 * A block of 128 threads a row. A pick is a key of 64 bits, which falls as the score rises and has the column in its low
 * half: no two are equal, and the K least keys are the list, ties and all. A row has room for 'room' of them. When more
 * might come than there is room for, the K least stay: their last one is found by digits of 8 bits, from the high ones
 * on, and no larger key is taken from then on. So a row of n columns takes some K log(n / K) picks behind its first
 * ones, and most of the time a column is a load and a comparison. LSE_rest is a sum of its own, never a difference.
 *
 * Picks are always in one order, and so are the sums: the same bits every time.
 *   bytes   4 of each (row, column), read once; picks: 8 each, some ten times, from L2
 *   error   each 2^(factor (x - m)) as in state.cuh, summed in double
 *
 * NaN is chosen as +inf is, and makes the sums NaN. A column of -inf is one like all others.
 */
#include "rows.cuh"
#include "sort.cuh"
#include "../shapes.h"

namespace
{

/* Falls as the score rises. -0 becomes 0, NaN +inf. */
SKL_DEVICE uint64_t key_of(float x, int column)
{
    const uint32_t bits = __float_as_uint(isnan(x) ? INFINITY : __fadd_rn(x, 0.0f));
    return (uint64_t)(bits >> 31 ? bits : bits ^ 0x7FFFFFFFu) << 32 | (uint32_t)column;
}

SKL_DEVICE float score_of(uint64_t key)
{
    const uint32_t bits = (uint32_t)(key >> 32);
    return __uint_as_float(bits >> 31 ? bits : bits ^ 0x7FFFFFFFu);
}

/* l = the sum of 2^(factor (x - m)), m the largest x. */
struct power_sum {
    float m, factor;
    double l;

    __device__ __forceinline__ void add(float x)
    {
        if (x == -INFINITY)
            return;
        if (x > m)
            l *= power_of_two(relative(m, x, factor)), m = x;
        l += power_of_two(relative(x, m, factor)); /* NaN of what is infinite */
    }
    __device__ __forceinline__ void merge(float other_m, double other_l)
    {
        const float high = fmaxf(m, other_m);
        l = (l != 0 ? l * power_of_two(relative(m, high, factor)) : 0) +
            (other_l != 0 ? other_l * power_of_two(relative(other_m, high, factor)) : 0);
        m = high;
    }
};

/* What the threads of a block tell each other. Everything they agree on goes through here, so that whoever reads the
 * machine code sees that it is the same for all lanes. */
struct shared_picks {
    int kept[2][4];        /* of each warp, in even and odd turns */
    int count[8][32];      /* of digit d at [d % 8][d / 8]: a lane has 8 of them, in a bank of its own */
    int digit, here, left; /* that of the k-th key, how many have it, the how manieth of them it is */
    float m[4];
    double l[4];
};

/* One row's picks. */
struct own_picks {
    shared_picks &s;
    uint64_t *const key;
    int n;
    uint64_t last;
    power_sum rest; /* what this thread has dropped */
    int turn;       /* 0 or 1 */

    /* Joins the lanes' keys that stay to the first n, in the order of the threads. */
    __device__ __forceinline__ void append(uint64_t mine, bool stays)
    {
        const int warp = threadIdx.x / 32;
        __syncwarp();
        const uint32_t of_warp = __ballot_sync(~0u, stays);
        if (threadIdx.x % 32 == 0)
            s.kept[turn][warp] = __popc(of_warp);
        meet();
        const int *kept = s.kept[turn];
        int at = n + __popc(of_warp & ((1u << threadIdx.x % 32) - 1));
#pragma unroll
        for (int w = 0; w < 4; w++) at += w < warp ? kept[w] : 0;
        if (stays)
            key[at] = mine;
        n += kept[0] + kept[1] + kept[2] + kept[3];
        turn ^= 1; /* whoever is late still reads these */
    }

    /* Which digit the k-th of the counted keys has: a lane has 8 of the 256. All warps find it, the first one tells. */
    __device__ __forceinline__ void find_digit(int k)
    {
        const int lane = threadIdx.x % 32;
        int sum = 0;
#pragma unroll
        for (int d = 0; d < 8; d++) sum += s.count[d][lane];
        int before = sum; /* of the lanes up to this one; then of those before it */
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int other = __shfl_up_sync(~0u, before, step);
            before += lane >= step ? other : 0;
        }
        before -= sum;
        if (threadIdx.x < 32 && before < k && k <= before + sum) {
            int d = 0;
            for (; before + s.count[d][lane] < k; d++) before += s.count[d][lane];
            s.digit = 8 * lane + d, s.here = s.count[d][lane], s.left = k - before;
        }
        meet();
    }

    /* The largest key that shares the digits of the k-th least down to where no key behind the k-th shares them. */
    __device__ __forceinline__ uint64_t find_last(int k)
    {
        uint64_t found = 0; /* digits */
        for (int shift = 56;; shift -= 8) {
            s.count[threadIdx.x / 32][threadIdx.x % 32] = s.count[threadIdx.x / 32 + 4][threadIdx.x % 32] = 0;
            meet();
            for (int i = threadIdx.x; i < n; i += 128)
                if (shift == 56 || key[i] >> (shift + 8) == found)
                    atomicAdd(&s.count[key[i] >> shift & 7][key[i] >> (shift + 3) & 31], 1);
            meet();
            find_digit(k);
            found = found << 8 | (uint64_t)s.digit, k = s.left;
            if (s.here == k || shift == 0) /* the last digit tells each key from all others */
                return ((found + 1) << shift) - 1;
        }
    }

    /* Of more than k keys the k least stay. */
    __device__ __forceinline__ void keep_least(int k)
    {
        const int all = n;
        last = find_last(k);
        n = 0;
        for (int first = 0; first < all; first += 128) {
            const int i = first + (int)threadIdx.x;
            const uint64_t mine = i < all ? key[i] : 0;
            const bool stays = i < all && mine <= last;
            if (i < all && !stays)
                rest.add(score_of(mine));
            append(mine, stays); /* never behind what it has read */
        }
    }

    /* The sum of all threads, with what the row had before; the same in all of them. */
    __device__ __forceinline__ void sum_up(float m, double l)
    {
        __syncwarp();
#pragma unroll
        for (int step = 16; step; step >>= 1)
            rest.merge(__shfl_xor_sync(~0u, rest.m, step), __shfl_xor_sync(~0u, rest.l, step));
        if (threadIdx.x % 32 == 0)
            s.m[threadIdx.x / 32] = rest.m, s.l[threadIdx.x / 32] = rest.l;
        meet();
        rest.m = m, rest.l = l;
#pragma unroll
        for (int w = 0; w < 4; w++) rest.merge(s.m[w], s.l[w]);
    }
};

/* Both kernels: the number of the block's row. */
SKL_DEVICE int64_t row_of(const skl_gpu_topk &args)
{
    return (int64_t)args.slab.head * args.slab.grad.problem.n + args.slab.first_row + blockIdx.x;
}

/* What the row had, or has at first; n for all lanes alike. */
SKL_DEVICE skl_gpu_picked before(const skl_gpu_topk &args)
{
    skl_gpu_picked had = {0, ~(uint64_t)0, -INFINITY, 0};
    if (args.slab.first_column > 0)
        had = args.picked[blockIdx.x];
    __syncwarp();
    had.n = __shfl_sync(~0u, had.n, 0);
    return had;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(128) skl_pick_scores(const __grid_constant__ skl_gpu_topk args)
{
    __shared__ shared_picks shared;
    const skl_gpu_slab &slab = args.slab;
    const skl_gpu_range r = slab.grad.problem.range[row_of(args)];
    const skl_gpu_picked had = before(args);
    own_picks own = {shared,   args.picks + (int64_t)blockIdx.x * args.room,     had.n,
                     had.last, {-INFINITY, slab.grad.problem.side[1].factor, 0}, 0};
    const float *const x = (const float *)slab.slab + blockIdx.x * slab.ld - slab.first_column;
    const int end = __shfl_sync(~0u, min(r.hi, slab.first_column + slab.columns), 0);
    for (int first = __shfl_sync(~0u, max(r.lo, slab.first_column), 0); first < end; first += 128) {
        if (own.n > args.room - SKL_PICK_THREADS)
            own.keep_least(args.most);
        const int column = first + (int)threadIdx.x;
        const float mine = column < end ? x[column] : 0;
        const uint64_t key = key_of(mine, column);
        const bool stays = column < end && key <= own.last;
        if (column < end && !stays)
            own.rest.add(mine);
        own.append(key, stays);
    }
    own.sum_up(had.m, had.l);
    if (threadIdx.x == 0)
        args.picked[blockIdx.x] = {own.rest.l, own.last, own.rest.m, own.n};
}

extern "C" __global__ void __launch_bounds__(128, 4) skl_sort_picks(const __grid_constant__ skl_gpu_topk args)
{
    __shared__ shared_picks shared;
    const skl_gpu_problem &p = args.slab.grad.problem;
    const int64_t row = row_of(args);
    const skl_gpu_range r = p.range[row];
    const skl_gpu_picked had = args.picked[blockIdx.x];
    const float factor = p.side[1].factor;
    own_picks own = {shared, args.picks + (int64_t)blockIdx.x * args.room, 0, had.last, {-INFINITY, factor, 0}, 0};
    __syncwarp();
    own.n = __shfl_sync(~0u, had.n, 0);
    if (own.n > args.most)
        own.keep_least(args.most);
    own.sum_up(had.m, had.l);
    const power_sum rest = own.rest;
    int room = 1;
    while (room < own.n) room *= 2;
    for (int i = own.n + (int)threadIdx.x; i < room; i += 128) own.key[i] = ~(uint64_t)0;
    sort(own.key, room);
    own.rest = {-INFINITY, factor, 0};
    for (int i = threadIdx.x; i < own.n; i += 128) own.rest.add(score_of(own.key[i]));
    own.sum_up(rest.m, rest.l);

    const double m = own.rest.m, log_l = log(own.rest.l),
                 nan = r.hi < 0 ? (double)NAN : 0; /* nobody knows what it sees */
    const int i = args.slab.first_row + (int)blockIdx.x, b = args.slab.head / p.heads, h = args.slab.head % p.heads;
    const bool packed = args.packed.q && r.lo < r.hi;
    const int start = packed ? first_column(args.packed, sequence_of(args.packed, i)) : 0;
    int32_t *const ids = (int32_t *)args.ids.data + b * args.ids.stride[0] + h * args.ids.stride[1] +
                         i * args.ids.stride[2];
    for (int64_t k = threadIdx.x; k < args.k; k += 128) ids[k] = k < own.n ? (int)(uint32_t)own.key[k] - start : -1;
    float *const logprobs = (float *)args.logprobs.data + b * args.logprobs.stride[0] + h * args.logprobs.stride[1] +
                            i * args.logprobs.stride[2];
    for (int64_t k = threadIdx.x; args.logprobs.data && k < args.k; k += 128) {
        const double z = k < own.n ? args.unit * (score_of(own.key[k]) - m) - log_l : -HUGE_VAL;
        logprobs[k] = (float)((z > 0 ? 0 : z) + nan);
    }
    if (threadIdx.x != 0)
        return;
    const double tail = rest.l == 0 ? -HUGE_VAL : args.unit * (rest.m - m) + log(rest.l) - log_l;
    put_row(args.lse, row, p.heads, p.n, (own.rest.l == 0 ? -HUGE_VAL : args.unit * m + log_l) + nan);
    put_row(args.tail, row, p.heads, p.n,
            (own.n == 0          ? -HUGE_VAL
             : !(own.rest.l > 0) ? (double)NAN
             : tail > 0          ? 0
                                 : tail) +
                nan);
}
