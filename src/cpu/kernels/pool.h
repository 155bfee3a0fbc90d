/* SPDX-License-Identifier: Apache-2.0
 *
 * Blocks of keys into one score each: the largest, m = max x, or the score of their LSE, m + log2(l) / unit with
 * l = sum 2^{unit (x - m)}, carried on as a row's state is. Bytes: 4 per (row, key) are read, twice for a sum. A
 * block's sum is f32 chains of at most 16 terms, and of these.
 */
static void pool_tile(int n, const float *x, float unit, float *m, float *l)
{
    for (int v = 0; v < NV; v++) {
        vf old = vload(m + v * VL), now = old, zero = vset(0.0f), nan = zero;
        for (int j = 0; j < n; j++) {
            vf key = vload(x + j * NR + v * VL);
            now = vmax(key, now);
            nan += vselect_lt(key, vset(-FLT_MAX), zero, key * zero); /* vmax does not see a NaN; -inf is no key */
        }
        now += nan;
        vstore(m + v * VL, now);
        if (!l)
            continue;
        vf ref = finite_max(now), sum = vload(l + v * VL) * vexp2((old - ref) * vset(unit));
        for (int j = 0, end; j < n; j = end) {
            vf few = zero;
            end = short_sum_end(j, n);
            for (int i = j; i < end; i++) few += vexp2((vload(x + i * NR + v * VL) - ref) * vset(unit));
            sum += few;
        }
        vstore(l + v * VL, sum);
    }
}

static void pooled_tile(int n, float unit, const float *l, float *m)
{
    for (int i = 0; i < n * NR; i += VL) vstore(m + i, vload(m + i) + vlog2(vload(l + i)) * vset(1 / unit));
}
