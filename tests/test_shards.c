/* SPDX-License-Identifier: Apache-2.0
 *
 * Shards of the columns that meet once a block of rows: value, rows and gradients are those of one call, at its own
 * bounds; the same bits on every shard and for any number of threads; as many meetings on every shard, whatever it
 * holds. And what happens when one of them fails, and what the border refuses.
 */
#include "shards.h"

static int64_t exchanges_of(const struct kit_fixture *f, int64_t rows)
{
    int64_t all = kit_case_rows(&f->c), same_b = f->c.use == SKL_ATTENTION ? f->c.rows : all;
    int64_t blocks = same_b ? all / same_b * ((same_b + rows - 1) / rows) : 0;
    return blocks * kit_divergences[f->c.divergence].sweeps;
}

static int same_bits(const struct skl_tensor *x, const struct skl_tensor *y)
{
    int same = 1;
    for (int64_t i = 0; i < kit_count(x); i++) {
        double a = kit_get(x, i), b = kit_get(y, i);
        same &= a == b || (isnan(a) && isnan(b));
    }
    return same;
}

/* The first shard's rows to where the fixture compares them; the parts of a's gradients are added up. */
static void check_results(struct kit_fixture *f, struct shard *shards, int n)
{
    struct kit_outcome o = kit_no_outcome();
    struct skl_outputs whole = kit_asked(f, 1, shards->call == SKL_CALL_VALUE ? 0 : KIT_GRAD_ALL);
    for (int k = 0; k < KIT_RESULTS; k++) {
        struct kit_tensor *own = &shards[0].own[k];
        if (!own->t.data)
            continue;
        if (k < KIT_FIRST_GRADIENT) {
            for (int64_t i = 0; i < kit_count(&own->t); i++) kit_set(&f->out[k].t, i, kit_get(&own->t, i));
            for (int r = 1; r < n; r++)
                CHECK(same_bits(&own->t, &shards[r].own[k].t), "shard %d has another %s", r, kit_results[k].name);
            continue;
        }
        struct kit_total total = kit_new_total(f, k);
        for (int r = 0; r < n; r++) {
            o.of[k].spilt |= !kit_take(&shards[r].own[k], f->got);
            kit_add_part(&f->out[k].t, f->got, &total);
        }
        kit_compare_with(f, k, total.sum, total.slack, &o);
        kit_free_total(&total);
        *kit_slot(&whole, k) = (struct skl_tensor){0};
    }
    f->value = shards[0].value;
    for (int r = 1; r < n; r++)
        CHECK(shards[r].value == f->value || isnan(f->value), "shard %d has another value: %.17g and %.17g", r,
              shards[r].value, f->value);
    kit_compare(f, &whole, &o);
    test_outcome(f, &o, "shards");
}

/* What a shard may choose for itself. */
static void choose(struct shard *s)
{
    if (test_chance(2))
        s->slice.p.workspace_limit = kit_least_limit(&s->slice.p, s->call, &s->out);
    s->slice.p.threads = (int32_t)test_between(1, 3);
}

static void run(struct kit_fixture *f, int n, const int64_t *cut, int64_t rows, enum skl_call call)
{
    struct shard shards[MOST_SHARDS];
    struct meeting m;
    meeting_begin(&m, n);
    shards_begin(f, &m, n, cut, rows, call, shards);
    for (int k = 0; k < n; k++) choose(&shards[k]);
    shards_run(shards, n);
    int right = 1;
    for (int k = 0; k < n; k++) {
        right &= CHECK(shards[k].status == SKL_OK, "shard %d of columns %d..%d gave %s", k, (int)cut[k],
                       (int)cut[k + 1] - 1, shards[k].sentence);
        CHECK(!shards[k].uneven, "shard %d brought another number of states", k);
        CHECK(shards[k].exchanges == exchanges_of(f, rows ? rows : 512), "shard %d met %d times, not %d", k,
              (int)shards[k].exchanges, (int)exchanges_of(f, rows ? rows : 512));
        CHECK(shards[k].sent == kit_case_rows(&f->c) * kit_divergences[f->c.divergence].sweeps,
              "shard %d sent %d states", k, (int)shards[k].sent);
    }
    if (right)
        check_results(f, shards, n);
    shards_end(f, shards, n);
    meeting_end(&m);
}

/* 1 to 4 shards, some of them empty. */
static int random_cut(const struct kit_fixture *f, int64_t cut[MOST_SHARDS + 1])
{
    int n = (int)test_between(1, MOST_SHARDS);
    cut[0] = 0, cut[n] = f->c.cols;
    for (int k = 1; k < n; k++) cut[k] = test_between(cut[k - 1], f->c.cols);
    return n;
}

