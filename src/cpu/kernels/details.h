/* SPDX-License-Identifier: Apache-2.0
 *
 * What a row can tell beyond its divergence, of one side, from a tile of its scores; and the part of dz that labels
 * make.
 *
 *     details    m = max x and its column,  l += 2^y,  moment += 2^y y,  l1 += 2^{y1},  sum += x
 *                y = unit (x - m), y1 = unit1 (x - m): the same logits at temperature 1
 *     above      += how many x are larger than the row's limit, which the first sweep has found
 *     tempered   factor 2^{y1}, which labels add to dz where the divergence has another temperature
 *
 * Each quantity is a pass of its own over the tile, which is in L1: only what is asked for is computed. Sums as in
 * states.h.
 */

/* The first column with the tile's largest score, as a number within the tile. */
static inline vf first_largest(int n, const float *x, int v, vf largest)
{
    vf at = vset(0.0f);
    for (int j = n - 1; j >= 0; j--) at = vselect_lt(vload(x + j * NR + v * VL), largest, at, vset((float)j));
    return at;
}

/* Raises the reference over the tile; what was summed under the old one is rescaled. Returns what is to be
 * subtracted. */
static inline vf raise_reference(int n, const float *x, int v, int64_t first, int want, float unit, float unit1,
                                 struct skl_panel_details *d)
{
    vf old = vload(d->m + v * VL), now = old;
    for (int j = 0; j < n; j++) now = vmax(vload(x + j * NR + v * VL), now);
    vf ref = finite_max(now);
    if (!vbits(vnle(now, old)))
        return ref;
    float was[VL], is[VL], to[VL], factor[VL], factor1[VL], at[VL];
    vstore(was, old), vstore(is, now), vstore(to, ref), vstore(d->m + v * VL, now);
    vstore(factor, vexp2((old - ref) * vset(unit))), vstore(factor1, vexp2((old - ref) * vset(unit1)));
    if (want & SKL_WANT_TOP1)
        vstore(at, first_largest(n, x, v, now));
    for (int i = 0; i < VL; i++) {
        int lane = v * VL + i;
        double shift = (double)unit * ((double)was[i] - (double)to[i]);
        d->moment[lane] = d->l[lane] != 0 ? (d->moment[lane] + d->l[lane] * shift) * (double)factor[i] : 0;
        d->l[lane] *= (double)factor[i];
        d->mass[lane] *= (double)factor[i];
        d->l1[lane] *= (double)factor1[i];
        if ((want & SKL_WANT_TOP1) && !(is[i] <= was[i]))
            d->top[lane] = first + (int64_t)at[i];
    }
    return ref;
}

/* Adds sum_j 2^{unit (x - ref)} and, if wanted, the moment. */
static inline void add_powers(int n, const float *x, int v, vf ref, vf unit, double *l, double *moment)
{
    vf sum = vset(0.0f), sum_moment = sum;
    for (int j = 0, end; j < n; j = end) {
        vf part = vset(0.0f), part_moment = part;
        end = short_sum_end(j, n);
        for (int i = j; i < end; i++) {
            vf y = (vload(x + i * NR + v * VL) - ref) * unit, e = vexp2(y);
            part += e;
            if (moment)
                part_moment = vfma(e, vkeep_nlt(y, vset(EXP2_MIN), y), part_moment);
        }
        sum += part, sum_moment += part_moment;
    }
    add_lanes(l + v * VL, sum);
    if (moment)
        add_lanes(moment + v * VL, sum_moment);
}

static void details(int n, const float *x, int64_t first, int want, float unit, float unit1,
                    struct skl_panel_details *d)
{
    for (int v = 0; v < NV; v++) {
        if (want & (SKL_WANT_ENTROPY | SKL_WANT_L1 | SKL_WANT_TOP1 | SKL_WANT_MASS)) {
            vf ref = raise_reference(n, x, v, first, want, unit, unit1, d);
            if (want & SKL_WANT_ENTROPY)
                add_powers(n, x, v, ref, vset(unit), d->l, d->moment);
            if (want & SKL_WANT_L1)
                add_powers(n, x, v, ref, vset(unit1), d->l1, NULL);
        }
        if (want & SKL_WANT_SUM) {
            vf sum = vset(0.0f);
            for (int j = 0; j < n; j++) sum += vload(x + j * NR + v * VL);
            add_lanes(d->sum + v * VL, sum);
        }
    }
}

/* A tile has fewer columns than an f32 counts exactly. */
static void count_above(int n, const float *x, const float *limit, double *above)
{
    for (int v = 0; v < NV; v++) {
        vf at = vload(limit + v * VL), count = vset(0.0f);
        for (int j = 0; j < n; j++) count += vselect_lt(at, vload(x + j * NR + v * VL), vset(1.0f), vset(0.0f));
        add_lanes(above + v * VL, count);
    }
}

static void tempered(int n, const float *x, const float *m, float unit1, const float *factor, float *y)
{
    for (int v = 0; v < NV; v++) {
        vf ref = vload(m + v * VL), f = vload(factor + v * VL);
        for (int j = 0; j < n; j++)
            vstore(y + j * NR + v * VL, vexp2((vload(x + j * NR + v * VL) - ref) * vset(unit1)) * f);
    }
}

static void add_tile(int n, const float *x, float *y)
{
    for (int i = 0; i < n * NR; i += VL) vstore(y + i, vload(y + i) + vload(x + i));
}
