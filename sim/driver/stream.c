/* SPDX-License-Identifier: MIT
 * Streams and events: queues of tasks, see stream.h. What they hold runs under the streams' lock; kernels that nothing
 * orders are put in other orders or, under the random policy, run at the same time. */
#define _GNU_SOURCE
#include "driver/stream.h"

#include "checks/global.h"
#include "machine/device.h"
#include "machine/turns.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { NON_BLOCKING = 1 };
static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static struct sim_stream *streams;
static uint64_t n_streams, rng = 1;
static struct sim_stream by_default; /* its stamps alone: what it gets is done at once */

void sim_streams_lock(void) { pthread_mutex_lock(&lock); }
void sim_streams_unlock(void) { pthread_mutex_unlock(&lock); }

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- order ---- */

struct sim_stamp sim_stream_now(struct sim_stream *s, const struct sim_context *context) {
    struct sim_stream *mine = s ? s : &by_default;
    sim_stamp_join(&mine->now, &sim_host_stamp);
    if (s && !(s->flags & NON_BLOCKING)) sim_stamp_join(&mine->now, &by_default.now);
    for (const struct sim_stream *o = s ? NULL : streams; o; o = o->next)
        if (o->context == context && !(o->flags & NON_BLOCKING)) sim_stamp_join(&mine->now, &o->now);
    return mine->now;
}
void sim_stream_went_on(struct sim_stream *s, const struct sim_stamp *now) {
    struct sim_stream *mine = s ? s : &by_default;
    sim_stamp_join(&mine->now, now);
    mine->last.known = 0;
}
void sim_host_waited(struct sim_stream *s, const struct sim_context *context) {
    sim_streams_lock();
    struct sim_stamp now = sim_stream_now(s, context);
    sim_stamp_join(&sim_host_stamp, &now);
    sim_streams_unlock();
}
void sim_host_waited_all(void) {
    sim_streams_lock();
    sim_stamp_join(&sim_host_stamp, &by_default.now);
    for (const struct sim_stream *s = streams; s; s = s->next) sim_stamp_join(&sim_host_stamp, &s->now);
    sim_streams_unlock();
}
/* When the task is queued. An early launch right behind another one begins when that one may have begun. */
static void place_in_order(struct sim_stream *s, struct sim_task *t) {
    struct sim_stream *mine = s ? s : &by_default;
    if (t->when.known) return;
    t->when.before = t->when.after = sim_stream_now(s, t->context);
    if (t->kind == SIM_TASK_RECORD) {
        t->event->stamp = t->when.after;
        return;
    }
    if (t->kind == SIM_TASK_WAIT) {
        sim_stream_went_on(s, &t->event->stamp);
        return;
    }
    if (t->kind == SIM_TASK_HOST) {
        mine->last.known = 0;
        return;
    }
    if (t->kind == SIM_TASK_LAUNCH && mine->last.known && sim_call_is_early(t->call)) {
        t->when.before = mine->last.before;
        t->when.handed = mine->last.after;
        t->when.ahead = mine->last.number;
    }
    sim_when_next(&t->when, mine->slot, &mine->now);
    mine->last = t->when;
    mine->last.known = t->kind == SIM_TASK_LAUNCH;
}

/* ---- tasks ---- */

/* Copies, fills and the like among all that touches global memory. 1 after a finding. */
static int touch(const struct sim_task *t) {
    static atomic_ullong number;
    struct sim_deed what = {.launch = atomic_fetch_add(&number, 1)};
    int is_fill = t->kind == SIM_TASK_FILL, found;
    if (!sim_setting("ATTNSIM_RACES", 1)) return 0;
    static const char *const words[] = {[SIM_TASK_COPY] = "a copy",
                                        [SIM_TASK_FILL] = "a fill",
                                        [SIM_TASK_ALLOC] = "an allocation",
                                        [SIM_TASK_FREE] = "a free"};
    strcpy(what.name, words[t->kind]);
    struct sim_deed *d = sim_deed_begin(&what, 1, &t->when);
    if (!d) return 0;
    size_t bytes = is_fill ? t->bytes * t->element : t->bytes;
    found = t->kind == SIM_TASK_COPY && sim_global_deed(d, &t->when.before, t->from, bytes, SIM_LOAD);
    found |= sim_global_deed(d, &t->when.before, t->to, bytes, SIM_STORE);
    sim_deed_end(d);
    return found;
}

