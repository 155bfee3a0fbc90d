/* SPDX-License-Identifier: Apache-2.0
 *
 * An indexer beside the mean of a teacher's heads, forward KL, for 16-bit operands of any width (a multiple of 8):
 *
 *     x_P = log2 t of g heads                  [ROWS x COLUMNS] a tile, as in sweep_mixed.cu
 *     x_Q = sum_k w_k act(a_k B^T)             of the indexer's heads k
 *     kl: push into the rows' states as of any two sides
 *     dz: dx_k = r dz act'(a_k B^T) spread     into a slab for each head k; w is the host's affair (index_kernels.cu)
 *
 * Products go through the stages in this order: all heads of the teacher, then those of the indexer. t, x_Q and the
 * product at hand would take 3 x 64 registers for a warp's 32 x 64, and spill. So the indexer's products, the small
 * ones, are of half of the columns at a time, of one copy if the heads are not wider than a chunk. Nothing of the rows
 * stays in registers but acc (kl): m and l of their states (kl) and their references (dz) wait in shared memory, ranges
 * are looked at anew.
 *
 * act' of a head is known before dz is: a lane keeps its 64 bits where it will write dx_k. Its columns lie together
 * (tile.cuh), so that it writes 16 bytes at a time, and the four lanes of a row 64.
 *
 *   registers  t and x_Q 2 x 64, half of a product 32, fragments 24, weights 4, where the copies are 20: 255
 *   shared     as sweep_mixed.cu and m and l of a lane's rows, 81 KiB; dz 75.5: two blocks on a multiprocessor
 *   HBM        the teacher's operands as in sweep_mixed.cu; dz writes 2 bytes a head, row and column
 *   error      as sweep_mixed.cu; x_Q is a sum of the heads in f32
 */
#define STREAM_SHAPE(x) SKL_MIXED_##x
#include "mixed_tiles.cuh"

namespace
{

/* A part is head k of the teacher, k, or of the indexer, INDEX + 2 k and, if it is copied for each half of the columns,
 * the next number. KEEP: dz has registers for strides, which is 2 % on H100; kl has not. */
template <bool KEEP> struct index_parts {
    static constexpr bool TOGETHER = true, KEEPS_STRIDES = KEEP;
    static constexpr int FIRST = 0, INDEX = 1 << 30;

    static __device__ __forceinline__ int halves(const skl_gpu_problem &p)
    {
        return p.side[1].dim > DEPTH ? 2 : 1;
    }
    static __device__ __forceinline__ int side(const skl_gpu_problem &, int part)
    {
        return part >= INDEX;
    }
    static __device__ __forceinline__ int head(const skl_gpu_problem &p, int h, int part)
    {
        return part < INDEX ? member_head(p.mixture, h, part) : (part - INDEX) / 2;
    }
    static __device__ __forceinline__ bool last(const skl_gpu_problem &p, int part)
    {
        return part == INDEX + 2 * p.index.members - 3 + halves(p);
    }
    static __device__ __forceinline__ int next(const skl_gpu_problem &p, int part)
    {
        return last(p, part) ? 0 : part == p.mixture.members - 1 ? INDEX : part + (part < INDEX ? 1 : 3 - halves(p));
    }
    static __device__ __forceinline__ int chunks(const skl_gpu_problem &p)
    {
        return p.mixture.members * chunks_of(p.side[0]) + p.index.members * chunks_of(p.side[1]) * halves(p);
    }
};

/* max(x, floor); NaN stays. */
SKL_DEVICE float activation(float x, float floor)
{
    float r;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(floor));
    return r;
}

/* Bits of pair j of row i in a half's word: shifted left by this they are the highest of two bytes, 2 (i % 2) and the
 * next. */
SKL_DEVICE constexpr int shift_of(int i, int j)
{
    return 4 * (i >> 1) + j;
}

/* act' of the lane's products of a half; NaN has one. */
SKL_DEVICE uint32_t slopes_of(const half_logits &x, float floor)
{
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 2 * MT; i++)
#pragma unroll
        for (int j = 0; j < GROUPS; j++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                bits |= !(x[j >> 1][i >> 1][j & 1][2 * (i & 1) + e] <= floor)
                            ? 0x80u << 8 * (2 * (i & 1) + e) >> shift_of(i, j)
                            : 0;
    return bits;
}

