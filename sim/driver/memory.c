/* SPDX-License-Identifier: MIT
 * Driver calls about device memory: allocations, copies, fills. Copies without a stream wait as the default stream
 * does. */
#include "driver/stream.h"
#include "machine/device.h"

#define ENTER_CONTEXT                                                                                                  \
    struct sim_context *context = NULL;                                                                                \
    int r_ = sim_enter(__func__, &context);                                                                            \
    if (r_) return r_;
#define MEMORY(address) ((void *)(uintptr_t)(address))

SIM_API cuMemAlloc_v2(uint64_t *address, size_t bytes);
SIM_API cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    ENTER_CONTEXT
    if (!address || !bytes) return R_INVALID_VALUE;
    int r = sim_capture_forbids();
    if (r) return r;
    if (bytes > sim_profile()->bytes - sim_memory_used(context->device)) return R_OUT_OF_MEMORY;
    *address = sim_memory_alloc(context->device, bytes);
    return *address ? R_SUCCESS : R_OUT_OF_MEMORY;
}
SIM_API cuMemFree_v2(uint64_t address);
SIM_API cuMemFree_v2(uint64_t address) { /* waits for all work of the device, as the machine does */
    ENTER_CONTEXT
    int r = sim_capture_forbids();
    if (r) return r;
    sim_streams_finish(context, 0);
    sim_host_waited_all();
    return !address || !sim_memory_free(address) ? R_SUCCESS : R_INVALID_VALUE;
}
SIM_API cuMemGetInfo_v2(size_t *free_bytes, size_t *total);
SIM_API cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    ENTER_CONTEXT
    *total = sim_profile()->bytes;
    *free_bytes = *total - sim_memory_used(context->device);
    return R_SUCCESS;
}

/* device_a, device_b: addresses that must be device memory. A copy that the host waits for needs no stream of its own.
 */
static int move(struct sim_context *context, void *stream, int waits, void *to, const void *from, size_t bytes,
                uint64_t device_a, uint64_t device_b) {
    int r = waits ? sim_capture_forbids() : R_SUCCESS;
    if (r) return r;
    if (!bytes) return R_SUCCESS;
    if (!sim_memory_holds(device_a, bytes) || !sim_memory_holds(device_b, bytes)) return R_INVALID_VALUE;
    r = sim_task_add(
        (uintptr_t)stream < 4 ? NULL : stream,
        (struct sim_task){.kind = SIM_TASK_COPY, .context = context, .to = to, .from = from, .bytes = bytes});
    if (waits) sim_host_waited(NULL, context);
    return r;
}
SIM_API cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes);
SIM_API cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) {
    ENTER_CONTEXT
    return move(context, NULL, 1, MEMORY(to), from, bytes, to, to);
}
SIM_API cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes);
SIM_API cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) {
    ENTER_CONTEXT
    return move(context, NULL, 1, to, MEMORY(from), bytes, from, from);
}
SIM_API cuMemcpyDtoD_v2(uint64_t to, uint64_t from, size_t bytes);
SIM_API cuMemcpyDtoD_v2(uint64_t to, uint64_t from, size_t bytes) {
    ENTER_CONTEXT
    return move(context, NULL, 1, MEMORY(to), MEMORY(from), bytes, to, from);
}
SIM_API cuMemcpy(uint64_t to, uint64_t from, size_t bytes);
SIM_API cuMemcpy(uint64_t to, uint64_t from, size_t bytes) {
    ENTER_CONTEXT
    return move(context, NULL, 1, MEMORY(to), MEMORY(from), bytes, to, from);
}
SIM_API cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream);
SIM_API cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
    ENTER_CONTEXT
    return move(context, stream, 0, MEMORY(to), from, bytes, to, to);
}
SIM_API cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream);
SIM_API cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
    ENTER_CONTEXT
    return move(context, stream, 0, to, MEMORY(from), bytes, from, from);
}
SIM_API cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream);
SIM_API cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream) {
    ENTER_CONTEXT
    return move(context, stream, 0, MEMORY(to), MEMORY(from), bytes, to, from);
}

static int fill(struct sim_context *context, void *stream, uint64_t to, uint32_t value, uint32_t element, size_t n) {
    if (to % element) return R_INVALID_VALUE;
    if (!n) return R_SUCCESS;
    if (n > SIZE_MAX / element || !sim_memory_holds(to, n * element)) return R_INVALID_VALUE;
    return sim_task_add((uintptr_t)stream < 4 ? NULL : stream, (struct sim_task){.kind = SIM_TASK_FILL,
                                                                                 .context = context,
                                                                                 .to = MEMORY(to),
                                                                                 .bytes = n,
                                                                                 .value = value,
                                                                                 .element = element});
}
SIM_API cuMemsetD8Async(uint64_t to, unsigned char value, size_t n, void *stream);
SIM_API cuMemsetD8Async(uint64_t to, unsigned char value, size_t n, void *stream) {
    ENTER_CONTEXT
    return fill(context, stream, to, value, 1, n);
}
SIM_API cuMemsetD32Async(uint64_t to, unsigned value, size_t n, void *stream);
SIM_API cuMemsetD32Async(uint64_t to, unsigned value, size_t n, void *stream) {
    ENTER_CONTEXT
    return fill(context, stream, to, value, 4, n);
}
SIM_API cuMemsetD8_v2(uint64_t to, unsigned char value, size_t n);
SIM_API cuMemsetD8_v2(uint64_t to, unsigned char value, size_t n) {
    ENTER_CONTEXT
    return fill(context, NULL, to, value, 1, n);
}
