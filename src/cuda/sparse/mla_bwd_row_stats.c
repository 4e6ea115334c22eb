/* SPDX-License-Identifier: MIT
 * Sparse MLA backward on CUDA: which states of rows a main kernel forms itself, each CTA those of its next work tile,
 * and which are left to the first step: those of each launch's first work tiles and of the last ones, which are split,
 * and where a work tile has too few key tiles for all heads of the next, the last heads of all. */
#include "cuda/sparse/mla_bwd.h"

void attn_cuda_mla_bwd_ahead(const struct attn_cuda_mla_bwd_main *m, const struct attn_core_device *dev,
                             const struct kp_mla_bwd *kp, int64_t listed, int64_t whole, struct kp_mla_cycles *left) {
    const int64_t all = kp->in.heads_q, block = 64; /* heads of a CTA */
    *left = (struct kp_mla_cycles){.rows = kp->in.batch * kp->in.seq_q * all};
    if (listed <= 0 || (!kp->dq.data && !kp->dkv.data && !kp->part_dist)) return; /* no main kernel */
    if (kp->out.chunk != 16 || kp->dout.chunk != 16 || left->rows > UINT32_MAX) return;
    /* More than the tiles have room for would be formed after the last one, with nothing to wait for meanwhile. */
    const int64_t heads = attn_cuda_lesser(m->ahead * (attn_cuda_blocks(kp->in.topk, 64) - 1), block);
    const int64_t first =
        attn_cuda_blocks(attn_cuda_mla_bwd_clusters(m, attn_cuda_limits_of(dev)->n_sms), kp->head_blocks);
    if (heads <= 0 || first >= listed || first > whole) return;
    const int64_t cycles = (whole - first) / listed + 1, after = attn_cuda_lesser(cycles * listed, whole);
    const int64_t formed = all / block * heads + attn_cuda_lesser(all % block, heads), others = after - cycles * first;
    left->rows -= others * formed;
    left->cycle = (uint32_t)(listed * all);
    left->taken = (uint32_t)(first * all);
    left->cycled = (uint32_t)(cycles * first * all);
    left->until = left->cycled + (uint32_t)(others * (all - formed));
    left->after = (uint32_t)(after * all);
    left->heads = (uint32_t)heads;
}
