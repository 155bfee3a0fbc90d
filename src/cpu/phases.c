/* SPDX-License-Identifier: Apache-2.0
 *
 * A model of the executor (run.c) that counts instead of computing: the same waves, tasks and order of tasks; a thread
 * takes the next task when it is done with its last one, as queues with stealing let it. What a task costs is the
 * products' multiply-adds and, for the rest, numbers of multiply-adds that take as long (docs/performance.md has the
 * measured ones; those of single rows are rough, and matter where a wave has few rows).
 */
#include "phases.h"

enum {
    PACK = 8,           /* a number of a row into its packs */
    PUSH = 22,          /* a score of both sides into states, */
    SUM = 50,           /* or of a second sweep, */
    KEEP = 16,          /* one of a head into a kept exponential, */
    MIX = 4,            /* which becomes part of a mixture, */
    DZ = 7,             /* or into dz */
    FINISH_ROW = 10000, /* results of a row, */
    FINISH_CHUNK = 400, /* and the states of its chunks */
    ADD = 8,            /* a number of a chunk's da */
    WRITE = 16          /* a number of da on its way out */
};

/* Blocks of one wave, all with the same rows. */
struct wave {
    int64_t blocks, rows, chunks;
    double times; /* how many waves are like this one */
};

struct counter {
    const struct skl_work *w;
    const struct skl_plan *plan;
    struct skl_phase *phases;
    int n, first; /* phases known; is this the first kind of wave? */
    double load[SKL_THREADS_MAX];
};

/* The thread that is free first takes the task. */
static void take_task(struct counter *c, double work)
{
    int least = 0;
    for (int i = 1; i < c->plan->threads; i++) least = c->load[i] < c->load[least] ? i : least;
    c->load[least] += work;
}

static double columns_of(const struct skl_plan *plan, int64_t first, int64_t last)
{
    int64_t to = last * plan->bk < plan->columns ? last * plan->bk : plan->columns;
    return (double)(to - first * plan->bk);
}

/* The way's share of what a task of a wave does: of the panels that have rows, or an equal one. */
static double share_of(const struct counter *c, const struct wave *wave, int64_t way, int64_t ways, int of_panels)
{
    int64_t nr = c->plan->kernels->nr, all = c->plan->panels, used = (wave->rows + nr - 1) / nr;
    int64_t from = all * way / ways, to = all * (way + 1) / ways;
    if (!of_panels)
        return 1 / (double)ways;
    from = from < used ? from : used, to = to < used ? to : used;
    return (double)(to - from) / (double)used;
}

/* A phase of a wave: 'parts' tasks of each block, 'ways' times: parts of the panels, or others that are equal. A part
 * costs 'each' for every column of its share of 'tiles' tiles; or, of no tiles, just 'each'. */
static void add_phase(struct counter *c, int at, const char *name, const struct wave *wave, int64_t parts,
                      int64_t tiles, int64_t ways, int of_panels, double each)
{
    struct skl_phase *phase = &c->phases[at];
    double longest = 0;
    if (at >= c->n)
        *phase = (struct skl_phase){name, wave->blocks * parts * ways, 0, 0}, c->n = at + 1;
    for (int i = 0; i < c->plan->threads; i++) c->load[i] = 0;
    for (int64_t k = 0; k < wave->blocks * parts * ways; k++) {
        int64_t part = k / ways % parts;
        double columns = tiles ? columns_of(c->plan, tiles * part / parts, tiles * (part + 1) / parts) : 1;
        double work = each * share_of(c, wave, k % ways, ways, of_panels) * columns;
        take_task(c, work);
        phase->work += work * wave->times;
    }
    for (int i = 0; i < c->plan->threads; i++) longest = c->load[i] > longest ? c->load[i] : longest;
    phase->longest += longest * wave->times;
}

/* Multiply-adds of a score, and of what dz of it makes; numbers of da of a row. */
static void entries_of(const struct skl_work *w, double *score, double *rows, double *columns)
{
    *score = (double)(skl_entries(&w->side[0]) + skl_entries(&w->side[1]));
    *rows = *columns = 0;
    for (int i = 0; i < 2; i++) {
        *rows += w->side[i].grad_a.data ? (double)skl_entries(&w->side[i]) : 0;
        *columns += w->side[i].grad_b.data ? (double)skl_entries(&w->side[i]) : 0;
    }
}

