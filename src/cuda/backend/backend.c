/* SPDX-License-Identifier: MIT
 * CUDA as a backend: the driver and its devices, primary contexts retained at the first use, memory and copies. A
 * missing driver or device is not an error of the context: the reason is kept for attn_cuda_status. */
#include "cuda/backend/state.h"

#include "base/env.h"
#include "base/err.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- devices ---- */

static attn_status read_attributes(struct attn_cuda_device *d) {
    const struct attn_cuda_driver *drv = &d->state->driver;
    const struct {
        int attribute;
        int32_t *to;
    } rows[] = {
        {CU_MAJOR, &d->limits.major},
        {CU_MINOR, &d->limits.minor},
        {CU_N_SMS, &d->limits.n_sms},
        {CU_SHARED_PER_BLOCK, &d->limits.shared_per_block},
        {CU_SHARED_PER_SM, &d->limits.shared_per_sm},
        {CU_L2_BYTES, &d->limits.l2_bytes},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cu_result r = drv->cuDeviceGetAttribute(rows[i].to, (cu_device_attribute)rows[i].attribute, d->handle);
        if (r)
            return attn_cuda_fail(drv, r, ATTN_E_NO_DEVICE, "cuDeviceGetAttribute", "attribute %d of cuda:%d",
                                  rows[i].attribute, d->index);
    }
    d->limits.early_launch = d->limits.major >= 9 && drv->version >= 12030;
    int64_t limit = attn_base_env_int(ATTN_ENV_CUDA_SHARED_LIMIT, 0);
    if (limit > 0 && limit < d->limits.shared_per_block) d->limits.shared_per_block = (int32_t)limit;
    limit = attn_base_env_int(ATTN_ENV_CUDA_L2_LIMIT, 0);
    if (limit > 0 && limit < d->limits.l2_bytes) d->limits.l2_bytes = (int32_t)limit;
    limit = attn_base_env_int(ATTN_ENV_CUDA_SM_LIMIT, 0);
    if (limit > 0 && limit < d->limits.n_sms) d->limits.n_sms = (int32_t)limit;
    limit = attn_base_env_int(ATTN_ENV_CUDA_CHUNK_LIMIT, 0);
    d->limits.chunk_limit = limit > 0 && limit < INT32_MAX ? (int32_t)limit : 0;
    return ATTN_OK;
}

static uint64_t features_of(int32_t arch) {
    uint64_t bits = arch >= 80 ? ATTN_CUDA_SM80 : 0;
    if (arch == 90) bits |= ATTN_CUDA_SM90A;
    if (arch == 100) bits |= ATTN_CUDA_SM100A;
    return bits;
}

static attn_status describe(struct attn_cuda_device *d, struct attn_core_device *dev) {
    const struct attn_cuda_driver *drv = &d->state->driver;
    cu_result r = drv->cuDeviceGet(&d->handle, d->index);
    if (r) return attn_cuda_fail(drv, r, ATTN_E_NO_DEVICE, "cuDeviceGet", "cuda:%d", d->index);
    TRY(read_attributes(d));
    size_t bytes = 0;
    r = drv->cuDeviceTotalMem(&bytes, d->handle);
    if (r) return attn_cuda_fail(drv, r, ATTN_E_NO_DEVICE, "cuDeviceTotalMem", "cuda:%d", d->index);
    memset(dev, 0, sizeof *dev);
    r = drv->cuDeviceGetName(dev->name, (int)sizeof dev->name - 1, d->handle);
    if (r) return attn_cuda_fail(drv, r, ATTN_E_NO_DEVICE, "cuDeviceGetName", "cuda:%d", d->index);
    dev->id = ATTN_DEVICE_CUDA(d->index);
    dev->arch = d->limits.major * 10 + d->limits.minor;
    dev->features = features_of(dev->arch);
    dev->memory_bytes = bytes;
    dev->backend = d;
    snprintf(dev->feature_text, sizeof dev->feature_text, "sm_%d %d SMs %d KiB shared", dev->arch, d->limits.n_sms,
             d->limits.shared_per_block / 1024);
    return ATTN_OK;
}

