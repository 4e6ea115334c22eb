/* SPDX-License-Identifier: MIT
 * Roles and argument checks: which tensors each operator takes, and for every kind of fault its status, the tensor's
 * name and both numbers. Nothing here is read through the tensors, so that they may lie at made-up addresses. */
#include "attn.h"
#include "base/err.h"
#include "core/plan.h"
#include "core/problem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* ---- roles ---- */

static attn_problem parse(const char *text) {
    attn_problem p;
    if (attn_problem_parse(text, &p) || attn_problem_check(&p))
        print_error("%s: %s\n", text, attn_base_error_get()->text);
    assert_int_equal(attn_problem_parse(text, &p), ATTN_OK);
    assert_int_equal(attn_problem_check(&p), ATTN_OK);
    return p;
}

/* "name=use:dtype[shape]" of every role in use, in order. */
static void describe(const attn_problem *p, char *out, size_t bytes) {
    struct attn_text text = attn_text_over(out, bytes);
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        int32_t use;
        attn_tensor t;
        assert_int_equal(attn_role_tensor(p, role, &use, &t), ATTN_OK);
        if (use == ATTN_USE_NONE) continue;
        attn_text_add(&text, "%s%s=%c:%s[", text.len ? " " : "", attn_role_name(role), "-io?+"[use],
                      attn_dtype_name(t.dtype));
        for (int32_t a = 0; a < t.rank; a++) attn_text_add(&text, "%s%d", a ? "," : "", (int)t.shape[a]);
        attn_text_add(&text, "]");
    }
}

