/* SPDX-License-Identifier: MIT
 * Dense attention forward on Hopper: wgmma and tensor maps (TMA), f16 and bf16, causal, windows, GQA, sinks, lengths,
 * packed sequences. Persistent: a CTA takes tiles of 64 query rows a compute warpgroup, of one head, and loops over the
 * keys that they see from the last tile to the first.
 *
 *   S = Q K^T      P = 2^(unit S - m), unit = scale log2(e)      l += rowsum P      O += P V
 *   at the end     out = O / l,  lse = ln 2 (m + log2 l)
 *
 *   Q, K, V in memory --TMA, 128-byte swizzle--> slices of 64 columns in shared memory
 *   Q, K slices --wgmma--> S (f32 registers) --exponentials--> P (16-bit registers, an A operand)
 *   P, V slices --wgmma--> O (f32 registers) --stmatrix, in the place of Q--> out
 *
 *   a compute warpgroup, key tile n:     S(n) = Q K(n)^T        issued      TURN: warpgroups issue in turns, so that
 *                                        O += P(n+1) V(n+1)     issued      products of one overlap with the
 *                                        P(n) from S(n), under the second   exponentials of the others
 *                                        rescale of O and l, if any, when the second is done
 *   between tiles of query rows:         the last O += P V and the next S(first) are issued together; the rows are
 *                                        written under the second (with two tiles of Q)
 *
 * The maximum m is raised only when a score passes it by more than 8 in log2 units: P <= 2^8 then, far from any
 * overflow, and l and O share the stale m (FlashAttention-4, section 3).
 *
 * Roles: warpgroups 0 .. GROUPS-1 compute, 232 registers (160 with three); the last one has 40 (32): a warp of it
 * copies and says what is to be done (keep_work), another writes rows that see no key.
 * Shared memory: Q, Q_TILES tiles; K and V, two stages each; mbarriers; struct work of each tile of Q.
 *   mbarrier (arrivals)                                                                          phase
 *   Q_FULL[2] (1 + bytes), Q_FREE[2] (a warp each of the compute warpgroups)                     tiles of Q / Q_TILES
 *   K_FULL[2], V_FULL[2] (1 + bytes), K_FREE[2], V_FREE[2] (a warp each)                         key tiles / 2
 *   named: TURN + warpgroup (256), TILE_DONE + warpgroup (128), VALUES_CLEARED (compute warpgroups)
 *
 * Hidden keys have P = 0, but 0 * NaN is NaN. Rows of V past the sequence's keys are cleared in shared memory
 * (has_tail) or lie outside of the tensor and arrive as zeros. Where keys are hidden from some rows only and a sum
 * is not finite, hidden_values.h looks whether a hidden value is to blame, and computes such rows again.
 *
 * Figures: docs/kernels/sdpa_fwd_sm90.md. */
#include "kernels/device/stmatrix.h"
#include "kernels/device/uniform_desc.h"
#include "kernels/device/wgmma.h"
#include "kernels/sm90/sdpa_fwd/hidden_values.h"
#include "kernels/sm90/sdpa_fwd/loads.h"
#include "kernels/sm90/sdpa_fwd/softmax.h"

/* ------------------------------------------------------------------ products ----------------------- */

static __device__ __forceinline__ void product_qk(float *s, uint64_t q, uint64_t k, int accumulate) {
    if (KEYS == 64) wgmma_ss_n64<TYPE, 0, 0>(s, q, k, accumulate);
    if (KEYS == 80) wgmma_ss_n80<TYPE, 0, 0>(s, q, k, accumulate);
    if (KEYS == 128) wgmma_ss_n128<TYPE, 0, 0>(s, q, k, accumulate);
}
static __device__ __forceinline__ void product_pv(float *o, const uint32_t *p, uint64_t v) {
    if (DIM_V == 64) wgmma_rs_n64<TYPE, 1>(o, p, v, 1);
    if (DIM_V == 128) wgmma_rs_n128<TYPE, 1>(o, p, v, 1);
    if (DIM_V == 256) wgmma_rs_n256<TYPE, 1>(o, p, v, 1);
}

