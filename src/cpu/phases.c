/* SPDX-License-Identifier: Apache-2.0
 *
 * A model of the executor (run.c) that counts instead of computing: the same waves and tasks, handed out in order to the
 * thread that is free first, where real ones begin with queues of their own and steal. What a task costs is the
 * products' multiply-adds and, for the rest, numbers of multiply-adds that take as long (docs/performance.md has the
 * measured ones; those of single rows are rough, and matter where a wave has few rows). Packing the columns of a chunk
 * is not counted: each part of its panels packs them again, which takes as long as the products of 8 rows.
 */
#include "phases.h"

#include "numbers.h"

#include <string.h>

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

enum { PANELS_MOST = SKL_BLOCK / 8 }; /* the least panel has 8 rows */

/* The columns that each panel of a block sees; the tiles that they see together. */
struct seen {
    int64_t rows, panels, first_tile, tiles, chunks;
    struct skl_range of_panel[PANELS_MOST];
};

/* Blocks between two barriers. */
struct wave {
    int64_t blocks;
    double times; /* how many waves are like this one */
    struct seen block[SKL_BLOCKS_BY_TILE];
};

/* How a block's work in a phase is cut into tasks. */
struct cut {
    enum {
        PANELS, /* a task for each panel, which costs 'each' */
        CHUNKS, /* for each chunk of the columns, and each of 'ways' parts of the panels; by scores, 'each' for one */
        TILES,  /* for each tile of all panels, and each of 'ways' equal parts of it; by scores */
        SLAB,   /* for 'ways' parts of tiles first .. last-1 of the columns, of all panels; by scores */
        DIM     /* of these tiles into 'ways' parts, some of dim and 'rows' of the panels; by scores */
    } into;
    int64_t ways, first, last, rows;
};

struct counter {
    const struct skl_work *w;
    const struct skl_plan *plan;
    struct skl_phase *phases;
    int n;                      /* phases known */
    struct skl_segment segment; /* all are taken to be like the first one */
    int64_t first, rows;        /* of its rows, those that see something */
    double load[SKL_THREADS_MAX];
    struct wave wave, next; /* not counted yet */
};

/* ------------------------------------------------------------------------------------------------- blocks --- */

static struct skl_range columns_of_row(const struct counter *c, int64_t row)
{
    int64_t at[3];
    skl_row_index(c->w, skl_segment_row(c->w, &c->segment, row), at);
    return skl_row_range(c->w, &c->segment, at);
}

/* Blocks have no rows that see nothing, which a mask leaves at the segment's begin and end. */
static void find_rows(struct counter *c)
{
    int64_t first = 0, end;
    struct skl_range r;
    c->segment = skl_segment_at(c->w, 0);
    for (end = c->segment.rows; end > 0 && (r = columns_of_row(c, end - 1), r.lo >= r.hi);) end--;
    while (first < end && (r = columns_of_row(c, first), r.lo >= r.hi)) first++;
    c->first = first, c->rows = end - first;
}

/* The columns that rows first .. end-1 of those see. Those of a row are one range, and so are those of neighbours. */
static struct skl_range columns_of_rows(const struct counter *c, int64_t first, int64_t end)
{
    struct skl_range all = {INT64_MAX, 0};
    for (int64_t i = first; i < end; i++) {
        struct skl_range r = columns_of_row(c, c->first + i);
        if (r.lo < r.hi)
            all.lo = least(all.lo, r.lo), all.hi = most(all.hi, r.hi);
    }
    return all.hi ? all : (struct skl_range){0, 0};
}

/* The k-th block of a segment. */
static void see(const struct counter *c, int64_t k, struct seen *b)
{
    const struct skl_plan *plan = c->plan;
    int64_t nr = plan->kernels->nr, from = k * plan->block_rows, end = least(from + plan->block_rows, c->rows);
    int64_t lo = INT64_MAX, hi = 0;
    b->rows = end - from, b->panels = (b->rows + nr - 1) / nr;
    for (int64_t panel = 0; panel < b->panels; panel++) {
        int64_t row = from + panel * nr;
        struct skl_range r = columns_of_rows(c, row, least(row + nr, end));
        b->of_panel[panel] = r;
        if (r.hi)
            lo = least(lo, r.lo), hi = most(hi, r.hi);
    }
    b->first_tile = hi ? lo / plan->bk : 0;
    b->tiles = hi ? (hi + plan->bk - 1) / plan->bk - b->first_tile : 0;
}

/* Scores that panels from .. to-1 make of the block's tiles first .. last-1. */
static double scores(const struct counter *c, const struct seen *b, int64_t from, int64_t to, int64_t first,
                     int64_t last)
{
    int64_t bk = c->plan->bk, lo = (b->first_tile + first) * bk, hi = (b->first_tile + last) * bk, columns = 0;
    for (int64_t panel = from; panel < least(to, b->panels); panel++)
        columns += most(least(b->of_panel[panel].hi, hi) - most(b->of_panel[panel].lo, lo), 0);
    return (double)columns * c->plan->kernels->nr;
}

