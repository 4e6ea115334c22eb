/* SPDX-License-Identifier: MIT
 * The driver side of the simulator: streams and events under each policy, graphs, calls that a recording forbids,
 * tensor maps, injected failures, profiles, calls by name. */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

struct launch {
    unsigned grid[3], block[3], shared_bytes;
    void *stream, *attributes;
    unsigned n_attributes;
};
struct kernel_node {
    void *function;
    unsigned grid[3], block[3], shared_bytes;
    void **params, **extra;
    void *kernel, *context;
};
struct fill_node {
    uint64_t to;
    size_t pitch;
    unsigned value, element;
    size_t width, height;
};
/* X(member, exported symbol, parameters) */
#define CALLS(X)                                                                                                       \
    X(init, cuInit, (unsigned))                                                                                        \
    X(attribute, cuDeviceGetAttribute, (int *, int, int))                                                              \
    X(retain, cuDevicePrimaryCtxRetain, (void **, int))                                                                \
    X(push, cuCtxPushCurrent_v2, (void *))                                                                             \
    X(wait_all, cuCtxSynchronize, (void))                                                                              \
    X(alloc, cuMemAlloc_v2, (uint64_t *, size_t))                                                                      \
    X(freed, cuMemFree_v2, (uint64_t))                                                                                 \
    X(up, cuMemcpyHtoD_v2, (uint64_t, const void *, size_t))                                                           \
    X(down, cuMemcpyDtoH_v2, (void *, uint64_t, size_t))                                                               \
    X(down_later, cuMemcpyDtoHAsync_v2, (void *, uint64_t, size_t, void *))                                            \
    X(fill, cuMemsetD32Async, (uint64_t, unsigned, size_t, void *))                                                    \
    X(load, cuModuleLoadData, (void **, const void *))                                                                 \
    X(function, cuModuleGetFunction, (void **, void *, const char *))                                                  \
    X(launch, cuLaunchKernelEx, (const struct launch *, void *, void **, void **))                                     \
    X(stream, cuStreamCreate, (void **, unsigned))                                                                     \
    X(stream_end, cuStreamDestroy_v2, (void *))                                                                        \
    X(wait, cuStreamSynchronize, (void *))                                                                             \
    X(query, cuStreamQuery, (void *))                                                                                  \
    X(wait_event, cuStreamWaitEvent, (void *, void *, unsigned))                                                       \
    X(event, cuEventCreate, (void **, unsigned))                                                                       \
    X(record, cuEventRecord, (void *, void *))                                                                         \
    X(event_wait, cuEventSynchronize, (void *))                                                                        \
    X(event_query, cuEventQuery, (void *))                                                                             \
    X(elapsed, cuEventElapsedTime, (float *, void *, void *))                                                          \
    X(begin, cuStreamBeginCapture_v2, (void *, int))                                                                   \
    X(capturing, cuStreamIsCapturing, (void *, int *))                                                                 \
    X(end, cuStreamEndCapture, (void *, void **))                                                                      \
    X(exchange_mode, cuThreadExchangeStreamCaptureMode, (int *))                                                       \
    X(instantiate, cuGraphInstantiateWithFlags, (void **, void *, unsigned long long))                                 \
    X(graph_new, cuGraphCreate, (void **, unsigned))                                                                   \
    X(add_kernel, cuGraphAddKernelNode_v2, (void **, void *, void *const *, size_t, const struct kernel_node *))       \
    X(add_fill, cuGraphAddMemsetNode, (void **, void *, void *const *, size_t, const struct fill_node *, void *))      \
    X(add_edges, cuGraphAddDependencies_v2, (void *, void *const *, void *const *, const unsigned char *, size_t))     \
    X(node_attribute, cuGraphKernelNodeSetAttribute, (void *, int, const void *))                                      \
    X(set_kernel, cuGraphExecKernelNodeSetParams_v2, (void *, void *, const struct kernel_node *))                     \
    X(set_fill, cuGraphExecMemsetNodeSetParams, (void *, void *, const struct fill_node *, void *))                    \
    X(replay, cuGraphLaunch, (void *, void *))                                                                         \
    X(exec_end, cuGraphExecDestroy, (void *))                                                                          \
    X(graph_end, cuGraphDestroy, (void *))                                                                             \
    X(address, cuGetProcAddress_v2, (const char *, void **, int, uint64_t, int *))                                     \
    X(tensor, cuTensorMapEncodeTiled,                                                                                  \
      (void *, int, unsigned, void *, const uint64_t *, const uint64_t *, const uint32_t *, const uint32_t *, int,     \
       int, int, int))
