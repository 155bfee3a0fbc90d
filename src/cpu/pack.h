/* SPDX-License-Identifier: Apache-2.0
 * Operands of any dtype into f32 and back. Reads and writes exactly what it is told to: no byte past an array. */

static void convert(int64_t n, const void *x, int dtype, float *y)
{
    int64_t i = 0;
    if (dtype == SKL_F32) {
        memcpy(y, x, (size_t)n * sizeof(float));
    } else if (dtype == SKL_BF16) {
        const uint16_t *h = x;
        for (; i + VL <= n; i += VL) vstore(y + i, vload_bf16(h + i));
        for (; i < n; i++) y[i] = skl_from_bf16(h[i]);
    } else {
        const uint16_t *h = x;
        for (; i + VL <= n; i += VL) vstore(y + i, vload_f16(h + i));
        for (; i < n; i++) y[i] = skl_from_f16(h[i]);
    }
}

static void convert_back(int64_t n, const float *x, int dtype, void *y)
{
    uint16_t *h = y;
    if (dtype == SKL_F32)
        memcpy(y, x, (size_t)n * sizeof(float));
    else if (dtype == SKL_BF16)
        for (int64_t i = 0; i < n; i++) h[i] = skl_to_bf16(x[i]);
    else
        for (int64_t i = 0; i < n; i++) h[i] = skl_to_f16(x[i]);
}

/* n columns of k entries into tile[n][SKL_LDK], zeros after them up to whole strips of MR both ways. */
static void pack_columns(int n, int k, const void *b, int dtype, int64_t stride, float *tile)
{
    int size = dtype == SKL_F32 ? 4 : 2, k_strips = (k + MR - 1) / MR * MR;
    for (int j = 0; j < n; j++) {
        convert(k, (const char *)b + j * stride * size, dtype, tile + j * SKL_LDK);
        for (int i = k; i < k_strips; i++) tile[j * SKL_LDK + i] = 0;
    }
    for (int j = n; j % MR; j++) memset(tile + j * SKL_LDK, 0, (size_t)k_strips * sizeof(float));
}
