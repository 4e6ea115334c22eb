/* SPDX-License-Identifier: MIT
 * Views of dense, packed, paged and sparse tensors: every element is found where its strides say; lengths are clamped.
 */
#include "attn.h"
#include "core/plan.h"
#include "core/problem.h"
#include "core/view.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static attn_problem parse(const char *text) {
    attn_problem p, n;
    assert_int_equal(attn_problem_parse(text, &p), ATTN_OK);
    assert_int_equal(attn_core_problem_normalise(&p, &n), ATTN_OK);
    return n;
}

static char memory[1 << 16]; /* only addresses are compared */
static attn_tensor tensor(int32_t dtype, int32_t rank, const int64_t *shape, const int64_t *strides) {
    attn_tensor t = {.data = memory + (1 << 15), .dtype = dtype, .rank = rank};
    memcpy(t.shape, shape, (size_t)rank * sizeof *shape);
    memcpy(t.strides, strides, (size_t)rank * sizeof *strides);
    return t;
}
#define T(dtype, rank, ...) tensor(dtype, rank, (const int64_t[]){__VA_ARGS__}, (const int64_t[]){__VA_ARGS__} + (rank))

static struct attn_view view_of(const attn_problem *p, int32_t role, const attn_tensor *t) {
    attn_args a = ATTN_ARGS_INIT;
    assert_int_equal(attn_args_set(&a, role, t), ATTN_OK);
    return attn_core_view(p, &a, role);
}
static void assert_row(const struct attn_view *v, const attn_tensor *t, int64_t b, int64_t h, int64_t i,
                       int64_t elements) {
    assert_ptr_equal(attn_view_row(v, b, h, i), (char *)t->data + elements * (int64_t)attn_dtype_bytes(t->dtype));
}

static void dense(void **state) {
    (void)state;
    attn_problem p = parse("sdpa_bwd b=2 hq=6 hk=3 sq=5 sk=7 d=8 dv=4 bf16 mask=f32 alibi=linear sink");
    attn_tensor q = T(ATTN_BF16, 4, 2, 6, 5, 8, /* strides */ 1000, 8, 48, 1);
    struct attn_view v = view_of(&p, ATTN_ROLE_Q, &q);
    assert_int_equal(v.element_bytes, 2);
    assert_int_equal(v.dtype, ATTN_BF16);
    assert_int_equal(v.column, 1);
    assert_row(&v, &q, 1, 5, 4, 1000 + 5 * 8 + 4 * 48);
    q = T(ATTN_BF16, 4, 2, 6, 5, 8, -1000, 40, -8, 1); /* reversed batch and rows */
    v = view_of(&p, ATTN_ROLE_DQ, &q);
    assert_row(&v, &q, 1, 5, 4, -1000 + 5 * 40 - 4 * 8);
    attn_tensor k = T(ATTN_BF16, 4, 2, 3, 7, 8, 0, 0, 8, 1); /* broadcast */
    v = view_of(&p, ATTN_ROLE_K, &k);
    assert_row(&v, &k, 1, 2, 6, 48);
    attn_tensor lse = T(ATTN_F32, 3, 2, 6, 5, 30, 5, 1);
    v = view_of(&p, ATTN_ROLE_LSE, &lse);
    assert_row(&v, &lse, 1, 2, 3, 30 + 10 + 3);
    lse = T(ATTN_F32, 3, 2, 6, 5, 30, 1, -6); /* rows outside heads, backwards */
    v = view_of(&p, ATTN_ROLE_DLSE, &lse);
    assert_row(&v, &lse, 1, 2, 3, 30 + 2 - 18);
    attn_tensor mask = T(ATTN_F32, 4, 2, 6, 5, 7, 0, 0, 0, 1);
    v = view_of(&p, ATTN_ROLE_MASK, &mask);
    assert_row(&v, &mask, 1, 5, 4, 0);
    assert_int_equal(v.column, 1);
    mask = T(ATTN_F32, 4, 2, 6, 5, 7, 30, 5, 1, 0);
    v = view_of(&p, ATTN_ROLE_MASK, &mask);
    assert_row(&v, &mask, 1, 5, 4, 59);
    assert_int_equal(v.column, 0);

    attn_tensor slopes = T(ATTN_F32, 1, 6, 1);
    v = view_of(&p, ATTN_ROLE_ALIBI, &slopes);
    assert_row(&v, &slopes, 1, 5, 0, 5);
    slopes = T(ATTN_F32, 2, 2, 6, 10, 1);
    v = view_of(&p, ATTN_ROLE_ALIBI, &slopes);
    assert_row(&v, &slopes, 1, 5, 0, 15);
    slopes = T(ATTN_F32, 2, 1, 6, 12345, 1); /* one row for every batch entry */
    v = view_of(&p, ATTN_ROLE_ALIBI, &slopes);
    assert_row(&v, &slopes, 1, 5, 0, 5);
    attn_tensor sink = T(ATTN_F32, 1, 6, 1);
    v = view_of(&p, ATTN_ROLE_SINK, &sink);
    assert_row(&v, &sink, 1, 5, 9, 5);
    assert_null(view_of(&p, ATTN_ROLE_DOUT, NULL).data);
}

