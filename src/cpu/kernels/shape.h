/* SPDX-License-Identifier: Apache-2.0
 *
 * Tiles outside of the divergences: the softcap and masks of scores, which entries of dz count, the bias's gradient.
 */

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
static void sum_rows(int n, const float *dz, float *sum)
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

/* Compilers made a branch of each number of this, and processors mispredicted it. */
static void mask(int n, const int *lo, const int *hi, float with, float *y)
{
    for (int v = 0; v < NV; v++) {
        float from[VL], to[VL];
        for (int i = 0; i < VL; i++) from[i] = (float)lo[v * VL + i], to[i] = (float)hi[v * VL + i];
        vf first = vload(from), end = vload(to), hidden = vset(with);
        for (int j = 0; j < n; j++) {
            float *at = y + j * NR + v * VL;
            vf x = vselect_lt(vset((float)j), first, hidden, vload(at));
            vstore(at, vselect_lt(vset((float)j), end, x, hidden));
        }
    }
}

static void mask_rows(int n, const uint32_t *rows, float with, float *y)
{
    for (int j = 0; j < n; j++)
        for (int v = 0; v < NV; v++) {
            float *at = y + j * NR + v * VL;
            vstore(at, vselect_bits(rows[j] >> v * VL, vload(at), vset(with)));
        }
}

static void exp2_panel(const float *x, float *y)
{
    for (int v = 0; v < NV; v++) vstore(y + v * VL, vexp2(vload(x + v * VL)));
}
