/* SPDX-License-Identifier: Apache-2.0
 *
 * Scores made beside what becomes of them (struct skl_products, sweep_kl and sweep_dz): the same bits as products first
 * and exponentials after them, by the kernels of AMX where it is and by their stand-in everywhere.
 */
#include "../src/cpu/plan.h"
#include "../src/float_mode.h"
#include "../src/half.h"
#include "test.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { P, Q };
enum { NR = 32, STRIP = 32, PANELS = 3, DIM_MAX = 512 };
static const float SLACK = 8;

/* What the numbers are like: scores near each other; growing from strip to strip, so that references have to move; and
 * some that are not finite. */
enum kind { NEAR, RISING, ODD, KINDS };

struct sides {
    int n, first, panels, dim[2];
    uint16_t *a[2], *b[2];
    char *rows[2], *pack[2];
    struct skl_columns columns[2];
    float unit[2];
};

static void *room(size_t bytes)
{
    return aligned_alloc(SKL_ALIGN, (bytes + SKL_ALIGN) / SKL_ALIGN * SKL_ALIGN);
}

static uint16_t number(enum kind kind, int column)
{
    static const uint16_t odd[] = {0x7f80, 0xff80, 0x7fc0, 0x7f7f, 0x0001};
    if (kind == ODD && test_between(0, 999) == 0)
        return odd[test_between(0, 4)];
    float x = (float)test_between(-1000, 1000) / 500;
    return skl_to_bf16(kind == RISING ? x + (float)column / 8 : x);
}

static struct sides make_sides(const struct skl_products *p, const int dim[2], int n, int first, int panels,
                               enum kind kind)
{
    struct sides s = {.n = n, .first = first, .panels = panels, .dim = {dim[P], dim[Q]}};
    for (int side = 0; side < 2; side++) {
        int d = dim[side];
        size_t of_panel = (size_t)p->panel_bytes(d);
        s.a[side] = room((size_t)(panels * NR * d) * 2), s.b[side] = room((size_t)((first + n) * d) * 2);
        s.rows[side] = room((size_t)panels * of_panel), s.pack[side] = room((size_t)p->column_bytes);
        for (int i = 0; i < panels * NR * d; i++) s.a[side][i] = number(kind == RISING ? NEAR : kind, 0);
        for (int i = 0; i < (first + n) * d; i++) s.b[side][i] = number(kind, i / d);
        for (int panel = 0; panel < panels; panel++) {
            const void *lines[NR];
            for (int i = 0; i < NR; i++) lines[i] = s.a[side] + (panel * NR + i) * d;
            p->pack_panel(d, lines, side ? -1.0f : 1.0f, s.rows[side] + (size_t)panel * of_panel);
        }
        s.columns[side] = p->columns(first + n, d, s.b[side], SKL_BF16, d, s.pack[side]);
        s.unit[side] = 1.5f / sqrtf((float)d);
    }
    return s;
}

static void free_sides(struct sides *s)
{
    for (int side = 0; side < 2; side++) free(s->a[side]), free(s->b[side]), free(s->rows[side]), free(s->pack[side]);
}

static void factors(const struct sides *s, struct skl_factor factor[2])
{
    for (int side = 0; side < 2; side++)
        factor[side] = (struct skl_factor){.columns = s->columns[side], .panel = s->rows[side], .dim = s->dim[side]};
}

/* A panel's scores of the columns from 'j' on. */
static void score(const struct skl_products *p, const struct sides *s, int panel, int j, int n, float *const y[2])
{
    struct skl_soon soon = {0};
    for (int side = 0; side < 2; side++)
        p->logits(n, s->dim[side], s->columns[side], j, s->rows[side] + panel * p->panel_bytes(s->dim[side]), 0, soon,
                  0, y[side]);
}

