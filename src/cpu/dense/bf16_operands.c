/* SPDX-License-Identifier: MIT
 * Operands of pairs for dense attention: see bf16_operands.h. */
#include "cpu/dense/bf16_operands.h"

#include <float.h>
#include <math.h>
#include <string.h>

void attn_cpu_bf16_row(float *dst, const void *src, int64_t n) {
    if (n % 2) memset(dst + n / 2, 0, sizeof *dst);
    memcpy(dst, src, (size_t)n * sizeof(uint16_t));
}

void attn_cpu_bf16_panels(const struct attn_cpu_sdpa *s, const struct attn_view *view, const struct attn_core_seq *seq,
                          int64_t b, int64_t hk, int64_t j0, int64_t n, int64_t width, int64_t panel, float *dst,
                          float *tmp) {
    const int64_t depth = (width + 1) / 2;
    const int direct = !seq->pages && width % 2 == 0 && view->row % 2 == 0; /* rows are whole pairs already */
    if (width == 0) return;
    for (int64_t j = 0; j < n; j += panel, dst += depth * panel) {
        const int64_t cols = n - j < panel ? n - j : panel;
        const void *rows = direct ? attn_view_row(view, b, hk, seq->k0 + j0 + j) : (const void *)tmp;
        for (int64_t c = 0; c < cols && !direct; c++) {
            const char *row = attn_core_kv_row(s->p, view, seq, b, hk, j0 + j + c);
            if (row) {
                attn_cpu_bf16_row(tmp + c * depth, row, width);
            } else {
                memset(tmp + c * depth, 0, (size_t)depth * sizeof *tmp);
            }
        }
        s->u->transpose_f32(dst, panel, rows, direct ? view->row / 2 : depth, cols, depth);
        for (int64_t c = 0; c < depth && cols < panel; c++)
            memset(dst + c * panel + cols, 0, (size_t)(panel - cols) * sizeof *dst);
    }
}

/* Moves what is not finite in row r out of the operand, whose elements are `step` apart. */
static void move_out(const struct attn_cpu_sdpa *s, struct attn_cpu_sdpa_nonfinite *nonfinite, uint16_t *dst,
                     int64_t step, const void *row, int64_t r, int64_t width, int64_t ld) {
    const uint16_t exponent = s->p->dtype == ATTN_F16 ? 0x7c00 : 0x7f80;
    float *raw = (float *)nonfinite->raw + r * ld;
    s->u->widen(raw, row, s->p->dtype, width, 1);
    for (int64_t c = 0; c < width; c++) {
        if ((dst[c * step] & exponent) != exponent) continue;
        dst[c * step] = 0;
        nonfinite->row[r] = 1;
        nonfinite->any = 1;
    }
}

float attn_cpu_bf16_exp_lifted(const struct attn_cpu_sdpa *s, float *x, int64_t n, float factor, float max,
                               const uint8_t *has_nonfinite, uint8_t *hidden) {
    for (int64_t j = 0; j < n; j++) hidden[j] = x[j] == -INFINITY;
    const float sum = s->bf16->exp2_f32(x, n, factor, max);
    for (int64_t j = 0; j < n; j++)
        if (x[j] == 0 && !hidden[j] && (!has_nonfinite || has_nonfinite[j])) x[j] = FLT_MIN;
    return sum;
}

int attn_cpu_bf16_zip(const struct attn_cpu_sdpa *s, const void *even, const void *odd, int64_t r, int64_t width,
                      float *dst, struct attn_cpu_sdpa_nonfinite *nonfinite, int64_t ld_raw) {
    if (s->bf16->zip(dst, even, odd, width)) return 1;
    if (nonfinite && even) move_out(s, nonfinite, (uint16_t *)(void *)dst, 2, even, r, width, ld_raw);
    if (nonfinite && odd) move_out(s, nonfinite, (uint16_t *)(void *)dst + 1, 2, odd, r + 1, width, ld_raw);
    return 0;
}