static void role_tables(void **state) {
    (void)state;
    static const struct {
        const char *problem, *roles;
    } rows[] = {
        {"sdpa_fwd b=2 hq=8 hk=4 sq=3 sk=5 d=16 dv=24 f16",
         "q=i:f16[2,8,3,16] k=i:f16[2,4,5,16] v=i:f16[2,4,5,24] out=o:f16[2,8,3,24] lse=?:f32[2,8,3] lse_rounded=?:f16[2,8,3]"},
        {"sdpa_fwd b=2 hq=8 hk=4 sq=3 sk=5 d=16 f64 mask=bool alibi=linear sink seqlens_q seqlens_k",
         "q=i:f64[2,8,3,16] k=i:f64[2,4,5,16] v=i:f64[2,4,5,16] mask=i:bool[2,8,3,5] alibi=i:f32[8] sink=i:f32[8] "
         "seqlens_q=i:i32[2] seqlens_k=i:i32[2] out=o:f64[2,8,3,16] lse=?:f64[2,8,3] lse_rounded=?:f64[2,8,3]"},
        {"sdpa_fwd b=2 hq=8 hk=4 sq=3 sk=5 d=16 f16 packed total_q=6 total_k=9 mask=f32",
         "q=i:f16[8,6,16] k=i:f16[4,9,16] v=i:f16[4,9,16] mask=i:f32[2,8,3,5] cu_seqlens_q=i:i32[3] cu_seqlens_k=i:i32[3] "
         "out=o:f16[8,6,16] lse=?:f32[8,6] lse_rounded=?:f16[8,6]"},
        {"sdpa_fwd b=2 hq=8 hk=4 sq=3 sk=5 d=16 dv=24 f16 paged seqlens_k page_size=4 n_pages=7 max_pages=2",
         "q=i:f16[2,8,3,16] k=i:f16[7,4,4,16] v=i:f16[7,4,4,24] seqlens_k=i:i32[2] block_table=i:i32[2,2] out=o:f16[2,8,3,24] "
         "lse=?:f32[2,8,3] lse_rounded=?:f16[2,8,3]"},
        {"sdpa_fwd b=2 hq=8 hk=4 sq=3 sk=5 d=16 dv=24 f16 packed total_q=6 paged seqlens_k page_size=4 n_pages=7 max_pages=2",
         "q=i:f16[8,6,16] k=i:f16[7,4,4,16] v=i:f16[7,4,4,24] seqlens_k=i:i32[2] cu_seqlens_q=i:i32[3] block_table=i:i32[2,2] "
         "out=o:f16[8,6,24] lse=?:f32[8,6] lse_rounded=?:f16[8,6]"},
        {"sdpa_bwd b=2 hq=8 hk=4 sq=3 sk=5 d=16 dv=24 f64 mask=f32 alibi=distance sink dlse grad_mask grad_alibi grad_sink",
         "q=i:f64[2,8,3,16] k=i:f64[2,4,5,16] v=i:f64[2,4,5,24] mask=i:f32[2,8,3,5] alibi=i:f32[8] sink=i:f32[8] "
         "out=i:f64[2,8,3,24] lse=i:f64[2,8,3] dout=i:f64[2,8,3,24] dlse=i:f64[2,8,3] dq=?:f64[2,8,3,16] dk=?:f64[2,4,5,16] "
         "dv=?:f64[2,4,5,24] dmask=o:f64[2,8,3,5] dalibi=o:f64[8] dsink=o:f64[8]"},
        {"sdpa_fwd hq=2 sq=3 sk=5 d=16 dv=24 bf16 out=f32 max_logits",
         "q=i:bf16[1,2,3,16] k=i:bf16[1,2,5,16] v=i:bf16[1,2,5,24] out=o:f32[1,2,3,24] lse=?:f32[1,2,3] "
         "lse_rounded=?:bf16[1,2,3] max_logits=o:f32[1,2,3]"},
        {"mla_fwd b=2 hq=8 sq=3 sk=5 topk=7 bf16 topk_length sink",
         "q=i:bf16[2,3,8,576] kv=i:bf16[2,5,1,576] sink=i:f32[8] indices=i:i32[2,3,1,7] topk_length=i:i32[2,3] "
         "out=o:bf16[2,3,8,512] lse=?:f32[2,3,8] max_logits=?:f32[2,3,8]"},
        {"mla_bwd hq=8 sq=3 sk=5 topk=7 bf16 sink grad_sink dlse with_dist dkv=f32 accumulate",
         "q=i:bf16[1,3,8,576] kv=i:bf16[1,5,1,576] sink=i:f32[8] indices=i:i32[1,3,1,7] out=i:bf16[1,3,8,512] lse=i:f32[1,3,8] "
         "dist=o:f32[1,3,7] dout=i:bf16[1,3,8,512] dlse=i:f32[1,3,8] dq=?:bf16[1,3,8,576] dkv=+:f32[1,5,1,576] dsink=o:f32[8]"},
        {"mla_bwd hq=8 sq=3 sk=5 topk=7 f16",
         "q=i:f16[1,3,8,576] kv=i:f16[1,5,1,576] indices=i:i32[1,3,1,7] out=i:f16[1,3,8,512] lse=i:f32[1,3,8] "
         "dout=i:f16[1,3,8,512] dq=?:f16[1,3,8,576] dkv=?:f16[1,5,1,576]"},
        {"mla_fwd b=2 hq=8 sq=5 sk=5 topk=7 bf16 group=4",
         "q=i:bf16[2,5,8,576] kv=i:bf16[2,5,1,576] indices=i:i32[2,5,1,7] out=o:bf16[2,5,8,512] lse=?:f32[2,5,8] "
         "max_logits=?:f32[2,5,8] joined=i:i32[2,2,192]"},
        {"dist hq=8 sq=3 sk=5 d=512 topk=7 f32",
         "q=i:f32[1,3,8,512] kv=i:f32[1,5,1,512] indices=i:i32[1,3,1,7] lse=i:f32[1,3,8] dist=o:f32[1,3,7]"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        attn_problem p = parse(rows[i].problem);
        char text[1024];
        describe(&p, text, sizeof text);
        assert_string_equal(text, rows[i].roles);
    }
}

static void role_functions(void **state) {
    (void)state;
    attn_args a = ATTN_ARGS_INIT;
    attn_tensor t[ATTN_ROLE_COUNT];
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        assert_non_null(attn_role_name(role));
        assert_int_equal(attn_args_set(&a, role, &t[role]), ATTN_OK);
    }
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) assert_ptr_equal(attn_args_at(&a, role), &t[role]);
    assert_ptr_equal(a.q, &t[ATTN_ROLE_Q]);
    assert_ptr_equal(a.cu_seqlens_k, &t[ATTN_ROLE_CU_SEQLENS_K]);
    assert_ptr_equal(a.dsink, &t[ATTN_ROLE_DSINK]);
    assert_string_equal(attn_role_name(ATTN_ROLE_CU_SEQLENS_K), "cu_seqlens_k");
    assert_null(attn_role_name(-1));
    assert_null(attn_role_name(ATTN_ROLE_COUNT));
    assert_int_equal(attn_args_set(&a, ATTN_ROLE_COUNT, NULL), ATTN_E_ENUM);
    assert_int_equal(attn_args_set(NULL, 0, NULL), ATTN_E_ARGUMENT);
    a.size = offsetof(attn_args, lse); /* an older caller's struct */
    assert_int_equal(attn_args_set(&a, ATTN_ROLE_LSE, NULL), ATTN_E_ABI);
    assert_null(attn_args_at(&a, ATTN_ROLE_LSE));
    assert_ptr_equal(attn_args_at(&a, ATTN_ROLE_OUT), &t[ATTN_ROLE_OUT]);

    attn_problem p = parse("sdpa_fwd b=0 hq=8 sq=3 d=16 f16");
    int32_t use;
    attn_tensor q;
    assert_int_equal(attn_role_tensor(&p, ATTN_ROLE_Q, &use, &q), ATTN_OK);
    assert_true(q.bytes == 0 && q.strides[0] == 384 && q.strides[1] == 48 && q.strides[2] == 16 && q.strides[3] == 1);
    assert_int_equal(attn_role_tensor(&p, ATTN_ROLE_COUNT, &use, &q), ATTN_E_ENUM);
    assert_int_equal(attn_role_tensor(&p, ATTN_ROLE_Q, NULL, &q), ATTN_E_ARGUMENT);
    p.dtype = 0;
    assert_int_equal(attn_role_tensor(&p, ATTN_ROLE_Q, &use, &q), ATTN_E_ENUM);
}

