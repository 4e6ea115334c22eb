/* SPDX-License-Identifier: MIT
 * Dense attention forward of e4m3 on Hopper: wgmma and tensor maps (TMA), causal, windows, GQA, sinks, lengths, packed
 * sequences; out in bf16 or f32. Persistent: a CTA takes tiles of 128 query rows of one head, 64 a compute warpgroup,
 * and loops over the keys that they see from the last tile to the first.
 *
 *   S = Q K^T      P = 2^(unit S - m), unit = scale log2(e) q_scale k_scale      l += rowsum P      O += P V
 *   at the end     out = v_scale O / l,  lse = ln 2 (m + log2 l)
 *
 *   Q, K --TMA--> shared memory --wgmma--> S (f32 registers) --exponentials--> P (e4m3 registers, an A operand)
 *   V --TMA--> shared memory --transpose.h--> V^T in shared memory, keys in P's order --wgmma--> O (f32 registers)
 *
 *   a compute warpgroup, key tile n:     S(n) = Q K(n)^T        issued
 *                                        O += P(n+1) V(n+1)     issued
 *                                        P(n) from S(n), under the second
 *                                        where m must follow: P, l and O are scaled, when the second is done
 *
 * Roles: warpgroups 0 and 1 compute, 232 registers. The last one has 40: warp 0 copies and says what is to be done,
 * warps 1 and 2 transpose V, warp 3 writes rows that see no key. Shared memory: Q and V as it is in memory (R), two
 * tiles each; K and V^T, STAGES tiles each; mbarriers; struct work of each tile of Q.
 *   mbarrier (arrivals)                                                     phase
 *   Q_FULL (1 + bytes), Q_FREE (a warp that computes or transposes each)    tiles of Q / 2
 *   R_FULL (1 + bytes), R_FREE (a transposing warp each)                    key tiles / 2
 *   K_FULL (1 + bytes), K_FREE (a compute warp each)                        key tiles / STAGES
 *   V_FULL (a transposing warp each), V_FREE (a compute warp each)          key tiles / STAGES
 *
 * Rows of V past the sequence's keys are cleared by the transposing warps. Figures: docs/kernels/sdpa_fwd_fp8_sm90.md.
 */
#include "kernels/device/cluster.h"
#include "kernels/device/uniform_desc.h"
#include "kernels/sm90/sdpa_fwd_fp8/hidden_values.h"
#include "kernels/sm90/sdpa_fwd_fp8/loads.h"
#include "kernels/sm90/sdpa_fwd_fp8/softmax.h"
#include "kernels/sm90/sdpa_fwd_fp8/transpose.h"

struct state {
    uint32_t shared, tile, q_tile; /* numbers of the key tile and of the tile of Q at work, of all the CTA's */
    int wg;                        /* warpgroup */
    float unit;                    /* log2 units of a product */
    float o[N_O];                  /* 64 x DIM_V: see wgmma.h */
    struct rows rows;
};

static __device__ __forceinline__ int lane_of(void) { return recompute((int)threadIdx.x) % 32; }
static __device__ __forceinline__ int warp_of(void) { return recompute((int)threadIdx.x) / 32 % 4; }

/* One arrival for the warp, all of whose lanes are here. */
static __device__ __forceinline__ void arrive_warp(const struct state *c, uint32_t barrier) {
    __syncwarp();
    if (lane_of() == 0) mbar_arrive(c->shared + barrier);
}

/* ------------------------------------------------------------------ products ----------------------- */

