/* SPDX-License-Identifier: MIT
 * Words, numbers and punctuation of PTX text. A word takes dots, '::' and '$', '%', '_' in: "cp.async.wait_group",
 * "%tid.x", "$L__BB0_2" and "mbarrier.arrive.shared::cta.b64" are one word each. */
#include "ptx/ptx.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static int word_char(int c) { return isalnum(c) || c == '_' || c == '$' || c == '%' || c == '.'; }

static void skip(struct ptx_lexer *x) {
    for (;;) {
        if (*x->next == '\n') {
            x->line++, x->next++;
        } else if (isspace((unsigned char)*x->next)) {
            x->next++;
        } else if (x->next[0] == '/' && x->next[1] == '/') {
            while (*x->next && *x->next != '\n') x->next++;
        } else if (x->next[0] == '/' && x->next[1] == '*') {
            for (x->next += 2; *x->next && !(x->next[0] == '*' && x->next[1] == '/'); x->next++)
                x->line += *x->next == '\n';
            if (*x->next) x->next += 2;
        } else {
            return;
        }
    }
}

void ptx_next(struct ptx_lexer *x, struct ptx_token *t) {
    skip(x);
    t->text = x->next, t->line = x->line, t->n = 0;
    const char *p = x->next;
    if (!*p) {
        t->kind = PTX_T_END;
        return;
    }
    if (*p == '"') {
        t->kind = PTX_T_STRING;
        for (p++; *p && *p != '"' && *p != '\n'; p++) {
        }
        if (*p == '"') p++;
    } else if (isdigit((unsigned char)*p)) {
        t->kind = PTX_T_NUMBER;
        while (isalnum((unsigned char)*p) || *p == '.' ||
               ((*p == '+' || *p == '-') && (p[-1] == 'e' || p[-1] == 'E') && x->next[1] != 'x' && x->next[1] != 'f' &&
                x->next[1] != 'd'))
            p++;
    } else if (word_char((unsigned char)*p)) {
        t->kind = PTX_T_WORD;
        while (word_char((unsigned char)*p) || (p[0] == ':' && p[1] == ':' && word_char((unsigned char)p[2])) ||
               (p[0] == ':' && p[-1] == ':' && p != x->next))
            p++;
    } else {
        t->kind = PTX_T_PUNCT;
        p++;
    }
    t->n = (uint32_t)(p - x->next);
    x->next = p;
}

int ptx_is(const struct ptx_token *t, const char *text) {
    return t->kind != PTX_T_END && strlen(text) == t->n && !memcmp(t->text, text, t->n);
}

int ptx_number(const struct ptx_token *t, enum ptx_kind *kind, uint64_t *value) {
    char text[64], *end;
    if (t->kind != PTX_T_NUMBER || t->n >= sizeof text) return -1;
    memcpy(text, t->text, t->n);
    text[t->n] = 0;
    if (text[0] == '0' && (text[1] == 'f' || text[1] == 'F' || text[1] == 'd' || text[1] == 'D')) {
        int single = text[1] == 'f' || text[1] == 'F';
        *kind = single ? PTX_FLOAT32 : PTX_FLOAT64;
        *value = strtoull(text + 2, &end, 16);
        return *end || t->n != (single ? 10u : 18u);
    }
    if (strchr(text, '.') || (text[1] != 'x' && text[1] != 'X' && strpbrk(text, "eE"))) {
        double x = strtod(text, &end);
        *kind = PTX_FLOAT64;
        memcpy(value, &x, sizeof x);
        return *end != 0;
    }
    *kind = PTX_INT;
    if (text[0] == '0' && (text[1] == 'b' || text[1] == 'B'))
        *value = strtoull(text + 2, &end, 2);
    else
        *value = strtoull(text, &end, 0);
    return end[0] && !(end[0] == 'U' && !end[1]);
}

enum ptx_type ptx_type_of(const char *word) {
    static const char *const names[PTX_TYPES] = {
        [PTX_PRED] = "pred",   [PTX_B8] = "b8",     [PTX_B16] = "b16",       [PTX_B32] = "b32", [PTX_B64] = "b64",
        [PTX_B128] = "b128",   [PTX_U8] = "u8",     [PTX_U16] = "u16",       [PTX_U32] = "u32", [PTX_U64] = "u64",
        [PTX_S8] = "s8",       [PTX_S16] = "s16",   [PTX_S32] = "s32",       [PTX_S64] = "s64", [PTX_F16] = "f16",
        [PTX_F16X2] = "f16x2", [PTX_BF16] = "bf16", [PTX_BF16X2] = "bf16x2", [PTX_F32] = "f32", [PTX_F32X2] = "f32x2",
        [PTX_F64] = "f64",
    };
    for (int t = 1; t < PTX_TYPES; t++)
        if (!strcmp(word, names[t])) return (enum ptx_type)t;
    return PTX_NONE;
}

unsigned ptx_type_bytes(enum ptx_type type) {
    switch (type) {
    case PTX_B8:
    case PTX_U8:
    case PTX_S8: return 1;
    case PTX_B16:
    case PTX_U16:
    case PTX_S16:
    case PTX_F16:
    case PTX_BF16: return 2;
    case PTX_B32:
    case PTX_U32:
    case PTX_S32:
    case PTX_F32:
    case PTX_F16X2:
    case PTX_BF16X2: return 4;
    case PTX_B64:
    case PTX_U64:
    case PTX_S64:
    case PTX_F64:
    case PTX_F32X2: return 8;
    case PTX_B128: return 16;
    default: return 0;
    }
}