static attn_status list_devices(struct attn_cuda_state *s, struct attn_core_device *devices) {
    const struct attn_log *log = &s->ctx->log;
    int count = 0;
    cu_result r = s->driver.cuDeviceGetCount(&count);
    if (r) return attn_cuda_fail(&s->driver, r, ATTN_E_NO_DEVICE, "cuDeviceGetCount", "the number of devices");
    if (count <= 0) FAIL(ATTN_E_NO_DEVICE, "ctx", "the CUDA driver knows no device");
    if (count > ATTN_CUDA_MAX_DEVICES)
        attn_base_log(log, ATTN_LOG_WARN, "cuda", "%d devices, the first %d are used", count, ATTN_CUDA_MAX_DEVICES);
    attn_status status = ATTN_OK;
    for (int i = 0; i < count && i < ATTN_CUDA_MAX_DEVICES; i++) {
        struct attn_cuda_device *d = &s->devices[s->n_devices];
        d->state = s;
        d->index = i;
        status = describe(d, &devices[s->n_devices]);
        if (status) { /* the others may be well */
            attn_base_log(log, ATTN_LOG_WARN, "cuda", "cuda:%d is left out: %s", i, attn_last_error());
            memset(&devices[s->n_devices], 0, sizeof devices[s->n_devices]);
            continue;
        }
        size_t bytes = (size_t)attn_cuda_n_variants * sizeof *d->loaded;
        d->loaded = attn_base_alloc(&s->ctx->mem, bytes, _Alignof(struct attn_cuda_loaded));
        if (!d->loaded) return ATTN_E_MEMORY;
        s->n_devices++;
    }
    return s->n_devices ? ATTN_OK : status;
}

static attn_status read_image(struct attn_cuda_state *s) {
    const char *image = attn_base_env(ATTN_ENV_CUDA_IMAGE);
    s->image = !image                    ? ATTN_CUDA_IMAGE_ANY
               : !strcmp(image, "ptx")   ? ATTN_CUDA_IMAGE_PTX
               : !strcmp(image, "cubin") ? ATTN_CUDA_IMAGE_CUBIN
                                         : -1;
    if (s->image < 0) FAIL(ATTN_E_ENUM, "cuda_image", "cuda_image: ATTN_CUDA_IMAGE \"%s\" is not ptx or cubin", image);
    return ATTN_OK;
}

static attn_status find_devices(struct attn_cuda_state *s, struct attn_core_device *devices) {
    const char *path = s->ctx->cuda_driver[0] ? s->ctx->cuda_driver : attn_base_env(ATTN_ENV_CUDA_DRIVER);
    TRY(attn_cuda_driver_open(&s->driver, path));
    return list_devices(s, devices);
}

static attn_status open_cuda(struct attn_ctx *ctx, struct attn_core_device *devices, int32_t *n_devices) {
    struct attn_cuda_state *s = attn_base_alloc(&ctx->mem, sizeof *s, _Alignof(struct attn_cuda_state));
    if (!s) return ATTN_E_MEMORY;
    ctx->cuda = s;
    s->ctx = ctx;
    s->pid = getpid();
    s->sync = (uint8_t)attn_base_env_bool(ATTN_ENV_SYNC);
    s->graphs = !attn_base_env(ATTN_ENV_CUDA_GRAPHS) || attn_base_env_bool(ATTN_ENV_CUDA_GRAPHS);
    TRY(read_image(s));
    if (pthread_mutex_init(&s->lock, NULL)) FAIL(ATTN_E_MEMORY, "ctx", "a mutex could not be made");
    s->has_lock = 1;
    struct attn_base_error saved = *attn_base_error_get();
    s->absence = find_devices(s, devices);
    if (s->absence == ATTN_E_MEMORY) return s->absence;
    if (s->absence) {
        snprintf(s->reason, sizeof s->reason, "%s", attn_last_error());
        attn_base_log(&ctx->log, ATTN_LOG_INFO, "cuda", "no CUDA devices: %s", s->reason);
    }
    attn_base_error_restore(&saved);
    *n_devices = s->n_devices;
    return ATTN_OK;
}

