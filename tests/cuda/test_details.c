/* SPDX-License-Identifier: Apache-2.0
 * What rows tell on a device (src/cuda/host/details.c), against the double reference; largest scores and ranks
 * exactly. */
#include "run_cases.h"

/* Copied to the device, as `streamkl check --device cuda` does. */
static void run_told(const struct kit_case *c)
{
    struct kit_fixture f;
    kit_build(&f, c, &test_device_memory, &test_numbers);
    f.allow = allow;
    kit_expect(&f);
    run_ways(&f, KIT_VALUE, KIT_BACKWARD);
    kit_destroy(&f);
    test_context("%s", "");
}

/* Every family of sweeps, every divergence, both uses; with a temperature, ranges and weights in turn. Each type has
 * three tiles of columns once. */
static void families_of_sweeps(void)
{
    static const int types[] = {SKL_BF16, SKL_F16, SKL_F32};
    static const int64_t dims[] = {64, 264, 21};
    for (int k = 0; k < test_cases(test_first(6, 12), 4); k++) {
        int attention = k % 4 == 3;
        struct kit_case c = attention ? kit_attention_case(33, 150, 64)
                                      : kit_linear_case(k % 4 == 1 ? 130 : 37, k < 3 ? 300 : 150, dims[k % 3]);
        c.dtype[S] = c.dtype[T] = types[k % 3];
        c.place = KIT_ALIGNED;
        kit_set_divergence(&c,
                           k % KIT_DIVERGENCE_COUNT == SKL_TOTAL_VARIATION ? SKL_FORWARD_KL : k % KIT_DIVERGENCE_COUNT);
        c.details = 1, c.mass_ids = k % 5 ? 40 : 1;
        c.temperature = k % 3 == 1 ? 2 : 1;
        c.ranges = k % 4 == 2, c.weights = k % 5 == 2 ? KIT_SOME_ZERO : KIT_UNWEIGHTED;
        c.softcap[S] = k % 6 == 5 ? 20 : 0, c.bias[S] = !attention && k % 2;
        if (attention)
            c.heads = 2, c.key_heads[S] = c.key_heads[T] = 1, c.causal = 1;
        run_told(&c);
    }
}

static void random_labels(int n)
{
    for (int k = 0; k < n; k++) {
        struct kit_case c = kit_random_labels(&test_numbers);
        kit_for_device(&c, &test_numbers);
        kit_shrink(&c, 1e5);
        run_told(&c);
    }
}

/* Attention that knows its LSEs, or a target that does not sum to 1: details are those of the softmax. */
static void given_lses(void)
{
    static const int types[] = {SKL_BF16, SKL_F16, SKL_F32};
    static const int64_t dims[] = {64, 264, 21};
    for (int k = 0; k < test_cases(test_first(3, 6), 3); k++) {
        struct kit_case c = kit_attention_case(33, 150, dims[k % 3]);
        c.dtype[S] = c.dtype[T] = types[k % 3], c.place = KIT_ALIGNED;
        c.details = 1, c.mass_ids = 5, c.lses = 1, c.raw = k % 2, c.grads = KIT_GRAD_STUDENT;
        run_told(&c);
    }
}

/* Packed sequences: columns are counted from where the row's own begins. */
static void packed_sequences(void)
{
    static const int64_t dims[] = {64, 264, 21};
    for (int k = 0; k < 4; k++) {
        struct kit_case c = kit_attention_case(k ? 40 : 70, k ? 90 : 150, dims[k % 3]);
        c.dtype[S] = c.dtype[T] = k == 2 ? SKL_F32 : SKL_BF16, c.place = KIT_ALIGNED;
        c.packed = 4, c.causal = k % 2, c.details = 1, c.heads = 2;
        c.support = k == 3 ? 20 : 0, c.mass_ids = k == 3 ? 0 : 40;
        c.key_heads[S] = c.key_heads[T] = 1;
        run_told(&c);
    }
}

