/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention's backward, written once for dA (rows_*), dB (columns_*) and both (fused_*).
 *
 * A block owns a tile of 'stationary' vectors and streams tiles of the others past it:
 *
 *     BY_ROWS      stationary: rows of A        streamed: rows of B (columns of the logits)     out = dA
 *     BY_COLUMNS   stationary: rows of B        streamed: rows of A, of every head that shares  out = dB
 *
 *     x_P, x_Q  [stationary x streamed]  =  two products, 16 streamed vectors at a time in registers
 *     dx                                 =  dz_of(x_P, x_Q) slope spread, rounded to the operands' type; the layout of
 *                                           the products' result is that of the next one's left operand
 *     out       [stationary x dim]      +=  dx  streamed_x,  f32 in registers; one factor at the end
 *
 * What a row of logits needs (m and log l of both sides, c, r, its range) belongs to a stationary vector BY_ROWS and
 * lies in registers, r being applied to the sum; BY_COLUMNS it belongs to a streamed one, is copied with it and r is
 * part of dx.
 */
#ifndef SKL_GRAD_CUH
#define SKL_GRAD_CUH

#include "divergence.cuh"
#include "grad_tiles.cuh"
#include "../shapes.h"

enum { BY_ROWS, BY_COLUMNS };
enum { DZ_EITHER = SKL_DZ_JSD + 1 }; /* SKL_DZ_P or SKL_DZ_JSD, args.dz says which */

/* What turns sums of rounded dx into gradients. */
SKL_DEVICE float factor_of(const skl_gpu_grad &args)
{
    return args.x ? args.scalars->alpha[1] : args.scalars->alpha[0];
}

/* The tile of stationary vectors that this block owns: own .. end-1 of head h (BY_COLUMNS: of B) in batch b. Asked for
 * again where it is needed, since registers are scarcer than divisions: the block's number is read anew each time. */
struct property {
    int b, h, own, end;
};

template <int BY, int OWN> SKL_DEVICE property property_of(const skl_gpu_grad &args)
{
    const skl_gpu_problem &p = args.problem;
    int block, end = BY == BY_ROWS ? p.n : p.columns,
               share = BY == BY_ROWS ? 1
                       : args.x      ? p.side[1].share
                                     : p.side[0].share;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block), "+r"(end), "+r"(share));
    const int heads = p.heads / share, tiles = (end + OWN - 1) / OWN;
    property at;
    at.b = block / tiles / heads, at.h = block / tiles % heads;
    at.own = block % tiles * OWN, at.end = end;
    return at;
}

/* Tile shapes, and what else a kernel does with dx: nothing here, see grad_atomic.cu. */
template <int DIM> struct grad_shape {
    static constexpr int THREADS = SKL_GRAD_THREADS, WARPS = THREADS / 32;
    static constexpr int OWN = SKL_GRAD_OWN(DIM);       /* stationary vectors of a block */
    static constexpr int MT = OWN / WARPS / 16;         /* tiles of 16 of them a warp */
    static constexpr int STREAM = SKL_GRAD_STREAM(DIM); /* streamed vectors in a stage */
    static constexpr int KEPT = SKL_GRAD_KEPT(DIM);     /* sides whose stationary fragments stay in registers: P, Q */
    static constexpr int BLOCKS = DIM <= 128 ? 2 : 1;   /* on one multiprocessor */
    static constexpr bool CHAINED = DIM == 64;          /* see tile() */
    static constexpr int BESIDE = 0;                    /* bytes of shared memory for the functions below */

    template <class G> static __device__ __forceinline__ void start(G &, const property &)
    {
    }
    template <class G> static __device__ __forceinline__ void take_dx(G &, const uint32_t (&)[MT][4], int)
    {
    }
    template <class G> static __device__ __forceinline__ void end_tile(G &, int)
    {
    }
};

/* shared bytes: stationary tiles of the sides not kept in registers, two stages of two streamed tiles; BY_ROWS ranges
 * of the rows, BY_COLUMNS references, factors and ranges of each stage's rows:
 *     (2 - KEPT) 2 OWN DIM  +  BESIDE  +  2 (4 STREAM DIM)  +  (BY_ROWS ? 8 OWN : 2 (32 STREAM)) */
