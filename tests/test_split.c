/* SPDX-License-Identifier: Apache-2.0
 *
 * f32 operands in three bf16 parts on tiles (AMX): logits as good as FMAs against double precision; rows and columns
 * that cannot be taken apart have the bits of FMAs, and no other score has to do with them; who takes it, and how it is
 * switched off. By the stand-in on any x86 with AVX2; where there is AMX, that has the same bits. CTest runs it with
 * STREAMKL_ISA=amx-emulated too, where calls take the stand-in.
 */
#include "../src/cpu/kernels.h"
#include "../src/cpu/plan.h"
#include "../src/float_mode.h"
#include "cases.h"

#include <float.h>

/* -------------------------------------------------------------------------------------------- product by product --- */

enum { ROWS = 32, DIM_MAX = 1100 };

/* Operands of one panel and one tile, with room to be read beyond no end. */
struct operands {
    int n, dim, first;
    float sign;
    struct kit_buffer a, b;
};

static struct operands draw(int n, int dim, int first, float sign)
{
    struct operands o = {n,
                         dim,
                         first,
                         sign,
                         test_alloc(4 * (size_t)(ROWS * dim), 4, KIT_AT_END),
                         test_alloc(4 * (size_t)(n * dim), 4, KIT_AT_END)};
    float *a = (float *)o.a.data, *b = (float *)o.b.data;
    for (int i = 0; i < ROWS * dim; i++) a[i] = (float)test_normal();
    for (int i = 0; i < n * dim; i++) b[i] = (float)(test_normal() / sqrt(dim));
    return o;
}

static void drop(struct operands *o)
{
    test_free(&o->a), test_free(&o->b);
}

/* y of the columns first .. n - 1, upon 'add' of a sum that is there already. */
static void multiply(const struct skl_products *p, const struct operands *o, int add, float y[SKL_BK][ROWS])
{
    size_t panel_size = (size_t)(p->panel_bytes(o->dim) + SKL_ALIGN - 1) / SKL_ALIGN * SKL_ALIGN;
    size_t pack_size = (size_t)(p->column_bytes + SKL_ALIGN - 1) / SKL_ALIGN * SKL_ALIGN;
    char *panel = aligned_alloc(SKL_ALIGN, panel_size), *pack = aligned_alloc(SKL_ALIGN, pack_size);
    const void *lines[ROWS];
    struct skl_unit_state callers;
    struct skl_float_mode mode = skl_enter_float_mode();
    for (int i = 0; i < ROWS; i++) lines[i] = (const float *)o->a.data + i * o->dim;
    for (int j = 0; j < SKL_BK; j++)
        for (int i = 0; i < ROWS; i++) y[j][i] = add ? 0.25f * (float)(j - i) : NAN;
    p->pack_panel(o->dim, lines, o->sign, panel);
    if (p->enter)
        p->enter(&callers);
    for (int d0 = 0; d0 < o->dim; d0 += p->kc) {
        int k = o->dim - d0 < p->kc ? o->dim - d0 : p->kc;
        struct skl_columns columns = p->columns(o->n, k, (const float *)o->b.data + d0, SKL_F32, o->dim, pack);
        p->logits(o->n - o->first, k, columns, o->first, panel, d0, (struct skl_soon){0}, add || d0 > 0, y[o->first]);
    }
    if (p->leave)
        p->leave(&callers);
    skl_leave_float_mode(mode);
    free(panel), free(pack);
}

static double worst_of(const struct operands *o, float y[SKL_BK][ROWS])
{
    const float *a = (const float *)o->a.data, *b = (const float *)o->b.data;
    double worst = 0;
    for (int j = o->first; j < o->n; j++)
        for (int i = 0; i < ROWS; i++) {
            double sum = 0, size = 0;
            for (int d = 0; d < o->dim; d++) {
                double x = (double)o->sign * (double)a[i * o->dim + d] * (double)b[j * o->dim + d];
                sum += x, size += fabs(x);
            }
            double err = fabs(sum - (double)y[j][i]) / size;
            worst = err <= worst ? worst : err;
        }
    return worst;
}

