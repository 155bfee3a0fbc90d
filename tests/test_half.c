/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversions from and to 16 bits: every f16 and bf16, and every rounding between two of them, against a computation in
 * double; with subnormals as IEEE has them and flushed, by the kernels' vectors and by their remainders of one.
 */
#include "../src/cpu/kernels.h"
#include "../src/float_mode.h"
#include "../src/half.h"
#include "test.h"

enum { VALUES = 1 << 16 };

/* What 16 bits mean; both formats are sign, exponent, mantissa. */
static double value_of(int dtype, uint32_t h)
{
    int digits = dtype == SKL_F16 ? 10 : 7, bias = dtype == SKL_F16 ? 15 : 127, most = 2 * bias + 1;
    int exponent = (int)(h & 0x7fff) >> digits, fraction = (int)h & ((1 << digits) - 1);
    double x = exponent == most ? (fraction ? (double)NAN : (double)INFINITY)
               : exponent       ? ldexp((1 << digits) + fraction, exponent - bias - digits)
                                : ldexp(fraction, 1 - bias - digits);
    return h & 0x8000 ? -x : x;
}

static int same_float(float x, double want)
{
    return isnan(want) ? isnan(x) : skl_bits(x) == skl_bits((float)want);
}

static uint16_t all[VALUES];
static float wide[VALUES];

/* In whole vectors, and one by one. */
static void convert_all(const struct skl_kernels *k, int dtype, int one_by_one, int flush)
{
    struct skl_float_mode before = skl_get_float_mode();
    if (flush)
        skl_enter_float_mode();
    if (!one_by_one)
        k->convert(VALUES, all, dtype, wide);
    for (int i = 0; one_by_one && i < VALUES; i++) k->convert(1, all + i, dtype, wide + i);
    skl_leave_float_mode(before);
}

static void check_from(const struct skl_kernels *k, int dtype, int one_by_one, int flush)
{
    int wrong = 0, first = 0;
    for (uint32_t i = 0; i < VALUES; i++) all[i] = (uint16_t)i;
    memset(wide, KIT_CANARY, sizeof wide);
    convert_all(k, dtype, one_by_one, flush);
    for (int i = 0; i < VALUES; i++)
        if (!same_float(wide[i], value_of(dtype, (uint32_t)i)) && !wrong++)
            first = i;
    CHECK(wrong == 0, "%d values are wrong, the first %#06x: %.9g, not %.9g", wrong, (unsigned)first,
          (double)wide[first], value_of(dtype, (uint32_t)first));
}

/* The float next to x, away from 0 or towards it; x is not 0. */
static float next(float x, int away)
{
    return skl_float(skl_bits(x) + (away ? 1 : UINT32_MAX));
}

/* Rounding to nearest, ties to even, between h and the next number away from 0, at floats in, before and after the
 * middle and at h itself. */
static void check_to(const struct skl_kernels *k, int dtype, int flush)
{
    static float x[4 * VALUES];
    static uint16_t got[4 * VALUES];
    int wrong = 0, first = 0, last = dtype == SKL_F16 ? 0x7bff : 0x7f7f; /* the largest finite */
    uint16_t want[4];
    for (int i = 0; i < VALUES; i++) {
        uint32_t h = (uint32_t)i;
        double low = value_of(dtype, h), high = value_of(dtype, h + 1);
        if ((i & 0x7fff) == last) /* as if the exponents went on */
            high = 2 * low - value_of(dtype, h - 1);
        int finite = (i & 0x7fff) <= last;
        float middle = finite ? (float)((low + high) / 2) : NAN;
        x[4 * i] = (float)low;
        x[4 * i + 1] = finite ? next(middle, 0) : NAN;
        x[4 * i + 2] = middle;
        x[4 * i + 3] = finite ? next(middle, 1) : NAN;
    }
    struct skl_float_mode before = skl_get_float_mode();
    if (flush)
        skl_enter_float_mode();
    k->convert_back((int64_t)4 * VALUES, x, dtype, got);
    skl_leave_float_mode(before);
    for (int i = 0; i < VALUES; i++) {
        uint16_t h = (uint16_t)i, up = (uint16_t)(i + 1), even = i & 1 ? up : h;
        memcpy(want, (uint16_t[]){h, h, even, up}, sizeof want);
        for (int j = 0; j < 4; j++) {
            int at = 4 * i + j, right = isnan(x[at]) ? isnan(value_of(dtype, got[at])) : got[at] == want[j];
            if (!right && !wrong++)
                first = at;
        }
    }
    CHECK(wrong == 0, "%d roundings are wrong, the first of %.9g to %#06x", wrong, (double)x[first],
          (unsigned)got[first]);
}

static void check_kernels(const struct skl_kernels *k)
{
    static const char *const names[] = {"f32", "bf16", "f16"};
    for (int dtype = SKL_BF16; dtype <= SKL_F16; dtype++)
        for (int flush = 0; flush < 2; flush++) {
            const char *how = flush ? "flushing subnormals" : "by IEEE";
            for (int one = 0; one < 2; one++) {
                test_context("%s, %d rows, from %s, %s, %s", skl_isa_name(k->isa), k->nr, names[dtype],
                             one ? "one by one" : "in vectors", how);
                check_from(k, dtype, one, flush);
            }
            test_context("%s, %d rows, to %s, %s", skl_isa_name(k->isa), k->nr, names[dtype], how);
            check_to(k, dtype, flush);
        }
}

int main(void)
{
    test_begin("test_half");
    for (int isa = SKL_ISA_BASELINE; isa <= SKL_ISA_NEONBF16; isa++)
        for (const struct skl_kernels *k = skl_kernels_for((enum skl_isa)isa); k; k = k->narrower) check_kernels(k);
    return test_end();
}
