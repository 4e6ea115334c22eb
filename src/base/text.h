/* SPDX-License-Identifier: MIT
 * Bounded string builder (counts what it could not store) and a scanner of key=value words. Locale-independent. */
#ifndef ATTN_BASE_TEXT_H
#define ATTN_BASE_TEXT_H
#include <stddef.h>
#include <stdint.h>

/* Writes at most cap bytes, always NUL-terminated when cap > 0; len counts what the whole text needs without NUL. */
struct attn_text {
    char *buf;
    size_t cap, len;
    int mute; /* nobody reads the words: len only says whether there are any */
};
static inline struct attn_text attn_text_over(char *buf, size_t cap) {
    if (cap) buf[0] = 0;
    return (struct attn_text){.buf = buf, .cap = cap};
}
static inline struct attn_text attn_text_mute(void) { return (struct attn_text){.mute = 1}; }
void attn_text_add(struct attn_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void attn_text_add_double(struct attn_text *text, double value); /* shortest form that reads back exactly, '.' always */

/* Next blank-separated word of *cursor: returns its length (0 at the end), *word points at it, cursor moves on. */
size_t attn_text_word(const char **cursor, const char **word);
/* Whole-string numbers; return 0 on success, -1 if anything is left over or out of range. No locale. */
int attn_text_int64(const char *s, size_t n, int64_t *out);
int attn_text_double(const char *s, size_t n, double *out); /* decimal or inf, nan */
int attn_text_equal(const char *s, size_t n, const char *word);
/* Edit distance of two short words; large where one is too long (24 characters) to be close. */
int attn_text_distance(const char *s, size_t n, const char *word);
int attn_text_match(const char *pattern, const char *name); /* glob with * and ?; 1 = match */
#endif
