/* SPDX-License-Identifier: MIT
 * Bounded text building and scanning. Numbers are written and read with '.' whatever the locale; nothing allocates. */
#include "base/text.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void attn_text_add(struct attn_text *text, const char *format, ...) {
    size_t room = text->len < text->cap ? text->cap - text->len : 0;
    va_list list;
    if (text->mute) {
        text->len++;
        return;
    }
    va_start(list, format);
    int n = vsnprintf(room ? text->buf + text->len : NULL, room, format, list);
    va_end(list);
    if (n > 0) text->len += (size_t)n;
}

/* The decimal point of the thread's locale (one to four bytes in UTF-8), found without localeconv, which is not
 * thread-safe. */
static size_t decimal_point(char point[16]) {
    char half[24];
    int n = snprintf(half, sizeof half, "%.1f", 0.5); /* "0<point>5" */
    size_t bytes = n > 2 && n < 16 ? (size_t)n - 2 : 1;
    memcpy(point, n > 2 && n < 16 ? half + 1 : ".", bytes);
    return bytes;
}

void attn_text_add_double(struct attn_text *text, double value) {
    if (isnan(value) || isinf(value)) {
        attn_text_add(text, "%s", isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
        return;
    }
    char best[48] = "", form[48];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(form, sizeof form, "%.*g", digits, value);
        double back = strtod(form, NULL); /* same locale as the snprintf */
        if (!memcmp(&back, &value, sizeof back) && (!best[0] || strlen(form) < strlen(best)))
            memcpy(best, form, sizeof best);
    }
    char point[16];
    size_t bytes = decimal_point(point);
    char *found = best;
    for (size_t left = strlen(best); left >= bytes && memcmp(found, point, bytes); left--) found++;
    size_t head = (size_t)(found - best);
    if (strlen(best) - head < bytes)
        attn_text_add(text, "%s", best);
    else
        attn_text_add(text, "%.*s.%s", (int)head, best, found + bytes);
}

static int blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v'; }
static int digit(char c) { return c >= '0' && c <= '9'; }

size_t attn_text_word(const char **cursor, const char **word) {
    const char *c = *cursor;
    while (blank(*c)) c++;
    *word = c;
    while (*c && !blank(*c)) c++;
    *cursor = c;
    return (size_t)(c - *word);
}

int attn_text_int64(const char *s, size_t n, int64_t *out) {
    size_t i = 0;
    int negative = 0;
    if (n && (s[0] == '-' || s[0] == '+')) negative = s[i++] == '-';
    if (i == n) return -1;
    uint64_t limit = (uint64_t)INT64_MAX + (uint64_t)negative, value = 0;
    for (; i < n; i++) {
        if (!digit(s[i])) return -1;
        uint64_t d = (uint64_t)(s[i] - '0');
        if (value > (limit - d) / 10) return -1;
        value = value * 10 + d;
    }
    /* -(value - 1) - 1 reaches INT64_MIN without leaving the range of int64_t. */
    *out = !negative ? (int64_t)value : value ? -(int64_t)(value - 1) - 1 : 0;
    return 0;
}

int attn_text_equal(const char *s, size_t n, const char *word) { return strlen(word) == n && !memcmp(s, word, n); }

/* Length of [digits][.digits][e[+-]digits] at the start of s, 0 if there is none; *dot is where the point stands, or n.
 */
static size_t decimal_length(const char *s, size_t n, size_t *dot) {
    size_t i = 0, digits = 0;
    *dot = n;
    for (; i < n && digit(s[i]); i++) digits++;
    if (i < n && s[i] == '.') {
        *dot = i++;
        for (; i < n && digit(s[i]); i++) digits++;
    }
    if (!digits) return 0;
    if (i < n && (s[i] == 'e' || s[i] == 'E')) {
        size_t e = i + 1;
        if (e < n && (s[e] == '+' || s[e] == '-')) e++;
        if (e == n || !digit(s[e])) return i;
        while (e < n && digit(s[e])) e++;
        i = e;
    }
    return i;
}

int attn_text_double(const char *s, size_t n, double *out) {
    size_t sign = n && (s[0] == '-' || s[0] == '+');
    int negative = sign && s[0] == '-';
    s += sign;
    n -= sign;
    if (attn_text_equal(s, n, "inf") || attn_text_equal(s, n, "nan")) {
        double value = s[0] == 'i' ? (double)INFINITY : (double)NAN;
        *out = negative ? -value : value;
        return 0;
    }
    char copy[320], point[16];
    size_t dot, bytes = decimal_point(point);
    if (n == 0 || n + bytes >= sizeof copy || decimal_length(s, n, &dot) != n) return -1;
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        if (i == dot) {
            memcpy(copy + used, point, bytes);
            used += bytes;
        } else {
            copy[used++] = s[i];
        }
    }
    copy[used] = 0;
    int saved = errno;
    double value = strtod(copy, NULL);
    errno = saved;
    if (isinf(value)) return -1; /* overflow; underflow rounds like any other number */
    *out = negative ? -value : value;
    return 0;
}

int attn_text_match(const char *pattern, const char *name) {
    const char *star = NULL, *retry = NULL; /* after a mismatch the last star swallows one more character */
    while (*name) {
        if (*pattern == '*') {
            star = ++pattern;
            retry = name;
        } else if (*pattern == '?' || *pattern == *name) {
            pattern++;
            name++;
        } else if (star) {
            pattern = star;
            name = ++retry;
        } else {
            return 0;
        }
    }
    while (*pattern == '*') pattern++;
    return !*pattern;
}

/* Rows of the usual dynamic programme. */
int attn_text_distance(const char *a, size_t n, const char *b) {
    enum { MAX = 24 };
    size_t m = strlen(b);
    if (n > MAX || m > MAX) return MAX;
    int row[MAX + 1];
    for (size_t j = 0; j <= m; j++) row[j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            int change = diagonal + (a[i - 1] != b[j - 1]);
            int step = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            diagonal = row[j];
            row[j] = change < step ? change : step;
        }
    }
    return row[m];
}
