/* SPDX-License-Identifier: Apache-2.0
 *
 * Sweeps and slabs of any operands: sweep_any.cu and mixed_any.cu, which have the numbers. SCORES makes both sides'
 * scores of a tile:
 *
 *     make(f, a, b, x)    of the tile from column f.first on, -inf outside the rows' ranges: f.product() and f.edge()
 *     on the
 *                         memory a and b
 *
 * A block of 256 threads owns 64 rows; both operands come through shared memory as f32, 16 entries of the dimension at
 * a time. 2 loads of 16 bytes for 16 multiply-adds.
 */
#ifndef SKL_PLAIN_CUH
#define SKL_PLAIN_CUH

#include "column.cuh"
#include "../shapes.h"

namespace
{

enum {
    TILE = SKL_PLAIN_TILE,
    DEPTH = 16,
    PITCH = TILE + 4
}; /* +4: the four rows that a warp writes at once fall into other banks */

/* 4 rows x 4 columns a thread: 16 threads along the columns, half a warp, hold a row. */
struct plain {
    const skl_gpu_problem &p;
    const place at;
    const int tx, ty; /* columns 4 tx .. and rows 4 ty .. of the tile */
    const skl_gpu_range *ranges;
    int first; /* column of the tile */

    __device__ __forceinline__ plain(const skl_gpu_problem &problem, int block)
        : p(problem), at(place_of<TILE>(problem, block)), tx(threadIdx.x & 15), ty(threadIdx.x >> 4)
    {
    }

    /* [DEPTH][TILE] of f32: row 'i' of the tile from a matrix with 'valid' rows there. */
    static __device__ __forceinline__ void load(float (*to)[PITCH], const skl_gpu_matrix &m, int64_t base, int valid,
                                                int d0, int dim)
    {
        int d = threadIdx.x % DEPTH;
#pragma unroll
        for (int i = threadIdx.x / DEPTH; i < TILE; i += 256 / DEPTH)
            to[d][i] = i < valid && d0 + d < dim ? element(m.data, base + i * m.stride[2] + d0 + d, m.dtype) : 0;
    }

    /* The products, over 'dim' entries, of head 'head' of a side's a, for the tile's columns. */
    __device__ __forceinline__ void product(float (*a)[PITCH], float (*b)[PITCH], const skl_gpu_side &s, int head,
                                            int dim, float (&x)[4][4]) const
    {
        int64_t rows = at.b * s.a.stride[0] + head * s.a.stride[1] + at.i * s.a.stride[2];
        int64_t columns = at.b * s.b.stride[0] + head / s.share * s.b.stride[1] + first * s.b.stride[2];
#pragma unroll
        for (int i = 0; i < 16; i++) x[i >> 2][i & 3] = 0;
        for (int d0 = 0; d0 < dim; d0 += DEPTH) {
            __syncthreads();
            load(a, s.a, rows, at.valid, d0, s.dim);
            load(b, s.b, columns, p.columns - first, d0, s.dim);
            __syncthreads();
#pragma unroll
            for (int d = 0; d < DEPTH; d++) {
                float4 u = *(const float4 *)&a[d][4 * ty], v = *(const float4 *)&b[d][4 * tx];
                float row[4] = {u.x, u.y, u.z, u.w}, column[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
                for (int i = 0; i < 16; i++) x[i >> 2][i & 3] = fmaf(row[i >> 2], column[i & 3], x[i >> 2][i & 3]);
            }
        }
    }

    /* What is made of them; -inf outside the rows' ranges. */
    __device__ __forceinline__ void edge(const skl_gpu_side &s, float (&x)[4][4]) const
    {
#pragma unroll
        for (int i = 0; i < 16; i++) {
            float &v = x[i >> 2][i & 3];
            v = edge_logit(s, v, first + 4 * tx + (i & 3), ranges[4 * ty + (i >> 2)]);
        }
    }
};

struct shared_tiles {
    float a[DEPTH][PITCH], b[DEPTH][PITCH];
    skl_gpu_range ranges[TILE];
};

struct plain_kl {
    static constexpr bool BOTH = true;
    row_state state[4];
    float factor[2];

    __device__ __forceinline__ void start(const plain &f, const skl_gpu_forward &args)
    {
        factor[0] = f.p.side[0].factor, factor[1] = f.p.side[1].factor;
#pragma unroll
        for (int i = 0; i < 4; i++) state[i] = empty_state();
    }
    __device__ __forceinline__ void push(const plain &f, const float (&x)[2][4][4])
    {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float row[2][4] = {{x[0][i][0], x[0][i][1], x[0][i][2], x[0][i][3]},
                                     {x[1][i][0], x[1][i][1], x[1][i][2], x[1][i][3]}};
            row_sums sums = sums_of<true>(state[i], row, factor);
            if (fmaxf(sums.l[0], sums.l[1]) > SKL_RAISE) {
                raise_state(state[i], row, factor);
                sums = sums_of<true>(state[i], row, factor);
            }
            add(state[i], sums);
        }
    }
    __device__ __forceinline__ void write(const plain &f, const skl_gpu_forward &args)
    {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const row_state s = merged_over_lanes<16>(state[i], factor);
            int row = 4 * f.ty + i;
            if (f.tx == 0 && row < f.at.valid)
                write_state(args.state + (int64_t)blockIdx.y * SKL_STATES * f.p.rows, f.p.rows, f.at.first + row, s);
        }
    }
};

