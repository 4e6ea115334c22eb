/* SPDX-License-Identifier: MIT
 * Driver calls about the process, devices and contexts. Environment: ATTNSIM_GPU (a100, rtx4090, h100, b200),
 * ATTNSIM_DEVICES (number), ATTNSIM_SMS (multiprocessors), ATTNSIM_FAIL (name:n or name:n:result, the n-th call of a
 * name fails; any: of every name; kernel: the n-th kernel ends with a fault of the device). */
#include "machine/device.h"
#include "driver/stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEVICES = 8, DEPTH = 64 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sim_context contexts[MAX_DEVICES];
static int n_devices;
static const struct sim_profile *profile;
static char fail_name[64];
static long fail_in;
static int fail_result;
static _Thread_local struct sim_context *stack[DEPTH];
static _Thread_local int depth;

const struct sim_profile *sim_profile(void) { return profile; }

int sim_enter(const char *name, struct sim_context **context) {
    int r = R_SUCCESS;
    pthread_mutex_lock(&lock);
    size_t n = strlen(fail_name);
    int named = !strcmp(fail_name, "any") ? strcmp(name, "kernel") != 0
                                          : !strncmp(fail_name, name, n) && (!name[n] || name[n] == '_');
    if (fail_in > 0 && named && --fail_in == 0) r = fail_result;
    pthread_mutex_unlock(&lock);
    if (!r && !profile) r = R_NOT_INITIALIZED;
    if (!context) return r;
    *context = depth ? stack[depth - 1] : NULL;
    if (!r && !*context) r = R_INVALID_CONTEXT;
    return r ? r : (*context)->fault;
}
#define ENTER                                                                                                          \
    int r_ = sim_enter(__func__, NULL);                                                                                \
    if (r_) return r_;
#define ENTER_CONTEXT                                                                                                  \
    struct sim_context *context = NULL;                                                                                \
    int r_ = sim_enter(__func__, &context);                                                                            \
    if (r_) return r_;

