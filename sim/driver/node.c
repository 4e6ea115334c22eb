/* SPDX-License-Identifier: MIT
 * Graphs that are made of nodes one by one, and new values for the nodes of executable ones. */
#include "driver/graph.h"
#include "machine/device.h"

#include <stdlib.h>

struct edge {
    unsigned char from_port, to_port, type, reserved[5];
};
enum { PORT_EARLY = 1, EDGE_EARLY = 1 };

#define ENTER_CONTEXT                                                                                                  \
    struct sim_context *context = NULL;                                                                                \
    int r_ = sim_enter(__func__, &context);                                                                            \
    if (r_) return r_;

static int add(struct sim_graph *g, struct sim_node *const *after, size_t n, struct sim_task t, struct sim_node **out) {
    uint32_t places[SIM_TAILS];
    if (n > SIM_TAILS) return R_OUT_OF_RESOURCES;
    for (size_t i = 0; i < n; i++) {
        if (!after[i] || after[i]->place >= g->n || g->nodes[after[i]->place] != after[i]) return R_INVALID_VALUE;
        places[i] = after[i]->place;
    }
    const uint32_t place = sim_graph_append(g, t, places, (uint32_t)n);
    *out = g->nodes[place];
    return R_SUCCESS;
}

static int fill_task(const struct cu_fill_node *f, struct sim_context *context, struct sim_task *out) {
    if (!f || f->height != 1 || (f->element != 1 && f->element != 2 && f->element != 4) || f->to % f->element)
        return R_INVALID_VALUE;
    if (!sim_memory_holds(f->to, f->width * f->element)) return R_INVALID_VALUE;
    *out = (struct sim_task){.kind = SIM_TASK_FILL,
                             .context = context,
                             .to = (void *)(uintptr_t)f->to,
                             .bytes = f->width,
                             .value = f->value,
                             .element = f->element};
    return R_SUCCESS;
}

SIM_API cuGraphCreate(struct sim_graph **out, unsigned flags);
SIM_API cuGraphCreate(struct sim_graph **out, unsigned flags) {
    ENTER_CONTEXT
    if (!out || flags) return R_INVALID_VALUE;
    *out = calloc(1, sizeof **out);
    return *out ? R_SUCCESS : R_OUT_OF_MEMORY;
}
SIM_API cuGraphAddKernelNode_v2(struct sim_node **out, struct sim_graph *g, struct sim_node *const *after, size_t n,
                                const struct cu_kernel_node *k);
SIM_API cuGraphAddKernelNode_v2(struct sim_node **out, struct sim_graph *g, struct sim_node *const *after, size_t n,
                                const struct cu_kernel_node *k) {
    ENTER_CONTEXT
    struct sim_kernel_call *call = NULL;
    if (!out || !g || !k || (n && !after)) return R_INVALID_VALUE;
    int r = sim_call_change(&call, k);
    if (!r) r = add(g, after, n, (struct sim_task){.kind = SIM_TASK_LAUNCH, .context = context, .call = call}, out);
    if (r) sim_call_free(call);
    return r;
}
SIM_API cuGraphAddMemsetNode(struct sim_node **out, struct sim_graph *g, struct sim_node *const *after, size_t n,
                             const struct cu_fill_node *f, struct sim_context *owner);
SIM_API cuGraphAddMemsetNode(struct sim_node **out, struct sim_graph *g, struct sim_node *const *after, size_t n,
                             const struct cu_fill_node *f, struct sim_context *owner) {
    ENTER_CONTEXT
    struct sim_task t;
    if (!out || !g || !owner || (n && !after)) return R_INVALID_VALUE;
    int r = fill_task(f, owner, &t);
    return r ? r : add(g, after, n, t, out);
}
/* PTX-visible memory at either end is the host's; one row of bytes, no arrays. */
static const void *end_of_copy(const struct cu_copy_end *e, size_t bytes) {
    if (e->x_bytes || e->y || e->z || e->level || e->array) return NULL;
    if (e->type == MEMORY_HOST) return e->host;
    return (e->type == MEMORY_DEVICE || e->type == MEMORY_UNIFIED) && sim_memory_holds(e->device, bytes)
               ? (const void *)(uintptr_t)e->device
               : NULL;
}
SIM_API cuGraphAddMemcpyNode(struct sim_node **out, struct sim_graph *g, struct sim_node *const *after, size_t n,
                             const struct cu_copy_node *c, struct sim_context *owner);
SIM_API cuGraphAddMemcpyNode(struct sim_node **out, struct sim_graph *g, struct sim_node *const *after, size_t n,
                             const struct cu_copy_node *c, struct sim_context *owner) {
    ENTER_CONTEXT
    if (!out || !g || !c || !owner || (n && !after)) return R_INVALID_VALUE;
    if (c->height != 1 || c->depth != 1) return R_NOT_SUPPORTED;
    const void *from = end_of_copy(&c->from, c->width_bytes), *to = end_of_copy(&c->to, c->width_bytes);
    if (!from || !to) return R_INVALID_VALUE;
    return add(g, after, n,
               (struct sim_task){.kind = SIM_TASK_COPY,
                                 .context = owner,
                                 .to = (void *)(uintptr_t)to,
                                 .from = from,
                                 .bytes = c->width_bytes},
               out);
}
SIM_API cuGraphAddHostNode(struct sim_node **out, struct sim_graph *g, struct sim_node *const *after, size_t n,
                           const struct cu_host_node *h);
