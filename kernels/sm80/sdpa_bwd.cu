/* SPDX-License-Identifier: MIT
 * Dense attention backward on mma.sync: f16 and bf16, every chip from sm_80 on, any D and DV to 512. One CTA owns a
 * tile of keys of one key head and walks the query rows that see them, of every query head of the group.
 *
 *   P = exp(s - lse)     dP = dO V^T     dS = P o (dP - shift)
 *   dV += P^T dO         dK += dS^T Q    dQ += dS K       at the end dK, dQ are multiplied by the scale
 *
 * dK and dV stay in registers; dQ is summed over the CTAs of a head in f32 in the workspace, by reductions, or, when
 * the plan must be deterministic, in the order of the key tiles. kernels/smxx/sdpa_bwd_prepare.cu gives lse, shift and
 * zeroes, sdpa_bwd_convert.cu rounds dQ. Scores are formed transposed, keys along the rows: P^T and dS^T are then A
 * operands.
 *
 *   shared K --ldmatrix-> A --+                                  shared V  -> A --+
 *   shared Q --ldmatrix-> B --+-mma-> S^T --exp--> P^T    shared dO -> B --+-mma-> dP^T
 *                                       |                                      |
 *                                  P^T (16 bit, registers or shared)      dS^T (16 bit, shared)
 *   dV += P^T dO (B: ldmatrix.trans)    dK += dS^T Q (B: .trans)    dQ tile = dS K (A, B: .trans) --red--> global
 *                                       dQ two columns of fragments at a time: one pair is reduced as the next is
 * formed
 *
 * Shared memory: K | V | Q (q_stages) | dO (o_stages) | dS^T | P^T, unless a warp keeps P for its own keys in registers
 * (P_HELD: then its dS needs no detour for dK either) | lse, shift, share: f32 of each row | flags, 128 bytes | f16:
 * the factors of dS, powers of two that keep it within the type's range, 16 bytes. Barriers of a step: A, all
 * copies have arrived and the last step is over; B, P and dS are written, statistics read; C, only with one stage: Q
 * and dO are read, the next may come.
 *
 * Hidden cells have P = dS = 0, but 0 * NaN is NaN. Keys past the end are zero-filled by the copy. Keys with infinities
 * or NaN are noted and zeroed before the first step: a row that sees one has lse = NaN by itself, or the score was
 * -inf. Of rows whose statistics are not finite, Q and dO are zeroed when they arrive, and of empty ones dS, too, since
 * V may hold a NaN; if only dO is to blame, its row is added to dV by hand (add_nonfinite_row). Infinities in q or k
 * with softcap: sdpa_bwd_infinite.h. Ordinary data never takes these paths.
 *
 * Registers and figures: docs/kernels/sdpa_bwd_sm80.md. */
#include "kernels/device/mma.h"
#include "kernels/device/reduce.h"
#include "kernels/device/turns.h"
#include "kernels/sm80/sdpa_bwd_load.h"

#include "kernels/sm80/sdpa_bwd_cells.h"
#include "kernels/sm80/sdpa_bwd_products.h"

/* ------------------------------------------------------------------ numbers that are not finite ---- */

static __device__ __forceinline__ uint32_t row_chunk_bad(uint32_t address) {
    const uint4 a = shared_load128(address);
    return not_finite16(TYPE, a.x) | not_finite16(TYPE, a.y) | not_finite16(TYPE, a.z) | not_finite16(TYPE, a.w);
}

/* All threads, once: note and zero keys with infinities or NaN; caps: stand-ins for them. Returns whether there are
 * any. */
