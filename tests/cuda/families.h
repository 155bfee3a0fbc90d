/* SPDX-License-Identifier: Apache-2.0
 *
 * A small case for every family of kernels, and a run of it that keeps what it wrote: for the tests that run the same
 * thing many times under different circumstances.
 */
#ifndef TEST_CUDA_FAMILIES_H
#define TEST_CUDA_FAMILIES_H

#include "device.h"

/* Kernels come in units of one PTX file. dim chooses the unit's width: 64, 128 and 256 attention, 264 streaming. */
struct family {
    const char *sweep, *gradient; /* units, besides "row_kernels", which is in all of them */
    int32_t type;
    int64_t dim;
    int any_order;
    int extra; /* only with STREAMKL_TEST_LONG: of the same source as another one */
};

static const struct family families[] = {
    {"sweep_narrow_bf16_64", "grad_pair_bf16_64", SKL_BF16, 64, 0, 0},
    {"sweep_narrow_f16_64", "grad_pair_f16_64", SKL_F16, 40, 0, 0},
    {"sweep_narrow_bf16_128", "grad_pair_bf16_128", SKL_BF16, 72, 0, 0},
    {"sweep_narrow_f16_128", "grad_pair_f16_128", SKL_F16, 128, 0, 1},
    {"sweep_narrow_bf16_256", "grad_pair_bf16_256", SKL_BF16, 136, 0, 0},
    {"sweep_narrow_f16_256", "grad_pair_f16_256", SKL_F16, 256, 0, 1},
    {"sweep_narrow_bf16_64", "grad_atomic_bf16_64", SKL_BF16, 64, 1, 0},
    {"sweep_narrow_f16_64", "grad_atomic_f16_64", SKL_F16, 64, 1, 1},
    {"sweep_narrow_bf16_128", "grad_atomic_bf16_128", SKL_BF16, 72, 1, 1},
    {"sweep_narrow_f16_128", "grad_atomic_f16_128", SKL_F16, 128, 1, 0},
    {"sweep_wide_bf16", "sweep_wide_bf16", SKL_BF16, 264, 0, 0},
    {"sweep_wide_f16", "sweep_wide_f16", SKL_F16, 272, 0, 1},
    {"sweep_any", "sweep_any", SKL_F32, 21, 0, 0},
};

static inline int test_long(void)
{
    const char *text = getenv("STREAMKL_TEST_LONG");
    return text && *text && strcmp(text, "0") != 0;
}

/* How many cases of a list or of a random kind: the first ones, which have every kernel among them, or all. */
static inline int test_first(int few, int all)
{
    return test_long() ? all : few;
}

/* Tails in rows and columns, a diagonal, two heads of one key head; with 108 processors and 1024 columns or more,
 * splits. */
static inline struct kit_case family_case(const struct family *f, int64_t rows, int64_t cols)
{
    struct kit_case c = kit_attention_case(rows, cols, f->dim);
    c.heads = 2, c.key_heads[S] = c.key_heads[T] = 1;
    c.causal = 1;
    c.dtype[S] = c.dtype[T] = f->type;
    c.place = KIT_ALIGNED; /* aligned as cudaMalloc's */
    return c;
}

/* Built, with expectations, in the device's memory. 'rows' is that of struct kit_allowance. */
static inline void family_begin(struct kit_fixture *f, const struct kit_case *c, int any_order, double rows)
{
    test_build(f, c);
    f->allow.rows = rows;
    f->allow.rounds_dx = 1;
    f->p.any_order = any_order;
    kit_expect(f);
    test_device_adopt(f);
}

static inline void family_end(struct kit_fixture *f)
{
    test_device_release(f);
    test_destroy(f);
}

#endif
