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
#include "mixture.cuh"
#define STREAM_SHAPE(x) SKL_MIXED_##x
#include "stream.cuh"

namespace
{

/* The last DEPTH entries of a product, group of 16 columns by group; done(group) is called when it is complete. END:
 * nothing comes behind it. */
template <bool END, int TYPE, class PARTS, class DONE>
SKL_DEVICE void last_chunk(stream<TYPE, PARTS> &f, warp_logits &x, DONE done)
{
    uint32_t a[STEPS][MT][4];
    if (!END)
        f.copy_chunk();
    f.chunks_left--;
#pragma unroll
    for (int i = 0; i < MT * 4; i++) a[0][i / 4][i % 4] = f.a[0][i / 4][i % 4];
#pragma unroll
    for (int i = MT; i < STEPS * MT; i++)
        load_matrices(a[i / MT][i % MT], ((f.a_at + f.stage) ^ (i / MT << 5)) + i % MT * 16 * DEPTH * 2);
#pragma unroll
    for (int i = 0; i < GROUPS * STEPS; i++) {
        const int group = i / STEPS, k = i % STEPS, next = i + 1;
        if (next < GROUPS * STEPS)
            load_matrices(f.b[next & 1], ((f.b_at + f.stage) ^ (next % STEPS << 5)) + next / STEPS * 16 * DEPTH * 2);
        else if (!END)
            f.next_chunk();
#pragma unroll
        for (int m = 0; m < MT; m++) {
            multiply<TYPE>(x[group][m][0], a[k][m], f.b[i & 1][0], f.b[i & 1][1]);
            multiply<TYPE>(x[group][m][1], a[k][m], f.b[i & 1][2], f.b[i & 1][3]);
        }
        if (k == STEPS - 1)
            done(group);
    }
}

/* x += the products of 'dim' entries. */
template <bool END, int TYPE, class PARTS, class DONE>
SKL_DEVICE void product_then(stream<TYPE, PARTS> &f, warp_logits &x, int dim, DONE done)
{
    f.add_product(x, dim - DEPTH);
    last_chunk<END>(f, x, done);
}

/* The products of all heads, then Q's. */
struct mixed_products {
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

    /* t += the parts of a head, whose scores are x, of a group of columns; x becomes 0. */
    static __device__ __forceinline__ void add(const skl_gpu_mixture &m, const skl_gpu_member (&row)[2 * MT],
                                               float (&x)[MT][2][4], float (&t)[MT][2][4])
    {
#pragma unroll
        for (int i = 0; i < MT * 8; i++) {
            float &v = x[i / 8][i / 4 % 2][i % 4];
            t[i / 8][i / 4 % 2][i % 4] += member_part(m, row[2 * (i / 8) + i % 4 / 2], v);
            v = 0;
        }
    }

    /* Of the lane's rows under head k. Rows that are not there have some other's: args.h. */
    template <class F> static __device__ __forceinline__ void members(const F &f, int k, skl_gpu_member (&row)[2 * MT])
    {
        const skl_gpu_member *of = f.p.mixture.member + k * f.p.rows + f.at.first + f.row_in_tile(0, 0);
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) row[i] = of[8 * i];
    }

    template <class F>
    static __device__ __forceinline__ void capped(F &f, const skl_gpu_mixture &m, const skl_gpu_member (&row)[2 * MT],
                                                  warp_logits (&x)[2])
    {
        f.add_product(x[1], f.p.side[0].dim);
#pragma unroll
        for (int group = 0; group < GROUPS; group++) {
#pragma unroll
            for (int i = 0; i < MT * 8; i++) {
                float &v = x[1][group][i / 8][i / 4 % 2][i % 4];
                v = member_score(m, v);
            }
            add(m, row, x[1][group], x[0][group]);
        }
    }
};

/* ONE: of one tile. */
template <bool ONE> struct mixed_sides : mixed_products {
    template <class F> static __device__ __forceinline__ void logits(F &f, warp_logits (&x)[2])
    {
        const skl_gpu_mixture &m = f.p.mixture;
        clear(x[0]), clear(x[1]);
#pragma unroll 1
        for (int k = 0; k < m.members; k++) {
            skl_gpu_member row[2 * MT];
            members(f, k, row);
            if (m.cap == 0) /* and inner 1: the host keeps other signs away */
                product_then<false>(f, x[1], f.p.side[0].dim,
                                    [&](int group) { add(m, row, x[1][group], x[0][group]); });
            else
                capped(f, m, row, x);
        }
        product_then<ONE>(f, x[1], f.p.side[1].dim, [](int) {});
#pragma unroll
        for (int i = 0; i < GROUPS * MT * 8; i++) {
            float &t = x[0][i / (MT * 8)][i / 8 % MT][i / 4 % 2][i % 4];
            t = mixed_score(t);
        }
    }
};

/* One head alone. */
struct one_head {
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
                edge_scores(f, m, x[group], c + (f.across * GROUPS + group) * 16);
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

/* dx of Q, of a KL. */
SKL_DEVICE float dx_of_q(const skl_gpu_grad &g, const skl_gpu_factors &f, const row_terms &t, float x_p, float x_q)
{
    return dx_from(g, f, dz_of<SKL_DZ_Q>(t, g.problem.side, 1, f.c, x_p, x_q), x_p, x_q);
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
