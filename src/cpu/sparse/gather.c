/* SPDX-License-Identifier: MIT
 * Validity of slots, gather of rows, head chunks: see gather.h. No products and no softmax here. */
#include "cpu/sparse/gather.h"

#include "attn.h"
#include "core/problem.h"

#include <math.h>
#include <string.h>

struct mla_query attn_cpu_mla_query(const attn_problem *p, const attn_args *args, int64_t b, int64_t i) {
    const attn_tensor *t = args->indices, *len = args->topk_length;
    struct mla_query query = {NULL, p->topk, p->seq_k};
    int64_t element = i * t->strides[t->rank - 3];
    if (t->rank == 4) element += b * t->strides[0];
    query.idx = (const int32_t *)t->data + element;
    if (attn_core_has(p, ATTN_TOPK_LENGTH)) {
        int64_t at_len = i * len->strides[len->rank - 1];
        if (len->rank == 2) at_len += b * len->strides[0];
        int64_t n = ((const int32_t *)len->data)[at_len];
        query.n_slots = n < 0 ? 0 : mla_min(n, p->topk);
    }
    if (attn_core_has(p, ATTN_CAUSAL)) {
        /* q_start + i + 1 >= k_stride * (key + 1)  <=>  key < floor((q_start + i + 1) / k_stride). Unsigned, so that
         * the sum cannot overflow; nothing is negative, so that the division is a floor. */
        uint64_t bound = ((uint64_t)p->q_start + (uint64_t)i + 1) / (uint64_t)p->k_stride;
        if (bound < (uint64_t)query.n_keys) query.n_keys = (int64_t)bound;
    }
    return query;
}

int64_t attn_cpu_mla_next(const struct mla_query *query, int64_t *cursor, int64_t end, int64_t most, int32_t *key,
                          int64_t *slot) {
    int64_t n = 0, t = *cursor;
    if (end > query->n_slots) end = query->n_slots;
    for (; t < end && n < most; ++t) {
        int64_t k = query->idx[t];
        key[n] = (int32_t)k; /* overwritten unless valid: keeps the loop free of branches */
        if (slot) slot[n] = t;
        n += (k >= 0) & (k < query->n_keys);
    }
    *cursor = t;
    return n;
}

void attn_cpu_mla_gather(const struct mla_isa *isa, const struct attn_view *kv, int64_t b, const int32_t *key,
                         int64_t n, int64_t d, const struct mla_rows *to) {
    /* rows, into the second-level cache: the first one waits for few lines at a time. The hardware does not foresee the
     * jumps between rows. */
    enum { AHEAD = 8 };
    int64_t bytes = d * kv->element_bytes;
    for (int64_t r = 0; r < n; ++r) {
        if (r + AHEAD < n) {
            const char *next = attn_view_row(kv, b, 0, key[r + AHEAD]);
            for (int64_t x = 0; x < bytes; x += 64) __builtin_prefetch(next + x, 0, 2);
        }
        const void *row = attn_view_row(kv, b, 0, key[r]);
        if (!isa->bf16) {
            isa->ukr->widen(to->rows + r * to->ld, row, kv->dtype, d, 1.0f);
            continue;
        }
        memcpy(to->rows + r * to->ld, row, (size_t)bytes);
        if (!to->zip || (r % 2 == 0 && r + 1 < n)) continue;
        const void *first = r % 2 ? attn_view_row(kv, b, 0, key[r - 1]) : row;
        isa->bf16->zip(to->zip + r / 2 * to->ld_zip, first, r % 2 ? row : NULL, to->width);
    }
}

void attn_cpu_mla_point(const struct attn_view *kv, int64_t b, const int32_t *key, int64_t n, const uint16_t **row) {
    static const uint16_t zeros[MLA_PLACE_DEPTH];
    for (int64_t r = 0; r < n; ++r) row[r] = (const uint16_t *)(const void *)attn_view_row(kv, b, 0, key[r]);
    for (int64_t r = n; r < mla_round(n, ATTN_SPARSE_ROWS); ++r) row[r] = zeros;
}

struct attn_sparse_ahead attn_cpu_mla_ahead(const uint16_t *const *row, int64_t n, int64_t d) {
    return (struct attn_sparse_ahead){.row = row, .n = n, .lines = (2 * d + 63) / 64};
}
void attn_cpu_mla_prefetch(struct attn_sparse_ahead *ahead) {
    for (int64_t r = 0; r < ahead->n; ++r)
        for (int64_t x = 0; x < ahead->lines; ++x) __builtin_prefetch((const char *)ahead->row[r] + x * 64);
    ahead->n = 0;
}

void attn_cpu_mla_sum(const struct mla_isa *isa, int64_t m, int64_t n, int64_t rows, const float *a, int64_t lda,
                      const struct mla_rows *from, float *c, int64_t ldc, int accumulate) {
    if (isa->bf16) {
        isa->bf16->gemm(m, n, (rows + 1) / 2, a, 1, lda, from->zip, from->ld_zip, c, ldc, accumulate);
    } else {
        isa->ukr->gemm_f32(m, n, rows, a, 1, lda, from->rows, from->ld, c, ldc, accumulate);
    }
}

