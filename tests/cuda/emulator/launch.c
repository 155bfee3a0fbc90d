/* SPDX-License-Identifier: Apache-2.0
 * Blocks, warps and lanes in turn; branches, barriers and who waits for whom; errors. */
#include "internal.h"

#include <stdarg.h>

/* ----------------------------------------------------------------------------------------------------- errors --- */

int count_error(struct block *b, const struct inst *in, enum error kind)
{
    struct emu_report *r = b->report;
    uint64_t *counts[] = {&r->races, &r->out_of_bounds, &r->uninitialised, &r->synchronisation, &r->other};
    r->errors++;
    ++*counts[kind];
    int key = (in ? in->line : 0) * 8 + (int)kind;
    for (int i = 0; i < r->texts; i++)
        if (b->told[i] == key)
            return 0;
    if (r->texts == EMU_TEXTS)
        return 0;
    b->told[r->texts] = key;
    return 1;
}

void tell_error(struct block *b, const struct inst *in, const char *format, ...)
{
    struct emu_report *r = b->report;
    char *text = r->text[r->texts++];
    size_t room = sizeof(r->text[0]), n = 0;
    if (in) {
        const char *mnemonic = b->module->text + in->text;
        n = (size_t)snprintf(text, room, "%s:%d: %.*s: ", b->module->name, in->line, (int)strcspn(mnemonic, " \t\n;{["),
                             mnemonic);
    }
    va_list list;
    va_start(list, format);
    if (n < room)
        n += (size_t)vsnprintf(text + n, room - n, format, list);
    va_end(list);
    if (n < room)
        snprintf(text + n, room - n, "; block (%lld, %lld)", (long long)b->block_x, (long long)b->block_y);
}

/* -------------------------------------------------------------------------------------------------- lanes --- */

static void settle(struct warp *w)
{
    for (int l = 0; l < LANES; l++)
        if (w->active >> l & 1)
            w->lane_pc[l] = w->pc;
    w->active = 0;
}

static uint32_t lanes_at(const struct warp *w, uint32_t lanes, uint32_t pc)
{
    uint32_t r = 0;
    for (int l = 0; l < LANES; l++) r |= (uint32_t)(w->lane_pc[l] == pc) << l;
    return r & lanes;
}

/* Chooses the lanes that run next: the lowest address first, which brings branches together again; or at random. */
static int pick_lanes(struct warp *w)
{
    uint32_t runnable = w->alive & ~w->blocked;
    if (!runnable)
        return 0;
    struct block *b = w->block;
    if (b->options->order == EMU_RANDOM) {
        uint64_t r = emu_random(b);
        int start = (int)(r & 31), l = start;
        while (!(runnable >> (l & 31) & 1)) l++;
        w->pc = w->lane_pc[l & 31];
        w->active = lanes_at(w, runnable, w->pc);
        if (!(r >> 5 & 7)) { /* now and then only some of them */
            uint32_t some = w->active & (uint32_t)(r >> 8);
            w->active = some ? some : w->active;
        }
        w->other_pc = UINT32_MAX;
        return 1;
    }
    w->pc = UINT32_MAX;
    for (int l = 0; l < LANES; l++)
        if (runnable >> l & 1 && w->lane_pc[l] < w->pc)
            w->pc = w->lane_pc[l];
    w->active = lanes_at(w, runnable, w->pc);
    w->other_pc = UINT32_MAX;
    for (int l = 0; l < LANES; l++)
        if ((runnable & ~w->active) >> l & 1 && w->lane_pc[l] < w->other_pc)
            w->other_pc = w->lane_pc[l];
    return 1;
}

static void branch(struct warp *w, const struct inst *in, uint32_t taken)
{
    if (taken == w->active) {
        w->pc = (uint32_t)in->target;
    } else if (!taken) {
        w->pc++;
    } else {
        for (int l = 0; l < LANES; l++)
            if (w->active >> l & 1)
                w->lane_pc[l] = taken >> l & 1 ? (uint32_t)in->target : w->pc + 1;
        w->active = 0;
    }
}

