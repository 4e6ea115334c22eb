/* SPDX-License-Identifier: MIT
 * The CUDA backend's host side on the stand-in driver: devices, memory, images, launches, workspaces per stream, every
 * driver call made to fail in turn, and machines without a driver. Results of kernels are not its business. */
#include "api_fixture.h"

#ifndef ATTN_HAVE_CUDA
int main(void) {
    printf("skipped: built without CUDA\n");
    return 77;
}
#else
#include "api/api.h"
#include "base/env.h"
#include "cuda/backend/state.h"
#include "stub_driver/cuda_stub.h"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const stub_path = ATTN_TEST_CUDA_STUB;
static struct cuda_stub *stub;

static attn_ctx_options on_stub(struct hooks *h) {
    attn_ctx_options o = hooked(h);
    o.cuda_driver = stub_path;
    return o;
}
static int start(void **state) {
    (void)state;
    static const char *const names[] = {"CUDA_STUB_FAIL",  "CUDA_STUB_DEVICES",      "ATTN_SYNC",
                                        "ATTN_CUDA_IMAGE", "ATTN_CUDA_SHARED_LIMIT", "ATTN_CUDA_DRIVER"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unsetenv(names[i]);
    memset(stub, 0, sizeof *stub);
    return 0;
}
static void assert_nothing_left(const struct hooks *h) {
    assert_no_leak(h);
    assert_int_equal(stub->retained, 0);
    assert_int_equal(stub->modules, 0);
    assert_int_equal(stub->allocations, 0);
    assert_int_equal(stub->misuse, 0);
}
static struct attn_core_device *cuda_device(attn_ctx *ctx) { return attn_api_device(ctx, ATTN_DEVICE_CUDA(0)); }
static attn_ctx *open_ctx(struct hooks *h) {
    const attn_ctx_options o = on_stub(h);
    attn_ctx *ctx = NULL;
    assert_int_equal(attn_ctx_create(&o, &ctx), ATTN_OK);
    assert_int_equal(attn_cuda_status(ctx), ATTN_OK);
    return ctx;
}
/* As plan creation does. */
static struct attn_core_device *prepared(attn_ctx *ctx) {
    struct attn_core_device *dev = cuda_device(ctx);
    assert_int_equal(attn_cuda_backend.prepare(ctx, dev), ATTN_OK);
    return dev;
}
static void assert_text(const char *part) {
    if (!strstr(attn_last_error(), part)) fail_msg("'%s' lacks '%s'", attn_last_error(), part);
}
static void need_variants(void) {
    if (!attn_cuda_n_variants) skip();
}

static void devices_are_listed(void **state) {
    (void)state;
    struct hooks h = {0};
    setenv("CUDA_STUB_DEVICES", "90,80,120", 1);
    attn_ctx *ctx = open_ctx(&h);
    static const struct {
        int32_t arch;
        const char *features;
    } want[] = {{90, "sm_90 132 SMs 227 KiB shared"},
                {80, "sm_80 108 SMs 163 KiB shared"},
                {120, "sm_120 132 SMs 99 KiB shared"}};
    assert_int_equal(attn_device_count(ctx), 4);
    attn_device_info info = {.size = sizeof info};
    assert_int_equal(attn_device_get_info(ctx, 0, &info), ATTN_OK);
    assert_int_equal(info.device.type, ATTN_DEVICE_TYPE_CPU);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(attn_device_get_info(ctx, 1 + i, &info), ATTN_OK);
        assert_int_equal(info.device.type, ATTN_DEVICE_TYPE_CUDA);
        assert_int_equal(info.device.index, i);
        assert_int_equal(info.arch, want[i].arch);
        assert_string_equal(info.features, want[i].features);
        assert_int_equal(info.memory_bytes, (uint64_t)(1 + i) << 30);
        assert_non_null(strstr(info.name, "Stand-in sm_"));
    }
    assert_int_equal(stub->retained, 0); /* asking for devices makes no context on them */
    assert_int_equal(cuda_device(ctx)->features, ATTN_CUDA_SM80 | ATTN_CUDA_SM90A);
    attn_ctx_release(ctx);
    char many[200] = "90";
    for (int i = 1; i < 20; i++) strcat(many, ",90");
    setenv("CUDA_STUB_DEVICES", many, 1);
    ctx = open_ctx(&h);
    assert_int_equal(attn_device_count(ctx), 1 + ATTN_CUDA_MAX_DEVICES);
    attn_ctx_release(ctx);
    setenv("CUDA_STUB_DEVICES", "90", 1);
    setenv("ATTN_CUDA_SHARED_LIMIT", "49152", 1);
    ctx = open_ctx(&h);
    assert_int_equal(attn_cuda_limits_of(cuda_device(ctx))->shared_per_block, 49152);
    assert_int_equal(attn_cuda_limits_of(cuda_device(ctx))->shared_per_sm, 228 * 1024);
    attn_ctx_release(ctx);
    assert_nothing_left(&h);
}

