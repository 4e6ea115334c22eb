/* SPDX-License-Identifier: MIT
 * Part of mla_bwd_wgmma.cu: configuration of the variant, the plan of shared memory and the producer warpgroup.
 * Included once; the picture, roles and barriers stand there. */
#ifndef ATTN_SM90_MLA_BWD_PLAN_WGMMA_H
#define ATTN_SM90_MLA_BWD_PLAN_WGMMA_H
#include "kernels/device/number.h"
#include "kernels/device/wgmma.h"
#include "kernels/sm90/mla_gather_wgmma.h"

constexpr int TYPE = CFG_DTYPE, D = CFG_DIM, PAIRS = CFG_DETERMINISTIC, CTAS = CFG_CTAS;
static_assert(D == 576 || D == 512, "the slices of a key row");
constexpr int SLICES = D / 64, V_SLICES = KP_MLA_DIM_V / 64;

/* Shared memory by byte offsets. */
constexpr uint32_t Q_AT = 0, DOUT_AT = Q_AT + SLICES * SLICE, K_AT = DOUT_AT + V_SLICES * SLICE;
constexpr uint32_t P_AT = K_AT + SLICES * SLICE, DS_AT = P_AT + SLICE;
constexpr uint32_t NOTE_AT = DS_AT + SLICE;   /* int32_t [2][64]: kv rows of the slots, or -1 */
constexpr uint32_t MASK_AT = NOTE_AT + 512;   /* uint32_t [2][2]: valid slots */
constexpr uint32_t PART_AT = MASK_AT + 16;    /* float [2 warpgroups][4 warps][32 slots]: sums of P' for dist */
constexpr uint32_t STATE_AT = PART_AT + 1024; /* uint4 [64]: lse2, g, shift of the heads */
constexpr uint32_t ITEM_AT = STATE_AT + 1024; /* what the producers keep of their item: list, n, keys; first kv row */
constexpr uint32_t ROWS_AT = ITEM_AT + 64;    /* uint4 [2 warpgroups][2]: what compute keeps of its item */
constexpr uint32_t SUMS_AT = ROWS_AT + 64;    /* uint4: what gradients keep of their item */
constexpr uint32_t BARS_AT = SUMS_AT + 16;    /* mbarriers */
constexpr uint32_t Q_FULL = BARS_AT, Q_FREE = Q_FULL + 72, K_FULL = Q_FREE + 72, K_FREE = K_FULL + 72;
constexpr uint32_t PD_FULL = K_FREE + 16, PD_FREE = PD_FULL + 8, STAGE_FULL = PD_FREE + 8;
constexpr uint32_t STAGE_FREE = STAGE_FULL + 32, PLAN_END = STAGE_FREE + 32;
constexpr uint32_t STAGE_AT = P_AT; /* CTAS = 2: float4 [4 warps][4][32 lanes], what the other CTA has sent */
static_assert(BARS_AT % 8 == 0 && PLAN_END <= KP_MLA_BWD_SM90_SHARED(D), "the plan fits");
static_assert(KP_MLA_BWD_SM90_SHARED(D) <= 232448, "what a CTA of Hopper may have");

/* The k-th item of this CTA, or of this pair of CTAs; less than p->n * p->head_blocks if there is one. */
static __device__ __forceinline__ int64_t item_at(uint32_t k) {
    return (int64_t)recompute((int)k) * (int64_t)(gridDim.x / CTAS) + blockIdx.x / CTAS;
}
static __device__ __forceinline__ int has_item(const struct kp_mla_bwd *p, uint32_t k) {
    return item_at(k) < p->n * p->head_blocks;
}
static __device__ __forceinline__ uint32_t rank_of(void) {
    return CTAS == 2 ? (uint32_t)recompute((int)blockIdx.x) & 1 : 0;
}

static __device__ __forceinline__ struct item work_of(const struct kp_mla_bwd *p, int64_t at) {
    const int64_t query = at / p->head_blocks, flat = p->first + query;
    struct item w;
    w.head = ((int)(at - query * p->head_blocks) * CTAS + (int)rank_of()) * 64;
    w.b = flat / p->in.seq_q;
    w.i = flat - w.b * p->in.seq_q;
    return w;
}
static __device__ __forceinline__ const struct kp_mla_row *states_of(const struct kp_mla_bwd *p, const struct item *w) {
    return (const struct kp_mla_row *)p->rows + ((w->b * p->in.seq_q + w->i) * p->in.heads_q + w->head);
}