/* Start S = Q K^T of the key tile number x. */
static __device__ __forceinline__ void start_scores(const struct state *c, float s[N_S], uint32_t x) {
    mbar_wait(c->shared + K_FULL + 8 * stage_of(x), phase_of(x));
    const uint64_t q = uniform_desc(slice_desc(c->shared + (c->q_tile & 1) * Q_BYTES + 8192 * (uint32_t)c->wg, 0)),
                   k = uniform_desc(slice_desc(c->shared + K_RING + stage_of(x) * K_BYTES, 0));
    wgmma_hold(s, N_S);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < DIM / 32; kk++) {
        if (KEYS == 96) wgmma_e4m3_shared_n96(s, desc_step(q, 32 * kk), desc_step(k, 32 * kk), kk > 0);
        if (KEYS == 128) wgmma_e4m3_shared_n128(s, desc_step(q, 32 * kk), desc_step(k, 32 * kk), kk > 0);
    }
    wgmma_commit();
}
/* Start O += P V of the key tile number x. */
static __device__ __forceinline__ void start_values(struct state *c, const uint32_t p[N_P], uint32_t x) {
    mbar_wait(c->shared + V_FULL + 8 * stage_of(x), phase_of(x));
    const uint64_t v = uniform_desc(slice_desc(c->shared + V_RING + stage_of(x) * V_BYTES, 0));
    wgmma_hold(c->o, N_O);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < KEYS / 32; kk++) {
        if (DIM_V == 64) wgmma_e4m3_n64(c->o, p + 4 * kk, desc_step(v, 32 * kk));
        if (DIM_V == 128) wgmma_e4m3_n128(c->o, p + 4 * kk, desc_step(v, 32 * kk));
    }
    wgmma_commit();
}

/* ------------------------------------------------------------------ scores ------------------------- */

static __device__ __forceinline__ uint32_t work_place(const struct state *c) {
    return c->shared + WORK + WORK_BYTES * (c->q_tile & 1);
}
/* What of the work tells which keys a row sees; it is read where it is wanted, since registers are few. */
static __device__ __forceinline__ struct work recall_edges(const struct state *c) {
    const uint32_t place = work_place(c);
    struct work w;
    w.row0 = (int)shared_load32(place + 8), w.off = (int)shared_load32(place + 12);
    w.seq.sk = (int)shared_load32(place + 20);
    return w;
}
/* Is a key of key tile n hidden from any of the warpgroup's rows? */
static __device__ __forceinline__ int has_hidden(const struct kp_sdpa_fwd *p, const struct state *c, int n) {
    const struct work w = recall_edges(c);
    const int upper = w.row0 + 64 * c->wg, key0 = n * KEYS;
    return first_key(p, &w, upper + 63) > key0 || end_key(p, &w, upper) < key0 + KEYS;
}
/* Scores of key tile n that the thread's rows do not see. */
static __device__ __forceinline__ void hide(const struct kp_sdpa_fwd *p, const struct state *c, float y[N_S], int n) {
    const struct work w = recall_edges(c);
    const int first = n * KEYS + lane_of() % 4 * 2, i = w.row0 + 64 * c->wg + 16 * warp_of() + lane_of() / 4;
#pragma unroll
    for (int r = 0; r < 2; r++) hide_keys(y, r, first_key(p, &w, i + 8 * r) - first, end_key(p, &w, i + 8 * r) - first);
}

/* P of the first key tile, n, whose products are there. */
static __device__ __forceinline__ void first_tile(const struct kp_sdpa_fwd *p, struct state *c, float s[N_S], int n) {
    float growth[2];
    const float from[2] = {0, 0}; /* there is no m yet */
    relate(s, from, c->unit);
    if (has_hidden(p, c, n)) hide(p, c, s, n);
    follow(s, &c->rows, growth);
    exponentials(s, c->rows.l);
}

/* The products of the warp's rows and the key tile at work once more, from shared memory by mma.sync. */
static __device__ __forceinline__ void products_again(const struct state *c, float s[N_S]) {
    const uint32_t lane = (uint32_t)lane_of(), k_row = lane % 8 + lane / 16 * 8,
                   q_row = 64 * c->wg + 16 * warp_of() + lane % 16;
    const uint32_t queries = c->shared + (c->q_tile & 1) * Q_BYTES + 128 * q_row,
                   keys = c->shared + K_RING + stage_of(c->tile) * K_BYTES + 128 * k_row;
#pragma unroll
    for (int x = 0; x < N_S; x++) s[x] = 0;
#pragma unroll 1
    for (uint32_t kk = 0; kk < DIM / 32; kk++) {
        uint32_t a[4], b[4];
        load_matrix4(a, queries + ((2 * kk + lane / 16 ^ q_row % 8) << 4));
#pragma unroll
        for (int j = 0; j < KEYS / 8; j += 2) {
            load_matrix4(b, keys + 1024 * j + ((2 * kk + lane / 8 % 2 ^ k_row % 8) << 4));
            mma_e4m3(s + 4 * j, a, b[0], b[1]);
            mma_e4m3(s + 4 * j + 4, a, b[2], b[3]);
        }
    }
}