static void absent(const char *driver, attn_status want, const char *words) {
    struct hooks h = {0};
    attn_ctx_options o = hooked(&h);
    attn_ctx *ctx = NULL;
    if (driver) o.cuda_driver = driver;
    attn_base_fail(ATTN_E_IO, "x", 0, 0, "before");
    assert_int_equal(attn_ctx_create(&o, &ctx), ATTN_OK);
    assert_string_equal(attn_last_error(), "before");
    assert_int_equal(attn_device_count(ctx), 1);
    assert_int_equal(attn_cuda_status(ctx), want);
    assert_text(words);
    void *memory;
    assert_int_equal(attn_memory_alloc(ctx, ATTN_DEVICE_CUDA(0), 8, &memory), ATTN_E_NO_DEVICE);
    struct call c;
    call_init(&c);
    assert_int_equal(attn_run(ctx, ATTN_DEVICE_CPU, &c.p, &c.args), ATTN_OK);
    call_verify(&c);
    attn_ctx_release(ctx);
    assert_no_leak(&h);
}
static void machines_without_a_device(void **state) {
    (void)state;
    absent("/nonexistent/libcuda.so.1", ATTN_E_NO_DRIVER, "/nonexistent/libcuda.so.1");
    absent("libm.so.6", ATTN_E_NO_DRIVER, "has no cuInit");
    setenv("ATTN_CUDA_DRIVER", "/nonexistent/by_environment", 1);
    absent(NULL, ATTN_E_NO_DRIVER, "by_environment");
    setenv("CUDA_STUB_DEVICES", "none", 1);
    absent(stub_path, ATTN_E_NO_DEVICE, "cuInit failed");
    unsetenv("CUDA_STUB_DEVICES");
    setenv("CUDA_STUB_FAIL", "cuInit:1", 1);
    absent(stub_path, ATTN_E_NO_DRIVER, "unknown error (CUDA_ERROR_UNKNOWN, 999)");
    setenv("CUDA_STUB_FAIL", "cuInit:1,cuGetErrorString:1", 1);
    absent(stub_path, ATTN_E_NO_DRIVER, "an error without words");
    setenv("CUDA_STUB_FAIL", "cuDeviceGetAttribute:3", 1);
    absent(stub_path, ATTN_E_NO_DEVICE, "cuDeviceGetAttribute failed");
    setenv("CUDA_STUB_DEVICES", "80,90", 1); /* one sick device does not hide the other */
    struct hooks h = {0};
    attn_ctx *ctx = open_ctx(&h);
    assert_int_equal(attn_device_count(ctx), 2);
    assert_int_equal(ctx->devices[1].id.index, 1);
    assert_int_equal(ctx->devices[1].arch, 90);
    attn_ctx_release(ctx);
    assert_nothing_left(&h);
}

