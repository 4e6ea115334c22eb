/* SPDX-License-Identifier: MIT
 * Sparse MLA backward on mma.sync: f16 and bf16, D = 576 or 512, every chip from sm_80 on. One CTA owns a block of
 * heads of one query and walks the query's slots, a tile at a time. Row states (lse, g, shift) come from
 * mla_bwd_prepare.cu.
 *
 *   S = Q K^T      P' = exp2(scale log2(e) S - lse2)      dP = dO V^T      P = g P'      dS = scale P' (g dP - shift)
 *   dQ += dS K                              dKV = dS^T Q, and P^T dO in the first 512 columns
 *
 *   kv rows --cp.async gather--> K tile --ldmatrix-------+-> S  (half of the warps) --exp2--> P' --+
 *                                       \               Q                                         shared, 16 bits
 *                                        \-ldmatrix------+-> dP (the other half) -----------------+-> dS --shared--+
 *                                         \             dO                                                       |
 *                                          \--ldmatrix.trans--> dQ (registers, all slots) <-----------ldmatrix---+
 *   next gather starts here                                                                                      |
 *        P^T, dS^T --ldmatrix.trans--> A     dO, Q --ldmatrix.trans--> B     dKV (f32) --transposed over lanes--> |
 *                                                                        red.global.add, whole lines  <----------+
 *
 * dP's warps need P' in f32: S's warps leave it as a sum of two 16-bit numbers, the rounded one in P (where it stays,
 * unless a sink makes P = g P') and the rest in dS, where the same lane's dS replaces it. In f16 P' is 2^14 times as
 * large, so that it keeps 11 digits down to 2^-28, and the rest 2^12 times that.
 *
 * f16: dS is multiplied by a power of two that puts the largest dS of the query's tiles so far just below 2^15. dP's
 * warps agree on it between the two halves of their work, over a barrier; when it falls, dQ follows. P has a power of
 * its own, from the block's largest g: a sink may leave the slots of every head 2^-14 of the weight, or 2^-80. dKV
 * brings P^T dO to units of dS^T Q before it adds that, and undoes dS's power for each tile; dQ at the end.
 *
 * Shared memory: Q | dO | K tile | P | dS | states of the rows | where the gradients of a tile's slots go, of this tile
 * and of the next | sums of P' for dist | f16: largest dS of four warps, of two tiles; power
 * of P. Bytes with 64 heads, 64 slots, D = 576: 73728 + 65536 + 73728 + 8192 + 8192 + 1024 + 1024 + 512 = 231936. At
 * the end dQ takes the place of Q.
 *
 * Barriers of a tile: (1) its K tile has come, and P, dS of the tile before are read; (2) P' stands; (3) dS stands;
 * (4) K has been read by dQ: the next gather overwrites it. dKV reads no K, so it runs under that gather.
 *
 * Slots that are not valid: K rows are zeros, P' = dS = 0, no gradient is stored. Empty rows: Q and dO rows are zeros
 * and P' = dS = 0 by choice, so that NaN from kv stays out. Variants `_det` store each gradient as a row instead
 * of adding it to its kv row; kernels/smxx/mla_bwd_sort.cu and mla_bwd_sum.cu add the rows up in a fixed order.
 * Registers, figures, what was tried: docs/kernels/mla_bwd_sm80.md. */
#include "kernels/device/mma.h"
#include "kernels/sm80/mla_bwd_tile.h"

/* ------------------------------------------------------------------ products ----------------------- */

/* 16-column steps of a partial sum. mma.sync cuts off what lies below the running sum's last bit, always towards zero;
 * over a whole row that bias shows in dist (large scores) and in dS (dP close to Delta), so partial sums begin at zero
 * and are joined by f32 additions, which round. */
constexpr int PART = 2;
static_assert(DIM % (16 * PART) == 0 && DIM_V % (16 * PART) == 0, "whole partial sums");

