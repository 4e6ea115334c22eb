/* SPDX-License-Identifier: MIT
 * attn_merge on CUDA in the simulator against attn_merge on the CPU: any mix of dtypes, ranks and strides, empty parts,
 * NaN and infinities, the result in place of a part, and the same bits again; more parts than it takes are refused. */
#include "attn.h"
#include "base/num.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 32, BYTES = 1 << 21 };
static attn_ctx *ctx;
static char *host, *device; /* the same bytes: a tensor stands in the same place of both */
static size_t used;

static uint32_t random_bits(void) {
    static uint64_t x = 88172645463325252u;
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    return (uint32_t)(x >> 32);
}
static int64_t below(int64_t n) { return (int64_t)(random_bits() % (uint32_t)n); }

/* A tensor with gaps between rows, its outer axes in any order. */
static attn_tensor place(int32_t dtype, int32_t rank, const int64_t *shape, int is_lse) {
    attn_tensor t;
    assert_int_equal(attn_tensor_contiguous(&t, NULL, dtype, rank, shape), ATTN_OK);
    const int64_t bytes = (int64_t)attn_dtype_bytes(dtype);
    int64_t step = is_lse ? 1 + below(2) : shape[rank - 1] + (below(2) ? below(5) : 0);
    if (below(2)) step = (step * bytes + 15) / 16 * 16 / bytes;
    for (int32_t turn = (int32_t)below(3), n = is_lse ? rank : rank - 1, x = 0; x < n; x++) {
        const int32_t axis = (x + turn) % n;
        t.strides[axis] = step, step *= shape[axis];
    }
    used = (used + 15) / 16 * 16 + (size_t)(below(2) ? bytes * below(4) : 0);
    t.data = host + used, t.bytes = (size_t)(step * bytes);
    used += t.bytes;
    assert_true(used < BYTES);
    return t;
}
static attn_tensor on_device(attn_tensor t) {
    t.data = device + ((char *)t.data - host);
    t.device = ATTN_DEVICE_CUDA(0);
    return t;
}
static void fill(const attn_tensor *t, int is_lse) {
    const int64_t n = (int64_t)t->bytes / (int64_t)attn_dtype_bytes(t->dtype);
    for (int64_t i = 0; i < n; i++) {
        const double odd[] = {INFINITY, -INFINITY, NAN, -INFINITY}, x = (double)random_bits() / 0x1p31 - 1;
        const int64_t kind = below(is_lse ? 12 : 400);
        const double most = !is_lse ? 1 : kind == 4 ? 3000 : 30; /* 3000: a share of 2^-1000 */
        attn_num_store(t->data, t->dtype, i, kind < (is_lse ? 4 : 3) ? odd[kind] : most * x);
    }
}

static void call(attn_device where, attn_merge_args *a, const attn_tensor *out_part, const attn_tensor *lse_part,
                 attn_tensor out, attn_tensor lse) {
    attn_tensor moved[2 * MOST];
    const attn_tensor *out_parts[MOST], *lse_parts[MOST];
    for (int32_t i = 0; i < a->n_parts; i++) {
        moved[2 * i] = where.type == ATTN_DEVICE_TYPE_CPU ? out_part[i] : on_device(out_part[i]);
        moved[2 * i + 1] = where.type == ATTN_DEVICE_TYPE_CPU ? lse_part[i] : on_device(lse_part[i]);
        out_parts[i] = &moved[2 * i], lse_parts[i] = &moved[2 * i + 1];
    }
    if (where.type != ATTN_DEVICE_TYPE_CPU) out = on_device(out), lse = on_device(lse);
    a->out_parts = out_parts, a->lse_parts = lse_parts, a->out = &out, a->lse = &lse;
    if (attn_merge(ctx, where, a)) fail_msg("%s", attn_last_error());
    a->out_parts = a->lse_parts = NULL, a->out = a->lse = NULL;
}
static void copy(attn_device to, void *dst, attn_device from, const void *src) {
    assert_int_equal(attn_memory_copy(ctx, to, dst, from, src, BYTES), ATTN_OK);
}

/* Everything that either wrote, elements between the results' included. */
static void compare(const attn_tensor *want, const char *got, int n, const char *what) {
    const char *other = got + ((const char *)want->data - host);
    for (int64_t i = 0; i < (int64_t)want->bytes / (int64_t)attn_dtype_bytes(want->dtype); i++) {
        const double x = attn_num_load(want->data, want->dtype, i), y = attn_num_load(other, want->dtype, i);
        const double unit = want->dtype == ATTN_F64    ? 1e-14
                            : want->dtype == ATTN_F32  ? 0x1p-23
                            : want->dtype == ATTN_BF16 ? 0x1p-7
                                                       : 0x1p-10;
        if (isnan(x) ? !isnan(y) : !(x == y || fabs(x - y) <= unit * fmax(fabs(x), 0x1p-10)))
            fail_msg("case %d: %s[%lld] is %.17g, expected %.17g", n, what, (long long)i, y, x);
    }
}

