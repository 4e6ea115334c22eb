/* SPDX-License-Identifier: MIT
 * Part of mla_bwd.cu: Q^T and dO^T of all heads, this CTA's columns, from shared to tensor memory, where they stay
 * for the work tile: operand A of dKV^T = dO^T P + Q^T dS. Warps 0..3 bring Q, 4..7 dO.
 *
 * Lane 32 q + 8 k + r of a chunk of 128 columns has column 32 q + 4 r + k: then a thread of gradients.h, which gets
 * lanes r, r + 8, r + 16, r + 24 of a quarter, has four neighbours. Column h / 2 has heads h and h + 1. */
#ifndef ATTN_SM100_MLA_BWD_OPERANDS_H
#define ATTN_SM100_MLA_BWD_OPERANDS_H

/* Which of all heads are not empty, a bit each. Nothing of an empty row's q and dout may reach dKV. */
struct alive {
    uint32_t word[HEADS / 32];
};
static __device__ __forceinline__ struct alive alive_of(const struct kp_mla_bwd *p, const struct work *w) {
    struct alive a;
#pragma unroll
    for (int k = 0; k < HEADS / 32; k++) {
        const int64_t state = state_of_row(p, w, 32 * k + lane_of());
        const float lse2 = state >= 0 ? ((const struct kp_mla_row *)p->row_stats)[state].lse2 : INF;
        a.word[k] = __ballot_sync(~0u, lse2 != INF);
    }
    return a;
}

/* A CTA's heads of one column: `slice` of [64 rows][64 columns], its column. Heads CTA_HEADS `side` .. of the block. */
static __device__ __forceinline__ void bring_heads(uint32_t cells, uint32_t slice, int column, const struct alive *a,
                                                   int side) {
    constexpr int WORDS = CTA_HEADS / 32;
    const uint32_t byte = (uint32_t)column % 8 * 2, chunk = (uint32_t)(column / 8) << 4;
    uint32_t x[CTA_HEADS / 2], alive[WORDS], all = ~0u;
#pragma unroll
    for (int k = 0; k < WORDS; k++) all &= alive[k] = side ? a->word[WORDS + k] : a->word[k];
#pragma unroll
    for (int h = 0; h < CTA_HEADS; h += 2) {
        const int row = STACKED ? h / 16 * 32 + h % 16 : h;
        x[h / 2] = shared_load16(slice + row * 128 + (chunk ^ (h % 8) << 4) + byte) |
                   shared_load16(slice + (row + 1) * 128 + (chunk ^ (h + 1) % 8 << 4) + byte) << 16;
    }
    if (all != ~0u)
#pragma unroll
        for (int h = 0; h < CTA_HEADS; h += 2) {
            const uint32_t bits = alive[h / 32] >> h % 32;
            x[h / 2] &= (bits & 1 ? 0xffffu : 0) | (bits & 2 ? 0xffff0000u : 0);
        }
    if (STACKED)
        tc_store16(cells + CTA_HEADS / 2 * side, x);
    else
        tc_store32(cells + CTA_HEADS / 2 * side, x);
}

static __device__ __forceinline__ void run_operands(const struct kp_mla_bwd *p, const struct work *w, uint32_t base,
                                                    uint32_t tm, int rank, uint32_t nth) {
    const int quarter = warp_of() % 4, lane = lane_of(), is_dout = warp_of() >= 4;
    const uint32_t cells = tm + ((uint32_t)quarter << 21);
    const struct alive a = alive_of(p, w);
    await(base, Q_FULL, nth);
    await(base, OTHER_FULL, nth);
    tc_after();
#pragma unroll 1
    for (int chunk = 0; chunk < 2; chunk++) {
        const int column = 128 * chunk + 32 * quarter + 4 * (lane % 8) + lane / 8; /* of this CTA's half */
        const int slice = column / 64, own = rank * (HALF_V / 64) + slice;
        const uint32_t to = cells + (is_dout ? TM_OT : TM_QT) + HEAD_COLUMNS * chunk;
        /* Stacked: head 0 of dO is row 16. */
        const uint32_t heads = !is_dout  ? AT_Q
                               : STACKED ? AT_Q + 16 * 128
                                         : AT_DOUT,
                       others = !is_dout  ? AT_OTHER_Q
                                : STACKED ? AT_OTHER_Q + 16 * 128
                                          : AT_OTHER_DOUT;
        bring_heads(to, base + heads + own * Q_SLICE, column % 64, &a, rank);
        bring_heads(to, base + others + slice * Q_SLICE, column % 64, &a, 1 - rank);
    }
    if (ROPE && !is_dout) {
        if (quarter % 2 == 0) {
            const int column = rank * HALF_ROPE + 4 * (lane % 8) + lane / 8;
            bring_heads(cells + TM_ROPE, base + AT_Q + SLICES_V * Q_SLICE, column, &a, rank);
            bring_heads(cells + TM_ROPE, base + AT_OTHER_ROPE, column, &a, 1 - rank);
        } else {
            uint32_t zero[32];
#pragma unroll
            for (int c = 0; c < 32; c++) zero[c] = 0;
            tc_store32(cells + TM_ROPE, zero);
            if (!STACKED) tc_store32(cells + TM_ROPE + 32, zero);
        }
    }
    tc_wait_stores();
    tc_before();
    tell_read(base, -1, OTHER_EMPTY);
    tell_read(base, 0, CELLS_FULL);
}
#endif
