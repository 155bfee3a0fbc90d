/* SPDX-License-Identifier: Apache-2.0 */
#include "ways.h"

const char *const kit_way_names[KIT_WAYS] = {"value", "value+grad", "low memory", "backward", "slices"};

size_t kit_least_limit(const struct skl_problem *p, enum skl_call call, const struct skl_outputs *out)
{
    struct skl_problem q = *p;
    size_t refused = 0, taken, bytes;
    q.workspace_limit = 0;
    if (skl_workspace_size(call, &q, out, &taken) != SKL_OK || taken == 0)
        return 1;
    while (taken - refused > 1) {
        q.workspace_limit = refused + (taken - refused) / 2;
        if (skl_workspace_size(call, &q, out, &bytes) == SKL_OK)
            taken = q.workspace_limit;
        else
            refused = q.workspace_limit;
    }
    return taken;
}

int kit_in_slices(const struct kit_case *c)
{
    return !c->sinks && !c->raw && (c->lses || c->mix <= 1) && !c->labels && !c->details && !c->mass_ids && !c->support;
}

int kit_succeeds(struct kit_outcome *outcome, enum skl_status status)
{
    if (outcome->status == SKL_OK)
        outcome->status = status;
    return outcome->status == SKL_OK;
}

struct kit_outcome kit_run(struct kit_fixture *f, enum kit_way way)
{
    if (way == KIT_SLICES)
        return kit_run_slices(f, kit_between(f->random, 1, f->c.cols < 5 ? f->c.cols : 5));
    struct kit_outcome o = kit_no_outcome();
    f->loss_alone = way == KIT_VALUE;
    struct skl_outputs out = kit_outputs(f, 1, way == KIT_VALUE ? 0 : KIT_GRAD_ALL);
    size_t limit = f->p.workspace_limit;
    if (way == KIT_RECOMPUTE) {
        struct skl_problem p = kit_problem(f);
        f->p.workspace_limit = kit_least_limit(&p, SKL_CALL_VALUE_AND_GRAD, &out);
    }
    if (way == KIT_TOGETHER && f->memory->device)
        kit_reserve(f, SKL_CALL_VALUE_AND_GRAD);
    if (way == KIT_VALUE || way == KIT_BACKWARD)
        kit_succeeds(&o, kit_call(f, SKL_CALL_VALUE));
    if (way == KIT_TOGETHER || way == KIT_RECOMPUTE)
        kit_succeeds(&o, kit_call(f, SKL_CALL_VALUE_AND_GRAD));
    if (way == KIT_BACKWARD && o.status == SKL_OK)
        kit_succeeds(&o, kit_call(f, SKL_CALL_BACKWARD));
    f->p.workspace_limit = limit;
    kit_give_back(f);
    if (o.status == SKL_OK) {
        kit_fetch(f);
        kit_compare(f, &out, &o);
    }
    f->loss_alone = 0;
    return o;
}
