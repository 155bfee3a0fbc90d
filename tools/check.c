/* SPDX-License-Identifier: Apache-2.0
 *
 * streamkl check: the engine against the reference in double precision.
 */
#include "calls.h"
#include "clock.h"
#include "commands.h"
#include "device.h"
#include "kit/divergence.h"
#include "kit/listed.h"
#include "kit/topk.h"
#include "options.h"
#include "progress.h"

#include <math.h>
#include <stdio.h>

/* What runs it: an instruction set, or CUDA, which is counted as one more. */
enum { ISAS = SKL_ISA_NEONBF16 + 1, ON_CUDA = ISAS, UNITS };

static const char *unit_name(int unit)
{
    return unit == ON_CUDA ? "cuda" : skl_isa_name((enum skl_isa)unit);
}

struct group {
    int cases, failures;
    struct errors worst;
};

struct checker {
    struct group groups[UNITS][KIT_DIVERGENCE_COUNT][KIT_WAYS];
    struct kit_allowance allow;
    int runs, failures;
};

static void print_finding(const struct kit_fixture *f, int result, const struct kit_finding *x)
{
    const struct skl_tensor *t = &f->out[result].t;
    int64_t row = t->shape[t->ndim - 1];
    if (x->spilt)
        printf("       written outside of %s\n", kit_results[result].name);
    if (x->used > 1)
        printf("       %s[%lld, %lld] = %.9g, expected %.9g: off by %.3g times its bound\n", kit_results[result].name,
               (long long)(x->index / row), (long long)(x->index % row), x->got, x->want, x->used);
}

static void report_failure(const struct kit_fixture *f, int unit, enum kit_way way, const struct kit_outcome *o)
{
    char text[512];
    kit_describe(&f->c, text, sizeof text);
    printf("FAILED %s %s: %s\n", unit_name(unit), kit_way_names[way], text);
    if (o->status != SKL_OK) {
        printf("       %s: %s\n", skl_status_string(o->status), skl_last_error());
        return;
    }
    struct errors e = errors_of(o, &f->allow);
    printf("       errors: ");
    errors_print(stdout, &e);
    printf("\n");
    for (int k = 0; k < KIT_RESULTS; k++) print_finding(f, k, &o->of[k]);
}

static void check_way(struct checker *checker, struct kit_fixture *f, int unit, enum kit_way way)
{
    struct group *group = &checker->groups[unit][f->c.divergence][way];
    if (unit != ON_CUDA)
        f->p.isa = unit;
    struct kit_outcome o = kit_run(f, way);
    struct errors e = errors_of(&o, &f->allow);
    for (int k = 0; k < KIT_COLUMNS; k++)
        group->worst.of[k] = group->cases ? fmax(group->worst.of[k], e.of[k]) : e.of[k];
    group->cases++;
    checker->runs++;
    checker->allow = f->allow;
    if (!kit_right(&o)) {
        group->failures++;
        if (checker->failures++ < 10)
            report_failure(f, unit, way, &o);
    }
}

/* Does this unit run where the cases are, and is it asked for? */
static int unit_runs(int unit, int device, int only_isa)
{
    if (device == SKL_CUDA || unit == ON_CUDA)
        return device == SKL_CUDA && unit == ON_CUDA;
    return skl_isa_available((enum skl_isa)unit) && (only_isa == SKL_ISA_BEST || only_isa == unit);
}

static void check_one(struct checker *checker, const struct kit_case *c, int device, int only_isa, struct kit_random *r)
{
    struct kit_fixture f;
    kit_build(&f, c, memory_of(device), r);
    kit_expect(&f);
    for (int unit = SKL_ISA_BASELINE; unit < UNITS && kit_determined(&f.p); unit++) {
        for (int way = 0; unit_runs(unit, device, only_isa) && way < KIT_WAYS; way++)
            if (way != KIT_SLICES || kit_in_slices(c))
                check_way(checker, &f, unit, (enum kit_way)way);
    }
    kit_destroy(&f);
}

static void print_row(const struct group *g, int unit, int divergence, int way)
{
    printf("%-9s %-12s %-11s %5d ", unit_name(unit), kit_divergence_names[divergence], kit_way_names[way], g->cases);
    for (int k = 0; k < KIT_COLUMNS; k++) {
        if (g->worst.of[k] < 0)
            printf(" %10s", "-");
        else
            printf(" %10.1e", g->worst.of[k]);
    }
    printf("%s\n", g->failures ? "  FAILED" : "");
}

