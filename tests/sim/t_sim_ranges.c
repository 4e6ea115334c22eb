/* SPDX-License-Identifier: MIT
 * kernels/smxx/mla_bwd_ranges.cu and mla_order.cu in the simulator against a sort in plain C: the order of each query's
 * valid slots, their places and their number, for every rule of validity. mla_order leaves the order within a range
 * open. What the main kernels make of it is the business of `attn check` with ATTN_CUDA_L2_LIMIT (tools/check_sim.sh).
 */
#include "api/api.h"
#include "cuda/backend/state.h"
#include "kernels/params/mla_ranges.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char RANGES[] = "attn_mla_bwd_ranges_smxx_any", ORDER[] = "attn_mla_order_smxx_any";
static const int32_t UNTOUCHED = -77;
static attn_ctx *ctx;

struct problem {
    int64_t batch, queries, keys, first, n, q_start, k_stride, turn, pitch; /* pitch: elements of a list and the next */
    int32_t topk, shift;
    int causal, lengths, places, spread; /* spread: of the indices, in keys; more than `keys`: some are invalid */
};
static const struct problem problems[] = {
    {1, 1, 1, 0, 1, 0, 1, 1, 1, 1, 0, 0, 0, 1, 1},
    {1, 3, 64, 0, 3, 0, 1, 1, 33, 33, 3, 0, 0, 1, 64},
    {2, 5, 200, 2, 7, 0, 1, 2, 100, 90, 0, 0, 1, 1, 230},         /* 200 ranges; queries of two batch entries */
    {1, 4, 256, 0, 4, 0, 1, 100, 257, 257, 0, 0, 0, 1, 256},      /* as many ranges as there may be, one direction */
    {1, 9, 1000, 0, 9, 990, 1, 3, 500, 500, 5, 1, 0, 1, 1000},    /* causal: some of the last rows */
    {1, 6, 300, 1, 4, 1100, 4, 1, 64, 64, 4, 1, 1, 0, 320},       /* of compressed keys, with lengths; no places */
    {1, 2, 5000, 0, 2, 0, 1, 1, 3001, 3000, 8, 0, 0, 1, 5100},    /* several rounds a warp */
    {1, 3, 6000, 0, 3, 5000, 1, 1, 2048, 2048, 9, 1, 0, 1, 6100}, /* as many slots as mla_order takes */
    {1, 2, 70, 0, 2, 0, 1, 1, 700, 700, 2, 0, 1, 1, 3},           /* duplicates */
    {1, 3, 50, 0, 3, 0, 1, 1, 40, 40, 6, 0, 0, 1, -50},           /* no valid slot */
};

static uint32_t random_bits(void) {
    static uint64_t x = 88172645463325252u;
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    return (uint32_t)(x >> 32);
}
static int32_t index_of(const struct problem *p) {
    if (p->spread < 0) return -1 - (int32_t)(random_bits() % 50);
    const int32_t x = (int32_t)(random_bits() % (uint32_t)p->spread);
    return random_bits() % 16 ? x : x % 2 ? -1 : INT32_MIN;
}

static void *device_copy(const void *from, size_t bytes) {
    void *to = NULL;
    assert_int_equal(attn_memory_alloc(ctx, ATTN_DEVICE_CUDA(0), bytes, &to), ATTN_OK);
    assert_int_equal(attn_memory_copy(ctx, ATTN_DEVICE_CUDA(0), to, ATTN_DEVICE_CPU, from, bytes), ATTN_OK);
    return to;
}
static void fetch(void *to, void *from, size_t bytes) {
    assert_int_equal(attn_memory_copy(ctx, ATTN_DEVICE_CPU, to, ATTN_DEVICE_CUDA(0), from, bytes), ATTN_OK);
    attn_memory_free(ctx, ATTN_DEVICE_CUDA(0), from, bytes);
}
static int32_t *filled(size_t n) {
    int32_t *x = malloc(n * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) x[i] = UNTOUCHED;
    return x;
}

/* What is valid of query `flat`, by section 2 of docs/semantics.md. */
static int is_valid(const struct problem *p, int64_t flat, const int32_t *idx, const int32_t *length, int32_t t) {
    if (p->lengths && t >= length[flat]) return 0;
    const int64_t row = idx[flat * p->pitch + t], i = flat % p->queries;
    if (row < 0 || row >= p->keys) return 0;
    return !p->causal || p->q_start + i + 1 >= p->k_stride * (row + 1);
}

/* Copies in device memory, the caller's lists and what a kernel fills. */
struct arrays {
    void *idx, *length, *list, *lengths, *places;
};

static void set_inputs(struct kp_mla *in, const struct problem *p, const struct arrays *x) {
    in->batch = p->batch, in->seq_q = p->queries, in->seq_k = p->keys, in->topk = p->topk;
    in->q_start = p->q_start, in->k_stride = p->k_stride;
    in->flags = p->causal ? KP_MLA_CAUSAL : 0;
    in->indices.data = (uintptr_t)x->idx;
    in->indices.batch = p->queries * p->pitch, in->indices.row = p->pitch;
    if (p->lengths) in->topk_length.data = (uintptr_t)x->length;
    in->topk_length.batch = p->queries, in->topk_length.row = 1;
}

