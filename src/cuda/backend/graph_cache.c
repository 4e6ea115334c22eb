/* SPDX-License-Identifier: MIT
 * Graphs that plans keep. A launch takes the host 3.4 us in the driver, a graph of several 1.2, and 0.5 more for each
 * kernel whose parameters are new: from its third execution on, a plan that launches more than once records its
 * launches, compares them with what the stream's graph holds, and queues them as one launch of that graph. Its edges
 * are what the stream's order would be: the end of the kernel before, or for an early launch its permission to begin.
 * - A driver runs an executable graph once at a time: a plan has a few, each bound to the stream that it served last.
 *   Two threads must not use one at a time: each has a lock, which is only ever tried. A thread that gets none launches
 *   directly, and so does a caller that records a graph of its own.
 * - They are made of nodes, not by recording a stream: while one of a context records, the driver refuses to wait for
 *   the context, in all threads.
 * - What has been queued keeps its parameters ("modifications only affect future launches": driver API,
 *   cuGraphExecKernelNodeSetParams), and a graph destroyed while it runs is freed when it is done (cuGraphExecDestroy).
 * - Where a call for graphs fails, the execution is launched directly, and so are all later ones of the plan. */
#include "core/plan.h"
#include "cuda/backend/state.h"

#include "base/err.h"

#include <string.h>
#include <unistd.h>

enum {
    WATCHED = 2,           /* executions that are launched directly, to see what they consist of */
    STREAMS = 4,           /* graphs of a plan */
    LEAST = 2,             /* launches that are worth one */
    ROOM_BYTES = 32 << 10, /* of the steps of all */
    STALE = 64,            /* executions after which a graph that none of them used may go to another stream */
    MISFITS = 4,           /* executions of another form in a row, after which a graph is made anew */
    NEVER = -1
};

/* A launch; or a fill, without variant, grid and parameters. */
struct step {
    cu_node node;
    const struct attn_cuda_variant *variant;
    struct attn_cuda_grid grid;
    uint32_t params_bytes;
    uint8_t *params;
    void *memory;
    size_t bytes;
    uint64_t stale; /* 1: the executable graph has other values */
};
_Static_assert(sizeof(void *) != 8 || sizeof(struct step) % 16 == 0, "parameters follow the steps");

struct entry {
    _Atomic uintptr_t key;  /* of the stream; 0: none */
    _Atomic uint32_t used;  /* what the replay's clock was */
    _Atomic uint8_t locked; /* whoever locked it may use what follows */
    cu_graph graph;         /* owns the nodes */
    cu_exec exec;           /* NULL: not made yet */
    int32_t n, misfits, steps_room;
    uint32_t params_room;
    struct step *steps; /* of steps_room; NULL: no room yet */
    uint8_t *params;
};

struct replay {
    _Atomic int32_t seen;     /* executions, up to WATCHED */
    _Atomic int32_t launches; /* of an execution, at most; NEVER: no graphs any more */
    _Atomic uint32_t bytes;   /* of its parameters, each rounded up */
    _Atomic uint32_t clock, taken;
    struct entry entries[STREAMS];
    _Alignas(16) uint8_t room[ROOM_BYTES];
};

struct attn_cuda_recorder {
    struct entry *entry; /* NULL: launches are counted, and queued */
    int32_t n;
    uint32_t bytes;
    uint8_t misfit;
};
_Thread_local struct attn_cuda_recorder *attn_cuda_recorder;

static uint32_t rounded(size_t bytes) { return (uint32_t)((bytes + 15) / 16 * 16); }

/* ------------------------------------------------------------------ recorder ----------------------- */

/* The step that comes next; NULL if the graph has none, or there is no room for another. */
static struct step *next(struct attn_cuda_recorder *g, size_t params_bytes) {
    const struct entry *e = g->entry;
    const uint32_t offset = g->bytes;
    g->bytes += rounded(params_bytes);
    if (g->n >= (e->exec ? e->n : e->steps_room) || g->bytes > e->params_room) g->misfit = 1;
    if (g->misfit) return NULL;
    struct step *s = &e->steps[g->n++];
    if (!e->exec) *s = (struct step){.params = e->params + offset, .params_bytes = (uint32_t)params_bytes, .stale = 1};
    return s;
}

