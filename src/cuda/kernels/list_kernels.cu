/* SPDX-License-Identifier: Apache-2.0
 *
 * A listed teacher: a few columns S of each row with their masses p, and one number for all the others. The formulas
 * are those of ../../cpu/listed.c, in double; what a sweep over the columns off S leaves of the student (rest.cuh) is
 * here merged with S.
 *
 *     sort_lists      by column and mass, equal columns merged; masses as tail and temperature want them
 *     score_lists     x_k = <a, b[id_k]> + bias                                a warp each
 *     finish_lists    m, l of all columns; D; dz_k
 *     list_factors    off S: dz_j = c e^{z_j - LSE_rest}, as masses of SKL_DZ_Q
 *     put_list_entries dz_k into a slab of dx, over what its kernel made there
 *     list_da         da = sum_k dz_k b[id_k]                                  where S is all there is: no slab
 *     list_db         db_j = sum of dz_k a over the rows that list j, in their order
 *
 * Blocks of 128 threads: one a row, but for put_list_entries (a warp a row) and list_db (16 columns x 256 entries of
 * them). Sums have one order: the same bits every time.
 *   bytes of a row   20 an entry of the list; K dim elements of b for the scores, as many for da; for db those of a,
 *   and db
 *                    once, whatever is listed. list_db searches every row's list for each 16 columns x 256 entries.
 */
#include "divergence.cuh"
#include "listed.cuh"
#include "scores.cuh"
#include "sort.cuh"
#include "../shapes.h"

namespace
{

/* What the threads tell each other goes through shared memory. A PLACE belongs to one call of a kernel, which stands in
 * no loop: nothing is written there twice, and one barrier is enough. */

/* What thread 0 has, in all of them: what branches on it then is the same for all lanes, and whoever reads the machine
 * code sees it. */
template <int PLACE> SKL_DEVICE double of_first(double x)
{
    __shared__ double told;
    if (threadIdx.x == 0)
        told = x;
    meet();
    return told;
}

template <int PLACE> SKL_DEVICE double block_sum(double x)
{
    __shared__ double part[4];
    __syncwarp();
#pragma unroll
    for (int step = 16; step; step >>= 1) x += __shfl_xor_sync(~0u, x, step);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = x;
    __syncthreads();
    return (part[0] + part[1]) + (part[2] + part[3]);
}

/* Passes over NaN. */
template <int PLACE> SKL_DEVICE double block_max(double x)
{
    __shared__ double part[4];
    __syncwarp();
#pragma unroll
    for (int step = 16; step; step >>= 1) x = fmax(x, __shfl_xor_sync(~0u, x, step));
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = x;
    __syncthreads();
    return fmax(fmax(part[0], part[1]), fmax(part[2], part[3]));
}

/* One row's list in the workspace. Rows are blocks, and so have numbers of 32 bits: their indices take no call of a
 * division, behind which nobody could tell that all lanes have the same. */
struct own_list {
    const skl_gpu_lists &l;
    const uint32_t row, head;
    const int b, h, i;
    int32_t *const column; /* ascending, NO_COLUMN behind the last; of equal ones the first has the mass */
    double *const logp;
    skl_gpu_entry *const entry;