/* x_Q of half a tile += a head's part; act' of its products. */
template <int HALF, class F> SKL_DEVICE uint32_t add_index_head(F &f, warp_logits &z, const float (&w)[2 * MT])
{
    half_logits x;
    f.template half_product<HALF>(x, f.p.side[1].dim);
#pragma unroll
    for (int i = 0; i < GROUPS / 2 * MT * 8; i++) {
        const int group = i / (MT * 8), tile = i / 8 % MT, block = i / 4 % 2, e = i % 4;
        float &sum = z[HALF * (GROUPS / 2) + group][tile][block][e];
        sum = fmaf(w[2 * tile + e / 2], activation(x[group][tile][block][e], f.p.index.floor), sum);
    }
    return slopes_of(x, f.p.index.floor);
}

/* x_Q of a tile; use(k, half, act' of head k's products) for each head. Rows that are not there have some other's
 * weights: args.h. */
template <class F, class USE> SKL_DEVICE void index_scores(F &f, warp_logits &z, USE use)
{
    clear(z);
#pragma unroll 1
    for (int k = 0; k < f.p.index.members; k++) {
        const float *of = f.p.index.w + k * f.p.rows + f.at.first + f.row_in_tile(0, 0);
        float w[2 * MT];
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) w[i] = of[8 * i];
        use(k, 0, add_index_head<0>(f, z, w));
        use(k, 1, add_index_head<1>(f, z, w));
    }
}

/* x_P of a tile. */
template <class F> SKL_DEVICE void teacher_scores(F &f, warp_logits &t)
{
    warp_logits x[2];
    mix_heads(f, x);
    score_mixture(x[0]);
#pragma unroll
    for (int i = 0; i < GROUPS * MT * 8; i++)
        t[i / (MT * 8)][i / 8 % MT][i / 4 % 2][i % 4] = x[0][i / (MT * 8)][i / 8 % MT][i / 4 % 2][i % 4];
}

/* Scores of a tile whose first column is c, where not all of the warp's rows see all of it. Neither side has a bias, and
 * a softcap is in t already. */
template <class F> SKL_DEVICE void mask_scores(const F &f, warp_logits &t, warp_logits &z, int c)
{
    skl_gpu_range range[2 * MT];
    bool inside = true;
#pragma unroll
    for (int i = 0; i < 2 * MT; i++) {
        const skl_gpu_range r = range[i] = f.ranges[f.row_in_tile(i >> 1, i & 1)];
        inside &= r.lo >= r.hi || (r.lo <= c && c + COLUMNS <= r.hi);
    }
    if (__all_sync(~0u, inside))
        return;
    const int first = c + (threadIdx.x & 3) * 8;
#pragma unroll
    for (int i = 0; i < 2 * MT; i++)
#pragma unroll
        for (int j = 0; j < 4 * GROUPS; j++) {
            const int group = j >> 2, block = j >> 1 & 1, e = 2 * (i & 1) + (j & 1);
            const int column = first + (j >> 3) * 32 + (j & 7);
            const bool in = range[i].lo <= column && column < range[i].hi;
            float &p = t[group][i >> 1][block][e], &q = z[group][i >> 1][block][e];
            p = in ? p : -INFINITY, q = in ? q : -INFINITY;
        }
}

/* m and l of a lane's rows, which wait in shared memory while the products of a tile are made. */
struct waiting_states {
    float4 *own; /* of row i: THREADS i behind it */

    __device__ __forceinline__ void put(const row_state (&state)[2 * MT]) const
    {
#pragma unroll
        for (int i = 0; i < 2 * MT; i++)
            own[i * THREADS] = {state[i].m[0], state[i].m[1], state[i].l[0], state[i].l[1]};
    }
    __device__ __forceinline__ void get(row_state (&state)[2 * MT]) const
    {
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) {
            const float4 s = own[i * THREADS];
            state[i].m[0] = s.x, state[i].m[1] = s.y, state[i].l[0] = s.z, state[i].l[1] = s.w;
        }
    }
};

