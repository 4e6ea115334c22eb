/* SPDX-License-Identifier: MIT
 * Dense attention forward on mma.sync: f16 and bf16, every chip from sm_80 on, any D and DV to 512. One CTA owns a tile
 * of query rows of one head (or group of heads) and walks the keys that they see, from the last tile to the first.
 *
 *   s = scale Q K^T -> softcap, ALiBi, mask, window     m' = max(m, rowmax s)     p = exp(s - m')
 *   l = l exp(m - m') + rowsum p        O = O exp(m - m') + p V        at the end   out = O / l,  lse = m + ln l
 *
 * Plain variants keep raw products and fold |scale| log2(e) into the one multiply-add before exp2 (a negative scale
 * turns Q's signs once). Full variants, whose scores are sums, keep natural units: a mask of -3.4e38 stays a finite
 * score and hides nothing. Rescaling waits until a maximum of the warp has grown by more than a factor 2^8
 * (FlashAttention-4, section 3): p <= 2^8 then, far from any overflow, and l and O share the stale m.
 *
 *   global Q --cp.async--> shared Q --ldmatrix--------> A registers --+
 *   global K --cp.async--> ring     --ldmatrix--------> B registers --+-mma-> S (f32)
 *                                                                              | softmax
 *   global V --cp.async--> ring     --ldmatrix.trans--> B registers --+     P (16 bit, already an A operand)
 *                                                                     +-mma----+
 *                                                                        O (f32) -> shared -> global
 *
 * Shared memory:
 *   Q tile, at the end the output tile  |  ring of `slots` tiles: K n-1, V n-1, K n-2, ...  |  flags, 256 bytes
 *   flags:   0  a bit mask of the keys whose value row is not finite
 *           16  what inner key tiles do not need of the work item
 *           64 + 64 (key tile % 2)  a byte per key, 1 = its page is not in the pool
 * The ring needs no other barrier than __syncthreads: before the work on ring item t each thread waits for its own
 * copies of item t; the barrier joins all threads and proves that all have read item t - 1, whose slot then takes item
 * t + slots - 1.
 *
 * Hidden keys have p = 0, but 0 * NaN is NaN. Keys past the end are zero-filled by the copy. In tiles where some key is
 * hidden from some row only, the value tile is searched for infinities and NaN; such rows of V (rare) are zeroed in the
 * tile and added by hand to the rows that see them (add_poison).
 *
 * Limits: lengths to 2^28 (32-bit rows; addresses are 64-bit). Unaligned tensors take smaller copies.
 * Splits write (O, m, l) to the workspace; kernels/smxx/sdpa_combine.cu merges them. Registers and figures:
 * docs/kernels/sdpa_fwd_sm80.md. */
#include "kernels/device/mma.h"
#include "kernels/sm80/sdpa_fwd_load.h"

/* ------------------------------------------------------------------ products ----------------------- */

/* A lane's first ldmatrix address in the Q tile, in a K tile, in a V tile; recomputed when used. */
static __device__ __forceinline__ uint32_t q_lane_of(uint32_t base) {
    const int lane = lane_of();
    return base + tile_at(PITCH, warp_row_of() * WARP_ROWS + lane % 16, lane / 16);
}
static __device__ __forceinline__ uint32_t k_lane_of(uint32_t tile) {
    const int lane = lane_of();
    return tile + tile_at(PITCH, lane % 8 + lane / 16 * 8, lane / 8 % 2);
}
static __device__ __forceinline__ uint32_t v_lane_of(uint32_t tile) {
    const int lane = lane_of();
    return tile + tile_at(PITCH, lane % 16, warp_col_of() * (COLS / 8) + lane / 16);
}

static __device__ __forceinline__ void hold_queries(uint32_t rQ[M_TILES][Q_HELD][4], uint32_t q_lane) {
#pragma unroll
    for (int x = 0; x < M_TILES; x++)
#pragma unroll
        for (int k = 0; k < Q_STEPS; k++) load_matrix4(rQ[x][k], tile_step(q_lane, PITCH, 2 * k) + x * 16 * PITCH);
}

