/* SPDX-License-Identifier: MIT
 * Tensors that reach past 2^31 elements: the same numbers as from compact copies, for every kernel of the machine. The
 * memory is reserved, not used: only the rows that hold numbers are ever touched. */
#include "attn.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#define FAR ((INT64_C(1) << 31) + 4096) /* elements between two neighbours of the stretched axis */

static attn_ctx *ctx;

struct stretched {
    attn_tensor compact, wide;
    size_t bytes;
};

/* A copy of `t` whose axis `axis` (extent > 1) has stride `step` instead; negative steps start at the far end. */
static void stretch(struct stretched *s, const attn_tensor *t, int axis, int64_t step) {
    size_t element = attn_dtype_bytes(t->dtype);
    int64_t reach = (t->shape[axis] - 1) * llabs(step);
    s->compact = s->wide = *t;
    s->bytes = ((size_t)reach + (size_t)(t->bytes / element)) * element;
    char *base = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(base != MAP_FAILED);
    s->wide.data = base + (step < 0 ? (size_t)reach * element : 0);
    s->wide.bytes = step < 0 ? 0 : s->bytes;
    s->wide.strides[axis] = step;
}
static void release(struct stretched *s, int axis) {
    size_t element = attn_dtype_bytes(s->wide.dtype);
    int64_t step = s->wide.strides[axis], reach = (s->wide.shape[axis] - 1) * llabs(step);
    munmap((char *)s->wide.data - (step < 0 ? (size_t)reach * element : 0), s->bytes);
}
/* Rows between the two forms; every tensor here has rank 4 and a unit innermost stride. */
static void copy_rows(const attn_tensor *to, const attn_tensor *from) {
    size_t element = attn_dtype_bytes(to->dtype);
    for (int64_t a = 0; a < to->shape[0]; a++)
        for (int64_t b = 0; b < to->shape[1]; b++)
            for (int64_t c = 0; c < to->shape[2]; c++)
                memcpy((char *)to->data +
                           (a * to->strides[0] + b * to->strides[1] + c * to->strides[2]) * (int64_t)element,
                       (char *)from->data +
                           (a * from->strides[0] + b * from->strides[1] + c * from->strides[2]) * (int64_t)element,
                       (size_t)to->shape[3] * element);
}

/* Run with compact tensors, then with every listed role stretched, and compare the outputs bit by bit. */
static void same_when_stretched(const char *text, const int32_t *roles, int n_roles, int axis, int64_t step) {
    attn_problem p;
    attn_tensor t[ATTN_ROLE_COUNT] = {0};
    attn_args args = ATTN_ARGS_INIT;
    uint64_t seed = 1;
    int32_t use[ATTN_ROLE_COUNT];
    assert_int_equal(attn_problem_parse(text, &p), ATTN_OK);
    for (int32_t r = 0; r < ATTN_ROLE_COUNT; r++) {
        assert_int_equal(attn_role_tensor(&p, r, &use[r], &t[r]), ATTN_OK);
        if (use[r] == ATTN_USE_NONE || r == ATTN_ROLE_LSE_ROUNDED) continue;
        size_t element = attn_dtype_bytes(t[r].dtype), n = 1;
        for (int a = 0; a < t[r].rank; a++) n *= (size_t)t[r].shape[a];
        t[r].bytes = n * element;
        t[r].data = calloc(n, element);
        for (size_t i = 0; i < n; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            double x = (double)(seed >> 40) / (1 << 23) - 1;
            if (r == ATTN_ROLE_INDICES)
                ((int32_t *)t[r].data)[i] = (int32_t)((seed >> 40) % (uint64_t)p.seq_k);
            else
                attn_convert((char *)t[r].data + i * element, t[r].dtype, &x, ATTN_F64, 1);
        }
        attn_args_set(&args, r, &t[r]);
    }
    for (int32_t k = 0; k < attn_kernel_count(ctx); k++) {
        attn_kernel_info info = {.size = sizeof info};
        assert_int_equal(attn_kernel_get_info(ctx, k, &info), ATTN_OK);
        if (info.backend == ATTN_BACKEND_CUDA || attn_kernel_supports(ctx, ATTN_DEVICE_CPU, k, &p)) continue;
        attn_plan_options o = {.size = sizeof o, .kernel = info.name, .flags = ATTN_PLAN_STRICT};
        attn_plan *plan;
        attn_plan_info plan_info = {.size = sizeof plan_info};
        assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, &p, &o, &plan), ATTN_OK);
        assert_int_equal(attn_plan_get_info(plan, &plan_info), ATTN_OK);
        attn_args a = args;
        a.workspace_bytes = plan_info.workspace_bytes;
        a.workspace = aligned_alloc(64, (size_t)(plan_info.workspace_bytes + 64) / 64 * 64);
        if (attn_execute(plan, &a)) fail_msg("%s: %s", info.name, attn_last_error());

        struct stretched s[8];
        for (int i = 0; i < n_roles; i++) {
            stretch(&s[i], &t[roles[i]], axis, step);
            if (use[roles[i]] == ATTN_USE_IN) copy_rows(&s[i].wide, &s[i].compact);
            attn_args_set(&a, roles[i], &s[i].wide);
        }
        if (attn_execute(plan, &a)) fail_msg("%s: %s", info.name, attn_last_error());
        for (int i = 0; i < n_roles; i++) {
            if (use[roles[i]] != ATTN_USE_IN) {
                attn_tensor back = t[roles[i]];
                back.data = malloc((size_t)back.bytes);
                copy_rows(&back, &s[i].wide);
                if (memcmp(back.data, t[roles[i]].data, (size_t)back.bytes))
                    fail_msg("%s: %s differs", info.name, attn_role_name(roles[i]));
                free(back.data);
            }
            release(&s[i], axis);
        }
        free(a.workspace);
        attn_plan_release(plan);
    }
    for (int32_t r = 0; r < ATTN_ROLE_COUNT; r++) free(t[r].data);
}

