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
 *   P, V slices --wgmma--> O (f32 registers) --> out
 *
 *   a compute warpgroup, key tile n:     S(n) = Q K(n)^T        issued      TURN: warpgroups issue in turns, so that
 *                                        O += P(n+1) V(n+1)     issued      products of one overlap with the
 *                                        P(n) from S(n), under the second   exponentials of the others
 *                                        then m may rise: pass_maximum; P(n), O and l are scaled
 *   between tiles of query rows:         the last O += P V and the next S(first) are issued together; the rows are
 *                                        written under the second (with two tiles of Q)
 *
 * m is the maximum of the first key tile, and raised only when a thread's sum of a tile's P passes 2^15: P and O stay
 * far from any overflow, and l and O share the stale m (FlashAttention-4, section 3, which compares scores instead).
 *
 * Roles: warpgroups 0 .. GROUPS-1 compute, 232 registers (160 with three); the last one has 40 (32): a warp of it
 * copies and says what is to be done (keep_work), another writes rows that see no key.
 * Shared memory: Q, Q_TILES tiles; K and V, 2 or 4 stages each; mbarriers; struct work of each tile of Q.
 *   mbarrier (arrivals)                                                                          phase
 *   Q_FULL[2] (1 + bytes), Q_FREE[2] (a warp each, and the prefetching thread)                   tiles of Q / Q_TILES
 *   K_FULL[4], V_FULL[4] (1 + bytes), K_FREE[4], V_FREE[4] (a warp each)                         key tiles / STAGES
 *   named: TURN + warpgroup (256), VALUES_CLEARED (compute warpgroups)
 *
 * Hidden keys have P = 0, but 0 * NaN is NaN. Rows of V past the sequence's keys are cleared in shared memory
 * (has_tail) or lie outside of the tensor and arrive as zeros. Where keys are hidden from some rows only and a sum
 * is not finite, sdpa_hidden_values.h looks whether a hidden value is to blame, and computes such rows again.
 *
 * Figures: docs/kernels/sdpa_fwd_sm90.md. */
#include "kernels/device/mma.h"
#include "kernels/device/uniform_desc.h"
#include "kernels/device/wgmma.h"
#include "kernels/sm90/sdpa_fwd/loads.h"
#include "kernels/sm90/sdpa_fwd/score_mod.h"
#include "kernels/sm90/sdpa_fwd/softmax.h"
#include "kernels/sm90/sdpa_fwd/wgmma_n192.h"
/* It reads what stands in work.h and score_mod.h. */
#include "kernels/device/sdpa_hidden_values.h"

/* ------------------------------------------------------------------ products ----------------------- */

static __device__ __forceinline__ void product_qk(float *s, uint64_t q, uint64_t k, int accumulate) {
    if (KEYS == 64) wgmma_ss_n64<TYPE, 0, 0>(s, q, k, accumulate);
    if (KEYS == 80) wgmma_ss_n80<TYPE, 0, 0>(s, q, k, accumulate);
    if (KEYS == 128) wgmma_ss_n128<TYPE, 0, 0>(s, q, k, accumulate);
}
static __device__ __forceinline__ void product_pv(float *o, const uint32_t *p, uint64_t v) {
    if (DIM_V == 64) wgmma_rs_n64<TYPE, 1>(o, p, v, 1);
    if (DIM_V == 128) wgmma_rs_n128<TYPE, 1>(o, p, v, 1);
    if (DIM_V == 192) wgmma_rs_n192<TYPE, 1>(o, p, v, 1);
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
    uint32_t shared, count;
    int wg;       /* warpgroup */
    float unit;   /* log2 units of what the softmax gets: scale log2(e), with its sign */
    float o[N_O]; /* 64 x DIM_V: see wgmma.h */
    struct rows rows;
};

/* Numbers of the key tile and of the tile of Q at work, of all the CTA's; of the latter only the rest by WORKS. One
 * register, count, has both. */
constexpr uint32_t COUNT_TILES = WORKS;
static __device__ __forceinline__ uint32_t tiles_of(const struct state *c) { return c->count / WORKS; }
static __device__ __forceinline__ uint32_t q_tile_of(const struct state *c) { return c->count % WORKS; }
static __device__ __forceinline__ void next_rows(struct state *c) {
    c->count = c->count / WORKS * WORKS + (c->count + 1) % WORKS;
}