/* rS = Q K^T of the warp's rows and all keys of the tile. */
static __device__ __forceinline__ void score_tile(float rS[M_TILES][N_S][4], const uint32_t rQ[M_TILES][Q_HELD][4],
                                                  uint32_t q_lane, uint32_t k_lane) {
#pragma unroll
    for (int x = 0; x < M_TILES; x++)
#pragma unroll
        for (int n = 0; n < N_S; n++) rS[x][n][0] = rS[x][n][1] = rS[x][n][2] = rS[x][n][3] = 0;
#pragma unroll
    for (int k = 0; k < K_STEPS; k++) {
        uint32_t a[M_TILES][4];
#pragma unroll
        for (int x = 0; x < M_TILES; x++) {
            if (k < Q_STEPS) {
#pragma unroll
                for (int e = 0; e < 4; e++) a[x][e] = rQ[x][k < Q_STEPS ? k : 0][e];
            } else {
                load_matrix4(a[x], tile_step(q_lane, PITCH, 2 * k) + x * 16 * PITCH);
            }
        }
#pragma unroll
        for (int n = 0; n < N_S; n += 2) {
            uint32_t b[4];
            load_matrix4(b, tile_step(k_lane, PITCH, 2 * k) + n * 8 * PITCH);
#pragma unroll
            for (int x = 0; x < M_TILES; x++) {
                mma_m16n8k16(TYPE, rS[x][n], a[x], b[0], b[1]);
                mma_m16n8k16(TYPE, rS[x][n + 1], a[x], b[2], b[3]);
            }
        }
    }
}

/* rO += P V. */
static __device__ __forceinline__ void add_pv(float rO[M_TILES][N_O][4], const uint32_t rP[M_TILES][P_STEPS][4],
                                              uint32_t v_lane) {
#pragma unroll
    for (int k = 0; k < P_STEPS; k++)
#pragma unroll
        for (int n = 0; n < N_O; n += 2) {
            uint32_t b[4];
            load_matrix4_trans(b, tile_step(v_lane, PITCH, n) + k * 16 * PITCH);
#pragma unroll
            for (int x = 0; x < M_TILES; x++) {
                mma_m16n8k16(TYPE, rO[x][n], rP[x][k], b[0], b[1]);
                mma_m16n8k16(TYPE, rO[x][n + 1], rP[x][k], b[2], b[3]);
            }
        }
}

/* ------------------------------------------------------------------ scores ------------------------- */

/* Keys [*lo, *hi) that the lane's row x, r sees, relative to the tile's first key; none for a row outside the sequence.
 */
static __device__ __forceinline__ void visible_keys(const struct kp_sdpa_fwd *p, uint4 kept, int x, int r, int j0,
                                                    int *lo, int *hi) {
    const int row = (int)kept.x + warp_row_of() * WARP_ROWS + 16 * x + 8 * r + (lane_of() >> 2);
    const int at = query_of(p, row) + (int)kept.z;
    *lo = at - p->in.window_left - j0;
    *hi = row < (int)kept.y ? min(at + p->in.window_right + 1, (int)kept.w) - j0 : -FAR;
}

