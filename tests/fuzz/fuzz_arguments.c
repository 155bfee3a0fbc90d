/* SPDX-License-Identifier: Apache-2.0
 *
 * clang's fuzzer on the argument checks. The bytes change fields of a problem that is right: sizes, strides, dtypes,
 * pointers into one arena of real memory, structure sizes, numbers. Whatever comes of it, every call must refuse with a
 * sentence and write nothing, or succeed and write nothing but the elements of its outputs, which then share no memory
 * with each other or with an input.
 *
 * A view that reaches out of the arena, which no library can know, is shown only to skl_workspace_size(), which looks
 * at no element but the weights.
 */
#include <streamkl/streamkl.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ARENA = 1 << 15, TAIL = 1 << 12, MOST_WORK = 200000, TENSORS = 9, RESULTS = 15 };

/* A structure with room behind it, for sizes above its own. */
struct roomy_problem {
    struct skl_problem p;
    unsigned char tail[TAIL];
};
struct roomy_outputs {
    struct skl_outputs o;
    unsigned char tail[TAIL];
};

static _Alignas(64) unsigned char arena[ARENA], before[ARENA];
static unsigned char owner[ARENA]; /* who has a byte: 0 nobody, 1 an input, 2.. an output */
static struct roomy_problem problem;
static struct roomy_outputs out, saved;
static struct skl_state *state;
static int cancel;
static int asked_call;   /* what skl_workspace_size() is asked about */
static int second_sweep; /* skl_partial() gets 'saved' */
static int silent = -1;  /* standard output, which must stay empty */

static void broken(const char *what)
{
    fprintf(stderr, "broken promise: %s (last error: %s)\n", what, skl_last_error());
    abort();
}

static int progress(void *data, double fraction)
{
    if (data != &cancel || !(fraction >= 0 && fraction <= 1))
        broken("the callback's arguments");
    return cancel;
}

/* ------------------------------------------------------------------------------------------- what is right --- */

static size_t used;

static void *give(size_t bytes)
{
    void *p = arena + used;
    used += (bytes + 63) / 64 * 64 + 64;
    return p;
}

static struct skl_tensor rows_like(struct skl_tensor a, int dtype)
{
    struct skl_tensor t = {NULL, dtype, SKL_CPU, a.ndim - 1, 0, {0}, {0}};
    int64_t n = 1;
    for (int k = t.ndim - 1; k >= 0; k--) t.shape[k] = a.shape[k], t.stride[k] = n, n *= a.shape[k];
    t.data = give((size_t)n * 4);
    return t;
}

static struct skl_tensor grad_like(struct skl_tensor a)
{
    int64_t n = 1;
    for (int k = 0; k < a.ndim; k++) n *= a.shape[k];
    a.dtype = SKL_F32;
    a.data = give((size_t)n * 4);
    return a;
}

static void fill_outputs(struct skl_outputs *o, int row_results, int grads)
{
    const struct skl_problem *p = &problem.p;
    struct skl_tensor *rows[] = {&o->loss, &o->lse_s, &o->lse_t, &o->m_s, &o->m_t,
                                 &o->l_s,  &o->l_t,   &o->kl_s,  &o->kl_t};
    *o = skl_no_outputs();
    for (int i = 0; row_results && i < (p->divergence == SKL_JSD ? 9 : 7); i++) *rows[i] = rows_like(p->s.a, SKL_F32);
    if (row_results)
        o->value = give(sizeof *o->value);
    if (grads) {
        o->s.a = grad_like(p->s.a), o->s.b = grad_like(p->s.b), o->t.a = grad_like(p->t.a), o->t.b = grad_like(p->t.b);
        if (p->s.bias.data)
            o->s.bias = grad_like(p->s.bias);
    }
}

