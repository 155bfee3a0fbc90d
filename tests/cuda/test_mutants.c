/* SPDX-License-Identifier: Apache-2.0
 *
 * Are the tests able to see a missing synchronisation? Every bar.sync, cp.async.commit_group and cp.async.wait_group
 * of the PTX is taken out in turn, every wait_group also weakened by one group, and the kernel it stands in must then
 * be reported or give other bits than the whole one, in one of a few schedules. A survivor is either a hole in the
 * tests or an instruction that the kernel does not need.
 *
 * Prints the table of mutants with what killed them. An argument: only the units whose names contain it.
 */
#include "families.h"

#include "../../kit/listed.h"
#include "../../kit/topk.h"
#include "../indexers.h"

#include <ctype.h>

/* ------------------------------------------------------------------------------------------------- subjects --- */

/* A call that runs a kernel, small, but with three tiles at least of what it streams, so that every stage is used
 * again. */
struct subject {
    int there;
    struct kit_fixture f;
    enum skl_call call;
    unsigned grads;
    struct skl_outputs saved;
    unsigned char *want[KIT_RESULTS]; /* what the whole kernel writes */
    double value;
    uint64_t left;            /* copies that the whole kernel leaves behind */
    struct kit_listed *lists; /* of kernels of listed teachers, instead of f: judged by their definition */
    int right;
    struct kit_topk *largest; /* of kernels that list the largest scores, instead of f: judged by their definition */
    struct trial *index;      /* of kernels of keys: an indexer, whose results are in the arrays of indexers.h */
    float *wrote;             /* ... what the whole kernel wrote there: da, db, dw */
};

static const struct emu_options schedules[] = {{.order = EMU_FORWARD, .copies = EMU_LATE},
                                               {.order = EMU_REVERSE, .copies = EMU_LATE},
                                               {.order = EMU_FORWARD, .copies = EMU_EARLY},
                                               {.order = EMU_REVERSE, .copies = EMU_EARLY},
                                               {.order = EMU_RANDOM, .copies = EMU_SOMETIMES, .seed = 1},
                                               {.order = EMU_RANDOM, .copies = EMU_SOMETIMES, .seed = 2}};
static const char *const schedule_name[] = {"forward, late",  "reverse, late", "forward, early",
                                            "reverse, early", "random 1",      "random 2"};

static struct skl_outputs run_lists(struct subject *s, const struct emu_options *options)
{
    test_device_reset();
    test_device.options = *options;
    test_device.options.instructions = 20000000;
    struct kit_listed_outcome o = kit_run_listed(s->lists, KIT_LISTED_TOGETHER);
    s->right = kit_listed_right(&o);
    return skl_no_outputs();
}

static struct skl_outputs run_largest(struct subject *s, const struct emu_options *options)
{
    test_device_reset();
    test_device.options = *options;
    test_device.options.instructions = 20000000;
    struct kit_topk_outcome o = kit_run_topk(s->largest);
    s->right = kit_topk_right(&o);
    return skl_no_outputs();
}

static struct skl_outputs run_index(struct subject *s, const struct emu_options *options)
{
    struct skl_outputs out = outputs(s->index, NULL);
    struct skl_tensor *each[] = {&out.loss, &out.s.a, &out.s.b, &out.s.bias};
    for (int i = 0; i < COUNT(each); i++) each[i]->device = SKL_CUDA;
    test_device_reset();
    test_device.options = *options;
    test_device.options.instructions = 20000000;
    CHECK_STATUS(skl_value_and_grad(&s->index->p, &out), SKL_OK);
    size_t n = COUNT(da), m = COUNT(dw);
    s->right = s->wrote && !memcmp(s->wrote, da, sizeof da) && !memcmp(s->wrote + n, db, sizeof db) &&
               !memcmp(s->wrote + 2 * n, dw, sizeof dw) && !memcmp(s->wrote + 2 * n + m, loss, sizeof loss);
    return skl_no_outputs();
}

