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

/* -------------------------------------------------------------------------------- packs of the FMA products --- */

/*     panel   [dim][NR]             a^T, for logits
 *     block   [dim / NR][rows][NR]  a, for grad_columns
 *     tile    [SKL_BK][LDK]         b in f32, KC of its dim entries
 *     strips  [KC / MR][SKL_BK][MR] the same, for grad_rows */
static int64_t panel_bytes(int64_t dim)
{
    return dim * NR * (int64_t)sizeof(float);
}

static int64_t block_bytes(int64_t dim, int rows)
{
    return (dim + NR - 1) / NR * NR * rows * (int64_t)sizeof(float);
}

static void pack_row(int64_t dim, const float *line, float sign, int i, void *panel)
{
    float *to = panel;
    for (int64_t d = 0; d < dim; d++) to[d * NR + i] = sign * line[d];
}

static void pack_panel(int64_t dim, const void *const *lines, float sign, void *panel)
{
    float *to = panel;
    int64_t whole = dim / VL * VL;
    for (int i = 0; i < NR; i += VL)
        for (int64_t d = 0; d < whole; d += VL) {
            vf x[VL];
            UNROLLED for (int k = 0; k < VL; k++) x[k] = vload((const float *)lines[i + k] + d) * vset(sign);
            transpose_square(x);
            UNROLLED for (int k = 0; k < VL; k++) vstore(to + (d + k) * NR + i, x[k]);
        }
    for (int64_t d = whole; d < dim; d++)
        for (int i = 0; i < NR; i++) to[d * NR + i] = sign * ((const float *)lines[i])[d];
}

/* The other way, n rows of da. */
static void write_rows(int64_t dim, const float *da, int n, float *const *lines)
{
    int64_t whole = dim / VL * VL;
    for (int i = 0; i < n; i += VL)
        for (int64_t d = 0; d < whole; d += VL) {
            vf x[VL];
            UNROLLED for (int k = 0; k < VL; k++) x[k] = vload(da + (d + k) * NR + i);
            transpose_square(x);
            UNROLLED for (int k = 0; k < VL; k++) if (i + k < n) vstore(lines[i + k] + d, x[k]);
        }
    for (int i = 0; i < n; i++)
        for (int64_t d = whole; d < dim; d++) lines[i][d] = da[d * NR + i];
}

/* NaN and inf become 0: where the row sees a column, its dz is NaN anyway, and where it does not, dz = 0 must not
 * become NaN. */
static void pack_block_row(int64_t dim, const float *line, int r, int rows, void *block)
{
    float *to = block;
    for (int64_t d0 = 0; d0 < dim; d0 += NR) {
        float *part = to + (d0 / NR * rows + r) * NR;
        int n = dim - d0 < NR ? (int)(dim - d0) : 0; /* of a part that is not full */
        UNROLLED for (int v = 0; v < NV && !n; v++)
        {
            vf x = vload(line + d0 + v * VL);
            vstore(part + v * VL, vselect_lt(vabs(x), vset(INFINITY), x, vset(0.0f)));
        }
        for (int d = 0; d < n; d++) part[d] = fabsf(line[d0 + d]) <= FLT_MAX ? line[d0 + d] : 0;
        for (int d = n; n && d < NR; d++) part[d] = 0;
    }
}

/* Columns of a large matrix lie in a page each, which no hardware prefetcher leaves: while one is packed, the one so
 * far ahead is asked for. */
enum { PACK_AHEAD = 8 };

static inline __attribute__((always_inline)) void ask_column(int j, int n, const char *b, int64_t stride, int bytes)
{
    for (int i = 0; j + PACK_AHEAD < n && i < bytes; i += 64)
        __builtin_prefetch(b + (j + PACK_AHEAD) * stride + i, 0, 3);
}

/* n columns of k entries into tile[n][LDK], zeros after them up to whole strips of MR both ways. */
static void pack_columns(int n, int k, const void *b, int dtype, int64_t stride, float *tile)
{
    int size = dtype == SKL_F32 ? 4 : 2, k_strips = (k + MR - 1) / MR * MR;
    for (int j = 0; j < n; j++) {
        ask_column(j, n, b, stride * size, k * size);
        convert(k, (const char *)b + j * stride * size, dtype, tile + j * LDK);
        for (int i = k; i < k_strips; i++) tile[j * LDK + i] = 0;
    }
    for (int j = n; j % MR; j++) memset(tile + j * LDK, 0, (size_t)k_strips * sizeof(float));
}

/* The operand can serve as it is when it has f32 and whole strips, and its columns are not so far apart that those of a
 * strip fall into the same sets of L1 (4 KiB). Otherwise it is packed. */
static int serves(int n, const void *b, int dtype, int64_t stride)
{
    return dtype == SKL_F32 && n % MR == 0 && stride < 1024 && (uintptr_t)b % 4 == 0;
}

static struct skl_columns columns_of(int n, int k, const void *b, int dtype, int64_t stride, void *pack)
{
    if (serves(n, b, dtype, stride))
        return (struct skl_columns){.at = b, .ld = stride};
    pack_columns(n, k, b, dtype, stride, pack);
    return (struct skl_columns){.at = pack, .ld = LDK};
}

/* n columns of k entries into strips[k / MR][SKL_BK][MR], zeros after them as above. */
static void pack_strips(int n, int k, const void *b, int dtype, int64_t stride, int clean, float *strips)
{
    int size = dtype == SKL_F32 ? 4 : 2, whole = k / MR * MR;
    for (int j = 0; j < n; j++) {
        const char *column = (const char *)b + j * stride * size;
        float line[KC + MR];
        ask_column(j, n, b, stride * size, k * size);
        const float *x = line;
        if (dtype == SKL_F32 && !clean && whole == k && (uintptr_t)column % sizeof *x == 0)
            x = (const float *)(const void *)column;
        else
            convert(k, column, dtype, line);
        for (int i = 0; clean && i < k; i++) line[i] = fabsf(line[i]) <= FLT_MAX ? line[i] : 0;
        for (int i = k; x == line && i < whole + MR; i++) line[i] = 0;
        for (int i = 0; i < k; i += MR) memcpy(strips + (int64_t)i * SKL_BK + j * MR, x + i, MR * sizeof *x);
    }
    for (int j = n; j % MR; j++)
        for (int i = 0; i < k; i += MR) memset(strips + (int64_t)i * SKL_BK + j * MR, 0, MR * sizeof *strips);
}

/* grad_rows reads whole strips of dim, MR entries of a column after the other: packed, these are side by side. */
static struct skl_columns columns_back(int n, int k, const void *b, int dtype, int64_t stride, int clean, void *pack)
{
    if (!clean && k % MR == 0 && stride != MR && serves(n, b, dtype, stride))
        return (struct skl_columns){.at = b, .ld = stride};
    pack_strips(n, k, b, dtype, stride, clean, pack);
    return (struct skl_columns){.at = pack, .ld = MR};
}
