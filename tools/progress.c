/* SPDX-License-Identifier: Apache-2.0 */
#include "progress.h"
#include "clock.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

enum { BAR_WIDTH = 40 };

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal)
{
    (void)signal;
    interrupted = 1;
}

void progress_catch_interrupt(void)
{
    /* The default comes back after the first one, so that an impatient second Ctrl-C always works. */
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART | (int)SA_RESETHAND};
    sigaction(SIGINT, &action, NULL);
}

int progress_interrupted(void)
{
    return interrupted;
}

struct progress progress_begin(const char *label)
{
    return (struct progress){label, now(), 0};
}

int progress_show(void *data, double fraction)
{
    struct progress *progress = data;
    double t = now();
    if (isatty(STDERR_FILENO) && t - progress->shown > 0.1) {
        char bar[BAR_WIDTH + 1];
        for (int i = 0; i < BAR_WIDTH; i++) bar[i] = i < fraction * BAR_WIDTH ? '#' : '.';
        bar[BAR_WIDTH] = 0;
        fprintf(stderr, "\r%s [%s] %3.0f%%  %.1f s", progress->label, bar, 100 * fraction, t - progress->begin);
        progress->shown = t;
    }
    return interrupted;
}

void progress_end(struct progress *progress)
{
    if (isatty(STDERR_FILENO) && progress->shown > 0)
        fprintf(stderr, "\r\033[K");
    progress->shown = 0;
}
