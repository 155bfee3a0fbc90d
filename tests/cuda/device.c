/* SPDX-License-Identifier: Apache-2.0 */
#include "device.h"

#include "../../src/cuda/host/device.h"

#include <inttypes.h>

struct test_device test_device = {.processors = 4, .shared_memory = 99 << 10};

/* ---------------------------------------------------------------------------------------------------- kernels --- */

enum { MOST_UNITS = 64 };

static struct unit {
    char name[32];
    char *text;
    struct emu_module *module;  /* of the original */
    struct emu_module *instead; /* NULL: not replaced */
} units[MOST_UNITS];
static int unit_count;

static const char *ptx_dir(void)
{
    const char *dir = getenv("STREAMKL_PTX");
    return dir ? dir : TEST_PTX_DIR;
}

static char *read_text(const char *path)
{
    FILE *f = fopen(path, "rb");
    char *text = NULL;
    if (f && fseek(f, 0, SEEK_END) == 0) {
        long n = ftell(f);
        rewind(f);
        text = malloc((size_t)n + 1);
        text[fread(text, 1, (size_t)n, f)] = 0;
    }
    if (f)
        fclose(f);
    return text;
}

static struct unit *find_unit(const char *name)
{
    for (int i = 0; i < unit_count; i++)
        if (strcmp(units[i].name, name) == 0)
            return &units[i];
    char path[1024];
    if (!CHECK(unit_count < MOST_UNITS, "there are more than %d units", MOST_UNITS))
        return NULL;
    struct unit *u = &units[unit_count];
    snprintf(path, sizeof path, "%s/%s.ptx", ptx_dir(), name);
    u->text = read_text(path);
    if (!u->text)
        return NULL;
    snprintf(u->name, sizeof u->name, "%s", name);
    u->module = emu_load(u->text, name);
    if (!u->module)
        printf("%s: %s\n", name, emu_message());
    unit_count++;
    return u;
}

const struct test_listed test_list[] = {
#define SKL_KERNEL(name, source, role, type, dim, ...) {#name, #source, #role, #type, #dim},
#include "../../src/cuda/kernels.def"
#undef SKL_KERNEL
};
const int test_list_count = COUNT(test_list);

void test_unit_name(const struct test_listed *k, char name[48])
{
    int typed = strcmp(k->type, "any") != 0, wide = strcmp(k->dim, "0") != 0;
    snprintf(name, 48, "%s%s%s%s%s", k->source, typed ? "_" : "", typed ? k->type : "", wide ? "_" : "",
             wide ? k->dim : "");
}

const char *test_kernel_of(const char *unit, const char *role)
{
    char name[48];
    for (int i = 0; i < test_list_count; i++) {
        test_unit_name(&test_list[i], name);
        if (strcmp(name, unit) == 0 && strcmp(test_list[i].role, role) == 0)
            return test_list[i].kernel;
    }
    return NULL;
}

static struct unit *unit_of(const char *kernel)
{
    char name[48];
    for (int i = 0; i < test_list_count; i++)
        if (strcmp(kernel, test_list[i].kernel) == 0) {
            test_unit_name(&test_list[i], name);
            return find_unit(name);
        }
    return NULL;
}

int test_device_replace(const char *unit, const char *ptx)
{
    struct unit *u = find_unit(unit);
    if (u->instead)
        emu_unload(u->instead);
    u->instead = ptx ? emu_load(ptx, unit) : NULL;
    return !ptx || u->instead;
}

const char *test_device_ptx(const char *unit)
{
    struct unit *u = find_unit(unit);
    return u ? u->text : NULL;
}

static void remember(const char *kernel)
{
    struct test_device *d = &test_device;
    if (!test_device_ran(kernel) && d->kernel_count < COUNT(d->kernels))
        snprintf(d->kernels[d->kernel_count++], sizeof *d->kernels, "%s", kernel);
}

int test_device_ran(const char *kernel)
{
    for (int i = 0; i < test_device.kernel_count; i++)
        if (strcmp(test_device.kernels[i], kernel) == 0)
            return 1;
    return 0;
}

