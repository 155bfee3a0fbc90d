/* SPDX-License-Identifier: Apache-2.0
 * Instructions one by one against plain C; what is refused; fragments. */
#define _GNU_SOURCE
#include "selftest.h"

/* ------------------------------------------------------------------------------------ single instructions --- */

/* A kernel of one warp: %a, %b, %c of each lane, the body, %d. Lane l has its operands at in[4 l]. */
static char *wrap(const char *body)
{
    char *text;
    if (asprintf(
            &text,
            HEAD
            ".visible .entry one(.param .u64 in, .param .u64 out)\n{\n"
            ".reg .b32 %%a, %%b, %%c, %%d, %%t<9>; .reg .f32 %%f<9>; .reg .b64 %%x<9>, %%in, %%out; .reg .f64 %%g<9>;"
            ".reg .b16 %%h<9>; .reg .pred %%p<9>; .reg .b32 %%lane;\n"
            "ld.param.u64 %%in, [in]; ld.param.u64 %%out, [out];\n"
            "mov.u32 %%lane, %%tid.x; mul.wide.u32 %%x8, %%lane, 16; add.s64 %%x8, %%x8, %%in;\n"
            "ld.global.v4.u32 {%%a, %%b, %%c, %%d}, [%%x8];\n"
            "%s\n"
            "mul.wide.u32 %%x8, %%lane, 4; add.s64 %%x8, %%x8, %%out; st.global.u32 [%%x8], %%d; ret;\n}\n",
            body) < 0)
        abort();
    return text;
}

/* Runs it on 32 lanes; 0 when it could not be loaded or was wrong. */
static int run_one(const char *body, const uint32_t *in, uint32_t *out, const struct emu_options *options)
{
    char *text = wrap(body);
    struct emu_module *m = emu_load(text, "one");
    free(text);
    if (!CHECK(m != NULL, "%s: %s", body, emu_message()))
        return 0;
    uint32_t *device = emu_allocate(32 * 16), *result = emu_allocate(32 * 4);
    emu_copy_in(device, in, 32 * 16);
    struct {
        const void *in;
        void *out;
    } args = {device, result};
    int failed = emu_launch(m, "one", 1, 1, 32, 0, &args, sizeof(args), options, &report);
    if (failed)
        print_errors();
    memcpy(out, result, 32 * 4);
    emu_release(device);
    emu_release(result);
    emu_unload(m);
    return CHECK(!failed, "%s reported %llu errors", body, (unsigned long long)report.errors);
}

typedef uint32_t expected_function(uint32_t a, uint32_t b, uint32_t c);

#define F(x) as_float(x)
#define EXPECTED(name, expression)                           \
    static uint32_t name(uint32_t a, uint32_t b, uint32_t c) \
    {                                                        \
        (void)a, (void)b, (void)c;                           \
        return (uint32_t)(expression);                       \
    }

/* Not fused with what follows, whatever the compiler's options. */
static float rounded_product(float x, float y)
{
    volatile float p = x * y;
    return p;
}