/* A score of key tile n may lie too far above m, or there was none yet: m follows. P that may have overflowed is formed
 * again. */
static __device__ __forceinline__ void pass(const struct kp_sdpa_fwd *p, struct state *c, int n, float s[N_S],
                                            float sum[2], float growth[2]) {
    float most[2];
    largest_p(s, most);
    if (!__any_sync(~0u, fmaxf(most[0], most[1]) > P_MOST)) {
        follow_after(s, &c->rows, sum, most, growth);
        return;
    }
    const float from[2] = {reference(c->rows.m[0]), reference(c->rows.m[1])};
    products_again(c, s);
    relate(s, from, c->unit);
    hide(p, c, s, n);
    follow(s, &c->rows, growth);
    exponentials(s, sum);
}

/* ------------------------------------------------------------------ a tile of rows ----------------- */

/* Key tile n after the first: S and P of it, and the values of the tile before by its P. */
static __device__ __forceinline__ void next_tile(const struct kp_sdpa_fwd *p, struct state *c, int n, float s[N_S],
                                                 uint32_t pr[N_P]) {
    float sum[2], growth[2];
    c->tile++;
    start_scores(c, s, c->tile);
    start_values(c, pr, c->tile - 1);
    const int edge = has_hidden(p, c, n);
    wgmma_wait(1);
    wgmma_hold(s, N_S);
    int grows;
    if (__builtin_expect(edge, 0)) {
        relate(s, c->rows.m, c->unit);
        hide(p, c, s, n);
        grows = __any_sync(~0u, exponentials_ahead(s, sum, p->slack == 0));
    } else {
        grows = __any_sync(~0u, softmax_ahead(s, &c->rows, sum, c->unit, p->slack == 0));
    }
    if (__builtin_expect(grows, 0)) asm volatile("nanosleep.u32 1;" ::: "memory"); /* as in wgmma_wait_after */
    wgmma_wait(0);
    wgmma_hold(c->o, N_O);
    if (__builtin_expect(grows, 0)) pass(p, c, n, s, sum, growth);
    arrive_warp(c, K_FREE + 8 * stage_of(c->tile));
    arrive_warp(c, V_FREE + 8 * stage_of(c->tile - 1));
    round_p(s, pr);
    if (__builtin_expect(grows, 0)) {
        c->rows.l[0] *= growth[0], c->rows.l[1] *= growth[1];
#pragma unroll
        for (int x = 0; x < N_O; x++) c->o[x] *= growth[x >> 1 & 1];
    }
    c->rows.l[0] += sum[0], c->rows.l[1] += sum[1];
}

/* O of the tile of rows at work. */
static __device__ __forceinline__ void loop_keys(const struct kp_sdpa_fwd *p, struct state *c) {
    float s[N_S];
    uint32_t pr[N_P];
    const int last = (int)shared_load32(work_place(c)) + (int)shared_load32(work_place(c) + 4) - 1;
    c->rows.m[0] = c->rows.m[1] = NONE;
#pragma unroll
    for (int x = 0; x < N_O; x++) c->o[x] = 0;
    start_scores(c, s, c->tile);
    wgmma_wait(0);
    wgmma_hold(s, N_S);
    arrive_warp(c, K_FREE + 8 * stage_of(c->tile));
    first_tile(p, c, s, last);
    round_p(s, pr);
#pragma unroll 1
    for (int n = last - 1; n >= (int)shared_load32(work_place(c) + 4); n--) next_tile(p, c, n, s, pr);
    start_values(c, pr, c->tile);
    wgmma_wait(0);
    wgmma_hold(c->o, N_O);
    arrive_warp(c, V_FREE + 8 * stage_of(c->tile));
    c->tile++;
}

/* Two numbers side by side, of which `left` exist; rows of out are aligned to 16 bytes. */
static __device__ __forceinline__ void store_pair(const struct kp_sdpa_fwd *p, int64_t element, int left, float a,
                                                  float b) {
    if (left <= 0) return;
    if (p->out.dtype == KP_F32) {
        float *to = (float *)p->out.data + element;
        if (left > 1)
            *(float2 *)to = make_float2(a, b);
        else
            *to = a;
        return;
    }
    uint16_t *to = (uint16_t *)p->out.data + element;
    const uint32_t both = pack16(KP_BF16, a, b);
    if (left > 1)
        *(uint32_t *)to = both;
    else
        *to = (uint16_t)both;
}

