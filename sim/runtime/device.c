/* SPDX-License-Identifier: MIT
 * Devices, their attributes and properties, versions, errors. */
#include "runtime/runtime.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local int device, last_error;

void sim_rt_say(const char *format, ...) {
    const char *quiet = getenv("ATTNSIM_QUIET");
    if (quiet && quiet[0] == '1') return;
    va_list a;
    va_start(a, format);
    fputs("attnsim: ", stderr);
    vfprintf(stderr, format, a);
    fputc('\n', stderr);
    va_end(a);
}
int sim_rt_device(void) { return device; }
int sim_rt_enter(void) {
    static _Thread_local void *contexts[RT_DEVICES];
    void **context = &contexts[device];
    int r = *context ? RT_SUCCESS : cuInit(0), ordinal = 0;
    if (!r && !*context) r = cuDeviceGet(&ordinal, device);
    if (!r && !*context) r = cuDevicePrimaryCtxRetain(context, ordinal);
    return r ? r : cuCtxSetCurrent(*context);
}
int sim_rt_result(int r) {
    const char *go_on = getenv("ATTNSIM_GO_ON");
    int ordinal;
    if (r == RT_LAUNCH_FAILED && go_on && go_on[0] == '1' && !cuCtxGetDevice(&ordinal)) r = RT_SUCCESS;
    if (r && r != RT_NOT_READY) last_error = r;
    return r;
}
int sim_rt_attribute(int attribute) {
    int v = 0;
    return cuDeviceGetAttribute(&v, attribute, device) ? 0 : v;
}

RT_CALL(cudaGetDeviceCount, int *n) {
    RT_ENTER;
    return sim_rt_result(n ? cuDeviceGetCount(n) : RT_INVALID_VALUE);
}
RT_CALL(cudaGetDevice, int *out) {
    if (!out) return sim_rt_result(RT_INVALID_VALUE);
    *out = device;
    return RT_SUCCESS;
}
RT_CALL(cudaSetDevice, int ordinal) {
    int n = 0, r = cuDeviceGetCount(&n);
    if (r) r = cuInit(0);
    if (!r) r = cuDeviceGetCount(&n);
    if (!r && (ordinal < 0 || ordinal >= n || ordinal >= RT_DEVICES)) r = RT_INVALID_DEVICE;
    if (r) return sim_rt_result(r);
    device = ordinal;
    return sim_rt_result(sim_rt_enter());
}
RT_CALL(cudaInitDevice, int ordinal, unsigned device_flags, unsigned flags) {
    int n = 0, r = sim_rt_enter();
    (void)device_flags, (void)flags;
    if (!r) r = cuDeviceGetCount(&n);
    return sim_rt_result(r ? r : ordinal < 0 || ordinal >= n ? RT_INVALID_DEVICE : RT_SUCCESS);
}
/* What these ask for changes no result here: how the host waits. */
static unsigned device_flags;
RT_CALL(cudaSetDeviceFlags, unsigned flags) {
    device_flags = flags;
    return RT_SUCCESS;
}
RT_CALL(cudaGetDeviceFlags, unsigned *flags) {
    *flags = device_flags;
    return RT_SUCCESS;
}
RT_CALL(cudaDeviceSynchronize, void) {
    RT_ENTER;
    return sim_rt_result(cuCtxSynchronize());
}
RT_CALL(cudaDeviceReset, void) { /* programs call it last */
    RT_ENTER;
    return sim_rt_result(cuCtxSynchronize());
}
RT_CALL(cudaDeviceGetAttribute, int *value, int attribute, int ordinal) {
    RT_ENTER;
    return sim_rt_result(cuDeviceGetAttribute(value, attribute, ordinal));
}
RT_CALL(cudaDeviceGetPCIBusId, char *text, int bytes, int ordinal) {
    if (!text || bytes < 13) return sim_rt_result(RT_INVALID_VALUE);
    snprintf(text, (size_t)bytes, "0000:%02x:00.0", (unsigned)ordinal & 255);
    return RT_SUCCESS;
}
RT_CALL(cudaDeviceGetByPCIBusId, int *ordinal, const char *text) {
    unsigned domain = 0, bus = 0;
    int n = 0;
    RT_ENTER;
    cuDeviceGetCount(&n);
    if (!ordinal || !text || sscanf(text, "%x:%x", &domain, &bus) != 2 || bus >= (unsigned)n)
        return sim_rt_result(RT_INVALID_VALUE);
    *ordinal = (int)bus;
    return RT_SUCCESS;
}
RT_CALL(cudaDeviceGetStreamPriorityRange, int *least, int *greatest) { /* priorities are taken and change nothing */
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return RT_SUCCESS;
}
RT_CALL(cudaDeviceCanAccessPeer, int *can, int ordinal, int peer) {
    if (!can) return sim_rt_result(RT_INVALID_VALUE);
    *can = ordinal != peer; /* all memory of the simulator is the host's */
    return RT_SUCCESS;
}
RT_CALL(cudaDeviceEnablePeerAccess, int peer, unsigned flags) {
    return sim_rt_result(flags || peer == device ? RT_INVALID_VALUE : RT_SUCCESS);
}
RT_CALL(cudaDeviceDisablePeerAccess, int peer) { return sim_rt_result(peer == device ? RT_INVALID_VALUE : RT_SUCCESS); }
/* Stacks, heaps and buffers of printf have no limit here; what was set is told again. */
enum { LIMITS = 8 };
static size_t limits[LIMITS] = {1024, 1 << 20, 8 << 20, 2, 2048, 128};
RT_CALL(cudaDeviceSetLimit, int limit, size_t value) {
    if (limit < 0 || limit >= LIMITS) return sim_rt_result(RT_INVALID_VALUE);
    limits[limit] = value;
    return RT_SUCCESS;
}
RT_CALL(cudaDeviceGetLimit, size_t *value, int limit) {
    if (!value || limit < 0 || limit >= LIMITS) return sim_rt_result(RT_INVALID_VALUE);
    *value = limits[limit];
    return RT_SUCCESS;
}
RT_CALL(cudaDeviceSetCacheConfig, int config) { return sim_rt_result(config < 0 || config > 3 ? RT_INVALID_VALUE : 0); }
RT_CALL(cudaDeviceGetCacheConfig, int *config) {
    *config = 0;
    return RT_SUCCESS;
}
RT_CALL(cudaCtxResetPersistingL2Cache, void) { return RT_SUCCESS; }
RT_CALL(cudaProfilerStart, void) { return RT_SUCCESS; }
RT_CALL(cudaProfilerStop, void) { return RT_SUCCESS; }

