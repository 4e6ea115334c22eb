/* SPDX-License-Identifier: MIT
 * The context: options and environment in, backends opened; released when its last reference and plan are gone. */
#include "api/api.h"
#include "base/env.h"
#include "base/processors.h"
#include "core/problem.h"
#include "core/tune.h"

#include <stdio.h>
#include <string.h>

enum { MAX_THREADS = 1024 };

static int32_t default_threads(void) {
    const int32_t n = attn_base_processors();
    return n > MAX_THREADS ? MAX_THREADS : n;
}

static attn_status check_options(const attn_ctx_options *o) {
    if (o->threads < 0 || o->threads > MAX_THREADS)
        FAIL2(ATTN_E_ARGUMENT, "threads", MAX_THREADS, o->threads, "threads is %d; expected 0 to %d", o->threads,
              MAX_THREADS);
    if (!o->alloc != !o->free)
        FAIL(ATTN_E_ARGUMENT, o->alloc ? "free" : "alloc", "alloc and free must be set together");
    if (!o->submit != !o->wait)
        FAIL(ATTN_E_ARGUMENT, o->submit ? "wait" : "submit", "submit and wait must be set together");
    if (o->log_level < ATTN_LOG_OFF || o->log_level > ATTN_LOG_DEBUG)
        FAIL2(ATTN_E_ENUM, "log_level", ATTN_LOG_DEBUG, o->log_level, "log_level %d is not an ATTN_LOG_*",
              o->log_level);
    if (o->log_level && !o->log)
        FAIL(ATTN_E_ARGUMENT, "log",
             "log_level is set without log; ATTN_LOG alone controls what goes to standard error");
    if (o->reserved0)
        FAIL2(ATTN_E_ABI, "reserved0", 0, o->reserved0, "options.reserved0 is %u; expected 0", o->reserved0);
    return ATTN_OK;
}

static attn_status read_threads(attn_ctx *ctx, const attn_ctx_options *o) {
    ctx->threads = o->threads ? o->threads : default_threads();
    const char *text = attn_base_env(ATTN_ENV_THREADS);
    if (o->threads || !text) return ATTN_OK;
    int64_t n;
    if (attn_text_int64(text, strlen(text), &n) || n < 1 || n > MAX_THREADS)
        FAIL(ATTN_E_ARGUMENT, "threads", "threads: ATTN_THREADS is \"%s\"; expected 1 to %d", text, MAX_THREADS);
    ctx->threads = (int32_t)n;
    return ATTN_OK;
}

static attn_status read_isa(attn_ctx *ctx, const attn_ctx_options *o) {
    static const char *const names[] = {"c", "avx2", "avx512", "avx512bf16", "amx"};
    const char *isa = o->cpu_isa ? o->cpu_isa : attn_base_env(ATTN_ENV_CPU);
    if (!isa) return ATTN_OK;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(isa, names[i])) continue;
        snprintf(ctx->cpu_isa, sizeof ctx->cpu_isa, "%s", isa);
        return ATTN_OK;
    }
    FAIL(ATTN_E_ENUM, "cpu_isa", "cpu_isa%s \"%s\" is not c, avx2, avx512, avx512bf16 or amx",
         o->cpu_isa ? "" : " (ATTN_CPU)", isa);
}

static attn_status read_subnormals(attn_ctx *ctx) {
    const char *word = attn_base_env(ATTN_ENV_CPU_SUBNORMALS);
    ctx->env_subnormals = ATTN_SUBNORMALS_READ;
    if (!word) return ATTN_OK;
    ctx->env_subnormals = !strcmp(word, "exact") ? ATTN_SUBNORMALS_EXACT : ATTN_SUBNORMALS_FLUSH;
    if (ctx->env_subnormals == ATTN_SUBNORMALS_EXACT || !strcmp(word, "flush")) return ATTN_OK;
    FAIL(ATTN_E_ENUM, "ATTN_CPU_SUBNORMALS", "ATTN_CPU_SUBNORMALS is \"%.80s\"; expected exact or flush", word);
}

static attn_status read_preferences(attn_ctx *ctx) {
    static const char *const names[ATTN_BACKEND_COUNT_] = {"any", "ref", "cpu", "cuda"};
    const char *kernel = attn_base_env(ATTN_ENV_KERNEL), *backend = attn_base_env(ATTN_ENV_BACKEND);
    if (kernel && strlen(kernel) >= sizeof ctx->env_kernel)
        FAIL2(ATTN_E_ARGUMENT, "kernel", (int64_t)sizeof ctx->env_kernel - 1, (int64_t)strlen(kernel),
              "kernel: ATTN_KERNEL is longer than %zu characters", sizeof ctx->env_kernel - 1);
    if (kernel) snprintf(ctx->env_kernel, sizeof ctx->env_kernel, "%s", kernel);
    if (!backend) return ATTN_OK;
    for (int32_t i = 0; i < ATTN_BACKEND_COUNT_; i++) {
        if (strcmp(backend, names[i])) continue;
        ctx->env_backend = i;
        return ATTN_OK;
    }
    FAIL(ATTN_E_ENUM, "backend", "backend: ATTN_BACKEND \"%s\" is not any, ref, cpu or cuda", backend);
}

