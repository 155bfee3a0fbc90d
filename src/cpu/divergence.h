/* SPDX-License-Identifier: Apache-2.0
 *
 * The divergences on tiles of scores x, rows in the lanes, columns j = 0..n-1 down the tile. Logits in base 2 are taken
 * relative to the row's largest score: y = unit (x - m).
 *
 *     push    x -> state      m = max x,  l += 2^y,  acc += 2^{y_P} (y_P - y_Q)                         one pass
 *     dz      x -> dz         from the complete row's m, l and constants                                one pass
 *
 * Bytes: push reads 8 per (row, column), twice while they are in L1; dz reads 8 and writes 4. A tile's sums are f32
 * chains of at most 16 terms, and of 12 such sums, then added to doubles: relative error about 1e-7, not growing with
 * the number of tiles.
 */
#define LN2 0.693147180559945f

/* ------------------------------------------------------------------------------------------------ push --- */

/* The exponent to subtract: a row that has seen only -inf must not make -inf - -inf. */
static inline vf finite_max(vf m)
{
    return vselect_lt(m, vset(-FLT_MAX), vset(0.0f), m);
}

/* Raises lane group v's running maximum over a tile and rescales what was summed under the old one. Returns what is to
 * be subtracted from the tile's scores. */
static inline vf raise_max(int n, const float *y, int v, vf unit, float *m, double *l)
{
    vf old = vload(m + v * VL), now = old;
    for (int j = 0; j < n; j++) now = vmax(vload(y + j * NR + v * VL), now);
    vf ref = finite_max(now);
    if (vbits(vnle(now, old))) {
        float factor[VL];
        vstore(m + v * VL, now);
        vstore(factor, vexp2((old - ref) * unit));
        for (int i = 0; i < VL; i++) l[v * VL + i] *= (double)factor[i];
    }
    return ref;
}

/* acc refers to both maxima, so it moves when either does: every term's y_P - y_Q changes by the same number, and the
 * terms' factor 2^{y_P} as l_P's. An acc of +inf is the mathematics (P has mass where Q has none) and stays. */
static inline void move_acc(vf old_p, vf old_q, vf m_p, vf m_q, const float unit[2], const double *l_p_old, double *acc)
{
    float was[2][VL], is[2][VL], factor[VL];
    vstore(factor, vexp2((old_p - m_p) * vset(unit[0])));
    vstore(was[0], old_p), vstore(was[1], finite_max(old_q));
    vstore(is[0], m_p), vstore(is[1], m_q);
    for (int i = 0; i < VL; i++) {
        double shift = (double)unit[0] * ((double)was[0][i] - (double)is[0][i]) -
                       (double)unit[1] * ((double)was[1][i] - (double)is[1][i]);
        if (l_p_old[i] != 0 && !isinf(acc[i]))
            acc[i] = (acc[i] + l_p_old[i] * shift) * (double)factor[i];
    }
}

/* Both running maxima, over a tile. */
static inline void raise_both(int n, const float *y_p, const float *y_q, int v, const float unit[2],
                              struct skl_panel_state *s, vf *m_p, vf *m_q)
{
    vf old_p = vload(s->m[0] + v * VL), old_q = vload(s->m[1] + v * VL);
    double l_p_old[VL];
    memcpy(l_p_old, s->l[0] + v * VL, sizeof l_p_old);
    *m_p = raise_max(n, y_p, v, vset(unit[0]), s->m[0], s->l[0]);
    *m_q = raise_max(n, y_q, v, vset(unit[1]), s->m[1], s->l[1]);
    if (vbits(vnle(*m_p, old_p)) | vbits(vnle(*m_q, old_q)))
        move_acc(old_p, old_q, *m_p, *m_q, unit, l_p_old, s->acc[0] + v * VL);
}

static inline void add_lanes(double *sum, vf x)
{
    float lanes[VL];
    vstore(lanes, x);
    for (int i = 0; i < VL; i++) sum[i] += (double)lanes[i];
}

/* A tile's sums are sums of sums over this many columns: chains so short that their rounding stays below the logits'. */
enum { SHORT_SUM = 16 };

static inline int short_sum_end(int j, int n)
{
    return j + SHORT_SUM < n ? j + SHORT_SUM : n;
}

