/* SPDX-License-Identifier: Apache-2.0
 *
 * The kit's cases in guarded memory, drawn from the test's random numbers, with a check for everything that the kit
 * finds.
 */
#ifndef TEST_CASES_H
#define TEST_CASES_H

#include "../kit/divergence.h"
#include "../kit/ways.h"
#include "test.h"

/* All instruction sets, of which some are here. */
#define TEST_ISA_LIST \
    SKL_ISA_BASELINE, SKL_ISA_AVX2, SKL_ISA_AVX512, SKL_ISA_NEON, SKL_ISA_AMX, SKL_ISA_AVX512BF16, SKL_ISA_NEONBF16
#define TEST_ISAS     \
    {                 \
        TEST_ISA_LIST \
    }

/* Guard pages around every tensor. */
extern const struct kit_memory test_memory;

struct kit_case test_random_case(void);

/* With STREAMKL_TEST_BF16=1 in the environment all operands are bf16: for the units that multiply it. With
 * STREAMKL_TEST_SPLIT=1 all are f32, in bf16 parts where the instruction set has products of these. */
void test_build(struct kit_fixture *f, const struct kit_case *c);
void test_destroy(struct kit_fixture *f); /* checks that no call changed the inputs since kit_expect() */

/* Checks an outcome; 'what' names it in the messages. These return the number of failures. */
int test_outcome(const struct kit_fixture *f, const struct kit_outcome *outcome, const char *what);
int test_compare(struct kit_fixture *f, struct skl_outputs *out, const char *what);
int test_run(struct kit_fixture *f, enum kit_way way);
int test_run_slices(struct kit_fixture *f, int64_t n);

/* Builds, expects, runs every way on every instruction set here, destroys. */
int test_all_ways(const struct kit_case *c);

/* Checks what a call has written of rows that see a sink of theirs and no key: nothing to learn, all mass is the sink's. */
void test_only_sinks(const struct kit_fixture *f);

/* Checks that value and gradients have the bits of one thread with 2, 3 and 5 threads. */
void test_same_bits(const struct kit_case *c);

#endif
