/* SPDX-License-Identifier: Apache-2.0
 *
 * A vector word for instruction sets that cannot round and scale by themselves: x = n + r with an integer n and
 * |r| <= 1/2. n is kept as n + 1.5 2^23: adding that leaves the nearest integer in the low
 * mantissa bits, from where vscale moves it into an exponent by a shift. */
#define ROUND_MAGIC 12582912.0f

static inline vf vsplit_integer(vf x, vf *n)
{
    *n = x + vset(ROUND_MAGIC);
    return x - (*n - vset(ROUND_MAGIC));
}
