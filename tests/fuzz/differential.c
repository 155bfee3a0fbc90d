/* SPDX-License-Identifier: Apache-2.0
 *
 * Hostile random calls against an oracle in double: independent of the tests' helpers and of the reference.
 *
 * usage: fuzz_differential [--calls N] [--seed S] [--only K]
 *
 * --only K repeats the K-th call of the seed alone and says what it is. Exit code 1 if any call failed. 2000 calls by
 * default, 300 under STREAMKL_TEST_QUICK, which sanitizers and emulators set.
 */
#include "ways.h"

#include <stdio.h>
#include <stdlib.h>

struct counts {
    int64_t calls[KINDS][PATHS], failed[KINDS][PATHS];
    int64_t of_use[2][3], of_isa[SKL_ISA_NEONBF16 + 1], of_tail[4][2];
    int64_t compared, unbounded, failures;
    double worst[KINDS][RATIOS];
};

static void count(struct counts *t, const struct call *c, const struct judge *j)
{
    t->calls[c->kind][c->path]++;
    t->failed[c->kind][c->path] += j->failures > 0;
    if (c->p.listed)
        t->of_tail[c->listed.tail][c->p.divergence]++;
    else
        t->of_use[c->p.use][c->p.divergence]++;
    t->of_isa[c->p.isa]++;
    t->compared += j->compared, t->unbounded += j->unbounded;
    t->failures += j->failures > 0;
    for (int k = 0; k < RATIOS; k++)
        if (j->worst[k] > t->worst[c->kind][k])
            t->worst[c->kind][k] = j->worst[k];
}

static void print_counts(const struct counts *t, int64_t calls, uint64_t seed)
{
    printf("\n%-12s", "calls");
    for (int p = 0; p < PATHS; p++) printf(" %18s", path_names[p]);
    printf("   worst error / bound: value, rows, gradients\n");
    for (int k = 0; k < KINDS; k++) {
        printf("%-12s", kind_names[k]);
        for (int p = 0; p < PATHS; p++) {
            char cell[64];
            if (t->failed[k][p])
                snprintf(cell, sizeof cell, "%lld, %lld FAILED", (long long)t->calls[k][p], (long long)t->failed[k][p]);
            else
                snprintf(cell, sizeof cell, "%lld", (long long)t->calls[k][p]);
            printf(" %18s", cell);
        }
        printf("   %.2f %.2f %.2f\n", t->worst[k][0], t->worst[k][1], t->worst[k][2]);
    }
    printf("attention: forward %lld, reverse %lld, jsd %lld; linear: forward %lld, reverse %lld, jsd %lld\n",
           (long long)t->of_use[0][0], (long long)t->of_use[0][1], (long long)t->of_use[0][2],
           (long long)t->of_use[1][0], (long long)t->of_use[1][1], (long long)t->of_use[1][2]);
    printf("listed teachers: bucket %lld, reverse %lld; renormalise %lld, reverse %lld; zero %lld; teacher %lld\n",
           (long long)t->of_tail[0][0], (long long)t->of_tail[0][1], (long long)t->of_tail[1][0],
           (long long)t->of_tail[1][1], (long long)t->of_tail[2][0], (long long)t->of_tail[3][0]);
    for (int i = 0; i <= SKL_ISA_NEONBF16; i++)
        if (t->of_isa[i])
            printf("%s %lld  ", skl_isa_name((enum skl_isa)i), (long long)t->of_isa[i]);
    printf("\n%lld numbers compared, %lld more had no bound (eager f32 would know nothing of them)\n",
           (long long)(t->compared - t->unbounded), (long long)t->unbounded);
    printf("fuzz_differential: seed %llu, %lld calls, %lld failed\n", (unsigned long long)seed, (long long)calls,
           (long long)t->failures);
}

static void one(struct counts *t, uint64_t seed, int64_t number, int tell)
{
    struct call c;
    struct judge j = {.call = &c};
    char text[1024];
    draw_call(&c, rng_of(seed, (uint64_t)number));
    draw_describe(&c, text, sizeof text);
    if (tell)
        printf("call %lld: %s\n", (long long)number, text);
    way_run(&c, &j);
    count(t, &c, &j);
    if (j.failures && (tell || t->failures <= 20)) {
        if (!tell)
            printf("FAILED: --seed %llu --only %lld: %s\n", (unsigned long long)seed, (long long)number, text);
        for (int i = 0; i < j.failures && i < 3; i++) printf("    %s\n", j.said[i]);
        printf("    %d failures in this call\n", j.failures);
    }
    draw_free(&c);
}

int main(int argc, char **argv)
{
    const char *quick = getenv("STREAMKL_TEST_QUICK");
    int64_t calls = quick && *quick != '0' ? 300 : 2000, only = -1;
    uint64_t seed = 1;
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--calls") && *value)
            calls = strtoll(value, NULL, 10);
        else if (!strcmp(argv[i], "--seed") && *value)
            seed = strtoull(value, NULL, 10);
        else if (!strcmp(argv[i], "--only") && *value)
            only = strtoll(value, NULL, 10);
        else
            return fprintf(stderr, "usage: fuzz_differential [--calls N] [--seed S] [--only K]\n"), 2;
    }
    struct counts *t = calloc(1, sizeof *t);
    if (!t)
        return 2;
    if (only >= 0)
        one(t, seed, only, 1);
    for (int64_t i = 0; only < 0 && i < calls; i++) {
        one(t, seed, i, 0);
        if ((i + 1) % 5000 == 0)
            printf("%lld of %lld calls, %lld failed\n", (long long)i + 1, (long long)calls, (long long)t->failures),
                fflush(stdout);
    }
    if (only < 0)
        print_counts(t, calls, seed);
    int failed = t->failures > 0;
    free(t);
    return failed;
}
