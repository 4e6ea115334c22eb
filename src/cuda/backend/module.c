/* SPDX-License-Identifier: MIT
 * Images of kernel variants: each is loaded on a device when the first plan needs it, and kept until the context goes.
 */
#include "cuda/backend/state.h"

#include "base/err.h"
#include "cuda/backend/unpack.h"

#include <string.h>

/* The build sorts the table. Plans ask for each row of an operator, launches for what they launch. */
const struct attn_cuda_variant *attn_cuda_variant_find(const char *symbol) {
    int32_t low = 0, high = attn_cuda_n_variants;
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        const int order = strcmp(symbol, attn_cuda_variants[middle].symbol);
        if (order == 0) return &attn_cuda_variants[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

/* Symbols of rows stand still, and not many are launched: the place of one says where it was found last time. */
const struct attn_cuda_variant *attn_cuda_variant_of(const struct attn_core_device *dev, const char *symbol) {
    struct attn_cuda_device *d = attn_cuda_device_of(dev);
    const uintptr_t address = (uintptr_t)symbol;
    _Atomic(const struct attn_cuda_variant *) *const slot = &d->near[(address >> 3 ^ address >> 9) % ATTN_CUDA_NEAR];
    const struct attn_cuda_variant *v = atomic_load_explicit(slot, memory_order_relaxed);
    if (v && !strcmp(v->symbol, symbol)) return v;
    v = attn_cuda_variant_find(symbol);
    if (v) atomic_store_explicit(slot, v, memory_order_relaxed); /* it points into a constant table */
    return v;
}

/* Machine code runs on its architecture and on later ones of the same generation. */
static int has_cubin(const struct attn_cuda_variant *v, const struct attn_cuda_limits *l) {
    int32_t arch = l->major * 10 + l->minor;
    for (size_t i = 0; i < sizeof v->cubins / sizeof *v->cubins && v->cubins[i]; i++)
        if (v->exact ? v->cubins[i] == arch : v->cubins[i] / 10 == l->major && v->cubins[i] <= arch) return 1;
    return 0;
}

/* The context is current. `what`: the kind of image, for errors. */
static attn_status load_data(const struct attn_cuda_device *d, const struct attn_cuda_variant *v, const void *data,
                             const char *what, cu_module *module) {
    const struct attn_cuda_driver *drv = &d->state->driver;
    char text[1024] = "";
    cu_jit_option options[] = {(cu_jit_option)CU_JIT_ERROR_TEXT, (cu_jit_option)CU_JIT_ERROR_BYTES};
    void *values[] = {text, (void *)(uintptr_t)(sizeof text - 1)};
    cu_result r = drv->cuModuleLoadDataEx(module, data, 2, options, values);
    if (!r) return ATTN_OK;
    text[strcspn(text, "\n")] = 0;
    return attn_cuda_fail(drv, r, ATTN_E_DEVICE_FAULT, "cuModuleLoadDataEx", "%s (%s) on cuda:%d, driver %d.%d%s%s",
                          v->symbol, what, d->index, drv->version / 1000, drv->version % 1000 / 10, text[0] ? ": " : "",
                          text);
}

/* Unpacks the PTX into memory of the context for as long as the driver reads it. */
static attn_status load_ptx(const struct attn_cuda_device *d, const struct attn_cuda_variant *v, cu_module *module) {
    const size_t packed_bytes = (size_t)(v->ptx_end - v->ptx);
    size_t scratch_bytes = 0;
    const size_t text_bytes = attn_cuda_ptx_bytes(v->ptx, packed_bytes, &scratch_bytes);
    if (!text_bytes) FAIL(ATTN_E_INTERNAL, "device", "%s: the library holds no PTX that it can unpack", v->symbol);
    struct attn_mem *mem = &d->state->ctx->mem;
    unsigned char *memory = attn_base_alloc(mem, scratch_bytes + text_bytes + 1, 64);
    if (!memory) return ATTN_E_MEMORY;
    char *text = (char *)memory + scratch_bytes;
    attn_status status = ATTN_OK;
    if (attn_cuda_ptx_unpack(v->ptx, packed_bytes, memory, text))
        status = attn_base_fail(ATTN_E_INTERNAL, "device", 0, 0, "%s: its PTX in the library is damaged", v->symbol);
    else
        status = load_data(d, v, text, "PTX", module);
    attn_base_free(mem, memory, scratch_bytes + text_bytes + 1);
    return status;
}

static attn_status load_image(const struct attn_cuda_device *d, const struct attn_cuda_variant *v, cu_module *module) {
    if (d->state->image != ATTN_CUDA_IMAGE_PTX && has_cubin(v, &d->limits))
        return load_data(d, v, v->image, "machine code", module);
    if (d->state->image == ATTN_CUDA_IMAGE_CUBIN)
        FAIL(ATTN_E_NO_DRIVER, "device", "%s: ATTN_CUDA_IMAGE is cubin, but this build has no machine code for sm_%d%d",
             v->symbol, d->limits.major, d->limits.minor);
    return load_ptx(d, v, module);
}

static attn_status load(struct attn_cuda_device *d, const struct attn_cuda_variant *v, struct attn_cuda_loaded *l) {
    const struct attn_cuda_driver *drv = &d->state->driver;
    cu_module module = NULL;
    cu_function function = NULL;
    TRY(load_image(d, v, &module));
    cu_result r = drv->cuModuleGetFunction(&function, module, v->symbol);
    if (r) {
        attn_status status =
            attn_cuda_fail(drv, r, ATTN_E_INTERNAL, "cuModuleGetFunction", "%s on cuda:%d", v->symbol, d->index);
        drv->cuModuleUnload(module);
        return status;
    }
    l->module = module;
    atomic_store_explicit(&l->function, function, memory_order_release);
    attn_base_log(&d->state->ctx->log, ATTN_LOG_INFO, "cuda", "%s loaded on cuda:%d", v->symbol, d->index);
    return ATTN_OK;
}

static attn_status raise_limit(const struct attn_cuda_device *d, const struct attn_cuda_variant *v,
                               struct attn_cuda_loaded *l, uint32_t bytes) {
    const struct attn_cuda_driver *drv = &d->state->driver;
    if (atomic_load_explicit(&l->shared_bytes, memory_order_relaxed) >= bytes) return ATTN_OK;
    cu_function function = atomic_load_explicit(&l->function, memory_order_relaxed);
    cu_result r = drv->cuFuncSetAttribute(function, (cu_function_attribute)CU_MAX_DYNAMIC_SHARED, (int)bytes);
    if (r)
        return attn_cuda_fail(drv, r, ATTN_E_LAUNCH, "cuFuncSetAttribute", "%s, %u bytes of shared memory on cuda:%d",
                              v->symbol, bytes, d->index);
    atomic_store_explicit(&l->shared_bytes, bytes, memory_order_release);
    return ATTN_OK;
}

attn_status attn_cuda_variant_load(struct attn_core_device *dev, const struct attn_cuda_variant *v,
                                   uint32_t shared_bytes) {
    struct attn_cuda_device *d = attn_cuda_device_of(dev);
    struct attn_cuda_loaded *l = &d->loaded[v->index];
    if (shared_bytes > (uint32_t)d->limits.shared_per_block)
        FAIL2(ATTN_E_INTERNAL, "device", d->limits.shared_per_block, shared_bytes,
              "%s wants %u bytes of shared memory, cuda:%d gives %d", v->symbol, shared_bytes, d->index,
              d->limits.shared_per_block);
    if (atomic_load_explicit(&l->function, memory_order_acquire) &&
        atomic_load_explicit(&l->shared_bytes, memory_order_acquire) >= shared_bytes)
        return ATTN_OK;
    TRY(attn_cuda_enter(d));
    cu_capture_mode mode = CU_CAPTURE_RELAXED;
    attn_status status = attn_cuda_capture_mode(d, &mode);
    if (status) return attn_cuda_leave(d, status);
    pthread_mutex_lock(&d->state->lock);
    if (!atomic_load_explicit(&l->function, memory_order_relaxed)) status = load(d, v, l);
    if (!status) status = raise_limit(d, v, l, shared_bytes);
    pthread_mutex_unlock(&d->state->lock);
    const attn_status back = attn_cuda_capture_mode(d, &mode);
    return attn_cuda_leave(d, status ? status : back);
}

void attn_cuda_modules_unload(struct attn_cuda_device *d) {
    for (int32_t i = 0; i < attn_cuda_n_variants; i++) {
        struct attn_cuda_loaded *l = &d->loaded[i];
        if (l->module) d->state->driver.cuModuleUnload(l->module);
        l->module = NULL;
        atomic_store(&l->function, NULL);
    }
}
