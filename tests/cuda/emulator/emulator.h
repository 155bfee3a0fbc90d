/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs the PTX that nvcc emits on a machine without a GPU, and watches what it does: an interpreter, one warp
 * instruction at a time, with an exact detector of data races, a table of what may be touched, and counts of bank
 * conflicts. Speed, ptxas and the exact rounding of the tensor cores are outside of what it can show.
 *
 * All of this belongs to one thread of the host.
 */
#ifndef EMULATOR_H
#define EMULATOR_H

#include <stddef.h>
#include <stdint.h>

/* ------------------------------------------------------------------------------------------------ modules --- */

struct emu_module;

/* Parses PTX text; 'name' is for messages. NULL on anything unknown: emu_message() names line and instruction. */
struct emu_module *emu_load(const char *ptx_text, const char *name);
void emu_unload(struct emu_module *m);
const char *emu_message(void);

/* How many kernels, and what the i-th is called; whether one is there. */
int emu_kernels(const struct emu_module *m);
const char *emu_kernel_name(const struct emu_module *m, int i);
int emu_has_kernel(const struct emu_module *m, const char *name);

/* ------------------------------------------------------------------------------------------ device memory --- */

/* Its address is a real one; the host may read and write it. Full of 0xFF, which is a NaN in f64, f32, bf16 and f16,
 * and not written: reading it in a kernel is an error until the host says emu_written() or a kernel has stored there.
 * 256-aligned, as cudaMalloc's. */
void *emu_allocate(size_t bytes);
/* Memory of the host's own, entered in the table; its contents do not count as written either. */
void *emu_adopt(void *data, size_t bytes);
/* Of both kinds. Touching it afterwards is out of bounds. NULL is nothing. */
void emu_release(void *data);

void emu_written(const void *data, size_t bytes);
/* As emu_allocate() left it, but for the contents. */
void emu_forget(const void *data, size_t bytes);
void emu_copy_in(void *data, const void *from, size_t bytes);
/* How many of these bytes nobody has written. */
size_t emu_unwritten(const void *data, size_t bytes);
/* Allocations that were not released. */
int emu_allocations(void);

/* --------------------------------------------------------------------------------------------- launching --- */

enum emu_order {
    EMU_FORWARD, /* blocks and warps in order, each warp as far as it gets; divergent lanes: lowest address first */
    EMU_REVERSE, /* the last block, and the last warp, first */
    EMU_RANDOM   /* blocks, warps and lanes that stand at one instruction in random order for random times */
};

enum emu_copies {
    EMU_LATE,     /* cp.async copies when it is waited for */
    EMU_EARLY,    /* at once */
    EMU_SOMETIMES /* each one or the other */
};

struct emu_options {
    enum emu_order order;
    enum emu_copies copies;
    int truncate;          /* each addition within mma is rounded towards zero instead of to nearest */
    int perturb;           /* .approx functions err, by the operand's bits, as far as the PTX manual lets them */
    uint64_t seed;         /* of the random orders and of 'perturb' */
    uint64_t instructions; /* give up after so many warp instructions; 0 = 10^10 */
};

#define EMU_TEXTS 8

/* 'errors' counts all that is wrong; the next group says how many of them were of which kind. */
struct emu_report {
    uint64_t errors;
    uint64_t races;         /* two threads, one writes, nothing orders them; also use of a cp.async's bytes too early */
    uint64_t out_of_bounds; /* or misaligned */
    uint64_t uninitialised; /* bytes read that nobody wrote, in shared or in device memory; counted by access */
    uint64_t synchronisation;  /* barriers and collectives that lanes miss */
    uint64_t other;            /* wrong operands, trap, too many instructions */
    char text[EMU_TEXTS][256]; /* the first ones, one for each instruction and kind */
    int texts;

    /* No errors, but worth a look. */
    uint64_t unwaited_copies; /* cp.async, committed, that their thread left without waiting for */
    /* Wavefronts beyond the least possible. */
    uint64_t matrix_conflicts; /* ldmatrix */
    uint64_t vector_conflicts; /* ld.shared, st.shared of 8 and 16 bytes a lane */
    uint64_t scalar_conflicts; /* of up to 4 bytes */

    /* What was executed, in warp instructions; copies in threads' instructions. In the random order an instruction may
     * be executed for some lanes at a time: it counts, and its conflicts count, more than once. */
    uint64_t instructions, ldmatrix, mma, shuffles, copies, atomics;
    uint64_t global_loads, global_stores, shared_loads, shared_stores;
    uint64_t barriers; /* the most in any block */
};

/* Runs a kernel to its end. 'args' are its parameters laid out as C would lay out a structure of them (one structure by
 * value: that structure). Returns 0, or 1 when the report has an error or the launch itself was impossible (then it has
 * one too). 'options' may be NULL: all zero. */
int emu_launch(const struct emu_module *m, const char *kernel, int64_t grid_x, int grid_y, int threads,
               size_t dynamic_shared, const void *args, size_t args_bytes, const struct emu_options *options,
               struct emu_report *report);

#endif