    __device__ __forceinline__ own_list(const skl_gpu_lists &lists, uint32_t number)
        : l(lists), row(number), head(number / (uint32_t)lists.n), b(head / (uint32_t)lists.heads),
          h(head % (uint32_t)lists.heads), i(number % (uint32_t)lists.n),
          column(lists.column + (int64_t)number * (lists.room + 1)), logp(lists.logp + (int64_t)number * lists.room),
          entry(lists.entry + (int64_t)number * lists.room)
    {
    }
    __device__ __forceinline__ int64_t at(const int64_t (&stride)[3]) const
    {
        return b * stride[0] + h * stride[1] + i * stride[2];
    }
    __device__ __forceinline__ float value(const skl_gpu_vector &v) const
    {
        return ((const float *)v.data)[at(v.stride)];
    }
    __device__ __forceinline__ bool has(int k) const
    {
        return column[k] != NO_COLUMN && (k == 0 || column[k - 1] != column[k]);
    }
    /* The block's sum of of(k) over the list. Entry k is thread k % 128's here and wherever a block changes masses. */
    template <int PLACE, class OF> __device__ __forceinline__ double sum(OF of) const
    {
        double x = 0;
        for (int k = threadIdx.x; k < l.room; k += 128) x += has(k) ? of(k) : 0;
        return block_sum<PLACE>(x);
    }
    template <int PLACE, class OF> __device__ __forceinline__ double largest(OF of) const
    {
        double x = -HUGE_VAL;
        for (int k = threadIdx.x; k < l.room; k += 128) x = has(k) ? fmax(x, of(k)) : x;
        return block_max<PLACE>(x);
    }
};

/* ---------------------------------------------------------------------------------------------------- sort --- */

/* The column above a number that has the order of f: NaN behind all others. */
SKL_DEVICE uint64_t key_of(int64_t column, float f)
{
    const uint32_t bits = f != f ? 0x7FC00000u : __float_as_uint(f);
    return (uint64_t)column << 32 | (bits >> 31 ? ~bits : bits | 0x80000000u);
}

SKL_DEVICE double logp_of(uint64_t key)
{
    const uint32_t bits = (uint32_t)key;
    return __uint_as_float(bits >> 31 ? bits & 0x7FFFFFFFu : ~bits);
}

/* log(e^x + e^y) */
SKL_DEVICE double log_sum(double x, double y)
{
    const double high = x > y ? x : y, low = x > y ? y : x;
    return high == -HUGE_VAL ? low : high + log1p(exp(low - high));
}

/* The masses at the problem's temperature and as the tail wants them. */
SKL_DEVICE skl_gpu_list settled(const own_list &list, int n)
{
    const skl_gpu_lists &l = list.l;
    const bool own = l.tail == SKL_TAIL_RENORMALISE || l.tail == SKL_TAIL_TEACHER, raised = l.power != 1;
    const double power = raised ? l.power : 1;
    const bool first = threadIdx.x == 0, missing = !own && n < l.columns;
    skl_gpu_list to = {};
    double rest = -HUGE_VAL, total = 0;
    if (missing && l.rest.data)
        rest = list.value(l.rest);
    else if (missing) {
        const double sum = list.sum<0>([&](int k) { return exp(list.logp[k]); });
        rest = first && sum < 1 ? log(1 - sum) : -HUGE_VAL;
    }
    to.rest = of_first<0>(power * rest);
    if (own || raised) {
        const double high = fmax(to.rest, power * list.largest<0>([&](int k) { return list.logp[k]; }));
        double x = first ? exp(to.rest - high) : 0;
        for (int k = threadIdx.x; k < l.room; k += 128) x += list.has(k) ? exp(power * list.logp[k] - high) : 0;
        const double sum = block_sum<1>(x);
        total = of_first<1>(!first || high == -HUGE_VAL ? 0 : high + log(sum));
    }
    to.rest = l.tail == SKL_TAIL_BUCKET ? to.rest - total : -HUGE_VAL;
    for (int k = threadIdx.x; k < l.room; k += 128) list.logp[k] = power * list.logp[k] - total;
    to.mass = exp(to.rest) + list.sum<2>([&](int k) { return exp(list.logp[k]); });
    return to;
}

}  // namespace

/* A row without weight has no list; one that lists nothing sees no column. An id that is neither a column nor -1 makes
 * its row NaN, and nothing is read through it. */
