/* SPDX-License-Identifier: Apache-2.0
 * Operands of instructions: registers, special registers, numbers, variables, addresses. */
#include "parse.h"

enum type parse_type(struct parser *p, struct text t)
{
    static const struct {
        const char *name;
        enum type type;
    } types[] = {{".pred", T_PRED}, {".b8", T_B8},   {".u8", T_U8},   {".s8", T_S8},       {".b16", T_B16},
                 {".u16", T_U16},   {".s16", T_S16}, {".f16", T_F16}, {".bf16", T_BF16},   {".b32", T_B32},
                 {".u32", T_U32},   {".s32", T_S32}, {".f32", T_F32}, {".f16x2", T_F16X2}, {".bf16x2", T_BF16X2},
                 {".b64", T_B64},   {".u64", T_U64}, {".s64", T_S64}, {".f64", T_F64}};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (same(t, types[i].name))
            return types[i].type;
    parse_error(p, "unknown type %.*s", t.length, t.at);
}

/* A place of 32 lanes in the file of registers. */
static int32_t new_register(struct parser *p, int bytes)
{
    struct kernel *k = p->k;
    if (!bytes) {
        if (p->predicate_next == p->predicate_end) {
            p->predicate_next = k->register_bytes;
            p->predicate_end = k->register_bytes += 64;
        }
        return (p->predicate_next += 4) - 4;
    }
    int32_t at = k->register_bytes;
    k->register_bytes += LANES * (bytes < 2 ? 2 : bytes);
    return at;
}

static int visible(const struct parser *p, int scope)
{
    for (int i = p->depth; i >= 0; i--)
        if (p->scopes[i] == scope)
            return 1;
    return 0;
}

/* Innermost first: the symbols of inner scopes come later in the list. */
static struct symbol *find(struct parser *p, struct text t, int *number)
{
    int digits = 0;
    while (digits < t.length && digits < 9 && isdigit((unsigned char)t.at[t.length - 1 - digits])) digits++;
    *number = 0;
    for (int i = t.length - digits; i < t.length; i++) *number = *number * 10 + (t.at[i] - '0');
    for (int i = p->symbol_count - 1; i >= 0; i--) {
        struct symbol *s = &p->symbols[i];
        if (s->kind == LABEL || !visible(p, s->scope))
            continue;
        int length = s->kind == REGISTERS ? t.length - digits : t.length;
        if (s->name.length == length && !memcmp(s->name.at, t.at, (size_t)length) &&
            (s->kind != REGISTERS || (digits && *number < s->count)))
            return s;
    }
    return NULL;
}

static int32_t register_offset(struct parser *p, struct symbol *s, int number)
{
    int32_t *offset = &p->registers[s->first + (s->kind == REGISTERS ? number : 0)];
    if (*offset < 0)
        *offset = new_register(p, s->bytes);
    return *offset;
}

int32_t parse_constant(struct parser *p, int bytes, uint64_t value)
{
    struct kernel *k = p->k;
    for (int i = 0; i < k->constant_count; i++)
        if (k->constants[i].size == bytes && k->constants[i].value == value)
            return ~k->constants[i].offset;
    GROW(p, k->constants, k->constant_count, p->constant_room);
    k->constants[k->constant_count++] = (struct constant){k->constant_bytes, (uint8_t)bytes, value};
    k->constant_bytes += bytes ? LANES * (bytes < 2 ? 2 : bytes) : 64;
    return ~k->constants[k->constant_count - 1].offset;
}

static int special_register(struct text t)
{
    static const char *const names[X_COUNT] = {"%tid.x",          "%tid.y",       "%tid.z",
                                               "%ntid.x",         "%ntid.y",      "%ntid.z",
                                               "%ctaid.x",        "%ctaid.y",     "%ctaid.z",
                                               "%nctaid.x",       "%nctaid.y",    "%nctaid.z",
                                               "%laneid",         "%warpid",      "%nwarpid",
                                               "%lanemask_eq",    "%lanemask_lt", "%lanemask_le",
                                               "%lanemask_gt",    "%lanemask_ge", "%dynamic_smem_size",
                                               "%total_smem_size"};
    for (int i = 0; i < X_COUNT; i++)
        if (same(t, names[i]))
            return i;
    return -1;
}

int64_t parse_integer(struct parser *p, struct text t)
{
    char buffer[40], *end;
    t = trim(t);
    if (t.length < 1 || t.length > 32)
        parse_error(p, "expected a number, not \"%.*s\"", t.length, t.at);
    memcpy(buffer, t.at, (size_t)t.length);
    buffer[t.length] = 0;
    if (buffer[t.length - 1] == 'U')
        buffer[t.length - 1] = 0;
    int64_t v = buffer[0] == '-' ? strtoll(buffer, &end, 0) : (int64_t)strtoull(buffer, &end, 0);
    if (*end)
        parse_error(p, "expected a number, not \"%.*s\"", t.length, t.at);
    return v;
}

uint64_t parse_literal(struct parser *p, struct text t, enum type type, int bytes)
{
    uint64_t v;
    if (t.length > 2 && t.at[0] == '0' && strchr("fFdD", t.at[1])) {
        char buffer[20] = {0};
        memcpy(buffer, t.at + 2, (size_t)(t.length - 2 > 16 ? 16 : t.length - 2));
        v = strtoull(buffer, NULL, 16);
        int is_double = t.at[1] == 'd' || t.at[1] == 'D';
        if (is_double != (bytes == 8))
            parse_error(p, "%.*s: a constant of another width", t.length, t.at);
    } else if (type_is_float(type) && memchr(t.at, '.', (size_t)t.length)) {
        double d = strtod(t.at, NULL);
        float f = (float)d;
        v = 0;
        memcpy(&v, bytes == 8 ? (void *)&d : (void *)&f, (size_t)bytes);
    } else {
        v = (uint64_t)parse_integer(p, t);
    }
    return bytes == 8 ? v : v & (((uint64_t)1 << 8 * bytes) - 1);
}

