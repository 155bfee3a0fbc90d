/* SPDX-License-Identifier: Apache-2.0
 *
 * A progress bar on a terminal (nothing elsewhere), and Ctrl-C as a wish that the next progress call passes on.
 */
#ifndef TOOL_PROGRESS_H
#define TOOL_PROGRESS_H

struct progress {
    const char *label;
    double begin, shown; /* when the work began, and when the bar was last drawn */
};

/* From now on Ctrl-C sets a flag instead of ending the program; a second one ends it. */
void progress_catch_interrupt(void);
int progress_interrupted(void);

struct progress progress_begin(const char *label);

/* An skl_progress with data = the struct progress. Returns 1 after Ctrl-C. */
int progress_show(void *data, double fraction);

/* Removes the bar. */
void progress_end(struct progress *progress);

#endif
