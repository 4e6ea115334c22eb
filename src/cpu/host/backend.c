/* SPDX-License-Identifier: MIT
 * The CPU as a backend: one device, its thread pool made at the first plan, and the kernel sets in order of speed. */
#include "cpu/host/cpu.h"

#include "core/ctx.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* "model name : ..." of the first processor; not every system has the file or the line. */
static void read_cpu_name(char *name, size_t bytes) {
    snprintf(name, bytes, "CPU");
    FILE *file = fopen("/proc/cpuinfo", "re");
    if (!file) return;
    char line[512];
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, "model name", 10)) continue;
        const char *value = strchr(line, ':');
        if (!value) continue;
        value += 1 + strspn(value + 1, " \t");
        size_t n = strcspn(value, "\n");
        if (n) snprintf(name, bytes, "%.*s", (int)n, value);
        break;
    }
    fclose(file);
}

static attn_status open_cpu(struct attn_ctx *ctx, struct attn_core_device *devices, int32_t *n_devices) {
    struct attn_core_device *dev = &devices[0];
    memset(dev, 0, sizeof *dev);
    dev->id = ATTN_DEVICE_CPU;
    dev->threads = ctx->threads;
    struct attn_text text = attn_text_over(dev->feature_text, sizeof dev->feature_text);
    dev->features = attn_cpu_features(ctx->cpu_isa, &text);
    if (attn_cpu_amx_denied(ctx->cpu_isa)) {
        dev->denied = ATTN_CPU_AMX;
        dev->denied_why = "the system's kernel did not permit AMX";
        attn_base_log(&ctx->log, ATTN_LOG_INFO, "cpu", "%s", dev->denied_why);
    }
    dev->subnormals = ctx->env_subnormals;
    const uint64_t flushing = dev->features & (ATTN_CPU_BF16 | ATTN_CPU_AMX);
    if (ctx->env_subnormals == ATTN_SUBNORMALS_EXACT && flushing) {
        dev->features &= ~flushing;
        dev->denied |= flushing;
        dev->denied_why = "VDPBF16PS and TDPBF16PS take subnormal numbers for 0, and ATTN_CPU_SUBNORMALS is exact";
    }
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (pages > 0 && page > 0) dev->memory_bytes = (uint64_t)pages * (uint64_t)page;
    read_cpu_name(dev->name, sizeof dev->name);
    *n_devices = 1;
    return ATTN_OK;
}

/* Threads start at the first plan and not with the context: a program that only asks questions gets none. */
static attn_status prepare_cpu(struct attn_ctx *ctx, struct attn_core_device *dev) {
    attn_status status = ATTN_OK;
    pthread_mutex_lock(&ctx->lock);
    if (!dev->backend) {
        struct attn_cpu_pool *pool = NULL;
        const struct attn_cpu_executor executor = {ctx->submit, ctx->wait, ctx->executor_user};
        status = executor.submit ? attn_cpu_pool_create_over(&ctx->mem, dev->threads, &executor, &pool)
                                 : attn_cpu_pool_create(&ctx->mem, dev->threads, ctx->fail_thread_in, &pool);
        dev->backend = pool;
        if (!status)
            attn_base_log(&ctx->log, ATTN_LOG_INFO, "pool", "%d threads%s on %s", dev->threads,
                          executor.submit ? " of the caller's" : "", dev->name);
    }
    pthread_mutex_unlock(&ctx->lock);
    return status;
}

static void close_cpu(struct attn_ctx *ctx, struct attn_core_device *devices, int32_t n_devices) {
    for (int32_t i = 0; i < n_devices; ++i) {
        attn_cpu_pool_destroy(&ctx->mem, attn_cpu_pool_of(&devices[i]));
        devices[i].backend = NULL;
    }
}

static const struct attn_core_rows sets[] = {
    {attn_cpu_sdpa_rows, &attn_cpu_n_sdpa_rows},
    {attn_cpu_mla_rows, &attn_cpu_n_mla_rows},
    {attn_cpu_mla_join_rows, &attn_cpu_n_mla_join_rows},
    {attn_cpu_ref_rows, &attn_cpu_n_ref_rows},
};

const struct attn_core_backend attn_cpu_backend = {
    .name = "cpu",
    .sets = sets,
    .n_sets = sizeof sets / sizeof sets[0],
    .max_devices = 1,
    .open = open_cpu,
    .prepare = prepare_cpu,
    .close = close_cpu,
    .merge = attn_cpu_merge,
};
