/* SPDX-License-Identifier: MIT
 * Device memory for programs without a device runtime of their own. Host memory goes through the context's hooks. */
#include "api/api.h"

#include <string.h>

enum { MEMORY_ALIGNMENT = 256 };

/* The device, and its backend if its memory is not the host's (else NULL). */
static attn_status find(attn_ctx *ctx, attn_device id, struct attn_core_device **device,
                        const struct attn_core_backend **backend) {
    *device = NULL;
    *backend = NULL;
    if (!ctx) FAIL(ATTN_E_ARGUMENT, "ctx", "ctx is NULL");
    *device = attn_api_device(ctx, id);
    if (!*device) return ATTN_E_NO_DEVICE;
    const struct attn_core_backend *b = attn_api_backend_of(ctx, *device);
    *backend = b->alloc ? b : NULL;
    return b->prepare ? b->prepare(ctx, *device) : ATTN_OK;
}

attn_status attn_memory_alloc(attn_ctx *ctx, attn_device id, size_t bytes, void **out) {
    struct attn_core_device *device = NULL;
    const struct attn_core_backend *backend = NULL;
    if (!out) FAIL(ATTN_E_ARGUMENT, "out", "out is NULL");
    *out = NULL;
    TRY(find(ctx, id, &device, &backend));
    if (!bytes) return ATTN_OK;
    if (backend) return backend->alloc(ctx, device, bytes, out);
    *out = attn_base_alloc(&ctx->mem, bytes, MEMORY_ALIGNMENT);
    return *out ? ATTN_OK : ATTN_E_MEMORY;
}

void attn_memory_free(attn_ctx *ctx, attn_device id, void *memory, size_t bytes) {
    struct attn_core_device *device = NULL;
    const struct attn_core_backend *backend = NULL;
    if (!memory || find(ctx, id, &device, &backend)) return;
    if (backend)
        backend->free(ctx, device, memory);
    else
        attn_base_free(&ctx->mem, memory, bytes);
}

attn_status attn_memory_copy(attn_ctx *ctx, attn_device dst_id, void *dst, attn_device src_id, const void *src,
                             size_t bytes) {
    struct attn_core_device *to = NULL, *from = NULL;
    const struct attn_core_backend *to_backend = NULL, *from_backend = NULL;
    TRY(find(ctx, dst_id, &to, &to_backend));
    TRY(find(ctx, src_id, &from, &from_backend));
    if (!bytes) return ATTN_OK;
    if (!dst || !src)
        FAIL(ATTN_E_ARGUMENT, dst ? "src" : "dst", "%s is NULL, %zu bytes to copy", dst ? "src" : "dst", bytes);
    if (to_backend && from_backend) return to_backend->copy_within(ctx, to, dst, src, bytes);
    if (to_backend) return to_backend->copy_in(ctx, to, dst, src, bytes);
    if (from_backend) return from_backend->copy_out(ctx, from, dst, src, bytes);
    memmove(dst, src, bytes);
    return ATTN_OK;
}

attn_status attn_device_synchronize(attn_ctx *ctx, attn_device id) {
    struct attn_core_device *device = NULL;
    const struct attn_core_backend *backend = NULL;
    TRY(find(ctx, id, &device, &backend));
    return backend ? backend->synchronize(ctx, device) : ATTN_OK;
}
