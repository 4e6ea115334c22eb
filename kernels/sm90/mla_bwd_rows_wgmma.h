/* SPDX-License-Identifier: MIT
 * Part of mla_bwd_even_wgmma.cu, deterministic: how 64 slots x 32 columns of dkv are stored, each slot for itself, as
 * the blocks of kernels/device/pack15.h; mla_bwd_rows.cu adds them to the rows that they name. Block 4 h + t of a slot
 * is what lane t of a quad holds of columns 32 h .. 32 h + 31: 8 j + 2 t + e is its number 2 j + e. */
#ifndef ATTN_SM90_MLA_BWD_ROWS_WGMMA_H
#define ATTN_SM90_MLA_BWD_ROWS_WGMMA_H
#include "kernels/device/pack15.h"
#include "kernels/sm90/mla_bwd_cells_wgmma.h"
#include "kernels/sm90/mla_bwd_dkv_wgmma.h"

/* ---- how large a tile's sums can be: tiles of whole slots and usual sizes have code of their own, without questions
 * --
 *
 * The largest |Q|, |dO| of the item and |P|, |dS| of the tile, each of a warp's part, stand in the place of the
 * mbarriers that only pairs have. As integers, so that NaN is above infinity, and that above all numbers. */
static __device__ __forceinline__ uint32_t most_at(uint32_t shared, uint32_t k) { return shared + STAGE_OPEN + 4 * k; }
static_assert(STAGE_OPEN + 4 * 24 <= POSTS_AT, "24 words");
/* The larger of x and the magnitudes of two numbers of 16 bits, which stand in the high half. */
static __device__ __forceinline__ uint32_t most_of(uint32_t x, uint32_t pair) {
    return max(x, max(pair & 0x7fff0000, pair << 16 & 0x7fff0000));
}

/* A thread's largest |P| and |dS|. */
struct most {
    uint32_t p, s;
};
static __device__ __forceinline__ struct most most_of_cells(uint32_t shared, const float prob[16],
                                                            const uint32_t ds[8]) {
    if (CTAS == 2) return {};
    float p = prob[0];
    uint32_t s = 0;
#pragma unroll
    for (int x = 1; x < 16; x++) p = max_nan(p, prob[x]);
    p *= max_nan(__uint_as_float(state_of(shared, 0).y), __uint_as_float(state_of(shared, 1).y));
#pragma unroll
    for (int x = 0; x < 8; x++) s = most_of(s, ds[x]);
    return {__float_as_uint(p) & 0x7fffffff, s};
}

/* Between barriers 5 and 6: nobody reads the last tile's any more. */
template <int W> static __device__ __forceinline__ void note_most(uint32_t shared, struct most x, int first) {
    if (CTAS == 2) return;
    const uint32_t to = most_at(shared, 4 * W + (uint32_t)warp_of()), lane = (uint32_t)lane_of();
    const uint32_t p = __reduce_max_sync(~0u, x.p);
    uint32_t s = __reduce_max_sync(~0u, x.s);
    if (lane == 0) {
        shared_store32(to + 4 * 8, p);
        shared_store32(to + 4 * 16, s);
    }
    if (!first) return;
    const uint32_t from = shared + (W ? DOUT_AT : Q_AT) + 16 * ((uint32_t)recompute((int)threadIdx.x) & 127);
    s = 0;
#pragma unroll 4
    for (uint32_t i = 0; i < 4 * (W ? V_SLICES : SLICES); i++) {
        const uint4 y = shared_load128(from + 2048 * i);
        s = most_of(most_of(most_of(most_of(s, y.x), y.y), y.z), y.w);
    }
    s = __reduce_max_sync(~0u, s);
    if (lane == 0) shared_store32(to, s);
}
static __device__ __forceinline__ float number_of_most(uint32_t x) { return unpack16(TYPE, x >> 16); }
/* Whether all sums over 64 heads are surely below 2^31; the rounding of P to 16 bits does not reach 2^32. */
static __device__ __forceinline__ int are_usual(uint32_t shared) {
    const uint32_t lane = (uint32_t)lane_of(), x = shared_load32(most_at(shared, min(lane, 23u)));
    const uint32_t q = __reduce_max_sync(~0u, lane < 4 ? x : 0), o = __reduce_max_sync(~0u, lane >> 2 == 1 ? x : 0);
    const uint32_t p = __reduce_max_sync(~0u, lane >> 3 == 1 ? x : 0), s = __reduce_max_sync(~0u, lane >= 16 ? x : 0);
    return 64 * (__uint_as_float(p) * number_of_most(o) + number_of_most(s) * number_of_most(q)) < 2147483648.0f;
}

