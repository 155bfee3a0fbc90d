/* SPDX-License-Identifier: Apache-2.0
 * What parse.c and operands.c share: the state of the parser, and pieces of text. */
#ifndef EMULATOR_PARSE_H
#define EMULATOR_PARSE_H

#include "internal.h"

#include <ctype.h>
#include <setjmp.h>

/* A register, %name<count> registers, a label or a variable. */
struct symbol {
    struct text name;
    enum { REGISTER, REGISTERS, LABEL, VARIABLE } kind;
    int scope;
    int bytes, count; /* of registers; bytes 0: predicates */
    int32_t first;    /* index of the first register's offset; a label's instruction; a label's table, -2 - start */
    enum space space;
    uint64_t address;
};

struct fixup {
    int inst, scope, line;
    struct text name;
    int table; /* index in the table of brx, or -1 */
};

struct parser {
    struct emu_module *m;
    struct kernel *k;
    const char *at, *counted;
    int line;
    jmp_buf failed;

    struct symbol *symbols;
    int symbol_count, symbol_room, module_symbols;
    int32_t *registers; /* offsets, -1 until the first use */
    int register_count, register_room;
    int scopes[64], depth, scope_count;
    int *scope_parent, scope_room;
    struct fixup *fixups;
    int fixup_count, fixup_room;
    int code_room, pool_room, table_room, constant_room, kernel_room, global_room;
    int *starts; /* where each instruction's operands start in the pool */
    int start_room;
    int32_t predicate_next, predicate_end, sink;
    uint32_t module_shared;
};

void *parse_grow(struct parser *p, void *list, int count, int *room, size_t each);

/* For the member 'list' with its 'count' and 'room'. */
#define GROW(p, list, count, room) ((list) = parse_grow(p, list, count, &(room), sizeof((list)[0])))

enum type parse_type(struct parser *p, struct text t);
/* The bits of a number as written, of this type. */
uint64_t parse_literal(struct parser *p, struct text t, enum type type, int bytes);

static inline int same(struct text t, const char *s)
{
    return (int)strlen(s) == t.length && !memcmp(t.at, s, (size_t)t.length);
}

static inline int starts(struct text t, const char *s)
{
    return (int)strlen(s) <= t.length && !memcmp(t.at, s, strlen(s));
}

static inline struct text trim(struct text t)
{
    while (t.length && isspace((unsigned char)t.at[0])) t.at++, t.length--;
    while (t.length && isspace((unsigned char)t.at[t.length - 1])) t.length--;
    return t;
}

#endif