SIM_API cuGraphAddHostNode(struct sim_node **out, struct sim_graph *g, struct sim_node *const *after, size_t n,
                           const struct cu_host_node *h) {
    ENTER_CONTEXT
    if (!out || !g || !h || !h->function || (n && !after)) return R_INVALID_VALUE;
    return add(g, after, n,
               (struct sim_task){.kind = SIM_TASK_HOST, .context = context, .function = h->function, .data = h->data},
               out);
}
SIM_API cuGraphAddEmptyNode(struct sim_node **out, struct sim_graph *g, struct sim_node *const *after, size_t n);
SIM_API cuGraphAddEmptyNode(struct sim_node **out, struct sim_graph *g, struct sim_node *const *after, size_t n) {
    ENTER_CONTEXT
    if (!out || !g || (n && !after)) return R_INVALID_VALUE;
    return add(g, after, n, (struct sim_task){.kind = SIM_TASK_FILL, .context = context, .element = 1}, out);
}
SIM_API cuGraphKernelNodeSetAttribute(struct sim_node *node, int id, const void *value);
SIM_API cuGraphKernelNodeSetAttribute(struct sim_node *node, int id, const void *value) {
    ENTER_CONTEXT
    if (!node || !value || node->task.kind != SIM_TASK_LAUNCH) return R_INVALID_VALUE;
    return sim_call_set(node->task.call, id, value);
}
/* Ordinary edges, and such that the second node may begin before the first one ends. */
SIM_API cuGraphAddDependencies_v2(struct sim_graph *g, struct sim_node *const *from, struct sim_node *const *to,
                                  const struct edge *edges, size_t n);
SIM_API cuGraphAddDependencies_v2(struct sim_graph *g, struct sim_node *const *from, struct sim_node *const *to,
                                  const struct edge *edges, size_t n) {
    static const int yes[16] = {1};
    ENTER_CONTEXT
    if (!g || (n && (!from || !to))) return R_INVALID_VALUE;
    for (size_t i = 0; i < n; i++) {
        struct sim_node *a = from[i], *b = to[i];
        const int early = edges && edges[i].type == EDGE_EARLY;
        if (!a || !b || a->place >= b->place || b->place >= g->n || g->nodes[b->place] != b) return R_INVALID_VALUE;
        if (edges && (edges[i].to_port || edges[i].type > EDGE_EARLY || edges[i].from_port != (early ? PORT_EARLY : 0)))
            return R_INVALID_VALUE;
        if (early && (a->task.kind != SIM_TASK_LAUNCH || b->task.kind != SIM_TASK_LAUNCH || b->n))
            return R_INVALID_VALUE; /* of several, this simulator knows no early one */
        if (b->n == SIM_TAILS) return R_OUT_OF_RESOURCES;
        if (early) sim_call_set(b->task.call, ATTRIBUTE_SERIALIZATION, yes);
        b->after[b->n++] = a->place;
    }
    return R_SUCCESS;
}

static struct sim_task *task_of(struct sim_graph_exec *e, const struct sim_node *node, enum sim_task_kind kind) {
    if (!e || !node || node->place >= e->graph.n) return NULL;
    struct sim_task *t = &e->graph.nodes[node->place]->task;
    return t->kind == kind ? t : NULL;
}
/* What has been queued holds copies: only later launches see a change. */
SIM_API cuGraphExecKernelNodeSetParams_v2(struct sim_graph_exec *e, const struct sim_node *node,
                                          const struct cu_kernel_node *k);
SIM_API cuGraphExecKernelNodeSetParams_v2(struct sim_graph_exec *e, const struct sim_node *node,
                                          const struct cu_kernel_node *k) {
    ENTER_CONTEXT
    struct sim_task *t = task_of(e, node, SIM_TASK_LAUNCH);
    return t && k ? sim_call_change(&t->call, k) : R_INVALID_VALUE;
}
SIM_API cuGraphExecMemsetNodeSetParams(struct sim_graph_exec *e, const struct sim_node *node,
                                       const struct cu_fill_node *f, struct sim_context *owner);
SIM_API cuGraphExecMemsetNodeSetParams(struct sim_graph_exec *e, const struct sim_node *node,
                                       const struct cu_fill_node *f, struct sim_context *owner) {
    ENTER_CONTEXT
    struct sim_task *t = task_of(e, node, SIM_TASK_FILL);
    return t && owner ? fill_task(f, owner, t) : R_INVALID_VALUE;
}
