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
 * (FlashAttention-4, section 3): p <= 2^8 then, far from any overflow, and l and O share the stale m. Where max_logits
 * is wanted it never waits.
 *
 *   global Q --cp.async--> shared Q --ldmatrix--------> A registers --+
 *   global K --cp.async--> ring     --ldmatrix--------> B registers --+-mma-> S (f32)
 *                                                                              | softmax
 *   global V --cp.async--> ring     --ldmatrix.trans--> B registers --+     P (16 bit, already an A operand)
 *                                                                     +-mma----+
 *                                                                        O (f32) -> shared -> global
 *
 * Shared memory:
 *   Q tile, at the end the output tile  |  ring of `slots` tiles: K n-1, V n-1, K n-2, ...  |  flags, 320 bytes
 *   flags:   0  a bit mask of the keys whose value row is not finite
 *           16  what inner key tiles do not need of the CTA's work
 *           64 + 64 (key tile % 2)  a byte per key, 1 = its page is not in the pool (full variants)
 *          192  8 bytes per row warp: the diagonal at its first and last row
 *          256  addresses of the first key and value        272  the word SUSPECT, see below
 *   a warp's rows x mask_pitch bytes for each warp: cells of a mask, if they are copied (sdpa_fwd_mask.h)
 * The ring needs no other barrier than __syncthreads: before the work on ring item t each thread waits for its own
 * copies of item t; the barrier joins all threads and proves that all have read item t - 1, whose slot then takes the
 * next copy. An item is one tile of K or V, or, with `pair`, K and V of a key tile: half as many barriers, and softmax
 * and products overlap freely, for one more slot.
 *
 * Hidden keys have p = 0, but 0 * NaN is NaN. Keys past the end are zero-filled by the copy. Where keys are hidden from
 * some rows only, the CTA looks at its finished sums: if one is not finite, a hidden value may be to blame, and the
 * pass is repeated with care (CAREFUL): tiles in which a key is hidden from some row are searched for infinities and
 * NaN; such rows of V are zeroed in the tile and added by hand to the rows that see them (add_poison).
 *
 * Limits: lengths to 2^28 and 2^31 tiles (32-bit rows and items; addresses are 64-bit). Unaligned tensors take smaller
 * copies. Splits write (O, m, l) to the workspace; kernels/smxx/sdpa_combine.cu merges them. Registers and figures:
 * docs/kernels/sdpa_fwd_sm80.md. */
#include "kernels/device/grid.h"
#include "kernels/device/mma.h"
#include "kernels/sm80/sdpa_fwd_mask.h"
#include "kernels/sm80/sdpa_fwd_pages.h"
#include "kernels/sm80/sdpa_fwd_store.h"

/* ------------------------------------------------------------------ products ----------------------- */

