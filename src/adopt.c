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

enum skl_status skl_adopt_problem(const struct skl_problem *from, struct skl_problem *to, struct skl_parts *parts)
{
    if (!from)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use problem = NULL: make one with skl_attention() or skl_linear()");
    enum skl_status status = adopt("problem", from, FIRST_PROBLEM, sizeof *to, to);
#define PART(name, first)                                                         \
    if (!status && to->name) {                                                    \
        status = adopt(#name, to->name, first, sizeof parts->name, &parts->name); \
        to->name = &parts->name;                                                  \
    }
    PART(labels, FIRST_LABELS)
    PART(shard, FIRST_SHARD)
    PART(listed, FIRST_LISTED)
#undef PART
    return status;
}

enum skl_status skl_adopt_outputs(const char *name, const struct skl_outputs *from, struct skl_outputs *to)
{
    if (!from)
        return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s = NULL: make one with skl_no_outputs()", name);
    return adopt(name, from, FIRST_OUTPUTS, sizeof *to, to);
}