/* ------------------------------------------------------------------------------------------------- phases --- */

/* The thread that is free first takes the task. */
static void take_task(struct counter *c, double work)
{
    int least = 0;
    for (int i = 1; i < c->plan->threads; i++) least = c->load[i] < c->load[least] ? i : least;
    c->load[least] += work;
}

static int64_t tasks_of(const struct seen *b, const struct cut *cut)
{
    switch (cut->into) {
    case PANELS: return b->panels;
    case CHUNKS: return b->chunks * cut->ways;
    case TILES: return b->tiles * cut->ways;
    default: return cut->ways;
    }
}

static double work_of_task(const struct counter *c, const struct seen *b, const struct cut *cut, int64_t k)
{
    int64_t panels = c->plan->panels, ways = cut->ways, first = cut->first - b->first_tile, n = cut->last - cut->first;
    int64_t from, to;
    switch (cut->into) {
    case PANELS: return 1;
    case CHUNKS:
        from = skl_first_tile(b->tiles, b->chunks, k / ways), to = skl_first_tile(b->tiles, b->chunks, k / ways + 1);
        return scores(c, b, panels * (k % ways) / ways, panels * (k % ways + 1) / ways, from, to);
    case TILES: return scores(c, b, 0, panels, k / ways, k / ways + 1) / (double)ways;
    case SLAB: return scores(c, b, 0, panels, first + n * k / ways, first + n * (k + 1) / ways);
    case DIM:
        from = panels * (k % cut->rows) / cut->rows, to = panels * (k % cut->rows + 1) / cut->rows;
        return scores(c, b, from, to, first, first + n) * (double)cut->rows / (double)ways;
    }
    return 0;
}

