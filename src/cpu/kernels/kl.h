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

static void dz_kl(int n, float *y_p, float *y_q, int want, const struct skl_panel_factors *f)
{
    for (int v = 0; v < NV; v++) {
        vf m_p = vload(f->m[0] + v * VL), m_q = vload(f->m[1] + v * VL), c = vload(f->c[0] + v * VL);
        vf unit_p = vset(f->unit[0]), unit_q = vset(f->unit[1]);
        vf g_p = vload(f->g[0] + v * VL), g_q = vload(f->g[1] + v * VL);
        vf prob_p = vload(f->prob[0] + v * VL), prob_q = vload(f->prob[1] + v * VL);
        vf own_p = prob_p * vload(f->own[0] + v * VL), with_own = g_q + vload(f->own[1] + v * VL);
        for (int j = 0; j < n; j++) {
            float *at_p = y_p + j * NR + v * VL, *at_q = y_q + j * NR + v * VL;
            vf l_p = (vload(at_p) - m_p) * unit_p, l_q = (vload(at_q) - m_q) * unit_q, e_p = vexp2(l_p);
            if (want & 2) {
                vf gq = vexp2(l_q) * (prob_q * with_own), gp = e_p * (prob_p * g_q);
                vstore(at_q, gq - gp);
            }
            if (want & 1) {
                vf d = vkeep_nlt(l_p, vset(EXP2_MIN), l_p - l_q);
                vstore(at_p, e_p * (prob_p * g_p) * ((d - c) * vset(LN2)) + e_p * own_p);
            }
        }
    }
}

/* KL(Q || P), once the LSEs are known: d = log2 q - log2 p. */
static void sum_kl(int n, const float *x_p, const float *x_q, const struct skl_panel_factors *f,
                   struct skl_panel_state *s)
{
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