/* Divide, round and write the warpgroup's rows. */
static __device__ __forceinline__ void finish_rows(const struct kp_sdpa_fwd *p, struct state *c, float v_scale) {
    const struct work work = recall_work(work_place(c)), *w = &work;
    const int t = lane_of() & 3, i0 = w->row0 + 64 * c->wg + 16 * warp_of(), i = i0 + (lane_of() >> 2);
    const float lowered = exp2_fast(-LIFT);
    float factor[2], zero[2] = {0, 0}; /* NaN if a sum of the row is not finite */
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (c->rows.m[r] == NONE) c->rows.m[r] = -INF;
        const float f = finish_row(p, w, i + 8 * r, c->rows.m[r] + LIFT, quad_sum(c->rows.l[r]) * lowered, t == 0);
        factor[r] = f < 0 ? 0 : f * lowered * v_scale;
        const int64_t row = row_at(w, &p->out, i + 8 * r) + 2 * t;
        const int exists = i + 8 * r < w->seq.rows;
#pragma unroll
        for (int j = 0; j < N_O / 4; j++) {
            const float a = f < 0 ? 0 : c->o[4 * j + 2 * r] * factor[r],
                        b = f < 0 ? 0 : c->o[4 * j + 2 * r + 1] * factor[r];
            zero[r] = __fmaf_rn(a, 0, __fmaf_rn(b, 0, zero[r]));
            if (exists) store_pair(p, row + 8 * j, p->in.dim_v - 8 * j - 2 * t, a, b);
        }
    }
    const uint32_t low = __ballot_sync(~0u, zero[0] != 0), high = __ballot_sync(~0u, zero[1] != 0);
    if (__builtin_expect((low | high) != 0, 0))
        recompute_rows<numbers_e4m3>(p, w, i0, low, high, c->rows.m, factor, c->unit);
}

static __device__ __forceinline__ void consume(const struct kp_sdpa_fwd *p, uint32_t shared) {
    struct state c;
    c.shared = shared, c.tile = 0;
    c.wg = __shfl_sync(~0u, (int)threadIdx.x / 128, 0);
#pragma unroll 1
    for (c.q_tile = 0;; c.q_tile++) {
        mbar_wait(shared + Q_FULL + 8 * (c.q_tile & 1), c.q_tile >> 1 & 1);
        if ((int)shared_load32(work_place(&c)) < 0) break;
        c.unit = __uint_as_float(shared_load32(work_place(&c) + 48));
        loop_keys(p, &c);
        finish_rows(p, &c, __uint_as_float(shared_load32(work_place(&c) + 52)));
        arrive_warp(&c, Q_FREE + 8 * (c.q_tile & 1));
    }
}

extern "C" __global__ void __launch_bounds__(CONSUMERS + 128, 1)
    CFG(const __grid_constant__ struct kp_sdpa_fwd_fp8 kp) {
    const uint32_t shared = shared_base();
    if (threadIdx.x == 0) {
        for (int x = 0; x < 2; x++) {
            mbar_init(shared + Q_FULL + 8 * x, 1), mbar_init(shared + Q_FREE + 8 * x, 4 * GROUPS + TRANSPOSERS);
        }
        for (int x = 0; x < R_STAGES; x++)
            mbar_init(shared + R_FULL + 8 * x, 1), mbar_init(shared + R_FREE + 8 * x, TRANSPOSERS);
        for (int x = 0; x < STAGES; x++) {
            mbar_init(shared + K_FULL + 8 * x, 1), mbar_init(shared + K_FREE + 8 * x, 4 * GROUPS);
            mbar_init(shared + V_FULL + 8 * x, TRANSPOSERS), mbar_init(shared + V_FREE + 8 * x, 4 * GROUPS);
        }
        mbar_init_fence();
    }
    __syncthreads();
    if (threadIdx.x >= CONSUMERS) {
        registers_fewer<GROUPS == 3 ? 56 : 40>();
        if (threadIdx.x < CONSUMERS + 32)
            produce(&kp, shared);
        else if (threadIdx.x < CONSUMERS + 32 + 32 * TRANSPOSERS)
            transpose(shared);
        else
            fill_empty(&kp.maps);
    } else {
        registers_more<GROUPS == 3 ? 152 : 232>();
        consume(&kp.maps.fwd, shared);
    }
}