/* Equal, or NaN in both; of numbers of 'size' bytes. */
static long count_different(const void *x, const void *y, size_t bytes)
{
    const float *p = x, *q = y;
    long different = 0;
    for (size_t i = 0; i < bytes / sizeof *p; i++)
        different += memcmp(&p[i], &q[i], sizeof *p) != 0 && !(isnan(p[i]) && isnan(q[i]));
    return different;
}

/* ------------------------------------------------------------------------------------------------------ the sweep --- */

static void check_states(const struct skl_panel_state *ours, const struct skl_panel_state *want)
{
    long different = count_different(ours->m, want->m, sizeof ours->m);
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < NR; i++) {
            double pairs[2][2] = {{ours->l[side][i], want->l[side][i]}, {ours->acc[side][i], want->acc[side][i]}};
            for (int k = 0; k < 2; k++)
                different += memcmp(&pairs[k][0], &pairs[k][1], sizeof(double)) != 0 &&
                             !(isnan(pairs[k][0]) && isnan(pairs[k][1]));
        }
    CHECK(different == 0, "%ld numbers of a state differ", different);
}

static void sweep(const struct skl_kernels *k, const struct skl_products *p, const struct sides *s)
{
    struct skl_panel_state want[PANELS], ours[PANELS];
    float *y[2] = {room(SKL_BK * NR * 4), room(SKL_BK * NR * 4)};
    struct skl_factor factor[2];
    memset(want, 0, sizeof want);
    for (int panel = 0; panel < PANELS; panel++)
        for (int i = 0; i < NR; i++) want[panel].m[P][i] = want[panel].m[Q][i] = -INFINITY;
    memcpy(ours, want, sizeof ours);
    factors(s, factor);
    for (int twice = 0; twice < 2; twice++) { /* the second time something was seen before */
        for (int panel = 0; panel < s->panels; panel++)
            for (int j = s->first; j < s->first + s->n; j += STRIP) {
                score(p, s, panel, j, STRIP, y);
                k->push_kl(STRIP, y[P], y[Q], s->unit, SLACK, SKL_KEEP_NOTHING, &want[panel]);
            }
        p->sweep_kl(s->n, s->panels, factor, s->first, s->unit, SLACK, y, ours);
    }
    for (int panel = 0; panel < PANELS; panel++) check_states(&ours[panel], &want[panel]);
    free(y[P]), free(y[Q]);
}

/* --------------------------------------------------------------------------------------------------------- dz --- */

static struct skl_panel_factors some_factors(const struct sides *s, int nothing)
{
    struct skl_panel_factors f = {.unit = {s->unit[P], s->unit[Q]}};
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < NR; i++) {
            f.m[side][i] = (float)test_between(-100, 100) / 50, f.prob[side][i] = (float)test_between(1, 100) / 1e4f;
            f.g[side][i] = nothing ? 0 : (float)test_between(-100, 100) / 100, f.c[side][i] = 0.25f;
        }
    f.g[Q][3] = nothing ? 0 : 3e38f; /* dz in parts next to what bf16 can hold */
    return f;
}

/* 'parts' of dz are in a line, 64 bytes each: numbers of bf16, of which two NaN may have other signs, as compilers choose
 * the order of operands. */
static int lines_differ(const float *x, const float *y, int parts)
{
    uint16_t p[2 * NR], q[2 * NR];
    int different = 0;
    memcpy(p, x, (size_t)parts * 64), memcpy(q, y, (size_t)parts * 64);
    for (int i = 0; i < parts * NR; i++)
        different |= p[i] != q[i] && !(isnan(skl_from_bf16(p[i])) && isnan(skl_from_bf16(q[i])));
    return different;
}

