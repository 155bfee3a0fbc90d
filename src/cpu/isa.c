/* SPDX-License-Identifier: Apache-2.0
 * Which instruction sets this build has and this CPU allows. Compiled for the baseline: it runs before anyone knows. */
#define _DEFAULT_SOURCE /* syscall */
#include "kernels.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* What a CPU has that some kernels need, or that makes them the better choice. An instruction set is a set of these and
 * no place in an order: one more unit is one more bit, looked for below, and a line of the table. */
enum feature {
    AVX2 = 1,
    AVX512 = 2,
    NEON = 4,
    AVX512BF16 = 8,
    FAST_AVX512BF16 = 16, /* VDPBF16PS does more than f32 FMA */
    AMX = 32,
    NEONBF16 = 64,
    STAND_IN = 128 /* STREAMKL_ISA has the stand-in's name */
};

#if defined(__x86_64__)
#include <cpuid.h>

static int has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static int has_avx512bf16(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 5);
}

/* By maker: AMD's cores that have the instruction (Zen 4, Zen 5) start as many of them as FMAs, each with twice the
 * products; Intel's (Sapphire Rapids) start a quarter, measured. */
static int has_fast_avx512bf16(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(0, &a, &b, &c, &d) && b == signature_AMD_ebx;
}

#if defined(__linux__) && defined(SKL_WITH_AMX)
#include <sys/syscall.h>
#include <unistd.h>

/* Eight tiles of 16 lines of 64 bytes, and the products of bf16. The number of tiles is taken from the room that XSAVE
 * needs for them, not from leaf 0x1d, which describes their shape: some virtual machines give their guests AMX and end
 * CPUID at leaf 0x1c. Palette 1, the only one there is, is of this shape. */
static int has_amx(void)
{
    enum { XSAVE_LEAF = 0xd, XTILEDATA = 18, TILES_BYTES = 8 * 16 * 64 };
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & 1u << 22) || !(d & 1u << 24))
        return 0;
    return __get_cpuid_count(XSAVE_LEAF, XTILEDATA, &a, &b, &c, &d) && a == TILES_BYTES;
}

/* The system gives tiles to a process that asks, once and for all its threads, and may refuse: where an alternative
 * signal stack is too small to hold them, for one. Asked again each time, a refusal need not be for ever. */
static int may_use_amx(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
    static atomic_int granted, lacking; /* to ask the processor takes microseconds in a virtual machine */
    if (atomic_load_explicit(&lacking, memory_order_relaxed) || !has_amx()) {
        atomic_store_explicit(&lacking, 1, memory_order_relaxed);
        return 0;
    }
    if (!atomic_load_explicit(&granted, memory_order_relaxed) &&
        syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0)
        atomic_store_explicit(&granted, 1, memory_order_relaxed);
    return atomic_load_explicit(&granted, memory_order_relaxed);
}
#else
static int may_use_amx(void)
{
    return 0;
}
#endif

/* __builtin_cpu_supports also asks whether the operating system saves the wide registers. */
static int features_here(void)
{
    int found = 0;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c())
        found |= AVX2;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        found |= AVX512 | (has_avx512bf16() ? AVX512BF16 : 0) | (has_fast_avx512bf16() ? FAST_AVX512BF16 : 0);
    return found;
}

/* Only asked for where the process is to have it. */
static int features_on_request(int needs)
{
    return (needs & AMX) && may_use_amx() ? AMX : 0;
}
#elif defined(__aarch64__)
#ifdef __linux__
#include <sys/auxv.h>
#endif

static int features_here(void)
{
    int found = NEON; /* of every such CPU */
#ifdef __linux__
    enum {
        HALF_BIT = 10,
        BF16_BIT = 14
    }; /* of HWCAP and HWCAP2: f16 arithmetic, which the compiler may use, and BFDOT */
    if ((getauxval(AT_HWCAP) & 1ul << HALF_BIT) && (getauxval(AT_HWCAP2) & 1ul << BF16_BIT))
        found |= NEONBF16;
#endif
    return found;
}
static int features_on_request(int needs)
{
    (void)needs;
    return 0;
}
#else
static int features_here(void)
{
    return 0;
}
static int features_on_request(int needs)
{
    (void)needs;
    return 0;
}
#endif

/* Best first. 'worth': what else the CPU must have for the set to be the best choice. */
static const struct {
    const struct skl_kernels *kernels;
    int needs, worth;
    const char *stand_in; /* the word for it in STREAMKL_ISA, without which it is not there: test builds */
} table[] = {
#ifdef SKL_WITH_STAND_INS
    {&skl_kernels_emulated_amx, AVX2 | STAND_IN, 0, "amx-emulated"},
    {&skl_kernels_emulated_avx512bf16, AVX2 | STAND_IN, 0, "avx512bf16-emulated"},
#endif
#ifdef SKL_WITH_AMX
    {&skl_kernels_amx, AVX2 | AVX512 | AMX, 0, NULL},
#endif
#ifdef SKL_WITH_AVX512BF16
    {&skl_kernels_avx512bf16, AVX2 | AVX512 | AVX512BF16, FAST_AVX512BF16, NULL},
#endif
#ifdef SKL_WITH_AVX512
    {&skl_kernels_avx512, AVX2 | AVX512, 0, NULL},
#endif
#if defined(__x86_64__)
    {&skl_kernels_avx2, AVX2, 0, NULL},
#endif
#ifdef SKL_WITH_NEONBF16
    {&skl_kernels_neonbf16, NEON | NEONBF16, 0, NULL},
#endif
#if defined(__aarch64__)
    {&skl_kernels_neon, NEON, 0, NULL},
#endif
    {&skl_kernels_baseline, 0, 0, NULL},
};
enum { KINDS = sizeof table / sizeof *table };

const char *skl_isa_name(enum skl_isa isa)
{
    static const char *const names[] = {"best", "baseline", "avx2", "avx512", "neon", "amx", "avx512bf16", "neonbf16"};
    return (int)isa >= 0 && (int)isa <= SKL_ISA_NEONBF16 ? names[isa] : "unknown";
}

/* Does STREAMKL_ISA name this line of the table? */
static int is_named(int i)
{
    const char *name = getenv("STREAMKL_ISA");
    return name && !strcmp(name, table[i].stand_in ? table[i].stand_in : skl_isa_name(table[i].kernels->isa));
}

/* STREAMKL_ISA takes away what is better than it; a word that is none of the table's takes nothing away. */
static int first_allowed(void)
{
    for (int i = 0; i < KINDS; i++)
        if (is_named(i))
            return i;
    return 0;
}

/* They do not change, and asking takes microseconds in a virtual machine. */
static int known_features(void)
{
    enum { KNOWN = 1 << 30 };
    static atomic_int features;
    int found = atomic_load_explicit(&features, memory_order_relaxed);
    if (!found) {
        found = features_here() | KNOWN;
        atomic_store_explicit(&features, found, memory_order_relaxed);
    }
    return found & ~KNOWN;
}

const struct skl_kernels *skl_kernels_for(enum skl_isa isa)
{
    int here = known_features();
    for (int i = first_allowed(); i < KINDS; i++) {
        int needs = table[i].needs | (isa == SKL_ISA_BEST ? table[i].worth : 0);
        if (isa != SKL_ISA_BEST && isa != table[i].kernels->isa)
            continue;
        int found = here | (is_named(i) ? STAND_IN : 0) | features_on_request(needs);
        if ((needs & ~found) == 0)
            return table[i].kernels;
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
