/* SPDX-License-Identifier: MIT
 * What the files of the CUDA backend share: the state of one context and of one device. Kernel rows see cuda.h only. */
#ifndef ATTN_CUDA_CUDA_STATE_H
#define ATTN_CUDA_CUDA_STATE_H
#include "core/ctx.h"
#include "cuda/backend/cuda.h"
#include "cuda/backend/driver.h"

#include <sys/types.h>

enum { ATTN_CUDA_MAX_DEVICES = 16, ATTN_CUDA_NEAR = 64 };
enum { ATTN_CUDA_IMAGE_ANY, ATTN_CUDA_IMAGE_PTX, ATTN_CUDA_IMAGE_CUBIN };

/* A variant on a device. `function` is set last: whoever sees it may launch, within shared_bytes. */
struct attn_cuda_loaded {
    _Atomic(cu_function) function;
    _Atomic uint32_t shared_bytes;
    cu_module module; /* under attn_cuda_state.lock */
};

struct attn_cuda_device {
    struct attn_cuda_state *state;
    cu_device handle;
    int32_t index;               /* the driver's ordinal */
    _Atomic(cu_context) context; /* primary, retained; NULL until prepared */
    struct attn_cuda_limits limits;
    struct attn_cuda_loaded *loaded;                                /* attn_cuda_n_variants */
    _Atomic(const struct attn_cuda_variant *) near[ATTN_CUDA_NEAR]; /* found before, by where the symbol stands */
};

struct attn_cuda_state {
    struct attn_cuda_driver driver;
    pthread_mutex_t lock; /* retaining and loading */
    attn_ctx *ctx;
    pid_t pid; /* a forked child must not call the driver */
    int32_t image;
    uint8_t sync, has_lock, graphs;
    int32_t n_devices;
    struct attn_cuda_device devices[ATTN_CUDA_MAX_DEVICES];
    attn_status absence; /* why n_devices is 0 */
    char reason[1024];
};

static inline struct attn_cuda_device *attn_cuda_device_of(const struct attn_core_device *dev) {
    return (struct attn_cuda_device *)dev->backend;
}

/* Make the device's context the thread's, and give the thread back its own. Between the two the calling code uses the
 * driver. leave() returns `status` if it is a failure, else its own. */
attn_status attn_cuda_enter(const struct attn_cuda_device *d);
attn_status attn_cuda_leave(const struct attn_cuda_device *d, attn_status status);
/* The same for launches: most callers work in the device's context, and to ask is cheaper than to exchange it twice.
 * *entered: the pop has to give the thread back its own. */
attn_status attn_cuda_context_push(const struct attn_cuda_device *d, int *entered);
attn_status attn_cuda_context_pop(const struct attn_cuda_device *d, int entered, attn_status status);
/* Allocating and loading are no work of a stream, but while one of the process records a graph the driver refuses them,
 * and spoils the recording, unless the thread says that it knows: exchange its mode for CU_CAPTURE_RELAXED before, and
 * again after. */
attn_status attn_cuda_capture_mode(const struct attn_cuda_device *d, cu_capture_mode *mode);

/* graph_cache.c: graphs that plans keep (struct attn_core_backend's cache_open, cache_close, execute). */
attn_status attn_cuda_cache_open(struct attn_ctx *ctx, struct attn_core_device *dev, void **cache);
void attn_cuda_cache_close(struct attn_ctx *ctx, struct attn_core_device *dev, void *cache);
attn_status attn_cuda_execute(const struct attn_plan *plan, const struct attn_kernel *k, void *cache,
                              const attn_args *args);
/* An execution that is recorded instead of queued: launch.c hands what it has checked to attn_cuda_record(), `params`
 * NULL for a fill, and queues it only if that returns 0. */
struct attn_cuda_recorder;
extern _Thread_local struct attn_cuda_recorder *attn_cuda_recorder;
int attn_cuda_record(const struct attn_cuda_work *work);
int attn_cuda_record_fill(void *memory, size_t bytes);

/* module.c: release every image of the device; its context is current. */
void attn_cuda_modules_unload(struct attn_cuda_device *d);
#endif
