/* SPDX-License-Identifier: MIT
 * safetensors: 8 bytes of header length, a JSON object name -> {dtype, shape, data_offsets}, raw data. The reader
 * follows the format's own rules against hostile files: bounded header, no overlap, no gap, no duplicate, shapes match
 * bytes. */
#include "io/io.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_HEADER 100000000u /* the format's own limit */

static const struct {
    const char *name;
    int32_t dtype;
} dtypes[] = {{"F32", ATTN_F32}, {"F16", ATTN_F16},   {"BF16", ATTN_BF16}, {"F64", ATTN_F64},     {"I32", ATTN_I32},
              {"I64", ATTN_I64}, {"BOOL", ATTN_BOOL}, {"U8", ATTN_BOOL},   {"F8_E4M3", ATTN_E4M3}};

static int parse_entry(const char *name, json_t *entry, const unsigned char *base, size_t base_bytes,
                       struct attn_cli_array *out, struct attn_cli_fault *fault) {
    json_t *dtype = json_object_get(entry, "dtype"), *shape = json_object_get(entry, "shape"),
           *offsets = json_object_get(entry, "data_offsets");
    if (!json_is_object(entry) || json_object_size(entry) != 3 || !json_is_string(dtype) || !json_is_array(shape) ||
        !json_is_array(offsets) || json_array_size(offsets) != 2 || !json_is_integer(json_array_get(offsets, 0)) ||
        !json_is_integer(json_array_get(offsets, 1))) {
        attn_cli_fault_set(fault, "tensor '%.80s': expected dtype, shape and data_offsets", name);
        return -1;
    }
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (!strcmp(json_string_value(dtype), dtypes[i].name)) out->dtype = dtypes[i].dtype;
    if (!out->dtype) {
        attn_cli_fault_set(fault, "tensor '%.80s': dtype '%.16s' is not supported", name, json_string_value(dtype));
        return -1;
    }
    if (json_array_size(shape) > ATTN_CLI_MAX_AXES) {
        attn_cli_fault_set(fault, "tensor '%.80s': %zu axes, at most %d are supported", name, json_array_size(shape),
                           ATTN_CLI_MAX_AXES);
        return -1;
    }
    out->rank = (int32_t)json_array_size(shape);
    for (int i = 0; i < out->rank; i++) {
        json_t *extent = json_array_get(shape, (size_t)i);
        if (!json_is_integer(extent) || json_integer_value(extent) < 0) {
            attn_cli_fault_set(fault, "tensor '%.80s': extent %d is not a natural number", name, i);
            return -1;
        }
        out->shape[i] = json_integer_value(extent);
    }
    json_int_t begin = json_integer_value(json_array_get(offsets, 0));
    json_int_t end = json_integer_value(json_array_get(offsets, 1));
    if (begin < 0 || end < begin || (uint64_t)end > base_bytes) {
        attn_cli_fault_set(fault, "tensor '%.80s': offsets %lld to %lld do not lie in the %zu bytes of data", name,
                           (long long)begin, (long long)end, base_bytes);
        return -1;
    }
    size_t need;
    if (attn_cli_array_bytes(out, &need) || need != (size_t)(end - begin)) {
        attn_cli_fault_set(fault, "tensor '%.80s': the shape does not fit the %lld bytes of its offsets", name,
                           (long long)(end - begin));
        return -1;
    }
    out->data = base + begin;
    out->bytes = need;
    out->name = strdup(name);
    if (!out->name) attn_cli_fault_set(fault, "out of memory");
    return out->name ? 0 : -1;
}

static int parse_metadata(json_t *metadata, struct attn_cli_fault *fault) {
    const char *key;
    json_t *value;
    int bad = !json_is_object(metadata);
    if (!bad) json_object_foreach(metadata, key, value) bad |= !json_is_string(value);
    if (bad) attn_cli_fault_set(fault, "__metadata__ is not an object of strings");
    return bad ? -1 : 0;
}

static int by_offset(const void *a, const void *b) {
    const struct attn_cli_array *x = a, *y = b;
    uintptr_t px = (uintptr_t)x->data, py = (uintptr_t)y->data;
    if (px != py) return px < py ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1; /* an empty tensor goes before its neighbour */
    return strcmp(x->name, y->name);
}

static int check_cover(const struct attn_cli_archive *out, const unsigned char *base, size_t base_bytes,
                       struct attn_cli_fault *fault) {
    size_t offset = 0;
    for (size_t i = 0; i < out->n_arrays; i++) {
        size_t begin = (size_t)((const unsigned char *)out->arrays[i].data - base);
        if (begin != offset) {
            attn_cli_fault_set(fault, "tensor '%.80s' %s", out->arrays[i].name,
                               begin < offset ? "overlaps another" : "lies behind bytes that belong to no tensor");
            return -1;
        }
        offset += out->arrays[i].bytes;
    }
    if (offset == base_bytes) return 0;
    attn_cli_fault_set(fault, "%zu bytes at the end belong to no tensor", base_bytes - offset);
    return -1;
}