attn_status attn_cuda_absence(struct attn_ctx *ctx) {
    const struct attn_cuda_state *s = ctx->cuda;
    if (!s) FAIL(ATTN_E_INTERNAL, "ctx", "the CUDA backend was not opened");
    if (s->n_devices) return ATTN_OK;
    FAIL(s->absence, "ctx", "%s", s->reason);
}

/* ---- life of a device ---- */

static attn_status prepare_cuda(struct attn_ctx *ctx, struct attn_core_device *dev) {
    struct attn_cuda_device *d = attn_cuda_device_of(dev);
    struct attn_cuda_state *s = d->state;
    if (atomic_load_explicit(&d->context, memory_order_acquire)) return ATTN_OK;
    attn_status status = ATTN_OK;
    pthread_mutex_lock(&s->lock);
    if (!atomic_load_explicit(&d->context, memory_order_relaxed)) {
        cu_context context = NULL;
        cu_result r = s->driver.cuDevicePrimaryCtxRetain(&context, d->handle);
        if (r)
            status =
                attn_cuda_fail(&s->driver, r, ATTN_E_DEVICE_FAULT, "cuDevicePrimaryCtxRetain", "cuda:%d", d->index);
        else
            atomic_store_explicit(&d->context, context, memory_order_release);
    }
    pthread_mutex_unlock(&s->lock);
    if (!status)
        attn_base_log(&ctx->log, ATTN_LOG_INFO, "cuda", "cuda:%d %s, driver %d.%d", d->index, dev->name,
                      s->driver.version / 1000, s->driver.version % 1000 / 10);
    return status;
}

attn_status attn_cuda_enter(const struct attn_cuda_device *d) {
    const struct attn_cuda_driver *drv = &d->state->driver;
    cu_result r = drv->cuCtxPushCurrent(atomic_load_explicit(&d->context, memory_order_acquire));
    return r ? attn_cuda_fail(drv, r, ATTN_E_DEVICE_FAULT, "cuCtxPushCurrent", "cuda:%d", d->index) : ATTN_OK;
}

attn_status attn_cuda_leave(const struct attn_cuda_device *d, attn_status status) {
    const struct attn_cuda_driver *drv = &d->state->driver;
    cu_context ours;
    cu_result r = drv->cuCtxPopCurrent(&ours);
    if (status || !r) return status;
    return attn_cuda_fail(drv, r, ATTN_E_DEVICE_FAULT, "cuCtxPopCurrent", "cuda:%d", d->index);
}

attn_status attn_cuda_context_push(const struct attn_cuda_device *d, int *entered) {
    const struct attn_cuda_driver *drv = &d->state->driver;
    const cu_context ours = atomic_load_explicit(&d->context, memory_order_acquire);
    cu_context now = NULL;
    const cu_result r = drv->cuCtxGetCurrent(&now);
    *entered = !ours || now != ours;
    if (r) return attn_cuda_fail(drv, r, ATTN_E_DEVICE_FAULT, "cuCtxGetCurrent", "cuda:%d", d->index);
    return *entered ? attn_cuda_enter(d) : ATTN_OK;
}

attn_status attn_cuda_context_pop(const struct attn_cuda_device *d, int entered, attn_status status) {
    return entered ? attn_cuda_leave(d, status) : status;
}