static int count(struct attn_cuda_recorder *g, size_t params_bytes) {
    g->n++;
    g->bytes += rounded(params_bytes);
    return 0;
}

static int same_form(const struct step *s, const struct attn_cuda_work *w) {
    return s->variant == w->variant && s->params_bytes == w->params_bytes && s->grid.cluster == w->grid.cluster &&
           s->grid.early == w->grid.early;
}
static int same_values(const struct step *s, const struct attn_cuda_work *w) {
    const struct attn_cuda_grid *a = &s->grid, *b = &w->grid;
    return a->x == b->x && a->y == b->y && a->z == b->z && a->threads == b->threads &&
           a->shared_bytes == b->shared_bytes && !memcmp(s->params, w->params, w->params_bytes);
}

int attn_cuda_record(const struct attn_cuda_work *w) {
    struct attn_cuda_recorder *g = attn_cuda_recorder;
    if (!g->entry) return count(g, w->params_bytes);
    struct step *s = next(g, w->params_bytes);
    if (!s) return 1;
    if (!g->entry->exec) {
        s->variant = w->variant;
    } else if (!same_form(s, w)) {
        g->misfit = 1;
        return 1;
    } else if (same_values(s, w)) {
        return 1;
    }
    s->grid = w->grid;
    s->stale = 1;
    memcpy(s->params, w->params, w->params_bytes);
    return 1;
}

int attn_cuda_record_fill(void *memory, size_t bytes) {
    struct attn_cuda_recorder *g = attn_cuda_recorder;
    if (!g->entry) return count(g, 0);
    struct step *s = next(g, 0);
    if (s && s->variant) g->misfit = 1;
    if (!s || s->variant || (s->memory == memory && s->bytes == bytes)) return 1;
    s->memory = memory;
    s->bytes = bytes;
    s->stale = 1;
    return 1;
}

/* ------------------------------------------------------------------ the driver's side -------------- */

static cu_kernel_node kernel_of(const struct attn_cuda_device *d, const struct step *s, void **params) {
    return (cu_kernel_node){.function =
                                atomic_load_explicit(&d->loaded[s->variant->index].function, memory_order_acquire),
                            .grid = {s->grid.x, s->grid.y, s->grid.z},
                            .block = {s->grid.threads, 1, 1},
                            .shared_bytes = s->grid.shared_bytes,
                            .params = params};
}
static cu_fill_node fill_of(const struct step *s) {
    return (cu_fill_node){.to = (cu_address)(uintptr_t)s->memory, .element = 1, .width = s->bytes, .height = 1};
}

/* One more node, after that of the step before; as a stream would order a direct launch. *call: what failed. */
static cu_result add_step(const struct attn_cuda_device *d, cu_graph graph, const struct step *before, struct step *s,
                          const char **call) {
    static const cu_edge as_it_ends = {.from_port = CU_PORT_EARLY, .type = CU_EDGE_EARLY};
    const struct attn_cuda_driver *drv = &d->state->driver;
    const int early = before && before->variant && s->variant && s->grid.early;
    const size_t n = before && !early;
    const cu_node *after = n ? &before->node : NULL;
    cu_result r;
    if (!s->variant) {
        const cu_fill_node fill = fill_of(s);
        *call = "cuGraphAddMemsetNode";
        return drv->cuGraphAddMemsetNode(&s->node, graph, after, n, &fill,
                                         atomic_load_explicit(&d->context, memory_order_acquire));
    }
    void *params = s->params;
    const cu_kernel_node kernel = kernel_of(d, s, &params);
    *call = "cuGraphAddKernelNode";
    r = drv->cuGraphAddKernelNode(&s->node, graph, after, n, &kernel);
    if (!r && s->grid.cluster > 1) {
        const cu_launch_value value = {.cluster = {s->grid.cluster, 1, 1}};
        *call = "cuGraphKernelNodeSetAttribute";
        r = drv->cuGraphKernelNodeSetAttribute(s->node, CU_ATTRIBUTE_CLUSTER, &value);
    }
    if (!r && early) {
        *call = "cuGraphAddDependencies";
        r = drv->cuGraphAddDependencies(graph, &before->node, &s->node, &as_it_ends, 1);
    }
    return r;
}

