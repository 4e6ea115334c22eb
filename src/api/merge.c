/* SPDX-License-Identifier: MIT
 * attn_merge: checks, and the device's backend. */
#include "api/api.h"
#include "core/problem.h"

attn_status attn_merge(attn_ctx *ctx, attn_device id, const attn_merge_args *args) {
    if (!ctx) FAIL(ATTN_E_ARGUMENT, "ctx", "ctx is NULL");
    if (!args) FAIL(ATTN_E_ARGUMENT, "args", "args is NULL");
    attn_merge_args a;
    TRY(attn_core_struct_copy(&a, sizeof a, args, "args"));
    struct attn_core_device *device = attn_api_device(ctx, id);
    if (!device) return ATTN_E_NO_DEVICE;
    const struct attn_core_backend *backend = attn_api_backend_of(ctx, device);
    if (!backend->merge) FAIL(ATTN_E_NO_KERNEL, "device", "attn_merge has no kernel for %s", device->name);
    TRY(attn_core_merge_check(device, &a));
    if (backend->prepare) TRY(backend->prepare(ctx, device));
    return backend->merge(device, &a);
}