/* Start S = Q K^T. */
static __device__ __forceinline__ void start_scores(float s[N_S], uint64_t q, uint64_t k) {
    q = uniform_desc(q), k = uniform_desc(k);
    wgmma_hold(s, N_S);
    wgmma_fence();
#pragma unroll
    for (int x = 0; x < DIM / 64; x++)
#pragma unroll
        for (int kk = 0; kk < 4; kk++)
            product_qk(s, desc_step(q, x * Q_SLICE + 32 * kk), desc_step(k, x * K_SLICE + 32 * kk), x + kk > 0);
    wgmma_commit();
}
/* Start O += P V. */
static __device__ __forceinline__ void start_values(float o[N_O], const uint32_t p[N_P], uint64_t v) {
    v = uniform_desc(v);
    wgmma_hold(o, N_O);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < KEYS / 16; kk++) product_pv(o, p + 4 * kk, desc_step(v, 2048 * kk));
    wgmma_commit();
}

/* ------------------------------------------------------------------ a compute warpgroup ------------ */

struct state {
    uint32_t shared, q_tile, tiles; /* numbers of the tile of Q and of the key tile at work, of all the CTA's */
    int wg;                         /* warpgroup */
    float unit;                     /* log2 units of what the softmax gets: scale log2(e), with its sign */
    float o[N_O];                   /* 64 x DIM_V: see wgmma.h */
    struct rows rows;
    int inner0, inner1; /* key tiles inner0 <= n < inner1 hide no key from any row of the warpgroup */
};

/* Computed where they are used: they would occupy registers all the while. */
static __device__ __forceinline__ int lane_of(void) { return recompute((int)threadIdx.x) % 32; }
static __device__ __forceinline__ int warp_of(void) { return recompute((int)threadIdx.x) / 32 % 4; }

/* One arrival for the warp, all of whose lanes are here. */
static __device__ __forceinline__ void arrive_warp(const struct state *c, uint32_t barrier) {
    __syncwarp();
    if (lane_of() == 0) mbar_arrive(c->shared + barrier);
}

static __device__ __forceinline__ struct work work_of(const struct state *c, uint32_t q_tile) {
    return recall_work(c->shared + WORK + 64 * (q_tile % Q_TILES));
}
/* Scores of the keys of key tile n that a row of the thread does not see. */
static __device__ __forceinline__ void hide(const struct kp_sdpa_fwd *p, const struct state *c, float s[N_S], int n) {
    const struct work w = work_of(c, c->q_tile);
    const int i = w.row0 + 64 * c->wg + 16 * warp_of() + (lane_of() >> 2), first = n * KEYS + 2 * (lane_of() & 3);
    const int lo[2] = {first_key(p, &w, i) - first, first_key(p, &w, i + 8) - first};
    const int hi[2] = {end_key(p, &w, i) - first, end_key(p, &w, i + 8) - first};
    hide_keys(s, lo, hi, c->unit < 0 ? INF : -INF);
}

/* Softcap and ALiBi of key tile n. Returns what no square of this thread's scores is above, in the softmax's unit. */
static __device__ __forceinline__ float modify(const struct kp_sdpa_fwd *p, const struct state *c, float s[N_S],
                                               int n) {
    float largest = INF;
    if (p->in.softcap > 0) largest = cap_products(p, s);
    if (!p->in.alibi_form) return largest;
    const struct work w = work_of(c, c->q_tile);
    const int i = w.row0 + 64 * c->wg + 16 * warp_of() + (lane_of() >> 2);
    const int diagonal = i + w.off - n * KEYS - 2 * (lane_of() & 3), both[2] = {diagonal, diagonal + 8};
    add_alibi(p, s, both, recall_slope(c->shared + WORK + 64 * (c->q_tile % Q_TILES)));
    return INF;
}

static __device__ __forceinline__ void grow(struct state *c, const float growth[2]) {
#pragma unroll
    for (int r = 0; r < 2; r++) c->rows.l[r] *= growth[r];
#pragma unroll
    for (int x = 0; x < N_O; x++) c->o[x] *= growth[x >> 1 & 1];
}

/* Wait for V of the CTA's key tile number x. */
static __device__ __forceinline__ uint64_t take_values(const struct state *c, uint32_t x) {
    mbar_wait(c->shared + V_FULL + 8 * (x & 1), x >> 1 & 1);
    return slice_desc(c->shared + V_RING + (x & 1) * V_BYTES, K_SLICE);
}
/* The first tile holds the end of the sequence's keys, `valid` < KEYS of them: all compute warpgroups clear the rows of
 * V past it. */
