/* SPDX-License-Identifier: MIT
 * Dense forward: rows whose sums are not finite because a value hidden from them, times a P of 0, is NaN. The kernel's
 * file defines TYPE, what sdpa_tiles.h asks for, and modified_product, which makes of a product of a query and a key
 * what the softmax multiplies by its unit. */
#ifndef ATTN_DEVICE_SDPA_HIDDEN_VALUES_H
#define ATTN_DEVICE_SDPA_HIDDEN_VALUES_H
#include "kernels/device/sdpa_tiles.h"

/* Row j of the keys or values that query head w->head reads. */
static __device__ __forceinline__ const uint16_t *key_row(const struct kp_sdpa_fwd *p, const struct work *w,
                                                          const struct kp_view *v, int j) {
    const int64_t head = divided(w->head, p->by_group);
    return (const uint16_t *)v->data + w->b * v->batch + head * v->head + (w->seq.k0 + j) * v->row;
}

/* A warp: does a row j0 <= j < j1 of V hold an infinity or NaN? */
static __device__ __forceinline__ int any_not_finite(const struct kp_sdpa_fwd *p, const struct work *w, int j0,
                                                     int j1) {
    uint32_t bad = 0;
#pragma unroll 1
    for (int j = j0; j < j1; j++) {
        const uint16_t *v = key_row(p, w, &p->in.v, j);
#pragma unroll 1
        for (int x = (int)threadIdx.x % 32; x < p->in.dim_v; x += 32) bad |= not_finite16(TYPE, v[x]);
    }
    return __any_sync(~0u, bad != 0);
}

/* A warp: query i once more, from the keys that it sees alone, each lane with every 32nd column. P = 2^(unit
 * score - m); factor divides by the sum. A P that has underflown to 0 stands for a small positive number: times an
 * infinity it is one. */
static __device__ __forceinline__ void mend_row(const struct kp_sdpa_fwd *p, const struct work *w, int i, float m,
                                                float factor, float unit) {
    const int lane = (int)threadIdx.x % 32;
    const int64_t row = w->seq.q0 + i;
    const uint16_t *q =
        (const uint16_t *)p->in.q.data + w->b * p->in.q.batch + w->head * p->in.q.head + row * p->in.q.row;
    const int64_t out = w->b * p->out.batch + w->head * p->out.head + row * p->out.row;
    float o[DIM_V / 32];
#pragma unroll
    for (int x = 0; x < DIM_V / 32; x++) o[x] = 0;
#pragma unroll 1
    for (int j = first_key(p, w, i); j < end_key(p, w, i); j++) {
        const uint16_t *k = key_row(p, w, &p->in.k, j), *v = key_row(p, w, &p->in.v, j);
        float s = 0;
#pragma unroll 1
        for (int x = lane; x < p->in.dim_qk; x += 32) s += unpack16(TYPE, q[x]) * unpack16(TYPE, k[x]);
#pragma unroll
        for (int x = 16; x > 0; x >>= 1) s += __shfl_xor_sync(~0u, s, x);
        float y = exp2_fast(__fmaf_rn(modified_product(p, w, i, j, s), unit, -(m == -INF ? 0 : m)));
        if (y == 0) y = 1e-30f;
#pragma unroll
        for (int x = 0; x < DIM_V / 32; x++)
            if (lane + 32 * x < p->in.dim_v) o[x] += y * unpack16(TYPE, v[lane + 32 * x]);
    }
#pragma unroll
    for (int x = 0; x < DIM_V / 32; x++)
        if (lane + 32 * x < p->in.dim_v) store_out(p, out + lane + 32 * x, o[x] * factor);
}

/* A warp: mends query i, whose result is stored and not finite, if a hidden value that was multiplied is not finite. */
static __device__ __forceinline__ void mend_if_hidden(const struct kp_sdpa_fwd *p, const struct work *w, int i, float m,
                                                      float factor, float unit) {
    const int j0 = w->first * KEYS, j1 = min(j0 + w->n_tiles * KEYS, w->seq.sk);
    if (any_not_finite(p, w, j0, min(first_key(p, w, i), j1)) || any_not_finite(p, w, max(end_key(p, w, i), j0), j1))
        mend_row(p, w, i, m, factor, unit);
}
#endif
