/* SPDX-License-Identifier: MIT
 * The context's fields. Created and destroyed by src/api/ctx.c; the core reads it. */
#ifndef ATTN_CORE_CTX_H
#define ATTN_CORE_CTX_H
#include "base/float_mode.h"
#include "base/log.h"
#include "base/mem.h"
#include "core/kernel.h"

#include <pthread.h>

enum { ATTN_MAX_DEVICES = 32, ATTN_MAX_BACKENDS = 4 };

struct attn_core_tuning; /* core/tune.h */

struct attn_ctx {
    _Atomic int64_t refs;
    struct attn_mem mem;
    struct attn_log log;
    int32_t threads;       /* wanted CPU threads, >= 1 */
    char cpu_isa[16];      /* cap, "" = none */
    char cuda_driver[512]; /* "" = default */
    char env_kernel[128];  /* ATTN_KERNEL at creation */
    int32_t env_backend;   /* ATTN_BACKEND at creation */
    uint8_t env_explain, env_check, env_poison;
    int32_t env_subnormals; /* ATTN_SUBNORMALS_* of ATTN_CPU_SUBNORMALS */
    attn_submit_fn submit;  /* the caller's threads, or NULL */
    attn_wait_fn wait;
    void *executor_user;
    int64_t fail_thread_in; /* ATTN_FAIL_THREAD: the n-th thread start fails; 0 = off */

    const struct attn_core_backend *const *backends; /* kernel_list.c, in order of consideration */
    int32_t n_backends;
    struct attn_core_device devices[ATTN_MAX_DEVICES];
    int32_t n_devices;
    int32_t backend_first[ATTN_MAX_BACKENDS], backend_devices[ATTN_MAX_BACKENDS]; /* slice of devices[] per backend */

    struct attn_core_tuning *tuning; /* never NULL after creation */
    pthread_mutex_t lock;            /* tuning table, plan cache, lazy set-up of backends */
    void *plan_cache;                /* api's, for attn_run */
    void *cuda;                      /* the CUDA backend's: driver, devices, or the reason why there are none */
};
#endif