/* Plain variants: hide what windows and the sequence's end hide. Column n 8 + 2 t + e of the tile. */
static __device__ __forceinline__ void hide_keys(const struct kp_sdpa_fwd *p, uint32_t base, int j0,
                                                 float rS[M_TILES][N_S][4]) {
    const uint4 kept = recall_rows(base);
    const int t2 = 2 * (lane_of() & 3);
#pragma unroll
    for (int x = 0; x < M_TILES; x++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int lo, hi;
            visible_keys(p, kept, x, r, j0, &lo, &hi);
            lo -= t2, hi -= t2;
#pragma unroll
            for (int n = 0; n < N_S; n++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (8 * n + e < lo || 8 * n + e >= hi) rS[x][n][2 * r + e] = -INF;
        }
}

static __device__ __forceinline__ void bias_of(const struct kp_sdpa_fwd *p, const struct work *w, struct bias *bias) {
#pragma unroll
    for (int x = 0; x < M_TILES; x++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = w->row0 + warp_row_of() * WARP_ROWS + 16 * x + 8 * r + (lane_of() >> 2),
                      inside = row < w->n_rows;
            const int h = head_of(p, w, row);
            bias->slope[x][r] = p->in.alibi_form && inside
                                    ? ((const float *)p->in.alibi)[w->b * p->in.alibi_batch + h * p->in.alibi_head]
                                    : 0;
            /* element index of the row's first cell; the cell's address is formed where it is known to be visible */
            bias->mask[x][r] =
                (uint64_t)(w->b * p->in.mask.batch + h * p->in.mask.head + query_of(p, row) * p->in.mask.row);
        }
}

static __device__ __forceinline__ float mask_cell(const struct kp_sdpa_fwd *p, int64_t at) {
    if (p->in.mask.dtype == KP_BOOL) return ((const uint8_t *)p->in.mask.data)[at] ? 0 : -INF;
    return load_number((const void *)p->in.mask.data, at, p->in.mask.dtype);
}

/* Full variants: raw products to scores in natural units, in the order of the contract's five steps. */
static __device__ __forceinline__ void finish_scores(const struct kp_sdpa_fwd *p, const struct bias *bias,
                                                     uint32_t base, int j0, float rS[M_TILES][N_S][4]) {
    const uint4 kept = recall_rows(base);
    const int t2 = 2 * (lane_of() & 3);
#pragma unroll
    for (int x = 0; x < M_TILES; x++)
#pragma unroll
        for (int n = 0; n < N_S; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) rS[x][n][e] *= p->in.scale;
    if (p->in.softcap > 0) {
#pragma unroll
        for (int x = 0; x < M_TILES; x++)
#pragma unroll
            for (int n = 0; n < N_S; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) rS[x][n][e] = p->in.softcap * tanhf(rS[x][n][e] * p->in.softcap_inverse);
    }
#pragma unroll
    for (int x = 0; x < M_TILES; x++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int lo, hi;
            visible_keys(p, kept, x, r, j0, &lo, &hi);
            const int at = lo + p->in.window_left; /* the diagonal, relative to the tile */
            const float slope = bias->slope[x][r];
            const int64_t cells = (int64_t)bias->mask[x][r] + (int64_t)j0 * p->in.mask.column;
#pragma unroll
            for (int n = 0; n < N_S; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int j = 8 * n + t2 + e;
                    float y = rS[x][n][2 * r + e];
                    const float d = (float)(j - at);
                    if (p->in.alibi_form) y += slope * (p->in.alibi_form == 1 ? d : -fabsf(d));
                    int visible = j >= lo && j < hi;
                    if (p->in.block_table)
                        visible = visible && !shared_load8(base + BAD_PAGE + (j0 / KEYS & 1) * 64 + j);
                    if (p->in.mask.data && visible) {
                        const float cell = mask_cell(p, cells + (int64_t)j * p->in.mask.column);
                        if (p->in.mask.dtype == KP_BOOL)
                            visible = cell == 0;
                        else
                            y += cell;
                    }
                    rS[x][n][2 * r + e] = visible ? y : -INF;
                }
        }
}

/* ------------------------------------------------------------------ softmax ------------------------ */

static __device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
static __device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

/* Scores to rounded probabilities; rescales l and rO where a maximum has grown. NaN scores pass by the maximum (max.f32
 * returns the other operand) and make l NaN. The factor of a rescale is at least 2^LEAST: the product is nothing beside
 * l >= 1, but an infinity stays one. */
static __device__ __forceinline__ void online_softmax(float rS[M_TILES][N_S][4], struct statistics *st,
                                                      float rO[M_TILES][N_O][4], uint32_t rP[M_TILES][P_STEPS][4],
                                                      float unit) {
    float top[M_TILES][2];
    int grown = 0;
#pragma unroll
    for (int x = 0; x < M_TILES; x++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float y = fmaxf(rS[x][0][2 * r], rS[x][0][2 * r + 1]);
#pragma unroll
            for (int n = 1; n < N_S; n++) y = fmaxf(y, fmaxf(rS[x][n][2 * r], rS[x][n][2 * r + 1]));
            top[x][r] = fmaxf(st->m[x][r], quad_max(y));
            grown |= !((top[x][r] - st->m[x][r]) * unit <= SLACK); /* also when both are -inf */
        }
    if (__any_sync(~0u, grown)) {
#pragma unroll
        for (int x = 0; x < M_TILES; x++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float factor = exp2_fast(fmaxf((st->m[x][r] - top[x][r]) * unit, LEAST));
                st->m[x][r] = top[x][r];
                st->l[x][r] *= factor;
#pragma unroll
                for (int n = 0; n < N_O; n++) rO[x][n][2 * r] *= factor, rO[x][n][2 * r + 1] *= factor;
            }
    }
#pragma unroll
    for (int x = 0; x < M_TILES; x++) {
        /* Full scores may be as large as f32 goes: subtract first. Raw products: one multiply-add. */
        float low[2];
#pragma unroll
        for (int r = 0; r < 2; r++) low[r] = st->m[x][r] == -INF ? 0 : FULL ? st->m[x][r] : st->m[x][r] * unit;
#pragma unroll
        for (int n = 0; n < N_S; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float y = rS[x][n][e];
                rS[x][n][e] = exp2_fast(FULL ? (y - low[e >> 1]) * unit : __fmaf_rn(y, unit, -low[e >> 1]));
            }
            st->l[x][0] += rS[x][n][0] + rS[x][n][1];
            st->l[x][1] += rS[x][n][2] + rS[x][n][3];
            rP[x][n / 2][n % 2 * 2] = pack16(TYPE, rS[x][n][0], rS[x][n][1]);
            rP[x][n / 2][n % 2 * 2 + 1] = pack16(TYPE, rS[x][n][2], rS[x][n][3]);
        }
    }
}

