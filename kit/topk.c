/* SPDX-License-Identifier: Apache-2.0 */
#include "topk.h"

#include "divergence.h"
#include "indexer.h"
#include "logits.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const kit_topk_names[KIT_TOPK_RESULTS] = {"ids", "logprobs", "tail", "LSE"};

/* --------------------------------------------------------------------------------------------------- cases --- */

struct kit_topk_case kit_random_topk(struct kit_random *r)
{
    static const int64_t sizes[] = {1, 2, 7, 31, 32, 33, 64, 65, 191, 192, 193, 256, 700};
    struct kit_topk_case c = {.of = kit_random_case(r)};
    kit_set_divergence(&c.of, SKL_FORWARD_KL);
    c.of.support = c.of.support_block = 0, c.of.grads = 0;
    c.of.dim[T] = 1, c.of.dtype[T] = SKL_F32, c.of.pad[T] = 0; /* nobody looks */
    if (c.of.heads > 8)
        c.of.heads = 8, c.of.key_heads[S] = 2;
    c.of.key_heads[T] = 1, c.of.threads = (int)kit_between(r, 1, 3);
    kit_shrink(&c.of, 4e5);
    if (kit_chance(r, 4)) /* more columns than a chunk has */
        c.of.rows = kit_between(r, 1, 40), c.of.cols = kit_between(r, 3000, 9000), c.of.dim[S] = kit_between(r, 1, 9);
    if (c.of.use == SKL_ATTENTION && kit_chance(r, 2))
        c.indexer = 1, c.identity = kit_chance(r, 3), c.of.softcap[S] = 0, c.of.key_heads[S] = 1;
    c.k = kit_chance(r, 4) ? kit_between(r, 1, c.of.cols + 2) : KIT_PICK(r, sizes);
    c.asked = kit_chance(r, 3) ? (int)kit_between(r, 0, KIT_TOPK_ALL) : KIT_TOPK_ALL;
    c.whole = kit_chance(r, 3);
    if (c.whole)
        c.of.softcap[S] = 0, c.of.scale[S] = kit_chance(r, 2) ? -2 : 1, c.of.temperature = 4;
    return c;
}

struct kit_topk_case kit_random_device_topk(struct kit_random *r)
{
    struct kit_topk_case c = kit_random_topk(r);
    kit_for_device(&c.of, r);
    return c;
}

void kit_describe_topk(const struct kit_topk_case *c, char *text, size_t size)
{
    char of[600];
    kit_describe(&c->of, of, sizeof of);
    snprintf(text, size, "k %" PRId64 "%s%s%s asked %d of %s", c->k, c->indexer ? " indexer" : "",
             c->identity ? " identity" : "", c->whole ? " whole" : "", c->asked, of);
}

/* A tensor over (batch, head, query) as one over (batch, query). */
static struct skl_tensor of_first_head(struct skl_tensor t)
{
    t.ndim = 2, t.shape[1] = t.shape[2], t.stride[1] = t.stride[2];
    return t;
}

static void of_queries(struct skl_problem *p)
{
    p->begin = of_first_head(p->begin), p->end = of_first_head(p->end), p->weight = of_first_head(p->weight);
}

static void make_indexer(struct kit_topk *f, const struct kit_memory *memory, struct kit_random *r)
{
    struct skl_problem *p = &f->p;
    int64_t shape[3] = {p->s.a.shape[0], p->s.a.shape[2], p->s.a.shape[1]};
    f->w = kit_tensor(memory, (int32_t)kit_between(r, SKL_F32, SKL_F16), 3, shape, 0, KIT_GAPS, f->c.of.place);
    kit_fill_normal(&f->w.t, r, 1, KIT_NORMAL);
    p->use = SKL_INDEXER, p->identity = f->c.identity, p->s.bias = f->w.t;
    of_queries(p);
}

