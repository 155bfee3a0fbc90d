/* SPDX-License-Identifier: Apache-2.0
 *
 * An indexer beside the mean of a teacher's heads, forward KL, for 16-bit operands of any width (a multiple of 8):
 *
 *     x_P = log2 t of g heads                  [ROWS x COLUMNS] a tile, as in sweep_mixed.cu
 *     x_Q = sum_k w_k act(a_k B^T)             half of its columns at a time, of the indexer's heads k
 *     kl: push into the rows' states as of any two sides
 *     dz: dx_k = r dz act'(a_k B^T) spread     into a slab for each head k; w is the host's affair (index_kernels.cu)
 *
 * t, x_Q and the product at hand would take 3 x 64 registers for a warp's 32 x 64. So the indexer's products, the small
 * ones, are of half of the columns: t 64, x_Q 32, the product 32. Each half reads the heads' rows anew. Products go
 * through the stages in this order: all heads of the teacher, then for each half the indexer's heads.
 *
 * act' of a head is known before dz is: a lane keeps its 32 bits of a half where it will write dx_k.
 *
 *   registers  t 64, x_Q and product 2 x 32, fragments 24, states 20: 255
 *   shared     as sweep_mixed.cu: 73 KiB, two blocks on a multiprocessor
 *   HBM        the teacher's operands as in sweep_mixed.cu; dz writes 2 bytes a head, row and column
 *   error      as sweep_mixed.cu; x_Q is a sum of the heads in f32
 */
#define STREAM_SHAPE(x) SKL_MIXED_##x
#include "mixed_tiles.cuh"

namespace
{

enum { HALF_GROUPS = GROUPS / 2, ELEMENTS = HALF_GROUPS * MT * 8 }; /* of a lane, in a half */
static_assert(ELEMENTS == 32, "a bit each");

typedef float half_logits[HALF_GROUPS][MT][2][4];

/* A part is head k of step s, s STEP + k: step 0 is the teacher, 1 and 2 are the indexer in each half. */
struct index_parts {
    static constexpr int FIRST = 0, LAST = 2, STEP = 1 << 16;

    static __device__ __forceinline__ int side(const skl_gpu_problem &, int part)
    {
        return part >= STEP;
    }
    static __device__ __forceinline__ int half(const skl_gpu_problem &, int part)
    {
        return part / STEP - 1;
    }
    static __device__ __forceinline__ int head(const skl_gpu_problem &p, int h, int part)
    {
        return part < STEP ? member_head(p.mixture, h, part) : part % STEP;
    }
    static __device__ __forceinline__ bool last(const skl_gpu_problem &p, int part)
    {
        return part == LAST * STEP + p.index.members - 1;
    }
    static __device__ __forceinline__ int next(const skl_gpu_problem &p, int part)
    {
        const int heads = part < STEP ? p.mixture.members : p.index.members;
        return last(p, part) ? 0 : part % STEP + 1 < heads ? part + 1 : (part / STEP + 1) * STEP;
    }
    static __device__ __forceinline__ int chunks(const skl_gpu_problem &p)
    {
        return p.mixture.members * chunks_of(p.side[0]) + LAST * p.index.members * chunks_of(p.side[1]);
    }
};

/* max(x, floor); NaN stays. */
SKL_DEVICE float activation(float x, float floor)
{
    float r;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(floor));
    return r;
}

/* x_Q of the half that is next; use(k, product of head k) for each head. */
template <class F, class USE> SKL_DEVICE void index_scores(F &f, half_logits &z, USE use)
{
    const skl_gpu_index &index = f.p.index;
    clear(z);
#pragma unroll 1
    for (int k = 0; k < index.members; k++) {
        half_logits x;
        float w[2 * MT];
        const float *first = index.w + k * f.p.rows + f.at.first;
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) w[i] = first[min(f.row_in_tile(i >> 1, i & 1), f.at.valid - 1)];
        f.product(x, f.p.side[1].dim);
#pragma unroll
        for (int i = 0; i < ELEMENTS; i++) {
            const int group = i / (MT * 8), tile = i / 8 % MT, block = i / 4 % 2, e = i % 4;
            float &sum = z[group][tile][block][e];
            sum = fmaf(w[2 * tile + e / 2], activation(x[group][tile][block][e], index.floor), sum);
        }
        use(k, x);
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

template <int TYPE> SKL_DEVICE void sweep_index(const skl_gpu_forward &args)
{
    extern __shared__ __align__(128) unsigned char memory[];
    skl_gpu_range *ranges = (skl_gpu_range *)(memory + STAGES * STAGE);
    stream<TYPE, index_parts> f(args.problem, blockIdx.x, shared_address(memory));
    f.ranges = ranges;
    const span seen = load_ranges<ROWS, THREADS>(args.problem, f.at, ranges);
    const int split = blockIdx.y * args.split_columns;
    const int first = max(seen.lo, split) / COLUMNS * COLUMNS, end = min(seen.hi, split + args.split_columns);
    push_kl<MT, 2> push;
    push.start(f, args);
    if (first < end)
        f.start(first, end);
#pragma unroll 1
    for (int c = first; c < end; c += COLUMNS) {
        warp_logits t;
        teacher_scores(f, t);
        const bool inside = c >= seen.all_lo && c + COLUMNS <= seen.all_hi;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            half_logits z;
            index_scores(f, z, [](int, const half_logits &) {});
#pragma unroll
            for (int i = 0; i < HALF_GROUPS; i++) {
                const int group = half * HALF_GROUPS + i;
                if (!inside)
                    edge_logits(f, t[group], z[i], c + f.column_of(group));
                push.template push<true>(f, t[group], z[i]);
            }
        }
    }
    push.write(f, args);
}

