/* SPDX-License-Identifier: MIT
 * NumPy .npy: magic, version, header length, a Python dict in text, raw data (NEP 1). The reader takes exactly the
 * three keys that NumPy writes; it is not a Python parser. */
#include "io/io.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    char code[4];
    int32_t dtype;
} codes[] = {{"f2", ATTN_F16},  {"f4", ATTN_F32},  {"f8", ATTN_F64},  {"i4", ATTN_I32}, {"i8", ATTN_I64},
             {"V2", ATTN_BF16}, {"b1", ATTN_BOOL}, {"u1", ATTN_BOOL}, {"V1", ATTN_E4M3}};

struct scan {
    const char *pos, *end;
};

static void blanks(struct scan *s) {
    while (s->pos < s->end && (*s->pos == ' ' || *s->pos == '\n' || *s->pos == '\t')) s->pos++;
}
static int take(struct scan *s, char c) {
    blanks(s);
    if (s->pos >= s->end || *s->pos != c) return 0;
    s->pos++;
    return 1;
}
static int take_word(struct scan *s, const char *word) {
    size_t n = strlen(word);
    blanks(s);
    if ((size_t)(s->end - s->pos) < n || memcmp(s->pos, word, n)) return 0;
    s->pos += n;
    return 1;
}
/* A quoted string without escapes, of at most cap - 1 characters. */
static int take_string(struct scan *s, char *out, size_t cap) {
    blanks(s);
    if (s->pos >= s->end || (*s->pos != '\'' && *s->pos != '"')) return 0;
    char quote = *s->pos++;
    size_t n = 0;
    while (s->pos < s->end && *s->pos != quote) {
        if (n + 1 >= cap || *s->pos == '\\' || *s->pos == 0) return 0;
        out[n++] = *s->pos++;
    }
    if (s->pos >= s->end) return 0;
    s->pos++;
    out[n] = 0;
    return 1;
}
static int take_extent(struct scan *s, int64_t *out) {
    blanks(s);
    int64_t v = 0;
    const char *first = s->pos;
    for (; s->pos < s->end && *s->pos >= '0' && *s->pos <= '9'; s->pos++)
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, *s->pos - '0', &v)) return 0;
    if (s->pos == first) return 0;
    if (s->pos < s->end && *s->pos == 'L') s->pos++; /* Python 2 wrote long integers so */
    *out = v;
    return 1;
}
static int take_shape(struct scan *s, struct attn_cli_array *out) {
    out->rank = 0;
    if (!take(s, '(')) return 0;
    while (!take(s, ')')) {
        if (out->rank == ATTN_CLI_MAX_AXES || !take_extent(s, &out->shape[out->rank])) return 0;
        out->rank++;
        if (!take(s, ',')) return take(s, ')') && out->rank > 1; /* "(3)" is not a tuple */
    }
    return 1;
}

static int parse_dtype(const char *descr, struct attn_cli_array *out, struct attn_cli_fault *fault) {
    if (descr[0] == '>') {
        attn_cli_fault_set(fault,
                           "dtype '%s': big-endian data is not read; in Python, x.astype('<%s') makes it little-endian",
                           descr, descr + 1);
        return -1;
    }
    if (descr[0] == '<' || descr[0] == '|')
        for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
            if (!strcmp(descr + 1, codes[i].code)) {
                out->dtype = codes[i].dtype;
                return 0;
            }
    attn_cli_fault_set(fault, "dtype '%s': expected f2, f4, f8, i4, i8, b1, u1, V2 (bfloat16) or V1 (float8_e4m3fn)",
                       descr);
    return -1;
}

static int parse_header(struct scan s, struct attn_cli_array *out, struct attn_cli_fault *fault) {
    char key[24], descr[24] = "";
    unsigned seen = 0;
    int fortran = 0, bad = !take(&s, '{');
    while (!bad && !take(&s, '}')) {
        unsigned bit = 0;
        bad = !take_string(&s, key, sizeof key) || !take(&s, ':');
        if (bad) break;
        if (!strcmp(key, "descr")) {
            bit = 1;
            bad = !take_string(&s, descr, sizeof descr);
        } else if (!strcmp(key, "fortran_order")) {
            bit = 2;
            fortran = take_word(&s, "True");
            bad = !fortran && !take_word(&s, "False");
        } else if (!strcmp(key, "shape")) {
            bit = 4;
            bad = !take_shape(&s, out);
        }
        if (!bit || (seen & bit)) bad = 1;
        seen |= bit;
        if (!bad && !take(&s, ',')) {
            bad = !take(&s, '}');
            break;
        }
    }
    blanks(&s);
    if (bad || seen != 7 || s.pos != s.end) {
        attn_cli_fault_set(fault,
                           "the .npy header is not a dict of descr, fortran_order and shape (of at most %d axes)",
                           ATTN_CLI_MAX_AXES);
        return -1;
    }
    int wide = 0; /* with at most one axis longer than 1 both orders are the same */
    for (int i = 0; i < out->rank; i++) wide += out->shape[i] != 1;
    if (fortran && wide > 1) {
        attn_cli_fault_set(
            fault,
            "column-major (fortran_order) data is not read; in Python, numpy.ascontiguousarray(x) makes it row-major");
        return -1;
    }
    return parse_dtype(descr, out, fault);
}

