/* SPDX-License-Identifier: Apache-2.0
 *
 * Who touched what: finds data races and reads of what nobody wrote.
 *
 * Each word of memory has a cell with its last writer and its readers since the last barrier. Two accesses by two
 * threads of a block, one of them a write, need a barrier between them, which is an epoch; within a warp bar.warp.sync
 * will do, which is a lane's clock (see struct warp). Epochs never repeat, so nothing is cleared between blocks: an
 * older epoch than the block's is another block's, older than the launch's is history.
 *
 * An access to a part of a word splits its cell into one for each byte. Readers are a set of warps, and of the first
 * warp a set of lanes: when two warps have read, any writer races with one of them. The lanes are those since the
 * latest clock, which loses readers only where bar.warp.sync with less than all lanes orders some of them.
 */
#include "internal.h"

/* ATOMIC: the last write is one; ATOMICS: of several threads; BEFORE: behind a plain write in the same epoch. */
enum {
    SPLIT = 1,
    WRITTEN = 2,
    PENDING = 4,
    ATOMIC = 8,
    ATOMICS = 16,
    BEFORE = 32,
    OTHERS_READ = 64,
    OTHERS_ATOMIC = 128
};

struct cell {
    uint32_t write_epoch, read_epoch;
    uint32_t read_warps, read_lanes;
    uint16_t write_thread, write_clock, read_clock;
    uint16_t before_thread, before_clock; /* the plain write before atomics */
    uint8_t read_warp, flags;
    uint32_t unused; /* 32 bytes, half a line of cache */
};

/* Shared memory is one block's at a time. */
static struct cell shared_words[SHARED_MOST / 4], shared_bytes[SHARED_MOST];

struct place {
    struct allocation *m; /* NULL: shared memory */
    uint64_t at;
};

static const char *const access_names[] = {"read", "write", "atomic", "cp.async"};

static const char *describe(const struct place *p)
{
    static char text[64];
    if (p->m)
        snprintf(text, sizeof(text), "byte %llu of the %llu at %p", (unsigned long long)p->at,
                 (unsigned long long)p->m->bytes, (void *)p->m->data);
    else
        snprintf(text, sizeof(text), "byte %llu of shared memory", (unsigned long long)p->at);
    return text;
}

static void race(struct warp *w, const struct inst *in, const struct place *p, int lane, enum access a, int other,
                 const char *other_access)
{
    report_error(w->block, in, E_RACE, "race: %s of thread %d with %s of thread %d, %s", access_names[a],
                 w->first_thread + lane, other_access, other, describe(p));
}

static void foreign(struct warp *w, const struct inst *in, const struct place *p, int lane, enum access a,
                    const char *other_access)
{
    report_error(w->block, in, E_RACE, "race: %s of thread %d with another block's %s, %s", access_names[a],
                 w->first_thread + lane, other_access, describe(p));
}

/* The first access by a block: what the block before left becomes "others". */
static void enter_block(const struct block *b, struct cell *c)
{
    uint8_t others = 0;
    uint32_t last = c->write_epoch > c->read_epoch ? c->write_epoch : c->read_epoch;
    if (last >= b->launch_epoch) {
        others = c->flags & (OTHERS_READ | OTHERS_ATOMIC);
        if (c->read_epoch >= b->launch_epoch)
            others |= OTHERS_READ;
        if (c->write_epoch >= b->launch_epoch && c->flags & ATOMIC)
            others |= OTHERS_ATOMIC;
    }
    c->flags = (uint8_t)((c->flags & ~(OTHERS_READ | OTHERS_ATOMIC)) | others);
}

/* Whether what 'thread' did at 'clock' in this epoch is ordered before what the lane does now. */
static int ordered(const struct warp *w, int lane, int thread, uint16_t clock)
{
    int other = thread - w->first_thread;
    return other == lane || (other >= 0 && other < LANES && clock <= w->seen[lane][other]);
}