template <int TYPE> SKL_DEVICE void sweep_index(const skl_gpu_forward &args)
{
    extern __shared__ __align__(128) unsigned char memory[];
    skl_gpu_range *ranges = (skl_gpu_range *)(memory + STAGES * STAGE);
    const waiting_states waiting = {(float4 *)(ranges + ROWS) + threadIdx.x};
    stream<TYPE, index_parts<false>> f(args.problem, blockIdx.x, shared_address(memory));
    f.ranges = ranges;
    const span seen = load_ranges<ROWS, THREADS>(args.problem, f.at, ranges);
    const int split = blockIdx.y * args.split_columns;
    const int first = max(seen.lo, split) / COLUMNS * COLUMNS, end = min(seen.hi, split + args.split_columns);
    push_kl<MT, 2> push;
    push.start(f, args);
    waiting.put(push.state);
    if (first < end)
        f.start(first, end);
#pragma unroll 1
    for (int c = first; c < end; c += COLUMNS) {
        warp_logits t, z;
        teacher_scores(f, t);
        index_scores(f, z, [](int, int, uint32_t) {});
        mask_scores(f, t, z, c);
        waiting.get(push.state);
#pragma unroll
        for (int group = 0; group < GROUPS; group++) push.template push<true>(f, t[group], z[group]);
        waiting.put(push.state);
    }
    waiting.get(push.state);
    push.write(f, args);
}

/* -------------------------------------------------------------------------------------------------- slabs --- */

/* What dz takes of the block's rows, in shared memory. */
struct row_numbers {
    skl_gpu_reference reference[ROWS];
    float r[ROWS]; /* times spread */
};

/* Of rows that are not there: some other's. The barrier is the caller's. */
SKL_DEVICE void load_numbers(const skl_gpu_grad &g, const place &at, row_numbers &to)
{
    for (int i = threadIdx.x; i < ROWS; i += THREADS) {
        const int64_t row = at.first + min(i, at.valid - 1);
        to.reference[i] = g.references[row], to.r[i] = g.factors[row].r * g.spread;
    }
}

/* The pairs of 16-bit numbers of a lane: 4 that lie together, of each row and half of the columns. */
typedef uint32_t pairs[2 * MT][2][4];

/* dx of a tile, of all heads alike but for act'. An indexer has no softcap. */
template <int TYPE, class F>
SKL_DEVICE void make_dx(const F &f, const row_numbers &numbers, const warp_logits &t, const warp_logits &z, pairs &dx)
{
#pragma unroll
    for (int i = 0; i < 2 * MT; i++) {
        const int row = f.row_in_tile(i >> 1, i & 1), e = 2 * (i & 1);
        const row_terms terms = terms_of(f.p, numbers.reference[row]);
        const float r = numbers.r[row];
#pragma unroll
        for (int j = 0; j < 2 * GROUPS; j++) {
            const float(&p)[4] = t[j >> 1][i >> 1][j & 1], (&q)[4] = z[j >> 1][i >> 1][j & 1];
            dx[i][j >> 2][j & 3] = pack<TYPE>(r * dz_of<SKL_DZ_Q>(terms, f.p.side, 1, 0, p[e], q[e]),
                                              r * dz_of<SKL_DZ_Q>(terms, f.p.side, 1, 0, p[e + 1], q[e + 1]));
        }
    }
}

/* 0xFFFF for each number of pair j of row i whose bit is set: prmt repeats a byte's highest bit where its selector has
 * an 8. */
SKL_DEVICE uint32_t mask_of(uint32_t bits, int i, int j)
{
    uint32_t r;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(r) : "r"(bits << shift_of(i, j)), "r"(i & 1 ? 0xBBAA : 0x9988));
    return r;
}

/* Where a lane writes its first pairs of a tile, in the slab of head 0. Slabs are whole tiles wide. */
template <class F> SKL_DEVICE uint16_t *place_in_slab(const skl_gpu_slab &args, const F &f, int c)
{
    const int64_t row = blockIdx.x * ROWS + f.row_in_tile(0, 0);
    return (uint16_t *)args.slab + row * args.ld + (c - args.first_column) + (threadIdx.x & 3) * 8;
}

/* dx_k of a tile, of all heads. What is 0 stays 0, whatever its product was. The bits of the next head are fetched
 * before anything of this one is written. */
