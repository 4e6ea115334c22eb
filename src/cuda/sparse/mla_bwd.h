/* SPDX-License-Identifier: MIT
 * Sparse MLA backward on CUDA, the host's part that every main kernel shares: steps before and after it, workspace. */
#ifndef ATTN_CUDA_CUDA_MLA_BWD_H
#define ATTN_CUDA_CUDA_MLA_BWD_H
#include "cuda/dense/dout.h"
#include "cuda/sparse/mla.h"

/* The main kernel of a row, as the shared part launches it: CTAs of `threads` that take blocks of `head_block` heads of
 * a query in the order of struct kp_mla_bwd and step by the grid's size. */
struct attn_cuda_mla_bwd_main {
    const char *symbol;
    int32_t head_block, threads, shared_bytes;
    int32_t dist_blocks;  /* parts of a head block over which it sums P' for dist; 0 or 1 = one */
    int32_t ctas;         /* per SM, at most; 0 = a CTA for every work tile */
    int32_t cluster;      /* CTAs that share a work tile; 0 or 1 = none. The grid has `cluster` CTAs for each */
    int32_t permuted;     /* 1: adds to sums with columns as KP_MLA_BWD_PERMUTED says, in the workspace always */
    int32_t parts;        /* 1: splits work tiles, struct kp_mla_bwd.parts, where whole ones leave SMs idle */
    int32_t together;     /* 1: keeps its CTAs together by struct kp_mla_bwd.checkpoints */
    int32_t ahead;        /* heads of 64 whose row statistics it can form in each key tile but a work tile's first */
    int32_t stored_bytes; /* deterministic: stores a row per slot; bytes of a number: 4, f32; 2, rows of
                       * kernels/device/row16.h. 0: adds to kv rows as it goes */
    int32_t maps; /* 1: its launch takes struct kp_mla_bwd_sm100, and each CTA has room for the dS of a work tile */
    /* Stored rows of 2 bytes a number: > 0, the launch takes struct kp_mla_bwd_rows and can sum the rows that the
     * previous chunk stored while others form the next (overlapped sum). The value: time to sum the rows of one work
     * tile on one SM, as a fraction of the time to compute it. */
    double sum_time;
};

/* 1 and the reason if the problem, or an image that it needs, is out of reach. Operator and dtype are checked before.
 */
int attn_cuda_mla_bwd_refuse(const struct attn_cuda_mla_bwd_main *m, const struct attn_core_device *dev,
                             const attn_problem *p, struct attn_text *why);
uint64_t attn_cuda_mla_bwd_workspace(const struct attn_cuda_mla_bwd_main *m, const struct attn_core_device *dev,
                                     const attn_problem *p);
attn_status attn_cuda_mla_bwd_prepare(const struct attn_cuda_mla_bwd_main *m, struct attn_core_device *dev);
attn_status attn_cuda_mla_bwd_launch(const struct attn_cuda_mla_bwd_main *m, const struct attn_core_device *dev,
                                     const attn_problem *p, const attn_args *args);

/* Deterministic, a row of f32 for each slot: sorts the slots of queries kp->first .. + kp->n - 1 by kv row, and adds
 * the rows that they left. mla_bwd_sum.c */
attn_status attn_cuda_mla_bwd_sum(const struct attn_core_device *dev, struct kp_mla_bwd *kp, void *stream);
enum { ATTN_CUDA_MLA_BWD_SUM_STEPS = 4 };
extern const char *const attn_cuda_mla_bwd_sum_symbols[ATTN_CUDA_MLA_BWD_SUM_STEPS];

/* m->maps: queues the main kernel; `ds`: the workspace for dS. mla_bwd_sm100.c */
attn_status attn_cuda_mla_bwd_mapped(const struct attn_cuda_mla_bwd_main *m, const struct attn_core_device *dev,
                                     const struct kp_mla_bwd *kp, uint64_t ds, int64_t ctas, void *stream);

/* Clusters of the main kernel, or CTAs where it has none, that n_sms multiprocessors hold at once; at least 1. */
static inline int64_t attn_cuda_mla_bwd_clusters(const struct attn_cuda_mla_bwd_main *m, int64_t n_sms) {
    const int64_t n = n_sms * (m->ctas > 0 ? m->ctas : 1) / (m->cluster > 1 ? m->cluster : 1);
    return n > 0 ? n : 1;
}
/* CTAs of a launch of the main kernel with n work tiles. */
static inline int64_t attn_cuda_mla_bwd_ctas(const struct attn_cuda_mla_bwd_main *m, const struct attn_core_device *dev,
                                             int64_t work_tiles) {
    const int64_t cluster = m->cluster > 1 ? m->cluster : 1;
    int64_t ctas = work_tiles * cluster;
    if (m->ctas) ctas = attn_cuda_lesser(ctas, (int64_t)attn_cuda_limits_of(dev)->n_sms * m->ctas);
    ctas -= ctas % cluster;
    return ctas < cluster ? cluster : ctas;
}

/* Which states of rows are left to the first step, where the main kernel can form some itself (m->ahead). Queries:
 * `listed` a launch, 0: fewer than are ordered together; `whole` without split work tiles. mla_bwd_row_stats.c */
void attn_cuda_mla_bwd_ahead(const struct attn_cuda_mla_bwd_main *m, const struct attn_core_device *dev,
                             const struct kp_mla_bwd *kp, int64_t listed, int64_t whole, struct kp_mla_cycles *left);

/* ---- stored rows that are summed while the next chunk is computed (m->sum_time), mla_bwd_overlap.c ---- */

/* A launch that computes `work_tiles` and sums the stored rows of `rows` others: how many CTAs compute. Returns its
 * time, in rounds. */
double attn_cuda_mla_bwd_workers(const struct attn_cuda_mla_bwd_main *m, int64_t n_sms, int64_t work_tiles,
                                 int64_t rows, int64_t *workers);
/* Queries of a chunk, `most` at most, of work tiles of `tiles` key tiles; 0: the sums get launches of their own. */
int64_t attn_cuda_mla_bwd_chunk(const struct attn_cuda_mla_bwd_main *m, int64_t n_sms, int64_t queries,
                                int64_t head_blocks, int64_t tiles, int64_t most);
#endif
