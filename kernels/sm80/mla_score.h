/* SPDX-License-Identifier: MIT
 * Scores of a block of query heads against a tile of gathered kv rows on mma.sync: what the sparse MLA forward and the
 * attention distribution share. Configuration of the variant, Q in registers and shared memory, the product, and the
 * exchange of partial sums between warps. Included once by the kernel.
 *
 * The warps form a grid of head_warps x key_warps x dim_warps. A warp multiplies 16 m_tiles heads with
 * keys / key_warps keys over its share of the D columns: ldmatrix traffic, which limits mma.sync, falls as warp tiles
 * grow towards squares, and few warps are left for large tiles unless the columns are shared out, too.
 *
 *   head_warps x key_warps groups     each of dim_warps warps: partial sums [16 m_tiles][keys / key_warps]
 *        | exchange: each warp keeps 1/dim_warps of the group's fragments, hands the others to their owners
 *        v
 *   a warp owns OWN fragments of 16 heads x 8 keys, all of the same 16 heads
 *
 * The columns are dealt in blocks of 64, a period of the swizzle: FULL blocks for each dim warp, then a block that all
 * share, if D / 64 is odd. The first `held` 16-column steps of a warp's share of Q stay in registers (whole blocks of
 * 4 steps, or all); the rest of Q, without those columns, is a tile in shared memory that every key tile reads again.
 */
#ifndef ATTN_SM80_MLA_SCORE_H
#define ATTN_SM80_MLA_SCORE_H
#include "kernels/device/mma.h"
#include "kernels/device/number.h"
#include "kernels/sm80/mla_load.h"

constexpr int TYPE = CFG_DTYPE, DIM = CFG_DIM, KEYS = CFG_KEYS, M_TILES = CFG_M_TILES, HELD = CFG_HELD;
constexpr int HEAD_WARPS = CFG_HEAD_WARPS, KEY_WARPS = CFG_KEY_WARPS, DIM_WARPS = CFG_DIM_WARPS;
constexpr struct kp_mla_config CONFIG = {nullptr,       CFG_DTYPE,     CFG_DIM,  CFG_M_TILES, CFG_HEAD_WARPS,
                                         CFG_KEY_WARPS, CFG_DIM_WARPS, CFG_KEYS, CFG_HELD,    CFG_CTAS};
constexpr int WARPS = HEAD_WARPS * KEY_WARPS * DIM_WARPS, THREADS = 32 * WARPS, HEADS = 16 * M_TILES * HEAD_WARPS;
constexpr int WARP_KEYS = KEYS / KEY_WARPS, N_S = WARP_KEYS / 8;
constexpr int BLOCKS = DIM / 64, FULL = BLOCKS / DIM_WARPS, ODD = BLOCKS % DIM_WARPS;
constexpr int STEPS = DIM / 16 / DIM_WARPS;                /* 16-column steps of a warp */
constexpr int FREED = HELD == STEPS ? FULL + 1 : HELD / 4; /* blocks of a dim warp's share that Q's tile lacks */
constexpr int KEPT_BLOCKS = HELD == STEPS ? 0 : BLOCKS - FREED * DIM_WARPS;
constexpr int PITCH = 2 * DIM, KEPT_PITCH = 128 * KEPT_BLOCKS, TILE = KEYS * PITCH;
constexpr int OWN = M_TILES * N_S / DIM_WARPS;                /* fragments that a warp owns after the exchange */
constexpr int EXCHANGE = WARPS * (DIM_WARPS - 1) * OWN * 512; /* bytes */
constexpr int DOWN = THREADS / 8, GATHERED = KEYS / DOWN;     /* rows of a tile that one thread copies a part of */

static_assert(DIM % 64 == 0 && ODD <= 1 && (ODD == 0 || 4 % DIM_WARPS == 0), "blocks of 64 columns are dealt");
static_assert(HELD == STEPS || (HELD % 4 == 0 && HELD / 4 <= FULL), "whole blocks of Q are held");
static_assert(M_TILES * N_S % DIM_WARPS == 0 && N_S % OWN == 0 && (OWN % 2 == 0 || OWN == 1),
              "fragments are owned evenly");
static_assert(WARP_KEYS % 16 == 0 && GATHERED >= 1 && DOWN % 8 == 0 && KEYS % DOWN == 0, "whole passes");