static void same_as_on_the_cpu(void **state) {
    (void)state;
    static const int32_t dtypes[] = {ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_F64};
    const attn_device cpu = ATTN_DEVICE_CPU, cuda = ATTN_DEVICE_CUDA(0);
    char *got = malloc(BYTES), *again = malloc(BYTES);
    assert_true(got && again);
    for (int n = 0; n < 60; n++) {
        const int32_t rank = 2 + (int32_t)below(3);
        int64_t shape[4];
        attn_tensor out_part[MOST], lse_part[MOST];
        attn_merge_args a = {.size = sizeof a, .n_parts = n == 0 ? MOST : 1 + (int32_t)below(6)};
        used = 0;
        memset(host, 0, BYTES);
        for (int32_t x = 0; x + 1 < rank; x++) shape[x] = 1 + below(5);
        shape[rank - 1] = n == 1 ? 300 : 1 + below(140);
        if (below(2)) a.flags |= ATTN_LSE_BASE_2;
        if (below(2)) a.flags |= ATTN_LSE_EMPTY_PLUS_INF;
        const int32_t in_place = (int32_t)below(a.n_parts + 1);
        for (int32_t i = 0; i < a.n_parts; i++) {
            out_part[i] = place(dtypes[below(4)], rank, shape, 0);
            lse_part[i] = place(below(2) ? ATTN_F32 : ATTN_F64, rank - 1, shape, 1);
            fill(&out_part[i], 0), fill(&lse_part[i], 1);
        }
        const attn_tensor out = in_place ? out_part[in_place - 1] : place(dtypes[n % 4], rank, shape, 0),
                          lse = in_place ? lse_part[in_place - 1]
                                         : place(n & 4 ? ATTN_F32 : ATTN_F64, rank - 1, shape, 1);
        for (int twice = 0; twice < 2; twice++) {
            copy(cuda, device, cpu, host);
            call(cuda, &a, out_part, lse_part, out, lse);
            copy(cpu, twice ? again : got, cuda, device);
        }
        assert_memory_equal(got, again, BYTES);
        call(cpu, &a, out_part, lse_part, out, lse);
        compare(&out, got, n, "out");
        compare(&lse, got, n, "lse");
        const char *kept[] = {(char *)out.data, (char *)lse.data};
        memcpy(got + (kept[0] - host), kept[0], out.bytes);
        memcpy(got + (kept[1] - host), kept[1], lse.bytes);
        assert_memory_equal(got, host, BYTES); /* nothing else was written */
    }
    free(got), free(again);
}

/* lse alone; and rounding to 16 bits once: 1 + 2^-8 + 2^-40 lies above the tie of bf16 that f32 would make of it. */
static void one_rounding(void **state) {
    (void)state;
    static const int64_t shape[] = {1, 2};
    double values[] = {1 + 0x1p-8 + 0x1p-40, -1 - 0x1p-8 + 0x1p-40}, zero = 0;
    used = 0;
    memset(host, 0, BYTES);
    attn_tensor out_part = place(ATTN_F64, 2, shape, 0), lse_part = place(ATTN_F64, 1, shape, 1),
                out = place(ATTN_BF16, 2, shape, 0), lse = place(ATTN_F32, 1, shape, 1);
    memcpy(out_part.data, values, sizeof values), memcpy(lse_part.data, &zero, sizeof zero);
    copy(ATTN_DEVICE_CUDA(0), device, ATTN_DEVICE_CPU, host);
    attn_merge_args a = {.size = sizeof a, .n_parts = 1};
    call(ATTN_DEVICE_CUDA(0), &a, &out_part, &lse_part, out, lse);
    copy(ATTN_DEVICE_CPU, host, ATTN_DEVICE_CUDA(0), device);
    assert_true(attn_num_load(out.data, ATTN_BF16, 0) == 1 + 0x1p-7 && attn_num_load(out.data, ATTN_BF16, 1) == -1);

    const attn_tensor lse_there = on_device(lse_part), result = on_device(lse);
    const attn_tensor *parts[MOST + 1];
    for (int i = 0; i <= MOST; i++) parts[i] = &lse_there;
    a = (attn_merge_args){.size = sizeof a, .n_parts = MOST, .lse_parts = parts, .lse = &result};
    assert_int_equal(attn_merge(ctx, ATTN_DEVICE_CUDA(0), &a), ATTN_OK);
    copy(ATTN_DEVICE_CPU, host, ATTN_DEVICE_CUDA(0), device);
    assert_true(fabs(attn_num_load(lse.data, ATTN_F32, 0) - log(MOST)) < 1e-6);
    a.n_parts = MOST + 1;
    assert_int_equal(attn_merge(ctx, ATTN_DEVICE_CUDA(0), &a), ATTN_E_NO_KERNEL);
    assert_non_null(strstr(attn_last_error(), "n_parts is 33"));
}

int main(void) {
    setenv("ATTN_CUDA_IMAGE", "ptx", 1);
    attn_ctx_options o = {.size = sizeof o, .cuda_driver = ATTN_TEST_SIM};
    void *memory = NULL;
    host = aligned_alloc(256, BYTES);
    if (!host || attn_ctx_create(&o, &ctx) || attn_cuda_status(ctx) ||
        attn_memory_alloc(ctx, ATTN_DEVICE_CUDA(0), BYTES, &memory)) {
        printf("%s\n", attn_last_error());
        return 1;
    }
    device = memory;
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_as_on_the_cpu), cmocka_unit_test(one_rounding)};
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    attn_memory_free(ctx, ATTN_DEVICE_CUDA(0), memory, BYTES);
    attn_ctx_release(ctx);
    free(host);
    return failed;
}
