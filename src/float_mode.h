/* SPDX-License-Identifier: Apache-2.0
 *
 * The floating-point mode in which everything is computed: round to nearest, no exception traps, subnormal numbers
 * count as 0 (docs/math.md, section Underflow). A multiply-add that meets a subnormal takes some 150 cycles on Intel,
 * and gradients of peaked rows are full of them. Each public call enters the mode and gives the caller's back, so
 * results are the same bits whatever mode that is.
 *
 * The instructions are declared to touch memory, so that the compiler moves no load or store across them.
 */
#ifndef SKL_FLOAT_MODE_H
#define SKL_FLOAT_MODE_H

#include <stdint.h>

#if defined(__x86_64__)

struct skl_float_mode {
    uint32_t word; /* MXCSR */
};
enum { SKL_FLOAT_MODE = 0x8000 | 0x1f80 | 0x0040 }; /* FTZ: results; every exception masked; DAZ: operands */

static inline struct skl_float_mode skl_get_float_mode(void)
{
    struct skl_float_mode mode;
    __asm__ volatile("stmxcsr %0" : "=m"(mode.word) : : "memory");
    return mode;
}

static inline void skl_leave_float_mode(struct skl_float_mode mode)
{
    __asm__ volatile("ldmxcsr %0" : : "m"(mode.word) : "memory");
}

#elif defined(__aarch64__)

struct skl_float_mode {
    uint64_t word; /* FPCR */
};
enum {
    SKL_FLOAT_MODE = 1 << 24
}; /* FZ: operands and results of 32 and 64 bits; conversions from and to f16 are exact */

static inline struct skl_float_mode skl_get_float_mode(void)
{
    struct skl_float_mode mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode.word) : : "memory");
    return mode;
}

static inline void skl_leave_float_mode(struct skl_float_mode mode)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(mode.word) : "memory");
}

#else /* whatever mode the caller has; subnormals are computed with */

struct skl_float_mode {
    uint32_t word;
};
enum { SKL_FLOAT_MODE = 0 };

static inline struct skl_float_mode skl_get_float_mode(void)
{
    return (struct skl_float_mode){0};
}

static inline void skl_leave_float_mode(struct skl_float_mode mode)
{
    (void)mode;
}

#endif

/* Returns the mode to be given to skl_leave_float_mode() afterwards. */
static inline struct skl_float_mode skl_enter_float_mode(void)
{
    struct skl_float_mode before = skl_get_float_mode();
    skl_leave_float_mode((struct skl_float_mode){SKL_FLOAT_MODE});
    return before;
}

#endif
