/* SPDX-License-Identifier: Apache-2.0
 * The border, of columns that are named by their ids: labels, and the lists whose masses are wanted (mass_ids). */
#include "check.h"
#include "error.h"
#include "tensor.h"
#include "work.h"

/* Every label is a column or ignored. */
enum skl_status skl_check_label_ids(const struct skl_problem *p, const struct skl_work *w)
{
    int64_t columns = p->shard ? p->shard->columns : w->columns;
    const int64_t *stride = w->labels.ids.rows.stride;
    struct skl_places places = skl_places_of(w, stride, stride, stride);
    for (int64_t i = 0, at[3]; i < places.count; i++) {
        skl_place_index(&places, i, at);
        int64_t id = skl_row_id(&w->labels.ids, at, 0);
        if (id != p->labels->ignore && (id < 0 || id >= columns))
            return skl_fail(SKL_BAD_ARGUMENT,
                            "cannot use labels.ids[%lld] = %lld: it must be a column, 0 to %lld, or %lld (ignored)",
                            (long long)skl_row_number(w, at), (long long)id, (long long)columns - 1,
                            (long long)p->labels->ignore);
    }
    return SKL_OK;
}

enum skl_status skl_check_labels(const struct skl_problem *p)
{
    const struct skl_labels *l = p->labels;
    if (p->use != SKL_LINEAR)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use labels = %p: keys have no labels, they are for linear problems",
                        (const void *)l);
    struct skl_rule rule = {"labels.ids", p->s.a.ndim - 1, 1 << SKL_I32 | 1 << SKL_I64, p->s.a.shape, 0, 0};
    TRY(skl_check_tensor(&l->ids, &rule));
    if (!(fabs(l->weight) < HUGE_VAL))
        return skl_bad_real("labels.weight", l->weight, "it must be finite");
    if (!(fabs(l->kl_weight) < HUGE_VAL))
        return skl_bad_real("labels.kl_weight", l->kl_weight, "it must be finite");
    if (!(fabs(l->lse_weight) < HUGE_VAL))
        return skl_bad_real("labels.lse_weight", l->lse_weight, "it must be finite");
    if (!(l->smoothing >= 0 && l->smoothing < 1))
        return skl_bad_real("labels.smoothing", l->smoothing, "it must be at least 0 and below 1");
    if (!(l->z_loss >= 0 && l->z_loss < HUGE_VAL))
        return skl_bad_real("labels.z_loss", l->z_loss, "it must be finite and not negative");
    return SKL_OK;
}

/* Shaped as s.a but for the last dimension. */
enum skl_status skl_check_mass_ids(const struct skl_problem *p)
{
    int64_t shape[4] = {p->s.a.shape[0], p->s.a.shape[1], p->s.a.shape[2], p->s.a.shape[3]};
    struct skl_rule rule = {"mass_ids", p->s.a.ndim, 1 << SKL_I32 | 1 << SKL_I64, shape, 0, 0};
    shape[p->s.a.ndim - 1] = -1;
    return skl_check_tensor(&p->mass_ids, &rule);
}

/* Every id is a column or an empty slot. */
enum skl_status skl_check_mass_columns(const struct skl_work *w)
{
    const int64_t *stride = w->mass_ids.rows.stride;
    struct skl_places places = skl_places_of(w, stride, stride, stride);
    int64_t count = w->mass_ids.step || !w->mass_ids.count ? w->mass_ids.count : 1;
    for (int64_t i = 0, at[3]; i < places.count; i++) {
        skl_place_index(&places, i, at);
        for (int64_t k = 0; k < count; k++) {
            int64_t id = skl_row_id(&w->mass_ids, at, k);
            if (id < -1 || id >= w->columns)
                return skl_fail(SKL_BAD_ARGUMENT,
                                "cannot use mass_ids[%lld, %lld] = %lld: it must be a column, 0 to %lld, or -1 (empty)",
                                (long long)skl_row_number(w, at), (long long)k, (long long)id,
                                (long long)w->columns - 1);
        }
    }
    return SKL_OK;
}
