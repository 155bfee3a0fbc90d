/* SPDX-License-Identifier: Apache-2.0 */
#include "ways.h"

#include <math.h>
#include <stdlib.h>

/* An error as a part of its bound, after taking off what rounding to the output's dtype may have moved it. Never NaN,
 * so that the largest can be taken; equal infinities are equal. */
static double part(double got, double want, double rounding, double bound)
{
    double error = got == want ? 0 : fabs(got - want);
    if (error <= rounding)
        return 0;
    double used = (error - rounding) / bound;
    return isnan(used) ? INFINITY : used;
}

static void find(struct kit_finding *x, int64_t index, double got, double want, double rounding, double bound)
{
    double used = part(got, want, rounding, bound);
    if (used > x->used)
        *x = (struct kit_finding){used, index, got, want, bound, x->spilt};
}

double kit_used(const struct kit_fixture *f, int result, int64_t index, double got)
{
    double want = f->want[result][index];
    return part(got, want, kit_half_ulp(f->out[result].t.dtype, got, want), f->bound[result][index]);
}

struct kit_outcome kit_no_outcome(void)
{
    struct kit_outcome o = {.status = SKL_OK};
    for (int k = 0; k < KIT_RESULTS; k++) o.of[k].used = -1;
    o.value.used = -1;
    return o;
}

void kit_compare_with(struct kit_fixture *f, int result, const double *got, const double *slack,
                      struct kit_outcome *outcome)
{
    for (int64_t i = 0; i < kit_count(&f->out[result].t); i++)
        find(&outcome->of[result], i, got[i], f->want[result][i],
             slack ? slack[i] : kit_half_ulp(f->out[result].t.dtype, got[i], f->want[result][i]), f->bound[result][i]);
}

void kit_compare(struct kit_fixture *f, struct skl_outputs *out, struct kit_outcome *outcome)
{
    for (int k = 0; k < KIT_RESULTS; k++) {
        if (!kit_slot(out, k)->data)
            continue;
        outcome->of[k].spilt |= !kit_take(&f->out[k], f->got);
        kit_compare_with(f, k, f->got, NULL, outcome);
    }
    if (out->value)
        find(&outcome->value, 0, f->value, f->want_value, 0, f->value_bound);
}

int kit_right(const struct kit_outcome *outcome)
{
    int right = outcome->status == SKL_OK && outcome->value.used <= 1;
    for (int k = 0; k < KIT_RESULTS; k++) right &= outcome->of[k].used <= 1 && !outcome->of[k].spilt;
    return right;
}

struct kit_outcome kit_sample(struct kit_fixture *f, int64_t rows, int gradients)
{
    int64_t all = skl_reference_rows(&f->p), D = f->c.dim[S];
    int with_grad = gradients && f->out[KIT_A_S].t.data;
    double *room = kit_doubles((size_t)(2 * D));
    struct kit_expected_row e = {.grad = with_grad ? room : NULL, .grad_bound = room + D};
    struct kit_outcome o = kit_no_outcome();
    struct skl_outputs asked = kit_asked(f, 1, 0);
    f->allow.rounds_logits = 0;
    rows = rows < all ? rows : all;
    for (int64_t k = 0; k < rows; k++) {
        int64_t row = rows > 1 ? k * (all - 1) / (rows - 1) : all - 1; /* the first, the last and some between */
        kit_expect_row(f, row, &e);
        for (int i = 0; i < KIT_FIRST_GRADIENT; i++)
            if (kit_slot(&asked, i)->data)
                find(&o.of[i], row, kit_get(&f->out[i].t, row), e.want[i], 0, e.bound[i]);
        for (int64_t d = 0; with_grad && d < D; d++) {
            double got = kit_get(&f->out[KIT_A_S].t, row * D + d);
            find(&o.of[KIT_A_S], row * D + d, got, e.grad[d], kit_half_ulp(f->out[KIT_A_S].t.dtype, got, e.grad[d]),
                 e.grad_bound[d]);
        }
    }
    free(room);
    return o;
}
