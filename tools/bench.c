/* SPDX-License-Identifier: Apache-2.0
 *
 * streamkl bench: checks, then times. Operands are hot (the same ones every time); what is counted are the products.
 */
#include "bench.h"
#include "clock.h"
#include "commands.h"
#include "cpu/plan.h"
#include "device.h"
#include "kit/divergence.h"
#include "machine.h"
#include "memory.h"
#include "options.h"
#include "peak.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_REPEATS = 10000, DESCRIBES_CASE = 1 };

struct settings {
    int64_t repeats, samples;
    double min_time;
    int json, verbose, full, small;
};

/* ------------------------------------------------------------------------------------------- measuring --- */

/* The best that this run has seen on so many threads: a burst of other work on the machine only ever lowers it. */
static double fma_peak(int isa, int threads, const struct settings *settings)
{
    static struct {
        int isa, threads;
        double best;
    } seen[16];
    int k = 0;
    while (k < 15 && seen[k].best > 0 && (seen[k].isa != isa || seen[k].threads != threads)) k++;
    seen[k].isa = isa, seen[k].threads = threads;
    seen[k].best = fmax(seen[k].best, skl_peak((enum skl_isa)isa, SKL_F32, threads, settings->small ? 1e-3 : 0.1));
    return seen[k].best;
}

