/* SPDX-License-Identifier: Apache-2.0
 * Partial rows as callers hold them: states named by student and teacher, and merging arrays of them. */
#include "error.h"
#include "float_mode.h"
#include "work.h"

struct skl_state skl_public_state(const struct skl_work *w, const struct skl_row_state *row)
{
    const struct skl_side_state *s = &row->side[w->student], *t = &row->side[!w->student];
    return (struct skl_state){s->m, s->l, s->acc, t->m, t->l, t->acc};
}

struct skl_row_state skl_private_state(const struct skl_work *w, const struct skl_state *state)
{
    struct skl_row_state row;
    row.side[w->student] = (struct skl_side_state){state->m_s, state->l_s, state->acc_s};
    row.side[!w->student] = (struct skl_side_state){state->m_t, state->l_t, state->acc_t};
    return row;
}

enum skl_status skl_merge(int64_t rows, struct skl_state *into, const struct skl_state *from)
{
    if (rows < 0)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use rows = %lld: it must not be negative", (long long)rows);
    if (rows && (!into || !from))
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s = NULL: it must point to %lld states", into ? "from" : "into",
                        (long long)rows);
    if ((uintptr_t)into % sizeof(double) || (uintptr_t)from % sizeof(double))
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s = %p: it must be aligned to %d bytes",
                        (uintptr_t)into % sizeof(double) ? "into" : "from",
                        (uintptr_t)into % sizeof(double) ? (const void *)into : (const void *)from,
                        (int)sizeof(double));
    uintptr_t bytes = (uintptr_t)rows * sizeof *into,
              distance = into < from ? (uintptr_t)from - (uintptr_t)into : (uintptr_t)into - (uintptr_t)from;
    if (distance < bytes)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use into = %p: it shares memory with from", (void *)into);
    static const struct skl_work any_order; /* the rule is the same for both sides */
    struct skl_float_mode mode = skl_enter_float_mode();
    for (int64_t i = 0; i < rows; i++) {
        struct skl_row_state x = skl_private_state(&any_order, &into[i]), y = skl_private_state(&any_order, &from[i]);
        skl_merge_row(&x, &y);
        into[i] = skl_public_state(&any_order, &x);
    }
    skl_leave_float_mode(mode);
    return SKL_OK;
}