/* A lane's first ldmatrix address in the Q tile, in a K tile, in a V tile; recomputed when used. */
static __device__ __forceinline__ uint32_t q_lane_of(uint32_t base) {
    const int lane = lane_of();
    return base + tile_at(PITCH, warp_row_of() * WARP_ROWS + lane % 16, lane / 16);
}
static __device__ __forceinline__ uint32_t k_lane_of(uint32_t tile) {
    const int lane = lane_of();
    return tile + tile_at(PITCH, lane % 8 + lane / 16 * 8, lane / 8 % 2) + (uint32_t)(key_of_warp() * PITCH);
}
static __device__ __forceinline__ uint32_t v_lane_of(uint32_t tile) {
    const int lane = lane_of();
    return tile + tile_at(PITCH, lane % 16, warp_col_of() * (COLS / 8) + lane / 16) + (uint32_t)(key_of_warp() * PITCH);
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

/* rO += P V for 16 keys. */
static __device__ __forceinline__ void add_pv(float rO[M_TILES][N_O][4], const uint32_t rP[M_TILES][P_STEPS][4],
                                              uint32_t v_lane, int k) {
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

/* ------------------------------------------------------------------ softmax ------------------------ */

static __device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

/* Scores to rounded probabilities; rescales l and rO where a maximum has grown. NaN scores pass by the maximum (max.f32
 * returns the other operand) and make l NaN. The factor of a rescale is at least 2^LEAST: the product adds nothing to
 * l >= 1, but an infinity stays one. */
static __device__ __forceinline__ void raise_maximum(float rS[M_TILES][N_S][4], struct statistics *st,
                                                     float rO[M_TILES][N_O][4], float unit, float slack) {
    float m[M_TILES][2];
    int grown = 0;
#pragma unroll
    for (int x = 0; x < M_TILES; x++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float y = fmaxf(rS[x][0][2 * r], rS[x][0][2 * r + 1]);
#pragma unroll
            for (int n = 1; n < N_S; n++) y = fmaxf(y, fmaxf(rS[x][n][2 * r], rS[x][n][2 * r + 1]));
            m[x][r] = fmaxf(st->m[x][r], quad_max(y));
            grown |= !((m[x][r] - st->m[x][r]) * unit <= slack); /* also when both are -inf */
        }
    if (__any_sync(~0u, grown)) {
#pragma unroll
        for (int x = 0; x < M_TILES; x++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float factor = exp2_fast(fmaxf((st->m[x][r] - m[x][r]) * unit, LEAST));
                st->m[x][r] = m[x][r];
                st->l[x][r] *= factor;
#pragma unroll
                for (int n = 0; n < N_O; n++) rO[x][n][2 * r] *= factor, rO[x][n][2 * r + 1] *= factor;
            }
    }
}

/* Probabilities of 16 rows and 16 keys (fragment columns 2 k, 2 k + 1): exponentials, their sums, and the rounded A
 * operand. Full scores may be as large as f32 goes: subtract first. Raw products: one multiply-add. */
static __device__ __forceinline__ void exponentials(const float rS[N_S][4], const float m[2], float l[2],
                                                    uint32_t rP[P_STEPS][4], int k, float unit) {
    float low[2];
#pragma unroll
    for (int r = 0; r < 2; r++) low[r] = m[r] == -INF ? 0 : FULL ? m[r] : m[r] * unit;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float y[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float s = rS[2 * k + h][e];
            y[e] = exp2_fast(FULL ? (s - low[e >> 1]) * unit : __fmaf_rn(s, unit, -low[e >> 1]));
        }
        l[0] += y[0] + y[1];
        l[1] += y[2] + y[3];
        rP[k][2 * h] = pack16(TYPE, y[0], y[1]);
        rP[k][2 * h + 1] = pack16(TYPE, y[2], y[3]);
    }
}
/* ------------------------------------------------------------------ values that are not finite ----- */

/* All threads: note rows of the V tile that hold an infinity or NaN, and zero them in shared memory. Returns whether
 * there are any. One barrier, two if so; the notes are zero on entry. */
static __device__ __forceinline__ int zero_nonfinite(uint32_t base, uint32_t slot) {
    const int thread = thread_of();
    uint32_t any = 0;
#pragma unroll 4
    for (int x = thread; x < KEYS * (DIM_V / 8); x += THREADS) {
        const int r = x / (DIM_V / 8), c = x % (DIM_V / 8);
        const uint4 a = shared_load128(slot + tile_at(PITCH, r, c));
        const uint32_t bad =
            not_finite16(TYPE, a.x) | not_finite16(TYPE, a.y) | not_finite16(TYPE, a.z) | not_finite16(TYPE, a.w);
        if (bad) shared_or32(base + NONFINITE + 4 * (r >> 5), 1u << (r & 31));
        any |= bad;
    }
    if (!__syncthreads_or((int)any)) return 0;
#pragma unroll 1
    for (int x = thread; x < KEYS * (DIM_V / 8); x += THREADS) {
        const int r = x / (DIM_V / 8), c = x % (DIM_V / 8);
        if (shared_load32(base + NONFINITE + 4 * (r >> 5)) >> (r & 31) & 1)
            shared_store128(slot + tile_at(PITCH, r, c), make_uint4(0, 0, 0, 0));
    }
    __syncthreads();
    return 1;
}

/* A warp: add the noted value rows, read from memory, to the rows that see them. A probability that has been rounded to
 * 0 stands for a small positive number: times an infinity it is one. */
static __device__ __forceinline__ void add_nonfinite(const struct kp_sdpa_fwd *p, const struct work *w, uint32_t base,
                                                     const char *values, int j0, float rO[M_TILES][N_O][4],
                                                     const uint32_t rP[M_TILES][P_STEPS][4]) {
    const uint4 kept = recall_rows(base);
#pragma unroll 1
    for (int j = key_of_warp(); j < key_of_warp() + WARP_KEYS; j++) {
        const int col0 = warp_col_of() * COLS + 2 * (lane_of() & 3);
        if (!(shared_load32(base + NONFINITE + 4 * (j >> 5)) >> (j & 31) & 1)) continue;
        const char *row = values + 2 * (j0 + j) * p->in.v.row;
        if (has_pages(p)) { /* a row of a page outside the pool was zero-filled and never comes here */
            const uint32_t page_size = (uint32_t)p->in.page_size, key = (uint32_t)(j0 + j);
            const int64_t page = ((const int32_t *)p->in.block_table + w->b * p->in.table_batch)[key / page_size];
            row = values + 2 * (page * p->in.v.batch + key % page_size * p->in.v.row);
        }
#pragma unroll
        for (int x = 0; x < M_TILES; x++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                uint32_t pair =
                    0; /* the register of P that holds column j, or its neighbour, in the quad's lane j / 2 % 4 */
#pragma unroll
                for (int n = 0; n < N_S; n++)
                    pair |= rP[x][n / 2][n % 2 * 2 + r] &
                            (0u - (uint32_t)(n == (j - key_of_warp()) >> 3)); /* a choice would index memory */
                pair = __shfl_sync(~0u, pair, (lane_of() & ~3) | (j >> 1 & 3));
                float y = unpack16(TYPE, j & 1 ? pair >> 16 : pair & 0xffff);
                int lo, hi;
                visible_keys(p, kept, x, r, j0, &lo, &hi);
                int visible = j >= lo && j < hi;
                if (FULL && p->in.mask.data && visible)
                    visible = mask_cell(p, cells_of(p, base, row_of(kept, x, r), (int)kept.y) +
                                               (int64_t)(j0 + j) * p->in.mask.column) != -INF;
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

/* The second pass: is there a key in the tile that some row of the CTA does not see? */
static __device__ __forceinline__ int must_scan(const struct kp_sdpa_fwd *p, const struct work *w, uint32_t base,
                                                int j0) {
    if (shared_load32(base + SUSPECT) != CAREFUL) return 0;
    const uint4 kept = shared_load128(base + KEPT + 32);
    return (FULL && p->in.mask.data) || !sees_all(p, w, (int)kept.z, (int)kept.w, j0);
}

/* ------------------------------------------------------------------ one tile of queries ------------ */

/* Copies of ring item t = K, V, K, V, ... (pairs: of key tile t, both at once) into its slot. */
static __device__ __forceinline__ void load_slot(const struct kp_sdpa_fwd *p, const struct work *w, uint32_t base,
                                                 struct source from, uint32_t slot, int j0, int is_v) {
    if (PAIR || !is_v) load_keys(p, w, base, slot, (const char *)from.keys, j0, 0);
    if (PAIR || is_v) load_keys(p, w, base, PAIR ? slot + SLOT : slot, (const char *)from.values, j0, 1);
}

constexpr int STEP = PAIR ? 2 * SLOT : SLOT, PER_TILE = PAIR ? 1 : 2; /* bytes of a ring item, items of a key tile */

/* The ring item before the one at `slot`. */
static __device__ __forceinline__ uint32_t before(uint32_t base, int slot) {
    return base + RING + (slot == 0 ? SLOTS * SLOT : slot) - STEP;
}

/* All key tiles of the CTA. */
static __device__ __forceinline__ void attend_keys(const struct kp_sdpa_fwd *p, const struct work *w, uint32_t base,
                                                   struct statistics *st, float rO[M_TILES][N_O][4], float unit,
                                                   int careful) {
    const struct source from = source_of(p, w);
    const int n_loads = PER_TILE * w->n_tiles, j_last = (w->first + w->n_tiles - 1) * KEYS;
    uint32_t rQ[M_TILES][Q_HELD][4];
    int slot = 0; /* of the load at work; the next copy goes to the one before it */
    int page[AHEAD + 1][PAGE_ROWS], outside = 0; /* .full = 2: of the tiles copied first, then of the next one */
    if (PAGED) {
#pragma unroll
        for (int t = 0; t <= AHEAD; t++) find_pages(p, w, t < w->n_tiles ? j_last - t * KEYS : -KEYS, page[t]);
    }
    load_queries(p, w, base);
    if (n_loads > 0 && is_copied(p, w->seq.sk, j_last)) copy_mask(p, base, w, j_last);
#pragma unroll
    for (int t = 0; t < AHEAD; t++) {
        if (PAGED && t < w->n_tiles)
            outside |= load_paged_pair(p, w, base, from, base + RING + t * STEP, j_last - t * KEYS, page[t]);
        else if (t < n_loads)
            load_slot(p, w, base, from, base + RING + t * STEP, j_last - t / PER_TILE * KEYS, t % PER_TILE);
        copy_commit();
    }
    if (threadIdx.x == 0) keep_work(p, w, base, &from, careful);
    keep_strip(p, w, base);
#pragma unroll
    for (int x = 0; x < M_TILES; x++) {
#pragma unroll
        for (int n = 0; n < N_O; n++) rO[x][n][0] = rO[x][n][1] = rO[x][n][2] = rO[x][n][3] = 0;
        st->m[x][0] = st->m[x][1] = -INF;
        st->l[x][0] = st->l[x][1] = 0;
    }
    copy_wait(AHEAD - 1); /* Q and the first item */
    __syncthreads();
    if (!FULL && p->in.scale < 0) {
        flip_queries(base);
        __syncthreads();
    }
    hold_queries(rQ, q_lane_of(base));

#pragma unroll 1
    for (int t = 0; t < n_loads; t += PER_TILE) {
        const int j0 = j_last - t / PER_TILE * KEYS;
        const struct strip s = recall_strip(base);
        const int active = j0 <= s.at_max + p->in.window_right && j0 + KEYS > s.at_min - p->in.window_left;
        uint32_t rP[M_TILES][P_STEPS][4];
        float rS[M_TILES][N_S][4];
        int nonfinite = 0;

        if (FULL && AHEAD > 1 && p->mask_pitch)
            copy_wait(0); /* the mask's copy is the last that was started */
        else
            copy_wait(AHEAD - 1); /* K */
        if (PAGED)
            outside = __syncthreads_or(outside);
        else
            __syncthreads();
        if (PAGED) {
            if (t + AHEAD < w->n_tiles)
                outside |= load_paged_pair(p, w, base, recall_source(base), before(base, slot), j0 - AHEAD * KEYS,
                                           page[AHEAD]);
            find_pages(p, w, t + AHEAD + 1 < w->n_tiles ? j0 - (AHEAD + 1) * KEYS : -KEYS, page[AHEAD]);
        } else if (t + AHEAD < n_loads)
            load_slot(p, w, base, recall_source(base), before(base, slot), j0 - AHEAD / PER_TILE * KEYS,
                      AHEAD % PER_TILE);
        copy_commit();
        if (PAIR && must_scan(p, w, base, j0)) nonfinite = zero_nonfinite(base, base + RING + slot + SLOT);
        if (active) {
            const int all = j0 + KEYS <= w->seq.sk && sees_all(p, w, s.at_min, s.at_max, j0);
            score_tile(rS, rQ, q_lane_of(base), k_lane_of(base + RING + slot));
            if (FULL) finish_scores(p, base, j0, all, is_copied(p, w->seq.sk, j0), rS);
            if (!all) hide_keys(p, base, j0, rS);
            if (PAGED && outside) hide_outside(p, w, j0, rS);
            raise_maximum(rS, st, rO, unit, p->slack);
#pragma unroll
            for (int x = 0; x < M_TILES; x++)
#pragma unroll
                for (int k = 0; k < P_STEPS; k++) exponentials(rS[x], st->m[x], st->l[x], rP[x], k, unit);
        }
        if (FULL && p->mask_pitch) {
            if (t + PER_TILE < n_loads) copy_mask_again(p, base, j0 - KEYS);
            if (PAIR) copy_commit();
        }
        if (!PAIR) {
            slot = slot + STEP == SLOTS * SLOT ? 0 : slot + STEP;
            copy_wait(AHEAD - 1); /* V */
            __syncthreads();
            if (t + 1 + AHEAD < n_loads)
                load_slot(p, w, base, recall_source(base), before(base, slot), j0 - (1 + AHEAD) / PER_TILE * KEYS,
                          (1 + AHEAD) % PER_TILE);
            copy_commit();
            if (must_scan(p, w, base, j0)) nonfinite = zero_nonfinite(base, base + RING + slot);
        }
        if (active) {
            const uint32_t v_lane = v_lane_of(base + RING + slot + (PAIR ? SLOT : 0));
#pragma unroll
            for (int k = 0; k < P_STEPS; k++) add_pv(rO, rP, v_lane, k);
            if (nonfinite) add_nonfinite(p, w, base, (const char *)recall_source(base).values, j0, rO, rP);
        }
        if (nonfinite) {
            __syncthreads();
            if (threadIdx.x == 0) shared_store128(base + NONFINITE, make_uint4(0, 0, 0, 0));
        }
        slot = slot + STEP == SLOTS * SLOT ? 0 : slot + STEP;
    }
}

/* Is any sum of the CTA not finite although keys were hidden? */
static __device__ __forceinline__ int is_suspect(uint32_t base, const float rO[M_TILES][N_O][4]) {
    float sum = 0; /* 0, or NaN if anything is not finite */
    if (shared_load32(base + SUSPECT) != HIDDEN) return 0;
#pragma unroll
    for (int x = 0; x < M_TILES; x++)
#pragma unroll
        for (int n = 0; n < N_O; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) sum = __fmaf_rn(rO[x][n][e], 0, sum);
    return __syncthreads_or(sum != 0);
}

extern "C" __global__ void __launch_bounds__(THREADS, CFG_CTAS) CFG(const __grid_constant__ struct kp_sdpa_fwd p) {
    const uint32_t base = shared_base();
    const float unit = FULL ? LOG2E : p.in.scale_log2;
    struct work w;
    struct statistics st;
    float rO[M_TILES][N_O][4];
#ifdef CFG_EARLY
    if (p.splits > 1) grid_release(); /* the merge stands by where there is room, its code and parameters read */
#endif
#pragma unroll 1
    for (int careful = 0;; careful = 1) {
        if (!find_work(&p, recompute((int)blockIdx.x), &w)) return;
        attend_keys(&p, &w, base, &st, rO, unit, careful);
        if (!is_suspect(base, rO)) break;
    }
    recall_work(&w, base);
#ifdef CFG_EARLY
    if (p.splits > 1) {
        merge_partials(&p, &w, base, &st, rO, unit);
        return;
    }
#endif
    if (KEY_WARPS > 1 && !merge_keys(base, &st, rO, unit)) return;
#ifndef CFG_EARLY
    if (p.splits > 1) {
        store_partials(&p, &w, &st, rO, unit);
        return;
    }
#endif
    if (COL_WARPS > 1) __syncthreads(); /* the output takes the place of Q, of which column warps share rows */
    finish_rows(&p, &w, base, &st, rO, unit);
}
