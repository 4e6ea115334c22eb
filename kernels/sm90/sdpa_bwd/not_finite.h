/* SPDX-License-Identifier: MIT
 * Part of sdpa_bwd.cu and sdpa_bwd_pair.cu: rows and keys that hold infinities or NaN, or that lie past the end of
 * their sequence. All compute warpgroups work on them together. Ordinary data takes none of these paths.
 *
 *   keys of infinities or NaN   noted and zeroed once: dS = 0 times them is no 0. A row that sees one has lse = NaN by
 *                               itself, or the score was -inf
 *   keys past the end           zeroed
 *   rows whose lse is not finite, or past the end   Q and dO zeroed when they arrive; of empty ones dS, too, since V
 *                               may hold a NaN
 *   rows of which only dO is not finite   dO zeroed, its product with P added to dV by hand (add_bad_dout)
 *   infinities in q or k with softcap     sdpa_bwd_infinite.h */
#ifndef ATTN_SM90_SDPA_BWD_NOT_FINITE_H
#define ATTN_SM90_SDPA_BWD_NOT_FINITE_H
#include "kernels/sm90/sdpa_bwd/work.h"
/* It reads the constants of work.h. */
#include "kernels/device/sdpa_bwd_bad_keys.h"

/* Keys of the tile that exist, counted from its key `first`. */
static __device__ __forceinline__ int keys_from(uint32_t shared, int first) {
    return (int)shared_load32(shared + KEPT + 36) - (int)shared_load32(shared + KEPT + 8) * KEYS - first;
}

/* Has a row of the stage an lse, or a shift, that is not finite, or does it lie past the end where the tensors go on?
 * The same for all warps. */
enum { STAT_LSE, STAT_SHIFT };
static __device__ __forceinline__ int has_special_stat(const struct kp_sdpa_bwd *p, uint32_t stats, int kind) {
    const float end = kind == STAT_LSE && (p->in.cu_seqlens_q || p->in.seqlens_q) ? PAST_END : INF;
    const int lane = (int)threadIdx.x % 32;
    int special = 0;
#pragma unroll
    for (int r = 0; r < ROWS; r += 32)
        special |= !(fabsf(__uint_as_float(shared_load32(stats + 4 * (kind * ROWS + r + lane)))) < end);
    return __any_sync(~0u, special);
}
static __device__ __forceinline__ int has_special_rows(const struct kp_sdpa_bwd *p, uint32_t stats) {
    const float end = p->in.cu_seqlens_q || p->in.seqlens_q ? PAST_END : INF;
    const int lane = (int)threadIdx.x % 32;
    int special = 0;
#pragma unroll
    for (int r = 0; r < ROWS; r += 32) {
        const float lse = __uint_as_float(shared_load32(stats + 4 * (r + lane))),
                    shift = __uint_as_float(shared_load32(stats + 4 * (ROWS + r + lane)));
        special |= !(fabsf(lse) < end && fabsf(shift) < INF);
        if (SCORE_MOD) special |= is_marked(shift);
    }
    return __any_sync(~0u, special);
}

/* Where the rows of a step are: Q, dO by half of its columns, which lie apart where it arrives so. */
struct rows {
    uint32_t q, dout[2];
};
static __device__ __forceinline__ uint32_t dout_chunk(const struct rows *tile, int r, int c) {
    if (!SPLIT) return chunk_of(tile->dout[0], Q_SLICE, r, c);
    return chunk_of(c >= DIM_V / 16 ? tile->dout[1] : tile->dout[0], Q_SLICE, r, c % (DIM_V / 16));
}

/* Zero Q and dO of rows that are empty, of NaN or past the end; zero and note dO of other rows where it is not finite.
 * Returns DOUT_BAD where any was noted, else CLEANED. */