static void memory_round_trip(void **state) {
    (void)state;
    struct hooks h = {0};
    setenv("CUDA_STUB_DEVICES", "90,80", 1);
    attn_ctx *ctx = open_ctx(&h);
    const attn_device d0 = ATTN_DEVICE_CUDA(0), d1 = ATTN_DEVICE_CUDA(1);
    unsigned char in[1000], out[1000] = {0};
    for (int i = 0; i < 1000; i++) in[i] = (unsigned char)(i * 11);
    void *a = NULL, *b = NULL;
    assert_int_equal(attn_memory_alloc(ctx, d0, sizeof in, &a), ATTN_OK);
    assert_int_equal(attn_memory_alloc(ctx, d1, sizeof in, &b), ATTN_OK);
    assert_int_equal(attn_memory_copy(ctx, d0, a, ATTN_DEVICE_CPU, in, sizeof in), ATTN_OK);
    int64_t waits = stub->synchronized;
    assert_int_equal(attn_memory_copy(ctx, d1, b, d0, a, sizeof in), ATTN_OK);
    assert_int_equal(stub->synchronized, waits + 1); /* copies within are only queued by the driver */
    assert_int_equal(attn_memory_copy(ctx, ATTN_DEVICE_CPU, out, d1, b, sizeof in), ATTN_OK);
    assert_memory_equal(in, out, sizeof in);
    assert_int_equal(attn_cuda_fill_zero(cuda_device(ctx), (char *)a + 3, 500, NULL), ATTN_OK);
    assert_int_equal(attn_memory_copy(ctx, ATTN_DEVICE_CPU, out, d0, a, sizeof in), ATTN_OK);
    for (int i = 0; i < 1000; i++) assert_int_equal(out[i], i >= 3 && i < 503 ? 0 : in[i]);
    assert_int_equal(attn_memory_alloc(ctx, d0, (size_t)1 << 40, &a), ATTN_E_MEMORY);
    assert_text("1099511627776 bytes on cuda:0: cuMemAlloc failed: out of memory");
    assert_null(a);
    assert_int_equal(attn_memory_copy(ctx, d0, in, ATTN_DEVICE_CPU, in, 8), ATTN_E_DEVICE_FAULT);
    stub->misuse = 0; /* that address was ours to blame */
    attn_memory_free(ctx, d1, b, sizeof in);
    assert_int_equal(stub->allocations, 1);
    attn_ctx_release(ctx);
    assert_int_equal(stub->allocations, 1); /* the caller's block: not the context's to free */
    assert_int_equal(stub->retained, 0);
    assert_no_leak(&h);
}

static void images_are_loaded_once(void **state) {
    (void)state;
    need_variants();
    struct hooks h = {0};
    attn_ctx *ctx = open_ctx(&h);
    struct attn_core_device *dev = prepared(ctx);
    const struct attn_cuda_variant *v = &attn_cuda_variants[0];
    for (int32_t i = 0; i < attn_cuda_n_variants; i++)
        assert_ptr_equal(attn_cuda_variant_find(attn_cuda_variants[i].symbol), &attn_cuda_variants[i]);
    assert_null(attn_cuda_variant_find("attn_sdpa_fwd_nothing"));
    for (int32_t i = 0; i < 2 * attn_cuda_n_variants; i++) /* more of them than it keeps in mind */
        assert_ptr_equal(attn_cuda_variant_of(dev, attn_cuda_variants[i / 2].symbol), &attn_cuda_variants[i / 2]);
    assert_null(attn_cuda_variant_of(dev, "attn_sdpa_fwd_nothing"));
    struct attn_cuda_grid g = {.x = 7, .y = 5, .z = 3, .threads = 128, .shared_bytes = 1000};
    const int params[3] = {11, 22, 33};
    assert_int_equal(attn_cuda_launch(dev, v, &g, params, sizeof params, NULL), ATTN_E_INTERNAL); /* not prepared */
    for (int i = 0; i < 3; i++) assert_int_equal(attn_cuda_variant_load(dev, v, 100000), ATTN_OK);
    assert_int_equal(attn_cuda_variant_load(dev, v, 5000), ATTN_OK);
    assert_int_equal(stub->loads, 1);
    assert_int_equal(stub->sets, 1);
    assert_int_equal(attn_cuda_variant_load(dev, v, 200000), ATTN_OK);
    assert_int_equal(stub->loads, 1);
    assert_int_equal(stub->sets, 2);
    assert_int_equal(attn_cuda_variant_load(dev, v, 227 * 1024 + 1), ATTN_E_INTERNAL);

    stub->params_bytes = sizeof params;
    assert_int_equal(attn_cuda_launch(dev, v, &g, params, sizeof params, (void *)(uintptr_t)0x1234), ATTN_OK);
    assert_int_equal(stub->launches, 1);
    assert_string_equal(stub->function, v->symbol);
    assert_memory_equal(stub->params, params, sizeof params);
    const struct cu_launch_config *c = &stub->config;
    assert_true(c->grid[0] == 7 && c->grid[1] == 5 && c->grid[2] == 3);
    assert_true(c->block[0] == 128 && c->block[1] == 1 && c->block[2] == 1);
    assert_int_equal(c->shared_bytes, 1000);
    assert_ptr_equal(c->stream, (void *)(uintptr_t)0x1234);
    assert_int_equal(c->n_attributes, 0);
    g.cluster = 2;
    g.shared_bytes = 200000;
    assert_int_equal(attn_cuda_launch(dev, v, &g, params, sizeof params, NULL), ATTN_OK);
    assert_int_equal(c->n_attributes, 1);
    assert_int_equal(stub->attribute.id, CU_ATTRIBUTE_CLUSTER);
    assert_int_equal(stub->attribute.value.cluster[0], 2);
    assert_int_equal(stub->attribute.value.cluster[1], 1);
    assert_int_equal(stub->attribute.value.cluster[2], 1);
    assert_int_equal(stub->synchronized, 0); /* launches do not wait */
    g.y = 70000;
    assert_int_equal(attn_cuda_launch(dev, v, &g, params, sizeof params, NULL), ATTN_E_LAUNCH);
    assert_text(v->symbol);
    assert_text("grid 7 x 70000 x 3");
    stub->misuse = 0;
    assert_int_equal(attn_cuda_launch(dev, v, &g, params, 4097, NULL), ATTN_E_INTERNAL);
    attn_ctx_release(ctx);
    assert_nothing_left(&h);
}

