/* SPDX-License-Identifier: Apache-2.0
 *
 * The second sweep of a divergence whose terms need both LSEs. With p and q known it is a sum of phi(p, q) over
 * columns, and its gradient is dz_Q = g (g_Q - q sum g_Q) with g_Q = q dphi/dq, likewise for P (docs/math.md, section
 * 5b).
 *
 * A divergence brings two functions of one column, in a file of its own:
 *
 *     NAME_terms    what the column adds to the row's two sums
 *     NAME_dz       dz of the column for one side, once the sums are complete
 *
 * and TWO_SWEEPS(NAME) makes the loops over a tile of them. What the sums mean is in ../../divergence.h. Bytes: a
 * tile's 8 per (row, column) are read; dz writes 4 for each wanted side. Sums are f32 chains as in states.h.
 */

/* p and q of one column, told by the larger and the smaller of them, so that nothing overflows and nothing is lost to a
 * difference of nearly equal numbers. Where p = q, m1 is exactly 0. Where a side has no mass, the smaller is 0. */
struct column {
    vf d;            /* log2 q - log2 p; > 0: q is the larger */
    vf large, small; /* probabilities */
    vf y_large;      /* logit in base 2 of the larger, relative to its row's reference */
    vf x;            /* -|d| */
    vf x_finite;     /* -|d|, but at least EXP2_MIN */
    vf ratio, m1;    /* small / large = 2^{-|d|}, and that minus 1 */
};

/* Of two vectors of numbers, one belonging to the larger and one to the smaller probability, those of side P = 0 or
 * Q = 1. */
static inline vf of_side(const struct column *c, int side, vf large, vf small)
{
    return side == 0 ? vselect_lt(vset(0.0f), c->d, small, large) : vselect_lt(vset(0.0f), c->d, large, small);
}

/* Of the two sides' numbers, that of the larger probability. */
static inline vf of_larger(const struct column *c, vf p, vf q)
{
    return vselect_lt(vset(0.0f), c->d, q, p);
}

static inline __attribute__((always_inline)) struct column column_of(vf x_p, vf x_q, const struct skl_panel_factors *f,
                                                                     int v)
{
    vf y_p = (x_p - vload(f->m[0] + v * VL)) * vset(f->unit[0]),
       y_q = (x_q - vload(f->m[1] + v * VL)) * vset(f->unit[1]);
    struct column c = {.d = (y_q - y_p) - vload(f->gap + v * VL)};
    c.x = vneg_abs(c.d);
    c.x_finite = vmax(c.x, vset(EXP2_MIN));
    c.ratio = vkeep_nlt(c.x, vset(EXP2_MIN), vexp2_and_m1(c.x_finite, &c.m1));
    c.y_large = of_larger(&c, y_p, y_q);
    c.large = vexp2(c.y_large) * of_larger(&c, vload(f->prob[0] + v * VL), vload(f->prob[1] + v * VL));
    c.small = c.large * c.ratio;
    return c;
}

/* log(mixture / p) and log(mixture / q) in natural units, for the mixture m = param_P p + param_Q q. With small = large
 * e^{-|d|}, log(m / large) = log(param_large + param_small e^{-|d|}), which near d = 0 is taken as log1p(param_small
 * (e^{-|d|} - 1)), and log(m / small) = log(m / large) + |d|. Both are exactly 0 where p = q, and always finite: where
 * p or q is 0, the product with it is 0, not NaN. */
struct mixture {
    vf over_large; /* m / large */
    vf log_large, log_small;
};

static inline struct mixture mixture_of(const struct column *c, const struct skl_panel_factors *f)
{
    vf param_small = of_larger(c, vset(f->param[1]), vset(f->param[0])),
       param_large = of_larger(c, vset(f->param[0]), vset(f->param[1]));
    struct mixture m = {.over_large = vfma(param_small, c->ratio, param_large)};
    m.log_large = vlog1p(param_small * c->m1, m.over_large);
    m.log_small = vfma(c->x_finite, vset(-LN2), m.log_large);
    return m;
}

typedef void column_terms(const struct column *c, const struct skl_panel_factors *f, int v, vf *acc_p, vf *acc_q);
typedef vf column_dz(const struct column *c, const struct skl_panel_factors *f, int v, int side);

