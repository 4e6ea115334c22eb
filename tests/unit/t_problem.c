/* SPDX-License-Identifier: MIT
 * attn_problem_check (each fault its status, member and numbers), the size rule, the normal form, hash and equality. */
#include "attn.h"
#include "base/err.h"
#include "core/problem.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static attn_problem dense(int32_t op) {
    attn_problem p = ATTN_PROBLEM_INIT;
    p.op = op;
    p.dtype = ATTN_BF16;
    p.batch = 2, p.heads_q = 8, p.heads_k = 2, p.seq_q = 33, p.seq_k = 65, p.dim_qk = 64, p.dim_v = 80;
    return p;
}
static attn_problem sparse(int32_t op) {
    attn_problem p = ATTN_PROBLEM_INIT;
    p.op = op;
    p.dtype = ATTN_BF16;
    p.batch = 1, p.heads_q = 128, p.heads_k = 1, p.seq_q = 7, p.seq_k = 900, p.dim_qk = 576, p.dim_v = 512, p.topk = 64;
    return p;
}

enum { DENSE_F, DENSE_B, MLA_F, MLA_B, DIST, JOIN };
static attn_problem base(int which) {
    static const int32_t ops[] = {ATTN_OP_SDPA_FWD, ATTN_OP_SDPA_BWD, ATTN_OP_MLA_FWD, ATTN_OP_MLA_BWD, ATTN_OP_DIST};
    if (which == JOIN) {
        attn_problem p = ATTN_PROBLEM_INIT;
        p.op = ATTN_OP_MLA_JOIN, p.dtype = ATTN_I32;
        p.batch = 1, p.seq_q = 7, p.seq_k = 900, p.topk = 64, p.group = 4;
        return p;
    }
    return which < MLA_F ? dense(ops[which]) : sparse(ops[which]);
}

/* member = value (8 bytes if integer64, else 4); flags |= flags. */
struct fault {
    int which;
    size_t offset;
    int bytes;
    int64_t value;
    uint64_t flags;
    attn_status status;
    const char *argument;
};
#define M(member) offsetof(attn_problem, member), (int)sizeof(((attn_problem *)0)->member)

