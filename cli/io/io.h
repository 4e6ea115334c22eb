/* SPDX-License-Identifier: MIT
 * Files of arrays: NumPy .npy and safetensors, read and written, plus whole-file helpers. The parsers work on memory,
 * trust nothing in it, and never abort: a fault is -1 with a sentence in the error buffer. */
#ifndef ATTN_CLI_IO_H
#define ATTN_CLI_IO_H
#include "attn.h"

#define ATTN_CLI_MAX_AXES 8

struct attn_cli_fault {
    char text[320];
};

/* Row-major, little-endian. dtype is ATTN_*; one-byte unsigned integers (u1, U8) arrive as ATTN_BOOL. */
struct attn_cli_array {
    char *name;  /* owned by the archive; NULL for a lone .npy */
    void *owned; /* NULL if data lies in somebody else's buffer */
    const void *data;
    size_t bytes;
    int32_t dtype;
    int32_t rank;
    int64_t shape[ATTN_CLI_MAX_AXES];
};
struct attn_cli_archive {
    void *buffer;                  /* owned; NULL if the arrays lie in the caller's memory */
    struct attn_cli_array *arrays; /* ordered by offset in the file */
    size_t n_arrays;
};

/* Whole file, or standard input for "-", into malloc'ed 64-byte aligned memory. `limit` bytes at most (0 = none). */
int attn_cli_file_read(const char *path, size_t limit, void **data, size_t *bytes, struct attn_cli_fault *fault);

/* .npy, format versions 1 to 3, C order, dtypes f2 f4 f8 i4 i8 b1 u1 little-endian; bf16 and e4m3 are stored as
 * ml_dtypes does: '<V2', '|V1'. parse: *out is a view of `data` (out->data may be unaligned). read: *out owns aligned memory. "-" = stdin,
 * stdout. */
int attn_cli_npy_parse(const void *data, size_t bytes, struct attn_cli_array *out, struct attn_cli_fault *fault);
int attn_cli_npy_read(const char *path, struct attn_cli_array *out, struct attn_cli_fault *fault);
int attn_cli_npy_write(const char *path, const struct attn_cli_array *array, struct attn_cli_fault *fault);
/* Makes out own aligned memory of its data (no-op if it does already). */
int attn_cli_array_own(struct attn_cli_array *out, struct attn_cli_fault *fault);
void attn_cli_array_free(struct attn_cli_array *array);
int64_t attn_cli_array_count(const struct attn_cli_array *array); /* elements */

/* safetensors: F32 F16 BF16 F64 I32 I64 BOOL U8. Refused: lengths and offsets beyond the file, overlaps, gaps,
 * duplicate names, other dtypes, shapes that do not match their bytes. parse: views of `data`. read: aligned memory for
 * every array. */
int attn_cli_safetensors_parse(const void *data, size_t bytes, struct attn_cli_archive *out,
                               struct attn_cli_fault *fault);
int attn_cli_safetensors_read(const char *path, struct attn_cli_archive *out, struct attn_cli_fault *fault);
int attn_cli_safetensors_write(const char *path, const struct attn_cli_array *arrays, size_t n,
                               struct attn_cli_fault *fault);
const struct attn_cli_array *attn_cli_archive_find(const struct attn_cli_archive *archive, const char *name);
void attn_cli_archive_free(struct attn_cli_archive *archive);

/* Shared by the formats. dtype size and shape product with overflow checks; -1 if the bytes do not fit in size_t. */
int attn_cli_array_bytes(const struct attn_cli_array *array, size_t *bytes);
/* Writes `n` pieces one after another to a path or stdout; a file is removed again if it could not be written whole. */
struct attn_cli_piece {
    const void *data;
    size_t bytes;
};
int attn_cli_file_write(const char *path, const struct attn_cli_piece *pieces, size_t n, struct attn_cli_fault *fault);
void attn_cli_fault_set(struct attn_cli_fault *fault, const char *format, ...) __attribute__((format(printf, 2, 3)));
#endif
