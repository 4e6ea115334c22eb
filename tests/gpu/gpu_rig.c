/* SPDX-License-Identifier: MIT
 * The device of the GPU tests, tensors on it, and comparisons of executions. */
#include "gpu/gpu_rig.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ device ------------------------- */

static const struct {
    const char *symbol;
    size_t offset;
} calls[] = {
#define ROW(symbol, parameters) {#symbol, offsetof(struct gpu_rig, symbol)},
    GPU_CALLS(ROW)
#undef ROW
};

static int skipped(struct gpu_rig *rig, const char *why) {
    printf("skipped: %s\n", why);
    gpu_rig_close(rig);
    return ATTN_CLI_SKIPPED;
}

int gpu_rig_open(struct gpu_rig *rig) {
    *rig = (struct gpu_rig){0};
    const char *path = getenv("ATTN_CUDA_DRIVER"), *name = getenv("GPU_TEST_DEVICE");
    int32_t index = 0;
    if (attn_ctx_create(NULL, &rig->ctx) || attn_cuda_status(rig->ctx)) return skipped(rig, attn_last_error());
    if (attn_cli_device(name ? name : "cuda:0", &rig->device)) return skipped(rig, "GPU_TEST_DEVICE names no device");
    index = rig->device.index;
    rig->library = dlopen(path ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        void *symbol = rig->library ? dlsym(rig->library, calls[i].symbol) : NULL;
        if (!symbol) return skipped(rig, dlerror());
        memcpy((char *)rig + calls[i].offset, &symbol, sizeof symbol);
    }
    if (rig->cuInit(0) || rig->cuDeviceGet(&rig->handle, index) ||
        rig->cuDevicePrimaryCtxRetain(&rig->context, rig->handle) || rig->cuCtxPushCurrent_v2(rig->context)) {
        fprintf(stderr, "the driver gives no context of cuda:%d\n", index);
        exit(1);
    }
    return 0;
}

void gpu_rig_close(struct gpu_rig *rig) {
    cu_context ours;
    attn_ctx_release(rig->ctx);
    if (rig->context) {
        rig->cuCtxPopCurrent_v2(&ours);
        rig->cuDevicePrimaryCtxRelease_v2(rig->handle);
    }
    *rig = (struct gpu_rig){0};
}

cu_stream gpu_stream_new(const struct gpu_rig *rig) {
    cu_stream s = NULL;
    GPU_OK(rig->cuStreamCreate(&s, GPU_NON_BLOCKING));
    return s;
}

/* ------------------------------------------------------------------ tensors ------------------------ */

static int is_output(int32_t use) { return use >= ATTN_USE_OUT; }

static void to_device(const struct gpu_case *c, void *to, const void *from, size_t bytes) {
    if (attn_memory_copy(c->rig->ctx, c->rig->device, to, ATTN_DEVICE_CPU, from, bytes))
        fail_msg("%s: %s", c->text, attn_last_error());
}

static void fill(const struct gpu_case *c, void *memory, size_t bytes, int value) {
    if (!bytes) return;
    void *pattern = malloc(bytes);
    assert_non_null(pattern);
    memset(pattern, value, bytes);
    to_device(c, memory, pattern, bytes);
    free(pattern);
}

static void *allocate(const struct gpu_case *c, size_t bytes) {
    void *memory = NULL;
    if (attn_memory_alloc(c->rig->ctx, c->rig->device, bytes, &memory)) fail_msg("%s: %s", c->text, attn_last_error());
    return memory;
}

void gpu_side_make(const struct gpu_case *c, struct gpu_side *side) {
    *side = (struct gpu_side){.args = ATTN_ARGS_INIT};
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        if (!attn_args_at(&c->host.args, role)) continue;
        attn_tensor *t = &side->tensor[role];
        *t = c->host.tensor[role];
        t->device = c->rig->device;
        t->data = allocate(c, (size_t)t->bytes);
        to_device(c, t->data, c->host.memory[role], (size_t)t->bytes);
        assert_int_equal(attn_args_set(&side->args, role, t), ATTN_OK);
    }
    side->workspace = allocate(c, (size_t)c->info.workspace_bytes);
    side->args.workspace = side->workspace;
    side->args.workspace_bytes = c->info.workspace_bytes;
    if (!c->rig->blank) gpu_side_poison(c, side, 0xff);
}

void gpu_side_free(const struct gpu_case *c, struct gpu_side *side) {
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++)
        attn_memory_free(c->rig->ctx, c->rig->device, side->tensor[role].data, (size_t)side->tensor[role].bytes);
    attn_memory_free(c->rig->ctx, c->rig->device, side->workspace, (size_t)c->info.workspace_bytes);
    *side = (struct gpu_side){0};
}

