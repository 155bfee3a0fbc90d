/* SPDX-License-Identifier: Apache-2.0
 *
 * The order in which a device runs blocks, warps and lanes, and the moment at which cp.async copies, are not ours to
 * choose: every kernel gives the same bits under all of them, and no access depends on them. Kernels that add with
 * atomics do not promise the bits, only their bounds.
 */
#include "families.h"

static const struct schedule {
    const char *name;
    enum emu_order order;
    uint64_t seed;
} orders[] = {
    {"forward", EMU_FORWARD, 1}, {"reverse", EMU_REVERSE, 1}, {"random", EMU_RANDOM, 1}, {"random", EMU_RANDOM, 2}};
static const char *const copies_name[] = {"late", "early", "sometimes"};

/* Everything a call wrote, gaps and all. */
struct results {
    unsigned char *of[KIT_RESULTS];
    double value;
};

static struct results keep(const struct kit_fixture *f)
{
    struct results r = {.value = f->value};
    for (int k = 0; k < KIT_RESULTS; k++) {
        const struct kit_buffer *m = &f->out[k].memory;
        if (m->data)
            r.of[k] = memcpy(malloc(m->size), m->data, m->size);
    }
    return r;
}

static void drop(struct results *r)
{
    for (int k = 0; k < KIT_RESULTS; k++) free(r->of[k]);
}

static void check_same(const struct kit_fixture *f, const struct results *first)
{
    for (int k = 0; k < KIT_RESULTS; k++)
        if (first->of[k])
            CHECK(memcmp(first->of[k], f->out[k].memory.data, f->out[k].memory.size) == 0,
                  "%s is not what it was in the first schedule", kit_results[k].name);
    CHECK(memcmp(&first->value, &f->value, sizeof f->value) == 0, "the value is not what it was in the first schedule");
}

/* Every 'step'-th of the orders x copies. Every fourth: each kind of copies once, and each kind of order. */
static void run_schedules(const struct family *family, const struct kit_case *c, unsigned grads, int step)
{
    struct kit_fixture f;
    struct results first = {0};
    char text[512];
    kit_describe(c, text, sizeof text);
    family_begin(&f, c, family->any_order, 3);
    for (int k = 0; k < COUNT(orders) * 3; k += step) {
        test_device.options = (struct emu_options){
            .order = orders[k / 3].order, .copies = k % 3, .seed = orders[k / 3].seed};
        test_context("%s %d, copies %s, %s: %s", orders[k / 3].name, (int)orders[k / 3].seed, copies_name[k % 3],
                     family->gradient, text);
        test_device_reset();
        struct skl_outputs out = kit_outputs(&f, 1, grads);
        if (grads)
            CHECK_STATUS(skl_value_and_grad(&f.p, &out), SKL_OK);
        else
            CHECK_STATUS(skl_value(&f.p, &out), SKL_OK);
        test_device_clean("this schedule");
        if (k == 0)
            first = keep(&f);
        else if (!family->any_order)
            check_same(&f, &first);
        if (k == 0 || family->any_order)
            test_compare(&f, &out, "this schedule");
    }
    drop(&first);
    family_end(&f);
    test_device.options = (struct emu_options){0};
}

/* The kernel of this unit that does this did run, if it has one. */
static int check_role(const char *unit, const char *role)
{
    const char *kernel = test_kernel_of(unit, role);
    if (kernel)
        CHECK(test_device_ran(kernel), "%s did not run", kernel);
    return kernel != NULL;
}

/* The kernels that were meant to run did run. */
static void check_ran(const struct family *family, int kind)
{
    static const char *const second[] = {"kl", "jsd", "second"};
    static const char *const gradients[][3] = {{"rows_q", "rows_pj", "second_dz"},
                                               {"columns_q", "columns_pj", "second_dz"},
                                               {"fused_q", "fused_pj", "second_dz"},
                                               {"dz", "dz", "second_dz"}};
    int any = 0;
    CHECK(check_role(family->sweep, "kl"), "%s has no sweep", family->sweep);
    CHECK(check_role(family->sweep, second[kind]), "%s has no second sweep", family->sweep);
    for (int k = 0; k < COUNT(gradients); k++) any |= check_role(family->gradient, gradients[k][kind]);
    CHECK(any, "%s has no gradient", family->gradient);
}

/* Rows and columns end within a tile, the diagonal goes through two tiles, two heads add to one gradient. */
static void whole(const struct family *family)
{
    struct kit_case c = family_case(family, 70, 150);
    static const int kinds[] = {SKL_FORWARD_KL, SKL_JSD, SKL_SKEW_FORWARD_KL};
    for (int kind = 0; kind < (test_kernel_of(family->sweep, "second") ? 3 : 2); kind++) {
        kit_set_divergence(&c, kinds[kind]);
        int every = family->type == SKL_F32 ? 3 : 1; /* plain kernels copy nothing in the background */
        run_schedules(family, &c, KIT_GRAD_ALL, test_long() ? every : 4);
        check_ran(family, kind);
    }
}

/* Five splits of the columns: three that no row sees, one seen from its middle on, and one of 10 columns. Blocks are
 * all that is new: every fourth schedule. */
static void split(const struct family *family)
{
    struct kit_case c = family_case(family, 70, 2570);
    c.left = 120, c.divergence = SKL_JSD;
    run_schedules(family, &c, 0, 4);
}

int main(int argc, char **argv)
{
    test_begin("test_schedules");
    test_device_begin();
    test_device.processors = 108;
    for (int k = 0; k < COUNT(families); k++) {
        const struct family *family = &families[k];
        if ((family->extra && !test_long()) || (argc > 1 && !strstr(family->gradient, argv[1])))
            continue;
        double start = test_cpu_seconds();
        whole(family);
        if (!family->any_order) /* the sweep is another family's */
            split(family);
        printf("%-16s %-14s %.1f s\n", family->sweep, family->gradient, test_cpu_seconds() - start);
    }
    return test_end();
}
