/* SPDX-License-Identifier: Apache-2.0
 *
 * The emulator's own test: it runs right kernels rightly and finds what is wrong with wrong ones.
 *
 *     selftest [selftest.ptx]
 *
 * Without the PTX of selftest.cu only the instructions are tested, on PTX written here.
 */
#define _GNU_SOURCE
#include "selftest.h"

#include <time.h>

struct emu_report report;

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void print_errors(void)
{
    for (int i = 0; i < report.texts; i++) printf("    %s\n", report.text[i]);
}

const char *const wants[OTHER + 1] = {"nothing",       "a race",          "out of bounds",
                                      "uninitialised", "synchronisation", "others"};

int found(int want)
{
    uint64_t counts[] = {!report.errors,       report.races,           report.out_of_bounds,
                         report.uninitialised, report.synchronisation, report.other};
    return counts[want] > 0;
}

/* ------------------------------------------------------------------------------------ kernels of selftest.cu --- */

static char *read_file(const char *name)
{
    FILE *f = fopen(name, "rb");
    if (!f)
        return NULL;
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    rewind(f);
    char *text = malloc((size_t)n + 1);
    if (!text || fread(text, 1, (size_t)n, f) != (size_t)n)
        abort();
    text[n] = 0;
    fclose(f);
    return text;
}

static const struct {
    const char *kernel;
    int n, blocks, shared, want;
    int writes_all; /* so many floats */
} trials[] = {
    {"sum_right", 0, 3, 0, RIGHT, 3},
    {"sum_without_last_barriers", 0, 1, 0, RACE, 1},
    {"exchange_right", 0, 1, 512, RIGHT, 128},
    {"exchange_without_syncwarp", 0, 1, 512, RACE, 128},
    {"shared_past_the_end", 0, 1, 512, BOUNDS, 128},
    {"shared_never_written", 0, 1, 512, UNWRITTEN, 128},
    {"shared_bytes", 0, 1, 128, RIGHT, 128},
    {"shared_column", 0, 1, 4096, RIGHT, 256},
    {"quad_writes_once", 0, 1, 0, RIGHT, 32},
    {"quad_writes_the_same", 0, 1, 0, RACE, 32},
    {"blocks_add_by_atomics", 0, 4, 0, RIGHT, 4},
    {"blocks_add_without_atomics", 0, 4, 0, RACE, 1},
    {"blocks_add_without_atomics", 0, 1, 0, RIGHT, 1},
    {"block_reads_another", 0, 4, 0, RACE, 5},
    {"reads_past_the_tail", 512 - 128, 1, 0, RIGHT, 128},
    {"reads_past_the_tail", 512 - 127, 1, 0, BOUNDS, 128},
    {"writes_past_the_tail", 2048 - 127, 1, 0, BOUNDS, 0},
    {"misaligned", 0, 1, 0, BOUNDS, 0},
    {"threads_pass_by_global", 0, 1, 0, RIGHT, 256},
    {"halves_side_by_side", 0, 1, 0, RIGHT, 64},
    {"barrier_in_branch", 128, 1, 0, RIGHT, 128},
    {"barrier_in_branch", 64, 1, 0, SYNC, 0},
    {"barrier_in_branch", 80, 1, 0, SYNC, 0},
    {"exit_before_barrier", 128, 1, 0, RIGHT, 256},
    {"exit_before_barrier", 100, 1, 0, SYNC, 0},
    {"shuffle_in_branch", 32, 1, 0, RIGHT, 128},
    {"shuffle_in_branch", 20, 1, 0, SYNC, 0},
    {"shuffle_of_some", 0, 1, 0, RIGHT, 128},
};

static int launch(const struct emu_module *m, const char *kernel, int blocks, int shared,
                  const struct selftest_args *args, const struct emu_options *o)
{
    return emu_launch(m, kernel, blocks, 1, 128, (size_t)shared, args, sizeof(*args), o, &report);
}

