/* SPDX-License-Identifier: Apache-2.0
 * Integer and bit instructions, selection, comparisons. */
#include "lanes.h"

/* ------------------------------------------------------------------------------------- arithmetic, all widths --- */

/* 16-bit operands would become int: sums are unsigned so that they wrap. */
#define WIDTH(n, U, S)                                                                  \
    BINARY(add_##n, U, U, U, (uint64_t)x + y)                                           \
    BINARY(sub_##n, U, U, U, (uint64_t)x - y)                                           \
    BINARY(mul_##n, U, U, U, (uint64_t)x *y)                                            \
    TERNARY(mad_##n, U, U, U, U, (uint64_t)x *y + z)                                    \
    BINARY(and_##n, U, U, U, x &y)                                                      \
    BINARY(or_##n, U, U, U, x | y)                                                      \
    BINARY(xor_##n, U, U, U, x ^ y)                                                     \
    UNARY(not_##n, U, U, ~x)                                                            \
    UNARY(cnot_##n, U, U, !x)                                                           \
    UNARY(neg_##n, U, U, 0u - (uint64_t)x)                                              \
    UNARY(abs_##n, U, S, x < 0 ? 0u - (uint64_t)x : (uint64_t)x)                        \
    BINARY(min_u##n, U, U, U, x < y ? x : y)                                            \
    BINARY(max_u##n, U, U, U, x > y ? x : y)                                            \
    BINARY(min_s##n, S, S, S, x < y ? x : y)                                            \
    BINARY(max_s##n, S, S, S, x > y ? x : y)                                            \
    BINARY(div_u##n, U, U, U, y ? x / y : (U)-1)                                        \
    BINARY(rem_u##n, U, U, U, y ? x % y : x)                                            \
    BINARY(div_s##n, S, S, S, y == 0 ? (S)-1 : y == -1 ? (S)(0u - (uint64_t)x) : x / y) \
    BINARY(rem_s##n, S, S, S, y == 0 ? x : y == -1 ? 0 : x % y)                         \
    BINARY(shl_##n, U, U, u32, y < n ? (uint64_t)x << y : 0)                            \
    BINARY(shr_u##n, U, U, u32, y < n ? x >> y : 0)                                     \
    BINARY(shr_s##n, S, S, u32, x >> (y < n ? y : n - 1))

WIDTH(16, u16, s16)
WIDTH(32, u32, s32)
WIDTH(64, u64, s64)

BINARY(wide_u16, u32, u16, u16, (uint32_t)x *y)
BINARY(wide_s16, s32, s16, s16, (int32_t)x *y)
BINARY(wide_u32, u64, u32, u32, (uint64_t)x *y)
BINARY(wide_s32, s64, s32, s32, (int64_t)x *y)
TERNARY(mad_wide_u16, u32, u16, u16, u32, (uint32_t)x *y + z)
TERNARY(mad_wide_s16, u32, s16, s16, u32, (uint32_t)((int32_t)x *y) + z)
TERNARY(mad_wide_u32, u64, u32, u32, u64, (uint64_t)x *y + z)
TERNARY(mad_wide_s32, u64, s32, s32, u64, (uint64_t)((int64_t)x *y) + z)
BINARY(hi_u16, u16, u16, u16, (uint32_t)x *y >> 16)
BINARY(hi_s16, s16, s16, s16, (int32_t)x *y >> 16)
BINARY(hi_u32, u32, u32, u32, (uint64_t)x *y >> 32)
BINARY(hi_s32, s32, s32, s32, (int64_t)x *y >> 32)
BINARY(hi_u64, u64, u64, u64, (unsigned __int128)x *y >> 64)
BINARY(hi_s64, s64, s64, s64, (__int128)x *y >> 64)
TERNARY(mad_hi_u32, u32, u32, u32, u32, ((uint64_t)x * y >> 32) + z)
TERNARY(mad_hi_s32, u32, s32, s32, u32, (uint32_t)((int64_t)x *y >> 32) + z)
TERNARY(mad_hi_u64, u64, u64, u64, u64, (uint64_t)((unsigned __int128)x *y >> 64) + z)
TERNARY(mad_hi_s64, u64, s64, s64, u64, (uint64_t)((__int128)x *y >> 64) + z)

/* --------------------------------------------------------------------------------------------------- bits --- */

UNARY(popc_32, u32, u32, __builtin_popcount(x))
UNARY(popc_64, u32, u64, __builtin_popcountll(x))
UNARY(clz_32, u32, u32, x ? __builtin_clz(x) : 32)
UNARY(clz_64, u32, u64, x ? __builtin_clzll(x) : 64)

static inline uint64_t reverse(uint64_t x, int bits)
{
    uint64_t r = 0;
    for (int i = 0; i < bits; i++) r |= (x >> i & 1) << (bits - 1 - i);
    return r;
}

UNARY(brev_32, u32, u32, reverse(x, 32))
UNARY(brev_64, u64, u64, reverse(x, 64))

/* The highest bit that is set (signed: that differs from the sign), or -1. */
UNARY(bfind_u32, u32, u32, x ? 31 - __builtin_clz(x) : -1)
UNARY(bfind_s32, u32, s32, (x < 0 ? ~x : x) ? 31 - __builtin_clz((uint32_t)(x < 0 ? ~x : x)) : -1)
UNARY(bfind_u64, u32, u64, x ? 63 - __builtin_clzll(x) : -1)
UNARY(bfind_s64, u32, s64, (x < 0 ? ~x : x) ? 63 - __builtin_clzll((uint64_t)(x < 0 ? ~x : x)) : -1)
UNARY(shiftamt_u32, u32, u32, x ? __builtin_clz(x) : -1)
UNARY(shiftamt_s32, u32, s32, (x < 0 ? ~x : x) ? __builtin_clz((uint32_t)(x < 0 ? ~x : x)) : -1)
UNARY(shiftamt_u64, u32, u64, x ? __builtin_clzll(x) : -1)

static inline uint64_t extract(uint64_t x, uint32_t position, uint32_t length, int bits, int is_signed)
{
    position &= 255, length &= 255;
    uint64_t top = x >> (bits - 1) & 1, fill = 0;
    if (is_signed && length) {
        uint32_t last = position + length - 1;
        fill = last < (uint32_t)bits ? x >> last & 1 : top;
    }
    uint64_t r = 0;
    for (uint32_t i = 0; i < (uint32_t)bits; i++) {
        uint64_t bit = i < length && position + i < (uint32_t)bits ? x >> (position + i) & 1 : fill;
        r |= bit << i;
    }
    return r;
}

TERNARY(bfe_u32, u32, u32, u32, u32, extract(x, y, z, 32, 0))
TERNARY(bfe_s32, u32, u32, u32, u32, extract(x, y, z, 32, 1))
TERNARY(bfe_u64, u64, u64, u32, u32, extract(x, y, z, 64, 0))
TERNARY(bfe_s64, u64, u64, u32, u32, extract(x, y, z, 64, 1))

static inline uint64_t insert(uint64_t x, uint64_t into, uint32_t position, uint32_t length, int bits)
{
    position &= 255, length &= 255;
    if (position >= (uint32_t)bits || !length)
        return into;
    uint64_t ones = length >= 64 ? ~(uint64_t)0 : ((uint64_t)1 << length) - 1;
    return (into & ~(ones << position)) | (x & ones) << position;
}

#define BFI(name, U, bits)                                         \
    RUN(name)                                                      \
    {                                                              \
        U *d = OPERAND(0);                                         \
        const U *a = OPERAND(1), *b = OPERAND(2);                  \
        const u32 *c = OPERAND(3), *e = OPERAND(4);                \
        EACH_LANE(d[l] = (U)insert(a[l], b[l], c[l], e[l], bits)); \
    }
BFI(bfi_32, u32, 32)
BFI(bfi_64, u64, 64)

TERNARY(shf_l_wrap, u32, u32, u32, u32, ((uint64_t)y << 32 | x) << (z & 31) >> 32)
TERNARY(shf_r_wrap, u32, u32, u32, u32, ((uint64_t)y << 32 | x) >> (z & 31))
TERNARY(shf_l_clamp, u32, u32, u32, u32, ((uint64_t)y << 32 | x) << (z < 32 ? z : 32) >> 32)
TERNARY(shf_r_clamp, u32, u32, u32, u32, ((uint64_t)y << 32 | x) >> (z < 32 ? z : 32))

static inline uint32_t permute(uint32_t x, uint32_t y, uint32_t selector)
{
    uint64_t both = (uint64_t)y << 32 | x;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t s = selector >> 4 * i & 15, byte = (uint32_t)(both >> 8 * (s & 7)) & 255;
        r |= (s & 8 ? (byte & 128 ? 255 : 0) : byte) << 8 * i;
    }
    return r;
}

TERNARY(prmt, u32, u32, u32, u32, permute(x, y, z))

RUN(lop3)
{
    u32 *d = OPERAND(0);
    const u32 *a = OPERAND(1), *b = OPERAND(2), *c = OPERAND(3);
    uint32_t t = *(const u32 *)OPERAND(4);
    EACH_LANE(uint32_t r = 0;
              for (int i = 0; i < 8; i++)
                  r |= t >> i & 1 ? (i & 4 ? a[l] : ~a[l]) & (i & 2 ? b[l] : ~b[l]) & (i & 1 ? c[l] : ~c[l]) : 0;
              d[l] = r);
}

/* --------------------------------------------------------------------------------------------- predicates --- */

static inline void set_predicate(struct warp *w, int32_t offset, uint32_t value, uint32_t mask)
{
    u32 *p = reg(w, offset);
    *p = (*p & ~mask) | (value & mask);
}

static inline uint32_t predicate(struct warp *w, const struct inst *in, int operand, int number)
{
    uint32_t p = *(const u32 *)OPERAND(operand);
    return in->negate >> number & 1 ? ~p : p;
}

#define PREDICATES(name, expression)                                         \
    RUN(name)                                                                \
    {                                                                        \
        uint32_t x = *(const u32 *)OPERAND(1), y = *(const u32 *)OPERAND(2); \
        set_predicate(w, in->o[0], expression, mask);                        \
    }
PREDICATES(and_pred, x &y)
PREDICATES(or_pred, x | y)
PREDICATES(xor_pred, x ^ y)

RUN(not_pred)
{
    set_predicate(w, in->o[0], ~*(const u32 *)OPERAND(1), mask);
}

void run_mov_pred(struct warp *w, const struct inst *in, uint32_t mask)
{
    set_predicate(w, in->o[0], *(const u32 *)OPERAND(1), mask);
}

static void finish_setp(struct warp *w, const struct inst *in, uint32_t mask, uint32_t bits)
{
    uint32_t c = in->mode ? predicate(w, in, 4, 0) : 0, other = ~bits;
    if (in->mode == 1)
        bits &= c, other &= c;
    else if (in->mode == 2)
        bits |= c, other |= c;
    else if (in->mode == 3)
        bits ^= c, other ^= c;
    set_predicate(w, in->o[0], bits, mask);
    if (in->vector == 2)
        set_predicate(w, in->o[1], other, mask);
}

#define COMPARE(name, A, flush, expression)                                   \
    RUN(name)                                                                 \
    {                                                                         \
        const A *a = OPERAND(2), *b = OPERAND(3);                             \
        uint8_t yes[LANES];                                                   \
        for (int l = 0; l < LANES; l++) {                                     \
            A x = a[l], y = b[l];                                             \
            flush;                                                            \
            yes[l] = (uint8_t)(expression);                                   \
        }                                                                     \
        uint32_t bits = 0;                                                    \
        for (int l = 0; l < LANES; l++) bits |= (uint32_t)(yes[l] != 0) << l; \
        finish_setp(w, in, mask, bits);                                       \
    }

#define COMPARE_INTEGERS(n, A)               \
    COMPARE(setp_eq_##n, A, (void)0, x == y) \
    COMPARE(setp_ne_##n, A, (void)0, x != y) \
    COMPARE(setp_lt_##n, A, (void)0, x < y)  \
    COMPARE(setp_le_##n, A, (void)0, x <= y) \
    COMPARE(setp_gt_##n, A, (void)0, x > y)  \
    COMPARE(setp_ge_##n, A, (void)0, x >= y)

COMPARE_INTEGERS(u16, u16)
COMPARE_INTEGERS(s16, s16)
COMPARE_INTEGERS(u32, u32)
COMPARE_INTEGERS(s32, s32)
COMPARE_INTEGERS(u64, u64)
COMPARE_INTEGERS(s64, s64)

static inline float flushed(float x, int ftz)
{
    return ftz && __builtin_fabsf(x) < 0x1p-126f ? 0 : x;
}

#define FLUSH_BOTH           \
    x = flushed(x, in->ftz); \
    y = flushed(y, in->ftz)

/* The bits apart keep the compiler from AVX comparisons that valgrind takes for others. */
#define COMPARE_FLOATS(n, A, flush)                                           \
    COMPARE(setp_eq_##n, A, flush, x == y)                                    \
    COMPARE(setp_ne_##n, A, flush, (x < y) | (x > y) << 1)                    \
    COMPARE(setp_lt_##n, A, flush, x < y)                                     \
    COMPARE(setp_le_##n, A, flush, x <= y)                                    \
    COMPARE(setp_gt_##n, A, flush, x > y)                                     \
    COMPARE(setp_ge_##n, A, flush, x >= y)                                    \
    COMPARE(setp_equ_##n, A, flush, (x == y) | (x != x) << 1 | (y != y) << 2) \
    COMPARE(setp_neu_##n, A, flush, x != y)                                   \
    COMPARE(setp_ltu_##n, A, flush, !(x >= y))                                \
    COMPARE(setp_leu_##n, A, flush, !(x > y))                                 \
    COMPARE(setp_gtu_##n, A, flush, !(x <= y))                                \
    COMPARE(setp_geu_##n, A, flush, !(x < y))                                 \
    COMPARE(setp_num_##n, A, flush, x == x && y == y)                         \
    COMPARE(setp_nan_##n, A, flush, x != x || y != y)

COMPARE_FLOATS(f32, f32, FLUSH_BOTH)
COMPARE_FLOATS(f64, f64, (void)0)

run_function *setp_function(enum type t, const char *comparison, int length)
{
#define ROW(type, n)                                                                     \
    {                                                                                    \
        type,                                                                            \
        {                                                                                \
            setp_eq_##n, setp_ne_##n, setp_lt_##n, setp_le_##n, setp_gt_##n, setp_ge_##n \
        }                                                                                \
    }
#define FLOAT_ROW(type, n)                                                                                            \
    {                                                                                                                 \
        type,                                                                                                         \
        {                                                                                                             \
            setp_eq_##n, setp_ne_##n, setp_lt_##n, setp_le_##n, setp_gt_##n, setp_ge_##n, setp_equ_##n, setp_neu_##n, \
                setp_ltu_##n, setp_leu_##n, setp_gtu_##n, setp_geu_##n, setp_num_##n, setp_nan_##n                    \
        }                                                                                                             \
    }
    static const struct {
        enum type type;
        run_function *run[14];
    } rows[] = {ROW(T_U16, u16), ROW(T_B16, u16),       ROW(T_S16, s16),      ROW(T_U32, u32),
                ROW(T_B32, u32), ROW(T_S32, s32),       ROW(T_U64, u64),      ROW(T_B64, u64),
                ROW(T_S64, s64), FLOAT_ROW(T_F32, f32), FLOAT_ROW(T_F64, f64)};
    static const char names[] = "eq ne lt le gt ge equ neu ltu leu gtu geu num nan ";
    static const char unsigned_names[] = "?? ?? lo ls hi hs ";
    int c = -1, n = 0;
    for (const char *s = names; *s; s += strcspn(s, " ") + 1, n++)
        if ((int)strcspn(s, " ") == length && !memcmp(s, comparison, (size_t)length))
            c = n;
    n = 0;
    for (const char *s = unsigned_names; *s; s += 3, n++)
        if (length == 2 && !memcmp(s, comparison, 2))
            c = n;
    for (size_t i = 0; c >= 0 && i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].type == t)
            return rows[i].run[c];
    return NULL;
}

/* All ones, or 1.0, by a comparison whose predicate goes to a place of no use. */
void run_set(struct warp *w, const struct inst *in, uint32_t mask)
{
    struct inst compare = *in;
    int32_t o[4] = {in->o[1], in->o[1], in->o[2], in->o[3]};
    compare.o = o;
    compare.mode = 0;
    compare.vector = 1;
    ((run_function *)(intptr_t)in->imm)(w, &compare, ALL);
    uint32_t result = *(const u32 *)OPERAND(1), yes = in->from == T_F32 ? 0x3F800000u : ALL;
    u32 *d = OPERAND(0);
    EACH_LANE(d[l] = result >> l & 1 ? yes : 0);
}

/* -------------------------------------------------------------------------------------------------- moving --- */

#define MOVES(n, U)                                                               \
    CLONES void run_mov##n(struct warp *w, const struct inst *in, uint32_t mask)  \
    {                                                                             \
        U *d = OPERAND(0);                                                        \
        const U *a = OPERAND(1);                                                  \
        EACH_LANE(d[l] = a[l]);                                                   \
    }                                                                             \
    CLONES void run_selp##n(struct warp *w, const struct inst *in, uint32_t mask) \
    {                                                                             \
        U *d = OPERAND(0);                                                        \
        const U *a = OPERAND(1), *b = OPERAND(2);                                 \
        uint32_t p = predicate(w, in, 3, 0);                                      \
        EACH_LANE(U x = a[l]; U y = b[l]; d[l] = p >> l & 1 ? x : y);             \
    }
MOVES(16, u16)
MOVES(32, u32)
MOVES(64, u64)

void run_slct(struct warp *w, const struct inst *in, uint32_t mask)
{
    int size = type_bytes((enum type)in->type);
    uint8_t *d = OPERAND(0);
    const uint8_t *a = OPERAND(1), *b = OPERAND(2);
    for (int l = 0; l < LANES; l++)
        if (mask >> l & 1) {
            int first = in->from == T_S32 ? ((const s32 *)OPERAND(3))[l] >= 0 : ((const f32 *)OPERAND(3))[l] >= 0;
            memmove(d + l * size, (first ? a : b) + l * size, (size_t)size);
        }
}

/* {a, b} to one register, the first in the low bits; through a copy, because the destination may be a part. */
void run_pack(struct warp *w, const struct inst *in, uint32_t mask)
{
    int whole = in->size[0], part = in->size[1];
    uint8_t buffer[LANES * 8], *d = OPERAND(0);
    for (int i = 0; i < in->vector; i++) {
        const uint8_t *a = OPERAND(1 + i);
        for (int l = 0; l < LANES; l++) memcpy(buffer + l * whole + i * part, a + l * part, (size_t)part);
    }
    for (int l = 0; l < LANES; l++)
        if (mask >> l & 1)
            memcpy(d + l * whole, buffer + l * whole, (size_t)whole);
}

void run_unpack(struct warp *w, const struct inst *in, uint32_t mask)
{
    int whole = in->size[0], part = in->size[1];
    uint8_t buffer[LANES * 8];
    memcpy(buffer, OPERAND(in->vector), (size_t)(LANES * whole));
    for (int i = 0; i < in->vector; i++) {
        uint8_t *d = OPERAND(i);
        for (int l = 0; l < LANES; l++)
            if (mask >> l & 1)
                memcpy(d + l * part, buffer + l * whole + i * part, (size_t)part);
    }
}

void run_nothing(struct warp *w, const struct inst *in, uint32_t mask)
{
    (void)w, (void)in, (void)mask;
}

/* -------------------------------------------------------------------------------------------------- rules --- */

#define RULES(n, U, S)                                                                                                 \
    {"add", U, "ttt", add_##n}, {"sub", U, "ttt", sub_##n}, {"mul.lo", U, "ttt", mul_##n},                             \
        {"mad.lo", U, "tttt", mad_##n}, {"and", U, "ttt", and_##n}, {"or", U, "ttt", or_##n},                          \
        {"xor", U, "ttt", xor_##n}, {"not", U, "tt", not_##n}, {"cnot", U, "tt", cnot_##n}, {"neg", S, "tt", neg_##n}, \
        {"abs", S, "tt", abs_##n}, {"min", U, "ttt", min_u##n}, {"max", U, "ttt", max_u##n},                           \
        {"min", S, "ttt", min_s##n}, {"max", S, "ttt", max_s##n}, {"div", U, "ttt", div_u##n},                         \
        {"rem", U, "ttt", rem_u##n}, {"div", S, "ttt", div_s##n}, {"rem", S, "ttt", rem_s##n},                         \
        {"shl", U, "tti", shl_##n}, {"shr", U, "tti", shr_u##n},                                                       \
    {                                                                                                                  \
        "shr", S, "tti", shr_s##n                                                                                      \
    }

const struct rule integer_rules[] = {
    RULES(16, T_U16, T_S16),
    RULES(32, T_U32, T_S32),
    RULES(64, T_U64, T_S64),
    {"mul.wide", T_U16, "wtt", wide_u16},
    {"mul.wide", T_S16, "wtt", wide_s16},
    {"mul.wide", T_U32, "wtt", wide_u32},
    {"mul.wide", T_S32, "wtt", wide_s32},
    {"mad.wide", T_U16, "wttw", mad_wide_u16},
    {"mad.wide", T_S16, "wttw", mad_wide_s16},
    {"mad.wide", T_U32, "wttw", mad_wide_u32},
    {"mad.wide", T_S32, "wttw", mad_wide_s32},
    {"mul.hi", T_U16, "ttt", hi_u16},
    {"mul.hi", T_S16, "ttt", hi_s16},
    {"mul.hi", T_U32, "ttt", hi_u32},
    {"mul.hi", T_S32, "ttt", hi_s32},
    {"mul.hi", T_U64, "ttt", hi_u64},
    {"mul.hi", T_S64, "ttt", hi_s64},
    {"mad.hi", T_U32, "tttt", mad_hi_u32},
    {"mad.hi", T_S32, "tttt", mad_hi_s32},
    {"mad.hi", T_U64, "tttt", mad_hi_u64},
    {"mad.hi", T_S64, "tttt", mad_hi_s64},
    {"popc", T_U32, "it", popc_32},
    {"popc", T_U64, "it", popc_64},
    {"clz", T_U32, "it", clz_32},
    {"clz", T_U64, "it", clz_64},
    {"brev", T_U32, "tt", brev_32},
    {"brev", T_U64, "tt", brev_64},
    {"bfind", T_U32, "it", bfind_u32},
    {"bfind", T_S32, "it", bfind_s32},
    {"bfind", T_U64, "it", bfind_u64},
    {"bfind", T_S64, "it", bfind_s64},
    {"bfind.shiftamt", T_U32, "it", shiftamt_u32},
    {"bfind.shiftamt", T_S32, "it", shiftamt_s32},
    {"bfind.shiftamt", T_U64, "it", shiftamt_u64},
    {"bfe", T_U32, "ttii", bfe_u32},
    {"bfe", T_S32, "ttii", bfe_s32},
    {"bfe", T_U64, "ttii", bfe_u64},
    {"bfe", T_S64, "ttii", bfe_s64},
    {"bfi", T_B32, "tttii", bfi_32},
    {"bfi", T_B64, "tttii", bfi_64},
    {"shf.l.wrap", T_B32, "tttt", shf_l_wrap},
    {"shf.r.wrap", T_B32, "tttt", shf_r_wrap},
    {"shf.l.clamp", T_B32, "tttt", shf_l_clamp},
    {"shf.r.clamp", T_B32, "tttt", shf_r_clamp},
    {"prmt", T_B32, "tttt", prmt},
    {"lop3", T_B32, "ttttt", lop3},
    {"and", T_PRED, "ttt", and_pred},
    {"or", T_PRED, "ttt", or_pred},
    {"xor", T_PRED, "ttt", xor_pred},
    {"not", T_PRED, "tt", not_pred},
    {NULL, T_NONE, NULL, NULL},
};