static cu_result make(const struct attn_cuda_device *d, struct entry *e, const char **call) {
    const struct attn_cuda_driver *drv = &d->state->driver;
    cu_graph graph = NULL;
    *call = "cuGraphCreate";
    cu_result r = drv->cuGraphCreate(&graph, 0);
    if (r) return r;
    for (int32_t i = 0; i < e->n && !r; i++) r = add_step(d, graph, i ? &e->steps[i - 1] : NULL, &e->steps[i], call);
    if (!r) {
        *call = "cuGraphInstantiateWithFlags";
        r = drv->cuGraphInstantiateWithFlags(&e->exec, graph, 0);
    }
    if (r) {
        e->exec = NULL;
        drv->cuGraphDestroy(graph);
        return r;
    }
    e->graph = graph;
    for (int32_t i = 0; i < e->n; i++) e->steps[i].stale = 0;
    return CU_OK;
}

/* Other threads may record meanwhile, see attn_cuda_capture_mode. */
static void destroy(const struct attn_cuda_driver *drv, struct entry *e) {
    cu_capture_mode mode = CU_CAPTURE_RELAXED;
    const int changed = !drv->cuThreadExchangeStreamCaptureMode(&mode);
    if (e->exec) drv->cuGraphExecDestroy(e->exec);
    if (e->graph) drv->cuGraphDestroy(e->graph);
    e->exec = NULL;
    e->graph = NULL;
    if (changed) drv->cuThreadExchangeStreamCaptureMode(&mode);
}

static cu_result set_step(const struct attn_cuda_device *d, cu_exec exec, const struct step *s, const char **call) {
    const struct attn_cuda_driver *drv = &d->state->driver;
    if (!s->variant) {
        const cu_fill_node fill = fill_of(s);
        *call = "cuGraphExecMemsetNodeSetParams";
        return drv->cuGraphExecMemsetNodeSetParams(exec, s->node, &fill,
                                                   atomic_load_explicit(&d->context, memory_order_acquire));
    }
    void *params = s->params;
    const cu_kernel_node kernel = kernel_of(d, s, &params);
    *call = "cuGraphExecKernelNodeSetParams";
    return drv->cuGraphExecKernelNodeSetParams(exec, s->node, &kernel);
}

static cu_result set_steps(const struct attn_cuda_device *d, struct entry *e, const char **call) {
    for (int32_t i = 0; i < e->n; i++) {
        if (!e->steps[i].stale) continue;
        const cu_result r = set_step(d, e->exec, &e->steps[i], call);
        if (r) return r;
        e->steps[i].stale = 0;
    }
    return CU_OK;
}

/* Make or bring up to date the graph of what has been recorded. */
static cu_result make_ready(const struct attn_cuda_device *d, struct entry *e, const char **call) {
    const struct attn_cuda_driver *drv = &d->state->driver;
    int stale = !e->exec;
    for (int32_t i = 0; i < e->n && !stale; i++) stale = e->steps[i].stale != 0;
    if (!stale) return CU_OK;
    cu_capture_mode mode = CU_CAPTURE_RELAXED; /* as in destroy() */
    *call = "cuThreadExchangeStreamCaptureMode";
    cu_result r = drv->cuThreadExchangeStreamCaptureMode(&mode);
    if (r) return r;
    r = e->exec ? set_steps(d, e, call) : make(d, e, call);
    const cu_result back = drv->cuThreadExchangeStreamCaptureMode(&mode);
    if (!r && back) *call = "cuThreadExchangeStreamCaptureMode";
    return r ? r : back;
}

/* ------------------------------------------------------------------ an execution ------------------- */