static long count_different(const struct operands *o, float x[SKL_BK][ROWS], float y[SKL_BK][ROWS])
{
    long different = 0;
    for (int j = o->first; j < o->n; j++)
        for (int i = 0; i < ROWS; i++)
            different += memcmp(&x[j][i], &y[j][i], 4) && !(isnan(x[j][i]) && isnan(y[j][i]));
    return different;
}

static const int shapes[][3] = {{192, 1024, 0}, {192, 256, 32}, {100, 40, 8}, {31, 33, 0}, {191, 517, 24}, {56, 7, 0}};

/* No worse than FMAs, whose chains are as long: the largest error of some thousand sums each. */
static void accuracy(const struct skl_kernels *stand_in, const struct skl_kernels *real)
{
    static float split[SKL_BK][ROWS], fma[SKL_BK][ROWS], theirs[SKL_BK][ROWS];
    for (int k = 0; k < COUNT(shapes); k++) {
        struct operands o = draw(shapes[k][0], shapes[k][1], shapes[k][2], k % 2 ? -1 : 1);
        test_context("n %d, dim %d", o.n, o.dim);
        multiply(stand_in->split, &o, 0, split);
        multiply(stand_in->products[SKL_F32], &o, 0, fma);
        double of_split = worst_of(&o, split), of_fma = worst_of(&o, fma);
        CHECK(of_split <= 0x1p-22, "off by %g of the terms", of_split);
        CHECK(of_split <= of_fma + 0x1p-25, "off by %g of the terms, FMAs by %g", of_split, of_fma);
        CHECK(count_different(&o, split, fma) > 0, "these are FMAs");
        if (real) {
            multiply(real->split, &o, 0, theirs);
            CHECK(!count_different(&o, split, theirs), "the stand-in has other bits");
        }
        drop(&o);
    }
    if (!real)
        printf("skipped: no AMX here, or no permission: the stand-in was compared with nothing but double precision\n");
}

/* What makes a row or a column odd: an entry, or all of them by a factor. */
static const struct oddity {
    const char *name;
    float entry, factor;
} oddities[] = {{"NaN", NAN, 1},          {"infinite", INFINITY, 1},        {"the largest", FLT_MAX, 1},
                {"2^41", 0x1p41f, 1},     {"all tiny", 0, 0x1p-50f},        {"all tinier", 0, 0x1p-115f},
                {"all huge", 0, 0x1p60f}, {"not odd: 2^-100", 0x1p-100f, 1}};

static void spoil(const struct oddity *x, int dim, float *line)
{
    for (int d = 0; d < dim; d++) line[d] *= x->factor;
    if (x->entry != 0)
        line[dim / 2] = x->entry;
}

