/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans for machines that are not here: nothing that a sum depends on changes with the number of threads, many threads
 * have something to do, and memory stays within the limit.
 */
#include "../src/cpu/phases.h"
#include "test.h"

/* Efficiency on other numbers of threads; and what units lose that take 32 columns of bf16 at once: 667 tiles of 192 on 128
 * threads, where others have 762 of 168. */
static const double USUAL = 0.85, WIDE_STEPS = 0.03;

enum { ALL = -2 };

struct shape {
    const char *name;
    int linear, grads; /* 1: of both operands, 2: of a alone */
    int64_t heads, rows, cols, dim;
    int64_t left; /* window_left of a causal call, -1: no limit; ALL: not causal */
    double least; /* efficiency on 128 threads */
};

static const struct shape shapes[] = {
    {"16 heads x 8192", 0, 0, 16, 8192, 8192, 128, ALL, 0.90},
    {"16 heads x 8192, gradient", 0, 1, 16, 8192, 8192, 128, ALL, 0.90},
    {"one head x 32768", 0, 0, 1, 32768, 32768, 128, ALL, 0.90},
    {"one head x 32768, gradient", 0, 1, 1, 32768, 32768, 128, ALL, 0.90},
    {"one head x 8192, gradient of the queries", 0, 2, 1, 8192, 8192, 128, ALL, 0.90},
    {"linear 4096 x 128000", 1, 0, 1, 4096, 128000, 4096, ALL, 0.90},
    {"linear 4096 x 128000, gradient", 1, 1, 1, 4096, 128000, 4096, ALL, 0.90},
    {"linear 8192 x 128000, dim 2048, gradient", 1, 1, 1, 8192, 128000, 2048, ALL, 0.85},
    {"16 heads x 8192, causal", 0, 0, 16, 8192, 8192, 128, -1, 0.90},
    {"16 heads x 8192, causal, gradient", 0, 1, 16, 8192, 8192, 128, -1, 0.90},
    {"16 heads x 8192, window of 1024", 0, 0, 16, 8192, 8192, 128, 1024, 0.80},
    {"16 heads x 8192, window of 1024, gradient", 0, 1, 16, 8192, 8192, 128, 1024, 0.76},
    {"32 heads x 4096, gradient", 0, 1, 32, 4096, 4096, 128, ALL, 0.82},
    {"one head x 32768, causal", 0, 0, 1, 32768, 32768, 128, -1, 0.90},
    {"384 short heads, gradient", 0, 1, 384, 120, 120, 64, ALL, 0.90},
    {"one head x 4096, gradient", 0, 1, 1, 4096, 4096, 64, ALL, 0},
    {"3 heads x 700, gradient", 0, 1, 3, 700, 500, 100, ALL, 0},
    {"linear 300 x 5000, gradient", 1, 1, 1, 300, 5000, 700, ALL, 0},
};

/* An address that nobody reads. */
static struct skl_tensor nowhere(const struct shape *s, int dtype, int k, int64_t n)
{
    const void *at = (const void *)((uintptr_t)(k + 1) << 42);
    return s->linear ? skl_matrix(dtype, at, n, s->dim) : skl_heads(dtype, at, 1, s->heads, n, s->dim);
}

static void make(const struct shape *s, int dtype, int threads, size_t limit, struct skl_work *w, struct skl_plan *plan)
{
    struct skl_tensor q_s = nowhere(s, dtype, 0, s->rows), k_s = nowhere(s, dtype, 1, s->cols),
                      q_t = nowhere(s, dtype, 2, s->rows), k_t = nowhere(s, dtype, 3, s->cols);
    struct skl_problem p = s->linear ? skl_linear(q_s, k_s, q_t, k_t) : skl_attention(q_s, k_s, q_t, k_t);
    struct skl_outputs out = skl_no_outputs();
    double value;
    enum skl_call call = s->grads ? SKL_CALL_VALUE_AND_GRAD : SKL_CALL_VALUE;
    p.causal = s->left != ALL, p.window_left = s->left == ALL ? -1 : s->left;
    p.threads = threads, p.workspace_limit = limit, out.value = &value;
    if (s->grads)
        out.s.a = nowhere(s, SKL_F32, 4, s->rows);
    if (s->grads == 1)
        out.s.b = nowhere(s, SKL_F32, 5, s->cols);
    CHECK_STATUS(skl_check(call, &p, NULL, &out, NULL, w), SKL_OK);
    CHECK_STATUS(skl_make_plan(call, w, plan), SKL_OK);
}

