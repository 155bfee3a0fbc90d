/* SPDX-License-Identifier: Apache-2.0
 *
 * The whole test framework. A program calls test_begin(), makes checks, and returns test_end(). No packaged C framework
 * gives together what is needed here: comparisons that NaN cannot pass, guard pages, a printed seed, skip = exit 77.
 *
 * Environment: STREAMKL_TEST_QUICK=1 runs a small selection (valgrind, sanitizers, emulators), STREAMKL_TEST_SEED=n
 * repeats a run, STREAMKL_TEST_CASES=n sets the number of random cases.
 */
#ifndef TEST_H
#define TEST_H

#include "../kit/memory.h"
#include "../kit/random.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEST_SKIPPED 77
#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

/* ----------------------------------------------------------------------------------------------- checks --- */

void test_begin(const char *name); /* prints the seed */
int test_end(void);                /* prints "N passed, N failed"; the exit code */
int test_skip(const char *why);    /* the exit code of a program that cannot run here */

/* What is being tested now; printed in front of every failure until it is set again. */
void test_context(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* One check; returns ok. The message is printed when it failed. */
int test_check(int ok, const char *file, int line, const char *format, ...) __attribute__((format(printf, 4, 5)));

#define CHECK(ok, ...) test_check(!!(ok), __FILE__, __LINE__, __VA_ARGS__)

/* |got - want| <= bound, or the same infinity. NaN fails; -0 equals 0. */
int test_within(double got, double want, double bound);

#define CHECK_NEAR(got, want, bound, what) test_near(got, want, bound, what, __FILE__, __LINE__)
int test_near(double got, double want, double bound, const char *what, const char *file, int line);

#define CHECK_STATUS(call, want)                                                                            \
    do {                                                                                                    \
        enum skl_status status_ = (call);                                                                   \
        CHECK(status_ == (want), "%s gave \"%s\" (%s), expected \"%s\"", #call, skl_status_string(status_), \
              skl_last_error(), skl_status_string(want));                                                   \
    } while (0)

/* --------------------------------------------------------------------------------------------- choosing --- */

int test_quick(void); /* 1 under STREAMKL_TEST_QUICK */
int test_bf16(void);  /* STREAMKL_TEST_BF16=1: see test_build() */
int test_split(void); /* STREAMKL_TEST_SPLIT=1: the same */
int test_cases(int full, int quick);
uint64_t test_seed(void);

/* Random numbers, the same on every machine: those of kit/random.h, from one state. */
extern struct kit_random test_numbers;
void test_reseed(uint64_t from);
uint64_t test_random(void);
int64_t test_between(int64_t least, int64_t most); /* both included */
int test_chance(int one_in);
double test_uniform(void); /* [0, 1) */
double test_normal(void);

#define PICK(array) ((array)[test_between(0, COUNT(array) - 1)])

/* --------------------------------------------------------------------------------------------- guarding --- */

/* Memory between two pages that may not be touched: KIT_AT_END makes an overrun of one byte a crash, KIT_ALIGNED an
 * underrun. */
struct kit_buffer test_alloc(size_t size, size_t element, enum kit_place place);
void test_free(struct kit_buffer *b);

/* CPU time of this process in seconds. */
double test_cpu_seconds(void);

#endif
