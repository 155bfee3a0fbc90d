/* SPDX-License-Identifier: Apache-2.0
 *
 * The host side: which kernels, how the columns are split, how large a slab is and what the workspace holds, first as
 * the function that decides it, then end to end through the public calls with what the decisions lead to.
 */
#include "families.h"

#include "../../src/cuda/host/plan.h"
#include "../../src/cuda/shapes.h"

/* ------------------------------------------------------------------------------------------------ decisions --- */

/* The plan of a call on everything that the fixture has; status and plan. */
static enum skl_status make_plan(struct kit_fixture *f, enum skl_call call, int processors, struct skl_gpu_plan *plan)
{
    struct skl_outputs out = kit_outputs(f, call != SKL_CALL_BACKWARD, call == SKL_CALL_VALUE ? 0 : KIT_GRAD_ALL);
    struct skl_outputs saved = kit_outputs(f, 1, 0);
    struct skl_gpu_properties device = {processors, 99 << 10, 80};
    struct skl_work w;
    saved.value = NULL;
    enum skl_status status = skl_check(call, &f->p, call == SKL_CALL_BACKWARD ? &saved : NULL, &out, NULL, &w);
    if (status)
        return status;
    w = skl_gpu_flat(&w);
    return skl_gpu_make_plan(call, &w, &device, plan);
}

static struct kit_case tensor_core_case(int64_t rows, int64_t cols, int64_t dim)
{
    struct kit_case c = kit_attention_case(rows, cols, dim);
    c.dtype[S] = c.dtype[T] = SKL_BF16, c.place = KIT_ALIGNED;
    return c;
}

/* What the split rule promises for any sizes: pieces that are whole tiles, none empty, none needlessly short. */
static void check_split(const struct skl_gpu_plan *plan, int64_t columns, int processors)
{
    int64_t blocks = plan->heads * plan->tiles, wanted = 2 * processors;
    CHECK(plan->split_columns % SKL_COLUMN_UNIT == 0, "a split of %d columns is not whole tiles", plan->split_columns);
    CHECK((int64_t)plan->splits * plan->split_columns >= columns, "%d splits of %d miss some of %lld columns",
          plan->splits, plan->split_columns, (long long)columns);
    CHECK((int64_t)(plan->splits - 1) * plan->split_columns < columns,
          "the last of %d splits of %d is empty of %lld columns", plan->splits, plan->split_columns,
          (long long)columns);
    CHECK(plan->splits == 1 || plan->split_columns >= 512, "%d splits of only %d columns", plan->splits,
          plan->split_columns);
    CHECK(plan->splits == 1 || blocks * plan->splits <= wanted, "%lld tiles x %d splits for %d multiprocessors",
          (long long)blocks, plan->splits, processors);
    CHECK(plan->splits > 1 || 2 * blocks > wanted || columns < 1024, "%lld tiles leave %d multiprocessors idle",
          (long long)blocks, processors);
    CHECK(plan->states == plan->splits * (plan->family == SKL_FAMILY_STREAM ? 2 : 1), "%d states for %d splits",
          plan->states, plan->splits);
}

