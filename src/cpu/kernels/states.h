/* SPDX-License-Identifier: Apache-2.0
 *
 * Tiles of scores x into row states, rows in the lanes, columns j = 0..n-1 down the tile. Logits in base 2 are taken
 * relative to a reference: y = unit (x - m).
 *
 *     push_kl    m: unit (max x - m) <= slack,  l += 2^y,  acc += 2^{y_P} (y_P - y_Q)      one pass, closes KL(P || Q)
 *     push_lse   m as above,  l += 2^y                         the first sweep of the other divergences
 *
 * Bytes: 8 per (row, column) are read, twice while they are in L1 where something is kept. A tile's sums are f32 chains
 * of at most 16 terms, and of 12 such sums, then added to doubles: relative error about 1e-7, not growing with the
 * number of tiles.
 */
#define LN2 0.693147180559945f

/* The exponent to subtract: a row that has seen only -inf must not make -inf - -inf. */
static inline vf finite_max(vf m)
{
    return vselect_lt(m, vset(-FLT_MAX), vset(0.0f), m);
}

/* The largest of 'now' and n scores of lane group v. In four chains: in one, each maximum waits for the one before it,
 * and there is nothing else to do meanwhile. NaN passes by. */
static inline vf largest(int n, const float *y, int v, vf now)
{
    vf m[4] = {now, now, now, now};
    int j = 0;
    for (; j + 4 <= n; j += 4) UNROLLED for (int k = 0; k < 4; k++) m[k] = vmax(vload(y + (j + k) * NR + v * VL), m[k]);
    for (; j < n; j++) m[0] = vmax(vload(y + j * NR + v * VL), m[0]);
    return vmax(vmax(m[0], m[1]), vmax(m[2], m[3]));
}

/* What was summed under an old reference, under a new one. */
static inline void move_l(vf old, vf now, vf unit, double *l)
{
    float factor[VL];
    vstore(factor, vexp2((old - now) * unit));
    for (int i = 0; i < VL; i++) l[i] *= (double)factor[i];
}

/* acc is relative to both references, so it moves when either does: every term's y_P - y_Q changes by the same number, and the
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

/* References of both sides, over a tile: they stay until a score lies further above one than 'slack' in base 2, and are
 * moved together, so that equal sides, or sides an exact offset apart, stay so. */
static inline void raise_both(int n, const float *y_p, const float *y_q, int v, const float unit[2], vf slack,
                              struct skl_panel_state *s, vf *m_p, vf *m_q)
{
    vf old_p = vload(s->m[0] + v * VL), old_q = vload(s->m[1] + v * VL);
    vf now_p = largest(n, y_p, v, old_p), now_q = largest(n, y_q, v, old_q);
    uint32_t above = vbits(vnle((now_p - old_p) * vset(unit[0]), slack)) |
                     vbits(vnle((now_q - old_q) * vset(unit[1]), slack)); /* also when nothing was seen before */
    now_p = vselect_bits(above, now_p, old_p), now_q = vselect_bits(above, now_q, old_q);
    *m_p = finite_max(now_p), *m_q = finite_max(now_q);
    if (!above)
        return;
    vstore(s->m[0] + v * VL, now_p), vstore(s->m[1] + v * VL, now_q);
    vf nothing = vset(-INFINITY);
    if (!(above & (vbits(vnle(old_p, nothing)) | vbits(vnle(old_q, nothing)))))
        return; /* no sums either */
    double l_p_old[VL];
    memcpy(l_p_old, s->l[0] + v * VL, sizeof l_p_old);
    move_l(old_p, *m_p, vset(unit[0]), s->l[0] + v * VL);
    move_l(old_q, *m_q, vset(unit[1]), s->l[1] + v * VL);
    move_acc(old_p, old_q, *m_p, *m_q, unit, l_p_old, s->acc[0] + v * VL);
}

