/* SPDX-License-Identifier: Apache-2.0
 * The rules of a listed teacher: a part of the border (check.c). */
#ifndef SKL_CHECK_LISTED_H
#define SKL_CHECK_LISTED_H

#include "streamkl/streamkl.h"

struct skl_work;

/* The student's side has been checked, and there is a list. */
enum skl_status skl_check_listed(const struct skl_problem *p);

/* Every entry is a column or an empty slot, and together they are no more than everything. Tensors may be read. */
enum skl_status skl_check_listed_entries(const struct skl_problem *p, const struct skl_work *w);

#endif