static struct {
#define MEMBER(name, symbol, parameters) int(*name) parameters;
    CALLS(MEMBER)
#undef MEMBER
} cu;
enum {
    INVALID = 1,
    WORDS = 64,
    NOT_READY = 600,
    UNSUPPORTED = 900,
    INVALIDATED,
    MERGE,
    UNMATCHED,
    UNJOINED,
    ISOLATION,
    IMPLICIT
};
#define OK(call) assert_int_equal(call, 0)

static void *kernel, *context;
static uint64_t buffer;

/* out[i] = 2 out[i] + v */
static const char ptx[] =
    ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 out, .param .u32 v)\n{\n"
    ".reg .b32 t, a, w;\n.reg .b64 p, x;\nmov.u32 t, %tid.x;\nld.param.u64 p, [out];\nld.param.u32 w, [v];\n"
    "mul.wide.u32 x, t, 4;\nadd.u64 p, p, x;\nld.global.u32 a, [p];\nmad.lo.u32 a, a, 2, w;\nst.global.u32 [p], a;\nret;\n}\n";

static int start(void) { /* 0 or the driver's result */
    void *l = dlopen(ATTN_TEST_SIM, RTLD_NOW | RTLD_LOCAL), *module = NULL;
    static const struct {
        const char *symbol;
        size_t offset;
    } rows[] = {
#define ROW(name, symbol, parameters) {#symbol, (size_t)((char *)&cu.name - (char *)&cu)},
        CALLS(ROW)
#undef ROW
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        void *call = l ? dlsym(l, rows[i].symbol) : NULL;
        if (!call) return -1;
        memcpy((char *)&cu + rows[i].offset, &call, sizeof call);
    }
    int r = cu.init(0);
    if (!r) r = cu.retain(&context, 0);
    if (!r) r = cu.push(context);
    if (!r) r = cu.load(&module, ptx);
    if (!r) r = cu.function(&kernel, module, "k");
    if (!r) r = cu.alloc(&buffer, WORDS * 4);
    return r;
}
static int open_driver(void **state) {
    (void)state;
    setenv("ATTNSIM_QUIET", "1", 1);
    return start();
}
static int launch(void *stream, uint32_t v) {
    struct launch c = {.grid = {1, 1, 1}, .block = {WORDS, 1, 1}, .stream = stream};
    void *params[] = {&buffer, &v};
    return cu.launch(&c, kernel, params, NULL);
}
/* Attributes that change no result are taken, unknown ones are not. */
static void launches_take_hints(void **state) {
    static const struct { int id, result; } rows[] = {{1, 0}, {9, 0}, {10, 0}, {11, 0}, {14, 0}, {99, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct {
            int id;
            char pad[4];
            unsigned value[16];
        } hint = {.id = rows[i].id, .value = {2, 1, 1}};
        struct launch c = {.grid = {1, 1, 1}, .block = {WORDS, 1, 1}, .attributes = &hint, .n_attributes = 1};
        uint32_t v = 0;
        void *params[] = {&buffer, &v};
        assert_int_equal(cu.launch(&c, kernel, params, NULL), rows[i].result);
        OK(cu.wait_all());
    }
}
static uint32_t first_word(void) {
    uint32_t words[WORDS];
    OK(cu.down(words, buffer, sizeof words));
    for (int i = 1; i < WORDS; i++) assert_int_equal(words[i], words[0]);
    return words[0];
}
static void *new_stream(unsigned flags) {
    void *s = NULL;
    OK(cu.stream(&s, flags));
    return s;
}
static void *new_event(void) {
    void *e = NULL;
    OK(cu.event(&e, 0));
    return e;
}
static const char *const policies[] = {"eager", "late", "random"};

/* ---- streams, events ---- */

static void events_order_streams(void **state) {
    (void)state;
    for (int p = 0; p < 3; p++) {
        setenv("ATTNSIM_POLICY", policies[p], 1);
        void *a = new_stream(1), *b = new_stream(1), *e = new_event(), *e0 = new_event();
        uint32_t words[WORDS] = {0};
        OK(cu.fill(buffer, 1, WORDS, a));
        OK(cu.record(e0, a));
        OK(launch(a, 3)); /* 5 */
        OK(cu.record(e, a));
        OK(cu.wait_event(b, e, 0));
        OK(launch(b, 1)); /* 11 */
        OK(cu.down_later(words, buffer, sizeof words, b));
        OK(cu.wait(b));
        assert_int_equal(words[0], 11);
        assert_int_equal(words[WORDS - 1], 11);
        OK(cu.event_query(e));
        float ms = -1;
        OK(cu.elapsed(&ms, e0, e));
        assert_true(ms >= 0);
        OK(cu.stream_end(a));
        OK(cu.stream_end(b));
    }
}
static void a_missing_wait_shows(void **state) {
    (void)state;
    setenv("ATTNSIM_POLICY", "late", 1), setenv("ATTNSIM_RACES", "0", 1); /* the missing wait is a race, too */
    void *a = new_stream(1), *blocking = new_stream(0), *e = new_event();
    OK(cu.fill(buffer, 7, WORDS, NULL));
    OK(launch(a, 0));
    OK(cu.record(e, a));
    assert_int_equal(cu.query(a), NOT_READY); /* a poll lets one task happen */
    assert_int_equal(cu.event_query(e), NOT_READY);
    OK(cu.event_query(e));
    OK(cu.fill(buffer, 7, WORDS, NULL));
    OK(launch(a, 0));
    assert_int_equal(first_word(), 7); /* the default stream does not wait for it */
    OK(cu.wait(a));
    assert_int_equal(first_word(), 14);
    OK(launch(blocking, 0));
    assert_int_equal(first_word(), 28); /* for this one it does */
    OK(launch(a, 0));
    OK(cu.wait_all());
    assert_int_equal(first_word(), 56);
    OK(cu.stream_end(a));
    OK(cu.stream_end(blocking));
    setenv("ATTNSIM_RACES", "1", 1);
}

/* ---- graphs ---- */

static void graphs_repeat(void **state) {
    (void)state;
    for (int p = 0; p < 3; p++) {
        setenv("ATTNSIM_POLICY", policies[p], 1);
        void *a = new_stream(1), *b = new_stream(1), *fork = new_event(), *join = new_event(), *graph = NULL,
             *exec = NULL;
        int status = -1;
        OK(cu.fill(buffer, 9, WORDS, NULL));
        OK(cu.begin(a, 0));
        OK(cu.capturing(a, &status));
        assert_int_equal(status, 1);
        OK(cu.fill(buffer, 1, WORDS, a));
        OK(cu.record(fork, a));
        OK(cu.wait_event(b, fork, 0));
        OK(launch(b, 3)); /* 5 */
        OK(cu.record(join, b));
        OK(cu.wait_event(a, join, 0));
        OK(launch(a, 1)); /* 11 */
        OK(cu.end(a, &graph));
        OK(cu.instantiate(&exec, graph, 0));
        OK(cu.graph_end(graph));
        assert_int_equal(first_word(), 9); /* recording ran nothing */
        for (int n = 0; n < 3; n++) {
            OK(cu.fill(buffer, 100 + (unsigned)n, WORDS, NULL));
            OK(cu.wait_all()); /* the default stream and this one do not wait for each other */
            OK(cu.replay(exec, a));
            OK(cu.wait(a));
            assert_int_equal(first_word(), 11);
        }
        OK(cu.exec_end(exec));
        OK(cu.stream_end(a));
        OK(cu.stream_end(b));
    }
}
/* A fill, a launch behind it, and one that an edge puts behind that; then other values for what is queued later. */
static void graphs_of_nodes(void **state) {
    static const unsigned char ends[8] = {0}, begins[8] = {1, 0, 1}, unknown[8] = {2, 0, 1};
    (void)state;
    for (int p = 0; p < 3; p++) {
        setenv("ATTNSIM_POLICY", policies[p], 1);
        void *s = new_stream(1), *graph = NULL, *exec = NULL, *node[3] = {NULL}, *other = NULL;
        uint32_t v[2] = {3, 1}, cluster[16] = {3, 1, 1};
        void *params[2][2] = {{&buffer, &v[0]}, {&buffer, &v[1]}};
        struct fill_node fill = {.to = buffer, .value = 1, .element = 4, .width = WORDS, .height = 1};
        struct kernel_node k[2];
        for (int i = 0; i < 2; i++)
            k[i] = (struct kernel_node){kernel, .grid = {1, 1, 1}, .block = {WORDS, 1, 1}, .params = params[i]};
        OK(cu.graph_new(&graph, 0));
        OK(cu.add_fill(&node[0], graph, NULL, 0, &fill, context));
        OK(cu.add_kernel(&node[1], graph, &node[0], 1, &k[0]));
        OK(cu.add_kernel(&node[2], graph, NULL, 0, &k[1]));
        assert_int_equal(cu.add_kernel(&other, graph, &other, 1, &k[1]), INVALID);
        assert_int_equal(cu.add_edges(graph, &node[1], &node[2], unknown, 1), INVALID);
        assert_int_equal(cu.add_edges(graph, &node[2], &node[1], ends, 1), INVALID);
        assert_int_equal(cu.add_edges(graph, &node[0], &node[2], begins, 1), INVALID); /* behind a fill */
        OK(cu.add_edges(graph, &node[1], &node[2], ends, 1));
        assert_int_equal(cu.node_attribute(node[2], 4, cluster), INVALID); /* 1 CTA is no cluster of 3 */
        OK(cu.instantiate(&exec, graph, 0));
        OK(cu.replay(exec, s)); /* 1, 5, 11 */
        v[0] = 4, fill.value = 2;
        OK(cu.set_kernel(exec, node[1], &k[0]));
        OK(cu.set_fill(exec, node[0], &fill, context));
        assert_int_equal(cu.set_fill(exec, node[1], &fill, context), INVALID);
        assert_int_equal(cu.set_kernel(exec, node[0], &k[0]), INVALID);
        v[0] = 100; /* parameters are copied at the call */
        OK(cu.wait(s));
        assert_int_equal(first_word(), 11);
        OK(cu.replay(exec, s)); /* 2, 8, 17 */
        k[1].block[0] = 0;
        assert_int_equal(cu.set_kernel(exec, node[2], &k[1]), INVALID);
        OK(cu.wait(s));
        assert_int_equal(first_word(), 17);
        OK(cu.exec_end(exec));
        OK(cu.graph_end(graph));
        OK(cu.stream_end(s));
    }
}
static void recordings_are_guarded(void **state) {
    (void)state;
    void *a = new_stream(1), *b = new_stream(1), *blocking = new_stream(0), *e = new_event(), *graph = NULL;
    uint64_t extra = 0;
    int mode = 2;
    OK(cu.begin(a, 0)); /* no allocation, no wait */
    assert_int_equal(cu.alloc(&extra, 4), UNSUPPORTED);
    assert_int_equal(launch(a, 1), INVALIDATED);
    assert_int_equal(cu.end(a, &graph), INVALIDATED);
    assert_null(graph);
    OK(cu.begin(a, 0));
    assert_int_equal(cu.wait(b), UNSUPPORTED);
    assert_int_equal(cu.end(a, &graph), INVALIDATED);
    OK(cu.begin(a, 0)); /* but where the thread says that it knows what it does */
    OK(cu.exchange_mode(&mode));
    assert_int_equal(mode, 0);
    OK(cu.alloc(&extra, 4));
    OK(cu.exchange_mode(&mode));
    assert_int_equal(mode, 2);
    OK(cu.end(a, &graph));
    OK(cu.graph_end(graph));
    OK(cu.freed(extra));
    OK(cu.begin(a, 2)); /* or the recording allows it */
    OK(cu.wait(b));
    OK(cu.end(a, &graph));
    OK(cu.graph_end(graph));
    OK(cu.begin(a, 0)); /* a stream that does not come back */
    OK(cu.record(e, a));
    OK(cu.wait_event(b, e, 0));
    OK(launch(b, 1));
    assert_int_equal(cu.end(b, &graph), UNMATCHED);
    assert_int_equal(cu.end(a, &graph), UNJOINED);
    assert_int_not_equal(cu.wait_event(b, e, 0), 0); /* that recording is over */
    OK(cu.begin(blocking, 0));                       /* the default stream waits for this one, which it cannot */
    assert_int_equal(launch(NULL, 1), IMPLICIT);
    assert_int_equal(cu.end(blocking, &graph), INVALIDATED);
    assert_int_equal(cu.begin(NULL, 0), UNSUPPORTED);
    OK(cu.stream_end(a));
    OK(cu.stream_end(b));
    OK(cu.stream_end(blocking));
}

/* ---- names, tensor maps ---- */

static void calls_have_addresses(void **state) {
    (void)state;
    void *call = NULL;
    int status = -1;
    OK(cu.address("cuMemAlloc", &call, 12000, 0, &status));
    assert_int_equal(status, 0);
    int (*alloc)(uint64_t *, size_t);
    memcpy(&alloc, &call, sizeof call);
    assert_true(alloc == cu.alloc);
    OK(cu.address("cuInit", &call, 12000, 0, NULL));
    OK(cu.address("cuStreamBeginCapture", &call, 12000, 0, &status));
    assert_int_equal(status, 0);
    OK(cu.address("cuNothingOfTheKind", &call, 12000, 0, &status));
    assert_int_equal(status, 1);
    assert_null(call);
    assert_int_not_equal(cu.address("cuNothingOfTheKind", &call, 12000, 0, NULL), 0);
}

/* The same kernel by a library without a context. */
static void libraries_have_kernels(void **state) {
    (void)state;
    int (*load)(void **, const void *, int *, void **, unsigned, int *, void **, unsigned), (*unload)(void *),
        (*kernel_of)(void **, void *, const char *), (*function)(void **, void *);
    static const char *const names[] = {"cuLibraryLoadData", "cuLibraryUnload", "cuLibraryGetKernel",
                                        "cuKernelGetFunction"};
    void *const places[] = {&load, &unload, &kernel_of, &function};
    void *library = NULL, *k = NULL, *before = kernel;
    for (int i = 0; i < 4; i++) {
        void *call = NULL;
        OK(cu.address(names[i], &call, 12000, 0, NULL));
        memcpy(places[i], &call, sizeof call);
    }
    OK(load(&library, ptx, NULL, NULL, 0, NULL, NULL, 0));
    assert_int_not_equal(kernel_of(&k, library, "none"), 0);
    OK(kernel_of(&k, library, "k"));
    OK(function(&kernel, k));
    OK(cu.fill(buffer, 5, WORDS, NULL));
    OK(launch(NULL, 1));
    assert_int_equal(first_word(), 11);
    kernel = before;
    OK(unload(library));
}

/* Variables of a module: each module has its own, with their first values or 0; by name, too. */
static void modules_have_variables(void **state) {
    static const char text[] =
        ".version 7.8\n.target sm_80\n.address_size 64\n.visible .global .align 16 .b32 table[4] = {3, 50, 700, 9000};\n"
        ".global .u32 runs;\n.const .u16 more = 60000;\n.visible .entry k(.param .u64 out)\n{\n.reg .b32 %r<6>;\n"
        ".reg .b16 %h;\n.reg .b64 %rd<3>;\nld.param.u64 %rd0, [out];\nld.global.v2.b32 {%r0, %r1}, [table+8];\n"
        "mov.u64 %rd1, table;\nld.global.b32 %r2, [%rd1+4];\nld.const.u16 %h, [more];\ncvt.u32.u16 %r3, %h;\n"
        "add.u32 %r0, %r0, %r1;\nadd.u32 %r0, %r0, %r2;\nadd.u32 %r0, %r0, %r3;\natom.global.add.u32 %r4, [runs], 1;\n"
        "add.u32 %r0, %r0, %r4;\nst.global.u32 [%rd0], %r0;\nret;\n}\n";
    int (*variable)(uint64_t *, size_t *, void *, const char *), (*set)(void *, int, int), (*unload)(void *);
    void *call = NULL, *modules[2], *k, *params[] = {&buffer};
    uint64_t place = 0;
    (void)state;
    OK(cu.address("cuModuleGetGlobal", &call, 12000, 0, NULL));
    memcpy(&variable, &call, sizeof call);
    OK(cu.address("cuFuncSetAttribute", &call, 12000, 0, NULL));
    memcpy(&set, &call, sizeof call);
    OK(cu.address("cuModuleUnload", &call, 12000, 0, NULL));
    memcpy(&unload, &call, sizeof call);
    for (int i = 0; i < 2; i++) {
        OK(cu.load(&modules[i], text));
        OK(cu.function(&k, modules[i], "k"));
        OK(set(k, 14, 1)); /* clusters larger than every chip has room for */
        assert_int_equal(set(k, 14, 2), 1);
        for (uint32_t run = 0; run < 2; run++) {
            struct launch c = {.grid = {1, 1, 1}, .block = {1, 1, 1}};
            uint32_t got = 0, runs = 0;
            size_t bytes = 0;
            OK(cu.launch(&c, k, params, NULL));
            OK(cu.down(&got, buffer, sizeof got));
            assert_int_equal(got, 50 + 700 + 9000 + 60000 + run);
            OK(variable(&place, &bytes, modules[i], "runs"));
            assert_int_equal(bytes, 4);
            OK(cu.down(&runs, place, sizeof runs));
            assert_int_equal(runs, run + 1);
        }
        assert_int_equal(variable(&place, NULL, modules[i], "none"), 500);
    }
    for (int i = 0; i < 2; i++) OK(unload(modules[i]));
    uint32_t gone;
    assert_int_not_equal(cu.down(&gone, place, sizeof gone), 0);
}

/* Debug builds call the system: vprintf does nothing, an assertion that holds ends nothing. */
static void kernels_may_print(void **state) {
    static const char text[] =
        ".version 7.8\n.target sm_80\n.address_size 64\n.extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);\n"
        ".extern .func __assertfail (.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);\n"
        ".global .align 1 .b8 words[3] = {104, 105, 0};\n.visible .entry k(.param .u64 out)\n{\n.reg .b64 %rd<3>;\n"
        ".reg .b32 %r<2>;\n.reg .pred p;\nld.param.u64 %rd0, [out];\nmov.u64 %rd1, words;\n"
        "{\n.param .b64 a;\n.param .b64 b;\n.param .b32 got;\nst.param.b64 [a], %rd1;\nst.param.b64 [b], 0;\n"
        "call.uni (got), vprintf, (a, b);\n}\nmov.u32 %r0, 77;\nst.global.u32 [%rd0], %r0;\n"
        "ld.global.u32 %r1, [%rd0];\nsetp.eq.u32 p, %r1, 77;\n@p bra FINE;\n{\n.param .b64 a;\n.param .b64 b;\n.param .b32 c;\n"
        ".param .b64 d;\n.param .b64 e;\ncall.uni __assertfail, (a, b, c, d, e);\n}\nFINE:\nret;\n}\n";
    void *module, *k, *params[] = {&buffer};
    struct launch c = {.grid = {1, 1, 1}, .block = {1, 1, 1}};
    uint32_t got = 0;
    (void)state;
    OK(cu.load(&module, text));
    OK(cu.function(&k, module, "k"));
    OK(cu.launch(&c, k, params, NULL));
    OK(cu.down(&got, buffer, sizeof got));
    assert_int_equal(got, 77);
}

struct map {
    int type, rank, interleave, swizzle, l2, fill;
    uint64_t address, dim[5], stride[4];
    uint32_t box[5], step[5];
};
static int encode(const struct map *m) {
    static _Alignas(64) unsigned char out[128];
    return cu.tensor(out, m->type, (unsigned)m->rank, (void *)(uintptr_t)m->address, m->dim, m->stride, m->box, m->step,
                     m->interleave, m->swizzle, m->l2, m->fill);
}
static void tensor_maps_have_rules(void **state) {
    (void)state;
    const struct map good = {.type = 9, /* bf16 */
                             .rank = 3,
                             .swizzle = 3,
                             .l2 = 2,
                             .address = 0x10000,
                             .dim = {64, 1000, 8},
                             .stride = {128, 128000},
                             .box = {64, 128, 1},
                             .step = {1, 1, 1}};
    OK(encode(&good));
    struct map m = good;
    m.fill = 1;
    OK(encode(&m));
#define BAD(member, value)                                                                                             \
    m = good, m.member = value;                                                                                        \
    assert_int_equal(encode(&m), 1)
    BAD(address, 0x10008);
    BAD(address, 0);
    BAD(rank, 0);
    BAD(rank, 6);
    BAD(dim[1], 0);
    BAD(dim[1], (UINT64_C(1) << 32) + 1);
    BAD(stride[0], 136);
    BAD(stride[1], UINT64_C(1) << 40);
    BAD(box[1], 257);
    BAD(box[0], 0);
    BAD(box[0], 60); /* 120 bytes */
    BAD(box[0], 72); /* wider than the swizzle */
    BAD(step[1], 9);
    BAD(step[2], 0);
    BAD(swizzle, -1);
    BAD(l2, 4);
    BAD(fill, 2);
    BAD(type, 40);
    BAD(interleave, 2); /* wants the swizzle of 32 bytes */
    /* cuda.h's words forbid it, the driver of an H200 takes it: overlapping rows, size 1 with no stride */
    m = good, m.stride[0] = 112;
    OK(encode(&m));
    m = good, m.dim[2] = 1, m.stride[1] = 0;
    OK(encode(&m));
    BAD(swizzle, 4); /* atoms of 32 bytes are sm_100's */
    m = good, m.type = 1, m.fill = 1;
    assert_int_equal(encode(&m), 1); /* whole numbers have no NaN */
    m = good, m.rank = 2, m.interleave = 1;
    assert_int_equal(encode(&m), 1);
}

/* ---- in processes of their own: what the environment says when the driver starts ---- */

static int in_a_process(int (*f)(void), const char *name, const char *value) {
    fflush(NULL);
    pid_t pid = fork();
    int status = -1;
    if (!pid) {
        setenv(name, value, 1);
        memset(&cu, 0, sizeof cu);
        _exit(f());
    }
    return pid < 0 || waitpid(pid, &status, 0) != pid || status;
}
static int fails_at_second_alloc(void) {
    uint64_t address = 0;
    return start() || cu.alloc(&address, 64) != 2 || cu.alloc(&address, 64);
}
static int fails_at_start(void) { return start() != 999; }
static int faults_at_second_kernel(void) { /* and stays in the context */
    return start() || launch(NULL, 1) || launch(NULL, 1) != 700 || cu.wait_all() != 700 || cu.freed(buffer) != 700;
}
static int is_an_a100(void) {
    int major = 0, shared = 0, sms = 0;
    struct {
        int id;
        char pad[4];
        unsigned cluster[16];
    } cluster = {.id = 4, .cluster = {2, 1, 1}};
    struct launch c = {.grid = {2, 1, 1}, .block = {64, 1, 1}, .attributes = &cluster, .n_attributes = 1};
    uint32_t v = 0;
    void *params[] = {&buffer, &v}, *module = NULL;
    static const char newer[] = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k()\n{\nret;\n}\n";
    const struct map m = {.type = 9, .rank = 1, .address = 0x10000, .dim = {64}, .box = {64}, .step = {1}};
    return start() || cu.attribute(&major, 75, 0) || major != 8 || cu.attribute(&shared, 97, 0) ||
           shared != 163 << 10 || cu.attribute(&sms, 16, 0) || sms != 108 || cu.launch(&c, kernel, params, NULL) != 1 ||
           cu.load(&module, newer) != 218 || encode(&m) != 801;
}
static int is_a_b200(void) {
    int major = 0, sms = 0;
    return start() || cu.attribute(&major, 75, 0) || major != 10 || cu.attribute(&sms, 16, 0) || sms != 148;
}
static int has_four_sms(void) {
    int sms = 0;
    return start() || cu.attribute(&sms, 16, 0) || sms != 4;
}
static int is_unknown(void) { return start() != 100; }
static void environment(void **state) {
    (void)state;
    OK(in_a_process(fails_at_second_alloc, "ATTNSIM_FAIL", "cuMemAlloc:2:2"));
    OK(in_a_process(fails_at_start, "ATTNSIM_FAIL", "any:2"));
    OK(in_a_process(faults_at_second_kernel, "ATTNSIM_FAIL", "kernel:2"));
    OK(in_a_process(is_an_a100, "ATTNSIM_GPU", "a100"));
    OK(in_a_process(is_a_b200, "ATTNSIM_GPU", "b200"));
    OK(in_a_process(is_unknown, "ATTNSIM_GPU", "abacus"));
    OK(in_a_process(has_four_sms, "ATTNSIM_SMS", "4"));
}

int main(void) {
    const struct CMUnitTest first[] = {cmocka_unit_test(environment)}; /* before this process opens the driver */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_order_streams),   cmocka_unit_test(a_missing_wait_shows),
        cmocka_unit_test(graphs_repeat),          cmocka_unit_test(graphs_of_nodes),
        cmocka_unit_test(recordings_are_guarded), cmocka_unit_test(calls_have_addresses),
        cmocka_unit_test(libraries_have_kernels), cmocka_unit_test(tensor_maps_have_rules),
        cmocka_unit_test(launches_take_hints),    cmocka_unit_test(modules_have_variables),
        cmocka_unit_test(kernels_may_print),
    };
    setenv("ATTNSIM_QUIET", "1", 1);
    int r = cmocka_run_group_tests(first, NULL, NULL);
    return r + cmocka_run_group_tests(tests, open_driver, NULL);
}
