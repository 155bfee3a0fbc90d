/* SPDX-License-Identifier: Apache-2.0
 *
 * KL on a tile unit, panel by panel of a tile of columns: the tile products of one strip of 32 columns beside what becomes
 * of the scores of the strip before it. The unit multiplies while the vector registers do the rest.
 *
 *     tile_sweep_kl     y = b a^T of both sides, then l += 2^y, acc += 2^{y_P} (y_P - y_Q)             (states.h)
 *     tile_dz_parts     y again, then dz = g (q - p) or g p (log p - log q - KL), in one or two parts  (kl.h, pairs_back.h)
 *
 *     strip     scores y [2 sides][32 columns][32 rows], 8 KiB; two of them, by turns, stay in L1 with the panel
 *     half      one side's products of a strip
 *     step      32 entries of dim of a half: four tile products, after each of which come some columns' exponentials
 *
 * Bytes of a strip: 64 dim of each side's columns come from L2, and as many of the panel from L1; 8 KiB of scores are
 * written and read in L1, and 4 KiB of dz are written. With dim 128 a strip is 512 cycles of tile products and 770 of
 * exponentials and sums, and takes some 1400: tile loads and stores take turns with the other loads.
 *
 * The scores are those of tile_logits, the sums those of push_kl on slices of 32 columns, and dz is that of dz_kl and
 * split_lines, number by number in the same order: which of the two ways a strip goes shows in no bit, and errors are
 * theirs (tests/test_beside.c).
 */

/* Halves that are still to be made, the sides by turns, strip by strip of a panel, panel by panel. */
struct halves {
    const uint16_t *b[2], *rows[2]; /* the tile's columns; the panel under way */
    int64_t ld[2], panel_bytes[2];
    int steps[2], strips;  /* steps of a half of each side; strips of a panel */
    int side, strip, step; /* the place of the next step ... */
    const uint16_t *A, *B; /* ... its operands, ... */
    int64_t stride;        /* ... and the bytes from column to column of A */
    float *y[2], *out;     /* room for two strips of each side; where the half under way goes */
    int slot;              /* which of the two */
    int64_t left, until;   /* halves that are not complete, and as many as shall be left so for now */
    struct skl_soon soon;  /* what to ask for meanwhile, ... */
    int lines;             /* ... so many lines at each step */
};

static inline __attribute__((always_inline)) void begin_half(struct halves *h)
{
    int side = h->side;
    h->A = h->b[side] + h->strip * SIDE * h->ld[side], h->B = h->rows[side], h->stride = h->ld[side] * 2;
    h->out = h->y[side] + h->slot * SIDE * NR;
    h->step = 0;
}

static inline __attribute__((always_inline)) void end_half(struct halves *h)
{
    put_tiles(0, SIDE, SIDE, 0, h->out, NR);
    h->left--;
    h->side = !h->side;
    if (!h->side) {
        h->slot = !h->slot;
        if (++h->strip == h->strips) {
            h->strip = 0;
            for (int k = 0; k < 2; k++) h->rows[k] = (const uint16_t *)((const char *)h->rows[k] + h->panel_bytes[k]);
        }
    }
    begin_half(h);
}

/* A quarter of a step: one product, with the loads right before it (products_tiles.h says why). */
static inline __attribute__((always_inline)) void next_quarter(struct halves *h, int quarter)
{
    if (h->left <= h->until)
        return;
    if (quarter == 0) {
        if (!h->step)
            zero_c();
        tile_load_once(4, h->A, h->stride);
        tile_load(6, h->B, NR * 4);
        tile_dot(0, 4, 6);
    } else if (quarter == 1) {
        tile_load(7, h->B + 32, NR * 4);
        tile_dot(1, 4, 7);
    } else if (quarter == 2) {
        tile_load_once(5, h->A + 8 * h->stride, h->stride);
        tile_dot(2, 5, 6);
    } else {
        tile_dot(3, 5, 7);
        ask(&h->soon, h->lines);
        h->A += PAIR_STEP, h->B += PAIR_STEP * NR;
        if (++h->step == h->steps[h->side])
            end_half(h);
    }
}

