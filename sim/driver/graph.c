/* SPDX-License-Identifier: MIT
 * Graphs: tasks that streams recorded, with what each of them follows. A replay does them in an order that this allows;
 * under the random policy in any such order. */
#include "driver/graph.h"

#include <stdlib.h>
#include <string.h>

static struct sim_task copy_of(const struct sim_task *t) {
    struct sim_task copy = *t;
    if (t->call) copy.call = sim_call_copy(t->call);
    return copy;
}
static void clear(struct sim_graph *g) {
    for (uint32_t i = 0; i < g->n; i++) {
        sim_call_free(g->nodes[i]->task.call);
        free(g->nodes[i]);
    }
    free(g->nodes);
}

static int add_tail(struct sim_capture *c, uint32_t tail) {
    for (uint32_t i = 0; i < c->n; i++)
        if (c->tail[i] == tail) return R_SUCCESS;
    if (c->n == SIM_TAILS) return R_OUT_OF_RESOURCES;
    c->tail[c->n++] = tail;
    return R_SUCCESS;
}

uint32_t sim_graph_append(struct sim_graph *g, struct sim_task t, const uint32_t *after, uint32_t n) {
    if (g->n == g->room) {
        g->room = g->room ? 2 * g->room : 16;
        g->nodes = realloc(g->nodes, g->room * sizeof *g->nodes);
        if (!g->nodes) abort();
    }
    struct sim_node *node = calloc(1, sizeof *node);
    if (!node) abort();
    *node = (struct sim_node){.task = t, .n = n, .place = g->n};
    if (n) memcpy(node->after, after, n * sizeof *after);
    g->nodes[g->n] = node;
    return g->n++;
}

/* Under the streams' lock, as the next one. */
int sim_graph_record(struct sim_stream *s, struct sim_task t) {
    struct sim_graph *g = s->capture.graph;
    if (s->invalid) {
        sim_call_free(t.call);
        return R_CAPTURE_INVALIDATED;
    }
    const struct sim_capture before = s->capture;
    s->capture.n = 1;
    s->capture.tail[0] = sim_graph_append(g, t, before.tail, before.n);
    return R_SUCCESS;
}

int sim_graph_join(struct sim_stream *s, const struct sim_event *e) {
    int r = R_SUCCESS;
    sim_streams_lock();
    if (!sim_is_recorded(e->capture.graph)) {
        r = R_CAPTURED_EVENT; /* that recording is over */
    } else if (s->capture.graph && s->capture.graph != e->capture.graph) {
        s->invalid = 1;
        r = R_CAPTURE_MERGE;
    } else if (!s->capture.graph && s->n) { /* earlier work that is not recorded comes first */
        sim_stream_finish(s);
    }
    if (!r) {
        if (!s->capture.graph) s->capture = (struct sim_capture){.graph = e->capture.graph};
        for (uint32_t i = 0; i < e->capture.n && !r; i++) r = add_tail(&s->capture, e->capture.tail[i]);
    }
    sim_streams_unlock();
    return r;
}

#define ENTER_CONTEXT                                                                                                  \
    struct sim_context *context = NULL;                                                                                \
    int r_ = sim_enter(__func__, &context);                                                                            \
    if (r_) return r_;

