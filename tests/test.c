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
    vsnprintf(context, sizeof context, format, args);
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
        vprintf(format, args);
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

int test_cases(int full, int quick)
{
    return (int)environment("STREAMKL_TEST_CASES", test_quick() ? quick : full);
}

uint64_t test_seed(void)
{
    return seed;
}

static uint64_t random_state;

void test_reseed(uint64_t from)
{
    random_state = from;
}

/* splitmix64 */
uint64_t test_random(void)
{
    uint64_t z = random_state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

int64_t test_between(int64_t least, int64_t most)
{
    return least + (int64_t)(test_random() % (uint64_t)(most - least + 1));
}

int test_chance(int one_in)
{
    return test_between(1, one_in) == 1;
}

double test_uniform(void)
{
    return (double)(test_random() >> 11) * 0x1p-53;
}

double test_normal(void)
{
    double radius = sqrt(-2 * log(1 - test_uniform()));
    return radius * cos(6.283185307179586 * test_uniform());
}

/* --------------------------------------------------------------------------------------------- guarding --- */

struct test_buffer test_alloc(size_t size, size_t element, enum test_place place)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t inside = (size + element + page - 1) / page * page;
    struct test_buffer b = {NULL, NULL, inside + 2 * page, size};
    b.map = mmap(NULL, b.map_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (b.map == MAP_FAILED || mprotect(b.map, page, PROT_NONE) || mprotect(b.map + page + inside, page, PROT_NONE)) {
        printf("%s: cannot map %zu bytes\n", test_name, b.map_size);
        exit(1);
    }
    b.data = place == TEST_AT_END ? b.map + page + inside - size : b.map + page + (place == TEST_ODD ? element : 0);
    return b;
}

void test_free(struct test_buffer *b)
{
    if (b->map)
        munmap(b->map, b->map_size);
    b->map = b->data = NULL;
}

void test_fill_canary(struct test_buffer *b)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    memset(b->map + page, TEST_CANARY, b->map_size - 2 * page);
}

int test_is_canary(const struct test_buffer *b)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const unsigned char *first = b->map + page;
    size_t size = b->map_size - 2 * page;
    /* Every byte equals its neighbour and the first is the canary. */
    return first[0] == TEST_CANARY && memcmp(first, first + 1, size - 1) == 0;
}

double test_cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
