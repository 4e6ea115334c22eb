/* SPDX-License-Identifier: MIT
 * Streams, functions of the host in them, events. */
#include "runtime/runtime.h"

#include <stdlib.h>

RT_CALL(cudaStreamCreateWithPriority, void **stream, unsigned flags, int priority) {
    RT_ENTER;
    return sim_rt_result(cuStreamCreateWithPriority(stream, flags, priority));
}
RT_CALL(cudaStreamCreateWithFlags, void **stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}
RT_CALL(cudaStreamCreate, void **stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
RT_CALL(cudaStreamDestroy, void *stream) {
    RT_ENTER;
    return sim_rt_result(cuStreamDestroy_v2(stream));
}
RT_CALL(cudaStreamSynchronize, void *stream) {
    RT_ENTER;
    return sim_rt_result(cuStreamSynchronize(stream));
}
RT_CALL(cudaStreamQuery, void *stream) {
    RT_ENTER;
    return sim_rt_result(cuStreamQuery(stream));
}
RT_CALL(cudaStreamWaitEvent, void *stream, void *event, unsigned flags) {
    RT_ENTER;
    return sim_rt_result(cuStreamWaitEvent(stream, event, flags));
}
RT_CALL(cudaStreamGetFlags, void *stream, unsigned *flags) {
    RT_ENTER;
    return sim_rt_result(flags ? cuStreamGetFlags(stream, flags) : RT_INVALID_VALUE);
}
RT_CALL(cudaStreamGetId, void *stream, unsigned long long *id) {
    RT_ENTER;
    return sim_rt_result(id ? cuStreamGetId(stream, id) : RT_INVALID_VALUE);
}
RT_CALL(cudaStreamGetPriority, void *stream, int *priority) { /* what was asked for is not kept: it changes nothing */
    (void)stream;
    if (!priority) return sim_rt_result(RT_INVALID_VALUE);
    *priority = 0;
    return RT_SUCCESS;
}
RT_CALL(cudaStreamSetAttribute, void *stream, int attribute, const void *value) { /* hints about caches */
    (void)stream, (void)attribute;
    return sim_rt_result(value ? RT_SUCCESS : RT_INVALID_VALUE);
}
RT_CALL(cudaLaunchHostFunc, void *stream, void (*function)(void *), void *data) {
    RT_ENTER;
    return sim_rt_result(cuLaunchHostFunc(stream, function, data));
}
struct callback {
    void (*function)(void *stream, int error, void *data);
    void *stream, *data;
};
static void call_back(void *data) {
    struct callback c = *(struct callback *)data;
    free(data);
    c.function(c.stream, RT_SUCCESS, c.data);
}
RT_CALL(cudaStreamAddCallback, void *stream, void (*function)(void *, int, void *), void *data, unsigned flags) {
    RT_ENTER;
    struct callback *c = function && !flags ? malloc(sizeof *c) : NULL;
    if (!c) return sim_rt_result(RT_INVALID_VALUE);
    *c = (struct callback){function, stream, data};
    const int r = cuLaunchHostFunc(stream, call_back, c);
    if (r) free(c);
    return sim_rt_result(r);
}

RT_CALL(cudaEventCreateWithFlags, void **event, unsigned flags) {
    RT_ENTER;
    return sim_rt_result(cuEventCreate(event, flags));
}
RT_CALL(cudaEventCreate, void **event) { return cudaEventCreateWithFlags(event, 0); }
RT_CALL(cudaEventDestroy, void *event) {
    RT_ENTER;
    return sim_rt_result(cuEventDestroy_v2(event));
}
RT_CALL(cudaEventRecord, void *event, void *stream) {
    RT_ENTER;
    return sim_rt_result(cuEventRecord(event, stream));
}
RT_CALL(cudaEventRecordWithFlags, void *event, void *stream, unsigned flags) {
    if (flags) return sim_rt_result(RT_NOT_SUPPORTED); /* nodes of events in graphs */
    return cudaEventRecord(event, stream);
}
RT_CALL(cudaEventSynchronize, void *event) {
    RT_ENTER;
    return sim_rt_result(cuEventSynchronize(event));
}
RT_CALL(cudaEventQuery, void *event) {
    RT_ENTER;
    return sim_rt_result(cuEventQuery(event));
}
RT_CALL(cudaEventElapsedTime, float *ms, void *start, void *end) { /* of the simulation: the host's clock */
    RT_ENTER;
    return sim_rt_result(cuEventElapsedTime(ms, start, end));
}
RT_CALL(cudaEventElapsedTime_v2, float *ms, void *start, void *end) { return cudaEventElapsedTime(ms, start, end); }
