/* SPDX-License-Identifier: MIT
 * The launches of an execution, straight through the driver: see bench_floor.h. Same functions, grids, shared memory,
 * clusters and parameters, from the nodes of a graph, which stand in the order of the recording. A launch that may
 * begin early is repeated as an ordinary one: the graph keeps that as an edge. */
#include "bench_floor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 256, KERNEL_NODE = 0, FILL_NODE = 2, CLUSTER = 4 };

struct attribute {
    int id;
    char pad[4];
    union {
        unsigned cluster[3];
        uint64_t bytes[8];
    } value;
};
struct config {
    unsigned grid[3], block[3], shared_bytes;
    void *stream;
    struct attribute *attributes;
    unsigned n_attributes;
};
struct kernel_node {
    void *function;
    unsigned grid[3], block[3], shared_bytes;
    void **params, **extra;
    void *kernel, *context;
};
struct fill_node {
    unsigned long long to;
    size_t pitch;
    unsigned value, element;
    size_t width, height;
};
_Static_assert(sizeof(void *) != 8 || (sizeof(struct attribute) == 72 && sizeof(struct config) == 56 &&
                                       sizeof(struct kernel_node) == 72 && sizeof(struct fill_node) == 40),
               "the driver's layout");

#define CALLS(X)                                                                                                       \
    X(begin, cuStreamBeginCapture_v2, (void *, int))                                                                   \
    X(end, cuStreamEndCapture, (void *, void **))                                                                      \
    X(destroy, cuGraphDestroy, (void *))                                                                               \
    X(nodes, cuGraphGetNodes, (void *, void **, size_t *))                                                             \
    X(type, cuGraphNodeGetType, (void *, int *))                                                                       \
    X(kernel, cuGraphKernelNodeGetParams_v2, (void *, struct kernel_node *))                                           \
    X(attribute, cuGraphKernelNodeGetAttribute, (void *, int, void *))                                                 \
    X(fill, cuGraphMemsetNodeGetParams, (void *, struct fill_node *))                                                  \
    X(launch, cuLaunchKernelEx, (const struct config *, void *, void **, void **))                                     \
    X(zero, cuMemsetD8Async, (unsigned long long, unsigned char, size_t, void *))

struct launch {
    void *function, **params; /* function NULL: a fill */
    struct config config;
    struct attribute cluster;
    unsigned long long to;
    size_t bytes;
};
struct attn_cli_floor {
    void *stream, *graph; /* the graph owns the parameters */
    int n;
    struct launch launches[MOST];
#define MEMBER(name, symbol, parameters) int(*name) parameters;
    CALLS(MEMBER)
#undef MEMBER
};

static const struct {
    const char *symbol;
    size_t offset;
} rows[] = {
#define ROW(name, symbol, parameters) {#symbol, offsetof(struct attn_cli_floor, name)},
    CALLS(ROW)
#undef ROW
};

static const char *resolve(struct attn_cli_floor *f, const struct attn_cli_clock *clock) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        void *at = attn_cli_clock_symbol(clock, rows[i].symbol);
        if (!at) return rows[i].symbol;
        memcpy((char *)f + rows[i].offset, &at, sizeof at);
    }
    return NULL;
}

static const char *add(struct attn_cli_floor *f, void *node) {
    struct launch *l = &f->launches[f->n];
    int type = -1;
    if (f->type(node, &type)) return "a node has no type";
    if (type == KERNEL_NODE) {
        struct kernel_node k = {0};
        if (f->kernel(node, &k) || !k.params) return "a launch cannot be read";
        l->function = k.function ? k.function : k.kernel;
        l->params = k.params;
        l->config = (struct config){.shared_bytes = k.shared_bytes, .stream = f->stream};
        memcpy(l->config.grid, k.grid, sizeof k.grid);
        memcpy(l->config.block, k.block, sizeof k.block);
        l->cluster.id = CLUSTER;
        if (!f->attribute(node, CLUSTER, &l->cluster.value) && l->cluster.value.cluster[0] > 1) {
            l->config.attributes = &l->cluster;
            l->config.n_attributes = 1;
        }
    } else if (type == FILL_NODE) {
        struct fill_node fill = {0};
        if (f->fill(node, &fill)) return "a fill cannot be read";
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
    if (f->begin(f->stream, 0)) return "the stream does not record";
    const attn_status status = attn_execute(plan, args);
    if (f->end(f->stream, &f->graph) || status) return "the execution cannot be recorded";
    if (f->nodes(f->graph, NULL, &n) || n > MOST || f->nodes(f->graph, nodes, &n)) return "its nodes cannot be read";
    const char *fault = NULL;
    for (size_t i = 0; i < n && !fault; i++) fault = add(f, nodes[i]);
    return fault;
}

struct attn_cli_floor *attn_cli_floor_open(const struct attn_cli_clock *clock, const attn_plan *plan,
                                           const attn_args *args, char *why, size_t bytes) {
    struct attn_cli_floor *f = calloc(1, sizeof *f);
    const char *fault = f ? resolve(f, clock) : "out of memory";
    if (!fault) {
        f->stream = attn_cli_clock_stream(clock);
        fault = record(f, plan, args);
    }
    if (!fault) return f;
    snprintf(why, bytes, "%s", fault);
    attn_cli_floor_close(f);
    return NULL;
}

void attn_cli_floor_close(struct attn_cli_floor *f) {
    if (f && f->graph) f->destroy(f->graph);
    free(f);
}

int attn_cli_floor_launches(const struct attn_cli_floor *f) { return f->n; }

int attn_cli_floor_queue(const struct attn_cli_floor *f) {
    int r = 0;
    for (int i = 0; i < f->n && !r; i++) {
        const struct launch *l = &f->launches[i];
        r = l->function ? f->launch(&l->config, l->function, l->params, NULL) : f->zero(l->to, 0, l->bytes, f->stream);
    }
    return r;
}