static const struct fault faults[] = {
    {DENSE_F, M(out_dtype), ATTN_F64, 0, ATTN_E_ENUM, "out_dtype"},
    {DENSE_F, M(out_dtype), ATTN_F16, 0, ATTN_E_ENUM, "out_dtype"},
    {DENSE_B, M(out_dtype), ATTN_F32, 0, ATTN_E_FEATURE, "out_dtype"},
    {DIST, M(out_dtype), ATTN_F32, 0, ATTN_E_FEATURE, "out_dtype"},
    {DENSE_B, 0, 0, 0, ATTN_MAX_LOGITS, ATTN_E_FEATURE, "flags"},
    {DENSE_F, M(reserved1), 7, 0, ATTN_E_ABI, "reserved1"},
    {DENSE_F, M(op), 0, 0, ATTN_E_ENUM, "op"},
    {DENSE_F, M(op), 7, 0, ATTN_E_ENUM, "op"},
    {DENSE_F, M(op), -1, 0, ATTN_E_ENUM, "op"},
    {DENSE_F, M(dtype), 0, 0, ATTN_E_ENUM, "dtype"},
    {DENSE_F, M(dtype), ATTN_I32, 0, ATTN_E_ENUM, "dtype"},
    {DENSE_F, M(dtype), 100, 0, ATTN_E_ENUM, "dtype"},
    {MLA_F, M(dtype), ATTN_F64, 0, ATTN_E_FEATURE, "dtype"},
    {JOIN, M(dtype), ATTN_BF16, 0, ATTN_E_ENUM, "dtype"},
    {JOIN, M(heads_q), 8, 0, ATTN_E_FEATURE, "heads_q"},
    {JOIN, M(heads_k), 1, 0, ATTN_E_FEATURE, "heads_k"},
    {JOIN, M(dim_qk), 576, 0, ATTN_E_FEATURE, "dim_qk"},
    {JOIN, M(dim_v), 512, 0, ATTN_E_FEATURE, "dim_v"},
    {JOIN, M(group), 0, 0, ATTN_E_SPARSE, "group"},
    {JOIN, M(group), 6, 0, ATTN_E_SPARSE, "group"},
    {JOIN, M(group), 32, 0, ATTN_E_SPARSE, "group"},
    {JOIN, M(topk), 8193, 0, ATTN_E_SPARSE, "topk"},
    {JOIN, M(union_limit), -1, 0, ATTN_E_SPARSE, "union_limit"},
    {JOIN, 0, 0, 0, ATTN_SINK, ATTN_E_FEATURE, "flags"},
    {JOIN, 0, 0, 0, ATTN_SCALE, ATTN_E_FEATURE, "flags"},
    {JOIN, 0, 0, 0, ATTN_LSE_BASE_2, ATTN_E_FEATURE, "flags"},
    {DENSE_F, M(group), 2, 0, ATTN_E_FEATURE, "group"},
    {MLA_F, M(group), 1, 0, ATTN_E_SPARSE, "group"},
    {MLA_B, M(group), 12, 0, ATTN_E_SPARSE, "group"},
    {DIST, M(group), 32, 0, ATTN_E_SPARSE, "group"},
    {MLA_F, M(union_limit), 2, 0, ATTN_E_FEATURE, "union_limit"},
    {DENSE_F, M(union_limit), 2, 0, ATTN_E_FEATURE, "union_limit"},
    {DENSE_F, 0, 0, 0, ATTN_FLAGS_ALL_ + 1, ATTN_E_ENUM, "flags"},
    {DENSE_F, 0, 0, 0, UINT64_C(1) << 63, ATTN_E_ENUM, "flags"},
    {DENSE_F, 0, 0, 0, ATTN_DLSE, ATTN_E_FEATURE, "flags"},
    {DENSE_F, 0, 0, 0, ATTN_TOPK_LENGTH, ATTN_E_FEATURE, "flags"},
    {DENSE_F, 0, 0, 0, ATTN_FILL_PADDING, ATTN_E_FEATURE, "flags"},
    {MLA_F, 0, 0, 0, ATTN_FILL_PADDING, ATTN_E_FEATURE, "flags"},
    {DENSE_B, 0, 0, 0, ATTN_PAGED | ATTN_SEQLENS_K, ATTN_E_FEATURE, "flags"},
    {DENSE_B, 0, 0, 0, ATTN_ACCUMULATE, ATTN_E_FEATURE, "flags"},
    {DENSE_B, 0, 0, 0, ATTN_WITH_DIST, ATTN_E_FEATURE, "flags"},
    {MLA_F, 0, 0, 0, ATTN_WINDOW_LEFT, ATTN_E_FEATURE, "flags"},
    {MLA_F, 0, 0, 0, ATTN_WINDOW_RIGHT, ATTN_E_FEATURE, "flags"},
    {MLA_F, 0, 0, 0, ATTN_BOTTOM_RIGHT, ATTN_E_FEATURE, "flags"},
    {MLA_F, 0, 0, 0, ATTN_ACCUMULATE, ATTN_E_FEATURE, "flags"},
    {MLA_B, 0, 0, 0, ATTN_GRAD_MASK, ATTN_E_FEATURE, "flags"},
    {MLA_B, 0, 0, 0, ATTN_LSE_WITH_SINK | ATTN_SINK, ATTN_E_FEATURE, "flags"},
    {DIST, 0, 0, 0, ATTN_SINK, ATTN_E_FEATURE, "flags"},
    {DENSE_F, M(mask_dtype), ATTN_F64, 0, ATTN_E_ENUM, "mask_dtype"},
    {DENSE_F, M(mask_dtype), -1, 0, ATTN_E_ENUM, "mask_dtype"},
    {DENSE_F, M(mask_dtype), 40, 0, ATTN_E_ENUM, "mask_dtype"},
    {MLA_F, M(mask_dtype), ATTN_F32, 0, ATTN_E_FEATURE, "mask_dtype"},
    {DENSE_F, M(alibi), 3, 0, ATTN_E_ENUM, "alibi"},
    {MLA_B, M(alibi), 1, 0, ATTN_E_FEATURE, "alibi"},
    {DENSE_B, M(dkv_dtype), ATTN_F32, 0, ATTN_E_FEATURE, "dkv_dtype"},
    {MLA_B, M(dkv_dtype), ATTN_F16, 0, ATTN_E_ENUM, "dkv_dtype"},
    {MLA_B, M(dkv_dtype), ATTN_F64, 0, ATTN_E_ENUM, "dkv_dtype"},
    {DIST, M(dist_norm), 3, 0, ATTN_E_ENUM, "dist_norm"},
    {MLA_B, M(dist_norm), ATTN_DIST_L1, 0, ATTN_E_FEATURE, "dist_norm"},
    {DENSE_F, M(batch), -1, 0, ATTN_E_EXTENT, "batch"},
    {DENSE_F, M(heads_q), -8, 0, ATTN_E_EXTENT, "heads_q"},
    {DENSE_F, M(heads_k), -8, 0, ATTN_E_EXTENT, "heads_k"},
    {DENSE_F, M(seq_q), INT64_MIN, 0, ATTN_E_EXTENT, "seq_q"},
    {DENSE_F, M(seq_k), -1, 0, ATTN_E_EXTENT, "seq_k"},
    {DENSE_F, M(seq_k), INT64_MAX, 0, ATTN_E_EXTENT, "seq_k"},
    {DENSE_F, M(dim_qk), -1, 0, ATTN_E_EXTENT, "dim_qk"},
    {DENSE_F, M(dim_qk), 513, 0, ATTN_E_EXTENT, "dim_qk"},
    {DENSE_F, M(dim_v), 513, 0, ATTN_E_EXTENT, "dim_v"},
    {MLA_F, M(dim_qk), 540, 0, ATTN_E_EXTENT, "dim_qk"},
    {MLA_F, M(dim_qk), 128, 0, ATTN_E_EXTENT, "dim_qk"},
    {MLA_F, M(dim_v), 511, 0, ATTN_E_EXTENT, "dim_v"},
    {DENSE_F, M(heads_k), 0, 0, ATTN_E_HEADS, "heads_k"},
    {DENSE_F, M(heads_k), 3, 0, ATTN_E_HEADS, "heads_k"},
    {DENSE_F, M(heads_k), 16, 0, ATTN_E_HEADS, "heads_k"},
    {DENSE_F, M(heads_q), 0, 0, ATTN_E_HEADS, "heads_k"},
    {MLA_F, M(heads_k), 2, 0, ATTN_E_HEADS, "heads_k"},
    {MLA_F, M(heads_q), 129, 0, ATTN_E_HEADS, "heads_q"},
    {MLA_F, M(heads_q), 0, 0, ATTN_E_HEADS, "heads_q"},
    {DENSE_F, M(total_q), 5, 0, ATTN_E_FEATURE, "total_q"},
    {MLA_F, M(total_k), 5, 0, ATTN_E_FEATURE, "total_k"},
    {DENSE_F, M(total_k), -5, ATTN_PACKED, ATTN_E_EXTENT, "total_k"},
    {DENSE_F, M(page_size), 16, 0, ATTN_E_FEATURE, "page_size"},
    {DENSE_F, M(max_pages), 16, ATTN_PAGED | ATTN_SEQLENS_K, ATTN_E_EXTENT, "page_size"},
    {DENSE_F, M(page_size), 16, ATTN_PAGED | ATTN_SEQLENS_K, ATTN_E_EXTENT, "seq_k"},
    {DENSE_F, M(topk), 5, 0, ATTN_E_FEATURE, "topk"},
    {MLA_F, M(topk), 0, 0, ATTN_E_SPARSE, "topk"},
    {MLA_F, M(topk), -4, 0, ATTN_E_SPARSE, "topk"},
    {DIST, M(q_start), -1, 0, ATTN_E_SPARSE, "q_start"},
    {DIST, M(k_stride), -1, 0, ATTN_E_SPARSE, "k_stride"},
    {MLA_B, M(k_stride), INT64_MAX, 0, ATTN_E_SPARSE, "k_stride"},
    {DENSE_F, M(k_stride), 2, 0, ATTN_E_FEATURE, "k_stride"},
    {DENSE_F, 0, 0, 0, ATTN_PACKED | ATTN_PAGED, ATTN_E_EXTENT, "page_size"},
    {DENSE_F, 0, 0, 0, ATTN_PACKED | ATTN_SEQLENS_Q, ATTN_OK, ""},
    {DENSE_B, 0, 0, 0, ATTN_PACKED | ATTN_SEQLENS_K, ATTN_OK, ""},
    {DENSE_F, 0, 0, 0, ATTN_LSE_WITH_SINK, ATTN_E_FEATURE, "flags"},
    {DENSE_B, 0, 0, 0, ATTN_GRAD_SINK, ATTN_E_FEATURE, "flags"},
    {MLA_B, 0, 0, 0, ATTN_GRAD_SINK, ATTN_E_FEATURE, "flags"},
    {DENSE_B, 0, 0, 0, ATTN_GRAD_MASK, ATTN_E_FEATURE, "flags"},
    {DENSE_B, M(mask_dtype), ATTN_BOOL, ATTN_GRAD_MASK, ATTN_E_FEATURE, "flags"},
    {DENSE_B, 0, 0, 0, ATTN_GRAD_ALIBI, ATTN_E_FEATURE, "flags"},
    {DENSE_F, M(align_bytes), 24, 0, ATTN_E_ALIGNMENT, "align_bytes"},
    {DENSE_F, M(seq_q), INT64_C(1) << 48, 0, ATTN_OK, ""}, /* 2 * 8 * 2^48 * 80 elements still fit */
    {DENSE_F, M(batch), INT64_C(1) << 48, ATTN_PACKED, ATTN_E_EXTENT, "seq_q"}, /* no tensor, but the tasks to count */
    {DENSE_F, M(batch), INT64_C(1) << 43, 0, ATTN_OK, ""},
    {DENSE_F, M(batch), INT64_C(1) << 48, 0, ATTN_E_EXTENT, "q"},
    {DENSE_F, M(seq_q), (INT64_C(1) << 48) + 1, 0, ATTN_E_EXTENT, "seq_q"},
};

