/* SPDX-License-Identifier: MIT
 * Part of sdpa_fwd.cu: rows whose sums are not finite, as a warp's quads know them. */
#ifndef ATTN_SM90_SDPA_FWD_HIDDEN_VALUES_H
#define ATTN_SM90_SDPA_FWD_HIDDEN_VALUES_H
#include "kernels/sm90/sdpa_fwd/score_mod.h"
/* It reads what stands there. */
#include "kernels/device/sdpa_hidden_values.h"

/* A warp, after the stores of its rows i0 .. i0 + 15. Lanes 4 g .. 4 g + 3 of low and high: those that found a number
 * that is not finite in rows g and g + 8; lane 4 g has m and factor of them. */
static __device__ __forceinline__ void mend_rows(const struct kp_sdpa_fwd *p, const struct work *w, int i0,
                                                 uint32_t low, uint32_t high, const float m[2], const float factor[2],
                                                 float unit) {
    __syncwarp();
#pragma unroll 1
    for (int r = 0; r < 16; r++) {
        const int lane = r % 8 * 4, i = i0 + r;
        const float m_row = __shfl_sync(~0u, r < 8 ? m[0] : m[1], lane),
                    f = __shfl_sync(~0u, r < 8 ? factor[0] : factor[1], lane);
        if ((r < 8 ? low : high) >> lane & 15 && i < w->seq.sq) mend_if_hidden(p, w, i, m_row, f, unit);
    }
}
#endif
