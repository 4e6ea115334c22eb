/* SPDX-License-Identifier: MIT
 * What the files of the forward on AMX share: a task's work, and the operands of its strips and blocks (fwd_amx.c,
 * fwd_amx_load.c). */
#ifndef ATTN_CPU_DENSE_FWD_AMX_WORK_H
#define ATTN_CPU_DENSE_FWD_AMX_WORK_H
#include "cpu/dense/bf16_operands.h"
#include "cpu/dense/fwd.h"

enum { ROWS = ATTN_FWD_ROWS, STEP = ATTN_FWD_STEP, MOST_STRIPS = 32 };

struct attn_cpu_fwd_amx_work {
    const struct attn_cpu_fwd *f;
    struct attn_core_seq seq;
    int64_t b, hk;
    struct attn_cpu_sdpa_row *row;
    struct attn_cpu_fwd_cached *cached;
    float *q, *v, *tmp, *s, *p, *o, *m, *l, *older_o, *older_m, *older_l;
    uint16_t *k;
    const uint16_t *rows; /* keys of the block */
    uint32_t *visible;
    struct attn_cpu_sdpa_nonfinite nonfinite;
    /* bf16x2, bf16x3: nonfinite rows of the task's Q, of the block's K; paged: keys in pages outside the pool */
    uint8_t *nonfinite_q, *nonfinite_k, *page_missing;
    /* bf16x2, where low * low may be left out of Q K^T: upper bounds of the largest sum of squares of a row's low
     * parts, for each strip of Q and each step of K */
    int may_leave;
    float low_q[MOST_STRIPS], *low_k;
    int any_nonfinite_q, any_nonfinite_k, any_page_missing;
    uint32_t *score_override;
    float *override_scores, *two_rows;              /* two_rows: as f32 */
    uint32_t *bits;                                 /* boolean masks of two strips, see attn_fwd_score_mod */
    float *bias;                                    /* masks of a strip, transposed */
    struct attn_cpu_fwd_bounds bounds[MOST_STRIPS]; /* of each strip */
    uint8_t fresh[MOST_STRIPS];                     /* of each strip: 1: O and l are not begun */
};

/* Packs 32 rows of Q from row r0 of the task on, n of which exist. */
void attn_cpu_fwd_amx_load_strip(struct attn_cpu_fwd_amx_work *w, int64_t r0, int64_t n);
/* Packs keys and values from .. to, unless the worker's last block has them. Returns the block that holds them, which
 * may begin earlier and end later. */
const struct attn_cpu_fwd_cached *attn_cpu_fwd_amx_load_block(struct attn_cpu_fwd_amx_work *w, int64_t from,
                                                              int64_t to);

/* bf16x2: an upper bound of the largest sum of squares of a key's low parts, for n <= 64 keys from key j of the block
 * on, a multiple of 16. */
float attn_cpu_fwd_amx_low_of(const struct attn_cpu_fwd_amx_work *w, int64_t j, int64_t n);

static inline const char *attn_cpu_fwd_amx_query(const struct attn_cpu_fwd_amx_work *w, int64_t r) {
    return attn_view_row(&w->f->s.q, w->b, w->row[r].h, w->seq.q0 + w->row[r].i);
}
/* NULL: in a page outside the pool. */
static inline const char *attn_cpu_fwd_amx_key(const struct attn_cpu_fwd_amx_work *w, int64_t j) {
    return attn_core_kv_row(w->f->s.p, &w->f->s.k, &w->seq, w->b, w->hk, j);
}
#endif