static void faults_are_named(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        const struct fault *f = &faults[i];
        attn_problem p = base(f->which);
        int32_t narrow = (int32_t)f->value;
        if (f->bytes)
            memcpy((char *)&p + f->offset, f->bytes == 8 ? (const void *)&f->value : &narrow, (size_t)f->bytes);
        p.flags |= f->flags;
        attn_status status = attn_problem_check(&p);
        const struct attn_base_error *e = attn_base_error_get();
        if (status != f->status) print_error("fault %zu: %s\n", i, e->text);
        assert_int_equal(status, f->status);
        if (!status) continue;
        assert_string_equal(e->argument, f->argument);
        assert_int_equal(e->status, f->status);
        assert_true(strlen(e->text) > 15);
        if (f->status == ATTN_E_EXTENT && f->bytes == 8 && !f->flags && f->value < 600)
            assert_int_equal(e->given, f->value);
    }
}

/* Names and the whole choice, where a bare number or one bound of it would mislead. */
static void faults_in_words(void **state) {
    (void)state;
    attn_problem p = dense(ATTN_OP_SDPA_FWD);
    p.mask_dtype = ATTN_I64;
    assert_int_equal(attn_problem_check(&p), ATTN_E_ENUM);
    assert_string_equal(attn_base_error_get()->text,
                        "mask_dtype is i64 (6), expected none (0), f32 (1), f16 (2), bf16 (3) or bool (7)");
    p.mask_dtype = 77;
    assert_int_equal(attn_problem_check(&p), ATTN_E_ENUM);
    assert_non_null(strstr(attn_base_error_get()->text, "mask_dtype is 77, expected"));
    p = dense(ATTN_OP_SDPA_FWD);
    p.dtype = ATTN_DTYPE_NONE;
    assert_int_equal(attn_problem_check(&p), ATTN_E_ENUM);
    assert_non_null(strstr(attn_base_error_get()->text, "dtype is 0, expected f32 (1)"));
    static const int64_t dims[] = {192, 540, 1024, 0};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        p = sparse(ATTN_OP_MLA_FWD);
        p.dim_qk = dims[i];
        assert_int_equal(attn_problem_check(&p), ATTN_E_EXTENT);
        assert_non_null(strstr(attn_base_error_get()->text, ", expected 576 or 512 for mla_fwd"));
        p.dim_qk = 576;
        p.dim_v = dims[i];
        assert_int_equal(attn_problem_check(&p), ATTN_E_EXTENT);
        assert_non_null(strstr(attn_base_error_get()->text, ", expected 512 for mla_fwd"));
    }
}