static void single_extents_ignore_strides(void **state) {
    (void)state;
    attn_problem p = parse("sdpa_fwd hq=1 sq=1 sk=7 d=8 f32 mask=bool");
    attn_tensor q = T(ATTN_F32, 4, 1, 1, 1, 8, -99999999, 77777777, INT64_MIN, 1);
    struct attn_view v = view_of(&p, ATTN_ROLE_Q, &q);
    assert_int_equal(v.batch, 0);
    assert_int_equal(v.head, 0);
    assert_int_equal(v.row, 0);
    attn_tensor one = T(ATTN_BOOL, 4, 1, 1, 1, 1, 3, 4, 5, 6);
    assert_int_equal(view_of(&p, ATTN_ROLE_MASK, &one).column, 1);
}

static void sparse(void **state) {
    (void)state;
    attn_problem p = parse("mla_bwd b=2 hq=6 sq=5 sk=7 topk=3 bf16 topk_length with_dist");
    attn_tensor q = T(ATTN_BF16, 4, 2, 5, 6, 576, 20000, 3600, 576, 1);
    struct attn_view v = view_of(&p, ATTN_ROLE_Q, &q);
    assert_row(&v, &q, 1, 5, 4, 20000 + 5 * 576 + 4 * 3600);
    attn_tensor kv = T(ATTN_BF16, 4, 2, 7, 1, 576, 5000, 600, 424242, 1);
    v = view_of(&p, ATTN_ROLE_KV, &kv);
    assert_int_equal(v.head, 0);
    assert_row(&v, &kv, 1, 0, 6, 5000 + 6 * 600);
    attn_tensor lse = T(ATTN_F32, 3, 2, 5, 6, 30, 6, 1);
    v = view_of(&p, ATTN_ROLE_LSE, &lse);
    assert_row(&v, &lse, 1, 2, 3, 30 + 2 + 18);
    attn_tensor indices = T(ATTN_I32, 4, 2, 5, 1, 3, 15, 3, 999, 1);
    v = view_of(&p, ATTN_ROLE_INDICES, &indices);
    assert_row(&v, &indices, 1, 0, 4, 27);
    attn_tensor length = T(ATTN_I32, 2, 2, 5, 5, 1);
    v = view_of(&p, ATTN_ROLE_TOPK_LENGTH, &length);
    assert_row(&v, &length, 1, 0, 4, 9);
    attn_tensor dist = T(ATTN_F32, 3, 2, 5, 3, 15, 3, 1);
    v = view_of(&p, ATTN_ROLE_DIST, &dist);
    assert_row(&v, &dist, 1, 0, 4, 27);

    p = parse("mla_fwd hq=6 sq=5 sk=7 topk=3 bf16 topk_length"); /* batch axis left out */
    q = T(ATTN_BF16, 3, 5, 6, 576, 3600, 576, 1);
    v = view_of(&p, ATTN_ROLE_Q, &q);
    assert_int_equal(v.batch, 0);
    assert_row(&v, &q, 0, 5, 4, 5 * 576 + 4 * 3600);
    kv = T(ATTN_BF16, 3, 7, 1, 576, 600, 5, 1);
    v = view_of(&p, ATTN_ROLE_KV, &kv);
    assert_row(&v, &kv, 0, 0, 6, 3600);
    length = T(ATTN_I32, 1, 5, 1);
    v = view_of(&p, ATTN_ROLE_TOPK_LENGTH, &length);
    assert_row(&v, &length, 0, 0, 4, 4);
    lse = T(ATTN_F32, 2, 5, 6, 6, 1);
    v = view_of(&p, ATTN_ROLE_MAX_LOGITS, &lse);
    assert_row(&v, &lse, 0, 5, 4, 29);
}