static void split_rule(void)
{
    static const struct {
        int64_t heads, rows, cols;
        int processors, splits;
    } table[] = {
        {1, 1, 131072, 108, 205}, /* 216 wanted, of 607 columns rounded up to 640 */
        {1, 1, 131072, 132, 256}, /* 264 wanted, but 512 columns are the least */
        {8, 64, 8192, 108, 16},   /* few queries of 8 heads */
        {32, 1, 4096, 132, 8},    /* 264 / 32 */
        {1, 150, 2000, 108, 3},   /* a few tiles of rows: 2000 columns give 3 pieces, of 768 */
        {1, 64, 1023, 132, 1},    /* too short to cut */
        {1, 64, 1024, 132, 2},    /* just long enough */
        {108, 64, 65536, 108, 2}, /* one block on each: two */
        {109, 64, 65536, 108, 1}, /* more would be two rounds and a rest */
        {32, 4096, 8192, 108, 1}, /* a training shape */
        {3, 7, 100, 108, 1},
    };
    for (int k = 0; k < COUNT(table); k++) {
        struct kit_fixture f;
        struct skl_gpu_plan plan = {0};
        struct kit_case c = tensor_core_case(1, 1, 8);
        test_build(&f, &c);
        test_device_adopt(&f);
        test_context("split rule, case %d", k);
        /* A plan reads no data: larger shapes over the same memory will do, all rows being one. */
        struct skl_tensor *each[] = {&f.p.s.a, &f.p.t.a, &f.p.s.b, &f.p.t.b};
        for (int i = 0; i < 4; i++) {
            each[i]->shape[1] = table[k].heads, each[i]->shape[2] = i < 2 ? table[k].rows : table[k].cols;
            each[i]->stride[1] = each[i]->stride[2] = 0;
        }
        struct skl_outputs out = skl_no_outputs();
        struct skl_gpu_properties device = {table[k].processors, 99 << 10, 80};
        struct skl_work w;
        out.value = &f.value;
        CHECK_STATUS(skl_check(SKL_CALL_VALUE, &f.p, NULL, &out, NULL, &w), SKL_OK);
        CHECK_STATUS(skl_gpu_make_plan(SKL_CALL_VALUE, &w, &device, &plan), SKL_OK);
        CHECK(plan.splits == table[k].splits, "%d splits, expected %d", plan.splits, table[k].splits);
        check_split(&plan, table[k].cols, table[k].processors);
        for (int i = 0; i < 400; i++) { /* and any other sizes */
            int64_t rows = test_between(1, 1000),
                    cols = test_chance(2) ? test_between(1, 3000) : test_between(1, 200000);
            int processors = (int)test_between(1, 160);
            w.heads = test_between(1, 40), w.n = rows, w.columns = cols, w.rows = w.heads * rows;
            device.processors = processors;
            CHECK_STATUS(skl_gpu_make_plan(SKL_CALL_VALUE, &w, &device, &plan), SKL_OK);
            check_split(&plan, cols, processors);
        }
        test_device_release(&f);
        test_destroy(&f);
    }
}

static void kernel_choice(void)
{
    static const struct {
        const char *what;
        int32_t type[2];
        int64_t dim[2];
        double scale, softcap;
        int layout, place, family, width;
    } table[] = {
        {"64", {1, 1}, {64, 64}, 0, 0, KIT_DENSE, KIT_ALIGNED, SKL_FAMILY_FORWARD, 64},
        {"16", {2, 2}, {16, 16}, 0, 0, KIT_DENSE, KIT_ALIGNED, SKL_FAMILY_FORWARD, 64},
        {"72", {1, 1}, {72, 72}, 0, 0, KIT_DENSE, KIT_ALIGNED, SKL_FAMILY_FORWARD, 128},
        {"128", {2, 2}, {128, 128}, 0, 0, KIT_DENSE, KIT_ALIGNED, SKL_FAMILY_FORWARD, 128},
        {"the wider side", {1, 1}, {64, 136}, 0, 0, KIT_DENSE, KIT_ALIGNED, SKL_FAMILY_FORWARD, 256},
        {"256", {1, 1}, {256, 256}, 0, 0, KIT_DENSE, KIT_ALIGNED, SKL_FAMILY_FORWARD, 256},
        {"264", {1, 1}, {264, 8}, 0, 0, KIT_DENSE, KIT_ALIGNED, SKL_FAMILY_STREAM, 0},
        {"f32", {0, 0}, {64, 64}, 0, 0, KIT_DENSE, KIT_ALIGNED, SKL_FAMILY_PLAIN, 0},
        {"bf16 and f16", {1, 2}, {64, 64}, 0, 0, KIT_DENSE, KIT_ALIGNED, SKL_FAMILY_PLAIN, 0},
        {"bf16 and f32", {1, 0}, {64, 64}, 0, 0, KIT_DENSE, KIT_ALIGNED, SKL_FAMILY_PLAIN, 0},
        {"not a multiple of 8", {1, 1}, {64, 60}, 0, 0, KIT_DENSE, KIT_ALIGNED, SKL_FAMILY_PLAIN, 0},
        {"not aligned", {1, 1}, {64, 64}, 0, 0, KIT_DENSE, KIT_ODD, SKL_FAMILY_PLAIN, 0},
        {"odd strides", {1, 1}, {64, 64}, 0, 0, KIT_GAPS, KIT_ALIGNED, SKL_FAMILY_PLAIN, 0},
        {"scale below 0", {1, 1}, {64, 64}, -0.1, 0, KIT_DENSE, KIT_ALIGNED, SKL_FAMILY_PLAIN, 0},
        {"scale below 0, softcap", {1, 1}, {64, 64}, -0.1, 5, KIT_DENSE, KIT_ALIGNED, SKL_FAMILY_FORWARD, 64},
        {"tiny scale", {1, 1}, {64, 64}, 1e-30, 0, KIT_DENSE, KIT_ALIGNED, SKL_FAMILY_PLAIN, 0},
    };
    for (int k = 0; k < COUNT(table); k++)
        for (int use = 0; use < 2; use++) {
            struct kit_case c = use ? kit_linear_case(5, 7, 1) : kit_attention_case(5, 7, 1);
            struct kit_fixture f;
            struct skl_gpu_plan plan = {0};
            for (int s = 0; s < 2; s++) c.dim[s] = table[k].dim[s], c.dtype[s] = table[k].type[s];
            c.scale[S] = table[k].scale, c.softcap[S] = table[k].softcap;
            c.layout = table[k].layout, c.place = table[k].place;
            test_build(&f, &c);
            test_device_adopt(&f);
            test_context("%s, %s", use ? "linear" : "attention", table[k].what);
            CHECK_STATUS(make_plan(&f, SKL_CALL_VALUE, 108, &plan), SKL_OK);
            CHECK((int)plan.family == table[k].family, "family %d, expected %d", plan.family, table[k].family);
            CHECK(!table[k].width || plan.dim == table[k].width, "width %d, expected %d", plan.dim, table[k].width);
            test_device_release(&f);
            test_destroy(&f);
        }
}