static void random_cases(int count)
{
    static const int64_t rows[] = {0, 1, 5, 16, 50, 200, 16384};
    for (int i = 0; i < count; i++) {
        struct kit_case c = test_random_case();
        struct kit_fixture f;
        char text[512];
        int64_t cut[MOST_SHARDS + 1];
        kit_shrink(&c, 2e6);
        c.support = c.support_block = 0; /* shards take no lists */
        test_build(&f, &c);
        kit_expect(&f);
        kit_describe(&c, text, sizeof text);
        int n = random_cut(&f, cut);
        int64_t each = PICK(rows);
        test_context("%d shards, %d rows an exchange: %s", n, (int)each, text);
        run(&f, n, cut, each, SKL_CALL_VALUE_AND_GRAD);
        run(&f, n, cut, each, SKL_CALL_VALUE);
        test_destroy(&f);
    }
}

/* Every divergence, in both uses, with short and long vectors, on even, uneven and empty shards. */
static void every_divergence(void)
{
    static const int64_t cuts[][MOST_SHARDS + 1] = {
        {0, 150, 300, 450, 601}, {0, 1, 1, 400, 601}, {0, 0, 601, 601, 601}};
    for (int divergence = 0; divergence < KIT_DIVERGENCE_COUNT; divergence++)
        for (int use = 0; use < 2; use++)
            for (int i = 0; i < COUNT(cuts); i++) {
                struct kit_case c = use == SKL_ATTENTION ? kit_attention_case(70, 601, 32)
                                                         : kit_linear_case(70, 601, i == 1 ? 700 : 48);
                struct kit_fixture f;
                c.causal = use == SKL_ATTENTION && i == 0;
                c.weights = i == 2 ? KIT_SOME_ZERO : KIT_UNWEIGHTED;
                kit_set_divergence(&c, divergence);
                test_build(&f, &c);
                kit_expect(&f);
                test_context("%s, use %d, cut %d", kit_divergence_names[divergence], use, i);
                run(&f, 4, cuts[i], 32, SKL_CALL_VALUE_AND_GRAD);
                test_destroy(&f);
            }
}

/* A block of rows without weight between others: the sums of a 16-bit gradient of b go on over it. */
static void blocks_without_weight(void)
{
    struct kit_case c = kit_linear_case(64, 300, 32);
    struct kit_fixture f;
    int64_t cut[4] = {0, 100, 250, 300};
    c.dtype[S] = c.dtype[T] = SKL_BF16, c.own = 1, c.weights = KIT_POSITIVE;
    test_build(&f, &c);
    for (int64_t i = 16; i < 32; i++) kit_set(&f.p.weight, i, 0);
    f.checksum = kit_checksum(&f);
    kit_expect(&f);
    test_context("a block of rows without weight");
    run(&f, 3, cut, 16, SKL_CALL_VALUE_AND_GRAD);
    test_destroy(&f);
}

/* Four products where the logits are kept, six where they pass the limit: the bytes tell. */
static void keeps_logits(void)
{
    struct kit_case c = kit_linear_case(64, 1000, 32);
    struct kit_fixture f;
    struct shard shards[1];
    struct meeting m;
    int64_t cut[2] = {0, 1000};
    size_t kept, least;
    test_build(&f, &c);
    meeting_begin(&m, 1);
    shards_begin(&f, &m, 1, cut, 64, SKL_CALL_VALUE_AND_GRAD, shards);
    struct skl_problem *p = &shards[0].slice.p;
    CHECK_STATUS(skl_workspace_size(SKL_CALL_VALUE_AND_GRAD, p, &shards[0].out, &kept), SKL_OK);
    least = kit_least_limit(p, SKL_CALL_VALUE_AND_GRAD, &shards[0].out);
    CHECK(kept >= 2 * 64 * 1000 * sizeof(float), "%zu bytes do not hold the logits", kept);
    CHECK(least < kept - 64 * 1000 * sizeof(float), "the least is %zu of %zu bytes", least, kept);
    p->workspace_limit = least - 1;
    CHECK_STATUS(skl_value_and_grad(p, &shards[0].out), SKL_BAD_ARGUMENT);
    CHECK(shards[0].exchanges == 0, "a call that was refused met the others");
    shards_end(&f, shards, 1);
    meeting_end(&m);
    test_destroy(&f);
}

