/* SPDX-License-Identifier: Apache-2.0
 * Mnemonic and operands to what execution needs. A modifier that nothing here asked for makes the instruction unknown:
 * better not to load a kernel than to run it wrongly. */
#include "internal.h"

enum { MODIFIERS = 16 };

struct words {
    struct parser *p;
    struct text name[MODIFIERS];
    int taken[MODIFIERS], count;
};

static int is(struct text t, const char *s)
{
    return (int)strlen(s) == t.length && !memcmp(t.at, s, (size_t)t.length);
}

static int take_text(struct words *d, struct text t)
{
    for (int i = 0; i < d->count; i++)
        if (!d->taken[i] && d->name[i].length == t.length && !memcmp(d->name[i].at, t.at, (size_t)t.length))
            return d->taken[i] = 1;
    return 0;
}

/* Whether the modifier is there; it is then known. */
static int take(struct words *d, const char *s)
{
    return take_text(d, (struct text){s, (int)strlen(s)});
}

/* The first of a list, separated by blanks, that is there: its index, or -1. */
static int take_one(struct words *d, const char *list)
{
    for (int n = 0; *list; n++) {
        int length = (int)strcspn(list, " ");
        if (take_text(d, (struct text){list, length}))
            return n;
        list += length + (list[length] == ' ');
    }
    return -1;
}

static enum type take_type(struct words *d)
{
    static const char *const names[] = {"",    "pred", "b8",    "u8",     "s8",  "b16", "u16",
                                        "s16", "b32",  "u32",   "s32",    "b64", "u64", "s64",
                                        "f16", "bf16", "f16x2", "bf16x2", "f32", "f64", "tf32"};
    for (int i = 0; i < d->count; i++)
        for (int t = T_PRED; t <= T_TF32; t++)
            if (!d->taken[i] && is(d->name[i], names[t])) {
                d->taken[i] = 1;
                return (enum type)t;
            }
    return T_NONE;
}

static void take_rounding(struct words *d, struct inst *in)
{
    in->rounding = (uint8_t)(1 + take_one(d, "rn rz rm rp rni rzi rmi rpi"));
}

static void take_space(struct words *d, struct inst *in)
{
    static const uint8_t spaces[] = {S_GLOBAL, S_SHARED, S_SHARED, S_LOCAL, S_PARAM, S_PARAM, S_CONST};
    int n = take_one(d, "global shared shared::cta local param param::entry const");
    in->space = n < 0 ? S_GENERIC : spaces[n];
}

/* How strongly ordered, how cached: nothing here depends on it. */
static void take_caching(struct words *d)
{
    (void)take_one(d, "volatile relaxed acquire release acq_rel weak");
    (void)take_one(d, "cta gpu sys cluster");
    (void)take_one(d, "ca cg cs lu cv wb wt");
    (void)take_one(d, "L1::evict_normal L1::evict_unchanged L1::evict_first L1::evict_last L1::no_allocate");
    (void)take_one(d, "L2::64B L2::128B L2::256B");
}

static void need(struct words *d, int ok, const char *why)
{
    if (!ok)
        parse_error(d->p, "%.*s...: %s", d->name[0].length, d->name[0].at, why);
}

static void source(struct words *d, struct text t, enum type type)
{
    parse_add(d->p, parse_operand(d->p, t, type, type == T_PRED ? 0 : type_bytes(type), NULL));
}

static void destination(struct words *d, struct text t, enum type type)
{
    parse_add(d->p, parse_destination(d->p, t, type == T_PRED ? 0 : type_bytes(type), NULL));
}

/* A predicate that may be written !p; bit 'number' of in->negate. */
static void predicate(struct words *d, struct inst *in, struct text t, int number)
{
    if (t.length && t.at[0] == '!') {
        in->negate |= (uint8_t)(1 << number);
        t.at++, t.length--;
    }
    source(d, t, T_PRED);
}

