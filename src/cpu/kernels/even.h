/* SPDX-License-Identifier: Apache-2.0
 *
 * What a JSD wants of a column whose mixture is even, m = (p + q) / 2, over the larger of p and q: functions of
 * u = |log2 q - log2 p| alone.
 *
 *     even_log    log(m / large) = log(1/2 + 2^{-u}/2)
 *     even_sum    (p log(p/m) + q log(q/m)) / large = -(1 + 2^{-u}) even_log - u 2^{-u} log 2
 *
 * Each is one of TABLE polynomials in t, which is how far u lies behind the beginning of the polynomial's interval: 16
 * operations for even_sum by tables of 32. The bits of u + 2 say which: the last two of the exponent, then the first
 * of the mantissa. So intervals are 1/4 wide up to 2 (with tables of 8 1 wide), twice as wide up to 6, and again up to
 * 14 and 30. The functions are nowhere more curved than near 0, where their next singularity is i pi / log 2 = 4.5 i
 * away. From u = 30 on they are what they are at 30, but for 2^-25.
 *
 * Exactly 0 at 0, and errors are relative to the functions (tests/test_vmath.c). Where u + 2 is rounded up to the next
 * interval, t is negative, by no more than 2^-20: t itself is exact.
 */
#include "even_tables.h"

#define EVEN_END (30 - 0x1p-19f)            /* the largest number below 30 that u + 2 tells from it */
enum { EVEN_BITS = TABLE == 32 ? 20 : 22 }; /* behind the index, in u + 2 */

struct even {
    vf at, t;
};

/* For x = -u <= 0, or NaN, which counts as u = 30. */
static inline struct even even_of(vf x)
{
    x = vmax(x, vset(-EVEN_END));
    struct even e = {.at = vset(2.0f) - x};
    e.t = (vset(2.0f) - vtruncate(e.at, EVEN_BITS)) - x;
    return e;
}

static inline __attribute__((always_inline)) vf even_polynomial(int degree, const float table[][TABLE], struct even e)
{
    vf p = vlookup(table[degree], e.at, EVEN_BITS);
    UNROLLED for (int i = degree - 1; i >= 0; i--) p = vfma(p, e.t, vlookup(table[i], e.at, EVEN_BITS));
    return p;
}

#define EVEN(table, e) even_polynomial((int)(sizeof(table) / sizeof *(table)) - 1, table, e)