static void which_image(void **state) {
    (void)state;
    need_variants();
    struct hooks h = {0};
    const struct attn_cuda_variant *v = &attn_cuda_variants[0];
    assert_int_equal(v->image_end > v->image, v->cubins[0] != 0);
    static const unsigned char code[16] = {0x50, 0xed, 0x55, 0xba, 's', 'm', '_', '9', '0'};
    setenv("ATTN_CUDA_IMAGE", "ptx", 1);
    attn_ctx *ctx = open_ctx(&h);
    struct attn_cuda_variant broken = *v;
    broken.ptx_end -= 40;
    assert_int_equal(attn_cuda_variant_load(prepared(ctx), &broken, 0), ATTN_E_INTERNAL);
    assert_text("its PTX in the library is damaged");
    assert_int_equal(attn_cuda_variant_load(prepared(ctx), v, 0), ATTN_OK);
    assert_memory_equal(stub->image, ".version", 8); /* unpacked */
    attn_ctx_release(ctx);
    unsetenv("ATTN_CUDA_IMAGE");
    ctx = open_ctx(&h);
    broken = (struct attn_cuda_variant){v->symbol, (const void *)"bad image", NULL, NULL, NULL, 0, {80, 90}, 0};
    assert_int_equal(attn_cuda_variant_load(prepared(ctx), &broken, 0), ATTN_E_NO_DRIVER);
    assert_text("line 1: syntax: cuModuleLoadDataEx failed");
    attn_ctx_release(ctx);
    setenv("CUDA_STUB_DEVICES", "80,86,90,120", 1);
    for (int cubin = 0; cubin < 2; cubin++) { /* machine code goes first, PTX where there is none for the device */
        cubin ? setenv("ATTN_CUDA_IMAGE", "cubin", 1) : unsetenv("ATTN_CUDA_IMAGE");
        if (cubin) attn_ctx_release(ctx);
        ctx = open_ctx(&h);
        for (int i = 0; i < 4; i++) {
            struct attn_core_device *dev = attn_api_device(ctx, ATTN_DEVICE_CUDA(i));
            assert_int_equal(attn_cuda_backend.prepare(ctx, dev), ATTN_OK);
            struct attn_cuda_variant any = {v->symbol, code, NULL, v->ptx, v->ptx_end, 0, {80, 90}, 0};
            const int fits = i < 3 || !cubin;
            assert_int_equal(attn_cuda_variant_load(dev, &any, 0), fits ? ATTN_OK : ATTN_E_NO_DRIVER);
            if (fits) assert_memory_equal(stub->image, i < 3 ? (const void *)code : ".version", 8);
        }
    }
    assert_text("no machine code for sm_120");
    attn_ctx_release(ctx);
    setenv("ATTN_CUDA_IMAGE", "elf", 1);
    const attn_ctx_options o = on_stub(&h);
    assert_int_equal(attn_ctx_create(&o, &ctx), ATTN_E_ENUM);
    assert_text("ATTN_CUDA_IMAGE \"elf\"");
    assert_nothing_left(&h);
}

