/* SPDX-License-Identifier: Apache-2.0
 *
 * Jensen-Shannon with beta = 1/2, by the tables of even.h. With d = log2 q - log2 p and the larger of p and q, large,
 *
 *     log(m/p) = even_log(|d|) + log 2 max(d, 0),   log(m/q) = even_log(|d|) + log 2 max(-d, 0)
 *
 *     value      acc_P += large even_sum(|d|), acc_Q = 0,   which close into the same loss    one 2^x and one table
 *     sums       acc_P -= p log(m/p),  acc_Q -= q log(m/q)                                    two 2^x and one table
 *     dz_Q = g q (-log(m/q) - KL(q || m)),  dz_P the same with P                              a 2^x a side and one table
 *
 * Exactly 0 where p = q. Bytes and chains are those of column.h.
 */

/* log2 of p and of q, but for each row's log2 l, and d. */
struct logs {
    vf y[2], d;
};

static inline struct logs logs_of(const float *at_p, const float *at_q, const struct skl_panel_factors *f, int v)
{
    vf y_p = (vload(at_p) - vload(f->m[0] + v * VL)) * vset(f->unit[0]),
       y_q = (vload(at_q) - vload(f->m[1] + v * VL)) * vset(f->unit[1]);
    return (struct logs){{y_p, y_q}, (y_q - y_p) - vload(f->gap + v * VL)};
}

/* log(m / large) and -|d|, which is finite also where a side has no mass: its probability is 0 then, and so shall the
 * product be. */
struct even_logs {
    vf large, x;
};

static inline __attribute__((always_inline)) struct even_logs even_logs_of(vf d)
{
    vf x = vneg_abs(d);
    return (struct even_logs){EVEN(even_log_table, even_of(x)), vmax(x, vset(EXP2_MIN - 1))};
}

/* log(m / p) or, of side 1, log(m / q). */
static inline vf log_over(int side, vf d, struct even_logs m)
{
    vf zero = vset(0.0f), smaller = side == 0 ? vkeep_nlt(d, zero, m.x) : vkeep_nlt(zero, d, m.x);
    return vfma(smaller, vset(-LN2), m.large);
}

/* Here probabilities are relative to that of P's reference, which the sum is multiplied by in the end. */
static void sum_even(int n, const float *x_p, const float *x_q, const struct skl_panel_factors *f,
                     struct skl_panel_state *s)
{
    for (int v = 0; v < NV; v++) {
        vf m_p = vload(f->m[0] + v * VL), m_q = vload(f->m[1] + v * VL), sum = vset(0.0f);
        vf minus_gap = vset(0.0f) - vload(f->gap + v * VL);
        for (int j = 0, end; j < n; j = end) {
            vf part = vset(0.0f);
            end = short_sum_end(j, n);
            for (int i = j; i < end; i++) {
                const float *at_p = x_p + i * NR + v * VL, *at_q = x_q + i * NR + v * VL;
                ask_next_panel(at_p, at_q);
                vf y_p = (vload(at_p) - m_p) * vset(f->unit[0]);
                vf y_q = vfma(vload(at_q) - m_q, vset(f->unit[1]), minus_gap);
                part = vfma(vexp2(vmax(y_p, y_q)), EVEN(even_sum_table, even_of(vneg_abs(y_q - y_p))), part);
            }
            sum += part;
        }
        add_lanes(s->acc[0] + v * VL, sum * vload(f->prob[0] + v * VL));
    }
}

static void sum_even_apart(int n, const float *x_p, const float *x_q, const struct skl_panel_factors *f,
                           struct skl_panel_state *s)
{
    for (int v = 0; v < NV; v++) {
        vf sum[2] = {vset(0.0f), vset(0.0f)};
        for (int j = 0, end; j < n; j = end) {
            vf part[2] = {vset(0.0f), vset(0.0f)};
            end = short_sum_end(j, n);
            for (int i = j; i < end; i++) {
                const float *at_p = x_p + i * NR + v * VL, *at_q = x_q + i * NR + v * VL;
                ask_next_panel(at_p, at_q);
                struct logs z = logs_of(at_p, at_q, f, v);
                struct even_logs m = even_logs_of(z.d);
                UNROLLED for (int side = 0; side < 2; side++)
                    part[side] = vfma(vexp2(z.y[side]), log_over(side, z.d, m), part[side]);
            }
            UNROLLED for (int side = 0; side < 2; side++) sum[side] += part[side];
        }
        UNROLLED for (int side = 0; side < 2; side++)
            add_lanes(s->acc[side] + v * VL, (vset(0.0f) - sum[side]) * vload(f->prob[side] + v * VL));
    }
}

static inline vf dz_even_side(int side, const struct logs *z, struct even_logs m, const struct skl_panel_factors *f,
                              int v)
{
    vf minus_g = vset(0.0f) - vload(f->g[side] + v * VL), c = vload(f->c[side] + v * VL);
    return vexp2(z->y[side]) * vload(f->prob[side] + v * VL) *
           vfma(minus_g, log_over(side, z->d, m) + c, vload(f->own[side] + v * VL));
}

static void dz_even(int n, float *x_p, float *x_q, int want, const struct skl_panel_factors *f)
{
    for (int v = 0; v < NV; v++)
        for (int j = 0; j < n; j++) {
            float *at_p = x_p + j * NR + v * VL, *at_q = x_q + j * NR + v * VL;
            ask_next_panel(at_p, at_q);
            struct logs z = logs_of(at_p, at_q, f, v);
            struct even_logs m = even_logs_of(z.d);
            if (want & 1)
                vstore(at_p, dz_even_side(0, &z, m, f, v));
            if (want & 2)
                vstore(at_q, dz_even_side(1, &z, m, f, v));
        }
}
