/* SPDX-License-Identifier: Apache-2.0
 * PTX text: declarations, scopes, labels, kernels. operands.c knows the operands, decode.c the instructions. */
#define _GNU_SOURCE
#include "parse.h"

#include <stdarg.h>

static char message[512];

const char *emu_message(void)
{
    return message;
}

void parse_error(struct parser *p, const char *format, ...)
{
    va_list list;
    int n = snprintf(message, sizeof(message), "%s:%d: ", p->m->name, p->line);
    va_start(list, format);
    vsnprintf(message + n, sizeof(message) - (size_t)n, format, list);
    va_end(list);
    longjmp(p->failed, 1);
}

void *parse_grow(struct parser *p, void *list, int count, int *room, size_t each)
{
    if (count < *room)
        return list;
    *room = *room ? 2 * *room : 64;
    void *more = realloc(list, (size_t)*room * each);
    if (!more)
        parse_error(p, "out of memory");
    return more;
}

/* --------------------------------------------------------------------------------------------- characters --- */

static void skip(struct parser *p)
{
    while (isspace((unsigned char)*p->at)) p->at++;
    for (; p->counted < p->at; p->counted++) p->line += *p->counted == '\n';
}

static int is_name(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%' || c == '.';
}

static struct text word(struct parser *p)
{
    skip(p);
    struct text t = {p->at, 0};
    while (is_name(*p->at) || (*p->at == ':' && p->at[1] == ':')) p->at += *p->at == ':' ? 2 : 1;
    t.length = (int)(p->at - t.at);
    return t;
}

static void expect(struct parser *p, char c)
{
    skip(p);
    if (*p->at != c)
        parse_error(p, "expected '%c' before \"%.20s\"", c, p->at);
    p->at++;
}

/* Up to the end character, which is passed over. */
static struct text until(struct parser *p, char end)
{
    struct text t = {p->at, 0};
    while (*p->at && *p->at != end) p->at++;
    if (!*p->at)
        parse_error(p, "'%c' is missing", end);
    t.length = (int)(p->at++ - t.at);
    return t;
}

/* Comments become blanks; lines keep their numbers. */
static char *without_comments(const char *text)
{
    char *copy = strdup(text);
    for (char *c = copy; c && *c;) {
        if (c[0] == '/' && c[1] == '/') {
            while (*c && *c != '\n') *c++ = ' ';
        } else if (c[0] == '/' && c[1] == '*') {
            for (; *c && !(c[0] == '*' && c[1] == '/'); c++)
                if (*c != '\n')
                    *c = ' ';
            if (*c)
                c[0] = c[1] = ' ';
        } else {
            c++;
        }
    }
    return copy;
}

/* ------------------------------------------------------------------------------------------------ labels --- */

static void add_fixup(struct parser *p, struct text t, int inst, int table)
{
    GROW(p, p->fixups, p->fixup_count, p->fixup_room);
    p->fixups[p->fixup_count++] = (struct fixup){inst, p->scopes[p->depth], p->line, trim(t), table};
}

void parse_target(struct parser *p, struct inst *in, struct text t)
{
    add_fixup(p, t, (int)(in - p->k->code), -1);
}

void parse_table(struct parser *p, struct inst *in, struct text t)
{
    in->target = -1;
    add_fixup(p, t, (int)(in - p->k->code), -1);
}

static const struct symbol *find_label(const struct parser *p, struct text t, int scope)
{
    for (int s = scope; s >= 0; s = p->scope_parent[s])
        for (int i = p->module_symbols; i < p->symbol_count; i++)
            if (p->symbols[i].kind == LABEL && p->symbols[i].scope == s && p->symbols[i].name.length == t.length &&
                !memcmp(p->symbols[i].name.at, t.at, (size_t)t.length))
                return &p->symbols[i];
    return NULL;
}

static void resolve(struct parser *p)
{
    struct kernel *k = p->k;
    for (int i = 0; i < p->fixup_count; i++) {
        const struct fixup *f = &p->fixups[i];
        const struct symbol *s = find_label(p, f->name, f->scope);
        p->line = f->line;
        if (!s)
            parse_error(p, "unknown label \"%.*s\"", f->name.length, f->name.at);
        int is_table = s->first <= -2;
        if (f->table >= 0) {
            k->table[f->table] = s->first;
        } else if (k->code[f->inst].kind == K_BRANCH_TABLE) {
            if (!is_table)
                parse_error(p, "\"%.*s\" is no table of labels", f->name.length, f->name.at);
            k->code[f->inst].target = -2 - s->first;
            k->code[f->inst].imm = s->count;
        } else {
            k->code[f->inst].target = s->first;
        }
    }
}

