/* SPDX-License-Identifier: MIT
 * Part of specialized.cu: the warpgroup that does nothing but dkv, slice by slice, the products of one half of a
 * slice under the additions of the other. */
#ifndef ATTN_SM90_MLA_BWD_SPECIALIZED_GRADIENTS_H
#define ATTN_SM90_MLA_BWD_SPECIALIZED_GRADIENTS_H
#include "kernels/sm90/mla_bwd/dkv.h"

/* What is started for the next slice. */
constexpr int NOTHING = 0, WITH_P = 1, WITHOUT_P = 2;

/* The i-th slice of a tile; the products of its left half in set a have been started before. */
template <int ROPE, int NEXT>
static __device__ __forceinline__ void step(const struct kp_mla_bwd *p, float a[16], float b[16], const struct tile *t,
                                            const struct target *to, uint32_t shared, uint32_t i) {
    const uint32_t x = slice_of(i), next = slice_of(i + 1);
    const int lane = recompute((int)threadIdx.x) & 31; /* not kept */
    multiply<ROPE>(b, t, x, 1);
    wgmma_wait(1);
    wgmma_hold(a, 16);
    emit(a, to, 64 * x);
    if (NEXT == WITH_P) multiply<0>(a, t, next, 0);
    if (NEXT == WITHOUT_P) multiply<1>(a, t, next, 0);
    wgmma_wait(NEXT == NOTHING ? 0 : 1);
    wgmma_hold(b, 16);
    if (lane == 0 && t->n + 1 == shared_load32(shared + SUMS_AT + 8)) mbar_arrive(shared + Q_FREE + 8 * x);
    emit(b, to, 64 * x + 32);
}

/* All of a tile. */
static __device__ __forceinline__ void emit_tile(const struct kp_mla_bwd *p, const struct tile *t,
                                                 const struct target *to, uint32_t shared) {
    float a[16], b[16];
    __syncwarp();
    if ((threadIdx.x & 31) == 0) mbar_arrive(shared + PD_FREE);
    multiply<0>(a, t, 0, 0);
#pragma unroll
    for (uint32_t i = 0; i < V_SLICES - 1; i++) step<0, WITH_P>(p, a, b, t, to, shared, i);
    if (SLICES > V_SLICES) {
        step<0, WITHOUT_P>(p, a, b, t, to, shared, V_SLICES - 1);
        step<1, NOTHING>(p, a, b, t, to, shared, V_SLICES);
    } else {
        step<0, NOTHING>(p, a, b, t, to, shared, V_SLICES - 1);
    }
}

/* What is the same for all of a work tile's tiles: {where its gradients begin; the last tile's number plus one; the
 * work tile's number}. n: tiles before. The rows of pairs begin where tile 0 would have them. */
static __device__ __forceinline__ void keep_sums(const struct kp_mla_bwd *p, uint32_t work, uint32_t n,
                                                 uint32_t shared) {
    named_sync(3, 128); /* the last work tile's are read */
    if ((threadIdx.x & 127) == 0) {
        const count index = work_tile_index(p, work);
        const struct work_tile w = work_of(p, index);
        const uint32_t tiles = (uint32_t)(slots_at(p, index, &w) + 63) / 64;
        const uint64_t base = STORED_ROWS ? p->stored_rows + 4 * (uint64_t)((index * p->in.topk - (int64_t)n * 64) * D)
                                          : p->sum.data + 4 * (uint64_t)(w.b * p->sum.batch);
        keep4(shared + SUMS_AT, base, (uint64_t)work << 32 | (n + tiles));
    }
    named_sync(3, 128);
}

static __device__ __forceinline__ void gradients(const struct kp_mla_bwd *p, uint32_t shared) {
    uint32_t n = 0; /* tiles of all work tiles */
    for (uint32_t work = 0; has_work(p, work); work = shared_load32(shared + SUMS_AT + 12) + 1) {
        keep_sums(p, work, n, shared);
#pragma unroll 1
        for (; n != shared_load32(shared + SUMS_AT + 8); n++) {
            struct tile t;
            struct target to;
            t.o = slice_desc(shared + DOUT_AT, SLICE);
            t.q = slice_desc(shared + Q_AT, SLICE);
            t.n = n;
            mbar_wait(shared + PD_FULL, n & 1);
            load_transposed(t.probs, shared + P_AT);
            load_transposed(t.ds, shared + DS_AT);
            find_target(p, &to, shared, shared + SUMS_AT, n, n & 1);
            emit_tile(p, &t, &to, shared);
        }
    }
}
#endif