/* "a|b": cuts b off; returns whether it was there. */
static int second(struct text *t, struct text *other)
{
    const char *bar = memchr(t->at, '|', (size_t)t->length);
    if (!bar)
        return 0;
    *other = (struct text){bar + 1, (int)(t->at + t->length - bar - 1)};
    t->length = (int)(bar - t->at);
    return 1;
}

/* ------------------------------------------------------------------------------------ the same for all types --- */

static enum type unsigned_of(enum type t)
{
    switch (t) {
    case T_B16:
    case T_S16: return T_U16;
    case T_B32:
    case T_S32: return T_U32;
    case T_B64:
    case T_S64: return T_U64;
    default: return t;
    }
}

static const struct rule *find_rule(const struct rule *list, const char *name, enum type type)
{
    for (; list->name; list++)
        if (list->type == type && !strcmp(list->name, name))
            return list;
    return NULL;
}

/* add, mul.lo, ...; 1 if it is one of these. */
static int by_rule(struct words *d, struct inst *in, struct text *a, int count)
{
    char name[40];
    struct words saved = *d;
    int part = take_one(d, "lo hi wide l r approx full trunc finite infinite number notanumber normal subnormal");
    static const char *const parts[] = {"lo",    "hi",     "wide",     "l",      "r",          "approx", "full",
                                        "trunc", "finite", "infinite", "number", "notanumber", "normal", "subnormal"};
    int shift = take_one(d, "wrap clamp shiftamt");
    static const char *const shifts[] = {"wrap", "clamp", "shiftamt"};
    take_rounding(d, in);
    in->ftz = (uint8_t)take(d, "ftz");
    in->sat = (uint8_t)take(d, "sat");
    in->mode = (uint8_t)(take(d, "NaN") ? 1 : 0);
    enum type type = take_type(d);
    snprintf(name, sizeof(name), "%.*s%s%s%s%s", d->name[0].length, d->name[0].at, part < 0 ? "" : ".",
             part < 0 ? "" : parts[part], shift < 0 ? "" : ".", shift < 0 ? "" : shifts[shift]);
    /* The approximate ones round in their own way, a division "rn" is the exact one. */
    const struct rule *r = find_rule(integer_rules, name, type);
    if (!r)
        r = find_rule(float_rules, name, type);
    if (!r)
        r = find_rule(integer_rules, name, unsigned_of(type));
    if (!r) {
        *d = saved;
        in->rounding = in->ftz = in->sat = in->mode = 0;
        return 0;
    }
    if (!type_is_float(type))
        need(d, !in->rounding && !in->ftz && !in->mode && !in->sat, "unknown modifier");
    if (in->rounding == R_RN)
        in->rounding = R_NONE;
    need(d, in->rounding < R_RNI, "unknown rounding");
    in->run = r->run;
    in->type = (uint8_t)type;
    need(d, count == (int)strlen(r->form), "wrong number of operands");
    for (int i = 0; i < count; i++) {
        enum type t = type;
        if (r->form[i] == 'w')
            t = type_bytes(type) == 2 ? T_B32 : T_B64;
        if (r->form[i] == 'i')
            t = T_B32;
        if (r->form[i] == 'p')
            t = T_PRED;
        if (i == 0)
            destination(d, a[0], t);
        else
            source(d, a[i], t);
    }
    return 1;
}

/* --------------------------------------------------------------------------------------- moving, comparing --- */