static void branch_table(struct warp *w, const struct inst *in, uint32_t taken)
{
    const u32 *index = OPERAND(0);
    for (int l = 0; l < LANES; l++) {
        if (!(w->active >> l & 1))
            continue;
        uint32_t i = index[l], to = w->pc + 1;
        if (taken >> l & 1) {
            if (i < (uint64_t)in->imm)
                to = (uint32_t)w->block->kernel->table[(uint32_t)in->target + i];
            else
                report_error(w->block, in, E_OTHER, "thread %d: target %u of %lld", w->first_thread + l, i,
                             (long long)in->imm);
        }
        w->lane_pc[l] = to;
    }
    w->active = 0;
}

static void leave(struct warp *w, uint32_t lanes)
{
    copies_leave(w, lanes);
    w->alive &= ~lanes;
    if (lanes == w->active) {
        w->active = 0;
        return;
    }
    w->active &= ~lanes;
    w->pc++;
    settle(w);
}

/* Lanes that a collective waits for, as this lane says. */
static uint32_t needed(const struct warp *w, const struct inst *in, int lane)
{
    return in->kind == K_WARP_MASK ? ((const u32 *)OPERAND(in->mask_at))[lane] & w->exist : w->exist;
}

/* Whether every lane says that all take part. */
static int everybody(const struct warp *w, const struct inst *in)
{
    if (in->kind == K_WARP_ALIGNED)
        return 1;
    const u32 *mask = OPERAND(in->mask_at);
    uint32_t common = ALL;
    for (int l = 0; l < LANES; l++) common &= w->exist >> l & 1 ? mask[l] : ALL;
    return (common & w->exist) == w->exist;
}

static void perform(struct warp *w, const struct inst *in, uint32_t lanes)
{
    if (in->kind == K_BARRIER) {
        w->at_barrier = 1;
        w->blocked = w->exist;
        return;
    }
    in->run(w, in, lanes);
    w->blocked &= ~lanes;
    for (int l = 0; l < LANES; l++)
        if (lanes >> l & 1)
            w->lane_pc[l] = w->pc + 1;
}

/* The active lanes have come to a collective; those in 'arrived' take part. They go on when all that they name are
 * here, else they wait. */
static void collective(struct warp *w, const struct inst *in, uint32_t arrived)
{
    if (in->kind != K_BARRIER && arrived == w->exist && everybody(w, in)) {
        in->run(w, in, arrived);
        w->pc++;
        return;
    }
    uint32_t others = w->active & ~arrived, left = arrived;
    for (int l = 0; l < LANES; l++)
        if (w->active >> l & 1)
            w->lane_pc[l] = w->pc + (others >> l & 1);
    uint32_t here = lanes_at(w, arrived | w->blocked, w->pc);
    w->active = 0;
    while (left) {
        int first = __builtin_ctz(left);
        uint32_t need = needed(w, in, first), group = 0;
        for (int l = 0; l < LANES; l++)
            if (here >> l & 1 && needed(w, in, l) == need)
                group |= 1u << l;
        if (group & ~need)
            report_error(w->block, in, E_SYNCHRONISATION, "thread %d is not in its own mask 0x%08x",
                         w->first_thread + __builtin_ctz(group & ~need), need);
        if ((group & need) == need) {
            perform(w, in, group);
        } else {
            w->blocked |= group;
        }
        left &= ~group;
    }
}

static void run_warp(struct warp *w, uint64_t quantum)
{
    struct block *b = w->block;
    const struct inst *code = b->kernel->code;
    while (!b->stop && (w->active || pick_lanes(w))) {
        const struct inst *in = &code[w->pc];
        uint32_t mask = w->active;
        b->report->instructions++;
        if (in->guard >= 0) {
            uint32_t p = *(const u32 *)reg(w, in->guard);
            mask &= in->guard_not ? ~p : p;
        }
        switch (in->kind) {
        case K_PLAIN:
            if (mask)
                in->run(w, in, mask);
            w->pc++;
            break;
        case K_BRANCH: branch(w, in, mask); break;
        case K_BRANCH_TABLE: branch_table(w, in, mask); break;
        case K_EXIT:
            if (mask)
                leave(w, mask);
            else
                w->pc++;
            break;
        case K_TRAP:
            if (mask) {
                report_error(b, in, E_OTHER, "thread %d", w->first_thread + __builtin_ctz(mask));
                b->stop = 1;
            }
            w->pc++;
            break;
        default:
            if (mask)
                collective(w, in, mask);
            else
                w->pc++;
            break;
        }
        quantum--;
        if (w->pc >= w->other_pc || !quantum) {
            settle(w);
            if (!quantum)
                return;
        }
    }
}

