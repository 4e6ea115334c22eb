/* SPDX-License-Identifier: MIT
 * Operands of the forward on AMX: see fwd_amx.c, which has their layouts. */
#include "cpu/dense/fwd_amx_work.h"

#include <string.h>

enum { IN_PLACE = 64 /* columns up to which keys are multiplied in place */ };

/* Splits a row of Q or K into bf16 parts, `apart` elements from each other, every 32 columns `step` elements after the
 * previous ones. Returns 0 where the row is nonfinite. */
static int split_row(const struct attn_cpu_fwd *f, uint16_t *to, int64_t apart, const void *row, int64_t step) {
    const int64_t n = f->s.p->dim_qk;
    return f->amx_split == 3 ? f->s.bf16->split_f32(to, apart, row, n, step)
                             : f->s.bf16->split_f16(to, to + apart, row, n, step);
}

/* Copies 32 rows into tiles; rows that do not exist are 0. */
static void load_strip_rows(struct attn_cpu_fwd_amx_work *w, int64_t r0, int64_t n) {
    const struct attn_cpu_fwd *f = w->f;
    const int64_t width = f->s.p->dim_qk;
    uint16_t *to = (uint16_t *)(void *)(w->q + r0 * f->depth / 2);
    for (int64_t h = 0; h < ROWS; h += 16, to += 16 * f->depth) {
        if (h + 16 <= n && f->s.group == 1 && width == f->depth) {
            f->s.bf16->stack(to, (const void *)attn_cpu_fwd_amx_query(w, r0 + h), f->s.q.row, width);
            continue;
        }
        memset(w->tmp, 0, (size_t)(16 * f->depth) * sizeof *to);
        uint16_t *row = (uint16_t *)(void *)w->tmp;
        for (int64_t r = h; r < n && r < h + 16; r++)
            memcpy(row + (r - h) * f->depth, attn_cpu_fwd_amx_query(w, r0 + r), (size_t)width * sizeof *row);
        f->s.bf16->stack(to, row, f->depth, f->depth);
    }
}
/* Transposes 32 rows as pairs; rows that do not exist are 0. */
void attn_cpu_fwd_amx_load_strip(struct attn_cpu_fwd_amx_work *w, int64_t r0, int64_t n) {
    const struct attn_cpu_fwd *f = w->f;
    const int64_t pairs = f->depth / 2, parts = f->amx_split;
    float *to = w->q + r0 * pairs * parts;
    if (f->by_rows) {
        load_strip_rows(w, r0, n);
        return;
    }
    if (parts == 1 && n == ROWS && f->s.group == 1 && f->s.p->dim_qk == f->depth && f->s.q.row % 2 == 0) {
        for (int64_t h = 0; h < 2; h++) /* rows are whole pairs, and evenly spaced */
            f->s.u->transpose_f32(to + h * 16 * pairs, 16,
                                  (const float *)(const void *)attn_cpu_fwd_amx_query(w, r0 + h * 16), f->s.q.row / 2,
                                  16, pairs);
        return;
    }
    memset(w->tmp, 0, (size_t)(ROWS * pairs * parts) * sizeof *w->tmp);
    for (int64_t r = 0; r < n; r++) {
        float *high = w->tmp + r * pairs;
        if (parts == 1) {
            attn_cpu_bf16_row(high, attn_cpu_fwd_amx_query(w, r0 + r), f->s.p->dim_qk);
            continue;
        }
        const int finite =
            split_row(f, (uint16_t *)(void *)high, 2 * ROWS * pairs, attn_cpu_fwd_amx_query(w, r0 + r), 32);
        w->nonfinite_q[r0 + r] = !finite;
        w->any_nonfinite_q |= !finite;
    }
    if (w->may_leave) {
        const uint16_t *low = (const uint16_t *)(const void *)(w->tmp + ROWS * pairs);
        w->low_q[r0 / ROWS] = f->s.bf16->most_square(low, f->depth, n, f->depth, 32);
    }
    for (int64_t h = 0; h < 2 * parts; h++)
        f->s.u->transpose_f32(to + h * 16 * pairs, 16, w->tmp + h * 16 * pairs, pairs, 16, pairs);
}

/* Where column c of key j of the block is, among tiles; each bf16 part lies 16 depth elements after the previous
 * one. */
