/* SPDX-License-Identifier: Apache-2.0
 *
 * An instruction that does the same in every lane, as a function. The loop over all lanes has no branch, so that it
 * becomes vector code; a destination that is also a source is the same place in the same lane, hence NO_DEPENDENCE.
 */
#ifndef EMULATOR_LANES_H
#define EMULATOR_LANES_H

#include "internal.h"

#define RUN(name) static CLONES void name(struct warp *w, const struct inst *in, uint32_t mask)

#ifdef __clang__
#define NO_DEPENDENCE /* clang looks at run time */
#else
#define NO_DEPENDENCE _Pragma("GCC ivdep")
#endif

#define EACH_LANE(...)                                    \
    do {                                                  \
        if (mask == ALL) {                                \
            NO_DEPENDENCE for (int l = 0; l < LANES; l++) \
            {                                             \
                __VA_ARGS__;                              \
            }                                             \
        } else {                                          \
            for (int l = 0; l < LANES; l++)               \
                if (mask >> l & 1) {                      \
                    __VA_ARGS__;                          \
                }                                         \
        }                                                 \
    } while (0)

/* Of D from operands x, y, z of the types A, B, C. */
#define UNARY(name, D, A, expression)                  \
    RUN(name)                                          \
    {                                                  \
        D *d = OPERAND(0);                             \
        const A *a = OPERAND(1);                       \
        EACH_LANE(A x = a[l]; d[l] = (D)(expression)); \
    }

#define BINARY(name, D, A, B, expression)                          \
    RUN(name)                                                      \
    {                                                              \
        D *d = OPERAND(0);                                         \
        const A *a = OPERAND(1);                                   \
        const B *b = OPERAND(2);                                   \
        EACH_LANE(A x = a[l]; B y = b[l]; d[l] = (D)(expression)); \
    }

#define TERNARY(name, D, A, B, C, expression)                                  \
    RUN(name)                                                                  \
    {                                                                          \
        D *d = OPERAND(0);                                                     \
        const A *a = OPERAND(1);                                               \
        const B *b = OPERAND(2);                                               \
        const C *c = OPERAND(3);                                               \
        EACH_LANE(A x = a[l]; B y = b[l]; C z = c[l]; d[l] = (D)(expression)); \
    }

#endif