static __device__ __forceinline__ int take_bad_keys(uint32_t base, int caps) {
    uint32_t any = 0;
    if (threadIdx.x < 8) shared_store32(base + NONFINITE + 4 * threadIdx.x, 0);
    __syncthreads();
#pragma unroll 2
    for (int x = thread_of(); x < KEYS * (DIM / 8); x += THREADS) {
        const int r = x / (DIM / 8);
        const uint32_t bad = row_chunk_bad(base + K_TILE + tile_at(PITCH, r, x % (DIM / 8)));
        if (bad) shared_or32(base + BAD_KEYS + 4 * (r >> 5), 1u << (r & 31));
        any |= bad;
    }
    if (!__syncthreads_or((int)any)) return 0;
#pragma unroll 1
    for (int x = thread_of(); x < KEYS * (DIM / 8); x += THREADS) {
        const int r = x / (DIM / 8);
        const uint32_t chunk = base + K_TILE + tile_at(PITCH, r, x % (DIM / 8));
        if (is_bad_key(base, r))
            shared_store128(chunk, caps ? stand_in128(shared_load128(chunk)) : make_uint4(0, 0, 0, 0));
    }
    __syncthreads();
    return 1;
}

/* Does a row of the tile have statistics that are not finite? The same for all warps. */
static __device__ __forceinline__ int has_special_rows(uint32_t base, int caps) {
    int special = 0;
#pragma unroll
    for (int r = 0; r < ROWS; r += 32) {
        const int row = ROWS < 32 ? lane_of() % ROWS : r + lane_of();
        const float lse = __uint_as_float(shared_load32(base + LSE + 4 * row)),
                    shift = __uint_as_float(shared_load32(base + SHIFT + 4 * row));
        special |= !(fabsf(lse) < INF && fabsf(shift) < INF) || (caps && is_marked(shift));
    }
    return __any_sync(~0u, special);
}

/* All threads: zero Q and dO of empty rows and of rows of NaN; zero and note dO of other rows where it is not finite.
 * Returns HAS_NONFINITE where any was noted, else CLEANED. caps: stand-ins for Q of marked rows, of which ANY_MARKED
 * then speaks. */
enum { CLEANED = 1, HAS_NONFINITE = 2 };
static __device__ __forceinline__ int clean_rows(uint32_t base, uint32_t q_tile, uint32_t o_tile, int caps) {
    uint32_t any = 0;
    if (threadIdx.x < (FULL ? 2 : 4)) {
        shared_store32(base + NONFINITE + 4 * threadIdx.x, 0);
        shared_store32(base + BAD_ROWS + 4 * threadIdx.x, 0);
    }
    __syncthreads();
#pragma unroll 1
    for (int x = thread_of(); x < ROWS * (DIM / 8); x += THREADS) {
        const int r = x / (DIM / 8), c = x % (DIM / 8);
        const float lse = __uint_as_float(shared_load32(base + LSE + 4 * r));
        const int whole = !(fabsf(lse) < INF);
        const uint32_t address = o_tile + tile_at(PITCH, r, c);
        if (!whole && row_chunk_bad(address)) shared_or32(base + NONFINITE + 4 * (r >> 5), 1u << (r & 31)), any = 1;
        if (caps && !whole && is_marked(__uint_as_float(shared_load32(base + SHIFT + 4 * r)))) {
            const uint32_t q = q_tile + tile_at(PITCH, r, c);
            shared_store128(q, stand_in128(shared_load128(q)));
            shared_or32(base + ANY_MARKED, 1);
        }
        if (!whole) continue;
        if (row_chunk_bad(q_tile + tile_at(PITCH, r, c))) shared_or32(base + BAD_ROWS + 4 * (r >> 5), 1u << (r & 31));
        shared_store128(address, make_uint4(0, 0, 0, 0));
        shared_store128(q_tile + tile_at(PITCH, r, c), make_uint4(0, 0, 0, 0));
    }
    const int nonfinite = __syncthreads_or((int)any);
    if (!nonfinite) return CLEANED;
#pragma unroll 1
    for (int x = thread_of(); x < ROWS * (DIM / 8); x += THREADS) {
        const int r = x / (DIM / 8);
        if (shared_load32(base + NONFINITE + 4 * (r >> 5)) >> (r & 31) & 1)
            shared_store128(o_tile + tile_at(PITCH, r, x % (DIM / 8)), make_uint4(0, 0, 0, 0));
    }
    __syncthreads();
    return HAS_NONFINITE;
}