int attn_cli_safetensors_parse(const void *data, size_t bytes, struct attn_cli_archive *out,
                               struct attn_cli_fault *fault) {
    const unsigned char *p = data;
    *out = (struct attn_cli_archive){0};
    uint64_t length = 0;
    for (int i = 7; i >= 0 && bytes >= 8; i--) length = length << 8 | p[i];
    if (bytes < 8 || length > bytes - 8 || length > MAX_HEADER) {
        attn_cli_fault_set(fault, "not a safetensors file, or cut off: its header does not fit");
        return -1;
    }
    json_error_t error;
    json_t *root =
        length && p[8] == '{' ? json_loadb((const char *)p + 8, (size_t)length, JSON_REJECT_DUPLICATES, &error) : NULL;
    if (!root) {
        attn_cli_fault_set(fault, "safetensors header: %s",
                           length && p[8] == '{' ? error.text : "does not start with {");
        return -1;
    }
    const unsigned char *base = p + 8 + length;
    size_t base_bytes = bytes - 8 - (size_t)length;
    int r = -1;
    out->arrays = calloc(json_object_size(root) + 1, sizeof *out->arrays);
    if (out->arrays) {
        const char *name;
        json_t *entry;
        r = 0;
        json_object_foreach(root, name, entry) {
            r = strcmp(name, "__metadata__")
                    ? parse_entry(name, entry, base, base_bytes, &out->arrays[out->n_arrays++], fault)
                    : parse_metadata(entry, fault);
            if (r) break;
        }
    } else {
        attn_cli_fault_set(fault, "out of memory");
    }
    json_decref(root);
    if (!r) {
        qsort(out->arrays, out->n_arrays, sizeof *out->arrays, by_offset);
        r = check_cover(out, base, base_bytes, fault);
    }
    if (r) attn_cli_archive_free(out);
    return r;
}

int attn_cli_safetensors_read(const char *path, struct attn_cli_archive *out, struct attn_cli_fault *fault) {
    void *data;
    size_t bytes;
    *out = (struct attn_cli_archive){0};
    if (attn_cli_file_read(path, 0, &data, &bytes, fault)) return -1;
    int r = attn_cli_safetensors_parse(data, bytes, out, fault);
    if (r) {
        free(data);
    } else {
        out->buffer = data;
        for (size_t i = 0; i < out->n_arrays && !r; i++)
            if ((uintptr_t)out->arrays[i].data % attn_dtype_bytes(out->arrays[i].dtype))
                r = attn_cli_array_own(&out->arrays[i], fault);
        if (r) attn_cli_archive_free(out);
    }
    if (r) {
        struct attn_cli_fault copy = *fault;
        attn_cli_fault_set(fault, "%.120s: %.190s", strcmp(path, "-") ? path : "standard input", copy.text);
    }
    return r;
}

/* Header of the arrays in the given order; NULL on failure. The text is padded so that the data starts at a multiple
 * of 64. */
static char *make_header(const struct attn_cli_array *arrays, size_t n, size_t *bytes, struct attn_cli_fault *fault) {
    json_t *root = json_object();
    char *text = NULL, *header = NULL;
    size_t offset = 0;
    attn_cli_fault_set(fault, "out of memory");
    for (size_t i = 0; i < n && root; i++) {
        const struct attn_cli_array *a = &arrays[i];
        const char *dtype = NULL;
        size_t need;
        for (size_t k = 0; k < sizeof dtypes / sizeof *dtypes && !dtype; k++)
            if (dtypes[k].dtype == a->dtype) dtype = dtypes[k].name;
        if (!dtype || !a->name || a->rank > ATTN_CLI_MAX_AXES || attn_cli_array_bytes(a, &need) || need != a->bytes ||
            json_object_get(root, a->name)) {
            attn_cli_fault_set(fault, "tensor '%.80s' cannot be written: name, dtype or shape", a->name ? a->name : "");
            json_decref(root);
            return NULL;
        }
        json_t *shape = json_array();
        for (int k = 0; k < a->rank; k++) json_array_append_new(shape, json_integer(a->shape[k]));
        json_object_set_new(root, a->name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype, "shape", shape, "data_offsets",
                                      (json_int_t)offset, (json_int_t)(offset + need)));
        offset += need;
    }
    if (root && json_object_size(root) == n) text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    if (text) {
        size_t length = strlen(text), padded = (length + 8 + 63) / 64 * 64;
        header = malloc(padded);
        if (header) {
            memset(header, ' ', padded);
            for (int i = 0; i < 8; i++) header[i] = (char)((padded - 8) >> (8 * i) & 255);
            memcpy(header + 8, text, length);
            *bytes = padded;
        }
    }
    free(text);
    return header;
}

int attn_cli_safetensors_write(const char *path, const struct attn_cli_array *arrays, size_t n,
                               struct attn_cli_fault *fault) {
    size_t bytes = 0;
    char *header = make_header(arrays, n, &bytes, fault);
    struct attn_cli_piece *pieces = header ? malloc((n + 1) * sizeof *pieces) : NULL;
    int r = -1;
    if (pieces) {
        pieces[0] = (struct attn_cli_piece){header, bytes};
        for (size_t i = 0; i < n; i++) pieces[i + 1] = (struct attn_cli_piece){arrays[i].data, arrays[i].bytes};
        r = attn_cli_file_write(path, pieces, n + 1, fault);
    }
    free(pieces);
    free(header);
    return r;
}
