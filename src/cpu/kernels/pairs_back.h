/* SPDX-License-Identifier: Apache-2.0
 *
 * What the gradients' products of bf16 operands read, where a unit multiplies pairs: dz as bf16 numbers, in place of its
 * f32 ones, and packs of both operands.
 *
 *     line of column j   [16] pairs of high, [16] pairs of low; pair i has rows i and 16 + i
 *     block              [dim / 32][rows / 2][32][2]   a, for grad_columns; pairs as in dz
 *     back               [dim][SKL_BK]                 b^T, for grad_rows: columns j and j + 1 are a pair
 *
 * dz = high + low leaves 2^-17 of it, high alone 2^-9. grad_columns reads lines as they are, grad_rows as pairs of
 * columns (j, j + 1), made by shifts. Everything goes by groups of PAIR_STEP columns.
 */
_Static_assert(NV == 2 && VL == 16 && (int)PAIR_STEP == (int)NR, "a line is two vectors of pairs");

/* -------------------------------------------------------------------------------------------------------- dz --- */

/* To the nearest bf16, in the upper half, and of two equally near ones to the larger; the lower half is left over. */
static inline vpair round_bf16(vf x)
{
    return (vpair)x + 0x8000u;
}

/* The same where that would become infinite, which is cut off instead, or x is not finite: inf and NaN stay. */
static inline vpair careful_bf16(vf x)
{
    vpair u = (vpair)x, nearest = round_bf16(x), top = (vpair){0} + 0x7f800000u;
    vpair cut = (vpair)((u & top) == top) | (vpair)((nearest & top) == top);
    vpair quiet = (vpair)((u & 0x7fffffffu) > top) & 0x400000u;
    return (cut & (u | quiet)) | (~cut & nearest);
}

/* What is left of x, without what is not finite. */
static inline vf rest_bf16(vf x, vpair high)
{
    return x - (vf)(high & 0xffff0000u);
}

static inline vpair finite_bf16(vpair rest, vpair high)
{
    vpair top = (vpair){0} + 0x7f800000u;
    return rest & (vpair)((high & top) != top);
}

/* The upper halves of x and y. */
static inline vpair upper_halves(vpair x, vpair y)
{
    return x >> 16 | (y & 0xffff0000u);
}

/* A line, of rows 0 .. 15 and 16 .. 31. */
static inline __attribute__((always_inline)) void split_line(int parts, vf x, vf y, float *line)
{
    vf most = vset(0x1.fefffep127f); /* larger numbers would become infinite */
    vpair hx = round_bf16(x), hy = round_bf16(y), lx = round_bf16(rest_bf16(x, hx)), ly = round_bf16(rest_bf16(y, hy));
    if (__builtin_expect(vbits(vnle(vabs(x), most)) | vbits(vnle(vabs(y), most)), 0)) {
        hx = careful_bf16(x), hy = careful_bf16(y);
        lx = finite_bf16(careful_bf16(rest_bf16(x, hx)), hx), ly = finite_bf16(careful_bf16(rest_bf16(y, hy)), hy);
    }
    store_pairs(line, upper_halves(hx, hy));
    if (parts == 2)
        store_pairs(line + 16, upper_halves(lx, ly));
}

/* Lines beside the columns become 0 as far as a group of PAIR_STEP reads them. */
static inline void split_lines(int parts, int first, int last, float *dz)
{
    if (first >= last)
        return;
    for (int j = first / PAIR_STEP * PAIR_STEP; j < whole_steps(last); j++) {
        float *line = dz + j * NR;
        if (j < first || j >= last)
            memset(line, 0, NR * sizeof *line);
        else
            split_line(parts, vload(line), vload(line + 16), line);
    }
}

/* Is any strip of the group from column j on live? 'live' is that of column 0. */
static inline int group_live(const unsigned char *live, int j, int first, int end)
{
    int any = 0;
    for (int c = j; c < j + PAIR_STEP; c += MR) any |= c >= first && c < end && live[c / MR];
    return any;
}

/* ----------------------------------------------------------------------------------------------- grad_rows --- */

/* NaN and inf become 0. */
static inline vpair clean_pairs(vpair x)
{
    vpair low = (vpair)((x & 0x7f80u) == 0x7f80u), high = (vpair)((x & 0x7f800000u) == 0x7f800000u);
    return x & ~(low & 0xffffu) & ~(high & 0xffff0000u);
}

/* 32 columns of 32 entries, 'ld' apart, into 32 lines of b^T. */
static void transpose_block(const uint16_t *b, int64_t ld, int clean, uint16_t *to)
{
    vpair even[16], odd[16]; /* entries 2l and 2l + 1 in lane l, of columns 2p and 2p + 1 */
    for (int p = 0; p < 16; p++) {
        vpair x = load_pairs(b + 2 * p * ld), y = load_pairs(b + (2 * p + 1) * ld);
        if (clean)
            x = clean_pairs(x), y = clean_pairs(y);
        even[p] = (x & 0xffffu) | y << 16;
        odd[p] = x >> 16 | (y & 0xffff0000u);
    }
    transpose(even);
    transpose(odd);
    for (int l = 0; l < 16; l++) {
        store_pairs(to + 2 * l * SKL_BK, even[l]);
        store_pairs(to + (2 * l + 1) * SKL_BK, odd[l]);
    }
}

