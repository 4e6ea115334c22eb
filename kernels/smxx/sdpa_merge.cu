/* SPDX-License-Identifier: MIT
 * attn_merge: results over parts of the keys become the result over all of them. Every chip, any mix of dtypes; sums in
 * f64, rounded once.
 *
 *   m = max lse_i     w_i = exp(lse_i - m)     out = sum_i w_i out_i / sum_i w_i     lse = m + ln sum_i w_i
 *
 * A warp owns a row. Lane i has part i's lse and weight; then lane l has columns 4 l .. 4 l + 3 of each 128. Sums run
 * in the parts' order or in a fixed tree: bit-equal every time. The result may be one of the parts: a lane reads
 * columns of all parts before it writes them, and every lse has been read before one is written. */
#include "kernels/device/number.h"
#include "kernels/params/sdpa_merge.h"

constexpr int THREADS = CFG_THREADS, ALL = 4; /* columns of a lane */
constexpr double LN2_F64 = 0.69314718055994530942, LOG2E_F64 = 1.44269504088896340736;

static __device__ __forceinline__ double warp_max(double x) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) x = fmax(x, __shfl_xor_sync(~0u, x, d));
    return x;
}
static __device__ __forceinline__ double warp_sum(double x) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(~0u, x, d);
    return x;
}

static __device__ __forceinline__ double load_one(uint64_t data, int64_t i, int dtype) {
    return dtype == KP_F64 ? ((const double *)data)[i] : (double)load_number((const void *)data, i, dtype);
}
static __device__ __forceinline__ void load_all(double x[ALL], uint64_t data, int64_t i, int dtype) {
    if (dtype == KP_F64) {
        const double2 a = ((const double2 *)((const double *)data + i))[0],
                      b = ((const double2 *)((const double *)data + i))[1];
        x[0] = a.x, x[1] = a.y, x[2] = b.x, x[3] = b.y;
    } else if (dtype == KP_F32) {
        const float4 a = *(const float4 *)((const float *)data + i);
        x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
    } else {
        const uint2 a = *(const uint2 *)((const uint16_t *)data + i);
        x[0] = unpack16(dtype, a.x & 0xffff), x[1] = unpack16(dtype, a.x >> 16);
        x[2] = unpack16(dtype, a.y & 0xffff), x[3] = unpack16(dtype, a.y >> 16);
    }
}

/* To 16 bits by way of an f32 that is rounded to odd: cut off, with its last bit set if anything was, so that the
 * second rounding sees on which side of a tie x is. */
static __device__ __forceinline__ uint16_t round16(int dtype, double x) {
    const float cut = __double2float_rz(x);
    const float odd = (double)cut == x ? cut : __uint_as_float(__float_as_uint(cut) | 1);
    return (uint16_t)pack16(dtype, odd, 0);
}
static __device__ __forceinline__ void store_one(uint64_t data, int64_t i, int dtype, double x) {
    if (dtype == KP_F64)
        ((double *)data)[i] = x;
    else if (dtype == KP_F32)
        ((float *)data)[i] = (float)x;
    else
        ((uint16_t *)data)[i] = round16(dtype, x);
}
static __device__ __forceinline__ void store_all(uint64_t data, int64_t i, int dtype, const double x[ALL]) {
    if (dtype == KP_F64) {
        double2 *to = (double2 *)((double *)data + i);
        to[0] = make_double2(x[0], x[1]), to[1] = make_double2(x[2], x[3]);
    } else if (dtype == KP_F32) {
        *(float4 *)((float *)data + i) = make_float4((float)x[0], (float)x[1], (float)x[2], (float)x[3]);
    } else {
        *(uint2 *)((uint16_t *)data + i) = make_uint2(round16(dtype, x[0]) | (uint32_t)round16(dtype, x[1]) << 16,
                                                      round16(dtype, x[2]) | (uint32_t)round16(dtype, x[3]) << 16);
    }
}

static __device__ __forceinline__ int64_t row_of(const int64_t stride[3], const int64_t place[3]) {
    return place[0] * stride[0] + place[1] * stride[1] + place[2] * stride[2];
}

static __device__ __forceinline__ void merge_row(const struct kp_merge *p, int64_t row) {
    const int lane = (int)threadIdx.x & 31;
    int64_t place[3];
    place[2] = row % p->extent[2], row /= p->extent[2];
    place[1] = row % p->extent[1], place[0] = row / p->extent[1];

    double lse = -INF; /* empty, as a part that does not exist */
    if (lane < p->n_parts) {
        const struct kp_merge_part *x = &p->part[lane];
        lse = load_one(x->lse, row_of(x->lse_stride, place), x->lse_dtype);
        if (p->flags & KP_LSE_BASE_2) lse *= LN2_F64;
        if (lse == INF) lse = -INF;
    }
    const int has_nan = __any_sync(~0u, lse != lse);
    const double m = warp_max(lse), nan = __longlong_as_double(0x7ff8ll << 48);
    double weight = 0; /* of a part that is not empty no 0: times an infinity or NaN it must stay one */
    if (lse != -INF && !has_nan) {
        weight = exp(lse - m);
        if (!(weight > 0)) weight = __longlong_as_double(23ll << 52); /* 2^-1000 */
    }
    const double sum = warp_sum(weight), share = weight > 0 ? weight / sum : 0;

    for (int64_t c0 = 0; c0 < p->width; c0 += 32 * ALL) {
        const int64_t c = c0 + ALL * lane;
        const int n = (int)(p->width - c < ALL ? p->width - c : ALL); /* may be negative */
        double total[ALL];
#pragma unroll
        for (int e = 0; e < ALL; e++) total[e] = has_nan ? nan : 0;
#pragma unroll 4
        for (int i = 0; i < p->n_parts; i++) {
            const struct kp_merge_part *x = &p->part[i];
            const double w = __shfl_sync(~0u, share, i);
            double value[ALL] = {0, 0, 0, 0};
            if (__shfl_sync(~0u, weight, i) == 0) continue; /* empty: its out is not read */
            const int64_t first = row_of(x->out_stride, place) + c;
            if (x->aligned && n == ALL) {
                load_all(value, x->out, first, x->out_dtype);
            } else {
#pragma unroll
                for (int e = 0; e < ALL; e++)
                    if (e < n) value[e] = load_one(x->out, first + e, x->out_dtype);
            }
#pragma unroll
            for (int e = 0; e < ALL; e++) total[e] += w * value[e];
        }
        const int64_t first = row_of(p->result.out_stride, place) + c;
        if (p->result.aligned && n == ALL) {
            store_all(p->result.out, first, p->result.out_dtype, total);
        } else {
#pragma unroll
            for (int e = 0; e < ALL; e++)
                if (e < n) store_one(p->result.out, first + e, p->result.out_dtype, total[e]);
        }
    }
    if (lane > 0 || !p->result.lse) return;
    double merged = has_nan ? nan : m == -INF ? m : m + log(sum);
    if (merged == -INF && p->flags & KP_LSE_EMPTY_PLUS_INF) merged = INF;
    if (p->flags & KP_LSE_BASE_2) merged *= LOG2E_F64;
    store_one(p->result.lse, row_of(p->result.lse_stride, place), p->result.lse_dtype, merged);
}

extern "C" __global__ void __launch_bounds__(THREADS) CFG(const __grid_constant__ struct kp_merge p) {
    const int64_t step = (int64_t)gridDim.x * (THREADS / 32);
    for (int64_t row = (int64_t)blockIdx.x * (THREADS / 32) + (threadIdx.x >> 5); row < p.rows; row += step)
        merge_row(&p, row);
}