static void decode_mov(struct words *d, struct inst *in, struct text *a, int count)
{
    enum type type = take_type(d);
    struct text to[4], from[4];
    need(d, count == 2 && type, "wrong operands");
    int n = parse_vector(d->p, a[0], to, 4), m = parse_vector(d->p, a[1], from, 4), bytes = type_bytes(type);
    in->type = (uint8_t)type;
    if (n == 1 && m == 1) {
        in->run = type == T_PRED ? run_mov_pred : bytes == 2 ? run_mov16 : bytes == 4 ? run_mov32 : run_mov64;
        need(d, type == T_PRED || bytes > 1, "bytes");
        destination(d, a[0], type);
        source(d, a[1], type);
        return;
    }
    need(d, (n == 1) != (m == 1), "wrong operands");
    int parts = n == 1 ? m : n, each = bytes / parts;
    need(d, each == 2 || each == 4, "parts of this size");
    in->vector = (uint8_t)parts;
    in->size[0] = (uint8_t)bytes;
    in->size[1] = (uint8_t)each;
    in->run = n == 1 ? run_pack : run_unpack;
    if (n == 1)
        destination(d, a[0], type);
    for (int i = 0; i < parts; i++)
        if (n == 1)
            parse_add(d->p, parse_operand(d->p, from[i], T_B32, each, NULL));
        else
            parse_add(d->p, parse_destination(d->p, to[i], each, NULL));
    if (n != 1)
        source(d, a[1], type);
}

static void decode_setp(struct words *d, struct inst *in, struct text *a, int count)
{
    struct text comparison = d->count > 1 ? d->name[1] : d->name[0], other;
    d->taken[1] = 1;
    in->mode = (uint8_t)(1 + take_one(d, "and or xor"));
    in->ftz = (uint8_t)take(d, "ftz");
    enum type type = take_type(d);
    in->type = (uint8_t)type;
    in->run = setp_function(type, comparison.at, comparison.length);
    need(d, in->run != NULL, "unknown comparison");
    need(d, count == (in->mode ? 4 : 3), "wrong number of operands");
    int two = second(&a[0], &other);
    in->vector = (uint8_t)(1 + two);
    destination(d, a[0], T_PRED);
    destination(d, two ? other : (struct text){"_", 1}, T_PRED);
    source(d, a[1], type);
    source(d, a[2], type);
    if (in->mode)
        predicate(d, in, a[3], 0);
}

/* set: as setp into a predicate of its own, then 1.0, or all ones. */
static void decode_set(struct words *d, struct inst *in, struct text *a, int count)
{
    struct text comparison = d->count > 1 ? d->name[1] : d->name[0];
    d->taken[1] = 1;
    in->ftz = (uint8_t)take(d, "ftz");
    enum type to = take_type(d), type = take_type(d);
    need(d, count == 3 && type_bytes(to) == 4 && setp_function(type, comparison.at, comparison.length),
         "wrong operands");
    in->run = run_set;
    in->type = (uint8_t)type;
    in->from = (uint8_t)to;
    in->imm = (int64_t)(intptr_t)setp_function(type, comparison.at, comparison.length);
    destination(d, a[0], to);
    destination(d, (struct text){"_", 1}, T_PRED);
    source(d, a[1], type);
    source(d, a[2], type);
}

static void decode_selp(struct words *d, struct inst *in, struct text *a, int count)
{
    enum type type = take_type(d);
    need(d, count == 4 && type && type_bytes(type) > 1, "wrong operands");
    in->run = type_bytes(type) == 2 ? run_selp16 : type_bytes(type) == 4 ? run_selp32 : run_selp64;
    destination(d, a[0], type);
    source(d, a[1], type);
    source(d, a[2], type);
    predicate(d, in, a[3], 0);
}

static void decode_slct(struct words *d, struct inst *in, struct text *a, int count)
{
    in->ftz = (uint8_t)take(d, "ftz");
    enum type type = take_type(d), by = take_type(d);
    need(d, count == 4 && (by == T_S32 || by == T_F32) && type_bytes(type) >= 4, "wrong operands");
    in->run = run_slct;
    in->type = (uint8_t)type;
    in->from = (uint8_t)by;
    destination(d, a[0], type);
    source(d, a[1], type);
    source(d, a[2], type);
    source(d, a[3], by);
}