SIM_API cuInit(unsigned flags);
SIM_API cuInit(unsigned flags) {
    const char *gpu = getenv("ATTNSIM_GPU"), *count = getenv("ATTNSIM_DEVICES"), *fail = getenv("ATTNSIM_FAIL");
    if (flags) return R_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    profile = sim_profile_find(gpu && gpu[0] ? gpu : "h100");
    n_devices = count && count[0] ? atoi(count) : 1;
    if (n_devices > MAX_DEVICES) n_devices = MAX_DEVICES;
    for (int i = 0; i < n_devices; i++) contexts[i].device = i;
    fail_in = 0;
    if (fail && fail[0]) {
        size_t n = strcspn(fail, ":");
        snprintf(fail_name, sizeof fail_name, "%.*s", (int)n, fail);
        char *end = NULL;
        fail_in = fail[n] ? strtol(fail + n + 1, &end, 10) : 1;
        fail_result = end && *end == ':' ? atoi(end + 1) : R_UNKNOWN;
    }
    pthread_mutex_unlock(&lock);
    if (!profile || n_devices < 1) return R_NO_DEVICE;
    return sim_enter("cuInit", NULL);
}
SIM_API cuDriverGetVersion(int *version);
SIM_API cuDriverGetVersion(int *version) {
    const int r = sim_enter(__func__, NULL);
    if (r && r != R_NOT_INITIALIZED) return r; /* it may come before cuInit */
    *version = 13020; /* host code clears a bit of its tensor maps where a driver is older than 13.1 */
    return R_SUCCESS;
}
static const struct {
    int r;
    const char *name, *words;
} results[] = {
    {R_SUCCESS, "CUDA_SUCCESS", "no error"},
    {R_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {R_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {R_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {R_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {R_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {R_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {R_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {R_NO_BINARY, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {R_INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX text that the simulator does not understand"},
    {R_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {R_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {R_TOO_LARGE_TOGETHER, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "too many blocks in cooperative launch"},
    {R_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {R_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {R_ASSERT, "CUDA_ERROR_ASSERT", "device-side assert triggered"},
    {R_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part of it is registered"},
    {R_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "it is not registered"},
    {R_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "the simulator found faults of a kernel (see its report)"},
    {R_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {R_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted while a stream records"},
    {R_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "an earlier error spoiled the recording"},
    {R_CAPTURE_MERGE, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "two recordings would become one"},
    {R_CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "the recording did not begin in this stream"},
    {R_CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "a stream of the recording did not come back"},
    {R_CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "a recording depends on what is not recorded"},
    {R_CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "the default stream is used while a stream records"},
    {R_CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT", "the event was recorded into a graph"},
    {R_CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "another thread began the recording"},
    {R_GRAPH_UPDATE, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", "the graph has other nodes or edges"},
    {R_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};
SIM_API cuGetErrorName(int r, const char **text);
SIM_API cuGetErrorName(int r, const char **text) {
    for (size_t i = 0; i < sizeof results / sizeof *results; i++)
        if (results[i].r == r) {
            *text = results[i].name;
            return R_SUCCESS;
        }
    *text = NULL;
    return R_INVALID_VALUE;
}
SIM_API cuGetErrorString(int r, const char **text);
SIM_API cuGetErrorString(int r, const char **text) {
    for (size_t i = 0; i < sizeof results / sizeof *results; i++)
        if (results[i].r == r) {
            *text = results[i].words;
            return R_SUCCESS;
        }
    *text = NULL;
    return R_INVALID_VALUE;
}
SIM_API cuDeviceGetCount(int *count);
SIM_API cuDeviceGetCount(int *count) {
    ENTER
    *count = n_devices;
    return R_SUCCESS;
}
SIM_API cuDeviceGet(int *device, int index);
SIM_API cuDeviceGet(int *device, int index) {
    ENTER
    *device = index;
    return index >= 0 && index < n_devices ? R_SUCCESS : R_INVALID_DEVICE;
}
SIM_API cuDeviceGetName(char *name, int bytes, int device);
SIM_API cuDeviceGetName(char *name, int bytes, int device) {
    ENTER
    if (bytes < 1 || device < 0 || device >= n_devices) return R_INVALID_VALUE;
    snprintf(name, (size_t)bytes, "%s", profile->name);
    return R_SUCCESS;
}
SIM_API cuDeviceTotalMem_v2(size_t *bytes, int device);
SIM_API cuDeviceTotalMem_v2(size_t *bytes, int device) {
    ENTER
    *bytes = profile->bytes;
    return device >= 0 && device < n_devices ? R_SUCCESS : R_INVALID_DEVICE;
}
/* What all chips have alike, and what this simulator has: no textures, memory that is the host's. */
static const struct {
    int attribute, value;
} constants[] = {
    {1, 1024},     {2, 1024},       {3, 1024},   {4, 64},   {5, INT32_MAX}, {6, 65535}, {7, 65535},
    {8, 48 << 10}, /* shared memory of a block that asks for nothing */
    {9, 64 << 10}, /* constant memory */
    {10, 32},      {11, INT32_MAX}, {12, 65536}, {14, 512}, {15, 1},        {17, 0},    {18, 0},
    {19, 1}, /* kernels name pinned memory */
    {20, 0},       {31, 1},         {32, 0},     {34, 0},   {35, 0},        {40, 2},    {41, 1},
    {50, 0},       {51, 32},        {78, 1},     {79, 1},   {80, 1},        {83, 1},    {84, 0},
    {85, 0},       {86, 0},         {87, 2},     {88, 0},   {89, 1},        {90, 1},    {91, 1},
    {92, 0},       {93, 0},         {95, 1},     {96, 0},   {98, 0},        {99, 1},    {100, 0},
    {101, 0},      {102, 0},        {103, 0},    {108, 0},  {109, 0},       {110, 0},   {111, 1024},
    {112, 0},      {113, 0},        {114, 0},    {115, 1},  {116, 0},       {117, 0},   {118, 0},
    {119, 0},      {121, 0},        {122, 0},    {125, 0},  {129, 1},
};
SIM_API cuDeviceGetAttribute(int *value, int attribute, int device);
SIM_API cuDeviceGetAttribute(int *value, int attribute, int device) {
    ENTER
    if (device < 0 || device >= n_devices) return R_INVALID_DEVICE;
    switch (attribute) { /* of the profile */
    case 13: *value = profile->clock_khz; return R_SUCCESS;
    case 16: *value = (int)sim_setting("ATTNSIM_SMS", profile->n_sms); return R_SUCCESS;
    case 33: *value = device; return R_SUCCESS; /* number of the bus */
    case 36: *value = profile->memory_clock_khz; return R_SUCCESS;
    case 37: *value = profile->bus_bits; return R_SUCCESS;
    case 38: *value = profile->l2_bytes; return R_SUCCESS;
    case 39: *value = profile->warps_per_sm * 32; return R_SUCCESS;
    case 75: *value = profile->major; return R_SUCCESS;
    case 76: *value = profile->minor; return R_SUCCESS;
    case 81: *value = profile->shared_per_sm; return R_SUCCESS;
    case 82: *value = profile->registers_per_sm; return R_SUCCESS;
    case 97: *value = profile->shared_per_block; return R_SUCCESS;
    case 106: *value = profile->warps_per_sm / 2; return R_SUCCESS; /* blocks of a multiprocessor */
    case 120: *value = profile->major >= 9; return R_SUCCESS;       /* clusters */
    default: break;
    }
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (constants[i].attribute == attribute) {
            *value = constants[i].value;
            return R_SUCCESS;
        }
    return R_INVALID_VALUE;
}
SIM_API cuDevicePrimaryCtxRetain(struct sim_context **context, int device);
SIM_API cuDevicePrimaryCtxRetain(struct sim_context **context, int device) {
    ENTER
    if (device < 0 || device >= n_devices) return R_INVALID_DEVICE;
    *context = &contexts[device];
    contexts[device].retained = 1;
    return R_SUCCESS;
}
SIM_API cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *is_active);
SIM_API cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *is_active) {
    ENTER
    if (device < 0 || device >= n_devices) return R_INVALID_DEVICE;
    *flags = 0, *is_active = contexts[device].retained;
    return R_SUCCESS;
}
SIM_API cuDevicePrimaryCtxRelease_v2(int device);
SIM_API cuDevicePrimaryCtxRelease_v2(int device) {
    ENTER
    return device >= 0 && device < n_devices ? R_SUCCESS : R_INVALID_DEVICE;
}
SIM_API cuCtxPushCurrent_v2(struct sim_context *context);
SIM_API cuCtxPushCurrent_v2(struct sim_context *context) {
    ENTER
    if (!context || depth == DEPTH) return R_INVALID_CONTEXT;
    stack[depth++] = context;
    return R_SUCCESS;
}
SIM_API cuCtxPopCurrent_v2(struct sim_context **context);
SIM_API cuCtxPopCurrent_v2(struct sim_context **context) {
    ENTER
    if (!depth) return R_INVALID_CONTEXT;
    struct sim_context *top = stack[--depth];
    if (context) *context = top;
    return R_SUCCESS;
}
SIM_API cuCtxGetCurrent(struct sim_context **context);
SIM_API cuCtxGetCurrent(struct sim_context **context) {
    ENTER
    *context = depth ? stack[depth - 1] : NULL;
    return R_SUCCESS;
}
SIM_API cuCtxSynchronize(void);
SIM_API cuCtxSynchronize(void) {
    ENTER_CONTEXT
    int r = sim_capture_forbids();
    if (r) return r;
    r = sim_streams_finish(context, 0);
    sim_host_waited_all();
    return r;
}
SIM_API cuCtxSetCurrent(struct sim_context *context);
SIM_API cuCtxSetCurrent(struct sim_context *context) {
    ENTER
    if (depth) depth--;
    if (context) stack[depth++] = context;
    return R_SUCCESS;
}
SIM_API cuCtxGetDevice(int *device);
SIM_API cuCtxGetDevice(int *device) {
    ENTER_CONTEXT
    *device = context->device;
    return R_SUCCESS;
}