static void add_phase(struct counter *c, int at, const char *name, const struct wave *wave, struct cut cut, double each)
{
    struct skl_phase *phase = &c->phases[at];
    int64_t tasks = 0;
    double longest = 0;
    if (at >= c->n)
        *phase = (struct skl_phase){name, 0, 0, 0}, c->n = at + 1;
    for (int i = 0; i < c->plan->threads; i++) c->load[i] = 0;
    for (int64_t i = 0; i < wave->blocks; i++) {
        int64_t n = tasks_of(&wave->block[i], &cut);
        for (int64_t k = 0; k < n; k++) {
            double work = each * work_of_task(c, &wave->block[i], &cut, k);
            take_task(c, work);
            phase->work += work * wave->times;
        }
        tasks += n;
    }
    for (int i = 0; i < c->plan->threads; i++) longest = c->load[i] > longest ? c->load[i] : longest;
    phase->longest += longest * wave->times;
    phase->tasks = most(phase->tasks, tasks);
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

static void add_grads(struct counter *c, int at, const struct wave *wave)
{
    const struct skl_plan *plan = c->plan;
    double score, rows, columns, nr = plan->kernels->nr;
    entries_of(c->w, &score, &rows, &columns);
    double again = plan->recompute ? score : 0;
    if (plan->fine) {
        int64_t steps = skl_dim_steps(c->w, plan, 0) + skl_dim_steps(c->w, plan, 1);
        add_phase(c, at++, "rows", wave, (struct cut){.into = CHUNKS, .ways = plan->fine}, rows + DZ);
        if (steps)
            add_phase(c, at++, "columns", wave, (struct cut){.into = TILES, .ways = steps}, columns);
    } else if (plan->by_tile) {
        add_phase(c, at++, "tiles", wave, (struct cut){.into = CHUNKS, .ways = 1}, again + rows + columns + DZ);
    } else {
        int64_t tasks = 0;
        for (int i = 0; i < 2; i++) tasks += c->w->side[i].grad_a.data ? skl_da_tasks(c->w, plan, i) : 0;
        for (int64_t slab = 0; slab < plan->tiles; slab += plan->kept_tiles) {
            int64_t last = least(slab + plan->kept_tiles, plan->tiles);
            add_phase(c, at, "columns", wave, (struct cut){SLAB, skl_slab_tasks(plan), slab, last, 1},
                      again + columns + DZ);
            if (tasks)
                add_phase(c, at + 1, "rows", wave, (struct cut){DIM, tasks, slab, last, plan->da_row_parts}, rows);
        }
        at += tasks ? 2 : 1;
    }
    if (rows > 0)
        add_phase(c, at, "write", wave, (struct cut){.into = PANELS},
                  nr * rows * (WRITE + (plan->by_tile ? ADD * (double)plan->chunks : 0)));
}

static void add_wave(struct counter *c, const struct wave *wave)
{
    const struct skl_plan *plan = c->plan;
    int nr = plan->kernels->nr, at = 0;
    int64_t ways = plan->fine ? plan->fine : 1;
    double score, rows, columns;
    entries_of(c->w, &score, &rows, &columns);
    add_phase(c, at++, "pack", wave, (struct cut){.into = PANELS}, nr * score * PACK);
    if (plan->keeps_heads & 1 << !c->w->student) {
        const struct skl_work_side *t = &c->w->side[!c->w->student];
        double heads = (double)t->members, of_heads = (double)skl_entries(t);
        add_phase(c, at++, "heads", wave, (struct cut){.into = CHUNKS, .ways = 1}, of_heads + heads * KEEP);
        add_phase(c, at++, "sums", wave, (struct cut){.into = PANELS}, nr * heads * (double)plan->tiles * MIX);
        score += heads * MIX - of_heads;
    }
    double finish = nr * (FINISH_ROW + FINISH_CHUNK * (double)plan->chunks);
    if (plan->call != SKL_CALL_BACKWARD) {
        add_phase(c, at++, "sweep", wave, (struct cut){.into = CHUNKS, .ways = ways}, score + PUSH);
        add_phase(c, at++, "finish", wave, (struct cut){.into = PANELS}, finish);
    }
    if (plan->second_sweep) {
        double again = plan->recompute || !plan->kept_tiles ? score : 0;
        add_phase(c, at++, "second sweep", wave, (struct cut){.into = CHUNKS, .ways = ways}, again + SUM);
        add_phase(c, at++, "finish", wave, (struct cut){.into = PANELS}, finish);
    }
    if (c->w->grads)
        add_grads(c, at, wave);
}

/* Threads that work alone: all of a group is one task. */
static void add_groups(struct counter *c)
{
    const struct skl_plan *plan = c->plan;
    double score, rows, columns, seen = 0, n = (double)c->rows;
    entries_of(c->w, &score, &rows, &columns);
    for (int64_t k = 0; k * plan->block_rows < c->rows; k++) {
        struct seen b;
        see(c, k, &b);
        seen += scores(c, &b, 0, b.panels, 0, b.tiles);
    }
    double each = seen * (score + PUSH + rows + columns + (c->w->grads ? DZ : 0)) +
                  n * (FINISH_ROW + score * PACK + rows * WRITE);
    struct wave all = {.blocks = 1, .times = 1, .block = {{.panels = plan->groups}}};
    add_phase(c, 0, "groups", &all, (struct cut){.into = PANELS}, each * (double)plan->group);
}

/* ------------------------------------------------------------------------------------------------- waves --- */

/* 'n' blocks at once, the first of them the k-th of a segment, the others 'step' further each. Waves that are alike and
 * come one after the other are counted together. */
static void put_wave(struct counter *c, int64_t n, int64_t k, int64_t step, double times)
{
    struct wave *wave = &c->next;
    int64_t of_segment = (c->rows + c->plan->block_rows - 1) / c->plan->block_rows;
    memset(wave, 0, sizeof *wave);
    wave->blocks = n;
    for (int64_t i = 0; i < n; i++) {
        if (i && !step)
            wave->block[i] = wave->block[0];
        else
            see(c, (k + i * step) % of_segment, &wave->block[i]);
        wave->block[i].chunks = skl_chunks_of(c->plan, n, wave->block[i].tiles);
    }
    wave->times = c->wave.times;
    int same = memcmp(wave, &c->wave, sizeof *wave) == 0;
    if (!same) {
        add_wave(c, &c->wave);
        c->wave = *wave, c->wave.times = 0;
    }
    c->wave.times += times;
}

int skl_count_phases(const struct skl_work *w, const struct skl_plan *plan, struct skl_phase phases[SKL_PHASES_MAX])
{
    static struct counter c; /* 100 KiB */
    memset(&c, 0, sizeof c);
    c.w = w, c.plan = plan, c.phases = phases;
    find_rows(&c);
    if (plan->alone) {
        add_groups(&c);
        return c.n;
    }
    int64_t of_segment = (c.rows + plan->block_rows - 1) / plan->block_rows, blocks = w->segments * of_segment;
    for (int64_t k = 0; !plan->own_columns && k < blocks; k += plan->blocks)
        put_wave(&c, least(plan->blocks, blocks - k), k, 1, 1);
    /* Groups side by side, the blocks of each one after the other; then the groups that are left. */
    int64_t whole = plan->own_columns ? plan->groups / plan->blocks : 0, left = plan->groups % plan->blocks;
    for (int64_t k = 0; whole && k < of_segment; k++) put_wave(&c, plan->blocks, k, 0, (double)(whole * plan->group));
    for (int64_t k = 0; plan->own_columns && left && k < of_segment; k++) put_wave(&c, left, k, 0, (double)plan->group);
    add_wave(&c, &c.wave);
    return c.n;
}

double skl_efficiency(const struct skl_plan *plan, const struct skl_phase *phases, int n)
{
    double work = 0, longest = 0;
    for (int i = 0; i < n; i++) work += phases[i].work, longest += phases[i].longest;
    return longest > 0 ? work / (plan->threads * longest) : 1;
}
