/* SPDX-License-Identifier: MIT
 * What the host files of the dense f32 and f64 kernels share: shared memory of a CTA, numbers in double. */
#include "cuda/cuda_sdpa_wide.h"
#include "core/problem.h"

static int32_t ctas_that_fit(const struct kp_sdpa_wide_config *c, const struct attn_cuda_limits *l, int64_t bytes) {
    if (bytes > l->shared_per_block) return 0;
    const int64_t fit = l->shared_per_sm / (bytes + 1024); /* the system keeps 1 KiB of each CTA's */
    return (int32_t)attn_cuda_lesser(fit < 1 ? 1 : fit, c->ctas);
}

struct attn_cuda_wide_memory attn_cuda_wide_memory(const struct kp_sdpa_wide_config *c,
                                                   const struct attn_cuda_limits *l, int64_t own_chunks) {
    const int64_t rows = KP_WIDE_ROWS(*c), slots = c->slots, tile = c->keys;
    const int64_t kept = (own_chunks * rows + slots * tile) * KP_WIDE_PITCH,
                  streamed = slots * (rows + tile) * KP_WIDE_PITCH;
    const int32_t n_kept = ctas_that_fit(c, l, kept), n_streamed = ctas_that_fit(c, l, streamed);
    if (n_kept > 0 && n_kept >= n_streamed)
        return (struct attn_cuda_wide_memory){.bytes = kept, .resident = 1, .ctas = n_kept};
    return (struct attn_cuda_wide_memory){.bytes = streamed, .resident = 0, .ctas = n_streamed < 1 ? 1 : n_streamed};
}

void attn_cuda_wide_numbers(struct kp_sdpa_wide *kp, const attn_problem *p, const struct attn_cuda_wide_memory *m) {
    kp->scale = p->scale;
    kp->softcap = p->softcap > 0 ? p->softcap : 0;
    kp->softcap_inverse = p->softcap > 0 ? 1 / p->softcap : 0;
    kp->plain = !(p->softcap > 0) && !p->alibi && !p->mask_dtype && !attn_core_has(p, ATTN_PAGED);
    kp->resident = m->resident;
}
