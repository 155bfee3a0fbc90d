/* SPDX-License-Identifier: Apache-2.0
 * Shared by the parts of the emulator's own test. */
#ifndef SELFTEST_H
#define SELFTEST_H

#include "../../test.h"
#include "emulator.h"
#include "selftest_args.h"

#define HEAD ".version 9.0\n.target sm_80\n.address_size 64\n"

/* Of the last launch. */
extern struct emu_report report;
void print_errors(void);

enum { RIGHT, RACE, BOUNDS, UNWRITTEN, SYNC, OTHER };

extern const char *const wants[OTHER + 1];
/* Whether the report has an error of this kind; RIGHT: none. */
int found(int want);

static inline float as_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static inline uint32_t as_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

/* An f16's value, and the nearest f16, by the book: clang 14 has no _Float16. */
static inline double f16_value(uint32_t bits)
{
    int exponent = (int)(bits >> 10 & 31), fraction = (int)(bits & 1023);
    double v = exponent == 31 ? (fraction ? NAN : INFINITY)
               : exponent     ? ldexp(1024 + fraction, exponent - 25)
                              : ldexp(fraction, -24);
    return bits & 0x8000 ? -v : v;
}

static inline uint32_t f16_nearest(double d)
{
    uint32_t sign = signbit(d) ? 0x8000 : 0, best = 0x7C00;
    double x = fabs(d);
    if (x != x)
        return 0x7FFF;
    if (x < 65520) {
        int e = x < 0x1p-14 ? -14 : ilogb(x);
        double unit = ldexp(1, e - 10), n = rint(x / unit); /* to even */
        best = (uint32_t)((e + 14) * 1024 + (int)n);
    }
    return sign | best;
}

void check_instructions(void);
void check_halves(void);
void check_perturbed(void);
void check_refused(void);
void check_fragments(void);
void check_orders(void);

#endif
