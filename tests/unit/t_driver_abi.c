/* SPDX-License-Identifier: MIT
 * The hand-written part of the CUDA driver's binary interface against the toolkit's header: prototypes, numbers, sizes
 * and offsets, all at compile time. Skipped where there is no toolkit. */
#include <stdio.h>

#if defined(ATTN_TEST_CUDA_HEADER)
#include <stddef.h>
#include <stdint.h>

#include <cuda.h>

/* The prototypes of driver.h with the toolkit's types must be the toolkit's prototypes. */
#define ATTN_CUDA_TOOLKIT_TYPES
typedef CUresult cu_result;
typedef CUdevice cu_device;
typedef CUdevice_attribute cu_device_attribute;
typedef CUfunction_attribute cu_function_attribute;
typedef CUjit_option cu_jit_option;
typedef CUstreamCaptureStatus cu_capture_status;
typedef CUstreamCaptureMode cu_capture_mode;
typedef CUdeviceptr cu_address;
typedef CUcontext cu_context;
typedef CUmodule cu_module;
typedef CUfunction cu_function;
typedef CUstream cu_stream;
typedef CUlaunchConfig cu_config;
typedef CUgraph cu_graph;
typedef CUgraphExec cu_exec;
typedef CUgraphNode cu_node;
typedef CUgraphEdgeData cu_edge;
typedef CUlaunchAttributeID cu_launch_attribute_id;
typedef CUlaunchAttributeValue cu_launch_value;
typedef CUDA_KERNEL_NODE_PARAMS cu_kernel_node;
typedef CUDA_MEMSET_NODE_PARAMS cu_fill_node;
typedef CUtensorMap cu_tensor_map;
typedef CUtensorMapDataType cu_tensor_type;
typedef CUtensorMapInterleave cu_tensor_interleave;
typedef CUtensorMapSwizzle cu_tensor_swizzle;
typedef CUtensorMapL2promotion cu_tensor_promotion;
typedef CUtensorMapFloatOOBfill cu_tensor_fill;
#include "cuda/backend/driver.h"

#include "gpu/gpu_calls.h"

#define PROTOTYPE(name, symbol, parameters)                                                                            \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&symbol), CUresult(*) parameters), #symbol);
ATTN_CUDA_CALLS(PROTOTYPE)
ATTN_CUDA_GRAPH_CALLS(PROTOTYPE)
ATTN_CUDA_TENSOR_CALLS(PROTOTYPE)
#define TEST_PROTOTYPE(symbol, parameters) PROTOTYPE(symbol, symbol, parameters)
GPU_CALLS(TEST_PROTOTYPE)

/* What driver.h uses instead of them when it is alone. */
_Static_assert(sizeof(CUresult) == sizeof(int) && sizeof(CUdevice) == sizeof(int), "int");
_Static_assert(sizeof(CUdevice_attribute) == sizeof(int) && sizeof(CUfunction_attribute) == sizeof(int), "int");
_Static_assert(sizeof(CUjit_option) == sizeof(int) && sizeof(CUstreamCaptureStatus) == sizeof(int), "int");
_Static_assert(__builtin_types_compatible_p(CUdeviceptr, unsigned long long), "unsigned long long");
_Static_assert(sizeof(CUstreamCaptureMode) == sizeof(int), "int");
_Static_assert(sizeof(CUcontext) == sizeof(void *) && sizeof(CUstream) == sizeof(void *), "pointers");