static void decode_cvt(struct words *d, struct inst *in, struct text *a, int count)
{
    int bytes;
    take_rounding(d, in);
    in->ftz = (uint8_t)take(d, "ftz");
    in->sat = (uint8_t)take(d, "sat");
    in->mode = (uint8_t)take(d, "relu");
    enum type to = take_type(d), from = take_type(d);
    need(d, to && from, "wrong types");
    in->type = (uint8_t)to;
    in->from = (uint8_t)from;
    if (to == T_F16X2 || to == T_BF16X2) {
        need(d, count == 3 && from == T_F32 && (in->rounding == R_RN || in->rounding == R_RZ), "wrong operands");
        in->run = run_cvt_pack;
        destination(d, a[0], T_B32);
        source(d, a[1], T_F32);
        source(d, a[2], T_F32);
        return;
    }
    need(d, count == 2 && from != T_F16X2 && from != T_BF16X2 && from != T_TF32 && from != T_PRED, "wrong operands");
    need(d, to != T_TF32 || from == T_F32, "wrong types");
    if (to == T_TF32)
        (void)take(d, "rna");
    in->run = run_cvt;
    parse_add(d->p, parse_destination(d->p, a[0], -1, &bytes));
    in->size[0] = (uint8_t)bytes;
    need(d, bytes >= type_bytes(to), "the destination is too small");
    parse_add(d->p, parse_operand(d->p, a[1], from, -1, &bytes));
    in->size[1] = (uint8_t)bytes;
    need(d, bytes >= type_bytes(from), "the source is too small");
}

/* ------------------------------------------------------------------------------------------------ memory --- */

static void decode_memory(struct words *d, struct inst *in, struct text *a, int count, int is_load)
{
    struct text part[4];
    take_caching(d);
    take_space(d, in);
    int v = take_one(d, "v2 v4");
    enum type type = take_type(d);
    in->type = (uint8_t)type;
    in->vector = (uint8_t)(v < 0 ? 1 : v ? 4 : 2);
    in->mode = (uint8_t)(is_load && take(d, "nc"));
    in->run = is_load ? run_ld : run_st;
    need(d, count == 2 && type > T_PRED, "wrong operands");
    int n = parse_vector(d->p, a[is_load ? 0 : 1], part, 4);
    need(d, n == in->vector, "wrong number of registers");
    for (int i = 0; i < n; i++) {
        int bytes;
        if (is_load)
            parse_add(d->p, parse_destination(d->p, part[i], -1, &bytes));
        else
            parse_add(d->p, parse_operand(d->p, part[i], type, -1, &bytes));
        in->size[i] = (uint8_t)bytes;
        need(d, bytes >= type_bytes(type) || bytes == 2, "a register is too small");
    }
    parse_add(d->p, parse_address(d->p, a[is_load ? 1 : 0], in));
}

static void decode_atomic(struct words *d, struct inst *in, struct text *a, int count, int is_red)
{
    take_caching(d);
    take_space(d, in);
    int op = take_one(d, "add min max and or xor exch cas inc dec");
    (void)take(d, "noftz");
    enum type type = take_type(d);
    in->mode = (uint8_t)op;
    in->type = (uint8_t)type;
    in->run = run_atom;
    need(d, op >= 0 && (type_bytes(type) == 4 || type_bytes(type) == 8) && type != T_F16X2 && type != T_BF16X2,
         "unknown operation");
    need(d, !type_is_float(type) || op == 0, "unknown operation");
    need(d, count == 3 - is_red + (op == 7), "wrong number of operands");
    if (is_red)
        destination(d, (struct text){"_", 1}, type);
    else
        destination(d, *a++, type);
    int32_t address = parse_address(d->p, a[0], in);
    parse_add(d->p, address);
    source(d, a[1], type);
    if (op == 7)
        source(d, a[2], type);
}