static void make_whole(const struct skl_tensor *t, struct kit_random *r)
{
    for (int64_t i = 0; t->data && i < kit_count(t); i++) kit_set(t, i, (double)kit_between(r, -1, 1));
}

static struct kit_tensor output(const struct kit_topk *f, const struct kit_memory *memory, int32_t dtype, int lists)
{
    const struct skl_tensor *a = &f->p.s.a;
    int64_t shape[4] = {a->shape[0], a->shape[1], a->shape[2], a->shape[3]};
    int ndim = a->ndim;
    if (f->c.indexer)
        ndim = 3, shape[1] = a->shape[2];
    shape[ndim - 1] = f->c.k;
    return kit_tensor(memory, dtype, lists ? ndim : ndim - 1, shape, lists,
                      f->c.of.layout == KIT_DENSE ? KIT_DENSE : KIT_GAPS, f->c.of.place);
}

void kit_build_topk(struct kit_topk *f, const struct kit_topk_case *c, const struct kit_memory *memory,
                    struct kit_random *r)
{
    memset(f, 0, sizeof *f);
    f->c = *c;
    kit_build(&f->of, &c->of, memory, r);
    f->p = f->of.p;
    memset(&f->p.t, 0, sizeof f->p.t);
    f->p.columns = c->of.cols; /* also where only the teacher's b had been padded */
    if (c->indexer)
        make_indexer(f, memory, r);
    if (c->whole)
        make_whole(&f->p.s.a, r), make_whole(&f->p.s.b, r), make_whole(&f->p.s.bias, r);
    f->ids = output(f, memory, SKL_I32, 1), f->logprobs = output(f, memory, SKL_F32, 1);
    f->tail = output(f, memory, SKL_F32, 0), f->lse = output(f, memory, SKL_F32, 0);
    kit_send(&f->of);
    if (f->w.there)
        memory->device->send(f->w.there, f->w.memory.data, f->w.memory.size);
}

void kit_destroy_topk(struct kit_topk *f)
{
    struct kit_tensor *each[] = {&f->w, &f->ids, &f->logprobs, &f->tail, &f->lse};
    for (int i = 0; i < 5; i++) kit_tensor_free(f->of.memory, each[i]);
    kit_destroy(&f->of);
}

struct skl_outputs kit_topk_outputs(struct kit_topk *f)
{
    struct skl_outputs out = skl_no_outputs();
    struct kit_tensor *each[] = {&f->ids, &f->logprobs, &f->tail, &f->lse};
    for (int i = 0; i < 4; i++) kit_fill_canary(&each[i]->memory);
    kit_fill(&f->ids.t, -7); /* the canary is a -1 */
    for (int i = 0; i < 4; i++)
        if (each[i]->there)
            f->of.memory->device->send(each[i]->there, each[i]->memory.data, each[i]->memory.size);
    out.topk_ids = kit_view(&f->ids);
    if (f->c.asked & KIT_TOPK_LOGPROBS)
        out.topk_logprobs = kit_view(&f->logprobs);
    if (f->c.asked & KIT_TOPK_TAIL)
        out.tail_logprob = kit_view(&f->tail);
    if (f->c.asked & KIT_TOPK_LSE)
        out.lse_s = kit_view(&f->lse);
    return out;
}

struct skl_problem kit_topk_problem(const struct kit_topk *f)
{
    struct skl_problem p = f->p, there = kit_problem(&f->of);
    if (!f->of.memory->device)
        return p;
    p.s = there.s, p.cu_seqlens_q = there.cu_seqlens_q, p.cu_seqlens_k = there.cu_seqlens_k;
    p.begin = there.begin, p.end = there.end, p.weight = there.weight;
    if (f->c.indexer)
        of_queries(&p), p.s.bias = kit_view(&f->w);
    return p;
}

/* ------------------------------------------------------------------------------------------------ one row --- */