extern "C" __global__ void __launch_bounds__(128, 4) skl_sort_lists(const __grid_constant__ skl_gpu_lists l)
{
    const own_list list(l, blockIdx.x);
    uint64_t *const keys = (uint64_t *)list.entry;
    const bool work = l.range[list.row].lo < l.range[list.row].hi;
    const int64_t at = list.at(l.logprobs.stride);
    bool wrong = false;
    for (int k = threadIdx.x; k < l.room; k += 128) {
        const int64_t id = work && k < l.ids.count ? id_at(l.ids, list.at(l.ids.rows.stride) + k * l.ids.step) : -1;
        wrong |= id < -1 || id >= l.columns;
        keys[k] = id < 0 || id >= l.columns ? ~(uint64_t)0
                                            : key_of(id, element(l.logprobs.data, at + k, l.logprobs.dtype));
    }
    sort(keys, l.room);
    int n = 0;
    for (int k = threadIdx.x; k <= l.room; k += 128)
        list.column[k] = k == l.room || keys[k] == ~(uint64_t)0 ? NO_COLUMN : (int)(keys[k] >> 32);
    meet();
    for (int k = threadIdx.x; k < l.room; k += 128) {
        double logp = -HUGE_VAL;
        if (list.has(k)) {
            logp = logp_of(keys[k]);
            for (int i = k + 1; list.column[i] == list.column[k]; i++) logp = log_sum(logp, logp_of(keys[i]));
            n++;
        }
        list.logp[k] = logp;
    }
    n = (int)block_sum<3>(n), wrong = block_sum<4>(wrong) > 0;
    skl_gpu_list to = settled(list, n);
    if (threadIdx.x != 0)
        return;
    to.mass = wrong ? NAN : to.mass;
    l.list[list.row] = to;
    if (n == 0 && !wrong)
        l.range[list.row] = {0, 0};
}

extern "C" __global__ void __launch_bounds__(128) skl_score_lists(const __grid_constant__ skl_gpu_lists l)
{
    const own_list list(l, blockIdx.x);
    const int lane = threadIdx.x % 32;
    for (int k = threadIdx.x / 32; k < l.room; k += 4) {
        float x = -INFINITY;
        if (__any_sync(~0u, list.has(k))) /* the same for all lanes, and the compiler sees it */
            x = score_at(l.side, list.b, list.h, list.i, list.column[k], lane);
        if (lane == 0)
            list.entry[k] = {x, 0};
    }
}

/* ------------------------------------------------------------------------------------------------- results --- */

