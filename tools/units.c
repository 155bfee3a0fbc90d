/* SPDX-License-Identifier: Apache-2.0 */
#include "units.h"

#include <stdio.h>

/* Three significant digits, or all of the digits before the point. */
static const char *three_digits(char *text, double x, const char *unit)
{
    int decimals = x < 9.995 ? 2 : x < 99.95 ? 1 : 0;
    snprintf(text, sizeof((struct text *)0)->chars, "%.*f %s", decimals, x, unit);
    return text;
}

const char *human_bytes(char *text, double bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int u = 0;
    for (; bytes >= 1024 && u < 4; u++) bytes /= 1024;
    if (u == 0) {
        snprintf(text, sizeof((struct text *)0)->chars, "%.0f B", bytes);
        return text;
    }
    return three_digits(text, bytes, units[u]);
}

const char *human_seconds(char *text, double seconds)
{
    if (seconds < 1e-3)
        return three_digits(text, seconds * 1e6, "us");
    if (seconds < 1)
        return three_digits(text, seconds * 1e3, "ms");
    return three_digits(text, seconds, "s");
}