/* Zeros around what there is, up to whole steps both ways. */
static struct skl_columns pair_columns_back(int n, int k, const void *b, int dtype, int64_t stride, int clean,
                                            void *pack)
{
    (void)dtype;
    uint16_t edge[PAIR_STEP][PAIR_STEP];
    for (int j = 0; j < n; j += PAIR_STEP)
        for (int d = 0; d < k; d += PAIR_STEP) {
            const uint16_t *from = (const uint16_t *)b + j * stride + d;
            uint16_t *to = (uint16_t *)pack + (int64_t)d * SKL_BK + j;
            int columns = n - j < PAIR_STEP ? n - j : PAIR_STEP, entries = k - d < PAIR_STEP ? k - d : PAIR_STEP;
            if (columns == PAIR_STEP && entries == PAIR_STEP) {
                transpose_block(from, stride, clean, to);
                continue;
            }
            memset(edge, 0, sizeof edge);
            for (int c = 0; c < columns; c++) memcpy(edge[c], from + c * stride, (size_t)entries * sizeof *from);
            transpose_block(edge[0], PAIR_STEP, clean, to);
        }
    return (struct skl_columns){.at = pack, .ld = SKL_BK};
}

/* dz of a group's columns as pairs of columns, B of grad_rows: [parts][16 pairs][NR]. */
static inline void pair_columns_of_dz(int parts, const float *dz, uint32_t *to)
{
    for (int part = 0; part < parts; part++)
        for (int p = 0; p < PAIR_STEP / 2; p++, to += NR) {
            vpair x = load_pairs(dz + 2 * p * NR + part * 16), y = load_pairs(dz + (2 * p + 1) * NR + part * 16);
            store_pairs(to, (x & 0xffffu) | y << 16);
            store_pairs(to + 16, x >> 16 | (y & 0xffff0000u));
        }
}

/* The groups in which some strip is live: 'at' is where each begins. Returns how many there are. */
enum { PAIR_GROUPS = SKL_BK / PAIR_STEP, GROUP_PAIRS = PAIR_STEP / 2 * NR };
static inline int pair_live_groups(int n, const unsigned char *live, int first, int at[PAIR_GROUPS])
{
    int groups = 0, end = first + n;
    for (int j = first / PAIR_STEP * PAIR_STEP; j < end; j += PAIR_STEP)
        if (group_live(live - first / MR, j, first, end))
            at[groups++] = j;
    return groups;
}

/* -------------------------------------------------------------------------------------------- grad_columns --- */

static int64_t pair_block_bytes(int64_t dim, int rows)
{
    return (int64_t)whole_steps(dim) * rows * (int64_t)sizeof(uint16_t);
}

/* Of entry d0, a multiple of 32, and row r: the pair is followed by that of the next entry. */
static inline int64_t block_place(int64_t d0, int r, int rows)
{
    return d0 * rows + (r / NR * 16 + r % 16) * 2 * PAIR_STEP + r % NR / 16;
}

/* NaN and inf become 0, as in pack_block_row. */
static void pair_pack_block_row(int64_t dim, const float *line, int r, int rows, void *block)
{
    for (int64_t d = 0; d < whole_steps(dim); d++) {
        uint16_t *to = (uint16_t *)block + block_place(d / PAIR_STEP * PAIR_STEP, r, rows) + d % PAIR_STEP * 2;
        *to = d < dim && fabsf(line[d]) <= FLT_MAX ? (uint16_t)(skl_bits(line[d]) >> 16) : 0;
    }
}

/* A panel's rows at once, the first of which is row r of the block. */
static void pair_pack_block_panel(int64_t dim, const void *const *lines, int r, int rows, void *block)
{
    uint16_t edge[2][PAIR_STEP];
    for (int i = 0; i < 16; i++)
        for (int64_t d = 0; d < dim; d += PAIR_STEP) {
            const uint16_t *x = whole_step(lines[i], dim, d, edge[0]), *y = whole_step(lines[16 + i], dim, d, edge[1]);
            uint16_t *to = (uint16_t *)block + block_place(d, r + i, rows);
            for (int half = 0; half < PAIR_STEP; half += 16)
                store_pairs(to + 2 * half,
                            clean_pairs((vpair)vload_bf16(x + half) >> 16 | (vpair)vload_bf16(y + half)));
        }
}

/* skip_below: sum[0..dim-1] += sum_k x[k] a[at[k]][0..dim-1] over a list of rows. */
static void pair_listed_rows(int n, const uint16_t *at, const float *x, const void *block, int rows, int dim,
                             float *sum)
{
    for (int e = 0; e < dim; e += VL) {
        vf c = vset(0.0f);
        for (int k = 0; k < n; k++) {
            int upper = at[k] % NR / 16;
            const uint16_t *from = (const uint16_t *)block + block_place(e / PAIR_STEP * PAIR_STEP, at[k], rows) -
                                   upper;
            vpair u = load_pairs(from + e % PAIR_STEP * 2);
            c = vfma(vset(x[k]), (vf)(upper ? u & 0xffff0000u : u << 16), c);
        }
        float lanes[VL];
        vstore(lanes, c);
        for (int i = 0; i < VL && e + i < dim; i++) sum[e + i] += lanes[i];
    }
}