/* ---- args ---- */

/* A plan and one row-major tensor per role in use, far apart. */
struct bench {
    struct attn_kernel kernel, second;
    struct attn_core_device device;
    struct attn_plan plan;
    attn_tensor t[ATTN_ROLE_COUNT];
    attn_args args;
};
static void *address(int32_t slot) { return (void *)(((uintptr_t)slot + 1) << 28); }

static void set_up(struct bench *b, const char *text) {
    attn_problem p = parse(text);
    memset(b, 0, sizeof *b);
    b->kernel.name = "first", b->second.name = "second";
    b->plan.kernel = &b->kernel;
    b->plan.device = &b->device;
    assert_int_equal(attn_core_problem_normalise(&p, &b->plan.problem), ATTN_OK);
    b->args.size = sizeof b->args;
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        int32_t use;
        assert_int_equal(attn_role_tensor(&p, role, &use, &b->t[role]), ATTN_OK);
        b->t[role].data = address(role);
        if (use != ATTN_USE_NONE) attn_args_set(&b->args, role, &b->t[role]);
    }
}

static attn_status check(const struct bench *b) {
    const struct attn_kernel *kernel = NULL;
    attn_status status = attn_core_args_check(&b->plan, &b->args, &kernel);
    if (!status) assert_ptr_equal(kernel, &b->kernel);
    return status;
}
#define OK(b)                                                                                                          \
    do {                                                                                                               \
        if (check(b)) print_error("%s\n", attn_base_error_get()->text);                                                \
        assert_int_equal(check(b), ATTN_OK);                                                                           \
    } while (0)
static void fails(const struct bench *b, attn_status status, const char *argument, int64_t expected, int64_t given) {
    attn_status got = check(b);
    const struct attn_base_error *e = attn_base_error_get();
    if (got != status || strcmp(e->argument, argument)) print_error("%s: %s\n", e->argument, e->text);
    assert_int_equal(got, status);
    assert_string_equal(e->argument, argument);
    assert_non_null(strstr(e->text, argument));
    if (!expected && !given) return;
    char number[32];
    assert_int_equal(e->expected, expected);
    assert_int_equal(e->given, given);
    snprintf(number, sizeof number, "%lld", (long long)given);
    if (status != ATTN_E_DTYPE && status != ATTN_E_TENSOR_DEVICE && !(status == ATTN_E_WORKSPACE && !given))
        assert_non_null(strstr(e->text, number));
    snprintf(number, sizeof number, "%lld", (long long)expected);
    if (status != ATTN_E_DTYPE && status != ATTN_E_TENSOR_DEVICE && status != ATTN_E_SHAPE)
        assert_non_null(strstr(e->text, number));
}

