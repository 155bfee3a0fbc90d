/* SPDX-License-Identifier: Apache-2.0
 *
 * Numbers as people read them. Each call writes into the caller's text and returns it, so that several fit into one
 * printf: human_bytes((struct text){0}.chars, n).
 */
#ifndef TOOL_UNITS_H
#define TOOL_UNITS_H

struct text {
    char chars[24];
};

/* "640 B", "1.50 MiB", "256 GiB" */
const char *human_bytes(char *text, double bytes);

/* "85 us", "12.3 ms", "4.56 s" */
const char *human_seconds(char *text, double seconds);

#endif
