/* SPDX-License-Identifier: Apache-2.0
 * The table of device memory; loads, stores and atomics, with bounds, alignment and bank conflicts. */
#define _GNU_SOURCE
#include "internal.h"

#include <sys/mman.h>

/* --------------------------------------------------------------------------------------------- the table --- */

static struct allocation *table;
static int table_count, table_room, last_found;

/* Nothing of ours lies this close to an allocation: an overrun meets no other one. */
#define GAP ((size_t)16 << 20)

static struct allocation *add_allocation(void)
{
    if (table_count == table_room) {
        table_room = table_room ? 2 * table_room : 64;
        table = realloc(table, (size_t)table_room * sizeof(*table));
        if (!table)
            abort();
    }
    struct allocation *m = &table[table_count++];
    memset(m, 0, sizeof(*m));
    return m;
}

void *emu_allocate(size_t bytes)
{
    size_t all = (bytes + 4095) / 4096 * 4096 + 2 * GAP;
    uint8_t *map = mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
        return NULL;
    if (bytes && mprotect(map + GAP, all - 2 * GAP, PROT_READ | PROT_WRITE)) {
        munmap(map, all);
        return NULL;
    }
    struct allocation *m = add_allocation();
    m->data = map + GAP;
    m->bytes = bytes;
    m->map = map;
    m->map_bytes = all;
    (void)madvise(m->data, all - 2 * GAP, MADV_HUGEPAGE); /* workspaces of 64 MiB: a fault for 2 MiB, not for 4 KiB */
    memset(m->data, 0xFF, bytes);
    return m->data;
}

void *emu_adopt(void *data, size_t bytes)
{
    struct allocation *m = add_allocation();
    m->data = data;
    m->bytes = bytes;
    return data;
}

void emu_release(void *data)
{
    if (!data)
        return;
    for (int i = 0; i < table_count; i++)
        if (table[i].data == data) {
            shadow_free(&table[i]);
            if (table[i].map)
                munmap(table[i].map, table[i].map_bytes);
            table[i] = table[--table_count];
            return;
        }
    fprintf(stderr, "emulator: %p is released but was never allocated\n", data);
    abort();
}

int emu_allocations(void)
{
    return table_count;
}

struct allocation *find_allocation(const void *data, size_t bytes)
{
    const uint8_t *p = data;
    for (int n = -1; n < table_count; n++) {
        int i = n < 0 ? last_found : n;
        if (i < table_count && p >= table[i].data && p - table[i].data <= (ptrdiff_t)table[i].bytes &&
            bytes <= table[i].bytes - (size_t)(p - table[i].data)) {
            last_found = i;
            return &table[i];
        }
    }
    return NULL;
}

static struct allocation *must_find(const void *data, size_t bytes, size_t *offset)
{
    struct allocation *m = find_allocation(data, bytes);
    if (!m) {
        fprintf(stderr, "emulator: %zu bytes at %p are not device memory\n", bytes, data);
        abort();
    }
    *offset = (size_t)((const uint8_t *)data - m->data);
    return m;
}

void emu_written(const void *data, size_t bytes)
{
    size_t offset;
    struct allocation *m = must_find(data, bytes, &offset);
    shadow_host_write(m, offset, bytes, 1);
}

void emu_forget(const void *data, size_t bytes)
{
    size_t offset;
    struct allocation *m = must_find(data, bytes, &offset);
    shadow_host_write(m, offset, bytes, 0);
}

void emu_copy_in(void *data, const void *from, size_t bytes)
{
    emu_written(data, bytes);
    memcpy(data, from, bytes);
}

size_t emu_unwritten(const void *data, size_t bytes)
{
    size_t offset;
    struct allocation *m = must_find(data, bytes, &offset);
    return shadow_unwritten(m, offset, bytes);
}

/* --------------------------------------------------------------------------------------------- addresses --- */

void addresses(struct warp *w, const struct inst *in, int32_t base, uint64_t *to)
{
    const void *a = reg(w, base);
    if (in->wide == 8)
        for (int l = 0; l < LANES; l++) to[l] = ((const u64 *)a)[l] + (uint64_t)in->imm;
    else
        for (int l = 0; l < LANES; l++) to[l] = (uint32_t)(((const u32 *)a)[l] + (uint32_t)in->imm);
}

static uint8_t *bounds_error(struct warp *w, const struct inst *in, int lane, uint64_t address, int bytes,
                             const char *what)
{
    report_error(w->block, in, E_BOUNDS, "%s: thread %d, %d bytes at 0x%llx", what, w->first_thread + lane, bytes,
                 (unsigned long long)address);
    return NULL;
}

