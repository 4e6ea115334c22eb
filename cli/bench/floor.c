/* SPDX-License-Identifier: MIT
 * The launches of an execution, straight through the driver: see floor.h. Same functions, grids, shared memory,
 * clusters and parameters, from the nodes of a graph, which stand in the order of the recording. A launch that may
 * begin early is repeated as an ordinary one: the graph keeps that as an edge. */
#include "bench/floor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 256, KERNEL_NODE = 0, FILL_NODE = 2, CLUSTER = 4 };

struct launch {
    void *function, **params; /* function NULL: a fill */
    struct attn_cli_launch_config config;
    struct attn_cli_launch_attribute cluster;
    unsigned long long to;
    size_t bytes;
};
struct attn_cli_floor {
    void *stream, *graph; /* the graph owns the parameters */
    int n;
    struct launch launches[MOST];
    struct attn_cli_driver cu;
};

static const char *add(struct attn_cli_floor *f, void *node) {
    struct launch *l = &f->launches[f->n];
    int type = -1;
    if (f->cu.node_type(node, &type)) return "a node has no type";
    if (type == KERNEL_NODE) {
        struct attn_cli_kernel_node k = {0};
        if (f->cu.node_kernel(node, &k) || !k.params) return "a launch cannot be read";
        l->function = k.function ? k.function : k.kernel;
        l->params = k.params;
        l->config = (struct attn_cli_launch_config){.shared_bytes = k.shared_bytes, .stream = f->stream};
        memcpy(l->config.grid, k.grid, sizeof k.grid);
        memcpy(l->config.block, k.block, sizeof k.block);
        l->cluster.id = CLUSTER;
        if (!f->cu.node_attribute(node, CLUSTER, &l->cluster.value) && l->cluster.value.cluster[0] > 1) {
            l->config.attributes = &l->cluster;
            l->config.n_attributes = 1;
        }
    } else if (type == FILL_NODE) {
        struct attn_cli_fill_node fill = {0};
        if (f->cu.node_fill(node, &fill)) return "a fill cannot be read";
        l->to = fill.to;
        l->bytes = fill.element * fill.width * (fill.height ? fill.height : 1);
    } else {
        return "an execution has other nodes than launches and fills";
    }
    f->n++;
    return NULL;
}

static const char *record(struct attn_cli_floor *f, const attn_plan *plan, const attn_args *args) {
    void *nodes[MOST];
    size_t n = 0;
    if (f->cu.record_begin(f->stream, 0)) return "the stream does not record";
    const attn_status status = attn_execute(plan, args);
    if (f->cu.record_end(f->stream, &f->graph) || status) return "the execution cannot be recorded";
    if (f->cu.graph_nodes(f->graph, NULL, &n) || n > MOST || f->cu.graph_nodes(f->graph, nodes, &n))
        return "its nodes cannot be read";
    const char *fault = NULL;
    for (size_t i = 0; i < n && !fault; i++) fault = add(f, nodes[i]);
    return fault;
}

struct attn_cli_floor *attn_cli_floor_open(const struct attn_cli_clock *clock, const attn_plan *plan,
                                           const attn_args *args, char *why, size_t bytes) {
    struct attn_cli_floor *f = calloc(1, sizeof *f);
    const char *fault = f ? attn_cli_clock_calls(clock)->lacks : "out of memory";
    if (!fault) {
        f->cu = *attn_cli_clock_calls(clock);
        f->stream = attn_cli_clock_stream(clock);
        fault = record(f, plan, args);
    }
    if (!fault) return f;
    snprintf(why, bytes, "%s", fault);
    attn_cli_floor_close(f);
    return NULL;
}

void attn_cli_floor_close(struct attn_cli_floor *f) {
    if (f && f->graph) f->cu.graph_destroy(f->graph);
    free(f);
}

int attn_cli_floor_launches(const struct attn_cli_floor *f) { return f->n; }

int attn_cli_floor_queue(const struct attn_cli_floor *f) {
    int r = 0;
    for (int i = 0; i < f->n && !r; i++) {
        const struct launch *l = &f->launches[i];
        r = l->function ? f->cu.launch(&l->config, l->function, l->params, NULL)
                        : f->cu.fill(l->to, 0, l->bytes, f->stream);
    }
    return r;
}