static uint16_t *key_cell(const struct attn_cpu_fwd_amx_work *w, int64_t j, int64_t c) {
    return w->k + j / 16 * 16 * w->f->depth * w->f->amx_split + c / 32 * (16 * 32) + j % 16 * 32 + c % 32;
}
static void put_key(const struct attn_cpu_fwd_amx_work *w, int64_t j, const uint16_t *row, int64_t n) {
    for (int64_t c = 0; c < w->f->depth; c += 32) {
        uint16_t *to = key_cell(w, j, c);
        const int64_t have = n - c < 0 ? 0 : n - c < 32 ? n - c : 32;
        memcpy(to, row + c, (size_t)have * sizeof *to);
        memset(to + have, 0, (size_t)(32 - have) * sizeof *to);
    }
}
static void clear_key(const struct attn_cpu_fwd_amx_work *w, int64_t j) {
    for (int64_t c = 0; c < w->f->depth * w->f->amx_split; c += 32) memset(key_cell(w, j, c), 0, 32 * sizeof *w->k);
}
/* Rows j .. j + n of keys and values are evenly spaced. */
static int in_one_page(const struct attn_cpu_fwd_amx_work *w, int64_t j, int64_t n) {
    return !w->seq.pages || j % w->f->s.p->page_size + n <= w->f->s.p->page_size;
}
/* Keys transposed in pairs along D, 16 at a time. */
static void load_keys_across(struct attn_cpu_fwd_amx_work *w, int64_t j0, int64_t n, int64_t padded) {
    const struct attn_cpu_fwd *f = w->f;
    const int64_t width = f->s.p->dim_qk, pairs = f->depth / 2;
    w->rows = w->k;
    w->any_nonfinite_k = w->any_page_missing = 0;
    if (w->seq.pages) memset(w->page_missing, 0, (size_t)padded);
    for (int64_t j = 0; j < padded; j += 32) {
        const char *row = j < n ? attn_cpu_fwd_amx_key(w, j0 + j) : NULL;
        const float *from = (const float *)(const void *)row;
        int64_t ld = f->s.k.row / 2; /* of pairs */
        if (!row || j + 32 > n || width != f->depth || f->s.k.row % 2 || !in_one_page(w, j0 + j, 32)) {
            from = w->tmp, ld = pairs;
            memset(w->tmp, 0, (size_t)(32 * pairs) * sizeof *w->tmp);
            for (int64_t i = j; i < n && i < j + 32; i++) {
                row = attn_cpu_fwd_amx_key(w, j0 + i);
                if (row) memcpy(w->tmp + (i - j) * pairs, row, (size_t)width * sizeof *w->k);
                if (!row) w->page_missing[i] = 1, w->any_page_missing = 1;
            }
        }
        for (int64_t h = 0; h < 2; h++)
            f->s.u->transpose_f32((float *)(void *)w->k + (j + 16 * h) * pairs, 16, from + 16 * h * ld, ld, 16, pairs);
    }
}
static void load_keys(struct attn_cpu_fwd_amx_work *w, int64_t j0, int64_t n, int64_t padded) {
    const struct attn_cpu_fwd *f = w->f;
    const struct attn_view *view = &f->s.k;
    const int64_t width = f->s.p->dim_qk;
    if (f->by_rows) {
        load_keys_across(w, j0, n, padded);
        return;
    }
    w->rows = w->k;
    w->any_nonfinite_k = w->any_page_missing = 0;
    /* tiles of rows 256 bytes apart are loaded more slowly than it takes to copy them; 128 bytes cost nothing */
    if (f->amx_split == 1 && f->depth <= IN_PLACE && width == f->depth && view->row == width && n == padded &&
        !w->seq.pages) {
        w->rows = (const uint16_t *)(const void *)attn_view_row(view, w->b, w->hk, w->seq.k0 + j0);
        return;
    }
    for (int64_t j = 0; j < padded; j++) {
        const void *row = j < n ? attn_cpu_fwd_amx_key(w, j0 + j) : (const void *)w->k;
        uint16_t *to = key_cell(w, j, 0);
        if (w->seq.pages) w->page_missing[j] = !row, w->any_page_missing |= !row;
        if (!row) {
            clear_key(w, j);
            w->nonfinite_k[j] = 0;
            continue;
        }
        if (f->amx_split == 1) {
            if (width == f->depth && j % 16 == 0 && j + 16 <= n && in_one_page(w, j0 + j, 16)) {
                if (w->seq.pages) memset(w->page_missing + j, 0, 16);
                f->s.bf16->stack(to, row, view->row, width);
                j += 15;
            } else {
                put_key(w, j, row, j < n ? width : 0);
            }
            continue;
        }
        if (width < f->depth || j >= n) clear_key(w, j);
        w->nonfinite_k[j] = j < n && !split_row(f, to, 16 * f->depth, row, 16 * 32);
        w->any_nonfinite_k |= w->nonfinite_k[j];
    }
}