/* ------------------------------------------------------------------ producers ---------------------- */

/* Thread x of the 128 copies chunk x % 8 of rows x / 8 + 16 k of every slice, as in mla_gather_wgmma.h. What can be
 * computed again is not kept: the warps have few registers. */
static __device__ __forceinline__ uint32_t place_of(void) {
    const int x = recompute((int)threadIdx.x) & 127, row = x >> 3;
    return (uint32_t)(row * 128 + (((x & 7) ^ (row & 7)) << 4));
}

/* What is the same for all of an item's tiles waits in shared memory: {list, n, keys}, {kv, heads, -}, {q, dout},
 * {states, -}. */
static __device__ __forceinline__ uint64_t kept(uint32_t at) {
    return (uint64_t)shared_load32(at + 4) << 32 | shared_load32(at);
}
static __device__ __forceinline__ void keep4(uint32_t at, uint64_t x, uint64_t y) {
    shared_store128(at, make_uint4((uint32_t)x, (uint32_t)(x >> 32), (uint32_t)y, (uint32_t)(y >> 32)));
}
static __device__ __forceinline__ int keep_item(const struct kp_mla_bwd *p, int64_t at, uint32_t shared) {
    named_sync(4, 128); /* the last item's is read */
    if ((threadIdx.x & 127) == 0) {
        const struct item w = work_of(p, at);
        const struct slots s = slots_of(&p->in, w.b, w.i);
        keep4(shared + ITEM_AT, (uint64_t)s.idx, (uint64_t)s.keys << 32 | (uint32_t)s.n);
        keep4(shared + ITEM_AT + 16, p->in.kv.data + 2 * (uint64_t)(w.b * p->in.kv.batch),
              (uint32_t)max(p->in.heads_q - w.head, 0));
        keep4(shared + ITEM_AT + 32,
              p->in.q.data + 2 * (uint64_t)(w.b * p->in.q.batch + w.i * p->in.q.row + w.head * p->in.q.head),
              p->dout.data + 2 * (uint64_t)(w.b * p->dout.batch + w.i * p->dout.row + w.head * p->dout.head));
        keep4(shared + ITEM_AT + 48, (uint64_t)states_of(p, &w), 0);
    }
    named_sync(4, 128);
    return (int)shared_load32(shared + ITEM_AT + 8);
}

/* Rows of heads that do not exist or are empty become zeros: no NaN of theirs reaches dkv. */
static __device__ __forceinline__ void load_heads(const struct kp_mla_bwd *p, uint32_t shared, uint32_t parity) {
    uint32_t alive = 0;
    {
        const int thread = (int)threadIdx.x & 127;
        const struct kp_mla_row *states = (const struct kp_mla_row *)kept(shared + ITEM_AT + 48);
        const int heads = (int)shared_load32(shared + ITEM_AT + 24);
#pragma unroll
        for (int k = 0; k < 4; k++)
            if ((thread >> 3) + 16 * k < heads) alive |= (uint32_t)(states[(thread >> 3) + 16 * k].lse2 != INF) << k;
        mbar_wait(shared + Q_FREE, parity);
        if (thread < 64) {
            float4 y = make_float4(INF, 0, 0, 0);
            if (thread < heads) y = *(const float4 *)(states + thread);
            shared_store128(shared + STATE_AT + 16 * (uint32_t)thread,
                            make_uint4(__float_as_uint(y.x), __float_as_uint(y.y), __float_as_uint(y.z), 0));
            __syncwarp();
            if ((thread & 31) == 0) mbar_arrive(shared + Q_FULL);
        }
    }
#pragma unroll 1
    for (int x = 0; x < SLICES; x++) {
        mbar_wait(shared + Q_FREE + 8 * (uint32_t)x, parity);
        const int thread = recompute((int)threadIdx.x) & 127, column = (thread & 7) * 8 + x * 64;
        const uint32_t to = shared + place_of() + (uint32_t)(x * SLICE);
        const uint16_t *q = (const uint16_t *)kept(shared + ITEM_AT + 32) + column;
#pragma unroll
        for (int k = 0; k < 4; k++)
            copy_async16(to + Q_AT + k * 2048, q + (alive >> k & 1 ? (thread >> 3) + 16 * k : 0) * p->in.q.head,
                         alive >> k & 1 ? 16 : 0);
        if (x < V_SLICES) {
            const uint16_t *o = (const uint16_t *)kept(shared + ITEM_AT + 40) + column;
#pragma unroll
            for (int k = 0; k < 4; k++)
                copy_async16(to + DOUT_AT + k * 2048, o + (alive >> k & 1 ? (thread >> 3) + 16 * k : 0) * p->dout.head,
                             alive >> k & 1 ? 16 : 0);
        }
        mbar_arrive_copies(shared + Q_FULL + 8 * (uint32_t)x);
    }
}

