/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows that see keys of their own (lists of keys), and students that are indexers, dense or with lists:
 *
 *     sort_keys     the list of a query in order; rows without a key that they see           a block a query
 *     keys_lse      m and l of one head of a mixture, mixture.alone, where they are not given  a block a row
 *     keys_kl       m, l and acc, as any sweep                                                a block a row
 *     keys_second   the two sums of a second sweep
 *     keys_top      the largest scores, or how many are above others
 *     keys_scores   scores of side Q into a slab, for lists of the largest
 *     keys_rows     da = sum_j dx_j b_j; of an indexer da_k = sum_j dx_j w_k act'(<a_k, b_j>) b_j and
 *                   dw_k = sum_j dx_j act(<a_k, b_j>)            a warp a row, head and 256 entries of a vector
 *     keys_columns  db_j, the sum over the rows that see j, in their order     a warp 8 columns and 256 entries
 *
 * Blocks have 128 threads, those of keys_rows 32. A score is a dot product by a warp, whose lanes then have a key each:
 * nothing is kept but the lists, gradients compute scores anew. Every sum has one order: the same bits every time.
 *   bytes of a row   for each of its keys the vector of b, of every head and side, in each kernel; so caches decide.
 *   keys_columns
 *                    looks into every row's list once for each 8 columns.
 *   error            a lane sums every 128th key in f32, the lanes' states are merged in f32 and the warps' in double
 */
#include "keys.cuh"
#include "top.cuh"

/* An id that is neither a key nor -1 makes the query's rows NaN, and nothing is read through it. */
extern "C" __global__ void __launch_bounds__(128) skl_sort_keys(const __grid_constant__ skl_gpu_keys args)
{
    __shared__ bool wrong[4]; /* of each warp */
    __shared__ int room;      /* the same for all lanes, and whoever reads the machine code sees it */
    const skl_gpu_problem &p = args.forward.problem;
    const uint32_t b = blockIdx.x / (uint32_t)p.n, i = blockIdx.x % (uint32_t)p.n;
    int32_t *const list = args.listed + (int64_t)blockIdx.x * (args.room + 1);
    int start = 0, columns = p.columns;
    if (args.packed.q && !args.scalars->bad_offsets) {
        const int s = sequence_of(args.packed, (int)i);
        start = first_column(args.packed, s), columns = first_column(args.packed, s + 1) - start;
    }
    bool wrong_here = false;
    const int64_t at = b * args.ids.rows.stride[0] + i * args.ids.rows.stride[2];
    for (int k = threadIdx.x; k <= args.room; k += 128) {
        const int64_t id = k < args.ids.count ? id_at(args.ids, at + k * args.ids.step) : -1, from = id * args.block;
        const bool none = id < 0 || from >= columns;
        wrong_here |= id < -1 || (id >= 0 && none);
        list[k] = none ? NO_COLUMN : start + (int)from;
    }
    __syncwarp();
    wrong_here = __any_sync(~0u, wrong_here);
    if (threadIdx.x % 32 == 0)
        wrong[threadIdx.x / 32] = wrong_here;
    if (threadIdx.x == 0)
        room = args.room;
    meet();
    sort(list, room);
    const bool bad = wrong[0] || wrong[1] || wrong[2] || wrong[3];
    for (int h = threadIdx.x; h < p.heads; h += 128) {
        const uint32_t number = (b * p.heads + h) * p.n + i;
        const key_row row(args, number);
        if (row.range.lo < row.range.hi && (bad || !sees_some(args, row, row.range.lo, row.range.hi)))
            args.range[number] = {0, bad ? -1 : 0};
    }
}

/* ---------------------------------------------------------------------------------------------------- sweeps --- */

namespace
{

SKL_DEVICE void push(row_state &s, float x_p, float x_q, const float (&factor)[2])
{
    const float one[2][1] = {{x_p}, {x_q}};
    raise_state(s, one, factor);
    add(s, sums_of<true>(s, one, factor));
}

/* One state a warp. */
SKL_DEVICE void write_merged(const skl_gpu_forward &args, const row_state &of_lane, const float (&factor)[2])
{
    const int64_t rows = args.problem.rows;
    const row_state s = merged_over_lanes<32>(of_lane, factor);
    if (threadIdx.x % 32 == 0)
        write_state(args.state + (int64_t)(threadIdx.x / 32) * SKL_STATES * rows, rows, blockIdx.x, s);
}

}  // namespace

