/* SPDX-License-Identifier: Apache-2.0
 *
 * Single columns against single rows, for lists of columns: <x, y> and y += a x over n entries of dim. Nothing is
 * packed: a column is read once for its score and once for da, 4 n bytes each time, and memory is the limit. Error of
 * the dot product: chains of n / (DOT_SUMS VL) terms, shorter than those of the products of tiles.
 */
enum { DOT_SUMS = 8 }; /* as many chains as hide the latency of an FMA */

static float dot(int64_t n, const float *x, const float *y)
{
    vf sum[DOT_SUMS];
    float lanes[VL], rest = 0;
    int64_t i = 0;
    UNROLLED for (int v = 0; v < DOT_SUMS; v++) sum[v] = vset(0.0f);
    for (; i + DOT_SUMS * VL <= n; i += DOT_SUMS * VL)
        UNROLLED for (int v = 0; v < DOT_SUMS; v++) sum[v] = vfma(vload(x + i + v * VL), vload(y + i + v * VL), sum[v]);
    for (; i + VL <= n; i += VL) sum[0] = vfma(vload(x + i), vload(y + i), sum[0]);
    for (; i < n; i++) rest = fmaf(x[i], y[i], rest);
    for (int half = DOT_SUMS / 2; half; half /= 2)
        for (int v = 0; v < half; v++) sum[v] += sum[v + half];
    vstore(lanes, sum[0]);
    for (int half = VL / 2; half; half /= 2)
        for (int k = 0; k < half; k++) lanes[k] += lanes[k + half];
    return lanes[0] + rest;
}

static void add_scaled(int64_t n, float a, const float *x, float *y)
{
    int64_t i = 0;
    for (; i + VL <= n; i += VL) vstore(y + i, vfma(vset(a), vload(x + i), vload(y + i)));
    for (; i < n; i++) y[i] += a * x[i];
}