#ifndef HAS_ADD_LANES
static inline void add_lanes(double *sum, vf x)
{
    float lanes[VL];
    vstore(lanes, x);
    for (int i = 0; i < VL; i++) sum[i] += (double)lanes[i];
}
#endif

/* A tile's sum is a sum of sums over this many columns: in chains this short, rounding stays below that of the
 * logits. */
enum { SHORT_SUM = 16 };

static inline int short_sum_end(int j, int n)
{
    return j + SHORT_SUM < n ? j + SHORT_SUM : n;
}

/* Lane groups that are pushed side by side: with 16 registers one, the sums of two would live on the stack. */
enum { AT_ONCE = MR * NV > 12 ? NV : 1 };

/* The sums of up to AT_ONCE lane groups over a tile, under given references. Where 2^x is infinite for a large x, sums tell
 * whether a score lay far above its reference; where it wraps around, the highest y does. */
#ifdef SCALE_SATURATES
enum { SUMS_TELL = 1 };
#else
enum { SUMS_TELL = 0 };
#endif
struct kl_sums {
    vf l_p[AT_ONCE], l_q[AT_ONCE], acc[AT_ONCE], highest[AT_ONCE];
};

/* What one column adds to the sums of a lane group; 'keep' says what takes the scores' place. */
static inline __attribute__((always_inline)) void push_column(float *at_p, float *at_q, vf m_p, vf m_q, vf unit_p,
                                                              vf unit_q, int careful, enum skl_keep keep, vf *l_p,
                                                              vf *l_q, vf *acc, vf *highest)
{
    vf y_p = (vload(at_p) - m_p) * unit_p, y_q = (vload(at_q) - m_q) * unit_q;
    vf e_p = vexp2(y_p), e_q = vexp2(y_q), d = y_p - y_q;
    if (careful)
        d = vkeep_nlt(y_p, vset(EXP2_MIN), d); /* 0 inf = 0 here: no mass, no contribution */
    *l_p += e_p;
    *l_q += e_q;
    *acc = vfma(e_p, d, *acc);
    if (!careful && !SUMS_TELL)
        *highest = vmax(y_p, vmax(y_q, *highest));
    if (keep == SKL_KEEP_EXP_Q || keep == SKL_KEEP_EXP_P)
        vstore(at_p, e_p), vstore(at_q, keep == SKL_KEEP_EXP_Q ? e_q : d);
}

static inline __attribute__((always_inline)) struct kl_sums sum_kl_lanes(int groups, int n, float *x_p, float *x_q,
                                                                         const float unit[2], int careful,
                                                                         enum skl_keep keep, const vf *m_p,
                                                                         const vf *m_q)
{
    vf zero = vset(0.0f), unit_p = vset(unit[0]), unit_q = vset(unit[1]);
    struct kl_sums sum;
    UNROLLED for (int v = 0; v < groups; v++) sum.l_p[v] = sum.l_q[v] = sum.acc[v] = sum.highest[v] = zero;
    for (int j = 0, end; j < n; j = end) {
        vf short_p[AT_ONCE], short_q[AT_ONCE], short_acc[AT_ONCE];
        end = short_sum_end(j, n);
        UNROLLED for (int v = 0; v < groups; v++) short_p[v] = short_q[v] = short_acc[v] = zero;
        for (int i = j; i < end; i++) {
            UNROLLED for (int v = 0; v < groups; v++)
                push_column(x_p + i * NR + v * VL, x_q + i * NR + v * VL, m_p[v], m_q[v], unit_p, unit_q, careful, keep,
                            &short_p[v], &short_q[v], &short_acc[v], &sum.highest[v]);
        }
        UNROLLED for (int v = 0; v < groups; v++)
        {
            sum.l_p[v] += short_p[v], sum.l_q[v] += short_q[v], sum.acc[v] += short_acc[v];
        }
    }
    return sum;
}

/* Lanes that may have met a score further above its reference than 'slack': none of the terms is larger than the sum of
 * them, so that no larger one was in a sum below 2^slack. */