/* Odd rows and columns have FMA's bits; all others those that they have without them. */
static void odd_ones(const struct skl_kernels *stand_in, const struct skl_kernels *real)
{
    static float plain[SKL_BK][ROWS], split[SKL_BK][ROWS], fma[SKL_BK][ROWS], theirs[SKL_BK][ROWS];
    static const int rows[] = {3, 17, 31}, columns[] = {1, 40, 41, 55};
    for (int k = 0; k < COUNT(shapes); k++)
        for (int x = 0; x < COUNT(oddities); x++)
            for (int where = 1; where < 4; where++) { /* bit 0: rows, bit 1: columns */
                struct operands o = draw(shapes[k][0], shapes[k][1], shapes[k][2], x % 2 ? -1 : 1);
                int odd_row[ROWS] = {0}, odd_column[SKL_BK] = {0}, odd = strncmp(oddities[x].name, "not", 3) != 0;
                multiply(stand_in->split, &o, x & 1, plain);
                for (int i = 0; (where & 1) && i < COUNT(rows); i++) {
                    spoil(&oddities[x], o.dim, (float *)o.a.data + rows[i] * o.dim);
                    odd_row[rows[i]] = 1;
                }
                for (int i = 0; (where & 2) && i < COUNT(columns) && columns[i] < o.n; i++) {
                    spoil(&oddities[x], o.dim, (float *)o.b.data + columns[i] * o.dim);
                    odd_column[columns[i]] = 1;
                }
                multiply(stand_in->split, &o, x & 1, split);
                multiply(stand_in->products[SKL_F32], &o, x & 1, fma);
                long wrong = 0, touched = 0;
                for (int j = o.first; j < o.n; j++)
                    for (int i = 0; i < ROWS; i++) {
                        int spoilt = odd_row[i] || odd_column[j];
                        float want = spoilt ? fma[j][i] : plain[j][i];
                        int same = !memcmp(&split[j][i], &want, 4) || (isnan(split[j][i]) && isnan(want));
                        wrong += spoilt && odd && !same, touched += !spoilt && !same;
                    }
                test_context("n %d, dim %d, %s, where %d", o.n, o.dim, oddities[x].name, where);
                CHECK(wrong == 0, "%ld odd scores are not FMA's", wrong);
                CHECK(touched == 0, "%ld other scores changed", touched);
                if (real) {
                    multiply(real->split, &o, x & 1, theirs);
                    CHECK(!count_different(&o, split, theirs), "the stand-in has other bits");
                }
                drop(&o);
            }
}

/* -------------------------------------------------------------------------------------------------- who takes it --- */

static struct skl_tensor nowhere(int dtype, int linear, int k, int64_t n, int64_t dim)
{
    const void *at = (const void *)((uintptr_t)(k + 1) << 42);
    return linear ? skl_matrix(dtype, at, n, dim) : skl_heads(dtype, at, 1, 4, n, dim);
}

struct use {
    const char *name;
    int taken, linear, dtype_s, dtype_t, split, grads, saves;
    int64_t rows, dim_s, dim_t;
};

static const struct use uses[] = {
    {"the least", 1, 1, SKL_F32, SKL_F32, 0, 0, 0, 512, 1024, 1024},
    {"switched off", 0, 1, SKL_F32, SKL_F32, SKL_SPLIT_NEVER, 0, 0, 512, 1024, 1024},
    {"few rows", 0, 1, SKL_F32, SKL_F32, 0, 0, 0, 511, 1024, 1024},
    {"narrow student", 0, 1, SKL_F32, SKL_F32, 0, 0, 0, 512, 1023, 1024},
    {"narrow teacher", 0, 1, SKL_F32, SKL_F32, 0, 0, 0, 512, 4096, 1000},
    {"with gradients", 1, 1, SKL_F32, SKL_F32, 0, 1, 0, 512, 1024, 1024},
    {"saved for gradients", 1, 1, SKL_F32, SKL_F32, 0, 0, 1, 512, 1024, 1024},
    {"attention", 0, 0, SKL_F32, SKL_F32, 0, 0, 0, 512, 1024, 1024},
    {"bf16", 0, 1, SKL_BF16, SKL_BF16, SKL_SPLIT_ALWAYS, 0, 0, 512, 1024, 1024},
    {"mixed", 0, 1, SKL_F32, SKL_F16, SKL_SPLIT_ALWAYS, 0, 0, 512, 1024, 1024},
    {"always: attention", 1, 0, SKL_F32, SKL_F32, SKL_SPLIT_ALWAYS, 0, 0, 64, 64, 64},
    {"always: gradients", 1, 1, SKL_F32, SKL_F32, SKL_SPLIT_ALWAYS, 1, 0, 100, 70, 64},
};