/* ------------------------------------------------------------------------------------------ declarations --- */

static struct symbol *add_symbol(struct parser *p, struct text name)
{
    GROW(p, p->symbols, p->symbol_count, p->symbol_room);
    struct symbol *s = &p->symbols[p->symbol_count++];
    *s = (struct symbol){.name = name, .scope = p->scopes[p->depth]};
    return s;
}

/* .reg .type a, b<count>, ... ; */
static void declare_registers(struct parser *p)
{
    enum type type = parse_type(p, word(p));
    do {
        struct text name = word(p);
        skip(p);
        int count = 0;
        if (*p->at == '<') {
            p->at++;
            count = (int)parse_integer(p, until(p, '>'));
        }
        struct symbol *s = add_symbol(p, name);
        s->kind = count ? REGISTERS : REGISTER;
        s->bytes = type == T_PRED ? 0 : type_bytes(type);
        s->count = count;
        s->first = p->register_count;
        for (int i = 0; i < (count ? count : 1); i++) {
            GROW(p, p->registers, p->register_count, p->register_room);
            p->registers[p->register_count++] = -1;
        }
        skip(p);
    } while (*p->at == ',' && p->at++);
    expect(p, ';');
}

static uint64_t round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

/* After the name: [n][m]; the number of elements, 0 for []. */
static uint64_t dimensions(struct parser *p)
{
    uint64_t count = 1;
    skip(p);
    while (*p->at == '[') {
        p->at++;
        struct text t = trim(until(p, ']'));
        count *= t.length ? (uint64_t)parse_integer(p, t) : 0;
        skip(p);
    }
    return count;
}

static void initialise(struct parser *p, uint8_t *data, uint64_t count, enum type type)
{
    int bytes = type_bytes(type);
    skip(p);
    int list = *p->at == '{';
    p->at += list;
    for (uint64_t i = 0; i < count; i++) {
        struct text t = word(p);
        if (!t.length && *p->at == '-') {
            p->at++;
            t = word(p);
            t.at--, t.length++;
        }
        uint64_t v = parse_literal(p, t, type, bytes);
        memcpy(data + i * (uint64_t)bytes, &v, (size_t)bytes);
        skip(p);
        if (!list || *p->at != ',')
            break;
        p->at++;
    }
    if (list)
        expect(p, '}');
}

/* .shared, .global, .const, .local, after that word: [.align n] .type name[count] [= values] ; */
static void declare_variable(struct parser *p, enum space space, int is_extern)
{
    uint64_t align = 0;
    struct text t = word(p);
    for (;; t = word(p)) {
        if (same(t, ".align"))
            align = (uint64_t)parse_integer(p, word(p));
        else if (!same(t, ".attribute"))
            break;
        else
            (void)until(p, ')');
    }
    if (starts(t, ".v2") || starts(t, ".v4"))
        parse_error(p, "vector variables are not supported");
    enum type type = parse_type(p, t);
    struct text name = word(p);
    uint64_t count = dimensions(p), bytes = count * (uint64_t)type_bytes(type);
    if (align < (uint64_t)type_bytes(type))
        align = (uint64_t)type_bytes(type);
    struct symbol *s = add_symbol(p, name);
    s->kind = VARIABLE;
    s->space = space;
    s->bytes = (int)align;
    if (space == S_SHARED && !p->k) {
        /* Laid out for each kernel, behind what it declares itself; extern: behind everything. */
        s->address = is_extern ? UINT64_MAX
                               : SHARED_START + (p->module_shared = (uint32_t)round_up(p->module_shared, align));
        if (!is_extern)
            p->module_shared += (uint32_t)bytes;
    } else if (space == S_SHARED) {
        p->k->static_shared = (uint32_t)round_up(p->k->static_shared, align);
        s->address = SHARED_START + p->k->static_shared;
        p->k->static_shared += (uint32_t)bytes;
    } else if (space == S_LOCAL) {
        p->k->local_bytes = (uint32_t)round_up(p->k->local_bytes, align);
        s->address = p->k->local_bytes;
        p->k->local_bytes += (uint32_t)bytes;
    } else {
        if (is_extern)
            parse_error(p, "an external variable");
        void *data = emu_allocate(bytes);
        if (!data)
            parse_error(p, "out of memory");
        GROW(p, p->m->globals, p->m->global_count, p->global_room);
        p->m->globals[p->m->global_count++] = data;
        memset(data, 0, bytes);
        emu_written(data, bytes);
        s->address = (uint64_t)(uintptr_t)data;
        skip(p);
        if (*p->at == '=') {
            p->at++;
            initialise(p, data, count, type);
        }
    }
    expect(p, ';');
}

