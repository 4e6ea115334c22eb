/* SPDX-License-Identifier: MIT
 * Which slots of a query are valid: the one predicate that load, softmax, distribution and scatter share. */
#ifndef ATTN_DEVICE_SLOTS_H
#define ATTN_DEVICE_SLOTS_H
#include "kernels/params/mla.h"

/* The index list of query i of batch entry b: n slots, of which those with 0 <= idx < keys are valid. */
struct slots {
    const int32_t *idx;
    int n;
    uint32_t keys; /* at most 2^31: idx, seen as unsigned, is valid iff it is less */
};

static __device__ __forceinline__ struct slots slots_of(const struct kp_mla *p, int64_t b, int64_t i) {
    struct slots s;
    s.idx = (const int32_t *)p->indices.data + b * p->indices.batch + i * p->indices.row;
    s.n = p->topk;
    if (p->topk_length.data) {
        const int32_t n = ((const int32_t *)p->topk_length.data)[b * p->topk_length.batch + i * p->topk_length.row];
        s.n = n < 0 ? 0 : n < p->topk ? n : p->topk;
    }
    s.keys = (uint32_t)p->seq_k;
    if (p->flags & KP_MLA_CAUSAL) {
        /* q_start + i + 1 >= k_stride * (idx + 1)  <=>  idx < floor((q_start + i + 1) / k_stride); nothing is negative
         */
        const uint64_t bound = ((uint64_t)p->q_start + (uint64_t)i + 1) / (uint64_t)p->k_stride;
        if (bound < s.keys) s.keys = (uint32_t)bound;
    }
    return s;
}
static __device__ __forceinline__ int slot_valid(const struct slots *s, int32_t idx) { return (uint32_t)idx < s->keys; }
#endif
