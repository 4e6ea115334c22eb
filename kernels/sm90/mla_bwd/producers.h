/* SPDX-License-Identifier: MIT
 * Part of lockstep.cu and pingpong.cu: their producers, which have 24 registers. What a tile's
 * copies need waits in shared memory; the kv rows are read from the tile's list there. */
#ifndef ATTN_SM90_MLA_BWD_PRODUCERS_H
#define ATTN_SM90_MLA_BWD_PRODUCERS_H
#include "kernels/sm90/mla_bwd/cells.h"
#include "kernels/sm90/mla_bwd/cta_pacing.h"
#include "kernels/sm90/mla_bwd/row_stats_prefetch.h"
#if CFG_DETERMINISTIC
#include "kernels/sm90/mla_bwd/stored_rows.h"
#endif

/* Warp 0: rows and mask of tile t, n % 2 = parity. The indices arrive while the last reader of their place is awaited,
 * which takes longer. SLOT_ROWS_FREE: no wait. All K_FREE of tile n - 2 have been awaited, for the copies of n - 1, and
 * each consumer warp that reads the slot rows of n - 2 had done so when it arrived there. */
constexpr int SLOT_ROWS_FREE = STORED_ROWS || ALT || JOINED;
#ifdef CFG_JOINED
static __device__ __forceinline__ void publish_slot_rows(const struct kp_mla_bwd *p, uint32_t shared, int t,
                                                         uint32_t parity) {
    t += (int)shared_load32(shared + FIRST_TILE_AT);
    const uint32_t apart = shared_load32(shared + GROUP_AT + 12);
    const struct entries x = apart ? entries_apart(p, shared, t) : joined_entries(p, shared, t);
    const uint32_t lane = (uint32_t)recompute((int)threadIdx.x) & 31;
    if (!STORED_ROWS && p->checkpoints && lane == 0) {
        if (!apart)
            pace(p, shared, t, x.lo);
        else if (t == 0)
            end_pacing(p, shared); /* lists in any order: nobody waits, nor is waited for */
    }
    const uint32_t offset = 256 * parity + 4 * lane;
    shared_store32(shared + SLOT_ROWS_AT + offset, (uint32_t)x.lo);
    shared_store32(shared + SLOT_ROWS_AT + offset + 128, (uint32_t)x.hi);
    const uint32_t query = rank_of(); /* CTAS = 2: the CTA's own alone */
    shared_store32(shared + ENTRY_BITS_AT + offset, CTAS == 2 ? x.lo_bits >> query & 1 : x.lo_bits);
    shared_store32(shared + ENTRY_BITS_AT + offset + 128, CTAS == 2 ? x.hi_bits >> query & 1 : x.hi_bits);
    if (lane == 0) shared_store32(shared + PLACE_AT + 4 * parity, x.place);
}
#else
static __device__ __forceinline__ void publish_slot_rows(const struct kp_mla_bwd *p, uint32_t shared, int t,
                                                         uint32_t parity) {
    struct indices x;
    {
        const int slot = 64 * t + (recompute((int)threadIdx.x) & 31), n = (int)shared_load32(shared + WORK_AT + 8);
        const int32_t *list = (const int32_t *)kept(shared + WORK_AT) + slot;
        x.lo = slot < n ? list[0] : -1;
        x.hi = slot + 32 < n ? list[32] : -1;
    }
    if (!STORED_ROWS && p->checkpoints && (recompute((int)threadIdx.x) & 31) == 0) pace(p, shared, t, x.lo);
    if (!SLOT_ROWS_FREE) mbar_wait(shared + K_FREE, parity ^ 1);
    const uint32_t keys = shared_load32(shared + WORK_AT + 12), lane = (uint32_t)recompute((int)threadIdx.x) & 31;
    if ((uint32_t)x.lo >= keys) x.lo = -1;
    if ((uint32_t)x.hi >= keys) x.hi = -1;
    const uint32_t slot_rows = shared + SLOT_ROWS_AT + 256 * parity + 4 * lane;
    shared_store32(slot_rows, (uint32_t)x.lo);
    shared_store32(slot_rows + 128, (uint32_t)x.hi);
    const uint32_t lo = __ballot_sync(~0u, x.lo >= 0), hi = __ballot_sync(~0u, x.hi >= 0);
    if (lane < 2) shared_store32(shared + MASK_AT + 8 * parity + 4 * lane, lane ? hi : lo);
}
#endif

/* Where the rows of a thread's copies begin, at its chunk (row 0 for slots that are not valid), and, from bit 4 on,
 * which are valid. */