static struct skl_outputs run(struct subject *s, const struct emu_options *options)
{
    if (s->lists)
        return run_lists(s, options);
    if (s->largest)
        return run_largest(s, options);
    if (s->index)
        return run_index(s, options);
    struct skl_outputs out = kit_outputs(&s->f, 0, s->grads);
    if (s->call != SKL_CALL_BACKWARD) {
        struct skl_outputs rows = kit_outputs(&s->f, 1, 0);
        rows.s = out.s, rows.t = out.t, rows.grad_sink_s = out.grad_sink_s, rows.grad_sink_t = out.grad_sink_t;
        out = rows;
    }
    test_device_reset();
    test_device.options = *options;
    test_device.options.instructions = 20000000; /* no mutant shall run for ever */
    CHECK_STATUS(s->call == SKL_CALL_VALUE            ? skl_value(&s->f.p, &out)
                 : s->call == SKL_CALL_VALUE_AND_GRAD ? skl_value_and_grad(&s->f.p, &out)
                                                      : skl_backward(&s->f.p, &s->saved, &out),
                 SKL_OK);
    return out;
}

/* Of 400 columns 0 .. 199 for the rows of the first head, 150 .. 299 for those of the second: there are tiles of
 * columns that both see, that only the second sees, that only the first sees, after which copies may be on their way,
 * and that nobody sees. */
static void see_apart(struct kit_fixture *f)
{
    for (int64_t row = 0; row < 2 * f->c.rows; row++) {
        int second = row >= f->c.rows;
        kit_set(&f->in[KIT_INPUT_BEGIN].t, row, second ? 150 : 0),
            kit_set(&f->in[KIT_INPUT_END].t, row, second ? 300 : 200);
    }
    f->checksum = kit_checksum(f);
}

/* The kernel's name says what runs it: forward_bf16_64_jsd, rows_f16_128_pj, sum_columns. Variants of those that go
 * through heads: one head for each of b's, or two. */
enum { VARIANTS = 2 };

static int of_lists(const char *kernel)
{
    return strcmp(strrchr(kernel, '_'), "_rest") == 0 || strstr(kernel, "list") != NULL;
}

/* Gradients of everything. Sweeps of the rest go through three tiles. The kernels of lists get lists with more entries
 * than a block has threads, at another temperature than they were made at, then all of whose mass is listed; list_db
 * more rows than it has threads, since it comes to the next ones only then. */
static void begin_lists(struct subject *s, const char *kernel, int variant)
{
    int stream = strncmp(kernel, "stream_", 7) == 0, sweep = stream || strncmp(kernel, "plain_", 6) == 0;
    int db = strcmp(kernel, "list_db") == 0;
    struct kit_listed_case c = {.rows = 4, .cols = 300, .dim = 8, .k = 280, .bias = 1, .mean = 1};
    if (sweep)
        c.rows = 70, c.cols = stream ? 300 : 150, c.dim = stream ? 264 : 40, c.k = 9;
    if (db)
        c.rows = 140, c.cols = 40, c.k = 6;
    c.kind = variant || db ? SKL_TAIL_RENORMALISE : SKL_TAIL_BUCKET;
    c.dtype = !stream ? SKL_F32 : strstr(kernel, "_bf16") ? SKL_BF16 : SKL_F16, c.dtype_logprobs = SKL_F32;
    c.scale = c.temperature = 1, c.stored = sweep || db ? 1 : 2;
    s->lists = kit_build_listed(&c, &test_numbers, test_device_memory.device);
    run(s, &schedules[0]);
    CHECK((variant || test_device_ran(kernel)) && s->right, "%s did not run, or gave wrong numbers", kernel);
    test_device_clean(kernel);
    s->left = test_device.total.unwaited_copies, s->there = 1;
}

static int of_largest(const char *kernel)
{
    return strstr(kernel, "pick") != NULL || strstr(kernel, "_scores") != NULL;
}

/* Small whole numbers, most of which are equal, in the one right order. Three tiles of columns; more of them than a row
 * has room for, and a list that is longer than a block. */
static void begin_largest(struct subject *s, const char *kernel, int variant)
{
    int stream = strncmp(kernel, "stream_", 7) == 0, plain = strncmp(kernel, "plain_", 6) == 0;
    int64_t rows = stream || plain ? 70 : 3, cols = stream || plain ? 300 : 1700, dim = stream ? 264 : plain ? 40 : 8;
    struct kit_topk_case c = {.of = kit_linear_case(rows, cols, dim), .k = variant ? 200 : 9, .asked = KIT_TOPK_ALL};
    c.of.dtype[S] = c.of.dtype[T] = !stream ? SKL_F32 : strstr(kernel, "_bf16") ? SKL_BF16 : SKL_F16;
    c.of.place = KIT_ALIGNED, c.whole = 1;
    s->largest = malloc(sizeof *s->largest);
    kit_build_topk(s->largest, &c, &test_device_memory, &test_numbers);
    run(s, &schedules[0]);
    CHECK(test_device_ran(kernel) && s->right, "%s did not run, or gave wrong numbers", kernel);
    test_device_clean(kernel);
    s->left = test_device.total.unwaited_copies, s->there = 1;
}

