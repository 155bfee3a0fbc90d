/* SPDX-License-Identifier: Apache-2.0
 *
 * The gradients' products of f32 operands in three bf16 parts on tiles (AMX): as good as FMAs against double precision;
 * tiny gradients, and what cannot be taken apart, are right to the last digits too, and nothing else has to do with it.
 * By the stand-in on any x86 with AVX2; where there is AMX, that has the same bits. Whole calls are in test_split.c.
 */
#include "../src/cpu/kernels.h"
#include "../src/float_mode.h"
#include "cases.h"

#include <float.h>

enum { NR = 32, PANELS = 2, ROWS = PANELS * NR, DIM_MAX = 200 };

/* Operands of a block and a tile; panel 1 sees the columns from 'first' on. Sums are added to 'start'. */
struct operands {
    int n, dim, first, clean;
    float start;
    struct kit_buffer a, b;       /* [ROWS][dim], [n][dim] */
    float dz[PANELS][SKL_BK][NR]; /* 0 where nobody sees a column */
    unsigned char live[PANELS][SKL_STRIPS_MAX];
};

/* The two products. */
struct made {
    float da[PANELS][DIM_MAX + NR][NR], db[SKL_BK][DIM_MAX];
};

static int first_of(const struct operands *o, int panel)
{
    return panel ? o->first : 0;
}

/* Strips of 8 columns, of which some do not count. */
static int counts(const struct operands *o, int panel, int j)
{
    return j >= first_of(o, panel) && j < o->n && (j / 8 + panel) % 5 != 1;
}

static struct operands draw(int n, int dim, int first, double size)
{
    struct operands o = {.n = n, .dim = dim, .first = first, .start = (float)size};
    o.a = test_alloc(4 * (size_t)(ROWS * dim), 4, KIT_AT_END), o.b = test_alloc(4 * (size_t)(n * dim), 4, KIT_AT_END);
    for (int i = 0; i < ROWS * dim; i++) ((float *)o.a.data)[i] = (float)test_normal();
    for (int i = 0; i < n * dim; i++) ((float *)o.b.data)[i] = (float)test_normal();
    for (int panel = 0; panel < PANELS; panel++)
        for (int j = 0; j < n; j++) {
            for (int i = 0; i < NR; i++) o.dz[panel][j][i] = counts(&o, panel, j) ? (float)(size * test_normal()) : 0;
            o.live[panel][j / 8] = (unsigned char)counts(&o, panel, j / 8 * 8);
        }
    return o;
}

static void drop(struct operands *o)
{
    test_free(&o->a), test_free(&o->b);
}

static char *room(int64_t bytes)
{
    return aligned_alloc(SKL_ALIGN, (size_t)(bytes + SKL_ALIGN) / SKL_ALIGN * SKL_ALIGN);
}

static void pack_block(const struct skl_products *p, const struct operands *o, char *block)
{
    const void *lines[ROWS];
    for (int r = 0; r < ROWS; r++) lines[r] = (const float *)o->a.data + r * o->dim;
    for (int r = 0; r < ROWS && !p->pack_block_panel; r++) p->pack_block_row(o->dim, lines[r], r, ROWS, block);
    for (int r = 0; r < ROWS && p->pack_block_panel; r += NR) p->pack_block_panel(o->dim, lines + r, r, ROWS, block);
}

/* Panel 0 stores its da, panel 1 adds it. */
static void multiply(const struct skl_products *p, const struct operands *o, struct made *m)
{
    char *block = room(p->block_bytes(o->dim, ROWS)), *pack = room(p->column_bytes);
    char *parts = room(PANELS * p->parts_bytes);
    const float *dz = o->dz[0][0], *b = (const float *)o->b.data;
    struct skl_unit_state callers;
    struct skl_float_mode mode = skl_enter_float_mode();
    for (size_t i = 0; i < sizeof *m / sizeof(float); i++) ((float *)m)[i] = o->start;
    pack_block(p, o, block);
    if (p->enter)
        p->enter(&callers);
    for (int panel = 0; panel < PANELS; panel++) {
        int first = first_of(o, panel), strips = (o->n - first + 7) / 8;
        struct skl_columns columns = p->columns_back(o->n, o->dim, b, SKL_F32, o->dim, o->clean, pack);
        p->grad_rows(8 * strips, o->dim, o->live[panel] + first / 8, columns, first, o->dz[panel][first],
                     (struct skl_soon){0}, panel, m->da[panel][0]);
        if (p->parts_of_dz)
            p->parts_of_dz(first, first + 8 * strips, o->dz[panel][0], parts + panel * p->parts_bytes);
    }
    for (int d0 = 0; d0 < o->dim; d0 += NR)
        p->grad_columns(o->n, PANELS, o->live[0], p->parts_of_dz ? (const void *)parts : dz, block, ROWS, d0,
                        (struct skl_soon){0}, o->dim - d0 < NR ? o->dim - d0 : NR, m->db[0] + d0, DIM_MAX);
    if (p->leave)
        p->leave(&callers);
    skl_leave_float_mode(mode);
    free(block), free(pack), free(parts);
}

