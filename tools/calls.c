/* SPDX-License-Identifier: Apache-2.0 */
#include "calls.h"
#include "device.h"
#include "options.h"

#include <math.h>
#include <stdlib.h>

const char *const call_names[] = {"value", "value_and_grad", "backward", NULL};

struct kit_case usual_case(int use, int64_t rows, int64_t cols, int64_t dim)
{
    struct kit_case c = use == SKL_LINEAR ? kit_linear_case(rows, cols, dim) : kit_attention_case(rows, cols, dim);
    c.spread = 2, c.quick = 1, c.grads = KIT_GRAD_STUDENT, c.threads = 0;
    return c;
}

void fill_usual(struct kit_case *c)
{
    int linear = c->use == SKL_LINEAR;
    c->heads = c->heads ? c->heads : linear ? 1 : 4;
    c->key_heads[S] = c->key_heads[T] = c->key_heads[S] ? c->key_heads[S] : c->heads;
    if (c->mix || c->lses) { /* mixed heads have no gradient */
        c->key_heads[T] = kit_teacher_heads(c);
        c->grads &= KIT_GRAD_STUDENT;
    }
    c->rows = c->rows ? c->rows : linear ? 256 : 4096;
    c->cols = c->cols ? c->cols : linear ? 32000 : 4096;
    c->dim[S] = c->dim[S] ? c->dim[S] : linear ? 2048 : 128;
    c->dim[T] = c->dim[T] ? c->dim[T] : c->dim[S];
    c->dtype[T] = c->dtype[S];
}

void require_shape(const struct command *command, const struct kit_case *c)
{
    if (c->heads % c->key_heads[S]) {
        fprintf(stderr, "streamkl %s: cannot use --kv-heads = %lld: it must divide --heads = %lld\n", command->name,
                (long long)c->key_heads[S], (long long)c->heads);
        exit(EXIT_USAGE);
    }
    if (c->use == SKL_LINEAR && (c->causal || c->left >= 0 || c->right >= 0 || c->batch > 1 || c->heads > 1)) {
        fprintf(stderr, "streamkl %s: cannot use batch, heads, causal or windows with --op = linear\n", command->name);
        exit(EXIT_USAGE);
    }
}

/* ----------------------------------------------------------------------------------------------- the device --- */

static void wait_for_device(void)
{
    const char *failed = device_wait();
    if (!failed)
        return;
    /* A fault in a kernel ends the use of the device by this process. */
    fprintf(stderr, "streamkl: the CUDA device failed: %s\n", failed);
    exit(EXIT_WRONG);
}

const struct kit_memory *memory_of(int device)
{
    static const struct kit_device cuda = {device_get,  device_free,  device_put,
                                           device_take, device_spoil, wait_for_device};
    static struct kit_memory with_device;
    if (device != SKL_CUDA)
        return &kit_heap;
    with_device = kit_heap;
    with_device.device = &cuda;
    return &with_device;
}

/* --------------------------------------------------------------------------------------------------- calls --- */

void must_call(struct kit_fixture *f, enum skl_call call)
{
    enum skl_status status = kit_call(f, call);
    if (status == SKL_OK)
        return;
    if (status == SKL_CANCELLED) {
        fprintf(stderr, "\nstreamkl: cancelled\n");
        exit(EXIT_INTERRUPTED);
    }
    fprintf(stderr, "streamkl: %s: %s\n", skl_status_string(status), skl_last_error());
    exit(EXIT_WRONG);
}

double flops_of(const struct kit_fixture *f, enum skl_call call)
{
    int64_t sweeps = f->c.mix > 1 && !f->c.lses ? 2 : 1, heads = f->c.mix > 1 ? f->c.mix * sweeps : 1;
    double pairs = 0, logits = (double)(f->c.dim[S] + heads * f->c.dim[T]), gradients = 2.0 * (double)f->c.dim[S];
    for (int64_t row = 0; row < skl_reference_rows(&f->p); row++) {
        int64_t lo, hi;
        skl_reference_range(&f->p, row, &lo, &hi);
        double seen = hi > lo ? (double)(hi - lo) : 0,
               listed = (double)f->c.support * fmax((double)f->c.support_block, 1);
        pairs += f->c.support ? fmin(seen, listed) : seen;
    }
    return 2 * pairs * (logits + (call == SKL_CALL_VALUE ? 0 : gradients));
}

/* --------------------------------------------------------------------------------------------------- errors --- */

double error_at_most(const struct kit_allowance *allow, enum kit_column column)
{
    return column == KIT_IN_LOSS || column == KIT_IN_LSE ? allow->rows * KIT_ROW_RELATIVE : KIT_GRAD_RELATIVE;
}

struct errors errors_of(const struct kit_outcome *o, const struct kit_allowance *allow)
{
    struct errors e = {{-1, -1, -1, -1}};
    for (int k = 0; k < KIT_RESULTS; k++) {
        double *worst = &e.of[kit_results[k].column];
        *worst = fmax(*worst, o->of[k].used);
    }
    e.of[KIT_IN_LOSS] = fmax(e.of[KIT_IN_LOSS], o->value.used);
    for (int column = 0; column < KIT_COLUMNS; column++)
        if (e.of[column] > 0)
            e.of[column] *= error_at_most(allow, (enum kit_column)column);
    return e;
}

double errors_largest(const struct errors *e)
{
    double most = 0;
    for (int column = 0; column < KIT_COLUMNS; column++) most = fmax(most, e->of[column]);
    return most;
}

void errors_print(FILE *to, const struct errors *e)
{
    const char *between = "";
    for (int column = 0; column < KIT_COLUMNS; column++) {
        if (e->of[column] < 0)
            continue;
        fprintf(to, "%s%s %.1e", between, kit_column_names[column], e->of[column]);
        between = ", ";
    }
}
