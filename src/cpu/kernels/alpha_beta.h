/* SPDX-License-Identifier: Apache-2.0
 *
 * Alpha-beta:  (alpha/s sum p^s + beta/s sum q^s - sum p^alpha q^beta) / (alpha beta),  s = alpha + beta;
 * param = (alpha, beta).
 *
 * Per column, with the larger of p and q in front: r_e = 2^{-|d| e} is the e-th power of small / large, and
 * v_e = (r_e - 1) / e (in the limit e = 0: -|d|). Then no term is a difference that cancels worse than p - q itself:
 *
 *     phi = large^s / s (r_beta v_alpha - v_beta)      where p is the larger; alpha and beta exchanged where q is
 *     g_Q = q^beta (q^alpha - p^alpha) / alpha = large^s r_beta v_alpha,  or  -large^s v_alpha where q is the larger
 *     g_P = p^alpha (p^beta - q^beta) / beta,  the same with everything exchanged
 *     sums   acc_P += phi,  acc_Q += g_Q
 *     dz_Q = g (g_Q - q c_Q),   c_Q = sum g_Q
 *     dz_P = g (g_P - p c_P),   c_P = sum g_P = s D - c_Q
 */

/* r_e, v_e of one exponent, and r_e times the other's v, which is 0 where r_e is: there v may be infinite. */
struct power {
    vf r, v;
};

static inline struct power power_of(const struct column *c, float e)
{
    struct power of = {vset(1.0f), c->x * vset(LN2)};
    if (e == 0)
        return of;
    vf x = c->x * vset(e), m1;
    of.r = vkeep_nlt(x, vset(EXP2_MIN), vexp2_and_m1(vmax(x, vset(EXP2_MIN)), &m1));
    of.v = m1 * vset(1 / e);
    return of;
}

static inline vf damped(const struct column *c, float e, vf r, vf v)
{
    return vkeep_nlt(c->x * vset(e), vset(e == 0 ? -INFINITY : EXP2_MIN), r * v);
}

/* large^s times y, and 0 where that power is: a column without mass on either side has no defined y. */
static inline vf times_power(const struct column *c, const struct skl_panel_factors *f, int v, vf y)
{
    vf exponent = c->y_large * vset(f->param[0] + f->param[1]);
    vf power = vexp2(exponent) * of_larger(c, vload(f->power[0] + v * VL), vload(f->power[1] + v * VL));
    return vkeep_nlt(exponent, vset(EXP2_MIN), power * y);
}

/* g of a side over large^s. */
static inline vf alpha_beta_g(const struct column *c, const struct skl_panel_factors *f, int side, struct power own,
                              struct power other)
{
    vf as_smaller = damped(c, f->param[side], own.r, other.v), as_larger = vset(0.0f) - other.v;
    return of_side(c, side, as_larger, as_smaller);
}

static inline void alpha_beta_terms(const struct column *c, const struct skl_panel_factors *f, int v, vf *acc_p,
                                    vf *acc_q)
{
    struct power alpha = power_of(c, f->param[0]), beta = power_of(c, f->param[1]);
    vf p_larger = damped(c, f->param[1], beta.r, alpha.v) - beta.v,
       q_larger = damped(c, f->param[0], alpha.r, beta.v) - alpha.v;
    vf phi = of_larger(c, p_larger, q_larger) * vset(1 / (f->param[0] + f->param[1]));
    *acc_p += times_power(c, f, v, phi);
    *acc_q += times_power(c, f, v, alpha_beta_g(c, f, 1, beta, alpha));
}

static inline vf alpha_beta_dz(const struct column *c, const struct skl_panel_factors *f, int v, int side)
{
    struct power own = power_of(c, f->param[side]), other = power_of(c, f->param[!side]);
    vf g = times_power(c, f, v, alpha_beta_g(c, f, side, own, other));
    vf x = of_side(c, side, c->large, c->small);
    return vload(f->g[side] + v * VL) * (g - x * vload(f->c[side] + v * VL));
}

TWO_SWEEPS(alpha_beta)