/* ---- versions and calls of the driver ---- */

enum { RUNTIME_VERSION = 13000 };
RT_CALL(cudaDriverGetVersion, int *version) {
    RT_ENTER;
    return sim_rt_result(cuDriverGetVersion(version));
}
RT_CALL(cudaRuntimeGetVersion, int *version) {
    *version = RUNTIME_VERSION;
    return RT_SUCCESS;
}
RT_CALL(cudaGetDriverEntryPointByVersion, const char *name, void **out, unsigned version, unsigned long long flags,
        int *status) {
    int found = 0;
    RT_ENTER;
    const int r = cuGetProcAddress_v2(name, out, (int)version, flags, &found);
    if (!r && !*out) sim_rt_say("the simulator's driver has no %s", name);
    if (status) *status = found;
    return sim_rt_result(r);
}
RT_CALL(cudaGetDriverEntryPoint, const char *name, void **out, unsigned long long flags, int *status) {
    return cudaGetDriverEntryPointByVersion(name, out, RUNTIME_VERSION, flags, status);
}

/* ---- the thread's last error ---- */

RT_CALL(cudaPeekAtLastError, void) {
    int ordinal, fault = cuCtxGetDevice(&ordinal);      /* the fault of a kernel that was ended stays */
    if (fault < RT_ILLEGAL_ADDRESS) fault = RT_SUCCESS; /* nothing is current: no device was used */
    return last_error ? last_error : fault;
}
RT_CALL(cudaGetLastError, void) {
    const int error = cudaPeekAtLastError();
    last_error = RT_SUCCESS;
    return error;
}