template <class S, int DIM, int BY> struct shared_of {
    static constexpr int OWN_TILE = 2 * S::OWN * DIM, TILE = 2 * S::STREAM * DIM;
    static constexpr int REFERENCES = 2 * TILE; /* in a stage; then factors and ranges */
    static constexpr int FACTORS = REFERENCES + 16 * S::STREAM, RANGES = FACTORS + 8 * S::STREAM;
    static constexpr int STAGE = BY == BY_ROWS ? 2 * TILE : RANGES + 8 * S::STREAM;
    static constexpr int BESIDE = (2 - S::KEPT) * OWN_TILE; /* where these start */
    static constexpr int STAGES = BESIDE + S::BESIDE;
    static constexpr int END = STAGES + 2 * STAGE; /* BY_ROWS: the ranges */
    static constexpr int BYTES = END + (BY == BY_ROWS ? 8 * S::OWN : 0);
};

template <int TYPE, int DIM, int BY, int DZ, class S> struct gradient {
    using M = shared_of<S, DIM, BY>;
    using COPY = tile_copy<S::STREAM, DIM, S::THREADS>;
    static constexpr int KIND = TYPE, MT = S::MT, STEPS = DIM / 16, KEPT = S::KEPT;

    const skl_gpu_grad &args;
    const skl_gpu_problem &p;
    const uint32_t shared;
    const int lane, warp;
    int batch, h, head;                        /* of the query head; its number in all batches */
    int own;                                   /* first stationary vector */
    skl_gpu_reference row[MT][2];              /* BY_ROWS: of the lane's rows, log2 spread added to both minus_log_l */
    float c[MT][2];                            /* BY_ROWS, not SKL_DZ_Q */
    uint32_t a[KEPT ? KEPT : 1][MT][STEPS][4]; /* stationary fragments */
    float out[MT][2 * STEPS][4];
    uint32_t stage;         /* in use */
    uint32_t right, across; /* where this lane reads in a stage: tiles as right operand and, of side x, transposed */
    uint32_t source[2];     /* this thread's place in streamed vector 0 */

    __device__ __forceinline__ gradient(const skl_gpu_grad &g, uint32_t memory)
        : args(g), p(g.problem), shared(memory), lane(threadIdx.x & 31), warp(threadIdx.x >> 5)
    {
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int i = 0; i < 8 * STEPS; i++) out[m][i >> 2][i & 3] = 0;
        stage = shared + M::STAGES;
        right = right_at<DIM>(lane, 0);
        across = (args.x ? M::TILE : 0) + left_at<DIM>(lane, 0);
    }

    /* A lane's address at step k of 16 along DIM: the swizzle works within 64 entries, 128 bytes. */
    static __device__ __forceinline__ uint32_t step_at(uint32_t at, int k)
    {
        return (at ^ (k % 4 << 5)) + k / 4 * 128;
    }

    /* A thread's stationary vectors, in the tile. */
    static __device__ __forceinline__ int own_in_tile(int thread, int m, int half)
    {
        return ((thread >> 5) * MT + m) * 16 + half * 8 + ((thread & 31) >> 2);
    }

    /* ------------------------------------------------------------------------------------------- loads --- */

    /* Stationary vectors of one side: to registers right away, or to shared memory in the background. */
    __device__ __forceinline__ void load_own(int side, const property &at, int h)
    {
        const skl_gpu_side &s = p.side[side];
        const skl_gpu_matrix &from = BY == BY_ROWS ? s.a : s.b;
        const uint16_t *first = vector_of(from, at.b, BY == BY_ROWS ? h : h / s.share, at.own);
        if (side >= KEPT) {
            load_tile<S::OWN, DIM, S::THREADS>(shared + (side - KEPT) * M::OWN_TILE, first, from.stride[2],
                                               at.end - at.own, s.dim);
            return;
        }
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int i = own_in_tile(threadIdx.x, m, half);
                const uint16_t *v = first + i * from.stride[2] + 2 * (lane & 3);
#pragma unroll
                for (int k = 0; k < 2 * STEPS; k++) {
                    uint32_t pair = 0;
                    if (at.own + i < at.end && 8 * k < s.dim)
                        pair = *(const uint32_t *)(v + 8 * k);
                    a[side][m][k >> 1][half + 2 * (k & 1)] = pair;
                }
            }
    }

    /* Streamed are the vectors of query head h, or those that belong to it. */
    __device__ __forceinline__ void start_streams(int b, int h)
    {
        batch = b, this->h = h, head = b * p.heads + h;
#pragma unroll
        for (int side = 0; side < 2; side++) {
            const skl_gpu_side &s = p.side[side];
            const skl_gpu_matrix &from = BY == BY_ROWS ? s.b : s.a;
            source[side] = COPY::start(from, b, BY == BY_ROWS ? h / s.share : h);
        }
    }

    /* The streamed vectors from 'first', with all that belongs to them. */
    __device__ __forceinline__ void load_streamed(uint32_t to, int first)
    {
        const int valid = (BY == BY_ROWS ? p.columns : p.n) - first;
#pragma unroll
        for (int side = 0; side < 2; side++) {
            const skl_gpu_side &s = p.side[side];
            const skl_gpu_matrix &from = BY == BY_ROWS ? s.b : s.a;
            COPY::copy(to + side * M::TILE, from, source[side], first, valid, s.dim);
        }
        if (BY == BY_COLUMNS) {
            /* 2^32 rows would be 64 GiB of factors alone */
            const uint32_t row = (uint32_t)head * p.n + first + threadIdx.x;
            if (threadIdx.x < S::STREAM) {
                const bool in = (int)threadIdx.x < valid;
                copy_async(to + M::REFERENCES + 16 * threadIdx.x, args.references + row, in ? 16 : 0);
                copy_8_bytes(to + M::FACTORS + 8 * threadIdx.x, args.factors + row, in);
                copy_8_bytes(to + M::RANGES + 8 * threadIdx.x, p.range + row, in);
            }
        }
    }

    /* BY_ROWS: what belongs to the lane's rows. */
    __device__ __forceinline__ void load_rows()
    {
        const float spread = (float)((__float_as_int(args.spread) >> 23) - 127);
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int i = own + own_in_tile(threadIdx.x, m, half);
                const int64_t number = (int64_t)head * p.n + i;
                row[m][half] = i < p.n ? args.references[number] : skl_gpu_reference{{0, 0}, {0, 0}};
                row[m][half].minus_log_l[0] += spread, row[m][half].minus_log_l[1] += spread;
                if (DZ != SKL_DZ_Q)
                    c[m][half] = i < p.n ? args.factors[number].c : 0;
            }
    }

    /* ---------------------------------------------------------------------------------------- one tile --- */

    /* x [side][16 stationary][16 streamed]: see multiply(). */
    typedef float logits[2][MT][2][4];

    static __device__ __forceinline__ void clear(logits &x)
    {
#pragma unroll
        for (int i = 0; i < 16 * MT; i++) x[i / (8 * MT)][i / 8 % MT][i / 4 % 2][i % 4] = 0;
    }

    /* Where a thread's lane reads stationary tiles. */
    __device__ __forceinline__ uint32_t left_of(int thread) const
    {
        return shared + (thread >> 5) * MT * 16 * DIM * 2 + left_at<DIM>(thread & 31, 0);
    }

    /* Step i of 2 STEPS towards x of the streamed vectors j .. j+15 of the tile. */
    __device__ __forceinline__ void multiply_step(logits &x, uint32_t left, uint32_t at, int i, int j)
    {
        const int side = i / STEPS, k = i % STEPS;
        uint32_t r[4];
        load_matrices(r, step_at(right + at, k) + side * M::TILE + j * DIM * 2);
#pragma unroll
        for (int m = 0; m < MT; m++) {
            if (side < KEPT) {
                multiply<TYPE>(x[side][m][0], a[side < KEPT ? side : 0][m][k], r[0], r[1]);
                multiply<TYPE>(x[side][m][1], a[side < KEPT ? side : 0][m][k], r[2], r[3]);
            } else {
                uint32_t l[4];
                load_matrices(l, step_at(left, k) + (side - KEPT) * M::OWN_TILE + m * 16 * DIM * 2);
                multiply<TYPE>(x[side][m][0], l, r[0], r[1]);
                multiply<TYPE>(x[side][m][1], l, r[2], r[3]);
            }
        }
    }

    template <int D> __device__ __forceinline__ float dz_at(const row_terms &t, float c, float x_p, float x_q) const
    {
        if (D != DZ_EITHER)
            return dz_of<D>(t, p.side, args.x, c, x_p, x_q);
        return args.dz == SKL_DZ_P ? dz_of<SKL_DZ_P>(t, p.side, args.x, c, x_p, x_q)
                                   : dz_of<SKL_DZ_JSD>(t, p.side, args.x, c, x_p, x_q);
    }

    /* Times d x' / d x, where a logit must be looked at by itself. */
    template <int D>
    __device__ __forceinline__ float edge_dz(const row_terms &t, float c, float x_p, float x_q, int column,
                                             skl_gpu_range r) const
    {
        if (column < r.lo || column >= r.hi)
            return 0;
        x_p = edge_logit(p.side[0], x_p, column, r);
        x_q = edge_logit(p.side[1], x_q, column, r);
        const float cap = args.x ? p.side[1].cap : p.side[0].cap, part = (args.x ? x_q : x_p) / cap;
        const float dz = dz_at<D>(t, c, x_p, x_q);
        return cap != 0 ? dz * fmaf(-part, part, 1.0f) : dz;
    }

    /* BY_COLUMNS: what belongs to the lane's streamed vectors j + 8 block + 2 (lane % 4) + e, with r spread for r. */
    struct streamed_row {
        skl_gpu_reference reference;
        skl_gpu_factors factors;
    };
    typedef streamed_row streamed_rows[2][2];

    __device__ __forceinline__ void load_terms(streamed_rows &t, uint32_t at, int j) const
    {
#pragma unroll
        for (int i = 0; i < 4 && BY == BY_COLUMNS; i++) {
            const int streamed = j + i / 2 * 8 + 2 * (lane & 3) + i % 2;
            skl_gpu_factors &f = t[i / 2][i % 2].factors;
            t[i / 2][i % 2].reference = load_reference(at + M::REFERENCES + 16 * streamed);
            if (DZ == SKL_DZ_Q)
                f = {0, load_weight(at + M::FACTORS + 8 * streamed)};
            else
                f = load_factors(at + M::FACTORS + 8 * streamed);
            f.r *= args.spread;
        }
    }

    /* dx of the lane's pair number i of 4 MT: stationary vectors (m, half), two streamed ones. */
    template <bool EDGE, int D>
    __device__ __forceinline__ void dx_step(uint32_t (&dx)[MT][4], const logits &x, const streamed_rows &terms, int i,
                                            int first, int j, int thread) const
    {
        const int block = i / (2 * MT), m = i / 2 % MT, half = i % 2;
        float d[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int streamed = j + block * 8 + 2 * (thread & 3) + e;
            const float x_p = x[0][m][block][2 * half + e], x_q = x[1][m][block][2 * half + e];
            const skl_gpu_factors &f = terms[block][e].factors;
            const row_terms t = terms_of(p, BY == BY_ROWS ? row[m][half] : terms[block][e].reference);
            const float tc = D == SKL_DZ_Q ? 0 : BY == BY_ROWS ? c[m][half] : f.c;
            if (EDGE) {
                int column = BY == BY_ROWS ? first + streamed : own + own_in_tile(thread, m, half);
                asm volatile("" : "+r"(column)); /* no address is worth a register from one round to the next */
                const skl_gpu_range range = load_range(BY == BY_ROWS
                                                           ? shared + M::END + 8 * own_in_tile(thread, m, half)
                                                           : stage + M::RANGES + 8 * streamed);
                d[e] = edge_dz<D>(t, tc, x_p, x_q, column, range);
            } else {
                d[e] = dz_at<D>(t, tc, x_p, x_q);
            }
            if (BY == BY_COLUMNS)
                d[e] *= f.r;
        }
        dx[m][2 * block + half] = pack<TYPE>(d[0], d[1]);
    }

    /* out += dx times the streamed vectors j .. j+15 of side x. */
    __device__ __forceinline__ void accumulate(const uint32_t (&dx)[MT][4], uint32_t at, int j)
    {
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
            uint32_t v[4];
            load_matrices_transposed(v, step_at(across + at, k) + j * DIM * 2);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                multiply<TYPE>(out[m][2 * k], dx[m], v[0], v[1]);
                multiply<TYPE>(out[m][2 * k + 1], dx[m], v[2], v[3]);
            }
        }
    }

    /* All of the tile in use. CHAINED: the addresses of the next 16 vectors wait for dx of these, or the compiler
     * begins with the products of them all, for which it has no registers, and keeps none to do beside exponentials. */
    template <int D> __device__ __forceinline__ void tile(int first)
    {
        const uint32_t left = left_of(threadIdx.x);
        uint32_t at = stage, none = 0;
        if (S::CHAINED)
            asm volatile("mov.u32 %0, %%ctaid.z;" : "=r"(none)); /* 0: grids have no third dimension */
#pragma unroll
        for (int j = 0; j < S::STREAM; j += 16) {
            logits x;
            uint32_t dx[MT][4];
            streamed_rows terms;
            load_terms(terms, at, j);
            clear(x);
#pragma unroll
            for (int i = 0; i < 2 * STEPS; i++) multiply_step(x, left, at, i, j);
#pragma unroll
            for (int n = 0; n < 4 * MT; n++) dx_step<false, D>(dx, x, terms, n, first, j, threadIdx.x);
            S::take_dx(*this, dx, j);
            accumulate(dx, at, j);
            if (S::CHAINED)
                at = stage + (dx[0][0] & none);
        }
    }

    /* The same where logits must be looked at one by one: rare, and need not be fast. */
    template <int D> __device__ __forceinline__ void edge_tile(int first)
    {
#pragma unroll 1
        for (int j = 0; j < S::STREAM; j += 16) {
            int thread; /* read anew, or what follows from it is kept in registers from round to round */
            asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
            logits x;
            uint32_t dx[MT][4];
            streamed_rows terms;
            load_terms(terms, stage, j);
            const uint32_t left = left_of(DZ == SKL_DZ_Q ? thread : threadIdx.x);
            clear(x);
#pragma unroll
            for (int i = 0; i < 2 * STEPS; i++) multiply_step(x, left, stage, i, j);
#pragma unroll
            for (int n = 0; n < 4 * MT; n++) dx_step<true, D>(dx, x, terms, n, first, j, thread);
            S::take_dx(*this, dx, j);
            accumulate(dx, stage, j);
        }
    }

    /* BY_COLUMNS: the lane's rows of the tile in use, and whether all rows see the block's columns up to 'to'. Rows
     * that do not exist are 0 and do no harm. */
    static constexpr int LOOKS = (S::STREAM + 31) / 32;

    __device__ __forceinline__ void load_ranges_of_tile(skl_gpu_range (&r)[LOOKS]) const
    {
#pragma unroll
        for (int i = 0; i < LOOKS && BY == BY_COLUMNS; i++)
            r[i] = load_range(stage + M::RANGES + 8 * ((32 * i + lane) % S::STREAM));
    }

    __device__ __forceinline__ bool all_see(const skl_gpu_range (&r)[LOOKS], int first, int to) const
    {
        bool all = true;
#pragma unroll
        for (int i = 0; i < LOOKS; i++)
            all &= (r[i].lo <= own && r[i].hi >= to) || first + (32 * i + lane) % S::STREAM >= p.n;
        return __all_sync(~0u, all);
    }

    /* From the tile after 'next' on. One barrier a tile: the copy of the next one is issued right behind it, into the
     * stage that everybody has left. */
    template <class TILES> __device__ __forceinline__ void sweep(TILES tiles, int next, const span &seen)
    {
        /* BY_ROWS: the last tile without edges begins there. BY_COLUMNS: all rows must see the columns up to there. */
        const int to = BY == BY_ROWS     ? plain_logits(p) ? seen.all_hi - S::STREAM : INT32_MIN
                       : plain_logits(p) ? min(own + S::OWN, p.columns)
                                         : INT32_MAX;
        bool more = tiles.next(next);
        if (!more) {
            if (BY == BY_COLUMNS && (S::BESIDE || KEPT < 2)) { /* tiles of the block's own may be on their way */
                commit_copies();
                wait_copies<0>();
            }
            return;
        }
        load_streamed(stage, next); /* into a stage that everybody left at the last tile's barrier, of whatever head */
        commit_copies();
        for (;;) {
            const int first = next;
            const int step = stage == shared + M::STAGES ? M::STAGE : -M::STAGE;
            more = tiles.next(next);
            wait_copies<0>();
            __syncthreads();
            skl_gpu_range r[LOOKS];
            load_ranges_of_tile(r);
            if (more)
                load_streamed(stage + step, next);
            commit_copies();
            const bool inside = BY == BY_COLUMNS ? all_see(r, first, to) : first >= seen.all_lo && first <= to;
            if (DZ == SKL_DZ_Q) {
                if (inside)
                    tile<SKL_DZ_Q>(first);
                else
                    edge_tile<SKL_DZ_Q>(first);
            } else {
                if (inside && args.dz == SKL_DZ_P)
                    tile<SKL_DZ_P>(first);
                else
                    edge_tile<DZ_EITHER>(first);
            }
            S::end_tile(*this, first);
            stage += step;
            if (!more)
                return;
        }
    }

    /* ------------------------------------------------------------------------------------------ result --- */

    /* The vectors of the result, each times a factor, which BY_ROWS has the row's own r in it. */
    __device__ __forceinline__ void write(const skl_gpu_matrix &to)
    {
        const property at = property_of<BY, S::OWN>(args);
        const float factor = factor_of(args);
        const int dim = args.x ? p.side[1].dim : p.side[0].dim, size = to.dtype == f32 ? 4 : 2;
        const bool pairs = ((uintptr_t)to.data & (2 * size - 1)) == 0 &&
                           ((to.stride[0] | to.stride[1] | to.stride[2]) & 1) == 0;
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int i = own_in_tile(threadIdx.x, m, half);
                if (at.own + i >= at.end)
                    continue;
                float f = factor;
                bool empty = false;
                if (BY == BY_ROWS) {
                    f *= args.factors[((int64_t)at.b * p.heads + at.h) * p.n + at.own + i].r;
                    const skl_gpu_range r = load_range(shared + M::END + 8 * i);
                    empty = r.lo >= r.hi;
                }
                const int64_t first = at.b * to.stride[0] + at.h * to.stride[1] + (at.own + i) * to.stride[2] +
                                      2 * (lane & 3);
#pragma unroll
                for (int k = 0; k < 2 * STEPS; k++)
                    if (8 * k < dim) {
                        const float lo = empty ? 0 : out[m][k][2 * half] * f,
                                    hi = empty ? 0 : out[m][k][2 * half + 1] * f;
                        char *where = to.data + (first + 8 * k) * size;
                        if (!pairs)
                            put_element(where, 0, to.dtype, lo), put_element(where, 1, to.dtype, hi);
                        else if (to.dtype == f32)
                            *(float2 *)where = make_float2(lo, hi);
                        else
                            *(uint32_t *)where = pack<TYPE>(lo, hi);
                    }
            }
    }
};

