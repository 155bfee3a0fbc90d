/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <streamkl/streamkl.h>

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_OPTIONS = 48, FIRST_ID = 256 };

const char *const isa_names[] = {"best", "baseline", "avx2", "avx512", "neon", "amx", "avx512bf16", "neonbf16", NULL};

static void print_argument(const struct option_spec *option)
{
    if (option->kind == OPTION_INT)
        printf(" N");
    if (option->kind == OPTION_REAL)
        printf(" X");
    for (int i = 0; option->kind == OPTION_NAME && option->names[i]; i++)
        printf("%c%s", i ? '|' : ' ', option->names[i]);
}

static void print_default(const struct option_spec *option)
{
    if (option->kind == OPTION_INT)
        printf(" (%lld)", (long long)*(int64_t *)option->value);
    if (option->kind == OPTION_REAL)
        printf(" (%g)", *(double *)option->value);
    if (option->kind == OPTION_NAME)
        printf(" (%s)", option->names[*(int *)option->value]);
}

static void print_help(const struct command *command)
{
    printf("usage: streamkl %s [options]\n\n%s\n\noptions, with their defaults:\n", command->name, command->about);
    for (const struct option_spec *o = command->options; o->name; o++) {
        printf("  --%s", o->name);
        print_argument(o);
        printf("\n        %s", o->help);
        print_default(o);
        printf("\n");
    }
    printf("  --help\n        this text\n");
}

static void refuse(const struct command *command, const char *option, const char *value, const char *rule)
{
    fprintf(stderr, "streamkl %s: cannot use --%s = %s: %s\n", command->name, option, value, rule);
    exit(EXIT_USAGE);
}

static double parse_number(const struct command *command, const struct option_spec *option, const char *text)
{
    char *end, rule[96];
    errno = 0;
    double x = strtod(text, &end);
    int whole = option->kind == OPTION_REAL || x == floor(x);
    if (end == text || *end || errno || !whole || !(x >= option->min && x <= option->max)) {
        snprintf(rule, sizeof rule, "%s from %.13g to %.13g is needed",
                 option->kind == OPTION_INT ? "a whole number" : "a number", option->min, option->max);
        refuse(command, option->name, text, rule);
    }
    return x;
}

static int parse_name(const struct command *command, const struct option_spec *option, const char *text)
{
    char rule[128] = "one of these is needed:";
    for (int i = 0; option->names[i]; i++) {
        if (!strcmp(option->names[i], text))
            return i;
        size_t used = strlen(rule);
        snprintf(rule + used, sizeof rule - used, " %s", option->names[i]);
    }
    refuse(command, option->name, text, rule);
    return 0;
}

static void set_value(const struct command *command, const struct option_spec *option, const char *text)
{
    switch (option->kind) {
    case OPTION_FLAG: *(int *)option->value = 1; break;
    case OPTION_INT: *(int64_t *)option->value = (int64_t)parse_number(command, option, text); break;
    case OPTION_REAL: *(double *)option->value = parse_number(command, option, text); break;
    case OPTION_NAME: *(int *)option->value = parse_name(command, option, text); break;
    }
}

int options_parse(const struct command *command, int argc, char **argv)
{
    struct option table[MAX_OPTIONS + 2] = {{"help", no_argument, NULL, 'h'}};
    int groups = 0;
    for (int i = 0; command->options[i].name && i < MAX_OPTIONS; i++) {
        int argument = command->options[i].kind == OPTION_FLAG ? no_argument : required_argument;
        table[i + 1] = (struct option){command->options[i].name, argument, NULL, FIRST_ID + i};
    }
    opterr = 0;
    optind = 1;
    for (int id; (id = getopt_long(argc, argv, ":h", table, NULL)) != -1;) {
        if (id == 'h') {
            print_help(command);
            exit(0);
        }
        if (id == '?' || id == ':') {
            const char *what = id == ':' ? "needs a value" : "is not an option here";
            fprintf(stderr, "streamkl %s: %s %s; see streamkl %s --help\n", command->name, argv[optind - 1], what,
                    command->name);
            exit(EXIT_USAGE);
        }
        set_value(command, &command->options[id - FIRST_ID], optarg);
        groups |= command->options[id - FIRST_ID].group;
    }
    if (optind < argc) {
        fprintf(stderr, "streamkl %s: cannot use the argument %s: only options are expected; see streamkl %s --help\n",
                command->name, argv[optind], command->name);
        exit(EXIT_USAGE);
    }
    return groups;
}

void require_isa(const struct command *command, int isa)
{
    if (isa != SKL_ISA_BEST && !skl_isa_available((enum skl_isa)isa))
        refuse(command, "isa", isa_names[isa], "this build or CPU does not have it");
}
