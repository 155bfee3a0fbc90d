/* SPDX-License-Identifier: Apache-2.0
 *
 * The gradient products over the entries of dz that count, where they are few (skip_below):
 *
 *     C[0..d-1] += sum_k x[k] B[at[k]][0..d-1]      over a list of n entries
 *
 * NR numbers of a row of B are contiguous, the next NR lie 'next' away. Per entry one broadcast and for each vector a
 * load and an FMA; with the making of the lists some four times what a dense product takes for an entry.
 */
enum { LIST_NV = 2 * NV }; /* as many sums at once as hide the latency of an FMA */

static void add_listed(int n, const uint16_t *at, const float *x, const float *B, int64_t stride, int64_t next, int d,
                       float *C)
{
    int e = 0;
    for (; e + LIST_NV * VL <= d; e += LIST_NV * VL) {
        vf c[LIST_NV];
        UNROLLED for (int v = 0; v < LIST_NV; v++) c[v] = vset(0.0f);
        for (int k = 0; k < n; k++) {
            const float *b = B + at[k] * stride + e / NR * next;
            vf a = vset(x[k]);
            UNROLLED for (int v = 0; v < LIST_NV; v++) c[v] = vfma(a, vload(b + v / NV * next + v % NV * VL), c[v]);
        }
        UNROLLED for (int v = 0; v < LIST_NV; v++) vstore(C + e + v * VL, vload(C + e + v * VL) + c[v]);
    }
    for (; e + VL <= d; e += VL) {
        vf c = vset(0.0f);
        for (int k = 0; k < n; k++) c = vfma(vset(x[k]), vload(B + at[k] * stride + e / NR * next + e % NR), c);
        vstore(C + e, vload(C + e) + c);
    }
    for (; e < d; e++) {
        float c = 0;
        for (int k = 0; k < n; k++) c += x[k] * B[at[k] * stride + e / NR * next + e % NR];
        C[e] += c;
    }
}

static void add_listed_rows(int n, const uint16_t *at, const float *x, const void *block, int rows, int dim, float *sum)
{
    add_listed(n, at, x, block, NR, (int64_t)rows * NR, dim, sum);
}

static void add_listed_columns(int n, const uint16_t *at, const float *x, struct skl_columns columns, int dim,
                               float *sum)
{
    add_listed(n, at, x, columns.at, columns.ld, NR, dim, sum);
}