/* What a row should have: its logits z of the columns first .. first + n - 1, as ids count them. */
struct row {
    int64_t n, first;
    double *z, *room, lse, growth, allow;
    unsigned char *listed;
};

static int64_t sequence_start(const struct skl_problem *p, int64_t query)
{
    const struct skl_tensor *q = &p->cu_seqlens_q, *k = &p->cu_seqlens_k;
    int64_t s = 0;
    if (!q->data)
        return 0;
    while (kit_element(q, (s + 1) * q->stride[0]) <= (double)query) s++;
    return (int64_t)kit_element(k, s * k->stride[0]);
}

static void make_row(const struct skl_problem *p, int64_t number, struct row *row)
{
    const struct skl_tensor *a = &p->s.a, *b = &p->s.b;
    int index = p->use == SKL_INDEXER, dims = index ? 2 : a->ndim - 1;
    int64_t queries[2] = {a->shape[0], a->shape[2]}, lo, hi;
    const int64_t *shape = index ? queries : a->shape;
    int64_t query = number % shape[dims - 1], rest = number / shape[dims - 1];
    if (index)
        kit_index_range(p, rest, query, &lo, &hi);
    else
        skl_reference_range(p, number, &lo, &hi);
    int weighs = !p->weight.data || kit_element(&p->weight, kit_row_offset(&p->weight, shape, dims, number)) != 0;
    row->n = weighs && hi > lo ? hi - lo : 0;
    row->first = lo - (p->use == SKL_LINEAR ? 0 : sequence_start(p, query));
    memset(row->listed, 0, (size_t)row->n);
    if (index) {
        kit_index_logits(p, rest, query, lo, row->n, row->room, row->z);
    } else {
        int64_t head = p->use == SKL_LINEAR ? 0 : rest % a->shape[1], batch = rest / a->shape[1];
        int64_t matrix = p->use == SKL_LINEAR
                             ? 0
                             : batch * b->stride[0] + head / (a->shape[1] / b->shape[1]) * b->stride[1];
        kit_logits(p, &p->s, kit_row_offset(a, a->shape, dims, number), matrix, lo, row->n, row->z, row->room);
    }
    row->lse = kit_log_sum_exp(row->n, row->z);
    row->growth = fmax(1, sqrt((double)(a->shape[a->ndim - 1] * (index ? a->shape[1] : 1)) / 64));
}

/* The error as a part of its bound. */
static double part(double got, double want, double bound)
{
    if (got == want)
        return 0;
    double used = fabs(got - want) / bound;
    return used >= 0 ? used : INFINITY;
}

static double near(const struct row *row, double z)
{
    return row->allow * kit_near_logits(z, row->growth);
}

/* Column y has no place before column x: by how much it is out of order. */
static double disorder(const struct row *row, int64_t x, int64_t y, int whole)
{
    if (whole)
        return row->z[x] > row->z[y] || (row->z[x] == row->z[y] && x < y) ? 0 : INFINITY;
    return row->z[y] > row->z[x] ? (row->z[y] - row->z[x]) / (near(row, row->z[x]) + near(row, row->z[y])) : 0;
}

/* Ids against the logits; those that are listed are marked. */
static double judge_ids(const struct kit_topk *f, int64_t number, struct row *row)
{
    int64_t k = f->c.k, count = row->n < k ? row->n : k, last = -1;
    double used = 0;
    for (int64_t i = 0; i < k; i++) {
        int64_t id = (int64_t)kit_get(&f->ids.t, number * k + i), at = id - row->first;
        if (i >= count ? id != -1 : at < 0 || at >= row->n || row->listed[at])
            return INFINITY;
        if (i >= count)
            continue;
        if (last >= 0)
            used = fmax(used, disorder(row, last, at, f->c.whole));
        row->listed[at] = 1, last = at;
    }
    for (int64_t j = 0; last >= 0 && j < row->n; j++)
        if (!row->listed[j])
            used = fmax(used, disorder(row, last, j, f->c.whole));
    return used;
}