uint8_t *locate(struct warp *w, const struct inst *in, int lane, uint64_t address, enum space space, int bytes,
                enum access a)
{
    struct block *b = w->block;
    if (space == S_GENERIC) {
        uint64_t window = WINDOW(address);
        space = window == SHARED_WINDOW  ? S_SHARED
                : window == LOCAL_WINDOW ? S_LOCAL
                : window == PARAM_WINDOW ? S_PARAM
                                         : S_GLOBAL;
        if (space != S_GLOBAL)
            address -= window;
    }
    if (address % (uint64_t)bytes)
        return bounds_error(w, in, lane, address, bytes, "misaligned");
    if (space == S_SHARED) {
        uint64_t offset = address - SHARED_START;
        if (offset >= b->shared_bytes || offset + (uint64_t)bytes > b->shared_bytes)
            return bounds_error(w, in, lane, address, bytes, "outside of shared memory");
        shadow_shared(w, in, lane, (uint32_t)offset, bytes, a);
        return b->shared + offset;
    }
    if (space == S_LOCAL) {
        if (address + (uint64_t)bytes > b->kernel->local_bytes || address >= b->kernel->local_bytes)
            return bounds_error(w, in, lane, address, bytes, "outside of local memory");
        return w->local + (size_t)lane * b->kernel->local_bytes + address;
    }
    if (space == S_PARAM) {
        if (address + (uint64_t)bytes > b->param_bytes || address >= b->param_bytes || a != A_READ)
            return bounds_error(w, in, lane, address, bytes, "outside of the parameters");
        return (uint8_t *)(uintptr_t)(b->params + address);
    }
    uint8_t *p = (uint8_t *)(uintptr_t)address;
    struct allocation *m = find_allocation(p, (size_t)bytes);
    if (!m)
        return bounds_error(w, in, lane, address, bytes, "outside of device memory");
    shadow_global(w, in, m, lane, (size_t)(p - m->data), bytes, a);
    return p;
}

/* ----------------------------------------------------------------------------------------- bank conflicts --- */

/* Wavefronts beyond one: the most different words that lanes of a phase want from one bank. */
static int extra_wavefronts(const uint64_t *address, uint32_t mask, int first, int count, int words)
{
    uint64_t seen[32][32];
    int n[32] = {0}, most = 1;
    for (int l = first; l < first + count; l++) {
        if (!(mask >> l & 1))
            continue;
        for (int i = 0; i < words; i++) {
            uint64_t word = address[l] / 4 + (uint64_t)i;
            int bank = (int)(word % 32), k = 0;
            while (k < n[bank] && seen[bank][k] != word) k++;
            if (k == n[bank]) {
                seen[bank][n[bank]++] = word;
                if (n[bank] > most)
                    most = n[bank];
            }
        }
    }
    return most - 1;
}

static void count_conflicts(struct warp *w, const uint64_t *address, uint32_t mask, int bytes)
{
    struct emu_report *r = w->block->report;
    if (bytes <= 4) {
        r->scalar_conflicts += (uint64_t)extra_wavefronts(address, mask, 0, 32, 1);
        return;
    }
    int phase = bytes == 8 ? 16 : 8;
    for (int first = 0; first < LANES; first += phase)
        r->vector_conflicts += (uint64_t)extra_wavefronts(address, mask, first, phase, bytes / 4);
}

/* ------------------------------------------------------------------------------------------ load and store --- */

static void count_access(struct warp *w, const struct inst *in, const uint64_t *address, uint32_t mask, int bytes,
                         int is_load)
{
    struct emu_report *r = w->block->report;
    int first = __builtin_ctz(mask);
    int is_shared = in->space == S_SHARED || (in->space == S_GENERIC && WINDOW(address[first]) == SHARED_WINDOW);
    int is_global = in->space == S_GLOBAL || (in->space == S_GENERIC && !WINDOW(address[first]));
    if (is_shared)
        count_conflicts(w, address, mask, bytes);
    *(is_load ? &r->shared_loads : &r->shared_stores) += (uint64_t)is_shared;
    *(is_load ? &r->global_loads : &r->global_stores) += (uint64_t)is_global;
}

static inline void load_one(void *d, int size, enum type type, const uint8_t *p, int l)
{
    uint64_t v = 0;
    switch (type_bytes(type)) {
    case 1: v = type == T_S8 ? (uint64_t)(int64_t)(int8_t)*p : *p; break;
    case 2: v = type == T_S16 ? (uint64_t)(int64_t)(int16_t) * (const u16 *)p : *(const u16 *)p; break;
    case 4: v = type == T_S32 ? (uint64_t)(int64_t)(int32_t) * (const u32 *)p : *(const u32 *)p; break;
    default: v = *(const u64 *)p; break;
    }
    switch (size) {
    case 2: ((u16 *)d)[l] = (u16)v; break;
    case 4: ((u32 *)d)[l] = (u32)v; break;
    default: ((u64 *)d)[l] = v; break;
    }
}

