/* SPDX-License-Identifier: MIT
 * mla_fwd on Hopper: where things stand in shared memory, and the producer warpgroup. Which piece of work comes when:
 * work.h. The picture, roles and barriers stand in mla_fwd.cu. */
#ifndef ATTN_SM90_MLA_FWD_GATHER_H
#define ATTN_SM90_MLA_FWD_GATHER_H
#include "kernels/device/opaque_address.h"
#include "kernels/params/mla_sm90.h"
#include "kernels/sm90/mla_fwd/work.h"

constexpr int TYPE = CFG_DTYPE, D = CFG_DIM;
static_assert(D == 576 || D == 512, "the slices of a key row");
static_assert(KP_MLA_FWD_SM90_SHARED(D) <= 232448, "what a CTA of Hopper may have");
constexpr int SLICES = D / 64, STAGE = 9 * SLICE, HALF = 4 * SLICE;

/* Shared memory by byte offsets. */
constexpr uint32_t Q_AT = 0, KV_AT = SLICES * SLICE, PLAN_AT = KV_AT + 2 * STAGE;
constexpr uint32_t NEW_M_AT = PLAN_AT;         /* float [2 buffers][64]: m after the tile */
constexpr uint32_t GROWTH_AT = NEW_M_AT + 512; /* float [2][64] */
constexpr uint32_t GREW_AT =
    GROWTH_AT + 512;                       /* uint32_t [2][4 warps]: nonzero if a growth of the warp's rows is not 1 */
constexpr uint32_t MASK_AT = GREW_AT + 32; /* uint32_t [2][2], JOINED [2][16 queries][2]: valid slots of the tile */
constexpr uint32_t MASK = JOINED ? 128 : 8;
constexpr uint32_t SUMS_AT =
    MASK_AT + 2 * MASK; /* float [2 parities of work tiles][2 warpgroups][64][2]: sum, largest score */
constexpr uint32_t BARS_AT = SUMS_AT + 2048; /* mbarriers */
constexpr uint32_t Q_FULL = BARS_AT, Q_FREE = Q_FULL + 8, NEAR_FULL = Q_FREE + 8, FAR_FULL = NEAR_FULL + 16;
constexpr uint32_t NEAR_FREE = FAR_FULL + 16, FAR_FREE = NEAR_FREE + 16;
constexpr uint32_t MARKED_AT = FAR_FREE + 16, PLAN_END = MARKED_AT + 16; /* JOINED: a group of the CTA has a mark */
static_assert(BARS_AT % 8 == 0 && PLAN_END <= KP_MLA_FWD_SM90_SHARED(D), "the plan fits");

constexpr int MARKS_WRITTEN = 7; /* named barrier of all warps */

/* Tiles whose indices are read beforehand: they come from memory, and the copies of a tile must not wait for them. */
constexpr int AHEAD = 4;

/* The same rows from slice `first` on, a number known only when it runs. */
static __device__ __forceinline__ struct rows rows_from(const struct rows *r, int first) {
    struct rows x = *r;
#pragma unroll
    for (int k = 0; k < 4; k++) x.from[k] = hold_address(r->from[k] + first * 64);
    return x;
}

/* JOINED, one warp: bits of the tile's entries, 64 for each query, or of a query that is taken alone. */
static __device__ __forceinline__ void bring_bits(const struct kp_mla_fwd_sm90 *kp, const struct piece *x, int t,
                                                  const uint32_t mask[2], uint32_t to) {
    const int lane = (int)threadIdx.x & 31, words = 2 * kp->joined.group;
    const int32_t *from = x->s.idx + kp->joined.bits - kp->joined.keys + t * words + lane;
    to += 4 * (uint32_t)lane;
    if (lane < words) {
        if (x->cursor.alone)
            shared_store32(to, lane == 0 ? mask[0] : lane == 1 ? mask[1] : 0);
        else
            copy_async4(to, from, 4);
    }
    __syncwarp();
}

/* WIDE: rows of q and kv start at multiples of 16 bytes. A loop of its own, since one that jumps over the code for
 * other rows finds the next instructions missing in the cache, between a free buffer and its copies. */
template <int WIDE> static __device__ __forceinline__ void produce(const struct kp_mla_fwd_sm90 *kp, uint32_t shared) {
    const struct kp_mla *p = &kp->in;
    const int lane = (int)threadIdx.x & 31;
    const int wide_q = WIDE || p->q.chunk == 16, wide_kv = WIDE || p->kv.chunk == 16;
    uint32_t round[2] = {0, 0}, round_q = 0; /* tiles that each buffer has had, work tiles with tiles */
    struct piece y;
    start_pieces(&y);
    while (next_piece(kp, MARKS_WRITTEN, shared + MARKED_AT, &y)) {
        if (!y.tiles) continue;
        struct indices x[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD && !JOINED; a++) x[a] = load_indices(&y.s, tile_at(&y, a));
        struct rows r;
        if (JOINED)
            group_rows(kp, &r, &y);
        else
            head_rows(&r, &p->q, &y.w, p->heads_q);
        mbar_wait(shared + Q_FREE, (round_q & 1) ^ 1);
        copy_slices(&r, shared + Q_AT, 0, SLICES, wide_q);
        arrive_copied(shared + Q_FULL, wide_q);
        round_q++;
#pragma unroll
        for (int a = 0; a < AHEAD && JOINED; a++) x[a] = load_indices(&y.s, a); /* here: fewer registers */
#pragma unroll 1
        for (int t = 0; t < y.tiles; t++) {
            const uint32_t buffer = t & 1, to = shared + KV_AT + buffer * STAGE;
            const uint32_t parity = ((buffer ? round[1]++ : round[0]++) & 1) ^ 1;
            uint32_t mask[2];
            key_rows(&r, mask, &y.s, x[0], &p->kv, y.w.b);
#pragma unroll
            for (int a = 1; a < AHEAD; a++) x[a - 1] = x[a];
            x[AHEAD - 1] = load_indices(&y.s, tile_at(&y, t + AHEAD));
            mbar_wait(shared + NEAR_FREE + 8 * buffer, parity);
            if (JOINED && (threadIdx.x & 127) < 32) {
                bring_bits(kp, &y, t, mask, shared + MASK_AT + MASK * buffer);
                if (lane == 0) mbar_arrive(shared + NEAR_FULL + 8 * buffer);
            } else if (!JOINED && (threadIdx.x & 127) == 0) {
                shared_store32(shared + MASK_AT + MASK * buffer, mask[0]);
                shared_store32(shared + MASK_AT + MASK * buffer + 4, mask[1]);
                mbar_arrive(shared + NEAR_FULL + 8 * buffer);
            }
            const struct rows near = rows_from(&r, (int)buffer * 4), far = rows_from(&r, 4 - (int)buffer * 4);
            copy_slices(&near, to + buffer * HALF, 0, 4, wide_kv);
            arrive_copied(shared + NEAR_FULL + 8 * buffer, wide_kv);
            mbar_wait(shared + FAR_FREE + 8 * buffer, parity);
            copy_slices(&far, to + HALF - buffer * HALF, 0, 4, wide_kv);
            if (D == 576) copy_slices(&r, to, 8, 1, wide_kv);
            arrive_copied(shared + FAR_FULL + 8 * buffer, wide_kv);
        }
    }
}
#endif
