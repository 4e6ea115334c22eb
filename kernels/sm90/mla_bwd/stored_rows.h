/* SPDX-License-Identifier: MIT
 * Part of lockstep.cu and pingpong.cu, deterministic: how 64 slots x 32 columns of dkv are stored,
 * each slot for itself, as rows of kernels/device/row16.h; sum_rows.cu adds them to the rows that they name. 16
 * bytes 4 h + t of a slot are what lane t of a quad holds of columns 32 h .. 32 h + 31: 8 j + 2 t + e is its number 2 j
 * + e.
 *
 * The bound of a slot's row: 64 times the largest |P| max |dO| + |dS| max |Q|, of the heads that a lane of its quad
 * holds of P^T and dS^T. bf16: P^T and dS^T are multiplied by 2^k, exactly, and the sums come out as they are stored.
 * f16, which has not the range: the sums are; P^T and dS^T have the tile's power of two, and so has their bound. */
#ifndef ATTN_SM90_MLA_BWD_STORED_ROWS_H
#define ATTN_SM90_MLA_BWD_STORED_ROWS_H
#include "kernels/device/bf16x2.h"
#include "kernels/device/row16.h"
#include "kernels/sm90/mla_bwd/cells.h"
#include "kernels/sm90/mla_bwd/dkv.h"
#include "kernels/sm90/mla_bwd/scale.h"

static_assert(CTAS == 1 || TYPE == KP_BF16, "pairs have no room for sums of another scale");

/* ---- the largest finite |Q| and |dO| of the work tile, of each warp's part. An infinity among them reaches all
 * columns of its head's slots by S or dP, or as 0 times itself one, whose neighbours need their own size. ---- */