namespace
{

/* p log(p / q); no mass, no contribution. */
SKL_DEVICE double term(double log_p, double log_q)
{
    const double p = exp(log_p);
    return p == 0 ? 0 : p * (log_p - log_q);
}

/* dz of a category, from the logarithms of its two masses. */
SKL_DEVICE double slope(const skl_gpu_lists &l, const skl_gpu_list &row, double log_p, double log_q)
{
    const double q = exp(log_q);
    if (l.reverse)
        return q == 0 ? 0 : q * (log_q - log_p - row.d);
    return row.mass * q - exp(log_p);
}

/* LSE over the columns that count, those of S under renormalise, is m + log_l. */
SKL_DEVICE double log_q(const own_list &list, const skl_gpu_list &row, int k)
{
    return (list.l.unit * list.entry[k].x - row.m) - row.log_l;
}

SKL_DEVICE void put(const own_list &list, const skl_gpu_vector &v, double x)
{
    if (v.data)
        ((float *)v.data)[list.at(v.stride)] = (float)x;
}

/* m, sum: of all columns. */
SKL_DEVICE void put_list(const own_list &list, const skl_gpu_list &r, double m, double sum)
{
    const skl_gpu_lists &l = list.l;
    put(list, l.lse, sum == 0 ? -HUGE_VAL : m + log(sum));
    put(list, l.m, m * l.per_unit);
    put(list, l.l, sum);
    put(list, l.m_rest, r.m_rest * l.per_unit);
    put(list, l.l_rest, r.l_rest);
    put(list, l.row_loss, r.d);
    if (l.loss)
        l.loss[list.row] = r.d;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(128, 4) skl_finish_lists(const __grid_constant__ skl_gpu_lists l)
{
    const own_list list(l, blockIdx.x);
    const bool renormalise = l.tail == SKL_TAIL_RENORMALISE, work = l.range[list.row].lo < l.range[list.row].hi;
    skl_gpu_list r = l.list[list.row];
    r.m_rest = -HUGE_VAL, r.l_rest = 0, r.d = 0;
    if (work && l.states) /* by student and teacher: the student is Q */
        r.m_rest = l.states[list.row].m_s, r.l_rest = l.states[list.row].l_s;
    else if (work && l.saved_m.data)
        r.m_rest = l.unit * list.value(l.saved_m), r.l_rest = list.value(l.saved_l);
    /* Under renormalise the list has an m of its own: columns off it may be so large that nothing is left under
     * theirs. */
    const double top = list.largest<0>([&](int k) { return l.unit * list.entry[k].x; }), m = fmax(r.m_rest, top);
    r.m = renormalise ? top : m;
    const double on = list.sum<0>([&](int k) {
        const float x = list.entry[k].x;
        return x == -INFINITY ? 0 : exp(l.unit * x - r.m);
    });
    const double all = (on != 0 ? on * exp(r.m - m) : 0) + (r.l_rest != 0 ? r.l_rest * exp(r.m_rest - m) : 0);
    const double counted = renormalise ? on : all;
    r.log_l = log(counted);
    r.log_q_rest = r.l_rest == 0 || renormalise ? -HUGE_VAL : (r.m_rest - r.m) + (log(r.l_rest) - r.log_l);
    const double sum = list.sum<1>([&](int k) {
        return l.reverse ? term(log_q(list, r, k), list.logp[k]) : term(list.logp[k], log_q(list, r, k));
    });
    if (work) {
        r.d = sum;
        if (l.tail == SKL_TAIL_BUCKET)
            r.d += l.reverse ? term(r.log_q_rest, r.rest) : term(r.rest, r.log_q_rest);
        r.d = r.mass != r.mass ? NAN : counted == 0 ? HUGE_VAL : r.d;
    }
    for (int k = threadIdx.x; k < l.room; k += 128)
        if (list.has(k)) {
            const float x = list.entry[k].x, tanh = l.side.cap != 0 ? x / l.side.cap : 0;
            const double dz = counted == 0 ? 0 : slope(l, r, list.logp[k], log_q(list, r, k));
            list.entry[k].dz = (float)(dz * (1 - (double)tanh * tanh));
        }
    r.off = counted == 0 ? 0 : slope(l, r, r.rest, r.log_q_rest);
    if (threadIdx.x == 0) {
        l.list[list.row] = r;
        put_list(list, r, m, all);
    }
}

/* ----------------------------------------------------------------------------------------------- gradients --- */

namespace
{

/* A row's upstream gradient over the largest, as factors.r has it, with the divergence's weight. The largest may be 0:
 * no row takes part then. */
SKL_DEVICE float share_of(const skl_gpu_list_grad &args, const own_list &list)
{
    const skl_gpu_range r = args.lists.range[list.row];
    const float w = args.weight.data ? list.value(args.weight) / args.scalars->largest : 1;
    return r.lo < r.hi ? (float)(args.kl_weight / args.norm) * w : 0;
}

}  // namespace

/* dz_j = c e^{z_j - LSE_rest} of the columns off the list: |c| is Q's mass, its sign is r's. */
extern "C" __global__ void __launch_bounds__(128) skl_list_factors(const __grid_constant__ skl_gpu_list_grad args)
{
    const int64_t row = own_row();
    if (row >= args.lists.rows)
        return;
    const skl_gpu_list r = args.lists.list[row];
    const float share = share_of(args, own_list(args.lists, (uint32_t)row));
    skl_gpu_reference to = {{0, 0}, {SKL_NO_MASS, SKL_NO_MASS}};
    if (share != 0 && r.off != 0 && r.l_rest != 0) {
        to.m[1] = (float)(r.m_rest * args.lists.per_unit);
        to.minus_log_l[1] = r.off == r.off ? (float)(log2(fabs(r.off)) - log2(r.l_rest)) : 0;
    }
    args.references[row] = to;
    args.factors[row] = {0, r.off == r.off ? r.off < 0 ? -share : share : NAN};
}

extern "C" __global__ void __launch_bounds__(128) skl_put_list_entries(const __grid_constant__ skl_gpu_list_grad args)
{
    const int i = blockIdx.x * 4 + threadIdx.x / 32;
    if (i >= args.slab.rows)
        return;
    const own_list list(args.lists, (uint32_t)args.slab.head * args.lists.n + args.slab.first_row + i);
    const float scale = share_of(args, list) * args.slab.grad.spread;
    for (int k = threadIdx.x % 32; k < args.lists.room; k += 32) {
        const int j = list.column[k] - args.slab.first_column;
        if (list.has(k) && j >= 0 && j < args.slab.columns)
            put_element(args.slab.slab, i * args.slab.ld + j, args.slab.dtype, scale * list.entry[k].dz);
    }
}

extern "C" __global__ void __launch_bounds__(128) skl_list_da(const __grid_constant__ skl_gpu_list_grad args)
{
    const own_list list(args.lists, blockIdx.x);
    const skl_gpu_side &s = args.lists.side;
    const float scale = share_of(args, list) * (float)(args.scalars->unit * args.chain);
    const int64_t to = list.at(args.grad_a.stride);
    for (int d = threadIdx.x; d < s.dim; d += 128) {
        float sum = 0;
        for (int k = 0; list.column[k] != NO_COLUMN; k++) {
            const float dz = list.has(k) ? list.entry[k].dz : 0;
            if (dz != 0) /* 0 times what is not finite stays 0 */
                sum = fmaf(dz, element(s.b.data, list.column[k] * s.b.stride[2] + d, s.b.dtype), sum);
        }
        put_element(args.grad_a.data, to + d, args.grad_a.dtype, scale != 0 ? scale * sum : 0);
    }
}

enum { DB_COLUMNS = SKL_LIST_COLUMNS, DB_ENTRIES = SKL_LIST_ENTRIES };

extern "C" __global__ void __launch_bounds__(128) skl_list_db(const __grid_constant__ skl_gpu_list_grad args)
{
    __shared__ float sum[DB_COLUMNS][DB_ENTRIES];
    __shared__ int place[128];
    __shared__ uint32_t listing[4]; /* rows that list some of the columns */
    const skl_gpu_lists &l = args.lists;
    const skl_gpu_side &s = l.side;
    const int first = blockIdx.x * DB_COLUMNS, last = min(first + DB_COLUMNS, l.columns);
    const int d0 = blockIdx.y * DB_ENTRIES + threadIdx.x;
    const float unit = (float)(args.scalars->unit * args.chain);
    float bias = 0; /* of column first + threadIdx.x */
    for (int j = 0; j < DB_COLUMNS; j++) sum[j][threadIdx.x] = sum[j][threadIdx.x + 128] = 0;
    for (int64_t rows = 0; rows < l.rows; rows += 128) {
        const int64_t mine = rows + threadIdx.x;
        bool lists = false;
        meet(); /* the last rows are done with */
        if (mine < l.rows) {
            const own_list list(l, (uint32_t)mine);
            const int at = first_place(list.column, l.room, first);
            place[threadIdx.x] = at, lists = list.column[at] < last;
        }
        __syncwarp();
        const uint32_t some = __ballot_sync(~0u, lists);
        if (threadIdx.x % 32 == 0)
            listing[threadIdx.x / 32] = some;
        __syncthreads();
        for (int warp = 0; warp < 4; warp++)
            for (uint32_t left = listing[warp]; left; left &= left - 1) {
                const int i = warp * 32 + __ffs((int)left) - 1;
                const own_list list(l, (uint32_t)(rows + i));
                const int64_t a = list.at(s.a.stride);
                const float scale = unit * share_of(args, list);
                const float x0 = d0 < s.dim ? element(s.a.data, a + d0, s.a.dtype) : 0,
                            x1 = d0 + 128 < s.dim ? element(s.a.data, a + d0 + 128, s.a.dtype) : 0;
                for (int k = place[i]; list.column[k] < last; k++) {
                    const float dz = list.has(k) ? list.entry[k].dz : 0;
                    const int j = list.column[k] - first;
                    if (dz == 0 || scale == 0)
                        continue;
                    sum[j][threadIdx.x] = fmaf(scale * dz, x0, sum[j][threadIdx.x]);
                    sum[j][threadIdx.x + 128] = fmaf(scale * dz, x1, sum[j][threadIdx.x + 128]);
                    bias += threadIdx.x == j ? scale * dz : 0;
                }
            }
    }
    for (int j = first; j < last && args.grad_b.data; j++)
#pragma unroll
        for (int part = 0; part < 2; part++)
            if (d0 + 128 * part < s.dim)
                put_element(args.grad_b.data, j * args.grad_b.stride[2] + d0 + 128 * part, args.grad_b.dtype,
                            sum[j - first][threadIdx.x + 128 * part]);
    if (args.grad_bias.data && blockIdx.y == 0 && threadIdx.x < last - first)
        put_element(args.grad_bias.data, (first + threadIdx.x) * args.grad_bias.stride[2], args.grad_bias.dtype, bias);
}