#define EQUAL(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours " is not " #theirs)
EQUAL(CU_TENSOR_BF16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
EQUAL(CU_SWIZZLE_64B, CU_TENSOR_MAP_SWIZZLE_64B);
EQUAL(CU_SWIZZLE_128B, CU_TENSOR_MAP_SWIZZLE_128B);
EQUAL(CU_PROMOTE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE);
EQUAL(CU_PROMOTE_256B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
EQUAL(CU_OK, CUDA_SUCCESS);
EQUAL(CU_BAD_VALUE, CUDA_ERROR_INVALID_VALUE);
EQUAL(CU_NO_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
EQUAL(CU_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
EQUAL(CU_BAD_IMAGE, CUDA_ERROR_INVALID_IMAGE);
EQUAL(CU_NO_BINARY, CUDA_ERROR_NO_BINARY_FOR_GPU);
EQUAL(CU_UNCORRECTABLE_ECC, CUDA_ERROR_ECC_UNCORRECTABLE);
EQUAL(CU_BAD_PTX, CUDA_ERROR_INVALID_PTX);
EQUAL(CU_NO_JIT_COMPILER, CUDA_ERROR_JIT_COMPILER_NOT_FOUND);
EQUAL(CU_PTX_TOO_NEW, CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
EQUAL(CU_ILLEGAL_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS);
EQUAL(CU_LAUNCH_TIMEOUT, CUDA_ERROR_LAUNCH_TIMEOUT);
EQUAL(CU_DEVICE_ASSERT, CUDA_ERROR_ASSERT);
EQUAL(CU_HARDWARE_STACK, CUDA_ERROR_HARDWARE_STACK_ERROR);
EQUAL(CU_LAUNCH_FAILED, CUDA_ERROR_LAUNCH_FAILED);
EQUAL(CU_LAUNCH_FAILED, CUDA_ERROR_INVALID_PC + 1);
EQUAL(CU_N_SMS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
EQUAL(CU_L2_BYTES, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
EQUAL(CU_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
EQUAL(CU_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
EQUAL(CU_SHARED_PER_SM, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
EQUAL(CU_SHARED_PER_BLOCK, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
EQUAL(CU_MAX_DYNAMIC_SHARED, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
EQUAL(CU_JIT_ERROR_TEXT, CU_JIT_ERROR_LOG_BUFFER);
EQUAL(CU_JIT_ERROR_BYTES, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES);
EQUAL(CU_ATTRIBUTE_CLUSTER, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
EQUAL(CU_ATTRIBUTE_EARLY, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
EQUAL(CU_CAPTURE_NONE, CU_STREAM_CAPTURE_STATUS_NONE);
EQUAL(CU_CAPTURE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED);

EQUAL(CU_PORT_EARLY, CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC);
EQUAL(CU_EDGE_EARLY, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC);
EQUAL(GPU_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
EQUAL(GPU_CAPTURE_GLOBAL, CU_STREAM_CAPTURE_MODE_GLOBAL);

#define SIZE(ours, theirs) _Static_assert(sizeof(ours) == sizeof(theirs) && _Alignof(ours) == _Alignof(theirs), #theirs)
SIZE(struct cu_launch_attribute, CUlaunchAttribute);
SIZE(struct cu_launch_config, CUlaunchConfig);
SIZE(struct cu_tensor_map, CUtensorMap);
SIZE(union cu_launch_value, CUlaunchAttributeValue);
SIZE(struct cu_edge, CUgraphEdgeData);
SIZE(struct cu_kernel_node, CUDA_KERNEL_NODE_PARAMS);
SIZE(struct cu_fill_node, CUDA_MEMSET_NODE_PARAMS);

#define OFFSET(ours, m, theirs, n) _Static_assert(offsetof(ours, m) == offsetof(theirs, n), #theirs "." #n)
OFFSET(struct cu_launch_attribute, id, CUlaunchAttribute, id);
OFFSET(struct cu_launch_attribute, value.cluster[0], CUlaunchAttribute, value.clusterDim.x);
OFFSET(struct cu_launch_attribute, value.cluster[1], CUlaunchAttribute, value.clusterDim.y);
OFFSET(struct cu_launch_attribute, value.cluster[2], CUlaunchAttribute, value.clusterDim.z);
OFFSET(struct cu_launch_config, grid[0], CUlaunchConfig, gridDimX);
OFFSET(struct cu_launch_config, grid[2], CUlaunchConfig, gridDimZ);
OFFSET(struct cu_launch_config, block[0], CUlaunchConfig, blockDimX);
OFFSET(struct cu_launch_config, block[2], CUlaunchConfig, blockDimZ);
OFFSET(struct cu_launch_config, shared_bytes, CUlaunchConfig, sharedMemBytes);
OFFSET(struct cu_launch_config, stream, CUlaunchConfig, hStream);
OFFSET(struct cu_launch_config, attributes, CUlaunchConfig, attrs);
OFFSET(struct cu_launch_config, n_attributes, CUlaunchConfig, numAttrs);
OFFSET(struct cu_edge, from_port, CUgraphEdgeData, from_port);
OFFSET(struct cu_edge, to_port, CUgraphEdgeData, to_port);
OFFSET(struct cu_edge, type, CUgraphEdgeData, type);
OFFSET(struct cu_kernel_node, function, CUDA_KERNEL_NODE_PARAMS, func);
OFFSET(struct cu_kernel_node, grid[0], CUDA_KERNEL_NODE_PARAMS, gridDimX);
OFFSET(struct cu_kernel_node, block[0], CUDA_KERNEL_NODE_PARAMS, blockDimX);
OFFSET(struct cu_kernel_node, shared_bytes, CUDA_KERNEL_NODE_PARAMS, sharedMemBytes);
OFFSET(struct cu_kernel_node, params, CUDA_KERNEL_NODE_PARAMS, kernelParams);
OFFSET(struct cu_kernel_node, extra, CUDA_KERNEL_NODE_PARAMS, extra);
OFFSET(struct cu_kernel_node, kernel, CUDA_KERNEL_NODE_PARAMS, kern);
OFFSET(struct cu_kernel_node, context, CUDA_KERNEL_NODE_PARAMS, ctx);
OFFSET(struct cu_fill_node, to, CUDA_MEMSET_NODE_PARAMS, dst);
OFFSET(struct cu_fill_node, pitch, CUDA_MEMSET_NODE_PARAMS, pitch);
OFFSET(struct cu_fill_node, value, CUDA_MEMSET_NODE_PARAMS, value);
OFFSET(struct cu_fill_node, element, CUDA_MEMSET_NODE_PARAMS, elementSize);
OFFSET(struct cu_fill_node, width, CUDA_MEMSET_NODE_PARAMS, width);
OFFSET(struct cu_fill_node, height, CUDA_MEMSET_NODE_PARAMS, height);

int main(void) {
    printf("the toolkit's header (%d) and driver.h agree\n", CUDA_VERSION);
    return 0;
}
#else
int main(void) {
    printf("skipped: no cuda.h of the toolkit\n");
    return 77;
}
#endif
