/* SPDX-License-Identifier: MIT
 * Inside the stand-in driver: a recorded graph. Tests see cuda_stub.h alone. */
#ifndef CUDA_STUB_GRAPH_H
#define CUDA_STUB_GRAPH_H
#include "stub_driver/cuda_stub.h"

enum { MAX_LAUNCHES = 64 };
struct node {
    struct cuda_stub_launch launch;
    cu_function function; /* NULL: a fill of `to` */
    cu_address to;
    void *params[1];
};
struct cu_graph_object {
    int32_t n;
    struct node node[MAX_LAUNCHES];
};
#endif
