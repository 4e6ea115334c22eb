/* SPDX-License-Identifier: MIT
 * The CUDA driver as this library sees it: a table of function pointers filled by dlopen, and the few types, numbers
 * and struct layouts of its binary interface that calls need. tests/unit/t_driver_abi.c holds them against the toolkit.
 */
#ifndef ATTN_CUDA_DRIVER_H
#define ATTN_CUDA_DRIVER_H
#include "attn.h"

#ifndef ATTN_CUDA_TOOLKIT_TYPES /* the test of prototypes puts the toolkit's own types in their place */
typedef int cu_result;
typedef int cu_device;
typedef int cu_device_attribute;
typedef int cu_function_attribute;
typedef int cu_jit_option;
typedef int cu_capture_status;
typedef int cu_capture_mode;
typedef unsigned long long cu_address;
typedef struct cu_context_object *cu_context;
typedef struct cu_module_object *cu_module;
typedef struct cu_function_object *cu_function;
typedef struct cu_stream_object *cu_stream;
typedef struct cu_launch_config cu_config;
typedef struct cu_graph_object *cu_graph;
typedef struct cu_exec_object *cu_exec;
typedef struct cu_node_object *cu_node;
typedef struct cu_edge cu_edge;
typedef int cu_launch_attribute_id;
typedef union cu_launch_value cu_launch_value;
typedef struct cu_kernel_node cu_kernel_node;
typedef struct cu_fill_node cu_fill_node;
typedef struct cu_tensor_map cu_tensor_map;
typedef int cu_tensor_type;
typedef int cu_tensor_interleave;
typedef int cu_tensor_swizzle;
typedef int cu_tensor_promotion;
typedef int cu_tensor_fill;
#endif

/* Results that are told apart. All others are words from cuGetErrorString. */
enum {
    CU_OK = 0,
    CU_BAD_VALUE = 1,
    CU_NO_MEMORY = 2,
    CU_NO_DEVICE = 100,
    CU_BAD_IMAGE = 200,
    CU_NO_BINARY = 209,
    CU_UNCORRECTABLE_ECC = 214,
    CU_BAD_PTX = 218,
    CU_NO_JIT_COMPILER = 221,
    CU_PTX_TOO_NEW = 222,
    CU_ILLEGAL_ADDRESS = 700,
    CU_LAUNCH_TIMEOUT = 702,
    CU_DEVICE_ASSERT = 710,
    CU_HARDWARE_STACK = 714, /* 714 to 719: illegal instruction, misaligned address, ..., launch failed */
    CU_LAUNCH_FAILED = 719,
};
enum { /* of a device */
       CU_N_SMS = 16,
       CU_L2_BYTES = 38,
       CU_MAJOR = 75,
       CU_MINOR = 76,
       CU_SHARED_PER_SM = 81,
       CU_SHARED_PER_BLOCK = 97, /* on request, see CU_MAX_DYNAMIC_SHARED */
};
enum { CU_MAX_DYNAMIC_SHARED = 8 };                        /* of a function */
enum { CU_JIT_ERROR_TEXT = 5, CU_JIT_ERROR_BYTES = 6 };    /* of cuModuleLoadDataEx */
enum { CU_ATTRIBUTE_CLUSTER = 4, CU_ATTRIBUTE_EARLY = 6 }; /* of a launch; 6: programmatic stream serialization */
enum { CU_CAPTURE_NONE = 0 };                              /* of a stream */
enum { CU_CAPTURE_RELAXED = 2 };                           /* of a thread */
enum { CU_TENSOR_BF16 = 9 };                               /* of a tensor map; its swizzles, promotions: */
enum { CU_SWIZZLE_NONE = 0, CU_SWIZZLE_32B, CU_SWIZZLE_64B, CU_SWIZZLE_128B };
enum { CU_PROMOTE_NONE = 0, CU_PROMOTE_64B, CU_PROMOTE_128B, CU_PROMOTE_256B };

