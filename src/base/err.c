/* SPDX-License-Identifier: MIT
 * The error record of each thread. Reading it back through the public API is api/status.c's work. */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local struct attn_base_error record;

attn_status attn_base_fail(attn_status status, const char *argument, int64_t expected, int64_t given,
                           const char *format, ...) {
    /* A message often wraps the one before it ("%s" of record.text), so it is built outside the record. */
    char text[sizeof record.text];
    char name[sizeof record.argument];
    va_list list;
    va_start(list, format);
    int n = vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (n < 0) text[0] = 0;
    snprintf(name, sizeof name, "%s", argument ? argument : "");

    memcpy(record.text, text, strlen(text) + 1);
    memcpy(record.argument, name, sizeof name);
    record.status = status;
    record.expected = expected;
    record.given = given;
    return status;
}

const struct attn_base_error *attn_base_error_get(void) { return &record; }

void attn_base_error_restore(const struct attn_base_error *saved) { record = *saved; }
