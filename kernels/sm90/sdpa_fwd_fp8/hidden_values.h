/* SPDX-License-Identifier: MIT
 * Part of sdpa_fwd_fp8.cu: rows whose sums are not finite. Hidden keys have P = 0, but 0 * NaN is NaN: if a value that
 * is hidden from a row and was multiplied is NaN, the row is computed again from the keys that it sees. */
#ifndef ATTN_SM90_SDPA_FWD_FP8_HIDDEN_VALUES_H
#define ATTN_SM90_SDPA_FWD_FP8_HIDDEN_VALUES_H
#include "kernels/sm90/sdpa_fwd_fp8/products.h"
#include "kernels/sm90/sdpa_fwd_fp8/work.h"

static __device__ __forceinline__ const uint8_t *bytes_of(const struct kp_sdpa_fwd *p, const struct work *w,
                                                          const struct kp_view *v, int j) {
    const int64_t head = divided(w->head, p->by_group);
    return (const uint8_t *)v->data + w->b * v->batch + head * v->head + (w->seq.k0 + j) * v->row;
}

/* A warp: is a number of rows j0 <= j < j1 of V NaN? */
static __device__ __forceinline__ int any_nan(const struct kp_sdpa_fwd *p, const struct work *w, int j0, int j1) {
    int found = 0;
#pragma unroll 1
    for (int j = j0; j < j1; j++) {
        const uint8_t *v = bytes_of(p, w, &p->in.v, j);
#pragma unroll 1
        for (int x = (int)threadIdx.x % 32; x < p->in.dim_v; x += 32) found |= (v[x] & 0x7f) == 0x7f;
    }
    return __any_sync(~0u, found);
}

/* A warp: query i from the keys that it sees, each lane with every 32nd column. */
static __device__ __forceinline__ void mend_row(const struct kp_sdpa_fwd *p, const struct work *w, int i, float m,
                                                float factor, float unit) {
    const int lane = (int)threadIdx.x % 32;
    const int64_t row = w->seq.q0 + i;
    const uint8_t *q =
        (const uint8_t *)p->in.q.data + w->b * p->in.q.batch + w->head * p->in.q.head + row * p->in.q.row;
    const int64_t out = w->b * p->out.batch + w->head * p->out.head + row * p->out.row;
    float o[DIM_V / 32];
#pragma unroll
    for (int x = 0; x < DIM_V / 32; x++) o[x] = 0;
#pragma unroll 1
    for (int j = first_key(p, w, i); j < end_key(p, w, i); j++) {
        const uint8_t *k = bytes_of(p, w, &p->in.k, j), *v = bytes_of(p, w, &p->in.v, j);
        float s = 0;
#pragma unroll 1
        for (int x = lane; x < p->in.dim_qk; x += 32) s += unpack_e4m3(q[x]) * unpack_e4m3(k[x]);
#pragma unroll
        for (int x = 16; x > 0; x >>= 1) s += __shfl_xor_sync(~0u, s, x);
        const float y = exp2_fast(__fmaf_rn(s, unit, -(m == -INF ? 0 : m)));
#pragma unroll
        for (int x = 0; x < DIM_V / 32; x++)
            if (lane + 32 * x < p->in.dim_v) o[x] += y * unpack_e4m3(v[lane + 32 * x]);
    }
#pragma unroll
    for (int x = 0; x < DIM_V / 32; x++)
        if (lane + 32 * x < p->in.dim_v) store_out(p, out + lane + 32 * x, o[x] * factor);
}

/* A warp, after the stores of its rows i0 .. i0 + 15. Lanes 4 g .. 4 g + 3 of low and high: those that found a number
 * that is not finite in rows g and g + 8; lane 4 g has m and factor of them. */
static __device__ __forceinline__ void mend_rows(const struct kp_sdpa_fwd *p, const struct work *w, int i0,
                                                 uint32_t low, uint32_t high, const float m[2], const float factor[2],
                                                 float unit) {
    const int j0 = w->first * KEYS, j1 = min(j0 + w->n_tiles * KEYS, w->seq.sk);
    __syncwarp();
#pragma unroll 1
    for (int r = 0; r < 16; r++) {
        const int lane = r % 8 * 4, i = i0 + r;
        const float m_row = __shfl_sync(~0u, r < 8 ? m[0] : m[1], lane),
                    f = __shfl_sync(~0u, r < 8 ? factor[0] : factor[1], lane);
        if (!((r < 8 ? low : high) >> lane & 15) || i >= w->seq.sq) continue;
        if (any_nan(p, w, j0, min(first_key(p, w, i), j1)) || any_nan(p, w, max(end_key(p, w, i), j0), j1))
            mend_row(p, w, i, m_row, f, unit);
    }
}
#endif
