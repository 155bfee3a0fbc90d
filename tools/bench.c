/* SPDX-License-Identifier: Apache-2.0
 *
 * streamkl bench: checks, then times. Operands are hot (the same ones every time); what is counted are the products.
 */
#include "bench.h"
#include "clock.h"
#include "commands.h"
#include "cpu/peak.h"
#include "data.h"
#include "device.h"
#include "machine.h"
#include "memory.h"
#include "options.h"
#include "verify.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_REPEATS = 10000, DESCRIBES_WORK = 1 };

struct settings {
    int64_t repeats, samples;
    double min_time;
    int json, verbose, full;
};

/* ------------------------------------------------------------------------------------------- measuring --- */

/* The best that this run has seen on so many threads: a burst of other work on the machine only ever lowers it. */
static double fma_peak(int isa, int threads)
{
    static struct {
        int isa, threads;
        double best;
    } seen[16];
    int k = 0;
    while (k < 15 && seen[k].best > 0 && (seen[k].isa != isa || seen[k].threads != threads)) k++;
    seen[k].isa = isa, seen[k].threads = threads;
    seen[k].best = fmax(seen[k].best, skl_fma_peak((enum skl_isa)isa, threads, 0.1));
    return seen[k].best;
}

static double read_bandwidth(int threads)
{
    static double best[2]; /* one thread, several threads */
    int k = threads > 1;
    if (best[k] == 0)
        best[k] = skl_read_bandwidth(threads, 0.3);
    return best[k];
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds of one run; on a device by the clock of its stream, which leaves out the way there. */
static double timed(struct job *job, enum pass pass)
{
    double begin = now();
    if (job->work.device != SKL_CUDA) {
        job_must(job, pass);
        return now() - begin;
    }
    device_clock_start();
    enum skl_status status = job_start(job, pass);
    double seconds = device_clock_stop();
    if (status != SKL_OK)
        job_must(job, pass); /* says why, and exits */
    return seconds;
}

static void measure_time(struct job *job, enum pass pass, const struct settings *settings, struct bench_result *r)
{
    static double seconds[MAX_REPEATS];
    double total = 0;
    int n = 0;
    while (n < MAX_REPEATS && (n < settings->repeats || total < settings->min_time)) {
        seconds[n] = timed(job, pass);
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
 * an error that was asked for. Such works are measured, their small copies judged without. */
#define BOUNDED_SPREAD 2.0

/* The same kind of work, small enough to compare everything, the gradients summed over rows too. */
static struct work small_copy(const struct work *big)
{
    struct work w = *big;
    w.batch = at_most(w.batch, 2);
    int64_t group = w.heads / w.kv_heads_s;
    w.kv_heads_s = w.kv_heads_t = at_most(w.kv_heads_s, 2);
    w.heads = w.kv_heads_s * at_most(group, 4);
    w.rows = at_most(w.rows, 37), w.cols = at_most(w.cols, 777);
    w.dim_s = at_most(w.dim_s, 96), w.dim_t = at_most(w.dim_t, 96);
    return w;
}

static int check_small(const struct bench *bench)
{
    struct work small = small_copy(&bench->work);
    small.skip_below = 0, small.spread = fmin(small.spread, BOUNDED_SPREAD);
    struct job job;
    struct expected expected;
    job_make(&job, &small);
    expected_make(&job, &expected);
    job_spoil(&job);
    if (bench->pass == PASS_BACKWARD)
        job_must(&job, PASS_VALUE);
    job_must(&job, (enum pass)bench->pass);
    job_fetch(&job);
    struct errors e = verify_all(&job, &expected, bench->pass != PASS_VALUE);
    expected_free(&expected);
    job_free(&job);
    int ok = errors_in_bounds(&e, bounds_on(small.device));
    if (!ok)
        fprintf(stderr, "streamkl bench: a small %s %s is wrong: loss %.1e, LSE %.1e, grad a %.1e, grad b %.1e\n",
                use_names[bench->work.use], pass_names[bench->pass], e.loss, e.lse, e.a, e.b);
    return ok;
}

/* ------------------------------------------------------------------------------------------- one work --- */

static double operand_bytes(const struct job *job)
{
    const struct skl_tensor *all[] = {&job->problem.s.a, &job->problem.s.b, &job->problem.t.a, &job->problem.t.b};
    double bytes = 0;
    for (int k = 0; k < 4; k++) {
        double n = (double)dtype_size(all[k]->dtype);
        for (int d = 0; d < all[k]->ndim; d++) n *= (double)all[k]->shape[d];
        bytes += n;
    }
    return bytes;
}

static int run_bench(const struct bench *bench, const struct settings *settings)
{
    enum pass pass = (enum pass)bench->pass;
    struct bench_result r = {.threads = bench->work.threads, .isa = bench->work.isa};
    struct job job;
    int device = bench->work.device == SKL_CUDA;
    if (!check_small(bench))
        return 0;
    r.threads = device ? 0 : r.threads ? r.threads : skl_max_threads();
    r.isa = r.isa ? r.isa : (int)skl_isa_best();
    job_make(&job, &bench->work);
    job_spoil(&job);
    if (pass == PASS_BACKWARD)
        job_must(&job, PASS_VALUE);
    if (!device)
        fma_peak(r.isa, r.threads);

    struct memory_mark mark = memory_begin();
    size_t reserved = device ? job_reserve(&job, pass) : 0;
    job_must(&job, pass); /* also warms up */
    r.extra_bytes = device ? (double)reserved : memory_extra(memory_end(mark));
    job_fetch(&job);
    struct errors e = verify_sampled(&job, settings->samples, pass != PASS_VALUE);
    r.max_rel_error = errors_largest(&e);
    measure_time(&job, pass, settings, &r);

    r.peak_gflops = device ? 0 : fma_peak(r.isa, r.threads);
    r.gflops = 1e-9 * job_flops(&job, pass) / r.seconds_min;
    r.bytes = operand_bytes(&job);
    r.bandwidth = device ? 0 : read_bandwidth(r.threads);
    (settings->json ? report_json : report_row)(bench, &r);
    job_free(&job);
    int bounded = bench->work.skip_below == 0 && bench->work.spread <= BOUNDED_SPREAD;
    int ok = !bounded || errors_in_bounds(&e, bounds_on(bench->work.device));
    if (!ok)
        fprintf(stderr, "streamkl bench: sampled rows are wrong: loss %.1e, LSE %.1e, grad %.1e\n", e.loss, e.lse, e.a);
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

/* What the table of options cannot see. */
static void check_work(const struct work *w)
{
    if (w->heads % w->kv_heads_s) {
        fprintf(stderr, "streamkl bench: cannot use --kv-heads = %lld: it must divide --heads = %lld\n",
                (long long)w->kv_heads_s, (long long)w->heads);
        exit(EXIT_USAGE);
    }
    if (w->use == SKL_LINEAR && (w->causal || w->window_left >= 0 || w->window_right >= 0 || w->batch * w->heads > 1)) {
        fprintf(stderr, "streamkl bench: cannot use batch, heads, causal or windows with --op = linear\n");
        exit(EXIT_USAGE);
    }
}

/* 0 in the options means what is usual for the operation. */
static void fill_usual(struct work *w)
{
    int linear = w->use == SKL_LINEAR;
    w->heads = w->heads ? w->heads : linear ? 1 : 4;
    w->kv_heads_s = w->kv_heads_t = w->kv_heads_s ? w->kv_heads_s : w->heads;
    w->rows = w->rows ? w->rows : linear ? 256 : 4096;
    w->cols = w->cols ? w->cols : linear ? 32000 : 4096;
    w->dim_s = w->dim_s ? w->dim_s : linear ? 2048 : 128;
    w->dim_t = w->dim_t ? w->dim_t : w->dim_s;
    w->dtype_t = w->dtype_s;
}

/* Threads and instruction set hold for every work of the set; a work that is about one thread keeps its one. */
static int run_set(const struct work *given, const struct settings *settings)
{
    int count, ok = 1;
    const struct bench *set = bench_set(settings->full, given->device, &count);
    for (int k = 0; k < count; k++) {
        struct bench bench = set[k];
        bench.work.isa = given->isa;
        bench.work.device = given->device;
        bench.work.threads = bench.work.threads ? bench.work.threads : given->threads;
        ok &= run_bench(&bench, settings);
    }
    return ok;
}

static const char about[] =
    "Checks, then times, one work; or, when no option describes one, a set of them that takes about a minute.\n"
    "Minimum and median time, GFLOP/s, fraction of the FMA peak, extra memory, worst error.";

int command_bench(int argc, char **argv)
{
    enum { W = DESCRIBES_WORK };
    const double most = 1e12;
    struct settings s = {.repeats = 3, .samples = 2, .min_time = 0.3};
    struct bench bench = {.work = work_default(SKL_ATTENTION)};
    struct work *w = &bench.work;
    int64_t threads = 0;
    w->heads = w->kv_heads_s = w->rows = w->cols = w->dim_s = w->dim_t = 0;
    struct option_spec options[] = {
        {"op", OPTION_NAME, &w->use, 0, 0, use_names, "what to run", W},
        {"pass", OPTION_NAME, &bench.pass, 0, 0, pass_names, "value; value and gradient together; gradient alone", W},
        {"divergence", OPTION_NAME, &w->divergence, 0, 0, divergence_names, "KL(p||q), KL(q||p) or JSD", W},
        {"dtype", OPTION_NAME, &w->dtype_s, 0, 0, dtype_names, "of the operands; gradients are f32", W},
        {"batch", OPTION_INT, &w->batch, 1, most, NULL, "attention: batch", W},
        {"heads", OPTION_INT, &w->heads, 0, most, NULL, "attention: query heads; 0: 4", W},
        {"kv-heads", OPTION_INT, &w->kv_heads_s, 0, most, NULL, "attention: key heads; 0: as many as heads", W},
        {"rows", OPTION_INT, &w->rows, 0, most, NULL, "queries or tokens; 0: 4096, linear 256", W},
        {"cols", OPTION_INT, &w->cols, 0, most, NULL, "keys or vocabulary; 0: 4096, linear 32000", W},
        {"dim-s", OPTION_INT, &w->dim_s, 0, most, NULL, "student width; 0: 128, linear 2048", W},
        {"dim-t", OPTION_INT, &w->dim_t, 0, most, NULL, "teacher width; 0: as the student", W},
        {"causal", OPTION_FLAG, &w->causal, 0, 0, NULL, "row i sees columns up to i + cols - rows", W},
        {"window-left", OPTION_INT, &w->window_left, -1, most, NULL, "columns left of the diagonal; -1: no limit", W},
        {"window-right", OPTION_INT, &w->window_right, -1, most, NULL, "columns right of it; -1: no limit", W},
        {"spread", OPTION_REAL, &w->spread, 0, 1e4, NULL, "standard deviation of the logits: how peaked", W},
        {"skip-below", OPTION_REAL, &w->skip_below, 0, 1, NULL, "leave out gradients of logits below this", W},
        {"device", OPTION_NAME, &w->device, 0, 0, device_names, "where to run; the reference runs on the CPU", 0},
        {"threads", OPTION_INT, &threads, 0, 4096, NULL, "number of threads; 0: as many as there are processors", 0},
        {"isa", OPTION_NAME, &w->isa, 0, 0, isa_names, "instruction set", 0},
        {"repeats", OPTION_INT, &s.repeats, 1, MAX_REPEATS, NULL, "time at least so often", 0},
        {"min-time", OPTION_REAL, &s.min_time, 0, 3600, NULL, "and for at least so many seconds", 0},
        {"samples", OPTION_INT, &s.samples, 1, 1e6, NULL, "rows to compare with the reference", 0},
        {"full", OPTION_FLAG, &s.full, 0, 0, NULL, "without a described work: the larger set; minutes", 0},
        {"json", OPTION_FLAG, &s.json, 0, 0, NULL, "one JSON object a line instead of a table", 0},
        {"verbose", OPTION_FLAG, &s.verbose, 0, 0, NULL, "begin with machine, compiler and meaning of columns", 0},
        {0},
    };
    struct command command = {"bench", about, options};
    int described = options_parse(&command, argc, argv) & DESCRIBES_WORK;
    fill_usual(w);
    w->threads = (int)threads;
    check_work(w);
    require_isa(&command, w->isa);
    require_device(&command, w->device);
    if (s.verbose && !s.json)
        print_verbose_header(w->device);
    if (!s.json)
        report_header();
    int ok = described ? run_bench(&bench, &s) : run_set(w, &s);
    return ok ? 0 : EXIT_WRONG;
}
