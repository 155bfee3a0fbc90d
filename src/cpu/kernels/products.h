/* SPDX-License-Identifier: Apache-2.0
 *
 * One micro-kernel, three products. It keeps MR x NR numbers of C in registers and adds K outer products to them:
 *
 *     C[i][0..NR-1] += A[i ars + k aks] B[k][0..NR-1],      i < MR, k < K
 *
 *     logits         C = y [columns][rows]    A = b, column tile     B = a^T, rows panel     K = dim
 *     grad_rows      C = da^T [dim][rows]     A = b, tile or strips  B = dz, logit tile      K = columns
 *     grad_columns   C = db [columns][dim]    A = dz, logit tiles    B = a, rows as they are K = rows
 *
 * One of the strides ars, aks of A is 1, and B is always contiguous. dz is used by both as it lies; so is b where it
 * need not be packed; packed for grad_rows it has MR entries of each column side by side, which touch a third of the
 * lines. Per step of k: MR broadcasts, NV loads, MR NV FMAs. Each sum over k is a chain of at most 512 FMAs in f32,
 * longer sums are sums of such: relative error about sqrt(512 + n) 2^-25 of the largest partial sum, n chains.
 */
enum {
    NR = NV * VL,
    KC = 256, /* entries of dim in a packed tile: vocabularies' dims are multiples of it */
    LDK = 272 /* distance between its columns: 17 lines, so that one line of each falls into all sets of L1 */
};

#define UNROLLED _Pragma("GCC unroll 16")

static inline __attribute__((always_inline)) void outer_product(const float *A, int64_t ars, const float *B,
                                                                vf c[MR][NV])
{
    vf b[NV];
    UNROLLED for (int v = 0; v < NV; v++) b[v] = vload(B + v * VL);
    UNROLLED for (int i = 0; i < MR; i++)
    {
        vf a = vset(A[i * ars]);
        UNROLLED for (int v = 0; v < NV; v++) c[i][v] = vfma(a, b[v], c[i][v]);
    }
}

/* By two: 1 % faster than one by one on Zen 4 with AVX2; by four it was 6 % slower. */
static inline __attribute__((always_inline)) void micro_kernel(int K, const float *A, int64_t ars, int64_t aks,
                                                               const float *B, vf c[MR][NV])
{
    int k = 0;
    _Pragma("GCC unroll 1") for (; k + 2 <= K; k += 2)
    {
        outer_product(A + k * aks, ars, B + k * NR, c);
        outer_product(A + (k + 1) * aks, ars, B + (k + 1) * NR, c);
    }
    if (k < K)
        outer_product(A + k * aks, ars, B + k * NR, c);
}

/* Asks for the next 'lines' of what will be wanted. Always inline: GCC takes a function that only prefetches for one
 * without effect, and drops its calls. Into L1: short far-apart rows asked for into L2 alone did not come (Zen 4). Into L2
 * beside a tile unit, whose loads take all of L1's: prefetches into L1 waited for them (Granite Rapids). */
#ifdef TILE_UNIT
enum { ASK_LEVEL = 2 };
#else
enum { ASK_LEVEL = 3 };
#endif

static inline __attribute__((always_inline)) void ask(struct skl_soon *soon, int lines)
{
    for (; lines > 0 && soon->rows > 0; lines--) {
        if (soon->keys)
            __builtin_prefetch(soon->at + *soon->keys * soon->stride + soon->byte, 0, 2);
        else
            __builtin_prefetch(soon->at + soon->byte, 0, ASK_LEVEL);
        soon->byte += 64;
        if (soon->byte < soon->bytes)
            continue;
        soon->byte = 0, soon->rows--;
        if (soon->keys)
            soon->keys++;
        else
            soon->at += soon->stride;
        if (!soon->rows && soon->then)
            *soon = *soon->then;
    }
}

/* Lines to ask for at each of 'times' occasions. */
static inline int lines_each(const struct skl_soon *soon, int times)
{
    int lines = 0;
    for (const struct skl_soon *s = soon; s; s = s->then) lines += s->rows * ((s->bytes + 63) / 64);
    return times > 0 ? (lines + times - 1) / times : 0;
}