static int of_indexers(const char *kernel)
{
    return strncmp(kernel, "index_", 6) == 0;
}

static int of_keys(const char *kernel)
{
    return strcmp(kernel, "sort_keys") == 0 || strncmp(kernel, "keys_", 5) == 0 || of_indexers(kernel);
}

/* On tensor cores, with several tiles of columns; of heads of more than one chunk, and of one beside a teacher whose
 * softcap is another way through its products. */
static struct trial tensor_trial(const char *kernel, int variant)
{
    for (;;) {
        struct trial t = build_at(KIT_ALIGNED, 2, variant ? 64 : 72, 136, 2, 1,
                                  strstr(kernel, "_f16") ? SKL_F16 : SKL_BF16, 1, 60);
        t.p.t.softcap = variant ? 9 : 0;
        if (t.M >= 250 && t.N >= 40)
            return t;
        destroy(&t);
    }
}

/* Lists of more entries than a block has threads; more rows than that, which see everything. Rows have other ranges
 * than their neighbours. */
static struct trial key_trial(int variant)
{
    for (;;) {
        struct trial t = build(2, variant ? 8 : 40, 2, 1, SKL_F32, 1, variant ? 200 : 30);
        if (variant ? t.N >= 140 : t.M >= 150 && t.N >= 10 && t.support.t.shape[2] >= 140) {
            if (variant)
                t.M = t.p.s.b.shape[2] = t.p.t.b.shape[2] = 20;
            else
                list_keys(&t, 0);
            return t;
        }
        destroy(&t);
    }
}

static void begin_index(struct subject *s, const char *kernel, int variant)
{
    static struct trial trials[VARIANTS];
    struct trial *t = &trials[variant];
    if (variant && strcmp(kernel, "keys_columns") != 0 && !of_indexers(kernel))
        return;
    *t = of_indexers(kernel) ? tensor_trial(kernel, variant) : key_trial(variant);
    t->p.causal = !variant;
    struct kit_tensor *each[] = {&t->q, &t->k, &t->w, &t->q_t, &t->k_t, &t->support};
    struct skl_tensor *of[] = {&t->p.s.a, &t->p.s.b, &t->p.s.bias, &t->p.t.a, &t->p.t.b, &t->p.support};
    for (int i = 0; i < COUNT(each); i++) {
        emu_adopt(each[i]->memory.data, each[i]->memory.size), emu_written(each[i]->memory.data, each[i]->memory.size);
        of[i]->device = of[i]->data ? SKL_CUDA : SKL_CPU;
    }
    s->index = t;
    run(s, &schedules[0]);
    CHECK(test_device_ran(kernel), "%s did not run", kernel);
    test_device_clean(kernel);
    s->wrote = malloc(sizeof da + sizeof db + sizeof dw + sizeof loss), s->there = 1;
    s->left = test_device.total.unwaited_copies;
    memcpy(s->wrote, da, sizeof da), memcpy(s->wrote + COUNT(da), db, sizeof db);
    memcpy(s->wrote + 2 * COUNT(da), dw, sizeof dw), memcpy(s->wrote + 2 * COUNT(da) + COUNT(dw), loss, sizeof loss);
}

static void end_index(struct subject *s)
{
    struct trial *t = s->index;
    struct kit_tensor *each[] = {&t->q, &t->k, &t->w, &t->q_t, &t->k_t, &t->support};
    for (int i = 0; i < COUNT(each); i++) emu_release(each[i]->memory.data);
    destroy(t);
    free(s->wrote);
}

