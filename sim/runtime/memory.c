/* SPDX-License-Identifier: MIT
 * Memory. All of it is the host's: managed, pinned and device memory differ in where a program may name them alone. */
#include "runtime/runtime.h"

enum { PITCH = 512 };
enum { UNREGISTERED, HOST, DEVICE, MANAGED }; /* cudaMemoryType */

static int allocate(void **out, size_t bytes, void *stream, int is_async) {
    uint64_t address = 0;
    RT_ENTER;
    if (!out) return sim_rt_result(RT_INVALID_VALUE);
    int r = RT_SUCCESS;
    if (bytes) r = is_async ? cuMemAllocAsync(&address, bytes, stream) : cuMemAlloc_v2(&address, bytes);
    if (!r) *out = (void *)(uintptr_t)address;
    return sim_rt_result(r);
}
RT_CALL(cudaMalloc, void **out, size_t bytes) { return allocate(out, bytes, NULL, 0); }
RT_CALL(cudaMallocAsync, void **out, size_t bytes, void *stream) { return allocate(out, bytes, stream, 1); }
RT_CALL(cudaMallocPitch, void **out, size_t *pitch, size_t width, size_t height) {
    if (!pitch) return sim_rt_result(RT_INVALID_VALUE);
    *pitch = (width + PITCH - 1) / PITCH * PITCH;
    return allocate(out, *pitch * height, NULL, 0);
}
RT_CALL(cudaMallocManaged, void **out, size_t bytes, unsigned flags) {
    uint64_t address = 0;
    RT_ENTER;
    const int r = out ? cuMemAllocManaged(&address, bytes, flags) : RT_INVALID_VALUE;
    if (!r) *out = (void *)(uintptr_t)address;
    return sim_rt_result(r);
}
RT_CALL(cudaFree, void *address) {
    RT_ENTER;
    return sim_rt_result(address ? cuMemFree_v2((uintptr_t)address) : RT_SUCCESS);
}
RT_CALL(cudaFreeAsync, void *address, void *stream) {
    RT_ENTER;
    return sim_rt_result(address ? cuMemFreeAsync((uintptr_t)address, stream) : RT_SUCCESS);
}
RT_CALL(cudaHostAlloc, void **out, size_t bytes, unsigned flags) {
    RT_ENTER;
    return sim_rt_result(cuMemHostAlloc(out, bytes ? bytes : 1, flags));
}
RT_CALL(cudaMallocHost, void **out, size_t bytes) { return cudaHostAlloc(out, bytes, 0); }
RT_CALL(cudaFreeHost, void *address) {
    RT_ENTER;
    return sim_rt_result(address ? cuMemFreeHost(address) : RT_SUCCESS);
}
RT_CALL(cudaHostRegister, void *address, size_t bytes, unsigned flags) {
    RT_ENTER;
    return sim_rt_result(cuMemHostRegister_v2(address, bytes, flags));
}
RT_CALL(cudaHostUnregister, void *address) {
    RT_ENTER;
    return sim_rt_result(cuMemHostUnregister(address));
}
RT_CALL(cudaHostGetDevicePointer, void **out, void *host, unsigned flags) {
    RT_ENTER;
    if (!out || flags || !sim_rt_on_device(host)) return sim_rt_result(RT_INVALID_VALUE);
    *out = host;
    return RT_SUCCESS;
}
RT_CALL(cudaHostGetFlags, unsigned *flags, void *host) {
    RT_ENTER;
    if (!flags || !sim_rt_on_device(host)) return sim_rt_result(RT_INVALID_VALUE);
    *flags = 2; /* mapped */
    return RT_SUCCESS;
}
RT_CALL(cudaMemGetInfo, size_t *free_bytes, size_t *total) {
    RT_ENTER;
    return sim_rt_result(cuMemGetInfo_v2(free_bytes, total));
}

struct rt_pointer_attributes {
    int type, device;
    void *device_pointer, *host_pointer;
    long reserved[8];
};
RT_CALL(cudaPointerGetAttributes, struct rt_pointer_attributes *out, const void *address) {
    enum { MEMORY_TYPE = 2, IS_MANAGED = 8, ORDINAL = 9 };
    unsigned type = 0, is_managed = 0;
    int device = -2;
    RT_ENTER;
    if (!out) return sim_rt_result(RT_INVALID_VALUE);
    void *p = (void *)(uintptr_t)address;
    *out = (struct rt_pointer_attributes){.device = device, .host_pointer = p};
    if (cuPointerGetAttribute(&type, MEMORY_TYPE, (uintptr_t)address)) return RT_SUCCESS; /* any memory of the host */
    cuPointerGetAttribute(&is_managed, IS_MANAGED, (uintptr_t)address);
    cuPointerGetAttribute(&device, ORDINAL, (uintptr_t)address);
    out->type = is_managed ? MANAGED : (int)type;
    out->device = device, out->device_pointer = p;
    if (out->type == DEVICE) out->host_pointer = NULL;
    return RT_SUCCESS;
}

/* Where managed memory should lie: hints that change no result. CUDA 13 passes a place of 8 bytes where CUDA 12 passes
 * a number: either is one register, and neither is read. */
static int hint(const void *address, size_t bytes) {
    RT_ENTER;
    return sim_rt_result(bytes && sim_rt_on_device(address) ? RT_SUCCESS : RT_INVALID_VALUE);
}
RT_CALL(cudaMemPrefetchAsync, const void *address, size_t bytes, uint64_t place) {
    (void)place;
    return hint(address, bytes);
}
RT_CALL(cudaMemPrefetchAsync_v2, const void *address, size_t bytes, uint64_t place) {
    (void)place;
    return hint(address, bytes);
}
RT_CALL(cudaMemAdvise, const void *address, size_t bytes, int advice, uint64_t place) {
    (void)advice, (void)place;
    return hint(address, bytes);
}
RT_CALL(cudaMemAdvise_v2, const void *address, size_t bytes, int advice, uint64_t place) {
    (void)advice, (void)place;
    return hint(address, bytes);
}
RT_CALL(cudaStreamAttachMemAsync, void *stream, const void *address, size_t bytes, unsigned flags) {
    (void)stream, (void)flags, (void)bytes;
    return hint(address, 1);
}

/* ---- pools: the default one of each device ---- */

RT_CALL(cudaDeviceGetDefaultMemPool, void **pool, int device) {
    RT_ENTER;
    return sim_rt_result(cuDeviceGetDefaultMemPool(pool, device));
}
RT_CALL(cudaDeviceGetMemPool, void **pool, int device) { return cudaDeviceGetDefaultMemPool(pool, device); }
RT_CALL(cudaMallocFromPoolAsync, void **out, size_t bytes, void *pool, void *stream) {
    uint64_t address = 0;
    RT_ENTER;
    const int r = out ? cuMemAllocFromPoolAsync(&address, bytes, pool, stream) : RT_INVALID_VALUE;
    if (!r) *out = (void *)(uintptr_t)address;
    return sim_rt_result(r);
}
RT_CALL(cudaMemPoolSetAttribute, void *pool, int attribute, const void *value) {
    RT_ENTER;
    return sim_rt_result(cuMemPoolSetAttribute(pool, attribute, value));
}
RT_CALL(cudaMemPoolGetAttribute, void *pool, int attribute, void *value) {
    RT_ENTER;
    return sim_rt_result(cuMemPoolGetAttribute(pool, attribute, value));
}
RT_CALL(cudaMemPoolTrimTo, void *pool, size_t keep) {
    RT_ENTER;
    return sim_rt_result(cuMemPoolTrimTo(pool, keep));
}