/* x += A B^T over 16 `steps` columns: A from rows of heads, B from rows of slots. */
static __device__ __forceinline__ void multiply(float x[M_H][N_S][4], uint32_t a_lane, int a_pitch, uint32_t b_lane,
                                                int steps) {
#pragma unroll 1
    for (int part = 0; part < steps; part += PART) {
        float y[M_H][N_S][4];
#pragma unroll
        for (int m = 0; m < M_H; m++)
#pragma unroll
            for (int n = 0; n < N_S; n++) y[m][n][0] = y[m][n][1] = y[m][n][2] = y[m][n][3] = 0;
#pragma unroll
        for (int k = part; k < part + PART; k++) {
            uint32_t a[M_H][4];
#pragma unroll
            for (int m = 0; m < M_H; m++) load_matrix4(a[m], tile_step(a_lane, Q_PITCH, 2 * k) + m * 16 * a_pitch);
#pragma unroll
            for (int n = 0; n < N_S; n += 2) {
                uint32_t b[4];
                load_matrix4(b, tile_step(b_lane, Q_PITCH, 2 * k) + n * 8 * Q_PITCH);
#pragma unroll
                for (int m = 0; m < M_H; m++) {
                    mma_m16n8k16(TYPE, y[m][n], a[m], b[0], b[1]);
                    mma_m16n8k16(TYPE, y[m][n + 1], a[m], b[2], b[3]);
                }
            }
        }
#pragma unroll
        for (int m = 0; m < M_H; m++)
#pragma unroll
            for (int n = 0; n < N_S; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) x[m][n][e] += y[m][n][e];
        __syncwarp(); /* ptxas would unroll, and have several y at a time */
    }
}