int attn_cli_npy_parse(const void *data, size_t bytes, struct attn_cli_array *out, struct attn_cli_fault *fault) {
    const unsigned char *p = data;
    *out = (struct attn_cli_array){0};
    if (bytes < 10 || memcmp(p, "\x93NUMPY", 6)) {
        attn_cli_fault_set(fault, "not a .npy file");
        return -1;
    }
    size_t start = p[6] == 1 ? 10 : 12, length = (size_t)p[8] | (size_t)p[9] << 8;
    if (p[6] < 1 || p[6] > 3 || p[7] != 0) {
        attn_cli_fault_set(fault, ".npy format version %d.%d is not supported", p[6], p[7]);
        return -1;
    }
    if (start == 12 && bytes >= 12) length |= (size_t)p[10] << 16 | (size_t)p[11] << 24;
    if (bytes < start || length > bytes - start) {
        attn_cli_fault_set(fault, "the .npy header ends beyond the file");
        return -1;
    }
    const char *text = (const char *)p + start;
    if (parse_header((struct scan){text, text + length}, out, fault)) return -1;
    size_t have = bytes - start - length;
    if (attn_cli_array_bytes(out, &out->bytes) || out->bytes != have) {
        attn_cli_fault_set(fault, "the .npy shape needs %zu bytes of data, the file has %zu", out->bytes, have);
        return -1;
    }
    out->data = p + start + length;
    return 0;
}

static void prefix(struct attn_cli_fault *fault, const char *path) {
    struct attn_cli_fault copy = *fault;
    attn_cli_fault_set(fault, "%.120s: %.190s", strcmp(path, "-") ? path : "standard input", copy.text);
}

int attn_cli_npy_read(const char *path, struct attn_cli_array *out, struct attn_cli_fault *fault) {
    void *data;
    size_t bytes;
    *out = (struct attn_cli_array){0};
    if (attn_cli_file_read(path, 0, &data, &bytes, fault)) return -1;
    int r = attn_cli_npy_parse(data, bytes, out, fault);
    if (!r) r = attn_cli_array_own(out, fault);
    free(data);
    if (r) {
        prefix(fault, path);
        *out = (struct attn_cli_array){0};
    }
    return r;
}

int attn_cli_npy_write(const char *path, const struct attn_cli_array *array, struct attn_cli_fault *fault) {
    const char *code = NULL;
    for (size_t i = 0; i < sizeof codes / sizeof *codes && !code; i++)
        if (codes[i].dtype == array->dtype) code = codes[i].code;
    size_t need;
    if (!code || array->rank < 0 || array->rank > ATTN_CLI_MAX_AXES || attn_cli_array_bytes(array, &need) ||
        need != array->bytes) {
        attn_cli_fault_set(fault, "%.120s: an array of this dtype or shape cannot be written", path);
        return -1;
    }
    /* Magic 8, length 2, dict, blanks and a newline, so that the data starts at a multiple of 64. */
    char header[512];
    int n = 10 + snprintf(header + 10, sizeof header - 10, "{'descr': '%c%s', 'fortran_order': False, 'shape': (",
                          !strcmp(code, "b1") ? '|' : '<', code);
    for (int i = 0; i < array->rank; i++)
        n += snprintf(header + n, sizeof header - (size_t)n, "%s%lld%s", i ? " " : "", (long long)array->shape[i],
                      i + 1 < array->rank || array->rank == 1 ? "," : "");
    n += snprintf(header + n, sizeof header - (size_t)n, "), }");
    int total = (n + 1 + 63) / 64 * 64;
    memset(header + n, ' ', (size_t)(total - n));
    header[total - 1] = '\n';
    memcpy(header, "\x93NUMPY\x01\x00", 8);
    header[8] = (char)((total - 10) & 255);
    header[9] = (char)((total - 10) >> 8);
    struct attn_cli_piece pieces[] = {{header, (size_t)total}, {array->data, array->bytes}};
    return attn_cli_file_write(path, pieces, 2, fault);
}