EXPECTED(w_add, a + b)
EXPECTED(w_mad, a *b + c)
EXPECTED(w_mulhi, (uint64_t)a *b >> 32)
EXPECTED(w_mulhis, (int64_t)(int32_t)a *(int32_t)b >> 32)
EXPECTED(w_wide, ((uint64_t)((int64_t)(int32_t)a * (int32_t)b) >> 7))
EXPECTED(w_div, b ? (int64_t)(int32_t)a / ((int32_t)b | 1) : (int32_t)a)
EXPECTED(w_rem, a % (b | 1))
EXPECTED(w_shl, (b & 63) < 32 ? a << (b & 63) : 0)
EXPECTED(w_shr, (int32_t)a >> ((b & 63) < 32 ? (b & 63) : 31))
EXPECTED(w_shf, ((uint64_t)b << 32 | a) >> (c & 31))
EXPECTED(w_lop3, a ^ b ^ c)
EXPECTED(w_lop3b, (a & b) | (~a & c))
EXPECTED(w_prmt, (a >> 24) | (b & 0xFF) << 8 | (a & 0xFF) << 16 | (b >> 31 ? 0xFF000000u : 0))
EXPECTED(w_bfe, a >> 5 & 0x7FF)
EXPECTED(w_bfes, (int32_t)(a << 16) >> 21)
EXPECTED(w_bfi, (b & ~(0x7FFu << 5)) | (a & 0x7FF) << 5)
EXPECTED(w_popc, __builtin_popcount(a) + 100 * (a ? __builtin_clz(a) : 32))
EXPECTED(w_bfind, a ? 31 - __builtin_clz(a) : -1)
EXPECTED(w_min, ((int32_t)a < (int32_t)b ? a : b) + (b > c ? b : c))
EXPECTED(w_setp, (a < b && (c & 1)) + 2 * (!(a < b) && (c & 1)))
EXPECTED(w_selp, (int32_t)a >= (int32_t)b ? c : a)
EXPECTED(w_u16, (uint16_t)((a & 0xFFFF) * (b & 0xFFFF)) + ((uint32_t)(int32_t)(int16_t)c << 16))
EXPECTED(w_pack, a << 16 | b >> 16)
EXPECTED(w_slct, (int32_t)c >= 0 ? a : b)
EXPECTED(w_fadd, as_bits(F(a) + F(b)))
EXPECTED(w_ffma, as_bits(fmaf(F(a), F(b), F(c))))
EXPECTED(w_fmuladd, as_bits(rounded_product(F(a), F(b)) + F(c)))
EXPECTED(w_fmax, as_bits(isnan(F(a))                                       ? F(b)
                         : isnan(F(b))                                     ? F(a)
                         : F(a) > F(b) || (F(a) == F(b) && !signbit(F(a))) ? F(a)
                                                                           : F(b)))
EXPECTED(w_geu, !(F(a) < F(b)))
EXPECTED(w_ne, F(a) < F(b) || F(a) > F(b))
EXPECTED(w_equ, !(F(a) < F(b) || F(a) > F(b)))
EXPECTED(w_rzi, isnan(F(a)) ? 0 : F(a) >= 0x1p31f ? INT32_MAX : F(a) <= -0x1p31f ? INT32_MIN : (int32_t)F(a))
EXPECTED(w_u8sat, isnan(F(a)) ? 0 : F(a) >= 255 ? 255 : F(a) <= 0 ? 0 : (uint32_t)F(a))
EXPECTED(w_s2f, as_bits((float)(int32_t)a))
EXPECTED(w_u2f, as_bits((float)a))
EXPECTED(w_s8, (int32_t)(int8_t)a)
EXPECTED(w_ftz, as_bits(fabsf(F(a) * 1.0f) < 0x1p-126f ? copysignf(0, F(a)) : F(a)))
EXPECTED(w_sat, as_bits(!(F(a) > 0) ? 0 : F(a) > 1 ? 1 : F(a)))
EXPECTED(w_copysign, (a & 0x80000000u) | (b & 0x7FFFFFFFu))
EXPECTED(w_d, as_bits((float)((double)F(a) * (double)F(b) + (double)F(c))))
EXPECTED(w_floor, as_bits(floorf(F(a))))
EXPECTED(w_testp, isfinite(F(a)))

static double half_at(uint32_t u, int i)
{
    return f16_value(u >> 16 * i & 0xFFFF);
}

EXPECTED(w_fma16, f16_nearest(fma(half_at(a, 0), half_at(b, 0), half_at(c, 0))) |
                      f16_nearest(fma(half_at(a, 1), half_at(b, 1), half_at(c, 1))) << 16)
EXPECTED(w_add16, f16_nearest(half_at(a, 0) + half_at(b, 0)))
EXPECTED(w_rz, as_bits(isnan(F(a)) ? NAN : (float)trunc((double)F(a))))

