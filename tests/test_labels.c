/* SPDX-License-Identifier: Apache-2.0
 * Cross-entropy beside a divergence and without a teacher, and what rows tell, against the kit's reference in every way
 * to run; and what the border refuses of labels and of lists of columns. */
#include "cases.h"

enum { ROWS = 37, COLUMNS = 413, IGNORED = -100 };

/* Everything that labels and details are made of, at a temperature of their own and at that of the divergence; rows of
 * more than one block of dim, where scores are complete only after several products. */
static void compare(int dim, int divergence, double temperature, int alone)
{
    struct kit_case c = kit_linear_case(ROWS, COLUMNS, dim);
    kit_set_divergence(&c, divergence);
    c.temperature = temperature, c.details = 1, c.mass_ids = 7;
    c.labels = SKL_I64, c.label_weight = 0.7, c.kl_weight = 0.4, c.alone = alone;
    if (alone)
        c.smoothing = 0.2, c.z_loss = 1e-2, c.grads = KIT_GRAD_STUDENT;
    test_all_ways(&c);
}

static void compare_random(int cases)
{
    for (int k = 0; k < cases; k++) {
        struct kit_case c = kit_random_labels(&test_numbers);
        kit_shrink(&c, 2e5);
        test_all_ways(&c);
    }
}

/* A tie is the first column's, in tiles of their own too. */
static void ties(void)
{
    static float a[4] = {1, 1, 1, 1}, b[COLUMNS * 2];
    int32_t top[2];
    b[2 * 200] = b[2 * 201] = b[2 * 400] = 1;
    struct skl_tensor x = skl_matrix(SKL_F32, a, 2, 2), w = skl_matrix(SKL_F32, b, COLUMNS, 2);
    struct skl_problem p = skl_linear(x, w, x, w);
    struct skl_outputs out = skl_no_outputs();
    out.top1_s = skl_vector(SKL_I32, top, 2);
    CHECK_STATUS(skl_value(&p, &out), SKL_OK);
    CHECK(top[0] == 200 && top[1] == 200, "the largest is %d, %d", top[0], top[1]);
}

static void fill_ids(int32_t *id)
{
    for (int i = 0; i < ROWS; i++) id[i] = i % 5 == 2 ? IGNORED : (int32_t)test_between(0, COLUMNS - 1);
}

static void refused(const char *sentence, const struct skl_problem *p, const struct skl_outputs *out)
{
    CHECK_STATUS(skl_value(p, out), SKL_BAD_ARGUMENT);
    CHECK(strstr(skl_last_error(), sentence), "\"%s\" does not say \"%s\"", skl_last_error(), sentence);
}

static void border(void)
{
    static int32_t id[ROWS], ids[2 * ROWS];
    static float ce[ROWS];
    struct kit_case c = kit_linear_case(ROWS, COLUMNS, 8), attention = kit_attention_case(ROWS, COLUMNS, 8);
    struct kit_fixture f, g;
    double value = 7;
    test_build(&f, &c), test_build(&g, &attention);
    fill_ids(id);
    struct skl_labels l = {sizeof l, skl_vector(SKL_I32, id, ROWS), 1, 1, 0, IGNORED, 0, 0}, bad = l;
    struct skl_outputs out = skl_no_outputs();
    out.value = &value, out.ce = skl_vector(SKL_F32, ce, ROWS);
    refused("out.ce", &f.p, &out); /* there are no labels */
    f.p.labels = &bad, g.p.labels = &bad;
    id[3] = COLUMNS, refused("labels.ids[3] = 413", &f.p, &out);
    id[3] = -1, refused("labels.ids[3] = -1", &f.p, &out);
    id[3] = 0;
    bad.smoothing = 1, refused("labels.smoothing = 1", &f.p, &out), bad = l;
    bad.weight = NAN, refused("labels.weight = nan", &f.p, &out), bad = l;
    bad.z_loss = -1, refused("labels.z_loss = -1", &f.p, &out), bad = l;
    bad.struct_size = 8, refused("labels.struct_size = 8", &f.p, &out), bad = l;
    bad.ids.shape[0] = ROWS - 1, refused("labels.ids.shape[0] = 36", &f.p, &out), bad = l;
    bad.ids.dtype = SKL_F32, refused("labels.ids.dtype", &f.p, &out), bad = l;
    refused("labels", &g.p, &out);
    f.p.num_items = -2, refused("num_items = -2", &f.p, &out), f.p.num_items = 0;
    f.p.mass_ids = skl_matrix(SKL_I32, ids, ROWS, 2), ids[5] = COLUMNS;
    refused("mass_ids[2, 1] = 413", &f.p, &out);
    ids[5] = -2, refused("mass_ids[2, 1] = -2", &f.p, &out);
    f.p.mass_ids.shape[0] = 3, refused("mass_ids.shape[0] = 3", &f.p, &out);
    f.p.mass_ids.data = NULL, out.mass_s = out.ce, out.ce.data = NULL;
    refused("there are no mass_ids", &f.p, &out), out.ce = out.mass_s, out.mass_s.data = NULL;
    struct skl_state state[ROWS];
    CHECK_STATUS(skl_partial(&f.p, NULL, state), SKL_BAD_ARGUMENT);
    CHECK(value == 7, "something was written");
    f.p.labels = NULL, memset(&f.p.t, 0, sizeof f.p.t);
    out.ce = (struct skl_tensor){0};
    refused("t.a", &f.p, &out); /* without labels there must be a teacher */
    kit_destroy(&f), kit_destroy(&g);
}

/* Saved LSEs alone do not tell to which number l1_s refers. */
static void saved(void)
{
    struct kit_case c = kit_linear_case(ROWS, COLUMNS, 8);
    struct kit_fixture f;
    c.labels = SKL_I32, c.label_weight = 1, c.temperature = 2;
    test_build(&f, &c);
    struct skl_outputs all = kit_outputs(&f, 1, 0), grads = kit_outputs(&f, 0, KIT_GRAD_ALL);
    CHECK_STATUS(skl_value(&f.p, &all), SKL_OK);
    all.value = NULL, all.m_s.data = NULL;
    CHECK_STATUS(skl_backward(&f.p, &all, &grads), SKL_BAD_ARGUMENT);
    CHECK(strstr(skl_last_error(), "saved.m_s"), "said \"%s\"", skl_last_error());
    test_destroy(&f);
}

int main(void)
{
    static const int divergences[] = {SKL_FORWARD_KL, SKL_REVERSE_KL, SKL_JSD, SKL_ALPHA_BETA};
    test_begin("test_labels");
    for (int k = 0; k < COUNT(divergences); k++)
        for (int temperature = 1; temperature <= 2; temperature++)
            compare(test_quick() || k % 2 != temperature % 2 ? 20 : 300, divergences[k], temperature, 0);
    compare(20, SKL_FORWARD_KL, 1, 1), compare(300, SKL_FORWARD_KL, 1, 1);
    compare_random(test_quick() ? 40 : 120);
    ties();
    border();
    saved();
    return test_end();
}