static int stream_step(struct sim_stream *s);

/* The stream that has yet to do its task `place`; NULL: it is done. What a destroyed stream held was done. */
static struct sim_stream *busy_with(uint64_t id, uint64_t place) {
    struct sim_stream *s = streams;
    while (s && s->id != id) s = s->next;
    return s && s->executed < place && s->n ? s : NULL;
}
static int await(uint64_t id, uint64_t place) {
    struct sim_stream *s;
    int r = R_SUCCESS;
    while ((s = busy_with(id, place)) != NULL) {
        int one = stream_step(s);
        if (!r) r = one;
    }
    return r;
}

int sim_task_run(struct sim_task *t) {
    if (t->context->fault) return t->context->fault;
    int touches = t->kind != SIM_TASK_LAUNCH && t->kind != SIM_TASK_RECORD && t->kind != SIM_TASK_WAIT &&
                  t->kind != SIM_TASK_HOST;
    int found = touches && touch(t);
    switch (t->kind) {
    case SIM_TASK_LAUNCH: return sim_calls_run(t->context, t, NULL, 1);
    case SIM_TASK_COPY: memmove(t->to, t->from, t->bytes); break;
    case SIM_TASK_FILL:
        if (!t->bytes) break; /* an empty node of a graph */
        if (t->element == 1)
            memset(t->to, (int)t->value, t->bytes);
        else
            for (size_t i = 0; i < t->bytes; i++) memcpy((char *)t->to + t->element * i, &t->value, t->element);
        break;
    case SIM_TASK_RECORD: t->event->nanoseconds = now(); break;
    case SIM_TASK_WAIT: return await(t->stream, t->place);
    case SIM_TASK_ALLOC: break;
    case SIM_TASK_FREE: sim_memory_free((uint64_t)(uintptr_t)t->to); break;
    case SIM_TASK_HOST: /* the host knows from here on what the stream has done */
        sim_stamp_join(&sim_host_stamp, &t->when.before);
        t->function(t->data);
        break;
    }
    return found ? R_LAUNCH_FAILED : R_SUCCESS;
}

static struct sim_task pop(struct sim_stream *s) {
    struct sim_task t = s->queue[s->first];
    s->first++, s->n--;
    if (!s->n) s->first = 0;
    return t;
}

/* Random policy: launches at the heads of streams, and those that follow them there, as far as nothing orders them. */
struct batch {
    struct sim_task tasks[SIM_TOGETHER];
    struct sim_stream *streams[SIM_TOGETHER];
    uint32_t behind[SIM_TOGETHER], n;
};
static void add_launches(struct batch *b, struct sim_stream *s) {
    while (b->n < SIM_TOGETHER && s->n && s->queue[s->first].kind == SIM_TASK_LAUNCH) {
        const struct sim_when *mine = &s->queue[s->first].when;
        uint32_t behind = 0;
        for (uint32_t i = 0; i < b->n; i++) {
            const struct sim_when *w = &b->tasks[i].when;
            if (mine->before.number[w->slot] >= w->number || w->before.number[mine->slot] >= mine->number) return;
            if (mine->after.number[w->slot] >= w->number) behind = i + 1;
        }
        b->behind[b->n] = behind;
        b->streams[b->n] = s;
        b->tasks[b->n++] = pop(s);
    }
}
static int run_together(struct sim_stream *s) {
    struct batch b = {.n = 0};
    add_launches(&b, s);
    for (struct sim_stream *o = streams; o; o = o->next)
        if (o != s && o->context == s->context && sim_random(&rng) % 4) add_launches(&b, o);
    int r = s->context->fault ? s->context->fault : sim_calls_run(s->context, b.tasks, b.behind, b.n);
    for (uint32_t i = 0; i < b.n; i++) {
        b.streams[i]->executed++;
        sim_call_free(b.tasks[i].call);
    }
    return r;
}

