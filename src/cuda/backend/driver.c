/* SPDX-License-Identifier: MIT
 * The CUDA driver library: opened by name at run time, so that a machine without it runs everything else. */
#include "cuda/backend/driver.h"

#include "base/err.h"
#include "base/text.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

struct row {
    const char *symbol;
    size_t offset;
};
#define ROW(name, symbol, parameters) {#symbol, offsetof(struct attn_cuda_driver, name)},
static const struct row calls[] = {ATTN_CUDA_CALLS(ROW)}, graph_calls[] = {ATTN_CUDA_GRAPH_CALLS(ROW)},
                        tensor_calls[] = {ATTN_CUDA_TENSOR_CALLS(ROW)};
#undef ROW

static int find(struct attn_cuda_driver *d, const struct row *row) {
    void *function = dlsym(d->library, row->symbol);
    memcpy((char *)d + row->offset, &function,
           sizeof function); /* POSIX: an object pointer holds a function's address */
    return function != NULL;
}

static attn_status resolve(struct attn_cuda_driver *d, const char *path) {
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (!find(d, &calls[i]))
            FAIL(ATTN_E_NO_DRIVER, "cuda_driver", "%s has no %s: it is not a CUDA driver, or older than CUDA 12.0",
                 path, calls[i].symbol);
    d->graphs = 1;
    for (size_t i = 0; i < sizeof graph_calls / sizeof *graph_calls; i++)
        d->graphs &= (uint8_t)find(d, &graph_calls[i]);
    d->tensors = (uint8_t)find(d, &tensor_calls[0]);
    return ATTN_OK;
}

static attn_status start(struct attn_cuda_driver *d, const char *path) {
    TRY(resolve(d, path));
    cu_result r = d->cuInit(0);
    if (r == CU_NO_DEVICE) return attn_cuda_fail(d, r, ATTN_E_NO_DEVICE, "cuInit", "%s", path);
    if (r) return attn_cuda_fail(d, r, ATTN_E_NO_DRIVER, "cuInit", "%s", path);
    r = d->cuDriverGetVersion(&d->version);
    if (r) return attn_cuda_fail(d, r, ATTN_E_NO_DRIVER, "cuDriverGetVersion", "%s", path);
    return ATTN_OK;
}

attn_status attn_cuda_driver_open(struct attn_cuda_driver *d, const char *path) {
    memset(d, 0, sizeof *d);
    if (!path) path = "libcuda.so.1";
    /* NODELETE: the driver has threads and handlers of its own that must not lose their code when the last context
     * goes. */
    d->library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!d->library) {
        const char *why = dlerror();
        FAIL(ATTN_E_NO_DRIVER, "cuda_driver", "the CUDA driver cannot be opened: %s", why ? why : path);
    }
    attn_status status = start(d, path);
    if (status) attn_cuda_driver_close(d);
    return status;
}

void attn_cuda_driver_close(struct attn_cuda_driver *d) {
    if (d->library) dlclose(d->library);
    memset(d, 0, sizeof *d);
}

static attn_status status_of(cu_result r, attn_status otherwise) {
    switch ((int)r) {
    case CU_NO_MEMORY: return ATTN_E_MEMORY;
    case CU_BAD_IMAGE:
    case CU_NO_BINARY:
    case CU_BAD_PTX:
    case CU_NO_JIT_COMPILER:
    case CU_PTX_TOO_NEW: return ATTN_E_NO_DRIVER;
    case CU_UNCORRECTABLE_ECC:
    case CU_ILLEGAL_ADDRESS:
    case CU_LAUNCH_TIMEOUT:
    case CU_DEVICE_ASSERT: return ATTN_E_DEVICE_FAULT;
    default: return (int)r >= CU_HARDWARE_STACK && (int)r <= CU_LAUNCH_FAILED ? ATTN_E_DEVICE_FAULT : otherwise;
    }
}

attn_status attn_cuda_fail(const struct attn_cuda_driver *d, cu_result r, attn_status otherwise, const char *call,
                           const char *format, ...) {
    char what[512];
    va_list list;
    va_start(list, format);
    vsnprintf(what, sizeof what, format, list);
    va_end(list);
    const char *words = NULL, *name = NULL;
    if (d->cuGetErrorString(r, &words) || !words) words = "an error without words";
    if (d->cuGetErrorName(r, &name) || !name) name = "unknown";
    FAIL(status_of(r, otherwise), "device", "%s: %s failed: %s (%s, %d)", what, call, words, name, (int)r);
}