static void check_trials(const struct emu_module *m)
{
    for (int i = 0; i < COUNT(trials); i++)
        for (int order = 0; order < 3; order++) {
            struct selftest_args a = {.n = trials[i].n};
            float *in = emu_allocate(512 * 4), *out = emu_allocate(2048 * 4);
            for (int k = 0; k < 512; k++) in[k] = (float)k;
            emu_written(in, 512 * 4);
            a.in = in;
            a.out = out;
            if (strstr(trials[i].kernel, "blocks_add")) {
                memset(out, 0, 24);
                emu_written(out, 24);
            }
            test_context("%s(%d), order %d", trials[i].kernel, a.n, order);
            struct emu_options o = {.order = (enum emu_order)order, .seed = test_random()};
            launch(m, trials[i].kernel, trials[i].blocks, trials[i].shared, &a, &o);
            uint64_t counts[] = {0, report.races, report.out_of_bounds, report.uninitialised, report.synchronisation};
            counts[RIGHT] = !report.errors;
            int ok = CHECK(counts[trials[i].want] && report.other == 0, "expected %s", wants[trials[i].want]);
            /* A race may well be an uninitialised read as well; nothing else may come along. */
            for (int k = 1; k < COUNT(counts); k++)
                if (k != trials[i].want && !(trials[i].want == RACE && k == UNWRITTEN))
                    ok &= CHECK(!counts[k], "%s, too", wants[k]);
            if (trials[i].want == RIGHT)
                ok &= CHECK(emu_unwritten(out, (size_t)trials[i].writes_all * 4) == 0, "not all is written");
            if (!ok)
                print_errors();
            if (!strcmp(trials[i].kernel, "sum_right"))
                CHECK(out[0] == 127 * 64 && out[2] == 127 * 64 + 256 * 128, "the sums are wrong");
            if (!strcmp(trials[i].kernel, "blocks_add_by_atomics")) {
                uint32_t *u = (uint32_t *)out;
                CHECK(out[0] == 512 && u[1] == 512 && u[2] == 127 && u[5] == 512, "the atomic sums are wrong");
            }
            if (!strcmp(trials[i].kernel, "threads_pass_by_global"))
                CHECK(out[128] == 127 && out[255] == 0, "the threads' values are wrong");
            if (!strcmp(trials[i].kernel, "shared_column") && order == 0) {
                CHECK(report.scalar_conflicts == 4 * 31, "a column of 32 rows: %llu conflicts",
                      (unsigned long long)report.scalar_conflicts);
                CHECK(report.vector_conflicts == 4 * 4, "every other 16 bytes: %llu conflicts",
                      (unsigned long long)report.vector_conflicts);
            }
            emu_release(in);
            emu_release(out);
        }
    test_context("%s", "");
}

/* Device memory that was never written, reading what a launch before has written, and .nc. */
static void check_history(const struct emu_module *m)
{
    struct selftest_args a = {.n = 0};
    float *in = emu_allocate(512 * 4), *out = emu_allocate(2048 * 4);
    a.in = in;
    a.out = out;
    CHECK(launch(m, "halves_side_by_side", 1, 0, &a, NULL) && report.uninitialised == 128,
          "never written: %llu reads reported", (unsigned long long)report.uninitialised);
    emu_written(in, 512 * 4);
    a.in = out;
    a.out = in;
    emu_written(out, 512 * 4);
    CHECK(!launch(m, "halves_side_by_side", 1, 0, &a, NULL), "written by the host");
    a.in = in;
    a.out = out;
    CHECK(!launch(m, "halves_side_by_side", 1, 0, &a, NULL), "written by the launch before");
    a.out = in + 64; /* reads 128 floats, writes the second half of them as bf16 */
    CHECK(launch(m, "halves_side_by_side", 1, 0, &a, NULL) && report.races, "overlapping arguments");
    emu_release(in);
    emu_release(out);
    CHECK(launch(m, "halves_side_by_side", 1, 0, &a, NULL) && report.out_of_bounds == 256, "released memory");
}

/* ---------------------------------------------------------------------------------------------- numerics --- */

