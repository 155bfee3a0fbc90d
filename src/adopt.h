/* SPDX-License-Identifier: Apache-2.0
 *
 * A caller's structure, which begins with its size, into one of this version: what the caller's version does not have yet is
 * 0, and what this version does not know yet must be 0.
 */
#ifndef SKL_ADOPT_H
#define SKL_ADOPT_H

#include "streamkl/streamkl.h"

enum skl_status skl_adopt_problem(const struct skl_problem *from, struct skl_problem *to);
/* What the problem points to, if anything, into 'to', to which it then points. */
enum skl_status skl_adopt_labels(struct skl_problem *p, struct skl_labels *to);
enum skl_status skl_adopt_shard(struct skl_problem *p, struct skl_shard *to);
enum skl_status skl_adopt_listed(struct skl_problem *p, struct skl_listed *to);
/* name: "out" or "saved", for the sentence. */
enum skl_status skl_adopt_outputs(const char *name, const struct skl_outputs *from, struct skl_outputs *to);

#endif
