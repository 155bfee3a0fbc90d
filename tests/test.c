/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "test.h"

#include <pthread.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* ----------------------------------------------------------------------------------------------- checks --- */

enum { SHOWN = 25 }; /* failures printed; the others are counted */

static const char *test_name = "?";
static char context[512];
static long passed, failed;
static uint64_t seed;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static long environment(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtol(text, NULL, 0) : otherwise;
}

void test_begin(const char *name)
{
    test_name = name;
    setvbuf(stdout, NULL, _IOLBF, 0);
    seed = (uint64_t)environment("STREAMKL_TEST_SEED", 1);
    test_reseed(seed);
    printf("%s: seed %llu%s\n", name, (unsigned long long)seed, test_quick() ? ", quick" : "");
}

int test_end(void)
{
    printf("%s: %ld passed, %ld failed\n", test_name, passed, failed);
    return failed > 0 || passed == 0; /* a program that checked nothing did not pass */
}

int test_skip(const char *why)
{
    printf("%s: skipped: %s\n", test_name, why);
    return TEST_SKIPPED;
}

void test_context(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(context, sizeof context, format, args); /* NOLINT(clang-analyzer-valist.Uninitialized): it is, above */
    va_end(args);
}

int test_check(int ok, const char *file, int line, const char *format, ...)
{
    pthread_mutex_lock(&lock);
    if (ok) {
        passed++;
    } else if (++failed <= SHOWN) {
        const char *slash = strrchr(file, '/');
        printf("%s:%d: FAILED: %s%s", slash ? slash + 1 : file, line, context, *context ? ": " : "");
        va_list args;
        va_start(args, format);
        vprintf(format, args); /* NOLINT(clang-analyzer-valist.Uninitialized): it is, above */
        va_end(args);
        printf("%s\n", failed == SHOWN ? "\n(further failures are only counted)" : "");
    }
    pthread_mutex_unlock(&lock);
    return ok;
}

int test_within(double got, double want, double bound)
{
    return got == want || fabs(got - want) <= bound;
}

int test_near(double got, double want, double bound, const char *what, const char *file, int line)
{
    return test_check(test_within(got, want, bound), file, line, "%s = %.9g, expected %.9g within %.3g, off by %.3g",
                      what, got, want, bound, fabs(got - want));
}

/* --------------------------------------------------------------------------------------------- choosing --- */

int test_quick(void)
{
    return environment("STREAMKL_TEST_QUICK", 0) != 0;
}

int test_bf16(void)
{
    return environment("STREAMKL_TEST_BF16", 0) != 0;
}

int test_split(void)
{
    return environment("STREAMKL_TEST_SPLIT", 0) != 0;
}

int test_cases(int full, int quick)
{
    return (int)environment("STREAMKL_TEST_CASES", test_quick() ? quick : full);
}

uint64_t test_seed(void)
{
    return seed;
}

struct kit_random test_numbers;

void test_reseed(uint64_t from)
{
    test_numbers.state = from;
}

uint64_t test_random(void)
{
    return kit_bits(&test_numbers);
}

int64_t test_between(int64_t least, int64_t most)
{
    return kit_between(&test_numbers, least, most);
}

int test_chance(int one_in)
{
    return kit_chance(&test_numbers, one_in);
}

double test_uniform(void)
{
    return kit_uniform(&test_numbers);
}

double test_normal(void)
{
    return kit_normal(&test_numbers);
}

/* --------------------------------------------------------------------------------------------- guarding --- */

struct kit_buffer test_alloc(size_t size, size_t element, enum kit_place place)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t inside = (size + element + page - 1) / page * page;
    unsigned char *map = mmap(NULL, inside + 2 * page, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED || mprotect(map, page, PROT_NONE) || mprotect(map + page + inside, page, PROT_NONE)) {
        printf("%s: cannot map %zu bytes\n", test_name, inside + 2 * page);
        exit(1);
    }
    unsigned char *first = map + page;
    return (struct kit_buffer){.data = place == KIT_AT_END ? first + inside - size
                                                           : first + (place == KIT_ODD ? element : 0),
                               .inside = first,
                               .size = size,
                               .inside_size = inside};
}

void test_free(struct kit_buffer *b)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (b->inside)
        munmap(b->inside - page, b->inside_size + 2 * page);
    b->inside = b->data = NULL;
}

double test_cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