void gpu_side_poison(const struct gpu_case *c, const struct gpu_side *side, int workspace) {
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        const attn_tensor *t = &side->tensor[role];
        const int32_t use = c->host.use[role];
        if (!t->data || !is_output(use)) continue;
        if (use == ATTN_USE_INOUT_OPTIONAL)
            to_device(c, t->data, c->host.memory[role], (size_t)t->bytes);
        else
            fill(c, t->data, (size_t)t->bytes, 0xff);
    }
    fill(c, side->workspace, (size_t)c->info.workspace_bytes, workspace);
}

/* ------------------------------------------------------------------ results ------------------------ */

size_t gpu_outputs_bytes(const struct gpu_case *c) {
    size_t n = 0;
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++)
        if (attn_args_at(&c->host.args, role) && is_output(c->host.use[role])) n += (size_t)c->host.tensor[role].bytes;
    return n;
}

static void from_device(const struct gpu_case *c, void *to, const attn_tensor *t) {
    if (attn_memory_copy(c->rig->ctx, ATTN_DEVICE_CPU, to, c->rig->device, t->data, (size_t)t->bytes))
        fail_msg("%s: %s", c->text, attn_last_error());
}

unsigned char *gpu_outputs(const struct gpu_case *c, const struct gpu_side *side) {
    unsigned char *all = malloc(gpu_outputs_bytes(c) + 1), *next = all;
    assert_non_null(all);
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        if (!side->tensor[role].data || !is_output(c->host.use[role])) continue;
        from_device(c, next, &side->tensor[role]);
        next += side->tensor[role].bytes;
    }
    return all;
}

double gpu_distance(int32_t dtype, int64_t n, const void *a, const void *b) {
    double difference = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        double x = attn_cli_load(a, dtype, i), y = attn_cli_load(b, dtype, i);
        if (!isfinite(x) || !isfinite(y)) {
            if (x == y || (isnan(x) && isnan(y))) continue;
            return (double)INFINITY;
        }
        difference += (x - y) * (x - y);
        size += x * x;
    }
    return difference == 0 ? 0 : sqrt(difference / size);
}

double gpu_allowed(int32_t dtype) {
    return dtype == ATTN_F64 ? 1e-12 : dtype == ATTN_F32 ? 1e-4 : dtype == ATTN_F16 ? 0x1p-9 : 0x1p-6;
}

void gpu_assert_same(const struct gpu_case *c, const unsigned char *a, const unsigned char *b, const char *what) {
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        const attn_tensor *t = &c->host.tensor[role];
        if (!attn_args_at(&c->host.args, role) || !is_output(c->host.use[role])) continue;
        if (memcmp(a, b, (size_t)t->bytes)) {
            const double far = gpu_distance(t->dtype, (int64_t)(t->bytes / attn_dtype_bytes(t->dtype)), a, b),
                         allowed = gpu_allowed(t->dtype);
            if (c->info.deterministic) fail_msg("%s: %s: %s differs in its bits", c->text, what, attn_role_name(role));
            if (!(far <= allowed))
                fail_msg("%s: %s: %s is %.3g away, allowed %.3g", c->text, what, attn_role_name(role), far, allowed);
        }
        a += t->bytes;
        b += t->bytes;
    }
}

void gpu_assert_written(const struct gpu_case *c, const unsigned char *outputs) {
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        const attn_tensor *t = &c->host.tensor[role];
        if (!attn_args_at(&c->host.args, role) || !is_output(c->host.use[role])) continue;
        int64_t good = 0;
        for (int64_t i = 0, n = (int64_t)(t->bytes / attn_dtype_bytes(t->dtype)); i < n; i++) {
            double x = attn_cli_load(outputs, t->dtype, i);
            good += isfinite(x) && x != 0;
        }
        if (!good && t->bytes) fail_msg("%s: %s holds nothing", c->text, attn_role_name(role));
        outputs += t->bytes;
    }
}

void gpu_assert_inputs_intact(const struct gpu_case *c, const struct gpu_side *side) {
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        const attn_tensor *t = &side->tensor[role];
        if (!t->data || is_output(c->host.use[role])) continue;
        void *now = malloc((size_t)t->bytes + 1);
        assert_non_null(now);
        from_device(c, now, t);
        if (memcmp(now, c->host.memory[role], (size_t)t->bytes))
            fail_msg("%s: the input %s was written", c->text, attn_role_name(role));
        free(now);
    }
}

void gpu_execute(const struct gpu_case *c, const struct gpu_side *side, cu_stream stream) {
    attn_args args = side->args;
    args.stream = stream;
    if (attn_execute(c->plan, &args)) fail_msg("%s: %s", c->text, attn_last_error());
    GPU_OK(c->rig->cuStreamSynchronize(stream));
}