static const char *const full[] = {
    "sdpa_fwd b=2 hq=8 hk=4 sq=3 sk=5 d=16 dv=24 f16 mask=f32 alibi=linear sink seqlens_q seqlens_k",
    "sdpa_fwd b=2 hq=8 hk=4 sq=3 sk=5 d=16 f32 packed total_q=6 total_k=9",
    "sdpa_fwd b=2 hq=8 hk=4 sq=3 sk=5 d=16 bf16 paged seqlens_k page_size=4 n_pages=7 max_pages=2",
    "sdpa_bwd b=2 hq=8 hk=4 sq=3 sk=5 d=16 dv=24 f64 mask=f32 alibi=linear sink dlse grad_mask grad_alibi grad_sink",
    "mla_fwd b=2 hq=8 sq=3 sk=5 topk=7 bf16 topk_length sink",
    "mla_bwd hq=8 sq=3 sk=5 topk=7 bf16 sink grad_sink dlse with_dist dkv=f32 accumulate topk_length",
    "dist hq=8 sq=3 sk=5 topk=7 f32",
    "mla_fwd b=2 hq=8 sq=5 sk=5 topk=7 bf16 group=4",
    "mla_bwd hq=8 sq=5 sk=5 topk=7 bf16 topk_length group=2",
    "dist hq=8 sq=40 sk=5 topk=7 f32 group=16",
};
enum { N_FULL = sizeof full / sizeof *full };

/* Each fault, on each role of each operator. */
static void every_role(void **state) {
    (void)state;
    for (int i = 0; i < N_FULL; i++) {
        struct bench good, b;
        set_up(&good, full[i]);
        OK(&good);
        for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
            const char *name = attn_role_name(role);
            struct attn_core_role r;
            attn_core_role_get(&good.plan.problem, role, &r);
#define FRESH                                                                                                          \
    b = good;                                                                                                          \
    b.plan.kernel = &b.kernel, b.plan.device = &b.device;                                                              \
    for (int32_t j = 0; j < ATTN_ROLE_COUNT; j++)                                                                      \
        if (attn_args_at(&good.args, j)) attn_args_set(&b.args, j, &b.t[j]);
            FRESH
            attn_tensor *t = &b.t[role];
            if (r.use == ATTN_USE_NONE) {
                attn_args_set(&b.args, role, t);
                fails(&b, ATTN_E_ARGUMENT, name, 0, 0);
                continue;
            }
            int64_t last = r.rank - 1, element = (int64_t)attn_dtype_bytes(r.dtype);
            attn_args_set(&b.args, role, NULL);
            if (r.use == ATTN_USE_IN || r.use == ATTN_USE_OUT)
                fails(&b, ATTN_E_ARGUMENT, name, 0, 0);
            else
                OK(&b);
            FRESH
            t->dtype = r.dtype == ATTN_F16 ? ATTN_BF16 : ATTN_F16;
            fails(&b, ATTN_E_DTYPE, name, r.dtype, t->dtype);
            FRESH
            t->rank = 0;
            fails(&b, ATTN_E_SHAPE, name, r.rank, 0);
            t->rank = 5;
            fails(&b, ATTN_E_SHAPE, name, r.rank, 5);
            for (int32_t a = 0; a < r.rank; a++) {
                FRESH
                t->shape[a] += 1;
                fails(&b, ATTN_E_SHAPE, name, r.shape[a], r.shape[a] + 1);
                t->shape[a] = -1;
                fails(&b, ATTN_E_SHAPE, name, r.shape[a], -1);
            }
            FRESH
            int one_per_row = role == ATTN_ROLE_LSE || role == ATTN_ROLE_LSE_ROUNDED || role == ATTN_ROLE_DLSE ||
                              role == ATTN_ROLE_MAX_LOGITS;
            if (one_per_row) { /* free on every axis: the last two exchanged, also backwards */
                t->strides[last] = r.shape[last - 1], t->strides[last - 1] = 1;
                OK(&b);
                t->strides[last] *= -1, t->strides[last - 1] *= -1;
                OK(&b);
                t->strides[last] = 0; /* a broadcast, for inputs */
                if (r.use == ATTN_USE_IN)
                    OK(&b);
                else
                    fails(&b, ATTN_E_STRIDE, name, 1, 0);
            } else if (r.shape[last] > 1) {
                t->strides[last] = 2;
                fails(&b, ATTN_E_STRIDE, name, 1, 2);
                t->strides[last] = -1;
                fails(&b, ATTN_E_STRIDE, name, 1, -1);
                t->strides[last] = 0;
                if (role == ATTN_ROLE_MASK || role == ATTN_ROLE_DMASK)
                    OK(&b);
                else
                    fails(&b, ATTN_E_STRIDE, name, 1, 0);
            }
            FRESH
            t->data = NULL;
            fails(&b, ATTN_E_ARGUMENT, name, 0, 0);
            FRESH
            if (element > 1) {
                t->data = (char *)t->data + 1;
                t->bytes = 0;
                fails(&b, ATTN_E_ALIGNMENT, name, element, 1);
            }
            FRESH
            int64_t need = element;
            for (int32_t a = 0; a < r.rank; a++) need *= r.shape[a];
            t->bytes = (uint64_t)need - 1;
            fails(&b, ATTN_E_BUFFER, name, need, need - 1);
            t->bytes = (uint64_t)need + 5;
            OK(&b);
            t->bytes = 0;
            OK(&b);
            t->device = ATTN_DEVICE_CUDA(0);
            fails(&b, ATTN_E_TENSOR_DEVICE, name, 0, 1);
            FRESH
            int output = r.use != ATTN_USE_IN;
            int outer = -1;
            for (int32_t a = 0; a < last; a++)
                if (r.shape[a] > 1) outer = a;
            if (outer < 0) continue;
            t->strides[outer] = 0; /* a broadcast */
            if (output && role != ATTN_ROLE_DMASK)
                fails(&b, ATTN_E_STRIDE, name, 1, 0);
            else
                OK(&b);
            FRESH
            t->strides[outer] = INT64_MAX;
            fails(&b, ATTN_E_STRIDE, name, 0, 0);
            t->strides[outer] = INT64_MIN;
            fails(&b, ATTN_E_STRIDE, name, 0, 0);
        }
    }
}

