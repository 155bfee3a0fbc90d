/* SPDX-License-Identifier: Apache-2.0
 *
 * streamkl demo: the two jobs the library is for, at sizes where storing the distributions hurts, on built-in data.
 */
#include "calls.h"
#include "clock.h"
#include "commands.h"
#include "memory.h"
#include "options.h"
#include "progress.h"
#include "units.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* What to print of a case beyond what was measured. */
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
static double materialised_bytes(const struct kit_case *c, double rows)
{
    return 2.0 * 4 * rows * (double)c->cols;
}

/* Makes one call and prints what it took. */
static void measure(struct kit_fixture *f, enum skl_call call, const char *bar, const char *name)
{
    struct progress progress = progress_begin(bar);
    f->p.progress = progress_show;
    f->p.progress_data = &progress;
    kit_outputs(f, 1, KIT_GRAD_ALL);
    struct memory_mark mark = memory_begin();
    double seconds = now();
    must_call(f, call);
    seconds = now() - seconds;
    struct memory_mark used = memory_end(mark);
    progress_end(&progress);
    printf("  %-22s %8s, %4.0f GFLOP/s", name, human_seconds((struct text){0}.chars, seconds),
           1e-9 * flops_of(f, call) / seconds);
    printf(", %s of extra memory", human_bytes((struct text){0}.chars, memory_extra(used)));
    printf(" (resident set +%s)\n", human_bytes((struct text){0}.chars, used.resident));
    fflush(stdout);
}

static int print_verification(struct kit_fixture *f, int64_t samples)
{
    struct kit_outcome o = kit_sample(f, samples, 1);
    struct errors e = errors_of(&o, &f->allow);
    printf("  %lld rows in double       loss and LSE differ by %.1e (at most %.0e), gradient by %.1e (at most %.0e): "
           "%s\n\n",
           (long long)samples, fmax(e.of[KIT_IN_LOSS], e.of[KIT_IN_LSE]), error_at_most(&f->allow, KIT_IN_LOSS),
           e.of[KIT_IN_GRAD_A], error_at_most(&f->allow, KIT_IN_GRAD_A), kit_right(&o) ? "right" : "WRONG");
    return kit_right(&o);
}

static int show(const struct kit_case *c, const struct scene *scene)
{
    struct kit_random r = {1};
    struct kit_fixture f;
    printf("%s\n", scene->title);
    fflush(stdout);
    kit_build(&f, c, memory_of(SKL_CPU), &r);
    stop_if_interrupted();
    measure(&f, SKL_CALL_VALUE, scene->bar, "loss alone");
    measure(&f, SKL_CALL_VALUE_AND_GRAD, scene->bar, "loss and gradients");
    double block = materialised_bytes(c, (double)kit_case_rows(c));
    printf("  storing p and q takes  %8s for these rows", human_bytes((struct text){0}.chars, block));
    printf(", %s for %s\n", human_bytes((struct text){0}.chars, materialised_bytes(c, scene->whole)),
           scene->whole_name);
    printf("  loss, mean over rows   %8.6f\n", f.value);
    fflush(stdout);
    int ok = print_verification(&f, scene->samples);
    stop_if_interrupted();
    kit_destroy(&f);
    return ok;
}

static int show_attention(int threads)
{
    struct kit_case c = usual_case(SKL_ATTENTION, 512, 65536, 64);
    c.heads = 8, c.key_heads[S] = 2, c.key_heads[T] = 8;
    c.dim[T] = 128;
    c.causal = 1;
    c.threads = threads;
    struct scene scene = {
        "Attention: 8 heads, the last 512 queries of a causal context of 65536 keys; student width 64 "
        "with 2 key heads,\nteacher width 128 with 8, f32. Forward KL.",
        "attention ", 8, 8.0 * 65536, "the whole context"};
    return show(&c, &scene);
}

static int show_vocabulary(int threads)
{
    struct kit_case c = usual_case(SKL_LINEAR, 512, 152064, 512);
    c.dim[T] = 1024;
    c.dtype[S] = c.dtype[T] = SKL_BF16;
    c.temperature = 2, c.spread = 1;
    c.threads = threads;
    struct scene scene = {
        "Vocabulary: 512 tokens, 152064 words; student width 512, teacher width 1024, bf16, temperature 2. "
        "Forward KL;\ngradients of the hidden states and of the student's unembedding.",
        "vocabulary", 2, 16384, "a batch of 16384 tokens"};
    return show(&c, &scene);
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