/* Atomics only where they were allowed, both gradients are wanted and there is such a kernel. */
static void fused_choice(void)
{
    static const struct {
        int any_order, linear;
        int64_t dim;
        unsigned grads;
        int attention_grad, fused;
    } table[] = {
        {0, 0, 64, KIT_GRAD_ALL, 1, 0},
        {1, 0, 64, KIT_GRAD_ALL, 1, 1},
        {1, 0, 128, KIT_GRAD_A_T | KIT_GRAD_B_T, 1, 1},
        {1, 0, 64, KIT_GRAD_A_S, 1, 0},
        {1, 0, 64, KIT_GRAD_B_S, 1, 0},
        {1, 0, 64, KIT_GRAD_A_S | KIT_GRAD_B_T, 1, 0},
        {1, 0, 64, KIT_GRAD_ALL - KIT_GRAD_B_T, 1, 0},
        {1, 0, 256, KIT_GRAD_ALL, 1, 0},
        {1, 0, 264, KIT_GRAD_ALL, 0, 0},
        {1, 1, 64, KIT_GRAD_ALL, 0, 0},
    };
    for (int k = 0; k < COUNT(table); k++) {
        struct kit_case c = tensor_core_case(5, 7, table[k].dim);
        struct kit_fixture f;
        struct skl_gpu_plan plan = {0};
        c.use = table[k].linear ? SKL_LINEAR : SKL_ATTENTION, c.grads = table[k].grads;
        test_build(&f, &c);
        test_device_adopt(&f);
        f.p.any_order = table[k].any_order;
        test_context("fused, case %d", k);
        CHECK_STATUS(make_plan(&f, SKL_CALL_VALUE_AND_GRAD, 108, &plan), SKL_OK);
        CHECK(plan.attention_grad == table[k].attention_grad, "gradients by %s",
              plan.attention_grad ? "tiles" : "slabs");
        CHECK(plan.fused == table[k].fused, "%s atomics", plan.fused ? "with" : "without");
        test_device_release(&f);
        test_destroy(&f);
    }
}

/* Any limit is kept or refused with the number of bytes that would do; what would do does; the bytes of a plan are
 * those that skl_workspace_size() says. */