/* From scores to a term is a chain of some 25 operations that wait for one another. With AVX2, columns first and terms
 * after them, a few at a time, are two shorter chains, of which the processor has more under way: a sixth less time on
 * Zen 4. With AVX-512 storing a column in between, 64 bytes for each of its numbers, costs more than that gains. */
enum { COLUMNS_AT_ONCE = VL < 16 ? SHORT_SUM : 1 };

static inline int at_once_end(int j, int n)
{
    return n - j < COLUMNS_AT_ONCE ? n : j + COLUMNS_AT_ONCE;
}

/* Kept scores come from far away: meanwhile those of the next panel, which lie behind this one's tile, are asked for. */
static inline __attribute__((always_inline)) void ask_next_panel(const float *at_p, const float *at_q)
{
    uintptr_t next = sizeof(float) * SKL_BK * NR; /* beyond the last tile's end, perhaps: no pointer may say so */
    __builtin_prefetch((const void *)((uintptr_t)at_p + next), 0, 2);
    __builtin_prefetch((const void *)((uintptr_t)at_q + next), 0, 2);
}

/* The columns i0 .. i1 - 1. */
static inline __attribute__((always_inline)) void load_columns(int i0, int i1, const float *x_p, const float *x_q,
                                                               const struct skl_panel_factors *f, int v,
                                                               struct column *c)
{
    for (int i = i0; i < i1; i++) {
        const float *at_p = x_p + i * NR + v * VL, *at_q = x_q + i * NR + v * VL;
        ask_next_panel(at_p, at_q);
        c[i - i0] = column_of(vload(at_p), vload(at_q), f, v);
    }
}

static inline __attribute__((always_inline)) void sum_columns(int n, const float *x_p, const float *x_q,
                                                              const struct skl_panel_factors *f, column_terms *terms,
                                                              struct skl_panel_state *s)
{
    for (int v = 0; v < NV; v++) {
        vf acc_p = vset(0.0f), acc_q = acc_p;
        for (int j = 0, end; j < n; j = end) {
            vf part_p = vset(0.0f), part_q = part_p;
            end = short_sum_end(j, n);
            for (int i0 = j, i1; i0 < end; i0 = i1) {
                struct column c[COLUMNS_AT_ONCE];
                i1 = at_once_end(i0, end);
                load_columns(i0, i1, x_p, x_q, f, v, c);
                for (int i = i0; i < i1; i++) terms(&c[i - i0], f, v, &part_p, &part_q);
            }
            acc_p += part_p;
            acc_q += part_q;
        }
        add_lanes(s->acc[0] + v * VL, acc_p);
        add_lanes(s->acc[1] + v * VL, acc_q);
    }
}

static inline __attribute__((always_inline)) void dz_columns(int n, float *x_p, float *x_q, int want,
                                                             const struct skl_panel_factors *f, column_dz *dz)
{
    for (int v = 0; v < NV; v++)
        for (int j0 = 0, j1; j0 < n; j0 = j1) {
            struct column cs[COLUMNS_AT_ONCE];
            j1 = at_once_end(j0, n);
            load_columns(j0, j1, x_p, x_q, f, v, cs);
            for (int j = j0; j < j1; j++) {
                float *at_p = x_p + j * NR + v * VL, *at_q = x_q + j * NR + v * VL;
                struct column c = cs[j - j0];
                if (want & 1)
                    vstore(at_p, dz(&c, f, v, 0) + vload(f->own[0] + v * VL) * of_side(&c, 0, c.large, c.small));
                if (want & 2)
                    vstore(at_q, dz(&c, f, v, 1) + vload(f->own[1] + v * VL) * of_side(&c, 1, c.large, c.small));
            }
        }
}

#define TWO_SWEEPS(name)                                                                                            \
    static void sum_##name(int n, const float *x_p, const float *x_q, int apart, const struct skl_panel_factors *f, \
                           struct skl_panel_state *s)                                                               \
    {                                                                                                               \
        (void)apart;                                                                                                \
        sum_columns(n, x_p, x_q, f, name##_terms, s);                                                               \
    }                                                                                                               \
    static void dz_##name(int n, float *x_p, float *x_q, int want, const struct skl_panel_factors *f)               \
    {                                                                                                               \
        dz_columns(n, x_p, x_q, want, f, name##_dz);                                                                \
    }
