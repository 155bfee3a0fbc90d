/* SPDX-License-Identifier: Apache-2.0
 *
 * Jensen-Shannon:  w_P KL(p || m) + w_Q KL(q || m),  m = w_P p + w_Q q,  w = param = (beta, 1 - beta).
 *
 *     sums   acc_P += p log(p/m),  acc_Q += q log(q/m)
 *     dz_Q = g w_Q q (log(q/m) - KL(q || m)),  dz_P the same with P
 *
 * With w = (1/2, 1/2), where nobody asks for the sums one by one:
 *
 *     acc_P += p log(p/m) + q log(q/m),  acc_Q = 0,    which close into the same loss
 */

static inline void jsd_sums(const struct column *c, struct mixture m, vf *acc_p, vf *acc_q)
{
    vf large = c->large * m.log_large, small = c->small * m.log_small;
    *acc_p -= of_side(c, 0, large, small);
    *acc_q -= of_side(c, 1, large, small);
}

static inline vf jsd_back(const struct column *c, struct mixture m, const struct skl_panel_factors *f, int v, int side)
{
    vf x = of_side(c, side, c->large, c->small), log_m_over_x = of_side(c, side, m.log_large, m.log_small);
    return vload(f->g[side] + v * VL) * x * (vset(0.0f) - (log_m_over_x + vload(f->c[side] + v * VL)));
}

static inline void jsd_terms(const struct column *c, const struct skl_panel_factors *f, int v, vf *acc_p, vf *acc_q)
{
    (void)v;
    jsd_sums(c, mixture_of(c, f), acc_p, acc_q);
}

static inline vf jsd_dz(const struct column *c, const struct skl_panel_factors *f, int v, int side)
{
    return jsd_back(c, mixture_of(c, f), f, v, side);
}

static inline void even_terms(const struct column *c, const struct skl_panel_factors *f, int v, vf *acc_p, vf *acc_q)
{
    (void)f, (void)v;
    jsd_sums(c, even_mixture_of(c), acc_p, acc_q);
}

/* One exponential and one table: 2^{-|d|} and both logarithms are inside it. */
static inline void even_sum(const struct column *c, const struct skl_panel_factors *f, int v, vf *acc_p, vf *acc_q)
{
    (void)f, (void)v, (void)acc_q;
    *acc_p = vfma(c->large, EVEN(even_sum_table, even_of(c->x)), *acc_p);
}

static inline vf even_dz(const struct column *c, const struct skl_panel_factors *f, int v, int side)
{
    return jsd_back(c, even_mixture_of(c), f, v, side);
}

static int is_even(const struct skl_panel_factors *f)
{
    return f->param[0] == 0.5f && f->param[1] == 0.5f;
}

static void sum_jsd(int n, const float *x_p, const float *x_q, int apart, const struct skl_panel_factors *f,
                    struct skl_panel_state *s)
{
    if (!is_even(f))
        sum_columns(n, x_p, x_q, f, 0, jsd_terms, s);
    else if (apart)
        sum_columns(n, x_p, x_q, f, 1, even_terms, s);
    else
        sum_columns(n, x_p, x_q, f, 1, even_sum, s);
}

static void dz_jsd(int n, float *x_p, float *x_q, int want, const struct skl_panel_factors *f)
{
    if (is_even(f))
        dz_columns(n, x_p, x_q, want, f, 1, even_dz);
    else
        dz_columns(n, x_p, x_q, want, f, 0, jsd_dz);
}