static inline __attribute__((always_inline)) void push_kl_keeping(int n, float *x_p, float *x_q, const float unit[2],
                                                                  enum skl_keep keep, struct skl_panel_state *s)
{
    vf m_p[NV], m_q[NV], l_p[NV], l_q[NV], acc[NV], zero = vset(0.0f), unit_p = vset(unit[0]), unit_q = vset(unit[1]);
    UNROLLED for (int v = 0; v < NV; v++)
    {
        raise_both(n, x_p, x_q, v, unit, s, &m_p[v], &m_q[v]);
        l_p[v] = l_q[v] = acc[v] = zero;
    }
    for (int j = 0, end; j < n; j = end) {
        vf short_p[NV], short_q[NV], short_acc[NV];
        end = short_sum_end(j, n);
        UNROLLED for (int v = 0; v < NV; v++) short_p[v] = short_q[v] = short_acc[v] = zero;
        for (int i = j; i < end; i++) {
            UNROLLED for (int v = 0; v < NV; v++)
            {
                float *at_p = x_p + i * NR + v * VL, *at_q = x_q + i * NR + v * VL;
                vf y_p = (vload(at_p) - m_p[v]) * unit_p, y_q = (vload(at_q) - m_q[v]) * unit_q;
                vf e_p = vexp2(y_p), e_q = vexp2(y_q);
                vf d = vkeep_nlt(y_p, vset(EXP2_MIN), y_p - y_q); /* 0 inf = 0 here: no mass, no contribution */
                short_p[v] += e_p;
                short_q[v] += e_q;
                short_acc[v] = vfma(e_p, d, short_acc[v]);
                if (keep == SKL_KEEP_EXP_Q || keep == SKL_KEEP_EXP_P)
                    vstore(at_p, e_p), vstore(at_q, keep == SKL_KEEP_EXP_Q ? e_q : d);
            }
        }
        UNROLLED for (int v = 0; v < NV; v++) l_p[v] += short_p[v], l_q[v] += short_q[v], acc[v] += short_acc[v];
    }
    UNROLLED for (int v = 0; v < NV; v++)
    {
        add_lanes(s->l[0] + v * VL, l_p[v]);
        add_lanes(s->l[1] + v * VL, l_q[v]);
        add_lanes(s->acc[0] + v * VL, acc[v]);
    }
}

static void push_kl(int n, float *x_p, float *x_q, const float unit[2], enum skl_keep keep, struct skl_panel_state *s)
{
    if (keep == SKL_KEEP_EXP_Q)
        push_kl_keeping(n, x_p, x_q, unit, SKL_KEEP_EXP_Q, s);
    else if (keep == SKL_KEEP_EXP_P)
        push_kl_keeping(n, x_p, x_q, unit, SKL_KEEP_EXP_P, s);
    else
        push_kl_keeping(n, x_p, x_q, unit, SKL_KEEP_NOTHING, s);
}

/* JSD, first sweep: the log-sum-exps alone. */
static void push_lse(int n, const float *x_p, const float *x_q, const float unit[2], struct skl_panel_state *s)
{
    for (int side = 0; side < 2; side++) {
        const float *x = side ? x_q : x_p;
        vf u = vset(unit[side]);
        for (int v = 0; v < NV; v++) {
            vf m = raise_max(n, x, v, u, s->m[side], s->l[side]), l = vset(0.0f);
            for (int j = 0, end; j < n; j = end) {
                vf part = vset(0.0f);
                end = short_sum_end(j, n);
                for (int i = j; i < end; i++) part += vexp2((vload(x + i * NR + v * VL) - m) * u);
                l += part;
            }
            add_lanes(s->l[side] + v * VL, l);
        }
    }
}

/* One column of the mixture m = beta_P p + beta_Q q, told by the larger and the smaller of p and q. With d = log q -
 * log p, small = large e^{-|d|},  log(m / large) = log(beta_large + beta_small e^{-|d|}), which near d = 0 is taken as
 * log1p(beta_small (e^{-|d|} - 1)),  log(m / small) = log(m / large) + |d|. Both logarithms are exactly 0 where p = q,
 * and always finite: where p or q is 0, the product with it is 0, not NaN. */
struct mixture {
    vf d; /* > 0: q is the larger */
    vf large, small;
    vf log_m_large, log_m_small;
};