/* Extern shared arrays begin where static ones end, which is known at the first instruction. */
static void place_dynamic(struct parser *p)
{
    for (int i = 0; i < p->module_symbols; i++) {
        struct symbol *s = &p->symbols[i];
        if (s->kind == VARIABLE && s->space == S_SHARED && s->count == 1 && (uint32_t)s->bytes > p->k->dynamic_align)
            p->k->dynamic_align = (uint32_t)s->bytes;
    }
    for (int i = 0; i < p->module_symbols; i++) {
        struct symbol *s = &p->symbols[i];
        if (s->kind == VARIABLE && s->space == S_SHARED && s->count == 1)
            s->address = SHARED_START + round_up(p->k->static_shared, p->k->dynamic_align);
    }
}

/* ----------------------------------------------------------------------------------------------- kernels --- */

static struct inst *add_instruction(struct parser *p)
{
    struct kernel *k = p->k;
    GROW(p, k->code, k->count, p->code_room);
    struct inst *in = &k->code[k->count++];
    memset(in, 0, sizeof(*in));
    in->line = p->line;
    in->guard = -1;
    GROW(p, p->starts, k->count - 1, p->start_room);
    p->starts[k->count - 1] = k->pool_count;
    return in;
}

/* A list of operands: commas outside of brackets. */
static int operands(struct parser *p, struct text t, struct text *a, int most)
{
    int count = 0, depth = 0, start = 0;
    t = trim(t);
    if (!t.length)
        return 0;
    for (int i = 0; i <= t.length; i++) {
        char c = i < t.length ? t.at[i] : ',';
        depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        if (c == ',' && !depth) {
            if (count == most)
                parse_error(p, "too many operands");
            a[count++] = trim((struct text){t.at + start, i - start});
            start = i + 1;
        }
    }
    return count;
}

static void instruction(struct parser *p)
{
    struct inst *in = add_instruction(p);
    int index = p->k->count - 1;
    skip(p);
    if (*p->at == '@') {
        p->at++;
        skip(p);
        in->guard_not = *p->at == '!';
        p->at += in->guard_not;
        in->guard = parse_operand(p, word(p), T_PRED, 0, NULL);
    }
    struct text mnemonic = word(p), a[8];
    in->text = (int32_t)(mnemonic.at - p->m->text);
    int count = operands(p, until(p, ';'), a, 8);
    decode(p, in, mnemonic, a, count);
    in = &p->k->code[index];
    if (!in->run && in->kind == K_PLAIN)
        parse_error(p, "unknown instruction %.*s", mnemonic.length, mnemonic.at);
}

static void label(struct parser *p, struct text name)
{
    struct symbol *s = add_symbol(p, name);
    s->kind = LABEL;
    s->first = p->k->count;
    skip(p);
    const char *at = p->at;
    if (!same(word(p), ".branchtargets")) {
        p->at = at;
        return;
    }
    struct text a[256];
    int count = operands(p, until(p, ';'), a, 256);
    s = &p->symbols[p->symbol_count - 1];
    s->first = -2 - p->k->table_count;
    s->count = count;
    for (int i = 0; i < count; i++) {
        GROW(p, p->k->table, p->k->table_count, p->table_room);
        add_fixup(p, a[i], -1, p->k->table_count++);
    }
}

static void open_scope(struct parser *p)
{
    if (p->depth == 63)
        parse_error(p, "too many nested braces");
    GROW(p, p->scope_parent, p->scope_count, p->scope_room);
    p->scope_parent[p->scope_count] = p->scopes[p->depth];
    p->scopes[++p->depth] = p->scope_count++;
}

