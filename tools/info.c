/* SPDX-License-Identifier: Apache-2.0
 *
 * streamkl info: what this build and this machine have.
 */
#include "commands.h"
#include "device.h"
#include "machine.h"
#include "options.h"
#include "peak.h"
#include "units.h"

#include <stdio.h>
#include <string.h>

static void print_isas(int threads)
{
    enum skl_isa best = skl_isa_best();
    for (enum skl_isa isa = SKL_ISA_BASELINE; isa <= SKL_ISA_NEONBF16; isa++) {
        if (!skl_isa_available(isa))
            continue;
        printf("  %-9s FMA peak %7.1f GFLOP/s on 1 thread, %7.1f on %d%s\n", skl_isa_name(isa),
               skl_peak(isa, SKL_F32, 1, 0.2), skl_peak(isa, SKL_F32, threads, 0.2), threads,
               best == isa ? "   <- used" : "");
        if (strcmp(skl_unit(isa, SKL_BF16), skl_unit(isa, SKL_F32)) != 0)
            printf("            bf16 peak %6.1f GFLOP/s on 1 thread, %7.1f on %d%s\n", skl_peak(isa, SKL_BF16, 1, 0.2),
                   skl_peak(isa, SKL_BF16, threads, 0.2), threads, best == isa ? "   <- used for bf16 operands" : "");
        if (skl_splits(isa))
            printf("            f32 operands in three bf16 parts, six products, for linear problems with 512\n"
                   "            rows and dim 1024 or more (split_f32), where that was measured to be faster\n");
    }
    if (best != SKL_ISA_AVX512BF16 && best != SKL_ISA_AMX && skl_isa_available(SKL_ISA_AVX512BF16))
        printf("  avx512bf16 is not chosen by itself, by the processor's maker: AMD's multiply bf16 faster than f32\n");
}

static void print_caches(void)
{
    printf("caches             ");
    for (int level = 1; level <= 3; level++) {
        long size = machine_cache(level);
        printf("%sL%d %s", level > 1 ? ", " : "", level,
               size ? human_bytes((struct text){0}.chars, (double)size) : "?");
    }
    printf("\n");
}

/* NULL, or why the library does not compute there. Asks for no more than the size of a small call's workspace. */
static const char *unusable(int index)
{
    float x;
    double value;
    size_t bytes;
    struct skl_tensor one = skl_on_cuda(skl_matrix(SKL_F32, &x, 1, 1), index);
    struct skl_problem p = skl_linear(one, one, one, one);
    struct skl_outputs out = skl_no_outputs();
    out.value = &value;
    return skl_workspace_size(SKL_CALL_VALUE, &p, &out, &bytes) == SKL_OK ? NULL : skl_last_error();
}

static void print_cuda(void)
{
    int n = skl_cuda_devices();
    printf("CUDA               %s", skl_cuda_built() ? "built" : "not built");
    if (n == 0) {
        printf("; %s\n", skl_last_error());
        return;
    }
    printf(", %d device%s:\n", n, n > 1 ? "s" : "");
    for (int i = 0; i < n; i++) {
        char text[256];
        device_describe(i, text, sizeof text);
        printf("  cuda:%-4d %s\n", i, text);
        const char *why = unusable(i);
        if (why)
            printf("            %s\n", why);
    }
}

int command_info(int argc, char **argv)
{
    struct option_spec none[] = {{0}};
    struct command command = {
        "info", "Shows the version, CUDA devices, instruction sets, threads, caches and speeds measured now.", none};
    options_parse(&command, argc, argv);
    int threads = skl_max_threads();
    printf("streamkl           %s\n", skl_version());
    printf("compiler           %s\n", machine_compiler());
#if defined(__x86_64__)
    printf("compiled for       x86-64: baseline, avx2, avx512\n");
#elif defined(__aarch64__)
    printf("compiled for       aarch64: baseline, neon\n");
#else
    printf("compiled for       baseline only\n");
#endif
    printf("CPU                %s\n", machine_cpu());
    print_caches();
    printf("threads            %d\n", threads);
    printf("memory             %.1f GB/s read on %d thread%s\n", skl_read_bandwidth(threads, 0.3) * 1e-9, threads,
           threads > 1 ? "s" : "");
    print_cuda();
    printf("instruction sets   available here, with what they reach:\n");
    print_isas(threads);
    return 0;
}
