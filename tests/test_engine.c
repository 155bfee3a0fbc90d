/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine against the reference: random cases out of the product of every option, each in all five ways on every
 * instruction set here. Case k of seed s is repeated with STREAMKL_TEST_SEED=s and STREAMKL_TEST_ONLY=k.
 */
#include "cases.h"

int main(void)
{
    test_begin("test_engine");
    const char *only = getenv("STREAMKL_TEST_ONLY");
    int cases = test_cases(260, 25);
    for (int k = 0; k < cases; k++) {
        if (only && atoi(only) != k)
            continue;
        test_reseed(test_seed() * 1000003 + (uint64_t)k);
        struct kit_case c = test_random_case();
        if (test_all_ways(&c) > 0)
            printf("test_engine: that was case %d of seed %llu\n", k, (unsigned long long)test_seed());
    }
    return test_end();
}