static void check_arithmetic(const struct emu_module *m)
{
    struct selftest_args a = {.table = {10, 11, 12, 13}};
    float *in = emu_allocate(512 * 4), *out = emu_allocate(2048 * 4);
    for (int k = 0; k < 512; k++) in[k] = (float)(test_normal() * 3);
    emu_written(in, 512 * 4);
    a.in = in;
    a.out = out;
    int failed = launch(m, "arithmetic", 1, 0, &a, NULL);
    print_errors();
    CHECK(!failed, "arithmetic went wrong");
    for (int t = 0; t < 128; t++) {
        float x = in[t], y = in[128 + t], *o = out + 16 * t;
        uint32_t u = as_bits(x);
        CHECK(as_bits(o[0]) == ((u + 0x7FFF + (u >> 16 & 1)) & 0xFFFF0000u), "bf16(%g) = %g", (double)x, (double)o[0]);
        CHECK((double)o[1] == f16_value(f16_nearest((double)x)) && o[2] == truncf(x) && o[3] == rintf(x),
              "conversions of %g", (double)x);
        CHECK(o[4] == x / y && o[5] == sqrtf(fabsf(x)) && o[6] == fmaf(x, y, 1), "exact functions of %g, %g", (double)x,
              (double)y);
        CHECK_NEAR((double)o[7], exp((double)x), 3e-7 * exp((double)x), "exp");
        CHECK_NEAR((double)o[8], log(fabs((double)y) + 0.5), 3e-7, "log");
        CHECK_NEAR((double)o[9], tanh((double)x), 3e-7, "tanh");
        CHECK_NEAR((double)o[10], (double)x * (double)y, 1e-6 + 1e-7 * fabs((double)x * (double)y), "in f64");
        CHECK(o[11] == 10 + t % 4, "a parameter by index");
        CHECK(o[12] == x * (float)((t * 3 - t) & 7), "local memory: %g, not %g", (double)o[12],
              (double)(x * (float)((t * 2) & 7)));
        CHECK(o[13] == (float)((uint32_t)t * 2654435761u % 1000u / 7u), "integers");
        CHECK_NEAR((double)o[14], log(fabs((double)y) + 2), 1e-6, "log in f64");
        CHECK(o[15] == fminf(x, y) + floorf(x) + ceilf(y) + rintf(x), "roundings");
    }
    failed = launch(m, "warp_functions", 1, 0, &a, NULL);
    print_errors();
    CHECK(!failed, "warp_functions went wrong");
    for (int t = 0; t < 128; t++) {
        int l = t % 32, w = t - l, positive = 0, negative = 1;
        for (int k = 0; k < 32; k++) positive += in[w + k] > 0, negative &= in[w + k] < 0;
        const float *o = out + 8 * t;
        CHECK(o[0] == in[w + (l ^ 5)] && o[1] == in[w + (l + 3 < 32 ? l + 3 : l)] &&
                  o[2] == in[w + (l >= 3 ? l - 3 : l)] && o[3] == in[w + l / 8 * 8 + 3],
              "shuffles of thread %d", t);
        CHECK(o[4] == (float)positive && o[5] == 1 + 2 * (float)negative, "votes of thread %d", t);
        CHECK(o[6] == (float)(32 * w + 31 * 16), "sum of a warp");
        CHECK(o[7] == in[w + (l % 16 + 8 < 16 ? l + 8 : l)], "shuffle of f64");
    }
    emu_release(in);
    emu_release(out);
}

/* ------------------------------------------------------------------------------------------- the pipeline --- */

enum { SHARED = 4 * 64 * 64 * 2 };

struct matrices {
    uint16_t *left, *right;
    float *out;
    int n;
};

static struct matrices make_matrices(int n, int is_f16)
{
    struct matrices x = {emu_allocate((size_t)(64 * n) * 2), emu_allocate((size_t)(64 * n) * 2),
                         emu_allocate(64 * 64 * 4), n};
    for (int i = 0; i < 64 * n; i++)
        for (int side = 0; side < 2; side++) {
            float v = (float)test_normal();
            uint16_t bits = (uint16_t)(is_f16 ? f16_nearest((double)v) : as_bits(v) >> 16);
            (side ? x.right : x.left)[i] = bits;
        }
    emu_written(x.left, (size_t)(64 * n) * 2);
    emu_written(x.right, (size_t)(64 * n) * 2);
    return x;
}

static void free_matrices(struct matrices *x)
{
    emu_release(x->left);
    emu_release(x->right);
    emu_release(x->out);
}

static double half(uint16_t bits, int is_f16)
{
    return is_f16 ? f16_value(bits) : (double)as_float((uint32_t)bits << 16);
}

/* The largest error of the product relative to the sum of magnitudes. */
static double product_error(const struct matrices *x, int is_f16)
{
    double worst = 0;
    for (int i = 0; i < 64; i++)
        for (int j = 0; j < 64; j++) {
            double sum = 0, size = 0;
            for (int k = 0; k < x->n; k++) {
                double p = half(x->left[i * x->n + k], is_f16) * half(x->right[j * x->n + k], is_f16);
                sum += p;
                size += fabs(p);
            }
            double e = fabs((double)x->out[64 * i + j] - sum) / size;
            if (!(e <= worst) && worst == worst)
                worst = e;
        }
    return worst;
}

