/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of a row: m, l of both sides and acc, pushed by logits, merged and written.
 *
 *     l = sum_j 2^(y - m)        acc = sum_j 2^(y_P - m_P) (x_P - ratio x_Q)        y = factor x,  ratio = factor_Q / factor_P
 *
 * Each of the four lanes that hold a row keeps a state of its own: nothing is multiplied by p here, so they need to agree
 * on nothing before the end. m is not the maximum but some earlier logit near it: any m serves as long as no sum
 * overflows. It is raised only when a sum of terms exceeds 2^32, which is after a row's first columns and then hardly
 * ever; terms are then at most 2^32 n, far from 2^127, and relative precision does not depend on m.
 */
#ifndef SKL_STATE_CUH
#define SKL_STATE_CUH

#include "tile.cuh"

struct row_state {
    float minus_m[2]; /* so that y - m is one multiply-add */
    float l[2];
    float acc; /* in units of x_P */
};

#define SKL_RAISE 4294967296.f
#define SKL_LOWEST 1e30f /* -m of a state without columns: the first column overflows it */

SKL_DEVICE row_state empty_state()
{
    return {{SKL_LOWEST, SKL_LOWEST}, {0, 0}, 0};
}

/* What some columns of one row add to l and acc under the present m. */
struct row_sums {
    float l[2], acc;
};

/* x [n] of both sides. At an edge a logit may be -inf: no mass, and 0 (-inf) must not be formed. */
template <bool EDGE, int COUNT>
SKL_DEVICE row_sums sums_of(const row_state &s, const float (&x)[2][COUNT], const float (&factor)[2], float ratio)
{
    row_sums sums;
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
        float p = power_of_two(fmaf(x[0][j], factor[0], s.minus_m[0]));
        float q = power_of_two(fmaf(x[1][j], factor[1], s.minus_m[1]));
        float d = fmaf(-ratio, x[1][j], x[0][j]);
        d = EDGE && p == 0 ? 0 : d;
        sums.l[0] = j ? sums.l[0] + p : p;
        sums.l[1] = j ? sums.l[1] + q : q;
        sums.acc = j ? fmaf(p, d, sums.acc) : p * d;
    }
    return sums;
}

template <int COUNT> SKL_DEVICE void raise_state(row_state &s, const float (&x)[2][COUNT], const float (&factor)[2])
{
#pragma unroll
    for (int side = 0; side < 2; side++) {
        float top = -INFINITY;
#pragma unroll
        for (int j = 0; j < COUNT; j++) top = fmaxf(top, x[side][j]);
        float minus_m = fminf(s.minus_m[side], -top * factor[side]);
        float f = power_of_two(minus_m - s.minus_m[side]);
        s.minus_m[side] = minus_m;
        s.l[side] *= f;
        if (side == 0 && fabsf(s.acc) != INFINITY) /* an infinite divergence stays so */
            s.acc *= f;
    }
}

SKL_DEVICE void add(row_state &s, const row_sums &sums)
{
    s.l[0] += sums.l[0], s.l[1] += sums.l[1];
    s.acc += sums.acc;
}

/* The state of both sets of columns. */
SKL_DEVICE row_state merged(row_state a, row_state b)
{
    row_state s;
#pragma unroll
    for (int side = 0; side < 2; side++) {
        s.minus_m[side] = fminf(a.minus_m[side], b.minus_m[side]);
        float f_a = power_of_two(s.minus_m[side] - a.minus_m[side]),
              f_b = power_of_two(s.minus_m[side] - b.minus_m[side]);
        s.l[side] = a.l[side] * f_a + b.l[side] * f_b;
        if (side == 0)
            s.acc = (fabsf(a.acc) == INFINITY ? a.acc : a.acc * f_a) + (fabsf(b.acc) == INFINITY ? b.acc : b.acc * f_b);
    }
    return s;
}

SKL_DEVICE row_state merged_over_quad(row_state s)
{
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
        row_state other;
#pragma unroll
        for (int side = 0; side < 2; side++) {
            other.minus_m[side] = __shfl_xor_sync(~0u, s.minus_m[side], step);
            other.l[side] = __shfl_xor_sync(~0u, s.l[side], step);
        }
        other.acc = __shfl_xor_sync(~0u, s.acc, step);
        s = merged(s, other);
    }
    return s;
}

SKL_DEVICE void write_state(float *state, int64_t rows, int64_t row, const row_state &s, float factor_p)
{
    state[SKL_M_P * rows + row] = -s.minus_m[0];
    state[SKL_L_P * rows + row] = s.l[0];
    state[SKL_M_Q * rows + row] = -s.minus_m[1];
    state[SKL_L_Q * rows + row] = s.l[1];
    state[SKL_ACC * rows + row] = factor_p * s.acc;
}

#endif