static void check_against_write(struct warp *w, const struct inst *in, const struct place *p, struct cell *c, int lane,
                                enum access a)
{
    const struct block *b = w->block;
    if (c->write_epoch < (p->m ? b->launch_epoch : b->block_epoch))
        return;
    if (c->flags & ATOMIC && a == A_ATOMIC) {
        if (c->flags & BEFORE && c->write_epoch == b->epoch && !ordered(w, lane, c->before_thread, c->before_clock))
            race(w, in, p, lane, a, c->before_thread, "write");
        return;
    }
    if (c->write_epoch < b->block_epoch)
        foreign(w, in, p, lane, a, c->flags & ATOMIC ? "atomic" : "write");
    else if (c->write_epoch == b->epoch && (c->flags & ATOMICS || !ordered(w, lane, c->write_thread, c->write_clock)))
        race(w, in, p, lane, a, c->write_thread, c->flags & ATOMIC ? "atomic" : "write");
}

static void check_against_reads(struct warp *w, const struct inst *in, const struct place *p, struct cell *c, int lane,
                                enum access a)
{
    const struct block *b = w->block;
    if (c->read_epoch != b->epoch)
        return;
    uint32_t others = c->read_warps & ~(1u << w->index);
    if (others) {
        int other = __builtin_ctz(others);
        int thread = other * LANES + (other == c->read_warp ? __builtin_ctz(c->read_lanes) : 0);
        race(w, in, p, lane, a, thread, other == c->read_warp ? "read" : "(or one of its warp) read");
        return;
    }
    for (uint32_t lanes = c->read_lanes & ~(1u << lane); lanes; lanes &= lanes - 1) {
        int other = __builtin_ctz(lanes);
        if (!ordered(w, lane, w->first_thread + other, c->read_clock)) {
            race(w, in, p, lane, a, w->first_thread + other, "read");
            return;
        }
    }
}

static void uninitialised(struct warp *w, const struct inst *in, const struct place *p, int lane)
{
    report_error(w->block, in, E_UNINITIALISED, "thread %d reads what nobody wrote, %s", w->first_thread + lane,
                 describe(p));
}

static int is_pending(const struct block *b, const struct cell *c)
{
    return c->flags & PENDING && c->write_epoch >= b->block_epoch;
}

static void pending(struct warp *w, const struct inst *in, const struct place *p, struct cell *c, int lane,
                    enum access a)
{
    race(w, in, p, lane, a, c->write_thread, "a cp.async, which is not waited for,");
    c->flags &= (uint8_t)~PENDING; /* once is enough */
}

static int is_written(const struct block *b, const struct place *p, const struct cell *c)
{
    return p->m ? c->flags & WRITTEN : c->write_epoch >= b->block_epoch;
}

static inline void note_read(struct warp *w, struct cell *c, uint32_t lanes, int lane)
{
    uint32_t epoch = w->block->epoch, warp = 1u << w->index;
    if (c->read_epoch != epoch) {
        c->read_epoch = epoch;
        c->read_warps = warp;
        c->read_warp = (uint8_t)w->index;
        c->read_lanes = lanes;
        c->read_clock = w->clock[lane];
    } else {
        c->read_warps |= warp;
        if (c->read_warp == w->index) {
            c->read_lanes = c->read_clock == w->clock[lane] ? c->read_lanes | lanes : lanes;
            c->read_clock = w->clock[lane];
        }
    }
}

/* lanes: who reads; one lane, or all for ldmatrix, which is 'lane' then in messages. */
static inline void cell_read(struct warp *w, const struct inst *in, const struct place *p, struct cell *c, int lane,
                             uint32_t lanes)
{
    const struct block *b = w->block;
    uint32_t oldest = p->m ? b->launch_epoch : b->epoch;
    if ((c->flags & PENDING) || c->write_epoch >= oldest || !is_written(b, p, c) ||
        (c->flags & OTHERS_ATOMIC && c->write_epoch >= b->launch_epoch)) {
        if (c->read_epoch < b->block_epoch && c->write_epoch < b->block_epoch)
            enter_block(b, c);
        if (is_pending(b, c))
            pending(w, in, p, c, lane, A_READ);
        else if (!is_written(b, p, c))
            uninitialised(w, in, p, lane);
        else if (in->run == run_ld && in->mode && c->write_epoch >= b->launch_epoch)
            report_error(w->block, in, E_RACE, "race: thread %d reads by .nc what this launch writes, %s",
                         w->first_thread + lane, describe(p));
        else if (lanes & (lanes - 1) && c->write_epoch == b->epoch) {
            for (int l = 0; l < LANES; l++)
                if (w->exist >> l & 1 && !ordered(w, l, c->write_thread, c->write_clock)) {
                    race(w, in, p, l, A_READ, c->write_thread, "write");
                    break;
                }
        } else {
            check_against_write(w, in, p, c, lane, A_READ);
            if (p->m && c->flags & OTHERS_ATOMIC && c->write_epoch >= b->block_epoch)
                foreign(w, in, p, lane, A_READ, "atomic");
        }
    } else if (c->read_epoch < b->block_epoch && p->m) {
        enter_block(b, c);
    }
    note_read(w, c, lanes, lane);
}