/* Computed where they are used: they would occupy registers all the while. */
static __device__ __forceinline__ int lane_of(void) { return recompute((int)threadIdx.x) % 32; }
static __device__ __forceinline__ int warp_of(void) { return recompute((int)threadIdx.x) / 32 % 4; }

/* One arrival for the warp, all of whose lanes are here. */
static __device__ __forceinline__ void arrive_warp(const struct state *c, uint32_t barrier) {
    __syncwarp();
    if (lane_of() == 0) mbar_arrive(c->shared + barrier);
}

/* The warp has read K of the key tile at work; V of the CTA's key tile number x. */
static __device__ __forceinline__ void free_keys(const struct state *c) {
    arrive_warp(c, K_FREE + 8 * stage_of(tiles_of(c)));
}
static __device__ __forceinline__ void free_values(const struct state *c, uint32_t x) {
    arrive_warp(c, V_FREE + 8 * stage_of(x));
}

static __device__ __forceinline__ struct work work_of(const struct state *c, uint32_t q_tile) {
    return recall_work(c->shared + WORK + 64 * (q_tile % WORKS));
}
/* What a warp knows of the tile of rows at work, in shared memory, since registers are few: the first of the key tiles
 * that the warpgroup's rows see; key tiles inner0 <= n < inner1 hide no key from any of the rows; small: the cap alone
 * is wanted, and has been larger than all scores so far by so much that cap_ahead may serve. */
struct range {
    int first, inner0, inner1, small;
};
static __device__ __forceinline__ uint32_t range_place(const struct state *c) {
    return c->shared + RANGES + (uint32_t)recompute((int)threadIdx.x) / 32 * 16;
}
static __device__ __forceinline__ void keep_range(const struct state *c, struct range x) {
    __syncwarp();
    if (lane_of() == 0) shared_store128(range_place(c), make_uint4(x.first, x.inner0, x.inner1, x.small));
    __syncwarp();
}
static __device__ __forceinline__ void keep_small(const struct state *c, int small) {
    __syncwarp();
    if (lane_of() == 0) shared_store32(range_place(c) + 12, (uint32_t)small);
    __syncwarp();
}
static __device__ __forceinline__ struct range recall_range(const struct state *c) {
    const uint4 x = shared_load128(range_place(c));
    return {(int)x.x, (int)x.y, (int)x.z, (int)x.w};
}

/* Scores of the keys of key tile n that a row of the thread does not see. Returns the column from which on no row of
 * the warp sees any; blocks of 32 columns past it are left as they are unless `all`. */
static __device__ __forceinline__ int hide(const struct kp_sdpa_fwd *p, const struct state *c, float s[N_S], int n,
                                           int all) {
    const uint32_t place = c->shared + WORK + 64 * q_tile_of(c);
    struct work w; /* of it only these: three loads of 16 bytes would take more registers than there are */
    w.row0 = (int)shared_load32(place + 8), w.off = (int)shared_load32(place + 12);
    w.seq.sk = (int)shared_load32(place + 20);
    const int t = recompute((int)threadIdx.x), i0 = w.row0 + t / 128 * 64 + t / 32 % 4 * 16;
    const int low = first_key(p, &w, i0 + 15) - n * KEYS, high = end_key(p, &w, i0) - n * KEYS;
    const int end = end_key(p, &w, i0 + 15) - n * KEYS;
#pragma unroll
    for (int x0 = 0; x0 < N_S; x0 += 16) {                  /* 32 columns */
        if (2 * x0 >= low && 2 * x0 + 32 <= high) continue; /* every row of the warp sees them all */
        if (!all && x0 > 0 && 2 * x0 >= end) continue;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int i = i0 + t % 32 / 4 + 8 * r, first = n * KEYS + t % 4 * 2;
            hide_keys(s, x0, r, first_key(p, &w, i) - first, end_key(p, &w, i) - first, c->unit < 0 ? INF : -INF);
        }
    }
    return end;
}