static attn_tensor ints(int32_t *data, int64_t n) {
    attn_tensor t = {.data = data, .dtype = ATTN_I32, .rank = 1, .shape = {n}, .strides = {1}};
    return t;
}

static void sequences(void **state) {
    (void)state;
    struct attn_core_seq s;
    attn_args a = ATTN_ARGS_INIT;
    attn_problem p = parse("sdpa_fwd b=4 hq=1 sq=5 sk=7 d=8 f32");
    attn_core_seq_get(&p, &a, 0, 3, &s);
    assert_true(s.sq == 5 && s.sk == 7 && s.sq_rows == 5 && s.sk_rows == 7 && s.q0 == 0 && s.k0 == 0 && !s.pages);

    p = parse("sdpa_fwd b=4 hq=1 sq=5 sk=7 d=8 f32 seqlens_q seqlens_k");
    int32_t lq[] = {-3, 0, 4, INT32_MAX}, lk[] = {7, 8, INT32_MIN, 3};
    static const int64_t want_q[] = {0, 0, 4, 5}, want_k[] = {7, 7, 0, 3};
    attn_tensor tq = ints(lq, 4), tk = ints(lk, 4);
    a.seqlens_q = &tq, a.seqlens_k = &tk;
    for (int b = 0; b < 4; b++) {
        attn_core_seq_get(&p, &a, 0, b, &s);
        assert_true(s.sq == want_q[b] && s.sk == want_k[b] && s.sq_rows == 5 && s.sk_rows == 7);
    }

    p = parse("sdpa_fwd b=5 hq=1 sq=5 sk=7 d=8 f32 packed total_q=12 total_k=20");
    int32_t cq[] = {-2, 3, 3, 10, 9, 99}, ck[] = {0, 20, 25, 25, 4, 6};
    static const int64_t q0[] = {0, 3, 3, 10, 10}, nq[] = {3, 0, 5, 0, 2}, k0[] = {0, 20, 20, 20, 20},
                         nk[] = {7, 0, 0, 0, 0};
    tq = ints(cq, 6), tk = ints(ck, 6);
    a = (attn_args)ATTN_ARGS_INIT;
    a.cu_seqlens_q = &tq, a.cu_seqlens_k = &tk;
    assert_true(attn_core_offsets_fall(&p, &a));
    for (int b = 0; b < 5; b++) {
        attn_core_seq_get(&p, &a, 1, b, &s);
        assert_int_equal(s.q0, q0[b]);
        assert_int_equal(s.sq, nq[b]);
        assert_int_equal(s.k0, k0[b]);
        assert_int_equal(s.sk, nk[b]);
        assert_true(s.sq_rows == s.sq && s.sk_rows == s.sk);
        assert_true(s.q0 + s.sq <= 12 && s.k0 + s.sk <= 20);
    }
    attn_tensor q = T(ATTN_F32, 3, 1, 12, 8, 5, 8, 1);
    struct attn_view v = view_of(&p, ATTN_ROLE_Q, &q);
    assert_int_equal(v.batch, 0);
    assert_row(&v, &q, 4, 0, 9 + 2, 88);
}