/* The head as both sides. */
extern "C" __global__ void __launch_bounds__(128, 4) skl_keys_lse(const __grid_constant__ skl_gpu_keys args)
{
    const skl_gpu_mixture &m = args.forward.problem.mixture;
    const float factor[2] = {m.factor, m.factor};
    row_state s = empty_state();
    each_column(args, blockIdx.x, [&](int column) {
        const float x = head_scores(args, m.side, m.alone, blockIdx.x, column);
        if (column >= 0)
            push(s, x, x, factor);
    });
    write_merged(args.forward, s, factor);
}

extern "C" __global__ void __launch_bounds__(128, 4) skl_keys_kl(const __grid_constant__ skl_gpu_keys args)
{
    const skl_gpu_problem &p = args.forward.problem;
    const float factor[2] = {p.side[0].factor, p.side[1].factor};
    row_state s = empty_state();
    each_key(args, blockIdx.x, [&](const float(&x)[2], int) { push(s, x[0], x[1], factor); });
    write_merged(args.forward, s, factor);
}

extern "C" __global__ void __launch_bounds__(128, 4) skl_keys_second(const __grid_constant__ skl_gpu_keys args)
{
    const skl_gpu_problem &p = args.forward.problem;
    const row_terms t = terms_of(p, args.forward.references[blockIdx.x]);
    const parameters a = parameters_of(p);
    float sum[2] = {0, 0};
    each_key(args, blockIdx.x, [&](const float(&x)[2], int) {
        switch (args.forward.form) {
        case SKL_FORM_JSD: add_mixture_terms(t, p.side, x[0], x[1], sum); break;
        case SKL_FORM_SKEW: add_column<SKL_FORM_SKEW>(t, a, x[0], x[1], sum); break;
        case SKL_FORM_TOTAL_VARIATION: add_column<SKL_FORM_TOTAL_VARIATION>(t, a, x[0], x[1], sum); break;
        case SKL_FORM_ALPHA_BETA: add_column<SKL_FORM_ALPHA_BETA>(t, a, x[0], x[1], sum); break;
        }
    });
#pragma unroll
    for (int step = 1; step < 32; step *= 2)
#pragma unroll
        for (int side = 0; side < 2; side++) sum[side] += __shfl_xor_sync(~0u, sum[side], step);
    if (threadIdx.x % 32 == 0)
        write_state(args.forward.state + (int64_t)(threadIdx.x / 32) * SKL_STATES * p.rows, p.rows, blockIdx.x,
                    {{0, 0}, {sum[0], sum[1]}, 0});
}

extern "C" __global__ void __launch_bounds__(128, 4) skl_keys_top(const __grid_constant__ skl_gpu_keys args)
{
    row_top top;
    top.start(args.forward, blockIdx.x, 0);
    each_key(args, blockIdx.x, [&](const float(&x)[2], int column) {
        const float one[2][1] = {{x[0]}, {x[1]}};
        const int columns[1] = {column};
        top.push(one, columns, args.forward.problem.columns);
    });
    top.write<32>(args.forward, threadIdx.x / 32, blockIdx.x, threadIdx.x % 32 == 0);
}

/* Of row blockIdx.x of the slab; only of the columns that it sees. */
extern "C" __global__ void __launch_bounds__(128, 4) skl_keys_scores(const __grid_constant__ skl_gpu_key_scores args)
{
    const skl_gpu_slab &slab = args.slab;
    const uint32_t number = (uint32_t)slab.head * slab.grad.problem.n + slab.first_row + blockIdx.x;
    const key_row row(args.keys, number);
    const int first = max(row.range.lo, slab.first_column);
    const int last = min(row.range.hi, slab.first_column + slab.columns);
    float *const out = (float *)slab.slab + blockIdx.x * slab.ld - slab.first_column;
    for (int warp = first + (int)(threadIdx.x & ~31); warp < last; warp += SKL_KEY_THREADS) {
        const int column = warp + (int)threadIdx.x % 32 < last ? warp + (int)threadIdx.x % 32 : -1;
        const float x = by_warp(number, column, [&](uint32_t r, int j, int lane) {
            return key_score(args.keys, 1, r, key_row(args.keys, r), j, lane);
        });
        if (column >= 0)
            out[column] = x;
    }
}

