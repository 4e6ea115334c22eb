/* SPDX-License-Identifier: MIT
 * Dense backward by key tiles in f16: the factor of dS, from the bounds of the head's rows and keys. The kernel's file
 * defines, before it includes this one, ROWS, MAIN, MAIN_THREADS, BOUNDS, FACTORS, lane_of(), and what sdpa_bwd_work.h
 * asks for. */
#ifndef ATTN_DEVICE_SDPA_BWD_FACTOR_H
#define ATTN_DEVICE_SDPA_BWD_FACTOR_H
#include "kernels/device/mbarrier.h"
#include "kernels/device/number.h"
#include "kernels/device/sdpa_bwd_bound.h"
#include "kernels/device/sdpa_bwd_work.h"

/* All compute threads: maxima of the bounds of the head's rows and keys, then the factor of dS: a power of two that
 * keeps it within the type's range. Returns the factor; what undoes it stands at FACTORS, and of one CTA of the
 * head, which `tells`, in memory. */
static __device__ __forceinline__ float choose_factor(const struct kp_sdpa_bwd_scaled *s, uint32_t shared, int tells) {
    const struct kp_sdpa_bwd *p = &s->bwd;
    const struct work w = recall_work(shared);
    const int group = p->in.heads_q / p->in.heads_k, row_tiles = (w.seq.sq + ROWS - 1) / ROWS,
              key_tiles = (w.seq.sk + ROWS - 1) / ROWS;
    const int64_t head = (int64_t)w.b * p->in.heads_k + w.head_k;
    const float2 *rows = (const float2 *)s->row_bounds + head * group * p->row_tiles;
    const float *keys = (const float *)s->key_bounds + head * s->bound_tiles;
    float dout = 0, shift = 0, v = 0;
#pragma unroll 1 /* mostly one: a thread has a tile of rows of every MAIN_THREADS */
    for (int x = (int)threadIdx.x; x < group * row_tiles; x += MAIN_THREADS) {
        const float2 y = rows[(int64_t)(x / row_tiles) * p->row_tiles + x % row_tiles];
        dout = fmaxf(dout, y.x), shift = fmaxf(shift, y.y);
    }
#pragma unroll 1
    for (int x = (int)threadIdx.x; x < key_tiles; x += MAIN_THREADS) v = fmaxf(v, keys[x]);
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        dout = fmaxf(dout, __shfl_xor_sync(~0u, dout, d));
        shift = fmaxf(shift, __shfl_xor_sync(~0u, shift, d));
        v = fmaxf(v, __shfl_xor_sync(~0u, v, d));
    }
    if (lane_of() == 0)
        shared_store128(shared + BOUNDS + 16 * (threadIdx.x / 32),
                        make_uint4(__float_as_uint(dout), __float_as_uint(shift), __float_as_uint(v), 0));
    named_sync(MAIN, MAIN_THREADS);
    dout = shift = v = 0;
#pragma unroll 1
    for (int x = 0; x < MAIN_THREADS / 32; x++) {
        const uint4 y = shared_load128(shared + BOUNDS + 16 * x);
        dout = fmaxf(dout, __uint_as_float(y.x)), shift = fmaxf(shift, __uint_as_float(y.y));
        v = fmaxf(v, __uint_as_float(y.z));
    }
    const int k = exponent_for(sqrtf(dout * v) + shift);
    if (threadIdx.x == 0) {
        shared_store32(shared + FACTORS, __float_as_uint(power_of_two(-k)));
        if (tells && w.key_tile == 0) /* all of the head have the same */
            ((float *)s->undo)[head] = power_of_two(-k);
    }
    named_sync(MAIN, MAIN_THREADS);
    return power_of_two(k);
}
#endif
