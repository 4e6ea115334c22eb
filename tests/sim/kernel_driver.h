/* SPDX-License-Identifier: MIT
 * The calls of a driver that the programs of this folder make, opened by path: a device's, or the simulator. */
#ifndef TESTS_SIM_KERNEL_DRIVER_H
#define TESTS_SIM_KERNEL_DRIVER_H
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct kernel_attribute { /* of a launch; id 4: cluster */
    int id, pad;
    union {
        unsigned cluster[3];
        uint64_t room[8];
    } value;
};
struct kernel_launch {
    unsigned grid[3], block[3], shared_bytes;
    void *stream, *attributes;
    unsigned n_attributes;
};

/* X(member, exported symbol, parameters) */
#define KERNEL_DRIVER_CALLS(X)                                                                                         \
    X(init, cuInit, (unsigned))                                                                                        \
    X(count, cuDeviceGetCount, (int *))                                                                                \
    X(device, cuDeviceGet, (int *, int))                                                                               \
    X(name, cuDeviceGetName, (char *, int, int))                                                                       \
    X(attribute, cuDeviceGetAttribute, (int *, int, int))                                                              \
    X(retain, cuDevicePrimaryCtxRetain, (void **, int))                                                                \
    X(push, cuCtxPushCurrent_v2, (void *))                                                                             \
    X(synchronize, cuCtxSynchronize, (void))                                                                           \
    X(alloc, cuMemAlloc_v2, (uint64_t *, size_t))                                                                      \
    X(freed, cuMemFree_v2, (uint64_t))                                                                                 \
    X(up, cuMemcpyHtoD_v2, (uint64_t, const void *, size_t))                                                           \
    X(down, cuMemcpyDtoH_v2, (void *, uint64_t, size_t))                                                               \
    X(load, cuModuleLoadDataEx, (void **, const void *, unsigned, int *, void **))                                     \
    X(unload, cuModuleUnload, (void *))                                                                                \
    X(function, cuModuleGetFunction, (void **, void *, const char *))                                                  \
    X(set, cuFuncSetAttribute, (void *, int, int))                                                                     \
    X(launch, cuLaunchKernelEx, (const struct kernel_launch *, void *, void **, void **))                              \
    X(encode, cuTensorMapEncodeTiled,                                                                                  \
      (void *, int, unsigned, void *, const uint64_t *, const uint64_t *, const unsigned *, const unsigned *, int,     \
       int, int, int))

struct kernel_driver {
#define MEMBER(member, symbol, parameters) int(*member) parameters;
    KERNEL_DRIVER_CALLS(MEMBER)
#undef MEMBER
    const char *(*report)(uint64_t *, int); /* the simulator's findings; NULL: a device's driver has none */
    const char *(*counts)(int);             /* its counts (sim/counts/counts.h), likewise */
};

/* 0, or -1 and the reason in `why`. */
static inline int kernel_driver_open(struct kernel_driver *d, const char *path, char *why, size_t bytes) {
    static const struct {
        const char *symbol;
        size_t offset;
    } rows[] = {
#define ROW(member, symbol, parameters) {#symbol, offsetof(struct kernel_driver, member)},
        KERNEL_DRIVER_CALLS(ROW)
#undef ROW
    };
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL), *call;
    if (!library) {
        snprintf(why, bytes, "the driver cannot be opened: %s", dlerror());
        return -1;
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!(call = dlsym(library, rows[i].symbol))) {
            snprintf(why, bytes, "%s has no %s", path, rows[i].symbol);
            return -1;
        }
        memcpy((char *)d + rows[i].offset, &call, sizeof call);
    }
    call = dlsym(library, "attnsim_report");
    memcpy(&d->report, &call, sizeof call);
    call = dlsym(library, "attnsim_counts");
    memcpy(&d->counts, &call, sizeof call);
    return 0;
}
#endif