/* The call that would succeed, by the first byte. */
static void build(int kind, int call)
{
    int attention = kind & 1, half = kind >> 1 & 1;
    int64_t rows = 3, columns = 5, dim = 4;
    used = 0, asked_call = call & 3, second_sweep = kind >> 7 & 1;
    memset(&problem, 0, sizeof problem), memset(&out, 0, sizeof out), memset(&saved, 0, sizeof saved);
    struct skl_tensor a, b;
    void *xa = give(2 * 2 * 3 * 4 * 4), *xb = give(2 * 2 * 5 * 4 * 4);
    int dtype = half ? SKL_BF16 : SKL_F32;
    a = attention ? skl_heads(dtype, xa, 2, 2, rows, dim) : skl_matrix(dtype, xa, rows, dim);
    b = attention ? skl_heads(dtype, xb, 2, 1, columns, dim) : skl_matrix(dtype, xb, columns, dim);
    problem.p = attention ? skl_attention(a, b, a, b) : skl_linear(a, b, a, b);
    problem.p.divergence = (kind >> 2) % 3;
    if (kind & 16)
        problem.p.weight = rows_like(a, SKL_F32);
    if (kind & 32)
        problem.p.begin = rows_like(a, SKL_I32), problem.p.end = rows_like(a, SKL_I32);
    if (kind & 64 && !attention)
        problem.p.s.bias = skl_vector(SKL_F32, give(5 * 4), columns);
    fill_outputs(&saved.o, 1, 0), saved.o.value = NULL;
    fill_outputs(&out.o, call != 2, call == 1 || call == 2);
    state = give(12 * sizeof *state);
    for (int i = 0; i < ARENA / 4; i++) { /* small numbers whatever they are read as */
        float x = (float)(i % 7) / 4 - 0.5f;
        memcpy(arena + 4 * i, &x, 4);
    }
    for (int i = 0; i < 12; i++) {
        int32_t from = i % 3, to = 3 + i % 4;
        if (problem.p.begin.data && i < (attention ? 12 : 3)) {
            memcpy((char *)problem.p.begin.data + 4 * i, &from, 4);
            memcpy((char *)problem.p.end.data + 4 * i, &to, 4);
        }
    }
}

/* ----------------------------------------------------------------------------------------------- changes --- */

struct bytes {
    const uint8_t *at;
    size_t left;
};

static unsigned next(struct bytes *b)
{
    return b->left ? (b->left--, *b->at++) : 0;
}

static int64_t raw(struct bytes *b, int n)
{
    uint64_t x = 0;
    for (int i = 0; i < n; i++) x |= (uint64_t)next(b) << 8 * i;
    return (int64_t)x;
}

static int64_t integer(struct bytes *b)
{
    static const int64_t pool[] = {
        0,         1,         2,         3,         4,         5,         6,          7,         8,         12,
        16,        17,        31,        64,        127,       255,       256,        1 << 16,   INT32_MAX, INT32_MIN,
        1ll << 31, 1ll << 32, 1ll << 40, 1ll << 57, 1ll << 58, 1ll << 59, 1ll << 60,  1ll << 61, 1ll << 62, INT64_MAX,
        INT64_MIN, -1,        -2,        -4,        -5,        -8,        -INT32_MAX, -INT64_MAX};
    unsigned i = next(b);
    return i < sizeof pool / sizeof *pool ? pool[i] : i < 250 ? (int64_t)(i % 9) : raw(b, 8);
}

static double real(struct bytes *b)
{
    static const double pool[] = {0,     -0.0, 1,     -1,     0.5,   2,     1e-3, 0.999,  1e30,
                                  -1e30, 3e38, 1e308, 5e-324, 1e-40, 1e-30, 1e20, 0x1p-24};
    unsigned i = next(b);
    if (i < sizeof pool / sizeof *pool)
        return pool[i];
    if (i < 100)
        return i % 3 == 0 ? (double)NAN : i % 3 == 1 ? (double)INFINITY : -(double)INFINITY;
    int64_t x = raw(b, 8);
    double d;
    memcpy(&d, &x, 8);
    return d;
}

static void *pointer(struct bytes *b)
{
    unsigned i = next(b);
    return i == 0 ? NULL : i < 128 ? arena + 64 * (i - 1) % ARENA : arena + (uint64_t)raw(b, 2) % ARENA;
}

