/* SPDX-License-Identifier: MIT
 * What a backend hands to the core: devices and an ordered table of kernels. Plans call kernels through this and
 * nothing else. A kernel refuses a problem with a sentence; it never ignores a feature. */
#ifndef ATTN_CORE_KERNEL_H
#define ATTN_CORE_KERNEL_H
#include "attn.h"
#include "base/text.h"

struct attn_ctx;
struct attn_plan;

/* A device as the core sees it. Backends fill it in open(). */
struct attn_core_device {
    attn_device id;
    int32_t arch;      /* CUDA: 80, 90, ...; CPU: 0 */
    uint64_t features; /* backend's own bits (ATTN_CPU_AVX2, ...) */
    uint64_t denied;   /* feature bits withheld above, for the reason in denied_why */
    const char *denied_why;
    int32_t threads;    /* CPU: threads that work on one execution, the caller's included */
    int32_t subnormals; /* CPU: one of ATTN_SUBNORMALS_* */
    uint64_t memory_bytes;
    void *backend; /* pool, driver handle, ... owned by the backend */
    char name[96], feature_text[160];
};

/* Work of a problem: attn_problem_flops, attn_problem_bytes. */
struct attn_core_amount {
    double flops, bytes;
};

/* One kernel. `problem` below is always checked and normalised (core/problem.h). */
struct attn_kernel {
    const char *name;    /* attn_<op>_<arch>_<dtype>_<variant> */
    const char *arch;    /* "ref", "c", "avx2", "avx512", "avx512bf16", "amx", "sm80" */
    const char *summary; /* limits in words */
    int32_t op, backend, dtype, math_dtype, accumulator_dtype;
    int32_t device_type; /* ATTN_DEVICE_TYPE_*: where it runs */
    uint8_t deterministic, bit_stable;
    uint8_t joins;               /* 1: joins index lists of neighbouring queries, on which a row's bits then depend */
    uint8_t out_f32, max_logits; /* of a forward: takes out_dtype F32 with 16-bit inputs; sdpa_fwd: ATTN_MAX_LOGITS */
    uint32_t alignment_bytes;    /* of addresses and outer strides; 0 = element size */
    uint64_t features;           /* device feature bits it needs */
    const void *impl;            /* the row's own data (a microkernel table, an image) */

    /* Asked for problems of the row's own op and dtype. 1 = accepts; 0 = refuses, `why` says the reason in words ("head
     * dim 640 is over 512"). */
    int (*supports)(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *problem,
                    struct attn_text *why);
    /* Seconds, to rank by. `amount` is the problem's, counted once for all rows that are asked. */
    double (*estimate)(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *problem,
                       const struct attn_core_amount *amount);
    uint64_t (*workspace)(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *problem);
    /* Rows that join lists: neighbouring queries of a group, in a problem that they accept. NULL elsewhere. */
    int64_t (*group)(const struct attn_kernel *kernel, const attn_problem *problem);
    /* Entries of a union above which it leaves a group apart that it joins itself. NULL: it joins all. */
    int64_t (*union_limit)(const struct attn_kernel *kernel, const attn_problem *problem);
    /* One-time set-up of this row on a device (load an image, raise a limit), called by every plan creation that chose
     * it; cheap when warm. May be NULL. */
    attn_status (*prepare)(const struct attn_kernel *k, struct attn_core_device *dev, const attn_problem *problem);
    /* args are validated, workspace is aligned to 64 bytes and large enough. */
    attn_status (*launch)(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *problem,
                          const attn_args *args);
    /* 1 if it cannot take the strides of these tensors, which are valid: `why` says the reason and *role which tensor.
     * They get the plan's second kernel, as tensors without the alignment do. NULL: it takes any. */
    int (*refuses_strides)(const attn_problem *problem, const attn_args *args, int32_t *role, struct attn_text *why);
    /* What of a launch does not depend on args, for rows whose host time counts: a plan keeps `prepared_bytes` that
     * write_prepared() fills in after prepare(), and calls launch_prepared instead of launch, which must do the same.
     * All three or none. */
    uint32_t prepared_bytes;
    void (*write_prepared)(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *problem,
                           void *prepared);
    attn_status (*launch_prepared)(const struct attn_kernel *k, const struct attn_core_device *dev,
                                   const attn_problem *problem, const void *prepared, const attn_args *args);
};

struct attn_core_rows {
    const struct attn_kernel *rows;
    const int32_t *n_rows;
};

/* A backend: rows plus life cycle. prepare() is called by every plan creation on a device and must be cheap when warm.
 */
struct attn_core_backend {
    const char *name;
    const struct attn_core_rows *sets; /* considered in this order */
    int32_t n_sets;
    int32_t max_devices;
    attn_status (*open)(struct attn_ctx *ctx, struct attn_core_device *devices, int32_t *n_devices);
    attn_status (*prepare)(struct attn_ctx *ctx, struct attn_core_device *device); /* may be NULL */
    void (*close)(struct attn_ctx *ctx, struct attn_core_device *devices, int32_t n_devices);

    /* Device memory; all NULL where the device's memory is the host's. copy_within: also between two devices of the
     * backend. */
    attn_status (*alloc)(struct attn_ctx *ctx, struct attn_core_device *device, size_t bytes, void **out);
    void (*free)(struct attn_ctx *ctx, struct attn_core_device *device, void *memory);
    attn_status (*copy_in)(struct attn_ctx *ctx, struct attn_core_device *device, void *dst, const void *host_src,
                           size_t bytes);
    attn_status (*copy_out)(struct attn_ctx *ctx, struct attn_core_device *device, void *host_dst, const void *src,
                            size_t bytes);
    attn_status (*copy_within)(struct attn_ctx *ctx, struct attn_core_device *device, void *dst, const void *src,
                               size_t bytes);
    attn_status (*synchronize)(struct attn_ctx *ctx, struct attn_core_device *device);

    /* attn_merge of args that are checked; NULL: it has none. */
    attn_status (*merge)(const struct attn_core_device *device, const attn_merge_args *args);
    /* What a plan keeps between executions of one of its kernels, made with the plan: *cache NULL if there is nothing
     * to keep, then executions are launches as anywhere. Else they go through execute(), from many threads at once; it
     * does what attn_core_launch_now would. All three or none. */
    attn_status (*cache_open)(struct attn_ctx *ctx, struct attn_core_device *device, void **cache);
    void (*cache_close)(struct attn_ctx *ctx, struct attn_core_device *device, void *cache);
    attn_status (*execute)(const struct attn_plan *plan, const struct attn_kernel *k, void *cache,
                           const attn_args *args);
    /* A number that names the stream for the life of the process, whatever handle it goes by; or *capturing = 1, if it
     * records a graph, and no number. For attn_run, which keeps workspaces per stream. */
    attn_status (*stream_id)(struct attn_ctx *ctx, struct attn_core_device *device, void *stream, uint64_t *id,
                             int *capturing);
};

#define ATTN_WORKSPACE_ALIGNMENT 64
#endif