SIM_API cuStreamBeginCapture_v2(struct sim_stream *s, int mode);
SIM_API cuStreamBeginCapture_v2(struct sim_stream *s, int mode) {
    ENTER_CONTEXT
    if (mode < 0 || mode > 2) return R_INVALID_VALUE;
    if ((uintptr_t)s < 4) return R_CAPTURE_UNSUPPORTED; /* the default stream cannot record */
    sim_streams_lock();
    int r = s->capture.graph ? R_INVALID_VALUE : R_SUCCESS;
    if (!r) {
        s->capture = (struct sim_capture){.graph = calloc(1, sizeof(struct sim_graph))};
        s->origin = 1, s->invalid = 0, s->mode = mode, s->owner = pthread_self();
        if (!s->capture.graph) r = R_OUT_OF_MEMORY;
    }
    sim_streams_unlock();
    return r;
}
SIM_API cuStreamIsCapturing(struct sim_stream *s, int *status);
SIM_API cuStreamIsCapturing(struct sim_stream *s, int *status) {
    ENTER_CONTEXT
    if (!status) return R_INVALID_VALUE;
    *status = (uintptr_t)s < 4 || !s->capture.graph ? 0 : s->invalid ? 2 : 1;
    return R_SUCCESS;
}
/* 1 if every node is the last of the stream or comes before it. */
static int all_joined(const struct sim_graph *g, const struct sim_capture *c) {
    unsigned char *seen = calloc(g->n + 1u, 1);
    uint32_t n = 0;
    if (!seen) abort();
    for (uint32_t i = 0; i < c->n; i++) seen[c->tail[i]] = 1;
    for (uint32_t i = g->n; i-- > 0;) /* a node follows earlier ones only */
        if (seen[i]) {
            n++;
            for (uint32_t k = 0; k < g->nodes[i]->n; k++) seen[g->nodes[i]->after[k]] = 1;
        }
    free(seen);
    return n == g->n;
}
SIM_API cuStreamEndCapture(struct sim_stream *s, struct sim_graph **out);
SIM_API cuStreamEndCapture(struct sim_stream *s, struct sim_graph **out) {
    ENTER_CONTEXT
    int r = R_SUCCESS;
    if (!out) return R_INVALID_VALUE;
    *out = NULL;
    if ((uintptr_t)s < 4 || !s->capture.graph) return R_INVALID_VALUE;
    sim_streams_lock();
    struct sim_graph *g = s->capture.graph;
    if (!s->origin)
        r = R_CAPTURE_UNMATCHED;
    else if (s->mode != 2 && !pthread_equal(s->owner, pthread_self()))
        r = R_CAPTURE_WRONG_THREAD;
    else if (s->invalid)
        r = R_CAPTURE_INVALIDATED;
    else if (!all_joined(g, &s->capture))
        r = R_CAPTURE_UNJOINED;
    if (r != R_CAPTURE_WRONG_THREAD && r != R_CAPTURE_UNMATCHED) sim_streams_leave(g);
    sim_streams_unlock();
    if (r == R_CAPTURE_INVALIDATED || r == R_CAPTURE_UNJOINED) {
        clear(g);
        free(g);
    }
    if (!r) *out = g;
    return r;
}
SIM_API cuGraphDestroy(struct sim_graph *g);
SIM_API cuGraphDestroy(struct sim_graph *g) {
    ENTER_CONTEXT
    if (!g) return R_INVALID_VALUE;
    clear(g);
    free(g);
    return R_SUCCESS;
}
SIM_API cuGraphGetNodes(struct sim_graph *g, void **nodes, size_t *n);
SIM_API cuGraphGetNodes(struct sim_graph *g, void **nodes, size_t *n) {
    ENTER_CONTEXT
    if (!g || !n) return R_INVALID_VALUE;
    for (size_t i = 0; nodes && i < *n; i++) nodes[i] = i < g->n ? g->nodes[i] : NULL;
    *n = g->n;
    return R_SUCCESS;
}
SIM_API cuGraphInstantiateWithFlags(struct sim_graph_exec **out, struct sim_graph *g, unsigned long long flags);
SIM_API cuGraphInstantiateWithFlags(struct sim_graph_exec **out, struct sim_graph *g, unsigned long long flags) {
    (void)flags;
    ENTER_CONTEXT
    if (!out || !g) return R_INVALID_VALUE;
    struct sim_graph_exec *e = calloc(1, sizeof *e);
    if (!e) return R_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < g->n; i++)
        sim_graph_append(&e->graph, copy_of(&g->nodes[i]->task), g->nodes[i]->after, g->nodes[i]->n);
    *out = e;
    return R_SUCCESS;
}
SIM_API cuGraphClone(struct sim_graph **out, struct sim_graph *g);
SIM_API cuGraphClone(struct sim_graph **out, struct sim_graph *g) {
    ENTER_CONTEXT
    if (!out || !g) return R_INVALID_VALUE;
    struct sim_graph *clone = calloc(1, sizeof *clone);
    if (!clone) return R_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < g->n; i++)
        sim_graph_append(clone, copy_of(&g->nodes[i]->task), g->nodes[i]->after, g->nodes[i]->n);
    *out = clone;
    return R_SUCCESS;
}
/* What an executable graph does, of a graph with the same nodes and edges; on failure all is as it was. */
struct update {
    int result;
    const struct sim_node *fault, *fault_from;
};
static int differs(const struct sim_node *a, const struct sim_node *b) {
    return a->n != b->n || memcmp(a->after, b->after, a->n * sizeof *a->after) != 0;
}
SIM_API cuGraphExecUpdate_v2(struct sim_graph_exec *e, struct sim_graph *g, struct update *out);
SIM_API cuGraphExecUpdate_v2(struct sim_graph_exec *e, struct sim_graph *g, struct update *out) {
    enum { TOPOLOGY = 2, TYPE = 3 };
    ENTER_CONTEXT
    if (!e || !g || !out) return R_INVALID_VALUE;
    *out = (struct update){.result = e->graph.n == g->n ? 0 : TOPOLOGY};
    for (uint32_t i = 0; i < g->n && !out->result; i++) {
        const struct sim_node *from = e->graph.nodes[i], *to = g->nodes[i];
        if (from->task.kind != to->task.kind) out->result = TYPE;
        if (differs(from, to)) out->result = TOPOLOGY;
        if (out->result) out->fault = to;
    }
    if (out->result) return R_GRAPH_UPDATE;
    for (uint32_t i = 0; i < g->n; i++) {
        struct sim_task *t = &e->graph.nodes[i]->task;
        sim_call_free(t->call);
        *t = copy_of(&g->nodes[i]->task);
    }
    return R_SUCCESS;
}
SIM_API cuGraphExecDestroy(struct sim_graph_exec *e);
SIM_API cuGraphExecDestroy(struct sim_graph_exec *e) {
    ENTER_CONTEXT
    if (!e) return R_INVALID_VALUE;
    clear(&e->graph);
    free(e);
    return R_SUCCESS;
}
SIM_API cuGraphLaunch(struct sim_graph_exec *e, struct sim_stream *s);
SIM_API cuGraphLaunch(struct sim_graph_exec *e, struct sim_stream *s) {
    static atomic_ullong n_replays;
    ENTER_CONTEXT
    if (!e) return R_INVALID_VALUE;
    if ((uintptr_t)s < 4) s = NULL;
    const struct sim_graph *g = &e->graph;
    unsigned char *done = calloc(g->n + 1u, 1);
    uint64_t rng = sim_seed() + atomic_fetch_add(&n_replays, 1);
    int r = R_SUCCESS;
    struct sim_stamp *ends = calloc(g->n + 1u, sizeof *ends);
    if (!done || !ends) abort();
    sim_streams_lock();
    const struct sim_stamp base = sim_stream_now(s, context);
    for (uint32_t left = g->n; left && !r; left--) {
        uint32_t start = sim_policy() == SIM_RANDOM ? (uint32_t)(sim_random(&rng) % g->n) : 0, i = 0;
        for (uint32_t k = 0; k < g->n; k++) { /* the first from there on that nothing is missing for */
            int ready;
            i = (start + k) % g->n, ready = !done[i];
            for (uint32_t q = 0; q < g->nodes[i]->n; q++) ready &= done[g->nodes[i]->after[q]];
            if (ready) break;
        }
        done[i] = 1;
        struct sim_task t = copy_of(&g->nodes[i]->task);
        t.when.before = base;
        for (uint32_t q = 0; q < g->nodes[i]->n; q++) sim_stamp_join(&t.when.before, &ends[g->nodes[i]->after[q]]);
        t.when.after = ends[i] = t.when.before;
        sim_when_next(&t.when, SIM_STREAM_SLOTS + i % (SIM_SLOTS - SIM_STREAM_SLOTS), &ends[i]);
        r = sim_task_add(s, t);
    }
    for (uint32_t i = 0; i < g->n; i++) sim_stream_went_on(s, &ends[i]);
    sim_streams_unlock();
    free(done);
    free(ends);
    return r;
}