/* ------------------------------------------------------------------ values that are not finite ----- */

/* All threads: note rows of the V tile that hold an infinity or NaN, and zero them in shared memory. Returns whether
 * there are any. One barrier, two if so; the notes are zero on entry. */
static __device__ __forceinline__ int take_poison(uint32_t base, uint32_t slot) {
    const int thread = thread_of();
    uint32_t any = 0;
#pragma unroll 4
    for (int x = thread; x < KEYS * (DIM_V / 8); x += THREADS) {
        const int r = x / (DIM_V / 8), c = x % (DIM_V / 8);
        const uint4 a = shared_load128(slot + tile_at(PITCH, r, c));
        const uint32_t bad =
            not_finite16(TYPE, a.x) | not_finite16(TYPE, a.y) | not_finite16(TYPE, a.z) | not_finite16(TYPE, a.w);
        if (bad) shared_or32(base + POISON + 4 * (r >> 5), 1u << (r & 31));
        any |= bad;
    }
    if (!__syncthreads_or((int)any)) return 0;
#pragma unroll 1
    for (int x = thread; x < KEYS * (DIM_V / 8); x += THREADS) {
        const int r = x / (DIM_V / 8), c = x % (DIM_V / 8);
        if (shared_load32(base + POISON + 4 * (r >> 5)) >> (r & 31) & 1)
            shared_store128(slot + tile_at(PITCH, r, c), make_uint4(0, 0, 0, 0));
    }
    __syncthreads();
    return 1;
}

/* A warp: add the noted value rows, read from memory, to the rows that see them. A probability that has been rounded to
 * 0 stands for a small positive number: times an infinity it is one. */