void run_ld(struct warp *w, const struct inst *in, uint32_t mask)
{
    uint64_t address[LANES];
    enum type type = (enum type)in->type;
    int n = in->vector, each = type_bytes(type);
    static const uint8_t nothing[32] = {0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF,
                                        0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF,
                                        0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF};
    addresses(w, in, in->o[n], address);
    if (in->space != S_PARAM)
        count_access(w, in, address, mask, n * each, 1);
    for (int l = 0; l < LANES; l++) {
        if (!(mask >> l & 1))
            continue;
        const uint8_t *p = locate(w, in, l, address[l], (enum space)in->space, n * each, A_READ);
        if (!p)
            p = nothing;
        for (int i = 0; i < n; i++) load_one(OPERAND(i), in->size[i], type, p + i * each, l);
    }
}

void run_st(struct warp *w, const struct inst *in, uint32_t mask)
{
    uint64_t address[LANES];
    int n = in->vector, each = type_bytes((enum type)in->type);
    addresses(w, in, in->o[n], address);
    count_access(w, in, address, mask, n * each, 0);
    for (int l = 0; l < LANES; l++) {
        if (!(mask >> l & 1))
            continue;
        uint8_t *p = locate(w, in, l, address[l], (enum space)in->space, n * each, A_WRITE);
        for (int i = 0; p && i < n; i++)
            memcpy(p + i * each, (const uint8_t *)OPERAND(i) + l * in->size[i], (size_t)each);
    }
}

/* ------------------------------------------------------------------------------------------------ atomics --- */

static uint64_t combine(uint64_t old, uint64_t v, uint64_t v2, int op, enum type t)
{
    int bits = 8 * type_bytes(t);
    int64_t a = bits == 64 ? (int64_t)old : (int32_t)old, b = bits == 64 ? (int64_t)v : (int32_t)v;
    int less = type_is_signed(t) ? a < b : old < v;
    if (t == T_F32) {
        uint32_t x = (uint32_t)old, y = (uint32_t)v;
        float f, g;
        memcpy(&f, &x, 4), memcpy(&g, &y, 4);
        f += g;
        memcpy(&x, &f, 4);
        return x;
    }
    if (t == T_F64) {
        double f, g;
        memcpy(&f, &old, 8), memcpy(&g, &v, 8);
        f += g;
        memcpy(&old, &f, 8);
        return old;
    }
    switch (op) {
    case 0: return old + v;
    case 1: return less ? old : v;
    case 2: return less ? v : old;
    case 3: return old & v;
    case 4: return old | v;
    case 5: return old ^ v;
    case 6: return v;
    case 7: return old == v ? v2 : old;
    case 8: return old >= v ? 0 : old + 1;
    default: return old == 0 || old > v ? v : old - 1;
    }
}

void run_atom(struct warp *w, const struct inst *in, uint32_t mask)
{
    uint64_t address[LANES];
    int bytes = type_bytes((enum type)in->type);
    addresses(w, in, in->o[1], address);
    w->block->report->atomics++;
    for (int l = 0; l < LANES; l++) {
        if (!(mask >> l & 1))
            continue;
        uint8_t *p = locate(w, in, l, address[l], (enum space)in->space, bytes, A_ATOMIC);
        if (!p)
            continue;
        uint64_t old = 0, v = 0, v2 = 0;
        memcpy(&old, p, (size_t)bytes);
        memcpy(&v, (const uint8_t *)OPERAND(2) + l * bytes, (size_t)bytes);
        if (in->mode == 7)
            memcpy(&v2, (const uint8_t *)OPERAND(3) + l * bytes, (size_t)bytes);
        v = combine(old, v, v2, in->mode, (enum type)in->type);
        memcpy(p, &v, (size_t)bytes);
        memcpy((uint8_t *)OPERAND(0) + l * bytes, &old, (size_t)bytes);
    }
}

/* ------------------------------------------------------------------------------------------------ windows --- */

static uint64_t window_of(enum space s)
{
    return s == S_SHARED ? SHARED_WINDOW : s == S_LOCAL ? LOCAL_WINDOW : s == S_PARAM ? PARAM_WINDOW : 0;
}

void run_cvta(struct warp *w, const struct inst *in, uint32_t mask)
{
    uint64_t window = window_of((enum space)in->space);
    u64 *d = OPERAND(0);
    const u64 *a = OPERAND(1);
    for (int l = 0; l < LANES; l++) {
        if (!(mask >> l & 1))
            continue;
        /* A pointer that is not of this space stays outside of it, for the access to find. */
        d[l] = in->mode ? a[l] - window : a[l] + window;
    }
}

void run_isspacep(struct warp *w, const struct inst *in, uint32_t mask)
{
    uint64_t window = window_of((enum space)in->space);
    u32 *p = OPERAND(0), bits = 0;
    const u64 *a = OPERAND(1);
    for (int l = 0; l < LANES; l++) bits |= (uint32_t)(WINDOW(a[l]) == window) << l;
    *p = (*p & ~mask) | (bits & mask);
}
