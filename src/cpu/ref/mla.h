/* SPDX-License-Identifier: MIT
 * Sparse MLA attention for the reference kernels: the one predicate that says which slots count, and rows in double. */
#ifndef ATTN_CPU_REF_MLA_H
#define ATTN_CPU_REF_MLA_H
#include "cpu/ref/ref.h"

enum { ATTN_REF_HEADS = 16 }; /* query heads that share one conversion of a gathered row */

struct attn_cpu_ref_sparse {
    const attn_problem *p;
    const attn_args *args;
    struct attn_view q, kv, indices, topk_length, lse;
};
void attn_cpu_ref_sparse_init(struct attn_cpu_ref_sparse *m, const attn_problem *p, const attn_args *args);

/* key[t] = index of the kv row of slot t, or -1 where the slot is invalid. */
void attn_cpu_ref_slots(const struct attn_cpu_ref_sparse *m, int64_t b, int64_t i, int32_t *key);
/* Doubles that hold TOPK of them. */
static inline int64_t attn_cpu_ref_slot_doubles(const attn_problem *p) { return p->topk / 2 + 1; }

static inline void attn_cpu_ref_load_kv(double *dst, const struct attn_cpu_ref_sparse *m, int64_t b, int64_t key,
                                        int64_t width) {
    attn_cpu_ref_load(dst, attn_view_row(&m->kv, b, 0, key), m->kv.dtype, width);
}
/* Heads h0 .. h0+n of query i from a tensor shaped like q or out. */
static inline void attn_cpu_ref_load_heads(double *dst, const struct attn_view *v, int64_t b, int64_t i, int64_t h0,
                                           int64_t n, int64_t width) {
    for (int64_t h = 0; h < n; ++h) attn_cpu_ref_load(dst + h * width, attn_view_row(v, b, h0 + h, i), v->dtype, width);
}

/* The `dist` output of one execution, from its lse (dist.c): the operator itself, and mla_bwd's extra output. */
void attn_cpu_ref_dist_tasks(const struct attn_core_device *dev, const struct attn_cpu_ref_sparse *m, int64_t doubles);
#endif