struct copies {
    const uint16_t *from[PASSES];
    uint32_t valid;
};
/* Of the tile whose slot rows are in buffer `parity`. */
static __device__ __forceinline__ void find_rows(const struct kp_mla_bwd *p, uint32_t shared, struct copies *c,
                                                 uint32_t parity) {
    const uint32_t thread = (uint32_t)recompute((int)threadIdx.x) & (PRODUCERS - 1);
    const uint32_t slot_rows = shared + SLOT_ROWS_AT + 256 * parity + 4 * (thread >> 3);
    const uint16_t *kv = (const uint16_t *)kept(shared + WORK_AT + 16) + (thread & 7) * 8;
    int32_t row[PASSES];
    c->valid = 0;
#pragma unroll
    for (int k = 0; k < PASSES; k++) row[k] = (int32_t)shared_load32(slot_rows + 4 * STEP * k);
#pragma unroll
    for (int k = 0; k < PASSES; k++) {
        c->valid |= (row[k] >= 0 ? 16u : 0) << k;
        c->from[k] = kv + max(row[k], 0) * p->in.kv.row;
    }
}
/* Slices x .. x + n - 1. */
static __device__ __forceinline__ void gather_slices(uint32_t shared, const struct copies *c, uint32_t x, uint32_t n) {
    const uint32_t to = shared + K_AT + place_of() + x * SLICE;
#pragma unroll
    for (int k = 0; k < PASSES; k++)
#pragma unroll
        for (uint32_t y = 0; y < n; y++) {
            const uint32_t place = to + k * STEP * 128 + y * SLICE;
            const uint16_t *from = c->from[k] + (x + y) * 64;
            const int bytes = c->valid >> k & 16;
            if (NEAR)
                copy_async16_kept(place, from, bytes);
            else
                copy_async16(place, from, bytes);
        }
    copy_commit();
}

/* Pairs of slices, all under way at once: K has to come while dKV is formed. */
constexpr int GROUPS = (SLICES + 1) / 2;

/* The copies of all groups but the latest `pending` are there and the matrix units may see them. No fence is left to
 * the consumers, who would wait in it for their own additions to memory. */
static __device__ __forceinline__ void settle_copies(int pending) {
    copy_wait(pending);
    async_fence();
}

/* Order in which slices of Q and dO are copied. Interleaved: slice x is in places x, x + 1; place 0 is read last. */
static __device__ __forceinline__ uint32_t copied_slice(uint32_t i) {
    return !INTERLEAVED ? slice_of(i) : i < 6 ? i + 1 : i < 7 ? 7 : i == 7 ? 0 : 8;
}
static __device__ __forceinline__ void copy_head(uint32_t to, const void *from, int bytes) {
    if (PASSING)
        copy_async16_once(to, from, bytes);
    else
        copy_async16(to, from, bytes);
}
/* Starts the copies of a work tile's Q and dO, slice by slice as the last one's dKV lets go of them. Rows of heads
 * that do not exist or are empty become zeros: no NaN of theirs reaches dkv. BY_GROUPS: tells of all groups but
 * the last. */