/* Softcap and ALiBi of key tile n. Returns struct range's `small`. */
static __device__ __forceinline__ int modify(const struct kp_sdpa_fwd *p, const struct state *c, float s[N_S], int n) {
    int small = 0;
    if (p->in.softcap > 0) small = cap_products(p, s);
    if (!p->in.alibi_form) return small;
    const struct work w = work_of(c, q_tile_of(c));
    const int i = w.row0 + 64 * c->wg + 16 * warp_of() + (lane_of() >> 2);
    const int diagonal = i + w.off - n * KEYS - 2 * (lane_of() & 3), both[2] = {diagonal, diagonal + 8};
    add_alibi(p, s, both, recall_slope(c->shared + WORK + 64 * q_tile_of(c)));
    return 0;
}

static __device__ __forceinline__ void grow(struct state *c, const float growth[2]) {
#pragma unroll
    for (int r = 0; r < 2; r++) c->rows.l[r] *= growth[r];
#pragma unroll
    for (int x = 0; x < N_O; x++) c->o[x] *= growth[x >> 1 & 1];
}

/* Wait for V of the CTA's key tile number x. */
static __device__ __forceinline__ uint64_t take_values(const struct state *c, uint32_t x) {
    mbar_wait(c->shared + V_FULL + 8 * stage_of(x), phase_of(x));
    return slice_desc(c->shared + V_RING + stage_of(x) * V_BYTES, K_SLICE);
}
/* The first tile holds the end of the sequence's keys, `valid` < KEYS of them: all compute warpgroups clear the rows of
 * V past it. */
static __device__ __forceinline__ void clear_tail(const struct state *c, int valid) {
    const uint32_t values = c->shared + V_RING + stage_of(tiles_of(c)) * V_BYTES;
    mbar_wait(c->shared + V_FULL + 8 * stage_of(tiles_of(c)), phase_of(tiles_of(c)));
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
    mbar_wait(c->shared + K_FULL + 8 * stage_of(x), phase_of(x));
    return slice_desc(c->shared + K_RING + stage_of(x) * K_BYTES, 0);
}

/* The first key tile, whose S is there: P alone. */
static __device__ __forceinline__ void first_tile(const struct kp_sdpa_fwd *p, struct state *c, int n, int inner0,
                                                  int inner1, float s[N_S], uint32_t pr[N_P]) {
    int seen = KEYS;
    if (SCORE_MOD) keep_small(c, modify(p, c, s, n));
    if (n < inner0 || n >= inner1) seen = hide(p, c, s, n, 0);
    softmax_first(s, pr, &c->rows, c->unit, seen);
}

/* The products of the warp's rows and of the key tile at work once more, from shared memory by mma.sync, whose sums lie
 * in the same threads. */
static __device__ __forceinline__ void products_again(const struct state *c, float s[N_S]) {
    const uint32_t lane = (uint32_t)lane_of(), q_row = 64 * c->wg + 16 * warp_of() + lane % 16;
    const uint32_t queries = c->shared + q_tile_of(c) % Q_TILES * Q_BYTES + 128 * q_row;
    const uint32_t k_row = lane % 8 + lane / 16 * 8,
                   keys = c->shared + K_RING + stage_of(tiles_of(c)) * K_BYTES + 128 * k_row;
#pragma unroll
    for (int y = 0; y < N_S; y++) s[y] = 0;
#pragma unroll 1
    for (uint32_t kk = 0; kk < DIM / 16; kk++) {
        const uint32_t q_chunk = kk % 4 * 2 + lane / 16, k_chunk = kk % 4 * 2 + lane / 8 % 2;
        uint32_t a[4], b[4];
        load_matrix4(a, queries + kk / 4 * Q_SLICE + ((q_chunk ^ q_row % 8) << 4));
#pragma unroll
        for (int j = 0; j < KEYS / 8; j += 2) {
            load_matrix4(b, keys + kk / 4 * K_SLICE + 1024 * j + ((k_chunk ^ k_row % 8) << 4));
            mma_m16n8k16(TYPE, s + 4 * j, a, b[0], b[1]);
            mma_m16n8k16(TYPE, s + 4 * j + 4, a, b[2], b[3]);
        }
    }
}

/* A score of key tile n, the CTA's latest, has passed the maximum in use, or there was none yet: the maxima are raised
 * and P is made to fit. Where it has overflowed, or may have vanished, or a score was not as small as cap_ahead took it
 * to be (large), it is computed again. */