attn_status attn_cuda_capture_mode(const struct attn_cuda_device *d, cu_capture_mode *mode) {
    const struct attn_cuda_driver *drv = &d->state->driver;
    cu_result r = drv->cuThreadExchangeStreamCaptureMode(mode);
    return r ? attn_cuda_fail(drv, r, ATTN_E_DEVICE_FAULT, "cuThreadExchangeStreamCaptureMode", "cuda:%d", d->index)
             : ATTN_OK;
}

/* The driver's failures have no one to be told to here; a device that faulted refuses all of it. */
static void release_device(struct attn_cuda_device *d) {
    const struct attn_cuda_driver *drv = &d->state->driver;
    if (!atomic_load(&d->context)) return;
    if (!drv->cuCtxPushCurrent(atomic_load(&d->context))) {
        cu_context ours;
        drv->cuCtxSynchronize(); /* images may be in use by queued work */
        attn_cuda_modules_unload(d);
        drv->cuCtxPopCurrent(&ours);
    }
    drv->cuDevicePrimaryCtxRelease(d->handle);
}

static void close_cuda(struct attn_ctx *ctx, struct attn_core_device *devices, int32_t n_devices) {
    struct attn_cuda_state *s = ctx->cuda;
    if (!s) return;
    for (int32_t i = 0; i < n_devices; i++) devices[i].backend = NULL;
    for (int32_t i = 0; i < s->n_devices; i++) {
        if (s->pid == getpid()) release_device(&s->devices[i]);
        attn_base_free(&ctx->mem, s->devices[i].loaded, (size_t)attn_cuda_n_variants * sizeof *s->devices[i].loaded);
    }
    if (s->pid == getpid()) attn_cuda_driver_close(&s->driver);
    if (s->has_lock) pthread_mutex_destroy(&s->lock);
    attn_base_free(&ctx->mem, s, sizeof *s);
    ctx->cuda = NULL;
}

const struct attn_cuda_limits *attn_cuda_limits_of(const struct attn_core_device *dev) {
    return &attn_cuda_device_of(dev)->limits;
}

/* ---- memory ---- */

static attn_status alloc_cuda(struct attn_ctx *ctx, struct attn_core_device *dev, size_t bytes, void **out) {
    (void)ctx;
    const struct attn_cuda_device *d = attn_cuda_device_of(dev);
    const struct attn_cuda_driver *drv = &d->state->driver;
    cu_address address = 0;
    cu_capture_mode mode = CU_CAPTURE_RELAXED;
    *out = NULL;
    TRY(attn_cuda_enter(d));
    attn_status status = attn_cuda_capture_mode(d, &mode);
    if (status) return attn_cuda_leave(d, status);
    cu_result r = drv->cuMemAlloc(&address, bytes);
    if (r) status = attn_cuda_fail(drv, r, ATTN_E_DEVICE_FAULT, "cuMemAlloc", "%zu bytes on cuda:%d", bytes, d->index);
    const attn_status back = attn_cuda_capture_mode(d, &mode);
    if (back && !r) drv->cuMemFree(address);
    if (!status) status = back;
    status = attn_cuda_leave(d, status);
    if (status && !back && !r)
        drv->cuMemFree(address); /* the thread could not be given back its own context: ours is still current */
    if (!status) *out = (void *)(uintptr_t)address;
    return status;
}

static void free_cuda(struct attn_ctx *ctx, struct attn_core_device *dev, void *memory) {
    (void)ctx;
    const struct attn_cuda_device *d = attn_cuda_device_of(dev);
    cu_context ours;
    cu_capture_mode mode = CU_CAPTURE_RELAXED;
    if (d->state->pid != getpid()) return;
    if (d->state->driver.cuCtxPushCurrent(atomic_load(&d->context))) return;
    const int changed = !d->state->driver.cuThreadExchangeStreamCaptureMode(&mode);
    d->state->driver.cuMemFree((cu_address)(uintptr_t)memory);
    if (changed) d->state->driver.cuThreadExchangeStreamCaptureMode(&mode);
    d->state->driver.cuCtxPopCurrent(&ours);
}