static __device__ __forceinline__ void copy_heads(const struct kp_mla_bwd *p, uint32_t shared, uint32_t parity) {
    uint32_t alive = 0;
    {
        const int thread = recompute((int)threadIdx.x) & (PRODUCERS - 1);
        const struct kp_mla_row *states = (const struct kp_mla_row *)kept(shared + WORK_AT + 48);
        const int heads = (int)shared_load32(shared + WORK_AT + 24);
        float lse2[PASSES];
#pragma unroll
        for (int k = 0; k < PASSES; k++) {
            const int row = (thread >> 3) + STEP * k;
#ifdef CFG_JOINED
            lse2[k] = row_exists(p, row, (uint32_t)heads) ? states[row_offset(p, row, p->in.heads_q, 1)].lse2 : INF;
#else
            lse2[k] = row < heads ? states[row].lse2 : INF;
#endif
        }
#pragma unroll
        for (int k = 0; k < PASSES; k++) alive |= (lse2[k] != INF ? 16u : 0) << k;
        mbar_wait(shared + Q_FREE + 8 * copied_slice(0), parity);
        if (thread < 64) keep_state(p, shared, states, thread, heads);
    }
#pragma unroll 1
    for (uint32_t i = 0; i < SLICES; i++) {
        const uint32_t x = copied_slice(i);
        uint32_t to = INTERLEAVED ? 0 : shared + place_of() + x * Q_STEP;
        mbar_wait(shared + Q_FREE + 8 * x, parity);
        if (INTERLEAVED && x < 8) mbar_wait(shared + Q_FREE + 8 * ((x + 1) & 7), parity);
        const int thread = recompute((int)threadIdx.x) & (PRODUCERS - 1);
        if (INTERLEAVED) to = shared + place_of() + x * Q_STEP;
        if (INTERLEAVED && x < 8) { /* chunks 4 .. 7 of the next place, or 0 .. 3 of this one */
            const uint32_t mine = ((uint32_t)thread >> 2 & 1) == rank_of(), row = (uint32_t)thread >> 3;
            const uint32_t chunk = ((uint32_t)thread & 3) + 4 * mine;
            to = shared + row * 128 + (chunk ^ (row & 7)) * 16 + ((x + mine) & 7) * Q_STEP;
        }
        const uint32_t column = (uint32_t)(thread & 7) * 8 + x * 64;
#ifdef CFG_JOINED
#pragma unroll
        for (int k = 0; k < PASSES; k++) {
            const int row = (thread >> 3) + STEP * k;
            copy_head(to + Q_AT + k * STEP * 128,
                      (const uint16_t *)kept(shared + GROUP_AT + 32) + row_offset(p, row, p->in.q.row, p->in.q.head) +
                          column,
                      alive >> k & 16);
            if (x >= V_SLICES) continue;
            copy_head(to + DOUT_AT + k * STEP * 128,
                      (const uint16_t *)kept(shared + GROUP_AT + 40) + row_offset(p, row, p->dout.row, p->dout.head) +
                          column,
                      alive >> k & 16);
        }
#else
        const uint16_t *q = (const uint16_t *)kept(shared + WORK_AT + 32) + (thread >> 3) * p->in.q.head + column;
#pragma unroll
        for (int k = 0; k < PASSES; k++, q += STEP * p->in.q.head) /* 16 bytes, or none: then the address is not used */
            copy_head(to + Q_AT + k * STEP * 128, q, alive >> k & 16);
        if (x < V_SLICES) {
            const uint16_t *o = (const uint16_t *)kept(shared + WORK_AT + 40) + (thread >> 3) * p->dout.head + column;
#pragma unroll
            for (int k = 0; k < PASSES; k++, o += STEP * p->dout.head)
                copy_head(to + DOUT_AT + k * STEP * 128, o, alive >> k & 16);
        }
#endif
        if (!BY_GROUPS || (i % 2 == 0 && i < 8)) continue;
        copy_commit();
        if (i == 1) continue;
        settle_copies(1); /* a group is signalled when copies of the next are issued */
        mbar_arrive(shared + K_FULL + 8 * (i / 2 - 1));
        if (i == 3) mbar_arrive(shared + Q_FULL);
    }
}

/* Group g is there, all but the latest `pending` being so. Pairs that store rows, those of the
 * third schedule and NEAR: signalled while copies of IN_FLIGHT later groups are under way; others have more stores or
 * additions to memory under way, and waiting would hold them up. */
constexpr int IN_FLIGHT = SUMMED || INTERLEAVED || NEAR ? 2 : 0;
static __device__ __forceinline__ void tell_group(uint32_t shared, int g, int pending) {
    settle_copies(pending);
    mbar_arrive(shared + K_FULL + 8 * (uint32_t)g);
}

/* For dist. One thread, when nobody reads the place of the tile before the last any more: where the sums of P' of this
 * tile will go. */
static __device__ __forceinline__ void publish_dist_dst(const struct kp_mla_bwd *p, uint32_t shared, uint32_t state) {
    const uint32_t place = shared + DIST_AT + 8 * (state & 1);
    uint64_t to = kept(shared + DIST_AT + 8 * (state & 1 ^ 1)) + 256;
    if (state < 4) {
        const count index = work_tile_index(p, shared_load32(shared + WORK_AT + 56));
        const struct work_tile w = work_of(p, index);
        to = dist_of(p, index, &w);
    }
    shared_store32(place, (uint32_t)to);
    shared_store32(place + 4, (uint32_t)(to >> 32));
}
/* The last two warps: sums of P' of the tile before the one of parity `parity`, when its K_FREE is complete. */
static __device__ __forceinline__ void store_dist(uint32_t shared, uint32_t parity) {
    const uint32_t warp = (uint32_t)warp_of(), before = parity ^ 1;
    const uint64_t to = kept(shared + DIST_AT + 8 * before);
    if (warp < 2 || !to) return;
    store_sums(shared, warp - 2, shared_load32(shared + MASK_AT + 8 * before + 4 * (warp - 2)), to);
}