/* A sum, and the size of its terms. */
struct sum {
    double sum, size;
};

/* What is not finite in an operand counts as 0: rows that see it have a dz of NaN. */
static void add(struct sum *s, double dz, double x)
{
    double term = dz * (isfinite(x) ? x : 0);
    s->sum += term, s->size += fabs(term);
}

static struct sum sum_of_da(const struct operands *o, int panel, int d, int i)
{
    struct sum s = {panel * (double)o->start, panel * (double)o->start};
    for (int j = 0; j < o->n; j++)
        add(&s, (double)o->dz[panel][j][i], (double)((const float *)o->b.data)[j * o->dim + d]);
    return s;
}

static struct sum sum_of_db(const struct operands *o, int j, int d)
{
    struct sum s = {(double)o->start, (double)o->start};
    for (int r = 0; r < ROWS; r++)
        add(&s, (double)o->dz[r / NR][j][r % NR], (double)((const float *)o->a.data)[r * o->dim + d]);
    return s;
}

/* The worst error of all da or all db, relative to the size of their terms. */
static double worst_of(const struct operands *o, const struct made *m, int of_db)
{
    double worst = 0;
    for (int d = 0; d < o->dim; d++)
        for (int k = 0; k < (of_db ? o->n : ROWS); k++) {
            struct sum s = of_db ? sum_of_db(o, k, d) : sum_of_da(o, k / NR, d, k % NR);
            double got = (double)(of_db ? m->db[k][d] : m->da[k / NR][d][k % NR]);
            double err = isnan(s.sum) && isnan(got) ? 0 : fabs(s.sum - got) / (s.size + 1e-300);
            worst = err <= worst ? worst : err;
        }
    return worst;
}

static long count_different(const struct made *x, const struct made *y)
{
    const float *p = (const float *)x, *q = (const float *)y;
    long different = 0;
    for (size_t i = 0; i < sizeof *x / sizeof *p; i++)
        different += memcmp(&p[i], &q[i], 4) && !(isnan(p[i]) && isnan(q[i]));
    return different;
}

static const int shapes[][3] = {{192, 192, 0}, {192, 64, 32}, {100, 40, 8}, {31, 33, 0}, {191, 197, 24}, {56, 7, 16}};

/* No worse than FMAs, whose chains are as long, whatever the size of dz. */
static void accuracy(const struct skl_kernels *stand_in, const struct skl_kernels *real)
{
    static struct made parts, fma, theirs;
    static const double sizes[] = {0x1p-15, 1, 0x1p-60, 0x1p-90, 0x1p-97, 0x1p-103, 0x1p19, 0x1p25};
    for (int k = 0; k < COUNT(shapes); k++)
        for (int z = 0; z < COUNT(sizes); z++) {
            struct operands o = draw(shapes[k][0], shapes[k][1], shapes[k][2], sizes[z]);
            multiply(stand_in->split, &o, &parts);
            multiply(stand_in->products[SKL_F32], &o, &fma);
            for (int of_db = 0; of_db < 2; of_db++) {
                double of_parts = worst_of(&o, &parts, of_db), of_fma = worst_of(&o, &fma, of_db);
                test_context("n %d, dim %d, %s, dz of %g", o.n, o.dim, of_db ? "db" : "da", sizes[z]);
                CHECK(of_parts <= 0x1p-22, "off by %g of the terms", of_parts);
                CHECK(of_parts <= of_fma + 0x1p-24, "off by %g of the terms, FMAs by %g", of_parts, of_fma);
            }
            CHECK(z > 1 || count_different(&parts, &fma) > 0, "these are FMAs");
            if (real) {
                multiply(real->split, &o, &theirs);
                CHECK(!count_different(&parts, &theirs), "the stand-in has other bits");
            }
            drop(&o);
        }
    if (!real)
        printf("skipped: no AMX here, or no permission: the stand-in was compared with nothing but double precision\n");
}

