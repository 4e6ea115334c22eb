/* SPDX-License-Identifier: MIT
 * The calls of the driver that this runtime makes, by the driver's binary interface: handles are pointers, and results
 * have the numbers of the runtime's. Own declarations, so that no toolkit is needed and no other room is seen. */
#ifndef SIM_RUNTIME_DRIVER_H
#define SIM_RUNTIME_DRIVER_H
#include <stddef.h>
#include <stdint.h>

struct rt_attribute { /* of a launch */
    int id;
    char pad[4];
    union {
        unsigned cluster[3];
        int on;
        char bytes[64];
        uint64_t align;
    } value;
};
struct rt_launch {
    unsigned grid[3], block[3], shared_bytes;
    void *stream;
    const struct rt_attribute *attributes;
    unsigned n_attributes;
};
struct rt_kernel_node {
    void *function;
    unsigned grid[3], block[3], shared_bytes;
    void **params, **extra;
    void *kernel, *context;
};
struct rt_fill_node {
    unsigned long long to;
    size_t pitch;
    unsigned value, element;
    size_t width, height;
};
struct rt_copy_end {
    size_t x_bytes, y, z, level;
    int type; /* 1: of the host, 4: what the address says */
    const void *host;
    unsigned long long device;
    void *array, *reserved;
    size_t pitch, height;
};
struct rt_copy_node {
    struct rt_copy_end from, to;
    size_t width_bytes, height, depth;
};
struct rt_host_node {
    void (*function)(void *);
    void *data;
};

int cuInit(unsigned flags);
int cuDriverGetVersion(int *version);
int cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status);
int cuDeviceGet(int *device, int index);
int cuDeviceGetCount(int *count);
int cuDeviceGetName(char *name, int bytes, int device);
int cuDeviceTotalMem_v2(size_t *bytes, int device);
int cuDeviceGetAttribute(int *value, int attribute, int device);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuCtxGetCurrent(void **context);
int cuCtxGetDevice(int *device);
int cuCtxSynchronize(void);

int cuModuleLoadData(void **module, const void *image);
int cuModuleGetFunction(void **function, void *module, const char *name);
int cuModuleGetGlobal_v2(uint64_t *address, size_t *bytes, void *module, const char *name);
int cuFuncSetAttribute(void *function, int attribute, int value);
int cuFuncGetAttribute(int *value, int attribute, void *function);
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, void *function, int threads, size_t dynamic_bytes);
int cuLaunchKernelEx(const struct rt_launch *launch, void *function, void **params, void **extra);

int cuMemAlloc_v2(uint64_t *address, size_t bytes);
int cuMemFree_v2(uint64_t address);
int cuMemHostAlloc(void **address, size_t bytes, unsigned flags);
int cuMemFreeHost(void *address);
int cuMemAllocManaged(uint64_t *address, size_t bytes, unsigned flags);
int cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags);
int cuMemHostUnregister(void *address);
int cuPointerGetAttribute(void *out, int attribute, uint64_t address);
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total);
int cuMemAllocAsync(uint64_t *address, size_t bytes, void *stream);
int cuMemFreeAsync(uint64_t address, void *stream);
int cuMemAllocFromPoolAsync(uint64_t *address, size_t bytes, void *pool, void *stream);
int cuDeviceGetDefaultMemPool(void **pool, int device);
int cuMemPoolSetAttribute(void *pool, int attribute, const void *value);
int cuMemPoolGetAttribute(void *pool, int attribute, void *value);
int cuMemPoolTrimTo(void *pool, size_t keep);
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes);
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes);
int cuMemcpyDtoD_v2(uint64_t to, uint64_t from, size_t bytes);
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream);
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream);
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream);
int cuMemsetD8_v2(uint64_t to, unsigned char value, size_t n);
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t n, void *stream);

int cuStreamCreateWithPriority(void **stream, unsigned flags, int priority);
int cuStreamDestroy_v2(void *stream);
int cuStreamSynchronize(void *stream);
int cuStreamQuery(void *stream);
int cuStreamWaitEvent(void *stream, void *event, unsigned flags);
int cuStreamGetFlags(void *stream, unsigned *flags);
int cuStreamGetId(void *stream, unsigned long long *id);
int cuStreamIsCapturing(void *stream, int *status);
int cuStreamBeginCapture_v2(void *stream, int mode);
int cuStreamEndCapture(void *stream, void **graph);
int cuThreadExchangeStreamCaptureMode(int *mode);
int cuLaunchHostFunc(void *stream, void (*function)(void *), void *data);
int cuEventCreate(void **event, unsigned flags);
int cuEventDestroy_v2(void *event);
int cuEventRecord(void *event, void *stream);
int cuEventSynchronize(void *event);
int cuEventQuery(void *event);
int cuEventElapsedTime(float *ms, void *start, void *end);

int cuGraphCreate(void **graph, unsigned flags);
int cuGraphDestroy(void *graph);
int cuGraphGetNodes(void *graph, void **nodes, size_t *n);
int cuGraphClone(void **graph, void *original);
int cuGraphAddKernelNode_v2(void **node, void *graph, void *const *after, size_t n,
                            const struct rt_kernel_node *kernel);
int cuGraphAddMemsetNode(void **node, void *graph, void *const *after, size_t n, const struct rt_fill_node *fill,
                         void *context);
int cuGraphAddMemcpyNode(void **node, void *graph, void *const *after, size_t n, const struct rt_copy_node *copy,
                         void *context);
int cuGraphAddEmptyNode(void **node, void *graph, void *const *after, size_t n);
int cuGraphAddHostNode(void **node, void *graph, void *const *after, size_t n, const struct rt_host_node *host);
int cuGraphExecKernelNodeSetParams_v2(void *executable, void *node, const struct rt_kernel_node *kernel);
int cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags);
int cuGraphExecUpdate_v2(void *executable, void *graph, void *result);
int cuGraphExecDestroy(void *executable);
int cuGraphLaunch(void *executable, void *stream);
#endif
