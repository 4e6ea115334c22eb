/* SPDX-License-Identifier: MIT
 * The stand-in driver's graphs that are made of nodes, and changes of nodes of their instances. */
#include "stub_driver/cuda_stub_graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORTED(name, symbol, parameters) __attribute__((visibility("default"))) cu_result symbol parameters;
ATTN_CUDA_GRAPH_CALLS(EXPORTED)

static int set_node(struct node *node, const cu_kernel_node *k) {
    struct cuda_stub_launch *l = &node->launch;
    const size_t said = (size_t)cuda_stub_state()->params_bytes;
    if (!k->grid[0] || !k->block[0] || (int)k->shared_bytes > k->function->shared_limit) return 1;
    memcpy(l->grid, k->grid, sizeof l->grid);
    l->threads = k->block[0], l->shared_bytes = k->shared_bytes;
    memcpy(l->params, k->params[0], said < sizeof l->params ? said : sizeof l->params);
    return 0;
}

/* Nodes of graphs that are not recorded come one behind the other. */
static cu_result add_node(cu_node *out, struct cu_graph_object *g, const cu_node *after, size_t n, struct node node) {
    const struct node *last = g->n ? &g->node[g->n - 1] : NULL;
    if (n > 1 || g->n == MAX_LAUNCHES || (n && (const void *)after[0] != last)) return cuda_stub_misuse(CU_BAD_VALUE);
    node.index = g->n;
    node.apart = g->n && !n; /* until an edge is added */
    g->node[g->n] = node;
    *out = (cu_node)(void *)&g->node[g->n++];
    return CU_OK;
}
cu_result cuGraphCreate(cu_graph *graph, unsigned flags) {
    ENTER(1);
    if (cuda_stub_forbids_unaware()) return cuda_stub_misuse(900);
    if (flags) return cuda_stub_misuse(CU_BAD_VALUE);
    *graph = calloc(1, sizeof **graph);
    cuda_stub_count(&cuda_stub_state()->graphs, 1);
    return CU_OK;
}
cu_result cuGraphAddKernelNode_v2(cu_node *out, cu_graph graph, const cu_node *after, size_t n,
                                  const cu_kernel_node *k) {
    ENTER(1);
    if (!k->function || !k->params || k->extra) return cuda_stub_misuse(CU_BAD_VALUE);
    struct node node = {.launch = {.cluster = 1}, .function = k->function};
    if (set_node(&node, k)) return cuda_stub_misuse(CU_BAD_VALUE);
    snprintf(node.launch.function, sizeof node.launch.function, "%.95s", k->function->name);
    return add_node(out, graph, after, n, node);
}
cu_result cuGraphAddMemsetNode(cu_node *out, cu_graph graph, const cu_node *after, size_t n, const cu_fill_node *f,
                               cu_context context) {
    ENTER(1);
    if (!context || f->element != 1 || f->height != 1) return cuda_stub_misuse(CU_BAD_VALUE);
    const struct node node = {.launch = {.function = "fill", .grid = {(unsigned)f->width, 0, 0}}, .to = f->to};
    return add_node(out, graph, after, n, node);
}
cu_result cuGraphKernelNodeSetAttribute(cu_node node, cu_launch_attribute_id id, const cu_launch_value *value) {
    ENTER(1);
    struct node *target = (void *)node;
    if (id != CU_ATTRIBUTE_CLUSTER || !target->function) return cuda_stub_misuse(CU_BAD_VALUE);
    target->launch.cluster = value->cluster[0];
    return CU_OK;
}
cu_result cuGraphAddDependencies_v2(cu_graph graph, const cu_node *from, const cu_node *to, const cu_edge *edge,
                                    size_t n) {
    ENTER(1);
    const struct node *a = (const void *)from[0];
    struct node *b = (void *)to[0];
    if (n != 1 || !b->apart || b->index != a->index + 1 || a != &graph->node[a->index] || !a->function ||
        !b->function || edge->from_port != CU_PORT_EARLY || edge->type != CU_EDGE_EARLY || edge->to_port)
        return cuda_stub_misuse(CU_BAD_VALUE);
    b->apart = 0;
    return CU_OK;
}
/* The node of an instance that stands for one of its graph. */
static struct node *of_instance(cu_exec exec, cu_node node) {
    struct cu_graph_object *g = (void *)exec;
    const struct node *of_graph = (const void *)node;
    return of_graph && of_graph->index < g->n ? &g->node[of_graph->index] : NULL;
}
cu_result cuGraphExecKernelNodeSetParams_v2(cu_exec exec, cu_node node, const cu_kernel_node *k) {
    ENTER(1);
    struct node *to = of_instance(exec, node);
    if (!to || !to->function || k->function != to->function || !k->params || k->extra)
        return cuda_stub_misuse(CU_BAD_VALUE);
    if (cuda_stub_take((void *)exec)) return cuda_stub_misuse(CU_BAD_VALUE);
    const int wrong = set_node(to, k);
    cuda_stub_give((void *)exec);
    if (wrong) return cuda_stub_misuse(CU_BAD_VALUE);
    cuda_stub_count(&cuda_stub_state()->updates, 1);
    return CU_OK;
}
cu_result cuGraphExecMemsetNodeSetParams(cu_exec exec, cu_node node, const cu_fill_node *f, cu_context context) {
    ENTER(1);
    struct node *to = of_instance(exec, node);
    if (!to || to->function || !context || f->element != 1 || f->height != 1) return cuda_stub_misuse(CU_BAD_VALUE);
    if (cuda_stub_take((void *)exec)) return cuda_stub_misuse(CU_BAD_VALUE);
    to->launch.grid[0] = (unsigned)f->width;
    to->to = f->to;
    cuda_stub_give((void *)exec);
    cuda_stub_count(&cuda_stub_state()->updates, 1);
    return CU_OK;
}