static void free_strides(void **state) {
    (void)state;
    struct bench b;
    set_up(&b, "sdpa_fwd b=2 hq=8 hk=4 sq=3 sk=5 d=16 dv=24 f16 mask=f32");
    /* [B,S,H,D] memory for q and out, both reversed along the sequence */
    attn_tensor *q = &b.t[ATTN_ROLE_Q], *out = &b.t[ATTN_ROLE_OUT], *k = &b.t[ATTN_ROLE_K],
                *mask = &b.t[ATTN_ROLE_MASK];
    q->strides[0] = 384, q->strides[1] = 16, q->strides[2] = -128;
    out->strides[0] = 576, out->strides[1] = 24, out->strides[2] = -192;
    q->bytes = 2 * (384 + 7 * 16 + 16); /* what lies at data and after it */
    OK(&b);
    q->bytes -= 1;
    fails(&b, ATTN_E_BUFFER, "q", 2 * (384 + 7 * 16 + 16), 2 * (384 + 7 * 16 + 16) - 1);
    assert_non_null(strstr(attn_base_error_get()->text, "512 before")); /* 2 rows back, 128 elements of 2 bytes */
    q->bytes = 0;
    /* a pool that many read: strides 0, and overlapping input rows */
    k->strides[0] = k->strides[1] = 0, k->strides[2] = 1, k->bytes = 2 * (4 + 16);
    OK(&b);
    mask->strides[0] = mask->strides[1] = mask->strides[2] = mask->strides[3] = 0, mask->bytes = 4;
    OK(&b);
    /* an output whose rows are closer than they are long */
    out->strides[1] = 23;
    fails(&b, ATTN_E_STRIDE, "out", 24, 23);
    out->strides[1] = 24, out->strides[2] = 100; /* heads reach over the next row */
    fails(&b, ATTN_E_STRIDE, "out", 192, 100);

    /* Strides of extent 1 do not matter, whatever they hold; neither do tensors without elements. */
    set_up(&b, "sdpa_fwd hq=1 sq=1 sk=1 d=1 f32 mask=f16");
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++)
        for (int a = 0; a < ATTN_MAX_RANK; a++) b.t[role].strides[a] = a % 2 ? INT64_MIN : INT64_MAX;
    OK(&b);
    set_up(&b, "sdpa_fwd b=3 hq=2 sq=4 sk=0 d=8 f32");
    b.t[ATTN_ROLE_K].data = b.t[ATTN_ROLE_V].data = NULL;
    b.t[ATTN_ROLE_K].strides[0] = b.t[ATTN_ROLE_K].strides[3] = -77;
    OK(&b);
    set_up(&b, "sdpa_fwd b=0 hq=2 sq=4 sk=4 d=8 f32");
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) b.t[role].data = NULL;
    OK(&b);
    /* dalibi and dsink do not sum over strides */
    set_up(&b, "sdpa_bwd b=2 hq=4 sq=3 d=8 f32 alibi=linear grad_alibi mask=f32 grad_mask");
    attn_tensor *da = &b.t[ATTN_ROLE_DALIBI], *dm = &b.t[ATTN_ROLE_DMASK];
    *da = (attn_tensor){.data = da->data, .dtype = ATTN_F32, .rank = 2, .shape = {2, 4}, .strides = {0, 1}};
    fails(&b, ATTN_E_STRIDE, "dalibi", 1, 0);
    da->strides[0] = 4;
    OK(&b);
    dm->strides[0] = dm->strides[1] = 0;
    OK(&b);
    dm->strides[2] = 2; /* shorter than a row of 3 */
    fails(&b, ATTN_E_STRIDE, "dmask", 3, 2);
}

