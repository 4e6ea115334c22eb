/* SPDX-License-Identifier: MIT
 * Thread pool: every task is done exactly once, by workers of different indices, and the caller waits for nobody who
 * has none, whether the pool is free, in use by another thread, called from inside a job, or left behind by fork;
 * failed thread starts leave nothing. */
#include "cpu/host/cpu.h"

#include "base/err.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static _Atomic int64_t live_bytes;

static void *counting_alloc(void *user, size_t bytes, size_t alignment) {
    (void)user;
    atomic_fetch_add(&live_bytes, (int64_t)bytes);
    return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}
static void counting_free(void *user, void *memory, size_t bytes) {
    (void)user;
    atomic_fetch_sub(&live_bytes, (int64_t)bytes);
    free(memory);
}
static struct attn_mem make_mem(void) {
    struct attn_mem mem;
    attn_base_mem_init(&mem, counting_alloc, counting_free, NULL, 0);
    return mem;
}

static struct attn_cpu_pool *make_pool(struct attn_mem *mem, int32_t threads) {
    struct attn_cpu_pool *pool = NULL;
    assert_int_equal(attn_cpu_pool_create(mem, threads, 0, &pool), ATTN_OK);
    return pool;
}

static int n_threads_now(void) {
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    int n = -1;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "Threads: %d", &n) == 1) break;
    if (file) fclose(file);
    return n;
}

struct tally {
    struct attn_cpu_counter next;
    int32_t tasks, workers;
    _Atomic int32_t hits[64], came[64]; /* of a task, of a worker in this run */
    int32_t plain;                      /* no atomic: only right if run() orders memory before and after */
    pthread_t caller;
    _Atomic int32_t worker0_elsewhere, twice;
};
static void count_job(void *arg, int32_t worker) {
    struct tally *t = arg;
    if (worker < 0 || worker >= t->workers || atomic_fetch_add(&t->came[worker], 1)) atomic_fetch_add(&t->twice, 1);
    for (int64_t i; (i = attn_cpu_next(&t->next)) < t->tasks;) atomic_fetch_add(&t->hits[i], 1);
    if (worker == 0) {
        t->plain++;
        if (!pthread_equal(t->caller, pthread_self())) atomic_fetch_add(&t->worker0_elsewhere, 1);
    }
}
static void count(struct attn_cpu_pool *pool, int32_t n, struct tally *t) {
    memset(t->came, 0, sizeof t->came);
    t->next = (struct attn_cpu_counter){0};
    t->tasks = t->workers = n;
    attn_cpu_pool_run(pool, n, count_job, t);
}

static void test_hammer(void **state) {
    (void)state;
    struct attn_mem mem = make_mem();
    for (int32_t threads = 1; threads <= 7; threads += 2) {
        struct attn_cpu_pool *pool = make_pool(&mem, threads);
        struct tally t = {.caller = pthread_self()};
        int32_t want[64] = {0};
        for (int run = 0; run < 4000; ++run) {
            int32_t n = 1 + run % threads;
            count(pool, n, &t);
            for (int32_t w = 0; w < n; ++w) want[w]++;
            if (run % 1000 == 999) { /* let the workers fall asleep */
                struct timespec nap = {0, 2000000};
                nanosleep(&nap, NULL);
            }
            for (int32_t w = 0; w < threads; ++w) assert_int_equal(atomic_load(&t.hits[w]), want[w]);
        }
        assert_int_equal(t.plain, 4000);
        assert_int_equal(atomic_load(&t.worker0_elsewhere), 0);
        assert_int_equal(atomic_load(&t.twice), 0);
        attn_cpu_pool_destroy(&mem, pool);
    }
    assert_int_equal(atomic_load(&live_bytes), 0);
}

/* Work by counter: each of 100000 items once, whoever takes it. */
struct items {
    struct attn_cpu_counter counter;
    uint8_t seen[100000];
};
static void take_items(void *arg, int32_t worker) {
    struct items *items = arg;
    (void)worker;
    for (int64_t i; (i = attn_cpu_next(&items->counter)) < (int64_t)sizeof items->seen;) items->seen[i]++;
}
static void test_counter(void **state) {
    (void)state;
    static struct items items;
    struct attn_mem mem = make_mem();
    struct attn_cpu_pool *pool = make_pool(&mem, 4);
    attn_cpu_pool_run(pool, 4, take_items, &items);
    for (size_t i = 0; i < sizeof items.seen; ++i) assert_int_equal(items.seen[i], 1);
    attn_cpu_pool_destroy(&mem, pool);
}