/* The sum over k in steps, with prefetches in between: all at once they would be in the way of what is wanted now.
 * Shorter steps cost 5 % of the product. */
enum { ASK_STEP = 32 };

static inline __attribute__((always_inline)) void asking_kernel(int K, const float *A, int64_t ars, int64_t aks,
                                                                const float *B, struct skl_soon *soon, int lines,
                                                                vf c[MR][NV])
{
    for (int k = 0; k < K; k += ASK_STEP) {
        ask(soon, lines);
        micro_kernel(K - k < ASK_STEP ? K - k : ASK_STEP, A + k * aks, ars, aks, B + k * NR, c);
    }
}

static inline __attribute__((always_inline)) void clear_c(vf c[MR][NV])
{
    UNROLLED for (int i = 0; i < MR; i++) UNROLLED for (int v = 0; v < NV; v++) c[i][v] = vset(0.0f);
}

/* A sum over many tiles is a sum of tiles' sums: had the chain of FMAs started from C, each would round to C's size. */
static inline __attribute__((always_inline)) void add_c(vf c[MR][NV], float *C, int64_t ldc)
{
    UNROLLED for (int i = 0; i < MR; i++) UNROLLED for (int v = 0; v < NV; v++)
        vstore(C + i * ldc + v * VL, vload(C + i * ldc + v * VL) + c[i][v]);
}

static inline __attribute__((always_inline)) void store_c(vf c[MR][NV], float *C, int64_t ldc)
{
    UNROLLED for (int i = 0; i < MR; i++) UNROLLED for (int v = 0; v < NV; v++) vstore(C + i * ldc + v * VL, c[i][v]);
}

static inline __attribute__((always_inline)) void put_c(vf c[MR][NV], int add, float *C)
{
    if (add)
        add_c(c, C, NR);
    else
        store_c(c, C, NR);
}

/* The strip of C that will be added to next: it may lie in memory. */
static inline __attribute__((always_inline)) void ask_c(const float *C, int64_t ldc, int rows)
{
    UNROLLED for (int i = 0; i < MR; i++) if (i < rows) UNROLLED for (int v = 0; v < NR; v += 16)
        __builtin_prefetch(C + i * ldc + v, 1, 3);
}

/* Where memory is the limit: a strip asks for the same one of the next tile, a line a step; into L2, L1 is for this
 * strip. */
static __attribute__((noinline)) void stream_logits(int n, int k, const float *columns, int64_t ld, const float *rows,
                                                    const struct skl_soon *soon, int add, float *y)
{
    int lines = MR * soon->bytes / 64;
    for (int j = 0; j < n; j += MR) {
        const char *next = soon->at + j * soon->stride;
        vf c[MR][NV];
        clear_c(c);
        _Pragma("GCC unroll 1") for (int i = 0; i < k; i++)
        {
            if (i < lines)
                __builtin_prefetch(next + 64 * i, 0, 2);
            outer_product(columns + j * ld + i, ld, rows + i * NR, c);
        }
        put_c(c, add, y + j * NR);
    }
}

static void logits(int n, int k, struct skl_columns tile, int first, const void *panel, int64_t d0,
                   struct skl_soon soon, int add, float *y)
{
    const int64_t ld = tile.ld;
    const float *columns = (const float *)tile.at + first * ld, *rows = (const float *)panel + d0 * NR;
    int strips = (n + MR - 1) / MR, lines = lines_each(&soon, strips * ((k + ASK_STEP - 1) / ASK_STEP));
    if (soon.stream) {
        stream_logits(n, k, columns, ld, rows, &soon, add, y);
        return;
    }
    for (int j = 0; j < n; j += MR) {
        vf c[MR][NV];
        clear_c(c);
        asking_kernel(k, columns + j * ld, ld, 1, rows, &soon, lines, c);
        put_c(c, add, y + j * NR);
    }
}

