/* SPDX-License-Identifier: MIT
 * Log lines to the context's sink. Without a sink they go to standard error, and only because ATTN_LOG set a level. */
#include "base/log.h"
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const level_names[] = {"off", "warn", "info", "debug"};

/* Every area that a line may have. */
const char attn_base_log_areas[] = "check, cpu, ctx, cuda, env, execute, measure, plan, pool";

static int is_area(const char *word, size_t n) {
    const char *known = attn_base_log_areas;
    while (*known) {
        size_t m = strcspn(known, ",");
        if (m == n && !memcmp(known, word, n)) return 1;
        known += m + (known[m] ? 2 : 0);
    }
    return 0;
}

/* 0 if every word of a comma list is an area. */
static int check_areas(const char *areas, size_t room) {
    if (strlen(areas) >= room) return -1; /* a cut list would silence areas that were asked for */
    while (*areas) {
        size_t n = strcspn(areas, ",");
        if (!is_area(areas, n) || (areas[n] && !areas[n + 1])) return -1;
        areas += n + (areas[n] == ',');
    }
    return 0;
}

int attn_base_log_parse(struct attn_log *log, const char *spec) {
    log->level = ATTN_LOG_OFF;
    log->areas[0] = 0;
    if (!spec) return 0;
    size_t n = strcspn(spec, ",");
    const char *areas = spec[n] ? spec + n + 1 : spec + n;
    int32_t level = ATTN_LOG_OFF;
    while (level <= ATTN_LOG_DEBUG && !attn_text_equal(spec, n, level_names[level])) level++;
    if (level > ATTN_LOG_DEBUG || check_areas(areas, sizeof log->areas)) return -1;
    log->level = level;
    if (level != ATTN_LOG_OFF) memcpy(log->areas, areas, strlen(areas) + 1);
    return 0;
}

static int listed(const char *areas, const char *area) {
    if (!areas[0]) return 1;
    while (*areas) {
        size_t n = strcspn(areas, ",");
        if (attn_text_equal(areas, n, area)) return 1;
        areas += n + (areas[n] == ',');
    }
    return 0;
}

void attn_base_log(const struct attn_log *log, int32_t level, const char *area, const char *format, ...) {
    if (level <= ATTN_LOG_OFF || level > log->level || level > ATTN_LOG_DEBUG || !listed(log->areas, area)) return;
    char text[2048];
    va_list list;
    va_start(list, format);
    int n = vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (n < 0) return;
    for (char *c = text; *c; c++)
        if (*c == '\n' || *c == '\r') *c = ' '; /* the sink is promised one line */
    if (log->sink)
        log->sink(log->user, level, area, text);
    else
        fprintf(stderr, "attn %s %s: %s\n", level_names[level], area, text);
}