static void launch(const char *symbol, const struct problem *p, int32_t shift, const struct arrays *x) {
    const int32_t ranges = (int32_t)((p->keys - 1) >> shift) + 1;
    struct kp_mla_bwd_ranges all = {.wave = p->turn, .shift = shift, .ranges = ranges};
    struct kp_mla_order order = {
        .first = (int32_t)p->first, .n = (int32_t)p->n, .wave = (int32_t)p->turn, .shift = shift, .ranges = ranges};
    set_inputs(&all.bwd.in, p, x);
    all.bwd.first = p->first, all.bwd.n = p->n;
    all.list = order.list = (uintptr_t)x->list, all.lengths = order.lengths = (uintptr_t)x->lengths;
    if (p->places) all.positions = (uintptr_t)x->places;
    set_inputs(&order.in, p, x);

    struct attn_core_device *dev = attn_api_device(ctx, ATTN_DEVICE_CUDA(0));
    const struct attn_cuda_variant *v = attn_cuda_variant_find(symbol);
    const struct attn_cuda_grid grid = {.x = p->n > 2 ? 2 : 1, .y = 1, .z = 1, .threads = 256};
    const void *kp = symbol == ORDER ? (const void *)&order : &all;
    assert_int_equal(attn_cuda_variant_load(dev, v, 0), ATTN_OK);
    if (attn_cuda_launch(dev, v, &grid, kp, symbol == ORDER ? sizeof order : sizeof all, NULL))
        fail_msg("%s", attn_last_error());
    assert_int_equal(attn_device_synchronize(ctx, ATTN_DEVICE_CUDA(0)), ATTN_OK);
}

static int by_number(const void *a, const void *b) {
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static void check(const char *symbol, const struct problem *p) {
    int32_t shift = p->shift;
    const int any = symbol == ORDER; /* order within a range; more than 16 ranges are not for it */
    while (any && (p->keys - 1) >> shift >= KP_MLA_ORDER_RANGES) shift++;
    const int64_t all = p->batch * p->queries, ranges = ((p->keys - 1) >> shift) + 1;
    const size_t n_idx = (size_t)(all * p->pitch), n_list = (size_t)(p->n * p->topk),
                 n_places = (size_t)(all * p->topk);
    int32_t *idx = filled(n_idx), *length = filled((size_t)all), *list = filled(n_list), *want = filled(n_list);
    int32_t *lengths = filled((size_t)p->n), *places = filled(n_places), *want_places = filled(n_places);
    for (size_t i = 0; i < n_idx; i++) idx[i] = index_of(p);
    for (int64_t i = 0; i < all; i++) length[i] = (int32_t)(random_bits() % (uint32_t)(p->topk + 20)) - 5;
    assert_true(ranges <= KP_MLA_RANGES_MOST);
    const struct arrays x = {.idx = device_copy(idx, 4 * n_idx),
                             .length = device_copy(length, 4 * (size_t)all),
                             .list = device_copy(list, 4 * n_list),
                             .lengths = device_copy(lengths, 4 * (size_t)p->n),
                             .places = device_copy(places, 4 * n_places)};
    launch(symbol, p, shift, &x);
    fetch(list, x.list, 4 * n_list);
    fetch(lengths, x.lengths, 4 * (size_t)p->n);
    fetch(places, x.places, 4 * n_places);
    attn_memory_free(ctx, ATTN_DEVICE_CUDA(0), x.idx, 4 * n_idx);
    attn_memory_free(ctx, ATTN_DEVICE_CUDA(0), x.length, 4 * (size_t)all);

    for (int64_t q = 0; q < p->n; q++) {
        const int64_t flat = p->first + q;
        int32_t n = 0;
        for (int64_t r = 0; r < ranges; r++) {
            const int64_t range = q / p->turn % 2 ? ranges - 1 - r : r;
            const int32_t before = n;
            for (int32_t t = 0; t < p->topk; t++) {
                const int32_t row = idx[flat * p->pitch + t];
                if (!is_valid(p, flat, idx, length, t) || row >> shift != range) continue;
                if (p->places && !any) want_places[flat * p->topk + t] = n;
                want[q * p->topk + n++] = row;
            }
            if (!any) continue;
            qsort(want + q * p->topk + before, (size_t)(n - before), sizeof *want, by_number);
            qsort(list + q * p->topk + before, (size_t)(n - before), sizeof *list, by_number);
        }
        assert_int_equal(lengths[q], n);
    }
    assert_memory_equal(list, want, 4 * n_list);
    assert_memory_equal(places, want_places, 4 * n_places);
    free(idx), free(length), free(list), free(want), free(lengths), free(places), free(want_places);
}

static void check_all(const char *symbol) {
    if (!attn_cuda_variant_find(symbol)) skip(); /* a build of other kernels */
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
        if (symbol == RANGES || problems[i].topk <= KP_MLA_ORDER_SLOTS) check(symbol, &problems[i]);
}
static void every_problem(void **state) {
    (void)state;
    check_all(RANGES);
}
static void every_problem_in_any_order(void **state) {
    (void)state;
    check_all(ORDER);
}

int main(void) {
    setenv("ATTN_CUDA_IMAGE", "ptx", 1);
    attn_ctx_options o = {.size = sizeof o, .cuda_driver = ATTN_TEST_SIM};
    if (attn_ctx_create(&o, &ctx) || attn_cuda_status(ctx) ||
        attn_cuda_backend.prepare(ctx, attn_api_device(ctx, ATTN_DEVICE_CUDA(0)))) {
        printf("%s\n", attn_last_error());
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_problem), cmocka_unit_test(every_problem_in_any_order)};
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    attn_ctx_release(ctx);
    return failed;
}