static const struct {
    const char *body;
    expected_function *want;
} instructions[] = {
    {"add.s32 %d, %a, %b;", w_add},
    {"mad.lo.s32 %d, %a, %b, %c;", w_mad},
    {"mul.hi.u32 %d, %a, %b;", w_mulhi},
    {"mul.hi.s32 %d, %a, %b;", w_mulhis},
    {"mul.wide.s32 %x0, %a, %b; shr.u64 %x0, %x0, 7; cvt.u32.u64 %d, %x0;", w_wide},
    {"or.b32 %t0, %b, 1; div.s32 %d, %a, %t0; setp.eq.s32 %p0, %b, 0; @%p0 mov.u32 %d, %a;", w_div},
    {"or.b32 %t0, %b, 1; rem.u32 %d, %a, %t0;", w_rem},
    {"and.b32 %t0, %b, 63; shl.b32 %d, %a, %t0;", w_shl},
    {"and.b32 %t0, %b, 63; shr.s32 %d, %a, %t0;", w_shr},
    {"shf.r.wrap.b32 %d, %a, %b, %c;", w_shf},
    {"lop3.b32 %d, %a, %b, %c, 0x96;", w_lop3},
    {"lop3.b32 %d, %a, %b, %c, 202;", w_lop3b},
    {"prmt.b32 %d, %a, %b, 0xF043;", w_prmt},
    {"bfe.u32 %d, %a, 5, 11;", w_bfe},
    {"bfe.s32 %d, %a, 5, 11;", w_bfes},
    {"bfi.b32 %d, %a, %b, 5, 11;", w_bfi},
    {"popc.b32 %d, %a; clz.b32 %t0, %a; mad.lo.u32 %d, %t0, 100, %d;", w_popc},
    {"bfind.u32 %d, %a;", w_bfind},
    {"min.s32 %t0, %a, %b; max.u32 %t1, %b, %c; add.u32 %d, %t0, %t1;", w_min},
    {"and.b32 %t0, %c, 1; setp.ne.u32 %p0, %t0, 0; setp.lt.and.u32 %p1|%p2, %a, %b, %p0;"
     "selp.u32 %d, 1, 0, %p1; selp.u32 %t1, 2, 0, %p2; add.u32 %d, %d, %t1;",
     w_setp},
    {"setp.ge.s32 %p0, %a, %b; selp.b32 %d, %c, %a, %p0;", w_selp},
    {"cvt.u16.u32 %h0, %a; cvt.u16.u32 %h1, %b; mul.lo.u16 %h0, %h0, %h1; cvt.u32.u16 %d, %h0; cvt.s32.s16 %t0, %c;"
     "shl.b32 %t0, %t0, 16; add.s32 %d, %d, %t0;",
     w_u16},
    {"mov.b32 {%h0, %h1}, %a; mov.b32 {%h2, %h3}, %b; mov.b32 %d, {%h3, %h0};", w_pack},
    {"{ .reg .b32 %a; mov.u32 %a, 5; } slct.u32.s32 %d, %a, %b, %c;", w_slct}, /* an inner %a is another one */
    {"mov.b32 %f0, %a; mov.b32 %f1, %b; add.f32 %f0, %f0, %f1; mov.b32 %d, %f0;", w_fadd},
    {"mov.b32 %f0, %a; mov.b32 %f1, %b; mov.b32 %f2, %c; fma.rn.f32 %f0, %f0, %f1, %f2; mov.b32 %d, %f0;", w_ffma},
    {"mov.b32 %f0, %a; mov.b32 %f1, %b; mov.b32 %f2, %c; mul.f32 %f0, %f0, %f1; add.f32 %f0, %f0, %f2; mov.b32 %d, "
     "%f0;",
     w_fmuladd},
    {"mov.b32 %f0, %a; mov.b32 %f1, %b; max.f32 %f0, %f0, %f1; mov.b32 %d, %f0;", w_fmax},
    {"mov.b32 %f0, %a; mov.b32 %f1, %b; setp.geu.f32 %p0, %f0, %f1; selp.u32 %d, 1, 0, %p0;", w_geu},
    {"mov.b32 %f0, %a; mov.b32 %f1, %b; setp.ne.f32 %p0, %f0, %f1; selp.u32 %d, 1, 0, %p0;", w_ne},
    {"mov.b32 %f0, %a; mov.b32 %f1, %b; setp.equ.f32 %p0, %f0, %f1; selp.u32 %d, 1, 0, %p0;", w_equ},
    {"mov.b32 %f0, %a; cvt.rzi.s32.f32 %d, %f0;", w_rzi},
    {"mov.b32 %f0, %a; cvt.rzi.sat.u8.f32 %d, %f0;", w_u8sat},
    {"cvt.rn.f32.s32 %f0, %a; mov.b32 %d, %f0;", w_s2f},
    {"cvt.rn.f32.u32 %f0, %a; mov.b32 %d, %f0;", w_u2f},
    {"cvt.s32.s8 %d, %a;", w_s8},
    {"mov.b32 %f0, %a; mul.ftz.f32 %f0, %f0, 0f3F800000; mov.b32 %d, %f0;", w_ftz},
    {"mov.b32 %f0, %a; add.sat.f32 %f0, %f0, 0f00000000; mov.b32 %d, %f0;", w_sat},
    {"mov.b32 %f0, %a; mov.b32 %f1, %b; copysign.f32 %f0, %f0, %f1; mov.b32 %d, %f0;", w_copysign},
    {"mov.b32 %f0, %a; mov.b32 %f1, %b; mov.b32 %f2, %c; cvt.f64.f32 %g0, %f0; cvt.f64.f32 %g1, %f1; cvt.f64.f32 %g2, "
     "%f2;"
     "fma.rn.f64 %g0, %g0, %g1, %g2; cvt.rn.f32.f64 %f0, %g0; mov.b32 %d, %f0;",
     w_d},
    {"mov.b32 %f0, %a; cvt.rmi.f32.f32 %f0, %f0; mov.b32 %d, %f0;", w_floor},
    {"mov.b32 %f0, %a; testp.finite.f32 %p0, %f0; selp.u32 %d, 1, 0, %p0;", w_testp},
    {"fma.rn.f16x2 %d, %a, %b, %c;", w_fma16},
    {"cvt.u16.u32 %h0, %a; cvt.u16.u32 %h1, %b; add.f16 %h0, %h0, %h1; cvt.u32.u16 %d, %h0;", w_add16},
    {"mov.b32 %f0, %a; cvt.rzi.f32.f32 %f0, %f0; mov.b32 %d, %f0;", w_rz},
    /* Divergence: a loop of as many rounds as the lane's operand says. */
    {"mov.u32 %d, 0; and.b32 %t0, %a, 15; L: setp.eq.u32 %p0, %t0, 0; @%p0 bra E; add.u32 %d, %d, %b; sub.u32 %t0, "
     "%t0, 1;"
     "bra L; E: mov.u32 %t0, 0; sub.u32 %d, %d, %t0;",
     NULL},
    {"and.b32 %t0, %a, 3; brx.idx %t0, T; T: .branchtargets A, B, C, A; A: mov.u32 %d, 7; bra E; B: mov.u32 %d, 8; bra "
     "E;"
     "C: mov.u32 %d, 9; E: mov.u32 %t0, 0;",
     NULL},
};

