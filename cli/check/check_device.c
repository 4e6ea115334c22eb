/* SPDX-License-Identifier: MIT
 * Device memory for the tester: every block of host memory that a case lives in - tensors with their guards, the
 * workspace - gets a twin on the CUDA device. Both are filled alike before a run and the twin is read back whole after
 * it, so that all tests of bytes work as on the CPU. The driver is opened by name; nothing of the library is used. */
#include "check.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

struct check_device {
    void *library, *context;
    int handle;
    int (*init)(unsigned);
    int (*get)(int *, int);
    int (*retain)(void **, int);
    int (*release)(int);
    int (*push)(void *);
    int (*synchronize)(void);
    int (*alloc)(uint64_t *, size_t);
    int (*release_memory)(uint64_t);
    int (*up)(uint64_t, const void *, size_t);
    int (*down)(void *, uint64_t, size_t);
    int (*error_name)(int, const char **);
};

static int resolve(struct check_device *d) {
    const struct {
        const char *name;
        size_t offset;
    } calls[] = {
        {"cuInit", offsetof(struct check_device, init)},
        {"cuDeviceGet", offsetof(struct check_device, get)},
        {"cuDevicePrimaryCtxRetain", offsetof(struct check_device, retain)},
        {"cuDevicePrimaryCtxRelease_v2", offsetof(struct check_device, release)},
        {"cuCtxPushCurrent_v2", offsetof(struct check_device, push)},
        {"cuCtxSynchronize", offsetof(struct check_device, synchronize)},
        {"cuMemAlloc_v2", offsetof(struct check_device, alloc)},
        {"cuMemFree_v2", offsetof(struct check_device, release_memory)},
        {"cuMemcpyHtoD_v2", offsetof(struct check_device, up)},
        {"cuMemcpyDtoH_v2", offsetof(struct check_device, down)},
        {"cuGetErrorName", offsetof(struct check_device, error_name)},
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        void *at = dlsym(d->library, calls[i].name);
        if (!at) return -1;
        memcpy((char *)d + calls[i].offset, &at, sizeof at);
    }
    return 0;
}

struct check_device *attn_cli_check_device_open(int32_t index, char *why, size_t bytes) {
    const char *path = getenv("ATTN_CUDA_DRIVER"); /* the same driver as the library's, a simulator perhaps */
    struct check_device *d = calloc(1, sizeof *d);
    if (!d) return NULL;
    d->library = dlopen(path && *path ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    int r = -1;
    if (!d->library || resolve(d))
        snprintf(why, bytes, "the CUDA driver cannot be opened");
    else if ((r = d->init(0)) || (r = d->get(&d->handle, index)) || (r = d->retain(&d->context, d->handle)) ||
             (r = d->push(d->context)))
        snprintf(why, bytes, "cuda:%d cannot be opened: error %d of the driver", (int)index, r);
    if (!r) return d;
    free(d); /* the library stays open: a driver does not like to be closed */
    return NULL;
}

void attn_cli_check_device_close(struct check_device *d) {
    if (!d) return;
    d->release(d->handle);
    free(d);
}

const char *attn_cli_check_device_wait(struct check_device *d) {
    const char *name = NULL;
    int r = d->synchronize();
    if (!r) return NULL;
    return d->error_name(r, &name) || !name ? "an unknown error" : name;
}

int attn_cli_check_twin_make(struct check_device *d, struct check_twin *t, uint8_t *host, size_t bytes) {
    *t = (struct check_twin){.host = host, .bytes = bytes};
    return bytes ? d->alloc(&t->address, bytes) : 0;
}
int attn_cli_check_twin_up(struct check_device *d, const struct check_twin *t) {
    return t->bytes ? d->up(t->address, t->host, t->bytes) : 0;
}
int attn_cli_check_twin_down(struct check_device *d, const struct check_twin *t) {
    return t->bytes ? d->down(t->host, t->address, t->bytes) : 0;
}
void attn_cli_check_twin_free(struct check_device *d, struct check_twin *t) {
    if (t->address) d->release_memory(t->address);
    *t = (struct check_twin){0};
}
void *attn_cli_check_twin_of(const struct check_twin *t, const void *host) {
    return host ? (void *)(uintptr_t)(t->address + (uint64_t)((const uint8_t *)host - t->host)) : NULL;
}
