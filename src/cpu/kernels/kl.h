/* SPDX-License-Identifier: Apache-2.0
 *
 * dz of KL(P || Q), from kept exponentials or from scores. Bytes: 8 per (row, column) are read and 4 written.
 */

/* KL(P || Q):  dz_Q = g (q - p),   dz_P = g p (log p - log q - KL) = g p (y_P - y_Q - c) ln 2 with c = acc / l_P, the
 * mean of y_P - y_Q. The products are rounded apart (no FMA) so that equal sides give exactly 0. */
static void dz_kept(int n, float *y_p, float *y_q, enum skl_keep kept, const struct skl_panel_factors *f)
{
    for (int v = 0; v < NV; v++) {
        vf prob_p = vload(f->prob[0] + v * VL), prob_q = vload(f->prob[1] + v * VL);
        if (kept == SKL_KEEP_EXP_Q) {
            vf g = vload(f->g[1] + v * VL), f_p = prob_p * g, f_q = prob_q * (g + vload(f->own[1] + v * VL));
            for (int j = 0; j < n; j++) {
                float *at = y_q + j * NR + v * VL;
                vf gq = vload(at) * f_q, gp = vload(y_p + j * NR + v * VL) * f_p;
                vstore(at, gq - gp);
            }
        } else {
            vf f_p = prob_p * vload(f->g[0] + v * VL), c = vload(f->c[0] + v * VL);
            vf own = prob_p * vload(f->own[0] + v * VL);
            for (int j = 0; j < n; j++) {
                float *at = y_p + j * NR + v * VL;
                vf bracket = (vload(y_q + j * NR + v * VL) - c) * vset(LN2), e = vload(at);
                vstore(at, e * f_p * bracket + e * own);
            }
        }
    }
}

/* What dz of a lane group takes beside its scores. */
struct kl_dz {
    vf m_p, m_q, unit_p, unit_q;
    vf p_of_q, q_of_q;      /* dz_Q = e_Q q_of_q - e_P p_of_q */
    vf p_of_p, own_of_p, c; /* dz_P = e_P (p_of_p (d - c) ln 2 + own_of_p) */
};

static inline __attribute__((always_inline)) struct kl_dz kl_dz_of(const struct skl_panel_factors *f, int v)
{
    vf prob_p = vload(f->prob[0] + v * VL), prob_q = vload(f->prob[1] + v * VL), g_q = vload(f->g[1] + v * VL);
    return (struct kl_dz){
        .m_p = vload(f->m[0] + v * VL),
        .m_q = vload(f->m[1] + v * VL),
        .unit_p = vset(f->unit[0]),
        .unit_q = vset(f->unit[1]),
        .p_of_q = prob_p * g_q,
        .q_of_q = prob_q * (g_q + vload(f->own[1] + v * VL)),
        .p_of_p = prob_p * vload(f->g[0] + v * VL),
        .own_of_p = prob_p * vload(f->own[0] + v * VL),
        .c = vload(f->c[0] + v * VL),
    };
}

/* dz of one column, of the sides that 'want' has bits of. */
static inline __attribute__((always_inline)) void kl_dz_column(const struct kl_dz *k, vf x_p, vf x_q, int want,
                                                               vf *dz_p, vf *dz_q)
{
    vf l_p = (x_p - k->m_p) * k->unit_p, l_q = (x_q - k->m_q) * k->unit_q, e_p = vexp2(l_p);
    if (want & 2) {
        vf gq = vexp2(l_q) * k->q_of_q, gp = e_p * k->p_of_q;
        *dz_q = gq - gp;
    }
    if (want & 1) {
        vf d = vkeep_nlt(l_p, vset(EXP2_MIN), l_p - l_q);
        *dz_p = e_p * k->p_of_p * ((d - k->c) * vset(LN2)) + e_p * k->own_of_p;
    }
}

static void dz_kl(int n, float *y_p, float *y_q, int want, const struct skl_panel_factors *f)
{
    for (int v = 0; v < NV; v++) {
        struct kl_dz k = kl_dz_of(f, v);
        for (int j = 0; j < n; j++) {
            float *at_p = y_p + j * NR + v * VL, *at_q = y_q + j * NR + v * VL;
            vf dz_p = vset(0.0f), dz_q = vset(0.0f);
            kl_dz_column(&k, vload(at_p), vload(at_q), want, &dz_p, &dz_q);
            if (want & 2)
                vstore(at_q, dz_q);
            if (want & 1)
                vstore(at_p, dz_p);
        }
    }
}

/* KL(Q || P), once the LSEs are known: d = log2 q - log2 p. */
static void sum_kl(int n, const float *x_p, const float *x_q, int apart, const struct skl_panel_factors *f,
                   struct skl_panel_state *s)
{
    (void)apart; /* there is one */
    for (int v = 0; v < NV; v++) {
        vf m_p = vload(f->m[0] + v * VL), m_q = vload(f->m[1] + v * VL), sum = vset(0.0f);
        for (int j = 0, end; j < n; j = end) {
            vf part = vset(0.0f);
            end = short_sum_end(j, n);
            for (int i = j; i < end; i++) {
                vf y_p = (vload(x_p + i * NR + v * VL) - m_p) * vset(f->unit[0]),
                   y_q = (vload(x_q + i * NR + v * VL) - m_q) * vset(f->unit[1]);
                vf d = vkeep_nlt(y_q, vset(EXP2_MIN), (y_q - y_p) - vload(f->gap + v * VL));
                part = vfma(vexp2(y_q), d, part);
            }
            sum += part;
        }
        add_lanes(s->acc[0] + v * VL, sum * vload(f->prob[1] + v * VL) * vset(LN2));
    }
}