static void limits(void)
{
    static const struct {
        int64_t rows, cols, dim;
        int32_t type;
        int own, bias;
    } table[] = {{300, 700, 64, SKL_F32, 0, 1},   {300, 700, 64, SKL_BF16, 1, 1}, {1000, 3000, 20, SKL_F32, 0, 0},
                 {200, 3000, 40, SKL_BF16, 1, 0}, {150, 900, 600, SKL_F16, 1, 0}, {5, 300, 1000, SKL_BF16, 0, 1}};
    for (int k = 0; k < COUNT(table); k++) {
        struct kit_case c = kit_linear_case(table[k].rows, table[k].cols, table[k].dim);
        struct kit_fixture f;
        struct skl_gpu_plan plan = {0};
        size_t bytes, least;
        c.dtype[S] = c.dtype[T] = table[k].type, c.own = table[k].own, c.bias[S] = c.bias[T] = table[k].bias;
        c.place = KIT_ALIGNED;
        test_build(&f, &c);
        test_device_adopt(&f);
        test_context("workspace limit, case %d", k);
        struct skl_outputs out = kit_outputs(&f, 1, KIT_GRAD_ALL);
        CHECK_STATUS(make_plan(&f, SKL_CALL_VALUE_AND_GRAD, test_device.processors, &plan), SKL_OK);
        CHECK_STATUS(skl_workspace_size(SKL_CALL_VALUE_AND_GRAD, &f.p, &out, &bytes), SKL_OK);
        CHECK(bytes == plan.bytes, "skl_workspace_size says %zu, the plan %zu", bytes, plan.bytes);

        f.p.workspace_limit = 1;
        CHECK_STATUS(skl_workspace_size(SKL_CALL_VALUE_AND_GRAD, &f.p, &out, &bytes), SKL_BAD_ARGUMENT);
        const char *said = strstr(skl_last_error(), "takes ");
        CHECK(said && sscanf(said, "takes %zu bytes", &least) == 1, "\"%s\" names no bytes", skl_last_error());
        CHECK(strstr(skl_last_error(), "workspace_limit = 1:") != NULL, "\"%s\" does not name the limit",
              skl_last_error());
        if (!said)
            continue;
        int whole = 0, cut = 0;
        for (int i = 0; i < 40; i++) {
            double part = i / 39.0;
            f.p.workspace_limit = (size_t)((1 - part * part) * (double)least + part * part * 3 * (double)plan.bytes);
            struct skl_gpu_plan small;
            enum skl_status status = make_plan(&f, SKL_CALL_VALUE_AND_GRAD, 4, &small);
            CHECK(status == SKL_OK, "limit %zu is refused (%s) although %zu is said to do", f.p.workspace_limit,
                  skl_last_error(), least);
            if (status)
                break;
            CHECK(small.bytes <= f.p.workspace_limit, "%zu bytes for a limit of %zu", small.bytes, f.p.workspace_limit);
            CHECK(small.slab_rows % SKL_ROW_UNIT == 0 && small.slab_columns % SKL_COLUMN_UNIT == 0 &&
                      small.slab_rows > 0 && small.slab_columns > 0,
                  "a slab of %d x %d", small.slab_rows, small.slab_columns);
            whole += small.slab_columns >= c.cols && small.slab_rows >= c.rows;
            cut += small.slab_columns < c.cols || small.slab_rows < c.rows;
        }
        CHECK(whole > 0, "no limit gave one slab");
        CHECK(cut > 0 || c.rows * c.cols < 128 * 128, "no limit gave several slabs");
        f.p.workspace_limit = least - 1;
        CHECK_STATUS(skl_workspace_size(SKL_CALL_VALUE_AND_GRAD, &f.p, &out, &bytes), SKL_BAD_ARGUMENT);
        test_device_release(&f);
        test_destroy(&f);
    }
}

/* Every part of the workspace is in it, aligned, and none lies in another; checked by using it: a kernel that reads
 * what is not its own finds it not initialised or changed. Here: offsets only. */