void attn_cpu_mla_heads(const struct mla_isa *isa, const struct attn_view *v, int64_t b, int64_t i, int64_t h0,
                        int64_t heads, int64_t x, const uint8_t *skip, float *dst, int64_t ld) {
    for (int64_t h = 0; h < heads; ++h) {
        const void *row = attn_view_row(v, b, h0 + h, i);
        if (skip && skip[h])
            memset(dst + h * ld, 0, (size_t)mla_depth(isa, x) * sizeof *dst);
        else if (isa->bf16)
            memcpy(dst + h * ld, row, (size_t)(x * v->element_bytes));
        else
            isa->ukr->widen(dst + h * ld, row, v->dtype, x, 1.0f);
    }
}

/* Into tiles of 16 x 16, two side by side for each 16 of x. */
static void turn_strips(const struct mla_isa *isa, const float *src, int64_t ld_src, int64_t heads, int64_t x,
                        float *dst) {
    enum { SIDE = 16, TILE = SIDE * SIDE };
    const int64_t padded = mla_round(heads, ATTN_MLA_HEADS);
    for (int64_t h = 0; h < padded; h += SIDE) {
        float *to = dst + h / ATTN_MLA_HEADS * ATTN_MLA_HEADS * x + h % ATTN_MLA_HEADS * SIDE;
        const int64_t n = mla_max(0, mla_min(SIDE, heads - h));
        for (int64_t c = 0; c < x; c += SIDE, to += 2 * TILE) {
            if (n < SIDE) memset(to, 0, TILE * sizeof *to);
            if (n) isa->ukr->transpose_f32(to, SIDE, src + h * ld_src + c, ld_src, n, SIDE);
        }
    }
}

void attn_cpu_mla_turn(const struct mla_isa *isa, const float *src, int64_t ld_src, int64_t heads, int64_t x,
                       float *dst, int64_t ld_dst) {
    if (mla_strips(isa)) {
        turn_strips(isa, src, ld_src, heads, x, dst);
        return;
    }
    if (mla_in_place(isa)) {
        for (int64_t h = 0; h < heads; h += ATTN_SPARSE_PANEL) {
            const int64_t n = mla_min(ATTN_SPARSE_PANEL, heads - h), side = n > 16 ? ATTN_SPARSE_PANEL : 16;
            float *to = dst + h * x;
            isa->ukr->transpose_f32(to, side, src + h * ld_src, ld_src, n, x);
            for (int64_t c = 0; c < x && n < side; ++c) memset(to + c * side + n, 0, (size_t)(side - n) * sizeof *to);
        }
        return;
    }
    isa->ukr->transpose_f32(dst, ld_dst, src, ld_src, heads, x);
    if (heads == ld_dst) return;
    for (int64_t c = 0; c < x; ++c) memset(dst + c * ld_dst + heads, 0, (size_t)(ld_dst - heads) * sizeof *dst);
}

void attn_cpu_mla_score(const struct mla_isa *isa, int32_t dtype, int64_t n, int64_t ldh, int64_t d, const float *rows,
                        int64_t ld_rows, const float *transposed, float *s, int64_t ld_s) {
    /* Columns added up at once: a chain of 576 additions of f16 products came to 1.3 of the bound of lse. */
    const int64_t part = dtype == ATTN_F32 ? 64 : 192, ld = mla_transposed(ldh);
    if (isa->bf16) {
        isa->bf16->gemm(n, ldh, d / 2, rows, ld_rows, 1, transposed, ld, s, ld_s, 0);
        return;
    }
    for (int64_t c = 0; c < d; c += part)
        isa->ukr->gemm_f32(n, ldh, mla_min(part, d - c), rows + c, ld_rows, 1, transposed + c * ld, ld, s, ld_s, c > 0);
}

void attn_cpu_mla_valid(const uint8_t *dead, int64_t heads, uint32_t valid[MLA_HEADS / ATTN_MLA_HEADS]) {
    memset(valid, 0, MLA_HEADS / ATTN_MLA_HEADS * sizeof *valid);
    for (int64_t h = 0; h < heads; ++h) valid[h / ATTN_MLA_HEADS] |= (uint32_t)!dead[h] << h % ATTN_MLA_HEADS;
}

int64_t attn_cpu_mla_lse(const attn_problem *p, const struct attn_view *v, int64_t b, int64_t i, int64_t h0,
                         int64_t heads, int64_t padded, float *lse, uint8_t *dead) {
    const double unit = attn_core_has(p, ATTN_LSE_BASE_2) ? 0.69314718055994530942 : 1.0; /* ln 2 */
    int64_t n_dead = 0;
    for (int64_t h = 0; h < heads; ++h) {
        float x;
        memcpy(&x, attn_view_row(v, b, h0 + h, i), sizeof x);
        dead[h] = (uint8_t)(isinf(x) != 0);
        n_dead += dead[h];
        lse[h] = dead[h] ? INFINITY : (float)(x * unit);
    }
    for (int64_t h = heads; h < padded; ++h) lse[h] = 0;
    return n_dead;
}
