/* SPDX-License-Identifier: Apache-2.0
 *
 * What a sweep of tops does with scores: of each side the row's largest one, the first column that has it, and the
 * other side's score there; or, given such scores as limits, how many of the row's are above them. Comparisons only:
 * the answers are those of the sweep's own scores, exactly. Scores outside the row's columns are -inf, which is above
 * nothing.
 */
#ifndef SKL_TOP_CUH
#define SKL_TOP_CUH

#include "push.cuh"

/* A row's state: see push_rows. */
struct row_top {
    static constexpr bool BOTH = true;
    skl_gpu_top side[2];
    bool counts;

    __device__ __forceinline__ void start(const skl_gpu_forward &args, int64_t row, int first)
    {
        counts = args.limits;
#pragma unroll
        for (int k = 0; k < 2; k++)
            side[k] = {args.limits ? args.limits[k * args.problem.rows + row] : -INFINITY, -INFINITY, 0};
    }

    template <int COUNT>
    __device__ __forceinline__ void push(const float (&x)[2][COUNT], const int (&column)[COUNT], int end)
    {
#pragma unroll
        for (int k = 0; k < 2; k++)
#pragma unroll
            for (int j = 0; j < COUNT; j++) {
                const bool above = x[k][j] > side[k].x;
                if (counts)
                    side[k].column += above;
                else if (above)
                    side[k] = {x[k][j], x[1 - k][j], column[j]};
            }
    }

    template <int LANES>
    __device__ __forceinline__ void write(const skl_gpu_forward &args, int slot, int64_t row, bool mine) const
    {
#pragma unroll
        for (int k = 0; k < 2; k++) {
            skl_gpu_top best = side[k];
#pragma unroll
            for (int step = 1; step < LANES; step *= 2) {
                const skl_gpu_top other = {__shfl_xor_sync(~0u, best.x, step), __shfl_xor_sync(~0u, best.there, step),
                                           __shfl_xor_sync(~0u, best.column, step)};
                if (args.limits)
                    best.column += other.column;
                else if (other.x > best.x || (other.x == best.x && other.column < best.column))
                    best = other;
            }
            if (mine)
                args.tops[((int64_t)slot * 2 + k) * args.problem.rows + row] = best;
        }
    }
};

#endif