/* All that decides the order of a sum. How many blocks are at once does, where it decides how finely they are cut. Whether
 * scores that are pushed beside their products are kept or made again does not (test_beside). */
static void same_sums(const struct skl_plan *a, const struct skl_plan *b)
{
    CHECK(a->kernels == b->kernels && a->bk == b->bk && a->tiles == b->tiles && a->chunks == b->chunks &&
              a->tasks == b->tasks && a->block_rows == b->block_rows && a->keep == b->keep &&
              (a->by_tile || a->alone == b->alone) && a->group == b->group,
          "a sum depends on the number of threads");
    CHECK((a->kept_tiles == b->kept_tiles && a->recompute == b->recompute) || (a->by_tile && a->beside && b->beside),
          "whether scores are kept depends on the number of threads");
    CHECK(a->by_tile || (a->blocks == b->blocks && a->wave_tiles == b->wave_tiles), "%d and %d blocks at once",
          a->blocks, b->blocks);
}

/* A shape planned for any number of threads; limited: with less memory than it would take. */
static void threads_of(const struct shape *s, int dtype, int limited)
{
    static const int counts[] = {1, 2, 3, 16, 32, 48, 64, 96, 128, 500};
    struct skl_work w;
    struct skl_plan one, many;
    make(s, dtype, 1, 0, &w, &one);
    size_t limit = limited ? one.bytes * 3 / 4 : 0;
    make(s, dtype, 1, limit, &w, &one);
    for (int n = 0; n < COUNT(counts); n++) {
        struct skl_phase phases[SKL_PHASES_MAX];
        make(s, dtype, counts[n], limit, &w, &many);
        test_context("%s, %s, %d threads%s", s->name, dtype == SKL_F32 ? "f32" : "bf16", counts[n],
                     limited ? ", limited" : "");
        same_sums(&one, &many);
        CHECK(!limited || many.bytes <= limit, "%zu bytes of %zu", many.bytes, limit);
        int n_phases = skl_count_phases(&w, &many, phases);
        double all = skl_efficiency(&many, phases, n_phases);
        for (int i = 0; i < n_phases; i++) {
            double e = skl_efficiency(&many, &phases[i], 1);
            CHECK(e > 0 && e <= 1 + 1e-9 && phases[i].work > 0 && phases[i].tasks > 0, "%s: %g of %lld tasks",
                  phases[i].name, e, (long long)phases[i].tasks);
        }
        CHECK(many.threads > 1 || fabs(all - 1) <= 1e-9, "one thread alone: %g", all);
        if (!limited && s->least > 0) {
            int wide = dtype == SKL_BF16 && many.products[1]->step > 0;
            double least = counts[n] < 128 ? fmin(USUAL, s->least) : s->least - (wide ? WIDE_STEPS : 0);
            CHECK(many.threads == counts[n], "%d threads of %d", many.threads, counts[n]);
            CHECK(counts[n] > 128 || all >= least, "efficiency %.3f below %.2f", all, least);
        }
    }
}

int main(void)
{
    test_begin("test_plan");
    for (int k = 0; k < COUNT(shapes); k++)
        for (int limited = 0; limited < 2; limited++)
            threads_of(&shapes[k], SKL_F32, limited), threads_of(&shapes[k], SKL_BF16, limited);
    return test_end();
}