static void faults_at_the_culprit(void **state) {
    (void)state;
    need_variants();
    struct hooks h = {0};
    setenv("ATTN_SYNC", "1", 1);
    attn_ctx *ctx = open_ctx(&h);
    struct attn_core_device *dev = prepared(ctx);
    const struct attn_cuda_variant *v = &attn_cuda_variants[0];
    const struct attn_cuda_grid g = {.x = 1, .y = 1, .z = 1, .threads = 32};
    assert_int_equal(attn_cuda_variant_load(dev, v, 0), ATTN_OK);
    assert_int_equal(attn_cuda_launch(dev, v, &g, &g, sizeof g, NULL), ATTN_OK);
    assert_int_equal(stub->synchronized, 1);
    assert_int_equal(attn_cuda_launch(dev, v, &g, &g, sizeof g, CUDA_STUB_CAPTURING), ATTN_OK);
    assert_int_equal(stub->synchronized, 1);
    snprintf(stub->fail_name[0], sizeof stub->fail_name[0], "cuStreamSynchronize");
    stub->fail_in[0] = 1;
    assert_int_equal(attn_cuda_launch(dev, v, &g, &g, sizeof g, NULL), ATTN_E_DEVICE_FAULT);
    assert_text(v->symbol);
    attn_ctx_release(ctx);
    assert_nothing_left(&h);
}

/* The thread's own context is the same before and after. */
static void callers_context_is_kept(void **state) {
    (void)state;
    struct hooks h = {0};
    attn_ctx *ctx = open_ctx(&h);
    struct attn_cuda_state *s = ctx->cuda;
    cu_context top = NULL;
    void *memory;
    assert_int_equal(s->driver.cuCtxPushCurrent(CUDA_STUB_FOREIGN), CU_OK);
    assert_int_equal(attn_memory_alloc(ctx, ATTN_DEVICE_CUDA(0), 100, &memory), ATTN_OK);
    assert_int_equal(attn_memory_copy(ctx, ATTN_DEVICE_CUDA(0), memory, ATTN_DEVICE_CPU, "abc", 4), ATTN_OK);
    assert_int_equal(attn_device_synchronize(ctx, ATTN_DEVICE_CUDA(0)), ATTN_OK);
    attn_memory_free(ctx, ATTN_DEVICE_CUDA(0), memory, 100);
    const struct attn_cuda_grid g = {.x = 1, .y = 1, .z = 1, .threads = 32};
    if (attn_cuda_n_variants) { /* the driver refuses a launch in the other context */
        assert_int_equal(attn_cuda_variant_load(cuda_device(ctx), attn_cuda_variants, 0), ATTN_OK);
        assert_int_equal(attn_cuda_launch(cuda_device(ctx), attn_cuda_variants, &g, &g, sizeof g, NULL), ATTN_OK);
    }
    assert_int_equal(s->driver.cuCtxPopCurrent(&top), CU_OK);
    assert_ptr_equal(top, CUDA_STUB_FOREIGN);
    assert_int_equal(s->driver.cuCtxPushCurrent(atomic_load(&s->devices[0].context)), CU_OK);
    if (attn_cuda_n_variants) /* nothing to exchange */
        assert_int_equal(attn_cuda_launch(cuda_device(ctx), attn_cuda_variants, &g, &g, sizeof g, NULL), ATTN_OK);
    assert_int_equal(s->driver.cuCtxPopCurrent(&top), CU_OK);
    assert_ptr_equal(top, atomic_load(&s->devices[0].context));
    assert_int_not_equal(s->driver.cuCtxPopCurrent(&top), CU_OK);
    stub->misuse = 0;
    attn_ctx_release(ctx);
    assert_nothing_left(&h);
}

