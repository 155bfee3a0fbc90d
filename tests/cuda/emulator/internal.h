/* SPDX-License-Identifier: Apache-2.0
 *
 * What the emulator's files know of each other.
 *
 * A warp has one file of registers, 32 lanes of each side by side. Constants and special registers lie in the same
 * file, so that every operand is an offset. Predicates are 32 bits, one a lane.
 *
 * Addresses: global ones are the host's; shared, local and parameter memory lie in windows that no host pointer enters.
 */
#ifndef EMULATOR_INTERNAL_H
#define EMULATOR_INTERNAL_H

#include "emulator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LANES = 32 };
#define ALL 0xFFFFFFFFu

/* The file of registers is read as whatever type an instruction has. */
typedef uint8_t __attribute__((may_alias)) u8;
typedef int8_t __attribute__((may_alias)) s8;
typedef uint16_t __attribute__((may_alias)) u16;
typedef int16_t __attribute__((may_alias)) s16;
typedef uint32_t __attribute__((may_alias)) u32;
typedef int32_t __attribute__((may_alias)) s32;
typedef uint64_t __attribute__((may_alias)) u64;
typedef int64_t __attribute__((may_alias)) s64;
typedef float __attribute__((may_alias)) f32;
typedef double __attribute__((may_alias)) f64;

/* Loops over lanes are worth the wider registers; fma without its instruction is ten times slower. A resolver may not
 * run before a sanitizer is ready. */
#if defined(__x86_64__) && !defined(__clang__) && __GNUC__ >= 12 && !defined(__SANITIZE_THREAD__) && \
    !defined(__SANITIZE_ADDRESS__)
#define CLONES __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define CLONES
#endif

enum type {
    T_NONE,
    T_PRED,
    T_B8,
    T_U8,
    T_S8,
    T_B16,
    T_U16,
    T_S16,
    T_B32,
    T_U32,
    T_S32,
    T_B64,
    T_U64,
    T_S64,
    T_F16,
    T_BF16,
    T_F16X2,
    T_BF16X2,
    T_F32,
    T_F64,
    T_TF32
};

enum space { S_GENERIC, S_GLOBAL, S_SHARED, S_LOCAL, S_PARAM, S_CONST };

#define SHARED_WINDOW 0x1000000000000000u
#define LOCAL_WINDOW 0x2000000000000000u
#define PARAM_WINDOW 0x3000000000000000u
#define WINDOW(address) ((address)&0xF000000000000000u)
/* Where shared memory starts in its window: not at 0, so that an offset without its base is an error. */
#define SHARED_START 1024u
#define SHARED_MOST (256u << 10)

enum rounding { R_NONE, R_RN, R_RZ, R_RM, R_RP, R_RNI, R_RZI, R_RMI, R_RPI };

/* What the loop over instructions must know; all the rest is PLAIN. */
enum kind {
    K_PLAIN,
    K_BRANCH,
    K_BRANCH_TABLE,
    K_EXIT,
    K_TRAP,
    K_BARRIER,
    K_WARP_MASK,   /* a collective of the lanes in its operand number 'mask_at' */
    K_WARP_ALIGNED /* a collective of the whole warp */
};

struct warp;
struct inst;
typedef void run_function(struct warp *w, const struct inst *in, uint32_t mask);

struct inst {
    run_function *run;
    const int32_t *o; /* offsets of operands in the file of registers: destinations first */
    int64_t imm;      /* of an address; or an immediate operand such as lop3's table */
    int32_t line, target, guard;
    int32_t text; /* its mnemonic, in the kernel's copy of the text */
    uint8_t guard_not, kind, space, type, from, vector, rounding, mask_at;
    uint8_t ftz, sat, negate; /* negate: bit i: the predicate operand i is negated */
    uint8_t mode;             /* each instruction's own: comparison, shuffle, atomic operation */
    uint8_t wide;             /* bytes of an address register */
    uint8_t size[4];          /* bytes of each register of a vector (ld, st), of destination and source (cvt) */
};

enum special {
    X_TID_X,
    X_TID_Y,
    X_TID_Z,
    X_NTID_X,
    X_NTID_Y,
    X_NTID_Z,
    X_CTAID_X,
    X_CTAID_Y,
    X_CTAID_Z,
    X_NCTAID_X,
    X_NCTAID_Y,
    X_NCTAID_Z,
    X_LANEID,
    X_WARPID,
    X_NWARPID,
    X_LANEMASK_EQ,
    X_LANEMASK_LT,
    X_LANEMASK_LE,
    X_LANEMASK_GT,
    X_LANEMASK_GE,
    X_DYNAMIC,
    X_TOTAL,
    X_COUNT
};