static void numbers_are_checked(void **state) {
    (void)state;
    static const double bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        attn_problem p = dense(ATTN_OP_SDPA_FWD);
        p.scale = bad[i];
        assert_int_equal(attn_problem_check(&p), ATTN_OK); /* not read */
        p.flags = ATTN_SCALE;
        assert_int_equal(attn_problem_check(&p), ATTN_E_SCALE);
        assert_string_equal(attn_base_error_get()->argument, "scale");
        p.flags = 0;
        p.softcap = bad[i];
        assert_int_equal(attn_problem_check(&p), ATTN_E_SOFTCAP);
    }
    attn_problem p = dense(ATTN_OP_SDPA_BWD);
    p.softcap = -1;
    assert_int_equal(attn_problem_check(&p), ATTN_E_SOFTCAP);
    p.softcap = 30, p.scale = -0.5, p.flags = ATTN_SCALE;
    assert_int_equal(attn_problem_check(&p), ATTN_OK);
    p = sparse(ATTN_OP_MLA_FWD);
    p.softcap = 30;
    assert_int_equal(attn_problem_check(&p), ATTN_E_FEATURE);
}

static void legal_corners(void **state) {
    (void)state;
    for (int which = DENSE_F; which <= DIST; which++) {
        attn_problem p = base(which);
        assert_int_equal(attn_problem_check(&p), ATTN_OK);
        attn_problem once, twice; /* a normalised problem is a problem, the same one */
        assert_int_equal(attn_core_problem_normalise(&p, &once), ATTN_OK);
        assert_int_equal(attn_core_problem_normalise(&once, &twice), ATTN_OK);
        assert_memory_equal(&once, &twice, sizeof once);
        assert_true(attn_problem_equal(&p, &once));
        p.batch = 0;
        assert_int_equal(attn_problem_check(&p), ATTN_OK);
        p = base(which);
        p.seq_q = p.seq_k = 0;
        assert_int_equal(attn_problem_check(&p), ATTN_OK);
    }
    attn_problem p = dense(ATTN_OP_SDPA_FWD);
    p.heads_q = p.heads_k = 0;
    assert_int_equal(attn_problem_check(&p), ATTN_OK);
    p = dense(ATTN_OP_SDPA_FWD);
    p.dim_qk = p.dim_v = 0;
    assert_int_equal(attn_problem_check(&p), ATTN_OK);
    p.flags = ATTN_WINDOW_LEFT | ATTN_WINDOW_RIGHT;
    p.window_left = INT64_MIN, p.window_right = INT64_MAX;
    assert_int_equal(attn_problem_check(&p), ATTN_OK);
    p = dense(ATTN_OP_SDPA_FWD);
    p.flags = ATTN_PAGED | ATTN_SEQLENS_K;
    p.page_size = 13, p.max_pages = 5, p.n_pages = 3;
    assert_int_equal(attn_problem_check(&p), ATTN_OK); /* 65 keys fit exactly */
    p.flags |= ATTN_PACKED, p.total_q = 7;             /* queries are packed, keys paged: no rows of keys */
    assert_int_equal(attn_problem_check(&p), ATTN_OK);
    p.total_k = 1;
    assert_int_equal(attn_problem_check(&p), ATTN_E_FEATURE);
    assert_string_equal(attn_base_error_get()->argument, "total_k");
    p.flags &= ~(uint64_t)ATTN_PACKED, p.total_q = p.total_k = 0;
    p.seq_k = 66;
    assert_int_equal(attn_problem_check(&p), ATTN_E_EXTENT);
    assert_int_equal(attn_base_error_get()->expected, 65);
    assert_int_equal(attn_base_error_get()->given, 66);
    p = dense(ATTN_OP_SDPA_BWD);
    p.flags = ATTN_PACKED | ATTN_GRAD_MASK | ATTN_DLSE | ATTN_SINK | ATTN_GRAD_SINK | ATTN_LSE_WITH_SINK;
    p.mask_dtype = ATTN_F16, p.total_q = 40, p.total_k = 100;
    assert_int_equal(attn_problem_check(&p), ATTN_OK);
    static const int64_t heads[] = {1, 3, 64, 127, 128, 192, 1024};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        p = sparse(ATTN_OP_MLA_BWD);
        p.heads_q = heads[i];
        p.flags = ATTN_WITH_DIST | ATTN_ACCUMULATE | ATTN_LSE_EMPTY_PLUS_INF;
        p.dist_norm = ATTN_DIST_L1, p.dkv_dtype = ATTN_F32;
        assert_int_equal(attn_problem_check(&p), ATTN_OK);
    }
}