static void begin(struct subject *s, const char *kernel, int variant)
{
    const char *last = strrchr(kernel, '_');
    memset(s, 0, sizeof *s);
    if (of_lists(kernel)) {
        begin_lists(s, kernel, variant);
        return;
    }
    if (of_largest(kernel)) {
        begin_largest(s, kernel, variant);
        return;
    }
    if (of_keys(kernel)) {
        begin_index(s, kernel, variant);
        return;
    }
    int by_rows = strncmp(kernel, "rows_", 5) == 0, by_columns = strncmp(kernel, "columns_", 8) == 0;
    int fused = strncmp(kernel, "fused_", 6) == 0, stream = strncmp(kernel, "stream_", 7) == 0;
    int forward = strncmp(kernel, "forward_", 8) == 0, plain = strncmp(kernel, "plain_", 6) == 0;
    int sinks = strstr(kernel, "_sinks") != NULL, mixed = strstr(kernel, "mixed_") != NULL;
    int tensor = by_rows || by_columns || fused || stream || forward || (mixed && !plain), dim = 0;
    if (tensor && !stream && !mixed)
        sscanf(strchr(strchr(kernel, '_') + 1, '_'), "_%d", &dim);
    struct kit_case c = by_rows || by_columns || fused || forward ? kit_attention_case(70, 200, dim)
                        : sinks                                   ? kit_attention_case(70, 150, 40)
                        : mixed                                   ? kit_attention_case(70, 300, plain ? 40 : 136)
                        : stream                                  ? kit_linear_case(70, 300, 264)
                                                                  : kit_linear_case(70, 150, 40);
    c.dtype[S] = c.dtype[T] = !tensor ? SKL_F32 : strstr(kernel, "_bf16") ? SKL_BF16 : SKL_F16;
    c.place = KIT_ALIGNED;
    s->call = SKL_CALL_VALUE;
    c.divergence = strcmp(last, "_jsd") == 0 || strcmp(last, "_pj") == 0 ? SKL_JSD
                   : strstr(kernel, "_second")                           ? SKL_SKEW_FORWARD_KL
                                                                         : SKL_FORWARD_KL;
    c.details = strcmp(last, "_top") == 0, c.mix = mixed ? 2 : 0;
    if (by_columns || fused)
        c.rows = 200, c.cols = 400, c.heads = 2, c.key_heads[S] = variant ? 2 : 1, c.ranges = 1;
    else if (variant && mixed && !plain)
        c.softcap[T] = 9; /* another way through the products */
    else if (variant)
        return;
    if (by_rows || by_columns || fused || strcmp(last, "_dz") == 0) {
        s->call = SKL_CALL_BACKWARD;
        s->grads = by_rows ? KIT_GRAD_A_S : by_columns ? KIT_GRAD_B_S : KIT_GRAD_A_S | KIT_GRAD_B_S;
    }
    if (!tensor && !plain) { /* the small kernels: all of them */
        s->call = SKL_CALL_VALUE_AND_GRAD;
        s->grads = KIT_GRAD_ALL;
        c.rows = 300, c.cols = 20, c.dim[S] = c.dim[T] = 8;
        c.divergence = SKL_JSD, c.weights = KIT_POSITIVE, c.bias[S] = c.bias[T] = !sinks, c.own = 1;
        c.sinks = sinks ? 1 + SKL_F32 : 0;
    }
    c.grads = mixed ? KIT_GRAD_STUDENT : s->grads;
    test_build(&s->f, &c);
    if (c.ranges)
        see_apart(&s->f);
    s->f.p.any_order = fused, s->there = 1;
    test_device_adopt(&s->f);
    if (s->call == SKL_CALL_BACKWARD) { /* what it starts from is not the mutant's */
        s->saved = kit_outputs(&s->f, 1, 0);
        s->saved.value = NULL;
        CHECK_STATUS(skl_value(&s->f.p, &s->saved), SKL_OK);
    }
    run(s, &schedules[0]);
    CHECK(test_device_ran(kernel), "%s did not run", kernel);
    test_device_clean(kernel);
    s->value = s->f.value, s->left = test_device.total.unwaited_copies;
    for (int k = 0; k < KIT_RESULTS; k++)
        if (s->f.out[k].memory.data)
            s->want[k] = memcpy(malloc(s->f.out[k].memory.size), s->f.out[k].memory.data, s->f.out[k].memory.size);
}

