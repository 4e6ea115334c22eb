/* SPDX-License-Identifier: MIT
 * Workspaces that attn_run keeps. The host's are free again when the call returns. A device's belongs to a stream: work
 * that is queued there later may overwrite it, work of other streams only after a wait. Nothing is freed while work may
 * be queued. */
#include "api/api.h"

/* Give a claimed slot at least `bytes`; what it held is not in use. */
static attn_status refill(attn_ctx *ctx, struct attn_api_workspace *w, struct attn_core_device *device,
                          uint64_t bytes) {
    attn_api_workspace_drop(ctx, w);
    if (bytes > SIZE_MAX) FAIL(ATTN_E_MEMORY, "workspace", "a workspace of %llu bytes", (unsigned long long)bytes);
    if (device) {
        TRY(attn_api_backend_of(ctx, device)->alloc(ctx, device, (size_t)bytes, &w->memory));
    } else {
        w->memory = attn_base_alloc(&ctx->mem, (size_t)bytes, ATTN_WORKSPACE_ALIGNMENT);
        if (!w->memory) return ATTN_E_MEMORY;
    }
    w->device = device;
    w->bytes = bytes;
    return ATTN_OK;
}

void attn_api_workspace_drop(attn_ctx *ctx, struct attn_api_workspace *w) {
    if (w->memory && w->device) {
        const struct attn_core_backend *b = attn_api_backend_of(ctx, w->device);
        b->synchronize(ctx, w->device); /* a device that fails here has no work left */
        b->free(ctx, w->device, w->memory);
    } else {
        attn_base_free(&ctx->mem, w->memory, (size_t)w->bytes);
    }
    w->memory = NULL;
    w->bytes = 0;
}

/* The host's: the smallest idle one that fits; else the smallest is replaced. */
static attn_status take_host(attn_ctx *ctx, uint64_t bytes, struct attn_api_workspace *spare,
                             struct attn_api_workspace **out) {
    struct attn_api_workspace *slots = attn_api_state_of(ctx)->workspaces, *fit = NULL, *claim = NULL;
    pthread_mutex_lock(&ctx->lock);
    for (int i = 0; i < ATTN_API_WORKSPACES; i++) {
        if (slots[i].busy) continue;
        if (slots[i].bytes >= bytes && (!fit || slots[i].bytes < fit->bytes)) fit = &slots[i];
        if (!claim || slots[i].bytes < claim->bytes) claim = &slots[i]; /* empty ones have 0 bytes */
    }
    if (fit) claim = fit;
    if (claim) claim->busy = 1;
    pthread_mutex_unlock(&ctx->lock);
    *out = claim ? claim : spare;
    return fit ? ATTN_OK : refill(ctx, *out, NULL, bytes);
}

/* Which idle slot serves a stream best: 3 its own and large enough, 2 its own, 1 an empty one, 0 another stream's. */
static int fitness(const struct attn_api_workspace *w, const struct attn_core_device *device, uint64_t stream,
                   uint64_t bytes) {
    if (!w->memory) return 1;
    if (w->device != device || w->stream != stream) return 0;
    return w->bytes >= bytes ? 3 : 2;
}

static attn_status take_device(attn_ctx *ctx, struct attn_core_device *device, void *stream, uint64_t bytes,
                               struct attn_api_workspace *spare, struct attn_api_workspace **out) {
    struct attn_api_state *state = attn_api_state_of(ctx);
    struct attn_api_workspace *claim = NULL;
    uint64_t id = 0;
    int capturing = 0, best = -1;
    TRY(attn_api_backend_of(ctx, device)->stream_id(ctx, device, stream, &id, &capturing));
    if (capturing)
        FAIL(ATTN_E_ARGUMENT, "stream",
             "stream: it records a graph, whose workspace must live as long as the graph; use attn_execute with a "
             "workspace of your own");
    pthread_mutex_lock(&ctx->lock);
    for (int i = 0; i < ATTN_API_WORKSPACES; i++) {
        struct attn_api_workspace *w = &state->device_workspaces[i];
        if (w->busy) continue;
        int fit = fitness(w, device, id, bytes);
        if (fit < best || (fit == best && w->used >= claim->used)) continue;
        best = fit;
        claim = w;
    }
    if (claim) {
        claim->busy = 1;
        claim->used = ++state->clock;
    }
    pthread_mutex_unlock(&ctx->lock);
    struct attn_api_workspace *w = *out = claim ? claim : spare;
    if (best == 3) return ATTN_OK;
    if (best == 0 && w->device == device && w->bytes >= bytes) {
        TRY(attn_api_backend_of(ctx, device)->synchronize(ctx, device)); /* the other stream's work */
        w->stream = id;
        return ATTN_OK;
    }
    TRY(refill(ctx, w, device, bytes));
    w->stream = id;
    return ATTN_OK;
}

attn_status attn_api_workspace_take(attn_ctx *ctx, struct attn_core_device *device, void *stream, uint64_t bytes,
                                    struct attn_api_workspace *spare, struct attn_api_workspace **out) {
    *spare = (struct attn_api_workspace){0};
    *out = NULL;
    if (attn_api_backend_of(ctx, device)->alloc) return take_device(ctx, device, stream, bytes, spare, out);
    return take_host(ctx, bytes, spare, out);
}

void attn_api_workspace_give(attn_ctx *ctx, struct attn_api_workspace *w, const struct attn_api_workspace *spare) {
    if (w == spare) {
        attn_api_workspace_drop(ctx, w);
        return;
    }
    pthread_mutex_lock(&ctx->lock);
    w->busy = 0;
    pthread_mutex_unlock(&ctx->lock);
}