static void size_rule(void **state) {
    (void)state;
    struct {
        attn_problem p;
        uint64_t tail[4];
    } longer = {.p = dense(ATTN_OP_SDPA_FWD)};
    longer.p.size = sizeof longer;
    assert_int_equal(attn_problem_check(&longer.p), ATTN_OK);
    longer.tail[3] = 1;
    assert_int_equal(attn_problem_check(&longer.p), ATTN_E_ABI);
    assert_string_equal(attn_base_error_get()->argument, "size");

    /* A shorter struct: the missing tail reads as zero, also when memory behind it holds something else. */
    attn_problem p = dense(ATTN_OP_SDPA_FWD), n;
    p.size = offsetof(attn_problem, total_q);
    p.total_q = 99, p.reserved1 = 5;
    assert_int_equal(attn_problem_check(&p), ATTN_OK);
    assert_int_equal(attn_core_problem_normalise(&p, &n), ATTN_OK);
    assert_int_equal(n.size, sizeof n);
    assert_int_equal(n.total_q, 0);
    for (uint32_t size = 0; size < 4; size++) {
        p.size = size;
        assert_int_equal(attn_problem_check(&p), ATTN_E_ABI);
    }
    p.size = 1u << 20;
    assert_int_equal(attn_problem_check(&p), ATTN_E_ABI);
    assert_int_equal(attn_problem_check(NULL), ATTN_E_ARGUMENT);
}

