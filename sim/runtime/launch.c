/* SPDX-License-Identifier: MIT
 * Launches, attributes of kernels, occupancy. */
#include "runtime/runtime.h"

#include <stdlib.h>
#include <string.h>

enum { ATTRIBUTE_COOPERATIVE = 2, ATTRIBUTE_CLUSTER = 4, MOST_ATTRIBUTES = 32 };
/* of a device */
enum { MULTIPROCESSORS = 16, THREADS_PER_SM = 39, SHARED_PER_SM = 81, MAJOR = 75, MINOR = 76 };
/* of a kernel */
enum {
    MOST_THREADS,
    SHARED,
    CONSTANT,
    LOCAL,
    REGISTERS,
    PTX_VERSION,
    BINARY_VERSION,
    CACHE_MODE,
    MOST_DYNAMIC,
    CARVEOUT
};

struct rt_config { /* of cudaLaunchKernelExC */
    struct rt_dim3 grid, block;
    size_t shared_bytes;
    void *stream;
    const struct rt_attribute *attributes;
    unsigned n_attributes;
};
struct rt_function_attributes {
    size_t shared_bytes, constant_bytes, local_bytes;
    int most_threads, registers, ptx_version, binary_version, cache_mode, most_dynamic_bytes, carveout;
    int must_set_cluster, cluster[3], cluster_policy, may_use_large_clusters, reserved[16];
};

static int launch(const void *host, const struct rt_config *c, void **params) {
    void *function = NULL;
    int r = sim_rt_function(host, &function);
    if (r) return sim_rt_result(r);
    if (c->shared_bytes > UINT32_MAX) return sim_rt_result(RT_INVALID_VALUE);
    const struct rt_dim3 *g = &c->grid, *b = &c->block;
    if (!g->x || !g->y || !g->z || !b->x || !b->y || !b->z || (uint64_t)b->x * b->y * b->z > 1024)
        return sim_rt_result(RT_INVALID_CONFIGURATION);
    const struct rt_launch l = {.grid = {g->x, g->y, g->z},
                                .block = {b->x, b->y, b->z},
                                .shared_bytes = (unsigned)c->shared_bytes,
                                .stream = c->stream,
                                .attributes = c->attributes,
                                .n_attributes = c->n_attributes};
    return sim_rt_result(cuLaunchKernelEx(&l, function, params, NULL));
}
RT_CALL(cudaLaunchKernel, const void *host, struct rt_dim3 grid, struct rt_dim3 block, void **params, size_t shared,
        void *stream) {
    return launch(host, &(struct rt_config){grid, block, shared, stream, NULL, 0}, params);
}
RT_CALL(__cudaLaunchKernel, const void *kernel, struct rt_dim3 grid, struct rt_dim3 block, void **params, size_t shared,
        void *stream) {
    return cudaLaunchKernel(kernel, grid, block, params, shared, stream);
}
RT_CALL(cudaLaunchKernelExC, const struct rt_config *config, const void *host, void **params) {
    if (!config) return sim_rt_result(RT_INVALID_VALUE);
    return launch(host, config, params);
}
RT_CALL(cudaLaunchCooperativeKernel, const void *host, struct rt_dim3 grid, struct rt_dim3 block, void **params,
        size_t shared, void *stream) {
    const struct rt_attribute together = {.id = ATTRIBUTE_COOPERATIVE, .value.on = 1};
    return launch(host, &(struct rt_config){grid, block, shared, stream, &together, 1}, params);
}

/* ---- attributes of kernels ---- */

