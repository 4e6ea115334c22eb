/* SPDX-License-Identifier: MIT
 * A CUDA driver for tests on machines without a GPU: device memory is host memory, kernels are loaded and launched but
 * not executed, and misuse (no current context, a foreign address, an unknown symbol) is refused as the real one
 * refuses it, also what must not be called while a stream records a graph. CUDA_STUB_DEVICES lists architectures, as
 * in "80,90". */
#include "stub_driver/cuda_stub_graph.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORTED(name, symbol, parameters) __attribute__((visibility("default"))) cu_result symbol parameters;
ATTN_CUDA_CALLS(EXPORTED)
#define EXPORTED_TOO(symbol, parameters) __attribute__((visibility("default"))) cu_result symbol parameters;
GPU_CALLS(EXPORTED_TOO)
ATTN_CUDA_GRAPH_CALLS(EXPORTED)

enum {
    INVALID_VALUE = 1,
    NOT_INITIALIZED = 3,
    INVALID_CONTEXT = 201,
    NOT_FOUND = 500,
    CAPTURING = 900, /* not while a stream records a graph */
    UNKNOWN = 999
};
static const unsigned char fatbin[] = {0x50, 0xed, 0x55, 0xba};
enum { MAX_DEVICES = 40, MAX_BLOCKS = 256, MAX_MODULES = 1024, DEPTH = 16, MAX_STREAMS = 64 };