static __device__ __forceinline__ int thread_of(void) { return recompute((int)threadIdx.x); }
static __device__ __forceinline__ int lane_of(void) { return thread_of() & 31; }
static __device__ __forceinline__ int warp_of(void) { return thread_of() >> 5; }
static __device__ __forceinline__ int dim_warp_of(void) { return warp_of() % DIM_WARPS; }
static __device__ __forceinline__ int key_warp_of(void) { return warp_of() / DIM_WARPS % KEY_WARPS; }
static __device__ __forceinline__ int head_warp_of(void) { return warp_of() / (DIM_WARPS * KEY_WARPS); }
/* Of the fragments that the warp owns: the first row of their heads in the block, the first key in the tile. */
static __device__ __forceinline__ int own_head_of(void) {
    return 16 * (head_warp_of() * M_TILES + dim_warp_of() * OWN / N_S);
}
static __device__ __forceinline__ int own_key_of(void) {
    return key_warp_of() * WARP_KEYS + dim_warp_of() * OWN % N_S * 8;
}

/* ------------------------------------------------------------------ Q ------------------------------ */

/* Heads h0 .. h0 + HEADS of query (b, i): held columns to a tile `staged` of pitch PITCH, the rest to `kept`. Heads at
 * or past heads_q become zeros. */
static __device__ __forceinline__ void load_queries(const struct kp_mla *p, int64_t b, int64_t i, int64_t h0,
                                                    uint32_t kept, uint32_t staged) {
    const int r0 = (int)threadIdx.x / 8, c0 = (int)threadIdx.x % 8;
    const char *q = (const char *)p->q.data + 2 * (b * p->q.batch + i * p->q.row) + 16 * c0;
#pragma unroll 1
    for (int r = r0; r < HEADS; r += DOWN) {
        const int64_t h = h0 + r;
        const int exists = h < p->heads_q;
        const char *from = q + 2 * (exists ? h : 0) * p->q.head;
#pragma unroll
        for (int x = 0; x < BLOCKS; x++) {
            const int share = x < FULL * DIM_WARPS ? x / FULL : DIM_WARPS,
                      in_share = x < FULL * DIM_WARPS ? x % FULL : FULL;
            const int block = in_share < FREED ? x : share * (FULL - FREED) + (in_share < FULL ? in_share - FREED : 0);
            const uint32_t to = in_share < FREED ? staged + tile_at(PITCH, r, c0 + 8 * block)
                                                 : kept + tile_at(KEPT_PITCH, r, c0 + 8 * block);
            copy_chunk(to, from + 128 * x, exists, p->q.chunk);
        }
    }
}

/* A lane's address in a tile of which `blocks` blocks belong to each dim warp, followed by the shared one; `row` and
 * `chunk` are what ldmatrix wants of the lane. */
static __device__ __forceinline__ uint32_t share_at(uint32_t tile, int pitch, int blocks, int row, int chunk) {
    return tile + tile_at(pitch, row, chunk) + dim_warp_of() * blocks * 128;
}
/* The same in the block that all share, from share_at's. */
static __device__ __forceinline__ uint32_t odd_at(uint32_t share, int blocks) {
    const int z = dim_warp_of();
    return (share + (DIM_WARPS - z) * blocks * 128) ^ (z * (128 / DIM_WARPS));
}
/* Step k of the warp's share, which starts with step `first`. */
static __device__ __forceinline__ uint32_t step_at(uint32_t share, uint32_t odd, int pitch, int first, int k) {
    return k < 4 * FULL ? tile_step(share, pitch, 2 * (k - first)) : tile_step(odd, pitch, 2 * (k - 4 * FULL));
}

static __device__ __forceinline__ void hold_queries(uint32_t rQ[M_TILES][HELD > 0 ? HELD : 1][4], uint32_t staged) {
    const int lane = lane_of();
    const uint32_t share = share_at(staged, PITCH, FULL, head_warp_of() * 16 * M_TILES + lane % 16, lane / 16),
                   odd = odd_at(share, FULL);
#pragma unroll
    for (int x = 0; x < M_TILES; x++)
#pragma unroll
        for (int k = 0; k < HELD; k++) load_matrix4(rQ[x][k], step_at(share, odd, PITCH, 0, k) + x * 16 * PITCH);
}

/* ------------------------------------------------------------------ product ------------------------ */