static double read_bandwidth(int threads, const struct settings *settings)
{
    static double best[2]; /* one thread, several threads */
    int k = threads > 1;
    if (best[k] == 0)
        best[k] = skl_read_bandwidth(threads, settings->small ? 1e-3 : 0.3);
    return best[k];
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds of one call; on a device by the clock of its stream, which leaves out the way there. */
static double timed(struct kit_fixture *f, enum skl_call call)
{
    double begin = now();
    if (!f->memory->device) {
        must_call(f, call);
        return now() - begin;
    }
    device_clock_start();
    enum skl_status status = kit_start(f, call);
    double seconds = device_clock_stop();
    if (status != SKL_OK)
        must_call(f, call); /* says why, and exits */
    return seconds;
}

static void measure_time(struct kit_fixture *f, enum skl_call call, const struct settings *settings,
                         struct bench_result *r)
{
    static double seconds[MAX_REPEATS];
    double total = 0;
    int n = 0;
    while (n < MAX_REPEATS && (n < settings->repeats || total < settings->min_time)) {
        seconds[n] = timed(f, call);
        total += seconds[n++];
    }
    qsort(seconds, (size_t)n, sizeof *seconds, ascending);
    r->seconds_min = seconds[0];
    r->seconds_median = n % 2 ? seconds[n / 2] : 0.5 * (seconds[n / 2 - 1] + seconds[n / 2]);
}

/* -------------------------------------------------------------------------------------------- checking --- */

static int64_t at_most(int64_t x, int64_t limit)
{
    return x < limit ? x : limit;
}

/* The bounds hold for logits of ordinary size: those of deviation 8 round by more than 1e-6. What skip_below adds is
 * an error that was asked for. Such cases are measured, their small copies judged without. */
#define BOUNDED_SPREAD 2.0

/* The same kind of case, small enough to compare everything, the gradients summed over rows too. */
static struct kit_case small_copy(const struct kit_case *big)
{
    struct kit_case c = *big;
    c.batch = at_most(c.batch, 2);
    int64_t group = c.heads / c.key_heads[S];
    c.key_heads[S] = c.key_heads[T] = at_most(c.key_heads[S], 2);
    c.heads = c.key_heads[S] * at_most(group, 4);
    c.mix = at_most(c.mix, 5);
    if (c.mix || c.lses)
        c.key_heads[T] = kit_teacher_heads(&c);
    c.support = at_most(c.support, 100), c.support_block = at_most(c.support_block, 8);
    c.rows = at_most(c.rows, 37), c.cols = at_most(c.cols, 777);
    c.dim[S] = at_most(c.dim[S], 96), c.dim[T] = at_most(c.dim[T], 96);
    c.skip_below = 0, c.spread = fmin(c.spread, BOUNDED_SPREAD);
    return c;
}

/* Every output that the call writes, the reference's row results and gradients beside it. */
static int check_small(const struct bench *bench)
{
    static const enum kit_way ways[] = {KIT_VALUE, KIT_TOGETHER, KIT_BACKWARD}; /* by call */
    struct kit_case small = small_copy(&bench->c);
    struct kit_random r = {1};
    struct kit_fixture f;
    kit_build(&f, &small, memory_of(bench->device), &r);
    kit_expect(&f);
    struct kit_outcome o = kit_run(&f, ways[bench->call]);
    if (!kit_right(&o)) {
        struct errors e = errors_of(&o, &f.allow);
        fprintf(stderr, "streamkl bench: a small %s %s is wrong: ", kit_use_names[small.use], call_names[bench->call]);
        if (o.status != SKL_OK)
            fprintf(stderr, "%s: %s", skl_status_string(o.status), skl_last_error());
        else
            errors_print(stderr, &e);
        fprintf(stderr, "\n");
    }
    kit_destroy(&f);
    return kit_right(&o);
}

/* -------------------------------------------------------------------------------------------- one case --- */

static double operand_bytes(const struct kit_fixture *f)
{
    static const int operands[] = {KIT_INPUT_A_S, KIT_INPUT_B_S, KIT_INPUT_A_T, KIT_INPUT_B_T};
    double bytes = 0;
    for (int k = 0; k < 4; k++) bytes += (double)f->in[operands[k]].memory.size;
    return bytes;
}

/* The worst error of some rows. Says so and returns 0 if it is too large. */
static int check_samples(const struct bench *bench, struct kit_fixture *f, const struct settings *settings,
                         struct bench_result *r)
{
    int bounded = bench->c.skip_below == 0 && bench->c.spread <= BOUNDED_SPREAD;
    kit_fetch(f);
    struct kit_outcome o = kit_sample(f, settings->samples, bench->call != SKL_CALL_VALUE);
    struct errors e = errors_of(&o, &f->allow);
    r->max_rel_error = errors_largest(&e);
    if (!bounded || kit_right(&o))
        return 1;
    fprintf(stderr, "streamkl bench: sampled rows are wrong: ");
    errors_print(stderr, &e);
    fprintf(stderr, "\n");
    return 0;
}

/* Who multiplies, as the call is planned. */
static const char *unit_of(struct kit_fixture *f, enum skl_call call)
{
    struct skl_outputs out = kit_asked(f, call != SKL_CALL_BACKWARD, call == SKL_CALL_VALUE ? 0 : KIT_GRAD_ALL);
    struct skl_outputs saved = kit_asked(f, 1, 0);
    struct skl_work w;
    struct skl_plan plan;
    saved.value = NULL;
    if (skl_check(call, &f->p, call == SKL_CALL_BACKWARD ? &saved : NULL, &out, NULL, &w) ||
        skl_make_plan(call, &w, &plan))
        return "";
    return plan.products[1]->unit;
}

static int run_bench(const struct bench *bench, const struct settings *settings)
{
    enum skl_call call = (enum skl_call)bench->call;
    struct bench_result r = {.threads = bench->c.threads, .isa = bench->c.isa};
    struct kit_random random = {1};
    struct kit_fixture f;
    int device = bench->device == SKL_CUDA;
    if (!check_small(bench))
        return 0;
    r.threads = device ? 0 : r.threads ? r.threads : skl_max_threads();
    r.isa = r.isa ? r.isa : (int)skl_isa_best();
    kit_build(&f, &bench->c, memory_of(bench->device), &random);
    f.loss_alone = call == SKL_CALL_VALUE;
    r.unit = device ? "cuda" : unit_of(&f, call);
    kit_outputs(&f, 1, KIT_GRAD_ALL); /* touched, and no number that an earlier call left */
    if (call == SKL_CALL_BACKWARD)
        must_call(&f, SKL_CALL_VALUE);
    if (!device)
        fma_peak(r.isa, r.threads, settings);

    struct memory_mark mark = memory_begin();
    size_t reserved = device ? kit_reserve(&f, call) : 0;
    must_call(&f, call); /* also warms up */
    r.extra_bytes = device ? (double)reserved : memory_extra(memory_end(mark));
    int ok = check_samples(bench, &f, settings, &r);
    measure_time(&f, call, settings, &r);

    r.peak_gflops = device ? 0 : fma_peak(r.isa, r.threads, settings);
    r.gflops = 1e-9 * flops_of(&f, call) / r.seconds_min;
    r.bytes = operand_bytes(&f);
    r.bandwidth = device ? 0 : read_bandwidth(r.threads, settings);
    (settings->json ? report_json : report_row)(bench, &r);
    kit_destroy(&f);
    return ok;
}

/* ------------------------------------------------------------------------------------------ the command --- */

static void print_verbose_header(int device)
{
    if (device == SKL_CUDA) {
        char text[256];
        device_describe(0, text, sizeof text);
        printf("# streamkl %s on cuda:0, %s\n", skl_version(), text);
        printf("# GF/s counts 2 products for value, 4 for value_and_grad and for backward, visited elements only\n");
        printf("# times are those of the stream; peak and bandwidth are not measured on a device\n");
        printf("# extra: the workspace that a call asks for; error: worst of the sampled rows\n");
        return;
    }
    printf("# streamkl %s, %s\n", skl_version(), machine_compiler());
    printf("# %s, %d threads, best instruction set %s\n", machine_cpu(), skl_max_threads(),
           skl_isa_name(skl_isa_best()));
    printf("# L1 %ld KiB, L2 %ld KiB, L3 %ld KiB\n", machine_cache(1) / 1024, machine_cache(2) / 1024,
           machine_cache(3) / 1024);
    printf("# GF/s counts 2 products for value, 4 for value_and_grad and for backward, visited elements only\n");
    printf("# of peak: FMA peak of the same threads, same run; of mem: operands read once against read bandwidth\n");
    printf("# extra: most memory allocated during a call; error: worst of the sampled rows\n");
}

/* What the table of options cannot see: options that would be passed over. */
static void check_case(const struct bench *bench)
{
    const struct kit_case *c = &bench->c;
    int linear = c->use == SKL_LINEAR, value = bench->call == SKL_CALL_VALUE;
    const struct {
        int wrong;
        const char *together;
    } rules[] = {
        {linear && (c->support || c->mix || c->lses), "--support, --mix or --lses with --op = linear"},
        {c->support_block && !c->support, "--support-block without --support"},
        {c->round_dz && c->dtype[S] != SKL_BF16, "--round-dz without --dtype = bf16"},
        {value && (c->round_dz || c->skip_below > 0),
         "--round-dz or --skip-below with --pass = value: it has no gradients"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].wrong) {
            fprintf(stderr, "streamkl bench: cannot use %s\n", rules[i].together);
            exit(EXIT_USAGE);
        }
}

/* Device, threads and instruction set hold for all of the set; a case that is about one thread keeps its one. */
static int run_set(const struct bench *given, const struct settings *settings)
{
    int count, ok = 1;
    const struct bench *set = bench_set(settings->full, given->device, &count);
    for (int k = 0; k < count; k++) {
        struct bench bench = set[k];
        if (settings->small)
            bench.c = small_copy(&bench.c);
        bench.c.isa = given->c.isa;
        bench.device = given->device;
        bench.c.threads = bench.c.threads ? bench.c.threads : given->c.threads;
        ok &= run_bench(&bench, settings);
    }
    return ok;
}

static const char about[] =
    "Checks, then times, one case; or, when no option describes one, a set of them that takes about a minute.\n"
    "Minimum and median time, GFLOP/s, fraction of the FMA peak, extra memory, worst error.";

int command_bench(int argc, char **argv)
{
    enum { C = DESCRIBES_CASE };
    const double most = 1e12;
    struct settings s = {.repeats = 3, .samples = 2, .min_time = 0.3};
    struct bench bench = {.c = usual_case(SKL_ATTENTION, 0, 0, 0)};
    struct kit_case *c = &bench.c;
    int64_t threads = 0;
    c->heads = 0;
    struct option_spec options[] = {
        {"op", OPTION_NAME, &c->use, 0, 0, kit_use_names, "what to run", C},
        {"pass", OPTION_NAME, &bench.call, 0, 0, call_names, "value; value and gradient together; gradient alone", C},
        {"divergence", OPTION_NAME, &c->divergence, 0, 0, kit_divergence_names,
         "which; skew 0.1, alpha-beta (0.2, 0.7)", C},
        {"dtype", OPTION_NAME, &c->dtype[S], 0, 0, kit_dtype_names, "of the operands; gradients are f32", C},
        {"batch", OPTION_INT, &c->batch, 1, most, NULL, "attention: batch", C},
        {"heads", OPTION_INT, &c->heads, 0, most, NULL, "attention: query heads; 0: 4", C},
        {"kv-heads", OPTION_INT, &c->key_heads[S], 0, most, NULL, "attention: key heads; 0: as many as heads", C},
        {"rows", OPTION_INT, &c->rows, 0, most, NULL, "queries or tokens; 0: 4096, linear 256", C},
        {"cols", OPTION_INT, &c->cols, 0, most, NULL, "keys or vocabulary; 0: 4096, linear 32000", C},
        {"dim-s", OPTION_INT, &c->dim[S], 0, most, NULL, "student width; 0: 128, linear 2048", C},
        {"dim-t", OPTION_INT, &c->dim[T], 0, most, NULL, "teacher width; 0: as the student", C},
        {"causal", OPTION_FLAG, &c->causal, 0, 0, NULL, "row i sees columns up to i + cols - rows", C},
        {"window-left", OPTION_INT, &c->left, -1, most, NULL, "columns left of the diagonal; -1: no limit", C},
        {"window-right", OPTION_INT, &c->right, -1, most, NULL, "columns right of it; -1: no limit", C},
        {"support", OPTION_INT, &c->support, 0, 1e6, NULL, "attention: so many keys listed for a query; 0: no lists",
         C},
        {"support-block", OPTION_INT, &c->support_block, 0, 1e6, NULL, "a list has blocks of so many keys; 0: keys", C},
        {"mix", OPTION_INT, &c->mix, 0, 4096, NULL, "attention: teacher heads for each of the student's; 0: one", C},
        {"lses", OPTION_FLAG, &c->lses, 0, 0, NULL, "with their LSEs given", C},
        {"spread", OPTION_REAL, &c->spread, 0, 1e4, NULL, "standard deviation of the logits: how peaked", C},
        {"skip-below", OPTION_REAL, &c->skip_below, 0, 1, NULL, "leave out gradients of logits below this", C},
        {"round-dz", OPTION_FLAG, &c->round_dz, 0, 0, NULL, "bf16: gradients from a dz that is rounded to bf16", C},
        {"device", OPTION_NAME, &bench.device, 0, 0, device_names, "where to run; the reference runs on the CPU", 0},
        {"threads", OPTION_INT, &threads, 0, 4096, NULL, "number of threads; 0: as many as there are processors", 0},
        {"isa", OPTION_NAME, &c->isa, 0, 0, isa_names, "instruction set", 0},
        {"repeats", OPTION_INT, &s.repeats, 1, MAX_REPEATS, NULL, "time at least so often", 0},
        {"min-time", OPTION_REAL, &s.min_time, 0, 3600, NULL, "and for at least so many seconds", 0},
        {"samples", OPTION_INT, &s.samples, 1, 1e6, NULL, "rows to compare with the reference", 0},
        {"full", OPTION_FLAG, &s.full, 0, 0, NULL, "without a described case: the larger set; minutes", 0},
        {"small", OPTION_FLAG, &s.small, 0, 0, NULL, "without a described case: the set's small copies, to check it",
         0},
        {"json", OPTION_FLAG, &s.json, 0, 0, NULL, "one JSON object a line instead of a table", 0},
        {"verbose", OPTION_FLAG, &s.verbose, 0, 0, NULL, "begin with machine, compiler and meaning of columns", 0},
        {0},
    };
    struct command command = {"bench", about, options};
    int described = options_parse(&command, argc, argv) & DESCRIBES_CASE;
    kit_set_divergence(c, c->divergence);
    fill_usual(c);
    c->threads = (int)threads;
    require_shape(&command, c);
    check_case(&bench);
    require_isa(&command, c->isa);
    require_device(&command, bench.device);
    if (s.verbose && !s.json)
        print_verbose_header(bench.device);
    if (!s.json)
        report_header();
    int ok = described ? run_bench(&bench, &s) : run_set(&bench, &s);
    return ok ? 0 : EXIT_WRONG;
}