struct constant {
    int32_t offset; /* from the start of the constants */
    uint8_t size;   /* 0: a predicate */
    uint64_t value;
};

struct kernel {
    char *name;
    struct inst *code;
    int32_t *pool;  /* operands of all instructions */
    int32_t *table; /* targets of brx */
    int count, pool_count, table_count;
    struct constant *constants;
    int constant_count;
    int32_t register_bytes, constant_bytes, file_bytes;
    int32_t special[X_COUNT]; /* offset, or -1 */
    size_t param_bytes;
    uint32_t static_shared, dynamic_align;
    uint32_t local_bytes;
    int threads; /* .reqntid or .maxntid; 0 = not said */
};

struct emu_module {
    char *name, *text; /* the text without its comments, for messages */
    struct kernel *kernels;
    int kernel_count;
    void **globals; /* variables of the module, in device memory */
    int global_count;
};

/* A cp.async under way. */
struct copy {
    uint32_t to, group;
    const uint8_t *from;
    uint8_t bytes, from_bytes, done;
};

struct copies {
    struct copy *list;
    int count, room;
    uint32_t group; /* groups committed so far = the number of the open one */
};

struct block;

struct warp {
    uint8_t *regs;
    struct block *block;
    uint32_t exist, alive, active, blocked;
    uint32_t pc, other_pc; /* of the active lanes; the lowest of the other runnable ones */
    uint32_t lane_pc[LANES];
    int index, first_thread, at_barrier;
    uint8_t *local;
    /* Order of memory within the warp: 'clock' counts a lane's bar.warp.sync, seen[a][b] is the last clock of b whose
     * accesses are ordered before what a does now. Both start again at each barrier of the block. */
    uint16_t clock[LANES], seen[LANES][LANES];
    struct copies copies[LANES];
};

struct block {
    const struct emu_module *module;
    const struct kernel *kernel;
    const struct emu_options *options;
    struct emu_report *report;
    struct warp *warps;
    int warp_count, threads;
    uint8_t *shared;
    uint32_t shared_bytes; /* static and dynamic */
    const uint8_t *params;
    size_t param_bytes;
    uint32_t epoch;       /* counts barriers, blocks and launches: never the same twice in a process */
    uint32_t block_epoch; /* at the start of this block */
    uint32_t launch_epoch;
    int64_t block_x, block_y;
    uint64_t random;
    int stop;
    int told[EMU_TEXTS]; /* what the report's texts are about: line * 8 + kind */
};

static inline void *reg(const struct warp *w, int32_t offset)
{
    return w->regs + offset;
}

/* The i-th operand. */
#define OPERAND(i) reg(w, in->o[i])

static inline uint64_t emu_random(struct block *b)
{
    b->random ^= b->random << 13;
    b->random ^= b->random >> 7;
    b->random ^= b->random << 17;
    return b->random * 0x9E3779B97F4A7C15u >> 16;
}

static inline int type_bytes(enum type t)
{
    switch (t) {
    case T_B8:
    case T_U8:
    case T_S8: return 1;
    case T_B16:
    case T_U16:
    case T_S16:
    case T_F16:
    case T_BF16: return 2;
    case T_B64:
    case T_U64:
    case T_S64:
    case T_F64: return 8;
    default: return 4;
    }
}

static inline int type_is_float(enum type t)
{
    return t >= T_F16;
}

static inline int type_is_signed(enum type t)
{
    return t == T_S8 || t == T_S16 || t == T_S32 || t == T_S64;
}

/* ----------------------------------------------------------------------------------------- parse, decode --- */

/* An operand as written. */
struct text {
    const char *at;
    int length;
};

