/* SPDX-License-Identifier: MIT
 * What constructors of a program register: images of device code, kernels, variables; and the configurations that
 * `kernel<<<...>>>` pushes. An image is loaded as a module when one of its kernels or variables is first used, once a
 * device. */
#include "runtime/runtime.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct managed { /* a variable whose address the host reads from a pointer */
    void **pointer;
    const char *name;
    struct managed *next;
};
struct image {
    const void *data;
    void *modules[RT_DEVICES];
    struct managed *managed;
};
struct entry { /* a kernel or a variable */
    const void *host;
    struct image *image;
    const char *name; /* the host's, for as long as it runs */
    void *functions[RT_DEVICES];
    struct entry *next;
};
enum { BUCKETS = 1024, DEPTH = 16 };
struct table {
    struct entry *buckets[BUCKETS];
};
static struct table kernels, variables;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void *zeroed(size_t bytes) {
    void *p = calloc(1, bytes);
    if (!p) abort();
    return p;
}
static struct entry **bucket(struct table *t, const void *host) {
    return &t->buckets[((uintptr_t)host >> 2) * UINT64_C(0x9e3779b97f4a7c15) >> 54];
}
static struct entry *find(struct table *t, const void *host) {
    struct entry *e = *bucket(t, host);
    while (e && e->host != host) e = e->next;
    return e;
}
static void enter(struct table *t, struct entry *e) {
    struct entry **head = bucket(t, e->host);
    e->next = *head;
    *head = e;
}
static void add(struct table *t, const void *host, void **image, const char *name) {
    struct entry *e = zeroed(sizeof *e);
    *e = (struct entry){.host = host, .image = (struct image *)(void *)image, .name = name};
    enter(t, e);
}

/* The module of the thread's device; under the lock. */
static int load(struct image *image, void **module) {
    void **own = &image->modules[sim_rt_device()];
    int r = *own ? RT_SUCCESS : cuModuleLoadData(own, image->data);
    if (r) return r;
    *module = *own;
    for (struct managed *m = image->managed; m; m = m->next) {
        uint64_t address = 0;
        if (*m->pointer) continue;
        if ((r = cuModuleGetGlobal_v2(&address, NULL, *own, m->name)) != 0) return r;
        *m->pointer = (void *)(uintptr_t)address;
    }
    return RT_SUCCESS;
}

int sim_rt_function(const void *host, void **function) {
    int r = sim_rt_enter();
    if (r) return r;
    pthread_mutex_lock(&lock);
    struct entry *e = find(&kernels, host);
    void **own = e ? &e->functions[sim_rt_device()] : NULL, *module = NULL;
    if (!e) r = RT_INVALID_FUNCTION;
    if (e && !*own) {
        r = load(e->image, &module);
        if (!r) r = cuModuleGetFunction(own, module, e->name);
    }
    if (!r) *function = *own;
    pthread_mutex_unlock(&lock);
    return r;
}
int sim_rt_symbol(const void *host, uint64_t *address, size_t *bytes) {
    int r = sim_rt_enter();
    if (r) return r;
    void *module = NULL;
    pthread_mutex_lock(&lock);
    struct entry *e = find(&variables, host);
    r = e ? load(e->image, &module) : RT_INVALID_SYMBOL;
    if (!r) r = cuModuleGetGlobal_v2(address, bytes, module, e->name);
    pthread_mutex_unlock(&lock);
    return r;
}
const char *sim_rt_kernel_name(const void *host) {
    pthread_mutex_lock(&lock);
    const struct entry *e = find(&kernels, host);
    pthread_mutex_unlock(&lock);
    return e ? e->name : NULL;
}

/* ---- called by nvcc's host code ---- */

#define EXPORTED __attribute__((visibility("default")))
EXPORTED void **__cudaRegisterFatBinary(const void *wrapper);
EXPORTED void **__cudaRegisterFatBinary(const void *wrapper) {
    struct {
        unsigned magic, version;
        const void *data, *linked;
    } w;
    memcpy(&w, wrapper, sizeof w);
    struct image *image = zeroed(sizeof *image);
    image->data = w.data;
    return (void **)(void *)image;
}
EXPORTED void __cudaRegisterFatBinaryEnd(void **image);
EXPORTED void __cudaRegisterFatBinaryEnd(void **image) { (void)image; }
EXPORTED void __cudaUnregisterFatBinary(void **image); /* at exit, when nothing is loaded any more */
EXPORTED void __cudaUnregisterFatBinary(void **image) { (void)image; }
EXPORTED char __cudaInitModule(void **image);
EXPORTED char __cudaInitModule(void **image) { /* before the host uses a managed variable */
    void *module;
    if (sim_rt_enter()) return 0;
    pthread_mutex_lock(&lock);
    const int r = load((struct image *)(void *)image, &module);
    pthread_mutex_unlock(&lock);
    return !r;
}
EXPORTED void __cudaRegisterFunction(void **image, const char *host, char *device, const char *name, int limit,
                                     void *tid, void *bid, void *block, void *grid, int *warp_size);
