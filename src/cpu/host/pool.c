/* SPDX-License-Identifier: MIT
 * The thread pool. It is no scheduler: tasks are dealt by the jobs' own counters.
 *
 * A run is one 64-bit ticket: serial number, workers wanted, workers that joined. A worker joins by a compare-exchange
 * of the ticket it has read, and the index it gets is the count of those before it. The caller's job takes every task
 * that no worker has taken; then the caller closes the ticket, and waits for workers that joined alone. A worker that
 * was not scheduled in time finds the ticket closed and touches nothing else, so that job and arg stand still while any
 * worker reads them. Workers spin for a moment after a job, since the next one usually follows at once, then sleep. */
#include "cpu/host/cpu.h"

#include "base/err.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

enum {
    SPIN_NS = 50000,
    SPIN_CHECK = 32,
    TICKET_BITS = 16,
    SERIAL_SHIFT = 2 * TICKET_BITS, /* a worker would have to sleep through 2^32 runs to take one for another */
    MAX_THREADS = 1 << (TICKET_BITS - 1)
};
#define COUNT_MASK ((UINT64_C(1) << TICKET_BITS) - 1)

struct attn_cpu_pool {
    _Atomic uint64_t ticket; /* serial << SERIAL_SHIFT | wanted << TICKET_BITS | joined; both counts with the caller */
    _Atomic int32_t stop;
    _Atomic int32_t sleepers; /* workers inside cond_wait, changed under lock */
    attn_cpu_job job;
    void *arg;
    uint32_t float_mode;               /* of the caller */
    _Alignas(64) _Atomic int32_t left; /* workers that joined this run and have left it, the caller not counted */
    _Atomic int32_t awaited;           /* the caller sleeps until `left` is this; 0: it does not sleep */
    _Alignas(64) _Atomic int32_t busy; /* a run is in progress */
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    pid_t owner; /* the process that has the threads: a fork's child has none */
    int32_t threads, n_started;
    struct attn_cpu_executor executor; /* submit NULL: the threads are its own */
    size_t bytes;
    pthread_t workers[];
};

static void pause_cpu(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* A ticket of another run than `seen`, or any when the pool stops. */
static uint64_t wait_ticket(struct attn_cpu_pool *pool, uint64_t seen) {
    int64_t end = now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < SPIN_CHECK; ++i) {
            uint64_t ticket = atomic_load(&pool->ticket);
            if (ticket >> SERIAL_SHIFT != seen || atomic_load(&pool->stop)) return ticket;
            pause_cpu();
        }
    } while (now_ns() < end);
    pthread_mutex_lock(&pool->lock);
    /* Counted before the ticket is read: either the caller sees the sleeper and wakes it under the lock, or the
     * sleeper sees the ticket (both sides sequentially consistent). */
    atomic_fetch_add(&pool->sleepers, 1);
    while (atomic_load(&pool->ticket) >> SERIAL_SHIFT == seen && !atomic_load(&pool->stop))
        pthread_cond_wait(&pool->wake, &pool->lock);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->lock);
    return atomic_load(&pool->ticket);
}

/* Enters the ticket's run: this worker's index, or 0 if the run is closed or has its workers. */
static int32_t take_index(struct attn_cpu_pool *pool, uint64_t ticket) {
    const uint64_t serial = ticket >> SERIAL_SHIFT;
    while (ticket >> SERIAL_SHIFT == serial && (ticket & COUNT_MASK) < (ticket >> TICKET_BITS & COUNT_MASK))
        if (atomic_compare_exchange_weak(&pool->ticket, &ticket, ticket + 1)) return (int32_t)(ticket & COUNT_MASK);
    return 0;
}

static void *work(void *arg) {
    struct attn_cpu_pool *pool = arg;
    uint64_t seen = 0;
    for (;;) {
        uint64_t ticket = wait_ticket(pool, seen);
        if (atomic_load(&pool->stop)) return NULL;
        seen = ticket >> SERIAL_SHIFT;
        int32_t index = take_index(pool, ticket);
        if (!index) continue;
        attn_base_float_end(pool->float_mode);
        pool->job(pool->arg, index);
        /* From here on the pool may serve the next run, whose `awaited` is read: a signal too many does no harm. */
        if (atomic_fetch_add(&pool->left, 1) + 1 == atomic_load(&pool->awaited)) {
            pthread_mutex_lock(&pool->lock);
            pthread_cond_signal(&pool->done);
            pthread_mutex_unlock(&pool->lock);
        }
    }
}

/* Until all that joined have left: each had a task when the last one was taken, or is on its way out. */
static void wait_left(struct attn_cpu_pool *pool, int32_t joined) {
    if (atomic_load(&pool->left) == joined) return;
    int64_t end = now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < SPIN_CHECK; ++i) {
            if (atomic_load(&pool->left) == joined) return;
            pause_cpu();
        }
    } while (now_ns() < end);
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->awaited, joined);
    while (atomic_load(&pool->left) != joined) pthread_cond_wait(&pool->done, &pool->lock);
    atomic_store(&pool->awaited, 0);
    pthread_mutex_unlock(&pool->lock);
}

