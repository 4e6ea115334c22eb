/* SPDX-License-Identifier: MIT
 * Dense backward with softcap: keys and query rows that hold infinities. Their scores are +-softcap, so that P is a
 * number like any other, and dS is 0: tanh is +-1, and the derivative 1 - tanh^2 is 0. What is not finite is the
 * product of that 0 with the infinity: dq of a row that sees such a key, dk of a key that such a row sees, both in the
 * column of the infinity alone.
 *
 *   in the tiles   the key, or row, becomes finite numbers by which the sum of products has the sign of the infinite
 *                  one (stand_in16); its scores are then made infinite (the kernels' make_infinite). A row whose lse is
 *                  finite sees no score of NaN, so that all infinite products of a score have one sign
 *   dq, dk         NaN where the product is one: dq before the first step, in the sums (spoil_dq); dk at the end, in
 *                  what has been stored (spoil_dk)
 *   rows           sdpa_bwd_prepare.cu marks them: the last bit of the shift of problems with softcap (is_marked)
 *
 * Keys of NaN go the same way: each row that sees one has lse = NaN, and with it P, dS and whatever they are
 * multiplied with. The kernel's file defines, before it includes this one, TYPE, ROWS, CTA_KEYS, struct work and
 * is_bad_key(). Ordinary data never comes here. */
#ifndef ATTN_DEVICE_SDPA_BWD_INFINITE_H
#define ATTN_DEVICE_SDPA_BWD_INFINITE_H
#include "kernels/device/number.h"
#include "kernels/device/sdpa_bwd_rows.h"

/* Two elements: infinities and NaN to the largest number, others that are not 0 to a small one, which counts where the
 * other operand is infinite. */
static __device__ __forceinline__ uint32_t stand_in16(uint32_t x) {
    const uint32_t infinity = TYPE == KP_BF16 ? 0x7f80 : 0x7c00, least = TYPE == KP_BF16 ? 0x80 : 1;
    uint32_t y = 0;
#pragma unroll
    for (int bit = 0; bit < 32; bit += 16) {
        const uint32_t size = x >> bit & 0x7fff;
        y |= (size >= infinity ? infinity - 1 : size ? least : 0) << bit;
    }
    return y | (x & 0x80008000u);
}
static __device__ __forceinline__ uint4 stand_in128(uint4 x) {
    return make_uint4(stand_in16(x.x), stand_in16(x.y), stand_in16(x.z), stand_in16(x.w));
}
static __device__ __forceinline__ float infinite_like(float x) { return copysignf(INF, x); }

/* Of a row whose lse is finite. */
static __device__ __forceinline__ int is_marked(float shift) { return (int)(__float_as_uint(shift) & 1); }

/* Is a row's lse a number? Masks bring it to as far as -3.4e38; without them it is near the scores. */
template <int MASKS> static __device__ __forceinline__ int has_lse(float lse) {
    return MASKS ? lse < PAST_END && lse > -INF : fabsf(lse) < PAST_END;
}

/* Does row i see key j? MASKS: there may be a mask. */
template <int MASKS, class WORK>
static __device__ __forceinline__ int sees_key(const struct kp_sdpa *p, const WORK *w, int h, int i, int j) {
    const uint32_t span = (uint32_t)p->window_left + (uint32_t)p->window_right;
    if ((uint32_t)(j - i - w->off + p->window_left) > span || i >= w->seq.sq || j >= w->seq.sk) return 0;
    if (!MASKS || !p->mask.data) return 1;
    const int64_t cell =
        w->b * p->mask.batch + h * p->mask.head + (int64_t)i * p->mask.row + (int64_t)j * p->mask.column;
    if (p->mask.dtype == KP_BOOL) return ((const uint8_t *)p->mask.data)[cell] != 0;
    return load_number((const void *)p->mask.data, cell, p->mask.dtype) != -INF;
}