static void *load_all(void *arg) {
    attn_ctx *ctx = arg;
    struct attn_core_device *dev = cuda_device(ctx);
    attn_status status = attn_cuda_backend.prepare(ctx, dev);
    for (int32_t i = 0; i < attn_cuda_n_variants && !status; i++)
        status = attn_cuda_variant_load(dev, &attn_cuda_variants[i], 60000);
    const struct attn_cuda_grid g = {.x = 1, .y = 1, .z = 1, .threads = 32, .shared_bytes = 60000};
    for (int32_t i = 0; i < attn_cuda_n_variants && !status; i++)
        status = attn_cuda_launch(dev, &attn_cuda_variants[i], &g, &g, sizeof g, NULL);
    return status ? "failed" : NULL;
}
static void many_threads_load(void **state) {
    (void)state;
    struct hooks h = {0};
    attn_ctx *ctx = open_ctx(&h);
    pthread_t threads[8];
    for (int i = 0; i < 8; i++) assert_int_equal(pthread_create(&threads[i], NULL, load_all, ctx), 0);
    for (int i = 0; i < 8; i++) {
        void *result = "";
        pthread_join(threads[i], &result);
        assert_null(result);
    }
    assert_int_equal(stub->retained, 1);
    assert_int_equal(stub->loads, attn_cuda_n_variants);
    assert_int_equal(stub->launches, 8 * attn_cuda_n_variants);
    attn_ctx_release(ctx);
    assert_nothing_left(&h);
}

static void workspaces_per_stream(void **state) {
    (void)state;
    struct hooks h = {0};
    attn_ctx *ctx = open_ctx(&h);
    struct attn_core_device *dev = prepared(ctx);
    struct attn_api_workspace spare, spare2, *w, *x;
    void *memory_of[ATTN_API_WORKSPACES];
    for (uintptr_t i = 0; i < ATTN_API_WORKSPACES; i++) {
        assert_int_equal(attn_api_workspace_take(ctx, dev, (void *)(i + 1), 1000 + i, &spare, &w), ATTN_OK);
        memory_of[i] = w->memory;
        for (uintptr_t j = 0; j < i; j++) assert_ptr_not_equal(memory_of[i], memory_of[j]);
        attn_api_workspace_give(ctx, w, &spare);
    }
    assert_int_equal(stub->allocations, ATTN_API_WORKSPACES);
    int64_t waits = stub->synchronized;
    assert_int_equal(attn_api_workspace_take(ctx, dev, (void *)(uintptr_t)3, 900, &spare, &w), ATTN_OK);
    assert_ptr_equal(w->memory, memory_of[2]);
    /* A second call on the stream while the first one queues: memory of another stream, after a wait. */
    assert_int_equal(stub->synchronized, waits);
    assert_int_equal(attn_api_workspace_take(ctx, dev, (void *)(uintptr_t)3, 900, &spare2, &x), ATTN_OK);
    assert_ptr_not_equal(x->memory, w->memory);
    assert_int_equal(stub->synchronized, waits + 1);
    attn_api_workspace_give(ctx, x, &spare2);
    attn_api_workspace_give(ctx, w, &spare);
    /* Growth frees the old memory, but not before its work is done. */
    waits = stub->synchronized;
    assert_int_equal(attn_api_workspace_take(ctx, dev, (void *)(uintptr_t)5, 100000, &spare, &w), ATTN_OK);
    assert_int_equal(stub->synchronized, waits + 1);
    assert_int_equal(w->bytes, 100000);
    attn_api_workspace_give(ctx, w, &spare);
    assert_int_equal(stub->allocations, ATTN_API_WORKSPACES);
    assert_int_equal(attn_api_workspace_take(ctx, dev, CUDA_STUB_CAPTURING, 100, &spare, &w), ATTN_E_ARGUMENT);
    assert_null(w);
    /* Every kept one in use: one of its own, freed after a wait. */
    struct attn_api_workspace *all[ATTN_API_WORKSPACES];
    for (uintptr_t i = 0; i < ATTN_API_WORKSPACES; i++)
        assert_int_equal(attn_api_workspace_take(ctx, dev, (void *)(i + 50), 100, &spare, &all[i]), ATTN_OK);
    waits = stub->synchronized;
    assert_int_equal(attn_api_workspace_take(ctx, dev, NULL, 100, &spare, &w), ATTN_OK);
    assert_ptr_equal(w, &spare);
    assert_int_equal(stub->allocations, ATTN_API_WORKSPACES + 1);
    attn_api_workspace_give(ctx, w, &spare);
    assert_int_equal(stub->allocations, ATTN_API_WORKSPACES);
    assert_int_equal(stub->synchronized, waits + 1);
    for (int i = 0; i < ATTN_API_WORKSPACES; i++) attn_api_workspace_give(ctx, all[i], &spare2);
    /* The host's are not touched by any of this. */
    struct attn_core_device *cpu = attn_api_device(ctx, ATTN_DEVICE_CPU);
    assert_int_equal(attn_api_workspace_take(ctx, cpu, NULL, 100, &spare, &w), ATTN_OK);
    memset(w->memory, 1, 100);
    attn_api_workspace_give(ctx, w, &spare);
    attn_ctx_release(ctx);
    assert_nothing_left(&h);
}