static void cell_write(struct warp *w, const struct inst *in, const struct place *p, struct cell *c, int lane,
                       enum access a)
{
    const struct block *b = w->block;
    if (c->read_epoch < b->block_epoch && c->write_epoch < b->block_epoch)
        enter_block(b, c);
    if (is_pending(b, c))
        pending(w, in, p, c, lane, a);
    else
        check_against_write(w, in, p, c, lane, a);
    check_against_reads(w, in, p, c, lane, a);
    if (p->m && c->flags & OTHERS_READ)
        foreign(w, in, p, lane, a, "read");
    if (p->m && c->flags & OTHERS_ATOMIC && a != A_ATOMIC && c->write_epoch >= b->block_epoch)
        foreign(w, in, p, lane, a, "atomic");
    if (a == A_ATOMIC && !is_written(b, p, c))
        uninitialised(w, in, p, lane);
    int thread = w->first_thread + lane;
    uint8_t flags = c->flags & (SPLIT | OTHERS_READ | OTHERS_ATOMIC);
    flags |= WRITTEN;
    if (a == A_ATOMIC) {
        flags |= ATOMIC;
        if (c->flags & ATOMIC && c->write_epoch == b->epoch && (c->flags & ATOMICS || c->write_thread != thread))
            flags |= ATOMICS;
        if (c->write_epoch == b->epoch && !(c->flags & ATOMIC)) {
            flags |= BEFORE;
            c->before_thread = c->write_thread;
            c->before_clock = c->write_clock;
        } else if (c->write_epoch == b->epoch) {
            flags |= c->flags & BEFORE;
        }
    }
    if (a == A_COPY)
        flags |= PENDING;
    c->flags = flags;
    c->write_epoch = b->epoch;
    c->write_thread = (uint16_t)thread;
    c->write_clock = w->clock[lane];
}

static inline void cell_access(struct warp *w, const struct inst *in, const struct place *p, struct cell *c, int lane,
                               uint32_t lanes, enum access a)
{
    if (a == A_READ)
        cell_read(w, in, p, c, lane, lanes);
    else
        cell_write(w, in, p, c, lane, a);
}

/* Cells of a range. 'bytes_of' may come into being. */
static void split(struct cell *word, struct cell *bytes)
{
    if (word->flags & SPLIT)
        return;
    for (int i = 0; i < 4; i++) bytes[i] = *word;
    word->flags |= SPLIT;
}

static void access_range(struct warp *w, const struct inst *in, struct place *p, struct cell *words,
                         struct cell *byte_cells, int lane, uint32_t lanes, uint64_t offset, int bytes, enum access a)
{
    while (bytes > 0) {
        uint64_t word = offset / 4;
        int n = 4 - (int)(offset % 4);
        if (n > bytes)
            n = bytes;
        struct cell *c = &words[word];
        p->at = offset;
        if (n == 4 && !(c->flags & SPLIT)) {
            cell_access(w, in, p, c, lane, lanes, a);
        } else {
            split(c, byte_cells + 4 * word);
            for (int i = 0; i < n; i++) {
                p->at = offset + (uint64_t)i;
                cell_access(w, in, p, &byte_cells[offset + (uint64_t)i], lane, lanes, a);
            }
        }
        offset += (uint64_t)n;
        bytes -= n;
    }
}

/* A word of shared memory that an earlier block split is whole again: its bytes' history is over. */
static inline void join(const struct block *b, uint64_t word)
{
    struct cell *c = &shared_words[word];
    if (!(c->flags & SPLIT))
        return;
    for (int i = 0; i < 4; i++) {
        const struct cell *s = &shared_bytes[4 * word + (uint64_t)i];
        if (s->write_epoch >= b->block_epoch || s->read_epoch >= b->block_epoch)
            return;
    }
    memset(c, 0, sizeof(*c));
}

