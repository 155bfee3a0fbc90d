/* SPDX-License-Identifier: Apache-2.0
 *
 * Jensen-Shannon:  w_P KL(p || m) + w_Q KL(q || m),  m = w_P p + w_Q q,  w = param = (beta, 1 - beta).
 *
 *     sums   acc_P += p log(p/m),  acc_Q += q log(q/m)
 *     dz_Q = g w_Q q (log(q/m) - KL(q || m)),  dz_P the same with P
 *
 * With w = (1/2, 1/2) by tables: jsd_even.h.
 */
#include "jsd_even.h"

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

static int is_even(const struct skl_panel_factors *f)
{
    return f->param[0] == 0.5f && f->param[1] == 0.5f;
}

static void sum_jsd(int n, const float *x_p, const float *x_q, int apart, const struct skl_panel_factors *f,
                    struct skl_panel_state *s)
{
    if (!is_even(f))
        sum_columns(n, x_p, x_q, f, jsd_terms, s);
    else if (apart)
        sum_even_apart(n, x_p, x_q, f, s);
    else
        sum_even(n, x_p, x_q, f, s);
}

static void dz_jsd(int n, float *x_p, float *x_q, int want, const struct skl_panel_factors *f)
{
    if (is_even(f))
        dz_even(n, x_p, x_q, want, f);
    else
        dz_columns(n, x_p, x_q, want, f, jsd_dz);
}
