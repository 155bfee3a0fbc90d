/* SPDX-License-Identifier: Apache-2.0
 * Which instruction sets this build has and this CPU allows. Compiled for the baseline: it runs before anyone knows. */
#include "kernels.h"

#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

static int has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

/* __builtin_cpu_supports also asks whether the operating system saves the wide registers. */
static int has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

static int has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

static int always(void)
{
    return 1;
}

/* Best first. */
static const struct {
    const struct skl_kernels *kernels;
    int (*runs_here)(void);
} table[] = {
#if defined(__x86_64__)
    {&skl_kernels_avx512, has_avx512},
    {&skl_kernels_avx2, has_avx2},
#elif defined(__aarch64__)
    {&skl_kernels_neon, always},
#endif
    {&skl_kernels_baseline, always},
};

const char *skl_isa_name(enum skl_isa isa)
{
    static const char *const names[] = {"best", "baseline", "avx2", "avx512", "neon"};
    return (int)isa >= 0 && (int)isa <= SKL_ISA_NEON ? names[isa] : "unknown";
}

/* STREAMKL_ISA caps the choice; an unknown word does not. */
static enum skl_isa ceiling(void)
{
    const char *name = getenv("STREAMKL_ISA");
    for (int isa = SKL_ISA_BASELINE; name && isa <= SKL_ISA_NEON; isa++)
        if (!strcmp(name, skl_isa_name((enum skl_isa)isa)))
            return (enum skl_isa)isa;
    return SKL_ISA_NEON;
}

const struct skl_kernels *skl_kernels_for(enum skl_isa isa)
{
    enum skl_isa most = ceiling();
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const struct skl_kernels *k = table[i].kernels;
        if ((isa == SKL_ISA_BEST || isa == k->isa) && k->isa <= most && table[i].runs_here())
            return k;
    }
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