static void offsets(void)
{
    struct kit_case c = kit_linear_case(300, 700, 64);
    struct kit_fixture f;
    struct skl_gpu_plan plan = {0};
    c.divergence = SKL_JSD, c.dtype[S] = c.dtype[T] = SKL_BF16, c.own = 1, c.bias[S] = c.bias[T] = 1;
    c.place = KIT_ALIGNED;
    test_build(&f, &c);
    test_device_adopt(&f);
    test_context("offsets");
    struct skl_outputs out = kit_outputs(&f, 0, KIT_GRAD_ALL);
    struct skl_gpu_properties device = {4, 99 << 10, 80};
    struct skl_work w;
    out.value = &f.value;
    CHECK_STATUS(skl_check(SKL_CALL_VALUE_AND_GRAD, &f.p, NULL, &out, NULL, &w), SKL_OK);
    CHECK_STATUS(skl_gpu_make_plan(SKL_CALL_VALUE_AND_GRAD, &w, &device, &plan), SKL_OK);
    const struct skl_gpu_memory *m = &plan.offset;
    const struct {
        const char *name;
        const void *at;
        size_t bytes;
    } parts[] = {{"scalars", m->scalars, sizeof *m->scalars},
                 {"range", m->range, 300 * sizeof *m->range},
                 {"tile_range", m->tile_range, 5 * sizeof *m->tile_range},
                 {"state", m->state, 300 * SKL_STATES * sizeof(float) * (size_t)plan.states},
                 {"loss", m->loss, 300 * sizeof(double)},
                 {"references", m->references, 300 * sizeof *m->references},
                 {"factors", m->factors, 300 * sizeof *m->factors},
                 {"row_loss", m->row_loss, 300 * sizeof(float)},
                 {"row_m[0]", m->row_m[0], 300 * sizeof(float)},
                 {"row_m[1]", m->row_m[1], 300 * sizeof(float)},
                 {"row_l[0]", m->row_l[0], 300 * sizeof(float)},
                 {"row_l[1]", m->row_l[1], 300 * sizeof(float)},
                 {"row_kl[0]", m->row_kl[0], 300 * sizeof(float)},
                 {"row_kl[1]", m->row_kl[1], 300 * sizeof(float)},
                 {"slab", m->slab, (size_t)plan.slab_rows * (size_t)plan.slab_columns * 2},
                 {"sum_a", m->sum_a, 300 * 64 * sizeof(float)},
                 {"sum_b", m->sum_b, (size_t)plan.slab_columns * 64 * sizeof(float)},
                 {"sum_bias", m->sum_bias, 700 * sizeof(float)},
                 {"blas", m->blas, SKL_BLAS_BYTES}};
    for (int i = 0; i < COUNT(parts); i++) {
        size_t at = (size_t)((const char *)parts[i].at - (const char *)0);
        CHECK(at != 0, "no %s", parts[i].name);
        CHECK(at % 256 == 0, "%s at %zu is not aligned", parts[i].name, at);
        CHECK(at + parts[i].bytes <= plan.bytes, "%s ends behind the workspace", parts[i].name);
        for (int k = 0; k < i; k++) {
            size_t other = (size_t)((const char *)parts[k].at - (const char *)0);
            CHECK(at + parts[i].bytes <= other || other + parts[k].bytes <= at, "%s lies in %s", parts[i].name,
                  parts[k].name);
        }
    }
    test_device_release(&f);
    test_destroy(&f);
}

/* ----------------------------------------------------------------------------------------------- end to end --- */

/* A few queries and many columns fill 108 multiprocessors by splitting; the results are those of one split. */
static void splits(void)
{
    static const struct {
        int64_t dim;
        int32_t type;
        int linear;
    } table[] = {{64, SKL_BF16, 0}, {272, SKL_BF16, 1}, {16, SKL_F32, 0}};
    for (int k = 0; k < COUNT(table); k++)
        for (int d = 0; d < 3; d++) {
            struct kit_case c = table[k].linear ? kit_linear_case(20, 2100, table[k].dim)
                                                : kit_attention_case(20, 2100, table[k].dim);
            struct kit_fixture f;
            double value[2];
            size_t bytes[2];
            c.dtype[S] = c.dtype[T] = table[k].type, c.divergence = d, c.place = KIT_ALIGNED, c.grads = 0;
            family_begin(&f, &c, 0, 3);
            for (int many = 0; many < 2; many++) {
                test_device.processors = many ? 108 : 1;
                test_device_reset();
                test_context("dim %d, divergence %d, %d processors", (int)table[k].dim, d, test_device.processors);
                struct skl_outputs out = kit_outputs(&f, 1, 0);
                CHECK_STATUS(skl_workspace_size(SKL_CALL_VALUE, &f.p, &out, &bytes[many]), SKL_OK);
                CHECK_STATUS(skl_value(&f.p, &out), SKL_OK);
                test_compare(&f, &out, "value");
                test_device_clean("value");
                value[many] = f.value;
            }
            CHECK_NEAR(value[1], value[0], f.value_bound, "the value of several splits");
            CHECK(bytes[1] > bytes[0], "there were no splits");
            family_end(&f);
        }
    test_device.processors = 4;
}