/* ---- where to, and what ---- */

/* Where a lane stores what it has of slot g of its warp; slot g + 8 follows 16 D bytes further. */
struct places {
    uint64_t at; /* and bit r: slot g + 8 r is not valid */
    int plain;   /* all 64 are valid, and nothing is asked about sizes */
};
/* sums: where the item's rows begin is kept; tile: of the item; note: the place of its notes; half: of a slice, that
 * this CTA stores. A pair cannot tell how large the other CTA's sums are. */
static __device__ __forceinline__ void find_places(const struct kp_mla_bwd *p, struct places *to, uint32_t shared,
                                                   uint32_t sums, int tile, uint32_t note, uint32_t half) {
    const uint32_t thread = (uint32_t)recompute((int)threadIdx.x), slot = 16 * (thread >> 5 & 3) + (thread >> 2 & 7);
    const uint32_t notes = shared + NOTE_AT + 256 * note + 4 * slot, mask = shared + MASK_AT + 8 * note;
    to->at = address_of(kept(sums) + 64 * half + 16 * (thread & 3), 64 * (uint32_t)tile + slot, 2 * D);
    const int a = (int)shared_load32(notes), b = (int)shared_load32(notes + 32);
    to->at |= p->dkv.data ? (uint32_t)(a < 0) | (uint32_t)(b < 0) << 1 : 3;
    to->plain = CTAS == 1 && p->dkv.data && (shared_load32(mask) & shared_load32(mask + 4)) == ~0u && are_usual(shared);
}

/* Lane 4 g + t has d[4 j + 2 r + e]: slot g + 8 r, column 8 j + 2 t + e. */
static __device__ __forceinline__ uint32_t exponent_of(const float d[16], int r) {
    float most = max_nan(fabsf(d[2 * r]), fabsf(d[2 * r + 1]));
#pragma unroll
    for (int j = 1; j < 4; j++) most = max_nan(max_nan(fabsf(d[4 * j + 2 * r]), most), fabsf(d[4 * j + 2 * r + 1]));
    return pack15_exponent(most);
}
/* PLAIN: to->plain. */
template <int PLAIN>
static __device__ __forceinline__ void add_places(const float d[16], const struct places *to, uint32_t column) {
    const uint32_t exponent[2] = {exponent_of(d, 0), exponent_of(d, 1)};
    char *at = (char *)(PLAIN ? to->at : to->at & ~(uint64_t)3) + 2 * column;
    uint32_t word[4];
    if (PLAIN || __all_sync(~0u, !(to->at & 3) && pack15_usual(max(exponent[0], exponent[1])))) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
#pragma unroll
            for (int j = 0; j < 4; j++) word[j] = pack15_word(d[4 * j + 2 * r], d[4 * j + 2 * r + 1], exponent[r], j);
            store_once4(at + r * 16 * D, word);
        }
    } else {
#pragma unroll
        for (int r = 0; r < 2; r++) {
#pragma unroll
            for (int j = 0; j < 4; j++)
                word[j] = pack15_word_any(d[4 * j + 2 * r], d[4 * j + 2 * r + 1], exponent[r], j);
            store_once4(at + r * 16 * D, word, ~(uint32_t)to->at >> r & 1);
        }
    }
}
#endif