static __device__ __forceinline__ void clear_tail(const struct state *c, int valid) {
    const uint32_t values = c->shared + V_RING + (c->tiles & 1) * V_BYTES;
    mbar_wait(c->shared + V_FULL + 8 * (c->tiles & 1), c->tiles >> 1 & 1);
#pragma unroll 1
    for (int y = (int)threadIdx.x; y < (KEYS - valid) * (DIM_V / 8); y += CONSUMERS) {
        const int row = valid + y / (DIM_V / 8), chunk = y % (DIM_V / 8);
        shared_store128(values + chunk / 8 * K_SLICE + row * 128 + chunk % 8 * 16, make_uint4(0, 0, 0, 0));
    }
    async_fence();
    named_sync(VALUES_CLEARED, CONSUMERS);
}

static __device__ __forceinline__ uint64_t queries_of(const struct state *c, uint32_t q_tile) {
    return slice_desc(c->shared + q_tile % Q_TILES * Q_BYTES + 8192 * (uint32_t)c->wg, 0);
}
static __device__ __forceinline__ uint64_t take_keys(const struct state *c, uint32_t x) {
    mbar_wait(c->shared + K_FULL + 8 * (x & 1), x >> 1 & 1);
    return slice_desc(c->shared + K_RING + (x & 1) * K_BYTES, 0);
}

/* The first key tile, whose S is there: P alone. */
static __device__ __forceinline__ void first_tile(const struct kp_sdpa_fwd *p, struct state *c, int n, float s[N_S],
                                                  uint32_t pr[N_P]) {
    float growth[2];
    if (SCORE_MOD) modify(p, c, s, n);
    if (n < c->inner0 || n >= c->inner1) hide(p, c, s, n);
    softmax_tile(s, &c->rows, c->rows.l, growth, c->unit, p->slack, INF, 1);
    round_p(s, pr);
}

/* Key tile n after the first: S and P of it, and the values of the tile before by its P. */
static __device__ __forceinline__ void next_tile(const struct kp_sdpa_fwd *p, struct state *c, uint64_t q, int n,
                                                 float s[N_S], uint32_t pr[N_P]) {
    const uint32_t before = c->tiles++, now = c->tiles;
    float sum[2], growth[2];
    const uint64_t k = take_keys(c, now);
    named_sync(TURN + c->wg, 256);
    start_scores(s, q, k);
    const uint64_t v = take_values(c, before);
    start_values(c->o, pr, v);
    named_arrive(TURN + (c->wg + 1 == GROUPS ? 0 : c->wg + 1), 256);
    wgmma_wait(1);
    wgmma_hold(s, N_S);
    arrive_warp(c, K_FREE + 8 * (now & 1));
    const float largest = SCORE_MOD ? modify(p, c, s, n) : INF;
    if (rare(n < c->inner0 || n >= c->inner1)) hide(p, c, s, n);
    const int grows = softmax_tile(s, &c->rows, sum, growth, c->unit, p->slack, largest, 0);
    wgmma_wait_after(sum[0] + sum[1]); /* the exponentials overlap with P V */
    wgmma_hold(c->o, N_O);
    arrive_warp(c, V_FREE + 8 * (before & 1));
    round_p(s, pr);
    if (rare(grows)) grow(c, growth);
    c->rows.l[0] += sum[0], c->rows.l[1] += sum[1];
}

/* Wait for Q of the tile's number q_tile. */
static __device__ __forceinline__ uint64_t take_queries(const struct state *c, uint32_t q_tile) {
    mbar_wait(c->shared + Q_FULL + 8 * (q_tile % Q_TILES), q_tile / Q_TILES & 1);
    return queries_of(c, q_tile);
}
static __device__ __forceinline__ int has_work(const struct state *c, uint32_t q_tile) {
    return (int)shared_load32(c->shared + WORK + 64 * (q_tile % Q_TILES)) > 0;
}

/* S of the first key tile is there. */
static __device__ __forceinline__ void end_scores(const struct state *c, float s[N_S]) {
    wgmma_wait(0);
    wgmma_hold(s, N_S);
    arrive_warp(c, K_FREE + 8 * (c->tiles & 1));
}

/* O of a tile of rows but for the product with the values of the last key tile, of which P is returned. */
static __device__ __forceinline__ void loop_keys(const struct kp_sdpa_fwd *p, struct state *c, float s[N_S],
                                                 uint32_t pr[N_P]) {
    const struct work work = work_of(c, c->q_tile);
    const int last = work.first + work.n_tiles - 1;
    const int upper = work.row0 + 64 * c->wg, lower = upper + 63; /* rows past the end are not looked at */
    const uint64_t q = queries_of(c, c->q_tile);
    c->rows.m[0] = c->rows.m[1] = -INF;
    c->inner0 = (first_key(p, &work, lower) + KEYS - 1) / KEYS;
    c->inner1 = max(end_key(p, &work, upper), 0) / KEYS;
#pragma unroll
    for (int x = 0; x < N_O; x++) c->o[x] = 0;
    if (has_tail(p, &work) && (last + 1) * KEYS > work.seq.sk) clear_tail(c, work.seq.sk - last * KEYS);
    first_tile(p, c, last, s, pr);
#pragma unroll 1
    for (int n = last - 1; n >= work.first; n--) next_tile(p, c, q, n, s, pr);
    c->tiles++, c->q_tile++;
}