static struct skl_tensor *input(int i)
{
    struct skl_problem *p = &problem.p;
    struct skl_tensor *all[TENSORS] = {&p->s.a,    &p->s.b,   &p->t.a, &p->t.b,   &p->s.bias,
                                       &p->t.bias, &p->begin, &p->end, &p->weight};
    return all[i];
}

static struct skl_tensor *result(struct skl_outputs *o, int i)
{
    struct skl_tensor *all[RESULTS] = {&o->loss, &o->lse_s,  &o->lse_t, &o->kl_s, &o->kl_t,
                                       &o->m_s,  &o->m_t,    &o->l_s,   &o->l_t,  &o->s.a,
                                       &o->s.b,  &o->s.bias, &o->t.a,   &o->t.b,  &o->t.bias};
    return all[i];
}

static struct skl_tensor *any_tensor(struct bytes *b)
{
    unsigned i = next(b) % (TENSORS + 2 * RESULTS);
    return i < TENSORS             ? input((int)i)
           : i < TENSORS + RESULTS ? result(&out.o, (int)i - TENSORS)
                                   : result(&saved.o, (int)i - TENSORS - RESULTS);
}

static void change_tensor(struct bytes *b)
{
    struct skl_tensor *t = any_tensor(b);
    switch (next(b) % 9) {
    case 0: t->data = pointer(b); break;
    case 1: t->dtype = (int32_t)integer(b); break;
    case 2: t->device = (int32_t)integer(b); break;
    case 3: t->ndim = (int32_t)integer(b); break;
    case 4: t->device_index = (int32_t)integer(b); break;
    case 5: t->shape[next(b) % 4] = integer(b); break;
    case 6: t->stride[next(b) % 4] = integer(b); break;
    case 7: *t = *any_tensor(b); break; /* the same memory twice */
    default: t->data = t->data ? (char *)t->data + (int)(next(b) % 16) - 8 : NULL; break;
    }
}

static void change_number(struct bytes *b)
{
    struct skl_problem *p = &problem.p;
    int32_t *const ints[] = {&p->use, &p->divergence, &p->reduction, &p->causal, &p->isa, &p->any_order, &p->reserved};
    int64_t *const longs[] = {&p->window_left, &p->window_right, &p->columns};
    double *const reals[] = {&p->beta,    &p->temperature, &p->skip_below, &p->s.scale,
                             &p->t.scale, &p->s.softcap,   &p->t.softcap};
    switch (next(b) % 8) {
    case 0: *ints[next(b) % 7] = (int32_t)integer(b); break;
    case 1: *longs[next(b) % 3] = integer(b); break;
    case 2: *reals[next(b) % 7] = real(b); break;
    case 3: p->workspace_limit = (size_t)integer(b); break;
    case 4: p->workspace = pointer(b), p->workspace_bytes = (size_t)integer(b); break;
    case 5: p->stream = pointer(b); break;
    case 6: p->progress = progress, p->progress_data = &cancel, cancel = next(b) & 1; break;
    default: /* from 5 to 4096 threads are allowed, and too slow here */
        p->threads = (int32_t)integer(b);
        p->threads = p->threads > 4 && p->threads <= 4096 ? 4 : p->threads;
    }
}

static void change_structure(struct bytes *b)
{
    unsigned char *tails[] = {problem.tail, out.tail, saved.tail};
    switch (next(b) % 7) {
    case 6: asked_call = (int)integer(b); break;
    case 0: problem.p.struct_size = (size_t)integer(b); break;
    case 1: out.o.struct_size = (size_t)integer(b); break;
    case 2: saved.o.struct_size = (size_t)integer(b); break;
    case 3: out.o.value = pointer(b); break;
    case 4: state = pointer(b); break;
    default: {
        size_t *sizes[] = {&problem.p.struct_size, &out.o.struct_size, &saved.o.struct_size};
        unsigned which = next(b) % 3, at = (unsigned)raw(b, 2) % TAIL;
        *sizes[which] += at; /* and a byte of it, or not */
        tails[which][at] = (unsigned char)next(b);
    }
    }
}