enum { CLEANED = 1, DOUT_BAD = 2 };
static __device__ __forceinline__ int clean_rows(const struct rows *tile, uint32_t stats, uint32_t notes) {
    named_sync(MAIN, MAIN_THREADS); /* the notes of an earlier step have been read */
    if (threadIdx.x < ROWS / 32) shared_store32(notes + 4 * threadIdx.x, 0);
    named_sync(MAIN, MAIN_THREADS);
#pragma unroll 1
    for (int x = (int)threadIdx.x; x < ROWS * (DIM_V / 8); x += MAIN_THREADS) {
        const int r = x / (DIM_V / 8), c = x % (DIM_V / 8);
        const float lse = __uint_as_float(shared_load32(stats + 4 * r));
        const uint32_t dout = dout_chunk(tile, r, c);
        if (fabsf(lse) < PAST_END) {
            if (chunk_bad(dout)) shared_or32(notes + 4 * (r >> 5), 1u << (r & 31));
#if CFG_SCORE_MOD
            if (is_marked(__uint_as_float(shared_load32(stats + 4 * (ROWS + r))))) {
                const uint32_t q = chunk_of(tile->q, Q_SLICE, r, c);
                shared_store128(q, stand_in128(shared_load128(q)));
                shared_or32(notes - BAD_DOUT + ANY_MARKED, 1);
            }
#endif
            continue;
        }
        shared_store128(dout, make_uint4(0, 0, 0, 0));
        if (!PAIR) shared_store128(chunk_of(tile->q, Q_SLICE, r, c), make_uint4(0, 0, 0, 0));
    }
    named_sync(MAIN, MAIN_THREADS);
    uint32_t any = 0;
#pragma unroll
    for (int x = 0; x < ROWS / 32; x++) any |= shared_load32(notes + 4 * x);
#pragma unroll 1
    for (int x = (int)threadIdx.x; x < ROWS * (DIM_V / 8); x += MAIN_THREADS) {
        const int r = x / (DIM_V / 8);
        if (any && shared_load32(notes + 4 * (r >> 5)) >> (r & 31) & 1)
            shared_store128(dout_chunk(tile, r, x % (DIM_V / 8)), make_uint4(0, 0, 0, 0));
    }
    async_fence();
    named_sync(MAIN, MAIN_THREADS);
    return any ? DOUT_BAD : CLEANED;
}
/* Of a pair Q is cleaned by itself: it is there a step before dO. */
static __device__ __forceinline__ void clean_q(uint32_t q, uint32_t stats) {
#pragma unroll 1
    for (int x = (int)threadIdx.x; x < ROWS * (DIM / 8); x += MAIN_THREADS) {
        const int r = x / (DIM / 8);
        if (!(fabsf(__uint_as_float(shared_load32(stats + 4 * r))) < PAST_END))
            shared_store128(chunk_of(q, Q_SLICE, r, x % (DIM / 8)), make_uint4(0, 0, 0, 0));
    }
    async_fence();
    named_sync(MAIN, MAIN_THREADS);
}

/* dV += P^T dO of the noted rows, read from memory, where P is not 0: there the key is visible. `p_of` gives P of a
 * query and of the thread's key h. */
template <class P_OF>
static __device__ __forceinline__ void add_bad_dout(const struct kp_sdpa_bwd *p, const struct work *w, int head, int i0,
                                                    uint32_t notes, float dv[N_GRAD_V], P_OF p_of) {
    const int lane = (int)threadIdx.x % 32;
#pragma unroll 1
    for (int q = 0; q < ROWS; q++) {
        if (!(shared_load32(notes + 4 * (q >> 5)) >> (q & 31) & 1)) continue;
        const uint16_t *row = (const uint16_t *)p->dout.data + w->b * p->dout.batch + head * p->dout.head +
                              (w->seq.q0 + i0 + q) * p->dout.row;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float y = unpack16(TYPE, p_of(q, h));
            if (y == 0) continue;
#pragma unroll
            for (int n = 0; n < DIM_V / 8; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int c = 8 * n + 2 * (lane & 3) + e;
                    if (c < p->in.dim_v) dv[4 * n + 2 * h + e] += y * unpack16(TYPE, row[c]);
                }
        }
    }
}
#endif