static void decode_cvta(struct words *d, struct inst *in, struct text *a, int count)
{
    int to = take(d, "to");
    take_space(d, in);
    enum type type = take_type(d);
    need(d, count == 2 && type == T_U64, "wrong operands");
    in->run = run_cvta;
    in->mode = (uint8_t)to;
    destination(d, a[0], type);
    source(d, a[1], type);
}

static void decode_cp(struct words *d, struct inst *in, struct text *a, int count)
{
    need(d, take(d, "async"), "unknown");
    in->space = S_SHARED;
    if (take(d, "commit_group")) {
        in->run = run_cp_commit;
    } else if (take(d, "wait_all")) {
        in->run = run_cp_wait_all;
    } else if (take(d, "wait_group")) {
        need(d, count == 1, "wrong number of operands");
        in->run = run_cp_wait;
        in->imm = parse_integer(d->p, a[0]);
    } else {
        int cached = take_one(d, "ca cg");
        need(d, cached >= 0, "unknown");
        need(d, take_one(d, "shared shared::cta") >= 0 && take(d, "global"), "unknown");
        (void)take_one(d, "L2::64B L2::128B L2::256B");
        need(d, count == 3 || count == 4, "wrong number of operands");
        in->run = run_cp_async;
        in->size[0] = (uint8_t)parse_integer(d->p, a[2]);
        need(d, in->size[0] == 16 || (!cached && (in->size[0] == 4 || in->size[0] == 8)), "wrong size");
        struct inst from = {.space = S_GLOBAL};
        int32_t to_address = parse_address(d->p, a[0], in), from_address = parse_address(d->p, a[1], &from);
        need(d, from.wide == 8 && from.imm >= INT32_MIN && from.imm <= INT32_MAX, "wrong address");
        in->target = (int32_t)from.imm;
        parse_add(d->p, to_address);
        parse_add(d->p, from_address);
        if (count == 4)
            source(d, a[3], T_B32);
        else
            parse_add(d->p, parse_constant(d->p, 4, in->size[0]));
    }
}

/* -------------------------------------------------------------------------------------------- collectives --- */

static void decode_shfl(struct words *d, struct inst *in, struct text *a, int count)
{
    struct text other = {"_", 1};
    need(d, take(d, "sync") && count == 5, "only shfl.sync");
    int mode = take_one(d, "up down bfly idx");
    need(d, mode >= 0 && take(d, "b32"), "unknown");
    in->mode = (uint8_t)mode;
    in->run = run_shfl;
    in->kind = K_WARP_MASK;
    in->mask_at = 2;
    int two = second(&a[0], &other);
    in->vector = (uint8_t)two;
    destination(d, a[0], T_B32);
    destination(d, other, T_PRED);
    source(d, a[4], T_B32);
    for (int i = 1; i < 4; i++) source(d, a[i], T_B32);
}

static void decode_vote(struct words *d, struct inst *in, struct text *a, int count)
{
    need(d, take(d, "sync") && count == 3, "only vote.sync");
    int mode = take_one(d, "all any uni ballot");
    need(d, mode >= 0, "unknown");
    enum type type = take_type(d);
    need(d, type == (mode == 3 ? T_B32 : T_PRED), "wrong type");
    in->mode = (uint8_t)mode;
    in->run = run_vote;
    in->kind = K_WARP_MASK;
    in->mask_at = 1;
    destination(d, a[0], type);
    source(d, a[2], T_B32);
    predicate(d, in, a[1], 0);
}

static void decode_redux(struct words *d, struct inst *in, struct text *a, int count)
{
    need(d, take(d, "sync") && count == 3, "only redux.sync");
    int mode = take_one(d, "add min max and or xor");
    enum type type = take_type(d);
    need(d, mode >= 0 && type_bytes(type) == 4 && !type_is_float(type), "wrong type");
    in->mode = (uint8_t)mode;
    in->type = (uint8_t)type;
    in->run = run_redux;
    in->kind = K_WARP_MASK;
    in->mask_at = 1;
    destination(d, a[0], type);
    source(d, a[2], T_B32);
    source(d, a[1], type);
}