static inline __attribute__((always_inline)) void next_step(struct halves *h)
{
    UNROLLED for (int quarter = 0; quarter < 4; quarter++) next_quarter(h, quarter);
}

/* The rare case: a group's references move, or its sums need care. */
static __attribute__((noinline)) struct kl_sums push_again(float *x_p, float *x_q, int v, const float unit[2],
                                                           float slack, struct skl_panel_state *s)
{
    vf m_p, m_q;
    raise_both(SIDE, x_p, x_q, v, unit, vset(slack), s, &m_p, &m_q);
    return sum_kl_lanes(1, SIDE, x_p + v * VL, x_q + v * VL, unit, 1, SKL_KEEP_NOTHING, &m_p, &m_q);
}

/* Pushes a strip's scores x, 16 rows after the other; before every 'few' columns comes a quarter of a step. */
static inline __attribute__((always_inline)) void push_beside(int few, float *const x[2], const float unit[2],
                                                              float slack, struct skl_panel_state *s, struct halves *h)
{
    vf unit_p = vset(unit[0]), unit_q = vset(unit[1]);
    UNROLLED for (int v = 0; v < NV; v++)
    {
        vf m_p = vload(s->m[0] + v * VL), m_q = vload(s->m[1] + v * VL), zero = vset(0.0f);
        float *x_p = x[0] + v * VL, *x_q = x[1] + v * VL;
        struct kl_sums sum = {{zero}, {zero}, {zero}, {zero}};
        if (unseen(m_p, m_q))
            raise_both(SIDE, x[0], x[1], v, unit, vset(slack), s, &m_p, &m_q);
        for (int j = 0; j < SIDE; j += SHORT_SUM) {
            vf l_p = zero, l_q = zero, acc = zero;
            _Pragma("GCC unroll 1") for (int i = 0; i < SHORT_SUM; i += 4 * few)
            {
                UNROLLED for (int quarter = 0; quarter < 4; quarter++)
                {
                    next_quarter(h, quarter);
                    UNROLLED for (int k = 0; k < few; k++, x_p += NR, x_q += NR) push_column(
                        x_p, x_q, m_p, m_q, unit_p, unit_q, 0, SKL_KEEP_NOTHING, &l_p, &l_q, &acc, &sum.highest[0]);
                }
            }
            sum.l_p[0] += l_p, sum.l_q[0] += l_q, sum.acc[0] += acc;
        }
        if (__builtin_expect(unsure(&sum, 0, slack), 0))
            sum = push_again(x[0], x[1], v, unit, slack, s);
        add_lanes(s->l[0] + v * VL, sum.l_p[0]);
        add_lanes(s->l[1] + v * VL, sum.l_q[0]);
        add_lanes(s->acc[0] + v * VL, sum.acc[0]);
    }
}

static inline __attribute__((always_inline)) void sweep_strips(int few, struct halves *h, const float unit[2],
                                                               float slack, struct skl_panel_state *s)
{
    float *const y[2] = {h->y[0], h->y[1]};
    int64_t strips = h->left / 2;
    for (int64_t i = 0; i <= strips; i++) {
        float *const before[2] = {y[0] + (i + 1) % 2 * SIDE * NR, y[1] + (i + 1) % 2 * SIDE * NR};
        h->until = i < strips ? 2 * (strips - 1 - i) : 0;
        if (i)
            push_beside(few, before, unit, slack, s + (i - 1) / h->strips, h);
        while (h->left > h->until) next_step(h);
    }
}

static struct halves halves_of(int n, int panels, const struct skl_factor side[2], int first, float *const y[2])
{
    struct halves h = {.strips = n / SIDE, .left = (int64_t)2 * n / SIDE * panels};
    for (int k = 0; k < 2; k++) {
        h.b[k] = (const uint16_t *)side[k].columns.at + first * side[k].columns.ld, h.ld[k] = side[k].columns.ld;
        h.rows[k] = side[k].panel, h.panel_bytes[k] = pair_panel_bytes(side[k].dim);
        h.steps[k] = whole_steps(side[k].dim) / PAIR_STEP;
        h.y[k] = y[k];
    }
    h.soon = side[0].soon.rows ? side[0].soon : side[1].soon;
    h.soon.then = side[0].soon.rows ? &side[1].soon : NULL;
    h.lines = lines_each(&h.soon, (h.steps[0] + h.steps[1]) * h.strips * panels);
    begin_half(&h);
    return h;
}

