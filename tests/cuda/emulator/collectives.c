/* SPDX-License-Identifier: Apache-2.0
 * What a warp does together. launch.c calls these when every lane that takes part stands here. */
#include "lanes.h"

#include <math.h>

void run_activemask(struct warp *w, const struct inst *in, uint32_t mask)
{
    u32 *d = OPERAND(0);
    EACH_LANE(d[l] = mask);
}

/* Orders the memory accesses of these lanes: each now knows what every one of them knew, and their own last clock. */
void run_syncwarp(struct warp *w, const struct inst *in, uint32_t mask)
{
    uint16_t known[LANES] = {0};
    for (int l = 0; l < LANES; l++) {
        if (!(mask >> l & 1))
            continue;
        for (int i = 0; i < LANES; i++)
            if (w->seen[l][i] > known[i])
                known[i] = w->seen[l][i];
        if (w->clock[l] > known[l])
            known[l] = w->clock[l];
    }
    for (int l = 0; l < LANES; l++)
        if (mask >> l & 1) {
            memcpy(w->seen[l], known, sizeof(known));
            if (w->clock[l]++ == UINT16_MAX) {
                report_error(w->block, in, E_OTHER, "more bar.warp.sync between two barriers than can be counted");
                w->block->stop = 1;
            }
        }
}

/* -------------------------------------------------------------------------------------- shuffle, vote, reduce --- */

enum { UP, DOWN, BUTTERFLY, INDEX };

void run_shfl(struct warp *w, const struct inst *in, uint32_t mask)
{
    u32 *d = OPERAND(0), *p = OPERAND(1), from[LANES], ok = 0;
    const u32 *b = OPERAND(4), *c = OPERAND(5);
    memcpy(from, OPERAND(3), sizeof(from));
    w->block->report->shuffles++;
    for (int l = 0; l < LANES; l++) {
        if (!(mask >> l & 1))
            continue;
        int delta = (int)(b[l] & 31), segment = (int)(c[l] >> 8 & 31), clamp = (int)(c[l] & 31);
        int most = (l & segment) | (clamp & ~segment), least = l & segment, j, inside;
        switch (in->mode) {
        case UP: j = l - delta, inside = j >= most; break;
        case DOWN: j = l + delta, inside = j <= most; break;
        case BUTTERFLY: j = l ^ delta, inside = j <= most; break;
        default: j = least | (delta & ~segment), inside = j <= most; break;
        }
        if (!inside)
            j = l;
        if (!(mask >> j & 1))
            report_error(w->block, in, E_SYNCHRONISATION, "thread %d asks lane %d, which takes no part",
                         w->first_thread + l, j);
        d[l] = from[j];
        ok |= (uint32_t)inside << l;
    }
    if (in->vector)
        *p = (*p & ~mask) | (ok & mask);
}

enum { ALL_OF, ANY_OF, UNIFORM, BALLOT };

void run_vote(struct warp *w, const struct inst *in, uint32_t mask)
{
    uint32_t p = *(const u32 *)OPERAND(2), yes = (in->negate & 1 ? ~p : p) & mask;
    u32 *d = OPERAND(0);
    if (in->mode == BALLOT) {
        EACH_LANE(d[l] = yes);
        return;
    }
    int result = in->mode == ALL_OF ? yes == mask : in->mode == ANY_OF ? yes != 0 : yes == mask || !yes;
    *d = (*d & ~mask) | (result ? mask : 0);
}

void run_redux(struct warp *w, const struct inst *in, uint32_t mask)
{
    u32 *d = OPERAND(0);
    const u32 *a = OPERAND(2);
    uint32_t r = a[__builtin_ctz(mask)];
    for (int l = __builtin_ctz(mask) + 1; l < LANES; l++) {
        if (!(mask >> l & 1))
            continue;
        int less = in->type == T_S32 ? (int32_t)a[l] < (int32_t)r : a[l] < r;
        switch (in->mode) {
        case 0: r += a[l]; break;
        case 1: r = less ? a[l] : r; break;
        case 2: r = less ? r : a[l]; break;
        case 3: r &= a[l]; break;
        case 4: r |= a[l]; break;
        default: r ^= a[l]; break;
        }
    }
    EACH_LANE(d[l] = r);
}

