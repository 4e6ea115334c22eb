/* SPDX-License-Identifier: MIT
 * Copies and fills, of memory and of variables, row by row where they have two dimensions. */
#include "runtime/runtime.h"

#include <string.h>

int sim_rt_on_device(const void *address) {
    enum { MEMORY_TYPE = 2 };
    unsigned type;
    return !cuPointerGetAttribute(&type, MEMORY_TYPE, (uintptr_t)address);
}

static int is_recording(void *stream) {
    int status = 0;
    return !cuStreamIsCapturing(stream, &status) && status;
}
/* CUDA Runtime API, "API synchronization behavior": a copy from or to memory that is not pinned is over, or staged, at
 * its return, so that the host may write a source again at once. */
static int is_staged(void *stream, const void *host) { return !sim_rt_on_device(host) && !is_recording(stream); }

static int copy_async(void *to, const void *from, size_t bytes, int direction, void *stream) {
    const uint64_t to_device = (uintptr_t)to, from_device = (uintptr_t)from;
    int r;
    switch (direction) {
    case RT_HOST_TO_DEVICE: r = cuMemcpyHtoDAsync_v2(to_device, from, bytes, stream); break;
    case RT_DEVICE_TO_HOST: r = cuMemcpyDtoHAsync_v2(to, from_device, bytes, stream); break;
    case RT_DEVICE_TO_DEVICE: return cuMemcpyDtoDAsync_v2(to_device, from_device, bytes, stream);
    default:
        if (is_recording(stream)) return RT_NOT_SUPPORTED;
        if ((r = cuStreamSynchronize(stream)) == 0) memmove(to, from, bytes);
        return r;
    }
    return !r && is_staged(stream, direction == RT_HOST_TO_DEVICE ? from : to) ? cuStreamSynchronize(stream) : r;
}
static int copy_and_wait(void *to, const void *from, size_t bytes, int direction) {
    const uint64_t to_device = (uintptr_t)to, from_device = (uintptr_t)from;
    int r;
    switch (direction) {
    case RT_HOST_TO_DEVICE: return cuMemcpyHtoD_v2(to_device, from, bytes);
    case RT_DEVICE_TO_HOST: return cuMemcpyDtoH_v2(to, from_device, bytes);
    case RT_DEVICE_TO_DEVICE: return cuMemcpyDtoD_v2(to_device, from_device, bytes);
    default:
        if ((r = cuStreamSynchronize(NULL)) == 0) memmove(to, from, bytes);
        return r;
    }
}
/* The two ends decide where the program leaves it to the addresses. */
static int find_direction(const void *to, const void *from, int direction) {
    if (direction != RT_BY_ADDRESS) return direction;
    return sim_rt_on_device(to)     ? sim_rt_on_device(from) ? RT_DEVICE_TO_DEVICE : RT_HOST_TO_DEVICE
           : sim_rt_on_device(from) ? RT_DEVICE_TO_HOST
                                    : RT_HOST_TO_HOST;
}
static int copy(void *to, const void *from, size_t bytes, int direction, void *stream, int waits) {
    RT_ENTER;
    if (direction < RT_HOST_TO_HOST || direction > RT_BY_ADDRESS) return sim_rt_result(RT_INVALID_DIRECTION);
    if (!bytes) return RT_SUCCESS;
    if (!to || !from) return sim_rt_result(RT_INVALID_VALUE);
    direction = find_direction(to, from, direction);
    return sim_rt_result(waits ? copy_and_wait(to, from, bytes, direction)
                               : copy_async(to, from, bytes, direction, stream));
}
RT_CALL(cudaMemcpy, void *to, const void *from, size_t bytes, int direction) {
    return copy(to, from, bytes, direction, NULL, 1);
}
RT_CALL(cudaMemcpyAsync, void *to, const void *from, size_t bytes, int direction, void *stream) {
    return copy(to, from, bytes, direction, stream, 0);
}
RT_CALL(cudaMemcpyPeer, void *to, int to_device, const void *from, int from_device, size_t bytes) {
    (void)to_device, (void)from_device;
    return copy(to, from, bytes, RT_DEVICE_TO_DEVICE, NULL, 1);
}
RT_CALL(cudaMemcpyPeerAsync, void *to, int to_device, const void *from, int from_device, size_t bytes, void *stream) {
    (void)to_device, (void)from_device;
    return copy(to, from, bytes, RT_DEVICE_TO_DEVICE, stream, 0);
}
RT_CALL(cudaMemcpy2DAsync, void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
        int direction, void *stream) {
    int r = RT_SUCCESS;
    if (width > to_pitch || width > from_pitch) return sim_rt_result(RT_INVALID_PITCH);
    for (size_t i = 0; i < height && !r; i++)
        r = copy((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width, direction, stream, 0);
    return r;
}
RT_CALL(cudaMemcpy2D, void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
        int direction) {
    int r = RT_SUCCESS;
    if (width > to_pitch || width > from_pitch) return sim_rt_result(RT_INVALID_PITCH);
    for (size_t i = 0; i < height && !r; i++)
        r = copy((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width, direction, NULL, 1);
    return r;
}

/* ---- variables ---- */

static int find_part(const void *symbol, size_t offset, size_t bytes, void **out) {
    uint64_t address = 0;
    size_t room = 0;
    const int r = sim_rt_symbol(symbol, &address, &room);
    if (r) return r;
    if (offset > room || bytes > room - offset) return RT_INVALID_VALUE;
    *out = (void *)(uintptr_t)(address + offset);
    return RT_SUCCESS;
}
static int copy_in(const void *symbol, const void *from, size_t bytes, size_t offset, int direction, void *stream,
                   int waits) {
    void *part = NULL;
    const int r = find_part(symbol, offset, bytes, &part);
    return r ? sim_rt_result(r) : copy(part, from, bytes, direction, stream, waits);
}
static int copy_out(void *to, const void *symbol, size_t bytes, size_t offset, int direction, void *stream, int waits) {
    void *part = NULL;
    const int r = find_part(symbol, offset, bytes, &part);
    return r ? sim_rt_result(r) : copy(to, part, bytes, direction, stream, waits);
}
RT_CALL(cudaMemcpyToSymbol, const void *symbol, const void *from, size_t bytes, size_t offset, int direction) {
    return copy_in(symbol, from, bytes, offset, direction, NULL, 1);
}
RT_CALL(cudaMemcpyToSymbolAsync, const void *symbol, const void *from, size_t bytes, size_t offset, int direction,
        void *stream) {
    return copy_in(symbol, from, bytes, offset, direction, stream, 0);
}
RT_CALL(cudaMemcpyFromSymbol, void *to, const void *symbol, size_t bytes, size_t offset, int direction) {
    return copy_out(to, symbol, bytes, offset, direction, NULL, 1);
}
RT_CALL(cudaMemcpyFromSymbolAsync, void *to, const void *symbol, size_t bytes, size_t offset, int direction,
        void *stream) {
    return copy_out(to, symbol, bytes, offset, direction, stream, 0);
}
RT_CALL(cudaGetSymbolAddress, void **out, const void *symbol) {
    return sim_rt_result(out ? find_part(symbol, 0, 0, out) : RT_INVALID_VALUE);
}
RT_CALL(cudaGetSymbolSize, size_t *bytes, const void *symbol) {
    uint64_t address;
    return sim_rt_result(bytes ? sim_rt_symbol(symbol, &address, bytes) : RT_INVALID_VALUE);
}

/* ---- fills ---- */

RT_CALL(cudaMemset, void *to, int value, size_t bytes) {
    RT_ENTER;
    return sim_rt_result(bytes ? cuMemsetD8_v2((uintptr_t)to, (unsigned char)value, bytes) : RT_SUCCESS);
}
RT_CALL(cudaMemsetAsync, void *to, int value, size_t bytes, void *stream) {
    RT_ENTER;
    return sim_rt_result(bytes ? cuMemsetD8Async((uintptr_t)to, (unsigned char)value, bytes, stream) : RT_SUCCESS);
}
RT_CALL(cudaMemset2DAsync, void *to, size_t pitch, int value, size_t width, size_t height, void *stream) {
    int r = RT_SUCCESS;
    for (size_t i = 0; i < height && !r; i++) r = cudaMemsetAsync((char *)to + i * pitch, value, width, stream);
    return r;
}
RT_CALL(cudaMemset2D, void *to, size_t pitch, int value, size_t width, size_t height) {
    return cudaMemset2DAsync(to, pitch, value, width, height, NULL);
}