static void dense_forward(void **state) {
    (void)state;
    static const int32_t roles[] = {ATTN_ROLE_Q, ATTN_ROLE_K, ATTN_ROLE_V, ATTN_ROLE_OUT};
    same_when_stretched("sdpa_fwd b=2 hq=3 sq=5 sk=7 d=24 bf16 causal", roles, 4, 0, FAR);
    same_when_stretched("sdpa_fwd b=2 hq=3 sq=5 sk=7 d=24 f32", roles, 4, 1, FAR);
    same_when_stretched("sdpa_fwd b=1 hq=2 sq=5 sk=7 d=24 f16", roles, 4, 2, FAR / 2);
    same_when_stretched("sdpa_fwd b=1 hq=3 sq=5 sk=7 d=24 bf16", roles, 4, 1, -FAR);
}
static void dense_backward(void **state) {
    (void)state;
    static const int32_t roles[] = {ATTN_ROLE_Q,  ATTN_ROLE_K,  ATTN_ROLE_V, ATTN_ROLE_DOUT,
                                    ATTN_ROLE_DQ, ATTN_ROLE_DK, ATTN_ROLE_DV};
    same_when_stretched("sdpa_bwd b=1 hq=2 sq=5 sk=7 d=24 bf16 causal", roles, 7, 1, FAR);
}
static void sparse(void **state) {
    (void)state;
    /* Sparse tensors need their batch axis to have rank 4 here. Row 40 of kv lies past 2^31 elements. */
    static const int32_t kv[] = {ATTN_ROLE_KV}, gradients[] = {ATTN_ROLE_KV, ATTN_ROLE_DKV};
    same_when_stretched("mla_fwd b=1 sq=3 sk=64 hq=4 topk=9 bf16", kv, 1, 1, FAR / 32);
    same_when_stretched("mla_bwd b=1 sq=3 sk=64 hq=4 topk=9 bf16", gradients, 2, 1, FAR / 32);
    same_when_stretched("dist b=1 sq=3 sk=64 hq=4 topk=9 f32", kv, 1, 1, FAR / 32);
}

/* No strides at all: so many query rows that the last ones lie past 2^31 elements of q. One key, so each out is its
 * value. */
static void contiguous(void **state) {
    (void)state;
    enum { D = 512 };
    const int64_t rows = FAR / D;
    size_t bytes = (size_t)rows * D * 2;
    attn_problem p;
    char text[96];
    snprintf(text, sizeof text, "sdpa_fwd b=1 hq=1 sq=%lld sk=1 d=512 dv=1 bf16", (long long)rows);
    assert_int_equal(attn_problem_parse(text, &p), ATTN_OK);
    uint16_t *q = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true((void *)q != MAP_FAILED);
    uint16_t k[D], v[1] = {0x3fc0}, *out = calloc((size_t)rows, 2); /* v = 1.5 */
    float *lse = calloc((size_t)rows, 4);
    for (int i = 0; i < D; i++) k[i] = 0x3f80;
    q[(rows - 1) * D] = 0x4000; /* the last row is (2, 0, ...), the others 0 */
    attn_tensor tq, tk, tv, to, tl;
    attn_args a = ATTN_ARGS_INIT;
    attn_tensor_contiguous(&tq, q, ATTN_BF16, 4, (const int64_t[]){1, 1, rows, D});
    attn_tensor_contiguous(&tk, k, ATTN_BF16, 4, (const int64_t[]){1, 1, 1, D});
    attn_tensor_contiguous(&tv, v, ATTN_BF16, 4, (const int64_t[]){1, 1, 1, 1});
    attn_tensor_contiguous(&to, out, ATTN_BF16, 4, (const int64_t[]){1, 1, rows, 1});
    attn_tensor_contiguous(&tl, lse, ATTN_F32, 3, (const int64_t[]){1, 1, rows});
    a.q = &tq, a.k = &tk, a.v = &tv, a.out = &to, a.lse = &tl;
    if (attn_run(ctx, ATTN_DEVICE_CPU, &p, &a)) fail_msg("%s", attn_last_error());
    for (int64_t i = 0; i < rows; i++) assert_int_equal(out[i], 0x3fc0);
    assert_true(fabsf(lse[0]) < 1e-6f && fabsf(lse[rows - 2]) < 1e-6f); /* 0; on tiles the logarithm of almost 1 */
    assert_true(lse[rows - 1] > 0.088f && lse[rows - 1] < 0.089f);      /* 2 / sqrt(512) */
    munmap(q, bytes);
    free(out);
    free(lse);
}

static int open_ctx(void **state) {
    (void)state;
    return attn_ctx_create(NULL, &ctx) != ATTN_OK;
}
static int close_ctx(void **state) {
    (void)state;
    attn_ctx_release(ctx);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(dense_forward), cmocka_unit_test(dense_backward),
                                       cmocka_unit_test(sparse), cmocka_unit_test(contiguous)};
    return cmocka_run_group_tests(tests, open_ctx, close_ctx);
}