static void gradient(const struct skl_kernels *k, const struct skl_products *p, const struct sides *s, int parts,
                     int want, int nothing)
{
    enum { TILE = SKL_BK * NR };
    struct skl_panel_factors f[PANELS];
    float *y[2] = {room(TILE * 4), room(TILE * 4)}, *ours = room(PANELS * TILE * 4), *of_side = y[want - 1];
    unsigned char live[PANELS * SKL_STRIPS_MAX] = {0};
    struct skl_factor factor[2];
    for (int panel = 0; panel < s->panels; panel++) f[panel] = some_factors(s, nothing);
    factors(s, factor);
    p->sweep_dz(s->n, s->panels, factor, s->first, want, f, y, ours, live);
    for (int panel = 0; panel < s->panels; panel++) {
        float *const from[2] = {y[P] + s->first * NR, y[Q] + s->first * NR};
        score(p, s, panel, s->first, s->n, from);
        k->form[SKL_FORM_KL].dz(s->n, from[P], from[Q], want, &f[panel]);
        long wrong = 0;
        for (int j = s->first; j < s->first + s->n; j += STRIP) {
            int any = 0;
            for (int i = 0; i < STRIP * NR; i++) any |= of_side[j * NR + i] != 0;
            for (int strip = j / k->mr; strip < (j + STRIP) / k->mr; strip++)
                wrong += live[panel * SKL_STRIPS_MAX + strip] != any;
        }
        CHECK(wrong == 0, "%ld strips are marked wrongly", wrong);
        p->split(s->first, s->first + s->n, of_side);
        long different = 0;
        for (int j = s->first; j < s->first + s->n; j++)
            different += lines_differ(ours + panel * TILE + j * NR, of_side + j * NR, parts);
        CHECK(different == 0, "%ld lines of dz of panel %d differ", different, panel);
    }
    free(y[P]), free(y[Q]), free(ours);
}

/* ------------------------------------------------------------------------------------------------------- packs --- */

/* Numbers that differ, other than NaN and the sign of 0, which is nobody's. */
static long count_other_numbers(const void *x, const void *y, size_t bytes)
{
    const uint16_t *p = x, *q = y;
    long other = 0;
    for (size_t i = 0; i < bytes / 2; i++) {
        float a = skl_from_bf16(p[i]), b = skl_from_bf16(q[i]);
        other += !(a == b || (isnan(a) && isnan(b)) || p[i] == q[i]);
    }
    return other;
}

/* Rows at once are what rows one by one are. */
static void packs(const struct skl_products *p, int dim)
{
    size_t of_panel = (size_t)p->panel_bytes(dim), of_block = (size_t)p->block_bytes(dim, 2 * NR);
    uint16_t *a = room((size_t)(2 * NR * dim) * 2);
    char *panel[2] = {room(of_panel), room(of_panel)}, *block[2] = {room(of_block), room(of_block)};
    float line[DIM_MAX];
    for (int i = 0; i < 2 * NR * dim; i++) a[i] = number(ODD, 0);
    for (int k = 0; k < 2; k++) memset(block[k], 0, of_block);
    for (int first = 0; first < 2 * NR; first += NR) {
        const void *lines[NR];
        for (int i = 0; i < NR; i++) {
            lines[i] = a + (first + i) * dim;
            for (int d = 0; d < dim; d++) line[d] = skl_from_bf16(a[(first + i) * dim + d]);
            p->pack_row(dim, line, -1, i, panel[0]);
            p->pack_block_row(dim, line, first + i, 2 * NR, block[0]);
        }
        p->pack_panel(dim, lines, -1, panel[1]);
        p->pack_block_panel(dim, lines, first, 2 * NR, block[1]);
        CHECK(count_other_numbers(panel[0], panel[1], of_panel) == 0, "dim %d: panels differ", dim);
    }
    CHECK(count_other_numbers(block[0], block[1], of_block) == 0, "dim %d: blocks differ", dim);
    for (int k = 0; k < 2; k++) free(panel[k]), free(block[k]);
    free(a);
}