static void add_report(const struct emu_report *r)
{
    struct emu_report *t = &test_device.total;
    uint64_t *to[] = {&t->errors,
                      &t->races,
                      &t->out_of_bounds,
                      &t->uninitialised,
                      &t->synchronisation,
                      &t->other,
                      &t->unwaited_copies,
                      &t->matrix_conflicts,
                      &t->vector_conflicts,
                      &t->scalar_conflicts,
                      &t->instructions,
                      &t->ldmatrix,
                      &t->mma,
                      &t->copies};
    const uint64_t from[] = {r->errors,
                             r->races,
                             r->out_of_bounds,
                             r->uninitialised,
                             r->synchronisation,
                             r->other,
                             r->unwaited_copies,
                             r->matrix_conflicts,
                             r->vector_conflicts,
                             r->scalar_conflicts,
                             r->instructions,
                             r->ldmatrix,
                             r->mma,
                             r->copies};
    for (int i = 0; i < COUNT(to); i++) *to[i] += from[i];
    for (int i = 0; i < r->texts && t->texts < EMU_TEXTS; i++) strcpy(t->text[t->texts++], r->text[i]);
}

static enum skl_status launch(const struct skl_gpu_launch *l, void *stream)
{
    struct emu_report report = {0};
    char name[64];
    (void)stream;
    test_device.launches++;
    if (test_device.fail && strcmp(test_device.fail, l->kernel) == 0)
        return skl_fail(SKL_DEVICE_FAILED, "the launch of %s shall fail", l->kernel);
    struct unit *u = unit_of(l->kernel);
    struct emu_module *m = u ? u->instead ? u->instead : u->module : NULL;
    if (!m)
        return skl_fail(SKL_DEVICE_FAILED, "no PTX for %s", l->kernel);
    if (l->shared_bytes > (size_t)test_device.shared_memory)
        return skl_fail(SKL_DEVICE_FAILED, "%s asks for %zu bytes of shared memory", l->kernel, l->shared_bytes);
    remember(l->kernel);
    snprintf(name, sizeof name, "skl_%s", l->kernel);
    emu_launch(m, name, l->grid_x, l->grid_y, l->threads, l->shared_bytes, l->args, l->args_bytes, &test_device.options,
               &report);
    add_report(&report);
    return SKL_OK;
}

/* --------------------------------------------------------------------------------------------- the rest of it --- */

static enum skl_status enter(int index, struct skl_gpu_place *before)
{
    *before = (struct skl_gpu_place){NULL, 0};
    return index == 0 ? SKL_OK : skl_fail(SKL_NO_DEVICE, "no CUDA device %d", index);
}

static void leave(const struct skl_gpu_place *before)
{
    (void)before;
}

static enum skl_status properties(int index, struct skl_gpu_properties *p)
{
    (void)index;
    *p = (struct skl_gpu_properties){test_device.processors, test_device.shared_memory, 80};
    return SKL_OK;
}

static enum skl_status clear(void *data, size_t bytes, void *stream)
{
    (void)stream;
    memset(data, 0, bytes);
    emu_written(data, bytes);
    return SKL_OK;
}

static enum skl_status allocate(size_t bytes, void *stream, void **data)
{
    (void)stream;
    *data = emu_allocate(bytes);
    return *data ? SKL_OK : skl_fail(SKL_OUT_OF_MEMORY, "cannot allocate %zu bytes", bytes);
}

static void release(void *data, void *stream)
{
    (void)stream;
    emu_release(data);
}

static double *numbers(const void *data, int64_t rows, int64_t cols, int64_t ld, int dtype)
{
    double *x = calloc((size_t)(rows * cols) + 1, sizeof *x);
    struct skl_tensor t = skl_vector(dtype, data, rows * ld);
    for (int64_t i = 0; i < rows * cols; i++) x[i] = kit_get(&t, i / cols * ld + i % cols);
    return x;
}