struct nest {
    struct attn_cpu_pool *pool;
    struct attn_cpu_counter next;
    struct tally inner[8];
};
static void nest_job(void *arg, int32_t worker) {
    struct nest *nest = arg;
    (void)worker;
    for (int64_t t; (t = attn_cpu_next(&nest->next)) < 4;) {
        nest->inner[t].caller = pthread_self();
        for (int i = 0; i < 3; ++i) count(nest->pool, 4, &nest->inner[t]);
    }
}
static void test_nested(void **state) {
    (void)state;
    struct attn_mem mem = make_mem();
    static struct nest nest;
    nest.pool = make_pool(&mem, 4);
    for (int run = 0; run < 200; ++run) {
        memset(nest.inner, 0, sizeof nest.inner);
        nest.next = (struct attn_cpu_counter){0};
        attn_cpu_pool_run(nest.pool, 4, nest_job, &nest);
        for (int w = 0; w < 4; ++w) {
            for (int j = 0; j < 4; ++j) assert_int_equal(atomic_load(&nest.inner[w].hits[j]), 3);
            assert_int_equal(atomic_load(&nest.inner[w].worker0_elsewhere), 0);
        }
    }
    attn_cpu_pool_destroy(&mem, nest.pool);
}

struct client {
    struct attn_cpu_pool *pool;
    pthread_t thread;
    int bad;
};
static void *client_main(void *arg) {
    struct client *c = arg;
    for (int run = 0; run < 2000; ++run) {
        struct tally t = {.caller = pthread_self()};
        count(c->pool, 3, &t);
        for (int w = 0; w < 3; ++w) c->bad += atomic_load(&t.hits[w]) != 1;
        c->bad += t.plain != 1 || atomic_load(&t.worker0_elsewhere) != 0 || atomic_load(&t.twice) != 0;
    }
    return NULL;
}
static void test_concurrent(void **state) {
    (void)state;
    struct attn_mem mem = make_mem();
    struct attn_cpu_pool *pool = make_pool(&mem, 3);
    struct client clients[4];
    for (int i = 0; i < 4; ++i) {
        clients[i] = (struct client){.pool = pool};
        assert_int_equal(pthread_create(&clients[i].thread, NULL, client_main, &clients[i]), 0);
    }
    for (int i = 0; i < 4; ++i) {
        pthread_join(clients[i].thread, NULL);
        assert_int_equal(clients[i].bad, 0);
    }
    attn_cpu_pool_destroy(&mem, pool);
    assert_int_equal(atomic_load(&live_bytes), 0);
}

/* More jobs than threads, no pool at all, and no jobs. */
static void test_odd_counts(void **state) {
    (void)state;
    struct attn_mem mem = make_mem();
    struct attn_cpu_pool *pool = make_pool(&mem, 2);
    struct tally t = {.caller = pthread_self()};
    count(pool, 9, &t);
    count(NULL, 9, &t);
    count(pool, 0, &t);
    for (int w = 0; w < 9; ++w) assert_int_equal(atomic_load(&t.hits[w]), 2);
    attn_cpu_pool_destroy(&mem, pool);
    attn_cpu_pool_destroy(&mem, NULL);
    struct attn_cpu_pool *none = NULL;
    assert_int_equal(attn_cpu_pool_create(&mem, 0, 0, &none), ATTN_E_THREAD);
    assert_int_equal(attn_cpu_pool_create(&mem, 1 << 20, 0, &none), ATTN_E_THREAD);
    assert_null(none);
}

static void test_thread_fault(void **state) {
    (void)state;
    struct attn_mem mem = make_mem();
    int before = n_threads_now();
    for (int64_t fault = 1; fault <= 5; ++fault) {
        struct attn_cpu_pool *pool = NULL;
        attn_status status = attn_cpu_pool_create(&mem, 5, fault, &pool);
        if (fault < 5) { /* four threads are started beside the caller */
            assert_int_equal(status, ATTN_E_THREAD);
            assert_null(pool);
            assert_string_equal(attn_base_error_get()->argument, "threads");
            assert_int_equal(attn_base_error_get()->expected, 5);
            assert_int_equal(attn_base_error_get()->given, fault);
        } else {
            assert_int_equal(status, ATTN_OK);
            attn_cpu_pool_destroy(&mem, pool);
        }
        assert_int_equal(atomic_load(&live_bytes), 0);
        for (int wait = 0; wait < 200 && n_threads_now() != before; ++wait) {
            struct timespec nap = {0, 1000000}; /* a joined thread may stay listed for a moment */
            nanosleep(&nap, NULL);
        }
        assert_int_equal(n_threads_now(), before);
    }
    atomic_store(&mem.fail_in, 1);
    struct attn_cpu_pool *pool = NULL;
    assert_int_equal(attn_cpu_pool_create(&mem, 5, 0, &pool), ATTN_E_MEMORY);
}