static void other_shapes(void **state) {
    (void)state;
    struct bench b;
    set_up(&b, "sdpa_fwd b=2 hq=8 hk=4 sq=3 d=16 f16 alibi=linear");
    attn_tensor *alibi = &b.t[ATTN_ROLE_ALIBI];
    *alibi = (attn_tensor){.data = alibi->data, .dtype = ATTN_F32, .rank = 2, .shape = {2, 8}, .strides = {8, 1}};
    OK(&b);
    alibi->shape[0] = 1;
    OK(&b);
    alibi->shape[0] = 3;
    fails(&b, ATTN_E_SHAPE, "alibi", 1, 2);
    alibi->shape[0] = 2, alibi->shape[1] = 7;
    fails(&b, ATTN_E_SHAPE, "alibi", 1, 2);

    static const char *const sparse[] = {"mla_fwd hq=8 sq=3 sk=5 topk=7 bf16 topk_length group=2",
                                         "mla_bwd hq=8 sq=3 sk=5 topk=7 bf16 topk_length with_dist",
                                         "dist hq=8 sq=3 sk=5 topk=7 bf16 topk_length"};
    for (int i = 0; i < 3; i++) {
        set_up(&b, sparse[i]);
        for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
            attn_tensor *t = &b.t[role];
            if (!attn_args_at(&b.args, role) || t->rank < 2) continue;
            memmove(t->shape, t->shape + 1, 3 * sizeof *t->shape);
            memmove(t->strides, t->strides + 1, 3 * sizeof *t->strides);
            t->rank--;
            OK(&b); /* some with the batch axis, some without */
        }
    }
    set_up(&b, "mla_fwd b=2 hq=8 sq=3 sk=5 topk=7 bf16");
    b.t[ATTN_ROLE_Q].rank = 3;
    fails(&b, ATTN_E_SHAPE, "q", 4, 3);
    set_up(&b, "sdpa_fwd hq=8 sq=3 sk=5 d=8 bf16"); /* the dense batch axis stays, B = 1 or not */
    attn_tensor *q = &b.t[ATTN_ROLE_Q];
    *q = (attn_tensor){.data = q->data, .dtype = ATTN_BF16, .rank = 3, .shape = {8, 3, 8}, .strides = {24, 8, 1}};
    fails(&b, ATTN_E_SHAPE, "q", 4, 3);
}

