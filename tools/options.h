/* SPDX-License-Identifier: Apache-2.0
 *
 * Command-line options from one table per command: it is parsed, checked and printed as help in one place.
 */
#ifndef TOOL_OPTIONS_H
#define TOOL_OPTIONS_H

#include <stdint.h>

/* What the program returns, besides 0. */
enum { EXIT_WRONG = 1, EXIT_USAGE = 2, EXIT_INTERRUPTED = 130 };

enum option_kind {
    OPTION_FLAG, /* int: becomes 1 */
    OPTION_INT,  /* int64_t between min and max */
    OPTION_REAL, /* double between min and max */
    OPTION_NAME  /* int: the position in names, a list that ends with NULL */
};

struct option_spec {
    const char *name; /* "rows": used as --rows N */
    enum option_kind kind;
    void *value;
    double min, max;
    const char *const *names;
    const char *help;
    int group; /* a bit: options_parse returns which groups were used */
};

struct command {
    const char *name;                  /* "bench" */
    const char *about;                 /* what it does, in a sentence or a few */
    const struct option_spec *options; /* ends with a NULL name */
};

/* Sets the values. --help prints and exits with 0; anything wrong prints a sentence and exits with EXIT_USAGE. */
int options_parse(const struct command *command, int argc, char **argv);

/* Exits with EXIT_USAGE when this build or CPU lacks the instruction set. */
void require_isa(const struct command *command, int isa);

/* Positions are those of enum skl_isa. */
extern const char *const isa_names[];

#endif