static attn_status read_log(attn_ctx *ctx, const attn_ctx_options *o) {
    const char *spec = attn_base_env(ATTN_ENV_LOG);
    /* Whoever asks for an explanation or a check asks for its lines; ATTN_LOG, if set, decides instead. */
    if (!spec && ctx->env_explain) spec = ctx->env_check ? "info,plan,check" : "info,plan";
    if (!spec && ctx->env_check) spec = "warn,check";
    if (attn_base_log_parse(&ctx->log, spec) && !o->log_level)
        FAIL(
            ATTN_E_ENUM, "log_level",
            "log_level: ATTN_LOG is \"%.200s\"; expected off, warn, info or debug, then areas of %s, with commas between",
            spec, attn_base_log_areas);
    ctx->log.sink = o->log;
    ctx->log.user = o->log_user;
    if (!o->log_level) return ATTN_OK;
    ctx->log.level = o->log_level;
    ctx->log.areas[0] = 0;
    return ATTN_OK;
}

/* A name that starts with ATTN_ may be another program's, so that it is not refused. */
static void warn_unknown_names(const attn_ctx *ctx) {
    const char *name;
    for (size_t cursor = 0; (name = attn_base_env_unknown(&cursor)) != NULL;) {
        const char *nearest = attn_base_env_nearest(name);
        attn_base_log(&ctx->log, ATTN_LOG_WARN, "env", "%.*s is set, but no variable of libattn has this name%s%s%s",
                      (int)strcspn(name, "="), name, nearest ? ", did you mean " : "", nearest ? nearest : "",
                      nearest ? "?" : "");
    }
}

static attn_status read_settings(attn_ctx *ctx, const attn_ctx_options *o) {
    ctx->env_explain = (uint8_t)attn_base_env_bool(ATTN_ENV_EXPLAIN);
    ctx->env_check = (uint8_t)attn_base_env_bool(ATTN_ENV_CHECK);
    ctx->env_poison = (uint8_t)attn_base_env_bool(ATTN_ENV_POISON);
    ctx->fail_thread_in = attn_base_env_int(ATTN_ENV_FAIL_THREAD, 0);
    ctx->submit = o->submit, ctx->wait = o->wait, ctx->executor_user = o->executor_user;
    TRY(read_log(ctx, o));
    TRY(read_threads(ctx, o));
    TRY(attn_base_env_check());
    TRY(read_isa(ctx, o));
    TRY(read_subnormals(ctx));
    TRY(read_preferences(ctx));
    if (o->cuda_driver && strlen(o->cuda_driver) >= sizeof ctx->cuda_driver)
        FAIL2(ATTN_E_ARGUMENT, "cuda_driver", (int64_t)sizeof ctx->cuda_driver - 1, (int64_t)strlen(o->cuda_driver),
              "cuda_driver is longer than %zu characters", sizeof ctx->cuda_driver - 1);
    if (o->cuda_driver) snprintf(ctx->cuda_driver, sizeof ctx->cuda_driver, "%s", o->cuda_driver);
    return ATTN_OK;
}

/* From the last to the first: the host, last in order of consideration, is device 0. destroy() closes every backend,
 * those that were not opened with no devices. */
static attn_status open_backends(attn_ctx *ctx) {
    ctx->backends = attn_api_backends;
    ctx->n_backends = attn_api_n_backends;
    for (int32_t i = attn_api_n_backends - 1; i >= 0; i--) {
        const struct attn_core_backend *b = attn_api_backends[i];
        if (ctx->n_devices + b->max_devices > ATTN_MAX_DEVICES)
            FAIL(ATTN_E_INTERNAL, "ctx", "backend %s: no room for %d devices", b->name, b->max_devices);
        int32_t n = 0;
        TRY(b->open(ctx, ctx->devices + ctx->n_devices, &n));
        ctx->backend_first[i] = ctx->n_devices;
        ctx->backend_devices[i] = n;
        ctx->n_devices += n;
    }
    return ATTN_OK;
}