/* A second sweep: the rows' LSEs are known, and every divergence has two sums. */
struct plain_sums {
    static constexpr bool BOTH = true;
    row_terms terms[4];
    float sums[4][2];

    __device__ __forceinline__ void start(const plain &f, const skl_gpu_forward &args)
    {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int64_t row = f.at.first + min(4 * f.ty + i, f.at.valid - 1);
            terms[i] = terms_of(f.p, args.references[row]);
            sums[i][0] = sums[i][1] = 0;
        }
    }
    /* add(terms of the row, x_P, x_Q, sums): one column. */
    template <class ADD> __device__ __forceinline__ void push_by(const float (&x)[2][4][4], ADD add)
    {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float sum[2] = {0, 0};
#pragma unroll
            for (int j = 0; j < 4; j++) add(terms[i], x[0][i][j], x[1][i][j], sum);
            sums[i][0] += sum[0], sums[i][1] += sum[1];
        }
    }
    __device__ __forceinline__ void write(const plain &f, const skl_gpu_forward &args)
    {
        float *out = args.state + (int64_t)blockIdx.y * SKL_STATES * f.p.rows;
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int side = 0; side < 2; side++) {
                float sum = sums[i][side];
#pragma unroll
                for (int step = 1; step < 16; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
                int row = 4 * f.ty + i;
                if (f.tx == 0 && row < f.at.valid)
                    out[(side ? SKL_L_Q : SKL_L_P) * f.p.rows + f.at.first + row] = sum;
            }
    }
};

struct plain_jsd : plain_sums {
    __device__ __forceinline__ void push(const plain &f, const float (&x)[2][4][4])
    {
        push_by(x, [&](const row_terms &t, float x_p, float x_q, float(&sum)[2]) {
            add_mixture_terms(t, f.p.side, x_p, x_q, sum);
        });
    }
};

struct plain_second : plain_sums {
    int form;

    __device__ __forceinline__ void start(const plain &f, const skl_gpu_forward &args)
    {
        plain_sums::start(f, args);
        form = args.form;
    }
    __device__ __forceinline__ void push(const plain &f, const float (&x)[2][4][4])
    {
        push_columns(*this, f.p, form, x);
    }
};

template <class PUSH, class SCORES> SKL_DEVICE void sweep(const skl_gpu_forward &args, const SCORES &scores)
{
    __shared__ shared_tiles shared;
    plain f(args.problem, blockIdx.x);
    f.ranges = shared.ranges;
    const span seen = load_ranges<TILE, 256>(args.problem, f.at, shared.ranges);
    const int split = blockIdx.y * args.split_columns;
    const int first = max(seen.lo, split) / TILE * TILE, end = min(seen.hi, split + args.split_columns);
    PUSH push;
    push.start(f, args);
    for (int c = first; c < end; c += TILE) {
        float x[2][4][4];
        f.first = c;
        scores.make(f, shared.a, shared.b, x);
        push.push(f, x);
    }
    push.write(f, args);
}

/* A tile of the slab: write(row, its place in the slab, x_P, x_Q). */
template <class SCORES, class WRITE>
SKL_DEVICE void slab_by(const skl_gpu_slab &args, const SCORES &scores, WRITE write)
{
    __shared__ shared_tiles shared;
    const skl_gpu_grad &g = args.grad;
    plain f(g.problem, args.head * g.problem.tiles + args.first_row / TILE + blockIdx.x);
    f.ranges = shared.ranges;
    load_ranges<TILE, 256>(g.problem, f.at, shared.ranges);
    f.first = args.first_column + blockIdx.y * TILE;
    float x[2][4][4];
    scores.make(f, shared.a, shared.b, x);
#pragma unroll
    for (int i = 0; i < 16; i++) {
        int row = 4 * f.ty + (i >> 2), column = 4 * f.tx + (i & 3);
        if (row >= f.at.valid || blockIdx.y * TILE + column >= args.columns)
            continue;
        write(f.at.first + row, (int64_t)(blockIdx.x * TILE + row) * args.ld + blockIdx.y * TILE + column,
              x[0][i >> 2][i & 3], x[1][i >> 2][i & 3]);
    }
}

/* dx(factors of the row, its terms, x_P, x_Q). */
template <class SCORES, class DX> SKL_DEVICE void slab(const skl_gpu_slab &args, const SCORES &scores, DX dx)
{
    const skl_gpu_grad &g = args.grad;
    slab_by(args, scores, [&](int64_t row, int64_t at, float x_p, float x_q) {
        put_element(args.slab, at, args.dtype, dx(g.factors[row], terms_of(g.problem, g.references[row]), x_p, x_q));
    });
}

}  // namespace

#endif
