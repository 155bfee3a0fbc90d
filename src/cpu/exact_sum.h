/* SPDX-License-Identifier: Apache-2.0
 *
 * A sum of doubles without rounding, so that it does not matter in which order they come, nor which thread adds them:
 * an integer of 66 digits of 32 bits, in units of 2^-1074. A digit takes 2^30 additions before its carry has to move
 * on.
 */
#ifndef SKL_EXACT_SUM_H
#define SKL_EXACT_SUM_H

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { SKL_SUM_DIGITS = 66, SKL_SUM_CARRY = 1 << 30 };

struct skl_exact_sum {
    int64_t digit[SKL_SUM_DIGITS];
    int64_t additions; /* since the last carry */
    double odd;        /* what is not finite */
};

static inline void skl_sum_carry(struct skl_exact_sum *s)
{
    for (int i = 0; i + 1 < SKL_SUM_DIGITS; i++) {
        int64_t low = s->digit[i] & 0xffffffff; /* the carry is rounded down, and may be negative */
        s->digit[i + 1] += (s->digit[i] - low) / ((int64_t)1 << 32);
        s->digit[i] = low;
    }
    s->additions = 0;
}

static inline void skl_sum_add(struct skl_exact_sum *s, double x)
{
    uint64_t bits, low;
    memcpy(&bits, &x, sizeof bits);
    int exponent = (int)(bits >> 52 & 0x7ff), at = exponent ? exponent - 1 : 0; /* x = mantissa 2^(at - 1074) */
    uint64_t mantissa = (bits & 0xfffffffffffff) | (uint64_t)(exponent != 0) << 52;
    if (exponent == 0x7ff) {
        s->odd += x;
        return;
    }
    int64_t sign = bits >> 63 ? -1 : 1, *digit = s->digit + at / 32;
    low = (mantissa & 0xffffffff) << at % 32;
    mantissa = (mantissa >> 32 << at % 32) + (low >> 32);
    digit[0] += sign * (int64_t)(low & 0xffffffff);
    digit[1] += sign * (int64_t)(mantissa & 0xffffffff);
    digit[2] += sign * (int64_t)(mantissa >> 32);
    if (++s->additions == SKL_SUM_CARRY)
        skl_sum_carry(s);
}

static inline void skl_sum_merge(struct skl_exact_sum *into, struct skl_exact_sum *from)
{
    skl_sum_carry(into);
    skl_sum_carry(from);
    for (int i = 0; i < SKL_SUM_DIGITS; i++) into->digit[i] += from->digit[i];
    into->odd += from->odd;
}

/* Rounded to a double. All digits but the last are positive then, and the last has the sign; a negative sum is turned
 * round, so that its digits do not cancel each other. */
static inline double skl_sum_value(struct skl_exact_sum *s)
{
    double sum = 0;
    skl_sum_carry(s);
    int negative = s->digit[SKL_SUM_DIGITS - 1] < 0;
    for (int i = 0; negative && i < SKL_SUM_DIGITS; i++) s->digit[i] = -s->digit[i];
    skl_sum_carry(s);
    for (int i = 0; i < SKL_SUM_DIGITS; i++)
        if (s->digit[i])
            sum += ldexp((double)s->digit[i], 32 * i - 1074);
    return (negative ? -sum : sum) + s->odd;
}

#endif