EXPECTED(w_loop, (a & 15) * b)
EXPECTED(w_table, (a & 3) == 1 ? 8 : (a & 3) == 2 ? 9 : 7)

/* Numbers that are hard on one instruction or the other. */
static uint32_t operand(void)
{
    static const uint32_t hard[] = {0,          1,          2,          31,         32,         0x7FFFFFFF,
                                    0x80000000, 0xFFFFFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x00000001,
                                    0x80000001, 0x007FFFFF, 0x00800000, 0x3F800000, 0xBF800000, 0x4F000000,
                                    0xCF000000, 0x3F000000, 0x7F7FFFFF, 0x437F0000};
    return test_chance(2) ? PICK(hard) : test_chance(2) ? as_bits((float)test_normal()) : (uint32_t)test_random();
}

static int same_number(uint32_t a, uint32_t b, int may_be_float)
{
    return a == b || (may_be_float && isnan(as_float(a)) && isnan(as_float(b)));
}

void check_instructions(void)
{
    static const enum emu_order orders[] = {EMU_FORWARD, EMU_RANDOM};
    for (int i = 0; i < COUNT(instructions); i++) {
        uint32_t in[32 * 4], out[32];
        const char *body = instructions[i].body;
        expected_function *want = instructions[i].want           ? instructions[i].want
                                  : i == COUNT(instructions) - 1 ? w_table
                                                                 : w_loop;
        for (int round = 0; round < 20; round++) {
            struct emu_options o = {.order = orders[round % 2], .seed = (uint64_t)round};
            for (int k = 0; k < 32 * 4; k++) in[k] = operand();
            if (!run_one(body, in, out, &o))
                break;
            int wrong = 0, at = 0;
            for (int l = 0; l < 32; l++)
                if (!same_number(out[l], want(in[4 * l], in[4 * l + 1], in[4 * l + 2]), strstr(body, "f32") != NULL))
                    wrong++, at = l;
            const uint32_t *x = in + 4 * at;
            if (!CHECK(!wrong, "%s of 0x%x, 0x%x, 0x%x gave 0x%x instead of 0x%x", body, x[0], x[1], x[2], out[at],
                       want(x[0], x[1], x[2])))
                break;
        }
    }
}