union cu_launch_value {
    unsigned cluster[3]; /* x, y, z */
    int early;
    char bytes[64];
    uint64_t align;
};
struct cu_launch_attribute {
    int id; /* CU_ATTRIBUTE_* */
    char pad[4];
    union cu_launch_value value;
};
struct cu_launch_config {
    unsigned grid[3], block[3];
    unsigned shared_bytes;
    void *stream;
    struct cu_launch_attribute *attributes;
    unsigned n_attributes;
};
/* Nodes of graphs: a kernel, a fill. */
struct cu_kernel_node {
    cu_function function;
    unsigned grid[3], block[3], shared_bytes;
    void **params, **extra;
    void *kernel;
    cu_context context;
};
struct cu_fill_node {
    cu_address to;
    size_t pitch;
    unsigned value, element;
    size_t width, height;
};
/* What the second of two nodes waits for: 0 the first one's end. */
struct cu_edge {
    uint8_t from_port, to_port, type, reserved[5];
};
enum { CU_PORT_EARLY = 1, CU_EDGE_EARLY = 1 }; /* CTAs of the first may still run; the second waits by itself */
/* A TMA descriptor: opaque, passed by value in a kernel's parameters. */
struct cu_tensor_map {
    _Alignas(128) uint64_t opaque[16];
};
_Static_assert(sizeof(struct cu_launch_attribute) == 72 && sizeof(struct cu_tensor_map) == 128, "the driver's layout");
_Static_assert(sizeof(void *) != 8 || (sizeof(struct cu_launch_config) == 56 && sizeof(struct cu_kernel_node) == 72 &&
                                       sizeof(struct cu_fill_node) == 40),
               "the driver's layout");

/* X(name in the driver's manual, exported symbol, parameters). */
#define ATTN_CUDA_CALLS(X)                                                                                             \
    X(cuInit, cuInit, (unsigned))                                                                                      \
    X(cuDriverGetVersion, cuDriverGetVersion, (int *))                                                                 \
    X(cuGetErrorName, cuGetErrorName, (cu_result, const char **))                                                      \
    X(cuGetErrorString, cuGetErrorString, (cu_result, const char **))                                                  \
    X(cuDeviceGetCount, cuDeviceGetCount, (int *))                                                                     \
    X(cuDeviceGet, cuDeviceGet, (cu_device *, int))                                                                    \
    X(cuDeviceGetName, cuDeviceGetName, (char *, int, cu_device))                                                      \
    X(cuDeviceTotalMem, cuDeviceTotalMem_v2, (size_t *, cu_device))                                                    \
    X(cuDeviceGetAttribute, cuDeviceGetAttribute, (int *, cu_device_attribute, cu_device))                             \
    X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (cu_context *, cu_device))                                   \
    X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (cu_device))                                            \
    X(cuCtxPushCurrent, cuCtxPushCurrent_v2, (cu_context))                                                             \
    X(cuCtxPopCurrent, cuCtxPopCurrent_v2, (cu_context *))                                                             \
    X(cuCtxGetCurrent, cuCtxGetCurrent, (cu_context *))                                                                \
    X(cuCtxSynchronize, cuCtxSynchronize, (void))                                                                      \
    X(cuMemAlloc, cuMemAlloc_v2, (cu_address *, size_t))                                                               \
    X(cuMemFree, cuMemFree_v2, (cu_address))                                                                           \
    X(cuMemcpyHtoD, cuMemcpyHtoD_v2, (cu_address, const void *, size_t))                                               \
    X(cuMemcpyDtoH, cuMemcpyDtoH_v2, (void *, cu_address, size_t))                                                     \
    X(cuMemcpy, cuMemcpy, (cu_address, cu_address, size_t))                                                            \
    X(cuMemsetD8Async, cuMemsetD8Async, (cu_address, unsigned char, size_t, cu_stream))                                \
    X(cuModuleLoadDataEx, cuModuleLoadDataEx, (cu_module *, const void *, unsigned, cu_jit_option *, void **))         \
    X(cuModuleUnload, cuModuleUnload, (cu_module))                                                                     \
    X(cuModuleGetFunction, cuModuleGetFunction, (cu_function *, cu_module, const char *))                              \
    X(cuFuncSetAttribute, cuFuncSetAttribute, (cu_function, cu_function_attribute, int))                               \
    X(cuLaunchKernelEx, cuLaunchKernelEx, (const cu_config *, cu_function, void **, void **))                          \
    X(cuStreamGetId, cuStreamGetId, (cu_stream, unsigned long long *))                                                 \
    X(cuStreamIsCapturing, cuStreamIsCapturing, (cu_stream, cu_capture_status *))                                      \
    X(cuStreamSynchronize, cuStreamSynchronize, (cu_stream))                                                           \
    X(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, (cu_capture_mode *))