int32_t parse_operand(struct parser *p, struct text t, enum type type, int bytes, int *found_bytes)
{
    t = trim(t);
    int number, dummy;
    if (!found_bytes)
        found_bytes = &dummy;
    if (!t.length)
        parse_error(p, "an operand is missing");
    int x = special_register(t);
    if (x >= 0) {
        if (bytes > 0 && bytes != 4)
            parse_error(p, "%.*s has 32 bits", t.length, t.at);
        *found_bytes = 4;
        if (p->k->special[x] < 0)
            p->k->special[x] = new_register(p, 4);
        return p->k->special[x];
    }
    if (isdigit((unsigned char)t.at[0]) || t.at[0] == '-') {
        if (!bytes)
            return parse_constant(p, 0, parse_integer(p, t) ? ALL : 0);
        *found_bytes = bytes > 0 ? bytes : type_bytes(type);
        return parse_constant(p, *found_bytes, parse_literal(p, t, type, *found_bytes));
    }
    /* A variable's address may be written with an offset. */
    struct text name = t, plus = {NULL, 0};
    for (int i = 0; i < t.length; i++)
        if (t.at[i] == '+') {
            plus = (struct text){t.at + i + 1, t.length - i - 1};
            name = trim((struct text){t.at, i});
            break;
        }
    struct symbol *s = find(p, name, &number);
    if (!s)
        parse_error(p, "unknown name \"%.*s\"", t.length, t.at);
    if (s->kind == VARIABLE) {
        *found_bytes = bytes > 0 ? bytes : type_bytes(type);
        uint64_t v = s->address + (uint64_t)(plus.at ? parse_integer(p, plus) : 0);
        return parse_constant(p, *found_bytes, *found_bytes == 8 ? v : (uint32_t)v);
    }
    if (plus.at)
        parse_error(p, "unknown operand \"%.*s\"", t.length, t.at);
    if (bytes >= 0 && s->bytes != bytes)
        parse_error(p, "%.*s has %d bits, not %d", t.length, t.at, 8 * s->bytes, 8 * bytes);
    *found_bytes = s->bytes;
    return register_offset(p, s, number);
}

int32_t parse_destination(struct parser *p, struct text t, int bytes, int *found_bytes)
{
    t = trim(t);
    if (same(t, "_")) {
        if (p->sink < 0)
            p->sink = new_register(p, 8);
        if (found_bytes)
            *found_bytes = bytes < 0 ? 8 : bytes;
        return p->sink;
    }
    int32_t offset = parse_operand(p, t, T_NONE, bytes, found_bytes);
    for (int i = 0; i < X_COUNT; i++)
        if (offset == p->k->special[i])
            offset = -1;
    if (offset < 0)
        parse_error(p, "%.*s is not a register", t.length, t.at);
    return offset;
}

int32_t parse_address(struct parser *p, struct text t, struct inst *in)
{
    t = trim(t);
    if (t.length < 3 || t.at[0] != '[' || t.at[t.length - 1] != ']')
        parse_error(p, "expected an address, not \"%.*s\"", t.length, t.at);
    t = trim((struct text){t.at + 1, t.length - 2});
    struct text base = t, offset = {NULL, 0};
    for (int i = 1; i < t.length; i++)
        if (t.at[i] == '+' || (t.at[i] == '-' && !offset.at)) {
            base = trim((struct text){t.at, i});
            offset = (struct text){t.at + i + (t.at[i] == '+'), t.length - i - (t.at[i] == '+')};
            break;
        }
    in->imm = offset.at ? parse_integer(p, offset) : 0;
    int number, bytes;
    struct symbol *s = find(p, base, &number);
    int32_t o;
    if (s && s->kind == VARIABLE) {
        uint64_t window = 0;
        if (in->space == S_GENERIC)
            window = s->space == S_SHARED ? SHARED_WINDOW : s->space == S_LOCAL ? LOCAL_WINDOW : 0;
        o = parse_constant(p, bytes = 8, s->address + window);
    } else {
        o = parse_operand(p, base, T_B64, -1, &bytes);
    }
    if (bytes != 4 && bytes != 8)
        parse_error(p, "%.*s is no address", base.length, base.at);
    in->wide = (uint8_t)bytes;
    return o;
}

int parse_vector(struct parser *p, struct text t, struct text *element, int most)
{
    t = trim(t);
    if (!t.length || t.at[0] != '{') {
        element[0] = t;
        return 1;
    }
    int count = 0;
    const char *at = t.at + 1, *end = t.at + t.length - 1;
    while (at < end) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        if (!comma)
            comma = end;
        if (count == most)
            parse_error(p, "more than %d elements in \"%.*s\"", most, t.length, t.at);
        element[count++] = trim((struct text){at, (int)(comma - at)});
        at = comma + 1;
    }
    return count;
}

void parse_add(struct parser *p, int32_t offset)
{
    GROW(p, p->k->pool, p->k->pool_count, p->pool_room);
    p->k->pool[p->k->pool_count++] = offset;
}