/* The oldest task of a stream; its failure is kept for the next call that waits. */
static int stream_step(struct sim_stream *s) {
    int r;
    if (sim_policy() == SIM_RANDOM && s->queue[s->first].kind == SIM_TASK_LAUNCH) {
        r = run_together(s);
    } else {
        struct sim_task t = pop(s);
        r = sim_task_run(&t);
        s->executed++;
        sim_call_free(t.call);
    }
    if (r && !s->context->late_result) s->context->late_result = r;
    return r;
}
static int take_result(struct sim_context *c) {
    int r = c->fault ? c->fault : c->late_result;
    c->late_result = R_SUCCESS;
    return r;
}

int sim_stream_finish(struct sim_stream *s) {
    while (s->n) stream_step(s);
    return take_result(s->context);
}
int sim_streams_finish(struct sim_context *context, int blocking_only) {
    int r = R_SUCCESS;
    sim_streams_lock();
    for (struct sim_stream *s = streams; s; s = s->next) {
        if ((context && s->context != context) || (blocking_only && s->flags & NON_BLOCKING)) continue;
        while (s->n) stream_step(s);
    }
    if (context && !blocking_only) r = take_result(context);
    sim_streams_unlock();
    return r;
}

static void push(struct sim_stream *s, struct sim_task t) {
    if (s->first + s->n == s->room) {
        if (s->first) {
            memmove(s->queue, s->queue + s->first, s->n * sizeof t);
            s->first = 0;
        } else {
            s->room = s->room ? 2 * s->room : 16;
            s->queue = realloc(s->queue, s->room * sizeof t);
            if (!s->queue) abort();
        }
    }
    s->queue[s->first + s->n++] = t;
    s->queued++;
}

static void run_some(void) { /* random policy: work goes on while the program makes calls */
    for (struct sim_stream *s = streams; s; s = s->next)
        while (s->n && sim_random(&rng) % 2) stream_step(s);
}

static int on_default(struct sim_task *t) {
    int r = R_SUCCESS;
    sim_streams_lock();
    for (struct sim_stream *s = streams; s && !r; s = s->next)
        if (s->capture.graph && s->context == t->context && !(s->flags & NON_BLOCKING))
            s->invalid = 1, r = R_CAPTURE_IMPLICIT;
    if (!r) place_in_order(NULL, t);
    sim_streams_unlock();
    if (r) return r;
    sim_streams_finish(t->context, 1);
    r = sim_task_run(t);
    return r ? r : take_result(t->context);
}

int sim_task_add(struct sim_stream *s, struct sim_task t) {
    int r = R_SUCCESS;
    if (!s) {
        r = on_default(&t);
        sim_call_free(t.call);
        return r;
    }
    sim_streams_lock();
    if (s->capture.graph) {
        r = sim_graph_record(s, t);
    } else {
        place_in_order(s, &t);
        push(s, t);
        enum sim_policy policy = sim_policy();
        if (policy == SIM_EAGER) r = sim_stream_finish(s);
        if (policy == SIM_RANDOM) run_some();
    }
    sim_streams_unlock();
    return r;
}

void sim_streams_leave(const struct sim_graph *g) {
    for (struct sim_stream *s = streams; s; s = s->next)
        if (s->capture.graph == g) s->capture = (struct sim_capture){0}, s->origin = s->invalid = 0;
}

int sim_is_recorded(const struct sim_graph *g) {
    int found = 0;
    for (const struct sim_stream *s = streams; s; s = s->next) found |= s->capture.graph == g && s->origin;
    return found;
}
enum { GLOBAL, THREAD_LOCAL, RELAXED };
static _Thread_local int thread_mode;
SIM_API cuThreadExchangeStreamCaptureMode(int *mode);
SIM_API cuThreadExchangeStreamCaptureMode(int *mode) {
    int r = sim_enter(__func__, NULL);
    if (r) return r;
    if (!mode || *mode < GLOBAL || *mode > RELAXED) return R_INVALID_VALUE;
    const int before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return R_SUCCESS;
}

int sim_capture_forbids(void) {
    int r = R_SUCCESS;
    sim_streams_lock();
    for (struct sim_stream *s = streams; s; s = s->next) {
        if (!s->capture.graph || !s->origin) continue;
        int forbidden = pthread_equal(s->owner, pthread_self()) ? s->mode != RELAXED && thread_mode != RELAXED
                                                                : s->mode == GLOBAL && thread_mode == GLOBAL;
        if (!forbidden) continue;
        s->invalid = 1;
        r = R_CAPTURE_UNSUPPORTED;
    }
    sim_streams_unlock();
    return r;
}

