/* SPDX-License-Identifier: MIT
 * attn_memory_*: what goes in comes out, on every device there is; bad calls are refused. */
#include "attn.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void round_trip(void **state) {
    (void)state;
    attn_ctx *ctx = NULL;
    assert_int_equal(attn_ctx_create(NULL, &ctx), ATTN_OK);
    unsigned char in[1000], out[1000];
    for (int i = 0; i < 1000; i++) in[i] = (unsigned char)(i * 7);
    for (int32_t d = 0; d < attn_device_count(ctx); d++) {
        attn_device_info info = {.size = sizeof info};
        assert_int_equal(attn_device_get_info(ctx, d, &info), ATTN_OK);
        void *a = NULL, *b = NULL;
        assert_int_equal(attn_memory_alloc(ctx, info.device, sizeof in, &a), ATTN_OK);
        assert_int_equal(attn_memory_alloc(ctx, info.device, sizeof in, &b), ATTN_OK);
        assert_int_equal((uintptr_t)a % 256, 0);
        memset(out, 0, sizeof out);
        assert_int_equal(attn_memory_copy(ctx, info.device, a, ATTN_DEVICE_CPU, in, sizeof in), ATTN_OK);
        assert_int_equal(attn_memory_copy(ctx, info.device, b, info.device, a, sizeof in), ATTN_OK);
        assert_int_equal(attn_memory_copy(ctx, ATTN_DEVICE_CPU, out, info.device, b, sizeof in), ATTN_OK);
        assert_int_equal(attn_device_synchronize(ctx, info.device), ATTN_OK);
        assert_memory_equal(in, out, sizeof in);
        attn_memory_free(ctx, info.device, a, sizeof in);
        attn_memory_free(ctx, info.device, b, sizeof in);
        assert_int_equal(attn_memory_alloc(ctx, info.device, 0, &a), ATTN_OK);
        assert_null(a);
    }
    attn_ctx_release(ctx);
}

static void refusals(void **state) {
    (void)state;
    attn_ctx *ctx = NULL;
    char byte = 0;
    void *a = &byte;
    assert_int_equal(attn_memory_alloc(NULL, ATTN_DEVICE_CPU, 8, &a), ATTN_E_ARGUMENT);
    assert_null(a);
    assert_int_equal(attn_ctx_create(NULL, &ctx), ATTN_OK);
    assert_int_equal(attn_memory_alloc(ctx, ATTN_DEVICE_CPU, 8, NULL), ATTN_E_ARGUMENT);
    assert_int_equal(attn_memory_alloc(ctx, ATTN_DEVICE_CUDA(1000), 8, &a), ATTN_E_NO_DEVICE);
    assert_int_equal(attn_memory_alloc(ctx, ATTN_DEVICE_CPU, SIZE_MAX / 2, &a), ATTN_E_MEMORY);
    assert_int_equal(attn_memory_copy(ctx, ATTN_DEVICE_CPU, NULL, ATTN_DEVICE_CPU, &byte, 1), ATTN_E_ARGUMENT);
    assert_int_equal(attn_device_synchronize(ctx, ATTN_DEVICE_CUDA(-1)), ATTN_E_NO_DEVICE);
    attn_memory_free(ctx, ATTN_DEVICE_CPU, NULL, 8);
    attn_ctx_release(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(round_trip), cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