static void decode_ldmatrix(struct words *d, struct inst *in, struct text *a, int count)
{
    struct text part[4];
    need(d, take(d, "sync") && take(d, "aligned") && take(d, "m8n8"), "unknown");
    int n = take_one(d, "x1 x2 x4");
    need(d, n >= 0 && count == 2, "unknown");
    in->vector = (uint8_t)(1 << n);
    in->mode = (uint8_t)take(d, "trans");
    take_space(d, in);
    need(d, take(d, "b16") && (in->space == S_SHARED || in->space == S_GENERIC), "unknown");
    in->run = run_ldmatrix;
    in->kind = K_WARP_ALIGNED;
    need(d, parse_vector(d->p, a[0], part, 4) == in->vector, "wrong number of registers");
    for (int i = 0; i < in->vector; i++) destination(d, part[i], T_B32);
    parse_add(d->p, parse_address(d->p, a[1], in));
}

static void decode_movmatrix(struct words *d, struct inst *in, struct text *a, int count)
{
    need(d,
         take(d, "sync") && take(d, "aligned") && take(d, "m8n8") && take(d, "trans") && take(d, "b16") && count == 2,
         "unknown");
    in->run = run_movmatrix;
    in->kind = K_WARP_ALIGNED;
    destination(d, a[0], T_B32);
    source(d, a[1], T_B32);
}

static void decode_mma(struct words *d, struct inst *in, struct text *a, int count)
{
    static const int elements[4] = {4, 4, 2, 4};
    struct text part[4];
    need(d, take(d, "sync") && take(d, "aligned"), "unknown");
    int shape = take_one(d, "m16n8k16 m16n8k8");
    need(d, shape >= 0 && take(d, "row") && take(d, "col") && count == 4, "unknown");
    enum type td = take_type(d), ta = take_type(d), tb = take_type(d), tc = take_type(d);
    need(d, td == T_F32 && tc == T_F32 && ta == tb && (ta == T_F16 || ta == T_BF16 || ta == T_TF32), "unknown types");
    need(d, (ta == T_TF32) == (shape == 1), "unknown shape");
    in->type = (uint8_t)ta;
    in->run = ta == T_TF32 ? run_mma_tf32 : run_mma;
    in->kind = K_WARP_ALIGNED;
    for (int i = 0; i < 4; i++) {
        need(d, parse_vector(d->p, a[i], part, 4) == elements[i], "wrong number of registers");
        for (int j = 0; j < elements[i]; j++)
            if (i == 0)
                destination(d, part[j], T_F32);
            else
                source(d, part[j], T_F32);
    }
}

static void decode_barrier(struct words *d, struct inst *in, struct text *a, int count)
{
    if (take(d, "warp")) {
        need(d, take(d, "sync") && count == 1, "unknown");
        in->run = run_syncwarp;
        in->kind = K_WARP_MASK;
        source(d, a[0], T_B32);
        return;
    }
    (void)take(d, "cta");
    int reduce = take(d, "red");
    need(d, reduce || take(d, "sync"), "only .sync and .red");
    (void)take(d, "aligned");
    in->kind = K_BARRIER;
    if (reduce) {
        in->mode = (uint8_t)(1 + take_one(d, "popc and or"));
        enum type type = take_type(d);
        need(d, in->mode && type == (in->mode == 1 ? T_U32 : T_PRED), "unknown operation");
        need(d, count == 3, "only barriers of the whole block");
        destination(d, a[0], type);
        predicate(d, in, a[2], 0);
        a++;
    } else {
        need(d, count == 1, "only barriers of the whole block");
    }
    in->imm = parse_integer(d->p, a[0]);
}

/* ----------------------------------------------------------------------------------------------- all of them --- */