static __device__ __forceinline__ void pass_maximum(const struct kp_sdpa_fwd *p, struct state *c, int n, float s[N_S],
                                                    float sum[2], float growth[2], int large) {
    float most[2];
    largest_p(s, most);
    int again = SCORE_MOD && large;
#pragma unroll
    for (int r = 0; r < 2; r++) again |= !(most[r] <= P_MOST) || (c->rows.m[r] == -INF && most[r] < P_LEAST);
    if (!__any_sync(~0u, again)) {
        raise_after(s, &c->rows, sum, most, growth);
        return;
    }
    if (SCORE_MOD && __any_sync(~0u, large)) keep_small(c, 0);
    products_again(c, s);
    if (SCORE_MOD) modify(p, c, s, n);
    hide(p, c, s, n, 1);
    softmax_exact(s, &c->rows, sum, growth, c->unit);
}
/* wgmma_wait(0), once x is known: see wgmma_wait_after. */
static __device__ __forceinline__ void wgmma_wait_if(int x) {
    if (rare(x)) asm volatile("nanosleep.u32 1;" ::: "memory");
    wgmma_wait(0);
}

/* Key tile n after the first: S and P of it, and the values of the tile before by its P. */
static __device__ __forceinline__ void next_tile(const struct kp_sdpa_fwd *p, struct state *c, int n, float s[N_S],
                                                 uint32_t pr[N_P]) {
    float sum[2], growth[2];
    c->count += COUNT_TILES;
    const uint64_t k = take_keys(c, tiles_of(c));
    named_sync(TURN + c->wg, 256);
    start_scores(s, queries_of(c, q_tile_of(c)), k);
    const uint64_t v = take_values(c, tiles_of(c) - 1);
    start_values(c->o, pr, v);
    named_arrive(TURN + (c->wg + 1 == GROUPS ? 0 : c->wg + 1), 256);
    wgmma_wait(1);
    wgmma_hold(s, N_S);
    const struct range range = recall_range(c);
    const int edge = n < range.inner0 || n >= range.inner1;
    int grows, large = 0;
    if (SCORE_MOD && !CAP_AHEAD && cap_is_small(p, c->rows.m, s, c->unit, edge)) {
        cap_small(p, s, c->rows.m, c->unit);
        exponentials(s, sum);
        grows = __any_sync(~0u, sum[0] > P_MOST); /* never: it orders the wait */
    } else if (SCORE_MOD && CAP_AHEAD && range.small && !edge) {
        const float from[2] = {c->rows.m[0] == -INF ? 0 : c->rows.m[0], c->rows.m[1] == -INF ? 0 : c->rows.m[1]};
        large = cap_ahead(p, s, from, c->unit) >= 0;
        exponentials(s, sum);
        grows = __any_sync(~0u, large || passed(&c->rows, sum, p->slack == 0));
    } else {
        if (SCORE_MOD) modify(p, c, s, n);
        if (rare(edge)) hide(p, c, s, n, 1);
        grows = __any_sync(~0u, softmax_ahead(s, &c->rows, sum, c->unit, p->slack == 0));
    }
    wgmma_wait_if(grows); /* the exponentials overlap with P V */
    wgmma_hold(c->o, N_O);
    c->count = (uint32_t)recompute((int)c->count); /* what was derived of it need not be kept */
    if (rare(grows)) pass_maximum(p, c, n, s, sum, growth, large);
    free_keys(c);
    free_values(c, tiles_of(c) - 1);
    if (Q_TILES == 1 && n == recall_range(c).first) arrive_warp(c, Q_FREE + 8 * (q_tile_of(c) % Q_TILES));
    round_p(s, pr);
    if (rare(grows)) grow(c, growth);
    c->rows.l[0] += sum[0], c->rows.l[1] += sum[1];
}

/* What was in s need not be kept: where paths meet, ptxas would copy it while products are under way. */
static __device__ __forceinline__ void forget(float s[N_S]) {
#pragma unroll
    for (int x = 0; x < N_S; x++) s[x] = 0;
}

/* Wait for Q of the tile's number q_tile. */
static __device__ __forceinline__ uint64_t take_queries(const struct state *c, uint32_t q_tile) {
    mbar_wait(c->shared + Q_FULL + 8 * (q_tile % Q_TILES), q_tile / Q_TILES & 1);
    return queries_of(c, q_tile);
}
static __device__ __forceinline__ int has_work(const struct state *c, uint32_t q_tile) {
    return (int)shared_load32(c->shared + WORK + 64 * (q_tile % WORKS)) > 0;
}