/* rQ += dS K: the warp's heads; column groups warp, warp + Q_WARPS, ... */
static __device__ __forceinline__ void add_dq(float rQ[M_H][2 * DQ_GROUPS][4], uint32_t base) {
    const int lane = lane_of(), head = warp_of() % HEAD_WARPS * WARP_HEADS, group = warp_of() / HEAD_WARPS;
    const uint32_t a_lane = base + AT_DS + tile_at(P_PITCH, head + lane % 16, lane / 16);
    const uint32_t b_lane = base + AT_KV + tile_at(Q_PITCH, lane % 16, 2 * group + lane / 16);
#pragma unroll
    for (int k = 0; k < SLOTS / 16; k++) {
        uint32_t a[M_H][4];
#pragma unroll
        for (int m = 0; m < M_H; m++) load_matrix4(a[m], tile_step(a_lane, P_PITCH, 2 * k) + m * 16 * P_PITCH);
#pragma unroll
        for (int n = 0; n < DQ_GROUPS; n++) {
            uint32_t b[4];
            load_matrix4_trans(b, tile_step(b_lane, Q_PITCH, 2 * Q_WARPS * n) + k * 16 * Q_PITCH);
#pragma unroll
            for (int m = 0; m < M_H; m++) {
                mma_m16n8k16(TYPE, rQ[m][2 * n], a[m], b[0], b[1]);
                mma_m16n8k16(TYPE, rQ[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* x += A^T B: A = P or dS, rows of heads; B = dO or Q, rows of heads; `columns` of them from the lane's first. */
static __device__ __forceinline__ void add_slots(float *x, int columns, uint32_t a_lane, uint32_t b_lane, int pitch,
                                                 int k) {
    uint32_t a[M_S][4];
#pragma unroll
    for (int m = 0; m < M_S; m++) load_matrix4_trans(a[m], tile_step(a_lane, P_PITCH, 2 * m) + k * 16 * P_PITCH);
#pragma unroll
    for (int n = 0; n < columns / 8; n += 2) {
        uint32_t b[4];
        load_matrix4_trans(b, tile_step(b_lane, Q_PITCH, n) + k * 16 * pitch);
#pragma unroll
        for (int m = 0; m < M_S; m++) {
            float *c = x + (m * (columns / 8) + n) * 4;
            mma_m16n8k16(TYPE, c, a[m], b[0], b[1]);
            mma_m16n8k16(TYPE, c + 4, a[m], b[2], b[3]);
        }
    }
}

/* ------------------------------------------------------------------ P and dS ----------------------- */

/* Address of columns 8 n + 2 t of row 16 m + 8 r + g of the warp's part of P or dS. */
static __device__ __forceinline__ uint32_t cell_of(uint32_t tile, int m, int r, int n) {
    const int lane = lane_of(), square = warp_of() % SQUARE;
    const int head = square % HEAD_WARPS * WARP_HEADS + 16 * m + 8 * r + (lane >> 2);
    return tile + tile_at(P_PITCH, head, square / HEAD_WARPS * N_S + n) + 4 * (lane & 3);
}
static __device__ __forceinline__ uint4 state_of(uint32_t base, int m, int r) {
    const int head = warp_of() % SQUARE % HEAD_WARPS * WARP_HEADS + 16 * m + 8 * r + (lane_of() >> 2);
    return shared_load128(base + AT_ROWS + 16 * head);
}

/* f16: the rest of P' is REST_UP times as large as P'. */
constexpr float P_UP = 1 << P_POWER, REST_UP = SCALED ? 4096 : 1, REST_DOWN = 1 / REST_UP;

/* Scores to P', and P' to shared memory in two parts. */
static __device__ __forceinline__ void store_p(const struct kp_mla_bwd *p, uint32_t base, uint32_t offsets,
                                               float x[M_H][N_S][4]) {
    const int lane = lane_of(), slot0 = warp_of() % SQUARE / HEAD_WARPS * WARP_SLOTS;
    uint32_t hidden = 0; /* bit 2 n + e: slot 8 n + 2 t + e of the warp */
#pragma unroll
    for (int n = 0; n < N_S; n++) {
        const uint4 offset = shared_load128(offsets + 8 * (slot0 + 8 * n + 2 * (lane & 3)));
        hidden |= ((uint32_t)(offset.y == NOWHERE) | (uint32_t)(offset.w == NOWHERE) << 1) << 2 * n;
    }
#pragma unroll
    for (int m = 0; m < M_H; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float lse2 = __uint_as_float(state_of(base, m, r).x);
            const uint32_t mask = lse2 == INF ? ~0u : hidden;
#pragma unroll
            for (int n = 0; n < N_S; n++) {
                float *y = x[m][n] + 2 * r;
#pragma unroll
                for (int e = 0; e < 2; e++)
                    y[e] = mask >> (2 * n + e) & 1 ? 0 : exp2_fast(__fmaf_rn(y[e], p->in.scale_log2, -lse2));
                const uint32_t pair = pack16(TYPE, y[0] * P_UP, y[1] * P_UP);
                shared_store32(cell_of(base + AT_P, m, r, n), pair);
                shared_store32(cell_of(base + AT_DS, m, r, n),
                               pack16(TYPE, (y[0] * P_UP - unpack16(TYPE, pair & 0xffff)) * REST_UP,
                                      (y[1] * P_UP - unpack16(TYPE, pair >> 16)) * REST_UP));
            }
        }
}

/* The warp's sums of P' over its heads, per slot, for dist. */
static __device__ __forceinline__ void sum_heads(uint32_t base, const float x[M_H][N_S][4]) {
    const int lane = lane_of(), square = warp_of() % SQUARE;
    const uint32_t to = base + AT_DIST + 4 * (square % HEAD_WARPS * SLOTS + square / HEAD_WARPS * WARP_SLOTS);
#pragma unroll
    for (int n = 0; n < N_S; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float y = 0;
#pragma unroll
            for (int m = 0; m < M_H; m++) y += x[m][n][e] + x[m][n][2 + e];
#pragma unroll
            for (int d = 4; d < 32; d *= 2) y += __shfl_xor_sync(~0u, y, d);
            if (lane < 4) shared_store32(to + 4 * (8 * n + 2 * lane + e), __float_as_uint(y));
        }
}
static __device__ __forceinline__ void store_dist(const struct kp_mla_bwd *p, const struct work *w, uint32_t base,
                                                  int tile) {
    const int slot = thread_of(), t = tile * SLOTS + slot;
    float *to = (float *)p->part_dist + (w->block * p->in.batch * p->in.seq_q + w->flat) * p->in.topk;
    if (slot >= SLOTS || t >= p->in.topk) return;
    float y = 0;
#pragma unroll
    for (int k = 0; k < HEAD_WARPS; k++) y += __uint_as_float(shared_load32(base + AT_DIST + 4 * (k * SLOTS + slot)));
    to[t] = y;
}

/* The power of P. */
static __device__ __forceinline__ int p_power(uint32_t base) { return (int)shared_load32(base + AT_LARGEST + 24); }

/* AT_LARGEST: f32 of each of dP's warps; +16: the largest of the query's tiles up to an even one, to an odd one. */
static __device__ __forceinline__ int exponent_at(uint32_t base, int tile) {
    return exponent_for(__uint_as_float(shared_load32(base + AT_LARGEST + 16 + 4 * (tile & 1))));
}
static __device__ __forceinline__ void leave_largest(uint32_t base, float largest) {
#pragma unroll
    for (int d = 1; d < 32; d *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, d));
    if (lane_of() == 0) shared_store32(base + AT_LARGEST + 4 * (warp_of() - SQUARE), __float_as_uint(largest));
}
/* How far dS goes up, once all of dP's warps have left theirs. */
static __device__ __forceinline__ float agreed(uint32_t base, int tile) {
    const uint32_t sizes = base + AT_LARGEST;
    float largest = tile > 0 ? __uint_as_float(shared_load32(sizes + 16 + 4 * (tile & 1 ^ 1))) : 0;
#pragma unroll
    for (int w = 0; w < SQUARE; w++) largest = fmaxf(largest, __uint_as_float(shared_load32(sizes + 4 * w)));
    if (thread_of() == 32 * SQUARE) shared_store32(sizes + 16 + 4 * (tile & 1), __float_as_uint(largest));
    return power_of_two(exponent_for(largest));
}

/* dP to dS, with P' from shared memory. f16: it stays in x, and its largest number is left. */
static __device__ __forceinline__ void form_ds(const struct kp_mla_bwd *p, uint32_t base, float x[M_H][N_S][4]) {
    float largest = 0;
#pragma unroll
    for (int m = 0; m < M_H; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint4 state = state_of(base, m, r);
            const float g = __uint_as_float(state.y), shift = __uint_as_float(state.z);
            const int empty = __uint_as_float(state.x) == INF;
#pragma unroll
            for (int n = 0; n < N_S; n++) {
                const uint32_t at_p = cell_of(base + AT_P, m, r, n), at_ds = cell_of(base + AT_DS, m, r, n);
                const uint32_t most = shared_load32(at_p), rest = shared_load32(at_ds);
                float prob[2], y[2];
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const float a = unpack16(TYPE, most >> 16 * e & 0xffff),
                                b = unpack16(TYPE, rest >> 16 * e & 0xffff);
                    prob[e] = SCALED ? __fmaf_rn(b, REST_DOWN, a) : a + b;
                    y[e] = empty ? 0 : prob[e] * p->in.scale * __fmaf_rn(g, x[m][n][2 * r + e], -shift);
                }
                if (SCALED) {
                    x[m][n][2 * r] = y[0], x[m][n][2 * r + 1] = y[1];
                    largest = fmaxf(largest, fmaxf(if_finite(fabsf(y[0])), if_finite(fabsf(y[1]))));
                } else {
                    shared_store32(at_ds, pack16(TYPE, y[0], y[1]));
                }
                const float up = SCALED ? __uint_as_float(state.w) : g;
                if (p->in.sink) shared_store32(at_p, pack16(TYPE, empty ? 0 : up * prob[0], empty ? 0 : up * prob[1]));
            }
        }
    if (SCALED) leave_largest(base, largest);
}

static __device__ __forceinline__ void store_scaled(uint32_t base, int tile, const float x[M_H][N_S][4]) {
    const float up = agreed(base, tile);
#pragma unroll
    for (int m = 0; m < M_H; m++)
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int n = 0; n < N_S; n++)
                shared_store32(cell_of(base + AT_DS, m, r, n),
                               pack16(TYPE, x[m][n][2 * r] * up, x[m][n][2 * r + 1] * up));
}

/* dQ, in units of the tile before, in those of this tile. */
static __device__ __forceinline__ void follow(float rQ[M_H][2 * DQ_GROUPS][4], uint32_t base, int tile) {
    const int change = tile > 0 ? exponent_at(base, tile) - exponent_at(base, tile - 1) : 0;
    if (change == 0) return;
    const float factor = power_of_two(max(-126, min(change, 126)));
#pragma unroll
    for (int m = 0; m < M_H; m++)
#pragma unroll
        for (int n = 0; n < 2 * DQ_GROUPS; n++)
#pragma unroll
            for (int c = 0; c < 4; c++) rQ[m][n][c] *= factor;
}

/* ------------------------------------------------------------------ dkv of a tile ------------------ */

/* n sums of products in other units. */
static __device__ __forceinline__ void multiply_sums(float *x, int n, float factor) {
#pragma unroll
    for (int c = 0; c < n; c++) x[c] *= factor;
}

static __device__ __forceinline__ void add_dkv(const struct kp_mla_bwd *p, const struct work *w, uint32_t base,
                                               uint32_t offsets, int tile) {
    const int lane = lane_of(), slot0 = warp_of() % SLOT_WARPS * WARP_SLOTS, group = warp_of() / SLOT_WARPS;
    const uint32_t a_lane = tile_at(P_PITCH, lane % 8 + lane / 16 * 8, slot0 / 8 + lane / 8 % 2);
    float *to = STORED_ROWS ? (float *)p->stored_rows + w->index * p->in.topk * DIM
                            : (float *)p->sum.data + w->b * p->sum.batch;
    offsets += 8 * slot0;
#pragma unroll 1
    for (int pass = 0; pass < PASSES; pass++) {
        const int column0 = (pass * K_WARPS + group) * COLS;
        const uint32_t o_lane = base + AT_DOUT + tile_at(O_PITCH, lane % 16, column0 / 8 + lane / 16);
        const uint32_t q_lane = base + AT_Q + tile_at(Q_PITCH, lane % 16, column0 / 8 + lane / 16);
        float x[M_S * (COLS / 8) * 4];
#pragma unroll
        for (int c = 0; c < M_S * (COLS / 8) * 4; c++) x[c] = 0;
#pragma unroll
        for (int k = 0; k < HEADS / 16; k++) {
            add_slots(x, COLS, base + AT_P + a_lane, o_lane, O_PITCH, k);
            if (!SCALED) add_slots(x, COLS, base + AT_DS + a_lane, q_lane, Q_PITCH, k);
        }
        if (SCALED) {
            multiply_sums(x, M_S * (COLS / 8) * 4, power_of_two(max(exponent_at(base, tile) - p_power(base), -126)));
#pragma unroll
            for (int k = 0; k < HEADS / 16; k++) add_slots(x, COLS, base + AT_DS + a_lane, q_lane, Q_PITCH, k);
            multiply_sums(x, M_S * (COLS / 8) * 4, power_of_two(-exponent_at(base, tile)));
        }
#pragma unroll
        for (int m = 0; m < M_S; m++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                emit_rows(x + m * (COLS / 8) * 4, COLS / 8, half, to, offsets + 8 * 16 * m, column0);
    }
    if (ROPE == 0) return;
    constexpr int LEFT = ROPE > 0 ? ROPE : 16;
    const int column0 = DIM_V + group * LEFT;
    const uint32_t q_lane = base + AT_Q + tile_at(Q_PITCH, lane % 16, column0 / 8 + lane / 16);
    float x[M_S * (LEFT / 8) * 4];
#pragma unroll
    for (int c = 0; c < M_S * (LEFT / 8) * 4; c++) x[c] = 0;
#pragma unroll
    for (int k = 0; k < HEADS / 16; k++) add_slots(x, LEFT, base + AT_DS + a_lane, q_lane, Q_PITCH, k);
    if (SCALED) multiply_sums(x, M_S * (LEFT / 8) * 4, power_of_two(-exponent_at(base, tile)));
#pragma unroll
    for (int m = 0; m < M_S; m++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            emit_rows(x + m * (LEFT / 8) * 4, LEFT / 8, half, to, offsets + 8 * 16 * m, column0);
}

/* ------------------------------------------------------------------ one work tile ------------------ */

/* Round dQ, without its factor, into the place of Q, and copy it out. */
static __device__ __forceinline__ void store_dq(const struct kp_mla_bwd *p, const struct work *w, uint32_t base,
                                                float undo, const float rQ[M_H][2 * DQ_GROUPS][4]) {
    const int lane = lane_of(), head = warp_of() % HEAD_WARPS * WARP_HEADS + (lane >> 2),
              group = warp_of() / HEAD_WARPS;
#pragma unroll
    for (int m = 0; m < M_H; m++)
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int n = 0; n < 2 * DQ_GROUPS; n++)
                shared_store32(base + AT_Q +
                                   tile_at(Q_PITCH, head + 16 * m + 8 * r, 2 * (group + n / 2 * Q_WARPS) + n % 2) +
                                   4 * (lane & 3),
                               pack16(TYPE, rQ[m][n][2 * r] * undo, rQ[m][n][2 * r + 1] * undo));
    __syncthreads();
    uint16_t *to = (uint16_t *)p->dq.data + w->b * p->dq.batch + w->i * p->dq.row + w->head0 * p->dq.head;
#pragma unroll 1
    for (int x = thread_of(); x < w->heads * (DIM / 8); x += THREADS) {
        const int r = x / (DIM / 8), c = x % (DIM / 8);
        const uint4 a = shared_load128(base + AT_Q + tile_at(Q_PITCH, r, c));
        uint16_t *column = to + r * p->dq.head + 8 * c;
        if (p->dq.chunk == 16) {
            *(uint4 *)column = a;
            continue;
        }
        const uint32_t word[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
        for (int e = 0; e < 8; e++) column[e] = (uint16_t)(word[e / 2] >> (e % 2 * 16));
    }
}

static __device__ __forceinline__ void run_tile(const struct kp_mla_bwd *p, const struct work *w) {
    constexpr int FOUND = SLOTS / (THREADS / 8);
    const uint32_t base = shared_base();
    const struct gather g = gather_of(&p->in, w->b, w->i);
    const int n_tiles = (g.slots.n + SLOTS - 1) / SLOTS;
    int rows[FOUND];
    float rQ[M_H][2 * DQ_GROUPS][4];
#pragma unroll
    for (int m = 0; m < M_H; m++)
#pragma unroll
        for (int n = 0; n < 2 * DQ_GROUPS; n++) rQ[m][n][0] = rQ[m][n][1] = rQ[m][n][2] = rQ[m][n][3] = 0;

    if (n_tiles > 0) {
        find_rows(&g, 0, SLOTS, THREADS, thread_of(), rows);
        load_rows(p, w, base);
        gather_tile(p, &g, base, 0, rows);
        __syncthreads();
        load_heads(&p->in.q, w, base + AT_Q, base, DIM);
        load_heads(&p->dout, w, base + AT_DOUT, base, DIM_V);
        copy_commit();
        find_rows(&g, SLOTS, SLOTS, THREADS, thread_of(), rows);
    }
#pragma unroll 1
    for (int tile = 0; tile < n_tiles; tile++) {
        const uint32_t offsets = base + AT_OFFSETS + (tile & 1) * SLOTS * 8;
        copy_wait(0);
        __syncthreads(); /* 1 */
        {
            const int lane = lane_of(), square = warp_of() % SQUARE, is_dp = warp_of() / SQUARE;
            const int head = square % HEAD_WARPS * WARP_HEADS, slot = square / HEAD_WARPS * WARP_SLOTS;
            const int a_pitch = is_dp ? O_PITCH : Q_PITCH;
            const uint32_t a_lane =
                base + (is_dp ? AT_DOUT : AT_Q) + (head + lane % 16) * a_pitch + ((lane / 16 ^ (lane & 7)) << 4);
            const uint32_t b_lane = base + AT_KV + tile_at(Q_PITCH, slot + lane % 8 + lane / 16 * 8, lane / 8 % 2);
            float x[M_H][N_S][4];
#pragma unroll
            for (int m = 0; m < M_H; m++)
#pragma unroll
                for (int n = 0; n < N_S; n++) x[m][n][0] = x[m][n][1] = x[m][n][2] = x[m][n][3] = 0;
            multiply(x, a_lane, a_pitch, b_lane, is_dp ? DIM_V / 16 : DIM / 16);
            if (!is_dp) {
                store_p(p, base, offsets, x);
                if (p->part_dist) sum_heads(base, x);
            }
            __syncthreads(); /* 2 */
            if (is_dp) form_ds(p, base, x);
            if constexpr (SCALED) {
                __syncthreads(); /* 2, once more: dP's warps alone would do, but racecheck sees races after that */
                if (is_dp) store_scaled(base, tile, x);
            }
        }
        if (p->part_dist) store_dist(p, w, base, tile);
        __syncthreads(); /* 3 */
        if (p->dq.data) {
            if (SCALED) follow(rQ, base, tile);
            add_dq(rQ, base);
        }
        __syncthreads(); /* 4 */
        if (tile + 1 < n_tiles) {
            gather_tile(p, &g, base, tile + 1, rows);
            find_rows(&g, (tile + 2) * SLOTS, SLOTS, THREADS, thread_of(), rows);
        }
        copy_commit();
        if (p->dkv.data) add_dkv(p, w, base, offsets, tile);
    }
    copy_wait(0);
    __syncthreads();
    const float undo = SCALED && n_tiles > 0 ? power_of_two(-exponent_at(base, n_tiles - 1)) : 1;
    if (p->dq.data) store_dq(p, w, base, undo, rQ);
}

extern "C" __global__ void __launch_bounds__(THREADS, CFG_CTAS) CFG(const __grid_constant__ struct kp_mla_bwd p) {
    for (int64_t index = blockIdx.x; index < p.n * p.head_blocks; index += gridDim.x) {
        struct work w;
        find_work(&p, index, &w);
        run_tile(&p, &w);
        __syncthreads(); /* the next tile's copies overwrite dQ and the rows' states */
    }
}
