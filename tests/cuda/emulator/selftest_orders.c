/* SPDX-License-Identifier: Apache-2.0
 * Who may read what when: a line of PTX each, and what is to be said about it. */
#define _GNU_SOURCE
#include "selftest.h"

/* Two warps. Each thread has 16 bytes of shared memory at %own, its neighbour's are at %next, those of the same lane of
 * the other warp at %far; %in is 16 bytes of its own in device memory, %out 16 bytes to write. */
#define ORDER_HEAD                                                                                                     \
    HEAD ".visible .entry order(.param .u64 in, .param .u64 out)\n{\n"                                                 \
         ".shared .align 16 .b8 s[1024]; .shared .align 8 .b64 sum;\n"                                                 \
         ".reg .b32 %own, %next, %far, %t<9>, %thread, %lane; .reg .b64 %x<9>, %in, %out, %first; .reg .pred %p<9>;\n" \
         "mov.u32 %thread, %tid.x; mov.u32 %lane, %laneid; shl.b32 %t0, %thread, 4; mov.u32 %t1, s;\n"                 \
         "add.u32 %own, %t1, %t0; xor.b32 %t2, %t0, 16; add.u32 %next, %t1, %t2; xor.b32 %t2, %t0, 512;\n"             \
         "add.u32 %far, %t1, %t2; cvt.u64.u32 %x0, %t0; ld.param.u64 %in, [in]; add.u64 %in, %in, %x0;\n"              \
         "ld.param.u64 %first, [out]; add.u64 %out, %first, %x0; setp.eq.u32 %p0, %thread, 0;\n"                       \
         "setp.lt.u32 %p1, %lane, 16; setp.lt.u32 %p2, %thread, 32; mov.u32 %t8, 0;\n"
#define ORDER_TAIL "\nst.global.u32 [%out], %t8; ret;\n}\n"

#define COPY(to) "cp.async.cg.shared.global [" to "], [%in], 16;"
#define COMMIT "cp.async.commit_group;"
#define WAIT(n) "cp.async.wait_group " n ";"
#define STORE(to) "st.shared.u32 [" to "], %thread;"
#define LOAD(from) "ld.shared.u32 %t8, [" from "];"
#define BARRIER "bar.sync 0;"
#define SYNCWARP "bar.warp.sync 0xffffffff;"