static void test_fork(void **state) {
    (void)state;
    struct attn_mem mem = make_mem();
    struct attn_cpu_pool *pool = make_pool(&mem, 4);
    struct tally t = {.caller = pthread_self()};
    count(pool, 4, &t);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(20); /* a deadlock ends the child by signal */
        count(pool, 4, &t);
        int bad = 0;
        for (int w = 0; w < 4; ++w) bad += atomic_load(&t.hits[w]) != 2;
        attn_cpu_pool_destroy(&mem, pool);
        _exit(bad || atomic_load(&live_bytes) != 0);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    count(pool, 4, &t); /* the parent's pool is as it was */
    for (int w = 0; w < 4; ++w) assert_int_equal(atomic_load(&t.hits[w]), 2);
    attn_cpu_pool_destroy(&mem, pool);
}

/* A second caller while the pool is busy must finish on its own: here the first job waits for it. */
struct blocked {
    struct attn_cpu_pool *pool;
    pthread_t other;
    struct tally tally;
    _Atomic int32_t joined;
};
static void *second_caller(void *arg) {
    struct blocked *b = arg;
    b->tally.caller = pthread_self();
    count(b->pool, 4, &b->tally);
    return NULL;
}
static void blocking_job(void *arg, int32_t worker) {
    struct blocked *b = arg;
    if (worker != 0) return;
    if (!pthread_create(&b->other, NULL, second_caller, b)) atomic_store(&b->joined, pthread_join(b->other, NULL) == 0);
}
static void test_busy(void **state) {
    (void)state;
    struct attn_mem mem = make_mem();
    static struct blocked b;
    b.pool = make_pool(&mem, 4);
    attn_cpu_pool_run(b.pool, 4, blocking_job, &b);
    assert_int_equal(atomic_load(&b.joined), 1);
    for (int w = 0; w < 4; ++w) assert_int_equal(atomic_load(&b.tally.hits[w]), 1);
    attn_cpu_pool_destroy(&mem, b.pool);
}

/* A worker that has taken a task is waited for: run() returns after it. */
struct held {
    struct attn_cpu_counter next;
    _Atomic int32_t release, inside;
};
static void held_job(void *arg, int32_t worker) {
    struct held *h = arg;
    if (attn_cpu_next(&h->next) > 1) return;
    atomic_fetch_add(&h->inside, 1);
    if (worker) { /* a worker that has a task is waited for */
        while (!atomic_load(&h->release)) sched_yield();
    } else { /* the caller, until a worker has joined; then it lets go and must find that worker's task done */
        while (atomic_load(&h->inside) < 2) sched_yield();
        atomic_store(&h->release, 1);
    }
    atomic_fetch_add(&h->inside, 2);
}
static void test_waits_for_tasks(void **state) {
    (void)state;
    struct attn_mem mem = make_mem();
    struct attn_cpu_pool *pool = make_pool(&mem, 2);
    for (int run = 0; run < 200; ++run) {
        struct held h = {.release = 0};
        attn_cpu_pool_run(pool, 2, held_job, &h);
        assert_int_equal(atomic_load(&h.inside), 6);
        if (run % 50 == 49) nanosleep(&(struct timespec){0, 2000000}, NULL);
    }
    attn_cpu_pool_destroy(&mem, pool);
}