enum direction { COPY_IN, COPY_OUT, COPY_WITHIN };

static attn_status copy(const struct attn_cuda_device *d, enum direction way, void *dst, const void *src,
                        size_t bytes) {
    static const char *const names[] = {"cuMemcpyHtoD", "cuMemcpyDtoH", "cuMemcpy"};
    const struct attn_cuda_driver *drv = &d->state->driver;
    cu_address to = (cu_address)(uintptr_t)dst, from = (cu_address)(uintptr_t)src;
    attn_status status = ATTN_OK;
    TRY(attn_cuda_enter(d));
    cu_result r = way == COPY_IN    ? drv->cuMemcpyHtoD(to, src, bytes)
                  : way == COPY_OUT ? drv->cuMemcpyDtoH(dst, from, bytes)
                                    : drv->cuMemcpy(to, from, bytes);
    if (r) status = attn_cuda_fail(drv, r, ATTN_E_DEVICE_FAULT, names[way], "%zu bytes, cuda:%d", bytes, d->index);
    /* Copies into the device may return before the bytes are there; those within it are only queued. */
    if (!r && way != COPY_OUT && (r = drv->cuStreamSynchronize(NULL)) != CU_OK)
        status = attn_cuda_fail(drv, r, ATTN_E_DEVICE_FAULT, "cuStreamSynchronize", "a copy on cuda:%d", d->index);
    return attn_cuda_leave(d, status);
}

static attn_status copy_in(struct attn_ctx *ctx, struct attn_core_device *dev, void *dst, const void *src,
                           size_t bytes) {
    (void)ctx;
    return copy(attn_cuda_device_of(dev), COPY_IN, dst, src, bytes);
}
static attn_status copy_out(struct attn_ctx *ctx, struct attn_core_device *dev, void *dst, const void *src,
                            size_t bytes) {
    (void)ctx;
    return copy(attn_cuda_device_of(dev), COPY_OUT, dst, src, bytes);
}
static attn_status copy_within(struct attn_ctx *ctx, struct attn_core_device *dev, void *dst, const void *src,
                               size_t bytes) {
    (void)ctx;
    return copy(attn_cuda_device_of(dev), COPY_WITHIN, dst, src, bytes);
}

static attn_status synchronize(struct attn_ctx *ctx, struct attn_core_device *dev) {
    (void)ctx;
    const struct attn_cuda_device *d = attn_cuda_device_of(dev);
    attn_status status = ATTN_OK;
    if (d->state->pid != getpid()) FAIL(ATTN_E_NO_DEVICE, "device", "cuda:%d belongs to the parent process", d->index);
    TRY(attn_cuda_enter(d));
    cu_result r = d->state->driver.cuCtxSynchronize();
    if (r) status = attn_cuda_fail(&d->state->driver, r, ATTN_E_DEVICE_FAULT, "cuCtxSynchronize", "cuda:%d", d->index);
    return attn_cuda_leave(d, status);
}

static attn_status stream_id(struct attn_ctx *ctx, struct attn_core_device *dev, void *stream, uint64_t *id,
                             int *capturing) {
    (void)ctx;
    const struct attn_cuda_device *d = attn_cuda_device_of(dev);
    const struct attn_cuda_driver *drv = &d->state->driver;
    unsigned long long number = 0;
    cu_capture_status recording = CU_CAPTURE_NONE;
    attn_status status = ATTN_OK;
    int entered;
    TRY(attn_cuda_context_push(d, &entered));
    cu_result r = drv->cuStreamIsCapturing(stream, &recording);
    if (r) {
        status = attn_cuda_fail(drv, r, ATTN_E_LAUNCH, "cuStreamIsCapturing", "the stream on cuda:%d", d->index);
    } else if (recording == CU_CAPTURE_NONE && (r = drv->cuStreamGetId(stream, &number)) != CU_OK) {
        /* asking a stream that records for its number would spoil the recording */
        status = attn_cuda_fail(drv, r, ATTN_E_LAUNCH, "cuStreamGetId", "the stream on cuda:%d", d->index);
    }
    *id = number;
    *capturing = recording != CU_CAPTURE_NONE;
    return attn_cuda_context_pop(d, entered, status);
}