static void give_up(struct replay *r, const struct attn_cuda_device *d, const char *call, cu_result result) {
    const char *name = NULL;
    if (atomic_exchange_explicit(&r->launches, NEVER, memory_order_relaxed) == NEVER) return;
    if (d->state->driver.cuGetErrorName(result, &name) || !name) name = "unknown";
    attn_base_log(&d->state->ctx->log, ATTN_LOG_WARN, "cuda",
                  "a plan on cuda:%d launches its kernels one by one: %s failed (%s, %d)", d->index, call, name,
                  (int)result);
}

/* Queue directly and see what an execution consists of. */
static attn_status watch(struct replay *r, const struct attn_plan *plan, const struct attn_kernel *k,
                         const attn_args *args) {
    struct attn_cuda_recorder g = {0};
    attn_cuda_recorder = &g;
    const attn_status status = attn_core_launch_now(plan, k, args);
    attn_cuda_recorder = NULL;
    if (status) return status;
    if (g.n > atomic_load_explicit(&r->launches, memory_order_relaxed)) {
        atomic_store_explicit(&r->bytes, g.bytes, memory_order_relaxed);
        atomic_store_explicit(&r->launches, g.n, memory_order_release);
    }
    atomic_fetch_add_explicit(&r->seen, 1, memory_order_release);
    return ATTN_OK;
}

/* 1: the entry has room for its steps. Under its lock. */
static int take_room(struct replay *r, struct entry *e) {
    if (e->steps) return 1;
    const int32_t launches = atomic_load_explicit(&r->launches, memory_order_acquire);
    const uint32_t params = atomic_load_explicit(&r->bytes, memory_order_relaxed);
    if (launches < LEAST || (size_t)launches > ROOM_BYTES / sizeof(struct step)) return 0;
    const uint32_t steps = (uint32_t)launches * (uint32_t)sizeof(struct step), bytes = steps + params;
    if (atomic_load_explicit(&r->taken, memory_order_relaxed) + bytes > ROOM_BYTES) return 0;
    const uint32_t offset = atomic_fetch_add_explicit(&r->taken, bytes, memory_order_relaxed);
    if (offset + bytes > ROOM_BYTES) return 0;
    e->steps_room = launches;
    e->params_room = params;
    e->steps = (struct step *)(void *)(r->room + offset);
    e->params = r->room + offset + steps;
    return 1;
}

static int try_lock(struct entry *e) { return !atomic_exchange_explicit(&e->locked, 1, memory_order_acquire); }
static void unlock(struct entry *e) { atomic_store_explicit(&e->locked, 0, memory_order_release); }

/* The default stream of a thread goes by the same handle in all threads; the others' keys are their handles. */
static uintptr_t key_of(const void *stream) {
    enum { LEGACY = 1, PER_THREAD = 2 };
    static _Thread_local char thread;
    const uintptr_t handle = (uintptr_t)stream;
    return handle == PER_THREAD ? (uintptr_t)&thread : handle ? handle : LEGACY;
}

/* The stream's entry, or one that serves no other, locked; NULL if there is none, or another thread has it. */
static struct entry *enter(struct replay *r, const void *stream) {
    const uintptr_t key = key_of(stream);
    const uint32_t now = atomic_fetch_add_explicit(&r->clock, 1, memory_order_relaxed);
    for (int i = 0; i < STREAMS; i++) {
        struct entry *e = &r->entries[i];
        if (atomic_load_explicit(&e->key, memory_order_relaxed) != key) continue;
        if (!try_lock(e)) return NULL;
        if (atomic_load_explicit(&e->key, memory_order_relaxed) == key) {
            atomic_store_explicit(&e->used, now, memory_order_relaxed);
            return e;
        }
        unlock(e);
    }
    for (int i = 0; i < STREAMS; i++) {
        struct entry *e = &r->entries[i];
        if (atomic_load_explicit(&e->key, memory_order_relaxed) &&
            now - atomic_load_explicit(&e->used, memory_order_relaxed) < STALE)
            continue;
        if (!try_lock(e)) continue;
        if ((!atomic_load_explicit(&e->key, memory_order_relaxed) ||
             now - atomic_load_explicit(&e->used, memory_order_relaxed) >= STALE) &&
            take_room(r, e)) {
            atomic_store_explicit(&e->used, now, memory_order_relaxed);
            atomic_store_explicit(&e->key, key, memory_order_relaxed);
            return e;
        }
        unlock(e);
    }
    return NULL;
}