static __device__ __forceinline__ void add_poison(const struct kp_sdpa_fwd *p, const struct work *w,
                                                  const struct bias *bias, uint32_t base, const char *values, int j0,
                                                  float rO[M_TILES][N_O][4], const uint32_t rP[M_TILES][P_STEPS][4]) {
    const uint4 kept = recall_rows(base);
#pragma unroll 1
    for (int j = 0; j < KEYS; j++) {
        const int col0 = warp_col_of() * COLS + 2 * (lane_of() & 3);
        if (!(shared_load32(base + POISON + 4 * (j >> 5)) >> (j & 31) & 1)) continue;
        const char *row = values + 2 * (j0 + j) * p->in.v.row;
        if (FULL && p->in.block_table) { /* a row of a page outside the pool was zero-filled and never comes here */
            const uint32_t page_size = (uint32_t)p->in.page_size, at = (uint32_t)(j0 + j);
            const int64_t page = ((const int32_t *)p->in.block_table + w->b * p->in.table_batch)[at / page_size];
            row = values + 2 * (page * p->in.v.batch + at % page_size * p->in.v.row);
        }
#pragma unroll
        for (int x = 0; x < M_TILES; x++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                uint32_t pair =
                    0; /* the register of P that holds column j, or its neighbour, in the quad's lane j / 2 % 4 */
#pragma unroll
                for (int n = 0; n < N_S; n++)
                    pair |=
                        rP[x][n / 2][n % 2 * 2 + r] & (0u - (uint32_t)(n == j >> 3)); /* a choice would index memory */
                pair = __shfl_sync(~0u, pair, (lane_of() & ~3) | (j >> 1 & 3));
                float y = unpack16(TYPE, j & 1 ? pair >> 16 : pair & 0xffff);
                int lo, hi;
                visible_keys(p, kept, x, r, j0, &lo, &hi);
                int visible = j >= lo && j < hi;
                if (FULL && p->in.mask.data && visible)
                    visible = mask_cell(p, (int64_t)bias->mask[x][r] + (int64_t)(j0 + j) * p->in.mask.column) != -INF;
                if (y == 0) y = 1e-30f;
#pragma unroll
                for (int n = 0; n < N_O; n++)
#pragma unroll
                    for (int e = 0; e < 2; e++)
                        if (visible && col0 + 8 * n + e < p->in.dim_v)
                            rO[x][n][2 * r + e] += y * unpack16(TYPE, ((const uint16_t *)row)[col0 + 8 * n + e]);
            }
    }
}

/* ------------------------------------------------------------------ results ------------------------ */

/* Output row `row` of the tile's heads -> element index of its first column. */
static __device__ __forceinline__ int64_t row_at(const struct kp_sdpa_fwd *p, const struct work *w,
                                                 const struct kp_view *v, int row) {
    return w->b * v->batch + head_of(p, w, row) * v->head + (w->seq.q0 + query_of(p, row)) * v->row;
}

/* A split's share of a row: unnormalised O, the maximum in natural units, the sum. An empty share writes no O. */
static __device__ __forceinline__ void store_partial(const struct kp_sdpa_fwd *p, const struct work *w, int row,
                                                     float natural, float l, const float rO[N_O][4], int r) {
    const int t = lane_of() & 3, col0 = warp_col_of() * COLS + 2 * t;
    const int64_t rows = (int64_t)p->in.batch * p->in.heads_q * p->in.seq_q;
    const int64_t at =
        w->split * rows + ((int64_t)w->b * p->in.heads_q + head_of(p, w, row)) * p->in.seq_q + query_of(p, row);
    if (row >= w->n_rows) return;
    if (t == 0 && warp_col_of() == 0) ((float *)p->part_m)[at] = natural, ((float *)p->part_l)[at] = l;
    if (l == 0) return;
    float *o = (float *)p->part_o + at * p->part_row;
#pragma unroll
    for (int n = 0; n < N_O; n++)
        if (col0 + 8 * n < p->part_row) *(float2 *)(o + col0 + 8 * n) = make_float2(rO[n][2 * r], rO[n][2 * r + 1]);
}

