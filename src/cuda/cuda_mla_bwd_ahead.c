/* SPDX-License-Identifier: MIT
 * Sparse MLA backward on CUDA: which states of rows a main kernel forms itself, each CTA those of its next item, and
 * which are left to the first step: those of each launch's first items and of the last ones, in parts. */
#include "cuda/cuda_mla_bwd.h"

void attn_cuda_mla_bwd_ahead(const struct attn_cuda_mla_bwd_main *m, const struct attn_core_device *dev,
                             struct kp_mla_bwd *kp, int64_t listed, int64_t whole, struct kp_mla_cycles *left) {
    const int64_t cluster = m->cluster > 1 ? m->cluster : 1, ctas = attn_cuda_limits_of(dev)->n_sms * (int64_t)m->ctas;
    const int64_t all = kp->in.heads_q;
    if (listed <= 0 || (!kp->dq.data && !kp->dkv.data && !kp->part_dist)) return; /* no main kernel */
    if (kp->out.chunk != 16 || kp->dout.chunk != 16) return;
    /* With fewer tiles an item's last warps would form heads with nothing to wait for meanwhile. */
    if (m->ahead * (attn_cuda_blocks(kp->in.topk, 64) - 1) < attn_cuda_lesser(all, m->head_block / cluster)) return;
    const int64_t first = attn_cuda_blocks(ctas / cluster, kp->head_blocks);
    if (first >= listed || first > whole) return;
    kp->steps |= KP_MLA_BWD_AHEAD;
    const int64_t cycles = (whole - first) / listed + 1;
    *left = (struct kp_mla_cycles){.cycle = listed * all,
                                   .taken = first * all,
                                   .cycles = cycles,
                                   .after = attn_cuda_lesser(cycles * listed, whole) * all};
}