/* The smaller of a length and the offsets' difference; all rows between the offsets belong to the sequence. */
static void packed_lengths(void **state) {
    (void)state;
    const attn_problem p =
        parse("sdpa_bwd b=3 hq=1 sq=5 sk=7 d=8 f32 packed total_q=12 total_k=20 seqlens_q seqlens_k");
    int32_t cq[] = {1, 4, 11, 12}, ck[] = {0, 6, 6, 20}, nq[] = {2, 9, -3}, nk[] = {9, 4, 3};
    static const int64_t sq[] = {2, 5, 0}, sq_rows[] = {3, 5, 1}, sk[] = {6, 0, 3}, sk_rows[] = {6, 0, 7};
    attn_tensor tq = ints(cq, 4), tk = ints(ck, 4), lq = ints(nq, 3), lk = ints(nk, 3);
    attn_args a = ATTN_ARGS_INIT;
    a.cu_seqlens_q = &tq, a.cu_seqlens_k = &tk, a.seqlens_q = &lq, a.seqlens_k = &lk;
    for (int b = 0; b < 3; b++) {
        struct attn_core_seq s;
        attn_core_seq_get(&p, &a, 0, b, &s);
        assert_int_equal(s.q0, cq[b]);
        assert_int_equal(s.sq, sq[b]);
        assert_int_equal(s.sq_rows, sq_rows[b]);
        assert_int_equal(s.k0, ck[b]);
        assert_int_equal(s.sk, sk[b]);
        assert_int_equal(s.sk_rows, sk_rows[b]);
    }
}

/* An offset counts as at least the largest one before it, whichever axis has it and how far back that stands. */
static void falling_offsets(void **state) {
    (void)state;
    static const struct {
        int32_t given[6], counts[6];
        int falls;
    } lists[] = {
        {{0, 5, 3, 9, 9, 9}, {0, 5, 5, 9, 9, 9}, 1},
        {{0, 5, -1, -1, 9, 9}, {0, 5, 5, 5, 9, 9}, 1},
        {{0, 12, 0, 12, 0, 12}, {0, 12, 12, 12, 12, 12}, 1},
        {{0, 9, 2, 5, 7, 12}, {0, 9, 9, 9, 9, 12}, 1},
        {{3, 3, 4, 8, 8, 99}, {3, 3, 4, 8, 8, 12}, 0},
        {{-4, -9, -2, INT32_MIN, 1, INT32_MAX}, {0, 0, 0, 0, 1, 12}, 1},
    };
    int32_t sound[] = {0, 2, 4, 6, 8, 10};
    const attn_problem p = parse("sdpa_fwd b=5 hq=1 sq=12 sk=12 d=8 f32 packed total_q=12 total_k=12");
    attn_tensor even = ints(sound, 6);
    attn_args a = ATTN_ARGS_INIT;
    for (size_t l = 0; l < sizeof lists / sizeof *lists; l++)
        for (int keys = 0; keys < 2; keys++) {
            int32_t given[6];
            struct attn_core_seq s;
            memcpy(given, lists[l].given, sizeof given);
            attn_tensor cu = ints(given, 6);
            a.cu_seqlens_q = keys ? &even : &cu, a.cu_seqlens_k = keys ? &cu : &even;
            assert_int_equal(attn_core_offsets_fall(&p, &a), lists[l].falls);
            for (int look = lists[l].falls; look < 2; look++)
                for (int b = 0; b < 5; b++) {
                    const int32_t *count = lists[l].counts + b;
                    attn_core_seq_get(&p, &a, look, b, &s);
                    assert_int_equal(keys ? s.k0 : s.q0, count[0]);
                    assert_int_equal(keys ? s.sk : s.sq, count[1] - count[0]);
                    assert_int_equal(keys ? s.q0 : s.k0, sound[b]);
                    assert_int_equal(keys ? s.sq : s.sk, 2);
                }
        }
}