static void who_takes_it(void)
{
    for (int k = 0; k < COUNT(uses); k++) {
        const struct use *u = &uses[k];
        struct skl_tensor a_s = nowhere(u->dtype_s, u->linear, 0, u->rows, u->dim_s),
                          b_s = nowhere(u->dtype_s, u->linear, 1, 3000, u->dim_s),
                          a_t = nowhere(u->dtype_t, u->linear, 2, u->rows, u->dim_t),
                          b_t = nowhere(u->dtype_t, u->linear, 3, 3000, u->dim_t);
        struct skl_problem p = u->linear ? skl_linear(a_s, b_s, a_t, b_t) : skl_attention(a_s, b_s, a_t, b_t);
        struct skl_outputs out = skl_no_outputs();
        struct skl_work w;
        struct skl_plan plan;
        double value;
        enum skl_call call = u->grads ? SKL_CALL_VALUE_AND_GRAD : SKL_CALL_VALUE;
        p.split_f32 = u->split, out.value = &value;
        if (u->grads)
            out.s.a = nowhere(SKL_F32, u->linear, 4, u->rows, u->dim_s);
        if (u->saves)
            out.m_s = skl_vector(SKL_F32, (const void *)((uintptr_t)6 << 42), u->rows);
        for (int isa = 0; isa < 2; isa++) {
            p.isa = isa ? SKL_ISA_AMX : SKL_ISA_AVX2;
            if (!skl_isa_available((enum skl_isa)p.isa))
                continue;
            test_context("%s, %s", u->name, skl_isa_name((enum skl_isa)p.isa));
            CHECK_STATUS(skl_check(call, &p, NULL, &out, NULL, &w), SKL_OK);
            CHECK_STATUS(skl_make_plan(call, &w, &plan), SKL_OK);
            int taken = plan.products[0] == plan.kernels->split && plan.kernels->split;
            CHECK(plan.products[0] == plan.products[1], "the sides have different products");
            CHECK(taken == (isa && u->taken), "%s", taken ? "taken" : "not taken");
        }
    }
}

/* --------------------------------------------------------------------------------------------------- whole calls --- */

/* Values and LSEs of a call, and the row's losses, bit by bit. */
static void run(struct kit_fixture *f, int split, int threads, float *rows)
{
    int64_t n = kit_count(&f->out[KIT_LOSS].t);
    f->p.split_f32 = split, f->p.threads = threads;
    struct skl_outputs out = kit_outputs(f, 1, 0);
    CHECK_STATUS(skl_value(&f->p, &out), SKL_OK);
    for (int64_t i = 0; i < n; i++) {
        rows[i] = (float)kit_get(&f->out[KIT_LOSS].t, i);
        rows[n + i] = (float)kit_get(&f->out[KIT_LSE_S].t, i);
        rows[2 * n + i] = (float)kit_get(&f->out[KIT_LSE_T].t, i);
    }
}

/* The default where it applies: results of f32, not those of FMAs, the same for any number of threads, and in a call that
 * saves m_s for a backward, too. Some rows and columns are odd. */