static attn_status set_up(attn_ctx *ctx, const attn_ctx_options *o) {
    TRY(read_settings(ctx, o));
    struct attn_api_state *state = attn_base_alloc(&ctx->mem, sizeof *state, _Alignof(struct attn_api_state));
    if (!state) return ATTN_E_MEMORY;
    state->trace_file = -1;
    ctx->plan_cache = state;
    TRY(attn_core_tuning_create(&ctx->mem, &ctx->tuning));
    const char *tuning = o->tuning_file ? o->tuning_file : attn_base_env(ATTN_ENV_TUNING);
    if (tuning) TRY(attn_core_tuning_load(&ctx->mem, ctx->tuning, tuning));
    TRY(open_backends(ctx));
    const char *trace = attn_base_env(ATTN_ENV_TRACE);
    if (trace) {
        state->trace_file = attn_api_trace_open(trace);
        if (state->trace_file < 0)
            FAIL(ATTN_E_IO, "trace", "trace: ATTN_TRACE \"%s\" cannot be opened for writing", trace);
    }
    return ATTN_OK;
}

static void destroy(attn_ctx *ctx) {
    if (ctx->plan_cache) {
        attn_api_state_clear(ctx);
        attn_api_trace_close(attn_api_state_of(ctx)->trace_file);
        attn_base_free(&ctx->mem, ctx->plan_cache, sizeof(struct attn_api_state));
    }
    for (int32_t i = 0; i < ctx->n_backends; i++)
        ctx->backends[i]->close(ctx, ctx->devices + ctx->backend_first[i], ctx->backend_devices[i]);
    if (ctx->tuning) attn_core_tuning_destroy(&ctx->mem, ctx->tuning);
    pthread_mutex_destroy(&ctx->lock);
    struct attn_mem mem; /* the hooks must outlive the block that holds them */
    attn_base_mem_init(&mem, ctx->mem.alloc, ctx->mem.free, ctx->mem.user, 0);
    attn_base_free(&mem, ctx, sizeof *ctx);
}

attn_status attn_ctx_create(const attn_ctx_options *options, attn_ctx **out) {
    if (!out) FAIL(ATTN_E_ARGUMENT, "out", "out is NULL");
    attn_ctx_options o = {.size = sizeof o};
    if (options) TRY(attn_core_struct_copy(&o, sizeof o, options, "options"));
    TRY(check_options(&o));
    struct attn_mem mem;
    attn_base_mem_init(&mem, o.alloc, o.free, o.alloc_user, attn_base_env_int(ATTN_ENV_FAIL_ALLOC, 0));
    attn_ctx *ctx = attn_base_alloc(&mem, sizeof *ctx, _Alignof(attn_ctx));
    if (!ctx) return ATTN_E_MEMORY;
    attn_base_mem_init(&ctx->mem, mem.alloc, mem.free, mem.user, atomic_load(&mem.fail_in));
    atomic_init(&ctx->refs, 1);
    if (pthread_mutex_init(&ctx->lock, NULL)) {
        attn_base_free(&mem, ctx, sizeof *ctx);
        FAIL(ATTN_E_MEMORY, "ctx", "a mutex could not be made");
    }
    attn_status status = set_up(ctx, &o);
    if (status) {
        destroy(ctx);
        return status;
    }
    warn_unknown_names(ctx);
    attn_base_log(&ctx->log, ATTN_LOG_INFO, "ctx", "context: %d threads, %d devices, %s", ctx->threads, ctx->n_devices,
                  ctx->n_devices ? ctx->devices[0].feature_text : "none");
    *out = ctx;
    return ATTN_OK;
}

attn_ctx *attn_ctx_retain(attn_ctx *ctx) {
    if (ctx) atomic_fetch_add_explicit(&ctx->refs, 1, memory_order_relaxed);
    return ctx;
}

void attn_ctx_release(attn_ctx *ctx) {
    if (ctx && atomic_fetch_sub_explicit(&ctx->refs, 1, memory_order_acq_rel) == 1) destroy(ctx);
}

struct attn_core_device *attn_api_device(attn_ctx *ctx, attn_device id) {
    for (int32_t i = 0; i < ctx->n_devices; i++)
        if (ctx->devices[i].id.type == id.type && ctx->devices[i].id.index == id.index) return &ctx->devices[i];
    attn_base_fail(ATTN_E_NO_DEVICE, "device", 0, id.index, "there is no device %s%s%d; this context has %d",
                   id.type == ATTN_DEVICE_TYPE_CPU    ? "cpu:"
                   : id.type == ATTN_DEVICE_TYPE_CUDA ? "cuda:"
                                                      : "",
                   id.type == ATTN_DEVICE_TYPE_CPU || id.type == ATTN_DEVICE_TYPE_CUDA ? "" : "of unknown type, index ",
                   id.index, ctx->n_devices);
    return NULL;
}

const struct attn_core_backend *attn_api_backend_of(const attn_ctx *ctx, const struct attn_core_device *device) {
    int32_t index = (int32_t)(device - ctx->devices);
    for (int32_t i = 0; i < ctx->n_backends; i++)
        if (index >= ctx->backend_first[i] && index < ctx->backend_first[i] + ctx->backend_devices[i])
            return ctx->backends[i];
    return NULL;
}