/* rS = the warp's partial sums of Q K^T. */
static __device__ __forceinline__ void score_tile(float rS[M_TILES][N_S][4],
                                                  const uint32_t rQ[M_TILES][HELD > 0 ? HELD : 1][4], uint32_t kept,
                                                  uint32_t tile) {
    const int lane = lane_of();
    const uint32_t q = share_at(kept, KEPT_PITCH, FULL - FREED, head_warp_of() * 16 * M_TILES + lane % 16, lane / 16),
                   q_odd = odd_at(q, FULL - FREED),
                   k0 = share_at(tile, PITCH, FULL, key_warp_of() * WARP_KEYS + lane % 8 + lane / 16 * 8, lane / 8 % 2),
                   k_odd = odd_at(k0, FULL);
#pragma unroll
    for (int x = 0; x < M_TILES; x++)
#pragma unroll
        for (int n = 0; n < N_S; n++) rS[x][n][0] = rS[x][n][1] = rS[x][n][2] = rS[x][n][3] = 0;
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        uint32_t a[M_TILES][4];
#pragma unroll
        for (int x = 0; x < M_TILES; x++) {
            if (k < HELD) {
#pragma unroll
                for (int e = 0; e < 4; e++) a[x][e] = rQ[x][k < HELD ? k : 0][e];
            } else {
                load_matrix4(a[x], step_at(q, q_odd, KEPT_PITCH, HELD, k) + x * 16 * KEPT_PITCH);
            }
        }
#pragma unroll
        for (int n = 0; n < N_S; n += 2) {
            uint32_t bk[4];
            load_matrix4(bk, step_at(k0, k_odd, PITCH, 0, k) + n * 8 * PITCH);
#pragma unroll
            for (int x = 0; x < M_TILES; x++) {
                mma_m16n8k16(TYPE, rS[x][n], a[x], bk[0], bk[1]);
                mma_m16n8k16(TYPE, rS[x][n + 1], a[x], bk[2], bk[3]);
            }
        }
    }
}

/* ------------------------------------------------------------------ exchange ----------------------- */

/* Fragment f of owner z out of rS, whose indices must be constants: a choice, not an address. */
static __device__ __forceinline__ void fragment_of(float out[4], const float rS[M_TILES][N_S][4], int z, int f) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
        float y = rS[f / N_S][f % N_S][e];
#pragma unroll
        for (int other = 1; other < DIM_WARPS; other++) {
            const int tile = other * OWN + f;
            y = z == other ? rS[tile / N_S][tile % N_S][e] : y;
        }
        out[e] = y;
    }
}

/* Add up the group's partial sums: rT = the fragments that the warp owns. Every owner adds in the order of the warps
 * that follow it. The next exchange must be a barrier of the CTA away. */
static __device__ __forceinline__ void exchange_sums(float rT[OWN][4], const float rS[M_TILES][N_S][4],
                                                     uint32_t exchange) {
    const int warp = warp_of(), z = warp % DIM_WARPS, lane = lane_of();
#pragma unroll
    for (int d = 1; d < DIM_WARPS; d++) {
        const int to = (z + d) % DIM_WARPS; /* its (DIM_WARPS - d)th follower is this warp */
        const uint32_t slot =
            exchange + (((warp - z + to) * (DIM_WARPS - 1) + DIM_WARPS - d - 1) * OWN * 32 + lane) * 16;
#pragma unroll
        for (int f = 0; f < OWN; f++) {
            float y[4];
            fragment_of(y, rS, to, f);
            shared_store128(slot + f * 512, make_uint4(__float_as_uint(y[0]), __float_as_uint(y[1]),
                                                       __float_as_uint(y[2]), __float_as_uint(y[3])));
        }
    }
#pragma unroll
    for (int f = 0; f < OWN; f++) fragment_of(rT[f], rS, z, f);
    if (DIM_WARPS == 1) return;
    barrier_part(1 + warp / DIM_WARPS, 32 * DIM_WARPS);
#pragma unroll
    for (int d = 0; d < DIM_WARPS - 1; d++)
#pragma unroll
        for (int f = 0; f < OWN; f++) {
            const uint4 x = shared_load128(exchange + ((warp * (DIM_WARPS - 1) + d) * OWN + f) * 512 + lane * 16);
            rT[f][0] += __uint_as_float(x.x), rT[f][1] += __uint_as_float(x.y);
            rT[f][2] += __uint_as_float(x.z), rT[f][3] += __uint_as_float(x.w);
        }
}

/* Hide invalid slots of the tile: `flags` as gather_rows wrote them. Keys of a lane in fragment f: own_key + 8 f + 2 t,
 * + 1. */
static __device__ __forceinline__ void hide_slots(float rT[OWN][4], uint32_t flags) {
    const uint32_t flag = flags + own_key_of() + 2 * (lane_of() & 3);
#pragma unroll
    for (int f = 0; f < OWN; f++) {
        const uint32_t two = shared_load16(flag + 8 * f);
        if (!(two & 0xff)) rT[f][0] = rT[f][2] = -INF;
        if (!(two >> 8)) rT[f][1] = rT[f][3] = -INF;
    }
}
#endif