/* All 65536 halves there and back, and what lies between them. */
void check_halves(void)
{
    uint32_t in[32 * 4] = {0}, out[32];
    for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
        const char *there =
            is_bf16 ? "cvt.u16.u32 %h0, %a; mov.b32 %f0, {0, %h0}; cvt.rn.bf16.f32 %h1, %f0; cvt.u32.u16 %d, %h1;"
                    : "cvt.u16.u32 %h0, %a; cvt.f32.f16 %f0, %h0; cvt.rn.f16.f32 %h1, %f0; cvt.u32.u16 %d, %h1;";
        const char *between = is_bf16 ? "mov.b32 %f0, %a; mov.b32 %f1, %b; cvt.rn.bf16x2.f32 %d, %f0, %f1;"
                                      : "mov.b32 %f0, %a; mov.b32 %f1, %b; cvt.rn.f16x2.f32 %d, %f0, %f1;";
        int wrong = 0;
        for (uint32_t h = 0; h < 65536; h += 32 * 61) {
            for (uint32_t l = 0; l < 32; l++) in[4 * l] = (h + l * 61) & 65535;
            if (!run_one(there, in, out, NULL))
                return;
            for (uint32_t l = 0; l < 32; l++) {
                uint32_t x = in[4 * l], infinity = is_bf16 ? 0x7F80 : 0x7C00;
                wrong += (x & 0x7FFF) > infinity ? (out[l] & 0x7FFF) <= infinity : out[l] != x;
            }
        }
        CHECK(!wrong, "%d halves changed", wrong);
        /* Against the nearest f16, and against the usual integer arithmetic for bf16. */
        wrong = 0;
        for (int round = 0; round < 60; round++) {
            for (int l = 0; l < 32 * 4; l++)
                in[l] = test_chance(2) ? as_bits((float)ldexp(test_normal(), (int)test_between(-30, 17))) : operand();
            if (!run_one(between, in, out, NULL))
                return;
            for (int l = 0; l < 32; l++)
                for (int half = 0; half < 2; half++) {
                    uint32_t x = in[4 * l + 1 - half], got = out[l] >> 16 * half & 0xFFFF, want;
                    if (isnan(F(x))) {
                        want = 0x7FFF;
                    } else if (is_bf16) {
                        want = (x + 0x7FFF + (x >> 16 & 1)) >> 16;
                    } else {
                        want = f16_nearest((double)F(x));
                    }
                    wrong += got != want;
                }
        }
        CHECK(!wrong, "%d roundings to %s are wrong", wrong, is_bf16 ? "bf16" : "f16");
    }
}