struct parser;
/* Ends the parsing. */
_Noreturn void parse_error(struct parser *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Offset of a register of so many bytes (0: predicate, -1: any; then *bytes says), of a constant, special register or
 * symbol. Constants' offsets are complements until the kernel is complete. */
int32_t parse_operand(struct parser *p, struct text t, enum type type, int bytes, int *found_bytes);
int32_t parse_destination(struct parser *p, struct text t, int bytes, int *found_bytes);
/* [base + offset] */
int32_t parse_address(struct parser *p, struct text t, struct inst *in);
int parse_vector(struct parser *p, struct text t, struct text *element, int most);
int64_t parse_integer(struct parser *p, struct text t);
int32_t parse_constant(struct parser *p, int bytes, uint64_t value);
void parse_add(struct parser *p, int32_t offset);
void parse_target(struct parser *p, struct inst *in, struct text t);
void parse_table(struct parser *p, struct inst *in, struct text t);

/* Operands 'a' of an instruction with this mnemonic. */
void decode(struct parser *p, struct inst *in, struct text mnemonic, struct text *a, int count);

/* Instructions which are the same loop for many types. Letters of 'form': t the type, w twice as wide, i 32 bits,
 * p a predicate; the first is the destination. */
struct rule {
    const char *name;
    enum type type;
    const char *form;
    run_function *run;
};
extern const struct rule integer_rules[], float_rules[];

/* ------------------------------------------------------------------------------------------------ running --- */

run_function run_mov16, run_mov32, run_mov64, run_mov_pred, run_pack, run_unpack, run_cvt, run_cvt_pack, run_selp16,
    run_selp32, run_selp64, run_slct, run_set;
run_function run_ld, run_st, run_atom, run_cvta, run_isspacep, run_nothing;
run_function run_cp_async, run_cp_commit, run_cp_wait, run_cp_wait_all;
run_function run_shfl, run_vote, run_redux, run_ldmatrix, run_mma, run_mma_tf32, run_movmatrix, run_syncwarp,
    run_activemask;
run_function *setp_function(enum type t, const char *comparison, int length);

/* floats.c */
float f16_to_f32(uint16_t h);
uint16_t f64_to_f16(double d, enum rounding r);
uint16_t f64_to_bf16(double d, enum rounding r);

static inline float bf16_to_f32(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* Sets the host's rounding; R_RN again after use. */
void set_rounding(enum rounding r);

/* ------------------------------------------------------------------------------------------------- memory --- */

struct cell;

struct allocation {
    uint8_t *data;
    size_t bytes;
    struct cell *words, *bytes_of; /* shadow; the second only once an access was smaller than a word */
    void *map;
    size_t map_bytes;
};

struct allocation *find_allocation(const void *data, size_t bytes);

enum access { A_READ, A_WRITE, A_ATOMIC, A_COPY };

/* An access by one lane to device or to shared memory, which lies within bounds: is it ordered, has it been written? */
void shadow_shared(struct warp *w, const struct inst *in, int lane, uint32_t offset, int bytes, enum access a);
void shadow_global(struct warp *w, const struct inst *in, struct allocation *m, int lane, size_t offset, int bytes,
                   enum access a);
/* All lanes read it: a row of ldmatrix. */
void shadow_matrix_row(struct warp *w, const struct inst *in, int lane, uint32_t offset);
/* The thread has waited for its cp.async. */
void shadow_copied(struct warp *w, int lane, uint32_t offset, int bytes);
void shadow_host_write(struct allocation *m, size_t offset, size_t bytes, int written);
size_t shadow_unwritten(struct allocation *m, size_t offset, size_t bytes);
void shadow_free(struct allocation *m);

/* Host address of an access, or NULL after an error was reported. */
uint8_t *locate(struct warp *w, const struct inst *in, int lane, uint64_t address, enum space space, int bytes,
                enum access a);
/* Addresses of the lanes. */
void addresses(struct warp *w, const struct inst *in, int32_t base, uint64_t *to);

void copies_leave(struct warp *w, uint32_t lanes); /* these lanes exit */

/* --------------------------------------------------------------------------------------------------- errors --- */

enum error { E_RACE, E_BOUNDS, E_UNINITIALISED, E_SYNCHRONISATION, E_OTHER };

/* Counts an error at an instruction (NULL: at none); 1 if it deserves a text. */
int count_error(struct block *b, const struct inst *in, enum error kind);
void tell_error(struct block *b, const struct inst *in, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Both; operands of the text are only looked at if it is wanted, for there may be a million errors. */
#define report_error(b, in, kind, ...)      \
    do {                                    \
        if (count_error(b, in, kind))       \
            tell_error(b, in, __VA_ARGS__); \
    } while (0)

#endif
