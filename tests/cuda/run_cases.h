/* SPDX-License-Identifier: Apache-2.0
 *
 * A case on the emulated device, every way to its results, against the double reference.
 */
#ifndef TEST_CUDA_RUN_CASES_H
#define TEST_CUDA_RUN_CASES_H

#include "families.h"

/* Sums over all columns are f32 and exponentials are approximate: three times the CPU's bounds. And dx is rounded. */
static const struct kit_allowance allow = {.rows = 3, .rounds_logits = 1, .rounds_dx = 1};

/* The ways from 'first' to 'last' of a fixture whose memory the device knows. */
static inline void run_ways(struct kit_fixture *f, int first, int last)
{
    char text[512];
    kit_describe(&f->c, text, sizeof text);
    for (int way = first; way <= last; way++) {
        if ((way == KIT_RECOMPUTE && f->memory == &test_memory) || (way == KIT_SLICES && !kit_in_slices(&f->c)))
            continue;
        test_context("%s", text);
        test_run(f, (enum kit_way)way);
        test_device_clean(kit_way_names[way]);
        test_device.total = (struct emu_report){0};
    }
}

static inline void run_case_in(const struct kit_case *c, int any_order)
{
    struct kit_fixture f;
    test_build(&f, c);
    f.allow = allow;
    f.p.any_order = any_order;
    kit_expect(&f);
    test_device_adopt(&f);
    run_ways(&f, KIT_VALUE, KIT_BACKWARD);
    test_device_release(&f);
    test_destroy(&f);
}

static inline void run_case(const struct kit_case *c)
{
    run_case_in(c, 0);
}

/* Runs 'n' of the cases that make(k) makes whose p and q differ in every column by more than rounding: only of such is the
 * gradient of total variation known. */
static inline void run_determined(int n, struct kit_case (*make)(int k))
{
    int done = 0;
    for (int tries = 0; tries < 2000 && done < n; tries++) {
        struct kit_case c = make(done);
        struct kit_fixture f;
        uint64_t seed = test_random();
        test_reseed(seed), test_build(&f, &c);
        int apart = kit_determined(&f.p);
        test_destroy(&f);
        if (!apart)
            continue;
        test_reseed(seed), run_case(&c); /* the same operands again */
        done++;
    }
    CHECK(done == n, "only %d of %d problems had sides that differ everywhere", done, n);
}

/* Every way, as `streamkl check --device cuda` runs them: operands and results are copied, and the workspace is the
 * caller's where a way gives one. */
static inline void run_copied(const struct kit_case *c)
{
    struct kit_fixture f;
    kit_build(&f, c, &test_device_memory, &test_numbers);
    f.allow = allow;
    kit_expect(&f);
    run_ways(&f, KIT_VALUE, KIT_SLICES);
    kit_destroy(&f);
}

#endif