static void normal_form(void **state) {
    (void)state;
    attn_problem p = dense(ATTN_OP_SDPA_FWD), n;
    p.scale = 7;
    assert_int_equal(attn_core_problem_normalise(&p, &n), ATTN_OK);
    assert_true(n.scale == 0.125);
    assert_int_equal(n.window_left, ATTN_UNBOUNDED);
    assert_int_equal(n.window_right, ATTN_UNBOUNDED);
    assert_int_equal(n.k_stride, 0);
    p.flags = ATTN_CAUSAL | ATTN_WINDOW_LEFT | ATTN_WINDOW_RIGHT | ATTN_SCALE;
    p.window_left = INT64_MIN, p.window_right = -17;
    assert_int_equal(attn_core_problem_normalise(&p, &n), ATTN_OK);
    assert_true(n.scale == 7);
    assert_int_equal(n.window_left, -ATTN_UNBOUNDED);
    assert_int_equal(n.window_right, 0);
    assert_true(n.flags == p.flags);
    p = dense(ATTN_OP_SDPA_FWD);
    p.dim_qk = 0;
    assert_int_equal(attn_core_problem_normalise(&p, &n), ATTN_OK);
    assert_true(isfinite(n.scale));
    p = sparse(ATTN_OP_MLA_BWD);
    p.flags = ATTN_CAUSAL;
    assert_int_equal(attn_core_problem_normalise(&p, &n), ATTN_OK);
    assert_int_equal(n.dkv_dtype, ATTN_BF16);
    assert_int_equal(n.k_stride, 1);
    assert_int_equal(n.window_right, ATTN_UNBOUNDED);
    p.op = 77;
    n.op = 1234;
    assert_int_equal(attn_core_problem_normalise(&p, &n), ATTN_E_ENUM);
    assert_int_equal(n.op, 1234); /* untouched on failure */
}

static void assert_same(const attn_problem *a, const attn_problem *b, int equal) {
    assert_int_equal(attn_problem_equal(a, b) != 0, equal);
    assert_int_equal(attn_problem_equal(b, a) != 0, equal);
    assert_int_equal(attn_problem_hash(a) == attn_problem_hash(b), equal);
}