/* Identical sides: exactly 0, on every shard. */
static void exact_zeros(void)
{
    for (int divergence = 0; divergence < KIT_DIVERGENCE_COUNT; divergence++) {
        struct kit_case c = kit_linear_case(40, 500, 24);
        struct kit_fixture f;
        struct shard shards[3];
        struct meeting m;
        int64_t cut[4] = {0, 133, 133, 500};
        kit_set_divergence(&c, divergence);
        if (c.divergence == SKL_ALPHA_BETA)
            c.alpha = c.beta; /* others have a sum of powers to take off, in f32 */
        test_build(&f, &c);
        f.p.t = f.p.s;
        test_context("identical sides, %s", kit_divergence_names[divergence]);
        meeting_begin(&m, 3);
        shards_begin(&f, &m, 3, cut, 16, SKL_CALL_VALUE_AND_GRAD, shards);
        shards_run(shards, 3);
        for (int k = 0; k < 3; k++) {
            const struct skl_tensor *da = &shards[k].own[KIT_A_S].t;
            double largest = 0;
            CHECK(shards[k].status == SKL_OK, "%s", shards[k].sentence);
            CHECK(shards[k].value == 0, "value %g", shards[k].value);
            for (int64_t i = 0; i < kit_count(da); i++) {
                double x = fabs(kit_get(da, i));
                largest = x <= largest ? largest : x;
            }
            CHECK(largest == 0, "gradient %g", largest);
        }
        shards_end(&f, shards, 3);
        meeting_end(&m);
        test_destroy(&f);
    }
}

/* A row with a NaN in one shard is NaN on all of them, and no other row is. */
static void nan_contained(void)
{
    struct kit_case c = kit_linear_case(40, 300, 24);
    struct kit_fixture f;
    struct shard shards[3];
    struct meeting m;
    int64_t cut[4] = {0, 100, 200, 300};
    test_build(&f, &c);
    kit_set(&f.p.s.a, 7 * 24 + 3, NAN);
    test_context("NaN in a row");
    meeting_begin(&m, 3);
    shards_begin(&f, &m, 3, cut, 16, SKL_CALL_VALUE_AND_GRAD, shards);
    shards_run(shards, 3);
    for (int k = 0; k < 3; k++)
        for (int64_t i = 0; i < 40; i++) {
            CHECK(isnan(kit_get(&shards[k].own[KIT_LOSS].t, i)) == (i == 7), "loss of row %d", (int)i);
            CHECK(isnan(kit_get(&shards[k].own[KIT_A_S].t, i * 24)) == (i == 7), "gradient of row %d", (int)i);
        }
    shards_end(&f, shards, 3);
    meeting_end(&m);
    kit_set(&f.p.s.a, 7 * 24 + 3, 0);
    f.checksum = kit_checksum(&f);
    test_destroy(&f);
}

/* The bits of one thread for any number of them, from run to run. */
static void any_threads(void)
{
    struct kit_case c = kit_linear_case(150, 3000, 64);
    struct kit_fixture f;
    int64_t cut[4] = {0, 1700, 1700, 3000};
    double value = NAN, *da = kit_doubles(150 * 64);
    kit_set_divergence(&c, SKL_JSD);
    test_build(&f, &c);
    test_context("threads");
    for (int threads = 1; threads <= 4; threads++) {
        struct shard shards[3];
        struct meeting m;
        meeting_begin(&m, 3);
        shards_begin(&f, &m, 3, cut, 64, SKL_CALL_VALUE_AND_GRAD, shards);
        for (int k = 0; k < 3; k++) shards[k].slice.p.threads = threads;
        shards_run(shards, 3);
        value = threads == 1 ? shards[0].value : value;
        CHECK(shards[2].value == value, "%d threads: value %.17g, not %.17g", threads, shards[2].value, value);
        for (int64_t i = 0; i < 150 * 64; i++) {
            double got = kit_get(&shards[0].own[KIT_A_S].t, i);
            da[i] = threads == 1 ? got : da[i];
            if (!CHECK(got == da[i], "%d threads: gradient %d", threads, (int)i))
                break;
        }
        shards_end(&f, shards, 3);
        meeting_end(&m);
    }
    free(da);
    test_destroy(&f);
}

/* A callback that refuses, in each of the meetings: that shard's call ends with what it said, the others' with
 * theirs. */
static void failing_callback(void)
{
    struct kit_case c = kit_linear_case(60, 400, 32);
    struct kit_fixture f;
    int64_t cut[4] = {0, 100, 250, 400};
    kit_set_divergence(&c, SKL_JSD);
    test_build(&f, &c);
    for (int64_t at = 0; at < 6; at++) {
        struct shard shards[3];
        struct meeting m;
        test_context("the callback fails at %d", (int)at);
        meeting_begin(&m, 3);
        shards_begin(&f, &m, 3, cut, 20, SKL_CALL_VALUE_AND_GRAD, shards);
        for (int k = 0; k < 3; k++) shards[k].slice.p.threads = 2;
        shards[1].fails_at = at;
        shards_run(shards, 3);
        CHECK(shards[1].status == SKL_CANCELLED && strstr(shards[1].sentence, "shard.exchange returned 7"), "%s (%s)",
              skl_status_string(shards[1].status), shards[1].sentence);
        for (int k = 0; k < 3; k++) {
            CHECK(shards[k].status == SKL_CANCELLED, "shard %d: %s", k, skl_status_string(shards[k].status));
            CHECK(shards[k].exchanges <= at + 2, "shard %d was called again", k);
            CHECK(isnan(shards[k].value), "shard %d has a value", k);
        }
        shards_end(&f, shards, 3);
        meeting_end(&m);
    }
    test_destroy(&f);
}

