/* SPDX-License-Identifier: MIT
 * What fuzz targets share: values drawn from the input's bytes (zeros when they run out), and FUZZ_REQUIRE, which stops
 * with the broken property's text so that a fuzzer records the input. */
#ifndef ATTN_FUZZ_BYTES_H
#define ATTN_FUZZ_BYTES_H
#include "attn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_REQUIRE(condition)                                                                                        \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, attn_last_error());                    \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

struct fuzz_bytes {
    const uint8_t *data;
    size_t size;
};
static inline void fuzz_take(struct fuzz_bytes *in, void *out, size_t n) {
    size_t have = in->size < n ? in->size : n;
    memset(out, 0, n);
    if (have) memcpy(out, in->data, have);
    in->data += have;
    in->size -= have;
}
static inline uint8_t fuzz_u8(struct fuzz_bytes *in) {
    uint8_t v;
    fuzz_take(in, &v, sizeof v);
    return v;
}
static inline uint64_t fuzz_u64(struct fuzz_bytes *in) {
    uint64_t v;
    fuzz_take(in, &v, sizeof v);
    return v;
}
/* An extent: mostly small, sometimes an edge, sometimes anything. Costs 1 or 9 bytes. */
static inline int64_t fuzz_extent(struct fuzz_bytes *in) {
    static const int64_t edges[] = {
        0, 1, -1, 64, 512, 513, 576, 65535, 65536, INT32_MAX, INT64_C(1) << 32, INT64_MAX, INT64_MIN};
    uint8_t b = fuzz_u8(in);
    if (b < 200) return b % 130;
    if (b < 245) return edges[b % (sizeof edges / sizeof *edges)];
    return (int64_t)fuzz_u64(in);
}
/* The library's text, copied so that a missing final NUL is a fault that the sanitizer sees. */
static inline char *fuzz_text(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1);
    if (!text) abort();
    if (size) memcpy(text, data, size);
    text[size] = 0;
    return text;
}
/* One context for all inputs: no threads, all kernels. */
static inline attn_ctx *fuzz_ctx(void) {
    static attn_ctx *ctx;
    if (!ctx) {
        attn_ctx_options o = {.size = sizeof o, .threads = 1};
        if (attn_ctx_create(&o, &ctx)) abort();
    }
    return ctx;
}
#endif
