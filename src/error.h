/* SPDX-License-Identifier: Apache-2.0
 * The per-thread sentence behind skl_last_error(). */
#ifndef SKL_ERROR_H
#define SKL_ERROR_H

#include "streamkl/streamkl.h"

/* Keeps the sentence and returns the status, so that a check reads: return skl_fail(SKL_BAD_ARGUMENT, "..."). */
enum skl_status skl_fail(enum skl_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same for one number: "cannot use NAME = VALUE: RULE". */
enum skl_status skl_bad(const char *name, long long value, const char *rule);
enum skl_status skl_bad_real(const char *name, double value, const char *rule);

#endif