static int stop(void *data, double fraction)
{
    (void)data, (void)fraction;
    return 1;
}

static void refused(enum skl_status got, enum skl_status want, const char *words)
{
    CHECK(got == want && strstr(skl_last_error(), words), "gave \"%s\" (%s), expected \"%s\"", skl_status_string(got),
          skl_last_error(), words);
}

static void border(void)
{
    static float a[6], b[10], rows[3];
    static int32_t ids[3];
    struct skl_tensor x = skl_matrix(SKL_F32, a, 3, 2), w = skl_matrix(SKL_F32, b, 5, 2);
    struct skl_problem p = skl_linear(x, w, x, w), q;
    struct shard s = {.fails_at = 0};
    struct skl_shard link = {sizeof link, meet, &s, 0, 1, 6}, bad;
    struct skl_labels labels = {sizeof labels, skl_vector(SKL_I32, ids, 3), 1, 1, 0, -1, 0, 0};
    struct skl_outputs out = skl_no_outputs(), saved = out;
    struct skl_state states[3];
    double value;
    out.value = &value;
    saved.lse_s = saved.lse_t = skl_vector(SKL_F32, rows, 3);
    test_context("border");
    p.shard = &bad;
    bad = link, bad.exchange = NULL;
    refused(skl_value(&p, &out), SKL_BAD_ARGUMENT, "shard.exchange = NULL");
    bad = link, bad.rows = -1;
    refused(skl_value(&p, &out), SKL_BAD_ARGUMENT, "shard.rows = -1");
    bad = link, bad.rows = 16385;
    refused(skl_value(&p, &out), SKL_BAD_ARGUMENT, "shard.rows = 16385");
    bad = link, bad.struct_size = 3;
    refused(skl_value(&p, &out), SKL_BAD_ARGUMENT, "shard.struct_size = 3");
    bad = link;
    q = p, q.progress = stop;
    refused(skl_value(&q, &out), SKL_BAD_ARGUMENT, "progress");
    q = p, q.use = SKL_ATTENTION, q.lse_t = skl_heads(SKL_F32, rows, 1, 1, 1, 3), q.lse_t.ndim = 3;
    q.s.a = q.t.a = skl_heads(SKL_F32, a, 1, 1, 3, 2), q.s.b = q.t.b = skl_heads(SKL_F32, b, 1, 1, 5, 2);
    q.lse_t.shape[2] = 3, q.lse_t.stride[2] = 1;
    refused(skl_value(&q, &out), SKL_BAD_ARGUMENT, "lse_t");
    q = p, q.labels = &labels;
    bad.first = -1;
    refused(skl_value(&q, &out), SKL_BAD_ARGUMENT, "shard.first = -1");
    bad.first = 2;
    refused(skl_value(&q, &out), SKL_BAD_ARGUMENT, "shard.columns = 6");
    bad = link, ids[1] = 6;
    refused(skl_value(&q, &out), SKL_BAD_ARGUMENT, "labels.ids[1] = 6: it must be a column, 0 to 5");
    ids[1] = 0;
    q = p, q.s.a = q.t.a = skl_on_cuda(x, 0), q.s.b = q.t.b = skl_on_cuda(w, 0);
    refused(skl_value(&q, &out), SKL_UNSUPPORTED, "shard on CUDA");
    refused(skl_partial(&p, NULL, states), SKL_BAD_ARGUMENT, "with partial rows: they leave the exchange to you");
    refused(skl_finish(&p, states, &out), SKL_BAD_ARGUMENT, "with partial rows: they leave the exchange to you");
    int32_t lo[3] = {0, 0, 0};
    q = p, q.labels = &labels, labels.smoothing = 0.5;
    q.begin = skl_vector(SKL_I32, lo, 3);
    out.value = NULL;
    refused(skl_backward(&q, &saved, &out), SKL_BAD_ARGUMENT, "how many columns a row sees on the other shards");
    out.entropy_s = skl_vector(SKL_F32, rows, 3);
    refused(skl_value(&p, &out), SKL_BAD_ARGUMENT, "out.entropy_s");
    CHECK(s.exchanges == 0, "a call that was refused met the others");
}

int main(void)
{
    test_begin("test_shards");
    border();
    every_divergence();
    exact_zeros();
    nan_contained();
    any_threads();
    keeps_logits();
    blocks_without_weight();
    failing_callback();
    random_cases(test_cases(60, 6));
    return test_end();
}