/* ---- streams ---- */

#define ENTER_CONTEXT                                                                                                  \
    struct sim_context *context = NULL;                                                                                \
    int r_ = sim_enter(__func__, &context);                                                                            \
    if (r_) return r_;
/* The legacy and the per-thread default stream have small numbers for handles. */
static struct sim_stream *find_stream(void *handle) { return (uintptr_t)handle < 4 ? NULL : handle; }

SIM_API cuStreamCreateWithPriority(struct sim_stream **out, unsigned flags, int priority);
SIM_API cuStreamCreateWithPriority(struct sim_stream **out, unsigned flags, int priority) {
    (void)priority;
    ENTER_CONTEXT
    if (!out || flags > NON_BLOCKING) return R_INVALID_VALUE;
    struct sim_stream *s = calloc(1, sizeof *s);
    if (!s) return R_OUT_OF_MEMORY;
    sim_streams_lock();
    s->context = context, s->flags = flags, s->id = ++n_streams + 2;
    s->slot = 1 + (uint32_t)(n_streams % (SIM_STREAM_SLOTS - 1));
    s->next = streams, streams = s;
    rng = rng * UINT64_C(0xd1342543de82ef95) + sim_seed(); /* not ^: two streams would take the seed out again */
    sim_streams_unlock();
    *out = s;
    return R_SUCCESS;
}
SIM_API cuStreamCreate(struct sim_stream **out, unsigned flags);
SIM_API cuStreamCreate(struct sim_stream **out, unsigned flags) {
    ENTER_CONTEXT
    return cuStreamCreateWithPriority(out, flags, 0);
}
SIM_API cuStreamDestroy_v2(struct sim_stream *s);
SIM_API cuStreamDestroy_v2(struct sim_stream *s) { /* what it holds is still done */
    ENTER_CONTEXT
    if (!find_stream(s)) return R_INVALID_HANDLE;
    sim_streams_lock();
    while (s->n) stream_step(s);
    struct sim_stream **link = &streams;
    while (*link && *link != s) link = &(*link)->next;
    if (*link) *link = s->next;
    sim_streams_unlock();
    free(s->queue);
    free(s);
    return R_SUCCESS;
}
SIM_API cuStreamGetId(void *stream, unsigned long long *id);
SIM_API cuStreamGetId(void *stream, unsigned long long *id) {
    ENTER_CONTEXT
    *id = find_stream(stream) ? find_stream(stream)->id : (unsigned long long)(uintptr_t)stream;
    return R_SUCCESS;
}
SIM_API cuStreamGetFlags(void *stream, unsigned *flags);
SIM_API cuStreamGetFlags(void *stream, unsigned *flags) {
    ENTER_CONTEXT
    *flags = find_stream(stream) ? find_stream(stream)->flags : 0;
    return R_SUCCESS;
}
SIM_API cuStreamSynchronize(void *stream);
SIM_API cuStreamSynchronize(void *stream) {
    ENTER_CONTEXT
    struct sim_stream *s = find_stream(stream);
    int r = sim_capture_forbids();
    if (r) return r;
    if (!s) {
        sim_streams_finish(context, 1);
        sim_host_waited(NULL, context);
        return take_result(context);
    }
    sim_streams_lock();
    r = sim_stream_finish(s);
    sim_host_waited(s, context);
    sim_streams_unlock();
    return r;
}
SIM_API cuStreamQuery(void *stream);
SIM_API cuStreamQuery(void *stream) {
    ENTER_CONTEXT
    struct sim_stream *s = find_stream(stream);
    sim_streams_lock();
    int busy = s && s->n;
    if (busy) stream_step(s); /* a program that polls gets on */
    if (!busy) sim_host_waited(s, context);
    sim_streams_unlock();
    return busy ? R_NOT_READY : take_result(context);
}

SIM_API cuLaunchHostFunc(void *stream, void (*function)(void *), void *data);
SIM_API cuLaunchHostFunc(void *stream, void (*function)(void *), void *data) {
    ENTER_CONTEXT
    if (!function) return R_INVALID_VALUE;
    return sim_task_add(
        find_stream(stream),
        (struct sim_task){.kind = SIM_TASK_HOST, .context = context, .function = function, .data = data});
}

/* ---- events ---- */

