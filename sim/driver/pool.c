/* SPDX-License-Identifier: MIT
 * Driver calls about memory that streams allocate and free. An allocation is there at the call, but counts as a write
 * of its stream, so that work that no order puts behind it is a finding; a free happens when its stream gets there, and
 * counts as a write, too. Pools have attributes and no memory of their own. A graph cannot record either. */
#include "driver/stream.h"
#include "machine/device.h"

#include <stdlib.h>

enum { N_POOLS = 8, REUSE_FIRST = 1, THRESHOLD = 4, RESERVED = 5, USED_HIGH = 8 };
struct sim_pool {
    int device;
    uint64_t attributes[THRESHOLD + 1];
};
static struct sim_pool by_default[N_POOLS];

#define ENTER_CONTEXT                                                                                                  \
    struct sim_context *context = NULL;                                                                                \
    int r_ = sim_enter(__func__, &context);                                                                            \
    if (r_) return r_;
static struct sim_stream *find_stream(void *handle) { return (uintptr_t)handle < 4 ? NULL : handle; }

SIM_API cuMemAllocAsync(uint64_t *address, size_t bytes, void *stream);
SIM_API cuMemAllocAsync(uint64_t *address, size_t bytes, void *stream) {
    ENTER_CONTEXT
    struct sim_stream *s = find_stream(stream);
    if (!address || !bytes) return R_INVALID_VALUE;
    if (s && s->capture.graph) return R_NOT_SUPPORTED;
    if (bytes > sim_profile()->bytes - sim_memory_used(context->device)) return R_OUT_OF_MEMORY;
    *address = sim_memory_alloc(context->device, bytes);
    if (!*address) return R_OUT_OF_MEMORY;
    return sim_task_add(
        s, (struct sim_task){
               .kind = SIM_TASK_ALLOC, .context = context, .to = (void *)(uintptr_t)*address, .bytes = bytes});
}
SIM_API cuMemFreeAsync(uint64_t address, void *stream);
SIM_API cuMemFreeAsync(uint64_t address, void *stream) {
    ENTER_CONTEXT
    struct sim_stream *s = find_stream(stream);
    const struct sim_block *b = sim_memory_find(address);
    if (s && s->capture.graph) return R_NOT_SUPPORTED;
    if (!b || b->freed || b->address != address) return R_INVALID_VALUE;
    return sim_task_add(
        s, (struct sim_task){
               .kind = SIM_TASK_FREE, .context = context, .to = (void *)(uintptr_t)address, .bytes = b->bytes});
}
SIM_API cuMemAllocFromPoolAsync(uint64_t *address, size_t bytes, struct sim_pool *pool, void *stream);
SIM_API cuMemAllocFromPoolAsync(uint64_t *address, size_t bytes, struct sim_pool *pool, void *stream) {
    ENTER_CONTEXT
    return pool ? cuMemAllocAsync(address, bytes, stream) : R_INVALID_VALUE;
}

SIM_API cuDeviceGetDefaultMemPool(struct sim_pool **pool, int device);
SIM_API cuDeviceGetDefaultMemPool(struct sim_pool **pool, int device) {
    int r = sim_enter(__func__, NULL);
    if (r) return r;
    if (!pool || device < 0 || device >= N_POOLS) return R_INVALID_VALUE;
    by_default[device].device = device;
    *pool = &by_default[device];
    return R_SUCCESS;
}
SIM_API cuMemPoolSetAttribute(struct sim_pool *pool, int attribute, const void *value);
SIM_API cuMemPoolSetAttribute(struct sim_pool *pool, int attribute, const void *value) {
    ENTER_CONTEXT
    if (!pool || !value || attribute < REUSE_FIRST || attribute > THRESHOLD) return R_INVALID_VALUE;
    pool->attributes[attribute] =
        attribute == THRESHOLD ? *(const uint64_t *)value : (uint64_t) * (const unsigned *)value;
    return R_SUCCESS;
}
SIM_API cuMemPoolGetAttribute(struct sim_pool *pool, int attribute, void *value);
SIM_API cuMemPoolGetAttribute(struct sim_pool *pool, int attribute, void *value) {
    ENTER_CONTEXT
    if (!pool || !value || attribute < REUSE_FIRST || attribute > USED_HIGH) return R_INVALID_VALUE;
    if (attribute < THRESHOLD)
        *(unsigned *)value = (unsigned)pool->attributes[attribute];
    else
        *(uint64_t *)value = attribute >= RESERVED ? sim_memory_used(pool->device) : pool->attributes[THRESHOLD];
    return R_SUCCESS;
}
SIM_API cuMemPoolTrimTo(struct sim_pool *pool, size_t keep);
SIM_API cuMemPoolTrimTo(struct sim_pool *pool, size_t keep) {
    (void)keep;
    ENTER_CONTEXT
    return pool ? R_SUCCESS : R_INVALID_VALUE;
}