/* Wakes as many sleepers as the run wants beyond those that are awake. */
static void wake_some(struct attn_cpu_pool *pool, int32_t others) {
    if (!atomic_load(&pool->sleepers)) return;
    pthread_mutex_lock(&pool->lock);
    const int32_t asleep = atomic_load(&pool->sleepers), missing = others - (pool->n_started - asleep);
    if (2 * missing >= asleep && missing > 1) {
        pthread_cond_broadcast(&pool->wake);
    } else {
        for (int32_t i = 0; i < missing; ++i) pthread_cond_signal(&pool->wake);
    }
    pthread_mutex_unlock(&pool->lock);
}

/* A run on the caller's threads, whose floating-point modes are theirs. */
struct call {
    attn_cpu_job job;
    void *arg;
    uint32_t float_mode;
};
static void run_call(void *task, int32_t index) {
    const struct call *c = task;
    const uint32_t own = attn_base_float_mode();
    attn_base_float_end(c->float_mode);
    c->job(c->arg, index);
    attn_base_float_end(own);
}
static void run_over(const struct attn_cpu_pool *pool, int32_t n, attn_cpu_job job, void *arg) {
    struct call c = {job, arg, attn_base_float_mode()};
    void *handle = pool->executor.submit(pool->executor.user, n - 1, run_call, &c);
    job(arg, 0);
    pool->executor.wait(pool->executor.user, handle);
}

void attn_cpu_pool_run(struct attn_cpu_pool *pool, int32_t n, attn_cpu_job job, void *arg) {
    int32_t idle = 0;
    if (n < 1) return;
    if (n > 1 && pool && pool->executor.submit) {
        run_over(pool, n <= pool->threads ? n : pool->threads, job, arg);
        return;
    }
    /* getpid before anything shared: in a fork's child the lock and the counters are as some thread left them. */
    if (n == 1 || !pool || !pool->n_started || getpid() != pool->owner ||
        !atomic_compare_exchange_strong(&pool->busy, &idle, 1)) {
        job(arg, 0);
        return;
    }
    pool->job = job;
    pool->arg = arg;
    pool->float_mode = attn_base_float_mode();
    atomic_store(&pool->left, 0);
    const int32_t others = (n <= pool->threads ? n : pool->threads) - 1;
    const uint64_t serial = (atomic_load(&pool->ticket) >> SERIAL_SHIFT) + 1;
    atomic_store(&pool->ticket, serial << SERIAL_SHIFT | (uint64_t)(others + 1) << TICKET_BITS | 1);
    wake_some(pool, others);
    job(arg, 0);
    const uint64_t closed = atomic_fetch_and(&pool->ticket, ~(COUNT_MASK << TICKET_BITS)); /* wanted: 0 */
    wait_left(pool, (int32_t)(closed & COUNT_MASK) - 1);
    atomic_store(&pool->busy, 0);
}

static void stop_and_join(struct attn_cpu_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->stop, 1);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (int32_t i = 0; i < pool->n_started; ++i) pthread_join(pool->workers[i], NULL);
}

void attn_cpu_pool_destroy(struct attn_mem *mem, struct attn_cpu_pool *pool) {
    if (!pool) return;
    if (getpid() == pool->owner) { /* a fork's child has no thread to join, and a lock that may be held for ever */
        stop_and_join(pool);
        pthread_cond_destroy(&pool->done);
        pthread_cond_destroy(&pool->wake);
        pthread_mutex_destroy(&pool->lock);
    }
    attn_base_free(mem, pool, pool->bytes);
}

static attn_status make(struct attn_mem *mem, int32_t threads, int32_t workers, struct attn_cpu_pool **out) {
    if (threads < 1 || threads > MAX_THREADS)
        FAIL2(ATTN_E_THREAD, "threads", MAX_THREADS, threads, "threads: 1 to %d expected, %d given", MAX_THREADS,
              threads);
    size_t bytes = sizeof(struct attn_cpu_pool) + (size_t)workers * sizeof(pthread_t);
    struct attn_cpu_pool *pool = attn_base_alloc(mem, bytes, 64);
    if (!pool) return ATTN_E_MEMORY;
    pool->bytes = bytes;
    pool->threads = threads;
    pool->owner = getpid();
    pthread_mutex_init(&pool->lock, NULL); /* default attributes: cannot fail on the systems served */
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->done, NULL);
    *out = pool;
    return ATTN_OK;
}

attn_status attn_cpu_pool_create_over(struct attn_mem *mem, int32_t threads, const struct attn_cpu_executor *executor,
                                      struct attn_cpu_pool **out) {
    TRY(make(mem, threads, 0, out));
    (*out)->executor = *executor;
    return ATTN_OK;
}

attn_status attn_cpu_pool_create(struct attn_mem *mem, int32_t threads, int64_t fail_thread_in,
                                 struct attn_cpu_pool **out) {
    struct attn_cpu_pool *pool = NULL;
    TRY(make(mem, threads, threads - 1, &pool));
    /* Signals are the application's business: workers inherit a full mask. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failure = 0;
    for (int32_t i = 0; i < threads - 1 && !failure; ++i) {
        failure = fail_thread_in == i + 1 ? -1 : pthread_create(&pool->workers[i], NULL, work, pool);
        if (!failure) pool->n_started = i + 1;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failure) {
        int32_t started = pool->n_started + 1;
        attn_cpu_pool_destroy(mem, pool);
        FAIL2(ATTN_E_THREAD, "threads", threads, started, "threads: %d wanted, thread %d could not be started (%s)",
              threads, started + 1, failure < 0 ? "injected fault" : "the system refused it");
    }
    *out = pool;
    return ATTN_OK;
}
