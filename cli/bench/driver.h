/* SPDX-License-Identifier: MIT
 * The calls of the driver that `attn bench` makes itself, for its clock (clock.c) and for the floor of an
 * execution (floor.c), and what they are given. The library's own calls are not among them. */
#ifndef ATTN_CLI_BENCH_DRIVER_H
#define ATTN_CLI_BENCH_DRIVER_H
#include <stddef.h>
#include <stdint.h>

struct attn_cli_launch_attribute {
    int id;
    char pad[4];
    union {
        unsigned cluster[3];
        uint64_t bytes[8];
    } value;
};
struct attn_cli_launch_config {
    unsigned grid[3], block[3], shared_bytes;
    void *stream;
    struct attn_cli_launch_attribute *attributes;
    unsigned n_attributes;
};
struct attn_cli_kernel_node {
    void *function;
    unsigned grid[3], block[3], shared_bytes;
    void **params, **extra;
    void *kernel, *context;
};
struct attn_cli_fill_node {
    unsigned long long to;
    size_t pitch;
    unsigned value, element;
    size_t width, height;
};
_Static_assert(sizeof(void *) != 8 ||
                   (sizeof(struct attn_cli_launch_attribute) == 72 && sizeof(struct attn_cli_launch_config) == 56 &&
                    sizeof(struct attn_cli_kernel_node) == 72 && sizeof(struct attn_cli_fill_node) == 40),
               "the driver's layout");

/* X(member, exported symbol, parameters); handles are pointers, results int, addresses 64 bits. A driver has all of
 * CLOCK; those of FLOOR may be missing. */
#define ATTN_CLI_DRIVER_CLOCK(X)                                                                                       \
    X(init, cuInit, (unsigned))                                                                                        \
    X(version, cuDriverGetVersion, (int *))                                                                            \
    X(get, cuDeviceGet, (int *, int))                                                                                  \
    X(retain, cuDevicePrimaryCtxRetain, (void **, int))                                                                \
    X(release, cuDevicePrimaryCtxRelease_v2, (int))                                                                    \
    X(push, cuCtxPushCurrent_v2, (void *))                                                                             \
    X(pop, cuCtxPopCurrent_v2, (void **))                                                                              \
    X(stream_create, cuStreamCreate, (void **, unsigned))                                                              \
    X(stream_destroy, cuStreamDestroy_v2, (void *))                                                                    \
    X(event_create, cuEventCreate, (void **, unsigned))                                                                \
    X(event_destroy, cuEventDestroy_v2, (void *))                                                                      \
    X(event_record, cuEventRecord, (void *, void *))                                                                   \
    X(event_wait, cuEventSynchronize, (void *))                                                                        \
    X(event_elapsed, cuEventElapsedTime, (float *, void *, void *))                                                    \
    X(fill, cuMemsetD8Async, (unsigned long long, unsigned char, size_t, void *))
#define ATTN_CLI_DRIVER_FLOOR(X)                                                                                       \
    X(record_begin, cuStreamBeginCapture_v2, (void *, int))                                                            \
    X(record_end, cuStreamEndCapture, (void *, void **))                                                               \
    X(graph_destroy, cuGraphDestroy, (void *))                                                                         \
    X(graph_nodes, cuGraphGetNodes, (void *, void **, size_t *))                                                       \
    X(node_type, cuGraphNodeGetType, (void *, int *))                                                                  \
    X(node_kernel, cuGraphKernelNodeGetParams_v2, (void *, struct attn_cli_kernel_node *))                             \
    X(node_attribute, cuGraphKernelNodeGetAttribute, (void *, int, void *))                                            \
    X(node_fill, cuGraphMemsetNodeGetParams, (void *, struct attn_cli_fill_node *))                                    \
    X(launch, cuLaunchKernelEx, (const struct attn_cli_launch_config *, void *, void **, void **))

struct attn_cli_driver {
#define ATTN_CLI_DRIVER_MEMBER(name, symbol, parameters) int(*name) parameters;
    ATTN_CLI_DRIVER_CLOCK(ATTN_CLI_DRIVER_MEMBER)
    ATTN_CLI_DRIVER_FLOOR(ATTN_CLI_DRIVER_MEMBER)
#undef ATTN_CLI_DRIVER_MEMBER
    const char *lacks; /* the first of FLOOR that is missing; NULL: none */
};
#endif