static void pages(void **state) {
    (void)state;
    attn_problem p =
        parse("sdpa_fwd b=2 hq=4 hk=2 sq=1 sk=10 d=8 f32 paged seqlens_k page_size=4 n_pages=6 max_pages=3");
    int32_t table[2][5] = {{5, 0, -1, 77, 77}, {2, 6, 1, 77, 77}}, lengths[] = {10, 9};
    attn_tensor t = {.data = table, .dtype = ATTN_I32, .rank = 2, .shape = {2, 3}, .strides = {5, 1}},
                l = ints(lengths, 2);
    attn_tensor k = T(ATTN_F32, 4, 6, 2, 4, 8, 64, 8, 16, 1);
    attn_args a = ATTN_ARGS_INIT;
    a.block_table = &t, a.seqlens_k = &l, a.k = &k;
    struct attn_view v = attn_core_view(&p, &a, ATTN_ROLE_K);
    struct attn_core_seq s;
    attn_core_seq_get(&p, &a, 0, 0, &s);
    assert_int_equal(s.sk, 10);
    assert_ptr_equal(s.pages, table[0]);
    assert_ptr_equal(attn_core_kv_row(&p, &v, &s, 0, 1, 2), (char *)k.data + 4 * (5 * 64 + 8 + 2 * 16));
    assert_ptr_equal(attn_core_kv_row(&p, &v, &s, 0, 0, 7), (char *)k.data + 4 * (3 * 16));
    assert_null(attn_core_kv_row(&p, &v, &s, 0, 0, 8)); /* page -1 */
    attn_core_seq_get(&p, &a, 0, 1, &s);
    assert_int_equal(s.sk, 9);
    assert_ptr_equal(s.pages, table[1]);
    assert_null(attn_core_kv_row(&p, &v, &s, 1, 0, 4)); /* page 6 of 6 */
    assert_ptr_equal(attn_core_kv_row(&p, &v, &s, 1, 1, 8), (char *)k.data + 4 * (64 + 8));
}

/* Queries by offsets, keys by lengths and pages. */
static void packed_queries_on_pages(void **state) {
    (void)state;
    const attn_problem p = parse("sdpa_fwd b=3 hq=1 sq=5 sk=10 d=8 f32 packed total_q=12 paged seqlens_k page_size=4 "
                                 "n_pages=6 max_pages=3");
    int32_t table[3][3] = {{5, 0, 1}, {2, 3, 1}, {4, 4, 4}}, lengths[] = {10, 99, -1}, cu[] = {1, 5, 3, 12};
    static const int64_t q0[] = {1, 5, 5}, nq[] = {4, 0, 5}, nk[] = {10, 10, 0};
    attn_tensor t = {.data = table, .dtype = ATTN_I32, .rank = 2, .shape = {3, 3}, .strides = {3, 1}},
                l = ints(lengths, 3), q = ints(cu, 4);
    attn_args a = ATTN_ARGS_INIT;
    a.block_table = &t, a.seqlens_k = &l, a.cu_seqlens_q = &q;
    assert_true(attn_core_offsets_fall(&p, &a));
    for (int b = 0; b < 3; b++) {
        struct attn_core_seq s;
        attn_core_seq_get(&p, &a, 1, b, &s);
        assert_int_equal(s.q0, q0[b]);
        assert_int_equal(s.sq, nq[b]);
        assert_int_equal(s.sq_rows, nq[b]);
        assert_int_equal(s.k0, 0);
        assert_int_equal(s.sk, nk[b]);
        assert_ptr_equal(s.pages, table[b]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dense),
        cmocka_unit_test(single_extents_ignore_strides),
        cmocka_unit_test(sparse),
        cmocka_unit_test(sequences),
        cmocka_unit_test(falling_offsets),
        cmocka_unit_test(pages),
        cmocka_unit_test(packed_queries_on_pages),
        cmocka_unit_test(packed_lengths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
