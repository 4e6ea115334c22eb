/* SPDX-License-Identifier: MIT
 * Sequences of a dense problem on the device: the same clamps as attn_core_seq_get on the host. */
#ifndef ATTN_DEVICE_SEQUENCE_H
#define ATTN_DEVICE_SEQUENCE_H
#include "kernels/params/sdpa.h"

struct sequence {
    int64_t q0, k0; /* first rows; packed only, else 0 */
    int sq, sk;     /* lengths */
    int rows;       /* query rows that belong to the batch entry; rows sq..rows are written as empty rows */
};

static __device__ __forceinline__ int64_t clamp_length(int64_t x, int64_t high) {
    return x < 0 ? 0 : x > high ? high : x;
}

static __device__ __forceinline__ void packed_span(uint64_t cu, int b, int64_t total, int bound, int64_t *first,
                                                   int *n) {
    const int32_t *at = (const int32_t *)cu + b;
    int64_t begin = clamp_length(at[0], total), end = clamp_length(at[1], total);
    *first = begin;
    *n = (int)clamp_length(end - begin, bound);
}

static __device__ __forceinline__ struct sequence sequence_of(const struct kp_sdpa *p, int b) {
    struct sequence s = {0, 0, p->seq_q, p->seq_k, p->seq_q};
    if (p->cu_seqlens_q) {
        packed_span(p->cu_seqlens_q, b, p->total_q, p->seq_q, &s.q0, &s.sq);
        packed_span(p->cu_seqlens_k, b, p->total_k, p->seq_k, &s.k0, &s.sk);
        s.rows = s.sq;
        return s;
    }
    if (p->seqlens_q) s.sq = (int)clamp_length(((const int32_t *)p->seqlens_q)[b], p->seq_q);
    if (p->seqlens_k) s.sk = (int)clamp_length(((const int32_t *)p->seqlens_k)[b], p->seq_k);
    return s;
}
#endif