/* A size up to LARGEST is believed, and no more memory than this is there. */
static int structures_fit(void)
{
    size_t p = problem.p.struct_size, o = out.o.struct_size, s = saved.o.struct_size, most = 1 << 16;
    return (p <= sizeof problem || p > most) && (o <= sizeof out || o > most) && (s <= sizeof saved || s > most);
}

/* ---------------------------------------------------------------------------------------------- looking on --- */

static int known(const struct skl_tensor *t)
{
    return t->data && t->dtype >= 0 && t->dtype <= SKL_I32 && t->ndim >= 1 && t->ndim <= 4;
}

/* Bytes from first to past the last, exactly; 0 if the tensor has none. Numbers of 128 bits cannot overflow here. */
static int extent(const struct skl_tensor *t, __int128 *first, __int128 *last, __int128 *count)
{
    __int128 size = t->dtype == SKL_F32 || t->dtype == SKL_I32 ? 4 : 2;
    *first = (__int128)(intptr_t)t->data, *last = *first + size, *count = 1;
    for (int k = 0; k < t->ndim; k++) {
        if (t->shape[k] <= 0)
            return 0;
        __int128 reach = (__int128)(t->shape[k] - 1) * t->stride[k] * size;
        *(reach < 0 ? first : last) += reach;
        *count = *count > ((__int128)1 << 60) ? *count : *count * t->shape[k];
    }
    return 1;
}

/* Inside the arena, and not so many elements that a stride of 0 would take forever. */
static int in_arena(const struct skl_tensor *t)
{
    __int128 first, last, count;
    if (!known(t) || !extent(t, &first, &last, &count))
        return 1; /* refused, or empty */
    return first >= (intptr_t)arena && last <= (intptr_t)(arena + ARENA) && count <= MOST_WORK;
}

static double size_of(int64_t n)
{
    return n > 0 ? (double)n : 0;
}

static double elements(const struct skl_tensor *t, int without_last)
{
    double n = 1;
    for (int k = 0; known(t) && k < t->ndim - without_last; k++) n *= size_of(t->shape[k]);
    return n;
}

/* Rows, columns and dims together: what a call would take. */
static double work(void)
{
    return elements(&problem.p.s.a, 0) * (elements(&problem.p.s.b, 0) + elements(&problem.p.t.b, 0));
}

static double row_count(void)
{
    return elements(&problem.p.s.a, 1);
}

static int all_in_arena(void)
{
    double room = (double)(arena + ARENA - (unsigned char *)state);
    int inside = state == NULL || row_count() * (double)sizeof *state <= room;
    inside &= !out.o.value || (unsigned char *)out.o.value + 8 <= arena + ARENA;
    for (int i = 0; i < TENSORS; i++) inside &= in_arena(input(i));
    for (int i = 0; i < RESULTS; i++) inside &= in_arena(result(&out.o, i)) && in_arena(result(&saved.o, i));
    return inside && work() <= MOST_WORK;
}

static void own(unsigned char *p, size_t bytes, int who)
{
    for (size_t i = 0; i < bytes; i++) {
        unsigned char *o = &owner[p + i - arena];
        if (*o && (who > 1 || *o > 1))
            broken("an output shares memory, and the call was accepted");
        *o = (unsigned char)who;
    }
}

static void own_tensor(const struct skl_tensor *t, int who)
{
    __int128 first, last, count;
    if (!known(t) || !extent(t, &first, &last, &count))
        return;
    size_t size = t->dtype == SKL_F32 || t->dtype == SKL_I32 ? 4 : 2;
    for (int64_t i = 0; i < (int64_t)count; i++) {
        int64_t at = 0, rest = i;
        for (int k = t->ndim - 1; k >= 0; k--) at += rest % t->shape[k] * t->stride[k], rest /= t->shape[k];
        own((unsigned char *)t->data + at * (int64_t)size, size, who);
    }
}

enum { VALUE, GRAD, BACKWARD, PARTIAL, FINISH, SIZE, CALLS };

/* What lies behind a structure's size does not exist: it is 0. */
static struct skl_outputs existing(const struct skl_outputs *o)
{
    struct skl_outputs x = {0};
    memcpy(&x, o, o->struct_size < sizeof x ? o->struct_size : sizeof x);
    return x;
}