EXPORTED void __cudaRegisterFunction(void **image, const char *host, char *device, const char *name, int limit,
                                     void *tid, void *bid, void *block, void *grid, int *warp_size) {
    (void)device, (void)limit, (void)tid, (void)bid, (void)block, (void)grid, (void)warp_size;
    add(&kernels, host, image, name);
}
EXPORTED void __cudaRegisterVar(void **image, char *host, char *device, const char *name, int is_extern, size_t bytes,
                                int is_constant, int is_global);
EXPORTED void __cudaRegisterVar(void **image, char *host, char *device, const char *name, int is_extern, size_t bytes,
                                int is_constant, int is_global) {
    (void)device, (void)is_extern, (void)bytes, (void)is_constant, (void)is_global;
    add(&variables, host, image, name);
}
EXPORTED void __cudaRegisterManagedVar(void **image, void **pointer, char *device, const char *name, int is_extern,
                                       size_t bytes, int is_constant, int is_global);
EXPORTED void __cudaRegisterManagedVar(void **image, void **pointer, char *device, const char *name, int is_extern,
                                       size_t bytes, int is_constant, int is_global) {
    struct image *owner = (struct image *)(void *)image;
    struct managed *m = zeroed(sizeof *m);
    (void)device, (void)is_extern, (void)bytes, (void)is_constant, (void)is_global;
    *m = (struct managed){pointer, name, owner->managed};
    owner->managed = m;
    *pointer = NULL;
    add(&variables, pointer, image, name);
}

struct configuration {
    struct rt_dim3 grid, block;
    size_t shared_bytes;
    void *stream;
};
static _Thread_local struct configuration pushed[DEPTH];
static _Thread_local int n_pushed;
EXPORTED unsigned __cudaPushCallConfiguration(struct rt_dim3 grid, struct rt_dim3 block, size_t shared, void *stream);
EXPORTED unsigned __cudaPushCallConfiguration(struct rt_dim3 grid, struct rt_dim3 block, size_t shared, void *stream) {
    if (n_pushed == DEPTH) return 1; /* the launch is left out */
    pushed[n_pushed++] = (struct configuration){grid, block, shared, stream};
    return 0;
}
RT_CALL(__cudaPopCallConfiguration, struct rt_dim3 *grid, struct rt_dim3 *block, size_t *shared, void **stream) {
    if (!n_pushed) return sim_rt_result(RT_INVALID_VALUE);
    const struct configuration *c = &pushed[--n_pushed];
    *grid = c->grid, *block = c->block, *shared = c->shared_bytes, *stream = c->stream;
    return RT_SUCCESS;
}
/* Handles of kernels are the host's addresses. */
RT_CALL(__cudaGetKernel, const void **kernel, const void *host) {
    *kernel = host;
    return RT_SUCCESS;
}
RT_CALL(cudaGetKernel, const void **kernel, const void *host) {
    if (!kernel || !sim_rt_kernel_name(host)) return sim_rt_result(RT_INVALID_FUNCTION);
    *kernel = host;
    return RT_SUCCESS;
}
RT_CALL(cudaGetFuncBySymbol, void **function, const void *host) {
    return sim_rt_result(sim_rt_function(host, function));
}
RT_CALL(cudaFuncGetName, const char **name, const void *host) {
    if (!name || !(*name = sim_rt_kernel_name(host))) return sim_rt_result(RT_INVALID_FUNCTION);
    return RT_SUCCESS;
}

/* ---- libraries: images that the host loads. A kernel's handle is its entry, which counts as its address. ---- */

struct image *sim_rt_image(const void *data) {
    struct image *image = zeroed(sizeof *image);
    image->data = data;
    return image;
}
int sim_rt_module(struct image *image, void **module) {
    int r = sim_rt_enter();
    if (r) return r;
    pthread_mutex_lock(&lock);
    r = load(image, module);
    pthread_mutex_unlock(&lock);
    return r;
}
int sim_rt_library_kernel(struct image *image, const char *name, const void **kernel) {
    void *module = NULL, *function = NULL;
    int r = sim_rt_module(image, &module);
    if (!r) r = cuModuleGetFunction(&function, module, name);
    if (r) return r;
    struct entry *e = zeroed(sizeof *e);
    *e = (struct entry){.host = e, .image = image, .name = strdup(name)};
    e->functions[sim_rt_device()] = function;
    if (!e->name) abort();
    pthread_mutex_lock(&lock);
    enter(&kernels, e);
    pthread_mutex_unlock(&lock);
    *kernel = e;
    return RT_SUCCESS;
}
