/* SPDX-License-Identifier: Apache-2.0
 *
 * Without a teacher: no divergence. dz is what labels make of the student's probability: own q.
 */

/* NOLINTNEXTLINE(readability-non-const-parameter): as all of its table */
static void dz_none(int n, float *x_p, float *x_q, int want, const struct skl_panel_factors *f)
{
    (void)x_p, (void)want;
    for (int v = 0; v < NV; v++) {
        vf m = vload(f->m[1] + v * VL), own = vload(f->prob[1] + v * VL) * vload(f->own[1] + v * VL);
        for (int j = 0; j < n; j++) {
            float *at = x_q + j * NR + v * VL;
            vstore(at, vexp2((vload(at) - m) * vset(f->unit[1])) * own);
        }
    }
}
