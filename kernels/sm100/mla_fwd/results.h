/* SPDX-License-Identifier: MIT
 * Part of mla_fwd.cu and of mla_fwd_h64.cu: sums of a row, O rescaled in tensor memory, and what leaves the kernel. */
#ifndef ATTN_SM100_MLA_FWD_RESULTS_H
#define ATTN_SM100_MLA_FWD_RESULTS_H
#include "kernels/device/number.h"
#include "kernels/device/shared.h"
#include "kernels/device/tcgen05.h"
#include "kernels/params/mla_sm100.h"

/* What softmax knows of a row's keys, or of a CTA's share of them: sums of 2^(score - offset), largest score; scores in
 * base 2. */
struct sums {
    float offset, sum, largest;
};
static __device__ __forceinline__ struct sums load_sums(uint32_t cells) {
    const uint4 x = shared_load128(cells);
    const struct sums s = {__uint_as_float(x.x), __uint_as_float(x.y), __uint_as_float(x.z)};
    return s;
}

/* What brings sums relative to offset `from`, 0 if it is none, to offset `to`: a power of two. */
static __device__ __forceinline__ float factor_of(float from, float to) {
    return from == -INF ? 0 : exp2_fast(from - to);
}
/* O in the thread's lane, `columns` of it. */
static __device__ __forceinline__ void rescale_columns(uint32_t cells, int columns, float factor) {
#pragma unroll 1
    for (int c = 0; c < columns; c += 32) {
        uint32_t x[32];
        tc_load32(x, cells + c);
        tc_wait_loads();
#pragma unroll
        for (int e = 0; e < 32; e++) x[e] = __float_as_uint(__uint_as_float(x[e]) * factor);
        tc_store32(cells + c, x);
    }
    tc_wait_stores();
}

/* lse and max_logits of the row of head h of query i, if `exists` and `tells`. What O is multiplied by. */
static __device__ __forceinline__ float finish_row(const struct kp_mla_fwd_sm100 *p, int64_t b, int64_t i, int h,
                                                   const struct sums *row, int exists, int tells) {
    const float natural = row->offset * LN2;
    const int empty = row->sum == 0;
    float sink = -INF;
    if (p->in.sink && exists) sink = ((const float *)p->in.sink)[h * p->in.sink_head];
    const float factor = empty ? 0 : 1 / (row->sum + exp2_fast((sink - natural) * LOG2E));
    if (tells && exists) {
        const float lse = lse_in_form(p->in.flags, empty ? -INF : natural + log2f(row->sum) * LN2);
        store_lse(&p->lse, b * p->lse.batch + i * p->lse.row + h * p->lse.head, lse);
        store_lse(&p->max_logits, b * p->max_logits.batch + i * p->max_logits.row + h * p->max_logits.head,
                  row->largest * LN2);
    }
    return factor;
}
/* O in the thread's lane times the factor, if the row exists, as numbers of out. */
static __device__ __forceinline__ void store_columns(uint16_t *to, uint32_t cells, int columns, float factor, int empty,
                                                     int exists) {
#pragma unroll 1
    for (int c = 0; c < columns; c += 32) {
        uint32_t x[32];
        tc_load32(x, cells + c);
        tc_wait_loads();
#pragma unroll
        for (int k = 0; exists && k < 4; k++) {
            uint32_t y[4];
#pragma unroll
            for (int e = 0; e < 4; e++)
                y[e] = empty ? 0
                             : pack16(CFG_DTYPE, __uint_as_float(x[8 * k + 2 * e]) * factor,
                                      __uint_as_float(x[8 * k + 2 * e + 1]) * factor);
            ((uint4 *)(to + c))[k] = make_uint4(y[0], y[1], y[2], y[3]);
        }
    }
}

/* Of a part of the slots: sums and O as they are, which kernels/smxx/mla_combine.cu merges. */
static __device__ __forceinline__ void store_part_sums(const struct kp_mla_fwd_sm100 *p, int64_t place,
                                                       const struct sums *row) {
    ((float *)p->part_m)[place] = row->offset;
    ((float *)p->part_l)[place] = row->sum;
    ((float *)p->part_largest)[place] = row->largest;
}
static __device__ __forceinline__ void store_part_columns(float *to, uint32_t cells, int columns, int exists) {
#pragma unroll 1
    for (int c = 0; c < columns; c += 32) {
        uint32_t x[32];
        tc_load32(x, cells + c);
        tc_wait_loads();
#pragma unroll
        for (int e = 0; exists && e < 32; e += 4)
            *(uint4 *)(to + c + e) = make_uint4(x[e], x[e + 1], x[e + 2], x[e + 3]);
    }
}
#endif
