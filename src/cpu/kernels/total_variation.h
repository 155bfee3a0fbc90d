/* SPDX-License-Identifier: Apache-2.0
 *
 * Total variation:  1/2 sum |p - q|.
 *
 *     sums   acc_P += 1/2 |p - q|,  acc_Q += p sign(p - q)
 *     dz_Q = g/2 q (sign(q - p) - c_Q),    c_Q = sum q sign(q - p) = 2 TV - c_P
 *     dz_P = g/2 p (sign(p - q) - c_P),    c_P = sum p sign(p - q)
 */

/* 1 where this side is the larger, -1 where it is the smaller, 0 where p = q. */
static inline vf sign_of_side(const struct column *c, int side)
{
    vf q_larger = vset(side ? 1.0f : -1.0f), p_larger = vset(side ? -1.0f : 1.0f);
    return vselect_lt(vset(0.0f), c->d, q_larger, vselect_lt(c->d, vset(0.0f), p_larger, vset(0.0f)));
}

static inline void total_variation_terms(const struct column *c, const struct skl_panel_factors *f, int v, vf *acc_p,
                                         vf *acc_q)
{
    (void)f, (void)v;
    *acc_p = vfma(c->large * vset(-0.5f), c->m1, *acc_p);
    *acc_q = vfma(of_side(c, 0, c->large, c->small), sign_of_side(c, 0), *acc_q);
}

static inline vf total_variation_dz(const struct column *c, const struct skl_panel_factors *f, int v, int side)
{
    vf x = of_side(c, side, c->large, c->small);
    return vload(f->g[side] + v * VL) * x * (sign_of_side(c, side) - vload(f->c[side] + v * VL));
}

TWO_SWEEPS(total_variation)