/* ------------------------------------------------------------------ results ------------------------ */

/* The warp's 16 rows, rounded in the slices at `tile`, to the tensor. */
static __device__ __forceinline__ void store_rows(const struct kp_sdpa_fwd *p, const struct work *w,
                                                  const struct state *c, uint32_t tile) {
    constexpr int CHUNKS = DIM_V / 8, ACROSS = CHUNKS < 32 ? CHUNKS : 32, DOWN = 32 / ACROSS;
    const int line0 = 64 * c->wg + 16 * warp_of(), r0 = lane_of() / ACROSS, chunk = lane_of() % ACROSS;
    const int line = line0 + r0, left = p->in.dim_v - 8 * chunk, whole = p->out.chunk == 16 && left >= 8;
    const uint32_t from = tile + chunk / 8 * Q_SLICE;
    uint16_t *to = (uint16_t *)p->out.data + row_at(w, &p->out, w->row0 + line) + 8 * chunk;
    const int64_t step = DOWN * p->out.row;
    const int n = w->seq.rows - w->row0 - line; /* rows that exist, from the lane's first on */
#pragma unroll
    for (int r = 0; r < 16; r += DOWN, to += step) {
        const uint4 a = shared_load128(from + (line + r) * 128 + ((chunk % 8 ^ (line + r & 7)) << 4));
        if (r >= n) break;
        if (whole) {
            *(uint4 *)to = a;
            continue;
        }
        const uint32_t word[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
        for (int e = 0; e < 8; e++)
            if (e < left) to[e] = (uint16_t)(word[e / 2] >> (e % 2 * 16));
    }
}

/* f32 results, from registers: a quad's pairs of columns are 32 bytes side by side. The thread has columns 2 (lane % 4)
 * and the next of each eight of rows i and i + 8. */
static __device__ __forceinline__ void store_rows_f32(const struct kp_sdpa_fwd *p, const struct work *w, int i,
                                                      const float o[N_O], const float factor[2], float zero[2]) {
    const int col0 = 2 * (lane_of() & 3);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float *to = (float *)p->out.data + row_at(w, &p->out, i + 8 * r) + col0;
        const int exists = i + 8 * r < w->seq.rows;
#pragma unroll
        for (int j = 0; j < N_O / 4; j++) {
            const float a = o[4 * j + 2 * r] * factor[r], b = o[4 * j + 2 * r + 1] * factor[r];
            const int left = p->in.dim_v - col0 - 8 * j;
            zero[r] = __fmaf_rn(a, 0, __fmaf_rn(b, 0, zero[r]));
            if (!exists || left <= 0) continue;
            if (p->out.chunk == 16 && left > 1) {
                *(float2 *)(to + 8 * j) = make_float2(a, b);
                continue;
            }
            to[8 * j] = a;
            if (left > 1) to[8 * j + 1] = b;
        }
    }
}

/* Divide, round and write the warpgroup's rows, through its rows of the Q tile. */
static __device__ __forceinline__ void finish(const struct kp_sdpa_fwd *p, const struct work *w, struct state *c,
                                              uint32_t tile) {
    const int i = w->row0 + 64 * c->wg + 16 * warp_of() + (lane_of() >> 2);
    const int line = 64 * c->wg + 16 * warp_of() + (lane_of() & 15);
    float factor[2];
    float zero[2] = {0, 0}; /* NaN if a sum of the row is not finite */
#pragma unroll
    for (int r = 0; r < 2; r++) {
        factor[r] = finish_row(p, w, i + 8 * r, c->rows.m[r], quad_sum(c->rows.l[r]), (lane_of() & 3) == 0);
        if (factor[r] < 0) {
#pragma unroll
            for (int x = 0; x < N_O; x++)
                if ((x >> 1 & 1) == r) c->o[x] = 0;
        }
    }
    if (p->out.dtype == KP_F32) {
        store_rows_f32(p, w, i, c->o, factor, zero);
    } else {
        named_sync(TILE_DONE + c->wg, 128); /* the products of all four warps have read Q */
#pragma unroll
        for (int j = 0; j < N_O / 8; j++) {
            uint32_t x[4];
#pragma unroll
            for (int y = 0; y < 4; y++) {
                const float a = c->o[8 * j + 2 * y] * factor[y & 1], b = c->o[8 * j + 2 * y + 1] * factor[y & 1];
                x[y] = pack16(TYPE, a, b);
                zero[y & 1] = __fmaf_rn(a, 0, __fmaf_rn(b, 0, zero[y & 1]));
            }
            const int chunk = 2 * j + (lane_of() >> 4);
            store_matrix4(tile + chunk / 8 * Q_SLICE + line * 128 + ((chunk % 8 ^ (line & 7)) << 4), x);
        }
        __syncwarp();
        store_rows(p, w, c, tile);
    }
    const uint32_t low = __ballot_sync(~0u, zero[0] != 0), high = __ballot_sync(~0u, zero[1] != 0);
    if (rare((int)(low | high)))
        mend_rows(p, w, w->row0 + 64 * c->wg + 16 * warp_of(), low, high, c->rows.m, factor, c->unit);
}

