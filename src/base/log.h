/* SPDX-License-Identifier: MIT
 * Log lines: level by event frequency (warn: once per object, info: per object made, debug: per execution). */
#ifndef ATTN_BASE_LOG_H
#define ATTN_BASE_LOG_H
#include "attn.h"

struct attn_log {
    attn_log_fn sink; /* NULL = standard error */
    void *user;
    int32_t level;
    char areas[96]; /* comma list from ATTN_LOG, "" = all */
};
/* "warn|info|debug[,area,...]"; unknown words give OFF. */
void attn_base_log_parse(struct attn_log *log, const char *spec);
void attn_base_log(const struct attn_log *log, int32_t level, const char *area, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
#endif
