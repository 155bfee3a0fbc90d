/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention whose P is a mixture of g heads, forward KL, for 16-bit operands of any width (a multiple of 8):
 *
 *     x_k = A_k B_k^T,  t = sum over the heads k of their parts (mixture.cuh),  x_P = log2 t
 *     x_Q = A_Q B_Q^T                                  [ROWS x COLUMNS] a tile: t and the product at hand in registers
 *     kl: push into the rows' states as of any two sides;   dz: dx of the tile into a slab
 *     lse: m and l of the rows of one head, mixture.alone, where they are not given
 *
 * g + 1 products a tile, one after the other through the same stages (stream.cuh): a head's operands do not stay
 * anywhere, since g of them would not fit. t takes the place that x_P has in sweep_wide.cu. A product's last 64 entries
 * are multiplied group of columns by group, so that the exponentials of a group run beside the products of the next:
 * with all of them behind a product, tensor cores would wait for half as long as they multiply. Two blocks on a
 * multiprocessor, so that the other one multiplies while the last group's are made.
 *
 *   registers  t and the product 2 x 64, fragments 24, beside exponentials 40, a number of 4 rows: 255
 *   shared     3 stages x 192 rows x 128 bytes = 72 KiB, and the rows' ranges
 *   HBM        A and B of all heads for every tile of 128 x 64, mostly from L2: 384 bytes for 128 x 64 x 2 flops of
 *              depth. A tile of 128 x 128 would take a third less, but no second block fits beside it
 *   error      as sweep_wide.cu; t is a sum of g terms of 2 ulp, and its logarithm one of f32
 */
#define STREAM_SHAPE(x) SKL_MIXED_##x
#include "mixed_tiles.cuh"

namespace
{

/* The products of all heads, then Q's. */
struct mixed_products : usual_parts {
    static constexpr bool FINITE = false;
    static constexpr int FIRST = 0;

    static __device__ __forceinline__ bool last(const skl_gpu_problem &p, int part)
    {
        return part == p.mixture.members;
    }
    static __device__ __forceinline__ int side(const skl_gpu_problem &p, int part)
    {
        return last(p, part);
    }
    static __device__ __forceinline__ int head(const skl_gpu_problem &p, int h, int part)
    {
        return last(p, part) ? h : member_head(p.mixture, h, part);
    }
    static __device__ __forceinline__ int next(const skl_gpu_problem &p, int part)
    {
        return last(p, part) ? 0 : part + 1;
    }
    static __device__ __forceinline__ int chunks(const skl_gpu_problem &p)
    {
        return p.mixture.members * chunks_of(p.side[0]) + chunks_of(p.side[1]);
    }
};

/* ONE: of one tile. */
template <bool ONE> struct mixed_sides : mixed_products {
    template <class F> static __device__ __forceinline__ void logits(F &f, warp_logits (&x)[2])
    {
        mix_heads(f, x);
        product_then<ONE>(f, x[1], f.p.side[1].dim, [](int) {});
        score_mixture(x[0]);
    }
};

/* One head alone. */
struct one_head : usual_parts {
    static constexpr int FIRST = 0;

    static __device__ __forceinline__ int side(const skl_gpu_problem &, int part)
    {
        return 0;
    }
    static __device__ __forceinline__ int head(const skl_gpu_problem &p, int h, int part)
    {
        return member_head(p.mixture, h, p.mixture.alone);
    }
    static __device__ __forceinline__ bool last(const skl_gpu_problem &, int part)
    {
        return true;
    }
    static __device__ __forceinline__ int next(const skl_gpu_problem &, int part)
    {
        return 0;
    }
    static __device__ __forceinline__ int chunks(const skl_gpu_problem &p)
    {
        return chunks_of(p.side[0]);
    }
};

/* m and l of a lane's rows: state.cuh has the same for two sides. */
struct head_state {
    float m[2 * MT], l[2 * MT];

    __device__ __forceinline__ void start()
    {
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) m[i] = SKL_LOWEST, l[i] = 0;
    }