/* S of the first key tile is there. */
static __device__ __forceinline__ void end_scores(const struct state *c, float s[N_S]) {
    wgmma_wait(0);
    wgmma_hold(s, N_S);
    free_keys(c);
}

/* Key tiles own.first <= n < own.end that the warpgroup's rows see: none, or at least one. */
struct own {
    int first, end;
};
static __device__ __forceinline__ struct own own_tiles(const struct kp_sdpa_fwd *p, const struct state *c,
                                                       const struct work *w) {
    const int upper = w->row0 + 64 * c->wg, lower = min(upper + 63, w->seq.sq - 1), end = w->first + w->n_tiles;
    struct own own = {max(first_key(p, w, upper) / KEYS, w->first),
                      min((max(end_key(p, w, lower), 0) + KEYS - 1) / KEYS, end)};
    if (upper >= w->seq.sq || own.end <= own.first) own.first = own.end = w->first;
    return own;
}

/* The end of the sequence's keys lies in the first key tile, the latest one of the CTA. */
static __device__ __forceinline__ void clear_first(const struct kp_sdpa_fwd *p, const struct state *c,
                                                   const struct work *w) {
    const int last = w->first + w->n_tiles - 1;
    if (has_tail(p, w) && (last + 1) * KEYS > w->seq.sk) clear_tail(c, w->seq.sk - last * KEYS);
}

/* n key tiles that no row of the warpgroup sees, of which `turns` take part in the turns. */
static __device__ __forceinline__ void skip_tiles(struct state *c, int n, int turns) {
#pragma unroll 1
    for (; n > 0; n--, c->count += COUNT_TILES) {
        if (n <= turns) {
            named_sync(TURN + c->wg, 256);
            named_arrive(TURN + (c->wg + 1 == GROUPS ? 0 : c->wg + 1), 256);
        }
        take_keys(c, tiles_of(c));
        free_keys(c);
        take_values(c, tiles_of(c));
        free_values(c, tiles_of(c));
    }
}

/* A tile of rows whose Q is there: what comes before the first key tile that the warpgroup's rows see. Is there one? */
static __device__ __forceinline__ int enter_rows(const struct kp_sdpa_fwd *p, struct state *c) {
    const struct work w = work_of(c, q_tile_of(c));
    const struct own own = own_tiles(p, c, &w);
    const int front = w.first + w.n_tiles - own.end, none = own.first == own.end;
    if (front > 0) {
        clear_first(p, c, &w);
        skip_tiles(c, front, front - none);
    }
    return !none;
}

/* O of a tile of rows but for the product with the values of the last key tile, of which P is returned. */
static __device__ __forceinline__ void loop_keys(const struct kp_sdpa_fwd *p, struct state *c, float s[N_S],
                                                 uint32_t pr[N_P]) {
    const struct work work = work_of(c, q_tile_of(c));
    const struct own own = own_tiles(p, c, &work);
    const int upper = work.row0 + 64 * c->wg;
    const int inner0 = (first_key(p, &work, upper + 63) + KEYS - 1) / KEYS; /* rows past the end are not looked at */
    const int inner1 = max(end_key(p, &work, upper), 0) / KEYS;
    keep_range(c, {own.first, inner0, inner1, 0});
    c->rows.m[0] = c->rows.m[1] = -INF;
    if (own.end == work.first + work.n_tiles) clear_first(p, c, &work);
#pragma unroll
    for (int x = 0; x < N_O; x++) c->o[x] = 0;
    if (Q_TILES == 1 && own.end - own.first == 1) arrive_warp(c, Q_FREE + 8 * (q_tile_of(c) % Q_TILES));
    first_tile(p, c, own.end - 1, inner0, inner1, s, pr);
#pragma unroll 1
    for (int n = own.end - 2; n >= recall_range(c).first; n--) next_tile(p, c, n, s, pr);
    if (Q_TILES > 1) arrive_warp(c, Q_FREE + 8 * (q_tile_of(c) % Q_TILES));
    c->count += COUNT_TILES;
}

/* ------------------------------------------------------------------ results ------------------------ */

