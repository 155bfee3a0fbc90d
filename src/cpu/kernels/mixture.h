/* SPDX-License-Identifier: Apache-2.0
 *
 * A mixture of heads, tile by tile: t = sum over heads of share 2^{unit (x - m)}, where share = 1 / (l heads) and unit
 * m + log2 l is the head's log-denominator; then x = log2 t, which is a score like any other.
 *
 * Bytes: 8 per (row, column) and head are read and 4 written, all in L1 or L2. Errors: 2 ulp of a term, 1 ulp of t for
 * each head at most, and half an ulp of log2 t, as a score has.
 *
 * Where the denominators are not known yet, a head's exponentials are kept under the largest score of their own tile,
 * and weighted when all tiles are there: a term has two roundings more.
 */

/* A denominator that is smaller than one of its terms by more than this is no denominator: t stays finite. */
#define MIX_MAX 100.0f

static void mix(int n, const float *x, float unit, const float *m, const float *share, int add, float *t)
{
    for (int v = 0; v < NV; v++) {
        vf ref = vload(m + v * VL), part = vload(share + v * VL), u = vset(unit), most = vset(MIX_MAX);
        for (int j = 0; j < n; j++) {
            float *at = t + j * NR + v * VL;
            vf y = (vload(x + j * NR + v * VL) - ref) * u;
            vf e = vexp2(vselect_lt(most, y, most, y)) * part;
            if (add)
                e = vload(at) + e;
            vstore(at, e);
        }
    }
}

/* e = 2^{unit (x - m)} with m = max x of the n columns, and l = sum e. Sums as in states.h. */
static void keep_head(int n, const float *x, float unit, float *m, float *l, float *e)
{
    vf u = vset(unit);
    for (int v = 0; v < NV; v++) {
        vf most = largest(n, x, v, vset(-INFINITY)), ref = finite_max(most), sum = vset(0.0f);
        for (int j = 0, end; j < n; j = end) {
            vf part = vset(0.0f);
            end = short_sum_end(j, n);
            for (int i = j; i < end; i++) {
                vf one = vexp2((vload(x + i * NR + v * VL) - ref) * u);
                vstore(e + i * NR + v * VL, one);
                part += one;
            }
            sum += part;
        }
        vstore(m + v * VL, most), vstore(l + v * VL, sum);
    }
}

static void mix_kept(int n, const float *e, const float *factor, int add, float *t)
{
    for (int v = 0; v < NV; v++) {
        vf f = vload(factor + v * VL);
        for (int j = 0; j < n; j++) {
            float *at = t + j * NR + v * VL;
            vf part = vload(e + j * NR + v * VL);
            if (add)
                part = vfma(part, f, vload(at));
            else
                part = part * f;
            vstore(at, part);
        }
    }
}

static void log2_tile(int n, float *t)
{
    for (int i = 0; i < n * NR; i += VL) vstore(t + i, vlog2(vload(t + i)));
}
