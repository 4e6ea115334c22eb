/* SPDX-License-Identifier: MIT
 * Whole files in and out, and what the two array formats share: sizes with overflow checks, ownership, fault texts. */
#include "io/io.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void attn_cli_fault_set(struct attn_cli_fault *fault, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    vsnprintf(fault->text, sizeof fault->text, format, ap);
    va_end(ap);
}

static void *aligned(size_t bytes) {
    if (bytes > PTRDIFF_MAX - 64) return NULL;
    bytes = (bytes + 63) / 64 * 64;
    return aligned_alloc(64, bytes ? bytes : 64);
}

/* The size of a regular file is only a first guess: it may grow or shrink while it is read, and pipes have none. */
static int read_all(FILE *f, const char *name, size_t limit, void **data, size_t *bytes, struct attn_cli_fault *fault) {
    struct stat st;
    size_t capacity = 1 << 16, n = 0;
    if (fstat(fileno(f), &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0 && (uint64_t)st.st_size < PTRDIFF_MAX / 2)
        capacity = (size_t)st.st_size + 1;
    if (limit && capacity > limit + 1) capacity = limit + 1;
    char *buf = aligned(capacity);
    while (buf) {
        n += fread(buf + n, 1, capacity - n, f);
        if (ferror(f)) {
            attn_cli_fault_set(fault, "%s: %s", name, strerror(errno));
            free(buf);
            return -1;
        }
        if (limit && n > limit) {
            attn_cli_fault_set(fault, "%s: larger than the limit of %zu bytes", name, limit);
            free(buf);
            return -1;
        }
        if (n < capacity) {
            *data = buf;
            *bytes = n;
            return 0;
        }
        char *larger = capacity > PTRDIFF_MAX / 2 ? NULL : aligned(capacity * 2);
        if (larger) memcpy(larger, buf, n);
        free(buf);
        buf = larger;
        capacity *= 2;
    }
    attn_cli_fault_set(fault, "%s: out of memory after %zu bytes", name, n);
    return -1;
}

int attn_cli_file_read(const char *path, size_t limit, void **data, size_t *bytes, struct attn_cli_fault *fault) {
    int standard = !strcmp(path, "-");
    FILE *f = standard ? stdin : fopen(path, "rb");
    if (!f) {
        attn_cli_fault_set(fault, "%s: %s", path, strerror(errno));
        return -1;
    }
    int r = read_all(f, standard ? "standard input" : path, limit, data, bytes, fault);
    if (!standard) fclose(f);
    return r;
}

int attn_cli_file_write(const char *path, const struct attn_cli_piece *pieces, size_t n, struct attn_cli_fault *fault) {
    int standard = !strcmp(path, "-"), failed = 0;
    FILE *f = standard ? stdout : fopen(path, "wb");
    if (!f) {
        attn_cli_fault_set(fault, "%s: %s", path, strerror(errno));
        return -1;
    }
    for (size_t i = 0; i < n && !failed; i++)
        failed = pieces[i].bytes && fwrite(pieces[i].data, 1, pieces[i].bytes, f) != pieces[i].bytes;
    if (!failed) failed = fflush(f) != 0;
    int reason = errno;
    struct stat st;
    int regular = !standard && fstat(fileno(f), &st) == 0 && S_ISREG(st.st_mode); /* never remove a device */
    if (!standard && fclose(f) && !failed) failed = 1, reason = errno;
    if (!failed) return 0;
    if (regular) unlink(path);
    attn_cli_fault_set(fault, "%s: %s", standard ? "standard output" : path, strerror(reason));
    return -1;
}

int attn_cli_array_bytes(const struct attn_cli_array *array, size_t *bytes) {
    size_t total = attn_dtype_bytes(array->dtype);
    int empty = 0;
    /* A zero extent anywhere makes the array empty, but the other extents must still be non-negative. */
    for (int i = 0; i < array->rank; i++) {
        if (array->shape[i] < 0) return -1;
        if (array->shape[i] == 0) empty = 1;
    }
    for (int i = 0; i < array->rank && !empty; i++)
        if (__builtin_mul_overflow(total, (size_t)array->shape[i], &total) || total > PTRDIFF_MAX) return -1;
    *bytes = empty ? 0 : total;
    return 0;
}

int64_t attn_cli_array_count(const struct attn_cli_array *array) {
    size_t size = attn_dtype_bytes(array->dtype);
    return size ? (int64_t)(array->bytes / size) : 0;
}

int attn_cli_array_own(struct attn_cli_array *out, struct attn_cli_fault *fault) {
    if (out->owned) return 0;
    void *copy = aligned(out->bytes);
    if (!copy) {
        attn_cli_fault_set(fault, "out of memory for %zu bytes", out->bytes);
        return -1;
    }
    if (out->bytes) memcpy(copy, out->data, out->bytes);
    out->data = out->owned = copy;
    return 0;
}

void attn_cli_array_free(struct attn_cli_array *array) {
    free(array->owned);
    free(array->name);
    *array = (struct attn_cli_array){0};
}

const struct attn_cli_array *attn_cli_archive_find(const struct attn_cli_archive *archive, const char *name) {
    for (size_t i = 0; i < archive->n_arrays; i++)
        if (!strcmp(archive->arrays[i].name, name)) return &archive->arrays[i];
    return NULL;
}

void attn_cli_archive_free(struct attn_cli_archive *archive) {
    for (size_t i = 0; i < archive->n_arrays; i++) attn_cli_array_free(&archive->arrays[i]);
    free(archive->arrays);
    free(archive->buffer);
    *archive = (struct attn_cli_archive){0};
}
