/* SPDX-License-Identifier: Apache-2.0
 *
 * streamkl demo: the two jobs the library is for, at sizes where storing the distributions hurts, on built-in data.
 */
#include "clock.h"
#include "commands.h"
#include "memory.h"
#include "options.h"
#include "progress.h"
#include "units.h"
#include "verify.h"

#include <stdio.h>
#include <stdlib.h>

/* What to print of a job beyond what it measured. */
struct scene {
    const char *title, *bar;
    int64_t samples; /* rows to verify */
    double whole;    /* rows of the whole training step, of which the demo computes a block */
    const char *whole_name;
};

static void stop_if_interrupted(void)
{
    if (progress_interrupted()) {
        fprintf(stderr, "\nstreamkl: cancelled\n");
        exit(EXIT_INTERRUPTED);
    }
}

/* Both distributions in f32: the least that a materialised computation stores. */
static double materialised_bytes(const struct job *job, double rows)
{
    return 2.0 * 4 * rows * (double)job->work.cols;
}

/* Runs one pass and prints what it took. */
static void measure(struct job *job, enum pass pass, const char *bar, const char *name)
{
    struct progress progress = progress_begin(bar);
    job->problem.progress = progress_show;
    job->problem.progress_data = &progress;
    job_spoil(job);
    struct memory_mark mark = memory_begin();
    double seconds = now();
    job_must(job, pass);
    seconds = now() - seconds;
    struct memory_mark used = memory_end(mark);
    progress_end(&progress);
    printf("  %-22s %8s, %4.0f GFLOP/s", name, human_seconds((struct text){0}.chars, seconds),
           1e-9 * job_flops(job, pass) / seconds);
    printf(", %s of extra memory", human_bytes((struct text){0}.chars, memory_extra(used)));
    printf(" (resident set +%s)\n", human_bytes((struct text){0}.chars, used.resident));
    fflush(stdout);
}

static int print_verification(const struct job *job, int64_t samples)
{
    struct errors e = verify_sampled(job, samples, 1);
    int ok = errors_in_bounds(&e, bounds_on(SKL_CPU));
    printf("  %lld rows in double       loss and LSE differ by %.1e (at most %.0e), gradient by %.1e (at most %.0e): "
           "%s\n\n",
           (long long)samples, e.loss > e.lse ? e.loss : e.lse, VALUE_BOUND, e.a, GRAD_BOUND, ok ? "right" : "WRONG");
    return ok;
}

static int show(const struct work *work, const struct scene *scene)
{
    struct job job;
    printf("%s\n", scene->title);
    fflush(stdout);
    job_make(&job, work);
    stop_if_interrupted();
    measure(&job, PASS_VALUE, scene->bar, "loss alone");
    measure(&job, PASS_VALUE_AND_GRAD, scene->bar, "loss and gradients");
    double block = materialised_bytes(&job, (double)(work->batch * work->heads * work->rows));
    printf("  storing p and q takes  %8s for these rows", human_bytes((struct text){0}.chars, block));
    printf(", %s for %s\n", human_bytes((struct text){0}.chars, materialised_bytes(&job, scene->whole)),
           scene->whole_name);
    printf("  loss, mean over rows   %8.6f\n", job.reduced);
    fflush(stdout);
    int ok = print_verification(&job, scene->samples);
    stop_if_interrupted();
    job_free(&job);
    return ok;
}

static int show_attention(int threads)
{
    struct work w = work_default(SKL_ATTENTION);
    w.heads = 8, w.kv_heads_s = 2, w.kv_heads_t = 8;
    w.rows = 512, w.cols = 65536;
    w.dim_s = 64, w.dim_t = 128;
    w.causal = 1;
    w.threads = threads;
    struct scene scene = {
        "Attention: 8 heads, the last 512 queries of a causal context of 65536 keys; student width 64 "
        "with 2 key heads,\nteacher width 128 with 8, f32. Forward KL.",
        "attention ", 8, 8.0 * 65536, "the whole context"};
    return show(&w, &scene);
}

static int show_vocabulary(int threads)
{
    struct work w = work_default(SKL_LINEAR);
    w.rows = 512, w.cols = 152064;
    w.dim_s = 512, w.dim_t = 1024;
    w.dtype_s = w.dtype_t = SKL_BF16;
    w.temperature = 2;
    w.threads = threads;
    struct scene scene = {
        "Vocabulary: 512 tokens, 152064 words; student width 512, teacher width 1024, bf16, temperature 2. "
        "Forward KL;\ngradients of the hidden states and of the student's unembedding.",
        "vocabulary", 2, 16384, "a batch of 16384 tokens"};
    return show(&w, &scene);
}

static const char about[] =
    "Distils an attention layer and a vocabulary on built-in data: loss, time, memory against what storing the\n"
    "distributions would take, and some rows against the reference. Ctrl-C cancels.";

int command_demo(int argc, char **argv)
{
    int64_t threads = 0;
    struct option_spec options[] = {
        {"threads", OPTION_INT, &threads, 0, 4096, NULL, "number of threads; 0: as many as there are processors", 0},
        {0},
    };
    struct command command = {"demo", about, options};
    options_parse(&command, argc, argv);
    progress_catch_interrupt();
    int ok = show_attention((int)threads);
    ok &= show_vocabulary((int)threads);
    return ok ? 0 : EXIT_WRONG;
}
