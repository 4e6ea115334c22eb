/* SPDX-License-Identifier: MIT
 * Views and sequences: turn validated tensors of any layout into strides by batch, head and row. Checks nothing;
 * lengths that live in memory are clamped here, so that no value of theirs leads outside the tensors. */
#include "core/view.h"

#include "attn.h"
#include "core/plan.h"
#include "core/problem.h"

#include <string.h>

struct attn_view attn_core_view(const attn_problem *problem, const attn_args *args, int32_t role) {
    const attn_tensor *t = attn_args_at(args, role);
    struct attn_view v = {.column = 1};
    if (!t) return v;
    v.data = t->data;
    v.dtype = t->dtype;
    v.element_bytes = (int32_t)attn_dtype_bytes(t->dtype);
    /* Which stride an axis is, by its letter. */
    static const uint8_t is[128] = {['b'] = 1, ['B'] = 1, ['p'] = 1, ['h'] = 2, ['g'] = 2, ['1'] = 2,
                                    ['q'] = 3, ['k'] = 3, ['Q'] = 3, ['K'] = 3, ['s'] = 3, ['n'] = 3};
    int64_t stride[4] = {1}; /* of a row, batch, head, row */
    const char *axes = attn_core_role_axes(problem, role);
    int32_t missing = -t->rank; /* 1: no batch axis; -1: slopes with one */
    for (const char *axis = axes; *axis; axis++) missing++;
    for (int32_t a = 0; a < t->rank; a++) {
        const int to = is[a + missing < 0 ? 'b' : (unsigned char)axes[a + missing] & 127];
        stride[to] = t->shape[a] > 1 ? t->strides[a] : to == 0; /* free otherwise, and only index 0 exists */
    }
    v.column = stride[0];
    v.batch = stride[1];
    v.head = stride[2];
    v.row = stride[3];
    return v;
}

static int64_t clamp(int64_t value, int64_t high) { return value < 0 ? 0 : value > high ? high : value; }

static int32_t length_at(const attn_tensor *t, int64_t i) { return ((const int32_t *)t->data)[i]; }

static int falls_within(const attn_tensor *cu, int64_t batch) {
    int falls = 0;
    for (int64_t b = 0; b < batch; b++) falls |= length_at(cu, b + 1) < length_at(cu, b);
    return falls;
}

int attn_core_offsets_fall(const attn_problem *p, const attn_args *args) {
    return attn_core_has(p, ATTN_PACKED) &&
           (falls_within(args->cu_seqlens_q, p->batch) ||
            (!attn_core_has(p, ATTN_PAGED) && falls_within(args->cu_seqlens_k, p->batch)));
}

/* First row and length of sequence b of a packed axis. No offset counts as less than one before it, or sequences would
 * share rows. A length past the problem's bound is cut to it: workspaces are sized by the bound. */
static void packed_at(const attn_tensor *cu, int falls, int64_t b, int64_t total, int64_t bound, int64_t *first,
                      int64_t *n) {
    int32_t most = length_at(cu, b);
    for (int64_t x = 0; x < b && falls; x++)
        if (most < length_at(cu, x)) most = length_at(cu, x);
    *first = clamp(most, total);
    *n = clamp(clamp(length_at(cu, b + 1), total) - *first, bound);
}

void attn_core_seq_get(const attn_problem *p, const attn_args *args, int falls, int64_t b, struct attn_core_seq *out) {
    const int packed = attn_core_has(p, ATTN_PACKED), paged = attn_core_has(p, ATTN_PAGED);
    *out = (struct attn_core_seq){.sq_rows = p->seq_q, .sk_rows = p->seq_k};
    if (packed) packed_at(args->cu_seqlens_q, falls, b, p->total_q, p->seq_q, &out->q0, &out->sq_rows);
    if (packed && !paged) packed_at(args->cu_seqlens_k, falls, b, p->total_k, p->seq_k, &out->k0, &out->sk_rows);
    out->sq = out->sq_rows, out->sk = out->sk_rows;
    if (attn_core_has(p, ATTN_SEQLENS_Q)) out->sq = clamp(length_at(args->seqlens_q, b), out->sq_rows);
    if (attn_core_has(p, ATTN_SEQLENS_K)) out->sk = clamp(length_at(args->seqlens_k, b), out->sk_rows);
    if (paged) {
        const attn_tensor *t = args->block_table;
        const int32_t *pages = t->data;
        if (pages && t->shape[0] > 1) pages += b * t->strides[0];
        out->pages = pages;
        if (!pages) out->sk = 0; /* an empty table names no key */
    }
}
