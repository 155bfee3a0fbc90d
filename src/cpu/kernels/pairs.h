/* SPDX-License-Identifier: Apache-2.0
 *
 * Packs of bf16 for units that multiply pairs of it and add to f32: VDPBF16PS, BFDOT, TDPBF16PS. bf16 stays bf16, so
 * half the bytes of the FMA packs.
 *
 *     panel   [dim / 2][NR][2]      a^T in pairs of entries, for logits; zeros up to a multiple of PAIR_STEP entries
 *     tile    [SKL_BK][PAIR_LD]     b, PAIR_KC of its dim entries; or b as it lies
 */
enum {
    PAIR_STEP = 32,               /* entries that a tile unit takes at once: packs hold whole steps */
    PAIR_KC = 512,                /* entries of dim in a tile of columns: a panel's part is 32 KiB at NR = 32 */
    PAIR_LD = PAIR_KC + PAIR_STEP /* 17 lines, as LDK */
};

typedef uint32_t vpair __attribute__((vector_size(4 * VL))); /* a pair in each lane, the first one in the lower half */

static inline int whole_steps(int64_t n)
{
    return (int)((n + PAIR_STEP - 1) / PAIR_STEP * PAIR_STEP);
}

static inline vpair load_pairs(const void *at)
{
    vpair x;
    memcpy(&x, at, sizeof x);
    return x;
}

static inline void store_pairs(void *at, vpair x)
{
    memcpy(at, &x, sizeof x);
}

static int64_t pair_panel_bytes(int64_t dim)
{
    return (int64_t)whole_steps(dim) * NR * (int64_t)sizeof(uint16_t);
}

/* 'line' came from bf16, and the sign takes nothing away: its upper half is all of it. */
static void pair_pack_row(int64_t dim, const float *line, float sign, int i, void *panel)
{
    uint16_t *to = panel;
    for (int64_t d = 0; d < whole_steps(dim); d++)
        to[(d / 2 * NR + i) * 2 + d % 2] = d < dim ? (uint16_t)(skl_bits(sign * line[d]) >> 16) : 0;
}

#if LANES == 16
/* Lane l of x[i] becomes lane i of x[l]. */
static inline __attribute__((always_inline)) void transpose(vpair x[16])
{
    EXCHANGE_BLOCKS(vpair, x, 1)
    EXCHANGE_BLOCKS(vpair, x, 2)
    EXCHANGE_BLOCKS(vpair, x, 4)
    EXCHANGE_BLOCKS(vpair, x, 8)
}

/* A step of a row from entry d on; with zeros in 'edge' where the row ends before it does. */
static inline const uint16_t *whole_step(const uint16_t *line, int64_t dim, int64_t d, uint16_t edge[PAIR_STEP])
{
    if (dim - d >= PAIR_STEP)
        return line + d;
    memset(edge, 0, PAIR_STEP * sizeof *edge);
    memcpy(edge, line + d, (size_t)(dim - d) * sizeof *edge);
    return edge;
}

/* A panel's rows at once, by squares of pairs. */
static void pair_pack_panel(int64_t dim, const void *const *lines, float sign, void *panel)
{
    uint16_t edge[PAIR_STEP];
    uint32_t turn = sign < 0 ? 0x80008000u : 0;
    for (int64_t d = 0; d < dim; d += PAIR_STEP)
        for (int g = 0; g < NR; g += 16) {
            vpair x[16];
            for (int i = 0; i < 16; i++) x[i] = load_pairs(whole_step(lines[g + i], dim, d, edge)) ^ turn;
            transpose(x);
            for (int i = 0; i < 16; i++) store_pairs((uint16_t *)panel + ((d / 2 + i) * NR + g) * 2, x[i]);
        }
}
#define PAIR_PACK_PANEL pair_pack_panel
#else
#define PAIR_PACK_PANEL NULL
#endif

/* n columns of k entries, zeros after them up to whole steps both ways, and up to whole strips. b serves as it is where
 * nothing would be read beyond it. */
static struct skl_columns pair_columns(int n, int k, const void *b, int dtype, int64_t stride, void *pack)
{
    (void)dtype;
    if (n % MR == 0 && n % PAIR_STEP == 0 && k % PAIR_STEP == 0)
        return (struct skl_columns){.at = b, .ld = stride};
    uint16_t *to = pack;
    int k_end = whole_steps(k), strips = (n + MR - 1) / MR * MR, end = whole_steps(n);
    for (int j = 0; j < n; j++) {
        memcpy(to + j * PAIR_LD, (const uint16_t *)b + j * stride, (size_t)k * sizeof *to);
        memset(to + j * PAIR_LD + k, 0, (size_t)(k_end - k) * sizeof *to);
    }
    for (int j = n; j < (end > strips ? end : strips); j++) memset(to + j * PAIR_LD, 0, (size_t)k_end * sizeof *to);
    return (struct skl_columns){.at = pack, .ld = PAIR_LD};
}

/* skip_below: C[0..d-1] += sum_k x[k] b[at[k]][0..d-1] over a list of columns. */
static void pair_listed_columns(int n, const uint16_t *at, const float *x, struct skl_columns columns, int dim,
                                float *sum)
{
    const uint16_t *b = columns.at;
    int e = 0;
    for (; e + VL <= dim; e += VL) {
        vf c = vset(0.0f);
        for (int k = 0; k < n; k++) c = vfma(vset(x[k]), vload_bf16(b + at[k] * columns.ld + e), c);
        vstore(sum + e, vload(sum + e) + c);
    }
    for (; e < dim; e++) {
        float c = 0;
        for (int k = 0; k < n; k++) c += x[k] * skl_from_bf16(b[at[k] * columns.ld + e]);
        sum[e] += c;
    }
}