/* Only strips of MR columns that are live take part; runs of them are summed in one go. n is a multiple of MR. */
static void grad_rows(int n, int d, const unsigned char *live, struct skl_columns tile, int first, const float *dz,
                      struct skl_soon soon, int add, float *da)
{
    const int64_t ld = tile.ld, step = ld == MR ? SKL_BK : 1; /* of packed strips, or of the operand itself */
    const float *columns = (const float *)tile.at + first * ld;
    int runs = 0, from[SKL_BK / MR], length[SKL_BK / MR];
    for (int j = 0; j < n; j += MR) {
        if (!live[j / MR])
            continue;
        if (runs && from[runs - 1] + length[runs - 1] == j)
            length[runs - 1] += MR;
        else
            from[runs] = j, length[runs++] = MR;
    }
    int lines = lines_each(&soon, (d + MR - 1) / MR * ((n + ASK_STEP - 1) / ASK_STEP));
    for (int i = 0; i < d && (runs || !add); i += MR) {
        vf c[MR][NV];
        clear_c(c);
        for (int r = 0; r < runs; r++)
            asking_kernel(length[r], columns + from[r] * ld + i * step, 1, ld, dz + from[r] * NR, &soon, lines, c);
        put_c(c, add, da + i * NR);
    }
}

/* A strip of the next panel's dz: too short, and too far from this panel's, for the hardware to foresee. */
static inline __attribute__((always_inline)) void ask_strip(const float *dz)
{
    UNROLLED for (int i = 0; i < MR * NR; i += 16) __builtin_prefetch(dz + i, 0, 3);
}

/* A strip of db: of n columns, no more than MR, and d entries. */
static inline __attribute__((always_inline)) void add_strip(vf c[MR][NV], int n, int d, float *db, int64_t stride)
{
    float edge[MR * NR];
    if (d == NR && n >= MR) {
        add_c(c, db, stride);
        return;
    }
    store_c(c, edge, NR);
    for (int i = 0; i < MR && i < n; i++)
        for (int k = 0; k < d; k++) db[i * stride + k] += edge[i * NR + k];
}

/* live[panel][strip]: the panels in which a strip takes part. d <= NR entries of dim. */
static void grad_columns(int n, int panels, const unsigned char *live, const void *tiles, const void *block,
                         int block_rows, int64_t d0, struct skl_soon soon, int d, float *db, int64_t stride)
{
    const float *dz = tiles;
    const float *rows = (const float *)block + d0 * block_rows;
    int lines = lines_each(&soon, (n + MR - 1) / MR * panels);
    for (int j = 0; j < n; j += MR) {
        int strip = j / MR, any = 0;
        vf c[MR][NV];
        ask_c(db + (j + MR) * stride, stride, n - j - MR);
        clear_c(c);
        for (int panel = 0; panel < panels; panel++) {
            ask(&soon, lines);
            ask_strip(dz + ((panel + 1) * SKL_BK + j) * NR);
            any |= live[panel * SKL_STRIPS_MAX + strip];
            if (live[panel * SKL_STRIPS_MAX + strip])
                micro_kernel(NR, dz + (panel * SKL_BK + j) * NR, NR, 1, rows + panel * NR * NR, c);
        }
        if (any)
            add_strip(c, n - j, d, db + j * stride, stride);
    }
}

static double fma_burst(long steps, float *sink)
{
    vf c[MR][NV];
    vf a = vset(1.0f - 0x1p-20f), b = vset(0x1p-20f);
    UNROLLED for (int i = 0; i < MR; i++) UNROLLED for (int v = 0; v < NV; v++)
        c[i][v] = vset((float)(i * NV + v)); /* all different, or the compiler would do equal chains once */
    for (long k = 0; k < steps; k++) {
        UNROLLED for (int i = 0; i < MR; i++) UNROLLED for (int v = 0; v < NV; v++) c[i][v] = vfma(c[i][v], a, b);
    }
    UNROLLED for (int i = 0; i < MR; i++) UNROLLED for (int v = 0; v < NV; v++) c[0][0] = c[0][0] + c[i][v];
    float lanes[VL];
    vstore(lanes, c[0][0]);
    *sink = lanes[0];
    return 2.0 * MR * NR * (double)steps;
}