static void print_table(const struct checker *checker)
{
    printf("\n%-9s %-12s %-11s %5s ", "isa", "divergence", "way", "cases");
    for (int k = 0; k < KIT_COLUMNS; k++) printf(" %10s", kit_column_names[k]);
    printf("\n%40s ", "at most");
    for (int k = 0; k < KIT_COLUMNS; k++) printf(" %10.0e", error_at_most(&checker->allow, (enum kit_column)k));
    printf("\n");
    for (int unit = 0; unit < UNITS; unit++)
        for (int d = 0; d < KIT_DIVERGENCE_COUNT; d++)
            for (int way = 0; way < KIT_WAYS; way++)
                if (checker->groups[unit][d][way].cases > 0)
                    print_row(&checker->groups[unit][d][way], unit, d, way);
}

/* ---------------------------------------------------------------------------------------- listed teachers --- */

struct listed_group {
    int cases, failures;
    double used[KIT_LISTED_RESULTS];
};
static struct listed_group listed_groups[UNITS][KIT_LISTED_KINDS][KIT_LISTED_WAYS];

static void check_listed_way(struct checker *checker, struct kit_listed *f, int unit, int kind, int way)
{
    struct listed_group *group = &listed_groups[unit][kind][way];
    struct kit_listed_outcome o = kit_run_listed(f, (enum kit_listed_way)way);
    int right = kit_listed_right(&o);
    for (int k = 0; k < KIT_LISTED_RESULTS; k++) group->used[k] = fmax(group->used[k], o.used[k]);
    group->cases++, checker->runs++;
    group->failures += !right;
    if (!right && checker->failures++ < 10)
        printf("FAILED %s listed, %s, %s: %s\n", unit_name(unit), kit_listed_kind_names[kind],
               kit_listed_way_names[way], o.status ? skl_last_error() : "out of its bound");
}

static void check_listed(struct checker *checker, int64_t seed, int64_t cases, int device, int only_isa,
                         int64_t threads)
{
    for (int64_t n = 0; n < cases * KIT_LISTED_KINDS; n++) {
        struct kit_random r = {(uint64_t)seed * 1000033 + (uint64_t)n};
        int kind = (int)(n % KIT_LISTED_KINDS);
        struct kit_listed_case c = kit_random_listed(&r, kind);
        c.threads = threads ? (int)threads : c.threads;
        for (int unit = SKL_ISA_BASELINE; unit < UNITS; unit++) {
            struct kit_random same = r;
            if (!unit_runs(unit, device, only_isa))
                continue;
            c.isa = unit == ON_CUDA ? SKL_ISA_BEST : unit;
            struct kit_listed *f = kit_build_listed(&c, &same, memory_of(device)->device);
            for (int way = 0; way < KIT_LISTED_WAYS; way++) check_listed_way(checker, f, unit, kind, way);
            kit_destroy_listed(f);
        }
    }
}

static void print_listed(void)
{
    static const char *const names[KIT_LISTED_RESULTS] = {"loss", "value", "grad a", "grad b", "grad bias"};
    printf("\n%-9s %-20s %-11s %5s ", "isa", "listed teacher", "way", "cases");
    for (int k = 0; k < KIT_LISTED_RESULTS; k++) printf(" %10s", names[k]);
    printf("   worst, of its bound\n");
    for (int unit = 0; unit < UNITS; unit++)
        for (int kind = 0; kind < KIT_LISTED_KINDS; kind++)
            for (int way = 0; way < KIT_LISTED_WAYS; way++) {
                const struct listed_group *g = &listed_groups[unit][kind][way];
                if (!g->cases)
                    continue;
                printf("%-9s %-20s %-11s %5d ", unit_name(unit), kit_listed_kind_names[kind], kit_listed_way_names[way],
                       g->cases);
                for (int k = 0; k < KIT_LISTED_RESULTS; k++) printf(" %10.2g", g->used[k]);
                printf("%s\n", g->failures ? "  FAILED" : "");
            }
}

/* ------------------------------------------------------------------------------------------------- lists --- */

static struct topk_group {
    int cases, failures;
    double used[KIT_TOPK_RESULTS];
} topk_groups[UNITS];

static void check_topk(struct checker *checker, int64_t seed, int64_t cases, int device, int only_isa, int64_t threads)
{
    for (int64_t n = 0; n < cases; n++) {
        struct kit_random r = {(uint64_t)seed * 1000037 + (uint64_t)n};
        struct kit_topk_case c = (device == SKL_CUDA ? kit_random_device_topk : kit_random_topk)(&r);
        struct kit_topk f;
        c.of.threads = threads ? (int)threads : c.of.threads;
        kit_build_topk(&f, &c, memory_of(device), &r);
        for (int unit = SKL_ISA_BASELINE; unit < UNITS; unit++) {
            if (!unit_runs(unit, device, only_isa))
                continue;
            struct topk_group *group = &topk_groups[unit];
            if (unit != ON_CUDA)
                f.p.isa = unit;
            struct kit_topk_outcome o = kit_run_topk(&f);
            for (int k = 0; k < KIT_TOPK_RESULTS; k++) group->used[k] = fmax(group->used[k], o.used[k]);
            group->cases++, checker->runs++;
            group->failures += !kit_topk_right(&o);
            if (!kit_topk_right(&o) && checker->failures++ < 10) {
                char text[800];
                kit_describe_topk(&c, text, sizeof text);
                printf("FAILED %s lists, %s: %s\n", unit_name(unit), text,
                       o.status ? skl_last_error() : "out of its bound");
            }
        }
        kit_destroy_topk(&f);
    }
}