/* --------------------------------------------------------------------------------------------------- blocks --- */

static void start_epoch(struct block *b)
{
    b->epoch++;
    for (int i = 0; i < b->warp_count; i++) {
        struct warp *w = &b->warps[i];
        memset(w->seen, 0, sizeof(w->seen));
        for (int l = 0; l < LANES; l++) w->clock[l] = 1;
    }
}

static const struct inst *instruction_of(const struct warp *w, uint32_t lanes)
{
    return &w->block->kernel->code[w->lane_pc[__builtin_ctz(lanes)]];
}

/* Nothing can run, not everybody is done. Says who waits where. */
static void deadlock(struct block *b)
{
    char text[200] = "";
    size_t n = 0;
    const struct inst *first = NULL;
    for (int i = 0; i < b->warp_count && n < sizeof(text); i++) {
        const struct warp *w = &b->warps[i];
        uint32_t gone = w->exist & ~w->alive;
        for (uint32_t left = w->alive; left && n < sizeof(text);) {
            const struct inst *in = instruction_of(w, left);
            uint32_t group = lanes_at(w, left, w->lane_pc[__builtin_ctz(left)]);
            if (!first)
                first = in;
            n += (size_t)snprintf(text + n, sizeof(text) - n, " warp %d lanes 0x%x at line %d,", i, group, in->line);
            left &= ~group;
        }
        if (gone && n < sizeof(text))
            n += (size_t)snprintf(text + n, sizeof(text) - n, " warp %d lanes 0x%x exited,", i, gone);
    }
    if (n > 0 && n < sizeof(text))
        text[n - 1] = 0;
    report_error(b, first, E_SYNCHRONISATION, "waits for ever:%s", text);
    b->stop = 1;
}

/* bar.red: how many threads' predicates are true, whether all or any. */
static void reduce(struct block *b, const struct inst *in)
{
    uint32_t yes = 0;
    for (int i = 0; i < b->warp_count; i++) {
        const struct warp *w = &b->warps[i];
        uint32_t p = *(const u32 *)OPERAND(1);
        yes += (uint32_t)__builtin_popcount((in->negate & 1 ? ~p : p) & w->exist);
    }
    uint32_t all = yes == (uint32_t)b->threads, result = in->mode == 2 ? all : yes > 0;
    for (int i = 0; i < b->warp_count; i++) {
        const struct warp *w = &b->warps[i];
        u32 *d = OPERAND(0);
        if (in->mode == 1)
            for (int l = 0; l < LANES; l++) d[l] = yes;
        else
            *d = result ? ALL : 0;
    }
}

static void open_barrier(struct block *b, uint64_t *barriers)
{
    const struct inst *first = instruction_of(&b->warps[0], b->warps[0].alive);
    ++*barriers;
    for (int i = 0; i < b->warp_count; i++) {
        struct warp *w = &b->warps[i];
        const struct inst *in = instruction_of(w, w->alive);
        if (in != first)
            report_error(b, first, E_SYNCHRONISATION, "warp 0 waits here but warp %d at line %d", i, in->line);
        w->at_barrier = 0;
        w->blocked = 0;
        for (int l = 0; l < LANES; l++) w->lane_pc[l]++;
    }
    if (first->mode)
        reduce(b, first);
    start_epoch(b);
}

/* The next warp that can run, NULL if there is none. */
static struct warp *pick_warp(struct block *b)
{
    int n = b->warp_count, start = b->options->order == EMU_RANDOM ? (int)(emu_random(b) % (uint64_t)n) : 0;
    for (int i = 0; i < n; i++) {
        int k = b->options->order == EMU_REVERSE ? n - 1 - i : (start + i) % n;
        struct warp *w = &b->warps[k];
        if (w->alive & ~w->blocked)
            return w;
    }
    return NULL;
}