/* Of graphs that plans keep (graph_cache.c). Drivers before 12.3 lack one of them: no such graphs there. */
#define ATTN_CUDA_GRAPH_CALLS(X)                                                                                       \
    X(cuGraphCreate, cuGraphCreate, (cu_graph *, unsigned))                                                            \
    X(cuGraphAddKernelNode, cuGraphAddKernelNode_v2,                                                                   \
      (cu_node *, cu_graph, const cu_node *, size_t, const cu_kernel_node *))                                          \
    X(cuGraphAddMemsetNode, cuGraphAddMemsetNode,                                                                      \
      (cu_node *, cu_graph, const cu_node *, size_t, const cu_fill_node *, cu_context))                                \
    X(cuGraphKernelNodeSetAttribute, cuGraphKernelNodeSetAttribute,                                                    \
      (cu_node, cu_launch_attribute_id, const cu_launch_value *))                                                      \
    X(cuGraphAddDependencies, cuGraphAddDependencies_v2,                                                               \
      (cu_graph, const cu_node *, const cu_node *, const cu_edge *, size_t))                                           \
    X(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, (cu_exec *, cu_graph, unsigned long long))             \
    X(cuGraphExecKernelNodeSetParams, cuGraphExecKernelNodeSetParams_v2, (cu_exec, cu_node, const cu_kernel_node *))   \
    X(cuGraphExecMemsetNodeSetParams, cuGraphExecMemsetNodeSetParams,                                                  \
      (cu_exec, cu_node, const cu_fill_node *, cu_context))                                                            \
    X(cuGraphLaunch, cuGraphLaunch, (cu_exec, cu_stream))                                                              \
    X(cuGraphExecDestroy, cuGraphExecDestroy, (cu_exec))                                                               \
    X(cuGraphDestroy, cuGraphDestroy, (cu_graph))

/* Of tensor maps. A driver without it: no kernel that needs one. */
#define ATTN_CUDA_TENSOR_CALLS(X)                                                                                      \
    X(cuTensorMapEncodeTiled, cuTensorMapEncodeTiled,                                                                  \
      (cu_tensor_map *, cu_tensor_type, unsigned, void *, const uint64_t *, const uint64_t *, const uint32_t *,        \
       const uint32_t *, cu_tensor_interleave, cu_tensor_swizzle, cu_tensor_promotion, cu_tensor_fill))

struct attn_cuda_driver {
    void *library;
    int version;     /* 12040 = 12.4 */
    uint8_t graphs;  /* 1: it has all of ATTN_CUDA_GRAPH_CALLS */
    uint8_t tensors; /* 1: it has all of ATTN_CUDA_TENSOR_CALLS */
#define ATTN_CUDA_MEMBER(name, symbol, parameters) cu_result(*name) parameters;
    ATTN_CUDA_CALLS(ATTN_CUDA_MEMBER)
    ATTN_CUDA_GRAPH_CALLS(ATTN_CUDA_MEMBER)
    ATTN_CUDA_TENSOR_CALLS(ATTN_CUDA_MEMBER)
#undef ATTN_CUDA_MEMBER
};

/* Load the library (NULL = the system's) and start it. ATTN_E_NO_DRIVER or ATTN_E_NO_DEVICE, nothing left open. */
attn_status attn_cuda_driver_open(struct attn_cuda_driver *driver, const char *path);
void attn_cuda_driver_close(struct attn_cuda_driver *driver);

/* Record that `call` failed at doing `what`, in the driver's words. Results with a meaning of their own (no memory, a
 * fault of the device, an image that the driver cannot load) get their status, all others `otherwise`. Returns it. */
attn_status attn_cuda_fail(const struct attn_cuda_driver *driver, cu_result result, attn_status otherwise,
                           const char *call, const char *format, ...) __attribute__((format(printf, 5, 6), cold));
#endif
