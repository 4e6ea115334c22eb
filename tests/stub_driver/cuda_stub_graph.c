/* SPDX-License-Identifier: MIT
 * The stand-in driver's answers about a recorded graph: its nodes, their types and parameters. Nothing is counted here,
 * and no failure injected. */
#include "stub_driver/cuda_stub_graph.h"

#include <string.h>

#define VISIBLE __attribute__((visibility("default")))

struct kernel_node { /* CUDA_KERNEL_NODE_PARAMS_v2 */
    cu_function function;
    unsigned grid[3], block[3], shared_bytes;
    void **params, **extra;
    void *kernel, *context;
};
struct fill_node { /* CUDA_MEMSET_NODE_PARAMS */
    cu_address to;
    size_t pitch;
    unsigned value, element;
    size_t width, height;
};
VISIBLE cu_result cuGraphGetNodes(cu_graph graph, struct node **nodes, size_t *n);
VISIBLE cu_result cuGraphNodeGetType(const struct node *node, int *type);
VISIBLE cu_result cuGraphKernelNodeGetParams_v2(struct node *node, struct kernel_node *out);
VISIBLE cu_result cuGraphKernelNodeGetAttribute(const struct node *node, int which, void *value);
VISIBLE cu_result cuGraphMemsetNodeGetParams(const struct node *node, struct fill_node *out);

cu_result cuGraphGetNodes(cu_graph graph, struct node **nodes, size_t *n) {
    for (size_t i = 0; nodes && i < *n; i++) nodes[i] = i < (size_t)graph->n ? &graph->node[i] : NULL;
    *n = (size_t)graph->n;
    return CU_OK;
}
cu_result cuGraphNodeGetType(const struct node *node, int *type) {
    *type = node->function ? 0 : 2;
    return CU_OK;
}
cu_result cuGraphKernelNodeGetParams_v2(struct node *node, struct kernel_node *out) {
    const struct cuda_stub_launch *l = &node->launch;
    if (!node->function) return CU_BAD_VALUE;
    node->params[0] = node->launch.params;
    *out = (struct kernel_node){.function = node->function,
                                .grid = {l->grid[0], l->grid[1], l->grid[2]},
                                .block = {l->threads, 1, 1},
                                .shared_bytes = l->shared_bytes,
                                .params = node->params};
    return CU_OK;
}
cu_result cuGraphKernelNodeGetAttribute(const struct node *node, int which, void *value) {
    const unsigned cluster[3] = {node->launch.cluster, 1, 1};
    if (which != CU_ATTRIBUTE_CLUSTER) return CU_BAD_VALUE;
    memcpy(value, cluster, sizeof cluster);
    return CU_OK;
}
cu_result cuGraphMemsetNodeGetParams(const struct node *node, struct fill_node *out) {
    if (node->function) return CU_BAD_VALUE;
    *out = (struct fill_node){.to = node->to, .element = 1, .width = node->launch.grid[0], .height = 1};
    return CU_OK;
}