/* -------------------------------------------------------------------------------------------- exact answers --- */

enum { ROWS = 3, COLUMNS = 1400, DIM = 264 };

static struct skl_tensor here(struct skl_tensor t)
{
    return skl_on_cuda(t, 0);
}

/* Scores that are small integers, so that ties are ties: the student's at 'ties' are equal and the largest, the
 * teacher's fall with the column from 'teacher' on. Over several splits, in both halves of a tile, under the last
 * 'orders' of the three schedules. */
static void ties(int type, int dim, const int *at, int count, int teacher, int orders)
{
    static float host[2][COLUMNS * DIM];
    static uint16_t half[3][COLUMNS * DIM];
    static float one[ROWS * DIM];
    static int32_t top[4][ROWS];
    memset(host, 0, sizeof host), memset(one, 0, sizeof one);
    for (int i = 0; i < ROWS; i++) one[i * dim] = 1;
    for (int j = 0; j < COLUMNS; j++)
        host[0][j * dim] = (float)(j % 7), host[1][j * dim] = j < teacher ? -9 : -(float)(j % 8);
    for (int k = 0; k < count; k++) host[0][at[k] * dim] = 9;
    host[1][teacher * dim] = 3;
    struct skl_tensor t[3] = {skl_matrix(SKL_F32, one, ROWS, dim), skl_matrix(SKL_F32, host[0], COLUMNS, dim),
                              skl_matrix(SKL_F32, host[1], COLUMNS, dim)};
    for (int k = 0; k < 3; k++) {
        struct skl_tensor to = skl_matrix(type, half[k], t[k].shape[0], dim);
        for (int64_t i = 0; type != SKL_F32 && i < kit_count(&to); i++) kit_set(&to, i, kit_get(&t[k], i));
        t[k] = type == SKL_F32 ? t[k] : to;
        emu_adopt(t[k].data, (size_t)kit_count(&t[k]) * kit_element_size(type));
        emu_written(t[k].data, (size_t)kit_count(&t[k]) * kit_element_size(type));
    }
    emu_adopt(top, sizeof top);
    struct skl_problem p = skl_linear(here(t[0]), here(t[1]), here(t[0]), here(t[2]));
    struct skl_outputs out = skl_no_outputs();
    struct skl_tensor *to[4] = {&out.top1_s, &out.top1_t, &out.rank_s, &out.rank_t};
    for (int k = 0; k < 4; k++) *to[k] = here(skl_vector(SKL_I32, top[k], ROWS));
    int rank_s = 0, rank_t = 0;
    for (int j = 0; j < COLUMNS; j++) {
        rank_s += host[0][j * dim] > host[0][teacher * dim];
        rank_t += host[1][j * dim] > host[1][at[0] * dim];
    }
    for (int order = EMU_RANDOM + 1 - orders; order <= EMU_RANDOM; order++) {
        test_device.options = (struct emu_options){.order = (enum emu_order)order, .seed = 5};
        memset(top, 0xFF, sizeof top);
        CHECK_STATUS(skl_value(&p, &out), SKL_OK);
        test_device_clean("ties");
        for (int i = 0; i < ROWS; i++) {
            CHECK(top[0][i] == at[0] && top[1][i] == teacher, "type %d: the largest are %d, %d, not %d, %d", type,
                  top[0][i], top[1][i], at[0], teacher);
            CHECK(top[2][i] == rank_s && top[3][i] == rank_t, "type %d: ranks %d, %d, not %d, %d", type, top[2][i],
                  top[3][i], rank_s, rank_t);
        }
    }
    test_device.options = (struct emu_options){0};
    for (int k = 0; k < 3; k++) emu_release(t[k].data);
    emu_release(top);
}

/* Identical sides: each side's largest score is the other's, so every rank is 0, and their masses are the same. An id
 * that is no column makes its row's mass NaN, and nothing is read through it. */
