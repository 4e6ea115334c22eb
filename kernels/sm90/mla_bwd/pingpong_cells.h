/* SPDX-License-Identifier: MIT
 * Part of pingpong.cu: a tile's S^T and dP^T, and P^T and dS^T of them, by the one warpgroup that owns the
 * tile. Rows of its sums are slots, so that P^T and dS^T, rounded where they stand, are the operands A of dKV; dS goes
 * to shared memory once, from which both warpgroups load it transposed as the operand A of dQ. */
#ifndef ATTN_SM90_MLA_BWD_PINGPONG_CELLS_H
#define ATTN_SM90_MLA_BWD_PINGPONG_CELLS_H
#include "kernels/device/stmatrix.h"
#include "kernels/sm90/mla_bwd/dkv.h"

/* The i-th slice of K is there, and of the work tile's first tile Q and dO. */
static __device__ __forceinline__ void wait_slice(uint32_t shared, uint32_t i, uint32_t parity, int first) {
    if (i == 0 && first) mbar_wait(shared + Q_FULL, parity >> 1);
    if (group_of(i) >= 0) mbar_wait(shared + K_FULL + 8 * group_of(i), parity & 1);
}

/* The states of a lane's two heads of eight are loaded a step ahead, the first under S's last products; rows that are
 * stored have the registers for it when eight of y are done with (NEAR). */
constexpr int STATES_AHEAD = !STORED_ROWS, AHEAD_FROM = STATES_AHEAD ? 7 : NEAR ? 6 : 0;
static __device__ __forceinline__ void load_last_states(uint32_t shared, uint4 state[2]) {
    const uint32_t address = shared + STATE_AT + 32 * ((uint32_t)lane_of() & 3) + 128 * 7;
    state[0] = shared_load128(address);
    state[1] = shared_load128(address + 16);
}
/* y = S^T (0..31) and dP^T (32..63) of 64 slots x 64 heads. A slice of Q and the one of dO after it are one operand B
 * of 128 rows; slice 8 belongs to S^T alone, and a product of another shape waits for those before it. STATES_AHEAD:
 * last_states, of the last eight heads. */
static __device__ __forceinline__ void score_both(uint32_t shared, float y[64], uint32_t parity, int first,
                                                  uint4 last_states[2]) {
    const uint64_t k = slice_desc(shared + K_AT, 0), q = slice_desc(shared + Q_AT, 0);
    /* asked anew: descriptors that depend on it are not to be kept over the work tile */
    const uint32_t rank = INTERLEAVED ? rank_of() : 0;
    wgmma_hold(y, 64);
#pragma unroll
    for (uint32_t i = 0; i < V_SLICES; i++) {
        const uint32_t x = slice_of(i);
        wait_slice(shared, i, parity, first);
        wgmma_fence();
#pragma unroll
        for (uint32_t kk = 0; kk < 4; kk++) {
            /* interleaved: first the half that stands in place x, then the other, in the next */
            const uint32_t half = INTERLEAVED ? (kk >> 1) ^ rank ^ 1 : kk >> 1,
                           place = INTERLEAVED ? (x + (kk >> 1)) & 7 : x;
            wgmma_ss_n128<TYPE, 0, 0>(y, desc_move(k, x * SLICE + half * 64 + (kk & 1) * 32),
                                      desc_move(q, place * Q_STEP + kk * 32), i + kk > 0);
        }
        wgmma_commit();
    }
    if (STATES_AHEAD && SLICES == 8) load_last_states(shared, last_states);
    wgmma_wait(0);
    wgmma_hold(y, 64);
    if (SLICES == 8) return;
    wait_slice(shared, 8, parity, first);
    wgmma_fence();
#pragma unroll
    for (uint32_t kk = 0; kk < 4; kk++)
        wgmma_ss_n64<TYPE, 0, 0>(y, desc_move(k, 8 * SLICE + kk * 32), desc_move(q, 8 * Q_STEP + kk * 32), 1);
    wgmma_commit();
    if (STATES_AHEAD) load_last_states(shared, last_states);
    wgmma_wait(0);
    wgmma_hold(y, 32);
}

/* Which of the slots g, g + 8 of the warp are valid: bits 0 and 8. */
static __device__ __forceinline__ uint32_t valid_slots(uint32_t shared, uint32_t buf) {
    const uint32_t warp = (uint32_t)warp_of();
    return shared_load32(shared + MASK_AT + 8 * buf + 4 * (warp >> 1)) >>
           (16 * (warp & 1) + ((uint32_t)lane_of() >> 2));
}

/* Where a lane's 16 bytes of the warp's slots are: rows of slots, 64 heads each; those of the kk-th 16 heads, ^ kk
 * << 5. */
static __device__ __forceinline__ uint32_t own_rows(uint32_t place) {
    const uint32_t lane = (uint32_t)lane_of(), row = lane & 15;
    return place + (16 * (uint32_t)warp_of() + row) * 128 + (((lane >> 4) ^ (row & 7)) << 4);
}
/* dS^T is stored as it is formed, and so is, there, what is kept of P^T: ptxas would else round it at its first use
 * only, of which pairs over joined lists have two, and keep twice as many registers. */