/* 16-bit results, from registers. Eight columns of a row are in the four threads of a quad, a pair each; of four such
 * blocks each thread gets one, so that a quad writes 64 bytes side by side. whole: all rows and columns exist. Rows
 * of out are aligned to 16 bytes, as those of all tensors here. */
static __device__ __forceinline__ void store_rows(const struct kp_sdpa_fwd *p, const struct work *w, int i,
                                                  const float o[N_O], const float factor[2], float zero[2], int whole) {
    const int t = lane_of() & 3, odd = t & 1, upper = t & 2;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        uint16_t *to = (uint16_t *)p->out.data + row_at(w, &p->out, i + 8 * r) + 8 * t;
        const int exists = i + 8 * r < w->seq.rows;
#pragma unroll
        for (int j = 0; j < N_O / 4; j += 4) {
            uint32_t x[4];
#pragma unroll
            for (int y = 0; y < 4; y++) {
                const float a = o[4 * (j + y) + 2 * r] * factor[r], b = o[4 * (j + y) + 2 * r + 1] * factor[r];
                x[y] = pack16(TYPE, a, b);
                zero[r] = __fmaf_rn(a, 0, __fmaf_rn(b, 0, zero[r]));
            }
            const uint32_t a = __shfl_xor_sync(~0u, odd ? x[0] : x[1], 1),
                           b = __shfl_xor_sync(~0u, odd ? x[2] : x[3], 1);
            /* pairs t & ~1 and t | 1 of block odd, and of block 2 + odd */
            const uint32_t low[2] = {odd ? a : x[0], odd ? x[1] : a}, high[2] = {odd ? b : x[2], odd ? x[3] : b};
            const uint32_t e = __shfl_xor_sync(~0u, upper ? low[0] : high[0], 2),
                           f = __shfl_xor_sync(~0u, upper ? low[1] : high[1], 2);
            const uint4 chunk = upper ? make_uint4(e, f, high[0], high[1]) : make_uint4(low[0], low[1], e, f);
            const int left = p->in.dim_v - 8 * (j + t);
            if (!whole && (!exists || left <= 0)) continue;
            if (whole || left >= 8) {
                *(uint4 *)(to + 8 * j) = chunk;
                continue;
            }
            const uint32_t word[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
            for (int y = 0; y < 7; y++)
                if (y < left) to[8 * j + y] = (uint16_t)(word[y / 2] >> (y % 2 * 16));
        }
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
            if (left > 1)
                *(float2 *)(to + 8 * j) = make_float2(a, b);
            else
                to[8 * j] = a;
        }
    }
}

/* Divide, round and write the warpgroup's rows of tile number q_tile. */
static __device__ __forceinline__ void finish_rows(const struct kp_sdpa_fwd *p, struct state *c, uint32_t q_tile) {
    const struct work work = work_of(c, q_tile), *w = &work;
    const int i = w->row0 + 64 * c->wg + 16 * warp_of() + (lane_of() >> 2);
    float factor[2];
    float zero[2] = {0, 0}; /* NaN if a sum of the row is not finite */
    /* Even lanes do row i, odd ones row i + 8. */
    const float sums[2] = {quad_sum(c->rows.l[0]), quad_sum(c->rows.l[1])};
    const int odd = lane_of() & 1;
    const float own =
        finish_row(p, w, i + 8 * odd, odd ? c->rows.m[1] : c->rows.m[0], odd ? sums[1] : sums[0], (lane_of() & 2) == 0);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        factor[r] = __shfl_sync(~0u, own, (lane_of() & 28) + r);
        if (factor[r] < 0) {
#pragma unroll
            for (int x = 0; x < N_O; x++)
                if ((x >> 1 & 1) == r) c->o[x] = 0;
        }
    }
    const int last = w->row0 + 64 * c->wg + 16 * warp_of() + 15;
    if (p->out.dtype == KP_F32)
        store_rows_f32(p, w, i, c->o, factor, zero);
    else if (last < w->seq.rows && p->in.dim_v == DIM_V)
        store_rows(p, w, i, c->o, factor, zero, 1);
    else
        store_rows(p, w, i, c->o, factor, zero, 0);
    const uint32_t low = __ballot_sync(~0u, zero[0] != 0), high = __ballot_sync(~0u, zero[1] != 0);
    if (rare((int)(low | high)))
        recompute_rows<numbers16<TYPE>>(p, w, w->row0 + 64 * c->wg + 16 * warp_of(), low, high, c->rows.m, factor,
                                        c->unit);
}