static void all_of(const struct skl_kernels *k, const char *name)
{
    static const int dims[][2] = {{32, 32}, {7, 40}, {64, 64}, {96, 40}, {128, 128}, {256, 512}, {512, 512}};
    for (int i = 0; i < COUNT(dims); i++)
        for (int rounded = 0; rounded < 2; rounded++)
            for (int kind = 0; kind < KINDS; kind++) {
                const struct skl_products *p = rounded ? k->rounded : k->products[SKL_BF16];
                int panels = test_between(1, PANELS), first = STRIP * test_between(0, 2);
                int n = STRIP * test_between(1, 6 - first / STRIP);
                struct skl_unit_state callers;
                test_context("%s, dim %d and %d, %d columns from %d, %d panels, kind %d, rounded %d", name, dims[i][P],
                             dims[i][Q], n, first, panels, kind, rounded);
                struct sides s = make_sides(p, dims[i], n, first, panels, (enum kind)kind);
                p->enter(&callers);
                sweep(k, p, &s);
                for (int want = 1; want <= 2; want++) gradient(k, p, &s, 2 - rounded, want, 0);
                gradient(k, p, &s, 2 - rounded, 2, 1);
                p->leave(&callers);
                packs(p, dims[i][P]);
                free_sides(&s);
            }
}

/* -------------------------------------------------------------------------------------------------- who takes it --- */

/* Attention of 4096 keys and dim 128, planned and not run. */
struct use {
    const char *name;
    int beside, recompute, dz_beside;
    int dtype, heads, threads, grads, teacher_too, jsd;
    double softcap, skip_below;
};

static const struct use uses[] = {
    {"value", 1, 1, 0, SKL_BF16, 4, 2, 0, 0, 0, 0, 0},
    {"with gradients", 1, 1, 1, SKL_BF16, 4, 2, 1, 0, 0, 0, 0},
    {"one head", 1, 1, 1, SKL_BF16, 1, 2, 1, 0, 0, 0, 0},
    {"one head, many threads", 1, 0, 0, SKL_BF16, 1, 64, 1, 0, 0, 0, 0},
    {"both sides' gradients", 1, 1, 0, SKL_BF16, 4, 2, 1, 1, 0, 0, 0},
    {"entries left out", 1, 1, 0, SKL_BF16, 4, 2, 1, 0, 0, 0, 1e-6},
    {"softcap", 0, 0, 0, SKL_BF16, 4, 2, 1, 0, 0, 30, 0},
    {"two sweeps", 0, 0, 0, SKL_BF16, 4, 2, 1, 0, 1, 0, 0},
    {"f32", 0, 0, 0, SKL_F32, 4, 2, 1, 0, 0, 0, 0},
};

static struct skl_tensor nowhere(int dtype, int k, int64_t heads)
{
    return skl_heads(dtype, (const void *)((uintptr_t)(k + 1) << 42), 1, heads, 4096, 128);
}

static void who_takes_it(void)
{
    for (int k = 0; k < COUNT(uses); k++) {
        const struct use *u = &uses[k];
        struct skl_tensor x[4];
        for (int i = 0; i < 4; i++) x[i] = nowhere(u->dtype, i, u->heads);
        struct skl_problem p = skl_attention(x[0], x[1], x[2], x[3]);
        struct skl_outputs out = skl_no_outputs();
        struct skl_work w;
        struct skl_plan plan;
        double value;
        enum skl_call call = u->grads ? SKL_CALL_VALUE_AND_GRAD : SKL_CALL_VALUE;
        p.threads = u->threads, p.isa = SKL_ISA_AMX, p.s.softcap = u->softcap, p.skip_below = u->skip_below,
        out.value = &value;
        p.divergence = u->jsd ? SKL_JSD : SKL_FORWARD_KL;
        if (u->grads)
            out.s.a = nowhere(SKL_F32, 4, u->heads), out.s.b = nowhere(SKL_F32, 5, u->heads);
        if (u->teacher_too)
            out.t.a = nowhere(SKL_F32, 6, u->heads);
        test_context("%s", u->name);
        CHECK_STATUS(skl_check(call, &p, NULL, &out, NULL, &w), SKL_OK);
        CHECK_STATUS(skl_make_plan(call, &w, &plan), SKL_OK);
        CHECK(plan.beside == u->beside, "scores are %spushed beside products", plan.beside ? "" : "not ");
        CHECK(plan.recompute == u->recompute, "scores are made %s", plan.recompute ? "twice" : "once");
        CHECK(plan.dz_beside == u->dz_beside, "dz is %smade beside products", plan.dz_beside ? "" : "not ");
    }
}

