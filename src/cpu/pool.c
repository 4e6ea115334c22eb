/* SPDX-License-Identifier: MIT
 * The thread pool. Workers spin for a moment after a job, since the next one usually follows at once, then sleep.
 *
 * A run is announced by one 64-bit ticket: a serial number and the count of workers that take part. A worker that is
 * not counted in the ticket it read touches nothing else, so a late one can never pick up half of the next run; a
 * worker that is counted holds the run open until it has finished, so job and arg stand still while it reads them. */
#include "cpu/cpu.h"

#include "base/err.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

enum { SPIN_NS = 50000, SPIN_CHECK = 32, TICKET_BITS = 16, MAX_THREADS = 1 << (TICKET_BITS - 1) };

struct worker {
    struct attn_cpu_pool *pool;
    pthread_t thread;
    int32_t index; /* 1 .. threads-1; worker 0 is the caller */
};

struct attn_cpu_pool {
    _Atomic uint64_t ticket; /* serial << TICKET_BITS | workers of the run */
    _Atomic int32_t stop;
    _Atomic int32_t sleepers; /* workers inside cond_wait, changed under lock */
    attn_cpu_job job;
    void *arg;
    _Alignas(64) _Atomic int32_t remaining; /* other workers that still run this job */
    _Atomic int32_t caller_sleeps;
    _Alignas(64) _Atomic int32_t busy; /* a run is in progress */
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    pid_t owner; /* the process that has the threads: a fork's child has none */
    int32_t threads, n_started;
    size_t bytes;
    struct worker workers[];
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

/* The next ticket after `seen`, or `seen` itself when the pool stops. */
static uint64_t wait_ticket(struct attn_cpu_pool *pool, uint64_t seen) {
    int64_t end = now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < SPIN_CHECK; ++i) {
            uint64_t ticket = atomic_load(&pool->ticket);
            if (ticket != seen || atomic_load(&pool->stop)) return ticket;
            pause_cpu();
        }
    } while (now_ns() < end);
    pthread_mutex_lock(&pool->lock);
    /* Counted before the ticket is read: either the caller sees the sleeper and wakes it under the lock, or the
     * sleeper sees the ticket (both sides sequentially consistent). */
    atomic_fetch_add(&pool->sleepers, 1);
    while (atomic_load(&pool->ticket) == seen && !atomic_load(&pool->stop)) pthread_cond_wait(&pool->wake, &pool->lock);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->lock);
    return atomic_load(&pool->ticket);
}

static void *work(void *arg) {
    struct worker *me = arg;
    struct attn_cpu_pool *pool = me->pool;
    uint64_t seen = 0;
    for (;;) {
        uint64_t ticket = wait_ticket(pool, seen);
        if (ticket == seen) return NULL;
        seen = ticket;
        if (me->index >= (int32_t)(ticket & ((UINT64_C(1) << TICKET_BITS) - 1))) continue;
        pool->job(pool->arg, me->index);
        if (atomic_fetch_sub(&pool->remaining, 1) == 1 && atomic_load(&pool->caller_sleeps)) {
            pthread_mutex_lock(&pool->lock);
            pthread_cond_signal(&pool->done);
            pthread_mutex_unlock(&pool->lock);
        }
    }
}

static void wait_done(struct attn_cpu_pool *pool) {
    int64_t end = now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < SPIN_CHECK; ++i) {
            if (!atomic_load(&pool->remaining)) return;
            pause_cpu();
        }
    } while (now_ns() < end);
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->caller_sleeps, 1);
    while (atomic_load(&pool->remaining)) pthread_cond_wait(&pool->done, &pool->lock);
    atomic_store(&pool->caller_sleeps, 0);
    pthread_mutex_unlock(&pool->lock);
}

void attn_cpu_pool_run(struct attn_cpu_pool *pool, int32_t n, attn_cpu_job job, void *arg) {
    int32_t idle = 0;
    /* getpid before anything shared: in a fork's child the lock and the counters are as some thread left them. */
    if (n <= 1 || !pool || !pool->n_started || getpid() != pool->owner ||
        !atomic_compare_exchange_strong(&pool->busy, &idle, 1)) {
        for (int32_t w = 0; w < n; ++w) job(arg, w);
        return;
    }
    pool->job = job;
    pool->arg = arg;
    int32_t at_once = n <= pool->threads ? n : pool->threads;
    atomic_store(&pool->remaining, at_once - 1);
    uint64_t serial = (atomic_load(&pool->ticket) >> TICKET_BITS) + 1;
    atomic_store(&pool->ticket, serial << TICKET_BITS | (uint64_t)at_once);
    if (atomic_load(&pool->sleepers)) {
        pthread_mutex_lock(&pool->lock);
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->lock);
    }
    job(arg, 0);
    for (int32_t w = at_once; w < n; ++w) job(arg, w); /* more jobs than threads */
    wait_done(pool);
    atomic_store(&pool->busy, 0);
}

static void stop_and_join(struct attn_cpu_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->stop, 1);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (int32_t i = 0; i < pool->n_started; ++i) pthread_join(pool->workers[i].thread, NULL);
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

attn_status attn_cpu_pool_create(struct attn_mem *mem, int32_t threads, int64_t fail_thread_in,
                                 struct attn_cpu_pool **out) {
    if (threads < 1 || threads > MAX_THREADS)
        FAIL2(ATTN_E_THREAD, "threads", MAX_THREADS, threads, "threads: 1 to %d expected, %d given", MAX_THREADS,
              threads);
    size_t bytes = sizeof(struct attn_cpu_pool) + (size_t)(threads - 1) * sizeof(struct worker);
    struct attn_cpu_pool *pool = attn_base_alloc(mem, bytes, 64);
    if (!pool) return ATTN_E_MEMORY;
    pool->bytes = bytes;
    pool->threads = threads;
    pool->owner = getpid();
    pthread_mutex_init(&pool->lock, NULL); /* default attributes: cannot fail on the systems served */
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->done, NULL);

    /* Signals are the application's business: workers inherit a full mask. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failure = 0;
    for (int32_t i = 0; i < threads - 1 && !failure; ++i) {
        struct worker *w = &pool->workers[i];
        w->pool = pool;
        w->index = i + 1;
        failure = fail_thread_in == i + 1 ? -1 : pthread_create(&w->thread, NULL, work, w);
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