static void body(struct parser *p)
{
    int base = p->depth, placed = 0;
    do {
        skip(p);
        const char *begin = p->at;
        if (*p->at == '{') {
            p->at++;
            open_scope(p);
            continue;
        }
        if (*p->at == '}') {
            p->at++;
            p->depth--;
            continue;
        }
        if (!*p->at)
            parse_error(p, "the text ends within a kernel");
        if (*p->at == ';') {
            p->at++;
            continue;
        }
        struct text t = word(p);
        skip(p);
        if (same(t, ".reg")) {
            declare_registers(p);
        } else if (same(t, ".shared") || same(t, ".local")) {
            if (placed && same(t, ".shared"))
                parse_error(p, "shared memory declared behind instructions");
            declare_variable(p, same(t, ".shared") ? S_SHARED : S_LOCAL, 0);
        } else if (same(t, ".loc") || same(t, ".file")) {
            while (*p->at && *p->at != '\n') p->at++;
        } else if (same(t, ".pragma")) {
            (void)until(p, ';');
        } else if (t.length && *p->at == ':' && begin == t.at) {
            p->at++;
            label(p, t);
        } else if (t.length && t.at[0] == '.') {
            parse_error(p, "unknown directive %.*s", t.length, t.at);
        } else {
            if (!placed++)
                place_dynamic(p);
            p->at = begin;
            instruction(p);
        }
    } while (p->depth >= base);
    p->depth = base - 1;
    p->line = 0;
    struct kernel *k = p->k;
    /* The end of the text is an exit. */
    struct inst *end = add_instruction(p);
    end->kind = K_EXIT;
    resolve(p);
    /* Constants lie behind the registers. */
    k->register_bytes = (k->register_bytes + 255) & ~255;
    k->file_bytes = k->register_bytes + k->constant_bytes;
    for (int i = 0; i < k->pool_count; i++)
        if (k->pool[i] < 0)
            k->pool[i] = k->register_bytes + ~k->pool[i];
    for (int i = 0; i < k->count; i++) {
        k->code[i].o = k->pool + p->starts[i];
        if (k->code[i].guard < -1)
            parse_error(p, "a constant as guard");
    }
}

static void parameters(struct parser *p)
{
    skip(p);
    if (*p->at != '(')
        return;
    p->at++;
    for (skip(p); *p->at && *p->at != ')'; skip(p)) {
        struct text t = word(p);
        uint64_t align = 0;
        enum type type = T_NONE;
        if (!same(t, ".param"))
            parse_error(p, "expected .param, not \"%.*s\"", t.length, t.at);
        for (t = word(p); t.length && t.at[0] == '.'; t = word(p)) {
            if (same(t, ".align")) {
                uint64_t n = (uint64_t)parse_integer(p, word(p));
                align = type == T_NONE ? n : align; /* behind .ptr: of what it points to */
            } else if (!same(t, ".ptr") && !same(t, ".global") && !same(t, ".shared") && !same(t, ".const") &&
                       !same(t, ".local")) {
                type = parse_type(p, t);
            }
        }
        struct symbol *s = add_symbol(p, t);
        uint64_t bytes = dimensions(p) * (uint64_t)type_bytes(type);
        if (align < (uint64_t)type_bytes(type))
            align = (uint64_t)type_bytes(type);
        s->kind = VARIABLE;
        s->space = S_PARAM;
        s->address = p->k->param_bytes = round_up(p->k->param_bytes, align);
        p->k->param_bytes += bytes;
        if (*p->at == ',')
            p->at++;
    }
    expect(p, ')');
}

