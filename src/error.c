/* SPDX-License-Identifier: Apache-2.0 */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char message[320];

enum skl_status skl_fail(enum skl_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return status;
}

enum skl_status skl_bad(const char *name, long long value, const char *rule)
{
    return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s = %lld: %s", name, value, rule);
}

enum skl_status skl_bad_real(const char *name, double value, const char *rule)
{
    return skl_fail(SKL_BAD_ARGUMENT, "cannot use %s = %g: %s", name, value, rule);
}

const char *skl_last_error(void)
{
    return message;
}

const char *skl_status_string(enum skl_status status)
{
    switch (status) {
    case SKL_OK: return "ok";
    case SKL_BAD_ARGUMENT: return "bad argument";
    case SKL_UNSUPPORTED: return "unsupported";
    case SKL_OUT_OF_MEMORY: return "out of memory";
    case SKL_CANCELLED: return "cancelled";
    case SKL_NO_DEVICE: return "no CUDA device";
    case SKL_DEVICE_FAILED: return "CUDA call failed";
    case SKL_NO_LIBRARY: return "a library is missing";
    }
    return "unknown status";
}