static void overlap(void **state) {
    (void)state;
    struct bench b;
    const char *text = "sdpa_fwd b=2 hq=4 sq=6 d=8 f32";
    set_up(&b, text);
    attn_tensor *q = &b.t[ATTN_ROLE_Q], *k = &b.t[ATTN_ROLE_K], *v = &b.t[ATTN_ROLE_V], *out = &b.t[ATTN_ROLE_OUT];
    attn_tensor *lse = &b.t[ATTN_ROLE_LSE], *rounded = &b.t[ATTN_ROLE_LSE_ROUNDED];
    k->data = v->data = q->data; /* inputs may coincide */
    OK(&b);
    out->data = q->data; /* in place */
    fails(&b, ATTN_E_OVERLAP, "out", 0, 0);
    assert_non_null(strstr(attn_base_error_get()->text, "with q"));
    out->data = (char *)q->data + q->bytes - 4; /* by one element */
    fails(&b, ATTN_E_OVERLAP, "out", 0, 0);
    out->data = (char *)q->data + q->bytes; /* side by side */
    OK(&b);
    out->data = (char *)q->data - out->bytes;
    OK(&b);
    out->data = (char *)q->data - out->bytes + 4;
    fails(&b, ATTN_E_OVERLAP, "out", 0, 0);

    set_up(&b, text); /* two outputs */
    rounded->data = lse->data;
    fails(&b, ATTN_E_OVERLAP, "lse", 0, 0);
    assert_non_null(strstr(attn_base_error_get()->text, "lse_rounded"));
    set_up(&b, text); /* an output inside an input */
    lse->data = (char *)q->data + 128;
    fails(&b, ATTN_E_OVERLAP, "lse", 0, 0);

    /* Slices of one buffer [B,S,4,H,D]: interleaved, without a common element. */
    set_up(&b, text);
    attn_tensor *slices[] = {q, k, v, out};
    for (int i = 0; i < 4; i++) {
        slices[i]->data = (char *)address(60) + i * 4 * 8 * 4;
        slices[i]->bytes = 0;
        slices[i]->strides[0] = 6 * 128, slices[i]->strides[1] = 8, slices[i]->strides[2] = 128;
    }
    OK(&b);
    out->data = (char *)q->data + 128 * 4; /* q's place, one row on */
    fails(&b, ATTN_E_OVERLAP, "out", 0, 0);
    out->data = (char *)q->data + 3 * 4 * 8 * 4 - 4; /* one element into v */
    fails(&b, ATTN_E_OVERLAP, "out", 0, 0);
    out->strides[2] = -128; /* the free slice, walked backwards */
    out->data = (char *)address(60) + 3 * 4 * 8 * 4 + 5 * 128 * 4;
    OK(&b);
    out->data = (char *)out->data - 4 * 8 * 4;
    fails(&b, ATTN_E_OVERLAP, "out", 0, 0);
    assert_non_null(strstr(attn_base_error_get()->text, "with v"));

    set_up(&b, "mla_bwd hq=2 sq=3 sk=5 topk=7 f32 accumulate"); /* read and written, but still an output */
    b.t[ATTN_ROLE_DKV].data = b.t[ATTN_ROLE_KV].data;
    fails(&b, ATTN_E_OVERLAP, "dkv", 0, 0);
}

static void workspace_and_stream(void **state) {
    (void)state;
    struct bench b;
    set_up(&b, "sdpa_fwd b=2 hq=4 sq=6 d=8 f32");
    b.args.workspace_bytes = 5; /* not needed, not looked at */
    OK(&b);
    b.plan.workspace_bytes = 1000;
    fails(&b, ATTN_E_WORKSPACE, "workspace", 1000, 0);
    b.args.workspace = address(70);
    b.args.workspace_bytes = 999;
    fails(&b, ATTN_E_WORKSPACE, "workspace", 1000, 999);
    b.args.workspace_bytes = 1000;
    OK(&b);
    b.args.workspace = (char *)address(70) + 32;
    fails(&b, ATTN_E_WORKSPACE, "workspace", 64, 32);
    b.args.workspace = b.t[ATTN_ROLE_K].data;
    fails(&b, ATTN_E_OVERLAP, "workspace", 0, 0);
    b.args.workspace = (char *)b.t[ATTN_ROLE_K].data - 960;
    fails(&b, ATTN_E_OVERLAP, "workspace", 0, 0);
    b.args.workspace = (char *)b.t[ATTN_ROLE_K].data - 1024;
    OK(&b);
    b.args.stream = &b;
    fails(&b, ATTN_E_ARGUMENT, "stream", 0, 0);
    b.args.stream = NULL;
    b.args.reserved0 = 1;
    fails(&b, ATTN_E_ABI, "reserved0", 0, 1);
}

static const struct attn_kernel *chosen(const struct bench *b) {
    const struct attn_kernel *kernel = NULL;
    return attn_core_args_check(&b->plan, &b->args, &kernel) ? NULL : kernel;
}