static void end(struct subject *s)
{
    if (!s->there)
        return;
    if (s->lists) {
        kit_destroy_listed(s->lists);
        return;
    }
    if (s->largest) {
        kit_destroy_topk(s->largest), free(s->largest);
        return;
    }
    if (s->index) {
        end_index(s);
        return;
    }
    for (int k = 0; k < KIT_RESULTS; k++) free(s->want[k]);
    test_device_release(&s->f);
    test_destroy(&s->f);
}

/* ------------------------------------------------------------------------------------------------- verdicts --- */

/* Kernels with atomics do not repeat the last bits. */
static int same(const struct subject *s, int k)
{
    const struct kit_tensor *t = &s->f.out[k];
    if (!s->f.p.any_order)
        return memcmp(s->want[k], t->memory.data, t->memory.size) == 0;
    struct skl_tensor want = t->t;
    want.data = s->want[k] + ((unsigned char *)t->t.data - t->memory.data);
    double most = 0;
    for (int64_t i = 0; i < kit_count(&want); i++) most = fmax(most, fabs(kit_get(&want, i)));
    for (int64_t i = 0; i < kit_count(&want); i++)
        if (!test_within(kit_get(&t->t, i), kit_get(&want, i), 1e-5 * most))
            return 0;
    return 1;
}

static int has_nan(const struct kit_tensor *t)
{
    for (int64_t i = 0; i < kit_count(&t->t); i++)
        if (isnan(kit_get(&t->t, i)))
            return 1;
    return 0;
}

/* What is wrong with a run, in words; "" if nothing is. */
static void judge(struct subject *s, const struct skl_outputs *out, char text[128])
{
    const struct emu_report *r = &test_device.total;
    const struct {
        int seen;
        const char *name;
    } reported[] = {{r->races > 0, "race"},
                    {r->uninitialised > 0, "not initialised"},
                    {r->out_of_bounds > 0, "out of bounds"},
                    {r->synchronisation > 0, "out of step"},
                    {r->other > 0, "error"},
                    {r->unwaited_copies > s->left, "copies left behind"}};
    int nan = 0, wrong = out->value && memcmp(&s->value, &s->f.value, sizeof s->value) != 0;
    wrong |= (s->lists || s->largest || s->index) && !s->right;
    text[0] = 0;
    for (int i = 0; i < COUNT(reported); i++)
        if (reported[i].seen)
            snprintf(text + strlen(text), 128 - strlen(text), "%s%s", *text ? ", " : "", reported[i].name);
    for (int k = 0; k < KIT_RESULTS; k++)
        if (kit_slot((struct skl_outputs *)out, k)->data)
            wrong |= !same(s, k), nan |= has_nan(&s->f.out[k]);
    if (nan || wrong)
        snprintf(text + strlen(text), 128 - strlen(text), "%s%s", *text ? ", " : "", nan ? "NaN" : "wrong");
}

/* -------------------------------------------------------------------------------------------------- mutants --- */

struct tally {
    int mutants, survivors, by_numbers;
};

/* One mutant: the text has 'instead' at 'at', for as long as what was there. */
static void try_mutant(const char *unit, const char *kernel, struct subject *s, char *text, char *at,
                       const char *instead, int line, const char *what, struct tally *tally)
{
    char old[64], killer[128] = "";
    size_t n = strlen(instead);
    int k = 0; /* schedules of one variant, then of the next */
    memcpy(old, at, n);
    memcpy(at, instead, n); /* NOLINT(bugprone-not-null-terminated-result): in the middle of a text */
    CHECK(test_device_replace(unit, text), "%s line %d, %s: %s", unit, line, what, emu_message());
    for (; k < VARIANTS * COUNT(schedules) && !*killer; k++) {
        struct subject *v = s + k / COUNT(schedules);
        if (!v->there)
            continue;
        struct skl_outputs out = run(v, &schedules[k % COUNT(schedules)]);
        judge(v, &out, killer);
    }
    memcpy(at, old, n);
    test_device_replace(unit, NULL);
    printf("%-22s %6d  %-34s %-14s %s\n", kernel, line, what, *killer ? schedule_name[(k - 1) % COUNT(schedules)] : "",
           *killer ? killer : "SURVIVES");
    CHECK(*killer, "%s, line %d of %s.ptx: nothing tells %s from the whole kernel", kernel, line, unit, what);
    tally->mutants++, tally->survivors += !*killer;
    tally->by_numbers += strstr(killer, "NaN") || strstr(killer, "wrong");
}