/* Divide, round, and lay the warp's output rows into the Q tile's memory; write lse. */
static __device__ __forceinline__ void finish_rows(const struct kp_sdpa_fwd *p, const struct work *w, uint32_t base,
                                                   const struct statistics *st, const float rO[M_TILES][N_O][4],
                                                   float unit) {
    const int g = lane_of() >> 2, t = lane_of() & 3;
#pragma unroll
    for (int x = 0; x < M_TILES; x++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int r_tile = warp_row_of() * WARP_ROWS + 16 * x + 8 * r + g, row = w->row0 + r_tile,
                      inside = row < w->n_rows;
            const float l = quad_sum(st->l[x][r]), m = st->m[x][r], natural = FULL ? m : m * unit * LN2;
            if (p->splits > 1) {
                store_partial(p, w, row, natural, l, rO[x], r);
                continue;
            }
            const int empty = !inside || l == 0;
            float sink = -INF;
            if (p->in.sink && inside) sink = ((const float *)p->in.sink)[head_of(p, w, row) * p->in.sink_head];
            const float inverse = 1 / (l + exp2_fast((sink - natural) * LOG2E));
#pragma unroll
            for (int n = 0; n < N_O; n++) {
                const float a = empty ? 0 : rO[x][n][2 * r] * inverse, b = empty ? 0 : rO[x][n][2 * r + 1] * inverse;
                shared_store32(base + tile_at(PITCH, r_tile, warp_col_of() * (COLS / 8) + n) + 4 * t,
                               pack16(TYPE, a, b));
            }
            if (t != 0 || warp_col_of() != 0 || row >= w->seq.rows * p->pack || !(p->lse.data || p->lse_rounded.data))
                continue;
            const float lse = outer_lse(p->in.flags, empty ? -INF : natural + log2f(l) * LN2, sink);
            store_lse(&p->lse, row_at(p, w, &p->lse, row), lse);
            store_lse(&p->lse_rounded, row_at(p, w, &p->lse_rounded, row), lse);
        }
}

