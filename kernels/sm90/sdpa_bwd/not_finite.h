/* SPDX-License-Identifier: MIT
 * Part of sdpa_bwd.cu: rows and keys that hold infinities or NaN, or that lie past the end of their sequence. All
 * compute warpgroups work on them together. Ordinary data takes none of these paths.
 *
 *   keys of infinities or NaN   noted and zeroed once: dS = 0 times them is no 0. A row that sees one has lse = NaN by
 *                               itself, or the score was -inf
 *   keys past the end           zeroed
 *   rows whose lse is not finite, or past the end   Q and dO zeroed when they arrive; of empty ones dS, too, since V
 *                               may hold a NaN
 *   rows of which only dO is not finite   dO zeroed, its product with P added to dV by hand (add_bad_dout) */
#ifndef ATTN_SM90_SDPA_BWD_NOT_FINITE_H
#define ATTN_SM90_SDPA_BWD_NOT_FINITE_H
#include "kernels/sm90/sdpa_bwd/work.h"
/* It reads the constants of work.h. */
#include "kernels/device/sdpa_bwd_bad_keys.h"

/* Does a row of the stage have statistics that are not finite, or lie past the end where the tensors go on? The same
 * for all warps. */
static __device__ __forceinline__ int has_special_rows(const struct kp_sdpa_bwd *p, uint32_t stats) {
    const float end = p->in.cu_seqlens_q || p->in.seqlens_q ? PAST_END : INF;
    const int lane = (int)threadIdx.x % 32;
    int special = 0;
#pragma unroll
    for (int r = 0; r < ROWS; r += 32) {
        const float lse = __uint_as_float(shared_load32(stats + 4 * (r + lane))),
                    shift = __uint_as_float(shared_load32(stats + 4 * (ROWS + r + lane)));
        special |= !(fabsf(lse) < end && fabsf(shift) < INF);
    }
    return __any_sync(~0u, special);
}

/* Zero Q and dO of rows that are empty, of NaN or past the end; zero and note dO of other rows where it is not finite.
 * Returns DOUT_BAD where any was noted, else CLEANED. */
enum { CLEANED = 1, DOUT_BAD = 2 };
static __device__ __forceinline__ int clean_rows(uint32_t shared, uint32_t q, uint32_t stats) {
    const uint32_t notes = shared + BAD_DOUT;
    named_sync(MAIN, MAIN_THREADS); /* the notes of an earlier step have been read */
    if (threadIdx.x < 2) shared_store32(notes + 4 * threadIdx.x, 0);
    named_sync(MAIN, MAIN_THREADS);
#pragma unroll 1
    for (int x = (int)threadIdx.x; x < ROWS * (DIM / 8); x += MAIN_THREADS) {
        const int r = x / (DIM / 8), c = x % (DIM / 8);
        const float lse = __uint_as_float(shared_load32(stats + 4 * r));
        const uint32_t dout = chunk_of(q + Q_BYTES, Q_SLICE, r, c);
        if (fabsf(lse) < PAST_END) {
            if (chunk_bad(dout)) shared_or32(notes + 4 * (r >> 5), 1u << (r & 31));
            continue;
        }
        shared_store128(dout, make_uint4(0, 0, 0, 0));
        shared_store128(chunk_of(q, Q_SLICE, r, c), make_uint4(0, 0, 0, 0));
    }
    named_sync(MAIN, MAIN_THREADS);
    const uint2 bad = shared_load32x2(notes);
#pragma unroll 1
    for (int x = (int)threadIdx.x; x < ROWS * (DIM / 8); x += MAIN_THREADS) {
        const int r = x / (DIM / 8);
        if ((r < 32 ? bad.x : bad.y) >> (r & 31) & 1)
            shared_store128(chunk_of(q + Q_BYTES, Q_SLICE, r, x % (DIM / 8)), make_uint4(0, 0, 0, 0));
    }
    async_fence();
    named_sync(MAIN, MAIN_THREADS);
    return bad.x | bad.y ? DOUT_BAD : CLEANED;
}

/* dV += P^T dO of the noted rows, read from memory, where P is not 0: there the key is visible. */
static __device__ __forceinline__ void add_bad_dout(const struct kp_sdpa_bwd *p, uint32_t shared, int stage,
                                                    const uint32_t pr[N_PACKED], float dv[N_GRAD]) {
    const struct work w = recall_work(shared);
    const struct place place = recall_place(shared, stage);
    const int lane = (int)threadIdx.x % 32;
#pragma unroll 1
    for (int q = 0; q < ROWS; q++) {
        if (!(shared_load32(shared + BAD_DOUT + 4 * (q >> 5)) >> (q & 31) & 1)) continue;
        const uint16_t *row = (const uint16_t *)p->dout.data + w.b * p->dout.batch + place.head * p->dout.head +
                              (w.seq.q0 + place.i0 + q) * p->dout.row;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t pair = 0; /* of the quad's lane that holds query q; a choice would index memory */
#pragma unroll
            for (int n = 0; n < ROWS / 8; n++) pair |= pr[2 * n + h] & (0u - (uint32_t)(n == q >> 3));
            pair = __shfl_sync(~0u, pair, (lane & ~3) | (q >> 1 & 3));
            const float y = unpack16(TYPE, q & 1 ? pair >> 16 : pair & 0xffff);
            if (y == 0) continue;
#pragma unroll
            for (int n = 0; n < DIM / 8; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int c = 8 * n + 2 * (lane & 3) + e;
                    if (c < p->in.dim_v) dv[4 * n + 2 * h + e] += y * unpack16(TYPE, row[c]);
                }
        }
    }
}
#endif