/* Not bar.warp.sync: no kernel has memory of a warp's own, so it only makes lanes meet, as they always do in the
 * emulator. sass/convergence.py looks at that in the machine code. */
static const char *const synchronising[] = {"bar.sync", "barrier.sync", "cp.async.commit_group", "cp.async.wait_group",
                                            "cp.async.wait_all"};

/* The instruction of a line that begins with one of the names, or NULL. */
static char *instruction(char *line)
{
    while (*line == ' ' || *line == '\t') line++;
    for (int i = 0; i < COUNT(synchronising); i++)
        if (strncmp(line, synchronising[i], strlen(synchronising[i])) == 0)
            return line;
    return NULL;
}

static void mutate(const char *unit, const char *kernel, struct subject *s, char *text, char *at, int line,
                   struct tally *tally)
{
    char blank[64], words[64], what[96];
    size_t n = strcspn(at, ";\n") + 1, k = 0;
    CHECK(n < sizeof blank && at[n - 1] == ';', "%s, line %d is not one instruction", unit, line);
    memset(blank, ' ', n);
    blank[n] = 0;
    for (size_t i = 0; i + 1 < n; i++)
        if (!(isspace((unsigned char)at[i]) && k && words[k - 1] == ' '))
            words[k++] = isspace((unsigned char)at[i]) ? ' ' : at[i];
    words[k] = 0;
    snprintf(what, sizeof what, "no %s", words);
    try_mutant(unit, kernel, s, text, at, blank, line, what, tally);
    if (strncmp(words, "cp.async.wait_group", 19) != 0)
        return;
    char *number = at + strcspn(at, "0123456789"), more[2] = {(char)(*number + 1), 0};
    CHECK(*number >= '0' && *number < '9', "%s, line %d waits for no number", unit, line);
    snprintf(what, sizeof what, "%s + 1", words);
    try_mutant(unit, kernel, s, text, number, more, line, what, tally);
}

static struct tally mutate_unit(const char *unit)
{
    struct tally tally = {0};
    struct subject s[VARIANTS];
    const char *original = test_device_ptx(unit);
    char kernel[64] = "";
    int line = 1, ready = 0;
    if (!CHECK(original != NULL, "no PTX of %s", unit) || !original)
        return tally;
    char *text = strdup(original);
    for (char *at = text; *at; line++) {
        char *found = instruction(at), *next = strchr(at, '\n');
        if (sscanf(at, ".visible .entry skl_%63[a-z0-9_]", kernel) == 1 && ready)
            end(&s[0]), end(&s[1]), ready = 0;
        if (found && !ready)
            begin(&s[0], kernel, 0), begin(&s[1], kernel, 1), ready = 1;
        if (found)
            mutate(unit, kernel, s, text, found, line, &tally);
        at = next ? next + 1 : at + strlen(at);
    }
    if (ready)
        end(&s[0]), end(&s[1]);
    free(text);
    return tally;
}

int main(int argc, char **argv)
{
    struct tally all = {0};
    test_begin("test_mutants");
    test_device_begin();
    emu_adopt(loss, sizeof loss), emu_adopt(da, sizeof da), emu_adopt(db, sizeof db), emu_adopt(dw, sizeof dw);
    printf("%-22s %6s  %-34s %-14s %s\n", "kernel", "line", "mutant", "schedule", "killed by");
    char unit[48], last[48] = "";
    for (int i = 0; i < test_list_count; i++) {
        const struct test_listed *k = &test_list[i];
        test_unit_name(k, unit);
        if (strcmp(unit, last) == 0)
            continue;
        memcpy(last, unit, sizeof last);
        if (argc > 1 && !strstr(unit, argv[1]))
            continue;
        double start = test_cpu_seconds();
        struct tally t = mutate_unit(unit);
        printf("%s: %d mutants, %d survive, %d seen in the numbers, %.1f s\n", unit, t.mutants, t.survivors,
               t.by_numbers, test_cpu_seconds() - start);
        CHECK(t.mutants > 0 || !strstr(test_device_ptx(unit), ".shared"), "%s has nothing to take out", unit);
        all.mutants += t.mutants, all.survivors += t.survivors, all.by_numbers += t.by_numbers;
    }
    printf("%d mutants, %d survive, %d seen in the numbers\n", all.mutants, all.survivors, all.by_numbers);
    return test_end();
}
