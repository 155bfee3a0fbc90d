/* SPDX-License-Identifier: Apache-2.0
 *
 * A device for the library that is none: kernels run in the PTX emulator, cuBLAS is three loops. Everything above the
 * table of src/cuda/host/device.h, from the public calls down to grids, workspaces, splits and slabs, is the shipped
 * code.
 */
#ifndef TEST_CUDA_DEVICE_H
#define TEST_CUDA_DEVICE_H

#include "../cases.h"
#include "emulator/emulator.h"

/* What the device is and how it runs kernels; may be changed between calls. */
extern struct test_device {
    int processors, shared_memory;
    struct emu_options options;
    const char *fail; /* a kernel whose launch shall fail; NULL: none */
    /* Seen since test_device_reset(). */
    struct emu_report total;
    int launches, products;
    char kernels[128][48]; /* that ran, each once, in order */
    int kernel_count;
} test_device;

/* Puts the table in the library's place. Exits with TEST_SKIPPED when there is no PTX. */
void test_device_begin(void);
void test_device_reset(void);
int test_device_ran(const char *kernel);

/* src/cuda/kernels.def. A unit is a source compiled for a type and a width, if it has them: sweep_narrow_bf16_64. */
extern const struct test_listed {
    const char *kernel, *source, *role, *type, *dim;
} test_list[];
extern const int test_list_count;
void test_unit_name(const struct test_listed *k, char name[48]);
/* NULL: the unit has none for this. */
const char *test_kernel_of(const char *unit, const char *role);

/* Another text in place of a unit's PTX ("sweep_narrow_bf16_64"), or the original again: NULL. Returns whether it
 * parses. */
int test_device_replace(const char *unit, const char *ptx);
/* A unit's original text. */
const char *test_device_ptx(const char *unit);

/* The problem's tensors and the outputs' become the device's, and its memory known to it. Undo before destroying. */
void test_device_adopt(struct kit_fixture *f);
void test_device_release(struct kit_fixture *f);

/* Or: memory of its own, to which kit_build() copies, as `streamkl check --device cuda` does with a GPU's. */
extern const struct kit_memory test_device_memory;

/* Checks that nothing went wrong in any launch since the last reset: races, bounds, uninitialised memory, conflicts. */
int test_device_clean(const char *what);

#endif
