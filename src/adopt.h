/* SPDX-License-Identifier: Apache-2.0
 *
 * A caller's structure, which begins with its size, into one of this version: what the caller's version does not have
 * yet is 0, and what this version does not know yet must be 0.
 */
#ifndef SKL_ADOPT_H
#define SKL_ADOPT_H

#include "streamkl/streamkl.h"

/* What a problem may point to. */
struct skl_parts {
    struct skl_labels labels;
    struct skl_shard shard;
    struct skl_listed listed;
};

/* The problem, and into 'parts' those that it has, to which 'to' then points. */
enum skl_status skl_adopt_problem(const struct skl_problem *from, struct skl_problem *to, struct skl_parts *parts);

/* name: "out" or "saved", for the sentence. */
enum skl_status skl_adopt_outputs(const char *name, const struct skl_outputs *from, struct skl_outputs *to);

#endif