static void by_default(void)
{
    enum { N = 512, V = 100, D = 1024 };
    struct kit_case c = kit_linear_case(N, V, D);
    struct kit_fixture f;
    static float split[3 * N], again[3 * N], fma[3 * N], m[N];
    c.grads = 0, c.dim[T] = D + 40, c.quick = 1;
    test_build(&f, &c);
    f.p.isa = SKL_ISA_AMX;
    for (int64_t d = 0; d < D; d++) {
        kit_set(&f.in[KIT_INPUT_A_S].t, 5 * D + d, 0x1p-60 * kit_get(&f.in[KIT_INPUT_A_S].t, 5 * D + d));
        kit_set(&f.in[KIT_INPUT_B_S].t, 7 * D + d, 0x1p-50 * kit_get(&f.in[KIT_INPUT_B_S].t, 7 * D + d));
    }
    kit_expect(&f);
    test_context("by default");
    run(&f, SKL_SPLIT_WHERE_FASTER, 1, split);
    struct skl_outputs out = kit_asked(&f, 1, 0);
    test_compare(&f, &out, "value");
    for (int threads = 2; threads < 6; threads++) {
        run(&f, SKL_SPLIT_WHERE_FASTER, threads, again);
        CHECK(!memcmp(split, again, sizeof split), "%d threads change bits", threads);
    }
    run(&f, SKL_SPLIT_ALWAYS, 2, again);
    CHECK(!memcmp(split, again, sizeof split), "not taken by default");
    run(&f, SKL_SPLIT_NEVER, 1, fma);
    CHECK(memcmp(split, fma, sizeof split), "not switched off");
    CHECK(!memcmp(split + N + 5, fma + N + 5, 4), "the LSE of a row that is odd is not FMA's");
    f.p.split_f32 = SKL_SPLIT_WHERE_FASTER, out = kit_outputs(&f, 1, 0), out.m_s = skl_vector(SKL_F32, m, N);
    CHECK_STATUS(skl_value(&f.p, &out), SKL_OK);
    long different = 0;
    for (int64_t i = 0; i < N; i++)
        different += (float)kit_get(&f.out[KIT_LOSS].t, i) != split[i] ||
                     (float)kit_get(&f.out[KIT_LSE_S].t, i) != split[N + i];
    CHECK(different == 0, "what is saved has other bits: %ld rows", different);
    test_destroy(&f);
}

/* Gradients by default: as good as the reference asks, other bits than FMAs', and the same for any number of threads, which
 * cut da differently. */
static void gradients_by_default(void)
{
    enum { N = 512, V = 230, D = 1056, NUMBERS = N * D + V * D };
    struct kit_case c = kit_linear_case(N, V, D);
    struct kit_fixture f;
    float *first = malloc(NUMBERS * sizeof *first);
    c.quick = 1;
    test_build(&f, &c);
    f.p.isa = SKL_ISA_AMX;
    kit_expect(&f);
    for (int way = 0; way < 6; way++) { /* threads, or FMAs */
        struct skl_outputs out = kit_outputs(&f, 1, KIT_GRAD_ALL);
        long different = 0;
        f.p.threads = way < 5 ? way + 1 : 2, f.p.split_f32 = way < 5 ? SKL_SPLIT_WHERE_FASTER : SKL_SPLIT_NEVER;
        test_context("gradients by default, way %d", way);
        CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_OK);
        for (int64_t i = 0; i < NUMBERS; i++) {
            float x = (float)(i < N * D ? kit_get(&f.out[KIT_A_S].t, i) : kit_get(&f.out[KIT_B_S].t, i - N * D));
            different += way && x != first[i];
            first[i] = way ? first[i] : x;
        }
        test_compare(&f, &out, "gradients");
        CHECK((different == 0) == (way < 5), "%ld numbers differ from those of one thread", different);
    }
    free(first);
    test_destroy(&f);
}

/* A loss is exactly 0 where a row and all columns are the same on both sides, even if others are odd on one of them. */
static void exact_zeros(void)
{
    struct kit_case c = kit_linear_case(70, 230, 300);
    struct kit_fixture f;
    test_build(&f, &c);
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < kit_count(&f.in[k].t); i++) kit_set(&f.in[3 + k].t, i, kit_get(&f.in[k].t, i));
    for (int64_t d = 0; d < 300; d++) {
        kit_set(&f.in[KIT_INPUT_A_S].t, 40 * 300 + d, 0x1p-70 * kit_get(&f.in[KIT_INPUT_A_S].t, 40 * 300 + d));
        for (int side = 0; side < 2; side++) kit_set(&f.in[3 * side + 1].t, 100 * 300 + d, 0x1p-45);
    }
    kit_set(&f.in[KIT_INPUT_A_S].t, 3 * 300, 0x1p50);
    f.p.isa = SKL_ISA_AMX, f.p.split_f32 = SKL_SPLIT_ALWAYS;
    kit_expect(&f);
    struct skl_outputs out = kit_outputs(&f, 1, KIT_GRAD_ALL);
    test_context("exact zeros");
    CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_OK);
    for (int64_t i = 0; i < 70; i++) {
        double loss = kit_get(&f.out[KIT_LOSS].t, i), most = 0;
        for (int64_t d = 0; d < 300; d++) most = fmax(most, fabs(kit_get(&f.out[KIT_A_S].t, i * 300 + d)));
        if (i == 3 || i == 40)
            CHECK(loss > 0, "row %d: the loss is %g", (int)i, loss);
        else
            CHECK(loss == 0 && most == 0, "row %d: loss %g, gradient %g", (int)i, loss, most);
    }
    test_destroy(&f);
}

