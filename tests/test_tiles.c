/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels for tiles of bf16 (AMX): on a machine that has them the real ones and the stand-in give the same bits; on
 * any machine calls leave the caller's tiles as they were, and keep the promises that do not depend on who multiplies.
 * CTest runs it with STREAMKL_ISA=amx-emulated too, where the stand-in is the best set.
 */
#include "../src/cpu/kernels.h"
#include "../src/half.h"
#include "cases.h"
#include "tile_user_table.h"

#include <float.h>

/* -------------------------------------------------------------------------------------------- product by product --- */

enum { ROWS = 64, PANELS = 2, DIM_MAX = 600 };

/* What a table makes of the same operands. */
struct made {
    float y[PANELS][SKL_BK][32], da[PANELS][DIM_MAX + 32][32], db[SKL_BK][DIM_MAX], listed[2][DIM_MAX];
};

static char *room(int64_t bytes)
{
    return aligned_alloc(SKL_ALIGN, (size_t)(bytes + SKL_ALIGN) / SKL_ALIGN * SKL_ALIGN);
}

static void multiply(const struct skl_products *p, int n, int dim, const uint16_t *a, const uint16_t *b,
                     const float *dz, struct made *m)
{
    char *panels = room(PANELS * p->panel_bytes(dim)), *block = room(p->block_bytes(dim, ROWS));
    char *columns = room(p->column_bytes);
    float line[DIM_MAX], parts[PANELS * SKL_BK * 32];
    unsigned char live[PANELS][SKL_STRIPS_MAX];
    struct skl_unit_state callers;
    struct skl_soon soon = {0};
    memset(m, 0, sizeof *m), memset(live, 1, sizeof live);
    for (int r = 0; r < ROWS; r++) {
        for (int d = 0; d < dim; d++) line[d] = skl_from_bf16(a[r * dim + d]);
        p->pack_row(dim, line, r % 2 ? -1 : 1, r % 32, panels + r / 32 * p->panel_bytes(dim));
        p->pack_block_row(dim, line, r, ROWS, block);
    }
    memcpy(parts, dz, sizeof parts);
    p->enter(&callers);
    for (int panel = 0; panel < PANELS; panel++) {
        for (int d0 = 0; d0 < dim; d0 += p->kc) {
            int k = dim - d0 < p->kc ? dim - d0 : p->kc, first = panel ? 24 : 0, rest = (n - first + 7) / 8 * 8;
            const char *rows = panels + panel * p->panel_bytes(dim);
            p->logits(n - first, k, p->columns(n, k, b + d0, SKL_BF16, dim, columns), first, rows, d0, soon, d0 > 0,
                      m->y[panel][first]);
            if (!d0)
                p->split(first, first + rest, parts + panel * SKL_BK * 32);
            p->grad_rows(rest, k, live[panel], p->columns_back(n, k, b + d0, SKL_BF16, dim, panel, columns), first,
                         parts + (panel * SKL_BK + first) * 32, soon, 0, m->da[panel][d0]);
        }
    }
    for (int d0 = 0; d0 < dim; d0 += 32)
        p->grad_columns(n, PANELS, live[0], parts, block, ROWS, d0, soon, dim - d0 < 32 ? dim - d0 : 32, m->db[0] + d0,
                        DIM_MAX);
    p->leave(&callers);
    static const uint16_t at[] = {3, 40, 20};
    p->add_rows(3, at, dz, block, ROWS, dim, m->listed[0]);
    if (dim <= p->kc)
        p->add_columns(3, at, dz, p->columns(n, dim, b, SKL_BF16, dim, columns), dim, m->listed[1]);
    free(panels), free(block), free(columns);
}

static uint16_t number(int k)
{
    static const uint16_t odd[] = {0x0001, 0x8040, 0x7f80, 0x7fc0,
                                   0x0080, 0x7f7f, 0x8000}; /* subnormal, inf, NaN, ... */
    if (k > 0 && test_between(0, 400) == 0)
        return odd[test_between(0, 6)];
    return skl_to_bf16((float)test_between(-4000, 4000) / 1000);
}

