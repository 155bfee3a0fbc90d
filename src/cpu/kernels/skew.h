/* SPDX-License-Identifier: Apache-2.0
 *
 * Skewed KL:  KL(p || m),  m = a p + (1 - a) q,  param = (a, 1 - a).
 *
 * With u = p/m - 1 = (1 - a) (p - q) / m, which is exactly 0 where p = q:
 *
 *     sums   acc_P += p log(p/m),  acc_Q += q u
 *     dz_Q = g (1 - a) q (c_Q - u),                  c_Q = sum q u
 *     dz_P = g p ((log(p/m) - a u) - c_P),           c_P = KL + (1 - a) c_Q
 */

/* p/m - 1. The numerator is (1 - a) (p - q) over the larger of p and q, the denominator m over the same. */
static inline vf skew_u(const struct column *c, const struct mixture *m, const struct skl_panel_factors *f)
{
    vf over_m = vset(f->param[1]) * c->m1 / m->over_large;
    return of_larger(c, vset(0.0f) - over_m, over_m);
}

static inline void skew_terms(const struct column *c, const struct skl_panel_factors *f, int v, vf *acc_p, vf *acc_q)
{
    (void)v;
    struct mixture m = mixture_of(c, f);
    *acc_p -= of_side(c, 0, c->large * m.log_large, c->small * m.log_small);
    *acc_q = vfma(of_side(c, 1, c->large, c->small), skew_u(c, &m, f), *acc_q);
}

static inline vf skew_dz(const struct column *c, const struct skl_panel_factors *f, int v, int side)
{
    struct mixture m = mixture_of(c, f);
    vf u = skew_u(c, &m, f), x = of_side(c, side, c->large, c->small), g = vload(f->g[side] + v * VL);
    vf mean = vload(f->c[side] + v * VL);
    if (side == 1)
        return g * x * (mean - u);
    return g * x * (vset(0.0f) - (vfma(vset(f->param[0]), u, of_side(c, 0, m.log_large, m.log_small)) + mean));
}

TWO_SWEEPS(skew)
