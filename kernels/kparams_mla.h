/* SPDX-License-Identifier: MIT
 * Parameter structs and variant tables of the sparse MLA operators (forward, backward, attention distribution), shared
 * by device code and src/cuda. */
#ifndef ATTN_KPARAMS_MLA_H
#define ATTN_KPARAMS_MLA_H
#include "kernels/kparams.h"

/* struct kp_mla.flags, beside KP_LSE_* */
#define KP_MLA_CAUSAL 16

/* What the three operators have in common. Query i of batch entry b has slots t < topk_length (clamped to 0..topk);
 * slot t is valid iff 0 <= idx < n_keys(i): kernels/device/slots.h holds this one predicate. */
struct kp_mla {
    struct kp_view q, kv, indices, topk_length; /* [B,SQ,HQ,D], [B,SK,1,D], int32 [B,SQ,1,TOPK], int32 [B,SQ] or 0 */
    uint64_t sink;                              /* float [HQ] or 0 */
    int64_t sink_head;                          /* stride in elements */
    int64_t batch, seq_q, seq_k;                /* seq_k <= 2^31: an index reaches no further */
    int64_t q_start, k_stride;
    int32_t heads_q, dim_qk, topk;
    uint32_t flags;          /* KP_MLA_*, KP_LSE_* */
    float scale, scale_log2; /* natural units; scale * log2(e), with its sign */
};
KP_SIZE(struct kp_mla, 4 * 48 + 7 * 8 + 6 * 4);
#endif
