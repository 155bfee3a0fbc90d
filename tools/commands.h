/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOL_COMMANDS_H
#define TOOL_COMMANDS_H

/* Each gets the arguments after "streamkl", so argv[0] is its own name, and returns the exit code. */
int command_info(int argc, char **argv);
int command_check(int argc, char **argv);
int command_demo(int argc, char **argv);
int command_bench(int argc, char **argv);
int command_plan(int argc, char **argv);

#endif