static void meaning(void **state) {
    (void)state;
    attn_problem a = dense(ATTN_OP_SDPA_FWD), b = a;
    b.scale = 3, b.window_left = 5, b.window_right = 6; /* unread */
    assert_same(&a, &b, 1);
    b.flags = ATTN_SCALE;
    assert_same(&a, &b, 0);
    b.scale = 0.125; /* what the default is */
    assert_same(&a, &b, 1);
    b = a;
    a.flags = ATTN_CAUSAL, a.window_right = 9, b.flags = ATTN_WINDOW_RIGHT, b.window_right = 0;
    assert_same(&a, &b, 1);
    a.flags |= ATTN_BOTTOM_RIGHT;
    assert_same(&a, &b, 0);
    a.flags = ATTN_BOTTOM_RIGHT, b.flags = 0; /* an offset that nothing looks at */
    assert_same(&a, &b, 1);
    a.alibi = b.alibi = ATTN_ALIBI_LINEAR;
    assert_same(&a, &b, 0);

    a = b = sparse(ATTN_OP_MLA_BWD);
    a.q_start = 5, a.k_stride = 3, b.dkv_dtype = ATTN_BF16;
    assert_same(&a, &b, 1);
    a.flags = b.flags = ATTN_CAUSAL;
    assert_same(&a, &b, 0);
    b.q_start = 5, b.k_stride = 3;
    assert_same(&a, &b, 1);
    b.dkv_dtype = ATTN_F32;
    assert_same(&a, &b, 0);

    /* Each member that is read matters. */
    static const size_t members[] = {offsetof(attn_problem, batch),   offsetof(attn_problem, heads_q),
                                     offsetof(attn_problem, heads_k), offsetof(attn_problem, seq_q),
                                     offsetof(attn_problem, seq_k),   offsetof(attn_problem, dim_qk),
                                     offsetof(attn_problem, dim_v)};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        a = b = dense(ATTN_OP_SDPA_FWD);
        ++*(int64_t *)((char *)&b + members[i]);
        assert_same(&a, &b, 0);
    }
    a = b = dense(ATTN_OP_SDPA_FWD);
    b.size = offsetof(attn_problem, total_q); /* the same problem in an older struct */
    assert_same(&a, &b, 1);
    b.size = 1;
    assert_int_equal(attn_problem_equal(&a, &b), 0);
    assert_int_equal(attn_problem_hash(&b), 0);
}

static void ranges_are_inverse(void **state) {
    (void)state;
    for (int trial = 0; trial < 3000; trial++) {
        attn_problem p = dense(ATTN_OP_SDPA_FWD), n;
        p.seq_q = rand() % 12, p.seq_k = rand() % 12;
        p.flags = ((uint64_t)rand() & (ATTN_CAUSAL | ATTN_BOTTOM_RIGHT | ATTN_WINDOW_LEFT | ATTN_WINDOW_RIGHT));
        p.window_left = rand() % 9 ? rand() % 20 - 8 : -ATTN_UNBOUNDED;
        p.window_right = rand() % 9 ? rand() % 20 - 8 : -ATTN_UNBOUNDED;
        assert_int_equal(attn_core_problem_normalise(&p, &n), ATTN_OK);
        int64_t off = p.flags & ATTN_BOTTOM_RIGHT ? p.seq_k - p.seq_q : 0, a, b;
        for (int64_t i = 0; i < p.seq_q; i++)
            for (int64_t j = 0; j < p.seq_k; j++) {
                int64_t right = p.flags & ATTN_CAUSAL ? 0 : p.window_right;
                int seen = 1;
                if ((p.flags & (ATTN_CAUSAL | ATTN_WINDOW_RIGHT)) && j > i + off + right) seen = 0;
                if ((p.flags & ATTN_WINDOW_LEFT) && j < i + off - p.window_left) seen = 0;
                attn_core_key_range(&n, p.seq_q, p.seq_k, i, &a, &b);
                assert_int_equal(j >= a && j < b, seen);
                assert_true(0 <= a && a <= b && b <= p.seq_k);
                attn_core_query_range(&n, p.seq_q, p.seq_k, j, &a, &b);
                assert_int_equal(i >= a && i < b, seen);
                assert_true(0 <= a && a <= b && b <= p.seq_q);
            }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(faults_are_named), cmocka_unit_test(faults_in_words),    cmocka_unit_test(numbers_are_checked),
        cmocka_unit_test(legal_corners),    cmocka_unit_test(size_rule),          cmocka_unit_test(normal_form),
        cmocka_unit_test(meaning),          cmocka_unit_test(ranges_are_inverse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
