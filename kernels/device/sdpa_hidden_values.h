/* SPDX-License-Identifier: MIT
 * Dense forward: rows whose sums are not finite because a value hidden from them, times a P of 0, is NaN. The kernel's
 * file defines what sdpa_tiles.h asks for, and modified_product, which makes of a product of a query and a key what the
 * softmax multiplies by its unit. NUMBERS: how q, k and v are stored, as numbers16 says it. */
#ifndef ATTN_DEVICE_SDPA_HIDDEN_VALUES_H
#define ATTN_DEVICE_SDPA_HIDDEN_VALUES_H
#include "kernels/device/sdpa_tiles.h"

/* f16 or bf16. */
template <int DTYPE> struct numbers16 {
    typedef uint16_t stored;
    static constexpr int INFINITIES = 1; /* the type has them */
    static __device__ __forceinline__ float value(uint32_t x) { return unpack16(DTYPE, x); }
    static __device__ __forceinline__ uint32_t not_finite(uint32_t x) { return not_finite16(DTYPE, x); }
};

/* Row j of the keys or values that query head w->head reads. */
template <typename NUMBERS>
static __device__ __forceinline__ const typename NUMBERS::stored *
key_row(const struct kp_sdpa_fwd *p, const struct work *w, const struct kp_view *v, int j) {
    const int64_t head = divided(w->head, p->by_group);
    return (const typename NUMBERS::stored *)v->data + w->b * v->batch + head * v->head + (w->seq.k0 + j) * v->row;
}

/* A warp: does a row j0 <= j < j1 of V hold an infinity or NaN? */
template <typename NUMBERS>
static __device__ __forceinline__ int any_not_finite(const struct kp_sdpa_fwd *p, const struct work *w, int j0,
                                                     int j1) {
    uint32_t bad = 0;
#pragma unroll 1
    for (int j = j0; j < j1; j++) {
        const typename NUMBERS::stored *v = key_row<NUMBERS>(p, w, &p->in.v, j);
#pragma unroll 1
        for (int x = (int)threadIdx.x % 32; x < p->in.dim_v; x += 32) bad |= NUMBERS::not_finite(v[x]);
    }
    return __any_sync(~0u, bad != 0);
}

/* A warp: query i once more, from the keys that it sees alone, each lane with every 32nd column. P = 2^(unit
 * score - m); factor divides by the sum. A P that has underflown to 0 stands for a small positive number: times an
 * infinity it is one. */
template <typename NUMBERS>
static __device__ __forceinline__ void recompute_row(const struct kp_sdpa_fwd *p, const struct work *w, int i, float m,
                                                     float factor, float unit) {
    typedef typename NUMBERS::stored stored;
    const int lane = (int)threadIdx.x % 32;
    const int64_t row = w->seq.q0 + i;
    const stored *q = (const stored *)p->in.q.data + w->b * p->in.q.batch + w->head * p->in.q.head + row * p->in.q.row;
    const int64_t out = w->b * p->out.batch + w->head * p->out.head + row * p->out.row;
    float o[DIM_V / 32];
#pragma unroll
    for (int x = 0; x < DIM_V / 32; x++) o[x] = 0;
#pragma unroll 1
    for (int j = first_key(p, w, i); j < end_key(p, w, i); j++) {
        const stored *k = key_row<NUMBERS>(p, w, &p->in.k, j), *v = key_row<NUMBERS>(p, w, &p->in.v, j);
        float s = 0;
#pragma unroll 1
        for (int x = lane; x < p->in.dim_qk; x += 32) s += NUMBERS::value(q[x]) * NUMBERS::value(k[x]);
#pragma unroll
        for (int x = 16; x > 0; x >>= 1) s += __shfl_xor_sync(~0u, s, x);
        float y = exp2_fast(__fmaf_rn(modified_product(p, w, i, j, s), unit, -(m == -INF ? 0 : m)));
        if (NUMBERS::INFINITIES && y == 0) y = 1e-30f;
#pragma unroll
        for (int x = 0; x < DIM_V / 32; x++)
            if (lane + 32 * x < p->in.dim_v) o[x] += y * NUMBERS::value(v[lane + 32 * x]);
    }
#pragma unroll
    for (int x = 0; x < DIM_V / 32; x++)
        if (lane + 32 * x < p->in.dim_v) store_out(p, out + lane + 32 * x, o[x] * factor);
}

/* A warp: recomputes query i, whose result is stored and not finite, if a hidden value that was multiplied is not
 * finite. */
template <typename NUMBERS>
static __device__ __forceinline__ void recompute_if_hidden(const struct kp_sdpa_fwd *p, const struct work *w, int i,
                                                           float m, float factor, float unit) {
    const int j0 = w->first * KEYS, j1 = min(j0 + w->n_tiles * KEYS, w->seq.sk);
    if (any_not_finite<NUMBERS>(p, w, j0, min(first_key(p, w, i), j1)) ||
        any_not_finite<NUMBERS>(p, w, max(end_key(p, w, i), j0), j1))
        recompute_row<NUMBERS>(p, w, i, m, factor, unit);
}

/* A warp, after the stores of its rows i0 .. i0 + 15, of fragments of 8 rows. Lanes 4 g .. 4 g + 3 of low and high:
 * those that found a number that is not finite in rows g and g + 8; lane 4 g has m and factor of them. */
template <typename NUMBERS>
static __device__ __forceinline__ void recompute_rows(const struct kp_sdpa_fwd *p, const struct work *w, int i0,
                                                      uint32_t low, uint32_t high, const float m[2],
                                                      const float factor[2], float unit) {
    __syncwarp();
#pragma unroll 1
    for (int r = 0; r < 16; r++) {
        const int lane = r % 8 * 4, i = i0 + r;
        const float m_row = __shfl_sync(~0u, r < 8 ? m[0] : m[1], lane),
                    f = __shfl_sync(~0u, r < 8 ? factor[0] : factor[1], lane);
        if ((r < 8 ? low : high) >> lane & 15 && i < w->seq.sq) recompute_if_hidden<NUMBERS>(p, w, i, m_row, f, unit);
    }
}
#endif