RT_CALL(cudaFuncSetAttribute, const void *host, int attribute, int value) {
    void *function = NULL;
    int r = sim_rt_function(host, &function);
    return sim_rt_result(r ? r : cuFuncSetAttribute(function, attribute, value));
}
RT_CALL(cudaFuncSetCacheConfig, const void *host, int config) { /* a hint */
    void *function = NULL;
    (void)config;
    return sim_rt_result(sim_rt_function(host, &function));
}
RT_CALL(cudaFuncGetAttributes, struct rt_function_attributes *out, const void *host) {
    void *function = NULL;
    int r = sim_rt_function(host, &function), v[MOST_DYNAMIC + 1] = {0};
    if (r || !out) return sim_rt_result(r ? r : RT_INVALID_VALUE);
    for (int i = 0; i <= MOST_DYNAMIC && !r; i++)
        if (i != CACHE_MODE) r = cuFuncGetAttribute(&v[i], i, function);
    if (r) return sim_rt_result(r);
    *out = (struct rt_function_attributes){.shared_bytes = (size_t)v[SHARED],
                                           .constant_bytes = (size_t)v[CONSTANT],
                                           .local_bytes = (size_t)v[LOCAL],
                                           .most_threads = v[MOST_THREADS],
                                           .registers = v[REGISTERS],
                                           .ptx_version = v[PTX_VERSION],
                                           .binary_version = v[BINARY_VERSION],
                                           .most_dynamic_bytes = v[MOST_DYNAMIC],
                                           .carveout = -1};
    return RT_SUCCESS;
}

/* ---- occupancy: by threads and shared memory; PTX does not tell registers ---- */

RT_CALL(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, int *n, const void *host, int threads, size_t shared,
        unsigned flags) {
    void *function = NULL;
    int r = sim_rt_function(host, &function);
    (void)flags;
    return sim_rt_result(r ? r : cuOccupancyMaxActiveBlocksPerMultiprocessor(n, function, threads, shared));
}
RT_CALL(cudaOccupancyMaxActiveBlocksPerMultiprocessor, int *n, const void *host, int threads, size_t shared) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(n, host, threads, shared, 0);
}
RT_CALL(cudaOccupancyAvailableDynamicSMemPerBlock, size_t *bytes, const void *host, int n_blocks, int threads) {
    void *function = NULL;
    int r = sim_rt_function(host, &function), fixed = 0;
    if (!r) r = cuFuncGetAttribute(&fixed, SHARED, function);
    if (r || !bytes || n_blocks < 1 || threads < 1) return sim_rt_result(r ? r : RT_INVALID_VALUE);
    const int share = sim_rt_attribute(SHARED_PER_SM) / n_blocks - 1024 - fixed; /* 1024: the system's of each CTA */
    *bytes = share > 0 && n_blocks * threads <= sim_rt_attribute(THREADS_PER_SM) ? (size_t)share : 0;
    return RT_SUCCESS;
}
static unsigned cluster_of(const struct rt_config *c) {
    for (unsigned i = 0; i < c->n_attributes; i++) {
        const unsigned *size = c->attributes[i].value.cluster;
        if (c->attributes[i].id == ATTRIBUTE_CLUSTER) return size[0] * size[1] * size[2];
    }
    return 1;
}
RT_CALL(cudaOccupancyMaxActiveClusters, int *n, const void *host, const struct rt_config *c) {
    int per_sm = 0, r = 0;
    if (!n || !c || !cluster_of(c)) return sim_rt_result(RT_INVALID_VALUE);
    r = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, host, (int)(c->block.x * c->block.y * c->block.z),
                                                      c->shared_bytes);
    if (!r) *n = per_sm * sim_rt_attribute(MULTIPROCESSORS) / (int)cluster_of(c);
    return r;
}
RT_CALL(cudaOccupancyMaxPotentialClusterSize, int *size, const void *host, const struct rt_config *c) {
    void *function = NULL;
    int r = sim_rt_function(host, &function);
    if (r || !size || !c) return sim_rt_result(r ? r : RT_INVALID_VALUE);
    *size = sim_rt_attribute(MAJOR) >= 9 ? 8 : 1; /* what every chip with clusters has room for */
    return RT_SUCCESS;
}
