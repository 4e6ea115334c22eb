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
/* "off|warn|info|debug[,area,...]". 0; or -1, level OFF, where the level or an area is unknown or the list too long. */
int attn_base_log_parse(struct attn_log *log, const char *spec);
extern const char attn_base_log_areas[]; /* "cpu, cuda, ...", for messages */
void attn_base_log(const struct attn_log *log, int32_t level, const char *area, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
#endif