/* As cuBLAS would, but products are exact and the sum is rounded once, at the end. */
static enum skl_status product(const struct skl_gpu_product *p, void *stream)
{
    (void)stream;
    test_device.products++;
    CHECK(p->ldb >= p->n && p->ldc >= p->n && p->lda >= (p->transpose_a ? p->m : p->k),
          "a leading dimension is too small");
    double *a = p->transpose_a ? numbers(p->a, p->k, p->m, p->lda, p->dtype)
                               : numbers(p->a, p->m, p->k, p->lda, p->dtype);
    double *b = numbers(p->b, p->k, p->n, p->ldb, p->dtype), *sum = malloc((size_t)p->n * sizeof *sum);
    size_t size = kit_element_size(p->dtype_c);
    for (int64_t i = 0; i < p->m; i++) {
        struct skl_tensor c = skl_vector(p->dtype_c, (char *)p->c + (size_t)(i * p->ldc) * size, p->n);
        CHECK(emu_unwritten(c.data, (size_t)p->n * size) == 0, "a product over a C that nobody has written");
        memset(sum, 0, (size_t)p->n * sizeof *sum);
        for (int64_t k = 0; k < p->k; k++)
            for (int64_t j = 0; j < p->n; j++)
                sum[j] += a[p->transpose_a ? k * p->m + i : i * p->k + k] * b[k * p->n + j];
        for (int64_t j = 0; j < p->n; j++)
            kit_set(&c, j, *p->alpha * sum[j] + (*p->beta != 0 ? *p->beta * kit_get(&c, j) : 0));
        emu_written(c.data, (size_t)p->n * size);
    }
    free(a), free(b), free(sum);
    return SKL_OK;
}

static enum skl_status prepare(void *stream)
{
    (void)stream;
    return SKL_OK;
}

static const struct skl_gpu emulated = {enter, leave, properties, launch, clear, prepare, product, allocate, release};

void test_device_begin(void)
{
    if (!find_unit("row_kernels")) {
        printf("no PTX in %s\n", ptx_dir());
        exit(TEST_SKIPPED);
    }
    skl_gpu = &emulated;
}

void test_device_reset(void)
{
    test_device.total = (struct emu_report){0};
    test_device.launches = test_device.products = test_device.kernel_count = 0;
}

/* --------------------------------------------------------------------------------------------------- fixtures --- */

static void send(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
    emu_written(to, bytes);
}

static void fetch(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

static void spoil(void *p, size_t bytes)
{
    memset(p, KIT_CANARY, bytes);
    emu_forget(p, bytes);
}

static void wait_for_nothing(void)
{
}

static const struct kit_device far_memory = {emu_allocate, emu_release, send, fetch, spoil, wait_for_nothing};
const struct kit_memory test_device_memory = {test_alloc, test_free, &far_memory};

static struct skl_tensor *input(struct skl_problem *p, int k)
{
    static struct skl_tensor labels; /* which the tests of labels place themselves */
    struct skl_tensor *each[KIT_INPUTS] = {&p->s.a,          &p->s.b,          &p->s.bias,   &p->t.a,   &p->t.b,
                                           &p->t.bias,       &p->sink_s,       &p->sink_t,   &p->begin, &p->end,
                                           &p->weight,       &p->lse_t,        &p->head_map, &labels,   &p->mass_ids,
                                           &p->cu_seqlens_q, &p->cu_seqlens_k, &p->support};
    return each[k];
}

void test_device_adopt(struct kit_fixture *f)
{
    for (int k = 0; k < KIT_INPUTS; k++) {
        if (!f->in[k].memory.data)
            continue;
        emu_adopt(f->in[k].memory.data, f->in[k].memory.size);
        emu_written(f->in[k].memory.data, f->in[k].memory.size);
        input(&f->p, k)->device = SKL_CUDA;
    }
    for (int k = 0; k < KIT_RESULTS; k++)
        if (f->out[k].memory.data)
            emu_adopt(f->out[k].memory.data, f->out[k].memory.size), f->out[k].t.device = SKL_CUDA;
    emu_adopt(&f->value, sizeof f->value);
}

void test_device_release(struct kit_fixture *f)
{
    for (int k = 0; k < KIT_INPUTS; k++)
        if (f->in[k].memory.data)
            emu_release(f->in[k].memory.data);
    for (int k = 0; k < KIT_RESULTS; k++)
        if (f->out[k].memory.data)
            emu_release(f->out[k].memory.data);
    emu_release(&f->value);
}

int test_device_clean(const char *what)
{
    const struct emu_report *r = &test_device.total;
    int wrong = !CHECK(r->errors == 0,
                       "%s: %" PRIu64 " races, %" PRIu64 " out of bounds, %" PRIu64 " not initialised, %" PRIu64
                       " not in step, %" PRIu64 " other: %s",
                       what, r->races, r->out_of_bounds, r->uninitialised, r->synchronisation, r->other,
                       r->texts ? r->text[0] : "");
    wrong += !CHECK(r->matrix_conflicts == 0 && r->vector_conflicts == 0,
                    "%s: %" PRIu64 " and %" PRIu64 " bank conflicts", what, r->matrix_conflicts, r->vector_conflicts);
    return wrong;
}
