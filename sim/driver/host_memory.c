/* SPDX-License-Identifier: MIT
 * Driver calls about memory that the host names, too: pinned, managed, registered. Blocks like any other to a kernel,
 * so that bounds and order hold there as well; what the host itself reads and writes is not seen. */
#include "driver/stream.h"
#include "machine/device.h"

#define ENTER_CONTEXT                                                                                                  \
    struct sim_context *context = NULL;                                                                                \
    int r_ = sim_enter(__func__, &context);                                                                            \
    if (r_) return r_;
#define ADDRESS(p) ((uint64_t)(uintptr_t)(p))

SIM_API cuMemHostAlloc(void **out, size_t bytes, unsigned flags);
SIM_API cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
    ENTER_CONTEXT
    if (!out || !bytes || flags > 7) return R_INVALID_VALUE;
    const uint64_t address = sim_memory_alloc_kind(context->device, bytes, SIM_PINNED_MEMORY);
    *out = (void *)(uintptr_t)address;
    return address ? R_SUCCESS : R_OUT_OF_MEMORY;
}
SIM_API cuMemAllocHost_v2(void **out, size_t bytes);
SIM_API cuMemAllocHost_v2(void **out, size_t bytes) { return cuMemHostAlloc(out, bytes, 0); }
SIM_API cuMemFreeHost(void *address);
SIM_API cuMemFreeHost(void *address) { /* waits, as cuMemFree does */
    ENTER_CONTEXT
    const struct sim_block *b = sim_memory_find(ADDRESS(address));
    if (!b || b->kind != SIM_PINNED_MEMORY) return R_INVALID_VALUE;
    sim_streams_finish(context, 0);
    return sim_memory_free(ADDRESS(address)) ? R_INVALID_VALUE : R_SUCCESS;
}
SIM_API cuMemAllocManaged(uint64_t *out, size_t bytes, unsigned flags);
SIM_API cuMemAllocManaged(uint64_t *out, size_t bytes, unsigned flags) {
    ENTER_CONTEXT
    if (!out || !bytes || (flags != 1 && flags != 2)) return R_INVALID_VALUE;
    if (bytes > sim_profile()->bytes - sim_memory_used(context->device)) return R_OUT_OF_MEMORY;
    *out = sim_memory_alloc_kind(context->device, bytes, SIM_MANAGED_MEMORY);
    return *out ? R_SUCCESS : R_OUT_OF_MEMORY;
}
SIM_API cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags);
SIM_API cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags) {
    ENTER_CONTEXT
    if (!address || !bytes || flags > 15) return R_INVALID_VALUE;
    return sim_memory_register(context->device, ADDRESS(address), bytes) ? R_ALREADY_REGISTERED : R_SUCCESS;
}
SIM_API cuMemHostUnregister(void *address);
SIM_API cuMemHostUnregister(void *address) {
    ENTER_CONTEXT
    sim_streams_finish(context, 0);
    return sim_memory_unregister(ADDRESS(address)) ? R_NOT_REGISTERED : R_SUCCESS;
}
SIM_API cuMemHostGetDevicePointer_v2(uint64_t *out, void *host, unsigned flags);
SIM_API cuMemHostGetDevicePointer_v2(uint64_t *out, void *host, unsigned flags) {
    ENTER_CONTEXT
    if (!out || flags || !sim_memory_holds(ADDRESS(host), 1)) return R_INVALID_VALUE;
    *out = ADDRESS(host);
    return R_SUCCESS;
}
SIM_API cuPointerGetAttribute(void *out, int attribute, uint64_t address);
SIM_API cuPointerGetAttribute(void *out, int attribute, uint64_t address) {
    enum { MEMORY_TYPE = 2, DEVICE_POINTER, HOST_POINTER, IS_MANAGED = 8, ORDINAL };
    ENTER_CONTEXT
    if (!out || !sim_memory_holds(address, 1)) return R_INVALID_VALUE;
    const struct sim_block *b = sim_memory_find(address);
    const int is_device = b->kind == SIM_DEVICE_MEMORY || b->kind == SIM_MANAGED_MEMORY;
    switch (attribute) {
    case MEMORY_TYPE: *(unsigned *)out = is_device ? MEMORY_DEVICE : MEMORY_HOST; return R_SUCCESS;
    case DEVICE_POINTER: *(uint64_t *)out = address; return R_SUCCESS;
    case HOST_POINTER: *(uint64_t *)out = address; return b->kind == SIM_DEVICE_MEMORY ? R_INVALID_VALUE : R_SUCCESS;
    case IS_MANAGED: *(unsigned *)out = b->kind == SIM_MANAGED_MEMORY; return R_SUCCESS;
    case ORDINAL: *(int *)out = b->device; return R_SUCCESS;
    default: return R_INVALID_VALUE;
    }
}
