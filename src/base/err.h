/* SPDX-License-Identifier: MIT
 * Error text: one thread-local record per thread, filled by the function that refuses. Never prints. */
#ifndef ATTN_BASE_ERR_H
#define ATTN_BASE_ERR_H
#include "attn.h"

/* Record a failure and return `status`. `argument` names the public struct member or parameter; expected and given are
 * the two integers of the text where there are two (else 0). The format is checked by the compiler. */
attn_status attn_base_fail(attn_status status, const char *argument, int64_t expected, int64_t given,
                           const char *format, ...) __attribute__((format(printf, 5, 6), cold));

/* The record of this thread; text is "" before the first failure. */
struct attn_base_error {
    attn_status status;
    int64_t expected, given;
    char argument[32];
    char text[8192]; /* "no kernel" lists one reason per kernel tried */
};
const struct attn_base_error *attn_base_error_get(void);
/* Put back a saved copy: for calls that succeed although something inside them was refused. */
void attn_base_error_restore(const struct attn_base_error *saved);

/* FAIL(status, "argument", "format", ...) leaves the function; FAIL2 also records the two numbers. */
#define FAIL(status, argument, ...) return attn_base_fail((status), (argument), 0, 0, __VA_ARGS__)
#define FAIL2(status, argument, expected, given, ...)                                                                  \
    return attn_base_fail((status), (argument), (expected), (given), __VA_ARGS__)
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        attn_status try_status_ = (call);                                                                              \
        if (try_status_) return try_status_;                                                                           \
    } while (0)
#endif
