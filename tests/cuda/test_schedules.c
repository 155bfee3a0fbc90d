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

/* Every 'step'-th of the orders x copies. */
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

/* The kernels that were meant to run did run. */
static void check_ran(const struct family *family, int jsd)
{
    char name[64];
    const char *last[] = {"_kl", jsd ? "_jsd" : "_kl"};
    for (int k = 0; k < 2; k++) {
        snprintf(name, sizeof name, "%s%s", family->sweep, last[k]);
        CHECK(test_device_ran(name), "%s did not run", name);
    }
    const char *width = strchr(family->gradient, '_');
    if (strncmp(family->gradient, "grad", 4) == 0) {
        snprintf(name, sizeof name, "rows%s_%s", width, jsd ? "pj" : "q");
        CHECK(test_device_ran(name), "%s did not run", name);
        snprintf(name, sizeof name, "columns%s_%s", width, jsd ? "pj" : "q");
    } else if (strncmp(family->gradient, "fused", 5) == 0) {
        snprintf(name, sizeof name, "%s_%s", family->gradient, jsd ? "pj" : "q");
    } else {
        snprintf(name, sizeof name, "%s_dz", family->gradient);
    }
    CHECK(test_device_ran(name), "%s did not run", name);
}

/* Rows and columns end within a tile, the diagonal goes through two tiles, two heads add to one gradient. */
static void whole(const struct family *family)
{
    struct kit_case c = family_case(family, 70, 150);
    for (int jsd = 0; jsd < 2; jsd++) {
        c.divergence = jsd ? SKL_JSD : SKL_FORWARD_KL;
        run_schedules(family, &c, KIT_GRAD_ALL,
                      family->type == SKL_F32 ? 3 : 1); /* plain kernels copy nothing in the background */
        check_ran(family, jsd);
    }
}

/* Five splits of the columns: three that no row sees, one seen from its middle on, and one of 10 columns. Blocks are
 * all that is new, so each order and each kind of copies once. */
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