/* Operands up to the ends of f32, whose products are ordinary: the results of FMAs, bit by bit, where all is odd. */
static void far_from_one(void)
{
    static const double ups[] = {0x1p100, 0x1p-100, 0x1p45, 0x1p-45, 0x1p30, 0x1p-30};
    for (int k = 0; k < COUNT(ups); k++) {
        struct kit_case c = kit_linear_case(50, 192, 100);
        struct kit_fixture f;
        static float split[150], fma[150];
        c.grads = 0;
        test_build(&f, &c);
        f.p.isa = SKL_ISA_AMX;
        for (int side = 0; side < 2; side++)
            for (int of = 0; of < 2; of++)
                for (int64_t i = 0; i < kit_count(&f.in[3 * side + of].t); i++)
                    kit_set(&f.in[3 * side + of].t, i, kit_get(&f.in[3 * side + of].t, i) * (of ? 1 / ups[k] : ups[k]));
        kit_expect(&f);
        test_context("operands times %g", ups[k]);
        run(&f, SKL_SPLIT_NEVER, 1, fma);
        run(&f, SKL_SPLIT_ALWAYS, 1, split);
        struct skl_outputs out = kit_asked(&f, 1, 0);
        test_compare(&f, &out, "value");
        CHECK((memcmp(split, fma, sizeof split) == 0) == (k < 4), "%s", k < 4 ? "not FMA's bits" : "taken for odd");
        test_destroy(&f);
    }
}

/* Every way against the reference: wide and narrow, with what a call can have beside its products. */
static void every_way(void)
{
    for (int k = 0; k < 8; k++) {
        struct kit_case c = k % 2 ? kit_linear_case(70, 300, k > 4 ? 1030 : 300) : kit_attention_case(70, 300, 72);
        struct kit_fixture f;
        c.divergence = k % 4, c.causal = k == 2, c.skip_below = k > 3 ? 0x1p-24 : 0, c.ranges = k == 4 || k == 5;
        c.scale[S] = k == 3 ? -0.05 : 0, c.bias[S] = k % 2 ? 1 : 0, c.softcap[T] = k == 5 ? 20 : 0, c.threads = 2;
        c.weights = k == 6 ? KIT_SOME_ZERO : KIT_UNWEIGHTED;
        test_build(&f, &c);
        f.p.isa = SKL_ISA_AMX, f.p.split_f32 = SKL_SPLIT_ALWAYS;
        kit_expect(&f);
        test_context("every way, case %d", k);
        for (int way = 0; way < KIT_WAYS; way++)
            if (way != KIT_SLICES || kit_in_slices(&c))
                test_run(&f, (enum kit_way)way);
        test_destroy(&f);
    }
}

int main(void)
{
    test_begin("test_split");
    const struct skl_kernels *best = skl_kernels_for(SKL_ISA_AMX), *stand_in = &skl_kernels_emulated_amx;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        accuracy(stand_in, best != stand_in ? best : NULL);
        odd_ones(stand_in, best != stand_in ? best : NULL);
    }
    who_takes_it();
    if (best) {
        by_default();
        gradients_by_default();
        exact_zeros();
        far_from_one();
        every_way();
    }
    return test_end();
}
