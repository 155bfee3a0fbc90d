/* SPDX-License-Identifier: Apache-2.0
 *
 * Squares of VL x VL numbers turned round, by exchanging ever larger blocks: log2 VL steps of VL shuffles. For rows
 * into panels, and for da out of them. LANES is VL for the preprocessor.
 */
#if defined(__AVX512F__) || defined(WIDE)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif
_Static_assert(LANES == VL, "one list of lanes for each length of vectors");

#if LANES == 16
#define EACH_LANE_(f, s)                                                                                          \
    f(0, s), f(1, s), f(2, s), f(3, s), f(4, s), f(5, s), f(6, s), f(7, s), f(8, s), f(9, s), f(10, s), f(11, s), \
        f(12, s), f(13, s), f(14, s), f(15, s)
#elif LANES == 8
#define EACH_LANE_(f, s) f(0, s), f(1, s), f(2, s), f(3, s), f(4, s), f(5, s), f(6, s), f(7, s)
#else
#define EACH_LANE_(f, s) f(0, s), f(1, s), f(2, s), f(3, s)
#endif
#define UPPER_(l, s) ((l) & (s) ? LANES + ((l) ^ (s)) : (l))
#define LOWER_(l, s) ((l) & (s) ? LANES + (l) : (l) ^ (s))
typedef int32_t lane_numbers __attribute__((vector_size(4 * LANES)));
#ifdef __clang__
#define SHUFFLED_(p, q, ...) __builtin_shufflevector(p, q, __VA_ARGS__)
#else
#define SHUFFLED_(p, q, ...) __builtin_shuffle(p, q, (lane_numbers){__VA_ARGS__})
#endif
/* x is an array of LANES vectors of 'type'. */
#define EXCHANGE_BLOCKS(type, x, s)                            \
    UNROLLED for (int i = 0; i < LANES; i++) if (!(i & (s)))   \
    {                                                          \
        type p = (x)[i], q = (x)[i + (s)];                     \
        (x)[i] = SHUFFLED_(p, q, EACH_LANE_(UPPER_, s));       \
        (x)[i + (s)] = SHUFFLED_(p, q, EACH_LANE_(LOWER_, s)); \
    }

/* Lane l of x[i] becomes lane i of x[l]. */
static inline __attribute__((always_inline)) void transpose_square(vf x[VL])
{
    EXCHANGE_BLOCKS(vf, x, 1)
    EXCHANGE_BLOCKS(vf, x, 2)
#if LANES > 4
    EXCHANGE_BLOCKS(vf, x, 4)
#endif
#if LANES > 8
    EXCHANGE_BLOCKS(vf, x, 8)
#endif
}
