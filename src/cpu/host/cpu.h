/* SPDX-License-Identifier: MIT
 * The CPU backend's inside: feature bits, thread pool, and the kernel rows each file contributes. */
#ifndef ATTN_CPU_HOST_CPU_H
#define ATTN_CPU_HOST_CPU_H
#include "base/float_mode.h"
#include "base/mem.h"
#include "core/kernel.h"

/* Feature levels, each includes the ones before: bits of attn_core_device.features. */
#define ATTN_CPU_C      (UINT64_C(1) << 0)
#define ATTN_CPU_AVX2   (UINT64_C(1) << 1) /* AVX2, FMA, F16C             */
#define ATTN_CPU_AVX512 (UINT64_C(1) << 2) /* F, BW, DQ, VL               */
#define ATTN_CPU_BF16   (UINT64_C(1) << 3) /* AVX-512 with BF16           */
#define ATTN_CPU_AMX    (UINT64_C(1) << 4) /* AMX tile, bf16; permission granted */

/* cpuid and xgetbv; `cap` is "", "c", "avx2", "avx512", "avx512bf16" or "amx". text (may be NULL) gets names for a
 * person. */
uint64_t attn_cpu_features(const char *cap, struct attn_text *text);
/* 1: the processor has AMX and the cap allows it, but the system refused its registers. */
int attn_cpu_amx_denied(const char *cap);

/* Thread pool. run() calls job(arg, 0) on the calling thread and job(arg, w), with different w in 1 .. n-1, on workers
 * that come while it runs: on none, if they are busy, asleep or not scheduled. It returns when all of these have. Jobs
 * share tasks through an attn_cpu_counter and return only when no task is left to take, so that the caller never waits
 * for a worker that has no task, and results do not depend on who came. Never allocates. When another thread is using
 * the pool, the caller works alone. Workers run in the caller's floating-point mode. */
struct attn_cpu_pool;
typedef void (*attn_cpu_job)(void *arg, int32_t worker);
attn_status attn_cpu_pool_create(struct attn_mem *mem, int32_t threads, int64_t fail_thread_in,
                                 struct attn_cpu_pool **out);
/* The same over threads of the caller's: it starts none. */
struct attn_cpu_executor {
    attn_submit_fn submit;
    attn_wait_fn wait;
    void *user;
};
attn_status attn_cpu_pool_create_over(struct attn_mem *mem, int32_t threads, const struct attn_cpu_executor *executor,
                                      struct attn_cpu_pool **out);
void attn_cpu_pool_destroy(struct attn_mem *mem, struct attn_cpu_pool *pool);
void attn_cpu_pool_run(struct attn_cpu_pool *pool, int32_t n, attn_cpu_job job, void *arg);

/* Shared counter of tasks: attn_cpu_next returns 0, 1, 2, ... once each. */
struct attn_cpu_counter {
    _Atomic int64_t next;
};
static inline int64_t attn_cpu_next(struct attn_cpu_counter *c) {
    return atomic_fetch_add_explicit(&c->next, 1, memory_order_relaxed);
}

/* Threads, at most `threads`, that pay for work of `flops` with `bytes` from memory: one more for each wake-up time
 * that the work takes, and one alone for work that ends before a worker is awake. rate: flops per second of a thread;
 * short work does not reach a processor's best rate. */
static inline int32_t attn_cpu_crew(int32_t threads, double flops, double bytes, double rate) {
    enum { BYTE_FLOPS = 20 };
    const double wake_seconds = 10e-6, short_rate = 40e9;
    const double worth = (flops + BYTE_FLOPS * bytes) / ((rate < short_rate ? rate : short_rate) * wake_seconds);
    return worth < threads - 1 ? 1 + (int32_t)worth : threads;
}
/* No more threads than tasks; at least 1. */
static inline int32_t attn_cpu_at_most(int32_t threads, int64_t tasks) {
    return tasks >= threads ? threads : tasks < 1 ? 1 : (int32_t)tasks;
}

static inline struct attn_cpu_pool *attn_cpu_pool_of(const struct attn_core_device *dev) {
    return (struct attn_cpu_pool *)dev->backend;
}

/* attn_merge of checked args (cpu/dense/merge.c). */
attn_status attn_cpu_merge(const struct attn_core_device *dev, const attn_merge_args *args);

/* Backend singletons, listed by api/kernel_list.c. backend.c joins the rows of the files below. */
extern const struct attn_core_backend attn_cpu_backend;

/* Kernel rows. Within the CPU table: fast ISA first, ref last. */
extern const struct attn_kernel attn_cpu_sdpa_rows[];
extern const int32_t attn_cpu_n_sdpa_rows;
extern const struct attn_kernel attn_cpu_mla_rows[];
extern const int32_t attn_cpu_n_mla_rows;
extern const struct attn_kernel attn_cpu_mla_join_rows[];
extern const int32_t attn_cpu_n_mla_join_rows;
extern const struct attn_kernel attn_cpu_ref_rows[];
extern const int32_t attn_cpu_n_ref_rows;
#endif
