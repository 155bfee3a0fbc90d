/* SPDX-License-Identifier: Apache-2.0
 *
 * Which scores of a tile may be among the largest of their row: one comparison an entry, with a bound of the row's that
 * only rises, so that after the first tiles few pass. 4 bytes per (row, column) are read, from L1.
 */

/* NaN passes, as +inf; -0 becomes 0: what is equal has equal bits then. */
static void pick(int n, float *x, const float *least, uint32_t rows, int32_t first, struct skl_pick *picks,
                 int64_t room, int32_t *picked)
{
    vf bound[NV];
    UNROLLED for (int v = 0; v < NV; v++) bound[v] = vload(least + v * VL);
    for (int j = 0; j < n; j++) {
        float *at = x + j * NR;
        uint32_t passed = 0;
        UNROLLED for (int v = 0; v < NV; v++) passed |= vbits(vnle(vload(at + v * VL), bound[v])) << v * VL;
        for (passed &= rows; passed; passed &= passed - 1) {
            int i = __builtin_ctz(passed);
            float score = at[i] != at[i] ? INFINITY : at[i] + 0.0f;
            picks[i * room + picked[i]++] = (struct skl_pick){score, first + j};
            at[i] = -INFINITY;
        }
    }
}
