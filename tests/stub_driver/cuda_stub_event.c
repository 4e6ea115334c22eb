/* SPDX-License-Identifier: MIT
 * The stand-in driver's events: marks of the host's clock. */
#include "stub_driver/cuda_stub_graph.h"

#include <stdlib.h>
#include <time.h>

#define VISIBLE __attribute__((visibility("default")))
struct cu_event_object;
VISIBLE cu_result cuEventCreate(struct cu_event_object **event, unsigned flags);
VISIBLE cu_result cuEventDestroy_v2(struct cu_event_object *event);
VISIBLE cu_result cuEventRecord(struct cu_event_object *event, cu_stream stream);
VISIBLE cu_result cuEventSynchronize(struct cu_event_object *event);
VISIBLE cu_result cuEventElapsedTime(float *ms, struct cu_event_object *from, struct cu_event_object *to);

struct cu_event_object {
    struct timespec time;
    int recorded;
};
cu_result cuEventCreate(struct cu_event_object **event, unsigned flags) {
    ENTER(1);
    if (flags) return cuda_stub_misuse(CU_BAD_VALUE);
    *event = calloc(1, sizeof **event);
    return *event ? CU_OK : CU_NO_MEMORY;
}
cu_result cuEventDestroy_v2(struct cu_event_object *event) {
    ENTER(1);
    free(event);
    return CU_OK;
}
cu_result cuEventRecord(struct cu_event_object *event, cu_stream stream) {
    ENTER(1);
    if (stream && !cuda_stub_is_stream(stream)) return cuda_stub_misuse(CU_BAD_VALUE);
    event->recorded = 1;
    return clock_gettime(CLOCK_MONOTONIC, &event->time) ? 999 : CU_OK;
}
cu_result cuEventSynchronize(struct cu_event_object *event) {
    ENTER(1);
    return event->recorded ? CU_OK : cuda_stub_misuse(CU_BAD_VALUE);
}
cu_result cuEventElapsedTime(float *ms, struct cu_event_object *from, struct cu_event_object *to) {
    ENTER(1);
    if (!from->recorded || !to->recorded) return cuda_stub_misuse(CU_BAD_VALUE);
    *ms = (float)((double)(to->time.tv_sec - from->time.tv_sec) * 1e3 +
                  (double)(to->time.tv_nsec - from->time.tv_nsec) * 1e-6);
    return CU_OK;
}