static void set_special(struct warp *w, enum special x, uint32_t value, uint32_t step)
{
    int32_t offset = w->block->kernel->special[x];
    if (offset >= 0)
        for (int l = 0; l < LANES; l++) ((u32 *)reg(w, offset))[l] = value + step * (uint32_t)l;
}

static void run_block(struct block *b, uint64_t limit)
{
    uint64_t barriers = 0;
    b->block_epoch = b->epoch + 1;
    start_epoch(b);
    memset(b->shared, 0xFF, b->shared_bytes);
    for (int i = 0; i < b->warp_count; i++) {
        struct warp *w = &b->warps[i];
        w->alive = w->exist;
        w->active = w->blocked = 0;
        w->at_barrier = 0;
        memset(w->lane_pc, 0, sizeof(w->lane_pc));
        memset(w->local, 0xFF, (size_t)b->kernel->local_bytes * LANES);
        set_special(w, X_CTAID_X, (uint32_t)b->block_x, 0);
        set_special(w, X_CTAID_Y, (uint32_t)b->block_y, 0);
    }
    while (!b->stop) {
        struct warp *w = pick_warp(b);
        if (w) {
            run_warp(w, b->options->order == EMU_RANDOM ? 1 + emu_random(b) % 64 : 1 << 20);
            if (b->report->instructions >= limit) {
                report_error(b, NULL, E_OTHER, "stopped after %llu instructions", (unsigned long long)limit);
                b->stop = 1;
            }
            continue;
        }
        int done = 0, waiting = 0;
        for (int i = 0; i < b->warp_count; i++) {
            done += !b->warps[i].alive;
            waiting += b->warps[i].at_barrier;
        }
        if (done == b->warp_count)
            break;
        if (waiting == b->warp_count)
            open_barrier(b, &barriers);
        else
            deadlock(b);
    }
    if (barriers > b->report->barriers)
        b->report->barriers = barriers;
}

/* -------------------------------------------------------------------------------------------------- launch --- */

static void make_warp(struct block *b, int i, int64_t grid_x, int grid_y, uint32_t dynamic)
{
    static const enum special masks[] = {X_LANEMASK_EQ, X_LANEMASK_LT, X_LANEMASK_LE, X_LANEMASK_GT, X_LANEMASK_GE};
    const struct kernel *k = b->kernel;
    struct warp *w = &b->warps[i];
    w->block = b;
    w->index = i;
    w->first_thread = i * LANES;
    w->exist = b->threads - w->first_thread >= LANES ? ALL : (1u << (b->threads - w->first_thread)) - 1;
    w->regs = aligned_alloc(256, ((size_t)k->file_bytes + 256) / 256 * 256);
    w->local = malloc((size_t)k->local_bytes * LANES + 16);
    if (!w->regs || !w->local)
        abort();
    memset(w->regs, 0xFF, (size_t)k->register_bytes);
    for (int c = 0; c < k->constant_count; c++) {
        uint8_t *to = w->regs + k->register_bytes + k->constants[c].offset;
        int size = k->constants[c].size;
        for (int l = 0; l < LANES && size; l++) memcpy(to + l * size, &k->constants[c].value, (size_t)size);
        if (!size)
            memcpy(to, &k->constants[c].value, 4);
    }
    set_special(w, X_TID_X, (uint32_t)w->first_thread, 1);
    set_special(w, X_NTID_X, (uint32_t)b->threads, 0);
    set_special(w, X_NCTAID_X, (uint32_t)grid_x, 0);
    set_special(w, X_NCTAID_Y, (uint32_t)grid_y, 0);
    static const enum special ones[] = {X_NTID_Y, X_NTID_Z, X_NCTAID_Z}, zeros[] = {X_TID_Y, X_TID_Z, X_CTAID_Z};
    for (int j = 0; j < 3; j++) {
        set_special(w, ones[j], 1, 0);
        set_special(w, zeros[j], 0, 0);
    }
    set_special(w, X_LANEID, 0, 1);
    set_special(w, X_WARPID, (uint32_t)i, 0);
    set_special(w, X_NWARPID, (uint32_t)b->warp_count, 0);
    set_special(w, X_DYNAMIC, dynamic, 0);
    set_special(w, X_TOTAL, b->shared_bytes, 0);
    for (int j = 0; j < 5; j++)
        for (int l = 0; l < LANES && k->special[masks[j]] >= 0; l++) {
            uint32_t eq = 1u << l, lt = eq - 1, all[] = {eq, lt, lt | eq, ~(lt | eq), ~lt};
            ((u32 *)reg(w, k->special[masks[j]]))[l] = all[j];
        }
}