static const struct {
    const char *body;
    int want;
} memory_orders[] = {
    /* plain ones */
    {STORE("%own") LOAD("%own"), RIGHT},
    {STORE("%own") LOAD("%next"), RACE},
    {STORE("%own") SYNCWARP LOAD("%next"), RIGHT},
    {STORE("%own") SYNCWARP LOAD("%far"), RACE},
    {STORE("%own") BARRIER LOAD("%far"), RIGHT},
    {STORE("%own") BARRIER LOAD("%far") STORE("%own"), RACE},
    {STORE("%own") BARRIER LOAD("%far") BARRIER STORE("%own"), RIGHT},
    {STORE("%own") BARRIER LOAD("%next") STORE("%own"), RACE},
    {STORE("%own") BARRIER LOAD("%next") SYNCWARP STORE("%own"), RIGHT},
    {STORE("%own") STORE("%next"), RACE},
    {STORE("%own") BARRIER LOAD("%next") LOAD("%far") LOAD("%own"), RIGHT},
    {LOAD("%own"), UNWRITTEN},
    {"st.shared.u16 [%own], 1; " LOAD("%own"), UNWRITTEN},
    {"st.shared.u16 [%own], 1; st.shared.u16 [%own+2], 1;" LOAD("%own"), RIGHT},
    /* Neighbours write halves of one word. */
    {"shl.b32 %t2, %thread, 1; add.u32 %t2, %t2, %t1; st.shared.u16 [%t2], 1; ld.shared.u16 %t8, [%t2];", RIGHT},
    {"shl.b32 %t2, %thread, 1; and.b32 %t2, %t2, -4; add.u32 %t2, %t2, %t1; st.shared.u16 [%t2], 1;", RACE},
    /* A shuffle orders no memory; bar.warp.sync only the lanes it names. */
    {STORE("%own") "shfl.sync.bfly.b32 %t3, %thread, 1, 31, -1;" LOAD("%next"), RACE},
    {"@%p1 " STORE("%own") "@%p1 bar.warp.sync 0x0000ffff; @%p1 " LOAD("%next"), RIGHT},
    {STORE("%own") "@%p1 bar.warp.sync 0x0000ffff; @!%p1 bar.warp.sync 0xffff0000; xor.b32 %t2, %lane, 16;"
                   "shl.b32 %t2, %t2, 4; add.u32 %t2, %t2, %t1;" LOAD("%t2"),
     RACE},
    /* cp.async */
    {COPY("%own") COMMIT WAIT("0") LOAD("%own"), RIGHT},
    {COPY("%own") "cp.async.wait_all;" LOAD("%own"), RIGHT},
    {COPY("%own") COMMIT LOAD("%own") WAIT("0"), RACE},
    {COPY("%own") WAIT("0") LOAD("%own") COMMIT, RACE},
    {COPY("%own") WAIT("0"), OTHER},
    {COPY("%own") COMMIT, RIGHT}, /* but counted, below */
    {COPY("%own") COMMIT COPY("%own+1024"), BOUNDS},
    {COPY("%own") COMMIT WAIT("1") LOAD("%own"), RACE},
    {COPY("%own") COMMIT COMMIT WAIT("1") LOAD("%own"), RIGHT},
    {COPY("%own") COMMIT COMMIT COMMIT WAIT("2") LOAD("%own"), RIGHT},
    {COPY("%own") COMMIT COMMIT WAIT("2") LOAD("%own") WAIT("0"), RACE},
    {COPY("%own") COMMIT WAIT("0") LOAD("%next"), RACE},
    {COPY("%own") COMMIT WAIT("0") SYNCWARP LOAD("%next"), RIGHT},
    {COPY("%own") COMMIT SYNCWARP WAIT("0") LOAD("%next"), RACE},
    {COPY("%own") COMMIT WAIT("0") SYNCWARP LOAD("%far"), RACE},
    {COPY("%own") COMMIT WAIT("0") BARRIER LOAD("%far"), RIGHT},
    {COPY("%own") COMMIT BARRIER WAIT("0") LOAD("%far"), RACE},
    {COPY("%own") COMMIT BARRIER LOAD("%far") WAIT("0"), RACE},
    {STORE("%own") BARRIER LOAD("%far") COPY("%own") COMMIT WAIT("0"), RACE},
    {STORE("%own") BARRIER LOAD("%far") BARRIER COPY("%own") COMMIT WAIT("0"), RIGHT},
    {STORE("%own") COPY("%own") COMMIT WAIT("0") LOAD("%own"), RIGHT},
    {COPY("%own") COMMIT STORE("%own") WAIT("0"), RACE},
    {COPY("%own") COPY("%own") COMMIT WAIT("0"), RACE},
    {COPY("%own") "st.global.u32 [%in], 5;" COMMIT WAIT("0"), RIGHT},
    {"cp.async.cg.shared.global [%own], [%in+1048576], 16, %t8;" COMMIT WAIT("0") LOAD("%own"), RIGHT}, /* 0 bytes */
    {"cp.async.cg.shared.global [%own], [%in+1048576], 16;" COMMIT WAIT("0"), BOUNDS},
    {"cp.async.ca.shared.global [%own], [%in+2], 4;" COMMIT WAIT("0"), BOUNDS},
    {"mov.u32 %t3, 17; cp.async.cg.shared.global [%own], [%in], 16, %t3;", OTHER},
    /* atomics */
    {"@%p0 st.shared.u32 [sum], 0;" BARRIER "atom.shared.add.u32 %t3, [sum], 1;" BARRIER LOAD("sum"), RIGHT},
    {"@%p0 st.shared.u32 [sum], 0;" BARRIER "red.shared.add.u32 [sum], 1;" LOAD("sum"), RACE},
    {"@%p0 st.shared.u32 [sum], 0; atom.shared.add.u32 %t3, [sum], 1;", RACE},
    {"@%p0 st.shared.u32 [sum], 0;" BARRIER LOAD("sum") "red.shared.add.u32 [sum], 1;", RACE},
    {"red.shared.add.u32 [%own], 1;", UNWRITTEN},
    {"red.global.add.u32 [%first], 1; mov.u64 %out, %in;", UNWRITTEN},
    /* Generic addresses */
    {STORE("%own") "cvt.u64.u32 %x1, %own; cvta.shared.u64 %x2, %x1; ld.u32 %t8, [%x2]; cvta.to.shared.u64 %x3, %x2;"
                   "cvt.u32.u64 %t3, %x3;" LOAD("%t3"),
     RIGHT},
    {"cvt.u64.u32 %x1, %own; cvta.shared.u64 %x2, %x1; cvta.to.global.u64 %x2, %x2; ld.global.u32 %t8, [%x2];", BOUNDS},
    {"mov.u32 %t3, 0; ld.shared.u32 %t8, [%t3];", BOUNDS},
    {STORE("%own") "ld.shared.u32 %t8, [%own+2];", BOUNDS},
    {"st.global.u32 [%in], 1; ld.global.nc.u32 %t8, [%in];", RACE},
    /* barriers */
    {"@%p2 bra A; " BARRIER " bra E; A: " BARRIER " E: mov.u32 %t8, 1;", SYNC},
    {STORE("%own") "bar.red.popc.u32 %t3, 0, %p1; setp.ne.u32 %p3, %t3, 32; @%p3 trap;" LOAD("%far"), RIGHT},
    {"bar.red.and.pred %p3, 0, %p1; @%p3 trap; bar.red.or.pred %p3, 0, !%p1; @!%p3 trap;", RIGHT},
    {"@%p2 " BARRIER, SYNC},
    {"@%p1 " BARRIER, SYNC},
    {"@%p2 exit; " BARRIER, SYNC},
    {"@%p1 exit; bar.warp.sync 0xffff0000;", RIGHT},
    {"@%p1 exit; " SYNCWARP, SYNC},
    {"@%p1 exit; mov.u32 %t3, 0xffff0000; vote.sync.ballot.b32 %t8, %p2, %t3;", RIGHT},
    {"bar.warp.sync 0x0000ffff;", SYNC},
    {"shfl.sync.idx.b32 %t3, %t8, 20, 31, -1;", RIGHT},
    {"@%p1 shfl.sync.idx.b32 %t3, %t8, 20, 31, 0xffff;", SYNC},
    {"trap;", OTHER},
};