/* What is done to an element of an operand, or to a line of dz: it becomes 'value', or is multiplied by 'factor'. */
static const struct oddity {
    const char *name;
    enum { ROW, COLUMN, ELEMENT, OF_A, OF_B } where;
    float value, factor;
} oddities[] = {
    {"a tiny row of dz", ROW, 0, 0x1p-105f},
    {"a tiny column of dz", COLUMN, 0, 0x1p-105f},
    {"a huge row of dz", ROW, 0, 0x1p40f},
    {"a huge column of dz", COLUMN, 0, 0x1p90f},
    {"a huge element of dz", ELEMENT, 0x1p70f, 1},
    {"NaN in dz", ELEMENT, NAN, 1},
    {"NaN in a", OF_A, NAN, 1},
    {"an infinite element of a", OF_A, INFINITY, 1},
    {"a huge element of a", OF_A, 0x1p60f, 1},
    {"NaN in b", OF_B, NAN, 1},
    {"an infinite element of b", OF_B, -INFINITY, 1},
    {"a huge element of b", OF_B, 0x1p60f, 1},
};
enum { ODD_ROW = 19, ODD_ENTRY = 5 }; /* of panel 1, */

static int odd_column(const struct operands *o) /* ... which sees this one */
{
    return o->n > 35 ? 35 : 25;
}

static float changed(const struct oddity *x, float was)
{
    return x->value != 0 ? x->value : was * x->factor;
}

static void spoil(const struct oddity *x, struct operands *o)
{
    int column = odd_column(o);
    float *a = (float *)o->a.data + (NR + ODD_ROW) * o->dim + ODD_ENTRY,
          *b = (float *)o->b.data + column * o->dim + ODD_ENTRY;
    float(*dz)[NR] = o->dz[1];
    for (int j = 0; j < o->n && x->where == ROW; j++) dz[j][ODD_ROW] = changed(x, dz[j][ODD_ROW]);
    for (int i = 0; i < NR && x->where == COLUMN; i++) dz[column][i] = changed(x, dz[column][i]);
    if (x->where == ELEMENT)
        dz[column][ODD_ROW] = changed(x, dz[column][ODD_ROW]);
    if (x->where == OF_A)
        *a = changed(x, *a);
    if (x->where == OF_B)
        *b = changed(x, *b);
}

/* Has an element of a gradient to do with what was spoilt? */
static int touches_da(const struct oddity *x, int panel, int d, int i)
{
    return x->where == OF_B ? d == ODD_ENTRY : panel == 1 && x->where != OF_A && (x->where == COLUMN || i == ODD_ROW);
}

static int touches_db(const struct operands *o, const struct oddity *x, int j, int d)
{
    return x->where == OF_A ? d == ODD_ENTRY : x->where != OF_B && (x->where == ROW || j == odd_column(o));
}

static long count_touched(const struct oddity *x, const struct operands *o, const struct made *was,
                          const struct made *is)
{
    long touched = 0;
    for (int d = 0; d < o->dim; d++) {
        for (int r = 0; r < ROWS; r++)
            touched += !touches_da(x, r / NR, d, r % NR) &&
                       memcmp(&was->da[r / NR][d][r % NR], &is->da[r / NR][d][r % NR], 4);
        for (int j = 0; j < o->n; j++) touched += !touches_db(o, x, j, d) && memcmp(&was->db[j][d], &is->db[j][d], 4);
    }
    return touched;
}

static void odd_ones(const struct skl_kernels *stand_in, const struct skl_kernels *real)
{
    static struct made plain, parts, theirs;
    for (int k = 0; k < COUNT(shapes); k++)
        for (int x = 0; x < COUNT(oddities); x++) {
            struct operands o = draw(shapes[k][0], shapes[k][1], shapes[k][2], 0x1p-10);
            o.clean = 1;
            multiply(stand_in->split, &o, &plain);
            spoil(&oddities[x], &o);
            multiply(stand_in->split, &o, &parts);
            test_context("n %d, dim %d, %s", o.n, o.dim, oddities[x].name);
            CHECK(worst_of(&o, &parts, 0) <= 0x1p-22, "da is off by %g of the terms", worst_of(&o, &parts, 0));
            CHECK(worst_of(&o, &parts, 1) <= 0x1p-22, "db is off by %g of the terms", worst_of(&o, &parts, 1));
            long touched = count_touched(&oddities[x], &o, &plain, &parts);
            CHECK(touched == 0, "%ld other elements changed", touched);
            if (real) {
                multiply(real->split, &o, &theirs);
                CHECK(!count_different(&parts, &theirs), "the stand-in has other bits");
            }
            drop(&o);
        }
}

