/* SPDX-License-Identifier: MIT
 * Operands of pairs for dense attention: see sdpa_pair.h. */
#include "cpu/sdpa_pair.h"

#include <string.h>

void attn_cpu_pair_row(float *dst, const void *src, int64_t n) {
    if (n % 2) memset(dst + n / 2, 0, sizeof *dst);
    memcpy(dst, src, (size_t)n * sizeof(uint16_t));
}

void attn_cpu_pair_panels(const struct attn_cpu_sdpa *s, const struct attn_view *view, const struct attn_core_seq *seq,
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
                attn_cpu_pair_row(tmp + c * depth, row, width);
            } else {
                memset(tmp + c * depth, 0, (size_t)depth * sizeof *tmp);
            }
        }
        s->u->transpose_f32(dst, panel, rows, direct ? view->row / 2 : depth, cols, depth);
        for (int64_t c = 0; c < depth && cols < panel; c++)
            memset(dst + c * panel + cols, 0, (size_t)(panel - cols) * sizeof *dst);
    }
}

/* Moves what is not finite in row r of a pair of rows (the pair's half `odd`) out of the operand. */
static void move_out(const struct attn_cpu_sdpa *s, struct attn_cpu_sdpa_poison *poison, float *pairs, int odd,
                     const void *row, int64_t r, int64_t width, int64_t ld) {
    enum { EXPONENT = 0x7f80 };
    uint16_t half[2];
    float *raw = (float *)poison->raw + r * ld;
    s->u->widen(raw, row, ATTN_BF16, width, 1);
    for (int64_t c = 0; c < width; c++) {
        memcpy(half, pairs + c, sizeof half);
        if ((half[odd] & EXPONENT) != EXPONENT) continue;
        half[odd] = 0;
        memcpy(pairs + c, half, sizeof half);
        poison->row[r] = 1;
    }
}

void attn_cpu_pair_rows(const struct attn_cpu_sdpa *s, const struct attn_view *view, const struct attn_core_seq *seq,
                        int64_t b, int64_t hk, int64_t j0, int64_t n, int64_t width, float *dst, int64_t ld,
                        struct attn_cpu_sdpa_poison *poison) {
    if (poison) poison->any = 0;
    for (int64_t j = 0; j < n && width > 0; j += 2, dst += ld) {
        const void *row[2] = {attn_core_kv_row(s->p, view, seq, b, hk, j0 + j), NULL};
        if (j + 1 < n) row[1] = attn_core_kv_row(s->p, view, seq, b, hk, j0 + j + 1);
        if (s->pair->zip(dst, row[0], row[1], width) || !poison) continue;
        if (!poison->any) memset(poison->row, 0, (size_t)n);
        poison->any = 1;
        for (int odd = 0; odd < 2; odd++)
            if (row[odd]) move_out(s, poison, dst, odd, row[odd], j + odd, width, ld);
    }
}