/* ----------------------------------------------------------------------------------------------- matrices --- */

static int whole_warp(struct warp *w, const struct inst *in)
{
    if (w->exist != ALL)
        report_error(w->block, in, E_SYNCHRONISATION, "the warp has not 32 threads");
    return w->exist == ALL;
}

/* Wavefronts beyond one for eight rows of 16 bytes: different ones in the same eighth of the banks. */
static int row_conflicts(const uint32_t *row)
{
    int most = 1;
    unsigned eighths = 0;
    for (int i = 0; i < 8; i++) eighths |= 1u << row[i] / 16 % 8;
    if (eighths == 255)
        return 0;
    for (int i = 0; i < 8; i++) {
        int n = 0;
        for (int j = 0; j < 8; j++) {
            int again = 0;
            for (int k = 0; k < j; k++) again |= row[k] == row[j];
            n += !again && row[j] / 16 % 8 == row[i] / 16 % 8;
        }
        most = n > most ? n : most;
    }
    return most - 1;
}

/* Lane l supplies row l % 8 of matrix l / 8, and gets of each matrix row l / 4, columns 2 (l % 4) and the next; with
 * .trans row and column change places. Every lane counts as a reader of all rows. */
void run_ldmatrix(struct warp *w, const struct inst *in, uint32_t mask)
{
    struct block *b = w->block;
    uint64_t address[LANES];
    uint32_t row[LANES];
    int n = in->vector;
    (void)mask;
    if (!whole_warp(w, in))
        return;
    addresses(w, in, in->o[n], address);
    b->report->ldmatrix++;
    for (int m = 0; m < n; m++) {
        uint16_t matrix[8][8];
        for (int i = 0; i < 8; i++) {
            int l = 8 * m + i;
            uint64_t a = address[l];
            if (in->space == S_GENERIC && WINDOW(a) == SHARED_WINDOW)
                a -= SHARED_WINDOW;
            uint64_t offset = a - SHARED_START;
            row[l] = 0;
            if (a % 16 || offset >= b->shared_bytes || offset + 16 > b->shared_bytes) {
                report_error(b, in, E_BOUNDS, "%s: thread %d, a row at 0x%llx",
                             a % 16 ? "misaligned" : "outside of shared memory", w->first_thread + l,
                             (unsigned long long)a);
                memset(matrix[i], 0xFF, 16);
                continue;
            }
            row[l] = (uint32_t)a;
            shadow_matrix_row(w, in, l, (uint32_t)offset);
            memcpy(matrix[i], b->shared + offset, 16);
        }
        b->report->matrix_conflicts += (uint64_t)row_conflicts(row + 8 * m);
        u32 *d = OPERAND(m);
        if (in->mode) {
            for (int l = 0; l < LANES; l++)
                d[l] = (uint32_t)matrix[2 * (l % 4) + 1][l / 4] << 16 | matrix[2 * (l % 4)][l / 4];
        } else {
            memcpy(d, matrix, sizeof(matrix)); /* lane 4 r + c has columns 2 c, 2 c + 1 of row r: row-major */
        }
    }
}

void run_movmatrix(struct warp *w, const struct inst *in, uint32_t mask)
{
    uint16_t matrix[8][8];
    u32 *d = OPERAND(0);
    (void)mask;
    if (!whole_warp(w, in))
        return;
    memcpy(matrix, OPERAND(1), sizeof(matrix));
    for (int l = 0; l < LANES; l++) d[l] = (uint32_t)matrix[2 * (l % 4) + 1][l / 4] << 16 | matrix[2 * (l % 4)][l / 4];
}

static inline void halves_to_f32(const u16 *h, float *f, int is_bf16)
{
    for (int i = 0; i < 64; i++) {
        uint32_t u, s = h[i];
        if (is_bf16) {
            u = s << 16;
            memcpy(&f[i], &u, 4);
        } else {
            /* As f16_to_f32(), without a branch. */
            uint32_t m = (s & 0x7FFF) << 13, top = m >= 0x0F800000u;
            float v;
            u = m | (top ? 0x7F800000u : 0);
            memcpy(&v, &u, 4);
            v = top ? v : v * 0x1p112f;
            f[i] = s & 0x8000 ? -v : v;
        }
    }
}