/* 1: what is to be queued stands in the entry. */
static int record(struct entry *e, const struct attn_cuda_driver *drv, const struct attn_plan *plan,
                  const struct attn_kernel *k, const attn_args *args) {
    struct attn_cuda_recorder g = {.entry = e};
    attn_cuda_recorder = &g;
    const attn_status status = attn_core_launch_now(plan, k, args);
    attn_cuda_recorder = NULL;
    if (status) return 0; /* the direct way will say so */
    if (!e->exec && !g.misfit) e->n = g.n;
    if (!g.misfit && g.n == e->n && g.n >= LEAST) {
        e->misfits = 0;
        return 1;
    }
    if (e->exec && ++e->misfits >= MISFITS) {
        e->misfits = 0;
        destroy(drv, e);
    }
    return 0;
}

/* 1: queued. Under the entry's lock, the device's context current. */
static int replayed(struct replay *r, struct entry *e, const struct attn_plan *plan, const struct attn_kernel *k,
                    const attn_args *args) {
    const struct attn_cuda_device *d = attn_cuda_device_of(plan->device);
    const struct attn_cuda_driver *drv = &d->state->driver;
    cu_capture_status recording = CU_CAPTURE_NONE;
    const char *call = "";
    if (drv->cuStreamIsCapturing(args->stream, &recording) || recording != CU_CAPTURE_NONE) return 0;
    if (!record(e, drv, plan, k, args)) return 0;
    cu_result result = make_ready(d, e, &call);
    if (!result) {
        call = "cuGraphLaunch";
        result = drv->cuGraphLaunch(e->exec, args->stream);
    }
    if (result) give_up(r, d, call, result);
    return !result;
}

attn_status attn_cuda_execute(const struct attn_plan *plan, const struct attn_kernel *k, void *cache,
                              const attn_args *args) {
    struct replay *r = cache;
    const struct attn_cuda_device *d = attn_cuda_device_of(plan->device);
    int entered, done = 0;
    if (atomic_load_explicit(&r->seen, memory_order_acquire) < WATCHED) return watch(r, plan, k, args);
    if (atomic_load_explicit(&r->launches, memory_order_relaxed) < LEAST) return attn_core_launch_now(plan, k, args);
    struct entry *e = enter(r, args->stream);
    if (!e) return attn_core_launch_now(plan, k, args);
    attn_status status = attn_cuda_context_push(d, &entered);
    if (!status) {
        done = replayed(r, e, plan, k, args);
        status = attn_cuda_context_pop(d, entered, ATTN_OK);
    }
    unlock(e);
    return done || status ? status : attn_core_launch_now(plan, k, args);
}

/* ------------------------------------------------------------------ life --------------------------- */

attn_status attn_cuda_cache_open(struct attn_ctx *ctx, struct attn_core_device *dev, void **cache) {
    const struct attn_cuda_state *s = attn_cuda_device_of(dev)->state;
    *cache = NULL;
    if (!s->graphs || !s->driver.graphs || s->sync) return ATTN_OK;
    *cache = attn_base_alloc(&ctx->mem, sizeof(struct replay), _Alignof(struct replay));
    return *cache ? ATTN_OK : ATTN_E_MEMORY;
}

void attn_cuda_cache_close(struct attn_ctx *ctx, struct attn_core_device *dev, void *cache) {
    const struct attn_cuda_device *d = attn_cuda_device_of(dev);
    const struct attn_cuda_driver *drv = &d->state->driver;
    struct replay *r = cache;
    cu_context ours;
    int used = 0;
    for (int i = 0; i < STREAMS; i++) used |= r->entries[i].exec || r->entries[i].graph;
    if (used && d->state->pid == getpid() && !drv->cuCtxPushCurrent(atomic_load(&d->context))) {
        for (int i = 0; i < STREAMS; i++) destroy(drv, &r->entries[i]);
        drv->cuCtxPopCurrent(&ours);
    }
    attn_base_free(&ctx->mem, r, sizeof *r);
}
