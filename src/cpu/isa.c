/* SPDX-License-Identifier: Apache-2.0
 * Which instruction sets this build has and this CPU allows. Compiled for the baseline: it runs before anyone knows. */
#include "kernels.h"

#include <stdlib.h>
#include <string.h>

/* What a CPU has that some kernels need. An instruction set is a set of these and no place in an order: one more unit (bf16
 * products, matrix units) is one more bit, looked for below, and a line of the table. */
enum feature { AVX2 = 1, AVX512 = 2, NEON = 4 };

#if defined(__x86_64__)
#include <cpuid.h>

static int has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

/* __builtin_cpu_supports also asks whether the operating system saves the wide registers. */
static int features_here(void)
{
    int found = 0;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c())
        found |= AVX2;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        found |= AVX512;
    return found;
}
#elif defined(__aarch64__)
static int features_here(void)
{
    return NEON; /* of every such CPU */
}
#else
static int features_here(void)
{
    return 0;
}
#endif

/* Best first. */
static const struct {
    const struct skl_kernels *kernels;
    int needs;
} table[] = {
#if defined(__x86_64__)
    {&skl_kernels_avx512, AVX2 | AVX512},
    {&skl_kernels_avx2, AVX2},
#elif defined(__aarch64__)
    {&skl_kernels_neon, NEON},
#endif
    {&skl_kernels_baseline, 0},
};
enum { KINDS = sizeof table / sizeof *table };

const char *skl_isa_name(enum skl_isa isa)
{
    static const char *const names[] = {"best", "baseline", "avx2", "avx512", "neon"};
    return (int)isa >= 0 && (int)isa <= SKL_ISA_NEON ? names[isa] : "unknown";
}

/* STREAMKL_ISA takes away what is better than it; a word that is none of the table's takes nothing away. */
static int first_allowed(void)
{
    const char *name = getenv("STREAMKL_ISA");
    for (int i = 0; name && i < KINDS; i++)
        if (!strcmp(name, skl_isa_name(table[i].kernels->isa)))
            return i;
    return 0;
}

const struct skl_kernels *skl_kernels_for(enum skl_isa isa)
{
    int here = features_here();
    for (int i = first_allowed(); i < KINDS; i++)
        if ((isa == SKL_ISA_BEST || isa == table[i].kernels->isa) && (table[i].needs & ~here) == 0)
            return table[i].kernels;
    return NULL;
}

int skl_isa_available(enum skl_isa isa)
{
    return isa != SKL_ISA_BEST && skl_kernels_for(isa) != NULL;
}

enum skl_isa skl_isa_best(void)
{
    return skl_kernels_for(SKL_ISA_BEST)->isa;
}
