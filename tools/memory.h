/* SPDX-License-Identifier: Apache-2.0
 *
 * How much memory a piece of work took, measured in two ways:
 *   allocated: the most bytes that malloc and its family had handed out above the starting level;
 *   resident:  how far the process's resident set rose, which also sees stacks and whatever malloc does not.
 */
#ifndef TOOL_MEMORY_H
#define TOOL_MEMORY_H

struct memory_mark {
    double allocated, resident;
};

/* Forgets earlier peaks. Buffers that the work fills should have been touched before. */
struct memory_mark memory_begin(void);

/* The growth since the mark, in bytes; allocated is -1 where the linker cannot count it. */
struct memory_mark memory_end(struct memory_mark begin);

/* Allocated bytes, or the resident ones where those are not counted. */
double memory_extra(struct memory_mark growth);

#endif
