/* SPDX-License-Identifier: MIT
 * Graphs: recorded by streams, or made of nodes. */
#include "runtime/runtime.h"

RT_CALL(cudaStreamBeginCapture, void *stream, int mode) {
    RT_ENTER;
    return sim_rt_result(cuStreamBeginCapture_v2(stream, mode));
}
RT_CALL(cudaStreamEndCapture, void *stream, void **graph) {
    RT_ENTER;
    return sim_rt_result(cuStreamEndCapture(stream, graph));
}
RT_CALL(cudaStreamIsCapturing, void *stream, int *status) {
    RT_ENTER;
    return sim_rt_result(cuStreamIsCapturing(stream, status));
}
RT_CALL(cudaThreadExchangeStreamCaptureMode, int *mode) {
    RT_ENTER;
    return sim_rt_result(cuThreadExchangeStreamCaptureMode(mode));
}
RT_CALL(cudaGraphCreate, void **graph, unsigned flags) {
    RT_ENTER;
    return sim_rt_result(cuGraphCreate(graph, flags));
}
RT_CALL(cudaGraphDestroy, void *graph) {
    RT_ENTER;
    return sim_rt_result(cuGraphDestroy(graph));
}
RT_CALL(cudaGraphClone, void **clone, void *graph) {
    RT_ENTER;
    return sim_rt_result(cuGraphClone(clone, graph));
}
RT_CALL(cudaGraphGetNodes, void *graph, void **nodes, size_t *n) {
    RT_ENTER;
    return sim_rt_result(cuGraphGetNodes(graph, nodes, n));
}
RT_CALL(cudaGraphInstantiateWithFlags, void **executable, void *graph, unsigned long long flags) {
    RT_ENTER;
    return sim_rt_result(cuGraphInstantiateWithFlags(executable, graph, flags));
}
RT_CALL(cudaGraphInstantiate, void **executable, void *graph, unsigned long long flags) {
    return cudaGraphInstantiateWithFlags(executable, graph, flags);
}
RT_CALL(cudaGraphExecUpdate, void *executable, void *graph, void *result) {
    RT_ENTER;
    return sim_rt_result(cuGraphExecUpdate_v2(executable, graph, result));
}
RT_CALL(cudaGraphExecDestroy, void *executable) {
    RT_ENTER;
    return sim_rt_result(cuGraphExecDestroy(executable));
}
RT_CALL(cudaGraphLaunch, void *executable, void *stream) {
    RT_ENTER;
    return sim_rt_result(cuGraphLaunch(executable, stream));
}
RT_CALL(cudaGraphUpload, void *executable, void *stream) { /* nothing to bring anywhere */
    (void)stream;
    return sim_rt_result(executable ? RT_SUCCESS : RT_INVALID_VALUE);
}

/* ---- nodes ---- */

struct rt_kernel_params {
    const void *host;
    struct rt_dim3 grid, block;
    unsigned shared_bytes;
    void **params, **extra;
};
static int make_kernel_node(const struct rt_kernel_params *k, struct rt_kernel_node *out) {
    if (!k || k->extra) return RT_INVALID_VALUE;
    *out = (struct rt_kernel_node){.grid = {k->grid.x, k->grid.y, k->grid.z},
                                   .block = {k->block.x, k->block.y, k->block.z},
                                   .shared_bytes = k->shared_bytes,
                                   .params = k->params};
    return sim_rt_function(k->host, &out->function);
}
RT_CALL(cudaGraphAddKernelNode, void **node, void *graph, void *const *after, size_t n,
        const struct rt_kernel_params *k) {
    struct rt_kernel_node made;
    const int r = make_kernel_node(k, &made);
    return sim_rt_result(r ? r : cuGraphAddKernelNode_v2(node, graph, after, n, &made));
}
RT_CALL(cudaGraphExecKernelNodeSetParams, void *executable, void *node, const struct rt_kernel_params *k) {
    struct rt_kernel_node made;
    const int r = make_kernel_node(k, &made);
    return sim_rt_result(r ? r : cuGraphExecKernelNodeSetParams_v2(executable, node, &made));
}
struct rt_fill_params {
    void *to;
    size_t pitch;
    unsigned value, element;
    size_t width, height;
};
RT_CALL(cudaGraphAddMemsetNode, void **node, void *graph, void *const *after, size_t n,
        const struct rt_fill_params *f) {
    void *context = NULL;
    RT_ENTER;
    if (!f || cuCtxGetCurrent(&context)) return sim_rt_result(RT_INVALID_VALUE);
    const struct rt_fill_node fill = {(uintptr_t)f->to, f->pitch, f->value, f->element, f->width, f->height};
    return sim_rt_result(cuGraphAddMemsetNode(node, graph, after, n, &fill, context));
}
RT_CALL(cudaGraphAddHostNode, void **node, void *graph, void *const *after, size_t n, const struct rt_host_node *host) {
    RT_ENTER;
    return sim_rt_result(cuGraphAddHostNode(node, graph, after, n, host));
}
RT_CALL(cudaGraphAddEmptyNode, void **node, void *graph, void *const *after, size_t n) {
    RT_ENTER;
    return sim_rt_result(cuGraphAddEmptyNode(node, graph, after, n));
}
static int add_copy(void **node, void *graph, void *const *after, size_t n, void *to, const void *from, size_t bytes) {
    enum { HOST = 1, UNIFIED = 4 };
    void *context = NULL;
    const int r = cuCtxGetCurrent(&context);
    const struct rt_copy_node c = {
        .from = {.type = sim_rt_on_device(from) ? UNIFIED : HOST, .host = from, .device = (uintptr_t)from},
        .to = {.type = sim_rt_on_device(to) ? UNIFIED : HOST, .host = to, .device = (uintptr_t)to},
        .width_bytes = bytes,
        .height = 1,
        .depth = 1};
    return sim_rt_result(r ? r : cuGraphAddMemcpyNode(node, graph, after, n, &c, context));
}
RT_CALL(cudaGraphAddMemcpyNode1D, void **node, void *graph, void *const *after, size_t n, void *to, const void *from,
        size_t bytes, int direction) {
    RT_ENTER;
    (void)direction;
    return add_copy(node, graph, after, n, to, from, bytes);
}
/* Three dimensions in the interface; here one row of bytes, of pitched memory, no arrays. */
struct rt_pitched {
    void *address;
    size_t pitch, width, height;
};
struct rt_copy_3d {
    void *from_array;
    size_t from_place[3];
    struct rt_pitched from;
    void *to_array;
    size_t to_place[3];
    struct rt_pitched to;
    size_t width, height, depth;
    int direction;
};
RT_CALL(cudaGraphAddMemcpyNode, void **node, void *graph, void *const *after, size_t n, const struct rt_copy_3d *c) {
    RT_ENTER;
    if (!c || c->from_array || c->to_array) return sim_rt_result(c ? RT_NOT_SUPPORTED : RT_INVALID_VALUE);
    for (int i = 0; i < 3; i++)
        if (c->from_place[i] || c->to_place[i]) return sim_rt_result(RT_NOT_SUPPORTED);
    if (c->height != 1 || c->depth != 1) return sim_rt_result(RT_NOT_SUPPORTED);
    return add_copy(node, graph, after, n, c->to.address, c->from.address, c->width);
}