template <class F> SKL_DEVICE void put_heads(const skl_gpu_slab &args, const F &f, uint16_t *out, const pairs &dx)
{
    const int rows = f.at.valid - f.row_in_tile(0, 0); /* from the lane's first on */
    uint2 bits = rows > 0 ? *(const uint2 *)out : uint2{0, 0};
#pragma unroll 1
    for (int left = f.p.index.members; left; left--) {
        uint16_t *const next = out + f.p.index.step;
        const uint2 bits_next = left > 1 && rows > 0 ? *(const uint2 *)next : uint2{0, 0};
#pragma unroll
        for (int i = 0; i < 2 * MT; i++)
            if (8 * i < rows)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const uint32_t(&x)[4] = dx[i][half], of = half ? bits.y : bits.x;
                    *(uint4 *)(out + 8 * i * args.ld + 32 * half) = {x[0] & mask_of(of, i, 0), x[1] & mask_of(of, i, 1),
                                                                     x[2] & mask_of(of, i, 2),
                                                                     x[3] & mask_of(of, i, 3)};
                }
        out = next, bits = bits_next;
    }
}

/* A tile that no row sees. */
template <class F> SKL_DEVICE void clear_tile(const skl_gpu_slab &args, const F &f, int c)
{
    uint16_t *out = (uint16_t *)args.slab + blockIdx.x * (ROWS * args.ld) + (c - args.first_column);
    for (int k = 0; k < f.p.index.members; k++, out += f.p.index.step)
        for (int e = threadIdx.x; e < f.at.valid * (COLUMNS / 8); e += THREADS)
            *(uint4 *)(out + e / (COLUMNS / 8) * args.ld + e % (COLUMNS / 8) * 8) = {0, 0, 0, 0};
}

/* A block goes through SKL_INDEX_TILES tiles of columns of a tile of rows. */
template <int TYPE> SKL_DEVICE void slab_index(const skl_gpu_slab &args)
{
    extern __shared__ __align__(128) unsigned char memory[];
    const skl_gpu_grad &g = args.grad;
    const skl_gpu_problem &p = g.problem;
    skl_gpu_range *ranges = (skl_gpu_range *)(memory + STAGES * STAGE);
    row_numbers &numbers = *(row_numbers *)(ranges + ROWS);
    stream<TYPE, index_parts<true>> f(p, args.head * p.tiles + args.first_row / ROWS + blockIdx.x,
                                      shared_address(memory));
    f.ranges = ranges;
    load_numbers(g, f.at, numbers);
    const span seen = load_ranges<ROWS, THREADS>(p, f.at, ranges);
    const int begin = args.first_column + blockIdx.y * SKL_INDEX_TILES * COLUMNS;
    const int end = min(begin + SKL_INDEX_TILES * COLUMNS, args.first_column + args.columns);
    const int first = max(seen.lo / COLUMNS * COLUMNS, begin), last = min(seen.hi, end);
    for (int c = begin; c < end; c += COLUMNS)
        if (c < first || c >= last)
            clear_tile(args, f, c);
    if (first < last)
        f.start(first, last);
#pragma unroll 1
    for (int c = first; c < last; c += COLUMNS) {
        warp_logits t, z;
        pairs dx;
        teacher_scores(f, t);
        uint16_t *const out = place_in_slab(args, f, c);
        index_scores(f, z, [&](int k, int half, uint32_t slopes) {
            if (f.row_in_tile(0, 0) < f.at.valid)
                ((uint32_t *)(out + k * p.index.step))[half] = slopes;
        });
        mask_scores(f, t, z, c);
        make_dx<TYPE>(f, numbers, t, z, dx);
        put_heads(args, f, out, dx);
    }
}

}  // namespace

#define KERNEL(type, what, arguments, body) KERNEL_(type, what, arguments, body)
#define KERNEL_(type, what, arguments, body)                              \
    extern "C" __global__ void __launch_bounds__(THREADS, 256 / THREADS)  \
        skl_index_##type##_##what(const __grid_constant__ arguments args) \
    {                                                                     \
        body;                                                             \
    }

KERNEL(SKL_TYPE, kl, skl_gpu_forward, sweep_index<SKL_TYPE>(args))
KERNEL(SKL_TYPE, dz, skl_gpu_slab, slab_index<SKL_TYPE>(args))