/* The kv row that the thread's row x / 8 + 16 k of the tile is, or -1. */
static __device__ __forceinline__ int32_t row_of(struct indices valid, int k) {
    return __shfl_sync(~0u, k < 2 ? valid.lo : valid.hi, (((int)threadIdx.x & 127) >> 3) + 16 * (k & 1));
}

/* Indices of tile t, -1 for slots that are not valid. */
static __device__ __forceinline__ struct indices valid_indices(uint32_t shared, int t) {
    const uint4 x = shared_load128(shared + ITEM_AT);
    const struct slots s = {(const int32_t *)((uint64_t)x.y << 32 | x.x), (int)x.z, x.w};
    struct indices y = load_indices(&s, t);
    y.lo = slot_valid(&s, y.lo) ? y.lo : -1;
    y.hi = slot_valid(&s, y.hi) ? y.hi : -1;
    return y;
}

static __device__ __forceinline__ void produce(const struct kp_mla_bwd *p, uint32_t shared) {
    uint32_t parity = 0; /* bit 0: of tiles, bit 1: of items with tiles */
    for (uint32_t item = 0; has_item(p, item); item++) {
        const int tiles = (keep_item(p, item_at(item), shared) + 63) / 64;
        struct indices next = valid_indices(shared, 0);
#pragma unroll 1
        for (int t = 0; t < tiles; t++, parity ^= 1) {
            int32_t row[4];
#pragma unroll
            for (int k = 0; k < 4; k++) row[k] = row_of(next, k);
#pragma unroll 1
            for (int x = 0; x < SLICES; x++) {
                if (x % 4 == 0) mbar_wait(shared + K_FREE + (x == 4 ? 8 : 0), (parity & 1) ^ 1);
                if (x == 0) {
                    const uint32_t lo = __ballot_sync(~0u, next.lo >= 0), hi = __ballot_sync(~0u, next.hi >= 0);
                    if ((recompute((int)threadIdx.x) & 127) < 32) {
                        const uint32_t lane = (uint32_t)recompute((int)threadIdx.x) & 31,
                                       note = shared + NOTE_AT + 256 * (parity & 1) + 4 * lane;
                        shared_store32(note, (uint32_t)next.lo);
                        shared_store32(note + 128, (uint32_t)next.hi);
                        if (lane < 2) shared_store32(shared + MASK_AT + 8 * (parity & 1) + 4 * lane, lane ? hi : lo);
                        __syncwarp();
                        if (lane == 0) mbar_arrive(shared + K_FULL);
                    }
                    next = valid_indices(shared, t + 1);
                }
                const uint32_t to = shared + K_AT + place_of() + (uint32_t)(x * SLICE);
                const uint16_t *kv =
                    (const uint16_t *)kept(shared + ITEM_AT + 16) + (recompute((int)threadIdx.x) & 7) * 8 + x * 64;
#pragma unroll
                for (int k = 0; k < 4; k++)
                    copy_async16(to + k * 2048, kv + (row[k] < 0 ? 0 : row[k]) * p->in.kv.row, row[k] < 0 ? 0 : 16);
                mbar_arrive_copies(shared + K_FULL + 8 * (uint32_t)x);
            }
            if (t == 0) {
                load_heads(p, shared, (parity >> 1) ^ 1);
                parity ^= 2;
            }
        }
    }
}
#endif