/* dV += P^T dO of one noted row, read from memory; y: P of the lane's key x, r. A probability of 0 is a hidden cell. */
static __device__ __forceinline__ void add_nonfinite_row(const struct kp_sdpa_bwd *p, const uint16_t *row, float y,
                                                         int x, int r, float rX[KV_M][KV_N][4]) {
    if (y == 0) return;
#pragma unroll
    for (int n = 0; n < KV_N; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int c = 16 * (n / 2 * KV_DIM_WARPS + warp_of() / KV_KEY_WARPS) + n % 2 * 8 + 2 * (lane_of() & 3) + e;
            if (c < p->in.dim_v) rX[x][n][2 * r + e] += y * unpack16(TYPE, row[c]);
        }
}

static __device__ __forceinline__ const uint16_t *dout_row(const struct kp_sdpa_bwd *p, const struct work *w,
                                                           struct step s, int q) {
    return (const uint16_t *)p->dout.data + w->b * p->dout.batch + s.head * p->dout.head +
           (w->seq.q0 + s.i0 + q) * p->dout.row;
}

/* P in shared memory. */
static __device__ __forceinline__ void add_nonfinite(const struct kp_sdpa_bwd *p, const struct work *w, struct step s,
                                                     uint32_t base, float rX[KV_M][KV_N][4]) {
#pragma unroll 1
    for (int q = 0; q < ROWS; q++) {
        if (!(shared_load32(base + NONFINITE + 4 * (q >> 5)) >> (q & 31) & 1)) continue;
#pragma unroll
        for (int x = 0; x < KV_M; x++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int key = warp_of() % KV_KEY_WARPS * (16 * KV_M) + 16 * x + 8 * r + (lane_of() >> 2);
                const uint32_t pair = shared_load32(base + P_TILE + tile_at(S_PITCH, key, q / 8) + (q % 8 & ~1) * 2);
                add_nonfinite_row(p, dout_row(p, w, s, q), unpack16(TYPE, q & 1 ? pair >> 16 : pair & 0xffff), x, r,
                                  rX);
            }
    }
}

/* P_HELD: P^T of a block of queries as A operands. */
static __device__ __forceinline__ void add_nonfinite_held(const struct kp_sdpa_bwd *p, const struct work *w,
                                                          struct step s, uint32_t base, int row0,
                                                          const uint32_t rP[S_M][S_N][2], float rX[KV_M][KV_N][4]) {
#pragma unroll 1
    for (int q = row0; q < row0 + SUB_ROWS; q++) {
        if (!(shared_load32(base + NONFINITE + 4 * (q >> 5)) >> (q & 31) & 1)) continue;
#pragma unroll
        for (int x = 0; x < KV_M; x++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                uint32_t pair = 0; /* of the quad's lane that holds query q; a choice would index memory */
#pragma unroll
                for (int n = 0; n < S_N; n++) pair |= rP[x][n][r] & (0u - (uint32_t)(n == (q - row0) >> 3));
                pair = __shfl_sync(~0u, pair, (lane_of() & ~3) | (q >> 1 & 3));
                add_nonfinite_row(p, dout_row(p, w, s, q), unpack16(TYPE, q & 1 ? pair >> 16 : pair & 0xffff), x, r,
                                  rX);
            }
    }
}

/* ------------------------------------------------------------------ steps -------------------------- */

static __device__ __forceinline__ void multiply_cells(float rX[S_M][S_N][4], float factor) {
#pragma unroll
    for (int x = 0; x < S_M; x++)
#pragma unroll
        for (int n = 0; n < S_N; n++)
#pragma unroll
            for (int c = 0; c < 4; c++) rX[x][n][c] *= factor;
}