static void check_pipeline(const struct emu_module *m)
{
    for (int is_f16 = 0; is_f16 < 2; is_f16++)
        for (int n = 8; n <= 200; n += 64) {
            struct matrices x = make_matrices(n, is_f16);
            float first[64 * 64];
            struct selftest_args a = {NULL, x.out, x.left, x.right, n, 1, {0}};
            const char *kernel = is_f16 ? "product_f16" : "product_bf16";
            int steps = (n + 63) / 64;
            for (int mode = 0; mode < 9; mode++) {
                test_context("%s of %d, order %d, copies %d", kernel, n, mode / 3, mode % 3);
                struct emu_options o = {
                    .order = (enum emu_order)(mode / 3), .copies = (enum emu_copies)(mode % 3), .seed = test_random()};
                memset(x.out, 0xFF, sizeof(first));
                int ok = CHECK(!launch(m, kernel, 1, SHARED, &a, &o), "%llu errors", (unsigned long long)report.errors);
                if (!ok)
                    print_errors();
                if (!mode)
                    memcpy(first, x.out, sizeof(first));
                CHECK(product_error(&x, is_f16) < 1e-6, "error %g", product_error(&x, is_f16));
                CHECK(!memcmp(first, x.out, sizeof(first)), "the order changes the result");
                CHECK(report.mma == (uint64_t)steps * 4 * 4 * 8 && report.ldmatrix == (uint64_t)steps * 4 * 4 * 5 &&
                          report.copies == (uint64_t)steps * 1024 && !report.matrix_conflicts &&
                          !report.unwaited_copies && report.barriers == (uint64_t)steps * 2,
                      "the counts are wrong");
            }
            test_context("%s of %d", kernel, n);
            struct emu_options o = {.truncate = 1}; /* valgrind, where tests are quick, always rounds to nearest */
            CHECK(!launch(m, kernel, 1, SHARED, &a, &o), "with truncation");
            CHECK(product_error(&x, is_f16) < 5e-6 && (n < 32 || test_quick() || memcmp(first, x.out, sizeof(first))),
                  "truncation: error %g", product_error(&x, is_f16));
            a.swizzle = 0;
            CHECK(!launch(m, kernel, 1, SHARED, &a, NULL), "without swizzle");
            CHECK(report.matrix_conflicts == (uint64_t)steps * 4 * 4 * 5 * 4 * 7, "without swizzle: %llu conflicts",
                  (unsigned long long)report.matrix_conflicts);
            a.swizzle = 1;
            launch(m, kernel, 1, SHARED - 16, &a, NULL);
            CHECK(n <= 64 ? !report.errors : report.out_of_bounds, "16 bytes of shared memory less");
            free_matrices(&x);
        }
    test_context("%s", "");
}

/* Every barrier, commit and wait of the pipeline is needed: without one of them each order reports something. */
static void check_mutants(const char *ptx)
{
    static const char *const needles[] = {"bar.sync", "cp.async.commit_group", "cp.async.wait_group"};
    const char *start = strstr(ptx, ".entry product_bf16"), *end = start ? strstr(start, "\n}\n") : NULL;
    int mutants = 0;
    if (!CHECK(end != NULL, "product_bf16 is not in the PTX"))
        return;
    struct matrices x = make_matrices(200, 0);
    double begin = seconds();
    for (int i = 0; i < COUNT(needles); i++)
        for (const char *at = start; (at = strstr(at, needles[i])) && at < end; at++) {
            char *text = strdup(ptx);
            memset(text + (at - ptx), ' ', strcspn(at, ";"));
            struct emu_module *m = emu_load(text, "mutant");
            free(text);
            if (!CHECK(m != NULL, "%s", emu_message()))
                continue;
            for (int order = 0; order < 3; order++) {
                struct emu_options o = {.order = (enum emu_order)order, .copies = EMU_EARLY, .seed = test_random()};
                struct selftest_args a = {NULL, x.out, x.left, x.right, 200, 1, {0}};
                CHECK(launch(m, "product_bf16", 1, SHARED, &a, &o), "without a %s, order %d: nothing is reported",
                      needles[i], order);
            }
            mutants++;
            emu_unload(m);
        }
    CHECK(mutants >= 5, "only %d mutants", mutants);
    printf("%d mutants in %.2f s\n", mutants, seconds() - begin);
    free_matrices(&x);
}

static void print_speed(const struct emu_module *m)
{
    struct matrices x = make_matrices(2048, 0);
    struct selftest_args a = {NULL, x.out, x.left, x.right, 2048, 1, {0}};
    double begin = seconds();
    launch(m, "product_bf16", 1, SHARED, &a, NULL);
    double time = seconds() - begin;
    printf("%.1f million warp instructions a second, of which %.2f million mma\n",
           1e-6 * (double)report.instructions / time, 1e-6 * (double)report.mma / time);
    free_matrices(&x);
}

int main(int count, char **values)
{
    test_begin("emulator");
    check_instructions();
    check_halves();
    check_perturbed();
    check_refused();
    check_fragments();
    check_orders();
    if (count > 1) {
        char *text = read_file(values[1]);
        if (!CHECK(text != NULL, "%s cannot be read", values[1]))
            return test_end();
        struct emu_module *m = emu_load(text, "selftest.ptx");
        if (CHECK(m != NULL, "%s", emu_message())) {
            check_trials(m);
            check_history(m);
            check_arithmetic(m);
            check_pipeline(m);
            check_mutants(text);
            print_speed(m);
        }
        emu_unload(m);
        free(text);
    }
    CHECK(emu_allocations() == 0, "%d allocations are left", emu_allocations());
    return test_end();
}