/* Results may be off by as much as the manual says, differ by seed, and keep what is exact. */
void check_perturbed(void)
{
    uint32_t in[32 * 4], plain[32], off[32];
    struct emu_options o = {.perturb = 1, .seed = 3};
    static const struct {
        const char *body;
        double bound; /* in ulps, or of numbers up to 1 */
        int absolute;
    } functions[] = {{"mov.b32 %f0, %a; ex2.approx.ftz.f32 %f0, %f0; mov.b32 %d, %f0;", 2.5, 0},
                     {"mov.b32 %f0, %a; abs.f32 %f0, %f0; rcp.approx.ftz.f32 %f0, %f0; mov.b32 %d, %f0;", 1.5, 0},
                     {"mov.b32 %f0, %a; abs.f32 %f0, %f0; lg2.approx.ftz.f32 %f0, %f0; mov.b32 %d, %f0;", 0x1p-21, 1}};
    for (int i = 0; i < COUNT(functions); i++) {
        for (int k = 0; k < 32 * 4; k++) in[k] = as_bits((float)test_normal());
        in[0] = as_bits(i == 0 ? 0 : 1);
        if (!run_one(functions[i].body, in, plain, NULL) || !run_one(functions[i].body, in, off, &o))
            return;
        int moved = 0;
        for (int l = 0; l < 32; l++) {
            double d = fabs((double)F(off[l]) - (double)F(plain[l]));
            double size = fabs((double)F(plain[l]));
            double unit = functions[i].absolute ? fmax(1, size) : ldexp(1, ilogb(size) - 23);
            CHECK(d <= functions[i].bound * unit, "%s is off by %g", functions[i].body, d / unit);
            moved += d > 0;
        }
        CHECK(moved > 3, "%s: %d of 32 results moved", functions[i].body, moved);
        if (i != 1)
            CHECK(off[0] == plain[0], "an exact result moved");
    }
}

/* ------------------------------------------------------------------------------------------------ loading --- */

void check_refused(void)
{
    static const struct {
        const char *body, *message;
    } texts[] = {{"add.s32 %d, %a, %b;\nfrobnicate.b32 %d, %a;", ":11: unknown instruction frobnicate.b32"},
                 {"add.wild.s32 %d, %a, %b;", "unknown instruction add.wild.s32"},
                 {"add.s32 %d, %a, %q;", "unknown name"},
                 {"add.s32 %d, %a, %x0;", "64 bits"},
                 {"bra NOWHERE;", "unknown label"},
                 {"bar.sync 0, 64;", "whole block"},
                 {"call.uni foo, (%a);", "unknown instruction call.uni"},
                 {"add.s32 %d, %a;", "number of operands"}};
    for (int i = 0; i < COUNT(texts); i++) {
        char *text = wrap(texts[i].body);
        struct emu_module *m = emu_load(text, "one");
        CHECK(!m && strstr(emu_message(), texts[i].message), "%s: \"%s\"", texts[i].body, m ? "loaded" : emu_message());
        emu_unload(m);
        free(text);
    }
    char *text = wrap("mov.u32 %d, 1;");
    struct emu_module *m = emu_load(text, "one");
    uint64_t args[2] = {0};
    CHECK(emu_launch(m, "two", 1, 1, 32, 0, args, 16, NULL, &report), "a kernel that is not there ran");
    CHECK(emu_launch(m, "one", 1, 1, 32, 0, args, 8, NULL, &report), "with too few parameters it ran");
    CHECK(emu_launch(m, "one", 1, 1, 2000, 0, args, 16, NULL, &report), "with 2000 threads it ran");
    CHECK(emu_launch(m, "one", 1, 1, 32, 1 << 20, args, 16, NULL, &report), "with a megabyte of shared memory it ran");
    CHECK(emu_launch(m, "one", 1, 1, 32, 0, args, 16, NULL, &report) && report.out_of_bounds == 64,
          "null pointers: %llu errors", (unsigned long long)report.out_of_bounds);
    emu_unload(m);
    free(text);
    text = wrap("L: bra L;");
    m = emu_load(text, "one");
    struct emu_options o = {.instructions = 100000};
    uint32_t *device = emu_allocate(512);
    emu_written(device, 512);
    args[0] = args[1] = (uint64_t)(uintptr_t)device;
    CHECK(emu_launch(m, "one", 1, 1, 32, 0, args, 16, &o, &report) && report.other == 1, "an endless loop ended");
    emu_release(device);
    emu_unload(m);
    free(text);
}

/* ------------------------------------------------------------------------------------- fragments, by hand --- */