static double judge_logprobs(const struct kit_topk *f, int64_t number, const struct row *row)
{
    double used = 0;
    for (int64_t i = 0; i < f->c.k; i++) {
        int64_t id = (int64_t)kit_get(&f->ids.t, number * f->c.k + i);
        double z = id < 0 ? -INFINITY : row->z[id - row->first], want = id < 0 ? z : z - row->lse;
        used = fmax(used, part(kit_get(&f->logprobs.t, number * f->c.k + i), want, near(row, z) + near(row, row->lse)));
    }
    return used;
}

static double judge_tail(const struct kit_topk *f, int64_t number, const struct row *row)
{
    double *z = row->room;
    for (int64_t j = 0; j < row->n; j++) z[j] = row->listed[j] ? -INFINITY : row->z[j];
    double rest = kit_log_sum_exp(row->n, z), want = rest == -INFINITY ? rest : rest - row->lse;
    return part(kit_get(&f->tail.t, number), want, near(row, rest) + near(row, row->lse));
}

static enum skl_status call(struct kit_topk *f)
{
    const struct kit_device *device = f->of.memory->device;
    struct skl_problem p = kit_topk_problem(f);
    struct skl_outputs out = kit_topk_outputs(f);
    struct kit_tensor *each[] = {&f->ids, &f->logprobs, &f->tail, &f->lse};
    enum skl_status status = skl_topk(&p, &out);
    if (status || !device)
        return status;
    device->wait();
    for (int i = 0; i < 4; i++) device->fetch(each[i]->memory.data, each[i]->there, each[i]->memory.size);
    return status;
}

struct kit_topk_outcome kit_run_topk(struct kit_topk *f)
{
    struct kit_topk_outcome o = {.status = call(f), .row = -1};
    int64_t rows = kit_count(&f->lse.t), heads = f->c.indexer ? f->p.s.a.shape[1] : 1;
    if (o.status)
        return o;
    struct row row = {.allow = f->of.allow.rows,
                      .z = kit_doubles((size_t)f->p.columns),
                      .room = kit_doubles((size_t)(f->p.columns * heads)),
                      .listed = kit_zeros((size_t)f->p.columns, 1)};
    for (int64_t i = 0; i < rows; i++) {
        double used[KIT_TOPK_RESULTS] = {0};
        make_row(&f->p, i, &row);
        used[KIT_TOPK_IN_IDS] = judge_ids(f, i, &row);
        if (used[KIT_TOPK_IN_IDS] <= 1 && (f->c.asked & KIT_TOPK_LOGPROBS))
            used[KIT_TOPK_IN_LOGPROBS] = judge_logprobs(f, i, &row);
        if (used[KIT_TOPK_IN_IDS] <= 1 && (f->c.asked & KIT_TOPK_TAIL))
            used[KIT_TOPK_IN_TAIL] = judge_tail(f, i, &row);
        if (f->c.asked & KIT_TOPK_LSE)
            used[KIT_TOPK_IN_LSE] = part(kit_get(&f->lse.t, i), row.lse, near(&row, row.lse));
        for (int k = 0; k < KIT_TOPK_RESULTS; k++) {
            o.row = o.row < 0 && !(used[k] <= 1) ? i : o.row;
            o.used[k] = fmax(o.used[k], used[k]);
        }
    }
    free(row.z), free(row.room), free(row.listed);
    double *values = kit_doubles((size_t)(rows * f->c.k));
    struct kit_tensor *each[] = {&f->ids, &f->logprobs, &f->tail, &f->lse};
    for (int i = 0; i < 4; i++) o.spilt |= !kit_take(each[i], values); /* what nobody asked for is canary already */
    free(values);
    return o;
}

int kit_topk_right(const struct kit_topk_outcome *o)
{
    return o->status == SKL_OK && o->row < 0 && !o->spilt;
}