/* The warpgroup of producers, but where pairs of CTAs share rows: Q and dO of each work tile, K of each key tile. */
static __device__ __forceinline__ void produce_tiles(const struct kp_mla_bwd *p, uint32_t shared) {
    if (!STORED_ROWS && (threadIdx.x & (PRODUCERS - 1)) == 0) begin_pacing(shared);
    if (DIST_BY_PRODUCERS && (threadIdx.x & (PRODUCERS - 1)) == 0) keep4(shared + DIST_AT, 0, 0);
    uint32_t state = 0; /* bit 0: parity of tiles, bit 1: of work tiles with slots; the rest: the tile */
    for (uint32_t work = 0; has_work(p, work); work = shared_load32(shared + WORK_AT + 56) + 1) {
        keep_work(p, work, shared, [=] {
            if (AHEAD && (recompute((int)threadIdx.x) & (PRODUCERS - 1)) == 32) keep_next(p, work + 1, shared);
        });
#pragma unroll 1
        for (state &= 3; 16 * (int)(state & ~3u) < (int)shared_load32(shared + WORK_AT + 8); state = (state ^ 1) + 4) {
            if ((recompute((int)threadIdx.x) & 127) < 32)
                publish_slot_rows(p, shared, (int)(state >> 2), state & 1);
            else if (!SLOT_ROWS_FREE)
                mbar_wait(shared + K_FREE, (state & 1) ^ 1);
            named_sync(4, PRODUCERS);
            if (DIST_BY_PRODUCERS && p->part_dist && (recompute((int)threadIdx.x) & 127) == 32)
                publish_dist_dst(p, shared, state);
            struct copies c;
            find_rows(p, shared, &c, state & 1);
#pragma unroll
            for (uint32_t i = 0; i < 8; i += 2) {
                const uint32_t x = slice_of(i);
                mbar_wait(shared + K_FREE + 4 * x, (state & 1) ^ 1); /* of slices x, x + 1 */
                if (AHEAD && !FREES_DS && SLICES == 8 && i == 6 && state >= 4) copy_ahead(p, shared);
                gather_slices(shared, &c, x, 2);
                if (IN_FLIGHT && i >= 2 * IN_FLIGHT && state >= 4)
                    tell_group(shared, (int)i / 2 - IN_FLIGHT, IN_FLIGHT + (AHEAD && SLICES == 8 && i == 6));
            }
            if (AHEAD && !FREES_DS && SLICES > 8 && state >= 4) copy_ahead(p, shared);
            if (SLICES > 8) gather_slices(shared, &c, 8, 1);
            if (FREES_DS && state >= 4) copy_ahead(p, shared);
            if (PREFETCH_FIRST) mbar_arrive(shared + K_PREFETCHED);
            if (DIST_BY_PRODUCERS && p->part_dist) store_dist(shared, state & 1);
            if (state < 4) { /* the first tile needs all of it */
                copy_heads(p, shared, (state >> 1) ^ 1);
                if (!BY_GROUPS) copy_commit();
                settle_copies(0);
#pragma unroll
                for (int g = BY_GROUPS ? GROUPS - 1 : 0; g < GROUPS; g++) mbar_arrive(shared + K_FULL + 8 * g);
                if (!BY_GROUPS) mbar_arrive(shared + Q_FULL);
                if (FREES_DS) free_ahead(shared);
#if CFG_DETERMINISTIC
                if (ALT) publish_max_magnitudes(shared);
#endif
                state ^= 2;
                continue;
            }
            float ahead = 0;
#pragma unroll
            for (int g = IN_FLIGHT ? 4 - IN_FLIGHT : 0; g < GROUPS; g++) {
                const int is_last = g == GROUPS - 1;
                if (AHEAD && !FREES_DS && is_last) {
                    copy_wait(1);
                    ahead = add_ahead(shared);
                }
                tell_group(shared, g, GROUPS - 1 - g + (FREES_DS || (AHEAD && !is_last)));
            }
            if (FREES_DS) {
                copy_wait(0);
                ahead = add_ahead(shared);
                free_ahead(shared);
            }
            if (AHEAD) end_ahead(p, shared, ahead);
        }
        if (AHEAD) form_rest(p, shared);
    }
    if (PREFETCH_FIRST) { /* there is no next tile; not before everyone has seen the one before */
        for (uint32_t x = 0; x < 4; x++) mbar_wait(shared + K_FREE + 8 * x, (state & 1) ^ 1);
        mbar_arrive(shared + K_PREFETCHED);
    }
    if (DIST_BY_PRODUCERS && p->part_dist) {
        mbar_wait(shared + K_FREE, (state & 1) ^ 1);
        store_dist(shared, state & 1);
    }
    if (!STORED_ROWS && p->checkpoints && (threadIdx.x & (PRODUCERS - 1)) == 0) end_pacing(p, shared);
}
#endif
