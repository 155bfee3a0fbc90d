/* SPDX-License-Identifier: Apache-2.0
 * cp.async: each thread's queue of copies and its groups. When the bytes arrive is the options' choice; that nobody
 * touches them before the thread has waited, and nobody else before a barrier, is for shadow.c to watch. */
#include "internal.h"

static void perform(struct block *b, struct copy *c)
{
    if (c->done)
        return;
    if (c->from_bytes)
        memcpy(b->shared + c->to, c->from, c->from_bytes);
    memset(b->shared + c->to + c->from_bytes, 0, (size_t)(c->bytes - c->from_bytes));
    c->done = 1;
}

static void issue(struct warp *w, int lane, struct copy c)
{
    struct copies *q = &w->copies[lane];
    struct block *b = w->block;
    if (q->count == q->room) {
        q->room = q->room ? 2 * q->room : 16;
        q->list = realloc(q->list, (size_t)q->room * sizeof(*q->list));
        if (!q->list)
            abort();
    }
    c.group = q->group;
    if (b->options->copies == EMU_EARLY || (b->options->copies == EMU_SOMETIMES && emu_random(b) & 1))
        perform(b, &c);
    q->list[q->count++] = c;
    b->report->copies++;
}

void run_cp_async(struct warp *w, const struct inst *in, uint32_t mask)
{
    uint64_t to[LANES];
    const u64 *from = OPERAND(1);
    const u32 *size = OPERAND(2);
    int bytes = in->size[0];
    addresses(w, in, in->o[0], to);
    for (int l = 0; l < LANES; l++) {
        if (!(mask >> l & 1))
            continue;
        struct copy c = {.bytes = (uint8_t)bytes, .from_bytes = (uint8_t)size[l]};
        if (size[l] > (uint32_t)bytes) {
            report_error(w->block, in, E_OTHER, "thread %d copies %u of %d bytes", w->first_thread + l, size[l], bytes);
            continue;
        }
        uint64_t address = from[l] + (uint64_t)(int64_t)in->target;
        if (address % (uint64_t)bytes) {
            report_error(w->block, in, E_BOUNDS, "misaligned: thread %d, %d bytes from 0x%llx", w->first_thread + l,
                         bytes, (unsigned long long)address);
            continue;
        }
        /* Byte by byte where the tail is cut, since the source's size need not be a power of two. */
        for (int i = 0; i < c.from_bytes;) {
            int n = c.from_bytes == bytes ? bytes : 1;
            const uint8_t *p = locate(w, in, l, address + (uint64_t)i, S_GLOBAL, n, A_READ);
            if (!i)
                c.from = p;
            if (!p) {
                c.from_bytes = 0;
                break;
            }
            i += n;
        }
        uint8_t *p = locate(w, in, l, to[l], S_SHARED, bytes, A_COPY);
        if (p) {
            c.to = (uint32_t)(p - w->block->shared);
            issue(w, l, c);
        }
    }
}

void run_cp_commit(struct warp *w, const struct inst *in, uint32_t mask)
{
    (void)in;
    for (int l = 0; l < LANES; l++) w->copies[l].group += mask >> l & 1;
}

/* All but the last 'leave' groups have arrived. */
static void wait_for(struct warp *w, int lane, int64_t leave)
{
    struct copies *q = &w->copies[lane];
    int kept = 0;
    for (int i = 0; i < q->count; i++) {
        struct copy *c = &q->list[i];
        if ((int64_t)c->group + leave < (int64_t)q->group) {
            perform(w->block, c);
            shadow_copied(w, lane, c->to, c->bytes);
        } else {
            q->list[kept++] = *c;
        }
    }
    q->count = kept;
}

void run_cp_wait(struct warp *w, const struct inst *in, uint32_t mask)
{
    for (int l = 0; l < LANES; l++)
        if (mask >> l & 1)
            wait_for(w, l, in->imm);
}

void run_cp_wait_all(struct warp *w, const struct inst *in, uint32_t mask)
{
    run_cp_commit(w, in, mask);
    for (int l = 0; l < LANES; l++)
        if (mask >> l & 1)
            wait_for(w, l, 0);
}

void copies_leave(struct warp *w, uint32_t lanes)
{
    for (int l = 0; l < LANES; l++) {
        struct copies *q = &w->copies[l];
        if (!(lanes >> l & 1))
            continue;
        for (int i = 0; i < q->count; i++) {
            if (q->list[i].group == q->group)
                report_error(w->block, NULL, E_OTHER, "thread %d exits with a cp.async that it never committed",
                             w->first_thread + l);
            else
                w->block->report->unwaited_copies++;
        }
        q->count = 0;
        q->group = 0;
    }
}