static void alignment(void **state) {
    (void)state;
    struct bench b;
    const char *text = "sdpa_fwd b=2 hq=4 sq=6 sk=6 d=8 f32 mask=f32";
    set_up(&b, text);
    b.kernel.alignment_bytes = 16;
    b.plan.unaligned = &b.second;
    assert_ptr_equal(chosen(&b), &b.kernel);
    b.t[ATTN_ROLE_V].data = (char *)b.t[ATTN_ROLE_V].data + 4;
    assert_ptr_equal(chosen(&b), &b.second);
    b.plan.unaligned = NULL;
    fails(&b, ATTN_E_ALIGNMENT, "v", 16, 4);
    set_up(&b, text);
    b.kernel.alignment_bytes = 16, b.plan.unaligned = &b.second;
    attn_tensor *q = &b.t[ATTN_ROLE_Q];
    q->strides[1] = 49, q->bytes = 0;
    assert_ptr_equal(chosen(&b), &b.second);
    b.plan.unaligned = NULL;
    fails(&b, ATTN_E_ALIGNMENT, "q", 16, 4);
    q->strides[1] = -52;
    assert_ptr_equal(chosen(&b), &b.kernel);
    /* Tensors without rows of D or DV do not count: lse rows of 6 are not multiples of 16 bytes. */
    set_up(&b, text);
    b.kernel.alignment_bytes = 16, b.plan.unaligned = &b.second;
    b.t[ATTN_ROLE_LSE].data = (char *)b.t[ATTN_ROLE_LSE].data + 4;
    b.t[ATTN_ROLE_MASK].data = (char *)b.t[ATTN_ROLE_MASK].data + 4;
    assert_ptr_equal(chosen(&b), &b.kernel);

    /* Promises: kept, broken, and weaker than the kernel's need. */
    set_up(&b, "sdpa_fwd b=2 hq=4 sq=6 d=8 f32 align=16");
    b.kernel.alignment_bytes = 16;
    assert_ptr_equal(chosen(&b), &b.kernel);
    b.t[ATTN_ROLE_OUT].data = (char *)b.t[ATTN_ROLE_OUT].data + 8;
    fails(&b, ATTN_E_ALIGNMENT, "out", 16, 8);
    b.kernel.alignment_bytes = 0; /* a promise is a promise */
    fails(&b, ATTN_E_ALIGNMENT, "out", 16, 8);
    set_up(&b, "sdpa_fwd b=2 hq=4 sq=6 d=8 f32 align=8");
    b.kernel.alignment_bytes = 16, b.plan.unaligned = &b.second;
    assert_ptr_equal(chosen(&b), &b.kernel);
    b.t[ATTN_ROLE_OUT].data = (char *)b.t[ATTN_ROLE_OUT].data + 8;
    assert_ptr_equal(chosen(&b), &b.second);
    b.t[ATTN_ROLE_OUT].data = (char *)b.t[ATTN_ROLE_OUT].data + 4;
    fails(&b, ATTN_E_ALIGNMENT, "out", 8, 4);
}

/* A kernel with rules of its own for strides: others get the second kernel, or its reason. */
static int refuses_backwards(const attn_problem *p, const attn_args *args, int32_t *role, struct attn_text *why) {
    (void)p;
    *role = ATTN_ROLE_K;
    if (args->k->strides[1] >= 0) return 0;
    attn_text_add(why, "it goes backwards");
    return 1;
}
static void strides_of_a_kernel(void **state) {
    (void)state;
    struct bench b;
    set_up(&b, "sdpa_fwd b=2 hq=4 sq=6 sk=6 d=8 f32");
    b.kernel.refuses_strides = refuses_backwards, b.plan.unaligned = &b.second;
    assert_ptr_equal(chosen(&b), &b.kernel);
    attn_tensor *k = &b.t[ATTN_ROLE_K];
    k->strides[1] = -k->strides[1], k->bytes = 0;
    assert_ptr_equal(chosen(&b), &b.second);
    b.plan.unaligned = NULL;
    const struct attn_kernel *kernel = NULL;
    assert_int_equal(attn_core_args_check(&b.plan, &b.args, &kernel), ATTN_E_STRIDE);
    assert_non_null(strstr(attn_last_error(), "it goes backwards"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(role_tables),  cmocka_unit_test(role_functions),      cmocka_unit_test(every_role),
        cmocka_unit_test(free_strides), cmocka_unit_test(other_shapes),        cmocka_unit_test(overlap),
        cmocka_unit_test(alignment),    cmocka_unit_test(strides_of_a_kernel), cmocka_unit_test(workspace_and_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