struct cu_context_object {
    int device;
};
struct cu_module_object {
    char *text; /* a copy of the PTX, since the caller may free its own; NULL: machine code */
};
struct cu_stream_object {
    int live;
    struct cu_graph_object *graph; /* not NULL: records */
};
struct block {
    char *memory;
    size_t bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cuda_stub state;
static struct cu_context_object contexts[MAX_DEVICES];
static struct cu_module_object modules[MAX_MODULES];
static struct cu_function_object functions[MAX_MODULES];
static unsigned n_modules, n_functions;
static int retains[MAX_DEVICES], archs[MAX_DEVICES], n_devices;
static struct block blocks[MAX_BLOCKS];
static struct cu_stream_object streams[MAX_STREAMS];
static int n_recording;
static pid_t owner;
static _Thread_local cu_context stack[DEPTH];
static _Thread_local int depth;
static _Thread_local cu_capture_mode knows;

__attribute__((visibility("default"))) struct cuda_stub *cuda_stub_state(void) { return &state; }

/* Bookkeeping of every call; a result other than 0 is returned at once. */
cu_result cuda_stub_enter(const char *name, int needs_context) {
    cu_result r = CU_OK;
    pthread_mutex_lock(&lock);
    if (owner && owner != getpid()) {
        state.in_child++;
        r = NOT_INITIALIZED;
    }
    for (int i = 0; i < 2; i++)
        if (state.fail_in[i] > 0 && !strcmp(state.fail_name[i], name) && --state.fail_in[i] == 0) {
            state.failed++;
            r = UNKNOWN;
        }
    if (!r && needs_context && !depth) {
        state.misuse++;
        r = INVALID_CONTEXT;
    }
    pthread_mutex_unlock(&lock);
    return r;
}
cu_result cuda_stub_misuse(cu_result r) {
    pthread_mutex_lock(&lock);
    state.misuse++;
    pthread_mutex_unlock(&lock);
    return r;
}

#define NOT_WHILE_RECORDING()                                                                                          \
    do {                                                                                                               \
        if (n_recording) return cuda_stub_misuse(CAPTURING);                                                           \
    } while (0)
/* What is no work of a stream is forbidden only to threads that have not said that they know. */
#define NOT_UNAWARE_WHILE_RECORDING()                                                                                  \
    do {                                                                                                               \
        if (n_recording && knows != CU_CAPTURE_RELAXED) return cuda_stub_misuse(CAPTURING);                            \
    } while (0)

static void read_failures(void) {
    const char *text = getenv("CUDA_STUB_FAIL");
    memset(state.fail_in, 0, sizeof state.fail_in);
    for (int i = 0; i < 2 && text && *text; i++) {
        size_t n = strcspn(text, ":");
        snprintf(state.fail_name[i], sizeof state.fail_name[i], "%.*s", (int)n, text);
        state.fail_in[i] = text[n] ? strtoll(text + n + 1, NULL, 10) : 1;
        text += strcspn(text, ",");
        text += *text == ',';
    }
}

cu_result cuInit(unsigned flags) {
    const char *list = getenv("CUDA_STUB_DEVICES");
    pthread_mutex_lock(&lock);
    read_failures();
    owner = getpid();
    n_devices = 0;
    for (const char *text = list ? list : "90"; *text && n_devices < MAX_DEVICES; text += *text == ',') {
        char *end;
        archs[n_devices] = (int)strtol(text, &end, 10);
        if (end == text) break;
        contexts[n_devices].device = n_devices;
        n_devices++;
        text = end;
    }
    pthread_mutex_unlock(&lock);
    ENTER(0);
    if (flags) return INVALID_VALUE;
    return n_devices ? CU_OK : CU_NO_DEVICE;
}
cu_result cuDriverGetVersion(int *version) {
    ENTER(0);
    *version = 13000;
    return CU_OK;
}
cu_result cuGetErrorName(cu_result r, const char **text) {
    ENTER(0);
    *text = r == UNKNOWN ? "CUDA_ERROR_UNKNOWN" : r == CU_NO_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OTHER";
    return CU_OK;
}
cu_result cuGetErrorString(cu_result r, const char **text) {
    ENTER(0);
    *text = r == UNKNOWN ? "unknown error" : r == CU_NO_MEMORY ? "out of memory" : "another error";
    return CU_OK;
}
cu_result cuDeviceGetCount(int *count) {
    ENTER(0);
    *count = n_devices;
    return CU_OK;
}
cu_result cuDeviceGet(cu_device *device, int index) {
    ENTER(0);
    *device = index;
    return index >= 0 && index < n_devices ? CU_OK : cuda_stub_misuse(INVALID_VALUE);
}
cu_result cuDeviceGetName(char *name, int bytes, cu_device device) {
    ENTER(0);
    snprintf(name, (size_t)bytes, "Stand-in sm_%d", archs[device]);
    return CU_OK;
}
cu_result cuDeviceTotalMem_v2(size_t *bytes, cu_device device) {
    ENTER(0);
    *bytes = (size_t)(1 + device) << 30;
    return CU_OK;
}
static int shared_of(int arch) { return 1024 * (arch >= 90 && arch < 120 ? 227 : arch == 80 ? 163 : 99); }
cu_result cuDeviceGetAttribute(int *value, cu_device_attribute attribute, cu_device device) {
    ENTER(0);
    int arch = archs[device];
    switch (attribute) {
    case CU_MAJOR: *value = arch / 10; break;
    case CU_MINOR: *value = arch % 10; break;
    case CU_N_SMS: *value = arch >= 90 ? 132 : 108; break;
    case CU_SHARED_PER_BLOCK: *value = shared_of(arch); break;
    case CU_SHARED_PER_SM: *value = shared_of(arch) + 1024; break;
    case CU_L2_BYTES: *value = 50 << 20; break;
    default: return cuda_stub_misuse(INVALID_VALUE);
    }
    return CU_OK;
}
cu_result cuDevicePrimaryCtxRetain(cu_context *context, cu_device device) {
    ENTER(0);
    pthread_mutex_lock(&lock);
    retains[device]++;
    state.retained++;
    *context = &contexts[device];
    pthread_mutex_unlock(&lock);
    return CU_OK;
}
cu_result cuDevicePrimaryCtxRelease_v2(cu_device device) {
    ENTER(0);
    if (!retains[device]) return cuda_stub_misuse(INVALID_CONTEXT);
    pthread_mutex_lock(&lock);
    retains[device]--;
    state.retained--;
    pthread_mutex_unlock(&lock);
    return CU_OK;
}
cu_result cuCtxPushCurrent_v2(cu_context context) {
    ENTER(0);
    if (depth == DEPTH || !context) return cuda_stub_misuse(INVALID_CONTEXT);
    stack[depth++] = context;
    return CU_OK;
}
cu_result cuCtxPopCurrent_v2(cu_context *context) {
    ENTER(1);
    *context = stack[--depth];
    return CU_OK;
}
cu_result cuCtxGetCurrent(cu_context *context) {
    ENTER(0);
    *context = depth ? stack[depth - 1] : NULL;
    return CU_OK;
}
cu_result cuCtxSynchronize(void) {
    ENTER(1);
    NOT_WHILE_RECORDING();
    pthread_mutex_lock(&lock);
    state.synchronized++;
    pthread_mutex_unlock(&lock);
    return CU_OK;
}

/* The block that holds [at, at + bytes), or NULL. Under the lock. */
static struct block *find(cu_address address, size_t bytes) {
    char *p = (char *)(uintptr_t)address;
    for (int i = 0; i < MAX_BLOCKS; i++)
        if (blocks[i].memory && p >= blocks[i].memory && p + bytes <= blocks[i].memory + blocks[i].bytes)
            return &blocks[i];
    return NULL;
}
/* Under the lock: note work on a stream. 1 = the stream records it instead of running it. */
static struct cu_stream_object *object_of(cu_stream stream) {
    return stream >= streams && stream < streams + MAX_STREAMS ? stream : NULL;
}
int cuda_stub_forbids_unaware(void) { return n_recording && knows != CU_CAPTURE_RELAXED; }
void cuda_stub_count(int64_t *counter, int64_t n) {
    pthread_mutex_lock(&lock);
    *counter += n;
    pthread_mutex_unlock(&lock);
}
int cuda_stub_is_stream(cu_stream stream) { return object_of(stream) != NULL; }
static int queue(const struct cuda_stub_launch *l, cu_function function, cu_address to, cu_stream stream) {
    const struct cu_stream_object *s = object_of(stream);
    if (state.n_log < (int32_t)(sizeof state.log / sizeof *state.log)) state.log[state.n_log++] = *l;
    if (!s || !s->graph) return stream == CUDA_STUB_CAPTURING;
    if (s->graph->n < MAX_LAUNCHES) {
        s->graph->node[s->graph->n] = (struct node){*l, .function = function, .to = to, .index = s->graph->n};
        s->graph->n++;
    }
    state.recorded++;
    return 1;
}

cu_result cuMemAlloc_v2(cu_address *out, size_t bytes) {
    ENTER(1);
    NOT_UNAWARE_WHILE_RECORDING();
    if (!bytes) return cuda_stub_misuse(INVALID_VALUE);
    cu_result r = CU_NO_MEMORY;
    if (bytes > (size_t)1 << 30) return r;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX_BLOCKS && r; i++) {
        if (blocks[i].memory) continue;
        blocks[i].memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
        blocks[i].bytes = bytes;
        memset(blocks[i].memory, 0xcd, bytes);
        *out = (cu_address)(uintptr_t)blocks[i].memory;
        state.allocations++;
        r = CU_OK;
    }
    pthread_mutex_unlock(&lock);
    return r;
}
cu_result cuMemFree_v2(cu_address address) {
    ENTER(1);
    NOT_UNAWARE_WHILE_RECORDING();
    pthread_mutex_lock(&lock);
    struct block *b = find(address, 1);
    int ok = b && b->memory == (char *)(uintptr_t)address;
    if (ok) {
        free(b->memory);
        b->memory = NULL;
        state.allocations--;
    }
    pthread_mutex_unlock(&lock);
    return ok ? CU_OK : cuda_stub_misuse(INVALID_VALUE);
}
static cu_result move(void *dst, const void *src, size_t bytes, cu_address device_a, cu_address device_b) {
    pthread_mutex_lock(&lock);
    int ok = find(device_a, bytes) && find(device_b, bytes);
    if (ok) memmove(dst, src, bytes);
    pthread_mutex_unlock(&lock);
    return ok ? CU_OK : cuda_stub_misuse(INVALID_VALUE);
}
cu_result cuMemcpyHtoD_v2(cu_address to, const void *from, size_t bytes) {
    ENTER(1);
    NOT_WHILE_RECORDING();
    return move((void *)(uintptr_t)to, from, bytes, to, to);
}
cu_result cuMemcpyDtoH_v2(void *to, cu_address from, size_t bytes) {
    ENTER(1);
    NOT_WHILE_RECORDING();
    return move(to, (void *)(uintptr_t)from, bytes, from, from);
}
cu_result cuMemcpy(cu_address to, cu_address from, size_t bytes) {
    ENTER(1);
    NOT_WHILE_RECORDING();
    return move((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes, to, from);
}
cu_result cuMemsetD8Async(cu_address to, unsigned char value, size_t bytes, cu_stream stream) {
    const struct cuda_stub_launch l = {.function = "fill", .grid = {(unsigned)bytes, value, 0}, .stream = stream};
    ENTER(1);
    pthread_mutex_lock(&lock);
    struct block *b = find(to, bytes);
    int now = b && !queue(&l, NULL, to, stream);
    if (now) memset((void *)(uintptr_t)to, value, bytes);
    pthread_mutex_unlock(&lock);
    return b ? CU_OK : cuda_stub_misuse(INVALID_VALUE);
}
cu_result cuModuleLoadDataEx(cu_module *module, const void *image, unsigned n, cu_jit_option *options, void **values) {
    ENTER(1);
    NOT_UNAWARE_WHILE_RECORDING();
    if (n && (!options || !values)) return cuda_stub_misuse(INVALID_VALUE);
    if (!strncmp(image, "bad", 3)) {
        for (unsigned i = 0; i + 1 < n; i++)
            if (options[i] == CU_JIT_ERROR_TEXT) snprintf(values[i], 32, "line 1: syntax\nline 2");
        return CU_BAD_PTX;
    }
    pthread_mutex_lock(&lock);
    *module =
        &modules[n_modules++ % MAX_MODULES]; /* handed out in turn: one that is not unloaded in a test is no leak */
    free((*module)->text);
    (*module)->text = memcmp(image, fatbin, sizeof fatbin) ? strdup(image) : NULL;
    memcpy(state.image, image, sizeof state.image);
    state.modules++;
    state.loads++;
    pthread_mutex_unlock(&lock);
    return CU_OK;
}
cu_result cuModuleUnload(cu_module module) {
    ENTER(1);
    pthread_mutex_lock(&lock);
    free(module->text);
    module->text = NULL;
    state.modules--;
    pthread_mutex_unlock(&lock);
    return CU_OK;
}
/* PTX names its entries; a fatbin is opaque and taken to have every symbol. */
cu_result cuModuleGetFunction(cu_function *function, cu_module module, const char *name) {
    ENTER(1);
    if (module->text && !strstr(module->text, name)) return cuda_stub_misuse(NOT_FOUND);
    pthread_mutex_lock(&lock);
    cu_function f = &functions[n_functions++ % MAX_MODULES];
    *f = (struct cu_function_object){.shared_limit = 48 << 10};
    snprintf(f->name, sizeof f->name, "%s", name);
    pthread_mutex_unlock(&lock);
    *function = f;
    return CU_OK;
}
cu_result cuFuncSetAttribute(cu_function function, cu_function_attribute attribute, int value) {
    ENTER(1);
    if (attribute != CU_MAX_DYNAMIC_SHARED || value > shared_of(archs[stack[depth - 1]->device]))
        return cuda_stub_misuse(INVALID_VALUE);
    pthread_mutex_lock(&lock);
    function->shared_limit = value;
    state.sets++;
    pthread_mutex_unlock(&lock);
    return CU_OK;
}
cu_result cuLaunchKernelEx(const cu_config *c, cu_function function, void **params, void **extra) {
    ENTER(1);
    if (stack[depth - 1] == CUDA_STUB_FOREIGN) return cuda_stub_misuse(INVALID_CONTEXT);
    if (!function || !params || extra || (c->n_attributes && !c->attributes)) return cuda_stub_misuse(INVALID_VALUE);
    for (int i = 0; i < 3; i++)
        if (!c->grid[i] || !c->block[i] || (i && c->grid[i] > 65535)) return cuda_stub_misuse(INVALID_VALUE);
    if ((int)c->shared_bytes > function->shared_limit || c->block[0] > 1024) return cuda_stub_misuse(INVALID_VALUE);
    struct cuda_stub_launch l = {.grid = {c->grid[0], c->grid[1], c->grid[2]},
                                 .threads = c->block[0],
                                 .cluster = c->n_attributes ? c->attributes[0].value.cluster[0] : 1,
                                 .shared_bytes = c->shared_bytes,
                                 .stream = c->stream};
    snprintf(l.function, sizeof l.function, "%.95s", function->name);
    size_t said = (size_t)state.params_bytes; /* a test that reads them says how many there are */
    memcpy(l.params, params[0], said < sizeof l.params ? said : sizeof l.params);
    pthread_mutex_lock(&lock);
    state.config = *c;
    if (c->n_attributes) state.attribute = c->attributes[0];
    state.config.attributes = NULL;
    memcpy(state.params, params[0], (size_t)state.params_bytes);
    memcpy(state.function, function->name, sizeof state.function);
    queue(&l, function, 0, c->stream);
    state.launches++;
    pthread_mutex_unlock(&lock);
    return CU_OK;
}
cu_result cuStreamGetId(cu_stream stream, unsigned long long *id) {
    ENTER(1);
    if (stream == CUDA_STUB_CAPTURING || (object_of(stream) && object_of(stream)->graph))
        return cuda_stub_misuse(CAPTURING);
    *id = (unsigned long long)(uintptr_t)stream;
    return CU_OK;
}
cu_result cuStreamIsCapturing(cu_stream stream, cu_capture_status *status) {
    ENTER(1);
    *status = stream == CUDA_STUB_CAPTURING || (object_of(stream) && object_of(stream)->graph);
    return CU_OK;
}
cu_result cuThreadExchangeStreamCaptureMode(cu_capture_mode *to) {
    ENTER(0);
    if (*to < 0 || *to > CU_CAPTURE_RELAXED) return cuda_stub_misuse(INVALID_VALUE);
    const cu_capture_mode before = knows;
    knows = *to;
    *to = before;
    return CU_OK;
}
cu_result cuStreamSynchronize(cu_stream stream) {
    ENTER(1);
    if (stream == CUDA_STUB_CAPTURING || n_recording) return cuda_stub_misuse(CAPTURING);
    pthread_mutex_lock(&lock);
    state.synchronized++;
    pthread_mutex_unlock(&lock);
    return CU_OK;
}

/* ---- streams and graphs of an application ---- */

cu_result cuStreamCreate(cu_stream *stream, unsigned flags) {
    ENTER(1);
    if (flags > 1) return cuda_stub_misuse(INVALID_VALUE);
    cu_result r = CU_NO_MEMORY;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX_STREAMS && r; i++) {
        if (streams[i].live) continue;
        streams[i] = (struct cu_stream_object){.live = 1};
        *stream = &streams[i];
        state.streams++;
        r = CU_OK;
    }
    pthread_mutex_unlock(&lock);
    return r;
}
cu_result cuStreamDestroy_v2(cu_stream stream) {
    ENTER(1);
    if (!object_of(stream) || !stream->live || stream->graph) return cuda_stub_misuse(INVALID_VALUE);
    pthread_mutex_lock(&lock);
    stream->live = 0;
    state.streams--;
    pthread_mutex_unlock(&lock);
    return CU_OK;
}
cu_result cuStreamBeginCapture_v2(cu_stream stream, cu_capture_mode mode) {
    ENTER(1);
    if (!object_of(stream) || stream->graph || mode != GPU_CAPTURE_GLOBAL) return cuda_stub_misuse(INVALID_VALUE);
    pthread_mutex_lock(&lock);
    stream->graph = calloc(1, sizeof *stream->graph);
    n_recording++;
    state.graphs++;
    pthread_mutex_unlock(&lock);
    return CU_OK;
}
cu_result cuStreamEndCapture(cu_stream stream, cu_graph *graph) {
    ENTER(1);
    if (!object_of(stream) || !stream->graph) return cuda_stub_misuse(INVALID_VALUE);
    pthread_mutex_lock(&lock);
    *graph = stream->graph;
    stream->graph = NULL;
    n_recording--;
    pthread_mutex_unlock(&lock);
    return CU_OK;
}
/* An instance is a copy, so that its graph can go first. */
cu_result cuGraphInstantiateWithFlags(cu_exec *exec, cu_graph graph, unsigned long long flags) {
    ENTER(1);
    NOT_UNAWARE_WHILE_RECORDING();
    if (flags) return cuda_stub_misuse(INVALID_VALUE);
    for (int32_t i = 0; i < graph->n; i++)
        if (graph->node[i].apart) return cuda_stub_misuse(INVALID_VALUE); /* nothing here runs beside something else */
    struct cu_graph_object *copy = malloc(sizeof *copy);
    if (!copy) return CU_NO_MEMORY;
    pthread_mutex_lock(&lock);
    *copy = *graph;
    state.graphs++;
    state.instances++;
    *exec = (cu_exec)(void *)copy;
    pthread_mutex_unlock(&lock);
    return CU_OK;
}
cu_result cuGraphLaunch(cu_exec exec, cu_stream stream) {
    ENTER(1);
    struct cu_graph_object *g = (void *)exec;
    if (object_of(stream) && !stream->live) return cuda_stub_misuse(INVALID_VALUE);
    if (cuda_stub_take(g)) return cuda_stub_misuse(INVALID_VALUE);
    pthread_mutex_lock(&lock);
    for (int32_t i = 0; i < g->n; i++) {
        struct cuda_stub_launch l = g->node[i].launch;
        l.stream = stream;
        const int recorded = queue(&l, g->node[i].function, g->node[i].to, stream);
        if (!recorded && !g->node[i].function) memset((void *)(uintptr_t)g->node[i].to, 0, l.grid[0]);
    }
    state.replayed += g->n;
    state.replays++;
    pthread_mutex_unlock(&lock);
    cuda_stub_give(g);
    return CU_OK;
}
static cu_result drop(void *graph) {
    pthread_mutex_lock(&lock);
    free(graph);
    state.graphs--;
    pthread_mutex_unlock(&lock);
    return CU_OK;
}
cu_result cuGraphExecDestroy(cu_exec exec) {
    ENTER(1);
    return drop(exec);
}
cu_result cuGraphDestroy(cu_graph graph) {
    ENTER(1);
    return drop(graph);
}
