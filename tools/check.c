/* SPDX-License-Identifier: Apache-2.0
 *
 * streamkl check: the engine against the reference in double precision.
 */
#include "check.h"
#include "clock.h"
#include "commands.h"
#include "device.h"
#include "options.h"
#include "progress.h"
#include "verify.h"

#include <stdio.h>

enum way { WAY_VALUE, WAY_TOGETHER, WAY_LOW_MEMORY, WAY_BACKWARD, WAY_SLICES, WAYS };
static const char *const way_names[WAYS] = {"value", "value+grad", "low memory", "backward", "slices"};

/* Where it runs: an instruction set, or CUDA, which is counted as one more. */
enum { DIVERGENCES = 3, ISAS = SKL_ISA_NEON + 1, ON_CUDA = ISAS, PLACES };

static const char *place_name(int place)
{
    return place == ON_CUDA ? "cuda" : skl_isa_name((enum skl_isa)place);
}

struct group {
    int cases, failures;
    struct errors worst;
};

struct checker {
    struct group groups[PLACES][DIVERGENCES][WAYS];
    int runs, failures;
};

/* With the least workspace that it accepts, to a power of two: where logits do not fit they are recomputed. */
static enum skl_status run_in_low_memory(struct job *job)
{
    struct skl_problem *p = job_problem(job);
    size_t bytes;
    p->workspace_limit = 4096;
    while (p->workspace_limit < SIZE_MAX / 2 &&
           skl_workspace_size(SKL_CALL_VALUE_AND_GRAD, p, job_all(job), &bytes) != SKL_OK)
        p->workspace_limit *= 2;
    enum skl_status status = job_run(job, PASS_VALUE_AND_GRAD);
    p->workspace_limit = 0;
    return status;
}

/* A device also takes memory from the caller; this way gives it some, the others let the call allocate. */
static enum skl_status run_together(struct job *job)
{
    struct skl_problem *p = job_problem(job);
    if (job->work.device == SKL_CUDA)
        job_reserve(job, PASS_VALUE_AND_GRAD);
    enum skl_status status = job_run(job, PASS_VALUE_AND_GRAD);
    p->workspace = NULL, p->workspace_bytes = 0;
    return status;
}

static enum skl_status run(struct job *job, enum way way)
{
    enum skl_status status = SKL_OK;
    job_spoil(job);
    switch (way) {
    case WAY_VALUE: return job_run(job, PASS_VALUE);
    case WAY_TOGETHER: return run_together(job);
    case WAY_LOW_MEMORY: return run_in_low_memory(job);
    case WAY_BACKWARD:
        status = job_run(job, PASS_VALUE);
        return status == SKL_OK ? job_run(job, PASS_BACKWARD) : status;
    default: return check_slices(job);
    }
}

static void report_failure(const struct job *job, int place, enum way way, enum skl_status status,
                           const struct errors *e)
{
    char text[512];
    check_describe(&job->work, text, sizeof text);
    printf("FAILED %s %s: %s\n", place_name(place), way_names[way], text);
    if (status != SKL_OK)
        printf("       %s: %s\n", skl_status_string(status), skl_last_error());
    else
        printf("       errors: loss %.1e, LSE %.1e, grad a %.1e, grad b %.1e\n", e->loss, e->lse, e->a, e->b);
}

static void check_way(struct checker *checker, struct job *job, const struct expected *expected, int place,
                      enum way way)
{
    struct group *group = &checker->groups[place][job->work.divergence][way];
    struct errors e = {0};
    if (place != ON_CUDA)
        job->problem.isa = place;
    enum skl_status status = run(job, way);
    if (status == SKL_OK)
        job_fetch(job);
    if (status == SKL_OK)
        e = verify_all(job, expected, way != WAY_VALUE && way != WAY_SLICES);
    errors_add(&group->worst, &e);
    group->cases++;
    checker->runs++;
    if (status != SKL_OK || !errors_in_bounds(&e, bounds_on(job->work.device))) {
        group->failures++;
        if (checker->failures++ < 10)
            report_failure(job, place, way, status, &e);
    }
}

static void check_one(struct checker *checker, const struct work *work, int only_isa)
{
    struct job job;
    struct expected expected;
    job_make(&job, work);
    expected_make(&job, &expected);
    for (int place = SKL_ISA_BASELINE; place < PLACES; place++) {
        int wanted = work->device == SKL_CUDA ? place == ON_CUDA
                                              : place < ISAS && skl_isa_available((enum skl_isa)place) &&
                                                    (only_isa == SKL_ISA_BEST || only_isa == place);
        for (int way = 0; wanted && way < WAYS; way++) check_way(checker, &job, &expected, place, (enum way)way);
    }
    expected_free(&expected);
    job_free(&job);
}

static void print_table(const struct checker *checker, struct bounds bounds)
{
    printf("\n%-9s %-8s %-11s %5s  %10s %10s %10s %10s\n", "isa", "KL", "way", "cases", "loss", "LSE", "grad a",
           "grad b");
    printf("%36s  %10.0e %10.0e %10.0e %10.0e\n", "at most", bounds.value, bounds.value, bounds.grad, bounds.grad);
    for (int place = 0; place < PLACES; place++)
        for (int d = 0; d < DIVERGENCES; d++)
            for (int way = 0; way < WAYS; way++) {
                const struct group *g = &checker->groups[place][d][way];
                if (g->cases == 0)
                    continue;
                printf("%-9s %-8s %-11s %5d  %10.1e %10.1e", place_name(place), divergence_names[d], way_names[way],
                       g->cases, g->worst.loss, g->worst.lse);
                if (way == WAY_VALUE || way == WAY_SLICES)
                    printf(" %10s %10s", "-", "-");
                else
                    printf(" %10.1e %10.1e", g->worst.a, g->worst.b);
                printf("%s\n", g->failures ? "  FAILED" : "");
            }
}

static const char about[] =
    "Compares the engine with a reference in double precision over random shapes, masks, dtypes, ways to run and\n"
    "instruction sets. Exits with 1 when an error is out of its bound.";

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
    double begin = now();
    struct progress progress = progress_begin("check");
    progress_catch_interrupt();
    for (int k = 0; k < cases * DIVERGENCES; k++) {
        struct work work = check_case((uint64_t)seed, k / DIVERGENCES, k % DIVERGENCES, quick ? 2e5 : 2e6);
        if (threads)
            work.threads = (int)threads;
        work.device = device;
        check_one(&checker, &work, isa);
        if (progress_show(&progress, (k + 1.0) / (double)(cases * DIVERGENCES))) {
            progress_end(&progress);
            return EXIT_INTERRUPTED;
        }
    }
    progress_end(&progress);
    print_table(&checker, bounds_on(device));
    printf("\n%s: %d of %d runs out of bound, seed %lld, %.1f s\n", checker.failures ? "FAILED" : "passed",
           checker.failures, checker.runs, (long long)seed, now() - begin);
    return checker.failures ? EXIT_WRONG : 0;
}
