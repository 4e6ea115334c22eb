/* SPDX-License-Identifier: MIT
 * What a test sees of the stand-in driver (cuda_stub.c): counters, the last launch, and failures on demand. */
#ifndef CUDA_STUB_H
#define CUDA_STUB_H
#include "gpu/gpu_calls.h"

/* A launch, or a fill (function "fill", grid the bytes). */
struct cuda_stub_launch {
    char function[96];
    unsigned grid[3], threads, cluster, shared_bytes;
    cu_stream stream;
    uint8_t params[64]; /* their start */
};
struct cuda_stub {
    /* CUDA_STUB_FAIL at cuInit: "symbol:n[,symbol:n]": the n-th call of a symbol from then on returns 999. */
    char fail_name[2][64];
    int64_t fail_in[2];
    int64_t failed;                                       /* failures that happened */
    int64_t retained, modules, allocations, synchronized; /* live objects; waits */
    int64_t loads, launches, sets, misuse, in_child;      /* in_child: calls of a process that forked */
    int32_t params_bytes;                                 /* how much of the parameters to keep */
    uint8_t params[4096];
    struct cu_launch_config config;
    struct cu_launch_attribute attribute;
    char function[128], image[16];               /* of the last launch; first bytes of the last image */
    int64_t streams, graphs, recorded, replayed; /* live objects; launches that went into a graph, that came from one */
    int64_t instances, updates, replays;         /* graphs instantiated; changes of their nodes; launches of them */
    int32_t n_log;                               /* the first launches and fills since a test set it to 0 */
    struct cuda_stub_launch log[64];
};
/* Exported by the library: dlsym(lib, "cuda_stub_state"). Streams with this handle record a graph. */
struct cuda_stub *cuda_stub_state(void);
#define CUDA_STUB_CAPTURING ((void *)(uintptr_t)0x77)
/* A context of some other owner, to be pushed by a test. */
#define CUDA_STUB_FOREIGN ((cu_context)(uintptr_t)0x10)
#endif