/* dA of OWN rows of one head. */
template <int TYPE, int DIM, int DZ, class S>
SKL_DEVICE void gradient_by_rows(const skl_gpu_grad &args, unsigned char *memory)
{
    using G = gradient<TYPE, DIM, BY_ROWS, DZ, S>;
    G g(args, shared_address(memory));
    const span seen = load_ranges<S::OWN, S::THREADS>(args.problem, place_of<S::OWN>(args.problem, blockIdx.x),
                                                      (skl_gpu_range *)(memory + G::M::END));
    if (seen.lo < seen.hi) {
        const property at = property_of<BY_ROWS, S::OWN>(args);
        g.own = at.own;
        g.start_streams(at.b, at.h);
#pragma unroll
        for (int side = 0; side < 2; side++) g.load_own(side, at, at.h);
        g.load_rows();
        g.sweep(all_tiles<S::STREAM>{seen.hi}, (seen.lo / S::STREAM - 1) * S::STREAM, seen);
    }
    g.write(args.grad_a);
}

/* dB of OWN columns of one head of B: from every query head that shares it. The other side's head may change between;
 * that the same vectors are mostly loaded again costs less than to remember which are. */
template <int TYPE, int DIM, int DZ, class S>
SKL_DEVICE void gradient_by_columns(const skl_gpu_grad &args, unsigned char *memory)
{
    using G = gradient<TYPE, DIM, BY_COLUMNS, DZ, S>;
    const skl_gpu_problem &p = args.problem;
    const int share = args.x ? p.side[1].share : p.side[0].share;
    G g(args, shared_address(memory));
    for (int i = 0; i < share; i++) {
        const property at = property_of<BY_COLUMNS, S::OWN>(args);
        const int h = at.h * share + i;
        g.own = at.own;
        g.start_streams(at.b, h);
        if (i == 0)
            S::start(g, at);
        if (G::KEPT < 2)
            __syncthreads();
#pragma unroll
        for (int side = 0; side < 2; side++) g.load_own(side, at, h);
        g.sweep(seen_tiles<S::STREAM>{args.tile_range, g.head, p.n, at.own, min(at.own + S::OWN, p.columns), 0, 0}, 0,
                span{});
    }
    g.write(args.grad_b);
}

#endif