constexpr int DS_EARLY = STORED_ROWS || (JOINED && CTAS == 2);
/* From y, probs and ds: registers 2 j + r hold heads 8 j + 2 t, + 1 of slot g + 8 r. dist[r]: the lane's part of its
 * slots' sums of P'. A slot that is not valid and an empty row have P' = 0. Rows that are stored: P^T goes to P_AT and
 * dS^T to DS_AT, 16 heads at a time, since there are no registers to look for their maxima before dQ is under way.
 * Pairs have no place for P^T and keep it; they store it where dS^T follows, or else ptxas would round it at its first
 * use only and keep twice as many registers. */
static __device__ __forceinline__ void form_cells(uint32_t shared, const struct kp_mla_bwd *p, const float y[64],
                                                  uint32_t valid, struct tile *to, float dist[2],
                                                  const uint4 last_states[2]) {
    const uint32_t states = shared + STATE_AT + 32 * ((uint32_t)lane_of() & 3);
    uint4 now[2];
    if (STATES_AHEAD) now[0] = last_states[0], now[1] = last_states[1];
    const float unit = p->in.scale;
    const bool on[2] = {(valid & 1) != 0, (valid & 256) != 0};
    dist[0] = dist[1] = 0;
#pragma unroll
    for (int j = 7; j >= 0; j--) { /* upwards some registers spill */
        float prob[2][2], ds[2][2];
        uint4 next[2];
        if (j <= AHEAD_FROM && j) {
            next[0] = shared_load128(states + 128 * (uint32_t)(j - 1));
            next[1] = shared_load128(states + 128 * (uint32_t)(j - 1) + 16);
        }
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const uint4 state =
                STATES_AHEAD || j < AHEAD_FROM ? now[e] : shared_load128(states + (uint32_t)(128 * j + 16 * e));
            const float lse2 = __uint_as_float(state.x), g = __uint_as_float(state.y);
            const float gs = SCALED_STATES ? __uint_as_float(state.w) : g * unit;
            const float shift = SCALED_STATES ? __uint_as_float(state.z) : __uint_as_float(state.z) * unit;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float x = exp2_fast(__fmaf_rn(y[4 * j + 2 * r + e], p->in.scale_log2, -lse2));
                x = on[r] && lse2 != INF ? x : 0;
                dist[r] += x;
                prob[r][e] = x * g;
                ds[r][e] = x == 0 ? 0 : x * __fmaf_rn(gs, y[32 + 4 * j + 2 * r + e], -shift);
            }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            to->probs[2 * j + r] = pack16(TYPE, prob[r][0], prob[r][1]);
            to->ds[2 * j + r] = pack16(TYPE, ds[r][0], ds[r][1]);
        }
        if (DS_EARLY && j % 2 == 0) {
            const uint32_t address = own_rows(shared + DS_AT) ^ (uint32_t)j / 2 << 5;
            store_matrix4(CTAS == 2 ? address : address - SLICE, to->probs + 2 * j);
            store_matrix4(address, to->ds + 2 * j);
        }
        if (j <= AHEAD_FROM && j) now[0] = next[0], now[1] = next[1];
    }
}

/* dS^T of the warp's slots to DS_AT. */
static __device__ __forceinline__ void publish_ds(uint32_t shared, const uint32_t ds[16], uint32_t parity) {
    if (FREES_DS) mbar_wait(shared + DS_FREE, parity & 1);
    const uint32_t address = own_rows(shared + DS_AT);
#pragma unroll
    for (uint32_t kk = 0; kk < 4 && !DS_EARLY; kk++) store_matrix4(address ^ (kk << 5), ds + 4 * kk);
    __syncwarp();
    if (lane_of() == 0) mbar_arrive(shared + DS_FULL);
}

/* P^T and dS^T of the warp's slots, from where form_cells has left them. */
static __device__ __forceinline__ void load_own(uint32_t shared, struct tile *to) {
    const uint32_t address = own_rows(shared + P_AT);
#pragma unroll
    for (uint32_t kk = 0; kk < 4; kk++) {
        if (CTAS == 1) load_matrix4(to->probs + 4 * kk, address ^ (kk << 5));
        load_matrix4(to->ds + 4 * kk, (address ^ (kk << 5)) + SLICE);
    }
}

/* The sums for dist of the warp's slots, of all 64 heads, to memory. Slots that are not valid have none. */
static __device__ __forceinline__ void leave_dist(const float dist[2], uint32_t valid, uint64_t to) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float x = dist[r] + __shfl_xor_sync(~0u, dist[r], 1);
        x += __shfl_xor_sync(~0u, x, 2);
        if ((lane_of() & 3) == 0 && (valid >> (8 * r) & 1))
            ((float *)to)[16 * warp_of() + (lane_of() >> 2) + 8 * r] = x;
    }
}
#endif
