/* SPDX-License-Identifier: MIT
 * Sequences of a dense problem on the device: the same clamps as attn_core_seq_get on the host. */
#ifndef ATTN_DEVICE_SEQUENCE_H
#define ATTN_DEVICE_SEQUENCE_H
#include "kernels/params/sdpa.h"

struct sequence {
    int64_t q0, k0; /* first rows; packed only, else 0; of paged keys 0 */
    int sq, sk;     /* lengths */
    int rows;       /* query rows that belong to the batch entry; rows sq..rows are written as empty rows */
    int keys;       /* key rows that belong to it; gradients of sk..keys are written as 0 */
};

static __device__ __forceinline__ int64_t clamp_length(int64_t x, int64_t high) {
    return x < 0 ? 0 : x > high ? high : x;
}

/* The offset of sequence b is `most`: the largest one up to there, or sequences would share rows. */
static __device__ __forceinline__ void packed_span(const int32_t *cu, int b, int most, int64_t total, int bound,
                                                   int64_t *first, int *n) {
    *first = clamp_length(most, total);
    *n = (int)clamp_length(clamp_length(cu[b + 1], total) - *first, bound);
}

/* All lanes of a warp, for one b: packed offsets up to b are looked through by all of them, OFFSETS_AHEAD loads a lane
 * and axis at a time. Paged keys have no offsets. */
#ifndef ATTN_OFFSETS_AHEAD
#define ATTN_OFFSETS_AHEAD 4
#endif
constexpr int OFFSETS_AHEAD = ATTN_OFFSETS_AHEAD;
static __device__ __forceinline__ struct sequence sequence_of(const struct kp_sdpa *p, int b) {
    struct sequence s = {0, 0, p->seq_q, p->seq_k, p->seq_q, p->seq_k};
    if (p->cu_seqlens_q) {
        const int32_t *q = (const int32_t *)p->cu_seqlens_q, *k = (const int32_t *)p->cu_seqlens_k;
        const int has_k = k != 0;
        int most_q = 0, most_k = 0;
#pragma unroll 1
        for (int x0 = 0; x0 <= b; x0 += 32 * OFFSETS_AHEAD)
#pragma unroll
            for (int y = 0; y < OFFSETS_AHEAD; y++) {
                const int x = min(x0 + 32 * y + (int)threadIdx.x % 32, b);
                most_q = max(most_q, q[x]);
                if (has_k) most_k = max(most_k, k[x]);
            }
        most_q = __reduce_max_sync(~0u, most_q), most_k = __reduce_max_sync(~0u, most_k);
        packed_span(q, b, most_q, p->total_q, p->seq_q, &s.q0, &s.sq);
        if (has_k) packed_span(k, b, most_k, p->total_k, p->seq_k, &s.k0, &s.sk);
        s.rows = s.sq, s.keys = s.sk;
    }
    if (p->seqlens_q) s.sq = (int)clamp_length(((const int32_t *)p->seqlens_q)[b], s.sq);
    if (p->seqlens_k) s.sk = (int)clamp_length(((const int32_t *)p->seqlens_k)[b], s.sk);
    return s;
}
#endif