/* Where column c of row r of a tile stands in its sums: sdpa_bwd_convert.cu. */
template <int FOURS> static __device__ __forceinline__ int sum_place(const struct kp_sdpa_bwd *p, int r, int c) {
    const int band = p->rows / p->row_warps, pair = c / 16, n = pair / p->dim_warps * 2 + c / 8 % 2;
    const int warp = pair % p->dim_warps * p->row_warps + r / band, lane = 4 * (r % 8) + c % 8 / 2;
    const int fragment = (warp * (p->dim / p->dim_warps / 8) + n) * (band / 16) + r % band / 16;
    const int cell = r % 16 / 8 * 2 + c % 2;
    return 128 * fragment + (FOURS ? 4 * lane + cell : 32 * cell + lane);
}

/* Whatever is added before or after: it needs no turn. */
static __device__ __forceinline__ void make_nan(float *sum) {
    asm volatile("red.relaxed.gpu.global.or.b32 [%0], %1;" ::"l"(sum), "r"(0x7fffffff) : "memory");
}
/* The noted keys from j0 on: dq of the rows that see one, in the sums. Thread `thread` of `threads`. */
template <int MASKS, int FOURS, class WORK>
static __device__ __forceinline__ void spoil_dq(const struct kp_sdpa_bwd *p, const WORK *w, int j0, uint32_t shared,
                                                int thread, int threads) {
    const struct kp_view *k = &p->in.k;
    const int group = p->in.heads_q / p->in.heads_k;
    if (!p->dq_sum) return;
#pragma unroll 1
    for (int j = j0; j < min(j0 + CTA_KEYS, w->seq.sk); j++) {
        if (!is_bad_key(shared, j - j0)) continue;
        const uint16_t *key =
            (const uint16_t *)k->data + w->b * k->batch + w->head_k * k->head + (w->seq.k0 + j) * k->row;
#pragma unroll 1
        for (int c = 0; c < p->in.dim_qk; c++) {
            if (!not_finite16(TYPE, key[c])) continue;
#pragma unroll 1
            for (int x = thread; x < group * w->seq.sq; x += threads) {
                const int h = w->head_k * group + x / w->seq.sq, i = x % w->seq.sq;
                const int64_t row = h * p->stat_rows + w->stat0 + i;
                if (has_lse<MASKS>(((const float *)p->stat_lse)[row]) && sees_key<MASKS>(&p->in, w, h, i, j))
                    make_nan((float *)p->dq_sum + (row - i % ROWS) * p->dim + sum_place<FOURS>(p, i % ROWS, c));
            }
        }
    }
}

/* The marked rows: dk of the keys from j0 on that they see, when the CTA has stored it. A thread has a key, `thread`;
 * whole warps. */
template <int MASKS, class WORK>
static __device__ __forceinline__ void spoil_dk(const struct kp_sdpa_bwd *p, const WORK *w, int j0, int thread) {
    const struct kp_view *q = &p->in.q, *dk = &p->dk;
    const int group = p->in.heads_q / p->in.heads_k, lane = (int)threadIdx.x % 32, blocks = (w->seq.sq + 31) / 32;
    const int j = j0 + thread;
    if (!dk->data || thread / 32 >= (CTA_KEYS + 31) / 32) return;
    uint16_t *to = (uint16_t *)dk->data + w->b * dk->batch + w->head_k * dk->head + (w->seq.k0 + j) * dk->row;
#pragma unroll 1
    for (int x = 0; x < group * blocks; x++) {
        const int h = w->head_k * group + x / blocks, i0 = x % blocks * 32;
        const int64_t stat = h * p->stat_rows + w->stat0 + i0 + lane;
        uint32_t marked =
            __ballot_sync(~0u, i0 + lane < w->seq.sq && has_lse<MASKS>(((const float *)p->stat_lse)[stat]) &&
                                   is_marked(((const float *)p->stat_shift)[stat]));
#pragma unroll 1
        for (; marked; marked &= marked - 1) {
            const int i = i0 + __ffs((int)marked) - 1;
            const uint16_t *row = (const uint16_t *)q->data + w->b * q->batch + h * q->head + (w->seq.q0 + i) * q->row;
            if (thread >= CTA_KEYS || !sees_key<MASKS>(&p->in, w, h, i, j)) continue;
#pragma unroll 1
            for (int c = 0; c < p->in.dim_qk; c++)
                if (not_finite16(TYPE, row[c])) to[c] = 0x7fff;
        }
    }
}
#endif