void check_orders(void)
{
    for (int i = 0; i < COUNT(memory_orders); i++) {
        char *text;
        test_context("%s", memory_orders[i].body);
        if (asprintf(&text, "%s%s%s", ORDER_HEAD, memory_orders[i].body, ORDER_TAIL) < 0)
            abort();
        struct emu_module *m = emu_load(text, "order");
        free(text);
        if (!CHECK(m != NULL, "%s", emu_message()))
            continue;
        for (int mode = 0; mode < 9; mode++) {
            uint8_t *in = emu_allocate(1024), *out = emu_allocate(1024);
            emu_written(in, 1024);
            struct {
                void *in, *out;
            } args = {in, out};
            struct emu_options o = {
                .order = (enum emu_order)(mode / 3), .copies = (enum emu_copies)(mode % 3), .seed = test_random()};
            emu_launch(m, "order", 1, 1, 64, 0, &args, sizeof(args), &o, &report);
            if (!CHECK(found(memory_orders[i].want), "mode %d: expected %s", mode, wants[memory_orders[i].want]))
                print_errors();
            if (!strcmp(memory_orders[i].body, COPY("%own") COMMIT))
                CHECK(report.unwaited_copies == 64, "%llu copies nobody waited for",
                      (unsigned long long)report.unwaited_copies);
            emu_release(in);
            emu_release(out);
        }
        emu_unload(m);
    }
    test_context("%s", "");
}