/* Sums of the same products in double. */
static void check_sums(int n, int dim, const uint16_t *a, const uint16_t *b, const float *dz, const struct made *m)
{
    double worst[3] = {0}, err;
    for (int j = 0; j < n; j++)
        for (int r = 0; r < ROWS; r++) {
            double sum = 0, size = 0;
            for (int d = 0; d < dim; d++) {
                double x = (r % 2 ? -1 : 1) * (double)skl_from_bf16(a[r * dim + d]) *
                           (double)skl_from_bf16(b[j * dim + d]);
                sum += x, size += fabs(x);
            }
            err = fabs(sum - (double)m->y[r / 32][j][r % 32]) / (size + 1e-30);
            if ((r < 32 || j >= 24) && !(err <= worst[0]))
                worst[0] = err;
        }
    for (int d = 0; d < dim; d++) {
        for (int r = 0; r < ROWS; r++) {
            double sum = 0, size = 0;
            for (int j = r < 32 ? 0 : 24; j < n; j++) {
                double x = (double)dz[(r / 32 * SKL_BK + j) * 32 + r % 32] * (double)skl_from_bf16(b[j * dim + d]);
                sum += x, size += fabs(x);
            }
            err = fabs(sum - (double)m->da[r / 32][d][r % 32]) / (size + 1e-30);
            if (!(err <= worst[1]))
                worst[1] = err;
        }
        for (int j = 0; j < n; j++) {
            double sum = 0, size = 0;
            for (int r = 0; r < (j < 24 ? 32 : ROWS); r++) {
                double x = (double)dz[(r / 32 * SKL_BK + j) * 32 + r % 32] * (double)skl_from_bf16(a[r * dim + d]);
                sum += x, size += fabs(x);
            }
            err = fabs(sum - (double)m->db[j][d]) / (size + 1e-30);
            if (!(err <= worst[2]))
                worst[2] = err;
        }
    }
    CHECK(worst[0] <= 2e-6, "logits are off by %g", worst[0]);
    CHECK(worst[1] <= 8e-6, "da is off by %g", worst[1]);
    CHECK(worst[2] <= 8e-6, "db is off by %g", worst[2]);
}

/* The same bits, or NaN in both. */
static void check_equal(const struct made *x, const struct made *y)
{
    const float *p = (const float *)x, *q = (const float *)y;
    long different = 0, at = -1;
    for (size_t i = 0; i < sizeof *x / sizeof *p; i++)
        if (memcmp(&p[i], &q[i], 4) != 0 && !(isnan(p[i]) && isnan(q[i])))
            different++, at = (long)i;
    CHECK(different == 0, "%ld numbers differ, the last at %ld: %a and %a", different, at, at < 0 ? 0.0 : (double)p[at],
          at < 0 ? 0.0 : (double)q[at]);
}

static void products(const struct skl_kernels *real, const struct skl_kernels *stand_in)
{
    static const int shapes[][2] = {{192, 64}, {192, 544}, {100, 40}, {31, 32}, {191, 513}, {56, 7}};
    static struct made ours, theirs;
    for (int odd = 0; odd < 2; odd++)
        for (int rounded = 0; rounded < 2; rounded++)
            for (int k = 0; k < COUNT(shapes); k++) {
                int n = shapes[k][0], dim = shapes[k][1];
                uint16_t *a = malloc(2 * (size_t)(ROWS * dim)), *b = malloc(2 * (size_t)(n * dim));
                float *dz = calloc(PANELS * SKL_BK * 32, sizeof *dz);
                for (int i = 0; i < ROWS * dim; i++) a[i] = number(odd);
                for (int i = 0; i < n * dim; i++) b[i] = number(odd);
                for (int panel = 0; panel < PANELS; panel++)
                    for (int i = 0; i < n * 32; i++)
                        dz[panel * SKL_BK * 32 + i] = odd && i % 777 == 0
                                                          ? (float)(i % 2   ? INFINITY
                                                                    : i % 4 ? NAN
                                                                            : FLT_MAX)
                                                          : (float)test_between(-1000000, 1000000) * 0x1p-25f;
                test_context("n %d, dim %d, %s, %s", n, dim, rounded ? "rounded" : "two parts",
                             odd ? "odd" : "ordinary");
                multiply(rounded ? stand_in->rounded : stand_in->products[SKL_BF16], n, dim, a, b, dz, &ours);
                if (!odd && !rounded)
                    check_sums(n, dim, a, b, dz, &ours);
                if (real) {
                    multiply(rounded ? real->rounded : real->products[SKL_BF16], n, dim, a, b, dz, &theirs);
                    check_equal(&theirs, &ours);
                }
                free(a), free(b), free(dz);
            }
    if (!real)
        printf("skipped: no AMX here, or no permission: the stand-in was compared with nothing but double precision\n");
}