static inline struct mixture mix(vf x_p, vf x_q, const struct skl_panel_factors *f, int v)
{
    vf y_p = (x_p - vload(f->m[0] + v * VL)) * vset(f->unit[0]),
       y_q = (x_q - vload(f->m[1] + v * VL)) * vset(f->unit[1]);
    vf zero = vset(0.0f), d = (y_q - y_p) - vload(f->gap + v * VL);
    vf prob = vselect_lt(zero, d, vload(f->prob[1] + v * VL), vload(f->prob[0] + v * VL));
    vf beta_small = vselect_lt(zero, d, vset(f->beta[0]), vset(f->beta[1]));
    vf beta_large = vselect_lt(zero, d, vset(f->beta[1]), vset(f->beta[0]));
    vf x = vneg_abs(d), a = vmax(x, vset(EXP2_MIN)), u, ratio = vkeep_nlt(x, vset(EXP2_MIN), vexp2_and_m1(a, &u));
    struct mixture c = {.d = d};
    c.large = vexp2(vselect_lt(zero, d, y_q, y_p)) * prob;
    c.small = c.large * ratio;
    c.log_m_large = vlog1p(beta_small * u, vfma(beta_small, ratio, beta_large));
    c.log_m_small = vfma(a, vset(-LN2), c.log_m_large);
    return c;
}

/* JSD, second sweep: acc_P += p log(p/m), acc_Q += q log(q/m). */
static void push_jsd(int n, const float *y_p, const float *y_q, const struct skl_panel_factors *f,
                     struct skl_panel_state *s)
{
    for (int v = 0; v < NV; v++) {
        vf acc_p = vset(0.0f), acc_q = acc_p;
        for (int j = 0, end; j < n; j = end) {
            vf part_p = vset(0.0f), part_q = part_p;
            end = short_sum_end(j, n);
            for (int i = j; i < end; i++) {
                struct mixture c = mix(vload(y_p + i * NR + v * VL), vload(y_q + i * NR + v * VL), f, v);
                vf large = c.large * c.log_m_large, small = c.small * c.log_m_small;
                part_p -= vselect_lt(vset(0.0f), c.d, small, large);
                part_q -= vselect_lt(vset(0.0f), c.d, large, small);
            }
            acc_p += part_p;
            acc_q += part_q;
        }
        add_lanes(s->acc[0] + v * VL, acc_p);
        add_lanes(s->acc[1] + v * VL, acc_q);
    }
}

/* -------------------------------------------------------------------------------------------------- dz --- */

/* KL(P || Q):  dz_Q = g (q - p),   dz_P = g p (log p - log q - KL) = g p (y_P - y_Q - c) ln 2 with c = acc / l_P, the
 * mean of y_P - y_Q. The products are rounded apart (no FMA) so that equal sides give exactly 0. */
