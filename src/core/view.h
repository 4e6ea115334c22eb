/* SPDX-License-Identifier: MIT
 * Tensors of an execution as kernels address them: dense, packed and paged forms made uniform. */
#ifndef ATTN_CORE_VIEW_H
#define ATTN_CORE_VIEW_H
#include "attn.h"

/* Address of element (a, b, c, 0) of a tensor of rank >= number of indices used; strides of extent-1 axes do not matter
 * because their index is 0. All 64-bit. */
static inline char *attn_view_at(const attn_tensor *t, size_t element_bytes, int64_t a, int64_t b, int64_t c) {
    int64_t offset = a * t->strides[0];
    if (t->rank > 1) offset += b * t->strides[1];
    if (t->rank > 2) offset += c * t->strides[2];
    return (char *)t->data + offset * (int64_t)element_bytes;
}

/* Three outer axes (batch, head, row) over a unit-stride row, whatever the tensor's rank and axis order.
 * Packed tensors have batch stride 0; MLA tensors without a batch axis likewise. Strides in elements. */
struct attn_view {
    char *data;
    int64_t batch, head, row; /* strides */
    int64_t column;           /* innermost stride: 1, or 0 for a broadcast mask */
    int32_t dtype;
    int32_t element_bytes;
};
/* sdpa: [B,H,S,X], [B,H,S], packed [H,T,X], [H,T]; mla: [B,S,H,X], [S,H,X], [B,S,H], [S,H], [B,S,X] (head stride 0).
 * `t` may be NULL: data = NULL. See the table at ATTN_ROLE_Q in attn.h for what each role looks like. */
struct attn_view attn_core_view(const attn_problem *problem, const attn_args *args, int32_t role);
static inline char *attn_view_row(const struct attn_view *v, int64_t b, int64_t h, int64_t i) {
    return v->data + (b * v->batch + h * v->head + i * v->row) * v->element_bytes;
}

/* The scale of an e4m3 tensor of `sequence` and its `head` (q: query head): 1 where the problem has none. */
static inline float attn_core_scale(const attn_problem *p, const attn_args *args, int32_t role, int64_t sequence,
                                    int64_t head) {
    if (p->dtype != ATTN_E4M3) return 1;
    const attn_tensor *t = role == ATTN_ROLE_Q ? args->q_scale : role == ATTN_ROLE_K ? args->k_scale : args->v_scale;
    const int64_t outer = t->shape[0] > 1 ? t->strides[0] : 0, inner = t->shape[1] > 1 ? t->strides[1] : 0;
    return ((const float *)t->data)[sequence * outer + head * inner];
}

/* One sequence of a dense problem: lengths after seqlens / cu_seqlens, and where its rows start.
 * q rows of sequence b are view rows q0 .. q0 + sq; rows sq .. sq_rows (seqlens only) are empty rows to be zeroed. */
struct attn_core_seq {
    int64_t q0, k0;           /* first row; packed only, else 0; of paged keys 0 */
    int64_t sq, sk;           /* lengths */
    int64_t sq_rows, sk_rows; /* rows that belong to this batch entry: SQ and SK, or sq and sk when packed */
    const int32_t *pages;     /* paged: this sequence's row of block_table (unit stride), else NULL */
};
/* Do packed offsets fall anywhere? Where they do not, a sequence is its two neighbouring offsets; else those before
 * them are looked through as well, as an offset counts as at least the largest one before it. */
int attn_core_offsets_fall(const attn_problem *problem, const attn_args *args);
/* falls: what attn_core_offsets_fall said, or 1 where nobody has asked. */
void attn_core_seq_get(const attn_problem *problem, const attn_args *args, int falls, int64_t b,
                       struct attn_core_seq *out);

/* Address of key (or value) row j of a sequence: dense, packed or paged. NULL if its page is outside the pool. */
static inline char *attn_core_kv_row(const attn_problem *p, const struct attn_view *v, const struct attn_core_seq *s,
                                     int64_t b, int64_t head, int64_t j) {
    if (!s->pages) return attn_view_row(v, b, head, s->k0 + j);
    int64_t page = s->pages[j / p->page_size];
    if (page < 0 || page >= p->n_pages) return NULL;
    return attn_view_row(v, page, head, j % p->page_size);
}
#endif