static const struct attn_core_rows sets[] = {
    {attn_cuda_sdpa_fwd_maps_rows, &attn_cuda_n_sdpa_fwd_maps_rows},
    {attn_cuda_sdpa_fwd_fp8_rows, &attn_cuda_n_sdpa_fwd_fp8_rows},
    {attn_cuda_sdpa_bwd_maps_rows, &attn_cuda_n_sdpa_bwd_maps_rows},
    {attn_cuda_sdpa_fwd_rows, &attn_cuda_n_sdpa_fwd_rows},
    {attn_cuda_sdpa_bwd_rows, &attn_cuda_n_sdpa_bwd_rows},
    {attn_cuda_mla_bwd_joined_sm100_rows, &attn_cuda_n_mla_bwd_joined_sm100_rows},
    {attn_cuda_mla_bwd_sm100_rows, &attn_cuda_n_mla_bwd_sm100_rows},
    {attn_cuda_mla_bwd_joined_sm90_rows, &attn_cuda_n_mla_bwd_joined_sm90_rows},
    {attn_cuda_mla_bwd_sm90_rows, &attn_cuda_n_mla_bwd_sm90_rows},
    {attn_cuda_mla_bwd_rows, &attn_cuda_n_mla_bwd_rows},
    {attn_cuda_sdpa_fwd_f16x2_rows, &attn_cuda_n_sdpa_fwd_f16x2_rows},
    {attn_cuda_sdpa_fwd_wide_rows, &attn_cuda_n_sdpa_fwd_wide_rows},
    {attn_cuda_sdpa_bwd_wide_rows, &attn_cuda_n_sdpa_bwd_wide_rows},
    {attn_cuda_mla_fwd_joined_sm100_rows, &attn_cuda_n_mla_fwd_joined_sm100_rows},
    {attn_cuda_mla_fwd_sm100_rows, &attn_cuda_n_mla_fwd_sm100_rows},
    {attn_cuda_mla_fwd_joined_sm90_rows, &attn_cuda_n_mla_fwd_joined_sm90_rows},
    {attn_cuda_mla_fwd_sm90_rows, &attn_cuda_n_mla_fwd_sm90_rows},
    {attn_cuda_mla_fwd_rows, &attn_cuda_n_mla_fwd_rows},
    {attn_cuda_dist_joined_sm100_rows, &attn_cuda_n_dist_joined_sm100_rows},
    {attn_cuda_dist_sm100_rows, &attn_cuda_n_dist_sm100_rows},
    {attn_cuda_dist_joined_sm90_rows, &attn_cuda_n_dist_joined_sm90_rows},
    {attn_cuda_dist_sm90_rows, &attn_cuda_n_dist_sm90_rows},
    {attn_cuda_dist_rows, &attn_cuda_n_dist_rows},
    {attn_cuda_mla_join_rows, &attn_cuda_n_mla_join_rows},
};

const struct attn_core_backend attn_cuda_backend = {
    .name = "cuda",
    .sets = sets,
    .n_sets = sizeof sets / sizeof sets[0],
    .max_devices = ATTN_CUDA_MAX_DEVICES,
    .open = open_cuda,
    .prepare = prepare_cuda,
    .close = close_cuda,
    .alloc = alloc_cuda,
    .free = free_cuda,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .copy_within = copy_within,
    .synchronize = synchronize,
    .merge = attn_cuda_merge,
    .cache_open = attn_cuda_cache_open,
    .cache_close = attn_cuda_cache_close,
    .execute = attn_cuda_execute,
    .stream_id = stream_id,
};
