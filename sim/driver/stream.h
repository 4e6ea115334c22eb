/* SPDX-License-Identifier: MIT
 * Work that a program queues: launches, copies, fills, events, and graphs of them. Work of the default stream is done
 * at the call. What other streams get is done at the call under the eager policy; under the late one when something
 * waits for it, so that a missing wait shows; under the random one at calls in between. */
#ifndef SIM_STREAM_H
#define SIM_STREAM_H
#include "checks/stream_order.h"
#include "driver/cu.h"
#include "machine/machine.h"

enum sim_task_kind {
    SIM_TASK_LAUNCH,
    SIM_TASK_COPY,
    SIM_TASK_FILL,
    SIM_TASK_RECORD,
    SIM_TASK_WAIT,
    SIM_TASK_ALLOC, /* of a stream: has happened, its order counts (pool.c) */
    SIM_TASK_FREE,
    SIM_TASK_HOST /* a function of the host */
};
struct sim_task {
    enum sim_task_kind kind;
    struct sim_context *context;
    struct sim_kernel_call *call; /* SIM_TASK_LAUNCH; owned */
    void *to;
    const void *from;
    size_t bytes; /* of a fill: elements */
    uint32_t value, element;
    struct sim_event *event;
    uint64_t stream, place;   /* SIM_TASK_WAIT: of the record that is waited for */
    void (*function)(void *); /* SIM_TASK_HOST */
    void *data;
    struct sim_when when;
};
enum { SIM_TAILS = 16 };
struct sim_capture { /* what the next captured task follows */
    struct sim_graph *graph;
    uint32_t tail[SIM_TAILS], n;
};
struct sim_stream {
    struct sim_context *context;
    unsigned flags; /* 1: the default stream does not wait for it */
    uint64_t id;
    struct sim_task *queue;
    uint32_t first, n, room;
    uint64_t queued, executed;  /* tasks so far */
    struct sim_capture capture; /* graph: NULL unless it records */
    uint8_t origin, invalid;    /* origin: the capture began here */
    int mode;
    pthread_t owner;
    /* Order (checks/stream_order.h): what the next task follows; the last one if it was a launch, on whose heels an
     * early launch may come. */
    struct sim_stamp now;
    uint32_t slot;
    struct sim_when last;
    struct sim_stream *next;
};
struct sim_event {
    uint64_t stream, place; /* of the last record: number of the stream, 0 is the default one; the task there */
    uint64_t nanoseconds;   /* when it was executed */
    uint8_t recorded;
    struct sim_capture capture;
    struct sim_stamp stamp; /* of the last record */
};

/* Queues or does it; `s` NULL is the default stream. Takes over the task's call. */
int sim_task_add(struct sim_stream *s, struct sim_task t);
int sim_task_run(struct sim_task *t); /* now; the call stays with the task */
void sim_call_free(struct sim_kernel_call *call);
struct sim_kernel_call *sim_call_copy(const struct sim_kernel_call *call);
/* Launches that run together (launch.c); `behind`: of each, 1 + number of that behind which it begins early. */
int sim_calls_run(struct sim_context *context, const struct sim_task *tasks, const uint32_t *behind, uint32_t n);
/* A call with other parameters, grid and block, as cuGraphExecKernelNodeSetParams says; of NULL: one without
 * attributes. And one with another attribute of a launch, 64 bytes. On failure all is as it was. */
int sim_call_change(struct sim_kernel_call **call, const struct cu_kernel_node *to);
int sim_call_set(struct sim_kernel_call *call, int id, const void *value);
int sim_call_is_early(const struct sim_kernel_call *call); /* may begin before the launch ahead of it ends */
/* What a task may rely on: `branch` of a replay that began at *base, or 0, which goes on from s->now. */
struct sim_stamp sim_stream_now(struct sim_stream *s, const struct sim_context *context);
void sim_stream_went_on(struct sim_stream *s, const struct sim_stamp *now);
void sim_host_waited(struct sim_stream *s, const struct sim_context *context); /* NULL: the default stream */
void sim_host_waited_all(void);

void sim_streams_lock(void);
void sim_streams_unlock(void);
int sim_stream_finish(struct sim_stream *s); /* does all that it holds; the first error of it or an earlier one */
int sim_streams_finish(struct sim_context *context, int blocking_only); /* all streams of a context; NULL: of all */
/* A call that a recording thread may not make: 0, or an error that also spoils the recording. */
int sim_capture_forbids(void);

int sim_is_recorded(const struct sim_graph *g);    /* still */
void sim_streams_leave(const struct sim_graph *g); /* no stream records into it any more */
enum sim_policy sim_policy(void);
uint64_t sim_seed(void);

/* module.c: CTAs that a multiprocessor has room for */
int sim_occupancy(const struct sim_function *f, int threads, size_t dynamic_bytes);
/* graph.c */
int sim_graph_record(struct sim_stream *s, struct sim_task t);
int sim_graph_join(struct sim_stream *s, const struct sim_event *event);
#endif
