/* SPDX-License-Identifier: MIT
 * What handlers of XLA's foreign function interface see, as its published binary interface (version 0) lays it out:
 * the frame of a call, buffers, attributes, and the functions used here. Every struct begins with its size and a chain
 * of extensions; fields are only ever added at the end. Declared anew, under names of this room; the order of fields is
 * the interface. */
#ifndef PYTHON_FFI_XLA_H
#define PYTHON_FFI_XLA_H

#include <stddef.h>
#include <stdint.h>

struct xla_error;   /* opaque */
struct xla_context; /* opaque */

/* An extension of a frame. Of type 1: the runtime asks for the handler's metadata instead of a call. */
enum { XLA_EXTENSION_METADATA = 1 };
struct xla_extension {
    size_t size;
    int32_t type;
    struct xla_extension *next;
};

#define XLA_HEAD \
    size_t size; \
    struct xla_extension *extensions

struct xla_version {
    XLA_HEAD;
    int32_t major, minor;
};

struct xla_metadata {
    size_t size;
    struct xla_version version;
    uint32_t traits;
    int64_t state_type;
};

struct xla_metadata_extension {
    struct xla_extension base;
    struct xla_metadata *metadata;
};

enum {
    XLA_PRED = 1, XLA_S32 = 4, XLA_S64 = 5, XLA_F16 = 10, XLA_F32 = 11, XLA_F64 = 12, XLA_BF16 = 16, XLA_E4M3FN = 20
};

struct xla_buffer {
    XLA_HEAD;
    int32_t dtype;
    void *data;
    int64_t rank;
    int64_t *shape; /* row-major */
};

struct xla_text {
    const char *start;
    size_t length;
};

enum { XLA_ATTRIBUTE_TEXT = 4 };

struct xla_buffers { /* arguments or results; the only type there is, 1, is a buffer */
    XLA_HEAD;
    int64_t n;
    int32_t *types;
    struct xla_buffer **buffers;
};

struct xla_attributes {
    XLA_HEAD;
    int64_t n;
    int32_t *types;
    struct xla_text **names;
    void **values; /* of a text: struct xla_text */
};

enum { XLA_STAGE_EXECUTE = 3 };

struct xla_api;
struct xla_frame {
    XLA_HEAD;
    const struct xla_api *api;
    struct xla_context *context;
    int32_t stage;
    struct xla_buffers arguments, results;
    struct xla_attributes attributes;
};

enum { XLA_INVALID_ARGUMENT = 3, XLA_RESOURCE_EXHAUSTED = 8, XLA_UNIMPLEMENTED = 12, XLA_INTERNAL = 13 };

struct xla_error_create {
    XLA_HEAD;
    const char *message;
    int32_t code;
};

struct xla_stream_get {
    XLA_HEAD;
    struct xla_context *context;
    void *stream; /* out */
};

struct xla_allocate {
    XLA_HEAD;
    struct xla_context *context;
    size_t bytes, alignment;
    void *data; /* out */
};

struct xla_free {
    XLA_HEAD;
    struct xla_context *context;
    size_t bytes;
    void *data;
};

struct xla_ordinal_get {
    XLA_HEAD;
    struct xla_context *context;
    int32_t ordinal; /* out */
};

struct xla_api {
    XLA_HEAD;
    struct xla_version version;
    const void *internal;
    struct xla_error *(*error_create)(struct xla_error_create *);
    void (*error_details)(void *);
    void (*error_destroy)(void *);
    struct xla_error *(*handler_register)(void *);
    struct xla_error *(*stream_get)(struct xla_stream_get *);
    struct xla_error *(*type_register)(void *);
    struct xla_error *(*context_get)(void *);
    struct xla_error *(*state_set)(void *);
    struct xla_error *(*state_get)(void *);
    struct xla_error *(*allocate)(struct xla_allocate *);
    struct xla_error *(*free)(struct xla_free *);
    struct xla_error *(*pool_schedule)(void *);
    struct xla_error *(*pool_threads)(void *);
    struct xla_error *(*future_create)(void *);
    struct xla_error *(*future_available)(void *);
    struct xla_error *(*future_error)(void *);
    struct xla_error *(*run_id_get)(void *);
    struct xla_error *(*ordinal_get)(struct xla_ordinal_get *);
};

#endif
