/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of a row: m, l of both sides and acc (docs/math.md section 2), pushed by scores, merged and written.
 *
 *     y = factor (x - m)        l = sum_j 2^y        acc = sum_j 2^(y_P) (y_P - y_Q)
 *
 * x and m are scores, y is a logit in base 2. x - m is exact where x is near m, and only then is it scaled: neither the
 * size of the logits nor a constant between the sides costs digits, and a row whose scores are all equal has y = 0.
 *
 * Each of the four lanes that hold a row keeps a state of its own: nothing is multiplied by p here, so they need to
 * agree on nothing before the end. m is not the maximum but some earlier score near it: any m serves as long as no sum
 * overflows and y stays small. It is raised when a sum of terms exceeds 2^16, which is after a row's first columns and
 * then seldom; terms are then at most 2^16 n.
 */
#ifndef SKL_STATE_CUH
#define SKL_STATE_CUH

#include "tile.cuh"

struct row_state {
    float m[2];
    float l[2];
    float acc;
};

#define SKL_RAISE 65536.f
#define SKL_LOWEST -3.402823466e38f /* m of a state without columns: the first column overflows it */
#define SKL_FARTHEST -1e37f

SKL_DEVICE row_state empty_state()
{
    return {{SKL_LOWEST, SKL_LOWEST}, {0, 0}, 0};
}

/* What some columns of one row add to l and acc under the present m. */
struct row_sums {
    float l[2], acc;
};

/* x [n] of both sides. At an edge a score may be -inf: no mass, and 0 (-inf) must not be formed. */
template <bool EDGE, int COUNT>
SKL_DEVICE row_sums sums_of(const row_state &s, const float (&x)[2][COUNT], const float (&factor)[2])
{
    row_sums sums;
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
        float y_p = relative(x[0][j], s.m[0], factor[0]), y_q = relative(x[1][j], s.m[1], factor[1]);
        float p = power_of_two(y_p), q = power_of_two(y_q), d = y_p - y_q;
        d = EDGE && p == 0 ? 0 : d;
        sums.l[0] = j ? sums.l[0] + p : p;
        sums.l[1] = j ? sums.l[1] + q : q;
        sums.acc = j ? fmaf(p, d, sums.acc) : p * d;
    }
    return sums;
}

/* The same sums under references that are not lower. When a side's moves by 'move', every y_P - y_Q changes by the same
 * number; acc changes also when Q's moves alone. Without branches, for registers are scarce here: 'move' of a state
 * without columns is kept finite, since 0 times it must be 0, and P's factor positive, since an infinite acc is the
 * mathematics (P has mass where Q has none) and must stay so. 2^-126 of the old sums is nothing beside the new ones. */
SKL_DEVICE row_state moved_state(const row_state &s, const float (&m)[2], const float (&factor)[2])
{
    const float move_p = fmaxf(relative(s.m[0], m[0], factor[0]), SKL_FARTHEST),
                move_q = fmaxf(relative(s.m[1], m[1], factor[1]), SKL_FARTHEST);
    const float f_p = power_of_two(fmaxf(move_p, -126)), f_q = power_of_two(move_q);
    return {{m[0], m[1]}, {s.l[0] * f_p, s.l[1] * f_q}, fmaf(s.l[0], move_p - move_q, s.acc) * f_p};
}

template <int COUNT> SKL_DEVICE void raise_state(row_state &s, const float (&x)[2][COUNT], const float (&factor)[2])
{
    float m[2] = {s.m[0], s.m[1]};
#pragma unroll
    for (int j = 0; j < COUNT; j++) m[0] = fmaxf(m[0], x[0][j]), m[1] = fmaxf(m[1], x[1][j]);
    s = moved_state(s, m, factor);
}

SKL_DEVICE void add(row_state &s, const row_sums &sums)
{
    s.l[0] += sums.l[0], s.l[1] += sums.l[1];
    s.acc += sums.acc;
}

/* The state of both sets of columns. */
SKL_DEVICE row_state merged(const row_state &a, const row_state &b, const float (&factor)[2])
{
    const float m[2] = {fmaxf(a.m[0], b.m[0]), fmaxf(a.m[1], b.m[1])};
    row_state s = moved_state(a, m, factor), other = moved_state(b, m, factor);
    add(s, {{other.l[0], other.l[1]}, other.acc});
    return s;
}

/* The states of the LANES neighbouring lanes that hold a row, merged; the same in all of them. */
template <int LANES> SKL_DEVICE row_state merged_over_lanes(row_state s, const float (&factor)[2])
{
#pragma unroll
    for (int step = 1; step < LANES; step *= 2) {
        row_state other;
#pragma unroll
        for (int side = 0; side < 2; side++) {
            other.m[side] = __shfl_xor_sync(~0u, s.m[side], step);
            other.l[side] = __shfl_xor_sync(~0u, s.l[side], step);
        }
        other.acc = __shfl_xor_sync(~0u, s.acc, step);
        s = merged(s, other, factor);
    }
    return s;
}

SKL_DEVICE void write_state(float *state, int64_t rows, int64_t row, const row_state &s)
{
    state[SKL_M_P * rows + row] = s.m[0];
    state[SKL_L_P * rows + row] = s.l[0];
    state[SKL_M_Q * rows + row] = s.m[1];
    state[SKL_L_Q * rows + row] = s.l[1];
    state[SKL_ACC * rows + row] = s.acc;
}

#endif
