/* SPDX-License-Identifier: MIT
 * The calls of the CUDA driver that an application with streams and graphs makes, as the GPU tests make them.
 * tests/unit/t_driver_abi.c holds the prototypes against the toolkit. */
#ifndef GPU_CALLS_H
#define GPU_CALLS_H

#include "cuda/backend/driver.h"

enum { GPU_NON_BLOCKING = 1, GPU_CAPTURE_GLOBAL = 0 };

/* X(exported symbol, parameters). */
#define GPU_CALLS(X)                                                                                                   \
    X(cuInit, (unsigned))                                                                                              \
    X(cuDeviceGet, (cu_device *, int))                                                                                 \
    X(cuDevicePrimaryCtxRetain, (cu_context *, cu_device))                                                             \
    X(cuDevicePrimaryCtxRelease_v2, (cu_device))                                                                       \
    X(cuCtxPushCurrent_v2, (cu_context))                                                                               \
    X(cuCtxPopCurrent_v2, (cu_context *))                                                                              \
    X(cuStreamCreate, (cu_stream *, unsigned))                                                                         \
    X(cuStreamDestroy_v2, (cu_stream))                                                                                 \
    X(cuStreamSynchronize, (cu_stream))                                                                                \
    X(cuStreamBeginCapture_v2, (cu_stream, cu_capture_mode))                                                           \
    X(cuStreamEndCapture, (cu_stream, cu_graph *))                                                                     \
    X(cuGraphInstantiateWithFlags, (cu_exec *, cu_graph, unsigned long long))                                          \
    X(cuGraphLaunch, (cu_exec, cu_stream))                                                                             \
    X(cuGraphExecDestroy, (cu_exec))                                                                                   \
    X(cuGraphDestroy, (cu_graph))
#endif
