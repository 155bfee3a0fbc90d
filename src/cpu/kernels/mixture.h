/* SPDX-License-Identifier: Apache-2.0
 *
 * A mixture of heads, tile by tile: t = sum over heads of share 2^{unit (x - m)}, where share = 1 / (l heads) and unit
 * m + log2 l is the head's log-denominator; then x = log2 t, which is a score like any other.
 *
 * Bytes: 8 per (row, column) and head are read and 4 written, all in L1 or L2. Errors: 2 ulp of a term, 1 ulp of t for
 * each head at most, and half an ulp of log2 t, as a score has.
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

static void log2_tile(int n, float *t)
{
    for (int i = 0; i < n * NR; i += VL) vstore(t + i, vlog2(vload(t + i)));
}