static void entry(struct parser *p)
{
    GROW(p, p->m->kernels, p->m->kernel_count, p->kernel_room);
    struct kernel *k = p->k = &p->m->kernels[p->m->kernel_count++];
    memset(k, 0, sizeof(*k));
    for (int i = 0; i < X_COUNT; i++) k->special[i] = -1;
    p->code_room = p->pool_room = p->table_room = p->constant_room = 0;
    p->predicate_next = p->predicate_end = 0;
    p->sink = -1;
    p->module_symbols = p->symbol_count;
    p->fixup_count = p->register_count = 0;
    k->static_shared = p->module_shared;
    k->dynamic_align = 16;
    struct text t = word(p);
    k->name = strndup(t.at, (size_t)t.length);
    open_scope(p);
    parameters(p);
    for (skip(p); *p->at != '{'; skip(p)) {
        t = word(p);
        if (same(t, ".maxntid") || same(t, ".reqntid")) {
            k->threads = 1;
            do k->threads *= (int)parse_integer(p, word(p));
            while ((skip(p), *p->at == ',') && p->at++);
        } else if (same(t, ".minnctapersm") || same(t, ".maxnreg") || same(t, ".maxnctapersm")) {
            (void)word(p);
        } else if (same(t, ".pragma")) {
            (void)until(p, ';');
        } else {
            parse_error(p, "unknown directive \"%.*s\"", t.length, t.length ? t.at : "");
        }
    }
    p->at++;
    body(p);
    p->k = NULL;
    p->symbol_count = p->module_symbols;
}

static void braces(struct parser *p)
{
    int depth = 0;
    do {
        depth += (*p->at == '{') - (*p->at == '}');
        if (!*p->at)
            parse_error(p, "'}' is missing");
        p->at++;
    } while (depth || p->at[-1] != '}');
}

static void module(struct parser *p)
{
    int is_extern = 0;
    for (skip(p); *p->at; skip(p)) {
        struct text t = word(p);
        if (same(t, ".version") || same(t, ".address_size")) {
            (void)word(p);
        } else if (same(t, ".target") || same(t, ".file") || same(t, ".loc")) {
            while (*p->at && *p->at != '\n') p->at++;
        } else if (same(t, ".visible") || same(t, ".weak") || same(t, ".common")) {
            continue;
        } else if (same(t, ".extern")) {
            is_extern = 1;
            continue;
        } else if (same(t, ".entry")) {
            entry(p);
        } else if (same(t, ".global") || same(t, ".const")) {
            declare_variable(p, S_GLOBAL, is_extern);
        } else if (same(t, ".shared")) {
            declare_variable(p, S_SHARED, is_extern);
            p->symbols[p->symbol_count - 1].count = is_extern;
        } else if (same(t, ".section")) {
            braces(p);
        } else {
            parse_error(p, "unknown directive \"%.*s\"", t.length ? t.length : 20, t.length ? t.at : p->at);
        }
        is_extern = 0;
    }
}

static int parse(struct parser *p)
{
    if (setjmp(p->failed))
        return 0;
    module(p);
    return 1;
}

struct emu_module *emu_load(const char *ptx_text, const char *name)
{
    struct emu_module *m = calloc(1, sizeof(*m));
    struct parser *p = calloc(1, sizeof(*p));
    message[0] = 0;
    if (!m || !p || !(m->name = strdup(name)) || !(m->text = without_comments(ptx_text)))
        abort();
    p->m = m;
    p->line = 1;
    p->at = p->counted = m->text;
    p->scope_room = 64;
    p->scope_parent = malloc(64 * sizeof(*p->scope_parent));
    p->scope_parent[0] = -1;
    p->scope_count = 1;
    int ok = parse(p);
    free(p->symbols);
    free(p->registers);
    free(p->scope_parent);
    free(p->fixups);
    free(p->starts);
    free(p);
    if (!ok) {
        emu_unload(m);
        return NULL;
    }
    return m;
}

void emu_unload(struct emu_module *m)
{
    if (!m)
        return;
    for (int i = 0; i < m->kernel_count; i++) {
        struct kernel *k = &m->kernels[i];
        free(k->name);
        free(k->code);
        free(k->pool);
        free(k->table);
        free(k->constants);
    }
    for (int i = 0; i < m->global_count; i++) emu_release(m->globals[i]);
    free(m->globals);
    free(m->kernels);
    free(m->name);
    free(m->text);
    free(m);
}

int emu_kernels(const struct emu_module *m)
{
    return m->kernel_count;
}

const char *emu_kernel_name(const struct emu_module *m, int i)
{
    return m->kernels[i].name;
}

int emu_has_kernel(const struct emu_module *m, const char *name)
{
    for (int i = 0; i < m->kernel_count; i++)
        if (!strcmp(m->kernels[i].name, name))
            return 1;
    return 0;
}
