/* SPDX-License-Identifier: Apache-2.0
 *
 * The choice of an instruction set: by p.isa, and by STREAMKL_ISA; CTest runs this program again for each of its words.
 */
#include "cases.h"

static const enum skl_isa isas[] = TEST_ISAS;

/* The sets that kernels for this architecture are in, each better than those before it. */
#if defined(__x86_64__)
static const enum skl_isa here[] = {SKL_ISA_BASELINE, SKL_ISA_AVX2, SKL_ISA_AVX512, SKL_ISA_AVX512BF16, SKL_ISA_AMX};
#elif defined(__aarch64__)
static const enum skl_isa here[] = {SKL_ISA_BASELINE, SKL_ISA_NEON, SKL_ISA_NEONBF16};
#else
static const enum skl_isa here[] = {SKL_ISA_BASELINE};
#endif

static int place(enum skl_isa isa)
{
    for (int k = 0; k < COUNT(here); k++)
        if (here[k] == isa)
            return k;
    return -1;
}

/* The best set that STREAMKL_ISA allows. A word that it does not know, or of another architecture, changes nothing. */
static enum skl_isa allowed(void)
{
    const char *name = getenv("STREAMKL_ISA");
    for (int k = 0; name && k < COUNT(here); k++)
        if (!strcmp(name, skl_isa_name(here[k])))
            return here[k];
    return here[COUNT(here) - 1];
}

static void names(void)
{
    static const char *const expected[] = {"baseline", "avx2", "avx512", "neon", "amx", "avx512bf16", "neonbf16"};
    for (int k = 0; k < COUNT(isas); k++)
        CHECK(!strcmp(skl_isa_name(isas[k]), expected[k]), "%d is named %s", isas[k], skl_isa_name(isas[k]));
    CHECK(skl_isa_available(SKL_ISA_BASELINE), "the baseline is not available");
    CHECK(skl_isa_available(skl_isa_best()), "the best is not available");
    CHECK(place(skl_isa_best()) <= place(allowed()), "STREAMKL_ISA allows %s, the best is %s", skl_isa_name(allowed()),
          skl_isa_name(skl_isa_best()));
    for (int k = 0; k < COUNT(isas); k++)
        CHECK((place(isas[k]) >= 0 && place(isas[k]) <= place(allowed())) || !skl_isa_available(isas[k]),
              "%s is above what STREAMKL_ISA allows", skl_isa_name(isas[k]));
    for (int other = -3; other < 20; other++)
        if (other < SKL_ISA_BASELINE || other > SKL_ISA_NEONBF16)
            CHECK(!skl_isa_available((enum skl_isa)other), "%d is available", other);
}

static void forced(void)
{
    for (int k = 0; k < 6; k++) {
        struct kit_fixture f;
        struct kit_case c = k % 2 ? kit_linear_case(30, 120, 33) : kit_attention_case(30, 120, 33);
        c.divergence = k / 2;
        test_build(&f, &c);
        kit_expect(&f);
        for (int i = 0; i < COUNT(isas); i++) {
            f.p.isa = isas[i];
            struct skl_outputs out = kit_outputs(&f, 1, KIT_GRAD_ALL);
            test_context("%s, divergence %d", skl_isa_name(isas[i]), c.divergence);
            if (skl_isa_available(isas[i])) {
                CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_OK);
                test_compare(&f, &out, "forced");
                continue;
            }
            CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_UNSUPPORTED);
            CHECK(strstr(skl_last_error(), skl_isa_name(isas[i])), "said \"%s\"", skl_last_error());
            CHECK(kit_is_canary(&f.out[KIT_LOSS].memory), "something was written");
        }
        /* 0 is the best, bit for bit. */
        double best, chosen;
        struct skl_outputs out = kit_outputs(&f, 1, 0);
        test_context("best, divergence %d", c.divergence);
        f.p.isa = SKL_ISA_BEST, out.value = &best;
        CHECK_STATUS(skl_value(&f.p, &out), SKL_OK);
        f.p.isa = skl_isa_best(), out.value = &chosen;
        CHECK_STATUS(skl_value(&f.p, &out), SKL_OK);
        CHECK(best == chosen, "%.17g and %.17g", best, chosen);
        test_destroy(&f);
    }
}

int main(void)
{
    test_begin("test_isa");
    const char *variable = getenv("STREAMKL_ISA");
    printf("test_isa: STREAMKL_ISA=%s, best is %s, version %s\n", variable ? variable : "",
           skl_isa_name(skl_isa_best()), skl_version());
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", SKL_VERSION_MAJOR, SKL_VERSION_MINOR, SKL_VERSION_PATCH);
    CHECK(!strcmp(version, skl_version()), "the header is %s, the library %s", version, skl_version());
    names();
    forced();
    return test_end();
}