/* Rounded cells, and their way to a tile of shared memory. */
static __device__ __forceinline__ void pack_cells(uint32_t rC[S_M][S_N][2], const float rX[S_M][S_N][4]) {
#pragma unroll
    for (int x = 0; x < S_M; x++)
#pragma unroll
        for (int n = 0; n < S_N; n++)
#pragma unroll
            for (int r = 0; r < 2; r++) rC[x][n][r] = pack16(TYPE, rX[x][n][2 * r], rX[x][n][2 * r + 1]);
}
static __device__ __forceinline__ uint32_t cells_at(uint32_t tile, struct part part) {
    return tile + tile_at(S_PITCH, part.key + (lane_of() >> 2), part.row / 8) + 4 * (lane_of() & 3);
}
static __device__ __forceinline__ void store_cells(uint32_t tile, struct part part, const uint32_t rC[S_M][S_N][2]) {
    const uint32_t to = cells_at(tile, part);
#pragma unroll
    for (int x = 0; x < S_M; x++)
#pragma unroll
        for (int n = 0; n < S_N; n++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                shared_store32(tile_step(to, S_PITCH, n) + (16 * x + 8 * r) * S_PITCH, rC[x][n][r]);
}

/* The warp's part of a block of queries: where it stands in the tile, and in the sequence. */
static __device__ __forceinline__ struct part part_of(int sub) {
    struct part part = {0, 0, 0, 0};
    part.key = warp_of() % S_KEY_WARPS * (16 * S_M);
    part.row = sub * SUB_ROWS + (P_HELD ? 0 : warp_of() / S_KEY_WARPS * (8 * S_N));
    return part;
}
/* Plain variants, dS of empty rows: P and dO are 0, but 0 times a NaN in V of a key that they would see is none. With
 * hidden cells, or (f16 of D 256, which has no register left for it) once it is stored. */
constexpr int SILENCED_LATE = SCALED && DIM == 256;
static __device__ __forceinline__ float2 lse_of(uint32_t base, struct part part, int n) {
    return shared_load_pair(base + LSE + 4 * (part.row + 8 * n + 2 * (lane_of() & 3)));
}
static __device__ __forceinline__ void silence_cells(uint32_t base, struct part part, float rD[S_M][S_N][4]) {
#pragma unroll
    for (int n = 0; n < S_N; n++) {
        const float2 lse = lse_of(base, part, n);
#pragma unroll
        for (int x = 0; x < S_M; x++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                if ((c & 1 ? lse.y : lse.x) == INF) rD[x][n][c] = 0;
    }
}
static __device__ __forceinline__ void silence_stored(uint32_t base, struct part part) {
    const uint32_t from = cells_at(base + DS_TILE, part);
#pragma unroll 1
    for (int n = 0; n < S_N; n++) {
        const float2 lse = lse_of(base, part, n);
        const uint32_t keep = (lse.x == INF ? 0 : 0xffffu) | (lse.y == INF ? 0 : 0xffff0000u);
#pragma unroll 1
        for (int row = 0; row < 16 * S_M; row += 8) {
            const uint32_t address = tile_step(from, S_PITCH, n) + row * S_PITCH;
            shared_store32(address, shared_load32(address) & keep);
        }
    }
}

/* Full variants, a row whose lse is NaN and a key, one of which is not finite: has the cell a score of -inf? Its
 * product, which no tile holds, is made of what is not finite, from memory. */
static __device__ __forceinline__ int is_left_out(const struct kp_sdpa_bwd *p, const struct work *w, int head, int i,
                                                  int j) {
    const struct kp_sdpa *in = &p->in;
    const int d = j - i - w->off;
    if ((uint32_t)(d + in->window_left) > (uint32_t)in->window_left + (uint32_t)in->window_right || j >= w->seq.sk)
        return 1;
    const struct bias bias = bias_of(in, w->b, head);
    float added = in->alibi_form ? bias.slope * (float)(in->alibi_form == 1 ? d : -abs(d)) : 0;
    if (in->mask.data) {
        const int64_t cell = bias.mask + (int64_t)i * in->mask.row + (int64_t)j * in->mask.column;
        if (in->mask.dtype == KP_BOOL) {
            if (mask_of(in, cell, KP_BOOL) != 0) return 1;
        } else
            added += mask_of(in, cell, in->mask.dtype);
    }
    if (in->softcap > 0 && added != -INF) return 0;
    const uint16_t *q = (const uint16_t *)in->q.data + w->b * in->q.batch + head * in->q.head +
                        (w->seq.q0 + i) * in->q.row;
    const uint16_t *k = (const uint16_t *)in->k.data + w->b * in->k.batch + w->head_k * in->k.head +
                        (w->seq.k0 + j) * in->k.row;
    float s = 0;
#pragma unroll 1
    for (int c = 0; c < in->dim_qk && s == s; c++)
        if (not_finite16(TYPE, (uint32_t)q[c] | (uint32_t)k[c] << 16)) s += unpack16(TYPE, q[c]) * unpack16(TYPE, k[c]);
    s *= in->scale;
    return in->softcap > 0 ? s == s : s + added == -INF;
}
/* Such cells of the lane, which it has stored: NaN or, where the score is -inf, 0. */
static __device__ __forceinline__ void settle_stored(const struct kp_sdpa_bwd *p, const struct work *w, struct step s,
                                                     uint32_t base, struct part part) {
    const uint32_t to_p = cells_at(base + P_TILE, part), to_ds = cells_at(base + DS_TILE, part);
    static_assert(!FULL || !P_HELD, "P in shared memory");
#pragma unroll 1
    for (int query = 0; query < 2 * S_N; query++) {
        const int n = query / 2, q = part.row + 8 * n + 2 * (lane_of() & 3) + query % 2;
        const uint32_t keep = query % 2 ? 0xffffu : 0xffff0000u;
        const float lse = __uint_as_float(shared_load32(base + LSE + 4 * q));
        if (lse == lse) continue;
        const int bad_row = is_bad_row(base, q);
#pragma unroll 1
        for (int row = 0; row < 16 * S_M; row += 8) {
            const int key = part.key + row + (lane_of() >> 2);
            if (!bad_row && !(w->bad_keys && is_bad_key(base, key))) continue;
            const uint32_t y = is_left_out(p, w, s.head, s.i0 + q, w->j0 + key) ? 0 : 0x7fff7fffu & ~keep;
            const uint32_t cell_p = tile_step(to_p, S_PITCH, n) + row * S_PITCH,
                           cell_ds = tile_step(to_ds, S_PITCH, n) + row * S_PITCH;
            shared_store32(cell_p, (shared_load32(cell_p) & keep) | y);
            shared_store32(cell_ds, (shared_load32(cell_ds) & keep) | y);
        }
    }
}

/* P_HELD: rX += the warp's cells times the rows of `rows`, from that query on. */
static __device__ __forceinline__ void held_product(float rX[KV_M][KV_N][4], const uint32_t rC[S_M][S_N][2],
                                                    uint32_t rows) {
#pragma unroll
    for (int k = 0; k < SUB_ROWS / 16; k++) {
        uint32_t a[KV_M][4];
#pragma unroll
        for (int x = 0; x < KV_M; x++)
#pragma unroll
            for (int c = 0; c < 4; c++) a[x][c] = rC[x % S_M][(2 * k + c / 2) % S_N][c % 2];
        key_product_step(rX, a, key_product_lane(rows) + k * 16 * PITCH);
    }
}

static __device__ __forceinline__ struct part placed(struct part part, const struct work *w, struct step s) {
    part.j = w->j0 + part.key, part.i = s.i0 + part.row;
    return part;
}

/* S, dP and what follows of one block of queries. P_HELD: dV and dK, too. The work tile is recalled where it is asked
 * for: no register holds it during the products. special: 0, or as clean_rows returns. */
static __device__ __forceinline__ void cells_step(const struct kp_sdpa_bwd *p, int t, uint32_t base, uint32_t q_tile,
                                                  uint32_t o_tile, int sub, int special, float rK[KV_M][KV_N][4],
                                                  float rV[KV_M][KV_N][4]) {
    const struct part part = part_of(sub);
    float rS[S_M][S_N][4], rD[S_M][S_N][4];
    uint32_t rP[S_M][S_N][2], rC[S_M][S_N][2];
    if (S_KEY_WARPS * S_ROW_WARPS < WARPS && warp_of() >= S_KEY_WARPS * S_ROW_WARPS) return;
#pragma unroll
    for (int x = 0; x < S_M; x++)
#pragma unroll
        for (int n = 0; n < S_N; n++)
#pragma unroll
            for (int c = 0; c < 4; c++) rS[x][n][c] = rD[x][n][c] = 0;
    score_product(rS, base, q_tile, part);
    if (!FULL) start_dp(base, part, SCALED ? factor_at(base, 0) : 1, rD);
    cell_product(rD, base + V_TILE, o_tile, part, 0, DIM / 16);
    if (FULL) {
        const struct work w = recall_work(base);
        const struct step s = recall_step(base, t);
        const struct bias bias = bias_of(&p->in, w.b, s.head);
        const int clear = !special && s.i0 + ROWS <= w.seq.sq && sees_all(p, &w, s.i0);
        if (w.bad_keys || special) replace_products(&p->in, base, part_of(sub), w.bad_keys, rS);
        full_cells<1>(&p->in, base, placed(part_of(sub), &w, s), w.off, w.seq.sk, clear, &bias,
                      SCALED ? factor_at(base, 4) : 1, rS, rD);
    } else {
        plain_cells(&p->in, base, part_of(sub), rS);
#pragma unroll
        for (int x = 0; x < S_M; x++)
#pragma unroll
            for (int n = 0; n < S_N; n++)
#pragma unroll
                for (int c = 0; c < 4; c++) rD[x][n][c] *= rS[x][n][c];
        if (SCALED && factor_at(base, 4) != 1) multiply_cells(rD, factor_at(base, 4));
        const struct work w = recall_work(base);
        const struct step s = recall_step(base, t);
        if (w.bad_keys || (!SILENCED_LATE && special) || !sees_all(p, &w, s.i0)) {
            hide_cells(&p->in, base, placed(part_of(sub), &w, s), w.off, w.seq, w.bad_keys, rS, rD);
            if (!SILENCED_LATE && special) silence_cells(base, part_of(sub), rD);
        }
    }
    pack_cells(rP, rS);
    pack_cells(rC, rD);
    store_cells(base + DS_TILE, part_of(sub), rC);
    if (!P_HELD) {
        store_cells(base + P_TILE, part_of(sub), rP);
        if (!FULL && SILENCED_LATE && special) silence_stored(base, part_of(sub));
        if (FULL && special) {
            struct work w = recall_work(base);
            w.seq = sequence_of(&p->in, w.b);
            settle_stored(p, &w, recall_step(base, t), base, part_of(sub));
        }
        return;
    }
    held_product(rV, rP, o_tile + sub * SUB_ROWS * PITCH);
    held_product(rK, rC, q_tile + sub * SUB_ROWS * PITCH);
    if (special == HAS_NONFINITE) {
        const struct work w = recall_work(base);
        add_nonfinite_held(p, &w, recall_step(base, t), base, sub * SUB_ROWS, rP, rV);
    }
}

/* dQ of the step to the workspace, in the order of the fragments: element e of accumulator tile x, n of a warp is at
 * ((n Q_M + x) 4 + e) 32 + lane of the warp's part. Two tiles are reduced while the next two are formed. */
static __device__ __forceinline__ void reduce_rows(const struct kp_sdpa_bwd *p, uint32_t base, int t) {
    const struct work w = recall_work(base);
    const struct step s = recall_step(base, t);
    const int64_t row = s.head * p->stat_rows + w.stat0 + s.i0;
    float *to = (float *)p->dq_sum + row * DIM + warp_of() * (Q_M * Q_N * 128) + lane_of();
    int32_t *turn = (int32_t *)p->turns + row / ROWS;
    uint32_t a[KEYS / 16][Q_M][4];
    load_row_cells(a, base + DS_TILE);
    if (p->turns) {
        /* the key tiles before this one, from the first that sees a row of the tile */
        const int first = max(s.i0 + w.off - p->in.window_left, 0) / KEYS;
        if (threadIdx.x == 0) wait_turn(turn, w.key_tile - first);
        __syncthreads();
    }
#pragma unroll Q_UNROLL
    for (int n = 0; n < Q_N; n += 2) {
        float rQ[Q_M][2][4];
        row_product_pair(rQ, a, base + K_TILE, n);
#pragma unroll
        for (int y = 0; y < 2; y++)
#pragma unroll
            for (int x = 0; x < Q_M; x++)
#pragma unroll
                for (int c = 0; c < 4; c++) reduce_add(to + (((n + y) * Q_M + x) * 4 + c) * 32, rQ[x][y][c]);
    }
    if (p->turns) {
        __syncthreads();
        if (threadIdx.x == 0) pass_turn(turn);
    }
}

/* ------------------------------------------------------------------ results ------------------------ */

/* A warp's rounded keys into the tile's memory. undo: a power of two. */
static __device__ __forceinline__ void lay_down(uint32_t tile, const float rX[KV_M][KV_N][4], float undo, float scale) {
    const int key = warp_of() % KV_KEY_WARPS * (16 * KV_M) + (lane_of() >> 2);
#pragma unroll
    for (int x = 0; x < KV_M; x++)
#pragma unroll
        for (int n = 0; n < KV_N; n++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int chunk = 2 * (n / 2 * KV_DIM_WARPS + warp_of() / KV_KEY_WARPS) + n % 2;
                shared_store32(tile + tile_at(PITCH, key + 16 * x + 8 * r, chunk) + 4 * (lane_of() & 3),
                               pack16(TYPE, rX[x][n][2 * r] * undo * scale, rX[x][n][2 * r + 1] * undo * scale));
            }
}

/* All threads: the tile's keys as far as they belong to the sequence; 16 bytes a thread where the tensor allows that.
 */
static __device__ __forceinline__ void store_keys(const struct kp_sdpa_bwd *p, const struct work *w, uint32_t tile,
                                                  const struct kp_view *v, int width) {
    const int exist = w->seq.keys - w->j0;
#pragma unroll 2
    for (int x = thread_of(); x < KEYS * (DIM / 8); x += THREADS) {
        const int r = x / (DIM / 8), c = x % (DIM / 8), left = width - 8 * c;
        if (r >= exist || left <= 0) continue;
        const uint4 a = shared_load128(tile + tile_at(PITCH, r, c));
        uint16_t *to =
            (uint16_t *)v->data + w->b * v->batch + w->head_k * v->head + (w->seq.k0 + w->j0 + r) * v->row + 8 * c;
        if (v->chunk == 16 && left >= 8) {
            *(uint4 *)to = a;
            continue;
        }
        const uint32_t word[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
        for (int e = 0; e < 8; e++)
            if (e < left) to[e] = (uint16_t)(word[e / 2] >> (e % 2 * 16));
    }
}

/* ------------------------------------------------------------------ one work tile ------------------ */

static __device__ __forceinline__ void run_tile(const struct kp_sdpa_bwd *p, struct work *w) {
    const uint32_t base = shared_base();
    const int caps = FULL && p->in.softcap > 0;
    float rK[KV_M][KV_N][4], rV[KV_M][KV_N][4];
#pragma unroll
    for (int x = 0; x < KV_M; x++)
#pragma unroll
        for (int n = 0; n < KV_N; n++)
#pragma unroll
            for (int c = 0; c < 4; c++) rK[x][n][c] = rV[x][n][c] = 0;

    if (w->steps > 0) {
        const struct step s = {w->head_k * (p->in.heads_q / p->in.heads_k), (w->first + w->start) * ROWS};
        keep_step(base, 0, s);
        load_keys(p, w, base);
        load_rows(p, w, &p->in.q, p->in.dim_qk, base + Q_TILE, s);
        load_rows(p, w, &p->dout, p->in.dim_v, base + O_TILE, s);
        load_stats(p, w, base, s);
        copy_commit();
        if constexpr (SCALED) gather_bounds(p, w, base);
        copy_wait(0);
        __syncthreads();
        if (SCALED && threadIdx.x == 0) choose_factors(p, w, base);
        if (FULL && threadIdx.x == 0) shared_store32(base + ANY_MARKED, 0);
        w->bad_keys = take_bad_keys(base, caps);
        if (caps && w->bad_keys) spoil_dq<1, 0>(p, w, w->j0, base, thread_of(), THREADS);
        if constexpr (V_SCALED) scale_values(base);
    } else if constexpr (SCALED) {
        gather_bounds(p, w, base);
        __syncthreads();
        if (threadIdx.x == 0) choose_factors(p, w, base);
    }
    keep_work(w, base);
    __syncthreads();
#pragma unroll 1
    for (int t = 0; t < (int)shared_load32(base + KEPT + 56); t++) {
        const uint32_t q_tile = base + Q_TILE + (Q_STAGES == 2 ? t % 2 * ROWS * PITCH : 0),
                       o_tile = base + O_TILE + (O_STAGES == 2 ? t % 2 * ROWS * PITCH : 0);
        int special;
        copy_wait(0);
        __syncthreads(); /* A */
        {
            const struct work now = recall_work(base);
            const struct step next = step_after(&now, recall_step(base, t));
            keep_step(base, t + 1, next);
            const int has_next = t + 1 < now.steps;
            if (has_next && Q_STAGES == 2)
                load_rows(p, &now, &p->in.q, p->in.dim_qk, base + Q_TILE + (t + 1) % 2 * ROWS * PITCH, next);
            if (has_next && O_STAGES == 2)
                load_rows(p, &now, &p->dout, p->in.dim_v, base + O_TILE + (t + 1) % 2 * ROWS * PITCH, next);
            copy_commit();
        }
        special = has_special_rows(base, caps) ? clean_rows(base, q_tile, o_tile, caps) : 0;
#pragma unroll
        for (int sub = 0; sub < SUBS; sub++) cells_step(p, t, base, q_tile, o_tile, sub, special, rK, rV);
        __syncthreads(); /* B */
        {
            const struct work now = recall_work(base);
            if (t + 1 < now.steps) load_stats(p, &now, base, recall_step(base, t + 1));
            if (!P_HELD) {
                key_product(rV, base + P_TILE, o_tile);
                key_product(rK, base + DS_TILE, q_tile);
                if (special == HAS_NONFINITE) {
                    const struct work stored = recall_work(base);
                    add_nonfinite(p, &stored, recall_step(base, t), base, rV);
                }
                if (Q_STAGES == 1 || O_STAGES == 1) __syncthreads(); /* C */
            }
        }
        if (Q_STAGES == 1 || O_STAGES == 1) {
            const struct work now = recall_work(base);
            const struct step next = recall_step(base, t + 1);
            const int has_next = t + 1 < now.steps;
            if (has_next && Q_STAGES == 1) load_rows(p, &now, &p->in.q, p->in.dim_qk, q_tile, next);
            if (has_next && O_STAGES == 1) load_rows(p, &now, &p->dout, p->in.dim_v, o_tile, next);
        }
        copy_commit();
        if (p->dq_sum) reduce_rows(p, base, t);
    }
    __syncthreads(); /* K and V make room for dK and dV */
    find_work(p, (int)shared_load32(base + KEPT + 60), w);
    lay_down(base + K_TILE, rK, SCALED ? factor_at(base, 12) : 1, p->in.scale);
    lay_down(base + V_TILE, rV, 1, 1);
    __syncthreads();
    if (p->dk.data) store_keys(p, w, base + K_TILE, &p->dk, p->in.dim_qk);
    if (p->dv.data) store_keys(p, w, base + V_TILE, &p->dv, p->in.dim_v);
    if (caps && w->steps > 0 && shared_load32(base + ANY_MARKED)) {
        __syncthreads();
        spoil_dk<1>(p, w, w->j0, thread_of());
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, CFG_CTAS)
    CFG(const __grid_constant__ struct sdpa_bwd_parameters<SCALED> all) {
    const struct kp_sdpa_bwd &p = all.bwd;
    struct work w;
    int64_t index = blockIdx.x;
    if (p.turns) { /* whoever waits for a turn waits for a CTA that has started */
        if (threadIdx.x == 0)
            shared_store32(shared_base(),
                           (uint32_t)take_ticket((int32_t *)p.turns + p.in.heads_q * (p.stat_rows / ROWS)));
        __syncthreads();
        index = shared_load32(shared_base());
        __syncthreads();
    }
    if (find_work(&p, index, &w)) run_tile(&p, &w);
}