/* d = a b + c in this order of k, each step rounded as the host rounds now. */
static __attribute__((noinline)) CLONES void multiply(float c[16][8], const float a[4][64], const float b[2][64])
{
    float bt[16][8];
    for (int k = 0; k < 16; k++)
        for (int n = 0; n < 8; n++) bt[k][n] = b[k / 8][8 * n + k % 8];
    for (int i = 0; i < 16; i++) {
        float s[8];
        for (int n = 0; n < 8; n++) s[n] = c[i][n];
        for (int k = 0; k < 16; k++) {
            float x = a[i / 8 + k / 8 * 2][8 * (i % 8) + k % 8];
            for (int n = 0; n < 8; n++) s[n] += x * bt[k][n];
        }
        for (int n = 0; n < 8; n++) c[i][n] = s[n];
    }
}

static CLONES void gather(struct warp *w, const struct inst *in, float a[4][64], float b[2][64], float c[16][8])
{
    int is_bf16 = in->type == T_BF16;
    for (int i = 0; i < 4; i++) halves_to_f32(OPERAND(4 + i), a[i], is_bf16);
    for (int i = 0; i < 2; i++) halves_to_f32(OPERAND(8 + i), b[i], is_bf16);
    for (int i = 0; i < 4; i++) {
        const f32 *x = OPERAND(10 + i);
        for (int l = 0; l < LANES; l++) c[l / 4 + i / 2 * 8][2 * (l % 4) + i % 2] = x[l];
    }
}

static void scatter(struct warp *w, const struct inst *in, float c[16][8])
{
    for (int i = 0; i < 4; i++) {
        f32 *x = OPERAND(i);
        for (int l = 0; l < LANES; l++) x[l] = c[l / 4 + i / 2 * 8][2 * (l % 4) + i % 2];
    }
}

/* m16n8k16: each register of a is an 8 x 8 quarter of A, row-major over the lanes; of b, a half of B, column-major. */
void run_mma(struct warp *w, const struct inst *in, uint32_t mask)
{
    float a[4][64], b[2][64], c[16][8];
    (void)mask;
    if (!whole_warp(w, in))
        return;
    w->block->report->mma++;
    gather(w, in, a, b, c);
    if (w->block->options->truncate)
        set_rounding(R_RZ);
    multiply(c, a, b);
    if (w->block->options->truncate)
        set_rounding(R_RN);
    scatter(w, in, c);
}

/* m16n8k8 of f32 whose last 13 bits do not count. */
void run_mma_tf32(struct warp *w, const struct inst *in, uint32_t mask)
{
    float a[16][8], b[8][8], c[16][8];
    (void)mask;
    if (!whole_warp(w, in))
        return;
    w->block->report->mma++;
    for (int i = 0; i < 4; i++) {
        const u32 *x = OPERAND(4 + i);
        const f32 *z = OPERAND(10 + i);
        for (int l = 0; l < LANES; l++) {
            uint32_t u = x[l] & ~0x1FFFu;
            memcpy(&a[l / 4 + i % 2 * 8][l % 4 + i / 2 * 4], &u, 4);
            c[l / 4 + i / 2 * 8][2 * (l % 4) + i % 2] = z[l];
        }
    }
    for (int i = 0; i < 2; i++) {
        const u32 *x = OPERAND(8 + i);
        for (int l = 0; l < LANES; l++) {
            uint32_t u = x[l] & ~0x1FFFu;
            memcpy(&b[l % 4 + 4 * i][l / 4], &u, 4);
        }
    }
    if (w->block->options->truncate)
        set_rounding(R_RZ);
    for (int i = 0; i < 16; i++)
        for (int n = 0; n < 8; n++) {
            volatile float s = c[i][n];
            for (int k = 0; k < 8; k++) s += a[i][k] * b[k][n];
            c[i][n] = s;
        }
    if (w->block->options->truncate)
        set_rounding(R_RN);
    scatter(w, in, c);
}