static inline uint32_t above_slack(vf l, vf highest, float slack)
{
    return SUMS_TELL ? vbits(vnle(l, vexp2(vset(slack)) * vset(0.999f))) : vbits(vnle(highest, vset(slack)));
}

/* ... or, in a KL's sums, a mass of 0 times an infinite difference. */
static inline uint32_t unsure(const struct kl_sums *sum, int v, float slack)
{
    uint32_t lost = vbits(vnle(vabs(sum->acc[v]), vset(FLT_MAX)));
    return lost | above_slack(sum->l_p[v], sum->highest[v], slack) |
           (SUMS_TELL ? above_slack(sum->l_q[v], sum->highest[v], slack) : 0); /* 'highest' is of both sides */
}

/* Has a row no score yet, or is one of them hidden? Ranges hide those at the ends. */
static inline uint32_t unseen(vf m_p, vf m_q)
{
    return vbits(vnle(vset(-FLT_MAX), m_p)) | vbits(vnle(vset(-FLT_MAX), m_q));
}

static inline uint32_t hides(int n, const float *x_p, const float *x_q, int v)
{
    const float *last_p = x_p + (n - 1) * NR + v * VL, *last_q = x_q + (n - 1) * NR + v * VL;
    return unseen(vload(x_p + v * VL), vload(x_q + v * VL)) | unseen(vload(last_p), vload(last_q));
}

/* Where the scores stay, the old references are tried first, and no care is taken of masses of 0: the sums tell by the
 * way whether that may have been wrong, and are made again in the rare case. */
static inline __attribute__((always_inline)) void push_kl_lanes(int n, float *x_p, float *x_q, int v0,
                                                                const float unit[2], float slack, enum skl_keep keep,
                                                                struct skl_panel_state *s)
{
    vf m_p[AT_ONCE], m_q[AT_ONCE];
    struct kl_sums sum;
    uint32_t raise = keep != SKL_KEEP_NOTHING || slack == 0; /* without slack it would not be rare */
    UNROLLED for (int v = 0; v < AT_ONCE; v++)
    {
        m_p[v] = vload(s->m[0] + (v0 + v) * VL), m_q[v] = vload(s->m[1] + (v0 + v) * VL);
        raise |= unseen(m_p[v], m_q[v]) | hides(n, x_p, x_q, v0 + v);
    }
    if (!raise) {
        sum = sum_kl_lanes(AT_ONCE, n, x_p + v0 * VL, x_q + v0 * VL, unit, 0, SKL_KEEP_NOTHING, m_p, m_q);
        UNROLLED for (int v = 0; v < AT_ONCE; v++) raise |= unsure(&sum, v, slack);
    }
    if (raise) {
        UNROLLED for (int v = 0; v < AT_ONCE; v++)
            raise_both(n, x_p, x_q, v0 + v, unit, vset(slack), s, &m_p[v], &m_q[v]);
        sum = sum_kl_lanes(AT_ONCE, n, x_p + v0 * VL, x_q + v0 * VL, unit, 1, keep, m_p, m_q);
    }
    UNROLLED for (int v = 0; v < AT_ONCE; v++)
    {
        add_lanes(s->l[0] + (v0 + v) * VL, sum.l_p[v]);
        add_lanes(s->l[1] + (v0 + v) * VL, sum.l_q[v]);
        add_lanes(s->acc[0] + (v0 + v) * VL, sum.acc[v]);
    }
}

static inline __attribute__((always_inline)) void push_kl_keeping(int n, float *x_p, float *x_q, const float unit[2],
                                                                  float slack, enum skl_keep keep,
                                                                  struct skl_panel_state *s)
{
    for (int v = 0; v < NV; v += AT_ONCE) push_kl_lanes(n, x_p, x_q, v, unit, slack, keep, s);
}