/* ------------------------------------------------------------------------------------------ other people's tiles --- */

static const struct tile_user *user;
static int found_in_callback[3];

static int look(void *data, double fraction)
{
    (void)data, (void)fraction;
    found_in_callback[user->find()]++;
    return 0;
}

/* Calls of ours and tile code of its own, turn by turn on one thread. */
static void side_by_side(enum skl_isa isa)
{
    uint16_t a[16 * 32], b[16 * 32];
    float first[256], again[256];
    struct kit_case c = kit_attention_case(70, 300, 72);
    struct kit_fixture f;
    c.dtype[S] = c.dtype[T] = SKL_BF16;
    test_build(&f, &c);
    f.p.isa = isa, f.p.threads = 3, f.p.progress = look;
    for (int i = 0; i < 16 * 32; i++) a[i] = number(0), b[i] = number(0);
    struct skl_outputs out = kit_outputs(&f, 1, KIT_GRAD_ALL);
    test_context("%s", "side by side");

    user->release();
    memset(found_in_callback, 0, sizeof found_in_callback);
    CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_OK);
    CHECK(user->find() == NO_TILES, "a call left tiles behind: %d", user->find());
    CHECK(found_in_callback[NO_TILES] > 0 && !found_in_callback[USERS_TILES] && !found_in_callback[OTHER_TILES],
          "the callback found tiles that are not its own %d times", found_in_callback[OTHER_TILES]);

    user->configure();
    user->multiply(a, b, first);
    memset(found_in_callback, 0, sizeof found_in_callback);
    for (int turn = 0; turn < 3; turn++) {
        CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_OK);
        CHECK(user->find() == USERS_TILES, "turn %d: a call changed the caller's tiles: %d", turn, user->find());
        user->multiply(a, b, again);
        CHECK(!memcmp(first, again, sizeof first), "turn %d: the caller's product changed", turn);
    }
    CHECK(found_in_callback[USERS_TILES] > 0 && !found_in_callback[NO_TILES] && !found_in_callback[OTHER_TILES],
          "the callback did not find the caller's tiles %d times", found_in_callback[OTHER_TILES]);
    user->release();
    test_destroy(&f);
}

/* ------------------------------------------------------------------------------------------------------ promises --- */

/* The same bits for any number of threads, and with dz rounded an error of no more than that. */
static void threads_and_rounding(enum skl_isa isa)
{
    for (int k = 0; k < 4; k++) {
        struct kit_case c = k % 2 ? kit_linear_case(150, 700, k > 1 ? 530 : 45) : kit_attention_case(150, 700, 72);
        struct kit_fixture f;
        c.dtype[S] = c.dtype[T] = SKL_BF16, c.causal = k == 2, c.divergence = k;
        test_build(&f, &c);
        f.p.isa = isa, f.p.round_dz = k > 1;
        kit_expect(&f);
        test_context("threads, case %d", k);
        int64_t n = kit_count(&f.out[KIT_B_S].t);
        float *one = malloc((size_t)n * sizeof *one);
        for (int threads = 1; threads < 6; threads += 2) {
            f.p.threads = threads;
            struct skl_outputs out = kit_outputs(&f, 1, KIT_GRAD_ALL);
            CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_OK);
            long different = 0;
            for (int64_t i = 0; i < n; i++) {
                float x = (float)kit_get(&f.out[KIT_B_S].t, i);
                one[i] = threads == 1 ? x : one[i];
                different += x != one[i];
            }
            CHECK(different == 0, "%d threads change %ld numbers of db", threads, different);
            test_compare(&f, &out, "value and grad");
        }
        free(one);
        test_destroy(&f);
    }
}