/* The warp's rows and columns from shared memory to the tensor, 16 bytes a lane where it allows that. */
static __device__ __forceinline__ void store_rows(const struct kp_sdpa_fwd *p, const struct work *w, uint32_t base) {
    constexpr int CHUNKS = COLS / 8;
    __syncwarp();
#pragma unroll 2
    for (int x = lane_of(); x < WARP_ROWS * CHUNKS; x += 32) {
        const int r_tile = warp_row_of() * WARP_ROWS + x / CHUNKS, row = w->row0 + r_tile,
                  c = warp_col_of() * CHUNKS + x % CHUNKS;
        const int left = p->in.dim_v - 8 * c;
        if (row >= w->seq.rows * p->pack || left <= 0) continue;
        const uint4 a = shared_load128(base + tile_at(PITCH, r_tile, c));
        uint16_t *to = (uint16_t *)p->out.data + row_at(p, w, &p->out, row) + 8 * c;
        if (p->out.chunk == 16 && left >= 8) {
            *(uint4 *)to = a;
            continue;
        }
        const uint32_t word[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
        for (int e = 0; e < 8; e++)
            if (e < left) to[e] = (uint16_t)(word[e / 2] >> (e % 2 * 16));
    }
}

/* ------------------------------------------------------------------ one work item ------------------ */

static __device__ __forceinline__ void run_tile(const struct kp_sdpa_fwd *p, struct work *w) {
    const uint32_t base = shared_base();
    const float unit = FULL ? LOG2E : p->in.scale_log2;
    const struct strip s = strip_of(p, w);
    const int n_items = 2 * w->n_tiles, paged = FULL && p->in.block_table != 0;
    const int64_t hk = key_head_of(p, w);
    const char *keys = (const char *)p->in.k.data +
                       2 * ((paged ? 0 : w->b * p->in.k.batch) + hk * p->in.k.head + w->seq.k0 * p->in.k.row);
    const char *values = (const char *)p->in.v.data +
                         2 * ((paged ? 0 : w->b * p->in.v.batch) + hk * p->in.v.head + w->seq.k0 * p->in.v.row);

    float rO[M_TILES][N_O][4];
    struct statistics st;
    struct bias bias;
#pragma unroll
    for (int x = 0; x < M_TILES; x++) {
#pragma unroll
        for (int n = 0; n < N_O; n++) rO[x][n][0] = rO[x][n][1] = rO[x][n][2] = rO[x][n][3] = 0;
        st.m[x][0] = st.m[x][1] = -INF;
        st.l[x][0] = st.l[x][1] = 0;
    }
    if (FULL) bias_of(p, w, &bias);
    keep_work(w, base);

    if (n_items > 0) {
        uint32_t rQ[M_TILES][Q_HELD][4];
        int slot = 0,
            before = (SLOTS - 1) * SLOT; /* of the item at work; of the one before it, where the next copy goes */
        const int j_last = (w->first + w->n_tiles - 1) * KEYS;
        if (threadIdx.x < 2) shared_store32(base + POISON + 4 * threadIdx.x, 0);
        load_queries(p, w, base);
        copy_commit();
#pragma unroll
        for (int t = 0; t < SLOTS - 1; t++) {
            if (t < n_items)
                load_keys(p, w, base, base + RING + t * SLOT, t & 1 ? values : keys, j_last - t / 2 * KEYS, t & 1);
            copy_commit();
        }
        copy_wait(SLOTS - 1);
        __syncthreads();
        if (!FULL && p->in.scale < 0) {
            flip_queries(base);
            __syncthreads();
        }
        hold_queries(rQ, q_lane_of(base));

#pragma unroll 1
        for (int t = 0; t < n_items; t += 2) {
            const int j0 = j_last - t / 2 * KEYS;
            const int active = j0 <= s.at_max + p->in.window_right && j0 + KEYS > s.at_min - p->in.window_left;
            uint32_t rP[M_TILES][P_STEPS][4];

            copy_wait(SLOTS - 2); /* K */
            __syncthreads();
            if (t + SLOTS - 1 < n_items) {
                constexpr int NEXT = SLOTS - 1, IS_V = NEXT & 1;
                load_keys(p, w, base, base + RING + before, IS_V ? values : keys, j0 - NEXT / 2 * KEYS, IS_V);
            }
            copy_commit();
            if (active) {
                float rS[M_TILES][N_S][4];
                score_tile(rS, rQ, q_lane_of(base), k_lane_of(base + RING + slot));
                if (FULL)
                    finish_scores(p, &bias, base, j0, rS);
                else if (j0 + KEYS > w->seq.sk || !sees_all(p, w, s.at_min, s.at_max, j0))
                    hide_keys(p, base, j0, rS);
                online_softmax(rS, &st, rO, rP, unit);
            }
            before = slot, slot = slot + SLOT == SLOTS * SLOT ? 0 : slot + SLOT;

            copy_wait(SLOTS - 2); /* V */
            __syncthreads();
            if (t + SLOTS < n_items) {
                constexpr int NEXT = SLOTS, IS_V = NEXT & 1;
                load_keys(p, w, base, base + RING + before, IS_V ? values : keys, j0 - NEXT / 2 * KEYS, IS_V);
            }
            copy_commit();
            int poison = 0;
            if ((FULL && p->in.mask.data) || !sees_all(p, w, w->at_min, w->at_max, j0))
                poison = take_poison(base, base + RING + slot);
            if (active) {
                add_pv(rO, rP, v_lane_of(base + RING + slot));
                if (poison) add_poison(p, w, &bias, base, values, j0, rO, rP);
            }
            if (poison) {
                __syncthreads();
                if (threadIdx.x < 2) shared_store32(base + POISON + 4 * threadIdx.x, 0);
            }
            before = slot, slot = slot + SLOT == SLOTS * SLOT ? 0 : slot + SLOT;
        }
    }
    __syncthreads(); /* the output tile takes the place of Q */
    recall_work(w, base);
    finish_rows(p, w, base, &st, rO, unit);
    if (p->splits == 1) store_rows(p, w, base);
}

extern "C" __global__ void __launch_bounds__(THREADS, CFG_CTAS) CFG(const __grid_constant__ struct kp_sdpa_fwd p) {
    struct work w;
    for (int64_t item = blockIdx.x; item < p.items; item = w.item + gridDim.x) {
        if (find_work(&p, item, &w)) run_tile(&p, &w);
        __syncthreads(); /* the next item's copies overwrite the output tile */
    }
}