void shadow_shared(struct warp *w, const struct inst *in, int lane, uint32_t offset, int bytes, enum access a)
{
    struct place p = {NULL, 0};
    for (uint32_t word = offset / 4; word <= (offset + (uint32_t)bytes - 1) / 4; word++) join(w->block, word);
    access_range(w, in, &p, shared_words, shared_bytes, lane, 1u << lane, offset, bytes, a);
}

void shadow_matrix_row(struct warp *w, const struct inst *in, int lane, uint32_t offset)
{
    struct place p = {NULL, 0};
    const struct block *b = w->block;
    struct cell *c = &shared_words[offset / 4];
    /* The ordinary case, for speed: written in an epoch before this one. */
    int plain = 1;
    for (int i = 0; i < 4; i++)
        plain &= !(c[i].flags & (SPLIT | PENDING)) & (c[i].write_epoch < b->epoch) &
                 (c[i].write_epoch >= b->block_epoch);
    if (plain) {
        for (int i = 0; i < 4; i++) note_read(w, &c[i], w->exist, lane);
        return;
    }
    access_range(w, in, &p, shared_words, shared_bytes, lane, w->exist, offset, 16, A_READ);
}

void shadow_copied(struct warp *w, int lane, uint32_t offset, int bytes)
{
    for (uint32_t at = offset; at < offset + (uint32_t)bytes; at += 4) {
        struct cell *c = &shared_words[at / 4];
        int n = c->flags & SPLIT ? 4 : 1;
        if (n == 4)
            c = &shared_bytes[at];
        for (int i = 0; i < n; i++) {
            c[i].flags &= (uint8_t)~PENDING;
            c[i].write_epoch = w->block->epoch;
            c[i].write_clock = w->clock[lane];
            c[i].write_thread = (uint16_t)(w->first_thread + lane);
        }
    }
}

/* ---------------------------------------------------------------------------------------- device memory --- */

static void make_cells(struct allocation *m, int fine)
{
    if (!m->words)
        m->words = calloc(m->bytes / 4 + 1, sizeof(*m->words));
    if (fine && !m->bytes_of)
        m->bytes_of = calloc(m->bytes + 4, sizeof(*m->bytes_of));
    if (!m->words || (fine && !m->bytes_of)) {
        fprintf(stderr, "emulator: out of memory\n");
        abort();
    }
}

void shadow_global(struct warp *w, const struct inst *in, struct allocation *m, int lane, size_t offset, int bytes,
                   enum access a)
{
    struct place p = {m, 0};
    int fine = bytes < 4 || offset % 4;
    if (!m->words || (fine && !m->bytes_of))
        make_cells(m, fine);
    access_range(w, in, &p, m->words, m->bytes_of, lane, 1u << lane, offset, bytes, a);
}

void shadow_host_write(struct allocation *m, size_t offset, size_t bytes, int written)
{
    make_cells(m, offset % 4 || bytes % 4);
    for (size_t i = offset; i < offset + bytes;) {
        struct cell *c = &m->words[i / 4];
        size_t n = 4 - i % 4 < offset + bytes - i ? 4 - i % 4 : offset + bytes - i;
        if (n == 4) {
            memset(c, 0, sizeof(*c));
            c->flags = written ? WRITTEN : 0;
        } else {
            split(c, m->bytes_of + i / 4 * 4);
            for (size_t j = i; j < i + n; j++) {
                memset(&m->bytes_of[j], 0, sizeof(*c));
                m->bytes_of[j].flags = written ? WRITTEN : 0;
            }
        }
        i += n;
    }
}

size_t shadow_unwritten(struct allocation *m, size_t offset, size_t bytes)
{
    size_t n = 0;
    make_cells(m, 0);
    for (size_t i = offset; i < offset + bytes; i++) {
        const struct cell *c = &m->words[i / 4];
        if (c->flags & SPLIT)
            c = &m->bytes_of[i];
        n += !(c->flags & WRITTEN);
    }
    return n;
}

void shadow_free(struct allocation *m)
{
    free(m->words);
    free(m->bytes_of);
}
