/* SPDX-License-Identifier: Apache-2.0
 *
 * The streamkl program: one command per file.
 */
#include "commands.h"
#include "options.h"

#include <streamkl/streamkl.h>

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} commands[] = {
    {"demo", command_demo, "distil an attention layer and a vocabulary on built-in data, and show the memory it took"},
    {"info", command_info, "what this build and this machine have"},
    {"check", command_check, "compare the engine with the reference in double precision"},
    {"plan", command_plan, "how evenly the threads of a large machine would share a call"},
    {"bench", command_bench, "speed, memory and error of one work or of a set of them"},
};

enum { COMMANDS = sizeof commands / sizeof *commands };

static void print_help(FILE *to)
{
    fprintf(to,
            "streamkl %s: the divergence between two softmax distributions, and its gradient, without storing them\n\n"
            "usage: streamkl COMMAND [options]\n\n",
            skl_version());
    for (int k = 0; k < COMMANDS; k++) fprintf(to, "  %-7s %s\n", commands[k].name, commands[k].help);
    fprintf(to, "\nstreamkl COMMAND --help shows the options of a command.\n");
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    for (int k = 0; k < COMMANDS; k++)
        if (!strcmp(name, commands[k].name))
            return commands[k].run(argc - 1, argv + 1);
    if (!strcmp(name, "--version") || !strcmp(name, "version")) {
        printf("streamkl %s\n", skl_version());
        return 0;
    }
    if (!strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "help")) {
        print_help(stdout);
        return 0;
    }
    if (*name)
        fprintf(stderr, "streamkl: cannot use the command %s: there is none of that name\n\n", name);
    print_help(stderr);
    return EXIT_USAGE;
}
