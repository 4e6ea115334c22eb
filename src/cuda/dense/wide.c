/* SPDX-License-Identifier: MIT
 * What the host files of the dense f32 and f64 kernels share: shared memory of a CTA, numbers in double. */
#include "cuda/dense/wide.h"
#include "core/problem.h"

static int32_t ctas_that_fit(const struct kp_sdpa_wide_config *c, const struct attn_cuda_limits *l, int64_t bytes) {
    if (bytes > l->shared_per_block) return 0;
    const int64_t fit = l->shared_per_sm / (bytes + 1024); /* the system keeps 1 KiB of each CTA's */
    return (int32_t)attn_cuda_lesser(fit < 1 ? 1 : fit, c->ctas);
}

struct attn_cuda_wide_memory attn_cuda_wide_memory(const struct kp_sdpa_wide_config *c,
                                                   const struct attn_cuda_limits *l, int64_t own_chunks) {
    const int64_t rows = KP_WIDE_ROWS(*c), slots = c->slots * (c->per > 1 ? c->per : 1), tile = c->keys;
    const int64_t kept = (own_chunks * rows + slots * tile) * KP_WIDE_PITCH,
                  streamed = slots * (rows + tile) * KP_WIDE_PITCH;
    const int32_t n_kept = ctas_that_fit(c, l, kept), n_streamed = ctas_that_fit(c, l, streamed);
    if (n_kept > 0 && n_kept >= n_streamed)
        return (struct attn_cuda_wide_memory){.bytes = kept, .resident = 1, .ctas = n_kept};
    return (struct attn_cuda_wide_memory){.bytes = streamed, .resident = 0, .ctas = n_streamed < 1 ? 1 : n_streamed};
}

struct attn_cuda_wide_memory attn_cuda_wide_bwd_memory(const struct kp_sdpa_wide_config *c,
                                                       const struct attn_cuda_limits *l, int64_t chunks) {
    const int64_t own = KP_WIDE_ROWS(*c), tile = c->keys,
                  stats = c->side == KP_WIDE_OWN_KEYS
                              ? KP_WIDE_STAT_TILES * 3 * tile * (int64_t)attn_dtype_bytes(c->dtype)
                              : 0;
    if (c->sums) { /* whole tiles, one of statistics, dS, an exponent of each warp */
        struct attn_cuda_wide_memory whole = {.bytes = chunks * (own + 2 * tile) * KP_WIDE_PITCH +
                                                       stats / KP_WIDE_STAT_TILES + own * tile * 4 + 4 * c->warps,
                                              .resident = 1,
                                              .staged = 1};
        whole.ctas = ctas_that_fit(c, l, whole.bytes);
        return whole;
    }
    struct attn_cuda_wide_memory ways[] = {
        {.bytes = chunks * (own + 2 * tile) * KP_WIDE_PITCH, .resident = 1, .staged = 1},
        {.bytes = (chunks * own + c->slots * tile) * KP_WIDE_PITCH, .resident = 1},
        {.bytes = c->slots * (own + tile) * KP_WIDE_PITCH},
    };
    const int n = sizeof ways / sizeof *ways;
    int best = n - 1; /* the least memory */
    for (int i = n - 1; i >= 0; i--) {
        ways[i].bytes += stats;
        ways[i].ctas = ctas_that_fit(c, l, ways[i].bytes);
        if (ways[i].ctas > 0 && ways[i].ctas >= ways[best].ctas) best = i;
    }
    if (ways[best].ctas < 1) ways[best].ctas = 1;
    return ways[best];
}

void attn_cuda_wide_numbers(struct kp_sdpa_wide *kp, const attn_problem *p, const struct attn_cuda_wide_memory *m) {
    kp->scale = p->scale;
    kp->softcap = p->softcap > 0 ? p->softcap : 0;
    kp->softcap_inverse = p->softcap > 0 ? 1 / p->softcap : 0;
    kp->plain = !(p->softcap > 0) && !p->alibi && !p->mask_dtype && !attn_core_has(p, ATTN_PAGED);
    kp->resident = m->resident;
    kp->staged = m->staged;
}