/* uint32_t [2][4]: of Q, of dO; in the place of the checkpoints, which only rows that are added have */
constexpr uint32_t MOST_AT = (CHECKPOINTS_AT + 15) / 16 * 16;
static_assert(MOST_AT + 32 <= KP_MLA_BWD_SM90_SHARED(D), "the plan fits");
/* The larger of x and the magnitudes of two 16-bit numbers, in the high half, with other bits below. */
static __device__ __forceinline__ uint32_t most_of(uint32_t x, uint32_t pair) {
    return max(x, max(pair & 0x7fffffff, pair << 16 & 0x7fff0000));
}
/* Of both halves the larger of two magnitudes, in one instruction, with some sign; NaN is the largest. */
static __device__ __forceinline__ uint32_t most_pair(uint32_t a, uint32_t b) {
    uint32_t y;
    if (TYPE == KP_BF16)
        asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    else
        asm("max.NaN.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}
constexpr uint32_t NOT_FINITE = TYPE == KP_BF16 ? 0x7f800000 : 0x7c000000;
static __device__ __forceinline__ uint32_t finite_of(uint32_t pair) {
    return (most_of(0, pair & 0xffff0000) < NOT_FINITE ? pair & 0xffff0000 : 0) |
           (most_of(0, pair << 16) < NOT_FINITE ? pair & 0xffff : 0);
}

/* Of slices of Q (W = 0) or dO, the 16 bytes of this thread and those 2048 bytes further each time. Even: between
 * barriers 5 and 6 of a work tile's first tile, when no warp reads the last one's any more. */
template <int W> static __device__ __forceinline__ void store_max_magnitude(uint32_t shared, int first) {
    if (!first) return;
    const uint32_t from =
        shared + (W ? DOUT_AT : Q_AT) + (ALT ? place_of() : 16 * ((uint32_t)recompute((int)threadIdx.x) & 127));
    uint32_t most = 0;
#pragma unroll(ALT ? 2 : 4)
    for (uint32_t i = 0; i < 4 * (W ? V_SLICES : SLICES); i++) {
        const uint4 y = shared_load128(from + Q_STEP * (i >> 2) + 2048 * (i & 3));
        most = most_pair(most_pair(most_pair(most_pair(most, y.x), y.y), y.z), y.w);
    }
    most = most_of(0, most);
    if (most >= NOT_FINITE) {
        most = 0;
#pragma unroll 1
        for (uint32_t i = 0; i < 16 * (W ? V_SLICES : SLICES); i++)
            most =
                most_of(most, finite_of(shared_load32(from + Q_STEP * (i >> 4) + 2048 * (i >> 2 & 3) + 4 * (i & 3))));
    }
    most = __reduce_max_sync(~0u, most);
    if (lane_of() == 0) shared_store32(shared + MOST_AT + 4 * (4 * W + (uint32_t)warp_of()), most);
}
static __device__ __forceinline__ float max_magnitude(uint32_t shared, uint32_t k) {
    const uint4 x = shared_load128(shared + MOST_AT + 16 * k);
    return unpack16(TYPE, max(max(x.x, x.y), max(x.z, x.w)) >> 16);
}

/* ---- where to, and what ---- */

/* Where a lane stores what it has of slot g of its warp; slot g + 8 follows 16 D bytes further. */
struct scatter_dst {
    uint64_t address;
    uint32_t off;       /* bit r: slot g + 8 r is not valid */
    float factor[2];    /* f16: 2^k of both */
    uint32_t exponents; /* pairs: row16_exponent of both slots for this CTA's heads, and for the other's, in bytes */
};

/* power: of two, of the tile's P and dS. */
static __device__ __forceinline__ void store_unit(const struct scatter_dst *to, uint32_t sums, int tile, int r,
                                                  uint32_t exponent, uint32_t power) {
    const uint32_t thread = (uint32_t)recompute((int)threadIdx.x), slot = 16 * (thread >> 5 & 3) + (thread >> 2 & 7);
    if ((thread & 3) == 0 && !(to->off >> r & 1))
        *((uint8_t *)kept(sums + 8) + (64 * (uint32_t)tile + slot + 8 * r)) = (uint8_t)(row16_unit(exponent) - power);
}

/* Alternating: producers, of what each has copied itself, when it is there. */
static __device__ __forceinline__ void publish_max_magnitudes(uint32_t shared) {
    store_max_magnitude<0>(shared, 1);
    store_max_magnitude<1>(shared, 1);
    __syncwarp();
    if (lane_of() == 0) mbar_arrive(shared + MOST_FULL);
}

/* Which slots are valid; before the tile's slot rows are released. */
static __device__ __forceinline__ void begin_rows(const struct kp_mla_bwd *p, struct scatter_dst *to, uint32_t shared,
                                                  uint32_t buf) {
    const uint32_t thread = (uint32_t)recompute((int)threadIdx.x), slot = 16 * (thread >> 5 & 3) + (thread >> 2 & 7);
    const uint32_t slot_rows = shared + SLOT_ROWS_AT + 256 * buf + 4 * slot;
    to->off = 3, to->exponents = 0;
    if (p->dkv.data) to->off = shared_load32(slot_rows) >> 31 | shared_load32(slot_rows + 32) >> 31 << 1;
}
/* Slots g + 8 r get their bound and P^T and dS^T of them, registers 4 kk + 2 h + r, their power of two. sums: where
 * rows and units of the work tile begin is kept, tile: of it, if the units are to be stored; buf: which
 * buffer has its kv rows. */
static __device__ __forceinline__ void bound_rows(struct scatter_dst *to, struct tile *t, int r, uint32_t shared,
                                                  uint32_t sums, int tile, uint32_t buf, int store) {
    const float q = max_magnitude(shared, 0), o = max_magnitude(shared, 1);
    uint32_t prob = 0, ds = 0;
#pragma unroll
    for (int k = r; k < 16; k += 2) prob = most_pair(prob, t->probs[k]), ds = most_pair(ds, t->ds[k]);
    prob = most_of(0, prob), ds = most_of(0, ds);
    const float x = unpack16(TYPE, prob >> 16), y = unpack16(TYPE, ds >> 16);
    /* so large at least that 2^k times P or dS is finite, whatever Q and dO are */
    uint32_t bound = __float_as_uint(64 * __fmaf_rn(x, o, y * q) + 0x1p-100f * (x + y)) & 0x7fffffff;
    bound = max(bound, __shfl_xor_sync(~0u, bound, 1));
    bound = max(bound, __shfl_xor_sync(~0u, bound, 2));
    /* f16: less the tile's power, up to 15, it is to be a byte */
    const uint32_t exponent = max(row16_exponent(bound), SCALED ? 30u : 15u), factor = row16_factor(exponent);
    to->factor[r] = __uint_as_float(factor);
    to->exponents |= exponent << 8 * r;
    if (TYPE == KP_BF16) {
        const uint32_t both = factor | factor >> 16;
#pragma unroll
        for (int k = r; k < 16; k += 2) {
            t->probs[k] = multiply_bf16x2(t->probs[k], both);
            t->ds[k] = multiply_bf16x2(t->ds[k], both);
        }
    }
    if (store) store_unit(to, sums, tile, r, exponent, SCALED ? (uint32_t)exponent_at(shared, buf) : 0);
}
/* After barrier 6, before the tile's first product of dkv. */
template <int W>
static __device__ __forceinline__ void begin_dst(const struct kp_mla_bwd *p, struct scatter_dst *to, struct tile *t,
                                                 uint32_t shared, uint32_t sums, int tile, uint32_t buf) {
    begin_rows(p, to, shared, buf);
#pragma unroll
    for (int r = 0; r < 2; r++) bound_rows(to, t, r, shared, sums, tile, buf, CTAS == 1 && W == 0);
}
/* half: of each 64 columns, that this CTA stores. */
static __device__ __forceinline__ void find_dst(const struct kp_mla_bwd *, struct scatter_dst *to, uint32_t,
                                                uint32_t sums, int tile, uint32_t, uint32_t half) {
    const uint32_t thread = (uint32_t)recompute((int)threadIdx.x), slot = 16 * (thread >> 5 & 3) + (thread >> 2 & 7);
    to->address = address_of(kept(sums) + 64 * half + 16 * (thread & 3), 64 * (uint32_t)tile + slot, 2 * D);
}

/* Lane 4 g + t has d[4 j + 2 r + e]: slot g + 8 r, column 8 j + 2 t + e. */
static __device__ __forceinline__ void write_columns(const float d[16], const struct scatter_dst *to, uint32_t column) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float f = TYPE == KP_BF16 ? 1 : to->factor[r];
        uint32_t word[4];
#pragma unroll
        for (int j = 0; j < 4; j++) word[j] = pack16(KP_F16, d[4 * j + 2 * r] * f, d[4 * j + 2 * r + 1] * f);
        store_once4((char *)to->address + 2 * column + r * 16 * D, word, ~to->off >> r & 1);
    }
}
#endif