/* -------------------------------------------------------------------------------------------------- slabs --- */

/* Pair j of columns in the lane's row i, j < 2 HALF_GROUPS: its bits are that and 16 behind it. */
SKL_DEVICE constexpr int pair_of(int i, int j)
{
    return i * 2 * HALF_GROUPS + j;
}

/* dx of a half, of all heads alike but for act', as pairs of 16-bit numbers. */
template <int TYPE, class F>
SKL_DEVICE void make_dx(const skl_gpu_grad &g, const F &f, const float (*t)[MT][2][4], const half_logits &z,
                        uint32_t (&dx)[ELEMENTS / 2])
{
#pragma unroll
    for (int i = 0; i < 2 * MT; i++) {
        const int64_t row = f.at.first + min(f.row_in_tile(i >> 1, i & 1), f.at.valid - 1);
        const skl_gpu_factors factors = g.factors[row];
        const row_terms terms = terms_of(g.problem, g.references[row]);
#pragma unroll
        for (int j = 0; j < 2 * HALF_GROUPS; j++) {
            const float(&p)[4] = t[j >> 1][i >> 1][j & 1], (&q)[4] = z[j >> 1][i >> 1][j & 1];
            const int e = 2 * (i & 1);
            dx[pair_of(i, j)] = pack<TYPE>(dx_of_q(g, factors, terms, p[e], q[e]),
                                           dx_of_q(g, factors, terms, p[e + 1], q[e + 1]));
        }
    }
}

/* act' of the lane's products, NaN having one. */
SKL_DEVICE uint32_t slopes_of(const half_logits &x, float floor)
{
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 2 * MT; i++)
#pragma unroll
        for (int j = 0; j < 2 * HALF_GROUPS; j++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                bits |= !(x[j >> 1][i >> 1][j & 1][2 * (i & 1) + e] <= floor) ? 1u << (pair_of(i, j) + 16 * e) : 0;
    return bits;
}

/* Where a lane writes its first pair of a half, in the slab of head 0. Slabs are whole tiles wide. */
template <class F> SKL_DEVICE uint16_t *place_in_slab(const skl_gpu_slab &args, const F &f, int c, int half)
{
    const int64_t row = blockIdx.x * ROWS + f.row_in_tile(0, 0);
    return (uint16_t *)args.slab + row * args.ld + (c - args.first_column) + f.column_of(half * HALF_GROUPS) +
           (threadIdx.x & 3) * 2;
}

/* dx_k of a half, of all heads. What is 0 stays 0, whatever its product was. */
template <class F>
SKL_DEVICE void put_heads(const skl_gpu_slab &args, const F &f, uint16_t *out, const uint32_t (&dx)[ELEMENTS / 2])
{
#pragma unroll 1
    for (int k = 0; k < f.p.index.members; k++, out += f.p.index.step) {
        const uint32_t bits = f.row_in_tile(0, 0) < f.at.valid ? *(const uint32_t *)out : 0;
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) {
            uint16_t *row = out + ((i >> 1) * 16 + (i & 1) * 8) * args.ld;
            if (f.row_in_tile(i >> 1, i & 1) < f.at.valid)
#pragma unroll
                for (int j = 0; j < 2 * HALF_GROUPS; j++)
                    *(uint32_t *)(row + j * 8) = dx[pair_of(i, j)] & ((bits >> pair_of(i, j)) & 0x10001u) * 0xFFFFu;
        }
    }
}

/* A tile that no row sees. */
template <class F> SKL_DEVICE void clear_tile(const skl_gpu_slab &args, const F &f, int c)
{
    uint16_t *out = (uint16_t *)args.slab + blockIdx.x * (ROWS * args.ld) + (c - args.first_column);
    for (int k = 0; k < f.p.index.members; k++, out += f.p.index.step)
        for (int e = threadIdx.x; e < f.at.valid * (COLUMNS / 2); e += THREADS)
            *(uint32_t *)(out + e / (COLUMNS / 2) * args.ld + e % (COLUMNS / 2) * 2) = 0;
}

/* A block goes through SKL_INDEX_TILES tiles of columns of a tile of rows. */
template <int TYPE> SKL_DEVICE void slab_index(const skl_gpu_slab &args)
{
    extern __shared__ __align__(128) unsigned char memory[];
    const skl_gpu_grad &g = args.grad;
    const skl_gpu_problem &p = g.problem;
    skl_gpu_range *ranges = (skl_gpu_range *)(memory + STAGES * STAGE);
    stream<TYPE, index_parts> f(p, args.head * p.tiles + args.first_row / ROWS + blockIdx.x, shared_address(memory));
    f.ranges = ranges;
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
        warp_logits t;
        teacher_scores(f, t);
        const bool inside = c >= seen.all_lo && c + COLUMNS <= seen.all_hi;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            half_logits z;
            uint32_t dx[ELEMENTS / 2];
            uint16_t *const out = place_in_slab(args, f, c, half);
            index_scores(f, z, [&](int k, const half_logits &x) {
                if (f.row_in_tile(0, 0) < f.at.valid)
                    *(uint32_t *)(out + k * p.index.step) = slopes_of(x, p.index.floor);
            });
#pragma unroll
            for (int i = 0; i < HALF_GROUPS; i++)
                if (!inside)
                    edge_logits(f, t[half * HALF_GROUPS + i], z[i], c + f.column_of(half * HALF_GROUPS + i));
            make_dx<TYPE>(g, f, &t[half * HALF_GROUPS], z, dx);
            put_heads(args, f, out, dx);
        }
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