static void own_all(int call)
{
    int writes = call < PARTIAL || call == FINISH;
    struct skl_outputs to = existing(&out.o), from = existing(&saved.o);
    for (int i = 0; i < TENSORS; i++) own_tensor(input(i), 1);
    for (int i = 0; (call == BACKWARD || (call == PARTIAL && second_sweep)) && i < RESULTS - 6; i++)
        own_tensor(result(&from, i), 1);
    for (int i = 0; writes && i < RESULTS; i++) own_tensor(result(&to, i), 2 + i);
    if (writes && to.value)
        own((unsigned char *)to.value, 8, 100);
    if (call == PARTIAL)
        own((unsigned char *)state, (size_t)row_count() * sizeof *state, 101);
}

/* After a success: only elements of outputs have changed. */
static void check_written(int call)
{
    memset(owner, 0, sizeof owner);
    if (call != SIZE)
        own_all(call);
    for (int i = 0; i < ARENA; i++)
        if (owner[i] < 2 && arena[i] != before[i])
            broken("written beside the outputs");
}

static void check_sentence(void)
{
    const char *said = skl_last_error();
    if (strncmp(said, "cannot use ", 11) || !strchr(said, ':'))
        broken("no sentence");
}

static void check_silence(void)
{
    struct stat s;
    fflush(stdout);
    if (fstat(silent, &s) || s.st_size)
        broken("the library prints");
}

static enum skl_status make(int call, size_t *bytes)
{
    switch (call) {
    case VALUE: return skl_value(&problem.p, &out.o);
    case GRAD: return skl_value_and_grad(&problem.p, &out.o);
    case BACKWARD: return skl_backward(&problem.p, &saved.o, &out.o);
    case PARTIAL: return skl_partial(&problem.p, second_sweep ? &saved.o : NULL, state);
    case FINISH: return skl_finish(&problem.p, state, &out.o);
    default: return skl_workspace_size((enum skl_call)asked_call, &problem.p, &out.o, bytes);
    }
}

static void run(int call)
{
    size_t bytes = 1;
    memcpy(before, arena, sizeof arena);
    enum skl_status status = make(call, &bytes);
    if (status == SKL_OK || status == SKL_CANCELLED)
        check_written(call);
    else if (memcmp(before, arena, sizeof arena) || bytes != 1)
        broken("refused, and yet something was written");
    if (status != SKL_OK && status != SKL_CANCELLED)
        check_sentence();
    if (!skl_status_string(status))
        broken("a status without a name");
    check_silence();
}

static void run_merge(struct bytes *b)
{
    struct skl_state *into = pointer(b), *from = pointer(b);
    int64_t rows = integer(b);
    unsigned char *end = arena + ARENA - 24 * sizeof *into;
    if (rows > 24 || (unsigned char *)into > end || (unsigned char *)from > end)
        return;
    memcpy(before, arena, sizeof arena);
    enum skl_status status = skl_merge(rows, into, from);
    memset(owner, 0, sizeof owner);
    if (status == SKL_OK && rows > 0)
        memset(&owner[(unsigned char *)into - arena], 2, (size_t)rows * sizeof *into);
    for (int i = 0; i < ARENA; i++)
        if (!owner[i] && arena[i] != before[i])
            broken("skl_merge wrote beside 'into'");
    if (status != SKL_OK)
        check_sentence();
}

/* --------------------------------------------------------------------------------------------------- fuzz --- */

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    silent = memfd_create("stdout", 0);
    dup2(silent, 1);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bytes b = {data, size};
    int kind = (int)next(&b), call = (int)(next(&b) % (CALLS + 1));
    build(kind, call);
    for (int i = 0; b.left && i < 12; i++) {
        switch (next(&b) % 4) {
        case 0: change_number(&b); break;
        case 1: change_structure(&b); break;
        default: change_tensor(&b);
        }
    }
    if (!structures_fit())
        return 0;
    if (call == CALLS)
        run_merge(&b);
    else if (all_in_arena())
        run(call);
    else if (in_arena(&problem.p.weight) && work() <= 1e30)
        run(SIZE);
    return 0;
}