/* With as few columns at a time as finish a strip together with the products of the next one. */
static void tile_sweep_kl(int n, int panels, const struct skl_factor side[2], int first, const float unit[2],
                          float slack, float *const y[2], struct skl_panel_state *s)
{
    struct halves h = halves_of(n, panels, side, first, y);
    int steps = h.steps[0] + h.steps[1];
    if (steps < 8)
        sweep_strips(4, &h, unit, slack, s);
    else if (steps < 16)
        sweep_strips(2, &h, unit, slack, s);
    else
        sweep_strips(1, &h, unit, slack, s);
}

/* ------------------------------------------------------------------------------------------------------- dz --- */

/* A strip's scores x into lines of dz, in parts, of the one side that is wanted, 'each' columns beside a step. Says whether
 * any of dz is not 0. */
static inline __attribute__((always_inline)) int dz_beside(int each, int want, int parts, float *const x[2],
                                                           const struct skl_panel_factors *f, float *dz,
                                                           struct halves *h)
{
    const struct kl_dz low = kl_dz_of(f, 0), high = kl_dz_of(f, 1);
    const float *x_p = x[0], *x_q = x[1];
    vpair any = {0};
    _Pragma("GCC unroll 1") for (int j = 0; j < SIDE; j += each)
    {
        UNROLLED for (int quarter = 0; quarter < 4; quarter++)
        {
            next_quarter(h, quarter);
            UNROLLED for (int k = quarter * each / 4; k < (quarter + 1) * each / 4; k++, x_p += NR, x_q += NR, dz += NR)
            {
                vf p[2], q[2];
                kl_dz_column(&low, vload(x_p), vload(x_q), want, &p[0], &q[0]);
                kl_dz_column(&high, vload(x_p + VL), vload(x_q + VL), want, &p[1], &q[1]);
                vf *of = want == 1 ? p : q;
                split_line(parts, of[0], of[1], dz);
                any |= (vpair)of[0] | (vpair)of[1];
            }
        }
    }
    return vbits(vnle(vabs((vf)(any & 0x7fffffffu)), vset(0.0f))) != 0;
}

static inline __attribute__((always_inline)) void dz_strips(int each, int want, int parts, int first, struct halves *h,
                                                            const struct skl_panel_factors *f, float *dz,
                                                            unsigned char *live)
{
    float *const y[2] = {h->y[0], h->y[1]};
    int strips = h->strips;
    for (int64_t i = 0, all = h->left / 2; i <= all; i++) {
        float *const before[2] = {y[0] + (i + 1) % 2 * SIDE * NR, y[1] + (i + 1) % 2 * SIDE * NR};
        h->until = i < all ? 2 * (all - 1 - i) : 0;
        if (i) {
            int64_t panel = (i - 1) / strips, j = first + (i - 1) % strips * SIDE;
            int any = dz_beside(each, want, parts, before, f + panel, dz + (panel * SKL_BK + j) * NR, h);
            memset(live + panel * SKL_STRIPS_MAX + j / MR, any, SIDE / MR);
        }
        while (h->left > h->until) next_step(h);
    }
}

static inline __attribute__((always_inline)) void tile_dz_parts(int parts, int n, int panels,
                                                                const struct skl_factor side[2], int first, int want,
                                                                const struct skl_panel_factors *f, float *const y[2],
                                                                float *dz, unsigned char *live)
{
    struct halves h = halves_of(n, panels, side, first, y);
    int steps = h.steps[0] + h.steps[1];
    if (want == 1)
        dz_strips(4, 1, parts, first, &h, f, dz, live);
    else if (steps < 8)
        dz_strips(8, 2, parts, first, &h, f, dz, live);
    else if (steps < 16)
        dz_strips(4, 2, parts, first, &h, f, dz, live);
    else
        dz_strips(2, 2, parts, first, &h, f, dz, live);
}