/* V of the last key tile that the warpgroup's rows see has been read. */
static __device__ __forceinline__ void end_values(struct state *c) {
    wgmma_hold(c->o, N_O);
    free_values(c, tiles_of(c) - 1);
}

/* No row of the warpgroup sees a key. */
static __device__ __forceinline__ void no_keys(struct state *c) {
    c->rows.m[0] = c->rows.m[1] = -INF, c->rows.l[0] = c->rows.l[1] = 0;
#pragma unroll
    for (int x = 0; x < N_O; x++) c->o[x] = 0;
    arrive_warp(c, Q_FREE + 8 * (q_tile_of(c) % Q_TILES));
}

/* Key tiles of tile q_tile of rows that come after those that the warpgroup's rows see. */
static __device__ __forceinline__ int tiles_left(const struct kp_sdpa_fwd *p, const struct state *c, uint32_t q_tile) {
    const struct work w = work_of(c, q_tile);
    return own_tiles(p, c, &w).first - w.first;
}
/* Do the warpgroup's rows see the first key tile? */
static __device__ __forceinline__ int sees_first(const struct kp_sdpa_fwd *p, const struct state *c) {
    const struct work w = work_of(c, q_tile_of(c));
    return own_tiles(p, c, &w).end == w.first + w.n_tiles;
}

static __device__ __forceinline__ void consume(const struct kp_sdpa_fwd *p, uint32_t shared) {
    struct state c;
    float s[N_S];
    uint32_t pr[N_P];
    c.shared = shared, c.count = 0;
    c.wg = __shfl_sync(~0u, (int)threadIdx.x / 128, 0);
    c.unit = unit_of_softmax(p);
    take_queries(&c, 0);
    if (!has_work(&c, 0)) return;
    if (c.wg == GROUPS - 1) named_arrive(TURN, 256);
#pragma unroll 1
    do {
        const uint64_t q = take_queries(&c, q_tile_of(&c));
        if (enter_rows(p, &c)) {
            start_scores(s, q, take_keys(&c, tiles_of(&c)));
            end_scores(&c, s);
            for (;;) {
                loop_keys(p, &c, s, pr);
                const int left = tiles_left(p, &c, q_tile_of(&c));
                next_rows(&c);
                if (Q_TILES == 1 || left > 0 || !has_work(&c, q_tile_of(&c)) || !sees_first(p, &c)) break;
                /* S of the next rows is formed under the work on those that are complete */
                forget(s);
                start_values(c.o, pr, take_values(&c, tiles_of(&c) - 1));
                const uint64_t q = take_queries(&c, q_tile_of(&c)), k = take_keys(&c, tiles_of(&c));
                start_scores(s, q, k);
                wgmma_wait(1);
                end_values(&c);
                finish_rows(p, &c, q_tile_of(&c) - 1);
                end_scores(&c, s);
            }
            start_values(c.o, pr, take_values(&c, tiles_of(&c) - 1));
            wgmma_wait(0);
            end_values(&c);
        } else {
            no_keys(&c);
            next_rows(&c);
        }
        finish_rows(p, &c, q_tile_of(&c) - 1);
        const int left = tiles_left(p, &c, q_tile_of(&c) - 1);
        skip_tiles(&c, left, left);
    } while (has_work(&c, q_tile_of(&c)));
    if (c.wg == 0) named_sync(TURN, 256);
}

extern "C" __global__ void __launch_bounds__(CONSUMERS + 128, 1)
    CFG(const __grid_constant__ struct kp_sdpa_fwd_maps kp) {
    const uint32_t shared = shared_base();
    if (threadIdx.x == 0) {
        for (int x = 0; x < Q_TILES; x++)
            mbar_init(shared + Q_FULL + 8 * x, 1), mbar_init(shared + Q_FREE + 8 * x, 4 * GROUPS + 1);
        for (int x = 0; x < STAGES; x++) {
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
        else if (threadIdx.x == CONSUMERS + 64)
            prefetch(&kp, shared);
    } else {
        registers_more<GROUPS == 3 ? 160 : 232>();
        consume(&kp.fwd, shared);
    }
}
