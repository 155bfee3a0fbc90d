/* SPDX-License-Identifier: Apache-2.0
 *
 * An indexer's score y = sum over heads of w act(x), x = <a, b>, and what undoes it, head by head:
 *
 *     dx = dy w act'(x),     dw = sum_j dy act(x)        act = ReLU with act'(0) = 0, or the identity
 *
 * Bytes: 8 per (row, column) and head are read and 4 written. dw is a sum of f32 chains of 16 terms, added up in
 * double.
 */
static inline vf activation(vf x, int identity)
{
    if (identity)
        return x;
    return vselect_lt(x, vset(0.0f), vset(0.0f), x); /* NaN stays */
}

static void index_tile(int n, const float *x, const float *w, int identity, int add, float *y)
{
    for (int v = 0; v < NV; v++) {
        vf part = vload(w + v * VL);
        for (int j = 0; j < n; j++) {
            float *at = y + j * NR + v * VL;
            vf e = activation(vload(x + j * NR + v * VL), identity);
            e = part * e;
            if (add)
                e = vload(at) + e;
            vstore(at, e);
        }
    }
}

/* Where dy is 0, as in columns that a row does not see, dx and dw get 0 whatever w and x are. */
static void index_back(int n, float *x, const float *dy, const float *w, int identity, double *dw)
{
    for (int v = 0; v < NV; v++) {
        vf part = vload(w + v * VL), zero = vset(0.0f), least = vset(FLT_MIN), sum = zero;
        for (int j = 0, end; j < n; j = end) {
            vf few = zero;
            end = short_sum_end(j, n);
            for (int i = j; i < end; i++) {
                float *at = x + i * NR + v * VL;
                vf d = vload(dy + i * NR + v * VL), e = vload(at), dx = vkeep_nlt(vabs(d), least, d * part);
                few += vkeep_nlt(vabs(d), least, d * activation(e, identity));
                if (!identity)
                    dx = vselect_lt(zero, e, dx, zero);
                vstore(at, dx);
            }
            sum += few;
        }
        if (dw)
            add_lanes(dw + v * VL, sum);
    }
}
