/* SPDX-License-Identifier: Apache-2.0
 * What a plan makes of a call: its phases, and how evenly threads share them. For `streamkl plan` and tests. */
#ifndef SKL_CPU_PHASES_H
#define SKL_CPU_PHASES_H

#include "plan.h"

enum { SKL_PHASES_MAX = 10 };

/* Work in units of one f32 multiply-add of the products. */
struct skl_phase {
    const char *name;
    int64_t tasks;        /* of a whole wave */
    double work, longest; /* of all waves: in all, and of the thread that has most */
};

/* The phases of a call; returns how many. All segments are taken to be like the first one. */
int skl_count_phases(const struct skl_work *w, const struct skl_plan *plan, struct skl_phase phases[SKL_PHASES_MAX]);

/* work / (threads x longest), of all phases together; of one phase with n = 1. */
double skl_efficiency(const struct skl_plan *plan, const struct skl_phase *phases, int n);

#endif