    static __device__ __forceinline__ float sum(const float (&x)[MT][2][4], int i, float m, float factor)
    {
        float s = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) s += power_of_two(relative(x[i >> 1][j >> 1][2 * (i & 1) + (j & 1)], m, factor));
        return s;
    }

    static __device__ __forceinline__ float moved(float l, float from, float to, float factor)
    {
        return l * power_of_two(fmaxf(relative(from, to, factor), SKL_FARTHEST));
    }

    __device__ __forceinline__ void push(const float (&x)[MT][2][4], float factor)
    {
        float s[2 * MT], top = 0;
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) s[i] = sum(x, i, m[i], factor), top = fmaxf(top, s[i]);
        if (__any_sync(~0u, top > SKL_RAISE)) {
#pragma unroll
            for (int i = 0; i < 2 * MT; i++) {
                float to = m[i];
#pragma unroll
                for (int j = 0; j < 4; j++) to = fmaxf(to, x[i >> 1][j >> 1][2 * (i & 1) + (j & 1)]);
                l[i] = moved(l[i], m[i], to, factor), m[i] = to;
                s[i] = sum(x, i, to, factor);
            }
        }
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) l[i] += s[i];
    }

    /* Over the four lanes of a row; the same in all of them. */
    __device__ __forceinline__ void merge(float factor)
    {
#pragma unroll
        for (int i = 0; i < 2 * MT; i++)
#pragma unroll
            for (int step = 1; step < 4; step *= 2) {
                const float other_m = __shfl_xor_sync(~0u, m[i], step), other_l = __shfl_xor_sync(~0u, l[i], step);
                const float to = fmaxf(m[i], other_m);
                l[i] = moved(l[i], m[i], to, factor) + moved(other_l, other_m, to, factor), m[i] = to;
            }
    }
};

/* The head's scores of a group of 16 columns, where they must be looked at one by one. */
template <class F> SKL_DEVICE void edge_scores(const F &f, const skl_gpu_mixture &m, float (&x)[MT][2][4], int first)
{
#pragma unroll
    for (int i = 0; i < 2 * MT; i++) {
        const skl_gpu_range r = f.ranges[f.row_in_tile(i >> 1, i & 1)];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int column = first + (j >> 1) * 8 + (threadIdx.x & 3) * 2 + (j & 1);
            float &v = x[i >> 1][j >> 1][2 * (i & 1) + (j & 1)];
            v = r.lo <= column && column < r.hi ? member_score(m, v) : -INFINITY;
        }
    }
}

/* A state of P alone: nobody reads the rest. */
template <int TYPE> SKL_DEVICE void sweep_head(const skl_gpu_forward &args)
{
    extern __shared__ __align__(128) unsigned char memory[];
    const skl_gpu_mixture &m = args.problem.mixture;
    skl_gpu_range *ranges = (skl_gpu_range *)(memory + STAGES * STAGE);
    stream<TYPE, one_head> f(args.problem, blockIdx.x, shared_address(memory));
    f.ranges = ranges;
    const span seen = load_ranges<ROWS, THREADS>(args.problem, f.at, ranges);
    const int split = blockIdx.y * args.split_columns;
    const int first = max(seen.lo, split) / COLUMNS * COLUMNS, end = min(seen.hi, split + args.split_columns);
    head_state state;
    state.start();
    if (first < end)
        f.start(first, end);
#pragma unroll 1
    for (int c = first; c < end; c += COLUMNS) {
        warp_logits x;
        f.product(x, args.problem.side[0].dim);
        const bool inside = m.cap == 0 && c >= seen.all_lo && c + COLUMNS <= seen.all_hi;
#pragma unroll
        for (int group = 0; group < GROUPS; group++) {
            if (!inside)
                edge_scores(f, m, x[group], c + f.column_of(group));
            state.push(x[group], m.factor);
        }
    }
    state.merge(m.factor);
    float *out = args.state + (int64_t)f.slot() * SKL_STATES * f.p.rows + f.at.first;
#pragma unroll
    for (int i = 0; i < 2 * MT; i++) {
        const int row = f.row_in_tile(i >> 1, i & 1);
        if ((threadIdx.x & 3) == 0 && row < f.at.valid)
            out[SKL_M_P * f.p.rows + row] = state.m[i], out[SKL_L_P * f.p.rows + row] = state.l[i];
    }
}

}  // namespace

#define KERNEL(type, what, arguments, body) KERNEL_(type, what, arguments, body)
#define KERNEL_(type, what, arguments, body)                              \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)              \
        skl_mixed_##type##_##what(const __grid_constant__ arguments args) \
    {                                                                     \
        body;                                                             \
    }

KERNEL(SKL_TYPE, kl, skl_gpu_forward, (sweep<SKL_TYPE, push_kl<MT, 2>, mixed_sides<false>>(args)))
KERNEL(SKL_TYPE, dz, skl_gpu_slab, (slab<SKL_TYPE, mixed_sides<true>>(args, dx_of_q)))
KERNEL(SKL_TYPE, lse, skl_gpu_forward, sweep_head<SKL_TYPE>(args))