/* ---- a whole session, and each call of it made to fail ---- */

enum { N_TENSORS = 5, TENSOR_BYTES = 2 * 64 * 64 * 2 };
static attn_status execute_with_workspace(attn_ctx *ctx, const attn_plan *plan, attn_args *a) {
    const attn_device dev = ATTN_DEVICE_CUDA(0);
    attn_plan_info info = {.size = sizeof info};
    TRY(attn_plan_get_info(plan, &info));
    a->workspace_bytes = info.workspace_bytes;
    TRY(attn_memory_alloc(ctx, dev, (size_t)info.workspace_bytes, &a->workspace));
    attn_status status = attn_execute(plan, a);
    attn_memory_free(ctx, dev, a->workspace, (size_t)info.workspace_bytes);
    return status;
}
static attn_status session_with(attn_ctx *ctx, void *memory[N_TENSORS]) {
    const attn_device dev = ATTN_DEVICE_CUDA(0);
    static char host[TENSOR_BYTES];
    attn_problem p;
    attn_tensor t[N_TENSORS];
    attn_plan *plan = NULL;
    TRY(attn_cuda_status(ctx));
    TRY(attn_problem_parse("sdpa_fwd hq=2 sq=64 d=64 bf16 causal", &p));
    const int64_t rows[] = {1, 2, 64, 64}, lse[] = {1, 2, 64};
    for (int i = 0; i < N_TENSORS; i++) {
        TRY(attn_memory_alloc(ctx, dev, TENSOR_BYTES, &memory[i]));
        TRY(attn_memory_copy(ctx, dev, memory[i], ATTN_DEVICE_CPU, host, sizeof host));
        TRY(attn_tensor_contiguous(&t[i], memory[i], i == 4 ? ATTN_F32 : ATTN_BF16, i == 4 ? 3 : 4,
                                   i == 4 ? lse : rows));
        t[i].device = dev;
    }
    TRY(attn_memory_copy(ctx, dev, memory[1], dev, memory[0], sizeof host));
    attn_args a = ATTN_ARGS_INIT;
    a.q = &t[0], a.k = &t[1], a.v = &t[2], a.out = &t[3], a.lse = &t[4];
    if (attn_cuda_n_variants) {
        TRY(attn_plan_create(ctx, dev, &p, NULL, &plan));
        attn_status status = execute_with_workspace(ctx, plan, &a);
        attn_plan_release(plan);
        TRY(status);
        TRY(attn_run(ctx, dev, &p, &a));
    }
    struct attn_api_workspace spare, *w;
    attn_status status = attn_api_workspace_take(ctx, cuda_device(ctx), NULL, 256, &spare, &w);
    if (w) attn_api_workspace_give(ctx, w, &spare);
    TRY(status);
    TRY(attn_cuda_fill_zero(cuda_device(ctx), memory[2], 256, NULL));
    TRY(attn_device_synchronize(ctx, dev));
    return attn_memory_copy(ctx, ATTN_DEVICE_CPU, host, dev, memory[0], sizeof host);
}
static attn_status session(struct hooks *h) {
    const attn_ctx_options o = on_stub(h);
    attn_ctx *ctx = NULL;
    void *memory[N_TENSORS] = {0};
    TRY(attn_ctx_create(&o, &ctx));
    attn_status status = session_with(ctx, memory);
    for (int i = 0; i < N_TENSORS; i++)
        if (memory[i]) attn_memory_free(ctx, ATTN_DEVICE_CUDA(0), memory[i], TENSOR_BYTES);
    attn_ctx_release(ctx);
    return status;
}

static int drain_stack(void) {
    struct attn_cuda_driver d;
    cu_context top;
    int n = 0;
    if (attn_cuda_driver_open(&d, stub_path)) return 0;
    while (!d.cuCtxPopCurrent(&top)) n++;
    attn_cuda_driver_close(&d);
    stub->misuse = 0; /* the pop of the empty stack */
    return n;
}