static void dz_kept(int n, float *y_p, float *y_q, enum skl_keep kept, const struct skl_panel_factors *f)
{
    for (int v = 0; v < NV; v++) {
        vf prob_p = vload(f->prob[0] + v * VL), prob_q = vload(f->prob[1] + v * VL);
        if (kept == SKL_KEEP_EXP_Q) {
            vf g = vload(f->g[1] + v * VL), f_p = prob_p * g, f_q = prob_q * g;
            for (int j = 0; j < n; j++) {
                float *at = y_q + j * NR + v * VL;
                vf gq = vload(at) * f_q, gp = vload(y_p + j * NR + v * VL) * f_p;
                vstore(at, gq - gp);
            }
        } else {
            vf f_p = prob_p * vload(f->g[0] + v * VL), c = vload(f->c[0] + v * VL);
            for (int j = 0; j < n; j++) {
                float *at = y_p + j * NR + v * VL;
                vf bracket = (vload(y_q + j * NR + v * VL) - c) * vset(LN2);
                vstore(at, vload(at) * f_p * bracket);
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
        for (int j = 0; j < n; j++) {
            float *at_p = y_p + j * NR + v * VL, *at_q = y_q + j * NR + v * VL;
            vf l_p = (vload(at_p) - m_p) * unit_p, l_q = (vload(at_q) - m_q) * unit_q, e_p = vexp2(l_p);
            if (want & 2) {
                vf gq = vexp2(l_q) * (prob_q * g_q), gp = e_p * (prob_p * g_q);
                vstore(at_q, gq - gp);
            }
            if (want & 1) {
                vf d = vkeep_nlt(l_p, vset(EXP2_MIN), l_p - l_q);
                vstore(at_p, e_p * (prob_p * g_p) * ((d - c) * vset(LN2)));
            }
        }
    }
}

/* JSD:  dz_Q = g beta_Q q (log(q/m) - KL(q || m)),  dz_P the same with P. */
static void dz_jsd(int n, float *y_p, float *y_q, int want, const struct skl_panel_factors *f)
{
    for (int v = 0; v < NV; v++) {
        vf g_p = vload(f->g[0] + v * VL), g_q = vload(f->g[1] + v * VL);
        vf c_p = vload(f->c[0] + v * VL), c_q = vload(f->c[1] + v * VL);
        for (int j = 0; j < n; j++) {
            float *at_p = y_p + j * NR + v * VL, *at_q = y_q + j * NR + v * VL;
            struct mixture c = mix(vload(at_p), vload(at_q), f, v);
            if (want & 1) {
                vf p = vselect_lt(vset(0.0f), c.d, c.small, c.large);
                vf log_m_p = vselect_lt(vset(0.0f), c.d, c.log_m_small, c.log_m_large);
                vstore(at_p, g_p * p * (vset(0.0f) - (log_m_p + c_p)));
            }
            if (want & 2) {
                vf q = vselect_lt(vset(0.0f), c.d, c.large, c.small);
                vf log_m_q = vselect_lt(vset(0.0f), c.d, c.log_m_large, c.log_m_small);
                vstore(at_q, g_q * q * (vset(0.0f) - (log_m_q + c_q)));
            }
        }
    }
}

/* NaN passes. n is a multiple of MR. */
static int mark_live(int n, const float *dz, const float *limit, unsigned char *live, uint32_t *entries)
{
    vf lim[NV];
    int count = 0;
    UNROLLED for (int v = 0; v < NV; v++) lim[v] = vload(limit + v * VL);
    for (int j = 0; j < n; j += MR) {
        uint32_t any = 0;
        for (int i = j; i < j + MR; i++) {
            uint32_t rows = 0;
            UNROLLED for (int v = 0; v < NV; v++) rows |= vbits(vnle(vabs(vload(dz + i * NR + v * VL)), lim[v]))
                                                          << v * VL;
            entries[i] = rows;
            any |= rows;
            count += __builtin_popcount(rows);
        }
        live[j / MR] = any != 0;
    }
    return count;
}

/* Gradient of the column bias. */
static void add_rows(int n, const float *dz, float *sum)
{
    for (int j = 0; j < n; j++) {
        vf x = vload(dz + j * NR);
        for (int v = 1; v < NV; v++) x += vload(dz + j * NR + v * VL);
        float lanes[VL], total = 0;
        vstore(lanes, x);
        for (int i = 0; i < VL; i++) total += lanes[i];
        sum[j] += total;
    }
}

/* --------------------------------------------------------------------------------------- shaping logits --- */

static void softcap(int n, float *y, float inner, double cap)
{
    vf high = vset((float)cap), low = vset((float)(cap - (double)(float)cap)); /* a rounded cap would not average out */
    for (int i = 0; i < n * NR; i += VL) {
        vf t = vtanh(vload(y + i) * vset(inner));
        vstore(y + i, vfma(t, high, t * low));
    }
}

static void softcap_back(int n, const float *y, float cap, float *dz)
{
    for (int i = 0; i < n * NR; i += VL) {
        vf t = vload(y + i) * vset(1 / cap);
        t = vmax(t, vset(-1.0f)); /* a masked -inf; its dz is 0 */
        vstore(dz + i, vload(dz + i) * (vset(1.0f) - t * t));
    }
}

static void mask(int n, const int *lo, const int *hi, float with, float *y)
{
    for (int j = 0; j < n; j++)
        for (int i = 0; i < NR; i++)
            if (j < lo[i] || j >= hi[i])
                y[j * NR + i] = with;
}

static void exp2_panel(const float *x, float *y)
{
    for (int v = 0; v < NV; v++) vstore(y + v * VL, vexp2(vload(x + v * VL)));
}
