/* SPDX-License-Identifier: Apache-2.0
 *
 * Jensen-Shannon:  w_P KL(p || m) + w_Q KL(q || m),  m = w_P p + w_Q q,  w = param = (beta, 1 - beta).
 *
 *     sums   acc_P += p log(p/m),  acc_Q += q log(q/m)
 *     dz_Q = g w_Q q (log(q/m) - KL(q || m)),  dz_P the same with P
 */

static inline void jsd_terms(const struct column *c, const struct skl_panel_factors *f, int v, vf *acc_p, vf *acc_q)
{
    (void)v;
    struct mixture m = mixture_of(c, f);
    vf large = c->large * m.log_large, small = c->small * m.log_small;
    *acc_p -= of_side(c, 0, large, small);
    *acc_q -= of_side(c, 1, large, small);
}

static inline vf jsd_dz(const struct column *c, const struct skl_panel_factors *f, int v, int side)
{
    struct mixture m = mixture_of(c, f);
    vf x = of_side(c, side, c->large, c->small), log_m_over_x = of_side(c, side, m.log_large, m.log_small);
    return vload(f->g[side] + v * VL) * x * (vset(0.0f) - (log_m_over_x + vload(f->c[side] + v * VL)));
}

TWO_SWEEPS(jsd)