/* ldmatrix (all shapes, .trans) and the tf32 product, against the formulas of the manual. */
void check_fragments(void)
{
    static const char kernel[] = HEAD
        ".shared .align 16 .b8 s[512];\n"
        ".visible .entry fragments(.param .u64 in, .param .u64 out)\n{\n"
        ".reg .b32 %t<40>; .reg .f32 %f<20>; .reg .b64 %x<9>;\n"
        "mov.u32 %t0, %tid.x; ld.param.u64 %x0, [in]; ld.param.u64 %x1, [out];\n"
        "mul.wide.u32 %x2, %t0, 16; add.s64 %x2, %x2, %x0; ld.global.v4.u32 {%t1, %t2, %t3, %t4}, [%x2];\n"
        "shl.b32 %t5, %t0, 4; mov.u32 %t6, s; add.s32 %t6, %t6, %t5; st.shared.v4.b32 [%t6], {%t1, %t2, %t3, %t4};\n"
        "bar.warp.sync -1;\n"
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%t10, %t11, %t12, %t13}, [%t6];\n"
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%t14, %t15, %t16, %t17}, [%t6];\n"
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%t18}, [%t6];\n"
        "ldmatrix.sync.aligned.m8n8.x2.trans.shared::cta.b16 {%t19, %t20}, [%t6+0];\n"
        "movmatrix.sync.aligned.m8n8.trans.b16 %t21, %t10;\n"
        "mov.f32 %f0, 0f00000000;\n"
        "mov.b32 %f1, %t1; mov.b32 %f2, %t2; mov.b32 %f3, %t3; mov.b32 %f4, %t4;\n"
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f5, %f6, %f7, %f8}, {%t1, %t2, %t3, %t4}, {%t1, %t2},"
        " {%f1, %f0, %f3, %f4};\n"
        "mul.wide.u32 %x2, %t0, 64; add.s64 %x2, %x2, %x1;\n"
        "st.global.v4.u32 [%x2], {%t10, %t11, %t12, %t13}; st.global.v4.u32 [%x2+16], {%t14, %t15, %t16, %t17};\n"
        "st.global.v4.u32 [%x2+32], {%t18, %t19, %t20, %t21}; st.global.v4.f32 [%x2+48], {%f5, %f6, %f7, "
        "%f8};\nret;\n}\n";
    struct emu_module *m = emu_load(kernel, "fragments");
    if (!CHECK(m != NULL, "%s", emu_message()))
        return;
    uint16_t *s = emu_allocate(512);
    uint32_t *out = emu_allocate(32 * 64);
    float *f = (float *)s;
    for (int i = 0; i < 128; i++) f[i] = (float)test_between(-8, 8) / 4; /* exact in tf32, and so is each sum */
    emu_written(s, 512);
    struct {
        void *in, *out;
    } args = {s, out};
    int failed = emu_launch(m, "fragments", 1, 1, 32, 0, &args, sizeof(args), NULL, &report);
    print_errors();
    CHECK(!failed && report.ldmatrix == 4 && report.mma == 1 && !report.matrix_conflicts, "fragments went wrong");
    int wrong = 0;
    for (int l = 0; l < 32; l++) {
        const uint32_t *o = out + 16 * l;
        const uint16_t *straight = s + l / 4 * 8 + l % 4 * 2, *across = s + l % 4 * 16 + l / 4;
        for (int k = 0; k < 4; k++) {
            wrong += o[k] != (straight[64 * k] | (uint32_t)straight[64 * k + 1] << 16);
            wrong += o[4 + k] != (across[64 * k] | (uint32_t)across[64 * k + 8] << 16);
        }
        wrong += o[8] != o[0] || o[9] != o[4] || o[10] != o[5] || o[11] != o[4];
        /* A[g, t], A[g + 8, t], A[g, t + 4], A[g + 8, t + 4]; B[t, g], B[t + 4, g] of lane 4 g + t: register r is
         * f[4 l + r] */
        for (int e = 0; e < 4; e++) {
            int row = l / 4 + e / 2 * 8, column = l % 4 * 2 + e % 2;
            float sum = e == 1 ? 0 : f[4 * l + e];
            for (int k = 0; k < 8; k++)
                sum += f[4 * (row % 8 * 4 + k % 4) + row / 8 + k / 4 * 2] * f[4 * (column * 4 + k % 4) + k / 4];
            wrong += as_float(o[12 + e]) != sum;
        }
    }
    CHECK(!wrong, "%d elements of fragments are wrong", wrong);
    emu_release(s);
    emu_release(out);
    emu_unload(m);
}