float attn_cpu_fwd_amx_low_of(const struct attn_cpu_fwd_amx_work *w, int64_t j, int64_t n) {
    const int64_t depth = w->f->depth;
    float most = 0;
    for (const int64_t end = j + n; j < end; j += 16) {
        const float x =
            w->f->s.bf16->most_square(key_cell(w, j, 0) + 16 * depth, 32, end - j < 16 ? end - j : 16, depth, 16 * 32);
        if (x > most) most = x;
    }
    return most;
}
static void load_values(struct attn_cpu_fwd_amx_work *w, int64_t j0, int64_t n, int64_t padded) {
    const struct attn_cpu_fwd *f = w->f;
    const int64_t width = f->s.p->dim_v, ld = f->ldv, parts = f->amx_split;
    int (*const pack)(float *, const uint16_t *, int64_t, int64_t) =
        f->by_rows ? f->s.bf16->zip_tiles : f->s.bf16->turn;
    w->nonfinite.any = 0;
    for (int64_t c = 0; c < padded; c += 32) {
        const int64_t keys = n - c < 0 ? 0 : n - c < 32 ? n - c : 32, pairs = (keys + 1) / 2;
        struct attn_cpu_sdpa_nonfinite part = {0, (float *)w->nonfinite.raw + c * ld, w->nonfinite.row + c};
        memset(part.row, 0, 32);
        if (parts == 1 && keys == 32 && width == ld && in_one_page(w, j0 + c, 32)) {
            const uint16_t *rows = (const void *)attn_core_kv_row(f->s.p, &f->s.v, &w->seq, w->b, w->hk, j0 + c);
            if (rows && pack(w->v + c / 2 * ld, rows, f->s.v.row, width)) continue;
        }
        if (f->by_rows) {
            uint16_t *rows = (uint16_t *)(void *)w->tmp;
            int64_t row;
            memset(rows, 0, (size_t)(32 * ld) * sizeof *rows);
            attn_cpu_half_rows(&f->s, &f->s.v, &w->seq, w->b, w->hk, j0 + c, keys, width, 0, rows, ld, &part, ld, &row);
            w->nonfinite.any |= part.any;
            pack(w->v + c / 2 * ld, rows, ld, ld);
            continue;
        }
        if (parts == 1) {
            attn_cpu_bf16_rows(&f->s, &f->s.v, &w->seq, w->b, w->hk, j0 + c, keys, width, w->tmp, ld, &part);
        } else {
            attn_cpu_bf16_split_rows(&f->s, &f->s.v, &w->seq, w->b, w->hk, j0 + c, keys, width, w->tmp, ld, &part);
        }
        w->nonfinite.any |= part.any;
        for (int64_t h = 0; h < parts; h++) {
            float *to = w->v + (c / 2 * parts + h * 16) * ld, *from = w->tmp + h * 16 * ld;
            if (pairs < 16) memset(from + pairs * ld, 0, (size_t)((16 - pairs) * ld) * sizeof *from);
            f->s.u->transpose_f32(to, 16, from, ld, 16, width);
            memset(to + width * 16, 0, (size_t)((ld - width) * 16) * sizeof *to);
        }
    }
}

const struct attn_cpu_fwd_cached *attn_cpu_fwd_amx_load_block(struct attn_cpu_fwd_amx_work *w, int64_t from,
                                                              int64_t to) {
    const int64_t head = w->b * w->f->s.p->heads_k + w->hk, n = to - from, padded = attn_cpu_sdpa_up(n, STEP);
    struct attn_cpu_fwd_cached *cached = w->cached;
    if (cached->head == head && cached->begin <= from && to <= cached->end) {
        w->rows = cached->rows, w->nonfinite.any = cached->nonfinite, w->any_nonfinite_k = cached->nonfinite_k,
        w->any_page_missing = cached->page_missing;
        return cached;
    }
    load_keys(w, from, n, padded);
    for (int64_t j = 0; j < padded && w->may_leave; j += STEP) w->low_k[j / STEP] = attn_cpu_fwd_amx_low_of(w, j, STEP);
    load_values(w, from, n, padded);
    *cached = (struct attn_cpu_fwd_cached){.head = head, .begin = from, .end = to, .rows = w->rows};
    cached->nonfinite = w->nonfinite.any, cached->nonfinite_k = w->any_nonfinite_k,
    cached->page_missing = w->any_page_missing;
    return cached;
}
