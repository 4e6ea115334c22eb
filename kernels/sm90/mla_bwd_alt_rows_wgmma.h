/* SPDX-License-Identifier: MIT
 * Part of mla_bwd_alt_wgmma.cu, deterministic: dKV of a tile by its owner, who stores all of it as rows of 16 bits
 * (mla_bwd_rows_wgmma.h): 64 slots x 32 columns at a time in two sets of sums, one multiplied while the other is
 * stored. */
#ifndef ATTN_SM90_MLA_BWD_ALT_ROWS_WGMMA_H
#define ATTN_SM90_MLA_BWD_ALT_ROWS_WGMMA_H
#include "kernels/sm90/mla_bwd_rows_wgmma.h"

constexpr uint32_t ROW_UNITS = 2 * SLICES;
static __device__ __forceinline__ void start_row(float d[16], const struct tile *t, uint32_t k) {
    if (slice_of(k / 2) == 8)
        multiply<1>(d, t, 8, k & 1);
    else
        multiply<0>(d, t, slice_of(k / 2), k & 1);
}
/* Unit K, whose products, in a, have been started. last: of the item's tiles that the warpgroup owns. */
template <uint32_t K>
static __device__ __forceinline__ void do_rows(uint32_t shared, float a[16], float b[16], const struct tile *t,
                                               const struct places *to, int last) {
    constexpr uint32_t x = slice_of(K / 2), MORE = K + 1 < ROW_UNITS;
    if (MORE) start_row(b, t, K + 1);
    wgmma_wait(MORE);
    wgmma_hold(a, 16);
    if (K % 2 && last && lane_of() == 0) mbar_arrive(shared + Q_FREE + 8 * x);
    if (ASK_FIRST && K == 0) mbar_wait(shared + K_ASKED, t->n);
    add_places(a, to, 64 * x + 32 * (K % 2));
    if constexpr (MORE) do_rows<K + 1>(shared, b, a, t, to, last);
}
#endif