static void push_kl(int n, float *x_p, float *x_q, const float unit[2], float slack, enum skl_keep keep,
                    struct skl_panel_state *s)
{
    if (keep == SKL_KEEP_EXP_Q)
        push_kl_keeping(n, x_p, x_q, unit, slack, SKL_KEEP_EXP_Q, s);
    else if (keep == SKL_KEEP_EXP_P)
        push_kl_keeping(n, x_p, x_q, unit, slack, SKL_KEEP_EXP_P, s);
    else
        push_kl_keeping(n, x_p, x_q, unit, slack, SKL_KEEP_NOTHING, s);
}

/* One side's reference over a tile, moved where a score lies further above it than 'slack' in base 2, and with it what was
 * summed under the old one. Returns what is to be subtracted from the scores. */
static inline vf raise_one(int n, const float *x, int v, vf unit, float slack, float *m, double *l)
{
    vf old = vload(m + v * VL), now = largest(n, x, v, old);
    vm moves = slack == 0 ? vnle(now, old)
                          : vnle((now - old) * unit, vset(slack)); /* also when nothing was seen before */
    uint32_t above = vbits(moves);
    now = vselect_bits(above, now, old);
    vf ref = finite_max(now);
    if (above) {
        vstore(m + v * VL, now);
        move_l(old, ref, unit, l + v * VL);
    }
    return ref;
}

/* The sums of AT_ONCE lane groups' 2^y over a tile, under given references, and their highest y where sums do not tell. */
struct lse_sums {
    vf l[AT_ONCE], highest[AT_ONCE];
};

static inline __attribute__((always_inline)) struct lse_sums sum_lse_lanes(int n, const float *x, vf unit, const vf *m)
{
    struct lse_sums sum;
    UNROLLED for (int v = 0; v < AT_ONCE; v++) sum.l[v] = sum.highest[v] = vset(0.0f);
    for (int j = 0, end; j < n; j = end) {
        vf part[AT_ONCE];
        end = short_sum_end(j, n);
        UNROLLED for (int v = 0; v < AT_ONCE; v++) part[v] = vset(0.0f);
        for (int i = j; i < end; i++) {
            UNROLLED for (int v = 0; v < AT_ONCE; v++)
            {
                vf y = (vload(x + i * NR + v * VL) - m[v]) * unit;
                part[v] += vexp2(y);
                if (!SUMS_TELL)
                    sum.highest[v] = vmax(y, sum.highest[v]);
            }
        }
        UNROLLED for (int v = 0; v < AT_ONCE; v++) sum.l[v] += part[v];
    }
    return sum;
}

static inline __attribute__((always_inline)) void push_lse_lanes(int n, const float *x, int v0, vf unit, float slack,
                                                                 float *reference, double *l)
{
    vf m[AT_ONCE];
    struct lse_sums sum;
    uint32_t raise = slack == 0;
    UNROLLED for (int v = 0; v < AT_ONCE; v++)
    {
        m[v] = vload(reference + (v0 + v) * VL);
        raise |= vbits(vnle(vset(-FLT_MAX), m[v])); /* nothing was seen before */
    }
    if (!raise) {
        sum = sum_lse_lanes(n, x + v0 * VL, unit, m);
        UNROLLED for (int v = 0; v < AT_ONCE; v++) raise |= above_slack(sum.l[v], sum.highest[v], slack);
    }
    if (raise) {
        UNROLLED for (int v = 0; v < AT_ONCE; v++) m[v] = raise_one(n, x, v0 + v, unit, slack, reference, l);
        sum = sum_lse_lanes(n, x + v0 * VL, unit, m);
    }
    UNROLLED for (int v = 0; v < AT_ONCE; v++) add_lanes(l + (v0 + v) * VL, sum.l[v]);
}

/* One side's log-sum-exp alone. As for a KL, the old reference is tried first, and the sum tells whether that was wrong. */
static void push_lse(int n, const float *x, float unit, float slack, int side, struct skl_panel_state *s)
{
    for (int v = 0; v < NV; v += AT_ONCE) push_lse_lanes(n, x, v, vset(unit), slack, s->m[side], s->l[side]);
}