/* A run inside a run whose only worker is held: it is done by its caller, at once. */
struct stuck {
    struct attn_cpu_pool *pool;
    _Atomic int32_t release, inside, alone;
};
static void stuck_job(void *arg, int32_t worker) {
    struct stuck *s = arg;
    atomic_fetch_add(&s->inside, 1);
    if (worker) {
        while (!atomic_load(&s->release)) sched_yield();
        return;
    }
    while (atomic_load(&s->inside) < 2) sched_yield();
    struct tally t = {.caller = pthread_self()};
    count(s->pool, 8, &t); /* in use: alone, at once */
    int good = 1;
    for (int i = 0; i < 8; ++i) good &= atomic_load(&t.hits[i]) == 1;
    atomic_store(&s->alone, good && atomic_load(&t.came[0]) == 1);
    atomic_store(&s->release, 1);
}
static void test_alone_when_stuck(void **state) {
    (void)state;
    struct attn_mem mem = make_mem();
    struct stuck s = {.pool = make_pool(&mem, 2)};
    attn_cpu_pool_run(s.pool, 2, stuck_job, &s);
    assert_int_equal(atomic_load(&s.alone), 1);
    attn_cpu_pool_destroy(&mem, s.pool);
}

/* A caller does not wait until sleeping workers have come: jobs that last nothing are over before most have. */
static void no_wait_job(void *arg, int32_t worker) {
    struct attn_cpu_counter *next = arg;
    (void)worker;
    attn_cpu_next(next);
}
static void test_no_wait(void **state) {
    (void)state;
    enum { THREADS = 256, RUNS = 300 };
    struct attn_mem mem = make_mem();
    struct attn_cpu_pool *pool = make_pool(&mem, THREADS);
    nanosleep(&(struct timespec){0, 20000000}, NULL); /* all asleep */
    int64_t entered = 0;
    for (int run = 0; run < RUNS; ++run) {
        struct attn_cpu_counter next = {0};
        attn_cpu_pool_run(pool, THREADS, no_wait_job, &next);
        entered += atomic_load(&next.next);
    }
    assert_in_range(entered, RUNS, (int64_t)RUNS * THREADS / 2); /* a pool that waits for all has RUNS * THREADS */
    attn_cpu_pool_destroy(&mem, pool);
}

static void test_crew(void **state) {
    (void)state;
    assert_int_equal(attn_cpu_crew(8, 16384, 17000, 90e9), 1); /* 4 heads, one query on 16 keys */
    assert_int_equal(attn_cpu_crew(8, 2.5 * 40e4, 0, 90e9), 3);
    assert_int_equal(attn_cpu_crew(8, 0, 40e4, 90e9), 8);
    assert_int_equal(attn_cpu_crew(8, 1e30, 1e30, 12e9), 8);
    assert_int_equal(attn_cpu_at_most(8, 3), 3);
    assert_int_equal(attn_cpu_at_most(8, 0), 1);
    assert_int_equal(attn_cpu_at_most(8, INT64_MAX), 8);
}

static void test_features(void **state) {
    (void)state;
    char buf[160];
    struct attn_text text = attn_text_over(buf, sizeof buf);
    uint64_t all = attn_cpu_features("", &text), before = 0;
    const char *caps[] = {"c", "avx2", "avx512", "avx512bf16", "amx"};
    assert_true(text.len > 0 && text.len < sizeof buf);
    assert_int_equal(attn_cpu_features(NULL, NULL), all);
    for (int i = 0; i < 5; ++i) { /* each cap keeps what the one below has, and never more than the machine */
        uint64_t some = attn_cpu_features(caps[i], NULL);
        assert_int_equal(some & before, before);
        assert_int_equal(some & ~all, 0);
        assert_int_equal(some >> (i + 1), 0);
        before = some;
    }
    assert_int_equal(before, all);
    assert_int_equal(attn_cpu_features("c", NULL), ATTN_CPU_C);
}

static void test_flush(void **state) {
    (void)state;
    volatile float tiny = 0x1p-140f, half = 0.5f;
    assert_true(tiny * half > 0);
    uint32_t mode = attn_base_float_begin(ATTN_SUBNORMALS_FLUSH);
#if defined(__SSE2__)
    volatile float flushed = tiny * half;
    int is_zero = flushed == 0;
#else
    int is_zero = 1;
#endif
    attn_base_float_end(mode);
    assert_true(is_zero);
    assert_true(tiny * half > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hammer),
        cmocka_unit_test(test_counter),
        cmocka_unit_test(test_nested),
        cmocka_unit_test(test_concurrent),
        cmocka_unit_test(test_busy),
        cmocka_unit_test(test_odd_counts),
        cmocka_unit_test(test_thread_fault),
        cmocka_unit_test(test_fork),
        cmocka_unit_test(test_features),
        cmocka_unit_test(test_flush),
        cmocka_unit_test(test_waits_for_tasks),
        cmocka_unit_test(test_alone_when_stuck),
        cmocka_unit_test(test_no_wait),
        cmocka_unit_test(test_crew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