static void identical(int type, int dim)
{
    struct kit_case c = kit_linear_case(70, 200, dim);
    struct kit_fixture f;
    static int32_t ids[70][2], top[4][70];
    static float mass[2][70], others[2][70];
    c.dtype[S] = c.dtype[T] = type, c.place = KIT_ALIGNED;
    test_build(&f, &c);
    test_device_adopt(&f);
    f.p.t = f.p.s;
    for (int i = 0; i < 70; i++) ids[i][0] = 3 * i % 200, ids[i][1] = i == 7 ? 200 : i == 8 ? -2 : -1;
    emu_adopt(ids, sizeof ids), emu_written(ids, sizeof ids);
    emu_adopt(top, sizeof top), emu_adopt(mass, sizeof mass), emu_adopt(others, sizeof others);
    struct skl_outputs out = skl_no_outputs();
    struct skl_tensor *to[4] = {&out.top1_s, &out.top1_t, &out.rank_s, &out.rank_t};
    for (int k = 0; k < 4; k++) *to[k] = here(skl_vector(SKL_I32, top[k], 70));
    out.mass_s = here(skl_vector(SKL_F32, mass[0], 70)), out.mass_t = here(skl_vector(SKL_F32, mass[1], 70));
    out.jsd = here(skl_vector(SKL_F32, others[0], 70)), out.tv = here(skl_vector(SKL_F32, others[1], 70));
    f.p.mass_ids = here(skl_matrix(SKL_I32, ids, 70, 2));
    CHECK_STATUS(skl_value(&f.p, &out), SKL_OK);
    test_device_clean("identical sides");
    for (int i = 0; i < 70; i++) {
        CHECK(top[0][i] == top[1][i] && top[2][i] == 0 && top[3][i] == 0, "row %d: %d %d, ranks %d %d", i, top[0][i],
              top[1][i], top[2][i], top[3][i]);
        CHECK(others[0][i] == 0 && others[1][i] == 0, "row %d: jsd %g, tv %g", i, (double)others[0][i],
              (double)others[1][i]);
        CHECK(i == 7 || i == 8 ? isnan(mass[0][i]) : mass[0][i] == mass[1][i], "row %d: masses %g, %g", i,
              (double)mass[0][i], (double)mass[1][i]);
    }
    emu_release(ids), emu_release(top), emu_release(mass), emu_release(others);
    test_device_release(&f);
    test_destroy(&f);
}

int main(void)
{
    test_begin("test_details");
    test_device_begin();
    test_device.processors = 8;
    static const int first[] = {130, 131, 190, 1300}, far[] = {700, 1399}, low[] = {0, 64}, halves[] = {100, 130},
                     lanes[] = {6, 8};
    static const int types[] = {SKL_BF16, SKL_F16, SKL_F32};
    for (int k = 0; k < COUNT(types); k++) {
        int dim = types[k] == SKL_F32 ? 5 : DIM;
        int orders = test_first(1, 3);
        ties(types[k], dim, first, 4, 1398, 3);
        if (types[k] != SKL_F16 || test_long()) {
            ties(types[k], dim, far, 2, 3, orders), ties(types[k], dim, low, 2, 65, orders);
            ties(types[k], dim, halves, 2, 300, orders); /* the lower column in the later half of its tile */
            ties(types[k], dim, lanes, 2, 300, orders);  /* the lower column in the later lane of its row */
        }
        identical(types[k], dim), identical(types[k], 64);
    }
    families_of_sweeps();
    given_lses();
    packed_sequences();
    random_labels(test_cases(test_first(4, 200), 4));
    for (int i = 0; i < test_list_count; i++)
        if (strcmp(test_list[i].source, "detail_kernels") == 0 || strcmp(test_list[i].role, "top") == 0)
            CHECK(test_device_ran(test_list[i].kernel), "no case ran %s", test_list[i].kernel);
    return test_end();
}