SIM_API cuEventCreate(struct sim_event **out, unsigned flags);
SIM_API cuEventCreate(struct sim_event **out, unsigned flags) {
    ENTER_CONTEXT
    if (!out || flags > 7) return R_INVALID_VALUE;
    *out = calloc(1, sizeof **out);
    return *out ? R_SUCCESS : R_OUT_OF_MEMORY;
}
SIM_API cuEventDestroy_v2(struct sim_event *e);
SIM_API cuEventDestroy_v2(struct sim_event *e) {
    ENTER_CONTEXT
    if (!e) return R_INVALID_HANDLE;
    sim_streams_finish(NULL, 0); /* tasks that name it */
    free(e);
    return R_SUCCESS;
}
SIM_API cuEventRecord(struct sim_event *e, void *stream);
SIM_API cuEventRecord(struct sim_event *e, void *stream) {
    ENTER_CONTEXT
    if (!e) return R_INVALID_HANDLE;
    struct sim_stream *s = find_stream(stream);
    sim_streams_lock();
    int captured = s && s->capture.graph;
    if (captured)
        e->capture = s->capture;
    else
        e->capture.graph = NULL, e->stream = s ? s->id : 0, e->place = s ? s->queued + 1 : 0, e->recorded = 1;
    int r = captured ? R_SUCCESS
                     : sim_task_add(s, (struct sim_task){.kind = SIM_TASK_RECORD, .context = context, .event = e});
    sim_streams_unlock();
    return r;
}
SIM_API cuStreamWaitEvent(void *stream, struct sim_event *e, unsigned flags);
SIM_API cuStreamWaitEvent(void *stream, struct sim_event *e, unsigned flags) {
    ENTER_CONTEXT
    if (!e || flags > 1) return R_INVALID_VALUE;
    struct sim_stream *s = find_stream(stream);
    if (e->capture.graph) return s ? sim_graph_join(s, e) : R_CAPTURE_IMPLICIT;
    if (s && s->capture.graph) return R_CAPTURE_ISOLATION; /* a recording cannot wait for what is outside */
    return sim_task_add(
        s, (struct sim_task){
               .kind = SIM_TASK_WAIT, .context = context, .event = e, .stream = e->stream, .place = e->place});
}
SIM_API cuEventSynchronize(struct sim_event *e);
SIM_API cuEventSynchronize(struct sim_event *e) {
    ENTER_CONTEXT
    if (!e) return R_INVALID_HANDLE;
    if (e->capture.graph) return R_CAPTURED_EVENT;
    int r = sim_capture_forbids();
    if (r) return r;
    sim_streams_lock();
    await(e->stream, e->place);
    sim_stamp_join(&sim_host_stamp, &e->stamp);
    r = take_result(context);
    sim_streams_unlock();
    return r;
}
SIM_API cuEventQuery(struct sim_event *e);
SIM_API cuEventQuery(struct sim_event *e) {
    ENTER_CONTEXT
    if (!e) return R_INVALID_HANDLE;
    if (e->capture.graph) return R_CAPTURED_EVENT;
    sim_streams_lock();
    struct sim_stream *busy = busy_with(e->stream, e->place);
    if (busy) stream_step(busy);
    if (!busy) sim_stamp_join(&sim_host_stamp, &e->stamp);
    sim_streams_unlock();
    return busy ? R_NOT_READY : take_result(context);
}
SIM_API cuEventElapsedTime(float *ms, struct sim_event *a, struct sim_event *b);
SIM_API cuEventElapsedTime(float *ms, struct sim_event *a, struct sim_event *b) { /* of the host's clock */
    ENTER_CONTEXT
    if (!ms || !a || !b) return R_INVALID_VALUE;
    if (!a->recorded || !b->recorded) return R_INVALID_HANDLE;
    if (busy_with(a->stream, a->place) || busy_with(b->stream, b->place)) return R_NOT_READY;
    *ms = (float)((double)b->nanoseconds - (double)a->nanoseconds) * 1e-6f;
    return R_SUCCESS;
}
SIM_API cuEventElapsedTime_v2(float *ms, struct sim_event *a, struct sim_event *b);
SIM_API cuEventElapsedTime_v2(float *ms, struct sim_event *a, struct sim_event *b) {
    return cuEventElapsedTime(ms, a, b);
}