static void free_warp(struct warp *w)
{
    free(w->regs);
    free(w->local);
    for (int l = 0; l < LANES; l++) free(w->copies[l].list);
}

/* The n-th block to run; a permutation for every n. */
static int64_t block_number(const struct block *b, int64_t n, int64_t count, uint64_t step)
{
    switch (b->options->order) {
    case EMU_REVERSE: return count - 1 - n;
    case EMU_RANDOM: return (int64_t)(((unsigned __int128)(uint64_t)n * step + b->options->seed) % (uint64_t)count);
    default: return n;
    }
}

static uint64_t divisor(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

static int refuse(struct emu_report *r, const char *kernel, const char *why)
{
    r->errors++;
    r->other++;
    snprintf(r->text[r->texts++], sizeof(r->text[0]), "%s: %s", kernel, why);
    return 1;
}

int emu_launch(const struct emu_module *m, const char *kernel, int64_t grid_x, int grid_y, int threads,
               size_t dynamic_shared, const void *args, size_t args_bytes, const struct emu_options *options,
               struct emu_report *report)
{
    static uint32_t epoch = 1;
    static const struct emu_options defaults = {0};
    const struct kernel *k = NULL;
    memset(report, 0, sizeof(*report));
    for (int i = 0; i < m->kernel_count; i++)
        if (!strcmp(m->kernels[i].name, kernel))
            k = &m->kernels[i];
    if (!k)
        return refuse(report, kernel, "there is no such kernel");
    uint32_t dynamic_start = (k->static_shared + k->dynamic_align - 1) / k->dynamic_align * k->dynamic_align;
    if (threads < 1 || threads > 1024 || (k->threads && threads > k->threads))
        return refuse(report, kernel, "this number of threads");
    if (grid_x < 1 || grid_x > INT32_MAX || grid_y < 1 || grid_y > 65535)
        return refuse(report, kernel, "this grid");
    if (dynamic_shared > (227u << 10) || dynamic_start + dynamic_shared > (227u << 10))
        return refuse(report, kernel, "too much shared memory");
    if (args_bytes < k->param_bytes || args_bytes >= k->param_bytes + 8)
        return refuse(report, kernel, "wrong size of the parameters");

    struct block b = {.module = m, .kernel = k, .options = options ? options : &defaults, .report = report};
    b.threads = threads;
    b.warp_count = (threads + LANES - 1) / LANES;
    b.shared_bytes = dynamic_shared ? dynamic_start + (uint32_t)dynamic_shared : k->static_shared;
    b.params = args;
    b.param_bytes = k->param_bytes;
    b.epoch = epoch;
    b.launch_epoch = epoch + 1;
    b.random = b.options->seed * 0x9E3779B97F4A7C15u + 1;
    b.shared = malloc(b.shared_bytes + 16);
    b.warps = calloc((size_t)b.warp_count, sizeof(*b.warps));
    if (!b.shared || !b.warps)
        abort();
    for (int i = 0; i < b.warp_count; i++) make_warp(&b, i, grid_x, grid_y, (uint32_t)dynamic_shared);

    int64_t count = grid_x * grid_y;
    uint64_t step = emu_random(&b) % (uint64_t)count + 1;
    while (divisor(step, (uint64_t)count) != 1) step++;
    uint64_t limit = b.options->instructions ? b.options->instructions : 10000000000u;
    for (int64_t n = 0; n < count && !b.stop; n++) {
        int64_t number = block_number(&b, n, count, step);
        b.block_x = number % grid_x;
        b.block_y = number / grid_x;
        run_block(&b, limit);
    }
    epoch = b.epoch;
    for (int i = 0; i < b.warp_count; i++) free_warp(&b.warps[i]);
    free(b.warps);
    free(b.shared);
    return report->errors != 0;
}
