/* SPDX-License-Identifier: MIT
 * Queueing work: a loaded variant, or zeroes. Nothing here allocates or waits, unless ATTN_SYNC asks for the wait. */
#include "cuda/backend/state.h"

#include "base/err.h"

#include <string.h>

enum { MAX_PARAMS = 4096 }; /* what every device takes */

/* ATTN_SYNC: a fault is told where it happened. A stream that records a graph runs nothing now and must not be waited
 * for. */
static attn_status wait(const struct attn_cuda_device *d, void *stream, const char *what) {
    const struct attn_cuda_driver *drv = &d->state->driver;
    cu_capture_status recording = CU_CAPTURE_NONE;
    if (!d->state->sync || drv->cuStreamIsCapturing(stream, &recording) || recording != CU_CAPTURE_NONE) return ATTN_OK;
    cu_result r = drv->cuStreamSynchronize(stream);
    return r ? attn_cuda_fail(drv, r, ATTN_E_DEVICE_FAULT, "cuStreamSynchronize", "%s on cuda:%d", what, d->index)
             : ATTN_OK;
}

static attn_status check(const struct attn_cuda_device *d, const struct attn_cuda_work *w) {
    const struct attn_cuda_loaded *l = &d->loaded[w->variant->index];
    const uint32_t limit = atomic_load_explicit(&l->shared_bytes, memory_order_acquire);
    if (!atomic_load_explicit(&l->function, memory_order_acquire) || w->grid.shared_bytes > limit)
        FAIL2(ATTN_E_INTERNAL, "plan", limit, w->grid.shared_bytes,
              "%s was prepared for %u bytes of shared memory, not %u", w->variant->symbol, limit, w->grid.shared_bytes);
    if (w->params_bytes > MAX_PARAMS)
        FAIL2(ATTN_E_INTERNAL, "plan", MAX_PARAMS, (int64_t)w->params_bytes,
              "%s has %zu bytes of parameters, at most %d", w->variant->symbol, w->params_bytes, MAX_PARAMS);
    return ATTN_OK;
}

/* Checked work; the device's context is current. */
static attn_status queue(const struct attn_cuda_device *d, const struct attn_cuda_work *w, void *stream) {
    const struct attn_cuda_driver *drv = &d->state->driver;
    const struct attn_cuda_grid *g = &w->grid;
    const struct attn_cuda_loaded *l = &d->loaded[w->variant->index];
    struct cu_launch_attribute attributes[2];
    unsigned n = 0;
    if (g->cluster > 1)
        attributes[n++] = (struct cu_launch_attribute){.id = CU_ATTRIBUTE_CLUSTER, .value.cluster = {g->cluster, 1, 1}};
    if (g->early) attributes[n++] = (struct cu_launch_attribute){.id = CU_ATTRIBUTE_EARLY, .value.early = 1};
    const struct cu_launch_config config = {
        .grid = {g->x, g->y, g->z},
        .block = {g->threads, 1, 1},
        .shared_bytes = g->shared_bytes,
        .stream = stream,
        .attributes = n ? attributes : NULL,
        .n_attributes = n,
    };
    union { /* the driver only reads */
        const void *in;
        void *out;
    } pointer = {.in = w->params};
    cu_result r =
        drv->cuLaunchKernelEx(&config, atomic_load_explicit(&l->function, memory_order_relaxed), &pointer.out, NULL);
    if (r)
        return attn_cuda_fail(drv, r, ATTN_E_LAUNCH, "cuLaunchKernelEx",
                              "%s, grid %u x %u x %u, %u threads, cluster %u, %u bytes shared, cuda:%d",
                              w->variant->symbol, g->x, g->y, g->z, g->threads, g->cluster, g->shared_bytes, d->index);
    return wait(d, stream, w->variant->symbol);
}

attn_status attn_cuda_launch_all(const struct attn_core_device *dev, const struct attn_cuda_work *work, int32_t n,
                                 void *stream) {
    const struct attn_cuda_device *d = attn_cuda_device_of(dev);
    attn_status status = ATTN_OK;
    int entered;
    for (int32_t i = 0; i < n; i++) TRY(check(d, &work[i]));
    if (attn_cuda_recorder) {
        int recorded = 0;
        for (int32_t i = 0; i < n; i++) recorded = attn_cuda_record(&work[i]);
        if (recorded) return ATTN_OK;
    }
    TRY(attn_cuda_context_push(d, &entered));
    for (int32_t i = 0; i < n && !status; i++) status = queue(d, &work[i], stream);
    return attn_cuda_context_pop(d, entered, status);
}

attn_status attn_cuda_launch(const struct attn_core_device *dev, const struct attn_cuda_variant *variant,
                             const struct attn_cuda_grid *grid, const void *params, size_t params_bytes, void *stream) {
    const struct attn_cuda_work work = {variant, params, params_bytes, *grid};
    return attn_cuda_launch_all(dev, &work, 1, stream);
}

attn_status attn_cuda_fill_zero(const struct attn_core_device *dev, void *memory, size_t bytes, void *stream) {
    const struct attn_cuda_device *d = attn_cuda_device_of(dev);
    const struct attn_cuda_driver *drv = &d->state->driver;
    int entered;
    if (!bytes || (attn_cuda_recorder && attn_cuda_record_fill(memory, bytes))) return ATTN_OK;
    TRY(attn_cuda_context_push(d, &entered));
    cu_result r = drv->cuMemsetD8Async((cu_address)(uintptr_t)memory, 0, bytes, stream);
    attn_status status =
        r ? attn_cuda_fail(drv, r, ATTN_E_LAUNCH, "cuMemsetD8Async", "%zu bytes on cuda:%d", bytes, d->index)
          : wait(d, stream, "a fill with zeroes");
    return attn_cuda_context_pop(d, entered, status);
}