/* ------------------------------------------------------------------------------------------------- gradients --- */

namespace
{

enum { COLUMNS = SKL_KEY_COLUMNS, ROWS = 32 / COLUMNS, EACH = SKL_KEY_ENTRIES / 32 };

/* The unit of work of this warp. */
SKL_DEVICE uint32_t own_unit()
{
    return blockIdx.x * (SKL_KEY_THREADS / 32) + threadIdx.x / 32;
}

/* sum += x times the lane's entries of a vector, of which those from d on, every 32nd, are its own. */
SKL_DEVICE void add_entries(float (&sum)[EACH], float x, const skl_gpu_matrix &of, int64_t at, int d, int dim)
{
#pragma unroll
    for (int e = 0; e < EACH; e++)
        if (d + 32 * e < dim)
            sum[e] = fmaf(x, element(of.data, at + d + 32 * e, of.dtype), sum[e]);
}

/* dx of the lanes' own rows and columns; 0 where there is none. */
SKL_DEVICE float key_dx(const skl_gpu_key_grad &args, uint32_t number, int column)
{
    float x[2];
    key_scores(args.keys, number, column, x);
    const row_terms t = terms_of(args.keys.forward.problem, args.grad.references[number]);
    const skl_gpu_factors f = args.grad.factors[number];
    const float dx = args.grad.dz == SKL_DZ_COLUMN ? dx_of_column(args.grad, f, t, x[0], x[1])
                                                   : dx_of(args.grad, f, t, x[0], x[1]);
    return column < 0 ? 0 : dx;
}

/* ... of the k-th head's product; what dw_k gets. */
SKL_DEVICE float head_dx(const skl_gpu_key_grad &args, int k, uint32_t number, int column, float dx, float &dw)
{
    const skl_gpu_scorer &s = args.keys.scorer[args.grad.x];
    if (s.kind != SKL_SCORE_INDEX)
        return dx;
    const float x = head_scores(args.keys, args.grad.x, k, number, dx != 0 ? column : -1);
    dw += dx != 0 ? dx * activation(s, x) : 0; /* 0 times what is not finite stays 0 */
    const float weight = head_weight(s, key_row(args.keys, number), k);
    return dx != 0 && slope_of_activation(s, x) != 0 ? dx * weight : 0;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(32, 16) skl_keys_rows(const __grid_constant__ skl_gpu_key_grad args)
{
    const skl_gpu_side &side = args.keys.forward.problem.side[args.grad.x];
    const skl_gpu_scorer &s = args.keys.scorer[args.grad.x];
    const uint32_t number = blockIdx.x;
    const key_row row(args.keys, number);
    const int lane = threadIdx.x % 32, k = blockIdx.y / (uint32_t)args.parts;
    const int part = blockIdx.y % (uint32_t)args.parts, d = part * SKL_KEY_ENTRIES + lane;
    const int64_t head = (int64_t)row.h * s.members + k;
    const int64_t b_at = row.b * side.b.stride[0] + (uint32_t)head / (uint32_t)side.share * side.b.stride[1];
    float sum[EACH] = {}, dw = 0;
    int first, last;
    entries_of(args.keys, row, first, last);
    __syncwarp(); /* the same for all lanes, and whoever reads the machine code sees it */
    first = __shfl_sync(~0u, first, 0), last = __shfl_sync(~0u, last, 0);
    for (; first < last; first += 32) {
        const int entry = first + lane, column = entry < last ? column_at(args.keys, row, entry) : -1;
        const float dx = head_dx(args, k, number, column, key_dx(args, number, column), dw);
        __syncwarp();
        for (uint32_t left = __ballot_sync(~0u, dx != 0); left; left &= left - 1) {
            const int whose = __ffs((int)left) - 1;
            const float of = __shfl_sync(~0u, dx, whose);
            add_entries(sum, of, side.b, b_at + __shfl_sync(~0u, column, whose) * side.b.stride[2], d, side.dim);
            __syncwarp();
        }
    }
    const float alpha = args.grad.scalars->alpha[args.grad.x];
    const bool known = row.range.hi >= 0; /* else nobody can tell what the row sees */
    const skl_gpu_matrix &to = args.grad.grad_a;
    const int64_t at = row.b * to.stride[0] + head * to.stride[1] + row.i * to.stride[2];
#pragma unroll
    for (int e = 0; e < EACH; e++)
        if (to.data && d + 32 * e < side.dim)
            put_element(to.data, at + d + 32 * e, to.dtype, known ? sum[e] != 0 ? alpha * sum[e] : 0 : NAN);
    __syncwarp();
#pragma unroll
    for (int step = 16; step; step >>= 1) dw += __shfl_xor_sync(~0u, dw, step);
    if (lane == 0 && s.kind == SKL_SCORE_INDEX && args.grad_w.data && part == 0)
        put_element(args.grad_w.data,
                    row.b * args.grad_w.stride[0] + row.i * args.grad_w.stride[2] + k * args.grad_w_step,
                    args.grad_w.dtype, known ? dw != 0 ? alpha * dw : 0 : NAN);
}

/* Of 32 rows those that see some of the columns are taken, ROWS at a time: a lane has one of them and one column. */
extern "C" __global__ void __launch_bounds__(128, 3) skl_keys_columns(const __grid_constant__ skl_gpu_key_grad args)
{
    const skl_gpu_problem &p = args.keys.forward.problem;
    const skl_gpu_side &side = p.side[args.grad.x];
    const skl_gpu_scorer &s = args.keys.scorer[args.grad.x];
    const bool index = s.kind == SKL_SCORE_INDEX;
    const uint32_t tiles = (uint32_t)(p.columns + COLUMNS - 1) / COLUMNS, head = own_unit() / tiles;
    const uint32_t b = head / (uint32_t)args.b_heads, h = head % (uint32_t)args.b_heads;
    if (head >= (uint32_t)args.heads)
        return;
    const uint32_t heads = index ? 1 : (uint32_t)side.share, lane = threadIdx.x % 32;
    const int first = (int)(own_unit() % tiles) * COLUMNS, last = min(first + COLUMNS, p.columns);
    const int d = blockIdx.y * SKL_KEY_ENTRIES + (int)lane;
    const uint32_t from = (b * p.heads + h * heads) * p.n, to = from + heads * p.n;
    float sum[COLUMNS][EACH] = {}, unused = 0;
    for (uint32_t base = from; base < to; base += 32) {
        const uint32_t mine = base + lane;
        const bool some = mine < to && sees_some(args.keys, key_row(args.keys, mine), first, last);
        __syncwarp();
        for (uint32_t left = __ballot_sync(~0u, some); left;) {
            uint32_t row = base;
            bool there = false;
#pragma unroll
            for (uint32_t r = 0; r < ROWS; r++) {
                if (lane / COLUMNS == r)
                    there = left != 0, row = there ? base + __ffs((int)left) - 1 : base;
                left &= left - 1;
            }
            int column = first + (int)(lane % COLUMNS);
            column = there && column < last && sees(args.keys, key_row(args.keys, row), column) ? column : -1;
            const float dx = key_dx(args, row, column);
            for (int k = 0; k < (index ? s.members : 1); k++) {
                const float of_head = head_dx(args, k, row, column, dx, unused);
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    __syncwarp();
                    const uint32_t number = __shfl_sync(~0u, row, r * COLUMNS);
                    const key_row of(args.keys, number);
                    const int64_t a_at = of.b * side.a.stride[0] + ((int64_t)of.h * s.members + k) * side.a.stride[1] +
                                         of.i * side.a.stride[2];
#pragma unroll
                    for (int j = 0; j < COLUMNS; j++) {
                        const float x = __shfl_sync(~0u, of_head, r * COLUMNS + j);
                        if (x != 0) /* 0 times what is not finite stays 0 */
                            add_entries(sum[j], x, side.a, a_at, d, side.dim);
                        __syncwarp();
                    }
                }
            }
        }
    }
    const float alpha = args.grad.scalars->alpha[args.grad.x];
    const skl_gpu_matrix &out = args.grad.grad_b;
#pragma unroll
    for (int j = 0; j < COLUMNS; j++)
#pragma unroll
        for (int e = 0; e < EACH; e++)
            if (first + j < last && d + 32 * e < side.dim)
                put_element(out.data, b * out.stride[0] + h * out.stride[1] + (first + j) * out.stride[2] + d + 32 * e,
                            out.dtype, alpha * sum[j][e]);
}