void attn_cpu_bf16_rows(const struct attn_cpu_sdpa *s, const struct attn_view *view, const struct attn_core_seq *seq,
                        int64_t b, int64_t hk, int64_t j0, int64_t n, int64_t width, float *dst, int64_t ld,
                        struct attn_cpu_sdpa_nonfinite *nonfinite) {
    nonfinite->any = 0;
    memset(nonfinite->row, 0, (size_t)n);
    for (int64_t j = 0; j < n && width > 0; j += 2) {
        const void *even = attn_core_kv_row(s->p, view, seq, b, hk, j0 + j), *odd = NULL;
        if (j + 1 < n) odd = attn_core_kv_row(s->p, view, seq, b, hk, j0 + j + 1);
        attn_cpu_bf16_zip(s, even, odd, j, width, dst + j / 2 * ld, nonfinite, ld);
    }
}

void attn_cpu_bf16_split_rows(const struct attn_cpu_sdpa *s, const struct attn_view *view,
                              const struct attn_core_seq *seq, int64_t b, int64_t hk, int64_t j0, int64_t n,
                              int64_t width, float *dst, int64_t ld, struct attn_cpu_sdpa_nonfinite *nonfinite) {
    const int64_t apart = 16 * ld;
    nonfinite->any = 0;
    memset(nonfinite->row, 0, (size_t)n);
    for (int64_t j = 0; j < n && width > 0; j += 2) {
        const void *row[2] = {attn_core_kv_row(s->p, view, seq, b, hk, j0 + j), NULL};
        if (j + 1 < n) row[1] = attn_core_kv_row(s->p, view, seq, b, hk, j0 + j + 1);
        float *to = dst + j / 2 * ld;
        if (s->p->dtype == ATTN_F32 ? s->bf16->zip_split_f32(to, apart, row[0], row[1], width)
                                    : s->bf16->zip_split_f16(to, to + apart, row[0], row[1], width))
            continue;
        nonfinite->any = 1;
        for (int64_t i = 0; i < 2; i++) {
            float *raw = (float *)nonfinite->raw + (j + i) * ld;
            if (!row[i]) continue;
            s->u->widen(raw, row[i], s->p->dtype, width, 1);
            if (!s->u->finite_f32(raw, width)) nonfinite->row[j + i] = 1;
        }
    }
}

const uint16_t *attn_cpu_half_rows(const struct attn_cpu_sdpa *s, const struct attn_view *view,
                                   const struct attn_core_seq *seq, int64_t b, int64_t hk, int64_t j0, int64_t n,
                                   int64_t width, int even, uint16_t *dst, int64_t ld,
                                   struct attn_cpu_sdpa_nonfinite *nonfinite, int64_t ld_raw, int64_t *ld_out) {
    const int64_t end = even ? width + width % 2 : width;
    *ld_out = ld;
    if (width == 0 || n == 0) return dst;
    if (!nonfinite && !seq->pages && end == width) {
        *ld_out = view->row;
        return (const uint16_t *)(const void *)attn_view_row(view, b, hk, seq->k0 + j0);
    }
    if (nonfinite) {
        nonfinite->any = 0;
        memset(nonfinite->row, 0, (size_t)n);
    }
    for (int64_t j = 0; j < n; j++) {
        const char *row = attn_core_kv_row(s->p, view, seq, b, hk, j0 + j);
        uint16_t *to = dst + j * ld;
        if (!row) {
            memset(to, 0, (size_t)end * sizeof *to);
            continue;
        }
        memcpy(to, row, (size_t)width * sizeof *to);
        if (end > width) to[width] = 0;
        const int finite = s->bf16 && s->p->dtype == ATTN_BF16 && s->bf16->finite(to, width);
        if (nonfinite && !finite) move_out(s, nonfinite, to, 1, row, j, width, ld_raw);
    }
    return dst;
}