/* ------------------------------------------------------------------------------------------------ many threads --- */

enum { HEADS = 2, ROWS = 600, COLUMNS = 2500, DIM = 40, OF_A = HEADS * ROWS * DIM, OF_B = HEADS * COLUMNS * DIM };

struct made {
    double value;
    float da[2][OF_A], db[2][OF_B];
};

/* 'sides': gradients of the student's side, of the teacher's, or of both. */
static void call_on(int threads, int sides, const struct skl_problem *problem, struct made *m, int *recompute)
{
    struct skl_problem p = *problem;
    struct skl_outputs out = skl_no_outputs();
    struct skl_grads *of[2] = {&out.s, &out.t};
    struct skl_work w;
    struct skl_plan plan;
    memset(m, 0xff, sizeof *m);
    p.threads = threads, out.value = &m->value;
    for (int side = 0; side < 2; side++)
        if (sides >> side & 1) {
            of[side]->a = skl_heads(SKL_F32, m->da[side], 1, HEADS, ROWS, DIM);
            of[side]->b = skl_heads(SKL_F32, m->db[side], 1, HEADS, COLUMNS, DIM);
        }
    CHECK_STATUS(skl_check(SKL_CALL_VALUE_AND_GRAD, &p, NULL, &out, NULL, &w), SKL_OK);
    CHECK_STATUS(skl_make_plan(SKL_CALL_VALUE_AND_GRAD, &w, &plan), SKL_OK);
    CHECK_STATUS(skl_value_and_grad(&p, &out), SKL_OK);
    *recompute = plan.recompute;
}

/* Few threads make scores twice, many keep them and share panels and tiles. */
static void many_threads(void)
{
    static uint16_t a[2][OF_A], b[2][OF_B];
    static struct made few, many;
    for (int side = 0; side < 2; side++) {
        for (int i = 0; i < OF_A; i++) a[side][i] = number(NEAR, 0);
        for (int i = 0; i < OF_B; i++) b[side][i] = number(NEAR, 0);
    }
    for (int masked = 0; masked < 3; masked++)
        for (int sides = 1; sides < 4; sides++) {
            struct skl_problem p = skl_attention(
                skl_heads(SKL_BF16, a[0], 1, HEADS, ROWS, DIM), skl_heads(SKL_BF16, b[0], 1, HEADS, COLUMNS, DIM),
                skl_heads(SKL_BF16, a[1], 1, HEADS, ROWS, DIM), skl_heads(SKL_BF16, b[1], 1, HEADS, COLUMNS, DIM));
            int twice[2];
            p.isa = SKL_ISA_AMX, p.causal = masked > 0, p.window_left = masked == 2 ? 700 : p.window_left;
            call_on(1, sides, &p, &few, &twice[0]);
            call_on(64, sides, &p, &many, &twice[1]);
            test_context("gradients of %d, masked %d", sides, masked);
            CHECK(twice[0] && !twice[1], "scores are made %s on one thread, %s on 64", twice[0] ? "twice" : "once",
                  twice[1] ? "twice" : "once");
            CHECK(!memcmp(&few, &many, sizeof few), "64 threads have other bits than one");
        }
}

int main(void)
{
    test_begin("test_beside");
    struct skl_float_mode before = skl_enter_float_mode(); /* as every call does */
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        all_of(&skl_kernels_emulated_amx, "stand-in");
    if (skl_isa_available(SKL_ISA_AMX))
        all_of(skl_kernels_for(SKL_ISA_AMX), "amx"), who_takes_it(), many_threads();
    skl_leave_float_mode(before);
    return test_end();
}