static void every_call_fails_in_turn(void **state) {
    (void)state;
    /* Those that give something back, or that only describe a failure: nobody can be told, and what they hold stays. */
    static const char *const quiet[] = {"cuMemFree_v2",       "cuModuleUnload",      "cuDevicePrimaryCtxRelease_v2",
                                        "cuCtxPopCurrent_v2", "cuCtxPushCurrent_v2", "cuCtxSynchronize"};
    static const char *const names[] = {
#define NAME(name, symbol, parameters) #symbol,
        ATTN_CUDA_CALLS(NAME)
#undef NAME
    };
    struct hooks clean = {0};
    setenv("ATTN_SYNC", "1", 1);
    assert_int_equal(session(&clean), ATTN_OK);
    assert_nothing_left(&clean);
    int reached = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int is_quiet = 0;
        for (size_t j = 0; j < sizeof quiet / sizeof *quiet; j++) is_quiet |= !strcmp(names[i], quiet[j]);
        int last = 0;
        for (int n = 1; !last; n++) {
            char fault[80];
            struct hooks h = {0};
            memset(stub, 0, sizeof *stub);
            snprintf(fault, sizeof fault, "%s:%d", names[i], n);
            setenv("CUDA_STUB_FAIL", fault, 1);
            attn_status status = session(&h);
            last = !stub->failed;
            assert_no_leak(&h);
            if (last) {
                if (status) fail_msg("%s was not reached, but: %s", fault, attn_last_error());
                assert_nothing_left(&h);
                break;
            }
            reached++;
            if (status) {
                assert_text("failed: unknown error (CUDA_ERROR_UNKNOWN, 999)");
            } else if (!is_quiet && strcmp(names[i], "cuStreamIsCapturing") &&
                       strcmp(names[i], "cuThreadExchangeStreamCaptureMode")) { /* round a free: nobody to tell */
                fail_msg("%s failed and nobody noticed", fault);
            }
            if (!is_quiet) assert_nothing_left(&h);
            unsetenv("CUDA_STUB_FAIL");
            int left = drain_stack();
            assert_true(left == 0 || !strcmp(names[i], "cuCtxPopCurrent_v2"));
        }
    }
    assert_true(reached > 60);
}

static void every_allocation_fails_in_turn(void **state) {
    (void)state;
    for (int64_t n = 1;; n++) {
        struct hooks h = {.fail_at = n};
        attn_status status = session(&h);
        assert_nothing_left(&h);
        if (h.calls < n) {
            assert_int_equal(status, ATTN_OK);
            break;
        }
        assert_int_equal(status, ATTN_E_MEMORY);
    }
}

/* After fork() the child releases objects without a call of the driver. */
static void a_child_only_releases(void **state) {
    (void)state;
    struct hooks h = {0};
    attn_ctx *ctx = open_ctx(&h);
    struct attn_core_device *dev = prepared(ctx);
    struct attn_api_workspace spare, *w;
    if (attn_cuda_n_variants) assert_int_equal(attn_cuda_variant_load(dev, attn_cuda_variants, 0), ATTN_OK);
    assert_int_equal(attn_api_workspace_take(ctx, dev, NULL, 100, &spare, &w), ATTN_OK);
    attn_api_workspace_give(ctx, w, &spare);
    pid_t child = fork();
    if (!child) {
        attn_ctx_release(ctx);
        _exit(stub->in_child || h.live ? 1 : 0);
    }
    int how = -1;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_int_equal(how, 0);
    attn_ctx_release(ctx);
    assert_nothing_left(&h);
}

int main(void) {
    void *library = dlopen(stub_path, RTLD_NOW);
    struct cuda_stub *(*get)(void) = NULL;
    void *symbol = library ? dlsym(library, "cuda_stub_state") : NULL;
    memcpy(&get, &symbol, sizeof get);
    if (!get) return fprintf(stderr, "%s\n", dlerror()), 1;
    stub = get();
    const struct CMUnitTest tests[] = {
#define ROW(name) cmocka_unit_test_setup(name, start)
        ROW(devices_are_listed),
        ROW(machines_without_a_device),
        ROW(memory_round_trip),
        ROW(images_are_loaded_once),
        ROW(which_image),
        ROW(faults_at_the_culprit),
        ROW(callers_context_is_kept),
        ROW(many_threads_load),
        ROW(workspaces_per_stream),
        ROW(every_call_fails_in_turn),
        ROW(every_allocation_fails_in_turn),
        ROW(a_child_only_releases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
