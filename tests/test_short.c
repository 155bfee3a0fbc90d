/* SPDX-License-Identifier: Apache-2.0
 *
 * Many short segments, which threads take whole, each its own; and windows, of which a block keeps only what it sees.
 * Against the reference in every way, the same bits for any number of threads, progress and cancelling; and the sum of
 * the rows' losses, which must not depend on the order in which they come.
 */
#include "../src/cpu/exact_sum.h"
#include "cases.h"

/* At least 16 groups of heads that share a gradient of b, with every other option. */
static struct kit_case short_case(void)
{
    struct kit_case c;
    do c = test_random_case();
    while (c.use != SKL_ATTENTION);
    c.key_heads[S] = test_between(1, 2), c.key_heads[T] = test_between(1, 2), c.heads = 2 * test_between(1, 2);
    c.batch = 16 + test_between(0, 3);
    c.rows = test_between(1, 70), c.cols = test_between(1, 90);
    if (c.packed)
        c.batch = 1, c.packed = 20, c.rows = test_between(100, 500), c.cols = test_between(100, 500);
    c.dim[S] = test_between(1, 40), c.dim[T] = test_between(1, 40);
    return c;
}

/* Rows of weight 0 in between make a block of rows see more columns than as many neighbours do. */
static struct kit_case window_case(void)
{
    struct kit_case c = kit_attention_case(test_between(300, 900), 0, test_between(1, 30));
    c.cols = c.rows + test_between(-100, 200);
    c.heads = test_between(1, 2), c.key_heads[S] = c.key_heads[T] = 1;
    c.left = test_between(0, 150), c.right = test_between(0, 60), c.causal = (int)test_between(0, 1);
    c.weights = (int)test_between(0, 2), c.own = (int)test_between(0, 1), c.dtype[S] = (int)test_between(0, 2);
    kit_set_divergence(&c, (int)test_between(0, 3));
    return c;
}

static void against_the_reference(void)
{
    for (int k = 0; k < test_cases(24, 4); k++) {
        struct kit_case c = k % 3 == 2 ? window_case() : short_case();
        test_context("case %d", k);
        if (test_all_ways(&c) > 0)
            printf("test_short: that was case %d of seed %llu\n", k, (unsigned long long)test_seed());
    }
}

/* ------------------------------------------------------------------------------------------------ progress --- */

struct told {
    int calls, stop_at;
    double last;
};

static int tell(void *data, double fraction)
{
    struct told *t = data;
    CHECK(fraction >= t->last && fraction <= 1, "progress %g after %g", fraction, t->last);
    t->last = fraction;
    return ++t->calls == t->stop_at;
}

static void progress(int64_t batch, int64_t heads, int64_t rows, int64_t cols, int stop_at)
{
    struct kit_case c = kit_attention_case(rows, cols, 16);
    struct kit_fixture f;
    c.batch = batch, c.heads = c.key_heads[S] = c.key_heads[T] = heads;
    test_build(&f, &c);
    for (int threads = 1; threads <= 3; threads++) {
        struct told all = {0, 0, 0}, some = {0, stop_at, 0};
        struct skl_outputs out = kit_outputs(&f, 1, KIT_GRAD_ALL);
        test_context("%d heads of %d rows, %d threads", (int)(batch * heads), (int)rows, threads);
        f.p.threads = threads, f.p.progress = tell, f.p.progress_data = &all;
        CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_OK);
        CHECK(all.calls > 0, "never told");
        f.p.progress_data = &some;
        if (threads == 1) { /* others may leave rank 0 too few tasks */
            CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_CANCELLED);
            CHECK(some.calls == some.stop_at, "%d calls after being asked to stop at %d", some.calls, some.stop_at);
        }
    }
    test_destroy(&f);
}

/* ---------------------------------------------------------------------------------------------------- sums --- */

static double sum_of(const double *x, int n, int step, int parts)
{
    static struct skl_exact_sum part[4];
    memset(part, 0, sizeof part);
    for (int k = 0, i = 0; k < n; k++, i = (i + step) % n) skl_sum_add(&part[k % parts], x[i]);
    for (int k = 1; k < parts; k++) skl_sum_merge(&part[0], &part[k]);
    return skl_sum_value(&part[0]);
}

static void sums(void)
{
    enum { N = 1009 }; /* a prime: every step visits all */
    static double x[N];
    test_context("sums");
    for (int round = 0; round < 50; round++) {
        long double sum = 0;
        for (int i = 0; i < N; i++) {
            x[i] = ldexp(test_normal(), (int)test_between(-round, round));
            sum += (long double)x[i];
        }
        double one = sum_of(x, N, 1, 1), other = sum_of(x, N, 1 + round * 13, 1 + round % 4);
        CHECK(memcmp(&one, &other, sizeof one) == 0, "%.17g and %.17g", one, other);
        double bound = 1e-15 * fabs((double)sum) + 1e-16 * N * ldexp(1, round);
        CHECK(fabs(one - (double)sum) <= bound, "%.17g instead of %.17Lg", one, sum);
    }
    static const double cancel[] = {1e308, 1.5, -1e308, 0x1p-1000, -1.5, -0x1p-1000, 3e-300};
    CHECK(sum_of(cancel, 7, 1, 1) == 3e-300, "%.17g is left", sum_of(cancel, 7, 1, 1));
    CHECK(sum_of(cancel, 7, 3, 3) == 3e-300, "%.17g is left", sum_of(cancel, 7, 3, 3));
    static const double negative[] = {-3, 1, -0.5}, odd[] = {1, INFINITY, -2};
    CHECK(sum_of(negative, 3, 1, 2) == -2.5, "%.17g", sum_of(negative, 3, 1, 2));
    CHECK(sum_of(odd, 3, 1, 2) == INFINITY, "%.17g", sum_of(odd, 3, 1, 2));
    struct skl_exact_sum carried = {{0}, 0, 0};
    carried.additions = SKL_SUM_CARRY - 1;
    for (int i = 0; i < 3; i++) skl_sum_add(&carried, -0.75);
    CHECK(carried.additions == 2 && skl_sum_value(&carried) == -2.25, "a carry on the way");
}

int main(void)
{
    test_begin("test_short");
    sums();
    progress(24, 2, 40, 50, 70);
    progress(1, 4, 700, 600, 30); /* long ones: a thread reports, and stops, inside of each */
    against_the_reference();
    return test_end();
}
