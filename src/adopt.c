/* SPDX-License-Identifier: Apache-2.0
 * Structures of callers whose header is older or newer than this library; "How this interface grows" in streamkl.h. */
#include "adopt.h"

#include "error.h"

/* The first version of each structure, which every caller has, ends with this field. */
enum {
    FIRST_PROBLEM = offsetof(struct skl_problem, reserved) + sizeof(int32_t),
    FIRST_OUTPUTS = offsetof(struct skl_outputs, t) + sizeof(struct skl_grads),
    FIRST_LABELS = sizeof(struct skl_labels),
    FIRST_SHARD = offsetof(struct skl_shard, rows) + sizeof(int64_t),
    FIRST_LISTED = sizeof(struct skl_listed),
    LARGEST_SIZE = 1 << 16 /* no version will have a larger one: such a size was never set */
};

/* Copies a caller's structure, which begins with its size, into one of this version: what the caller's version does not
 * have yet is 0, what this version does not know yet must be 0. */
static enum skl_status adopt(const char *name, const void *from, size_t first, size_t now, void *to)
{
    size_t size;
    memcpy(&size, from, sizeof size);
    if (size < first || size > LARGEST_SIZE)
        return skl_fail(SKL_BAD_ARGUMENT,
                        "cannot use %s.struct_size = %zu: it must be the sizeof of the structure, %zu here", name, size,
                        now);
    for (size_t i = now; i < size; i++)
        if (((const char *)from)[i])
            return skl_fail(
                SKL_BAD_ARGUMENT,
                "cannot use %s with byte %zu set: streamkl %s knows its first %zu bytes. Update the library, or "
                "leave what is newer than it at 0",
                name, i, skl_version(), now);
    memset(to, 0, now);
    memcpy(to, from, size < now ? size : now);
    return SKL_OK;
}

enum skl_status skl_adopt_problem(const struct skl_problem *from, struct skl_problem *to)
{
    if (!from)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use problem = NULL: make one with skl_attention() or skl_linear()");
    return adopt("problem", from, FIRST_PROBLEM, sizeof *to, to);
}

enum skl_status skl_adopt_labels(struct skl_problem *p, struct skl_labels *to)
{
    if (!p->labels)
        return SKL_OK;
    enum skl_status status = adopt("labels", p->labels, FIRST_LABELS, sizeof *to, to);
    p->labels = to;
    return status;
}

enum skl_status skl_adopt_shard(struct skl_problem *p, struct skl_shard *to)
{
    if (!p->shard)
        return SKL_OK;
    enum skl_status status = adopt("shard", p->shard, FIRST_SHARD, sizeof *to, to);
    p->shard = to;
    return status;
}

enum skl_status skl_adopt_listed(struct skl_problem *p, struct skl_listed *to)
{
    if (!p->listed)
        return SKL_OK;
    enum skl_status status = adopt("listed", p->listed, FIRST_LISTED, sizeof *to, to);
    p->listed = to;
    return status;
}

enum skl_status skl_adopt_outputs(const char *name, const struct skl_outputs *from, struct skl_outputs *to)
{
    if (!from)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s = NULL: make one with skl_no_outputs()", name);
    return adopt(name, from, FIRST_OUTPUTS, sizeof *to, to);
}
