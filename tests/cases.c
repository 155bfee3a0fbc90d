/* SPDX-License-Identifier: Apache-2.0 */
#include "cases.h"

#include "../src/cpu/team.h"

const struct kit_memory test_memory = {test_alloc, test_free, NULL};

struct kit_case test_random_case(void)
{
    return kit_random_case(&test_numbers);
}

void test_build(struct kit_fixture *f, const struct kit_case *c)
{
    struct kit_case drawn = *c;
    skl_team_waits = 1;
    if (test_bf16())
        drawn.dtype[S] = drawn.dtype[T] = SKL_BF16;
    if (test_split())
        drawn.dtype[S] = drawn.dtype[T] = SKL_F32;
    kit_build(f, &drawn, &test_memory, &test_numbers);
    f->p.split_f32 = test_split() ? SKL_SPLIT_ALWAYS : SKL_SPLIT_WHERE_FASTER;
    kit_make_room(f);
    f->checksum = kit_checksum(f);
}

void test_destroy(struct kit_fixture *f)
{
    CHECK(kit_checksum(f) == f->checksum, "a call changed its inputs");
    kit_destroy(f);
}

int test_outcome(const struct kit_fixture *f, const struct kit_outcome *outcome, const char *what)
{
    int wrong = !CHECK(outcome->status == SKL_OK, "%s gave \"%s\" (%s)", what, skl_status_string(outcome->status),
                       skl_last_error());
    for (int k = 0; k < KIT_RESULTS; k++) {
        const struct kit_finding *x = &outcome->of[k];
        if (x->used < 0 && !x->spilt)
            continue;
        const struct skl_tensor *t = &f->out[k].t;
        int64_t row = t->shape[t->ndim - 1];
        wrong += !CHECK(!x->spilt, "%s wrote outside of %s", what, kit_results[k].name);
        wrong += !CHECK(x->used <= 1, "%s: %s[%lld, %lld] = %.9g, expected %.9g, off by %.3g, %.3g times its bound",
                        what, kit_results[k].name, (long long)(x->index / row), (long long)(x->index % row), x->got,
                        x->want, fabs(x->got - x->want), x->used);
    }
    const struct kit_finding *v = &outcome->value;
    if (v->used >= 0)
        wrong += !CHECK(v->used <= 1, "%s: value = %.12g, expected %.12g within %.3g", what, v->got, v->want, v->bound);
    return wrong;
}

int test_compare(struct kit_fixture *f, struct skl_outputs *out, const char *what)
{
    struct kit_outcome o = kit_no_outcome();
    kit_compare(f, out, &o);
    return test_outcome(f, &o, what);
}

int test_run(struct kit_fixture *f, enum kit_way way)
{
    struct kit_outcome o = kit_run(f, way);
    return test_outcome(f, &o, kit_way_names[way]);
}

int test_run_slices(struct kit_fixture *f, int64_t n)
{
    struct kit_outcome o = kit_run_slices(f, n);
    return test_outcome(f, &o, kit_way_names[KIT_SLICES]);
}

int test_all_ways(const struct kit_case *c)
{
    static const enum skl_isa isas[] = TEST_ISAS;
    struct kit_fixture f;
    char text[512];
    int wrong = 0;
    test_build(&f, c);
    kit_expect(&f);
    kit_describe(c, text, sizeof text);
    for (int k = 0; k < COUNT(isas); k++) {
        if (!skl_isa_available(isas[k]))
            continue;
        f.p.isa = isas[k];
        test_context("%s: %s", skl_isa_name(isas[k]), text);
        for (int way = 0; way < KIT_WAYS; way++)
            if (way != KIT_SLICES || kit_in_slices(c))
                wrong += test_run(&f, (enum kit_way)way);
    }
    test_destroy(&f);
    test_context("%s", "");
    return wrong;
}

void test_only_sinks(const struct kit_fixture *f)
{
    int64_t heads = f->c.heads, rows = f->c.rows;
    CHECK(f->value == 0, "value %g", f->value);
    for (int64_t row = 0; row < f->c.batch * heads * rows; row++) {
        double sink = kit_get(&f->p.sink_s, row / rows % heads) / f->p.temperature;
        CHECK_NEAR(kit_get(&f->out[KIT_LSE_S].t, row), sink, 1e-6 * (1 + fabs(sink)), "lse_s");
        CHECK(kit_get(&f->out[KIT_SINK_MASS_S].t, row) == 1 && kit_get(&f->out[KIT_SINK_MASS_T].t, row) == 1, "mass");
        CHECK(kit_get(&f->out[KIT_LOSS].t, row) == 0 && kit_get(&f->out[KIT_ENTROPY_S].t, row) == 0, "loss");
    }
    for (int64_t i = 0; i < heads; i++) CHECK(kit_get(&f->out[KIT_SINK_S].t, i) == 0, "gradient of the sink");
    for (int64_t i = 0; i < kit_count(&f->out[KIT_A_S].t); i++)
        if (!CHECK(kit_get(&f->out[KIT_A_S].t, i) == 0, "gradient of a"))
            break;
}

void test_same_bits(const struct kit_case *c)
{
    static const int threads[] = {1, 2, 3, 5};
    double *one[KIT_RESULTS] = {0}, value = 0;
    struct kit_fixture f;
    test_build(&f, c);
    for (int j = 0; j < COUNT(threads); j++) {
        f.p.threads = threads[j];
        struct skl_outputs out = kit_outputs(&f, 1, KIT_GRAD_ALL);
        CHECK(skl_value_and_grad(&f.p, &out) == SKL_OK, "%s", skl_last_error());
        CHECK(j == 0 || memcmp(&f.value, &value, sizeof value) == 0, "%d threads: value", threads[j]);
        value = f.value;
        for (int k = 0; k < KIT_RESULTS; k++) {
            int64_t n = f.out[k].t.data ? kit_count(&f.out[k].t) : 0;
            if (j == 0)
                one[k] = kit_doubles((size_t)n);
            for (int64_t i = 0; i < n; i++) {
                double got = kit_get(&f.out[k].t, i);
                if (j == 0)
                    one[k][i] = got;
                else if (!CHECK(memcmp(&got, &one[k][i], sizeof got) == 0, "%d threads: %s[%lld]", threads[j],
                                kit_results[k].name, (long long)i))
                    break;
            }
        }
    }
    for (int k = 0; k < KIT_RESULTS; k++) free(one[k]);
    test_destroy(&f);
}