static void add_grads(struct counter *c, int at, const struct wave *wave, int64_t panels)
{
    const struct skl_plan *plan = c->plan;
    double score, rows, columns, n = (double)(panels * plan->kernels->nr), nr = plan->kernels->nr;
    entries_of(c->w, &score, &rows, &columns);
    double again = plan->recompute ? score : 0;
    if (plan->fine) {
        int64_t steps = skl_dim_steps(c->w, plan, 0) + skl_dim_steps(c->w, plan, 1);
        add_phase(c, at++, "rows", wave, wave->chunks, plan->tiles, plan->fine, 1, n * (rows + DZ));
        if (steps)
            add_phase(c, at++, "columns", wave, plan->tiles, plan->tiles, steps, 0, n * columns);
    } else if (plan->by_tile) {
        add_phase(c, at++, "tiles", wave, wave->chunks, plan->tiles, 1, 0, n * (again + rows + columns + DZ));
    } else {
        int64_t tasks = 0, slabs = plan->recompute ? (plan->tiles + plan->kept_tiles - 1) / plan->kept_tiles : 1;
        for (int i = 0; i < 2; i++) tasks += c->w->side[i].grad_a.data ? skl_da_tasks(c->w, plan, i) : 0;
        add_phase(c, at++, "columns", wave, skl_slab_tasks(plan) * slabs, plan->tiles, 1, 0,
                  n * (again + columns + DZ));
        if (tasks)
            add_phase(c, at++, "rows", wave, tasks, 0, 1, 0, n * (double)plan->columns * rows / (double)tasks);
    }
    if (rows > 0)
        add_phase(c, at, "write", wave, panels, 0, 1, 0,
                  nr * rows * (WRITE + (plan->by_tile ? ADD * (double)wave->chunks : 0)));
}

static void add_wave(struct counter *c, const struct wave *wave)
{
    const struct skl_plan *plan = c->plan;
    int nr = plan->kernels->nr, at = 0;
    int64_t panels = (wave->rows + nr - 1) / nr, ways = plan->fine ? plan->fine : 1;
    double score, rows, columns, n = (double)(panels * nr);
    entries_of(c->w, &score, &rows, &columns);
    add_phase(c, at++, "pack", wave, panels, 0, 1, 0, nr * score * PACK);
    if (plan->keeps_heads & 1 << !c->w->student) {
        const struct skl_work_side *t = &c->w->side[!c->w->student];
        double heads = (double)t->members, of_heads = (double)skl_entries(t);
        add_phase(c, at++, "heads", wave, wave->chunks, plan->tiles, 1, 0, n * (of_heads + heads * KEEP));
        add_phase(c, at++, "sums", wave, panels, 0, 1, 0, nr * heads * (double)plan->tiles * MIX);
        score += heads * MIX - of_heads;
    }
    double finish = nr * (FINISH_ROW + FINISH_CHUNK * (double)plan->chunks);
    if (plan->call != SKL_CALL_BACKWARD) {
        add_phase(c, at++, "sweep", wave, wave->chunks, plan->tiles, ways, 1, n * (score + PUSH));
        add_phase(c, at++, "finish", wave, panels, 0, 1, 0, finish);
    }
    if (plan->second_sweep) {
        double again = plan->recompute || !plan->kept_tiles ? score : 0;
        add_phase(c, at++, "second sweep", wave, wave->chunks, plan->tiles, ways, 1, n * (again + SUM));
        add_phase(c, at++, "finish", wave, panels, 0, 1, 0, finish);
    }
    if (c->w->grads)
        add_grads(c, at, wave, panels);
}

/* Threads that work alone: all of a group is one task. */
static void add_groups(struct counter *c)
{
    const struct skl_plan *plan = c->plan;
    double score, rows, columns, n = (double)(plan->rows * plan->group);
    entries_of(c->w, &score, &rows, &columns);
    double each = n * (double)plan->columns * (score + PUSH + rows + columns + (c->w->grads ? DZ : 0)) +
                  n * (FINISH_ROW + score * PACK + rows * WRITE);
    struct wave all = {1, plan->rows, 1, 1};
    add_phase(c, 0, "groups", &all, plan->groups, 0, 1, 0, each);
}

int skl_count_phases(const struct skl_work *w, const struct skl_plan *plan, struct skl_phase phases[SKL_PHASES_MAX])
{
    static struct counter c; /* 32 KiB */
    c = (struct counter){.w = w, .plan = plan, .phases = phases};
    if (plan->alone) {
        add_groups(&c);
        return c.n;
    }
    /* Row blocks of a group come one after the other, groups side by side; otherwise all blocks are alike. */
    int64_t rows = plan->block_rows, in_segment = plan->rows / rows, left = plan->rows % rows;
    int64_t side_by_side = plan->own_columns ? plan->groups : w->segments,
            in_turn = plan->own_columns ? plan->group : 1;
    for (int last = 0; last < 2; last++) {
        int64_t blocks = plan->own_columns ? side_by_side : side_by_side * (last ? left > 0 : in_segment);
        int64_t turns = plan->own_columns ? in_turn * (last ? left > 0 : in_segment) : 1;
        for (int64_t k = 0; turns > 0 && k < 2; k++) { /* whole waves, and the rest */
            int64_t n = k ? blocks % plan->blocks : plan->blocks;
            struct wave wave = {n, last ? left : rows, 0, (double)(turns * (k ? n > 0 : blocks / plan->blocks))};
            wave.chunks = skl_chunks_of(plan, n, plan->tiles);
            if (n && wave.times > 0)
                add_wave(&c, &wave);
        }
    }
    return c.n;
}

double skl_efficiency(const struct skl_plan *plan, const struct skl_phase *phases, int n)
{
    double work = 0, longest = 0;
    for (int i = 0; i < n; i++) work += phases[i].work, longest += phases[i].longest;
    return longest > 0 ? work / (plan->threads * longest) : 1;
}
