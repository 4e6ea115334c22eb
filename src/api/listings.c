/* SPDX-License-Identifier: MIT
 * Lists: devices, kernels, environment variables, and the question whether one kernel accepts a problem. */
#include "api/api.h"
#include "base/env.h"
#include "core/problem.h"

#include <stdio.h>

int32_t attn_device_count(attn_ctx *ctx) { return ctx ? ctx->n_devices : 0; }

attn_status attn_device_get_info(attn_ctx *ctx, int32_t index, attn_device_info *out) {
    if (!ctx) FAIL(ATTN_E_ARGUMENT, "ctx", "ctx is NULL");
    if (index < 0 || index >= ctx->n_devices)
        FAIL2(ATTN_E_NO_DEVICE, "index", ctx->n_devices - 1, index, "device index is %d; this context has %d devices",
              index, ctx->n_devices);
    const struct attn_core_device *d = &ctx->devices[index];
    attn_device_info info = {.device = d->id, .arch = d->arch, .memory_bytes = d->memory_bytes};
    snprintf(info.name, sizeof info.name, "%s", d->name);
    snprintf(info.features, sizeof info.features, "%s", d->feature_text);
    return attn_api_struct_out(out, &info, sizeof info, "attn_device_info");
}

const struct attn_kernel *attn_api_kernel_at(const attn_ctx *ctx, int32_t index) {
    for (int32_t i = 0; i < ctx->n_backends && index >= 0; i++) {
        const struct attn_core_backend *b = ctx->backends[i];
        for (int32_t s = 0; s < b->n_sets; s++) {
            int32_t n = *b->sets[s].n_rows;
            if (index < n) return &b->sets[s].rows[index];
            index -= n;
        }
    }
    return NULL;
}

int32_t attn_kernel_count(attn_ctx *ctx) {
    int32_t n = 0;
    while (ctx && attn_api_kernel_at(ctx, n)) n++;
    return n;
}

static attn_status kernel_at(attn_ctx *ctx, int32_t index, const struct attn_kernel **out) {
    if (!ctx) FAIL(ATTN_E_ARGUMENT, "ctx", "ctx is NULL");
    *out = attn_api_kernel_at(ctx, index);
    if (!*out) {
        int32_t n = attn_kernel_count(ctx);
        FAIL2(ATTN_E_ARGUMENT, "index", n - 1, index, "kernel index is %d; this build has %d kernels", index, n);
    }
    return ATTN_OK;
}

static int usable(const attn_ctx *ctx, const struct attn_kernel *k) {
    for (int32_t i = 0; i < ctx->n_devices; i++)
        if (ctx->devices[i].id.type == k->device_type && (ctx->devices[i].features & k->features) == k->features)
            return 1;
    return 0;
}

attn_status attn_kernel_get_info(attn_ctx *ctx, int32_t index, attn_kernel_info *out) {
    const struct attn_kernel *k;
    TRY(kernel_at(ctx, index, &k));
    attn_kernel_info info = {
        .op = k->op,
        .backend = k->backend,
        .dtype = k->dtype,
        .math_dtype = k->math_dtype,
        .accumulator_dtype = k->accumulator_dtype,
        .deterministic = k->deterministic,
        .bit_stable = k->bit_stable,
        .alignment_bytes = k->alignment_bytes ? k->alignment_bytes : (uint32_t)attn_dtype_bytes(k->dtype),
        .usable = usable(ctx, k),
    };
    snprintf(info.arch, sizeof info.arch, "%s", k->arch);
    snprintf(info.name, sizeof info.name, "%s", k->name);
    snprintf(info.summary, sizeof info.summary, "%s", k->summary);
    return attn_api_struct_out(out, &info, sizeof info, "attn_kernel_info");
}

attn_status attn_kernel_supports(attn_ctx *ctx, attn_device device, int32_t index, const attn_problem *problem) {
    const struct attn_kernel *k;
    TRY(kernel_at(ctx, index, &k));
    if (!problem) FAIL(ATTN_E_ARGUMENT, "problem", "problem is NULL");
    attn_problem copy, normalised;
    TRY(attn_core_struct_copy(&copy, sizeof copy, problem, "problem"));
    TRY(attn_core_problem_normalise(&copy, &normalised));
    const struct attn_core_device *found = attn_api_device(ctx, device);
    if (!found) return ATTN_E_NO_DEVICE;
    if (k->op != normalised.op) FAIL(ATTN_E_NO_KERNEL, "problem", "%s: is for another operator", k->name);
    char reason[256];
    struct attn_text why = attn_text_over(reason, sizeof reason);
    if (!attn_core_kernel_accepts(ctx, found, k, &normalised, &why))
        FAIL(ATTN_E_NO_KERNEL, "problem", "%s: %s", k->name, reason);
    return ATTN_OK;
}

int32_t attn_env_count(void) { return ATTN_ENV_COUNT; }

attn_status attn_env_get_info(int32_t index, attn_env_info *out) {
    if (index < 0 || index >= ATTN_ENV_COUNT)
        FAIL2(ATTN_E_ARGUMENT, "index", ATTN_ENV_COUNT - 1, index, "environment index is %d; expected 0 to %d", index,
              ATTN_ENV_COUNT - 1);
    const struct attn_env_row *row = &attn_env_table[index];
    const char *value = attn_base_env((enum attn_env_id)index);
    attn_env_info info = {0};
    snprintf(info.name, sizeof info.name, "%s", row->name);
    snprintf(info.type, sizeof info.type, "%s", row->type);
    snprintf(info.value, sizeof info.value, "%s", value ? value : "");
    snprintf(info.help, sizeof info.help, "%s", row->help);
    return attn_api_struct_out(out, &info, sizeof info, "attn_env_info");
}