static void print_topk(void)
{
    printf("\n%-9s %-32s %5s ", "isa", "lists", "cases");
    for (int k = 0; k < KIT_TOPK_RESULTS; k++) printf(" %10s", kit_topk_names[k]);
    printf("   worst, of its bound\n");
    for (int unit = 0; unit < UNITS; unit++) {
        const struct topk_group *g = &topk_groups[unit];
        if (!g->cases)
            continue;
        printf("%-9s %-32s %5d ", unit_name(unit), "the largest logits", g->cases);
        for (int k = 0; k < KIT_TOPK_RESULTS; k++) printf(" %10.2g", g->used[k]);
        printf("%s\n", g->failures ? "  FAILED" : "");
    }
}

static const char about[] =
    "Compares the engine with a reference in double precision over random shapes, masks, layouts, dtypes, ways to run\n"
    "and instruction sets. Exits with 1 when an error is out of its bound.";

int command_check(int argc, char **argv)
{
    int isa = SKL_ISA_BEST, device = SKL_CPU, quick = 0;
    int64_t threads = 0, seed = 1, cases = 0;
    struct option_spec options[] = {
        {"device", OPTION_NAME, &device, 0, 0, device_names, "where to run; the reference always runs on the CPU", 0},
        {"isa", OPTION_NAME, &isa, 0, 0, isa_names, "only this instruction set; best: every one that this CPU has", 0},
        {"threads", OPTION_INT, &threads, 0, 4096, NULL, "number of threads; 0: from 1 to 3, case by case", 0},
        {"seed", OPTION_INT, &seed, 0, 1e9, NULL, "which random cases", 0},
        {"cases", OPTION_INT, &cases, 0, 1e6, NULL, "cases per divergence; 0: 100, or 20 with --quick", 0},
        {"quick", OPTION_FLAG, &quick, 0, 0, NULL, "fewer and smaller cases", 0},
        {0},
    };
    struct command command = {"check", about, options};
    options_parse(&command, argc, argv);
    require_isa(&command, isa);
    require_device(&command, device);

    static struct checker checker;
    if (cases == 0)
        cases = quick ? 20 : 100;
    int all = (int)cases * KIT_DIVERGENCE_COUNT;
    double begin = now();
    struct progress progress = progress_begin("check");
    progress_catch_interrupt();
    for (int k = 0; k < all; k++) {
        struct kit_random r = {(uint64_t)seed * 1000003 + (uint64_t)k};
        int mixed = k % KIT_DIVERGENCE_COUNT == SKL_FORWARD_KL && kit_chance(&r, 2);
        int labelled = !mixed && kit_chance(&r, 3);
        int sunk = !mixed && !labelled && kit_chance(&r, 3), cuda = device == SKL_CUDA;
        struct kit_case c = mixed      ? (cuda ? kit_random_device_mixture : kit_random_mixture)(&r)
                            : labelled ? kit_random_labels(&r)
                            : sunk     ? (cuda ? kit_random_device_sinks : kit_random_sinks)(&r)
                            : cuda     ? (kit_chance(&r, 4) ? kit_random_device_keys : kit_random_device_case)(&r)
                                       : kit_random_case(&r);
        mixed |= c.mix || c.map || c.lses;
        if (device == SKL_CUDA && labelled)
            kit_for_device(&c, &r);
        if (!mixed && !c.alone)
            kit_set_divergence(&c, k % KIT_DIVERGENCE_COUNT);
        c.threads = threads ? (int)threads : (int)kit_between(&r, 1, 3);
        /* Small enough that p and q may well differ everywhere; where they do not, the case is left out. */
        kit_shrink(&c, c.divergence == SKL_TOTAL_VARIATION ? 2e4 : quick ? 2e5 : 8e5);
        check_one(&checker, &c, device, isa, &r);
        if (progress_show(&progress, (k + 1.0) / all)) {
            progress_end(&progress);
            return EXIT_INTERRUPTED;
        }
    }
    check_listed(&checker, seed, cases, device, isa, threads);
    check_topk(&checker, seed, 2 * cases, device, isa, threads);
    progress_end(&progress);
    print_table(&checker);
    print_listed();
    print_topk();
    printf("\n%s: %d of %d runs out of bound, seed %lld, %.1f s\n", checker.failures ? "FAILED" : "passed",
           checker.failures, checker.runs, (long long)seed, now() - begin);
    return checker.failures ? EXIT_WRONG : 0;
}