/* After the last product of a tile of rows, which had the latest tiles of Q and of the keys. */
static __device__ __forceinline__ void finish_rows(const struct kp_sdpa_fwd *p, struct state *c) {
    const uint32_t q = (c->q_tile - 1) % Q_TILES;
    const struct work w = work_of(c, c->q_tile - 1);
    wgmma_hold(c->o, N_O);
    arrive_warp(c, V_FREE + 8 * (c->tiles - 1 & 1));
    finish(p, &w, c, c->shared + q * Q_BYTES);
    async_fence();
    arrive_warp(c, Q_FREE + 8 * q);
}

static __device__ __forceinline__ void consume(const struct kp_sdpa_fwd *p, uint32_t shared) {
    struct state c;
    float s[N_S];
    uint32_t pr[N_P];
    c.shared = shared, c.tiles = c.q_tile = 0;
    c.wg = __shfl_sync(~0u, (int)threadIdx.x / 128, 0);
    c.unit = unit_of_softmax(p);
    uint64_t q = take_queries(&c, 0);
    if (!has_work(&c, 0)) return;
    if (c.wg == GROUPS - 1) named_arrive(TURN, 256);
    start_scores(s, q, take_keys(&c, 0));
    end_scores(&c, s);
#pragma unroll 1
    for (;;) {
        loop_keys(p, &c, s, pr);
        const uint64_t v = take_values(&c, c.tiles - 1);
        if (Q_TILES > 1) q = take_queries(&c, c.q_tile);
        if (Q_TILES == 1 || !has_work(&c, c.q_tile)) {
            start_values(c.o, pr, v);
            wgmma_wait(0);
            finish_rows(p, &c);
            if (Q_TILES == 1) q = take_queries(&c, c.q_tile);
            if (!has_work(&c, c.q_tile)) break;
            start_scores(s, q, take_keys(&c, c.tiles));
        } else { /* S of the next rows is formed under the work on those that are complete */
            const uint64_t k = take_keys(&c, c.tiles);
            start_values(c.o, pr, v);
            start_scores(s, q, k);
            wgmma_wait(1);
            finish_rows(p, &c);
        }
        end_scores(&c, s);
    }
    if (c.wg == 0) named_sync(TURN, 256);
}

extern "C" __global__ void __launch_bounds__(CONSUMERS + 128, 1)
    CFG(const __grid_constant__ struct kp_sdpa_fwd_maps kp) {
    const uint32_t shared = shared_base();
    if (threadIdx.x == 0) {
        for (int x = 0; x < 2; x++) {
            mbar_init(shared + Q_FULL + 8 * x, 1), mbar_init(shared + Q_FREE + 8 * x, 4 * GROUPS);
            mbar_init(shared + K_FULL + 8 * x, 1), mbar_init(shared + K_FREE + 8 * x, 4 * GROUPS);
            mbar_init(shared + V_FULL + 8 * x, 1), mbar_init(shared + V_FREE + 8 * x, 4 * GROUPS);
        }
        mbar_init_fence();
    }
    __syncthreads();
    if (threadIdx.x >= CONSUMERS) {
        registers_fewer<GROUPS == 3 ? 32 : 40>();
        if (threadIdx.x < CONSUMERS + 32)
            produce(&kp, shared);
        else if (threadIdx.x < CONSUMERS + 64)
            fill_empty(&kp);
    } else {
        registers_more<GROUPS == 3 ? 160 : 232>();
        consume(&kp.fwd, shared);
    }
}