/* What is not finite counts as 0, and has the bits of 0. */
static void not_finite(const struct skl_kernels *stand_in)
{
    static struct made of_0, of_nan;
    for (int k = 0; k < COUNT(shapes); k++)
        for (int of_b = 0; of_b < 2; of_b++) {
            struct operands o = draw(shapes[k][0], shapes[k][1], shapes[k][2], 0x1p-10);
            o.clean = 1;
            float *x = of_b ? (float *)o.b.data + odd_column(&o) * o.dim + ODD_ENTRY
                            : (float *)o.a.data + (NR + ODD_ROW) * o.dim + ODD_ENTRY;
            *x = 0;
            multiply(stand_in->split, &o, &of_0);
            *x = of_b ? NAN : -INFINITY;
            multiply(stand_in->split, &o, &of_nan);
            test_context("n %d, dim %d, %s", o.n, o.dim, of_b ? "b" : "a");
            CHECK(!count_different(&of_0, &of_nan), "%g is not 0", (double)*x);
            drop(&o);
        }
}

/* The largest numbers that are taken apart, and the smallest that are not, in as many rows as a block can have. */
static void largest_sums(const struct skl_kernels *stand_in)
{
    enum { ALL = 16384 / NR, COLUMNS = 32 };
    const struct skl_products *p = stand_in->split;
    static const float sizes[][2] = {{0x1p20f, 0x1p34f}, {0x1p24f, 0x1p34f}, {0x1p20f, 0x1p40f}};
    for (int k = 0; k < COUNT(sizes); k++) {
        char *block = room(p->block_bytes(NR, ALL * NR)), *parts = room(ALL * p->parts_bytes);
        float dz[SKL_BK * NR], line[NR], db[COLUMNS][NR] = {{0}};
        unsigned char *live = calloc(ALL, SKL_STRIPS_MAX);
        const void *lines[NR];
        struct skl_unit_state callers;
        struct skl_float_mode mode = skl_enter_float_mode();
        for (int i = 0; i < NR; i++) line[i] = sizes[k][1], lines[i] = line;
        for (int i = 0; i < COLUMNS * NR; i++) dz[i] = sizes[k][0];
        p->enter(&callers);
        for (int panel = 0; panel < ALL; panel++) {
            memset(live + panel * SKL_STRIPS_MAX, 1, COLUMNS / 8);
            p->pack_block_panel(NR, lines, panel * NR, ALL * NR, block);
            p->parts_of_dz(0, COLUMNS, dz, parts + panel * p->parts_bytes);
        }
        p->grad_columns(COLUMNS, ALL, live, parts, block, ALL * NR, 0, (struct skl_soon){0}, NR, db[0], NR);
        p->leave(&callers);
        skl_leave_float_mode(mode);
        double sum = 16384 * (double)sizes[k][0] * (double)sizes[k][1];
        for (int i = 0; i < COLUMNS * NR; i++)
            CHECK(fabs((double)db[i / NR][i % NR] - sum) <= 0x1p-14 * sum, "%g instead of %g",
                  (double)db[i / NR][i % NR], sum);
        free(block), free(parts), free(live);
    }
}

/* skip_below adds rows as they lie. */
static void lists(const struct skl_kernels *stand_in)
{
    static const uint16_t at[] = {3, 40, 20, 51};
    static const float x[] = {0.5f, -2, 1, 0x1p-100f};
    for (int k = 0; k < COUNT(shapes); k++) {
        struct operands o = draw(shapes[k][0], shapes[k][1], shapes[k][2], 1);
        float sum[DIM_MAX] = {0};
        char *block = room(stand_in->split->block_bytes(o.dim, ROWS));
        ((float *)o.a.data)[40 * o.dim] = NAN;
        memset((float *)o.a.data + 20 * o.dim, 0, 4 * (size_t)o.dim);
        pack_block(stand_in->split, &o, block);
        stand_in->split->add_rows(COUNT(at), at, x, block, ROWS, o.dim, sum);
        for (int d = 0; d < o.dim; d++) {
            struct sum s = {0, 0};
            for (int i = 0; i < COUNT(at); i++)
                add(&s, (double)x[i], (double)((const float *)o.a.data)[at[i] * o.dim + d]);
            test_context("dim %d, entry %d", o.dim, d);
            CHECK(fabs((double)sum[d] - s.sum) <= 0x1p-22 * s.size, "%g instead of %g", (double)sum[d], s.sum);
        }
        free(block), drop(&o);
    }
}

int main(void)
{
    test_begin("test_split_back");
    const struct skl_kernels *best = skl_kernels_for(SKL_ISA_AMX), *stand_in = &skl_kernels_emulated_amx;
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return test_skip("the stand-in needs AVX2");
    const struct skl_kernels *real = best != stand_in ? best : NULL;
    accuracy(stand_in, real);
    odd_ones(stand_in, real);
    not_finite(stand_in);
    largest_sums(stand_in);
    lists(stand_in);
    return test_end();
}
