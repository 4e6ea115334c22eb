/* SPDX-License-Identifier: MIT
 * Rows, packing and scores of dense attention, shared by the forward and the backward driver. */
#include "cpu/dense/sdpa.h"

#include <math.h>
#include <string.h>

void attn_cpu_sdpa_init(struct attn_cpu_sdpa *s, const attn_problem *p, const attn_args *args, const struct attn_ukr *u,
                        const struct attn_ukr_bf16 *bf16) {
    const int f64 = p->dtype == ATTN_F64;
    const double small = f64 ? 1e-100 : 1e-12, size = fabs(p->scale);
    *s = (struct attn_cpu_sdpa){.p = p, .args = args, .u = u, .bf16 = bf16, .unit = 1};
    s->group = p->heads_q / p->heads_k;
    s->flat = p->seq_q * s->group;
    const int fits = size == 0 || (size >= small && size <= 1 / small);
    const int early = fits && !bf16; /* pairs are bits of the tensor: a factor would round them a second time */
    s->row_factor = early ? p->scale : 1;
    s->remaining_scale = early ? 1 : p->scale;
    s->remaining_fits = fits;
    if (p->softcap > 0) s->softcap = fmin(fmax(p->softcap, f64 ? 1e-200 : 1e-25), f64 ? 1e200 : 1e25);
    s->plain =
        fits && p->softcap <= 0 && p->alibi == ATTN_ALIBI_NONE && !p->mask_dtype && !attn_core_has(p, ATTN_PAGED);
    if (bf16) {
        s->plain &= p->scale > 0; /* else the largest product is not the largest score */
        if (s->plain) s->unit = p->scale;
    }
    if (!args) return;
    s->q = attn_core_view(p, args, ATTN_ROLE_Q);
    s->k = attn_core_view(p, args, ATTN_ROLE_K);
    s->v = attn_core_view(p, args, ATTN_ROLE_V);
    s->mask = attn_core_view(p, args, ATTN_ROLE_MASK);
    s->falls = attn_core_offsets_fall(p, args);
}

double attn_cpu_sdpa_slope(const struct attn_cpu_sdpa *s, int64_t b, int64_t h) {
    const attn_tensor *t = s->args->alibi;
    int64_t element = h * t->strides[t->rank - 1];
    if (t->rank == 2 && t->shape[0] > 1) element += b * t->strides[0]; /* [HQ] and [1,HQ] serve every batch entry */
    return ((const float *)t->data)[element];
}

static int64_t distance(int64_t a, int64_t b) { return a > b ? a - b : b - a; }

void attn_cpu_sdpa_row(const struct attn_cpu_sdpa *s, const struct attn_core_seq *seq, int64_t b, int64_t h, int64_t i,
                       struct attn_cpu_sdpa_row *row) {
    const attn_problem *p = s->p;
    *row = (struct attn_cpu_sdpa_row){.i = i, .h = h};
    row->diagonal = i + (attn_core_has(p, ATTN_BOTTOM_RIGHT) ? seq->sk - seq->sq : 0);
    attn_core_key_range(p, seq->sq, seq->sk, i, &row->lo, &row->hi);
    if (row->lo >= row->hi) row->lo = row->hi = 0;
    if (s->mask.data) row->mask = attn_view_row(&s->mask, b, h, i);
    if (p->alibi == ATTN_ALIBI_NONE || row->lo == row->hi) return;
    row->slope = attn_cpu_sdpa_slope(s, b, h);
    attn_cpu_sdpa_alibi(s, row);
}

void attn_cpu_sdpa_alibi(const struct attn_cpu_sdpa *s, struct attn_cpu_sdpa_row *row) {
    const attn_problem *p = s->p;
    int64_t last = row->hi - 1;
    if (p->alibi == ATTN_ALIBI_LINEAR) {
        row->alibi_ref = row->slope >= 0 ? last : row->lo;
        row->shift = row->slope * (double)(row->alibi_ref - row->diagonal);
    } else {
        int64_t near = row->diagonal < row->lo ? row->lo - row->diagonal
                       : row->diagonal > last  ? row->diagonal - last
                                               : 0;
        int64_t far = distance(row->lo, row->diagonal), other = distance(last, row->diagonal);
        row->alibi_ref = row->slope >= 0 ? near : far > other ? far : other;
        row->shift = -row->slope * (double)row->alibi_ref;
    }
}

void attn_cpu_sdpa_flat_rows(const struct attn_cpu_sdpa *s, const struct attn_core_seq *seq, int64_t b, int64_t hk,
                             int64_t f0, int64_t n, struct attn_cpu_sdpa_row *row) {
    const attn_problem p = *s->p; /* which the rows can't change */
    const int64_t sq = seq->sq, sk = seq->sk, off = attn_core_has(&p, ATTN_BOTTOM_RIGHT) ? sk - sq : 0,
                  end = (hk + 1) * s->group;
    const int plain = s->plain;
    for (int64_t r = 0, h = end - s->group + f0 % s->group, i = f0 / s->group; r < n; r++) {
        if (plain) {
            int64_t lo, hi;
            attn_core_key_range(&p, sq, sk, i, &lo, &hi);
            if (lo >= hi) lo = hi = 0;
            row[r] = (struct attn_cpu_sdpa_row){.i = i, .h = h, .lo = lo, .hi = hi, .diagonal = i + off};
        } else {
            attn_cpu_sdpa_row(s, seq, b, h, i, &row[r]);
        }
        if (++h == end) h -= s->group, i++;
    }
}

#define REAL        float
#define T(name)     name##_f32
#define REAL_IS_F64 0
#define SMALLEST    1.17549435e-38f
#include "cpu/dense/score_tpl.h"
#undef REAL
#undef T
#undef REAL_IS_F64
#undef SMALLEST
#define REAL        double
#define T(name)     name##_f64
#define REAL_IS_F64 1
#define SMALLEST    2.2250738585072014e-308
#include "cpu/dense/score_tpl.h"