void decode(struct parser *p, struct inst *in, struct text mnemonic, struct text *a, int count)
{
    struct words words = {.p = p}, *d = &words;
    const char *at = mnemonic.at, *end = mnemonic.at + mnemonic.length;
    while (at < end) {
        const char *dot = memchr(at, '.', (size_t)(end - at));
        if (!dot)
            dot = end;
        if (d->count == MODIFIERS)
            parse_error(p, "unknown instruction %.*s", mnemonic.length, mnemonic.at);
        d->name[d->count++] = (struct text){at, (int)(dot - at)};
        at = dot + 1;
    }
    if (!d->count)
        parse_error(p, "an instruction is missing");
    struct text name = d->name[0];
    d->taken[0] = 1;
    if (is(name, "mov"))
        decode_mov(d, in, a, count);
    else if (is(name, "ld") || is(name, "ldu") || is(name, "st"))
        decode_memory(d, in, a, count, !is(name, "st"));
    else if (is(name, "setp"))
        decode_setp(d, in, a, count);
    else if (is(name, "set"))
        decode_set(d, in, a, count);
    else if (is(name, "selp"))
        decode_selp(d, in, a, count);
    else if (is(name, "slct"))
        decode_slct(d, in, a, count);
    else if (is(name, "cvt"))
        decode_cvt(d, in, a, count);
    else if (is(name, "cvta"))
        decode_cvta(d, in, a, count);
    else if (is(name, "atom") || is(name, "red"))
        decode_atomic(d, in, a, count, is(name, "red"));
    else if (is(name, "cp"))
        decode_cp(d, in, a, count);
    else if (is(name, "shfl"))
        decode_shfl(d, in, a, count);
    else if (is(name, "vote"))
        decode_vote(d, in, a, count);
    else if (is(name, "redux"))
        decode_redux(d, in, a, count);
    else if (is(name, "ldmatrix"))
        decode_ldmatrix(d, in, a, count);
    else if (is(name, "movmatrix"))
        decode_movmatrix(d, in, a, count);
    else if (is(name, "mma"))
        decode_mma(d, in, a, count);
    else if (is(name, "bar") || is(name, "barrier"))
        decode_barrier(d, in, a, count);
    else if (is(name, "bra")) {
        (void)take(d, "uni");
        need(d, count == 1, "wrong number of operands");
        in->kind = K_BRANCH;
        parse_target(p, in, a[0]);
    } else if (is(name, "brx")) {
        need(d, take(d, "idx") && count == 2, "unknown");
        (void)take(d, "uni");
        in->kind = K_BRANCH_TABLE;
        source(d, a[0], T_B32);
        parse_table(p, in, a[1]);
    } else if (is(name, "ret") || is(name, "exit")) {
        (void)take(d, "uni");
        in->kind = K_EXIT;
    } else if (is(name, "trap") || is(name, "brkpt"))
        in->kind = K_TRAP;
    else if (is(name, "activemask")) {
        need(d, take(d, "b32") && count == 1, "unknown");
        in->run = run_activemask;
        destination(d, a[0], T_B32);
    } else if (is(name, "isspacep")) {
        take_space(d, in);
        need(d, count == 2, "wrong number of operands");
        in->run = run_isspacep;
        destination(d, a[0], T_PRED);
        source(d, a[1], T_B64);
    } else if (is(name, "membar") || is(name, "fence") || is(name, "prefetch") || is(name, "prefetchu") ||
               is(name, "nanosleep")) {
        for (int i = 0; i < d->count; i++) d->taken[i] = 1;
        in->run = run_nothing;
    } else if (!by_rule(d, in, a, count)) {
        parse_error(p, "unknown instruction %.*s", mnemonic.length, mnemonic.at);
    }
    for (int i = 0; i < d->count; i++)
        if (!d->taken[i])
            parse_error(p, "unknown instruction %.*s: .%.*s", mnemonic.length, mnemonic.at, d->name[i].length,
                        d->name[i].at);
}