/* round_dz does what it says: gradients differ, by about 1e-3 of their row. Elsewhere it changes nothing. */
static void rounding_counts(enum skl_isa isa)
{
    for (int dtype = SKL_F32; dtype <= SKL_BF16; dtype++) {
        struct kit_case c = kit_attention_case(64, 300, 64);
        struct kit_fixture f;
        double most = 0, sum = 0, square = 0;
        c.dtype[S] = c.dtype[T] = dtype;
        kit_build(&f, &c, &test_memory, &test_numbers);
        kit_make_room(&f);
        f.p.isa = isa;
        struct skl_outputs out = kit_outputs(&f, 1, KIT_GRAD_ALL);
        CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_OK);
        int64_t n = kit_count(&f.out[KIT_A_S].t);
        double *whole = malloc((size_t)n * sizeof *whole);
        for (int64_t i = 0; i < n; i++) whole[i] = kit_get(&f.out[KIT_A_S].t, i);
        f.p.round_dz = 1, out = kit_outputs(&f, 1, KIT_GRAD_ALL);
        CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_OK);
        for (int64_t i = 0; i < n; i++) {
            double off = kit_get(&f.out[KIT_A_S].t, i) - whole[i];
            most = fmax(most, fabs(off)), sum += off * off, square += whole[i] * whole[i];
        }
        test_context("round_dz, dtype %d", dtype);
        if (dtype == SKL_BF16 && (isa == SKL_ISA_AMX || isa == SKL_ISA_AVX512BF16))
            CHECK(sqrt(sum / square) > 1e-5 && sqrt(sum / square) < 4e-3, "rounding dz moves da by %g",
                  sqrt(sum / square));
        else
            CHECK(most == 0, "round_dz changes da by %g", most);
        free(whole);
        kit_destroy(&f);
    }
}

/* Units take 32 columns at once: what lies beside a range that ends, or begins, within them may hold anything. */
static void nan_beside_ranges(enum skl_isa isa)
{
    enum { N = 64, M = 192, D = 32, BEGIN = 24, END = 136 };
    for (int k = 0; k < 2; k++) {
        struct kit_case c = kit_attention_case(N, M, D);
        struct kit_fixture f;
        int32_t begin[N], end[N];
        c.dtype[S] = c.dtype[T] = SKL_BF16;
        kit_build(&f, &c, &test_memory, &test_numbers);
        kit_make_room(&f);
        for (int64_t i = 0; i < N; i++) begin[i] = BEGIN, end[i] = END;
        for (int64_t j = 0; j < M; j++)
            for (int64_t d = 0; d < D && (j < BEGIN || j >= END); d++)
                kit_set(&f.p.s.b, j * D + d, NAN), kit_set(&f.p.t.b, j * D + d, NAN);
        f.p.begin = skl_vector(SKL_I32, begin, N), f.p.end = skl_vector(SKL_I32, end, N);
        for (int i = 0; i < 2; i++) { /* [1, 1, N] */
            struct skl_tensor *t = i ? &f.p.end : &f.p.begin;
            t->ndim = 3, t->shape[2] = N, t->stride[2] = t->stride[0];
            t->shape[0] = t->shape[1] = 1, t->stride[0] = t->stride[1] = N * t->stride[2];
        }
        f.p.isa = isa, f.p.round_dz = k;
        struct skl_outputs out = kit_outputs(&f, 1, KIT_GRAD_ALL);
        CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_OK);
        long not_finite = 0;
        for (int result = KIT_A_S; result <= KIT_B_S; result++)
            for (int64_t i = 0; i < kit_count(&f.out[result].t); i++)
                not_finite += !isfinite(kit_get(&f.out[result].t, i));
        CHECK(not_finite == 0, "isa %d, round_dz %d: %ld entries of da and db are not finite", (int)isa, k, not_finite);
        kit_destroy(&f);
    }
}

int main(void)
{
    test_begin("test_tiles");
#ifdef __x86_64__
    const struct skl_kernels *best = skl_kernels_for(SKL_ISA_AMX), *real = NULL;
#ifdef TEST_AMX
    real = best && best != &skl_kernels_emulated_amx ? best : NULL;
    user = real ? &tile_user_amx : &tile_user_emulated;
#else
    user = &tile_user_emulated;
#endif
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        products(real, &skl_kernels_emulated_amx);
    if (best) {
        side_by_side(SKL_ISA_AMX);
        threads_and_rounding(SKL_ISA_AMX);
        rounding_counts(SKL_ISA_AMX);
        nan_beside_ranges(SKL_ISA_AMX);
    }
#endif
    if (skl_isa_available(SKL_ISA_AVX512BF16)) {
        threads_and_rounding(SKL_ISA_AVX512BF16);
        rounding_counts(SKL_ISA_AVX512BF16);
        nan_beside_ranges(SKL_ISA_AVX512BF16);
    }
    rounding_counts(SKL_ISA_BASELINE);
    return test_end();
}