/* Which tiles of rows see a tile of columns: four tiles of rows on a diagonal, of which no two see the same. */
static void diagonal(void)
{
    static const int64_t dims[] = {64, 128, 256};
    for (int k = 0; k < COUNT(dims); k++) {
        struct kit_case c = tensor_core_case(200, 200, dims[k]);
        struct kit_fixture f;
        c.causal = 1, c.left = k == 1 ? 50 : -1;
        family_begin(&f, &c, 0, 3);
        test_device_reset();
        test_context("diagonal, dim %d", (int)dims[k]);
        test_run(&f, KIT_TOGETHER);
        test_device_clean("value_and_grad");
        family_end(&f);
    }
}

/* Slabs cut in rows and in columns: as many products as slabs, and the same gradients. */
static void slabs(void)
{
    static const struct {
        int64_t dim;
        int32_t type;
        int own, lead, divergence, weights;
    } table[] = {{20, SKL_F32, 0, 1, SKL_FORWARD_KL, KIT_UNWEIGHTED},
                 {24, SKL_BF16, 0, 1, SKL_JSD, KIT_SOME_ZERO},
                 {24, SKL_BF16, 1, 2, SKL_FORWARD_KL, KIT_POSITIVE},
                 {40, SKL_F16, 1, 1, SKL_REVERSE_KL, KIT_UNWEIGHTED}};
    for (int k = 0; k < COUNT(table); k++) {
        struct kit_case c = kit_linear_case(300 / table[k].lead, 290, table[k].dim);
        struct kit_fixture f;
        struct skl_gpu_plan plan = {0};
        size_t least = 0;
        c.dtype[S] = c.dtype[T] = table[k].type, c.own = table[k].own, c.divergence = table[k].divergence;
        c.weights = table[k].weights, c.place = KIT_ALIGNED;
        c.lead = table[k].lead, c.heads = table[k].lead;
        c.bias[S] = 1, c.bias[T] = 1 + table[k].type;
        c.pad[T] = 9;
        family_begin(&f, &c, 0, 3);
        f.p.workspace_limit = 1;
        test_context("slabs, case %d", k);
        CHECK(make_plan(&f, SKL_CALL_VALUE_AND_GRAD, 4, &plan) == SKL_BAD_ARGUMENT &&
                  sscanf(strstr(skl_last_error(), "takes "), "takes %zu bytes", &least) == 1,
              "\"%s\" names no bytes", skl_last_error());
        f.p.workspace_limit = least;
        CHECK_STATUS(make_plan(&f, SKL_CALL_VALUE_AND_GRAD, 4, &plan), SKL_OK);
        CHECK(plan.slab_rows == 128 && plan.slab_columns == 128, "slabs of %d x %d", plan.slab_rows, plan.slab_columns);
        test_device_reset();
        test_run(&f, KIT_TOGETHER);
        test_device_clean("value_and_grad");
        CHECK(test_device.products == 2 * 2 * 3 * 3, "%d products of 3 x 3 slabs on both sides", test_device.products);
        test_run(&f, KIT_BACKWARD);
        test_device_clean("backward");
        family_end(&f);
    }
}

int main(void)
{
    test_begin("test_plan");
    test_device_begin();
    split_rule();
    kernel_choice();
    fused_choice();
    limits();
    offsets();
    splits();
    diagonal();
    slabs();
    test_context("%s", "");
    CHECK(emu_allocations() == 0, "%d allocations are left", emu_allocations());
    return test_end();
}
