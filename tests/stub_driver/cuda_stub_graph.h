/* SPDX-License-Identifier: MIT
 * Inside the stand-in driver: a recorded graph, and what each call begins with. Tests see cuda_stub.h alone. */
#ifndef CUDA_STUB_GRAPH_H
#define CUDA_STUB_GRAPH_H
#include "stub_driver/cuda_stub.h"

#include <stdatomic.h>

enum { MAX_LAUNCHES = 64 };
struct cu_function_object {
    char name[128];
    int shared_limit;
};
struct node {
    struct cuda_stub_launch launch;
    cu_function function; /* NULL: a fill of `to` */
    cu_address to;
    int32_t index; /* in its graph, and in instances of it */
    uint8_t apart; /* 1: follows no other */
    void *params[1];
};
struct cu_graph_object {
    int32_t n;
    _Atomic int32_t busy; /* of an instance: a call works on it */
    struct node node[MAX_LAUNCHES];
};
/* An instance is no business of two threads at a time. */
static inline int cuda_stub_take(struct cu_graph_object *g) {
    const int busy = atomic_exchange(&g->busy, 1) != 0;
    for (int i = 0; i < 100 && !busy; i++) atomic_load(&g->busy); /* long enough to be met */
    return busy;
}
static inline void cuda_stub_give(struct cu_graph_object *g) { atomic_store(&g->busy, 0); }

/* Bookkeeping of every call: a result other than 0 is returned at once. misuse() counts and returns r. */
cu_result cuda_stub_enter(const char *name, int needs_context);
cu_result cuda_stub_misuse(cu_result r);
int cuda_stub_is_stream(cu_stream stream);
int cuda_stub_forbids_unaware(void); /* a stream records, and the thread has not said that it knows */
void cuda_stub_count(int64_t *counter, int64_t n);

#define ENTER(needs_context)                                                                                           \
    do {                                                                                                               \
        cu_result r_ = cuda_stub_enter(__func__, needs_context);                                                       \
        if (r_) return r_;                                                                                             \
    } while (0)
#endif
